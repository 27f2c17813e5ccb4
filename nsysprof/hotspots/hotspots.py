"""The hot spots of the steps: kernels by time, the limit of each kernel, and the gain if a kernel reached its limit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.charts.notebook import Shown
from nsysprof.core.arrays import Floats, Index, Ints
from nsysprof.core.columns import Column, ColumnTable, Texts
from nsysprof.core.text import join_words, plural
from nsysprof.core.units import format_share
from nsysprof.diagnosis.busy import Busy, busy_kernels
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.diagnose import MAX_OPS, Diagnosis, case_of, diagnose, stretches
from nsysprof.diagnosis.finding import BOUND, REPLAYED
from nsysprof.diagnosis.geometry import FEW_WARPS, MIN_EMPTY, PIPELINED, few_blocks, held_warps, part_used, same_time
from nsysprof.diagnosis.kinds import MIN_SHARE
from nsysprof.diagnosis.reached import NEAR, SHAPES, Reached, Roofs, Sources, roofs_of
from nsysprof.errors import NsysprofError
from nsysprof.formats.counters import CounterFile, counters_beside, read_counters
from nsysprof.formats.samples import read_bench_samples
from nsysprof.hardware.peaks import GpuLimits
from nsysprof.kernels.classify import Rules, kinds_of, short_name
from nsysprof.kernels.launches import Launches, launch_columns, main_launch, no_launches
from nsysprof.trace.about import Gpu
from nsysprof.trace.trace import Trace
from nsysprof.waits.changes import Changes

TRIED = 10  # kernels that are replayed, the longest first
SHORTEST_NS = 3_000  # launching work on all multiprocessors and waiting for the last takes about as long
_WORTH = 0.95  # of its time: what is nearer to a limit is at it
OCCUPANCY, LATENCY, UNKNOWN = "occupancy", "latency", "unknown"
NO_SHAPES, NO_COUNTERS = "shapes of its operator not recorded", "no hardware counters for this kernel"


@dataclass(frozen=True)
class Spot:
    """A kernel or a family of kernels, with the columns of `HOTSPOTS`. ``rows`` are the rows of its GPU ops; ``glob``
    selects it in a forecast; ``some``: `3 of 20 steps` if it runs in some of the steps only, otherwise empty.
    """

    name: str
    glob: str
    family: str
    rows: Index
    steps: int
    some: str
    calls_per_step: float
    step_ns: float
    share: float
    limit: str
    basis: str
    limit_share: float
    unit: str
    flops_per_s: float
    bytes_per_s: float
    intensity: float
    scale: float
    reason: str
    gain_ns: float = float("nan")
    gain_basis: str = ""


@dataclass(frozen=True, repr=False)
class Hotspots(Shown):
    """The hot spots in the steps of a ``place``, longest first: as ``spots``, and as columns in ``table``.

    ``gpu`` is the GPU, with its ``limits``; ``known``: whether the operators' shapes are recorded; ``others``: paths
    and GPUs with less time; ``doubts`` are about counters.
    """

    case: Case
    place: Place | None
    by: str
    spots: tuple[Spot, ...]
    gpu: Gpu | None
    limits: GpuLimits
    known: bool
    others: int
    table: ColumnTable = field(compare=False)
    doubts: tuple[str, ...] = ()

    @property
    def attribution(self) -> Attribution:
        """The attribution of GPU ops to ranges."""
        return self.case.facts.attribution

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the steps: bottlenecks and their fixes."""
        return diagnose(self.case)

    @property
    def least_ns(self) -> float:
        """Return the smallest gain per step (ns) that is large enough to recommend a kernel."""
        return MIN_SHARE * self.place.total_ns / self.place.steps if self.place else 0.0

    @property
    def best(self) -> Spot | None:
        """Return the kernel with the largest gain, or the longest kernel if no gain is large enough."""
        gaining = [each for each in self.spots if each.gain_ns >= self.least_ns]
        return max(gaining, key=lambda each: each.gain_ns) if gaining else next(iter(self.spots), None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about doubtful or missing data in the trace."""
        trace = self.attribution.trace
        return (*self.doubts, *trace.report.about.warnings, *trace.warnings)


def hotspots(
    attribution: str | os.PathLike[str] | Attribution,
    select: str | None = None,
    *,
    by: str = "kernel",
    rules: Rules | None = None,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
    counters: str | os.PathLike[str] | None = None,
    peaks: str | os.PathLike[str] | None = None,
    replay: bool = True,
) -> Hotspots:
    """Find the hot spots of the steps that the glob ``select`` matches (None: the steps that `diagnose` chooses).

    ``attribution`` is a result of `attribute` with its report still open, or a file; ``by`` is ``kernel`` or
    ``family``. ``counters`` is a file of the same program (None: the file beside the report), preferred to shapes and
    GPU metrics; ``peaks`` is a result of ``bench --measure-peaks``, preferred to the data sheet. If there are several
    paths or GPUs, only the path and GPU with the most time are used. Without ``replay``, no faster kernel is tried, and
    gains are upper limits. Takes near-linear time in GPU ops. Raises `NsysprofError` for files of another GPU or
    program.
    """
    attribution = attribute(attribution).launched
    kinds = kinds_of(attribution.trace, rules)
    counted, doubts = _counters(attribution.trace, counters)
    measured = _measured(attribution.trace, Path(peaks)) if peaks else None
    case = case_of(attribution, select, kinds, merge_names, replay=replay)
    return replace(hottest(case, by, counters=counted, peaks=measured), doubts=doubts)


def _counters(trace: Trace, file: str | os.PathLike[str] | None) -> tuple[CounterFile | None, tuple[str, ...]]:
    """Counters and doubts about them: a file that was named must be right, one beside the report is left out else."""
    path = Path(file) if file else counters_beside(trace.report.path)
    if path is None:
        return None, ()
    try:
        found = read_counters(path)
        _check_gpu(trace, path, found.gpus)
    except NsysprofError as error:
        if file:
            raise
        return None, (f"ignoring the counters beside the report: {error.message}",)
    return found, tuple(found.doubts)


def _measured(trace: Trace, path: Path) -> GpuLimits:
    limits = read_bench_samples(path).limits
    if not limits.measured_flops and not limits.measured_bytes_per_s:
        raise NsysprofError(
            f"{path} has no measured peaks", ("run nsysprof bench --measure-peaks on the GPU of the report")
        )
    _check_gpu(trace, path, (limits.name,) if limits.name else ())
    return limits


def _check_gpu(trace: Trace, path: Path, gpus: Sequence[str]) -> None:
    """Raise `NsysprofError` for a file about other GPUs than the report's."""
    names = dict.fromkeys(gpu.name for gpu in trace.report.about.cuda_gpus)
    if gpus and names and not {*names} & {*gpus}:
        ours = join_words([*names])
        raise NsysprofError(f"{path} was measured on {join_words(gpus)}, not on {ours}", f"measure on {ours}")


def hottest(
    case: Case,
    by: str = "kernel",
    tried: int = TRIED,
    most: int | None = None,
    counters: CounterFile | None = None,
    peaks: GpuLimits | None = None,
) -> Hotspots:
    """Return the `Hotspots` of a case with the first ``most`` kernels, and replay the first ``tried`` kernels."""
    place = next(iter(case.places), None)
    roofs = roofs_of(case, place, peaks)
    busy = busy_kernels(case, place) if place else None
    known = case.launches
    spots: list[Spot] = []
    main, shapes = np.empty(0, np.int64), False
    if busy is not None and place is not None and len(busy.op):
        op, length = busy.op, busy.length
        group, names = _groups(busy, by)
        main = np.full(len(names), -1)
        if known is not None:
            main = main_launch(group, known.of[op], length, len(names), len(known))
        order = np.argsort(-np.bincount(group, length, len(names)), kind="stable")[:most]
        main = main[order]
        by_group = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=len(names)))[:-1])
        groups = [by_group[at] for at in order.tolist()]
        globs = _globs(case.facts.attribution.trace, [names[at] for at in order.tolist()])
        begins = np.sort(case.windows.start[busy.place.windows])
        sources = Sources(busy, roofs, groups, counters)
        same = same_time(busy, known, few_blocks(known)[known.of[op]]) if known is not None else np.zeros(len(op), bool)
        shapes = sources.work.known
        for number, at in enumerate(order.tolist()):
            family = case.facts.kinds.family[int(busy.name[groups[number][0]])]
            launch = _Launch.of(known, int(main[number]), family)
            if launch.full < 1 and known is not None:
                mine = groups[number]
                few = few_blocks(known)[known.of[op[mine]]]
                alike, some, mainly = (
                    2 * int(length[mine][each].sum()) >= int(length[mine].sum())
                    for each in (same[mine], few, known.of[op[mine]] == main[number])
                )
                if alike:
                    launch = _Launch(why="takes as long with many blocks as with few")
                elif some and not mainly:
                    full = float(np.average(part_used(known)[known.of[op[mine]]], weights=length[mine]))
                    launch = _Launch(full, f"too few blocks for {known.sms:,} multiprocessors during most of its time")
                elif not mainly:
                    launch = _Launch(why="its launches have different grids")
            every = [*sources.of(number)]
            spots.append(_spot(busy, (names[at], globs[number]), groups[number], begins, every, roofs, launch))
        _replay(case, place, spots, tried)
    others = max(len(case.places) - 1, 0)
    table = _table(spots, known, main)
    return Hotspots(case, place, by, tuple(spots), roofs.gpu, roofs.limits, shapes, others, table)


