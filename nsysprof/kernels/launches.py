"""Find how kernels were launched: a trace's distinct launches, with blocks per SM, waves and occupancy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nsysprof.core.arrays import AnyInts, Floats, Index, Ints
from nsysprof.core.columns import Column, Texts, distinct
from nsysprof.hardware.occupancy import LIMITERS, Occupancy, occupancy
from nsysprof.trace.about import Gpu
from nsysprof.trace.details import OpDetails, grid_text, launch_parameters, no_op_details, unpacked
from nsysprof.trace.trace import Trace

_MOST_THREADS, _MOST_REGISTERS = 1024, 255  # of a block; of a thread
_DENSE = 1 << 22  # sums of all groups and launches that are kept at once
_GRID, _BLOCK, _GPU, _LIMITS, _KNOWN = range(5)
REASONS = (
    "grid not recorded or not possible",
    "block not possible",
    "GPUs of several kinds",
    "limits of the GPU are unknown",
    "",
)


@dataclass(frozen=True)
class Launches:
    """A row per distinct launch of GPU ops; ``of`` is the row of each op.

    ``grid``, ``block`` packed as in `OpDetails`; ``blocks`` of the grid and ``threads`` per block, 0 if unknown;
    ``registers``, ``shared``, ``dynamic_shared`` and ``local_memory`` as in `OpDetails`, -1 if unknown. ``sms``: the
    number of SMs of the largest GPU, 0 if unknown. ``held``: the number of blocks that fit on an SM; ``waves``: how
    many times the grid fills the GPU (NaN: unknown). ``tail``: the empty share of the last wave. ``reason``: why
    occupancy and waves are unknown, an index into `REASONS`.
    """

    of: AnyInts
    grid: Ints
    block: Ints
    blocks: Ints
    threads: Ints
    registers: Ints
    shared: Ints
    dynamic_shared: Ints
    local_memory: Ints
    sms: int
    held: Occupancy
    waves: Floats
    tail: Floats
    reason: Index

    def __len__(self) -> int:
        return len(self.grid)

    def take(self, ops: AnyInts) -> Launches:
        """The launches of the given GPU ops."""
        return replace(self, of=self.of[ops])


def launches_of(trace: Trace) -> Launches | None:
    """Find the launches of a trace (the report must be open); None if reader and trace have different ops."""
    known, gpus = trace.geometry, trace.report.about.cuda_gpus
    if known is not None and known.whole:
        return _launches(known.rows, known.of, gpus)
    details = trace.report.reader.op_details(trace)
    return launches(details, gpus) if len(details.grid) == len(trace.ops) else None


def no_launches(ops: int) -> Launches:
    """Unknown launches for ``ops`` GPU ops."""
    return replace(launches(no_op_details(1), []), of=np.zeros(ops, np.int32))


def launches(details: OpDetails, gpus: Sequence[Gpu]) -> Launches:
    """Find the distinct launches of GPU ops on the GPUs of a trace."""
    first, of = distinct(*launch_parameters(details))
    return _launches([column[first] for column in launch_parameters(details)], of, gpus)


def _launches(columns: list[Ints], of: AnyInts, gpus: Sequence[Gpu]) -> Launches:
    order = np.lexsort(columns)  # whichever comes first in the file
    of = np.argsort(order, kind="stable").astype(np.min_scalar_type(len(order))).take(of)
    grid, block, registers, shared, dynamic, local = (column[order].astype(np.int64) for column in columns)
    blocks, threads = (np.prod(np.stack(unpacked(each)), axis=0) for each in (grid, block))
    sizes = {gpu.sm_count for gpu in gpus}
    sms = max((size or 0 for size in sizes), default=0)
    kinds = {gpu.compute_capability for gpu in gpus}
    one = len(kinds) == len(sizes) == 1
    possible = (threads > 0) & (threads <= _MOST_THREADS) & (registers <= _MOST_REGISTERS)
    held = occupancy(next(iter(kinds)) if one else None, np.where(possible, threads, 0), registers, shared)
    reason = np.full(len(grid), _KNOWN)
    if held is None:
        reason[:] = _GPU if len(gpus) and not one else _LIMITS
        nothing = np.zeros(len(grid))
        held = Occupancy(nothing.astype(np.int64), nothing, nothing.astype(np.intp))
    reason[(held.blocks == 0) & (reason == _KNOWN)] = _BLOCK
    reason[(blocks <= 0) | (threads <= 0)] = _GRID
    waves = np.where(blocks > 0, held.waves(blocks, sms), np.nan) if sms else np.full(len(grid), np.nan)
    whole = np.ceil(waves)
    return Launches(
        of, grid, block, blocks, threads, registers, shared, dynamic, local, sms, held, waves, whole - waves, reason
    )  # fmt: skip


# The columns of a kernel's launch, see `launch_columns`.
COLUMNS = {
    "grid": "size of the grid (in blocks) of the launches that take the most GPU time; empty if not recorded",
    "block": "size of a block (in threads)",
    "registers": "number of registers per thread; -1 if not recorded (also in the next columns)",
    "shared_bytes": "static and dynamic shared memory per block",
    "dynamic_shared_bytes": "dynamic shared memory per block (part of shared_bytes)",
    "local_bytes": "local memory per thread (spilled registers and arrays)",
    "blocks_per_sm": "number of blocks that a multiprocessor holds at once; 0 if unknown",
    "waves": "number of waves: how many times the grid fills the GPU; -1 if unknown (also in the next columns)",
    "tail_idle": "share of the last wave that is empty",
    "occupancy": "theoretical occupancy: share of an SM's warp slots that resident blocks fill",
    "occupancy_limit": "resource that limits the occupancy: blocks, warps, registers or shared memory",
    "geometry_unknown": "reason why occupancy and waves are unknown; empty if known",
}


def launch_columns(known: Launches, rows: AnyInts) -> dict[str, Column]:
    """Make the `COLUMNS` for launches, which are given as rows of ``known`` (-1: no launch)."""
    none = rows < 0
    at = np.where(none, 0, rows)
    whole = {name: getattr(known, name) for name in ("registers", "shared", "dynamic_shared", "local_memory")}
    numbers = {name: np.where(none, -1, values[at]) for name, values in whole.items()}
    held, sure = known.held, (known.reason[at] == _KNOWN) & ~none
    sizes = [sorted({0, *packs.tolist()}) for packs in (known.grid, known.block)]
    packs = (np.where(none, 0, each[at]) for each in (known.grid, known.block))
    texts = [
        Texts(np.searchsorted(some, pack), [*map(grid_text, some)]) for some, pack in zip(sizes, packs, strict=True)
    ]
    limit = np.where(sure, held.limiter[at], len(LIMITERS))
    reason = np.where(none, _KNOWN, known.reason[at])
    parts = [np.where(sure, np.round(each[at], 4), -1.0) for each in (known.waves, known.tail, held.occupancy)]
    blocks = np.where(sure, held.blocks[at], 0)
    values: list[Column] = [
        *texts,
        *numbers.values(),
        blocks,
        *parts,
        Texts(limit, [*LIMITERS, ""]),
        Texts(reason, REASONS),
    ]
    return dict(zip(COLUMNS, values, strict=True))


def main_launch(group: AnyInts, launch: AnyInts, ns: Ints, count: int, kinds: int) -> Ints:
    """Return the launch with the most time in each of ``count`` groups, -1 for none.

    Arguments per op: ``group``, ``launch`` (one of ``kinds``), and time ``ns``.
    """
    if count * kinds <= _DENSE:
        total = np.bincount(group * np.int64(kinds) + launch, ns, count * kinds).reshape(count, kinds)
        return np.where(total.any(axis=1), total.argmax(axis=1), -1)
    first, pair = distinct(group, launch)
    order = np.argsort(np.bincount(pair, ns, len(first)), kind="stable")
    out = np.full(count, -1)
    out[group[first[order]]] = launch[first[order]]
    return out
