"""The arguments of `tiled_o5` and `tiled_o6`: tensor maps, by which Hopper's copy engine (TMA) finds tiles in a tensor.

CuPy has no call that makes them, so the driver's own is called. A map is passed by value, like a number.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

from _tiled_stages import TiledError

if TYPE_CHECKING:
    import torch

    from _tiled import Kernel

TensorMap = ctypes.c_uint64 * 16  # CUtensorMap, opaque
_MAP_ALIGNMENT = 64  # where the driver writes one
_ADDRESS_ALIGNMENT = 16  # of a tensor that it describes
_QUERY_ROWS = 64  # of a warpgroup
_CHUNK = 64  # columns of 2 bytes that make the 128 bytes of a swizzled row
TYPES = {"torch.float16": 6, "torch.bfloat16": 9}  # CU_TENSOR_MAP_DATA_TYPE_FLOAT16, …_BFLOAT16
_NO_INTERLEAVE = 0
_SWIZZLE_128_BYTES = 3
_PROMOTE_TO_256_BYTES = 3  # what L2 fetches from memory at once
_OUTSIDE_IS_ZERO = 0


def arguments(kernel: Kernel, tensors: tuple[torch.Tensor, ...]) -> list[Any]:
    """The maps of queries, keys and values and the address of the output, as the kernel's first arguments."""
    q, k, v, out = tensors
    boxes = ((q, _QUERY_ROWS), (k, kernel.tile.columns), (v, kernel.tile.columns))
    kind = TYPES[str(q.dtype)]
    maps = [tensor_map(each.data_ptr(), *heads_rows_columns(each), rows, kind) for each, rows in boxes]
    return [*maps, ctypes.c_void_p(out.data_ptr())]


def heads_rows_columns(tensor: torch.Tensor) -> tuple[int, int, int]:
    """The sizes of a (batch, heads, rows, columns) tensor, with one number for all heads."""
    batch, heads, rows, columns = tensor.shape
    return batch * heads, rows, columns


@functools.lru_cache(maxsize=256)
def tensor_map(address: int, heads: int, rows: int, columns: int, box_rows: int, kind: int) -> Any:
    """The map of contiguous data of (heads, rows, columns), by which a box is `box_rows` whole rows of a head.

    Its four dimensions are 64 columns, rows, those 64 again and again, and heads: so a box arrives as one piece after
    another of 64 columns, and ends with its head, not in the next one. Raises `TiledError` where the driver refuses.
    """
    if address % _ADDRESS_ALIGNMENT:
        raise TiledError(f"a tensor map needs an address that is a multiple of {_ADDRESS_ALIGNMENT}")
    room = (ctypes.c_uint8 * (ctypes.sizeof(TensorMap) + _MAP_ALIGNMENT))()
    made = TensorMap.from_buffer(room, -ctypes.addressof(room) % _MAP_ALIGNMENT)
    code = _encoder()(
        ctypes.byref(made),
        kind,
        4,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 4)(_CHUNK, rows, columns // _CHUNK, heads),
        (ctypes.c_uint64 * 3)(2 * columns, 2 * _CHUNK, 2 * rows * columns),  # bytes from one to the next
        (ctypes.c_uint32 * 4)(_CHUNK, box_rows, columns // _CHUNK, 1),
        (ctypes.c_uint32 * 4)(1, 1, 1, 1),
        _NO_INTERLEAVE,
        _SWIZZLE_128_BYTES,
        _PROMOTE_TO_256_BYTES,
        _OUTSIDE_IS_ZERO,
    )
    if code:
        raise TiledError(f"no tensor map for {heads} x {rows} x {columns} numbers: the driver returns error {code}")
    return made


@functools.cache
def _encoder() -> Any:
    """The driver's function that makes a tensor map."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise TiledError(f"tensor maps need a driver for CUDA 12 or newer: {error}") from None
