"""Classify host calls by name: calls that launch GPU work, wait for the GPU, or run inside other calls."""

import re

import numpy as np

from nsysprof.core.arrays import Bytes, Ints, Ints32, Mask
from nsysprof.trace.details import CUDA, LAUNCHING, OS, PROFILER, SYNCHRONIZING

_LAUNCHES = re.compile(
    r"(?:cuda|cu|hip)(?:GraphLaunch|(?:Ext)?(?:Module)?Launch(?!HostFunc)|Memcpy|Memset).*", re.DOTALL
)
# cudaFree and blocking copies wait for the device like cudaDeviceSynchronize does; their Async forms do not.
_LAUNCHES_KERNEL = re.compile(r"(?:cuda|cu|hip)(?:Ext)?(?:Module)?Launch(?!HostFunc)\w*")
LONG_LAUNCH_NS = 50_000  # of a kernel: that call may have loaded it
_WAITS = re.compile(
    r"(?:\w*Synchronize|(?:cuda|cu|hip)Memcpy(?!\w*Async|\w*Peer)\w*|cudaFree|cudaFreeArray|cuMemFree|hipFree|hipFreeArray)"
    r"(?:_v\d+|_ptsz|_ptds)*"
)


def launches_work(api: str) -> bool:
    """Return whether a host call with this name launches GPU work."""
    return _LAUNCHES.fullmatch(api) is not None


def launches_kernel(api: str) -> bool:
    """Return whether a host call with this name launches one kernel."""
    return _LAUNCHES_KERNEL.fullmatch(api) is not None


def waits_for_gpu(api: str) -> bool:
    """Return whether a host call with this name, in any version (`…_v3020`), returns only when the GPU is done."""
    return _WAITS.fullmatch(api) is not None


def activity_kind(api: str) -> int:
    """Classify the CUDA call with this name: `LAUNCHING`, `SYNCHRONIZING`, or `CUDA` for all others."""
    if waits_for_gpu(api):
        return SYNCHRONIZING
    return LAUNCHING if launches_work(api) else CUDA


def outermost_calls(thread: Ints32, end: Ints, kind: Bytes) -> Mask:
    """Mark the outermost calls of each kind and thread; operating-system calls inside CUDA calls are not marked.

    Rows must be sorted by thread, then start, then longest first.
    """
    kept = np.ones(len(end), bool)
    starts = np.flatnonzero(np.diff(thread)) + 1
    for first, last in zip([0, *starts.tolist()], [*starts.tolist(), len(end)], strict=True):
        for kinds in (kind[first:last] <= CUDA, kind[first:last] == OS, kind[first:last] == PROFILER):
            rows = first + np.flatnonzero(kinds)
            if len(rows) > 1:
                kept[rows[1:]] = end[rows[1:]] > np.maximum.accumulate(end[rows])[:-1]
        cuda = kept[first:last] & (kind[first:last] <= CUDA)
        system = kept[first:last] & (kind[first:last] == OS)
        if system.any():
            reach = np.maximum.accumulate(np.where(cuda, end[first:last], np.iinfo(np.int64).min))
            kept[first:last] &= ~(system & (reach >= end[first:last]))
    return kept
