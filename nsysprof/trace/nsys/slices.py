"""Read columns of an SQLite table through sqlite3 with few Python objects, for tables that `pages` refuses.

One query turns 200,000 rows of each INTEGER column into one text (`group_concat`) that numpy parses: this takes
constant memory, and less than half the time of fetching rows. TEXT is fetched as bytes, row by row.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nsysprof.core.columns import Words
from nsysprof.trace.nsys.blocks import Block, Wanted

_SLICE_ROWS = 200_000
_BATCH_ROWS = 10_000
_MEBIBYTE = 1 << 20
_STEPS = 50_000_000  # of SQLite's machine, some seconds; and for each byte of the file
_STEPS_OF_BYTE = 100
_ROWS_OF_BYTE = 16  # bytes of rows that a query may give for each of the file, and 64 MiB
_NULL = b"n"  # what a NULL is in the text of a slice


def quoted(name: str) -> str:
    """Quote a table or column name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def integer(name: str) -> str:
    """Return SQL for the integer value of a column of the table `t`: Reals are truncated, and so are numbers stored as
    text, as in tables converted from CSV. Other text and blobs become NULL.
    """
    column = f"t.{quoted(name)}"
    number = f"{column} GLOB '*[0-9]*' AND {column} NOT GLOB '*[^0-9.-]*'"
    return (
        f"CASE typeof({column}) WHEN 'integer' THEN {column} WHEN 'real' THEN CAST({column} AS INTEGER)"
        f" WHEN 'text' THEN CASE WHEN {number} THEN CAST({column} AS INTEGER) END END"
    )


def text(name: str) -> str:
    """Return SQL for the text of a column of the table `t`: numbers become decimal text, blobs count as text."""
    return f"CAST(t.{quoted(name)} AS TEXT)"


def rowid_name(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> str | None:
    """Return the SQL name of a table's rowid, or None if there is no rowid."""
    taken = {column.lower() for column in columns}
    for name in ("rowid", "_rowid_", "oid"):
        if name not in taken:
            try:
                connection.execute(f"SELECT t.{name} FROM {quoted(table)} AS t LIMIT 0")
            except sqlite3.OperationalError:
                return None
            return name
    return None


def bound(connection: sqlite3.Connection) -> None:
    """Limit the cost of SQL inside the file, such as a recursive view; the limit grows with the length of the file.

    Above the limit, a query raises ``interrupted``, and a value raises ``string or blob too big``.
    """
    size, steps = _bytes_of(connection), 0

    def stop() -> bool:
        nonlocal steps
        steps += _MEBIBYTE
        return steps > _STEPS + _STEPS_OF_BYTE * size

    connection.set_progress_handler(stop, _MEBIBYTE)
    if hasattr(connection, "setlimit"):  # from Python 3.11 on
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(size, _MEBIBYTE), (1 << 31) - 1))


def _bytes_of(connection: sqlite3.Connection) -> int:
    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages) * int(size)


def batches(connection: sqlite3.Connection, query: str) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows of a query, a few thousand at a time, fewer if the texts are long.

    Raises sqlite3.DatabaseError if the texts are much longer than the file, which is possible for a view.
    """
    left, rows, held = _ROWS_OF_BYTE * _bytes_of(connection) + 64 * _MEBIBYTE, list[tuple[Any, ...]](), 0
    for row in connection.execute(query):
        held += 16 + sum(len(value) if isinstance(value, (bytes, str)) else 8 for value in row)
        rows.append(row)
        if held > left:
            raise sqlite3.DatabaseError("the rows of the table are much larger than the file")
        if len(rows) >= _BATCH_ROWS or held > 16 * _MEBIBYTE:
            yield rows
            left, rows, held = left - held, [], 0
    if rows:
        yield rows


def rows_by_id(
    connection: sqlite3.Connection, wanted: Wanted, rowid: str, rowids: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Return tuples (rowid, *ints, *texts) of the given rows; each value is an int, bytes or None."""
    columns = ", ".join([f"t.{rowid}", *map(integer, wanted.ints), *map(text, wanted.texts)])
    query = f"SELECT {columns} FROM {quoted(wanted.table)} AS t NOT INDEXED WHERE t.{rowid} = ?"
    return [row for at in rowids for row in connection.execute(query, (at,))]


