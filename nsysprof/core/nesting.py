"""Handle nested intervals: find enclosing intervals, add up values of ancestors, and stack lanes without crossings.

Like `intervals`, this module uses numpy on whole arrays. Parents are row numbers, -1 for none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from nsysprof.core.arrays import AnyInts, Array, Index, Ints, Ints32, Mask

_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_ROUNDS = 24  # of jumps in `enclosing`, before the rest is searched


def enclosing(end: Ints) -> Ints32:
    """For each interval, return the index of the innermost interval that contains it entirely, or -1.

    The intervals must be sorted by start, and by length (longest first) for equal starts. If intervals are identical,
    the earlier one contains the later one. Intervals that overlap only in part do not contain each other.

    The answer for an interval is the nearest earlier interval that ends at the same time or later. In each round, all
    candidates that end too early are replaced by their own candidates; a few rounds usually suffice. Intervals that are
    still unresolved, for example after deeply nested intervals, are resolved by a search.
    """
    count = len(end)
    up = np.arange(-1, count - 1, dtype=np.int32)
    bound = np.append(end, _LAST)  # index -1 is a wall that nothing passes
    todo = np.arange(count)
    for _ in range(_ROUNDS):
        candidate = up[todo]
        short = bound.take(candidate) < end[todo]
        todo, candidate = todo[short], candidate[short]
        if len(todo) == 0:
            return up
        up[todo] = up.take(candidate)
    up[todo] = _last_reaching(end, todo)
    return up


def _last_reaching(end: Ints, rows: Index) -> Ints32:
    """For each of some rows, find the last row before it that does not end earlier (-1 for none), in log(n) steps.

    ``peaks[k]`` holds the latest end of every 2**k rows: go up until the block to the left is late enough, then down.
    """
    peaks = [end]
    while len(peaks[-1]) > 1:
        below = peaks[-1] if len(peaks[-1]) % 2 == 0 else np.append(peaks[-1], _FIRST)
        peaks.append(np.maximum(below[0::2], below[1::2]))
    wanted = end[rows]
    block, level = rows.copy(), np.full(len(rows), -1)
    climbing = np.arange(len(rows))
    for k, peak in enumerate(peaks):
        left = block[climbing] - 1  # -1, which is odd, before the first block
        hit = (left % 2 == 0) & (peak[left] >= wanted[climbing])
        block[climbing] = np.where(hit, left, block[climbing] >> 1)
        level[climbing[hit]] = k
        climbing = climbing[~hit]
    for k in range(len(peaks) - 1, 0, -1):
        sinking = np.flatnonzero(level == k)
        right = np.minimum(2 * block[sinking] + 1, len(peaks[k - 1]) - 1)
        block[sinking] = np.where(peaks[k - 1][right] >= wanted[sinking], right, 2 * block[sinking])
        level[sinking] = k - 1
    return np.where(level == 0, block, -1).astype(np.int32)


@dataclass(frozen=True)
class Nest:
    """Intervals sorted by start, longest first, for finding the innermost interval around a moment or period."""

    start: Ints
    end: Ints
    up: Ints32
    lifts: tuple[Ints32, ...]

    def innermost(self, start: Ints, end: Ints) -> Ints32:
        """For each ``[start, end]``, return the index of the innermost interval (the last to start) that contains it,
        or -1.
        """
        at = np.searchsorted(self.start, start, side="right").astype(np.int32) - 1
        bound = np.append(self.end, _LAST)
        pending = np.flatnonzero(bound.take(at) < end)
        if len(pending) == 0:
            return at
        here, wanted = at[pending], end[pending]
        for lift in reversed(self.lifts):  # skip ancestors that end too soon, the longest jump first
            target = lift[here]
            here = np.where((target >= 0) & (bound[target] < wanted), target, here)
        at[pending] = self.up[here]
        return at


def nest(start: Ints, end: Ints, up: Ints32 | None = None) -> Nest:
    """Prepare intervals, sorted by start, longest first, for `Nest.innermost`.

    ``up`` is the result of `enclosing`, if already known.
    """
    up = enclosing(end) if up is None else up
    lifts = []
    lift = np.append(up, np.int32(-1))
    while (lift >= 0).any():
        lifts.append(lift)
        lift = lift.take(lift)  # index -1 is the appended -1
    return Nest(start, end, up, tuple(lifts))


def sum_ancestors(values: Ints, parent: Ints32) -> Ints:
    """Add the values of all ancestors to each row's value, in a logarithmic number of rounds."""
    return _over_ancestors(np.add, values, 0, parent)


def ancestors_or_self(parent: Ints32, marked: Mask) -> Mask:
    """Mark the rows that are marked or have a marked ancestor, in a logarithmic number of rounds."""
    return _over_ancestors(np.logical_or, marked, False, parent)


def _over_ancestors(ufunc: np.ufunc, values: Array, empty: Any, parent: Ints32) -> Array:
    count = len(parent)
    up = np.append(np.where(parent < 0, count, parent), count)
    out = np.append(values, empty)
    while (up[:-1] < count).any():
        ufunc(out, out[up], out=out)
        up = up[up]
    return out[:-1]


def outermost(parent: Ints32, marked: Mask) -> Mask:
    """Remove the mark of each row that has a marked ancestor."""
    within: Mask = np.append(ancestors_or_self(parent, marked), False)[parent]
    return marked & ~within


