"""Encode many packets of a Perfetto trace at once, by joining pieces that are already encoded.

The fields of a protobuf message can be in any order, so the parts of a message can be encoded separately and
concatenated. The protobuf library encodes every distinct part once, such as a kernel's name with its family. This
module joins these parts with the parts that differ in every packet: times, ids and lengths. Tests parse the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsysprof.core.arrays import AnyInts, Array, Bytes, Ints
from nsysprof.core.intervals import expand_ranges

# How a field is encoded: a number, eight bytes, or a length and so many bytes.
VARINT, FIXED, BYTES = range(3)
_LONGEST = 10  # bytes of a number
_SEVEN, _LOW = np.uint64(7), np.uint64(0x7F)
_TEXTS_AT_ONCE = 1000  # in a packet
_NAME, _CATEGORY, _KEY, _VALUE = (
    "event_names", "event_categories", "debug_annotation_names", "debug_annotation_string_values",
)  # fmt: skip


@dataclass(frozen=True)
class Pieces:
    """A piece of bytes per row: ``data[first : first + size]``, empty if the size is 0."""

    data: Bytes
    first: Ints
    size: Ints

    def take(self, rows: AnyInts | slice) -> Pieces:
        """Return the pieces of the given rows, without copying data."""
        return Pieces(self.data, self.first[rows], self.size[rows])

    def spread(self, rows: AnyInts, count: int) -> Pieces:
        """Return pieces for ``count`` rows: the given ``rows`` get these pieces, and all others get empty pieces."""
        first, size = np.zeros(count, np.int64), np.zeros(count, np.int64)
        first[rows], size[rows] = self.first, self.size
        return Pieces(self.data, first, size)


def pieces(parts: Sequence[bytes]) -> Pieces:
    """Collect encoded pieces."""
    size = np.array([len(part) for part in parts], np.int64)
    return Pieces(np.frombuffer(b"".join(parts), np.uint8), np.cumsum(size) - size, size)


def repeated(part: bytes, count: int) -> Pieces:
    """Repeat one piece for all rows."""
    return pieces([part]).take(np.zeros(count, np.int64))


def numbers(values: Array, before: bytes = b"") -> Pieces:
    """Encode 64-bit integers as protobuf varints, each preceded by the same bytes."""
    rest = values.astype(np.int64, copy=False).view(np.uint64)
    head, count = len(before), len(rest)
    out = np.empty((count, head + _LONGEST), np.uint8)
    out[:, :head] = np.frombuffer(before, np.uint8)
    size = np.full(count, head + 1)
    for place in range(head, head + _LONGEST):
        left = rest >> _SEVEN
        more = left > 0
        out[:, place] = (rest & _LOW).astype(np.uint8) | (more.astype(np.uint8) << 7)
        if not more.any():
            break
        size += more
        rest = left
    return Pieces(out.reshape(-1), np.arange(count) * (head + _LONGEST), size)


def eights(values: AnyInts, before: bytes) -> Pieces:
    """Encode numbers in eight bytes, each preceded by the same bytes."""
    width = len(before) + 8
    out = np.empty((len(values), width), np.uint8)
    out[:, : len(before)] = np.frombuffer(before, np.uint8)
    out[:, len(before) :] = values.astype("<i8").view(np.uint8).reshape(-1, 8)
    return Pieces(out.reshape(-1), np.arange(len(values)) * width, np.full(len(values), width))


def tag(number: int, kind: int) -> bytes:
    """Encode the tag of a field."""
    piece = numbers(np.array([number << 3 | kind]))
    return piece.data[: piece.size[0]].tobytes()


def joined(columns: Sequence[Pieces]) -> Pieces:
    """Concatenate the pieces of all columns, row by row."""
    base = np.cumsum([0, *(len(column.data) for column in columns)])
    first = np.stack([column.first + at for column, at in zip(columns, base, strict=False)], axis=1)
    size = np.stack([column.size for column in columns], axis=1)
    data = np.concatenate([column.data for column in columns])
    whole = size.sum(axis=1)
    return Pieces(data[expand_ranges(first.ravel(), size.ravel())], np.cumsum(whole) - whole, whole)


def fields(number: int, content: Pieces) -> Pieces:
    """Wrap each piece as a field: a message inside another."""
    return joined([numbers(content.size, tag(number, BYTES)), content])


class TraceTexts:
    """The texts of a trace, numbered by kind, and the fields of a TrackEvent that refer to them."""

    def __init__(self, protos: Any) -> None:
        self._protos = protos
        self._known: dict[tuple[str, str], int] = {}
        self._new: list[tuple[str, str, int]] = []
        self._notes = protos.TrackEvent.DESCRIPTOR.fields_by_name["debug_annotations"].number
        self._integer = tag(protos.DebugAnnotation.DESCRIPTOR.fields_by_name["int_value"].number, VARINT)

    def named(self, name: str, category: str) -> bytes:
        """Encode a slice's name and category."""
        numbered = self._number(_NAME, name), self._number(_CATEGORY, category)
        return bytes(self._protos.TrackEvent(name_iid=numbered[0], category_iids=[numbered[1]]).SerializeToString())

    def noted(self, **notes: str) -> bytes:
        """Encode a slice's notes (texts by name); empty notes are left out."""
        event = self._protos.TrackEvent()
        for key, text in notes.items():
            if text:
                event.debug_annotations.add(
                    name_iid=self._number(_KEY, key), string_value_iid=self._number(_VALUE, text)
                )
        return bytes(event.SerializeToString())

    def counted(self, key: str, values: AnyInts) -> Pieces:
        """Encode an integer note named ``key`` for each row."""
        note = self._protos.DebugAnnotation(name_iid=self._number(_KEY, key))
        return fields(self._notes, numbers(values, note.SerializeToString() + self._integer))

    def _number(self, kind: str, text: str) -> int:
        number = self._known.get((kind, text))
        if number is None:
            number = self._known[kind, text] = len(self._known) + 1
            self._new.append((kind, text, number))
        return number

    def send(self, add: Callable[..., None]) -> None:
        """Add packets with all texts that are new since the last call, before the packets that refer to these texts."""
        for first in range(0, len(self._new), _TEXTS_AT_ONCE):
            data = self._protos.InternedData()
            for kind, text, number in self._new[first : first + _TEXTS_AT_ONCE]:
                entry = getattr(data, kind).add(iid=number)
                if kind == _VALUE:
                    entry.str = plain(text).encode()
                else:
                    entry.name = plain(text)
            add(interned_data=data)
        self._new.clear()


def plain(text: str) -> str:
    """Replace each lone surrogate in a text by a question mark, because protobuf refuses surrogates."""
    return text.encode(errors="replace").decode()
