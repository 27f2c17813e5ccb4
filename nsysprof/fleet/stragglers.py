"""Ranks that are slower than the others, and single iterations that stand out."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.statistics.resampling import LEVEL
from nsysprof.statistics.summary import LEAST_SAMPLES, summarize

# What it takes to be called a straggler: this much slower than the median of the others, and surely so. Ratios are of
# equal iterations: how much iterations differ from each other must not hide how much ranks do.
LEAST_SLOWNESS = 0.05
LEAST_Z = 3.5
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
    holds for all ranks together; ``straggler``: that interval is above 1, where there are `LEAST_SAMPLES` iterations,
    and the z reaches `LEAST_Z`, where there are five ranks; with neither none is.
    """
    values: Matrix = own.to_numpy(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = values / _of_the_others(values)
    ratios[~np.isfinite(ratios)] = np.nan
    ratio = _median(ratios, 1)[:, 0]
    z = robust_z(ratio) if np.isfinite(ratio).sum() >= _ENOUGH_RANKS else np.full(len(ratio), np.nan)
    found = pd.DataFrame({"rank": own.index.to_numpy(), "ratio": ratio, "z": z})
    found["low"], found["high"] = np.nan, np.nan
    slow = np.flatnonzero(ratio >= 1 + LEAST_SLOWNESS)
    straggler = np.zeros(len(ratio), bool)
    for at in slow.tolist():
        mine = ratios[at][np.isfinite(ratios[at])]
        apart = np.isnan(z[at]) or z[at] >= LEAST_Z
        if len(mine) < LEAST_SAMPLES:
            straggler[at] = z[at] >= LEAST_Z  # False for NaN
            continue
        level = 1 - (1 - LEVEL) / len(values)  # Bonferroni: the ranks were all looked at
        interval = summarize(mine, level=level).interval
        found.loc[at, ["low", "high"]] = interval.low, interval.high
        straggler[at] = apart and interval.low > 1 and interval.level >= level
    found["straggler"] = straggler
    return found


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
