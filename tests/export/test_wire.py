"""Pieces of packets lined up with numpy are what the protobuf library writes and reads."""

from typing import Any

import numpy as np
import pytest

from nsysprof.export.perfetto_wire import (
    FIXED,
    VARINT,
    Pieces,
    TraceTexts,
    eights,
    fields,
    joined,
    numbers,
    pieces,
    repeated,
    tag,
)

protos: Any = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
# Around every number of seven bits more, and the ends of 64 bits.
EDGES = sorted({0, *(1 << bits for bits in range(0, 63, 7)), *((1 << bits) - 1 for bits in range(7, 64, 7))})


def each(found: Pieces) -> list[bytes]:
    """The piece of every row."""
    return [
        found.data[first : first + size].tobytes()
        for first, size in zip(found.first.tolist(), found.size.tolist(), strict=True)
    ]


def field(name: str) -> int:
    return protos.TrackEvent.DESCRIPTOR.fields_by_name[name].number


def test_numbers_are_encoded_as_the_library_does() -> None:
    """Every length of a number, negative ones too, byte by byte."""
    values = [*EDGES, (1 << 63) - 1, -1, -(1 << 63)]
    ours = each(numbers(np.array(values, np.int64), tag(field("counter_value"), VARINT)))
    assert ours == [protos.TrackEvent(counter_value=value).SerializeToString() for value in values]


def test_small_columns_are_numbers_too() -> None:
    """Columns of ids are int32, counts of any kind."""
    for kind in (np.int32, np.uint8, np.int64):
        assert each(numbers(np.array([5, 127], kind))) == [b"\x05", b"\x7f"]


def test_numbers_of_eight_bytes_are_encoded_as_the_library_does() -> None:
    """Flow ids have a fixed length."""
    ours = each(eights(np.array(EDGES, np.int64), tag(field("flow_ids"), FIXED)))
    assert ours == [protos.TrackEvent(flow_ids=[value]).SerializeToString() for value in EDGES]


def test_joined_pieces_stand_behind_each_other() -> None:
    """Row by row, and what only some rows have is missing in the others."""
    some = pieces([b"b", b"bb"]).spread(np.array([0, 2]), 3)
    whole = joined([repeated(b"a", 3), some, pieces([b"", b"cc", b"c"])])
    assert each(whole) == [b"ab", b"acc", b"abbc"]
    assert whole.data.tobytes() == b"abaccabbc"
    assert each(whole.take(np.array([2, 0]))) == [b"abbc", b"ab"]


def test_a_field_holds_a_message() -> None:
    """The length in front is that of the content, for short and for long ones."""
    texts = [b"", b"x", b"y" * 300]
    ours = each(fields(protos.TrackEvent.DESCRIPTOR.fields_by_name["categories"].number, pieces(texts)))
    assert ours == [protos.TrackEvent(categories=[text.decode()]).SerializeToString() for text in texts]


def test_no_rows_are_no_bytes() -> None:
    """A chunk in which no slice begins has nothing to say."""
    none = np.empty(0, np.int64)
    assert joined([numbers(none), eights(none, b"x"), pieces([]), repeated(b"a", 0)]).data.tobytes() == b""


def test_halves_of_an_event_are_an_event() -> None:
    """What the library encoded in parts, put together, it reads as one message."""
    texts = TraceTexts(protos)
    named, noted = texts.named("gemm", "kernel"), texts.noted(family="gemm", math_unit="", grid="8x8")
    counted = each(texts.counted("op", np.array([300])))[0]
    event = protos.TrackEvent.FromString(named + noted + counted)
    sent: list[Any] = []
    texts.send(lambda **what: sent.append(what["interned_data"]))
    [data] = sent
    keys = {entry.iid: entry.name for entry in data.debug_annotation_names}
    values = {entry.iid: entry.str for entry in data.debug_annotation_string_values}
    notes = {keys[note.name_iid]: note for note in event.debug_annotations}
    assert {entry.iid: entry.name for entry in data.event_names} == {event.name_iid: "gemm"}
    assert list(notes) == ["family", "grid", "op"]
    assert values[notes["grid"].string_value_iid] == b"8x8"
    assert notes["op"].int_value == 300
    texts.send(lambda **what: pytest.fail("sent twice"))


def test_texts_that_are_no_texts_are_sent() -> None:
    """Half a character, as a name can hold, becomes a question mark: the library refuses it."""
    texts, sent = TraceTexts(protos), []
    texts.named("a\ud800b", "nvtx")
    texts.noted(path="\udfff")
    texts.send(lambda **what: sent.append(what["interned_data"]))
    assert sent[0].event_names[0].name == "a?b"
    assert sent[0].debug_annotation_string_values[0].str == b"?"
