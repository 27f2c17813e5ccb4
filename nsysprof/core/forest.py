"""Rows that lie in one another: each names its parent by row, -1 where it has none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def added_up(values: NDArray[np.int64], parent: NDArray[np.int32]) -> NDArray[np.int64]:
    """Each row's value plus those of all its ancestors; logarithmic rounds in depth."""
    count = len(parent)
    up = np.append(np.where(parent < 0, count, parent), count)
    out = np.append(values, 0)
    while (up[:-1] < count).any():
        out += out[up]
        up = up[up]
    return out[:-1]


def ancestors_or_self(parent: NDArray[np.int32], marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows are marked or have a marked ancestor; logarithmic rounds in depth."""
    up = np.append(np.where(parent < 0, len(parent), parent), len(parent))
    out = np.append(marked, False)
    while (up[:-1] < len(parent)).any():
        out |= out[up]
        up = up[up]
    return out[:-1]


def depths(parent: NDArray[np.int32]) -> NDArray[np.int32]:
    """How many ancestors each row has."""
    return (added_up(np.ones(len(parent), np.int64), parent) - 1).astype(np.int32)


def outermost(parent: NDArray[np.int32], marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which marked rows have no marked ancestor."""
    within: NDArray[np.bool_] = np.append(ancestors_or_self(parent, marked), False)[parent]
    return marked & ~within
