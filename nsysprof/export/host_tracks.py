"""The tracks of processes: what their threads did on the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import Ints
from nsysprof.core.nesting import enclosing
from nsysprof.export.source import ExportSource
from nsysprof.export.tracks import WINDOWS, Track, add_lanes
from nsysprof.trace.trace import PROCESS_OF_THREAD, START_END, pid_of, tid_of


def host_tracks(source: ExportSource) -> list[Track]:
    """A track per process, below it one per thread, the main thread first, and below those ranges and calls."""
    trace = source.trace
    tids = np.union1d(trace.threads, source.calls.threads)
    out: list[Track] = []
    for process in np.unique(tids & PROCESS_OF_THREAD).tolist():
        place, pid = len(out), pid_of(process)
        out.append(Track(trace.report.about.processes.get(process, f"pid {pid}"), None, pid))
        mine = tids[tids & PROCESS_OF_THREAD == process].tolist()
        for tid in sorted(mine, key=lambda tid: (tid_of(tid) != pid, tid)):
            thread = len(out)
            out.append(Track(source.thread_names.get(tid, f"thread {tid_of(tid)}"), place, pid, tid_of(tid)))
            _add_ranges(out, source, thread, tid)
            _add_calls(out, source, thread, tid)
        _add_windows(out, source, place, process)
    return out


def _add_ranges(out: list[Track], source: ExportSource, thread: int, tid: int) -> None:
    """The push/pop ranges of a thread."""
    trace = source.trace
    first, last = _place(trace.threads, trace.ranges.thread, tid)
    last = first + int(np.searchsorted(trace.ranges.kind[first:last], START_END))
    parent = source.breakdown.attribution.parent[first:last]
    start = trace.ranges.start[first:last]
    end = np.maximum(trace.ranges.end[first:last], start)
    up = np.where(parent >= 0, parent - first, -1).astype(np.int32)
    add_lanes(out, "NVTX", thread, "range", np.arange(first, last, dtype=np.int32), start, end, up)


def _add_calls(out: list[Track], source: ExportSource, thread: int, tid: int) -> None:
    """The host calls of a thread, those inside others too."""
    calls = source.calls
    first, last = _place(calls.threads, calls.thread, tid)
    start = calls.start[first:last]
    end = np.maximum(calls.end[first:last], start)
    rows = np.arange(first, last, dtype=np.int32)
    add_lanes(out, "CUDA calls", thread, "call", rows, start, end, enclosing(end))


def _add_windows(out: list[Track], source: ExportSource, place: int, process: int) -> None:
    """The start/end ranges of a process, whichever thread began them."""
    trace, ranges = source.trace, source.trace.ranges
    [code] = np.flatnonzero(trace.processes == process).tolist() or [-1]
    rows = np.flatnonzero((ranges.kind == START_END) & (trace.thread_process[ranges.thread] == code))
    rows = rows[np.lexsort((rows, -ranges.end[rows], ranges.start[rows]))]
    start = ranges.start[rows]
    add_lanes(out, WINDOWS, place, "range", rows.astype(np.int32), start, np.maximum(ranges.end[rows], start))


def _place(tids: Ints, thread: NDArray[np.integer], tid: int) -> tuple[int, int]:
    """Where the rows of a thread stand in a column that is sorted by codes of threads."""
    code = int(np.searchsorted(tids, tid))
    if code == len(tids) or tids[code] != tid:
        return 0, 0
    first, last = np.searchsorted(thread, [code, code + 1]).tolist()
    return first, last
