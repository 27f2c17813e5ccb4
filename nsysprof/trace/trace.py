"""A trace: what was recorded, as narrow numpy columns with ids resolved to codes; its report, and what reads it."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arena import IN_MEMORY, ColumnArena
from nsysprof.core.columns import ranks
from nsysprof.core.intervals import expand_ranges, merge, settled
from nsysprof.statistics.summary import clock_step
from nsysprof.trace import details
from nsysprof.trace.about import About

Progress: TypeAlias = Callable[[str, int], None]
"""Is given the name of a step of the work, and how many rows it has just done."""

_CHUNK = 1 << 20  # GPU ops at a time where temporaries would be large
_CLOCK_SAMPLE = 20_000  # GPU ops that show the step of a clock

# Kinds of GPU ops. MIGRATION: the driver moves pages of unified memory; nobody launched that, on no stream.
KERNEL, MEMCPY, MEMSET, GRAPH, MIGRATION = range(5)
COPYING = (MEMCPY, MEMSET, MIGRATION)
# Kinds of memory as CUDA calls them (CUpti_ActivityMemoryKind); the last where that is not recorded.
MEMORY_KINDS = ("pageable", "pinned", "device", "array", "managed", "device static", "managed static", "")
# Kinds of ranges: NVTX's and annotations of PyTorch, found iterations, MPI calls, OpenACC constructs, operators and
# modules of PyTorch. All but the last are of a thread, where
# they nest; a start/end range is a window of its process.
PUSH_POP, FOUND, MPI, OPENACC, OPERATOR, MODULE, START_END = range(7)
RANGE_KINDS = ("push_pop", "found", "mpi", "openacc", "operator", "module", "start_end")
DEFAULT_DOMAIN = "default"


@dataclass(frozen=True)
class Unread:
    """A table whose rows are missing from the answer, and the columns without which they cannot be read."""

    table: str
    rows: int
    lacks: tuple[str, ...]


@dataclass(frozen=True)
class Device:
    """A CUDA device as one process sees it. ``gpu`` is an index into ``report.about.gpus``, None where unknown."""

    process: int
    cuda_id: int
    gpu: int | None


@dataclass(frozen=True)
class Stream:
    """A stream of a device; ``device`` is an index into `Trace.devices`, ``id`` None where none is recorded.

    ``migrates``: it stands for what the driver moves to and from the device; nothing was ever launched on it.
    """

    device: int
    id: int | None
    migrates: bool = False


@dataclass(frozen=True)
class Ranges:
    """Ranges, a row per instance, sorted by (process, thread, START_END or not, start, longest first).

    ``thread`` code of `Trace.threads`; ``start``, ``end`` int64 ns; ``kind`` uint8, an index into `RANGE_KINDS`;
    ``name`` int32 into `Trace.range_names`; ``unclosed`` bool: never closed by the program, ends with the session;
    ``moved`` bool: a start/end range of which the report says on which thread it ended.
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

    ``thread`` code of `Trace.threads`; ``start``, ``end`` int64 ns; ``name`` a code of `Trace.call_names`, -1 where
    that is not known.
    """

    thread: NDArray[np.integer]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Ops:
    """GPU operations, in the order of the file.

    ``start``, ``end`` int64 ns; ``kind`` uint8: KERNEL, MEMCPY, MEMSET, GRAPH (a CUDA-graph launch traced as a
    whole) or MIGRATION (pages of unified memory); ``name`` int32 into `Trace.op_names`; ``stream`` code of
    `Trace.streams`; ``launch`` int32, a row of `Launches`, -1 where there is none; ``from_graph`` bool: a node of a
    CUDA graph.
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
class Copies:
    """What GPU ops of the kinds `COPYING` moved or set, in their order.

    ``size_bytes`` int64, -1 where not recorded; ``source``, ``destination`` uint8, indexes of `MEMORY_KINDS`; ``cause``
    uint8, of a migration, nsys's number.
    """

    size_bytes: NDArray[np.int64]
    source: NDArray[np.uint8]
    destination: NDArray[np.uint8]
    cause: NDArray[np.uint8]


