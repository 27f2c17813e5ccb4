"""Which range instances are warm-up: the first ones of whatever repeats, with all that lies inside them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import Paths, ancestors_or_self


def warm_up(
    attribution: Attribution, merged: Paths, merged_of: NDArray[np.int32], skip: int
) -> NDArray[np.bool_]:
    """True for range instances to leave out of statistics when the first ``skip`` of what repeats are warm-up.

    Instances repeat when more than ``skip`` of them have one merged path and one parent instance (at the top: one
    thread). Only the outermost repetition counts: inside an instance that is kept, everything is kept.
    ``merged_of`` is the merged path of each range instance.
    """
    parent, ranges = attribution.parent, attribution.tables.ranges
    count = len(parent)
    if skip <= 0 or count == 0:
        return np.zeros(count, bool)
    above = np.where(parent >= 0, parent, -1 - ranges.thread.astype(np.int64))
    order = np.lexsort((np.arange(count), merged_of, above))  # rows of a thread are in order of time
    new = np.append(
        True, (above[order][1:] != above[order][:-1]) | (merged_of[order][1:] != merged_of[order][:-1])
    )
    first = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    rank, repeated = np.empty(count, np.int64), np.empty(count, bool)
    rank[order] = np.arange(count) - first[group]
    repeated[order] = (np.diff(np.append(first, count)) > skip)[group]
    inside_repetition = np.append(ancestors_or_self(parent, repeated), False)[parent]
    return ancestors_or_self(parent, repeated & ~inside_repetition & (rank < skip))
