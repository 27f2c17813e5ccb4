"""Tables of text: aligned, within their width, and the same cells in Markdown."""

from __future__ import annotations

from nsysprof.results.table import WIDTH, TextTable, fit_width, markdown_table, text_table, without_empty

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
    assert fit_width(["a"], [[" b "]]) == [["b"]]


def test_markdown_shows_cells_as_they_are() -> None:
    """No cell can end its column or become markup; columns are even or as narrow as can be."""
    assert markdown_table(["a", "n"], [["x|y", "1"]], "lr") == [
        "| a    |   n |",
        "|:-----|----:|",
        "| x\\|y |   1 |",
    ]
    assert markdown_table(["a", "n"], [["x|y", "1"]], "lr", even=False) == [
        "| a | n |",
        "| --- | ---: |",
        "| x\\|y | 1 |",
    ]
