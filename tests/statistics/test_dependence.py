"""Dependence between samples: against formulas worked out by hand, brute force, and series made to depend."""

from itertools import count

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import rankdata

from nsysprof.core.arrays import Floats
from nsysprof.statistics.dependence import (
    ALARM,
    Drift,
    Statistic,
    block_length,
    dependence,
    drift,
    mid_ranks,
    shortfall,
)


def autoregressive(rng: np.random.Generator, phi: float, shape: tuple[int, ...]) -> Floats:
    """Gaussian series along the last axis, mean 0 and variance 1, each value phi of the one before plus news."""
    news = rng.normal(size=(*shape[:-1], shape[-1] + 100))
    return lfilter([1], [1, -phi], news)[..., 100:] * np.sqrt(1 - phi**2)


def slow_block_length(series: list[float]) -> int:
    """Politis and White's rule, term by term as the paper has it, for circular blocks."""
    n = len(series)
    mean = sum(series) / n
    longest = int(np.ceil(np.sqrt(n))) + max(5, int(np.ceil(np.log10(n))))

    def covariance(lag: int) -> float:
        return sum((series[i] - mean) * (series[i + abs(lag)] - mean) for i in range(n - abs(lag))) / n

    def quiet(lag: int) -> bool:
        return abs(covariance(lag) / covariance(0)) < 2 * float(np.sqrt(np.log10(n) / n))

    run = max(5, int(np.ceil(np.log10(n))))
    last = next(m for m in count() if all(quiet(m + k) for k in range(1, run + 1) if m + k <= longest))
    window = min(2 * max(last, 1), longest)

    def flat_top(share: float) -> float:
        return 1.0 if share <= 0.5 else 2 * (1 - share)

    lags = range(-window, window + 1)
    slope = sum(flat_top(abs(k) / window) * abs(k) * covariance(k) for k in lags)
    density = sum(flat_top(abs(k) / window) * covariance(k) for k in lags)
    if density <= 0:
        return 1
    best = (2 * slope**2 / (4 / 3 * density**2)) ** (1 / 3) * n ** (1 / 3)
    return max(1, int(np.ceil(min(best, 3 * np.sqrt(n), n / 3))))


