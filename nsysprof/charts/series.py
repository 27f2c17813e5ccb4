"""Draws times of steps, one after the other, and beside them how they are distributed."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nsysprof.charts.axis import draw_axis
from nsysprof.charts.marks import Series, SeriesPanel, round_ticks
from nsysprof.charts.palette import FAINT, INK, RULE, readable
from nsysprof.charts.panels import write_beside
from nsysprof.charts.places import Places, around
from nsysprof.charts.style import (
    MARGIN,
    SMALL,
    WIDTH,
    boxes,
    inches,
    panel_column,
    size_of,
    write,
    write_title,
)
from nsysprof.core.units import scale_ns

_LEFT, _WIDE, _APART, _SIDE = 0.75, 9.6, 0.12, WIDTH - MARGIN - 0.75 - 9.6 - 0.12  # inches
_ONE, _SEVERAL, _AXIS, _TITLE = 4.2, 2.5, 0.62, 0.34
_LOGARITHMIC = 6.0  # times the lowest level: times that go further up have a logarithmic axis
_LEAST_BINS, _BINS = 12, 60  # of few steps few, so that bars are more than lines
_MOST_AVOIDED = 600  # typical steps that names keep off
_LEAST_BAR = 0.02  # of the width, so that a single step shows


def draw_series(plan: Series) -> Figure:
    """Draw the chart: two `Axes` per panel, of the steps and of their distribution, with a common axis of times."""
    high = _ONE if len(plan.panels) == 1 else _SEVERAL
    sizes = [(_TITLE, high)] * len(plan.panels)
    foot = 0.2 if plan.heading.notes else 0.0
    figure, every = panel_column(
        plan.heading, sizes, left=_LEFT, wide=_WIDE, first=0.1, between=_AXIS, foot=foot
    )
    for axes, panel in zip(every, plan.panels, strict=True):
        place = axes.get_position()
        left, wide = (_LEFT + _WIDE + _APART) / WIDTH, _SIDE / WIDTH
        side = figure.add_axes((left, place.y0, wide, place.height))
        _draw_times(axes, panel)
        _draw_distribution(side, axes, panel)
    return figure


def _draw_times(axes: Axes, panel: SeriesPanel) -> None:
    low, high = float(panel.y.min()), float(panel.y.max())
    reach = max(float(panel.x.max()), 1.0)
    axes.set_xlim(-0.01 * reach, 1.01 * reach)
    logarithmic = high > _LOGARITHMIC * float(np.median(panel.y))
    if logarithmic:
        axes.set_yscale("log")
        margin = (high / low) ** 0.06
        axes.set_ylim(low / margin, high * margin)
        ticks = round_ticks(low / margin, high * margin)
    else:
        margin = 0.08 * (high - low) or 0.05 * high
        axes.set_ylim(max(low - margin, 0.0), high + margin)
        ticks = [*map(float, MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(*axes.get_ylim()))]
    numbers = [tick for tick in MaxNLocator(10, integer=True).tick_values(0, reach) if tick >= 0]
    draw_axis(axes, numbers, lambda tick: f"{tick:,.0f}", "step", gap=2)
    divisor, unit = scale_ns(high)
    bottom, top = axes.get_ylim()
    for tick in ticks:
        if bottom <= tick <= top:
            axes.axhline(tick, color=RULE, linewidth=0.5, zorder=0.5)
            write(axes, -0.06 / _WIDE, tick, f"{tick / divisor:,.4g}", "right", at=axes.get_yaxis_transform())
    write_title(axes, 1 + 0.08 / size_of(axes)[1], f"{panel.title} ({unit})")
    _draw_points(axes, panel)


def _draw_points(axes: Axes, panel: SeriesPanel) -> None:
    """Draw the level, the steps above it, and the names of the slow ones."""
    axes.plot(*panel.level, color=FAINT, linewidth=0.9, zorder=2, label="expected")
    size = 4.5 if len(panel.x) <= 200 else 3.0 if len(panel.x) <= 1000 else 1.8
    for code, colour in enumerate(panel.colours):
        mine = panel.colour == code
        if mine.any():
            width = size if code == 0 else max(size, 4.5)
            look: dict[str, Any] = {"color": colour, "markersize": width, "mew": 0, "clip_on": False}
            axes.plot(panel.x[mine], panel.y[mine], "o", zorder=3 + (code > 0), **look)
    places = Places(*size_of(axes))
    marks = [around(inches(axes, x, y), 0.05) for x, y, *_ in panel.names]
    places.mark(*marks)
    odd = np.flatnonzero((panel.colour > 0) | (len(panel.x) <= _MOST_AVOIDED))
    level = np.interp(np.linspace(0, float(panel.x.max()), 200), *panel.level)
    lines = zip(np.linspace(0, float(panel.x.max()), 200), level, strict=True)
    points = [*zip(panel.x[odd], panel.y[odd], strict=True), *lines]
    places.take(*(around(inches(axes, float(x), float(y)), 0.04) for x, y in points))
    for mark, (_, _, text, colour) in zip(marks, panel.names, strict=True):
        write_beside(axes, places, mark, text, readable(colour))


def _draw_distribution(side: Axes, axes: Axes, panel: SeriesPanel) -> None:
    """Draw how many steps take how long, with those of each colour beside those before it."""
    for own in (side.xaxis, side.yaxis):
        own.set_visible(False)
    side.spines[["top", "right", "bottom"]].set_visible(False)
    side.spines["left"].set_color(RULE)
    side.set_yscale(axes.get_yscale())
    bottom, top = axes.get_ylim()
    side.set_ylim(bottom, top)
    spaced = np.geomspace if axes.get_yscale() == "log" else np.linspace
    bins = int(np.clip(3 * np.sqrt(len(panel.all_y)), _LEAST_BINS, _BINS))
    edges = spaced(bottom, top, bins + 1)
    counts = [
        np.histogram(panel.all_y[panel.all_colour == code], edges)[0] for code in range(len(panel.colours))
    ]
    most = max(int(np.sum(counts, axis=0).max()), 1)
    side.set_xlim(0, 1.02)
    left = np.zeros(bins)
    for count, colour in zip(counts, panel.colours, strict=True):
        some = np.flatnonzero(count)
        right = left + np.where(count > 0, np.maximum(count / most, _LEAST_BAR), 0)
        if len(some):
            boxes(side, left[some], right[some], edges[some], edges[some + 1], colour, label="distribution")
        left = right
    text = f"{len(panel.all_y):,} steps"
    write(side, 0, -0.075 / size_of(side)[1], text, "left", "top", size=SMALL, at=side.transAxes, color=INK)
    write_title(side, 1 + 0.08 / size_of(side)[1], "how many take how long")
