"""Bar charts of CPU time per range, for reports in which no range has GPU work."""

from __future__ import annotations

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.range_text import outermost_cpu
from nsysprof.analyze.subject import subtitle
from nsysprof.charts.marks import BarPanel, Bars, Column, Heading, Part
from nsysprof.charts.palette import IDLE, INK, WHOLE
from nsysprof.core.columns import ColumnTable
from nsysprof.core.intervals import Ints
from nsysprof.core.text import plural, shorten, shorten_all
from nsysprof.core.units import format_count, format_ns, format_share, scale_ns

_LABEL = 46  # characters
_MAX_ROWS = 60


def plan_cpu_totals(breakdown: Breakdown, top: int) -> Bars:
    """Plan the CPU time of the longest ranges: what they take themselves, and what ranges inside them take."""
    merged, rows = _longest(breakdown, top, "cpu_ns")
    whole, own, total = rows["cpu_ns"], rows["exclusive_cpu_ns"], outermost_cpu(merged)
    most = int(merged["exclusive_cpu_ns"].argmax())
    first = shorten(merged.texts("merged_path").tolist()[most], 2 * _LABEL)
    columns = [
        Column("CPU", list(map(format_ns, whole.tolist()))),
        Column("share", [format_share(ns / total) if total else "" for ns in whole.tolist()]),
        Column("itself", list(map(format_ns, own.tolist()))),
    ]
    share = format_share(merged["exclusive_cpu_ns"][most] / total) if total else "None"
    title = f"{share} of the CPU time in ranges is {first} itself"
    parts = [("itself", WHOLE, np.zeros_like(own), own), ("in inner ranges", IDLE, own, whole)]
    return _bars(breakdown, title, rows, "CPU time of all instances", parts, columns)


def plan_cpu_medians(breakdown: Breakdown, top: int) -> Bars:
    """Plan the median CPU time per instance, with a mark at the longest instance."""
    _, rows = _longest(breakdown, top, "cpu_median_ns")
    median = rows["cpu_median_ns"]
    times = {name: rows[f"cpu_{name}_ns"] for name in ("median", "min", "max")}
    columns = [
        Column("instances", list(map(format_count, rows["instances"].tolist()))),
        *(Column(name, list(map(format_ns, each.tolist()))) for name, each in times.items()),
    ]
    far = int((times["max"] - median).argmax())
    first = shorten(rows.texts("merged_path").tolist()[far], 2 * _LABEL)
    title = f"The longest instance of {first} takes {columns[3].texts[far]}, the median one {columns[1].texts[far]}"
    if not (times["max"] > median).any():
        title = f"An instance of {first} takes {columns[1].texts[far]} of CPU time"
    parts = [("median", WHOLE, np.zeros_like(median), median)]
    label = "CPU time per instance"
    return _bars(breakdown, title, rows, label, parts, columns, times["max"])


def _longest(breakdown: Breakdown, top: int, by: str) -> tuple[ColumnTable, ColumnTable]:
    """The rows of ``merged``, and those with the most of a column."""
    merged = breakdown.columns("merged")
    return merged, merged.take(np.argsort(-merged[by], kind="stable")[: min(top, _MAX_ROWS)])


def _bars(
    breakdown: Breakdown,
    title: str,
    rows: ColumnTable,
    label: str,
    parts: list[tuple[str, str, Ints, Ints]],
    columns: list[Column],
    most: Ints | None = None,
) -> Bars:
    """Bars with a part per name, colour, left and right end in ns, and marks at ``most``."""
    ends = parts[-1][3] if most is None else most
    divisor, unit = scale_ns(int(ends.max(initial=0)))
    legend = [(name, colour) for name, colour, *_ in parts] + [("longest", INK)] * (most is not None)
    more = len(breakdown.columns("merged")) - len(rows)
    panel = BarPanel(
        label=f"{label} ({unit})",
        share=1.0,
        end=float(ends.max(initial=0)) / divisor * 1.03 or 1,
        parts=[
            Part(name, colour, "white", some, left[some] / divisor, right[some] / divisor)
            for name, colour, left, right in parts
            if len(some := np.flatnonzero(right > left))
        ],
        marks=None if most is None else ("longest", most / divisor),
    )
    notes = ["no range has GPU work"] + [f"{plural(more, 'more range')}: see ranges.csv"] * (more > 0)
    return Bars(
        heading=Heading(title, subtitle(breakdown), legend, notes),
        labels=shorten_all(rows.texts("merged_path").tolist(), _LABEL),
        rest=None,
        panels=[panel],
        columns=columns,
    )
