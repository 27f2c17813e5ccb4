"""Make the kernel tables: the work that each path owns by op name, and the work inside each merged path by family."""

from collections.abc import Callable, Iterator

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.attribution.range_work import cover, crossing
from nsysprof.attribution.split import Part
from nsysprof.core.arrays import AnyInts, Array, Index, Ints, Ints32, Mask, slices
from nsysprof.core.columns import ColumnTable, Texts, sums
from nsysprof.core.parallel import side_by_side
from nsysprof.kernels.classify import FAMILIES, Kinds, OpGroups
from nsysprof.kernels.launches import Launches, main_launch
from nsysprof.statistics.distributions import Groups, quartile_of_sorted
from nsysprof.trace.trace import COPYING, KERNEL, MIGRATION, START_END, Ops, Trace


def kernel_tables(
    part: Part, paths: tuple[Ints32, Ints32], *, unowned: bool, whole: bool = False, launches: Launches | None = None
) -> tuple[ColumnTable, ColumnTable]:
    """Add up the work that each path of a part owns. The result has a row per path (or merged path) and op name.

    ``path`` int32, -1 for unowned work; ``name`` int32 into ``trace.op_names``; ``count`` ops; durations in ns:
    ``sum_ns, median_ns, min_ns, max_ns``; ``size_bytes`` copied or set; sorted by path, then by time. ``paths``: the
    path of each range instance, and the merged path of each path; ``unowned`` adds the rows of path -1. In the first
    table, ``captured`` (int32) is the path in which the ops of a replayed CUDA graph were captured, -1 for none. Ops
    captured in different paths have separate rows. The first table also has the medians of `_launch_medians`; with
    ``whole``, only the second table has them. With ``launches``, the first table also has ``launch``, the row of the
    longest launch, -1 for none.
    """
    attribution = part.attribution
    trace, (of, merged_of) = attribution.trace, paths
    names = max(len(trace.op_names), 1)
    path_of, counts = np.append(of, np.int32(-1)), np.append(part.keep, unowned)
    places = len(merged_of) + 1 if part.graphs else 1
    most = (len(merged_of) + 1) * places * names
    narrow = np.dtype(np.int32 if most < 1 << 31 else np.int64)
    key = trace.arena.empty(len(trace.ops), narrow)
    row, take = trace.arena.empty(len(trace.ops), np.int32), trace.arena.take
    real = attribution.recorded or trace  # as launched, whatever was captured where
    stop, copy = 0, np.isin(np.arange(MIGRATION + 1), COPYING)
    moved = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for ops in slices(len(attribution.trace.ops)):
        owner = attribution.owner_of(ops)
        chosen = counts.take(owner) if part.ops is None else counts.take(owner) & part.ops[ops]
        own = slice(None) if chosen.all() else np.flatnonzero(chosen)
        path = path_of.take(owner[own]).astype(np.int64) + 1
        if part.graphs:
            path = path * places + path_of[part.graphs.owner[ops][own]] + 1
        place = slice(stop, stop + len(path))
        key[place] = path * names + trace.ops.name[ops][own]
        row[place] = np.arange(ops.start, ops.start + len(owner))[own]
        copies = np.flatnonzero(copy.take(trace.ops.kind[ops][own]))
        at = np.searchsorted(trace.copy_ops, row[place][copies])
        moved.append((key[place][copies], np.maximum(trace.copies.size_bytes[at], 0)))
        stop = place.stop
    groups, row, whole_trace = Groups.of(key[:stop]), row[:stop], stop == len(trace.ops)
    by_name = Groups.of(key[:stop] % names) if whole else groups
    del key

    def of_ops(values: Array) -> Array:
        return values if whole_trace else take(values, row)

    def lengths() -> Ints:
        return of_ops(trace.ops.end) - of_ops(trace.ops.start)

    medians, main, (owned, length) = side_by_side(
        lambda: _launch_medians(by_name, real, of_ops),
        lambda: _main_launches(groups, of_ops(launches.of), lengths, len(launches)) if launches else {},
        lambda: _by_name(groups, lengths(), names, *map(np.concatenate, zip(*moved, strict=True))),
        apart=trace.apart,
    )
    if not whole:
        owned = ColumnTable({**owned.columns, **medians, **main})
    path, captured = np.divmod(owned["path"] + 1, places)
    codes = {"path": (path - 1).astype(np.int32), "captured": (captured - 1).astype(np.int32)}
    owned = ColumnTable({**owned.columns, **codes})
    merged = np.append(merged_of, np.int32(-1))[owned["path"]].astype(np.int64) + 1
    merged_key = merged * names + owned["name"]
    keys, number = np.unique(merged_key, return_inverse=True)
    of_row = np.repeat(number.astype(np.int32), owned["count"])
    again = Groups(of_row, keys, sums(number, owned["count"], len(keys)))
    together, _ = _by_name(again, length, names, merged_key, owned["size_bytes"])
    del of_row, again, length
    if whole:
        together = ColumnTable({**together.columns, **medians})
    rank = trace.op_name_rank  # where sums are equal, names decide: the order of the file is nobody's
    first, second = (
        table.take(np.lexsort((rank[table["name"]], -table["sum_ns"], table["path"]))) for table in (owned, together)
    )
    return first, second


