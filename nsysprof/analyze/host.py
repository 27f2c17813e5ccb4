"""Show the CUDA and operating-system calls of host threads over time, for reports without annotated GPU work."""

from dataclasses import dataclass

import numpy as np

from nsysprof.charts.marks import RANGE, Marks
from nsysprof.core.arrays import Bytes, Ints, Ints32
from nsysprof.core.columns import sums
from nsysprof.core.intervals import busy_columns, clip
from nsysprof.core.text import shorten
from nsysprof.trace.details import CUDA, PROFILER, HostActivity
from nsysprof.trace.trace import PROCESS_OF_THREAD, Trace, tid_of

# By kind of `HostActivity`: what it is called, and its colour, pale as those of ranges.
KINDS = (
    ("launch calls", "#cbc0b0"),
    ("synchronizing calls", "#f2c393"),
    ("other CUDA calls", "#eeb1be"),
    ("OS calls", "#a3d6d6"),
    ("profiler", "#e3d88a"),
)
MAX_HOSTS = 4
MAX_BOXES = 2_000
_LABEL, _NAME = 34, 80  # characters


@dataclass(frozen=True)
class HostLane:
    """The calls of one thread, sorted by start, with values for each column of the timeline.

    ``start``, ``end`` int64 ns, ``kind`` uint8 (an index into `KINDS`) and the name of each call; ``busy_ns`` int64,
    the time in which a call runs; ``longest`` uint8: the kind that ran longest, `NOTHING` if no call ran; ``process``
    an index into ``trace.processes``.
    """

    label: str
    process: int
    start: Ints
    end: Ints
    kind: Bytes
    name: Ints32
    names: list[str]
    busy_ns: Ints
    longest: Bytes

    def marks(self, begin: int, stop: int, process: int | None = None) -> Marks:
        """Return the `MAX_BOXES` longest calls between two times as labelled boxes."""
        rows = np.flatnonzero((self.end > begin) & (self.start < stop))
        if len(rows) > MAX_BOXES:
            rows = np.sort(rows[np.argsort((self.start - self.end)[rows], kind="stable")[:MAX_BOXES]])
        start, end = clip(self.start[rows], self.end[rows], begin, stop)
        colours = [KINDS[kind][1] for kind in self.kind[rows].tolist()]
        names = [shorten(self.names[name], _NAME) for name in self.name[rows].tolist()]
        return Marks(shorten(self.label, _LABEL), RANGE, start, end, colours, names, process)

    def most(self, until: int) -> tuple[str, int]:
        """Return the name of the CUDA call with the most time before ``until``, and its time in ns."""
        rows = np.flatnonzero((self.kind <= CUDA) & (self.start < until))
        total = sums(self.name[rows], np.minimum(self.end[rows], until) - self.start[rows], len(self.names))
        return self.names[int(total.argmax())], int(total.max(initial=0))


def cuda_extent(activity: HostActivity) -> tuple[int, int] | None:
    """Return the start of the first CUDA call and the end of the last, or None if there are no CUDA calls."""
    rows = np.flatnonzero(activity.kind <= CUDA)
    if not len(rows):
        return None
    return int(activity.calls.start[rows].min()), int(activity.calls.end[rows].max())


def host_lanes(trace: Trace, activity: HostActivity, edges: Ints) -> tuple[HostLane, ...]:
    """Make the lanes of the `MAX_HOSTS` threads with the most time in CUDA calls; ``edges`` bound the columns."""
    calls, lanes = activity.calls, []
    rows = np.flatnonzero(activity.kind <= CUDA)
    cuda = sums(calls.thread[rows], np.maximum(calls.end[rows] - calls.start[rows], 1), len(calls.threads))
    ranked = np.argsort(-cuda, kind="stable")[:MAX_HOSTS]
    for code in np.sort(ranked[cuda[ranked] > 0]).tolist():
        tid = int(calls.threads[code])
        mine = calls.of_thread(tid)
        start, kind = calls.start[mine], activity.kind[mine]
        end = np.maximum(calls.end[mine], start)
        reach = np.maximum.accumulate(np.where(kind <= CUDA, end, np.iinfo(np.int64).min))
        inside = (end > edges[0]) & (start < edges[-1]) & ((kind != PROFILER) | (end > reach))
        start, kind = np.maximum(start[inside], edges[0]), kind[inside]
        end = np.minimum(end[inside], edges[-1])
        busy, longest = busy_columns(start, end, kind, edges)
        process = np.flatnonzero(trace.processes == tid & PROCESS_OF_THREAD)
        lanes.append(
            HostLane(
                label=f"{trace.thread_names.get(tid) or 'thread'} {tid_of(tid)} · calls",
                process=int(process[0]) if len(process) else -1,
                start=start,
                end=end,
                kind=kind,
                name=calls.name[mine][inside],
                names=calls.names,
                busy_ns=busy,
                longest=longest,
            )
        )
    return tuple(lanes)
