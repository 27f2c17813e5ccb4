"""Reads what GPU work was launched with: grid and block, registers, shared memory, sizes, correlation ids."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from nsysprof.trace.nsys.block import Block
from nsysprof.trace.nsys.columns import Growing, Source, column, has_all, present
from nsysprof.trace.nsys.gpu_work import NEEDS, TABLES

_GRID, _BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
# Our columns of plain numbers, -1 where a row has none, and those of the report.
_NUMBERS = {
    "registers": "registersPerThread",
    "static_shared": "staticSharedMemory",
    "dynamic_shared": "dynamicSharedMemory",
    "size": "bytes",
}


@dataclass(frozen=True)
class OpDetails:
    """What the report tells of each op besides when and where it ran, in the order of `read_work`.

    ``correlation`` int64, 0 where the row has none; ``grid``, ``block`` int64, three numbers packed into one as
    `grid_text` takes them, 0 where there is none; int64 with -1 where there is none: ``registers`` per thread,
    ``static_shared``, ``dynamic_shared`` bytes of shared memory per block, ``size`` bytes copied or set.
    """

    correlation: NDArray[np.int64]
    grid: NDArray[np.int64]
    block: NDArray[np.int64]
    registers: NDArray[np.int64]
    static_shared: NDArray[np.int64]
    dynamic_shared: NDArray[np.int64]
    size: NDArray[np.int64]


def read_op_details(source: Source) -> OpDetails:
    """The `OpDetails` of a report: a row for each row that `read_work` finds."""
    rows = Growing(
        correlation="i8",
        grid="i8",
        block="i8",
        registers="i8",
        static_shared="i8",
        dynamic_shared="i8",
        size="i8",
    )
    wanted = ("correlationId", *_GRID, *_BLOCK, *_NUMBERS.values())
    for table in TABLES:
        if not has_all(source, table, NEEDS):
            continue
        # A table without any of these columns has its rows all the same: "start" counts them.
        for block in source.blocks(table, present(source, table, wanted) or ["start"]):
            rows.add(
                block.rows,
                correlation=column(block, "correlationId"),
                grid=_packed(block, _GRID),
                block=_packed(block, _BLOCK),
                **{ours: column(block, theirs, missing=-1) for ours, theirs in _NUMBERS.items()},
            )
    return OpDetails(**{field.name: rows.take(field.name) for field in fields(OpDetails)})


def _packed(block: Block, names: tuple[str, str, str]) -> NDArray[np.int64]:
    x, y, z = (column(block, name) for name in names)
    return (x & 0x7FFFFFFF) << 32 | (y & 0xFFFF) << 16 | z & 0xFFFF


def sides(packed: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The three numbers of each packed grid or block."""
    return packed >> 32, packed >> 16 & 0xFFFF, packed & 0xFFFF
