"""Pair selected ranges of one or two reports, and warn about unfair comparisons."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nsysprof.attribution.globs import Match, find_matches, listed, near_names, pair_up, side_names
from nsysprof.attribution.paths import WHOLE_TRACE, instances_text
from nsysprof.compare.attention_model import unlike_shapes
from nsysprof.compare.comparable import Agreement, agree
from nsysprof.compare.loaded import WHOLE, LoadedReport
from nsysprof.compare.request import Request, Wanted
from nsysprof.compare.selection import (
    SPAN,
    STEP,
    Selection,
    select_calls,
    select_ranges,
    selection_warnings,
    steps_of_calls,
)
from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError
from nsysprof.results.folder import report_stem
from nsysprof.trace.trace import FOUND, START_END

SIDES = ("base", "new")
MAX_PAIRS = 200
MIN_COVERED = 0.5  # of the time of GPU ops in ranges of one name: with less, whole recordings are a pair as well
MIN_ALIKE = 0.5  # of the time of loops of one name in kernels of one name; with less they are likely others
Matched = list[tuple[Match, Match]]
_WHOLE_PAIR = Match(WHOLE, WHOLE_TRACE, ()), Match(WHOLE, WHOLE_TRACE, ())


@dataclass(frozen=True)
class Pair:
    """Two selections, with names for the pair and for each side; ``place`` is the common part of the names."""

    name: str
    base_name: str
    new_name: str
    place: str
    base: Selection
    new: Selection

    @property
    def names(self) -> tuple[str, str]:
        """The names of both sides."""
        return self.base_name, self.new_name

    @property
    def sides(self) -> tuple[Selection, Selection]:
        """Both sides, the base first."""
        return self.base, self.new

    @property
    def one_report(self) -> bool:
        """Return whether both sides are from one report."""
        return self.base.loaded is self.new.loaded

    @property
    def clock(self) -> str:
        """Return the clock of the verdict: step time, or the GPU time span if the range is not a step."""
        return STEP if self.base.steps is not None else SPAN

    @property
    def covered(self) -> float:
        """Return the smaller of the two sides' shares of all GPU op time."""
        return min(side.loaded.covered(side.code) for side in self.sides)

    @property
    def titles(self) -> tuple[str, str]:
        """Return the paths of both sides, with the file names if these differ."""
        if self.one_report:
            return self.base.title, self.new.title
        return f"{self.base.loaded.path}, {self.base.title}", f"{self.new.loaded.path}, {self.new.title}"


@dataclass(frozen=True)
class Paired:
    """The ``pairs`` of the ``reports``, with ``notes``. The ``reports`` may contain detected iterations as ranges."""

    reports: Sequence[LoadedReport]
    pairs: Sequence[Pair]
    agreement: Agreement
    notes: tuple[str, ...]


def find_pairs(reports: Sequence[LoadedReport], request: Request, merge: Sequence[str] | None) -> Paired:
    """Find the requested pairs, or pairs of work that occurs in both reports; raises `NsysprofError` if there is no
    pair.
    """
    wanted, agreement = request.wanted, Agreement()
    if request.is_open:
        agreement = agree(reports[0], reports[-1], merge)
        reports = agreement.reports or reports
        matched, unmatched, agreement = _match_reports(reports[0], reports[-1], agreement)
    else:
        matched, unmatched = match_ranges(reports, *request.globs, request.select, apart=wanted[0] != wanted[1])
    if request.chooses_calls:
        matched = [pair for pair in matched if pair[0].code != WHOLE]
        if not matched:
            raise NsysprofError(
                "whole traces are compared, so calls cannot be selected", "leave --per, --skip and --instance out"
            )
    matched, beyond = _largest_pairs(matched, reports)
    pairs, without_work = _select_pairs(reports, matched, request.per, wanted, agreement.codes)
    if pairs:
        return Paired(reports, pairs, agreement, (*unmatched, *beyond, *without_work))
    for each in reports:
        if each.trace.no_work:
            message = f"{each.path}: nothing to compare: {each.trace.no_work}"
            raise NsysprofError(message, f"record GPU work: {each.report.reader.recording}")
    hint = f"nsysprof analyze {reports[0].path} --no-charts lists the ranges with GPU work"
    raise NsysprofError(without_work[0], hint)


