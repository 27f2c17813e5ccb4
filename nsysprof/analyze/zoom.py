"""One representative stretch of a report, op by op.

The stretch is chosen as an engineer would: among the merged ranges whose instances have at most `READABLE_OPS` ops,
take the one with the most busy time, times busy/span so that work scattered over a long wait does not win; if ranges
inside it account for nearly all of its busy time, the deepest of those that still has several ops; and of its
instances the one with the median span. Where all instances have more ops, the middle `READABLE_OPS` ops of the median
instance are shown; without ranges those of the busiest stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.cover import launches_inside
from nsysprof.attribution.paths import ancestors_or_self
from nsysprof.core.intervals import Ints, merge
from nsysprof.trace.tables import START_END

READABLE_OPS = 200
# Inner ranges with at least this part of the busy time stand for the range around them.
_NEARLY_ALL = 0.9
# Where host and GPU are further apart than this many lengths of the GPU's part, each has a window of its own.
_FAR_AHEAD = 2
_MOST_MARKS = 2000
_INNER_LEVELS = 3


@dataclass(frozen=True)
class OpNames:
    """Per op name of the report: ``family`` uint8 into `FAMILIES`, and ``cause``, a short text."""

    family: NDArray[np.uint8]
    cause: list[str]


@dataclass(frozen=True)
class ZoomRanges:
    """The ranges around and inside the stretch: ``start``, ``end`` int64 ns; ``level`` 0 is the range itself;
    ``path`` int32 into ``breakdown.paths``.
    """

    start: Ints
    end: Ints
    level: NDArray[np.int32]
    path: NDArray[np.int32]


@dataclass(frozen=True)
class Zoom:
    """A stretch of time with its ops, sorted by start.

    ``what`` says which stretch; ``row`` is the row of its range among all ranges, None without; ``instances`` how many
    it stands for; ``start_ns``, ``end_ns`` the window. Per op: ``op_start``, ``op_end`` int64 ns, ``op_name`` int32,
    ``op_stream`` a code of ``tables.streams``, ``op_mine`` bool, False for what others launched. ``launch_start``,
    ``launch_end``: the host calls. ``gap_start``, ``gap_end``: where between the first and the last op of the range
    none of its ops ran. ``host_start_ns``, ``host_end_ns``: the window of what the host did, the same one unless the
    host was far ahead of the GPU.
    """

    what: str
    row: int | None
    instances: int
    start_ns: int
    end_ns: int
    names: OpNames
    op_start: Ints
    op_end: Ints
    op_name: NDArray[np.int32]
    op_stream: NDArray[np.integer]
    op_mine: NDArray[np.bool_]
    launch_start: Ints
    launch_end: Ints
    gap_start: Ints
    gap_end: Ints
    ranges: ZoomRanges
    host_start_ns: int
    host_end_ns: int
    left_out: int

    @property
    def ahead_ns(self) -> int:
        """How long before the window the host began, where host and GPU have windows of their own; else 0."""
        return self.start_ns - self.host_start_ns if self.host_start_ns != self.start_ns else 0


def zoom_in(breakdown: Breakdown, names: OpNames) -> Zoom | None:
    """The `Zoom` of a report, by the rule of this module; None where there are no ops."""
    if not (breakdown.attribution.tables.stream_gpu >= 0).any():
        return None
    chosen = _representative(breakdown)
    if chosen is None:
        return _of_stream(breakdown, names)
    row, instances = chosen
    attribution = breakdown.attribution
    tables = attribution.tables
    if tables.ranges.kind[row] == START_END:
        launches = launches_inside(attribution, np.array([row]))
    else:
        marked = np.zeros(len(tables.ranges), bool)
        marked[row] = True
        inner = ancestors_or_self(attribution.parent, marked)
        launches = np.append(inner, False)[attribution.owner]
    if (
        np.count_nonzero(launches) != attribution.inclusive.launches[row]
    ):  # ranges that cross it own the others
        launches = launches_inside(attribution, np.array([row]))
    mine = np.flatnonzero(tables.room.take(np.append(launches, False), tables.ops.launch))
    text = breakdown.path_texts[int(breakdown.paths.of[row])]
    what = f"{text}, the median of {instances:,} by span" if instances > 1 else text
    return _stretch(breakdown, names, what, mine, row, instances)


def _representative(breakdown: Breakdown) -> tuple[int, int] | None:
    """The row of the instance to show, and how many instances it stands for."""
    merged, paths = breakdown.merged, breakdown.paths
    busy = merged["busy_ns"].to_numpy()
    if not len(merged) or not busy.max(initial=0):
        return None
    instances = merged["instances"].to_numpy()
    ops = merged[["kernels", "memops", "graph_launches"]].to_numpy().sum(axis=1) / np.maximum(instances, 1)
    readable = np.flatnonzero((ops <= READABLE_OPS) & (busy > 0))
    if not len(readable):
        readable = np.flatnonzero((ops <= ops[busy > 0].min()) & (busy > 0))
    span = merged["span_median_ns"].to_numpy()
    dense = np.minimum(merged["busy_median_ns"].to_numpy() / np.maximum(span, 1), 1)
    best = int(readable[np.argmax((busy * dense)[readable])])
    inside = np.zeros(len(merged) + 1, bool)
    inside[best] = True
    parent = merged["parent"].to_numpy()
    for row in range(best + 1, len(parent)):  # parents stand before children
        inside[row] = inside[parent[row]]
    nearly = np.flatnonzero(
        inside[:-1] & (busy >= _NEARLY_ALL * busy[best]) & ((ops >= 2) | (ops >= ops[best]))
    )
    depth = merged["depth"].to_numpy()
    best = int(nearly[np.argmax(depth[nearly])])
    text = merged["merged_path"].iloc[best]
    wanted = np.array([one == text for one in breakdown.merged_texts], bool)
    inclusive = breakdown.attribution.inclusive
    counted = wanted[paths.of] & (inclusive.launches > 0)
    counted &= breakdown.kept
    rows = np.flatnonzero(counted)
    by_span = rows[np.argsort(inclusive.span_ns[rows], kind="stable")]
    return int(by_span[(len(by_span) - 1) // 2]), len(by_span)


def _of_stream(breakdown: Breakdown, names: OpNames) -> Zoom:
    tables = breakdown.attribution.tables
    total = np.zeros(len(tables.streams), np.int64)
    np.add.at(total, tables.ops.stream, tables.ops.end - tables.ops.start)
    total[tables.stream_gpu < 0] = -1  # migrations of unified memory
    mine = np.flatnonzero(tables.ops.stream == int(np.argmax(total)))
    return _stretch(breakdown, names, "the busiest stream", mine, None, 1)


def _stretch(
    breakdown: Breakdown, names: OpNames, what: str, mine: NDArray[np.intp], row: int | None, instances: int
) -> Zoom:
    """The stretch of the ops ``mine``, or of the middle ones if they are too many."""
    tables = breakdown.attribution.tables
    ops, launches = tables.ops, tables.launches
    mine = mine[np.argsort(ops.start[mine], kind="stable")]
    cut = len(mine) > READABLE_OPS
    if cut:
        middle = (len(mine) - READABLE_OPS) // 2
        what = f"{READABLE_OPS} of {len(mine):,} ops, in the middle of {what}"
        mine = mine[middle : middle + READABLE_OPS]
    first, last = int(ops.start[mine].min()), int(ops.end[mine].max())
    calls = np.unique(ops.launch[mine])
    calls = calls[calls >= 0]
    host, apart = _host_window(breakdown, calls, None if cut else row, first, last)
    margin = (last - first) // 50
    begin, end = (first - margin, last + margin) if apart else host
    own = np.zeros(len(ops), bool)
    own[mine] = True
    streams = np.zeros(len(tables.streams), bool)
    streams[ops.stream[mine]] = True
    others = np.flatnonzero(streams[ops.stream] & ~own & (ops.end > begin) & (ops.start < end))
    left_out = max(len(others) - _MOST_MARKS, 0)
    shown = np.sort(np.append(mine, others[:_MOST_MARKS]))
    shown = shown[np.argsort(ops.start[shown], kind="stable")]
    busy_start, busy_end = merge(ops.start[mine], ops.end[mine])
    return Zoom(
        what=what,
        row=row,
        instances=instances,
        start_ns=begin,
        end_ns=end,
        names=names,
        op_start=ops.start[shown],
        op_end=np.maximum(ops.end[shown], ops.start[shown]),
        op_name=ops.name[shown],
        op_stream=ops.stream[shown],
        op_mine=own[shown],
        launch_start=launches.start[calls],
        launch_end=launches.end[calls],
        gap_start=busy_end[:-1],
        gap_end=busy_start[1:],
        ranges=_ranges_around(breakdown, row, *host),
        host_start_ns=host[0],
        host_end_ns=host[1],
        left_out=left_out,
    )


def _host_window(
    breakdown: Breakdown, calls: NDArray[np.integer], row: int | None, first: int, last: int
) -> tuple[tuple[int, int], bool]:
    """When the host was at it, and whether that is so far from ``first`` … ``last`` on the GPU that one axis cannot
    show both. What it does long after the last op is left out.
    """
    launches, ranges = breakdown.attribution.tables.launches, breakdown.attribution.tables.ranges
    far = _FAR_AHEAD * max(last - first, 1)
    start = int(launches.start[calls].min(initial=first))
    end = int(launches.end[calls].max(initial=start))
    if row is not None:
        start = min(start, int(ranges.start[row]))
    apart = first - start > far or end - last > far
    latest = end if apart else max(end, last)
    if row is not None and int(ranges.end[row]) - latest <= (_FAR_AHEAD * (latest - start) if apart else far):
        latest = max(latest, int(ranges.end[row]))
    return (start, latest), apart


def _ranges_around(breakdown: Breakdown, row: int | None, begin: int, end: int) -> ZoomRanges:
    """The range and the levels inside it that reach into the window."""
    empty = np.empty(0, np.int64)
    if row is None:
        return ZoomRanges(empty, empty, empty.astype(np.int32), empty.astype(np.int32))
    attribution, paths = breakdown.attribution, breakdown.paths
    ranges = attribution.tables.ranges
    level = {row: 0}
    generation = [row]
    for number in range(1, _INNER_LEVELS):
        generation = np.flatnonzero(np.isin(attribution.parent, generation)).tolist()
        level.update((child, number) for child in generation)
    rows = np.array(sorted(level), np.intp)
    rows = rows[(ranges.end[rows] > begin) & (ranges.start[rows] < end)][:_MOST_MARKS]
    return ZoomRanges(
        start=np.maximum(ranges.start[rows], begin),
        end=np.minimum(ranges.end[rows], end),
        level=np.array([level[one] for one in rows.tolist()], np.int32),
        path=paths.of[rows].astype(np.int32),
    )
