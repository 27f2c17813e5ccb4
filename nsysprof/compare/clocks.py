"""Time calls in five ways: by step, on the host, by CUDA events, from first to last GPU op, and by busy time.

Also sum the host calls and copies of whole traces per report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.compare.gap_ledger import mean_text
from nsysprof.compare.loaded import LoadedReport
from nsysprof.compare.selection import SPAN, STEP
from nsysprof.core.arrays import Ints
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.results.table import Column, TextTable, show_columns
from nsysprof.statistics.confidence import RESAMPLES
from nsysprof.statistics.contrast import (
    DEFAULT_RULES,
    FASTER,
    NO_CLEAR_CHANGE,
    SLOWER,
    TOO_FEW_SAMPLES,
    Contrast,
    contrast,
    judge,
    noise_of,
)
from nsysprof.statistics.distributions import split_p
from nsysprof.statistics.runs import HOST_NOISE, HOST_PACED, USUAL_NOISE
from nsysprof.summaries.every import SUMMARIES
from nsysprof.summaries.summary import Asked

CPU, EVENTS, BUSY = "CPU", "CUDA events", "busy"
CLOCKS = (STEP, CPU, EVENTS, SPAN, BUSY)
Samples = Mapping[str, Ints]
# How far apart, over the sum of both ranges, few samples lie that show a difference; and one beyond `HOST_NOISE`.
_FAR, _APART = 2, 0.25
# Values to draw in all, so that hundreds of pairs, or hundreds of thousands of calls, take seconds; and the fewest
# resamples that make an interval.
MAX_DRAWS, MIN_RESAMPLES = 200_000_000, 1_000


def clock_rows(
    pairs: Sequence[tuple[str, tuple[str, str], Samples, Samples]],
    steps: Sequence[float] = (),
    *,
    recordings: bool = False,
) -> tuple[pd.DataFrame, list[str]]:
    """Return a row per pair and clock, and warnings about the samples on which verdicts are based.

    A pair consists of a name, the names of its sides (for warnings), and the samples of both sides. ``steps`` are the
    resolutions of the GPU clocks (`clock_step`). ``recordings``: whether the sides are from two recordings; two
    recordings always differ.

    The columns are ``pair`` and ``clock``, and for each side ``n, median_ns, iqr_ns, mean_ns, min_ns, max_ns``.
    ``ratio`` is the ratio of the medians (base/new), with an interval from ``ratio_low`` to ``ratio_high`` at the
    confidence ``level``. ``delta`` is Cliff's delta; ``p`` is the p-value, and ``adjusted_p`` is corrected for all
    pairs of a clock (Holm). ``verdict`` is about the new side, for the given ``reason``. If a side has no samples, or a
    median of 0, numbers are NaN and texts empty. Pairs that are not steps have no row of `STEP`.
    """
    total = sum(len(samples) for _, _, *both in pairs for side in both for samples in side.values())
    resamples = max(MIN_RESAMPLES, min(RESAMPLES, MAX_DRAWS // max(total, 1)))
    steps = steps or [DEFAULT_RULES.clock_step] * len(pairs)
    verdicts: dict[tuple[str, str], Contrast] = {}
    for clock in CLOCKS:
        contrasts, rules = {}, []
        for (pair, names, base, new), step in zip(pairs, steps, strict=True):
            if clock not in base or clock not in new:
                continue
            both = _contrast(names, base[clock], new[clock], resamples)
            if both is not None:
                contrasts[pair, clock] = both
                rules.append(DEFAULT_RULES if clock == CPU else replace(DEFAULT_RULES, clock_step=step))
        judged = judge([*contrasts.values()], rules)
        of = {name: (base, new) for name, _, base, new in pairs}
        for (pair, _), one in zip(contrasts, judged, strict=True):
            paced = recordings and clock != BUSY and _host_paced(of[pair], clock)
            verdicts[pair, clock] = _of_recordings(one, recordings=recordings, paced=paced)
    rows = []
    for pair, _, base, new in pairs:
        for clock in (each for each in CLOCKS if each in base and each in new):
            sides = _summary("base", base[clock]) | _summary("new", new[clock])
            rows.append({"pair": pair, "clock": clock, **sides, **_numbers(verdicts.get((pair, clock)))})
    main = [verdicts.get((pair, STEP if STEP in base else SPAN)) for pair, _, base, _ in pairs]
    enough = [each for each in main if each and min(each.base_n, each.new_n) >= DEFAULT_RULES.least_samples]
    texts = [each.warnings for each in enough if each.verdict != TOO_FEW_SAMPLES]
    return pd.DataFrame(rows), list(dict.fromkeys(text for each in texts for text in each))


def _host_paced(sides: Sequence[Samples], clock: str) -> bool:
    """Whether the GPU is idle for so much of either side's time that the host determines this time."""
    both = [(side.get(BUSY, ()), side[clock]) for side in sides]
    return any(len(busy) and np.median(busy) < HOST_PACED * np.median(times) for busy, times in both)


