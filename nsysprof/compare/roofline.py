"""``roofline.png``: the kernels of a pair below the memory roof and the compute roofs, from hardware counters.

A kernel with few FLOPs per byte of memory traffic is memory-bound, regardless of arithmetic speed (Williams, Waterman
and Patterson 2009). Hardware counters give the bytes and FLOPs, the report gives the times, and the report's GPU
description gives the ceilings at the highest clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.charts.marks import Bubble, Ceiling, Heading, Message, Roofs
from nsysprof.charts.palette import BASE, NEW
from nsysprof.compare.comparison import Comparison, compared_reports
from nsysprof.compare.pairs import SIDES, Pair
from nsysprof.compare.selection import Selection
from nsysprof.compare.traffic import SUSPECTS, Measured, flops_of, tensor_share
from nsysprof.core.text import printable, shorten, shorten_both
from nsysprof.core.units import format_bandwidth, format_bytes, format_count, format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.hardware.peaks import peak_flops, share_of_peak
from nsysprof.kernels.classify import short_name
from nsysprof.results.table import row_dicts
from nsysprof.trace.about import Gpu

MAX_BUBBLES = 500
MIN_INTENSITY = 0.02  # FLOPs per byte: kernels with fewer count as those without FLOPs
EDGE_TO_RIDGE = 15  # the end of the axis, in multiples of the highest ridge
MIN_LOST_SHARE = 0.01  # of the time: less without counters deserves no note
_NAME, _CAUSE = 40, 32
_COLOURS = {"base": BASE, "new": NEW}
_TENSOR = {"fp16": "fp16", "bf16": "bf16", "fp32": "tf32"}


@dataclass(frozen=True)
class FlopCeiling:
    """The FLOP/s limit of one kind of unit: ``name`` such as `tensor cores, fp16`."""

    name: str
    flops_per_s: float
    tensor: bool


@dataclass(frozen=True)
class Roofline:
    """The kernels of one pair with their ceilings.

    ``points``, a row per side, cause, kernel and grid: ``side`` base or new, ``cause, kernel, grid``, ``count``
    (launches per call), ``ns`` (per launch), ``sum_ns`` (per call), ``dram_bytes, flops, tensor_share`` of a launch,
    ``intensity`` (FLOPs per byte, NaN without bytes), ``flops_per_s``, ``bytes_per_s``. ``bytes_per_s`` of the GPU is
    None, and ``ceilings`` is empty, if the report does not describe the GPU. ``refused``: a sentence per cause with
    kernels above a ceiling; these kernels have no points. ``lost`` is the share of kernel time without points.
    """

    pair: Pair
    points: pd.DataFrame
    bytes_per_s: float | None
    ceilings: tuple[FlopCeiling, ...]
    gpu: Gpu | None
    refused: dict[str, str]
    lost: float

    @property
    def ridges(self) -> dict[bool, float]:
        """Return the FLOPs per byte above which memory no longer limits a kernel, with tensor cores and without."""
        return {each.tensor: each.flops_per_s / self.bytes_per_s for each in self.ceilings if self.bytes_per_s}


def roofline(comparison: Comparison, pair: str | None = None) -> Roofline | None:
    """Compute the `Roofline` of a pair (by default, the pair with the largest difference); None without counters."""
    difference = comparison.differences[pair or comparison.largest]
    frames = [
        _side_points(side, selection, measured)
        for side, selection, measured in zip(SIDES, difference.pair.sides, difference.measured, strict=True)
        if measured is not None
    ]
    if not frames:
        return None
    points = pd.concat(frames, ignore_index=True)
    gpu = difference.pair.base.only_gpu or difference.pair.new.only_gpu
    dtypes = [model.dtype for model in difference.models if model]
    ceilings = _ceilings(gpu, dtypes[0] if dtypes else "fp16")
    bandwidth = gpu.bandwidth_bytes_per_s if gpu else None
    time = float(points["sum_ns"].sum())
    kept, refused = _possible(points[points["dram_bytes"].notna()], bandwidth, ceilings)
    return Roofline(
        pair=difference.pair,
        points=kept,
        bytes_per_s=bandwidth,
        ceilings=ceilings,
        gpu=gpu,
        refused=refused,
        lost=1 - float(kept["sum_ns"].sum()) / time if time else 0.0,
    )


def _side_points(name: str, side: Selection, measured: Measured) -> pd.DataFrame:
    rows = measured.kernels
    amounts = row_dicts(rows)
    points = rows[["cause", "kernel", "grid"]].copy()
    points.insert(0, "side", name)
    points["count"] = rows["count"] / side.ledger.calls
    points["ns"] = rows["sum_ns"] / rows["count"]
    points["sum_ns"] = rows["sum_ns"] / side.ledger.calls
    points["dram_bytes"] = rows["dram_read_bytes"] + rows["dram_write_bytes"]
    points["flops"] = np.array([flops_of(row) for row in amounts], float)
    points["tensor_share"] = [tensor_share(row) for row in amounts]
    points["intensity"] = points["flops"] / points["dram_bytes"].where(points["dram_bytes"] > 0)
    ns = points["ns"].where(points["ns"] > 0)
    return points.assign(flops_per_s=points["flops"] / ns * 1e9, bytes_per_s=points["dram_bytes"] / ns * 1e9)


def _ceilings(gpu: Gpu | None, dtype: str) -> tuple[FlopCeiling, ...]:
    """The peaks of CUDA cores and tensor cores, if known for this GPU."""
    if gpu is None or not (gpu.compute_capability and gpu.sm_count and gpu.clock_hz):
        return ()
    capability = ".".join(map(str, gpu.compute_capability))
    unit = _TENSOR.get(dtype, "fp16")
    ceilings = []
    for each, name, tensor in (("fp32", "FP32 units", False), (unit, f"tensor cores, {unit}", True)):
        try:
            peak = peak_flops(capability, gpu.sm_count, gpu.clock_hz, each, name=gpu.name)
        except NsysprofError:
            continue
        ceilings.append(FlopCeiling(name, peak, tensor))
    return tuple(ceilings)


def _possible(
    points: pd.DataFrame, bandwidth: float | None, ceilings: tuple[FlopCeiling, ...]
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The points below the ceilings, and a sentence for each cause with points above."""
    highest = max((ceiling.flops_per_s for ceiling in ceilings), default=np.inf)
    refused: dict[str, str] = {}
    kept = np.ones(len(points), bool)
    for at, row in enumerate(row_dicts(points)):
        of = f"of {row['cause']} ({row['side']})"
        try:
            share_of_peak(row["bytes_per_s"], bandwidth or np.inf, what=f"bytes {of}", suspects=SUSPECTS)
            suspects = ["the counters", "the clock"]
            share_of_peak(row["flops_per_s"], highest, what=f"FLOPs {of}", suspects=suspects)
        except NsysprofError as error:
            refused[row["cause"]] = error.message
            kept[at] = False
    return points.loc[kept].reset_index(drop=True), refused


