"""Read host CUDA calls from CUPTI_ACTIVITY_KIND_RUNTIME: calls that caused GPU work (by correlation id), calls that
wait for the GPU (by name), or all calls.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from nsysprof.core.arena import IN_MEMORY, ColumnArena, sort_groups
from nsysprof.core.arrays import AnyInts, Array, Ints, Ints32, Line, Mask, slices
from nsysprof.core.columns import Coder, marked, ranks
from nsysprof.core.intervals import settled, tied
from nsysprof.trace import details
from nsysprof.trace.calls import (
    LONG_LAUNCH_NS,
    activity_kind,
    launches_kernel,
    launches_work,
    outermost_calls,
    waits_for_gpu,
)
from nsysprof.trace.nsys.blocks import Block, Growing, Rows, Source, column, has_all, read_blocks, times
from nsysprof.trace.nsys.host_ranges import MPI_CALLS
from nsysprof.trace.trace import PROCESS_OF_THREAD, Launches, Progress, Trace

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
OS_CALLS, OVERHEAD = "OSRT_API", "PROFILER_OVERHEAD"
CALLS_NEEDS = ("start", "end", "globalTid", "correlationId")  # without them a row is no launch
_VERSION = re.compile(r"(?:_ptsz|_ptds)?_v\d{4,}\Z")  # of the function that CUPTI saw: cudaLaunchKernel_v7000
_OTHER = "other "  # before the columns of calls without a launch key
_UNNAMED = "CUDA call"  # where the report does not name it
_NOT_READY = 600  # what queries of events and streams return: no failure
_OS_CLASS = 27  # of a call; other rows of that table say that the recording was cut


@dataclass(frozen=True)
class Keys:
    """The launch keys (process, correlation id) of GPU work, each with its slot.

    Correlation ids restart in every process and are mostly dense in a process, so a slot is a base plus an offset. If
    the ids are sparse, keys are found by search. ``asked`` marks slots that are keys.
    """

    low: Ints  # per process code: its smallest id, its number of ids, and its first slot
    span: Ints
    base: Ints
    sparse: Ints | None  # sorted ids, process by process
    asked: Mask  # per slot; one more entry, False, for slot -1

    @property
    def count(self) -> int:
        """The number of slots."""
        return len(self.asked) - 1

    @property
    def type(self) -> type[np.integer]:
        """The narrowest type for slots."""
        return np.int32 if self.count < 1 << 31 else np.int64

    def slots(self, process: Array, correlation: Ints) -> Ints:
        """Return the slot of each key, or -1 for an unknown key."""
        process = np.minimum(process, len(self.low) - 1)  # the last is a process without ids
        if self.sparse is None:
            offset = correlation - self.low.take(process)
            inside = offset.view(np.uint64) < self.span.view(np.uint64).take(process)
            slot: Ints = np.where(inside, offset + self.base.take(process), -1)
            slot[~self.asked[slot]] = -1
            return slot
        inside = (correlation != 0) & (process < len(self.base) - 1)
        slot = np.full(len(process), -1, np.int64)
        for code in np.unique(process[inside]).tolist():
            rows = np.flatnonzero(inside & (process == code))
            ids = self.sparse[self.base[code] : self.base[code + 1]]
            if not len(ids):
                continue
            at = np.minimum(np.searchsorted(ids, correlation[rows]), len(ids) - 1)
            hit = ids[at] == correlation[rows]
            slot[rows[hit]] = self.base[code] + at[hit]
        return slot


def launch_keys(process: Array, correlation: Ints) -> Keys:
    """Make the `Keys` of GPU work from the process code and correlation id of each GPU op; id 0 means no launch."""
    real = correlation != 0
    if not real.all():
        process, correlation = process[real], correlation[real]
    del real
    processes = (int(process.max()) + 1 if len(process) else 0) + 1
    low = np.full(processes, np.iinfo(np.int64).max)
    high = np.full(processes, np.iinfo(np.int64).min)
    parts = list(slices(len(process)))
    for part in parts:
        np.minimum.at(low, process[part], correlation[part])
        np.maximum.at(high, process[part], correlation[part])
    unused = low > high
    low[unused], high[unused] = 0, -1
    # Python integers: far-apart ids must not overflow
    total = sum(h - lo + 1 for h, lo in zip(high.tolist(), low.tolist(), strict=True))
    if total <= 16 * len(process) + (1 << 20):
        span = high - low + 1
        base = np.cumsum(span) - span
        asked = np.zeros(total + 1, bool)
        for part in parts:
            asked[(base - low).take(process[part]) + correlation[part]] = True
        return Keys(low, span, base, None, asked)
    order = np.lexsort((correlation, process))
    process, correlation = process[order], correlation[order]
    new = np.append(True, (process[1:] != process[:-1]) | (correlation[1:] != correlation[:-1]))
    process, correlation = process[new], correlation[new]
    counts = np.bincount(process, minlength=processes)
    span = np.where(counts > 0, np.iinfo(np.int64).max, 0)
    asked = np.append(np.ones(len(correlation), bool), False)
    return Keys(low * 0, span, np.cumsum(counts) - counts, correlation, asked)


@dataclass(frozen=True)
class LaunchCalls:
    """The host calls that launched GPU work, one row per launch key, unsorted.

    ``start``, ``end`` int64 ns; ``thread`` int32: a code of the `Coder` passed to `calls_of`; ``slot`` is the key;
    ``name`` indexes the names of ``others``. ``others`` are calls that caused no GPU work, and duplicates: if several
    calls have one key, the shortest call is used, and ``duplicates`` counts the others. If calls with one id are nested
    (a driver call inside a runtime call), the outermost call counts: the last rows of ``others`` enclose launches;
    ``around`` has the slots of these launches.
    """

    start: Ints
    end: Ints
    thread: Ints32
    slot: AnyInts
    name: AnyInts
    others: details.HostCalls
    duplicates: int
    around: AnyInts


def call_rows(
    source: Source, keys: Keys, processes: Coder, progress: Progress | None = None, arena: ColumnArena = IN_MEMORY
) -> Rows:
    """Read the host calls: those with a launch key, and all others."""
    rows = Growing(arena, slot=str(np.dtype(keys.type)), **_CALL)
    rest, threads, names = Growing(arena, **_CALL, id="i8"), Coder(), Coder()
    known, recorded = Coder(), 0
    known.encode(processes.values)
    for block in read_blocks(source, CALLS, CALLS_NEEDS, ("nameId", "returnValue"), progress=progress):
        result = column(block, "returnValue")
        columns = _call_columns(block, threads, names, result=np.where(result == _NOT_READY, 0, result & _RESULT))
        asked_once = known.encode(threads.values & PROCESS_OF_THREAD)
        process = asked_once.take(columns["thread"])
        id = column(block, "correlationId")
        slot, recorded = keys.slots(process, id), recorded + block.rows
        asked = slot >= 0
        some, other = np.flatnonzero(asked), np.flatnonzero(~asked)
        rows.add(len(some), slot=slot[some], **{name: values[some] for name, values in columns.items()})
        rest.add(len(other), **{name: values[other] for name, values in columns.items()}, id=id[other])
    others = {f"{_OTHER}{name}": values for name, values in rest.take_rest().items()}
    values = {"thread": threads.values.tolist(), "name": names.values.tolist()}
    values |= {f"{_OTHER}{name}": each for name, each in values.items()}
    return Rows({**rows.take_rest(), **others}, values, ([recorded],))


def calls_of(
    rows: Rows, source: Source, keys: Keys, processes: Coder, threads: Coder, arena: ColumnArena = IN_MEMORY
) -> LaunchCalls:
    """Make the launches of all GPU work, and all other calls, from the rows of `call_rows`. Several rows can have one
    key, such as a driver call inside a runtime call, or a call recorded twice. The shortest of these rows is used, with
    the name of the outermost row. Ids are added to ``processes`` and ``threads``.
    """
    recorded, names = sum(rows.notes[0]), Coder()
    names.encode(np.array(rows.values["name"], np.int64))
    threads.encode(np.array(rows.values["thread"], np.int64))  # the same codes
    processes.encode(threads.values & PROCESS_OF_THREAD)
    others = {name[len(_OTHER) :]: rows.columns.pop(name) for name in list(rows.columns) if name.startswith(_OTHER)}
    columns = rows.columns
    called = _named(source, names, details.CUDA_CALL)
    rank = ranks([text for _, text, _ in called])
    kept = _outermost(others, others.pop("id"), rank)
    others = {name: values[kept] for name, values in others.items()}
    asked_for = marked(columns["slot"], keys.count)
    duplicates = len(columns["slot"]) - int(asked_for.sum())
    around: AnyInts = np.empty(0, np.int64)
    if duplicates:
        columns, more, around = _one_of_each(columns, keys.count, threads, rank)
        others = {name: np.append(others[name], more[name]) for name in _CALL}
    listed, code = _host_calls(others, threads, called, arena)
    listed = replace(listed, whole=recorded == len(columns["slot"]) + len(listed))
    columns["name"] = arena.take(code, columns["name"])
    return LaunchCalls(**columns, others=listed, duplicates=duplicates, around=around)


def _one_of_each(
    columns: dict[str, Array], slots: int, threads: Coder, rank: AnyInts
) -> tuple[dict[str, Array], dict[str, Array], AnyInts]:
    """The columns of the shortest call of each slot (with the name of the outermost call around it); the columns of the
    other calls, in which calls around a launch come last; and the slots of these last calls.
    """
    thread, start, end, slot = (columns[name] for name in ("thread", "start", "end", "slot"))
    order = np.lexsort((threads.values[thread], start, end - start, slot))
    chosen = np.sort(order[np.append(True, np.diff(slot[order]) != 0)])
    launch = np.empty(slots, np.intp)
    launch[slot[chosen]] = chosen
    of = launch[slot]
    lies = (thread == thread[of]) & (start <= start[of]) & (end[of] <= end)
    outer = _outermost(columns, slot + 1, rank)
    outer[chosen] = False
    more = np.flatnonzero(outer)
    more = more[np.argsort(lies[more], kind="stable")]
    around = more[lies[more]]
    columns["name"][of[around]] = columns["name"][around]
    every = columns.items()
    return ({name: each[chosen] for name, each in every}, {name: each[more] for name, each in every}, slot[around])


def _outermost(columns: dict[str, Array], id: AnyInts, rank: AnyInts) -> Mask:
    """Mark the calls that are inside no other call with the same thread and id (0: no id). If times are equal, the
    ``rank`` of the name decides: `cudaMalloc` before `cuMemAlloc`.
    """
    thread, start, end = (columns[name] for name in ("thread", "start", "end"))
    kept = np.ones(len(id), bool)
    key = id.astype(np.int64) * (int(thread.max(initial=0)) + 1) + thread
    in_order = np.sort(key[id != 0])
    rows = np.flatnonzero(np.isin(key, in_order[1:][in_order[1:] == in_order[:-1]]) & (id != 0))
    rows = rows[np.lexsort((-rank[columns["name"][rows]], -end[rows], start[rows], key[rows]))]
    while True:  # once, and again for three and more calls in one another
        inside = 1 + np.flatnonzero((key[rows[1:]] == key[rows[:-1]]) & (end[rows[1:]] <= end[rows[:-1]]))
        if len(inside) == 0:
            return kept
        kept[rows[inside]] = False
        rows = np.delete(rows, inside)


_CALL = {"thread": "i4", "start": "i8", "end": "i8", "name": "i4"}
_Name: TypeAlias = tuple[int, str, int]  # kind, text, result
_RESULT_BITS = 16
_RESULT = (1 << _RESULT_BITS) - 1


def _call_columns(
    block: Block, threads: Coder, names: Coder, named_by: str = "nameId", result: Array | int = 0
) -> dict[str, Array]:
    """The columns of `_CALL`; the last bits of a name id are the call's return code."""
    start, end = times(block)
    name = names.encode(column(block, named_by, missing=-1) << _RESULT_BITS | result)
    return {"thread": threads.encode(column(block, "globalTid")), "start": start, "end": end, "name": name}


