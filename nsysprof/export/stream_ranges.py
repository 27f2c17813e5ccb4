"""Ranges projected on one stream: when the first op inside each began there and the last one ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import FOLLOWED, Attribution
from nsysprof.attribution.projection import LaunchWork, Totals, project, take_calls
from nsysprof.core.intervals import Index
from nsysprof.trace.trace import PUSH_POP, START_END, Trace


@dataclass(frozen=True)
class StreamRanges:
    """The ranges of one thread and one kind that have work on a stream.

    ``row`` are rows of ``trace.ranges``, ascending; ``inside`` what each has on that stream, all threads' ops that
    belong to it included. Over all streams launches, ops and sums add up to `Attribution.inclusive`, but for launches
    that caused work on several streams.
    """

    thread: int
    kind: int
    row: Index
    inside: Totals


def stream_ranges(attribution: Attribution, stream: int) -> Iterator[StreamRanges]:
    """The `StreamRanges` of a stream, by thread, push/pop ranges first; by the rules of `attribute`."""
    trace = attribution.trace
    ops, launches, ranges = trace.ops, trace.launches, trace.ranges
    mine = np.flatnonzero((ops.stream == stream) & (ops.launch >= 0))
    if not len(mine):
        return
    mine = mine[np.argsort(ops.launch[mine], kind="stable")]
    used, call = np.unique(ops.launch[mine], return_inverse=True)
    calls = LaunchWork.build(
        launches.start[used],
        launches.end[used],
        call=call.astype(np.int32),
        op_start=ops.start[mine],
        op_end=ops.end[mine],
        device=np.zeros(len(mine), np.int32),
        kind=ops.kind[mine],
        from_graph=ops.from_graph[mine],
    )
    thread = launches.thread[used]
    follows = attribution.outcome[used] == FOLLOWED
    home = np.where(follows, ranges.thread[attribution.owner[used]], thread) if len(ranges) else thread
    process = int(trace.thread_process[int(thread[0])])
    for member in np.flatnonzero(trace.thread_process == process).tolist():
        for kind in (PUSH_POP, START_END):
            rows = _rows(trace, member, kind)
            if kind == PUSH_POP:
                inside = np.flatnonzero((home == member) | (thread == member))
            else:
                among = thread == member if attribution.threads == "strict" else np.ones(len(used), bool)
                inside = np.flatnonzero(among)
            found = _project(calls, inside, trace, rows)
            if found is not None:
                yield StreamRanges(member, kind, *found)


def _rows(trace: Trace, thread: int, kind: int) -> Index:
    """The ranges of a thread and kind, which is how they are sorted."""
    ranges = trace.ranges
    first, last = np.searchsorted(ranges.thread, [thread, thread + 1]).tolist()
    cut = first + int(np.searchsorted(ranges.kind[first:last], START_END))
    return np.arange(cut, last) if kind == START_END else np.arange(first, cut)


def _project(
    calls: LaunchWork, inside: Index, trace: Trace, rows: Index
) -> tuple[NDArray[np.intp], Totals] | None:
    """Those of the ranges with calls inside, and what is inside. Ranges are many and mostly of other streams."""
    if not len(inside) or not len(rows):
        return None
    part = take_calls(calls, inside)
    start, end = trace.ranges.start[rows], trace.ranges.end[rows]
    near = np.searchsorted(part.start, end, side="right") > np.searchsorted(part.start, start)
    rows = rows[near]
    if not len(rows):
        return None
    found = project(part, trace.ranges.start[rows], trace.ranges.end[rows])
    some = found.launches > 0
    return rows[some], Totals(**{name: values[some] for name, values in found.__dict__.items()})
