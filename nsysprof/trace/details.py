"""Further data of a trace, read on demand: everything except ranges, launches and GPU ops."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arrays import AnyInts, Bytes, Ints, Ints32, Mask
from nsysprof.core.columns import Coder, mixed

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # of the hash of a row


@dataclass(frozen=True)
class RangeName:
    """A range's recorded name and the name of its NVTX domain."""

    text: str
    domain: str


@dataclass(frozen=True)
class OpDetails:
    """Launch parameters of each GPU op, in the order of `Trace.ops`.

    All columns are int64. ``correlation`` is 0 if not recorded. ``grid`` and ``block`` are three numbers packed into
    one (see `grid_text`), 0 if not recorded. All other fields are -1 if not recorded: ``registers`` per thread;
    ``static_shared`` and ``dynamic_shared``, in bytes of shared memory per block; ``local_memory``, in bytes per
    thread. ``sum`` is the sum of static and dynamic shared memory, if only the sum was recorded.
    """

    correlation: Ints
    grid: Ints
    block: Ints
    registers: Ints
    static_shared: Ints
    dynamic_shared: Ints
    local_memory: Ints
    sum: Ints | None = None

    @property
    def shared(self) -> Ints:
        """Return bytes of shared memory per block, static plus dynamic, -1 if not recorded."""
        if self.sum is not None:
            return self.sum
        known = (self.static_shared >= 0) & (self.dynamic_shared >= 0)
        if known.all():
            return self.static_shared + self.dynamic_shared
        return np.where(known, self.static_shared + self.dynamic_shared, -1)

    def take(self, rows: AnyInts | slice) -> OpDetails:
        """Return the details of the ops in ``rows``."""
        columns: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: each[rows] for name, each in columns.items() if each is not None})


def launch_parameters(details: OpDetails) -> list[Ints]:
    """Return the columns of launch parameters, in which kernel launches can differ."""
    columns = [details.grid, details.block, details.registers, details.shared]
    return [*columns, details.dynamic_shared, details.local_memory]


class LaunchGeometry:
    """The distinct `launch_parameters` of GPU ops, collected part by part.

    ``rows`` are the columns of the distinct parameters; ``of`` is the row of each op. ``whole`` is False if two
    distinct sets of parameters have the same hash, because ops find their row by this hash.
    """

    def __init__(self) -> None:
        self.whole, self._coder = True, Coder()
        self._of: list[AnyInts] = [np.empty(0, np.uint8)]
        self.rows = [np.empty(0, np.int64)] * len(launch_parameters(no_op_details(0)))

    @classmethod
    def of_codes(cls, of: AnyInts, rows: list[tuple[int, ...]], whole: bool) -> LaunchGeometry:
        """Make it from the row of each op, and the distinct parameters row by row."""
        out = cls()
        out.whole, out._of = whole, [of]
        out.rows = [*np.array(rows, np.int64).reshape(len(rows), len(out.rows)).T]
        return out

    @property
    def of(self) -> AnyInts:
        """The row of each op."""
        self._of = [np.concatenate(self._of)]
        return self._of[0]

    def add(self, details: OpDetails) -> None:
        """Add the next ops in order."""
        columns = launch_parameters(details)
        key = np.zeros(len(columns[0]), np.uint64)
        with np.errstate(over="ignore"):
            for column in columns:
                key = key * _FACTOR + column.view(np.uint64)
        code = self._coder.encode(mixed(key).view(np.int64))
        new, known = np.flatnonzero(code >= len(self.rows[0])), len(self.rows[0])
        if len(new):
            first = np.zeros(len(self._coder) - known, np.intp)
            first[code[new[::-1]] - known] = new[::-1]
            self.rows = [np.append(rows, column[first]) for rows, column in zip(self.rows, columns, strict=True)]
        pairs = zip(self.rows, columns, strict=True)
        self.whole = self.whole and all(np.array_equal(rows.take(code), column) for rows, column in pairs)
        self._of.append(code.astype(np.min_scalar_type(len(self._coder))))


@dataclass(frozen=True)
class OtherRanges:
    """Ranges from sources other than NVTX, in any order.

    ``thread`` is a globalTid; ``start`` and ``end`` are int64 ns; ``kind`` is FOUND, MPI or OPENACC of
    `nsysprof.trace.trace`; ``name`` is an index into ``names``; ``warnings`` are sentences for the user.
    """

    thread: Ints
    start: Ints
    end: Ints
    kind: Bytes
    name: Ints32
    names: list[RangeName]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class AutogradOps:
    """PyTorch operators with an autograd sequence number, in any order.

    ``thread`` is a globalTid; ``start`` and ``end`` are int64 ns. ``sequence`` numbers count per forward thread.
    ``backward`` marks backward operators; ``forward_thread`` is the globalTid of the forward operator's thread, 0 if
    not recorded.
    """

    thread: Ints
    start: Ints
    end: Ints
    sequence: Ints
    backward: Mask
    forward_thread: Ints


