"""Reads all host CUDA calls with their names: not only those that launched work."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.codes import Coder
from nsysprof.trace.nsys.columns import Growing, Progress, Source, column, has_all, present, times
from nsysprof.trace.nsys.host_calls import TABLE

_UNNAMED = "CUDA call"  # where the report does not say which
_VERSION = re.compile(
    r"(?:_ptsz|_ptds)?_v\d{4,}\Z"
)  # of the function that CUPTI saw, such as cudaLaunchKernel_v7000


@dataclass(frozen=True)
class CallList:
    """Host calls, sorted by thread, start, and from the longest to the shortest.

    ``thread`` int32 into ``threads``, the sorted globalTids; ``start``, ``end`` int64 ns; ``name`` int32 into
    ``names``, without the versions that CUPTI appends; ``correlation`` int64, 0 where there is none; ``result`` int64,
    what the call returned: 0 is success.
    """

    thread: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int32]
    correlation: NDArray[np.int64]
    result: NDArray[np.int64]
    names: list[str]
    threads: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    def find(
        self, thread: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """The row of the call of each globalTid, start and end; -1 where there is none."""
        out = np.full(len(start), -1, np.int32)
        bounds = np.searchsorted(self.thread, np.arange(len(self.threads) + 1))
        for code, tid in enumerate(self.threads.tolist()):
            mine = np.flatnonzero(thread == tid)
            first, last = bounds[code : code + 2].tolist()
            out[mine] = _find(self.start[first:last], self.end[first:last], start[mine], end[mine], first)
        return out


def _find(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    wanted_start: NDArray[np.int64],
    wanted_end: NDArray[np.int64],
    first: int,
) -> NDArray[np.int64]:
    at = np.searchsorted(start, wanted_start)
    last = np.append(start, 0), np.append(end, 0)
    found: NDArray[np.int64] = np.full(len(at), -1)
    todo = np.arange(len(at))
    while len(todo):  # once, but for calls that begin at the same time
        todo = todo[at[todo] < len(start)]
        todo = todo[last[0][at[todo]] == wanted_start[todo]]
        hit = last[1][at[todo]] == wanted_end[todo]
        found[todo[hit]] = at[todo[hit]] + first
        todo = todo[~hit]
        at[todo] += 1
    return found


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
