"""Split the gaps between GPU ops by the reason why the GPU waits. The ops are those of a range, or of a process on a
GPU.
"""

from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.range_work import RangeWork, WorkIndex, reach_so_far
from nsysprof.core.arrays import AnyInts, Bytes, Index, Ints, Mask
from nsysprof.core.columns import pick
from nsysprof.trace.details import PROFILER, HostActivity
from nsysprof.trace.trace import MEMCPY, MEMSET, Trace
from nsysprof.waits import walk as walked
from nsysprof.waits.host import ACTIVITIES, host_time, threads_to_blame
from nsysprof.waits.walk import Reasons, reasons, walk

# The kinds of pieces: first what the host did while its launch was awaited, in the codes of `ACTIVITIES`.
LATENCY, COMMUNICATION, COPY, OTHERS, UNKNOWN = range(len(ACTIVITIES), len(ACTIVITIES) + 5)
WAITING_FOR = (
    *("idle: profiler" if code == PROFILER else f"idle: host: {name}" for code, name in enumerate(ACTIVITIES)),
    *("idle: latency", "idle: communication", "idle: copy", "idle: others' GPU ops", "idle: unknown"),
)
# What the causes of waiting were called before, for one version of `gap.csv`.
_HOST_BEFORE, _OTHERS_BEFORE = "idle: waiting for the host", "idle: others' ops running"
CAUSE_BEFORE = {
    **dict.fromkeys(WAITING_FOR, _HOST_BEFORE),
    **dict.fromkeys(WAITING_FOR[COMMUNICATION:UNKNOWN], _OTHERS_BEFORE),
    "idle: host: synchronizing calls": "idle: in a synchronization",
    "idle: latency": "idle: between queued ops",
}


@dataclass(frozen=True)
class WaitFacts:
    """The inputs of the walk: ``reasons`` of the ops, host ``activity``, and which op names are ``communication``."""

    reasons: Reasons
    activity: HostActivity
    communication: Mask


def wait_facts(trace: Trace, communication: Mask) -> WaitFacts:
    """Read the `WaitFacts` of a trace."""
    reader = trace.report.reader
    return WaitFacts(reasons(trace, reader.dependencies(trace)), reader.host_activity(trace), communication)


@dataclass(frozen=True)
class Gaps:
    """Intervals of a range's windows in which no GPU op of the range runs, split by the reason why the GPU waits.

    Gaps are sorted by window and time, and last from ``start`` to ``end`` (int64 ns). ``behind`` is the position in the
    `RangeWork` of the GPU op that follows the gap; ``kind`` is an index into `WAITING_FOR`. ``between_calls`` is True
    if the GPU ops before and after the gap belong to different calls.
    """

    start: Ints
    end: Ints
    behind: Index
    kind: Bytes
    between_calls: Mask

    @property
    def length_ns(self) -> Ints:
        """The length of each piece."""
        return self.end - self.start

    def total_ns(self, kind: int) -> int:
        """Return the total time of one kind of waiting in all gaps."""
        return int(self.length_ns[self.kind == kind].sum())


def find_gaps(index: WorkIndex, work: RangeWork, facts: WaitFacts) -> Gaps:
    """Find the `Gaps` in the windows of ``work``."""
    start, behind = gap_bounds(work)
    pieces = idle_pieces(index.attribution, facts, start, work.start[behind], work.op[behind])
    behind = behind[pieces.gap]
    return Gaps(pieces.start, pieces.end, behind, pieces.kind, work.call[behind] != work.call[behind - 1])


def gap_bounds(work: RangeWork) -> tuple[Ints, Index]:
    """Return the start of each gap in the windows of ``work``, and the position of the GPU op that ends the gap."""
    reach = reach_so_far(work)
    same = work.window[1:] == work.window[:-1]
    behind = np.flatnonzero(same & (work.start[1:] > reach[:-1])) + 1
    return reach[behind - 1], behind


@dataclass(frozen=True)
class IdlePieces:
    """Gaps, split by the GPU's reason for waiting: ``gap`` number, ``start``, ``end`` and ``kind`` per piece."""

    gap: Index
    start: Ints
    end: Ints
    kind: Bytes


def idle_pieces(
    attribution: Attribution, facts: WaitFacts, start: Ints, end: Ints, op: AnyInts, thread: AnyInts | None = None
) -> IdlePieces:
    """Split each gap by the reason why the GPU waits. A gap lasts from ``start`` to ``end``, and ``op`` starts at its
    end.

    If ``op`` is -1, the GPU waited only for the host ``thread`` (a code of `Trace.threads`). Ops replayed by CUDA
    graphs count as launched by the replay, regardless of their attribution.
    """
    attribution = attribution.launched
    ops = attribution.trace.ops
    pieces = walk(attribution.trace, facts.reasons, start, end, op)
    late = np.flatnonzero(pieces.kind == walked.HOST)
    launch = pick(ops.launch, pieces.op[late])
    whose = np.zeros(len(late), np.int64) if thread is None else thread[pieces.gap[late]]
    blamed = threads_to_blame(attribution, facts.activity, launch, pieces.start[late], pieces.end[late], whose)
    host = host_time(attribution, facts.activity, *blamed)
    rest = np.flatnonzero(pieces.kind != walked.HOST)
    kind, name = ops.kind[pieces.op[rest]], ops.name[pieces.op[rest]]
    copies = (kind == MEMCPY) | (kind == MEMSET)
    runs = np.select([copies, facts.communication[name]], [COPY, COMMUNICATION], OTHERS)
    unknown = np.isin(pieces.kind[rest], (walked.UNKNOWN, walked.HOLE, walked.CUT))
    other = np.select([pieces.kind[rest] == walked.LATENCY, unknown], [LATENCY, UNKNOWN], runs)
    gap = np.concatenate([pieces.gap[late][host.piece], pieces.gap[rest]])
    begin = np.concatenate([host.start, pieces.start[rest]])
    stop = np.concatenate([host.end, pieces.end[rest]])
    kinds = np.concatenate([host.activity, other]).astype(np.uint8)
    order = np.lexsort((begin, gap))
    gap, begin, stop, kinds = gap[order], begin[order], stop[order], kinds[order]
    new = np.append(True, (gap[1:] != gap[:-1]) | (kinds[1:] != kinds[:-1]))[: len(gap)]
    last = np.append(new[1:], True)[: len(gap)]  # equal pieces side by side are one
    return IdlePieces(gap[new], begin[new], stop[last], kinds[new])
