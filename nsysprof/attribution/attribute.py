"""Attribute GPU ops to their owners (GPU op → launch → owner), with a ledger that accounts for all GPU work.

docs/attribution.md has the rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from nsysprof.attribution.autograd_threads import autograd_threads, backward_brought_home
from nsysprof.attribution.captured import as_captured
from nsysprof.attribution.projection import LaunchWork, Totals, project, slice_calls, take_calls
from nsysprof.attribution.sources import AUTO, choose_ranges, read_sources
from nsysprof.core.arena import ColumnArena
from nsysprof.core.arrays import AnyInts, Bytes, Index, Ints, Ints32, Mask, slices
from nsysprof.core.intervals import inside_any
from nsysprof.core.nesting import Nest, nest
from nsysprof.core.parallel import in_threads
from nsysprof.core.text import quote_path
from nsysprof.errors import NsysprofError
from nsysprof.trace.report import allocator, open_report, read_tables
from nsysprof.trace.trace import MIGRATION, START_END, OpsByLaunch, Report, Trace

# The outcomes of GPU ops, in the order of the ledger.
OWN_THREAD, FOLLOWED, WINDOW, OUTSIDE, AMBIGUOUS, NO_LAUNCH, MIGRATED = range(7)
OUTCOMES = (
    *("own thread", "followed", "start/end window", "outside every range", "ambiguous", "no launch row"),
    "unified memory",
)
Made = TypeVar("Made")
THREADS = ("follow", "strict")
GRAPHS = ("launched", "captured")
_USUAL = {"threads": THREADS[0], "graphs": GRAPHS[0], "ranges": AUTO, "rules": None}
_MIN_LAUNCHES_FOR_THREADS = 100_000  # launches: fewer are attributed before threads start


@dataclass(frozen=True)
class LedgerRow:
    """The number of GPU ops with one outcome, and the total duration of these ops in ns."""

    outcome: str
    ops: int
    sum_ns: int


@dataclass(frozen=True, repr=False)
class Attribution:
    """The owners of all GPU work: the range that owns each launch, with totals per range.

    Per launch: ``owner`` int32, a row of ``trace.ranges``, -1 for none; ``outcome`` uint8, an index into `OUTCOMES`.
    Per range: ``parent`` int32: the innermost push/pop range around the range on the same thread, -1 for none;
    ``inclusive``: a `Totals` that includes inner ranges; ``exclusive_sum_ns`` int64: the summed time of the ops that
    the range itself owns. ``ledger`` has a row per outcome; these rows cover all GPU ops of the trace.

    ``sources`` is the choice of ``--ranges``. If ``graphs`` is ``captured``, ``trace`` is the result of `as_captured`,
    and ``recorded`` is the trace with the real launches. ``replay`` (int32) is then the graph launch that replayed each
    GPU op, -1 for ops without a known capture. Otherwise, both are None. ``options``: the options of commands that
    attribute in this way.
    """

    trace: Trace
    threads: str
    owner: Ints32
    outcome: Bytes
    parent: Ints32
    inclusive: Totals
    exclusive_sum_ns: Ints
    ledger: tuple[LedgerRow, ...]
    graphs: str = "launched"
    sources: str = AUTO
    replay: Ints32 | None = None
    recorded: Trace | None = None
    options: tuple[str, ...] = ()
    _made: dict[Callable[[Attribution], Any], Any] = field(default_factory=dict, init=False, compare=False)

    def __repr__(self) -> str:
        found = sum(row.ops for row in self.ledger if row.outcome in OUTCOMES[: WINDOW + 1])
        shares = f"{found:,} of {len(self.trace.ops):,} GPU ops belong to ranges"
        return f"<Attribution of {self.trace.report.path.name}: {shares}>"

    def once(self, make: Callable[[Attribution], Made]) -> Made:
        """Return ``make(self)``, computed once."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    @cached_property
    def launched(self) -> Attribution:
        """Return this attribution with every GPU op assigned to its real launch."""
        if self.recorded is None:
            return self
        return replace(attribute(self.recorded, self.threads, ranges=self.sources), options=self.options)

    @property
    def op_owner(self) -> Ints32:
        """Return the owner of each GPU op, -1 for none."""
        return np.append(self.owner, np.int32(-1))[self.trace.ops.launch]

    def owner_of(self, ops: slice) -> Ints32:
        """Return the owner of each GPU op in ``ops``, -1 for none."""
        launch = self.trace.ops.launch[ops]
        out = np.full(len(launch), -1, np.int32)
        known = launch >= 0
        out[known] = self.owner.take(launch[known])
        return out

    @property
    def op_outcome(self) -> Bytes:
        """The outcome of each GPU op."""
        return self.outcome_of(slice(None))

    def outcome_of(self, ops: slice) -> Bytes:
        """The outcomes of the GPU ops ``ops``."""
        launch = self.trace.ops.launch[ops]
        out = np.where(self.trace.ops.kind[ops] == MIGRATION, np.uint8(MIGRATED), np.uint8(NO_LAUNCH))
        known = launch >= 0
        out[known] = self.outcome.take(launch[known])
        return out


