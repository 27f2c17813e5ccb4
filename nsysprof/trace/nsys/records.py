"""Decode SQLite records into columns: all rows of a block at once, field by field.

A record is a header (its length, and one serial type per field), followed by the values;
https://sqlite.org/fileformat2.html#record_format. A few rows with unusual records (overflow pages, missing fields, a
real number among integers) are fetched through `patch`. Positions are checked before their values are returned, so
damaged data is refused and never misread.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from nsysprof.trace.nsys.blocks import Block, Wanted

# Bytes behind the pages of a buffer: a cell's head and a read of 8 bytes may cross the end of the last page,
# and so may, before a broken record is found out, a type and 57 bytes for each field of one-byte type.
SPARE, SPARE_FOR_EACH_FIELD = 64, 1 + 57

# By serial type: bytes of the value; all ones where there is a value to read. Type 0 is NULL, 8 and 9 are the
# constants 0 and 1.
_SIZE = np.zeros(256, np.int64)
_SIZE[1:8] = 1, 2, 3, 4, 6, 8, 8
_SIZE[12:128] = np.arange(116) // 2
_SHIFT = np.minimum(64 - 8 * _SIZE[:12], 63)  # of 8 bytes, to leave the value of a serial type
_STORED = np.zeros(256, np.int64)
_STORED[1:7] = -1

# Returns a tuple (rowid, *ints, *texts) for each of some rowids: int or None, and bytes or None.
Patch = Callable[[list[int]], list[tuple[Any, ...]]]


class RefusedError(Exception):
    """The table cannot be decoded, for the reason in the message."""


class _OddRowsError(Exception):
    """Some rows are not plain, for the reason in the message."""

    def __init__(self, rows: np.ndarray, why: str) -> None:
        super().__init__(why)
        self.rows = rows


class Layout(NamedTuple):
    """The root page of a table and the fields of its records: names in stored order, and the rowid column."""

    root: int
    fields: tuple[str, ...]
    rowid: str | None  # NULL in the record

    def by_place(self, names: tuple[str, ...]) -> dict[int, str]:
        """Return the names that are fields of the record, by position."""
        return {at: name for at, name in enumerate(self.fields) if name in names and name != self.rowid}


class _Records(NamedTuple):
    """For each row: the positions of types, values and end of its record in the buffer; its rowid."""

    types: np.ndarray
    body: np.ndarray
    end: np.ndarray
    rowid: np.ndarray


class Found(NamedTuple):
    """The rows of a block, as far as they can be found without other blocks."""

    buffer: np.ndarray
    rowid: np.ndarray
    odd: np.ndarray  # which rows are not plain
    values: dict[str, np.ndarray]  # of the plain ones, as `nulls` and `texts`
    nulls: dict[str, np.ndarray]
    texts: list[tuple[str, np.ndarray, np.ndarray]]  # column, starts of the texts, their lengths (-1: NULL)


def find_rows(buffer: np.ndarray, cells: np.ndarray, size: int, wanted: Wanted, layout: Layout) -> Found:
    """Find the rows that start at the positions `cells` of `buffer`, in pages of `size`. Raises RefusedError."""
    records, odd = _find(buffer, cells, size)
    if (records.rowid[1:] <= records.rowid[:-1]).any():
        raise RefusedError("rowids do not increase")
    rows, why = len(cells), "records on overflow pages"
    while True:
        if np.count_nonzero(odd) > max(16, rows // 64):
            raise RefusedError(why)
        plain = _Records(*(a[~odd] for a in records)) if odd.any() else records
        try:
            return Found(buffer, records.rowid, odd, *_fields(buffer, plain, wanted, layout))
        except _OddRowsError as error:
            odd[~odd] = error.rows
            why = str(error)


def as_block(found: Found, last: int | None, wanted: Wanted, patch: Patch) -> tuple[Block, int]:
    """Return the block (with codes for texts, and with patched rows) and its last rowid.

    `last` is the rowid before these rows: pass blocks in order. Raises RefusedError.
    """
    values, nulls, odd = found.values, found.nulls, found.odd
    if last is not None and found.rowid[0] <= last:
        raise RefusedError("rowids do not increase")
    for name, starts, lengths in found.texts:
        there = np.flatnonzero(lengths >= 0)
        values[name] = np.full(len(starts), -1, np.int32)
        values[name][there] = wanted.words.encode(found.buffer, starts[there], lengths[there])
    if odd.any():
        fetched = patch(found.rowid[odd].tolist())
        if len(fetched) != np.count_nonzero(odd):
            raise RefusedError("rows are not found by their rowid")
        _merge(values, nulls, odd, sorted(fetched, key=lambda row: row[0]), wanted)
    return Block(len(odd), values, nulls), int(found.rowid[-1])


def _find(buffer: np.ndarray, cells: np.ndarray, size: int) -> tuple[_Records, np.ndarray]:
    """The positions of records, and which records extend past their page (their positions are invalid)."""
    heads = _short_heads(buffer, cells)
    if heads is not None:
        payload, rowid, start, length = heads
        types = start + 1
    else:
        payload, at = _varint(buffer, cells)
        rowid, start = _varint(buffer, at)
        length, types = _varint(buffer, start)
    odd = (cells & (size - 1)) + (start - cells) + payload > size
    odd |= length > payload
    if heads is None:  # only here can a length be huge, or wrapped
        odd |= (payload > size - 35) | (payload < 0) | (length < 0)
    return _Records(types, start + length, start + payload, rowid), odd


def _short_heads(buffer: np.ndarray, cells: np.ndarray) -> tuple[np.ndarray, ...] | None:
    """Payload length, rowid, start and header length of each record, from the first 8 bytes of its cell.

    None if a length does not fit into one byte, or if rowids differ in their number of bytes.
    """
    _, after = _varint(buffer, cells[[0, -1]] + 1)
    wide = int(after[0] - cells[0]) - 1
    if wide > 6 or after[1] - cells[-1] - 1 != wide:
        return None
    head = _every(buffer)[cells].byteswap(True)
    flags = [0x80 << 8 * (7 - k) for k in range(wide + 2)]  # "more bytes follow", of each byte
    if ((head & np.uint64(sum(flags))) != np.uint64(sum(flags[1:wide]))).any():
        return None
    head = head.view(np.int64)
    rowid = (head >> 8 * (7 - wide)) & 127
    for k in range(1, wide):
        rowid |= (head >> (8 * (7 - wide + k) - 7 * k)) & (127 << 7 * k)
    return head >> 56, rowid, cells + (1 + wide), (head >> 8 * (6 - wide)) & 127


def _fields(
    buffer: np.ndarray, records: _Records, wanted: Wanted, layout: Layout
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[tuple[str, np.ndarray, np.ndarray]]]:
    """Walk all records at once up to the last wanted field: types in the header, values in the body.

    Returns ``values, nulls, texts`` of `Found`.
    """
    if not len(records.rowid):
        none = np.zeros(0, np.int64)
        return dict.fromkeys(wanted.ints, none), {}, [(name, none, none) for name in wanted.texts]
    ints, texts = layout.by_place(wanted.ints), layout.by_place(wanted.texts)
    values = {name: records.rowid for name in wanted.ints if name == layout.rowid}
    nulls: dict[str, np.ndarray] = {}
    spans: list[tuple[str, np.ndarray, np.ndarray]] = []  # texts become codes when all positions are checked
    body = records.body.copy()
    lag = 0  # bytes that all rows are to move on by before the next read
    for field, kind in _types(buffer, records, max((*ints, *texts), default=-1) + 1):
        size = _SIZE.take(kind & 127)
        if kind.dtype != np.uint8:
            size = np.where(kind < 12, size, (kind - 12) >> 1)
        if field in ints or field in texts:
            body += lag
            lag = 0
        if field in ints:
            _integers(ints[field], buffer, body, kind, size, values, nulls)
        elif field in texts:
            _require((kind == 0) | ((kind > 12) & (kind & 1 == 1)), f"{texts[field]} holds more than text")
            spans.append((texts[field], body.copy(), kind))
        if len(size) == 1:
            lag += int(size[0])
        else:
            body += size
        if kind.dtype != np.uint8:
            _require(body + lag <= records.end, "records that are too short")
    _require(body + lag <= records.end, "records that are too short")
    positions = [
        (name, starts, np.broadcast_to((kind.astype(np.int64) - 13) >> 1, starts.shape)) for name, starts, kind in spans
    ]
    return values, nulls, positions


def _types(buffer: np.ndarray, records: _Records, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (field, serial types) of the first `count` fields; only at the end is it certain that all rows have them.

    Types are uint8 (int64 if a type needs more than a byte): one for each row, or a single one for all rows. One gather
    reads eight fields; a wide type starts a new gather.
    """
    at, field, every = records.types, 0, _every(buffer)
    fewest = int((records.body - records.types).min())
    while field < count:
        run, wide = min(8, count - field), False
        if field + run > fewest:
            _require(at + run <= records.body, "records with fewer fields")
        eight = every[at]
        some, all_ = int(np.bitwise_or.reduce(eight)), int(np.bitwise_and.reduce(eight))
        kinds = eight.view(np.uint8).reshape(-1, 8)
        for k in range(run):
            byte = (some >> 8 * k) & 255
            if byte > 127:  # a value of more than 57 bytes somewhere: its type may need more than one byte
                kind, at = _varint(buffer, at + k)
                _require((at <= records.body) & (kind >= 0) & (kind < 2 * len(buffer)), "odd headers")
                wide = True
            elif byte == (all_ >> 8 * k) & 255:
                kind = kinds[:1, k]
            else:
                kind = np.ascontiguousarray(kinds[:, k])
            yield field, kind
            field += 1
            if wide:
                break
        else:
            at = at + run
    _require(at <= records.body, "records with fewer fields")


