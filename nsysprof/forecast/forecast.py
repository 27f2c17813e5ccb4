"""Forecasts what a change would bring to the steps of a recorded program: replays it with and without the change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.core.intervals import Ints, union_length
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.forecast.change import Program, Step, steps_of
from nsysprof.forecast.path import PathParts, path_parts
from nsysprof.forecast.profiler import Unprofiled, unprofiled_network
from nsysprof.forecast.questions import AbstainError, Changes, published_error
from nsysprof.formats.run_record import file_facts
from nsysprof.kernels.classify import Kinds, Rules, classify, load_rules
from nsysprof.statistics.confidence import median_interval
from nsysprof.statistics.dependence import dependence
from nsysprof.trace.trace import KERNEL
from nsysprof.waits.network import network_of
from nsysprof.waits.replay import Network, Times, as_usual, replay
from nsysprof.waits.windows import Windows
from nsysprof.why.culprits import read_facts
from nsysprof.why.ranges import choose_windows
from nsysprof.why.why import account_for

LEVEL = 0.9  # of the interval
MAX_RESIDUAL = 0.03  # of a step: replayed without what each GPU op has of its own
MAX_UNRESOLVED = 0.02  # of the time of gaps
MIN_UNRESOLVED = 0.005  # of the steps: less does not matter
MAX_OVERLAP = (
    0.02  # of the steps: kernels that would run side by side, and share the GPU, for longer than recorded
)
UNEXPLAINED_NS = 20_000  # before an op starts: no latency is that long


@dataclass(frozen=True)
class Forecast:
    """What a change would bring to the steps of a program.

    ``steps`` are the rows of a path on a GPU: ``start_ns`` as recorded, ``base_ns`` and ``forecast_ns``, int64;
    ``base_ns`` and ``forecast_ns`` their medians, ``low_ns`` and ``high_ns`` the interval of the latter. Where it is
    ``as_profiled`` all of it is of the program under the profiler; else ``unprofiled`` says how it was scaled.
    ``residual`` is by which part of a step the replay is off that knows nothing of single GPU ops. ``before`` and
    ``after`` are the critical path of one step, the one nearest to both medians. ``per_call_ns``: what a call of the
    ranges in question gains, None where there are none; ``others`` are path, GPU and both medians of other steps.
    """

    attribution: Attribution
    question: dict[str, Any]
    words: str
    path: str
    gpu: int
    starts: Ints
    base: Ints
    forecast: Ints
    low_ns: float
    high_ns: float
    level: float
    as_profiled: bool
    unprofiled: Unprofiled | None
    residual: float
    published: str
    before: PathParts
    after: PathParts
    per_call_ns: float | None
    notes: tuple[str, ...]
    chosen: str
    others: tuple[tuple[str, int, float, float], ...]

    @property
    def base_ns(self) -> float:
        """The median step without the change."""
        return float(np.median(self.base))

    @property
    def forecast_ns(self) -> float:
        """The median step with the change."""
        return float(np.median(self.forecast))

    @property
    def because(self) -> str:
        """The part of the critical path that changes most, in words; empty where none does."""
        return self.before.compared_with(self.after)

    @property
    def basis(self) -> str:
        """What the numbers are of."""
        return "as profiled" if self.unprofiled is None else self.unprofiled.words

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what is doubtful or missing in the trace."""
        trace = self.attribution.trace
        return (*trace.report.about.warnings, *trace.warnings)

    @property
    def question_hash(self) -> str:
        """The SHA-256 of the question as JSON, keys in order."""
        return hashlib.sha256(json.dumps(self.question, sort_keys=True).encode()).hexdigest()

    @property
    def report_hash(self) -> str | None:
        """The SHA-256 of the report; None for a folder."""
        path = self.attribution.trace.report.path
        return str(file_facts(path)["sha256"]) if path.is_file() else None


