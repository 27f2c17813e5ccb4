"""Draw time axes with lanes: streams as pictures of busy columns; ranges, GPU ops and calls as labelled boxes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from nsysprof.charts import marks
from nsysprof.charts.palette import FAINT, IDLE, INK, RULE, text_on
from nsysprof.charts.style import (
    SMALL,
    TEXT,
    WIDTH,
    Edges,
    boxes,
    draw_time_axis,
    fitting,
    panel_column,
    shown_rows,
    size_of,
    text_width,
    write,
)
from nsysprof.core.arrays import Array

_MAX_TALL, _FLAT = 14, 0.75  # with more lanes they are flatter
_INNER = 0.86  # of a lane
_MAX_NAMES = 40  # written into the boxes of a lane
_MIN_LETTERS, _MIN_ALOFT = 12, 8  # of a shortened name, in a box and on a pole
_LEFT = 2.56  # inches of labels
_GAP_FROM = 0.12  # ribbons at least this tall (inches) have a gap between them
_TITLE_ABOVE, _AXIS_BELOW = 0.3, 0.58  # inches above and below a panel
# Inches where calls are drawn: of labels and of the axis; what is left holds texts that begin near its end.
_CALL_LEFT, _CALL_PLOT = 1.85, 9.6
_TITLE, _LINE, _BETWEEN = 0.26, 0.15, 0.2  # of a title, of a line of names, and between calls
_BASE = 0.07  # between a lane and the names above it
_CALL_AXIS = 0.62
_PAD = 0.06
_MAX_POLES, _MAX_LEVELS = 16, 8
_MIN_BRACKET, _MIN_APART = 0.05, 0.012  # of a bracket, and from pole to pole
_WEDGE = "#f1f1f1"


def draw_lanes(plan: marks.Lanes) -> Figure:
    """Draw the chart with one `Axes` per panel: x in ns after the panel's start, y in inches from the top."""
    sizes = [(_TITLE_ABOVE if panel.title else 0.0, _tops(panel)[-1]) for panel in plan.panels]
    foot = 0.2 if plan.heading.notes else 0.0
    figure, every = panel_column(
        plan.heading, sizes, left=_LEFT, wide=marks.PLOT, first=0.2, between=_AXIS_BELOW, foot=foot
    )
    for axes, panel in zip(every, plan.panels, strict=True):
        _draw_lane_panel(axes, panel)
    return figure


def _tops(panel: marks.LanePanel) -> list[float]:
    """The top of each lane in inches from the panel's top, and the end of the last lane."""
    flat = _FLAT if len(panel.lanes) > _MAX_TALL else 1.0
    high = [lane.height * (len(lane.labels) if isinstance(lane, marks.Ribbons) else 1) for lane in panel.lanes]
    return np.append(0.0, np.cumsum(high) * flat).tolist()


def _draw_lane_panel(axes: Axes, panel: marks.LanePanel) -> None:
    """Draw the lanes of a panel from top to bottom, with a line between processes."""
    tops = _tops(panel)
    _prepare(axes, panel, tops)
    process = None
    for lane, top, low in zip(panel.lanes, tops, tops[1:], strict=False):
        if process not in (None, lane.process):
            axes.axhline(top, color=FAINT, linewidth=0.6)
        process = lane.process
        if isinstance(lane, marks.Stream):
            _draw_stream(axes, lane, panel.length, top, low)
        elif isinstance(lane, marks.Ribbons):
            _draw_ribbons(axes, lane, panel.length, top)
        else:
            _draw_marks(axes, lane, (top, low), panel.length)
    if panel.title:
        axes.set_title(panel.title, loc="left", fontsize=TEXT + 1, weight="bold", color=INK, pad=5)
    draw_time_axis(axes, panel.length, panel.label)
    if panel.gaps:
        top = next(top for lane, top in zip(panel.lanes, tops, strict=False) if lane.height == marks.STREAM)
        left, right = panel.gaps
        boxes(axes, left, right, top, tops[-1], IDLE, label="gaps", zorder=0.5)
    if panel.framed:
        _draw_frame(axes, *panel.framed)


def _prepare(axes: Axes, panel: marks.LanePanel, tops: list[float]) -> None:
    axes.set_xlim(0, max(panel.length, 1))
    axes.set_ylim(tops[-1], 0)
    where = axes.get_yaxis_transform()
    for lane, top, low in zip(panel.lanes, tops, tops[1:], strict=False):
        labels = lane.labels if isinstance(lane, marks.Ribbons) else [lane.label]
        for at in shown_rows(len(labels), lane.height):
            write(axes, -0.008, top + (low - top) * (at + 0.5) / len(labels), labels[at], "right", at=where)


