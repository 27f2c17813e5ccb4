"""The report as narrow numpy columns: ranges, launches and ops, with ids resolved to small codes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from nsysprof.codes import Coder
from nsysprof.report import Report, reading
from nsysprof.report.about import devices as gpu_of_device
from nsysprof.report.columns import Progress, Source, column
from nsysprof.report.gpu_work import GRAPH, KERNEL, MEMCPY, MEMSET, Work, read_work
from nsysprof.report.host_calls import PROCESS_OF_THREAD, launch_keys, read_calls
from nsysprof.report.host_calls import TABLE as CALLS
from nsysprof.report.nvtx import PUSH_POP, START_END, NvtxRanges, RangeName, read_ranges

__all__ = [
    "GRAPH", "KERNEL", "MEMCPY", "MEMSET", "PUSH_POP", "START_END",
    "Device", "Launches", "Ops", "RangeName", "Ranges", "Stream", "Tables", "only_ops", "pid_of", "read_tables",
    "tid_of",
]  # fmt: skip


_CHUNK = 1 << 17  # rows at a time where temporaries would be large


@dataclass(frozen=True)
class Device:
    """A CUDA device as one process sees it. ``gpu`` is an index into ``report.about.gpus``, None where unknown."""

    process: int
    cuda_id: int
    gpu: int | None


@dataclass(frozen=True)
class Stream:
    """A stream of a device; ``device`` is an index into `Tables.devices`, ``id`` None where none is recorded."""

    device: int
    id: int | None


@dataclass(frozen=True)
class Ranges:
    """NVTX ranges, a row per instance, sorted by (process, thread, kind, start, longest first).

    ``thread`` code of `Tables.threads`; ``start``, ``end`` int64 ns; ``kind`` uint8, PUSH_POP or START_END; ``name``
    int32 into `Tables.range_names`; ``unclosed`` bool: never closed by the program, ends with the session; ``moved``
    bool: a start/end range of which the report says on which thread it ended.
    """

    thread: NDArray[np.integer]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    unclosed: NDArray[np.bool_]
    moved: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Launches:
    """Host calls that caused GPU work, one row per (process, correlation id), sorted by (process, thread, start).

    ``thread`` code of `Tables.threads`; ``start``, ``end`` int64 ns.
    """

    thread: NDArray[np.integer]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Ops:
    """GPU operations, in the order of the file.

    ``start``, ``end`` int64 ns; ``kind`` uint8: KERNEL, MEMCPY, MEMSET or GRAPH (a CUDA-graph launch traced as a
    whole); ``name`` int32 into `Tables.op_names`; ``stream`` code of `Tables.streams`; ``launch`` int32, a row of
    `Launches`, -1 where there is none; ``from_graph`` bool: a node of a CUDA graph.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    stream: NDArray[np.integer]
    launch: NDArray[np.int32]
    from_graph: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Tables:
    """Everything that attribution needs of a report.

    ``threads`` and ``processes`` are the sorted globalTids and globalPids (int64), ``thread_process`` maps the one to
    the other. ``session_end`` is where unclosed ranges end, in ns.
    """

    report: Report
    ranges: Ranges
    launches: Launches
    ops: Ops
    range_names: list[RangeName]
    op_names: list[str]
    threads: NDArray[np.int64]
    thread_process: NDArray[np.int32]
    processes: NDArray[np.int64]
    devices: list[Device]
    streams: list[Stream]
    session_end: int
    warnings: tuple[str, ...]

    @property
    def gpu_numbers(self) -> list[int]:
        """A number per device, the same for devices that are one GPU; a device of unknown GPU is one of its own."""
        numbers: dict[object, int] = {}
        return [
            numbers.setdefault(("gpu", device.gpu) if device.gpu is not None else device, len(numbers))
            for device in self.devices
        ]

    @property
    def op_gpu(self) -> NDArray[np.int32]:
        """The GPU number of each op."""
        of_stream = np.array(self.gpu_numbers, np.int32)[self.stream_device]
        return of_stream.take(self.ops.stream)

    @property
    def op_process(self) -> NDArray[np.int32]:
        """The process of each op, as far as its row tells."""
        return self.stream_process.take(self.ops.stream)

    @property
    def stream_device(self) -> NDArray[np.int32]:
        """The device of each stream."""
        return np.array([stream.device for stream in self.streams], np.int32)

    @property
    def stream_process(self) -> NDArray[np.int32]:
        """The process of each stream."""
        return np.array([self.devices[stream.device].process for stream in self.streams], np.int32)


