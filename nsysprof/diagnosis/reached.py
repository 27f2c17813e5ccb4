"""Find the shares of the GPU's peaks that kernels reach, from hardware counters, operator shapes, or GPU metrics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nsysprof.core.arrays import Floats, Index, Ints
from nsysprof.core.columns import distinct
from nsysprof.core.intervals import merge
from nsysprof.core.units import format_bytes, format_share
from nsysprof.diagnosis.busy import Busy
from nsysprof.diagnosis.case import Case, Place
from nsysprof.formats.counters import CounterFile
from nsysprof.hardware.peaks import GpuLimits, limits_of
from nsysprof.kernels.names import plain_name
from nsysprof.kernels.shapes import OpWork, op_work
from nsysprof.summaries.gpu_metrics import Mean, means_of
from nsysprof.trace.about import Gpu

COMPUTE, MEMORY = "compute", "memory"
# What kernels reach of data-sheet peaks at best: large products in half precision 76 %, and copies and element-wise
# kernels 91 %, of an H200 (analysis and programs on one).
REACHABLE = {COMPUTE: 0.76, MEMORY: 0.91}
NEAR = 0.4  # of a peak: from here on it is what limits a kernel
COUNTERS, SHAPES, METRICS = "counters", "shapes", "GPU metrics"
_SURE = 0.5  # of the time of kernels: with less of it known, this says nothing
_TENSOR_CORES, _ISSUE = "tensor cores", "instruction issue"


@dataclass(frozen=True)
class Reached:
    """The shares of a GPU's peaks that kernels reach, by `COMPUTE` and `MEMORY`, and their basis.

    ``unit`` is the computing unit. FLOPs and bytes per second are NaN if unknown. If a share is impossible, ``suspect``
    names the value that may be wrong.
    """

    basis: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)
    unit: str = ""
    flops_per_s: float = np.nan
    bytes_per_s: float = np.nan
    suspect: str = ""


@dataclass(frozen=True)
class Roofs:
    """The peaks of a ``gpu`` (None: unknown) from its ``limits``: ``measured`` peaks, or peaks from the data sheet."""

    gpu: Gpu | None = None
    limits: GpuLimits = field(default_factory=GpuLimits)
    measured: bool = False

    @property
    def bytes_per_s(self) -> float:
        """The memory bandwidth; NaN for unknown."""
        return (self.measured and self.limits.measured_bytes_per_s) or self.limits.bytes_per_s or np.nan

    def flops(self, dtype: str) -> float:
        """The FLOP/s of a type; NaN for unknown."""
        peak = self.limits.measured_peak(dtype) if self.measured else None
        return (peak or self.limits.datasheet_flops(dtype, None) or np.nan) if dtype else np.nan

    def reachable(self, kind: str) -> float:
        """Return the share of the peak for `COMPUTE` or `MEMORY` that kernels can reach; 1 for a measured peak."""
        limits = self.limits
        known = limits.measured_flops if kind == COMPUTE else limits.measured_bytes_per_s
        return 1.0 if self.measured and known else REACHABLE[kind]


def roofs_of(case: Case, place: Place | None, measured: GpuLimits | None = None) -> Roofs:
    """Find the `Roofs` of a place's GPU, or of the only GPU model in the report; ``measured`` peaks come first."""
    gpus = case.facts.attribution.trace.report.about.cuda_gpus
    gpu = next((each for each in gpus if place is not None and each.id == place.gpu), None)
    gpu = gpu or (gpus[0] if gpus and len({each.name for each in gpus}) == 1 else None)
    if gpu is None:
        return Roofs()
    limits = limits_of(gpu.name, gpu.compute_capability, gpu.sm_count, gpu.bandwidth_bytes_per_s, gpu.clock_hz)
    if measured is None:
        return Roofs(gpu, limits)
    copied, products = measured.measured_bytes_per_s, measured.measured_flops
    return Roofs(gpu, replace(limits, measured_bytes_per_s=copied, measured_flops=products), measured=True)


