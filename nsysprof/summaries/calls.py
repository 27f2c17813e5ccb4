"""Summarize host calls of CUDA, MPI and the operating system: number, time, place, and waits for the GPU."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import methodcaller

import numpy as np

from nsysprof.attribution.attribute import Attribution, ranges_around
from nsysprof.core.arrays import AnyInts, Bytes, Index, Ints, Ints32
from nsysprof.core.columns import Column as Values
from nsysprof.core.columns import ColumnTable, Texts, marked, sums
from nsysprof.core.intervals import covered_by, union, union_length
from nsysprof.core.text import one_line, plural, read_list, visible
from nsysprof.core.units import format_ns, format_share
from nsysprof.results.table import Column, table
from nsysprof.statistics.distributions import Groups, grouped_quartiles, quartile_of_sorted
from nsysprof.summaries.summary import Answer, Asked, Summary, mostly
from nsysprof.trace.details import CALL_KINDS, CUDA_CALL, HostCalls
from nsysprof.trace.trace import KERNEL, MEMCPY, MPI, PROCESS_OF_THREAD, Trace, pid_of, tid_of

LAUNCH, WAIT, COPY, MEMORY, MODULES, OTHER, MPI_ITSELF, OS_ITSELF = range(8)
WHAT = ("launch", "wait", "copy", "memory", "module loading", "other", "MPI", "OS")
# What a call of CUDA or HIP does, by its name; the first that matches.
_WHAT = {
    LAUNCH: r"(?:cuda|cu|hip)(?:(?:Ext)?(?:Module)?Launch(?!HostFunc)|GraphLaunch)",
    WAIT: r"\w+Synchronize",
    COPY: r"(?:cuda|cu|hip)Mem(?:cpy|set|Prefetch)",
    MODULES: r"(?:cuda|cu|hip)(?:Module|Library|Link)|cu(?:Kernel|Func)Get(?:Function|Module|Library)|cuFuncLoad"
    r"|cudaGetFuncBySymbol",
    MEMORY: r"(?:cuda|cu|hip)(?:Malloc|Free|Host(?:Alloc|Register|Unregister|Get)|Mem(?!GetInfo|Advise))",
}
# The first launch of a kernel that loads it takes so many times the median, and no less than that.
_LAZY, _LOADS_NS = 10, 50_000
_NAMED = 3  # calls in the sentence
_WORTH_SAYING = 0.01  # of the time in calls
_KIND_WORDS = ("CUDA calls", "MPI calls", "calls of the operating system")
_THREAD_WIDTH = 16

CALLS = table(
    "calls.csv",
    "a row per call name, kind, thread and merged path of the range around the calls",
    {
        "kind": "kind of call: cuda, mpi or os",
        "call": "name of the call without the version that CUPTI appends",
        "what": "for CUDA calls: launch, wait, copy (or memset), memory, module loading, or other; otherwise MPI or OS",
        "pid": "process id",
        "tid": "id of the calling thread",
        "thread": "name of the calling thread, if it has one",
        "merged_path": "merged path of the innermost range around the calls; empty outside every range",
        "count": "number of calls",
        "sum_ns": Column("", "total duration of the calls", "sum"),
        "median_ns": Column("", "median duration of the calls", "median"),
        "min_ns": Column("", "minimum duration of the calls", "min"),
        "max_ns": Column("", "maximum duration of the calls", "max"),
        "share": "sum_ns ÷ length of the recording; empty if the length is unknown",
        "failed": "number of CUDA calls that returned an error; empty for other kinds of calls",
        "waits": (
            "number of calls that return only when the GPU is done: synchronizations, blocking copies, "
            "cudaFree, and asynchronous calls that return only after their copy"
        ),
        "waited_ns": Column("", "part of the calls' time in which a GPU of the process was busy", "waited"),
    },
    made_in="summaries/calls.py",
)
_SHOWN = {column.name: column for column in CALLS.columns} | {
    "what": Column("what", "", cell=methodcaller("removeprefix", "module ")),
    "share": Column("share", ""),
    "extremes": Column("extremes", "", "min–max", align="r"),
    "mostly_in": Column("mostly_in", "", "mostly in", visible),
    "mostly_on": Column("mostly_on", "", "mostly on", partial(one_line, width=_THREAD_WIDTH)),
}


def read_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of calls in ``cuda,mpi,os``; empty for ``none``. Raises `NsysprofError` for any other text."""
    return tuple(read_list(text, "calls", CALL_KINDS, "none") or ())


