"""Data of PyTorch profiler traces beyond ranges, launches and GPU ops."""

import re
from collections import Counter
from collections.abc import Collection
from typing import Any

import msgspec
import numpy as np

from nsysprof.core.arrays import Array, Ints
from nsysprof.trace import details
from nsysprof.trace.calls import activity_kind, outermost_calls
from nsysprof.trace.kineto.build import Threads, coded
from nsysprof.trace.kineto.events import CALL, MODULE, OPERATOR, OVERHEAD, WAIT, Codes, Events, whole
from nsysprof.trace.trace import MODULE as MODULE_RANGE
from nsysprof.trace.trace import OPERATOR as OPERATOR_RANGE
from nsysprof.trace.trace import Trace, pid_of

_RECORDED_BY = "torch.profiler with _ExperimentalConfig(enable_cuda_sync_events=True)"
_ON_DEVICE = "device"
_OBJECT = re.compile(r"<built-in (?:method|function) ([\w.]+)(?: of ([\w.]+))?.*")
# Of the overhead that Kineto records what is not the profiler's: the driver compiles, loads, or has no room in a queue.
_OF_DRIVER = re.compile(r"(?i).*(?:compiler|loading|command buffer)")
_PLACE = re.compile(r"(?:.*/)?([\w.]+)\(\d+\): (\w+)")


def read_op_details(events: Events) -> details.OpDetails:
    """Return the `OpDetails` of all GPU ops; shared memory is recorded as one sum."""
    gpu = events.gpu
    known = details.no_op_details(len(gpu["kind"]))
    return details.OpDetails(
        np.maximum(gpu["correlation"], 0),
        gpu["grid"],
        gpu["block"],
        gpu["registers"],
        known.static_shared,
        known.dynamic_shared,
        known.local_memory,
        gpu["shared"],
    )


def read_call_list(events: Events, threads: Threads) -> details.CallList:
    """All calls of CUDA or HIP."""
    rows = np.flatnonzero(events.host["kind"] == CALL)
    return _calls(events, rows, threads.ids[events.host["thread"][rows]])


def _calls(events: Events, rows: Ints, of: Ints) -> details.CallList:
    host = events.host
    ids, thread = np.unique(of, return_inverse=True)
    names, name = coded(events, host["name"][rows])
    thread = thread.reshape(-1)
    order = np.lexsort((name, -host["end"][rows], host["start"][rows], thread))
    rows = rows[order]
    correlation = np.where(host["kind"][rows] == CALL, np.maximum(host["link"][rows], 0), 0)
    return details.CallList(
        thread[order].astype(np.int32),
        host["start"][rows],
        host["end"][rows],
        name[order],
        correlation,
        np.zeros(len(rows), np.int64),
        names,
        ids,
    )


def read_host_activity(events: Events, threads: Threads) -> details.HostActivity:
    """Return CUDA or HIP calls, Python functions that wait (``with_stack=True``), and the profiler's own work (on all
    threads that it may have halted, if its thread is unknown).
    """
    host = events.host
    rows = np.flatnonzero(np.isin(host["kind"], (CALL, WAIT, OVERHEAD)))
    lost = threads.lost[host["thread"][rows]]
    nobodys, rows = rows[lost & (host["kind"][rows] == OVERHEAD)], rows[(host["kind"][rows] == CALL) | ~lost]
    halted, of = _halted(events, threads, nobodys)
    rows, of = np.append(rows, halted), np.append(threads.ids[host["thread"][rows]], of)
    calls = _calls(events, rows, of)
    of_name = np.zeros(len(calls.names), np.uint8)
    names, name = coded(events, host["name"][rows])
    kind_of = np.zeros(len(names), np.uint8)
    kind_of[name] = host["kind"][rows]
    for code, (text, kind) in enumerate(zip(names, kind_of.tolist(), strict=True)):
        overhead = details.CUDA if _OF_DRIVER.match(text) else details.PROFILER
        of_name[code] = {WAIT: details.OS, OVERHEAD: overhead}.get(kind, activity_kind(text))
    kinds = of_name[calls.name]
    kept = outermost_calls(calls.thread, calls.end, kinds)
    columns = {each: getattr(calls, each)[kept] for each in ("thread", "start", "end", "name", "correlation", "result")}
    return details.HostActivity(
        details.CallList(**columns, names=[_called(text) for text in names], threads=calls.threads), kinds[kept]
    )


