"""Find the moments at which the host waits: for the GPU, for space in a queue, or for another thread."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from nsysprof.attribution.attribute import FOLLOWED, Attribution
from nsysprof.core.arrays import Ints, Ints32, Mask
from nsysprof.trace.details import HostActivity
from nsysprof.trace.trace import MEMCPY, MEMORY_KINDS, Trace
from nsysprof.waits.items import Items, Parts, edges_of
from nsysprof.waits.moments import IMPLIED_NS, Host
from nsysprof.waits.replay import LONG_AGO, NEVER, ZERO, Lags
from nsysprof.waits.walk import Lanes

QUEUE = 1024  # launches and records of a stream that have not started: the next one blocks
_EVENTS = 24  # of them that may be records
_EVERY = 8  # launches that did not wait there is one that may: a node for each would be half of a replay
_TOGETHER = 0.9  # of a copy: a call that runs so long beside it carries it
_BLOCKED = 2  # times the usual duration of a launch into a full queue: it was waiting


@dataclass(frozen=True)
class Joins:
    """Host moments that also wait: each for the node ``to`` and the ``op``, or for another ``moment``."""

    at: Ints32
    own: Ints
    to: Ints32
    op: Ints32
    moment: Ints32
    lag: Ints
    waits: Mask


def sync_joins(
    trace: Trace, activity: HostActivity, host: Host, lanes: Lanes, items: Items, done: Ints32, lags: Lags, parts: Parts
) -> Joins:
    """Find calls that return when the GPU has finished a stream, the work before an event, or all work."""
    calls, ops = activity.calls, trace.ops
    start, end = host.time[host.sync[0]], host.time[host.sync[1]]
    process = trace.thread_process[host.thread[host.sync[0]]]
    names = calls.names
    words = ("Stream", "Event")  # of calls that launch nothing these destroy one, behind all
    scope = np.array(
        [next((at for at, word in enumerate(words) if word in name and "Sync" in name), 2) for name in names], np.int8
    )
    scope = scope[calls.name[host.sync_call]]
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
        to[every[alone]], op[every[alone]], time[every[alone]] = (done[last[alone]], last[alone], ops.end[last[alone]])
        key[every[alone]] = items.key[items.of_op[last[alone]]]
        every, last = every[~alone], last[~alone]
        until, order = (np.maximum(time[every], ops.end[last]), np.maximum(key[every], items.key[items.of_op[last]]))
        both = edges_of(to[every], op[every]), edges_of(done[last], last)
        to[every], op[every] = parts.add(*both, until, order), -1
        time[every], key[every] = until, order
    blocked = time > start
    length = end - start
    own = np.minimum(length, _unblocked(calls.name[host.sync_call], length, blocked))
    lag = np.minimum(np.maximum(end - time, 0), lags.returning)
    return Joins(host.sync[1], own, to, op, np.full(count, -1, np.int32), lag, np.ones(count, bool))


def _own_stream(trace: Trace, host: Host, start: Ints) -> Ints:
    """The stream of the last launch of each call's thread, -1 for none."""
    launches = trace.launches
    stream = np.full(len(launches) + 1, -1, np.int64)
    known = trace.ops.launch >= 0
    stream[trace.ops.launch[known]] = trace.ops.stream[known]
    return stream[launches.around(host.thread[host.sync[0]], start)[0]]


def _unblocked(name: Ints32, length: Ints, blocked: Mask) -> Ints:
    """How long calls of each name take without a wait: the shortest that did not wait, or of all."""
    out = np.zeros(len(name), np.int64)
    for code in np.unique(name).tolist():
        mine = name == code
        free = mine & ~blocked
        out[mine] = int(np.median(length[free])) if free.any() else min(int(length[mine].min()), 2_000)
    return out