class Attributed:
    """A result about an ``attribution``."""

    attribution: Attribution

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return sentences about doubtful or missing data in the trace."""
        trace = self.attribution.trace
        return (*trace.report.about.warnings, *trace.warnings)


def option_words(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Compose the options with which a command reads a report in the ``given`` way; defaults are left out."""
    asked = {name: str(given[name]) for name, usual in _USUAL.items() if given.get(name, usual) != usual}
    return tuple(f"--{name} {quote_path(value)}" for name, value in asked.items())


def attribute(
    report: str | os.PathLike[str] | Report | Trace | Attribution,
    threads: str = "follow",
    progress: Callable[[str, int], None] | None = None,
    memory_limit: int | None = None,
    graphs: str = "launched",
    ranges: str = AUTO,
) -> Attribution:
    """Attribute every GPU op of a ``report``: a file, an open report, or the trace of a report that was already read.

    An `Attribution` is returned unchanged.

    If ``threads`` is ``follow``, work of worker threads belongs to the range open on another thread of the process, if
    there is exactly one. If ``threads`` is ``strict``, work of a thread belongs only to ranges of this thread, as in
    nsys's projection. Processes are attributed one by one; the run time is near-linear in the number of events.
    ``progress`` receives each task and its number of rows. If the report would take more than ``memory_limit`` bytes
    (None: no limit), long columns go to scratch files. If ``graphs`` is ``captured``, the report must be open, and
    replayed ops of a CUDA graph belong to the range that captured the graph (if the report has the capture).

    ``ranges`` chooses among ``nvtx,mpi,openacc,found``; ``auto`` means NVTX ranges if there are any, otherwise all
    other kinds (see `choose_ranges`). If ``report`` is a trace, its own ranges are used.

    Raises `NsysprofError` for other values of ``threads``, ``graphs`` or ``ranges``.
    """
    if isinstance(report, Attribution):
        return report
    for word, known, what in ((threads, THREADS, "treat worker threads"), (graphs, GRAPHS, "read CUDA graphs")):
        if word not in known:
            raise NsysprofError(f"unknown way to {what}: {word!r}", f"choose {' or '.join(known)}")
    read_sources(ranges)
    if isinstance(report, Trace):
        trace = report
    else:
        report = report if isinstance(report, Report) else open_report(report)
        trace = choose_ranges(read_tables(report, progress, allocator(report, memory_limit)), ranges)
    if threads == "follow":
        trace = backward_brought_home(trace)
    recorded = replay = None
    if graphs == "captured":
        recorded = trace
        trace, replay = as_captured(trace, trace.report.reader.captures(trace))
    launches, arena = trace.launches, trace.arena
    result = Attribution(
        trace=trace,
        threads=threads,
        owner=arena.full(len(launches), -1, np.int32),
        outcome=arena.full(len(launches), OUTSIDE, np.uint8),
        parent=arena.full(len(trace.ranges), -1, np.int32),
        inclusive=Totals.zeros(len(trace.ranges), arena, len(trace.devices)),
        exclusive_sum_ns=arena.zeros(len(trace.ranges), np.int64),
        ledger=(),
        graphs=graphs,
        sources=ranges,
        replay=replay,
        recorded=recorded,
        options=option_words({"threads": threads, "graphs": graphs, "ranges": ranges}),
    )
    range_bounds = _bounds(trace.ranges.thread, len(trace.threads))
    launch_bounds = _bounds(launches.thread, len(trace.threads))
    first_thread, work = _bounds(trace.thread_process, len(trace.processes)), trace.ops_by_launch

    def one_process(process: int) -> int:
        members = range(first_thread[process], first_thread[process + 1])
        first, last = int(launch_bounds[members.start]), int(launch_bounds[members.stop])
        _attribute_process(result, members, _calls(trace, work, first, last), range_bounds, launch_bounds)
        return last - first

    # Processes have nothing in common; side by side they take more memory.
    tasks = [partial(one_process, process) for process in range(len(trace.processes))]
    many = arena.limit is None and len(launches) >= _MIN_LAUNCHES_FOR_THREADS
    for done in in_threads(*tasks) if many else (task() for task in tasks):
        if progress:
            progress("attributing", done)
    return replace(result, ledger=_ledger(result))


