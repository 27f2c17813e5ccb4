"""Builds the `Network` of a trace: which moments of the host, and which GPU ops, wait for which."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import FOLLOWED, Attribution
from nsysprof.core.intervals import Ints
from nsysprof.trace.details import SYNCHRONIZING, Dependencies, HostActivity
from nsysprof.trace.trace import MEMCPY, MEMORY_KINDS, Trace
from nsysprof.waits.identity import mean_latency
from nsysprof.waits.peers import Peers
from nsysprof.waits.replay import LONG_AGO, NEVER, ZERO, Edges, Lags, Network
from nsysprof.waits.walk import Lanes, barriers, event_calls, lanes_of

QUEUE = 1024  # launches and records of a stream that have not started: the next one blocks
_EVENTS = 24  # of them that may be records
_EVERY = 8  # launch that finds room in a full queue's place is looked at: more would be nodes that hardly ever matter
_BLOCKED = 2  # times the usual duration of a launch into a full queue: it was waiting
_LOOK_BACK = 16  # ops of a stream that overlap, as nodes of a graph do
_HOST, _ITEM, _MARK, _LATE = range(4)  # of nodes with equal keys which come first
Codes = NDArray[np.int32]


@dataclass(frozen=True)
class Moments:
    """Moments of the host to be replayed too: ``thread`` code, ``time``, and whether something ``begins`` there."""

    thread: NDArray[np.integer]
    time: Ints
    begins: NDArray[np.bool_]


@dataclass(frozen=True)
class _Host:
    """The moments of the host, by thread and time, and which of them calls and asked moments are."""

    thread: Codes
    time: Ints
    launch: Codes  # (2, launches)
    sync: Codes  # (2, syncs)
    asked: Codes
    sync_call: Codes
    launch_waits: NDArray[np.bool_]


@dataclass(frozen=True)
class _Joins:
    """Moments of the host that wait for something else too: for ``to`` and ``op``, or for another ``moment``."""

    at: Codes
    own: Ints
    to: Codes
    op: Codes
    moment: Codes
    lag: Ints
    waits: NDArray[np.bool_]


@dataclass(frozen=True)
class _Items:
    """What streams are given, in order: ops, and records of events and waits for them (``op`` -1).

    ``of_op`` is the item of each op; ``before`` the item that comes before each in its stream, -1 for none; ``record``
    the item of the record that a wait is for, -1; ``time`` when it happened, ``key`` a number that is not below that of
    whatever it waits for, twice a time; ``marks`` the items that are no ops, by the time of their calls.
    """

    op: Codes
    of_op: Codes
    before: Codes
    record: Codes
    time: Ints
    key: Ints
    marks: Ints


def network_of(
    attribution: Attribution,
    activity: HostActivity,
    dependencies: Dependencies,
    asked: Moments,
    peers: Peers | None = None,
    lags: Lags | None = None,
) -> Network:
    """The `Network` of a trace with the moments asked for; ``lags`` are measured where they are not given.

    ``attribution`` says where GPU ops were launched. Near-linear, with Python steps for events alone.
    """
    attribution = attribution.launched
    trace = attribution.trace
    lanes = lanes_of(trace)
    host = _host(trace, activity, asked)
    launched = _launched(trace, host)
    called = np.where(launched >= 0, np.append(host.time, 0)[launched], LONG_AGO)
    items = _items(trace, lanes, dependencies, called, peers)
    parts = _Parts(len(items.op))
    done, length = _ends(trace, items, peers, parts)
    known = lags or _measure(trace, host, items, launched)
    _stream_edges(trace, dependencies, lanes, host, items, launched, done, known, parts)
    joins = [
        _syncs(trace, activity, host, lanes, items, done, known, parts),
        _copies(trace, host, done, known),
        _queues(trace, host, lanes, items, known),
        *_handovers(attribution, host),
    ]
    return _assembled(host, items, _distinct(joins, host), parts, done, length, known)


# ---- host


def _host(trace: Trace, activity: HostActivity, asked: Moments) -> _Host:
    launches, calls = trace.launches, activity.calls
    rows = np.flatnonzero(activity.kind == SYNCHRONIZING)
    tid = calls.threads[calls.thread[rows]] if len(rows) else np.empty(0, np.int64)
    thread = np.searchsorted(trace.threads, tid)
    here = np.append(trace.threads, -1)[thread] == tid
    rows, thread = rows[here], thread[here]
    waits = np.zeros(len(launches), bool)
    launch = np.full((2, len(launches)), -1, np.int32)
    sync = np.full((2, len(rows)), -1, np.int32)
    places = np.full(len(asked.time), -1, np.int32)
    times, threads = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    base = 0
    alone = np.ones(len(rows), bool)
    for code in range(len(trace.threads)):
        low, high = np.searchsorted(launches.thread, [code, code + 1]).tolist()
        mine = np.flatnonzero(thread == code)
        start = launches.start[low:high]
        at = low + np.searchsorted(start, calls.start[rows[mine]])
        same = (at < high) & (np.append(launches.start, 0)[at] == calls.start[rows[mine]])
        same &= np.append(launches.end, 0)[at] == calls.end[rows[mine]]
        waits[at[same]], alone[mine[same]] = True, False
        mine = mine[~same]
        extra = np.flatnonzero(asked.thread == code)
        spans = [
            _interleaved(start, launches.end[low:high]),
            _interleaved(calls.start[rows[mine]], calls.end[rows[mine]]),
        ]
        keys = np.concatenate([*spans, 2 * asked.time[extra] + asked.begins[extra]])
        order = np.argsort(keys, kind="stable")  # runs that are sorted already
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(base, base + len(order))
        count, more = 2 * (high - low), 2 * len(mine)
        launch[:, low:high] = place[:count].reshape(-1, 2).T
        sync[:, mine] = place[count : count + more].reshape(-1, 2).T
        places[extra] = place[count + more :]
        times.append(keys[order] >> 1)
        threads.append(np.full(len(order), code, np.int32))
        base += len(order)
    rows = rows[alone].astype(np.int32)
    return _Host(np.concatenate(threads), np.concatenate(times), launch, sync[:, alone], places, rows, waits)


def _interleaved(start: Ints, end: Ints) -> Ints:
    """Starts and ends of calls as keys that put, of equal times, an end first."""
    return np.stack([2 * start + 1, 2 * np.maximum(end, start) + (end <= start)], axis=1).reshape(-1)


def _launched(trace: Trace, host: _Host) -> Codes:
    """The moment of the host behind which each op can start: its call's return, of copies its start; -1 for none."""
    launch = trace.ops.launch
    moment = np.append(host.launch, np.full((2, 1), -1, np.int32), axis=1)
    found: Codes = np.where(trace.ops.kind == MEMCPY, moment[0][launch], moment[1][launch])
    return found


