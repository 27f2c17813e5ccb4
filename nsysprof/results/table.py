"""Declare tables once for files and display: as text of a given width, as Markdown, and for pages."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nsysprof.core import units
from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import cell_count, drop_repeats, one_line, plural, shorten_all, visible
from nsysprof.statistics.summary import LEAST_SAMPLES

if TYPE_CHECKING:
    import pandas as pd

    Rows = ColumnTable | pd.DataFrame | Iterable[Mapping[str, Any]]

WIDTH = 110  # of text that goes into a pipe or a file, so that it is always the same
_NARROWEST, _WIDEST = 60, 200  # terminals: in wider ones lines are hard to read
_MIN_NAME_WIDTH, _MIN_LAST_WIDTH, _MAX_INDENT = 16, 24, 24
MAX_WARNINGS, _WARNING_WIDTH = 12, 400
_AFTER_HEAD = 2  # blanks, so that heads of narrow columns stand apart
_UNIT = re.compile(r"(?<=\d) (?=%|[nµm]?s\b|[KMGT]?i?B\b)")
_LIST_ITEM = re.compile(r"^(\d*)([-+.)])(?=\s)")  # at the beginning of a line of Markdown


@dataclass(frozen=True)
class Column:
    """A column, declared once for its file and for display.

    ``name`` is the name in the file, which is an interface and ends with the unit (``span_ns``, ``size_bytes``,
    ``share``). ``about`` describes the column. The other fields are for display: ``head`` is the heading (default:
    ``name``); ``cell`` formats a value (default: by the unit, see `format_by_name`); ``align`` is `l` or `r` (default:
    `l` for texts, `r` for numbers). ``cell`` is never called with missing values (None or NaN).
    """

    name: str
    about: str
    head: str | None = None
    cell: Callable[[Any], str] | None = None
    align: str | None = None

    def text(self, value: Any, missing: str = "") -> str:
        """A value as displayed."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return missing
        return self.cell(value) if self.cell else format_by_name(self.name, value)


@dataclass(frozen=True)
class Table:
    """A table that is written to ``file``: the meaning of a row, and the columns in order.

    ``made_in`` is the package file that makes the rows, if another file declares the table.
    """

    file: str
    row: str
    columns: tuple[Column, ...]
    made_in: str = ""

    @property
    def names(self) -> list[str]:
        """The header of the file."""
        return [column.name for column in self.columns]

    @property
    def about(self) -> dict[str, str]:
        """The description of each column."""
        return {column.name: column.about for column in self.columns}

    def of(self, rows: Any) -> Any:
        """Return the declared columns of a DataFrame or a `ColumnTable`; a `KeyError` names columns without values."""
        self._refuse_lacking(self.names, list(rows.columns))
        if isinstance(rows, ColumnTable):
            return ColumnTable({name: rows.columns[name] for name in self.names})
        return rows[self.names]

    def header(
        self, rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None, also: Iterable[str] = ()
    ) -> list[str]:
        """Return the columns of a DataFrame for ``rows``: ``names``, or all columns; a `KeyError` names columns missing
        in all rows.

        ``also`` adds columns that get their values later.
        """
        header = list(names or self.names)
        if rows:
            self._refuse_lacking(header, [*dict.fromkeys(name for row in rows for name in row), *also])
        return header

    def _refuse_lacking(self, names: Sequence[str], known: Sequence[str]) -> None:
        if lacking := [name for name in names if name not in known]:
            raise KeyError(
                f"{self.file} declares {', '.join(map(repr, lacking))} without values: in nsysprof/{self.made_in} add"
                f" {lacking[0]!r} beside {', '.join(map(repr, known[:3]))}, where its rows are made"
            )

    def show(self, rows: Rows, names: Iterable[str] | None = None, **more: Any) -> TextTable:
        """Show the columns ``names`` (None: all) of rows of the table; ``more`` as in `show_columns`."""
        columns = {column.name: column for column in self.columns}
        return show_columns([columns[name] for name in names or columns], rows, **more)

    def dictionary(self) -> list[str]:
        """Describe the columns in a Markdown table; columns with the same text share a row."""
        texts = dict.fromkeys(column.about for column in self.columns)
        rows = [[", ".join(f"`{each.name}`" for each in self.columns if each.about == about), about] for about in texts]
        return markdown_table(["column", "holds"], rows, "ll", escape=lambda cell: cell.replace("|", "\\|"), even=False)


