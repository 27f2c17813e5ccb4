"""The GPU windows of range instances, and the stretches of them in which the GPU computes nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.range_work import index_work
from nsysprof.core.columns import distinct, sums
from nsysprof.core.intervals import Ints, expand_ranges, merge
from nsysprof.trace.trace import GRAPH, KERNEL, MIGRATION, Trace
from nsysprof.waits.walk import RUNS, Reasons, walk


@dataclass(frozen=True)
class Windows:
    """What one GPU had to do with each range instance, sorted by GPU, path and start.

    ``range`` row of `Trace.ranges`, -1 for the whole trace; ``path`` int32 as given; ``gpu`` its number; ``start``,
    ``done``, ``end`` int64 ns: the GPU is done with the instance at ``done``, where ``last`` (int32, an op) ends; the
    host may be busy in it until ``end``. Windows of one path on one GPU do not overlap.
    """

    range: NDArray[np.int64]
    path: NDArray[np.int32]
    gpu: NDArray[np.int32]
    start: Ints
    done: Ints
    end: Ints
    last: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: NDArray[np.integer]) -> Windows:
        """Some of the windows."""
        return Windows(**{field.name: getattr(self, field.name)[rows] for field in fields(Windows)})


def pauses(windows: Windows, parent: NDArray[np.int32]) -> tuple[Windows, NDArray[np.intp]]:
    """What lies between a window and the next of its path and GPU, as windows without work; and the rows of the next.

    Both have the same ``parent`` range; without pauses more than ten times as long as the median of their path.
    """
    same = (windows.path[1:] == windows.path[:-1]) & (windows.gpu[1:] == windows.gpu[:-1])
    # where there are no ranges, the window of a GPU is of none
    around = np.append(parent, np.int32(-1))[windows.range]
    same &= around[1:] == around[:-1]
    behind = np.flatnonzero(same & (windows.start[1:] > windows.end[:-1])) + 1
    start, end = windows.end[behind - 1], windows.start[behind]
    order = np.lexsort((end - start, windows.path[behind], windows.gpu[behind]))
    new = (np.diff(windows.path[behind]) != 0) | (np.diff(windows.gpu[behind]) != 0)
    first = np.flatnonzero(np.append(True, new)[: len(behind)])
    count = np.diff(np.append(first, len(behind)))
    usual = np.repeat((end - start)[order[first + (count - 1) // 2]], count)
    short = np.flatnonzero(end - start <= 10 * usual)
    behind, start, end = behind[short], start[short], end[short]
    nothing = np.full(len(behind), -1, np.int32)
    next_one = windows.take(behind)
    return replace(next_one, start=start, done=start, end=end, last=nothing), behind


def gpu_windows(
    attribution: Attribution,
    rows: NDArray[np.intp],
    path: NDArray[np.int32],
    computes: NDArray[np.bool_] | None = None,
) -> Windows:
    """The `Windows` of the range instances ``rows``, each with its ``path``.

    A window goes from the start of the instance on the host, or from the end of the last window of its path on that GPU
    if that is later, to the end of its own last op there, or of the instance on the host if that is later: a host that
    is late inside the instance counts, before its ops and behind them, and one that runs ahead does not. Instances that
    ran nothing on a GPU have none. What CUDA graphs replay counts where it was launched, however it is attributed.

    Where ``computes`` says of each op name whether it is compute, windows end with their last op in the main stream of
    their path on the GPU, the one that computes for longest, so that side streams that outlast them move none.
    """
    trace, index = attribution.launched.trace, index_work(attribution.launched, rows)
    op, place = index.ops_of(rows)
    gpu = trace.op_gpu[op].astype(np.int64)
    keep = gpu >= 0
    op, place, gpu = op[keep], place[keep], gpu[keep]
    main = np.zeros(len(op), np.uint8)
    if computes is not None:
        main[:] = _in_main_stream(trace, computes, op, path[place])
    order = np.lexsort((trace.ops.end[op], main, place, gpu))
    op, place, gpu = op[order], place[order], gpu[order]
    op = trace.settled(op, trace.ops.end[op], main[order], place, gpu)
    last = np.flatnonzero(np.append((place[1:] != place[:-1]) | (gpu[1:] != gpu[:-1]), True)[: len(op)])
    op, place, gpu = op[last], place[last], gpu[last]
    order = np.lexsort((trace.ranges.start[rows[place]], path[place], gpu))
    op, place, gpu = op[order], place[order], gpu[order]
    done, of = trace.ops.end[op], path[place]
    start = trace.ranges.start[rows[place]].copy()
    end = np.maximum(done, trace.ranges.end[rows[place]])
    others = np.flatnonzero((of[1:] != of[:-1]) | (gpu[1:] != gpu[:-1])) + 1
    for mine in np.split(np.arange(len(op)), others):
        start[mine[1:]] = np.maximum(start[mine[1:]], np.maximum.accumulate(end[mine])[:-1])
    some = start < end
    return Windows(
        rows[place[some]].astype(np.int64),
        of[some],
        gpu[some].astype(np.int32),
        start[some],
        np.clip(done, start, end)[some],
        end[some],
        op[some].astype(np.int32),
    )


def _in_main_stream(
    trace: Trace, computes: NDArray[np.bool_], op: NDArray[np.intp], path: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Which GPU ops are in the stream of their GPU that computes for longest for their path."""
    ops, stream = trace.ops, trace.ops.stream[op]
    kernels = np.isin(ops.kind[op], (KERNEL, GRAPH)) & computes[ops.name[op]]
    first, place = distinct(path, trace.op_gpu[op], stream)
    total = sums(place, np.where(kernels, ops.end[op] - ops.start[op], 0), len(first))
    _, line = distinct(path[first], trace.op_gpu[op[first]])
    order = np.lexsort((-total, line))
    leads = np.zeros(len(first), bool)
    leads[order[np.append(True, np.diff(line[order]) > 0)[: len(order)]]] = True
    main: NDArray[np.bool_] = leads[place]
    return main


