"""What runs inside chosen merged ranges: ops by name, and the attention backend that they show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.cover import cover
from nsysprof.kernels.backends import judge_backends
from nsysprof.kernels.classify import Rules
from nsysprof.trace.trace import RangeName


@dataclass(frozen=True)
class OpsInside:
    """What lies inside rows of ``breakdown.merged``, by op name, sorted by row and name; int64 columns.

    ``row``; ``name``, a code of `Trace.op_names`; ``ops``, how many; ``sum_ns``.
    """

    row: NDArray[np.int64]
    name: NDArray[np.int64]
    ops: NDArray[np.int64]
    sum_ns: NDArray[np.int64]

    def of(self, row: int) -> OpsInside:
        """Those of one row."""
        first, last = np.searchsorted(self.row, [row, row + 1]).tolist()
        return self.take(slice(first, last))

    def take(self, which: slice | NDArray[Any]) -> OpsInside:
        """Some of them, in the order asked for."""
        return OpsInside(self.row[which], self.name[which], self.ops[which], self.sum_ns[which])


def ops_inside(breakdown: Breakdown, rows: Sequence[int]) -> OpsInside:
    """The `OpsInside` some rows of ``breakdown.merged``. An op counts once per row, in however many instances it is."""
    attribution = breakdown.attribution
    ops = attribution.trace.ops
    instances, row = _instances(breakdown, rows)
    names = max(len(attribution.trace.op_names), 1)
    none = np.empty(0, np.int64)
    found = [(none, none, none)]
    for path, op in cover(attribution, instances, row, len(breakdown.merged)).ops(attribution.trace):
        key = path.astype(np.int64) * names + ops.name[op]
        found.append(_added_up(key, np.ones(len(op), np.int64), ops.end[op] - ops.start[op]))
    key, count, total = _added_up(*(np.concatenate(column) for column in zip(*found, strict=True)))
    return OpsInside(key // names, key % names, count, total)


def _instances(breakdown: Breakdown, rows: Iterable[int]) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """The range instances of some rows of ``merged``, and the row of every instance of the report."""
    [(part, of_path)] = breakdown.parts
    row = of_path[breakdown.merged_of].astype(np.int32)
    wanted = np.zeros(len(breakdown.merged) + 1, bool)
    wanted[list(rows)] = True
    return np.flatnonzero(part.keep & wanted[row]), row


def _added_up(
    key: NDArray[np.int64], count: NDArray[np.int64], length: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The distinct keys, sorted, with their counts and lengths added up."""
    distinct, group = np.unique(key, return_inverse=True)
    counts, total = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    np.add.at(counts, group.reshape(-1), count)
    np.add.at(total, group.reshape(-1), length)
    return distinct, counts, total


def backends_seen(breakdown: Breakdown, rows: Sequence[int], rules: Rules) -> pd.DataFrame:
    """``row, observed, instances, evidence``: the attention backend in each of some rows of ``breakdown.merged``.

    Several frame rows for one row where its instances ran different backends. What is observed, and the evidence, are
    as in a `BackendVerdict`, which knows of ``RUN::`` ranges only: so these ranges are shown to it under such names.
    """
    trace = breakdown.attribution.trace
    parent = breakdown.merged["parent"].tolist()
    names = [RangeName(f"RUN::any::{row}", "") for row in range(len(breakdown.merged))]
    found = []
    for level in _levels(rows, parent):
        instances, row = _instances(breakdown, level)
        name = np.full(len(row), len(names), np.int32)
        name[instances] = row[instances]
        renamed = replace(
            trace,
            ranges=replace(trace.ranges, name=name),
            range_names=[*names, RangeName("", "")],
        )
        verdict = judge_backends(replace(breakdown.attribution, trace=renamed), rules)
        numbers = [int(text.rpartition("::")[2]) for text in verdict.ranges["range"]]
        found.append(verdict.ranges[["observed", "instances", "evidence"]].assign(row=numbers))
    columns = ["row", "observed", "instances", "evidence"]
    return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)


def _levels(rows: Sequence[int], parent: Sequence[int]) -> list[list[int]]:
    """The rows in groups of which none holds another: a range of that name inside one is part of it."""
    level: dict[int, int] = {}
    groups: list[list[int]] = []
    for row in sorted(set(rows)):  # parents stand before children
        up = parent[row]
        while up >= 0 and up not in level:
            up = parent[up]
        level[row] = level[up] + 1 if up >= 0 else 0
        if level[row] == len(groups):
            groups.append([])
        groups[level[row]].append(row)
    return groups
