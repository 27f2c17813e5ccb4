"""``roofline.png``: every kernel of a pair below what memory and arithmetic allow, from hardware counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.charts.marks import Bubble, Ceiling, Heading, Message, Roofs
from nsysprof.charts.palette import BASE, NEW
from nsysprof.compare.comparison import Comparison
from nsysprof.compare.gap_chart import compared_reports
from nsysprof.compare.roofline import Roofline, roofline
from nsysprof.core.text import printable, shorten, shorten_both
from nsysprof.core.units import format_bandwidth, format_bytes, format_count, format_ns, format_share
from nsysprof.kernels.classify import short_name

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
