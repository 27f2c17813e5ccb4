"""The hot spots of the steps: kernels by time, what limits each, and what the steps gain if it reached that limit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.charts.notebook import Shown
from nsysprof.core.columns import Column, ColumnTable, Texts
from nsysprof.core.intervals import Ints
from nsysprof.core.units import format_bytes, format_share
from nsysprof.diagnosis.busy import Busy, busy_kernels
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.diagnose import MAX_OPS, Diagnosis, case_of, diagnose, stretches
from nsysprof.diagnosis.finding import BOUND, REPLAYED
from nsysprof.diagnosis.geometry import FEW_WARPS, MIN_EMPTY, PIPELINED, held_warps, part_used
from nsysprof.diagnosis.kinds import MIN_SHARE
from nsysprof.hardware.peaks import GpuLimits, limits_of
from nsysprof.kernels.classify import Rules, kinds_of, short_name
from nsysprof.kernels.launches import Launches, launch_columns, main_launch, no_launches
from nsysprof.kernels.shapes import OpWork, op_work
from nsysprof.trace.about import Gpu
from nsysprof.waits.changes import Changes

TRIED = 10  # kernels that are replayed, the longest first
# What kernels reach of data-sheet peaks at best: large products in half precision 76 %, and copies and element-wise
# kernels 91 %, of an H200 (analysis and programs on one).
REACHABLE = {"compute": 0.76, "memory": 0.91}
NEAR = 0.4  # of a peak: from here on it is what limits a kernel
SHORTEST_NS = 3_000  # launching work on all multiprocessors and waiting for the last takes about as long
_WORTH = 0.95  # of its time: what is nearer to a limit is at it
_SURE = 0.5  # of the time of a kernel: with less of it from known shapes, these say nothing
COMPUTE, MEMORY, OCCUPANCY, LATENCY, UNKNOWN = "compute", "memory", "occupancy", "latency", "unknown"


@dataclass(frozen=True)
class Spot:
    """A kernel, or a family of kernels: the columns of `HOTSPOTS`. ``rows`` are those of its GPU ops, and
    ``glob`` selects it in a forecast.
    """

    name: str
    glob: str
    family: str
    rows: NDArray[np.intp]
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
    """The hot spots of the steps of a ``place``, the longest first: ``spots``, and as columns ``table``.

    ``gpu`` and its ``limits``; ``known``: whether operators have shapes; ``others``: paths and GPUs with less time.
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

    @property
    def attribution(self) -> Attribution:
        """What belongs to which range."""
        return self.case.facts.attribution

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What costs the steps time, and what to do about it."""
        return diagnose(self.case)

    @property
    def least_ns(self) -> float:
        """What a step has to gain for a kernel to be worth it."""
        return MIN_SHARE * self.place.total_ns / self.place.steps if self.place else 0.0

    @property
    def best(self) -> Spot | None:
        """The one whose limit gains most; without any that gains enough, the longest."""
        gaining = [each for each in self.spots if each.gain_ns >= self.least_ns]
        return max(gaining, key=lambda each: each.gain_ns) if gaining else next(iter(self.spots), None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what is doubtful or missing in the trace."""
        trace = self.attribution.trace
        return (*trace.report.about.warnings, *trace.warnings)


def hotspots(
    attribution: str | os.PathLike[str] | Attribution,
    select: str | None = None,
    *,
    by: str = "kernel",
    rules: Rules | None = None,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
) -> Hotspots:
    """The hot spots of the steps that the glob ``select`` matches, without one of those that `diagnose` chooses.

    ``attribution`` is what `attribute` gave, of a report that is still open, or a file to read; ``by`` is ``kernel`` or
    ``family``. Of several paths and GPUs it is about the one with most time. Near-linear in GPU ops.
    """
    attribution = attribute(attribution).launched
    kinds = kinds_of(attribution.trace, rules)
    return hottest(case_of(attribution, select, kinds, merge_names), by)


