"""A report as tracks over time, slices that nest and counters, for trace viewers.

Below each process stand its threads, with their NVTX ranges and their host CUDA calls, and its start/end ranges; below
each GPU the kernels in flight, allocated memory, and its streams, with the ranges projected on them: from the start of
the first op inside to the end of the last. What overlaps without nesting goes to further tracks of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import FOLLOWED, Attribution
from nsysprof.attribution.projection import LaunchWork, Totals, project, take_calls
from nsysprof.attribution.split import device_labels, stream_names
from nsysprof.core.intervals import Index, Ints, enclosing
from nsysprof.core.stacking import stack
from nsysprof.export.source import ExportSource
from nsysprof.trace.tables import KERNEL, PROCESS_OF_THREAD, PUSH_POP, START_END, Tables, pid_of, tid_of

What: TypeAlias = Literal["call", "range", "op"]
_START_END = "start/end ranges"
_TOTALS = ("launches", "kernels", "busy_ns", "sum_ns")  # that a projected range shows


@dataclass(frozen=True)
class Slices:
    """Slices that nest, sorted by start and from the outermost to the innermost.

    ``row`` int32: of ``calls``, of ``tables.ranges`` or of ``tables.ops``, as ``what`` says. ``start``, ``end`` int64
    ns, never backwards; ``up`` int32, the slice around each, -1 for none. For ranges projected on a stream, ``totals``
    are what each has there: columns of `Totals` by name.
    """

    what: What
    row: NDArray[np.int32]
    start: Ints
    end: Ints
    up: NDArray[np.int32]
    totals: Mapping[str, NDArray[np.integer]] = field(default_factory=dict)


@dataclass(frozen=True)
class Steps:
    """A counter: from each ``time`` (int64 ns, sorted) on it is ``value`` (int64), in ``unit``."""

    unit: Literal["count", "bytes"]
    time: Ints
    value: Ints


@dataclass(frozen=True)
class Track:
    """A track below the track ``parent``, its position in the list of all; None at the top.

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
    row: NDArray[np.int32],
    start: Ints,
    end: Ints,
    up: NDArray[np.int32] | None = None,
    totals: Mapping[str, NDArray[np.integer]] | None = None,
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


# ---- processes


def host_tracks(source: ExportSource) -> list[Track]:
    """A track per process, below it one per thread, the main thread first, and below those ranges and calls."""
    tables = source.tables
    tids = np.union1d(tables.threads, source.calls.threads)
    out: list[Track] = []
    for process in np.unique(tids & PROCESS_OF_THREAD).tolist():
        place, pid = len(out), pid_of(process)
        out.append(Track(tables.report.about.processes.get(process, f"pid {pid}"), None, pid))
        of_process = tids[tids & PROCESS_OF_THREAD == process].tolist()
        for tid in sorted(of_process, key=lambda tid: (tid_of(tid) != pid, tid)):
            thread = len(out)
            out.append(Track(source.thread_names.get(tid, f"thread {tid_of(tid)}"), place, pid, tid_of(tid)))
            _add_ranges(out, source, thread, tid)
            _add_calls(out, source, thread, tid)
        _add_start_end_ranges(out, source, place, process)
    return out


def _add_ranges(out: list[Track], source: ExportSource, thread: int, tid: int) -> None:
    """The push/pop ranges of a thread."""
    tables = source.tables
    first, last = _push_pop(tables, *_place(tables.threads, tables.ranges.thread, tid))
    parent = source.breakdown.attribution.parent[first:last]
    start, end = tables.ranges.start[first:last], tables.ranges.end[first:last]
    up = np.where(parent >= 0, parent - first, -1).astype(np.int32)
    _add_lanes(out, "NVTX", thread, "range", np.arange(first, last, dtype=np.int32), start, end, up)


def _push_pop(tables: Tables, first: int, last: int) -> tuple[int, int]:
    """Those of the ranges of one thread that are push/pop ranges, which come first."""
    return first, first + int(np.searchsorted(tables.ranges.kind[first:last], START_END))


