"""Comparisons of two samples of times: effect sizes, intervals, and a verdict in one of four fixed words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from nsysprof.core.units import format_count, format_share
from nsysprof.errors import NsysprofError
from nsysprof.statistics.confidence import (
    LEVEL,
    RESAMPLES,
    SEED,
    ConfidenceInterval,
    delta_of,
    delta_word,
    median_ratio,
    shift_of,
)
from nsysprof.statistics.dependence import SIGNIFICANT, Dependence, dependence, drift
from nsysprof.statistics.distributions import Floats, normal_below, rank_test, split_p
from nsysprof.statistics.summary import LEAST_SAMPLES, SURE_FROM, check_sample, sample_warnings

FASTER, SLOWER = "faster", "slower"
NO_CLEAR_CHANGE, TOO_FEW_SAMPLES = "no clear change", "too few samples"
RANK_TEST, RATIO_TEST = "Mann-Whitney U", "block bootstrap"
_MIN_STEPS = 1.5  # of a clock, by which medians must differ: its own rounding and that of the medians
# By how many times the range of both sides they must be apart for dependence not to matter. Two runs of 10 samples of
# one source are that far apart in 2 of 100 simulated pairs at phi = 0.98, and in none at phi = 0.9.
_MIN_GAP = 2


@dataclass(frozen=True)
class Rules:
    """The conditions for a verdict.

    ``least_effect``: the smallest change of the median that counts, as a share: 0.02 asks for a ratio of 1.02 or more,
    or of 1 / 1.02 or less. ``least_samples``: the samples that either side must have. ``alpha``: the limit of the
    p-value after Holm's correction. ``clock_step``: the step of the clock that took the samples, in their unit, 0 where
    it is unknown; medians that differ by about one step may not differ at all.
    """

    least_effect: float = 0.02
    least_samples: int = LEAST_SAMPLES
    alpha: float = 0.05
    clock_step: float = 0.0

    def widened(self, *noise: float) -> Rules:
        """Raise the least effect to the `noise_of` each side against itself (A/A); NaN where that is unknown.

        A difference as small as that of a thing from itself is no difference from another.
        """
        known = [size for size in noise if not math.isnan(size)]
        return replace(self, least_effect=max(self.least_effect, *known)) if known else self


DEFAULT_RULES = Rules()


@dataclass(frozen=True)
class Contrast:
    """The comparison of ``new`` with ``base``, of ``base_n`` and ``new_n`` samples.

    ``ratio``: the median of new over that of base. ``shift``: the Hodges-Lehmann shift, the median of all differences
    new - base, in the unit of the samples. ``delta``: Cliff's delta, the share of pairs in which new is the larger less
    that in which it is the smaller, and its word by `effects.DELTA_WORDS`.

    ``p``: two-sided, by ``test``: the Mann-Whitney U test for independent samples; for samples that depend on earlier
    ones, where that test finds differences that do not exist, the block bootstrap of the ratio. ``adjusted_p``:
    by Holm's correction over ``family`` comparisons.

    ``verdict``: `FASTER`, `SLOWER`, `NO_CLEAR_CHANGE` or `TOO_FEW_SAMPLES`, about new, as `judge` rules;
    ``reason`` in one line. ``warnings``: caveats of the two samples. ``worth``: the number of independent
    samples that those of either side count as; ``drift``: that of the side that drifts most, as a share, 0 for none.
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