def _bounds(codes: AnyInts, count: int) -> Index:
    """The first row of each code in a column sorted by code, and the end as an additional entry."""
    return np.searchsorted(codes, np.arange(count + 1))


def _calls(trace: Trace, work: OpsByLaunch, first: int, last: int) -> LaunchWork:
    """The launches ``[first, last)`` with the GPU ops that they caused."""
    ops, begins = trace.ops, work.begins
    call = np.arange(last - first, dtype=np.int32)
    if begins is None:
        caused = work.ops[first:last]
    else:
        caused = work.ops[begins[first] : begins[last]]
        call = np.repeat(call, np.diff(begins[first : last + 1]))
    return LaunchWork.build(
        trace.launches.start[first:last],
        trace.launches.end[first:last],
        call=call,
        op_start=trace.arena.take(ops.start, caused),
        op_end=trace.arena.take(ops.end, caused),
        device=trace.stream_gpu.take(ops.stream[caused]),
        kind=ops.kind.take(caused),
        from_graph=ops.from_graph.take(caused),
        arena=trace.arena,
    )


def _attribute_process(
    result: Attribution, members: range, calls: LaunchWork, range_bounds: Index, launch_bounds: Index
) -> None:
    """Fill in the results of one process, with the threads ``members`` and the launches ``calls``."""
    base, stop = int(launch_bounds[members.start]), int(launch_bounds[members.stop])
    owner, outcome, arena = result.owner[base:stop], result.outcome[base:stop], result.trace.arena
    own = {thread: slice(*(launch_bounds[thread : thread + 2] - base).tolist()) for thread in members}
    nests, start_end = _nests(result.trace, members, range_bounds)
    for thread, (first, thread_nest) in nests.items():
        up = thread_nest.up
        result.parent[first : first + len(up)] = np.where(up >= 0, up + first, -1)
        inside = thread_nest.innermost(calls.start[own[thread]], calls.end[own[thread]])
        owner[own[thread]] = np.where(inside >= 0, inside + first, -1)
        outcome[own[thread]][inside >= 0] = OWN_THREAD
    followers: dict[int, Index] = {}
    if result.threads == "follow" and nests:
        followers = _follow(result, calls, nests, owner, outcome, own)
    if start_end:
        _fill_start_end(result, start_end, calls, owner, outcome, own)
    for thread, (first, thread_nest) in nests.items():
        part = _calls_of_lane(calls, own[thread], followers.get(thread), arena)
        rows = slice(first, first + len(thread_nest.start))
        result.inclusive.fill(rows, project(part, thread_nest.start, thread_nest.end, arena))
    owned = owner >= 0
    np.add.at(result.exclusive_sum_ns, owner[owned], calls.sum_ns[owned])