# ---- streams


def _items(
    trace: Trace, lanes: Lanes, dependencies: Dependencies, launched: Ints, peers: Peers | None
) -> _Items:
    ops = trace.ops
    stream, time, event = event_calls(dependencies)
    is_wait = np.arange(len(stream)) >= len(dependencies.records)
    at = lanes.before(stream, time) if len(stream) else np.empty(0, np.intp)
    place = np.where(at >= 0, at + 1, np.searchsorted(lanes.stream, stream))
    order = np.lexsort((is_wait, time, stream, place))
    of_mark = np.empty(len(order), np.int64)
    of_mark[order] = place[order] + np.arange(len(order))
    of_lane = np.arange(len(lanes.order)) + np.searchsorted(
        place[order], np.arange(len(lanes.order)), side="right"
    )
    count = len(of_lane) + len(of_mark)
    op, lane = np.full(count, -1, np.int32), np.empty(count, np.int64)
    op[of_lane], lane[of_lane], lane[of_mark] = lanes.order, lanes.stream, stream
    of_op = np.empty(len(ops), np.int32)
    of_op[lanes.order] = of_lane
    same = np.append(False, lane[1:] == lane[:-1])[:count]
    before = np.where(same, np.arange(count) - 1, -1).astype(np.int32)
    record = np.full(count, -1, np.int32)
    record[of_mark] = _recorded(event, time, is_wait, of_mark)
    times, key = np.full(count, LONG_AGO), np.full(count, LONG_AGO)
    times[of_lane] = ops.start[lanes.order]
    # before what the host does at that moment, behind the launch
    key[of_lane] = np.where(ops.start > launched, 2 * ops.start - 1, 2 * launched + 1)[lanes.order]
    begins = np.append(np.flatnonzero(~same), count)
    bounds = list(zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True))
    for low, high in bounds:
        np.maximum.accumulate(key[low:high], out=key[low:high])
    marks = of_mark[np.lexsort((is_wait, time))]
    through = key[of_op]  # what is behind a collective is behind all its ranks
    if peers is not None:
        member = np.flatnonzero(peers.last >= 0)
        whole = np.full(len(ops), LONG_AGO)
        np.maximum.at(whole, peers.last[member], through[member])
        through[member] = whole[peers.last[member]] + 1
    _time_marks(marks, op, lane, before, record, ops.end, through, times, key)
    for low, high in bounds if len(of_mark) else ():
        np.maximum.accumulate(key[low:high], out=key[low:high])
    return _Items(op, of_op, _free_of_overlap(lanes, op, of_lane, before, ops.end), record, times, key, marks)


