"""Move the ranges that autograd's threads opened during a backward pass into the range that called backward.

These ranges come from `capture --modules`, `emit_nvtx`, operators, PyTorch's collectives and FSDP.
"""

import re
from dataclasses import replace

import numpy as np

from nsysprof.core.arrays import Index, Ints, Mask
from nsysprof.core.nesting import enclosing, nest
from nsysprof.trace.trace import START_END, Ranges, Trace

_AUTOGRAD = re.compile(r"pt_autograd_\d+")
_FUNCTION = "autograd::engine::evaluate_function: "
# What `capture.inject.modules` opens, autograd itself, and PyTorch's hooks of backward: collectives of DDP, and FSDP.
_BACKWARD = re.compile(
    r".* backward|autograd::engine::evaluate_function: .*|nccl:.*|FSDP::.*|FullyShardedDataParallel\..*", re.DOTALL
)


def autograd_threads(trace: Trace) -> Mask:
    """Mark the threads of PyTorch's autograd by their names; if no name shows autograd, mark the threads whose
    outermost ranges are all backward functions.
    """
    names = (trace.thread_names.get(tid, "") for tid in trace.threads.tolist())
    named = np.array([_AUTOGRAD.fullmatch(name) is not None for name in names], bool)
    evaluates = np.array([name.text.startswith(_FUNCTION) for name in trace.range_names], bool)
    if named.any() or not evaluates.any():
        return named
    ranges, out = trace.ranges, named.copy()
    for code in np.unique(ranges.thread[evaluates[ranges.name]]).tolist():
        mine = slice(*np.searchsorted(ranges.thread, [code, code + 1]).tolist())
        roots = enclosing(ranges.end[mine]) < 0
        out[code] = bool(evaluates[ranges.name[mine][roots & (ranges.kind[mine] != START_END)]].all())
    return out


def backward_brought_home(trace: Trace) -> Trace:
    """Return the trace with all backward ranges and their inner ranges moved to the thread that called backward.

    The calling thread is the only other thread that has a range open during the whole backward pass. It opens or closes
    no range meanwhile. If no thread or several threads meet this condition, or if two autograd threads work at the same
    time, ranges stay on their threads.
    """
    ranges = trace.ranges
    made = np.array([_BACKWARD.fullmatch(name.text) is not None for name in trace.range_names], bool)
    if not made.any() or trace.opened_on is not None:
        return trace
    helps = autograd_threads(trace)
    thread = np.asarray(ranges.thread).astype(np.int64)
    for process in np.unique(trace.thread_process[helps]).tolist():
        mine = np.flatnonzero(trace.thread_process == process)
        first, last = _roots(trace, mine[helps[mine]], made)
        home = _homes(trace, mine[~helps[mine]], ranges.start[first], ranges.end[first])
        for row, stop, to in zip(first.tolist(), last.tolist(), home.tolist(), strict=True):
            if to >= 0:
                thread[row:stop] = to
    if (thread == ranges.thread).all():
        return trace
    order = np.lexsort((-ranges.end, ranges.start, ranges.kind == START_END, thread))
    columns = {**vars(ranges), "thread": thread.astype(ranges.thread.dtype)}
    return replace(
        trace,
        ranges=Ranges(**{name: trace.arena.take(rows, order) for name, rows in columns.items()}),
        opened_on=trace.arena.take(ranges.thread, order),
    )


def _roots(trace: Trace, threads: Index, made: Mask) -> tuple[Index, Index]:
    """The outermost backward ranges on these threads that overlap no outermost range on another of the threads; and for
    each, the end of the rows inside it.
    """
    ranges = trace.ranges
    found = []
    for code in threads.tolist():
        low, high = np.searchsorted(ranges.thread, [code, code + 1]).tolist()
        high = low + int(np.searchsorted(ranges.kind[low:high], START_END))
        roots = low + np.flatnonzero(enclosing(ranges.end[low:high]) < 0)
        found += list(zip(roots.tolist(), [*roots[1:].tolist(), high], strict=True)) if len(roots) else []
    rows = np.array(found, np.intp).reshape(-1, 2)
    rows = rows[np.argsort(ranges.start[rows[:, 0]], kind="stable")]
    start, end = ranges.start[rows[:, 0]], ranges.end[rows[:, 0]]
    before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1])[: len(rows)]
    behind = np.append(start[1:], np.iinfo(np.int64).max)[: len(rows)]
    alone = rows[(start >= before) & (end <= behind) & made[ranges.name[rows[:, 0]]]]
    return alone[:, 0], alone[:, 1]


def _homes(trace: Trace, threads: Index, start: Ints, end: Ints) -> Ints:
    """For each interval, the only thread that has a range open throughout and opens or closes none in it; else -1."""
    ranges = trace.ranges
    home, open_on = np.full(len(start), -1), np.zeros(len(start), np.int64)
    for code in threads.tolist():
        low, high = np.searchsorted(ranges.thread, [code, code + 1]).tolist()
        high = low + int(np.searchsorted(ranges.kind[low:high], START_END))
        begun, ended = ranges.start[low:high], np.sort(ranges.end[low:high])
        around = nest(begun, ranges.end[low:high]).innermost(start, end) >= 0
        quiet = np.searchsorted(begun, end) == np.searchsorted(begun, start, "right")
        quiet &= np.searchsorted(ended, end) == np.searchsorted(ended, start, "right")
        open_on += around
        home[around & quiet] = code
    return np.where(open_on == 1, home, -1)
