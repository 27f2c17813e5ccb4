"""Compute the quartiles of many groups at once, the probabilities and quantiles of distributions, and the rank test.

scipy also has these functions, but would be a third of the installed size. Tests compare the results with scipy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from nsysprof.core.arrays import AnyInts, Floats, Ints, Mask, slices
from nsysprof.core.parallel import sort


@dataclass(frozen=True)
class Quartiles:
    """The smallest value, the quartiles and the largest value of each group, int64 in the unit of the values.

    Quartiles are interpolated linearly, like `numpy.quantile`, and rounded to integers. A group without values has
    zeros.
    """

    low: Ints
    first: Ints
    median: Ints
    third: Ints
    high: Ints

    @property
    def iqr(self) -> Ints:
        """Return the distance between the first and third quartile."""
        return self.third - self.first


@dataclass(frozen=True)
class Groups:
    """Rows grouped by a non-negative ``code``, for sorting columns group by group.

    ``codes`` are the distinct codes, sorted, and ``size`` the number of rows of each.
    """

    code: AnyInts
    codes: Ints
    size: Ints

    @classmethod
    def of(cls, code: AnyInts) -> Groups:
        """Group the rows by code."""
        most = int(code.max(initial=0))
        if most < 4 * len(code):
            size = np.bincount(code)
            codes = np.flatnonzero(size)
            return cls(code, codes, size[codes])
        if most < 1 << 31:
            code = code.astype(np.int32, copy=False)  # sorts in half of the time
        ordered = code.copy()
        sort(ordered)
        first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(code)])
        return cls(code, ordered[first].astype(np.int64), np.diff(first, append=len(code)))

    def take(self, rows: Mask) -> Groups:
        """Keep only the given rows of these groups; a group may become empty."""
        some, size = Groups.of(self.code[rows]), np.zeros(len(self.codes), np.int64)
        size[np.searchsorted(self.codes, some.codes)] = some.size
        return Groups(some.code, self.codes, size)

    def sort(self, values: AnyInts, out: Ints | None = None) -> Ints:
        """Sort a column within each group, and return it group by group; ``out`` is memory to use, maybe the column.

        Group and value are packed into one int64 if they fit, because numpy sorts integers ten times faster than two
        keys.
        """
        low = int(values.min()) if len(values) else 0
        bits, code = (int(values.max(initial=low)) - low).bit_length(), self.code
        if bits + int(code.max(initial=0)).bit_length() > 62:
            return values[np.lexsort((values, code))].astype(np.int64)
        number = np.empty(len(values), np.int64) if out is None else out
        for part in slices(len(number)):
            key = code[part].astype(np.int64)
            key <<= bits
            key -= low
            np.add(key, values[part], out=number[part])
        sort(number)
        number &= (1 << bits) - 1
        number += low
        return number

    def quartiles(self, values: Ints, count: int) -> Quartiles:
        """Compute the `Quartiles` of a column for each code below ``count``."""
        ordered, size = self.sort(values), np.zeros(count, np.int64)
        size[self.codes] = self.size
        return Quartiles(*(quartile_of_sorted(ordered, size, number) for number in range(5)))


def grouped_quartiles(group: AnyInts, values: Ints, count: int) -> Quartiles:
    """Compute the `Quartiles` of ``values`` in ``count`` groups; ``group`` has a code below ``count`` per value."""
    return Groups.of(group).quartiles(values, count)


def quartile_of_sorted(ordered: Ints, size: Ints, number: int = 2) -> Ints:
    """Compute one field of `Quartiles` (by its number) from values that are sorted group by group."""
    first = np.cumsum(size) - size
    some = size > 0
    if len(ordered) == 0:  # empty groups need one value to point at
        ordered = np.zeros(1, np.int64)
    place = number * np.maximum(size - 1, 0)  # in quarters
    whole, part = place >> 2, place & 3
    low = ordered[np.where(some, first + whole, -1)]
    if number in (0, 4):
        return np.where(some, low, 0)
    high = ordered[np.where(some, first + np.minimum(whole + 1, size - 1), -1)]
    quarter = (high - low) * part  # to the nearest unit, halves to even
    step = quarter >> 2
    rest = quarter & 3
    step += (rest == 3) | ((rest == 2) & ((low + step) & 1 == 1))
    return np.where(some, low + step, 0)


_MOST_TERMS = 10_000  # of a continued fraction, which takes some dozens
_EXACT_BELOW = 9  # the rank test counts all orders where a side has fewer values, and no two are equal


def normal_below(values: Floats | Sequence[float]) -> Floats:
    """Return the share of the standard normal distribution below each value."""
    each = np.asarray(values, np.float64)
    return np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in each.ravel().tolist()]).reshape(each.shape)


def normal_quantile(share: float) -> float:
    """Return the quantile of the standard normal distribution for a share."""
    if not 0 < share < 1:
        return math.nan if math.isnan(share) else math.copysign(math.inf, share - 0.5)
    return NormalDist().inv_cdf(share)


def t_outside(t: float, freedom: float) -> float:
    """Return the probability that Student's t is at least as far from 0 as ``t``: a two-sided p-value.

    The result is the regularised incomplete beta function I_x(freedom / 2, 1 / 2) with x = freedom / (freedom + t²)
    (Abramowitz and Stegun 26.5.27).
    """
    if math.isnan(t) or math.isinf(t):
        return math.nan if math.isnan(t) else 0.0
    a, b, x, rest = freedom / 2, 0.5, freedom / (freedom + t * t), t * t / (freedom + t * t)
    if x < (a + 1) / (a + b + 2):
        return _beta_share(a, b, x, rest)
    return 1 - _beta_share(b, a, rest, x)


def _beta_share(a: float, b: float, x: float, rest: float) -> float:
    """I_x(a, b) by its continued fraction (Abramowitz and Stegun 26.5.8), evaluated as Lentz does; rest is 1 - x."""
    if x == 0:
        return 0.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    tiny = 1e-300
    up, down = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    value = down
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            down = 1 / ((1 + term * down) or tiny)
            up = (1 + term / up) or tiny
            value *= up * down
        if abs(up * down - 1) < 1e-16:
            break
    return front * value / a


@cache
def t_quantile(level: float, freedom: float) -> float:
    """Return the distance from 0 within which Student's t lies with probability ``level`` (``freedom`` at least 1)."""
    low, high, freedom, outside = 0.0, 1.0, max(freedom, 1.0), 1 - level
    while t_outside(high, freedom) > outside and high < 1e300:
        low, high = high, high * 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_outside(middle, freedom) > outside else (low, middle)
    return high


