"""Write a report as a Perfetto trace, for ui.perfetto.dev or trace_processor.

The trace is a stream of packets in one sequence: tracks first, then slices track by track; each text is sent once and
referenced by number. Times are in ns, as in the report.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from nsysprof.analyze.record_source import RecordSource
from nsysprof.analyze.records import OP_KINDS
from nsysprof.attribution.attribute import OUTCOMES, OWN_THREAD
from nsysprof.core.arrays import AnyInts, Index, Ints, Mask
from nsysprof.core.nesting import walk
from nsysprof.errors import NsysprofError
from nsysprof.export import perfetto_wire as wire
from nsysprof.export.tracks import Slices, Steps, Track, What, gpu_tracks, host_tracks
from nsysprof.kernels.classify import short_name
from nsysprof.trace.details import grid_text
from nsysprof.trace.trace import DEFAULT_DOMAIN, KERNEL
from nsysprof.why.instance import PathPieces

_SEQUENCE = 1
_AT_ONCE = 1 << 16  # packets
_LATEST_NS = 1 << 61  # no recording reaches a time like this

# The pieces of the slices at some positions of a track.
Content: TypeAlias = Callable[[Slices, AnyInts], list[wire.Pieces]]


def perfetto_protos() -> Any:
    """Import the trace messages from the package ``perfetto``; raises `NsysprofError` if it is not installed."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2  # noqa: PLC0415 (an extra)
    except ImportError:
        raise NsysprofError(
            "writing a Perfetto trace needs the package perfetto, which is not installed",
            "pip install 'nsysprof[perfetto]'",
        ) from None
    return perfetto_trace_pb2


class Writable(Protocol):
    """A binary file, or a compressing wrapper."""

    def write(self, data: bytes, /) -> object:
        """Append bytes."""


def write_perfetto(source: RecordSource, file: Writable) -> None:
    """Write the trace of a report, packet by packet: memory holds the columns of the report, never the whole trace."""
    protos = perfetto_protos()
    # launches stand before the ops that they point to, should both be at one time
    tracks = host_tracks(source)
    tracks += gpu_tracks(source, len(tracks))
    writer = _Packets(protos, file, _offset(tracks))
    writer.begin(source, tracks)
    content = _slice_content(protos, source, writer.texts)
    for number, track in enumerate(tracks, 1):
        if isinstance(track.content, Slices):
            writer.slices(number, track.content, content[track.content.what])
        elif isinstance(track.content, Steps):
            writer.steps(number, track.content)


def _offset(tracks: Sequence[Track]) -> int:
    """Find the time to add to all: trace_processor drops what lies before 0."""
    earliest = [0]
    for track in tracks:
        if track.content is not None:
            times = track.content.start if isinstance(track.content, Slices) else track.content.time
            earliest.append(max(int(times.min()), -_LATEST_NS))
    return -min(earliest)


