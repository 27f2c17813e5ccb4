"""The normal and Student's t distribution; scipy is loaded when one is asked for, because loading it takes long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def normal_below(values: Floats | Sequence[float]) -> Floats:
    """The share of the standard normal distribution below each value."""
    from scipy.special import ndtr  # noqa: PLC0415 (slow to import)

    shares: Floats = ndtr(np.asarray(values, np.float64))
    return shares


def normal_quantile(share: float) -> float:
    """The value with that share of the standard normal distribution below it."""
    from scipy.special import ndtri  # noqa: PLC0415 (slow to import)

    return float(ndtri(share))


def t_outside(t: float, freedom: float) -> float:
    """The share of Student's t that is at least as far from 0 as ``t``: a two-sided p-value."""
    from scipy.special import stdtr  # noqa: PLC0415 (slow to import)

    return float(2 * stdtr(freedom, -abs(t)))


def t_quantile(level: float, freedom: float) -> float:
    """How far from 0 Student's t lies with a probability of ``level``; fewer than 1 degree of freedom counts as 1."""
    from scipy.special import stdtrit  # noqa: PLC0415 (slow to import)

    return float(stdtrit(max(freedom, 1.0), (1 + level) / 2))


def split_p(first: float, second: float) -> float:
    """How probable it is that two samples of these sizes, drawn from one distribution, do not overlap; 1 at most."""
    from scipy.special import binom  # noqa: PLC0415 (slow to import)

    return float(min(1.0, 2 / binom(first + second, first)))