def _add_calls(out: list[Track], source: ExportSource, thread: int, tid: int) -> None:
    """The host calls of a thread, those inside others too."""
    calls = source.calls
    first, last = _place(calls.threads, calls.thread, tid)
    start = calls.start[first:last]
    end = np.maximum(calls.end[first:last], start)
    rows = np.arange(first, last, dtype=np.int32)
    _add_lanes(out, "CUDA calls", thread, "call", rows, start, end, enclosing(end))


def _add_start_end_ranges(out: list[Track], source: ExportSource, place: int, process: int) -> None:
    """The start/end ranges of a process, whichever thread began them."""
    tables, ranges = source.tables, source.tables.ranges
    [code] = np.flatnonzero(tables.processes == process).tolist() or [-1]
    rows = np.flatnonzero((ranges.kind == START_END) & (tables.thread_process[ranges.thread] == code))
    rows = rows[np.lexsort((rows, -ranges.end[rows], ranges.start[rows]))]
    _add_lanes(out, _START_END, place, "range", rows.astype(np.int32), ranges.start[rows], ranges.end[rows])


def _place(tids: Ints, thread: NDArray[np.integer], tid: int) -> tuple[int, int]:
    """Where the rows of a thread stand in a column that is sorted by codes of threads."""
    code = int(np.searchsorted(tids, tid))
    if code == len(tids) or tids[code] != tid:
        return 0, 0
    first, last = np.searchsorted(thread, [code, code + 1]).tolist()
    return first, last


# ---- GPUs


def gpu_tracks(source: ExportSource, before: int) -> list[Track]:
    """A track per GPU, below it counters and for each stream ranges and ops; ``before`` tracks stand in front."""
    tables = source.tables
    out: list[Track] = []
    place: dict[object, int] = {}
    labels, numbers = device_labels(tables), tables.gpu_numbers
    for number, label in labels.items():
        gpu = tables.devices[numbers.index(number)].gpu
        model = f" · {tables.report.about.gpus[gpu].name}" if gpu is not None else ""
        place[number] = before + len(out)
        out.append(Track(f"{label}{model}", None))
    for number, steps in _kernels_in_flight(tables):
        out.append(Track("kernels in flight", place[number], content=steps))
    _add_memory(out, source, place, before)
    order = np.lexsort((-tables.ops.end, tables.ops.start, tables.ops.stream)).astype(np.int32)
    bounds = np.searchsorted(tables.ops.stream[order], np.arange(len(tables.streams) + 1))
    for code, name in _streams(tables):
        parent = place[numbers[tables.streams[code].device]]
        for ranges in stream_ranges(source.breakdown.attribution, code):
            _add_projection(out, ranges, name, parent, source)
        rows = order[bounds[code] : bounds[code + 1]]
        _add_lanes(out, name, parent, "op", rows, tables.ops.start[rows], tables.ops.end[rows])
    return out


def _streams(tables: Tables) -> list[tuple[int, str]]:
    """The streams by GPU, process and number, and their names; with the process where several use the GPU."""
    named = []
    for code, (stream, name) in enumerate(zip(tables.streams, stream_names(tables), strict=True)):
        process = tables.devices[stream.device].process
        order = tables.gpu_numbers[stream.device], process, -1 if stream.id is None else stream.id
        named.append((order, code, " · ".join(part for part in name if part)))
    return [(code, name) for _, code, name in sorted(named)]


def _kernels_in_flight(tables: Tables) -> Iterator[tuple[int, Steps]]:
    """How many kernels run on each GPU, from each moment on at which that changes."""
    ops = tables.ops
    for number in sorted(set(tables.gpu_numbers)):
        kernels = (tables.op_gpu == number) & (ops.kind == KERNEL)
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


