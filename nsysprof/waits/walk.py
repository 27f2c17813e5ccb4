"""The dependency walk: find why a GPU computed nothing. The walk goes from the op that ended a gap back to the start of
the gap.

An op starts when its predecessor in the stream and every dependency of its stream have ended, and its host call has
launched it. The last of these events is the reason. If the reason is an op, its part of the gap is assigned to this op,
and the walk continues from the start of the op. If the reason is the host call, the rest of the gap is assigned to the
host.
"""

from dataclasses import dataclass

import numpy as np

from nsysprof.core.arena import sort_groups
from nsysprof.core.arrays import AnyInts, Bytes, Index, Ints, Ints32, Mask
from nsysprof.core.columns import marked, pick
from nsysprof.trace.details import Dependencies, HostActivity
from nsysprof.trace.trace import GRAPH, MEMCPY, Ops, Trace

# What a piece of a gap is: an op ran that the next one depended on; the host had not launched yet; launched and free
# to start; nobody knows; the way back was too long to be followed; or free to start for longer than is usual.
RUNS, HOST, LATENCY, UNKNOWN, CUT, HOLE = range(6)
# Which edge led to the op that came last.
NO_EDGE, STREAM, EVENT, BARRIER = range(4)
# Behind what an op starts: its launch, that of its CUDA graph, an op, or an event.
_LAUNCH, _GRAPH_LAUNCH, _OP, _EVENT = range(4)
# Latency is at most so many times the median of its kind. Launches on Linux take 1 to 10 µs, and where streams or
# contexts change up to 20; those of Windows (WDDM) several 100 µs, and no driver takes more than 1 ms.
_USUAL, _LEAST_NS, _MOST_NS = 4, 20_000, 1_000_000
_ENOUGH = 20  # latencies of a kind that say what is usual; with fewer all kinds together do
MAX_STEPS = 10_000  # ops on the way back through one gap
_CHUNK = 1 << 18  # ops at a time where temporaries would be large
_NEVER = np.iinfo(np.int64).min
_WAIT_CALLS = {"cudaStreamWaitEvent", "cuStreamWaitEvent", "hipStreamWaitEvent"}


@dataclass(frozen=True)
class Reasons:
    """The dependency for which each GPU op waited, in the order of `Trace.ops`.

    ``op`` is the last dependency to end, -1 for none; ``edge`` is its kind (`STREAM`, `EVENT`, `BARRIER`), and
    ``ready`` is its end. ``in_stream`` is the end of the predecessor in the same stream. ``launched`` is the return of
    the host call or, for copies, the start of the call. These times are int64 ns; missing times are the smallest int64.
    ``marked`` tells whether the stream recorded or awaited an event between the op and its predecessor. ``latency``
    (int64 ns) is the usual upper limit of delays in this recording. A delay lasts from a launch, a CUDA graph launch,
    an op or an event to the start of the next op.
    """

    op: Ints32
    edge: Bytes
    ready: Ints
    in_stream: Ints
    launched: Ints
    marked: Mask
    latency: Ints


@dataclass(frozen=True)
class Pieces:
    """Gaps split into pieces that add up: the number of the ``gap``, ``start`` and ``end`` (int64 ns), and ``kind``.

    For the kind `RUNS`, ``op`` is the op that ran. For other kinds, ``op`` is the op that was not yet launched or not
    yet started, -1 for none.
    """

    gap: Index
    start: Ints
    end: Ints
    kind: Bytes
    op: Ints32


