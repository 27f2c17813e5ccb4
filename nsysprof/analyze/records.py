"""A report as four joinable tables: ops, launches, ranges (by path) and instances (of ranges).

``launch`` of an op is a row number in launches, its ``owner`` is a row number in instances, and ``path_id`` of an
instance is a row number in ranges. Rows are numbered from 0. Columns are an interface: add columns, but never rename
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysprof.analyze import tables as analyze
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.record_source import RecordSource, record_source
from nsysprof.analyze.tables import InstanceRows, instance_columns
from nsysprof.attribution.attribute import NO_LAUNCH, OUTCOMES
from nsysprof.attribution.paths import instance_numbers
from nsysprof.attribution.split import device_labels
from nsysprof.core.arrays import AnyInts, Array, Ints32, Mask
from nsysprof.core.columns import Texts, sums
from nsysprof.results.table import Table, table
from nsysprof.trace.details import unpacked
from nsysprof.trace.trace import pid_of, tid_of

if TYPE_CHECKING:
    import pandas as pd

OP_KINDS = ("kernel", "memcpy", "memset", "graph", "migration")


def _same(declared: Table, *names: str) -> dict[str, str]:
    return {name: declared.about[name] for name in names}


_OWNER = {
    "owner": "id of the range instance that owns the GPU op; empty if no range owns it",
    "path": "path of the range that owns the GPU op",
    "merged_path": "merged path of the range that owns the GPU op",
}
OPS = table(
    "ops",
    "a row per GPU op",
    {
        "op": "id of the kernel, copy, memset, CUDA graph launch or migration, numbered in report order",
        "kind": f"{', '.join(OP_KINDS[:-1])} (a CUDA graph recorded as a whole) or {OP_KINDS[-1]} (of unified memory)",
        "name": "full name of the kernel, copy or memset",
        **_same(analyze.KERNELS, "family", "math_unit"),
        "start_ns": "start time on the GPU",
        "end_ns": "end time on the GPU",
        "duration_ns": "end - start",
        "pid": "process id",
        "gpu": "number of the GPU in the report",
        "device": "CUDA device id in the process",
        "stream": "CUDA stream id; empty if not recorded",
        "launch": "id of the launch of this GPU op; empty if not recorded",
        "correlation": "CUPTI correlation id, unique within a process; empty if not recorded",
        "fate": f"row of the ledger: {', '.join(OUTCOMES)}",
        **_OWNER,
        "from_graph": "whether the GPU op is a node of a CUDA graph",
        "grid_x grid_y grid_z": "number of blocks of a kernel in each dimension",
        "block_x block_y block_z": "number of threads of a block in each dimension",
        "registers": "number of registers per thread",
        "static_shared_bytes": "size of the static shared memory of a block",
        "dynamic_shared_bytes": "size of the dynamic shared memory of a block",
        "size_bytes": "number of bytes copied or set",
        **_same(analyze.KERNELS, "cause"),
        "captured_path": "path of the range that captured the GPU op into a CUDA graph; empty outside graphs",
    },
)
LAUNCHES = table(
    "launches",
    "a row per host CUDA call that launched GPU work",
    {
        "launch": "id of the CUDA call: launching calls are numbered in order of process, thread and start time",
        "pid": "process id",
        "tid": "thread id",
        "call": "name of the CUDA function",
        "correlation": "CUPTI correlation id, unique within a process",
        "start_ns": "start time on the host",
        "end_ns": "end time on the host",
        "cpu_ns": "end - start",
        "ops": "number of GPU ops that the call launched",
        "first_op_ns": "start time of the first GPU op that the call launched",
        "last_op_ns": "end time of the last GPU op that the call launched",
        "sum_ns": "total duration of the GPU ops that the call launched",
        "fate": f"row of the ledger: {', '.join(OUTCOMES[:NO_LAUNCH])}",
        **_OWNER,
    },
)
RANGES = table(
    "ranges",
    "a row per range path",
    {
        "path_id": "id of the range path: paths are numbered so that parents come before their children",
        "parent": "path id of the parent; empty for outermost ranges",
        "name": "last part of the path",
        **analyze.RANGES.about,
    },
)
INSTANCES = table(
    "instances",
    "a row per range instance",
    {
        "range": "id of the range instance: instances are numbered in order of process, thread and start time",
        "parent": "id of the innermost push/pop range that encloses this range on its thread; empty if none",
        "path_id": "path id of the range",
        **_same(analyze.INSTANCES, "path", "merged_path"),
        **_same(analyze.RANGES, "domain"),
        **_same(analyze.INSTANCES, "instance", "pid", "tid", "kind", "start_ns", "end_ns"),
        "cpu_ns": "end - start",
        **_same(analyze.INSTANCES, "unclosed", "launches", "kernels", "memops"),
        **_same(analyze.RANGES, "graph_launches"),
        **_same(analyze.INSTANCES, "first_op_ns", "last_op_ns", "span_ns", "busy_ns", "sum_ns"),
        **_same(analyze.RANGES, "exclusive_sum_ns", "followed_sum_ns"),
        **_same(analyze.INSTANCES, *analyze.CAPTURED, "forward_path"),
    },
)
TABLES = (OPS, LAUNCHES, RANGES, INSTANCES)


@dataclass(frozen=True)
class Column:
    """Values of one column: integers, bools, or codes of ``texts``.

    The value ``absent`` means missing. Codes below 0 always mean missing, so ``absent`` is None for texts.
    """

    values: Array
    texts: Sequence[str] | None = None
    absent: Mask | None = None


@dataclass(frozen=True)
class RecordTable:
    """A table that is built in slices: ``columns(slice)`` returns the ``declared`` columns, in order."""

    declared: Table
    rows: int
    columns: Callable[[slice], dict[str, Column]]

    def frame(self) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame: texts as categories, missing integers as NA."""
        import pandas as pd  # noqa: PLC0415 (slow to import)

        def values(column: Column) -> Any:
            if column.texts is not None:
                texts = list(dict.fromkeys(column.texts))
                place = {text: at for at, text in enumerate(texts)}
                code = np.array([*(place[text] for text in column.texts), -1], np.int32)
                return pd.Categorical.from_codes(code[np.maximum(column.values.astype(np.int64), -1)], pd.Index(texts))
            if column.absent is None:
                return column.values
            return pd.arrays.IntegerArray(column.values.astype(np.int64), column.absent.copy())

        columns = self.columns(slice(0, self.rows))
        return pd.DataFrame({name: values(columns[name]) for name in self.declared.names})


