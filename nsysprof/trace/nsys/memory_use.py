"""Reads how much GPU memory was allocated over time, where that was recorded (``--cuda-memory-usage=true``)."""

from __future__ import annotations

import numpy as np

from nsysprof.trace.details import MemoryUse
from nsysprof.trace.nsys.columns import Growing, Source, column, has_all

TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_ALLOCATION, _RELEASE = 0, 1
_KINDS = ("pageable", "pinned", "device", "array", "managed", "device static", "managed static")
_NEEDS = ("start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType")


def read_memory_use(source: Source) -> tuple[MemoryUse, ...]:
    """The `MemoryUse` of each process, device and kind; empty where it was not recorded.

    A release gives back what was allocated at its address, whatever size it states; so does an allocation at an
    address the release of which was not recorded. What was allocated before the recording began is not known, and its
    release is left out.
    """
    if not has_all(source, TABLE, _NEEDS):
        return ()
    rows = Growing(
        start="i8",
        globalPid="i8",
        deviceId="i8",
        address="i8",
        bytes="i8",
        memKind="i8",
        memoryOperationType="i8",
    )
    for block in source.blocks(TABLE, _NEEDS):
        rows.add(block.rows, **{name: column(block, name) for name in _NEEDS})
    columns = [rows.take(name) for name in _NEEDS]
    order = np.argsort(columns[0], kind="stable")
    held: dict[tuple[int, int, int], tuple[tuple[int, int, int], int]] = {}
    now: dict[tuple[int, int, int], int] = {}
    steps: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for start, process, device, address, size, kind, operation in zip(
        *(values[order].tolist() for values in columns), strict=True
    ):
        place, changes = (process, device, address), []
        if operation in (_ALLOCATION, _RELEASE) and place in held:
            key, released = held.pop(place)
            changes.append((key, -released))
        if operation == _ALLOCATION:
            held[place] = (process, device, kind), size
            changes.append(held[place])
        for key, change in changes:
            now[key] = now.get(key, 0) + change
            steps.setdefault(key, []).append((start, now[key]))
    return tuple(
        MemoryUse(process, device, _kind(kind), *np.array(points, np.int64).reshape(-1, 2).T)
        for (process, device, kind), points in sorted(steps.items())
    )


def _kind(number: int) -> str:
    return _KINDS[number] if 0 <= number < len(_KINDS) else "other"