def _recorded(event: Codes, time: Ints, is_wait: NDArray[np.bool_], item: Ints) -> Ints:
    """For each wait the item of the last record of its event before it; -1 for none, and for records."""
    order = np.lexsort((is_wait, time, event))
    newest = (
        np.maximum.accumulate(np.where(is_wait[order], -1, np.arange(len(order)))) if len(order) else order
    )
    found = np.full(len(order), -1, np.int64)
    hit = is_wait[order] & (newest >= 0)
    hit[hit] = event[order[newest[hit]]] == event[order[hit]]
    found[order[hit]] = item[order[newest[hit]]]
    return found


def _time_marks(
    marks: Ints,
    op: Codes,
    lane: Ints,
    before: Codes,
    record: Codes,
    end: Ints,
    through: Ints,
    times: Ints,
    key: Ints,
) -> None:
    """Fill in when each record and wait was through, in the order of the calls."""
    floor: dict[int, int] = {}
    for item in marks.tolist():
        earlier, stream = before[item], int(lane[item])
        done, until = LONG_AGO, floor.get(stream, LONG_AGO)
        if earlier >= 0:
            done = int(end[op[earlier]] if op[earlier] >= 0 else times[earlier])
            until = max(until, int(through[op[earlier]] if op[earlier] >= 0 else key[earlier]))
        if (other := record[item]) >= 0:
            done, until = max(done, int(times[other])), max(until, int(key[other]))
        times[item], key[item], floor[stream] = done, until, until


def _free_of_overlap(lanes: Lanes, op: Codes, of_lane: Ints, before: Codes, end: Ints) -> Codes:
    """What comes before each item; for an op of a stream whose ops overlap the one that ends last before it starts."""
    if len(lanes.order) < 2:
        return before
    ends, starts, same = end[lanes.order], lanes.start[lanes.order], lanes.stream[1:] == lanes.stream[:-1]
    odd = np.append(False, same & (ends[:-1] > starts[1:]))
    recent = odd.copy()
    for back in range(1, _LOOK_BACK):
        recent[back:] |= odd[:-back]
    for place in np.flatnonzero(recent).tolist():
        item = of_lane[place]
        if before[item] < 0 or op[before[item]] < 0:
            continue
        low = max(place - _LOOK_BACK, int(np.searchsorted(lanes.stream, lanes.stream[place])))
        free = [at for at in range(low, place) if ends[at] <= starts[place]]
        before[item] = of_lane[max(free, key=lambda at: (ends[at], at))] if free else -1
    return before


# ---- what waits for what