def match_ranges(
    reports: Sequence[LoadedReport], base: str | None, new: str | None, select: str | None, *, apart: bool = False
) -> tuple[Matched, list[str]]:
    """Return pairs of merged paths, and paths without a partner; ``apart`` allows pairs of a range with itself."""
    first, last = reports[0], reports[-1]
    if base is None or new is None:
        return _match_equal_paths(first, last, select)
    ones, others = _find(first, base), _find(last, new)
    matched, alone = pair_up(ones, others, (base, new))
    pairs = _of_like_kinds(first, last, matched)
    if first is not last:
        return pairs, [*alone, *_alone(reports, [list(side) for side in zip(*matched, strict=True)], pairs)]
    pairs = [(one, another) for one, another in pairs if apart or one.code != another.code]
    if not pairs:
        raise NsysprofError(
            f"{base!r} and {new!r} match the same range, {ones[0].text!r}",
            "compare instances of the range:  --instance 0-9 --instance 10-19",
        )
    return pairs, alone


def _find(loaded: LoadedReport, glob: str) -> list[Match]:
    """The ranges that a glob matches; for a name with a number, the error shows how to select this instance."""
    try:
        return find_matches(loaded.merged, loaded.texts, glob, str(loaded.path))
    except NsysprofError as error:
        merged = re.sub(r"\d+", "*", glob)
        number = re.search(r"\d+(?=\D*$)", glob)
        if number is None or not any(text.rpartition("/")[2] == merged.rpartition("/")[2] for text in loaded.texts):
            raise
        hint = f"numbered ranges are instances: --range {merged!r} --instance {number[0]}, --instance per side"
        raise NsysprofError(error.message, hint) from None


def _match_equal_paths(first: LoadedReport, last: LoadedReport, select: str | None) -> tuple[Matched, list[str]]:
    """Pair the paths that two reports share; without a glob, only paths that own work, if there are any.

    Without a glob, the whole traces also form a pair, unless both reports have NVTX ranges; `WHOLE_TRACE` requests it.
    """
    annotated = first.annotated, last.annotated
    whole = not all(annotated) if select is None else select == WHOLE_TRACE and WHOLE_TRACE not in first.texts
    if whole and (select or not (first.texts and last.texts)):
        return [_WHOLE_PAIR], [*_annotated_once(first, last)]
    ones, others = (_find(side, select or "*") for side in (first, last))
    by_text: dict[str, list[Match]] = {}
    for match in others:
        by_text.setdefault(match.text, []).append(match)
    pairs = _of_like_kinds(first, last, [(one, other) for one in ones for other in by_text.get(one.text, ())])
    if not (pairs or whole):
        near = ", ".join(map(repr, near_names([match.text for match in others], ones[0].text)))
        raise NsysprofError(
            f"{first.path} and {last.path} have no range in common: {ones[0].text!r} is only in the "
            f"first, {near} is only in the second",
            f"select what to compare: --base GLOB --new GLOB, or --range {WHOLE_TRACE!r}",
        )
    alone = list(_alone((first, last), (ones, others), pairs))
    if select is None:
        pairs = [pair for pair in pairs if _owns(first, pair[0]) or _owns(last, pair[1])] or pairs
    return [*pairs, _WHOLE_PAIR] if whole else pairs, [*_annotated_once(first, last), *alone]


def _match_reports(
    first: LoadedReport, last: LoadedReport, agreement: Agreement
) -> tuple[Matched, list[str], Agreement]:
    """The pairs of two reports if no ranges are named, with the pairs of the agreement first."""
    main = [(_match(first, one), _match(last, other)) for one, other in agreement.codes]
    try:
        matched, unmatched = _match_equal_paths(first, last, None)
    except NsysprofError as error:
        if main or not (first.texts and last.texts):
            return main or [_WHOLE_PAIR], [], agreement
        return [_WHOLE_PAIR], [], replace(agreement, notes=(f"whole recordings are compared: {error.message}",))
    others = [pair for pair in matched if pair[0].code != WHOLE and first.merged.kind[pair[0].code] != FOUND]
    most = max((min(first.covered(one.code), last.covered(other.code)) for one, other in others), default=0.0)
    whole = _WHOLE_PAIR in matched or (not main and (bool(agreement.notes) or most < MIN_COVERED))
    pairs = [*main, *(pair for pair in others if pair not in main), *([_WHOLE_PAIR] if whole else [])]
    return pairs, unmatched, agreement


def _match(loaded: LoadedReport, code: int) -> Match:
    return Match(code, loaded.texts[code], (loaded.texts[code],))


