"""The iterations of every range path of one process, and what its GPUs did in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import DEFAULT_MERGE, Paths, merged_paths, range_paths
from nsysprof.attribution.projection import DEVICE_BITS
from nsysprof.core.intervals import Ints
from nsysprof.core.units import format_share
from nsysprof.fleet.gpu_activity import COMMUNICATION, COMPUTE, COPIES, EXPOSED, PARTS, Lines
from nsysprof.fleet.iteration_labels import iteration_labels, places_among
from nsysprof.trace.trace import START_END

# The path that stands for everything that a rank did.
WHOLE = "(whole report)"

# What is kept of one rank: beyond that paths are left out, or keep their totals alone, and a warning says so.
MOST_PATHS, MOST_ROWS = 2_000, 10_000
COLUMNS = ("instances", "cpu", "span", "busy", "sum", COMMUNICATION, *PARTS)
_LATE = np.iinfo(np.int64).max
_COVERED = 0.5  # of the GPUs' busy time, that iterations have to hold unless their name has a number
_LEAST_REPEATS = 3
_MOST_CANDIDATES = 3


@dataclass(frozen=True)
class Choice:
    """What is asked of a report: ``per`` names the iterations, ``merge`` the names that become one, ``skip`` how many
    of the first iterations are left out.
    """

    per: str | None = None
    merge: tuple[str, ...] = DEFAULT_MERGE
    skip: int = 0


@dataclass(frozen=True)
class Iterations:
    """A row per merged path and iteration, the iterations of a path by start, ``paths`` outermost first, no two alike.

    ``path`` int64 into ``paths``; ``label`` int64 into ``labels``; ``first_ns``, ``last_ns`` of its ops, 0 without
    any; ``columns`` int64, those of `COLUMNS`. ``totals`` are the same per path, with ``path_first_ns`` and
    ``path_last_ns``, for paths without rows too. ``main`` is the path of the iterations, -1 for none; ``warnings``
    say what is left out.
    """

    paths: tuple[str, ...]
    labels: Sequence[str]
    path: NDArray[np.int64]
    label: NDArray[np.int64]
    first_ns: Ints
    last_ns: Ints
    columns: Mapping[str, Ints]
    totals: Mapping[str, Ints]
    path_first_ns: Ints
    path_last_ns: Ints
    main: int
    warnings: tuple[str, ...]


def range_iterations(
    attribution: Attribution, process: int, lines: Mapping[int, Lines], choice: Choice
) -> Iterations:
    """The `Iterations` of one process, given the `Lines` of its GPUs."""
    ranges = attribution.trace.ranges
    rows = np.flatnonzero(attribution.trace.thread_process[ranges.thread] == process)
    rows = rows[np.argsort(ranges.start[rows], kind="stable")]
    paths = range_paths(attribution)
    merged = merged_paths(paths, choice.merge)
    code = merged.of[paths.of[rows]]
    label, labels = iteration_labels(attribution, paths, merged, rows)
    # of each group the range that starts first: in that order are the iterations of a path
    group, begin, row_of = np.unique(
        code.astype(np.int64) * len(labels) + label, return_index=True, return_inverse=True
    )
    each = {
        name: _added(row_of, values, len(group))
        for name, values in _measures(attribution, rows, lines).items()
    }
    first, last = _bounds(attribution, rows, row_of, len(group))
    path, label = group // len(labels), group % len(labels)
    texts = _path_texts(merged)
    main, instead = _iteration_path(merged, texts, path, each, _busy(lines), choice)
    kept = _after(path, begin, choice.skip)
    path, label, begin, first, last = path[kept], label[kept], begin[kept], first[kept], last[kept]
    each = {name: values[kept] for name, values in each.items()}
    order, too_many = _chosen_paths(merged, path, each["sum"], main)
    place = np.full(len(merged), -1)
    place[order] = np.arange(len(order))
    detailed, without = _detailed(np.bincount(path, minlength=len(merged)), order, main)
    mine = np.flatnonzero(detailed[path])
    mine = mine[np.lexsort((begin[mine], place[path[mine]]))]
    path_first, path_last = _path_bounds(path, first, last, len(merged))
    return Iterations(
        paths=tuple(texts[at] for at in order),
        labels=labels,
        path=place[path[mine]],
        label=label[mine],
        first_ns=first[mine],
        last_ns=last[mine],
        columns={name: values[mine] for name, values in each.items()},
        totals={name: _added(path, values, len(merged))[order] for name, values in each.items()},
        path_first_ns=path_first[order],
        path_last_ns=path_last[order],
        main=-1 if main is None else int(place[main]),
        warnings=(*instead, *too_many, *without),
    )


def _path_texts(merged: Paths) -> list[str]:
    """The texts of the paths, each another one: a push/pop and a start/end range may share their name."""
    found: dict[str, None] = {WHOLE: None}
    for text, kind in zip(merged.texts(), merged.kind.tolist(), strict=True):
        name, number = text, 1
        while name in found:
            start_end = kind == START_END and number == 1
            name, number = f"{text} (start/end)" if start_end else f"{text} ({number + 1})", number + 1
        found[name] = None
    return list(found)[1:]


def _measures(
    attribution: Attribution, rows: NDArray[np.intp], lines: Mapping[int, Lines]
) -> dict[str, Ints]:
    """The columns of each range: its own times, and what its GPUs did between its first op and its last."""
    ranges, inside = attribution.trace.ranges, attribution.inclusive
    first, last = inside.first_op_ns[rows], inside.last_op_ns[rows]
    found = {
        "instances": np.ones(len(rows), np.int64),
        "cpu": ranges.end[rows] - ranges.start[rows],
        "span": last - first,
        "busy": inside.busy_ns[rows],
        "sum": inside.sum_ns[rows],
        **{name: np.zeros(len(rows), np.int64) for name in (COMMUNICATION, *PARTS)},
    }
    for gpu, line in lines.items():
        uses = (inside.devices[rows] >> min(gpu, DEVICE_BITS)) & 1
        for name, values in line.inside(first, last).items():
            found[name] += values * uses
    return found


def _added(group: NDArray[np.integer], values: Ints, count: int) -> Ints:
    out = np.zeros(count, np.int64)
    np.add.at(out, group, values)
    return out


def _bounds(
    attribution: Attribution, rows: NDArray[np.intp], group: NDArray[np.integer], count: int
) -> tuple[Ints, Ints]:
    """The first start and last end of the ops in each group of ranges; 0 without ops."""
    inside = attribution.inclusive
    some = inside.launches[rows] > 0
    first, last = np.full(count, _LATE), np.zeros(count, np.int64)
    np.minimum.at(first, group[some], inside.first_op_ns[rows][some])
    np.maximum.at(last, group[some], inside.last_op_ns[rows][some])
    return np.where(first == _LATE, 0, first), last


def _after(path: NDArray[np.int64], begin: NDArray[np.intp], skip: int) -> NDArray[np.bool_]:
    """All rows but the first ``skip`` of each path that has more of them."""
    place = np.empty(len(path), np.int64)
    order = np.argsort(begin)
    place[order] = places_among(path[order])
    size = np.bincount(path) if len(path) else np.empty(0, np.int64)
    return (place >= skip) | (size[path] <= skip)


def _busy(lines: Mapping[int, Lines]) -> int:
    """The busy time of all GPUs."""
    return sum(int((line.busy[1] - line.busy[0]).sum()) for line in lines.values())


def _iteration_path(
    merged: Paths,
    texts: Sequence[str],
    path: NDArray[np.int64],
    each: Mapping[str, Ints],
    busy: int,
    choice: Choice,
) -> tuple[int | None, list[str]]:
    """The path whose rows are the iterations: what ``per`` names; else a numbered one, or one that repeats, whose rows
    hold half of the ``busy`` time; else a numbered one.

    Unless it was asked for it has GPU work in most of its rows. Of several the outermost ones, and of these the one
    that holds most. None where nothing is so; then, in words, what ``--per`` might name.
    """
    count = np.bincount(path, minlength=len(merged))
    worked = np.bincount(path[each["span"] > 0], minlength=len(merged))
    held = _added(path, each[COMPUTE] + each[EXPOSED] + each[COPIES], len(merged)) / max(busy, 1)
    wanted = np.flatnonzero(worked).tolist()
    if choice.per is not None:
        names = [(at, merged.names[int(merged.name[at])]) for at in wanted]
        wanted = [
            at
            for at, name in names
            if fnmatchcase(texts[at], choice.per) or fnmatchcase(name, choice.per) or texts[at] == choice.per
        ]
        return _outermost(merged, wanted, held), []
    wanted = [at for at in wanted if 2 * worked[at] >= count[at] > 1]
    numbered = [at for at in wanted if merged.names[int(merged.name[at])] in choice.merge]
    repeated = [at for at in wanted if worked[at] >= _LEAST_REPEATS]
    best = ([at for at in among if held[at] >= _COVERED] for among in (numbered, repeated))
    main = next((_outermost(merged, among, held) for among in (*best, numbered) if among), None)
    if main is not None or not repeated:
        return main, []
    most = sorted(repeated, key=lambda at: (-held[at], merged.depth[at]))[:_MOST_CANDIDATES]
    told = ", ".join(f"{texts[at]!r} ({count[at]:,} times, {format_share(held[at])})" for at in most)
    return None, [
        f"no range repeats and holds half of the GPU's busy time; --per can name one that is an iteration: {told}"
    ]


def _outermost(merged: Paths, wanted: Sequence[int], held: NDArray[np.float64]) -> int | None:
    """The path with the most of the time among the outermost of those wanted."""
    return min(wanted, key=lambda at: (int(merged.depth[at]), -float(held[at])), default=None)


def _chosen_paths(
    merged: Paths, path: NDArray[np.int64], total: Ints, main: int | None
) -> tuple[list[int], list[str]]:
    """The paths to keep, that of the iterations first, then outermost first and the longest of a depth first; and what
    is left out in words.
    """
    present = np.flatnonzero(np.bincount(path, minlength=len(merged)))
    weight = _added(path, total, len(merged))
    order: list[int] = present[
        np.lexsort((-weight[present], merged.depth[present], present != main))
    ].tolist()
    lost = len(order) - MOST_PATHS
    if lost <= 0:
        return order, []
    return order[:MOST_PATHS], [
        f"{len(order):,} range paths: the {lost:,} innermost are left out, their time is in the paths around them"
    ]


def _detailed(
    size: NDArray[np.integer], order: Sequence[int], main: int | None
) -> tuple[NDArray[np.bool_], list[str]]:
    """Which paths keep a row per iteration, as far as `MOST_ROWS` reach, and in words what does not.

    ``size`` is how many iterations each has.
    """
    found = np.zeros(len(size), bool)
    room, without = MOST_ROWS, 0
    for at in order:
        if size[at] <= room:
            found[at], room = True, room - int(size[at])
        elif at == main:
            return found, [
                f"{size[at]:,} iterations are more than the {MOST_ROWS:,} that are kept: --per a longer range"
            ]
        else:
            without += 1
    if not without:
        return found, []
    return found, [f"{without:,} range paths with many instances have totals only, no iterations"]


def _path_bounds(path: NDArray[np.int64], first: Ints, last: Ints, count: int) -> tuple[Ints, Ints]:
    """The first start and last end of the ops of each path; 0 without ops."""
    low, high = np.full(count, _LATE), np.zeros(count, np.int64)
    some = last > 0
    np.minimum.at(low, path[some], first[some])
    np.maximum.at(high, path[some], last[some])
    return np.where(low == _LATE, 0, low), high
