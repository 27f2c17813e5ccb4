"""Copy an SQLite report for inspection and rewriting; the report itself is only read.

Text is handled as UTF-8 bytes, regardless of the encoding of the file, and need not be valid.
"""

import gzip
import json
import os
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysprof.core.files import open_regular
from nsysprof.scrub.credentials import lines_without_credentials
from nsysprof.scrub.private_text import without_addresses, without_paths
from nsysprof.scrub.secrets import machine_secrets

Key = tuple[Any, ...]  # the bytes of a text, then the columns beside it
# Tables that only processes under the profiler fill; samples and context switches may be everybody's.
_PROFILED = re.compile(
    r"NVTX_|CUPTI_|CUDA_|CUDNN|CUBLAS|OSRT_|MPI_|UCP_|OPENMP|OPENACC|OPENGL|OPENSHMEM|NCCL|VULKAN|DX1|D3D|NVVIDEO"
)
# What a column is called that refers to StringIds, where its declaration does not say so; and the words that name
# no work.
_NO_NAME = {"module", "file", "filename", "content", "path"}
_MAX_DROPS = 1000  # of what acts in a report: SQLite reads all names again after each
_REFERS = {"name", "text", "symbol", "string", "message", "description", "instruction", "label", *_NO_NAME}
_DECLARED = re.compile(r'^\s*"?(\w+)"?\s[^\n]*REFERENCES StringIds', re.MULTILINE)
THREAD = (1 << 24) - 1  # of a globalTid; the rest is the globalPid