def _by_name(groups: Groups, length: Ints, names: int, moved: Ints, size: Ints) -> tuple[ColumnTable, Ints]:
    """Make the table of GPU ops by key, in key order; also return the op durations in that order, in the same array.

    ``moved`` are the keys of ops with a ``size``.
    """
    count, length = groups.size, groups.sort(length, length)
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


def _main_launches(groups: Groups, how: AnyInts, lengths: Callable[[], Ints], kinds: int) -> dict[str, Ints]:
    """The longest-running launch of each group of GPU ops; ``how`` is the launch of each op, one of ``kinds``."""
    ordered, first = groups.sort(how), np.cumsum(groups.size) - groups.size
    main = np.minimum.reduceat(ordered, first).astype(np.int64) if len(first) else first
    several = main != np.maximum.reduceat(ordered, first) if len(first) else first > 0
    if several.any():  # most kernels of a path are launched alike
        codes = groups.codes[several]
        group = np.minimum(np.searchsorted(codes, groups.code), len(codes) - 1)
        rows = np.flatnonzero(codes[group] == groups.code)
        main[several] = main_launch(group[rows], how[rows], lengths()[rows], len(codes), kinds)
    return {"launch": main}


def _launch_medians(groups: Groups, trace: Trace, of_ops: Callable[[Array], Array]) -> dict[str, Ints]:
    """The median duration of the host calls that launched the GPU ops of each group, and the ops' median wait from the
    return of the call to the start of the op (0 if the op started before the return; -1 without launches).

    ``of_ops`` returns the values of the ops in the groups.
    """
    launch, start = of_ops(trace.ops.launch), of_ops(trace.ops.start)
    launched = launch >= 0
    if not launched.all():
        groups, launch, start = groups.take(launched), launch[launched], start[launched]

    def median(values: Ints) -> Ints:
        middle = quartile_of_sorted(groups.sort(np.maximum(values, 0, out=values), values), groups.size)
        return np.where(groups.size > 0, middle, -1)

    returned, begun = trace.launches.end, trace.launches.start
    values = trace.arena.take(returned, launch)
    values -= trace.arena.take(begun, launch)
    called = median(values)
    values = trace.arena.take(returned, launch)  # again: both at once would be the peak of the memory
    return {"api_median_ns": called, "queue_median_ns": median(np.subtract(start, values, out=values))}


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
    contains the work that it and its inner ranges own, even if the inner ranges are not kept. Start/end ranges contain
    the work of the launches inside them, and so do ranges that partly overlap others.
    """
    # A column for each family in a group, of those that there are.
    pair = np.array([FAMILIES.index(name) for name in kinds.family], np.int64) << 8 | groups.of
    pairs, column = np.unique(pair, return_inverse=True)
    # The last row takes what no kept range has inside.
    totals = [np.zeros((len(merged) + 1, len(pairs)), np.int64) for _ in _SUMS]
    path_of = np.append(merged_of, len(merged))[_kept_home(attribution.parent, keep)]
    for part in slices(len(attribution.trace.ops)):
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
            for part in slices(len(attribution.trace.ops)):
                chosen = np.flatnonzero(column_of_op[part] == code)
                np.add.at(per_launch, ops.launch[part][chosen], values(ops, part)[chosen])
            total[paths, code] = inside.sums(per_launch[:-1])[paths]