Shaped: TypeAlias = tuple[str, list[list[int]], list[str], list[str]]


@dataclass(frozen=True)
class OperatorCalls:
    """Calls of PyTorch operators, with or without recorded shapes, in any order.

    ``thread`` is a globalTid; ``start`` and ``end`` are int64 ns; ``shape`` is an index into ``shapes``, -1 for none. A
    shape is the name of the operator with the sizes, types and non-tensor values of its inputs; types and values are
    empty if not recorded.
    """

    thread: Ints
    start: Ints
    end: Ints
    shape: Ints
    shapes: list[Shaped]


@dataclass(frozen=True)
class CallList:
    """Host calls, sorted by thread, then start, then longest first.

    ``thread`` is an index into ``threads``, the sorted globalTids; ``start`` and ``end`` are int64 ns; ``name`` is an
    index into ``names``, without CUPTI's version suffixes. ``correlation`` is 0 if there is none; ``result`` is the
    return code, 0 for success.
    """

    thread: Ints32
    start: Ints
    end: Ints
    name: Ints32
    correlation: Ints
    result: Ints
    names: list[str]
    threads: Ints

    def __len__(self) -> int:
        return len(self.start)

    def of_thread(self, tid: int) -> slice:
        """Return the rows of a thread, which is given by its globalTid."""
        code = int(np.searchsorted(self.threads, tid))
        if code == len(self.threads) or self.threads[code] != tid:
            return slice(0, 0)
        return slice(*np.searchsorted(self.thread, np.array([code, code + 1], np.int32)).tolist())

    def find(self, thread: Ints, start: Ints, end: Ints) -> Ints32:
        """Return the row of each call, given by globalTid, start and end, or -1 if there is none."""
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
    """The names of host calls.

    ``texts`` is sorted by kind, text and result; for each name, ``kind`` (uint8) is an index into `CALL_KINDS`;
    ``waits`` bool: the call returns only after the GPU has finished; ``result`` int32: the error that the call returned
    (CUDA calls only), 0 for success and for "not ready" from an event or stream query.
    """

    texts: list[str]
    kind: Bytes
    waits: Mask
    result: Ints32

    @property
    def failed(self) -> Mask:
        """Mark the names of calls that returned an error."""
        return self.result != 0


@dataclass(frozen=True)
class HostCalls:
    """Host calls as recorded, unsorted.

    ``thread`` is a code of ``threads``, the sorted globalTids; ``start`` and ``end`` are int64 ns; ``name`` is a code
    of ``names``. The last rows are calls that enclose a launch recorded by another layer (runtime or driver);
    ``around`` has the rows of the enclosed launches in `Trace.launches`. Each pair counts as one call, which takes as
    long as the enclosing row. ``whole`` tells whether these calls, together with the launches, are all calls.
    """

    thread: AnyInts
    start: Ints
    end: Ints
    name: AnyInts
    names: CallNames
    threads: Ints
    around: AnyInts = field(default_factory=lambda: np.empty(0, np.int32))
    whole: bool = False

    def __len__(self) -> int:
        return len(self.start)

    def beside(self) -> HostCalls:
        """Return the calls that do not enclose a recorded launch."""
        rows = slice(len(self) - len(self.around))
        columns = {name: getattr(self, name)[rows] for name in ("thread", "start", "end", "name")}
        return replace(self, **columns, around=self.around[:0])


# What a host thread does: a CUDA call that launches, one that waits for the GPU, any other one; a call of the operating
# system; work of the profiler; or, between all of these, code.
LAUNCHING, SYNCHRONIZING, CUDA, OS, PROFILER, CODE = range(6)


@dataclass(frozen=True)
class HostActivity:
    """Recorded activity of host threads, except ranges.

    ``calls``: outermost CUDA and operating-system calls, and the profiler's own work, without correlations and results;
    ``kind`` uint8 of each call: LAUNCHING, SYNCHRONIZING, CUDA, OS or PROFILER. ``left_out``: the lengths (ns) of
    launches that were left out, see `Reader.host_activity`.
    """

    calls: CallList
    kind: Bytes
    left_out: AnyInts = field(default_factory=lambda: np.empty(0, np.uint16))