def test_mid_ranks_share_the_mean_of_ties() -> None:
    """Ranks are those of scipy, ties and all."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        values = rng.integers(0, 8, int(rng.integers(1, 30))).astype(np.float64)
        assert mid_ranks(values).tolist() == rankdata(values).tolist()
    assert mid_ranks(np.array([7.0, 7.0, 1.0])).tolist() == [2.5, 2.5, 1.0]


def test_lag1_by_hand() -> None:
    """Ranks 1, 2, 4, 3 less their mean are -1.5, -0.5, 1.5, 0.5: (0.75 - 0.75 + 0.75) / 5; outliers do not matter."""
    assert dependence(np.array([10.0, 20.0, 9_000.0, 30.0])).lag1 == pytest.approx(0.15)
    assert dependence(np.array([1.0, 9.0] * 10)).lag1 == pytest.approx(-0.95)


@pytest.mark.parametrize("values", [[5], [5, 5], [5, 6], [5] * 3, [5] * 50, [1, 2, 3]])
def test_nothing_is_said_of_few_or_constant_samples(values: list[float]) -> None:
    """They count as independent, each for one."""
    found = dependence(np.array(values, np.float64))
    assert not found.correlated
    assert (found.n, found.block, found.phi, found.effective) == (len(values), 1, 0, len(values))
    assert (found.lag1 is None) == (len(values) < 3)


def test_independent_samples_alarm_as_often_as_stated() -> None:
    """The p-value is below `ALARM` in that share of independent samples, for skewed ones too."""
    rng = np.random.default_rng(2)
    alarms = [dependence(rng.lognormal(0, 1, 40)).correlated for _ in range(1500)]
    assert np.mean(alarms) == pytest.approx(ALARM, abs=0.035)


def test_alternating_samples_count_in_full() -> None:
    """Negative dependence makes a mean surer: nothing is gained by allowing for it, and nothing lost."""
    found = dependence(np.array([100.0, 110.0] * 30) + np.arange(60) % 7)
    assert found.lag1 is not None
    assert found.lag1 < -0.5
    assert (found.correlated, found.effective) == (False, 60)


def test_the_unit_and_outliers_change_nothing() -> None:
    """Any increasing function of the samples gives the same answer."""
    series = autoregressive(np.random.default_rng(3), 0.6, (80,))
    assert dependence(np.exp(series)) == dependence(series) == dependence(series * 4096)


@pytest.mark.parametrize("phi", [0.3, 0.5, 0.7])
def test_the_autoregression_is_found_without_its_bias(phi: float) -> None:
    """In 30 samples the plain autocorrelation is far too small on average, phi is not."""
    series = autoregressive(np.random.default_rng(4), phi, (1500, 30))
    found = [dependence(row) for row in series]
    caught = [one for one in found if one.correlated]
    assert np.mean([one.lag1 for one in found if one.lag1 is not None]) < phi - 0.06
    # those that raise no alarm are missing from phi, the more the smaller it is
    assert np.mean([one.phi for one in caught]) == pytest.approx(phi, abs=0.14 if phi < 0.5 else 0.06)


def test_effective_samples_of_a_long_autoregression() -> None:
    """1,000 samples of phi 0.5 are worth about 1,000 / (1 + 2 sum of (6 / pi) asin(0.5^k / 2)) = 343."""
    expected = 1000 / (1 + 2 * (6 / np.pi * np.arcsin(0.5 ** np.arange(1, 60) / 2)).sum())
    assert expected == pytest.approx(343, abs=5)
    series = autoregressive(np.random.default_rng(5), 0.5, (40, 1000))
    assert np.median([dependence(row).effective for row in series]) == pytest.approx(expected, rel=0.1)


def test_block_length_equals_the_paper_term_by_term() -> None:
    """For series with and without dependence, short and long."""
    rng = np.random.default_rng(6)
    for n in (8, 12, 30, 77, 200):
        for phi in (0, 0.3, 0.8, -0.5):
            series = autoregressive(rng, phi, (n,))
            assert block_length(series) == slow_block_length(series.tolist()), (n, phi)
    assert block_length(np.full(20, 3.0)) == 1


@pytest.mark.parametrize(("phi", "n", "block"), [(0.0, 30, 1), (0.5, 30, 4), (0.7, 50, 8), (0.7, 100, 25)])
@pytest.mark.parametrize("statistic", ["median", "rank"])
def test_shortfall_is_what_blocks_show_too_little(phi: float, n: int, block: int, statistic: Statistic) -> None:
    """The formula against 20,000 series: the variance of means over the mean of the variances that blocks show."""
    series = autoregressive(np.random.default_rng(7), phi, (20_000, n))
    scores = np.sign(series) if statistic == "median" else mid_ranks(series.ravel()).reshape(series.shape)
    away = scores - scores.mean(axis=1, keepdims=True)
    total = np.cumsum(np.hstack([np.zeros((len(away), 1)), away, away[:, : block - 1]]), axis=1)
    shown = ((total[:, block:] - total[:, :-block]) ** 2).mean(axis=1) / block / n
    assert shortfall(phi, n, block, statistic) == pytest.approx(scores.mean(axis=1).var() / shown.mean(), rel=0.05)


def test_shortfall_of_independent_samples() -> None:
    """It is Bessel's correction."""
    assert shortfall(0, 30, 1, "median") == pytest.approx(30 / 29)


def test_a_trend_is_drift() -> None:
    """Samples that grow by 10 % over the run, through noise of 2 %: some 5 % between the halves."""
    rng = np.random.default_rng(8)
    found = drift(1000 * np.linspace(1, 1.1, 60) * rng.normal(1, 0.02, 60))
    assert found.significant
    assert found.change == pytest.approx(0.05, abs=0.02)
    back = drift(1000 * np.linspace(1.1, 1, 60))
    assert back.change is not None
    assert back.significant
    assert back.change < 0


def test_little_drift_is_none() -> None:
    """A sure trend of half a percent is not worth a word."""
    found = drift(np.linspace(1000, 1005, 100))
    assert (found.p < 0.001, found.significant) == (True, False)


def test_dependence_is_rarely_taken_for_drift() -> None:
    """Autocorrelated samples without a trend wander, which is no drift."""
    series = np.exp(0.1 * autoregressive(np.random.default_rng(9), 0.7, (400, 60)))
    assert np.mean([drift(row).significant for row in series]) < 0.05


@pytest.mark.parametrize("values", [[1, 2, 3], [1], [0] * 10, [0, 0, 0, 5, 6, 7]])
def test_drift_that_cannot_be_told(values: list[float]) -> None:
    """Too few samples, or nothing to be a share of."""
    found = drift(np.array(values, np.float64))
    assert found.change is None
    assert not found.significant


def test_drift_of_constant_samples() -> None:
    """There is none."""
    assert drift(np.full(20, 5.0)) == Drift(20, 0.0, 1.0)
