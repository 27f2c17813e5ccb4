"""Confidence intervals: exact distributions, scipy, all pairs, odd samples, and how often they hold the truth."""

import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, bootstrap, gamma, mannwhitneyu, norm, t

from nsysprof.core.arrays import Floats
from nsysprof.statistics import confidence
from nsysprof.statistics.confidence import (
    BCA,
    BLOCKS,
    RANGE,
    RANKS,
    ConfidenceInterval,
    delta_of,
    delta_word,
    median_acceleration,
    median_interval,
    median_ratio,
    ranked_differences,
    resampled_medians,
    shift_of,
)
from nsysprof.statistics.dependence import Dependence, dependence
from tests.statistics.test_dependence import autoregressive

Make = Callable[[np.random.Generator, float, int], Floats]
SAMPLES = st.lists(st.integers(0, 50), min_size=1, max_size=40)


def interval(values: Floats, **how: int) -> ConfidenceInterval:
    return median_interval(values, dependence(values), **how)


def ratio(base: Floats, new: Floats, **how: int) -> tuple[ConfidenceInterval, float]:
    return median_ratio((base, new), (dependence(base), dependence(new)), **how)


def floats(values: list[int]) -> Floats:
    return np.array(values, np.float64)


def shares(medians: Floats) -> dict[float, float]:
    values, times = np.unique(medians, return_counts=True)
    return dict(zip(values.tolist(), (times / len(medians)).tolist(), strict=True))


def test_independent_medians_of_odd_samples_have_the_known_distribution() -> None:
    """The median of 7 draws is at most the k-th of 7 when 4 draws or more are, which is binomial."""
    medians = resampled_medians(floats([5, 1, 7, 3, 2, 6, 4]), 1, 200_000, np.random.default_rng(1))
    for k in range(1, 8):
        assert np.mean(medians <= k) == pytest.approx(float(binom.sf(3, 7, k / 7)), abs=0.005)


def test_independent_medians_of_even_samples_equal_all_resamples() -> None:
    """All 4^4 resamples of four values, counted."""
    values = [1, 2, 5, 11]
    every = Counter(float(np.median(drawn)) for drawn in product(values, repeat=4))
    found = shares(resampled_medians(floats(values), 1, 200_000, np.random.default_rng(2)))
    assert found.keys() == every.keys()
    for value, times in every.items():
        assert found[value] == pytest.approx(times / 256, abs=0.005)


def test_block_medians_equal_all_resamples() -> None:
    """All 5^3 ways to fill five places with circular blocks of two, the last one cut."""
    values = [1, 2, 30, 4, 15]
    pairs = [(values[k], values[(k + 1) % 5]) for k in range(5)]
    every = Counter(float(np.median([*first, *second, third[0]])) for first, second, third in product(pairs, repeat=3))
    found = shares(resampled_medians(floats(values), 2, 200_000, np.random.default_rng(3)))
    assert found.keys() == every.keys()
    for value, times in every.items():
        assert found[value] == pytest.approx(times / 125, abs=0.005)


def test_medians_drawn_in_parts_equal_those_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many resamples fit in memory changes nothing."""
    values = np.random.default_rng(4).lognormal(0, 1, 50)
    whole = resampled_medians(values, 4, 3000, np.random.default_rng(5))
    monkeypatch.setattr(confidence, "_DRAWS_AT_ONCE", 7_001)
    assert np.array_equal(resampled_medians(values, 4, 3000, np.random.default_rng(5)), whole)


def test_long_samples_stay_in_memory() -> None:
    """100,000 samples in blocks: fewer resamples, and a fraction of the memory that all of them would take."""
    values = np.random.default_rng(6).lognormal(0, 1, 100_000)
    tracemalloc.start()
    try:
        found = resampled_medians(values, 50, 120, np.random.default_rng(7))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 120
    assert peak < 200_000_000
    assert len(interval(values).method) > 0


def test_acceleration_equals_the_jackknife() -> None:
    """Leaving out one sample after the other gives the same number."""
    rng = np.random.default_rng(8)
    for n in (3, 4, 5, 9, 30, 31):
        values = rng.lognormal(0, 1, n)
        left = np.array([np.median(np.delete(values, k)) for k in range(n)])
        away = left.mean() - left
        expected = (away**3).sum() / (6 * (away**2).sum() ** 1.5)
        assert median_acceleration(values) == pytest.approx(expected, abs=1e-12), n
    assert median_acceleration(np.full(9, 2.0)) == 0
    assert median_acceleration(np.array([2.0])) == 0


@pytest.mark.parametrize("n", [51, 100, 301])
def test_independent_interval_equals_scipy_bca_at_the_expanded_level(n: int) -> None:
    """Scipy's BCa, asked for the level that makes up for n samples, agrees to a small part of the width."""
    values = np.random.default_rng(n).permutation(np.random.default_rng(9).lognormal(3, 0.5, n))
    order = Dependence(n, 0.0, 0.5, False, 0.0, 1, float(n))
    ours = median_interval(values, order, resamples=40_000)
    level = 1 - 2 * norm.sf(t.ppf(0.975, n - 1) * np.sqrt(n / (n - 1)))
    scipys = bootstrap(
        (values,), np.median, n_resamples=20_000, confidence_level=level, method="BCa", random_state=1
    ).confidence_interval
    width = scipys.high - scipys.low
    assert ours.method == BCA
    assert ours.low == pytest.approx(scipys.low, abs=0.1 * width)
    assert ours.high == pytest.approx(scipys.high, abs=0.1 * width)