def _halted(events: Events, threads: Threads, overhead: Ints) -> tuple[Ints, Ints]:
    """Rows of overhead without a recorded thread, once for each thread that it may have halted, and these threads.

    Such a thread calls CUDA in the trace's main process, and neither begins nor ends a call during the overhead.
    """
    host = events.host
    calls = np.flatnonzero(host["kind"] == CALL)
    of = threads.ids[host["thread"][calls]]
    rows, whose = [overhead[:0]], [overhead[:0]]
    for tid in np.unique(of[pid_of(of) == pid_of(threads.main)]).tolist():
        times = np.sort(np.concatenate([host[edge][calls[of == tid]] for edge in ("start", "end")]))
        inside = np.searchsorted(times, host["end"][overhead]) - np.searchsorted(
            times, host["start"][overhead], "right"
        )
        rows.append(overhead[inside == 0])
        whose.append(np.full(len(rows[-1]), tid))
    return np.concatenate(rows), np.concatenate(whose)


def _called(name: str) -> str:
    """The name of a Python function: ``acquire of _thread.lock``, ``dataloader.py __next__``."""
    if match := _OBJECT.fullmatch(name):
        return f"{match[1]} of {match[2]}" if match[2] else match[1]
    match = _PLACE.fullmatch(name)
    return f"{match[1]} {match[2]}" if match else name


_SOURCES = {"ops": (OPERATOR, OPERATOR_RANGE), "modules": (MODULE, MODULE_RANGE)}


def read_other_ranges(events: Events, threads: Threads, sources: Collection[str]) -> details.OtherRanges:
    """The ranges of ``sources``: ``ops`` (operators) and ``modules`` (calls of ``nn.Module``).

    A module call without a recorded thread gets the thread of the operators inside the call; ambiguous calls are left
    out and counted in a warning.
    """
    host = events.host
    parts, warnings = [], []
    for source in sorted(set(sources) & _SOURCES.keys()):
        kind, ours = _SOURCES[source]
        rows = np.flatnonzero(host["kind"] == kind)
        ids = threads.ids[host["thread"][rows]]
        if kind == MODULE:
            lost = np.flatnonzero(threads.lost[host["thread"][rows]])
            ids[lost] = _threads_of_modules(events, threads, rows[lost])
            left = int((ids[lost] < 0).sum())
            if left:
                warnings.append(f"{left:,} module calls are left out of the ranges, because their thread is unknown")
            rows, ids = rows[ids >= 0], ids[ids >= 0]
        parts.append((rows, ids, np.full(len(rows), ours, np.uint8)))
    if not parts:
        return details.NO_RANGES
    rows, ids, kinds = (np.concatenate(column) for column in zip(*parts, strict=True))
    names, name = coded(events, host["name"][rows])
    return details.OtherRanges(
        thread=ids,
        start=host["start"][rows],
        end=host["end"][rows],
        kind=kinds,
        name=name,
        names=[details.RangeName(text, "") for text in names],
        warnings=tuple(warnings),
    )


def _threads_of_modules(events: Events, threads: Threads, rows: Ints) -> Ints:
    """The globalTid for each module call: the thread whose operators are inside the call; -1 if no operators are
    inside, if they belong to several threads, or if some are only partly inside.
    """
    host = events.host
    out = np.full(len(rows), -1)
    count = np.zeros(len(rows), np.int64)
    begin, stop = host["start"][rows], host["end"][rows]
    operators = np.flatnonzero((host["kind"] == OPERATOR) & ~threads.lost[host["thread"]])
    for code in np.unique(host["thread"][operators]).tolist():
        own = operators[host["thread"][operators] == code]
        start, end = np.sort(host["start"][own]), np.sort(host["end"][own])
        begun = np.searchsorted(start, stop) - np.searchsorted(start, begin)
        ended = np.searchsorted(end, stop, "right") - np.searchsorted(end, begin, "right")
        open_before = np.searchsorted(start, begin) - np.searchsorted(end, begin, "right")
        open_after = np.searchsorted(start, stop) - np.searchsorted(end, stop, "right")
        inside = (begun > 0) & (begun == ended) & (open_before == open_after)
        out = np.where(inside, threads.ids[code], out)
        count += begun > 0
    return np.where(count == 1, out, -1)


