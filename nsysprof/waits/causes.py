"""Why nothing of a range ran between two of its ops: every gap, split by what it waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.range_work import RangeWork, WorkIndex, reach_so_far, union_of
from nsysprof.core.intervals import Ints, cover_before
from nsysprof.trace.details import Waits
from nsysprof.trace.trace import MEMCPY, Trace

HOST, SYNC, QUEUE, OTHERS, EXPOSED = range(5)
WAITING_FOR = (
    "idle: waiting for the host",
    "idle: in a synchronization",
    "idle: between queued ops",
    "idle: others' ops running",
    "idle: waiting for the host after a synchronization",
)


@dataclass(frozen=True)
class Gaps:
    """The stretches of a range's windows in which none of its ops runs, sorted by window and time.

    ``start``, ``end`` int64 ns; ``behind`` the position in the `RangeWork` of the op that comes next; ``kind`` HOST,
    SYNC, QUEUE or EXPOSED; ``others_ns`` int64, how much of it the GPUs ran other ranges' ops (that part is OTHERS).
    ``between_calls`` bool: the ops on either side belong to different calls.
    """

    start: Ints
    end: Ints
    behind: NDArray[np.intp]
    kind: NDArray[np.uint8]
    others_ns: Ints
    between_calls: NDArray[np.bool_]

    @property
    def length_ns(self) -> Ints:
        """How long each gap is, with what others ran in it."""
        return self.end - self.start

    def total_ns(self, kind: int) -> int:
        """The time that a kind of waiting takes in all gaps."""
        if kind == OTHERS:
            return int(self.others_ns.sum())
        mine = self.kind == kind
        return int((self.length_ns - self.others_ns)[mine].sum())


def find_gaps(index: WorkIndex, work: RangeWork, windows: NDArray[np.intp], waits: Waits) -> Gaps:
    """The `Gaps` in the ``windows`` that ``work`` was made from.

    See `idle_pieces` for the kinds; the thread of the range counts as a launching thread as well.
    """
    reach = reach_so_far(work)
    same = work.window[1:] == work.window[:-1]
    behind = np.flatnonzero(same & (work.start[1:] > reach[:-1])) + 1
    ranges = index.attribution.trace.ranges
    found = idle_pieces(
        index.attribution.trace,
        waits,
        reach[behind - 1],
        work.start[behind],
        work.op[behind],
        ranges.thread[windows[work.window[behind]]],
    )
    behind = behind[found.gap]
    return Gaps(
        start=found.start,
        end=found.end,
        behind=behind,
        kind=found.kind,
        others_ns=_others(index, work, found.start, found.end, behind),
        between_calls=work.call[behind] != work.call[behind - 1],
    )


@dataclass(frozen=True)
class IdlePieces:
    """Gaps cut by what they waited for: ``gap`` the number of each piece's gap, ``start``, ``end``, ``kind``."""

    gap: NDArray[np.intp]
    start: Ints
    end: Ints
    kind: NDArray[np.uint8]


def idle_pieces(
    trace: Trace,
    waits: Waits,
    start: Ints,
    end: Ints,
    op: NDArray[np.intp],
    thread: NDArray[np.integer] | None = None,
) -> IdlePieces:
    """Why a GPU, or a range, ran nothing from each ``start`` to each ``end``, where ``op`` ended the gap.

    A gap is QUEUE where the host call of the op that ends it had returned before the gap began: the GPU had its work
    and idled nevertheless. Otherwise the GPU waited for the HOST. Where the launching thread, or the given one, sat
    in a call that waits for the GPU when it ran dry, and launched only after that, the gap is two: SYNC until that call
    returned, and EXPOSED from there on: time of the host that shows because the synchronization had let the GPU run
    dry, and no cost of the call itself. A copy counts as launched when its call began, because the host may sit in that
    until the copy is done. An op without a launch waited for the HOST.
    """
    kind, cut = np.full(len(start), HOST, np.uint8), start.copy()
    known = np.flatnonzero(trace.ops.launch[op] >= 0)
    launch, since = trace.ops.launch[op[known]], start[known]
    called, returned = trace.launches.start[launch], trace.launches.end[launch]
    queued = np.where(trace.ops.kind[op[known]] == MEMCPY, called, returned) <= since
    kind[known[queued]] = QUEUE
    for code in (trace.launches.thread[launch], *(() if thread is None else (thread[known],))):
        done = waits.until(trace.threads[code], since)
        synced = ~queued & (done >= since) & (done <= called)
        kind[known[synced]] = SYNC
        cut[known[synced]] = np.maximum(cut[known], done)[synced]
    parts = np.where((start < cut) & (cut < end), 2, 1)
    second = np.cumsum(parts)[parts == 2] - 1
    gap = np.repeat(np.arange(len(start)), parts)
    kind, begin, stop = kind[gap], start[gap], end[gap]
    stop[second - 1] = begin[second] = cut[parts == 2]
    kind[second] = EXPOSED
    kind[(kind == SYNC) & (cut[gap] <= begin)] = EXPOSED  # it returned at once
    return IdlePieces(gap, begin, stop, kind)


def _others(index: WorkIndex, work: RangeWork, start: Ints, end: Ints, behind: NDArray[np.intp]) -> Ints:
    """How much of each gap the GPUs of its window run ops that are not the range's."""
    out = np.zeros(len(start), np.int64)
    gpus = work.gpus[np.searchsorted(work.windows, work.window[behind])]
    for mask in np.unique(gpus).tolist():
        mine = gpus == mask
        first, last = union_of(index, mask)
        out[mine] = cover_before(first, last, end[mine]) - cover_before(first, last, start[mine])
    return out
