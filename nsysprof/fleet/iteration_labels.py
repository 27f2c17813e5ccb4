"""Which iteration each range of a process is in or is: by the numbers in names, and by what came before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.core.nesting import innermost_marked


def iteration_labels(
    attribution: Attribution, paths: Paths, merged: Paths, rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64], list[str]]:
    """The iteration of each range: the numbered names around it, or, without any, how many of its path came before.

    Where a numbered range comes again with the same names, as with counters that begin anew, it and all in it is
    another iteration: ``step3 #2``.
    """
    of_path, numbered, texts = _numbered(paths, merged)
    of = paths.of[rows]
    code, text = merged.of[of], of_path[of]
    thread = attribution.trace.ranges.thread[rows]
    itself = np.flatnonzero(numbered[of])
    count = np.zeros(len(paths.of), np.int64)
    count[rows[itself]] = places_among(thread[itself], code[itself], text[itself])
    again = count[innermost_marked(attribution.parent, numbered[paths.of])[rows]]
    most = int(again.max(initial=0)) + 1
    used, found = np.unique(text * most + again, return_inverse=True)
    labels = [texts[each // most] + (f" #{each % most + 1}" if each % most else "") for each in used.tolist()]
    plain = text == 0
    if plain.any():
        number = places_among(code[plain])
        found[plain] = len(labels) + number
        labels += [f"#{at}" for at in range(int(number.max()) + 1)]
    return found.astype(np.int64), labels or [""]


def _numbered(paths: Paths, merged: Paths) -> tuple[NDArray[np.int64], NDArray[np.bool_], list[str]]:
    """Per path a code of the numbered names in it, 0 for none, and whether its last name is one; and their texts."""
    known = {"": 0}
    of_path: list[str] = []
    numbered = np.zeros(len(paths), bool)
    parts = zip(paths.parent.tolist(), paths.name.tolist(), merged.of.tolist(), strict=True)
    for at, (parent, name, to) in enumerate(parts):
        mine, kept = paths.names[name], merged.names[int(merged.name[to])]
        around = of_path[parent] if parent >= 0 else ""
        # what per-call ids change is no iteration: their merged name holds no star
        numbered[at] = mine != kept and "*" in kept
        of_path.append("/".join(filter(None, (around, mine))) if numbered[at] else around)
    codes = np.array([known.setdefault(text, len(known)) for text in of_path], np.int64)
    return codes, numbered, list(known)


def places_among(*keys: NDArray[np.integer]) -> NDArray[np.int64]:
    """How many rows with the same keys come before each row."""
    order = np.lexsort(keys)
    new = np.zeros(len(order), bool)
    for key in keys:
        new[1:] |= key[order][1:] != key[order][:-1]
    first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - first
    return found
