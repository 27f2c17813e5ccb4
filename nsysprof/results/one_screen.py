"""Format results as text: one screen that begins with the verdict, or everything with ``--full``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nsysprof.core.text import cell_count, drop_repeats, join_words, plural, visible
from nsysprof.results.table import TextTable, code_block, escape_markdown, markdown_list, screen_width, wrap

LINES = 40  # of a terminal, with those on stderr that name the files
FILES = 2  # lines on stderr that name them
_LEAST, _GRAVE = 3, 3
# Warnings without which the answer would mislead; all others are notes.
_CHANGES_THE_ANSWER = re.compile(
    r"dropped events|no (?:readable )?GPU (?:work|activity)|cannot be read|unreadable events|not recorded: "
)


@dataclass(frozen=True)
class Rows:
    """A table of a result; one screen shows as many of its rows as fit.

    ``noun``: the word for a row. ``total``: the number of all rows; 0 if the table has all rows. ``code``: whether
    Markdown shows the table verbatim, because blanks indent its names.
    """

    table: TextTable
    noun: str = ""
    total: int = 0
    code: bool = False


def grave(warnings: Sequence[str]) -> list[str]:
    """Return the first few of the warnings that affect the answer."""
    return [each for each in drop_repeats(warnings) if _CHANGES_THE_ANSWER.search(each)][:_GRAVE]


def answer_lines(
    parts: Sequence[str | Rows],
    notes: Sequence[str] = (),
    *,
    more: Sequence[str] = (),
    full: bool = False,
    markdown: bool = False,
    width: int | None = None,
) -> str:
    """Format the text of a result, starting with its headline and ending with a newline.

    Texts (whose lines are already wrapped) are always shown completely. A screen of `LINES` lines shows as many table
    rows as fit, beginning with the first table. The last line says how many words, rows and ``notes`` are omitted
    (``more``). With ``full``, all rows and the notes are shown.
    """
    width = width or screen_width()
    texts = [markdown_list(each) if markdown and isinstance(each, str) else each for each in parts if each]
    shown = {at: len(each.table.rows) for at, each in enumerate(texts) if isinstance(each, Rows)}
    if not full and not markdown:
        shown = _fitting(texts, shown, width)
    out: list[str] = []
    left = [*more]
    for at, each in enumerate(texts):
        if isinstance(each, str):
            out += ["", *each.split("\n")]
            continue
        if each.noun and (beyond := max(each.total, len(each.table.rows)) - shown[at]):
            left.append(plural(beyond, f"more {each.noun}"))
        if shown[at]:
            out += ["", *_table_lines(each, shown[at], markdown, width)]
    if notes and full:
        out += ["", *(line for note in notes for line in wrap(visible(note), "note: ", "      ", width).split("\n"))]
    elif notes:
        left.append(plural(len(notes), "note"))
    if left:
        rest = f"{join_words(left)}: {'--top N, or the files' if full else '--full'}"
        out += ["", escape_markdown(rest) if markdown else rest]
    return "".join(f"{visible(line)}\n" for line in out[1:])


def _table_lines(rows: Rows, count: int, markdown: bool, width: int) -> list[str]:
    table = rows.table.first(count)
    if not markdown:
        return [line for text in table.lines(width=width) for line in text.split("\n")]
    if rows.code:
        return code_block([visible(line) for text in table.lines() for line in text.split("\n")])
    return table.lines(True, even=False)


def _fitting(parts: Sequence[str | Rows], most: dict[int, int], width: int) -> dict[int, int]:
    """How many rows of each table fit a screen: a few of each that has room for them, then more of the first."""
    room = LINES - FILES - 1
    for each in parts:
        if isinstance(each, str):
            room -= 1 + sum(max(-(-cell_count(line) // width), 1) for line in each.split("\n"))
    shown = dict.fromkeys(most, 0)
    for at, rows in most.items():
        table = parts[at].table  # type: ignore[union-attr]
        needed = sum(len(text.split("\n")) for text in table.first(min(rows, _LEAST)).lines(width=width)) + 1
        if needed <= room:
            shown[at] = min(rows, _LEAST)
            room -= needed
    while room > 0 and (wanting := [at for at, rows in most.items() if 0 < shown[at] < rows]):
        for at in wanting[:room]:
            shown[at] += 1
            room -= 1
    return shown
