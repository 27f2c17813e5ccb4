"""Find places for names beside marks: free, and as near as possible."""

import math
from typing import NamedTuple

import numpy as np

from nsysprof.core.arrays import Floats

Point = tuple[float, float]
Line = tuple[Point, Point]
_DISTANCES = (0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 1.2, 1.5)  # inches from the mark
_LINE_FROM = 0.1
_STEPS = 16


class Box(NamedTuple):
    """A rectangle; its coordinates are in inches from the lower left corner of its area."""

    left: float
    right: float
    low: float
    high: float


class Places:
    """An area ``wide`` inches wide and ``high`` inches tall, partly covered by marks, lines and names."""

    def __init__(self, wide: float, high: float) -> None:
        self.wide, self.high = wide, high
        self._taken: list[Box] = []
        self._whole: list[Box] = []
        self._edges = np.empty((4, 0))  # of all that is taken, made again where more is

    def take(self, *boxes: Box) -> None:
        """Keep names away from these boxes."""
        self._taken += boxes

    def mark(self, *boxes: Box) -> None:
        """Keep names, and connecting lines of other marks, away from these boxes."""
        self._taken += boxes
        self._whole += boxes

    def put(self, name: Box, line: Line | None) -> None:
        """Keep names and lines away from this name, and keep names away from the line between it and its mark."""
        self.mark(name)
        if line:
            self.take(*(Box(x - 0.02, x + 0.02, y - 0.02, y + 0.02) for x, y in _along(line)))

    def free(self, box: Box) -> bool:
        """Return whether a box is inside the area and overlaps no marks, lines or names."""
        if box.left < 0 or box.right > self.wide or box.low < 0 or box.high > self.high:
            return False
        if self._edges.shape[1] < len(self._taken):
            self._edges = np.array(self._taken).T
        left, right, low, high = self._edges
        return not ((box.left < right) & (left < box.right) & (box.low < high) & (low < box.high)).any()

    def crosses(self, line: Line) -> bool:
        """Return whether a line crosses a label, or any mark except the mark in which it starts."""
        (x, y), *others = _along(line)
        whole = [box for box in self._whole if not (box.left <= x <= box.right and box.low <= y <= box.high)]
        return any(box.left < x < box.right and box.low < y < box.high for x, y in others for box in whole)


def free_place(places: Places, mark: Box, wide: float, tall: float) -> tuple[Box, Line | None] | None:
    """Return the nearest free place for a text of this size beside a round mark, on its right if possible.

    If the place is not adjacent to the mark, a line connects the place with the middle of the mark. Returns None if
    there is no free place.
    """
    x, y, radius = (mark.left + mark.right) / 2, (mark.low + mark.high) / 2, (mark.right - mark.left) / 2
    half, up = wide / 2 + 0.03, tall / 2
    for distance in _DISTANCES:
        for angle in _ANGLES:
            across, rise = math.cos(angle), math.sin(angle)
            middle = x + across * (radius + distance) + half * _side(across)
            level = y + rise * (radius + distance) + up * _side(rise)
            box = Box(middle - half, middle + half, level - up, level + up)
            line = _line((x, y), box) if distance >= _LINE_FROM else None
            if places.free(box) and not (line and places.crosses(line)):
                return box, line
    return None


# Right, left, then further and further up and down from there.
_ANGLES = [
    side + turn * 2 * math.pi / _STEPS
    for step in range(_STEPS // 4 + 1)
    for turn in dict.fromkeys((step, -step))
    for side in (0.0, math.pi)
]


def _side(part: float) -> float:
    return 0.0 if abs(part) < 0.3 else math.copysign(1.0, part)


def _line(middle: Point, box: Box) -> Line:
    """The line from a mark's middle to the nearest point of a text's edge."""
    x, y = middle
    return middle, (min(max(x, box.left), box.right), min(max(y, box.low), box.high))


def _along(line: Line) -> list[Point]:
    (x, y), (to_x, to_y) = line
    return [(x + (to_x - x) * part / 20, y + (to_y - y) * part / 20) for part in range(20)]


def meet(one: Box, other: Box) -> bool:
    """Return whether two boxes share more than an edge."""
    return one.left < other.right and other.left < one.right and one.low < other.high and other.low < one.high


def around(point: Point, reach: float) -> Box:
    """The square around a point."""
    return Box(point[0] - reach, point[0] + reach, point[1] - reach, point[1] + reach)


def push_apart(wanted: Floats, gap: float, end: float) -> Floats:
    """Return positions from 0 to ``end`` that are at least ``gap`` apart, as close as possible to the ``wanted``
    positions and in their order.
    """
    order = np.argsort(wanted, kind="stable")
    groups: list[tuple[float, int]] = []  # middle and number of labels that touch
    for place in wanted[order].tolist():
        middle, count = float(place), 1
        while groups and groups[-1][0] + (groups[-1][1] + count) / 2 * gap > middle:
            other, several = groups.pop()
            middle = (middle * count + other * several) / (count + several)
            count += several
        groups.append((middle, count))
    placed = []
    for middle, count in groups:
        placed += [middle + (number - (count - 1) / 2) * gap for number in range(count)]
    steps = np.arange(len(placed)) * gap
    inside = np.maximum.accumulate(np.maximum(placed, 0) - steps) + steps
    inside = np.minimum.accumulate((np.minimum(inside, end) + steps[::-1])[::-1])[::-1] - steps[::-1]
    out = np.empty(len(wanted))
    out[order] = inside
    return out