@dataclass(frozen=True)
class _Calls:
    """Unsorted host calls; ``path`` int32: the merged path around each call, -1 for none.

    ``length`` int64 ns; ``failed`` and ``waits`` are rows of calls; ``waited`` int64 ns of the rows ``waits``; ``kind``
    and ``what`` of each name are indexes in `CALL_KINDS` and `WHAT`. ``first``: see `_in_calls`.
    """

    thread: AnyInts
    length: Ints
    name: AnyInts
    path: Ints32
    failed: Index
    waits: Index
    waited: Ints
    texts: list[str]
    kind: Bytes
    what: Bytes
    tids: Ints
    first: tuple[int, int]


def calls(attribution: Attribution, asked: Asked) -> Answer | None:
    """Sum host calls by name, thread and merged path, the longest first; returns None if none were recorded."""
    attribution = attribution.launched  # which has the launches that were recorded
    trace = attribution.trace
    found = _recorded(attribution, asked)
    if found is None:
        return None
    recording = trace.report.about.duration_ns or 0
    rows, names = _rows(trace, found, asked, recording)
    shown = ["call", "what", "count", "sum_ns", "share", "median_ns", "extremes"]
    shown += [name for name in ("waited_ns", "failed") if np.nansum(names[name])]
    if len(asked.merged):
        shown.append("mostly_in")
    elif len(set(names.texts("mostly_on").codes.tolist())) > 1:
        shown.append("mostly_on")
    notes = ["share: % of the length of the recording."] * bool(recording)
    notes += ["waited: the part of sum during which a GPU of the process was busy."] * ("waited_ns" in shown)
    finding = "; ".join(_finding(trace, found, names, recording))
    return Answer({CALLS.file: rows}, finding, tuple(_SHOWN[name] for name in shown), names, " ".join(notes))


SUMMARY = Summary("calls", "Host calls", (CALLS,), calls)


def _recorded(attribution: Attribution, asked: Asked) -> _Calls | None:
    """The calls of the requested kinds, launches first; None if there are none."""
    trace = attribution.trace
    parts = [trace.report.reader.other_calls(asked.calls, trace.arena)]
    around = [_around(attribution, parts[0])]
    if (others := trace.other_calls) is not None and CALL_KINDS[CUDA_CALL] in asked.calls:
        launches, beside = vars(trace.launches), others.beside()
        if len(others.around):  # what two layers recorded is one call, and takes as long as the outer one
            launches = {**launches, "start": launches["start"].copy(), "end": launches["end"].copy()}
            for edge in ("start", "end"):
                launches[edge][others.around] = getattr(others, edge)[len(beside) :]
        parts = [replace(beside, **launches, threads=trace.threads), beside, *parts]
        around = [attribution.owner, _around(attribution, beside), *around]
    if not any(map(len, parts)):
        return None
    tids = np.unique(np.concatenate([part.threads for part in parts]))
    narrow = np.min_scalar_type(len(tids))  # numpy sorts 16 bits by radix
    thread = [np.searchsorted(tids, part.threads).astype(narrow).take(part.thread) for part in parts]
    once: dict[tuple[int, str], int] = {}  # of kinds and texts; those that failed and those that did not are one
    name, fails, waits = [], [], []
    for part in parts:
        pairs = zip(part.names.kind.tolist(), part.names.texts, strict=True)
        name.append(np.array([once.setdefault(pair, len(once)) for pair in pairs], np.int32).take(part.name))
        fails.append(part.names.failed.take(part.name))
        waits.append(part.names.waits.take(part.name))
    # asynchronous copies that returned only after they were done, as those of pageable memory
    if len(parts) > 1:
        copies = np.flatnonzero((trace.ops.kind == MEMCPY) & (trace.ops.launch >= 0))
        launch = trace.ops.launch[copies]
        waits[0][launch[trace.ops.end[copies] <= trace.launches.end[launch]]] = True
    start, end = (np.concatenate([getattr(part, edge) for part in parts]) for edge in ("start", "end"))
    threads, waiting = np.concatenate(thread), np.flatnonzero(np.concatenate(waits))
    names = np.concatenate(name, dtype=np.min_scalar_type(len(once)), casting="unsafe")
    kind = np.array([kind for kind, _ in once], np.uint8)
    first = _in_calls(threads, start, end, kind.take(names))
    waited = _busy_meanwhile(trace, tids[threads[waiting]], start[waiting], end[waiting])
    np.subtract(end, start, out=end)
    del start
    return _Calls(
        thread=threads,
        length=end,
        name=names,
        path=trace.arena.take(np.append(asked.merged_of, np.int32(-1)), np.concatenate(around)),
        failed=np.flatnonzero(np.concatenate(fails)),
        waits=waiting,
        waited=waited,
        texts=[text for _, text in once],
        kind=kind,
        what=np.array([_what(text, kind) for kind, text in once], np.uint8),
        tids=tids,
        first=first,
    )


