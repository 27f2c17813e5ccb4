"""Time axes with lanes: streams as pictures of busy columns, ranges and ops as boxes with their names in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from nsysprof.breakdown import Breakdown
from nsysprof.intervals import Ints
from nsysprof.kernels import FAMILIES
from nsysprof.render.style import (
    COLOURS,
    DPI,
    FAINT,
    INK,
    RULE,
    SMALL,
    TEXT,
    TINTS,
    boxes,
    light,
    shorten,
    text_width,
)
from nsysprof.stream_lanes import StreamLane
from nsysprof.timeline import RangeLane, Timeline
from nsysprof.units import scale_ns

STREAM, RANGE = 0.36, 0.24  # inches of a lane
_MANY, _FLAT = 14, 0.75  # above so many lanes they are flatter
_INNER = 0.86  # of a lane
_PIXELS = 24  # rows of a stream's lane in its picture
_LABEL = 34
_MOST_NAMES = 80  # names written into ranges, per panel
_SHORTEST = 12  # characters of a shortened name
LEFT, PLOT = 2.56, 10.0  # inches: labels, and the lanes, whose columns are whole pixels
PLOT_COLUMNS = round(PLOT * DPI)  # one per pixel
TITLE_ABOVE, AXIS_BELOW = 0.3, 0.58  # inches above and below a panel


@dataclass(frozen=True)
class Marks:
    """One lane of boxes, ``height`` in inches: ``names`` has a text per box, written where it fits."""

    label: str
    height: float
    start: Ints
    end: Ints
    colours: Sequence[str]
    names: Sequence[str]


@dataclass(frozen=True)
class Panel:
    """One time axis with lanes: from ``start`` to ``end`` ns, ``title`` above it and ``label`` below."""

    lanes: Sequence[StreamLane | RangeLane | Marks]
    start: int
    end: int
    title: str
    label: str

    @property
    def tops(self) -> list[float]:
        """Where each lane begins, in inches from above, and where the last one ends."""
        flat = _FLAT if len(self.lanes) > _MANY else 1.0
        heights = [
            (RANGE if isinstance(lane, RangeLane) else getattr(lane, "height", STREAM)) for lane in self.lanes
        ]
        return np.append(0.0, np.cumsum(heights) * flat).tolist()

    @property
    def height(self) -> float:
        """Inches of the lanes."""
        return self.tops[-1]


def _prepare(axes: Axes, panel: Panel) -> None:
    """Scale the axes, x in ns after the panel's start and y in inches from above, and label the lanes."""
    tops = panel.tops
    axes.set_xlim(0, max(panel.end - panel.start, 1))
    axes.set_ylim(tops[-1], 0)
    axes.set_yticks([])
    where = axes.get_yaxis_transform()
    for lane, top, low in zip(panel.lanes, tops, tops[1:], strict=False):
        label, y = shorten(lane.label, _LABEL), (top + low) / 2
        axes.text(-0.008, y, label, transform=where, ha="right", va="center_baseline", fontsize=SMALL)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="x", length=3)
    axes.set_axisbelow(True)
    axes.grid(axis="x", color=RULE, linewidth=0.5)


def _time_axis(axes: Axes, length: int, label: str) -> None:
    divisor, unit = scale_ns(length)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / divisor:,.6g}"))
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(f"{label} ({unit})", fontsize=TEXT, loc="left", labelpad=2)


def draw_panel(axes: Axes, panel: Panel, answer: Timeline) -> None:
    """Draw the lanes of a panel from top to bottom, with a line between processes."""
    _prepare(axes, panel)
    tint, budget = Tints(answer.breakdown), _MOST_NAMES
    process = None
    for lane, top, low in zip(panel.lanes, panel.tops, panel.tops[1:], strict=False):
        if not isinstance(lane, Marks):
            if process not in (None, lane.process):
                axes.axhline(top, color=FAINT, linewidth=0.6)
            process = lane.process
        if isinstance(lane, StreamLane):
            _draw_stream(axes, lane, answer.edges, top, low)
            continue
        if isinstance(lane, RangeLane):
            names = tint.names(lane.path, lane.count)
            lane = Marks(lane.label, RANGE, lane.start, lane.end, tint.colours(lane.path), names)
        budget -= _draw_marks(axes, lane, (top, low), panel, budget)
    if panel.title:
        axes.set_title(panel.title, loc="left", fontsize=TEXT + 1, weight="bold", color=INK, pad=5)
    _time_axis(axes, panel.end - panel.start, panel.label)


