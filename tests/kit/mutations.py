"""Ways to spoil a report: by SQL, byte by byte, as a file, as a Parquet export; and a trace of the PyTorch profiler, by
event, token and byte. One seed is always the same file.
"""

import contextlib
import gzip
import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.kit.kineto import (
    Event,
    annotation,
    call,
    gpu_op,
    launch,
    link,
    memory,
    module,
    operator,
    trace_text,
    wait_event,
)
from tests.kit.parquet_export import parquet_export
from tests.kit.random_reports import random_report
from tests.kit.random_waits import random_waits
from tests.kit.schema import STYLES
from tests.kit.simulated import random_program, simulate
from tests.kit.trace import Item, write

SHIPPED = Path(__file__).parents[2] / "traces" / "two-processes.sqlite"
EVENTS = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"),
    *("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds"),
)
MOST = 2**63 - 1
VALUES: tuple[Any, ...] = (
    *(None, None, 0, 1, -1, 7, 59, 60, 75, 255, 4294967295, 4294967296, 2**62, MOST, -MOST - 1, -(2**40)),
    *("", "12", "-3", "12 ", "0x10", "1e3", "1.5", "soon", "9" * 5000, "ü\0\n\x1b[31m", "=1+1", "/" * 300),
    *(b"", b"\xff\xfe", b"12", 1.5, -2.5, 1e300, float("inf"), -0.0),
)
Change = Callable[[random.Random, sqlite3.Connection], str]


def spoiled(rng: random.Random, folder: Path, *, steps: bool = False) -> tuple[Path, list[str]]:
    """A report in an empty folder, with ``steps`` one of steps that wait, and what was done to it."""
    path = folder / "report.sqlite"
    done = [_begin(rng, path, steps)]
    if rng.random() < (0.5 if steps else 0.75):
        done += _by_sql(rng, path)
    way = 0.5 if steps and rng.random() < 0.5 else rng.random()
    if way < 0.12:
        path, more = _as_parquet(rng, path)
        return path, done + more
    if way < 0.4:
        done += _by_bytes(rng, path)
    if way > 0.85:
        path, said = _as_file(rng, path)
        done.append(said)
    return path, done


def _begin(rng: random.Random, path: Path, steps: bool) -> str:
    if rng.random() < 0.1:
        shutil.copyfile(SHIPPED, path)
        return "shipped"
    seed, style = rng.randrange(1 << 30), rng.choice(list(STYLES))
    make = rng.choice((random_waits, _simulated, _simulated)) if steps else random_report
    pragma = rng.choice([*[""] * 6, *(f"page_size={512 << k}" for k in range(8)), "encoding='UTF-16le'"])
    write(
        path,
        make(seed),
        style=style,
        pragmas=[pragma] if pragma else [],
        gpus=False,
        empty_tables=["*"] if rng.random() < 0.2 else [],
    )
    return f"{make.__name__}({seed}) of {style} {pragma}"


def _simulated(seed: int) -> list[Item]:
    """Some equal steps of a machine whose every ns is known: forecasts are made of them."""
    rng = random.Random(seed)
    program = random_program(rng)
    return simulate([*program, *program[-3:-1] * rng.randint(0, 4), program[-1]]).items


def _by_sql(rng: random.Random, path: Path) -> list[str]:
    done = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = off")
        for _ in range(rng.randint(1, 4)):
            change = rng.choice(CHANGES)
            with contextlib.suppress(sqlite3.Error, sqlite3.Warning, IndexError, OverflowError, UnicodeError):
                done.append(f"{change.__name__.strip('_')}: {change(rng, connection)}")
    return done


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tables(connection: sqlite3.Connection) -> list[str]:
    text = "type = 'table' AND typeof(name) = 'text'"  # what `_schema` does to a name
    return [row[0] for row in connection.execute(f"SELECT name FROM sqlite_master WHERE {text}")]


def _table(rng: random.Random, connection: sqlite3.Connection) -> str:
    """A table, mostly one that counts."""
    tables = _tables(connection)
    events = [name for name in tables if name in EVENTS]
    return rng.choice(events if events and rng.random() < 0.8 else tables)


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(table)})")]


