"""Complete the causes of waiting. A cause is a call with its work and the waits for this work, code between calls, or
GPU ops.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from nsysprof.core.arrays import AnyInts, Ints, Ints32, Mask
from nsysprof.core.columns import distinct, pick
from nsysprof.trace.details import SYNCHRONIZING
from nsysprof.trace.trace import MEMCPY, MEMSET
from nsysprof.waits.facts import COMMUNICATION, COPY, OTHER_KERNEL, QUEUED, Facts
from nsysprof.waits.host import host_time, ranges_around


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Cause:
    """Everything that disappears with a cause: `edits.remove` removes it from a network.

    ``calls``: rows of `HostActivity.calls`, which then neither take time nor wait; ``launches``: the launches among
    these calls, as rows of `Trace.launches`; ``ops``: rows of `Trace.ops`, whose durations become 0. ``thread`` (code
    of `Trace.threads`), ``start`` and ``end`` (ns) describe intervals of code between calls. ``queued``: ops that then
    start as early as possible; ``late``: whether late arrivals of ranks at collectives are removed, too.
    """

    calls: AnyInts = field(default_factory=_none)
    launches: AnyInts = field(default_factory=_none)
    ops: AnyInts = field(default_factory=_none)
    thread: AnyInts = field(default_factory=_none)
    start: Ints = field(default_factory=_none)
    end: Ints = field(default_factory=_none)
    queued: AnyInts = field(default_factory=_none)
    late: bool = False

    def __or__(self, other: Cause) -> Cause:
        """Both causes."""
        names = [each.name for each in fields(Cause)[:-1]]
        both = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        for name in ("calls", "launches", "ops", "queued"):
            both[name] = np.unique(both[name]).astype(np.int64)
        return Cause(**both, late=self.late or other.late)


class Wholes:
    """Finds all calls, ops, code and waits that belong to given calls, GPU ops or waits of a trace, as a `Cause`."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.trace = facts.attribution.launched.trace
        calls = facts.activity.calls
        self.thread = self.trace.thread_codes(pick(calls.threads, calls.thread, 0))

    @cached_property
    def of_launch(self) -> Ints32:
        """Return for each launch the row of its call, or -1 if it is not recorded as a call."""
        launches, trace = self.trace.launches, self.trace
        return self.facts.activity.calls.find(trace.threads[launches.thread], launches.start, launches.end)

    def of_calls(self, calls: AnyInts) -> Cause:
        """Return calls as a `Cause`, with the copies and memsets that they start and the waits for this work."""
        launches = np.flatnonzero(np.isin(self.of_launch, calls) & (self.of_launch >= 0))
        ops = self.trace.ops
        moves = np.isin(ops.kind, (MEMCPY, MEMSET)) & ~ops.from_graph
        mine = np.flatnonzero(moves & np.isin(ops.launch, launches) & (ops.launch >= 0))
        syncs, behind = self.behind_launch
        calls = np.unique(np.append(calls, syncs[np.isin(behind, ops.launch[mine])])).astype(np.int64)
        launches = np.flatnonzero(np.isin(self.of_launch, calls) & (self.of_launch >= 0))
        host = calls[self.thread[calls] >= 0]
        start, end = self.facts.activity.calls.start[host], self.facts.activity.calls.end[host]
        return Cause(calls, launches, mine, self.thread[host], start, end)

    def of_ops(self, ops: AnyInts) -> Cause:
        """Return GPU ops as a `Cause`; copies and memsets include the calls that start them and the waits for them."""
        kind, launch = self.trace.ops.kind[ops], self.trace.ops.launch[ops]
        moved = np.isin(kind, (MEMCPY, MEMSET)) & (launch >= 0) & ~self.trace.ops.from_graph[ops]
        calls = self.of_launch[launch[moved]]
        return self.of_calls(np.unique(calls[calls >= 0]).astype(np.int64)) | Cause(ops=ops)

    def of_waits(self, cause: AnyInts, op: AnyInts, thread: AnyInts, start: Ints, end: Ints, late: Mask) -> Cause:
        """Find the cause of pieces of `Why.waits`, given as columns: ``cause`` codes, ``late`` for late peers."""
        host = np.flatnonzero(thread >= 0)
        time = host_time(
            self.facts.attribution.launched, self.facts.activity, host, start[host], end[host],
            thread[host].astype(np.int32),
        )  # fmt: skip
        calls = np.unique(time.call[time.call >= 0]).astype(np.int64)
        code = time.call < 0
        ran = np.isin(cause, (COPY, COMMUNICATION, OTHER_KERNEL)) & (thread < 0) & ~late
        queued = np.unique(op[(cause == QUEUED) & (op >= 0)]).astype(np.int64)
        found = self.of_calls(calls) | self.of_ops(np.unique(op[ran]).astype(np.int64))
        found |= self._code(time.thread[code], time.start[code], time.end[code])
        return found | Cause(queued=queued, late=bool(late.any()))

    def alike(self, cause: Cause) -> Cause:
        """Extend a cause to all calls with the same name, thread, range name and kind of copy."""
        calls = self.facts.activity.calls
        copied = np.full(len(calls), -1, np.int64)
        moved = np.flatnonzero(self.copy_name >= 0)
        moved = moved[self.of_launch[moved] >= 0]
        copied[self.of_launch[moved]] = self.copy_name[moved]
        syncs, launch = self.behind_launch
        copied[syncs] = self.copy_name[launch]
        range_of = ranges_around(self.facts.attribution.launched, self.thread, calls.start, calls.end)
        name = pick(self.facts.name_code, pick(self.trace.ranges.name, range_of))
        _, group = distinct(calls.name, self.thread, name, copied)
        return self.of_calls(np.flatnonzero(np.isin(group, group[cause.calls]))) | cause

    @cached_property
    def copy_name(self) -> Ints:
        """Return the name of the copy or memset that each launch started (a code of `Trace.op_names`), or -1."""
        ops = self.trace.ops
        rows = np.flatnonzero(np.isin(ops.kind, (MEMCPY, MEMSET)) & (ops.launch >= 0) & ~ops.from_graph)
        out = np.full(len(self.trace.launches), -1, np.int64)
        out[ops.launch[rows]] = ops.name[rows]
        return out

    @cached_property
    def behind_launch(self) -> tuple[AnyInts, AnyInts]:
        """Return the calls that wait for a stream or an event, and for each call the launch right before it on its
        thread.
        """
        calls = self.facts.activity.calls
        names = np.array(["Stream" in name or "Event" in name for name in calls.names], bool)
        syncs = np.flatnonzero((self.facts.activity.kind == SYNCHRONIZING) & (self.thread >= 0))
        syncs = syncs[names[calls.name[syncs]]] if len(names) else syncs
        before, _ = self.trace.launches.around(self.thread[syncs], calls.start[syncs])
        known = before >= 0
        return syncs[known], before[known]

    def _code(self, thread: AnyInts, start: Ints, end: Ints) -> Cause:
        """Code from the call, or end of a range, before it to the next."""
        calls, ranges = self.facts.activity.calls, self.trace.ranges
        begin, stop = start.copy(), end.copy()
        for code in np.unique(thread).tolist():
            mine = np.flatnonzero(thread == code)
            rows = calls.of_thread(int(self.trace.threads[code]))
            low, high = np.searchsorted(ranges.thread, [code, code + 1]).tolist()
            edges = [calls.start[rows], calls.end[rows], ranges.start[low:high], ranges.end[low:high]]
            bounds = np.unique(np.concatenate(edges))
            at = np.searchsorted(bounds, start[mine], side="right") - 1
            begin[mine] = pick(bounds, at, start[mine])
            at = np.searchsorted(bounds, end[mine])
            stop[mine] = pick(bounds, at, end[mine])
        return Cause(thread=thread.astype(np.int64), start=begin, end=stop)