class _Parts:
    """Edges of the items of streams, and of nodes besides them, as they are found; items are nodes from 2 on."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.edges = tuple(_no_edges(items) for _ in range(2))
        self.more: list[tuple[Edges, Edges, Ints, Ints, int]] = []
        self.count = items

    def add(self, one: Edges, other: Edges, time: Ints, key: Ints, kind: int) -> Codes:
        """Add nodes that wait for two others, and return their numbers."""
        self.more.append((one, other, time, key, kind))
        self.count += len(time)
        return np.arange(self.count - len(time), self.count, dtype=np.int32) + 2


def _edges(
    to: NDArray[np.integer], op: NDArray[np.integer] | int = -1, lag: NDArray[np.integer] | int = 0
) -> Edges:
    count = len(to)
    lags = np.broadcast_to(np.asarray(lag, np.int64), count).copy()
    ops = np.broadcast_to(np.asarray(op, np.int32), count).copy()
    return Edges(to.astype(np.int32), np.full(count, -1, np.int32), ops, lags, lags.copy())


def _no_edges(count: int) -> Edges:
    return _edges(np.full(count, NEVER))


def _ends(trace: Trace, items: _Items, peers: Peers | None, parts: _Parts) -> tuple[Codes, Ints]:
    """The node behind which each op ends, and how long after: its start, or that of the last rank of a collective."""
    ops = trace.ops
    done, length = items.of_op + np.int32(2), ops.end - ops.start
    if peers is None:
        return done, length
    member = np.flatnonzero(peers.last >= 0)
    member = member[np.argsort(peers.last[member], kind="stable")]
    first = np.flatnonzero(np.append(True, np.diff(peers.last[member]) != 0)[: len(member)])
    size = np.diff(np.append(first, len(member)))
    at = member[first]
    node, time, key = done[at], ops.start[at], items.key[items.of_op[at]]
    for number in range(1, int(size.max(initial=0))):
        some = np.flatnonzero(size > number)
        each = member[first[some] + number]
        time[some] = np.maximum(time[some], ops.start[each])
        key[some] = np.maximum(key[some], items.key[items.of_op[each]])
        node[some] = parts.add(
            _edges(node[some]), _edges(items.of_op[each] + 2), time[some], key[some], _LATE
        )
    whole = np.repeat(np.arange(len(first)), size)
    together = ops.end[member] >= time[whole]
    member, whole = member[together], whole[together]
    done[member], length[member] = node[whole], ops.end[member] - time[whole]
    return done, length


def _measure(trace: Trace, host: _Host, items: _Items, launched: Codes) -> Lags:
    """The `Lags` of a trace."""
    ops = trace.ops
    before = items.before[items.of_op]
    known = before >= 0
    row = np.where(known, items.op[before], -1)
    ready = np.where(known, np.where(row >= 0, ops.end[row], items.time[before]), LONG_AGO)
    called = np.where(launched >= 0, np.append(host.time, 0)[launched], LONG_AGO)
    came = np.maximum(ready, called)
    lag, known = ops.start - came, came > LONG_AGO // 2
    behind = known & (ready >= called) & (lag >= 0)
    op = mean_latency(lag[behind & (row >= 0)], 0)
    lengths = trace.launches.end - trace.launches.start
    last = np.sort(ops.end)
    ends = host.time[host.sync[1]]
    place = np.searchsorted(last, ends, side="right") - 1
    after = ends - last[place] if len(last) else ends
    blocked = (place >= 0) & (len(last) > 0) & (after < ends - host.time[host.sync[0]])
    return Lags(
        behind_op=op,
        behind_event=mean_latency(lag[behind & (row < 0)], op),
        behind_launch=mean_latency(lag[known & ~behind & (lag >= 0)], 0),
        returning=mean_latency(after[blocked], 0),
        launch=int(np.median(lengths)) if len(lengths) else 0,
        in_graph=op,
    )


def _stream_edges(
    trace: Trace,
    dependencies: Dependencies,
    lanes: Lanes,
    host: _Host,
    items: _Items,
    launched: Codes,
    done: Codes,
    lags: Lags,
    parts: _Parts,
) -> None:
    """Fill in what items wait for: ops for their launch and what comes before them, waits for records."""
    ops = trace.ops
    one, other = parts.edges
    is_op = items.op >= 0
    before = items.before
    earlier = np.where(before >= 0, items.op[before], -1)
    other.to[:] = np.where(before < 0, NEVER, np.where(earlier >= 0, np.append(done, 0)[earlier], before + 2))
    other.op[:] = earlier
    awaited = np.flatnonzero(items.record >= 0)
    one.to[awaited] = items.record[awaited] + 2
    rows = np.flatnonzero(is_op)
    op = items.op[rows]
    ready = np.where(earlier >= 0, np.append(ops.end, 0)[earlier], np.append(items.time, LONG_AGO)[before])[
        rows
    ]
    slack = ops.start[op] - ready
    usual = np.where(earlier[rows] >= 0, lags.behind_op, lags.behind_event)
    other.usual[rows], other.lag[rows] = usual, np.minimum(np.maximum(slack, 0), usual)
    other.drop(rows[slack < 0])
    moment = launched[op]
    called = moment >= 0
    rows, op, moment = rows[called], op[called], moment[called]
    one.to[rows], one.moment[rows] = ZERO, moment  # the node of the moment's anchor is known later
    one.usual[rows] = lags.behind_launch
    one.lag[rows] = np.minimum(ops.start[op] - host.time[moment], lags.behind_launch)
    null = barriers(dependencies, lanes)
    held = np.flatnonzero((null >= 0) & (null != earlier[items.of_op]))
    held = held[ops.end[null[held]] <= ops.start[held]]
    if len(held):
        at, behind = items.of_op[held], null[held]
        lag = np.minimum(ops.start[held] - ops.end[behind], lags.behind_event)
        key = np.maximum(np.append(items.key, LONG_AGO)[before[at]], items.key[items.of_op[behind]])
        node = parts.add(other.take(at), _edges(done[behind], behind, lag), ops.start[held], key, _LATE)
        other.drop(at)
        other.to[at], other.lag[at], other.usual[at] = node, 0, 0


def _syncs(
    trace: Trace,
    activity: HostActivity,
    host: _Host,
    lanes: Lanes,
    items: _Items,
    done: Codes,
    lags: Lags,
    parts: _Parts,
) -> _Joins:
    """Calls that return when the GPU is done: with a stream, with what an event stands for, or with all."""
    calls, ops = activity.calls, trace.ops
    start, end = host.time[host.sync[0]], host.time[host.sync[1]]
    thread = host.thread[host.sync[0]]
    process = trace.thread_process[thread]
    names = calls.names
    scope = np.array([0 if "Stream" in name else 1 if "Event" in name else 2 for name in names], np.int8)
    scope = scope[calls.name[host.sync_call]] if len(names) else np.empty(0, np.int8)
    count = len(start)
    to, time, op = np.full(count, NEVER, np.int32), np.full(count, LONG_AGO), np.full(count, -1, np.int32)
    key = np.full(count, LONG_AGO)
    odd, guess = np.full(count, np.iinfo(np.int64).max), _own_stream(trace, host, start)
    for stream in range(len(trace.streams)):
        rows = np.flatnonzero(process == trace.stream_process[stream])
        place = lanes.before(np.full(len(rows), stream), start[rows])
        rows, place = rows[place >= 0], place[place >= 0]
        last = lanes.order[place]
        late = ops.end[last] > end[rows]  # it cannot have waited for that
        rows, last = rows[~late], last[~late]
        one = scope[rows] < 2
        # of what ended meanwhile the one behind which such calls return, with the stream of the thread before others
        off = np.abs(end[rows] - ops.end[last] - lags.returning)
        own = (guess[rows] == stream) & (scope[rows] == 0)
        off = np.where(
            ops.end[last] > start[rows],
            np.where(own & (off <= 2 * lags.returning), 0, 1 + off),
            np.where(own, 1 << 60, 1 << 61),
        )
        pick = one & (off < odd[rows]) & (off <= 1 << 60)
        odd[rows[pick]] = off[pick]
        to[rows[pick]], op[rows[pick]], time[rows[pick]] = done[last[pick]], last[pick], ops.end[last[pick]]
        every, last = rows[~one], last[~one]
        alone = to[every] == NEVER
        to[every[alone]], op[every[alone]], time[every[alone]] = (
            done[last[alone]],
            last[alone],
            ops.end[last[alone]],
        )
        key[every[alone]] = items.key[items.of_op[last[alone]]]
        every, last = every[~alone], last[~alone]
        until, order = (
            np.maximum(time[every], ops.end[last]),
            np.maximum(key[every], items.key[items.of_op[last]]),
        )
        both = _edges(to[every], op[every]), _edges(done[last], last)
        to[every], op[every] = parts.add(*both, until, order, _LATE), -1
        time[every], key[every] = until, order
    blocked = time > start
    length = end - start
    own = np.minimum(length, _unblocked(calls.name[host.sync_call], length, blocked))
    lag = np.minimum(np.maximum(end - time, 0), lags.returning)
    waits = np.ones(count, bool)
    return _Joins(host.sync[1], own, to, op, np.full(count, -1, np.int32), lag, waits)


def _own_stream(trace: Trace, host: _Host, start: Ints) -> Ints:
    """The stream of the last launch of each call's thread, -1 for none."""
    launches = trace.launches
    stream = np.full(len(launches) + 1, -1, np.int64)
    known = trace.ops.launch >= 0
    stream[trace.ops.launch[known]] = trace.ops.stream[known]
    found = np.full(len(start), -1, np.int64)
    thread = host.thread[host.sync[0]]
    for code in np.unique(thread).tolist():
        mine = np.flatnonzero(thread == code)
        low, high = np.searchsorted(launches.thread, [code, code + 1]).tolist()
        at = low + np.searchsorted(launches.start[low:high], start[mine]) - 1
        found[mine] = np.where(at >= low, stream[at], -1)
    return found