def _groups(busy: Busy, by: str) -> tuple[Ints, list[str]]:
    """The group of each kernel, and the full name, or the family, of each group."""
    trace, kinds = busy.case.facts.attribution.trace, busy.case.facts.kinds
    texts = [kinds.family[code] if by == "family" else trace.op_names[code] for code in range(len(trace.op_names))]
    place = {text: at for at, text in enumerate(sorted({texts[code] for code in np.unique(busy.name).tolist()}))}
    of_name = np.array([place.get(text, 0) for text in texts], np.int64)
    return of_name[busy.name], list(place)


@dataclass(frozen=True)
class _Launch:
    """How a kernel is launched with most of its time; ``full``: the part of the GPU that it can keep busy."""

    full: float = float("nan")
    why: str = ""

    @classmethod
    def of(cls, known: Launches | None, row: int, family: str) -> _Launch:
        """Find the share of the GPU that a kernel of a family uses; ``row`` is its row in the known launches, or -1."""
        if known is None or row < 0 or not known.sms or known.blocks[row] <= 0:
            return cls()
        used = float(part_used(known)[row])
        if known.blocks[row] <= (1 - MIN_EMPTY) * known.sms:
            return cls(used, f"{plural(int(known.blocks[row]), 'block')} on {known.sms:,} multiprocessors")
        low = family not in PIPELINED and held_warps(known)[row] <= FEW_WARPS
        return cls(used, f"{format_share(float(known.held.occupancy[row]))} occupancy") if low else cls(1.0)


