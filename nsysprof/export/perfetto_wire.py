"""Lines up many packets of a Perfetto trace at once, out of pieces that are encoded already.

A protobuf message is its fields one after the other in any order, and two halves of a message put behind each other are
that message. The protobuf library encodes every distinct half once, such as a kernel's name with its family. Here the
halves are put together, with what is different in every packet: times, ids and lengths. Tests parse it all back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import expand_ranges

VARINT, FIXED, BYTES = range(
    3
)  # how a field is encoded: a number, eight bytes, or a length and so many bytes
_LONGEST = 10  # bytes of a number
_SEVEN, _LOW = np.uint64(7), np.uint64(0x7F)


@dataclass(frozen=True)
class Pieces:
    """A piece of bytes for each row: ``data[first : first + size]``. Nothing, where the size is 0."""

    data: NDArray[np.uint8]
    first: NDArray[np.int64]
    size: NDArray[np.int64]

    def take(self, rows: NDArray[np.integer] | slice) -> Pieces:
        """The pieces of some rows; the data are shared."""
        return Pieces(self.data, self.first[rows], self.size[rows])

    def spread(self, rows: NDArray[np.integer], count: int) -> Pieces:
        """The same pieces at some of ``count`` rows, and nothing at the others."""
        first, size = np.zeros(count, np.int64), np.zeros(count, np.int64)
        first[rows], size[rows] = self.first, self.size
        return Pieces(self.data, first, size)


def pieces(parts: Sequence[bytes]) -> Pieces:
    """Pieces that are encoded."""
    size = np.array([len(part) for part in parts], np.int64)
    return Pieces(np.frombuffer(b"".join(parts), np.uint8), np.cumsum(size) - size, size)


def repeated(part: bytes, count: int) -> Pieces:
    """One piece for all rows."""
    return pieces([part]).take(np.zeros(count, np.int64))


def numbers(values: NDArray[Any], before: bytes = b"") -> Pieces:
    """Whole numbers of 64 bits as protobuf writes them, each behind the same bytes."""
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


def eights(values: NDArray[np.int64], before: bytes) -> Pieces:
    """Numbers in eight bytes, each behind the same bytes."""
    width = len(before) + 8
    out = np.empty((len(values), width), np.uint8)
    out[:, : len(before)] = np.frombuffer(before, np.uint8)
    out[:, len(before) :] = values.astype("<i8").view(np.uint8).reshape(-1, 8)
    return Pieces(out.reshape(-1), np.arange(len(values)) * width, np.full(len(values), width))


def tag(number: int, kind: int) -> bytes:
    """What stands before the content of a field with that number."""
    piece = numbers(np.array([number << 3 | kind]))
    return piece.data[: piece.size[0]].tobytes()


def joined(columns: Sequence[Pieces]) -> Pieces:
    """For each row its pieces of all columns, one behind the other."""
    base = np.cumsum([0, *(len(column.data) for column in columns)])
    first = np.stack([column.first + at for column, at in zip(columns, base, strict=False)], axis=1)
    size = np.stack([column.size for column in columns], axis=1)
    data = np.concatenate([column.data for column in columns])
    whole = size.sum(axis=1)
    return Pieces(data[expand_ranges(first.ravel(), size.ravel())], np.cumsum(whole) - whole, whole)


def fields(number: int, content: Pieces) -> Pieces:
    """Each piece as the content of a field: a message inside another."""
    return joined([numbers(content.size, tag(number, BYTES)), content])
