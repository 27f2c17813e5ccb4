"""Find the work in ranges: launches in any instance of a path, and GPU ops of chosen instances."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.attribute import FOLLOWED, Attribution
from nsysprof.attribution.projection import DEVICE_BITS
from nsysprof.core.arrays import AnyInts, Array, Index, Ints, Ints32, Mask
from nsysprof.core.columns import marked, sums
from nsysprof.core.intervals import contained_slices, expand_ranges, layers, merge, slice_reduce
from nsysprof.trace.trace import START_END, Trace

_PIECE = 1 << 22  # GPU ops at a time


@dataclass(frozen=True)
class Cover:
    """The launches in the ranges of each path, as disjoint slices of sorted launches.

    ``parts`` are ``(launches, path, low, high)``: ``launches[low[i]:high[i]]`` are in ranges of ``path[i]``. ``count``
    is the number of paths.
    """

    parts: tuple[tuple[Index, Ints32, Index, Index], ...]
    count: int

    def sums(self, per_launch: Array) -> Ints:
        """For each path, return the sum of a column over all launches in the ranges of the path."""
        out = np.zeros(self.count, np.int64)
        for launches, path, low, high in self.parts:
            before = np.zeros(len(launches) + 1, np.int64)
            np.cumsum(per_launch[launches], out=before[1:])
            np.add.at(out, path, before[high] - before[low])
        return out

    def ops(self, trace: Trace) -> Iterator[tuple[Ints32, Ints32]]:
        """Yield arrays ``(path, row)``; ``row`` is an index into ``trace.ops``. A GPU op appears once for each path
        that has a range around its launch.

        The rows come in parts, because nested ranges contain the same ops many times.
        """
        for launches, path, low, high in self.parts:
            caused, size = trace.ops_by_launch.of(launches)
            edges = np.append(0, np.cumsum(size))
            low, length = edges[low], edges[high] - edges[low]
            group = np.cumsum(length) // _PIECE
            for piece in np.split(np.arange(len(path)), np.flatnonzero(np.diff(group)) + 1):
                yield np.repeat(path[piece], length[piece]), caused[expand_ranges(low[piece], length[piece])]


def cover(attribution: Attribution, rows: AnyInts, of: Ints32, count: int) -> Cover:
    """Find the `Cover` of the ranges ``rows``; their paths are ``of[rows]``, numbers below ``count``.

    A start/end range includes all threads of its process (under ``strict``, only its own thread). A push/pop range
    includes its own thread and the worker threads whose work is attributed to the range.
    """
    window = attribution.trace.ranges.kind[rows] == START_END
    parts = [
        part
        for each in (False, True)
        if (window == each).any()
        for part in _parts(attribution, rows[window == each], of, each)
    ]
    return Cover(tuple(parts), count)


def _parts(
    attribution: Attribution, rows: AnyInts, of: Ints32, window: bool
) -> Iterator[tuple[Index, Ints32, Index, Index]]:
    """The parts of a cover per thread or, for start/end ranges (``window``), per process."""
    trace = attribution.trace
    launches, ranges = trace.launches, trace.ranges
    place_of_launch, place_of_range = launches.thread, ranges.thread[rows]
    if not window:
        follows = attribution.outcome == FOLLOWED
        place_of_launch = np.where(follows, ranges.thread.take(attribution.owner), launches.thread)
    elif attribution.threads != "strict":
        place_of_launch = trace.thread_process[launches.thread]
        place_of_range = trace.thread_process[place_of_range]
    narrow = place_of_launch.astype(np.min_scalar_type(int(place_of_launch.max(initial=0))))
    order = np.argsort(narrow, kind="stable")  # by radix; the launches of each thread are in order
    places = np.flatnonzero(np.bincount(place_of_range))
    until = np.cumsum(np.bincount(place_of_launch, minlength=places[-1] + 1))
    bounds = np.append(0, until)[[places, places + 1]]
    for place, first, last in zip(places.tolist(), *bounds.tolist(), strict=True):
        here, instances = order[first:last], rows[place_of_range == place]
        if (launches.start[here[1:]] <= launches.start[here[:-1]]).any():
            here = here[np.lexsort((launches.end[here], launches.start[here]))]
        for layer in layers(launches.end[here]):
            members = here if layer is None else here[layer]
            low, high = contained_slices(
                launches.start[members], launches.end[members], ranges.start[instances], ranges.end[instances]
            )
            yield members, *_disjoint(of[instances], low, high)


def launches_inside(attribution: Attribution, rows: AnyInts) -> Mask:
    """Mark the launches entirely inside at least one of the ranges ``rows``."""
    out = np.zeros(len(attribution.trace.launches), bool)
    one_path = np.zeros(len(attribution.trace.ranges), np.int32)
    for launches, _, low, high in cover(attribution, rows, one_path, 1).parts:
        for first, last in zip(low.tolist(), high.tolist(), strict=True):
            out[launches[first:last]] = True
    return out


def _disjoint(path: Ints32, low: Index, high: Index) -> tuple[Ints32, Index, Index]:
    """The slices of each path, with overlapping slices joined: the paths follow one another on one long axis."""
    width = np.int64(high.max(initial=0)) + 1
    first, last = merge(path * width + low, path * width + high)
    return (first // width).astype(np.int32), first % width, last - first // width * width


def overlapping(attribution: Attribution, of: Ints32, rows: AnyInts) -> Mask:
    """Mark start/end ranges (among ``rows``) whose path has instances that overlap in one process.

    ``of`` is the path of every range.
    """
    trace = attribution.trace
    ranges = trace.ranges
    process, path = trace.thread_process[ranges.thread[rows]], of[rows]
    order = np.lexsort((ranges.start[rows], process, path))
    start, end = ranges.start[rows][order], ranges.end[rows][order]
    same = (path[order][1:] == path[order][:-1]) & (process[order][1:] == process[order][:-1])
    # An instance that overlaps any earlier one of its path leaves some two neighbours overlapping.
    return np.isin(path, path[order][1:][same & (start[1:] <= end[:-1])])


def crossing(attribution: Attribution, depth: Ints32) -> Mask:
    """Mark push/pop ranges inside which another range starts but does not end (possible if the two have different
    domains).

    ``depth`` is the number of ranges around each range; if ranges nest, exactly ``depth`` ranges are open when the
    range starts.
    """
    ranges = attribution.trace.ranges
    out = np.zeros(len(ranges), bool)
    if len(ranges) == 0:
        return out
    group = 2 * ranges.thread.astype(np.int64) + (ranges.kind == START_END)
    edges = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    for first, last in zip(edges.tolist(), [*edges[1:].tolist(), len(ranges)], strict=True):
        if ranges.kind[first] == START_END:
            continue
        start, end = ranges.start[first:last], ranges.end[first:last]
        number = np.arange(last - first)
        if np.array_equal(depth[first:last], number - np.searchsorted(np.sort(end), start, side="right")):
            continue
        inside = np.searchsorted(start, end, side="right")
        reach = slice_reduce(np.maximum, end, number, inside, np.iinfo(np.int64).min)
        out[first:last] = reach > end
    return out


def added_up(attribution: Attribution, per_op: Array) -> Ints:
    """For each launch, return the sum of a column over the launch's GPU ops."""
    return sums(attribution.trace.ops.launch, per_op, len(attribution.trace.launches) + 1)[:-1]