def test_same_seed_same_interval() -> None:
    """A seed repeats itself, in blocks too, and another one gives nearly the same."""
    for values in (np.random.default_rng(10).lognormal(0, 1, 100), np.sin(np.arange(90) / 4) + 5):
        assert interval(values) == interval(values)
        other = interval(values, seed=1)
        assert other.low == pytest.approx(interval(values).low, rel=0.05)


@pytest.mark.parametrize(("n", "level"), [(1, 0.0), (2, 0.5), (3, 0.75), (5, 0.9375)])
def test_few_samples_give_their_range_and_say_how_sure_it_is(n: int, level: float) -> None:
    """Samples lie on both sides of the median unless all n fall on one: 1 - 2 / 2^n."""
    values = floats([30, 10, 50, 20, 40][:n])
    found = interval(values)
    assert found == ConfidenceInterval(values.min(), values.max(), level, RANGE)


def test_constant_samples_have_no_width() -> None:
    """Where BCa divides by zero."""
    assert interval(np.full(30, 7.0)) == ConfidenceInterval(7.0, 7.0, 0.95, BCA)


@given(SAMPLES)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_every_sample_has_a_finite_interval_around_its_median(values: list[int]) -> None:
    """Ties, zeros, trends: never NaN, never beside the median, never beyond the samples."""
    found = interval(floats(values), resamples=200)
    assert min(values) <= found.low <= np.median(values) <= found.high <= max(values)
    assert 0 <= found.level <= 0.95


@given(SAMPLES, st.sampled_from([0.25, 2.0, 4096.0]))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_intervals_scale_with_the_unit(values: list[int], factor: float) -> None:
    """Microseconds or nanoseconds: the same interval in another unit."""
    small, large = (interval(floats(values) * scale, resamples=200) for scale in (1.0, factor))
    assert (large.low, large.high) == (small.low * factor, small.high * factor)
    assert (large.level, large.method) == (small.level, small.method)


@given(SAMPLES, SAMPLES)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_swapped_sides_give_the_reciprocal(base: list[int], new: list[int]) -> None:
    """Neither side is privileged, and nothing is infinite or NaN, with zeros too."""
    if np.median(base) == 0 or np.median(new) == 0:
        return
    there, p = ratio(floats(base), floats(new), resamples=200)
    back, same = ratio(floats(new), floats(base), resamples=200)
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low)
    assert there.low <= np.median(new) / np.median(base) * (1 + 1e-9)
    assert there.high >= np.median(new) / np.median(base) * (1 - 1e-9)
    assert np.isfinite([there.low, there.high]).all()
    assert p == pytest.approx(same)
    assert 0 <= p <= 1
    assert there.method == back.method


def test_the_p_value_of_a_ratio_agrees_with_its_interval() -> None:
    """Below 1 - level only where the interval leaves 1 out, independent or not, and mostly where it does."""
    rng = np.random.default_rng(11)
    seen = Counter[tuple[bool, str]]()
    for _ in range(200):
        phi = float(rng.choice([0, 0.5]))
        base, new = np.exp(0.2 * autoregressive(rng, phi, (2, 40))) * [[1], [1.12]]
        found, p = ratio(base, new, resamples=300)
        assert p >= 0.05 or not found.holds(1)
        assert p < 0.12 or found.holds(1)
        seen[p < 0.05, found.method] += 1
    assert set(seen) >= {(True, BCA), (False, BCA), (True, BLOCKS), (False, BLOCKS)}


def test_ratio_of_constants() -> None:
    """No spread at all: the ratio is what it is, and surely not 1 unless it is."""
    found, p = ratio(np.full(10, 4.0), np.full(12, 5.0))
    assert [found.low, found.high, p] == pytest.approx([1.25, 1.25, 0])
    found, p = ratio(np.full(10, 4.0), np.full(10, 4.0))
    assert (found.low, found.high, p) == (1, 1, 1)


