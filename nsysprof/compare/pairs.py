"""Which sides stand against which: pairs of ranges of one report or of two, and in what they are not alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsysprof.attribution.globs import Match, find_matches, listed, near_names, pair_up, side_names
from nsysprof.attribution.paths import Instances, instances_text
from nsysprof.compare.attention_model import unlike_shapes
from nsysprof.compare.selection import Examined, Side, pick, side_warnings, sides
from nsysprof.errors import NsysprofError
from nsysprof.trace.trace import START_END

MOST_PAIRS = 200
_EVERYTHING = "*"
Matched = list[tuple[Match, Match]]


@dataclass(frozen=True)
class Pair:
    """Two sides, and what to call them: ``name`` of the pair, of ``base``, of ``new``, and the ``place`` they share."""

    name: str
    base_name: str
    new_name: str
    place: str
    base: Side
    new: Side

    @property
    def titles(self) -> tuple[str, str]:
        """The paths of both sides, with their files where these are two."""
        if self.base.examined is self.new.examined:
            return self.base.title, self.new.title
        return f"{self.base.examined.path}, {self.base.title}", f"{self.new.examined.path}, {self.new.title}"


def check_request(base: str | None, new: str | None, select: str | None, *, one_report: bool) -> None:
    """Raise `NsysprofError` where the globs do not say what to compare."""
    if (base is None) != (new is None):
        given, missing = ("--base", "--new") if new is None else ("--new", "--base")
        raise NsysprofError(f"{given} says one side only", f"say the other with {missing} GLOB")
    if select is not None and base is not None:
        raise NsysprofError("--range pairs equal paths, --base and --new others: give one or the other")
    if one_report and base is None:
        raise NsysprofError(
            "one report, and nothing in it to compare",
            "name two ranges with --base GLOB --new GLOB, or a second report",
        )


def match_ranges(
    examined: Sequence[Examined],
    base: str | None,
    new: str | None,
    select: str | None,
    *,
    apart: bool = False,
) -> tuple[Matched, list[str]]:
    """The pairs of merged paths, and what found no partner; ``apart``: a range may be compared with itself."""
    first, last = examined[0], examined[-1]
    if base is not None and new is not None:
        ones = find_matches(first.merged, first.texts, base, str(first.path))
        others = find_matches(last.merged, last.texts, new, str(last.path))
        found, alone = pair_up(ones, others, (base, new))
        pairs = _of_like_kinds(first, last, found)
        if first is last:
            pairs = [(one, another) for one, another in pairs if apart or one.code != another.code]
            if not pairs:
                raise NsysprofError(
                    f"{base!r} and {new!r} are the same range, {ones[0].text!r}",
                    "compare instances of it: --instance 0-9 --instance 10-19",
                )
            return pairs, alone
        return pairs, [*alone, *_alone(examined, [list(side) for side in zip(*found, strict=True)], pairs)]
    ones, others = (
        find_matches(side.merged, side.texts, select or _EVERYTHING, str(side.path)) for side in examined
    )
    by_text: dict[str, list[Match]] = {}
    for match in others:
        by_text.setdefault(match.text, []).append(match)
    pairs = _of_like_kinds(first, last, [(one, other) for one in ones for other in by_text.get(one.text, ())])
    if not pairs:
        near = ", ".join(map(repr, near_names([match.text for match in others], ones[0].text)))
        raise NsysprofError(
            f"{first.path} and {last.path} share no range: {ones[0].text!r} is in the one, {near} in the other",
            "name what to compare: --base GLOB --new GLOB",
        )
    alone = list(_alone(examined, (ones, others), pairs))
    if select is None:
        pairs = [pair for pair in pairs if _owns(first, pair[0]) or _owns(last, pair[1])] or pairs
    return pairs, alone


def _of_like_kinds(first: Examined, last: Examined, pairs: Matched) -> Matched:
    """Without pairs of one path as a push/pop and as a start/end range, where like kinds of it pair as well."""

    def like(pair: tuple[Match, Match]) -> bool:
        return bool(first.merged.kind[pair[0].code] == last.merged.kind[pair[1].code])

    both = {one.text for one, other in pairs if one.text == other.text and like((one, other))}
    return [pair for pair in pairs if like(pair) or pair[0].text != pair[1].text or pair[0].text not in both]


def _owns(examined: Examined, match: Match) -> bool:
    """Whether ranges own work, or are start/end windows on what push/pop ranges own."""
    if examined.merged.kind[match.code] != START_END:
        return True
    return bool(examined.attribution.exclusive_sum_ns[examined.instances([match.code])].any())


def _alone(examined: Sequence[Examined], matches: Sequence[Sequence[Match]], pairs: Matched) -> Iterator[str]:
    """What each of two reports has and the other one does not."""
    for at, side in enumerate(examined):
        paired = {pair[at].code for pair in pairs}
        alone = {match.code: match for match in matches[at] if match.code not in paired}
        titles = [side.title(code) for code, match in alone.items() if _owns(side, match)]
        if titles:
            yield f"only in {side.path}: {listed(titles)}"


def largest_pairs(matched: Matched, examined: Sequence[Examined]) -> tuple[Matched, list[str]]:
    """The pairs with the most GPU time, where there are more than anybody reads."""
    if len(matched) <= MOST_PAIRS:
        return matched, []
    first, last = examined[0], examined[-1]

    def weight(pair: tuple[Match, Match]) -> int:
        return sum(
            int(side.attribution.inclusive.sum_ns[side.instances([match.code])].sum())
            for side, match in zip((first, last), pair, strict=True)
        )

    kept = sorted(range(len(matched)), key=lambda at: -weight(matched[at]))[:MOST_PAIRS]
    left = len(matched) - MOST_PAIRS
    note = f"pairs left out, with less GPU time than the {MOST_PAIRS} compared: {left:,}; a narrower glob picks others"
    return [matched[at] for at in sorted(kept)], [note]


def pair_sides(
    examined: Sequence[Examined],
    matched: Matched,
    per: str | None,
    instances: tuple[Instances | None, Instances | None] = (None, None),
) -> tuple[list[Pair], list[str]]:
    """The pairs whose sides both have GPU work, and a sentence for each side that has none.

    ``instances``: of either side only these.
    """
    first, last = examined[0], examined[-1]
    asked = list(zip((first, last), instances, strict=True))
    if first is last and instances[0] == instances[1]:
        del asked[1]
    codes: list[set[int]] = [set() for _ in asked]
    for one, another in matched:
        codes[0].add(one.code)
        codes[-1].add(another.code)
    found = [
        sides(side, [pick(side, code, per, wanted) for code in sorted(picked)])
        for (side, wanted), picked in zip(asked, codes, strict=True)
    ]
    pairs, empty = [], {}
    for one, another in matched:
        base, new = found[0][one.code], found[-1][another.code]
        for side, wanted in zip((base, new), instances, strict=True):
            if side.ledger.span_ns <= 0:
                lacks = "launched no GPU work"
                if wanted and not len(side.windows):
                    lacks = f"has no {instances_text(wanted)}, counted from 0"
                empty[id(side)] = f"{side.title} of {side.examined.path} {lacks}: not compared"
        if not {id(base), id(new)} & empty.keys():
            pairs.append(_pair(base, new, instances, one_report=first is last))
    return pairs, list(empty.values())


def _pair(
    base: Side, new: Side, instances: tuple[Instances | None, Instances | None], *, one_report: bool
) -> Pair:
    names, titles = (base.text, new.text), (base.title, new.title)
    if one_report and titles[0] == titles[1]:
        one, other = (instances_text(each) if each else "all instances" for each in instances)
        return Pair(f"{titles[0]}: {one} → {other}", one, other, titles[0], base, new)
    base_name, new_name, place = side_names(*names) if titles == names else (*titles, "")
    name = f"{base.title} → {new.title}"
    if not one_report:
        files = _told_apart(base.examined.path, new.examined.path)
        if base.text == new.text:
            name, base_name, new_name, place = base.title, *files, base.title
        else:
            base_name, new_name = f"{base_name} ({files[0]})", f"{new_name} ({files[1]})"
    return Pair(name, base_name, new_name, place, base, new)


def _told_apart(one: Path, other: Path) -> tuple[str, str]:
    """The names of two files, with as many folders as it takes to tell them apart."""
    if one.stem != other.stem:
        return _text(one.stem), _text(other.stem)
    parts = [path.absolute().parts for path in (one, other)]
    for count in range(1, max(map(len, parts)) + 1):
        tails = ["/".join(part[-count:]) for part in parts]
        if tails[0] != tails[1]:
            return _text(tails[0]), _text(tails[1])
    return "base", "new"


def _text(name: str) -> str:
    """The name of a file as text that can be written anywhere: bytes that are no UTF-8 are spelt out."""
    return name.encode("utf-8", "backslashreplace").decode()


def pair_warnings(pairs: Sequence[Pair]) -> Iterator[str]:
    """Of each side once, and of each pair."""
    every = {
        title: side for pair in pairs for title, side in zip(pair.titles, (pair.base, pair.new), strict=True)
    }
    for title, side in every.items():
        yield from (f"{title}: {text}" for text in side_warnings(side))
    unlike: dict[str, list[str]] = {}
    for pair in pairs:
        for text in _unlike(pair):
            unlike.setdefault(text, []).append(pair.name)
    for text, names in unlike.items():
        yield f"{names[0] if len(names) == 1 else f'{len(names):,} pairs, {listed(names)}'}: {text}"


def _unlike(pair: Pair) -> Iterator[str]:
    """In what the two sides are not alike, apart from what is asked."""
    if pair.base.per != pair.new.per and (pair.base.per == pair.base.name) != (pair.new.per == pair.new.name):
        yield (
            f"per {pair.base.per} on one side and per {pair.new.per} on the other;"
            " choose what counts as a call with --per"
        )
    gpus = [_gpu_names(side) for side in (pair.base, pair.new)]
    if set(gpus[0]) != set(gpus[1]):
        one, other = (" and ".join(sorted(set(names))) for names in gpus)
        yield f"different GPUs, {one} and {other}: the difference is also one of hardware"
    elif pair.base.examined is pair.new.examined and pair.base.gpus != pair.new.gpus:
        yield f"the sides ran on different GPUs of one model ({gpus[0][0]})"
    if shapes := unlike_shapes(pair.base, pair.new):
        yield f"different shapes, {shapes}: the difference is also one of shape"


def _gpu_names(side: Side) -> list[str]:
    trace = side.examined.attribution.trace
    devices = dict(zip(trace.gpu_numbers, trace.devices, strict=True))
    gpus = [devices[number].gpu for number in side.gpus if number in devices]
    return [str(trace.report.about.gpus[gpu].name) if gpu is not None else "an unknown GPU" for gpu in gpus]