def plan_roofline(comparison: Comparison) -> Roofs | Message:
    """Plan the roofline of the pair with the largest difference, or a text if there is nothing to draw."""
    roofs = roofline(comparison)
    if roofs is None or not (roofs.points["flops"] > 0).any():
        return Message(Heading("No roofline", " · ".join(compared_reports(comparison))), _why_none(roofs))
    points = roofs.points.sort_values("sum_ns", ascending=False, kind="stable").head(MAX_BUBBLES)
    flat = ~(points["flops"] > 0) | (points["intensity"] < MIN_INTENSITY)
    edge = _edge(roofs)
    largest = float(points["sum_ns"].max())
    slope = roofs.bytes_per_s
    bubbles = [_point(row, edge, largest) for row in row_dicts(points[~flat])]
    notes = _notes(comparison, roofs, bubbles)
    present = roofs.points["side"].unique()
    legend = [(name, _COLOURS[side]) for side, name in _names(roofs).items() if side in present]
    heading = Heading(_title(roofs), _subtitle(comparison, roofs), legend, notes)
    all_known = (roofs.points["flops"] >= 0).all()
    return Roofs(
        heading=heading,
        bubbles=bubbles,
        slopes=[(slope / 1e12, f"DRAM {format_bandwidth(slope)}")] if slope else [],
        ceilings=[
            Ceiling(
                ceiling.flops_per_s / 1e12,
                f"{ceiling.name}: {ceiling.flops_per_s / 1e12:,.4g} TFLOP/s",
                slope / 1e12 if slope else None,
            )
            for ceiling in roofs.ceilings
        ],
        flat=[
            _bubble(row, row["bytes_per_s"] / 1e9, 0.0 if row["side"] == "base" else 1.0, largest)
            for row in row_dicts(points[flat])
        ],
        flat_end=(slope / 1e9, f"at most {format_bandwidth(slope)}") if slope else None,
        labels=(
            "FLOP per byte of DRAM traffic",
            "TFLOP/s",
            "DRAM bandwidth reached (GB/s)",
            "Kernels without FLOPs" if all_known else "Kernels without known FLOPs",
        ),
    )


def _edge(roofs: Roofline) -> float:
    """The FLOPs per byte at the end of the axis; kernels with more have their data in caches and are off the axis."""
    if roofs.ridges:
        return max(roofs.ridges.values()) * EDGE_TO_RIDGE
    known = roofs.points.loc[roofs.points["dram_bytes"] > 0, "intensity"]
    return float(known.max()) * 2 if known.notna().any() else 1.0


def _point(row: Mapping[str, Any], edge: float, largest: float) -> Bubble:
    """A kernel with FLOPs; a kernel beyond the edge is drawn at the edge, with its bytes."""
    rate = row["flops_per_s"] / 1e12
    if row["intensity"] <= edge:
        return _bubble(row, row["intensity"], rate, largest)
    bubble = _bubble(row, edge, rate, largest)
    return replace(bubble, text=f"{bubble.text}, {format_bytes(row['dram_bytes'])} of DRAM traffic", beyond=True)


