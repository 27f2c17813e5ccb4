"""Grouped quartiles against numpy's own, exact on int64; shares, quantiles and the rank test against scipy's."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import special, stats

from nsysprof.core.arrays import Ints
from nsysprof.statistics import distributions
from nsysprof.statistics.distributions import Groups, Quartiles, grouped_quartiles


def exact(values: list[int], quarters: int) -> int:
    """The quartile between its neighbours in exact fractions, rounded to the nearest, halves to even."""
    values = sorted(values)
    place = Fraction(quarters * (len(values) - 1), 4)
    low = place.numerator // place.denominator
    high = min(low + 1, len(values) - 1)
    return round(values[low] + (place - low) * (values[high] - values[low]))


def columns(found: Quartiles) -> list[Ints]:
    return [found.low, found.first, found.median, found.third, found.high]


def test_quartiles_equal_numpy_quantile() -> None:
    """Each group's quartiles are `numpy.quantile`'s, rounded to the unit."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        group = rng.integers(0, 6, int(rng.integers(0, 40)))
        values = rng.integers(-20, 20, len(group))
        found = columns(grouped_quartiles(group, values, 7))
        for code in range(7):
            mine = values[group == code]
            expected = [0] * 5 if len(mine) == 0 else [round(q) for q in np.quantile(mine, np.arange(5) / 4)]
            assert [int(column[code]) for column in found] == expected, (seed, code)


def test_quartiles_are_exact_beyond_float64() -> None:
    """Values of 2^60 keep their last digit, where float64 would round to 256."""
    values = np.array([2**60 + 1, 2**60 + 3, 2**60 + 4, 2**60 + 9])
    found = grouped_quartiles(np.zeros(4, np.int32), values, 1)
    assert [int(column[0]) for column in columns(found)] == [exact(values.tolist(), q) for q in range(5)]
    assert int(found.median[0]) == 2**60 + 4  # 3.5 goes to the even neighbour


def test_quartiles_of_values_far_apart_go_by_another_sort() -> None:
    """Where group and value do not fit 62 bits together the answer is the same."""
    values = np.array([-(2**61), 2**61, 5, 7, -(2**61) + 1], np.int64)
    group = np.array([1, 1, 0, 0, 1], np.int32)
    found = grouped_quartiles(group, values, 2)
    assert found.low.tolist() == [5, -(2**61)]
    assert found.median.tolist() == [6, -(2**61) + 1]
    assert found.high.tolist() == [7, 2**61]


def test_iqr_is_third_less_first() -> None:
    """The interquartile range is between the quartiles, not between the extremes."""
    found = grouped_quartiles(np.zeros(5, np.int32), np.array([0, 10, 20, 30, 1_000]), 1)
    assert (found.iqr.tolist(), found.median.tolist()) == ([20], [20])


def test_one_value_is_all_of_its_quartiles() -> None:
    """A group of one value has that value everywhere; a group of none has zeros."""
    found = grouped_quartiles(np.array([1], np.int32), np.array([-7]), 3)
    assert [column.tolist() for column in columns(found)] == [[0, -7, 0]] * 5


def test_no_values_at_all() -> None:
    """Groups without any value have zeros, and no groups have none."""
    none = np.empty(0, np.int64)
    assert grouped_quartiles(none, none, 2).median.tolist() == [0, 0]
    assert len(grouped_quartiles(none, none, 0).median) == 0


def test_groups_sort_as_lexsort_does() -> None:
    """Packing and unpacking loses nothing, for any code type, negative values and values of 2^56."""
    dtypes: tuple[type[np.integer], ...] = (np.uint8, np.uint16, np.int32, np.int64)
    for dtype in dtypes:
        rng = np.random.default_rng(7)
        group = rng.integers(0, 200, 500).astype(dtype)
        for low, high in ((-5, 5), (2**56, 2**56 + 9), (-(2**40), 2**40), (-(2**62), 2**62)):
            values = rng.integers(low, high, 500)
            order = np.lexsort((values, group))
            groups = Groups.of(group)
            assert np.array_equal(np.repeat(groups.codes, groups.size), group[order]), (dtype, low)
            assert np.array_equal(groups.sort(values), values[order]), (dtype, low)


FREEDOMS = [1, 1.5, 2, 3, 5, 7.3, 10, 19, 38, 100, 1000.5, 1e5]


def test_the_normal_distribution_is_scipy_s() -> None:
    """Shares to 12 digits wherever they are no denormals, quantiles to 14, and the ends."""
    values = np.linspace(-35, 35, 1401)
    np.testing.assert_allclose(distributions.normal_below(values), special.ndtr(values), rtol=1e-12)
    shares = np.concatenate([np.logspace(-300, -1, 300), np.linspace(0.01, 0.99, 99), 1 - np.logspace(-15, -1, 99)])
    found = [distributions.normal_quantile(float(share)) for share in shares]
    np.testing.assert_allclose(found, special.ndtri(shares), rtol=1e-14, atol=1e-15)
    assert [distributions.normal_quantile(share) for share in (0, 1)] == [-np.inf, np.inf]


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_student_s_t_is_scipy_s(freedom: float) -> None:
    """Shares in the tails to 9 digits, and quantiles; fewer than one degree of freedom counts as one."""
    values = [0, 1e-3, 0.1, 0.5, 1, 1.96, 2.5, 5, 10, 40, 200, 1e4]
    found = [distributions.t_outside(t, freedom) for t in values]
    np.testing.assert_allclose(found, [2 * special.stdtr(freedom, -t) for t in values], rtol=1e-9, atol=1e-290)
    levels = [0.5, 0.683, 0.8, 0.9, 0.95, 0.99, 0.999, 0.999999]
    found = [distributions.t_quantile(level, freedom) for level in levels]
    np.testing.assert_allclose(found, [special.stdtrit(freedom, (1 + level) / 2) for level in levels], rtol=1e-9)
    assert distributions.t_quantile(0.95, 0.3) == distributions.t_quantile(0.95, 1)
    assert distributions.t_outside(np.inf, freedom) == 0


def test_the_chance_that_samples_lie_apart_is_scipy_s() -> None:
    """Two over the orders of the two samples, whose sizes need not be whole; far beyond floats it is 0."""
    for first in (1, 2, 3.5, 5, 10, 20.25, 100, 400):
        for second in (1, 2, 3.5, 40, 400):
            expected = min(1, 2 / special.binom(first + second, first))
            assert distributions.split_p(first, second) == pytest.approx(expected, rel=1e-10)
    assert distributions.split_p(1e5, 1e5) == 0


def test_the_rank_test_is_scipy_s() -> None:
    """Exact and not, with ties and without, of unlike sizes; nothing is known where all values are equal."""
    rng = np.random.default_rng(1)
    for number in range(200):
        first, second = rng.integers(1, 40, 2)
        one, other = rng.normal(size=first), rng.normal(size=second) + rng.choice([0, 0.5, 3])
        if number % 3 == 0:
            one, other = one.round(1), other.round(1)
        expected = stats.mannwhitneyu(one, other).pvalue
        assert distributions.rank_test(one, other) == pytest.approx(expected, rel=1e-10), number
    assert np.isnan(distributions.rank_test(np.ones(9), np.ones(12)))
