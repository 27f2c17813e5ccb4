"""What each path owns, per op name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.arena import Room
from nsysprof.statistics.summary import grouped_quartiles

_CHUNK = 1 << 20  # ops at a time where temporaries would be large


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
    tables, room = attribution.tables, attribution.tables.room
    names = max(len(tables.op_names), 1)
    path_of, counts = np.append(of, np.int32(-1)), np.append(keep, unowned)
    key, length = (room.empty(len(tables.ops), np.int64) for _ in range(2))
    stop = 0
    for first in range(0, len(tables.ops), _CHUNK):
        part = slice(first, first + _CHUNK)
        owner = attribution.owner_of(part)
        mine = np.flatnonzero(counts[owner] if ops is None else counts[owner] & ops[part])
        place = slice(stop, stop + len(mine))
        key[place] = (path_of[owner[mine]].astype(np.int64) + 1) * names + tables.ops.name[part][mine]
        length[place] = tables.ops.end[part][mine] - tables.ops.start[part][mine]
        stop = place.stop
    key, length = key[:stop], length[:stop]
    distinct, group = _groups(key, room)
    del key
    count, total = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    for first in range(0, stop, _CHUNK):
        part = slice(first, first + _CHUNK)
        count += np.bincount(group[part], minlength=len(distinct))
        np.add.at(total, group[part], length[part])
    spread = grouped_quartiles(group, length, len(distinct))
    order = np.lexsort((-total, distinct // names))
    return KernelTable(
        (distinct // names - 1).astype(np.int32)[order],
        (distinct % names).astype(np.int32)[order],
        count[order],
        total[order],
        spread.median[order],
        spread.low[order],
        spread.high[order],
    )


def _groups(key: NDArray[np.int64], room: Room) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
    """The distinct non-negative keys, sorted, and the index of each key among them."""
    limit = int(key.max()) + 1 if len(key) else 0
    parts = [slice(first, first + _CHUNK) for first in range(0, len(key), _CHUNK)]
    group = room.empty(len(key), np.int32)
    if limit > 4 * len(key) + (1 << 20):
        distinct = np.unique(np.concatenate([np.unique(key[part]) for part in parts]))
        for part in parts:
            group[part] = np.searchsorted(distinct, key[part])
        return distinct, group
    used = np.zeros(limit, bool)
    used[key] = True
    place = np.cumsum(used, dtype=np.int32)
    place -= np.int32(1)
    for part in parts:
        group[part] = place[key[part]]
    return np.flatnonzero(used), group
