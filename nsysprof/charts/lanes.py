"""Draws time axes with lanes: streams as pictures of busy columns, ranges and ops as boxes with their names in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nsysprof.charts.axis import draw_time_axis
from nsysprof.charts.marks import DPI, PLOT, STREAM, STREAM_LEVELS, LanePanel, Lanes, Marks, Ribbons, Stream
from nsysprof.charts.palette import FAINT, IDLE, INK, RULE, text_on
from nsysprof.charts.style import SMALL, TEXT, WIDTH, boxes, framed, heading_height, shown_rows, text_width
from nsysprof.core.text import shorten

_MANY, _FLAT = 14, 0.75  # above so many lanes they are flatter
_INNER = 0.86  # of a lane
_MOST_NAMES = 100  # names written into boxes, per panel
_SHORTEST = 12  # characters of a shortened name
_LEFT = 2.56  # inches of labels
_GAP_FROM = 0.12  # ribbons of so many inches have a gap between them
_TITLE_ABOVE, _AXIS_BELOW = 0.3, 0.58  # inches above and below a panel


def draw_lanes(plan: Lanes) -> Figure:
    """The chart as a figure with one `Axes` per panel: x in ns after the panel's start, y in inches from above."""
    y = heading_height(plan.heading) + 0.2
    above = [_TITLE_ABOVE if panel.title else 0 for panel in plan.panels]
    lanes = [_tops(panel)[-1] for panel in plan.panels]
    below = 0.2 if plan.heading.notes else 0.0
    height = y + below + sum(high + title + _AXIS_BELOW for high, title in zip(lanes, above, strict=True))
    figure = framed(plan.heading, height)
    for panel, title, high in zip(plan.panels, above, lanes, strict=True):
        y += title + high
        axes = figure.add_axes((_LEFT / WIDTH, 1 - y / height, PLOT / WIDTH, high / height))
        _draw_panel(axes, panel)
        y += _AXIS_BELOW
    return figure


def _tops(panel: LanePanel) -> list[float]:
    """Where each lane begins, in inches from above, and where the last one ends."""
    flat = _FLAT if len(panel.lanes) > _MANY else 1.0
    high = [lane.height * (len(lane.labels) if isinstance(lane, Ribbons) else 1) for lane in panel.lanes]
    return np.append(0.0, np.cumsum(high) * flat).tolist()


def _draw_panel(axes: Axes, panel: LanePanel) -> None:
    """Draw the lanes of a panel from top to bottom, with a line between processes."""
    tops = _tops(panel)
    _prepare(axes, panel, tops)
    names: list[_Name] = []
    process = None
    for lane, top, low in zip(panel.lanes, tops, tops[1:], strict=False):
        if process not in (None, lane.process):
            axes.axhline(top, color=FAINT, linewidth=0.6)
        process = lane.process
        if isinstance(lane, Stream):
            _draw_stream(axes, lane, panel.length, top, low)
        elif isinstance(lane, Ribbons):
            _draw_ribbons(axes, lane, panel.length, top)
        else:
            names += _draw_marks(axes, lane, (top, low), panel.length)
    for name in sorted(names, key=lambda name: name.rank)[:_MOST_NAMES]:
        name.write(axes)
    if panel.title:
        axes.set_title(panel.title, loc="left", fontsize=TEXT + 1, weight="bold", color=INK, pad=5)
    draw_time_axis(axes, panel.length, panel.label)
    if panel.gaps:
        top = next(top for lane, top in zip(panel.lanes, tops, strict=False) if lane.height == STREAM)
        left, right = panel.gaps
        shade = boxes(axes, left, right, np.array(top), np.array(tops[-1]), colours=IDLE, label="gaps")
        shade.set_zorder(0.5)
    if panel.framed:
        _draw_frame(axes, *panel.framed)


def _prepare(axes: Axes, panel: LanePanel, tops: list[float]) -> None:
    """Scale the axes and label the lanes."""
    axes.set_xlim(0, max(panel.length, 1))
    axes.set_ylim(tops[-1], 0)
    where = axes.get_yaxis_transform()
    for lane, top, low in zip(panel.lanes, tops, tops[1:], strict=False):
        labels = lane.labels if isinstance(lane, Ribbons) else [lane.label]
        for at in shown_rows(len(labels), lane.height):
            y = top + (low - top) * (at + 0.5) / len(labels)
            axes.text(
                -0.008, y, labels[at], transform=where, ha="right", va="center_baseline", fontsize=SMALL
            )