class Sources:
    """The known facts about the kernels ``busy``; ``groups``: the positions of the kernels of each examined group."""

    def __init__(self, busy: Busy, roofs: Roofs, groups: Sequence[Index], counters: CounterFile | None = None) -> None:
        self.busy, self.roofs, self.groups = busy, roofs, groups
        self.work: OpWork = op_work(busy.case.facts.attribution.trace)
        self._counted = _counted(busy, counters) if counters else None
        self._means = _sampled(busy, groups)

    def of(self, at: int) -> Iterator[Reached]:
        """Yield the known shares of a group, the most reliable first."""
        rows = self.groups[at]
        if self._counted is not None:
            yield self._by_counters(rows)
        yield self._by_shapes(rows)
        yield _by_metrics(self._means[at], self.roofs)

    def _dtype(self, rows: Index) -> str:
        types, counts = np.unique(self.work.dtype[self.busy.op[rows]], return_counts=True)
        return str(types[counts.argmax()])

    def _by_shapes(self, rows: Index) -> Reached:
        busy, kinds, op = self.busy, self.busy.case.facts.kinds, self.busy.op[rows]
        code = int(busy.name[rows[0]])
        flops, moved = (_rate(each[op], busy.length[rows]) for each in (self.work.flops, self.work.moved))
        dtype, unit = _unit(self._dtype(rows), kinds.math_unit[code], kinds.family[code])
        shares = {COMPUTE: flops / self.roofs.flops(dtype), MEMORY: moved / self.roofs.bytes_per_s}
        if kinds.family[code] == "attention" and np.isnan(flops) and not np.isnan(moved):
            return Reached(SHAPES, {}, unit, flops, moved, "the recording does not show whether attention is causal")
        if kinds.family[code] not in ("gemm", "attention") and "conv" not in kinds.cause[code]:
            shares.pop(COMPUTE) if not np.isnan(
                shares[MEMORY]
            ) else None  # a FLOP per element is no measure of its work
        size = moved * float(busy.length[rows].mean()) / 1e9
        return _checked(Reached(SHAPES, shares, unit, flops, moved), size, self.roofs)

    def _by_counters(self, rows: Index) -> Reached:
        rates = {name: _rate(values[rows], self.busy.length[rows]) for name, values in (self._counted or {}).items()}
        moved = rates["dram_read_bytes"] + rates["dram_write_bytes"]
        shape, kinds = self._dtype(rows), self.busy.case.facts.kinds
        family = kinds.family[int(self.busy.name[rows[0]])]
        fast, words = _unit(shape, "tensor core", family)
        units = [(rates["tensor_flops"], fast or "fp16", words or "FP16 on tensor cores")]
        units += [(rates["fp32_flops"], "fp32", "FP32 on CUDA cores"), (rates["fp64_flops"], "fp64", "FP64")]
        each = [(flops / self.roofs.flops(dtype), unit) for flops, dtype, unit in units]
        share, unit = max(((share, unit) for share, unit in each if share > 0), default=(np.nan, ""))
        flops = sum(flops for flops, *_ in units if not np.isnan(flops)) if unit else np.nan
        shares = {COMPUTE: share, MEMORY: moved / self.roofs.bytes_per_s}
        if np.isnan(share) and family in ("gemm", "attention") and shares[MEMORY] < NEAR:
            return Reached(COUNTERS, {}, unit, flops, moved, "its counters have no FLOPs")  # bytes alone say no limit
        return _checked(Reached(COUNTERS, shares, unit, flops, moved), moved, self.roofs)


def _rate(values: Floats, length: Ints) -> float:
    """What is done in a second by kernels of which some are known; NaN where too few of them are."""
    sure = ~np.isnan(values)
    ns = int(length[sure].sum())
    return float(values[sure].sum()) / ns * 1e9 if ns >= _SURE * length.sum() and ns > 0 else np.nan


def _checked(found: Reached, moved: float, roofs: Roofs) -> Reached:
    """Without shares that are not known, and refused where the hardware cannot do so much."""
    shares = {kind: share for kind, share in found.shares.items() if not np.isnan(share)}
    for kind, share in shares.items():
        if share > 1:
            cache = roofs.gpu.l2_bytes if roofs.gpu else None
            fits = kind == MEMORY and found.basis == SHAPES and cache and moved <= cache
            why = "its shapes" if found.basis == SHAPES else "counters of other work with the same name"
            why = "sampled values" if found.basis == METRICS else "the measured peak" if roofs.measured else why
            why = f"its {format_bytes(moved)} may stay in the L2 cache" if fits else f"suspect: {why}"
            return replace(found, shares={}, suspect=f"{format_share(share)} of the {kind} peak is impossible; {why}")
    return replace(found, shares=shares)


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