@dataclass(frozen=True)
class StreamEvents:
    """Calls that record an event in a stream, or make a stream wait for an event.

    ``stream`` int32 into `Trace.streams`; ``time`` int64 ns of the host call; ``event`` int32: the recording of an
    event and the waits for this event have the same number.
    """

    stream: Ints32
    time: Ints
    event: Ints32

    def __len__(self) -> int:
        return len(self.stream)


@dataclass(frozen=True)
class Dependencies:
    """Dependencies between the streams of a trace.

    ``waits`` and ``records`` of events; for each stream ``null`` (whether it is the legacy default stream),
    ``blocking`` (whether it synchronizes with the legacy default stream), ``context`` int32. ``recorded_by`` names the
    recorder of the events; ``unnamed`` counts waits with an unknown target.
    """

    waits: StreamEvents
    records: StreamEvents
    null: Mask
    blocking: Mask
    context: Ints32
    recorded_by: str = "nsys profile --cuda-event-trace=true"
    unnamed: int = 0


@dataclass(frozen=True)
class Captures:
    """Creation of CUDA graph nodes: for each GPU op the globalTid ``thread`` and the ``time`` in ns.

    ``thread`` is 0 for ops outside graphs and for nodes whose creation was not recorded.
    """

    thread: Ints
    time: Ints


@dataclass(frozen=True)
class Collectives:
    """The collectives among the GPU ops of a trace.

    ``op`` are rows of `Trace.ops`, in ascending order. ``kind`` is an index into ``kinds`` (``allreduce``), and
    ``group`` is an index into ``groups``, the communicators (``ranks 0-7 (default_pg)``). ``group_size`` is the size of
    each group, 0 if not recorded. ``size_bytes`` is the number of bytes that a rank sends or receives, whichever is
    larger; -1 if not recorded.
    """

    op: Ints
    kind: Ints32
    kinds: list[str]
    group: Ints32
    groups: list[str]
    group_size: list[int]
    size_bytes: Ints

    def of_ops(self, ops: int) -> Ints32:
        """Return the row of each GPU op in this table, -1 if it is not a collective; ``ops``: number of GPU ops."""
        out = np.full(ops, -1, np.int32)
        out[self.op] = np.arange(len(self.op))
        return out


POOL = "pool"  # the kind of memory that pools hold, in use or not
KEPT = np.iinfo(np.int64).max  # when memory is given back that never is


@dataclass(frozen=True)
class MemoryEvents:
    """Memory allocations and releases, sorted by time; at equal times, releases come first.

    ``uses`` are tuples ``(globalPid, CUDA id of the device, kind)``; the kind is named as in CUDA, or is `POOL`. Each
    change has a ``use`` (an index into ``uses``), a ``time`` (int64 ns) and a size (``change``, in bytes). ``until`` is
    the time at which an allocation is released, or `KEPT`; for releases and pools, it equals ``time``. ``thread``,
    ``start`` and ``end`` are those of the host call, 0 if unknown.
    """

    uses: tuple[tuple[int, int, str], ...]
    use: Ints32
    time: Ints
    change: Ints
    until: Ints
    thread: Ints
    start: Ints
    end: Ints

    def over_time(self, rows: Mask) -> tuple[Ints, Ints]:
        """Return the times at which the number of allocated bytes changes, and the number after each change."""
        time, size = self.time[rows], np.cumsum(self.change[rows])
        last = np.append(time[1:] != time[:-1], True)[: len(time)]
        return time[last], size[last]

    def by_use(self) -> dict[tuple[int, int, str], tuple[Ints, Ints]]:
        """Return `over_time` of each use, ordered by process, device and kind."""
        return {use: self.over_time(self.use == self.uses.index(use)) for use in sorted(self.uses)}


@dataclass(frozen=True)
class PageFaults:
    """Page faults of unified memory, sorted by time: one row per group of GPU faults, and one row per CPU fault.

    ``start`` and ``end`` are int64 ns, and are equal if no end was recorded. ``process`` is a globalPid, and ``device``
    is a CUDA id, -1 for a CPU. ``count`` is the number of faults. ``cause`` is an index into ``causes``: the kind of
    GPU access, or the CPU instruction. ``recorded`` tells whether faults of (the CPU, the GPU) were recorded.
    """

    start: Ints
    end: Ints
    process: Ints
    device: Ints
    count: Ints
    cause: Ints32
    causes: tuple[str, ...] = ()
    recorded: tuple[bool, bool] = (False, False)


# What is read of a GPU's metrics: the clock in Hz, all else in percent of what the GPU can do at most.
GPU_METRICS = (
    *("clock_hz", "sm_active", "sm_issue", "tensor_active", "warps", "dram_read", "dram_write"),
    *("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx"),
)


