"""Draws rows of stacked bars: labels, panels with an axis each, and columns of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nsysprof.charts.axis import draw_axis
from nsysprof.charts.marks import BarPanel, Bars, Column
from nsysprof.charts.palette import FAINT, INK
from nsysprof.charts.style import MARGIN, SMALL, TEXT, WIDTH, boxes, framed, heading_height, text_width

_ROW = 0.27  # inches
_BAR = 0.74  # of a row
_GAP = 0.22  # inches between label, panels and columns
_AXIS = 0.55  # below the panels


def draw_bars(plan: Bars) -> Figure:
    """The chart as a figure with one `Axes` per panel; rows are at y = 0, 1, … from top to bottom."""
    rows = len(plan.labels)
    top = heading_height(plan.heading) + 0.3
    bottom = _AXIS + (0.2 if plan.heading.notes else 0)
    height = top + max(_ROW * rows, 2 * _ROW) + bottom
    figure = framed(plan.heading, height)
    labels = max(text_width(label, TEXT) for label in plan.labels) + MARGIN + 0.1
    widths = [_width(column) for column in plan.columns]
    free = WIDTH - (labels + sum(widths) + _GAP * len(plan.panels) + MARGIN)
    free /= sum(panel.share for panel in plan.panels)
    x = labels
    for number, panel in enumerate(plan.panels):
        width = free * panel.share
        axes = figure.add_axes((x / WIDTH, bottom / height, width / WIDTH, 1 - (top + bottom) / height))
        _prepare(axes, rows, panel)
        x += width
        if number == 0:
            for column, wide in zip(plan.columns, widths, strict=True):
                x += wide
                _write_column(axes, column, (x - labels) / width)
            _write_labels(axes, plan, width)
        _fill(axes, panel)
        x += _GAP
    return figure


def _width(column: Column) -> float:
    """Inches of a column, with the gap before it."""
    return max(text_width(text, TEXT) for text in (column.heading, *column.texts)) + _GAP


def _prepare(axes: Axes, rows: int, panel: BarPanel) -> None:
    axes.set_xlim(0, panel.end)
    axes.set_ylim(max(rows, 2) - 0.5, -0.5)
    if panel.percent:
        draw_axis(axes, [0, 0.25, 0.5, 0.75, 1], lambda tick: f"{100 * tick:.0f} %", panel.label, gap=4)
    else:
        ticks = MaxNLocator(6, integer=panel.whole).tick_values(0, panel.end)
        draw_axis(axes, ticks, lambda tick: f"{tick:,.10g}", panel.label, gap=4)


def _write_labels(axes: Axes, plan: Bars, width: float) -> None:
    """Row labels as plain texts: tick labels take three times as long to draw."""
    style: dict[str, Any] = {"ha": "right", "va": "center_baseline", "fontsize": TEXT}
    where = axes.get_yaxis_transform()
    for row, label in enumerate(plan.labels):
        colour = FAINT if row == plan.rest else INK
        axes.text(-0.07 / width, row, label, transform=where, color=colour, **style)


def _write_column(axes: Axes, column: Column, x: float) -> None:
    """``x`` is the right edge, in widths of the panel."""
    where = axes.get_yaxis_transform()
    axes.text(x, -0.62, column.heading, transform=where, ha="right", va="bottom", fontsize=TEXT, color=FAINT)
    for row, text in enumerate(column.texts):
        if text:
            axes.text(x, row, text, transform=where, ha="right", va="center_baseline", fontsize=TEXT)


def _fill(axes: Axes, panel: BarPanel) -> None:
    """Draw the bars, an artist per part (labelled with it), and what stands on them."""
    for part in panel.parts:
        low, high = part.rows - _BAR / 2, part.rows + _BAR / 2
        look: dict[str, Any] = {
            "colours": part.colour,
            "label": part.label,
            "edge": part.edge,
            "line": 0.4,
        }
        boxes(axes, part.left, part.right, low, high, **look)
    if panel.marks:
        label, x = panel.marks
        y = np.arange(len(x))
        axes.vlines(x, y - 0.45, y + 0.45, colors="white", linewidth=3.2, zorder=3)
        axes.vlines(x, y - 0.45, y + 0.45, colors=INK, linewidth=1.6, zorder=4, label=label)
    for middle, row, text, colour in panel.inside:
        axes.text(middle, row, text, ha="center", va="center_baseline", fontsize=SMALL, color=colour)
    if panel.cut is not None:
        where = axes.get_yaxis_transform()
        axes.text(
            1, panel.cut, " cut off »", transform=where, ha="right", va="center_baseline",
            fontsize=SMALL, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
