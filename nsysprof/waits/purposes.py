"""Find the purpose of host calls from their names, and find calls that are one-time set-up."""

import re

import numpy as np

from nsysprof.core.arrays import Bytes, Index, Ints, Mask
from nsysprof.core.columns import distinct, pick
from nsysprof.core.intervals import covered, union
from nsysprof.trace.calls import LONG_LAUNCH_NS
from nsysprof.trace.details import CUDA, PROFILER, CallList, HostActivity
from nsysprof.trace.trace import KERNEL, MIGRATION, PROCESS_OF_THREAD, Trace
from nsysprof.waits.awaited import calls_around

_GPU = r"(?:cuda|cu|hip)"
# The first that matches a whole name, without its version, says what the call is for.
_TABLE = {
    "launch": rf"{_GPU}(?:Ext)?(?:Module)?Launch\w*",
    "graph launch": rf"{_GPU}GraphLaunch",
    "query": r"(?:cuda|cu|hip)(?:Event|Stream)Query",
    "synchronize": r"\w+Synchronize",
    "copy": rf"{_GPU}Memcpy\w*",
    "memset": rf"{_GPU}Memset\w*",
    "managed": r"cudaMallocManaged|cuMemAllocManaged|hipMallocManaged"
    rf"|{_GPU}Mem(?:Prefetch|Advise|RangeGetAttribute)\w*|{_GPU}StreamAttachMemAsync",
    "pin": r"(?:cuda|hip)(?:MallocHost|Host(?:Alloc|Malloc|Register|Unregister|Free)|FreeHost)"
    r"|cuMem(?:AllocHost|HostAlloc|HostRegister|HostUnregister|FreeHost)",
    "free": r"(?:cuda|hip)Free\w*|cuMem(?:Free|Release|Unmap|AddressFree)\w*|cu\w*ArrayDestroy"
    rf"|{_GPU}MemPool(?:TrimTo|Destroy)",
    "allocate": r"(?:cuda|hip)Malloc\w*|cuMem(?:Alloc|Create|Map|AddressReserve|SetAccess)\w*|cuArray3?D?Create"
    rf"|{_GPU}MemPool(?:Create|SetA\w+)",
    "context": r"cuInit|hipInit|cu(?:Device)?(?:Primary)?Ctx(?:Create|Destroy|Retain|Release|Reset)\w*"
    r"|cuDevicePrimaryCtx\w+|(?:cuda|hip)DeviceReset|cuda\w*SetDeviceFlags|hipCtxCreate|cudaInitDevice",
    "compile": r"nvrtc\w+|hiprtc\w+|nvJitLink\w+|nvPTXCompiler\w+|cuLink\w+|hipLink\w+|Driver Compiler",
    "module": rf"{_GPU}(?:Module|Library)(?:Load|Unload|GetFunction|GetKernel|GetGlobal)\w*"
    r"|cuKernelGetFunction|cuFuncLoad|cudaGetFuncBySymbol|.*(?:Module|Function) Loading",
    "graph capture": r"(?:cuda|cu|hip)(?:Graph\w+|Stream(?:Begin|End)Capture\w*|StreamUpdateCapture\w*)",
    "event": rf"{_GPU}(?:Event\w+|Stream(?:Create|Destroy|WaitEvent|AddCallback|Wait|Write)\w*|LaunchHostFunc)",
    "MPI": r"P?MPI_\w+",
    "NCCL": r"(?:nccl|rccl)\w+",
    "sleep": r"(?:clock_)?nanosleep|u?sleep|sched_yield|time\.sleep",
    "lock": r"futex|pthread_(?:mutex|cond|rwlock|spin|join|barrier)\w*|sem_(?:timed|clock)?wait|wait(?:pid|id|3|4)"
    r"|(?:acquire|wait)\b.*|(?:threading|queue)\.py \w+",
    "poll": r"p?poll|p?select|epoll_p?wait\w*|(?:poll|select) of .*",
    "input-output": r"(?:f|p|pre?|v)?(?:read|write)v?\d*|(?:f|re)?open(?:at)?(?:64)?|f?close|fcntl|fgets|fputs"
    r"|putc|getc|fflush|f(?:data)?sync|l?seek|send\w*|recv\w*|connect|accept4?|socket|bind|listen|pipe2?|dup\d?|dlopen"
    r"|(?:readinto|recv\w*|read|fsync) of .*|dataloader\.py __next__",
    "pages": r"m(?:un|re)?map(?:64)?|mprotect|madvise|s?brk|mlock\w*|munlock\w*",
    "profiler": rf"{_GPU}Profiler\w+",
}
PURPOSES = (*_TABLE, "code", "other")
LAUNCH, GRAPH_LAUNCH, QUERY, SYNCHRONIZE, COPY, MEMSET, MANAGED, PIN, FREE, ALLOCATE = range(10)
CONTEXT, COMPILE, MODULE, GRAPH_CAPTURE, EVENT, MPI, NCCL, SLEEP, LOCK, POLL = range(10, 20)
INPUT_OUTPUT, PAGES, PROFILING, IN_CODE, OTHER = range(20, 25)
SET_UP = (CONTEXT, COMPILE, MODULE, GRAPH_CAPTURE)  # what a program does once
_LAUNCHES_NO_GPU_WORK = re.compile(rf"{_GPU}LaunchHostFunc")
_VERSION = re.compile(r"(?:_(?:ptsz|ptds|v\d+))+\Z")
# Ranges in which frameworks compile, or try which kernel is fastest.
_COMPILES = re.compile(
    r"(?i).*(?:(?:dynamo|inductor|fx|backend|frame|aot\w*|jit|triton|xla|gpu|nvfuser)\w*\W*(?:compile|codegen)"
    r"|\bcompil(?:e(?!d)|ing|ation)|compile_?(?:fx|inner)|async_?compile|autotun|benchmark_all_configs|find_?algorithm|cudnn\w*find)"
)
# A call that makes a context, or loads a kernel, takes so long at least, and so many times what others of it take.
_LONG_NS, _TIMES = 1_000_000, 10
_PINS_NS = 5_000_000_000  # a call that pins for longer pins much, whatever else it does
_LOADING_NS, _TIMES_LOADING = 100_000_000, 1_000  # the same of a call that frees
_CREATES = (MANAGED, PIN, FREE, ALLOCATE, COPY, MEMSET, EVENT, OTHER)