@dataclass(frozen=True)
class GpuSamples:
    """Samples of GPU metrics, sorted by time; each sample is the mean from ``start`` to ``end`` (int64 ns).

    ``values`` (float32) for each sampled name of `GPU_METRICS`: the clock in Hz, all others in percent; NaN if unknown,
    with the reason in ``notes``.
    """

    start: Ints
    end: Ints
    values: dict[str, NDArray[np.float32]]
    notes: tuple[str, ...] = ()

    @property
    def step_ns(self) -> int:
        """The usual time between two samples."""
        return int(np.median(self.end - self.start)) if len(self.start) else 0


@dataclass(frozen=True)
class CpuSamples:
    """Samples of call stacks, with the ``thread`` (globalTid) and the ``time`` of each sample. ``usual_ns`` is the
    usual time between two samples of a running thread; ``period`` is the sampling period. Each frame has its
    ``sample``, its ``depth`` (0: innermost) and its ``function``, a code of ``functions`` (name and file). All columns
    are int64.
    """

    usual_ns: int
    period: tuple[int, int]
    thread: Ints
    time: Ints
    sample: Ints
    depth: Ints
    function: Ints
    functions: list[tuple[str, str]]


@dataclass(frozen=True)
class Job:
    """The rank of the recorded program in its job; fields are None if not recorded, or scrubbed.

    ``start_utc_ns`` is the UTC time at which the trace clock reads 0.
    """

    rank: int | None = None
    host: str | None = None
    start_utc_ns: int | None = None


def no_op_details(count: int) -> OpDetails:
    """Empty details for ``count`` GPU ops."""
    known = {name: np.zeros(count, np.int64) for name in ("correlation", "grid", "block")}
    unknown = ("registers", "static_shared", "dynamic_shared", "local_memory")
    return OpDetails(**known, **{name: np.full(count, -1) for name in unknown})


_NONE = np.empty(0, np.int64)
_NO_CODES = np.empty(0, np.int32)
_NO_EVENTS = StreamEvents(_NO_CODES, _NONE, _NO_CODES)
NO_CALLS = CallList(_NO_CODES, _NONE, _NONE, _NO_CODES, _NONE, _NONE, [], _NONE)
_NO_KINDS, _NO_FLAGS = np.empty(0, np.uint8), np.empty(0, bool)
_NO_NAMES = CallNames([], _NO_KINDS, _NO_FLAGS, _NO_CODES)
NO_HOST_CALLS = HostCalls(_NO_CODES, _NONE, _NONE, _NO_CODES, _NO_NAMES, _NONE)
NO_RANGES = OtherRanges(_NONE, _NONE, _NONE, _NO_KINDS, _NO_CODES, [])
NO_MEMORY = MemoryEvents((), _NO_CODES, *[_NONE] * 6)
NO_FAULTS = PageFaults(_NONE, _NONE, _NONE, _NONE, _NONE, _NO_CODES)
NO_COLLECTIVES = Collectives(_NONE, _NO_CODES, [], _NO_CODES, [], [], _NONE)
NO_AUTOGRAD = AutogradOps(_NONE, _NONE, _NONE, _NONE, _NO_FLAGS, _NONE)
NO_OPERATORS = OperatorCalls(_NONE, _NONE, _NONE, _NONE, [])
NO_ACTIVITY = HostActivity(NO_CALLS, _NO_KINDS)


def no_captures(ops: int) -> Captures:
    """Empty captures for ``count`` ops."""
    return Captures(np.zeros(ops, np.int64), np.zeros(ops, np.int64))


def no_dependencies(streams: int) -> Dependencies:
    """Empty dependencies for ``streams`` streams."""
    unknown = np.zeros(streams, bool)
    return Dependencies(_NO_EVENTS, _NO_EVENTS, unknown, unknown, np.zeros(streams, np.int32))


Number = TypeVar("Number", int, Ints)


def packed(x: Number, y: Number, z: Number) -> Number:
    """Pack a grid or block into one number of 63 bits; 0 if it exceeds CUDA's limits (2^31 in x, 2^16 in y and z)."""
    return (x << 32 | y << 16 | z) * ((x >> 31 | y >> 16 | z >> 16) == 0)


def unpacked(grid: Number) -> tuple[Number, Number, Number]:
    """Return the three numbers of a packed grid or block, or of an array of these."""
    return grid >> 32, grid >> 16 & 0xFFFF, grid & 0xFFFF


def grid_text(grid: int) -> str:
    """Format a packed grid as `32x32x8`, without trailing dimensions of 1: `4096`. Empty if not recorded."""
    return re.sub(r"(x1){1,2}$", "", "x".join(map(str, unpacked(grid)))) if grid else ""