def reasons(trace: Trace, dependencies: Dependencies) -> Reasons:
    """Find the `Reasons` of all ops of a trace in near-linear time; only event waits and records need a Python loop."""
    ops, launches = trace.ops, trace.launches
    arena, lanes = trace.arena, lanes_of(trace)
    order = lanes.order
    op = np.full(len(ops), -1, np.int32)
    same = lanes.stream[1:] == lanes.stream[:-1]
    op[order[1:][same]] = order[:-1][same]
    edge = np.where(op >= 0, STREAM, NO_EDGE).astype(np.uint8)
    ends = np.append(ops.end, _NEVER)
    in_stream = arena.take(ends, op)
    place = lanes.before(*event_calls(dependencies)[:2])
    for other, kind in ((barriers(dependencies, lanes), BARRIER), (_awaited(dependencies, lanes, place), EVENT)):
        rows = np.flatnonzero(other >= 0)
        rows = rows[(op[rows] < 0) | (ops.end[other[rows]] > ops.end[op[rows]])]
        op[rows], edge[rows] = other[rows], kind
    launched = arena.full(len(ops), _NEVER, np.int64)
    for first in range(0, len(ops), _CHUNK):
        known = first + np.flatnonzero(ops.launch[first : first + _CHUNK] >= 0)
        launch = ops.launch[known]
        launched[known] = np.where(ops.kind[known] == MEMCPY, launches.start[launch], launches.end[launch])
    recorded = marked(lanes.behind(event_calls(dependencies)[0], place), len(ops))
    ready = arena.take(ends, op)
    return Reasons(op, edge, ready, in_stream, launched, recorded, _latency(trace, ready, launched, recorded))


def _latency(trace: Trace, ready: Ints, launched: Ints, marked: Mask) -> Ints:
    """`Reasons.latency` of a trace, from the other columns of `Reasons`."""
    ops, came = trace.ops, np.maximum(ready, launched)
    rows = np.flatnonzero((ops.launch >= 0) & (came <= ops.start))
    kind = _behind(ops, rows, launched[rows] >= ready[rows], marked[rows])
    length = ops.start[rows] - came[rows]
    parts = [length[kind == code] for code in range(_EVENT + 1)]
    usual = [np.median(part if len(part) >= _ENOUGH else length) if len(length) else 0 for part in parts]
    return np.clip(_USUAL * np.array(usual), _LEAST_NS, _MOST_NS).astype(np.int64)


def _behind(ops: Ops, op: AnyInts, late: Mask, marked: Mask) -> Bytes:
    """The place in `Reasons.latency` of ops; ``late``: launched after all their other dependencies."""
    graph = ops.from_graph[op] | (ops.kind[op] == GRAPH)
    launched = np.where(graph, np.uint8(_GRAPH_LAUNCH), np.uint8(_LAUNCH))
    return np.where(late, launched, np.where(marked, np.uint8(_EVENT), np.uint8(_OP)))


def lacking(dependencies: Dependencies, activity: HostActivity) -> tuple[str, ...]:
    """Name the data that the recording lacks, each with the option that records it."""
    if not _WAIT_CALLS & set(activity.calls.names):
        return ()
    if dependencies.unnamed:
        return (f"the events that streams wait for (unknown for {dependencies.unnamed:,} waits)",)
    both = (("waits for events", dependencies.waits), ("records of events", dependencies.records))
    return tuple(f"{name} ({dependencies.recorded_by})" for name, events in both if not len(events))


