"""Reads a Perfetto trace back with the protobuf library, packet by packet, as trace_processor would."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Slice:
    """One slice: its arguments by name, the flows that it is on, and how many slices of its track are around it."""

    name: str
    category: str
    start: int
    args: dict[str, str | int]
    flows: list[int]
    last_flows: list[int]
    depth: int
    around: Slice | None
    end: int = -1


@dataclass
class TraceTrack:
    """A track, with the slices or the values of a counter on it."""

    name: str
    parent: TraceTrack | None
    pid: int | None
    tid: int | None
    unit: str
    slices: list[Slice] = field(default_factory=list)
    values: list[tuple[int, int]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The names from the outermost track to this one."""
        return f"{self.parent.path}/{self.name}" if self.parent else self.name


@dataclass
class ReadTrace:
    """What a trace holds."""

    tracks: list[TraceTrack]
    about: dict[str, str | int]

    def slices(self, category: str) -> list[Slice]:
        """All slices of a category, in the order of the file."""
        return [each for track in self.tracks for each in track.slices if each.category == category]


class _Texts:
    """The texts that packets refer to."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], str] = {}

    def learn(self, data: Any) -> None:
        for kind, entries in ((kind.name, entries) for kind, entries in data.ListFields()):
            for entry in entries:
                text = entry.str.decode() if kind == "debug_annotation_string_values" else entry.name
                assert self._known.setdefault((kind, entry.iid), text) == text

    def __call__(self, kind: str, number: int) -> str:
        return self._known[kind, number]


def read_trace(path: Path) -> ReadTrace:
    """The tracks of a trace; asserts that its packets are in order and every slice ends inside the one around it."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    data = path.read_bytes()
    trace = protos.Trace.FromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    texts = _Texts()
    tracks: dict[int, TraceTrack] = {}
    about: dict[str, str | int] = {}
    open_slices: dict[int, list[Slice]] = {}
    now: dict[int, int] = {}
    for number, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id == 1
        assert packet.sequence_flags == (2 if number else 1)  # needs the state that the first packet resets
        if packet.HasField("interned_data"):
            texts.learn(packet.interned_data)
        if packet.HasField("trace_attributes"):
            for each in packet.trace_attributes.attribute:
                about[each.key] = getattr(each, each.WhichOneof("value"))
        if packet.HasField("track_descriptor"):
            found = packet.track_descriptor
            assert found.uuid not in tracks
            tracks[found.uuid] = _track(protos, found, tracks)
        if not packet.HasField("track_event"):
            continue
        event, track = packet.track_event, tracks[packet.track_event.track_uuid]
        stack = open_slices.setdefault(event.track_uuid, [])
        assert packet.timestamp >= now.get(event.track_uuid, 0)
        now[event.track_uuid] = packet.timestamp
        if event.type == protos.TrackEvent.TYPE_COUNTER:
            track.values.append((packet.timestamp, event.counter_value))
        elif event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
            track.slices.append(_slice(event, packet.timestamp, texts, stack))
            stack.append(track.slices[-1])
        else:
            assert event.type == protos.TrackEvent.TYPE_SLICE_END
            assert {kind.name for kind, _ in event.ListFields()} == {"type", "track_uuid"}
            stack.pop().end = packet.timestamp
    assert not any(open_slices.values())
    return ReadTrace(list(tracks.values()), about)


def _track(protos: Any, found: Any, tracks: dict[int, TraceTrack]) -> TraceTrack:
    parent = tracks[found.parent_uuid] if found.HasField("parent_uuid") else None
    pid, tid, name = None, None, found.name
    if found.HasField("process"):
        pid, name = found.process.pid, found.process.process_name
    if found.HasField("thread"):
        pid, tid, name = found.thread.pid, found.thread.tid, found.thread.thread_name
    unit = protos.CounterDescriptor.Unit.Name(found.counter.unit) if found.HasField("counter") else ""
    return TraceTrack(name, parent, pid, tid, unit)


def _slice(event: Any, start: int, texts: _Texts, stack: list[Slice]) -> Slice:
    args: dict[str, str | int] = {}
    for note in event.debug_annotations:
        key = texts("debug_annotation_names", note.name_iid)
        assert key not in args
        if note.HasField("string_value_iid"):
            args[key] = texts("debug_annotation_string_values", note.string_value_iid)
        else:
            assert note.HasField("int_value")
            args[key] = note.int_value
    [category] = event.category_iids
    return Slice(
        name=texts("event_names", event.name_iid),
        category=texts("event_categories", category),
        start=start,
        args=args,
        flows=list(event.flow_ids),
        last_flows=list(event.terminating_flow_ids),
        depth=len(stack),
        around=stack[-1] if stack else None,
    )