@dataclass(frozen=True)
class WorkIndex:
    """The launches in each indexed range, and the GPU ops of each launch.

    ``number`` int32 per range instance: the index of the range in this table, -1 for other ranges. The launches of
    index ``i`` are ``launches[first[i] : first[i + 1]]``.
    """

    attribution: Attribution
    number: Ints32
    first: Ints
    launches: Index

    def launches_of(self, rows: Index) -> tuple[Index, Ints]:
        """Return the launches inside the ranges ``rows``, range by range, and the index of each launch's range."""
        place = self.number[rows]
        size = self.first[place + 1] - self.first[place]
        return self.launches[expand_ranges(self.first[place], size)], np.repeat(np.arange(len(rows)), size)

    def ops_of(self, rows: Index) -> tuple[Index, Ints]:
        """Return the GPU ops of the launches in ``rows``, and for each op the index of its range."""
        launch, place = self.launches_of(rows)
        op, size = self.attribution.trace.ops_by_launch.of(launch)
        return op.astype(np.intp), np.repeat(place, size)


def index_work(attribution: Attribution, rows: Index) -> WorkIndex:
    """Make the `WorkIndex` of the ranges ``rows``, which are distinct, in near-linear time in launches and GPU ops."""
    number = np.full(len(attribution.trace.ranges), -1, np.int32)
    number[rows] = np.arange(len(rows))
    parts = cover(attribution, rows, number, len(rows)).parts
    places = [np.repeat(place, high - low) for _, place, low, high in parts]
    launches = [members[expand_ranges(low, high - low)] for members, _, low, high in parts]
    place = np.concatenate([np.empty(0, np.int32), *places])
    launch = np.concatenate([np.empty(0, np.intp), *launches])
    order = np.argsort(place, kind="stable")
    return WorkIndex(attribution, number, np.searchsorted(place[order], np.arange(len(rows) + 1)), launch[order])