def _named(source: Source, names: Coder, kind: int) -> list[_Name]:
    texts = _call_names(source, names, f"{details.CALL_KINDS[kind].upper()} call")
    return [(kind, text, value & _RESULT) for text, value in zip(texts, names.values.tolist(), strict=True)]


def _host_calls(
    columns: dict[str, Any], threads: Coder, called: list[_Name], arena: ColumnArena
) -> tuple[details.HostCalls, AnyInts]:
    """The `HostCalls` for columns from `_call_columns`, and the new code of each name; ``called`` are the names, some
    of which may be equal.
    """
    names = sorted(set(called))
    place = {name: code for code, name in enumerate(names)}
    narrow: type[np.integer] = np.int16 if len(names) < 1 << 15 else np.int32
    code = np.array([place[name] for name in called], narrow)
    columns["thread"] = arena.take(ranks(threads.values), columns["thread"])
    columns["name"] = arena.take(code, columns["name"])
    listed = details.CallNames(
        texts=[text for _, text, _ in names],
        kind=np.array([kind for kind, *_ in names], np.uint8),
        waits=np.array([kind == details.CUDA_CALL and waits_for_gpu(text) for kind, text, _ in names], bool),
        result=np.array([result for *_, result in names], np.int32),
    )
    return details.HostCalls(**columns, names=listed, threads=np.sort(threads.values)), code


