"""Find the GPU windows of range instances, and the intervals without GPU compute in these windows."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.range_work import index_work
from nsysprof.core.arrays import AnyInts, Index, Ints, Ints32, Mask
from nsysprof.core.columns import distinct, marked, pick
from nsysprof.core.intervals import covered, expand_ranges, merge, union_length
from nsysprof.statistics.judge import count_warm_up
from nsysprof.trace.plausibility import tells_of_dropped_events
from nsysprof.trace.trace import FOUND, GRAPH, KERNEL, MIGRATION, Trace
from nsysprof.waits.walk import RUNS, Reasons, walk

_MAX_GPUS = 1 << 16  # more than numbers of GPUs, of which there are 64 where they are known
_FULL, _SEVERAL = 0.9, 3  # of the usual number of GPU ops: a window with less lacks some; and so many windows of each
_IDLES = 10  # of a pause before a step: a GPU that computes for no more than that part of it idles


@dataclass(frozen=True)
class Windows:
    """The window of each range instance on each of its GPUs, sorted by GPU, path and start.

    ``range`` is a row of `Trace.ranges`, or -1 for the whole trace; ``path`` is as given, and ``gpu`` is the number of
    the GPU. A window lasts from ``start`` to ``end`` (int64 ns). The instance begins at ``begin``, after the pause
    since the previous instance if this pause belongs to the window. The op ``last`` ends at ``done``; the host may be
    busy in the instance until ``end``. Windows of one path on one GPU do not overlap.
    """

    range: Ints
    path: Ints32
    gpu: Ints32
    start: Ints
    begin: Ints
    done: Ints
    end: Ints
    last: Ints32

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> Ints:
        """Return the length of each window in ns."""
        return self.end - self.start

    def take(self, rows: AnyInts) -> Windows:
        """The given windows."""
        return Windows(**{field.name: getattr(self, field.name)[rows] for field in fields(Windows)})


def gpu_windows(attribution: Attribution, rows: Index, path: Ints32, communication: Mask) -> Windows:
    """Find the `Windows` of the range instances ``rows``, each with its ``path``; the pause before an instance is not
    included.

    A window starts with the instance on the host, or at the end of the path's previous window on that GPU if that is
    later. The window ends with the last op of the instance on that GPU, or with the instance on the host if that is
    later. So the window includes the time in which a late host is inside the instance, but not the time by which a host
    runs ahead. If a copy or collective runs longer than the compute of the instance, the window ends at the latest when
    the next instance begins to compute. The reason: prefetching for the next step is not part of a step. Instances
    without GPU work have no window. Ops replayed by CUDA graphs count at the launch of the graph, regardless of their
    attribution. ``communication``: per op name, whether it is a collective.
    """
    trace, index = attribution.launched.trace, index_work(attribution.launched, rows)
    op, place = index.ops_of(rows)
    gpu = trace.op_gpu[op].astype(np.int64)
    keep = gpu >= 0
    op, group = op[keep], place[keep] * _MAX_GPUS + gpu[keep]
    if (group[1:] < group[:-1]).any():
        order = np.argsort(group, kind="stable")
        op, group = op[order], group[order]
    last = _edges(trace, op, group, ends=True)
    computes = np.flatnonzero(compute_ops(trace, communication)[op])
    first = computes[_edges(trace, op[computes], group[computes], ends=False)]
    computing = computes[_edges(trace, op[computes], group[computes], ends=True)]
    first_op, computed = np.full(len(last), -1, np.int64), np.full(len(last), np.iinfo(np.int64).min)
    number = np.searchsorted(group[last], group[first])
    first_op[number], computed[number] = op[first], trace.ops.end[op[computing]]
    op, (place, gpu), done = op[last], np.divmod(group[last], _MAX_GPUS), trace.ops.end[op[last]]
    order = np.lexsort((trace.ranges.start[rows[place]], path[place], gpu))
    op, place, gpu, done, first_op, computed = (each[order] for each in (op, place, gpu, done, first_op, computed))
    of = path[place]
    others = np.flatnonzero((of[1:] != of[:-1]) | (gpu[1:] != gpu[:-1])) + 1
    follows = np.append(first_op[1:], -1)
    follows[np.append(others, len(follows)) - 1] = -1
    until = np.where(follows >= 0, np.append(trace.ops.start, np.iinfo(np.int64).max)[follows], done)
    cut = (until < done) & (computed < done)
    done, op = np.where(cut, np.maximum(computed, until), done), np.where(cut, follows, op)
    return _tiled(attribution.launched.trace, rows[place], of, gpu, done, op, others)


def _edges(trace: Trace, op: AnyInts, group: Ints, *, ends: bool) -> Index:
    """The index of the op of each group that ends last, or starts first; ops are in the order of their groups.

    Ties are broken as by `Trace.settled`.
    """
    begins = np.flatnonzero(np.append(True, group[1:] != group[:-1])[: len(op)])
    time = (trace.ops.end if ends else trace.ops.start)[op]
    edge = (np.maximum if ends else np.minimum).reduceat(time, begins)
    found = np.flatnonzero(time == np.repeat(edge, np.diff(begins, append=len(op))))
    if len(found) > len(begins):
        of, ops = op[found], trace.ops
        by = (ops.stream[of], ops.launch[of], trace.op_name_rank[ops.name[of]], ops.end[of], ops.start[of])
        found = found[np.lexsort((*by, group[found]))]
    other = group[found[1:]] != group[found[:-1]]
    return found[(np.append(other, True) if ends else np.append(True, other))[: len(found)]]


def _tiled(trace: Trace, rows: Index, path: Ints32, gpu: Ints, done: Ints, last: AnyInts, others: Index) -> Windows:
    """Windows of instances in order, none before the previous one's end; ``others``: where another line begins.

    If streams complete detected iterations in another order than that of their launches, each still has a window, which
    ends as the next of them ends.
    """
    start = trace.ranges.start[rows].copy()
    end = np.maximum(done, trace.ranges.end[rows])
    for mine in np.split(np.arange(len(rows)), others):
        if (trace.ranges.kind[rows[mine]] == FOUND).all():
            by_end = mine[np.argsort(end[mine], kind="stable")]
            end[mine], done[mine], last[mine] = end[by_end], done[by_end], last[by_end]
        start[mine[1:]] = np.maximum(start[mine[1:]], np.maximum.accumulate(end[mine])[:-1])
    some = start < end
    start, done, end = start[some], np.clip(done, start, end)[some], end[some]
    return Windows(
        rows[some].astype(np.int64),
        path[some],
        gpu[some].astype(np.int32),
        start,
        start,
        done,
        end,
        last[some].astype(np.int32),
    )


def compute_ops(trace: Trace, communication: Mask) -> Mask:
    """Mark the GPU ops that compute: kernels except collectives, and CUDA graphs recorded as a whole."""
    kernels = (trace.ops.kind == KERNEL) & ~communication.take(trace.ops.name)
    return (kernels | (trace.ops.kind == GRAPH)) & (trace.ops.end > trace.ops.start)


def step_windows(attribution: Attribution, rows: Index, path: Ints32, communication: Mask) -> tuple[Windows, Ints32]:
    """Find the steps of a program, timed as in all commands, as GPU windows of range instances with the pauses before
    them.

    A step lasts from the end of the previous step to its own end, so a data loader between two steps belongs to the
    second step. The pause between two steps belongs to the second step only if both steps have the same parent range,
    and if the GPU computes almost nothing in this pause and in most pauses of the path. Other work, such as validation,
    belongs to no step. The first step has no pause before it, and neither have detected iterations, which follow each
    other directly within a loop. The steps of each process form a separate line. If the threads of a process run steps
    concurrently, each thread has its own line of steps. `Windows.path` is the number of a step's line; the second
    result is the path of each line.
    """
    trace = attribution.launched.trace
    thread = trace.ranges.thread[rows]
    _, line = distinct(path, trace.thread_process[thread])
    order = np.lexsort((trace.ranges.start[rows], line))
    rows, thread, path, line = rows[order], thread[order], path[order], line[order]
    first, line = distinct(line, np.where(_side_by_side(trace, rows, thread, line), thread.astype(np.int64), -1))
    windows = gpu_windows(attribution, rows, line.astype(np.int32), communication)
    return _with_pauses(attribution, windows, communication), path[first]


def _side_by_side(trace: Trace, rows: Index, thread: AnyInts, line: AnyInts) -> Mask:
    """Mark instances (sorted by line) of lines in which different threads run instances at the same time."""
    start, end, out = trace.ranges.start[rows], trace.ranges.end[rows], np.zeros(len(rows), bool)
    for number in np.unique(line[1:][(line[1:] == line[:-1]) & (thread[1:] != thread[:-1])]).tolist():
        mine = np.arange(*np.searchsorted(line, [number, number + 1]))
        each = [mine[thread[mine] == code] for code in np.unique(thread[mine]).tolist()]
        alone = sum(union_length(start[part], end[part]) for part in each)
        out[mine] = alone > union_length(start[mine], end[mine])
    return out


def _with_pauses(attribution: Attribution, windows: Windows, communication: Mask) -> Windows:
    """The windows, extended back to the previous window's end; see `step_windows`."""
    attribution = attribution.launched
    trace, parent = attribution.trace, attribution.parent[windows.range]
    same = (windows.path[1:] == windows.path[:-1]) & (windows.gpu[1:] == windows.gpu[:-1])
    same &= (parent[1:] == parent[:-1]) & (windows.start[1:] > windows.end[:-1])
    same &= trace.ranges.kind[windows.range[1:]] != FOUND
    start, computes = windows.start.copy(), compute_ops(trace, communication)
    for gpu in np.unique(windows.gpu[1:][same]).tolist():
        behind = np.flatnonzero(same & (windows.gpu[1:] == gpu)) + 1
        pause, until = windows.end[behind - 1], windows.start[behind]
        ops = np.flatnonzero(computes & (trace.op_gpu == gpu))
        computed = covered(merge(trace.ops.start[ops], trace.ops.end[ops]), pause, until)
        idle = computed <= (until - pause) // _IDLES
        idle &= np.bincount(windows.path[behind], np.where(idle, 1, -1), 1)[windows.path[behind]] > 0
        start[behind[idle]] = pause[idle]
    return replace(windows, start=start)


