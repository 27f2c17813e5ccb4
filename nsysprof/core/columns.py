"""Columns: small int32 codes for repeated values (`Coder` for ids, `Words` for texts), and tables of named columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arrays import AnyInts, Array, Index, Ints, Ints32, Mask

if TYPE_CHECKING:
    import pandas as pd


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_CODER_BITS = 16
_MOST_BITS = 20  # of a hash table's slots
_WORDS_BITS = 18
_MAX_BYTES = 128  # longer texts go through a dict: hashing them word by word no longer pays
# texts in the vectorised lookup; later ones go through the dict, so that memory stays bounded
_MAX_KNOWN = 1 << 16
_TAIL = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # keeps the first n bytes of a word
# One odd multiplier per 8-byte word of a text, so that equal words at other places count otherwise.
_FACTORS = [np.uint64((0x9E3779B97F4A7C15 * (2 * k + 1) | 1) % (1 << 64)) for k in range(_MAX_BYTES // 8 + 1)]


def first_appearances(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an int32 code for each value, numbered by first appearance, and the index at which each code first
    appears.

    The first row in each slot of a hash table stands for all rows with its value. Values that share a slot are sorted.
    """
    numbers, bits = np.arange(len(values), dtype=np.int32), min(len(values).bit_length() + 1, _MOST_BITS)
    if values.dtype.kind not in "iu":
        first, others = numbers.copy(), np.arange(len(values))
    else:
        slots = (values.astype(np.uint64) * _GOLDEN) >> np.uint64(64 - bits)
        table = np.empty(1 << bits, np.int32)
        table[slots[::-1]] = numbers[::-1]  # the last one stays
        first = table.take(slots.view(np.int64))
        others = np.flatnonzero(values.take(first) != values)
    rest = values[others]
    order = np.argsort(rest, kind="stable")
    begin = np.append(True, rest[order[1:]] != rest[order[:-1]])[: len(rest)]
    first[others[order]] = others[order[begin]].repeat(np.diff(np.append(np.flatnonzero(begin), len(rest))))
    found = first == numbers
    return (np.cumsum(found, dtype=np.int32) - np.int32(1)).take(first), np.flatnonzero(found)


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return well-distributed 64-bit hashes of small numbers (the finalizer of SplitMix64), without numpy.random."""
    with np.errstate(over="ignore"):
        values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def distinct(*columns: Array) -> tuple[Index, Index]:
    """Group equal integer rows; return the first row of each group, and the index of each row's group."""
    key, most = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        column = column.astype(np.int64)
        least = int(column.min(initial=-1))
        size = int(column.max(initial=-1)) - least + 1
        if most * size >= 1 << 62:
            key, most = _ranked(key)
        if most * size >= 1 << 62:
            (column, size), least = _ranked(column), 0
        key, most = key * size + (column - least), most * size
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    return first, place.reshape(-1)


def pick(values: Array, rows: AnyInts, missing: int | AnyInts = -1) -> Ints:
    """Return ``values[rows]`` of an integer column as int64; rows that are -1 or past the end get ``missing``."""
    out = np.full(len(rows), missing, np.int64)
    some = np.flatnonzero((rows >= 0) & (rows < len(values)))
    out[some] = values[rows[some]]
    return out


def _ranked(column: Ints) -> tuple[Ints, int]:
    """The ranks of values, equal ones for equal values, and how many there are."""
    rank = np.unique(column, return_inverse=True)[1].reshape(-1)
    return rank, int(rank.max(initial=0)) + 1


def sums(group: AnyInts, values: Array, count: int) -> Ints:
    """Sum the integers in each of ``count`` groups; ``group`` is the group of each value, -1 for the last group."""
    most = max(int(values.max(initial=0)), -int(values.min(initial=0)))
    if len(values) * most < 1 << 53 and group.min(initial=0) >= 0:  # exact in float64
        return np.bincount(group, values, count).astype(np.int64)
    out = np.zeros(count, np.int64)
    np.add.at(out, group, values)
    return out


def marked(rows: Any, count: int) -> Mask:
    """Return a mask of ``count`` rows that is True for ``rows``."""
    out = np.zeros(count, bool)
    out[rows] = True
    return out


