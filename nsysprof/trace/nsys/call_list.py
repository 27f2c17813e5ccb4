"""Reads host CUDA calls by name: all of them, and those that wait for the GPU."""

from __future__ import annotations

import re

import numpy as np

from nsysprof.core.columns import Coder
from nsysprof.trace.details import CallList, Waits
from nsysprof.trace.nsys.columns import Growing, Source, column, has_all, present, times
from nsysprof.trace.nsys.host_calls import TABLE
from nsysprof.trace.report import Progress

# What CUPTI and CUDA append to a name: for people the version that CUPTI saw goes, to tell a call all of it.
_SUFFIX = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")
_UNNAMED = "CUDA call"  # where the report does not say which
# cudaFree and blocking copies wait for the device like cudaDeviceSynchronize does; their Async forms do not.
_WAITING = re.compile(
    r"\w*Synchronize|(?:cuda|cu)Memcpy(?!\w*Async|\w*Peer)\w*|cudaFree|cudaFreeArray|cuMemFree"
)
_VERSION = re.compile(
    r"(?:_ptsz|_ptds)?_v\d{4,}\Z"
)  # of the function that CUPTI saw, such as cudaLaunchKernel_v7000


def read_call_list(source: Source, progress: Progress | None = None) -> CallList:
    """All host calls of a report; none where it holds none."""
    rows = Growing(thread="i4", start="i8", end="i8", name="i4", correlation="i8", result="i8")
    threads, names = Coder(), Coder()
    needs = ("start", "end", "globalTid")
    wanted = present(source, TABLE, (*needs, "nameId", "correlationId", "returnValue"))
    for block in source.blocks(TABLE, wanted) if has_all(source, TABLE, needs) else ():
        start, end = times(block)
        rows.add(
            block.rows,
            thread=threads.encode(column(block, "globalTid")),
            start=start,
            end=end,
            name=names.encode(column(block, "nameId", missing=-1)),
            correlation=column(block, "correlationId"),
            result=column(block, "returnValue"),
        )
        if progress:
            progress(TABLE, block.rows)
    thread, start, end = rows.take("thread"), rows.take("start"), rows.take("end")
    place = np.empty(len(threads), np.int32)
    place[np.argsort(threads.values)] = np.arange(len(threads))
    thread = place[thread]
    order = np.lexsort((-end, start, thread))
    texts = source.strings([number for number in names.values.tolist() if number >= 0])
    return CallList(
        thread=thread[order],
        start=start[order],
        end=end[order],
        **{name: rows.take(name)[order] for name in ("name", "correlation", "result")},
        names=[_VERSION.sub("", texts.get(number, _UNNAMED)) for number in names.values.tolist()],
        threads=np.sort(threads.values),
    )


def read_waits(source: Source) -> Waits:
    """The `Waits` of a report; none where it holds no host calls."""
    rows = Growing(start="i8", end="i8", thread="i8")
    needs = ("start", "end", "globalTid", "nameId")
    known: dict[int, bool] = {}
    for block in source.blocks(TABLE, needs) if has_all(source, TABLE, needs) else ():
        name = column(block, "nameId")
        distinct = np.unique(name)
        new = [number for number in distinct.tolist() if number not in known]
        known |= dict.fromkeys(new, False)
        known |= {number: waits_for_gpu(text) for number, text in source.strings(new).items()}
        waiting = [number for number in distinct.tolist() if known[number]]
        if not waiting:
            continue
        mine = np.flatnonzero(np.isin(name, waiting))
        start, end = times(block)
        rows.add(len(mine), start=start[mine], end=end[mine], thread=column(block, "globalTid")[mine])
    start, end, thread = (rows.take(name) for name in ("start", "end", "thread"))
    order = np.lexsort((start, thread))
    start, end, thread = start[order], end[order], thread[order]
    reach = end.copy()
    for tid in np.unique(thread).tolist():
        first, last = np.searchsorted(thread, [tid, tid + 1]).tolist()
        np.maximum.accumulate(end[first:last], out=reach[first:last])
    return Waits(thread, start, reach)


def waits_for_gpu(api: str) -> bool:
    """Whether the host call of this name returns only when the GPU is done, `cudaStreamSynchronize_v3020` as any."""
    return _WAITING.fullmatch(_SUFFIX.sub("", api)) is not None
