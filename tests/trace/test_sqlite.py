"""A report in an SQLite file is opened without a trace, and what is wrong with it is said in a line."""

import shutil
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from nsysprof.core.columns import Words
from nsysprof.errors import NsysprofError
from nsysprof.trace.nsys import pages
from nsysprof.trace.nsys.blocks import Block
from nsysprof.trace.nsys.records import RefusedError
from nsysprof.trace.nsys.sqlite import SqliteSource

# The numbers 1 to 30,000 as r(i).
COUNT = "WITH r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 30000)"
STRINGS = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)"


def make(path: Path, script: str) -> SqliteSource:
    """A database with what `script` makes."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return SqliteSource(path)


def column(source: SqliteSource, table: str, name: str) -> list[int]:
    """One INTEGER column, with 0 for NULL."""
    return [value for block in source.blocks(table, [name]) for value in block.values[name].tolist()]


def test_what_is_absent_is_empty(tmp_path: Path) -> None:
    """An absent table has no columns, rows or blocks, and neither has an empty one blocks."""
    source = make(tmp_path / "r.sqlite", "CREATE TABLE empty (a INTEGER)")
    assert source.tables() == ("empty",)
    assert (source.columns("empty"), source.rows("empty"), list(source.blocks("empty", ["a"]))) == (("a",), 0, [])
    assert (source.columns("no"), source.rows("no"), list(source.blocks("no", ["a"]))) == ((), 0, [])
    assert (source.fetch("no", ["a"]), source.strings([1])) == ([], {})


def test_small_tables_come_as_python_values_and_odd_text_survives(tmp_path: Path) -> None:
    """Quirk 5: text that is not UTF-8 is replaced where it must be, and embedded NULs are kept."""
    script = """CREATE TABLE "we ""ird" ("a b" TEXT, n INTEGER, x REAL);
        INSERT INTO "we ""ird" VALUES (CAST(x'C7D1B1B9' AS TEXT), 72057594037927936, 0.5);
        INSERT INTO "we ""ird" VALUES (CAST(x'41003D' AS TEXT), NULL, NULL)"""
    source = make(tmp_path / "r.sqlite", script)
    rows = source.fetch('we "ird', ["n", "a b", "x"])
    korean = b"\xc7\xd1\xb1\xb9".decode("utf-8", "replace")
    assert rows == [(1 << 56, korean, 0.5), (None, "A\0=", None)]
    words = Words()
    (block,) = source.blocks('we "ird', [], ["a b"], words)
    assert [words[code] for code in block.values["a b"].tolist()] == [row[1] for row in rows]


@pytest.mark.parametrize("key", ["id INTEGER PRIMARY KEY", "id INTEGER"])
def test_strings_are_found_by_id(tmp_path: Path, key: str) -> None:
    """Thousands of ids in one call, those that are absent left out, with and without the key."""
    source = make(
        tmp_path / "r.sqlite",
        f"""CREATE TABLE StringIds ({key}, value TEXT);
        WITH r(i) AS (SELECT 0 UNION ALL SELECT i + 2 FROM r WHERE i < 8000)
        INSERT INTO StringIds SELECT i, 'name ' || i FROM r""",
    )
    assert source.strings(range(1, 3000)) == {k: f"name {k}" for k in range(2, 3000, 2)}
    assert source.strings([]) == {}


def test_reading_leaves_the_folder_and_the_file_as_they_were(tmp_path: Path) -> None:
    """A file written with a write-ahead log, whose log is gone, is read without making one."""
    path = tmp_path / "r.sqlite"
    source = make(path, "PRAGMA journal_mode = wal; CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)")
    before = path.read_bytes()
    assert column(source, "t", "a") == [1, 2]
    assert [file.name for file in tmp_path.iterdir()] == ["r.sqlite"]
    assert path.read_bytes() == before


def test_rows_in_a_write_ahead_log_are_read_from_a_copy(tmp_path: Path) -> None:
    """What is only in the log counts, and neither the log nor its index is touched."""
    live, report = tmp_path / "live.sqlite", tmp_path / "report"
    report.mkdir()
    with closing(sqlite3.connect(live)) as connection:
        connection.executescript("PRAGMA journal_mode = wal; CREATE TABLE t (a); INSERT INTO t VALUES (1)")
        for end in ("", "-wal"):
            shutil.copyfile(f"{live}{end}", report / f"r.sqlite{end}")
    before = {file.name: file.read_bytes() for file in report.iterdir()}
    assert before["r.sqlite-wal"]
    source = SqliteSource(report / "r.sqlite")
    assert column(source, "t", "a") == [1]
    assert "journal" in source.refused["t"]
    assert {file.name: file.read_bytes() for file in report.iterdir()} == before


def test_a_transaction_that_was_cut_short_is_rolled_back_in_a_copy(tmp_path: Path) -> None:
    """A hot journal beside the report: what it guards is read, and both files stay."""
    live, report = tmp_path / "live.sqlite", tmp_path / "report"
    report.mkdir()
    make(live, f"CREATE TABLE t (a); {COUNT} INSERT INTO t SELECT 1 FROM r")
    with closing(sqlite3.connect(live)) as connection:
        connection.executescript("PRAGMA cache_size = 2; PRAGMA cache_spill = 1; BEGIN; UPDATE t SET a = 2")
        for end in ("", "-journal"):
            shutil.copyfile(f"{live}{end}", report / f"r.sqlite{end}")
    before = {file.name: file.read_bytes() for file in report.iterdir()}
    values = column(SqliteSource(report / "r.sqlite"), "t", "a")
    assert (len(values), set(values)) == (30_000, {1})
    assert {file.name: file.read_bytes() for file in report.iterdir()} == before


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """Blocks of two states of a file are never mixed."""
    path = tmp_path / "r.sqlite"
    source = make(path, f"CREATE TABLE t (a, b); {COUNT} INSERT INTO t SELECT i, hex(zeroblob(40)) FROM r")
    blocks = source.blocks("t", ["a"])
    next(blocks)
    make(path, "UPDATE t SET a = 0")
    with pytest.raises(NsysprofError, match="was changed while it was read"):
        list(blocks)


def test_a_refusal_in_the_middle_goes_on_where_the_pages_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that came from the pages are not read again; a part of the table is refused as a whole."""
    monkeypatch.setattr(pages, "_BLOCK_BYTES", 1 << 14)
    source = make(
        tmp_path / "r.sqlite",
        "CREATE TABLE t (a); WITH r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < 19999)"
        " INSERT INTO t SELECT CASE WHEN i < 15000 THEN i ELSE i + 0.5 END FROM r",
    )
    sizes = [block.rows for block in source.blocks("t", ["a"])]
    assert len(sizes) > 3
    assert max(sizes) > 4000
    assert column(source, "t", "a") == list(range(20_000))
    assert source.refused == {"t": "a holds more than integers"}
    first, *_, last = source.parts(4)
    assert column(first, "t", "a") == list(range(len(column(first, "t", "a"))))
    with pytest.raises(RefusedError, match="a holds more than integers"):
        column(last, "t", "a")