def steady(trace: Trace, windows: Windows) -> Mask:
    """Mark the windows that are not warm-up and have all of their GPU ops (see `incomplete`). Warm-up is found by the
    times of each path on each GPU (see `count_warm_up`).
    """
    out = ~incomplete(trace, windows)
    _, line = distinct(windows.gpu, windows.path)
    for number in np.unique(line).tolist():
        mine = np.flatnonzero(line == number)
        out[mine[: count_warm_up(windows.length[mine])]] = False
    return out


def incomplete(trace: Trace, windows: Windows) -> Mask:
    """Mark windows that lack GPU ops because nsys lost events: on each GPU, the last windows of a path in a process.

    They are marked if three conditions are met. nsys reports lost events. Nearly all earlier windows have more GPU ops
    of this process and more busy time, but are not longer. The ops of the last windows have no new names. Detected
    steps are never marked.
    """
    out = np.zeros(len(windows), bool)
    if not any(tells_of_dropped_events(each) and "NVTX" not in each.text for each in trace.report.about.diagnostics):
        return out
    _, line = distinct(windows.gpu, windows.path)
    for number in np.unique(line[trace.ranges.kind[windows.range] != FOUND]).tolist() if len(trace.ranges) else ():
        mine = np.flatnonzero(line == number)
        process = trace.thread_process[trace.ranges.thread[windows.range[mine[0]]]]  # each path is of one process
        own = (trace.op_gpu == windows.gpu[mine[0]]) & (trace.op_process == process)
        ops = trace.in_order(np.flatnonzero(own), trace.ops.start)
        start, name = trace.ops.start[ops], trace.ops.name[ops]
        first, last = (np.searchsorted(start, each[mine]) for each in (windows.start, windows.end))
        full = last - first >= _FULL * np.quantile(last - first, _FULL)
        until, length = int(np.flatnonzero(full)[-1]) + 1, windows.length[mine]
        if min(until, len(mine) - until) < _SEVERAL or full[:until].mean() < _FULL:
            continue
        busy = covered(merge(start, trace.ops.end[ops]), windows.start[mine], windows.end[mine])
        fewer = np.median(busy[until:]) <= _FULL * np.median(busy[:until])
        fewer &= np.isin(name[first[until] : last[-1]], name[first[0] : last[until - 1]]).all()
        out[mine[until:]] = fewer and np.median(length[until:]) >= _FULL * np.median(length[:until])
    return out