def by_rowid(connection: sqlite3.Connection, wanted: Wanted, rowid: str, after: int | None) -> Iterator[Block]:
    """Yield the rows after rowid `after` (None: all), slice by slice.

    Raises sqlite3.DatabaseError if rows are missing or out of order, which means damage. The connection's text_factory
    must be bytes.
    """
    table, ints, texts, words = wanted
    source = f"FROM {quoted(table)} AS t NOT INDEXED"
    inner = ", ".join([f"t.{rowid} AS r", *(f"{integer(name)} AS c{k}" for k, name in enumerate(ints))])
    outer = ", ".join(["count(*)", "group_concat(r)", *(f"group_concat(ifnull(c{k}, 'n'))" for k in range(len(ints)))])
    strings = ", ".join(map(text, texts))
    done = 0
    while True:
        where = "" if after is None else f"WHERE t.{rowid} > {after}"
        query = f"SELECT {outer} FROM (SELECT {inner} {source} {where} ORDER BY t.{rowid} LIMIT {_SLICE_ROWS})"
        count, rowids, *columns = connection.execute(query).fetchone()
        if not count:
            return
        numbers, _ = _parse(rowids, count)
        if (numbers[1:] <= numbers[:-1]).any() or (after is not None and numbers[0] <= after):
            raise sqlite3.DatabaseError("rows are not in rowid order")
        values, nulls = {}, {}
        for name, column in zip(ints, columns, strict=True):
            values[name], null = _parse(column, count)
            if null is not None:
                nulls[name] = null
        if texts:
            span = f"WHERE t.{rowid} BETWEEN {numbers[0]} AND {numbers[-1]} ORDER BY t.{rowid}"
            rows = connection.execute(f"SELECT {strings} {source} {span}")
            codes = np.array([[_code(raw, words) for raw in row] for row in rows], np.int32)
            if len(codes) != count:
                raise sqlite3.DatabaseError("rows are not found by their rowid")
            values.update(zip(texts, np.ascontiguousarray(codes.T), strict=True))
        yield Block(count, values, nulls)
        done += count
        after = int(numbers[-1])


def by_batch(connection: sqlite3.Connection, wanted: Wanted) -> Iterator[Block]:
    """Yield the rows of a view, or of a table without rowid, in stored order."""
    table, ints, texts, words = wanted
    read = ", ".join([*map(integer, ints), *map(text, texts)]) or "NULL"
    for rows in batches(connection, f"SELECT {read} FROM {quoted(table)} AS t"):
        columns = list(zip(*rows, strict=True))
        values: dict[str, np.ndarray] = {}
        nulls: dict[str, np.ndarray] = {}
        for name, column in zip(ints, columns, strict=False):
            values[name] = np.array([value or 0 for value in column], np.int64)
            if None in column:
                nulls[name] = np.array([value is None for value in column], bool)
        for name, column in zip(texts, columns[len(ints) :], strict=False):
            values[name] = np.array([_code(raw, words) for raw in column], np.int32)
        yield Block(len(rows), values, nulls)


def _code(raw: bytes | None, words: Words) -> int:
    return -1 if raw is None else words.add(raw)


def _parse(listed: bytes, count: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The integers of a comma-separated list, and a mask of its NULLs (0) when it has any."""
    null = None
    if _NULL in listed:
        characters = np.frombuffer(listed, np.uint8)
        starts = np.append(0, np.flatnonzero(characters == ord(",")) + 1)
        null = characters[starts] == ord(_NULL)
        listed = listed.replace(_NULL, b"0")
    values = np.fromstring(listed, np.int64, sep=",")
    if len(values) != count:
        raise sqlite3.DatabaseError("a slice is not the requested one")
    return values, null
