"""Reads how many blocks each kernel was launched with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.trace.nsys.columns import Growing, Source, column, has_all
from nsysprof.trace.nsys.gpu_work import NEEDS

TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
_COLUMNS = ("gridX", "gridY", "gridZ")


def read_grids(source: Source) -> NDArray[np.int64]:
    """The grid of each kernel in the order of the file as one number, for `grid_text`; 0 where it is not recorded.

    CUDA allows 2^31 blocks in x and 2^16 in y and z: that fits into 63 bits.
    """
    rows = Growing(grid="i8")
    for block in source.blocks(TABLE, _COLUMNS) if has_all(source, TABLE, (*NEEDS, *_COLUMNS)) else ():
        x, y, z = (column(block, name) for name in _COLUMNS)
        rows.add(block.rows, grid=_packed(x, y, z))
    grids: NDArray[np.int64] = rows.take("grid")
    return grids


def grid_number(x: int, y: int = 1, z: int = 1) -> int:
    """The same number for one grid."""
    return int(_packed(np.array(x), np.array(y), np.array(z)))


def _packed(x: NDArray[np.int64], y: NDArray[np.int64], z: NDArray[np.int64]) -> NDArray[np.int64]:
    return (x & 0x7FFFFFFF) << 32 | (y & 0xFFFF) << 16 | z & 0xFFFF


def grid_text(grid: int) -> str:
    """`32x32x8`; without the trailing ones of a flat grid: `4096`. Empty where it is not recorded."""
    sides = [grid >> 32, grid >> 16 & 0xFFFF, grid & 0xFFFF]
    while len(sides) > 1 and sides[-1] == 1:
        sides.pop()
    return "x".join(map(str, sides)) if grid else ""
