"""CSV that a spreadsheet opens: names that it would take for formulas, and how they are read back."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from nsysprof import cli
from nsysprof.analyze.breakdown import break_down
from nsysprof.analyze.files import write_tables
from nsysprof.attribution.attribute import attribute
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.check.baseline import read_analysis
from nsysprof.check.budget import Budget
from nsysprof.core.files import make_spreadsheet_safe, undo_spreadsheet_safe
from nsysprof.formats.counters import METRICS, CounterRow, read_counters, write_counter_csv
from nsysprof.results.files import write_csv
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit.trace import Range, launch_kernel

ODD = ['=HYPERLINK("http://x","y")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1"]
FINE = ["-17", "+1.5e-07", "-inf", "a=b", "'quoted'", "", 'a,"b"', "a\r=1"]


def rows_of(path: Path) -> list[list[str]]:
    """The cells of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_formulas_are_made_texts_and_all_else_stays(tmp_path: Path) -> None:
    """A quote stands before what begins like a formula, numbers and other texts are as they were, and it reads back."""
    path = tmp_path / "t.csv"
    path.write_text("name,number\n", encoding="utf-8")
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([cell, "-3"] for cell in [*ODD, *FINE])
    make_spreadsheet_safe(path)
    cells = [row[0] for row in rows_of(path)[1:]]
    assert cells == [*(f"'{cell}" for cell in ODD), *FINE]
    assert {row[1] for row in rows_of(path)[1:]} == {"-3"}
    assert [undo_spreadsheet_safe(cell) for cell in cells] == [*ODD, *FINE]


def test_a_kernel_name_may_be_long(tmp_path: Path) -> None:
    """Names longer than what the csv module takes by itself come through."""
    path = tmp_path / "t.csv"
    path.write_text(f"name\n={'x' * 300_000}\n", encoding="utf-8")
    make_spreadsheet_safe(path)
    assert rows_of(path)[1] == [f"'={'x' * 300_000}"]


@pytest.mark.parametrize("rows", [0, 5_000])
def test_an_analysis_that_is_safe_for_spreadsheets_is_a_baseline(
    trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """`check --baseline` knows the calls of a range whose name got a quote, in `ranges.csv` too where it reads that."""
    monkeypatch.setattr("nsysprof.analyze.files.MOST_ROWS", rows)
    path = trace(*[
        item for at in (0, 1000)
        for item in (Range("=step", at, at + 100), launch_kernel("k", (at + 1, at + 2), (at + 3, at + 9), id=at + 1))
    ])  # fmt: skip
    with open_report(path) as report:
        write_tables(break_down(attribute(read_tables(report)), merge=DEFAULT_MERGE), tmp_path)
    for name in ("instances.csv", "ranges.csv"):
        make_spreadsheet_safe(tmp_path / name)
    assert rows_of(tmp_path / "instances.csv")[1][0] == "'=step"
    found = read_analysis(tmp_path / "analysis.json", Budget(path, (), 0, tuple(DEFAULT_MERGE)))
    assert (found.warnings, found.without_samples) == ((), frozenset())
    assert list(found.samples.keys) == [("=step", "push_pop")]


def test_counters_that_are_safe_for_spreadsheets_are_read(tmp_path: Path) -> None:
    """`compare --counters` finds the range that it was."""
    path = tmp_path / "t.counters.csv"
    row = CounterRow("@step", 0, 7, "k", "4x2x1", "32x1x1", dict.fromkeys(METRICS, 1.0))
    write_counter_csv([row], path)
    make_spreadsheet_safe(path)
    assert rows_of(path)[1][0] == "'@step"
    assert read_counters(path).ranges == ["@step"]


def test_without_the_option_names_are_as_recorded(tmp_path: Path) -> None:
    """What machines read is what was recorded."""
    write_csv(pd.DataFrame({"name": ODD}), tmp_path / "t.csv")
    assert [row[0] for row in rows_of(tmp_path / "t.csv")[1:]] == ODD


@pytest.mark.parametrize("command", [["analyze", "--no-charts"], ["export", "--to", "csv"]])
def test_the_option_is_of_all_tables(
    trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """With it no cell of any table begins like a formula, and all else is as without."""
    path = trace(Range("=a", 0, 100), launch_kernel("@k", (10, 12), (20, 30), id=1))
    for folder, options in (("plain", []), ("safe", ["--spreadsheet-safe"])):
        monkeypatch.setattr(
            "sys.argv",
            ["nsysprof", command[0], str(path), *command[1:], "-o", str(tmp_path / folder), *options],
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
    tables = sorted(each.name for each in (tmp_path / "plain").glob("*.csv"))
    assert len(tables) >= 3
    cells = 0
    for name in tables:
        plain, safe = (rows_of(tmp_path / folder / name) for folder in ("plain", "safe"))
        assert [[undo_spreadsheet_safe(cell) for cell in row] for row in safe] == plain
        assert not [cell for row in safe for cell in row if cell.startswith(("=", "@"))]
        cells += sum(cell.startswith(("=", "@")) for row in plain for cell in row)
    assert cells > 3
