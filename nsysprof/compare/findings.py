"""The findings of a pair as sentences: headline, main causes, memory traffic, and disagreement between clocks."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.attribution.paths import WHOLE_TRACE
from nsysprof.compare.attention_model import Expected, Models
from nsysprof.compare.clocks import BUSY, EVENTS
from nsysprof.compare.gap_ledger import causes_cancel, mean_text, no_shares_reason
from nsysprof.compare.pairs import SIDES, Pair
from nsysprof.compare.selection import SPAN, STEP
from nsysprof.compare.several import OverRecordings, to_record
from nsysprof.compare.traffic import BothMeasured, Measured, tensor_share
from nsysprof.compare.work import Doubt, element_type, find_doubts
from nsysprof.core.text import join_words
from nsysprof.core.units import format_bytes, format_count, format_ns, format_ratio, format_share
from nsysprof.results.table import row_dicts
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES, noise_of, word_by_verdict
from nsysprof.statistics.runs import USUAL_NOISE
from nsysprof.summaries.gpu_metrics import clock_change
from nsysprof.waits.causes import WAITING_FOR

# Sentences name causes from this share of the difference on, and so many of them.
MIN_SHARE, MAX_CAUSES = 0.1, 3
# A range that idles for less of its span than this is as fast by busy time as by span.
MIN_BUSY_SHARE = 0.9
MIN_WAITING_SHARE = 0.5  # of the span, for the host: from here on a side is launch-bound
# Ratios, and means and medians, that differ by less agree.
MAX_RATIO_OF_EQUALS = 1.1
# Model and measurement agree within this part of the former.
MODEL_TOLERANCE = 0.2
# Of the expected bytes of a call: where both agree on those, a cause is named that differs by more than this.
MIN_NOTABLE_BYTES = 0.05
_IN_WORDS = dict(
    zip(
        WAITING_FOR,
        (
            "waiting for kernel launches",
            "waiting for a synchronization to return",
            "waiting for other CUDA calls",
            "waiting for OS calls",
            "waiting for the profiler",
            "waiting for CPU code",
            "launch latency",
            "waiting for communication",
            "waiting for copies",
            "waiting for GPU ops of other ranges",
            "waiting without a recorded reason",
        ),
        strict=True,
    )
)
# Where the time of a step lies that is beside the span of its GPU ops: the parts of `Selection.parts_ns`.
_PLACES = {
    "between": "between steps",
    "before": "before the first GPU operation of a step",
    "behind": "after the last GPU operation of a step",
}
_LAUNCHING = [WAITING_FOR.index(f"idle: host: {activity}") for activity in ("launch calls", "code")]
_UNITS = {"FP32 FMA": "FP32 units (CUDA cores)"}


@dataclass(frozen=True)
class Difference:
    """A pair, with its ``row`` of `Comparison.pairs` and its rows of the other tables."""

    pair: Pair
    row: Mapping[str, Any]
    gaps: pd.DataFrame
    clocks: pd.DataFrame
    evidence: pd.DataFrame
    traffic: pd.DataFrame
    work: pd.DataFrame
    models: Models
    measured: BothMeasured
    runs: OverRecordings | None

    @property
    def whole(self) -> bool:
        """Whether both sides are whole traces."""
        return bool(self.row["place"] == WHOLE_TRACE)

    @property
    def clock(self) -> str:
        """The clock of the verdict."""
        return str(self.row["clock"])

    @property
    def noun(self) -> str:
        """The word for a call: `step` or `call`."""
        return "step" if self.clock == STEP else "call"

    @property
    def each(self) -> str:
        """The base of all figures: `per step`, `per call`, or `in the whole trace`."""
        return "in the whole trace" if self.whole else f"per {self.noun}"

    @cached_property
    def no_shares(self) -> str:
        """Return the reason why the causes have no shares of the difference; empty if they have shares."""
        return no_shares_reason(self.row, self.gaps)

    @cached_property
    def largest_cause(self) -> tuple[str, float] | None:
        """Return the cause with the largest share of the difference, and its share, or None if there are no shares."""
        if self.no_shares or self.gaps["share"].isna().all():
            return None
        largest = self.gaps.iloc[int(self.gaps["share"].argmax())]
        return str(largest["cause"]), float(largest["share"])

    @cached_property
    def doubts(self) -> tuple[Doubt, ...]:
        """Return doubts about whether the new side does the same work as the base."""
        return () if self.work.empty else tuple(find_doubts(self.work, self.pair.sides, self.pair.names, self.noun))

    @cached_property
    def findings(self) -> tuple[str, ...]:
        """The findings as sentences, headline first."""
        clocks = {row["clock"]: row for row in row_dicts(self.clocks)}
        return (
            _headline(self),
            *([self.runs.text] if self.runs else _verdict(self, clocks[self.clock])),
            *_sampled_clock(self),
            *(doubt.text for doubt in self.doubts),
            *_elsewhere(self, clocks),
            *(_causes(self) if self.pair.one_report else ()),
            *_kernels(self),
            *_bound(self, clocks[self.clock], clocks[BUSY]),
            *_recorded(self),
            *_traffic(self),
            *_events(self.row, clocks[EVENTS]),
            *_skewed(self.row, clocks[self.clock]),
        )


def speed(base_ns: float, new_ns: float) -> str:
    """Compare two times in words: `24.2x slower than`, `1.31x faster than`, `as fast as`."""
    if not base_ns or not new_ns or format_ratio(base_ns / new_ns) == format_ratio(1.0):
        return "as fast as"
    if base_ns > new_ns:
        return f"{format_ratio(base_ns / new_ns)} slower than"
    return f"{format_ratio(new_ns / base_ns)} faster than"


def compared(pair: Mapping[str, Any], names: tuple[str, str], place: str, clock: str = "") -> str:
    """Return `math is 24.1x slower than flash at S=1024` (median calls), or `no clear change`, depending on the
    verdict.

    The titles of all charts of the pair (a row of `Comparison.pairs`) also start with this headline.
    """
    where = at(place) + clock
    text = f"{names[0]} is {speed(pair['base_median_ns'], pair['new_median_ns'])} {names[1]}{where}"
    return word_by_verdict(text, f"no clear change from {names[0]} to {names[1]}{where}", pair["verdict"])


def at(place: str) -> str:
    """Return ` at S=1024`, ` over the whole trace`, or nothing."""
    return f" over the {place}" if place == WHOLE_TRACE else f" at {place}" if place else ""


def _headline(difference: Difference) -> str:
    pair = difference.row
    clock = " per step" if difference.clock == STEP else "" if difference.whole else " by span"
    base, new = (format_ns(pair[f"{side}_median_ns"]) for side in SIDES)
    counts = counts_text(pair["base_n"], pair["new_n"])
    if difference.pair.one_report:
        text = compared(pair, (pair["base_name"], pair["new_name"]), pair["place"], clock)
        median = "" if difference.whole else f", median {difference.noun}"
        return f"{text}: {base} against {new}{median} ({counts})"
    if new.split(" ")[1:] == base.split(" ")[1:]:
        new = new.split(" ")[0]
    name, where = pair["new_name"], clock + at(pair["place"])
    if pair["verdict"] == NO_CLEAR_CHANGE:
        apart = noise_of(pair["base_median_ns"] / max(pair["new_median_ns"], 1)) > USUAL_NOISE
        doubt = f": {difference.noun}s vary too much" if apart else ""
        return f"no clear change in {name}{where} ({new} against {base}, {counts}){doubt}"
    how = speed(pair["new_median_ns"], pair["base_median_ns"]).removesuffix(" than")
    text = f"{name} is {how}{where if 'x' in how else ' ' + pair['base_name'] + where}"
    doubt = ", no verdict" if pair["verdict"] == TOO_FEW_SAMPLES else ""
    return ": ".join((f"{text} ({new} against {base}, {counts}{doubt})", *islice(_causes(difference), 1)))


def _verdict(difference: Difference, span: Mapping[str, Any]) -> Iterator[str]:
    """State the test result of the samples and the difference of the median calls, or what would show a difference."""
    pair, two = difference.row, not difference.pair.one_report
    if not span["verdict"]:
        return
    if span["verdict"] == TOO_FEW_SAMPLES:
        alone = pair["base_n"] == pair["new_n"] == 1 and two
        usual = (
            f"two recordings of an unchanged program can differ by {format_share(USUAL_NOISE)}, or more "
            "if it is host-bound"
        )
        reason = f"one recording per side ({usual})" if alone else span["reason"]
        yield f"no verdict: {reason}{f'; {to_record(difference.pair)}' if two else ''}"
        return
    if two and pair["base_n"] == pair["new_n"] == 1:
        yield f"verdict: {span['verdict']}; {span['reason']}"
        return
    ratio, low, high = (format_ratio(span[name]) for name in ("ratio", "ratio_low", "ratio_high"))
    clear = span["verdict"] in (FASTER, SLOWER)
    verdict = f"{pair['new_name']} is {span['verdict']}" if clear else span["verdict"]
    interval = f"{100 * span['level']:.3g} % interval {low} to {high}"
    noun = "step" if pair["clock"] == STEP else "call"
    median = f"the median {noun} takes {ratio} as long in {pair['base_name']} ({interval})"
    yield f"verdict: {verdict}; {median}; {span['reason']}"


def _elsewhere(difference: Difference, clocks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """If step time and GPU span disagree, name the time outside the span and its causes."""
    pair, sides = difference.row, difference.pair.sides
    if difference.clock != STEP or not all(clocks[name]["ratio"] > 0 for name in (STEP, SPAN)):
        return
    if not _apart(clocks[STEP]["ratio"], clocks[SPAN]["ratio"]):
        return
    change = {name: pair[f"new_{name}_ns"] - pair[f"base_{name}_ns"] for name in _PLACES}
    total = sum(change.values())
    parts = [name for name in _PLACES if change[name] * total > MIN_SHARE * total * total]
    where = join_words([f"{_PLACES[name]} ({_signed(change[name])})" for name in parts])
    waits = np.zeros(len(WAITING_FOR))
    for sign, side in zip((-1, 1), sides, strict=True):
        pieces = side.edges.pieces if side.edges else None
        if pieces is not None:
            np.add.at(waits, pieces.kind, sign * (pieces.end - pieces.start) / side.ledger.calls)
    cause = _IN_WORDS[WAITING_FOR[int((waits * np.sign(total)).argmax())]]
    base, new = (format_ns(clocks[SPAN][f"{side}_median_ns"]) for side in SIDES)
    times = format_ratio(1 / clocks[SPAN]["ratio"])
    if where:
        text = f"the GPU work of a step, from first to last operation, takes {times} as long ({base} to {new})"
        yield f"{text}; the rest of the difference is time {where}, mostly {cause}"


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '-'}{format_ns(abs(ns))}"


def calls_text(pair: Mapping[str, Any]) -> str:
    """Return `n = 20`, or `n = 20 and 10`: the number of calls in the ledger of each side."""
    return counts_text(pair["base_calls"], pair["new_calls"])


def counts_text(base: int, new: int) -> str:
    """Format the counts of both sides: `n = 20`, or `n = 20 and 10`."""
    return f"n = {base:,}" if base == new else f"n = {base:,} and {new:,}"


def _causes(difference: Difference) -> Iterator[str]:
    gaps = difference.gaps
    if difference.no_shares:
        if not causes_cancel(gaps):
            return
        changed = gaps[gaps["delta_ns"] != 0].head(MAX_CAUSES)
        named = [
            f"{_IN_WORDS.get(cause, cause)} {_signed(change)}"
            for cause, change in zip(changed["cause"].tolist(), changed["delta_ns"].tolist(), strict=True)
        ]
        if len(named) > 1:
            yield f"the causes mostly cancel: {join_words(named)}"
        return
    most = gaps[gaps["share"] >= MIN_SHARE].sort_values("share", ascending=False).head(MAX_CAUSES)
    causes = [_IN_WORDS.get(cause, cause) for cause in most["cause"].tolist()]
    shares = [format_share(share) for share in most["share"].tolist()]
    if causes:
        more = [f"{share} {cause}" for share, cause in zip(shares[1:], causes[1:], strict=True)]
        yield join_words([f"{shares[0]} of the difference is {causes[0]}", *more])


def _kernels(difference: Difference) -> Iterator[str]:
    """State the number of kernels per call of each side, and the units of matrix products if these differ."""
    names, evidence = difference.pair.names, difference.evidence
    kernels, units = [], []
    for side in SIDES:
        kernels.append(float(difference.gaps[f"{side}_kernels"].sum()))
        rows = evidence[(evidence["side"] == side) & (evidence["math_unit"] != "unknown")]
        by_time = rows.groupby("math_unit")["sum_ns"].sum().sort_values(ascending=False).index.tolist()
        on_tensor_cores = rows[rows["math_unit"] == "tensor core"].sort_values("sum_ns", ascending=False)["kernel"]
        types = join_words(list(dict.fromkeys(filter(None, map(element_type, on_tensor_cores))))[:MAX_CAUSES])
        words = {**_UNITS, "tensor core": f"tensor cores ({types})" if types else "tensor cores"}
        units.append(join_words([words.get(unit, unit) for unit in by_time]))
    base, new = (mean_text(count) for count in kernels)
    text = f"{difference.each} {names[0]} runs {base} kernel{'' if base == '1' else 's'}, {names[1]} runs {new}"
    if all(units) and units[0] != units[1]:
        text += f"; matrix products run on {units[0]} in {names[0]} and on {units[1]} in {names[1]}"
    yield text


def _bound(difference: Difference, span: Mapping[str, Any], busy: Mapping[str, Any]) -> Iterator[str]:
    """Name the sides whose GPUs idle, and the ratio of busy times."""
    pair = difference.row
    texts: list[str] = []
    if not pair["base_mean_ns"] or not pair["new_mean_ns"]:
        return
    time = "steps" if difference.clock == STEP else "span"
    for side in SIDES:
        whole = pair[f"{side}_mean_ns"]
        share = pair[f"{side}_busy_ns"] / whole
        if share >= MIN_BUSY_SHARE:
            continue
        name = pair[f"{side}_name"] + ("" if texts else at(pair["place"]))
        of = difference.pair.sides[SIDES.index(side)]  # between its GPU ops: who waits before them does not launch
        waits = sum(of.gaps.total_ns(kind) for kind in _LAUNCHING) / max(of.ledger.calls, 1) / whole
        if waits >= MIN_WAITING_SHARE:
            texts.append(f"{name} is launch-bound: the GPU is busy for {format_share(share)} of {time}")
        else:
            texts.append(f"{name} keeps the GPU busy for only {format_share(share)} of its {time}")
    if not texts:
        return
    by_span, by_busy = span["ratio"], busy["ratio"]
    if not math.isnan(by_span + by_busy) and _apart(by_span, by_busy):
        ratios = f"{format_ratio(by_span)} by {difference.clock}, but {format_ratio(by_busy)} by busy time"
        texts[-1] += f", so the ratio is {ratios}"
    yield "; ".join(texts)


def _sampled_clock(difference: Difference) -> Iterator[str]:
    """State the difference of the sampled GPU clocks, and what it means for the kernels of the same GPU."""
    base, new = (side.clock_hz for side in difference.pair.sides)
    if change := clock_change(base, new):
        part, takes = (format_share(abs(each - 1)) for each in (new / base, base / new))
        lower, more = ("lower", "more") if new < base else ("higher", "less")
        name = difference.pair.new_name
        text = f"the GPU clock is {part} {lower} in {name} ({change})"
        gpus = [{gpu and gpu.name for gpu in side.described_gpus} for side in difference.pair.sides]
        if gpus[0] == gpus[1] and len(gpus[0]) == 1 and all(gpus[0]):  # cycles of other GPUs do other amounts of work
            text += f", which alone makes compute-bound kernels take up to {takes} {more} time"
        yield text


def _recorded(difference: Difference) -> Iterator[str]:
    """For whole traces, state the lengths of the recordings, and the share of each in which GPUs are busy."""
    if not difference.whole:
        return
    recorded = [side.loaded.report.about.duration_ns or 0 for side in difference.pair.sides]
    if all(recorded):
        busy = [difference.row[f"{side}_busy_ns"] / ns for side, ns in zip(SIDES, recorded, strict=True)]
        lengths, shares = " and ".join(map(format_ns, recorded)), " and ".join(map(format_share, busy))
        yield f"the recordings take {lengths}; GPUs are busy for {shares} of the time"


def _events(pair: Mapping[str, Any], events: Mapping[str, Any]) -> Iterator[str]:
    """State the ratio by CUDA events if it differs from the ratio of the spans."""
    by_span = pair["base_median_ns"] / max(pair["new_median_ns"], 1)
    if not math.isnan(events["ratio"]) and _apart(events["ratio"], by_span):
        yield (
            f"CUDA events give a ratio of {format_ratio(events['ratio'])}, including profiling overhead:"
            f" {format_ns(events['base_median_ns'])} against {format_ns(events['new_median_ns'])}"
        )


def _skewed(pair: Mapping[str, Any], span: Mapping[str, Any]) -> Iterator[str]:
    """Warn if the mean, to which the ledger adds up, is far from the median call."""
    for side in SIDES:
        median, mean = span[f"{side}_median_ns"], pair[f"{side}_mean_ns"]
        if median > 0 and mean > MAX_RATIO_OF_EQUALS * median:
            yield (
                f"{pair[f'{side}_name']} has a few slow {'steps' if pair['clock'] == STEP else 'calls'}: "
                f"its mean of {format_ns(mean)} (the sum of the causes) exceeds its median of "
                f"{format_ns(median)} by {format_share(mean / median - 1)}"
            )


def _apart(one: float, other: float) -> bool:
    return max(one, other) > MAX_RATIO_OF_EQUALS * min(one, other)


def _traffic(difference: Difference) -> Iterator[str]:
    """Compare the expected and the measured traffic, if a model or counters cover the sides."""
    names, models, measured = difference.pair.names, difference.models, difference.measured
    if not any(measured):
        yield from _expected(names, models)
        return
    moved = [text for each in zip(names, models, measured, strict=True) if (text := _moved(*each))]
    shapes = list(dict.fromkeys(model.text for model in models if model))
    at = f" at {shapes[0]}" if len(shapes) == 1 else ""
    if moved:
        yield f"memory traffic per call{at}: {'; '.join(moved)}"
    for name, model, counted in zip(names, models, measured, strict=True):
        if model and counted:
            yield from _surprise(name, model, counted)
    yield from _tensor_cores(names, measured)


def _expected(names: tuple[str, str], models: Models) -> Iterator[str]:
    """State the bytes of both sides by the model of their shape."""
    base, new = models
    if base is None or new is None or not base.bytes_of or not new.bytes_of or base.shape != new.shape:
        return
    texts = [
        f"{name} {format_bytes(model.total_bytes)}{_times(model)}"
        for name, model in zip(names, (base, new), strict=True)
    ]
    yield f"expected memory traffic per call at {base.text}: {', '.join(texts)}"


def _times(model: Expected) -> str:
    """The bytes as a multiple of the score matrix."""
    if not model.matrix_bytes:
        return ""
    times = model.total_bytes / model.matrix_bytes
    return f" ({times:.1f} times its score matrix of {format_bytes(model.matrix_bytes)})"


def _moved(name: str, model: Expected | None, measured: Measured | None) -> str:
    """`math moves 5.70 GiB measured, 5.80 GiB expected (11.6 times its score matrix of 512 MiB)`."""
    parts = []
    size = measured.total["dram_bytes"] if measured else math.nan
    if not math.isnan(size):
        part = "" if measured and measured.complete else " at least"
        parts.append(f"{name} moves{part} {format_bytes(size)} measured")
    if model and model.bytes_of:
        total = f"{format_bytes(model.total_bytes)} expected{_times(model)}"
        parts.append(total if parts else f"{name} {total}")
    return ", ".join(parts)


def _surprise(name: str, model: Expected, measured: Measured) -> Iterator[str]:
    """State a difference between measurement and model: for the call or, otherwise, for a large cause."""
    expected, size = model.total_bytes, measured.total["dram_bytes"]
    if not measured.complete or not expected or math.isnan(size):
        return
    change = measured.causes["dram_bytes"].sub(pd.Series(model.bytes_of, dtype=float), fill_value=0.0)
    if abs(size - expected) <= MODEL_TOLERANCE * expected:
        large = change[change.abs() > MIN_NOTABLE_BYTES * expected]
        for cause in [str(cause) for cause in large.index if cause in model.bytes_of]:
            known, moved = model.bytes_of[cause], measured.causes["dram_bytes"][cause]
            if abs(change[cause]) > MODEL_TOLERANCE * known:
                both = f"{format_bytes(moved)} measured, {format_bytes(known)} expected"
                yield f"{cause} in {name} causes {_more_or_less(moved, known)} memory traffic than expected: {both}"
        return
    text = f"{name} causes {_more_or_less(size, expected)} memory traffic than expected"
    held = model.matrix_bytes or model.least_bytes
    less = size < expected
    change = change[change < 0] if less else change[change > 0]
    if less and measured.l2_bytes and held <= measured.l2_bytes:
        size_text, cache = format_bytes(held), format_bytes(measured.l2_bytes)
        fits, of_it = f"its score matrix of {size_text} fits", "it"
        if not model.matrix_bytes:
            fits, of_it = f"its input and output of {size_text} fit", "them"
        yield f"{text}: {fits} in the L2 cache ({cache}), so accesses to {of_it} may cause no DRAM traffic"
    elif len(change):
        cause = str(change.abs().idxmax())
        missing = "" if cause in model.bytes_of else ", which the model does not include"
        yield f"{text}, most of it in {cause} ({format_bytes(abs(float(change[cause])))}){missing}"
    else:
        yield text


def _more_or_less(size: float, expected: float) -> str:
    return f"{format_share(abs(size - expected) / expected)} {'less' if size < expected else 'more'}"


def _tensor_cores(names: tuple[str, str], measured: BothMeasured) -> Iterator[str]:
    parts = []
    for name, counted in zip(names, measured, strict=True):
        share = tensor_share(counted.total) if counted else math.nan
        if counted and not math.isnan(share):
            part = "none" if not share else format_share(share)
            parts.append(f"{part} of the {format_count(round(counted.total['flops']))} FLOP of {name}")
    if parts:
        yield f"measured: tensor cores do {' and '.join(parts)} per call"