@dataclass(frozen=True)
class CopiedTable:
    """A table of the copy: declaration, columns, text or blob columns, and number columns."""

    sql: str
    columns: tuple[str, ...]
    texts: tuple[str, ...]
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class ReportCopy:
    """An open copy in one transaction; ``tables`` are its ordinary tables; ``indexes`` are recreated at the end."""

    path: Path
    connection: sqlite3.Connection
    encoding: str
    tables: dict[str, CopiedTable]
    indexes: list[bytes]
    dropped: int

    def has(self, table: str, *columns: str) -> bool:
        """Return whether this table exists and has all these columns."""
        return table in self.tables and set(columns) <= set(self.tables[table].columns)

    def rows(self, sql: str) -> list[Key]:
        """Return the rows of a query, with text as bytes."""
        return self.connection.execute(sql).fetchall()

    def delete(self, table: str, where: str = "1") -> int:
        """Delete rows and return their number."""
        return self.connection.execute(f"DELETE FROM {quoted(table)} WHERE {where}").rowcount

    def drop(self, table: str) -> None:
        """Drop a table."""
        self.connection.execute(f"DROP TABLE {quoted(table)}")
        del self.tables[table]

    def narrow(self, table: str, columns: Sequence[str]) -> None:
        """Drop all other columns of a table; names, values and row order are unchanged."""
        about = self.tables[table]
        _made_anew(self.connection, table, columns)
        texts, numbers = (tuple(one for one in some if one in columns) for some in (about.texts, about.numbers))
        self.tables[table] = CopiedTable(about.sql, tuple(columns), texts, numbers)

    def empty(self, table: str, column: str, where: str, *, otherwise: str) -> int:
        """Set a column to NULL (or ``otherwise``) in rows that meet a condition; return the number of rows."""
        [(required,)] = self.rows(
            f'SELECT "notnull" FROM pragma_table_xinfo({_literal(table)}) WHERE name = {_literal(column)}'
        )
        name = quoted(column)
        return self.connection.execute(
            f"UPDATE {quoted(table)} SET {name} = {otherwise if required else 'NULL'} WHERE {where}"
        ).rowcount

    def keep_named(self, table: str, names: set[bytes]) -> None:
        """Delete the rows whose ``name`` is not listed."""
        self.connection.create_function("stays", 1, lambda name: name is not None and self.read(name) in names)
        self.delete(table, "NOT stays(CAST(name AS BLOB))")

    def texts(self, table: str, column: str, *beside: str, kind: str = "text") -> list[Key]:
        """Return the distinct texts (or blobs) of a column, each with its values in the columns ``beside``."""
        wanted = ", ".join([f"CAST({quoted(column)} AS BLOB)", *map(_as_bytes, beside)])
        rows = self.rows(f"SELECT DISTINCT {wanted} FROM {quoted(table)} WHERE typeof({quoted(column)}) = '{kind}'")
        return rows if self.encoding == "utf-8" else [self._key(row, kind) for row in rows]

    def rewrite(self, table: str, column: str, new: Mapping[Key, bytes], *beside: str, kind: str = "text") -> None:
        """Replace values of a column, as returned by `texts`, by new values."""
        if not new:
            return

        # Only in UTF-8 does SQLite take bytes for text as they are; elsewhere it wants text, which is valid then.
        as_bytes = kind == "blob" or self.encoding == "utf-8"

        def changed(*row: Any) -> bytes | str | None:
            value = new.get(row if self.encoding == "utf-8" else self._key(row, kind))
            return value if value is None or as_bytes else value.decode("utf-8", "replace")

        name, arguments = (quoted(column), ", ".join([f"CAST({quoted(column)} AS BLOB)", *map(_as_bytes, beside)]))
        self.connection.create_function("changed", 1 + len(beside), changed)
        value = f"changed({arguments})" if kind == "blob" else f"CAST(changed({arguments}) AS TEXT)"
        self.connection.execute(
            f"UPDATE {quoted(table)} SET {name} = {value}"
            f" WHERE typeof({name}) = '{kind}' AND changed({arguments}) IS NOT NULL"
        )

    def declarations(self) -> list[bytes]:
        """Return the SQL of all declarations, with their names."""
        raw = self.rows("SELECT CAST(name || ' ' || sql AS BLOB) FROM sqlite_master WHERE sql NOTNULL")
        return [*(self.read(text) for (text,) in raw), *self.indexes]

    def declare(self, clean: Callable[[bytes], bytes]) -> int:
        """Declare tables and indexes without the removed parts, and drop tables and indexes that depend on removed
        parts. Returns the number of changes.
        """
        listed = self.rows("SELECT type, CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_master WHERE sql NOTNULL")
        touched = [row for row in listed if any(clean(text) != text for text in map(self.read, row[1:]))]
        self.connection.execute("PRAGMA writable_schema = ON")
        for kind, name, sql in touched:
            if kind == b"table" and clean(self.read(name)) == self.read(name):
                change = "UPDATE sqlite_master SET sql = ? WHERE CAST(name AS BLOB) = ?"
                self.connection.execute(change, (_decoded(clean(self.read(sql))), name))
            else:
                self.connection.execute(f"DROP {kind.decode()} {quoted(_decoded(self.read(name)))}")
        doomed = [sql for sql in self.indexes if clean(sql) != sql]
        self.indexes[:] = [sql for sql in self.indexes if sql not in doomed]
        return len(touched) + len(doomed)

    def finish(self, out: Path) -> None:
        """Write the remaining rows into a new file, without free pages, slack or log."""
        self.connection.execute("COMMIT")
        self.connection.close()
        # Another one: declarations may have changed, and an index that cannot be made must leave no trace.
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for sql in self.indexes:
                with suppress(sqlite3.Error):  # an expression may fail on what is left
                    connection.execute(_decoded(sql))
            # UTF-8 takes bytes as they are: a folder need not have a name in it.
            if self.encoding == "utf-8":
                connection.execute("VACUUM INTO CAST(? AS TEXT)", (os.fsencode(out),))
            else:
                connection.execute("VACUUM INTO ?", (str(out),))

    def _key(self, row: Key, kind: str) -> Key:
        value, *rest = row
        plain = value if kind == "blob" else self.read(value)
        return (plain, *(self.read(one) if isinstance(one, bytes) else one for one in rest))

    def read(self, raw: bytes) -> bytes:
        """Text in UTF-8, as in the file."""
        return raw if self.encoding == "utf-8" else raw.decode(self.encoding, "replace").encode("utf-8", "replace")


@contextmanager
def copied_report(source: Path, folder: Path) -> Iterator[ReportCopy]:
    """Copy a report and its log into a folder, and open the copy. Parts of the database that act when rows change are
    dropped.

    Triggers, views, virtual tables and the samples of ANALYZE are dropped permanently, because users add them and nsys
    does not. Indexes are recreated at the end. Raises `OSError` with the name of the source if the source cannot be
    read.
    """
    copy = folder / "copy.sqlite"
    real = os.path.realpath(source)
    for ending in ("", "-wal", "-journal"):  # SQLite would have to write to read both in their place
        if not ending or Path(real + ending).exists():
            with open_regular(Path(real + ending)) as file, Path(f"{copy}{ending}").open("wb") as into:
                shutil.copyfileobj(file, into, 1 << 20)
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.text_factory = bytes
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "ignore_check_constraints = ON"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        [(encoding,)] = connection.execute("PRAGMA encoding").fetchall()
        connection.execute("BEGIN")
        indexes, dropped = _drop_what_acts(connection)
        declared = _without_constraints(connection)
        listed = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        ).fetchall()
        names = [(_decoded(name), _decoded(sql)) for name, sql in listed]
        tables = {name: _table(connection, name, declared.get(name, sql)) for name, sql in names}
        yield ReportCopy(copy, connection, encoding.decode().lower(), tables, indexes, dropped)


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def _as_bytes(column: str) -> str:
    """Return SQL for a column with its text as bytes: Python gets text that is not UTF-8 in no other way."""
    name = quoted(column)
    return f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END"