def _column(rng: random.Random, connection: sqlite3.Connection, table: str) -> str:
    columns = _columns(connection, table)
    telling = [n for n in columns if n in ("start", "end", "globalPid", "globalTid", "correlationId", "eventType")]
    return rng.choice(telling if telling and rng.random() < 0.4 else columns)


def _rebuild(connection: sqlite3.Connection, table: str, wanted: str, tail: str = "") -> None:
    """Make the table anew from a query of itself, without types and constraints."""
    connection.execute(f"CREATE TABLE copied_ AS SELECT {wanted} FROM {_quoted(table)} {tail}")
    connection.execute(f"DROP TABLE {_quoted(table)}")
    connection.execute(f"ALTER TABLE copied_ RENAME TO {_quoted(table)}")


def _cased(rng: random.Random, name: str) -> str:
    return rng.choice([name.lower(), name.upper(), name.swapcase()])


def _rename_table(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    name = rng.choice([_cased(rng, table)] * 4 + [f"{table}2", f" {table}"])
    connection.execute(f"ALTER TABLE {_quoted(table)} RENAME TO renamed_")
    connection.execute(f"ALTER TABLE renamed_ RENAME TO {_quoted(name)}")
    return f"{table} → {name}"


def _rename_column(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    column = _column(rng, connection, table)
    name = rng.choice([_cased(rng, column)] * 4 + [f"{column}2"])
    connection.execute(f"ALTER TABLE {_quoted(table)} RENAME COLUMN {_quoted(column)} TO {_quoted(name)}")
    return f"{table}.{column} → {name}"


def _drop_column(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    column = _column(rng, connection, table)
    kept = ", ".join(_quoted(name) for name in _columns(connection, table) if name != column)
    _rebuild(connection, table, kept)
    return f"{table}.{column}"


def _drop_table(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    connection.execute(f"DROP TABLE {_quoted(table)}")
    return table


def _odd_value(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    column, value, every = _column(rng, connection, table), rng.choice(VALUES), rng.choice([1, 1, 2, 3, 10])
    if rng.random() < 0.7:
        _rebuild(connection, table, "*")
    connection.execute(
        f"UPDATE OR IGNORE {_quoted(table)} SET {_quoted(column)} = ? WHERE rowid % ? = 0", (value, every)
    )
    return f"{table}.{column} = {str(value)[:20]!r} in 1 of {every}"


def _moved_value(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    column, other = _column(rng, connection, table), _column(rng, connection, table)
    how = rng.choice(["{o}", "-{c}", "{c} * 1000003", "{c} / 3.0", "CAST({c} AS TEXT)", "{c} + 0.0", "x'00' || {c}"])
    value = how.format(c=_quoted(column), o=_quoted(other))
    _rebuild(connection, table, "*")
    connection.execute(f"UPDATE {_quoted(table)} SET {_quoted(column)} = {value} WHERE rowid % 3")
    return f"{table}.{column} = {value}"


def _rows(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    how = rng.choice(["DELETE FROM {t} WHERE rowid % 3 = 1", "DELETE FROM {t}", "INSERT INTO {t} SELECT * FROM {t}"])
    connection.execute(how.format(t=_quoted(table)))
    return f"{table}: {how}"


def _order(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    how = rng.choice(["ORDER BY rowid DESC", "ORDER BY random()", "LIMIT 0"])
    _rebuild(connection, table, "*", how)
    return f"{table} {how}"


def _rowids(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    how = rng.choice(["-rowid", "rowid * 1000003", "rowid + 4611686018427387904"])
    connection.execute(f"UPDATE {_quoted(table)} SET rowid = {how}")
    return f"{table} {how}"


def _view(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    query = rng.choice(
        [
            *["SELECT * FROM viewed_"] * 3,
            *["SELECT * FROM viewed_ LIMIT 3", "SELECT * FROM gone", "SELECT *, unheard_of(1) FROM viewed_"],
            *["SELECT *, json('{') AS more FROM viewed_", "SELECT * FROM viewed_ UNION ALL SELECT * FROM viewed_"],
            f"SELECT * FROM {_quoted(table)}",
        ]
    )
    connection.execute(f"ALTER TABLE {_quoted(table)} RENAME TO viewed_")
    connection.execute(f"CREATE VIEW {_quoted(table)} AS {query}")
    return f"{table} AS {query}"


def _kind_of_table(rng: random.Random, connection: sqlite3.Connection) -> str:
    """A column in front or behind, another type, a key, no rowid, a computed column."""
    table = _table(rng, connection)
    columns = _columns(connection, table)
    how = rng.choice(["front", "behind", "computed", "typed", "key", "no rowid", "stored text"])
    if how == "front":
        _rebuild(connection, table, "'mine' AS note, *")
    elif how == "behind":
        connection.execute(f"ALTER TABLE {_quoted(table)} ADD COLUMN note DEFAULT 'x'")
    elif how == "computed":
        column = rng.choice(columns)
        rest = ", ".join(_quoted(name) for name in columns if name != column)
        _rebuild(connection, table, rest)
        made = rng.choice(["7", "rowid", "12.5"])
        connection.execute(f"ALTER TABLE {_quoted(table)} ADD COLUMN {_quoted(column)} AS ({made}) VIRTUAL")
    else:
        kind = rng.choice(["TEXT", "REAL", "INTEGER", "NUMERIC", "BLOB", "", "INT", "VARCHAR(9)"])
        declared = [f"{_quoted(name)} {kind}" for name in columns]
        if how == "key":
            declared[0] = f"{_quoted(columns[0])} INTEGER PRIMARY KEY"
        end = " WITHOUT ROWID" if how == "no rowid" else ""
        if end:
            declared = [f"row_ INTEGER PRIMARY KEY, {declared[0]}", *declared[1:]]
        connection.execute(f"CREATE TABLE copied_ ({', '.join(declared)}){end}")
        number = "rowid, " if end else ""
        ignore = "OR IGNORE " if how == "key" else ""
        connection.execute(f"INSERT {ignore}INTO copied_ SELECT {number}* FROM {_quoted(table)}")
        connection.execute(f"DROP TABLE {_quoted(table)}")
        connection.execute(f"ALTER TABLE copied_ RENAME TO {_quoted(table)}")
        how += f" {kind}"
    return f"{table} {how}"


def _whole_file(rng: random.Random, connection: sqlite3.Connection) -> str:
    table = _table(rng, connection)
    how = rng.choice(["VACUUM", "PRAGMA journal_mode = wal", "ANALYZE", "PRAGMA user_version = 7", "index", "big"])
    if how == "index":
        connection.execute(f"CREATE INDEX by_ ON {_quoted(table)}({_quoted(_column(rng, connection, table))})")
    elif how == "big":  # records on overflow pages
        column = _column(rng, connection, table)
        connection.execute(f"UPDATE {_quoted(table)} SET {_quoted(column)} = hex(zeroblob(9000)) WHERE rowid % 5 = 0")
        how = f"big {table}.{column}"
    else:
        connection.execute(how)
    return how


def _schema(rng: random.Random, connection: sqlite3.Connection) -> str:
    """What SQLite itself believes, edited behind its back."""
    table = _table(rng, connection)
    connection.execute("PRAGMA writable_schema = on")
    how = rng.choice(["rootpage = 2", "rootpage = 0", "rootpage = 99999", "sql = 'CREATE TABLE'", "name = x'FF'"])
    how = rng.choice([how, "sql = replace(sql, 'start', x'FF')", "sql = replace(sql, 'start', 'begin')", "sql = NULL"])
    connection.execute(f"UPDATE sqlite_master SET {how} WHERE name = ?", (table,))
    return f"{table} {how}"


CHANGES: tuple[Change, ...] = (
    *(_rename_table, _rename_column, _drop_column, _drop_table, _moved_value, _rows, _order, _rowids, _view),
    *(_odd_value, _odd_value, _odd_value, _odd_value, _kind_of_table, _kind_of_table, _whole_file, _schema),
)


def _by_bytes(rng: random.Random, path: Path) -> list[str]:
    data = bytearray(path.read_bytes())
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        size = {1: 65536}.get(int.from_bytes(data[16:18], "big"), int.from_bytes(data[16:18], "big")) or 4096
        at, other = (size * rng.randrange(max(1, len(data) // size)) for _ in range(2))
        how = rng.choice(["flip", "flip", "head", "header", "schema", "zero", "swap", "cut", "add", "word"])
        if not data:
            break
        if how == "flip":
            for _ in range(rng.randint(1, 50)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif how == "head":  # of a page: kind, cells, pointers
            data[min(at + rng.randrange(16), len(data) - 1)] = rng.randrange(256)
        elif how == "header":
            data[min(rng.randrange(100), len(data) - 1)] = rng.choice([0, 1, 2, 4, 16, 255])
        elif how == "schema":
            data[min(100 + rng.randrange(size), len(data) - 1)] = rng.randrange(256)
        elif how == "zero":
            data[at : at + size] = bytes(size)
        elif how == "swap":
            data[at : at + size] = data[other : other + size]
        elif how == "cut":
            del data[rng.randrange(len(data)) :]
        elif how == "add":
            data += rng.randbytes(rng.choice([1, size, 50_000]))
        else:
            data[at : at + 4] = rng.randbytes(4)
        done.append(how)
    path.write_bytes(data)
    return done


def _as_file(rng: random.Random, path: Path) -> tuple[Path, str]:
    """What lies beside the report, and how it is reached."""
    way = rng.choice(["wal", "live wal", "journal", "garbage", "empty", "pipe", "zero", "link", "gzip", "name"])
    beside = Path(f"{path}{rng.choice(['-wal', '-journal', '-shm'])}")
    if way in ("wal", "live wal", "journal"):
        _with_log(path, way)
    elif way == "garbage":
        beside.write_bytes(rng.randbytes(rng.choice([1, 32, 5000])))
    elif way == "empty":
        beside.touch()
    elif way == "pipe":
        os.mkfifo(beside)
    elif way == "zero":
        beside.symlink_to("/dev/zero")
    elif way == "link":
        link = path.with_name("link.sqlite")
        link.symlink_to(path)
        return link, way
    elif way == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes()))
    else:
        return path.rename(
            path.with_name(rng.choice(["a b%20?x=1#y", "new\nline.sqlite", "ü漢字", "$HOME `ls`;"]))
        ), way
    return path, f"{way} {beside.name}"


def _with_log(path: Path, way: str) -> None:
    """Leave the log or the journal of a program that was killed while it wrote."""
    live = path.with_name("live")
    shutil.copyfile(path, live)
    mode = "delete" if way == "journal" else "wal"
    with (
        contextlib.suppress(sqlite3.Error, UnicodeDecodeError),
        closing(sqlite3.connect(live, isolation_level=None)) as connection,
    ):
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("PRAGMA cache_size = 2")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE more AS SELECT * FROM StringIds")
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 2")
        if way == "wal":
            connection.execute("COMMIT")
        for end in ("", f"-{'journal' if way == 'journal' else 'wal'}"):
            if Path(f"{live}{end}").exists():
                shutil.copyfile(f"{live}{end}", f"{path}{end}")
    for rest in path.parent.glob("live*"):
        rest.unlink()


def _as_parquet(rng: random.Random, path: Path) -> tuple[Path, list[str]]:
    folder = path.with_name("report_pqtdir")
    try:
        parquet_export(path, folder, row_group=rng.choice([1, 3, 1000]))
    except Exception as error:  # what was done to it cannot be said in Parquet
        shutil.rmtree(folder, ignore_errors=True)
        return path, [f"not Parquet: {type(error).__name__}"]
    path.unlink()
    files = sorted(folder.iterdir())
    done = ["Parquet"]
    for _ in range(rng.choice([0, 1, 1, 2])):
        file = rng.choice(files)
        if not file.is_file():
            continue
        data = bytearray(file.read_bytes())
        how = rng.choice(["remove", "case", "cut", "flip", "copy", "folder"])
        if how == "remove":
            file.unlink()
        elif how == "case":
            file.rename(file.with_name(f"{_cased(rng, file.stem)}.parquet"))
        elif how == "cut":
            file.write_bytes(data[: rng.randrange(len(data))])
        elif how == "flip":
            for _ in range(rng.randint(1, 9)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            file.write_bytes(data)
        elif how == "copy":
            shutil.copyfile(rng.choice([f for f in files if f.is_file()]), file.with_name("copied"))
            file.with_name("copied").replace(file)
        else:
            file.unlink()
            file.mkdir()
        done.append(f"{how} {file.stem}")
    return folder, done


ODD: tuple[Any, ...] = (
    *(value for value in VALUES if not isinstance(value, bytes)),
    *(2**31, 2**63, 10**30, float("nan"), "nan", "Infinity", [], [1], [1, 2, 3], ["a", None, 2**70]),
    *({}, {"a": [1]}, True, "\ud800", "aten::mm", "ProfilerStep#3", "kernel", "X", "Stream Wait Event"),
)
TOKENS = (b'"', b"}", b"[", b"NaN", b"\\", b"\xff", b"},{", b"[" * 2000, b"-1e999", b".a" * 99)


def spoiled_trace(rng: random.Random, folder: Path, *, steps: bool = False) -> tuple[Path, list[str]]:
    """A trace of the PyTorch profiler in an empty folder, with ``steps`` of some more, and what was done to it."""
    path, events = folder / "t.json", some_trace(rng, 8 if steps else 4)
    done = _by_events(rng, events) if rng.random() < 0.7 else []
    content = bytearray(trace_text(events).encode("utf-8", "surrogatepass"))
    if rng.random() < (0.2 if steps else 0.5):
        done += by_tokens(rng, content)
    compressed = rng.random() < 0.3
    path.write_bytes(gzip.compress(content) if compressed else content)
    if rng.random() < (0.1 if steps else 0.3) and content:
        done += _by_bytes(rng, path)
    return path, [*(["gzip"] if compressed else []), *done]


def some_trace(rng: random.Random, most: int = 4) -> list[Event]:
    """A few steps of forward and backward with waits, copies and memory."""
    out: list[Event] = []
    for step in range(rng.randint(1, most)):
        at = 10_000 * step
        out.append(annotation(f"ProfilerStep#{step}", at, at + rng.randint(5_000, 10_000)))
        for number in range(rng.randint(1, 5)):
            id, now, tid = 100 * step + 10 * number + 1, at + 900 * number, rng.choice((100, 100, 200))
            back = {"Sequence_number": number + 5 * step, "Fwd_thread_id": int(tid == 200)}
            out += [module("Linear_0", now, now + 700, **rng.choice(({}, {"pid": 0, "tid": 0})))]
            out += [operator(rng.choice(("aten::mm", "MmBackward0")), now + 10, now + 500, tid=tid, **back)]
            out += launch("gemm", (now + 50, now + 90), (now + 100, now + 800), id, tid=tid)
            out += [memory(now + 20, id, rng.choice((512, -512)), 1 << 20)]
            out += link(id, (100, now + 10), (200, now + 910)) + wait_event(now + 600, id + 1, 9, id + 2, 7)
            out += [
                call("cudaEventRecord", now + 650, now + 660, id + 2),
                call("cudaMemcpyAsync", now + 670, now + 680, id + 3),
            ]
            out += [gpu_op("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", now + 700, now + 710, id + 3, 9, bytes=8)]
    return out


def _by_events(rng: random.Random, events: list[Event]) -> list[str]:
    """Change a few events: values, missing fields, order, copies."""
    done = []
    for _ in range(rng.randint(1, 6)):
        event = rng.choice(events)
        target = event.get("args") if rng.random() < 0.5 else event
        if not isinstance(target, dict) or not target:
            continue
        key, how = rng.choice(list(target)), rng.choice(["drop", "copy", "shuffle", "value", "value"])
        if how == "drop":
            del target[key]
        elif how == "copy":
            events.insert(rng.randrange(len(events)), json.loads(json.dumps(event)))
        elif how == "shuffle":
            rng.shuffle(events)
        else:
            target[key] = rng.choice(ODD)
        done.append(f"{how} {key}")
    return done


def by_tokens(rng: random.Random, content: bytearray) -> list[str]:
    """Drop, double or insert some of the text; or end it."""
    done = []
    for _ in range(rng.randint(1, 8)):
        at, size = rng.randrange(len(content) + 1), rng.choice((1, 1, 2, 7, 60, 900))
        how = rng.choice(["change", "drop", "double", "insert", "end"][: 5 if rng.random() < 0.15 else 4])
        new = {"change": rng.randbytes(1), "double": content[at : at + size], "insert": rng.choice(TOKENS)}
        end = {"change": at + 1, "drop": at + size, "end": len(content)}
        content[at : end.get(how, at)] = new.get(how, b"")
        done.append(how)
    return done
