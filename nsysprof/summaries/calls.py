"""Host calls, of CUDA, MPI and the operating system: how often, how long, where, and which of them wait for the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution, ranges_around
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.intervals import Ints, cover_before, merge, union
from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.results.table import Column, table
from nsysprof.statistics.distributions import quartile_of_sorted, sorted_in_groups
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.details import CALL_KINDS, CUDA_CALL, CallNames, HostCalls
from nsysprof.trace.trace import KERNEL, MEMCPY, MPI, PROCESS_OF_THREAD, Trace, pid_of, tid_of

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
# The first launch of a kernel that loads it takes so many times the median, and no less than that.
_LAZY, _LOADS_NS = 10, 50_000
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


def read_kinds(text: str) -> tuple[str, ...]:
    """The kinds of calls that ``--calls cuda,mpi,os`` names, none for ``none``. `NsysprofError` for anything else."""
    names = [name.strip() for name in text.split(",")] if text != "none" else []
    for name in names:
        if name not in CALL_KINDS:
            raise NsysprofError(
                f"unknown calls: {name!r}",
                f"--calls none, or some of {','.join(CALL_KINDS)}, comma separated",
            )
    return tuple(names)


@dataclass(frozen=True)
class _Calls:
    """Host calls with where they stand, a row each.

    ``thread`` codes of ``tids``; ``length`` int64 ns; ``name`` codes of ``texts``, of which ``kind`` and ``what`` say
    the kind and the `WHAT`; ``path`` int32, a merged path, -1 for none. Numbers of rows are ``failed`` and ``waits``,
    with ``waited`` int64 ns of the latter. ``parts`` are where they come from, launches first.
    """

    parts: list[HostCalls]
    thread: NDArray[np.int32]
    length: Ints
    name: NDArray[np.integer]
    path: NDArray[np.int32]
    failed: NDArray[np.intp]
    waits: NDArray[np.intp]
    waited: Ints
    texts: list[str]
    kind: NDArray[np.uint8]
    what: NDArray[np.uint8]
    tids: Ints


def calls(attribution: Attribution, asked: Asked) -> Answer | None:
    """Add up host calls by name, thread and merged path, the longest first; None where none were recorded."""
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
    notes = ["share: of the recording."] * bool(recording)
    notes += ["waited: while a GPU of the process still ran."] * ("waited_ns" in shown)
    finding = "; ".join(_finding(trace, found, names, recording))
    return Answer({CALLS.file: rows}, finding, tuple(_SHOWN[name] for name in shown), names, " ".join(notes))


SUMMARY = Summary("calls", "Host calls", (CALLS,), calls)


# ---- each call


def _recorded(attribution: Attribution, asked: Asked) -> _Calls | None:
    """The calls of the kinds that are asked for, the launches first; None where there are none."""
    trace = attribution.trace
    parts = [trace.report.reader.other_calls(asked.calls, trace.arena)]
    around = [_around(attribution, parts[0])]
    if (others := trace.other_calls) is not None and CALL_KINDS[CUDA_CALL] in asked.calls:
        made = replace(others, **vars(trace.launches), threads=trace.threads)
        parts, around = [made, others, *parts], [attribution.owner, _around(attribution, others), *around]
    if not any(map(len, parts)):
        return None
    names = _together([part.names for part in parts[-2:]])  # a call of CUDA has the lower code
    first = [0] * (len(parts) - 1) + [len(parts[-2].names.texts) if len(parts) > 1 else 0]
    name = np.concatenate([part.name + np.int32(offset) for part, offset in zip(parts, first, strict=True)])
    failed = np.flatnonzero(names.failed[name]) if names.failed.any() else np.empty(0, np.intp)
    waits, waited = _waits(trace, parts, names.waits[name])
    pairs = list(zip(names.kind.tolist(), names.texts, strict=True))
    once = list(dict.fromkeys(pairs))  # those that failed and those that did not are one
    if len(once) < len(pairs):
        place = {pair: code for code, pair in enumerate(once)}
        name = np.array([place[pair] for pair in pairs], np.int32)[name]
    tids = np.unique(np.concatenate([part.threads for part in parts]))
    path_of = np.append(asked.merged_of, np.int32(-1))
    return _Calls(
        parts=parts,
        thread=np.concatenate(
            [np.searchsorted(tids, part.threads).astype(np.int32)[part.thread] for part in parts]
        ),
        length=np.concatenate([part.end - part.start for part in parts]),
        name=name,
        path=np.concatenate([path_of[each] for each in around]),
        failed=failed,
        waits=waits,
        waited=waited,
        texts=[text for _, text in once],
        kind=np.array([kind for kind, _ in once], np.uint8),
        what=np.array([_what(text, kind) for kind, text in once], np.uint8),
        tids=tids,
    )


def _together(parts: list[CallNames]) -> CallNames:
    """The names of all, one after the other."""
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("kind", "waits", "failed")
    }
    return CallNames([text for part in parts for text in part.texts], **arrays)


def _waits(trace: Trace, parts: list[HostCalls], waits: NDArray[np.bool_]) -> tuple[NDArray[np.intp], Ints]:
    """The rows of calls that wait for the GPU: those that do so by their name, and asynchronous copies that returned
    only after they were done, as those of pageable memory; and how long a GPU of the process still ran during each.
    """
    if len(parts) > 1:
        ops = trace.ops
        copies = np.flatnonzero((ops.kind == MEMCPY) & (ops.launch >= 0))
        launch = ops.launch[copies]
        waits[launch[ops.end[copies] <= trace.launches.end[launch]]] = True
    rows, waited, first = [], [], 0
    for part in parts:
        some = np.flatnonzero(waits[first : first + len(part)])
        times = part.start[some], np.maximum(part.end[some], part.start[some])
        waited.append(_busy_meanwhile(trace, part.threads[part.thread[some]], *times))
        rows.append(some + first)
        first += len(part)
    return np.concatenate(rows), np.concatenate(waited)


def _what(name: str, kind: int) -> int:
    if kind != CUDA_CALL:
        return MPI_ITSELF + kind - 1
    return next((what for what, pattern in _WHAT if pattern.match(name)), OTHER)


def _around(attribution: Attribution, calls: HostCalls) -> NDArray[np.int32]:
    """The range around each call, -1 for none; a call of MPI that is a range itself stands in the one around it."""
    trace, ranges = attribution.trace, attribution.trace.ranges
    code = np.searchsorted(trace.threads, calls.threads)
    known = np.append(trace.threads, 0)[code] == calls.threads
    thread = np.where(known, code, -1)[calls.thread]
    if not len(calls):
        return np.empty(0, np.int32)
    cuda = (calls.names.kind == CUDA_CALL)[calls.name]
    around = ranges_around(attribution, thread, calls.start, calls.end, cuda)
    own = np.flatnonzero(~cuda & (around >= 0))
    own = own[ranges.kind[around[own]] == MPI]
    own = own[(ranges.start[around[own]] == calls.start[own]) & (ranges.end[around[own]] == calls.end[own])]
    around[own] = attribution.parent[around[own]]
    return around


def _busy_meanwhile(trace: Trace, tid: Ints, start: Ints, end: Ints) -> Ints:
    """How long at least one GPU of the calling process ran during each call."""
    out = np.zeros(len(start), np.int64)
    process = tid & PROCESS_OF_THREAD
    for code, pid in enumerate(trace.processes.tolist()):
        numbers = zip(trace.devices, trace.gpu_numbers, strict=True)
        used = sorted({number for device, number in numbers if device.process == code})
        rows = np.flatnonzero(process == pid)
        if used and len(rows):
            busy = (
                union(*(trace.gpu_busy[number] for number in used))
                if len(used) > 1
                else trace.gpu_busy[used[0]]
            )
            out[rows] = cover_before(*busy, end[rows]) - cover_before(*busy, start[rows])
    return out


# ---- added up


def _added_up(key: Ints, found: _Calls) -> tuple[Ints, Ints, dict[str, Ints]]:
    """The distinct keys of calls, sorted; the lengths of all calls in that order; and the figures of each key."""
    ordered, length = sorted_in_groups(key, found.length)
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    keys: Ints = ordered[first].astype(np.int64)
    count = np.diff(np.append(first, len(ordered)))
    out = {"count": count, "sum_ns": np.add.reduceat(length, first), **_spread(length, count)}
    ones = np.ones(max(len(found.failed), len(found.waits)), np.int64)
    for name, rows, values in (
        ("failed", found.failed, ones[: len(found.failed)]),
        ("waits", found.waits, ones[: len(found.waits)]),
        ("waited_ns", found.waits, found.waited),
    ):
        out[name] = np.zeros(len(keys), np.int64)
        np.add.at(out[name], np.searchsorted(keys, key[rows]), values)
    return keys, length, out


def _spread(length: Ints, count: Ints) -> dict[str, Ints]:
    names = {"median_ns": 2, "min_ns": 0, "max_ns": 4}
    return {name: quartile_of_sorted(length, count, number) for name, number in names.items()}


def _of_names(name: Ints, length: Ints, numbers: dict[str, Ints]) -> dict[str, Ints]:
    """The figures of each name, from those of its parts, which stand together; sorts their lengths in place."""
    first = np.flatnonzero(np.append(True, name[1:] != name[:-1]))
    out = {each: np.add.reduceat(values, first) for each, values in numbers.items()}
    stop = np.cumsum(out["count"])
    for begin, end in zip((stop - out["count"]).tolist(), stop.tolist(), strict=True):
        length[begin:end].sort()
    return {**out, **_spread(length, out["count"])}


def _columns(found: _Calls, name: Ints, numbers: dict[str, Ints], recording: int) -> dict[str, Any]:
    """What a row per name, or part of one, has in any case."""
    kind = found.kind[name]
    return {
        "kind": Texts(kind, CALL_KINDS),
        "call": Texts(name, found.texts),
        "what": Texts(found.what[name], WHAT),
        **numbers,
        "share": np.round(numbers["sum_ns"] / recording, 6) if recording else np.full(len(name), np.nan),
        "failed": np.where(kind == CUDA_CALL, numbers["failed"], np.nan),
    }


def _rows(trace: Trace, found: _Calls, asked: Asked, recording: int) -> tuple[ColumnTable, ColumnTable]:
    """The rows of ``calls.csv``; and a row per name, with the path and the thread of most of its time."""
    threads, paths = len(found.tids), len(asked.merged) + 1
    key = found.name.astype(np.int64)
    for size, code in ((threads, found.thread), (paths, found.path)):
        key *= size
        key += code
    key += 1  # path -1 is none
    keys, length, numbers = _added_up(key, found)
    rest, path = np.divmod(keys, paths)
    name, thread = np.divmod(rest, threads)
    tids = found.tids[thread]
    path_words = [*asked.merged, ""]
    labels = [trace.thread_names.get(tid, "") for tid in found.tids.tolist()]
    columns = _columns(found, name, numbers, recording)
    columns |= {"pid": pid_of(tids), "tid": tid_of(tids), "thread": Texts(thread, labels)}
    columns |= {"merged_path": Texts(path - 1, path_words)}
    rows = ColumnTable({each: columns[each] for each in CALLS.names})
    of_name = _of_names(name, length, numbers)
    once = np.unique(name)
    called = [
        f"{label or 'thread'} {tid_of(tid)}" for label, tid in zip(labels, found.tids.tolist(), strict=True)
    ]
    extremes = [
        f"{format_ns(low)}–{format_ns(high)}"
        for low, high in zip(of_name["min_ns"].tolist(), of_name["max_ns"].tolist(), strict=True)
    ]
    columns = _columns(found, once, of_name, recording)
    columns |= {"extremes": Texts(np.arange(len(once)), extremes)}
    columns |= {"mostly_in": Texts(_most(name, path, numbers["sum_ns"]) - 1, path_words)}
    columns |= {"mostly_on": Texts(_most(name, thread, numbers["sum_ns"]), called)}
    return _longest_first(rows), _longest_first(ColumnTable(columns))


def _longest_first(rows: ColumnTable) -> ColumnTable:
    """The same rows, those of CUDA before others."""
    return rows.take(np.lexsort((-rows["sum_ns"], rows.texts("kind").codes)))


def _most(name: Ints, code: Ints, sums: Ints) -> Ints:
    """The code with the largest sum of each name, in the order of names; of equal ones the smallest."""
    size = int(code.max()) + 1
    pairs, place = np.unique(name * size + code, return_inverse=True)
    total = np.zeros(len(pairs), np.int64)
    np.add.at(total, place, sums)
    of, most = np.divmod(pairs[np.lexsort((pairs, -total, pairs // size))], size)
    chosen: Ints = most[np.append(True, of[1:] != of[:-1])]
    return chosen


# ---- in words


def _finding(trace: Trace, found: _Calls, names: ColumnTable, recording: int) -> Iterator[str]:
    """What matters: how long in which calls, what waits, what loads modules."""
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
    least = max(_WORTH_SAYING * total, 1)
    waiting, waited = int(found.length[found.waits].sum()), int(found.waited.sum())
    if waiting >= least:
        yield f"{format_ns(waiting)} in calls that wait for the GPU, which ran for {format_ns(waited)} of that"
    loading = int(names["sum_ns"][names.texts("what").codes == MODULES].sum())
    if loading >= least:
        yield f"module loading {format_ns(loading)}"
    first, ns = _first_launches(trace) if kind == CUDA_CALL else (0, 0)
    if ns >= least:
        yield f"first launches of {plural(first, 'kernel')} {format_ns(ns)} (lazy loading)"
    for other in np.unique(kinds[kinds != kind]).tolist():
        yield f"{_KIND_WORDS[other]} {format_ns(int(names['sum_ns'][kinds == other].sum()))}"


def _in_calls(found: _Calls, kind: int) -> tuple[int, int]:
    """How long threads were in calls of a kind, those in one another counted once, and how many threads made some."""
    lines: dict[int, tuple[Ints, Ints]] = {}
    total = 0
    for part in found.parts:
        these, thread, start, end = part.names.kind == kind, part.thread, part.start, part.end
        if not these.all():
            rows = np.flatnonzero(these[part.name])
            thread, start, end = thread[rows], start[rows], end[rows]
        if (thread[1:] < thread[:-1]).any():
            order = np.argsort(thread, kind="stable")
            thread, start, end = thread[order], start[order], end[order]
        bounds = np.flatnonzero(np.append(True, thread[1:] != thread[:-1])[: len(thread)]).tolist()
        for first, last in pairwise([*bounds, len(thread)]):
            tid, line = int(part.threads[thread[first]]), merge(start[first:last], end[first:last])
            total += int((line[1] - line[0]).sum())
            if tid in lines:
                total -= int((cover_before(*lines[tid], line[1]) - cover_before(*lines[tid], line[0])).sum())
            lines.setdefault(tid, line)  # there are two parts of a kind at most
    return total, len(lines)


def _first_launches(trace: Trace) -> tuple[int, int]:
    """How many kernels a process launched for the first time in `_LAZY` times the median of that kernel or more, and
    how long these launches took together.
    """
    ops, launches = trace.ops, trace.launches
    slow = launches.end - launches.start >= _LOADS_NS
    if not slow.any():
        return 0, 0
    rows = np.flatnonzero((ops.kind == KERNEL) & (ops.launch >= 0) & ~ops.from_graph)
    group = trace.op_process[rows].astype(np.int64) * len(trace.op_names) + ops.name[rows]
    maybe = np.zeros(int(group.max(initial=0)) + 1, bool)
    maybe[group[slow[ops.launch[rows]]]] = True
    rows, group = rows[maybe[group]], group[maybe[group]]
    start = launches.start[ops.launch[rows]]
    length = launches.end[ops.launch[rows]] - start
    size = np.bincount(group)
    first = np.full(len(size), np.iinfo(np.int64).max)
    np.minimum.at(first, group, start)
    median = quartile_of_sorted(sorted_in_groups(group, length)[1], size)
    lazy = np.flatnonzero((start == first[group]) & (length >= np.maximum(_LAZY * median[group], _LOADS_NS)))
    return len(lazy), int(length[lazy].sum())
