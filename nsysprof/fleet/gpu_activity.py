"""What the GPUs of one process do over time: compute, communicate, copy, or idle for a reason."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import Ints, cover_before, merge
from nsysprof.trace.details import Waits
from nsysprof.trace.trace import KERNEL, MEMCPY, MEMSET, Trace
from nsysprof.waits import causes
from nsysprof.waits.causes import idle_pieces

# The parts that add up to the time of a window on a GPU, and what no part of the sum is: all communication.
COMPUTE, EXPOSED, COPIES, HOST, SYNC, QUEUE = (
    *("compute", "exposed", "copies", "idle_host", "idle_sync", "idle_queue"),
)
PARTS = (COMPUTE, EXPOSED, COPIES, HOST, SYNC, QUEUE)
COMMUNICATION = "communication"


@dataclass(frozen=True)
class Lines:
    """Disjoint sorted intervals, ``(start, end)`` in ns, of one GPU.

    ``compute``: a kernel that is no communication runs, or a CUDA graph that was traced whole; ``communication``: such
    a kernel runs; ``kernels``: either; ``busy``: anything. ``gaps``: for each kind of idleness its gaps.
    """

    compute: tuple[Ints, Ints]
    communication: tuple[Ints, Ints]
    kernels: tuple[Ints, Ints]
    busy: tuple[Ints, Ints]
    gaps: dict[str, tuple[Ints, Ints]]

    def inside(self, start: Ints, end: Ints) -> dict[str, Ints]:
        """How much of each window every part takes, in ns: `PARTS`, which add up to the window, and all communication.

        Communication is exposed while no compute kernel runs; copies count while no kernel runs.
        """

        def covered(line: tuple[Ints, Ints]) -> Ints:
            return cover_before(*line, end) - cover_before(*line, start)

        compute, kernels, busy = covered(self.compute), covered(self.kernels), covered(self.busy)
        return {
            COMPUTE: compute,
            EXPOSED: kernels - compute,
            COPIES: busy - kernels,
            **{kind: covered(line) for kind, line in self.gaps.items()},
            COMMUNICATION: covered(self.communication),
        }


def gpu_lines(trace: Trace, communication: NDArray[np.bool_], process: int, waits: Waits) -> dict[int, Lines]:
    """The `Lines` of each GPU, by its number, that a process ran ops on.

    ``communication`` says it of each op name. Ops of other processes on the same GPU count as nothing.
    """
    mine = (trace.op_process == process) & (trace.op_gpu >= 0)
    found = {}
    for gpu in np.flatnonzero(np.bincount(trace.op_gpu[mine])).tolist() if mine.any() else ():
        rows = np.flatnonzero(mine & (trace.op_gpu == gpu))
        found[gpu] = _lines(
            trace, communication, rows[np.argsort(trace.ops.start[rows], kind="stable")], waits
        )
    return found


def _lines(trace: Trace, communication: NDArray[np.bool_], rows: NDArray[np.intp], waits: Waits) -> Lines:
    ops = trace.ops
    start, end, kind = ops.start[rows], ops.end[rows], ops.kind[rows]
    talks = (kind == KERNEL) & communication[ops.name[rows]]
    copies = (kind == MEMCPY) | (kind == MEMSET)
    computes = ~talks & ~copies
    return Lines(
        compute=merge(start[computes], end[computes]),
        communication=merge(start[talks], end[talks]),
        kernels=merge(start[~copies], end[~copies]),
        busy=merge(start, end),
        gaps=_gaps(trace, rows, waits),
    )


def _gaps(trace: Trace, rows: NDArray[np.intp], waits: Waits) -> dict[str, tuple[Ints, Ints]]:
    """The gaps between ops that are sorted by start, by what they waited for.

    What the host does after a synchronization that let the GPU run dry is time of the host.
    """
    start = trace.ops.start[rows]
    reach = np.maximum.accumulate(trace.ops.end[rows]) if len(rows) else start
    behind = np.flatnonzero(start[1:] > reach[:-1]) + 1
    found = idle_pieces(trace, waits, reach[behind - 1], start[behind], rows[behind])
    kinds = {HOST: (causes.HOST, causes.EXPOSED), SYNC: (causes.SYNC,), QUEUE: (causes.QUEUE,)}
    mine = {name: np.isin(found.kind, codes) for name, codes in kinds.items()}
    return {name: (found.start[chosen], found.end[chosen]) for name, chosen in mine.items()}