def walk(trace: Trace, why: Reasons, start: Ints, end: Ints, op: AnyInts) -> Pieces:
    """Split the gaps from each ``start`` to each ``end`` into `Pieces`, sorted by gap and time.

    ``op`` is the op that starts at the end of the gap. If the gap follows the last compute, it is the op that ends
    there; -1: the GPU only waited for the host to launch. The walk stops after `MAX_STEPS` ops, to bound the run time
    per gap; the rest of the gap is `CUT`.
    """
    ops = trace.ops
    gap, at, now = np.arange(len(start)), np.array(end), np.array(op, np.int64)
    out: list[tuple[Index, Ints, Ints, Bytes, Ints]] = []

    def add(rows: Mask, begin: Ints, stop: Ints, kind: int, whose: Ints) -> None:
        rows = rows & (begin < stop)
        out.append((gap[rows], begin[rows], stop[rows], np.full(rows.sum(), kind, np.uint8), whose[rows]))

    idle = now < 0
    add(idle, np.array(start), at, HOST, now)
    at = np.where(idle, start, at)
    inside = ~idle & (ops.start[now] < at)  # the op itself runs up to the end of the gap
    first = np.maximum(start, ops.start[now])
    add(inside, first, at, RUNS, now)
    at = np.where(inside, first, at)
    for _ in range(MAX_STEPS):
        left = at > start[gap]
        gap, at, now = gap[left], at[left], now[left]
        if len(gap) == 0:
            break
        begin, ready, launched = start[gap], why.ready[now], why.launched[now]
        came = np.minimum(np.maximum(ready, launched), at)
        known, by_host = came > _NEVER, launched > _NEVER
        late = known & (launched >= ready)
        usual = came + np.minimum(at - came, why.latency[_behind(ops, now, late, why.marked[now])])
        called = np.clip(_returned(trace, now), usual, at)
        add(by_host, np.maximum(begin, came), usual, LATENCY, now)
        add(by_host, np.maximum(begin, usual), called, HOST, now)
        add(by_host, np.maximum(begin, called), at, HOLE, now)
        add(known & ~by_host, np.maximum(begin, came), at, UNKNOWN, now)
        add(late, begin, came, HOST, now)
        before = why.op[now].astype(np.int64)
        back = known & ~late & (ops.start[before] < at)
        lost = ~late & ~back
        add(lost, begin, np.where(known, came, at), UNKNOWN, now)
        add(back, np.maximum(begin, ops.start[before]), came, RUNS, before)
        at = np.where(back, np.minimum(ops.start[before], came), begin)
        now = np.where(back, before, now)
    else:
        add(np.ones(len(gap), bool), start[gap], at, CUT, now)
    whole = [np.concatenate(column) for column in zip(*out, strict=True)]
    by_time = np.lexsort((whole[1], whole[0]))
    number, begin, stop, kind, whose = (column[by_time] for column in whole)
    return Pieces(number, begin, stop, kind, whose.astype(np.int32))


def _returned(trace: Trace, op: Ints) -> Ints:
    """When the call of each copy returned: until then the host may be filling a buffer for it; 0 for other ops."""
    out = np.zeros(len(op), np.int64)
    copies = np.flatnonzero((trace.ops.kind[op] == MEMCPY) & (trace.ops.launch[op] >= 0))
    out[copies] = trace.launches.end[trace.ops.launch[op[copies]]]
    return out


@dataclass(frozen=True)
class Lanes:
    """Ops by stream and start; ``order``: rows of `Trace.ops`, with the ``stream`` of each op and the time at which it
    was ``called``.

    ``called`` never decreases along a stream; ``end`` and ``start`` as in `Trace.ops`.
    """

    order: Index
    stream: AnyInts
    called: Ints
    end: Ints
    start: Ints

    def __post_init__(self) -> None:
        """Let no op be called before its predecessor in its stream."""
        for calls in np.split(self.called, np.flatnonzero(np.diff(self.stream)) + 1):
            np.maximum.accumulate(calls, out=calls)

    def before(self, stream: AnyInts, time: Ints) -> Index:
        """For each stream and host time, return the position in ``order`` of the last op that was called before this
        time, or -1.
        """
        first = np.searchsorted(self.stream, stream, side="left")
        low, high = first, np.searchsorted(self.stream, stream, side="right")
        while (some := low < high).any():  # a binary search in all streams at once
            middle = (low + high) // 2
            earlier = self.called[np.minimum(middle, len(self.called) - 1)] < time
            low, high = np.where(some & earlier, middle + 1, low), np.where(some & ~earlier, middle, high)
        return np.where(low > first, low - 1, -1)

    def behind(self, stream: AnyInts, place: Index) -> Index:
        """For positions returned by `before`, return the next op in each stream, if there is one."""
        following = np.where(place >= 0, place + 1, np.searchsorted(self.stream, stream))
        return self.order[following[pick(self.stream, following) == stream]]


