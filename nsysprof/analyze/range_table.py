"""Sums and distributions per range path: one row for all instances of a path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.attribution.range_work import added_up, cover, overlapping
from nsysprof.statistics.distributions import Quartiles, grouped_quartiles
from nsysprof.trace.trace import GRAPH, KERNEL, MEMCPY, MEMSET, START_END


@dataclass(frozen=True)
class RangeTable:
    """A row per path of ``paths``, numpy columns.

    Counts: ``instances, launches, kernels, memops, graph_launches, unclosed, processes, devices``. Sums over
    instances in ns: ``cpu_ns, span_ns, busy_ns, sum_ns, exclusive_sum_ns, followed_sum_ns``. Distributions over
    instances: ``busy``, ``span``, ``cpu``. All but the exclusive sum are inclusive. Where start/end ranges of one path
    overlap, launches, ops and their sum count once; CPU, span and busy time stay sums over instances.
    """

    paths: Paths
    instances: NDArray[np.int64]
    launches: NDArray[np.int64]
    kernels: NDArray[np.int64]
    memops: NDArray[np.int64]
    graph_launches: NDArray[np.int64]
    unclosed: NDArray[np.int64]
    processes: NDArray[np.int64]
    devices: NDArray[np.int64]
    cpu_ns: NDArray[np.int64]
    span_ns: NDArray[np.int64]
    busy_ns: NDArray[np.int64]
    sum_ns: NDArray[np.int64]
    exclusive_sum_ns: NDArray[np.int64]
    followed_sum_ns: NDArray[np.int64]
    busy: Quartiles
    span: Quartiles
    cpu: Quartiles

    def __len__(self) -> int:
        return len(self.paths)


def range_table(
    attribution: Attribution, paths: Paths, of: NDArray[np.int32], keep: NDArray[np.bool_] | None = None
) -> RangeTable:
    """The `RangeTable` of ``paths``, where ``of`` gives each range instance's path.

    ``keep`` leaves out instances (False), for instance warm-up; a path that keeps none has zeros.
    """
    ranges, inside = attribution.trace.ranges, attribution.inclusive
    rows = None if keep is None or keep.all() else np.flatnonzero(keep)
    code = of if rows is None else of[rows]
    count = len(paths)

    def pick(values: NDArray[Any]) -> NDArray[Any]:
        return values if rows is None else values[rows]

    def total(values: NDArray[Any]) -> NDArray[np.int64]:
        out = np.zeros(count, np.int64)
        np.add.at(out, code, pick(values).astype(np.int64, copy=False))
        return out

    cpu, span = ranges.end - ranges.start, inside.span_ns
    found = RangeTable(
        paths=paths,
        instances=np.bincount(code, minlength=count),
        launches=total(inside.launches),
        kernels=total(inside.kernels),
        memops=total(inside.memops),
        graph_launches=total(inside.graph_launches),
        unclosed=total(ranges.unclosed),
        processes=_distinct(code, pick(attribution.trace.thread_process[ranges.thread]), count),
        devices=_bits(code, pick(inside.devices), count),
        cpu_ns=total(cpu),
        span_ns=total(span),
        busy_ns=total(inside.busy_ns),
        sum_ns=total(inside.sum_ns),
        exclusive_sum_ns=total(attribution.exclusive_sum_ns),
        followed_sum_ns=total(inside.followed_sum_ns),
        busy=grouped_quartiles(code, pick(inside.busy_ns), count),
        span=grouped_quartiles(code, pick(span), count),
        cpu=grouped_quartiles(code, pick(cpu), count),
    )
    _count_once(found, attribution, of, keep)
    return found


def _count_once(
    table: RangeTable, attribution: Attribution, of: NDArray[np.int32], keep: NDArray[np.bool_] | None
) -> None:
    """Windows of one path that overlap each other hold some work together: count it once in the path's totals."""
    ops = attribution.trace.ops
    windows = attribution.trace.ranges.kind == START_END
    rows = np.flatnonzero(windows if keep is None else windows & keep)
    rows = rows[overlapping(attribution, of, rows)]
    if len(rows) == 0:
        return
    paths = np.flatnonzero(np.bincount(of[rows]))
    inside = cover(attribution, rows, of, len(table))
    copies = (ops.kind == MEMCPY) | (ops.kind == MEMSET)
    graphs = added_up(attribution, (ops.kind == GRAPH) | ops.from_graph) > 0
    for total, per_launch in (
        (table.launches, np.ones(len(graphs), np.int64)),
        (table.kernels, added_up(attribution, ops.kind == KERNEL)),
        (table.memops, added_up(attribution, copies)),
        (table.graph_launches, graphs),
        (table.sum_ns, added_up(attribution, ops.end - ops.start)),
    ):
        total[paths] = inside.sums(per_launch)[paths]


def _distinct(code: NDArray[np.int32], values: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """How many different values each path has; the values are few, and rows with one value stand together."""
    out = np.zeros(count, np.int64)
    edges = np.flatnonzero(np.append(True, values[1:] != values[:-1])).tolist() if len(values) else []
    seen = np.zeros(count, bool)
    for first, last in zip(edges, [*edges, len(values)][1:], strict=True):
        seen[:] = False
        seen[code[first:last]] = True
        out += seen
    return out


def _bits(code: NDArray[np.int32], masks: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """How many bits each path's masks have together."""
    together = np.zeros(count, np.int64)
    np.bitwise_or.at(together, code, masks)
    return (
        np.bitwise_count(together).astype(np.int64) if hasattr(np, "bitwise_count") else _count_bits(together)
    )


def _count_bits(masks: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array([int(mask).bit_count() for mask in masks.tolist()], np.int64)
