"""Which range instances count: not warm-up, the first ones of whatever repeats, or only those with certain numbers."""

from __future__ import annotations

import re
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.core.nesting import ancestors_or_self
from nsysprof.errors import NsysprofError

# The first and the last of some instances of a range, counted from 0 in the order in which they begin.
Instances: TypeAlias = tuple[int, int]


def read_instances(text: str) -> Instances:
    """What `--instance 3` or `--instance 20-39` asks for. Raises `NsysprofError` for anything else."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise NsysprofError(
            f"no instances of a range: {text!r}", "--instance 3, or --instance 20-39; the first is 0"
        )
    return first, last


def instances_text(instances: Instances) -> str:
    """`instance 3`, `instances 20-39`."""
    first, last = instances
    return f"instance {first}" if first == last else f"instances {first}-{last}"


def instance_numbers(path: NDArray[np.int32], start: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each range instance how many of its path started before it."""
    order = np.lexsort((start, path))
    size = np.bincount(path) if len(path) else np.empty(0, np.int64)
    first = np.cumsum(size) - size
    out = np.empty(len(path), np.int64)
    out[order] = np.arange(len(path)) - first[path[order]]
    return out


def warm_up(
    attribution: Attribution, merged: Paths, merged_of: NDArray[np.int32], skip: int
) -> NDArray[np.bool_]:
    """True for range instances to leave out of statistics when the first ``skip`` of what repeats are warm-up.

    Instances repeat when more than ``skip`` of them have one merged path and one parent instance (at the top: one
    thread). Only the outermost repetition counts: inside an instance that is kept, everything is kept.
    ``merged_of`` is the merged path of each range instance.
    """
    parent, ranges = attribution.parent, attribution.trace.ranges
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
