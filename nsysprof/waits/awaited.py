"""Find the GPU ops that host calls launched, and the GPU ops for which host calls waited."""

from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import AnyInts, Bytes, Index, Ints, Ints32
from nsysprof.core.columns import distinct, pick
from nsysprof.trace.details import CUDA, OS, SYNCHRONIZING, HostActivity
from nsysprof.trace.trace import MEMCPY, MIGRATION, Trace
from nsysprof.waits.host import SLACK_NS, HostTime
from nsysprof.waits.walk import Reasons

ITEM_BYTES = 64  # what `.item()` and its kin copy at most


@dataclass(frozen=True)
class OpsOfCalls:
    """Columns of GPU ops, as rows of `Trace.ops` (-1: none); the last entry of each column is for "no call" or "no
    launch".

    ``made`` int32 per row of `HostActivity.calls`, ``of_launch`` int32 per row of `Trace.launches`: the last copy that
    the call made, or a copy of a few bytes to the host if the call made one; ``example`` int32 per launch: the copy
    that stands for all copies with the same description. ``on`` int32: the op for which a synchronizing call waited.
    ``copies``: the copies that calls launched, sorted by end.
    """

    made: Ints32
    of_launch: Ints32
    example: Ints32
    on: Ints32
    copies: Index


def ops_of_calls(trace: Trace, activity: HostActivity, why: Reasons, size: AnyInts, memory: Bytes) -> OpsOfCalls:
    """Find the `OpsOfCalls` of a trace; ``size`` and ``memory`` describe the copies among the GPU ops."""
    copies = np.flatnonzero((trace.ops.kind == MEMCPY) & (trace.ops.launch >= 0))
    copies = trace.in_order(copies, trace.ops.end)
    nonzero, to_host = (
        np.array([word in name.lower() for name in trace.op_names], bool) for word in ("nonzero", "dtoh")
    )
    items = to_host[trace.ops.name[copies]] & (size[copies] <= ITEM_BYTES)
    chosen = copies[np.argsort(items, kind="stable")]
    before = why.op[chosen]
    asks = (before >= 0) & nonzero[trace.ops.name[before]]
    alike = (size[chosen] > ITEM_BYTES, asks, bucket(size[chosen]), memory[chosen])
    first, inverse = distinct(trace.ops.name[chosen], *alike)
    of_launch, example = (np.full(len(trace.launches) + 1, -1, np.int32) for _ in range(2))
    of_launch[trace.ops.launch[chosen]] = chosen
    example[trace.ops.launch[chosen]] = chosen[first][inverse]
    made = np.full(len(activity.calls) + 1, -1, np.int32)
    launch = np.flatnonzero(of_launch >= 0)
    made[calls_around(trace, activity, launch)] = of_launch[launch]
    made[-1] = -1
    return OpsOfCalls(made, of_launch, example, _awaited(trace, activity), copies)


def bucket(size: AnyInts) -> AnyInts:
    """Round sizes to two binary digits, so that copies of similar size form a group."""
    step = np.maximum(1, 1 << np.maximum(np.log2(np.maximum(size, 1)).astype(np.int64) - 1, 0))
    return np.where(size > 0, (size + step // 2) // step * step, size)


def copies_of(trace: Trace, ops: OpsOfCalls, time: HostTime) -> Ints:
    """For each piece of host time, return the copy that the call made or waited for, or -1.

    A call waited for a copy if call and copy ended together, and the copy ran during at least half of the piece.
    """
    out, copies = ops.made[time.call].astype(np.int64), ops.copies
    if len(copies) == 0:
        return out
    place = np.searchsorted(trace.ops.end[copies], time.end, side="right") - 1
    last = copies[place]
    waited = np.isin(time.activity, (SYNCHRONIZING, OS)) & (place >= 0) & (out < 0)
    waited &= (time.end - trace.ops.end[last] <= SLACK_NS) & (
        trace.op_process[last] == trace.thread_process[time.thread]
    )
    waited &= 2 * (trace.ops.end[last] - np.maximum(trace.ops.start[last], time.start)) >= time.end - time.start
    return np.where(waited, last, out)


def examples(trace: Trace, ops: OpsOfCalls, copied: Ints) -> Ints:
    """For each launch that made a copy, return one copy that stands for all copies with the same description."""
    launch = pick(trace.ops.launch, copied)
    return ops.example[launch].astype(np.int64)


def calls_around(trace: Trace, activity: HostActivity, launch: Index) -> Index:
    """For each launch, return the row of the outermost launching call, -1 (the last row) for none.

    The list of calls has the runtime call; the launch may be the driver call inside the runtime call.
    """
    calls, launches = activity.calls, trace.launches
    out = np.full(len(launch), -1, np.intp)
    for code in np.unique(launches.thread[launch]).tolist():
        mine, rows = (calls.of_thread(int(trace.threads[code])), np.flatnonzero(launches.thread[launch] == code))
        found = mine.start + np.flatnonzero(activity.kind[mine] <= CUDA)
        at = np.searchsorted(calls.start[found], launches.start[launch[rows]], side="right") - 1
        hit = at >= 0
        rows, found = rows[hit], found[at[hit]]
        inside = launches.end[launch[rows]] <= calls.end[found]
        out[rows[inside]] = found[inside]
    return out


def _awaited(trace: Trace, activity: HostActivity) -> Ints32:
    """For each call the op that it waited for, if it synchronizes: the last one of its process that ended in it.

    The wait is at least half of the call, or all of it but `SLACK_NS`: `cudaFree` does other work, too.
    """
    calls, ops = activity.calls, trace.ops
    out = np.full(len(calls) + 1, -1, np.int32)
    waits = np.flatnonzero(activity.kind == SYNCHRONIZING)
    process = np.searchsorted(trace.processes, calls.threads & ~np.int64(0xFFFFFF))[calls.thread[waits]]
    of_op = trace.op_process
    for code in np.unique(process).tolist():
        mine = trace.in_order(np.flatnonzero((of_op == code) & (ops.kind != MIGRATION)), ops.end)
        rows = waits[process == code]
        at = np.searchsorted(ops.end[mine], calls.end[rows], side="right") - 1
        rows, last = rows[at >= 0], mine[at[at >= 0]]
        waited = ops.end[last] - calls.start[rows]
        rest = calls.end[rows] - ops.end[last]
        hit = (waited > 0) & ((rest <= waited) | (rest <= SLACK_NS))
        out[rows[hit]] = last[hit]
    return out