def test_ratio_of_few_samples_says_how_little_is_known() -> None:
    """Two ranges of three samples each hold both medians in 75 % x 75 % of cases."""
    found, _ = ratio(floats([10, 11, 12]), floats([20, 22, 24]))
    assert (found.level, found.method) == (0.75**2, RANGE)


SIMULATED = 300
# Three and a half standard deviations of a share of 95 % among so many: seeds are fixed, so this never changes.
SLACK = 3.5 * np.sqrt(0.95 * 0.05 / SIMULATED)


def lognormal(rng: np.random.Generator, phi: float, n: int) -> Floats:
    return np.exp(0.5 * autoregressive(rng, phi, (n,)))


def spiky(rng: np.random.Generator, phi: float, n: int) -> Floats:
    """Gamma, and one sample in twenty far above."""
    usual = gamma.ppf(norm.cdf(autoregressive(rng, phi, (n,))), 4)
    return usual + (rng.random(n) < 0.05) * rng.exponential(20, n)


SPIKY_MEDIAN = 3.7906  # of 40 million, plus or minus 0.0003


@pytest.mark.parametrize("make", [lognormal, spiky])
@pytest.mark.parametrize(("phi", "n"), [(0.0, 10), (0.0, 30), (0.0, 100), (0.3, 50), (0.5, 50), (0.5, 100), (0.7, 100)])
def test_median_intervals_hold_the_median_in_95_of_100(make: Make, phi: float, n: int) -> None:
    """Skewed samples, with rare spikes, and depending on each other: 93 to 97 % (400 resamples do as well here)."""
    rng = np.random.default_rng([n, int(10 * phi)])
    truth = 1.0 if make is lognormal else SPIKY_MEDIAN
    held = np.mean([interval(make(rng, phi, n), resamples=400, seed=k).holds(truth) for k in range(SIMULATED)])
    assert 0.93 - SLACK <= held <= 0.97 + SLACK


def test_resampling_one_by_one_would_not_hold() -> None:
    """The simulation above can fail: without blocks intervals of dependent samples are much too narrow."""
    rng = np.random.default_rng(12)
    held = 0
    for k in range(SIMULATED):
        values = lognormal(rng, 0.5, 50)
        independent = Dependence(50, None, 1.0, False, 0.0, 1, 50.0)
        held += median_interval(values, independent, resamples=400, seed=k).holds(1)
    assert held / SIMULATED < 0.87


@pytest.mark.parametrize(("phi", "n"), [(0.0, 30), (0.0, 100), (0.5, 50), (0.7, 100)])
def test_ratio_intervals_hold_the_ratio_in_95_of_100(phi: float, n: int) -> None:
    """Between a sample and one that is 1.3 times as long."""
    rng = np.random.default_rng([n, int(10 * phi), 2])
    held = np.mean(
        [
            ratio(lognormal(rng, phi, n), 1.3 * lognormal(rng, phi, n), resamples=400, seed=k)[0].holds(1.3)
            for k in range(SIMULATED)
        ]
    )
    assert 0.93 - SLACK <= held <= 0.97 + SLACK


WHOLE = st.lists(st.integers(0, 30), min_size=1, max_size=15)
FEW = st.lists(st.integers(0, 9), min_size=1, max_size=8)
REAL = st.lists(st.floats(0, 1e9, allow_subnormal=False), min_size=1, max_size=8)


def independent(n: int) -> Dependence:
    return Dependence(n, 0.0, 0.5, False, 0.0, 1, float(n))


def shift(base: Floats, new: Floats) -> tuple[float, ConfidenceInterval]:
    return shift_of((base, new), (independent(len(base)), independent(len(new))), 0.95)


def delta(base: Floats, new: Floats) -> tuple[float, ConfidenceInterval]:
    return delta_of((base, new), (independent(len(base)), independent(len(new))), 0.95)


@given(st.one_of(st.tuples(FEW, FEW), st.tuples(REAL, REAL)))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_ranked_differences_equal_all_of_them_sorted(sides: tuple[list[float], list[float]]) -> None:
    """Every rank, with ties, and numbers that float64 cannot add without rounding."""
    base, new = (np.array(side, np.float64) for side in sides)
    every = np.sort((new[:, None] - base).ravel())
    found = ranked_differences(base, new, range(1, len(every) + 1))
    scale = max(base.max(), new.max())
    assert found == pytest.approx(every, abs=1e-12 * scale, rel=0)
    if all(isinstance(value, int) for side in sides for value in side):
        assert found.tolist() == every.tolist()


