"""Tables of ranges and kernels as pandas frames, with the columns of the CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.analyze.kernel_table import KernelTable
from nsysprof.analyze.range_table import RangeTable
from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.kernels.classify import Kinds
from nsysprof.trace.tables import Tables, pid_of, tid_of

KIND_NAMES = ("push_pop", "start_end")


def range_frame(
    table: RangeTable,
    tables: Tables,
    path_texts: list[str],
    merged_texts: list[str],
    merged_of: NDArray[np.int32],
) -> pd.DataFrame:
    """A row per path that has instances: the columns of ``ranges.csv``."""
    rows = np.flatnonzero(table.instances > 0)
    columns = _columns(table, rows)
    domains = _texts(table.paths.name[rows], [name.domain for name in tables.range_names])
    head = {
        "path": _texts(rows, path_texts),
        "merged_path": _texts(merged_of[rows], merged_texts),
        "depth": columns.pop("depth"),
        "kind": columns.pop("kind"),
        "domain": domains,
    }
    return _frame({**head, **columns})


def merged_frame(table: RangeTable, merged_texts: list[str], row: NDArray[np.int64]) -> pd.DataFrame:
    """A row per merged path that has instances; ``row`` is each path's row, and its last entry -1."""
    rows = np.flatnonzero(table.instances > 0)
    head = {
        "merged_path": _texts(rows, merged_texts),
        "name": _texts(table.paths.name[rows], table.paths.names),
        "parent": row[table.paths.parent[rows]],
    }
    return _frame({**head, **_columns(table, rows)})


def kernel_frame(
    kernels: KernelTable, path_column: str, path: NDArray[Any], tables: Tables, kinds: Kinds
) -> pd.DataFrame:
    """A row per (path, kernel): the columns of ``kernels.csv`` with ``path`` under the given column name."""
    return _frame(
        {
            path_column: path,
            "kernel": _texts(kernels.name, tables.op_names),
            "family": _texts(kernels.name, kinds.family),
            "math_unit": _texts(kernels.name, kinds.math_unit),
            "count": kernels.count,
            "sum_ns": kernels.sum_ns,
            "median_ns": kernels.median_ns,
            "min_ns": kernels.min_ns,
            "max_ns": kernels.max_ns,
            "cause": _texts(kernels.name, kinds.cause),
        }
    )


def instance_frame(
    attribution: Attribution,
    paths: Paths,
    rows: NDArray[np.intp],
    numbers: NDArray[np.int64],
    path_texts: list[str],
    merged_texts: list[str],
) -> pd.DataFrame:
    """The columns of ``instances.csv`` for some range instances, with their `instance_numbers`."""
    tables, inside = attribution.tables, attribution.inclusive
    ranges, path = tables.ranges, paths.of[rows]
    thread = tables.threads[ranges.thread[rows]]
    return _frame(
        {
            "path": _texts(path, path_texts),
            "merged_path": _texts(path, merged_texts),
            "instance": numbers,
            "pid": pid_of(thread),
            "tid": tid_of(thread),
            "kind": np.array(KIND_NAMES, object)[ranges.kind[rows]],
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


def _columns(table: RangeTable, rows: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    """The columns that rows per path and rows per merged path share."""
    columns: dict[str, NDArray[Any]] = {
        "depth": table.paths.depth,
        "kind": np.array(KIND_NAMES, object)[table.paths.kind],
        "instances": table.instances,
        "launches": table.launches,
        "kernels": table.kernels,
        "memops": table.memops,
        "graph_launches": table.graph_launches,
        "cpu_ns": table.cpu_ns,
        "span_ns": table.span_ns,
        "busy_ns": table.busy_ns,
        "sum_ns": table.sum_ns,
        "exclusive_sum_ns": table.exclusive_sum_ns,
        "followed_sum_ns": table.followed_sum_ns,
        "busy_median_ns": table.busy.median,
        "busy_iqr_ns": table.busy.iqr,
        "span_median_ns": table.span.median,
        "span_iqr_ns": table.span.iqr,
        "processes": table.processes,
        "devices": table.devices,
        "cpu_median_ns": table.cpu.median,
        "cpu_iqr_ns": table.cpu.iqr,
        "unclosed": table.unclosed,
        "span_min_ns": table.span.low,
        "span_max_ns": table.span.high,
        "busy_min_ns": table.busy.low,
        "busy_max_ns": table.busy.high,
    }
    return {name: values[rows] for name, values in columns.items()}


def _frame(columns: dict[str, NDArray[Any]]) -> pd.DataFrame:
    """A frame of the arrays as they are: text stays Python strings, shared between rows, and is not converted."""
    return pd.DataFrame(
        {name: pd.Series(values, dtype=values.dtype, copy=False) for name, values in columns.items()},
        copy=False,
    )


def _texts(codes: NDArray[np.integer], texts: Sequence[str]) -> NDArray[Any]:
    """The text of each code; the strings are shared."""
    found: NDArray[Any] = np.array([*texts, None], object)[:-1][codes]
    return found
