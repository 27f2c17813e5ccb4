"""Draws bubbles below a slope and ceilings, with a name beside each as far as there is room."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from nsysprof.charts.axis import draw_axis
from nsysprof.charts.marks import Bubble, Roofs
from nsysprof.charts.palette import FAINT, INK, RULE
from nsysprof.charts.places import Box, Places, free_place
from nsysprof.charts.style import SMALL, TEXT, WIDTH, framed, heading_height, text_width

_LEFT, _RIGHT = 0.85, 0.35  # inches
_HIGH, _ROW, _AXIS, _TITLE = 5.2, 0.85, 0.62, 0.3
_LARGEST, _SMALLEST = 0.62, 0.09  # inches across
_LINE = 0.15  # of a text
_ARROW = 0.32  # inches
_MOST_NAMED = 40
_WIDE = WIDTH - _LEFT - _RIGHT


def draw_roofs(plan: Roofs) -> Figure:
    """The chart as a figure: an `Axes` with the bubbles, and one below with the flat ones, if there are any."""
    rows = sorted({bubble.y for bubble in plan.flat})
    top = heading_height(plan.heading) + 0.35
    low = _ROW * len(rows)
    below = _TITLE + low + _AXIS if rows else 0.0
    notes = 0.25 if plan.heading.notes else 0.0
    height = top + _HIGH + _AXIS + below + notes
    figure = framed(plan.heading, height)
    axes = figure.add_axes((_LEFT / WIDTH, 1 - (top + _HIGH) / height, _WIDE / WIDTH, _HIGH / height))
    _draw_logarithmic(axes, plan)
    if rows:
        bottom = _AXIS + notes
        flat = figure.add_axes((_LEFT / WIDTH, bottom / height, _WIDE / WIDTH, low / height))
        _draw_flat(flat, plan, rows, low)
    return figure


# ---- below the roofs


def _draw_logarithmic(axes: Axes, plan: Roofs) -> None:
    (left, bottom), (right, top) = _limits(plan)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    for axis, ends in ((axes.xaxis, (left, right)), (axes.yaxis, (bottom, top))):
        ticks = _decades(*ends)
        axis.set_ticks(ticks, [f"{tick:,.10g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=3, labelsize=TEXT)
    axes.grid(visible=True, color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(plan.labels[0], fontsize=TEXT + 0.5, loc="left")
    axes.text(0, 1.015, plan.labels[1], transform=axes.transAxes, fontsize=TEXT + 0.5, color=FAINT)
    places = Places(_WIDE, _HIGH)
    marks = _marks(axes, plan.bubbles, _HIGH)
    places.mark(*marks)
    _draw_arrows(axes, plan.bubbles, marks, places)
    _draw_slope(axes, plan, places)
    _draw_ceilings(axes, plan, places)
    _draw_bubbles(axes, plan.bubbles, marks, places)


def _limits(plan: Roofs) -> tuple[tuple[float, float], tuple[float, float]]:
    """The lower left and the upper right corner: all bubbles, and the ridges, with room around them."""
    ridges = [y / plan.slope[0] for y, _ in plan.ceilings] if plan.slope else []
    x = [bubble.x for bubble in plan.bubbles] + ridges or [1.0]
    y = [bubble.y for bubble in plan.bubbles] + [top for top, _ in plan.ceilings] or [1.0]
    return (min(x) / 5, min(y) / 3), (max(x) * 4, max(y) * 2.2)


def _decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _inches(axes: Axes, x: float, y: float, high: float) -> tuple[float, float]:
    """Where a point of the data is, from the lower left corner of the axes."""
    across, up = (axes.transData + axes.transAxes.inverted()).transform((x, y))
    return float(across) * _WIDE, float(up) * high


def _draw_slope(axes: Axes, plan: Roofs, places: Places) -> None:
    """The slope with its text, which no name may cross."""
    if plan.slope is None:
        return
    slope, text = plan.slope
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    begin = max(left, bottom / slope)
    end = min(right, max((y for y, _ in plan.ceilings), default=top) / slope)
    if begin >= end:
        return
    axes.plot([begin, end], [begin * slope, end * slope], color=INK, linewidth=1.3, label=text, zorder=2)
    for x in np.geomspace(begin, end, 80).tolist():
        places.take(_around(_inches(axes, x, x * slope, _HIGH), 0.05))
    first, last = (_inches(axes, x, x * slope, _HIGH) for x in (begin, end))
    angle = math.atan2(last[1] - first[1], last[0] - first[0])
    middle = begin**0.55 * end**0.45
    axes.annotate(
        text, (middle, middle * slope), xytext=(-5, 5), textcoords="offset points",
        rotation=math.degrees(angle), fontsize=TEXT, rotation_mode="anchor", ha="center", va="bottom", zorder=6,
    )  # fmt: skip
    across, up = _inches(axes, middle, middle * slope, _HIGH)
    half = text_width(text, TEXT) / 2
    for step in np.linspace(-half, half, 9).tolist():
        where = across + step * math.cos(angle) - 0.1, up + step * math.sin(angle) + 0.12
        places.take(_around(where, 0.12))


def _around(point: tuple[float, float], reach: float) -> Box:
    return Box(point[0] - reach, point[0] + reach, point[1] - reach, point[1] + reach)


def _draw_ceilings(axes: Axes, plan: Roofs, places: Places) -> None:
    """The ceilings, from the slope to the right, each with its text above or below it where no bubble is."""
    left, right = axes.get_xlim()
    levels = []
    for y, text in plan.ceilings:
        begin = max(left, y / plan.slope[0]) if plan.slope else left
        axes.plot([begin, right], [y, y], color=INK, linewidth=1.3, label=text, zorder=2)
        start, level = _inches(axes, begin, y, _HIGH)
        levels.append((text, start, level, Box(start, _WIDE, level - 0.03, level + 0.03)))
    for text, start, level, line in levels:
        wide = text_width(text, TEXT) + 0.06
        tried = [
            Box(end - wide, end, low, low + _LINE)
            for end in (_WIDE, start + 0.25 + wide, (start + _WIDE + wide) / 2)
            for low in (level + 0.04, level - 0.04 - _LINE)
        ]
        box = next((box for box in tried if places.free(box)), tried[0])
        axes.text(
            (box.left + box.right) / 2 / _WIDE, (box.low + box.high) / 2 / _HIGH, text, fontsize=TEXT,
            transform=axes.transAxes, ha="center", va="center_baseline", zorder=6,
        )  # fmt: skip
        places.take(line, box)


# ---- the flat ones


def _draw_flat(axes: Axes, plan: Roofs, rows: Sequence[float], high: float) -> None:
    """A linear axis from 0; the line at its end is what no bubble can exceed."""
    most = max(bubble.x for bubble in plan.flat)
    end = max(most, plan.flat_end[0] if plan.flat_end else 0.0) * 1.09 or 1.0
    axes.set_xlim(0, end)
    axes.set_ylim(0, len(rows))
    step = next(
        step
        for power in range(-3, 12)
        for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
        if end / step <= 10
    )
    draw_axis(axes, np.arange(0, end, step).tolist(), lambda tick: f"{tick:,.6g}", plan.labels[2], gap=2)
    axes.spines["left"].set_visible(False)
    axes.text(
        0, 1 + 0.08 / high, plan.labels[3], transform=axes.transAxes, fontsize=TEXT + 0.5, weight="bold",
        va="bottom",
    )  # fmt: skip
    places = Places(_WIDE, high)
    if plan.flat_end:
        x, text = plan.flat_end
        axes.plot([x, x], [0, len(rows)], color=INK, linewidth=1.3, label=text, zorder=2)
        across = x / end * _WIDE
        places.take(Box(across - 0.03, across + 0.03, 0.0, high))
        axes.text(
            across / _WIDE,
            1 + 0.05 / high,
            text,
            transform=axes.transAxes,
            fontsize=TEXT,
            ha="center",
            va="bottom",
        )
    level = {row: len(rows) - 1 - number + 0.35 for number, row in enumerate(rows)}
    bubbles = [Bubble(one.x, level[one.y], one.size, one.colour, one.text) for one in plan.flat]
    marks = _marks(axes, bubbles, high)
    places.mark(*marks)
    _draw_bubbles(axes, bubbles, marks, places)


# ---- bubbles and their names


def _marks(axes: Axes, bubbles: Sequence[Bubble], high: float) -> list[Box]:
    """The squares around the bubbles."""
    return [
        _around(_inches(axes, one.x, one.y, high), max(math.sqrt(one.size) * _LARGEST, _SMALLEST) / 2)
        for one in bubbles
    ]


def _draw_arrows(axes: Axes, bubbles: Sequence[Bubble], marks: Sequence[Box], places: Places) -> None:
    """To the right of what belongs further right than the axes reach."""
    for bubble, mark in zip(bubbles, marks, strict=True):
        if bubble.beyond:
            level = (mark.low + mark.high) / 2
            tip = mark.right + _ARROW
            axes.annotate(
                "", (tip / _WIDE, level / _HIGH), xytext=(mark.right / _WIDE, level / _HIGH),
                xycoords="axes fraction", arrowprops={"arrowstyle": "->", "color": bubble.colour, "lw": 1.4},
                zorder=5,
            )  # fmt: skip
            places.take(Box(mark.right, tip, level - 0.06, level + 0.06))


def _draw_bubbles(axes: Axes, bubbles: Sequence[Bubble], marks: Sequence[Box], places: Places) -> None:
    """Small ones on top of large ones, and the names of the first; a line leads to a name that stands apart."""
    if not bubbles:
        return
    order = sorted(range(len(bubbles)), key=lambda at: -bubbles[at].size)
    wide = [marks[at].right - marks[at].left for at in order]
    axes.add_collection(
        EllipseCollection(
            wide, wide, [0.0] * len(order), units="inches",
            offsets=[(bubbles[at].x, bubbles[at].y) for at in order], offset_transform=axes.transData,
            facecolors=[f"{bubbles[at].colour}b0" for at in order], edgecolors="white", linewidths=0.8,
            zorder=4, label="kernels", clip_on=False,
        ),
        autolim=False,
    )  # fmt: skip
    size = np.array([places.wide, places.high])
    for bubble, mark in zip(bubbles[:_MOST_NAMED], marks, strict=False):
        found = free_place(places, mark, text_width(bubble.text, SMALL), _LINE)
        if found is None:
            continue
        box, line = found
        places.put(box, line)
        if line:
            ends = np.array(line) / size
            axes.plot(
                *ends.T, transform=axes.transAxes, color=FAINT, linewidth=0.6, zorder=3, clip_on=False,
                label="to its name",
            )  # fmt: skip
        across, up = (np.array([box.left + box.right, box.low + box.high]) / 2 / size).tolist()
        axes.text(
            across, up, bubble.text, transform=axes.transAxes, fontsize=SMALL, color=bubble.colour,
            ha="center", va="center_baseline", zorder=5,
        )  # fmt: skip
