"""The rows a made-up report consists of: ranges, launches, ops, devices, each said in one line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

Text: TypeAlias = str | bytes  # bytes are stored as TEXT as they are: that is how a test writes what is not UTF-8
RowOf: TypeAlias = tuple[str, dict[str, Any]]

EVENT_TYPES = {"push_pop": 59, "start_end": 60, "nvtxt_push_pop": 70, "nvtxt_start_end": 71}
VM = 1
HARDWARE = 0


def global_pid(process: int) -> int:
    """nsys's `globalPid`: hardware:8, vm:8, pid:24, and 24 zero bits."""
    unsigned = HARDWARE << 56 | VM << 48 | process << 24
    return unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned


def global_tid(process: int, thread: int) -> int:
    """nsys's `globalTid`: `globalPid` with the thread id in the low 24 bits."""
    return global_pid(process) | thread


def row(table: str, columns: str, *values: Any, **more: Any) -> RowOf:
    """A row of ``table``: values of the columns, whose names stand in one text, and of others by name."""
    return table, dict(zip(columns.split(), values, strict=True)) | more


class Strings:
    """The StringIds of one report: `strings(value)` is the id of the value."""

    def __init__(self) -> None:
        self.ids: dict[Text, int] = {}

    def __call__(self, value: Text) -> int:
        return self.ids.setdefault(value, len(self.ids))


@dataclass(frozen=True)
class Range:
    """An NVTX range. `end=None` leaves `end` NULL; `text_id=True` stores the name through StringIds.

    `text` set beside `text_id=True` fills both columns. `name=None` leaves both NULL.
    """

    name: Text | None
    start: int
    end: int | None = None
    thread: int | None = 1
    process: int = 1
    kind: str = "push_pop"
    domain: int | None = 0
    end_thread: int | None = None
    text_id: bool = False
    text: Text | None = None
    category: int | None = None
    range_id: int | None = None

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        by_id = self.text_id and self.name is not None
        yield row(
            "NVTX_EVENTS",
            "start end eventType rangeId category text textId globalTid endGlobalTid domainId",
            *(self.start, self.end, EVENT_TYPES[self.kind], self.range_id, self.category),
            *(self.text if by_id else self.name, strings(self.name) if by_id and self.name is not None else None),
            None if self.thread is None else global_tid(self.process, self.thread),
            None if self.end_thread is None else global_tid(self.process, self.end_thread),
            self.domain,
        )


@dataclass(frozen=True)
class NvtxEvent:
    """An NVTX row that is no range: 34 mark, 33 category, 39 thread name, 75 and 76 domain made and gone."""

    event_type: int
    name: Text | None
    at: int = 0
    thread: int = 1
    process: int = 1
    domain: int | None = 0
    category: int | None = None
    text_id: bool = False

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        by_id = self.text_id and self.name is not None
        yield row(
            "NVTX_EVENTS",
            "start eventType category text textId globalTid domainId",
            *(self.at, self.event_type, self.category, None if by_id else self.name),
            strings(self.name) if by_id and self.name is not None else None,
            *(global_tid(self.process, self.thread), self.domain),
        )


@dataclass(frozen=True)
class MpiCall:
    """A row of one of the MPI tables, ``OTHER`` or ``P2P``, ``COLLECTIVES``, ``START_WAIT`` (which has `request`)."""

    name: Text | None
    start: int
    end: int | None
    thread: int = 1
    process: int = 1
    table: str = "OTHER"
    request: int | None = None

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        name, tid = None if self.name is None else strings(self.name), global_tid(self.process, self.thread)
        more = {} if self.request is None else {"requestHandle": self.request}
        columns = "start end globalTid textId"
        yield row(f"MPI_{self.table}_EVENTS", columns, self.start, self.end, tid, name, **more)


@dataclass(frozen=True)
class Construct:
    """A row of one of the OpenACC tables, ``OTHER`` or ``LAUNCH``, ``DATA``."""

    name: Text
    start: int
    end: int
    line: int = 0
    file: Text | None = None
    function: Text | None = None
    thread: int = 1
    process: int = 1
    table: str = "OTHER"

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        yield row(
            f"CUPTI_ACTIVITY_KIND_OPENACC_{self.table}",
            "start end nameId globalTid eventKind DeviceType lineNo cuDeviceId cuContextId cuStreamId srcFile funcName",
            *(
                self.start,
                self.end,
                strings(self.name),
                global_tid(self.process, self.thread),
                9,
                4,
                self.line,
                0,
                1,
                7,
            ),
            *(None if text is None else strings(text) for text in (self.file, self.function)),
        )


def Mark(name: Text, at: int, **where: Any) -> NvtxEvent:
    """An NVTX mark at one moment."""
    return NvtxEvent(34, name, at, **where)


