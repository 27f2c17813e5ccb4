"""Choose one representative part of a report, to show it op by op.

Choose as an engineer would: take the repeated merged range with the most busy time. If its instances have too many ops
to show, take its inner range with the most busy time. If inner ranges account for nearly all of the time, take the
deepest range with several ops. Show the instance with the median span. Prefer repeated ranges to ranges that run once,
and prefer both to warm-up and initialization. If an instance has too many ops to show, show one run of consecutive ops:
the run with the median busy share. If no range has a large share of the busy time, show a part of the busiest stream,
chosen in the same way. So the zoom never shows the longest wait, the copies before the first kernel, or migrations of
unified memory.
"""

import re
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.highlights import preparing
from nsysprof.attribution.range_work import launches_inside
from nsysprof.core.arrays import AnyInts, Index, Ints, Ints32, Mask
from nsysprof.core.columns import ColumnTable, marked, sums
from nsysprof.core.intervals import merge
from nsysprof.core.nesting import ancestors_or_self, levels_inside
from nsysprof.trace.trace import GRAPH, KERNEL, Ops, Trace

# An instance with at most so many ops is shown whole; of a longer one, and without ranges, so many are shown.
_MAX_OPS, READABLE_OPS = 600, 200
# Without ranges one in so many ops is shown, but at least so many.
_PART_SHOWN, _MIN_OPS = 4, 12
# Ranges with at least this part of the busy time are worth showing.
_MIN_SHARE_OF_BUSY = 0.1
_SETTING_UP = re.compile(r"(?i)(?:^|[^a-z])(?:init(?:iali[sz]\w*)?|set_?up|warm_?-?up)(?![a-z])")
# Inner ranges with at least this part of the busy time stand for the range around them.
_MIN_SHARE_OF_OUTER = 0.9
# Where host and GPU are further apart than this many lengths of the GPU's part, each has an extent of its own.
_MAX_LENGTHS_APART = 2
_MAX_MARKS = 2000
_MAX_LEVELS = 3


@dataclass(frozen=True)
class Zoom:
    """A stretch of time, op by op; times are int64 ns.

    ``what`` names the stretch from ``start_ns`` to ``end_ns``; ``of``: the number of ops in the stretch, of which only
    some may be shown. ``ops``: ``start, end, name, stream`` (a code of ``trace.streams``) and ``own`` (False for ops
    launched elsewhere), sorted by start; ``left_out`` counts further ops launched elsewhere. ``launches``: start and
    end of the launching host calls. ``gaps``: intervals between the first and last op of the range in which no op of
    the range runs. ``ranges``: ``start, end, level, path`` of the range itself (level 0) and of inner ranges.
    ``host_start_ns`` and ``host_end_ns`` bound the host's activity: equal to the ops' bounds unless the host was far
    ahead of the GPU.
    """

    what: str
    of: int
    start_ns: int
    end_ns: int
    ops: ColumnTable
    left_out: int
    launches: tuple[Ints, Ints]
    gaps: tuple[Ints, Ints]
    ranges: ColumnTable
    host_start_ns: int
    host_end_ns: int

    @property
    def ahead_ns(self) -> int:
        """Return the time from the start of host activity to the first GPU op; 0 if host and GPU share a time axis."""
        return self.start_ns - self.host_start_ns if self.host_start_ns != self.start_ns else 0


def zoom_in(breakdown: Breakdown) -> Zoom | None:
    """Choose the `Zoom` of a report by the rule of this module; returns None if there are no GPU ops."""
    if not (breakdown.attribution.trace.stream_gpu >= 0).any():
        return None
    chosen = _representative(breakdown)
    if chosen is None:
        return _of_stream(breakdown)
    row, instances = chosen
    attribution = breakdown.attribution
    trace = attribution.trace
    inner = _inside(attribution.parent, row)
    launches = np.append(inner, False)[attribution.owner]
    if np.count_nonzero(launches) != attribution.inclusive.launches[row]:
        # ranges that cross it own the others, or those in it do not own what is in a start/end range
        launches = launches_inside(attribution, np.array([row]))
    rows = np.flatnonzero(trace.arena.take(np.append(launches, False), trace.ops.launch))
    text = breakdown.path_texts[int(breakdown.paths.of[row])]
    what = f"{text}, the median of {instances:,} by span" if instances > 1 else text
    return _stretch(breakdown, what, rows, row)


