"""Draws rows of stacked bars: labels, panels with an axis each, and columns of numbers."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nsysprof.charts.axis import draw_axis
from nsysprof.charts.marks import BarPanel, Bars, Column, Heat
from nsysprof.charts.palette import FAINT, INK, text_on
from nsysprof.charts.style import (
    BOLD,
    MARGIN,
    SMALL,
    TEXT,
    WIDTH,
    WRITTEN,
    boxes,
    framed,
    heading_height,
    shown_rows,
    size_of,
    text_width,
    write,
)

_BAR = 0.74  # of a row
_THIN = 0.1  # inches of rows without gaps between their bars
_LINE = 0.15  # inches of a line of names
_GAP = 0.22  # inches between label, panels and columns
_AXIS = 0.55  # below the panels


def draw_bars(plan: Bars) -> Figure:
    """Draw the chart with one `Axes` per panel; rows are at y = 0, 1, … from top to bottom."""
    rows = len(plan.labels)
    names = [len(name) for panel in plan.panels if isinstance(panel, Heat) for name in panel.names]
    top = heading_height(plan.heading) + 0.3 + _LINE * max(names, default=0)
    bottom = _AXIS + (0.2 if plan.heading.notes else 0)
    height = top + plan.row * max(rows, 2) + bottom
    figure = framed(plan.heading, height)
    lengths = [
        text_width(label, TEXT) * (BOLD if row in plan.strong else 1) for row, label in enumerate(plan.labels)
    ]
    labels = max(lengths) + MARGIN + 0.1
    widths = [_width(column) for column in plan.columns]
    free = WIDTH - (labels + sum(widths) + _GAP * len(plan.panels) + MARGIN)
    free /= sum(panel.share for panel in plan.panels)
    x = labels
    for number, panel in enumerate(plan.panels):
        width = free * panel.share
        axes = figure.add_axes((x / WIDTH, bottom / height, width / WIDTH, 1 - (top + bottom) / height))
        axes.set_ylim(max(rows, 2) - 0.5, -0.5)
        if isinstance(panel, Heat):
            _heat(axes, panel, plan.row)
        else:
            _prepare(axes, panel)
            _fill(axes, panel, _BAR if plan.row >= _THIN else 1.0)
        x += width
        if number == 0:
            for column, wide in zip(plan.columns, widths, strict=True):
                x += wide
                _write_column(axes, column, (x - labels) / width)
            _write_labels(axes, plan, width)
        x += _GAP
    return figure


def _width(column: Column) -> float:
    """Inches of a column, with the gap before it."""
    return max(text_width(text, TEXT) for text in (column.heading, *column.texts)) + _GAP


def _prepare(axes: Axes, panel: BarPanel) -> None:
    axes.set_xlim(0, panel.end)
    if panel.percent:
        draw_axis(axes, [0, 0.25, 0.5, 0.75, 1], lambda tick: f"{100 * tick:.0f} %", panel.label, gap=4)
    else:
        ticks = MaxNLocator(6, integer=panel.whole).tick_values(0, panel.end)
        draw_axis(axes, ticks, lambda tick: f"{tick:,.10g}", panel.label, gap=4)


def _write_labels(axes: Axes, plan: Bars, width: float) -> None:
    """Write row labels as plain texts: tick labels take three times as long to draw."""
    x, where = -0.07 / width, axes.get_yaxis_transform()
    for row in shown_rows(len(plan.labels), plan.row, plan.strong):
        look = {
            "color": FAINT if row == plan.rest else INK,
            "weight": "bold" if row in plan.strong else "normal",
        }
        write(axes, x, row, plan.labels[row], "right", size=TEXT, at=where, **look)


def _write_column(axes: Axes, column: Column, x: float) -> None:
    """Write a column of numbers below its heading; ``x`` is its right edge, in widths of the panel."""
    where = axes.get_yaxis_transform()
    write(axes, x, -0.62, column.heading, "right", "bottom", size=TEXT, at=where, color=FAINT)
    for row, text in enumerate(column.texts):
        if text:
            write(axes, x, row, text, "right", size=TEXT, at=where)


def _fill(axes: Axes, panel: BarPanel, thick: float) -> None:
    """Draw the bars, an artist per part (labelled with it), and what stands on them."""
    for part in panel.parts:
        place = part.left, part.right, part.rows - thick / 2, part.rows + thick / 2
        boxes(axes, *place, part.colour, label=part.label, edgecolors=part.edge, linewidths=0.4)
    if panel.marks:
        label, x = panel.marks
        y = np.arange(len(x))
        axes.vlines(x, y - 0.45, y + 0.45, colors="white", linewidth=3.2, zorder=3)
        axes.vlines(x, y - 0.45, y + 0.45, colors=INK, linewidth=1.6, zorder=4, label=label)
    for middle, row, text, colour in panel.inside:
        write(axes, middle, row, text, color=colour)
    if panel.cut is not None:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        write(axes, 1, panel.cut, " cut off »", "right", at=axes.get_yaxis_transform(), bbox=box)


def _heat(axes: Axes, panel: Heat, row: float) -> None:
    """Draw the cells with their texts, the names of the columns above, and the scale of the colours below."""
    rows, columns = panel.values.shape
    low, high = panel.colours
    colours = LinearSegmentedColormap.from_list("heat", [low, "#f4f4f4", high])
    wide, tall = size_of(axes)
    axes.set_axis_off()
    axes.set_xlim(-0.5, columns - 0.5)
    limits, around = axes.get_ylim(), (-0.5, columns - 0.5, rows - 0.5, -0.5)
    cells = np.ma.masked_invalid(panel.values)  # what is absent stays white
    axes.imshow(cells, aspect="auto", cmap=colours, vmin=-1, vmax=1, interpolation="nearest", extent=around)
    axes.set_ylim(limits)
    for at in range(1, columns):
        axes.axvline(at - 0.5, color="white", linewidth=2)
    if row >= WRITTEN:
        for at in range(1, rows):
            axes.axhline(at - 0.5, color="white", linewidth=1)
        for (at, column), value in np.ndenumerate(panel.values):
            texts = panel.texts[at][column] if np.isfinite(value) else ()
            text = next((each for each in texts if text_width(each, SMALL) <= wide / columns - 0.06), "")
            if text:
                write(axes, column, at, text, color=text_on(to_hex(colours((value + 1) / 2))))
    for at, name in enumerate(panel.names):
        write(axes, at, -0.5 - 0.06 / row, "\n".join(name), va="bottom", size=TEXT)
    scale = axes.inset_axes((0, -0.28 / tall, min(2.6 / wide, 1), 0.1 / tall))
    scale.imshow(np.linspace(-1, 1, 101)[None, :], aspect="auto", cmap=colours, extent=(-1, 1, 0, 1))
    scale.set_axis_off()
    for x, text, side in zip((-1, 0, 1), panel.scale, ("left", "center", "right"), strict=True):
        write(scale, x, -0.5, text, side, "top", color=INK if x else FAINT)