def record_tables(source: RecordSource) -> list[RecordTable]:
    """Make the `TABLES` of a report. Rows are computed on request; until then, only the sums over launches exist."""
    trace = source.trace
    return [
        RecordTable(OPS, len(trace.ops), _ops(source)),
        RecordTable(LAUNCHES, len(trace.launches), _launches(source)),
        RecordTable(RANGES, len(source.breakdown.ranges), _ranges(source)),
        RecordTable(INSTANCES, len(trace.ranges), _instances(source)),
    ]


def record_frames(breakdown: Breakdown) -> dict[str, pd.DataFrame]:
    """Return all rows of the `TABLES` of a report that is still open, as pandas DataFrames."""
    return {table.declared.file: table.frame() for table in record_tables(record_source(breakdown))}


def _optional(values: Array, present: Mask) -> Column:
    return Column(values, absent=None if present.all() else ~present)


def _id(values: AnyInts) -> Column:
    """Make a column of row numbers, of which -1 is none."""
    return _optional(values, values >= 0)


def _paths(source: RecordSource, path: Ints32) -> dict[str, Column]:
    breakdown = source.breakdown
    return {"path": Column(path, breakdown.path_texts), "merged_path": Column(path, breakdown.merged_texts)}


def _ops(source: RecordSource) -> Callable[[slice], dict[str, Column]]:
    breakdown, trace, details = source.breakdown, source.trace, source.details
    attribution, ops, size = breakdown.attribution, trace.ops, trace.copy_sizes()
    labels = device_labels(trace)
    gpus = list(dict.fromkeys(labels.values()))
    gpu_of_device = np.array([gpus.index(labels[number]) for number in trace.gpu_numbers], np.int32)
    cuda_id = np.array([device.cuda_id for device in trace.devices], np.int64)
    stream_id = np.array([-1 if stream.id is None else stream.id for stream in trace.streams], np.int64)
    pids = pid_of(trace.processes)
    graphs = breakdown.graphs
    captured = np.full(len(ops), -1, np.int32) if graphs is None else graphs.owner
    captured = np.append(breakdown.paths.of, np.int32(-1))[captured]
    node = ops.from_graph if graphs is None else ops.from_graph | graphs.captured

    def columns(rows: slice) -> dict[str, Column]:
        launch, stream, name = ops.launch[rows], ops.stream[rows], ops.name[rows]
        device = trace.stream_device[stream]
        start, end, correlation = ops.start[rows], ops.end[rows], details.correlation[rows]
        grid, block = details.grid[rows], details.block[rows]
        fate = attribution.outcome_of(rows)
        shape = {
            f"{what}_{axis}": _optional(side, packed > 0)
            for what, packed in (("grid", grid), ("block", block))
            for axis, side in zip("xyz", unpacked(packed), strict=True)
        }
        return {
            "op": Column(np.arange(len(ops))[rows]),
            "kind": Column(ops.kind[rows], OP_KINDS),
            "name": Column(name, trace.op_names),
            "family": Column(name, breakdown.kinds.family),
            "math_unit": Column(name, breakdown.kinds.math_unit),
            "start_ns": Column(start),
            "end_ns": Column(end),
            "duration_ns": Column(end - start),
            "pid": Column(pids[trace.stream_process[stream]]),
            "gpu": Column(gpu_of_device[device], gpus),
            "device": Column(cuda_id[device]),
            "stream": _id(stream_id[stream]),
            "launch": _id(launch),
            "correlation": _optional(correlation, correlation != 0),
            "fate": Column(fate, OUTCOMES),
            "owner": _id(np.append(attribution.owner, np.int32(-1))[launch]),
            **_paths(source, np.append(source.path, np.int32(-1))[launch]),
            "from_graph": Column(node[rows]),
            **shape,
            "registers": _id(details.registers[rows]),
            "static_shared_bytes": _id(details.static_shared[rows]),
            "dynamic_shared_bytes": _id(details.dynamic_shared[rows]),
            "size_bytes": _id(size[rows]),
            "cause": Column(name, breakdown.kinds.cause),
            "captured_path": Column(captured[rows], breakdown.path_texts),
        }

    return columns


