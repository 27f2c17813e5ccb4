"""Find the iterations of every range path in one process: which iteration each range belongs to, and sums per
iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.levels import choose_level
from nsysprof.attribution.paths import DEFAULT_MERGE, Paths, merged_paths, range_paths
from nsysprof.core.arrays import AnyInts, Index, Ints, Mask
from nsysprof.core.columns import sums
from nsysprof.core.nesting import innermost_marked
from nsysprof.formats.rank_answer import COMPUTE, COPIES, EXPOSED, WHOLE
from nsysprof.trace.trace import START_END

# What is kept of one rank: beyond that paths are left out, or keep their totals alone, and a warning says so.
MAX_PATHS, MAX_ROWS = 2_000, 10_000


@dataclass(frozen=True)
class Choice:
    """The options for each report: ``per`` selects the iterations, ``merge`` the names to merge; ``skip``: the number
    of first iterations to leave out.
    """

    per: str | None = None
    merge: tuple[str, ...] = DEFAULT_MERGE
    skip: int = 0

    def options(self, rank_from: str | None, **reading: str) -> dict[str, Any]:
        """The requested options by name."""
        return {"per": self.per, "merge": list(self.merge), "skip": self.skip, **reading, "rank_from": rank_from}


@dataclass(frozen=True)
class Iterations:
    """A row per merged path and iteration, sorted by start within a path; ``paths`` are distinct, outermost first.

    ``path`` int64 into ``paths``; ``label`` int64 into ``labels``; ``first_ns``, ``last_ns``: start of the first GPU op
    and end of the last, 0 without GPU ops; ``columns`` int64, as in `COLUMNS`. ``totals`` are these columns per path,
    with ``path_first_ns`` and ``path_last_ns``, including paths without rows. ``main`` is the path of the iterations,
    -1 for none; ``warnings`` name omissions.
    """

    paths: tuple[str, ...]
    labels: Sequence[str]
    path: Ints
    label: Ints
    first_ns: Ints
    last_ns: Ints
    columns: Mapping[str, Ints]
    totals: Mapping[str, Ints]
    path_first_ns: Ints
    path_last_ns: Ints
    main: int
    warnings: tuple[str, ...]


def range_iterations(attribution: Attribution, rows: Index, columns: Mapping[str, Ints], choice: Choice) -> Iterations:
    """Find the `Iterations` of one process; ``rows``: its ranges by start; ``columns``: the `COLUMNS` of each range."""
    paths = range_paths(attribution)
    merged = merged_paths(paths, choice.merge)
    code = merged.of[paths.of[rows]]
    label, labels = _iteration_labels(attribution, paths, merged, rows)
    # of each group the range that starts first: in that order are the iterations of a path
    group, begin, row_of = np.unique(
        code.astype(np.int64) * len(labels) + label, return_index=True, return_inverse=True
    )
    each = {name: sums(row_of, values, len(group)) for name, values in columns.items()}
    inside = attribution.inclusive
    first, last = _bounds(
        row_of, inside.first_op_ns[rows], inside.last_op_ns[rows], inside.launches[rows] > 0, len(group)
    )
    path, label = group // len(labels), group % len(labels)
    texts = _path_texts(merged)
    main = _iteration_path(attribution, rows, merged, texts, path, each, choice)
    kept = _after(path, begin, choice.skip)
    path, label, begin, first, last = path[kept], label[kept], begin[kept], first[kept], last[kept]
    each = {name: values[kept] for name, values in each.items()}
    order, too_many = _chosen_paths(merged, path, each["sum"], main)
    place = np.full(len(merged), -1)
    place[order] = np.arange(len(order))
    detailed, without = _detailed(np.bincount(path, minlength=len(merged)), order, main)
    shown = np.flatnonzero(detailed[path])
    shown = shown[np.lexsort((begin[shown], place[path[shown]]))]
    path_first, path_last = _bounds(path, first, last, last > 0, len(merged))
    return Iterations(
        paths=tuple(texts[at] for at in order),
        labels=labels,
        path=place[path[shown]],
        label=label[shown],
        first_ns=first[shown],
        last_ns=last[shown],
        columns={name: values[shown] for name, values in each.items()},
        totals={name: sums(path, values, len(merged))[order] for name, values in each.items()},
        path_first_ns=path_first[order],
        path_last_ns=path_last[order],
        main=-1 if main is None else int(place[main]),
        warnings=(*too_many, *without),
    )


def _path_texts(merged: Paths) -> list[str]:
    """Return a distinct text for each path: a push/pop range and a start/end range may have the same name."""
    texts: dict[str, None] = {WHOLE: None}
    for text, kind in zip(merged.texts(), merged.kind.tolist(), strict=True):
        name, number = text, 1
        while name in texts:
            start_end = kind == START_END and number == 1
            name, number = f"{text} (start/end)" if start_end else f"{text} ({number + 1})", number + 1
        texts[name] = None
    return list(texts)[1:]


def _bounds(group: AnyInts, first: Ints, last: Ints, some: Mask, count: int) -> tuple[Ints, Ints]:
    """Find the first start and last end in each group, among the rows marked by ``some``; 0 if there are none."""
    latest = np.iinfo(np.int64).max
    low, high = np.full(count, latest), np.zeros(count, np.int64)
    np.minimum.at(low, group[some], first[some])
    np.maximum.at(high, group[some], last[some])
    return np.where(low == latest, 0, low), high


def _after(path: Ints, begin: Index, skip: int) -> Mask:
    """Mark all rows except the first ``skip`` rows of each path that has more rows."""
    place = np.empty(len(path), np.int64)
    order = np.argsort(begin)
    place[order] = _places_among(path[order])
    size = np.bincount(path) if len(path) else np.empty(0, np.int64)
    return (place >= skip) | (size[path] <= skip)


def _iteration_path(
    attribution: Attribution,
    rows: Index,
    merged: Paths,
    texts: Sequence[str],
    path: Ints,
    each: Mapping[str, Ints],
    choice: Choice,
) -> int | None:
    """Choose the path of the iterations: what ``per`` names, or else the steps of the program, see `choose_level`.

    If there are several, the outermost paths count, and among these the path that keeps its GPUs busy for longest. None
    if there is no such path.
    """
    held = sums(path, each[COMPUTE] + each[EXPOSED] + each[COPIES], len(merged))
    wanted: list[int] = np.flatnonzero(np.bincount(path[each["span"] > 0], minlength=len(merged))).tolist()
    if choice.per is None:
        level = choose_level(attribution, None, choice.merge)
        mine = np.isin(level.rows, rows) & (attribution.inclusive.span_ns[level.rows] > 0)
        wanted = np.unique(level.of[mine]).tolist()
    else:
        names = [(at, merged.names[int(merged.name[at])]) for at in wanted]
        wanted = [
            at
            for at, name in names
            if fnmatchcase(texts[at], choice.per) or fnmatchcase(name, choice.per) or texts[at] == choice.per
        ]
    return min(wanted, key=lambda at: (int(merged.depth[at]), -int(held[at])), default=None)


def _chosen_paths(merged: Paths, path: Ints, total: Ints, main: int | None) -> tuple[list[int], list[str]]:
    """Choose the paths to keep: first the path of the iterations, then outer paths before inner paths, and longer paths
    before shorter paths of the same depth. Also return sentences about the paths that are left out.
    """
    present = np.flatnonzero(np.bincount(path, minlength=len(merged)))
    weight = sums(path, total, len(merged))
    order: list[int] = present[np.lexsort((-weight[present], merged.depth[present], present != main))].tolist()
    lost = len(order) - MAX_PATHS
    if lost <= 0:
        return order, []
    return order[:MAX_PATHS], [
        f"there are {len(order):,} range paths: the {lost:,} innermost paths are left out, and their time "
        "is counted in the outer paths"
    ]


def _detailed(size: AnyInts, order: Sequence[int], main: int | None) -> tuple[Mask, list[str]]:
    """Choose the paths that keep a row per iteration, up to `MAX_ROWS` in total; also say which paths do not.

    ``size`` is the number of iterations of each path.
    """
    detailed = np.zeros(len(size), bool)
    left, without = MAX_ROWS, 0
    for at in order:
        if size[at] <= left:
            detailed[at], left = True, left - int(size[at])
        elif at == main:
            return detailed, [
                f"{size[at]:,} iterations exceed the limit of {MAX_ROWS:,}: choose a longer range with --per"
            ]
        else:
            without += 1
    if not without:
        return detailed, []
    return detailed, [f"{without:,} range paths have too many instances, so only the totals of these paths are kept"]


def _iteration_labels(attribution: Attribution, paths: Paths, merged: Paths, rows: Index) -> tuple[Ints, list[str]]:
    """Name the iteration of each range by the numbered names around it, or else by its number within its path.

    If a numbered range occurs again with the same names (a counter was restarted), this range and all ranges in it are
    another iteration: ``step3 #2``.
    """
    of_path, numbered, texts = _numbered(paths, merged)
    of = paths.of[rows]
    code, text = merged.of[of], of_path[of]
    thread = attribution.trace.ranges.thread[rows]
    itself = np.flatnonzero(numbered[of])
    count = np.zeros(len(paths.of), np.int64)
    count[rows[itself]] = _places_among(thread[itself], code[itself], text[itself])
    again = count[innermost_marked(attribution.parent, numbered[paths.of])[rows]]
    most = int(again.max(initial=0)) + 1
    used, label = np.unique(text * most + again, return_inverse=True)
    labels = [texts[each // most] + (f" #{each % most + 1}" if each % most else "") for each in used.tolist()]
    plain = text == 0
    if plain.any():
        number = _places_among(code[plain])
        label[plain] = len(labels) + number
        labels += [f"#{at}" for at in range(int(number.max()) + 1)]
    return label.astype(np.int64), labels or [""]


def _numbered(paths: Paths, merged: Paths) -> tuple[Ints, Mask, list[str]]:
    """For each path, the code of its numbered names (0: none) and whether its last name is numbered; the texts of
    codes.
    """
    known = {"": 0}
    of_path: list[str] = []
    numbered = np.zeros(len(paths), bool)
    parts = zip(paths.parent.tolist(), paths.name.tolist(), merged.of.tolist(), strict=True)
    for at, (parent, name, to) in enumerate(parts):
        own, kept = paths.names[name], merged.names[int(merged.name[to])]
        around = of_path[parent] if parent >= 0 else ""
        # what per-call ids change is no iteration: their merged name holds no star
        numbered[at] = own != kept and "*" in kept
        of_path.append("/".join(filter(None, (around, own))) if numbered[at] else around)
    return np.array([known.setdefault(text, len(known)) for text in of_path], np.int64), numbered, list(known)


def _places_among(*keys: AnyInts) -> Ints:
    """Count the rows with the same keys before each row."""
    order = np.lexsort(keys)
    new = np.zeros(len(order), bool)
    for key in keys:
        new[1:] |= key[order][1:] != key[order][:-1]
    first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order)) - first
    return places