Id = TypeVar("Id", int, NDArray[np.int64])


def pid_of(global_id: Id) -> Id:
    """The process id in a globalTid or globalPid, or in each of an array."""
    return (global_id >> 24) & 0xFFFFFF


def tid_of(global_id: Id) -> Id:
    """The thread id in a globalTid, or in each of an array."""
    return global_id & 0xFFFFFF


def read_tables(report: Report, progress: Progress | None = None) -> Tables:
    """The `Tables` of a report. Rows that are absent are absent; what that means for the answer is in ``warnings``.

    Raises `NsysprofError` where the file turns out to be damaged. ``progress`` is told each table and the rows read.
    """
    source = report.source
    found, tids = Coder(), Coder()  # globalPids, globalTids
    with reading(report.path):
        ops, launches, work, recorded_twice = _read_gpu_work(source, found, tids, progress)
        nvtx = read_ranges(source, tids, progress)
        gpus = gpu_of_device(source)

    order = np.argsort(tids.values, kind="stable")
    threads = tids.values[order]
    thread_code = np.empty(len(order), _narrow(len(order)))
    thread_code[order] = np.arange(len(order))
    launches = replace(launches, thread=thread_code[launches.thread])  # sorted by thread before, and still
    processes = np.array(sorted({*found.values.tolist(), *(threads & PROCESS_OF_THREAD).tolist()}), np.int64)
    process_code = np.searchsorted(processes, found.values)
    duration = report.about.duration_ns or 0
    ends = [int(times.max()) for times in (ops.end, launches.end, nvtx.end) if len(times)]
    session_end = max([duration, *ends])
    devices = [
        Device(int(process_code[code]), cuda_id, gpus.get((int(found.values[code]), cuda_id)))
        for code, cuda_id in work.devices
    ]
    warnings = _warnings(work, ops, launches, len(nvtx.start), recorded_twice)
    return Tables(
        report=report,
        ranges=_ranges(nvtx, thread_code, session_end, duration),
        launches=launches,
        ops=ops,
        range_names=nvtx.names,
        op_names=work.names,
        threads=threads,
        thread_process=np.searchsorted(processes, threads & PROCESS_OF_THREAD).astype(np.int32),
        processes=processes,
        devices=devices,
        streams=[Stream(device, number) for device, number in work.streams],
        session_end=session_end,
        warnings=warnings,
    )


def only_ops(tables: Tables, mine: NDArray[np.bool_]) -> Tables:
    """The same report with only some of its ops, and the launches that caused those."""
    ops, launches = tables.ops, tables.launches
    launch = ops.launch[mine]
    used = np.zeros(len(launches) + 1, bool)
    used[launch] = True
    used[-1] = False  # where ops without a launch point
    place = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
    used = used[:-1]
    kept = {name: values[mine] for name, values in ops.__dict__.items()}
    return replace(
        tables,
        ops=replace(ops, **{**kept, "launch": place[launch]}),
        launches=Launches(launches.thread[used], launches.start[used], launches.end[used]),
    )


def _narrow(count: int) -> type[np.integer]:
    """The smallest type for codes below ``count``; 16 bits sort by radix."""
    return np.uint16 if count <= 1 << 16 else np.int32


def _adopt(work: Work, found: Coder, source: Source) -> Work:
    """GPU rows without a process id belong to the process that made host calls, if that was one alone."""
    codes = {value: code for code, value in enumerate(found.values.tolist())}
    if 0 not in codes:
        return work
    tids = Coder()
    if "globalTid" in source.columns(CALLS):
        for block in source.blocks(CALLS, ["globalTid"]):
            tids.encode(column(block, "globalTid"))
    callers = np.unique(tids.values & PROCESS_OF_THREAD)
    if len(callers) != 1:
        return work
    caller = int(found.encode(callers)[0])
    devices = [(caller if code == codes[0] else code, number) for code, number in work.devices]
    return replace(work, devices=devices)


