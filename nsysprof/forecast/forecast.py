"""Forecast how much a change would save in the steps of a recorded program: replay it with and without the change."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.attribution.attribute import Attributed, Attribution, attribute
from nsysprof.attribution.levels import Level
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.charts.notebook import Shown
from nsysprof.core.arrays import Index, Ints
from nsysprof.core.intervals import union_length
from nsysprof.core.text import one_line
from nsysprof.core.units import format_bytes, format_ns, format_share
from nsysprof.diagnosis.case import Case
from nsysprof.diagnosis.diagnose import MAX_OPS, Diagnosis, case_of, diagnose
from nsysprof.diagnosis.tried import removal_of
from nsysprof.errors import NsysprofError
from nsysprof.forecast.path import PathParts, path_parts
from nsysprof.forecast.profiler import Unprofiled, unprofiled_network
from nsysprof.formats.run_record import file_facts
from nsysprof.kernels.classify import Rules, kinds_of
from nsysprof.statistics.confidence import median_interval
from nsysprof.statistics.dependence import dependence
from nsysprof.trace.trace import KERNEL
from nsysprof.waits import edits
from nsysprof.waits.change import Step, steps_of
from nsysprof.waits.changes import AbstainError, Changes
from nsysprof.waits.ranges import choose_windows
from nsysprof.waits.replay import Network, Times, replay
from nsysprof.waits.spans import MAX_RESIDUAL, Spans

LEVEL = 0.9  # of the interval
# of the steps: kernels that would run side by side, and share the GPU, for longer than recorded
MAX_OVERLAP = 0.02
# What was published of these is of a replay that removed single waits. Their intervals are those of single steps, wider
# by the residual, and below by what a cause slows besides: copies, code and garbage collections planted into a loop on
# an H200, nine doses, slowed the rest by at most 5 % of what they cost, and in eight by at most 20 % of the rest.
REMOVALS = ("remove", "remove-calls", "remove-code")
AFTERMATH, MOST = 0.05, 0.2
_BYTES = 600  # of memory that a GPU op takes in a replay
# Forecasts of a kind that were compared with outcomes: the median and the worst error, the error that nine of ten stay
# below, as parts of the outcome, and how many. Nothing is in here that analysis/forecasts has not measured.
PUBLISHED: dict[str, tuple[float, float, float, int]] = {
    "graph": (0.0109, 0.124, 0.1074, 17),
    "swap": (0.0339, 0.3401, 0.2537, 29),
    "remove": (0.0405, 0.6582, 0.6637, 5),
    "gpu-delay": (0.0101, 0.1249, 0.1249, 8),
    "delay": (0.0165, 0.0957, 0.0957, 8),
    "drop-sync": (0.0216, 0.1007, 0.1113, 4),
    "kernel": (0.0693, 0.08, 0.1005, 3),
    "async-copies": (0.0824, 0.1423, 0.2184, 2),
    "no-late-peer": (0.161, 0.2463, 0.3781, 2),
}
MIN_BLOCKS = 0.1  # of the multiprocessors: kernels of fewer blocks leave the GPU to the others


@dataclass(frozen=True, repr=False)
class Forecast(Attributed, Shown):
    """The forecast of a change's effect on a program's steps.

    ``steps`` has a row per step of a path on a GPU: ``start_ns`` as recorded, ``base_ns`` and ``forecast_ns``, int64.
    The attributes ``base_ns`` and ``forecast_ns`` are the medians of these columns; ``low_ns`` and ``high_ns`` are the
    interval of the forecast. If ``as_profiled``, all times include profiling overhead; otherwise ``unprofiled`` says
    how this overhead was removed. ``residual`` is the relative error of an unchanged replay that keeps only the lengths
    of GPU ops; ``widened`` is the share by which each end of the interval is extended, to cover the errors of published
    forecasts. ``before`` and ``after`` are the critical paths of one step, without and with the change; the two times
    of this step are nearest to the medians. ``per_call_ns`` is the gain per call of the changed ranges, or None if
    there are no such ranges. ``others`` has path, GPU and both medians of other steps.
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
    widened: float
    before: PathParts
    after: PathParts
    per_call_ns: float | None
    notes: tuple[str, ...]
    steps: Level
    warm_up: int
    others: tuple[tuple[str, int, float, float], ...]
    case: Case = field(repr=False, compare=False)

    @property
    def chosen(self) -> str:
        """Return a clause that names the steps and the share of time that they cover."""
        return self.steps.clause

    @property
    def base_ns(self) -> float:
        """The median step without the change."""
        return float(np.median(self.base))

    @property
    def forecast_ns(self) -> float:
        """The median step with the change."""
        return float(np.median(self.forecast))

    @property
    def gain_ns(self) -> int:
        """Return the gain of all steady steps together (like ``gain_ns`` of a finding)."""
        return int((self.base - self.forecast).sum())

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis of the steps, with the changes that would help (times include profiling overhead)."""
        return diagnose(self.case)

    @property
    def because(self) -> str:
        """Name the part of the critical path that changes most; empty if nothing changes."""
        return self.before.compared_with(self.after)

    @property
    def basis(self) -> str:
        """How profiling overhead was removed from the numbers, or "as profiled"."""
        return "as profiled" if self.unprofiled is None else self.unprofiled.words

    @property
    def question_hash(self) -> str:
        """Return the SHA-256 of the question as JSON, with sorted keys."""
        return hashlib.sha256(json.dumps(self.question, sort_keys=True).encode()).hexdigest()

    @property
    def report_hash(self) -> str | None:
        """The SHA-256 of the report, or None for a folder."""
        path = self.attribution.trace.report.path
        return str(file_facts(path)["sha256"]) if path.is_file() else None


def forecast(
    attribution: str | os.PathLike[str] | Attribution,
    select: str | None = None,
    *,
    rules: Rules | None = None,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
    record: Path | None = None,
    as_profiled: bool = False,
    **changes: Any,
) -> Forecast:
    """Forecast how much changes would save in the ranges that the glob ``select`` matches, by default in the steps.

    ``attribution`` is a result of `attribute` with its report still open, or a file.

    ``changes`` are the fields of `Changes`, such as ``graph=["backward"]``. ``record`` is a run record with the times
    of the program without a profiler; None uses the record beside the report, and ``as_profiled`` uses no record.
    Raises `NsysprofError` if nothing matches, and `AbstainError` (exit code 3) if no forecast is possible. The run time
    grows nearly linearly with the number of ops and calls.
    """
    wanted = Changes(**changes)
    question = {"range": select, **wanted.asked}
    attribution = attribute(attribution).launched
    kinds = kinds_of(attribution.trace, rules)
    picked = choose_windows(attribution, kinds.communication, select, merge_names)
    attribution = picked.attribution
    if not len(picked.windows):
        some = "analyze lists ranges with GPU work" if len(attribution.trace.ops) else "steps finds slow CPU steps"
        raise NsysprofError(f"nothing in {select or 'this report'} runs on a GPU", f"nsysprof {some}")
    case = case_of(attribution, select, kinds, merge_names, chosen=picked)
    program = case.program
    steps = _steps(case, wanted)
    program.know(np.concatenate([np.empty(0, np.intp), *(step.ranges for step in steps)]))
    limit, needed = attribution.trace.arena.limit, _BYTES * len(attribution.trace.ops)
    if limit is not None and needed > limit:
        program.notes.append(f"the replay needs about {format_bytes(needed)} of memory, more than the limit")
    if doubt := program.doubt:
        raise AbstainError(*doubt)
    answer = _answered(case, steps, question, record, as_profiled)
    if len(attribution.trace.ops) > MAX_OPS:
        del vars(case)["program"]  # the diagnosis of large recordings replays stretches, and this takes memory
    return answer


def changes_that_help(
    attribution: Attribution, select: str | None, rules: Rules, merge_names: Sequence[str] | None
) -> Diagnosis:
    """Diagnose the steps that a glob matches; the findings have the replayed changes with their gains."""
    return diagnose(case_of(attribution.launched, select, kinds_of(attribution.trace, rules), merge_names))


def _steps(case: Case, wanted: Changes) -> list[Step]:
    """The changes one by one; what is to be removed is a cause of the diagnosis, or else a culprit of ``why.csv``."""
    none = np.empty(0, np.intp)
    causes = {glob: removal_of(case, glob) for glob in wanted.remove if glob.strip("*?")}
    removed = [
        Step("remove", f"without {glob}", none, partial(edits.remove, cause=cause))
        for glob, cause in causes.items()
        if cause is not None
    ]
    others = [glob for glob in wanted.remove if causes.get(glob) is None]
    return [*removed, *steps_of(case.program, replace(wanted, remove=others))]


def _overlap(case: Case, times: Times) -> int:
    """How long compute kernels of a GPU run side by side, added over GPUs; kernels of few blocks are left out."""
    trace, known = case.program.attribution.trace, case.launches
    computes = (trace.ops.kind == KERNEL) & ~case.facts.communication[trace.ops.name]
    if known is not None:
        few = (known.blocks > 0) & (known.blocks <= MIN_BLOCKS * known.sms)
        computes &= ~few[known.of]
    total = 0
    for gpu in np.unique(trace.op_gpu[trace.op_gpu >= 0]).tolist():
        rows = np.flatnonzero(computes & (trace.op_gpu == gpu))
        if len(np.unique(trace.ops.stream[rows])) > 1:
            start, end = times.of(rows)
            total += int((end - start).sum()) - union_length(start, end)
    return total


def _answered(
    case: Case, steps: list[Step], question: dict[str, Any], record: Path | None, as_profiled: bool
) -> Forecast:
    program = case.program
    network, spans, windows, length = program.network, program.spans, program.windows, program.lengths
    group = np.repeat(np.arange(len(spans.heads)), np.diff(np.append(spans.heads, len(windows))))
    weights = length
    several = len(np.unique(windows.gpu)) > 1  # what is removed may be of one of them, and a late one waits for nobody
    if any(step.kind == "no-late-peer" or (step.kind == "remove" and several) for step in steps):
        weights = length - program.lengths_with(*(step.apply for step in steps))
        weights = length if not weights.any() else weights
        program.notes.clear()  # a second replay takes notes of its own
    best = int(np.argmax(np.bincount(group, weights=weights)))
    group = np.where(np.isin(np.arange(len(windows)), case.rows), group, -1)  # without warm-up
    mine = np.flatnonzero(group == best)
    path = case.chosen.texts[int(windows.path[mine[0]])]
    residual = float(np.median(program.residual[mine]))
    if residual > MAX_RESIDUAL:
        raise AbstainError(
            f"a replay of {one_line(path, 60)} without any change misses the recorded step time by "
            f"{format_share(residual)} (limit: {format_share(MAX_RESIDUAL)})",
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
    overlap = _overlap(case, after) - _overlap(case, base)
    if overlap > MAX_OVERLAP * int(length.sum()):
        raise AbstainError(
            f"kernels would run concurrently for {format_ns(overlap)} longer than recorded, and the model "
            "ignores that they slow each other down",
            f"nsysprof why {program.file} shows concurrent kernels",
        )
    replayed = (base_network, base), (edited, after)
    return _measured(case, steps, path, question, unprofiled, residual, mine, group, *replayed)


def _measured(
    case: Case,
    steps: list[Step],
    path: str,
    question: dict[str, Any],
    unprofiled: Unprofiled | None,
    residual: float,
    mine: Index,
    group: Index,
    before: tuple[Network, Times],
    after: tuple[Network, Times],
) -> Forecast:
    program, spans, windows = case.program, case.program.spans, case.program.windows
    base_start, base_end = spans.bounds(before[1])
    new_start, new_end = spans.bounds(after[1])
    base, new = base_end - base_start, new_end - new_start
    published, _ = published_error([step.kind for step in steps])
    other_kinds = [step.kind for step in steps if step.kind not in REMOVALS]
    _, error = published_error(other_kinds)
    middle_ns = float(np.median(new[mine]))
    low, high, level = _interval(new[mine])
    if len(other_kinds) < len(steps):
        low, high = _wider(low, high, base[mine], new[mine], residual)
    stays = float(np.median(_busy(spans, after[1], mine)))
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
    rows_of = [np.flatnonzero(group == number) for number in range(int(group.max()) + 1) if number != group[mine[0]]]
    return Forecast(
        attribution=program.attribution,
        question=question,
        words=", ".join(step.words for step in steps),
        path=path,
        gpu=int(windows.gpu[mine[0]]),
        starts=windows.start[mine],
        base=base[mine],
        forecast=new[mine],
        low_ns=min(max(low * (1 - error), stays), middle_ns),
        high_ns=high * (1 + error),
        level=level,
        as_profiled=unprofiled is None,
        unprofiled=unprofiled,
        residual=residual,
        published=published,
        widened=error,
        before=parts[0],
        after=parts[1],
        per_call_ns=gain * len(mine) / len(calls) if len(calls) else None,
        notes=tuple(dict.fromkeys(program.notes)),
        steps=case.chosen.level,
        warm_up=int((group < 0).sum()),
        others=tuple(
            (
                case.chosen.texts[int(windows.path[rows[0]])],
                int(windows.gpu[rows[0]]),
                float(np.median(base[rows])),
                float(np.median(new[rows])),
            )
            for rows in rows_of
        ),
        case=case,
    )


def _busy(spans: Spans, times: Times, rows: Index) -> Ints:
    """How long a GPU runs GPU ops of each of some steps: no step is shorter than that, whatever else is removed."""
    ends = np.append(spans.first, len(spans.ops))
    of = (spans.ops[ends[row] : ends[row + 1]] for row in rows.tolist())
    return np.array([union_length(*times.of(ops)) for ops in of], np.int64)


def _interval(values: Ints) -> tuple[float, float, float]:
    """The interval of the median of steps, by blocks where they depend on each other; of one step that step."""
    numbers = values.astype(np.float64)
    found = median_interval(numbers, dependence(numbers), level=LEVEL)
    return found.low, found.high, found.level


def _wider(low: float, high: float, base: Ints, new: Ints, residual: float) -> tuple[float, float]:
    """An interval of steps without something: as sure as the replay, and as single steps."""
    middle, (quarter, three) = float(np.median(new)), np.quantile(new, [0.25, 0.75]).tolist()
    slowed = min(AFTERMATH * max(float(np.median(base)) - middle, 0.0), MOST * middle)
    low = max(min(low, quarter) * (1 - residual) - slowed, min(low, (1 - MOST) * middle))
    return low, max(high, three) * (1 + residual)


def published_error(kinds: Sequence[str]) -> tuple[str, float]:
    """Describe the errors of published forecasts of these kinds, and return their 90th percentile (0 if unknown).

    With several kinds, the errors of the least accurate kind are returned.
    """
    known = [PUBLISHED[kind] for kind in kinds if kind in PUBLISHED]
    if len(known) < len(kinds) or not known:
        return "the accuracy of this kind of forecast has not been measured yet", 0.0
    median, worst, most, count = max(known, key=lambda each: each[2])
    text = f"forecasts of this kind were off by {median:.1%} (median), {worst:.1%} (worst of {count})"
    return text.replace("%", " %"), most
