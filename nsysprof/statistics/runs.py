"""Compute intervals and tests between runs: each run (process) counts as one sample.

Samples of one process vary less than samples of several processes, because processes differ in memory layout, launching
core and GPU temperature. So the medians of the runs are averaged and compared, and dependence between the samples of a
run does not matter. Few runs show little about the variation between runs. An interval must be valid for its own point,
so it uses almost no data of other points. A test among many points shrinks each variance towards the common variance.
The test passes only if the interval excludes 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nsysprof.core.arrays import Floats
from nsysprof.statistics.confidence import LEVEL, ConfidenceInterval
from nsysprof.statistics.distributions import t_outside, t_quantile

RUNS = "runs"  # the method of intervals
WITHIN = "within this run"
# By how much few variances may seem more alike than they are, in variances of their logarithms by chance; and the
# share of the usual variance that none is taken to be below. Chosen by simulation (docs/statistics.md).
_CAUTION, _LEAST_SHARE = 0.5, 0.5
# The most degrees of freedom that an interval takes from the other points. With none, runs in two modes agree by chance
# in one case of four; with more, the interval of a point that varies more than the others is too short (same page).
_LENT = 0.3
# Samples of a run whose median is one of those that runs may be compared by: fewer samples in two modes agree on one
# of them in most runs, and in the other in a few, which three runs do not show.
LEAST_PER_RUN = 14
# The share of a step of the clock within which 95 of 100 rounded values are of what they stand for.
_ROUNDED = 0.475
_LEAST_VARIANCE, _LEAST_TICK = 1e-12, 0.05  # of logarithms; in steps of the clock
# What recordings of an unchanged program differ by: public ones of one GPU by up to 3.7 %. Where the GPU is busy for
# less than `HOST_PACED` of a step the host sets the pace, which no two runs do alike.
USUAL_NOISE, HOST_NOISE, HOST_PACED = 0.05, 0.25, 0.8


@dataclass(frozen=True)
class OverRuns:
    """The mean of a logarithm over ``runs``, with its standard error.

    ``freedom``: the degrees of freedom of Student's t for the mean divided by its error. ``shared``: error and degrees
    of freedom of the test, with the variance between runs shrunk towards the common variance. ``rounding``: the error
    (in logarithms) that the clock resolution causes in all runs alike, as half the width of its 95 % interval.
    ``sure``: whether the interval is reliable, which requires `LEAST_PER_RUN` samples in each run.
    """

    mean: float
    error: float
    freedom: float
    runs: int
    rounding: float = 0.0
    sure: bool = True
    shared: tuple[float, float] | None = None

    @property
    def value(self) -> float:
        """The geometric mean over the runs."""
        return float(np.exp(self.mean))

    def half(self, level: float = LEVEL) -> float:
        """Return half the width of the interval, on a logarithmic scale."""
        return max(t_quantile(level, self.freedom) * self.error, self.rounding)

    def interval(self, level: float = LEVEL) -> ConfidenceInterval:
        """The interval of the geometric mean."""
        half = self.half(level)
        return ConfidenceInterval(float(np.exp(self.mean - half)), float(np.exp(self.mean + half)), level, RUNS)

    def _tests(self) -> list[tuple[float, float]]:
        """Error (including the clock's error) and degrees of freedom: first of the interval, then of the test."""
        both = ((self.error, self.freedom), self.shared or (self.error, self.freedom))
        return [(max(error, self.rounding / t_quantile(LEVEL, freedom)), freedom) for error, freedom in both]

    @property
    def p(self) -> float:
        """Return the two-sided p-value for a logarithm of 0; it is below 0.05 only if the interval excludes 1."""
        own, shared = (
            t_outside(self.mean / error, freedom) if error else float(self.mean == 0)
            for error, freedom in self._tests()
        )
        return shared if own < 1 - LEVEL else max(own, shared)

    def detectable(self, alpha: float, power: float = 0.8) -> float:
        """Return the smallest change, as a share, that interval and test at ``alpha`` would find with this power."""
        reaches = [
            (t_quantile(1 - limit, freedom) + t_quantile(2 * power - 1, freedom)) * error
            for limit, (error, freedom) in zip((1 - LEVEL, alpha), self._tests(), strict=True)
        ]
        return math.expm1(min(max(reaches), 50.0))

    def less(self, base: OverRuns) -> OverRuns:
        """Return the difference of the means (minus ``base``), with degrees of freedom by Welch and Satterthwaite."""
        own = _welch((self.error, self.freedom), (base.error, base.freedom))
        shared = _welch(self.shared, base.shared) if self.shared and base.shared else None
        rounding = float(np.hypot(self.rounding, base.rounding))
        return OverRuns(self.mean - base.mean, *own, min(self.runs, base.runs), rounding, shared=shared)

    def against_new(self, value: float) -> OverRuns:
        """Compare one more run with the mean; the error of the difference includes the variation of this run."""
        wider = float(np.sqrt(self.runs + 1))
        shared = (self.shared[0] * wider, self.shared[1]) if self.shared else None
        return replace(self, mean=value - self.mean, error=self.error * wider, shared=shared)


def _welch(*sides: tuple[float, float]) -> tuple[float, float]:
    """The standard error and the degrees of freedom of a difference, from those of both sides."""
    squares, freedoms = np.array(sides).T
    squares = squares**2
    freedom = float(squares.sum() ** 2 / (squares**2 / freedoms).sum()) if squares.any() else 1.0
    return float(np.sqrt(squares.sum())), freedom


def scope_of(runs: int) -> str:
    """The scope of an interval: `over 3 runs`, or `within this run`."""
    return f"over {runs} runs" if runs > 1 else WITHIN


def rounding_of(step: float, value: float) -> float:
    """Return the `OverRuns.rounding` of a time, given the clock resolution ``step``."""
    return float(np.log1p(_ROUNDED * step / value))


def enough_per_run(*sides: Mapping[int, Floats]) -> bool:
    """Return whether every run of every side has `LEAST_PER_RUN` samples."""
    return min(len(values) for side in sides for values in side.values()) >= LEAST_PER_RUN


def run_medians(samples: Mapping[int, Floats]) -> dict[int, float]:
    """Return the logarithm of the median of each run with positive samples."""
    medians = {run: float(np.median(values)) for run, values in samples.items() if len(values)}
    return {run: float(np.log(median)) for run, median in medians.items() if median > 0}


def over_runs(logs: Sequence[Sequence[float]], roundings: Sequence[float] | None = None) -> list[OverRuns]:
    """Average the logarithms of each quantity over its runs (at least two); each of ``logs`` is one quantity.

    The interval uses the variance of the quantity itself, plus a third of a degree of freedom from all quantities.
    Otherwise, medians that agree by chance would make the interval narrow. The test uses variances that are shrunk
    towards the common variance (`moderated_variances`). If there is only one quantity, its own variance is used.
    ``roundings``: see `rounding_of`.
    """
    roundings = roundings or [0.0] * len(logs)
    counts = np.array([len(each) for each in logs])
    floor = np.maximum((_LEAST_TICK * (np.array(roundings) / _ROUNDED)) ** 2, _LEAST_VARIANCE)
    own = np.maximum([float(np.var(each, ddof=1)) for each in logs], floor)
    lent = _LENT * (len(logs) > 1)
    drawn = (lent * _usual(own, counts - 1.0) + (counts - 1) * own) / (lent + counts - 1)
    shared, freedoms = moderated_variances(own, counts - 1.0)
    return [
        OverRuns(
            float(np.mean(each)),
            float(np.sqrt(drawn[place] / len(each))),
            len(each) - 1 + lent,
            len(each),
            roundings[place],
            shared=(float(np.sqrt(shared[place] / len(each))), float(freedoms[place])),
        )
        for place, each in enumerate(logs)
    ]


def _usual(variances: Floats, freedoms: Floats) -> float:
    """The typical variance, if variances have few degrees of freedom: their median over the median of chi-squared."""
    median_of_chi = (1 - 2 / (9 * float(np.median(freedoms)))) ** 3  # Wilson and Hilferty, over the degrees of freedom
    return float(np.median(variances)) / median_of_chi


def moderated_variances(variances: Floats, freedoms: Floats) -> tuple[Floats, Floats]:
    """Shrink variances with few degrees of freedom towards a common variance; return the variances and their degrees of
    freedom.

    Source: Smyth (2004), Linear models and empirical Bayes methods for assessing differential expression in microarray
    experiments, Statistical Applications in Genetics and Molecular Biology 3, article 3, section 6.2. If the true
    variances follow a scaled inverse chi-squared distribution, the mean and variance of the log sample variances
    determine its scale and degrees of freedom. A t test with the sum of both degrees of freedom is then exact. The
    variances never get more degrees of freedom than all variances have together. No variance is assumed to be below
    half of the common variance. The reason: if runs have two states, medians of few runs can agree by chance, which
    this distribution does not model.
    """
    count, all_freedom = len(variances), float(freedoms.sum())
    if count < 2:
        return variances, freedoms
    half = (freedoms / 2).tolist()
    logs = np.log(variances) - [_digamma(each) - math.log(each) for each in half]
    chance = float(np.mean([_trigamma(each) for each in half]))
    excess = max(float(np.var(logs, ddof=1)) - chance, 0.0) + _CAUTION * chance / np.sqrt(count - 1)
    prior = 2 * _inverse_trigamma(excess)
    usual = float(np.exp(logs.mean() + _digamma(prior / 2) - math.log(prior / 2)))
    drawn: Floats = (prior * usual + freedoms * variances) / (prior + freedoms)
    drawn = np.maximum(drawn, _LEAST_SHARE * _usual(variances, freedoms))
    return drawn, np.minimum(prior + freedoms, all_freedom)


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = value by bisection; trigamma falls with x."""
    low, high = 1e-4, 1e8
    for _ in range(100):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if _trigamma(middle) > value else (low, middle)
    return low


def _digamma(x: float) -> float:
    """The derivative of the logarithm of gamma: by recurrence to x of at least 8, then by series (Abramowitz and Stegun
    6.3).
    """
    below = 0.0
    while x < 8:
        below += 1 / x
        x += 1
    square = 1 / x**2
    return math.log(x) - 0.5 / x - square * (1 / 12 - square * (1 / 120 - square / 252)) - below


def _trigamma(x: float) -> float:
    """The derivative of `_digamma`, computed in the same way (6.4.6, 6.4.12)."""
    below = 0.0
    while x < 8:
        below += 1 / x**2
        x += 1
    square = 1 / x**2
    return below + 1 / x + square / 2 + square / x * (1 / 6 - square * (1 / 30 - square / 42))