def copy_joins(trace: Trace, host: Host, done: Ints32, lags: Lags) -> Joins:
    """Find calls that return when their own copy has finished: blocking copies, and copies from or to pageable memory.

    The call may return shortly before the copy ends, because the last part of a copy to the GPU may be asynchronous,
    and clocks differ.
    """
    ops, launches = trace.ops, trace.launches
    copies = np.flatnonzero((ops.kind == MEMCPY) & (ops.launch >= 0))
    launch = ops.launch[copies]
    pageable = MEMORY_KINDS.index("pageable")
    memory = np.zeros(len(ops), bool)
    memory[trace.copy_ops] = (trace.copies.source == pageable) | (trace.copies.destination == pageable)
    begin, end = launches.start[launch], launches.end[launch]
    behind = end - ops.end[copies]  # whatever memory it is, a long call that ends right behind its copy waited for that
    waits = (behind >= 0) & (behind <= IMPLIED_NS) & (end - begin > IMPLIED_NS + _BLOCKED * lags.launch)
    waits |= host.launch_waits[launch] | memory[copies]
    together = np.minimum(ops.end[copies], end) - np.maximum(ops.start[copies], begin)
    length = ops.end[copies] - ops.start[copies]
    waits &= (ops.start[copies] >= begin) & (together >= _TOGETHER * length) & (ops.start[copies] <= end)
    copies, launch = copies[waits], launch[waits]
    order = np.lexsort((ops.end[copies], launch))
    copies, launch = copies[order], launch[order]
    last = np.append(launch[1:] != launch[:-1], True)[: len(launch)]
    copies, launch = copies[last].astype(np.int32), launch[last]
    length = launches.end[launch] - launches.start[launch]
    lag = np.minimum(launches.end[launch] - ops.end[copies], lags.returning)
    nowhere = np.full(len(copies), -1, np.int32)
    own = np.minimum(length, lags.launch)
    return Joins(host.launch[1][launch], own, done[copies], copies, nowhere, lag, np.ones(len(copies), bool))


def queue_joins(trace: Trace, host: Host, lanes: Lanes, items: Items, lags: Lags) -> Joins:
    """Find launches into a stream with a full queue: the call returns when the start of an earlier op frees a slot.

    The queue holds about `QUEUE` launches and event records; the recorded maximum of queued launches shows its size.
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
        seen = late | (place % _EVERY == 0)
        some = np.flatnonzero(seen & (head >= 0) & (begun[np.maximum(head, 0)] <= end))  # else the queue is longer
        heads.append(rows[low + head[some]])
        called.append(launch[low + some])
        blocked.append(late[some])
    head, launch, waits = np.concatenate(heads), np.concatenate(called), np.concatenate(blocked)
    begun, end = ops.start[head], launches.end[launch]
    own = np.where(waits, lags.launch, end - launches.start[launch])
    nowhere = np.full(len(head), -1, np.int32)
    no = np.zeros(len(head), bool)
    node = items.of_op[head] + np.int32(2)
    return Joins(host.launch[1][launch], own, node, nowhere, nowhere, np.where(waits, end - begun, 0), no)


def handover_joins(attribution: Attribution, host: Host) -> Iterable[Joins]:
    """Find waits between threads: a worker waits for the thread of its range, and that thread waits for its workers."""
    trace = attribution.trace
    launches, ranges = trace.launches, trace.ranges
    follow = np.flatnonzero(attribution.outcome == FOLLOWED)
    kernels = np.zeros(len(trace.threads), bool)  # a thread that only copies, as one that pins memory, works beside
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


def first_joins(trace: Trace, host: Host) -> Iterable[Joins]:
    """Yield each thread's first moment, with its recorded delay after a moment of the process's first thread."""
    first_of = np.searchsorted(host.thread, np.arange(len(trace.threads) + 1))
    used = np.flatnonzero(first_of[1:] > first_of[:-1])
    begins = host.time[first_of[used]]
    for process in np.unique(trace.thread_process[used]).tolist():
        mine = np.flatnonzero(trace.thread_process[used] == process)
        mine = mine[np.argsort(begins[mine], kind="stable")]
        low, high = first_of[used[mine[0]]], first_of[used[mine[0]] + 1]
        at = low + np.searchsorted(host.time[low:high], begins[mine[1:]]) - 1
        yield _handed(host, first_of[used[mine[1:]]][at >= low].astype(np.int32), at[at >= low].astype(np.int32))


def _handed(host: Host, at: Ints32, after: Ints32) -> Joins:
    nothing = np.zeros(len(at), np.int64)
    nowhere = np.full(len(at), -1, np.int32)
    lag = host.time[at] - host.time[after]
    return Joins(at, nothing, np.full(len(at), ZERO, np.int32), nowhere, after, lag, np.zeros(len(at), bool))


def distinct_joins(joins: Iterable[Joins], host: Host) -> Joins:
    """Keep the first join of each moment; the first moment of a thread waits only for another thread."""
    every = list(joins)
    whole = Joins(
        **{field.name: np.concatenate([getattr(each, field.name) for each in every]) for field in fields(Joins)}
    )
    _, first = np.unique(whole.at, return_index=True)
    begins = np.append(True, host.thread[1:] != host.thread[:-1])[: len(host.thread)]
    first = first[~begins[whole.at[first]] | (whole.moment[first] >= 0)]
    return Joins(**{field.name: getattr(whole, field.name)[first] for field in fields(Joins)})
