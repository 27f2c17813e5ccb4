"""The gaps between GPU ops, of a range or of a whole GPU, each split by what the GPU waited for."""

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
    """The stretches of a range's instances (windows) in which none of its GPU ops runs, sorted by window and time.

    ``start``, ``end`` int64 ns; ``behind`` the position in the `RangeWork` of the next GPU op; ``kind`` HOST, SYNC,
    QUEUE or EXPOSED; ``others_ns`` int64, the part in which the GPUs ran GPU ops of other ranges (OTHERS).
    ``between_calls`` bool: the GPU ops on either side belong to different calls.
    """

    start: Ints
    end: Ints
    behind: NDArray[np.intp]
    kind: NDArray[np.uint8]
    others_ns: Ints
    between_calls: NDArray[np.bool_]

    @property
    def length_ns(self) -> Ints:
        """The length of each gap, with the part in which others ran."""
        return self.end - self.start

    def total_ns(self, kind: int) -> int:
        """The time of one kind of waiting in all gaps."""
        if kind == OTHERS:
            return int(self.others_ns.sum())
        return int((self.length_ns - self.others_ns)[self.kind == kind].sum())


def find_gaps(index: WorkIndex, work: RangeWork, windows: NDArray[np.intp], waits: Waits) -> Gaps:
    """Find the `Gaps` in the ``windows`` that ``work`` was made from.

    The kinds are those of `idle_pieces`; the thread of the range counts as a launching thread as well.
    """
    reach = reach_so_far(work)
    same = work.window[1:] == work.window[:-1]
    behind = np.flatnonzero(same & (work.start[1:] > reach[:-1])) + 1
    ranges = index.attribution.trace.ranges
    pieces = idle_pieces(
        index.attribution.trace,
        waits,
        reach[behind - 1],
        work.start[behind],
        work.op[behind],
        ranges.thread[windows[work.window[behind]]],
    )
    behind = behind[pieces.gap]
    return Gaps(
        start=pieces.start,
        end=pieces.end,
        behind=behind,
        kind=pieces.kind,
        others_ns=_others(index, work, pieces.start, pieces.end, behind),
        between_calls=work.call[behind] != work.call[behind - 1],
    )


@dataclass(frozen=True)
class IdlePieces:
    """Gaps cut by what the GPU waited for: ``gap`` the number of each piece's gap, ``start``, ``end``, ``kind``."""

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
    """Classify the gaps of a GPU, or of a range, from each ``start`` to each ``end``, where ``op`` ends the gap.

    A gap is QUEUE where the host call that launched ``op`` had returned before the gap began: the GPU had its work and
    idled nevertheless. Otherwise the GPU waited for the HOST. Where the launching thread, or the given one, sat in a
    call that waits for the GPU when it ran dry, and launched only after that, the gap is two: SYNC until that call
    returned, and EXPOSED from there on: time of the host that shows because the synchronization had let the GPU run
    dry, and no cost of the call itself. A copy counts as launched when its call began, because the host may sit in that
    until the copy is done. A GPU op without a launch waited for the HOST.
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
    """The part of each gap in which the GPUs of its window run GPU ops of other ranges."""
    out = np.zeros(len(start), np.int64)
    gpus = work.gpus[np.searchsorted(work.windows, work.window[behind])]
    for mask in np.unique(gpus).tolist():
        rows = gpus == mask
        first, last = union_of(index, mask)
        out[rows] = cover_before(first, last, end[rows]) - cover_before(first, last, start[rows])
    return out
