"""Read a report's tables from any file format: large tables block by block as columns, small tables row by row."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from nsysprof.core.arena import IN_MEMORY, ColumnArena, enough_space
from nsysprof.core.arrays import Array, Ints
from nsysprof.core.columns import Words
from nsysprof.core.parallel import in_threads
from nsysprof.trace.nsys.identify import fold
from nsysprof.trace.trace import Progress, Unread


class Block(NamedTuple):
    """Consecutive rows of one table.

    `values` maps an INTEGER column to int64 (0 for NULL), and a TEXT column to int32 codes into the `Words` of the call
    (-1 for NULL). `nulls` maps an INTEGER column to a bool mask; columns without NULLs in these rows are absent.
    """

    rows: int
    values: dict[str, np.ndarray]
    nulls: dict[str, np.ndarray]


class Wanted(NamedTuple):
    """The columns to read from a table, spelled as in the table: INTEGER, and TEXT as codes into ``words``."""

    table: str
    ints: tuple[str, ...]
    texts: tuple[str, ...]
    words: Words


class Source(Protocol):
    """Source of tables: SQLite pages, sqlite3, or Parquet files.

    Table and column names match in any letter case, as in SQL; results use the requested names. Raises `NsysprofError`
    if a table cannot be read, or if the file changes after its first read.
    """

    def columns(self, table: str) -> tuple[str, ...]:
        """The names of the table's columns; empty if there is no such table."""

    def tables(self, *, views: bool = True) -> tuple[str, ...]:
        """The names of all tables, and of views if ``views``."""

    def rows(self, table: str) -> int:
        """The number of rows; 0 if there is no such table."""

    def blocks(
        self, table: str, ints: Sequence[str], texts: Sequence[str] = (), words: Words | None = None
    ) -> Iterator[Block]:
        """Yield the named columns in file order, about 10,000 rows at a time."""

    def fetch(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the rows of a small table as Python values."""

    def strings(self, ids: Sequence[int]) -> dict[int, str]:
        """Return the values of ``StringIds`` for these ids."""


class Growing:
    """Named columns that grow by appended arrays, in scratch files if the arena has a limit."""

    def __init__(self, arena: ColumnArena = IN_MEMORY, **dtypes: str) -> None:
        self._arena = arena
        self._columns: dict[str, Array] = {name: np.empty(0, dtype) for name, dtype in dtypes.items()}
        self._files = {name: arena.file() for name in dtypes} if arena.limit is not None else {}
        self._rows = 0

    def add(self, rows: int, **values: Array | int) -> None:
        """Append ``rows`` rows: for each column an array, cast to the column's type, or one value for all rows."""
        stop = self._rows + rows
        for name, part in values.items():
            column = self._columns[name]
            if name in self._files:
                with enough_space(rows * column.itemsize):
                    self._files[name].write(np.full(rows, part, column.dtype).data)
                continue
            if len(column) < stop:  # twice as long: the pages behind the rows are not touched
                self._columns[name] = np.empty(max(stop, 2 * len(column)), column.dtype)
                self._columns[name][: self._rows] = column[: self._rows]
            self._columns[name][self._rows : stop] = part
        self._rows = stop

    def take(self, name: str) -> Array:
        """Remove and return a whole column."""
        column = self._columns.pop(name)
        if name in self._files:
            with self._files.pop(name) as file, enough_space():
                file.flush()
                return self._arena.mapped(file, self._rows, column.dtype)
        column.resize(self._rows, refcheck=False)
        return column

    def take_rest(self) -> dict[str, Array]:
        """Remove and return all remaining columns, by name."""
        return {name: self.take(name) for name in list(self._columns)}


class Rows(NamedTuple):
    """Columns of rows of some tables. ``values``: what the codes in a column stand for; ``notes``: lists of what else
    these rows say.
    """

    columns: dict[str, Array]
    values: dict[str, list[Any]]
    notes: tuple[list[Any], ...] = ()


def joined(parts: Sequence[Rows]) -> Rows:
    """Join the columns of all parts, which become empty; codes are in the order of their first appearance."""
    if len(parts) == 1:
        return parts[0]
    values = {name: dict[Any, int]() for name in parts[0].values}

    def join(name: str) -> Array:
        each, codes, stop = [part.columns.pop(name) for part in parts], values.get(name), 0
        dtype = each[0].dtype
        if codes is not None:
            new = [np.array([codes.setdefault(value, len(codes)) for value in part.values[name]]) for part in parts]
            dtype = np.result_type(*each, np.min_scalar_type(len(codes)))
        out = np.empty(sum(map(len, each)), dtype)
        for number, column in enumerate(each):
            here = out[stop : (stop := stop + len(column))]
            if codes is None:
                here[:] = column
            else:
                np.take(new[number].astype(dtype), column, out=here, mode="wrap")  # other modes copy
        return out

    names = list(parts[0].columns)
    columns = dict(zip(names, in_threads(*(partial(join, name) for name in names)), strict=True))
    notes = (list(chain(*lists)) for lists in zip(*(part.notes for part in parts), strict=True))
    return Rows(columns, {name: list(codes) for name, codes in values.items()}, tuple(notes))


def read_blocks(
    source: Source, table: str, needs: Sequence[str], others: Sequence[str] = (), progress: Progress | None = None
) -> Iterator[Block]:
    """Yield the integer columns ``needs`` of a table, and those columns of ``others`` that exist. If one of ``needs``
    is absent, nothing is yielded.

    After each block is used, ``progress`` receives its number of rows.
    """
    if has_all(source, table, needs):
        for block in source.blocks(table, [*needs, *present(source, table, others)]):
            yield block
            if progress:
                progress(f"reading {table.removeprefix('CUPTI_ACTIVITY_KIND_').lower()} rows", block.rows)


def present(source: Source, table: str, names: Sequence[str]) -> list[str]:
    """Return the requested columns that exist, in any letter case."""
    have = set(map(fold, source.columns(table)))
    return [name for name in names if fold(name) in have]


def has_all(source: Source, table: str, names: Sequence[str]) -> bool:
    """Return whether the table has all of the columns."""
    return len(present(source, table, names)) == len(names)


def unread_tables(source: Source, needs: Mapping[str, Sequence[str]]) -> tuple[Unread, ...]:
    """Return the tables that have rows but lack a required column."""
    return tuple(
        Unread(table, rows, tuple(lacking))
        for table, names in needs.items()
        if (lacking := [name for name in names if name not in present(source, table, names)])
        and (rows := source.rows(table))
    )


def column(block: Block, name: str, missing: int = 0) -> Ints:
    """Return an INTEGER column of the block, with ``missing`` for NULL or for a missing column."""
    values = block.values.get(name)
    if values is None:
        return np.full(block.rows, missing, np.int64)
    null = block.nulls.get(name)
    return values if null is None or missing == 0 else np.where(null, np.int64(missing), values)


def times(block: Block) -> tuple[Ints, Ints]:
    """Return the block's ``start`` and ``end``; if either is NULL, the other value is used for both (duration 0)."""
    start, end = column(block, "start"), column(block, "end")
    no_start, no_end = block.nulls.get("start"), block.nulls.get("end")
    if no_start is not None:
        start = np.where(no_start, end, start)
    return start, end if no_end is None else np.where(no_end, start, end)


def named_rows(source: Source, table: str, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the named columns of a table row by row, None for missing columns; empty if all are missing."""
    have = present(source, table, names)
    if have:
        for row in source.fetch(table, have):
            values = dict(zip(have, row, strict=True))
            yield tuple(map(values.get, names))


def named_values(source: Source, table: str, wanted: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a (name, value) table with a wanted name and a non-empty value."""
    for name, value in named_rows(source, table, "name", "value"):
        if isinstance(name, str) and wanted(name) and value not in (None, ""):
            yield name, str(value)


def whole(value: object) -> int | None:
    """Convert a value of any storage type to a 64-bit integer, or to None if that is impossible."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):  # a text of something else, a real that is no number or infinite
        return None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None


def known(value: object) -> str | None:
    """Return the value as text, or None for NULL, the empty text, and the 0 that nsys writes for unknown values."""
    text = "" if value is None else str(value).replace("\0", " ").strip()
    return None if text in ("", "0") else text