def _representative(breakdown: Breakdown) -> tuple[int, int] | None:
    """Choose the instance to show, and count the instances that it represents."""
    merged, paths = breakdown.columns("merged"), breakdown.paths
    busy = merged["busy_ns"]
    if not len(merged) or not busy.max(initial=0):
        return None
    instances, texts = merged["instances"], merged.texts("merged_path").tolist()
    ops = (merged["kernels"] + merged["memops"] + merged["graph_launches"]) / np.maximum(instances, 1)
    whole = breakdown.totals["busy_ns"] if not breakdown.narrowed else 0
    worth = busy >= _MIN_SHARE_OF_BUSY * max(whole, busy.max())
    first = preparing(merged) | np.array([_SETTING_UP.search(text) is not None for text in texts])
    main, several = worth & ~first, instances > 1
    choices = (main & several, main, worth)
    pool = next((rows for rows in map(np.flatnonzero, choices) if len(rows)), None)
    if pool is None:
        return None
    best = int(pool[np.argmax(busy[pool])])
    parent, depth = merged["parent"], merged["depth"]
    inner = _inside(parent, best) & (main | ~main[best])
    if ops[best] > _MAX_OPS and len(shorter := np.flatnonzero(inner & (ops <= _MAX_OPS) & (ops >= 2))):
        best = int(shorter[np.argmax(busy[shorter])])
        inner = _inside(parent, best)
    nearly = np.flatnonzero(inner & (busy >= _MIN_SHARE_OF_OUTER * busy[best]) & ((ops >= 2) | (ops >= ops[best])))
    best = int(nearly[np.argmax(depth[nearly])])
    wanted = np.array([one == texts[best] for one in breakdown.merged_texts], bool)
    inclusive = breakdown.attribution.inclusive
    rows = np.flatnonzero(wanted[paths.of] & (inclusive.launches > 0) & breakdown.kept)
    by_span = rows[np.argsort(inclusive.span_ns[rows], kind="stable")]
    return int(by_span[(len(by_span) - 1) // 2]), len(by_span)


def _inside(parent: Ints32, row: int) -> Mask:
    """Mark a range (or row of ``merged``) and all ranges inside it."""
    return ancestors_or_self(parent, np.arange(len(parent)) == row)


def _of_stream(breakdown: Breakdown) -> Zoom:
    """Zoom in on some GPU ops of the busiest stream."""
    trace = breakdown.attribution.trace
    total = sums(trace.ops.stream, trace.ops.end - trace.ops.start, len(trace.streams))
    total[trace.stream_gpu < 0] = -1  # migrations of unified memory
    rows = np.flatnonzero(trace.ops.stream == int(np.argmax(total)))
    part = _together(trace, rows)
    part = _typical(trace, part, min(max(len(part) // _PART_SHOWN, _MIN_OPS), READABLE_OPS))
    return replace(_stretch(breakdown, "the busiest stream", part, None), of=len(rows))


def _together(trace: Trace, rows: Index) -> Index:
    """While one wait takes more than half of the time of these ops of a stream, keep the side with more kernel time."""
    ops = trace.ops
    rows = rows[np.argsort(ops.start[rows], kind="stable")]
    while len(rows) > 1:
        start, reach = ops.start[rows], np.maximum.accumulate(ops.end[rows])
        wait = start[1:] - reach[:-1]
        at = int(np.argmax(wait)) + 1
        if 2 * int(wait[at - 1]) <= int(reach[-1] - start[0]):
            break
        parts = rows[:at], rows[at:]
        rows = max(parts, key=lambda part: _kernel_time(ops, part))
    return rows


def _kernel_time(ops: Ops, rows: Index) -> tuple[int, int]:
    """Add up the time of the kernels among some ops, and the time of all these ops."""
    length = ops.end[rows] - ops.start[rows]
    return int(length[(ops.kind[rows] == KERNEL) | (ops.kind[rows] == GRAPH)].sum()), int(length.sum())


def _typical(trace: Trace, rows: Index, most: int) -> Index:
    """Choose ``most`` consecutive ops, sorted by start, whose busy share is the median of all such parts.

    Parts with the longest wait, or in which kernels take less than half of the op time, are used only if there are no
    others.
    """
    count = len(rows) - most + 1
    if count < 2:
        return rows
    ops = trace.ops
    start, end = ops.start[rows], np.maximum(ops.end[rows], ops.start[rows])
    reach = np.maximum.accumulate(end)
    fresh = end - np.maximum(start, np.append(start[0], reach[:-1]))  # that no op before it covers
    computes = (ops.kind[rows] == KERNEL) | (ops.kind[rows] == GRAPH)
    added = [np.append(0, np.cumsum(each)) for each in (np.maximum(fresh, 0), end - start, (end - start) * computes)]
    busy, total, kernels = (each[most:] - each[:-most] for each in added)
    dense = busy / np.maximum(reach[most - 1 :] - start[:count], 1)
    longest = int(np.argmax(start[1:] - reach[:-1]))  # between this op and the next one
    at = np.arange(count)
    whole = (at > longest) | (at + most <= longest + 1)
    computing = 2 * kernels >= total
    usable = next((some for some in map(np.flatnonzero, (whole & computing, computing, whole)) if len(some)), at)
    by_density = usable[np.argsort(dense[usable], kind="stable")]
    first = int(by_density[(len(by_density) - 1) // 2])
    return rows[first : first + most]


def _stretch(breakdown: Breakdown, what: str, rows: Index, row: int | None) -> Zoom:
    """Make the stretch of the ops ``rows``, or of typical ops among them if there are too many."""
    trace = breakdown.attribution.trace
    ops, launches = trace.ops, trace.launches
    rows, of = rows[np.argsort(ops.start[rows], kind="stable")], len(rows)
    cut = of > _MAX_OPS
    if cut:
        rows = _typical(trace, rows, READABLE_OPS)
    first, last = int(ops.start[rows].min()), int(ops.end[rows].max())
    calls = np.unique(ops.launch[rows])
    calls = calls[calls >= 0]
    host, apart = _host_extent(breakdown, calls, None if cut else row, first, last)
    margin = (last - first) // 50
    begin, end = (first - margin, last + margin) if apart else host
    own = marked(rows, len(ops))
    streams = marked(ops.stream[rows], len(trace.streams))
    others = np.flatnonzero(streams[ops.stream] & ~own & (ops.end > begin) & (ops.start < end))
    left_out = max(len(others) - _MAX_MARKS, 0)
    shown = np.sort(np.append(rows, others[:_MAX_MARKS]))
    shown = shown[np.argsort(ops.start[shown], kind="stable")]
    busy_start, busy_end = merge(ops.start[rows], ops.end[rows])
    columns = {
        "start": ops.start[shown],
        "end": np.maximum(ops.end[shown], ops.start[shown]),
        "name": ops.name[shown],
        "stream": ops.stream[shown],
        "own": own[shown],
    }
    return Zoom(
        what=what,
        of=of,
        start_ns=begin,
        end_ns=end,
        ops=ColumnTable(columns),
        left_out=left_out,
        launches=(launches.start[calls], launches.end[calls]),
        gaps=(busy_end[:-1], busy_start[1:]),
        ranges=_ranges_around(breakdown, row, *host),
        host_start_ns=host[0],
        host_end_ns=host[1],
    )


def _host_extent(
    breakdown: Breakdown, calls: AnyInts, row: int | None, first: int, last: int
) -> tuple[tuple[int, int], bool]:
    """Find when the host worked on the stretch, and whether this is too far from ``first`` … ``last`` for one axis.

    Host activity long after the last op is left out.
    """
    launches, ranges = breakdown.attribution.trace.launches, breakdown.attribution.trace.ranges
    far = _MAX_LENGTHS_APART * max(last - first, 1)
    start = int(launches.start[calls].min(initial=first))
    end = int(launches.end[calls].max(initial=start))
    if row is not None:
        start = min(start, int(ranges.start[row]))
    apart = first - start > far or end - last > far
    latest = end if apart else max(end, last)
    if row is not None and int(ranges.end[row]) - latest <= (_MAX_LENGTHS_APART * (latest - start) if apart else far):
        latest = max(latest, int(ranges.end[row]))
    return (start, latest), apart


def _ranges_around(breakdown: Breakdown, row: int | None, begin: int, end: int) -> ColumnTable:
    """List the range and the levels inside it that reach into the extent."""
    attribution = breakdown.attribution
    ranges = attribution.trace.ranges
    outer = np.array([] if row is None else [row], np.intp)
    levels = [*islice(levels_inside(attribution.parent, outer, ranges.start, ranges.end, (begin, end)), _MAX_LEVELS)]
    level = np.repeat(np.arange(len(levels), dtype=np.int32), [len(each) for each in levels])
    rows = np.concatenate([outer[:0], *levels])
    first = np.argsort(rows)[:_MAX_MARKS]
    rows = rows[first]
    columns = {
        "start": np.maximum(ranges.start[rows], begin),
        "end": np.minimum(ranges.end[rows], end),
        "level": level[first],
        "path": breakdown.paths.of[rows],
    }
    return ColumnTable(columns)
