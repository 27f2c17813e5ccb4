"""Time cut into equal columns: where they begin, and how much of each kind of interval lies in each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import Ints

NOTHING = 255  # the kind of a column in which nothing ran


def column_edges(start: int, end: int, columns: int) -> Ints:
    """Column edges such that `column` of a time is ``(time - start) * columns // length``."""
    length = max(end - start, 1)
    columns = max(1, min(columns, length))
    # Python integers: the products of a long window do not fit into 64 bits
    return np.array([start - (-k * length // columns) for k in range(columns + 1)], np.int64)


def column(times: Ints, edges: Ints) -> Ints:
    """The column that each time is in; times outside are in the first or the last one."""
    out: Ints = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(edges) - 2)
    return out


def time_per_group(start: Ints, end: Ints, group: NDArray[np.uint8], edges: Ints) -> Ints:
    """Op time in each (group, column), int64 ns of shape (groups, columns); as many groups as it takes.

    Most ops lie in one column; of a longer one the whole columns are counted by where they begin and end.
    """
    columns, groups = len(edges) - 1, int(group.max(initial=0)) + 1
    first, last = column(start, edges), column(np.maximum(end - 1, start), edges)
    row = group.astype(np.int64) * columns
    out = np.zeros(groups * columns, np.int64)
    inside = first == last
    np.add.at(out, (row + first)[inside], (end - start)[inside])
    long = np.flatnonzero(~inside)
    if len(long):
        row, first, last = row[long], first[long], last[long]
        np.add.at(out, row + first, edges[first + 1] - start[long])
        np.add.at(out, row + last, end[long] - edges[last])
        cover = np.zeros((groups, columns + 1), np.int64)
        np.add.at(cover, (group[long], first + 1), 1)
        np.add.at(cover, (group[long], last), -1)
        out += (np.cumsum(cover[:, :-1], axis=1) * np.diff(edges)).ravel()
    return out.reshape(groups, columns)