def _unblocked(name: Codes, length: Ints, blocked: NDArray[np.bool_]) -> Ints:
    """How long calls of each name take that need not wait: the shortest of those that did not, or of all."""
    out = np.zeros(len(name), np.int64)
    for code in np.unique(name).tolist():
        mine = name == code
        free = mine & ~blocked
        out[mine] = int(np.median(length[free])) if free.any() else min(int(length[mine].min()), 2_000)
    return out


def _copies(trace: Trace, host: _Host, done: Codes, lags: Lags) -> _Joins:
    """Calls that return when their own copy is done: blocking ones, and those from or to pageable memory."""
    ops, launches = trace.ops, trace.launches
    copies = np.flatnonzero((ops.kind == MEMCPY) & (ops.launch >= 0))
    launch = ops.launch[copies]
    pageable = MEMORY_KINDS.index("pageable")
    memory = np.zeros(len(ops), bool)
    memory[trace.copy_ops] = (trace.copies.source == pageable) | (trace.copies.destination == pageable)
    waits = host.launch_waits[launch] | memory[copies]
    waits &= (ops.start[copies] >= launches.start[launch]) & (ops.end[copies] <= launches.end[launch])
    copies, launch = copies[waits], launch[waits]
    order = np.lexsort((ops.end[copies], launch))
    copies, launch = copies[order], launch[order]
    last = np.append(launch[1:] != launch[:-1], True)[: len(launch)]
    copies, launch = copies[last].astype(np.int32), launch[last]
    length = launches.end[launch] - launches.start[launch]
    lag = np.minimum(launches.end[launch] - ops.end[copies], lags.returning)
    nowhere = np.full(len(copies), -1, np.int32)
    own = np.minimum(length, lags.launch)
    return _Joins(host.launch[1][launch], own, done[copies], copies, nowhere, lag, np.ones(len(copies), bool))


