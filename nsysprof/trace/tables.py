"""The report as narrow numpy columns: ranges, launches and ops, with ids resolved to small codes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arena import IN_MEMORY, Room
from nsysprof.core.intervals import merge
from nsysprof.trace.nsys import Report
from nsysprof.trace.nsys.gpu_work import GRAPH, KERNEL, MEMCPY, MEMSET
from nsysprof.trace.nsys.nvtx import PUSH_POP, START_END, RangeName

__all__ = [
    "GRAPH", "KERNEL", "MEMCPY", "MEMSET", "PUSH_POP", "START_END",
    "Device", "Launches", "Ops", "RangeName", "Ranges", "Stream", "Tables", "only_ops", "pid_of", "tid_of",
]  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A CUDA device as one process sees it. ``gpu`` is an index into ``report.about.gpus``, None where unknown."""

    process: int
    cuda_id: int
    gpu: int | None


@dataclass(frozen=True)
class Stream:
    """A stream of a device; ``device`` is an index into `Tables.devices`, ``id`` None where none is recorded."""

    device: int
    id: int | None


@dataclass(frozen=True)
class Ranges:
    """NVTX ranges, a row per instance, sorted by (process, thread, kind, start, longest first).

    ``thread`` code of `Tables.threads`; ``start``, ``end`` int64 ns; ``kind`` uint8, PUSH_POP or START_END; ``name``
    int32 into `Tables.range_names`; ``unclosed`` bool: never closed by the program, ends with the session; ``moved``
    bool: a start/end range of which the report says on which thread it ended.
    """

    thread: NDArray[np.integer]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    unclosed: NDArray[np.bool_]
    moved: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Launches:
    """Host calls that caused GPU work, one row per (process, correlation id), sorted by (process, thread, start).

    ``thread`` code of `Tables.threads`; ``start``, ``end`` int64 ns.
    """

    thread: NDArray[np.integer]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Ops:
    """GPU operations, in the order of the file.

    ``start``, ``end`` int64 ns; ``kind`` uint8: KERNEL, MEMCPY, MEMSET or GRAPH (a CUDA-graph launch traced as a
    whole); ``name`` int32 into `Tables.op_names`; ``stream`` code of `Tables.streams`; ``launch`` int32, a row of
    `Launches`, -1 where there is none; ``from_graph`` bool: a node of a CUDA graph.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    stream: NDArray[np.integer]
    launch: NDArray[np.int32]
    from_graph: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Tables:
    """Everything that attribution needs of a report.

    ``threads`` and ``processes`` are the sorted globalTids and globalPids (int64), ``thread_process`` maps the one to
    the other. ``session_end`` is where unclosed ranges end, in ns; ``room`` is where long columns live.
    """

    report: Report
    ranges: Ranges
    launches: Launches
    ops: Ops
    range_names: list[RangeName]
    op_names: list[str]
    threads: NDArray[np.int64]
    thread_process: NDArray[np.int32]
    processes: NDArray[np.int64]
    devices: list[Device]
    streams: list[Stream]
    session_end: int
    warnings: tuple[str, ...]
    room: Room = field(default=IN_MEMORY, repr=False)

    @cached_property
    def gpu_numbers(self) -> list[int]:
        """A number per device, the same for devices that are one GPU; a device of unknown GPU is one of its own."""
        numbers: dict[object, int] = {}
        return [
            numbers.setdefault(("gpu", device.gpu) if device.gpu is not None else device, len(numbers))
            for device in self.devices
        ]

    @cached_property
    def op_gpu(self) -> NDArray[np.int32]:
        """The GPU number of each op."""
        return self.room.take(self.stream_gpu, self.ops.stream)

    def ops_of_gpu(self, number: int) -> NDArray[np.bool_]:
        """Which ops ran on the GPU of that number."""
        mine: NDArray[np.bool_] = (self.stream_gpu == number)[self.ops.stream]
        return mine

    @cached_property
    def gpu_busy(self) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """When each GPU, by its number, runs at least one op: the disjoint, sorted stretches ``(start, end)``."""
        found = {}
        for number in sorted(set(self.gpu_numbers)):
            mine = np.flatnonzero(self.op_gpu == number)
            start, end = merge(self.ops.start[mine], self.ops.end[mine])
            found[number] = self.room.cast(start, np.int64), self.room.cast(end, np.int64)
        return found

    @cached_property
    def stream_gpu(self) -> NDArray[np.int32]:
        """The GPU number of each stream."""
        return np.array(self.gpu_numbers, np.int32)[self.stream_device]

    @property
    def op_process(self) -> NDArray[np.int32]:
        """The process of each op, as far as its row tells."""
        return self.stream_process.take(self.ops.stream)

    @cached_property
    def stream_device(self) -> NDArray[np.int32]:
        """The device of each stream."""
        return np.array([stream.device for stream in self.streams], np.int32)

    @property
    def stream_process(self) -> NDArray[np.int32]:
        """The process of each stream."""
        return np.array([self.devices[stream.device].process for stream in self.streams], np.int32)


Id = TypeVar("Id", int, NDArray[np.int64])


def pid_of(global_id: Id) -> Id:
    """The process id in a globalTid or globalPid, or in each of an array."""
    return (global_id >> 24) & 0xFFFFFF


def tid_of(global_id: Id) -> Id:
    """The thread id in a globalTid, or in each of an array."""
    return global_id & 0xFFFFFF


def only_ops(tables: Tables, mine: NDArray[np.bool_]) -> Tables:
    """The same report with only some of its ops, and the launches that caused those."""
    ops, launches, room = tables.ops, tables.launches, tables.room
    rows = np.flatnonzero(mine)
    launch = room.take(ops.launch, rows)
    used = np.zeros(len(launches) + 1, bool)
    used[launch] = True
    used[-1] = False  # where ops without a launch point
    place = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
    calls = np.flatnonzero(used)
    kept = {name: room.take(values, rows) for name, values in ops.__dict__.items() if name != "launch"}
    return replace(
        tables,
        ops=Ops(**kept, launch=room.take(place, launch)),
        launches=Launches(*(room.take(values, calls) for values in launches.__dict__.values())),
    )
