"""Confidence intervals for medians and their ratios by resampling, also where samples depend on each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsysprof.statistics.dependence import Dependence, shortfall
from nsysprof.statistics.distributions import Floats, normal_below, normal_quantile, t_outside, t_quantile

LEVEL = 0.95
RESAMPLES = 10_000
SEED = 20_250_101
# How an interval was made.
BCA, BLOCKS, RANKS, RANGE = "BCa bootstrap", "block bootstrap", "rank test", "range"

# With fewer than 6 samples the whole range holds the median less often than 95 times in 100.
_FEWEST = 6
_DRAWS_AT_ONCE = 4_000_000
_MOST_DRAWS = 50_000_000
_FEWEST_RESAMPLES = 1_000


@dataclass(frozen=True)
class ConfidenceInterval:
    """From ``low`` to ``high``, both included; such intervals hold the truth in a share ``level`` of all cases.

    ``level`` is what was asked for, or less where the samples are too few for that and the interval is all that they
    span (``method`` "range").
    """

    low: float
    high: float
    level: float
    method: str

    def holds(self, value: float) -> bool:
        """Whether the value lies in the interval."""
        return self.low <= value <= self.high


def median_interval(
    values: Floats,
    order: Dependence,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> ConfidenceInterval:
    """The interval of the median of samples, the same for the same seed.

    Independent samples: BCa bootstrap (Efron 1987). Correlated ones: circular blocks (Politis and Romano 1992) of the
    length in ``order``. Both are read at levels a little farther out than `level` says, which makes up for what
    resampling misses in few samples (Hesterberg 2015, What teachers should know about the bootstrap, "expanded
    percentiles"), by `_reach`.
    """
    if order.effective < _FEWEST:
        return _range(values, order.effective, level)
    return _resampled(values, order, _reach(order, level), level, resamples, seed)


def median_ratio(
    sides: tuple[Floats, Floats],
    orders: tuple[Dependence, Dependence],
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> tuple[ConfidenceInterval, float]:
    """The interval of the median of the second side over that of the first, and a p-value for the ratio being 1.

    Each side is resampled for itself, and the distances of its limits from its median are put together as the root of
    the sum of their squares, on logarithms (Donner and Zou 2012, Closed-form confidence intervals, Statistical Methods
    in Medical Research 21, "MOVER"). Swapped sides give the reciprocal and the same p-value. Neither median may be 0; a
    limit that is counts as half the smallest sample above 0.

    The limits of independent samples are not expanded here, because they are rarely off together. Those of correlated
    samples are, by the degrees of freedom of Welch and Satterthwaite, and as distances, which can reach farther than
    all samples where these hardly differ from each other. The p-value is that of Student's t with the degrees of
    freedom of the side with fewer blocks, so that below 1 - level it implies that the interval leaves 1 out.
    """
    limits, far = [], []
    for values, order in zip(sides, orders, strict=True):
        found, distances = _log_distances(values, order, level, resamples, seed)
        limits.append(found)
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
    """The plain limits of the median, and how far below and above it they are on logarithms."""
    plain = normal_quantile((1 + level) / 2)
    few = order.n < _FEWEST
    found = (
        _range(values, order.n, level) if few else _resampled(values, order, plain, level, resamples, seed)
    )
    least = values[values > 0].min() / 2
    low, middle, high = np.log(np.maximum([found.low, np.median(values), found.high], least)).tolist()
    wider = _missing(order) if order.correlated else 1.0
    return found, (wider * (middle - low), wider * (high - middle))


def _joined(far: Floats, orders: tuple[Dependence, Dependence], level: float) -> float:
    """How far from a ratio its limit is, on logarithms, if either side's is ``far`` from its median."""
    if not far.any() or not any(order.correlated for order in orders):
        return float(np.hypot(*far))
    blocks = np.array([order.blocks for order in orders])
    freedom = float((far**2).sum() ** 2 / (far**4 / np.maximum(blocks - 1, 1)).sum())
    return float(np.hypot(*far)) * t_quantile(level, freedom) / normal_quantile((1 + level) / 2)


def _p_of_ratio(ratio: float, limit: float, held: float, freedom: float) -> float:
    """The p-value of a logarithm that is ``ratio`` and has a limit so far off at the level ``held``."""
    if limit == 0:
        return 1.0 if ratio == 0 else 0.0
    return t_outside(ratio / limit * normal_quantile((1 + held) / 2), max(freedom, 1.0))


def _range(values: Floats, worth: float, level: float) -> ConfidenceInterval:
    """All that the samples span, with how often so many lie on both sides of the median of what they are drawn from."""
    held = min(level, 1 - 2 ** (1 - worth))
    return ConfidenceInterval(float(values.min()), float(values.max()), held, RANGE)


def _reach(order: Dependence, level: float) -> float:
    """How far out to read resampled medians, in standard deviations: a block counts as a sample."""
    return t_quantile(level, order.blocks - 1) * _missing(order)


def _missing(order: Dependence) -> float:
    """The standard deviation of the median over what resampling shows of it."""
    return float(np.sqrt(shortfall(order.phi, order.n, order.block, "median")))


def _resampled(
    values: Floats, order: Dependence, reach: float, level: float, resamples: int, seed: int
) -> ConfidenceInterval:
    medians = resampled_medians(values, order.block, resamples, np.random.default_rng(seed))
    levels = normal_below([-reach, reach]) if order.correlated else _bca_levels(values, medians, reach)
    low, high = np.quantile(medians, levels).tolist()
    middle = float(np.median(values))  # which blocks of few samples may all lie above or below
    return ConfidenceInterval(min(low, middle), max(high, middle), level, BLOCKS if order.correlated else BCA)


def resampled_medians(values: Floats, block: int, count: int, rng: np.random.Generator) -> Floats:
    """The medians of ``count`` resamples drawn with replacement, sample by sample or in circular blocks.

    Blocks of long samples are drawn fewer times, at least 1,000, so that some 5 x 10^7 values are drawn and no more.
    """
    if block <= 1:
        return _independent_medians(np.sort(values), count, rng)
    count = min(count, max(_FEWEST_RESAMPLES, _MOST_DRAWS // len(values)))
    return np.concatenate(list(_block_medians(values, block, count, rng)))


def _independent_medians(ordered: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Medians of independent resamples without drawing these.

    A draw is the sample at floor(n u) with u uniform, so the median of n draws is the sample at the median of n
    uniform numbers, whose distribution is known: a beta for the middle one, and one more for the next.
    """
    n = len(ordered)
    middle = (n + 1) // 2
    place = rng.beta(middle, n - middle + 1, count)
    low = ordered[np.minimum((place * n).astype(np.intp), n - 1)]
    if n % 2 == 1:
        return low
    place += (1 - place) * rng.beta(1, n - middle, count)  # the smallest of those above
    medians: Floats = (low + ordered[np.minimum((place * n).astype(np.intp), n - 1)]) / 2
    return medians


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
    """Where to read the resampled medians, corrected for their bias and acceleration (Efron 1987)."""
    centre = np.median(values)
    below = (np.mean(medians < centre) + np.mean(medians <= centre)) / 2
    rare = 0.5 / len(medians)
    bias = normal_quantile(float(np.clip(below, rare, 1 - rare)))
    moved = bias + np.array([-reach, reach])
    return normal_below(bias + moved / (1 - median_acceleration(values) * moved))


def median_acceleration(values: Floats) -> float:
    """The acceleration of the median by the jackknife, which leaves out one sample at a time.

    Whichever sample is left out, the median moves to one of three values (two, equally often, for even n, which makes
    the acceleration 0), so that nothing needs to be left out in fact.
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
