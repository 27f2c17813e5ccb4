"""When things ran: GPU streams and NVTX ranges over one time axis, binned so that any report can be drawn.

GPU lanes are streams, or where there are many all that a process has on a GPU, at most `MOST_LANES`: first the busiest
lane of every GPU, then the busiest of the rest. Their time is cut into columns, each with the time in which something
ran and which group of ops ran longest. Range lanes are
the outer levels of up to `MOST_THREADS` threads that own GPU work, twice: as the host executed them, and projected on
the GPU, from the start of their first op to the end of their last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.stream_lanes import StreamLane, choose_lanes, longest_wait, stream_lanes
from nsysprof.analyze.zoom import Zoom, zoom_in
from nsysprof.core.intervals import Ints, column, column_edges
from nsysprof.trace.trace import PUSH_POP, START_END, Trace

COLUMNS = 2000  # of a stream's lane; a range lane has half as many, and at most two marks in each
MOST_THREADS = 8
WINDOWS = -1  # the level of the lane of start/end ranges
# Threads shown, and how many levels of ranges each gets.
_LEVELS = ((1, 3), (3, 2), (MOST_THREADS, 1))
_ON_GPU_LEVELS = 2
_FAIR_PART = 0.1


@dataclass(frozen=True)
class RangeLane:
    """Ranges of one level of a thread, a row per mark, sorted by start.

    ``level`` 0 is the outermost, `WINDOWS` the start/end ranges; ``on_gpu`` tells projected ranges. ``start``, ``end``
    int64 ns; ``path`` int32 into ``breakdown.paths``, of the first range in the mark; ``count`` int32, the ranges in
    the mark: more than 1 where neighbours shorter than a column are drawn as one.
    """

    label: str
    process: int
    level: int
    on_gpu: bool
    start: Ints
    end: Ints
    path: NDArray[np.int32]
    count: NDArray[np.int32]


@dataclass(frozen=True)
class Timeline:
    """The answer of `timeline`. ``edges`` int64 ns, one more than there are columns; ``wait_ns`` the longest
    time between two ops in which a GPU ran nothing; ``notes`` say what is left out.
    """

    breakdown: Breakdown
    edges: Ints
    streams: tuple[StreamLane, ...]
    ranges: tuple[RangeLane, ...]
    zoom: Zoom | None
    gpus: int
    wait_ns: int
    notes: tuple[str, ...]

    @property
    def start_ns(self) -> int:
        """Where the window begins: the first launch, op, or range with GPU work."""
        return int(self.edges[0])

    @property
    def end_ns(self) -> int:
        """Where the window ends."""
        return int(self.edges[-1])


_LONGEST = 1 << 62  # ns: half of what the difference of two times may be


def timeline(breakdown: Breakdown, *, columns: int = COLUMNS) -> Timeline:
    """When streams and ranges were busy, with a `Zoom` on one instance. Near-linear in ops and ranges.

    A report without ops has no streams, one without ranges no range lanes; without either the window is empty.
    """
    trace = breakdown.attribution.trace
    edges = column_edges(*_window(breakdown), columns)
    chosen, notes = choose_lanes(trace)
    streams = stream_lanes(trace, breakdown.groups, chosen, edges)
    ranges, more = _range_lanes(breakdown, edges)
    return Timeline(
        breakdown=breakdown,
        edges=edges,
        streams=streams,
        ranges=ranges,
        zoom=zoom_in(breakdown),
        gpus=len(set(trace.gpu_numbers)) if len(trace.ops) else 0,
        wait_ns=longest_wait(trace),
        notes=(*notes, *more),
    )


def _window(breakdown: Breakdown) -> tuple[int, int]:
    trace = breakdown.attribution.trace
    ops, launches, ranges = trace.ops, trace.launches, trace.ranges
    working = breakdown.attribution.inclusive.launches > 0
    closed = working & ~ranges.unclosed  # the end of the session says nothing about the program
    if not len(ops):  # nothing to relate to: all that the host did
        working = closed = np.ones(len(ranges), bool)
    start, end = ranges.start[working], ranges.end[closed]
    starts = [int(times.min()) for times in (ops.start, launches.start, start) if len(times)]
    ends = [int(times.max()) for times in (ops.end, launches.end, end) if len(times)]
    if not starts:
        return 0, 0
    first, last = min(starts), max(ends)
    if last - first >= _LONGEST and len(ops):  # a host time that no recording reaches
        first, last = int(ops.start.min()), int(ops.end.max())
    return first, min(last, first + _LONGEST)


def _range_lanes(breakdown: Breakdown, edges: Ints) -> tuple[tuple[RangeLane, ...], list[str]]:
    attribution = breakdown.attribution
    trace, inside = attribution.trace, attribution.inclusive
    ranges, paths = trace.ranges, breakdown.paths
    kept = breakdown.kept
    level = paths.depth[paths.of]
    busy = np.zeros(len(trace.threads), np.int64)
    working = kept & (inside.launches > 0)
    outer = np.flatnonzero(working if not working.any() else working & (level == level[working].min()))
    np.add.at(busy, ranges.thread[outer], inside.busy_ns[outer])
    if not working.any():
        busy += np.bincount(ranges.thread[kept], minlength=len(busy))
    by_time = np.argsort(-busy, kind="stable").tolist()
    threads = _fair([thread for thread in by_time if busy[thread] > 0], busy, trace)
    notes = []
    if len(threads) > MOST_THREADS:
        notes.append(f"ranges of {len(threads) - MOST_THREADS} more threads are not drawn")
    threads = sorted(threads[:MOST_THREADS])
    levels = next((count for most, count in _LEVELS if len(threads) <= most), 1)
    near = np.flatnonzero(kept & (level < levels))
    several = len({int(trace.thread_process[thread]) for thread in threads}) < len(threads)
    out: list[RangeLane] = []
    hidden = 0
    for thread in threads:
        mine = near[ranges.thread[near] == thread]
        if levels == 1 and (ranges.kind[mine] == PUSH_POP).any():  # many threads: the outline only
            hidden += int((ranges.kind[mine] == START_END).sum())
            mine = mine[ranges.kind[mine] == PUSH_POP]
        pid, tid = int(trace.threads[thread]) >> 24 & 0xFFFFFF, int(trace.threads[thread]) & 0xFFFFFF
        who = f"thread {tid}" if several else f"pid {pid}"
        for on_gpu in (False, True):
            for number in (*range(min(levels, _ON_GPU_LEVELS) if on_gpu else levels), WINDOWS):
                kind = START_END if number == WINDOWS else PUSH_POP
                rows = mine[(ranges.kind[mine] == kind) & (level[mine] == max(number, 0))]
                if on_gpu:
                    rows = rows[inside.launches[rows] > 0]
                if len(rows):
                    process = int(trace.thread_process[thread])
                    lane = _range_lane(breakdown, rows, edges, who, process, number, on_gpu)
                    if len(lane.start):  # some of them lie in the window
                        out.append(lane)
    if hidden:
        notes.append(f"{hidden:,} start/end ranges are not drawn")
    return tuple(out), notes


def _fair(threads: list[int], busy: Ints, trace: Trace) -> list[int]:
    """The same threads, the first one of every process before the second one of any.

    A main thread comes first in its process if it has a fair part of the work: its ranges are the program's outline.
    """
    most: dict[int, int] = {}
    for thread in threads:
        most.setdefault(int(trace.thread_process[thread]), busy[thread])
    mains = {
        thread
        for thread in threads
        if int(trace.threads[thread]) >> 24 & 0xFFFFFF == int(trace.threads[thread]) & 0xFFFFFF
        and busy[thread] >= _FAIR_PART * most[int(trace.thread_process[thread])]
    }
    rank: dict[int, int] = {}
    seen: dict[int, int] = {}
    for thread in sorted(threads, key=lambda thread: thread not in mains):
        process = int(trace.thread_process[thread])
        rank[thread] = seen[process] = seen.get(process, -1) + 1
    return sorted(threads, key=rank.__getitem__)


def _range_lane(
    breakdown: Breakdown,
    rows: NDArray[np.intp],
    edges: Ints,
    who: str,
    process: int,
    level: int,
    on_gpu: bool,
) -> RangeLane:
    inside, ranges = breakdown.attribution.inclusive, breakdown.attribution.trace.ranges
    start = (inside.first_op_ns if on_gpu else ranges.start)[rows]
    end = (inside.last_op_ns if on_gpu else ranges.end)[rows]
    seen = (end >= edges[0]) & (start <= edges[-1])
    start, end, path = start[seen], end[seen], breakdown.paths.of[rows[seen]]
    start, end = np.maximum(start, edges[0]), np.minimum(np.maximum(end, start), edges[-1])
    order = np.argsort(start, kind="stable")
    start, end, path = start[order], end[order], path[order]
    # Ranges shorter than half of two columns go with their neighbours in those columns.
    cell = column(start, edges) >> 1
    tiny = end - start < -(-2 * (int(edges[-1]) - int(edges[0])) // (len(edges) - 1))
    joins = np.append(False, tiny[1:] & tiny[:-1] & (cell[1:] == cell[:-1]))[: len(start)]
    first = np.flatnonzero(~joins)
    kind = "start/end" if level == WINDOWS else f"level {level + 1}"
    return RangeLane(
        label=f"{who} · {kind} · {'on the GPU' if on_gpu else 'host'}",
        process=process,
        level=level,
        on_gpu=on_gpu,
        start=start[first],
        end=np.maximum.reduceat(end, first) if len(first) else end,
        path=path[first].astype(np.int32),
        count=np.diff(np.append(first, len(joins))).astype(np.int32) if len(start) else np.empty(0, np.int32),
    )
