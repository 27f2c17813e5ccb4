"""Draws calls on a common time axis: boxes with their names in them, or above them at the ends of poles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from nsysprof.charts.axis import draw_time_axis
from nsysprof.charts.marks import DPI, CallBlock, CallLane, CallPanel, Calls, Flag
from nsysprof.charts.palette import FAINT, IDLE, INK, text_on
from nsysprof.charts.style import SMALL, TEXT, WIDTH, boxes, framed, heading_height, text_width
from nsysprof.core.text import shorten

_LEFT, _PLOT = 1.85, 9.6  # inches of labels and of the axis; what is left holds texts that begin near its end
_TITLE, _LINE, _BETWEEN = 0.26, 0.15, 0.2  # of a title, of a line of names, and between calls
_BASE = 0.07  # inches between a lane and the names above it
_AXIS = 0.62
_PAD = 0.06
_MOST_POLES, _MOST_LEVELS = 16, 8
_SHORTEST = 8  # characters of a shortened name
_NARROW, _APART = 0.05, 0.012  # inches of the narrowest bracket, and from pole to pole
_WEDGE = "#f1f1f1"


@dataclass(frozen=True)
class _Pole:
    """A name above a lane: where its pole stands (inches from the left of the axis), how high, what it says, and of
    several boxes from where to where they go.
    """

    x: float
    level: int
    text: str
    bracket: tuple[float, float] | None


@dataclass(frozen=True)
class _Laid:
    """A lane with its place: ``top`` and ``low`` in inches from the top of the panel, and its names."""

    lane: CallLane
    top: float
    low: float
    poles: Sequence[_Pole]
    inside: Sequence[Flag]


@dataclass(frozen=True)
class _LaidBlock:
    """A call with its place in the panel."""

    block: CallBlock
    title: float
    lanes: Sequence[_Laid]


def draw_calls(plan: Calls) -> Figure:
    """The chart as a figure with an `Axes` per panel: x in ns, y in inches from above."""
    laid = [_lay_out(panel) for panel in plan.panels]
    heights = [_height(blocks) for blocks in laid]
    y = heading_height(plan.heading) + 0.15
    notes = 0.2 if plan.heading.notes else 0.0
    height = y + sum(heights) + _AXIS * len(heights) + notes
    figure = framed(plan.heading, height)
    axes = []
    for panel, blocks, high in zip(plan.panels, laid, heights, strict=True):
        y += high
        one = figure.add_axes((_LEFT / WIDTH, 1 - y / height, _PLOT / WIDTH, high / height))
        one.patch.set_visible(False)
        _draw_panel(one, panel, blocks, high)
        axes.append(one)
        y += _AXIS
    if plan.zoomed:
        closer, block = plan.zoomed
        _draw_wedge(figure, axes, laid, closer, block)
    return figure


def _height(blocks: Sequence[_LaidBlock]) -> float:
    return blocks[-1].lanes[-1].low + 0.06 if blocks and blocks[-1].lanes else _TITLE


def _lay_out(panel: CallPanel) -> list[_LaidBlock]:
    """Where everything of a panel goes."""
    out: list[_LaidBlock] = []
    y = 0.0
    for block in panel.blocks:
        title = y
        y += _TITLE
        lanes = []
        for lane in block.lanes:
            poles, inside = _place(lane.flags, panel.length, lane.height)
            levels = max((pole.level for pole in poles), default=-1) + 1
            y += levels * _LINE + (_BASE if levels else 0.0)
            lanes.append(_Laid(lane, y, y + lane.height, poles, inside))
            y += lane.height + 0.05
        out.append(_LaidBlock(block, title, lanes))
        y += _BETWEEN
    return out


def _place(flags: Sequence[Flag], length: int, height: float) -> tuple[list[_Pole], list[Flag]]:
    """Which names go on poles, and which into their boxes; the others are left out."""
    inside: list[Flag] = []
    wanted: list[_Pole] = []
    for flag in flags:
        fits = _fits(flag, length, height)
        if fits and flag.count == 1:
            inside.append(flag)
            continue
        tried = _levels([*wanted, _pole(flag, length)]) if flag.aloft and len(wanted) < _MOST_POLES else []
        if tried and max(pole.level for pole in tried) < _MOST_LEVELS:
            wanted = tried
        elif fits:
            inside.append(flag)
    return wanted, inside


def _fits(flag: Flag, length: int, height: float) -> bool:
    room = (flag.outer - flag.inner) / length * _PLOT - 2 * _PAD
    return max(text_width(flag.text, SMALL), text_width(flag.amount, SMALL)) <= room and height > 2 * _LINE


def _pole(flag: Flag, length: int) -> _Pole:
    """A pole in the middle of the box, or of the bracket over several."""
    inch = _PLOT / length
    wide = flag.count > 1 and (flag.end - flag.start) * inch >= _NARROW
    left, right = (flag.start, flag.end) if wide else (flag.inner, flag.outer)
    x = (left + right) / 2 * inch
    bracket = (left * inch, right * inch) if wide else None
    return _Pole(x, 0, _fitting(flag, WIDTH - _LEFT - x - 0.1), bracket)


def _fitting(flag: Flag, room: float) -> str:
    """The text on a pole, shortened where it would leave the picture."""
    text = flag.aloft
    for _ in range(3):
        width = text_width(text, SMALL) + 0.05
        if width <= room:
            return text
        most = int(len(text) * room / width) - 1
        if most < _SHORTEST:
            return ""
        text = shorten(text, most)
    return ""


def _levels(wanted: Sequence[_Pole]) -> list[_Pole]:
    """The poles from right to left, each higher than all whose poles would cross its text; none where two are in one
    place, or a text has no room.
    """
    poles: list[_Pole] = []
    for pole in sorted(wanted, key=lambda pole: -pole.x):
        end = pole.x + text_width(pole.text, SMALL) + 0.12
        if not pole.text or any(other.x - pole.x < _APART for other in poles):
            return []
        level = max((other.level for other in poles if other.x < end), default=-1) + 1
        poles.append(replace(pole, level=level))
    return poles


# ---- drawing


def _draw_panel(axes: Axes, panel: CallPanel, blocks: Sequence[_LaidBlock], high: float) -> None:
    axes.set_xlim(0, panel.length)
    axes.set_ylim(high, 0)
    for laid in blocks:
        axes.text(
            0, laid.title + 0.06, laid.block.title, fontsize=TEXT + 0.5, weight="bold", color=INK,
            ha="left", va="top",
        )  # fmt: skip
        for number, lane in enumerate(laid.lanes):
            _draw_lane(axes, panel, laid.block, lane, ending=number == 0)
    draw_time_axis(axes, panel.length, panel.label)


def _draw_lane(axes: Axes, panel: CallPanel, block: CallBlock, laid: _Laid, *, ending: bool) -> None:
    """The idle time behind, the boxes on it, their names, and at the end how long the call is."""
    lane, inch = laid.lane, panel.length / _PLOT
    pixel = inch / DPI
    middle = (laid.top + laid.low) / 2
    if lane.flags or ending:
        back = boxes(
            axes, np.array(0.0), np.array(max(block.length, pixel)), np.array(laid.top), np.array(laid.low),
            colours=IDLE, label="call",
        )  # fmt: skip
        back.set_zorder(1)
    axes.text(-0.1 * inch, middle, lane.label, fontsize=SMALL, ha="right", va="center_baseline")
    if len(lane.start):
        right = np.maximum(lane.end, lane.start + pixel)
        line = np.where(right - lane.start > 5 * pixel, 0.5, 0.0)
        level = np.array(1.0) if lane.level is None else lane.level
        edges = laid.low - (laid.low - laid.top) * level, np.array(laid.low)
        marks = boxes(
            axes, lane.start, right, *edges, colours=lane.colours, label=lane.label, edge="white", line=line
        )
        marks.set_zorder(2)
    for flag in laid.inside:
        colour = text_on(flag.colour) if flag.colour != IDLE else FAINT
        x = (flag.inner + flag.outer) / 2
        for text, y in ((flag.text, middle - _LINE / 2), (flag.amount, middle + _LINE / 2)):
            axes.text(x, y, text, color=colour, fontsize=SMALL, ha="center", va="center_baseline", zorder=3)
    _draw_poles(axes, laid, inch)
    if ending:
        end = max(block.length, int(lane.end.max(initial=0)))
        axes.text(
            end + 0.08 * inch, middle, block.amount, fontsize=TEXT + 0.5, weight="bold", ha="left",
            va="center_baseline", zorder=4,
        )  # fmt: skip


def _draw_poles(axes: Axes, laid: _Laid, inch: float) -> None:
    """The names above a lane, each beside the end of its pole, and brackets over boxes that share one."""
    lines = []
    for pole in laid.poles:
        y = laid.top - _BASE - _LINE * (pole.level + 0.5)
        foot = laid.top + 0.06
        if pole.bracket:
            foot = laid.top - 0.035
            left, right = (x * inch for x in pole.bracket)
            lines.append([(left, laid.top - 0.005), (left, foot), (right, foot), (right, laid.top - 0.005)])
        lines.append([(pole.x * inch, foot), (pole.x * inch, y - 0.05)])
        axes.text(
            (pole.x + 0.04) * inch, y, pole.text, fontsize=SMALL, ha="left", va="center_baseline", zorder=4
        )
    if lines:
        axes.add_collection(
            LineCollection(lines, colors=INK, linewidths=0.6, zorder=3, label="poles", clip_on=False),
            autolim=False,
        )


def _draw_wedge(
    figure: Figure, axes: Sequence[Axes], laid: Sequence[Sequence[_LaidBlock]], closer: int, block: int
) -> None:
    """A pale wedge from the short call to the panel that shows it more closely."""
    near, far = axes[closer], axes[1 - closer]
    small = laid[1 - closer][block]
    above = closer > 1 - closer  # the panel is below the call
    y = small.lanes[-1].low if above else small.lanes[0].top
    edge = 0.0 if above else near.get_ylim()[0]
    corners = [(0.0, y, far), (float(small.block.length), y, far)]
    corners += [(near.get_xlim()[1], edge, near), (0.0, edge, near)]
    points = [
        figure.transFigure.inverted().transform(one.transData.transform((x, at))) for x, at, one in corners
    ]
    figure.add_artist(Polygon(np.array(points), closed=True, facecolor=_WEDGE, edgecolor="none", zorder=-1))
