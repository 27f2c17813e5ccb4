"""Match globs with range paths, and pair matches whose wildcards match the same text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from shlex import quote

import numpy as np

from nsysprof.attribution.paths import Paths
from nsysprof.core.text import join_first, one_line
from nsysprof.errors import NsysprofError

_MAX_NAMES = 6
_SIZE = re.compile(r"([BHSD])(\d+)")
_WORDS = re.compile(r"[\w *.=#:+-]+")  # a name that `::` may part: not such as `sort<std::less>(T)`
# What means more than itself in a set of a regular expression, and not in one of a glob.
_SET_SYNTAX = re.compile(r"[\\\[&~|]|-(?=-)")


@dataclass(frozen=True)
class Match:
    """A merged path that a glob matches: its code, its text, and the part of the text that each star, ``?`` or ``[]``
    matches.
    """

    code: int
    text: str
    stars: tuple[str, ...]


def find_matches(merged: Paths, texts: Sequence[str], glob: str, file: str) -> list[Match]:
    """Return the merged paths that equal a glob; if there are none, return all paths that the glob matches. If no path
    matches, return the paths whose last name the glob matches.

    If matching ranges are nested, only the outermost counts. Raises `NsysprofError` with similar names if nothing
    matches.
    """
    match_all = _compiled(glob).fullmatch
    found = {code: Match(code, text, match.groups()) for code, text in enumerate(texts) if (match := match_all(text))}
    if equal := [code for code, text in enumerate(texts) if text == glob]:
        found = {code: found.get(code, Match(code, glob, ())) for code in equal}  # `iter*` names no `iter B*`
    matches = _outermost(merged, found or dict(_by_name(merged, texts, glob)))
    if not matches:
        raise no_match(texts, glob, file)
    return matches


def no_match(texts: Sequence[str], glob: str, file: str) -> NsysprofError:
    """Make the error for a glob that matches no range of a file, with a few similar names."""
    near = near_names(texts, glob)
    known = f"; near it: {', '.join(map(repr, near))}" if near else "; it has no ranges at all"
    return NsysprofError(f"no range of {file} matches {glob!r}{known}", f"nsysprof ranges {quote(file)}")


def _by_name(merged: Paths, texts: Sequence[str], glob: str) -> Iterator[tuple[int, Match]]:
    """Match by name alone; the outer path counts as text that the wildcards match."""
    pattern = _compiled(glob)
    for code, (name, parent) in enumerate(zip(merged.name.tolist(), merged.parent.tolist(), strict=True)):
        if match := pattern.fullmatch(merged.names[name]):
            yield code, Match(code, texts[code], (texts[parent] if parent >= 0 else "", *match.groups()))


def _outermost(merged: Paths, matches: dict[int, Match]) -> list[Match]:
    inside = np.zeros(len(merged) + 1, bool)
    out = []
    for code, parent in enumerate(merged.parent.tolist()):  # parents stand before children
        if not inside[parent] and code in matches:
            out.append(matches[code])
        inside[code] = inside[parent] or code in matches
    return out


@lru_cache(maxsize=32)
def _compiled(glob: str) -> re.Pattern[str]:
    """The glob as a regular expression with `fnmatch` semantics and a group for each wildcard."""
    out, at = "", 0
    while at < len(glob):
        char = glob[at]
        close = glob.find("]", at + 2 + (glob[at + 1 : at + 2] == "!"))
        if char == "[" and close > 0:
            inner = _SET_SYNTAX.sub(r"\\\g<0>", glob[at + 1 : close])
            inner = f"^{inner[1:]}" if inner[0] == "!" else f"\\{inner}" if inner[0] == "^" else inner
            out, at = f"{out}([{inner}])", close + 1
            continue
        out += {"*": "(.*)", "?": "(.)"}.get(char) or re.escape(char)
        at += 1
    try:
        return re.compile(out, re.DOTALL)
    except re.error as error:
        raise NsysprofError(f"{glob!r} is not a valid glob: {error.msg}", "write a literal [ as [[]") from None


def near_names(texts: Sequence[str], wanted: str) -> list[str]:
    """Return a few texts that resemble the wanted text or contain a similar word. If there are no such texts, return
    the first few texts.

    Very long texts are shortened.
    """
    texts = list(dict.fromkeys(text if len(text) <= 300 else one_line(text, 300) for text in texts))
    bare, some = wanted.replace("*", ""), texts[:10_000]
    of_word: dict[str, list[str]] = {}
    for text in some:
        for word in sorted(set(re.findall(r"\w+", text))):
            of_word.setdefault(word, []).append(text)
    words = get_close_matches(bare.rsplit("/", 1)[-1], of_word, _MAX_NAMES, 0.6)
    with_word = dict.fromkeys(text for word in words for text in of_word[word])
    close = get_close_matches(bare, some, _MAX_NAMES, 0.5) or list(with_word)
    return (close or texts)[:_MAX_NAMES]


def pair_up(
    base: Sequence[Match], new: Sequence[Match], globs: tuple[str, str]
) -> tuple[list[tuple[Match, Match]], list[str]]:
    """Pair matches whose wildcards match the same text, in the order of the base matches. Also return warnings about
    matches without a partner.

    A single match of a glob without stars forms a pair with every match of the other side; two single matches form a
    pair. If no matches form a pair, wildcards that match the star of a merged name (`iter*`) are ignored. Raises
    `NsysprofError` if there is still no pair.
    """
    if any(len(side) == 1 and (len(mate) == 1 or not side[0].stars) for side, mate in ((base, new), (new, base))):
        return [(one, other) for one in base for other in new], []
    pairs = _alike(base, new, None) or _alike(base, new, "*")
    if not pairs:
        left, right = (listed([", ".join(match.stars) for match in side]) for side in (base, new))
        raise NsysprofError(
            f"ranges that match {globs[0]!r} have no counterparts that match {globs[1]!r}: the stars stand for {left} "
            f"in the first glob and for {right} in the second",
            "use the same number of stars in both globs; the nth star of each glob must match the same text",
        )
    done = {id(match) for pair in pairs for match in pair}
    alone = [match.text for match in (*base, *new) if id(match) not in done]
    return pairs, [f"not compared, because the other side has no counterpart: {listed(alone)}"] if alone else []


def _alike(base: Sequence[Match], new: Sequence[Match], without: str | None) -> list[tuple[Match, Match]]:
    """Pairs of matches whose wildcards match the same text, ignoring wildcards that match ``without``."""
    places: dict[tuple[str, ...], list[Match]] = {}
    for match in new:
        places.setdefault(tuple(star for star in match.stars if star != without), []).append(match)
    stars = [tuple(star for star in match.stars if star != without) for match in base]
    return [(one, other) for one, key in zip(base, stars, strict=True) for other in places.get(key, ())]


def listed(texts: Sequence[str]) -> str:
    """Join the first few texts, and count the others."""
    return join_first(texts, _MAX_NAMES, repr)


def side_names(base: str, new: str) -> tuple[str, str, str]:
    """Return names for the two ranges of a pair and for their common part: `('math', 'flash', 'S=4096')`.

    If two paths differ in one piece, each range is named by its piece, and the rest of the path is the common part;
    other paths keep their full names. Names are split at ``::``. A piece includes the earlier parts of its name
    (`aten::mm`), except the workloads' upper-case prefix (`RUN` in `RUN::math::S4096`).
    """
    tokens = [_tokens(path) for path in (base, new)]
    if base == new or [mark for mark, _ in tokens[0]] != [mark for mark, _ in tokens[1]]:
        return base, new, ""
    differ = [at for at, (one, other) in enumerate(zip(*tokens, strict=True)) if one != other]
    first, last = differ[0], differ[-1] + 1
    if len(differ) != last - first:
        return base, new, ""
    begin = max(at for at in range(first + 1) if tokens[0][at][0] != "::")
    if not tokens[0][begin][1].isupper():
        first = begin
    lead = len(tokens[0][first][0])
    one, other = ("".join(mark + part for mark, part in side[first:last])[lead:] for side in tokens)
    shared = [part for _, part in (*tokens[0][:first], *tokens[0][last:]) if part != "RUN"]
    return (one, other, " ".join(_SIZE.sub(r"\1=\2", part) if _SIZE.fullmatch(part) else part for part in shared))


def _tokens(path: str) -> list[tuple[str, str]]:
    """The parts of a path, each with the separator before it; a name that contains more than words is one part."""
    return [
        ("::" if within else "/" if at else "", part)
        for at, name in enumerate(re.split(r"(?<!\\)/", path))
        for within, part in enumerate(name.split("::") if _WORDS.fullmatch(name) else [name])
    ]
