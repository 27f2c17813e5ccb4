"""Counts the calls inside windows: the inner ranges of a name, by which times can be given instead of per window."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.globs import near_names
from nsysprof.attribution.paths import merged_names
from nsysprof.core.intervals import Ints
from nsysprof.errors import NsysprofError
from nsysprof.waits.windows import Windows


def count_calls(
    attribution: Attribution,
    windows: Windows,
    paths: Sequence[str],
    per: str,
    merge_names: Sequence[str] | None,
) -> Ints:
    """How many ranges, int64, whose name matches the glob ``per`` lie in the range of each window.

    Names count as recorded and as merged (`merged_names`); of ranges inside one another the outermost count.
    ``paths`` are the texts of `Windows.path`. `NsysprofError` where a path has none, which names some that are near.
    """
    ranges = attribution.trace.ranges
    names = [name.text for name in attribution.trace.range_names]
    both = zip(names, merged_names(names, merge_names), strict=True)
    fits = np.array([fnmatchcase(one, per) or fnmatchcase(other, per) for one, other in both], bool)
    matches = fits[ranges.name]
    parent = attribution.parent.astype(np.int64)
    windowed = np.zeros(len(ranges), bool)
    windowed[windows.range[windows.range >= 0]] = True
    inside, outermost = np.zeros(len(ranges) + 1, np.int64), 0
    up = parent[np.flatnonzero(matches)]
    while len(up):  # one level up at a time: as many rounds as ranges are deep
        outermost += int((up < 0).sum())
        up = up[up >= 0]
        found = windowed[up]
        np.add.at(inside, up[found], 1)
        up = up[~found & ~matches[up]]
        up = parent[up]
    calls = np.where(windows.range >= 0, inside[windows.range], outermost)
    of_path = np.bincount(windows.path, weights=calls)
    empty = np.setdiff1d(windows.path, np.flatnonzero(of_path))
    if len(empty):
        known = ", ".join(map(repr, near_names(names, per)))
        raise NsysprofError(
            f"{paths[int(empty[0])]}: nothing inside matches --per {per!r}; ranges are {known or 'none'}",
            "leave --per out, and times are per window",
        )
    return calls