def table(file: str, row: str, columns: Mapping[str, str | Column], made_in: str = "") -> Table:
    """Declare a table. A key of ``columns`` is a column name, or several names (separated by blanks) that share one
    description.

    A value is a description, or a `Column` with head, cell and alignment, whose name is the key.
    """
    each = (
        replace(about, name=name) if isinstance(about, Column) else Column(name, about)
        for names, about in columns.items()
        for name in names.split()
    )
    return Table(file, row, tuple(each), made_in)


def show_columns(
    columns: Sequence[Column],
    rows: Rows,
    *,
    note: str = "",
    last_apart: bool = False,
    missing: str = "",
    spare: Sequence[str] = (),
    last_cut: bool = False,
    least: int = _MIN_NAME_WIDTH,
) -> TextTable:
    """Show ``columns`` of ``rows`` (dictionaries, a DataFrame or a `ColumnTable`) as a `TextTable`, for any display.

    ``missing`` replaces missing values. `TextTable.values` are the numbers by which pages sort.
    """
    values = [[record.get(column.name) for column in columns] for record in row_dicts(rows)]
    align = ""
    for column, cells in zip(columns, zip(*values, strict=True) if values else ((),) * len(columns), strict=True):
        align += column.align or ("l" if any(isinstance(cell, str) for cell in cells) else "r")
    return TextTable(
        [column.name if column.head is None else column.head for column in columns],
        [[column.text(value, missing) for column, value in zip(columns, row, strict=True)] for row in values],
        align,
        note,
        last_apart,
        [[value if isinstance(value, int | float) else None for value in row] for row in values],
        spare,
        last_cut,
        least=least,
    )


def row_dicts(rows: Rows) -> list[dict[str, Any]]:
    """Return the rows of a table as dictionaries, with column names as keys."""
    if isinstance(rows, ColumnTable):
        return list(rows.records())
    return list(rows.to_dict("records") if hasattr(rows, "to_dict") else rows)


def format_by_name(name: str, value: Any) -> str:
    """Format a value by the unit at the end of its column name, other numbers as counts; texts stay unchanged."""
    if isinstance(value, str):
        return value
    last = name.rsplit("_", 1)[-1]
    if name.endswith("bytes_per_s"):
        return units.format_bandwidth(value)
    if last in _FORMATS:
        return _FORMATS[last](value)
    return units.format_count(int(value)) if float(value).is_integer() else f"{value:,.4g}"


_FORMATS: dict[str, Callable[[Any], str]] = {
    "ns": units.format_ns,
    "bytes": units.format_bytes,
    "share": units.format_share,
    "ratio": units.format_ratio,
    "speedup": units.format_ratio,
    "percent": lambda percent: units.format_share(percent / 100),
}


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are texts, ready for any display: ``align`` has an `l` or an `r` per column.

    ``last_apart``: whether the last row is a total; ``note`` is written below the table. ``values`` are the numbers
    behind the cells, if known. If not all columns fit, the ``spare`` columns are dropped first, in this order, and then
    the last columns. With ``last_cut``, texts of the last column are cut to the remaining width. The last column is
    dropped before names in the first column are cut. Each column is at least ``after_head`` wider than its head. Names
    in the first column keep at least ``least`` characters.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str
    note: str = ""
    last_apart: bool = False
    values: Sequence[Sequence[float | None]] | None = None
    spare: Sequence[str] = ()
    last_cut: bool = False
    after_head: int = _AFTER_HEAD
    least: int = _MIN_NAME_WIDTH

    def lines(self, markdown: bool = False, *, even: bool = True, width: int | None = None) -> list[str]:
        """Return the table as lines of text of a ``width``, with its note separate so that Markdown does not read it as
        a row.

        The default ``width`` is `screen_width`. In Markdown without ``even``, columns are as narrow as possible.
        """
        if markdown:
            note = ["", escape_markdown(self.note)] if self.note else []
            return [*markdown_table(self.head, self.rows, self.align, even=even), *note]
        head, rows, align = self.fit(width or screen_width())
        left = _note_without(self.note, [name for name in self.head if name not in head])
        table = text_table(head, rows, align, last_apart=self.last_apart, after_head=self.after_head)
        return [table, *([wrap(left, "", "", width)] if left else [])]

    def fit(self, width: int) -> tuple[list[str], list[list[str]], str]:
        """Return head, rows and alignment that fit the width: columns are dropped first, then names in the first column
        are shortened.

        At least two columns remain.
        """
        widths = _widths(self.head, self.rows, self.after_head)
        shown, last = list(range(len(self.head))), len(self.head) - 1
        spare = [self.head.index(name) for name in self.spare if name in self.head]
        spare += [place for place in reversed(shown[1:]) if place not in spare]
        if self.last_cut:
            widths[last] = min(widths[last], max(_MIN_LAST_WIDTH, len(self.head[last]) + self.after_head))
        narrowest = min(widths[0], max(self.least, len(self.head[0]) + self.after_head))

        def left() -> int:
            return width - sum(widths[place] + 2 for place in shown[1:])

        while len(shown) > 2 and left() < (widths[0] if self.last_cut and last in shown else narrowest):
            shown.remove(spare.pop(0))
        most = max(left(), narrowest)
        widths[last] += max(most - widths[0], 0)
        head, *rows = ([row[place] for place in shown] for row in (self.head, *self.rows))
        names = _shortened([row[0] for row in rows], most)
        short = [[name, *map(str.strip, row[1:])] for name, row in zip(names, rows, strict=True)]
        if self.last_cut and last in shown:
            short = [[*row[:-1], one_line(row[-1], widths[last])] for row in short]
        return head, short, "".join(self.align[place] for place in shown)

    def first(self, count: int) -> TextTable:
        """Return the table with only its first rows and its total."""
        if count >= len(self.rows):
            return self
        count -= self.last_apart
        last = slice(len(self.rows) - self.last_apart, None)
        values = self.values and [*self.values[:count], *self.values[last]]
        return replace(self, rows=[*self.rows[:count], *self.rows[last]], values=values)

    def html(self) -> dict[str, Any]:
        """Return the table for the macro ``text_table`` of pages, with the numbers as ``data-v``."""
        sides = [side == "r" for side in self.align]
        values = self.values or [[None] * len(sides)] * len(self.rows)
        return {
            "head": [{"text": text, "right": right} for text, right in zip(self.head, sides, strict=True)],
            "rows": [
                [{"text": text, "right": right, "value": value} for text, right, value in zip(*row, strict=True)]
                for row in zip(self.rows, [sides] * len(self.rows), values, strict=True)
            ],
            "note": self.note,
            "total": self.last_apart,
        }


