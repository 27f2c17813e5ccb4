"""Intervals on sorted int64 arrays: union, containment, overlap, and the time in each column of a timeline.

All functions use numpy on whole arrays and are near-linear in the number of intervals, at any nesting depth. Intervals
are half-open ``[start, end)`` for lengths; containment includes both ends.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import AnyInts, Array, Bytes, Index, Ints, Line, Mask

_FEW = 8  # intervals: one by one they are compared faster than found
_FIRST = np.iinfo(np.int64).min
_MAX_LAYERS = 8  # one by one in `contained_sums`
_BLOCK = 256  # values that `slice_reduce` reduces beforehand


def clip(start: Ints, end: Ints, begin: int, stop: int) -> tuple[Ints, Ints]:
    """Clip intervals to a period, and return their times relative to the start of the period; no length is negative."""
    first = np.clip(start, begin, stop)
    return first - begin, np.clip(end, first, stop) - begin


def merge(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Merge intervals into their union: sorted, disjoint intervals ``(start, end)``. Touching intervals are joined.

    Intervals with ``end <= start`` are empty and left out.
    """
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if len(start) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if (start[1:] > end[:-1]).all():
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.append(True, start[1:] > reach[:-1])
    return start[first], reach[np.append(first[1:], True)]


def tied(order: Index, start: Ints, *others: Array) -> Mask:
    """Mark each row that equals the next row in ``order``; ``start`` is already in this order, ``others`` are not."""
    equal: Mask = start[1:] == start[:-1]
    some = np.flatnonzero(equal)
    one, next_one = order[some], order[some + 1]
    for values in others:
        equal[some] &= values[one] == values[next_one]
    return equal


def settled(order: Index, equal: Mask, *keys: Array) -> Index:
    """Sort the rows in each run of ``equal`` rows (see `tied`) by ``keys``; the last key is the most important.

    Fast if few rows are equal.
    """
    if not equal.any():
        return order
    group = np.cumsum(np.append(False, ~equal))
    ties = np.flatnonzero(np.append(False, equal) | np.append(equal, False))
    rows, out = order[ties], order.copy()
    out[ties] = rows[np.lexsort((*(key[rows] for key in keys), group[ties]))]
    return out