def _what(name: str, kind: int) -> int:
    if kind != CUDA_CALL:
        return MPI_ITSELF + kind - 1
    return next((what for what, pattern in _WHAT.items() if re.match(pattern, name)), OTHER)


def _around(attribution: Attribution, calls: HostCalls) -> Ints32:
    """The range around each call, -1 for none; for an MPI call that is itself a range, the next range around it."""
    trace, ranges = attribution.trace, attribution.trace.ranges
    thread = trace.thread_codes(calls.threads)[calls.thread]
    cuda = (calls.names.kind == CUDA_CALL)[calls.name]
    around = ranges_around(attribution, thread, calls.start, calls.end, cuda)
    own = np.flatnonzero(~cuda & (around >= 0))
    own = own[ranges.kind[around[own]] == MPI]
    own = own[(ranges.start[around[own]] == calls.start[own]) & (ranges.end[around[own]] == calls.end[own])]
    around[own] = attribution.parent[around[own]]
    return around


def _busy_meanwhile(trace: Trace, tid: Ints, start: Ints, end: Ints) -> Ints:
    """How long at least one GPU of the calling process ran during each call."""
    used: dict[int, set[int]] = {}  # the numbers of the GPUs of each process
    for (pid, _), number in trace.gpu_of.items():
        used.setdefault(pid, set()).add(number)
    lines = {pid: union(*(trace.gpu_busy[number] for number in gpus)) for pid, gpus in used.items()}
    return covered_by(lines, tid & PROCESS_OF_THREAD, start, end)


def _added_up(found: _Calls, key: AnyInts, per_name: int, recording: int) -> tuple[Ints, dict[str, Values]]:
    """The sorted distinct keys of calls (``per_name`` for each name), and the columns of `CALLS` for each key, except
    the place of the calls.
    """
    groups = Groups.of(key)
    keys, count, length = groups.codes, groups.size, groups.sort(found.length)
    sum_ns = np.add.reduceat(length, np.cumsum(count) - count)
    low, median, high = (quartile_of_sorted(length, count, number) for number in (0, 2, 4))
    name = keys // per_name
    failed, waits = (np.searchsorted(keys, key[rows]) for rows in (found.failed, found.waits))
    return keys, {
        "kind": Texts(found.kind[name], CALL_KINDS),
        "call": Texts(name, found.texts),
        "what": Texts(found.what[name], WHAT),
        "count": count,
        "sum_ns": sum_ns,
        "median_ns": median,
        "min_ns": low,
        "max_ns": high,
        "share": np.round(sum_ns / recording, 6) if recording else np.full(len(keys), np.nan),
        "failed": np.where(found.kind[name] == CUDA_CALL, np.bincount(failed, minlength=len(keys)), np.nan),
        "waits": np.bincount(waits, minlength=len(keys)),
        "waited_ns": sums(waits, found.waited, len(keys)),
    }


def _rows(trace: Trace, found: _Calls, asked: Asked, recording: int) -> tuple[ColumnTable, ColumnTable]:
    """The rows of ``calls.csv``; and a row per name, with the path and the thread that take most of its time."""
    threads, paths = len(found.tids), len(asked.merged) + 1
    wide = np.promote_types(np.int32, np.min_scalar_type(-len(found.texts) * threads * paths))
    key: AnyInts = found.name.astype(wide)
    for size, code in ((threads, found.thread), (paths, found.path)):
        key *= size
        key += code
    key += 1  # path -1 is none
    keys, columns = _added_up(found, key, threads * paths, recording)
    rest, path = np.divmod(keys, paths)
    name, thread = np.divmod(rest, threads)
    tids, path_words = found.tids[thread], [*asked.merged, ""]
    labels = [trace.thread_names.get(tid, "") for tid in found.tids.tolist()]
    columns |= {"pid": pid_of(tids), "tid": tid_of(tids), "thread": Texts(thread, labels)}
    columns |= {"merged_path": Texts(path - 1, path_words)}
    rows = ColumnTable({each: columns[each] for each in CALLS.names})
    once, columns = _added_up(found, found.name, 1, recording)
    extremes = [
        f"{format_ns(low)}–{format_ns(high)}"
        for low, high in zip(columns["min_ns"].tolist(), columns["max_ns"].tolist(), strict=True)
    ]
    numbers = zip(labels, tid_of(found.tids).tolist(), strict=True)
    called = [f"{label or 'thread'} {number}" for label, number in numbers]
    columns |= {
        "extremes": Texts(np.arange(len(once)), extremes),
        "mostly_in": Texts(mostly(name, path - 1, rows["sum_ns"]), path_words),
        "mostly_on": Texts(mostly(name, thread, rows["sum_ns"]), called),
    }
    return _longest_first(rows), _longest_first(ColumnTable(columns))