def _draw_stream(axes: Axes, lane: StreamLane, edges: Ints, top: float, low: float) -> None:
    """The lane as a picture with a pixel column per timeline column."""
    shares = lane.busy_ns / np.maximum(np.diff(edges), 1)
    rows = np.where(lane.busy_ns > 0, np.maximum(np.rint(shares * _PIXELS), 3), 0)
    filled = np.arange(_PIXELS, 0, -1)[:, None] <= rows
    palette = np.zeros((256, 4), np.uint8)
    for number, name in enumerate(FAMILIES):
        palette[number] = [*bytes.fromhex(COLOURS[name][1:]), 255]
    picture = np.where(filled[:, :, None], palette[lane.family], np.uint8(0))
    pad = (low - top) * (1 - _INNER) / 2
    box = (0, int(edges[-1] - edges[0]), low - pad, top + pad)
    limits = axes.get_xlim(), axes.get_ylim()
    artist = axes.imshow(picture, extent=box, aspect="auto", interpolation="nearest", origin="upper")
    artist.set(label=lane.label, zorder=2)
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])
    axes.axhline(low - pad, color=RULE, linewidth=0.6, zorder=1)


def _draw_marks(axes: Axes, lane: Marks, place: tuple[float, float], panel: Panel, most_names: int) -> int:
    """Draw a lane of boxes with their names, the longest first; how many names were written.

    Boxes that overlap, as ranges that were on several streams at a time, have no names.
    """
    if not len(lane.start):
        return 0
    top, low = place
    pad, length = (low - top) * (1 - _INNER) / 2, max(panel.end - panel.start, 1)
    pixel = length / (PLOT * DPI)
    left = lane.start - panel.start
    right = np.maximum(lane.end - panel.start, left + pixel)
    line = np.where(right - left > 5 * pixel, 0.5, 0.0)
    edges = np.array(top + pad), np.array(low - pad)
    marks = boxes(axes, left, right, *edges, colours=lane.colours, label=lane.label, edge="white", line=line)
    marks.set_zorder(2)
    meets = lane.start[1:] < np.maximum.accumulate(lane.end)[:-1]
    alone = ~(np.append(False, meets) | np.append(meets, False))
    written = 0
    for box in np.argsort(left - right, kind="stable")[: max(most_names, 0)].tolist():
        room = float(right[box] - left[box]) / length * PLOT - 0.06
        if room < 0.12:
            break
        text = lane.names[box] if alone[box] else ""
        if text and text_width(text, SMALL) > room:
            most = int(room / text_width(text, SMALL) * len(text)) - 1
            text = shorten(text, most) if most >= _SHORTEST else ""
        if text and text_width(text, SMALL) <= room:
            colour = "black" if light(lane.colours[box]) else "white"
            x, y = (left[box] + right[box]) / 2, (top + low) / 2
            axes.text(x, y, text, ha="center", va="center_baseline", fontsize=SMALL, color=colour, zorder=3)
            written += 1
    return written


class Tints:
    """Pale colours and names for ranges: one colour per merged path, in the order in which they are asked for."""

    def __init__(self, breakdown: Breakdown) -> None:
        self._breakdown = breakdown
        self._number: dict[str, int] = {}

    def colours(self, path: NDArray[np.int32]) -> list[str]:
        """A colour per range, given as codes of ``breakdown.paths``."""
        texts = self._breakdown.merged_texts
        found = {
            code: TINTS[self._number.setdefault(texts[code], len(self._number)) % len(TINTS)]
            for code in dict.fromkeys(path.tolist())
        }
        return [found[code] for code in path.tolist()]

    def names(self, path: NDArray[np.int32], count: NDArray[np.int32] | None = None) -> list[str]:
        """A name per mark: of its range, or how many ranges it stands for."""
        paths = self._breakdown.paths
        found = {
            code: shorten(paths.names[int(paths.name[code])], 80) for code in dict.fromkeys(path.tolist())
        }
        counts = count.tolist() if count is not None else [1] * len(path)
        return [
            found[code] if many == 1 else f"{many:,} ranges"
            for code, many in zip(path.tolist(), counts, strict=True)
        ]
