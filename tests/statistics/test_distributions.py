"""Grouped quartiles against numpy's own, exact on int64."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from nsysprof.statistics.distributions import Quartiles, grouped_quartiles, sorted_in_groups

Ints = NDArray[np.int64]


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


def test_sorted_in_groups_equals_lexsort() -> None:
    """Packing and unpacking loses nothing, for any code type, negative values and values of 2^56."""
    dtypes: tuple[type[np.integer], ...] = (np.uint8, np.uint16, np.int32, np.int64)
    for dtype in dtypes:
        rng = np.random.default_rng(7)
        group = rng.integers(0, 200, 500).astype(dtype)
        for low, high in ((-5, 5), (2**56, 2**56 + 9), (-(2**40), 2**40), (-(2**62), 2**62)):
            values = rng.integers(low, high, 500)
            order = np.lexsort((values, group))
            groups, ordered = sorted_in_groups(group, values)
            assert np.array_equal(groups, group[order]), (dtype, low)
            assert np.array_equal(ordered, values[order]), (dtype, low)
