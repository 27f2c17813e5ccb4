"""Read a report in an SQLite file: tables become blocks of columns, read by `pages`, or by sqlite3 if `pages` refuses.

The file is opened read-only, and nothing is written beside it. If there is a non-empty write-ahead log or journal,
temporary copies are read, because SQLite would otherwise write beside the file.
"""

import os
import re
import shlex
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nsysprof.core.columns import Words
from nsysprof.core.files import open_regular
from nsysprof.core.units import format_bytes
from nsysprof.errors import NsysprofError
from nsysprof.trace.nsys import pages, slices
from nsysprof.trace.nsys.blocks import Block, Wanted
from nsysprof.trace.nsys.identify import Stamp, changed, fold, message_of, stamp
from nsysprof.trace.nsys.records import Layout, RefusedError

_LOCK_TIMEOUT_S = 1.0  # for a program that holds a lock on the file
# What a write-ahead log and a journal begin with; anything else of their name is nothing to SQLite.
_LOGS = {"-wal": b"\x37\x7f\x06", "-journal": b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"}
_MAX_IDS = 500  # in one query: old versions of SQLite take 999
_MAX_VIEWS = 100  # each is searched for the names of all


@dataclass(frozen=True)
class _Table:
    name: str
    columns: tuple[str, ...]
    layout: Layout | None  # None for a view and a virtual table
    broken: str = ""  # why it cannot be read, as far as SQLite says so before a row is asked for


@dataclass(frozen=True)
class SqliteSource:
    """The tables of one SQLite file; see `Source`. Raises NsysprofError for a defective file.

    ``refused`` are the tables read through sqlite3 so far, with the reasons. ``part`` (number, count) is the part of
    the rows that `blocks` yields; see `parts`.
    """

    path: Path
    part: tuple[int, int] = (0, 1)
    refused: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def tables(self, *, views: bool = True) -> tuple[str, ...]:
        """Names of the tables, in order of creation; with ``views``, also names of views and virtual tables."""
        return tuple(found.name for found in self._tables.values() if views or found.layout)

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the names of the columns, () if there is no such table or view."""
        found = self._found(table)
        return found.columns if found else ()

    def rows(self, table: str) -> int:
        """Return the number of rows, 0 if there is no such table or view."""
        if self._found(table) is None:
            return 0
        with self._connection(table) as connection:
            return int(connection.execute(f"SELECT count(*) FROM {slices.quoted(table)}").fetchone()[0])

    def blocks(
        self, table: str, ints: Sequence[str], texts: Sequence[str] = (), words: Words | None = None
    ) -> Iterator[Block]:
        """Yield the columns in rowid order, 10,000 to 200,000 rows at a time; nothing for an absent table.

        `ints` become int64: reals and numbers stored as text are truncated; other text and blobs are NULL. `texts`
        become codes into `words`: numbers become decimal text, blobs count as text.
        """
        found = self._found(table)
        if found is None:
            return
        spelled = {fold(name): name for name in found.columns}
        stored = {name: spelled.get(fold(name), name) for name in (*ints, *texts)}
        theirs = tuple(stored[name] for name in ints), tuple(stored[name] for name in texts)
        for block in self._blocks(found, Wanted(table, *theirs, Words() if words is None else words)):
            if all(name == ours for ours, name in stored.items()):
                yield block
            else:
                values = {ours: block.values[name] for ours, name in stored.items()}
                nulls = {ours: block.nulls[name] for ours, name in stored.items() if name in block.nulls}
                yield Block(block.rows, values, nulls)

    def _blocks(self, found: _Table, wanted: Wanted) -> Iterator[Block]:
        table, rows, after = wanted.table, 0, None
        try:
            for block, last in self._by_pages(found.layout, wanted):
                rows, after = rows + block.rows, last
                self._check_unchanged()
                yield block
        except RefusedError as refused:
            if self.part[1] > 1:
                raise
            self.refused[table] = str(refused)
        else:
            return
        with self._connection(table, bytes) as connection:
            rowid = slices.rowid_name(connection, table, found.columns) if found.layout else None
            if rowid is None:
                yield from slices.by_batch(connection, wanted)
                return
            for block in slices.by_rowid(connection, wanted, rowid, after):
                rows += block.rows
                yield block
            count = f"SELECT count(*) FROM {slices.quoted(table)} NOT INDEXED"
            if connection.execute(count).fetchone()[0] != rows:
                raise sqlite3.DatabaseError("its rows are not in rowid order")

    def parts(self, count: int) -> list["SqliteSource"]:
        """Return sources whose `blocks` yield a part of a table each, or raise RefusedError."""
        out = [replace(self, part=(number, count)) for number in range(count)]
        for each in out:  # of the same state of the file
            vars(each).update(_tables=self._tables, _place=self._place)
        return out

    def fetch(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return all rows of a small table as Python values; bytes that are not UTF-8 become U+FFFD."""
        if self._found(table) is None:
            return []
        wanted = ", ".join(f"t.{slices.quoted(name)}" for name in columns)
        with self._connection(table) as connection:
            query = f"SELECT {wanted} FROM {slices.quoted(table)} AS t"
            return [row for rows in slices.batches(connection, query) for row in rows]

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of these ids in StringIds; unknown ids are left out."""
        wanted = sorted(needed := {int(at) for at in ids})
        table = self._found("StringIds")
        if table is None or not wanted:
            return {}
        layout = table.layout
        query = f"SELECT {slices.integer('id')}, {slices.text('value')} FROM StringIds AS t"
        found: list[tuple[int | None, str | None]] = []
        with self._connection("StringIds") as connection:
            if layout is not None and fold(layout.rowid or "") == "id":
                for at in range(0, len(wanted), _MAX_IDS):
                    some = wanted[at : at + _MAX_IDS]
                    found += connection.execute(f"{query} WHERE id IN ({','.join('?' * len(some))})", some)
            else:  # a copy without its key: one pass instead of one for each query
                for rows in slices.batches(connection, query):
                    found += [row for row in rows if row[0] in needed]
        return {at: value for at, value in found if at in needed and at is not None and value is not None}

    def _found(self, table: str) -> _Table | None:
        """The facts about a table, in any letter case of its name; None if there is no such table."""
        found = self._tables.get(fold(table))
        if found is not None and found.broken:
            what = f"{self.path}: {found.name} cannot be read ({found.broken})"
            query = f"SELECT count(*) FROM {slices.quoted(found.name)}"
            raise NsysprofError(what, f"sqlite3 {shlex.quote(str(self.path))} {shlex.quote(query)}")
        return found

    def _by_pages(self, layout: Layout | None, wanted: Wanted) -> Iterator[tuple[Block, int]]:
        table = wanted.table
        if layout is None:
            raise RefusedError("it is not a table of rows")
        if not {*wanted.ints, *wanted.texts} <= set(layout.fields):
            raise RefusedError("a required column is not stored in the rows")
        path, options, _ = self._place
        if options != "mode=ro":
            raise RefusedError("the database has a journal, or uses write-ahead logging")
        with ExitStack() as stack:
            connections: list[sqlite3.Connection] = []

            def patch(rowids: list[int]) -> list[tuple[Any, ...]]:
                if not connections:
                    connections.append(stack.enter_context(self._connection(table, bytes)))
                rowid = slices.rowid_name(connections[0], table, self.columns(table))
                if rowid is None:
                    raise RefusedError("it has no rowid")
                return slices.rows_by_id(connections[0], wanted, rowid, rowids)

            yield from pages.decode(path, layout, wanted, patch, self.part)

    @contextmanager
    def _connection(self, table: str | None, text_factory: Any = None) -> Iterator[sqlite3.Connection]:
        """A connection in one read transaction, so that several queries see the same file."""
        path, options, _ = self._place
        try:
            uri = f"{Path(path).as_uri()}?{options}"
            with closing(sqlite3.connect(uri, timeout=_LOCK_TIMEOUT_S, uri=True, isolation_level=None)) as connection:
                connection.text_factory = text_factory or _tolerant
                slices.bound(connection)
                connection.execute("BEGIN")
                yield connection
            self._check_unchanged()
        except (sqlite3.Error, MemoryError, UnicodeDecodeError) as error:
            # The last one: sqlite3 quotes damaged names in its messages, and Python cannot decode them.
            raise self._explained(table, error) from error

    def _check_unchanged(self) -> None:
        """Raise if the file changed since the first read: an answer would mix rows of two states."""
        path, options, seen = self._place
        try:
            same = options == "mode=rw" or seen is None or stamp(Path(path)) == seen
        except OSError:
            same = False
        if not same:
            raise changed(self.path)

    def _explained(self, table: str | None, error: BaseException) -> NsysprofError:
        self._check_unchanged()
        reason = message_of(error) or "out of memory"
        if "unable to open" in reason:
            return NsysprofError(f"{self.path} cannot be opened ({reason})")
        if "locked" in reason:
            return NsysprofError(f"{self.path} is being written by another program ({reason})")
        what = f"table {table}" if table else "the list of its tables"
        hint = f"sqlite3 {shlex.quote(str(self.path))} 'PRAGMA integrity_check'"
        return NsysprofError(f"{self.path} is damaged: {what} cannot be read ({reason})", hint)

    @cached_property
    def _place(self) -> tuple[str, str, Stamp | None]:
        """The file that is read, how SQLite is to open it, and the file's state now (None: there is no such file)."""
        path = os.path.realpath(self.path)
        beside = [Path(path + end) for end in _LOGS if os.path.lexists(path + end)]
        logs = [other for other in beside if self._is_log(other)]
        files = [Path(path), *logs]
        try:
            seen = [stamp(file) for file in files]
        except OSError:
            return path, "mode=ro", None  # SQLite says what is the matter
        if logs:
            copy = self._copied(files)
            if [stamp(file) for file in files] != seen:
                raise changed(self.path)
            return copy, "mode=rw", seen[0]
        # Otherwise SQLite makes an empty log and an index beside a file that was written with a log.
        return path, "immutable=1" if beside or _written_with_log(path) else "mode=ro", seen[0]

    def _is_log(self, path: Path) -> bool:
        """Whether SQLite would read this file beside the report, judged by its first bytes."""
        try:
            with open_regular(path) as file:
                return file.read(8).startswith(_LOGS[path.name[path.name.rindex("-") :]])
        except FileNotFoundError:  # a link to nothing
            return False
        except OSError as error:
            raise NsysprofError(
                f"{self.path} cannot be read with {path.name} beside it: {error.strerror}",
                f"move this file away if it belongs to another report: mv {shlex.quote(str(path))} FOLDER",
            ) from None

    def _copied(self, files: Sequence[Path]) -> str:
        """Copy the files into a temporary folder, and return the copy of the first file."""
        place = tempfile.gettempdir()
        size, free = sum(file.stat().st_size for file in files), shutil.disk_usage(place).free
        if size > free:
            raise NsysprofError(
                f"{self.path} must be copied together with {files[1].name}, but their size "
                f"({format_bytes(size)}) exceeds the free space in {place} ({format_bytes(free)})",
                "set TMPDIR=FOLDER",
            )
        folder = tempfile.mkdtemp(prefix="nsysprof-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for file in files:
            with open_regular(file) as source, Path(folder, file.name).open("wb") as copy:
                shutil.copyfileobj(source, copy)
        return str(Path(folder) / files[0].name)

    @cached_property
    def _tables(self) -> dict[str, _Table]:
        with self._connection(None) as connection:
            listed = connection.execute(
                "SELECT name, rootpage, CASE type WHEN 'view' THEN sql END FROM sqlite_master"
                " WHERE type NOT IN ('index', 'trigger') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
            ).fetchall()
            views = {name.lower() for name, _, sql in listed if sql}
            return {
                fold(name): _Table(name, (), None, "it is a view of views, or has a common table expression")
                if sql and _grows(sql.lower().replace('""', '"'), views - {name.lower()})
                else _table(connection, name, root)
                for name, root, sql in listed
            }


def _tolerant(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _written_with_log(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            return 2 in file.read(20)[18:20]
    except OSError:
        return False  # SQLite says what is the matter


def _grows(sql: str, views: set[str]) -> bool:
    """Whether SQLite may take forever to plan a view: reading another view twice doubles that view's planning time."""
    return len(views) > _MAX_VIEWS or "with" in re.findall(r"\w+", sql) or any(view in sql for view in views)


def _table(connection: sqlite3.Connection, name: str, root: Any) -> _Table:
    try:
        listed = connection.execute(
            "SELECT name, type, pk, hidden FROM pragma_table_xinfo(?) WHERE hidden <> 1", (name,)
        ).fetchall()
    except sqlite3.OperationalError as error:  # a view of something absent, a virtual table of an unknown kind
        return _Table(name, (), None, message_of(error))
    columns = tuple(row[0] for row in listed)
    if not columns and root:
        raise sqlite3.DatabaseError(f"no columns of {name!r}")
    if not root or not isinstance(root, int):  # a view, a virtual table, damage
        return _Table(name, columns, None)
    stored = tuple(column for column, _, _, hidden in listed if hidden != 2)  # 2: computed when read
    if len(listed) > len(stored) + 1:  # one that reads another one twice doubles what that takes
        return _Table(name, columns, None, "several columns are computed when read")
    keys = [(column, kind) for column, kind, key, _ in listed if key]
    rowid = None
    if len(keys) == 1 and keys[0][1].upper() == "INTEGER":
        # Such a column is the rowid, unless it has an index of its own (INTEGER PRIMARY KEY DESC).
        indexed = "SELECT count(*) FROM pragma_index_list(?) WHERE origin = 'pk'"
        if not connection.execute(indexed, (name,)).fetchone()[0]:
            rowid = keys[0][0]
    return _Table(name, columns, Layout(root, stored, rowid))
