"""Show a report as tracks over time, with nested slices and counters, for trace viewers.

Below each process: its threads with NVTX ranges and host CUDA calls, and its start/end ranges. Below each GPU: kernels
in flight, allocated memory, sampled metrics, streams with projected ranges (first op start to last op end) and, if GPUs
wait, the critical path. Slices that partly overlap are on additional tracks with the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from nsysprof.analyze.record_source import RecordSource
from nsysprof.attribution.attribute import FOLLOWED, Attribution
from nsysprof.attribution.projection import LaunchWork, Totals, project, take_calls
from nsysprof.attribution.split import device_labels, stream_names
from nsysprof.core.arrays import AnyInts, Index, Ints, Ints32
from nsysprof.core.nesting import enclosing, stack
from nsysprof.trace.trace import KERNEL, PROCESS_OF_THREAD, START_END, Trace, pid_of, recorded_as, tid_of

What: TypeAlias = Literal["call", "range", "op", "piece"]
_START_END = "start/end ranges"
_TOTALS = ("launches", "kernels", "busy_ns", "sum_ns")  # that a projected range shows


@dataclass(frozen=True)
class Slices:
    """Nested slices, sorted by start, outermost first.

    ``row`` int32: a row of ``calls``, ``trace.ranges``, ``trace.ops`` or the `PathPieces`, depending on ``what``.
    ``start``, ``end`` int64 ns, with no negative length; ``up`` int32: the slice that encloses each slice, -1 for none.
    For ranges projected on a stream, ``totals`` has the work of each range in this stream (columns of `Totals` by
    name).
    """

    what: What
    row: Ints32
    start: Ints
    end: Ints
    up: Ints32
    totals: Mapping[str, AnyInts] = field(default_factory=dict)


@dataclass(frozen=True)
class Steps:
    """A counter that changes to ``value`` (int64, in ``unit``) at each ``time`` (int64 ns, sorted)."""

    unit: Literal["count", "bytes", "percent", "Hz"]
    time: Ints
    value: Ints


@dataclass(frozen=True)
class Track:
    """A track below the track ``parent`` (an index into the list of all tracks, None at the top).

    A process has a ``pid``, a thread also a ``tid``.
    """

    name: str
    parent: int | None
    pid: int | None = None
    tid: int | None = None
    content: Slices | Steps | None = None


def _add_lanes(
    tracks: list[Track],
    name: str,
    parent: int,
    what: What,
    row: Ints32,
    start: Ints,
    end: Ints,
    up: Ints32 | None = None,
    totals: Mapping[str, AnyInts] | None = None,
) -> None:
    """Add as many tracks of that name as it takes for slices, sorted by start and from the longest to the shortest.

    ``up`` are the positions of the slices that may be around each; None: nothing nests. What ends before it starts is
    drawn without a length.
    """
    end = np.maximum(end, start)
    up = np.full(len(row), -1, np.int32) if up is None else up
    for lane in stack(start, end, up):
        at = lane.members
        part = {column: values[at] for column, values in (totals or {}).items()}
        tracks.append(Track(name, parent, content=Slices(what, row[at], start[at], end[at], lane.up, part)))


def host_tracks(source: RecordSource) -> list[Track]:
    """Make the tracks of processes, their threads (main thread first), and the ranges and calls of each thread."""
    trace, names = source.trace, source.trace.thread_names
    tids = np.union1d(trace.threads, source.calls.threads)
    out: list[Track] = []
    for process in np.unique(tids & PROCESS_OF_THREAD).tolist():
        place, pid = len(out), pid_of(process)
        out.append(Track(trace.report.about.processes.get(process, f"pid {pid}"), None, pid))
        of_process = tids[tids & PROCESS_OF_THREAD == process].tolist()
        for tid in sorted(of_process, key=lambda tid: (tid_of(tid) != pid, tid)):
            thread = len(out)
            out.append(Track(names.get(tid, f"thread {tid_of(tid)}"), place, pid, tid_of(tid)))
            _add_ranges(out, source, thread, tid)
            _add_calls(out, source, thread, tid)
        _add_start_end_ranges(out, source, place, process)
    return out


def _add_ranges(out: list[Track], source: RecordSource, thread: int, tid: int) -> None:
    trace = source.trace
    first, last = _push_pop(trace, *_place(trace.threads, trace.ranges.thread, tid))
    parent = source.breakdown.attribution.parent[first:last]
    start, end = trace.ranges.start[first:last], trace.ranges.end[first:last]
    up = np.where(parent >= 0, parent - first, -1).astype(np.int32)
    called = recorded_as(trace, trace.ranges.kind[first:last])
    _add_lanes(out, called, thread, "range", np.arange(first, last, dtype=np.int32), start, end, up)


def _push_pop(trace: Trace, first: int, last: int) -> tuple[int, int]:
    """Find the push/pop ranges of a thread, which come before its start/end ranges."""
    return first, first + int(np.searchsorted(trace.ranges.kind[first:last], START_END))


def _add_calls(out: list[Track], source: RecordSource, thread: int, tid: int) -> None:
    """Add the host calls of a thread, those inside others too."""
    calls = source.calls
    first, last = _place(calls.threads, calls.thread, tid)
    start = calls.start[first:last]
    end = np.maximum(calls.end[first:last], start)
    _add_lanes(out, "CUDA calls", thread, "call", np.arange(first, last, dtype=np.int32), start, end, enclosing(end))


def _add_start_end_ranges(out: list[Track], source: RecordSource, place: int, process: int) -> None:
    """Add the start/end ranges of a process, whichever thread began them."""
    trace, ranges = source.trace, source.trace.ranges
    [code] = np.flatnonzero(trace.processes == process).tolist() or [-1]
    rows = np.flatnonzero((ranges.kind == START_END) & (trace.thread_process[ranges.thread] == code))
    rows = rows[np.lexsort((rows, -ranges.end[rows], ranges.start[rows]))]
    _add_lanes(out, _START_END, place, "range", rows.astype(np.int32), ranges.start[rows], ranges.end[rows])


def _place(tids: Ints, thread: AnyInts, tid: int) -> tuple[int, int]:
    """Find the rows of a thread in a column that is sorted by codes of threads."""
    code = int(np.searchsorted(tids, tid))
    if code == len(tids) or tids[code] != tid:
        return 0, 0
    first, last = np.searchsorted(thread, [code, code + 1]).tolist()
    return first, last


def gpu_tracks(source: RecordSource, before: int) -> list[Track]:
    """Make a track per GPU, and below it counters and, for each stream, ranges and ops; ``before`` tracks come first.

    The `RecordSource.waits` come after the ops, because the arrows of waits start at ops.
    """
    trace = source.trace
    out: list[Track] = []
    place: dict[object, int] = {}
    labels, numbers = device_labels(trace), trace.gpu_numbers
    for number, label in labels.items():
        gpu = trace.devices[numbers.index(number)].gpu
        model = f" · {trace.report.about.gpus[gpu].name}" if gpu is not None else ""
        place[number] = before + len(out)
        out.append(Track(f"{label}{model}", None))
    for number, steps in _kernels_in_flight(trace):
        out.append(Track("kernels in flight", place[number], content=steps))
    _add_memory(out, source, place, before)
    _add_metrics(out, trace, place)
    order = np.lexsort((-trace.ops.end, trace.ops.start, trace.ops.stream)).astype(np.int32)
    bounds = np.searchsorted(trace.ops.stream[order], np.arange(len(trace.streams) + 1))
    for code, name in _streams(trace):
        parent = place[numbers[trace.streams[code].device]]
        for ranges in stream_ranges(source.breakdown.attribution, code):
            _add_projection(out, ranges, name, parent, source)
        rows = order[bounds[code] : bounds[code + 1]]
        _add_lanes(out, name, parent, "op", rows, trace.ops.start[rows], trace.ops.end[rows])
    if (waits := source.waits) is not None:
        for number in np.unique(waits.gpu).tolist():
            rows = np.flatnonzero(waits.gpu == number).astype(np.int32)
            rows = rows[np.lexsort((-waits.end[rows], waits.start[rows]))]
            _add_lanes(out, "critical path", place[number], "piece", rows, waits.start[rows], waits.end[rows])
    return out


def _streams(trace: Trace) -> list[tuple[int, str]]:
    """Sort the streams by GPU, process and number, and name them; with the process where several use the GPU."""
    named = []
    for code, (stream, name) in enumerate(zip(trace.streams, stream_names(trace), strict=True)):
        process = trace.devices[stream.device].process
        order = trace.gpu_numbers[stream.device], process, -1 if stream.id is None else stream.id
        named.append((order, code, " · ".join(part for part in name if part)))
    return [(code, name) for _, code, name in sorted(named)]


def _kernels_in_flight(trace: Trace) -> Iterator[tuple[int, Steps]]:
    """Count the kernels that run on each GPU, from each moment on at which that changes."""
    ops = trace.ops
    for number in sorted(set(trace.gpu_numbers)):
        kernels = (trace.op_gpu == number) & (ops.kind == KERNEL)
        start = ops.start[kernels]
        if not len(start):
            continue
        time = np.concatenate([start, np.maximum(ops.end[kernels], start)])
        order = np.argsort(time, kind="stable")
        time = time[order]
        running = np.cumsum(np.where(order < len(start), 1, -1))
        last = np.append(time[1:] != time[:-1], True)
        time, running = time[last], running[last]
        changed = np.append(True, running[1:] != running[:-1])
        yield number, Steps("count", time[changed], running[changed])


def _add_memory(out: list[Track], source: RecordSource, place: dict[object, int], before: int) -> None:
    trace = source.trace
    for (process, device, kind), steps in trace.memory.by_use().items():
        gpu = trace.gpu_of.get((process, device), (process, device))
        if gpu not in place:  # a device on which nothing ran
            place[gpu] = before + len(out)
            out.append(Track(f"device {device} of pid {pid_of(process)}", None))
        out.append(Track(f"{kind} memory · pid {pid_of(process)}", place[gpu], content=Steps("bytes", *steps)))


def _add_metrics(out: list[Track], trace: Trace, place: Mapping[object, int]) -> None:
    """Add the metrics of each GPU that was sampled, from each moment on at which they change."""
    for gpu, samples in trace.samples.items():
        for name, values in samples.values.items() if gpu in place else ():
            known = np.flatnonzero(~np.isnan(values))
            value = np.rint(values[known]).astype(np.int64)
            changed = np.flatnonzero(np.diff(value, prepend=-1))
            if len(changed):
                steps = Steps("Hz" if name == "clock_hz" else "percent", samples.start[known[changed]], value[changed])
                out.append(Track(name, place[gpu], content=steps))


def _add_projection(out: list[Track], ranges: StreamRanges, stream: str, parent: int, source: RecordSource) -> None:
    """Add the ranges of a thread on a stream, nested as on the host."""
    inside, row = ranges.inside, ranges.row
    start = inside.first_op_ns
    end = np.maximum(inside.last_op_ns, start)
    order = np.lexsort((row, -end, start))
    place = np.full(len(source.trace.ranges) + 1, -1, np.int32)
    place[row[order]] = np.arange(len(row), dtype=np.int32)
    up = place[source.breakdown.attribution.parent[row[order]]]
    kind = _START_END if ranges.window else recorded_as(source.trace, source.trace.ranges.kind[ranges.row])
    name = f"{stream} · {kind} · {source.trace.thread_label(ranges.thread)}"
    totals = {column: getattr(inside, column)[order] for column in _TOTALS}
    _add_lanes(out, name, parent, "range", row[order].astype(np.int32), start[order], end[order], up, totals)


@dataclass(frozen=True)
class StreamRanges:
    """The ranges of one thread that have work on a stream: only start/end ranges if ``window``, otherwise all except
    these.

    ``row`` are rows of ``trace.ranges``, ascending; ``inside`` is the work of each range on that stream, including ops
    that other threads launched for the range. The launches, ops and sums of all streams add up to
    `Attribution.inclusive`, unless a launch has work in several streams.
    """

    thread: int
    window: bool
    row: Index
    inside: Totals


def stream_ranges(attribution: Attribution, stream: int) -> Iterator[StreamRanges]:
    """Yield the `StreamRanges` of a stream by the rules of `attribute`, thread by thread, start/end ranges last."""
    trace = attribution.trace
    ops, launches, ranges = trace.ops, trace.launches, trace.ranges
    rows = np.flatnonzero((ops.stream == stream) & (ops.launch >= 0))
    if not len(rows):
        return
    rows = rows[np.argsort(ops.launch[rows], kind="stable")]
    used, call = np.unique(ops.launch[rows], return_inverse=True)
    calls = LaunchWork.build(
        launches.start[used],
        launches.end[used],
        call=call.astype(np.int32),
        op_start=ops.start[rows],
        op_end=ops.end[rows],
        device=np.zeros(len(rows), np.int32),
        kind=ops.kind[rows],
        from_graph=ops.from_graph[rows],
    )
    thread = launches.thread[used]
    inherited = attribution.outcome[used] == FOLLOWED
    home = np.where(inherited, ranges.thread[attribution.owner[used]], thread) if len(ranges) else thread
    process = int(trace.thread_process[int(thread[0])])
    for member in np.flatnonzero(trace.thread_process == process).tolist():
        own = thread == member
        first, last = np.searchsorted(ranges.thread, [member, member + 1]).tolist()
        cut = _push_pop(trace, first, last)[1]
        anywhere = own if attribution.threads == "strict" else np.ones(len(used), bool)
        for window, inside, of_kind in (
            (False, (home == member) | own, np.arange(first, cut)),
            (True, anywhere, np.arange(cut, last)),
        ):
            projected = _project(calls, np.flatnonzero(inside), trace, of_kind)
            if projected is not None:
                yield StreamRanges(member, window, *projected)


def _project(calls: LaunchWork, inside: Index, trace: Trace, rows: Index) -> tuple[Index, Totals] | None:
    """Project the ranges with calls inside. Ranges are many and mostly of other streams."""
    if not len(inside) or not len(rows):
        return None
    part = take_calls(calls, inside)
    start, end = trace.ranges.start[rows], trace.ranges.end[rows]
    near = np.searchsorted(part.start, end, side="right") > np.searchsorted(part.start, start)
    if not near.any():
        return None
    totals = project(part, start[near], end[near])
    some = totals.launches > 0
    return rows[near][some], Totals(**{name: values[some] for name, values in vars(totals).items()})