def test_shift_is_the_median_of_all_differences() -> None:
    """By hand: 5 - 1, 5 - 2, 9 - 1, 9 - 2 and 9 - 8, 5 - 8 have 3 and 4 in the middle."""
    assert shift(np.array([1.0, 2, 8]), np.array([9.0, 5]))[0] == 3.5


def test_shift_interval_is_what_the_rank_test_does_not_reject() -> None:
    """Moved by a shift inside the interval the samples pass for the same, and by one outside they do not."""
    rng = np.random.default_rng(1)
    for m, n in ((12, 15), (30, 30), (40, 9)):
        base, new = rng.lognormal(3, 0.5, m), rng.lognormal(3.3, 0.5, n)
        _, found = shift(base, new)
        wide = found.high - found.low
        assert found.method == RANKS
        for moved, same in (
            (found.low + 0.1 * wide, True),
            (found.high - 0.1 * wide, True),
            (found.low - 0.1 * wide, False),
            (found.high + 0.1 * wide, False),
        ):
            p = mannwhitneyu(new - moved, base).pvalue
            assert (p > 0.05) == same, (m, n, p)


def test_dependent_samples_have_a_wider_shift_and_delta() -> None:
    """Samples worth a quarter as many independent ones make intervals about twice as wide."""
    rng = np.random.default_rng(2)
    sides = rng.lognormal(3, 0.5, 100), rng.lognormal(3, 0.5, 100)
    worth = Dependence(100, 0.6, 0.0, True, 0.6, 5, 25.0)
    for effect in (shift_of, delta_of):
        _, narrow = effect(sides, (independent(100), independent(100)), 0.95)
        _, wide = effect(sides, (worth, worth), 0.95)
        assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(2, rel=0.2)


def test_shift_of_few_samples_spans_all_differences() -> None:
    """Three against three never reach 95 %: of 20 orders two leave a shift out on either side."""
    _, found = shift(np.array([1.0, 2, 3]), np.array([10.0, 20, 30]))
    assert (found.low, found.high, found.method) == (7, 29, RANGE)
    assert found.level == pytest.approx(0.9)


@given(WHOLE, WHOLE)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_delta_equals_all_pairs_and_changes_its_sign(base: list[int], new: list[int]) -> None:
    """The share of pairs won less the share lost, within an interval inside -1 to 1, whoever is called base."""
    one, other = np.array(base, np.float64), np.array(new, np.float64)
    found, interval = delta(one, other)
    assert found == pytest.approx(np.sign(other[:, None] - one).mean())
    assert -1 <= interval.low <= found + 1e-12
    assert found - 1e-12 <= interval.high <= 1
    mirrored, back = delta(other, one)
    assert mirrored == pytest.approx(-found)
    assert [back.low, back.high] == pytest.approx([-interval.high, -interval.low])


def test_delta_of_samples_apart_is_not_certain() -> None:
    """Ten against ten without overlap: Wilson's limit for ten of ten, (10 - z^2) / (10 + z^2)."""
    found, interval = delta(np.arange(10.0), np.arange(20.0, 30))
    square = norm.ppf(0.975) ** 2
    assert (found, interval.high) == (1, 1)
    assert interval.low == pytest.approx((10 - square) / (10 + square))


def test_words_of_delta() -> None:
    """The cut-offs of Romano and others, each of the next word."""
    words = [delta_word(value) for value in (0, -0.146, 0.147, 0.329, -0.33, 0.473, 0.474, -1)]
    assert words == ["negligible"] * 2 + ["small"] * 2 + ["medium"] * 2 + ["large"] * 2


@pytest.mark.parametrize(("phi", "n"), [(0.0, 30), (0.0, 100), (0.5, 50), (0.7, 100)])
def test_shift_and_delta_intervals_hold_in_95_of_100(phi: float, n: int) -> None:
    """Between normal samples half a standard deviation apart: P(new > base) - P(new < base) is 0.2763."""
    rng = np.random.default_rng([n, int(10 * phi)])
    shifts = deltas = 0
    for _ in range(SIMULATED):
        base, new = autoregressive(rng, phi, (2, n))
        sides, orders = (base, new + 0.5), (dependence(base), dependence(new))
        shifts += shift_of(sides, orders, 0.95)[1].holds(0.5)
        deltas += delta_of(sides, orders, 0.95)[1].holds(0.27633)
    assert 0.93 - SLACK <= shifts / SIMULATED <= 0.97 + SLACK
    assert 0.93 - SLACK <= deltas / SIMULATED <= 0.97 + SLACK