def _nests(
    trace: Trace, members: range, range_bounds: Index, parent: Ints32 | None = None
) -> tuple[dict[int, tuple[int, Nest]], list[slice]]:
    """For each thread with push/pop ranges, the first such range and their nesting; and the rows of start/end ranges.

    ``parent`` is the parent of each range, if already known.
    """
    ranges = trace.ranges
    nests: dict[int, tuple[int, Nest]] = {}
    start_end: list[slice] = []
    for thread in members:
        first, last = range_bounds[thread : thread + 2].tolist()
        middle = first + int(np.searchsorted(ranges.kind[first:last], START_END))
        if middle > first:
            up = None if parent is None else np.maximum(parent[first:middle] - np.int32(first), np.int32(-1))
            nests[thread] = first, nest(ranges.start[first:middle], ranges.end[first:middle], up)
        if last > middle:
            start_end.append(slice(middle, last))
    return nests, start_end


def _calls_of_lane(calls: LaunchWork, own: slice, followers: Index | None, arena: ColumnArena) -> LaunchWork:
    """The launches that can be in the ranges of one thread: its ``own``, and the launches that follow it."""
    if followers is None:
        return slice_calls(calls, own.start, own.stop)
    rows = np.concatenate([np.arange(own.start, own.stop), followers])
    return take_calls(calls, rows, np.arange(len(rows)) >= own.stop - own.start, arena)


def _follow(
    result: Attribution,
    calls: LaunchWork,
    nests: dict[int, tuple[int, Nest]],
    owner: Ints32,
    outcome: Bytes,
    own: dict[int, slice],
) -> dict[int, Index]:
    """Assign launches of threads without an open range to the only other thread with a range open throughout.

    An autograd thread works for a thread that launches kernels itself: if several threads have a range open, only
    threads that launch kernels (no data loaders) are candidates for its launches. Returns the launches that follow each
    thread.
    """
    lost = np.flatnonzero(owner < 0)
    found, candidates = _open_elsewhere(nests, calls.start[lost], calls.end[lost])
    doubtful = np.flatnonzero(candidates > 1)
    if len(doubtful) and autograd_threads(result.trace).any():
        thread = np.full(len(calls.start), -1, np.int64)
        for code, rows in own.items():
            thread[rows] = code
        doubtful = doubtful[autograd_threads(result.trace)[thread[lost[doubtful]]]]
        callers = {code: nests[code] for code in np.unique(thread[calls.kernels > 0]).tolist() if code in nests}
        if len(doubtful) and callers:
            some = lost[doubtful]
            found[doubtful], candidates[doubtful] = _open_elsewhere(callers, calls.start[some], calls.end[some])
            candidates[doubtful[candidates[doubtful] == 0]] = 2
    outcome[lost[candidates > 1]] = AMBIGUOUS
    followed = lost[candidates == 1]
    owner[followed], outcome[followed] = found[candidates == 1], FOLLOWED
    host = result.trace.ranges.thread[owner[followed]]
    order = np.argsort(host, kind="stable")
    hosts, begins = np.unique(host[order], return_index=True)
    return dict(zip(hosts.tolist(), np.split(followed[order], begins[1:]), strict=True)) if len(hosts) else {}


def _open_elsewhere(nests: dict[int, tuple[int, Nest]], start: Ints, end: Ints) -> tuple[Ints32, Ints32]:
    """For each time interval, a range that is open on some thread throughout, and the number of threads with such a
    range: 0, 1, or 2 for several.
    """
    found, candidates = np.full(len(start), -1, np.int32), np.zeros(len(start), np.int32)
    some_start = np.concatenate([part.start for _, part in nests.values()])
    some_end = np.concatenate([part.end for _, part in nests.values()])
    inside_some = np.flatnonzero(inside_any(some_start, some_end, start, end))
    for first, thread_nest in nests.values():
        undecided = inside_some[candidates[inside_some] < 2]
        inside = thread_nest.innermost(start[undecided], end[undecided])
        hit = undecided[inside >= 0]
        candidates[hit] += 1
        found[hit] = inside[inside >= 0] + first
    return found, candidates