def _queues(trace: Trace, host: _Host, lanes: Lanes, items: _Items, lags: Lags) -> _Joins:
    """Launches into a stream whose queue is full: such a call returns when an op before it starts and makes room.

    The queue holds about `QUEUE` launches and records of events; how many launches it held shows where they were most.
    """
    ops, launches = trace.ops, trace.launches
    rows = lanes.order[ops.launch[lanes.order] >= 0]
    launch, stream = ops.launch[rows], ops.stream[rows]
    new = np.append(True, (launch[1:] != launch[:-1]) | (stream[1:] != stream[:-1]))[: len(rows)]
    rows, launch, stream = rows[new], launch[new], stream[new]
    heads, called, blocked = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, bool)]
    for each in np.flatnonzero(np.bincount(stream, minlength=1) > QUEUE - _EVENTS):
        low, high = np.searchsorted(stream, [each, each + 1]).tolist()
        place, begun = np.arange(high - low), np.maximum.accumulate(ops.start[rows[low:high]])
        start, end = (times[launch[low:high]] for times in (launches.start, launches.end))
        waiting = place + 1 - np.searchsorted(begun, end, side="right")
        depth = int(waiting.max())
        full = depth >= QUEUE - _EVENTS
        late = (waiting >= depth - _EVENTS) & (end - start > _BLOCKED * lags.launch) if full else place < 0
        late &= begun[np.maximum(place - waiting, 0)] > start
        head = place - np.where(late, waiting, depth if full else QUEUE)
        seen = late | (place % min(_EVERY, QUEUE // 128 + 1) == 0)
        some = np.flatnonzero(
            seen & (head >= 0) & (begun[np.maximum(head, 0)] <= end)
        )  # else the queue is longer
        heads.append(rows[low + head[some]])
        called.append(launch[low + some])
        blocked.append(late[some])
    head, launch, waits = np.concatenate(heads), np.concatenate(called), np.concatenate(blocked)
    begun, end = ops.start[head], launches.end[launch]
    own = np.where(waits, lags.launch, end - launches.start[launch])
    nowhere = np.full(len(head), -1, np.int32)
    no = np.zeros(len(head), bool)
    node = items.of_op[head] + np.int32(2)
    return _Joins(host.launch[1][launch], own, node, nowhere, nowhere, np.where(waits, end - begun, 0), no)


def _handovers(attribution: Attribution, host: _Host) -> Iterable[_Joins]:
    """Where a thread waits for another: a helper for the thread of the range it works for, and that one for helpers."""
    trace = attribution.trace
    launches, ranges = trace.launches, trace.ranges
    follow = np.flatnonzero(attribution.outcome == FOLLOWED)
    kernels = np.zeros(
        len(trace.threads), bool
    )  # a thread that only copies, as one that pins memory, works beside
    kernels[launches.thread[trace.ops.launch[(trace.ops.launch >= 0) & (trace.ops.kind != MEMCPY)]]] = True
    follow = follow[kernels[launches.thread[follow]]]
    if not len(follow):
        return
    owner = attribution.owner[follow]
    main, begun = ranges.thread[owner].astype(np.int64), ranges.start[owner]
    place = host.launch[0][follow]
    first_of = np.searchsorted(host.thread, np.arange(len(trace.threads) + 1))
    earlier = np.where(place > first_of[host.thread[place]], host.time[place - 1], LONG_AGO)
    for code in np.unique(main).tolist():
        mine = slice(first_of[code], first_of[code + 1])
        times = host.time[mine]
        if not len(times):
            continue
        rows = np.flatnonzero(main == code)
        at = np.searchsorted(times, host.time[place[rows]], side="right") - 1
        some = (at >= 0) & ((earlier[rows] < begun[rows]) | (earlier[rows] < times[at]))
        rows, at = rows[some], at[some]
        yield _handed(host, place[rows], (mine.start + at).astype(np.int32))
        last = host.launch[1][follow[main == code]]
        last = last[np.argsort(host.time[last], kind="stable")]
        at = np.searchsorted(host.time[last], times, side="right") - 1
        newest = np.append(-1, at[:-1])
        back = np.flatnonzero((at >= 0) & (at > newest) & (np.arange(len(at)) > 0))
        yield _handed(host, (mine.start + back).astype(np.int32), last[at[back]])


def _handed(host: _Host, at: Codes, after: Codes) -> _Joins:
    nothing = np.zeros(len(at), np.int64)
    nowhere = np.full(len(at), -1, np.int32)
    lag = host.time[at] - host.time[after]
    return _Joins(at, nothing, np.full(len(at), ZERO, np.int32), nowhere, after, lag, np.zeros(len(at), bool))


def _distinct(joins: Iterable[_Joins], host: _Host) -> _Joins:
    """All joins, one for each moment: the first one that was found; a thread's first moment only waits for a thread."""
    every = list(joins)
    whole = _Joins(
        **{
            field.name: np.concatenate([getattr(each, field.name) for each in every])
            for field in fields(_Joins)
        }
    )
    _, first = np.unique(whole.at, return_index=True)
    begins = np.append(True, host.thread[1:] != host.thread[:-1])[: len(host.thread)]
    first = first[~begins[whole.at[first]] | (whole.moment[first] >= 0)]
    return _Joins(**{field.name: getattr(whole, field.name)[first] for field in fields(_Joins)})


# ---- put together


def _assembled(
    host: _Host,
    items: _Items,
    joins: _Joins,
    parts: _Parts,
    done: Codes,
    length: Ints,
    lags: Lags,
) -> Network:
    """Number the nodes in the order of their keys, resolve moments, and see what passes beside the edges."""
    first_of = np.append(True, host.thread[1:] != host.thread[:-1])[: len(host.thread)]
    alone = first_of.copy()
    alone[joins.at] = False
    every, begins = np.flatnonzero(first_of), np.flatnonzero(alone)
    moments = np.concatenate([begins, joins.at]).astype(np.int32)
    count = 2 + parts.count
    node = np.full(len(host.time), -1, np.int32)
    node[moments] = np.arange(count, count + len(moments))
    anchor = np.maximum.accumulate(np.where(node >= 0, np.arange(len(node)), 0)) if len(node) else node
    first = [
        _edges(np.full(2, NEVER)),
        parts.edges[0],
        *(each[0] for each in parts.more),
        _no_edges(len(begins)),
    ]
    second = [
        _edges(np.full(2, NEVER)),
        parts.edges[1],
        *(each[1] for each in parts.more),
        _no_edges(len(begins)),
    ]
    own = replace(_edges(np.full(len(joins.at), ZERO), lag=joins.own), moment=joins.at - np.int32(1))
    own.drop(np.flatnonzero(first_of[joins.at]))
    awaited = replace(_edges(joins.to, joins.op, joins.lag), moment=joins.moment)
    edges = [_joined([*first, own]), _joined([*second, awaited])]
    for each in edges:
        some = np.flatnonzero(each.moment >= 0)
        each.to[some] = node[anchor[each.moment[some]]]
    time = [np.array([0, LONG_AGO]), items.time, *(each[2] for each in parts.more), host.time[moments]]
    key = [
        np.array([LONG_AGO, LONG_AGO]),
        items.key,
        *(each[3] for each in parts.more),
        2 * host.time[moments],
    ]
    kind = (
        [_HOST] * 2,
        [_ITEM] * len(items.op),
        *([each[4]] * len(each[2]) for each in parts.more),
        [_HOST] * len(moments),
    )
    kinds = np.concatenate([np.array(each, np.int8) for each in kind])
    kinds[2 + items.marks] = _MARK
    rank = np.zeros(len(kinds), np.int32)
    rank[2 + items.marks] = np.arange(len(items.marks))
    keys = np.concatenate(key)
    keys[:2] = [np.iinfo(np.int64).min, np.iinfo(np.int64).min + 1]
    order = np.lexsort((rank, kinds, keys)) if len(items.marks) else np.lexsort((kinds, keys))
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order))
    recorded, waits = np.concatenate(time)[order], np.zeros(len(order), bool)
    waits[number[node[joins.at]]] = joins.waits
    ordered = [each.take(order) for each in edges]
    for each in ordered:
        each.to[:] = number[each.to]
        late = each.to >= np.arange(len(order))
        each.drop(np.flatnonzero(late))
    of_op = np.full(len(order), -1, np.int32)
    start = number[items.of_op + 2]
    of_op[start] = np.arange(len(start))
    gap = np.append(0, np.diff(host.time))[: len(host.time)]
    gap[every] = 0
    node = np.where(node >= 0, number[node], -1).astype(np.int32)
    network = Network(
        host.thread, host.time, gap, anchor.astype(np.int32), node, start, number[done], length, np.zeros_like(length),
        (ordered[0], ordered[1]), np.zeros(len(order), np.int64), recorded, of_op, waits,
        host.launch, host.sync_call, host.sync, host.asked, lags,
    )  # fmt: skip
    return _with_extras(network)


def _joined(parts: list[Edges]) -> Edges:
    return Edges(
        **{
            field.name: np.concatenate([getattr(each, field.name) for each in parts])
            for field in fields(Edges)
        }
    )


def _with_extras(network: Network) -> Network:
    """Give each node what passes there beyond the latest of what it waits for, and what waits for nothing its time."""
    offset = np.append(network.time - network.time[network.anchor], 0)
    length = np.append(network.length, 0)
    came = np.full(len(network.extra), LONG_AGO)
    for each in network.edges:
        arrived = network.recorded[each.to] + each.lag + offset[each.moment] + length[each.op]
        came = np.maximum(came, np.where(each.to == NEVER, LONG_AGO, arrived))
    known = came > LONG_AGO // 2
    alone = np.flatnonzero(~known & (network.recorded > LONG_AGO // 2))[1:]  # the first is the moment 0
    for each in network.edges:
        each.drop(alone)
    network.edges[0].to[alone] = ZERO
    extra = np.where(known, network.recorded - came, 0)
    extra[alone] = network.recorded[alone]
    return replace(network, extra=extra)
