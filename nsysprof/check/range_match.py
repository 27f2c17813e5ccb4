"""Which merged ranges a glob stands for."""

from __future__ import annotations

import re
from bisect import bisect_left
from fnmatch import translate

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.core.nesting import ancestors_or_self

_MAGIC = re.compile(r"[*?\[]")


class RangeFinder:
    """Finds rows of ``breakdown.merged`` by globs, prepared once for many of them."""

    def __init__(self, breakdown: Breakdown) -> None:
        merged = breakdown.merged
        self.texts: list[str] = merged["merged_path"].tolist()
        self._parent = merged["parent"].to_numpy().astype(np.int32)
        self._by_text = sorted(zip(self.texts, range(len(self.texts)), strict=True))
        self._by_name: dict[str, list[int]] = {}
        for row, name in enumerate(merged["name"].tolist()):
            self._by_name.setdefault(name, []).append(row)

    def find(self, glob: str) -> NDArray[np.intp]:
        """The rows whose merged path matches, or, where none does, whose name does, in their order.

        Of ranges inside one another that match, the outermost counts. A star matches ``/`` as well.
        """
        hit = np.zeros(len(self.texts), bool)
        hit[self._matching_paths(glob) or self._matching_names(glob)] = True
        if not hit.any():
            return np.empty(0, np.intp)
        inside = np.append(ancestors_or_self(self._parent, hit), False)[self._parent]
        return np.flatnonzero(hit & ~inside)

    def _matching_paths(self, glob: str) -> list[int]:
        matches = re.compile(translate(glob)).match
        magic = _MAGIC.search(glob)
        prefix = glob[: magic.start()] if magic else glob
        found = []
        for at in range(bisect_left(self._by_text, (prefix, -1)), len(self._by_text)):
            text, row = self._by_text[at]
            if not text.startswith(prefix):
                break
            if matches(text):
                found.append(row)
        return found

    def _matching_names(self, glob: str) -> list[int]:
        matches = re.compile(translate(glob)).match
        return [row for name, rows in self._by_name.items() if matches(name) for row in rows]