def ranks(texts: Sequence[Any] | Array) -> Ints32:
    """Return the position that each value (such as a text) has in sorted order; equal values keep their order."""
    rank = np.empty(len(texts), np.int32)
    rank[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
    return rank


class Coder:
    """Distinct int64 values in order of first appearance, and their codes.

    A table with 2^16 slots finds the codes of nearly all values, in a few ns per row. New values, and values that share
    a slot, are found with `np.unique` and a dict.
    """

    def __init__(self) -> None:
        self._codes = np.zeros(1 << _CODER_BITS, np.int32)
        self._keys = np.zeros(1 << _CODER_BITS, np.int64)
        self._keys[0] = 1  # an empty slot holds a value that belongs to another slot: 0 belongs to slot 0
        self._known: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def values(self) -> np.ndarray:
        """The distinct values as int64; `values[code]` is the value of `code`."""
        return np.fromiter(self._known, np.int64, len(self._known))

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return the int32 code of each of `values` (int64); new values get the next codes."""
        values = np.ascontiguousarray(values, np.int64)
        slots = _slots(values)
        codes = self._codes.take(slots)
        missed = np.flatnonzero(self._keys.take(slots) != values)
        if missed.size:
            codes[missed] = self._learn(values[missed])
        return codes

    def _learn(self, values: np.ndarray) -> np.ndarray:
        distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        codes = np.empty(len(distinct), np.int32)
        for at in np.argsort(first).tolist():
            codes[at] = self._known.setdefault(int(distinct[at]), len(self._known))
        slots = _slots(distinct)
        free = _slots(self._keys[slots]) != slots
        self._keys[slots[free]] = distinct[free]
        # Two of `distinct` may want one slot: the key stored last won, and only its code may be stored.
        won = free & (self._keys[slots] == distinct)
        self._codes[slots[won]] = codes[won]
        return codes[inverse.reshape(-1)]


class RowCoder:
    """Codes for distinct rows of several int64 columns, as in `Coder`."""

    def __init__(self, columns: int) -> None:
        self._values = [Coder() for _ in range(columns)]
        # code of the row without its last value, code of that value
        self._rows = [Coder() for _ in range(columns)]

    def encode(self, *columns: np.ndarray) -> np.ndarray:
        """Return the int32 code of each row; new rows get the next codes."""
        code = np.zeros(min(len(columns[0]), 1), np.int64)  # a single one, as long as all rows are equal
        for values, rows, column in zip(self._values, self._rows, columns, strict=True):
            each = column[:1] if len(column) and (column == column[0]).all() else column
            code = rows.encode((code.astype(np.int64) << 32) | values.encode(each))
        return code if len(code) == len(columns[0]) else np.repeat(code, len(columns[0]))

    def rows(self) -> list[tuple[int, ...]]:
        """The row of each code."""
        code, columns = np.arange(len(self._rows[-1])), []
        for values, rows in zip(self._values[::-1], self._rows[::-1], strict=True):
            code, last = np.divmod(rows.values[code], 1 << 32)
            columns.append(values.values[last].tolist())
        return list(zip(*columns[::-1], strict=True))


def _slots(values: np.ndarray) -> np.ndarray:
    hashed = (values.view(np.uint64) * _GOLDEN) >> np.uint64(64 - _CODER_BITS)
    return np.asarray(hashed.view(np.int64))


class Words:
    """Distinct texts and their codes; `words[code]` is the text.

    Texts are stored and compared as bytes, so only equal bytes share a code; invalid UTF-8 is shown as replacement
    characters.
    """

    def __init__(self) -> None:
        self._codes: dict[bytes, int] = {}
        self._raw: list[bytes] = []
        self._table = np.full(1 << _WORDS_BITS, -1, np.int32)  # the last text of each slot
        self._lengths = np.full(256, -1, np.int64)  # by code; -1 where the table does not know the text
        self._columns: list[np.ndarray] = []  # k-th 8 bytes of these texts, by code

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, code: int) -> str:
        if code < 0:
            raise IndexError(code)  # -1 stands for NULL, which is no text
        return self._raw[code].decode("utf-8", "replace")

    def add(self, raw: bytes) -> int:
        """Return the code of a text; a new text gets the next code."""
        code = self._codes.setdefault(raw, len(self._raw))
        if code == len(self._raw):
            self._raw.append(raw)
        return code

    def encode(self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the int32 codes of the texts `data[start : start + length]`.

        `data` is uint8 and reaches at least 8 bytes beyond the end of the last text. The hash only suggests a code, so
        every text is compared with the text of its code.
        """
        short = np.flatnonzero(lengths <= _MAX_BYTES)
        if len(short) == len(lengths):
            return self._encode_short(data, starts, lengths)
        codes = np.empty(len(starts), np.int32)
        codes[short] = self._encode_short(data, starts[short], lengths[short])
        long = np.flatnonzero(lengths > _MAX_BYTES)
        codes[long] = self._add_all(data, starts[long], lengths[long])
        return codes

    def _add_all(self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> list[int]:
        raw = data.data
        ends = (starts + lengths).tolist()
        return [self.add(bytes(raw[at:end])) for at, end in zip(starts.tolist(), ends, strict=True)]

    def _encode_short(self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        # Longest first: the texts that have a k-th word are then the first so many rows.
        order = np.argsort((_MAX_BYTES - lengths).astype(np.uint8), kind="stable")
        starts, lengths = starts[order], lengths[order]
        columns = _columns(data, starts, lengths)
        hashes = lengths.view(np.uint64) * _FACTORS[-1]
        for column, factor in zip(columns, _FACTORS, strict=False):
            head = hashes[: len(column)]
            head += column * factor
            head ^= head >> np.uint64(29)
        slots = ((hashes * _GOLDEN) >> np.uint64(64 - _WORDS_BITS)).view(np.int64)
        codes = self._table.take(slots)
        same = self._lengths.take(np.maximum(codes, 0)) == lengths
        same &= codes >= 0
        # Texts of equal length have equally many words. One that the table does not know has failed above.
        for ours, known in zip(columns, self._columns, strict=False):
            rows = len(ours)
            same[:rows] &= known.take(np.maximum(codes[:rows], 0)) == ours
        wrong = np.flatnonzero(~same)
        if wrong.size:
            codes[wrong] = self._add_all(data, starts[wrong], lengths[wrong])
            self._remember(wrong[codes[wrong] < _MAX_KNOWN], codes, lengths, columns, slots)
        out = np.empty_like(codes)
        out[order] = codes
        return out

    def _remember(
        self, rows: np.ndarray, codes: np.ndarray, lengths: np.ndarray, columns: list[np.ndarray], slots: np.ndarray
    ) -> None:
        """Let the table propose the codes of these rows from now on."""
        while len(self._raw) > len(self._lengths) < _MAX_KNOWN:
            more = len(self._lengths)
            self._lengths = np.concatenate([self._lengths, np.full(more, -1, np.int64)])
            self._columns = [np.concatenate([known, np.zeros(more, np.uint64)]) for known in self._columns]
        self._columns += [np.zeros(len(self._lengths), np.uint64) for _ in columns[len(self._columns) :]]
        self._table[slots[rows]] = codes[rows]
        self._lengths[codes[rows]] = lengths[rows]
        for known, ours in zip(self._columns, columns, strict=False):
            there = rows[: np.searchsorted(rows, len(ours))]
            known[codes[there]] = ours[there]


def _columns(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Return the k-th 8 bytes of each text that has them, zero beyond its end; `lengths` must not increase."""
    every = np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))
    columns = []
    for k in range(-(-int(lengths[0]) // 8) if len(lengths) else 0):
        active = int(np.searchsorted(-lengths, -8 * k))
        column = every[starts[:active] + 8 * k]
        column &= _TAIL.take(np.minimum(lengths[:active] - 8 * k, 8))
        columns.append(column)
    return columns


def known(value: Any) -> Any:
    """Return a value for tables, CSV and JSON: None if it is missing or not a finite number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Rows = slice | AnyInts | Mask


@dataclass(frozen=True)
class Texts:
    """A column of texts: each row is an index into ``words``; -1 is the last word."""

    codes: AnyInts
    words: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Rows) -> Texts:
        return Texts(self.codes[rows], self.words)

    def tolist(self) -> list[str]:
        """The text of each row; rows with equal texts share one string."""
        words = self.words
        return [words[code] for code in self.codes.tolist()]

    def equal(self, text: str) -> Mask:
        """Return a mask of the rows with this text."""
        return np.array([word == text for word in self.words], bool)[self.codes]


Column = Array | Texts


@dataclass(frozen=True)
class ColumnTable:
    """Columns of equal length by name; ``keyed``: a code per row that determines the values of adjacent columns."""

    columns: Mapping[str, Column]
    keyed: Mapping[tuple[str, ...], AnyInts] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> Array:
        """Return a column of numbers."""
        column = self._column(name)
        assert not isinstance(column, Texts), name
        return column

    def texts(self, name: str) -> Texts:
        """A column of texts."""
        column = self._column(name)
        assert isinstance(column, Texts), name
        return column

    def _column(self, name: str) -> Column:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}: there is {', '.join(self.columns)}")
        return self.columns[name]

    def take(self, rows: Rows) -> ColumnTable:
        """The given rows, in this order."""
        keyed = {names: codes[rows] for names, codes in self.keyed.items()}
        return ColumnTable({name: column[rows] for name, column in self.columns.items()}, keyed)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as Python values, for the few rows that are shown."""
        for row in zip(*(column.tolist() for column in self.columns.values()), strict=True):
            yield dict(zip(self.columns, row, strict=True))

    def summed(self, keys: Sequence[str], added: Sequence[str]) -> ColumnTable:
        """Merge rows with equal keys, in order of first appearance; return the keys and the sums of other columns."""
        group, example = np.zeros(len(self), np.int64), np.zeros(0, np.intp)
        for name in keys:
            codes = codes_of(self.columns[name])
            group, example = first_appearances(group * (codes.max(initial=0) + 1) + codes)
        columns: dict[str, Column] = {name: self.columns[name][example] for name in keys}
        for name in added:
            columns[name] = sums(group, self[name], len(example))
        return ColumnTable(columns)

    def frame(self) -> pd.DataFrame:
        """Make a pandas DataFrame with a default index; texts have type object, and rows share their strings."""
        import pandas as pd  # noqa: PLC0415  takes a quarter of a second, and many answers need no frame

        arrays = {
            name: np.array([*column.words, None], object)[:-1][column.codes] if isinstance(column, Texts) else column
            for name, column in self.columns.items()
        }
        return pd.DataFrame(
            {name: pd.Series(values, dtype=values.dtype, copy=False) for name, values in arrays.items()}, copy=False
        )


def ranked(table: ColumnTable, keys: Sequence[str], added: str) -> list[tuple[Any, ...]]:
    """Return the sums of a column by ``keys``, as tuples of the keys and the sum. The largest sum is first; equal sums
    are sorted by keys.
    """
    summed = table.summed(keys, [added])
    rows = zip(*(summed.columns[name].tolist() for name in (*keys, added)), strict=True)
    return sorted(rows, key=lambda row: (-row[-1], row[:-1]))


def numbers(column: Column) -> Array:
    """The numbers of a column, or the codes of its texts."""
    return column.codes if isinstance(column, Texts) else column


def frame_of(table: str) -> cached_property[pd.DataFrame]:
    """Make a property that returns the table of this name, from the answer's ``columns``, as a pandas DataFrame."""
    made = cached_property(lambda answer: answer.columns(table).frame())
    made.__doc__ = f"Return the table ``{table}`` as a pandas DataFrame."
    return made


def codes_of(column: Column) -> Ints:
    """Return a non-negative code per row; codes are equal only if the values are equal."""
    if not isinstance(column, Texts):
        return first_appearances(column)[0].astype(np.int64)
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(word, len(known)) for word in column.words], np.int64)
    return codes[column.codes]


def stack_tables(tables: Sequence[ColumnTable]) -> ColumnTable:
    """Concatenate tables that have the same columns and the same ``words``."""
    if len(tables) == 1:
        return tables[0]
    return ColumnTable({name: _joined([table.columns[name] for table in tables]) for name in tables[0].columns})


def _joined(parts: Sequence[Column]) -> Column:
    texts = [part for part in parts if isinstance(part, Texts)]
    if not texts:
        return np.concatenate(parts)  # type: ignore[arg-type]
    return Texts(np.concatenate([part.codes for part in texts]), texts[0].words)
