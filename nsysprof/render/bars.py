"""The frame that the two bar charts share: rows with labels, panels of stacked bars, and columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nsysprof.kernels import FAMILIES
from nsysprof.render.chart_rows import ChartRows
from nsysprof.render.style import (
    COLOURS,
    FAINT,
    INK,
    MARGIN,
    RULE,
    SMALL,
    TEXT,
    WIDTH,
    Numbers,
    boxes,
    footer,
    header,
    header_height,
    legend,
    legend_height,
    light,
    new_figure,
    text_width,
)

_ROW = 0.27  # inches
_BAR = 0.74  # of a row
_GAP = 0.22  # inches between label, panels and columns
_AXIS = 0.55  # below the panels


@dataclass(frozen=True)
class Column:
    """Numbers beside the bars, as text; right-aligned below their heading."""

    heading: str
    texts: Sequence[str]

    @property
    def width(self) -> float:
        """Inches, with the gap before it."""
        return max(text_width(text, TEXT) for text in (self.heading, *self.texts)) + _GAP


@dataclass(frozen=True)
class Frame:
    """A figure with one `Axes` per panel; rows are at y = 0, 1, … from top to bottom."""

    figure: Figure
    panels: list[Axes]


def frame(
    rows: ChartRows,
    *,
    title: str,
    subtitle: str,
    entries: Sequence[tuple[str, str]],
    panels: Sequence[tuple[str, float]],
    columns: Sequence[Column],
    notes: Sequence[str],
) -> Frame:
    """The figure with everything but bars. ``panels`` are (axis label, part of the free width); ``columns`` stand
    right of the first panel; ``entries`` are those of the legend.
    """
    top = header_height(title) + legend_height([label for label, _ in entries]) + 0.3
    bottom = _AXIS + (0.2 if notes else 0)
    height = top + max(_ROW * len(rows), 2 * _ROW) + bottom
    figure = new_figure(height)
    header(figure, title, subtitle)
    legend(figure, entries, header_height(title))
    footer(figure, notes)
    labels = max(text_width(label, TEXT) for label in rows.labels) + MARGIN + 0.1
    taken = labels + sum(column.width for column in columns) + _GAP * len(panels) + MARGIN
    free = (WIDTH - taken) / sum(part for _, part in panels)
    x, out = labels, []
    for number, (label, part) in enumerate(panels):
        axes = figure.add_axes((x / WIDTH, bottom / height, free * part / WIDTH, 1 - (top + bottom) / height))
        _prepare(axes, len(rows), label)
        out.append(axes)
        x += free * part
        if number == 0:
            for column in columns:
                x += column.width
                _write_column(axes, column, (x - labels) / (free * part))
        x += _GAP
    _write_labels(out[0], rows)
    return Frame(figure, out)


def _prepare(axes: Axes, rows: int, label: str) -> None:
    axes.set_ylim(max(rows, 2) - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(label, fontsize=TEXT, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=3)
    axes.grid(axis="x", color=RULE, linewidth=0.5)


def _write_labels(axes: Axes, rows: ChartRows) -> None:
    """Row labels as plain texts: tick labels take three times as long to draw."""
    style: dict[str, Any] = {"ha": "right", "va": "center_baseline", "fontsize": TEXT}
    where = axes.get_yaxis_transform()
    right = -0.07 / (axes.get_position().width * WIDTH)
    for row, label in enumerate(rows.labels):
        colour = FAINT if row == rows.rest else INK
        axes.text(right, row, label, transform=where, color=colour, **style)


def _write_column(axes: Axes, column: Column, x: float) -> None:
    """``x`` is the right edge, in widths of the panel."""
    where = axes.get_yaxis_transform()
    axes.text(x, -0.62, column.heading, transform=where, ha="right", va="bottom", fontsize=TEXT, color=FAINT)
    for row, text in enumerate(column.texts):
        if text:
            axes.text(x, row, text, transform=where, ha="right", va="center_baseline", fontsize=TEXT)


def stack(axes: Axes, values: Numbers, *, scale: float = 1.0) -> Numbers:
    """Draw a stacked bar per row, an artist per family (labelled with it); returns where each bar ends.

    ``values`` has a row per bar and a column per family; ``scale`` turns it into the unit of the axis.
    """
    right = np.cumsum(values, axis=1) / scale
    left = right - values / scale
    y = np.arange(len(values))
    for number, family in enumerate(FAMILIES):
        some = np.flatnonzero(values[:, number] > 0)
        if len(some):
            boxes(
                axes,
                left[some, number],
                right[some, number],
                y[some] - _BAR / 2,
                y[some] + _BAR / 2,
                colours=COLOURS[family],
                label=family,
                edge="white",
                line=0.4,
            )
    ends: Numbers = right[:, -1] if len(values) else np.empty(0)
    return ends


def add_bars(axes: Axes, left: Numbers, right: Numbers, *, colour: str, label: str) -> None:
    """One more part behind the bars of all rows where it has a length."""
    some = np.flatnonzero(right > left)
    if len(some):
        low, high = some - _BAR / 2, some + _BAR / 2
        boxes(axes, left[some], right[some], low, high, colours=colour, label=label, edge="#b0b0b0", line=0.4)


def write_inside(
    axes: Axes, values: Numbers, total: Numbers, text: Callable[[float], str], least: float
) -> None:
    """Write into each part that holds at least ``least`` of the axis what part of ``total`` it is."""
    left = np.cumsum(values, axis=1) - values
    for row, number in zip(*np.nonzero(values >= least), strict=True):
        colour = "black" if light(COLOURS[FAMILIES[number]]) else "white"
        middle = left[row, number] + values[row, number] / 2
        share = text(values[row, number] / total[row])
        axes.text(middle, row, share, ha="center", va="center_baseline", fontsize=SMALL, color=colour)


def percent_axis(axes: Axes) -> None:
    """An axis from 0 to 100 %."""
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
