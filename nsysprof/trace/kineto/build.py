"""Build a trace from events: threads, ranges, launches and GPU ops."""

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsysprof.core.arena import ColumnArena
from nsysprof.core.arrays import AnyInts, Array, Ints, Ints32, Mask
from nsysprof.core.columns import ranks
from nsysprof.core.nesting import crossing, enclosing
from nsysprof.core.text import join_words
from nsysprof.trace import trace
from nsysprof.trace.calls import launches_work, waits_for_gpu
from nsysprof.trace.details import CUDA_CALL, CallNames, HostCalls, RangeName
from nsysprof.trace.kineto.events import ANNOTATION, CALL, MODULE, OVERHEAD, Events, not_read

_ID = 1 << 24  # ids of processes and threads are below it
_COPY = re.compile(r"memcpy (\w+)(?: \((.*) -> (.*)\))?", re.IGNORECASE)
_SET = re.compile(r"memset(?: \((.*)\))?", re.IGNORECASE)
_STEP = re.compile(r"step\d+")
_COUNTED = "cuda_profiler_range"
_WHOLE_US = 1000  # how much an event may stick out of the one around it where times are cut to whole µs


@dataclass(frozen=True)
class Threads:
    """The threads of a trace: ``ids``: the globalTid of each code of `Events.threads`; ``lost`` bool: whether the
    thread is unknown; ``main``: the globalPid of the process with the most calls; ``names``, by globalTid.
    """

    ids: Ints
    lost: Mask
    main: int
    names: dict[int, str]


def threads_of(events: Events) -> Threads:
    """The `Threads` of a trace. Ids that are too large, or not numbers, are replaced by unused numbers."""
    keys: list[Any] = list(events.threads)
    kind, thread = events.host["kind"], events.host["thread"]
    weight = np.bincount(thread, 1 + 1000 * (kind == CALL), minlength=len(keys))
    votes: dict[int, float] = {}
    for (pid, _), count in zip(keys, weight.tolist(), strict=True):
        if isinstance(pid, int) and pid > 0:
            votes[pid] = votes.get(pid, 0) + count
    chosen = max(votes, key=lambda pid: (votes[pid], -pid)) if votes else 1
    pids = _numbers([pid for pid, _ in keys if isinstance(pid, int) and pid > 0] + [chosen])
    ids, lost = np.zeros(len(keys), np.int64), np.zeros(len(keys), bool)
    own: dict[Any, list[int]] = {pid: [] for pid, _ in keys}
    for pid, tid in keys:
        if isinstance(tid, int) and tid != 0:
            own[pid].append(tid)
    names, taken = {}, {pid: _numbers(tids) for pid, tids in own.items()}
    for code, (pid, tid) in enumerate(keys):
        number = taken[pid].get(tid, 0) if isinstance(tid, int) else 0
        ids[code] = pids.get(pid, pids[chosen]) * _ID + number
        lost[code] = number == 0 or pid not in pids
        name = events.labels.get(code, "")
        if number and number != tid:
            name = f"{name or 'thread'} {tid}"
        if name:
            names[int(ids[code])] = name
    return Threads(ids, lost, pids[chosen] * _ID, names)


def _numbers(ids: list[int]) -> dict[int, int]:
    """A 24-bit number for each id: the id itself if it fits."""
    out = {each: each for each in ids if 0 < each < _ID}
    taken = set(out)
    for each in sorted(set(ids) - taken):
        number = each % _ID or 1
        while number in taken:
            number = number % (_ID - 1) + 1
        taken.add(number)
        out[each] = number
    return out


def within_whole_us(events: Events) -> None:
    """Clip host events that end at most 1 µs after the enclosing event: PyTorch before 2024 truncated starts and
    durations to whole µs, which breaks nesting.
    """
    host = events.host
    nested = np.flatnonzero(host["kind"] != OVERHEAD)
    start, end = host["start"], host["end"]
    order = nested[np.lexsort((host["kind"][nested], -end[nested], start[nested], host["thread"][nested]))]
    around: list[int] = []  # the ends of what is open, negative: from the outermost, which ends last, to the innermost
    thread = -1
    ends = end[order].tolist()
    for place, (of, begin) in enumerate(zip(host["thread"][order].tolist(), start[order].tolist(), strict=True)):
        if of != thread:
            thread = of
            around.clear()
        while around and -around[-1] <= begin:
            around.pop()
        stop = ends[place]
        while (at := bisect.bisect_right(around, -stop)) < len(around) and stop + around[at] <= _WHOLE_US:
            stop = -around[at]
        ends[place] = stop
        del around[at:]  # it crosses those
        around.append(-stop)
    end[order] = ends


