"""Puts intervals into lanes such that those of one lane never cross: what lies inside another is its descendant."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.forest import depths
from nsysprof.core.intervals import Index, Ints, enclosing

Parents = NDArray[np.int32]


@dataclass(frozen=True)
class Lane:
    """Some of the intervals that were stacked, in their order.

    ``members`` are their positions; ``up`` int32, for each the member of this lane that it is drawn in, -1 for none.
    """

    members: Index
    up: Parents


def stack(start: Ints, end: Ints, parent: Parents) -> list[Lane]:
    """Lanes for intervals sorted by start and from the longest to the shortest, each after its ``parent`` (-1: none).

    An interval lies inside its parent, where that is possible, or alone: nothing looks nested that is not. Intervals
    that touch do not cross. There are few lanes, not the fewest. As long as parents are what encloses in time, which
    nearly all are, this is numpy on whole arrays.
    """
    lane = np.zeros(len(start), np.int32)
    up = parent.astype(np.int32)
    crossing = _crossing(start, end, up)
    if crossing.any():
        # What crosses nothing before or after it in time stays in the first lane.
        reach = np.maximum.accumulate(end)
        cluster = np.cumsum(np.append(True, start[1:] >= reach[:-1]))
        mixed = np.zeros(int(cluster[-1]) + 1, bool)
        mixed[cluster[crossing]] = True
        _sort_out(start, end, np.flatnonzero(mixed[cluster]), up, lane)
    by_lane = np.argsort(lane, kind="stable")
    first = np.searchsorted(lane[by_lane], np.arange(int(lane.max(initial=-1)) + 2))
    place = np.empty(len(start), np.int32)
    place[by_lane] = np.arange(len(start)) - first[lane[by_lane]]
    drawn_in = np.where((up >= 0) & (lane[up] == lane), place[up], np.int32(-1)) if len(up) else up
    return [Lane(mine, drawn_in[mine]) for mine in np.split(by_lane, first[1:-1])] if len(up) else []


def _crossing(start: Ints, end: Ints, parent: Parents) -> NDArray[np.bool_]:
    """Which intervals cross one in front of them, or lie in one that is not their parent."""
    around = enclosing(end)
    out: NDArray[np.bool_] = around != parent
    by_parent = np.argsort(around, kind="stable")
    siblings = around[by_parent][1:] == around[by_parent][:-1]
    out[by_parent[1:]] |= siblings & (end[by_parent[:-1]] > start[by_parent[1:]])
    return out


def _sort_out(start: Ints, end: Ints, rows: Index, up: Parents, lane: Parents) -> None:
    """Give each row a lane, in time: that of its parent where nothing else is open in it, else the first free one."""
    open_in: list[list[int]] = []  # what is open in each lane, the innermost last
    busy: list[tuple[int, int]] = []  # when the outermost of a lane ends, and the lane
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


def walk(up: Parents) -> NDArray[np.int64]:
    """The order in which the intervals of a lane begin and end: ``i`` where the i-th begins, ``~i`` where it ends.

    An interval ends after all that it is around, and before the next one beside it begins, also where times are equal.
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
