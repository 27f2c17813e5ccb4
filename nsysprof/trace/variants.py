"""Derive traces with additional ranges or threads, or with fewer ranges or GPU ops."""

from dataclasses import replace

import numpy as np

from nsysprof.core.arrays import Array, Ints, Mask
from nsysprof.core.columns import marked, ranks
from nsysprof.trace.details import OtherRanges, RangeName
from nsysprof.trace.trace import PROCESS_OF_THREAD, START_END, Copies, Launches, Ops, Ranges, Trace


def with_ranges(trace: Trace, more: OtherRanges) -> Trace:
    """Return the trace with additional ranges, and with the threads and processes that only these ranges have."""
    trace = replace(trace, warnings=(*trace.warnings, *more.warnings))
    if not len(more.start):
        return trace
    trace = with_threads(trace, np.unique(more.thread))
    ranges = trace.ranges
    codes: dict[RangeName, int] = {name: code for code, name in enumerate(trace.range_names)}
    recode = np.array([codes.setdefault(name, len(codes)) for name in more.names], np.int32)
    added: dict[str, Array] = {
        "thread": np.searchsorted(trace.threads, more.thread),
        "start": more.start,
        "end": more.end,
        "kind": more.kind,
        "name": recode[more.name],
        "unclosed": np.zeros(len(more.start), bool),
        "moved": np.zeros(len(more.start), bool),
    }
    column = {name: np.concatenate([values, added[name].astype(values.dtype)]) for name, values in vars(ranges).items()}
    names = list(codes)
    rank = ranks([(name.text, name.domain) for name in names])
    window = column["kind"] == START_END
    order = np.lexsort(
        (column["kind"], rank[column["name"]], -column["end"], column["start"], window, column["thread"])
    )
    opened = trace.opened_on
    if opened is not None:
        opened = trace.arena.take(np.concatenate([opened, added["thread"].astype(opened.dtype)]), order)
    return replace(
        trace,
        opened_on=opened,
        ranges=Ranges(**{name: trace.arena.take(values, order) for name, values in column.items()}),
        range_names=names,
        session_end=max(trace.session_end, int(more.end.max())),
    )


def without_ranges(trace: Trace) -> Trace:
    """The trace without its ranges."""
    none = {name: values[:0] for name, values in vars(trace.ranges).items()}
    return replace(trace, ranges=Ranges(**none), range_names=[], never_popped=0, opened_on=None)


def with_threads(trace: Trace, used: Ints) -> Trace:
    """Return the trace with these globalTids added to its threads, and their processes to its processes."""
    threads = np.union1d(trace.threads, used)
    if len(threads) == len(trace.threads):
        return trace
    processes = np.union1d(trace.processes, threads & PROCESS_OF_THREAD)
    code, process = np.searchsorted(threads, trace.threads), np.searchsorted(processes, trace.processes)
    narrow = np.uint16 if len(threads) <= 1 << 16 else np.int32
    opened = trace.opened_on
    return replace(
        trace,
        opened_on=None if opened is None else trace.arena.take(code.astype(narrow), opened),
        ranges=replace(trace.ranges, thread=trace.arena.take(code.astype(narrow), trace.ranges.thread)),
        launches=replace(trace.launches, thread=trace.arena.take(code.astype(narrow), trace.launches.thread)),
        threads=threads,
        thread_process=np.searchsorted(processes, threads & PROCESS_OF_THREAD).astype(np.int32),
        processes=processes,
        devices=[replace(device, process=int(process[device.process])) for device in trace.devices],
    )


def only_ops(trace: Trace, chosen: Mask) -> Trace:
    """Return the trace with only the ``chosen`` GPU ops and their launches."""
    ops, launches, arena = trace.ops, trace.launches, trace.arena
    rows = np.flatnonzero(chosen)
    launch = arena.take(ops.launch, rows)
    used = marked(launch, len(launches) + 1)
    used[-1] = False  # where GPU ops without a launch point
    place = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
    calls = np.flatnonzero(used)
    moved = chosen[trace.copy_ops]
    kept = {name: arena.take(values, rows) for name, values in ops.__dict__.items() if name != "launch"}
    return replace(
        trace,
        ops=Ops(**kept, launch=arena.take(place, launch)),
        copies=Copies(**{name: values[moved] for name, values in vars(trace.copies).items()}),
        launches=Launches(*(arena.take(values, calls) for values in launches.__dict__.values())),
        other_calls=None,
        geometry=None,
    )
