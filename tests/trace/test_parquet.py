"""A Parquet export reads like the SQLite export of the same report."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsysprof.core.columns import Words
from nsysprof.errors import NsysprofError
from nsysprof.trace.nsys.blocks import Block
from nsysprof.trace.nsys.parquet import ParquetSource
from nsysprof.trace.nsys.sqlite import SqliteSource
from tests.kit.parquet_export import parquet_export

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
RUN = Path(__file__).parents[2] / "traces" / "run.sqlite"


def columns_of(path: Path) -> dict[str, dict[str, str]]:
    """The declared type of each column of each table."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            table: {row[1]: row[2].upper() for row in connection.execute(f'PRAGMA table_info("{table}")')}
            for table in tables
        }


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped report as a folder of Parquet files with several row groups each."""
    return parquet_export(RUN, tmp_path_factory.mktemp("run") / "run_pqtdir")


def read(blocks: Iterator[Block], ints: list[str], texts: list[str], words: Words) -> dict[str, list[Any]]:
    """The columns with None for NULL and the texts themselves."""
    columns: dict[str, list[Any]] = {name: [] for name in (*ints, *texts)}
    for block in blocks:
        for name in ints:
            assert block.values[name].dtype == "int64"
            gaps = block.nulls[name].tolist() if name in block.nulls else [False] * block.rows
            assert name not in block.nulls or any(gaps)
            assert not any(block.values[name][gaps].tolist())
            pairs = zip(block.values[name].tolist(), gaps, strict=True)
            columns[name] += [None if gap else value for value, gap in pairs]
        for name in texts:
            assert block.values[name].dtype == "int32"
            columns[name] += [None if code < 0 else words[code] for code in block.values[name].tolist()]
    return columns


def test_every_table_of_the_shipped_report_reads_as_from_sqlite(export: Path) -> None:
    """All columns, rows, names and strings are the same, whatever integer types the export has."""
    parquet, sqlite = ParquetSource(export), SqliteSource(RUN)
    assert set(parquet.tables()) == set(sqlite.tables())
    for table, declared in columns_of(RUN).items():
        if table.startswith("sqlite_"):
            continue
        ints = [name for name, kind in declared.items() if kind == "INTEGER"]
        texts = [name for name, kind in declared.items() if kind == "TEXT"]
        assert parquet.columns(table) == sqlite.columns(table)
        assert parquet.rows(table) == sqlite.rows(table)
        ours, theirs = Words(), Words()
        got = read(parquet.blocks(table, ints, texts, ours), ints, texts, ours)
        assert got == read(sqlite.blocks(table, ints, texts, theirs), ints, texts, theirs), table
    ids = [3, 5, 8, 1 << 40]
    assert parquet.strings(ids) == sqlite.strings(ids)
    names = ["name", "value"]
    assert parquet.fetch("META_DATA_EXPORT", names) == sqlite.fetch("META_DATA_EXPORT", names)


def test_column_types_come_out_as_from_sqlite(tmp_path: Path) -> None:
    """Unsigned wraps, reals are cut, dictionaries and blobs are texts, text among integers is NULL."""
    table = pa.table(
        {
            "u": pa.array([1, None, (1 << 64) - 1], pa.uint64()),
            "f": pa.array([1.9, float("nan"), -2.9], pa.float64()),
            "b": pa.array([True, None, False]),
            "t": pa.array(["1", None, "x"]),
            "d": pa.array(["a", None, "a"]).dictionary_encode(),
            "r": pa.array([b"\xff", b"", None], pa.binary()),
            "n": pa.array([5, None, 6], pa.int32()),
            "z": pa.nulls(3),
        }
    )
    pq.write_table(table, tmp_path / "T.parquet")
    source, words = ParquetSource(tmp_path), Words()
    ints, texts = ["u", "f", "b", "t", "n", "z"], ["d", "r", "n2", "z2"]
    pq.write_table(table.append_column("n2", table["n"]).append_column("z2", table["z"]), tmp_path / "T.parquet")
    assert read(source.blocks("T", ints, texts, words), ints, texts, words) == {
        "u": [1, None, -1],
        "f": [1, None, -2],
        "b": [1, None, 0],
        "t": [None, None, None],
        "n": [5, None, 6],
        "z": [None, None, None],
        "d": ["a", None, "a"],
        "r": ["\ufffd", "", None],
        "n2": ["5", None, "6"],
        "z2": [None, None, None],
    }
    assert source.fetch("T", ["d", "u"]) == [("a", 1), (None, None), ("a", -1)]


def test_what_is_absent_is_empty(tmp_path: Path) -> None:
    """An absent table has no columns, rows or blocks."""
    source = ParquetSource(tmp_path)
    assert (source.tables(), source.columns("T"), source.rows("T")) == ((), (), 0)
    assert (list(source.blocks("T", ["a"])), source.fetch("T", ["a"]), source.strings([1])) == ([], [], {})


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Bytes that are no Parquet are a known failure with one line."""
    (tmp_path / "T.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(NsysprofError, match=r"T\.parquet is damaged") as caught:
        ParquetSource(tmp_path).columns("T")
    assert "\n" not in caught.value.message


def test_a_damaged_name_of_a_column_is_damage(tmp_path: Path) -> None:
    """Names that are not UTF-8, about which pyarrow raises no error of its own."""
    path = tmp_path / "T.parquet"
    pq.write_table(pa.table({"column": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"column", b"colum\xe2"))
    for ask in (ParquetSource(tmp_path).columns, ParquetSource(tmp_path).rows):
        with pytest.raises(NsysprofError, match=r"T\.parquet is damaged"):
            ask("T")


def test_without_pyarrow_the_extra_is_named(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is the command that installs it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NsysprofError, match="pyarrow") as caught:
        ParquetSource(export).rows("StringIds")
    assert caught.value.hint == "pip install 'nsysprof[parquet]'"


def test_reading_does_not_import_pandas(export: Path) -> None:
    """pyarrow imports it for some conversions, which costs more than reading most tables."""
    script = f"""
import sys
from pathlib import Path
from nsysprof.core.columns import Words
from nsysprof.trace.nsys.parquet import ParquetSource
source = ParquetSource(Path({str(export)!r}))
list(source.blocks("NVTX_EVENTS", ["start", "end", "endGlobalTid"], ["text"], Words()))
source.fetch("META_DATA_EXPORT", ["name", "value"]), source.strings([3])
assert "pyarrow" in sys.modules
sys.exit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=RUN.parents[1])


def test_a_text_without_an_id_is_no_name(tmp_path: Path) -> None:
    """Not even of the id 0, which copies and kernels without a name have."""
    pq.write_table(
        pa.table({"id": pa.array([None, 1], pa.int64()), "value": ["lost", "gemm"]}), tmp_path / "StringIds.parquet"
    )
    assert ParquetSource(tmp_path).strings([0, 1]) == {1: "gemm"}
