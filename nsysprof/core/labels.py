"""Names as texts of a chart: in one line, and no longer than there is room."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import takewhile


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


def shorten_both(
    one: str, other: str, most: int, cut: Callable[[str, int], str] = shorten
) -> tuple[str, str]:
    """Two names shortened by ``cut`` so that they can be told apart, if need be by leaving out what they begin with."""
    short = cut(one, most), cut(other, most)
    if short[0] != short[1] or one == other:
        return short
    # both have the same ends, which is what cutting leaves: what follows where they part
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    since = max(same - most // 4, 0)
    short = cut(f"…{one[since:][: most - 2]}", most), cut(f"…{other[since:][: most - 2]}", most)
    if short[0] != short[1]:
        return short
    return f"{cut(one, most - 7)} (base)", f"{cut(other, most - 6)} (new)"
