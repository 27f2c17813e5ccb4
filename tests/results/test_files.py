"""Writers of tables and documents: what a cell becomes, and files that are whole or not there."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.files import whole_file
from nsysprof.errors import NsysprofError
from nsysprof.results.files import records, write_csv, write_document, writing


def test_cells_of_csv(tmp_path: Path) -> None:
    """Whole floats are integers, others get the digits asked for; bools are 0 and 1, what is not known is empty."""
    columns = {
        "share": [0.123456789, np.nan, np.inf],
        "count": [2.0, 1e300, -1.0],
        "ok": [True, False, True],
        "any": [None, "a,b", 1.0],
    }
    write_csv(pd.DataFrame(columns), tmp_path / "t.csv", digits=3)
    rows = (tmp_path / "t.csv").read_text().splitlines()
    assert rows == ["share,count,ok,any", "0.123,2,1,", f',{int(1e300)},0,"a,b"', ",-1,1,1"]
    write_csv(pd.DataFrame(columns), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == "0.123456789,2,1,"


def test_frames_and_columns_are_written_alike(tmp_path: Path) -> None:
    """A frame, numpy columns, rows in several parts, and columns that depend on a code make one file."""
    table = ColumnTable({"name": Texts(np.array([1, 0, 1]), ["a", 'b"c']), "n_ns": np.arange(3)})
    keyed = ColumnTable(table.columns, {("name", "n_ns"): np.array([5, 3, 7])})
    parts = [table.take(slice(0, 2)), table.take(slice(2, 3))]
    for name, tables in (("a", table), ("b", table.frame()), ("c", parts), ("d", keyed)):
        write_csv(tables, tmp_path / name)
    texts = {path.read_text() for path in tmp_path.iterdir()}
    assert texts == {'name,n_ns\n"b""c",0\na,1\n"b""c",2\n'}


def test_documents_hold_tables_a_row_a_line(tmp_path: Path) -> None:
    """The head is indented, tables follow it; what JSON has no number for is null."""
    frame = pd.DataFrame({"n": [1, 2], "x": [0.5, 1.25]})
    write_document({"schema": "s/1", "é": 1}, tmp_path / "d.json", {"rows": frame, "none": frame[:0]})
    assert (tmp_path / "d.json").read_text(encoding="utf-8") == (
        '{\n "schema": "s/1",\n "é": 1,\n "rows": [\n  {"n": 1, "x": 0.5},\n  {"n": 2, "x": 1.25}\n ],\n'
        ' "none": [\n ]\n}\n'
    )
    rows = records(pd.DataFrame({"x": [2.0, float("nan"), 0.123456789]}), 3)
    assert json.dumps(rows) == '[{"x": 2}, {"x": null}, {"x": 0.123}]'


def test_a_lone_return_is_quoted(tmp_path: Path) -> None:
    """A carriage return alone would end a row for every reader; a text without one stays without quotes."""
    write_csv(pd.DataFrame({"name": ["a\rb"], "n": [1]}), tmp_path / "returns.csv")
    write_csv(pd.DataFrame({"name": ["ab"], "n": [1]}), tmp_path / "plain.csv")
    assert (tmp_path / "returns.csv").read_bytes() == b'name,n\n"a\rb",1\n'
    assert (tmp_path / "plain.csv").read_bytes() == b"name,n\nab,1\n"


def test_large_numbers_stay_exact(tmp_path: Path) -> None:
    """Integers beyond 2^53 are written digit by digit, never through a float."""
    frame = pd.DataFrame({"big_ns": np.array([2**53 + 1, 2**63 - 1, -(2**62) - 1], np.int64)})
    write_csv(frame, tmp_path / "big.csv")
    assert (tmp_path / "big.csv").read_text() == f"big_ns\n{2**53 + 1}\n{2**63 - 1}\n{-(2**62) - 1}\n"


def test_the_name_of_a_failure_is_the_file_that_was_asked_for(tmp_path: Path) -> None:
    """Nobody knows of the name that it has until it is whole."""
    (tmp_path / "x.csv").mkdir()
    for path in (tmp_path / "x.csv", tmp_path / "none" / "y.csv"):
        with pytest.raises(NsysprofError, match=f"cannot write {path}: "), writing(tmp_path), whole_file(path) as part:
            part.write_text("text")
    assert [each.name for each in tmp_path.iterdir()] == ["x.csv"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), None])
def test_what_is_no_number_is_missing_everywhere(tmp_path: Path, value: float | None) -> None:
    """One rule: null in documents, however deep, and in their tables, and empty in CSV."""
    table = ColumnTable({"a_ns": np.array([1.5, value], object)})
    write_document({"deep": [{"in": (value, 2)}]}, tmp_path / "d.json", {"rows": table})
    document = json.loads((tmp_path / "d.json").read_text(encoding="utf-8"))
    assert document == {"deep": [{"in": [None, 2]}], "rows": [{"a_ns": 1.5}, {"a_ns": None}]}
    write_csv(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text(encoding="utf-8") == "a_ns\n1.5\n\n"