def DomainCreate(domain: int, name: Text | None, **where: Any) -> NvtxEvent:
    """The row that names a domain in a process."""
    return NvtxEvent(75, name, domain=domain, **where)


@dataclass(frozen=True)
class Launch:
    """A host CUDA call; `event_class` 0 is the runtime API, 1 the driver API, 67 a row with a backtrace."""

    start: int
    end: int
    id: int | None
    thread: int = 1
    process: int = 1
    event_class: int = 0
    api: Text = "cudaLaunchKernel_v7000"
    returned: int = 0

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        yield row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "start end eventClass globalTid correlationId nameId returnValue",
            *(self.start, self.end, self.event_class, global_tid(self.process, self.thread), self.id),
            *(strings(self.api), self.returned),
        )


@dataclass(frozen=True, kw_only=True)
class _Op:
    """Where an op ran: what all kinds of ops share."""

    process: int | None = 1
    device: int = 0
    stream: int = 7
    context: int = 1
    green_context: int | None = 0

    def _head(self, start: int, end: int, id: int | None) -> dict[str, Any]:
        pid = None if self.process is None else global_pid(self.process)
        columns = "start end deviceId contextId greenContextId streamId correlationId globalPid"
        return row("", columns, start, end, self.device, self.context, self.green_context, self.stream, id, pid)[1]


@dataclass(frozen=True)
class Kernel(_Op):
    """A kernel; `short` is its short name (the bare function name when not given)."""

    name: Text
    start: int
    end: int
    id: int | None
    short: Text | None = None
    graph_node: int | None = None
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    shared: tuple[int, int] = (0, 0)
    local: int = 0

    def _short(self) -> Text:
        if self.short is not None or isinstance(self.name, bytes):
            return self.short or self.name
        return self.name.split("<")[0].split("(")[0].split(" ")[-1].split("::")[-1] or self.name

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        yield row(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "demangledName shortName mangledName launchType cacheConfig registersPerThread gridX gridY gridZ"
            " blockX blockY blockZ staticSharedMemory dynamicSharedMemory sharedMemoryExecuted graphNodeId"
            " sharedMemoryLimitConfig localMemoryPerThread",
            *(strings(self.name), strings(self._short()), strings(self.name), 1, 1, self.registers),
            *(*self.grid, *self.block, *self.shared, 32768, self.graph_node, 0, self.local),
            **self._head(self.start, self.end, self.id),
        )


@dataclass(frozen=True)
class Memcpy(_Op):
    """A copy; `kind` 1 is host to device, 2 back, 8 device to device, 10 peer, 11-13 unified memory."""

    start: int
    end: int
    id: int | None
    bytes: int = 1024
    kind: int = 1
    graph_node: int | None = None
    cause: int | None = None  # of a migration: 1 prefetch by the program, 2 page fault, 3 speculation, 4 eviction
    host: int = 1  # kind of the memory of the host: 0 pageable, 1 pinned

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        source, target = {1: (self.host, 2), 2: (2, self.host)}.get(self.kind, (2, 2))
        columns = "bytes copyKind srcKind dstKind migrationCause graphNodeId"
        values = (self.bytes, self.kind, source, target, self.cause, self.graph_node)
        yield row("CUPTI_ACTIVITY_KIND_MEMCPY", columns, *values, **self._head(self.start, self.end, self.id))


@dataclass(frozen=True)
class MemoryEvent:
    """Memory that is allocated, or given back (``free``); ``kind`` 1 is pinned, 2 the device's, 4 managed.

    ``pool``: its address, and how many bytes it holds then.
    """

    at: int
    address: int
    bytes: int = 0
    id: int | None = None
    free: bool = False
    kind: int = 2
    device: int = 0
    process: int = 1
    pool: tuple[int, int] | None = None

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        yield row(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            "start globalPid deviceId contextId address pc bytes memKind memoryOperationType correlationId"
            " localMemoryPoolAddress localMemoryPoolSize",
            *(self.at, global_pid(self.process), self.device, 1, self.address, 0, self.bytes, self.kind),
            *(int(self.free), self.id, *(self.pool or (None, None))),
        )


@dataclass(frozen=True)
class PageFault:
    """A page fault of a CPU at an ``instruction``, or ``count`` of a GPU (``device``) that lasted until ``end``."""

    start: int
    end: int | None = None
    count: int = 1
    device: int = 0
    access: int = 1
    instruction: Text | None = None
    process: int = 1

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        row = {"start": self.start, "globalPid": global_pid(self.process), "address": 4096 * self.start}
        if self.instruction is not None:
            yield "CUDA_UM_CPU_PAGE_FAULT_EVENTS", {**row, "CpuInstruction": strings(self.instruction)}
            return
        more = {"end": self.end, "deviceId": self.device, "numberOfPageFaults": self.count}
        yield "CUDA_UM_GPU_PAGE_FAULT_EVENTS", {**row, **more, "faultAccessType": self.access}


