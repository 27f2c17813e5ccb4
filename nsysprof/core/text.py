"""Names and sentences for users: escaping, shortening, quoting, plurals and lists."""

import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from shlex import quote
from unicodedata import combining, east_asian_width

from nsysprof.core.units import format_count
from nsysprof.errors import NsysprofError

_BEFORE_SLASH = re.compile(r"(\\+)(?=/|\Z)")


def visible(text: str) -> str:
    r"""Escape every character that a terminal would interpret instead of showing it, such as ``\x1b``.

    Names of ranges and kernels, messages and paths come from the profiled program, so they may contain escape
    sequences, bells, NULs and marks that reverse the writing direction.
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
    """Put a text on one line for charts, and leave out characters without a glyph."""
    return " ".join("".join(map(_printable, text)).split()) or "(no name)"


def cell_count(text: str) -> int:
    """Return the number of terminal cells of a text: two for a wide character, none for a combining mark."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text)


def one_line(text: str, width: int) -> str:
    """Shorten a text for a terminal: escaped, stripped, on one line, and without its middle if over ``width``."""
    text = visible(" ".join(text.split()))
    return text if len(text) <= width else "…".join(_ends(text, width, (width - 1) // 3))


def shorten(text: str, most: int) -> str:
    """Shorten a text for a chart: make it printable, and leave out its middle if it is too long (names differ mostly at
    the ends).
    """
    # Names may be kilobytes long: skip what can never be shown.
    if len(text) > 4 * most:
        text = text[: 2 * most] + "…" + text[-2 * most :]
    text = printable(text)
    if len(text) <= most:
        return text
    first, last = _ends(text, most, most // 2)
    return f"{first.rstrip()}…{last.lstrip()}"


def cut(text: str, most: int) -> str:
    """Shorten a text to ``most`` characters by removing its end."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _ends(text: str, most: int, tail: int) -> tuple[str, str]:
    """Return the beginning and the last ``tail`` characters of a text, together one less than ``most``."""
    return text[: most - 1 - tail], text[len(text) - tail :]


def shorten_all(texts: Sequence[str], most: int, shortened: Callable[[str, int], str] = shorten) -> list[str]:
    """Shorten the names of one list so that they stay distinct: names that would become equal show the part in which
    they differ.
    """
    short = [shortened(text, most) for text in texts]
    alike: dict[str, list[int]] = {}
    for at, text in enumerate(short):
        if len(texts[at]) > most:
            alike.setdefault(text, []).append(at)
    begin, end = list(short), list(short)
    for rows in alike.values():
        names = [texts[at] for at in rows]
        if len(set(names)) > 1:
            same, after = _shared(names)
            longest = max(map(len, names))
            at_begin, at_end = longest - most + 1, longest - after - most + 2
            for tried, since in ((begin, min(same - most // 4, at_begin)), (end, min(same, at_end))):
                for at, name in zip(rows, names, strict=True):
                    piece = name[max(since, 0) :]
                    piece = piece if len(piece) < most else f"{piece[: most - 2]}…"
                    tried[at] = shortened(f"…{piece}" if since > 0 else piece, most)
    return max(begin, end, key=lambda names: len(set(names)))


def _shared(names: Sequence[str]) -> tuple[int, int]:
    """Count the characters that are common to the beginnings and to the ends of all names (not all names are equal)."""

    def count(each: Sequence[str]) -> int:
        first, last = min(each), max(each)  # what these two share, all do
        pairs = enumerate(zip(first, last, strict=False))
        return next((at for at, (one, other) in pairs if one != other), min(len(first), len(last)))

    return count(names), count([name[::-1] for name in names])


def shorten_both(one: str, other: str, most: int, shortened: Callable[[str, int], str] = shorten) -> tuple[str, str]:
    """Shorten two names so that they stay distinct, if necessary by removing their common start."""
    first, second = shorten_all((one, other), most, shortened)
    if first != second or one == other:
        return first, second
    return f"{shortened(one, most - 7)} (base)", f"{shortened(other, most - 6)} (new)"


def quote_path(path: str | os.PathLike[str]) -> str:
    r"""Quote a path for a command line, so that a shell reads it as one word and no command takes it for an option.

    Control characters are escaped in the way that bash and zsh read: ``$'a\x1bb'``.
    """
    text = os.fspath(path)
    text = f"./{text}" if text.startswith("-") else text
    if text.isprintable():
        return quote(text)
    shown = (
        each if each.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(each))
        for each in text.replace("\\", "\\\\").replace("'", "\\'")
    )
    return f"$'{''.join(shown)}'"


def quote_glob(glob: str) -> str:
    """Quote a glob for a command line; control characters become ``?``, which matches them."""
    return quote("".join(each if each.isprintable() else "?" for each in glob))


def path_option(path: str, option: str = "--range") -> str:
    """Compose the option that names a range path, in which ``[`` is literal."""
    return f"{option} {quote_glob(path.replace('[', '[[]'))}"


def command_line(name: str, *words: str | os.PathLike[str]) -> str:
    """Compose a command of nsysprof: paths are quoted, texts are words as they stand, and empty texts are left out."""
    quoted = (each if isinstance(each, str) else quote_path(each) for each in words)
    return " ".join(["nsysprof", name, *filter(None, quoted)])


def next_line(command: str) -> str:
    """Format the line that shows the next command, to be copied."""
    return f"   $ {command}"


def plural(count: int, noun: str) -> str:
    """Count a noun: `1 range`, `1,234 ranges`, `1.23 M ranges`."""
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


def join_words(texts: Sequence[str]) -> str:
    """Join texts: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def join_first(texts: Sequence[str], most: int, shown: Callable[[str], str] = str) -> str:
    """Join the first texts, each formatted by ``shown``, and count the others: `a, b and 3 more`."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(map(shown, texts[:most])) + more


def drop_repeats(sentences: Sequence[str]) -> list[str]:
    """Merge sentences that differ only in numbers and in the name before a colon: keep the first sentence, and add the
    number of merged sentences.
    """
    alike: dict[str, list[str]] = {}
    for text in sentences:
        alike.setdefault(re.sub(r"\d[\d,.]*", "#", text.partition(": ")[2] or text), []).append(text)
    return [f"{first} ({len(rest)} more like it)" if rest else first for first, *rest in alike.values()]


def read_list(text: str, option: str, known: Sequence[str], alone: str) -> list[str] | None:
    """Split the comma-separated words of an option; returns None for the word ``alone``.

    Raises `NsysprofError` for a word that is not ``known``.
    """
    names = [name.strip() for name in text.split(",")] if text != alone else None
    for name in names or ():
        if name not in known:
            hint = f"--{option} {alone}, or any of {','.join(known)}, comma-separated"
            raise NsysprofError(f"unknown {option}: {name!r}", hint)
    return names


def path_part(name: str) -> str:
    r"""Escape a name within a path: ``/`` becomes ``\/``; a ``\`` before a ``/`` or at the end becomes ``\\``."""
    if "/" not in name and not name.endswith("\\"):
        return name
    return _BEFORE_SLASH.sub(r"\1\1", name).replace("/", "\\/")
