"""Compute how many blocks of a kernel fit on an SM (by the limits of the compute capability), and the waves of a grid.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the allocation rules for
registers and shared memory: CUDA's occupancy calculator (`cuda_occupancy.h`).
"""

from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import Floats, Index, Ints

# Blocks and warps that an SM holds, and KiB of shared memory, by compute capability.
_LIMITS: dict[tuple[int, int], tuple[int, int, int]] = {
    **dict.fromkeys([(5, 0), (5, 3), (6, 0), (6, 2)], (32, 64, 64)),
    **dict.fromkeys([(5, 2), (6, 1), (7, 0), (7, 2)], (32, 64, 96)),
    (7, 5): (16, 32, 64),
    (8, 0): (32, 64, 164),
    (8, 6): (16, 48, 100),
    (8, 7): (16, 48, 164),
    (8, 9): (24, 48, 100),
    **dict.fromkeys([(9, 0), (10, 0), (10, 3)], (32, 64, 228)),
    (11, 0): (24, 48, 228),
    **dict.fromkeys([(12, 0), (12, 1)], (24, 48, 100)),
}
LIMITERS = ("blocks", "warps", "registers", "shared memory")
_WARP, _REGISTERS, _PARTS = 32, 65_536, 4  # of each SM; its warp schedulers have a part of the registers each


@dataclass(frozen=True)
class Occupancy:
    """Per launch: ``blocks`` (int64): blocks that fit on an SM at once; 0 if the kernel cannot run or a value is
    unknown; ``occupancy``, their share of an SM's warps, float64; ``limiter``, an index into `LIMITERS`.
    """

    blocks: Ints
    occupancy: Floats
    limiter: Index

    def waves(self, grid: Ints, sms: int) -> Floats:
        """Return how many times a grid fills the GPU; NaN if unknown."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.blocks > 0, grid / (self.blocks * sms), np.nan)


def occupancy(capability: tuple[int, int] | None, threads: Ints, registers: Ints, shared: Ints) -> Occupancy | None:
    """Compute the theoretical occupancy of launches; returns None for a GPU with unknown limits.

    ``threads`` are per block, ``registers`` per thread, and ``shared`` memory is in bytes per block (static plus
    dynamic). Negative values, and values of 2^31 or more, mean unknown; the occupancy is then unknown, too.
    """
    if capability not in _LIMITS:
        return None
    most_blocks, most_warps, kib = _LIMITS[capability]
    most = np.maximum(threads, np.maximum(registers, shared))
    known = (threads > 0) & (np.minimum(registers, shared) >= 0) & (most < 1 << 31)
    threads, registers, shared = (np.where(known, each, 1) for each in (threads, registers, shared))
    warps = -(-threads // _WARP)
    of_warp = -(-np.maximum(registers, 1) * _WARP // 256) * 256
    by_registers = _REGISTERS // _PARTS // of_warp * _PARTS // warps
    newer = capability >= (8, 0)
    unit, reserved = (128, 1024) if newer else (256, 0)
    of_block = -(-(shared + reserved) // unit) * unit
    by_shared = (kib << 10) // np.maximum(of_block, 1)
    limits = np.stack([np.full(len(threads), most_blocks), most_warps // warps, by_registers, by_shared])
    blocks = np.where(known, limits.min(axis=0), 0).astype(np.int64)
    # where several limits are equal the one is named that a programmer can change
    limiter = len(limits) - 1 - limits[::-1].argmin(axis=0)
    return Occupancy(blocks, np.minimum(blocks * warps / most_warps, 1.0), limiter)
