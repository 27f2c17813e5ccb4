"""What a pair of ranges amounts to, in sentences: the headline, the main causes, and where clocks disagree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from nsysprof.compare.attention_model import Expected
from nsysprof.compare.clocks import BUSY, EVENTS, SPAN
from nsysprof.compare.gap_ledger import causes_cancel, untold_shares
from nsysprof.compare.traffic import Measured, tensor_share
from nsysprof.core.units import format_bytes, format_count, format_ns, format_ratio, format_share
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


# Model and measurement agree within this part of the former.
_MODEL_AGREES = 0.2
# Of what a call should move: where both agree on that, a cause is named that differs by more than this.
_NOTABLE = 0.05


def traffic_findings(
    pair: Mapping[str, Any],
    models: tuple[Expected | None, Expected | None],
    measured: tuple[Measured | None, Measured | None],
) -> Iterator[str]:
    """The sentences of one pair; none where neither a model nor counters know its sides."""
    if not any(measured):
        yield from _expected(pair, models)
        return
    names = (pair["base_name"], pair["new_name"])
    each = zip(names, models, measured, strict=True)
    told = [text for name, model, found in each if (text := _moved(name, model, found))]
    shapes = list(dict.fromkeys(model.text for model in models if model))
    at = f" at {shapes[0]}" if len(shapes) == 1 else ""
    if told:
        yield f"memory traffic per call{at}: {'; '.join(told)}"
    for name, model, found in zip(names, models, measured, strict=True):
        if model and found:
            yield from _surprise(name, model, found)
    yield from _tensor_cores(names, measured)


def _expected(pair: Mapping[str, Any], models: tuple[Expected | None, Expected | None]) -> Iterator[str]:
    """What either side moves by the model of its shape."""
    base, new = models
    if base is None or new is None or not base.bytes_of or not new.bytes_of or base.shape != new.shape:
        return
    texts = [
        f"{pair[f'{side}_name']} {format_bytes(sum(model.bytes_of.values()))}{_times(model)}"
        for side, model in (("base", base), ("new", new))
    ]
    yield f"expected memory traffic per call at {base.text}: {texts[0]}, {texts[1]}"


def _times(model: Expected) -> str:
    """How many score matrices that is."""
    if not model.matrix_bytes:
        return ""
    times = sum(model.bytes_of.values()) / model.matrix_bytes
    return f" ({times:.1f} times its score matrix of {format_bytes(model.matrix_bytes)})"


def _moved(name: str, model: Expected | None, found: Measured | None) -> str:
    """`math moves 5.70 GiB, measured, for 5.80 GiB expected (11.6 times its score matrix of 512 MiB)`."""
    parts = []
    size = found.total["dram_bytes"] if found else float("nan")
    if not math.isnan(size):
        part = "" if found and found.complete else " at least"
        parts.append(f"{name} moves{part} {format_bytes(size)} measured")
    if model and model.bytes_of:
        total = f"{format_bytes(sum(model.bytes_of.values()))} expected{_times(model)}"
        parts.append(total if parts else f"{name} {total}")
    return ", ".join(parts)


def _surprise(name: str, model: Expected, found: Measured) -> Iterator[str]:
    """Where the measurement differs from the model: of the call, or else of a cause that makes much of it."""
    expected, size = sum(model.bytes_of.values()), found.total["dram_bytes"]
    if not found.complete or not expected or math.isnan(size):
        return
    change = found.causes["dram_bytes"].sub(pd.Series(model.bytes_of, dtype=float), fill_value=0.0)
    if abs(size - expected) <= _MODEL_AGREES * expected:
        large = change[change.abs() > _NOTABLE * expected]
        for cause in [str(cause) for cause in large.index if cause in model.bytes_of]:
            known, moved = model.bytes_of[cause], found.causes["dram_bytes"][cause]
            if abs(change[cause]) > _MODEL_AGREES * known:
                both = f"{format_bytes(moved)} measured, {format_bytes(known)} expected"
                yield f"{cause} of {name} moves {_differs(moved, known)} than expected: {both}"
        return
    said = f"{name} moves {_differs(size, expected)} than expected"
    held = model.matrix_bytes or model.least_bytes
    less = size < expected
    change = change[change < 0] if less else change[change > 0]
    if less and found.l2_bytes and held <= found.l2_bytes:
        size_text, cache = format_bytes(held), format_bytes(found.l2_bytes)
        fits, of_it = f"its score matrix of {size_text} fits", "it"
        if not model.matrix_bytes:
            fits, of_it = f"its input and output of {size_text} fit", "them"
        yield f"{said}: {fits} into the L2 cache ({cache}), so that much of {of_it} need not go through memory"
    elif len(change):
        cause = str(change.abs().idxmax())
        missing = "" if cause in model.bytes_of else ", which the model does not know"
        yield f"{said}, most of it in {cause} ({format_bytes(abs(float(change[cause])))}){missing}"
    else:
        yield said


def _differs(size: float, expected: float) -> str:
    return f"{format_share(abs(size - expected) / expected)} {'less' if size < expected else 'more'}"


def _tensor_cores(names: tuple[str, str], measured: tuple[Measured | None, Measured | None]) -> Iterator[str]:
    """How much of the FLOPs of either side tensor cores do."""
    told = []
    for name, found in zip(names, measured, strict=True):
        share = tensor_share(found.total) if found else float("nan")
        if found and not math.isnan(share):
            part = "none" if not share else format_share(share)
            told.append(f"{part} of the {format_count(round(found.total['flops']))} FLOP of {name}")
    if told:
        yield f"measured: tensor cores do {' and '.join(told)} per call"