def whole_windows(trace: Trace) -> Windows:
    """Return one window per GPU, from its first op to its last; none if all ops of the GPU have zero duration."""
    ops, gpu = trace.ops, trace.op_gpu
    numbers = np.flatnonzero(np.bincount(gpu[gpu >= 0]))
    rows = [np.flatnonzero(gpu == number) for number in numbers.tolist()]
    last = np.array([trace.in_order(mine, ops.end)[-1] for mine in rows], np.int32)
    start = np.array([ops.start[mine].min() for mine in rows], np.int64)
    some = np.flatnonzero(start < ops.end[last])
    start, last, end = start[some], last[some], ops.end[last[some]].astype(np.int64)
    nowhere, path = np.full(len(some), -1, np.int64), np.zeros(len(some), np.int32)
    return Windows(nowhere, path, numbers[some].astype(np.int32), start, start, end, end, last)


def blocking_communication(
    trace: Trace, why: Reasons, communication: Mask, gpu: int, process: int
) -> tuple[Ints, Ints, Ints32]:
    """Find the exposed communication (of a process on a GPU) for which the next compute waited, as ``start``, ``end``,
    ``op``.

    Intervals are disjoint and sorted by start; the process must have ops on that GPU.
    """
    ops = trace.ops
    rows = np.flatnonzero((trace.op_gpu == gpu) & (trace.op_process == process))
    last = trace.in_order(rows, ops.end)[-1]
    end = ops.end[[last]]
    start = ops.start[rows].min(keepdims=True)
    one = (start, start, end, end, np.array([last], np.int32))
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
    """Intervals of windows without compute: ``window``, ``start``, ``end``, and the ``op`` that ends each interval.

    ``op`` is the compute op that starts at the end of the interval or, after the last compute of a window, the last op
    of the window; -1 if only the host was still busy in the window.
    """

    window: Index
    start: Ints
    end: Ints
    op: Ints32


