"""Find the forward range to which each backward operator belongs, together with its GPU work.

A backward operator is matched with the forward operator that created its node in the autograd graph. The forward
operator is the last earlier operator with the same sequence number, on the thread that assigned this number. The
backward operator belongs to the innermost range around this forward operator, or to the forward operator itself if
operators are ranges.
"""

import bisect
from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.attribute import Attribution, ranges_around
from nsysprof.core.arrays import Ints, Ints32
from nsysprof.core.nesting import nest
from nsysprof.trace.details import AutogradOps
from nsysprof.trace.trace import START_END


@dataclass(frozen=True)
class Backward:
    """Backward operators with a known forward operator, sorted by thread, then start, then longest first.

    ``thread`` (a globalTid), ``start`` and ``end`` (int64 ns) describe the backward operator; ``op_start`` is the start
    of its forward operator. ``forward`` is the forward range of the backward operator (a row in ``trace.ranges``), -1
    if there is none. ``unknown`` counts backward operators whose forward operator is unknown.
    """

    thread: Ints
    start: Ints
    end: Ints
    op_start: Ints
    forward: Ints32
    unknown: int

    def __len__(self) -> int:
        return len(self.start)

    def around(self, thread: Ints, start: Ints, end: Ints) -> Ints:
        """Return the innermost operator around each interval on its ``thread`` (a globalTid), -1 for none."""
        out = np.full(len(start), -1)
        for tid in np.unique(self.thread).tolist():
            low, high = np.searchsorted(self.thread, [tid, tid + 1]).tolist()
            rows = np.flatnonzero(thread == tid)
            inside = nest(self.start[low:high], self.end[low:high]).innermost(start[rows], end[rows])
            out[rows] = np.where(inside >= 0, inside + low, -1)
        return out


def find_backward(attribution: Attribution) -> Backward:
    """Find the `Backward` of a trace, whose report must be open."""
    trace = attribution.trace
    ops = trace.report.reader.autograd(trace)
    back = np.flatnonzero(ops.backward)
    answers = _answers(ops, back)
    known = answers >= 0
    back, forward = back[known], answers[known]
    order = np.lexsort((-ops.end[back], ops.start[back], ops.thread[back]))
    back, forward = back[order], forward[order]
    place = trace.thread_codes(ops.thread[forward])
    helping = np.unique(trace.range_openers[trace.range_openers != trace.ranges.thread])
    follows = np.isin(place, helping)  # what a checkpoint computes again, in a backward that stands elsewhere
    ranges = ranges_around(attribution, place, ops.start[forward], ops.end[forward], follows)
    return Backward(
        thread=ops.thread[back],
        start=ops.start[back],
        end=ops.end[back],
        op_start=ops.start[forward],
        forward=ranges,
        unknown=int(np.count_nonzero(~known)),
    )


def _answers(ops: AutogradOps, back: Ints) -> Ints:
    """The forward operator of each backward operator, -1 if no thread or several threads have a candidate."""
    forward = np.flatnonzero(~ops.backward)
    forward = forward[np.lexsort((ops.start[forward], ops.thread[forward], ops.sequence[forward]))]
    number, thread = ops.sequence[forward], ops.thread[forward]
    first = np.flatnonzero(np.append(True, (np.diff(number) != 0) | (np.diff(thread) != 0))[: len(number)])
    bounds, threads, starts = ([*first.tolist(), len(number)], thread[first].tolist(), ops.start[forward].tolist())
    low, high = (np.searchsorted(number[first], ops.sequence[back], side) for side in ("left", "right"))
    out = np.full(len(back), -1)
    for place in np.flatnonzero(low < high).tolist():
        row = back[place]
        begun, on, counted = int(ops.start[row]), int(ops.thread[row]), int(ops.forward_thread[row])
        found = []
        for group in range(low[place], high[place]):  # of a thread each
            if (threads[group] ^ on) >> 24 == 0 and counted in (0, threads[group]):
                last = bisect.bisect_left(starts, begun, bounds[group], bounds[group + 1]) - 1
                found += [last] if last >= bounds[group] else []
        if len(found) == 1:
            out[place] = forward[found[0]]
    return out


def forward_of_launches(attribution: Attribution, backward: Backward) -> Ints32:
    """Return the forward range (a row of ``trace.ranges``) of each launch that does backward work, -1 for others."""
    launches, threads = attribution.trace.launches, attribution.trace.threads
    around = backward.around(threads[launches.thread], launches.start, launches.end)
    return np.append(backward.forward, np.int32(-1))[around]


def forward_of_ranges(attribution: Attribution) -> Ints32:
    """Return the forward range of each range inside a backward operator, -1 for others; the report must be open."""
    trace, ranges = attribution.trace, attribution.trace.ranges
    backward = attribution.once(find_backward)
    if not len(backward):
        return np.full(len(ranges), -1, np.int32)
    around = backward.around(trace.threads[trace.range_openers], ranges.start, ranges.end)
    out: Ints32 = np.append(backward.forward, np.int32(-1))[around]
    out[ranges.kind == START_END] = -1
    return out
