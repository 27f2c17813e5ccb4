"""Tables of text: aligned, within their width, and the same cells in Markdown."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.text import cell_count
from nsysprof.results.table import (
    WIDTH,
    Column,
    Table,
    TextTable,
    markdown_table,
    screen_width,
    show_columns,
    spread_text,
    text_table,
    without_empty,
)

HEAD, ROWS = ["range", "n", "why"], [["a", "1", "x"], ["bcd efgh", "1,234", ""]]


def test_columns_are_aligned() -> None:
    """Flush left or right, with room after heads, no blank at the end of a line, and indented names as they are."""
    assert text_table(HEAD, [*ROWS, ["  in", "7", "y"]], "lrl").split("\n") == [
        "range         n  why",
        "--------  -----  -----",
        "a             1  x",
        "bcd efgh  1,234",
        "  in          7  y",
    ]


def test_wide_characters_take_two_cells() -> None:
    """Columns stand below one another however wide the characters of a name are, and names are cut to what fits."""
    table = TextTable(["name", "n"], [["日本語", "1"], ["e\u0301", "2"], ["plain", "3"]], "lr")
    lines = table.lines(width=40)[0].splitlines()
    assert len({cell_count(line) for line in lines}) == 1
    [cut] = TextTable(["name", "n"], [["語" * 60, "1"]], "lr").lines(width=40)[0].splitlines()[2:]
    assert 30 < cell_count(cut) <= 40
    assert "…" in cut


def test_a_last_column_is_cut_to_what_is_left() -> None:
    """Beside a first column of short names, too, where the last one takes what the others leave and no more."""
    table = TextTable(["copies", "n", "most in range"], [["HtoD", "1", "x" * 60]], "lrl", last_cut=True)
    for width in range(40, 90):
        assert max(map(len, table.lines(width=width)[0].splitlines())) <= width, width


def test_a_spread_beyond_its_median_is_shown_by_its_ends() -> None:
    """``± 3,335 %`` tells nobody anything: of times that differ so much the least and the most are shown."""
    assert spread_text(1_000, 500, 800, 9_000, 20) == "1.00 µs ± 25 %"
    assert spread_text(1_000, 2_001, 800, 9_000, 20) == "1.00 µs (800 ns–9.00 µs)"


def test_columns_tells_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that goes into a pipe is as wide as ``COLUMNS`` says, where somebody says so."""
    assert screen_width() == WIDTH
    monkeypatch.setenv("COLUMNS", "80")
    assert screen_width() == 80


def test_a_total_stands_apart() -> None:
    """A line is drawn above the last row."""
    lines = text_table(HEAD, ROWS, "lrl", last_apart=True).split("\n")
    assert lines[1] == lines[3]
    assert len(lines) == 5


def test_columns_without_cells_can_be_left_out() -> None:
    """What has a head only is no column."""
    assert without_empty(["a", "b", "c"], [["1", "", "2"], ["3", "", ""]], "lrl") == (
        ["a", "c"],
        [["1", "2"], ["3", ""]],
        "ll",
    )


def test_names_are_cut_to_the_width() -> None:
    """However long a name, no line is wider than the text."""
    table = TextTable(HEAD, [["x" * 300, "1", "y"]], "lrl", "a note")
    assert max(map(len, "\n".join(table.lines(False)).split("\n"))) <= WIDTH


def test_columns_go_where_there_is_no_room() -> None:
    """Those called spare first, in that order, then the last; names are cut only as far as they may, and two stay."""
    rows = [["a name of many letters", "1", "22", "333"], ["  inner", "4", "55", "666"]]
    table = TextTable(["name", "one", "two", "three"], rows, "lrrr", spare=("two", "one"))
    assert table.fit(60)[0] == ["name", "one", "two", "three"]
    assert table.fit(38)[0] == ["name", "one", "three"]
    assert table.fit(28)[0] == ["name", "three"]
    head, cut, align = table.fit(10)
    assert (head, align) == (["name", "three"], "lr")
    assert [row[0] for row in cut] == ["a name of …tters", "  inner"]
    for width in (24, 30, 40, 60, 110):
        assert max(map(len, table.lines(width=width)[0].split("\n"))) <= max(width, 25)


def test_a_note_explains_shown_columns_alone() -> None:
    """What a note says of a column that went for lack of room goes with it; sentences about anything else stay."""
    note = "Shares are of all. one: the first; two: the second, with half: or less. A mark."
    table = TextTable(["name", "one", "two"], [["n" * 20, "1", "2"]], "lrr", note)
    assert " ".join(table.lines(width=40)[1].split()) == note
    assert " ".join(table.lines(width=25)[1].split()) == "Shares are of all. one: the first. A mark."
    table = replace(table, spare=["one"], note="one: the first; two: the second")
    assert table.lines(width=25)[1] == "two: the second"


def test_markdown_shows_cells_as_they_are() -> None:
    """No cell can end its column or become markup; columns are even or as narrow as can be."""
    assert markdown_table(["a", "n"], [["x|y", "1"]], "lr") == ["| a    |   n |", "|:-----|----:|", "| x\\|y |   1 |"]
    assert markdown_table(["a", "n"], [["x|y", "1"]], "lr", even=False) == [
        "| a | n |",
        "| --- | ---: |",
        "| x\\|y | 1 |",
    ]


def test_a_declared_column_makes_head_cells_and_alignment() -> None:
    """By the unit that its name ends with, unless it says otherwise; what is missing reaches no cell."""
    by_name = ("size_bytes", "bytes_per_s", "busy_share", "slow_ratio", "dram_percent")
    declared = Table(
        "t.csv",
        "a row",
        (
            Column("path", "a text"),
            Column("span_ns", "a time", "span"),
            *(Column(name, "a number with its unit") for name in by_name),
            Column("mean", "a number", cell=lambda value: f"{value:.1f}", align="l"),
            Column("count", "a count"),
        ),
    )
    rows = [
        dict(zip(declared.names, ("a/b", 2_420, 1536, 9e11, 0.25, 1.5, 30, 2.25, 1_234), strict=True)),
        {"path": "c", "span_ns": math.nan},
    ]
    shown = declared.show(rows, missing="-")
    assert shown.head[:3] == ["path", "span", "size_bytes"]
    assert shown.rows == [
        ["a/b", "2.42 µs", "1.50 KiB", "900 GB/s", "25 %", "1.50x", "30 %", "2.2", "1,234"],
        ["c", *["-"] * 8],
    ]
    assert shown.align == "lrrrrrrlr"
    assert declared.show(rows[:1], ["count", "path"], note="so").lines() == [
        "  count  path\n-------  ------\n  1,234  a/b",
        "so",
    ]


def test_frames_and_column_tables_are_shown_alike() -> None:
    """With the numbers behind the cells for pages."""
    frame = pd.DataFrame({"name": ["x", "y"], "sum_ns": [1, 1_500]})
    columns = [Column("name", "a text"), Column("sum_ns", "a time", "sum")]
    shown = show_columns(columns, frame, last_apart=True)
    own = ColumnTable({"name": Texts(np.arange(2), ["x", "y"]), "sum_ns": np.array([1, 1_500])})
    assert shown == show_columns(columns, own, last_apart=True)
    assert shown.html() == {
        "head": [{"text": "name", "right": False}, {"text": "sum", "right": True}],
        "rows": [
            [{"text": "x", "right": False, "value": None}, {"text": "1 ns", "right": True, "value": 1}],
            [{"text": "y", "right": False, "value": None}, {"text": "1.50 µs", "right": True, "value": 1500}],
        ],
        "note": "",
        "total": True,
    }