def forecast(
    attribution: Attribution,
    select: str | None = None,
    *,
    rules: Rules | None = None,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
    record: Path | None = None,
    as_profiled: bool = False,
    **changes: Any,
) -> Forecast:
    """Forecast what changes would bring to the ranges that the glob ``select`` matches, without one to the steps.

    ``changes`` are the fields of `Changes`, such as ``graph=["backward"]``. ``record`` is a run record with the times
    of the program without a profiler; None looks for the one beside the report, and ``as_profiled`` uses none. The
    report must be open. Raises `NsysprofError` where nothing matches, and `AbstainError` (exit code 3) where the answer
    is not known. Near-linear in ops and calls.
    """
    wanted = Changes(**changes)
    question = {"range": select, **wanted.asked}
    attribution = attribution.launched
    kinds = classify(rules or load_rules(None), attribution.trace.op_names)
    facts = read_facts(attribution, kinds, merge_names)
    windows, paths, chosen = choose_windows(attribution, select, merge_names)
    if not len(windows):
        some = (
            "analyze shows what does" if len(attribution.trace.ops) else "steps judges the steps of the host"
        )
        raise NsysprofError(f"nothing in {select or 'this report'} runs on a GPU", f"nsysprof {some}")
    answer = cache(lambda: account_for(attribution, windows, paths, kinds, merge_names=merge_names))
    program = Program(attribution, facts, merge_names, answer)
    steps = steps_of(program, wanted)
    asked = np.concatenate([windows.range[windows.range >= 0], *(step.ranges for step in steps)]).astype(
        np.intp
    )
    moments = program.set_rows(asked)
    program.set_network(network_of(attribution, facts.activity, facts.dependencies, moments, facts.peers))
    spans = _spans(program, windows)
    _refuse_unknown(program, spans)
    return _answered(program, spans, steps, paths, kinds, chosen, question, record, as_profiled)


@dataclass(frozen=True)
class Spans:
    """The windows of steps as the network has them: the ops that count to each, and who comes before whom.

    ``windows`` rows sorted by GPU, path and start; ``ops`` those of each, one after the other from ``first`` on;
    ``heads`` where those of another GPU or path begin.
    """

    windows: Windows
    begin: NDArray[np.intp]
    stop: NDArray[np.intp]
    ops: NDArray[np.intp]
    first: NDArray[np.intp]
    heads: NDArray[np.intp]

    def lengths(self, times: Times) -> tuple[Ints, Ints]:
        """The start and end of each window in a replay, by the rule of `gpu_windows`."""
        done = np.maximum.reduceat(times.end[self.ops], self.first)
        if (self.windows.range < 0).all():
            return np.minimum.reduceat(times.start[self.ops], self.first), done
        start, end = times.moment[self.begin].copy(), np.maximum(done, times.moment[self.stop])
        for rows in np.split(np.arange(len(done)), self.heads[1:]):
            start[rows[1:]] = np.maximum(start[rows[1:]], np.maximum.accumulate(end[rows])[:-1])
        return start, np.maximum(start, end)


def _spans(program: Program, windows: Windows) -> Spans:
    trace = program.attribution.trace
    if (windows.range < 0).all():
        parts = [np.flatnonzero(trace.op_gpu == gpu) for gpu in windows.gpu.tolist()]
        place = np.repeat(np.arange(len(windows)), [len(part) for part in parts])
        ops = np.concatenate(parts)
        begin = stop = np.zeros(len(windows), np.intp)
    else:
        rows = np.unique(windows.range).astype(np.intp)
        ops, of = program.ops_of(rows)
        gpus = int(windows.gpu.max()) + 1
        key = of * gpus + trace.op_gpu[ops]
        own = np.searchsorted(rows, windows.range) * gpus + windows.gpu
        order = np.argsort(own)
        at = np.minimum(np.searchsorted(own[order], key), len(own) - 1)
        place = np.where((own[order][at] == key) & (trace.op_gpu[ops] >= 0), order[at], -1)
        ops, place = ops[place >= 0], place[place >= 0]
        by = np.argsort(place, kind="stable")
        ops, place = ops[by], place[by]
        where = program.place(windows.range.astype(np.intp))
        begin, stop = program.begin[where], program.stop[where]
    first = np.searchsorted(place, np.arange(len(windows)))
    new = np.append(True, (windows.gpu[1:] != windows.gpu[:-1]) | (windows.path[1:] != windows.path[:-1]))
    return Spans(windows, begin, stop, ops, first, np.flatnonzero(new[: len(windows)]))