def union(*lines: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return the union of several sets of intervals, as in `merge`."""
    start, end = (np.concatenate(edges) for edges in zip(*lines, strict=True)) if len(lines) > 1 else lines[0]
    return merge(start, end)


def union_length(start: Ints, end: Ints) -> int:
    """Return the length of the union of the intervals, in the unit of the intervals."""
    first, last = merge(start, end)
    return int((last - first).sum())


def inside_any(start: Ints, end: Ints, asked_start: Ints, asked_end: Ints) -> Mask:
    """Mark each ``[start, end]`` that lies entirely inside one of the intervals (in any order)."""
    order = np.argsort(start, kind="stable")
    reach = np.append(_FIRST, np.maximum.accumulate(end[order]))
    return reach[np.searchsorted(start[order], asked_start, side="right")] >= asked_end


def layers(end: Ints) -> list[Index | None]:
    """Split intervals, sorted by start, into the fewest layers in which ends never decrease.

    Each layer is the sorted index of its intervals; ``[None]`` is a single layer with all intervals. The number of
    layers is the nesting depth.
    """
    if len(end) == 0 or not (end[1:] < end[:-1]).any():
        return [None]
    out: list[Index | None] = []
    rest = np.arange(len(end))
    while len(rest):
        ends = end[rest]
        keep = ends >= np.maximum.accumulate(ends)
        out.append(rest[keep])
        rest = rest[~keep]
    return out


def contained_slices(start: Ints, end: Ints, outer_start: Ints, outer_end: Ints) -> tuple[Index, Index]:
    """Find the items entirely inside each outer interval, as slices ``[low, high)`` of the items.

    The items must be one layer: sorted by start, with non-decreasing ends.
    """
    low = np.searchsorted(start, outer_start, side="left")
    return low, np.maximum(low, np.searchsorted(end, outer_end, side="right"))


def contained_sums(start: Ints, end: Ints, values: Ints, outer_start: Ints, outer_end: Ints) -> Ints:
    """Add up the values of the items entirely inside each outer interval.

    The items must be sorted by start. The items are processed layer by layer (see `layers`). After `_MAX_LAYERS`
    layers, bisection finds the remaining items in log(items) steps, because a layer of deeply nested items may have a
    single item.
    """
    sums = np.zeros(len(outer_start), np.int64)
    rest, taken = np.arange(len(end)), 0
    while len(rest) and taken < _MAX_LAYERS:
        ends = end[rest]
        keep = ends >= np.maximum.accumulate(ends)
        layer, rest, taken = rest[keep], rest[~keep], taken + 1
        low, high = contained_slices(start[layer], end[layer], outer_start, outer_end)
        before = np.append(0, np.cumsum(values[layer]))
        sums += before[high] - before[low]
    if len(rest):
        sums += _sums_by_halves(start[rest], end[rest], values[rest], outer_start, outer_end)
    return sums


def _sums_by_halves(start: Ints, end: Ints, values: Ints, outer_start: Ints, outer_end: Ints) -> Ints:
    """The sums of items that start at or after each outer start and end by its end.

    The items from this start on form at most one block per power of two; each block is sorted by end.
    """
    count = len(end)
    rank = np.empty(count, np.int64)
    rank[np.argsort(end, kind="stable")] = np.arange(count)
    asked = np.searchsorted(np.sort(end), outer_end, side="right")  # items of a lower rank end in time
    block = np.searchsorted(start, outer_start, side="left")  # then its number, block by larger block
    sums = np.zeros(len(block), np.int64)
    order = np.arange(count)
    top = (count - 1).bit_length()  # one block is all of them
    for level in range(top + 1):
        key = (order >> level) * count + rank[order]
        by_end = np.argsort(key, kind="stable")  # two sorted halves each
        order, key = order[by_end], key[by_end]
        whole = block == 0 if level == top else block & 1 == 1  # the whole block is behind the outer start
        rows = np.flatnonzero(whole & (block << level < count))
        before = np.append(0, np.cumsum(values[order]))
        first = block[rows] << level
        last = np.searchsorted(key, block[rows] * count + asked[rows], side="left")
        sums[rows] += before[last] - before[first]
        block = (block + 1) >> 1
    return sums


def slice_reduce(ufunc: np.ufunc, values: Ints, low: Index, high: Index, empty: int) -> Ints:
    """Reduce ``values[low:high]`` by `numpy.minimum` or `numpy.maximum` for many slices, sorted by ``low``.

    Empty slices give ``empty``, the neutral element of the ufunc. Long slices are composed of blocks, so the time does
    not depend on nesting or on the length of slices.
    """
    out = np.full(len(low), empty, np.int64)
    if len(values) == 0 or len(low) == 0:
        return out
    padded = np.append(values, np.int64(empty))
    # reduceat also computes what lies between two slices; from last to first that is empty
    low, high, back = low[::-1], high[::-1], out[::-1]

    def take(source: Ints, first: Index, stop: Index) -> Ints:
        edges = np.empty(2 * len(first), np.intp)
        edges[0::2], edges[1::2] = first, stop
        reduced: Ints = ufunc.reduceat(source, edges)[::2]
        reduced[first >= stop] = empty
        return reduced

    length = high - low
    short = np.flatnonzero((length > 0) & (length <= 4 * _BLOCK))
    if len(short):
        back[short] = take(padded, low[short], high[short])
    long = np.flatnonzero(length > 4 * _BLOCK)
    if len(long):
        blocks = np.full(-(-len(values) // _BLOCK) * _BLOCK, empty, np.int64)
        blocks[: len(values)] = values
        partial = np.append(ufunc.reduce(blocks.reshape(-1, _BLOCK), axis=1), np.int64(empty))
        first, stop = -(-low[long] // _BLOCK), high[long] // _BLOCK
        edges = ufunc(take(padded, low[long], first * _BLOCK), take(padded, stop * _BLOCK, high[long]))
        back[long] = ufunc(edges, take(partial, first, stop))
    return out


@dataclass(frozen=True)
class Overlaps:
    """Pairs of overlapping intervals, from which the union of consecutive intervals can be computed fast.

    At every moment, the running intervals are sorted by index; ``ns`` is the time during which the two intervals of a
    pair are neighbours. If a set of intervals is contiguous at every moment, ``union length = sum of lengths - sum of
    ns of the pairs in the set``.
    """

    first: Index
    second: Index
    ns: Ints


def overlaps(start: Ints, end: Ints) -> Overlaps:
    """Find the `Overlaps` of intervals indexed in launch order; they may start in any order."""
    order = np.argsort(start, kind="stable") if (start[1:] < start[:-1]).any() else np.arange(len(start))
    order = order[end[order] > start[order]]
    begins, reach = start[order], np.maximum.accumulate(end[order]) if len(order) else end[order]
    shared = np.zeros(len(order), bool)  # runs at the same time as its predecessor in time, or its successor
    touch = begins[1:] < reach[:-1]
    shared[1:] |= touch
    shared[:-1] |= touch
    members = np.sort(order[shared])
    if len(members) == 0:
        none = np.empty(0, np.intp)
        return Overlaps(none, none, np.empty(0, np.int64))
    pairs = _overlaps_by_segment(start[members], end[members])
    if pairs is None:
        pairs = _overlaps_by_sweep(start[members], end[members])
    return Overlaps(members[pairs.first], members[pairs.second], pairs.ns)


def _overlaps_by_segment(start: Ints, end: Ints) -> Overlaps | None:
    """Cut time at every start and end and list the intervals of each piece; None where the list would be too long."""
    count = len(start)
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    running = np.cumsum(np.where(order < count, 1, -1))
    length = np.diff(times, append=times[-1])
    useful = (running >= 2) & (length > 0)
    place = np.empty(2 * count, np.intp)
    place[order] = np.arange(2 * count)
    before = np.append(0, np.cumsum(useful))  # useful pieces before each cut
    low, high = before[place[:count]], before[place[count:]]
    pieces = high - low
    total = int(pieces.sum())
    if total > 16 * count + 4096:
        return None
    piece = np.arange(total) + np.repeat(low - (np.cumsum(pieces) - pieces), pieces)
    line = np.sort(piece * count + np.repeat(np.arange(count), pieces))
    piece, who = np.divmod(line, count)
    same = np.flatnonzero(piece[1:] == piece[:-1])
    return Overlaps(who[same], who[same + 1], length[useful][piece[same]])


def _overlaps_by_sweep(start: Ints, end: Ints) -> Overlaps:
    """Do the same for many simultaneous intervals: one pass over the cuts, running intervals in a sorted list."""
    count = len(start)
    times = np.concatenate([start, end])
    # at equal times ends come first, so that touching intervals do not meet
    order = np.lexsort((np.arange(2 * count) < count, times))
    line: list[int] = []
    since: dict[tuple[int, int], int] = {}
    out: list[tuple[int, int, int]] = []

    def part(pair: tuple[int, int], now: int) -> None:
        met = since.pop(pair)
        if now > met:
            out.append((*pair, now - met))

    for cut, now in zip(order.tolist(), times[order].tolist(), strict=True):
        who = cut % count
        if cut < count:
            insort(line, who)
        at = bisect_left(line, who)
        left = line[at - 1] if at else None
        right = line[at + 1] if at + 1 < len(line) else None
        if cut < count:
            if left is not None and right is not None:
                part((left, right), now)
            if left is not None:
                since[left, who] = now
            if right is not None:
                since[who, right] = now
        else:
            if left is not None:
                part((left, who), now)
            if right is not None:
                part((who, right), now)
            if left is not None and right is not None:
                since[left, right] = now
            del line[at]
    pairs = np.array(out, np.int64).reshape(-1, 3)
    return Overlaps(pairs[:, 0].astype(np.intp), pairs[:, 1].astype(np.intp), pairs[:, 2])


def cover_before(start: Ints, end: Ints, moment: Ints) -> Ints:
    """For each moment, return the earlier time that the intervals (disjoint and sorted) cover."""
    before = np.append(0, np.cumsum(end - start))
    place = np.searchsorted(start, moment, side="right")
    last_end = np.append(_FIRST, end)[place]
    return before[place] - np.where(place > 0, np.maximum(last_end - moment, 0), 0)


def covered(line: tuple[Ints, Ints], start: Ints, end: Ints) -> Ints:
    """Return the time in each ``[start, end]`` that the disjoint, sorted intervals cover."""
    return cover_before(*line, end) - cover_before(*line, start)


def held(line: Line, start: Ints, end: Ints) -> Mask:
    """Mark each ``[start, end]`` that lies entirely inside one of the disjoint, sorted intervals."""
    if len(line[0]) > _FEW:
        return np.append(_FIRST, line[1])[np.searchsorted(line[0], start, side="right")] >= end
    inside = np.zeros(len(start), bool)
    for first, last in zip(*line, strict=True):
        inside |= (start >= first) & (end <= last)
    return inside


def covered_by(lines: Mapping[int, tuple[Ints, Ints]], line: AnyInts, start: Ints, end: Ints) -> Ints:
    """Return the time in each ``[start, end]`` that the intervals ``lines[line]`` cover, 0 for a missing line."""
    out, end = np.zeros(len(start), np.int64), np.maximum(end, start)
    for number in lines:
        rows = np.flatnonzero(line == number)
        out[rows] = covered(lines[number], start[rows], end[rows])
    return out


def expand_ranges(first: AnyInts, size: AnyInts) -> Ints:
    """Concatenate many ranges of numbers: ``size`` numbers from each ``first``."""
    before = np.cumsum(size) - size
    return np.arange(int(size.sum())) + np.repeat(first - before, size)


NOTHING = 255  # the kind of a column in which nothing ran


def column_edges(start: int, end: int, columns: int) -> Ints:
    """Return column edges, so that the `column` of a time is ``(time - start) * columns // length``."""
    length = max(end - start, 1)
    columns = max(1, min(columns, length))
    # Python integers: the products of a long time do not fit into 64 bits
    return np.array([start - (-k * length // columns) for k in range(columns + 1)], np.int64)


def column(times: Ints, edges: Ints) -> Ints:
    """Return the column of each time; times outside are in the first or last column."""
    return np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(edges) - 2)


def time_per_group(start: Ints, end: Ints, group: Bytes, edges: Ints) -> Ints:
    """Sum the time of intervals in each (group, column): int64 ns of shape (groups, columns).

    Most intervals are in one column. If an interval fills whole columns, these columns are counted from its start and
    end.
    """
    columns, groups = len(edges) - 1, int(group.max(initial=0)) + 1
    first, last = column(start, edges), column(np.maximum(end - 1, start), edges)
    row = group.astype(np.int64) * columns
    out = np.zeros(groups * columns, np.int64)
    inside = first == last
    np.add.at(out, (row + first)[inside], (end - start)[inside])
    long = np.flatnonzero(~inside)
    if len(long):
        row, first, last = row[long], first[long], last[long]
        np.add.at(out, row + first, edges[first + 1] - start[long])
        np.add.at(out, row + last, end[long] - edges[last])
        cover = np.zeros((groups, columns + 1), np.int64)
        np.add.at(cover, (group[long], first + 1), 1)
        np.add.at(cover, (group[long], last), -1)
        out += (np.cumsum(cover[:, :-1], axis=1) * np.diff(edges)).ravel()
    return out.reshape(groups, columns)


def busy_columns(start: Ints, end: Ints, group: Bytes, edges: Ints) -> tuple[Ints, Bytes]:
    """For each column, return the time (ns) in which any interval ran, and the group that ran longest, or `NOTHING`."""
    busy: Ints = np.diff(cover_before(*merge(start, end), edges))
    longest = time_per_group(start, end, group, edges).argmax(axis=0)
    return busy, np.where(busy > 0, longest, NOTHING).astype(np.uint8)
