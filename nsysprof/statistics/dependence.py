"""Measure the dependence of samples on earlier samples, and the effective number of samples.

All methods use ranks, so a few very slow samples hide no pattern, and the unit does not matter.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nsysprof.core.arrays import Floats
from nsysprof.statistics.distributions import normal_below, t_outside

Statistic = Literal["median", "rank"]

# Below this p-value dependence is allowed for. A false alarm makes intervals a few percent wider, a missed one makes
# them far too narrow, so this is more cautious than `SIGNIFICANT`, below which it is reported.
ALARM = 0.20
SIGNIFICANT = 0.05
_MAX_PHI = 0.98
_SURE_N, _SURE_WORTH = 45, 1 / 3


@dataclass(frozen=True)
class Dependence:
    """The dependence of the ``n`` samples of a run, in the order of measurement.

    ``lag1``: the autocorrelation of neighbours' ranks, None below 3 samples, 0 for constant samples. ``p``: the p-value
    of ``lag1`` under the hypothesis that samples are independent. ``correlated``: whether p is below `ALARM`, so that
    dependence is accounted for; otherwise ``phi`` is 0, ``block`` is 1 and ``effective`` is ``n``. ``phi``: the
    coefficient of the fitted first-order autoregression, corrected for bias in short runs. ``block``: the block length
    for resampling. ``effective``: how many independent samples would give an equally certain mean rank.
    """

    n: int
    lag1: float | None
    p: float
    correlated: bool
    phi: float
    block: int
    effective: float

    @property
    def sure(self) -> bool:
        """Return whether an interval of the median is reliable; docs/statistics.md has the simulations.

        A reliable interval needs `_SURE_N` samples and an effective n of at least a third of ``n``. The effective n is
        measured in two ways: by the autoregression, which best distinguishes mild from strong dependence, and by
        ``effective``, which detects regimes.
        """
        worth = min((1 - self.phi) / (1 + self.phi), self.effective / self.n)
        return self.n >= _SURE_N and worth >= _SURE_WORTH

    @property
    def blocks(self) -> float:
        """Return how many blocks the samples fill."""
        return self.n / self.block


@dataclass(frozen=True)
class Drift:
    """How much ``n`` samples grow or shrink during the run.

    ``change``: median of the second half ÷ median of the first, minus 1; None if unknown (fewer than 4 samples, or a
    half with median 0). ``p``: the p-value of the rank correlation with the order of the samples, accounting for
    autocorrelation about the trend.
    """

    n: int
    change: float | None
    p: float

    @property
    def significant(self) -> bool:
        """Return whether the two halves of the run differ by at least 1 % and p is below 0.01."""
        return self.change is not None and abs(self.change) >= 0.01 and self.p < 0.01


def mid_ranks(values: Floats) -> Floats:
    """Rank the values, 1 the smallest; equal values share their mean rank."""
    _, code, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[code.reshape(-1)]


def dependence(values: Floats) -> Dependence:
    """Measure the `Dependence` of samples in the order of measurement.

    ``lag1`` is tested against its distribution in independent samples: mean -1/n, standard deviation 1/sqrt(n).
    """
    n = len(values)
    ranks = mid_ranks(values)
    lag1 = _lag1(ranks)
    p = _p_of_lag1(lag1, n)
    if lag1 is None or p >= ALARM:
        return Dependence(n, lag1, p, False, 0.0, 1, float(n))
    phi = _phi(lag1, n)
    block = max(1, min(max(block_length(ranks), _autoregressive_block(phi, n)), n // 4))
    inflation = _inflation(ranks, block) * shortfall(phi, n, block, "rank")
    return Dependence(n, lag1, p, True, phi, block, float(np.clip(n / inflation, 1, n)))


def drift(values: Floats) -> Drift:
    """Measure the `Drift` of samples in the order of measurement."""
    n = len(values)
    if n < 4:
        return Drift(n, None, 1.0)
    early, late = np.median(values[: n // 2]), np.median(values[(n + 1) // 2 :])
    change = float(late / early - 1) if early > 0 and late > 0 else None
    return Drift(n, change, _trend_p(mid_ranks(values)))


def _trend_p(ranks: Floats) -> float:
    n = len(ranks)
    time = np.arange(n) - (n - 1) / 2
    centred = ranks - ranks.mean()
    spread = float(np.sqrt((centred @ centred) * (time @ time)))
    if spread == 0:
        return 1.0
    trend = float(centred @ time) / spread
    rest = centred - time * (centred @ time) / (time @ time)
    lag1 = _lag1(rest)
    phi = 0.0 if lag1 is None or _p_of_lag1(lag1, n) >= ALARM else _phi(lag1, n)
    independent = max(1 / _mean_variance(phi, n, "rank"), 3.0)
    t = abs(trend) * np.sqrt((independent - 2) / max(1 - trend**2, 1e-12))
    return t_outside(float(t), independent - 2)


def block_length(series: Floats) -> int:
    """Choose the length of circular blocks that best estimates the variance of a mean (Politis and White).

    Source: Politis and White (2004), Automatic block-length selection for the dependent bootstrap, Econometric Reviews
    23, with the correction of Patton, Politis and White (2009), Econometric Reviews 28: autocovariances are summed
    under a flat-top window that is twice as wide as the last significant autocorrelation.
    """
    n = len(series)
    run = max(5, int(np.ceil(np.log10(n))))
    longest = min(int(np.ceil(np.sqrt(n))) + run, n - 1)
    centred = series - series.mean()
    covariance = np.array([centred[: n - lag] @ centred[lag:] for lag in range(longest + 1)]) / n
    if covariance[0] == 0:
        return 1
    stands_out = np.abs(covariance[1:] / covariance[0]) >= 2 * np.sqrt(np.log10(n) / n)
    lags = np.flatnonzero(stands_out)
    quiet = [last for last in (0, *(lags + 1).tolist()) if not stands_out[last : last + run].any()]
    window = min(2 * max(quiet[0], 1), longest)
    lag = np.arange(1, window + 1)
    weight = np.minimum(1, 2 * (1 - lag / window)) * covariance[1 : window + 1]
    long_run = covariance[0] + 2 * weight.sum()
    if long_run <= 0:
        return 1
    best = (2 * (2 * (lag * weight).sum()) ** 2 / (4 / 3 * long_run**2) * n) ** (1 / 3)
    return max(1, int(np.ceil(min(best, 3 * np.sqrt(n), n / 3))))


def shortfall(phi: float, n: int, block: int, statistic: Statistic) -> float:
    """Return the variance of a statistic of ``n`` samples, divided by the variance that circular blocks show on
    average.

    The samples are modelled as a monotone function of a Gaussian first-order autoregression ``phi``. Blocks show too
    little variance, because they cut dependence at their ends, and because deviations are from the mean of the same
    samples. Without dependence, the result is the familiar n / (n - 1).
    """
    correlation = _correlation(phi, n, statistic)
    true = _mean_variance(phi, n, statistic)
    lag = np.arange(1, block)
    around = (1 - lag / n) * correlation[lag] + lag / n * correlation[(n - lag) % n]
    shown = (1 - true + 2 * ((1 - lag / block) * (around - true)).sum()) / n
    return float(true / shown) if shown > 0 else 1.0


def _correlation(phi: float, n: int, statistic: Statistic) -> Floats:
    """Return the autocorrelation at lags 0 to n - 1 of the signs about the median, or of the ranks."""
    power = phi ** np.arange(n)
    scale, sine = (2, power) if statistic == "median" else (6, power / 2)
    return np.arcsin(sine) * scale / np.pi


def _mean_variance(phi: float, n: int, statistic: Statistic) -> float:
    """Return the variance of the mean of n of them, in units of the variance of one."""
    correlation = _correlation(phi, n, statistic)
    return float(1 + 2 * ((1 - np.arange(1, n) / n) * correlation[1:]).sum()) / n


def _lag1(series: Floats) -> float | None:
    if len(series) < 3:
        return None
    centred = series - series.mean()
    square = float(centred @ centred)
    return float(centred[:-1] @ centred[1:]) / square if square > 0 else 0.0


def _p_of_lag1(lag1: float | None, n: int) -> float:
    return 1.0 if lag1 is None else float(normal_below([-(lag1 + 1 / n) * np.sqrt(n)])[0])


def _phi(lag1: float, n: int) -> float:
    """Return the autoregression behind a rank autocorrelation, less its bias of -(1 + 3 phi) / n (Kendall 1954)."""
    if n <= 3:
        return 0.0
    gaussian = 2 * np.sin(np.pi * min(lag1, 1.0) / 6)
    return float(np.clip((n * gaussian + 1) / (n - 3), 0, _MAX_PHI))


def _autoregressive_block(phi: float, n: int) -> int:
    """Return the best block length for a first-order autoregression: Politis and White's formula, sums solved."""
    return int(np.ceil((1.5 * (2 * phi / (1 - phi**2)) ** 2 * n) ** (1 / 3)))


def _inflation(ranks: Floats, block: int) -> float:
    """Return the variance of the mean rank as circular blocks show it, over that of independent samples."""
    centred = ranks - ranks.mean()
    total = np.append(0.0, np.cumsum(np.append(centred, centred[: block - 1])))
    sums = total[block:] - total[:-block]
    return float((sums @ sums) / block / (centred @ centred))