def _of_recordings(one: Contrast, *, recordings: bool, paced: bool) -> Contrast:
    """The verdict if samples are few, or if two recordings would differ even without a change.

    Few samples show a difference only if the two sides are far apart, and if two recordings differ by more than
    recordings of an unchanged program. Host-bound times vary between recordings, so small changes need more recordings.
    """
    effect = noise_of(one.ratio)
    if one.verdict in (FASTER, SLOWER) and paced and effect <= HOST_NOISE:
        reason = (
            "the program is host-bound, so two recordings of the unchanged program can differ by "
            f"{format_share(HOST_NOISE)}"
        )
        return replace(one, verdict=TOO_FEW_SAMPLES, reason=reason)
    if one.verdict != TOO_FEW_SAMPLES:
        return one
    if recordings and effect <= USUAL_NOISE:
        reason = f"two recordings of an unchanged program can differ by {format_share(USUAL_NOISE)}"
        return replace(one, verdict=NO_CLEAR_CHANGE, reason=reason)
    p = split_p(one.base_n, one.new_n) * one.family
    enough = HOST_NOISE if paced or one.gap < _FAR else USUAL_NOISE
    if abs(one.delta) == 1 and p < DEFAULT_RULES.alpha and one.gap >= _APART and effect > enough:
        which = "all samples of one side are below all samples of the other"
        return replace(one, verdict=FASTER if one.ratio < 1 else SLOWER, reason=f"p = {p:.2g}: {which}")
    return one


def _contrast(names: tuple[str, str], base: Ints, new: Ints, resamples: int) -> Contrast | None:
    """The contrast of two samples, or None if one is empty, or has a median of 0 and thus no ratio."""
    if not len(base) or not len(new):
        return None
    try:
        return contrast(base, new, names=names, resamples=resamples)
    except NsysprofError:
        return None


def _summary(side: str, samples: Ints) -> dict[str, int]:
    low, middle, high = np.percentile(samples, [25, 50, 75]) if len(samples) else (0, 0, 0)
    return {
        f"{side}_n": len(samples),
        f"{side}_median_ns": round(float(middle)),
        f"{side}_iqr_ns": round(float(high - low)),
        f"{side}_mean_ns": round(float(samples.mean())) if len(samples) else 0,
        f"{side}_min_ns": int(samples.min()) if len(samples) else 0,
        f"{side}_max_ns": int(samples.max(initial=0)),
    }


def _numbers(verdict: Contrast | None) -> dict[str, Any]:
    """The numbers of a contrast, with its ratio inverted: base time ÷ new time."""
    numbers = ("ratio", "ratio_low", "ratio_high", "level", "delta", "p", "adjusted_p")
    if verdict is None:
        return {**dict.fromkeys(numbers, np.nan), "verdict": "", "reason": ""}
    interval = verdict.ratio_interval
    low, high = (1 / end if end else np.inf for end in (interval.high, interval.low))
    values = (1 / verdict.ratio, low, high, interval.level, verdict.delta, verdict.p, verdict.adjusted_p)
    return {**dict(zip(numbers, values, strict=True)), "verdict": verdict.verdict, "reason": verdict.reason}


# The summaries that are compared: what names the rows that readers see of each, and its title.
_COMPARED = {"calls": ("call", "host calls"), "copies": ("what", "copies")}
_COLUMNS = ("base_count", "base_ns", "new_count", "new_ns")


def compare_totals(base: LoadedReport, new: LoadedReport) -> dict[str, pd.DataFrame]:
    """Sum the host calls and copies of two reports; return a data frame for each non-empty summary, by name.

    One row per name, largest difference first: ``name``; for each side ``base_count, base_ns, new_count, new_ns``
    (added durations); and ``delta_ns``.
    """
    out = {}
    for summary in (each for each in SUMMARIES if each.name in _COMPARED):
        sides = []
        for side, loaded in (("base", base), ("new", new)):
            asked = Asked(loaded.code_of, loaded.texts, loaded.merged.parent)
            if found := summary.make(loaded.attribution, asked):
                names = found.rows.texts(_COMPARED[summary.name][0]).tolist()
                values = {f"{side}_count": found.rows["count"], f"{side}_ns": found.rows["sum_ns"]}
                sides.append(pd.DataFrame(values, index=names).groupby(level=0).sum())
        if sides:
            both = pd.concat(sides, axis=1).reindex(columns=_COLUMNS).fillna(0).astype("int64").sort_index()
            both["delta_ns"] = both["new_ns"] - both["base_ns"]
            order = both["delta_ns"].abs().sort_values(ascending=False, kind="stable").index
            out[summary.name] = both.loc[order].rename_axis("name").reset_index()
    return out


def totals_table(name: str, totals: pd.DataFrame, sides: Sequence[str], top: int) -> TextTable:
    """Make a table of the first ``top`` rows of `compare_totals`, and the total, with count and time per side."""
    whole = totals.drop(columns="name").sum().to_frame().T.assign(name="total")
    rows = pd.concat([totals.head(top), whole])
    counts = [dict.fromkeys(map(mean_text, pair)) for pair in rows[["base_count", "new_count"]].to_numpy()]
    columns = (
        Column("name", "", _COMPARED[name][1], lambda text: one_line(text, 40)),
        Column("count", "", align="r"),
        *(Column(f"{side}_ns", "", head) for side, head in zip(("base", "new"), sides, strict=True)),
        Column("delta_ns", "", "change", lambda ns: f"{'-' if ns < 0 else '+'}{format_ns(abs(ns))}"),
    )
    more = len(totals) - top
    note = "times are summed over all threads and streams, and may overlap"
    note += f"; gap.json has {more:,} more rows with smaller changes" if more > 0 else ""
    return show_columns(columns, rows.assign(count=[" → ".join(pair) for pair in counts]), note=note, last_apart=True)