def _draw_stream(axes: Axes, lane: marks.Stream, length: int, top: float, low: float) -> None:
    """Draw the lane as a picture with a pixel column per column of the timeline."""
    filled = np.arange(marks.STREAM_LEVELS, 0, -1)[:, None] <= lane.level
    palette = np.zeros((256, 4), np.uint8)
    for number, colour in enumerate(lane.colours):
        palette[number] = [*bytes.fromhex(colour[1:]), 255]
    picture = np.where(filled[:, :, None], palette[lane.group], np.uint8(0))
    pad = (low - top) * (1 - _INNER) / 2
    limits = axes.get_xlim(), axes.get_ylim()
    extent = 0, length, low - pad, top + pad
    axes.imshow(picture, extent=extent, aspect="auto", interpolation="nearest", label=lane.label, zorder=2)
    axes.set(xlim=limits[0], ylim=limits[1])
    axes.axhline(low - pad, color=RULE, linewidth=0.6, zorder=1)


def _draw_ribbons(axes: Axes, lane: marks.Ribbons, length: int, top: float) -> None:
    """Draw all lanes as one picture, with gaps between them if there is room."""
    colours = np.array([[*bytes.fromhex(colour[1:])] for colour in lane.colours]) / 255
    shares = lane.shares / 255
    picture = np.einsum("lkc,kr->lcr", shares, colours) + (1 - shares.sum(axis=1))[:, :, None]
    low, limits = top + lane.height * len(lane.labels), axes.get_ylim()
    axes.imshow(np.clip(picture, 0, 1), extent=(0, length, low, top), aspect="auto", interpolation="nearest", zorder=1)
    axes.set_ylim(limits)
    if lane.height >= _GAP_FROM:
        gap = min(lane.height * (1 - _INNER), 0.08) * 72
        for at in range(1, len(lane.labels)):
            axes.axhline(top + lane.height * at, color="white", linewidth=gap, zorder=2)


def _draw_marks(axes: Axes, lane: marks.Marks, place: tuple[float, float], length: int) -> None:
    """Draw a lane of boxes, and the names that fit into the longest of them.

    Overlapping boxes, such as ranges that ran on several streams at once, have no names.
    """
    if not len(lane.start):
        return
    top, low = place
    pad, length = (low - top) * (1 - _INNER) / 2, max(length, 1)
    pixel = length / (marks.PLOT * marks.DPI)
    left, right = lane.start, _draw_boxes(axes, lane, pixel, top + pad, low - pad)
    if lane.beside:
        _write_beside(axes, lane, left, right, (top + low) / 2, length)
        return
    meets = lane.start[1:] < np.maximum.accumulate(lane.end)[:-1]
    alone = ~(np.append(False, meets) | np.append(meets, False))
    for box in np.argsort(left - right, kind="stable")[:_MAX_NAMES].tolist():
        room = float(right[box] - left[box]) / length * marks.PLOT - 0.06
        if room < 0.12:
            break
        text = fitting(lane.names[box], SMALL, room, _MIN_LETTERS) if alone[box] else ""
        if text:
            middle, colour = float(left[box] + right[box]) / 2, text_on(lane.colours[box])
            write(axes, middle, (top + low) / 2, text, color=colour, zorder=3)


def _write_beside(axes: Axes, lane: marks.Marks, left: Array, right: Array, y: float, length: int) -> None:
    """Write the name of each box on the side with more room or, if neither side has enough, into the box."""
    inch = max(length, 1) / marks.PLOT
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    for begin, end, name, colour in zip(left.tolist(), right.tolist(), lane.names, lane.colours, strict=True):
        behind = length - end >= begin
        text = fitting(name, SMALL, max(length - end, begin) / inch - 0.15, _MIN_LETTERS)
        if text:
            x = end + 0.06 * inch if behind else begin - 0.06 * inch
            write(axes, x, y, text, "left" if behind else "right", zorder=3, bbox=box)
        elif text := fitting(name, SMALL, (end - begin) / inch - 0.06, _MIN_LETTERS):
            write(axes, (begin + end) / 2, y, text, color=text_on(colour), zorder=3)