def whole_windows(trace: Trace) -> Windows:
    """One window per GPU, from its first op to its last; none where all of its ops take no time."""
    ops, gpu = trace.ops, trace.op_gpu
    numbers = np.flatnonzero(np.bincount(gpu[gpu >= 0]))
    rows = [np.flatnonzero(gpu == number) for number in numbers.tolist()]
    in_order = [
        trace.settled(mine, ops.end[mine]) for mine in (each[np.argsort(ops.end[each])] for each in rows)
    ]
    last = np.array([mine[-1] for mine in in_order], np.int32)
    start = np.array([ops.start[mine].min() for mine in rows], np.int64)
    some = np.flatnonzero(start < ops.end[last])
    start, last, end = start[some], last[some], ops.end[last[some]].astype(np.int64)
    nowhere, path = np.full(len(some), -1, np.int64), np.zeros(len(some), np.int32)
    return Windows(nowhere, path, numbers[some].astype(np.int32), start, end, end, last)


def blocking_communication(
    trace: Trace, why: Reasons, communication: NDArray[np.bool_], gpu: int, process: int
) -> tuple[Ints, Ints, NDArray[np.int32]]:
    """The exposed communication of a process on a GPU that the next compute depended on: ``start``, ``end``, ``op``.

    Disjoint and sorted by start; the process must have ops on that GPU.
    """
    ops = trace.ops
    rows = np.flatnonzero((trace.op_gpu == gpu) & (trace.op_process == process))
    last = rows[np.argmax(ops.end[rows])]
    end = ops.end[[last]]
    one = (ops.start[rows].min(keepdims=True), end, end, np.array([last], np.int32))
    window = Windows(np.array([-1]), np.zeros(1, np.int32), np.array([gpu], np.int32), *one)
    gaps = stretches(window, gpu, gpu_lines(trace, communication, gpu, process))
    pieces = walk(trace, why, gaps.start, gaps.end, gaps.op)
    op = pieces.op
    talks = (pieces.kind == RUNS) & (ops.kind[op] == KERNEL) & communication[ops.name[op]]
    talks &= (trace.op_gpu[op] == gpu) & (trace.op_process[op] == process)
    found = np.flatnonzero(talks)
    found = found[np.argsort(pieces.start[found], kind="stable")]
    return pieces.start[found], pieces.end[found], op[found]