@dataclass(frozen=True)
class RangeWork:
    """The GPU ops in chosen range instances, sorted by instance and start.

    The columns of ops are ``op`` (a row of `trace.ops`), ``window`` (the number of the instance), ``call`` (-1 outside
    all calls), ``start`` and ``end`` (int64 ns; ``end`` is never before ``start``). The columns of instances with ops
    are ``windows`` (the number of the instance), ``first_ns``, ``last_ns`` and ``gpus`` (a bit per GPU).

    If a graph was captured in an instance, each replay of the graph counts as an instance; ``beside_replays`` counts
    the GPU ops of the instance outside replays; these ops are left out. ``calls`` is the number of requested calls, and
    ``idle_calls`` is the number of calls without GPU work.
    """

    op: Index
    window: Ints
    call: Ints
    start: Ints
    end: Ints
    windows: Ints
    first_ns: Ints
    last_ns: Ints
    gpus: Ints
    calls: int
    idle_calls: int
    beside_replays: int = 0

    @property
    def span_ns(self) -> int:
        """Return the time from the first GPU op to the last, summed over instances."""
        return int((self.last_ns - self.first_ns).sum())


def range_work(
    index: WorkIndex,
    windows: Index,
    calls: Index | None = None,
    left_out: Mask | None = None,
    since: Ints | None = None,
) -> RangeWork:
    """Find the `RangeWork` of the range instances ``windows`` with the ``calls`` inside them (None: each instance is
    one call).

    If CUDA graphs are read as captured, each replay of a graph counts as an instance and as a call.

    ``left_out``: range instances with excluded work; ``since``: earlier launches are excluded (a time per instance).
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
    caused, size = trace.ops_by_launch.of(launch)
    op = caused.astype(np.intp)
    window, call = np.repeat(window, size), np.repeat(call, size)
    count, replay = len(windows if calls is None else calls), index.attribution.replay
    left = 0
    idle_calls = count - len(np.unique(call[call >= 0]))
    if replay is not None and (replay[op] >= 0).any():
        of_graph = marked(window[replay[op] >= 0], len(windows))
        kept = (replay[op] >= 0) | ~of_graph[window]
        left = int(np.count_nonzero(~kept))
        op, window, call = op[kept], window[kept], call[kept]
        window, call, ran = _by_replay(window, call, replay[op])
        count = ran + idle_calls
    return _sorted_work(trace, op, window, call, {"calls": count, "idle_calls": idle_calls, "beside_replays": left})


def whole_work(trace: Trace) -> RangeWork:
    """Return one `RangeWork` that covers all ops of the trace that keep a GPU busy."""
    ops, op = trace.ops, np.flatnonzero(trace.op_gpu >= 0)
    op = op[np.lexsort((ops.end[op], ops.start[op]))]
    op = trace.settled(op, ops.start[op], ops.end[op])
    whole = np.zeros(len(op), np.int64)
    return _sorted_work(trace, op, whole, whole, {"calls": 1, "idle_calls": 0})


def _sorted_work(trace: Trace, op: Index, window: Ints, call: Ints, numbers: Mapping[str, int]) -> RangeWork:
    start = trace.ops.start[op]
    end = np.maximum(trace.ops.end[op], start)
    order = np.lexsort((end, start, window))
    op, window, call, start, end = (each[order] for each in (op, window, call, start, end))
    edges = np.flatnonzero(np.diff(window, prepend=-1))
    bits = np.int64(1) << np.minimum(trace.op_gpu[op], DEVICE_BITS).astype(np.int64)
    return RangeWork(
        op=op,
        window=window,
        call=call,
        start=start,
        end=end,
        windows=window[edges],
        first_ns=start[edges],
        last_ns=np.maximum.reduceat(end, edges),
        gpus=np.bitwise_or.reduceat(bits, edges),
        **numbers,
    )


def _by_replay(window: Ints, call: Ints, replay: Ints32) -> tuple[Ints, Ints, int]:
    """The window and call of each GPU op, with a new window and call per replay, and the resulting number of calls.

    ``replay`` is -1 for ops outside replays, which keep their window and call.
    """
    width = int(replay.max()) + 2
    _, window = np.unique(window * width + replay + 1, return_inverse=True)
    called, number = np.unique(np.where(call >= 0, call * width + replay + 1, -1), return_inverse=True)
    unheld = int((called < 0).sum())  # what no call holds comes first
    return window, number - unheld, len(called) - unheld


def reach_so_far(work: RangeWork) -> Ints:
    """For each GPU op, return the latest end (ns) among this op and the earlier ops of its instance."""
    ranked, rank = np.unique(work.end, return_inverse=True)
    count = len(ranked)
    highest = np.maximum.accumulate(rank.reshape(-1) + work.window * count)
    return ranked[highest % count] if count else work.end


@dataclass(frozen=True)
class Pieces:
    """Instances, cut at the first GPU op of each call. Each call with GPU work has a piece; pieces are sorted by
    instance and time.

    A piece lasts from ``start`` to ``end`` (int64 ns); ``call`` and ``window`` are the numbers of its call and its
    instance. ``of_op`` is the piece of each op, -1 in an instance without calls. The pieces add up to the instance's
    elapsed time: time before the first call belongs to the first call, and time between two calls belongs to the
    earlier call.
    """

    start: Ints
    end: Ints
    call: Ints
    window: Ints
    of_op: Ints


def cut(work: RangeWork) -> Pieces:
    """Cut the work of range instances into `Pieces`."""
    in_calls = np.flatnonzero(work.call >= 0)
    _, at = np.unique(work.call[in_calls], return_index=True)  # sorted by time: the first of each call
    first = np.sort(in_calls[at])
    window = work.window[first]
    leads, ends = np.diff(window, prepend=-1) != 0, np.diff(window, append=-1) != 0
    place = np.searchsorted(work.windows, window)
    start = np.where(leads, work.first_ns[place], work.start[first])
    end = np.where(ends, work.last_ns[place], np.append(start[1:], 0)[: len(first)])
    of_op = np.searchsorted(first, np.arange(len(work.op)), side="right") - 1
    least = np.searchsorted(window, work.window)
    of_op = np.maximum(of_op, least)
    of_op[np.append(window, -1)[np.minimum(least, len(window))] != work.window] = -1
    return Pieces(start, end, work.call[first], window, of_op)
