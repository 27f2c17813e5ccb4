"""The charts of a comparison, and its waterfall ``gap.png``: how the time of one side becomes that of the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.charts.chart import Chart
from nsysprof.charts.marks import Heading, Numbers, Waterfall, Waterfalls
from nsysprof.charts.palette import LESS, MORE, OTHERS, WHOLE
from nsysprof.compare.call_chart import plan_calls
from nsysprof.compare.comparison import Comparison, compared_reports
from nsysprof.compare.findings import calls_text, compared
from nsysprof.compare.gap_ledger import apportion, untold_shares
from nsysprof.compare.roofline import plan_roofline
from nsysprof.core.text import join_words, plural, shorten, shorten_both
from nsysprof.core.units import format_ns, format_ratio, format_share, scale_ns
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES

MOST_PAIRS, MOST_STEPS = 6, 11
_LEAST = 0.004  # of the longer side: what changes less is one step with others
_ENOUGH, _MOST_NAMED = 0.7, 4  # of the difference that the title names, and how many causes
_NAME, _CAUSE = 40, 60
_MINUTES = 60 * 10**9


def plan_gap(comparison: Comparison) -> Waterfalls:
    """A waterfall of the pair, or of the pairs with the largest differences over all calls."""
    rows = _shown(comparison)
    gaps = [comparison.gaps[comparison.gaps["pair"] == row["pair"]].set_index("cause") for row in rows]
    single = len(rows) == 1
    steps = _steps(gaps)
    panels = [_panel(row, gap, steps, titled=not single) for row, gap in zip(rows, gaps, strict=True)]
    title = _single_title(rows[0], gaps[0]) if single else _common_title(rows, gaps)
    names = _common_names(rows)
    remarks = _remarks(gaps[0], steps) if single else [""] * (len(steps) + 2)
    labels = [names[0], *[step.label for step in steps], names[1]]
    return Waterfalls(
        Heading(
            title,
            _subtitle(comparison, rows),
            _legend(panels, names[1]),
            _notes(comparison, rows, gaps, steps),
        ),
        list(zip(labels, remarks, strict=True)),
        panels,
    )


@dataclass(frozen=True)
class _Step:
    """A column between the totals: one cause, or several small ones."""

    label: str
    causes: list[str]


def _shown(comparison: Comparison) -> list[dict[str, Any]]:
    """The pairs to draw, those that rank first, in their own order."""
    pairs = comparison.pairs
    rows = pairs[pairs["pair"].isin(comparison.ranked[:MOST_PAIRS])].to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _steps(gaps: Sequence[pd.DataFrame]) -> list[_Step]:
    """The columns between the totals: the causes by how much they change on average, the small ones together."""
    weight: dict[str, float] = {}
    for gap in gaps:
        longer = max(int(gap["base_ns"].sum()), int(gap["new_ns"].sum()), 1)
        for cause, delta in zip(gap.index.tolist(), gap["delta_ns"].tolist(), strict=True):
            if delta:
                weight[cause] = weight.get(cause, 0.0) + abs(delta) / longer / len(gaps)
    causes = sorted(weight, key=lambda cause: -weight[cause])
    large = [cause for cause in causes if weight[cause] >= _LEAST][:MOST_STEPS]
    small = causes[len(large) :]
    if len(small) == 1:
        large, small = causes, []
    rest = [_Step(f"{len(small):,} others", small)] if small else []
    return [*[_Step(shorten(cause, _CAUSE), [cause]) for cause in large], *rest]


def _panel(row: dict[str, Any], gap: pd.DataFrame, steps: Sequence[_Step], *, titled: bool) -> Waterfall:
    """The waterfall of one pair; its texts add up like its bars, to the last digit."""
    base, new = (
        [int(gap[f"{side}_ns"].reindex(step.causes, fill_value=0).sum()) for step in steps]
        for side in ("base", "new")
    )
    # what is the same on both sides is in the totals only
    same = [row[f"{side}_span_ns"] - sum(found) for side, found in (("base", base), ("new", new))]
    step, decimals, divisor, unit = _digits(row["base_span_ns"], row["new_span_ns"])
    written = [apportion([*found, rest], step) for found, rest in zip((base, new), same, strict=True)]
    delta = np.array(new, np.int64) - np.array(base, np.int64)
    after = row["base_span_ns"] + np.cumsum(delta)
    difference = row["delta_ns"]
    texts, shares, shared = [], [], not untold_shares(row, gap)
    for was, now, change in zip(*written, [*delta.tolist(), 0], strict=True):
        digits = f"{(now - was) * step / divisor:+,.{decimals}f}".replace("-", "−")
        texts.append("" if not change else digits if now != was else "≈ 0")
        share = change / difference if difference and shared else 0.0
        shares.append(format_share(share).replace("-", "−") if abs(share) >= 0.001 else "")
    totals = [f"{sum(one) * step / divisor:,.{decimals}f} {unit}" for one in written]
    return Waterfall(
        title=_panel_title(row, totals) if titled else "",
        label=f"{unit} per call",
        totals=(_busy_and_idle(row, "base", divisor), _busy_and_idle(row, "new", divisor)),
        total_texts=(totals[0], totals[1]),
        before=(after - delta) / divisor,
        after=after / divisor,
        texts=texts[:-1],
        shares=shares[:-1],
    )


def _busy_and_idle(row: dict[str, Any], side: str, divisor: int) -> tuple[float, float]:
    busy, span = row[f"{side}_busy_ns"], row[f"{side}_span_ns"]
    return busy / divisor, (span - busy) / divisor


def _digits(base: int, new: int) -> tuple[int, int, int, str]:
    """The last digit written, in ns; decimals, divisor and unit: four digits of the longer side, two of the other."""
    longer, shorter = max(base, new, 1), max(min(base, new), 1)
    divisor, unit = scale_ns(longer)
    if divisor >= _MINUTES:
        divisor, unit = 10**9, "s"
    most = math.floor(math.log10(longer))
    last = max(0, most - 6, min(most - 3, math.floor(math.log10(shorter)) - 1))
    return 10**last, max(round(math.log10(divisor)) - last, 0), divisor, unit


def _remarks(gap: pd.DataFrame, steps: Sequence[_Step]) -> list[str]:
    """How many kernels a call runs, in all and for each cause, where it runs any."""
    counts = [
        [float(gap[f"{side}_kernels"].reindex(step.causes, fill_value=0).sum()) for side in ("base", "new")]
        for step in steps
    ]
    totals = [_kernels(float(gap[f"{side}_kernels"].sum())) for side in ("base", "new")]
    changed = [
        ""
        if not base and not new
        else _kernels(base)
        if base == new
        else f"{_number(base)} → {_kernels(new)}"
        for base, new in counts
    ]
    return [totals[0], *changed, totals[1]]


def _kernels(count: float) -> str:
    return f"{_number(count)} kernel{'' if count == 1 else 's'}"


def _number(count: float) -> str:
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"


# ---- words


def _common_names(rows: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """What to call the sides where all pairs are drawn."""
    names = {(row["base_name"], row["new_name"]) for row in rows}
    one, other = next(iter(names)) if len(names) == 1 else ("base", "new")
    return shorten_both(one, other, _NAME)


def pair_headline(row: dict[str, Any]) -> str:
    """`math is 24.1x slower than flash at S=4096`, from a row of `Comparison.pairs`."""
    names = shorten_both(row["base_name"], row["new_name"], _NAME)
    return compared(row, names, shorten(row["place"], _NAME) if row["place"] else "")


def _single_title(row: dict[str, Any], gap: pd.DataFrame) -> str:
    """The finding: how much slower, and which causes make most of it."""
    text = pair_headline(row)
    if row["verdict"] == NO_CLEAR_CHANGE:
        return (
            f"{text}: {format_ns(row['base_median_ns'])} against {format_ns(row['new_median_ns'])} per call"
        )
    if untold_shares(row, gap):
        return text
    found = gap["share"].sort_values(ascending=False, kind="stable")
    named: list[str] = []
    total = 0.0
    for cause, share in zip(found.index.tolist(), found.tolist(), strict=True):
        if not share > 0 or total >= _ENOUGH or len(named) == _MOST_NAMED:
            break
        named.append(_in_words(cause))
        total += share
    if not named:
        return text
    offset = ", offset elsewhere" if total > 1.05 else ""
    return f"{text}: {join_words(named)} make{'s' * (len(named) == 1)} {format_share(total)} of it{offset}"


def _common_title(rows: Sequence[dict[str, Any]], gaps: Sequence[pd.DataFrame]) -> str:
    """The finding of many pairs: from how much to how much, or how many are what; and what makes most of it where."""
    base, new = _common_names(rows)
    clear = [row for row in rows if row["verdict"] in (FASTER, SLOWER)]
    slower = [row for row in clear if row["verdict"] == FASTER]
    level = [row for row in rows if row["verdict"] == NO_CLEAR_CHANGE]
    if len(clear) == len(rows) and len(slower) in (0, len(rows)):
        which = "slower" if slower else "faster"
        ratios = [row["base_median_ns"] / row["new_median_ns"] for row in rows]
        ratios = sorted(ratio if slower else 1 / ratio for ratio in ratios)
        text = f"{base} is {format_ratio(ratios[0])} to {format_ratio(ratios[-1])} {which} than {new}"
    else:
        counts = {
            "slower": len(slower),
            "faster": len(clear) - len(slower),
            NO_CLEAR_CHANGE: len(level),
            TOO_FEW_SAMPLES: len(rows) - len(clear) - len(level),
        }
        (first, most), *more = [(said, count) for said, count in counts.items() if count]
        text = f"{base} against {new}: {first} in {most} of {len(rows)} pairs"
        text += "".join(f", {said} in {count}" for said, count in more)
    return "; ".join((text, *_most_of_it(rows, gaps)))


def _most_of_it(rows: Sequence[dict[str, Any]], gaps: Sequence[pd.DataFrame]) -> Iterator[str]:
    """The largest cause of what is clear, and where it is that; the most frequent ones first."""
    places: dict[str, list[str]] = {}
    for number, (row, gap) in enumerate(zip(rows, gaps, strict=True), 1):
        if gap["share"].notna().any() and not untold_shares(row, gap):
            place = shorten(row["place"], 20) if row["place"] else f"pair {number}"
            places.setdefault(str(gap["share"].idxmax()), []).append(place)
    largest = sorted(places, key=lambda cause: -len(places[cause]))[:2]
    for at, cause in enumerate(largest):
        where = places[cause]
        said = join_words(where) if len(where) <= 3 else f"{len(where)} of {len(rows)} pairs"
        most = "the largest part is " if not at else ""
        everywhere = len(where) == len(rows)
        yield f"{most}{_in_words(cause)}{' everywhere' if everywhere else f' at {said}'}"


def _in_words(cause: str) -> str:
    return shorten(cause.replace("idle: ", "idle time "), _NAME)


def _panel_title(row: dict[str, Any], totals: Sequence[str]) -> str:
    place = row["place"] or f"{row['base_name']} → {row['new_name']}"
    said = compared(row, shorten_both(row["base_name"], row["new_name"], 24), "")
    if row["verdict"] == NO_CLEAR_CHANGE:
        said = "no clear change"
    return f"{shorten(place, 80)}: {said}; means {totals[0]} → {totals[1]}"


def _subtitle(comparison: Comparison, rows: Sequence[dict[str, Any]]) -> str:
    """Where the numbers come from, how many they are, and by which clock."""
    counts = list(dict.fromkeys(calls_text(row) for row in rows))
    per = list(dict.fromkeys(row[f"{side}_per"] for row in rows for side in ("base", "new")))
    number = counts[0] if len(counts) == 1 else "n differs"
    calls = f"mean of {number} calls ({shorten(' and '.join(per), 30)})"
    if all(row[f"{side}_calls"] == 1 for row in rows for side in ("base", "new")):
        calls = "n = 1, a single call of each"
    return " · ".join(
        [
            *compared_reports(comparison),
            calls,
            "clock: span, first op to last, divided by calls; title: the median call",
        ]
    )


def _legend(panels: Sequence[Waterfall], new: str) -> list[tuple[str, str]]:
    entries = [("busy", WHOLE)]
    if any(idle > 0 for panel in panels for _, idle in panel.totals):
        entries.append(("idle", OTHERS))
    change: Numbers = np.concatenate([panel.after - panel.before for panel in panels])
    if (change < 0).any():
        entries.append((f"less time in {new}", LESS))
    if (change > 0).any():
        entries.append((f"more time in {new}", MORE))
    return entries


def _notes(
    comparison: Comparison,
    rows: Sequence[dict[str, Any]],
    gaps: Sequence[pd.DataFrame],
    steps: Sequence[_Step],
) -> list[str]:
    untold = any(untold_shares(row, gap) for row, gap in zip(rows, gaps, strict=True))
    where = ", left out where there is no clear change or causes cancel" if untold else ""
    notes = [f"per cent of the difference{where}; all steps add up to it"] if steps else []
    if steps and len(steps[-1].causes) > 1:
        some = [shorten(cause, 30) for cause in steps[-1].causes[:4]]
        more = len(steps[-1].causes) - len(some)
        notes.append(f"the {steps[-1].label}: {', '.join(some)}{f' and {more:,} more' if more else ''}")
    left = len(comparison.pairs) - len(gaps)
    if left:
        notes.insert(0, f"{plural(left, 'more pair')} with smaller differences are not drawn")
    return notes


# ---- all charts

GAP_CHARTS: tuple[Chart[Comparison], ...] = (
    Chart("gap.png", "How the time of one side becomes that of the other, cause by cause", plan_gap),
    Chart("compare.png", "The median call of either side, kernel by kernel", plan_calls),
)
ROOFLINE = Chart("roofline.png", "The kernels below what the GPU can do, by hardware counters", plan_roofline)
CHARTS = (*GAP_CHARTS, ROOFLINE)


def comparison_charts(comparison: Comparison) -> tuple[Chart[Comparison], ...]:
    """The charts that have something to show: `ROOFLINE` only where there are counters."""
    return CHARTS if comparison.measured else GAP_CHARTS