@dataclass(frozen=True)
class Stretches:
    """Stretches of windows without compute: ``window``, ``start``, ``end`` and the ``op`` that ends each.

    That is the compute op that starts there, or, behind the last one of a window, the last op of it; -1 where the GPU
    was done with the window and the host was not.
    """

    window: NDArray[np.intp]
    start: Ints
    end: Ints
    op: NDArray[np.int32]


@dataclass(frozen=True)
class GpuLines:
    """When one GPU computes, communicates and copies, as disjoint sorted intervals ``(start, end)``.

    ``kernels`` are the ops that compute, by start; ``first`` those that begin an interval of ``compute``.
    """

    compute: tuple[Ints, Ints]
    kernels: NDArray[np.intp]
    first: NDArray[np.int32]
    communication: tuple[Ints, Ints]
    copies: tuple[Ints, Ints]


def gpu_lines(
    trace: Trace, communication: NDArray[np.bool_], gpu: int, process: int | None = None
) -> GpuLines:
    """The `GpuLines` of a GPU, whoever launched there, or of one process; ``communication`` says it of each op name."""
    ops = trace.ops
    rows = np.flatnonzero((trace.op_gpu == gpu) & (ops.kind != MIGRATION))
    if process is not None:
        rows = rows[trace.op_process[rows] == process]
    talks = (ops.kind[rows] == KERNEL) & communication[ops.name[rows]]
    computes = (
        ((ops.kind[rows] == KERNEL) | (ops.kind[rows] == GRAPH)) & ~talks & (ops.end[rows] > ops.start[rows])
    )
    mine = rows[computes]
    mine = mine[np.argsort(ops.start[mine], kind="stable")]
    mine = trace.settled(mine, ops.start[mine])
    start, end = merge(ops.start[mine], ops.end[mine])
    first = mine[np.searchsorted(ops.start[mine], start)] if len(mine) else mine
    others = rows[~talks & ~computes]
    return GpuLines(
        (start, end),
        mine,
        first.astype(np.int32),
        merge(ops.start[rows[talks]], ops.end[rows[talks]]),
        merge(ops.start[others], ops.end[others]),
    )


def stretches(windows: Windows, gpu: int, lines: GpuLines) -> Stretches:
    """The `Stretches` of the windows of one GPU."""
    mine = np.flatnonzero(windows.gpu == gpu)
    found = []
    for begin, stop, last in (
        (windows.start, windows.done, windows.last),
        (windows.done, windows.end, np.full(len(windows), -1)),
    ):
        window, start, end, next_op, tail = _gaps(lines, mine, begin[mine], stop[mine])
        op = np.where(tail | (last[window] < 0), last[window], next_op)
        found.append((window, start, end, op.astype(np.int32)))
    whole = [np.concatenate(column) for column in zip(*found, strict=True)]
    return Stretches(*whole)


def _gaps(
    lines: GpuLines, window: NDArray[np.intp], begin: Ints, stop: Ints
) -> tuple[NDArray[np.intp], Ints, Ints, NDArray[np.int64], NDArray[np.bool_]]:
    """The gaps in the compute of a GPU from each ``begin`` to each ``stop``.

    Of each its window, start, end, the op that computes next, and whether it is the last one of its stretch.
    """
    start, end = lines.compute
    first = np.searchsorted(end, begin, side="right")  # the first compute that ends behind the begin
    # a gap before each, one behind all
    count = np.maximum(np.searchsorted(start, stop, side="left") - first, 0) + 1
    whose = np.repeat(np.arange(len(window)), count)
    at = expand_ranges(first, count)
    tail = np.zeros(len(whose), bool)
    tail[np.cumsum(count) - 1] = True
    low = np.maximum(np.where(at > 0, np.append(end, 0)[at - 1], begin[whose]), begin[whose])
    following = np.minimum(at, len(start))
    high = np.where(tail, stop[whose], np.append(start, 0)[following])
    some = low < high
    return window[whose][some], low[some], high[some], np.append(lines.first, 0)[following][some], tail[some]
