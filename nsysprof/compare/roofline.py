"""Where each kernel of a comparison stands below what its GPU can do: FLOPs per byte, and FLOPs per second.

A kernel that does few FLOPs for each byte of memory traffic cannot be faster than the memory, however fast the GPU
multiplies (Williams, Waterman and Patterson 2009). Bytes and FLOPs are those that hardware counters counted; the time
is that of the report; ceilings are made from what the report says of the GPU, at its highest clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.charts.marks import Bubble, Ceiling, Heading, Message, Roofs
from nsysprof.charts.palette import BASE, NEW
from nsysprof.compare.comparison import Comparison, compared_reports
from nsysprof.compare.pairs import Pair
from nsysprof.compare.selection import Side
from nsysprof.compare.traffic import SUSPECTS, Measured, flops_of, tensor_share
from nsysprof.core.text import printable, shorten, shorten_both
from nsysprof.core.units import format_bandwidth, format_bytes, format_count, format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.hardware.peaks import peak_flops, share_of_peak
from nsysprof.kernels.classify import short_name
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


MOST_BUBBLES = 500
_LEAST = 0.02  # FLOPs per byte: what does fewer is with those that do none
_BEYOND_RIDGE = 15  # times the highest ridge: how far the axis goes
_TOLD = 0.01  # of the time: less without counters is not worth a note
_NAME, _CAUSE = 40, 32
_SIDES = {"base": BASE, "new": NEW}


def plan_roofline(comparison: Comparison) -> Roofs | Message:
    """The roofline of the pair with the largest difference over all calls; words where there is nothing to draw."""
    found = roofline(comparison)
    if found is None or not (found.points["flops"] > 0).any():
        return Message(Heading("No roofline", " · ".join(compared_reports(comparison))), _why_none(found))
    points = found.points.sort_values("sum_ns", ascending=False, kind="stable").head(MOST_BUBBLES)
    flat = ~(points["flops"] > 0) | (points["intensity"] < _LEAST)
    edge = _edge(found)
    largest = float(points["sum_ns"].max())
    slope = found.bytes_per_s
    bubbles = [_point(row, edge, largest) for row in _rows(points[~flat])]
    return Roofs(
        heading=Heading(
            _title(found), _subtitle(comparison, found), _legend(found), _notes(comparison, found, bubbles)
        ),
        bubbles=bubbles,
        slopes=[(slope / 1e12, f"DRAM {format_bandwidth(slope)}")] if slope else [],
        ceilings=[
            Ceiling(
                ceiling.flops_per_s / 1e12,
                f"{ceiling.name}: {ceiling.flops_per_s / 1e12:,.4g} TFLOP/s",
                slope / 1e12 if slope else None,
            )
            for ceiling in found.ceilings
        ],
        flat=[
            _bubble(row, row["bytes_per_s"] / 1e9, 0.0 if row["side"] == "base" else 1.0, largest)
            for row in _rows(points[flat])
        ],
        flat_end=(slope / 1e9, f"at most {format_bandwidth(slope)}") if slope else None,
        labels=(
            "FLOP per byte of DRAM traffic",
            "TFLOP/s",
            "DRAM bandwidth reached (GB/s)",
            "Kernels without FLOPs"
            if (found.points["flops"] >= 0).all()
            else "Kernels without FLOPs that are known",
        ),
    )


def _edge(found: Roofline) -> float:
    """FLOPs per byte that the axis reaches: what does more of them has its data in caches, and no place to be at."""
    ridges = [ridge for ceiling in found.ceilings if (ridge := found.ridge(ceiling)) is not None]
    if ridges:
        return max(ridges) * _BEYOND_RIDGE
    known = found.points.loc[found.points["dram_bytes"] > 0, "intensity"]
    return float(known.max()) * 2 if known.notna().any() else 1.0


def _point(row: Mapping[str, Any], edge: float, largest: float) -> Bubble:
    """A kernel with FLOPs; one beyond the edge stands there, and tells how little it moves."""
    rate = row["flops_per_s"] / 1e12
    if row["intensity"] <= edge:
        return _bubble(row, row["intensity"], rate, largest)
    bubble = _bubble(row, edge, rate, largest)
    return replace(
        bubble, text=f"{bubble.text}, {format_bytes(row['dram_bytes'])} of DRAM traffic", beyond=True
    )


def _rows(points: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in points.to_dict("records")]


def _bubble(row: Mapping[str, Any], x: float, y: float, largest: float) -> Bubble:
    side, cause, count, ns = (row[name] for name in ("side", "cause", "count", "sum_ns"))
    cause = short_name(row["kernel"], _CAUSE) if cause == "other" else cause
    times = f" × {count:,.0f}" if count > 1 and count == int(count) else ""
    text = f"{shorten(cause, _CAUSE)}{times}  {format_ns(ns)}"
    return Bubble(float(x), float(y), float(ns) / largest, _SIDES[side], text)


# ---- words


def _names(found: Roofline) -> dict[str, str]:
    base, new = shorten_both(found.pair.base_name, found.pair.new_name, _NAME)
    return {"base": base, "new": new}


def _title(found: Roofline) -> str:
    """The finding: how much of the time of either side memory limits, and who uses tensor cores."""
    names = _names(found)
    where = f" at {shorten(found.pair.place, _NAME)}" if found.pair.place else ""
    parts = _counted(found)
    held = {side: _held_back(found, part) for side, part in parts.items()}
    if any(share is None for share in held.values()):
        told = [f"{names[side]} does {_intensity(part)} FLOP per byte" for side, part in parts.items()]
        return f"{', '.join(told)} of memory traffic{where}"
    shares = [f"{_part(share or 0.0)} of {names[side]}'s kernel time" for side, share in held.items()]
    shares[1:] = [text.removesuffix(" kernel time") for text in shares[1:]]
    said = f"{' and '.join(shares)}{where} goes to kernels that move more than they compute"
    return f"{said[0].upper()}{said[1:]}{_who_uses_tensor_cores(parts, names)}"


def _counted(found: Roofline) -> dict[str, pd.DataFrame]:
    """The kernels of each side whose FLOPs are known, of those sides that have any."""
    known = found.points[found.points["flops"].notna()]
    return {str(side): part for side, part in known.groupby("side", sort=False)}


def _part(share: float) -> str:
    return "none" if share == 0 else "all" if share == 1 else format_share(share)


def _held_back(found: Roofline, points: pd.DataFrame) -> float | None:
    """The part of the time of some kernels that do so few FLOPs per byte that memory is their limit."""
    ridges = {
        ceiling.tensor: ridge for ceiling in found.ceilings if (ridge := found.ridge(ceiling)) is not None
    }
    if len(ridges) < 2:
        return None
    needed = np.where(points["tensor_share"] > 0.5, ridges[True], ridges[False])
    left = ((points["intensity"] < needed) & (points["dram_bytes"] > 0)).to_numpy()
    time = points["sum_ns"].to_numpy()
    return float(time[left].sum() / time.sum()) if time.any() else 0.0


def _intensity(points: pd.DataFrame) -> str:
    size = float((points["dram_bytes"] * points["count"]).sum())
    return format_count(round(float((points["flops"] * points["count"]).sum()) / size)) if size else "no"


def _who_uses_tensor_cores(parts: Mapping[str, pd.DataFrame], names: dict[str, str]) -> str:
    """`; only flash uses tensor cores`, where that is so."""
    users = [side for side, part in parts.items() if (part["tensor_share"] > 0).any()]
    return f"; only {names[users[0]]} uses tensor cores" if len(parts) == 2 and len(users) == 1 else ""


def _subtitle(comparison: Comparison, found: Roofline) -> str:
    both = comparison.measured[found.pair.name]
    files = list(dict.fromkeys(side.path.name for side in both if side))
    counted = f"bytes and FLOP: {shorten(' and '.join(files), 40)}, by Nsight Compute"
    return " · ".join([*compared_reports(comparison), counted, "time: this report"])


def _legend(found: Roofline) -> list[tuple[str, str]]:
    present = found.points["side"].unique().tolist()
    return [(name, _SIDES[side]) for side, name in _names(found).items() if side in present]


def _why_none(found: Roofline | None) -> list[str]:
    """Why there is no roofline, and what to do."""
    if found is None or found.points.empty:
        refused = [f"{text}." for text in (found.refused.values() if found else ())]
        return [
            "No kernel of the pair with the largest difference has counters of its memory traffic.",
            *refused,
        ]
    return ["The counters hold no FLOPs.", "Measure them with:  nsysprof counters, without --quick"]


def _notes(comparison: Comparison, found: Roofline, bubbles: Sequence[Bubble]) -> list[str]:
    notes = ["areas: time per call", "left of the ridge of its units a kernel moves more than it computes"]
    unknown = set(found.points["side"]) - _counted(found).keys()
    notes += [f"FLOPs of {name} are not known" for side, name in _names(found).items() if side in unknown]
    if found.refused:
        notes.append(f"left out, as above a ceiling: {', '.join(map(printable, found.refused))}")
    if found.lost >= _TOLD:
        notes.append(f"without counters: {format_share(found.lost)} of the kernels' time")
    if any(bubble.beyond for bubble in bubbles):
        notes.append("arrow: its data is in caches, far off the axis")
    if len(found.points) > MOST_BUBBLES:
        notes.append(f"{len(found.points) - MOST_BUBBLES:,} kernels with less time are not drawn")
    if found.ceilings and found.gpu and found.gpu.clock_hz:
        notes.append(f"ceilings at {found.gpu.clock_hz / 1e6:,.0f} MHz")
    if len(comparison.pairs) > 1:
        notes.append(f"of {len(comparison.pairs):,} pairs the one with the largest difference")
    return notes
