"""Build a trace from the tables of a report: join GPU work to its launches, and give threads small codes."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from itertools import chain, islice
from typing import TypeAlias

import numpy as np

from nsysprof.core.arena import ColumnArena, keep_freed, sort_groups
from nsysprof.core.arrays import AnyInts, Array, Index, Ints, slices
from nsysprof.core.columns import Coder, ranks
from nsysprof.core.intervals import settled, tied
from nsysprof.core.parallel import cores, side_by_side
from nsysprof.core.text import join_words, one_line, plural
from nsysprof.trace import trace
from nsysprof.trace.details import HostCalls
from nsysprof.trace.nsys.about import gpus_of_devices, last_error
from nsysprof.trace.nsys.blocks import Rows, Source, column, joined, read_blocks, unread_tables
from nsysprof.trace.nsys.clocks import on_one_clock
from nsysprof.trace.nsys.gpu_work import WORK, WORK_NEEDS, Work, work_of, work_rows
from nsysprof.trace.nsys.host_calls import (
    CALLS,
    CALLS_NEEDS,
    Keys,
    LaunchCalls,
    call_rows,
    calls_of,
    count_launches,
    launch_keys,
)
from nsysprof.trace.nsys.identify import reading
from nsysprof.trace.nsys.nvtx import NVTX, NVTX_NEEDS, NvtxRanges, range_rows, ranges_of
from nsysprof.trace.nsys.records import RefusedError
from nsysprof.trace.nsys.sqlite import SqliteSource

_NEEDS = {**dict.fromkeys(WORK, WORK_NEEDS), CALLS: CALLS_NEEDS, NVTX: NVTX_NEEDS}
_MAX_OPEN = 16  # ranges of one name in one another that a program may have open when it is stopped
_MAX_NAMES_SHOWN = 3  # of ranges that are never popped
_MIN_BYTES_APART = 1 << 28  # of a file: tables of a smaller one are read one after the other
_PARTS_PER_CORE = 2  # of a table
_Read: TypeAlias = tuple[Collection[str], Callable[[Source, Collection[str]], Rows]]  # tables, and how to read them
# What an analysis takes with the process that draws charts, measured at 1 to 10 million kernels: bytes in all, per row.
_ANY_REPORT = 450_000_000
_BYTES_PER_ROW = {**dict.fromkeys(WORK, 80), CALLS: 35, NVTX: 115}
_MEMORY_PER_FILE = 4  # times the size of an SQLite file at most: its rows take 30 bytes at least


def build_trace(
    report: trace.Report, source: Source, progress: trace.Progress | None, arena: ColumnArena
) -> trace.Trace:
    """Return the `Trace` of a report, see `read_tables`."""
    process_ids, tids = Coder(), Coder()  # globalPids, globalTids
    with reading(report.path):
        apart = arena.roomy and report.file.stat().st_size >= _MIN_BYTES_APART
        if apart:
            keep_freed()
        seen = None if apart else progress  # forks cannot report progress
        of_work: _Read = WORK, lambda part, tables: work_rows(part, tables, seen, arena)
        of_ranges: _Read = [NVTX], lambda part, _: range_rows(part, seen, arena)
        # one after the other if not in parallel: memory peaks in between
        found = _read([of_work, of_ranges] if apart else [of_work], source, apart=apart)

        def of_calls(keys: Keys) -> LaunchCalls:
            read: _Read = [CALLS], lambda part, _: call_rows(part, keys, process_ids, seen, arena)
            return calls_of(_read([read], source, apart=apart)[0], source, keys, process_ids, tids, arena)

        work, (ops, launches, other_calls, recorded_twice) = _joined(
            _adopt(work_of(found.pop(0), source, process_ids), process_ids, source), process_ids, tids, of_calls, arena
        )
        nvtx = ranges_of((found or _read([of_ranges], source, apart=False))[0], tids, arena)
        pids = process_ids.values
        cuda_devices = [(int(pids[code]), cuda_id) for code, cuda_id in work.devices]
        gpus = gpus_of_devices(source, report.about.gpus, cuda_devices)
        unread = unread_tables(source, _NEEDS)
        no_work = "" if len(ops) else _why_no_work(other_calls, unread) + _last_error(source)

    order = np.argsort(tids.values, kind="stable")
    threads = tids.values[order]
    thread_code = np.empty(len(order), _narrow(len(order)))
    thread_code[order] = np.arange(len(order))
    # sorted by thread before, and still
    launches = replace(launches, thread=arena.take(thread_code, launches.thread))
    processes = np.array(
        sorted({*process_ids.values.tolist(), *(threads & trace.PROCESS_OF_THREAD).tolist()}), np.int64
    )
    process_code = np.searchsorted(processes, pids)
    duration = report.about.duration_ns or 0
    ends = [int(times.max()) for times in (ops.end, launches.end, nvtx.end) if len(times)]
    session_end = max([duration, *ends])
    devices = [
        trace.Device(int(process_code[code]), cuda_id, gpu)
        for (code, cuda_id), gpu in zip(work.devices, gpus, strict=True)
    ]
    warnings = _warnings(work, ops, launches, len(nvtx.start), recorded_twice, unread, no_work)
    ranges, never_popped = _folded(_ranges(nvtx, thread_code, session_end, duration, arena), arena)
    return trace.Trace(
        report=report,
        ranges=ranges,
        launches=launches,
        ops=ops,
        range_names=nvtx.names,
        op_names=work.names,
        threads=threads,
        thread_process=np.searchsorted(processes, threads & trace.PROCESS_OF_THREAD).astype(np.int32),
        processes=processes,
        devices=devices,
        streams=[trace.Stream(*stream) for stream in work.streams],
        copies=work.copies,
        session_end=session_end,
        warnings=(*warnings, *_never_popped(never_popped, nvtx)),
        unread=unread,
        no_work=no_work,
        never_popped=sum(never_popped.values()),
        call_names=tuple(other_calls.names.texts),
        named_threads=nvtx.thread_names,
        arena=arena,
        other_calls=other_calls,
        geometry=work.geometry,
    )


def _never_popped(counts: dict[int, int], nvtx: NvtxRanges) -> Iterator[str]:
    """Warnings about folded ranges (see `_folded`), whose ``counts`` are by name code."""
    for name, count in list(counts.items())[:_MAX_NAMES_SHOWN]:
        more = f"the first and {count:,} later pushes are merged into one range"
        yield f"`{nvtx.names[name].text}` is never popped: {more}"
    if len(counts) > _MAX_NAMES_SHOWN:
        yield (
            f"{len(counts) - _MAX_NAMES_SHOWN:,} more names are never popped; the pushes of each name are merged "
            "into one range"
        )


def steps(source: Source) -> int:
    """Return the number of rows to read and launches to attribute, as far as known in advance."""
    return 2 * sum(source.rows(table) for table in WORK) + source.rows(CALLS) + source.rows(NVTX)


def bytes_needed(source: Source, file_size: int, enough: int) -> int:
    """Estimate the memory that an analysis takes (see `Reader.bytes_needed`); ``file_size`` is for SQLite files."""
    most = _ANY_REPORT + _MEMORY_PER_FILE * file_size
    if file_size and most <= enough:  # whatever its rows are, and counting them takes a while
        return most
    return _ANY_REPORT + sum(source.rows(table) * size for table, size in _BYTES_PER_ROW.items())


def _narrow(count: int) -> type[np.integer]:
    """The smallest type for codes below ``count``; 16 bits sort by radix."""
    return np.uint16 if count <= 1 << 16 else np.int32


def _adopt(work: Work, process_ids: Coder, source: Source) -> Work:
    """Assign GPU rows without a process id to the process with host calls, if there is only one such process."""
    codes = {value: code for code, value in enumerate(process_ids.values.tolist())}
    if 0 not in codes:
        return work
    tids = Coder()
    for block in read_blocks(source, CALLS, ["globalTid"]):
        tids.encode(column(block, "globalTid"))
    callers = np.unique(tids.values & trace.PROCESS_OF_THREAD)
    if len(callers) != 1:
        return work
    caller = int(process_ids.encode(callers)[0])
    devices = [(caller if code == codes[0] else code, number) for code, number in work.devices]
    return replace(work, devices=devices)


def _in_order(work: Work, process_ids: Coder, arena: ColumnArena) -> Work:
    """The same work with devices and streams in the order of their numbers, regardless of file order."""
    pids = process_ids.values
    by_device = sorted(
        range(len(work.devices)), key=lambda at: (int(pids[work.devices[at][0]]), work.devices[at][1], at)
    )
    rank = {at: place for place, at in enumerate(by_device)}

    def key(at: int) -> tuple[int, bool, int, int]:
        device, number, migrates = work.streams[at]
        return rank[device], migrates, -1 if number is None else number, at

    order = sorted(range(len(work.streams)), key=key)
    if order == list(range(len(order))) and by_device == sorted(by_device):
        return work
    code = np.empty(len(order), np.int32)
    code[order] = np.arange(len(order))
    streams = [(rank[device], number, migrates) for device, number, migrates in work.streams]
    return replace(
        work,
        stream=arena.take(code, work.stream),
        streams=[streams[at] for at in order],
        devices=[work.devices[at] for at in by_device],
    )


def _read(reads: Sequence[_Read], source: Source, *, apart: bool) -> list[Rows]:
    """The rows of each group of tables; with ``apart``, parts of the tables are read in parallel."""
    if apart and isinstance(source, SqliteSource) and cores() > 1:
        parts = source.parts(_PARTS_PER_CORE * cores())
        tasks = [[partial(read, part, [table]) for table in tables for part in parts] for tables, read in reads]
        with suppress(RefusedError):
            found = iter(side_by_side(*chain(*tasks), apart=True))
            return [joined([*islice(found, len(each))]) for each in tasks]
    return [read(source, tables) for tables, read in reads]


def _joined(
    work: Work, process_ids: Coder, tids: Coder, of_calls: Callable[[Keys], LaunchCalls], arena: ColumnArena
) -> tuple[Work, tuple[trace.Ops, trace.Launches, HostCalls, int]]:
    """The GPU rows, from which the other results are made: the GPU ops and their launches (threads still as codes of
    ``tids``), the other host calls, and the number of host calls for which a shorter call with the same id is used.

    The columns that join ops and launches are freed after use: memory peaks here.
    """
    work = _in_order(work, process_ids, arena)
    process_of_stream = np.array([work.devices[device][0] for device, *_ in work.streams], np.int32)
    keys = launch_keys(process_of_stream.take(work.stream), work.correlation)
    slot = arena.empty(len(work.start), keys.type)
    for part in slices(len(slot)):
        slot[part] = keys.slots(process_of_stream.take(work.stream[part]), work.correlation[part])
    work = replace(work, correlation=np.empty(0, np.int64))
    calls = of_calls(keys)
    slots = keys.count
    del keys
    by_id = np.argsort(tids.values, kind="stable")
    place = np.empty(len(by_id), _narrow(len(by_id)))
    place[by_id] = np.arange(len(by_id))
    group = place.take(calls.thread)
    order, start = sort_groups(group, calls.start, calls.end, arena)
    order = _by_work(order, start, group, calls, slot, slots, work)
    sizes = np.bincount(group, minlength=len(by_id))
    del group
    launches = trace.Launches(
        thread=arena.repeat(by_id.astype(_narrow(len(by_id))), sizes),
        start=start,
        end=arena.take(calls.end, order),
        name=arena.take(calls.name, order),
    )
    launch_of_slot = np.full(slots + 1, -1, np.int32)  # the last entry is for ops without a launch: slot -1
    for part in slices(len(order)):
        launch_of_slot[calls.slot[order[part]]] = np.arange(part.start, part.stop, dtype=np.int32)
    launch = arena.take(launch_of_slot, slot)
    others = replace(calls.others, around=launch_of_slot[calls.around])
    del slot, launch_of_slot, order
    work = on_one_clock(work, launches.start, launches.end, launch)
    ops = trace.Ops(
        start=work.start,
        end=work.end,
        kind=work.kind,
        name=work.name,
        stream=arena.cast(work.stream, _narrow(len(work.streams))),
        launch=launch,
        from_graph=work.from_graph,
    )
    return work, (ops, launches, others, calls.duplicates)


def _by_work(
    order: Index, start: Ints, group: Array, calls: LaunchCalls, slot: AnyInts, slots: int, work: Work
) -> Index:
    """The same order, but a thread's calls with equal start and end are ordered by the first GPU op that they launched.
    ``slot`` is the key of each op's launch.
    """
    equal = tied(order, start, calls.end, group)
    if not equal.any():
        return order
    ties = np.append(False, equal) | np.append(equal, False)
    ops = np.flatnonzero(np.isin(slot, calls.slot[order[ties]]))
    by = (work.stream[ops], ranks(work.names)[work.name[ops]], work.end[ops], work.start[ops])
    ops = ops[np.lexsort(by)]
    place = np.zeros(slots, np.int32)
    place[slot[ops[::-1]]] = np.arange(len(ops), dtype=np.int32)[::-1]
    return settled(order, equal, calls.name, place[calls.slot])


def _ranges(
    nvtx: NvtxRanges, thread_code: AnyInts, session_end: int, duration: int, arena: ColumnArena
) -> trace.Ranges:
    """Close open ranges at the session's end, and sort."""
    end = nvtx.end
    if nvtx.open.any():
        end[nvtx.open] = np.maximum(nvtx.start[nvtx.open], session_end)
    unclosed = nvtx.open
    if duration:  # nsys closes forgotten push/pop ranges itself, exactly then, and nothing else marks them
        unclosed |= (nvtx.kind == trace.PUSH_POP) & (end == duration)
    kinds = 2 * len(thread_code)  # a group for each kind of each thread
    group = (2 * thread_code.astype(np.int64)).astype(_narrow(kinds))[nvtx.thread]
    group += nvtx.kind == trace.START_END
    order, start = sort_groups(group, nvtx.start, end, arena, longest=True)
    order = _by_name(order, start, end, group, nvtx)
    sizes = np.bincount(group, minlength=kinds)
    return trace.Ranges(
        thread=arena.repeat(np.arange(kinds, dtype=group.dtype) // 2, sizes),
        start=start,
        end=arena.take(end, order),
        kind=arena.repeat(np.where(np.arange(kinds) % 2, trace.START_END, trace.PUSH_POP).astype(np.uint8), sizes),
        name=arena.take(nvtx.name, order),
        unclosed=arena.take(unclosed, order),
        moved=arena.take(nvtx.moved, order),
    )


def _by_name(order: Index, start: Ints, end: Ints, group: Array, nvtx: NvtxRanges) -> Index:
    """The same order, but a thread's ranges with equal start and end are ordered by name."""
    equal = tied(order, start, end, group)
    if not equal.any():
        return order
    rank = ranks([(name.text, name.domain) for name in nvtx.names])
    return settled(order, equal, nvtx.open, rank[nvtx.name])


def _folded(ranges: trace.Ranges, arena: ColumnArena) -> tuple[trace.Ranges, dict[int, int]]:
    """The ranges without never-popped ranges that are inside a never-popped range of the same name and thread, if there
    are many; and the number of removed ranges by name.

    Otherwise, a loop that forgets a pop would have one level of ranges (and one row) per iteration.
    """
    rows = np.flatnonzero(ranges.unclosed & (ranges.kind == trace.PUSH_POP))
    if len(rows) <= _MAX_OPEN:
        return ranges, {}
    key = (ranges.thread[rows].astype(np.int64) << 32) | ranges.name[rows]
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    outer = first[group.reshape(-1)]
    inner = (ranges.end[rows] <= ranges.end[rows[outer]]) & (outer != np.arange(len(rows)))
    again = np.bincount(outer[inner], minlength=len(rows))
    gone = rows[inner & (again[outer] > _MAX_OPEN)]
    if len(gone) == 0:
        return ranges, {}
    keep = np.ones(len(ranges), bool)
    keep[gone] = False
    left = np.flatnonzero(keep)
    names, counts = np.unique(ranges.name[gone], return_counts=True)
    columns = {field.name: arena.take(getattr(ranges, field.name), left) for field in fields(ranges)}
    return trace.Ranges(**columns), dict(zip(names.tolist(), counts.tolist(), strict=True))


def _warnings(
    work: Work,
    ops: trace.Ops,
    launches: trace.Launches,
    ranges: int,
    recorded_twice: int,
    unread: Sequence[trace.Unread],
    no_work: str,
) -> tuple[str, ...]:
    out = [
        f"{table.table} lacks {' and '.join(table.lacks)}, so its {table.rows:,} rows cannot be read "
        "and are missing from all results"
        for table in unread
    ]
    out += work.warnings
    lost = {table.table for table in unread}
    if no_work and not lost & WORK.keys():
        out.append(no_work)
    if not ranges and NVTX not in lost:
        out.append("the report has no NVTX ranges: capture with --trace=cuda,nvtx and annotate the program")
    if len(ops) and not len(launches) and CALLS not in lost:
        out.append("the report has no CUDA calls for its GPU work: nothing can be attributed to ranges")
    backwards = int(np.count_nonzero(ops.end < ops.start))
    if backwards:
        out.append(f"{backwards:,} GPU ops end before their start; sums include these negative durations")
    if recorded_twice:
        out.append(
            f"{recorded_twice:,} host calls share a correlation id with a shorter call; only the shorter call counts"
        )
    return tuple(out)


def _last_error(source: Source) -> str:
    """The last line of stderr, which often says why a program ran nothing on a GPU."""
    line = last_error(source)
    return f"; {trace.STDERR}: {line}" * bool(line)


def _why_no_work(calls: HostCalls, unread: Sequence[trace.Unread]) -> str:
    """Explain why a report has no GPU ops; recorded launches prove that there was GPU work nevertheless."""
    if any(table.table in WORK for table in unread):
        return "the report has no readable GPU work"
    launched, moved, failed = count_launches(calls)
    counts = ((launched, "launch call"), (moved, "copy or memset call"))
    launches = join_words([plural(count, words) for count, words in counts if count])
    broken = [text for text, bad in zip(calls.names.texts, calls.names.failed, strict=True) if bad]
    if launches and broken:
        called = one_line(join_words(list(dict.fromkeys(broken))), 100)
        return (
            f"the report has {launches}, failed calls ({called}) and no GPU activity: the "
            "program may have crashed on the GPU (compute-sanitizer shows where)"
        )
    if launches:
        return (
            f"the report has {launches} but no GPU activity: nsys got no data from the driver "
            "(WSL2, no permission, or a killed run)"
        )
    if failed:
        return f"the report has no GPU work: all {failed:,} launch, copy and memset calls failed"
    if len(calls):
        return (
            "the report has no GPU work: CUDA was traced, but the program launched nothing while nsys recorded, or nsys"
            " lost the calls (WSL2, a killed run)"
        )
    return (
        "the report has no GPU work: nothing ran on a GPU, CUDA was not traced (--trace=cuda), or nsys got no data from"
        " the driver (WSL2, no permission)"
    )
