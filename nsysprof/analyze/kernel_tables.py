"""Make the kernel tables: the work that each path owns by op name, and the work inside each merged path by family."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.attribution.range_work import cover, crossing
from nsysprof.attribution.split import Part
from nsysprof.core.arrays import Index, Ints, Ints32, Mask
from nsysprof.core.columns import ColumnTable, Texts, sums
from nsysprof.core.parallel import side_by_side
from nsysprof.kernels.classify import FAMILIES, Kinds, OpGroups
from nsysprof.kernels.launches import Launches, main_launch
from nsysprof.statistics.distributions import Groups, quartile_of_sorted
from nsysprof.trace.trace import COPYING, KERNEL, MIGRATION, START_END, Ops, Trace, op_slices


def kernel_tables(
    part: Part, paths: tuple[Ints32, Ints32], *, unowned: bool, whole: bool = False, launches: Launches | None = None
) -> tuple[ColumnTable, ColumnTable]:
    """Add up the work that each path of a part owns, a row per path (or merged path) and op name.

    ``path`` int32, -1 for unowned work; ``name`` int32 into ``trace.op_names``; ``count`` ops; durations in ns:
    ``sum_ns, median_ns, min_ns, max_ns``; ``size_bytes`` copied or set; sorted by path, then by time. ``paths``: the
    path of each range instance, and the merged path of each path; ``unowned`` adds the rows of path -1. The first table
    has separate rows for each path in which replayed CUDA graphs were captured (``captured`` int32, -1 for none). The
    first table also has the medians of `_launch_medians`; with ``whole``, only the second table has them. With
    ``launches``, the first table also has ``launch``, the row of the longest launch, -1 for none.
    """
    attribution = part.attribution
    trace, (of, merged_of) = attribution.trace, paths
    names = max(len(trace.op_names), 1)
    path_of, counts = np.append(of, np.int32(-1)), np.append(part.keep, unowned)
    places = len(merged_of) + 1 if part.graphs else 1
    key, length = (trace.arena.empty(len(trace.ops), np.int64) for _ in range(2))
    called, queued = (trace.arena.empty(len(trace.ops), np.int64) for _ in range(2))
    how = trace.arena.empty(len(trace.ops) if launches else 0, np.int32)
    real = attribution.recorded or trace  # as launched, whatever was captured where
    stop, copy = 0, np.isin(np.arange(MIGRATION + 1), COPYING)
    moved = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for ops in op_slices(attribution.trace):
        owner = attribution.owner_of(ops)
        chosen = counts.take(owner) if part.ops is None else counts.take(owner) & part.ops[ops]
        own = slice(None) if chosen.all() else np.flatnonzero(chosen)
        path = path_of.take(owner[own]).astype(np.int64) + 1
        if part.graphs:
            path = path * places + path_of[part.graphs.owner[ops][own]] + 1
        place = slice(stop, stop + len(path))
        key[place] = path * names + trace.ops.name[ops][own]
        start, launch = trace.ops.start[ops][own], real.ops.launch[ops][own].astype(np.intp)
        length[place] = trace.ops.end[ops][own] - start
        if launches:
            how[place] = launches.of[ops][own]
        called[place], queued[place] = _launch_times(real, launch, start)
        copies = np.flatnonzero(copy.take(trace.ops.kind[ops][own]))
        at = np.searchsorted(trace.copy_ops, np.arange(len(owner))[own][copies] + ops.start)
        moved.append((key[place][copies], np.maximum(trace.copies.size_bytes[at], 0)))
        stop = place.stop
    groups, called, queued = Groups.of(key[:stop]), called[:stop], queued[:stop]
    by_name = Groups.of(key[:stop] % names) if whole else groups
    del key
    main, (owned, length), medians = side_by_side(
        partial(_main_launches, groups, how[:stop], length[:stop], launches),
        partial(_by_name, groups, length[:stop], names, *map(np.concatenate, zip(*moved, strict=True))),
        partial(_launch_medians, by_name, called, queued),
        apart=trace.apart,
    )
    del called, queued
    if not whole:
        owned = ColumnTable({**owned.columns, **medians, **main})
    path, captured = np.divmod(owned["path"] + 1, places)
    codes = {"path": (path - 1).astype(np.int32), "captured": (captured - 1).astype(np.int32)}
    owned = ColumnTable({**owned.columns, **codes})
    merged = np.append(merged_of, np.int32(-1))[owned["path"]].astype(np.int64) + 1
    merged_key = merged * names + owned["name"]
    groups = Groups.of(np.repeat(merged_key, owned["count"]))
    together, _ = _by_name(groups, length, names, merged_key, owned["size_bytes"])
    if whole:
        together = ColumnTable({**together.columns, **medians})
    rank = trace.op_name_rank  # where sums are equal, names decide: the order of the file is nobody's
    first, second = (
        table.take(np.lexsort((rank[table["name"]], -table["sum_ns"], table["path"]))) for table in (owned, together)
    )
    return first, second


def _by_name(groups: Groups, length: Ints, names: int, moved: Ints, size: Ints) -> tuple[ColumnTable, Ints]:
    """Make the table of GPU ops by key, in key order; also return the op durations in that order.

    ``moved`` are the keys of ops with a ``size``.
    """
    count, length = groups.size, groups.sort(length)
    first = np.cumsum(count) - count
    low, median, high = (quartile_of_sorted(length, count, number) for number in (0, 2, 4))
    path, name = np.divmod(groups.codes, names)
    size_bytes = sums(np.searchsorted(groups.codes, moved), size, len(first))
    columns = {
        "path": path - 1,
        "name": name.astype(np.int32),
        "count": count,
        "sum_ns": np.add.reduceat(length, first) if len(first) else count,
        "median_ns": median,
        "min_ns": low,
        "max_ns": high,
        "size_bytes": size_bytes,
    }
    return ColumnTable(columns), length


def _main_launches(groups: Groups, how: Ints, length: Ints, launches: Launches | None) -> dict[str, Ints]:
    """The longest-running launch of each group of GPU ops; ``how`` is the launch of each op."""
    if launches is None:
        return {}
    how, first = groups.sort(how), np.cumsum(groups.size) - groups.size
    main = np.minimum.reduceat(how, first).astype(np.int64) if len(first) else first
    several = main != np.maximum.reduceat(how, first) if len(first) else first > 0
    if several.any():  # most kernels of a path are launched alike
        rows, size = np.flatnonzero(np.repeat(several, groups.size)), groups.size[several]
        group = np.repeat(np.arange(len(size)), size)
        main[several] = main_launch(group, how[rows], groups.sort(length)[rows], len(size), len(launches))
    return {"launch": main}


def _launch_times(trace: Trace, launch: Index, start: Ints) -> tuple[Ints, Ints]:
    """The duration of the host call of each GPU op (-1: no call), and the op's wait from its return to the start."""
    if not len(trace.launches):
        return np.full(len(launch), -1), np.zeros(len(launch), np.int64)
    returned = trace.launches.end[launch]
    called = np.where(launch < 0, -1, np.maximum(returned - trace.launches.start[launch], 0))
    return called, np.maximum(start - returned, 0)