def hottest(case: Case, by: str = "kernel", tried: int = TRIED, most: int | None = None) -> Hotspots:
    """The first ``most`` `Hotspots` of a case, of which the first ``tried`` are replayed."""
    trace = case.facts.attribution.trace
    place = next(iter(case.places), None)
    gpu = _gpu(trace.report.about.cuda_gpus, place)
    clock, sms, width = (gpu.clock_hz, gpu.sm_count, gpu.bandwidth_bytes_per_s) if gpu else (None, None, None)
    limits = limits_of(gpu.name, gpu.compute_capability, sms, width, clock) if gpu else GpuLimits()
    nothing = np.empty(0, np.intp)
    busy = busy_kernels(case, place) if place else None
    op = busy.op if busy else nothing
    work = op_work(trace)
    known = case.launches
    spots: list[Spot] = []
    main = np.empty(0, np.int64)
    if busy is not None and place is not None and len(op):
        group, names = _groups(busy, by)
        main = np.full(len(names), -1)
        length = busy.length
        if known is not None:
            main = main_launch(group, known.of[op], length, len(names), len(known))
        order = np.argsort(-np.bincount(group, length, len(names)), kind="stable")[:most]
        main = main[order]
        for number, at in enumerate(order.tolist()):
            rows = np.flatnonzero(group == at)
            family = case.facts.kinds.family[int(busy.name[rows[0]])]
            launch = _Launch.of(known, int(main[number]), family)
            spots.append(_spot(busy, place, names[at], rows, work, limits, gpu, launch))
        _replay(case, place, spots, tried)
    return Hotspots(
        case, place, by, tuple(spots), gpu, limits, work.known, max(len(case.places) - 1, 0), _table(spots, known, main)
    )


def _gpu(gpus: Sequence[Gpu], place: Place | None) -> Gpu | None:
    """The GPU of a place, or the only kind of GPU there is."""
    mine = next((gpu for gpu in gpus if place is not None and gpu.id == place.gpu), None)
    return mine or (gpus[0] if gpus and len({gpu.name for gpu in gpus}) == 1 else None)


def _groups(busy: Busy, by: str) -> tuple[Ints, list[str]]:
    """The group of each kernel, and the full name, or the family, of each group."""
    trace, kinds = busy.case.facts.attribution.trace, busy.case.facts.kinds
    texts = [kinds.family[code] if by == "family" else trace.op_names[code] for code in range(len(trace.op_names))]
    place = {text: at for at, text in enumerate(sorted({texts[code] for code in np.unique(busy.name).tolist()}))}
    of_name = np.array([place.get(text, 0) for text in texts], np.int64)
    return of_name[busy.name], list(place)


# ---- what limits a kernel


@dataclass(frozen=True)
class _Launch:
    """How a kernel is launched with most of its time; ``full``: the part of the GPU that it can keep busy."""

    full: float = float("nan")
    why: str = ""

    @classmethod
    def of(cls, known: Launches | None, row: int, family: str) -> _Launch:
        """The launch in a row of those that are known, of a kernel of a family; -1 for none."""
        if known is None or row < 0 or not known.sms or known.blocks[row] <= 0:
            return cls()
        used = float(part_used(known)[row])
        if known.blocks[row] <= (1 - MIN_EMPTY) * known.sms:
            return cls(used, f"{int(known.blocks[row]):,} blocks on {known.sms:,} multiprocessors")
        low = family not in PIPELINED and held_warps(known)[row] <= FEW_WARPS
        return cls(used, f"{format_share(float(known.held.occupancy[row]))} occupancy") if low else cls(1.0)


def _spot(
    busy: Busy,
    place: Place,
    name: str,
    rows: NDArray[np.intp],
    work: OpWork,
    limits: GpuLimits,
    gpu: Gpu | None,
    launch: _Launch,
) -> Spot:
    kinds, trace = busy.case.facts.kinds, busy.case.facts.attribution.trace
    op, length = busy.op[rows], busy.length[rows]
    total, code = int(length.sum()), int(busy.name[rows[0]])
    windows = busy.case.windows.take(place.windows)
    step = np.searchsorted(np.sort(windows.start), trace.ops.start[op], side="right") - 1
    per_step = np.bincount(step, length, place.steps)
    sure = ~np.isnan(work.flops[op])
    ns = int(length[sure].sum())
    known = ns >= _SURE * total and ns > 0
    flops, moved = (float(each[op][sure].sum()) / ns * 1e9 if known else np.nan for each in (work.flops, work.moved))
    types, counts = np.unique(work.dtype[op], return_counts=True)
    dtype, unit = _unit(str(types[counts.argmax()]), kinds.math_unit[code], kinds.family[code])
    peak = limits.datasheet_flops(dtype, None) if dtype else None
    shares = {COMPUTE: flops / peak if peak else np.nan, MEMORY: moved / (limits.bytes_per_s or np.nan)}
    some = {kind: share for kind, share in shares.items() if not np.isnan(share)}
    if kinds.family[code] not in ("gemm", "attention") and "conv" not in kinds.cause[code]:
        some.pop(COMPUTE, None) if MEMORY in some else None  # one FLOP per element is no measure of its arithmetic
    limit, basis, share, scale, reason = _limit(some, launch, total / len(rows), known)
    suspect = _suspect(some, moved * total / len(rows) / 1e9, gpu)
    if suspect:
        limit, basis, share, scale, reason = UNKNOWN, "", np.nan, np.nan, suspect
    intensity = flops / moved if moved > 0 else np.nan
    return Spot(
        name, _glob(busy, name), kinds.family[code], op, len(rows) / place.steps, float(np.median(per_step)),
        total / max(place.total_ns, 1), limit, basis, share, unit, flops, moved,
        intensity, scale, reason,
    )  # fmt: skip