def split_p(first: float, second: float) -> float:
    """Return the probability that two samples of these sizes from one distribution do not overlap."""
    orders = math.lgamma(first + second + 1) - math.lgamma(first + 1) - math.lgamma(second + 1)
    return min(1.0, 2 * math.exp(-orders))


def rank_test(one: Floats, other: Floats) -> float:
    """Return the two-sided p-value of the Mann-Whitney test, NaN if all values are equal.

    The p-value is exact (all orders are counted) if a side has at most 8 values and all are distinct. Otherwise, it is
    from the normal distribution, corrected for ties and continuity.
    """
    first, second = len(one), len(other)
    values, ties = np.unique(np.concatenate([one, other]), return_counts=True)
    behind = np.cumsum(ties) - (ties - 1) / 2  # the mean rank of equal values
    wins = float(behind[np.searchsorted(values, one)].sum()) - first * (first + 1) / 2
    wins = max(wins, first * second - wins)
    if min(first, second) < _EXACT_BELOW and len(values) == first + second:
        counts = _orders_by_wins(first, second)
        return min(1.0, 2 * sum(counts[int(wins) :]) / sum(counts))
    both = first + second
    tied = float((ties.astype(np.float64) ** 3 - ties).sum())
    spread = math.sqrt(first * second / 12 * (both + 1 - tied / (both * (both - 1))))
    if spread == 0:
        return math.nan
    return min(1.0, math.erfc((wins - first * second / 2 - 0.5) / spread / math.sqrt(2)))


def _orders_by_wins(first: int, second: int) -> list[int]:
    """The number of orders of two samples for each number of pairs that the first wins: a Gaussian binomial."""
    first, second = sorted((first, second))
    counts = [1] + [0] * (first * second)
    for size in range(1, first + 1):
        for wins in range(len(counts) - 1, second + size - 1, -1):
            counts[wins] -= counts[wins - second - size]
        for wins in range(size, len(counts)):
            counts[wins] += counts[wins - size]
    return counts