def count_launches(calls: details.HostCalls) -> tuple[int, int, int]:
    """Count calls by name, in three groups: successful launches of kernels or graphs, successful copies and memsets,
    and failed calls of either kind.
    """
    counts, names = np.bincount(calls.name, minlength=len(calls.names.texts)), calls.names
    launching = np.array([launches_work(text) for text in names.texts], bool)
    moving = launching & np.array(["Memcpy" in text or "Memset" in text for text in names.texts], bool)
    marks = (launching & ~moving & ~names.failed, moving & ~names.failed, launching & names.failed)
    launched, moved, failed = (int(counts[mark].sum()) for mark in marks)
    return launched, moved, failed


def read_call_list(source: Source, progress: Progress | None = None) -> details.CallList:
    """All host CUDA calls of a report; empty if none were recorded."""
    rows = Growing(IN_MEMORY, **_CALL, correlation="i8", result="i8")
    threads, names = Coder(), Coder()
    others = ("nameId", "correlationId", "returnValue")
    for block in read_blocks(source, CALLS, ("start", "end", "globalTid"), others, progress):
        calls = _call_columns(block, threads, names)
        numbers = {"correlation": column(block, "correlationId"), "result": column(block, "returnValue")}
        rows.add(block.rows, **calls, **numbers)
    columns, called = rows.take_rest(), _call_names(source, names)
    rank = ranks(called)[columns["name"]]
    columns = _in_order(columns, threads, IN_MEMORY, columns["result"], columns["correlation"], rank)
    return details.CallList(**columns, names=called, threads=np.sort(threads.values))


