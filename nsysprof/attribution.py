"""Op → launch → owner: which range every piece of GPU work belongs to, and the ledger that accounts for all of it.

The rules are those of the README's section on attribution. In short: the owner of an op is the innermost push/pop range
that is open on the launching thread during the whole host call; work launched by a thread without an open range
follows the one other thread of the process that has one; start/end ranges own what is left in their window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.errors import NsysprofError
from nsysprof.intervals import Nest, nest
from nsysprof.projection import Calls, Totals, project, slice_calls, take_calls
from nsysprof.report import Report
from nsysprof.tables import START_END, Tables, read_tables

# The fate of an op, in the order of the ledger.
OWN_THREAD, FOLLOWED, WINDOW, OUTSIDE, AMBIGUOUS, NO_LAUNCH = range(6)
FATES = ("own thread", "followed", "start/end window", "outside every range", "ambiguous", "no launch row")
THREADS = ("follow", "strict")


@dataclass(frozen=True)
class LedgerRow:
    """How many ops, and how many ns of their durations, met one fate."""

    fate: str
    ops: int
    sum_ns: int


@dataclass(frozen=True)
class Attribution:
    """What belongs to which range.

    Per launch: ``owner`` int32, a row of ``tables.ranges``, -1 for none; ``fate`` uint8, an index into `FATES`.
    Per range: ``parent`` int32, the innermost push/pop range that contains it on its thread, -1 for none;
    ``inclusive``, a `Totals` with what lies inside it; ``exclusive_sum_ns`` int64, what it owns itself.
    ``ledger`` has a row per fate; its rows add up to all ops of the report.
    """

    tables: Tables
    threads: str
    owner: NDArray[np.int32]
    fate: NDArray[np.uint8]
    parent: NDArray[np.int32]
    inclusive: Totals
    exclusive_sum_ns: NDArray[np.int64]
    ledger: tuple[LedgerRow, ...]

    @property
    def op_owner(self) -> NDArray[np.int32]:
        """The owner of each op, -1 for none."""
        return np.append(self.owner, np.int32(-1))[self.tables.ops.launch]

    @property
    def op_fate(self) -> NDArray[np.uint8]:
        """The fate of each op."""
        return np.append(self.fate, np.uint8(NO_LAUNCH))[self.tables.ops.launch]


def attribute(
    report: Report | Tables, threads: str = "follow", progress: Callable[[str, int], None] | None = None
) -> Attribution:
    """Attribute every op of an open report, or of its tables if they were read before.

    ``threads`` is ``follow`` (work of helper threads belongs to the one range open elsewhere in the process) or
    ``strict`` (a thread's work belongs to its own ranges alone, as nsys projects). Near-linear in events, process by
    process. ``progress`` is told what was done, and how many rows.

    Raises `NsysprofError` for another word in ``threads``.
    """
    if threads not in THREADS:
        raise NsysprofError(
            f"unknown way to treat helper threads: {threads!r}", f"choose {' or '.join(THREADS)}"
        )
    tables = report if isinstance(report, Tables) else read_tables(report, progress)
    ranges, launches = tables.ranges, tables.launches
    result = Attribution(
        tables=tables,
        threads=threads,
        owner=np.full(len(launches), -1, np.int32),
        fate=np.full(len(launches), OUTSIDE, np.uint8),
        parent=np.full(len(ranges), -1, np.int32),
        inclusive=Totals.zeros(len(ranges)),
        exclusive_sum_ns=np.zeros(len(ranges), np.int64),
        ledger=(),
    )
    range_bounds = _bounds(ranges.thread, len(tables.threads))
    launch_bounds = _bounds(launches.thread, len(tables.threads))
    for process, calls in _calls_by_process(tables, launch_bounds):
        members = np.flatnonzero(tables.thread_process == process)
        _attribute_process(result, members.tolist(), calls, range_bounds, launch_bounds)
        if progress:
            progress("attribution", len(calls.start))
    ledger = _ledger(result)
    return Attribution(**{**result.__dict__, "ledger": ledger})


def _bounds(codes: NDArray[np.integer], count: int) -> NDArray[np.intp]:
    """Where the rows of each code begin in a column sorted by code; one more entry for the end."""
    return np.searchsorted(codes, np.arange(count + 1))


def _calls_by_process(tables: Tables, launch_bounds: NDArray[np.intp]) -> Iterator[tuple[int, Calls]]:
    """Each process with its launches and, in their order, the ops that they caused."""
    launches, ops = tables.launches, tables.ops
    process_of_op = tables.stream_process.astype(np.uint16 if len(tables.processes) < 1 << 16 else np.int32)
    process_of_op = process_of_op.take(ops.stream)
    grouped = np.argsort(process_of_op, kind="stable").astype(np.int32)
    op_bounds = np.searchsorted(process_of_op[grouped], np.arange(len(tables.processes) + 1))
    del process_of_op
    device = np.array([tables.gpu_numbers[code] for code in tables.stream_device.tolist()], np.int32)
    for process in range(len(tables.processes)):
        own = np.flatnonzero(tables.thread_process == process)
        first, last = (launch_bounds[own[0]], launch_bounds[own[-1] + 1]) if len(own) else (0, 0)
        rows = grouped[op_bounds[process] : op_bounds[process + 1]]
        launch = ops.launch[rows]
        rows = rows[launch >= 0]
        launch = launch[launch >= 0] - np.int32(first)
        rows, launch = _in_launch_order(rows, launch, int(last - first))
        yield (
            process,
            Calls.build(
                launches.start[first:last],
                launches.end[first:last],
                call=launch,
                op_start=ops.start[rows],
                op_end=ops.end[rows],
                device=device.take(ops.stream[rows]),
                kind=ops.kind[rows],
                from_graph=ops.from_graph[rows],
            ),
        )


def _in_launch_order(
    rows: NDArray[np.int32], launch: NDArray[np.int32], count: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Op rows and their launches sorted by launch; without a sort where each launch caused one op."""
    if len(rows) == count:
        place = np.full(count, -1, np.int32)
        place[launch] = rows
        if (place >= 0).all():
            return place, np.arange(count, dtype=np.int32)
    order = np.argsort(launch, kind="stable")
    return rows[order], launch[order]


def _attribute_process(
    result: Attribution,
    members: list[int],
    calls: Calls,
    range_bounds: NDArray[np.intp],
    launch_bounds: NDArray[np.intp],
) -> None:
    """Fill in what concerns one process: its threads are ``members``, its launches ``calls``."""
    if not members:
        return
    ranges = result.tables.ranges
    base = int(launch_bounds[members[0]])  # the process's first launch
    stop = int(launch_bounds[members[-1] + 1])
    owner, fate = result.owner[base:stop], result.fate[base:stop]
    nests: dict[int, tuple[int, Nest]] = {}
    windows: list[slice] = []
    for thread in members:
        first, last = int(range_bounds[thread]), int(range_bounds[thread + 1])
        middle = first + int(np.searchsorted(ranges.kind[first:last], START_END))
        if middle > first:
            nests[thread] = first, nest(ranges.start[first:middle], ranges.end[first:middle])
            up = nests[thread][1].up
            result.parent[first:middle] = np.where(up >= 0, up + first, -1)
        if last > middle:
            windows.append(slice(middle, last))
    lane = np.repeat(  # the thread whose ranges each launch is in
        np.array(members, np.int32), np.diff(launch_bounds[[*members, members[-1] + 1]])
    )
    for thread, (first, thread_nest) in nests.items():
        own = slice(int(launch_bounds[thread]) - base, int(launch_bounds[thread + 1]) - base)
        inside = thread_nest.innermost(calls.start[own], calls.end[own])
        owner[own] = np.where(inside >= 0, inside + first, -1)
        fate[own][inside >= 0] = OWN_THREAD
    if result.threads == "follow" and nests:
        _follow(calls, nests, owner, fate, lane)
    if windows:
        _fill_windows(result, windows, calls, owner, fate, members, launch_bounds - base)
    for thread, (first, thread_nest) in nests.items():
        own = slice(int(launch_bounds[thread]) - base, int(launch_bounds[thread + 1]) - base)
        part = _calls_of_lane(calls, lane, fate, thread, own)
        rows = slice(first, first + len(thread_nest.start))
        result.inclusive.fill(rows, project(part, thread_nest.start, thread_nest.end))
    owned = owner >= 0
    np.add.at(result.exclusive_sum_ns, owner[owned], calls.sum_ns[owned])


def _calls_of_lane(
    calls: Calls, lane: NDArray[np.int32], fate: NDArray[np.uint8], thread: int, own: slice
) -> Calls:
    """The launches that are in the ranges of one thread: its ``own``, and those that follow it."""
    followed = (lane == thread) & (fate == FOLLOWED)
    if not followed.any():
        return slice_calls(calls, own.start, own.stop)
    mine = followed.copy()
    mine[own] = True
    return take_calls(calls, mine, followed)


def _follow(
    calls: Calls,
    nests: dict[int, tuple[int, Nest]],
    owner: NDArray[np.int32],
    fate: NDArray[np.uint8],
    lane: NDArray[np.int32],
) -> None:
    """Give launches of threads without an open range to the one other thread that has one open all the while."""
    lost = np.flatnonzero(owner < 0)
    everywhere = np.concatenate([part.start for _, part in nests.values()])
    order = np.argsort(everywhere, kind="stable")
    reach = np.maximum.accumulate(np.concatenate([part.end for _, part in nests.values()])[order])
    before = np.searchsorted(everywhere[order], calls.start[lost], side="right")
    lost = lost[
        np.append(np.iinfo(np.int64).min, reach)[before] >= calls.end[lost]
    ]  # some range has them whole
    start, end = calls.start[lost], calls.end[lost]
    candidates = np.zeros(len(lost), np.int32)
    for thread, (first, thread_nest) in nests.items():
        undecided = np.flatnonzero(candidates < 2)
        inside = thread_nest.innermost(start[undecided], end[undecided])
        hit = undecided[inside >= 0]
        candidates[hit] += 1
        owner[lost[hit]] = inside[inside >= 0] + first
        lane[lost[hit]] = thread
    fate[lost[candidates == 1]] = FOLLOWED
    ambiguous = lost[candidates > 1]
    fate[ambiguous] = AMBIGUOUS
    owner[ambiguous] = -1
    lane[ambiguous] = -1


def _fill_windows(
    result: Attribution,
    windows: list[slice],
    calls: Calls,
    owner: NDArray[np.int32],
    fate: NDArray[np.uint8],
    members: list[int],
    launch_bounds: NDArray[np.intp],
) -> None:
    """Start/end ranges: inclusive over all launches in the window, owners of what no push/pop range owns.

    A window is open to its whole process, or under ``strict`` to the thread that started it.
    """
    ranges = result.tables.ranges
    if result.threads == "strict":
        groups = [
            (np.arange(rows.start, rows.stop), slice(*launch_bounds[[thread, thread + 1]]))
            for rows in windows
            for thread in [int(ranges.thread[rows.start])]
        ]
    else:
        rows = np.concatenate([np.arange(part.start, part.stop) for part in windows])
        rows = rows[np.lexsort((-ranges.end[rows], ranges.start[rows]))]
        groups = [(rows, slice(0, len(calls.start)))]
    for rows, among in groups:
        mine = np.zeros(len(calls.start), bool)
        mine[among] = True
        start, end = ranges.start[rows], ranges.end[rows]
        result.inclusive.fill(rows, project(take_calls(calls, mine), start, end))
        free = np.flatnonzero(mine & (owner < 0) & (fate != AMBIGUOUS))
        inside = nest(start, end).innermost(calls.start[free], calls.end[free])
        hit = inside >= 0
        owner[free[hit]] = rows[inside[hit]]
        fate[free[hit]] = WINDOW


def _ledger(result: Attribution) -> tuple[LedgerRow, ...]:
    """A row per fate, checked against the ops themselves and against what the ranges own."""
    ops = result.tables.ops
    length = ops.end - ops.start
    fate = result.op_fate
    count = np.bincount(fate, minlength=len(FATES))
    total = np.zeros(len(FATES), np.int64)
    np.add.at(total, fate, length)
    owned = int(total[[OWN_THREAD, FOLLOWED, WINDOW]].sum())
    if int(count.sum()) != len(ops) or int(total.sum()) != int(length.sum()):
        raise AssertionError("the ledger does not add up to the report's GPU work")
    if owned != int(result.exclusive_sum_ns.sum()):
        raise AssertionError("what the ranges own does not add up to what the ledger says they own")
    return tuple(LedgerRow(*row) for row in zip(FATES, count.tolist(), total.tolist(), strict=True))
