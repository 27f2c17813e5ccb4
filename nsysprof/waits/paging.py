"""Measure the cost of unified memory: kernels that wait for pages, and an idle GPU while the host waits."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import Ints, Line
from nsysprof.core.intervals import covered, merge, union
from nsysprof.trace.trace import GRAPH, KERNEL, MIGRATION, Trace

FAULT_NS = 50_000  # what a page fault of a GPU takes at most, by and large
PREFETCHED, EVICTED = 1, 4  # causes of migrations: the program asked for it; the memory of the GPU is full


@dataclass(frozen=True)
class Paging:
    """Page migrations and page faults of unified memory in intervals on a GPU (int64 per interval).

    ``kernel_ns``: time in which kernels ran while pages migrated to their GPU on demand, or while the GPU handled page
    faults; ``wait_ns``: an upper bound of the kernels' wait: ``kernel_ns`` plus `FAULT_NS` for each migration and
    fault, but at most the time from a kernel's start to its last migration; ``host_ns``: time in which no kernel ran
    while pages that the host touched migrated to the host. Bytes of migrations that began in the interval:
    ``to_gpu_bytes``, ``to_host_bytes`` on demand (``evicted_bytes`` of the latter because GPU memory was full).
    """

    kernel_ns: Ints
    wait_ns: Ints
    host_ns: Ints
    to_gpu_bytes: Ints
    to_host_bytes: Ints
    evicted_bytes: Ints


def paging(trace: Trace, gpu: int, start: Ints, end: Ints) -> Paging | None:
    """Measure the `Paging` of the intervals (steps, or pieces of waits) from each ``start`` to each ``end`` on a GPU.

    Returns None if the recording has no migrations and no page faults of that GPU and its processes. Takes near-linear
    time.
    """
    ops, faults = trace.ops, trace.page_faults
    of_stream = np.array(trace.gpu_numbers, np.int64)[trace.stream_device]  # migrations are of no GPU in `op_gpu`
    moves = np.flatnonzero((ops.kind == MIGRATION) & (of_stream.take(ops.stream) == gpu))
    mine = [(process, device) for (process, device), number in trace.gpu_of.items() if number == gpu]
    cpu = (faults.device < 0) & np.isin(faults.process, [process for process, _ in mine])
    ours = np.zeros(len(faults.start), bool)
    for process, device in mine:
        ours |= (faults.process == process) & (faults.device == device)
    if not (len(moves) or cpu.any() or ours.any()):
        return None
    size, cause = trace.copy_sizes(), np.full(len(ops), -1, np.int16)
    cause[trace.copy_ops] = trace.copies.cause
    to_gpu = np.array(["HtoD" in name or "DtoD" in name for name in trace.op_names], bool)[ops.name[moves]]
    asked = cause[moves] == PREFETCHED
    runs = np.flatnonzero(((ops.kind == KERNEL) | (ops.kind == GRAPH)) & (trace.op_gpu == gpu))
    kernels = merge(ops.start[runs], ops.end[runs])
    ins, outs = moves[to_gpu & ~asked], moves[~to_gpu & ~asked]
    inwards = union(merge(ops.start[ins], ops.end[ins]), merge(faults.start[ours], faults.end[ours]))
    outwards = merge(ops.start[outs], ops.end[outs])
    added = _adder(start, end)
    served = added(ops.start[ins], np.full(len(ins), FAULT_NS)) + added(
        faults.start[ours], faults.count[ours] * FAULT_NS
    )
    kernel_ns = _both(kernels, inwards, start, end)
    return Paging(
        kernel_ns=kernel_ns,
        wait_ns=np.minimum(kernel_ns + served, covered(_until_last(kernels, inwards), start, end)),
        host_ns=covered(outwards, start, end) - _both(kernels, outwards, start, end),
        to_gpu_bytes=added(ops.start[ins], size[ins]),
        to_host_bytes=added(ops.start[outs], size[outs]),
        evicted_bytes=added(ops.start[moves], size[moves] * (cause[moves] == EVICTED)),
    )


def _until_last(kernels: Line, inwards: Line) -> Line:
    """The time of each kernel from its start to the end of the last of some intervals in it; none of other kernels."""
    (start, end), (begin, stop) = kernels, inwards
    last = np.searchsorted(begin, end) - 1
    until = np.minimum(end, np.append(stop, 0)[last])
    some = (last >= 0) & (until > start)
    return start[some], until[some]


def _both(one: tuple[Ints, Ints], other: tuple[Ints, Ints], start: Ints, end: Ints) -> Ints:
    """How long two sets of disjoint intervals both cover each stretch of time."""
    either = covered(union(one, other), start, end)
    return covered(one, start, end) + covered(other, start, end) - either


def _adder(start: Ints, end: Ints) -> Callable[[Ints, Ints], Ints]:
    """A function that adds up values at moments in each stretch of time."""

    def added(moment: Ints, value: Ints) -> Ints:
        order = np.argsort(moment, kind="stable")
        total = np.append(0, np.cumsum(np.maximum(value[order], 0)))
        low, high = (np.searchsorted(moment[order], edge) for edge in (start, end))
        return total[np.maximum(high, low)] - total[low]

    return added