def read_other_calls(source: Source, kinds: Collection[str], arena: ColumnArena = IN_MEMORY) -> details.HostCalls:
    """Read the calls of MPI and the operating system, each row as recorded, like ``nsys stats``."""
    rows, threads, called = Growing(arena, **_CALL), Coder(), list[_Name]()
    tables = [(details.MPI_CALL, table) for table in MPI_CALLS] + [(details.OS_CALL, OS_CALLS)]
    for kind, table in [(kind, table) for kind, table in tables if details.CALL_KINDS[kind] in kinds]:
        ids = Coder()
        others = ("textId",) if kind == details.MPI_CALL else ("nameId", "eventClass")
        for block in read_blocks(source, table, ("start", "end", "globalTid"), others):
            columns = _call_columns(block, threads, ids, others[0])
            columns["name"] += np.int32(len(called))
            if "eventClass" in block.values:
                keep = block.values["eventClass"] == _OS_CLASS
                columns = {name: values[keep] for name, values in columns.items()}
            rows.add(len(columns["name"]), **columns)
        called += _named(source, ids, kind)
    return _host_calls(rows.take_rest(), threads, called, arena)[0]


def read_host_activity(source: Source, trace: Trace, near: Line | None = None) -> details.HostActivity:
    """The `HostActivity` of a report: CUDA calls (from the trace if it has all of them), operating-system calls, and
    nsys's own work.

    Short kernel launches that overlap none of the intervals ``near`` and contain no other call are left out.
    """
    arena, left_out = trace.arena, np.empty(0, np.uint16)
    rows, threads = Growing(arena, **_CALL), Coder()
    names, kinds, rank = list[str](), list[int](), list[Ints32]()
    tables: list[tuple[str, int | None]] = [(CALLS, None), (OS_CALLS, details.OS), (OVERHEAD, details.PROFILER)]
    others = trace.other_calls
    if others is not None and others.whole and has_all(source, CALLS, CALLS_NEEDS):
        # not where calls share an id, of which the trace has one
        texts = others.names.texts
        names += dict.fromkeys(texts)
        code = np.array([names.index(text) for text in texts], np.int32)
        launches = trace.launches
        if near is not None and not len(others.around) and not any("BeginCapture" in text for text in texts):
            kept = _kept(trace, others, np.array([launches_kernel(text) for text in texts], bool), near)
            left_out = (launches.end - launches.start)[~kept].astype(np.uint16)
            launches = Launches(*(column[kept] for column in vars(launches).values()))
        for some, tids in ((launches, trace.threads), (others, others.threads)):
            thread = threads.encode(tids)[some.thread]
            rows.add(len(some.start), thread=thread, start=some.start, end=some.end, name=code[some.name])
        rank.append(ranks(names))
        kinds += map(activity_kind, names)
        tables = tables[1:]
    for table, kind in tables:
        ids = Coder()
        for block in read_blocks(source, table, ("start", "end", "globalTid"), ("nameId",)):
            columns = _call_columns(block, threads, ids)
            columns["name"] += np.int32(len(names))
            rows.add(block.rows, **columns)
        texts = _call_names(source, ids)
        rank.append(ranks(texts) + np.int32(len(names)))
        names += texts
        kinds += [activity_kind(text) if kind is None else kind for text in texts]
    columns = rows.take_rest()
    columns = _in_order(columns, threads, arena, np.concatenate(rank)[columns["name"]])
    each = arena.take(np.array(kinds, np.uint8), columns["name"])
    kept = outermost_calls(columns["thread"], columns["end"], each)
    if not kept.all():
        columns, each = {name: values[kept] for name, values in columns.items()}, each[kept]
    nothing = np.broadcast_to(np.int64(0), len(each))
    threads_by_id = np.sort(threads.values)
    calls = details.CallList(**columns, correlation=nothing, result=nothing, names=names, threads=threads_by_id)
    return details.HostActivity(calls, each, left_out)