def escape_markdown(text: str) -> str:
    """Escape text of a report for GitHub, so that it creates no table, markup or mention."""
    out = "".join(f"\\{char}" if char in "\\`*_[]<>|~&#" else char for char in visible(text))
    return _LIST_ITEM.sub(r"\1\\\2", out.replace("@", "@\u200b"))


def markdown_list(sentences: str) -> str:
    """Numbered sentences as a Markdown list."""
    lines = (re.match(r"(\d+\. | *)(.*)", line) for line in sentences.split("\n"))
    return "\n".join(f"{line[1]}{escape_markdown(line[2])}" for line in lines if line)


def code_block(lines: Sequence[str]) -> list[str]:
    """Make lines a Markdown code block, with a fence that the content cannot end."""
    ticks = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(ticks + 1, 3)
    return [f"{fence}text", *lines, fence]


def spread_text(median: int, iqr: int, low: int, high: int, count: int) -> str:
    """Format the median with half the IQR (`118 µs ± 0.3 %`) or, with few samples, with minimum and maximum (`118 µs
    (90.1 µs–131 µs)`).

    Minimum and maximum are also shown if half the IQR exceeds the median. The text is empty without
    samples, and has only the median for one sample or a median of 0.
    """
    if not count:
        return ""
    if count == 1 or median <= 0:
        return units.format_ns(median)
    if count < LEAST_SAMPLES and low == high:
        return f"{units.format_ns(median)} (all)"
    if count < LEAST_SAMPLES or iqr > 2 * median:
        return f"{units.format_ns(median)} ({units.format_ns(low)}–{units.format_ns(high)})"
    return f"{units.format_ns(median)} ± {units.format_share(iqr / 2 / median)}"


def screen_width() -> int:
    """Return the width of text: the width of the terminal, or ``COLUMNS`` if set, otherwise `WIDTH`."""
    if "COLUMNS" not in os.environ and (sys.stdout is None or not sys.stdout.isatty()):
        return WIDTH
    return min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)


