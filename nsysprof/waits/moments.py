"""The host moments of a replay: calls, requested moments, and the earliest moment for each GPU op."""

from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import AnyInts, Ints, Ints32, Mask
from nsysprof.core.columns import pick
from nsysprof.trace.details import CUDA, SYNCHRONIZING, HostActivity
from nsysprof.trace.trace import MEMCPY, PROCESS_OF_THREAD, Trace

IMPLIED_NS = 20_000  # a call that waited for longer, and returned so soon behind the GPU, did so for it


@dataclass(frozen=True)
class Moments:
    """Additional host moments to replay: ``thread`` (code), ``time``, and whether something ``begins`` at that time."""

    thread: AnyInts
    time: Ints
    begins: Mask


@dataclass(frozen=True)
class Host:
    """The moments of the host by thread and time, with masks of calls and requested moments."""

    thread: AnyInts
    time: Ints
    launch: Ints32  # (2, launches)
    sync: Ints32  # (2, syncs)
    asked: Ints32
    sync_call: Ints32
    launch_waits: Mask


def host_of(trace: Trace, activity: HostActivity, asked: Moments) -> Host:
    """Collect the moments of all launches, of calls that wait for the GPU, and the moments ``asked``."""
    launches, calls = trace.launches, activity.calls
    rows = np.flatnonzero((activity.kind == SYNCHRONIZING) | _implied_waits(trace, activity))
    thread = trace.thread_codes(calls.threads)[calls.thread[rows]]
    rows, thread = rows[thread >= 0], thread[thread >= 0]
    waits = np.zeros(len(launches), bool)
    launch = np.full((2, len(launches)), -1, np.int32)
    sync = np.full((2, len(rows)), -1, np.int32)
    places = np.full(len(asked.time), -1, np.int32)
    times, threads = [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
    base = 0
    alone = np.ones(len(rows), bool)
    for code in range(len(trace.threads)):
        low, high = np.searchsorted(launches.thread, [code, code + 1]).tolist()
        mine = np.flatnonzero(thread == code)
        start = launches.start[low:high]
        at = low + np.searchsorted(start, calls.start[rows[mine]])
        same = (at < high) & (pick(launches.start, at, 0) == calls.start[rows[mine]])
        same &= pick(launches.end, at, 0) == calls.end[rows[mine]]
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
        threads.append(np.full(len(order), code, np.min_scalar_type(len(trace.threads))))
        base += len(order)
    calls_waited = rows[alone].astype(np.int32)
    return Host(np.concatenate(threads), np.concatenate(times), launch, sync[:, alone], places, calls_waited, waits)


def _implied_waits(trace: Trace, activity: HostActivity) -> Mask:
    """Which calls that launch nothing waited until the GPU was done, as an allocation may: they end right after that.

    They also waited for most of their time.
    """
    ops, calls = trace.ops, activity.calls
    found = np.zeros(len(calls), bool)
    others = np.flatnonzero(activity.kind == CUDA)
    process = (calls.threads[calls.thread[others]] & PROCESS_OF_THREAD) if len(others) else others
    launched = np.flatnonzero(ops.launch >= 0)
    for code in np.unique(trace.op_process[launched]).tolist():
        mine = launched[trace.op_process[launched] == code]
        begun = trace.launches.start[ops.launch[mine]]
        order = np.argsort(begun, kind="stable")
        begun, done = begun[order], np.maximum.accumulate(ops.end[mine[order]])
        rows = others[process == trace.processes[code]]
        at = np.searchsorted(begun, calls.start[rows]) - 1
        waited, rest = done[at] - calls.start[rows], calls.end[rows] - done[at]
        found[rows] = (at >= 0) & (waited > IMPLIED_NS) & (rest >= 0) & (rest <= np.minimum(waited, IMPLIED_NS))
    return found


def _interleaved(start: Ints, end: Ints) -> Ints:
    """Starts and ends of calls as keys that put, of equal times, an end first."""
    return np.stack([2 * start + 1, 2 * np.maximum(end, start) + (end <= start)], axis=1).reshape(-1)


def launched_behind(trace: Trace, host: Host) -> Ints32:
    """Return the moment after which each op can start: the return of its call (copies: start of the call), or -1."""
    launch = trace.ops.launch
    moment = np.append(host.launch, np.full((2, 1), -1, np.int32), axis=1)
    return np.where(trace.ops.kind == MEMCPY, moment[0][launch], moment[1][launch])
