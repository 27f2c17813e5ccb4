"""Puts the tables of a report together: joins GPU work to its launches and gives threads and devices small codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.codes import Coder
from nsysprof.report import Report, reading
from nsysprof.report.about import devices as gpu_of_device
from nsysprof.report.columns import Progress, Source, column
from nsysprof.report.gpu_work import Work, read_work
from nsysprof.report.host_calls import PROCESS_OF_THREAD, launch_keys, read_calls
from nsysprof.report.host_calls import TABLE as CALLS
from nsysprof.report.nvtx import PUSH_POP, NvtxRanges, read_ranges
from nsysprof.tables import Device, Launches, Ops, Ranges, Stream, Tables

_CHUNK = 1 << 17  # rows at a time where temporaries would be large


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
    pids = found.values
    process_code = np.searchsorted(processes, pids)
    duration = report.about.duration_ns or 0
    ends = [int(times.max()) for times in (ops.end, launches.end, nvtx.end) if len(times)]
    session_end = max([duration, *ends])
    devices = [
        Device(int(process_code[code]), cuda_id, gpus.get((int(pids[code]), cuda_id)))
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
