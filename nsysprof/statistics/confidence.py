"""Compute confidence intervals: of medians and their ratios by resampling, of the shift and Cliff's delta by ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np

from nsysprof.core.arrays import Floats
from nsysprof.statistics.dependence import Dependence, shortfall
from nsysprof.statistics.distributions import normal_below, normal_quantile, split_p, t_outside, t_quantile

LEVEL = 0.95
RESAMPLES = 10_000
SEED = 20_250_101
# The methods of intervals.
BCA, BLOCKS, RANKS, RANGE = "BCa bootstrap", "block bootstrap", "rank test", "range"

# With fewer than 6 samples the whole range holds the median less often than 95 times in 100.
_MIN_SAMPLES = 6
_DRAWS_AT_ONCE, _MAX_DRAWS, _MIN_RESAMPLES = 4_000_000, 50_000_000, 1_000


@dataclass(frozen=True)
class ConfidenceInterval:
    """A confidence interval from ``low`` to ``high`` (both included) at confidence level ``level``.

    ``level`` is the requested level. With too few samples, ``level`` is lower, and the interval is the range of the
    samples (``method`` "range").
    """

    low: float
    high: float
    level: float
    method: str

    def holds(self, value: float) -> bool:
        """Return whether the value is in the interval."""
        return self.low <= value <= self.high


_RESAMPLED: dict[tuple[Any, ...], ConfidenceInterval] = {}


def median_interval(
    values: Floats,
    order: Dependence,
    *,
    step: float = 0.0,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> ConfidenceInterval:
    """Compute the interval of the median of samples; equal seeds give equal results.

    Independent samples use a BCa bootstrap (Efron 1987). Correlated samples use circular blocks (Politis and Romano
    1992), whose length is in ``order``. Both use quantiles slightly farther out than `level`, because intervals from
    resampling few samples are too narrow (Hesterberg 2015, What teachers should know about the bootstrap, "expanded
    percentiles").

    A clock with resolution ``step`` rounds different times to equal samples, so each sample is moved at random within
    its step. If more than half of the samples are equal, the position of the median within the step is unknown. The
    interval then extends to an edge of the step if all other samples are beyond this edge.
    """
    if order.effective < _MIN_SAMPLES:
        return _range(values, order.effective, level)
    spread = values + step * (np.random.default_rng([seed, 1]).random(order.n) - 0.5)
    # a block counts as a sample
    reach = t_quantile(level, order.blocks - 1) * _understated(order)
    found = _resampled(spread, order, reach, level, resamples, seed)
    middle, centre = float(np.median(values)), float(np.median(spread))
    equal = max(float(np.mean(np.abs(values - middle) < step / 2)), 0.5)
    edge = step * (1 - 0.5 / equal)
    return replace(found, low=min(found.low, middle, centre - edge), high=max(found.high, middle, centre + edge))


def median_ratio(
    sides: tuple[Floats, Floats],
    orders: tuple[Dependence, Dependence],
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> tuple[ConfidenceInterval, float]:
    """Compute the interval of the ratio of medians (second side over first side), and a p-value for a ratio of 1.

    Each side is resampled separately. In logarithms, the distances of the limits from the median are combined as the
    root of the sum of squares (Donner and Zou 2012, Closed-form confidence intervals, Statistical Methods in Medical
    Research 21, "MOVER"). Swapped sides give the reciprocal and the same p-value. Neither median may be 0; a limit of 0
    counts as half the smallest positive sample.

    Limits of independent samples are not widened here, because the limits of both sides are rarely wrong at once. If
    samples are correlated, each limit is moved away from the median, according to the degrees of freedom of Welch and
    Satterthwaite. So a limit can be outside the range of the samples. The p-value is from Student's t with the degrees
    of freedom of the side with fewer blocks. If the p-value is below 1 - level, the interval excludes 1.
    """
    limits, far = [], []
    for values, order in zip(sides, orders, strict=True):
        interval, distances = _log_distances(values, order, level, resamples, seed)
        limits.append(interval)
        far.append(distances)
    (base_below, base_above), (new_below, new_above) = far
    below, above = np.array([base_above, new_below]), np.array([base_below, new_above])
    held, method = level, BLOCKS if any(order.correlated for order in orders) else BCA
    if any(one.method == RANGE for one in limits):
        held, method = min(level, limits[0].level * limits[1].level), RANGE
    ratio = float(np.log(np.median(sides[1]) / np.median(sides[0])))
    low = float(np.exp(ratio - _joined(below, orders, level)))
    high = float(np.exp(ratio + _joined(above, orders, level)))
    fewest = min(order.blocks for order in orders)
    p = _p_of_ratio(ratio, float(np.hypot(*(below if ratio > 0 else above))), held, fewest - 1)
    return ConfidenceInterval(low, high, held, method), p


def _log_distances(
    values: Floats, order: Dependence, level: float, resamples: int, seed: int
) -> tuple[ConfidenceInterval, tuple[float, float]]:
    """Compute the plain limits of the median, and their distances below and above it, in logarithms."""
    plain = normal_quantile((1 + level) / 2)
    if order.n < _MIN_SAMPLES:
        limits = _range(values, order.n, level)
    else:
        limits = _resampled(values, order, plain, level, resamples, seed)
    least = values[values > 0].min() / 2
    low, middle, high = np.log(np.maximum([limits.low, np.median(values), limits.high], least)).tolist()
    wider = _understated(order) if order.correlated else 1.0
    return limits, (wider * (middle - low), wider * (high - middle))


def _joined(far: Floats, orders: tuple[Dependence, Dependence], level: float) -> float:
    """Combine the distances ``far`` of both sides' limits from their medians into that of the ratio, in logarithms."""
    if not far.any() or not any(order.correlated for order in orders):
        return float(np.hypot(*far))
    blocks = np.array([order.blocks for order in orders])
    freedom = float((far**2).sum() ** 2 / (far**4 / np.maximum(blocks - 1, 1)).sum())
    return float(np.hypot(*far)) * t_quantile(level, freedom) / normal_quantile((1 + level) / 2)


def _p_of_ratio(ratio: float, limit: float, held: float, freedom: float) -> float:
    """Return the p-value of the logarithm ``ratio``, whose limit at the level ``held`` is ``limit`` away."""
    if limit == 0:
        return 1.0 if ratio == 0 else 0.0
    return t_outside(ratio / limit * normal_quantile((1 + held) / 2), max(freedom, 1.0))


def _range(values: Floats, worth: float, level: float) -> ConfidenceInterval:
    """Return the range of the samples; its level is the probability that it contains the true median."""
    return ConfidenceInterval(float(values.min()), float(values.max()), min(level, 1 - 2 ** (1 - worth)), RANGE)


def _understated(order: Dependence) -> float:
    """Return the standard deviation of the median divided by the one that resampling shows."""
    return float(np.sqrt(shortfall(order.phi, order.n, order.block, "median")))


def _resampled(
    values: Floats, order: Dependence, reach: float, level: float, resamples: int, seed: int
) -> ConfidenceInterval:
    # the samples of a backend are compared with those of many others: theirs are resampled once
    key = sha256(values.tobytes()).digest(), order, reach, level, resamples, seed
    if key not in _RESAMPLED:
        medians = resampled_medians(values, order.block, resamples, np.random.default_rng(seed))
        levels = normal_below([-reach, reach]) if order.correlated else _bca_levels(values, medians, reach)
        low, high = np.quantile(medians, levels).tolist()
        middle = float(np.median(values))  # medians of blocks of few samples may all lie above it, or below
        method = BLOCKS if order.correlated else BCA
        _RESAMPLED[key] = ConfidenceInterval(min(low, middle), max(high, middle), level, method)
    return _RESAMPLED[key]


def resampled_medians(values: Floats, block: int, count: int, rng: np.random.Generator) -> Floats:
    """Draw the medians of ``count`` resamples with replacement, sample by sample or in circular blocks.

    Long series are resampled less often (at least 1,000 times), so that only about 5 x 10^7 values are drawn.
    """
    if block <= 1:
        return _independent_medians(np.sort(values), count, rng)
    count = min(count, max(_MIN_RESAMPLES, _MAX_DRAWS // len(values)))
    return np.concatenate(list(_block_medians(values, block, count, rng)))


def _independent_medians(ordered: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Draw medians of independent resamples without drawing the resamples.

    A draw is the sample at floor(n u) with u uniform, so the median of n draws is the sample at the median of n uniform
    numbers. The distribution of this median is known: a beta distribution for the middle number, and another for the
    next number (even n).
    """
    n = len(ordered)
    middle = (n + 1) // 2
    place = rng.beta(middle, n - middle + 1, count)
    low = ordered[np.minimum((place * n).astype(np.intp), n - 1)]
    if n % 2 == 1:
        return low
    place += (1 - place) * rng.beta(1, n - middle, count)  # the smallest of those above
    return (low + ordered[np.minimum((place * n).astype(np.intp), n - 1)]) / 2


def _block_medians(values: Floats, block: int, count: int, rng: np.random.Generator) -> Iterator[Floats]:
    n = len(values)
    circle = np.append(values, values[:block])
    blocks = -(-n // block)
    at_once = max(1, _DRAWS_AT_ONCE // (blocks * block))
    for done in range(0, count, at_once):
        start = rng.integers(0, n, (min(at_once, count - done), blocks))
        drawn = circle[start[:, :, None] + np.arange(block)].reshape(len(start), -1)[:, :n]
        yield np.median(drawn, axis=1, overwrite_input=True)


def _bca_levels(values: Floats, medians: Floats, reach: float) -> Floats:
    """Compute the levels at which to read resampled medians, corrected for bias and acceleration (Efron 1987)."""
    centre = np.median(values)
    below = (np.mean(medians < centre) + np.mean(medians <= centre)) / 2
    rare = 0.5 / len(medians)
    bias = normal_quantile(float(np.clip(below, rare, 1 - rare)))
    moved = bias + np.array([-reach, reach])
    return normal_below(bias + moved / (1 - median_acceleration(values) * moved))


def median_acceleration(values: Floats) -> float:
    """Return the acceleration of the median by the jackknife, which leaves out one sample at a time.

    If one sample is left out, only three medians are possible (for even n only two, equally often, so the acceleration
    is 0). These medians are computed directly, without leaving out samples.
    """
    n = len(values)
    half = n // 2
    if n % 2 == 0 or n < 3:
        return 0.0
    before, middle, after = np.partition(values, [half - 1, half, half + 1])[half - 1 : half + 2]
    left = np.array([middle + after, before + after, before + middle]) / 2
    often = np.array([half, 1, half])
    away = (left * often).sum() / n - left
    square = (often * away**2).sum()
    return float((often * away**3).sum() / (6 * square**1.5)) if square > 0 else 0.0


# Cut-offs of the absolute Cliff's delta: Romano, Kromrey, Coraggio and Skowronek (2006), Appropriate statistics for
# ordinal level data, annual meeting of the Florida Association of Institutional Research.
DELTA_WORDS = ((0.147, "negligible"), (0.33, "small"), (0.474, "medium"), (np.inf, "large"))


def shift_of(
    sides: tuple[Floats, Floats], orders: tuple[Dependence, Dependence], level: float
) -> tuple[float, ConfidenceInterval]:
    """Compute the Hodges-Lehmann shift, with its interval: the differences that the rank test does not reject.

    The half width of the interval in ranks is a quantile times the standard deviation of U (Hollander, Wolfe and
    Chicken 2014, section 4.3). This standard deviation grows as the effective number of samples shrinks.
    """
    m, n = (len(sample) for sample in sides)
    middle = (m * n + 1) / 2
    base, new = orders
    # of U where both samples come from the same distribution
    spread = m * n * np.sqrt((1 / base.effective + 1 / new.effective + 1 / (m * n)) / 12)
    reach = _rank_reach(orders, level) * spread
    first = int(np.floor(m * n / 2 - reach + 0.5))
    out, held = RANKS, level
    if first < 1:
        first, out = 1, RANGE
        held = min(level, 1 - split_p(orders[0].effective, orders[1].effective))
    ranks = [int(np.floor(middle)), int(np.ceil(middle)), first, m * n + 1 - first]
    below, above, low, high = ranked_differences(*sides, ranks).tolist()
    return (below + above) / 2, ConfidenceInterval(low, high, held, out)


def ranked_differences(base: Floats, new: Floats, ranks: Sequence[int]) -> Floats:
    """Return the differences new - base at ``ranks`` (1: smallest of len(base) x len(new)), without computing all
    differences.

    Bisects the range of differences to the precision of float64, then takes the nearest difference.
    """
    base, new = np.sort(base), np.sort(new)
    wanted = np.asarray(ranks)
    low = np.full(len(wanted), new[0] - base[-1])
    high = np.full(len(wanted), new[-1] - base[0])
    for _ in range(64):
        middle = (low + high) / 2
        if ((middle == low) | (middle == high)).all():
            break
        enough = np.searchsorted(new, base + middle[:, None], "right").sum(axis=1) >= wanted
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    out = np.empty(len(wanted))
    rounding = np.spacing(max(base[-1], new[-1]))  # by which base + to may fall short
    for at, to in enumerate(high + rounding):
        place = np.searchsorted(new, base + to, "right")
        out[at] = (new[place[place > 0] - 1] - base[place > 0]).max()
    return out


def _rank_reach(orders: tuple[Dependence, Dependence], level: float) -> float:
    """Return the quantile in standard deviations: normal, or Student's t with one sample per block if correlated."""
    if any(order.correlated for order in orders):
        return t_quantile(level, sum(order.blocks for order in orders) - 2)
    return normal_quantile((1 + level) / 2)


def delta_of(
    sides: tuple[Floats, Floats], orders: tuple[Dependence, Dependence], level: float
) -> tuple[float, ConfidenceInterval]:
    """Compute Cliff's delta with the asymmetric interval of Feng and Cliff (2004).

    The interval is Wilson's interval for a share with ``1 / scale`` observations. If samples do not overlap (variance
    0), the number of observations is the size of the smaller sample.
    """
    base, new = sides
    ordered_base, ordered_new = np.sort(base), np.sort(new)
    smaller = np.searchsorted(ordered_new, base, "left") + np.searchsorted(ordered_new, base, "right")
    larger = np.searchsorted(ordered_base, new, "left") + np.searchsorted(ordered_base, new, "right")
    # of new over each of base, and of each of new over base
    dominance = 1 - smaller / len(new), larger / len(base) - 1
    delta = float(dominance[0].mean())
    effective = [order.effective for order in orders]
    fewest, total = min(effective), sum(effective)
    scale = 1 / fewest
    if abs(delta) < 1 and min(len(base), len(new)) > 1:
        variance = sum(each.var(ddof=1) / size for each, size in zip(dominance, effective, strict=True))
        scale = max(float(variance) / (1 - delta**2), 1 / total)
    reach = _rank_reach(orders, level) ** 2 * scale
    half = np.sqrt(reach * (1 - delta**2 + reach))
    low, high = (delta - half) / (1 + reach), (delta + half) / (1 + reach)
    return delta, ConfidenceInterval(max(float(low), -1.0), min(float(high), 1.0), level, RANKS)


def delta_word(delta: float) -> str:
    """Return the word of `DELTA_WORDS` for the size of Cliff's delta."""
    return next(word for most, word in DELTA_WORDS if abs(delta) < most)