def _glob(busy: Busy, name: str) -> str:
    """What selects a kernel in a forecast: its short name, if no other kernel has it."""
    names = busy.case.facts.attribution.trace.op_names
    short = short_name(name)
    used = (names[code] for code in np.unique(busy.case.facts.attribution.trace.ops.name).tolist())
    alone = name in names and sum(short_name(each) == short for each in used) == 1
    return short if alone and not set(short) & set("*?[=") else name


def _unit(dtype: str, unit: str, family: str) -> tuple[str, str]:
    """The type of the peak for a kernel, and that peak in words; empty where it is not known."""
    products = family in ("gemm", "attention") or unit == "tensor core"
    if unit == "FP32 FMA" or (dtype and not products):
        return "fp32" if dtype != "fp64" else dtype, "FP32 on CUDA cores" if dtype != "fp64" else "FP64"
    if not dtype:
        return "", ""
    if dtype == "fp64":
        return dtype, "FP64"
    fast = "tf32" if dtype == "fp32" else dtype
    return fast, f"{fast.upper()} on tensor cores"


def _limit(
    shares: dict[str, float], launch: _Launch, mean_ns: float, known: bool
) -> tuple[str, str, float, float, str]:
    """Limit, basis, share of it, the part of its time that a kernel needs at a reachable limit, and a reason."""
    most = max(shares, key=lambda kind: shares[kind]) if shares else ""
    part = max((share / REACHABLE[kind] for kind, share in shares.items()), default=np.nan)
    floor = min(SHORTEST_NS / max(mean_ns, 1), 1.0)
    if most and shares[most] >= NEAR:
        return most, "shapes", shares[most], max(min(part, 1.0), floor), ""
    if launch.full < 1:
        return OCCUPANCY, "geometry", launch.full, max(launch.full, floor), launch.why
    if most:
        return LATENCY, "shapes", shares[most], max(part, floor), f"{format_share(shares[most])} of the {most} peak"
    if mean_ns <= SHORTEST_NS:
        return LATENCY, "duration", np.nan, 1.0, ""
    if known:
        return UNKNOWN, "", np.nan, np.nan, "peaks of this GPU not known"
    return UNKNOWN, "", np.nan, np.nan, "shapes of its operator not recorded"


def _suspect(shares: dict[str, float], moved: float, gpu: Gpu | None) -> str:
    """What may be wrong where a kernel would be faster than the hardware; empty where none is."""
    for kind, share in shares.items():
        if share > 1:
            cache = gpu.l2_bytes if gpu else None
            fits = kind == MEMORY and cache and moved <= cache
            why = f"its {format_bytes(moved)} may stay in the L2 cache" if fits else "suspect: its shapes"
            return f"{format_share(share)} of the {kind} peak is impossible; {why}"
    return ""


# ---- what the steps gain


def _replay(case: Case, place: Place, spots: list[Spot], tried: int) -> None:
    """Replay the first of the spots with the time that a reachable limit leaves; of large recordings some steps."""
    part, mine, times = case, place, 1.0
    if len(case.facts.attribution.trace.ops) > MAX_OPS:
        found = ((some, each) for some in stretches(case) for each in some.places)
        part, mine = next((some, each) for some, each in found if (each.path, each.gpu) == (place.path, place.gpu))
        times = place.total_ns / max(mine.total_ns, 1)
    for at, each in enumerate(spots[:tried]):
        if np.isnan(each.scale):
            continue
        scale = round(each.scale, 2) if each.scale < _WORTH else 1.0
        gains = None if scale >= 1 else part.changed(mine, Changes(scale=[f"{each.glob}={scale:g}"]))
        if scale >= 1:
            gain, basis = 0.0, REPLAYED
        elif gains is None:
            gain, basis = (1 - scale) * each.step_ns, BOUND
        else:
            gain, basis = max(float(gains.sum()), 0.0) * times / place.steps, REPLAYED
        spots[at] = replace(each, scale=scale, gain_ns=gain, gain_basis=basis)


def _table(spots: Sequence[Spot], known: Launches | None, main: Ints) -> ColumnTable:
    """The columns of `HOTSPOTS`."""

    def texts(name: str) -> Texts:
        return Texts(np.arange(len(spots)), [getattr(each, name) for each in spots])

    def numbers(name: str) -> NDArray[np.float64]:
        return np.array([getattr(each, name) for each in spots], np.float64)

    columns: dict[str, Column] = {
        "kernel": texts("name"),
        "calls": np.array([len(each.rows) for each in spots], np.int64),
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