@dataclass(frozen=True)
class Memset(_Op):
    """A memset of `bytes` bytes."""

    start: int
    end: int
    id: int | None
    bytes: int = 1024
    value: int = 0
    graph_node: int | None = None

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        more = {"bytes": self.bytes, "value": self.value, "memKind": 2, "graphNodeId": self.graph_node}
        yield "CUPTI_ACTIVITY_KIND_MEMSET", {**self._head(self.start, self.end, self.id), **more}


@dataclass(frozen=True)
class GraphTrace(_Op):
    """One launch of a CUDA graph, traced as a whole."""

    start: int
    end: int
    id: int | None
    graph: int = 1
    graph_exec: int = 2

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        more = {"graphId": self.graph, "graphExecId": self.graph_exec}
        yield "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", {**self._head(self.start, self.end, self.id), **more}


@dataclass(frozen=True)
class Gpu:
    """A row of TARGET_INFO_GPU; `more` fills any of its other columns."""

    id: int = 0
    name: Text = "NVIDIA H200"
    more: Mapping[str, Any] = field(default_factory=dict)

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        known = {
            **{"smCount": 132, "totalMemory": 150_109_880_320, "memoryBandwidth": 4_814_304_000_000},
            **{"clockRate": 1_980_000_000, "l2CacheSize": 62_914_560, "computeMajor": 9, "computeMinor": 0},
            **{"isDiscrete": 1, "cuDevice": self.id},
        }
        yield "TARGET_INFO_GPU", {"vmId": VM << 48, "id": self.id, "name": self.name, **known, **self.more}


@dataclass(frozen=True)
class CudaDevice:
    """A row of TARGET_INFO_CUDA_DEVICE: process `process` calls GPU `gpu` device `device`."""

    gpu: int | None
    device: int
    process: int = 1

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        yield "TARGET_INFO_CUDA_DEVICE", {"gpuId": self.gpu, "cudaId": self.device, "pid": self.process}


@dataclass(frozen=True)
class Process:
    """A row of PROCESSES."""

    process: int
    name: Text = "python3"

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        row = {"globalPid": global_pid(self.process), "pid": self.process, "name": self.name}
        yield "PROCESSES", row


@dataclass(frozen=True)
class ThreadName:
    """A row of ThreadNames."""

    thread: int
    name: Text
    process: int = 1

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        row = {"nameId": strings(self.name), "priority": 20, "globalTid": global_tid(self.process, self.thread)}
        yield "ThreadNames", row


@dataclass(frozen=True)
class Diagnostic:
    """A message of nsys itself: severity 1 information, 2 warning, 3 error."""

    text: Text
    severity: int = 2
    at: int = 0
    source: int = 1

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        row = {"timestamp": self.at, "timestampType": 1, "source": self.source, "severity": self.severity}
        yield "DIAGNOSTIC_EVENT", {**row, "text": self.text}


@dataclass(frozen=True)
class OsCall:
    """A call of the operating system."""

    name: Text
    start: int
    end: int
    thread: int = 1
    process: int = 1

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        tid = global_tid(self.process, self.thread)
        row = {"start": self.start, "end": self.end, "eventClass": 27, "globalTid": tid, "nestingLevel": 0}
        yield "OSRT_API", {**row, "nameId": strings(self.name), "returnValue": 0}


@dataclass(frozen=True)
class Overhead:
    """Time in which nsys itself was at work on a thread."""

    start: int
    end: int
    thread: int = 1
    process: int = 1

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        tid = global_tid(self.process, self.thread)
        row = {"start": self.start, "end": self.end, "globalTid": tid, "returnValue": 0}
        yield "PROFILER_OVERHEAD", {**row, "nameId": strings("Buffer request")}


@dataclass(frozen=True, kw_only=True)
class _StreamEvent:
    """Which event, of which stream: ``sync`` tells recordings of one event apart, 0 was never recorded."""

    event: int = 1
    sync: int = 1
    process: int = 1
    device: int = 0

    def _head(self, stream: int, id: int) -> dict[str, Any]:
        columns = "deviceId contextId greenContextId streamId correlationId globalPid eventId eventSyncId"
        values = (self.device, 1, 0, stream, id, global_pid(self.process), self.event, self.sync)
        return row("", columns, *values)[1]


