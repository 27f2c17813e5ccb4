"""Test whether the dependencies explain when GPU ops start: replay windows from edges and constant delays."""

from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import Floats, Index, Ints, Ints32
from nsysprof.trace.trace import Trace
from nsysprof.waits.walk import Reasons
from nsysprof.waits.windows import Windows

MAX_WINDOWS = 8  # of a path and GPU that are replayed, evenly spread
MAX_OPS = 100_000  # of a window that are replayed, from its start
MAX_ALL = 2_000_000  # of the windows of a GPU, path by path
LATENCY = 4  # times the lower quartile: what takes longer is a wait that no edge explains, and in no constant
_NEVER = np.iinfo(np.int64).min
_LONG_AGO = _NEVER // 2  # to which durations can be added


@dataclass(frozen=True)
class Replay:
    """How well dependencies and constant delays explain the times of one path on one GPU.

    ``windows`` are the replayed rows of `Windows`. An op starts with a mean delay of ``behind_op_ns`` after its
    dependency, ``behind_event_ns`` after a dependency with an event in between (`Reasons.marked`), and
    ``behind_launch_ns`` after its launch. ``residual`` (float64) is the error of each window's replayed end, as a share
    of the window's span.

    A GPU takes 1.1 µs or 2.1 µs from kernel to kernel. A median would equal one of these two values, and would be 10 µs
    wrong over a chain of 20 kernels. So each constant is the mean of the delays, without delays above `LATENCY` times
    the lower quartile.
    """

    path: int
    gpu: int
    windows: Index
    behind_op_ns: int
    behind_event_ns: int
    behind_launch_ns: int
    residual: Floats


def replays(trace: Trace, why: Reasons, windows: Windows) -> list[Replay]:
    """Replay at most `MAX_WINDOWS` windows of each path and GPU; paths with more than `MAX_ALL` ops are left out.

    An op starts a constant time after its last dependency ends or its call returns, whichever is later. Ops that start
    before the window keep their recorded start. The run time grows nearly linearly with the number of replayed ops.
    """
    ops = trace.ops
    out = []
    for gpu in np.unique(windows.gpu).tolist():
        mine = trace.in_order(np.flatnonzero(trace.op_gpu == gpu), ops.start)
        start = ops.start[mine]
        place = np.full(len(ops) + 1, -1, np.int32)
        here = np.flatnonzero(windows.gpu == gpu)
        left = MAX_ALL
        for each in np.split(here, np.flatnonzero(np.diff(windows.path[here])) + 1):  # sorted by path
            chosen = each[np.unique(np.linspace(0, len(each) - 1, min(len(each), MAX_WINDOWS)).astype(np.intp))]
            first = np.searchsorted(start, windows.start[chosen])
            last = np.minimum(np.searchsorted(start, windows.end[chosen]), first + MAX_OPS)
            chosen, first, last = (column[first < last] for column in (chosen, first, last))
            parts = [mine[low:high] for low, high in zip(first.tolist(), last.tolist(), strict=True)]
            left -= int((last - first).sum())
            if not parts or left < 0:
                continue
            constants = _latencies(trace, why, np.concatenate(parts))
            residual = np.zeros(len(parts))
            for number, rows in enumerate(parts):
                place[rows] = np.arange(len(rows))
                replayed = _starts(trace, why, constants, rows, place) + ops.end[rows] - ops.start[rows]
                place[rows] = -1
                stop, begin = int(ops.end[rows].max()), int(windows.start[chosen[number]])
                residual[number] = abs(int(replayed.max()) - stop) / max(stop - begin, 1)
            out.append(Replay(int(windows.path[each[0]]), gpu, chosen, *constants, residual))
    return out


def _latencies(trace: Trace, why: Reasons, rows: Index) -> tuple[int, int, int]:
    """The mean delays (ns) of some ops after an op, after an event, and after a launch.

    0 if unknown; the delay after an op also stands for the delay after an event if there is none.
    """
    ready, launched = why.ready[rows], why.launched[rows]
    came = np.maximum(ready, launched)
    length, known = trace.ops.start[rows] - np.where(came > _NEVER, came, 0), came > _NEVER
    behind_op, marked = known & (ready >= launched), why.marked[rows]
    op = mean_latency(length[behind_op & ~marked], 0)
    return op, mean_latency(length[behind_op & marked], op), mean_latency(length[known & ~behind_op], 0)


def mean_latency(length: Ints, otherwise: int) -> int:
    """Return the mean latency without outliers, in ns, or ``otherwise`` if there are no latencies."""
    if len(length) == 0:
        return otherwise
    quick = float(np.quantile(length, 0.25, method="lower"))
    return round(float(length[length <= quick + (LATENCY - 1) * abs(quick)].mean()))


def _starts(trace: Trace, why: Reasons, constants: tuple[int, int, int], rows: Index, place: Ints32) -> Ints:
    """The start of each op of ``rows`` by its edges; ``place`` is each op's index in ``rows``, -1 for all others.

    `start = max(start of the op before + a, b)` along the edges; such steps compose, so that edges are taken two at a
    time, then four, and so on.
    """
    ops, (plain, marked, behind_launch) = trace.ops, constants
    behind_op = np.where(why.marked[rows], marked, plain)
    before, ready, launched = why.op[rows], why.ready[rows], why.launched[rows]
    up = place[before]  # -1, no op before, is the last entry
    b = np.where(launched > _NEVER, launched + behind_launch, _LONG_AGO)
    begins = np.flatnonzero(up < 0)
    known = begins[ready[begins] > _NEVER]
    b[known] = np.maximum(b[known], ready[known] + behind_op[known])
    unknown = begins[(ready[begins] == _NEVER) & (launched[begins] == _NEVER)]
    b[unknown] = ops.start[rows[unknown]]
    a = np.where(up >= 0, ops.end[before] - ops.start[before] + behind_op, 0)
    active = np.flatnonzero(up >= 0)
    for _ in range(len(rows).bit_length() + 1):
        parent = up[active]
        b[active], a[active], up[active] = (
            np.maximum(b[active], b[parent] + a[active]),
            a[active] + a[parent],
            up[parent],
        )
        active = active[up[active] >= 0]
    return b
