"""Summarize each stream: its work, busy share, and overlap with other streams."""

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.split import device_labels, thread_labels
from nsysprof.core.arrays import Index, Ints, Ints32
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.intervals import merge
from nsysprof.core.units import format_share
from nsysprof.results.table import Column, table
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.trace import KERNEL, MEMCPY, MEMSET, MIGRATION, Trace, pid_of

STREAMS = table(
    "streams.csv",
    "a row per stream that runs GPU ops, the busiest first",
    {
        "gpu": Column("", "GPU of the stream", "GPU"),
        "pid": "process id",
        "stream": "number of the stream in its process; empty if not recorded",
        "thread": "name and number of the thread that launched most of the stream's GPU time; empty if unknown",
        "ops": Column("", "number of GPU ops; a CUDA graph recorded as a whole counts as one", "GPU ops"),
        "kernels": "number of kernels among the GPU ops",
        "memops": Column("", "number of copies and memsets among the GPU ops", "copies"),
        "sum_ns": Column("", "total duration of the GPU ops", "sum"),
        "busy_ns": Column("", "time in which the stream is busy", "busy"),
        "span_share": Column("", "busy_ns ÷ span of the report", "of span"),
        "overlap_ns": Column("", "part of busy_ns in which other streams of the GPU are also busy", "overlap"),
    },
    made_in="summaries/streams.py",
)
_PIECE = 1 << 17  # stretches of work at a time where temporaries would be large
_REAL = 0.01  # of the work of the stream with the most: one with less is not worth a table
_NOTE = (
    "Of span: busy time ÷ the report's span. Overlap: share of busy time in which another stream of the GPU "
    "is also busy. Thread: the thread that launched the most GPU time."
)


def streams(attribution: Attribution, asked: Asked) -> Answer | None:  # noqa: ARG001 (all summaries are made alike)
    """Sum GPU ops by stream; returns None if there are none. There is a finding only if several streams have work."""
    trace = attribution.trace
    ops = trace.ops
    kinds = np.bincount(5 * ops.stream.astype(np.int32) + ops.kind, minlength=5 * len(trace.streams)).reshape(-1, 5)
    order = np.argsort(ops.stream, kind="stable")
    if kinds[:, MIGRATION].any():
        order = order[ops.kind[order] != MIGRATION]
        kinds[:, MIGRATION] = 0
    used = np.flatnonzero(kinds.any(axis=1))
    if not len(used):
        return None
    kinds = kinds[used]
    rows_of = np.split(order.astype(np.int32), np.cumsum(kinds.sum(axis=1))[:-1])
    del order
    busy, alone, sum_ns, thread, span_ns = _added_up(trace, used, rows_of)
    gpus, place = device_labels(trace), np.arange(len(used))
    ids = ["" if (number := trace.streams[each].id) is None else str(number) for each in used.tolist()]
    rows = ColumnTable(
        {
            "gpu": Texts(place, [gpus[number] for number in trace.stream_gpu[used].tolist()]),
            "pid": pid_of(trace.processes)[trace.stream_process[used]],
            "stream": Texts(place, ids),
            "thread": Texts(thread, [*thread_labels(trace), ""]),
            "ops": kinds.sum(axis=1),
            "kernels": kinds[:, KERNEL],
            "memops": kinds[:, MEMCPY] + kinds[:, MEMSET],
            "sum_ns": sum_ns,
            "busy_ns": busy,
            "span_share": busy / max(span_ns, 1),
            "overlap_ns": busy - alone,
        }
    ).take(np.argsort(-busy, kind="stable"))  # else in the order of GPU, process and number
    return _answer(trace, rows)


def _answer(trace: Trace, rows: ColumnTable) -> Answer:
    share = format_share(1 - int((rows["busy_ns"] - rows["overlap_ns"]).sum()) / max(trace.busy_ns, 1))
    several = trace.busy_ns > 0 and np.count_nonzero(rows["sum_ns"] >= _REAL * rows["sum_ns"].max()) > 1
    finding = f"Streams: {len(rows):,} with GPU work; two or more run concurrently for {share} of GPU busy time"
    one = len(set(rows["pid"].tolist())) == 1
    shown = tuple(column for column in STREAMS.columns if column.name != "pid" or not one)
    return Answer({STREAMS.file: rows}, finding if several else "", shown, rows, _NOTE)


def _added_up(trace: Trace, used: Index, rows_of: list[Ints32]) -> tuple[Ints, Ints, Ints, Ints, int]:
    """For each of the ``used`` streams, with the ops ``rows_of``: how long it is busy, and how long it alone is busy on
    its GPU; the sum of its ops; the thread that launched most of this sum (-1: none). Also the time from the first op
    of all streams to the last.
    """
    gpu, threads = trace.stream_gpu[used], len(trace.threads)
    of_launch = np.append(trace.launches.thread.astype(np.int32), np.int32(threads))
    busy, alone, sum_ns, thread = np.zeros((4, len(used)), np.int64)
    bounds = []
    for number in np.unique(gpu).tolist():
        here, lines = np.flatnonzero(gpu == number).tolist(), []
        for each in here:
            mine = rows_of[each]
            start, end = trace.ops.start[mine], trace.ops.end[mine]
            length = end - start
            work = np.bincount(of_launch[trace.ops.launch[mine]], np.maximum(length, 0) + 1)[:threads]
            sum_ns[each], thread[each] = length.sum(), work.argmax() if work.any() else -1
            bounds.append((int(start.min()), int(end.max())))
            lines.append(merge(start, end))
            busy[each] = (lines[-1][1] - lines[-1][0]).sum()
        begin, stop = trace.gpu_busy[number]
        if int(busy[here].sum()) == int((stop - begin).sum()):  # they take turns
            alone[here] = busy[here]
            continue
        # piece by piece of time, so that memory is bounded
        pieces = sum(len(line[0]) for line in lines) // _PIECE + 1
        cuts = np.linspace(begin[0], stop[-1], pieces + 1).astype(np.int64)[1:-1].tolist()
        for low, high in zip([int(begin[0]), *cuts], [*cuts, int(stop[-1])], strict=True):
            _add_alone(alone, here, [_within(*line, low, high) for line in lines])
    return busy, alone, sum_ns, thread, max(last for _, last in bounds) - min(first for first, _ in bounds)


def _within(start: Ints, end: Ints, low: int, high: int) -> tuple[Ints, Ints]:
    """The parts of disjoint, sorted intervals from ``low`` to ``high``."""
    part = slice(np.searchsorted(end, low, side="right"), np.searchsorted(start, high))
    return np.maximum(start[part], low), np.minimum(end[part], high)


def _add_alone(alone: Ints, streams: list[int], lines: list[tuple[Ints, Ints]]) -> None:
    """Add, stream by stream, the time that only one of the lines of disjoint intervals covers."""
    who = np.repeat(streams, [len(start) for start, _ in lines])
    times = np.concatenate([line[side] for side in (0, 1) for line in lines])
    cut = np.argsort(times, kind="stable")
    sign = np.where(cut < len(who), 1, -1)
    running, name = np.cumsum(sign), np.cumsum(sign * np.append(who, who)[cut])
    single = np.flatnonzero(running[:-1] == 1)  # there the sum of the names is that of the one that runs
    np.add.at(alone, name[single], np.diff(times[cut])[single])


SUMMARY = Summary("streams", "Streams", (STREAMS,), streams)