def _decoded(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "surrogateescape")


def _drop_what_acts(connection: sqlite3.Connection) -> tuple[list[bytes], int]:
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    listed = [(_decoded(kind), _decoded(name), _decoded(sql)) for kind, name, sql in rows]
    indexes = [(name, sql) for kind, name, sql in listed if kind == "index" and sql]
    doomed = [("INDEX", name) for name, _ in indexes]
    others = [(kind.upper(), name) for kind, name, _ in listed if kind in ("trigger", "view")]
    others += [("TABLE", name) for kind, name, sql in listed if re.match(r"(?i)create\s+virtual\b", sql)]
    others += [("TABLE", name) for _, name, _ in listed if re.fullmatch(r"(?i)sqlite_stat\d", name)]
    if len(doomed) + len(others) > _MAX_DROPS:
        raise sqlite3.DatabaseError(f"the database has more than {_MAX_DROPS:,} indexes, triggers and views")
    for kind, name in [*doomed, *others]:
        connection.execute(f"DROP {kind} {quoted(name)}")
    # What was unique need not be so when secrets are cut.
    again = [re.sub(r"(?i)\Acreate\s+unique\b", "CREATE", sql) for _, sql in indexes]
    return [sql.encode("utf-8", "surrogateescape") for sql in again], len(others)


def _without_constraints(connection: sqlite3.Connection) -> dict[str, str]:
    """Make tables in which texts must be unique ordinary ones, for the same reason; returns how they were declared.

    nsys declares none such. Names of columns, values and the order of the rows stay.
    """
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
        " AND EXISTS (SELECT 1 FROM pragma_index_list(sqlite_master.name))"
    ).fetchall()
    declared = {_decoded(name): _decoded(sql) for name, sql in rows}
    connection.execute("PRAGMA legacy_alter_table = ON")  # views are not to be looked at
    for name in declared:
        _made_anew(connection, name, ())
    return declared


