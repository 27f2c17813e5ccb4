"""Ranks that are slower than the others, and single iterations that stand out."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.statistics.confidence import LEVEL
from nsysprof.statistics.dependence import dependence
from nsysprof.statistics.distributions import normal_quantile
from nsysprof.statistics.summary import LEAST_SAMPLES, SURE_FROM, summarize

# What it takes to be called a straggler: this much slower than the median of the others, and surely so. Ratios are of
# equal iterations: how much iterations differ from each other must not hide how much ranks do.
LEAST_SLOWNESS = 0.05
LEAST_Z = 3.5
SLOWER, NOT_SLOWER, NOT_PROVEN = "slower", "not slower", "not proven"
BY_INTERVAL, BY_EACH, BY_SPREAD = "interval", "every iteration", "spread of ranks"
_EXCEPTIONS = 15  # one iteration in so many need not say so where every iteration does
_ENOUGH_RANKS = 5  # for the spread between ranks to say anything
_MOST_OUTLIERS = 20
_FEW_RANKS = 16  # up to here a rank is held against the others without itself
_OUTLIER_Z, _OUTLIER_RATIO = 6.0, 1.2
_TO_SIGMA = 1.4826  # the median absolute deviation of normal samples times this is their standard deviation

Matrix = NDArray[np.float64]


def straggler_rows(own: pd.DataFrame) -> pd.DataFrame:
    """A row per rank of ``own``, which has a column per iteration: own time in ns, NaN where a rank lacks it.

    ``rank``; ``ratio``: the median over iterations of its time over the median of the other ranks in the same
    iteration; ``z``: how far that is from the median rank in robust standard deviations, NaN below five ranks;
    ``low``, ``high``: the interval of the ratio, of ranks from `LEAST_SLOWNESS` above 1 on, so wide that at 95 % it
    holds for all ranks together, or all that the iterations span where every one says so; ``straggler``: the verdict is
    "slower"; ``slower``, ``compared``: in how many of how many iterations its time is longer than that of the others.

    ``verdict`` is "slower", "not slower" or "not proven". Slower is a rank whose interval is above 1 and of iterations
    worth `SURE_FROM` independent ones, or of which every iteration says so (`_each_says_so`), where there are
    `LEAST_SAMPLES` of them, and whose z reaches `LEAST_Z`, where there are five ranks; with neither none is. ``basis``
    says by which. Not slower is one whose ratio is surely below `LEAST_SLOWNESS`.
    """
    values: Matrix = own.to_numpy(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = values / _of_the_others(values)
    ratios[~np.isfinite(ratios)] = np.nan
    ratio = _median(ratios, 1)[:, 0]
    z = robust_z(ratio) if np.isfinite(ratio).sum() >= _ENOUGH_RANKS else np.full(len(ratio), np.nan)
    found = pd.DataFrame({"rank": own.index.to_numpy(), "ratio": ratio, "z": z})
    found["low"], found["high"] = np.nan, np.nan
    verdict, basis = np.full(len(ratio), NOT_PROVEN, object), np.full(len(ratio), "", object)
    for at in np.flatnonzero(np.isfinite(ratio)).tolist():
        mine = ratios[at][np.isfinite(ratios[at])]
        if ratio[at] < 1 + LEAST_SLOWNESS:
            if len(mine) >= LEAST_SAMPLES and _at_most(mine) < 1 + LEAST_SLOWNESS:
                verdict[at] = NOT_SLOWER
            continue
        by = BY_SPREAD
        if len(mine) >= LEAST_SAMPLES:
            level = 1 - (1 - LEVEL) / len(values)  # Bonferroni: the ranks were all looked at
            told = summarize(mine, level=level)
            low, high, by = told.interval.low, told.interval.high, ""
            if low > 1 and told.interval.level >= level and told.order.effective >= SURE_FROM:
                by = BY_INTERVAL
            elif _each_says_so(mine):
                low, high, by = mine.min(), mine.max(), BY_EACH
            found.loc[at, ["low", "high"]] = low, high
        if by and (z[at] >= LEAST_Z or (np.isnan(z[at]) and by != BY_SPREAD)):
            verdict[at], basis[at] = SLOWER, by
    found["straggler"] = verdict == SLOWER
    found["verdict"], found["basis"] = verdict, basis
    found["slower"], found["compared"] = (ratios > 1).sum(axis=1), np.isfinite(ratios).sum(axis=1)
    return found


def _each_says_so(ratios: Matrix) -> bool:
    """Whether a rank is slower in every iteration, and in all but one in 15 by `LEAST_SLOWNESS` and half of what is
    usual of it.

    Iterations that resemble the ones before them can be worth too few for an interval. But what separates the rank from
    the others is then far more than what iterations differ by. In simulated fleets of 2 to 8 ranks and 15 iterations
    whose times vary by 3 %, each depending on the one before (phi from 0 to 0.8), it finds a rank that is 1.27 times
    slower in 99 of 100, and names one of equal ranks in less than 1 of 100.
    """
    low = max(float(np.median(ratios) + 1) / 2, 1 + LEAST_SLOWNESS)
    return bool((ratios > 1).all() and (ratios < low).sum() <= len(ratios) // _EXCEPTIONS)


def _at_most(ratios: Matrix) -> float:
    """The upper limit at 95 % of the median: the order statistic of a sign test, iterations counted by their worth."""
    reach = normal_quantile(LEVEL) / 2 / np.sqrt(dependence(ratios).effective)
    return float(np.quantile(ratios, min(1.0, 0.5 + reach), method="higher"))


def robust_z(values: Matrix) -> Matrix:
    """How many robust standard deviations each value is from the median; 0 for all where more than half are equal."""
    known = values[np.isfinite(values)]
    middle = np.median(known)
    sigma = _TO_SIGMA * float(np.median(np.abs(known - middle)))
    if sigma == 0:
        # more than half are equal: what the others differ by on average has to do
        sigma = float(np.mean(np.abs(known - middle))) * 1.2533
    return (values - middle) / sigma if sigma > 0 else np.where(np.isfinite(values), 0.0, np.nan)


def outlier_rows(own: pd.DataFrame) -> pd.DataFrame:
    """Single iterations of single ranks that take long against the other ranks and against what is usual of the rank.

    ``rank, iteration, own_ns, expected_ns, ratio, z``, the longest first, `_MOST_OUTLIERS` at most; none below three
    ranks. ``z`` is of the logarithm of the ratio, over all ranks and iterations.
    """
    names = ("rank", "iteration", "own_ns", "expected_ns", "ratio", "z")
    values: Matrix = own.to_numpy(np.float64)
    if len(values) < 3 or values.shape[1] < 3:
        return pd.DataFrame(columns=names)
    with np.errstate(invalid="ignore", divide="ignore"):
        log = np.log(np.where(values > 0, values, np.nan))
    log -= _median(log, 0)
    log -= _median(log, 1)
    z = robust_z(log)
    hits = np.argwhere((z > _OUTLIER_Z) & (log > np.log(_OUTLIER_RATIO)))
    order = np.argsort(-log[hits[:, 0], hits[:, 1]], kind="stable")
    rank, iteration = hits[order][:_MOST_OUTLIERS].T
    ratio = np.exp(log[rank, iteration])
    return pd.DataFrame(
        {
            "rank": own.index.to_numpy()[rank],
            "iteration": own.columns.to_numpy()[iteration],
            "own_ns": values[rank, iteration].astype(np.int64),
            "expected_ns": np.rint(values[rank, iteration] / ratio).astype(np.int64),
            "ratio": ratio,
            "z": z[rank, iteration],
        }
    )


def _of_the_others(values: Matrix) -> Matrix:
    """For each rank and iteration the median of the other ranks; of all ranks where they are many."""
    if len(values) > _FEW_RANKS or len(values) < 2:
        return np.broadcast_to(_median(values, 0), values.shape).copy()
    return np.stack([_median(np.delete(values, at, axis=0), 0)[0] for at in range(len(values))])


def _median(values: Matrix, axis: int) -> Matrix:
    """The median along an axis of what is there, NaN where nothing is, with that axis kept."""
    known = np.isfinite(values).any(axis=axis, keepdims=True)
    found: Matrix = np.nanmedian(np.where(known, values, 0.0), axis=axis, keepdims=True)
    return np.where(known, found, np.nan)