def _longest_first(rows: ColumnTable) -> ColumnTable:
    """The same rows by kind (CUDA first), the longest first."""
    return rows.take(np.lexsort((-rows["sum_ns"], rows.texts("kind").codes)))


def _finding(trace: Trace, found: _Calls, names: ColumnTable, recording: int) -> Iterator[str]:
    kinds = names.texts("kind").codes
    kind = int(kinds[0])
    total, threads = found.first
    top = names.take(np.flatnonzero(kinds == kind)[:_NAMED])
    each = [
        f"{call} {format_ns(ns)}" + (f" ({format_share(ns / recording)})" if recording else "")
        for call, ns in zip(top.texts("call").tolist(), top["sum_ns"].tolist(), strict=True)
    ]
    whole = f" of {format_ns(recording)}" if recording and threads == 1 else ""
    where = f" on {threads:,} threads" if threads > 1 else ""
    yield f"Host: {format_ns(total)}{whole} in {_KIND_WORDS[kind]}{where}: {', '.join(each)}"
    least = max(_WORTH_SAYING * total, 1)
    waiting, waited = int(found.length[found.waits].sum()), int(found.waited.sum())
    if waiting >= least:
        yield (
            f"{format_ns(waiting)} in calls that wait for the GPU; the GPU was busy for "
            f"{format_ns(waited)} of this time"
        )
    loading = int(names["sum_ns"][names.texts("what").codes == MODULES].sum())
    if loading >= least:
        yield f"module loading {format_ns(loading)}"
    if kind == CUDA_CALL and (lazy := _first_launches(trace))[1] >= least:
        yield f"first launches of {plural(lazy[0], 'kernel')} {format_ns(lazy[1])} (lazy loading)"
    for other in np.unique(kinds[kinds != kind]).tolist():
        yield f"{_KIND_WORDS[other]} {format_ns(int(names['sum_ns'][kinds == other].sum()))}"


def _in_calls(thread: AnyInts, start: Ints, end: Ints, kind: Bytes) -> tuple[int, int]:
    """The time of threads in calls of the first kind (nested calls count once), and the number of these threads."""
    rows = np.argsort(thread, kind="stable")
    if (other := kind != kind.min()).any():
        rows = rows[~other[rows]]
    bounds = np.flatnonzero(np.diff(thread[rows], prepend=-1, append=-1))
    pieces = [rows[first:last] for first, last in pairwise(bounds.tolist())]
    return sum(union_length(start[piece], end[piece]) for piece in pieces), len(pieces)


def _first_launches(trace: Trace) -> tuple[int, int]:
    """The number of kernels whose first launch in a process took at least `_LAZY` times the kernel's median, and the
    total time of these launches.
    """
    ops, launches = trace.ops, trace.launches
    slow = launches.end - launches.start >= _LOADS_NS
    if not slow.any():
        return 0, 0
    rows = np.flatnonzero((ops.kind == KERNEL) & (ops.launch >= 0) & ~ops.from_graph)
    group = trace.op_process[rows].astype(np.int64) * len(trace.op_names) + ops.name[rows]
    maybe = marked(group[slow[ops.launch[rows]]], int(group.max(initial=0)) + 1)
    rows, group = rows[maybe[group]], group[maybe[group]]
    start = launches.start[ops.launch[rows]]
    length = launches.end[ops.launch[rows]] - start
    first = np.full(len(maybe), np.iinfo(np.int64).max)
    np.minimum.at(first, group, start)
    median = grouped_quartiles(group, length, len(first)).median
    lazy = np.flatnonzero((start == first[group]) & (length >= np.maximum(_LAZY * median[group], _LOADS_NS)))
    return len(lazy), int(length[lazy].sum())