def _integers(
    name: str,
    buffer: np.ndarray,
    body: np.ndarray,
    kind: np.ndarray,
    size: np.ndarray,
    values: dict[str, np.ndarray],
    nulls: dict[str, np.ndarray],
) -> None:
    """Read values at `body`, of serial types `kind` and `size` bytes, into `values[name]`, NULLs into `nulls[name]`."""
    most, least = int(kind.max()), int(kind.min())
    if most >= 7:
        _require((kind < 7) | (kind == 8) | (kind == 9), f"{name} holds more than integers")
    if most == 0 or (least > 7 and least == most):  # NULL, or the same constant in all rows: nothing is stored
        values[name] = np.full(len(body), most == 9, np.int64)
        if most == 0:
            nulls[name] = np.ones(len(body), bool)
        return
    if (widest := size.max()) > 2:
        value = _every(buffer)[body].byteswap(True).view(np.int64)
        value >>= _SHIFT.take(kind)
    else:  # one gather of 8 bytes takes as long as seven of a byte
        value = buffer.view(np.int8).take(body).astype(np.int64)
        if widest > 1:
            value <<= 8
            value |= buffer.take(body + 1)
            value >>= _SHIFT.take(kind) & 15
    if least == 0 or most > 7:
        value &= _STORED.take(kind)
        value |= kind == 9
    values[name] = value
    if least == 0:
        nulls[name] = kind == 0


