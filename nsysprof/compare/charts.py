"""The charts of a comparison, with the waterfall ``gap.png``: it starts at the time of one side and ends at the time of
the other.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsysprof.charts.chart import Chart
from nsysprof.charts.marks import Heading, Waterfall, Waterfalls
from nsysprof.charts.notebook import Overview
from nsysprof.charts.palette import LESS, MORE, OTHERS, WHOLE
from nsysprof.compare.call_chart import plan_calls
from nsysprof.compare.comparison import Comparison, compared_reports
from nsysprof.compare.findings import Difference, at, calls_text, compared
from nsysprof.compare.gap_ledger import apportion, mean_text
from nsysprof.compare.pairs import SIDES
from nsysprof.compare.roofline import plan_roofline
from nsysprof.compare.selection import STEP
from nsysprof.compare.text import gap_table, pair_table
from nsysprof.core.arrays import Array
from nsysprof.core.text import join_first, join_words, plural, shorten, shorten_both
from nsysprof.core.units import format_ns, format_ratio, format_share, scale_ns
from nsysprof.results.table import TextTable
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES

MAX_PANELS, MAX_STEPS = 6, 11
MIN_STEP = 0.004  # of the longer side: smaller changes share one step
MIN_NAMED_SHARE, MAX_NAMES = 0.7, 4  # of the difference that the title names, and the causes in it
_NAME, _CAUSE = 40, 60
_MINUTES = 60 * 10**9


def plan_gap(comparison: Comparison) -> Waterfalls:
    """Plan a waterfall of the pair, or of several pairs, largest total differences first."""
    ranked = comparison.ranked[:MAX_PANELS]
    shown = [comparison.differences[pair.name] for pair in comparison.sides if pair.name in ranked]
    single = shown[0] if len(shown) == 1 else None
    steps = _steps(shown)
    panels = [_panel(each, steps, titled=not single) for each in shown]
    names = _common_names(shown)
    remarks = _remarks(single, steps) if single else [""] * (len(steps) + 2)
    labels = [names[0], *[step.label for step in steps], names[1]]
    heading = Heading(
        _single_title(single) if single else _common_title(shown),
        _subtitle(comparison, shown),
        _legend(panels, names[1]),
        _notes(comparison, shown, steps),
    )
    return Waterfalls(heading, list(zip(labels, remarks, strict=True)), panels)


@dataclass(frozen=True)
class _Step:
    """A column between the totals: one cause, or several small ones."""

    label: str
    causes: list[str]

    def of(self, difference: Difference, column: str) -> float:
        """Return the sum of a column over the given causes."""
        gaps = difference.gaps
        return float(gaps.loc[gaps["cause"].isin(self.causes), column].sum())


def _steps(shown: Sequence[Difference]) -> list[_Step]:
    """The columns between the totals: the causes by mean change, with small causes joined."""
    weight: dict[str, float] = {}
    for gaps in (difference.gaps for difference in shown):
        longer = max(int(gaps["base_ns"].sum()), int(gaps["new_ns"].sum()), 1)
        for cause, delta in zip(gaps["cause"].tolist(), gaps["delta_ns"].tolist(), strict=True):
            if delta:
                weight[cause] = weight.get(cause, 0.0) + abs(delta) / longer / len(shown)
    causes = sorted(weight, key=lambda cause: -weight[cause])
    large = [cause for cause in causes if weight[cause] >= MIN_STEP][:MAX_STEPS]
    small = causes[len(large) :]
    if len(small) == 1:
        large, small = causes, []
    rest = [_Step(f"{len(small):,} others", small)] if small else []
    return [*[_Step(shorten(cause, _CAUSE), [cause]) for cause in large], *rest]


def _panel(difference: Difference, steps: Sequence[_Step], *, titled: bool) -> Waterfall:
    """The waterfall of one pair; its texts add up like its bars, to the last digit."""
    row = difference.row
    base, new = ([int(step.of(difference, f"{side}_ns")) for step in steps] for side in SIDES)
    # causes without a change are in the totals only
    same = [row["base_mean_ns"] - sum(base), row["new_mean_ns"] - sum(new)]
    step, decimals, divisor, unit = _digits(row["base_mean_ns"], row["new_mean_ns"])
    written = [apportion([*times, rest], step) for times, rest in zip((base, new), same, strict=True)]
    delta = np.array(new, np.int64) - np.array(base, np.int64)
    after = row["base_mean_ns"] + np.cumsum(delta)
    texts, shares = [], []
    for was, now, change in zip(*written, [*delta.tolist(), 0], strict=True):
        digits = f"{(now - was) * step / divisor:+,.{decimals}f}".replace("-", "−")
        texts.append("" if not change else digits if now != was else "≈ 0")
        share = change / row["delta_ns"] if row["delta_ns"] and not difference.no_shares else 0.0
        shares.append(format_share(share).replace("-", "−") if abs(share) >= 0.001 else "")
    totals = [f"{sum(one) * step / divisor:,.{decimals}f} {unit}" for one in written]
    busy = [row[f"{side}_busy_ns"] for side in SIDES]
    return Waterfall(
        title=_panel_title(row, totals) if titled else "",
        label=unit if difference.whole else f"{unit} per call",
        totals=(
            (busy[0] / divisor, (row["base_mean_ns"] - busy[0]) / divisor),
            (busy[1] / divisor, (row["new_mean_ns"] - busy[1]) / divisor),
        ),
        total_texts=(totals[0], totals[1]),
        before=(after - delta) / divisor,
        after=after / divisor,
        texts=texts[:-1],
        shares=shares[:-1],
    )


def _digits(base: int, new: int) -> tuple[int, int, int, str]:
    """The last written digit in ns, decimals, divisor and unit: four digits for the longer side, two for the other."""
    longer, shorter = max(base, new, 1), max(min(base, new), 1)
    divisor, unit = scale_ns(longer)
    if divisor >= _MINUTES:
        divisor, unit = 10**9, "s"
    most = math.floor(math.log10(longer))
    last = max(0, most - 6, min(most - 3, math.floor(math.log10(shorter)) - 1))
    return 10**last, max(round(math.log10(divisor)) - last, 0), divisor, unit


def _remarks(difference: Difference, steps: Sequence[_Step]) -> list[str]:
    changed = []
    for step in steps:
        base, new = (step.of(difference, f"{side}_kernels") for side in SIDES)
        text = _kernels(new) if base == new else f"{mean_text(base)} → {_kernels(new)}"
        changed.append(text if base or new else "")
    first, last = (_kernels(float(difference.gaps[f"{side}_kernels"].sum())) for side in SIDES)
    return [first, *changed, last]


def _kernels(count: float) -> str:
    return f"{mean_text(count)} kernel{'' if count == 1 else 's'}"


def _common_names(shown: Sequence[Difference]) -> tuple[str, str]:
    """The names of the sides if all pairs are drawn."""
    names = {difference.pair.names for difference in shown}
    return shorten_both(*(next(iter(names)) if len(names) == 1 else SIDES), _NAME)


def _single_title(difference: Difference) -> str:
    row, names = difference.row, shorten_both(*difference.pair.names, _NAME)
    text = compared(row, names, shorten(row["place"], _NAME) if row["place"] else "")
    if row["verdict"] == NO_CLEAR_CHANGE:
        base, new = (format_ns(row[f"{side}_median_ns"]) for side in SIDES)
        return f"{text}: {base} against {new} {difference.each}"
    if difference.no_shares:
        return text
    largest = difference.gaps.sort_values("share", ascending=False, kind="stable")
    named: list[str] = []
    total = 0.0
    for cause, share in zip(largest["cause"].tolist(), largest["share"].tolist(), strict=True):
        if not share > 0 or total >= MIN_NAMED_SHARE or len(named) == MAX_NAMES:
            break
        named.append(_in_words(cause))
        total += share
    if not named:
        return text
    offset = ", offset elsewhere" if total > 1.05 else ""
    return f"{text}: {join_words(named)} make{'s' * (len(named) == 1)} {format_share(total)} of it{offset}"


def _common_title(shown: Sequence[Difference]) -> str:
    """The finding for many pairs: the range of ratios or the number of pairs per verdict, and the largest causes."""
    base, new = _common_names(shown)
    rows = [difference.row for difference in shown]
    clear = [row for row in rows if row["verdict"] in (FASTER, SLOWER)]
    slower = [row for row in clear if row["verdict"] == FASTER]
    if len(clear) == len(rows) and len(slower) in (0, len(rows)):
        which = "slower" if slower else "faster"
        ratios = [row["base_median_ns"] / row["new_median_ns"] for row in rows]
        ratios = sorted(ratio if slower else 1 / ratio for ratio in ratios)
        text = f"{base} is {format_ratio(ratios[0])} to {format_ratio(ratios[-1])} {which} than {new}"
    else:
        level = sum(row["verdict"] == NO_CLEAR_CHANGE for row in rows)
        counts = {
            "slower": len(slower),
            "faster": len(clear) - len(slower),
            NO_CLEAR_CHANGE: level,
            TOO_FEW_SAMPLES: len(rows) - len(clear) - level,
        }
        (first, most), *more = [(verdict, count) for verdict, count in counts.items() if count]
        text = f"{base} against {new}: {first} in {most} of {len(rows)} pairs"
        text += "".join(f", {verdict} in {count}" for verdict, count in more)
    return "; ".join((text, *_largest_causes(shown)))


def _largest_causes(shown: Sequence[Difference]) -> Iterator[str]:
    """The largest cause of each clear difference, with its pairs; most frequent causes first."""
    places: dict[str, list[str]] = {}
    for number, difference in enumerate(shown, 1):
        place = difference.row["place"]
        if difference.largest_cause:
            text = shorten(place, 20) if place else f"pair {number}"
            places.setdefault(difference.largest_cause[0], []).append(text)
    largest = sorted(places, key=lambda cause: -len(places[cause]))[:2]
    for number, cause in enumerate(largest):
        where = places[cause]
        named = join_words(where) if len(where) <= 3 else f"{len(where)} of {len(shown)} pairs"
        most = "the largest part is " if not number else ""
        everywhere = len(where) == len(shown)
        yield f"{most}{_in_words(cause)}{' everywhere' if everywhere else at(named)}"


def _in_words(cause: str) -> str:
    return shorten(re.sub("^idle: (.*)", r"idle (\1)", cause), _NAME)


def _panel_title(row: Mapping[str, Any], totals: Sequence[str]) -> str:
    place = row["place"] or f"{row['base_name']} → {row['new_name']}"
    text = compared(row, shorten_both(row["base_name"], row["new_name"], 24), "")
    return f"{shorten(place, 80)}: {text}; means {totals[0]} → {totals[1]}"


def _subtitle(comparison: Comparison, shown: Sequence[Difference]) -> str:
    counts = list(dict.fromkeys(calls_text(difference.row) for difference in shown))
    sides = [side for difference in shown for side in difference.pair.sides]
    every = [int(difference.row[f"{side}_calls"]) for difference in shown for side in ("base", "new")]
    number = counts[0] if len(counts) == 1 else f"n = {min(every):,} to {max(every):,}"
    per = " and ".join(dict.fromkeys(side.per for side in sides))
    calls = f"mean of {number} calls ({shorten(per, 30)})"
    if all(side.ledger.calls == 1 for side in sides):
        whole = all(difference.whole for difference in shown)
        calls = "n = 1, the whole trace of each side" if whole else "n = 1, a single call of each side"
    clock = "time: span (first GPU op to last) ÷ calls; in the title: the median call"
    if all(difference.clock == STEP for difference in shown):
        clock = "time: step time without warm-up; in the title: the median step"
    return " · ".join([*compared_reports(comparison), calls, clock])


def _legend(panels: Sequence[Waterfall], new: str) -> list[tuple[str, str]]:
    entries = [("busy", WHOLE)]
    if any(idle > 0 for panel in panels for _, idle in panel.totals):
        entries.append(("idle", OTHERS))
    change: Array = np.concatenate([panel.after - panel.before for panel in panels])
    if (change < 0).any():
        entries.append((f"less time in {new}", LESS))
    if (change > 0).any():
        entries.append((f"more time in {new}", MORE))
    return entries


def _notes(comparison: Comparison, shown: Sequence[Difference], steps: Sequence[_Step]) -> list[str]:
    without_shares = any(difference.no_shares for difference in shown)
    where = " (none if there is no clear change or causes cancel)" if without_shares else ""
    notes = [f"share of the difference in %{where}; all bars add up to the difference"] if steps else []
    if steps and len(steps[-1].causes) > 1:
        some = join_first(steps[-1].causes, 4, lambda cause: shorten(cause, 30))
        notes.append(f"the {steps[-1].label}: {some}")
    left = len(comparison.pairs) - len(shown)
    if left:
        notes.insert(0, f"{plural(left, 'more pair')} with smaller differences are not drawn")
    return notes


CHARTS: tuple[Chart[Comparison], ...] = (
    Chart("gap.png", "How the time changes from base to new, cause by cause", plan_gap),
    Chart("compare.png", "The median call of each side, kernel by kernel", plan_calls),
    Chart("roofline.png", "Roofline of the kernels, from hardware counters", plan_roofline),
)


def comparison_charts(comparison: Comparison) -> tuple[Chart[Comparison], ...]:
    """Return the charts that have content; the roofline needs counters."""
    return CHARTS if comparison.measured else CHARTS[:-1]


def overview(comparison: Comparison) -> Overview:
    """The notebook view: all pairs, and the ledger of the pair with the largest difference."""
    largest = comparison.differences[comparison.ranked[0]]

    def details() -> Iterator[str | TextTable]:
        yield from largest.findings[1:]
        if len(comparison.sides) > 1:
            yield pair_table(comparison)
        yield gap_table(largest, 12)

    return Overview(largest.findings[0], comparison_charts(comparison), details)