def _launch_medians(groups: Groups, called: Ints, queued: Ints) -> dict[str, Ints]:
    """The median duration of the host calls that launched the ops of each group, and the ops' median wait from the
    return of the call to the start of the op (0 if the op started before the return; -1 without launches).

    ``called`` and ``queued`` have a value per op; ``called`` is -1 for an op without a launch.
    """
    launched = called >= 0
    if not launched.all():
        groups, called, queued = groups.take(launched), called[launched], queued[launched]
    medians = (quartile_of_sorted(groups.sort(each), groups.size) for each in (called, queued))
    named = zip(("api_median_ns", "queue_median_ns"), medians, strict=True)
    return {name: np.where(groups.size > 0, median, -1) for name, median in named}


# What is added up: a value per op, of some ops.
_SUMS: dict[str, Callable[[Ops, slice], Ints]] = {
    "ops": lambda ops, part: np.ones(len(ops.kind[part]), np.int64),
    "kernels": lambda ops, part: (ops.kind[part] == KERNEL).astype(np.int64),
    "sum_ns": lambda ops, part: ops.end[part] - ops.start[part],
}


def family_table(
    attribution: Attribution, merged: Paths, merged_of: Ints32, keep: Mask, kinds: Kinds, groups: OpGroups
) -> ColumnTable:
    """Add up ``path, family, group, ops, kernels, sum_ns`` in each merged path; families add up to the path's sum.

    ``merged_of`` is the merged path of each range instance, ``keep`` a mask of the instances to include. A range
    contains the work that it and its inner ranges own, even if these are not kept. Start/end ranges, and ranges that
    partly overlap others, contain the work of the launches inside them.
    """
    # A column for each family in a group, of those that there are.
    pair = np.array([FAMILIES.index(name) for name in kinds.family], np.int64) << 8 | groups.of
    pairs, column = np.unique(pair, return_inverse=True)
    # The last row takes what no kept range has inside.
    totals = [np.zeros((len(merged) + 1, len(pairs)), np.int64) for _ in _SUMS]
    path_of = np.append(merged_of, len(merged))[_kept_home(attribution.parent, keep)]
    for part in op_slices(attribution.trace):
        cell = path_of[attribution.owner_of(part)] * len(pairs) + column[attribution.trace.ops.name[part]]
        for total, values in zip(totals, _SUMS.values(), strict=True):
            np.add.at(total.reshape(-1), cell, values(attribution.trace.ops, part))
    for level in _deepest_first(merged):
        for total in totals:
            np.add.at(total, merged.parent[level], total[level])
    odd = keep & ((attribution.trace.ranges.kind == START_END) | crossing(attribution, merged.depth[merged_of]))
    if odd.any():
        _count_inside(totals, attribution, merged_of, keep & np.isin(merged_of, merged_of[odd]), column)
    row, place = np.nonzero(totals[0][:-1])
    return ColumnTable(
        {
            "path": row,
            "family": Texts(pairs[place] >> 8, FAMILIES),
            "group": pairs[place] & 0xFF,
            **{name: total[row, place] for name, total in zip(_SUMS, totals, strict=True)},
        }
    )


