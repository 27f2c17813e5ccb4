"""The Hodges-Lehmann shift and Cliff's delta: brute force over all pairs, the rank test turned around, coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, norm

from nsysprof.statistics.confidence import (
    RANGE,
    RANKS,
    ConfidenceInterval,
    delta_of,
    delta_word,
    ranked_differences,
    shift_of,
)
from nsysprof.statistics.dependence import Dependence, dependence
from tests.statistics.test_dependence import autoregressive

Floats = NDArray[np.float64]
WHOLE = st.lists(st.integers(0, 30), min_size=1, max_size=15)
REAL = st.lists(st.floats(0, 1e9, allow_subnormal=False), min_size=1, max_size=15)


def independent(n: int) -> Dependence:
    return Dependence(n, 0.0, 0.5, False, 0.0, 1, float(n))


def shift(base: Floats, new: Floats) -> tuple[float, ConfidenceInterval]:
    return shift_of((base, new), (independent(len(base)), independent(len(new))), 0.95)


def delta(base: Floats, new: Floats) -> tuple[float, ConfidenceInterval]:
    return delta_of((base, new), (independent(len(base)), independent(len(new))), 0.95)


@given(st.one_of(st.tuples(WHOLE, WHOLE), st.tuples(REAL, REAL)))
@settings(max_examples=200, deadline=None, derandomize=True)
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


SIMULATED = 600
SLACK = 3.5 * np.sqrt(0.95 * 0.05 / SIMULATED)


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
