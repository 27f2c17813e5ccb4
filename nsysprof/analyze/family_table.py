"""What lies inside each merged path, by kernel family and by what charts tell ops apart by."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.attribution.range_work import cover, crossing
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.kernels.classify import FAMILIES, Kinds
from nsysprof.kernels.groups import OpGroups
from nsysprof.trace.trace import KERNEL, START_END, Ops

_CHUNK = 1 << 20  # ops at a time where temporaries would be large
# What is added up: a value per op, of some ops.
_COLUMNS: dict[str, Callable[[Ops, slice], NDArray[np.int64]]] = {
    "ops": lambda ops, part: np.ones(len(ops.kind[part]), np.int64),
    "kernels": lambda ops, part: (ops.kind[part] == KERNEL).astype(np.int64),
    "sum_ns": lambda ops, part: ops.end[part] - ops.start[part],
}


def family_table(
    attribution: Attribution,
    merged: Paths,
    merged_of: NDArray[np.int32],
    keep: NDArray[np.bool_],
    kinds: Kinds,
    groups: OpGroups,
) -> ColumnTable:
    """``path, family, group, ops, kernels, sum_ns`` inside each merged path that has any; it adds up to the path's sum.

    ``merged_of`` is the merged path of each range instance, ``keep`` says which instances count. What lies inside a
    range is what it owns and what the ranges in it own, be they kept or not. Start/end ranges, and ranges that cross
    others, are asked for the launches inside instead.
    """
    # A column for each family in a group, of those that there are.
    pair = np.array([FAMILIES.index(name) for name in kinds.family], np.int64) << 8 | groups.of
    pairs, column = np.unique(pair, return_inverse=True)
    # The last row takes what no kept range has inside.
    sums = [np.zeros((len(merged) + 1, len(pairs)), np.int64) for _ in _COLUMNS]
    path_of = np.append(merged_of, len(merged))[_kept_home(attribution.parent, keep)]
    for part in _parts(attribution):
        cell = path_of[attribution.owner_of(part)] * len(pairs) + column[attribution.trace.ops.name[part]]
        for total, values in zip(sums, _COLUMNS.values(), strict=True):
            np.add.at(total.reshape(-1), cell, values(attribution.trace.ops, part))
    for level in _deepest_first(merged):
        for total in sums:
            np.add.at(total, merged.parent[level], total[level])
    odd = keep & (
        (attribution.trace.ranges.kind == START_END) | crossing(attribution, merged.depth[merged_of])
    )
    if odd.any():
        _count_inside(sums, attribution, merged_of, keep & np.isin(merged_of, merged_of[odd]), column)
    row, place = np.nonzero(sums[0][:-1])
    return ColumnTable(
        {
            "path": row,
            "family": Texts(pairs[place] >> 8, FAMILIES),
            "group": pairs[place] & 0xFF,
            **{name: total[row, place] for name, total in zip(_COLUMNS, sums, strict=True)},
        }
    )


def _parts(attribution: Attribution) -> Iterator[slice]:
    """All ops, some at a time."""
    for first in range(0, len(attribution.trace.ops), _CHUNK):
        yield slice(first, first + _CHUNK)


def _kept_home(parent: NDArray[np.int32], keep: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The innermost kept range around each range, itself included; the number of ranges where there is none.

    One entry more stands for no range. Logarithmic rounds in depth.
    """
    count = len(parent)
    home = np.append(np.where(keep, np.arange(count), np.where(parent < 0, count, parent)), count)
    while True:
        further = home[home]
        if np.array_equal(further, home):
            return home
        home = further


def _deepest_first(merged: Paths) -> Iterator[NDArray[np.intp]]:
    """The merged paths of each depth but the outermost, the deepest first."""
    by_depth = np.argsort(merged.depth, kind="stable")
    bounds = np.searchsorted(merged.depth[by_depth], np.arange(1, int(merged.depth.max(initial=0)) + 2))
    for first, last in zip(bounds[-2::-1].tolist(), bounds[:0:-1].tolist(), strict=True):
        yield by_depth[first:last]


def _count_inside(
    sums: list[NDArray[np.int64]],
    attribution: Attribution,
    merged_of: NDArray[np.int32],
    ranges: NDArray[np.bool_],
    column: NDArray[np.int64],
) -> None:
    """Put what lies inside the ranges, column by column, in place of what was added up along the tree."""
    ops = attribution.trace.ops
    rows = np.flatnonzero(ranges)
    inside = cover(attribution, rows, merged_of, len(sums[0]) - 1)
    paths = np.flatnonzero(np.bincount(merged_of[rows]))
    column_of_op = attribution.trace.arena.take(column.astype(np.int16), ops.name)
    for code in np.unique(column_of_op).tolist():
        for total, values in zip(sums, _COLUMNS.values(), strict=True):
            per_launch = np.zeros(len(attribution.trace.launches) + 1, np.int64)
            for part in _parts(attribution):
                mine = np.flatnonzero(column_of_op[part] == code)
                np.add.at(per_launch, ops.launch[part][mine], values(ops, part)[mine])
            total[paths, code] = inside.sums(per_launch[:-1])[paths]
