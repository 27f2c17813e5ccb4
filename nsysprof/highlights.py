"""Which ranges of an answer a reader wants to see first."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.breakdown import Breakdown


def top_rows(breakdown: Breakdown, count: int) -> NDArray[np.intp]:
    """Rows of ``merged`` with the most busy time, and all ranges around them, in the order of a tree.

    A range that holds all the work of the range around it (``iter*`` in ``RUN::math::S4096``) comes along with that
    one and is not counted. Siblings stand in the order of their first appearance.
    """
    merged = breakdown.merged
    parent = merged["parent"].to_numpy()
    work = merged["sum_ns"].to_numpy()
    alike = (parent >= 0) & (work > 0) & (work == work[parent])
    shown = np.zeros(len(merged), bool)
    order = np.argsort(-merged["busy_ns"].to_numpy(), kind="stable")
    for row in order[~alike[order]][:count].tolist():
        while row >= 0 and not shown[row]:
            shown[row] = True
            row = int(parent[row])
    for row in np.flatnonzero(alike).tolist():  # parents stand before children
        shown[row] |= shown[parent[row]]
    return _tree_order(parent, np.flatnonzero(shown))


def _tree_order(parent: NDArray[np.integer], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    children: dict[int, list[int]] = {}
    for row in rows.tolist():
        children.setdefault(int(parent[row]), []).append(row)
    out: list[int] = []
    todo = children.get(-1, [])[::-1]
    while todo:
        row = todo.pop()
        out.append(row)
        todo.extend(children.get(row, [])[::-1])
    return np.array(out, np.intp)


def kernels_inside(breakdown: Breakdown, row: int) -> pd.DataFrame:
    """What lies inside a merged range by kernel: ``kernel, family, math_unit, cause, count, sum_ns``, longest first."""
    parent = breakdown.merged["parent"].to_numpy()
    inside = np.zeros(len(parent) + 1, bool)
    inside[row] = True
    for child in range(row + 1, len(parent)):  # parents stand before children
        inside[child] = inside[parent[child]]
    rows = breakdown.merged_kernels
    mine = rows[inside[rows["row"].to_numpy()]]
    keys = ["kernel", "family", "math_unit", "cause"]
    per_kernel: pd.DataFrame = mine.groupby(keys, sort=False, as_index=False)[["count", "sum_ns"]].sum()
    return per_kernel.sort_values("sum_ns", ascending=False, kind="stable", ignore_index=True)
