"""The ops inside chosen range instances, cut into calls: what comparisons are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.cover import cover
from nsysprof.attribution.projection import DEVICE_BITS
from nsysprof.core.intervals import Ints, expand_ranges, merge


@dataclass(frozen=True)
class WorkIndex:
    """Which launches lie in each of some ranges, and which ops each launch caused.

    ``number`` int32 per range instance: its place among those indexed, -1 for others. The launches of place ``i`` are
    ``launches[first[i] : first[i + 1]]``; the ops of launch ``j`` are ``ops[begin[j] : begin[j + 1]]``.
    """

    attribution: Attribution
    number: NDArray[np.int32]
    first: NDArray[np.int64]
    launches: NDArray[np.intp]
    begin: NDArray[np.int64]
    ops: NDArray[np.intp]
    _unions: dict[int, tuple[Ints, Ints]] = field(default_factory=dict, repr=False)

    def launches_of(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """The launches inside the ranges ``rows``, one range after the other, and for each the place in ``rows``."""
        place = self.number[rows]
        size = self.first[place + 1] - self.first[place]
        at = expand_ranges(self.first[place], size)
        return self.launches[at], np.repeat(np.arange(len(rows)), size)


def index_work(attribution: Attribution, rows: NDArray[np.intp]) -> WorkIndex:
    """The `WorkIndex` of the ranges ``rows``, each named once. Near-linear in launches and ops, however many rows."""
    trace = attribution.trace
    number = np.full(len(trace.ranges), -1, np.int32)
    number[rows] = np.arange(len(rows))
    found = cover(attribution, rows, number, len(rows)).parts
    places = [np.repeat(place, high - low) for _, place, low, high in found]
    launches = [mine[expand_ranges(low, high - low)] for mine, _, low, high in found]
    place = np.concatenate(places) if places else np.empty(0, np.int64)
    launch = np.concatenate(launches) if launches else np.empty(0, np.intp)
    order = np.argsort(place, kind="stable")
    count = len(trace.launches)
    by_launch = np.argsort(trace.ops.launch, kind="stable")
    begin = np.searchsorted(trace.ops.launch, np.arange(count + 1), sorter=by_launch)
    return WorkIndex(
        attribution,
        number,
        np.searchsorted(place[order], np.arange(len(rows) + 1)),
        launch[order],
        begin,
        by_launch,
    )


@dataclass(frozen=True)
class RangeWork:
    """The ops inside some range instances (windows), sorted by window and start.

    Per op: ``op`` a row of `trace.ops`; ``window``; ``call``, a number among the calls, -1 for what no call holds;
    ``start``, ``end`` int64 ns, never before the start. Per window with ops, in order: ``windows`` its number,
    ``first_ns``, ``last_ns``, ``gpus`` a bit per GPU. ``calls`` is how many calls were asked for, ``idle_calls`` how
    many of them launched no GPU work.
    """

    op: NDArray[np.intp]
    window: NDArray[np.int64]
    call: NDArray[np.int64]
    start: Ints
    end: Ints
    windows: NDArray[np.int64]
    first_ns: Ints
    last_ns: Ints
    gpus: Ints
    calls: int
    idle_calls: int

    @property
    def span_ns(self) -> int:
        """From first op to last, added over windows."""
        return int((self.last_ns - self.first_ns).sum())


def range_work(
    index: WorkIndex,
    windows: NDArray[np.intp],
    calls: NDArray[np.intp] | None = None,
    left_out: NDArray[np.bool_] | None = None,
    since: Ints | None = None,
) -> RangeWork:
    """The `RangeWork` of the range instances ``windows`` with the ``calls`` inside them; None: each is one call.

    ``left_out``: range instances whose work does not count; ``since``: from when on that of each window does.
    """
    trace = index.attribution.trace
    launch, window = index.launches_of(windows)
    if left_out is not None:
        counts = ~np.append(left_out, False)[index.attribution.owner[launch]]
        launch, window = launch[counts], window[counts]
    if since is not None:
        counts = trace.launches.start[launch] >= since[window]
        launch, window = launch[counts], window[counts]
    call = window
    if calls is not None:
        inside, number = index.launches_of(calls)
        call_of = np.full(len(trace.launches), -1, np.int64)
        call_of[inside] = number
        call = call_of[launch]
    size = index.begin[launch + 1] - index.begin[launch]
    op = index.ops[expand_ranges(index.begin[launch], size)]
    window, call = np.repeat(window, size), np.repeat(call, size)
    start = trace.ops.start[op]
    end = np.maximum(trace.ops.end[op], start)
    order = np.lexsort((end, start, window))
    op, window, call, start, end = (each[order] for each in (op, window, call, start, end))
    new = np.append(True, window[1:] != window[:-1])[: len(op)]
    edges = np.flatnonzero(new)
    bits = np.int64(1) << np.minimum(trace.op_gpu[op], DEVICE_BITS).astype(np.int64)
    none = np.empty(0, np.int64)
    count = len(windows if calls is None else calls)
    return RangeWork(
        op=op,
        window=window,
        call=call,
        start=start,
        end=end,
        windows=window[edges],
        first_ns=start[edges],
        last_ns=np.maximum.reduceat(end, edges) if len(edges) else none,
        gpus=np.bitwise_or.reduceat(bits, edges) if len(edges) else none,
        calls=count,
        idle_calls=count - len(np.unique(call[call >= 0])),
    )


def reach_so_far(work: RangeWork) -> Ints:
    """For each op the latest end among it and those before it in its window; ends are ranked, so windows stay apart."""
    ranked, rank = np.unique(work.end, return_inverse=True)
    count = len(ranked)
    highest = np.maximum.accumulate(rank.reshape(-1) + work.window * count)
    return ranked[highest % count] if count else work.end


@dataclass(frozen=True)
class Pieces:
    """The windows cut at the first op of each call: a piece per call that has ops, sorted by window and time.

    ``start``, ``end`` int64 ns; ``call`` its number, ``window`` that of its window; ``of_op`` the piece of each op, -1
    in a window without calls. The pieces of a window add up to its span: what runs before the first call belongs to
    that; what runs between two calls, or nothing at all, to the earlier one.
    """

    start: Ints
    end: Ints
    call: NDArray[np.int64]
    window: NDArray[np.int64]
    of_op: NDArray[np.int64]


def cut(work: RangeWork) -> Pieces:
    """The `Pieces` of the work of a range."""
    mine = np.flatnonzero(work.call >= 0)
    _, at = np.unique(work.call[mine], return_index=True)  # ops are sorted by time: the first of each call
    first = np.sort(mine[at])
    window = work.window[first]
    leads = np.append(True, window[1:] != window[:-1])[: len(first)]
    ends = np.append(leads[1:], True)[: len(first)]
    place = np.searchsorted(work.windows, window)
    start = np.where(leads, work.first_ns[place], work.start[first])
    end = np.where(ends, work.last_ns[place], np.append(start[1:], 0)[: len(first)])
    of_op = np.searchsorted(first, np.arange(len(work.op)), side="right") - 1
    least = np.searchsorted(window, work.window)
    of_op = np.maximum(of_op, least)
    of_op[np.append(window, -1)[np.minimum(least, len(window))] != work.window] = -1
    return Pieces(start, end, work.call[first], window, of_op)


def union_of(index: WorkIndex, gpus: int) -> tuple[Ints, Ints]:
    """When at least one of these GPUs runs something, whoever launched it, as disjoint sorted intervals."""
    if gpus not in index._unions:
        trace = index.attribution.trace
        gpu = trace.stream_gpu.astype(np.int64)
        bits = np.int64(1) << np.clip(gpu, 0, DEVICE_BITS)
        mine = ((gpu >= 0) & ((bits & gpus) != 0))[trace.ops.stream]
        index._unions[gpus] = merge(trace.ops.start[mine], trace.ops.end[mine])
    return index._unions[gpus]
