"""What a pair of ranges amounts to, in sentences: the headline, the main causes, and where clocks disagree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from nsysprof.compare.attention_model import Expected
from nsysprof.compare.clocks import BUSY, EVENTS, SPAN
from nsysprof.compare.gap_ledger import causes_cancel, untold_shares
from nsysprof.compare.measured import Measured
from nsysprof.compare.traffic_findings import traffic_findings
from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.statistics.contrast import FASTER, SLOWER, TOO_FEW_SAMPLES, word_by_verdict
from nsysprof.waits.causes import EXPOSED, HOST, OTHERS, QUEUE, SYNC, WAITING_FOR

# Causes are named in a sentence from this share of the difference on, and so many of them.
_LEAST_SHARE, _MOST_CAUSES = 0.1, 3
# A range that idles for less of its span than this is as fast by busy time as by span.
_MOSTLY_BUSY = 0.9
_LAUNCH_BOUND = 0.5
# Ratios, and means and medians, that differ by less agree.
_AGREE = 1.1
_IN_WORDS = {
    WAITING_FOR[HOST]: "waiting for the host",
    WAITING_FOR[SYNC]: "waiting for a synchronization to return",
    WAITING_FOR[QUEUE]: "idling between queued ops",
    WAITING_FOR[OTHERS]: "waiting while ops of others run",
    WAITING_FOR[EXPOSED]: "waiting for the host after a synchronization",
}
_UNITS = {"tensor core": "tensor cores", "FP32 FMA": "FP32 units (CUDA cores)"}


def findings(
    pair: Mapping[str, Any],
    gaps: pd.DataFrame,
    clocks: pd.DataFrame,
    evidence: pd.DataFrame,
    models: tuple[Expected | None, Expected | None] = (None, None),
    measured: tuple[Measured | None, Measured | None] = (None, None),
) -> tuple[str, ...]:
    """The sentences of one pair, the headline first; the arguments are its rows of a `Comparison`'s frames."""
    rows: list[dict[Any, Any]] = clocks.to_dict("records")
    times = {str(row["clock"]): row for row in rows}
    found = [
        _headline(pair),
        *_verdict(pair, times[SPAN]),
        *_causes(pair, gaps),
        *_kernels(pair, gaps, evidence),
        *_bound(pair, gaps, times[SPAN], times[BUSY]),
    ]
    found += traffic_findings(pair, models, measured)
    return (*found, *_events(pair, times[EVENTS]), *_skewed(pair, times[SPAN]))


def speed(base_ns: float, new_ns: float) -> str:
    """How the base compares: `24.2x slower than`, `1.31x faster than`, `as fast as`."""
    if base_ns == new_ns or not base_ns or not new_ns:
        return "as fast as"
    if base_ns > new_ns:
        return f"{format_ratio(base_ns / new_ns)} slower than"
    return f"{format_ratio(new_ns / base_ns)} faster than"


def compared(pair: Mapping[str, Any], names: tuple[str, str], place: str, clock: str = "") -> str:
    """`math is 24.1x slower than flash at S=4096`, by the median call, and no more than the verdict says.

    This is what the headline of a pair, a row of `Comparison.pairs`, and the titles of all its charts say.
    """
    where = (f" at {place}" if place else "") + clock
    said = f"{names[0]} is {speed(pair['base_median_ns'], pair['new_median_ns'])} {names[1]}{where}"
    return word_by_verdict(said, f"no clear change from {names[0]} to {names[1]}{where}", pair["verdict"])


def _headline(pair: Mapping[str, Any]) -> str:
    said = compared(pair, (pair["base_name"], pair["new_name"]), pair["place"], " by span")
    base, new = (format_ns(pair[f"{side}_median_ns"]) for side in ("base", "new"))
    counts = counts_text(pair["base_n"], pair["new_n"])
    return f"{said}: {base} against {new}, median call ({counts})"


def _verdict(pair: Mapping[str, Any], span: Mapping[str, Any]) -> Iterator[str]:
    """The test of the samples, call by call, and by how much the median call differs."""
    if not span["verdict"]:
        return
    if span["verdict"] == TOO_FEW_SAMPLES:
        yield f"verdict: too few samples ({span['reason']})"
        return
    ratio, low, high = (format_ratio(span[name]) for name in ("ratio", "ratio_low", "ratio_high"))
    clear = span["verdict"] in (FASTER, SLOWER)
    said = f"{pair['new_name']} is {span['verdict']}" if clear else span["verdict"]
    held = f"{100 * span['level']:.3g} % interval {low} to {high}"
    median = f"the median call of {pair['base_name']} takes {ratio} as long ({held})"
    yield f"verdict: {said}; {median}; {span['reason']}"


def calls_text(pair: Mapping[str, Any]) -> str:
    """`n = 20`, or `n = 20 and 10`: how many calls the ledger of either side is divided by."""
    return counts_text(pair["base_calls"], pair["new_calls"])


def counts_text(base: int, new: int) -> str:
    """The same of any two counts."""
    return f"n = {base:,}" if base == new else f"n = {base:,} and {new:,}"