def innermost_marked(parent: Ints32, marked: Mask) -> AnyInts:
    """For each row, return the innermost marked row among itself and its ancestors, or the root if none is marked."""
    up = np.where(marked | (parent < 0), np.arange(len(parent)), parent)
    while (up[up] != up).any():
        up = up[up]
    return up


def depths(parent: Ints32) -> Ints32:
    """Count the ancestors of each row."""
    return (sum_ancestors(np.ones(len(parent), np.int64), parent) - 1).astype(np.int32)


@dataclass(frozen=True)
class Lane:
    """A subset of the stacked intervals, in the same order.

    ``members``: their indices; ``up``: for each member, the enclosing member of this lane, or -1.
    """

    members: Index
    up: Ints32


def stack(start: Ints, end: Ints, parent: Ints32) -> list[Lane]:
    """Stack intervals into lanes without crossings: within a lane, an interval contains only its descendants.

    Intervals must be sorted by start, longest first, each after its ``parent`` (-1: none). An interval is drawn inside
    its parent if possible, otherwise alone. Intervals that touch do not cross. The number of lanes is small, but not
    always minimal. If parents enclose their children in time (nearly always), this uses numpy on whole arrays.
    """
    lane = np.zeros(len(start), np.int32)
    up = parent.astype(np.int32)
    crosses = crossing(start, end, up)
    if crosses.any():
        # What crosses nothing before or after it in time stays in the first lane.
        reach = np.maximum.accumulate(end)
        cluster = np.cumsum(np.append(True, start[1:] >= reach[:-1]))
        mixed = np.zeros(int(cluster[-1]) + 1, bool)
        mixed[cluster[crosses]] = True
        _sort_out(start, end, np.flatnonzero(mixed[cluster]), up, lane)
    by_lane = np.argsort(lane, kind="stable")
    first = np.searchsorted(lane[by_lane], np.arange(int(lane.max(initial=-1)) + 2))
    place = np.empty(len(start), np.int32)
    place[by_lane] = np.arange(len(start)) - first[lane[by_lane]]
    drawn_in = np.where((up >= 0) & (lane[up] == lane), place[up], np.int32(-1)) if len(up) else up
    return [Lane(rows, drawn_in[rows]) for rows in np.split(by_lane, first[1:-1])] if len(up) else []


def crossing(start: Ints, end: Ints, parent: Ints32) -> Mask:
    """Mark intervals that cross an earlier interval, or are inside an interval that is not their parent."""
    around = enclosing(end)
    out: Mask = around != parent
    by_parent = np.argsort(around, kind="stable")
    siblings = around[by_parent][1:] == around[by_parent][:-1]
    out[by_parent[1:]] |= siblings & (end[by_parent[:-1]] > start[by_parent[1:]])
    return out


def _sort_out(start: Ints, end: Ints, rows: Index, up: Ints32, lane: Ints32) -> None:
    """Give rows a lane, in order of time: the parent's lane if nothing else is open there, else the first free lane."""
    open_in: list[list[int]] = []  # what is open in each lane, the innermost last
    busy: list[tuple[int, int]] = []  # the end of the outermost of a lane, and the lane
    free: list[int] = []
    for row, begin, stop, parent in zip(
        rows.tolist(), start[rows].tolist(), end[rows].tolist(), up[rows].tolist(), strict=True
    ):
        if parent >= 0 and lane[parent] < len(open_in):
            opened = open_in[lane[parent]]
            while opened and opened[-1] != parent and end[opened[-1]] <= begin:
                opened.pop()
            if opened and opened[-1] == parent and stop <= end[parent]:
                lane[row] = lane[parent]
                opened.append(row)
                continue
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        number = heappop(free) if free else len(open_in)
        if number == len(open_in):
            open_in.append([])
        open_in[number][:] = [row]
        lane[row], up[row] = number, -1
        heappush(busy, (stop, number))


def walk(up: Ints32) -> Ints:
    """List the starts and ends of a lane's intervals in order: ``i`` for the start of interval i, ``~i`` for its end.

    An interval ends after all intervals inside it, and before the next interval of its parent begins, even at equal
    times.
    """
    count = len(up)
    depth = depths(up) if (up >= 0).any() else np.zeros(count, np.int32)
    size = np.ones(count, np.int64)
    by_depth = np.argsort(-depth, kind="stable")
    levels = np.flatnonzero(np.diff(depth[by_depth])) + 1
    for level in np.split(by_depth, levels) if (up >= 0).any() else ():
        inner = level[up[level] >= 0]
        np.add.at(size, up[inner], size[inner])
    begins = 2 * np.arange(count) - depth
    out = np.empty(2 * count, np.int64)
    out[begins] = np.arange(count)
    out[begins + 2 * size - 1] = ~np.arange(count)
    return out


def levels_inside(parent: Ints32, rows: Index, start: Ints, end: Ints, extent: tuple[int, int]) -> Iterator[Index]:
    """Yield the intervals ``rows``, then the intervals directly inside these, and so on. Only intervals
    that reach into ``extent`` are yielded, sorted by start.
    """
    while len(rows := rows[(start[rows] < extent[1]) & (end[rows] > extent[0])]):
        yield rows[np.argsort(start[rows], kind="stable")]
        rows = np.flatnonzero(np.isin(parent, rows))