def _bubble(row: Mapping[str, Any], x: float, y: float, largest: float) -> Bubble:
    side, cause, count, ns = (row[name] for name in ("side", "cause", "count", "sum_ns"))
    cause = short_name(row["kernel"], _CAUSE) if cause == "other" else cause
    times = f" × {count:,.0f}" if count > 1 and count == int(count) else ""
    text = f"{shorten(cause, _CAUSE)}{times}  {format_ns(ns)}"
    return Bubble(float(x), float(y), float(ns) / largest, _COLOURS[side], text)


def _names(roofs: Roofline) -> dict[str, str]:
    return dict(zip(SIDES, shorten_both(*roofs.pair.names, _NAME), strict=True))


def _title(roofs: Roofline) -> str:
    """The finding: the share of each side's time that memory limits, and the side that uses tensor cores."""
    names = _names(roofs)
    where = f" at {shorten(roofs.pair.place, _NAME)}" if roofs.pair.place else ""
    parts = _with_flops(roofs)
    bound = {side: _memory_bound(roofs, part) for side, part in parts.items()}
    if any(share is None for share in bound.values()):
        texts = [f"{names[side]} does {_intensity(part)} FLOP per byte" for side, part in parts.items()]
        return f"{', '.join(texts)} of memory traffic{where}"
    shares = [f"{_part(share or 0.0)} of {names[side]}'s kernel time" for side, share in bound.items()]
    shares[1:] = [text.removesuffix(" kernel time") for text in shares[1:]]
    text = f"{' and '.join(shares)}{where} is spent in memory-bound kernels"
    users = [side for side, part in parts.items() if (part["tensor_share"] > 0).any()]
    only = f"; only {names[users[0]]} uses tensor cores" if len(parts) == 2 and len(users) == 1 else ""
    return f"{text[0].upper()}{text[1:]}{only}"


def _with_flops(roofs: Roofline) -> dict[str, pd.DataFrame]:
    """The kernels with known FLOPs of each side that has any."""
    known = roofs.points[roofs.points["flops"].notna()]
    return {str(side): part for side, part in known.groupby("side", sort=False)}


def _part(share: float) -> str:
    return "none" if share == 0 else "all" if share == 1 else format_share(share)


def _memory_bound(roofs: Roofline, points: pd.DataFrame) -> float | None:
    """The share of some kernels' time in memory-bound kernels (few FLOPs per byte)."""
    ridges = roofs.ridges
    if len(ridges) < 2:
        return None
    needed = np.where(points["tensor_share"] > 0.5, ridges[True], ridges[False])
    left = ((points["intensity"] < needed) & (points["dram_bytes"] > 0)).to_numpy()
    time = points["sum_ns"].to_numpy()
    return float(time[left].sum() / time.sum()) if time.any() else 0.0


def _intensity(points: pd.DataFrame) -> str:
    size = float((points["dram_bytes"] * points["count"]).sum())
    return format_count(round(float((points["flops"] * points["count"]).sum()) / size)) if size else "no"


def _subtitle(comparison: Comparison, roofs: Roofline) -> str:
    both = comparison.measured[roofs.pair.name]
    files = list(dict.fromkeys(side.path.name for side in both if side))
    counted = f"bytes and FLOP: {shorten(' and '.join(files), 40)}, by Nsight Compute"
    return " · ".join([*compared_reports(comparison), counted, "time: this report"])


def _why_none(roofs: Roofline | None) -> list[str]:
    if roofs is None or roofs.points.empty:
        refused = [f"{text}." for text in (roofs.refused.values() if roofs else ())]
        nothing = "No roofline: the counters have no memory traffic for the pair with the largest difference."
        return [nothing, *refused]
    return ["The counters hold no FLOPs.", "Measure them with:  nsysprof counters, without --quick"]


def _notes(comparison: Comparison, roofs: Roofline, bubbles: Sequence[Bubble]) -> list[str]:
    notes = ["areas: time per call", "left of the ridge, kernels are memory-bound"]
    unknown = set(roofs.points["side"]) - _with_flops(roofs).keys()
    notes += [f"FLOPs of {name} are unknown" for side, name in _names(roofs).items() if side in unknown]
    if roofs.refused:
        notes.append(f"left out because above a ceiling: {', '.join(map(printable, roofs.refused))}")
    if roofs.lost >= MIN_LOST_SHARE:
        notes.append(f"without counters: {format_share(roofs.lost)} of the kernel time")
    if any(bubble.beyond for bubble in bubbles):
        notes.append("arrow: the kernel is beyond the end of the axis, because its data is in caches")
    if len(roofs.points) > MAX_BUBBLES:
        notes.append(f"{len(roofs.points) - MAX_BUBBLES:,} kernels with less time are not drawn")
    if roofs.ceilings and roofs.gpu and roofs.gpu.clock_hz:
        notes.append(f"ceilings at {roofs.gpu.clock_hz / 1e6:,.0f} MHz")
    if len(comparison.pairs) > 1:
        notes.append(f"shown: the pair with the largest difference, of {len(comparison.pairs):,} pairs")
    return notes
