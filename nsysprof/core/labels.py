"""Names as texts of a chart: in one line, and no longer than there is room."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=10_000)
def _printable(character: str) -> str:
    return character if character.isprintable() and not character.isspace() else " "


def printable(text: str) -> str:
    """The text in one line, without what is no character to look at."""
    return " ".join("".join(map(_printable, text)).split()) or "(no name)"


def shorten(text: str, most: int) -> str:
    """A printable text of at most ``most`` characters, with its middle left out: both ends tell names apart."""
    # Names may be kilobytes long: what can never be shown is not looked at.
    if len(text) > 4 * most:
        text = text[: 2 * most] + "…" + text[-2 * most :]
    text = printable(text)
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head].rstrip()}…{text[len(text) - (most - 1 - head) :].lstrip()}"
