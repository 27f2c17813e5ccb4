"""Grows the columns of a table block by block, without holding a block longer than needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arena import IN_MEMORY, ColumnArena, enough_space
from nsysprof.core.columns import Words
from nsysprof.trace.nsys.block import Block
from nsysprof.trace.nsys.identify import fold
from nsysprof.trace.trace import Unread


class Source(Protocol):
    """What a report's tables are read from: SQLite pages, sqlite3, or Parquet files.

    Names of tables and columns are found in any letter case, as SQL does; rows come under the names asked for. A file
    that is changed or replaced after its first read is a `NsysprofError`, and so is a table that cannot be read.
    """

    def columns(self, table: str) -> tuple[str, ...]:
        """The names of the table's columns, empty where the table is absent."""

    def tables(self) -> tuple[str, ...]:
        """The names of all tables."""

    def rows(self, table: str) -> int:
        """How many rows the table has; 0 where it is absent."""

    def blocks(
        self, table: str, ints: Sequence[str], texts: Sequence[str] = (), words: Words | None = None
    ) -> Iterator[Block]:
        """The named columns, some 10,000 rows at a time, in the order of the file."""

    def fetch(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """The rows of a small table as Python values."""

    def strings(self, ids: Sequence[int]) -> dict[int, str]:
        """The values of ``StringIds`` for the ids that it holds."""


class Growing:
    """Named columns that grow by appended arrays, in place where the system can move pages instead of copying.

    Where the room has a limit they grow in scratch files, out of memory.
    """

    def __init__(self, arena: ColumnArena = IN_MEMORY, **dtypes: str) -> None:
        self._arena = arena
        self._columns: dict[str, NDArray[Any]] = {name: np.empty(0, dtype) for name, dtype in dtypes.items()}
        self._files = {name: arena.file() for name in dtypes} if arena.limit is not None else {}
        self._rows = 0

    def add(self, rows: int, **values: NDArray[Any] | int) -> None:
        """Append that many rows: for every column an array, cast to the column's type, or one value for all."""
        stop = self._rows + rows
        for name, part in values.items():
            mine = self._columns[name]
            if name in self._files:
                with enough_space(rows * mine.itemsize):
                    self._files[name].write(np.full(rows, part, mine.dtype).data)
                continue
            if len(mine) < stop:
                mine.resize(max(stop, len(mine) + len(mine) // 4), refcheck=False)
            mine[self._rows : stop] = part
        self._rows = stop

    def take(self, name: str) -> NDArray[Any]:
        """The whole column, which is given up here."""
        mine = self._columns.pop(name)
        if name in self._files:
            with self._files.pop(name) as file, enough_space():
                file.flush()
                return self._arena.mapped(file, self._rows, mine.dtype)
        mine.resize(self._rows, refcheck=False)
        return mine


def present(source: Source, table: str, names: Sequence[str]) -> list[str]:
    """Those of the columns that the table has, in whatever letter case."""
    have = set(map(fold, source.columns(table)))
    return [name for name in names if fold(name) in have]


def has_all(source: Source, table: str, names: Sequence[str]) -> bool:
    """Whether the table has all of the columns."""
    return len(present(source, table, names)) == len(names)


def unread_tables(source: Source, needs: Mapping[str, Sequence[str]]) -> tuple[Unread, ...]:
    """The tables that have rows but not all columns that they need."""
    found = []
    for table, names in needs.items():
        have = present(source, table, names)
        if len(have) < len(names) and (rows := source.rows(table)):
            found.append(Unread(table, rows, tuple(name for name in names if name not in have)))
    return tuple(found)


def column(block: Block, name: str, missing: int = 0) -> NDArray[np.int64]:
    """The block's INTEGER column, ``missing`` where it is NULL or where the table has no such column."""
    values = block.values.get(name)
    if values is None:
        return np.full(block.rows, missing, np.int64)
    null = block.nulls.get(name)
    return values if null is None or missing == 0 else np.where(null, np.int64(missing), values)


def times(block: Block) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The block's ``start`` and ``end``; where one is NULL it is the other, so that such a row takes no time."""
    start, end = column(block, "start"), column(block, "end")
    no_start, no_end = block.nulls.get("start"), block.nulls.get("end")
    if no_start is not None:
        start = np.where(no_start, end, start)
    return start, end if no_end is None else np.where(no_end, start, end)
