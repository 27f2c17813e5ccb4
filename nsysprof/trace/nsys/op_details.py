"""Reads what GPU ops were launched with: grid and block, registers, shared memory, sizes, correlation ids."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from nsysprof.trace.details import OpDetails, packed
from nsysprof.trace.nsys.columns import Growing, Source, column, has_all, present
from nsysprof.trace.nsys.gpu_work import NEEDS, TABLES

_GRID, _BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
# Our columns of plain numbers, -1 where a row has none, and those of the report.
_NUMBERS = {
    "registers": "registersPerThread",
    "static_shared": "staticSharedMemory",
    "dynamic_shared": "dynamicSharedMemory",
    "size": "bytes",
}


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
                grid=packed(*(column(block, name) for name in _GRID)),
                block=packed(*(column(block, name) for name in _BLOCK)),
                **{ours: column(block, theirs, missing=-1) for ours, theirs in _NUMBERS.items()},
            )
    return OpDetails(**{field.name: rows.take(field.name) for field in fields(OpDetails)})


def read_grids(source: Source) -> NDArray[np.int64]:
    """The grid of each kernel in the order of the file as one number, for `grid_text`; 0 where it is not recorded."""
    rows = Growing(grid="i8")
    for block in source.blocks(_KERNELS, _GRID) if has_all(source, _KERNELS, (*NEEDS, *_GRID)) else ():
        rows.add(block.rows, grid=packed(*(column(block, name) for name in _GRID)))
    grids: NDArray[np.int64] = rows.take("grid")
    return grids
