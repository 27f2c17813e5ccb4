"""Find steps that take longer than others, the waits that make these steps longer, and idle time between steps."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.arrays import Ints, Line
from nsysprof.core.columns import distinct, sums
from nsysprof.core.intervals import covered, merge, union
from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.busy import starts_in
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.finding import NAME, SLOW, Finding
from nsysprof.diagnosis.kinds import copied_op, copying, counted
from nsysprof.kernels.names import short_name
from nsysprof.statistics.judge import SLOW_ONES, judge
from nsysprof.waits.facts import OVERHEAD
from nsysprof.waits.windows import compute_ops

MIN_SHARE, _OF_PATTERN = 0.02, 0.05  # of all steps; of steps that were found by their pattern
_COMPUTE, _SEVERAL = "longer compute", "several longer waits"
_MOST_SUMS = 4_000_000  # of kernels and steps
_BETWEEN = 0.05  # of the time from step to step, without the longest pause; of a step, in a third of the pauses
_FEEDS = re.compile("(?i)dali|loader|dataset|reader|preprocess|(?<!pre)fetch")
_AHEAD = (
    "prepare batches further ahead of the steps: more reader threads or workers, and deeper prefetching"
    " (DALI: num_threads, prefetch_queue_depth; PyTorch: num_workers, prefetch_factor)"
)


def slow_step_findings(case: Case, place: Place) -> Iterator[Finding]:
    """Yield the slow steps of a place, as in `judge`, if their total extra time is at least `MIN_SHARE`."""
    if place.path == WHOLE:
        return
    judged = judge(place.length)
    slow = np.flatnonzero(np.isin(judged.of, SLOW_ONES))
    excess = place.length[slow] - judged.expected[slow]
    total = round(float(excess.sum()))
    if not len(slow) or total < (_OF_PATTERN if case.chosen.level.found else MIN_SHARE) * place.total_ns:
        return
    cause, waits, copies = _cause(case, place, slow)
    if cause in (_COMPUTE, _SEVERAL):
        kernel = _kernel(case, place, slow) * (cause == _COMPUTE)
        if not kernel and case.chosen.level.found:
            return  # steps that were found by their pattern, and do other work
        cause = f"{kernel}, which takes longer with the same grid" if kernel else cause
    most = int(slow[np.argmax(excess if waits is None else waits)])
    typical = format_ns(round(float(judged.expected[most])))
    yield Finding(
        kind=SLOW,
        path=place.path,
        gpu=place.gpu,
        often=f"{len(slow):,} of {place.steps:,} steps",
        steps=place.steps,
        text=(
            f"{len(slow):,} of {plural(place.steps, 'step')} are slow, mainly because of {cause}{copies}: step "
            f"{most} takes {format_ns(int(place.length[most]))} instead of {typical}"
        ),
        cause=cause,
        claim="order",
        lost_ns=total,
        total_ns=place.total_ns,
    )


def _cause(case: Case, place: Place, slow: np.ndarray) -> tuple[str, Ints | None, str]:
    """What slow steps wait for more than the median of the others; for a wait, how long each of them waits (ns), and a
    clause if the GPU copies meanwhile.
    """
    at = np.full(len(case.windows), -1, np.int64)
    at[place.windows] = np.arange(place.steps)
    step = at[case.pieces["window"]]
    rows = np.flatnonzero((step >= 0) & (case.pieces["cause"] != OVERHEAD))
    culprit, ns = case.pieces["culprit"][rows], case.pieces["ns"][rows]
    codes, of = np.unique(culprit, return_inverse=True)
    table = sums(of * place.steps + step[rows], ns, len(codes) * place.steps).reshape(len(codes), place.steps)
    more, grown = _more(place, table, slow)
    if not len(more) or more.max() < grown / 2:
        return _COMPUTE if more.sum() < grown / 2 else _SEVERAL, None, ""
    words = case.facts.texts.words
    text, row = min((words[codes[at]], at) for at in np.flatnonzero(more == more.max()).tolist())
    copies = " while the GPU copies" * copying(
        case, rows[(of == row) & np.isin(step[rows], slow) & (copied_op(case)[rows] < 0)]
    )
    return one_line(text or "launch latency", NAME), table[row, slow], copies


def _more(place: Place, table: np.ndarray, slow: np.ndarray) -> tuple[np.ndarray, float]:
    """By how much each row of a table (a column per step) is larger in slow steps than in the median of the others; and
    by how much these steps are longer.
    """
    others = np.setdiff1d(np.arange(place.steps), slow)
    more = (table[:, slow] - np.median(table[:, others], axis=1)[:, None]).sum(axis=1)
    return more, float(place.length[slow].sum() - np.median(place.length[others]) * len(slow))


def _kernel(case: Case, place: Place, slow: np.ndarray) -> str:
    """The kernel that makes slow steps longer than the median of the others, if it is launched as often and with the
    same grid in both; empty otherwise.
    """
    trace, launches, steps = case.facts.attribution.trace, case.launches, place.steps
    if launches is None:
        return ""
    windows = case.windows.take(place.windows)
    order = np.argsort(windows.start, kind="stable")
    rows = np.flatnonzero(compute_ops(trace, case.facts.communication) & (trace.op_gpu == place.gpu))
    rows = rows[starts_in(case, place, trace.ops.start[rows])]
    step = order[np.searchsorted(windows.start[order], trace.ops.start[rows], side="right") - 1]
    first, key = distinct(trace.ops.name[rows], launches.of[rows])
    if not len(first) or len(first) * steps > _MOST_SUMS:
        return ""
    at = key * steps + step
    ns, count = (
        sums(at, each, len(first) * steps).reshape(-1, steps)
        for each in (trace.ops.end[rows] - trace.ops.start[rows], np.ones(len(rows), np.int64))
    )
    more, grown = _more(place, ns, slow)
    most, others = int(more.argmax()), np.setdiff1d(np.arange(steps), slow)
    known = launches.blocks[launches.of[rows[first[most]]]] > 0
    alike = np.median(count[most, slow]) == np.median(count[most, others])
    return one_line(short_name(trace.op_names[trace.ops.name[rows[first[most]]]]), NAME) * bool(
        known and alike and 2 * more[most] >= grown
    )


def between_steps(case: Case, place: Place) -> Iterator[Finding]:
    """Find GPU idle time in the pauses between steps, even if the GPU also runs work of other ranges during these
    pauses.

    The total idle time is an upper bound of the gain. A single long pause counts as other work, and so do pauses
    between only a few steps.
    """
    if place.path == WHOLE or case.chosen.level.found:
        return
    windows, lines = case.windows.take(place.windows), case.lines[place.gpu]
    mine = case.chosen.windows.take(np.flatnonzero(case.chosen.windows.gpu == place.gpu))
    end, start = merge(mine.start, mine.end)[::-1]
    inside = (start[1:] > windows.start.min()) & (end[:-1] < windows.end.max())
    pauses = end[:-1][inside], start[1:][inside]
    length = pauses[1] - pauses[0]
    busy = union(union(lines.compute, lines.communication), lines.copies)
    idle = length - covered(busy, *pauses)
    total, lost = place.total_ns + int(length.sum()), int(idle.sum())
    some = int((length >= _BETWEEN * place.step_ns).sum())
    if lost - int(idle.max(initial=0)) < _BETWEEN * total or 3 * some < place.steps:
        return
    doing = _beside(case, _without(pauses, busy), total // place.steps)
    each, period = (format_ns(ns / place.steps) for ns in (lost, total))
    text = f"the GPU idles between the steps for {each} per step on average ({format_share(lost / total)})"
    text += f", most of it while {doing} runs" * bool(doing)
    text += f"; a median step takes {format_ns(place.step_ns)} ({period} on average with the pauses)"
    remedy = _AHEAD if _FEEDS.search(doing) else ""
    found = counted(place, "input-wait" if remedy else "cpu-code", "pauses between steps", text, remedy, lost, lost)
    found = replace(found, claim="order", total_ns=total, step_ns=total / place.steps)
    yield found if remedy else found.untried()


def _without(pauses: Line, busy: Line) -> Line:
    """The parts of pauses in which a GPU is not busy."""
    edges = np.concatenate([*pauses, *busy])
    change = np.repeat([1, -1, -2, 2], [len(pauses[0]), len(pauses[1]), len(busy[0]), len(busy[1])])
    order = np.argsort(edges, kind="stable")
    edges, idle = edges[order], np.cumsum(change[order]) == 1
    return merge(edges[:-1][idle[:-1]], edges[1:][idle[:-1]])


def _beside(case: Case, pauses: Line, most_ns: int) -> str:
    """The range of the steps' processes, no longer than two steps, that runs for most of some pauses; empty if none
    does for half of them.
    """
    trace, ranges = case.facts.attribution.trace, case.facts.attribution.trace.ranges
    of = trace.thread_process[ranges.thread]
    ours = np.isin(of, of[case.windows.range[case.windows.range >= 0]])
    rows = np.flatnonzero(ours & (ranges.end - ranges.start <= 2 * most_ns))
    at = np.bincount(ranges.name[rows], covered(pauses, ranges.start[rows], ranges.end[rows]), 1)
    half, longest, name = int((pauses[1] - pauses[0]).sum()) / 2, 0, -1
    for code in np.flatnonzero(at >= half).tolist():  # of several threads at the same time one counts
        mine = rows[ranges.name[rows] == code]
        mine = mine[np.argsort(ranges.start[mine], kind="stable")]
        ns = int(covered(merge(ranges.start[mine], ranges.end[mine]), *pauses).sum())
        if ns >= max(half, longest + 1):
            longest, name = ns, code
    return one_line(trace.range_names[name].text, NAME) if name >= 0 else ""
