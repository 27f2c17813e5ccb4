"""Copies and memsets: how many bytes went where, and how fast."""

from __future__ import annotations

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.text import plural
from nsysprof.core.units import format_bytes, format_ns
from nsysprof.results.table import Column, table
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.trace import MEMCPY, MEMSET

COPIES = table(
    "copies.csv",
    "a row per kind of copy or memset",
    {
        "operation": "what was done: the direction of a copy, or a memset",
        "count": "how many ran",
        "sum_ns": Column("sum_ns", "their added durations", head="sum"),
        "size_bytes": Column("size_bytes", "the bytes that they moved", head="size"),
        "bytes_per_s": Column(
            "bytes_per_s", "those bytes in that time; empty where no time passed", head="rate"
        ),
    },
)


def copies(attribution: Attribution, asked: Asked) -> Answer | None:  # noqa: ARG001
    """Add up copies and memsets by what was done, the longest first; None where there are none."""
    trace = attribution.trace
    ops = np.flatnonzero((trace.ops.kind == MEMCPY) | (trace.ops.kind == MEMSET))
    if not len(ops):
        return None
    names, code = np.unique(trace.ops.name[ops], return_inverse=True)
    count, sum_ns, size = np.bincount(code), *(np.zeros(len(names), np.int64) for _ in range(2))
    np.add.at(sum_ns, code, trace.ops.end[ops] - trace.ops.start[ops])
    np.add.at(size, code, np.maximum(trace.report.reader.op_details(trace).size[ops], 0))
    rate = np.where(sum_ns > 0, size * 1e9 / np.maximum(sum_ns, 1), np.nan)
    order = np.lexsort((trace.op_name_rank[names], -sum_ns))
    rows = ColumnTable(
        {
            "operation": Texts(names[order], trace.op_names),
            "count": count[order],
            "sum_ns": sum_ns[order],
            "size_bytes": size[order],
            "bytes_per_s": rate[order],
        }
    )
    finding = (
        f"Copies: {plural(len(ops), 'memory operation')} of {format_bytes(int(size.sum()))}"
        f" in {format_ns(int(sum_ns.sum()))}"
    )
    return Answer({COPIES.file: rows}, finding, COPIES.columns, rows)


SUMMARY = Summary("copies", "Copies", (COPIES,), copies)