def purpose_of(name: str) -> int:
    """Return the purpose of a host call by its name, as an index into `PURPOSES` (`OTHER` if unknown).

    Handles names of the CUDA runtime and driver, HIP (all with versions, such as ``cuMemAlloc_v2``), and the operating
    system.
    """
    bare = _VERSION.sub("", name)
    if _LAUNCHES_NO_GPU_WORK.fullmatch(bare):
        return EVENT
    return next((code for code, pattern in enumerate(_PATTERNS) if pattern.fullmatch(bare)), OTHER)


_PATTERNS = [re.compile(pattern, re.DOTALL) for pattern in _TABLE.values()]


def compiles(range_name: str) -> bool:
    """Return whether a framework compiles or autotunes in a range with this name."""
    return _COMPILES.match(range_name) is not None


def purposes(trace: Trace, activity: HostActivity) -> Bytes:
    """Return the purpose of each row of ``activity.calls`` as an index into `PURPOSES`. The last entry, which stands
    for "no call", is `IN_CODE`.

    The longest call before the first op of a GPU created the CUDA context, if it takes at least 1 ms and ten times as
    long as other calls of the same name. The first launch of a kernel loads the kernel if it takes at least 50 µs, and
    ten times as long as usual launches. Calls on a thread that captures a CUDA graph belong to the capture.
    """
    calls = activity.calls
    out = np.append(np.array([purpose_of(name) for name in calls.names], np.uint8)[calls.name], np.uint8(IN_CODE))
    out[:-1][activity.kind == PROFILER] = PROFILING
    out[_creating(trace, activity, out)] = CONTEXT
    length, launching = calls.end - calls.start, out[:-1] == LAUNCH
    out[_loading(trace, length, calls, out)] = MODULE
    loads = np.flatnonzero((length >= LONG_LAUNCH_NS) & launching)
    if len(loads):
        usual = _usual(np.append(length[launching], activity.left_out))
        loads = loads[length[loads] >= _TIMES * usual]
        out[np.intersect1d(loads, calls_around(trace, activity, _first_launches(trace)))] = MODULE
    _mark_captures(activity, out)
    return out


def happens_once(activity: HostActivity, purpose: Bytes, start: Ints, end: Ints) -> Mask:
    """Mark the calls that are one-time set-up; ``purpose`` is the result of `purposes`.

    A call, such as a graph capture, is not set-up if calls of the same name occur in at least half of the steps. Steps
    last from ``start`` to ``end`` (ns, sorted).
    """
    calls, out = activity.calls, np.isin(np.arange(len(PURPOSES)), SET_UP)[purpose]
    rows = np.flatnonzero(out[:-1])
    step = np.searchsorted(start, calls.start[rows], side="right") - 1
    inside = (step >= 0) & (calls.start[rows] < pick(end, step, 0))
    rows, step = rows[inside], step[inside]
    first, _ = distinct(calls.name[rows], step)
    again = np.bincount(calls.name[rows[first]], minlength=len(calls.names)) * 2 >= max(len(start), 2)
    out[rows[again[calls.name[rows]]]] = False
    return out


