"""What each path owns, per op name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.statistics.distributions import quartiles_of_sorted, sorted_in_groups

_CHUNK = 1 << 20  # ops at a time where temporaries would be large


@dataclass(frozen=True)
class KernelTable:
    """A row per (path, op name), exclusive to the path, sorted by path and then by time spent.

    ``path`` int32, -1 for what no range owns; ``name`` int32 into ``trace.op_names``; ``count`` ops; durations in
    ns: ``sum_ns, median_ns, min_ns, max_ns`` int64.
    """

    path: NDArray[np.int32]
    name: NDArray[np.int32]
    count: NDArray[np.int64]
    sum_ns: NDArray[np.int64]
    median_ns: NDArray[np.int64]
    min_ns: NDArray[np.int64]
    max_ns: NDArray[np.int64]

    def longest_first(self) -> KernelTable:
        """The same with the rows of each path by their time."""
        order = np.lexsort((-self.sum_ns, self.path))
        return KernelTable(*(column[order] for column in vars(self).values()))


def kernel_tables(
    attribution: Attribution,
    paths: tuple[NDArray[np.int32], NDArray[np.int32]],
    keep: NDArray[np.bool_],
    *,
    unowned: bool,
    ops: NDArray[np.bool_] | None = None,
) -> tuple[KernelTable, KernelTable]:
    """The `KernelTable` of paths, and that of their merged paths.

    ``paths`` are the path of each range instance and the merged path of each path, ``keep`` says which instances count.
    ``unowned`` adds the rows of path -1; ``ops`` leaves ops out.
    """
    trace, arena = attribution.trace, attribution.trace.arena
    of, merged_of = paths
    names = max(len(trace.op_names), 1)
    path_of, counts = np.append(of, np.int32(-1)), np.append(keep, unowned)
    key, length = (arena.empty(len(trace.ops), np.int64) for _ in range(2))
    stop = 0
    for first in range(0, len(trace.ops), _CHUNK):
        part = slice(first, first + _CHUNK)
        owner = attribution.owner_of(part)
        mine = np.flatnonzero(counts[owner] if ops is None else counts[owner] & ops[part])
        place = slice(stop, stop + len(mine))
        key[place] = (path_of[owner[mine]].astype(np.int64) + 1) * names + trace.ops.name[part][mine]
        length[place] = trace.ops.end[part][mine] - trace.ops.start[part][mine]
        stop = place.stop
    found, length = _table(key[:stop], length[:stop], names)
    merged = np.append(merged_of, np.int32(-1))[found.path].astype(np.int64) + 1
    return found.longest_first(), _table(np.repeat(merged * names + found.name, found.count), length, names)[
        0
    ].longest_first()


def _table(
    key: NDArray[np.int64], length: NDArray[np.int64], names: int
) -> tuple[KernelTable, NDArray[np.int64]]:
    """The table of ops by their keys, in the order of those, and the lengths of the ops in that order."""
    keys, length = sorted_in_groups(key, length)
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    count = np.diff(np.append(first, len(keys)))
    spread = quartiles_of_sorted(length, count)
    path, name = np.divmod(keys[first], names)
    total = np.add.reduceat(length, first) if len(first) else count
    found = KernelTable(
        (path - 1).astype(np.int32),
        name.astype(np.int32),
        count,
        total,
        spread.median,
        spread.low,
        spread.high,
    )
    return found, length
