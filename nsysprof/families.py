"""What lies inside each merged path, by kernel family."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.attribution import Attribution
from nsysprof.kernel_table import KernelTable
from nsysprof.kernels import FAMILIES, Kinds
from nsysprof.paths import Paths
from nsysprof.tables import KERNEL, START_END
from nsysprof.windows import launches_inside

# Start/end ranges beyond this many, by time spent, get no families: each asks for a pass over all launches.
_MOST_WINDOWS = 200


def family_table(
    owned: KernelTable,
    merged: Paths,
    merged_of: NDArray[np.int32],
    keep: NDArray[np.bool_],
    attribution: Attribution,
    kinds: Kinds,
) -> pd.DataFrame:
    """``path, family, ops, kernels, sum_ns`` inside each merged path that has any.

    ``owned`` is what each merged path owns itself: what lies inside a push/pop range is what it owns and what the
    ranges in it own. A start/end range is a window: all launches inside count, once each.
    """
    family = np.array([FAMILIES.index(name) for name in kinds.family], np.int64)
    tables = attribution.tables
    is_kernel = np.zeros(len(family), bool)
    is_kernel[tables.ops.name[tables.ops.kind == KERNEL]] = True
    shape = (len(merged) + 1, len(FAMILIES))  # the last row takes what no range owns
    ops, kernels, total = (np.zeros(shape, np.int64) for _ in range(3))
    where = (owned.path, family[owned.name])
    np.add.at(ops, where, owned.count)
    np.add.at(kernels, where, np.where(is_kernel[owned.name], owned.count, 0))
    np.add.at(total, where, owned.sum_ns)
    by_depth = np.argsort(merged.depth, kind="stable")
    bounds = np.searchsorted(merged.depth[by_depth], np.arange(1, int(merged.depth.max(initial=0)) + 2))
    for last, first in zip(bounds[::-1], bounds[-2::-1], strict=False):  # the deepest first
        level = by_depth[first:last]
        for sums in (ops, kernels, total):
            np.add.at(sums, merged.parent[level], sums[level])
    windows = np.flatnonzero(merged.kind == START_END)
    windows = windows[np.argsort(-total[windows].sum(axis=1), kind="stable")]
    for path in windows[:_MOST_WINDOWS].tolist():
        inside = launches_inside(attribution, np.flatnonzero((merged_of == path) & keep))
        rows = np.flatnonzero(np.append(inside, False)[tables.ops.launch])
        of = family[tables.ops.name[rows]]
        for sums, values in (
            (ops, np.ones(len(rows), np.int64)),
            (kernels, (tables.ops.kind[rows] == KERNEL).astype(np.int64)),
            (total, tables.ops.end[rows] - tables.ops.start[rows]),
        ):
            sums[path] = 0
            np.add.at(sums[path], of, values)
    path, column = np.nonzero(ops[:-1])
    return pd.DataFrame(
        {
            "path": path,
            "family": np.array(FAMILIES, object)[column],
            "ops": ops[path, column],
            "kernels": kernels[path, column],
            "sum_ns": total[path, column],
        }
    )
