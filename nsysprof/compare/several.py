"""Judge a pair over several recordings: does the change exceed the variation between runs of the same program?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.levels import choose_level
from nsysprof.compare.loaded import load_report
from nsysprof.compare.pairs import Pair
from nsysprof.compare.selection import SPAN, STEP, Selection, select_calls, select_ranges, steps_of_calls
from nsysprof.core.text import plural, quote_path
from nsysprof.core.units import format_ratio, format_share
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import Rules
from nsysprof.statistics.contrast import DEFAULT_RULES, FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES
from nsysprof.statistics.runs import over_runs
from nsysprof.statistics.summary import LEAST_SAMPLES
from nsysprof.trace.trace import FOUND

ENOUGH_STEPS = 20  # of a recording, for a verdict on them


@dataclass(frozen=True)
class OverRecordings:
    """The result of a comparison over several recordings. ``times``: the median of each run (ns), for the base and for
    the new side.
    """

    times: tuple[tuple[float, ...], tuple[float, ...]]
    verdict: str
    text: str


def over_recordings(
    pair: Pair, more: Sequence[Sequence[Attribution]], rules: Rules, merge: Sequence[str] | None
) -> OverRecordings:
    """Compare a pair; each recording is one sample. ``more``: further recordings of the base, of the new side, and of
    one unchanged program.

    Raises `NsysprofError` if a recording lacks the range of its side, or is given twice.
    """
    base, new, quiet = (
        [_like(each, side, rules, merge) for each in others]
        for side, others in zip((*pair.sides, pair.base), more, strict=True)
    )
    _refuse_repeats([pair.base, pair.new, *base, *new, *quiet])
    times = tuple(map(_median, [pair.base, *base])), tuple(map(_median, [pair.new, *new]))
    logs = [np.log(each).tolist() for each in times]
    change = float(np.mean(logs[1]) - np.mean(logs[0]))
    factor = float(np.exp(change))
    how = f"{format_ratio(1 / factor)} faster" if factor < 1 else f"{format_ratio(factor)} slower"
    unchanged = [*logs[0], *np.log([_median(each) for each in quiet])]
    known = [over_runs([group])[0] for group in (unchanged, logs[1]) if len(group) > 1]
    if not known:
        return OverRecordings(
            times, TOO_FEW_SAMPLES, "with one recording per side, the variation between runs is unknown"
        )
    found = known[1].less(known[0]) if len(known) > 1 else known[0].against_new(known[0].mean + change)
    noise = max(float(np.ptp(group)) for group in (unchanged, logs[1]))
    clear = found.p < DEFAULT_RULES.alpha and abs(change) >= np.log1p(DEFAULT_RULES.least_effect)
    verdict = NO_CLEAR_CHANGE if abs(change) <= noise or len(known) > 1 else TOO_FEW_SAMPLES
    verdict = (FASTER if change < 0 else SLOWER) if clear else verdict
    counts = f"{plural(len(unchanged), 'recording')} against {len(logs[1])}"
    interval = found.interval()
    text = (
        f"over {counts}, {how}: {verdict} (p = {found.p:.2g}, t-test over runs); new ÷ base: "
        f"{format_ratio(interval.low)} to {format_ratio(interval.high)} (95 % interval); recordings of one side "
        f"differ by up to {format_share(float(np.expm1(noise)))}"
    )
    more_of_both = "" if clear or len(known) > 1 else "; to decide, record both sides again: --also-base, --also-new"
    return OverRecordings(times, verdict, text + more_of_both)


def to_record(pair: Pair) -> str:
    """Return a sentence that says how much the calls vary, and what to record for a verdict."""
    times = [side.samples.get(pair.clock, np.empty(0)) for side in pair.sides]
    noun = "steps" if pair.clock == STEP else "calls"
    spread = max((float(np.ptp(each)) / float(np.median(each)) for each in times if len(each) > 1), default=0)
    text = f"{noun} of one recording differ by up to {format_share(spread)}; " if spread else ""
    again = "record both sides again, three times each (--also-base, --also-new)"
    few = pair.clock == STEP and min(map(len, times)) < LEAST_SAMPLES
    return f"{text}to decide, {f'record {ENOUGH_STEPS} steps, or ' if few else ''}{again}"


def _refuse_repeats(sides: Sequence[Selection]) -> None:
    """Refuse a recording that is given twice, as it would hide variation; the two compared recordings come first."""
    for number, each in enumerate(sides[2:], 2):
        for other in sides[:number]:
            if all(np.array_equal(each.samples[clock], other.samples.get(clock, ())) for clock in each.samples):
                raise NsysprofError(
                    f"{each.loaded.path} and {other.loaded.path} are the same recording, so the "
                    "variation between runs is unknown",
                    "give other recordings to --also-base, --also-new and --noise",
                )


def _median(side: Selection) -> float:
    values = side.samples[STEP if side.steps is not None else SPAN]
    return float(np.median(values)) if len(values) else float(side.span_ns)


def _like(attribution: Attribution, side: Selection, rules: Rules, merge: Sequence[str] | None) -> Selection:
    loaded = load_report(attribution, rules, merge, {})
    if not side.is_whole and side.loaded.merged.kind[side.code] == FOUND:
        loaded = loaded.among(choose_level(attribution, None, merge).attribution, merge)
    code = side.code if side.is_whole else next((at for at, text in enumerate(loaded.texts) if text == side.text), None)
    if code is None:
        raise NsysprofError(
            f"{loaded.path} lacks the compared range {side.text!r}",
            f"nsysprof ranges {quote_path(loaded.path)} lists its ranges",
        )
    calls = select_calls(loaded, code, None, inner=side.per != side.name)
    steps = steps_of_calls(loaded, [calls]) if side.steps is not None else {}
    found = select_ranges(loaded, [calls], steps)[code]
    if not found.ledger.total_ns or (side.steps is not None and found.steps is None):
        raise NsysprofError(
            f"{loaded.path}: in this recording, {side.text!r} lacks GPU work or steps, unlike in the other recording"
        )
    return found