@dataclass(frozen=True)
class GpuLines:
    """The intervals ``(start, end)`` in which one GPU computes, communicates or copies; intervals of a kind are
    disjoint and sorted.

    ``kernels``: the computing ops, by start; ``first``: the ops that begin an interval of ``compute``.
    """

    compute: tuple[Ints, Ints]
    kernels: Index
    first: Ints32
    communication: tuple[Ints, Ints]
    copies: tuple[Ints, Ints]


def gpu_lines(trace: Trace, communication: Mask, gpu: int, process: int | None = None) -> GpuLines:
    """Find the `GpuLines` of a GPU, for all processes or one; ``communication``: a mask of op names."""
    ops = trace.ops
    rows = np.flatnonzero((trace.op_gpu == gpu) & (ops.kind != MIGRATION))
    if process is not None:
        rows = rows[trace.op_process[rows] == process]
    talks = (ops.kind[rows] == KERNEL) & communication[ops.name[rows]]
    computes = ((ops.kind[rows] == KERNEL) | (ops.kind[rows] == GRAPH)) & ~talks & (ops.end[rows] > ops.start[rows])
    mine = trace.in_order(rows[computes], ops.start)
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
    """Find the `Stretches` of the windows of one GPU."""
    mine = np.flatnonzero(windows.gpu == gpu)
    found = []
    for begin, stop, last in (
        (windows.start, windows.done, windows.last),
        (windows.done, windows.end, np.full(len(windows), -1)),
    ):
        window, start, end, next_op, tail = _gaps(lines, mine, begin[mine], stop[mine])
        op = np.where(tail | (last[window] < 0), last[window], next_op)
        found.append((window, start, end, op.astype(np.int32)))
    return Stretches(*[np.concatenate(column) for column in zip(*found, strict=True)])


def _gaps(lines: GpuLines, window: Index, begin: Ints, stop: Ints) -> tuple[Index, Ints, Ints, Ints, Mask]:
    """The gaps in the compute of a GPU from each ``begin`` to each ``stop``.

    For each: window, start, end, the op that computes next, and whether it is the last of its stretch.
    """
    start, end = lines.compute
    first = np.searchsorted(end, begin, side="right")  # the first compute that ends behind the begin
    # a gap before each, one behind all
    count = np.maximum(np.searchsorted(start, stop, side="left") - first, 0) + 1
    whose = np.repeat(np.arange(len(window)), count)
    at = expand_ranges(first, count)
    tail = marked(np.cumsum(count) - 1, len(whose))
    low = np.maximum(pick(end, at - 1, begin[whose]), begin[whose])
    high = np.where(tail, stop[whose], pick(start, at, 0))
    some = low < high
    return window[whose][some], low[some], high[some], pick(lines.first, at, 0)[some], tail[some]
