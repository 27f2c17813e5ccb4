"""Find the host's activity while the GPU waits for a launch, and the earlier call that drained the GPU queue."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import FOLLOWED, Attribution
from nsysprof.core.arrays import AnyInts, Bytes, Index, Ints, Ints32, Mask
from nsysprof.core.columns import distinct, marked, pick
from nsysprof.core.intervals import expand_ranges, slice_reduce
from nsysprof.core.nesting import nest
from nsysprof.trace.details import CODE, SYNCHRONIZING, CallList, HostActivity
from nsysprof.trace.trace import START_END, Ranges, Trace
from nsysprof.waits.walk import Reasons

ACTIVITIES = ("launch calls", "synchronizing calls", "other CUDA calls", "OS calls", "profiler", "code")
SLACK_NS = 20_000  # a lead of the host that is no lead
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class HostTime:
    """Pieces of host time, cut at each change of activity, sorted by piece and time.

    ``piece`` is the number of the requested piece; ``start`` and ``end`` are int64 ns; ``thread`` is a code of
    `Trace.threads`; ``activity`` is what the thread did. ``call`` is a row of the calls, -1 for code between calls;
    ``range`` is the innermost range that is open on that thread, -1 for none.
    """

    piece: Index
    start: Ints
    end: Ints
    thread: Ints32
    activity: Bytes
    call: Ints32
    range: Ints32


def threads_to_blame(
    attribution: Attribution, activity: HostActivity, launch: AnyInts, start: Ints, end: Ints, thread: AnyInts
) -> tuple[Index, Ints, Ints, Ints32]:
    """Return intervals of host time with the responsible thread of each: ``(piece, start, end, thread)``.

    A piece ends at its ``launch``. If the launch is -1, the piece belongs to the given ``thread``. The launching thread
    is usually responsible. PyTorch hands backward work to an autograd thread. A worker that has not yet launched for a
    range waits for the thread of this range until the range begins. While workers launch for a range, its thread waits
    for the last worker. Before the first call and range of a thread, the thread of the latest launch of its process is
    responsible.
    """
    trace = attribution.trace
    launches, ranges = trace.launches, trace.ranges
    owner = pick(attribution.owner, launch)
    own = pick(launches.thread, launch, thread).astype(np.int32)
    of_range = pick(ranges.thread, owner, own).astype(np.int32)
    helped = own != of_range
    first = np.append(np.append(True, launches.thread[1:] != launches.thread[:-1])[: len(launches)], True)
    earlier = np.where(first[launch], _NEVER, np.append(launches.end, (0, 0))[launch - 1])
    begun = pick(ranges.start, owner, 0)
    cut = np.where(helped & (earlier < begun), np.clip(begun, start, end), start)
    earlier_thread = of_range
    # launches that others made for a thread's ranges, by that thread and time
    follow = np.flatnonzero(attribution.outcome == FOLLOWED)
    host = ranges.thread[attribution.owner[follow]].astype(np.int64) if len(follow) else follow
    order = np.lexsort((launches.end[follow], host))
    follow, host = follow[order], host[order]
    for code in np.flatnonzero(np.bincount(host)).tolist():
        rows = np.flatnonzero(~helped & (own == code) & (launch >= 0))
        lo, hi = np.searchsorted(host, [code, code + 1]).tolist()
        place = lo + np.searchsorted(launches.end[follow[lo:hi]], launches.start[launch[rows]], side="right") - 1
        hit = place >= lo
        rows, last = rows[hit], follow[place[hit]]
        done = np.clip(launches.end[last], start[rows], end[rows])
        cut[rows] = done
        earlier_thread[rows] = np.where(done > start[rows], launches.thread[last], own[rows])
    born = _first_seen(attribution, activity, own)
    new = np.flatnonzero(~helped & (launch >= 0) & (born > start))
    if len(new):
        order = np.argsort(launches.start, kind="stable")
        of = trace.thread_process[launches.thread[order]]
        for process in np.unique(trace.thread_process[own[new]]).tolist():
            rows, mine = new[trace.thread_process[own[new]] == process], order[of == process]
            place = np.searchsorted(launches.start[mine], start[rows], side="right") - 1
            rows, last = rows[place >= 0], mine[place[place >= 0]]
            cut[rows] = np.minimum(born[rows], end[rows])
            earlier_thread[rows] = launches.thread[last]
    number = np.arange(len(launch))
    piece = np.concatenate([number, number])
    begin, stop = np.concatenate([start, cut]), np.concatenate([cut, end])
    whose = np.concatenate([earlier_thread, own])
    some = np.flatnonzero(begin < stop)
    some = some[np.lexsort((begin[some], piece[some]))]
    return piece[some], begin[some], stop[some], whose[some]


def _first_seen(attribution: Attribution, activity: HostActivity, thread: Ints32) -> Ints:
    """When each thread, given by code, first calls, launches or opens a range; 0 for one that does not."""
    trace = attribution.trace
    first = np.zeros(len(trace.threads), np.int64)
    for code in np.unique(thread).tolist():
        mine = activity.calls.of_thread(int(trace.threads[code]))
        low, high = np.searchsorted(trace.launches.thread, [code, code + 1])
        starts = (
            activity.calls.start[mine],
            trace.launches.start[low:high],
            trace.ranges.start[trace.ranges.thread == code],
        )
        first[code] = min((int(each.min()) for each in starts if len(each)), default=0)
    return first[thread]


def host_time(
    attribution: Attribution, activity: HostActivity, piece: Index, start: Ints, end: Ints, thread: Ints32
) -> HostTime:
    """Return the `HostTime` of intervals of threads, cut at the bounds of calls and ranges.

    If calls are nested, the innermost call counts.
    """
    trace = attribution.trace
    ranges = trace.ranges
    kinds = (np.int64, np.int64, np.int64, np.int32, np.uint8, np.int32, np.int32)
    out: list[tuple[NDArray[np.generic], ...]] = [tuple(np.empty(0, kind) for kind in kinds)]
    calls = activity.calls
    for code in np.flatnonzero(np.bincount(thread)).tolist():
        rows = np.flatnonzero(thread == code)
        mine = calls.of_thread(int(trace.threads[code]))
        around = _push_pop(attribution, code, start[rows], end[rows])
        edges = np.concatenate([calls.start[mine], calls.end[mine], ranges.start[around], ranges.end[around]])
        edges = np.sort(edges)
        edges = edges[np.append(True, edges[1:] != edges[:-1])[: len(edges)]]
        inner = np.searchsorted(edges, start[rows], side="right")
        count = np.maximum(np.searchsorted(edges, end[rows], side="left") - inner, 0)
        whose = np.repeat(rows, count + 1)
        starts = np.append(0, np.cumsum(count + 1))[:-1]
        begin = np.empty(len(whose), np.int64)
        inside = np.ones(len(whose), bool)
        inside[starts] = False
        begin[starts] = start[rows]
        begin[inside] = edges[expand_ranges(inner, count)]
        stop = np.append(begin[1:], 0)
        stop[np.append(starts[1:], len(whose)) - 1] = end[rows]
        call = _innermost(calls, np.arange(mine.start, mine.stop), begin, stop)
        inner_range = _innermost(ranges, around, begin, stop)
        does = np.append(activity.kind, np.uint8(CODE))[call]
        out.append((piece[whose], begin, stop, np.full(len(whose), code, np.int32), does, call, inner_range))
    columns = [np.concatenate(column) for column in zip(*out, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    return HostTime(*(column[order] for column in columns))


def ranges_around(attribution: Attribution, thread: AnyInts, start: Ints, end: Ints) -> Ints:
    """Return the innermost push/pop range open on each thread (a code) during the whole interval, or -1."""
    ranges = attribution.trace.ranges
    out = np.full(len(start), -1, np.int64)
    for code in np.flatnonzero(np.bincount(thread[thread >= 0])).tolist():
        rows = np.flatnonzero(thread == code)
        out[rows] = _innermost(ranges, _push_pop(attribution, code, start[rows], end[rows]), start[rows], end[rows])
    return out


def _push_pop(attribution: Attribution, thread: int, start: Ints, end: Ints) -> Index:
    """The push/pop ranges of a thread that overlap some of the time from the first ``start`` to the last ``end``."""
    ranges = attribution.trace.ranges
    low, high = np.searchsorted(ranges.thread, [thread, thread + 1]).tolist()
    high = low + int(np.searchsorted(ranges.kind[low:high], START_END))
    high = low + int(np.searchsorted(ranges.start[low:high], end.max(), side="right"))
    return low + np.flatnonzero(ranges.end[low:high] >= start.min())


def _innermost(columns: Ranges | CallList, rows: Index, begin: Ints, stop: Ints) -> Ints32:
    """The row of the innermost of some ranges, or calls, that is open from each ``begin`` to its ``stop``; -1: none."""
    if len(rows) == 0:
        return np.full(len(begin), -1, np.int32)
    return pick(rows, nest(columns.start[rows], columns.end[rows]).innermost(begin, stop)).astype(np.int32)


def _lead(trace: Trace, why: Reasons, asked: Mask) -> dict[int, Ints]:
    """For each thread of ``asked``: how long the GPU still had to work when each of its launches returned."""
    launches, codes = trace.launches, np.flatnonzero(asked)
    low, high = (np.searchsorted(launches.thread, codes, side=side) for side in ("left", "right"))
    first = np.cumsum(high - low) - (high - low)
    lead = np.full(int((high - low).sum()), _NEVER)
    known = np.flatnonzero(np.append(asked[launches.thread], False)[trace.ops.launch] & (why.ready > _NEVER))
    launch = trace.ops.launch[known]
    shift = np.zeros(len(asked), np.int64)
    shift[codes] = first - low
    np.maximum.at(lead, launch + shift[launches.thread[launch]], why.ready[known] - why.launched[known])
    return {code: lead[at : at + size] for code, at, size in zip(codes.tolist(), first, high - low, strict=True)}


def exposed_by(
    trace: Trace,
    why: Reasons,
    activity: HostActivity,
    launch: AnyInts,
    start: Ints,
    end: Ints,
    thread: AnyInts,
    since: Ints,
) -> Ints:
    """For each wait for a ``launch`` from ``start`` to ``end``, return the call of ``activity`` that exposed the wait,
    or -1.

    This call is the last earlier synchronizing call of the launching thread, or of the ``thread`` for which that thread
    works. A call does not count if the host was ahead of the GPU again at a later launch, by `SLACK_NS` plus a tenth of
    the wait. In this case, something else drained the GPU queue. Calls that ended before ``since`` do not count either.
    """
    launches, calls = trace.launches, activity.calls
    out = np.full(len(launch), -1, np.int64)
    by = pick(launches.thread, launch, thread)
    asked = marked(by, len(trace.threads)) | marked(thread, len(trace.threads))
    lead = _lead(trace, why, asked)
    called = pick(launches.start, launch, end)
    first, pair = distinct(by, thread)
    for number, row in enumerate(first.tolist()):
        mine = np.flatnonzero(pair == number)
        codes = dict.fromkeys((int(by[row]), int(thread[row])))
        of_thread = (calls.of_thread(int(trace.threads[code])) for code in codes)
        syncs = np.concatenate(
            [rows.start + np.flatnonzero(activity.kind[rows] == SYNCHRONIZING) for rows in of_thread]
        )
        if len(syncs) == 0:
            continue
        syncs = syncs[np.argsort(calls.end[syncs], kind="stable")]
        place = np.searchsorted(calls.end[syncs], called[mine], side="right") - 1
        late = (place >= 0) & (calls.end[syncs[place]] >= since[mine])
        mine, place = mine[late], place[late]
        hit = np.ones(len(mine), bool)
        for code in codes:
            low, high = np.searchsorted(launches.thread, [code, code + 1]).tolist()
            behind = np.searchsorted(launches.start[low:high], calls.end[syncs[place]])
            until = np.searchsorted(launches.start[low:high], called[mine])
            ahead = slice_reduce(np.maximum, lead[code], behind, np.maximum(until, behind), _NEVER)
            hit &= ahead <= SLACK_NS + (end - start)[mine] // 10
        out[mine[hit]] = syncs[place[hit]]
    return out
