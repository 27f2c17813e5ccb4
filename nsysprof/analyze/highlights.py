"""Choose the ranges to show first, their kernels, and launch-bound ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nsysprof.attribution.levels import preparation
from nsysprof.attribution.projection import DEVICE_BITS
from nsysprof.core.arrays import AnyInts, Floats, Index, Mask
from nsysprof.core.columns import ColumnTable
from nsysprof.core.intervals import cover_before
from nsysprof.trace.trace import PUSH_POP, START_END

if TYPE_CHECKING:
    from nsysprof.analyze.breakdown import Breakdown

# Of ranges that hold one another with nothing beside, so many are shown at either end.
_CHAIN_ENDS = 2
# A range with more than this share of idle waits for its launches, or for the host.
LAUNCH_BOUND_IDLE = 0.5


# What rows can be sorted by, and the column that says it.
SORTS = {"busy": "busy_ns", "span": "span_ns", "cpu": "cpu_ns", "instances": "instances", "launches": "launches"}


def top_rows(
    breakdown: Breakdown, count: int, by: str = "busy_ns", *, sort: str | None = None, depth: int | None = None
) -> Index:
    """Choose the rows of ``merged`` with the most busy time; also return their outer ranges, in tree order.

    ``by``: another column to choose by, or `time_ns` (the time on host or GPU, whichever is longer). ``sort`` orders
    rows with the same parent by a key of `SORTS`, or by `time` or `name`. ``depth`` limits the levels of the tree.

    If a range has all the work of its outer range (``iter*`` in ``RUN::math::S4096``), both are shown, but the two
    count as one range. A long chain of ranges with the same work shows only its two ends. By default, rows with the
    same parent are in order of first appearance. Rows of warm-up and checks (`preparing`) come last.
    """
    merged = breakdown.columns("merged")
    parent, work = merged["parent"], merged["sum_ns"]
    by = SORTS.get(sort or "", "time_ns" if sort else by)
    # the time on the host, or from first to last GPU op, whichever is longer
    times = ("cpu_ns", "span_ns", "busy_ns") if by == "time_ns" else (by,)
    most = np.maximum.reduce([merged[name] for name in times])
    alike = (parent >= 0) & (work > 0) & (work == work[parent])
    shown = np.zeros(len(merged), bool)
    order = np.lexsort((-merged["busy_ns"], -most, preparing(merged)))
    if depth is not None:
        order = order[merged["depth"][order] < depth]
    for row in order[~alike[order]][:count].tolist():
        while row >= 0 and not shown[row]:
            shown[row] = True
            row = int(parent[row])
    for row in np.flatnonzero(alike).tolist():  # parents stand before children
        shown[row] |= shown[parent[row]] and (depth is None or merged["depth"][row] < depth)
    rows = np.flatnonzero(shown & ~_inside_chain(parent, alike))
    if sort == "name":
        rows = rows[np.argsort(merged.take(rows).texts("name").tolist(), kind="stable")]
    elif sort or by not in ("busy_ns", "time_ns"):
        rows = rows[np.lexsort((-most[rows], preparing(merged)[rows] if sort == "time" else most[rows] * 0))]
    return tree_order(parent, rows)


def annotated(merged: ColumnTable) -> bool:
    """Return whether GPU work is annotated: at least one range of ``merged`` with GPU work was opened by the program,
    and is not a call or a detected iteration.
    """
    kind = merged.texts("kind").codes
    return bool(((merged["launches"] > 0) & ((kind == PUSH_POP) | (kind == START_END))).any())


def preparing(merged: ColumnTable) -> Mask:
    """Mark rows of ``merged`` in warm-up and checks."""
    return preparation(merged["parent"].astype(np.int32), merged.texts("name").tolist())


def _inside_chain(parent: AnyInts, alike: Mask) -> Mask:
    """Mark rows at least `_CHAIN_ENDS` rows from either end of a chain of rows that are ``alike`` their parents."""
    before, behind = np.zeros(len(parent), np.int64), np.zeros(len(parent), np.int64)
    chain = np.flatnonzero(alike).tolist()
    for row in chain:
        before[row] = before[parent[row]] + 1
    for row in reversed(chain):
        behind[parent[row]] = max(behind[parent[row]], behind[row] + 1)
    return (before >= _CHAIN_ENDS) & (behind >= _CHAIN_ENDS)


def tree_order(parent: AnyInts, rows: Index) -> Index:
    """Sort rows so that each row follows its nearest outer range among the rows."""
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


def idle_shares(breakdown: Breakdown, rows: Sequence[int]) -> Floats:
    """Find the idle share of the span for rows of ``merged`` (median over instances; NaN if no instance has a span).

    Idle means that the GPU runs no op, not even of other ranges. The span lasts from the first op of the instance to
    the end of its last op, on each GPU that the instance uses.
    """
    lines = breakdown.attribution.trace.gpu_busy
    of_rows = [breakdown.instances_of(row) for row in rows]
    if not of_rows:
        return np.empty(0)
    first, last, devices = (
        np.concatenate([getattr(part.inclusive, name)[instances] for part, instances in of_rows])
        for name in ("first_op_ns", "last_op_ns", "devices")
    )
    span, busy = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    for gpu, (start, end) in lines.items():
        if gpu >= DEVICE_BITS and len(lines) > DEVICE_BITS + 1:
            continue  # these GPUs share a bit, so nobody can tell which of them a range uses
        uses = np.flatnonzero((devices >> gpu) & 1)
        span[uses] += last[uses] - first[uses]
        busy[uses] += cover_before(start, end, last[uses]) - cover_before(start, end, first[uses])
    share = np.where(span > 0, 1 - busy / np.maximum(span, 1), np.nan)
    bounds = np.cumsum([len(instances) for _, instances in of_rows])[:-1]
    known = (part[~np.isnan(part)] for part in np.split(share, bounds))
    return np.array([np.median(part) if len(part) else np.nan for part in known])


def launch_bound(breakdown: Breakdown, rows: Index, idle: Floats) -> Mask:
    """Mark the launch-bound rows of ``merged``, given their `idle_shares`."""
    merged = breakdown.columns("merged").take(rows)
    waits: Mask = idle > LAUNCH_BOUND_IDLE
    if breakdown.attribution.replay is not None:  # what a graph replays waits for no launch of its own
        waits &= merged["captured_nodes"] == 0
    return waits & (merged["launches"] > merged["instances"])