def _annotated_once(first: LoadedReport, last: LoadedReport) -> Iterator[str]:
    """State what is compared if only one of two reports has NVTX ranges."""
    if first.annotated != last.annotated:
        have, lack = (first, last) if first.annotated else (last, first)
        yield (
            f"{have.path} has NVTX ranges and {lack.path} has none, so whole traces are compared; to compare"
            " iterations detected in both: --ranges found"
        )


def _of_like_kinds(first: LoadedReport, last: LoadedReport, pairs: Matched) -> Matched:
    """Leave out pairs of a push/pop and a start/end range of one path if ranges of equal kinds form a pair, too."""

    def like(pair: tuple[Match, Match]) -> bool:
        return bool(first.merged.kind[pair[0].code] == last.merged.kind[pair[1].code])

    both = {one.text for one, other in pairs if one.text == other.text and like((one, other))}
    return [pair for pair in pairs if like(pair) or pair[0].text != pair[1].text or pair[0].text not in both]


def _owns(loaded: LoadedReport, match: Match) -> bool:
    """Whether ranges own work; start/end ranges may merely span work that push/pop ranges own."""
    if loaded.merged.kind[match.code] != START_END:
        return True
    return bool(loaded.attribution.exclusive_sum_ns[loaded.instances([match.code])].any())


def _alone(reports: Sequence[LoadedReport], matches: Sequence[Sequence[Match]], pairs: Matched) -> Iterator[str]:
    for at, side in enumerate(reports):
        paired = {pair[at].code for pair in pairs}
        alone = {match.code: match for match in matches[at] if match.code not in paired}
        titles = [side.title(code) for code, match in alone.items() if _owns(side, match)]
        if titles:
            yield f"only in {side.path}: {listed(titles)}"


def _largest_pairs(matched: Matched, reports: Sequence[LoadedReport]) -> tuple[Matched, list[str]]:
    """The `MAX_PAIRS` pairs with the most GPU op time, and a warning if there are more."""
    if len(matched) <= MAX_PAIRS:
        return matched, []

    def weight(pair: tuple[Match, Match]) -> float:
        if pair[0].code == WHOLE:
            return math.inf
        return sum(
            int(side.attribution.inclusive.sum_ns[side.instances([match.code])].sum())
            for side, match in zip((reports[0], reports[-1]), pair, strict=True)
        )

    kept = sorted(range(len(matched)), key=lambda at: -weight(matched[at]))[:MAX_PAIRS]
    left = len(matched) - MAX_PAIRS
    note = f"only the {MAX_PAIRS} pairs with the most time are compared; left out: {left:,} (use a narrower glob)"
    return [matched[at] for at in sorted(kept)], [note]


def _select_pairs(
    reports: Sequence[LoadedReport],
    matched: Matched,
    per: str | None,
    instances: Wanted = (None, None),
    as_steps: Sequence[tuple[int, int]] = (),
) -> tuple[list[Pair], list[str]]:
    """The pairs with GPU work on both sides, and a warning for each side without any.

    ``instances``: the only instances to use of each side. ``as_steps`` are pairs of merged paths whose instances are
    calls, even if inner ranges repeat.
    """
    requests = list(zip((reports[0], reports[-1]), instances, strict=True))
    if len(reports) == 1 and instances[0] == instances[1]:
        del requests[1]  # one selection serves both sides
    codes: list[set[int]] = [{pair[at].code for pair in matched} for at in range(-len(requests), 0)]
    if len(requests) == 1:
        codes = [{each.code for pair in matched for each in pair}]
    whole = [{pair[at] for pair in as_steps} for at in (0, 1)]
    steps = [
        steps_of_calls(loaded, [select_calls(loaded, code, per, inner=code not in of) for code in sorted(chosen)])
        for (loaded, _), chosen, of in zip(requests, codes, whole, strict=False)
    ]
    # both sides of a pair are timed as steps, or neither
    stepping = [(one, another) for one, another in matched if one.code in steps[0] and another.code in steps[-1]]
    selections: dict[bool, list[dict[int, Selection]]] = {}
    for timed in (True, False):
        asked = [pair for pair in matched if (pair in stepping) == timed]
        selections[timed] = []
        for at, (loaded, wanted) in enumerate(requests):
            known = steps[at] if timed else {}
            of_side = {each.code for pair in asked for each in (pair if len(requests) == 1 else pair[at : at + 1])}
            calls = [
                select_calls(loaded, code, per, wanted, known.get(code), inner=code not in whole[at])
                for code in sorted(of_side)
            ]
            selections[timed].append(select_ranges(loaded, calls, known))
    pairs, empty = [], {}
    for one, another in matched:
        sides = selections[(one, another) in stepping]
        base, new = sides[0][one.code], sides[-1][another.code]
        for side, wanted in zip((base, new), instances, strict=True):
            if side.ledger.total_ns <= 0:
                lacks = "launched no GPU work"
                if wanted and not len(side.windows):
                    lacks = f"has no {instances_text(wanted)}, counted from 0"
                empty[id(side)] = f"{side.title} of {side.loaded.path} {lacks}: not compared"
        if not {id(base), id(new)} & empty.keys():
            pairs.append(_pair(base, new, instances))
    return pairs, list(empty.values())