def _draw_boxes(axes: Axes, lane: marks.Marks | marks.CallLane, pixel: float, top: Edges, low: Edges) -> Array:
    """Draw the boxes of a lane, at least a pixel wide, with edges if they are wide; return their right ends."""
    right: Array = np.maximum(lane.end, lane.start + pixel)
    line = np.where(right - lane.start > 5 * pixel, 0.5, 0.0)
    look: dict[str, Any] = {"label": lane.label, "edgecolors": "white", "linewidths": line, "zorder": 2}
    boxes(axes, lane.start, right, top, low, lane.colours, **look)
    return right


def _draw_frame(axes: Axes, start: int, end: int) -> None:
    low, high = axes.get_xlim()
    pixel = (high - low) / (marks.PLOT * marks.DPI)
    left, right = max(start, low), min(end, high)
    middle, half = (left + right) / 2, max((right - left) / 2, 3 * pixel)
    frame = axes.axvspan(middle - half, middle + half, fill=False, edgecolor=INK, linewidth=1.0, zorder=5)
    frame.set_clip_on(False)
    frame.set_label("zoom")
    write(axes, middle, 1 + 2 / 72 / size_of(axes)[1], "zoom", va="bottom", at=axes.get_xaxis_transform())


@dataclass(frozen=True)
class _Pole:
    """A name above a lane: the position of its pole (inches from the left of the axis), its height and its text; for
    several boxes, the start and end of their bracket.
    """

    x: float
    level: int
    text: str
    bracket: tuple[float, float] | None


@dataclass(frozen=True)
class _Laid:
    """A lane with its position (``top`` and ``low`` in inches from the top of the panel) and its names."""

    lane: marks.CallLane
    top: float
    low: float
    poles: Sequence[_Pole]
    inside: Sequence[marks.Flag]


@dataclass(frozen=True)
class _LaidBlock:
    """A call with its position in the panel."""

    block: marks.CallBlock
    title: float
    lanes: Sequence[_Laid]


def draw_calls(plan: marks.Calls) -> Figure:
    """Draw the chart with one `Axes` per panel: x in ns, y in inches from the top."""
    laid = [_lay_out(panel) for panel in plan.panels]
    sizes = [(0.0, blocks[-1].lanes[-1].low + 0.06 if blocks and blocks[-1].lanes else _TITLE) for blocks in laid]
    foot = 0.2 if plan.heading.notes else 0.0
    figure, every = panel_column(
        plan.heading, sizes, left=_CALL_LEFT, wide=_CALL_PLOT, first=0.15, between=_CALL_AXIS, foot=foot
    )
    for axes, panel, blocks, (_, high) in zip(every, plan.panels, laid, sizes, strict=True):
        axes.patch.set_visible(False)
        _draw_call_panel(axes, panel, blocks, high)
    if plan.zoomed:
        closer, block = plan.zoomed
        _draw_wedge(figure, every, laid, closer, block)
    return figure


def _lay_out(panel: marks.CallPanel) -> list[_LaidBlock]:
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


def _place(flags: Sequence[marks.Flag], length: int, height: float) -> tuple[list[_Pole], list[marks.Flag]]:
    """Choose the names to draw on poles and the names to draw in their boxes; others are left out."""
    inside: list[marks.Flag] = []
    wanted: list[_Pole] = []
    for flag in flags:
        room = (flag.outer - flag.inner) / length * _CALL_PLOT - 2 * _PAD
        fits = max(text_width(flag.text, SMALL), text_width(flag.amount, SMALL)) <= room and height > 2 * _LINE
        if fits and flag.count == 1:
            inside.append(flag)
            continue
        tried = _levels([*wanted, _pole(flag, length)]) if flag.aloft and len(wanted) < _MAX_POLES else []
        if tried and max(pole.level for pole in tried) < _MAX_LEVELS:
            wanted = tried
        elif fits:
            inside.append(flag)
    return wanted, inside


def _pole(flag: marks.Flag, length: int) -> _Pole:
    """A pole in the middle of the box, or of the bracket over several boxes."""
    inch = _CALL_PLOT / length
    wide = flag.count > 1 and (flag.end - flag.start) * inch >= _MIN_BRACKET
    left, right = (flag.start, flag.end) if wide else (flag.inner, flag.outer)
    x = (left + right) / 2 * inch
    text = fitting(flag.aloft, SMALL, WIDTH - _CALL_LEFT - x - 0.15, _MIN_ALOFT)
    bracket = (left * inch, right * inch) if wide else None
    return _Pole(x, 0, text, bracket)


