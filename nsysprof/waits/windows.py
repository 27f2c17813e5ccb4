"""The GPU windows of range instances, and the stretches of them in which the GPU computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.range_work import index_work
from nsysprof.core.intervals import Ints, expand_ranges, merge
from nsysprof.trace.trace import GRAPH, KERNEL, MIGRATION, Trace


@dataclass(frozen=True)
class Windows:
    """What one GPU had to do with each range instance, sorted by GPU, path and start.

    ``range`` row of `Trace.ranges`, -1 for the whole trace; ``path`` int32 as given; ``gpu`` its number; ``start``,
    ``end`` int64 ns; ``last`` int32, the op that ends there. Windows of one path on one GPU do not overlap.
    """

    range: NDArray[np.int64]
    path: NDArray[np.int32]
    gpu: NDArray[np.int32]
    start: Ints
    end: Ints
    last: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start)


def gpu_windows(attribution: Attribution, rows: NDArray[np.intp], path: NDArray[np.int32]) -> Windows:
    """The `Windows` of the range instances ``rows``, each with its ``path``.

    A window goes from the start of the instance on the host, or from the end of what earlier instances of its path ran
    on that GPU if that is later, to the end of its own last op there: a host that is late inside the instance counts,
    and one that runs ahead does not. Instances that ran nothing on a GPU, or nothing after the last one, have none.
    """
    trace = attribution.trace
    index = index_work(attribution, rows)
    launch, place = index.launches_of(rows)
    size = index.begin[launch + 1] - index.begin[launch]
    op = index.ops[expand_ranges(index.begin[launch], size)]
    place = np.repeat(place, size)
    gpu = trace.op_gpu[op].astype(np.int64)
    keep = gpu >= 0
    op, place, gpu = op[keep], place[keep], gpu[keep]
    order = np.lexsort((trace.ops.end[op], place, gpu))
    op, place, gpu = op[order], place[order], gpu[order]
    last = np.flatnonzero(np.append((place[1:] != place[:-1]) | (gpu[1:] != gpu[:-1]), True)[: len(op)])
    op, place, gpu = op[last], place[last], gpu[last]
    begun = trace.ranges.start[rows[place]]
    order = np.lexsort((begun, path[place], gpu))
    op, place, gpu, begun = op[order], place[order], gpu[order], begun[order]
    end, of = trace.ops.end[op], path[place]
    start = begun.copy()
    new = np.flatnonzero(np.append(True, (of[1:] != of[:-1]) | (gpu[1:] != gpu[:-1]))[: len(op)]).tolist()
    for first, stop in zip(new, [*new[1:], len(op)], strict=True):
        reach = np.maximum.accumulate(end[first:stop])
        start[first + 1 : stop] = np.maximum(start[first + 1 : stop], reach[:-1])
    some = start < end
    return Windows(
        rows[place[some]].astype(np.int64),
        of[some],
        gpu[some].astype(np.int32),
        start[some],
        end[some],
        op[some].astype(np.int32),
    )


def whole_windows(trace: Trace) -> Windows:
    """One window per GPU, from its first op to its last."""
    ops, gpu = trace.ops, trace.op_gpu
    found = []
    for number in np.unique(gpu[gpu >= 0]).tolist():
        rows = np.flatnonzero(gpu == number)
        last = rows[np.argmax(ops.end[rows])]
        found.append((number, int(ops.start[rows].min()), int(ops.end[last]), int(last)))
    number, start, end, last_op = (
        (np.array(column, np.int64) for column in zip(*found, strict=True))
        if found
        else (np.empty(0, np.int64),) * 4
    )
    none = np.full(len(start), -1)
    return Windows(
        none, np.zeros(len(start), np.int32), number.astype(np.int32), start, end, last_op.astype(np.int32)
    )


@dataclass(frozen=True)
class Stretches:
    """Stretches of windows without compute: ``window``, ``start``, ``end`` and the ``op`` that ends each.

    That is the compute op that starts there, or, behind the last one of a window, the last op of it.
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


def gpu_lines(trace: Trace, communication: NDArray[np.bool_], gpu: int) -> GpuLines:
    """The `GpuLines` of a GPU, whoever launched there; ``communication`` says it of each op name."""
    ops = trace.ops
    rows = np.flatnonzero((trace.op_gpu == gpu) & (ops.kind != MIGRATION))
    talks = (ops.kind[rows] == KERNEL) & communication[ops.name[rows]]
    computes = (
        ((ops.kind[rows] == KERNEL) | (ops.kind[rows] == GRAPH)) & ~talks & (ops.end[rows] > ops.start[rows])
    )
    mine = rows[computes]
    mine = mine[np.argsort(ops.start[mine], kind="stable")]
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
    start, end = lines.compute
    first = np.searchsorted(
        end, windows.start[mine], side="right"
    )  # the first compute that ends in the window
    stop = np.searchsorted(start, windows.end[mine], side="left")  # behind the last that starts in it
    count = np.maximum(stop - first, 0) + 1  # a gap before each, and one behind the last
    window = np.repeat(mine, count)
    edges = np.append(0, np.cumsum(count))
    at = expand_ranges(first, count)
    begin = np.where(at > 0, np.append(end, 0)[at - 1], np.iinfo(np.int64).min)
    begin = np.maximum(begin, windows.start[window])
    tail = np.zeros(len(window), bool)
    tail[edges[1:] - 1] = True
    finish = np.where(tail, windows.end[window], np.append(start, 0)[np.minimum(at, len(start))])
    op = np.where(tail, windows.last[window], np.append(lines.first, 0)[np.minimum(at, len(start))])
    some = begin < finish
    return Stretches(window[some], begin[some], finish[some], op[some].astype(np.int32))