def _pair(base: Selection, new: Selection, instances: Wanted) -> Pair:
    names, titles = (base.text, new.text), (base.title, new.title)
    one_report = base.loaded is new.loaded
    if one_report and titles[0] == titles[1]:
        one, other = (instances_text(each) if each else "all instances" for each in instances)
        return Pair(f"{titles[0]}: {one} → {other}", one, other, titles[0], base, new)
    base_name, new_name, place = side_names(*names) if titles == names else (*titles, "")
    name = f"{base.title} → {new.title}"
    if not one_report:
        files = _distinct_names(base.loaded.path, new.loaded.path)
        if base.text == new.text:
            name, base_name, new_name, place = base.title, *files, base.title
        else:
            base_name, new_name = f"{base_name} ({files[0]})", f"{new_name} ({files[1]})"
    return Pair(name, base_name, new_name, place, base, new)


def _distinct_names(one: Path, other: Path) -> tuple[str, str]:
    """The names of two files, with enough folders to distinguish them; bytes that are not UTF-8 are escaped."""
    names = report_stem(one), report_stem(other)
    parts = [path.absolute().parts for path in (one, other)]
    for count in range(1, max(map(len, parts)) + 2):
        if names[0] != names[1]:
            base, new = (name.encode("utf-8", "backslashreplace").decode() for name in names)
            return base, new
        base, new = ("/".join(part[-count:]) for part in parts)
        names = base, new
    return SIDES


def pair_warnings(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield warnings about the pairs: first about each side, then about each pair."""
    every = {title: side for pair in pairs for title, side in zip(pair.titles, pair.sides, strict=True)}
    for title, side in every.items():
        yield from (f"{title}: {text}" for text in selection_warnings(side))
    unlike: dict[str, list[str]] = {}
    for pair in pairs:
        for text in _unlike(pair):
            unlike.setdefault(text, []).append(pair.name)
    for text, names in unlike.items():
        yield f"{names[0] if len(names) == 1 else f'{len(names):,} pairs, {listed(names)}'}: {text}"


def _shared_time(pair: Pair) -> list[float]:
    """The share of each side's GPU op time in ops whose name both sides run."""
    base, new = (side.evidence.groupby("kernel")["sum_ns"].sum() for side in pair.sides)
    both = base.index.intersection(new.index)
    return [float(times[both].sum() / max(times.sum(), 1)) for times in (base, new)]


def _unlike(pair: Pair) -> Iterator[str]:
    """Describe differences between the two sides other than the compared one."""
    if pair.base.per != pair.new.per and (pair.base.per == pair.base.name) != (pair.new.per == pair.new.name):
        yield (
            f"times are per {pair.base.per} on one side and per {pair.new.per} on the other: select the "
            "calls with --per"
        )
    gpus = [[str(gpu.name) if gpu else "an unknown GPU" for gpu in side.described_gpus] for side in pair.sides]
    if set(gpus[0]) != set(gpus[1]):
        one, other = (" and ".join(sorted(set(names))) for names in gpus)
        yield f"different GPUs ({one} and {other}): the hardware contributes to the difference"
    elif pair.one_report and pair.base.gpus != pair.new.gpus:
        yield f"the two sides ran on different GPUs of the same model ({gpus[0][0]})"
    found = [not side.is_whole and side.loaded.merged.kind[side.code] == FOUND for side in pair.sides]
    if all(found) and min(alike := _shared_time(pair)) < MIN_ALIKE:
        shares = " and ".join(map(format_share, alike))
        yield (
            "these loops were detected, not annotated, so they may not be the same loop: kernels that run on both "
            f"sides take {shares} of the loops' time"
        )
    if shapes := unlike_shapes(*pair.sides):
        yield f"different shapes ({shapes}): the shape contributes to the difference"