def build_trace(report: trace.Report, events: Events, threads: Threads, arena: ColumnArena) -> trace.Trace:
    """Build the `Trace` of a report, see `read_tables`; its clock reads 0 at the start of the first event."""
    host, gpu = events.host, events.gpu
    ids = threads.ids[host["thread"]]
    known = (host["kind"] != OVERHEAD) & ~((host["kind"] == MODULE) & threads.lost[host["thread"]])
    thread_ids = np.unique(ids[known])
    calls = np.flatnonzero(host["kind"] == CALL)
    caller, ambiguous = _callers(host, calls, ids[calls] & trace.PROCESS_OF_THREAD, gpu["correlation"])
    process = np.append(ids & trace.PROCESS_OF_THREAD, threads.main)[caller]
    processes = np.union1d(thread_ids & trace.PROCESS_OF_THREAD, process)
    place = np.searchsorted(processes, process)
    stream, streams, devices = _streams(events, place, {gpu.id: at for at, gpu in enumerate(report.about.gpus)})

    code = np.searchsorted(thread_ids, ids)
    texts, name = coded(events, host["name"][calls])
    name_of = np.zeros(len(ids), np.int32)
    name_of[calls] = name
    rows = np.unique(caller[caller >= 0])
    first = np.zeros(len(ids) + 1, np.int32)
    first[caller[::-1]] = np.arange(len(caller), dtype=np.int32)[::-1]  # the GPU ops of calls settle equal times
    rows = rows[np.lexsort((first[rows], host["end"][rows], host["start"][rows], code[rows]))]
    launch = np.full(len(ids) + 1, -1, np.int32)
    launch[rows] = np.arange(len(rows))
    ops, op_names, copies = _gpu_ops(
        events, stream, launch[caller], launches_graph(texts)[np.append(name_of, len(texts))[caller]]
    )
    ranges, range_names, crossed = _ranges(events, code)
    others = np.setdiff1d(calls, rows)
    columns = {"thread": code, "start": host["start"], "end": host["end"], "name": name_of}
    other_calls: dict[str, Any] = {each: arena.take(values, others) for each, values in columns.items()}
    return trace.Trace(
        report=report,
        ranges=ranges,
        launches=trace.Launches(**{each: arena.take(values, rows) for each, values in columns.items()}),
        ops=trace.Ops(**{each: arena.cast(values, values.dtype) for each, values in ops.items()}),
        range_names=range_names,
        op_names=op_names,
        threads=thread_ids,
        thread_process=np.searchsorted(processes, thread_ids & trace.PROCESS_OF_THREAD).astype(np.int32),
        processes=processes,
        devices=devices,
        streams=streams,
        copies=copies,
        session_end=max(events.last - events.first, 0),
        warnings=(*_warnings(events, len(ranges), len(rows), ambiguous, texts), *crossed),
        no_work="" if len(caller) else _why_no_work(events, texts),
        call_names=tuple(texts),
        arena=arena,
        other_calls=HostCalls(**other_calls, names=_call_names(texts), threads=thread_ids),
    )


def _callers(host: dict[str, Array], calls: Ints, process: Ints, correlation: Ints) -> tuple[Ints, int]:
    """For each GPU op, the host event that launched it (the shortest call with its correlation id; -1 for none); and
    the number of ops that have no launch because calls of several processes have the op's id.
    """
    link, start = host["link"][calls], host["start"][calls]
    order = np.lexsort((start, host["end"][calls] - start, process, link))
    order = order[link[order] > 0]
    new = np.append(True, (np.diff(link[order]) != 0) | (np.diff(process[order]) != 0))[: len(order)]
    order = order[new]
    out = np.full(len(correlation), -1)
    first, last = (np.searchsorted(link[order], correlation, side) for side in ("left", "right"))
    hit = (last == first + 1) & (correlation > 0)
    out[hit] = calls[order[first[hit]]]
    return out, int(((last > first + 1) & (correlation > 0)).sum())


