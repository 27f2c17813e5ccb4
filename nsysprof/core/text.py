"""Names and sentences as people read them: what may be shown of a text, how it is shortened, and plurals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from shlex import quote

from nsysprof.core.units import format_count

__all__ = [
    "cut",
    "drop_repeats",
    "join_words",
    "one_line",
    "path_part",
    "plural",
    "printable",
    "quote_path",
    "shorten",
    "shorten_both",
    "visible",
]

_BEFORE_SLASH = re.compile(r"(\\+)(?=/|\Z)")


# ---- what may be shown


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


@lru_cache(maxsize=10_000)
def _printable(character: str) -> str:
    return character if character.isprintable() and not character.isspace() else " "


def printable(text: str) -> str:
    """The text in one line, without what is no character to look at: for charts."""
    return " ".join("".join(map(_printable, text)).split()) or "(no name)"


# ---- how it is shortened


def one_line(text: str, width: int) -> str:
    """For a terminal: visible, on one line without surrounding blanks, its middle left out beyond ``width``."""
    text = visible(" ".join(text.split()))
    return text if len(text) <= width else "…".join(_ends(text, width, (width - 1) // 3))


def shorten(text: str, most: int) -> str:
    """For a chart: printable, with the middle left out beyond ``most`` characters, as both ends tell names apart."""
    # Names may be kilobytes long: what can never be shown is not looked at.
    if len(text) > 4 * most:
        text = text[: 2 * most] + "…" + text[-2 * most :]
    text = printable(text)
    if len(text) <= most:
        return text
    first, last = _ends(text, most, most // 2)
    return f"{first.rstrip()}…{last.lstrip()}"


def cut(text: str, most: int) -> str:
    """Where the beginning tells most: the end left out beyond ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _ends(text: str, most: int, tail: int) -> tuple[str, str]:
    """The beginning and the last ``tail`` characters of a text, both together one less than ``most``."""
    return text[: most - 1 - tail], text[len(text) - tail :]


def shorten_both(
    one: str, other: str, most: int, shortened: Callable[[str, int], str] = shorten
) -> tuple[str, str]:
    """Two names shortened so that they can be told apart, if need be by leaving out what they begin with."""
    short = shortened(one, most), shortened(other, most)
    if short[0] != short[1] or one == other:
        return short
    # both have the same ends, which is what cutting leaves: what follows where they part
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    since = max(same - most // 4, 0)
    short = shortened(f"…{one[since:][: most - 2]}", most), shortened(f"…{other[since:][: most - 2]}", most)
    if short[0] != short[1]:
        return short
    return f"{shortened(one, most - 7)} (base)", f"{shortened(other, most - 6)} (new)"


# ---- within commands and sentences


def quote_path(path: Path) -> str:
    """A path as it is typed after a command: quoted for a shell, and never taken for an option."""
    text = str(path)
    return quote(f"./{text}" if text.startswith("-") else text)


def plural(count: int, noun: str) -> str:
    """`1 range`, `1,234 ranges`, `1.23 M ranges`."""
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


def join_words(texts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def drop_repeats(sentences: Sequence[str]) -> list[str]:
    """Sentences in their order; of those that differ only in numbers and in the name before a colon, the first."""
    alike: dict[str, list[str]] = {}
    for text in sentences:
        alike.setdefault(re.sub(r"\d[\d,.]*", "#", text.partition(": ")[2] or text), []).append(text)
    return [f"{first} ({len(rest)} more like it)" if rest else first for first, *rest in alike.values()]


def path_part(name: str) -> str:
    r"""A name within a path: ``/`` becomes ``\/``, and so that this is clear, ``\`` before it or at the end ``\\``."""
    if "/" not in name and not name.endswith("\\"):
        return name
    return _BEFORE_SLASH.sub(r"\1\1", name).replace("/", "\\/")
