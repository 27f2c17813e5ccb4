"""The page decoder reads what sqlite3 reads, says no to what is not plain, and survives damage."""

import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsysprof.core.columns import Words
from nsysprof.errors import NsysprofError
from nsysprof.trace.nsys import pages, slices
from nsysprof.trace.nsys.blocks import Block
from nsysprof.trace.nsys.records import RefusedError
from nsysprof.trace.nsys.sqlite import SqliteSource

TRACES = Path(__file__).parents[2] / "traces"
Column = list[Any]


def by_sqlite(path: Path, table: str, ints: Sequence[str], texts: Sequence[str]) -> list[Column]:
    """The columns as sqlite3 gives them: integers or None, then bytes or None."""
    wanted = ", ".join([*map(slices.integer, ints), *map(slices.text, texts)])
    with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
        connection.text_factory = bytes
        rows = connection.execute(f'SELECT {wanted} FROM "{table}" AS t NOT INDEXED').fetchall()
    return [[row[k] for row in rows] for k in range(len(ints) + len(texts))]


def by_source(source: SqliteSource, table: str, ints: Sequence[str], texts: Sequence[str]) -> list[Column]:
    """The same through a source; it checks the promises of every block on the way."""
    words = Words()
    columns: list[Column] = [[] for _ in (*ints, *texts)]
    for block in source.blocks(table, ints, texts, words):
        check_block(block, ints, texts)
        for column, name in zip(columns, (*ints, *texts), strict=True):
            values = block.values[name].tolist()
            if name in texts:
                column += [None if code < 0 else words[code].encode("utf-8", "replace") for code in values]
            else:
                gaps = block.nulls[name].tolist() if name in block.nulls else [False] * block.rows
                column += [None if gap else value for value, gap in zip(values, gaps, strict=True)]
    return columns


def check_block(block: Block, ints: Sequence[str], texts: Sequence[str]) -> None:
    """Types, lengths, and what stands where there is NULL are as promised."""
    assert block.rows > 0
    assert set(block.values) == {*ints, *texts}
    for name, values in block.values.items():
        assert len(values) == block.rows
        assert values.dtype == ("int32" if name in texts else "int64")
    for name, null in block.nulls.items():
        assert null.dtype == bool
        assert null.any()
        assert not block.values[name][null].any()


def tolerant(columns: list[Column]) -> list[Column]:
    """Bytes that are not UTF-8 replaced, as a source shows them."""
    return [
        [v.decode("utf-8", "replace").encode() if isinstance(v, bytes) else v for v in column] for column in columns
    ]


def make(path: Path, script: str, rows: Sequence[Sequence[Any]] = (), size: int = 4096) -> SqliteSource:
    """A database with what `script` makes, and `rows` in its table t."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {size}")
        connection.executescript(script)
        if rows:
            connection.executemany(f"INSERT INTO t VALUES ({','.join('?' * len(rows[0]))})", rows)
        connection.commit()
    return SqliteSource(path)


def declared(path: Path, table: str, kind: str) -> list[str]:
    """The table's columns of a declared type."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        listed = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
    return [row[1] for row in listed if row[2].upper() == kind]


@pytest.mark.parametrize(("name", "least"), [("run", 44_000), ("block", 17_000), ("two-processes", 4_500)])
@pytest.mark.parametrize("way", ["pages", "sqlite3"])
def test_every_column_of_a_shipped_report_is_what_sqlite3_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, name: str, least: int
) -> None:
    """Both ways give every INTEGER and TEXT column of every table, and pages refuses none of them."""
    path = Path(shutil.copyfile(TRACES / f"{name}.sqlite", tmp_path / "run.sqlite"))
    if way == "sqlite3":
        monkeypatch.setattr(pages, "decode", refuse)
        monkeypatch.setattr(slices, "_SLICE_ROWS", 5000)
    source, rows = SqliteSource(path), 0
    for table in source.tables():
        ints, texts = declared(path, table, "INTEGER"), declared(path, table, "TEXT")
        expected = by_sqlite(path, table, ints, texts)
        assert by_source(source, table, ints, texts) == tolerant(expected), table
        rows += len(expected[0])
    assert rows > least
    assert set(source.refused.values()) == ({"told to"} if way == "sqlite3" else set())


