"""A stretch of a long trace: a few steps and their surroundings, as a separate trace that replays fast."""

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from nsysprof.core.arrays import AnyInts, Index, Ints32, Mask
from nsysprof.core.columns import marked
from nsysprof.trace.details import CallList, Collectives, HostActivity, StreamEvents
from nsysprof.trace.trace import Trace
from nsysprof.trace.variants import only_ops
from nsysprof.waits.facts import Facts
from nsysprof.waits.joins import QUEUE
from nsysprof.waits.windows import Windows

Columns = TypeVar("Columns", CallList, StreamEvents)
_LEAD = QUEUE + QUEUE // 8  # launches before the stretch, so that a full queue shows


@dataclass(frozen=True)
class Stretch:
    """Chosen steps of a trace, with ``facts`` and ``windows`` as if only these steps had been recorded.

    ``asked`` marks the requested windows. Earlier windows only lead in to these, because their replay is cut off at the
    start. ``ops``, ``launches`` and ``calls`` are the rows of `Trace.ops`, `Trace.launches` and `HostActivity.calls` in
    the whole trace; rows of ranges always refer to the whole trace.
    """

    facts: Facts
    windows: Windows
    asked: Mask
    ops: Index
    launches: Index
    calls: Index


def reach_of(trace: Trace, windows: Windows, rows: AnyInts) -> tuple[Index, int, int]:
    """Return the windows of a stretch, and its first and last ns. The windows are the given windows, and the window
    before each.
    """
    before = np.maximum(np.asarray(rows) - 1, 0)
    before = before[(windows.path[before] == windows.path[rows]) & (windows.gpu[before] == windows.gpu[rows])]
    every = np.union1d(rows, before)
    first, high = int(windows.begin[every].min()), int(windows.end[every].max())
    low = min(first, int(windows.start[every].min()))
    begun = trace.launches.start[trace.launches.start < first]
    if len(begun):
        low = min(low, int(np.partition(begun, max(len(begun) - _LEAD, 0))[max(len(begun) - _LEAD, 0)]))
    return every, low, high


def stretch_of(facts: Facts, windows: Windows, rows: AnyInts) -> Stretch:
    """Cut out the `Stretch` of the given rows of windows, with the step before the first row and the launches queued
    for it.

    In an unchanged replay, the requested steps equal the recording to the ns. The function makes a few passes over the
    columns of the trace.
    """
    attribution = facts.attribution.launched
    trace = attribution.trace
    every, low, high = reach_of(trace, windows, rows)
    chosen = windows.take(every)
    within = (trace.ops.end >= low) & (trace.ops.start <= high)
    within[chosen.last[chosen.last >= 0]] = True
    ops = np.flatnonzero(within)
    launch = trace.ops.launch[ops]
    launches = np.flatnonzero(marked(launch[launch >= 0], len(trace.launches)))
    cut = replace(attribution, trace=only_ops(trace, within), owner=attribution.owner[launches],
                  outcome=attribution.outcome[launches], replay=None, recorded=None)  # fmt: skip
    calls = facts.activity.calls
    some = np.flatnonzero((calls.end >= low) & (calls.start <= high))
    activity = HostActivity(_rows(calls, some), facts.activity.kind[some])
    of = np.full(len(trace.ops) + 1, -1, np.int32)
    of[ops] = np.arange(len(ops))
    waits, records = (
        _rows(each, np.flatnonzero((each.time >= low) & (each.time <= high)))
        for each in (facts.dependencies.waits, facts.dependencies.records)
    )
    part = replace(
        facts,
        attribution=cut,
        dependencies=replace(facts.dependencies, waits=waits, records=records),
        host=lambda *_: activity,
        near=None,
        copy_memory=facts.copy_memory[ops],
        collectives=_collectives(facts.collectives, of),
        op_owner=None if facts.op_owner is None else facts.op_owner[ops],
        whole=(facts, ops),
    )
    return Stretch(part, replace(chosen, last=of[chosen.last]), np.isin(every, rows), ops, launches, some)


def _rows(columns: Columns, rows: Index) -> Columns:
    """Some rows of the columns that are as long as the first one; other fields and names are unchanged."""
    count, names = len(columns), ("names", "threads")
    return replace(columns, **{
        each.name: getattr(columns, each.name)[rows]
        for each in fields(columns)
        if each.name not in names and len(getattr(columns, each.name)) == count
    })  # fmt: skip


def _collectives(collectives: Collectives, of: Ints32) -> Collectives:
    kept = np.flatnonzero(of[collectives.op] >= 0)
    columns = {name: getattr(collectives, name)[kept] for name in ("kind", "group", "size_bytes")}
    return replace(collectives, op=of[collectives.op[kept]].astype(np.int64), **columns)
