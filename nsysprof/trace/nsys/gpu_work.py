"""Read GPU work and its launch parameters from the CUPTI tables KERNEL, MEMCPY, MEMSET and GRAPH_TRACE."""

from collections.abc import Collection
from dataclasses import dataclass, fields

import numpy as np

from nsysprof.core.arena import IN_MEMORY, ColumnArena
from nsysprof.core.arrays import Bytes, Ints, Ints32, Mask
from nsysprof.core.columns import Coder, RowCoder
from nsysprof.trace import trace
from nsysprof.trace.details import LaunchGeometry, OpDetails, packed
from nsysprof.trace.nsys.blocks import Block, Growing, Rows, Source, column, has_all, present, read_blocks, times
from nsysprof.trace.nsys.identify import DamagedError

_KERNELS, _COPIES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
WORK = {
    _KERNELS: trace.KERNEL,
    _COPIES: trace.MEMCPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": trace.MEMSET,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": trace.GRAPH,
}
WORK_NEEDS = ("start", "end")  # without them a row is no GPU op
# The columns that tell two GPU ops of a kind apart by name: what is NULL in one may stand in the next.
_NAMED_BY = {
    trace.KERNEL: ("demangledName", "shortName", "mangledName"),
    trace.MEMCPY: ("copyKind",),
    trace.MEMSET: (),
    trace.GRAPH: ("graphId",),
}
# CUpti_ActivityMemcpyKind
_COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    10: "PtoP",
}  # fmt: skip
_MIGRATIONS = {11: "HtoD", 12: "DtoH", 13: "DtoD"}  # copyKind of nsys alone: ENUM_CUDA_MEMCPY_OPER
GRID, BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
# Our columns of plain numbers, -1 where a row has none, and those of the report.
_NUMBERS = {
    "registers": "registersPerThread",
    "static_shared": "staticSharedMemory",
    "dynamic_shared": "dynamicSharedMemory",
    "local_memory": "localMemoryPerThread",
}
_OF_LAUNCHES = (*GRID, *BLOCK, *_NUMBERS.values())
_OTHERS = ("deviceId", "streamId", "correlationId", "globalPid", "graphNodeId")
_OF_COPIES = ("bytes", "migrationCause", "srcKind", "dstKind", "memKind")
_NO_STREAM, _MIGRATES = 4294967295, -1 << 62
_MAX_NS = 1 << 62  # of all GPU ops together


@dataclass(frozen=True)
class Work:
    """GPU ops in file order, a row each.

    ``start``, ``end`` int64 ns; ``kind`` uint8 (KERNEL, MEMCPY, MEMSET, GRAPH, MIGRATION); ``name`` int32 into
    ``names``; ``stream`` int32 into ``streams``; ``correlation`` int64, 0 for none; ``from_graph`` bool: whether the op
    is a node of a CUDA graph. ``streams`` are ``(device, stream id or None, whether the stream contains migrations)``;
    ``devices`` are ``(process, CUDA device id)``; ``process`` is a code of the `Coder` passed to `work_of`.
    """

    start: Ints
    end: Ints
    kind: Bytes
    name: Ints32
    stream: Ints32
    correlation: Ints
    from_graph: Mask
    names: list[str]
    streams: list[tuple[int, int | None, bool]]
    devices: list[tuple[int, int]]
    copies: trace.Copies
    geometry: LaunchGeometry
    warnings: tuple[str, ...]


def work_rows(source: Source, tables: Collection[str], progress: trace.Progress | None, arena: ColumnArena) -> Rows:
    """Read the GPU ops in those of the tables that exist. Rows of tables without ``globalPid`` get process id 0. The
    columns are allocated in ``arena``.
    """
    rows = Growing(arena, start="i8", end="i8", kind="u1", name="i4", stream="i4", correlation="i8", from_graph="?")
    copies = Growing(arena, size_bytes="i8", source="u1", destination="u1", cause="u1")
    streams = RowCoder(3)  # of globalPid, device and stream
    names = RowCoder(2)  # of kind and id of the name
    untimed, geometry = 0, LaunchGeometry()
    for table, kind in ((table, WORK[table]) for table in tables):
        naming = present(source, table, _NAMED_BY[kind])
        others = [*_OTHERS, *naming, *(_OF_COPIES if kind in trace.COPYING else _OF_LAUNCHES)]
        for block in read_blocks(source, table, WORK_NEEDS, others, progress):
            start, end = times(block)
            lacking = [null for name, null in block.nulls.items() if name in ("start", "end")]
            untimed += int(np.logical_or.reduce(lacking).sum()) if lacking else 0
            moves = np.zeros(block.rows, bool)
            if kind == trace.MEMCPY:
                moves = np.isin(column(block, "copyKind"), list(_MIGRATIONS))
            # whatever number stands in migrations, they are on none
            stream = np.where(moves, _MIGRATES, column(block, "streamId", missing=_NO_STREAM))
            if kind in trace.COPYING:
                copies.add(
                    block.rows,
                    size_bytes=column(block, "bytes", missing=-1),
                    source=_memory_kind(block, "srcKind"),
                    destination=_memory_kind(block, "memKind" if kind == trace.MEMSET else "dstKind"),
                    cause=np.clip(column(block, "migrationCause"), 0, 255),
                )
            geometry.add(_details(block))
            rows.add(
                block.rows,
                start=start,
                end=end,
                kind=np.where(moves, trace.MIGRATION, kind),
                name=names.encode(np.full(block.rows, kind), _name_ids(block, naming)),
                stream=streams.encode(column(block, "globalPid"), column(block, "deviceId"), stream),
                correlation=np.where(moves, 0, column(block, "correlationId")),
                from_graph=column(block, "graphNodeId") != 0,
            )
    values = {
        "stream": streams.rows(),
        "name": names.rows(),
        "launch": [tuple(row) for row in np.transpose(geometry.rows).tolist()],
    }
    columns = {**rows.take_rest(), **copies.take_rest(), "launch": geometry.of}
    return Rows(columns, values, ([untimed], [geometry.whole]))