def read_dependencies(events: Events, trace: Trace) -> details.Dependencies:
    """Return `Dependencies` of streams from `cuda_sync` events, which name the recorded event for which a stream waits.

    PyTorch 2.11 writes -1 as the event of a wait; these waits are only counted.
    """
    host = events.host
    calls = np.flatnonzero(host["kind"] == CALL)
    calls = calls[np.argsort(host["link"][calls], kind="stable")]
    link, called = host["link"][calls], host["start"][calls]
    lanes = {(trace.devices[each.device].cuda_id, each.id): code for code, each in enumerate(trace.streams)}
    rows: list[tuple[int, ...]] = []
    unnamed = 0
    for time, its in events.syncs:
        device, record = whole(its.device, 0), whole(its.wait_record)
        waits, of = ((device, whole(stream)) for stream in (its.stream, its.wait_stream))
        found = _at(link, called, record)
        if found is None:
            unnamed += 1
            continue
        time = _at(link, called, whole(its.correlation)) or time - events.first
        rows.append((lanes.setdefault(waits, len(lanes)), time, lanes.setdefault(of, len(lanes)), found, record))
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    event = np.unique(columns[4], return_inverse=True)[1].reshape(-1).astype(np.int32)
    order = np.unique(event, return_index=True)[1]
    unknown = np.zeros(len(trace.streams), bool)
    return details.Dependencies(
        waits=details.StreamEvents(columns[0].astype(np.int32), columns[1], event),
        records=details.StreamEvents(columns[2][order].astype(np.int32), columns[3][order], event[order]),
        null=unknown,
        blocking=unknown,
        context=np.array([stream.device for stream in trace.streams], np.int32),
        recorded_by=_RECORDED_BY,
        unnamed=unnamed,
    )


def _at(link: Ints, called: Ints, correlation: int) -> int | None:
    """The start of the call with this correlation id; None if there is no such call."""
    at = int(np.searchsorted(link, correlation))
    return int(called[at]) if correlation > 0 and at < len(link) and link[at] == correlation else None


def read_collectives(events: Events) -> details.Collectives:
    """Return the GPU ops whose collective is recorded, with communicators."""
    op = np.flatnonzero(events.gpu["collective"] >= 0)
    code = events.gpu["collective"][op]
    kinds, groups = Codes(), Codes()
    pairs = [(kinds[kind], groups[group]) for kind, group in map(_named, events.collectives)]
    kind, group = np.array([*pairs, (0, 0)], np.int32)[code].T
    texts = [text for text, _ in groups]
    return details.Collectives(
        op, kind, list(kinds), group, texts, [size for _, size in groups], events.gpu["message"][op]
    )


def _named(collective: tuple[str, ...]) -> tuple[str, tuple[str, int]]:
    """The kind of a collective; its communicator, as a text and with the number of ranks."""
    kind, name, about, listed, recorded = collective
    ranks = [int(rank) for rank in re.findall(r"\d{1,9}", listed)] if "..." not in listed else []
    size = len(ranks) or max(whole(recorded, 0), 0)
    if ranks and ranks == list(range(ranks[0], ranks[0] + size)):
        who = f"ranks {ranks[0]}-{ranks[-1]}" if size > 1 else f"rank {ranks[0]}"
    else:
        who = f"ranks {','.join(map(str, ranks))}" if ranks else f"{size} ranks" if size else "ranks not recorded"
    called = " ".join(filter(None, ("" if about == "undefined" else about, name and f"group {name}")))
    return kind, (f"{who} ({called})" if called else who, size)


