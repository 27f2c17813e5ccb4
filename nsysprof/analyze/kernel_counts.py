"""``kernel_counts.png``: GPU operations per instance of each range by kernel family, and the launches behind them."""

from __future__ import annotations

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.chart_rows import ChartRows
from nsysprof.analyze.stacks import stack
from nsysprof.analyze.subject import group_legend, group_notes, outside_share, subtitle
from nsysprof.charts.marks import BarPanel, Bars, Column, Heading, Numbers
from nsysprof.charts.palette import INK
from nsysprof.core.units import format_count

_MARK = "launches (host calls)"


def plan_kernel_counts(breakdown: Breakdown, rows: ChartRows) -> Bars:
    """A bar of ops by family per row, per instance where instances repeat, with a mark where the launches are."""
    calls = rows.calls[:, None]
    launches = np.where(rows.launches >= 0, rows.launches / rows.calls, np.nan)
    legend = group_legend(rows.groups, (rows.ops.sum(axis=0) > 0).tolist())
    known = np.isfinite(launches).any()
    if known:
        legend.append((_MARK, INK))
    repeated = bool((rows.calls > 1).any())
    parts, ends = stack(rows.ops / calls, rows.groups)
    longest = max(float(ends.max(initial=0)), float(np.nanmax(launches)) if known else 0.0)
    panel = BarPanel(
        label=f"GPU operations per {rows.unit}" if repeated else "GPU operations",
        share=1.0,
        end=longest * 1.03 or 1,
        parts=parts,
        marks=(_MARK, launches) if known else None,
        whole=True,
    )
    return Bars(
        heading=Heading(title(rows), subtitle(breakdown), legend, _notes(breakdown, rows, repeated)),
        labels=rows.labels,
        rest=rows.rest,
        panels=[panel],
        columns=_columns(rows, launches),
    )


def _columns(rows: ChartRows, launches: Numbers) -> list[Column]:
    """Numbers per instance; columns that say the same for all rows, zero or one, are left out."""
    out = [Column("kernels", [_number(count) for count in (rows.kernels / rows.calls).tolist()])]
    memory = (
        rows.ops[:, [rows.groups.place(family) for family in ("memcpy", "memset")]].sum(axis=1) / rows.calls
    )
    graphs = rows.ops[:, rows.groups.place("graph")] / rows.calls
    for heading, values in (("copies, sets", memory), ("graphs", graphs)):
        if values.any():
            out.append(Column(heading, [_number(value) for value in values.tolist()]))
    if np.isfinite(launches).any():
        out.append(Column("launches", [_number(value) for value in launches.tolist()]))
    if (rows.calls > 1).any():
        out.append(Column(f"{rows.unit.split()[0]}s", [f"× {count:,}" for count in rows.calls.tolist()]))
    return out


def _number(value: float) -> str:
    if not np.isfinite(value):
        return ""
    return format_count(round(value)) if abs(value - round(value)) < 0.05 or value >= 100 else f"{value:.1f}"


def _notes(breakdown: Breakdown, rows: ChartRows, repeated: bool) -> list[str]:
    notes = group_notes(rows.groups)
    if rows.of == "kernels":
        notes.append("no range holds GPU work, so the bars are kernels of the whole report")
    elif outside_share(breakdown) > 0:
        notes.append("GPU work outside of ranges is not in the bars")
    if repeated and rows.rest is not None:
        notes.append("the last row is the average over all instances of its ranges")
    if rows.ops[:, rows.groups.place("graph")].any():
        notes.append("a CUDA graph that was traced as a whole is one operation, whatever it holds")
    return notes


def title(rows: ChartRows) -> str:
    """The finding: which range runs the most kernels per instance, and which the fewest."""
    named = rows.named
    if rows.of == "kernels":
        count = rows.ops.sum(axis=1)
        first, most = int(named[np.argmax(count[named])]), int(count[named].max())
        ties = int((count[named] == most).sum())
        times = f"{format_count(most)} time{'s' * (most != 1)}"
        if ties > 1:
            return f"{ties} kernels run {times} each, more often than any other"
        return f"{rows.names[first]} runs {times}, more often than any other"
    per = f" per {rows.unit.split()[0]}" if (rows.calls[named] > 1).any() else ""
    kernels = rows.kernels[named] / rows.calls[named]
    what = "kernel"
    if not kernels.any():
        kernels, what = rows.ops[named].sum(axis=1) / rows.calls[named], "GPU operation"
    most, least = kernels.max(), kernels.min()
    first, last = int(named[np.argmax(kernels)]), int(named[np.argmin(kernels)])
    plural = "s" if _number(most) != "1" else ""
    if len(named) == 1:
        return f"{rows.names[first]} runs {_number(most)} {what}{plural}{per}"
    if _number(most) == _number(least):
        return f"All {len(named)} ranges run {_number(most)} {what}{plural}{per}"
    where = [
        f"{rows.names[row]}{f' and {many - 1} more' if many > 1 else ''}"
        for row, many in ((first, int((kernels == most).sum())), (last, int((kernels == least).sum())))
    ]
    return f"{_number(most)} {what}{plural}{per} in {where[0]}, {_number(least)} in {where[1]}"
