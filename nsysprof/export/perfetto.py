"""Writes a report as a Perfetto trace, to be opened in ui.perfetto.dev or queried with trace_processor.

The trace is a stream of packets of one sequence: tracks first, then the slices of one track after the other, each
texts of which are sent once and referred to by number. Times are those of the report in ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.nesting import walk
from nsysprof.errors import NsysprofError
from nsysprof.export.gpu_tracks import gpu_tracks
from nsysprof.export.host_tracks import host_tracks
from nsysprof.export.perfetto_slices import Content, slice_content
from nsysprof.export.perfetto_texts import TraceTexts, plain
from nsysprof.export.perfetto_wire import BYTES, VARINT, Pieces, joined, numbers, pieces, repeated, tag
from nsysprof.export.source import ExportSource
from nsysprof.export.tracks import Slices, Steps, Track

_SEQUENCE = 1
_AT_ONCE = 1 << 16  # packets
_FAR = 1 << 61  # ns: no recording reaches a time like this


def perfetto_protos() -> Any:
    """The messages of a trace, from the package ``perfetto``; `NsysprofError` where it is not installed."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: PLC0415 (an extra)
    except ImportError:
        raise NsysprofError(
            "a Perfetto trace is written with the package perfetto, which is not installed",
            "pip install 'nsysprof[perfetto]'",
        ) from None
    return perfetto_trace_pb2


class Writable(Protocol):
    """A file of bytes, or one that compresses them."""

    def write(self, data: bytes, /) -> object:
        """Write bytes behind those before."""


def write_perfetto(source: ExportSource, file: Writable) -> None:
    """Write the trace of a report. Memory is that of columns, not of the trace."""
    protos = perfetto_protos()
    tracks = host_tracks(
        source
    )  # launches stand before the ops that they point to, should both be at one time
    tracks += gpu_tracks(source, len(tracks))
    writer = _Packets(protos, file, _offset(tracks))
    writer.begin(source, tracks)
    content = slice_content(protos, source, writer.texts)
    for number, track in enumerate(tracks, 1):
        if isinstance(track.content, Slices):
            writer.slices(number, track.content, content[track.content.what])
        elif isinstance(track.content, Steps):
            writer.steps(number, track.content)


def _offset(tracks: Sequence[Track]) -> int:
    """What is added to all times: trace_processor drops what lies before 0."""
    earliest = [0]
    for track in tracks:
        if track.content is not None:
            times = track.content.start if isinstance(track.content, Slices) else track.content.time
            earliest.append(max(int(times.min()), -_FAR))
    return -min(earliest)


class _Packets:
    """The stream of packets of a trace."""

    def __init__(self, protos: Any, file: Writable, offset: int) -> None:
        self._protos, self._file, self._offset = protos, file, offset
        self.texts = TraceTexts(protos)
        named = protos.TracePacket.DESCRIPTOR.fields_by_name
        self._timestamp = tag(named["timestamp"].number, VARINT)
        self._event = tag(named["track_event"].number, BYTES)
        self._packet = tag(protos.Trace.DESCRIPTOR.fields_by_name["packet"].number, BYTES)
        needs = protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        self._common = protos.TracePacket(
            trusted_packet_sequence_id=_SEQUENCE, sequence_flags=needs
        ).SerializeToString()
        self._value = tag(protos.TrackEvent.DESCRIPTOR.fields_by_name["counter_value"].number, VARINT)

    def _add(self, **what: Any) -> None:
        flags = self._protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        packet = self._protos.TracePacket(
            **{"trusted_packet_sequence_id": _SEQUENCE, "sequence_flags": flags, **what}
        )
        self._file.write(self._protos.Trace(packet=[packet]).SerializeToString())

    def begin(self, source: ExportSource, tracks: Sequence[Track]) -> None:
        """What the trace is of, and its tracks."""
        self._add(
            sequence_flags=self._protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED,
            trace_attributes=self._attributes(source),
        )
        for number, track in enumerate(tracks, 1):
            self._add(track_descriptor=self._descriptor(number, track))

    def _attributes(self, source: ExportSource) -> Any:
        breakdown, ledger = source.breakdown, source.breakdown.attribution.ledger
        about: dict[str, str | int] = {
            **source.about,
            "nsysprof.time_offset_ns": self._offset,
            **{f"nsysprof.analyze.ledger.{row.outcome}.ops": row.ops for row in ledger},
            **{f"nsysprof.analyze.ledger.{row.outcome}.sum_ns": row.sum_ns for row in ledger},
            **{f"nsysprof.warning.{n}": text for n, text in enumerate(breakdown.warnings, 1)},
        }
        attributes = self._protos.TraceAttributes()
        for key, value in about.items():
            kind = {"long_value": value} if isinstance(value, int) else {"string_value": plain(value)}
            attributes.attribute.add(key=key, **kind)
        return attributes

    def _descriptor(self, number: int, track: Track) -> Any:
        """A track with its name and place. The ids 0 of process and thread mean something else to trace_processor."""
        protos, name = self._protos, plain(track.name)
        descriptor = protos.TrackDescriptor(uuid=number)
        if track.parent is not None:
            descriptor.parent_uuid = track.parent + 1
        if track.pid and track.tid:
            descriptor.thread.pid, descriptor.thread.tid, descriptor.thread.thread_name = (
                track.pid,
                track.tid,
                name,
            )
        elif track.pid and track.tid is None:
            descriptor.process.pid, descriptor.process.process_name = track.pid, name
        else:
            descriptor.name = name
        descriptor.child_ordering = protos.TrackDescriptor.EXPLICIT
        descriptor.sibling_order_rank = number
        if isinstance(track.content, Steps):
            unit = {"count": "UNIT_COUNT", "bytes": "UNIT_SIZE_BYTES"}[track.content.unit]
            descriptor.counter.unit = protos.CounterDescriptor.Unit.Value(unit)
        return descriptor

    def slices(self, track: int, slices: Slices, content: Content) -> None:
        """The slices of a track: where each begins, with what it is, and where it ends."""
        kinds = pieces([self._kind(kind, track) for kind in ("TYPE_SLICE_BEGIN", "TYPE_SLICE_END")])
        order = walk(slices.up)
        for first in range(0, len(order), _AT_ONCE):
            part = order[first : first + _AT_ONCE]
            begins = np.flatnonzero(part >= 0)
            said = content(slices, part[begins])
            self.texts.send(self._add)
            ends = part < 0
            time = np.where(ends, slices.end[~part], slices.start[part])
            self._write(
                time, [kinds.take(ends.astype(np.intp)), *(each.spread(begins, len(part)) for each in said)]
            )

    def steps(self, track: int, steps: Steps) -> None:
        """The values of a counter."""
        kind = self._kind("TYPE_COUNTER", track)
        for first in range(0, len(steps.time), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            time = steps.time[part]
            self._write(time, [repeated(kind, len(time)), numbers(steps.value[part], self._value)])

    def _kind(self, kind: str, track: int) -> bytes:
        encoded: bytes = self._protos.TrackEvent(type=kind, track_uuid=track).SerializeToString()
        return encoded

    def _write(self, time: NDArray[np.int64], event: list[Pieces]) -> None:
        """A packet for each time with an event that is made of pieces."""
        time = np.clip(time, -_FAR, _FAR) + self._offset
        size = np.sum([piece.size for piece in event], axis=0)
        head = [
            repeated(self._common, len(time)), numbers(time, self._timestamp), numbers(size, self._event)
        ]  # fmt: skip
        whole = size + np.sum([piece.size for piece in head], axis=0)
        self._file.write(joined([numbers(whole, self._packet), *head, *event]).data.tobytes())
