"""Where each kernel of a comparison stands below what its GPU can do: FLOPs per byte, and FLOPs per second.

A kernel that does few FLOPs for each byte of memory traffic cannot be faster than the memory, however fast the GPU
multiplies (Williams, Waterman and Patterson 2009). Bytes and FLOPs are those that hardware counters counted; the time
is that of the report; ceilings are made from what the report says of the GPU, at its highest clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.compare.comparison import Comparison
from nsysprof.compare.measured import SUSPECTS, Measured, flops_of, tensor_share
from nsysprof.compare.side_pairs import Pair
from nsysprof.compare.sides import Side
from nsysprof.errors import NsysprofError
from nsysprof.hardware.peaks import peak_flops, share_of_peak
from nsysprof.trace.report import Gpu

__all__ = ["FlopCeiling", "Roofline", "roofline"]

_TENSOR = {"fp16": "fp16", "bf16": "bf16", "fp32": "tf32"}


@dataclass(frozen=True)
class FlopCeiling:
    """FLOP/s that no kernel can exceed on one kind of unit: ``name`` such as `tensor cores, fp16`."""

    name: str
    flops_per_s: float
    tensor: bool


@dataclass(frozen=True)
class Roofline:
    """The kernels of one pair with their ceilings.

    ``points``, a row per side, cause, kernel and grid: ``side`` base or new, ``cause, kernel, grid``, ``count``
    (launches per call), ``ns`` (per launch), ``sum_ns`` (per call), ``dram_bytes, flops, tensor_share`` of a launch,
    ``intensity`` (FLOPs per byte; NaN without bytes), ``flops_per_s``, ``bytes_per_s``. ``bytes_per_s`` of the GPU and
    ``ceilings`` are None and empty where the report does not say enough. ``refused``: a sentence for each cause with
    kernels that would be above a ceiling; these are no points. ``lost`` is the part of the kernels' time that has none.
    """

    pair: Pair
    points: pd.DataFrame
    bytes_per_s: float | None
    ceilings: tuple[FlopCeiling, ...]
    gpu: Gpu | None
    refused: dict[str, str]
    lost: float

    def ridge(self, ceiling: FlopCeiling) -> float | None:
        """FLOPs per byte from which on memory is not what holds a kernel back."""
        return ceiling.flops_per_s / self.bytes_per_s if self.bytes_per_s else None


def roofline(comparison: Comparison, pair: str | None = None) -> Roofline | None:
    """The `Roofline` of a pair, of the one with the largest difference where it is not named; None without counters."""
    name = pair or comparison.largest
    base, new = comparison.measured.get(name, (None, None))
    if base is None and new is None:
        return None
    sides = next(each for each in comparison.sides if each.name == name)
    frames = [
        _side_points(which, side, found)
        for which, side, found in (("base", sides.base, base), ("new", sides.new, new))
        if found is not None
    ]
    points = pd.concat(frames, ignore_index=True)
    gpu = sides.base.only_gpu or sides.new.only_gpu
    dtypes = [model.dtype for model in comparison.models[name] if model]
    ceilings = _ceilings(gpu, dtypes[0] if dtypes else "fp16")
    bandwidth = gpu.bandwidth_bytes_per_s if gpu else None
    time = float(points["sum_ns"].sum())
    kept, refused = _possible(points[points["dram_bytes"].notna()], bandwidth, ceilings)
    return Roofline(
        pair=sides,
        points=kept,
        bytes_per_s=bandwidth,
        ceilings=ceilings,
        gpu=gpu,
        refused=refused,
        lost=1 - float(kept["sum_ns"].sum()) / time if time else 0.0,
    )


def _side_points(which: str, side: Side, found: Measured) -> pd.DataFrame:
    rows = found.kernels
    amounts: list[Mapping[str, Any]] = [
        {str(name): value for name, value in row.items()} for row in rows.to_dict("records")
    ]
    ns = rows["sum_ns"] / rows["count"]
    size = rows["dram_read_bytes"] + rows["dram_write_bytes"]
    flops = pd.Series([flops_of(row) for row in amounts], index=rows.index, dtype=float)
    return pd.DataFrame(
        {
            "side": which,
            "cause": rows["cause"],
            "kernel": rows["kernel"],
            "grid": rows["grid"],
            "count": rows["count"] / side.ledger.calls,
            "ns": ns,
            "sum_ns": rows["sum_ns"] / side.ledger.calls,
            "dram_bytes": size,
            "flops": flops,
            "tensor_share": [tensor_share(row) for row in amounts],
            "intensity": flops / size.where(size > 0),
            "flops_per_s": flops / ns.where(ns > 0) * 1e9,
            "bytes_per_s": size / ns.where(ns > 0) * 1e9,
        }
    )


def _ceilings(gpu: Gpu | None, dtype: str) -> tuple[FlopCeiling, ...]:
    """What CUDA cores and tensor cores can do at most, as far as it is known of the GPU."""
    if gpu is None or not (gpu.compute_capability and gpu.sm_count and gpu.clock_hz):
        return ()
    capability = ".".join(map(str, gpu.compute_capability))
    unit = _TENSOR.get(dtype, "fp16")
    found = []
    for each, name, tensor in (("fp32", "FP32 units", False), (unit, f"tensor cores, {unit}", True)):
        try:
            peak = peak_flops(capability, gpu.sm_count, gpu.clock_hz, each, name=gpu.name)
        except NsysprofError:
            continue
        found.append(FlopCeiling(name, peak, tensor))
    return tuple(found)


def _possible(
    points: pd.DataFrame, bandwidth: float | None, ceilings: tuple[FlopCeiling, ...]
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The points that are below the ceilings, and a sentence for each cause with some that cannot be."""
    highest = max((ceiling.flops_per_s for ceiling in ceilings), default=np.inf)
    refused: dict[str, str] = {}
    kept = []
    for at, side, cause, rate, flops in zip(
        *(points.index, points["side"], points["cause"], points["bytes_per_s"], points["flops_per_s"]),
        strict=True,
    ):
        try:
            share_of_peak(rate, bandwidth or np.inf, what=f"bytes of {cause} ({side})", suspects=SUSPECTS)
            share_of_peak(
                flops, highest, what=f"FLOPs of {cause} ({side})", suspects=["the counters", "the clock"]
            )
        except NsysprofError as error:
            refused[cause] = error.message
        else:
            kept.append(at)
    return points.loc[kept].reset_index(drop=True), refused
