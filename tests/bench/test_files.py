"""The files of a benchmark for machines: CSV tables, and the database that runs are added to."""

import csv
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsysprof.bench.files import BENCH_TABLES, append_database, check_database_place, write_bench_tables
from nsysprof.bench.tables import RESULTS
from nsysprof.errors import NsysprofError
from tests.kit.bench_samples import made_up, point_of, results_of


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """What a database answers."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_tables_are_written_with_their_columns(tmp_path: Path) -> None:
    """One file per table; results.csv has the documented columns, a row per point and nothing but numbers in them."""
    results = results_of(tmp_path, samples=10)
    paths = write_bench_tables(results, tmp_path)
    assert [path.name for path in paths] == [f"{name}.csv" for name in BENCH_TABLES]
    with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == RESULTS.names
    assert len(rows) == 6
    flash = rows[1]
    assert (flash["backend"], flash["seq"], flash["peak_bytes"]) == ("flash", "1024", "4227072")
    assert float(flash["median_ns"]) == pytest.approx(results.results["median_ns"].iloc[1], abs=0.05)
    assert float(flash["tflops"]) == pytest.approx(results.results["tflops"].iloc[1], rel=1e-5)
    assert flash["refused"] == flash["reason"] == ""


def test_what_is_unknown_is_empty(tmp_path: Path) -> None:
    """Neither nan nor None nor a made-up zero."""
    write_bench_tables(results_of(tmp_path, samples=10, device="cpu"), tmp_path)
    text = (tmp_path / "results.csv").read_text(encoding="utf-8")
    assert "nan" not in text.lower()
    assert "None" not in text
    with (tmp_path / "results.csv").open(newline="", encoding="utf-8") as file:
        assert next(csv.DictReader(file))["peak_bytes"] == ""


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """One line, no traceback."""
    results = results_of(tmp_path, samples=10)
    with pytest.raises(NsysprofError, match=r"cannot write .*results\.csv: No such file"):
        write_bench_tables(results, tmp_path / "missing")


def test_runs_add_up_in_a_database(tmp_path: Path) -> None:
    """Two runs, their points and every sample; the same run twice is there once."""
    path = tmp_path / "results.db"
    first, second = results_of(tmp_path / "a", samples=10), results_of(tmp_path / "b", samples=10, seed=1)
    assert append_database(first, path)
    assert append_database(second, path)
    assert not append_database(first, path)
    assert query(path, "select count(*), count(distinct run) from runs") == [(2, 2)]
    assert query(path, "select count(*) from results") == [(12,)]
    assert query(path, 'select "set", count(*) from samples group by 1 order by 1') == [
        ("aa", 120),
        ("eager", 120),
        ("graph", 120),
    ]
    joined = "select r.name, p.seq, p.median_ns from results p join runs r using (run) where p.backend = 'flash'"
    assert len(query(path, joined)) == 6
    assert query(path, "pragma foreign_key_check") == []
    assert {row[2] for row in query(path, "pragma foreign_key_list(results)")} == {"runs"}
    sample = query(path, "select latency_ns, throttled, sm_clock_mhz from samples where number = 3 limit 1")
    assert sample[0] == (point_of(made_up(samples=10), "math", 1024)["latency_ns"][3], 0, 1980)


def test_columns_that_were_empty_at_first_hold_numbers_later(tmp_path: Path) -> None:
    """A CPU run without graphs or memory comes first; figures of the GPU run are numbers, not text."""
    path = tmp_path / "results.db"
    append_database(results_of(tmp_path / "cpu", samples=10, device="cpu"), path)
    append_database(results_of(tmp_path / "gpu", samples=10), path)
    for column in ("graph_median_ns", "share_of_peak", "temporary_matrices"):
        types = query(path, f"select distinct typeof({column}) from results order by 1")
        assert types == [("null",), ("real",)], column
    assert query(path, "select distinct typeof(peak_bytes) from results order by 1") == [("integer",), ("null",)]
    assert query(path, "select distinct typeof(sm_clock_mhz) from samples order by 1") == [("null",), ("real",)]


def test_a_run_without_samples_is_appended(tmp_path: Path) -> None:
    """Its points are in the table of results, also where it is the first of all, and samples may follow."""
    path = tmp_path / "results.db"
    nothing = made_up(dtypes={"fp32": ("flash", "cudnn")}, samples=5)
    assert append_database(results_of(tmp_path / "nothing", nothing), path)
    assert query(path, "select distinct status, n from results") == [("unsupported", 0)]
    assert append_database(results_of(tmp_path / "a", samples=10), path)
    assert query(path, "select count(*) from samples") == [(180,)]
    assert query(path, "pragma foreign_key_check") == []


def test_an_interrupted_append_is_made_good(tmp_path: Path) -> None:
    """Rows of a run that never got its own row are replaced, not kept beside the new ones."""
    path = tmp_path / "results.db"
    results = results_of(tmp_path / "a", samples=10)
    append_database(results, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("delete from runs")
        connection.execute("update results set median_ns = 1")
    assert append_database(results, path)
    assert query(path, "select count(*), min(median_ns) > 1 from results") == [(6, 1)]
    assert query(path, "select count(*) from samples") == [(180,)]


def test_a_database_that_cannot_be_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """A text file, a folder that is not there; a new file in an old folder is fine, and not made yet."""
    text = tmp_path / "notes.txt"
    text.write_text("not a database")
    with pytest.raises(NsysprofError, match=r"notes\.txt is not an SQLite database"):
        check_database_place(text)
    with pytest.raises(NsysprofError, match="there is no folder"):
        check_database_place(tmp_path / "no" / "x.db")
    check_database_place(tmp_path / "x.db")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_is_no_database_of_ours_is_refused(tmp_path: Path) -> None:
    """A text file, a folder, and somebody else's database stay as they are."""
    results = results_of(tmp_path / "a", samples=10)
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be read as one")
    with pytest.raises(NsysprofError, match=r"notes\.txt is not an SQLite database"):
        append_database(results, text)
    assert text.read_text().startswith("not a database")
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("create table recipes (name text)")
    with pytest.raises(NsysprofError, match=r"is another program's database \(tables: recipes\)"):
        append_database(results, other)
    assert query(other, "select name from sqlite_master") == [("recipes",)]
    with pytest.raises(NsysprofError, match="cannot write"):
        append_database(results, tmp_path)
    with pytest.raises(NsysprofError, match="cannot write"):
        append_database(results, tmp_path / "missing" / "results.db")
