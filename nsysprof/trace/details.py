"""What a trace holds beyond ranges, launches and GPU ops: each is read when a question asks for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import Ints


@dataclass(frozen=True)
class RangeName:
    """What a range is called: the name as recorded, and the name of its NVTX domain."""

    text: str
    domain: str


@dataclass(frozen=True)
class OpDetails:
    """What each GPU op was launched with, in the order of `Trace.ops`.

    ``correlation`` int64, 0 where the row has none; ``grid``, ``block`` int64, three numbers packed into one as
    `grid_text` takes them, 0 where there is none; int64 with -1 where there is none: ``registers`` per thread,
    ``static_shared``, ``dynamic_shared`` bytes of shared memory per block, ``local_memory`` bytes per thread; ``sum``
    of shared memory where only that is recorded.
    """

    correlation: NDArray[np.int64]
    grid: NDArray[np.int64]
    block: NDArray[np.int64]
    registers: NDArray[np.int64]
    static_shared: NDArray[np.int64]
    dynamic_shared: NDArray[np.int64]
    local_memory: NDArray[np.int64]
    sum: NDArray[np.int64] | None = None

    @property
    def shared(self) -> NDArray[np.int64]:
        """Bytes of shared memory per block, static and dynamic, -1 where not recorded."""
        if self.sum is not None:
            return self.sum
        known = (self.static_shared >= 0) & (self.dynamic_shared >= 0)
        return np.where(known, self.static_shared + self.dynamic_shared, -1)

    def take(self, rows: NDArray[np.integer]) -> OpDetails:
        """Those of some GPU ops."""
        columns: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: each[rows] for name, each in columns.items() if each is not None})


@dataclass(frozen=True)
class OtherRanges:
    """Ranges that are not NVTX's, in any order.

    ``thread`` int64 globalTids; ``start``, ``end`` int64 ns; ``kind`` uint8, FOUND, MPI or OPENACC of
    `nsysprof.trace.trace`; ``name`` int32 into ``names``; ``warnings`` are sentences about them, for whoever sees them.
    """

    thread: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    names: list[RangeName]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class AutogradOps:
    """Operators with a sequence number, in any order.

    ``thread`` globalTids; ``start``, ``end`` int64 ns; ``sequence`` the number, which counts per thread of forward;
    ``backward`` bool; ``forward_thread`` the globalTid whose numbers an operator of backward has, 0 where that is not
    recorded.
    """

    thread: Ints
    start: Ints
    end: Ints
    sequence: Ints
    backward: NDArray[np.bool_]
    forward_thread: Ints


Shaped: TypeAlias = tuple[str, list[list[int]], list[str], list[str]]


@dataclass(frozen=True)
class OperatorCalls:
    """Calls of PyTorch's operators, in any order, also those of which no shapes are recorded.

    ``thread`` globalTids; ``start``, ``end`` int64 ns; ``shape`` a place in ``shapes``, -1 for none. A shape is the
    name of the operator, the sizes of its inputs, their types, and the values of those that are no tensors; the last
    two are empty where they are not recorded.
    """

    thread: Ints
    start: Ints
    end: Ints
    shape: Ints
    shapes: list[Shaped]


@dataclass(frozen=True)
class CallList:
    """Host calls, sorted by thread, start, and from the longest to the shortest.

    ``thread`` int32 into ``threads``, the sorted globalTids; ``start``, ``end`` int64 ns; ``name`` int32 into
    ``names``, without the versions that CUPTI appends; ``correlation`` int64, 0 where there is none; ``result`` int64,
    what the call returned: 0 is success.
    """

    thread: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int32]
    correlation: NDArray[np.int64]
    result: NDArray[np.int64]
    names: list[str]
    threads: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    def of_thread(self, tid: int) -> slice:
        """The rows of a thread, by its globalTid."""
        code = int(np.searchsorted(self.threads, tid))
        if code == len(self.threads) or self.threads[code] != tid:
            return slice(0, 0)
        return slice(*np.searchsorted(self.thread, [code, code + 1]).tolist())

    def find(self, thread: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int32]:
        """The row of the call of each globalTid, start and end; -1 where there is none."""
        out = np.full(len(start), -1, np.int32)
        for tid in self.threads.tolist():
            mine, rows = self.of_thread(tid), np.flatnonzero(thread == tid)
            at = mine.start + np.searchsorted(self.start[mine], start[rows])
            while len(rows):  # once, but for calls that begin at the same time
                inside = at < mine.stop
                rows, at = rows[inside], at[inside]
                same = self.start[at] == start[rows]
                rows, at = rows[same], at[same]
                hit = self.end[at] == end[rows]
                out[rows[hit]] = at[hit]
                rows, at = rows[~hit], at[~hit] + 1
        return out


# Kinds of host calls: of CUDA, of MPI, of the operating system.
CALL_KINDS = ("cuda", "mpi", "os")
CUDA_CALL, MPI_CALL, OS_CALL = range(3)


@dataclass(frozen=True)
class CallNames:
    """What host calls are named.

    ``texts``, sorted by kind, text and failure; for each ``kind`` uint8, an index into `CALL_KINDS`; ``waits`` bool:
    such calls return only when the GPU is done; ``failed`` bool: these returned an error, which only calls of CUDA say
    (that an event or a stream is not ready is none).
    """

    texts: list[str]
    kind: NDArray[np.uint8]
    waits: NDArray[np.bool_]
    failed: NDArray[np.bool_]


@dataclass(frozen=True)
class HostCalls:
    """Host calls, in no order, a row as recorded.

    ``thread`` codes of ``threads``, sorted globalTids; ``start``, ``end`` int64 ns; ``name`` codes of ``names``. The
    last rows are calls around launches that another layer recorded (runtime and driver), of which ``around`` has the
    rows in `Trace.launches`: both are one call, which takes as long as these.
    """

    thread: NDArray[np.integer]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.integer]
    names: CallNames
    threads: NDArray[np.int64]
    around: NDArray[np.integer] = field(default_factory=lambda: np.empty(0, np.int32))

    def __len__(self) -> int:
        return len(self.start)

    def beside(self) -> HostCalls:
        """Those that are not around launches."""
        rows = slice(len(self) - len(self.around))
        columns = {name: getattr(self, name)[rows] for name in ("thread", "start", "end", "name")}
        return replace(self, **columns, around=self.around[:0])


# What a host thread does: a CUDA call that launches, one that waits for the GPU, any other one; a call of the operating
# system; work of the profiler; or, between all of these, code.
LAUNCHING, SYNCHRONIZING, CUDA, OS, PROFILER, CODE = range(6)


@dataclass(frozen=True)
class HostActivity:
    """What is recorded of host threads, besides their ranges.

    ``calls``: CUDA calls and those of the operating system that are not made inside another, and the profiler's own
    work, without correlations and results; ``kind`` uint8 of each: LAUNCHING, SYNCHRONIZING, CUDA, OS or PROFILER.
    """

    calls: CallList
    kind: NDArray[np.uint8]


@dataclass(frozen=True)
class StreamEvents:
    """Calls that record an event in a stream, or let a stream wait for one.

    ``stream`` int32 into `Trace.streams`; ``time`` int64 ns when the host called; ``event`` int32, the same for the
    recording of an event and the waits for that.
    """

    stream: NDArray[np.int32]
    time: NDArray[np.int64]
    event: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.stream)


@dataclass(frozen=True)
class Dependencies:
    """What makes the streams of a trace wait for one another.

    ``waits`` and ``records`` of events; for each of `Trace.streams` ``null`` (the legacy default stream),
    ``blocking`` (waits for that one, and is waited for), ``context`` int32. ``recorded_by`` is what records the events;
    ``unnamed`` counts waits of which the trace does not say for what.
    """

    waits: StreamEvents
    records: StreamEvents
    null: NDArray[np.bool_]
    blocking: NDArray[np.bool_]
    context: NDArray[np.int32]
    recorded_by: str = "nsys profile --cuda-event-trace=true"
    unnamed: int = 0


@dataclass(frozen=True)
class Captures:
    """Where the nodes of CUDA graphs were made: for each of `Trace.ops` the globalTid ``thread`` and ``time`` in ns.

    ``thread`` is 0 for ops that are no node of a graph, and for nodes of which that was not recorded.
    """

    thread: NDArray[np.int64]
    time: NDArray[np.int64]


@dataclass(frozen=True)
class Collectives:
    """The collectives among the GPU ops of a trace, as their library named them.

    ``op`` rows of `Trace.ops`, ascending; ``kind`` int32 into ``kinds`` (``allreduce``); ``group`` int32 into
    ``groups``, the communicators: ``ranks 0-7 (default_pg)``, and ``group_size`` of each, 0 where not recorded;
    ``size_bytes`` int64, of what a rank gives and gets the larger, -1 where not recorded.
    """

    op: NDArray[np.int64]
    kind: NDArray[np.int32]
    kinds: list[str]
    group: NDArray[np.int32]
    groups: list[str]
    group_size: list[int]
    size_bytes: NDArray[np.int64]

    def of_ops(self, ops: int) -> NDArray[np.int32]:
        """For each of that many GPU ops its row here, -1 for what is no collective."""
        out = np.full(ops, -1, np.int32)
        out[self.op] = np.arange(len(self.op))
        return out


POOL = "pool"  # the kind of memory that pools hold, in use or not
KEPT = np.iinfo(np.int64).max  # when memory is given back that never is


@dataclass(frozen=True)
class MemoryEvents:
    """Changes of the memory that processes have allocated, in the order of time; at one time releases come first.

    ``uses``: ``(globalPid, CUDA id of the device, kind)``, the kind as CUDA calls it, or `POOL`. Of each change:
    ``use`` int32 into those; ``time`` int64 ns; ``change`` int64 bytes; ``until`` int64 ns, for an allocation when it
    is given back, or `KEPT`, for all else, also of pools, ``time``; ``thread``, ``start``, ``end`` int64, the globalTid
    and the times of the host call, 0 where it is not known.
    """

    uses: tuple[tuple[int, int, str], ...]
    use: NDArray[np.int32]
    time: NDArray[np.int64]
    change: NDArray[np.int64]
    until: NDArray[np.int64]
    thread: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def over_time(self, rows: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When some changes make another number of bytes of all that they change, and how many from then on."""
        time, size = self.time[rows], np.cumsum(self.change[rows])
        last = np.append(time[1:] != time[:-1], True)[: len(time)]
        return time[last], size[last]

    def by_use(self) -> dict[tuple[int, int, str], tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """What `over_time` says of each of the uses, in the order of process, device and kind."""
        return {use: self.over_time(self.use == self.uses.index(use)) for use in sorted(self.uses)}


@dataclass(frozen=True)
class PageFaults:
    """Page faults of unified memory, sorted by time: groups of a GPU, and each one of a CPU.

    ``start``, ``end`` int64 ns, the same where no end is recorded; ``process`` globalPid; ``device`` CUDA id, -1 for a
    CPU; ``count`` int64 faults; ``cause`` int32 into ``causes``: how a GPU accessed the page, or which instruction of a
    CPU did. ``recorded``: whether those of (CPUs, GPUs) were.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    process: NDArray[np.int64]
    device: NDArray[np.int64]
    count: NDArray[np.int64]
    cause: NDArray[np.int32]
    causes: tuple[str, ...] = ()
    recorded: tuple[bool, bool] = (False, False)


# What is read of a GPU's metrics: the clock in Hz, all else in percent of what the GPU can do at most.
GPU_METRICS = (
    *("clock_hz", "sm_active", "sm_issue", "tensor_active", "warps", "dram_read", "dram_write"),
    *("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx"),
)


@dataclass(frozen=True)
class GpuSamples:
    """Samples of a GPU's metrics, sorted by time: each is the mean from its ``start`` to its ``end`` (int64 ns).

    ``values`` float32 by the names of `GPU_METRICS` that were sampled: the clock in Hz, all else in percent; NaN where
    a value is not known, which ``notes`` explain.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    values: dict[str, NDArray[np.float32]]
    notes: tuple[str, ...] = ()

    @property
    def step_ns(self) -> int:
        """The usual time between samples."""
        return int(np.median(self.end - self.start)) if len(self.start) else 0


@dataclass(frozen=True)
class Job:
    """Which part of a job the recorded program was; None where the trace does not say, or was scrubbed.

    ``start_utc_ns`` is when the clock of the trace read 0.
    """

    rank: int | None = None
    host: str | None = None
    start_utc_ns: int | None = None


def no_op_details(count: int) -> OpDetails:
    """The details of that many GPU ops of which nothing is known."""
    known = {name: np.zeros(count, np.int64) for name in ("correlation", "grid", "block")}
    unknown = ("registers", "static_shared", "dynamic_shared", "local_memory")
    return OpDetails(**known, **{name: np.full(count, -1) for name in unknown})


_NONE = np.empty(0, np.int64)
_NO_CODES = np.empty(0, np.int32)
_NO_EVENTS = StreamEvents(_NO_CODES, _NONE, _NO_CODES)
NO_CALLS = CallList(_NO_CODES, _NONE, _NONE, _NO_CODES, _NONE, _NONE, [], _NONE)
_NO_KINDS, _NO_FLAGS = np.empty(0, np.uint8), np.empty(0, bool)
_NO_NAMES = CallNames([], _NO_KINDS, _NO_FLAGS, _NO_FLAGS)
NO_HOST_CALLS = HostCalls(_NO_CODES, _NONE, _NONE, _NO_CODES, _NO_NAMES, _NONE)
NO_RANGES = OtherRanges(_NONE, _NONE, _NONE, _NO_KINDS, _NO_CODES, [])
NO_MEMORY = MemoryEvents((), _NO_CODES, *[_NONE] * 6)
NO_FAULTS = PageFaults(_NONE, _NONE, _NONE, _NONE, _NONE, _NO_CODES)
NO_COLLECTIVES = Collectives(_NONE, _NO_CODES, [], _NO_CODES, [], [], _NONE)
NO_AUTOGRAD = AutogradOps(_NONE, _NONE, _NONE, _NONE, _NO_FLAGS, _NONE)
NO_OPERATORS = OperatorCalls(_NONE, _NONE, _NONE, _NONE, [])
NO_ACTIVITY = HostActivity(NO_CALLS, _NO_KINDS)


def no_captures(ops: int) -> Captures:
    """The captures of that many ops of which nothing is known."""
    return Captures(np.zeros(ops, np.int64), np.zeros(ops, np.int64))


def no_dependencies(streams: int) -> Dependencies:
    """The dependencies of that many streams of which nothing is known."""
    unknown = np.zeros(streams, bool)
    return Dependencies(_NO_EVENTS, _NO_EVENTS, unknown, unknown, np.zeros(streams, np.int32))


Number = TypeVar("Number", int, NDArray[np.int64])


def packed(x: Number, y: Number, z: Number) -> Number:
    """A grid or block as one number: CUDA allows 2^31 blocks in x and 2^16 in y and z, which fits into 63 bits."""
    return (x & 0x7FFFFFFF) << 32 | (y & 0xFFFF) << 16 | z & 0xFFFF


def unpacked(grid: Number) -> tuple[Number, Number, Number]:
    """The three numbers of a packed grid or block, or of each of an array."""
    return grid >> 32, grid >> 16 & 0xFFFF, grid & 0xFFFF


def grid_text(grid: int) -> str:
    """`32x32x8`; without the trailing ones of a flat grid: `4096`. Empty where it is not recorded."""
    return re.sub(r"(x1){1,2}$", "", "x".join(map(str, unpacked(grid)))) if grid else ""