class _Packets:
    """The stream of packets of a trace."""

    def __init__(self, protos: Any, file: Writable, offset: int) -> None:
        self._protos, self._file, self._offset = protos, file, offset
        self.texts = wire.TraceTexts(protos)
        named = protos.TracePacket.DESCRIPTOR.fields_by_name
        self._timestamp = wire.tag(named["timestamp"].number, wire.VARINT)
        self._event = wire.tag(named["track_event"].number, wire.BYTES)
        self._packet = wire.tag(protos.Trace.DESCRIPTOR.fields_by_name["packet"].number, wire.BYTES)
        self._same = {
            "trusted_packet_sequence_id": _SEQUENCE,
            "sequence_flags": protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
        }
        self._common = protos.TracePacket(**self._same).SerializeToString()
        self._value = wire.tag(protos.TrackEvent.DESCRIPTOR.fields_by_name["counter_value"].number, wire.VARINT)

    def _add(self, **what: Any) -> None:
        packet = self._protos.TracePacket(**{**self._same, **what})
        self._file.write(self._protos.Trace(packet=[packet]).SerializeToString())

    def begin(self, source: RecordSource, tracks: Sequence[Track]) -> None:
        """Write the trace's metadata and its tracks."""
        self._add(
            sequence_flags=self._protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED,
            trace_attributes=self._attributes(source),
        )
        for number, track in enumerate(tracks, 1):
            self._add(track_descriptor=self._descriptor(number, track))

    def _attributes(self, source: RecordSource) -> Any:
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
            kind = {"long_value": value} if isinstance(value, int) else {"string_value": wire.plain(value)}
            attributes.attribute.add(key=key, **kind)
        return attributes

    def _descriptor(self, number: int, track: Track) -> Any:
        """Describe a track: name and place. The ids 0 of process and thread mean something else to trace_processor."""
        protos, name = self._protos, wire.plain(track.name)
        descriptor = protos.TrackDescriptor(uuid=number)
        if track.parent is not None:
            descriptor.parent_uuid = track.parent + 1
        if track.pid and track.tid:
            descriptor.thread.pid, descriptor.thread.tid, descriptor.thread.thread_name = (track.pid, track.tid, name)
        elif track.pid and track.tid is None:
            descriptor.process.pid, descriptor.process.process_name = track.pid, name
        else:
            descriptor.name = name
        descriptor.child_ordering = protos.TrackDescriptor.EXPLICIT
        descriptor.sibling_order_rank = number
        if isinstance(track.content, Steps):
            unit = {"count": "UNIT_COUNT", "bytes": "UNIT_SIZE_BYTES"}.get(track.content.unit)
            if unit:
                descriptor.counter.unit = protos.CounterDescriptor.Unit.Value(unit)
            else:
                descriptor.counter.unit_name = track.content.unit
        return descriptor

    def slices(self, track: int, slices: Slices, content: Content) -> None:
        """Write the slices of a track: the start of each slice, with name and notes, and its end."""
        kinds = wire.pieces([self._kind(kind, track) for kind in ("TYPE_SLICE_BEGIN", "TYPE_SLICE_END")])
        order = walk(slices.up)
        for first in range(0, len(order), _AT_ONCE):
            part = order[first : first + _AT_ONCE]
            begins = np.flatnonzero(part >= 0)
            named = content(slices, part[begins])
            self.texts.send(self._add)
            ends = part < 0
            time = np.where(ends, slices.end[~part], slices.start[part])
            self._write(time, [kinds.take(ends.astype(np.intp)), *(each.spread(begins, len(part)) for each in named)])

    def steps(self, track: int, steps: Steps) -> None:
        """Write the values of a counter."""
        kind = self._kind("TYPE_COUNTER", track)
        for first in range(0, len(steps.time), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            time = steps.time[part]
            self._write(time, [wire.repeated(kind, len(time)), wire.numbers(steps.value[part], self._value)])

    def _kind(self, kind: str, track: int) -> bytes:
        return self._protos.TrackEvent(type=kind, track_uuid=track).SerializeToString()

    def _write(self, time: Ints, event: list[wire.Pieces]) -> None:
        """Write a packet for each time with an event that is made of pieces."""
        time = np.clip(time, -_LATEST_NS, _LATEST_NS) + self._offset
        size = np.sum([piece.size for piece in event], axis=0)
        head = [
            wire.repeated(self._common, len(time)), wire.numbers(time, self._timestamp), wire.numbers(size, self._event)
        ]  # fmt: skip
        whole = size + np.sum([piece.size for piece in head], axis=0)
        self._file.write(wire.joined([wire.numbers(whole, self._packet), *head, *event]).data.tobytes())


def _slice_content(protos: Any, source: RecordSource, texts: wire.TraceTexts) -> dict[What, Content]:
    """Prepare the content of slices by what they are. Every distinct half of an event is encoded here and once.

    A GPU op that a launch caused ends a flow that begins at the launch; the flow has the number of the op
    plus 1. Flows of the critical path have the numbers after these: a piece in which an op ran ends a flow that begins
    at the op, and another flow leads from the last piece before an op to the op.
    """
    fields = protos.TrackEvent.DESCRIPTOR.fields_by_name
    flow, last_flow = (wire.tag(fields[name].number, wire.FIXED) for name in ("flow_ids", "terminating_flow_ids"))
    ops = _ops(source, texts, flow, last_flow)
    content: dict[What, Content] = {"call": _calls(source, texts, flow), "range": _ranges(source, texts), "op": ops}
    if source.waits is not None:
        arrows = _arrows(source, source.waits, flow, last_flow)
        content["piece"] = _pieces(texts, source.waits, arrows)
        content["op"] = lambda slices, at: [*ops(slices, at), *arrows.of_ops(slices.row[at])]
    return content


def _some(some: wire.Pieces, which: Mask) -> wire.Pieces:
    """Spread pieces that only some rows have."""
    return some.spread(np.flatnonzero(which), len(which))


def _calls(source: RecordSource, texts: wire.TraceTexts, flow: bytes) -> Content:
    calls = source.calls
    names = wire.pieces([texts.named(name, "cuda") for name in calls.names])
    launch = np.full(len(calls) + 1, -1, np.int32)
    # what is not found goes into the last entry
    launch[source.call] = np.arange(len(source.call), dtype=np.int32)
    call = source.of_ops(source.call)
    ops = np.argsort(call, kind="stable")
    caused = np.bincount(call[call >= 0], minlength=len(calls))
    before = np.cumsum(caused) - caused + int((call < 0).sum())
    flows = wire.eights(ops + 1, flow)
    width = len(flow) + 8

    def content(slices: Slices, at: AnyInts) -> list[wire.Pieces]:
        row = slices.row[at]
        result, caused_by = calls.result[row], launch[row]
        failed, launched = result != 0, caused_by >= 0
        return [
            names.take(calls.name[row]),
            _some(texts.counted("launch", caused_by[launched]), launched),
            _some(texts.counted("result", result[failed]), failed),
            wire.Pieces(flows.data, before[row] * width, caused[row] * width),
        ]

    return content


def _ranges(source: RecordSource, texts: wire.TraceTexts) -> Content:
    trace, breakdown = source.trace, source.breakdown
    ranges, path = trace.ranges, breakdown.paths.of
    names = wire.pieces(
        [
            texts.named(name.text, "nvtx") + texts.noted(domain=name.domain if name.domain != DEFAULT_DOMAIN else "")
            for name in trace.range_names
        ]
    )
    paths = wire.pieces([texts.noted(path=text) for text in breakdown.path_texts])
    unclosed = wire.pieces([b"", texts.noted(unclosed="never closed: ends with the session")])

    def content(slices: Slices, at: AnyInts) -> list[wire.Pieces]:
        row = slices.row[at]
        return [
            names.take(ranges.name[row]),
            paths.take(path[row]),
            texts.counted("range", row),
            unclosed.take(ranges.unclosed[row].astype(np.intp)),
            *(texts.counted(name, values[at]) for name, values in slices.totals.items()),
        ]

    return content


def _ops(source: RecordSource, texts: wire.TraceTexts, flow: bytes, last_flow: bytes) -> Content:
    trace, calls, sizes = source.trace, source.calls, source.trace.copy_sizes()
    ops, fate = trace.ops, source.breakdown.attribution.op_outcome
    names = wire.pieces(_op_names(source, texts))
    shapes, shape = _op_shapes(source, texts)
    paths = wire.pieces([*(texts.noted(path=text) for text in source.breakdown.path_texts), b""])
    fates = wire.pieces([texts.noted(fate=text if code != OWN_THREAD else "") for code, text in enumerate(OUTCOMES)])
    path, call = source.of_ops(source.path), source.of_ops(source.call)
    called = np.append(calls.start, 0)[call]

    def content(slices: Slices, at: AnyInts) -> list[wire.Pieces]:
        row = slices.row[at]
        start, end, size, linked = ops.start[row], ops.end[row], sizes[row], call[row] >= 0
        # Arrows run forwards in time: an op before its launch cannot be the end of one.
        late = linked & (start >= called[row])
        early, backwards, sized = linked & ~late, end < start, size >= 0
        return [
            names.take(ops.name[row]),
            shapes.take(shape[row]),
            paths.take(path[row]),
            fates.take(fate[row]),
            texts.counted("op", row),
            _some(texts.counted("size_bytes", size[sized]), sized),
            _some(texts.counted("duration_ns", (end - start)[backwards]), backwards),
            _some(wire.eights(row[late] + 1, last_flow), late),
            _some(wire.eights(row[early] + 1, flow), early),
        ]

    return content


@dataclass(frozen=True)
class _Arrows:
    """The flows that begin and end at each op, and at each piece of the critical path; nothing where there is none."""

    begins: wire.Pieces
    ends: wire.Pieces
    piece_begins: wire.Pieces
    piece_ends: wire.Pieces

    def of_ops(self, rows: AnyInts) -> list[wire.Pieces]:
        """Return the flows that start at these ops, and the flows that end at these ops."""
        return [self.begins.take(rows), self.ends.take(rows)]


def _arrows(source: RecordSource, path: PathPieces, flow: bytes, last_flow: bytes) -> _Arrows:
    """Find the flows of the critical path: flow numbers of pieces follow the flow numbers of ops."""
    ops, waits, count = source.trace.ops, path.waits, len(path.wait)
    op = waits["op"][path.wait]
    ran = waits.texts("claim").equal("dependency")[path.wait]
    begun = np.append(ops.start, 0)[op]
    rows = np.arange(count)
    comes = rows[ran & (op >= 0) & (begun <= path.start)]
    comes = comes[np.argsort(op[comes], kind="stable")]
    goes = rows[~ran & (op >= 0) & (begun >= path.start)]
    goes = goes[np.lexsort((path.end[goes], op[goes]))]
    goes = goes[np.append(op[goes[1:]] != op[goes[:-1]], True)[: len(goes)]]
    number = len(ops) + 1 + rows
    each, width = wire.eights(number[comes], flow), len(flow) + 8
    caused = np.bincount(op[comes], minlength=len(ops))
    return _Arrows(
        wire.Pieces(each.data, (np.cumsum(caused) - caused) * width, caused * width),
        wire.eights(number[goes], last_flow).spread(op[goes], len(ops)),
        wire.eights(number[goes], flow).spread(goes, count),
        wire.eights(number[comes], last_flow).spread(comes, count),
    )


def _pieces(texts: wire.TraceTexts, path: PathPieces, arrows: _Arrows) -> Content:
    """The pieces of the critical path: named by their culprits, with their causes and claims."""
    claim = path.waits.texts("claim")
    both, place = np.unique(path.group * len(path.texts) + path.text, return_inverse=True)
    names = wire.pieces(
        [
            texts.named(path.texts[code % len(path.texts)] or path.groups[code // len(path.texts)], "wait")
            + texts.noted(cause=path.groups[code // len(path.texts)])
            for code in both.tolist()
        ]
    )
    claims = wire.pieces([texts.noted(claim=text) for text in claim.words])
    claimed = claim.codes[path.wait]

    def content(slices: Slices, at: AnyInts) -> list[wire.Pieces]:
        row = slices.row[at]
        begins, ends = arrows.piece_begins.take(row), arrows.piece_ends.take(row)
        return [names.take(place[row]), claims.take(claimed[row]), begins, ends]

    return content


def _op_names(source: RecordSource, texts: wire.TraceTexts) -> list[bytes]:
    """Encode what the name of an op decides: the short one, or where kernels share it the full one, and its family."""
    trace, kinds = source.trace, source.breakdown.kinds
    kind = np.zeros(len(trace.op_names), np.uint8)
    kind[trace.ops.name] = trace.ops.kind
    short = [
        short_name(name) if code == KERNEL else name for name, code in zip(trace.op_names, kind.tolist(), strict=True)
    ]
    shared = Counter(short)
    titles = [own if shared[own] == 1 else name for own, name in zip(short, trace.op_names, strict=True)]
    return [
        texts.named(title, OP_KINDS[code])
        + texts.noted(
            kernel=name if name != title else "", family=family, math_unit=unit, cause=cause if cause != family else ""
        )
        for title, name, code, family, unit, cause in zip(
            titles, trace.op_names, kind.tolist(), kinds.family, kinds.math_unit, kinds.cause, strict=True
        )
    ]


def _op_shapes(source: RecordSource, texts: wire.TraceTexts) -> tuple[wire.Pieces, Index]:
    """Encode the notes on each distinct grid and block, and find which of them each op has."""
    grid, of_grid = np.unique(source.details.grid, return_inverse=True)
    block, of_block = np.unique(source.details.block, return_inverse=True)
    both, shape = np.unique(of_grid * len(block) + of_block, return_inverse=True)
    notes = [
        texts.noted(grid=grid_text(grid[code // len(block)]), block=grid_text(block[code % len(block)]))
        for code in both.tolist()
    ]
    return wire.pieces(notes), shape
