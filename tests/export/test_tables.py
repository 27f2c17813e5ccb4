"""The exported tables: keys join, sums are the ledger's, and Parquet and CSV hold the same rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from nsysprof import __version__
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.record_source import RecordSource, record_source
from nsysprof.analyze.records import OPS, TABLES, record_tables
from nsysprof.errors import NsysprofError
from nsysprof.export import export as table_files
from nsysprof.export.export import write_export
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reports import broken_down
from tests.kit.trace import GraphTrace, Kernel, Range, launch_kernel, launch_memcpy

pq = pytest.importorskip("pyarrow.parquet")
TRACES = Path(__file__).parents[2] / "traces"
REAL = [TRACES / f"{name}.sqlite" for name in ("run", "block", "two-processes")]
NULLABLE = {"stream", "launch", "correlation", "owner", "parent", "first_op_ns", "last_op_ns", "size_bytes"}
SHAPE = {f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"}


def source_of(path: Path, threads: str = "follow") -> RecordSource:
    """What is exported of a report, whose file is closed again."""
    return record_source(broken_down(path, threads))


def parquet(source: RecordSource, folder: Path) -> dict[str, pd.DataFrame]:
    """The tables of a report, written as Parquet and read with pandas; whole numbers stay whole."""
    written = write_export(source, "parquet", folder / "out")
    assert sorted(file.name for file in written.iterdir()) == sorted(
        ["export.json", *(f"{table.file}.parquet" for table in TABLES)]
    )
    return {
        table.file: pd.read_parquet(written / f"{table.file}.parquet", dtype_backend="numpy_nullable")
        for table in TABLES
    }


def checked(source: RecordSource, tables: dict[str, pd.DataFrame]) -> None:
    """Assert what holds for the tables of any report."""
    ops, launches, ranges, instances = tables.values()
    breakdown = source.breakdown
    for declared, key in zip(TABLES, ("op", "launch", "path_id", "range"), strict=True):
        table = tables[declared.file]
        assert list(table.columns) == declared.names
        assert table[key].tolist() == list(range(len(table)))
        lacking = set(table.columns[table.isna().any()])
        assert lacking <= NULLABLE | SHAPE | {"captured_path", "path", "merged_path", "call", "registers"} | {
            "static_shared_bytes", "dynamic_shared_bytes",
        }  # fmt: skip
    assert len(ops) == breakdown.totals["ops"]
    assert ops["duration_ns"].sum() == breakdown.totals["sum_ns"] == sum(breakdown.ledger["sum_ns"])
    for row in breakdown.attribution.ledger:
        mine = ops.loc[ops["fate"] == row.outcome, "duration_ns"]
        assert (len(mine), mine.sum()) == (row.ops, row.sum_ns)
    _joined(ops, launches, instances, ranges)
    _totals(breakdown, ops, launches, ranges, instances)


def cells(column: pd.Series[Any]) -> list[Any]:
    """The values of a column, None where there is none."""
    return [None if pd.isna(value) else value for value in column.tolist()]


def _joined(ops: pd.DataFrame, launches: pd.DataFrame, instances: pd.DataFrame, ranges: pd.DataFrame) -> None:
    """Keys lead to rows that say the same."""
    caused = ops.dropna(subset="launch").merge(
        launches, on="launch", validate="many_to_one", suffixes=("", "_of_launch")
    )
    assert len(caused) == ops["launch"].notna().sum()
    for column in ("pid", "fate", "correlation", "owner", "path", "merged_path"):
        assert cells(caused[column]) == cells(caused[f"{column}_of_launch"])
    owned = ops.dropna(subset="owner").merge(
        instances, left_on="owner", right_on="range", validate="many_to_one", suffixes=("", "_of_owner")
    )
    assert owned["path"].tolist() == owned["path_of_owner"].tolist()
    assert ops.loc[ops["owner"].isna(), "path"].isna().all()
    inner = instances.dropna(subset="parent").merge(
        instances, left_on="parent", right_on="range", validate="many_to_one", suffixes=("", "_around")
    )
    assert (inner["start_ns_around"] <= inner["start_ns"]).all()
    assert (inner["end_ns_around"] >= inner["end_ns"]).all()
    paths = instances.merge(ranges, on="path_id", validate="many_to_one", suffixes=("", "_of_path"))
    for column in ("path", "merged_path", "kind", "domain"):
        assert paths[column].tolist() == paths[f"{column}_of_path"].tolist()


def _totals(
    breakdown: Breakdown, ops: pd.DataFrame, launches: pd.DataFrame, ranges: pd.DataFrame, instances: pd.DataFrame
) -> None:
    """Sums over the keys are those that other tables state."""
    per_launch = ops.groupby("launch").agg(
        ops=("op", "size"), sum_ns=("duration_ns", "sum"), first=("start_ns", "min"), last=("end_ns", "max")
    )
    assert per_launch["ops"].tolist() == launches["ops"].tolist()
    assert per_launch["sum_ns"].tolist() == launches["sum_ns"].tolist()
    assert per_launch["first"].tolist() == launches["first_op_ns"].tolist()
    assert per_launch["last"].tolist() == launches["last_op_ns"].tolist()
    owned = ops.groupby("owner")["duration_ns"].sum().reindex(instances["range"], fill_value=0)
    assert owned.tolist() == instances["exclusive_sum_ns"].tolist()
    expected = breakdown.ranges
    for column in expected.columns:
        assert ranges[column].tolist() == expected[column].tolist()
    frame = breakdown.instances
    for column in set(frame.columns) - {"first_op_ns", "last_op_ns", "unclosed"}:
        assert instances[column].tolist() == frame[column].tolist()
    assert instances["unclosed"].tolist() == frame["unclosed"].astype(bool).tolist()
    assert [value or 0 for value in cells(instances["first_op_ns"])] == frame["first_op_ns"].tolist()


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
@pytest.mark.parametrize("threads", ["follow", "strict"])
def test_tables_of_real_reports_join_and_add_up(path: Path, threads: str, tmp_path: Path) -> None:
    """Every op, launch, path and instance, with the sums of the ledger and of the analysis."""
    source = source_of(path, threads)
    checked(source, parquet(source, tmp_path))


@pytest.mark.parametrize("seed", range(40))
def test_tables_of_made_up_reports_join_and_add_up(seed: int, trace: MakeTrace, tmp_path: Path) -> None:
    """Whatever a report can hold: several processes, ops without launch, negative times, crossing ranges."""
    source = source_of(trace(*random_report(seed)))
    checked(source, parquet(source, tmp_path))


@pytest.mark.parametrize("form", ["csv", "parquet", "perfetto"])
def test_a_device_id_may_be_any_number(form: str, trace: MakeTrace, tmp_path: Path) -> None:
    """4294967295 is what nsys writes where it knows no device."""
    source = source_of(trace(Kernel("k", 10, 20, None, device=4294967295), gpus=False))
    written = write_export(source, form, tmp_path / "out")
    if form == "csv":
        assert pd.read_csv(written / "ops.csv")["device"].tolist() == [4294967295]
    elif form == "parquet":
        assert pd.read_parquet(written / "ops.parquet")["device"].tolist() == [4294967295]


@pytest.mark.parametrize("path", [*REAL, None], ids=lambda path: path.stem if path else "made up")
def test_csv_holds_what_parquet_holds(path: Path | None, trace: MakeTrace, tmp_path: Path) -> None:
    """Cell by cell, with names that need quotes."""
    if path is None:
        path = trace(
            Range('a "b", c\nd', 0, 100),
            Range("e\rf", 0, 100),
            *launch_kernel("gemm<1, 2>", (10, 15), (20, 30), id=1),
            *launch_memcpy((16, 17), (31, 33), id=2, bytes=9),
            Kernel("lost", 50, 51, None, stream=4294967295),
        )
    source = source_of(path)
    tables = parquet(source, tmp_path)
    folder = write_export(source, "csv", tmp_path / "csv")
    for name, table in tables.items():
        found = pd.read_csv(folder / f"{name}.csv", dtype=str, keep_default_na=False, na_values=[""])
        assert list(found.columns) == list(table.columns)
        for column in table.columns:
            expected = [
                # a cell of CSV does not tell an empty text from none
                None if value in (None, "") else str(value).lower() if isinstance(value, bool) else str(value)
                for value in cells(table[column])
            ]
            assert cells(found[column]) == expected, (name, column)


def test_types_and_descriptions(trace: MakeTrace, tmp_path: Path) -> None:
    """Times are int64, texts dictionaries, and files and columns say what they are."""
    path = trace(Range("step", 0, 100), *launch_kernel("gemm", (10, 15), (20, 30), id=1))
    write_export(source_of(path), "parquet", tmp_path / "out")
    for table in TABLES:
        with pq.ParquetFile(tmp_path / "out" / f"{table.file}.parquet") as file:
            schema = file.schema_arrow
            codec = {file.metadata.row_group(0).column(k).compression for k in range(file.metadata.num_columns)}
        assert codec == {"ZSTD"}
        assert {key.decode(): value.decode() for key, value in schema.metadata.items()} == {
            "nsysprof.schema": "nsysprof-export/1",
            "nsysprof.version": __version__,
            "nsysprof.graphs": "launched",
            "nsysprof.report": "report.sqlite",
            "nsysprof.threads": "follow",
        }
        for field in schema:
            assert field.metadata[b"description"].decode() == table.about[field.name]
            if field.name.endswith("_ns") and "median" not in field.name and "iqr" not in field.name:
                assert str(field.type) == "int64"
            if field.name in ("kind", "name", "path", "merged_path", "family", "cause", "fate", "domain"):
                assert str(field.type) == "dictionary<values=string, indices=int32, ordered=0>"


def test_the_document_beside_the_tables(trace: MakeTrace, tmp_path: Path) -> None:
    """What was exported, how much, and what the columns hold, for formats that cannot say so themselves."""
    path = trace(Range("step", 0, 100), *launch_kernel("gemm", (10, 15), (20, 30), id=1))
    write_export(source_of(path), "csv", tmp_path / "out")
    document = json.loads((tmp_path / "out" / "export.json").read_text(encoding="utf-8"))
    assert document["schema"] == "nsysprof-export/1"
    assert document["report"]["file"] == str(path)
    assert {name: table["rows"] for name, table in document["tables"].items()} == {
        "ops": 1, "launches": 1, "ranges": 1, "instances": 1,
    }  # fmt: skip
    assert [row["sum_ns"] for row in document["ledger"] if row["ops"]] == [10]
    assert document["tables"]["ops"]["columns"] == OPS.about


def test_many_rows_are_several_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are the same however many are written at a time, and a group holds only the texts of its rows."""
    source = source_of(REAL[0])
    whole = parquet(source, tmp_path)
    monkeypatch.setattr(table_files, "_ROW_GROUP", 1000)
    monkeypatch.setattr(table_files, "_ROWS_AT_ONCE", 777)
    (tmp_path / "again").mkdir()
    again = parquet(source, tmp_path / "again")
    for name, table in whole.items():
        for column in table.columns:
            assert cells(table[column]) == cells(again[name][column])
    with pq.ParquetFile(tmp_path / "again" / "out" / "ops.parquet") as file:
        assert file.num_row_groups == -(-len(whole["ops"]) // 1000)
        assert len(file.read_row_group(0)["name"].chunk(0).dictionary) < whole["ops"]["name"].nunique()
    one = write_export(source, "csv", tmp_path / "csv")
    monkeypatch.undo()
    two = write_export(source, "csv", tmp_path / "csv2")
    for name in whole:
        assert (one / f"{name}.csv").read_bytes() == (two / f"{name}.csv").read_bytes()


def test_an_empty_report_has_empty_tables(trace: MakeTrace, tmp_path: Path) -> None:
    """All columns, no rows, in both formats."""
    source = source_of(trace(strings=["nothing"]))
    tables = parquet(source, tmp_path)
    folder = write_export(source, "csv", tmp_path / "csv")
    for declared in TABLES:
        assert list(tables[declared.file].columns) == declared.names
        assert len(tables[declared.file]) == 0
        assert (folder / f"{declared.file}.csv").read_text() == ",".join(declared.names) + "\n"


def test_graphs_and_helper_threads_are_marked(trace: MakeTrace, tmp_path: Path) -> None:
    """A graph traced as a whole is an op of its own kind; work of another thread has the fate `followed`."""
    source = source_of(
        trace(
            Range("backward", 0, 100, thread=1),
            *launch_kernel("k", (10, 15), (20, 30), id=1, thread=2),
            GraphTrace(40, 90, None, graph=5),
        )
    )
    ops = parquet(source, tmp_path)["ops"]
    assert ops["kind"].tolist() == ["kernel", "graph"]
    assert ops["fate"].tolist() == ["followed", "no launch row"]
    assert ops["path"].tolist()[0] == "backward"
    assert pd.isna(ops["grid_x"].tolist()[1])


def test_pyarrow_that_is_missing(trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name and how to install it; CSV needs nothing."""
    source = source_of(trace(*launch_kernel("k", (1, 2), (3, 4), id=1)))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet")
    with pytest.raises(NsysprofError) as caught:
        write_export(source, "parquet", tmp_path / "out")
    assert caught.value.hint == "pip install 'nsysprof[parquet]'"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.sqlite"]
    write_export(source, "csv", tmp_path / "out")


def test_every_column_is_documented_and_made(trace: MakeTrace) -> None:
    """The documentation is the list of columns, in their order."""
    tables = record_tables(source_of(trace(*random_report(3))))
    assert [table.declared for table in tables] == list(TABLES)
    for table in tables:
        assert list(table.columns(slice(0, 5))) == table.declared.names
