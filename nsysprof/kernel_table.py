"""What each path owns, per op name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution import Attribution
from nsysprof.statistics.summary import grouped_quartiles


@dataclass(frozen=True)
class KernelTable:
    """A row per (path, op name), exclusive to the path, sorted by path and then by time spent.

    ``path`` int32, -1 for what no range owns; ``name`` int32 into ``tables.op_names``; ``count`` ops; durations in
    ns: ``sum_ns, median_ns, min_ns, max_ns`` int64.
    """

    path: NDArray[np.int32]
    name: NDArray[np.int32]
    count: NDArray[np.int64]
    sum_ns: NDArray[np.int64]
    median_ns: NDArray[np.int64]
    min_ns: NDArray[np.int64]
    max_ns: NDArray[np.int64]


def kernel_table(
    attribution: Attribution,
    of: NDArray[np.int32],
    keep: NDArray[np.bool_],
    *,
    unowned: bool,
    ops: NDArray[np.bool_] | None = None,
) -> KernelTable:
    """The `KernelTable` where ``of`` is the path of each range instance and ``keep`` says which instances count.

    ``unowned`` adds the rows of path -1; ``ops`` leaves ops out.
    """
    tables = attribution.tables
    owner = attribution.op_owner
    mine = np.append(keep, unowned)[owner]
    if ops is not None:
        mine &= ops
    rows = np.flatnonzero(mine)
    path = np.append(of, np.int32(-1))[owner[rows]].astype(np.int64)
    names = max(len(tables.op_names), 1)
    distinct, group = _groups((path + 1) * names + tables.ops.name[rows])
    length = tables.ops.end[rows] - tables.ops.start[rows]
    spread = grouped_quartiles(group, length, len(distinct))
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, group, length)
    order = np.lexsort((-total, distinct // names))
    return KernelTable(
        (distinct // names - 1).astype(np.int32)[order],
        (distinct % names).astype(np.int32)[order],
        np.bincount(group, minlength=len(distinct))[order],
        total[order],
        spread.median[order],
        spread.low[order],
        spread.high[order],
    )


def _groups(key: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """The distinct non-negative keys, sorted, and the index of each key among them."""
    limit = int(key.max()) + 1 if len(key) else 0
    if limit > 4 * len(key) + (1 << 20):
        distinct, group = np.unique(key, return_inverse=True)
        return distinct, group.reshape(-1)
    used = np.zeros(limit, bool)
    used[key] = True
    place = np.cumsum(used, dtype=np.int32)
    return np.flatnonzero(used), place[key] - np.int32(1)
