"""The trace model: recorded data as narrow numpy columns, with codes instead of ids; also reports and readers."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from nsysprof.core.arena import IN_MEMORY, MANY_ROWS, ColumnArena, give_back
from nsysprof.core.arrays import AnyInts, Array, Bytes, Index, Ints, Ints32, Line, Mask, slices
from nsysprof.core.columns import pick, ranks
from nsysprof.core.intervals import expand_ranges, merge, settled
from nsysprof.core.parallel import MIN_ROWS, cores, in_threads
from nsysprof.statistics.summary import clock_step
from nsysprof.trace import details
from nsysprof.trace.about import About

Progress: TypeAlias = Callable[[str, int], None]
"""Receives the name of a phase and the number of rows just processed."""

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
STDERR = "a program's stderr ends with"  # in `Trace.no_work`, before the line


@dataclass(frozen=True)
class Unread:
    """A table that lacks columns, so that its rows are missing from the answer."""

    table: str
    rows: int
    lacks: tuple[str, ...]


@dataclass(frozen=True)
class Device:
    """A CUDA device as seen by one process. ``gpu`` is an index into ``report.about.gpus``, None if unknown."""

    process: int
    cuda_id: int
    gpu: int | None


@dataclass(frozen=True)
class Stream:
    """A stream of a device; ``device`` is an index into `Trace.devices`; ``id`` is None if not recorded.

    ``migrates``: whether the stream contains the driver's page migrations to and from the device, which have no
    launches.
    """

    device: int
    id: int | None
    migrates: bool = False


@dataclass(frozen=True)
class Ranges:
    """Ranges, a row per instance, sorted by (process, thread, START_END or not, start, longest first).

    ``thread`` is a code of `Trace.threads`; ``start`` and ``end`` are int64 ns; ``kind`` is an index into
    `RANGE_KINDS`, and ``name`` is an index into `Trace.range_names`. ``unclosed`` tells whether the program never
    closed the range, which then ends with the session. ``moved`` tells whether it is a start/end range for which the
    report names the thread that ended it.
    """

    thread: AnyInts
    start: Ints
    end: Ints
    kind: Bytes
    name: Ints32
    unclosed: Mask
    moved: Mask

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Launches:
    """Host calls that caused GPU work, one row per (process, correlation id), sorted by (process, thread, start).

    ``thread`` is a code of `Trace.threads`; ``start`` and ``end`` are int64 ns; ``name`` is a code of
    `Trace.call_names`, -1 if unknown.
    """

    thread: AnyInts
    start: Ints
    end: Ints
    name: AnyInts

    def __len__(self) -> int:
        return len(self.start)

    def around(self, thread: AnyInts, time: Ints) -> tuple[Ints, Ints]:
        """Return the last launch of each thread (a code) that starts before each time, and the first launch that starts
        at this time or later; -1 for none.
        """
        before, after = np.full((2, len(time)), -1)
        for code in np.unique(thread).tolist():
            low, high = np.searchsorted(self.thread, [code, code + 1]).tolist()
            mine = np.flatnonzero(thread == code)
            at = low + np.searchsorted(self.start[low:high], time[mine])
            before[mine] = np.where(at > low, at - 1, -1)
            after[mine] = np.where(at < high, at, -1)
        return before, after


@dataclass(frozen=True)
class Ops:
    """GPU ops, in file order.

    ``start`` and ``end`` are int64 ns. ``kind`` is KERNEL, MEMCPY, MEMSET, GRAPH (a CUDA graph launch traced as a
    whole) or MIGRATION (pages of unified memory). ``name`` is an index into `Trace.op_names`, ``stream`` is a code of
    `Trace.streams`, and ``launch`` is a row of `Launches`, -1 if there is none. ``from_graph`` tells whether the op is
    a node of a CUDA graph.
    """

    start: Ints
    end: Ints
    kind: Bytes
    name: Ints32
    stream: AnyInts
    launch: Ints32
    from_graph: Mask

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Copies:
    """Bytes moved or set by each GPU op whose kind is in `COPYING`, in op order.

    ``size_bytes`` is -1 if not recorded; ``source`` and ``destination`` are indexes into `MEMORY_KINDS`; ``cause`` is
    nsys's numeric code for the reason of a migration.
    """

    size_bytes: Ints
    source: Bytes
    destination: Bytes
    cause: Bytes


class Reader(ABC):
    """Base class of readers, each for the format of one recorder. Data that a format does not record is empty, never
    invented.

    ``format`` is the name of the format in `analysis.json`, ``recorder`` the recording program. ``endings`` are file
    name endings, sorted by preference: if files differ only in the ending, the file with the first ending is read;
    ``annotations`` is the kind of ranges that programs make; ``recording`` is the command that records these ranges and
    GPU work. A subclass decides in `claims` which files it reads.
    """

    format: str
    recorder = "nsys"
    endings: tuple[str, ...] = ()
    annotations = "NVTX"
    recording = "nsys profile --trace=cuda,nvtx PROGRAM"

    @classmethod
    @abstractmethod
    def claims(cls, path: Path) -> bool:
        """Return whether a file or folder has this format, judged by its content."""

    @classmethod
    @abstractmethod
    def open(cls, path: Path, **options: Path | None) -> Report:
        """Open a trace that `claims` accepted; ``options`` as for `open_report`."""

    @abstractmethod
    def trace(self, report: Report, progress: Progress | None, arena: ColumnArena) -> Trace:
        """Return the ranges, launches and GPU ops; long columns are allocated in ``arena``."""

    @abstractmethod
    def steps(self) -> int:
        """Estimate the number of rows that `trace` and attribution report to the progress bar."""

    def bytes_needed(self, enough: int) -> int:
        """Estimate the memory (bytes) that an analysis takes. If an upper bound is at most ``enough``, the bound
        suffices.
        """
        return 0

    def other_ranges(self, trace: Trace, sources: Collection[str]) -> details.OtherRanges:
        """Return the ranges from the given non-NVTX ``sources`` (``mpi``, ``openacc``, ``ops``, ``modules``)."""
        return details.NO_RANGES

    def op_details(self, trace: Trace) -> details.OpDetails:
        """Launch parameters of each GPU op."""
        return details.no_op_details(len(trace.ops))

    def collectives(self, trace: Trace) -> details.Collectives:
        """Return the collectives among the GPU ops, with communicators and sizes; empty if only names are recorded."""
        return details.NO_COLLECTIVES

    def grids(self) -> Ints:
        """Return the grid of each kernel in the order of `Trace.ops`, see `details.packed`; empty if not recorded."""
        return np.empty(0, np.int64)

    def call_list(self, progress: Progress | None = None) -> details.CallList:
        """Return all host CUDA calls, including calls that launched nothing."""
        return details.NO_CALLS

    def other_calls(self, kinds: Collection[str], arena: ColumnArena = IN_MEMORY) -> details.HostCalls:
        """Return the host calls of the given non-CUDA ``kinds`` (``mpi``, ``os``)."""
        return details.NO_HOST_CALLS

    def dependencies(self, trace: Trace) -> details.Dependencies:
        """Dependencies between streams."""
        return details.no_dependencies(len(trace.streams))

    def captures(self, trace: Trace) -> details.Captures:
        """Return the creation (time and thread) of the CUDA graph nodes among the ops."""
        return details.no_captures(len(trace.ops))

    def host_activity(self, trace: Trace, near: Line | None = None) -> details.HostActivity:
        """Return the activity of host threads: CUDA calls, operating-system calls, the profiler's own work.

        Short kernel launches may be left out if they overlap none of the disjoint, sorted intervals ``near``.
        """
        return details.NO_ACTIVITY

    def operator_calls(self, trace: Trace) -> details.OperatorCalls:
        """Calls of PyTorch operators with input shapes."""
        return details.NO_OPERATORS

    def autograd(self, trace: Trace) -> details.AutogradOps:
        """PyTorch operators with autograd sequence numbers."""
        return details.NO_AUTOGRAD

    def page_faults(self) -> details.PageFaults:
        """Page faults of unified memory."""
        return details.NO_FAULTS

    def memory(self) -> details.MemoryEvents:
        """Allocations and releases of GPU memory."""
        return details.NO_MEMORY

    def samples(self, about: About) -> dict[int, details.GpuSamples]:
        """Samples of GPU metrics, by GPU number."""
        return {}

    def cpu_samples(self, thread: Ints, start: Ints, end: Ints) -> details.CpuSamples | None:
        """Return the call-stack samples of threads (globalTids) within time spans, or None if there are none."""
        return None

    def not_read(self) -> dict[str, int]:
        """Return the tables or event categories that nsysprof does not use, with their numbers of rows."""
        return {}

    def thread_names(self) -> dict[int, str]:
        """Thread names, by ids in `Trace.threads`."""
        return {}

    def job(self) -> details.Job:
        """The program's rank in a job."""
        return details.Job()