def ranges_around(attribution: Attribution, thread: AnyInts, start: Ints, end: Ints, follows: Mask) -> Ints32:
    """Return the innermost range around each host call (a row of ``trace.ranges``), or -1.

    ``thread`` are codes of ``trace.threads``, -1 for other threads. If a thread has no open range, its calls that are
    marked in ``follows`` get the range that would own a launch at this time.
    """
    trace, strict = attribution.trace, attribution.threads == "strict"
    out = np.full(len(start), -1, np.int32)
    group = (thread + 1).astype(np.uint16 if len(trace.threads) < 1 << 16 else np.int32)  # radix sort
    order = np.argsort(group, kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(group, minlength=len(trace.threads) + 1)))[1:]
    range_bounds = _bounds(trace.ranges.thread, len(trace.threads))
    first_thread = _bounds(trace.thread_process, len(trace.processes))
    for process in range(len(trace.processes)):
        members = range(first_thread[process], first_thread[process + 1])
        nests, windows = _nests(trace, members, range_bounds, attribution.parent)
        for code, (first, thread_nest) in nests.items():
            rows = order[bounds[code] : bounds[code + 1]]
            inside = thread_nest.innermost(start[rows], end[rows])
            out[rows] = np.where(inside >= 0, inside + first, -1)
        lost = order[bounds[members.start] : bounds[members.stop]]
        lost = lost[(out[lost] < 0) & follows[lost]]
        if nests and not strict and len(lost):
            found, candidates = _open_elsewhere(nests, start[lost], end[lost])
            out[lost] = np.where(candidates == 1, found, -1)
            lost = lost[candidates == 0]
        for rows in _windows(trace, windows, strict):
            free = lost[thread[lost] == trace.ranges.thread[rows[0]]] if strict else lost
            inside = nest(trace.ranges.start[rows], trace.ranges.end[rows]).innermost(start[free], end[free])
            out[free] = np.where(inside >= 0, rows[inside], -1)
    return out


def _windows(trace: Trace, start_end: list[slice], strict: bool) -> list[Index]:
    """The start/end ranges of a process in order of time or, under ``strict``, of each thread separately."""
    each = [np.arange(part.start, part.stop) for part in start_end]
    if strict or not each:
        return each
    rows = np.concatenate(each)
    return [rows[np.lexsort((-trace.ranges.end[rows], trace.ranges.start[rows]))]]


def _fill_start_end(
    result: Attribution, start_end: list[slice], calls: LaunchWork, owner: Ints32, outcome: Bytes, own: dict[int, slice]
) -> None:
    """Fill in start/end ranges: totals over all launches while they are open, and owners of otherwise unowned launches.

    A start/end range contains launches of its whole process or, under ``strict``, of the thread that started it.
    """
    ranges, arena = result.trace.ranges, result.trace.arena
    strict = result.threads == "strict"
    for rows in _windows(result.trace, start_end, strict):
        among = own[int(ranges.thread[rows[0]])] if strict else slice(0, len(calls.start))
        start, end = ranges.start[rows], ranges.end[rows]
        held = among.start + np.flatnonzero(inside_any(start, end, calls.start[among], calls.end[among]))
        result.inclusive.fill(rows, project(take_calls(calls, held, None, arena), start, end, arena))
        free = held[(owner[held] < 0) & (outcome[held] != AMBIGUOUS)]
        inside = nest(start, end).innermost(calls.start[free], calls.end[free])
        hit = inside >= 0
        owner[free[hit]] = rows[inside[hit]]
        outcome[free[hit]] = WINDOW


def _ledger(result: Attribution) -> tuple[LedgerRow, ...]:
    """A row per outcome, checked against the GPU ops and against the work that ranges own."""
    ops = result.trace.ops
    count, total = np.zeros(len(OUTCOMES), np.int64), np.zeros(len(OUTCOMES), np.int64)
    whole = np.zeros(1, np.int64)
    for part in slices(len(ops)):
        outcome = result.outcome_of(part)
        count += np.bincount(outcome, minlength=len(OUTCOMES))
        length = ops.end[part] - ops.start[part]
        np.add.at(total, outcome, length)
        whole += length.sum()
    owned = int(total[[OWN_THREAD, FOLLOWED, WINDOW]].sum())
    if int(count.sum()) != len(ops) or total.sum() != whole[0]:
        raise AssertionError("the rows of the ledger do not add up to the report's GPU work")
    if owned != int(result.exclusive_sum_ns.sum()):
        raise AssertionError("the ranges and the ledger have different sums of GPU time")
    return tuple(LedgerRow(*row) for row in zip(OUTCOMES, count.tolist(), total.tolist(), strict=True))
