"""Find the bottlenecks of a program's steps, and try fixes in a replay: one answer for all commands."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.levels import WHOLE
from nsysprof.core.arrays import AnyInts, Index
from nsysprof.core.columns import marked
from nsysprof.core.intervals import covered, held, merge, union
from nsysprof.core.parallel import side_by_side
from nsysprof.core.text import join_words, one_line
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.busy import busy_kernels
from nsysprof.diagnosis.calls import graphs_not_recorded
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.catalogue import OF_KERNELS, OF_STEPS
from nsysprof.diagnosis.cold_start import cold_start, failed_calls, outside_steps, set_up
from nsysprof.diagnosis.cpu_code import CPU_CODE, most_samples
from nsysprof.diagnosis.finding import COLD, FAILED, NAME, PACED, SLOW, Finding, ranked, scaled, worth_telling
from nsysprof.diagnosis.kinds import text_of
from nsysprof.diagnosis.page_fault import without_faults
from nsysprof.diagnosis.tried import enough, groups, left_out_if_faulty, of_waits
from nsysprof.kernels.classify import Kinds
from nsysprof.kernels.launches import Launches
from nsysprof.kernels.names import short_name
from nsysprof.trace.trace import COPYING, GRAPH, KERNEL, MIGRATION
from nsysprof.waits.facts import Facts, read_facts
from nsysprof.waits.purposes import LAUNCH
from nsysprof.waits.ranges import Chosen, choose_windows, pick_windows
from nsysprof.waits.stretch import reach_of, stretch_of
from nsysprof.waits.windows import incomplete

MAX_OPS = 250_000  # GPU ops of a recording that is replayed whole; of a larger one are stretches of some steps
STRETCH, MAX_PATHS = 3, 6  # steps of each of so many paths
_MANY_OPS = 40_000  # of a stretch, about: then one step fewer
_VARIANT = 0.2  # of the steps: a kernel in so many, and another one in others
_BEFORE = 9  # characters before the difference of two names that look the same when shortened
_WHOLE = 10_000  # characters of a name that is not cut
_IDLE = 0.05  # of the steps that idle, exposed and unknown time may take where nothing stands out


@dataclass(frozen=True)
class StepTimes:
    """How all steady steps of a path on a GPU spend their time, in ns. The parts add up to the whole time.

    ``step_ns`` is the median step; communication and copies count only while nothing computes.
    """

    path: str
    gpu: int
    steps: int
    step_ns: int
    compute_ns: int
    communication_ns: int
    copies_ns: int
    idle_ns: int

    @property
    def total_ns(self) -> int:
        """Return the total time of all steps."""
        return self.compute_ns + self.communication_ns + self.copies_ns + self.idle_ns


@dataclass(frozen=True)
class Diagnosis:
    """The bottlenecks of a program's steps: ``findings``, largest gain first.

    ``chosen`` are the steps; ``steps``: the number of steady steps; ``once``: descriptions of the one-time host work,
    each with its time in ns, longest first; ``doubt``: why nothing was replayed, otherwise empty; ``idle_share``: the
    part of the steady steps in which the GPU computes nothing; ``busy_ns``: the time in which GPUs are busy in the
    recording; ``times``: the `StepTimes` of each path on its GPU; ``left_out``: the number of warm-up steps;
    ``early_share``: for a recording without steps, the share of time spent waiting in warm-up ranges; ``busiest``: the
    kernels with the most time, and their shares of the step time; ``several``: whether no single kernel leads these;
    ``longest_share``: the share of the first of them;
    ``recorded_ns``: the length of the recording; ``migrated_ns``: see `_migrated`; ``outside_share``: the part of the
    GPUs' busy time outside all steps; ``outside``: the main kind of GPU work outside all steps (kernels or copies), and
    its time. ``idle_outside_ns``: mean idle time of a GPU outside detected steps, between the first and last
    operations; ``gap_ns``: the longest gap in this time; ``during``: the CPU's activity during this gap; ``mostly``: if
    there is no finding, the largest cause of waits in the steps, with its share; ``tried``: whether fixes were tried in
    a replay that reproduces the steps, and none of them helps; ``launches``: the number of recorded launches;
    ``before``: the longest range that ends before the first GPU operation, and its time in ns; ``lost``: by GPU, the
    number of later steps left out because nsys lost GPU operations (see `incomplete`).
    """

    chosen: Chosen
    findings: tuple[Finding, ...]
    steps: int
    once: tuple[tuple[str, int], ...]
    doubt: str
    idle_share: float
    busy_ns: int
    times: tuple[StepTimes, ...]
    left_out: int
    early_share: float = 0.0
    busiest: str = ""
    several: bool = False
    longest_share: float = 0.0
    recorded_ns: int = 0
    migrated_ns: int = 0
    outside_share: float = 0.0
    outside: str = ""
    idle_outside_ns: int = 0
    gap_ns: int = 0
    during: str = ""
    mostly: str = ""
    tried: bool = False
    launches: int = 0
    before: tuple[str, int] = ("", 0)
    lost: Mapping[int, int] = field(default_factory=dict)

    @property
    def repeats(self) -> bool:
        """Return whether there are steps; otherwise the diagnosis is about the whole recording."""
        return bool(len(self.chosen.level.rows))

    @property
    def nothing(self) -> bool:
        """Return whether only the kernels themselves are left to fix."""
        return not self.findings and self.idle_share < _IDLE and self.idle_outside_ns < _IDLE * self.recorded_ns


def diagnose(case: Case) -> Diagnosis:
    """Diagnose the steps of a case. In large recordings, diagnose only some steps in the middle of each path.

    Each replayed cause takes time nearly linear in the number of ops and calls.
    """
    if len(case.facts.attribution.trace.ops) <= MAX_OPS:
        return _diagnosis_of(case)
    if len(case.chosen.level.rows) and "activity" not in vars(case.facts):
        trace, windows = case.facts.attribution.launched.trace, case.chosen.windows
        every = [reach_of(trace, windows, rows)[1:] for rows in _middles(case)]
        low, high = np.array(every, np.int64).reshape(-1, 2).T
        case = replace(case, facts=replace(case.facts, near=merge(low, high + 1)))
    around = _around(case)  # as long as it is known when GPUs are busy
    case.facts.attribution.trace.give_back()
    parts = [_diagnosis_of(part) for part in stretches(case)]
    found = [
        scaled(each, times, steps)
        for part in parts
        for each in part.findings
        for times, steps in [_of_all(case, part, each)]
    ]
    return _answer(case, found, parts, around)


def case_of(
    attribution: Attribution,
    select: str | None,
    kinds: Kinds,
    merge_names: Sequence[str] | None,
    *,
    chosen: Chosen | None = None,
    rows: AnyInts | None = None,
    facts: Facts | None = None,
    launched: Launches | None = None,
    replay: bool = True,
) -> Case:
    """Make the case to diagnose: the steps that the glob ``select`` matches, or by default the steps that
    `choose_level` finds.

    ``kinds`` are the kinds of the op names. ``chosen``, ``rows`` (the steps to use; default: all except warm-up),
    ``facts`` and the launches are computed if not given. Without ``replay``, no fix is tried.
    """
    chosen = chosen or choose_windows(attribution, kinds.communication, select, merge_names)
    if rows is None:
        rows, _ = pick_windows(chosen.attribution, chosen.windows, None, None)
    facts = facts or read_facts(chosen.attribution, kinds, merge_names)
    return Case(chosen, facts, np.asarray(rows, np.intp), merge_names, launched=launched, replay=replay)


def stretches(case: Case) -> Iterator[Case]:
    """Yield some steps in the middle of each path of a large recording, with their surroundings; see `stretch_of`."""
    for rows in _middles(case):
        part = stretch_of(case.facts, case.chosen.windows, rows)
        chosen = replace(case.chosen, windows=part.windows)
        rows = np.flatnonzero(part.asked)
        yield Case(chosen, part.facts, rows, case.merge_names, (case, part.ops), replay=case.replay)


def _middles(case: Case) -> Iterator[Index]:
    """The windows of some steps in the middle of each path, on all of its GPUs."""
    windows = case.windows
    ops_per_ns = len(case.facts.attribution.trace.ops) / max(int(case.chosen.windows.length.sum()), 1)
    for path in list(dict.fromkeys(place.path for place in case.places))[:MAX_PATHS]:
        places = [place for place in case.places if place.path == path]
        mine = places[0].windows[np.argsort(windows.start[places[0].windows], kind="stable")]
        every = np.concatenate([place.windows for place in places])
        for steps in (STRETCH, STRETCH - 1):
            middle = mine[max((len(mine) - steps) // 2, 0) :][:steps]
            begin, end = windows.start[middle].min(), windows.end[middle].max()
            rows = every[(windows.start[every] >= begin) & (windows.start[every] < end)]
            if ops_per_ns * int(windows.length[rows].sum()) <= _MANY_OPS:
                break
        yield np.sort(case.rows[rows])


def _of_all(case: Case, part: Diagnosis, finding: Finding) -> tuple[float, int]:
    """How many times as long all steady steps of a path on a GPU take as those of a stretch, and how many they are."""
    whole = next(each for each in case.places if (each.path, each.gpu) == (finding.path, finding.gpu))
    some = next(each for each in part.times if (each.path, each.gpu) == (finding.path, finding.gpu))
    return whole.total_ns / max(some.total_ns, 1), whole.steps


def _diagnosis_of(case: Case) -> Diagnosis:
    found: list[Finding] = []
    if len(case.windows):
        found = [*of_waits(case)]
        for place in case.places:
            for names, extra in OF_STEPS.items():
                with left_out_if_faulty(names):
                    found += extra(case, place)
            busy = busy_kernels(*without_faults(case, place))
            for names, of_kernels in OF_KERNELS.items():
                with left_out_if_faulty(names):
                    found += of_kernels(busy)
    return _answer(case, found, None, _around(case))


_Around = tuple[tuple[float, str], tuple[tuple[str, int], ...]]


def _around(case: Case) -> _Around:
    """What is `_outside` the steps, and the one-time host work."""
    apart = case.facts.attribution.trace.apart
    outside, once = side_by_side(lambda: _outside(case), lambda: tuple(set_up(case)), apart=apart)
    return outside, once


def _answer(case: Case, found: list[Finding], parts: Sequence[Diagnosis] | None, around: _Around) -> Diagnosis:
    """The `Diagnosis` with some findings; ``parts`` are those of stretches of the case, None for the case itself."""
    if parts is None:
        times = tuple(_times(case, place) for place in case.places)
        doubt = case.doubt if len(case.windows) or not case.replay else ""
    else:
        lengths = {(place.path, place.gpu): place.length for place in case.places}
        times = tuple(
            replace(each, steps=len(length), step_ns=int(np.median(length)))
            for part in parts
            for each in part.times
            for length in [lengths[each.path, each.gpu]]
        )
        doubt = next((part.doubt for part in parts if part.doubt), "")
    total, compute = sum(each.total_ns for each in times), sum(each.compute_ns for each in times)
    trace = case.facts.attribution.trace
    lasted = trace.report.about.duration_ns or 0
    # without it from the first call to the last; ranges, and system calls of other threads, may be reported beyond it
    times_of = [(each.start, each.end) for each in (trace.ops, trace.launches)]
    times_of += [] if lasted else [(each.start, each.end) for each in (trace.ranges, case.facts.activity.calls)]
    all_of_it = [(int(start.min()), int(end.max())) for start, end in times_of if len(start)]
    span = max(end for _, end in all_of_it) - min(start for start, _ in all_of_it) if all_of_it else 0
    recorded_ns = max(lasted, span)
    (outside_share, outside), once = around
    idle = 1 - compute / total if total else 0.0
    idle_outside_ns, gap_ns, during = _idle_outside(case, recorded_ns) if case.chosen.level.found else (0, 0, "")
    found = _one_gpu(found)
    if case.part_of is None:  # a stretch is no recording
        found = cold_start(case, once, found, recorded_ns)
    found = worth_telling(ranked(found))
    if not any(each.remedy or each.lost_ns >= _IDLE * each.total_ns for each in found) and idle < _IDLE:
        found = [each for each in found if each.kind in (SLOW, PACED)]
    if case.part_of is None:
        with left_out_if_faulty(COLD):
            if not any(each.kind == COLD for each in found):
                found = [*outside_steps(case, idle_outside_ns, gap_ns, during), *found]
        with left_out_if_faulty(FAILED):
            if failed := [*failed_calls(case)]:  # little work, as it failed
                found = [*failed, *(each for each in found if each.kind != COLD)]
        with left_out_if_faulty("unknown"):
            for graphs, most in graphs_not_recorded(case):
                found = [graphs] if most else [*found, graphs]
    steps, windows = len(np.unique(case.windows.range)), case.chosen.windows
    lost = np.setdiff1d(np.flatnonzero(incomplete(case.chosen.attribution.launched.trace, windows)), case.rows)
    first = parts[0] if parts else None
    busiest, several, longest = "", False, 0.0
    if parts is None:
        busiest, several, longest = _busiest(case)
    elif first:
        busiest, several, longest = first.busiest, first.several, first.longest_share
    return Diagnosis(
        chosen=case.chosen,
        findings=tuple(found),
        steps=steps,
        once=once,
        doubt=doubt,
        idle_share=idle,
        busy_ns=trace.busy_ns,
        times=times,
        early_share=int(case.pieces["ns"][case.prepares].sum()) / total if parts is None and total else 0.0,
        busiest=busiest,
        several=several,
        longest_share=longest,
        recorded_ns=recorded_ns,
        migrated_ns=_migrated(case),
        outside_share=outside_share,
        outside=outside,
        idle_outside_ns=idle_outside_ns,
        gap_ns=gap_ns,
        during=during,
        mostly=_mostly(case) if parts is None and not found and case.part_of is None else "",
        tried=any(each.tried for each in parts or ())
        or ("residual" in vars(case) and any(map(case.known, case.places))),
        launches=len(trace.launches) or int((case.purpose == LAUNCH).sum()),
        left_out=len(np.unique(windows.range)) - steps - len(np.setdiff1d(windows.range[lost], case.windows.range)),
        lost=dict(zip(*(each.tolist() for each in np.unique(windows.gpu[lost], return_counts=True)), strict=True)),
        before=_before(case),
    )


def _before(case: Case) -> tuple[str, int]:
    """The range that takes longest of those that end before the first GPU operation, and its time in ns."""
    trace = case.facts.attribution.trace
    rows = np.flatnonzero(trace.ranges.end <= trace.ops.start.min()) if len(trace.ops) else np.empty(0, np.intp)
    length = trace.ranges.end[rows] - trace.ranges.start[rows]
    if not len(rows):
        return "", 0
    return trace.range_names[trace.ranges.name[rows[length.argmax()]]].text, int(length.max())


def _migrated(case: Case) -> int:
    """For how long pages of unified memory move before the first step and behind the last one."""
    ops, windows = case.facts.attribution.trace.ops, case.windows
    rows = np.flatnonzero(ops.kind == MIGRATION)
    if len(windows):
        rows = rows[(ops.end[rows] <= windows.start.min()) | (ops.start[rows] >= windows.end.max())]
    start, end = merge(ops.start[rows], ops.end[rows])
    return int((end - start).sum())


def _busiest(case: Case) -> tuple[str, bool, float]:
    """The two kernels that compute for most of the time in the steady steps, with their shares of the steps; graphs
    that were recorded as a whole, if they take longer. Kernels of one short name, such as the instances of a template,
    count as one. Second: whether the first is several kernels, or both run in different steps. Third: its share.
    """
    trace, talks, whole, graphs = case.facts.attribution.trace, case.facts.communication, 0, 0
    total = np.zeros(len(trace.op_names), np.int64)
    for gpu in np.unique(case.windows.gpu).tolist():
        here = (trace.op_gpu == gpu) & np.isin(trace.ops.kind, (KERNEL, GRAPH))
        rows = np.flatnonzero(here & ~talks[trace.ops.name])
        windows = case.windows.take(np.flatnonzero(case.windows.gpu == gpu))
        start, end = merge(windows.start, windows.end)
        whole += int((end - start).sum())
        at = np.searchsorted(start, trace.ops.start[rows], side="right") - 1
        rows = rows[(at >= 0) & (trace.ops.start[rows] < end[at])]
        length, as_whole = trace.ops.end[rows] - trace.ops.start[rows], trace.ops.kind[rows] == GRAPH
        graphs += int(length[as_whole].sum())
        np.add.at(total, trace.ops.name[rows[~as_whole]], length[~as_whole])
    if graphs > int(total.sum()):
        share = format_share(min(graphs / whole, 1))
        return f"CUDA graphs ({share}; nsys profile --cuda-graph-trace=node records their kernels)", False, 0.0
    alike: dict[str, list[int]] = {}
    for code in np.lexsort((trace.op_name_rank, -total)).tolist():
        if total[code]:
            alike.setdefault(short_name(trace.op_names[code], _WHOLE), []).append(code)
    most = sorted(alike.values(), key=lambda codes: -int(total[codes].sum()))[:2]
    names = _told_apart([trace.op_names[codes[0]] for codes in most])
    parts = [min(int(total[codes].sum()) / whole, 1) for codes in most]
    several = (f" in {len(codes):,} variants" * (len(codes) > 1) for codes in most)
    if apart := _apart(case, most):
        several = (f", median {format_ns(ns)}" for ns in apart)
    words = [f"{name} ({format_share(part)}{of})" for name, part, of in zip(names, parts, several, strict=True)]
    if apart:
        return f"{' or '.join(words)}, which run in different steps", True, parts[0]
    return join_words(words), any(len(codes) > 1 for codes in most[:1]), max(parts, default=0.0)


def _told_apart(names: list[str]) -> list[str]:
    """Shorten two names of kernels; if they then look the same, begin shortly before their difference."""
    short = [one_line(short_name(name), NAME) for name in names]
    if len(set(short)) == len(short):
        return short
    whole = [short_name(name, _WHOLE) for name in names]
    same = next(at for at, pair in enumerate(zip_longest(*whole)) if len(set(pair)) > 1)
    return [one_line(f"…{name[max(same - _BEFORE, 0) :]}", NAME) for name in whole]


def _apart(case: Case, kernels: Sequence[Sequence[int]]) -> list[float]:
    """The median times (ns) of two kernels that both run in many steps, but never in the same one, as variants that a
    benchmark compares; otherwise nothing.
    """
    trace, windows = case.facts.attribution.trace, case.windows
    if len(kernels) < 2 or len(np.unique(windows.gpu)) != 1 or not case.chosen.level.found:
        return []
    order = np.argsort(windows.start, kind="stable")
    step = np.searchsorted(windows.start[order], trace.ops.start, side="right") - 1
    inside = (step >= 0) & (trace.ops.start < windows.end[order][step]) & (trace.op_gpu == windows.gpu[0])
    rows = [np.flatnonzero(inside & np.isin(trace.ops.name, codes)) for codes in kernels]
    one, other = (marked(step[mine], len(windows)) for mine in rows)
    if (one & other).any() or min(one.sum(), other.sum()) < _VARIANT * len(windows):
        return []
    return [float(np.median(trace.ops.end[mine] - trace.ops.start[mine])) for mine in rows]


def _outside(case: Case) -> tuple[float, str]:
    """The part of the busy time of GPUs that lies outside all steps, and what most of it is."""
    trace, lost = case.facts.attribution.trace, {"copies": 0, "kernels": 0}
    of_kind = np.isin(np.arange(MIGRATION + 1), COPYING), np.isin(np.arange(MIGRATION + 1), (KERNEL, GRAPH))
    for gpu in sorted(set(trace.gpu_numbers)):
        windows = case.chosen.windows.take(np.flatnonzero(case.chosen.windows.gpu == gpu))
        steps, here = merge(windows.start, windows.end), np.flatnonzero(trace.op_gpu == gpu)
        here = here[~held(steps, trace.ops.start[here], trace.ops.end[here])]
        for name, kinds in zip(lost, of_kind, strict=True):
            rows = here[kinds[trace.ops.kind[here]]]
            mine = merge(trace.ops.start[rows], trace.ops.end[rows])
            lost[name] += int((mine[1] - mine[0]).sum() - covered(steps, *mine).sum())
    most = max(lost, key=lost.__getitem__)
    return min(sum(lost.values()) / max(trace.busy_ns, 1), 1.0), f"most in {most} ({format_ns(lost[most])})"


def _idle_outside(case: Case, recorded_ns: int) -> tuple[int, int, str]:
    """For how many ns a GPU idles between its first and last operation and outside steady steps: the mean, and at once;
    and what the CPU does for most of the latter, if that is much of the recording and known.
    """
    idle, most, gpu_busy = 0, (0, 0), case.facts.attribution.trace.gpu_busy
    for gpu, (start, end) in gpu_busy.items():
        windows = case.windows.take(np.flatnonzero(case.windows.gpu == gpu))
        begin, stop = union((start, end), merge(windows.start, windows.end))
        gaps = begin[1:] - stop[:-1]
        idle += int(gaps.sum())
        if len(gaps) and gaps.max() > most[1] - most[0]:
            most = int(stop[gaps.argmax()]), int(begin[gaps.argmax() + 1])
    mean = idle // max(len(gpu_busy), 1)
    return mean, most[1] - most[0], _during(case, *most) if mean >= _IDLE * recorded_ns else ""


def _during(case: Case, start: int, end: int) -> str:
    """The calls of one name, or by samples the code, in which a thread spends most of the time before it launches."""
    calls, trace = case.facts.activity.calls, case.facts.attribution.trace
    behind = np.flatnonzero(trace.launches.start >= start)
    if not len(behind):
        return ""
    thread = int(trace.threads[trace.launches.thread[behind[trace.launches.start[behind].argmin()]]])
    mine = calls.of_thread(thread)
    inside = np.maximum(np.minimum(calls.end[mine], end) - np.maximum(calls.start[mine], start), 0)
    of_name = np.bincount(calls.name[mine], inside, len(calls.names))
    if len(of_name) and 2 * of_name.max() > end - start:
        return calls.names[int(of_name.argmax())]
    one = (np.array([each], np.int64) for each in (thread, start, end))
    return most_samples(trace.report.reader.cpu_samples(*one), None)


def _mostly(case: Case) -> str:
    """The cause for which the GPU waits most in all steps, and its part of them."""
    ns: dict[str, int] = {}
    for kind, group in groups(case):
        cause = group.cause
        if group.place.path == WHOLE and not enough(case, kind, group):  # a pass that launches little
            culprit, waited = (case.pieces[name][group.rows] for name in ("culprit", "ns"))
            mine = culprit == case.facts.texts.most(culprit, waited)
            row = int(group.rows[mine.argmax()])
            cause = (CPU_CODE.words if case.pieces["call"][row] < 0 else text_of("culprit"))(case, row)
            ns[cause] = ns.get(cause, 0) + int(waited[mine].sum())
            continue
        ns[cause] = ns.get(cause, 0) + group.waited_ns
    if not ns:
        return ""
    cause = max(ns, key=ns.__getitem__)
    return f"{cause} ({format_share(ns[cause] / max(sum(place.total_ns for place in case.places), 1))})"


def _times(case: Case, place: Place) -> StepTimes:
    windows, lines = case.windows.take(place.windows), case.lines[place.gpu]
    compute = covered(lines.compute, windows.start, windows.end)
    both = covered(union(lines.compute, lines.communication), windows.start, windows.end)
    every = covered(union(union(lines.compute, lines.communication), lines.copies), windows.start, windows.end)
    parts = (compute, both - compute, every - both, place.length - every)
    return StepTimes(
        place.path, place.gpu, place.steps, int(np.median(place.length)), *(int(part.sum()) for part in parts)
    )


def _one_gpu(found: list[Finding]) -> list[Finding]:
    """Of findings of one cause and path on several GPUs the one that loses most."""
    best: dict[str, Finding] = {}
    for each in found:
        known = best.get(each.id)
        if known is None or (each.gain_ns, each.lost_ns) > (known.gain_ns, known.lost_ns):
            best[each.id] = each
    return [*best.values()]