def wrap(text: str, first: str, others: str, width: int | None = None) -> str:
    """Break a text into lines of a ``width`` (default: the screen's), with prefixes for the ``first`` and the
    ``others``.

    A number and its unit stay together.
    """
    glued = textwrap.fill(
        _UNIT.sub("\0", text),
        width or screen_width(),
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return glued.replace("\0", " ")


def warning_lines(warnings: Sequence[str], file: str, markdown: bool = False) -> list[str]:
    """Format warnings below a head. Similar warnings are joined. If there are more than `MAX_WARNINGS`, the text names
    the ``file`` with all warnings.
    """
    alike = drop_repeats(warnings)
    shown, more = [one_line(text, _WARNING_WIDTH) for text in alike[:MAX_WARNINGS]], len(alike) - MAX_WARNINGS
    if markdown:
        lines = [f"- warning: {escape_markdown(text)}" for text in shown]
    else:
        lines = [line for text in shown for line in wrap(text, "  warning  ", " " * 11).split("\n")]
    return [*lines, f"{'-' * markdown or ' '} {plural(more, 'more warning')}: see {file}"] if more > 0 else lines


def text_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: str,
    *,
    last_apart: bool = False,
    after_head: int = _AFTER_HEAD,
) -> str:
    """Align columns of text left (`l`) or right (`r`), with rulers below the head and above a total (``last_apart``).

    Each column is at least ``after_head`` wider than its head. No line ends with a blank.
    """
    widths = _widths(head, rows, after_head)
    lines = ["  ".join(_aligned(row, widths, align)).rstrip() for row in (head, *rows)]
    ruler = "  ".join("-" * width for width in widths)
    total = [ruler, lines.pop()] if last_apart else []
    return "\n".join([lines[0], ruler, *lines[1:], *total])


def markdown_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: str,
    *,
    escape: Callable[[str], str] = escape_markdown,
    even: bool = True,
) -> list[str]:
    """Return the lines of a table in Markdown, with equally wide columns if ``even``."""
    head, *rows = ([escape(cell) for cell in row] for row in (head, *rows))
    if even:
        widths = _widths(head, rows, _AFTER_HEAD)
        head, *rows = (_aligned(row, widths, align) for row in (head, *rows))
        rulers = [f":{'-' * (w + 1)}" if a == "l" else f"{'-' * (w + 1)}:" for w, a in zip(widths, align, strict=True)]
        ruler = f"|{'|'.join(rulers)}|"
    else:
        ruler = f"| {' | '.join({'l': '---', 'r': '---:'}[each] for each in align)} |"
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [lines[0], ruler, *lines[1:]]


def markdown_section(title: str, *parts: Sequence[str]) -> Iterator[str]:
    """Yield a section with its parts, each after an empty line; yield nothing if all parts are empty."""
    if any(parts):
        yield ""
        yield f"## {title}"
        for part in parts:
            if part:
                yield ""
                yield from part


def without_empty(
    head: Sequence[str], rows: Sequence[Sequence[str]], align: str
) -> tuple[list[str], list[list[str]], str]:
    """Remove columns without text in their cells."""
    shown = [place for place in range(len(head)) if any(row[place] for row in rows)]
    picked = [[row[place] for place in shown] for row in (head, *rows)]
    return picked[0], picked[1:], "".join(align[place] for place in shown)


def _note_without(note: str, left_out: Iterable[str]) -> str:
    """Leave out of a note what explains columns that are not shown: `name: …` up to the next `;` or full stop."""
    for name in filter(None, left_out):
        meaning = rf"(^|[.;] ){re.escape(name)}: .*?(; |\. |\.?$)"
        note = re.sub(meaning, lambda found: found[1] if found[2] == "; " else ". " if found[1] else "", note)
    return note.rstrip()


def _shortened(names: Sequence[str], most: int) -> list[str]:
    """Names on one line, with their indentation, shortened so that names of one level stay distinct."""
    levels: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        levels.setdefault(name[: len(name) - len(name.lstrip(" "))][:_MAX_INDENT], []).append(at)
    short = list(names)
    for lead, rows in levels.items():
        room = max(most - len(lead), _MIN_NAME_WIDTH // 2)
        level = [" ".join(names[at].split()) for at in rows]
        cut, most_characters = shorten_all(level, room, one_line), room
        while (beyond := max(map(cell_count, cut)) - room) > 0 and most_characters > 2:  # wide characters
            most_characters = max(most_characters - (beyond + 1) // 2, 2)
            cut = shorten_all(level, most_characters, one_line)
        for at, name in zip(rows, cut, strict=True):
            short[at] = lead + name
    return short


def _widths(head: Sequence[str], rows: Sequence[Sequence[str]], after_head: int) -> list[int]:
    columns = zip(head, *rows, strict=True)
    return [max(len(first) + after_head, *map(cell_count, cells), 0) for first, *cells in columns]


def _aligned(row: Sequence[str], widths: Sequence[int], align: str) -> list[str]:
    blanks = [" " * (width - cell_count(cell)) for cell, width in zip(row, widths, strict=True)]
    return [cell + blank if side == "l" else blank + cell for cell, blank, side in zip(row, blanks, align, strict=True)]