@dataclass(frozen=True)
class EventRecord(_StreamEvent):
    """`cudaEventRecord`: the event stands for all that its stream was given before ``at``."""

    stream: int
    at: int
    id: int
    thread: int = 1

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        yield "CUPTI_ACTIVITY_KIND_CUDA_EVENT", self._head(self.stream, self.id)
        call = Launch(self.at, self.at + 1, self.id, self.thread, self.process, api="cudaEventRecord_v3020")
        yield from call.rows(strings)


@dataclass(frozen=True)
class StreamWait(_StreamEvent):
    """`cudaStreamWaitEvent`: what its stream is given after ``at`` waits for the event."""

    stream: int
    at: int
    id: int
    thread: int = 1

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        row = {"start": self.at, "end": self.at + 1, "syncType": 2}
        yield "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", {**self._head(self.stream, self.id), **row}
        call = Launch(self.at, self.at + 1, self.id, self.thread, self.process, api="cudaStreamWaitEvent_v3020")
        yield from call.rows(strings)


@dataclass(frozen=True)
class StreamKind:
    """What kind a stream is: 1 blocking, 2 non-blocking, 3 the legacy default stream; a text where it is damaged."""

    stream: int
    kind: int | str
    process: int = 1

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        row = {"streamId": self.stream, "hwId": 0, "vmId": VM, "processId": self.process, "contextId": 1}
        yield "TARGET_INFO_CUDA_STREAM", {**row, "priority": 0, "flag": self.kind}


@dataclass(frozen=True)
class GraphNode:
    """A node of a CUDA graph that was made at a moment; ``original``: it is a copy of that one."""

    node: int
    at: int
    original: int | None = None
    thread: int = 1
    process: int = 1

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        made = {"start": self.at, "end": self.at, "globalTid": global_tid(self.process, self.thread)}
        ids = {"graphNodeId": self.node, "originalGraphNodeId": self.original}
        yield "CUDA_GRAPH_NODE_EVENTS", {**made, **ids, "nameId": strings("Graph Node Creation")}


@dataclass(frozen=True)
class Row:
    """A row of any table, column by column. A table that no schema here knows gets the row's own columns."""

    table: str
    values: Mapping[str, Any]

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        yield self.table, dict(self.values)


class Item(Protocol):
    """What a made-up report consists of."""

    def rows(self, strings: Strings) -> Iterator[RowOf]:
        """The rows that it is, each with its table."""


Items: TypeAlias = Item | tuple[Item, ...]
OPS = (Kernel, Memcpy, Memset, GraphTrace)


def launch_kernel(
    name: Text,
    call: tuple[int, int],
    kernel: tuple[int, int],
    *,
    id: int,
    thread: int = 1,
    process: int = 1,
    event_class: int = 0,
    **op: Any,
) -> tuple[Launch, Kernel]:
    """A launch and its kernel with one correlation id: `launch_kernel("gemm", (10, 15), (20, 30), id=1)`."""
    launch = Launch(*call, id, thread=thread, process=process, event_class=event_class)
    return launch, Kernel(name, *kernel, id, process=process, **op)


def launch_memcpy(
    call: tuple[int, int],
    copy: tuple[int, int],
    *,
    id: int,
    thread: int = 1,
    process: int = 1,
    api: str = "cudaMemcpyAsync",
    **op: Any,
) -> tuple[Launch, Memcpy]:
    """A `cudaMemcpyAsync`, or another call, and its copy."""
    launch = Launch(*call, id, thread=thread, process=process, api=f"{api}_v3020")
    return launch, Memcpy(*copy, id, process=process, **op)


def allocate(
    at: int, address: int, size: int, *, id: int, thread: int = 1, process: int = 1, **more: Any
) -> tuple[Launch, MemoryEvent]:
    """A `cudaMalloc` that takes 2 ns, and what it allocates; with ``free`` a `cudaFree`."""
    api = "cudaFree_v3020" if more.get("free") else "cudaMalloc_v3020"
    launch = Launch(at, at + 2, id, thread=thread, process=process, api=api)
    return launch, MemoryEvent(at + 1, address, size, id, process=process, **more)


def launch_memset(
    call: tuple[int, int], fill: tuple[int, int], *, id: int, thread: int = 1, process: int = 1, **op: Any
) -> tuple[Launch, Memset]:
    """A `cudaMemsetAsync` and its memset."""
    launch = Launch(*call, id, thread=thread, process=process, api="cudaMemsetAsync_v3020")
    return launch, Memset(*fill, id, process=process, **op)


def launch_graph(
    call: tuple[int, int], graph: tuple[int, int], *, id: int, thread: int = 1, process: int = 1, **op: Any
) -> tuple[Launch, GraphTrace]:
    """A `cudaGraphLaunch` and the graph traced as a whole."""
    launch = Launch(*call, id, thread=thread, process=process, api="cudaGraphLaunch_v10000")
    return launch, GraphTrace(*graph, id, process=process, **op)
