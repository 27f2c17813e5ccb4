"""Compare two samples of times: effect sizes, intervals, and a verdict in one of four fixed words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from nsysprof.core.arrays import Floats
from nsysprof.core.text import plural
from nsysprof.core.units import format_count, format_share
from nsysprof.errors import NsysprofError
from nsysprof.statistics.confidence import (
    LEVEL,
    RANGE,
    RESAMPLES,
    SEED,
    ConfidenceInterval,
    delta_of,
    delta_word,
    median_ratio,
    shift_of,
)
from nsysprof.statistics.dependence import SIGNIFICANT, Dependence, dependence, drift
from nsysprof.statistics.distributions import rank_test, split_p, t_quantile
from nsysprof.statistics.runs import LEAST_PER_RUN, RUNS, OverRuns, enough_per_run, over_runs, run_medians
from nsysprof.statistics.summary import LEAST_SAMPLES, SURE_FROM, check_sample, sample_warnings

FASTER, SLOWER = "faster", "slower"
NO_CLEAR_CHANGE, TOO_FEW_SAMPLES = "no clear change", "too few samples"
RANK_TEST, RATIO_TEST, RUNS_TEST = "Mann-Whitney U", "block bootstrap", "t over runs"
_MIN_STEPS = 1.5  # of a clock, by which medians must differ: its own rounding and that of the medians
# By how many times the range of both sides they must be apart for dependence not to matter. Two runs of 10 samples of
# one source are that far apart in 2 of 100 simulated pairs at phi = 0.98, and in none at phi = 0.9.
_MIN_GAP = 2
# Fewer samples than this do not show how they depend on each other: the sides must lie apart by a part of both ranges.
# At phi = 0.9 sides of 10 samples of one source do in 3 of 100 simulated pairs, of 15 samples in none.
_FEW, _FEW_GAP = 15, 0.25
_Pair: TypeAlias = tuple[Mapping[int, Floats], Mapping[int, Floats]]  # the samples of both sides, by run
_NORMAL = 1e9  # degrees of freedom of Student's t that is the normal distribution
_POWER = 0.8


@dataclass(frozen=True)
class Rules:
    """The conditions for a verdict.

    ``least_effect``: the smallest change of the median that counts, as a share (0.02 requires a ratio of at least 1.02,
    or at most 1 / 1.02). ``least_samples``: the number of samples that each side needs. ``alpha``: the significance
    level for p-values after Holm's correction. ``clock_step``: the clock resolution, in the unit of the samples, 0 if
    unknown; medians that differ by about one step may be equal.
    """

    least_effect: float = 0.02
    least_samples: int = LEAST_SAMPLES
    alpha: float = 0.05
    clock_step: float = 0.0

    def widened(self, *noise: float) -> Rules:
        """Raise the smallest meaningful effect to the largest ``noise`` (`noise_of` A/A comparisons, NaN if unknown).

        A smaller difference may be noise.
        """
        known = [size for size in noise if not math.isnan(size)]
        return replace(self, least_effect=max(self.least_effect, *known)) if known else self


DEFAULT_RULES = Rules()


@dataclass(frozen=True)
class Contrast:
    """The comparison of ``new`` with ``base``, from ``base_n`` and ``new_n`` samples.

    ``ratio``: median of new ÷ median of base. ``shift``: the Hodges-Lehmann shift, the median of all differences new -
    base, in the unit of the samples. ``delta``: Cliff's delta, the share of pairs with a larger new value minus the
    share with a smaller new value, and its word from `effects.DELTA_WORDS`.

    ``p``: the two-sided p-value of ``test``: the Mann-Whitney U test, or the block bootstrap of the ratio for
    autocorrelated samples (for which the U test is not valid). ``adjusted_p``: ``p`` after Holm's correction over
    ``family`` comparisons.

    ``verdict`` about ``new``: `FASTER`, `SLOWER`, `NO_CLEAR_CHANGE` or `TOO_FEW_SAMPLES`, see `judge`; ``reason``: one
    line. ``warnings``: warnings about both samples. ``worth``: the effective number of samples of each side; ``drift``:
    the larger drift of the two sides, as a share, 0 for none.

    ``runs``: the number of compared runs (processes); with one run, the result holds for that run only. ``over``: the
    logarithm of the ratio over several runs. ``gap``: the distance between the two sets of samples, divided by the sum
    of their spreads (maximum - minimum); negative if they overlap. ``sure``: whether the interval of the ratio is
    reliable. ``detectable``: the smallest change, as a share, that such samples would show with 80 % power in this
    family (at least ``least_effect``); NaN if the interval is not reliable.
    """

    base_n: int
    new_n: int
    base_median: float
    new_median: float
    ratio: float
    ratio_interval: ConfidenceInterval
    shift: float
    shift_interval: ConfidenceInterval
    delta: float
    delta_interval: ConfidenceInterval
    delta_word: str
    test: str
    p: float
    adjusted_p: float
    family: int
    verdict: str
    reason: str
    warnings: tuple[str, ...]
    worth: tuple[float, float]
    drift: float
    runs: int = 1
    over: OverRuns | None = None
    gap: float = math.inf
    sure: bool = True
    detectable: float = math.nan


def contrast(
    base: ArrayLike,
    new: ArrayLike,
    rules: Rules = DEFAULT_RULES,
    *,
    names: tuple[str, str] = ("base", "new"),
    rounding: float = 0.0,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Contrast:
    """Compare two samples, each in the order of measurement, as a family of one comparison.

    For many comparisons, pass the results to `judge`. The interval of the ratio extends at least ``rounding`` to each
    side, see `runs.rounding_of`. Equal samples and seed give equal results; swapped samples give the mirror image.
    Raises `NsysprofError` if `check_sample` fails, or if a median is 0, so that there is no ratio.
    """
    sides = check_sample(base, names[0]), check_sample(new, names[1])
    base_median, new_median = (float(np.median(sample)) for sample in sides)
    for median, name in zip((base_median, new_median), names, strict=True):
        if median == 0:
            raise NsysprofError(f"{name}: the median of the samples is 0, so there is no ratio")
    orders = dependence(sides[0]), dependence(sides[1])
    ratio_interval, p = median_ratio(sides, orders, level=level, resamples=resamples, seed=seed)
    ratio = new_median / base_median
    ratio_interval = replace(
        ratio_interval,
        low=min(ratio_interval.low, ratio / math.exp(rounding)),
        high=max(ratio_interval.high, ratio * math.exp(rounding)),
    )
    test = RATIO_TEST
    if not any(order.correlated for order in orders):
        equal = sides[0].min() == sides[0].max() == sides[1].min() == sides[1].max()
        test, p = RANK_TEST, 1.0 if equal else rank_test(sides[1], sides[0])
    shift, shift_interval = shift_of(sides, orders, level)
    delta, delta_interval = delta_of(sides, orders, level)
    trends = drift(sides[0]), drift(sides[1])
    gap = _gap(sides)
    result = Contrast(
        base_n=len(sides[0]),
        new_n=len(sides[1]),
        base_median=base_median,
        new_median=new_median,
        ratio=ratio,
        ratio_interval=ratio_interval,
        shift=shift,
        shift_interval=shift_interval,
        delta=delta,
        delta_interval=delta_interval,
        delta_word=delta_word(delta),
        test=test,
        p=p,
        adjusted_p=p,
        family=1,
        verdict="",
        reason="",
        warnings=tuple(
            line
            for name, order, trend in zip(names, orders, trends, strict=True)
            for line in sample_warnings(name, order, trend)
        ),
        worth=_worth(gap, orders),
        gap=gap,
        drift=max(noise_of(1 + (trend.change or 0)) if trend.significant else 0.0 for trend in trends),
        sure=all(order.sure for order in orders) and not any(trend.significant for trend in trends),
    )
    return judge([result], rules)[0]


def contrasts_over_runs(
    pairs: Sequence[_Pair],
    rules: Rules | Sequence[Rules] = DEFAULT_RULES,
    *,
    names: Sequence[tuple[str, str]],
    roundings: Sequence[tuple[float, float]],
    paired: bool = True,
) -> list[Contrast]:
    """Compare pairs of samples by run, as one family; a pair with fewer than two runs is compared within its run.

    ``paired``: runs with the same number on both sides are from one process, so ratios are taken within runs.
    ``roundings``: the result of `rounding_of` for each side. Ratio, interval and p-value are from `over_runs` over all
    pairs; shift and delta are means over the runs, with intervals of Student's t over the runs. "No clear change"
    requires that both sides have an effective n of at least `summary.SURE_FROM`.
    """
    common = [_common(*pair) if paired else pair for pair in pairs]
    several = [place for place, (base, new) in enumerate(common) if min(len(base), len(new)) > 1]
    kept = [common[place] for place in several]
    sides = [[run_medians(pair[side]) for pair in kept] for side in (0, 1)]
    steps = [roundings[place] for place in several]
    if paired:
        logs = [[new[run] - base[run] for run in base] for base, new in zip(*sides, strict=True)]
        ratios = over_runs(logs, [math.hypot(*each) for each in steps]) if logs else []
    else:
        before, after = (
            over_runs([list(each.values()) for each in side], [step[place] for step in steps]) if side else []
            for place, side in enumerate(sides)
        )
        ratios = [new.less(base) for base, new in zip(before, after, strict=True)]
    found: dict[int, Contrast] = {
        place: _over_runs(*each) for place, each in zip(several, zip(kept, ratios, strict=True), strict=True)
    }
    for place, pair in enumerate(pairs):
        if place not in found:
            whole = [np.concatenate([*side.values()]) for side in pair]
            found[place] = contrast(whole[0], whole[1], names=names[place], rounding=math.hypot(*roundings[place]))
    return [_withheld(one) for one in judge([found[place] for place in range(len(pairs))], rules)]


def _withheld(one: Contrast) -> Contrast:
    """Turn "no clear change" into "too few samples" if the effective n of a side is too small for this verdict."""
    if one.verdict != NO_CLEAR_CHANGE or min(one.worth) >= SURE_FROM:
        return one
    return replace(one, verdict=TOO_FEW_SAMPLES, reason=f"{_worth_words(one)}; {one.reason}")


def _common(base: Mapping[int, Floats], new: Mapping[int, Floats]) -> _Pair:
    """The samples of the runs that have samples on both sides."""
    runs = [run for run in base if len(base[run]) and len(new.get(run, ()))]
    return {run: base[run] for run in runs}, {run: new[run] for run in runs}


def _over_runs(pair: _Pair, ratio: OverRuns) -> Contrast:
    """The contrast of two sides over their runs, not judged yet."""
    runs = list(zip(*(side.values() for side in pair), strict=False))
    orders = [(dependence(base), dependence(new)) for base, new in runs]
    shifts = [shift_of(sides, order, LEVEL)[0] for sides, order in zip(runs, orders, strict=True)]
    deltas = [delta_of(sides, order, LEVEL)[0] for sides, order in zip(runs, orders, strict=True)]
    delta, delta_interval = _mean_over_runs(deltas)
    shift, shift_interval = _mean_over_runs(shifts)
    counts = [sum(map(len, side.values())) for side in pair]
    base, new = (math.exp(float(np.mean(list(run_medians(side).values())))) for side in pair)
    return Contrast(
        base_n=counts[0],
        new_n=counts[1],
        base_median=base,
        new_median=new,
        ratio=ratio.value,
        ratio_interval=ratio.interval(),
        shift=shift,
        shift_interval=shift_interval,
        delta=delta,
        delta_interval=replace(delta_interval, low=max(delta_interval.low, -1.0), high=min(delta_interval.high, 1.0)),
        delta_word=delta_word(delta),
        test=RUNS_TEST,
        p=ratio.p,
        adjusted_p=ratio.p,
        family=1,
        verdict="",
        reason="",
        warnings=(),
        worth=(counts[0], counts[1]),
        drift=0.0,
        sure=enough_per_run(*pair),
        runs=ratio.runs,
        over=ratio,
    )


def _mean_over_runs(values: Sequence[float]) -> tuple[float, ConfidenceInterval]:
    """The mean of a value per run, with the interval of Student's t."""
    mean = float(np.mean(values))
    half = t_quantile(LEVEL, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean, ConfidenceInterval(mean - half, mean + half, LEVEL, RUNS)


def judge(contrasts: Sequence[Contrast], rules: Rules | Sequence[Rules] = DEFAULT_RULES) -> list[Contrast]:
    """Judge contrasts as one family: p-values are corrected by Holm, and verdicts follow the rules (the same for all,
    or one set per contrast).

    "too few samples": a side has fewer than ``least_samples``, or the rank test could never pass in such a large
    family. "faster" or "slower" requires that the ratio exceeds the smallest meaningful effect, its interval excludes
    1, and the corrected p-value is below ``alpha``. All other results are "no clear change": neither a p-value alone
    nor a failed test makes a verdict.

    Verdicts respect the warnings. If the effective n is below `summary.SURE_FROM`, a difference requires that the
    samples of the two sides do not overlap. In addition, a gap this large must be unlikely by chance, or the sides must
    be so far apart that dependence does not matter (`_worth`). The verdict is also "no clear change" if the difference
    is about one clock tick, or smaller than the drift of either side within its run.

    In simulations, at most 5 of 100 pairs of samples from one source are declared different, over runs and within one
    run (table in docs/statistics.md). These simulations used no smallest meaningful effect. A result within one run
    holds for that run only: sides that are not sampled alternately can differ by the state of the machine.
    """
    adjusted = holm([one.p for one in contrasts])
    each = [rules] * len(contrasts) if isinstance(rules, Rules) else rules
    results = []
    for one, p, its_rules in zip(contrasts, adjusted, each, strict=True):
        one = replace(one, adjusted_p=p, family=len(contrasts))
        verdict, reason = _verdict(one, its_rules)
        results.append(replace(one, verdict=verdict, reason=reason, detectable=_detectable(one, its_rules)))
    return results


def _detectable(one: Contrast, rules: Rules) -> float:
    """Return the smallest change that would pass the first step of Holm's correction in 80 of 100 cases."""
    interval = one.ratio_interval
    if not one.sure or interval.method == RANGE:
        return math.nan
    half = math.log(interval.high / interval.low) / 2
    over = one.over or OverRuns(0.0, half / t_quantile(interval.level, _NORMAL), _NORMAL, 1)
    return max(over.detectable(rules.alpha / one.family, _POWER), rules.least_effect)


def noise_of(ratio: float) -> float:
    """Return the share by which the larger of two values exceeds the smaller: 0.25 for a ratio of 1.25 or 0.8."""
    if math.isnan(ratio):
        return math.nan
    return max(ratio, 1 / ratio) - 1 if ratio else math.inf


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of a family by Holm (1979): a test passes if its corrected value is below alpha."""
    p = np.asarray(p_values, np.float64)
    if np.isnan(p).any() or (p < 0).any() or (p > 1).any():
        raise ValueError("p-values lie between 0 and 1")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    out = np.empty(len(p))
    out[order] = np.minimum(stepped, 1)
    return [float(one) for one in out]


def _verdict(one: Contrast, rules: Rules) -> tuple[str, str]:
    if few := _too_few(one, rules):
        return TOO_FEW_SAMPLES, few
    if unclear := _unclear(one, rules):
        return NO_CLEAR_CHANGE, unclear
    if one.runs == 1 and (fewest := min(one.base_n, one.new_n)) < _FEW and one.gap < _FEW_GAP:
        return TOO_FEW_SAMPLES, (
            f"n = {fewest}; at least {_FEW} samples per side are needed, unless the two sides are far apart"
        )
    family = plural(one.family, "comparison")
    reason = f"p = {one.adjusted_p:.2g} ({one.test}, corrected for {family}); the interval excludes 1"
    if min(one.worth) < SURE_FROM:
        p = min(1.0, split_p(*one.worth) * one.family) if abs(one.delta) == 1 else 1.0
        if p >= rules.alpha:
            return TOO_FEW_SAMPLES, f"{_worth_words(one)}, too few to show a difference"
        if p > one.adjusted_p:
            reason = f"p = {p:.2g} ({RANK_TEST}, corrected for {family}): {_worth_words(one)}"
    return FASTER if one.ratio < 1 else SLOWER, reason


def _too_few(one: Contrast, rules: Rules) -> str:
    """Explain why so few samples cannot show any difference; empty if they can."""
    fewest = min(one.base_n, one.new_n)
    if fewest < rules.least_samples:
        return f"n = {fewest}; at least {rules.least_samples} samples per side are needed"
    if one.runs > 1 and not one.sure:
        return f"a run has fewer than {LEAST_PER_RUN} samples"
    if one.runs == 1 and split_p(one.base_n, one.new_n) * one.family >= rules.alpha:
        return (
            f"n = {fewest}; too few samples for a significant difference after correction for "
            f"{one.family:,} comparisons"
        )
    return ""


def _worth_words(one: Contrast) -> str:
    base, new = (round(worth) for worth in one.worth)
    counts = f"n = {one.base_n:,} and {one.new_n:,}"
    if (base, new) == (one.base_n, one.new_n):
        return counts
    return f"{counts} count as {format_count(base)} and {format_count(new)} independent samples"


def _unclear(one: Contrast, rules: Rules) -> str:
    """Explain why a contrast with enough samples shows no clear change; empty if it shows a clear change."""
    effect, apart = noise_of(one.ratio), abs(one.new_median - one.base_median)
    p = f"p = {one.adjusted_p:.2g} ({one.test}, corrected for {plural(one.family, 'comparison')})"
    drifts = f"the samples of one side drift by {format_share(one.drift)}, more than the difference between the sides"
    for holds, why in (
        (effect < rules.least_effect, f"below the smallest meaningful effect of {format_share(rules.least_effect)}"),
        (apart < _MIN_STEPS * rules.clock_step, "the medians differ by only about the clock resolution"),
        (one.ratio_interval.holds(1), "the interval of the ratio includes 1"),
        (one.adjusted_p >= rules.alpha, p),
        (effect <= one.drift, drifts),
    ):
        if holds:
            return why
    return ""


def _gap(sides: tuple[Floats, Floats]) -> float:
    """The distance between the samples of the two sides, divided by the sum of their ranges."""
    (base_low, base_high), (new_low, new_high) = ((side.min(), side.max()) for side in sides)
    apart = float(max(new_low - base_high, base_low - new_high))
    ranges = float(base_high - base_low + new_high - new_low)
    return min(apart / (ranges or 1e-9), 1e9)


def _worth(gap: float, orders: tuple[Dependence, Dependence]) -> tuple[float, float]:
    """Return the effective n of each side: below the number of samples if a warning about dependence applies.

    If the sides are much farther apart than either varies, dependence does not matter.
    """
    if gap > _MIN_GAP:
        return orders[0].n, orders[1].n
    base, new = (order.effective if order.p < SIGNIFICANT else order.n for order in orders)
    return base, new


def word_by_verdict(clear: str, unclear: str, verdict: str) -> str:
    """Choose the words for a headline or chart title according to the verdict.

    ``clear`` is used if there is a difference, ``unclear`` if there is no clear difference.
    """
    if verdict in (FASTER, SLOWER):
        return clear
    return unclear if verdict == NO_CLEAR_CHANGE else f"{clear}, with too few samples for a verdict"