def _counted(busy: Busy, counters: CounterFile) -> dict[str, Floats]:
    """The counters of each kernel: means of the launches of its name, and grid if both are recorded; NaN for none."""
    names, trace = (
        {text: at for at, text in enumerate(map(plain_name, counters.kernels))},
        busy.case.facts.attribution.trace,
    )
    theirs = np.array([names[plain_name(each)] for each in counters.kernels])[counters.kernel]
    used = np.unique(busy.name)
    code = np.full(len(trace.op_names), -1)
    code[used] = [names.get(plain_name(trace.op_names[each]), -1) for each in used.tolist()]
    ours, found = code[busy.name], busy.case.launches
    grid = found.grid[found.of[busy.op]] if found is not None and counters.grid.all() else np.zeros(len(ours), np.int64)
    there = counters.grid if grid.all() else np.zeros(len(theirs), np.int64)
    grid = grid if grid.all() else np.zeros(len(ours), np.int64)
    first, group = distinct(np.append(theirs, ours), np.append(there, grid))
    of, count = group[: len(theirs)], len(first)
    out = {}
    for name, values in counters.values.items():
        sure = ~np.isnan(values)
        total, several = np.bincount(of[sure], values[sure], count), np.bincount(of[sure], minlength=count)
        out[name] = np.where(several > 0, total / np.maximum(several, 1), np.nan)[group[len(theirs) :]]
    return out


def _sampled(busy: Busy, groups: Sequence[Index]) -> list[Mapping[str, Mean]]:
    """The means of GPU metrics while each group runs; nothing where its GPU was not sampled."""
    trace = busy.case.facts.attribution.trace
    samples = trace.samples.get(busy.place.gpu)
    if samples is None or not samples.values or not groups:
        return [{} for _ in groups]
    every = [busy.op[rows] for rows in groups]
    others = np.setdiff1d(np.flatnonzero(trace.op_gpu == busy.place.gpu), np.concatenate(every))
    some = [*every, *([others] if len(others) else [])]
    return means_of(samples, [merge(*_times(busy, rows)) for rows in some])[: len(groups)]


def _times(busy: Busy, rows: Index) -> tuple[Ints, Ints]:
    ops = busy.case.facts.attribution.trace.ops
    order = np.argsort(ops.start[rows], kind="stable")
    start = ops.start[rows][order]
    return start, np.maximum(ops.end[rows][order], start)


def _by_metrics(means: Mapping[str, Mean], roofs: Roofs) -> Reached:
    known = {name: mean.mean / 100 for name, mean in means.items() if mean.basis != "unknown"}
    shares = {COMPUTE: max(known.get("tensor_active", np.nan), known.get("sm_issue", np.nan))}
    shares[MEMORY] = known.get("dram_read", np.nan) + known.get("dram_write", np.nan)
    unit = _TENSOR_CORES if known.get("tensor_active", 0) >= known.get("sm_issue", 0) else _ISSUE
    moved = shares[MEMORY] * (roofs.limits.bytes_per_s or np.nan)
    return _checked(
        Reached(METRICS, shares, unit if not np.isnan(shares[COMPUTE]) else "", bytes_per_s=moved), moved, roofs
    )


def shares_of(busy: Busy, rows: Index) -> Mapping[str, float]:
    """Return the shares of the peaks that some kernels reach, from the most reliable source; empty if unknown."""
    found = Sources(busy, roofs_of(busy.case, busy.place), [rows]).of(0) if len(rows) else ()
    return next((each.shares for each in found if each.shares), {})


def least_part(shares: Mapping[str, float]) -> float:
    """Return the minimum share of kernel time that memory traffic takes; 0 if unknown."""
    return min(shares.get(MEMORY, 0.0) / REACHABLE[MEMORY], 1.0)