def _levels(wanted: Sequence[_Pole]) -> list[_Pole]:
    """The poles from right to left, each higher than all poles that would cross its text; empty if two poles coincide,
    or if a text has no room.
    """
    poles: list[_Pole] = []
    for pole in sorted(wanted, key=lambda pole: -pole.x):
        end = pole.x + text_width(pole.text, SMALL) + 0.12
        if not pole.text or any(other.x - pole.x < _MIN_APART for other in poles):
            return []
        level = max((other.level for other in poles if other.x < end), default=-1) + 1
        poles.append(replace(pole, level=level))
    return poles


def _draw_call_panel(axes: Axes, panel: marks.CallPanel, blocks: Sequence[_LaidBlock], high: float) -> None:
    axes.set_xlim(0, panel.length)
    axes.set_ylim(high, 0)
    for laid in blocks:
        write(axes, 0, laid.title + 0.06, laid.block.title, "left", "top", size=TEXT + 0.5, weight="bold", color=INK)
        for number, lane in enumerate(laid.lanes):
            _draw_lane(axes, panel, laid.block, lane, ending=number == 0)
    draw_time_axis(axes, panel.length, panel.label)


def _draw_lane(axes: Axes, panel: marks.CallPanel, block: marks.CallBlock, laid: _Laid, *, ending: bool) -> None:
    """Draw the idle time, the boxes on it with their names, and the length of the call at the end."""
    lane, inch = laid.lane, panel.length / _CALL_PLOT
    pixel = inch / marks.DPI
    middle = (laid.top + laid.low) / 2
    if lane.flags or ending:
        end = max(block.length, pixel)
        boxes(axes, 0.0, end, laid.top, laid.low, IDLE, label="call", zorder=1)
    write(axes, -0.1 * inch, middle, lane.label, "right")
    if len(lane.start):
        level = 1.0 if lane.level is None else lane.level
        _draw_boxes(axes, lane, pixel, laid.low - (laid.low - laid.top) * level, laid.low)
    for flag in laid.inside:
        colour = text_on(flag.colour) if flag.colour != IDLE else FAINT
        x = (flag.inner + flag.outer) / 2
        for text, y in ((flag.text, middle - _LINE / 2), (flag.amount, middle + _LINE / 2)):
            write(axes, x, y, text, color=colour, zorder=3)
    _draw_poles(axes, laid, inch)
    if ending:
        end = max(block.length, int(lane.end.max(initial=0)))
        write(axes, end + 0.08 * inch, middle, block.amount, "left", size=TEXT + 0.5, weight="bold", zorder=4)


def _draw_poles(axes: Axes, laid: _Laid, inch: float) -> None:
    """Draw the names above a lane, each at the end of its pole, and brackets over boxes that share a name."""
    lines = []
    for pole in laid.poles:
        y = laid.top - _BASE - _LINE * (pole.level + 0.5)
        foot = laid.top + 0.06
        if pole.bracket:
            foot = laid.top - 0.035
            left, right = (x * inch for x in pole.bracket)
            lines.append([(left, laid.top - 0.005), (left, foot), (right, foot), (right, laid.top - 0.005)])
        lines.append([(pole.x * inch, foot), (pole.x * inch, y - 0.05)])
        write(axes, (pole.x + 0.04) * inch, y, pole.text, "left", zorder=4)
    if lines:
        axes.add_collection(
            LineCollection(lines, colors=INK, linewidths=0.6, zorder=3, label="poles", clip_on=False), autolim=False
        )


def _draw_wedge(
    figure: Figure, axes: Sequence[Axes], laid: Sequence[Sequence[_LaidBlock]], closer: int, block: int
) -> None:
    """Draw a pale wedge from the short call to the panel that enlarges it."""
    near, far = axes[closer], axes[1 - closer]
    small = laid[1 - closer][block]
    above = closer > 1 - closer  # the panel is below the call
    y = small.lanes[-1].low if above else small.lanes[0].top
    edge = 0.0 if above else near.get_ylim()[0]
    corners = [(0.0, y, far), (float(small.block.length), y, far)]
    corners += [(near.get_xlim()[1], edge, near), (0.0, edge, near)]
    points = [figure.transFigure.inverted().transform(one.transData.transform((x, at))) for x, at, one in corners]
    figure.add_artist(Polygon(np.array(points), closed=True, facecolor=_WEDGE, edgecolor="none", zorder=-1))