def event_calls(dependencies: Dependencies) -> tuple[Ints32, Ints, Ints32]:
    """Return stream, time and event of all calls that record an event, then of all calls that wait for an event."""
    both = dependencies.records, dependencies.waits
    stream, time, event = (
        np.concatenate([getattr(each, name) for each in both]) for name in ("stream", "time", "event")
    )
    return stream, time, event


def _awaited(dependencies: Dependencies, lanes: Lanes, place: Index) -> Ints32:
    """For each op, the last to end of the ops for which its stream had to wait since its predecessor.

    ``place`` is the position of each of `event_calls` in its stream, see `Lanes.before`.
    """
    found = np.full(len(lanes.order), -1, np.int32)
    waits, records = dependencies.waits, dependencies.records
    if len(waits) == 0 or len(records) == 0 or len(lanes.order) == 0:
        return found
    stream, time, event = event_calls(dependencies)
    is_wait = np.arange(len(stream)) >= len(records)
    ends, order = lanes.end, lanes.order
    last_op = pick(order, place)
    recorded: dict[int, int] = {}  # event -> the op that ends last of what it stands for
    pending: dict[int, tuple[int, int]] = {}  # stream -> since which place it waits, and for which op

    def later(one: int, other: int) -> int:
        return other if one < 0 or (other >= 0 and ends[other] > ends[one]) else one

    rows = np.lexsort((event, stream, is_wait, time))
    columns = (column[rows].tolist() for column in (stream, event, is_wait, place, last_op))
    for lane, which, waits_here, since, last in zip(*columns, strict=True):
        old_since, awaited = pending.get(lane, (since, -1))
        if old_since != since:
            awaited = -1
        if not waits_here:
            recorded[which] = later(last, awaited)
        elif (target := recorded.get(which, -1)) >= 0:
            awaited = later(awaited, target)
            pending[lane] = since, awaited
            _mark(found, lanes, lane, since, awaited)
    return found


def _mark(found: Ints32, lanes: Lanes, lane: int, since: int, awaited: int) -> None:
    """Record the dependency of the next op of a stream after a position."""
    following = since + 1 if since >= 0 else int(np.searchsorted(lanes.stream, lane))
    if following < len(lanes.order) and lanes.stream[following] == lane:
        found[lanes.order[following]] = awaited


def lanes_of(trace: Trace) -> Lanes:
    """Return the `Lanes` of all ops of a trace."""
    ops, launches = trace.ops, trace.launches
    order, called = sort_groups(ops.stream, ops.start, ops.end, trace.arena)
    order = trace.settled(order, ops.end[order], called, ops.stream[order])
    for first in range(0, len(order), _CHUNK):
        launch = ops.launch[order[first : first + _CHUNK]]
        called[first + np.flatnonzero(launch >= 0)] = launches.start[launch[launch >= 0]]
    return Lanes(order, ops.stream[order], called, np.asarray(ops.end), np.asarray(ops.start))


def barriers(dependencies: Dependencies, lanes: Lanes) -> Ints32:
    """For each op, return the op for which it waits because of the legacy default stream, or -1. Ops in blocking
    streams wait for ops in the legacy default stream, and the reverse.
    """
    found = np.full(len(lanes.order), -1, np.int32)
    null, blocking = dependencies.null, dependencies.blocking
    context = dependencies.context
    here = lanes.stream
    for each in np.unique(context[null]).tolist() if null.any() else ():
        ours = context == each
        default = np.flatnonzero((null & ours)[here])
        others = np.flatnonzero((blocking & ours)[here])
        if len(default) and len(others):
            for waiting, awaited in ((default, others), (others, default)):
                rows = awaited[np.argsort(lanes.called[awaited], kind="stable")]
                ends = lanes.end[lanes.order[rows]]
                peak = np.maximum.accumulate(ends)
                newest = np.maximum.accumulate(np.where(ends == peak, np.arange(len(rows)), 0))
                count = np.searchsorted(lanes.called[rows], lanes.called[waiting], side="left")
                some = count > 0
                found[lanes.order[waiting[some]]] = lanes.order[rows[newest[count[some] - 1]]]
    return found