def work_of(rows: Rows, source: Source, processes: Coder) -> Work:
    """Make the GPU ops of the report from the rows of all tables, whose columns are removed. Process ids are added to
    ``processes``.
    """
    columns, values, untimed = dict(rows.columns), rows.values, sum(rows.notes[0])
    rows.columns.clear()
    _check_times(columns["start"], columns["end"])
    geometry = LaunchGeometry.of_codes(columns.pop("launch"), values["launch"], all(rows.notes[1]))
    copies = {each.name: columns.pop(each.name) for each in fields(trace.Copies)}
    texts = source.strings([number for kind, number in values["name"] if kind == trace.KERNEL])
    devices: dict[tuple[int, int], int] = {}
    listed: list[tuple[int, int | None, bool]] = []
    for process, device, number in values["stream"]:
        owner = int(processes.encode(np.array([process]))[0]), device
        known = None if number in (_NO_STREAM, _MIGRATES) else number
        listed.append((devices.setdefault(owner, len(devices)), known, number == _MIGRATES))
    return Work(
        **columns,
        names=[_op_name(kind, number, texts) for kind, number in values["name"]],
        streams=listed,
        devices=list(devices),
        copies=trace.Copies(**copies),
        geometry=geometry,
        warnings=(f"{untimed:,} GPU operations lack a start or an end, so they count as 0 ns",) if untimed else (),
    )


def _memory_kind(block: Block, name: str) -> Ints:
    unknown = len(trace.MEMORY_KINDS) - 1
    kind = column(block, name, missing=unknown)
    return np.where((kind >= 0) & (kind < unknown), kind, unknown)


def _check_times(start: Ints, end: Ints) -> None:
    """Refuse times whose differences or sums do not fit into an int64: every later number would be wrong."""
    if not len(start):
        return
    first, last = min(int(start.min()), int(end.min())), max(int(start.max()), int(end.max()))
    if (last - first) * len(start) < _MAX_NS:
        return
    if last - first >= _MAX_NS or np.abs(end - start).sum(dtype=np.float64) >= _MAX_NS:
        raise DamagedError(f"the GPU operations begin at {first} ns and end at {last} ns, more than a century later")


def _name_ids(block: Block, naming: list[str]) -> Ints:
    """The name id of each row, from the first column that has one."""
    ids = column(block, naming[0]) if naming else np.zeros(block.rows, np.int64)
    null = block.nulls.get(naming[0]) if naming else None
    for other in naming[1:] if null is not None else ():
        ids = np.where(null & (ids == 0), column(block, other), ids)
    return ids


def _op_name(kind: int, number: int, texts: dict[int, str]) -> str:
    if kind == trace.KERNEL:
        return texts.get(number, f"[kernel name {number} is not in StringIds]")
    if kind == trace.MEMCPY and number in _MIGRATIONS:
        return f"migration {_MIGRATIONS[number]}"
    if kind == trace.MEMCPY:
        return f"memcpy {_COPY_KINDS.get(number, f'kind {number}')}"
    if kind == trace.MEMSET:
        return "memset"
    return f"CUDA graph {number}" if number else "CUDA graph"


_DETAILS = ("correlation", "grid", "block", *_NUMBERS)


def read_op_details(source: Source) -> OpDetails:
    """Read the `OpDetails` of a report, in the order of `work_rows`."""
    rows = Growing(IN_MEMORY, **dict.fromkeys(_DETAILS, "i8"))
    for table in WORK:
        for block in read_blocks(source, table, WORK_NEEDS, ("correlationId", *_OF_LAUNCHES)):
            part = _details(block)
            rows.add(len(part.grid), **{name: getattr(part, name) for name in _DETAILS})
    return OpDetails(**rows.take_rest())


def _details(block: Block) -> OpDetails:
    return OpDetails(
        correlation=column(block, "correlationId"),
        grid=packed(*(column(block, name) for name in GRID)),
        block=packed(*(column(block, name) for name in BLOCK)),
        **{ours: column(block, theirs, missing=-1) for ours, theirs in _NUMBERS.items()},
    )


def read_grids(source: Source) -> Ints:
    """Read the grid of each kernel in file order, packed (see `grid_text`); empty if not recorded."""
    blocks = read_blocks(source, _KERNELS, GRID) if has_all(source, _KERNELS, WORK_NEEDS) else ()
    grids = [packed(*(column(block, name) for name in GRID)) for block in blocks]
    return np.concatenate([np.empty(0, np.int64), *grids])