def read_memory(events: Events, threads: Threads) -> details.MemoryEvents:
    """Return the GPU memory that PyTorch's allocator allocated and released, and its reserved memory as pools."""
    row = events.memory
    if not len(row["time"]):
        return details.NO_MEMORY
    tid = threads.ids[row["thread"]]
    order = np.lexsort((row["change"], row["time"], row["address"], row["device"], pid_of(tid)))
    process = tid & ~np.int64(0xFFFFFF)
    place = [values[order] for values in (row["address"], row["device"], process)]
    same = np.logical_and.reduce([values[1:] == values[:-1] for values in place])
    change = row["change"][order]
    until = np.where(change > 0, details.KEPT, row["time"][order])
    ends = np.flatnonzero(same & (change[:-1] > 0) & (change[1:] < 0))
    until[ends] = row["time"][order][ends + 1]
    known = change > 0
    known[ends + 1] = True  # what was allocated before the recording is not known, nor is its release
    held = order[known]
    pools = _pools(row, process)
    at = np.concatenate([held, pools[0]])
    kind = np.repeat([_ON_DEVICE, details.POOL], [len(held), len(pools[0])])
    change = np.concatenate([change[known], pools[1]])
    until = np.concatenate([until[known], row["time"][pools[0]]])
    uses = [
        (int(one), int(device), str(what))
        for one, device, what in zip(process[at], row["device"][at], kind, strict=True)
    ]
    listed = sorted(set(uses))
    code = {use: number for number, use in enumerate(listed)}
    use = np.array([code[each] for each in uses], np.int32)
    by_time = np.lexsort((use, change, row["time"][at]))
    at = at[by_time]
    time = row["time"][at]
    return details.MemoryEvents(tuple(listed), use[by_time], time, change[by_time], until[by_time], tid[at], time, time)


def _pools(row: dict[str, Array], process: Ints) -> tuple[Ints, Ints]:
    """The rows at which the reserved memory of a device changes, and by how much."""
    known = np.flatnonzero(row["reserved"] >= 0)
    order = known[np.lexsort((row["time"][known], row["device"][known], process[known]))]
    size = row["reserved"][order]
    change = np.diff(size, prepend=0)
    first = np.append(True, (np.diff(row["device"][order]) != 0) | (np.diff(process[order]) != 0))[: len(order)]
    change[first] = size[first]
    some = change != 0
    return order[some], change[some]


def read_operator_calls(events: Events, threads: Threads) -> details.OperatorCalls:
    """Return all operator calls, with shapes if recorded (``record_shapes=True``)."""
    host = events.host
    rows = np.flatnonzero(host["kind"] == OPERATOR)
    shapes = [(name, _list_of(dims), _list_of(types), _list_of(values)) for name, dims, types, values in events.shapes]
    start, end, shape = (host[each][rows] for each in ("start", "end", "shape"))
    return details.OperatorCalls(threads.ids[host["thread"][rows]], start, end, shape, shapes)


def _list_of(text: bytes) -> list[Any]:
    """The list in a text, empty if it is not a list."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def read_autograd(events: Events, threads: Threads) -> details.AutogradOps:
    """Return the operators with a sequence number; the trace's arrows show the forward thread of backward operators."""
    host, links = events.host, events.links
    rows = np.flatnonzero((host["kind"] == OPERATOR) & (host["link"] >= 0))
    tid, start, forward = threads.ids[host["thread"][rows]], host["start"][rows], host["forward"][rows]
    out = np.zeros(len(rows), np.int64)
    first, ends = links["begins"], ~links["begins"]
    begins = dict(zip(links["id"][first].tolist(), threads.ids[links["thread"][first]].tolist(), strict=True))
    place = zip(threads.ids[links["thread"][ends]].tolist(), links["time"][ends].tolist(), strict=True)
    arrows = {at: begins[row] for row, at in zip(links["id"][ends].tolist(), place, strict=True) if row in begins}
    votes: dict[int, Counter[int]] = {}
    for row in np.flatnonzero(forward > 0).tolist():
        known = arrows.get((int(tid[row]), int(start[row])))
        if known is not None:
            votes.setdefault(int(forward[row]), Counter())[known] += 1
    for number, counts in votes.items():
        out[forward == number] = counts.most_common(1)[0][0]
    return details.AutogradOps(tid, start, host["end"][rows], host["link"][rows], forward > 0, out)