def _spot(
    busy: Busy,
    name: tuple[str, str],
    rows: Index,
    begins: Ints,
    every: Sequence[Reached],
    roofs: Roofs,
    launch: _Launch,
) -> Spot:
    kinds, trace, place = busy.case.facts.kinds, busy.case.facts.attribution.trace, busy.place
    op, length = busy.op[rows], busy.length[rows]
    total = int(length.sum())
    step = np.searchsorted(begins, trace.ops.start[op], side="right") - 1
    elapsed = busy.elapsed
    steps = place.steps if elapsed < place.total_ns else len(np.unique(step))  # steps that overlap share kernels
    some = f"{steps:,} of {place.steps:,} steps" * (steps < place.steps)
    found = next((each for each in every if each.shares), Reached())
    suspect = next((each.suspect for each in every if each.suspect), "")
    rates = next((each for each in every if not np.isnan(each.flops_per_s)), found)
    limit, basis, share, scale, reason = _limit(found, roofs, launch, total / len(rows))
    if limit == UNKNOWN:
        shaped = any(each.basis == SHAPES and not np.isnan(each.flops_per_s) for each in every)
        missing = NO_SHAPES if busy.case.dialect == "pytorch" else NO_COUNTERS
        reason = suspect or launch.why or ("peaks of this GPU not known" if shaped else missing)
    return Spot(
        *name, kinds.family[int(busy.name[rows[0]])], op, steps, some, len(rows) / place.steps,
        total / place.steps, total / max(elapsed, 1), limit, basis, share,
        found.unit or rates.unit, rates.flops_per_s, rates.bytes_per_s,
        rates.flops_per_s / rates.bytes_per_s if rates.bytes_per_s > 0 else np.nan, scale, reason,
    )  # fmt: skip


