"""A report as four tables whose keys join: ops, launches, ranges (by path) and instances (of ranges).

An op's ``launch`` is a row of launches, its ``owner`` a row of instances, whose ``path_id`` is a row of ranges; ids
count from 0. `nsysprof.export.columns` says what every column holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.tables import KIND_NAMES
from nsysprof.attribution.attribute import FATES
from nsysprof.attribution.split import device_labels
from nsysprof.attribution.warm_up import instance_numbers
from nsysprof.export.columns import OP_KINDS
from nsysprof.export.source import ExportSource
from nsysprof.trace.details import sides
from nsysprof.trace.tables import pid_of, tid_of


@dataclass(frozen=True)
class Column:
    """Values of one column: whole numbers or bools, or codes of ``texts``. What is ``absent`` has no value.

    Of codes those below 0 have none; ``absent`` is then None.
    """

    values: NDArray[Any]
    texts: Sequence[str] | None = None
    absent: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class ExportTable:
    """A table that is made some rows at a time: ``columns(slice)`` in the order of `COLUMNS`, equal for all slices."""

    rows: int
    columns: Callable[[slice], dict[str, Column]]


def export_tables(source: ExportSource) -> dict[str, ExportTable]:
    """The tables of a report by name. Nothing is computed before rows are asked for, but for sums over launches."""
    tables = source.tables
    return {
        "ops": ExportTable(len(tables.ops), _ops(source)),
        "launches": ExportTable(len(tables.launches), _launches(source)),
        "ranges": ExportTable(len(source.breakdown.ranges), _ranges(source)),
        "instances": ExportTable(len(tables.ranges), _instances(source)),
    }


def _optional(values: NDArray[Any], present: NDArray[np.bool_]) -> Column:
    return Column(values, absent=None if present.all() else ~present)


def _id(values: NDArray[np.integer]) -> Column:
    """Row numbers, of which -1 is none."""
    return _optional(values, values >= 0)


def _paths(source: ExportSource, path: NDArray[np.int32]) -> dict[str, Column]:
    breakdown = source.breakdown
    return {"path": Column(path, breakdown.path_texts), "merged_path": Column(path, breakdown.merged_texts)}


def _ops(source: ExportSource) -> Callable[[slice], dict[str, Column]]:
    breakdown, tables, details = source.breakdown, source.tables, source.details
    attribution, ops = breakdown.attribution, tables.ops
    labels = device_labels(tables)
    gpus = list(dict.fromkeys(labels.values()))
    gpu_of_device = np.array([gpus.index(labels[number]) for number in tables.gpu_numbers], np.int32)
    cuda_id = np.array([device.cuda_id for device in tables.devices], np.int64)
    stream_id = np.array([-1 if stream.id is None else stream.id for stream in tables.streams], np.int64)
    pids = pid_of(tables.processes)

    def columns(rows: slice) -> dict[str, Column]:
        launch, stream, name = ops.launch[rows], ops.stream[rows], ops.name[rows]
        device = tables.stream_device[stream]
        start, end, correlation = ops.start[rows], ops.end[rows], details.correlation[rows]
        grid, block = details.grid[rows], details.block[rows]
        fate = attribution.fate_of(rows)
        shape = {
            f"{what}_{axis}": _optional(side, packed > 0)
            for what, packed in (("grid", grid), ("block", block))
            for axis, side in zip("xyz", sides(packed), strict=True)
        }
        return {
            "op": Column(np.arange(len(ops))[rows]),
            "kind": Column(ops.kind[rows], OP_KINDS),
            "name": Column(name, tables.op_names),
            "family": Column(name, breakdown.kinds.family),
            "math_unit": Column(name, breakdown.kinds.math_unit),
            "start_ns": Column(start),
            "end_ns": Column(end),
            "duration_ns": Column(end - start),
            "pid": Column(pids[tables.stream_process[stream]]),
            "gpu": Column(gpu_of_device[device], gpus),
            "device": Column(cuda_id[device]),
            "stream": _id(stream_id[stream]),
            "launch": _id(launch),
            "correlation": _optional(correlation, correlation != 0),
            "fate": Column(fate, FATES),
            "owner": _id(np.append(attribution.owner, np.int32(-1))[launch]),
            **_paths(source, np.append(source.path, np.int32(-1))[launch]),
            "from_graph": Column(ops.from_graph[rows]),
            **shape,
            "registers": _id(details.registers[rows]),
            "static_shared_bytes": _id(details.static_shared[rows]),
            "dynamic_shared_bytes": _id(details.dynamic_shared[rows]),
            "size_bytes": _id(details.size[rows]),
            "cause": Column(name, breakdown.kinds.cause),
        }

    return columns


def _launches(source: ExportSource) -> Callable[[slice], dict[str, Column]]:
    attribution, tables, calls = source.breakdown.attribution, source.tables, source.calls
    launches, ops = tables.launches, tables.ops
    known = np.flatnonzero(ops.launch >= 0)
    launch = ops.launch[known]
    count = np.bincount(launch, minlength=len(launches))
    total = np.zeros(len(launches), np.int64)
    first = np.full(len(launches), np.iinfo(np.int64).max)
    last = np.full(len(launches), np.iinfo(np.int64).min)
    np.add.at(total, launch, (ops.end - ops.start)[known])
    np.minimum.at(first, launch, ops.start[known])
    np.maximum.at(last, launch, ops.end[known])
    correlation = np.zeros(len(launches), np.int64)
    correlation[launch] = source.details.correlation[known]

    def columns(rows: slice) -> dict[str, Column]:
        thread = tables.threads[launches.thread[rows]]
        start, end, call = launches.start[rows], launches.end[rows], source.call[rows]
        return {
            "launch": Column(np.arange(len(launches))[rows]),
            "pid": Column(pid_of(thread)),
            "tid": Column(tid_of(thread)),
            "call": Column(np.append(calls.name, np.int32(-1))[call], calls.names),
            "correlation": Column(correlation[rows]),
            "start_ns": Column(start),
            "end_ns": Column(end),
            "cpu_ns": Column(end - start),
            "ops": Column(count[rows]),
            "first_op_ns": Column(first[rows]),
            "last_op_ns": Column(last[rows]),
            "sum_ns": Column(total[rows]),
            "fate": Column(attribution.fate[rows], FATES),
            "owner": _id(attribution.owner[rows]),
            **_paths(source, source.path[rows]),
        }

    return columns


def _ranges(source: ExportSource) -> Callable[[slice], dict[str, Column]]:
    breakdown = source.breakdown
    frame, paths = breakdown.ranges, breakdown.paths

    def columns(rows: slice) -> dict[str, Column]:
        part = frame.iloc[rows]
        return {
            "path_id": Column(np.arange(len(frame))[rows]),
            "parent": _id(paths.parent[rows]),
            "name": Column(paths.name[rows], paths.names),
            **{name: _column(part[name].to_numpy()) for name in frame.columns},
        }

    return columns


def _column(values: NDArray[Any]) -> Column:
    """A column of a frame."""
    if values.dtype.kind != "O":
        return Column(values)
    codes: dict[str, int] = {}
    coded = np.array([codes.setdefault(text, len(codes)) for text in values.tolist()], np.int32)
    return Column(coded, list(codes))


def _instances(source: ExportSource) -> Callable[[slice], dict[str, Column]]:
    breakdown, tables = source.breakdown, source.tables
    attribution, ranges, path = breakdown.attribution, tables.ranges, breakdown.paths.of
    inside = attribution.inclusive
    number = instance_numbers(path, ranges.start)
    domains = list(dict.fromkeys(name.domain for name in tables.range_names))
    domain = np.array([domains.index(name.domain) for name in tables.range_names], np.int32)

    def columns(rows: slice) -> dict[str, Column]:
        thread = tables.threads[ranges.thread[rows]]
        start, end = ranges.start[rows], ranges.end[rows]
        some = inside.launches[rows] > 0
        return {
            "range": Column(np.arange(len(ranges))[rows]),
            "parent": _id(attribution.parent[rows]),
            "path_id": Column(path[rows]),
            **_paths(source, path[rows]),
            "domain": Column(domain[ranges.name[rows]], domains),
            "instance": Column(number[rows]),
            "pid": Column(pid_of(thread)),
            "tid": Column(tid_of(thread)),
            "kind": Column(ranges.kind[rows], KIND_NAMES),
            "start_ns": Column(start),
            "end_ns": Column(end),
            "cpu_ns": Column(end - start),
            "unclosed": Column(ranges.unclosed[rows]),
            **{
                name: Column(getattr(inside, name)[rows])
                for name in ("launches", "kernels", "memops", "graph_launches")
            },
            "first_op_ns": _optional(inside.first_op_ns[rows], some),
            "last_op_ns": _optional(inside.last_op_ns[rows], some),
            "span_ns": Column(inside.span_ns[rows]),
            "busy_ns": Column(inside.busy_ns[rows]),
            "sum_ns": Column(inside.sum_ns[rows]),
            "exclusive_sum_ns": Column(attribution.exclusive_sum_ns[rows]),
            "followed_sum_ns": Column(inside.followed_sum_ns[rows]),
        }

    return columns
