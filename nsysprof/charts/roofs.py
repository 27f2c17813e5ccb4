"""Draw rooflines: bubbles or paths below slopes and ceilings, with names if there is room."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nsysprof.charts.marks import Axis, Bubble, Line, Roofs
from nsysprof.charts.palette import INK, readable
from nsysprof.charts.panels import DASHES, along, write_beside
from nsysprof.charts.places import Box, Places, around, meet
from nsysprof.charts.style import TEXT, WIDTH, draw_axis, draw_plane, inches, panel_column, text_width, write

_LEFT, _RIGHT = 0.85, 0.35  # inches
_HIGH, _ROW, _AXIS, _TITLE = 5.2, 0.85, 0.62, 0.3
_MAX_BUBBLE, _MIN_BUBBLE = 0.62, 0.09  # inches across
_LINE = 0.15  # of a text
_ARROW = 0.32  # inches
_MAX_NAMED = 40
_WIDE = WIDTH - _LEFT - _RIGHT


def draw_roofs(plan: Roofs) -> Figure:
    """Draw the chart: an `Axes` with the bubbles and, if ``plan.flat`` has bubbles, a second `Axes` below."""
    rows = sorted({bubble.y for bubble in plan.flat})
    sizes = [(0.0, _HIGH), *([(_TITLE, _ROW * len(rows))] if rows else [])]
    notes = 0.25 if plan.heading.notes else 0.0
    figure, (axes, *below) = panel_column(
        plan.heading, sizes, left=_LEFT, wide=_WIDE, first=0.35, between=_AXIS, foot=notes
    )
    _draw_logarithmic(axes, plan)
    for flat in below:
        _draw_flat(flat, plan, rows, _ROW * len(rows))
    return figure


def _draw_logarithmic(axes: Axes, plan: Roofs) -> None:
    draw_plane(axes, *_limits(plan))
    places = Places(_WIDE, _HIGH)
    marks = _marks(axes, plan.bubbles)
    places.mark(*marks)
    _draw_arrows(axes, plan.bubbles, marks, places)
    for rise, text in plan.slopes:
        _draw_slope(axes, plan, rise, text, places)
    _draw_paths(axes, plan, places)
    _draw_ceilings(axes, plan, places)
    _draw_bubbles(axes, plan.bubbles, marks, places)


def _limits(plan: Roofs) -> tuple[Axis, Axis]:
    """Both axes, with room around all marks and the ridges."""
    points = [(one.x, one.y) for one in plan.bubbles]
    points += [point for path in plan.paths for point in zip(path.x, path.y, strict=True)]
    x = [x for x, _ in points] + [each.y / each.slope for each in plan.ceilings if each.slope] or [1.0]
    y = [y for _, y in points] + [each.y for each in plan.ceilings] or [1.0]
    across, up = (min(x) / 5, max(x) * 4), (min(y) / 3, max(y) * 2.2)
    return Axis(plan.labels[0], *across, _decades(*across)), Axis(plan.labels[1], *up, _decades(*up))


def _decades(low: float, high: float) -> list[tuple[float, str]]:
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [(10.0**power, f"{10.0**power:,.10g}") for power in powers]


def _draw_slope(axes: Axes, plan: Roofs, slope: float, text: str, places: Places) -> None:
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    above = [each for each in plan.ceilings if each.slope == slope]
    begin = max(left, bottom / slope)
    end = min(right, max((each.y for each in above), default=top) / slope)
    if begin >= end:
        return
    dashed = bool(above) and all(each.dashed for each in above)
    axes.plot(
        [begin, end], [begin * slope, end * slope], color=INK, linewidth=1.3, label=text, zorder=2,
        linestyle=DASHES["level" if dashed else "solid"],
    )  # fmt: skip
    for x in np.geomspace(begin, end, 80).tolist():
        places.take(around(inches(axes, x, x * slope), 0.05))
    if not text:
        return
    first, last = (inches(axes, x, x * slope) for x in (begin, end))
    angle = math.atan2(last[1] - first[1], last[0] - first[0])
    middle = begin**0.55 * end**0.45
    axes.annotate(
        text, (middle, middle * slope), xytext=(-5, 5), textcoords="offset points",
        rotation=math.degrees(angle), fontsize=TEXT, rotation_mode="anchor", ha="center", va="bottom", zorder=6,
    )  # fmt: skip
    across, up = inches(axes, middle, middle * slope)
    half = text_width(text, TEXT) / 2
    for step in np.linspace(-half, half, 9).tolist():
        places.take(around((across + step * math.cos(angle) - 0.1, up + step * math.sin(angle) + 0.12), 0.12))


def _draw_paths(axes: Axes, plan: Roofs, places: Places) -> None:
    """Draw paths with the names of their points, before the texts of ceilings, which have more possible places."""
    for path in plan.paths:
        axes.plot(
            path.x, path.y, color=path.colour, marker=path.marker, markersize=6.5, linewidth=1.0,
            linestyle=DASHES[path.look], label=path.label, zorder=4,
        )  # fmt: skip
        places.take(*along(axes, path))
    for each in plan.ceilings if plan.paths else ():
        _, level = inches(axes, axes.get_xlim()[0], each.y)
        places.take(Box(0, _WIDE, level - 0.03, level + 0.03))
    for mark, name, colour in _named_points(axes, plan.paths):
        write_beside(axes, places, mark, name, colour)


def _named_points(axes: Axes, paths: Sequence[Line]) -> list[tuple[Box, str, str]]:
    """The named points of paths as place, name and colour; of equal names close together, only the first."""
    points: list[tuple[Box, str, str]] = []
    for path in paths:
        for x, y, name in zip(path.x, path.y, path.names, strict=True):
            mark = around(inches(axes, x, y), 0.05)
            near = [
                other
                for other, same, _ in points
                if same == name and np.hypot(other.left - mark.left, other.low - mark.low) < 0.1
            ]
            if name and not near:
                points.append((mark, name, readable(path.colour)))
    return points


def _draw_ceilings(axes: Axes, plan: Roofs, places: Places) -> None:
    """Draw the ceilings, from their slope to the right, each with its text above or below it, away from marks."""
    left, right = axes.get_xlim()
    levels = []
    for each in plan.ceilings:
        begin = max(left, each.y / each.slope) if each.slope else left
        axes.plot(
            [begin, right], [each.y, each.y], color=INK, linewidth=1.3, label=each.text, zorder=2,
            linestyle=DASHES["level" if each.dashed else "solid"],
        )  # fmt: skip
        start, level = inches(axes, begin, each.y)
        levels.append((each.text, start, level, Box(start, _WIDE, level - 0.03, level + 0.03)))
    for text, start, level, line in levels:
        wide = text_width(text, TEXT) + 0.06
        tried = [
            Box(end - wide, end, low, low + _LINE)
            for end in (_WIDE, start + 0.25 + wide, (start + _WIDE + wide) / 2)
            for low in (level + 0.04, level - 0.04 - _LINE)
        ]
        others = [box for name, _, _, box in levels if name != text]
        free = (box for box in tried if places.free(box) and not any(meet(box, other) for other in others))
        box = next(free, tried[0])
        middle, up = (box.left + box.right) / 2 / _WIDE, (box.low + box.high) / 2 / _HIGH
        write(axes, middle, up, text, size=TEXT, at=axes.transAxes, zorder=6)
        places.take(line, box)


def _draw_flat(axes: Axes, plan: Roofs, rows: Sequence[float], high: float) -> None:
    """Draw a linear axis from 0, with a line at the limit that no bubble can exceed."""
    most = max(bubble.x for bubble in plan.flat)
    end = max(most, plan.flat_end[0] if plan.flat_end else 0.0) * 1.09 or 1.0
    axes.set_xlim(0, end)
    axes.set_ylim(0, len(rows))
    ticks = MaxNLocator(10, steps=[1, 2, 5, 10]).tick_values(0, end)
    draw_axis(axes, ticks, lambda tick: f"{tick:,.6g}", plan.labels[2], gap=2)
    axes.spines["left"].set_visible(False)
    where = axes.transAxes
    write(axes, 0, 1 + 0.08 / high, plan.labels[3], "left", "bottom", size=TEXT + 0.5, at=where, weight="bold")
    places = Places(_WIDE, high)
    if plan.flat_end:
        x, text = plan.flat_end
        axes.plot([x, x], [0, len(rows)], color=INK, linewidth=1.3, label=text, zorder=2)
        across = x / end * _WIDE
        places.take(Box(across - 0.03, across + 0.03, 0.0, high))
        write(axes, across / _WIDE, 1 + 0.05 / high, text, va="bottom", size=TEXT, at=where)
    level = {row: len(rows) - 1 - number + 0.35 for number, row in enumerate(rows)}
    bubbles = [Bubble(one.x, level[one.y], one.size, one.colour, one.text) for one in plan.flat]
    marks = _marks(axes, bubbles)
    places.mark(*marks)
    _draw_bubbles(axes, bubbles, marks, places)


def _marks(axes: Axes, bubbles: Sequence[Bubble]) -> list[Box]:
    return [
        around(inches(axes, one.x, one.y), max(math.sqrt(one.size) * _MAX_BUBBLE, _MIN_BUBBLE) / 2) for one in bubbles
    ]


def _draw_arrows(axes: Axes, bubbles: Sequence[Bubble], marks: Sequence[Box], places: Places) -> None:
    """Draw an arrow to the right of each bubble whose true place is to the right of the axes."""
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
    """Draw small bubbles on top of large ones, and write the names of the most important ones."""
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
    for bubble, mark in zip(bubbles[:_MAX_NAMED], marks, strict=False):
        write_beside(axes, places, mark, bubble.text, bubble.colour)
