"""Quartiles of many groups at once, and shares of the normal distribution and Student's t.

scipy is loaded when a share is asked for, because loading it takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Quartiles:
    """The smallest value, the quartiles and the largest value of each group, int64 in the unit of the values.

    Quartiles interpolate linearly between neighbours, as `numpy.quantile` does, and are rounded to the unit.
    A group without values has zeros.
    """

    low: NDArray[np.int64]
    first: NDArray[np.int64]
    median: NDArray[np.int64]
    third: NDArray[np.int64]
    high: NDArray[np.int64]

    @property
    def iqr(self) -> NDArray[np.int64]:
        """Return the distance between the first and the third quartile."""
        return self.third - self.first


def grouped_quartiles(group: NDArray[np.integer], values: NDArray[np.int64], count: int) -> Quartiles:
    """Compute the `Quartiles` of ``values`` in ``count`` groups; ``group`` holds a code below ``count`` per value."""
    ordered, size = sorted_in_groups(group, values)[1], np.bincount(group, minlength=count)
    return Quartiles(*(quartile_of_sorted(ordered, size, number) for number in range(5)))


def quartile_of_sorted(
    ordered: NDArray[np.int64], size: NDArray[np.int64], number: int = 2
) -> NDArray[np.int64]:
    """Compute one of the fields of `Quartiles`, by its number, of groups that follow one another, each sorted."""
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


def sorted_in_groups(
    group: NDArray[np.integer], values: NDArray[np.int64]
) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Sort groups (not negative) and values by group and then by value.

    Group and value are packed into one int64 where they fit, because sorting plain integers in place is ten times
    faster than finding an order of two keys.
    """
    if len(values) == 0:
        return group, values
    low = int(values.min())
    bits = (int(values.max()) - low).bit_length()
    if bits + int(group.max()).bit_length() > 62:
        order = np.lexsort((values, group))
        return group[order], values[order]
    packed = group.astype(np.int64)
    packed <<= bits
    packed += values
    packed -= low
    packed.sort()
    groups = packed >> bits
    packed &= (1 << bits) - 1
    packed += low
    return groups, packed


Floats = NDArray[np.float64]


def normal_below(values: Floats | Sequence[float]) -> Floats:
    """Return the share of the standard normal distribution below each value."""
    from scipy.special import ndtr  # noqa: PLC0415 (slow to import)

    shares: Floats = ndtr(np.asarray(values, np.float64))
    return shares


def normal_quantile(share: float) -> float:
    """Return the value with that share of the standard normal distribution below it."""
    from scipy.special import ndtri  # noqa: PLC0415 (slow to import)

    return float(ndtri(share))


def t_outside(t: float, freedom: float) -> float:
    """Return the share of Student's t that is at least as far from 0 as ``t``: a two-sided p-value."""
    from scipy.special import stdtr  # noqa: PLC0415 (slow to import)

    return float(2 * stdtr(freedom, -abs(t)))


def t_quantile(level: float, freedom: float) -> float:
    """Return how far from 0 Student's t lies with probability ``level``; fewer than 1 degree of freedom counts as 1."""
    from scipy.special import stdtrit  # noqa: PLC0415 (slow to import)

    return float(stdtrit(max(freedom, 1.0), (1 + level) / 2))


def split_p(first: float, second: float) -> float:
    """Return the probability that two samples of these sizes from one distribution do not overlap."""
    from scipy.special import binom  # noqa: PLC0415 (slow to import)

    return float(min(1.0, 2 / binom(first + second, first)))