def _launches(source: RecordSource) -> Callable[[slice], dict[str, Column]]:
    attribution, trace, calls = source.breakdown.attribution, source.trace, source.calls
    launches, ops = trace.launches, trace.ops
    known = np.flatnonzero(ops.launch >= 0)
    launch = ops.launch[known]
    count = np.bincount(launch, minlength=len(launches))
    total = sums(launch, (ops.end - ops.start)[known], len(launches))
    first = np.full(len(launches), np.iinfo(np.int64).max)
    last = np.full(len(launches), np.iinfo(np.int64).min)
    np.minimum.at(first, launch, ops.start[known])
    np.maximum.at(last, launch, ops.end[known])
    correlation = np.zeros(len(launches), np.int64)
    correlation[launch] = source.details.correlation[known]

    def columns(rows: slice) -> dict[str, Column]:
        thread = trace.threads[launches.thread[rows]]
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
            "fate": Column(attribution.outcome[rows], OUTCOMES),
            "owner": _id(attribution.owner[rows]),
            **_paths(source, source.path[rows]),
        }

    return columns


def _ranges(source: RecordSource) -> Callable[[slice], dict[str, Column]]:
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


def _column(values: Array) -> Column:
    if values.dtype.kind != "O":
        return Column(values)
    codes: dict[str, int] = {}
    coded = np.array([codes.setdefault(text, len(codes)) for text in values.tolist()], np.int32)
    return Column(coded, list(codes))


def _instances(source: RecordSource) -> Callable[[slice], dict[str, Column]]:
    breakdown, trace = source.breakdown, source.trace
    attribution, ranges, paths = breakdown.attribution, trace.ranges, breakdown.paths
    inside = attribution.inclusive
    number = instance_numbers(paths.of, ranges.start)
    domains = list(dict.fromkeys(name.domain for name in trace.range_names))
    domain = np.array([domains.index(name.domain) for name in trace.range_names], np.int32)

    def columns(rows: slice) -> dict[str, Column]:
        at = np.arange(len(ranges))[rows]
        some = inside.launches[rows] > 0
        texts = breakdown.path_texts, breakdown.merged_texts
        graphs = breakdown.graphs.inside if breakdown.graphs else None
        analyzed = instance_columns(
            InstanceRows(attribution, paths.of[rows], at, number[rows], *texts, graphs, breakdown.forward_path[rows])
        )
        made = {
            name: Column(column.codes, column.words) if isinstance(column, Texts) else Column(column)
            for name, column in analyzed.columns.items()
        }
        made |= {
            "range": Column(at),
            "parent": _id(attribution.parent[rows]),
            "path_id": Column(paths.of[rows]),
            "domain": Column(domain[ranges.name[rows]], domains),
            "cpu_ns": Column(ranges.end[rows] - ranges.start[rows]),
            "unclosed": Column(ranges.unclosed[rows]),
            "graph_launches": Column(inside.graph_launches[rows]),
            "first_op_ns": _optional(inside.first_op_ns[rows], some),
            "last_op_ns": _optional(inside.last_op_ns[rows], some),
            "exclusive_sum_ns": Column(attribution.exclusive_sum_ns[rows]),
            "followed_sum_ns": Column(inside.followed_sum_ns[rows]),
        }
        return {name: made[name] for name in INSTANCES.names}

    return columns
