"""Find kernels that suddenly take many times as long at the same grid, as if GPU memory spilled to the host."""

from collections.abc import Iterator

import numpy as np

from nsysprof.core.columns import distinct
from nsysprof.core.text import plural
from nsysprof.core.units import format_ns
from nsysprof.diagnosis.busy import Busy
from nsysprof.diagnosis.finding import Finding
from nsysprof.trace.trace import KERNEL

# Times the fastest launches with the same grid, from a length on: caches and clocks do not explain more.
_SLOWER, _FAST_NS = 8, 2_000
_LEAST, _FASTEST = 6, 2  # launches of a kernel with one grid; which of the fastest is compared
_KERNELS, _SHARE = 3, 0.2  # with a fifth of their time or more lost, and of the time of all kernels
# They read and write as much memory at each launch with the same grid.
_STREAMING = ("elementwise", "copy", "fill", "optimizer")
_REMEDY = (
    "use less GPU memory (a smaller batch or model, fewer optimizer states): full memory may spill to the host under"
    " WSL and Windows; also check for other programs on this GPU"
)


def full_memory(busy: Busy) -> Iterator[Finding]:
    """Find pointwise kernels of several names, most of whose time is lost to launches that take at least eight times as
    long as the fastest ones with the same grid.
    """
    case, trace = busy.case, busy.case.facts.attribution.trace
    launches, kinds = case.launches, case.facts.kinds
    if launches is None or not len(busy.op):
        return
    streams = np.array([family in _STREAMING for family in kinds.family], bool)
    here = (trace.ops.kind == KERNEL) & (trace.op_gpu == busy.place.gpu) & streams[trace.ops.name]
    rows = np.flatnonzero(here & (launches.blocks[launches.of] > 0))
    first, key = distinct(trace.ops.name[rows], launches.of[rows])
    length = trace.ops.end[rows] - trace.ops.start[rows]
    order = np.lexsort((length, key))
    begin = np.searchsorted(key[order], np.arange(len(first)))
    count = np.bincount(key, minlength=len(first))
    fast = np.maximum(length[order][np.minimum(begin + _FASTEST, begin + count - 1)], _FAST_NS)
    lost = np.where((length > _SLOWER * fast[key]) & (count[key] >= _LEAST), length - fast[key], 0)
    slow = np.bincount(key, lost, len(first)) >= _SHARE * np.bincount(key, length, len(first))
    in_steps = np.isin(rows, busy.op)
    ns, names = int(lost[in_steps].sum()), np.unique(trace.ops.name[rows[first[slow & (count >= _LEAST)]]])
    if len(names) < _KERNELS or ns < _SHARE * int(busy.length.sum()) or not busy.enough(ns):
        return
    worst = int((length / fast[key]).argmax())
    text = (
        f"{plural(len(names), 'pointwise kernel')} take up to {length[worst] / fast[key[worst]]:,.0f} times as long at"
        f" the same grid ({format_ns(int(length[worst]))} instead of {format_ns(int(fast[key[worst]]))}), as if GPU"
        " memory were full: {amount}"
    )
    yield busy.finding("full-memory", "full GPU memory", text, _REMEDY, ns)
