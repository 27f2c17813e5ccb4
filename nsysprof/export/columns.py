"""What the columns of exported tables hold: their names are an interface, to be added to and never renamed."""

from __future__ import annotations

from nsysprof.analyze.tables import INSTANCES, RANGES
from nsysprof.attribution.attribute import NO_LAUNCH, OUTCOMES
from nsysprof.results.table import Table

OP_KINDS = ("kernel", "memcpy", "memset", "graph", "migration")


def _of(table: Table, *names: str) -> dict[str, str]:
    return {name: table.about[name] for name in names}


COLUMNS: dict[str, dict[str, str]] = {
    "ops": {
        "op": "id: kernels, copies, sets, CUDA-graph launches and migrations of the report, in its order",
        "kind": f"{', '.join(OP_KINDS[:-1])} (a CUDA graph traced whole) or {OP_KINDS[-1]} (of unified memory)",
        "name": "full name of the kernel, or what was done",
        "family": "kind of work, by the kernel rules",
        "math_unit": "unit that a kernel computes on, by the kernel rules",
        "start_ns": "start on the GPU",
        "end_ns": "end on the GPU",
        "duration_ns": "end - start",
        "pid": "process",
        "gpu": "GPU, as the report numbers them",
        "device": "CUDA device id in the process",
        "stream": "CUDA stream id; empty where none is recorded",
        "launch": "the launch that caused it; empty where none is recorded",
        "correlation": "CUPTI correlation id, unique within a process; empty where none is recorded",
        "fate": f"row of the ledger: {', '.join(OUTCOMES)}",
        "owner": "the range instance that it belongs to; empty where it belongs to none",
        "path": "path of the owner",
        "merged_path": "merged path of the owner",
        "from_graph": "whether it is a node of a CUDA graph",
        "grid_x": "blocks of a kernel",
        "grid_y": "blocks of a kernel",
        "grid_z": "blocks of a kernel",
        "block_x": "threads of a block",
        "block_y": "threads of a block",
        "block_z": "threads of a block",
        "registers": "registers per thread",
        "static_shared_bytes": "static shared memory of a block",
        "dynamic_shared_bytes": "dynamic shared memory of a block",
        "size_bytes": "bytes copied or set",
        "cause": "finer kind of work, by the kernel rules: the family where they say no more",
    },
    "launches": {
        "launch": "id: host CUDA calls that caused GPU work, by process, thread and start",
        "pid": "process",
        "tid": "thread",
        "call": "the CUDA function",
        "correlation": "CUPTI correlation id, unique within a process",
        "start_ns": "start on the host",
        "end_ns": "end on the host",
        "cpu_ns": "end - start",
        "ops": "ops that it caused",
        "first_op_ns": "start of the first of them",
        "last_op_ns": "end of the last of them",
        "sum_ns": "their added durations",
        "fate": f"row of the ledger: {', '.join(OUTCOMES[:NO_LAUNCH])}",
        "owner": "the range instance that it belongs to; empty where it belongs to none",
        "path": "path of the owner",
        "merged_path": "merged path of the owner",
    },
    "ranges": {
        "path_id": "id: range paths, parents before children",
        "parent": "path id of the path around it; empty at the top",
        "name": "last part of the path",
        **RANGES.about,
    },
    "instances": {
        "range": "id: NVTX ranges, by process, thread and start",
        "parent": "the innermost push/pop range around it on its thread; empty where there is none",
        "path_id": "its path",
        **_of(INSTANCES, "path", "merged_path"),
        **_of(RANGES, "domain"),
        **_of(INSTANCES, "instance", "pid", "tid", "kind", "start_ns", "end_ns"),
        "cpu_ns": "end - start",
        **_of(INSTANCES, "unclosed", "launches", "kernels", "memops"),
        **_of(RANGES, "graph_launches"),
        **_of(INSTANCES, "first_op_ns", "last_op_ns", "span_ns", "busy_ns", "sum_ns"),
        **_of(RANGES, "exclusive_sum_ns", "followed_sum_ns"),
    },
}