def refuse(*_: object) -> None:
    """Stand in for the decoder."""
    raise RefusedError("told to")


def integer(random_: random.Random) -> int | None:
    """An integer of any stored width, the constants, NULL."""
    some = random_.random()
    if some < 0.15:
        return None
    if some < 0.3:
        return random_.randint(0, 1)
    return random_.randint(-1, 1) * random_.getrandbits(random_.choice([7, 8, 15, 16, 24, 32, 48, 57, 63]))


def text(random_: random.Random) -> bytes | None:
    """A text of any length, with NULs and bytes that are not UTF-8; short ones repeat."""
    some = random_.random()
    if some < 0.2:
        return None
    if some < 0.7:
        return b"range %d" % random_.randint(0, 9)
    return random_.randbytes(random_.choice([0, 1, 7, 8, 9, 30, 57, 58, 120, 128, 129, 200]))


@pytest.mark.parametrize("size", [512, 1024, 4096, 16384, 65536])
def test_random_rows_read_as_sqlite3_reads_them(tmp_path: Path, size: int) -> None:
    """Integers of all widths, texts of all lengths, gaps in the rowids, in pages of all sizes."""
    random_ = random.Random(size)
    path = tmp_path / "t.sqlite"
    source = make(
        path, "CREATE TABLE t (a INTEGER, s TEXT, b INTEGER, r TEXT, c INTEGER, k INTEGER PRIMARY KEY)", size=size
    )
    key, rows = -random_.getrandbits(60), []
    for _ in range(3000):
        key += random_.getrandbits(random_.choice([1, 1, 1, 20])) + 1
        if key < 0 and random_.random() < 0.01:
            key = random_.getrandbits(6)
        rows.append((integer(random_), text(random_), integer(random_), text(random_), integer(random_), key))
    long = random_.randbytes(6000)
    rows[77] = (1, long, 2, None, 3, rows[77][5])
    with closing(sqlite3.connect(path)) as connection:
        query = "INSERT INTO t VALUES (?, CAST(? AS TEXT), ?, CAST(? AS TEXT), ?, ?)"
        connection.executemany(query, rows)
        connection.commit()
    expected = tolerant(by_sqlite(path, "t", ["a", "b", "c", "k"], ["s", "r"]))
    assert expected[3] == [row[5] for row in rows]
    assert long.decode("utf-8", "replace").encode() in expected[4]
    assert by_source(source, "t", ["a", "b", "c", "k"], ["s", "r"]) == expected
    assert by_source(source, "t", ["c"], []) == expected[2:3]
    assert by_source(source, "t", [], ["r"]) == expected[5:]
    assert source.refused == {}


def test_a_few_long_texts_do_not_make_a_table_slow(tmp_path: Path) -> None:
    """Texts on overflow pages and reals among integers are patched in, and the table stays decoded."""
    rows: list[Sequence[Any]] = [(k, f"name {k % 7}", 2 * k) for k in range(4000)]
    rows[5], rows[2000], rows[3999] = (5, "x" * 20_000, 7), (None, "y" * 5000, None), (8.9, "z", -3.7)
    source = make(tmp_path / "t.sqlite", "CREATE TABLE t (a, s TEXT, b)", rows)
    a, b, s = by_source(source, "t", ["a", "b"], ["s"])
    assert source.refused == {}
    assert (a[5], a[2000], a[3999]) == (5, None, 8)
    assert (b[5], b[2000], b[3999]) == (7, None, -3)
    assert (s[5], s[2000]) == (b"x" * 20_000, b"y" * 5000)
    assert a[6:2000] == list(range(6, 2000))