class Reader(ABC):
    """Reads one trace in the format of one recorder. What a format does not record is empty, never invented.

    ``format`` is what `analysis.json` calls it, ``recorder`` the program that recorded it. ``endings`` are what the
    names of such files and folders end with; of several with one name before that, the first is to be read;
    ``annotations`` whose ranges those are that programs make; ``recording`` the command that records them and the GPU.
    A subclass decides in `claims` which files are its own.
    """

    format: str
    recorder = "nsys"
    endings: tuple[str, ...] = ()
    annotations = "NVTX"
    recording = "nsys profile --trace=cuda,nvtx PROGRAM"

    @classmethod
    @abstractmethod
    def claims(cls, path: Path) -> bool:
        """Whether a file, or a folder, is in this format, by what it holds."""

    @classmethod
    @abstractmethod
    def open(cls, path: Path, **options: Path | None) -> Report:
        """Open a trace that it claims; ``options`` are those of `open_report`."""

    @abstractmethod
    def trace(self, report: Report, progress: Progress | None, arena: ColumnArena) -> Trace:
        """The ranges, launches and GPU ops, their long columns in ``arena``."""

    @abstractmethod
    def steps(self) -> int:
        """About how many rows `trace`, and the attribution of them, count to a progress bar."""

    def bytes_needed(self, enough: int) -> int:
        """About how much memory an analysis takes; not computed if it is certainly less than ``enough``."""
        return 0

    def other_ranges(self, trace: Trace, sources: Collection[str]) -> details.OtherRanges:
        """The ranges that are not NVTX's of these ``sources``, of ``mpi``, ``openacc``, ``ops`` and ``modules``."""
        return details.NO_RANGES

    def op_details(self, trace: Trace) -> details.OpDetails:
        """Grids, sizes and the like of each GPU op."""
        return details.no_op_details(len(trace.ops))

    def collectives(self, trace: Trace) -> details.Collectives:
        """The collectives among the GPU ops, with communicators and sizes; none where only kernels have names."""
        return details.NO_COLLECTIVES

    def grids(self) -> NDArray[np.int64]:
        """The grid of each kernel in the order of `Trace.ops`, see `details.packed`; empty where not recorded."""
        return np.empty(0, np.int64)

    def blocks(self) -> NDArray[np.int64]:
        """The block, in threads, of each kernel, likewise."""
        return np.empty(0, np.int64)

    def call_list(self, progress: Progress | None = None) -> details.CallList:
        """All host CUDA calls, those that launched nothing too."""
        return details.NO_CALLS

    def other_calls(self, kinds: Collection[str], arena: ColumnArena = IN_MEMORY) -> details.HostCalls:
        """The host calls that are not CUDA's of these kinds, of ``mpi`` and ``os``."""
        return details.NO_HOST_CALLS

    def dependencies(self, trace: Trace) -> details.Dependencies:
        """What makes the streams of a trace wait for one another."""
        return details.no_dependencies(len(trace.streams))

    def captures(self, trace: Trace) -> details.Captures:
        """Where the nodes of CUDA graphs were captured that the ops of a trace are."""
        return details.no_captures(len(trace.ops))

    def host_activity(self, arena: ColumnArena = IN_MEMORY) -> details.HostActivity:
        """What the host's threads did: CUDA calls, calls of the operating system, the profiler's own work."""
        return details.NO_ACTIVITY

    def operator_calls(self, trace: Trace) -> details.OperatorCalls:
        """Calls of PyTorch's operators with the shapes of their inputs."""
        return details.NO_OPERATORS

    def autograd(self, trace: Trace) -> details.AutogradOps:
        """The operators that PyTorch's autograd numbers."""
        return details.NO_AUTOGRAD

    def page_faults(self) -> details.PageFaults:
        """Page faults of unified memory."""
        return details.NO_FAULTS

    def memory(self) -> details.MemoryEvents:
        """GPU memory that was allocated and given back."""
        return details.NO_MEMORY

    def samples(self, about: About) -> dict[int, details.GpuSamples]:
        """Samples of the metrics of GPUs, by the number of the GPU."""
        return {}

    def not_read(self) -> dict[str, int]:
        """What is recorded and nothing reads: tables, or categories of events, with how many rows they have."""
        return {}

    def thread_names(self) -> dict[int, str]:
        """The names of threads, by their ids in `Trace.threads`."""
        return {}

    def job(self) -> details.Job:
        """Which part of a job the program was."""
        return details.Job()


