"""Read dependencies between streams: recorded events, waits for events, and kinds of streams."""

from collections.abc import Callable

import numpy as np

from nsysprof.core.arrays import Ints, Ints32, Mask
from nsysprof.trace.details import Dependencies, StreamEvents
from nsysprof.trace.nsys.blocks import Growing, Source, column, named_rows, present, read_blocks, times
from nsysprof.trace.nsys.host_calls import CALLS
from nsysprof.trace.trace import Stream, Trace, pid_of

WAITS, RECORDS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_SYNC = ("eventSyncId",)  # which recording of an event; not before nsys 2024
_WAIT_EVENT = 2  # syncType of cudaStreamWaitEvent
_NO_ID = (-1, 0xFFFFFFFF)
_NEVER_RECORDED = 0  # eventSyncId of a wait for an event that nobody recorded
_BLOCKING, _NULL = 1, 3  # flags of a stream
_PROCESS = ~0xFFFFFF


def read_dependencies(source: Source, trace: Trace) -> Dependencies:
    """Read the `Dependencies` of the streams of a trace, empty if not recorded."""
    needs = ("globalPid", "deviceId", "streamId", "eventId")
    waited = _rows(source, WAITS, (*needs, "start", "syncType"), (*_SYNC, "contextId"))
    recorded = _rows(source, RECORDS, (*needs, "correlationId"), _SYNC)
    keep = (waited["syncType"] == _WAIT_EVENT) & ~np.isin(waited["eventId"], _NO_ID)
    if present(source, WAITS, _SYNC):
        keep &= waited["eventSyncId"] != _NEVER_RECORDED
    waited = {name: values[keep] for name, values in waited.items()}
    waited["deviceId"] = _device(source, waited)
    recorded["start"] = _called(source, recorded["globalPid"], recorded["correlationId"])
    known = recorded["start"] > np.iinfo(np.int64).min
    recorded = {name: values[known] for name, values in recorded.items()}
    together = all(present(source, table, _SYNC) for table in (WAITS, RECORDS))
    names = ("globalPid", "eventId", *(_SYNC if together else ()))
    both = [np.concatenate([recorded[name], waited[name]]) for name in names]
    event = np.unique(np.stack(both), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int32)
    count = len(recorded["start"])
    lane = _lanes(trace)
    null, blocking = _kinds(source, trace)
    return Dependencies(
        waits=_events(waited, event[count:], lane),
        records=_events(recorded, event[:count], lane),
        null=null,
        blocking=blocking,
        context=np.array([stream.device for stream in trace.streams], np.int32),
    )


def _rows(source: Source, table: str, needs: tuple[str, ...], others: tuple[str, ...]) -> dict[str, Ints]:
    """The columns of a table; missing ones of ``others`` are 0."""
    types = dict.fromkeys((*needs, *others), "i8")
    rows = Growing(**types)  # type: ignore[arg-type]
    for block in read_blocks(source, table, needs, others):
        rows.add(block.rows, **{name: column(block, name) for name in (*needs, *others)})
    return rows.take_rest()


def _contexts(source: Source) -> dict[tuple[object, object], int]:
    rows = named_rows(source, "TARGET_INFO_CUDA_CONTEXT_INFO", "processId", "contextId", "deviceId")
    return {(pid, context): device for pid, context, device in rows if isinstance(device, int)}


def _device(source: Source, waited: dict[str, Ints]) -> Ints:
    """The device of each wait, taken from its context: nsys 2025.3 writes 0 for waits on every device."""
    known = _contexts(source)
    keys = np.stack([waited[name] for name in ("globalPid", "contextId", "deviceId")])
    distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
    rows = zip(*distinct.tolist(), strict=True)
    device = [known.get((pid_of(pid), context), number) for pid, context, number in rows]
    return np.array(device, np.int64)[inverse.reshape(-1)]


def _called(source: Source, process: Ints, correlation: Ints) -> Ints:
    """The start of the host call with each process and correlation id (the shortest call if there are several); the
    smallest int64 if there is none.
    """
    out = np.full(len(process), np.iinfo(np.int64).min)
    known = np.flatnonzero(correlation != 0)
    if len(known) == 0:
        return out
    ids = np.unique(correlation[known])
    rows = Growing(process="i8", id="i8", start="i8", length="i8")
    for block in read_blocks(source, CALLS, ("start", "end", "globalTid", "correlationId")):
        called = column(block, "correlationId")
        mine = np.flatnonzero(np.isin(called, ids))
        owner = column(block, "globalTid")[mine] & _PROCESS
        start, end = (values[mine] for values in times(block))
        rows.add(len(mine), process=owner, id=called[mine], start=start, length=end - start)
    calls = rows.take_rest()
    order = np.lexsort((calls["start"], calls["length"], calls["id"], calls["process"]))
    keys = np.stack([calls["process"], calls["id"]])[:, order]
    first = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(order)]
    keys, start = keys[:, first], calls["start"][order[first]]
    for pid in np.unique(process[known]).tolist():
        asked = known[process[known] == pid]
        low, high = np.searchsorted(keys[0], [pid, pid + 1]).tolist()
        if low < high:
            at = np.minimum(low + np.searchsorted(keys[1, low:high], correlation[asked]), high - 1)
            hit = keys[1, at] == correlation[asked]
            out[asked[hit]] = start[at[hit]]
    return out


def _lanes(trace: Trace) -> Callable[[dict[str, Ints]], Ints32]:
    """A function that finds the code of the stream of each row; -1 for streams on which nothing ran."""
    codes = {
        (_process(trace, stream), trace.devices[stream.device].cuda_id, stream.id): code
        for code, stream in enumerate(trace.streams)
    }

    def find(rows: dict[str, Ints]) -> Ints32:
        keys = np.stack([rows["globalPid"], rows["deviceId"], rows["streamId"]])
        distinct, inverse = np.unique(keys, axis=1, return_inverse=True)
        extra = len(codes)
        found = np.empty(distinct.shape[1], np.int32)
        for number, key in enumerate(zip(*distinct.tolist(), strict=True)):
            found[number] = codes.setdefault(key, max(extra, len(codes)))
        return found[inverse.reshape(-1)]

    return find


def _process(trace: Trace, stream: Stream) -> int:
    return int(trace.processes[trace.devices[stream.device].process])


def _events(rows: dict[str, Ints], event: Ints32, lane: Callable[[dict[str, Ints]], Ints32]) -> StreamEvents:
    return StreamEvents(lane(rows), rows["start"], event)


def _kinds(source: Source, trace: Trace) -> tuple[Mask, Mask]:
    """Which streams are the legacy default stream of their context, and which wait for it.

    Stream numbers repeat across devices: a stream's context tells its device.
    """
    device = _contexts(source)
    flags: dict[tuple[object, ...], int] = {}
    rows = named_rows(source, "TARGET_INFO_CUDA_STREAM", "processId", "contextId", "streamId", "flag")
    for pid, context, stream, flag in rows:
        key = pid, device.get((pid, context)), stream
        flags[key] = max(flags.get(key, 0), flag if isinstance(flag, int) else 0)
    kind = []
    for stream in trace.streams:
        pid, number = pid_of(_process(trace, stream)), trace.devices[stream.device].cuda_id
        kind.append(flags.get((pid, number, stream.id), flags.get((pid, None, stream.id), 0)))
    return np.array([flag == _NULL for flag in kind], bool), np.array([flag == _BLOCKING for flag in kind], bool)