def _globs(trace: Trace, names: Sequence[str]) -> list[str]:
    """What selects each kernel in a forecast: its short name, if no other kernel has it."""
    known, short = set(trace.op_names), [short_name(name) for name in names]
    used = Counter(short_name(trace.op_names[code]) for code in np.unique(trace.ops.name).tolist())
    return [
        brief if name in known and used[brief] == 1 and not set(brief) & set("*?[=") else name
        for name, brief in zip(names, short, strict=True)
    ]


def _limit(found: Reached, roofs: Roofs, launch: _Launch, mean_ns: float) -> tuple[str, str, float, float, str]:
    """Limit, basis, share of it, the part of its time that a kernel needs at a reachable limit, and a reason."""
    shares = found.shares
    most = max(shares, key=lambda kind: shares[kind]) if shares else ""
    part = max((share / roofs.reachable(kind) for kind, share in shares.items()), default=np.nan)
    floor = min(SHORTEST_NS / max(mean_ns, 1), 1.0)
    if most and shares[most] >= NEAR:
        return most, found.basis, shares[most], max(min(part, 1.0), floor), ""
    if launch.full < 1:
        return OCCUPANCY, "geometry", launch.full, max(launch.full, np.nan_to_num(part), floor), launch.why
    if most:
        return LATENCY, found.basis, shares[most], max(part, floor), f"{format_share(shares[most])} of the {most} peak"
    if mean_ns <= SHORTEST_NS:
        return LATENCY, "duration", np.nan, 1.0, ""
    return UNKNOWN, "", np.nan, np.nan, ""


def _replay(case: Case, place: Place, spots: list[Spot], tried: int) -> None:
    """Replay the first of the spots with the time that a reachable limit leaves; of large recordings some steps."""
    part, mine, times = case, place, 1.0
    if len(case.facts.attribution.trace.ops) > MAX_OPS:
        found = ((some, each) for some in stretches(case) for each in some.places)
        part, mine = next((some, each) for some, each in found if (each.path, each.gpu) == (place.path, place.gpu))
        times = place.total_ns / max(mine.total_ns, 1)
    streams = np.unique(case.facts.attribution.trace.ops.stream[np.concatenate([each.rows for each in spots])])
    refused = part.doubt or (case.facts.lacks and len(streams) > 1)  # a part may have fewer streams
    for at, each in enumerate(spots[:tried]):
        if np.isnan(each.scale):
            continue
        scale = float(f"{each.scale:.2g}") if each.scale < _WORTH else 1.0
        gains = None if scale >= 1 or refused else part.changed(mine, Changes(scale=[f"{each.glob}={scale:g}"]))
        if scale >= 1:
            gain, basis = 0.0, BOUND if refused else REPLAYED
        elif gains is None:
            gain, basis = (1 - scale) * each.step_ns, BOUND
        else:
            gain, basis = max(float(gains.sum()), 0.0) * times / place.steps, REPLAYED
        spots[at] = replace(each, scale=scale, gain_ns=gain, gain_basis=basis)


def _table(spots: Sequence[Spot], known: Launches | None, main: Ints) -> ColumnTable:
    def texts(name: str) -> Texts:
        return Texts(np.arange(len(spots)), [getattr(each, name) for each in spots])

    def numbers(name: str) -> Floats:
        return np.array([getattr(each, name) for each in spots], np.float64)

    columns: dict[str, Column] = {
        "kernel": texts("name"),
        "calls": np.array([len(each.rows) for each in spots], np.int64),
        "steps": np.array([each.steps for each in spots], np.int64),
    }
    columns |= {name: texts(name) for name in ("family", "limit", "basis", "unit", "gain_basis", "reason")}
    columns |= {
        name: numbers(name)
        for name in (
            "calls_per_step",
            "step_ns",
            "share",
            "limit_share",
            "flops_per_s",
            "bytes_per_s",
            "gain_ns",
            "scale",
        )
    }
    return ColumnTable({**columns, **launch_columns(known or no_launches(0), main)})
