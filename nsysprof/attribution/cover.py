"""Ranges seen together: what lies in at least one instance of a path, each launch counted once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import FOLLOWED, Attribution
from nsysprof.core.intervals import Index, contained_slices, expand_ranges, layers, merge, slice_reduce
from nsysprof.trace.trace import PUSH_POP, START_END, Trace

_PIECE = 1 << 22  # ops at a time


@dataclass(frozen=True)
class Cover:
    """Which launches lie in the ranges of which path, as disjoint slices of sorted launches.

    ``parts`` are ``(launches, path, low, high)``: ``launches[low[i]:high[i]]`` lie in ranges of ``path[i]``. ``count``
    is the number of paths.
    """

    parts: tuple[tuple[Index, NDArray[np.int32], Index, Index], ...]
    count: int

    def sums(self, per_launch: NDArray[Any]) -> NDArray[np.int64]:
        """For each path the sum of a column of launches over those in its ranges."""
        out = np.zeros(self.count, np.int64)
        for launches, path, low, high in self.parts:
            before = np.zeros(len(launches) + 1, np.int64)
            np.cumsum(per_launch[launches], out=before[1:])
            np.add.at(out, path, before[high] - before[low])
        return out

    def ops(self, trace: Trace) -> Iterator[tuple[NDArray[np.int32], NDArray[np.intp]]]:
        """Paths and, beside them, rows of ``trace.ops``: every op once per path in whose ranges it was launched.

        Not all at once, since ranges inside one another hold the same ops again and again.
        """
        by_launch = np.argsort(trace.ops.launch, kind="stable")
        bounds = np.searchsorted(trace.ops.launch, np.arange(len(trace.launches) + 1), sorter=by_launch)
        for launches, path, low, high in self.parts:
            size = np.diff(bounds)[launches]
            mine = by_launch[expand_ranges(bounds[launches], size)]
            edges = np.append(0, np.cumsum(size))
            low, length = edges[low], edges[high] - edges[low]
            group = np.cumsum(length) // _PIECE
            for piece in np.split(np.arange(len(path)), np.flatnonzero(np.diff(group)) + 1):
                yield np.repeat(path[piece], length[piece]), mine[expand_ranges(low[piece], length[piece])]


def cover(attribution: Attribution, rows: NDArray[np.integer], of: NDArray[np.int32], count: int) -> Cover:
    """The `Cover` of the ranges ``rows`` by their paths ``of[rows]``, which are below ``count``.

    A start/end range is open to all threads of its process, or under ``strict`` to its own; a push/pop range to its
    own thread and to what follows it.
    """
    kind = attribution.trace.ranges.kind[rows]
    parts = [
        part
        for each in (PUSH_POP, START_END)
        if (kind == each).any()
        for part in _parts(attribution, rows[kind == each], of, each)
    ]
    return Cover(tuple(parts), count)


def _parts(
    attribution: Attribution, rows: NDArray[np.integer], of: NDArray[np.int32], kind: int
) -> Iterator[tuple[Index, NDArray[np.int32], Index, Index]]:
    """The parts of a cover by ranges of one kind, place by place: a place is a thread, or a process."""
    trace = attribution.trace
    launches, ranges = trace.launches, trace.ranges
    place_of_launch, place_of_range = launches.thread, ranges.thread[rows]
    if kind == PUSH_POP:
        follows = attribution.outcome == FOLLOWED
        place_of_launch = np.where(follows, ranges.thread[attribution.owner], launches.thread)
    elif attribution.threads != "strict":
        place_of_launch = trace.thread_process[launches.thread]
        place_of_range = trace.thread_process[place_of_range]
    order = np.lexsort((launches.end, launches.start, place_of_launch))
    places = np.flatnonzero(np.bincount(place_of_range))
    bounds = np.searchsorted(place_of_launch[order], [places, places + 1])
    for place, first, last in zip(places.tolist(), *bounds.tolist(), strict=True):
        mine, windows = order[first:last], rows[place_of_range == place]
        for layer in layers(launches.end[mine]):
            members = mine if layer is None else mine[layer]
            low, high = contained_slices(
                launches.start[members], launches.end[members], ranges.start[windows], ranges.end[windows]
            )
            yield members, *_disjoint(of[windows], low, high)


def launches_inside(attribution: Attribution, rows: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which launches lie wholly inside at least one of the ranges ``rows``."""
    out = np.zeros(len(attribution.trace.launches), bool)
    one_path = np.zeros(len(attribution.trace.ranges), np.int32)
    for launches, _, low, high in cover(attribution, rows, one_path, 1).parts:
        for first, last in zip(low.tolist(), high.tolist(), strict=True):
            out[launches[first:last]] = True
    return out


def _disjoint(path: NDArray[np.int32], low: Index, high: Index) -> tuple[NDArray[np.int32], Index, Index]:
    """The slices of each path, joined where they overlap: path after path as intervals of one long line."""
    width = np.int64(high.max(initial=0)) + 1
    first, last = merge(path * width + low, path * width + high)
    return (first // width).astype(np.int32), first % width, last - first // width * width


def overlapping(
    attribution: Attribution, of: NDArray[np.int32], rows: NDArray[np.integer]
) -> NDArray[np.bool_]:
    """Which of the start/end ranges ``rows`` belong to a path whose own instances overlap in one process.

    ``of`` is the path of every range.
    """
    trace = attribution.trace
    ranges = trace.ranges
    process, path = trace.thread_process[ranges.thread[rows]], of[rows]
    order = np.lexsort((ranges.start[rows], process, path))
    start, end = ranges.start[rows][order], ranges.end[rows][order]
    same = (path[order][1:] == path[order][:-1]) & (process[order][1:] == process[order][:-1])
    # An instance that overlaps any earlier one of its path leaves some two neighbours overlapping.
    found: NDArray[np.bool_] = np.isin(path, path[order][1:][same & (start[1:] <= end[:-1])])
    return found


def crossing(attribution: Attribution, depth: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which push/pop ranges hold only a part of a range that starts inside them, as domains can do to each other.

    ``depth`` is how many ranges contain each range. Where that many are open when a range starts, none cross.
    """
    ranges = attribution.trace.ranges
    found = np.zeros(len(ranges), bool)
    if len(ranges) == 0:
        return found
    group = 2 * ranges.thread.astype(np.int64) + ranges.kind
    edges = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    for first, last in zip(edges.tolist(), [*edges[1:].tolist(), len(ranges)], strict=True):
        if ranges.kind[first] != PUSH_POP:
            continue
        start, end = ranges.start[first:last], ranges.end[first:last]
        number = np.arange(last - first)
        if np.array_equal(depth[first:last], number - np.searchsorted(np.sort(end), start, side="right")):
            continue
        inside = np.searchsorted(start, end, side="right")
        reach = slice_reduce(np.maximum, end, number, inside, np.iinfo(np.int64).min)
        found[first:last] = reach > end
    return found


def added_up(
    attribution: Attribution, per_op: NDArray[Any], ops: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """For each launch the sum of a column of ops, all or the rows ``ops``; what has no launch is left out."""
    launch = attribution.trace.ops.launch if ops is None else attribution.trace.ops.launch[ops]
    out = np.zeros(len(attribution.trace.launches) + 1, np.int64)
    np.add.at(out, launch, per_op)
    return out[:-1]