def test_the_parts_of_a_table_have_its_columns(tmp_path: Path) -> None:
    """Numbers, NULLs, codes of texts and rows on overflow pages do not depend on who decodes which pages."""
    source = make(
        tmp_path / "r.sqlite",
        f"CREATE TABLE t (a INTEGER, b TEXT); {COUNT} INSERT INTO t SELECT nullif(i % 7, 3) * i * i,"
        " CASE WHEN i % 5000 = 0 THEN hex(zeroblob(9000)) || i WHEN i % 11 THEN 'name ' || (i * 37 % 901) END FROM r",
    )

    def read(sources: Sequence[SqliteSource]) -> tuple[list[int | None], list[str | None]]:
        words, blocks = Words(), list[Block]()
        for part in sources:
            blocks += part.blocks("t", ["a"], ["b"], words)
        numbers = [
            None if null else value
            for block in blocks
            for value, null in zip(block.values["a"].tolist(), block.nulls.get("a", [False] * block.rows), strict=True)
        ]
        codes = [code for block in blocks for code in block.values["b"].tolist()]
        assert sorted(set(codes)) == list(range(-1, len(words)))
        return numbers, [words[code] if code >= 0 else None for code in codes]

    alone = read([source])
    assert list(alone) == [list(column) for column in zip(*source.fetch("t", ["a", "b"]), strict=True)]
    for count in (2, 30, 2_000):  # pages are fewer
        assert read(source.parts(count)) == alone
    assert source.refused == {}


def test_several_threads_may_read_one_source(tmp_path: Path) -> None:
    """A source holds no connection, which SQLite would tie to the thread that made it."""
    source = make(tmp_path / "r.sqlite", f"{STRINGS}; INSERT INTO StringIds VALUES (1, 'one')")
    found: list[dict[int, str]] = []
    threads = [threading.Thread(target=lambda: found.append(source.strings([1]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{1: "one"}] * 4


def test_a_view_of_something_absent_hurts_nobody_else(tmp_path: Path) -> None:
    """Quirk 4: what users add may be broken; the report's own tables are read all the same."""
    source = make(
        tmp_path / "r.sqlite",
        f"{STRINGS}; INSERT INTO StringIds VALUES (1, 'one'); CREATE VIEW v AS SELECT * FROM gone",
    )
    assert source.strings([1]) == {1: "one"}
    with pytest.raises(NsysprofError, match=r"v cannot be read \(no such table: main\.gone\)"):
        source.columns("v")


def test_names_are_found_in_any_letter_case(tmp_path: Path) -> None:
    """SQL does not tell them apart, so neither do pages, slices and small tables; values come as asked for."""
    script = "CREATE TABLE sTRINGiDS (ID INTEGER PRIMARY KEY, Value TEXT); INSERT INTO StringIds VALUES (7, 'x');"
    source = make(tmp_path / "r.sqlite", f"{script} CREATE VIEW v AS SELECT id AS ID, value FROM StringIds")
    for table in ("STRINGids", "V"):
        words = Words()
        (block,) = source.blocks(table, ["iD"], ["VALUE"], words)
        assert (block.values["iD"].tolist(), words[block.values["VALUE"][0]]) == ([7], "x")
        assert source.fetch(table, ["iD", "vALUE"]) == [(7, "x")]
        assert source.rows(table) == 1
    assert source.strings([7]) == {7: "x"}


def test_errors_say_what_and_where_and_what_to_do(tmp_path: Path) -> None:
    """Missing, damaged and locked files: one line each, with a command where one helps."""
    with pytest.raises(NsysprofError, match=r"no\.sqlite cannot be opened"):
        SqliteSource(tmp_path / "no.sqlite").tables()
    path = tmp_path / "it's.sqlite"
    source = make(path, "CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(NsysprofError, match="is being written by another program"):
            source.tables()
    data = bytearray(path.read_bytes())
    data[4096:4200] = b"\xff" * 104
    path.write_bytes(data)
    with pytest.raises(NsysprofError, match="is damaged: table t cannot be read") as caught:
        list(SqliteSource(path).blocks("t", ["a"]))
    assert caught.value.hint is not None
    assert caught.value.hint.endswith("'PRAGMA integrity_check'")
    assert "\n" not in caught.value.message
