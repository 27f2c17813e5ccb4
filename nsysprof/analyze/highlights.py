"""Which ranges of an answer a reader wants to see first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.core.columns import ColumnTable
from nsysprof.core.nesting import ancestors_or_self

# Of ranges that hold one another with nothing beside, so many are shown at either end.
_CHAIN_ENDS = 2
# Outermost ranges by which the workloads name what they measure, and what they do before it.
_MEASURED, _BEFORE = "RUN::", ("CHECK::", "REFERENCE::", "WARMUP::")


def top_rows(breakdown: Breakdown, count: int) -> NDArray[np.intp]:
    """Rows of ``merged`` with the most busy time, and all ranges around them, in the order of a tree.

    A range that holds all the work of the range around it (``iter*`` in ``RUN::math::S4096``) comes along with that
    one and is not counted; of a long chain of such ranges only the ends come along. Siblings stand in the order of
    their first appearance. What is `preparing` comes after all that is measured.
    """
    merged = breakdown.columns("merged")
    parent, work = merged["parent"], merged["sum_ns"]
    alike = (parent >= 0) & (work > 0) & (work == work[parent])
    shown = np.zeros(len(merged), bool)
    order = np.lexsort((-merged["busy_ns"], preparing(merged)))
    for row in order[~alike[order]][:count].tolist():
        while row >= 0 and not shown[row]:
            shown[row] = True
            row = int(parent[row])
    for row in np.flatnonzero(alike).tolist():  # parents stand before children
        shown[row] |= shown[parent[row]]
    return tree_order(parent, np.flatnonzero(shown & ~_inside_chain(parent, alike)))


def preparing(merged: ColumnTable) -> NDArray[np.bool_]:
    """Which rows of ``merged`` lie in warm-up and checks, in an answer that has ``RUN::`` ranges; none in any other."""
    parent = merged["parent"]
    outermost = parent < 0
    names = merged.texts("name")[outermost].tolist()
    inside = np.zeros(len(merged), bool)
    if not any(name.startswith(_MEASURED) for name in names):
        return inside
    inside[outermost] = [name.startswith(_BEFORE) for name in names]
    for row in np.flatnonzero(~outermost).tolist():  # parents stand before children
        inside[row] = inside[parent[row]]
    return inside


def _inside_chain(parent: NDArray[np.integer], alike: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows with `_CHAIN_ENDS` rows and more before and behind them, each alike to the one around it."""
    before, behind = np.zeros(len(parent), np.int64), np.zeros(len(parent), np.int64)
    chain = np.flatnonzero(alike).tolist()
    for row in chain:
        before[row] = before[parent[row]] + 1
    for row in reversed(chain):
        behind[parent[row]] = max(behind[parent[row]], behind[row] + 1)
    return (before >= _CHAIN_ENDS) & (behind >= _CHAIN_ENDS)


def tree_order(parent: NDArray[np.integer], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """The rows with children behind their parents; a row whose parent is not among them belongs to the next one up."""
    chosen, children = set(rows.tolist()), dict[int, list[int]]()
    for row in rows.tolist():
        up = int(parent[row])
        while up >= 0 and up not in chosen:
            up = int(parent[up])
        children.setdefault(up, []).append(row)
    out: list[int] = []
    todo = children.get(-1, [])[::-1]
    while todo:
        row = todo.pop()
        out.append(row)
        todo.extend(children.get(row, [])[::-1])
    return np.array(out, np.intp)


def kernels_inside(breakdown: Breakdown, row: int) -> ColumnTable:
    """What lies inside a merged range by kernel: ``kernel, family, math_unit, cause, count, sum_ns``, longest first.

    Row -1 stands for what no range owns.
    """
    parent = breakdown.columns("merged")["parent"]
    inside = np.arange(-1, len(parent)) == row
    if row >= 0:
        inside[1:] = ancestors_or_self(parent, inside[1:])
    rows = breakdown.columns("merged_kernels")
    mine = rows.take(inside[rows["row"] + 1])
    found = mine.summed(["kernel", "family", "math_unit", "cause"], ["count", "sum_ns"])
    return found.take(np.argsort(-found["sum_ns"], kind="stable"))