# ---- what is not known


def _refuse_unknown(program: Program, spans: Spans) -> None:
    """Raise `AbstainError` where the trace does not say what its GPU ops waited for."""
    trace, network, facts = program.attribution.trace, program.network, program.facts
    streams = np.unique(trace.ops.stream[spans.ops])
    if facts.lacks and len(streams) > len(np.unique(spans.windows.gpu)):
        raise AbstainError(
            f"which stream waits for which is not recorded: {facts.lacks[0]}",
            "record it again, then forecast",
        )
    gap_ns = unknown_ns = 0
    windows = spans.windows
    for gpu in np.unique(windows.gpu).tolist():
        rows = np.flatnonzero(trace.op_gpu == gpu)
        mine = np.unique(trace.op_process[spans.ops[trace.op_gpu[spans.ops] == gpu]])
        others = np.setdiff1d(trace.op_process[rows], mine)
        if len(others) or len(mine) > 1:
            raise AbstainError(
                f"{len(others) + len(mine)} processes share GPU {gpu}: how they slow each other is not modelled"
            )
        rows = rows[np.argsort(trace.ops.start[rows], kind="stable")]
        start = trace.ops.start[rows]
        reach = np.append(start[:1], np.maximum.accumulate(trace.ops.end[rows])[:-1])
        gap = np.maximum(start - reach, 0)
        at = np.searchsorted(windows.start[windows.gpu == gpu], start, side="right") - 1
        inside = (at >= 0) & (start <= windows.end[windows.gpu == gpu][at])
        node = network.start[rows]
        extra = network.extra[node]
        alone = (network.edges[0].to[node] == 0) & (network.edges[0].moment[node] < 0)
        unknown = np.where(alone, gap, np.where(extra > UNEXPLAINED_NS, np.minimum(extra, gap), 0))
        gap_ns += int(gap[inside].sum())
        unknown_ns += int(unknown[inside].sum())
    whole = int((windows.end - windows.start).sum())
    if unknown_ns > MAX_UNRESOLVED * gap_ns and unknown_ns > MIN_UNRESOLVED * whole:
        raise AbstainError(
            f"what the GPU waited for is not known in {format_share(unknown_ns / gap_ns)} of the time of its gaps"
            f" (at most {format_share(MAX_UNRESOLVED)})",
            f"nsysprof why {program.file} shows where",
        )


def _overlap(program: Program, times: Times, kinds: Kinds) -> int:
    """For how long compute kernels of a GPU run side by side, added over GPUs."""
    trace = program.attribution.trace
    talks = np.array([family == "communication" for family in kinds.family], bool)
    computes = (trace.ops.kind == KERNEL) & ~talks[trace.ops.name]
    total = 0
    for gpu in np.unique(trace.op_gpu[trace.op_gpu >= 0]).tolist():
        rows = np.flatnonzero(computes & (trace.op_gpu == gpu))
        if len(np.unique(trace.ops.stream[rows])) > 1:
            start, end = times.start[rows], times.end[rows]
            total += int((end - start).sum()) - union_length(start, end)
    return total


# ---- the answer


