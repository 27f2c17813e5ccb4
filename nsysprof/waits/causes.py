"""Why nothing of a range ran between two of its ops: every gap, split by what it waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.range_work import RangeWork, WorkIndex, reach_so_far, union_of
from nsysprof.core.intervals import Ints, covered_before
from nsysprof.trace.details import Waits
from nsysprof.trace.tables import MEMCPY

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

    A gap is QUEUE where the host call of the op that ends it had returned before the gap began: the GPU had its work
    and idled nevertheless. Otherwise the GPU waited for the HOST. Where the launching thread, or that of the range, sat
    in a call that waits for the GPU when it ran dry, and launched only after that, the gap is two: SYNC until that call
    returned, and EXPOSED from there on: time of the host that shows because the synchronization had let the GPU run
    dry, and no cost of the call itself. A copy counts as launched when its call began, because the host may sit in that
    until the copy is done.
    """
    reach = reach_so_far(work)
    same = work.window[1:] == work.window[:-1]
    behind = np.flatnonzero(same & (work.start[1:] > reach[:-1])) + 1
    start, end = reach[behind - 1], work.start[behind]
    kind, returned = _kinds(index, work, windows, waits, start, behind)
    cut = np.clip(returned, start, end)
    parts = np.where((start < cut) & (cut < end), 2, 1)
    first = np.cumsum(parts) - parts
    second = first[parts == 2] + 1
    start, end = np.repeat(start, parts), np.repeat(end, parts)
    kind, behind = np.repeat(kind, parts), np.repeat(behind, parts)
    end[second - 1] = start[second] = cut[parts == 2]
    kind[second] = EXPOSED
    kind[(kind == SYNC) & (np.repeat(cut, parts) <= start)] = EXPOSED  # it returned at once
    return Gaps(
        start=start,
        end=end,
        behind=behind,
        kind=kind,
        others_ns=_others(index, work, start, end, behind),
        between_calls=work.call[behind] != work.call[behind - 1],
    )


def _kinds(
    index: WorkIndex,
    work: RangeWork,
    windows: NDArray[np.intp],
    waits: Waits,
    start: Ints,
    behind: NDArray[np.intp],
) -> tuple[NDArray[np.uint8], Ints]:
    """HOST, SYNC or QUEUE of each gap, and for SYNC when the host was back; its start for the others."""
    tables = index.attribution.tables
    op = work.op[behind]
    launch = tables.ops.launch[op]
    called, returned = tables.launches.start[launch], tables.launches.end[launch]
    launched = np.where(tables.ops.kind[op] == MEMCPY, called, returned)
    kind = np.where(launched <= start, QUEUE, HOST).astype(np.uint8)
    threads = (
        tables.threads[tables.launches.thread[launch]],
        tables.threads[tables.ranges.thread[windows[work.window[behind]]]],
    )
    back = start.copy()
    for thread in threads:
        done = waits.until(thread, start)
        mine = (kind != QUEUE) & (done >= start) & (done <= called)
        kind[mine] = SYNC
        back[mine] = np.maximum(back, done)[mine]
    return kind, back


def _others(index: WorkIndex, work: RangeWork, start: Ints, end: Ints, behind: NDArray[np.intp]) -> Ints:
    """How much of each gap the GPUs of its window run ops that are not the range's."""
    out = np.zeros(len(start), np.int64)
    gpus = work.gpus[np.searchsorted(work.windows, work.window[behind])]
    for mask in np.unique(gpus).tolist():
        mine = gpus == mask
        first, last = union_of(index, mask)
        out[mine] = covered_before(first, last, end[mine]) - covered_before(first, last, start[mine])
    return out