def _merge(
    values: dict[str, np.ndarray],
    nulls: dict[str, np.ndarray],
    odd: np.ndarray,
    fetched: list[tuple[Any, ...]],
    wanted: Wanted,
) -> None:
    """Put the fetched rows into the places that `odd` marks, between the decoded ones."""
    for at, name in enumerate((*wanted.ints, *wanted.texts), 1):
        column = [row[at] for row in fetched]
        whole = np.zeros(len(odd), values[name].dtype)
        whole[~odd] = values[name]
        if at > len(wanted.ints):
            whole[odd] = [-1 if raw is None else wanted.words.add(raw) for raw in column]
        else:
            whole[odd] = [value or 0 for value in column]
            null = np.zeros(len(odd), bool)
            null[~odd] = nulls.pop(name, False)
            null[odd] = [value is None for value in column]
            if null.any():
                nulls[name] = null
        values[name] = whole


def _require(plain: np.ndarray, why: str) -> None:
    if not plain.all():
        raise _OddRowsError(~plain, why)


def _every(buffer: np.ndarray) -> np.ndarray:
    """The 8 bytes at each position of `buffer`: one gather reads values of any size, aligned or not."""
    return np.ndarray((len(buffer) - 7,), "<u8", buffer=buffer, strides=(1,))


def _varint(buffer: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The variable-length integers at `at` (int64, of 1 to 9 bytes) and the positions behind them."""
    byte = buffer[at]
    value, after = (byte & 127).astype(np.int64), at + 1
    more = np.flatnonzero(byte > 127)
    for k in range(1, 9):
        if not more.size:
            break
        byte = buffer[after[more]]
        after[more] += 1
        if k < 8:
            value[more] = (value[more] << 7) | (byte & 127)
            more = more[byte > 127]
        else:  # the ninth byte is all value
            value[more] = (value[more] << 8) | byte
    return value, after
