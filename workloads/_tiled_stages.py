"""The stages of the tiled attention kernel: what each can do, how it is cut up, and whether a device can run it.

This is the one place with launch parameters and shared-memory sizes. The kernels get them as macros, the launcher in
`_tiled.py` as numbers. Without torch and CuPy, so that all of it can be checked on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ITEM_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
LARGEST_HEAD_DIM = 128


class TiledError(RuntimeError):
    """Something that a stage or this machine cannot do, as one line."""


@dataclass(frozen=True)
class Device:
    """What a GPU allows a block: bytes of shared memory, threads."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    threads: int

    @property
    def arch(self) -> str:
        """The compute capability as compilers write it."""
        major, minor = self.capability
        return f"{major}{minor}"


@dataclass(frozen=True)
class Load:
    """What a launch has to do: queries of a head, heads of all batches, and whether the mask is causal."""

    queries: int
    heads: int
    causal: bool

    def fills(self, rows: int, device: Device) -> bool:
        """Whether tiles of so many rows keep a GPU busy. With a mask, if the heaviest tile is no more than what all of
        them make for each multiprocessor; without one, if more than half of the multiprocessors get a tile.
        """
        blocks = -(-self.queries // rows)
        if self.causal:
            return 2 * device.multiprocessors <= (blocks + 1) * self.heads
        return device.multiprocessors < 2 * blocks * self.heads


@dataclass(frozen=True)
class Tile:
    """How a block is cut up: query rows, keys of a tile, warps; the bytes of shared memory that it takes.

    ``blocks`` is how many of them are meant to be on a multiprocessor at once, which limits the registers. ``more``
    are macros of the stage's own, with their values.
    """

    rows: int
    columns: int
    warps: int
    shared_bytes: int
    blocks: int = 1
    more: tuple[tuple[str, int], ...] = ()

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps


Grid = tuple[int, int, int]


def rows_of_one_head(blocks: int, _heads: int, _device: Device) -> Grid:
    """Blocks of query rows; every block goes through all heads."""
    return blocks, 1, 1


def heads_and_rows(blocks: int, heads: int, _device: Device) -> Grid:
    """x: heads, y: blocks of query rows. Blocks start in the order of x, then y: the kernels count y from the end,
    where causal rows have most to do.
    """
    return heads, blocks, 1


def one_per_multiprocessor(blocks: int, heads: int, device: Device) -> Grid:
    """Blocks that stay and take several tiles."""
    return min(blocks * heads, device.multiprocessors), 1, 1


def halves_per_multiprocessor(blocks: int, heads: int, device: Device) -> Grid:
    """As `one_per_multiprocessor`, for a kernel that may halve its tiles."""
    return min(2 * blocks * heads, device.multiprocessors), 1, 1


def blocks_or_halves(blocks: int, heads: int, device: Device) -> Grid:
    """All blocks of all heads in one row, or twice as many, halves of them, where whole ones are too few for the
    multiprocessors.
    """
    number = blocks * heads
    return number if 2 * number > 3 * device.multiprocessors else 2 * number, 1, 1


@dataclass(frozen=True)
class Stage:
    """One kernel, ``kernels/<name>.cu``, whose symbol is its name.

    ``tiles`` gives, for a type and a head dimension, the ways to cut it up, best first: the first that fits the device
    is taken. ``head_dims`` are those it can do, all up to 128 where none is named. ``capability`` is the least, or with
    ``exactly`` the only one, for which it is then compiled with all of that architecture's own instructions
    (``sm_90a``). ``arguments`` names a module whose function of that name makes the first four of the kernel's
    arguments, as ctypes objects, where these are not the addresses of the tensors. ``log_sum_exp`` says that it gives
    one where it is asked for, ``by_load`` that its tiles after the first are for emptier GPUs. ``backward`` names the
    module that has its gradients, if any.
    """

    says: str
    tiles: Callable[[str, int], Sequence[Tile]]
    grid: Callable[[int, int, Device], Grid] = heads_and_rows
    dtypes: tuple[str, ...] = ("fp16", "fp32")
    head_dims: tuple[int, ...] = ()
    capability: tuple[int, int] = (5, 0)
    exactly: bool = False
    arguments: str = ""
    log_sum_exp: bool = False
    by_load: bool = False
    backward: str = ""


def _o0_tiles(_dtype: str, head_dim: int) -> list[Tile]:
    """All in float32: queries, keys (rows padded by one against bank conflicts), values, and the scores."""
    rows, columns = 8, 32
    floats = rows * head_dim + columns * (head_dim + 1) + columns * head_dim + rows * columns
    return [Tile(rows, columns, rows, 4 * floats)]


def _o1_tiles(_dtype: str, head_dim: int) -> list[Tile]:
    """As `_o0_tiles`, with more rows for each tile that is loaded, and tiles of twice the width where they fit."""
    found = []
    for columns in (64, 32):
        rows = 16
        floats = rows * head_dim + columns * (head_dim + 1) + columns * head_dim + rows * columns
        found.append(Tile(rows, columns, rows, 4 * floats, blocks=2))
    return found


def _o2_tiles(dtype: str, head_dim: int) -> list[Tile]:
    """Keys and values in the type of the inputs; a row of queries is spread over head_dim / 16 threads."""
    warps = 8
    rows = warps * 32 * 16 // head_dim
    size = 2 * head_dim * ITEM_BYTES[dtype]
    return [Tile(rows, columns, warps, columns * size, blocks=2) for columns in (64, 32)]


def _o3_tiles(dtype: str, head_dim: int) -> list[Tile]:
    """The next keys and values as they come (rows padded by 16 bytes), and in float32 the queries, these keys and
    values, and the weights. Narrow tiles for wide heads: two blocks on a multiprocessor count for more.
    """
    sizes = [(64, 32, 4), (32, 32, 2)]
    if head_dim <= 64:
        sizes.insert(0, (64, 64, 4))
    found = []
    for rows, columns, warps in sizes:
        coming = 2 * columns * (head_dim * ITEM_BYTES[dtype] + 16)
        floats = rows * head_dim + 2 * columns * head_dim + columns * rows
        found.append(Tile(rows, columns, warps, coming + 4 * floats, blocks=2))
    return found


def _o4_tiles(_dtype: str, head_dim: int) -> list[Tile]:
    """Queries, and for each of two teams of warps two tiles of keys and two of values."""
    rows, columns, warps = 128, 64, 8
    return [Tile(rows, columns, warps, 2 * head_dim * (rows + 8 * columns))]


def _o5_tiles(_dtype: str, head_dim: int) -> list[Tile]:
    """Queries, a ring of K and V tiles, what warpgroups that share keys hand over, and barriers, from an address that
    is a multiple of 1024.
    """
    rows = 128
    columns, stages, warpgroups = (64, 8, 4) if head_dim == 64 else (128, 3, 2)
    parts = warpgroups - 1 if warpgroups > rows // 64 else 0
    shared = 2 * (rows + 2 * stages * columns) * head_dim + parts * 4 * 128 * (head_dim // 2 + 4)
    barriers = 8 * (2 + 2 * stages + 2 * warpgroups)
    warps = 4 * (warpgroups + 1)
    return [Tile(rows, columns, warps, shared + barriers + 1024, more=(("STAGES", stages),))]


def _o6_tiles(_dtype: str, head_dim: int) -> list[Tile]:
    """As `_o5_tiles`, with 64 rows for each warpgroup that computes. For a head dimension of 64 a place of the ring has
    a tile of K and one of V, and there are tiles of half and a quarter of the rows, with room for what warpgroups hand
    over; for 128 a place has one tile. Behind the barriers 16 bytes for each warpgroup say which rows it has.
    """
    columns, places, each, warpgroups = (64, 8, 2, 4) if head_dim == 64 else (128, 6, 1, 2)
    found = []
    for groups in (4, 2, 1) if head_dim == 64 else (2,):
        parts = warpgroups - groups
        shared = 2 * (64 * groups + each * places * columns) * head_dim + parts * 4 * 128 * (head_dim // 2 + 4)
        shared += 8 * (2 * groups + 2 * places + 2 * parts) + 16 * warpgroups + 1024
        found.append(Tile(64 * groups, columns, 4 * (warpgroups + 1), shared, more=(("STAGES", places),)))
    return found


def backward_tile(head_dim: int) -> Tile:
    """Of the two kernels with products of `tiled_o6_backward.cu`. Each of two warpgroups holds two tiles of 64 rows; a
    place of the ring has two such tiles, and two numbers for each row; barriers, and 16 bytes that say which rows.
    """
    columns, warpgroups, places = 64, 2, 8 if head_dim == 64 else 4
    shared = 2 * (warpgroups + places) * columns * head_dim * 2 + places * 2 * columns * 4
    shared += 8 * (2 + 2 * places) + 16 + 1024
    return Tile(warpgroups * columns, columns, 4 * (warpgroups + 1), shared, more=(("STAGES", places),))


STAGES: dict[str, Stage] = {
    "tiled_o0": Stage("own kernel: tiles in shared memory, online softmax", _o0_tiles, rows_of_one_head),
    "tiled_o1": Stage("own kernel: + parallel over heads, masked tiles skipped", _o1_tiles),
    "tiled_o2": Stage("own kernel: + 16-byte loads, queries in registers", _o2_tiles, head_dims=(64, 128)),
    "tiled_o3": Stage("own kernel: + cp.async, register blocking", _o3_tiles, head_dims=(64, 128), capability=(8, 0)),
    "tiled_o4": Stage(
        "own kernel: + tensor cores (mma.sync)",
        _o4_tiles,
        blocks_or_halves,
        dtypes=("fp16",),
        head_dims=(64, 128),
        capability=(8, 0),
    ),
    "tiled_o5": Stage(
        "own kernel: Hopper's wgmma and TMA",
        _o5_tiles,
        halves_per_multiprocessor,
        dtypes=("fp16",),
        head_dims=(64, 128),
        capability=(9, 0),
        exactly=True,
        arguments="_tiled_tma",
    ),
    "tiled_o6": Stage(
        "own kernel: + softmax overlaps with products, tiles assigned head by head",
        _o6_tiles,
        one_per_multiprocessor,
        dtypes=("fp16", "bf16"),
        head_dims=(64, 128),
        capability=(9, 0),
        exactly=True,
        arguments="_tiled_tma",
        log_sum_exp=True,
        by_load=True,
        backward="_tiled_backward",
    ),
}


def require(name: str, dtype: str, head_dim: int, device: Device) -> None:
    """Raises `TiledError` where a stage cannot compute this, or not on this device."""
    stage = STAGES[name]
    if dtype not in stage.dtypes:
        raise TiledError(f"{name} computes {' and '.join(stage.dtypes)}, not {dtype}")
    if stage.head_dims and head_dim not in stage.head_dims:
        some = " and ".join(map(str, stage.head_dims))
        raise TiledError(f"{name} is for head dimensions {some}, not {head_dim}")
    if head_dim > LARGEST_HEAD_DIM:
        raise TiledError(f"{name} is for head dimensions up to {LARGEST_HEAD_DIM}, not {head_dim}")
    right = device.capability == stage.capability if stage.exactly else device.capability >= stage.capability
    if not right:
        needed = ".".join(map(str, stage.capability)) + ("" if stage.exactly else " or newer")
        found = ".".join(map(str, device.capability))
        raise TiledError(f"{name} needs a GPU of compute capability {needed}, {device.name} has {found}")


def fitting_tile(
    name: str, dtype: str, head_dim: int, device: Device, columns: int = 0, load: Load | None = None
) -> Tile:
    """The best tile that the device has room for, or the one of so many keys; `TiledError` says why not.

    Of a stage that has tiles for emptier GPUs, the first that fills this one with what a launch has to do, or the last.
    """
    lacking, tiles = "", STAGES[name].tiles(dtype, head_dim)
    if columns and columns not in [tile.columns for tile in tiles]:
        widths = " or ".join(str(width) for width in dict.fromkeys(tile.columns for tile in tiles))
        raise TiledError(f"{name} has tiles of {widths} keys for {dtype} and head dimension {head_dim}, not {columns}")
    if load and STAGES[name].by_load:
        tiles = [tile for tile in tiles if load.fills(tile.rows, device)] or tiles[-1:]
    for tile in [tile for tile in tiles if columns in (0, tile.columns)]:
        if tile.threads > device.threads:
            lacking = f"{tile.threads} threads per block; {device.name} has {device.threads}"
        elif tile.shared_bytes > device.shared_bytes:
            lacking = (
                f"{tile.shared_bytes:,} bytes of shared memory per block; {device.name} has {device.shared_bytes:,}"
            )
        else:
            return tile
    raise TiledError(f"for {dtype} and head dimension {head_dim}, {name} needs {lacking}")


def macros(dtype: str, head_dim: int, tile: Tile) -> dict[str, int]:
    """What a kernel is compiled with."""
    return {
        "HALF": int(dtype == "fp16"),
        "HEAD_DIM": head_dim,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "WARPS": tile.warps,
        "BLOCKS": tile.blocks,
        **dict(tile.more),
    }


def compile_options(name: str, defined: Mapping[str, int], device: Device) -> tuple[str, ...]:
    """NVRTC's options. Numbers below 1e-38 count as zero, which makes of exp2f one instruction; nothing else is fast
    and loose.
    """
    arch = f"sm_{device.arch}{'a' if STAGES[name].exactly else ''}"
    defines = (f"-D{macro}={value}" for macro, value in defined.items())
    return (f"-arch={arch}", "-std=c++17", "-ftz=true", "-lineinfo", *defines)


def launch_grid(name: str, tile: Tile, heads: int, queries: int, device: Device) -> Grid:
    """How many blocks there are; `TiledError` where they are more than a grid can have."""
    grid = STAGES[name].grid(-(-queries // tile.rows), heads, device)
    for size, most, axis in zip(grid, (2**31 - 1, 65535, 65535), "xyz", strict=True):
        if size > most:
            raise TiledError(f"{name} needs {size:,} blocks along {axis}, CUDA allows {most:,}: too many rows or heads")
    return grid