def _made_anew(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
    """Make a table without its constraints; with these columns alone, if some are named."""
    plain, wanted = quoted(f"{table} without constraints"), ", ".join(map(quoted, columns)) or "*"
    connection.execute(f"CREATE TABLE {plain} AS SELECT {wanted} FROM {quoted(table)}")
    connection.execute(f"DROP TABLE {quoted(table)}")
    connection.execute(f"ALTER TABLE {plain} RENAME TO {quoted(table)}")


def _table(connection: sqlite3.Connection, name: str, sql: str) -> CopiedTable:
    rows = connection.execute("SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden = 0", (name,)).fetchall()
    columns = {_decoded(column): _decoded(kind).upper() for column, kind in rows}
    texts = [column for column, kind in columns.items() if not kind or re.search("CHAR|CLOB|TEXT|BLOB", kind)]
    numbers = [column for column in columns if column not in texts]
    # What is declared to hold numbers may hold anything else; that is greater than any number.
    odd = " OR ".join(f"{quoted(column)} >= ''" for column in numbers)
    if odd and connection.execute(f"SELECT 1 FROM {quoted(name)} WHERE {odd} LIMIT 1").fetchall():
        texts += numbers
    numbers += [column for column, kind in columns.items() if kind in ("", "BLOB")]
    return CopiedTable(sql, tuple(columns), tuple(texts), tuple(numbers))


def profiled_processes(copy: ReportCopy) -> list[int]:
    """Return the globalPid of each process with recorded activity."""
    recorded: set[Any] = set()
    for table, about in copy.tables.items():
        if _PROFILED.match(table):
            for column in {"globalTid", "globalPid"}.intersection(about.columns):
                recorded.update(copy.rows(f"SELECT DISTINCT {column} & ~{THREAD} FROM {quoted(table)}"))
    return sorted(pid for (pid,) in recorded if pid is not None)


def string_references(copy: ReportCopy) -> tuple[set[Any], set[Any]]:
    """Return the ids of strings that name work (kernels, ranges, calls, functions), and of all other strings in use."""
    names: set[Any] = set()
    others: set[Any] = set()
    for table, about in copy.tables.items():
        declared = set(_DECLARED.findall(about.sql))
        last = {column: _last_word(column) for column in about.numbers if table != "StringIds"}
        refers = [column for column, word in last.items() if column in declared or word in _REFERS]
        ids = copy.rows(f"SELECT DISTINCT {', '.join(map(quoted, refers))} FROM {quoted(table)}") if refers else []
        for column, values in zip(refers, zip(*ids, strict=True), strict=False):
            work = (_PROFILED.match(table) or last[column] == "symbol") and last[column] not in _NO_NAME
            (names if work else others).update(id for id in set(values) if isinstance(id, int))
    return names, others


def _last_word(column: str) -> str:
    """Return the last word of a column's name: `name` of `endNameId` and of `name_id`, `context` of `contextId`."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", column)]
    return next((word for word in reversed(words) if word not in ("id", "ids")), "")


_PIECE = 8 << 20
_COUNTED = {"ops": b"cpu_op", "ranges": b"user_annotation", "kernels": b"kernel"}
_QUOTED = re.compile(rb'^([ \t]*"name": ")([^"\n]*"[^\n]*)("[ \t]*,?[ \t]*)$', re.M)
_ESCAPED = re.compile(rb"%u([0-9a-f]{4})")
_HOST = re.compile(rb'^[ \t]*"host_name": "[^\n]*",?[ \t]*\n', re.M)
_NAME = re.compile(rb'"traceName": "[^\n]*"')
_UUID = re.compile(rb'^([ \t]*"(?:uuid|luid)": )"[^"\n]*"', re.M | re.I)
# Lines whose texts may hold a path or an address, with those that name something and without.
_LINE = (
    rb'^(?![ \t]*(?:"(?:ph|cat|pid|tid|ts|dur|id|args%b)":|[{}\],]))'
    rb"[^\n]*?(?:[/\\]|\d\.\d+\.\d|[0-9A-Fa-f]{2}[:-][0-9A-Fa-f]{2,4}[:-])[^\n]*$"
)
_ANY, _NAMELESS = (re.compile(_LINE % besides, re.M) for besides in (b"", b"|name"))
_LITERAL = re.compile(rb'"(?:[^"\\\n]|\\.)*"')


def copy_trace(source: Path, out: Path, name: str, *, scrubbed: bool, names: bool = False) -> dict[str, int]:
    """Write a copy of a trace to ``out``, which ends in .gz; count the copy's CPU ``ops``, ``ranges`` and ``kernels``.

    ``source`` is in Kineto's format, one value per line; ``name`` becomes its ``traceName``. If ``scrubbed``, texts
    (and names, with ``names``) are cleaned as in `scrub_report`. Raises `OSError`.
    """
    counts: Counter[str] = Counter(dict.fromkeys((*_COUNTED, "whole"), 0))
    secrets = machine_secrets()
    cut = secrets.redactor(list(secrets.known), sure=True) if scrubbed else bytes
    with out.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        for piece in _pieces(source):
            for what, category in _COUNTED.items():
                counts[what] += piece.count(b'"cat": "%s"' % category)
            mended = _ESCAPED.sub(rb"\\u\1", _QUOTED.sub(_mended, piece))
            if scrubbed:
                mended = lines_without_credentials(cut(_UUID.sub(rb'\1""', _HOST.sub(b"", mended))))
                mended = (_ANY if names else _NAMELESS).sub(_without_places, mended)
            mended, ends = _NAME.subn(b'"traceName": "%s"' % name.encode("ascii", "replace"), mended)
            counts["whole"] |= ends
            packed.write(mended)
    return dict(counts)


def _without_places(line: re.Match[bytes]) -> bytes:
    """A line of JSON without paths and addresses in its texts; spelled anew only where there are some."""

    def clean(literal: re.Match[bytes]) -> bytes:
        try:
            text = json.loads(literal[0], strict=False).encode("utf-8", "surrogatepass")
        except ValueError:  # torn, so that nobody can read it
            return literal[0]
        new = without_addresses(without_paths(text)[0], ids_alone=False)[0]
        return literal[0] if new == text else json.dumps(new.decode("utf-8", "surrogatepass")).encode()

    return _LITERAL.sub(clean, line[0])


def _mended(match: re.Match[bytes]) -> bytes:
    return match[1] + match[2].replace(b'\\"', b'"').replace(b'"', b'\\"') + match[3]


def _pieces(source: Path) -> Iterator[bytes]:
    """Read a file in pieces that end with a line."""
    with source.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece + file.readline()