def _creating(trace: Trace, activity: HostActivity, purpose: Bytes) -> list[int]:
    """The call that created each device's context: the longest before its first op that created no other; in processes
    without recorded GPU ops, the first long one.
    """
    calls = activity.calls
    length = calls.end - calls.start
    long = np.flatnonzero(length >= _LONG_NS)
    long = _without_work(trace, calls, long[np.isin(purpose[long], _CREATES)])
    long = long[(purpose[long] != PIN) | (length[long] < _PINS_NS)]
    if not len(long):
        return []
    process = (calls.threads & PROCESS_OF_THREAD)[calls.thread]
    first, group = distinct(calls.name[long], np.searchsorted(trace.processes, process[long]))
    named = np.flatnonzero(np.isin(np.arange(len(calls.names)), calls.name[long])[calls.name])
    alike = [
        named[(calls.name[named] == calls.name[row]) & (process[named] == process[row])] for row in long[first].tolist()
    ]
    of = [int(trace.processes[device.process]) for device in trace.devices]
    contexts = [max(of.count(int(process[row])), 1) for row in long[first].tolist()]  # each makes one call long
    usual = np.array([_usual(length[rows], count) for rows, count in zip(alike, contexts, strict=True)])
    long = long[length[long] >= _TIMES * usual[group]]
    begins = np.full(len(trace.devices), np.iinfo(np.int64).max)
    works = np.flatnonzero(trace.ops.kind != MIGRATION)
    np.minimum.at(begins, trace.stream_device[trace.ops.stream[works]], trace.ops.start[works])
    out: list[int] = []
    for pid in np.unique(process[long]).tolist():
        mine = long[process[long] == pid]
        if pid not in of:
            out.append(int(mine[np.argmin(calls.start[mine])]))
        for until in sorted(begin for each, begin in zip(of, begins.tolist(), strict=True) if each == pid):
            before = mine[(calls.end[mine] <= until) & ~np.isin(mine, out)]
            out += before[[np.argmax(length[before])]].tolist() if len(before) else []
    return out


def _loading(trace: Trace, length: Ints, calls: CallList, purpose: Bytes) -> Index:
    """The calls that free memory, take very long, and wait for no GPU: they load the kernels of a library."""
    frees = np.flatnonzero(purpose[:-1] == FREE)
    long, last = frees[length[frees] >= _LOADING_NS], trace.ops.end.max(initial=0)
    long = long[calls.start[long] < last]
    if len(long):
        return _without_work(trace, calls, long[length[long] >= _TIMES_LOADING * _usual(length[frees])])
    return long


def _without_work(trace: Trace, calls: CallList, rows: Index) -> Index:
    """The calls for most of whose time all GPUs idle: others wait for a kernel, or copy."""
    if not (len(trace.ops) and len(rows)):
        return rows
    first, last = calls.start[rows].min(), calls.end[rows].max()
    near = [
        (begin[low:high], end[low:high])
        for begin, end in trace.gpu_busy.values()
        for low, high in [(np.searchsorted(end, first), np.searchsorted(begin, last))]
    ]
    busy = union(*near)
    return rows[2 * covered(busy, calls.start[rows], calls.end[rows]) < calls.end[rows] - calls.start[rows]]


def _usual(length: Ints, longest: int = 1) -> float:
    """The median of durations without some of the longest; 0 if no other is left."""
    return float(np.median(np.sort(length)[:-longest])) if len(length) > longest else 0.0


def _first_launches(trace: Trace) -> Index:
    """The first launch of each kernel in each process, unless the kernel was queued longer than the launch took."""
    ops, launches = trace.ops, trace.launches
    kernels = np.flatnonzero((ops.kind == KERNEL) & (ops.launch >= 0))
    order = kernels[np.argsort(launches.start[ops.launch[kernels]], kind="stable")]
    op = order[distinct(ops.name[order], trace.op_process[order])[0]]
    call = ops.launch[op]
    return np.unique(call[ops.start[op] - launches.end[call] <= launches.end[call] - launches.start[call]])


def _mark_captures(activity: HostActivity, purpose: Bytes) -> None:
    """Count a thread's calls from the begin of a capture to its end as part of the capture."""
    calls = activity.calls
    begins, ends = (
        np.flatnonzero(np.array([mark in name for name in calls.names], bool).take(calls.name))
        for mark in ("StreamBeginCapture", "StreamEndCapture")
    )
    place = np.searchsorted(ends, begins)
    for first, last in zip(begins[place < len(ends)].tolist(), ends[place[place < len(ends)]].tolist(), strict=True):
        rows = slice(first, last + 1)
        if calls.thread[first] == calls.thread[last]:
            purpose[rows][activity.kind[rows] <= CUDA] = GRAPH_CAPTURE