NUMBERS = [(k, k) for k in range(500)]
REFUSALS: dict[str, tuple[str, list[tuple[Any, ...]], str]] = {
    "reals": ("CREATE TABLE t (a, b)", [(k + 0.5, k) for k in range(500)], "a holds more than integers"),
    "blobs": ("CREATE TABLE t (a, b)", [(b"x", k) for k in range(500)], "a holds more than integers"),
    "overflow": ("CREATE TABLE t (a, b)", [(k, "x" * 5000) for k in range(50)], "records on overflow pages"),
    "added": (
        "CREATE TABLE t (b); WITH r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 500)"
        " INSERT INTO t SELECT i FROM r; ALTER TABLE t ADD COLUMN a DEFAULT 7",
        [],
        "records with fewer fields",
    ),
    "view": ("CREATE TABLE u (a, b); INSERT INTO u VALUES (1, 2); CREATE VIEW t AS SELECT * FROM u", [], "not a table"),
    "without rowid": ("CREATE TABLE t (a PRIMARY KEY, b) WITHOUT ROWID", NUMBERS, "a page is not a table leaf"),
    "utf-16": ("PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (a, b)", NUMBERS, "text is not UTF-8"),
    "log": ("PRAGMA journal_mode = wal; CREATE TABLE t (a, b)", NUMBERS, "write-ahead log"),
    "generated": ("CREATE TABLE t (b, x); ALTER TABLE t ADD COLUMN a AS (b + 1)", [], "is not stored in the rows"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_not_plain_is_refused_and_read_all_the_same(tmp_path: Path, case: str) -> None:
    """Each kind of table that is not plain is refused with its reason, and sqlite3 reads it."""
    script, rows, why = REFUSALS[case]
    path = tmp_path / "t.sqlite"
    source = make(path, script, rows)
    if case == "generated":
        with closing(sqlite3.connect(path)) as connection:
            connection.executemany("INSERT INTO t VALUES (?, ?)", NUMBERS)
            connection.commit()
    with closing(sqlite3.connect(path)) as connection:
        wanted = f"{slices.integer('a')}, {slices.integer('b')}"
        expected = connection.execute(f"SELECT {wanted} FROM t AS t").fetchall()
    before = sorted(tmp_path.iterdir()), path.read_bytes()
    a, b = by_source(source, "t", ["a", "b"], [])
    assert list(zip(a, b, strict=True)) == expected
    assert why in source.refused["t"]
    assert (sorted(tmp_path.iterdir()), path.read_bytes()) == before


def test_numbers_and_blobs_among_texts_are_spelled_out(tmp_path: Path) -> None:
    """A TEXT column that holds numbers and blobs is refused and comes as CAST makes it."""
    rows = [(k, [k, 1.5, b"blob", "text", None][k % 5]) for k in range(500)]
    source = make(tmp_path / "t.sqlite", "CREATE TABLE t (a, s)", rows)
    assert by_source(source, "t", [], ["s"])[0][:6] == [b"0", b"1.5", b"blob", b"text", None, b"5"]
    assert source.refused == {"t": "s holds more than text"}


@pytest.mark.parametrize(
    ("definition", "refused"),
    [
        ("k INTEGER PRIMARY KEY, a INTEGER", {}),
        ("k INTEGER PRIMARY KEY DESC, a INTEGER", {}),
        ("k INT PRIMARY KEY, a INTEGER", {}),
        ("k INTEGER, a INTEGER, PRIMARY KEY (k, a)", {}),
        ("x GENERATED ALWAYS AS (a) VIRTUAL, k INTEGER PRIMARY KEY, a INTEGER", {}),
        ("x GENERATED ALWAYS AS (a) STORED, k INTEGER PRIMARY KEY, a INTEGER", {}),
        ('rowid INTEGER, k INTEGER PRIMARY KEY, "we ""ird" REAL, a INTEGER', {}),
    ],
)
def test_keys_and_computed_columns_do_not_shift_others(
    tmp_path: Path, definition: str, refused: dict[str, str]
) -> None:
    """The key that is the rowid is read as such, and computed columns keep their places or have none."""
    source = make(tmp_path / "t.sqlite", f"CREATE TABLE t ({definition})")
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as connection:
        connection.executemany("INSERT INTO t (k, a) VALUES (?, ?)", [(3 * k + 5, -k) for k in range(999)])
        connection.commit()
    expected = [[3 * k + 5 for k in range(999)], [-k for k in range(999)]]
    assert by_source(source, "t", ["k", "a"], []) == expected
    assert source.refused == refused


def damaged(path: Path, original: bytes, random_: random.Random) -> None:
    """Write a copy with a few bytes changed, most of them where pages keep their structure."""
    data = bytearray(original)
    size = int.from_bytes(data[16:18], "big")
    for _ in range(random_.choice([1, 1, 1, 2, 5])):
        at = random_.randrange(len(data))
        if random_.random() < 0.4:
            at = at // size * size + random_.randrange(40)
        data[at] = random_.choice(
            [0, 1, 0x7F, 0x80, 0xFF, random_.randrange(256), data[at] ^ 1 << random_.randrange(8)]
        )
    if random_.random() < 0.02:
        del data[random_.randrange(len(data)) :]
    path.write_bytes(data)


def attempt(read: Callable[[], Any], *refusals: type[Exception]) -> Any:
    """What is read, None when that is refused in one of these ways."""
    try:
        return read()
    except refusals:
        return None


@pytest.mark.parametrize("size", [512, 4096])
def test_a_damaged_file_is_refused_or_read_as_sqlite3_reads_it(tmp_path: Path, size: int) -> None:
    """Whatever bytes change: no wrong value, and no exception but NsysprofError."""
    compared = fuzz(tmp_path, size, range(200))
    assert compared > 300  # of 600 tables; most changes hit values, and then both read the same


def fuzz(folder: Path, size: int, seeds: range) -> int:
    """Damage a small report once for each seed and read its tables; how many both ways could read."""
    path = folder / "t.sqlite"
    random_ = random.Random(0)
    script = """CREATE TABLE t (start INTEGER, "end" INTEGER, text TEXT, tid INTEGER, id INTEGER, x REAL, j TEXT);
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        CREATE TABLE small (a INTEGER, s TEXT); INSERT INTO small VALUES (1, 'one'), (2, 'two');"""
    rows = [
        (1000 * k, integer(random_), f"range {k % 5}" * (k % 4), 1 << 56 | k % 3, k % 300, 0.5, "x" * (k % 90))
        for k in range(40 * size // 512 + 200)
    ]
    make(path, script, [*rows, (1, 2, "long" * 2000, 3, 4, 5.5, None)], size)
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", [(k * 7, f"name {k}") for k in range(200)])
        connection.commit()
    original, compared = path.read_bytes(), 0
    wanted: dict[str, tuple[list[str], list[str]]] = {
        "t": (["start", "end", "tid", "id"], ["text"]),
        "StringIds": (["id"], ["value"]),
        "small": (["a"], ["s"]),
    }
    for seed in seeds:  # shown by pytest when it fails
        damaged(path, original, random.Random(seed))
        source = SqliteSource(path)
        compared += sum(same(path, source, table, ints, texts) for table, (ints, texts) in wanted.items())
    return compared


def same(path: Path, source: SqliteSource, table: str, ints: list[str], texts: list[str]) -> bool:
    """Whether both ways can read a table; then they read the same."""
    got = attempt(lambda: by_source(source, table, ints, texts), NsysprofError)
    attempt(lambda: source.rows(table), NsysprofError)
    attempt(lambda: source.fetch(table, source.columns(table)[:2]), NsysprofError)
    attempt(lambda: source.strings([7, 14]), NsysprofError)
    expected = attempt(
        lambda: tolerant(by_sqlite(path, table, ints, texts)),
        sqlite3.Error,
        MemoryError,
        UnicodeDecodeError,  # sqlite3 quotes damaged names in its messages
    )
    if got is None or expected is None:
        return False
    assert got == expected, table
    return True
