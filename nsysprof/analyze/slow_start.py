"""Repeated ranges whose first instance takes far longer than the others: warm-up that totals then show."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.columns import ColumnTable
from nsysprof.core.nesting import ancestors_or_self
from nsysprof.core.units import format_ns

# A thread's range starts slowly when the first of so many instances takes so many times the median, and half of all.
_INSTANCES, _TIMES = 4, 5
_MOST_ROWS = 50  # those with the most time
InstancesOf = Callable[[int], tuple[Attribution, NDArray[np.intp]]]


def slow_starts(merged: ColumnTable, instances_of: InstancesOf, by: str | None) -> Iterator[str]:
    """A sentence for each outermost repeated range that starts slowly, judged thread by thread.

    ``merged`` are the columns of that name of a `Breakdown`, ``instances_of`` gives the range instances behind a row of
    it. What the first instance pays for (module loading, autotuning, allocation) is what ``--skip`` leaves out.
    """
    repeats = merged["instances"] > 1
    parent, work = merged["parent"], merged["sum_ns"]
    outermost = repeats & ~np.append(ancestors_or_self(parent, repeats), False)[parent]
    rows = np.flatnonzero(outermost & (work > 0))
    for row in np.sort(rows[np.argsort(-work[rows], kind="stable")[:_MOST_ROWS]]).tolist():
        attribution, instances = instances_of(row)
        slow = _slowest(attribution, instances)
        if slow is not None:
            [shown] = merged.take(slice(row, row + 1)).records()
            part = f" of {by} {shown[by]}" if by else ""
            yield (
                f"the first of {slow[2]:,} {shown['name']}{part} spans {format_ns(slow[0])}, the median one"
                f" {format_ns(slow[1])}: --skip 1 leaves it out"
            )


def _slowest(attribution: Attribution, instances: NDArray[np.intp]) -> tuple[int, int, int] | None:
    """First span, median span and instances of the thread that starts most slowly, if one does."""
    ranges = attribution.trace.ranges
    found = []
    threads = ranges.thread[instances]
    for thread in np.flatnonzero(np.bincount(threads) >= _INSTANCES).tolist():
        mine = instances[threads == thread]
        span = attribution.inclusive.last_op_ns[mine] - attribution.inclusive.first_op_ns[mine]
        first, median = int(span[np.argmin(ranges.start[mine])]), int(np.median(span))
        if median > 0 and first > _TIMES * median and 2 * first > int(span.sum()):
            found.append((first, median, len(mine)))
    return max(found, default=None)
