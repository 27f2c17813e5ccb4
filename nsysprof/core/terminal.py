"""What of a report's text may reach a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence


def visible(text: str) -> str:
    r"""The text with every character that a terminal would obey instead of show written out, as ``\x1b``.

    Names of ranges and kernels, messages and paths come from the program that was profiled: they may hold escape
    sequences, bells, NULs and marks that reverse the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def one_line(text: str, width: int) -> str:
    """The text on one line without surrounding blanks, visible, shortened in the middle to at most ``width``."""
    text = visible(" ".join(text.split()))
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def once(sentences: Sequence[str]) -> list[str]:
    """Sentences in their order; of those that differ only in numbers and in the name before a colon, the first."""
    alike: dict[str, list[str]] = {}
    for text in sentences:
        alike.setdefault(re.sub(r"\d[\d,.]*", "#", text.partition(": ")[2] or text), []).append(text)
    return [f"{first} ({len(rest)} more like it)" if rest else first for first, *rest in alike.values()]