def _kept_home(parent: Ints32, keep: Mask) -> Index:
    """Find the innermost kept range around each range, or the range itself; if there is none, the number of ranges.

    An additional entry is for "no range". Takes a number of rounds that is logarithmic in depth.
    """
    count = len(parent)
    home = np.append(np.where(keep, np.arange(count), np.where(parent < 0, count, parent)), count)
    while True:
        further = home[home]
        if np.array_equal(further, home):
            return home
        home = further


def _deepest_first(merged: Paths) -> Iterator[Index]:
    """Yield the merged paths of each depth except the outermost, deepest first."""
    by_depth = np.argsort(merged.depth, kind="stable")
    bounds = np.searchsorted(merged.depth[by_depth], np.arange(1, int(merged.depth.max(initial=0)) + 2))
    for first, last in zip(bounds[-2::-1].tolist(), bounds[:0:-1].tolist(), strict=True):
        yield by_depth[first:last]


def _count_inside(totals: list[Ints], attribution: Attribution, merged_of: Ints32, ranges: Mask, column: Ints) -> None:
    """Replace the totals from the tree, column by column, with the totals of the work inside the ranges."""
    ops = attribution.trace.ops
    rows = np.flatnonzero(ranges)
    inside = cover(attribution, rows, merged_of, len(totals[0]) - 1)
    paths = np.flatnonzero(np.bincount(merged_of[rows]))
    column_of_op = attribution.trace.arena.take(column.astype(np.int16), ops.name)
    for code in np.unique(column_of_op).tolist():
        for total, values in zip(totals, _SUMS.values(), strict=True):
            per_launch = np.zeros(len(attribution.trace.launches) + 1, np.int64)
            for part in op_slices(attribution.trace):
                chosen = np.flatnonzero(column_of_op[part] == code)
                np.add.at(per_launch, ops.launch[part][chosen], values(ops, part)[chosen])
            total[paths, code] = inside.sums(per_launch[:-1])[paths]