def _streams(
    events: Events, process: Ints, gpus: dict[int, int]
) -> tuple[Ints32, list[trace.Stream], list[trace.Device]]:
    place = events.gpu["place"].astype(np.int64)
    used, inverse = np.unique(process * max(len(events.places), 1) + place, return_inverse=True)
    where: list[Any] = list(events.places)
    keys = [(one, *where[at]) for one, at in (divmod(each, max(len(where), 1)) for each in used.tolist())]
    devices = sorted({key[:2] for key in keys})
    numbers = {device for _, device in devices}
    if len(gpus) == len(numbers) == 1:  # ROCm counts CPUs among the devices of ops, and not among the GPUs
        gpus = dict.fromkeys(numbers, *gpus.values())
    ordered = sorted(keys)
    places = {key: rank for rank, key in enumerate(ordered)}
    rank = np.array([places[key] for key in keys], np.int32)
    seen = {device: number for number, device in enumerate(devices)}
    return (
        rank[inverse.reshape(-1)],
        [trace.Stream(seen[one, device], None if number < 0 else number) for one, device, number in ordered],
        [trace.Device(one, device, gpus.get(device)) for one, device in devices],
    )


def coded(events: Events, codes: AnyInts) -> tuple[list[str], Ints32]:
    """Return the sorted names of codes, and the new codes."""
    used, inverse = np.unique(codes, return_inverse=True)
    names: list[Any] = list(events.names)
    texts = [names[code] for code in used.tolist()]
    return sorted(texts), ranks(texts)[inverse.reshape(-1)]


def launches_graph(texts: list[str]) -> Mask:
    """Mark the names of calls that launch a CUDA graph; the last entry is for ops without a call."""
    return np.array(["GraphLaunch" in text for text in texts] + [False], bool)


def _call_names(texts: list[str]) -> CallNames:
    waits = np.array([waits_for_gpu(text) for text in texts], bool)
    return CallNames(texts, np.full(len(texts), CUDA_CALL, np.uint8), waits, np.zeros(len(texts), np.int32))


def _gpu_ops(
    events: Events, stream: Ints32, launch: Ints32, by_graph: Mask
) -> tuple[dict[str, Array], list[str], trace.Copies]:
    gpu = events.gpu
    texts, name = coded(events, gpu["name"])
    kinds = np.zeros(len(texts), np.uint8)
    kinds[name] = gpu["kind"]
    called = [_op_name(text, kind) for text, kind in zip(texts, kinds.tolist(), strict=True)]
    names = sorted({text for text, *_ in called})
    codes = {text: code for code, text in enumerate(names)}
    recode = np.array([codes[text] for text, *_ in called], np.int32)
    memory = np.array([ends for _, *ends in called], np.uint8).reshape(-1, 2)
    copying = np.flatnonzero(gpu["kind"] != trace.KERNEL)
    ends = memory[name[copying]]
    ops = {
        "start": gpu["start"],
        "end": gpu["end"],
        "kind": gpu["kind"],
        "name": recode[name],
        "stream": stream,
        "launch": launch,
        "from_graph": gpu["node"] | by_graph,
    }
    return (ops, names, trace.Copies(gpu["size"][copying], ends[:, 0], ends[:, 1], np.zeros(len(copying), np.uint8)))


def _op_name(text: str, kind: int) -> tuple[str, int, int]:
    """The name of a GPU op as in nsys reports, and the kinds of memory between which it copies."""
    unknown = len(trace.MEMORY_KINDS) - 1
    if kind == trace.MEMCPY and (match := _COPY.fullmatch(text)):
        return f"memcpy {match[1]}", _memory_kind(match[2]), _memory_kind(match[3])
    if kind == trace.MEMSET and (match := _SET.fullmatch(text)):
        return "memset", unknown, _memory_kind(match[1])
    return text, unknown, unknown


def _memory_kind(text: str | None) -> int:
    text = (text or "").lower()
    return trace.MEMORY_KINDS.index(text) if text in trace.MEMORY_KINDS else len(trace.MEMORY_KINDS) - 1