def _read_gpu_work(
    source: Source, found: Coder, tids: Coder, progress: Progress | None
) -> tuple[Ops, Launches, Work, int]:
    """The ops and their launches, whose threads are still codes of ``tids``, what else the GPU rows tell, and how many
    host calls were given up because a shorter one has their id.

    What joins the two is given up as soon as it is used: this is where memory peaks.
    """
    work = _adopt(read_work(source, found, progress), found, source)
    process_of_stream = np.array([work.devices[device][0] for device, _ in work.streams], np.int32)
    keys = launch_keys(process_of_stream.take(work.stream), work.correlation)
    slot: NDArray[Any] = np.empty(len(work.start), np.int32 if keys.count < 1 << 31 else np.int64)
    for first in range(0, len(slot), _CHUNK):
        part = slice(first, first + _CHUNK)
        slot[part] = keys.slots(process_of_stream[work.stream[part]], work.correlation[part])
    work = replace(work, correlation=np.empty(0, np.int64))
    calls = read_calls(source, keys, found, tids, progress)
    launch_of_slot = np.full(
        keys.count + 1, -1, np.int32
    )  # the last entry is for ops without a launch: slot -1
    del keys
    by_id = np.argsort(tids.values, kind="stable")
    place = np.empty(len(by_id), _narrow(len(by_id)))
    place[by_id] = np.arange(len(by_id))
    group = place[calls.thread]
    order, start = _sorted(group, calls.start, calls.end)
    thread = np.repeat(by_id.astype(np.int32), np.bincount(group, minlength=len(by_id)))
    launch_of_slot[calls.slot[order]] = np.arange(len(order), dtype=np.int32)
    launch = launch_of_slot.take(slot, mode="wrap")
    del slot, launch_of_slot
    ops = Ops(
        start=work.start,
        end=work.end,
        kind=work.kind,
        name=work.name,
        stream=work.stream.astype(_narrow(len(work.streams)), copy=False),
        launch=launch,
        from_graph=work.from_graph,
    )
    return ops, Launches(thread, start, calls.end[order]), work, calls.duplicates


def _ranges(nvtx: NvtxRanges, thread_code: NDArray[np.integer], session_end: int, duration: int) -> Ranges:
    """Close what was left open at the session's end and sort."""
    end = np.where(nvtx.open, np.maximum(nvtx.start, session_end), nvtx.end) if nvtx.open.any() else nvtx.end
    # nsys closes forgotten push/pop ranges itself, exactly at the session's duration, and nothing else marks them
    forgotten = (nvtx.kind == PUSH_POP) & (end == duration) if duration else np.zeros(len(end), bool)
    kinds = 2 * len(thread_code)  # a group for each kind of each thread
    group = (2 * thread_code.astype(np.int64)).astype(_narrow(kinds))[nvtx.thread] + nvtx.kind
    order, start = _sorted(group, nvtx.start, -end)
    sizes = np.bincount(group, minlength=kinds)
    return Ranges(
        thread=np.repeat(np.arange(kinds, dtype=group.dtype) // 2, sizes),
        start=start,
        end=end[order],
        kind=np.repeat((np.arange(kinds) % 2).astype(np.uint8), sizes),
        name=nvtx.name[order],
        unclosed=(nvtx.open | forgotten)[order],
        moved=nvtx.moved[order],
    )


def _sorted(
    group: NDArray[np.integer], first: NDArray[np.int64], second: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """The order by group, first, second, and ``first`` in that order; a plain sort by group does for rows in order."""
    order = np.argsort(group, kind="stable")
    values = first[order]
    step = np.diff(values)
    cuts = np.cumsum(np.bincount(group))
    step[cuts[(cuts > 0) & (cuts < len(group))] - 1] = 1  # from one group to the next
    ties = np.flatnonzero(step <= 0)
    if (step[ties] < 0).any() or (second[order[ties + 1]] < second[order[ties]]).any():
        order = np.lexsort((second, first, group))
        values = first[order]
    return order, values


def _warnings(work: Work, ops: Ops, launches: Launches, ranges: int, recorded_twice: int) -> tuple[str, ...]:
    out = list(work.warnings)
    if not len(ops):
        out.append(
            "the report holds no GPU work: nothing ran on a GPU, or CUDA was not traced (--trace=cuda)"
        )
    if not ranges:
        out.append("the report holds no NVTX ranges: capture with --trace=cuda,nvtx and annotate the program")
    if len(ops) and not len(launches):
        out.append("the report holds no CUDA API calls of its GPU work: nothing can be attributed to ranges")
    backwards = int((ops.end < ops.start).sum())
    if backwards:
        out.append(
            f"ops that end before they start: {backwards:,}; their negative durations are added as recorded"
        )
    if recorded_twice:
        out.append(
            f"host calls with the correlation id of a shorter call: {recorded_twice:,}; the shorter one counts"
        )
    return tuple(out)