def contrast(
    base: ArrayLike,
    new: ArrayLike,
    rules: Rules = DEFAULT_RULES,
    *,
    names: tuple[str, str] = ("base", "new"),
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Contrast:
    """Compare two samples, each in the order it was taken, and judge them as a family of one.

    Of many comparisons pass the results to `judge`. The same samples and seed give the same answer; swapped
    samples give its mirror image. Raises NsysprofError as `check_sample` does, and for a median of 0, to which there
    is no ratio.
    """
    sides = check_sample(base, names[0]), check_sample(new, names[1])
    base_median, new_median = (float(np.median(sample)) for sample in sides)
    for median, name in zip((base_median, new_median), names, strict=True):
        if median == 0:
            raise NsysprofError(f"{name}: the median of the samples is 0, which has no ratio to anything")
    orders = dependence(sides[0]), dependence(sides[1])
    ratio_interval, p = median_ratio(sides, orders, level=level, resamples=resamples, seed=seed)
    test = RATIO_TEST
    if not any(order.correlated for order in orders):
        test, p = RANK_TEST, _rank_test(*sides)
    shift, shift_interval = shift_of(sides, orders, level)
    delta, delta_interval = delta_of(sides, orders, level)
    trends = drift(sides[0]), drift(sides[1])
    result = Contrast(
        base_n=len(sides[0]),
        new_n=len(sides[1]),
        base_median=base_median,
        new_median=new_median,
        ratio=new_median / base_median,
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
        worth=_worth(sides, orders),
        drift=max(noise_of(1 + (trend.change or 0)) if trend.significant else 0.0 for trend in trends),
    )
    return judge([result], rules)[0]


def judge(contrasts: Sequence[Contrast], rules: Rules | Sequence[Rules] = DEFAULT_RULES) -> list[Contrast]:
    """Judge contrasts as one family: p-values corrected by Holm, verdicts by the rules, of all or of each.

    "too few samples" where a side has fewer than ``least_samples``, or where the rank test could not pass in so large
    a family whatever the samples were. "faster" or "slower" where all of this holds: the ratio is beyond the least
    effect, its interval leaves 1 out, and the corrected p-value is below ``alpha``. All else is "no clear change": a
    p-value alone makes no verdict, and none is made of a test that did not pass.

    Verdicts honour the warnings. Samples worth fewer than `summary.SURE_FROM` independent ones must also pass a rank
    test of that many, or they are "too few samples". A difference of about one step of the clock, or smaller than the
    drift of a side within the run, is "no clear change".

    Simulated pairs of samples of one source (see `Summary`), with any effect counting, were declared different in 1 to
    5 of 100 from n = 20 on, however much the samples depended on each other (phi up to 0.7), and from n = 10 on for phi
    up to 0.3; at n = 10 in 6 for phi = 0.5 and in 8 for phi = 0.7. Runs that wander for as long as they last are not
    like that: two of them do differ, which a comparison of a thing with itself (A/A) shows.
    """
    adjusted = holm([one.p for one in contrasts])
    each = [rules] * len(contrasts) if isinstance(rules, Rules) else rules
    results = []
    for one, p, its_rules in zip(contrasts, adjusted, each, strict=True):
        one = replace(one, adjusted_p=p, family=len(contrasts))
        verdict, reason = _verdict(one, its_rules)
        results.append(replace(one, verdict=verdict, reason=reason))
    return results


def noise_of(ratio: float) -> float:
    """Return by how much the larger of two exceeds the smaller: 0.25 for the ratios 1.25 and 0.8; NaN for NaN."""
    return math.nan if math.isnan(ratio) else max(ratio, 1 / ratio) - 1


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of a family by Holm (1979): a test passes if its own stays below alpha."""
    p = np.asarray(p_values, np.float64)
    if np.isnan(p).any() or (p < 0).any() or (p > 1).any():
        raise ValueError("p-values lie between 0 and 1")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    out = np.empty(len(p))
    out[order] = np.minimum(stepped, 1)
    return [float(one) for one in out]


def _verdict(one: Contrast, rules: Rules) -> tuple[str, str]:
    fewest = min(one.base_n, one.new_n)
    if fewest < rules.least_samples:
        return TOO_FEW_SAMPLES, f"n = {fewest}, and it takes {rules.least_samples} on either side"
    if split_p(one.base_n, one.new_n) * one.family >= rules.alpha:
        return TOO_FEW_SAMPLES, f"n = {fewest} can show nothing among {one.family:,} comparisons"
    if unclear := _unclear(one, rules):
        return NO_CLEAR_CHANGE, unclear
    reason = f"p = {one.adjusted_p:.2g} ({one.test}, family of {one.family:,}), and the interval leaves 1 out"
    if min(one.worth) < SURE_FROM:
        p = min(1.0, _worth_p(one) * one.family)
        base, new = (format_count(round(worth)) for worth in one.worth)
        worth = f"n = {one.base_n:,} and {one.new_n:,} are worth {base} and {new} independent samples"
        if p >= rules.alpha:
            return TOO_FEW_SAMPLES, f"{worth}, too few to show it"
        if p > one.adjusted_p:
            reason = f"p = {p:.2g} ({RANK_TEST}, family of {one.family:,}): {worth}"
    return FASTER if one.ratio < 1 else SLOWER, reason


def _unclear(one: Contrast, rules: Rules) -> str:
    """Say why a contrast with enough samples shows no clear change; empty where it shows one."""
    effect, apart = noise_of(one.ratio), abs(one.new_median - one.base_median)
    p = f"p = {one.adjusted_p:.2g} ({one.test}, family of {one.family:,})"
    drifts = f"the samples of a side drift by {format_share(one.drift)}, which is more than the difference"
    for holds, why in (
        (effect < rules.least_effect, f"below the least effect of {format_share(rules.least_effect)}"),
        (apart < _MIN_STEPS * rules.clock_step, "the medians differ by about one step of the clock"),
        (one.ratio_interval.holds(1), "the interval of the ratio holds 1"),
        (one.adjusted_p >= rules.alpha, p),
        (effect <= one.drift, drifts),
    ):
        if holds:
            return why
    return ""


def _worth(sides: tuple[Floats, Floats], orders: tuple[Dependence, Dependence]) -> tuple[float, float]:
    """Count the independent samples that each side is worth: fewer than it has where a warning says so.

    Where the sides are much farther apart than either wanders, it does not matter how slowly they wander.
    """
    (base_low, base_high), (new_low, new_high) = ((side.min(), side.max()) for side in sides)
    apart = max(new_low - base_high, base_low - new_high)
    if apart > _MIN_GAP * (base_high - base_low + new_high - new_low):
        return orders[0].n, orders[1].n
    base, new = (order.effective if order.p < SIGNIFICANT else order.n for order in orders)
    return base, new


def _worth_p(one: Contrast) -> float:
    """Return the p-value of Cliff's delta as if each side had only the independent samples that its own are worth."""
    base, new = one.worth
    if abs(one.delta) == 1:
        return split_p(base, new)
    z = abs(one.delta) * math.sqrt(3 * base * new / (base + new + 1))
    return max(split_p(base, new), 2 * float(normal_below([-z])[0]))


def word_by_verdict(clear: str, unclear: str, verdict: str) -> str:
    """Choose the words of a headline or the title of a chart, which say no more than the verdict.

    ``clear`` where there is a difference, ``unclear`` where there is no clear one.
    """
    if verdict in (FASTER, SLOWER):
        return clear
    return unclear if verdict == NO_CLEAR_CHANGE else f"{clear}, in too few samples for a verdict"


def _rank_test(base: Floats, new: Floats) -> float:
    if base.min() == base.max() == new.min() == new.max():
        return 1.0
    return rank_test(new, base)
