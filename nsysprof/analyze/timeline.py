"""Time lanes: GPU streams and NVTX ranges on one time axis, in columns, so that reports of any size can be drawn.

A GPU lane is a stream or, if there are many streams, all streams of a process on a GPU. At most `MAX_LANES` lanes are
drawn: the busiest lane of every GPU, then the busiest of the other lanes. The time of a lane is cut into columns, each
with its busy time and the group of ops that ran longest. Range lanes show the outer levels of ranges for at most
`MAX_THREADS` threads with GPU work. Each level has two lanes: ranges as executed on the host, and ranges projected onto
the GPU (start of the first op to end of the last).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.highlights import annotated
from nsysprof.analyze.host import HostLane, cuda_extent, host_lanes
from nsysprof.analyze.zoom import Zoom, zoom_in
from nsysprof.attribution.split import device_labels, stream_labels
from nsysprof.core.arrays import Bytes, Index, Ints, Ints32, slices
from nsysprof.core.columns import sums
from nsysprof.core.intervals import busy_columns, column, column_edges, merge
from nsysprof.core.text import plural
from nsysprof.core.units import format_bytes
from nsysprof.kernels.classify import OpGroups
from nsysprof.summaries.gpu_metrics import drawn_metrics, means
from nsysprof.summaries.memory import gpu_memory, most_live
from nsysprof.trace.details import HostActivity
from nsysprof.trace.trace import START_END, Trace, pid_of, tid_of

COLUMNS = 2000  # of a stream's lane; a range lane has half as many, and at most two marks in each
MAX_LANES = 16
MAX_STREAMS = 8  # with a lane each
MAX_THREADS = 8
START_END_LANE = -1  # the level of the lane of start/end ranges
# Threads shown, and how many levels of ranges each gets.
_LEVELS = ((1, 3), (3, 2), (MAX_THREADS, 1))
_ON_GPU_LEVELS = 2
_LEAST_SHARE = 0.0005  # of op time: a lane of less looks empty
_MIN_SHARE_OF_MAIN = 0.1  # of the work of the busiest thread
_LONGEST = 1 << 62  # ns: half of what the difference of two times may be


@dataclass(frozen=True)
class StreamLane:
    """One stream, or all streams of a process on a GPU, with a value per column of the timeline.

    ``busy_ns`` int64, the time in which at least one op runs; ``group`` uint8: the group of `OpGroups` that ran
    longest, `NOTHING` if none ran; ``process`` an index into ``trace.processes``; ``streams``: the number of streams in
    the lane.
    """

    label: str
    process: int
    busy_ns: Ints
    group: Bytes
    streams: int


@dataclass(frozen=True)
class LevelLane:
    """The live memory or a sampled metric of one GPU: a value per column of the timeline, and the full-scale value."""

    label: str
    process: int
    level: Ints
    full: int


@dataclass(frozen=True)
class RangeLane:
    """Ranges of one level of a thread, a row per mark, sorted by start.

    ``level`` 0 is the outermost, `START_END_LANE` the start/end ranges. ``start``, ``end`` int64 ns; ``path`` int32,
    the path (in ``breakdown.paths``) of the first range in the mark; ``count`` int32: the number of ranges in the mark
    (above 1 if neighbours shorter than a column are joined).
    """

    label: str
    process: int
    level: int
    start: Ints
    end: Ints
    path: Ints32
    count: Ints32


@dataclass(frozen=True)
class Timeline:
    """The result of `timeline`. ``edges``: the bounds of the columns in int64 ns; ``wait_ns``: the longest time between
    two ops in which the GPU runs no op; ``notes`` name omissions; ``hosts``: the calls of host threads, for reports
    without annotated GPU work.
    """

    breakdown: Breakdown
    edges: Ints
    streams: tuple[StreamLane, ...]
    levels: tuple[LevelLane, ...]
    ranges: tuple[RangeLane, ...]
    zoom: Zoom | None
    wait_ns: int
    notes: tuple[str, ...]
    hosts: tuple[HostLane, ...] = ()

    @property
    def start_ns(self) -> int:
        """Return the start of the timeline: the first launch, op, or range with GPU work."""
        return int(self.edges[0])

    @property
    def end_ns(self) -> int:
        """The end of the timeline."""
        return int(self.edges[-1])


def timeline(breakdown: Breakdown, *, columns: int = COLUMNS) -> Timeline:
    """Show when streams and ranges were busy, with a `Zoom` on one instance. The run time is near-linear in the number
    of ops and ranges.

    A report without ops has no streams, and a report without ranges has no range lanes. Without ops and ranges, the
    extent is empty.
    """
    trace = breakdown.attribution.trace
    activity = None if annotated(breakdown.columns("merged")) else trace.report.reader.host_activity(trace)
    edges = column_edges(*_extent(breakdown, activity), columns)
    lanes, notes = choose_lanes(trace, least_share=_LEAST_SHARE)
    ranges, more = _range_lanes(breakdown, edges)
    return Timeline(
        breakdown=breakdown,
        edges=edges,
        streams=tuple(_stream_lanes(trace, breakdown.groups, lanes, edges)),
        levels=tuple(_level_lanes(trace, edges, notes)),
        ranges=tuple(ranges),
        zoom=zoom_in(breakdown),
        wait_ns=_longest_wait(trace),
        notes=(*notes, *more),
        hosts=host_lanes(trace, activity, edges) if activity else (),
    )


def _extent(breakdown: Breakdown, activity: HostActivity | None) -> tuple[int, int]:
    trace = breakdown.attribution.trace
    ops, launches, ranges = trace.ops, trace.launches, trace.ranges
    working = breakdown.attribution.inclusive.launches > 0
    closed = working & ~ranges.unclosed  # the end of the session says nothing about the program
    if not len(ops):  # nothing to relate to: all that the host did
        working = closed = np.ones(len(ranges), bool)
    start, end = ranges.start[working], ranges.end[closed]
    starts = [int(times.min()) for times in (ops.start, launches.start, start) if len(times)]
    ends = [int(times.max()) for times in (ops.end, launches.end, end) if len(times)]
    calls = cuda_extent(activity) if activity else None
    if calls:  # so that set-up shows, and what the host waits for
        starts, ends = [*starts, calls[0]], [*ends, calls[1]]
    if not starts:
        return 0, 0
    first, last = min(starts), max(ends)
    if last - first >= _LONGEST and len(ops):  # a host time that no recording reaches
        first, last = int(ops.start.min()), int(ops.end.max())
    return first, min(last, first + _LONGEST)


def _longest_wait(trace: Trace) -> int:
    """Find the longest time in ns between two ops of one GPU in which the GPU ran nothing."""
    ops, longest = trace.ops, 0
    for number in set(trace.gpu_numbers) if len(ops) else ():
        rows = trace.ops_of_gpu(number)
        start, end = merge(ops.start[rows], ops.end[rows])
        longest = max(longest, int((start[1:] - end[:-1]).max(initial=0)))
    return longest


def choose_lanes(
    trace: Trace, most_streams: int = MAX_STREAMS, least_share: float = 0.0
) -> tuple[list[list[int]], list[str]]:
    """Choose the streams of each lane, sorted by GPU, process and stream, with a note on omitted streams.

    If there are more than ``most_streams``, streams of one process and GPU share a lane. Migrations have their own
    lanes. A lane with less than ``least_share`` of op time is left out. The busiest lane of each GPU always stays.
    """
    total = np.zeros(len(trace.streams), np.int64)
    for part in slices(len(trace.ops)):
        length = np.maximum(trace.ops.end[part] - trace.ops.start[part], 0)
        np.add.at(total, trace.ops.stream[part], length)
    process = trace.stream_process.tolist()
    gpu = [trace.gpu_numbers[stream.device] for stream in trace.streams]
    together = sum(not stream.migrates for stream in trace.streams) > most_streams
    by_lane: dict[tuple[object, ...], list[int]] = {}
    for number, stream in enumerate(trace.streams):
        key = process[number], gpu[number], stream.migrates, -1 if together else number
        by_lane.setdefault(key, []).append(number)
    by_time = sorted(by_lane.values(), key=lambda lane: -int(total[lane].sum()))
    busiest: dict[int, list[int]] = {}  # of each GPU
    for lane in by_time:
        busiest.setdefault(gpu[lane[0]], lane)
    first = list(busiest.values())
    least = least_share * int(total.sum())
    chosen = (first + [lane for lane in by_time if lane not in first and total[lane].sum() >= least])[:MAX_LANES]
    shown = {stream for lane in chosen for stream in lane}
    rest = [stream for stream in range(len(total)) if stream not in shown]
    share = f"{100 * int(total[rest].sum()) / (int(total.sum()) or 1):.2g} %"
    drawn = "stream with {} of op time is" if len(rest) == 1 else "streams with {} of op time are"
    notes = [f"{len(rest)} more {drawn.format(share)} not drawn"] if rest else []
    order, place = processes_by_gpu(trace), [*device_labels(trace)]

    def rank(lane: list[int]) -> tuple[int, ...]:
        stream = trace.streams[lane[0]]
        where = order.index(process[lane[0]]), place.index(gpu[lane[0]])
        return *where, stream.migrates, stream.id or 0

    return sorted(chosen, key=rank), notes


def processes_by_gpu(trace: Trace) -> list[int]:
    """Sort all processes by the first GPU that each uses, then by id."""
    place = [*device_labels(trace)]
    first = dict.fromkeys(range(len(trace.processes)), len(place))
    for device, number in zip(trace.devices, trace.gpu_numbers, strict=True):
        first[device.process] = min(first[device.process], place.index(number))
    return sorted(first, key=lambda process: (first[process], process))


def ranked_threads(breakdown: Breakdown) -> tuple[list[int], int]:
    """Rank the active threads, most important first, and count the threads with GPU work in ranges.

    If no range has GPU work, all threads with ranges are counted. Threads with GPU work in ranges come first, sorted by
    the work of their outermost ranges. The first thread of every process comes before the second thread of any process.
    Other threads with ranges follow, then threads that only launch.
    """
    attribution, trace, kept = breakdown.attribution, breakdown.attribution.trace, breakdown.kept
    thread, level = trace.ranges.thread, breakdown.paths.depth[breakdown.paths.of]
    count = len(trace.threads)
    ranges = np.bincount(thread[kept], minlength=count)
    launches = np.bincount(trace.launches.thread, minlength=count)
    working = kept & (attribution.inclusive.launches > 0)
    outer = np.flatnonzero(working & (level == level[working].min(initial=1 << 30)))
    work = sums(thread[outer], attribution.inclusive.busy_ns[outer], count)
    if not working.any():
        work = ranges
    by_work = np.lexsort((-launches, -ranges, -work)).tolist()
    first = _fair([each for each in by_work if work[each] > 0], work, trace)
    return first + [each for each in by_work if work[each] == 0 and ranges[each] + launches[each]], len(first)


def _fair(threads: list[int], work: Ints, trace: Trace) -> list[int]:
    """Put the first threads of all processes before all second threads.

    A main thread comes first in its process if it has a fair part of the work: its ranges are the program's outline.
    """
    process = trace.thread_process.tolist()
    most: dict[int, int] = {}
    for thread in threads:
        most.setdefault(process[thread], int(work[thread]))

    def is_main(thread: int) -> bool:
        pid, tid = pid_of(int(trace.threads[thread])), tid_of(int(trace.threads[thread]))
        return bool(pid == tid and work[thread] >= _MIN_SHARE_OF_MAIN * most[process[thread]])

    rank: dict[int, int] = {}
    seen: dict[int, int] = {}
    for thread in sorted(threads, key=lambda thread: not is_main(thread)):
        rank[thread] = seen[process[thread]] = seen.get(process[thread], -1) + 1
    return sorted(threads, key=rank.__getitem__)


def _stream_lanes(trace: Trace, groups: OpGroups, lanes: list[list[int]], edges: Ints) -> Iterator[StreamLane]:
    """Make the lanes of the chosen streams in the columns between ``edges``, in near-linear time in ops."""
    ops, labels = trace.ops, stream_labels(trace)
    lane_of = np.full(len(trace.streams), len(lanes), np.uint8)
    for number, streams in enumerate(lanes):
        lane_of[streams] = number
    lane = lane_of[ops.stream]
    for number, streams in enumerate(lanes):
        rows = np.flatnonzero(lane == number)
        start = ops.start[rows]
        end = np.maximum(ops.end[rows], start)
        busy, longest = busy_columns(start, end, groups.of[ops.name[rows]], edges)
        label = labels[streams[0]]
        if len(streams) > 1:
            label = f"{label.rsplit(' · ', 1)[0]} · {len(streams)} streams"
        yield StreamLane(label, int(trace.stream_process[streams[0]]), busy, longest, len(streams))


def _level_lanes(trace: Trace, edges: Ints, notes: list[str]) -> Iterator[LevelLane]:
    """Make lanes of the memory and of the metrics of each GPU that were recorded; of metrics, at most `MAX_LANES`.

    ``notes`` gets a note if there are more.
    """
    for label, (process, time, size) in gpu_memory(trace).items():
        live, peak = most_live(time, size, edges[:-1], edges[1:]), int(size.max())
        yield LevelLane(f"{label} · memory, up to {format_bytes(peak)}", process, live, peak)
    drawn = drawn_metrics(trace)
    for label, process, samples, percent in islice(drawn, MAX_LANES):
        level = np.nan_to_num(means(samples, percent, edges[:-1], edges[1:])).astype(np.int64)
        yield LevelLane(f"{label}, up to 100 %", process, level, 100)
    if more := sum(1 for _ in drawn):
        notes.append(f"{plural(more, 'more lane')} of GPU metrics {'is' if more == 1 else 'are'} not drawn")


def _range_lanes(breakdown: Breakdown, edges: Ints) -> tuple[list[RangeLane], list[str]]:
    """Make the range lanes, thread by thread, with notes on omissions."""
    trace = breakdown.attribution.trace
    ranges, level = trace.ranges, breakdown.paths.depth[breakdown.paths.of]
    ranked, working = ranked_threads(breakdown)
    threads = sorted(ranked[: min(working, MAX_THREADS)])
    notes = []
    if working > MAX_THREADS:
        notes.append(f"{working - MAX_THREADS} more threads have ranges that are not drawn")
    levels = next(count for most, count in _LEVELS if len(threads) <= most)
    near = np.flatnonzero(breakdown.kept & (level < levels))
    several = len({int(trace.thread_process[thread]) for thread in threads}) < len(threads)
    lanes: list[RangeLane] = []
    hidden = 0
    for thread in threads:
        rows = near[ranges.thread[near] == thread]
        if levels == 1 and (ranges.kind[rows] != START_END).any():  # many threads: the outline only
            hidden += int((ranges.kind[rows] == START_END).sum())
            rows = rows[ranges.kind[rows] != START_END]
        who = trace.thread_label(thread) if several else f"pid {pid_of(int(trace.threads[thread]))}"
        for on_gpu in (False, True):
            for each in (*range(min(levels, _ON_GPU_LEVELS) if on_gpu else levels), START_END_LANE):
                window = each == START_END_LANE
                called = "start/end" if window else f"level {each + 1}"
                of_kind = (ranges.kind[rows] == START_END) == window
                at_level = rows[of_kind & (level[rows] == max(each, 0))]
                marks = _marks(breakdown, at_level, edges, on_gpu)
                label = f"{who} · {called} · {'on the GPU' if on_gpu else 'host'}"
                if len(marks[0]):
                    lanes.append(RangeLane(label, int(trace.thread_process[thread]), each, *marks))
    if hidden:
        notes.append(f"{hidden:,} start/end ranges are not drawn")
    return lanes, notes


def _marks(breakdown: Breakdown, rows: Index, edges: Ints, on_gpu: bool) -> tuple[Ints, Ints, Ints32, Ints32]:
    """Find start, end, path and count of the marks of a `RangeLane`."""
    inside, ranges = breakdown.attribution.inclusive, breakdown.attribution.trace.ranges
    if on_gpu:
        rows = rows[inside.launches[rows] > 0]
    start = (inside.first_op_ns if on_gpu else ranges.start)[rows]
    end = (inside.last_op_ns if on_gpu else ranges.end)[rows]
    seen = (end >= edges[0]) & (start <= edges[-1])
    start, end, path = start[seen], end[seen], breakdown.paths.of[rows[seen]].astype(np.int32)
    if not len(start):
        return start, end, path, path
    start, end = np.maximum(start, edges[0]), np.minimum(np.maximum(end, start), edges[-1])
    order = np.argsort(start, kind="stable")
    start, end, path = start[order], end[order], path[order]
    # Ranges shorter than half of two columns go with their neighbours in those columns.
    cell = column(start, edges) >> 1
    tiny = end - start < -(-2 * (int(edges[-1]) - int(edges[0])) // (len(edges) - 1))
    joins = np.append(False, tiny[1:] & tiny[:-1] & (cell[1:] == cell[:-1]))
    first = np.flatnonzero(~joins)
    count = np.diff(np.append(first, len(joins))).astype(np.int32)
    return start[first], np.maximum.reduceat(end, first), path[first], count