def _answered(
    program: Program,
    spans: Spans,
    steps: list[Step],
    paths: Sequence[str],
    kinds: Kinds,
    chosen: str,
    question: dict[str, Any],
    record: Path | None,
    as_profiled: bool,
) -> Forecast:
    network, windows = program.network, spans.windows
    length = windows.end - windows.start
    group = np.repeat(np.arange(len(spans.heads)), np.diff(np.append(spans.heads, len(windows))))
    best = int(np.argmax(np.bincount(group, weights=length)))
    mine = np.flatnonzero(group == best)
    path = paths[int(windows.path[mine[0]])]
    usual = np.subtract(*spans.lengths(replay(as_usual(network)))[::-1])[mine]
    residual = float(np.median(np.abs(usual - length[mine]) / np.maximum(length[mine], 1)))
    if residual > MAX_RESIDUAL:
        raise AbstainError(
            f"replayed from what each GPU op waited for, a step of {one_line(path, 60)} is {format_share(residual)} off"
            f" (at most {format_share(MAX_RESIDUAL)})",
            f"nsysprof why {program.file} --verify",
        )
    base_network, unprofiled = network, None
    if not as_profiled:
        base_network, unprofiled = unprofiled_network(program, spans, mine, path, record)
    base = replay(base_network)
    edited = base_network.copy()
    for step in steps:
        step.apply(edited)
    after = replay(edited)
    overlap = _overlap(program, after, kinds) - _overlap(program, base, kinds)
    if overlap > MAX_OVERLAP * int(length.sum()):
        raise AbstainError(
            f"kernels would run side by side for {format_ns(overlap)} more than recorded: how they slow each other is"
            " not modelled",
            f"nsysprof why {program.file} shows what runs side by side",
        )
    return _measured(program, spans, steps, path, chosen, question, unprofiled, residual, mine, group, paths,
                     (base_network, base), (edited, after))  # fmt: skip


def _measured(
    program: Program,
    spans: Spans,
    steps: list[Step],
    path: str,
    chosen: str,
    question: dict[str, Any],
    unprofiled: Unprofiled | None,
    residual: float,
    mine: NDArray[np.intp],
    group: NDArray[np.intp],
    paths: Sequence[str],
    before: tuple[Network, Times],
    after: tuple[Network, Times],
) -> Forecast:
    windows = spans.windows
    base_start, base_end = spans.lengths(before[1])
    new_start, new_end = spans.lengths(after[1])
    base, new = base_end - base_start, new_end - new_start
    published, error = published_error([step.kind for step in steps])
    low, high, level = _interval(new[mine])
    away = np.abs(base[mine] - np.median(base[mine])) + np.abs(new[mine] - np.median(new[mine]))
    middle = int(mine[np.argmin(away)])
    stop = int(spans.stop[middle]) if windows.range[middle] >= 0 else -1
    last = spans.ops[spans.first[middle] : np.append(spans.first, len(spans.ops))[middle + 1]]
    parts = [
        path_parts(program.facts, *replayed, int(start[middle]), last, stop)
        for replayed, start in ((before, base_start), (after, new_start))
    ]
    calls = np.unique(np.concatenate([np.empty(0, np.intp), *(step.ranges for step in steps)]))
    begun = program.attribution.trace.ranges.start[calls]
    at = np.searchsorted(windows.start[mine], begun, side="right") - 1
    calls = calls[(at >= 0) & (begun < windows.end[mine][at])]
    gain = float(np.median(base[mine]) - np.median(new[mine]))
    others = []
    for number in range(int(group.max()) + 1):
        rows = np.flatnonzero(group == number)
        if rows[0] != mine[0]:
            medians = float(np.median(base[rows])), float(np.median(new[rows]))
            others.append((paths[int(windows.path[rows[0]])], int(windows.gpu[rows[0]]), *medians))
    return Forecast(
        attribution=program.attribution,
        question=question,
        words=", ".join(step.words for step in steps),
        path=path,
        gpu=int(windows.gpu[mine[0]]),
        starts=windows.start[mine],
        base=base[mine],
        forecast=new[mine],
        low_ns=low * (1 - error),
        high_ns=high * (1 + error),
        level=level,
        as_profiled=unprofiled is None,
        unprofiled=unprofiled,
        residual=residual,
        published=published,
        before=parts[0],
        after=parts[1],
        per_call_ns=gain * len(mine) / len(calls) if len(calls) else None,
        notes=tuple(dict.fromkeys(program.notes)),
        chosen=chosen,
        others=tuple(others),
    )


def _interval(values: Ints) -> tuple[float, float, float]:
    """The interval of the median of steps, by blocks where they depend on each other; of one step that step."""
    if len(values) < 2:
        return float(values[0]), float(values[0]), 0.0
    numbers = values.astype(np.float64)
    found = median_interval(numbers, dependence(numbers), level=LEVEL)
    return found.low, found.high, found.level
