"""Find kernels that suddenly take many times as long with the same grid, as if GPU memory spilled to the host."""

from collections.abc import Iterator

import numpy as np

from nsysprof.core.arrays import Ints
from nsysprof.core.columns import distinct
from nsysprof.core.text import plural
from nsysprof.core.units import format_ns
from nsysprof.diagnosis.busy import Busy
from nsysprof.diagnosis.case import Case, made_once
from nsysprof.diagnosis.finding import Finding
from nsysprof.diagnosis.kinds import MIN_SHARE
from nsysprof.diagnosis.page_fault import known_fault_share
from nsysprof.trace.trace import KERNEL

# Times the fastest launches with the same grid, from a length on: caches and clocks do not explain more.
_SLOWER, _FAST_NS = 8, 2_000
_LEAST, _FASTEST = 6, 2  # launches of a kernel with one grid; which of the fastest is compared
_KERNELS, _SHARE = 3, 0.2  # with a fifth of their time or more lost, and of the time of all kernels
_TURNS = 0.15  # changes between fast and slow launches for each slow one: two sizes in each step have more
# Kernels of PyTorch that read and write as much memory at each launch with the same grid.
_STREAMING = ("elementwise", "copy", "fill", "optimizer")
_REMEDY = (
    "use less GPU memory (a smaller batch or model, 8-bit optimizer states): under WSL and Windows, full memory spills"
    " to the host; also check for other programs on this GPU"
)


@made_once
def _fast(case: Case) -> Ints:
    """How long the fastest launches take with the name and grid of each GPU op; 0 unless many launches were slow from
    some moment on.
    """
    trace, launches, kinds = case.facts.attribution.trace, case.launches, case.facts.kinds
    out = np.zeros(len(trace.ops), np.int64)
    if launches is None:
        return out
    names = zip(kinds.family, trace.op_names, strict=True)
    streams = np.array([family in _STREAMING and "at::native" in name for family, name in names], bool)
    rows = np.flatnonzero((trace.ops.kind == KERNEL) & streams[trace.ops.name] & (launches.blocks[launches.of] > 0))
    rows = rows[np.argsort(trace.ops.start[rows], kind="stable")]
    length = trace.ops.end[rows] - trace.ops.start[rows]
    first, key = distinct(trace.ops.name[rows], launches.of[rows], trace.op_gpu[rows])
    by_length, by_start = np.lexsort((length, key)), np.argsort(key, kind="stable")
    count = np.bincount(key, minlength=len(first))
    begin = np.cumsum(count) - count
    fast = np.maximum(length[by_length[np.minimum(begin + _FASTEST, begin + count - 1)]], _FAST_NS)
    slow = length > _SLOWER * fast[key]
    turns = np.bincount(key[by_start][1:], np.diff(slow[by_start].astype(np.int8)) != 0, len(first))
    lost = np.bincount(key, np.where(slow, length - fast[key], 0), len(first))
    many = (count >= _LEAST) & (lost >= _SHARE * np.bincount(key, length, len(first)))
    many &= turns <= np.maximum(_TURNS * np.bincount(key, slow, len(first)), 2)
    told = slow & many[key]
    out[rows[told]] = fast[key[told]]
    return out


def full_memory(busy: Busy) -> Iterator[Finding]:
    """Find pointwise kernels (several names) that suddenly take at least eight times as long with the same grid,
    although no other kernel runs.
    """
    fast = _fast(busy.case)[busy.op]
    mine = np.flatnonzero((fast > 0) & (2 * busy.alone >= busy.length))
    length, fast = busy.length[mine], fast[mine]
    names, ns = len(np.unique(busy.name[mine])), int((length - fast).sum())
    if (
        names < _KERNELS
        or ns < _SHARE * int(busy.length.sum())
        or known_fault_share(busy.case, busy.place) >= MIN_SHARE
    ):
        return
    gain = busy.gained(busy.op[mine], length - fast)
    if not busy.enough(gain):
        return
    worst = int((length / fast).argmax())
    text = (
        f"{plural(names, 'pointwise kernel')} suddenly take up to {length[worst] / fast[worst]:,.0f} times as long with"
        f" the same grid ({format_ns(int(length[worst]))} instead of {format_ns(int(fast[worst]))}), as if GPU memory"
        " had spilled to the host: {amount}"
    )
    yield busy.finding("full-memory", "full GPU memory", text, _REMEDY, gain, busy.op[mine], ns)