def _add_memory(out: list[Track], source: ExportSource, place: dict[object, int], before: int) -> None:
    tables = source.tables
    gpus = {
        (int(tables.processes[device.process]), device.cuda_id): number
        for device, number in zip(tables.devices, tables.gpu_numbers, strict=True)
    }
    for use in source.memory:
        key = use.process, use.device
        gpu = gpus.get(key, key)
        if gpu not in place:  # a device on which nothing ran
            place[gpu] = before + len(out)
            out.append(Track(f"device {use.device} of pid {pid_of(use.process)}", None))
        name = f"{use.kind} memory · pid {pid_of(use.process)}"
        out.append(Track(name, place[gpu], content=Steps("bytes", use.time, use.size)))


def _add_projection(
    out: list[Track], ranges: StreamRanges, stream: str, parent: int, source: ExportSource
) -> None:
    """The ranges of a thread on a stream, inside those that they are in on the host."""
    inside, row = ranges.inside, ranges.row
    start = inside.first_op_ns
    end = np.maximum(inside.last_op_ns, start)
    order = np.lexsort((row, -end, start))
    place = np.full(len(source.tables.ranges) + 1, -1, np.int32)
    place[row[order]] = np.arange(len(row), dtype=np.int32)
    up = place[source.breakdown.attribution.parent[row[order]]]
    kind = "NVTX" if ranges.kind == PUSH_POP else _START_END
    name = f"{stream} · {kind} · {source.thread_label(int(source.tables.threads[ranges.thread]))}"
    totals = {column: getattr(inside, column)[order] for column in _TOTALS}
    _add_lanes(out, name, parent, "range", row[order].astype(np.int32), start[order], end[order], up, totals)


# ---- ranges on streams


@dataclass(frozen=True)
class StreamRanges:
    """The ranges of one thread and one kind that have work on a stream.

    ``row`` are rows of ``tables.ranges``, ascending; ``inside`` what each has on that stream, all threads' ops that
    belong to it included. Over all streams launches, ops and sums add up to `Attribution.inclusive`, but for launches
    that caused work on several streams.
    """

    thread: int
    kind: int
    row: Index
    inside: Totals


def stream_ranges(attribution: Attribution, stream: int) -> Iterator[StreamRanges]:
    """The `StreamRanges` of a stream, by thread, push/pop ranges first; by the rules of `attribute`."""
    tables = attribution.tables
    ops, launches, ranges = tables.ops, tables.launches, tables.ranges
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
    inherited = attribution.fate[used] == FOLLOWED
    home = np.where(inherited, ranges.thread[attribution.owner[used]], thread) if len(ranges) else thread
    process = int(tables.thread_process[int(thread[0])])
    for member in np.flatnonzero(tables.thread_process == process).tolist():
        own = thread == member
        first, last = np.searchsorted(ranges.thread, [member, member + 1]).tolist()
        cut = _push_pop(tables, first, last)[1]
        anywhere = own if attribution.threads == "strict" else np.ones(len(used), bool)
        for kind, inside, of_kind in (
            (PUSH_POP, (home == member) | own, np.arange(first, cut)),
            (START_END, anywhere, np.arange(cut, last)),
        ):
            projected = _project(calls, np.flatnonzero(inside), tables, of_kind)
            if projected is not None:
                yield StreamRanges(member, kind, *projected)


def _project(calls: LaunchWork, inside: Index, tables: Tables, rows: Index) -> tuple[Index, Totals] | None:
    """Those of the ranges with calls inside, and what is inside. Ranges are many and mostly of other streams."""
    if not len(inside) or not len(rows):
        return None
    part = take_calls(calls, inside)
    start, end = tables.ranges.start[rows], tables.ranges.end[rows]
    near = np.searchsorted(part.start, end, side="right") > np.searchsorted(part.start, start)
    if not near.any():
        return None
    totals = project(part, start[near], end[near])
    some = totals.launches > 0
    return rows[near][some], Totals(**{name: values[some] for name, values in vars(totals).items()})