@dataclass(frozen=True, repr=False)
class Report:
    """An open report: close it, or use a ``with`` statement, to remove the temporary export.

    ``path``: the path that the user gave; ``file``: the file that is read, ``path`` or the export of a ``.nsys-rep``.
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
        """The file format: ``sqlite``, ``parquet``, or the name that another reader gives to its format."""
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
    """The GPU ops with a launch, in launch order, and the bounds of each launch's ops.

    ``begins`` is None if every launch caused exactly one op.
    """

    ops: Ints32
    begins: Ints | None

    def of(self, launches: AnyInts) -> tuple[Ints32, Ints]:
        """Return the ops of these launches, launch after launch, and the number of ops per launch."""
        if self.begins is None:
            return self.ops[launches], np.ones(len(launches), np.int64)
        size = self.begins[launches + 1] - self.begins[launches]
        return self.ops[expand_ranges(self.begins[launches], size)], size


@dataclass(frozen=True, repr=False)
class Trace:
    """All recorded data that attribution needs.

    ``threads`` and ``processes`` are the sorted globalTids and globalPids (int64); ``thread_process`` maps threads to
    processes. ``session_end`` is the end of unclosed ranges, in ns; ``unread``: the tables with missing rows;
    ``no_work``: why there are no ops, empty if there are ops; ``never_popped`` counts ranges that ``ranges`` omits:
    ranges that were never popped, inside a range of the same name that was never popped either; ``call_names``: names
    of CUDA calls, without CUPTI's version suffixes; ``other_calls``: calls outside ``launches``, None if unknown;
    ``arena`` allocates the long columns; ``named_threads``: names that the program set through NVTX, by globalTid;
    ``opened_on``: codes of the threads that opened the ranges, None if ranges were not moved to other threads.
    ``geometry``: the launch parameters of GPU ops, if all of them are recorded.
    """

    report: Report
    ranges: Ranges
    launches: Launches
    ops: Ops
    range_names: list[details.RangeName]
    op_names: list[str]
    threads: Ints
    thread_process: Ints32
    processes: Ints
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
    opened_on: AnyInts | None = field(default=None, repr=False)
    geometry: details.LaunchGeometry | None = field(default=None, repr=False, compare=False)

    @property
    def range_openers(self) -> AnyInts:
        """Return the code of the thread that opened each range."""
        return self.ranges.thread if self.opened_on is None else self.opened_on

    def __repr__(self) -> str:
        counts = f"{len(self.ranges):,} ranges, {len(self.launches):,} launches, {len(self.ops):,} GPU ops"
        return f"<Trace of {self.report.path.name}: {counts}>"

    @property
    def apart(self) -> bool:
        """Return whether to compute answers in parallel: if the trace is large, and there are memory and cores."""
        return self.arena.roomy and len(self.ops) >= MIN_ROWS and cores() > 1

    @cached_property
    def thread_names(self) -> dict[int, str]:
        """Return thread names by globalTid. Names from NVTX are preferred to names from the system; the report must be
        open.
        """
        return {**self.report.reader.thread_names(), **self.named_threads}

    def thread_codes(self, tids: Ints) -> Ints:
        """Return the code of each globalTid in `threads`, -1 for other threads."""
        code = np.searchsorted(self.threads, tids)
        return np.where(pick(self.threads, code) == tids, code, -1)

    def thread_label(self, thread: int) -> str:
        """Return a thread's label for users: its name (if any) and number."""
        tid = int(self.threads[thread])
        return f"{self.thread_names.get(tid) or 'thread'} {tid_of(tid)}"

    @cached_property
    def gpu_numbers(self) -> list[int]:
        """Return the GPU number of each device in the report; numbers of unknown GPUs are above all known numbers.

        If the report's GPU numbers are not small and distinct, GPUs are counted instead.
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

    @cached_property
    def gpu_of(self) -> dict[tuple[int, int], int]:
        """Return the GPU number of each device, by globalPid and CUDA id."""
        return {
            (int(self.processes[device.process]), device.cuda_id): number
            for device, number in zip(self.devices, self.gpu_numbers, strict=True)
        }

    @cached_property
    def clock_step(self) -> int:
        """Return the resolution of the GPU clock in ns, from the first kernels; 0 if unknown."""
        kernels = np.flatnonzero(self.ops.kind[:_CLOCK_SAMPLE] == KERNEL)
        return clock_step(self.ops.end[kernels] - self.ops.start[kernels])

    @cached_property
    def op_name_rank(self) -> Ints32:
        """Return the alphabetical rank of each GPU op name."""
        return ranks(self.op_names)

    def in_order(self, rows: Index, time: Ints) -> Index:
        """Sort rows of GPU ops by ``time``, such as `Ops.start`; ties are broken as in `settled`."""
        rows = rows[np.argsort(time[rows], kind="stable")]
        return self.settled(rows, time[rows])

    def largest_name(self, total: Array) -> int:
        """The GPU op name (a code) with the largest ``total``; ties go to the alphabetically first."""
        return int(np.lexsort((self.op_name_rank, -total))[0])

    def settled(self, order: Index, *values: AnyInts) -> Index:
        """Break ties between ops sorted by ``values``. Ties are broken by start, end, name, launch and stream, not by
        the order in the file.
        """
        equal = np.ones(max(len(order) - 1, 0), bool)
        for value in values:
            equal &= value[1:] == value[:-1]
        if not equal.any():
            return order
        ops, name = self.ops, self.op_name_rank[self.ops.name]
        return settled(order, equal, ops.stream, ops.launch, name, ops.end, ops.start)

    @cached_property
    def op_gpu(self) -> AnyInts:
        """Return the GPU number of each op; -1 for migrations, which keep no GPU busy."""
        return self.arena.take(self.stream_gpu, self.ops.stream)

    def ops_of_gpu(self, number: int) -> Mask:
        """Return a mask of the GPU ops on a GPU; migrations are not on any GPU."""
        return (self.stream_gpu == number)[self.ops.stream]

    @cached_property
    def gpu_busy(self) -> dict[int, tuple[Ints, Ints]]:
        """Return for each GPU number the disjoint, sorted intervals ``(start, end)`` in which the GPU runs an op."""

        def of_gpu(number: int) -> Line:
            ops = np.flatnonzero(self.op_gpu == number)
            start, end = merge(self.ops.start[ops], self.ops.end[ops])
            return self.arena.cast(start, np.int64), self.arena.cast(end, np.int64)

        numbers = sorted(set(self.gpu_numbers))
        tasks = [partial(of_gpu, number) for number in numbers]
        busy = in_threads(*tasks) if self.apart else [task() for task in tasks]
        return dict(zip(numbers, busy, strict=True))

    @cached_property
    def busy_ns(self) -> int:
        """Return the time in which a GPU runs an op, summed over GPUs."""
        return sum(int((end - start).sum()) for start, end in self.gpu_busy.values())

    def give_back(self) -> None:
        """If the trace is large, drop data that is quick to recompute, and return freed memory to the system, unless
        there is memory for an analysis in parallel.
        """
        if len(self.ops) >= MANY_ROWS and not self.apart:
            _ = self.busy_ns if "gpu_busy" in vars(self) else 0
            for name in ("gpu_busy", "ops_by_launch"):
                vars(self).pop(name, None)
            give_back()

    @cached_property
    def stream_gpu(self) -> AnyInts:
        """The GPU number of each stream; -1 for migrations."""
        migrates = np.array([stream.migrates for stream in self.streams], bool)
        return np.where(migrates, np.int16(-1), np.array(self.gpu_numbers, np.int16)[self.stream_device])

    @cached_property
    def page_faults(self) -> details.PageFaults:
        """Page faults of unified memory; the report must be open."""
        return self.report.reader.page_faults()

    @cached_property
    def memory(self) -> details.MemoryEvents:
        """Return allocations and releases of GPU memory; the report must be open."""
        return self.report.reader.memory()

    @cached_property
    def samples(self) -> dict[int, details.GpuSamples]:
        """Return samples of GPU metrics by GPU number; the report must be open."""
        return self.report.reader.samples(self.report.about)

    @cached_property
    def ops_by_launch(self) -> OpsByLaunch:
        """The GPU ops in launch order."""
        launch, count = self.ops.launch, len(self.launches)
        if np.count_nonzero(launch >= 0) == count:
            rows = self.arena.full(count, -1, np.int32)
            for part in slices(len(launch)):
                known = part.start + np.flatnonzero(launch[part] >= 0)
                rows[launch[known]] = known
            if not count or rows.min() >= 0:
                return OpsByLaunch(rows, None)
        with_launch = np.flatnonzero(launch >= 0).astype(np.int32)
        launch = launch[with_launch]
        order = np.argsort(launch, kind="stable")
        begins = np.append(0, np.cumsum(np.bincount(launch, minlength=count)))
        return OpsByLaunch(self.arena.take(with_launch, order), begins)

    @cached_property
    def copy_ops(self) -> Index:
        """Return the GPU ops with a row in `copies`: copies, memsets and migrations."""
        return np.flatnonzero(np.isin(np.arange(MIGRATION + 1), COPYING).take(self.ops.kind))

    def copy_sizes(self) -> Ints:
        """Return the bytes that each GPU op copied or set, -1 for other ops, or if not recorded."""
        sizes = self.arena.full(len(self.ops), -1, np.int64)
        sizes[self.copy_ops] = self.copies.size_bytes
        return sizes

    @property
    def op_process(self) -> Ints32:
        """The process of each GPU op."""
        return self.stream_process.take(self.ops.stream)

    @cached_property
    def stream_device(self) -> Ints32:
        """The device of each stream."""
        return np.array([stream.device for stream in self.streams], np.int32)

    @cached_property
    def stream_process(self) -> Ints32:
        """The process of each stream."""
        return np.array([self.devices[stream.device].process for stream in self.streams], np.int32)


Tables = Trace  # as it was called before
_MAX_GPUS = 64
PROCESS_OF_THREAD = np.int64(-0x1000000)  # globalTid & this = globalPid
Id = TypeVar("Id", int, Ints)


def pid_of(global_id: Id) -> Id:
    """Return the process id in a globalTid or globalPid, or in each element of an array."""
    return (global_id >> 24) & 0xFFFFFF


def tid_of(global_id: Id) -> Id:
    """Return the thread id in a globalTid, or in each element of an array."""
    return global_id & 0xFFFFFF


def recorded_as(trace: Trace, kind: Bytes) -> str:
    """Name the tools that recorded these kinds of ranges: ``NVTX``, or ``NVTX, MPI``; ``found`` if nsysprof detected
    them.
    """
    by = trace.report.reader.annotations
    words = {PUSH_POP: by, START_END: by, MPI: "MPI", OPENACC: "OpenACC", OPERATOR: "operator", MODULE: "module"}
    words[FOUND] = "found"
    present = np.bincount(kind, minlength=len(RANGE_KINDS))
    return ", ".join(dict.fromkeys(word for code, word in words.items() if present[code])) or by