def _draw_stream(axes: Axes, lane: Stream, length: int, top: float, low: float) -> None:
    """The lane as a picture with a pixel column per column of the timeline."""
    filled = np.arange(STREAM_LEVELS, 0, -1)[:, None] <= lane.level
    palette = np.zeros((256, 4), np.uint8)
    for number, colour in enumerate(lane.colours):
        palette[number] = [*bytes.fromhex(colour[1:]), 255]
    picture = np.where(filled[:, :, None], palette[lane.group], np.uint8(0))
    pad = (low - top) * (1 - _INNER) / 2
    limits = axes.get_xlim(), axes.get_ylim()
    artist = axes.imshow(
        picture,
        extent=(0, length, low - pad, top + pad),
        aspect="auto",
        interpolation="nearest",
        origin="upper",
    )
    artist.set(label=lane.label, zorder=2)
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
    axes.axhline(low - pad, color=RULE, linewidth=0.6, zorder=1)


def _draw_ribbons(axes: Axes, lane: Ribbons, length: int, top: float) -> None:
    """All lanes as one picture, with gaps between them as far as there is room for these."""
    colours = np.array([[*bytes.fromhex(colour[1:])] for colour in lane.colours]) / 255
    shares = lane.shares / 255
    picture = np.einsum("lkc,kr->lcr", shares, colours) + (1 - shares.sum(axis=1))[:, :, None]
    low, limits = top + lane.height * len(lane.labels), axes.get_ylim()
    axes.imshow(
        np.clip(picture, 0, 1), extent=(0, length, low, top), aspect="auto", interpolation="nearest", zorder=1
    )
    axes.set_ylim(limits)
    if lane.height >= _GAP_FROM:
        gap = min(lane.height * (1 - _INNER), 0.08) * 72
        for at in range(1, len(lane.labels)):
            axes.axhline(top + lane.height * at, color="white", linewidth=gap, zorder=2)


@dataclass(frozen=True)
class _Name:
    """A name in the middle of its box, the ``rank``-th longest of its lane."""

    rank: int
    x: float
    y: float
    text: str
    colour: str

    def write(self, axes: Axes) -> None:
        look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": SMALL, "zorder": 3}
        axes.text(self.x, self.y, self.text, color=self.colour, **look)


def _draw_marks(axes: Axes, lane: Marks, place: tuple[float, float], length: int) -> list[_Name]:
    """Draw a lane of boxes; the names that fit into them, the longest boxes first.

    Boxes that overlap, as ranges that were on several streams at a time, have no names.
    """
    if not len(lane.start):
        return []
    top, low = place
    pad, length = (low - top) * (1 - _INNER) / 2, max(length, 1)
    pixel = length / (PLOT * DPI)
    left = lane.start
    right = np.maximum(lane.end, left + pixel)
    line = np.where(right - left > 5 * pixel, 0.5, 0.0)
    edges = np.array(top + pad), np.array(low - pad)
    marks = boxes(axes, left, right, *edges, colours=lane.colours, label=lane.label, edge="white", line=line)
    marks.set_zorder(2)
    meets = lane.start[1:] < np.maximum.accumulate(lane.end)[:-1]
    alone = ~(np.append(False, meets) | np.append(meets, False))
    names: list[_Name] = []
    for box in np.argsort(left - right, kind="stable")[:_MOST_NAMES].tolist():
        room = float(right[box] - left[box]) / length * PLOT - 0.06
        if room < 0.12:
            break
        text = _fitting(lane.names[box], room) if alone[box] else ""
        if text:
            middle = float(left[box] + right[box]) / 2
            names.append(_Name(len(names), middle, (top + low) / 2, text, text_on(lane.colours[box])))
    return names


def _fitting(text: str, room: float) -> str:
    """The text, shortened if need be, so that it fits into ``room`` inches; nothing if too little would be left."""
    width = text_width(text, SMALL)
    if width > room:
        most = int(room / width * len(text)) - 1
        text = shorten(text, most) if most >= _SHORTEST else ""
    return text if text_width(text, SMALL) <= room else ""


def _draw_frame(axes: Axes, start: int, end: int) -> None:
    """Show where the zoom is: a frame around all lanes."""
    low, high = axes.get_xlim()
    pixel = (high - low) / (PLOT * DPI)
    left, right = max(start, low), min(end, high)
    middle, half = (left + right) / 2, max((right - left) / 2, 3 * pixel)
    frame = axes.axvspan(middle - half, middle + half, fill=False, edgecolor=INK, linewidth=1.0, zorder=5)
    frame.set_clip_on(False)
    frame.set_label("zoom")
    axes.annotate(
        "zoom", (middle, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
        ha="center", va="bottom", fontsize=SMALL, annotation_clip=False,
    )  # fmt: skip