def _ranges(events: Events, thread: Ints) -> tuple[trace.Ranges, list[RangeName], list[str]]:
    """Annotations as ranges, and a warning if some overlap on a thread without nesting."""
    host = events.host
    rows = np.flatnonzero(host["kind"] == ANNOTATION)
    texts, name = coded(events, host["name"][rows])
    order = np.lexsort((name, -host["end"][rows], host["start"][rows], thread[rows]))
    rows, name = rows[order], name[order]
    start, end = host["start"][rows], host["end"][rows]
    bounds = np.flatnonzero(np.diff(thread[rows])) + 1
    kind = np.full(len(rows), trace.PUSH_POP, np.uint8)
    steps = np.array([_STEP.fullmatch(text) is not None for text in texts], bool)[name]
    crossed = 0
    for part in np.split(np.arange(len(rows)), bounds):
        count = _crossed(start[part], end[part])
        if count and steps[part].any():  # of `capture --mark-steps`: they end where the optimizer does
            kind[part[steps[part]]] = trace.START_END
            part = part[~steps[part]]
            count = _crossed(start[part], end[part])
        crossed += count
    warnings = []
    if crossed:
        warnings.append(
            f"{crossed:,} of {len(rows):,} annotations partly overlap another annotation of the same "
            "thread; each counts as nested in the innermost annotation that fully contains it"
        )
    none = np.zeros(len(rows), bool)
    last = np.lexsort((kind == trace.START_END, thread[rows]))  # where they begin is in order already
    ranges = trace.Ranges(thread[rows][last], start[last], end[last], kind[last], name[last], none, none)
    return ranges, [RangeName(text, trace.DEFAULT_DOMAIN) for text in texts], warnings


def _crossed(start: Ints, end: Ints) -> int:
    """How many of a thread's ranges, in order, overlap another range without being inside it."""
    return int(crossing(start, end, enclosing(end)).sum()) if len(start) else 0


def _warnings(events: Events, ranges: int, launches: int, ambiguous: int, calls: list[str]) -> Iterator[str]:
    for fault, count in sorted(events.faults.items()):
        did = {"without a time": "are left out"}.get(fault, "count as 0 ns")
        did = "are attributed to thread 0 of the process with the most launches" if "process" in fault else did
        yield f"events {fault}: {count:,}; they {did}"
    others = not_read(events.seen)
    if others:
        listed = join_words([f"{category} ({count:,})" for category, count in sorted(others.items())])
        yield f"events of unsupported categories: {listed}"
    unsized = int(((events.gpu["kind"] != trace.KERNEL) & (events.gpu["size"] < 0)).sum())
    if unsized:
        yield f"copies and memsets without a recorded size, counted as 0 B: {unsized:,}"
    if not len(events.gpu["kind"]):
        yield _why_no_work(events, calls)
    elif not launches:
        yield "the trace has no CUDA calls that launched GPU work: nothing can be attributed to ranges"
    if not ranges:
        yield (
            "the trace has no annotations: add torch.profiler.record_function, or use --ranges modules or --ranges ops"
        )
    if ambiguous:
        yield (
            f"{ambiguous:,} GPU ops have a correlation id that occurs in several processes, so their launch is unknown"
        )
    if events.whole_us and len(events.gpu["kind"]):
        yield "times are truncated to whole µs, as in PyTorch before 2024: durations are accurate to 1 µs"


def _why_no_work(events: Events, calls: list[str]) -> str:
    other = [category for category in events.seen if category.startswith("mtia")]
    if other:
        return (
            f"the trace is from an MTIA device, whose work ({join_words(sorted(other))}) cannot be read; "
            "only the CPU part is analyzed"
        )
    if events.seen[_COUNTED]:
        return (
            f"the trace has no GPU work: the CUPTI range profiler recorded counters ({_COUNTED}) instead of times; "
            "record again without profiler_metrics in the experimental_config of torch.profiler"
        )
    launches = [name for name in calls if launches_work(name)]
    if launches:
        return (
            f"the trace has launches ({join_words(launches[:3])}) but no GPU work: CUPTI recorded no GPU activity "
            "(permissions, another profiler, or recording ended before the GPU work)"
        )
    return "the trace has no GPU work: torch.profiler recorded the CPU only (activities=[ProfilerActivity.CPU])"
