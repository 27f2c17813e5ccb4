"""Text and tables made for one width, plain or as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

from nsysprof.core.terminal import one_line, visible
from nsysprof.core.units import format_ns, format_share
from nsysprof.statistics.summary import LEAST_SAMPLES

WIDTH = 110
_LEAST_NAME = 16
_LISTED = re.compile(r"^(\d*)([-+.)])(?=\s)")  # what would begin a list


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are texts, for whatever shows it: ``align`` has an `l` or an `r` per column.

    ``last_apart``: the last row is a total; ``note`` stands below the table.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str
    note: str
    last_apart: bool = False

    def lines(self, markdown: bool) -> list[str]:
        """The table as lines of text, its note below it, which Markdown would take for another row."""
        table = column_table(self.head, self.rows, markdown, self.align, last_apart=self.last_apart)
        return [table, "", escaped(self.note)] if markdown else [table, wrapped(self.note, "", "")]


def escaped(text: str) -> str:
    """Text of a report that GitHub shows as it is: no table, markup or mention comes of it."""
    out = "".join(f"\\{char}" if char in "\\`*_[]<>|~&#" else char for char in visible(text))
    return _LISTED.sub(r"\1\\\2", out.replace("@", "@\u200b"))


def fenced(lines: Sequence[str]) -> list[str]:
    """The lines as a block of code in Markdown, which nothing in them ends."""
    ticks = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(ticks + 1, 3)
    return [f"{fence}text", *lines, fence]


def spread_text(median: int, iqr: int, low: int, high: int, count: int) -> str:
    """`118 µs ± 0.3 %`: the median with half the IQR; of few samples how far they reach: `118 µs (90.1 µs–131 µs)`.

    Nothing without samples, the median alone where there is one, or a median of 0.
    """
    if not count:
        return ""
    if count == 1 or median <= 0:
        return format_ns(median)
    if count < LEAST_SAMPLES and low == high:
        return f"{format_ns(median)} (all)"
    if count < LEAST_SAMPLES:
        return f"{format_ns(median)} ({format_ns(low)}–{format_ns(high)})"
    return f"{format_ns(median)} ± {format_share(iqr / 2 / median)}"


def wrapped(text: str, first: str, others: str) -> str:
    """The text in lines of at most `WIDTH`, the ``first`` and the ``others`` each after theirs."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def column_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    markdown: bool,
    align: str,
    *,
    last_apart: bool = False,
) -> str:
    """Columns of text, flush left (`l`) or right (`r`); ``last_apart`` draws a line above the last row, a total."""
    sides = [{"l": "left", "r": "right"}[each] for each in align]
    if markdown:
        head, *cells = [[escaped(cell) for cell in row] for row in (head, *rows)]
        return str(tabulate(cells, headers=head, tablefmt="pipe", colalign=sides, disable_numparse=True))
    body = tabulate(
        _fitted(head, rows), headers=head, tablefmt="simple", colalign=sides, disable_numparse=True
    )
    lines = [line.rstrip() for line in body.splitlines()]
    if last_apart:
        lines.insert(-1, lines[1])
    return "\n".join(lines)


def _fitted(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows with names in the first column short enough for the width of the text."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    room = WIDTH - sum(widths[1:]) - 4 * (len(widths) - 1)  # tabulate pads a head by up to two blanks more
    return [[one_line(first, max(room, _LEAST_NAME)), *others] for first, *others in rows]
