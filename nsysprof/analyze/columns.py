"""The tables of an answer as named columns: those of the CSV files, in their order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.kernel_table import KernelTable
from nsysprof.analyze.range_table import RangeTable
from nsysprof.analyze.tables import RANGES
from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.core.columns import Column, ColumnTable, Texts
from nsysprof.kernels.classify import Kinds
from nsysprof.trace.trace import Trace, pid_of, tid_of

KIND_NAMES = ("push_pop", "start_end")
_STATISTICS = {"median": "median", "iqr": "iqr", "min": "low", "max": "high"}  # of `Quartiles`


def range_columns(
    table: RangeTable,
    trace: Trace,
    path_texts: list[str],
    merged_texts: list[str],
    merged_of: NDArray[np.int32],
) -> ColumnTable:
    """A row per path that has instances: the columns of ``ranges.csv``."""
    rows = np.flatnonzero(table.instances > 0)
    columns = _columns(table, rows)
    head: dict[str, Column] = {
        "path": Texts(rows, path_texts),
        "merged_path": Texts(merged_of[rows], merged_texts),
        "depth": columns.pop("depth"),
        "kind": columns.pop("kind"),
        "domain": Texts(table.paths.name[rows], [name.domain for name in trace.range_names]),
    }
    return ColumnTable({**head, **columns})


def merged_columns(table: RangeTable, merged_texts: list[str], row: NDArray[np.int64]) -> ColumnTable:
    """A row per merged path that has instances; ``row`` is each path's row, and its last entry -1."""
    rows = np.flatnonzero(table.instances > 0)
    head: dict[str, Column] = {
        "merged_path": Texts(rows, merged_texts),
        "name": Texts(table.paths.name[rows], table.paths.names),
        "parent": row[table.paths.parent[rows]],
    }
    return ColumnTable({**head, **_columns(table, rows)})


def kernel_columns(
    kernels: KernelTable, path_column: str, path: Column, trace: Trace, kinds: Kinds
) -> ColumnTable:
    """A row per (path, kernel): the columns of ``kernels.csv`` with ``path`` under the given column name."""
    return ColumnTable(
        {
            path_column: path,
            "kernel": Texts(kernels.name, trace.op_names),
            "family": Texts(kernels.name, kinds.family),
            "math_unit": Texts(kernels.name, kinds.math_unit),
            "count": kernels.count,
            "sum_ns": kernels.sum_ns,
            "median_ns": kernels.median_ns,
            "min_ns": kernels.min_ns,
            "max_ns": kernels.max_ns,
            "cause": Texts(kernels.name, kinds.cause),
        }
    )


def instance_columns(
    attribution: Attribution,
    paths: Paths,
    rows: NDArray[np.intp],
    numbers: NDArray[np.int64],
    path_texts: list[str],
    merged_texts: list[str],
) -> ColumnTable:
    """The columns of ``instances.csv`` for some range instances, with their `instance_numbers`."""
    trace, inside = attribution.trace, attribution.inclusive
    ranges, path = trace.ranges, paths.of[rows]
    thread = trace.threads[ranges.thread[rows]]
    return ColumnTable(
        {
            "path": Texts(path, path_texts),
            "merged_path": Texts(path, merged_texts),
            "instance": numbers,
            "pid": pid_of(thread),
            "tid": tid_of(thread),
            "kind": Texts(ranges.kind[rows], KIND_NAMES),
            "start_ns": ranges.start[rows],
            "end_ns": ranges.end[rows],
            "unclosed": ranges.unclosed[rows].astype(np.int8),
            "launches": inside.launches[rows],
            "kernels": inside.kernels[rows],
            "memops": inside.memops[rows],
            "first_op_ns": inside.first_op_ns[rows],
            "last_op_ns": inside.last_op_ns[rows],
            "span_ns": inside.span_ns[rows],
            "busy_ns": inside.busy_ns[rows],
            "sum_ns": inside.sum_ns[rows],
        }
    )


def _columns(table: RangeTable, rows: NDArray[np.intp]) -> dict[str, Column]:
    """The columns of `RANGES` that rows per path and rows per merged path share."""
    columns: dict[str, Column] = {"depth": table.paths.depth, "kind": Texts(table.paths.kind, KIND_NAMES)}
    for name in RANGES.names[RANGES.names.index("instances") :]:
        if hasattr(table, name):
            columns[name] = getattr(table, name)
        else:
            what, statistic, _ = name.split("_")  # such as busy_median_ns
            columns[name] = getattr(getattr(table, what), _STATISTICS[statistic])
    return {name: values[rows] for name, values in columns.items()}
