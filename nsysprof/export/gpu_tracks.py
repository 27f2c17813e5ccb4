"""The tracks of GPUs: what ran on their streams, and counters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysprof.attribution.split import device_labels, stream_names
from nsysprof.export.source import ExportSource
from nsysprof.export.stream_ranges import StreamRanges, stream_ranges
from nsysprof.export.tracks import WINDOWS, Steps, Track, add_lanes
from nsysprof.trace.trace import KERNEL, PUSH_POP, Trace, pid_of

_TOTALS = ("launches", "kernels", "busy_ns", "sum_ns")  # that a projected range shows


def gpu_tracks(source: ExportSource, before: int) -> list[Track]:
    """A track per GPU, below it counters and for each stream ranges and ops; ``before`` tracks stand in front."""
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
    order = np.lexsort((-trace.ops.end, trace.ops.start, trace.ops.stream)).astype(np.int32)
    bounds = np.searchsorted(trace.ops.stream[order], np.arange(len(trace.streams) + 1))
    for code, name in _streams(trace):
        parent = place[numbers[trace.streams[code].device]]
        for ranges in stream_ranges(source.breakdown.attribution, code):
            _add_projection(out, ranges, name, parent, source)
        rows = order[bounds[code] : bounds[code + 1]]
        start = trace.ops.start[rows]
        add_lanes(out, name, parent, "op", rows, start, np.maximum(trace.ops.end[rows], start))
    return out


def _streams(trace: Trace) -> list[tuple[int, str]]:
    """The streams by GPU, process and number, and their names; with the process where several use the GPU."""
    named = []
    for code, (stream, name) in enumerate(zip(trace.streams, stream_names(trace), strict=True)):
        process = trace.devices[stream.device].process
        order = trace.gpu_numbers[stream.device], process, -1 if stream.id is None else stream.id
        named.append((order, code, " · ".join(part for part in name if part)))
    return [(code, name) for _, code, name in sorted(named)]


def _kernels_in_flight(trace: Trace) -> Iterator[tuple[int, Steps]]:
    """How many kernels run on each GPU, from each moment on at which that changes."""
    ops = trace.ops
    for number in sorted(set(trace.gpu_numbers)):
        mine = (trace.op_gpu == number) & (ops.kind == KERNEL)
        start = ops.start[mine]
        if not len(start):
            continue
        time = np.concatenate([start, np.maximum(ops.end[mine], start)])
        order = np.argsort(time, kind="stable")
        time = time[order]
        running = np.cumsum(np.where(order < len(start), 1, -1))
        last = np.append(time[1:] != time[:-1], True)
        time, running = time[last], running[last]
        changed = np.append(True, running[1:] != running[:-1])
        yield number, Steps("count", time[changed], running[changed])


def _add_memory(out: list[Track], source: ExportSource, place: dict[object, int], before: int) -> None:
    trace = source.trace
    gpus = {
        (int(trace.processes[device.process]), device.cuda_id): number
        for device, number in zip(trace.devices, trace.gpu_numbers, strict=True)
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
    place = np.full(len(source.trace.ranges) + 1, -1, np.int32)
    place[row[order]] = np.arange(len(row), dtype=np.int32)
    up = place[source.breakdown.attribution.parent[row[order]]]
    kind = "NVTX" if ranges.kind == PUSH_POP else WINDOWS
    name = f"{stream} · {kind} · {source.thread_label(int(source.trace.threads[ranges.thread]))}"
    totals = {column: getattr(inside, column)[order] for column in _TOTALS}
    add_lanes(
        out, name, parent, "projection", row[order].astype(np.int32), start[order], end[order], up, totals
    )
