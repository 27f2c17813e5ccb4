"""Host calls, of CUDA, MPI and the operating system: how often, how long, where, and which of them wait for the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution, ranges_around
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.intervals import Ints, cover_before, union, union_length
from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.results.table import Column, table
from nsysprof.statistics.distributions import quartiles_of_sorted, sorted_in_groups
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.details import CALL_KINDS, CUDA_CALL, AllCalls
from nsysprof.trace.trace import KERNEL, MEMCPY, MPI, Trace, pid_of, tid_of

LAUNCH, WAIT, COPY, MEMORY, MODULES, OTHER, MPI_ITSELF, OS_ITSELF = range(8)
WHAT = ("launch", "wait", "copy", "memory", "module loading", "other", "MPI", "OS")
# What a CUDA call does, by its name; the first that matches.
_WHAT = (
    (LAUNCH, re.compile(r"cu(?:da)?(?:Launch(?!HostFunc)|GraphLaunch)")),
    (WAIT, re.compile(r"\w+Synchronize")),
    (COPY, re.compile(r"cu(?:da)?Mem(?:cpy|set|Prefetch)")),
    (
        MODULES,
        re.compile(r"cu(?:da)?(?:Module|Library|Link)|cu(?:Kernel|Func)Get(?:Function|Module|Library)"),
    ),
    (MODULES, re.compile(r"cuFuncLoad|cudaGetFuncBySymbol")),
    (
        MEMORY,
        re.compile(r"cu(?:da)?(?:Malloc|Free|Host(?:Alloc|Register|Unregister|Get)|Mem(?!GetInfo|Advise))"),
    ),
)
_LAZY = 10  # times the median: the first launch of a kernel that loads it
_NAMED = 3  # calls in the sentence
_WORTH_SAYING = 0.01  # of the time in calls
_KIND_WORDS = ("CUDA calls", "MPI calls", "calls of the operating system")
_IN_WIDTH, _THREAD_WIDTH = 24, 16

CALLS = table(
    "calls.csv",
    "a row per kind and name of host call, thread, and merged path that it stands in",
    {
        "kind": "cuda, mpi or os",
        "call": Column("call", "name of the call without the version that CUPTI appends"),
        "what": "of CUDA calls: launch, wait, copy (or memset), memory, module loading, or other; else MPI or OS",
        "pid": "process",
        "tid": "thread that called",
        "thread": "name of that thread, where it has one",
        "merged_path": "merged path of the innermost range around the calls; empty outside every range",
        "count": "how many calls",
        "sum_ns": Column("sum_ns", "their added durations", head="sum"),
        "median_ns": Column("median_ns", "of their durations", head="median"),
        "min_ns": Column("min_ns", "of their durations", head="min"),
        "max_ns": Column("max_ns", "of their durations", head="max"),
        "share": "their added durations as a part of the recording; empty where nsys does not say how long that was",
        "failed": "how many returned an error; empty for calls that are not CUDA's",
        "waits": (
            "how many return only when the GPU is done: synchronizations, blocking copies, cudaFree, and asynchronous"
            " copies that return after their copy"
        ),
        "waited_ns": Column(
            "waited_ns", "how long a GPU of their process still ran during these", head="waited"
        ),
    },
)
_SHOWN = {column.name: column for column in CALLS.columns} | {
    "what": Column("what", "", cell=lambda text: text.removeprefix("module ")),
    "share": Column("share", ""),
    "extremes": Column("extremes", "", "min–max", align="r"),
    "mostly_in": Column("mostly_in", "", "mostly in", lambda text: one_line(text, _IN_WIDTH)),
    "mostly_on": Column("mostly_on", "", "mostly on", lambda text: one_line(text, _THREAD_WIDTH)),
}


@dataclass(frozen=True)
class _Placed:
    """Host calls with where they stand.

    Of each ``path`` int32, a merged path, -1 for none; ``waits`` bool; ``waited`` int64 ns. ``what`` is of each name.
    """

    calls: AllCalls
    length: Ints
    path: NDArray[np.int32]
    waits: NDArray[np.bool_]
    waited: Ints
    what: NDArray[np.uint8]


def calls(attribution: Attribution, asked: Asked) -> Answer | None:
    """Add up host calls by name, thread and merged path, the longest first; None where none were recorded."""
    trace = attribution.trace
    found = trace.report.reader.all_calls(asked.calls, trace.arena)
    if not len(found):
        return None
    placed = _placed(attribution, asked, found)
    recording = trace.report.about.duration_ns or 0
    rows, names = _rows(trace, placed, asked, recording)
    shown = ["call", "what", "count", "sum_ns", "share", "median_ns", "extremes"]
    shown += [name for name in ("waited_ns", "failed") if np.nansum(names[name])]
    shown += ["mostly_in"] * (len(asked.merged) > 0)
    shown += ["mostly_on"] * (len(set(names.texts("mostly_on").codes.tolist())) > 1)
    note = "share: of the recording. waited: while a GPU of the process still ran." * bool(recording)
    finding = "; ".join(_finding(attribution, placed, names, recording))
    return Answer({CALLS.file: rows}, finding, tuple(_SHOWN[name] for name in shown), names, note)


SUMMARY = Summary("calls", "Host calls", (CALLS,), calls)


# ---- each call


def _placed(attribution: Attribution, asked: Asked, found: AllCalls) -> _Placed:
    trace = attribution.trace
    code = np.searchsorted(trace.threads, found.threads)
    known = np.append(trace.threads, 0)[code] == found.threads
    thread = np.where(known, code, -1).astype(np.int32)[found.thread]
    cuda = found.kind == CUDA_CALL
    around = ranges_around(attribution, thread, found.start, found.end, cuda[found.name])
    ranges = trace.ranges
    if len(ranges) and not cuda.all():  # a call of MPI that is a range itself stands in the one around it
        own = np.flatnonzero((around >= 0) & ~cuda[found.name])
        own = own[ranges.kind[around[own]] == MPI]
        own = own[
            (ranges.start[around[own]] == found.start[own]) & (ranges.end[around[own]] == found.end[own])
        ]
        around[own] = attribution.parent[around[own]]
    what = np.array(
        [_what(name, kind) for name, kind in zip(found.names, found.kind.tolist(), strict=True)],
        np.uint8,
    )
    waits = found.waits[found.name]
    late = np.flatnonzero((what == COPY)[found.name] & ~waits)
    waits[late[_returned_late(trace, thread[late], found.start[late])]] = True
    waited = np.zeros(len(found), np.int64)
    rows = np.flatnonzero(waits)
    waited[rows] = _busy_meanwhile(trace, thread[rows], found.start[rows], found.end[rows])
    return _Placed(
        found,
        found.end - found.start,
        np.append(asked.merged_of, np.int32(-1))[around],
        waits,
        waited,
        what,
    )


def _what(name: str, kind: int) -> int:
    if kind != CUDA_CALL:
        return MPI_ITSELF + kind - 1
    return next((what for what, pattern in _WHAT if pattern.match(name)), OTHER)


def _returned_late(trace: Trace, thread: NDArray[np.int32], start: Ints) -> NDArray[np.bool_]:
    """Which of some calls launched a copy and returned only after it, as copies of pageable memory do."""
    ops, launches = trace.ops, trace.launches
    late = np.zeros(len(launches), bool)
    copies = np.flatnonzero((ops.kind == MEMCPY) & (ops.launch >= 0))
    launch = ops.launch[copies]
    late[launch[ops.end[copies] <= launches.end[launch]]] = True
    late_at = np.flatnonzero(late)
    key = launches.start[late_at] * len(trace.threads) + launches.thread[late_at]
    return np.isin(start * len(trace.threads) + thread, key)


def _busy_meanwhile(trace: Trace, thread: NDArray[np.int32], start: Ints, end: Ints) -> Ints:
    """How long at least one GPU of the calling process ran during each call."""
    out = np.zeros(len(start), np.int64)
    process = np.append(trace.thread_process, -1)[thread]
    for code in np.flatnonzero(np.bincount(process[process >= 0])).tolist():
        numbers = {
            number
            for device, number in zip(trace.devices, trace.gpu_numbers, strict=True)
            if device.process == code
        }
        if numbers:
            busy = union(*(trace.gpu_busy[number] for number in sorted(numbers)))
            rows = np.flatnonzero(process == code)
            out[rows] = cover_before(*busy, np.maximum(end[rows], start[rows])) - cover_before(
                *busy, start[rows]
            )
    return out


# ---- added up


def _added_up(key: Ints, placed: _Placed) -> tuple[Ints, dict[str, Ints]]:
    """The distinct keys of calls, sorted, and the figures of each."""
    ordered, length = sorted_in_groups(key, placed.length)
    ordered = ordered.astype(np.int64, copy=False)
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    keys, count = ordered[first], np.diff(np.append(first, len(ordered)))
    spread = quartiles_of_sorted(length, count)
    out: dict[str, Ints] = {"count": count, "sum_ns": np.add.reduceat(length, first)}
    out |= {"median_ns": spread.median, "min_ns": spread.low, "max_ns": spread.high}
    for name, values in (
        ("failed", placed.calls.failed),
        ("waits", placed.waits),
        ("waited_ns", placed.waited),
    ):
        some = np.flatnonzero(values)
        out[name] = np.zeros(len(keys), np.int64)
        np.add.at(out[name], np.searchsorted(keys, key[some]), values[some])
    return keys, out


def _columns(placed: _Placed, name: Ints, numbers: dict[str, Ints], recording: int) -> dict[str, Any]:
    """What a row per name, or part of one, has in any case."""
    cuda = placed.calls.kind[name] == CUDA_CALL
    return {
        "kind": Texts(placed.calls.kind[name], CALL_KINDS),
        "call": Texts(name, placed.calls.names),
        "what": Texts(placed.what[name], WHAT),
        **numbers,
        "share": numbers["sum_ns"] / recording if recording else np.full(len(name), np.nan),
        "failed": np.where(cuda, numbers["failed"], np.nan),
    }


def _rows(trace: Trace, placed: _Placed, asked: Asked, recording: int) -> tuple[ColumnTable, ColumnTable]:
    """The rows of ``calls.csv``; and a row per name, with the path and the thread of most of its time."""
    found, paths = placed.calls, len(asked.merged) + 1
    threads = len(found.threads)
    key = (found.name.astype(np.int64) * threads + found.thread) * paths + placed.path + 1
    keys, numbers = _added_up(key, placed)
    rest, path = np.divmod(keys, paths)
    name, thread = np.divmod(rest, threads)
    tids = found.threads[thread]
    paths_text = Texts(path - 1, [*asked.merged, ""])
    labels = Texts(thread, [trace.thread_names.get(tid, "") for tid in found.threads.tolist()])
    columns = _columns(placed, name, numbers, recording)
    columns |= {"pid": pid_of(tids), "tid": tid_of(tids), "thread": labels, "merged_path": paths_text}
    rows = ColumnTable({each: columns[each] for each in CALLS.names})
    once, of_name = _added_up(found.name.astype(np.int64), placed)
    most = [_most(name, code, numbers["sum_ns"]) for code in (path, thread)]
    called = [f"{trace.thread_names.get(tid) or 'thread'} {tid_of(tid)}" for tid in found.threads.tolist()]
    columns = _columns(placed, once, of_name, recording)
    columns |= {"mostly_in": Texts(most[0] - 1, paths_text.words), "mostly_on": Texts(most[1], called)}
    extremes = [
        f"{format_ns(low)}–{format_ns(high)}"
        for low, high in zip(of_name["min_ns"].tolist(), of_name["max_ns"].tolist(), strict=True)
    ]
    names = ColumnTable({**columns, "extremes": Texts(np.arange(len(once)), extremes)})
    return tuple(some.take(np.lexsort((-some["sum_ns"], some.texts("kind").codes))) for some in (rows, names))


def _most(name: Ints, code: Ints, sums: Ints) -> Ints:
    """The code with the largest sum of each name, in the order of names; of equal ones the smallest."""
    size = int(code.max()) + 1
    pairs, place = np.unique(name * size + code, return_inverse=True)
    total = np.zeros(len(pairs), np.int64)
    np.add.at(total, place, sums)
    order = np.lexsort((pairs, -total, pairs // size))
    of, most = np.divmod(pairs[order], size)
    chosen: Ints = most[np.append(True, of[1:] != of[:-1])]
    return chosen


# ---- in words


def _finding(attribution: Attribution, placed: _Placed, names: ColumnTable, recording: int) -> Iterator[str]:
    """What matters: how long in which calls, what waits, what loads modules."""
    trace, found = attribution.recorded or attribution.trace, placed.calls
    kinds = names.texts("kind").codes
    kind = int(kinds[0])
    total, threads = _in_calls(found, kind)
    top = names.take(np.flatnonzero(kinds == kind)[:_NAMED])
    each = [
        f"{call} {format_ns(ns)}" + (f" ({format_share(ns / recording)})" if recording else "")
        for call, ns in zip(top.texts("call").tolist(), top["sum_ns"].tolist(), strict=True)
    ]
    whole = f" of {format_ns(recording)}" if recording and threads == 1 else ""
    where = f" on {threads:,} threads" if threads > 1 else ""
    yield f"Host: {format_ns(total)}{whole} in {_KIND_WORDS[kind]}{where}: {', '.join(each)}"
    if kind != CUDA_CALL:
        return
    least = max(_WORTH_SAYING * total, 1)
    waiting, waited = int(placed.length[placed.waits].sum()), int(placed.waited.sum())
    if waiting >= least:
        yield f"{format_ns(waiting)} in calls that wait for the GPU, which ran for {format_ns(waited)} of that"
    loading = int(placed.length[(placed.what == MODULES)[found.name]].sum())
    if loading >= least:
        yield f"module loading {format_ns(loading)}"
    first, ns = _first_launches(trace)
    if ns >= least:
        yield f"first launches of {plural(first, 'kernel')} {format_ns(ns)} (lazy loading)"
    for other in range(1, len(CALL_KINDS)):
        if (kinds == other).any():
            yield f"{_KIND_WORDS[other]} {format_ns(int(names['sum_ns'][kinds == other].sum()))}"


def _in_calls(found: AllCalls, kind: int) -> tuple[int, int]:
    """How long threads were in calls of a kind, those in one another counted once, and how many threads made some."""
    total = threads = 0
    chosen = np.flatnonzero((found.kind == kind)[found.name])
    order = chosen[np.argsort(found.thread[chosen].astype(np.uint16), kind="stable")]
    sizes = np.bincount(found.thread[chosen])
    for last, size in zip(np.cumsum(sizes).tolist(), sizes.tolist(), strict=True):
        if size:
            rows = order[last - size : last]
            total, threads = total + union_length(found.start[rows], found.end[rows]), threads + 1
    return total, threads


def _first_launches(trace: Trace) -> tuple[int, int]:
    """How many kernels a process launched for the first time in `_LAZY` times the median of that kernel or more, and
    how long these launches took together.
    """
    ops, launches = trace.ops, trace.launches
    rows = np.flatnonzero((ops.kind == KERNEL) & (ops.launch >= 0) & ~ops.from_graph)
    if not len(rows):
        return 0, 0
    launch = ops.launch[rows]
    start, length = launches.start[launch], launches.end[launch] - launches.start[launch]
    group = trace.op_process[rows].astype(np.int64) * len(trace.op_names) + ops.name[rows]
    size = np.bincount(group)
    first = np.full(len(size), np.iinfo(np.int64).max)
    np.minimum.at(first, group, start)
    median = quartiles_of_sorted(sorted_in_groups(group, length)[1], size).median
    slow = np.flatnonzero((start == first[group]) & (length >= _LAZY * median[group]) & (length > 0))
    return len(slow), int(length[slow].sum())