@dataclass(frozen=True, repr=False)
class Report:
    """An open report: close it, or use it in a ``with`` statement, to remove what was exported for it.

    ``path`` is what the user named, ``file`` what is read: the same, or the export of a ``.nsys-rep``.
    """

    path: Path
    file: Path
    reader: Reader
    about: About
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        gpus = ", ".join(dict.fromkeys(gpu.name for gpu in self.about.cuda_gpus)) or "GPU not recorded"
        version = self.about.nsys_version or "of unknown version"
        return f"<Report {self.path.name}: {self.format}, {self.reader.recorder} {version}, {gpus}>"

    @property
    def format(self) -> str:
        """What the file is: ``sqlite``, ``parquet``, or what another reader calls its own."""
        return self.reader.format

    def close(self) -> None:
        """Remove the temporary export; a second call does nothing. No file is kept open between reads."""
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True)
class OpsByLaunch:
    """The GPU ops that have a launch, in the order of their launches; and where those of each begin, and the end.

    ``begins`` is None where every launch caused one.
    """

    ops: NDArray[np.int32]
    begins: NDArray[np.int64] | None

    def of(self, launches: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """What launches caused, one launch after the other, and how much each did."""
        if self.begins is None:
            return self.ops[launches], np.ones(len(launches), np.int64)
        size = self.begins[launches + 1] - self.begins[launches]
        return self.ops[expand_ranges(self.begins[launches], size)], size


@dataclass(frozen=True, repr=False)
class Trace:
    """Everything that attribution needs of what was recorded.

    ``threads`` and ``processes`` are the sorted globalTids and globalPids (int64), ``thread_process`` maps the one to
    the other. ``session_end`` is where unclosed ranges end, in ns; ``unread`` are the tables whose rows are missing;
    ``no_work`` says why there are no ops, empty where there are some; ``never_popped`` counts ranges that are not in
    ``ranges``, as each is inside one of its name that, like itself, is never popped; ``call_names`` are those of CUDA
    calls, without the versions that CUPTI appends, ``other_calls`` those that are not in ``launches``, None where they
    are not known; ``arena`` holds the long columns; ``named_threads`` are the names that the program gave its threads
    by NVTX, by globalTid; ``opened_on`` are the codes of the threads that opened ranges, where some of these count for
    another one, None where none does.
    """

    report: Report
    ranges: Ranges
    launches: Launches
    ops: Ops
    range_names: list[details.RangeName]
    op_names: list[str]
    threads: NDArray[np.int64]
    thread_process: NDArray[np.int32]
    processes: NDArray[np.int64]
    devices: list[Device]
    streams: list[Stream]
    copies: Copies
    session_end: int
    warnings: tuple[str, ...]
    unread: tuple[Unread, ...] = ()
    no_work: str = ""
    never_popped: int = 0
    call_names: tuple[str, ...] = ()
    arena: ColumnArena = field(default=IN_MEMORY, repr=False)
    named_threads: dict[int, str] = field(default_factory=dict, repr=False)
    other_calls: details.HostCalls | None = field(default=None, repr=False)
    opened_on: NDArray[np.integer] | None = field(default=None, repr=False)

    @property
    def range_openers(self) -> NDArray[np.integer]:
        """The code of the thread that opened each range."""
        return self.ranges.thread if self.opened_on is None else self.opened_on

    def __repr__(self) -> str:
        counts = f"{len(self.ranges):,} ranges, {len(self.launches):,} launches, {len(self.ops):,} GPU ops"
        return f"<Trace of {self.report.path.name}: {counts}>"

    @cached_property
    def thread_names(self) -> dict[int, str]:
        """The names of threads by globalTid: those given by NVTX, else the system's; the report must be open."""
        return {**self.report.reader.thread_names(), **self.named_threads}

    def thread_label(self, thread: int) -> str:
        """What readers see of the thread of that code: its name, if it has one, and its number."""
        tid = int(self.threads[thread])
        return f"{self.thread_names.get(tid) or 'thread'} {tid_of(tid)}"

    @cached_property
    def gpu_numbers(self) -> list[int]:
        """A number per device: that of its GPU in the report; a device of unknown GPU is one of its own, behind them.

        GPUs whose numbers in the report are not small and distinct are counted instead.
        """
        ids = {at: gpu.id for at, gpu in enumerate(self.report.about.gpus)}
        if len(set(ids.values())) < len(ids) or any(not 0 <= number < _MAX_GPUS for number in ids.values()):
            ids = {}
        others: dict[object, int] = {}
        free = max(ids.values(), default=-1) + 1
        return [
            ids[device.gpu]
            if device.gpu in ids
            else others.setdefault(device if device.gpu is None else device.gpu, free + len(others))
            for device in self.devices
        ]

    @property
    def gpu_of(self) -> dict[tuple[int, int], int]:
        """The GPU number of each device, by globalPid and CUDA id."""
        return {
            (int(self.processes[device.process]), device.cuda_id): number
            for device, number in zip(self.devices, self.gpu_numbers, strict=True)
        }

    @cached_property
    def clock_step(self) -> int:
        """The step of the GPUs' clock in ns, read off the first kernels; 0 where they show none."""
        kernels = np.flatnonzero(self.ops.kind[:_CLOCK_SAMPLE] == KERNEL)
        return clock_step(self.ops.end[kernels] - self.ops.start[kernels])

    @cached_property
    def op_name_rank(self) -> NDArray[np.int32]:
        """The place of each name of GPU ops in their alphabetical order."""
        return ranks(self.op_names)

    def settled(self, order: NDArray[np.intp], *values: NDArray[np.integer]) -> NDArray[np.intp]:
        """Rows of GPU ops, in the order of ``values``, a row each, without the order of the file between equal ones.

        There stream, start, end, name and launch decide.
        """
        equal = np.ones(max(len(order) - 1, 0), bool)
        for value in values:
            equal &= value[1:] == value[:-1]
        if not equal.any():
            return order
        ops, name = self.ops, self.op_name_rank[self.ops.name]
        return settled(order, equal, ops.launch, name, ops.end, ops.start, ops.stream)

    @cached_property
    def op_gpu(self) -> NDArray[np.int32]:
        """The GPU number of each GPU op; -1 for migrations, which keep no GPU busy."""
        return self.arena.take(self.stream_gpu, self.ops.stream)

    def ops_of_gpu(self, number: int) -> NDArray[np.bool_]:
        """Which GPU ops ran on the GPU of that number; migrations ran on none."""
        chosen: NDArray[np.bool_] = (self.stream_gpu == number)[self.ops.stream]
        return chosen

    @cached_property
    def gpu_busy(self) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """When each GPU, by its number, runs at least one GPU op: the disjoint, sorted stretches ``(start, end)``."""
        busy = {}
        for number in sorted(set(self.gpu_numbers)):
            ops = np.flatnonzero(self.op_gpu == number)
            start, end = merge(self.ops.start[ops], self.ops.end[ops])
            busy[number] = self.arena.cast(start, np.int64), self.arena.cast(end, np.int64)
        return busy

    @cached_property
    def stream_gpu(self) -> NDArray[np.int32]:
        """The GPU number of each stream; -1 for those of migrations."""
        migrates = np.array([stream.migrates for stream in self.streams], bool)
        return np.where(migrates, np.int32(-1), np.array(self.gpu_numbers, np.int32)[self.stream_device])

    @cached_property
    def page_faults(self) -> details.PageFaults:
        """Page faults of unified memory; the report must be open."""
        return self.report.reader.page_faults()

    @cached_property
    def memory(self) -> details.MemoryEvents:
        """GPU memory that was allocated and given back; the report must be open."""
        return self.report.reader.memory()

    @cached_property
    def samples(self) -> dict[int, details.GpuSamples]:
        """Samples of the metrics of each GPU that was sampled, by its number; the report must be open."""
        return self.report.reader.samples(self.report.about)

    @cached_property
    def ops_by_launch(self) -> OpsByLaunch:
        """The GPU ops in the order of their launches."""
        launch, count = self.ops.launch, len(self.launches)
        if np.count_nonzero(launch >= 0) == count:
            rows = self.arena.full(count, -1, np.int32)
            for first in range(0, len(launch), _CHUNK):
                part = launch[first : first + _CHUNK]
                known = np.flatnonzero(part >= 0)
                rows[part[known]] = first + known
            if not count or rows.min() >= 0:
                return OpsByLaunch(rows, None)
        with_launch = np.flatnonzero(launch >= 0).astype(np.int32)
        launch = launch[with_launch]
        order = np.argsort(launch, kind="stable")
        begins = np.append(0, np.cumsum(np.bincount(launch, minlength=count)))
        return OpsByLaunch(self.arena.take(with_launch, order), begins)

    @cached_property
    def copy_ops(self) -> NDArray[np.intp]:
        """The GPU ops that `copies` has a row for: copies, memsets and migrations."""
        return np.flatnonzero(np.isin(np.arange(MIGRATION + 1), COPYING)[self.ops.kind])

    def copy_sizes(self) -> NDArray[np.int64]:
        """The bytes that each GPU op copied or set, -1 where it did not, or that is not recorded."""
        sizes = self.arena.full(len(self.ops), -1, np.int64)
        sizes[self.copy_ops] = self.copies.size_bytes
        return sizes

    @property
    def op_process(self) -> NDArray[np.int32]:
        """The process of each GPU op, as its row has it."""
        return self.stream_process.take(self.ops.stream)

    @cached_property
    def stream_device(self) -> NDArray[np.int32]:
        """The device of each stream."""
        return np.array([stream.device for stream in self.streams], np.int32)

    @cached_property
    def stream_process(self) -> NDArray[np.int32]:
        """The process of each stream."""
        return np.array([self.devices[stream.device].process for stream in self.streams], np.int32)


Tables = Trace  # as it was called before
_MAX_GPUS = 64
PROCESS_OF_THREAD = np.int64(-0x1000000)  # globalTid & this = globalPid
Id = TypeVar("Id", int, NDArray[np.int64])


def pid_of(global_id: Id) -> Id:
    """The process id in a globalTid or globalPid, or in each of an array."""
    return (global_id >> 24) & 0xFFFFFF


def tid_of(global_id: Id) -> Id:
    """The thread id in a globalTid, or in each of an array."""
    return global_id & 0xFFFFFF


def op_slices(trace: Trace) -> Iterator[slice]:
    """Go through all GPU ops, some at a time."""
    for first in range(0, len(trace.ops), _CHUNK):
        yield slice(first, first + _CHUNK)


def recorded_as(trace: Trace, kind: NDArray[np.uint8]) -> str:
    """What recorded ranges of these kinds, in words: ``NVTX``, or ``NVTX, MPI``; found iterations are ``found``."""
    by = trace.report.reader.annotations
    words = {PUSH_POP: by, START_END: by, MPI: "MPI", OPENACC: "OpenACC", OPERATOR: "operator", MODULE: "module"}
    words[FOUND] = "found"
    present = np.bincount(kind, minlength=len(RANGE_KINDS))
    return ", ".join(dict.fromkeys(word for code, word in words.items() if present[code])) or by