def _kept(trace: Trace, others: details.HostCalls, of_kernel: Mask, near: Line) -> Mask:
    """Mask of the launches that `read_host_activity` keeps; ``of_kernel``: which names launch kernels."""
    launches = trace.launches
    kept: Mask = launches.end - launches.start >= LONG_LAUNCH_NS
    kept |= (launches.end < launches.start) | ~of_kernel.take(launches.name)
    for low, high in zip(*near, strict=True):  # few
        kept |= (launches.end >= low) & (launches.start <= high)
    thread = np.searchsorted(trace.threads, others.threads)[others.thread]
    last, _ = launches.around(thread, others.start + 1)
    around = (last >= 0) & (launches.end[last] >= others.end)
    kept[last[around]] = True
    return kept


def _in_order(columns: dict[str, Array], threads: Coder, arena: ColumnArena, *keys: Array) -> dict[str, Array]:
    """Sort the columns of calls by globalTid, then start, then longest first; if times are equal, ``keys`` decide (the
    last key first), not file order.
    """
    columns["thread"] = thread = ranks(threads.values)[columns["thread"]]
    group = thread.astype(np.uint16) if len(threads) <= 1 << 16 else thread  # sorted by radix
    order, start = sort_groups(group, columns.pop("start"), columns["end"], arena, longest=True)
    order = settled(order, tied(order, start, thread, columns["end"]), *keys)
    return {"start": start} | {name: arena.take(columns.pop(name), order) for name in list(columns)}


def _call_names(source: Source, names: Coder, unnamed: str = _UNNAMED) -> list[str]:
    """The names that `_call_columns` coded, without the versions that CUPTI appends."""
    ids = (names.values >> _RESULT_BITS).tolist()
    texts = source.strings([number for number in ids if number >= 0])
    return [_VERSION.sub("", texts.get(number, unnamed)) for number in ids]
