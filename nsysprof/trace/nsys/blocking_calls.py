"""Reads the host calls that wait for the GPU: synchronize calls, blocking copies and frees."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.trace.nsys.columns import Growing, Source, column, has_all, times
from nsysprof.trace.nsys.host_calls import TABLE

# cudaFree and blocking copies wait for the device like cudaDeviceSynchronize does; their Async forms do not.
_WAITING = re.compile(
    r"\w*Synchronize|(?:cuda|cu)Memcpy(?!\w*Async|\w*Peer)\w*|cudaFree|cudaFreeArray|cuMemFree"
)
_VERSION = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


@dataclass(frozen=True)
class Waits:
    """Host calls that wait for the GPU, sorted by thread and start: ``thread`` globalTid, ``start``, ``end`` int64 ns.

    ``reach`` is, for each call, the latest end of its thread's calls up to it: calls of one thread nest.
    """

    thread: NDArray[np.int64]
    start: NDArray[np.int64]
    reach: NDArray[np.int64]

    def until(self, thread: NDArray[np.int64], moment: NDArray[np.int64]) -> NDArray[np.int64]:
        """When the call that each thread sits in at a moment ends; the least int64 where it sits in none."""
        out = np.full(len(moment), np.iinfo(np.int64).min)
        for tid in np.unique(thread).tolist() if len(self.thread) else ():
            first, last = np.searchsorted(self.thread, [tid, tid + 1]).tolist()
            mine = np.flatnonzero(thread == tid)
            before = np.searchsorted(self.start[first:last], moment[mine], side="right") - 1
            some = before >= 0
            reach = self.reach[first:last][before[some]]
            out[mine[some]] = np.where(reach >= moment[mine[some]], reach, out[mine[some]])
        return out


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
    return _WAITING.fullmatch(_VERSION.sub("", api)) is not None