def _causes(pair: Mapping[str, Any], gaps: pd.DataFrame) -> Iterator[str]:
    """Which causes make most of the difference; where they cancel, what they change by."""
    if untold_shares(pair, gaps):
        if not causes_cancel(gaps):
            return
        changed = gaps[gaps["delta_ns"] != 0].head(_MOST_CAUSES)
        named = [
            f"{_IN_WORDS.get(cause, cause)} {'+' if change > 0 else '-'}{format_ns(abs(change))}"
            for cause, change in zip(changed["cause"].tolist(), changed["delta_ns"].tolist(), strict=True)
        ]
        if len(named) > 1:
            yield f"the causes cancel for the most part: {_joined(named)}"
        return
    most = gaps[gaps["share"] >= _LEAST_SHARE].sort_values("share", ascending=False).head(_MOST_CAUSES)
    parts = [
        f"{format_share(share)}{' of the difference' if not at else ''} is {_IN_WORDS.get(cause, cause)}"
        for at, (share, cause) in enumerate(zip(most["share"].tolist(), most["cause"].tolist(), strict=True))
    ]
    if parts:
        yield _joined([parts[0], *[part.replace(" is ", " ") for part in parts[1:]]])


def _kernels(pair: Mapping[str, Any], gaps: pd.DataFrame, evidence: pd.DataFrame) -> Iterator[str]:
    """How many kernels a call runs on each side, and on which units it multiplies matrices where that differs."""
    names = (pair["base_name"], pair["new_name"])
    counts, units = [], []
    for side in ("base", "new"):
        count = float(gaps[f"{side}_kernels"].sum())
        counts.append(f"{count:,.0f}" if count == int(count) else f"{count:,.1f}")
        mine = evidence[(evidence["side"] == side) & (evidence["math_unit"] != "unknown")]
        by_time = mine.groupby("math_unit")["sum_ns"].sum().sort_values(ascending=False).index.tolist()
        units.append(_joined([_UNITS.get(unit, unit) for unit in by_time]) if by_time else "")
    text = f"per call {names[0]} runs {counts[0]} kernel{'' if counts[0] == '1' else 's'} and {names[1]} {counts[1]}"
    if all(units) and units[0] != units[1]:
        text += f"; matrix products run on {units[0]} in {names[0]}, on {units[1]} in {names[1]}"
    yield text


def _bound(
    pair: Mapping[str, Any], gaps: pd.DataFrame, span: Mapping[str, Any], busy: Mapping[str, Any]
) -> Iterator[str]:
    """Who idles, and how much faster or slower the base is by busy time then."""
    texts: list[str] = []
    if not pair["base_span_ns"] or not pair["new_span_ns"]:
        return
    for side in ("base", "new"):
        whole = pair[f"{side}_span_ns"]
        share = pair[f"{side}_busy_ns"] / whole
        if share >= _MOSTLY_BUSY:
            continue
        where = f" at {pair['place']}" if pair["place"] and not texts else ""
        waits = int(gaps.loc[gaps["cause"] == WAITING_FOR[HOST], f"{side}_ns"].sum()) / whole
        if waits >= _LAUNCH_BOUND:
            texts.append(
                f"{pair[f'{side}_name']}{where} is launch-bound: busy is {format_share(share)} of span"
            )
        else:
            texts.append(
                f"{pair[f'{side}_name']}{where} keeps the GPU busy for {format_share(share)} of its span only"
            )
    if not texts:
        return
    by_span, by_busy = span["ratio"], busy["ratio"]
    if not math.isnan(by_span + by_busy) and _apart(by_span, by_busy):
        texts[-1] += f", so {format_ratio(by_span)} by span is {format_ratio(by_busy)} by busy"
    yield "; ".join(texts)


def _events(pair: Mapping[str, Any], events: Mapping[str, Any]) -> Iterator[str]:
    """Where CUDA events tell another ratio than the span."""
    by_span = pair["base_median_ns"] / max(pair["new_median_ns"], 1)
    if not math.isnan(events["ratio"]) and _apart(events["ratio"], by_span):
        yield (
            f"by CUDA events, with the profiler's own cost between them, it is {format_ratio(events['ratio'])}:"
            f" {format_ns(events['base_median_ns'])} against {format_ns(events['new_median_ns'])}"
        )


def _skewed(pair: Mapping[str, Any], span: Mapping[str, Any]) -> Iterator[str]:
    """Where the mean, which the ledger adds up to, is not what a typical call takes."""
    for side in ("base", "new"):
        median, mean = span[f"{side}_median_ns"], pair[f"{side}_span_ns"]
        if median > 0 and mean > _AGREE * median:
            yield (
                f"a few slow calls of {pair[f'{side}_name']} make the mean, {format_ns(mean)}, to which the causes"
                f" add up, {format_share(mean / median - 1)} longer than the median call, {format_ns(median)}"
            )


def _apart(one: float, other: float) -> bool:
    return max(one, other) > _AGREE * min(one, other)


def _joined(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
