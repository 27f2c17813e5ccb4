"""Summarize samples of times: quantiles, the interval of the median, and warnings."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nsysprof.core.arrays import Floats, Ints
from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError
from nsysprof.statistics.confidence import LEVEL, RESAMPLES, SEED, ConfidenceInterval, median_interval
from nsysprof.statistics.dependence import SIGNIFICANT, Dependence, Drift, dependence, drift

LEAST_SAMPLES = 10
# Correlated samples must be worth so many independent ones for their intervals to hold what they say; see `Summary`.
SURE_FROM = 10
# Of `clock_step`: the longest durations that show it, their rounding error, the range in which it is searched, and the
# share of durations that must be multiples of it.
_MAX_DURATION, _ROUNDING, _MIN_STEP, _MAX_STEP, _MIN_SHARE = 100_000, 3, 16, 4_096, 0.9
ALLOWED_FOR = "accounted for"  # the end of the warning about correlated samples that asks for nothing


@dataclass(frozen=True)
class Summary:
    """The summary of ``n`` samples; times are in the unit of the samples.

    ``interval``: the interval of the median. ``cv``: the standard deviation over the mean; None for one sample or a
    mean of 0. ``p5`` to ``p95``: quantiles, interpolated linearly between neighbours. ``outliers``: the number of
    samples that are far outside the quartiles, by more than three times the interquartile range (Tukey 1977: far out).
    The distance must also exceed 1 % of the median, so that a clock tick is not an outlier. ``order``: the dependence
    of samples on earlier samples. ``drift``: how much the samples grow or shrink. ``warnings``: a line for each doubt
    about the numbers.

    If `sure`, 95 % intervals contain the true median in 93 to 97 of 100 samples from most simulated sources (table in
    docs/statistics.md). All numbers hold only for the run that was sampled.
    """

    n: int
    median: float
    interval: ConfidenceInterval
    mean: float
    cv: float | None
    minimum: float
    p5: float
    p25: float
    p75: float
    p95: float
    maximum: float
    outliers: int
    order: Dependence
    drift: Drift
    warnings: tuple[str, ...]

    @property
    def sure(self) -> bool:
        """Return whether the interval is reliable; otherwise it must not be shown."""
        return self.order.sure and not self.drift.significant


def summarize(
    values: ArrayLike,
    name: str = "samples",
    *,
    step: float = 0.0,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Summary:
    """Summarize samples in the order of measurement; ``name`` identifies them in errors and warnings.

    ``step``: the clock resolution, 0 if unknown. Equal samples and seed give equal results. Raises NsysprofError like
    `check_sample`.
    """
    sample = check_sample(values, name)
    n = len(sample)
    p5, p25, middle, p75, p95 = np.quantile(sample, [0.05, 0.25, 0.5, 0.75, 0.95]).tolist()
    mean = float(sample.mean())
    fence = max(3 * (p75 - p25), 0.01 * middle)
    order, trend = dependence(sample), drift(sample)
    return Summary(
        n=n,
        median=middle,
        interval=median_interval(sample, order, step=step, level=level, resamples=resamples, seed=seed),
        mean=mean,
        cv=float(sample.std(ddof=1)) / mean if n > 1 and mean > 0 else None,
        minimum=float(sample.min()),
        p5=p5,
        p25=p25,
        p75=p75,
        p95=p95,
        maximum=float(sample.max()),
        outliers=int(((sample < p25 - fence) | (sample > p75 + fence)).sum()),
        order=order,
        drift=trend,
        warnings=sample_warnings(name, order, trend),
    )


def check_sample(values: ArrayLike, name: str) -> Floats:
    """Convert samples to float64 in the order of measurement.

    Raises NsysprofError with the name of the sample if there are no values, or if a value is negative, infinite or not
    a number: no value is dropped silently.
    """
    try:
        sample = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise NsysprofError(f"{name}: the samples are not all numbers") from None
    if sample.ndim != 1 or len(sample) == 0:
        raise NsysprofError(f"{name}: there are no samples")
    bad = np.flatnonzero(~(np.isfinite(sample) & (sample >= 0)))
    if len(bad):
        raise NsysprofError(
            f"{name}: {len(bad):,} of {len(sample):,} samples are not valid times, such as "
            f"{sample[bad[0]]:g} at index {bad[0]}",
            "a sample must be finite and not negative: remove missing measurements first",
        )
    return sample


def sample_warnings(name: str, order: Dependence, trend: Drift) -> tuple[str, ...]:
    """Warn of too few, autocorrelated or drifting samples, one line each."""
    lines = []
    if order.n < LEAST_SAMPLES:
        lines.append(f"{name}: n = {order.n} is too few; take {LEAST_SAMPLES} samples or more")
    if order.correlated and order.p < SIGNIFICANT and round(order.effective) < order.n:
        line = (
            f"{name}: samples are autocorrelated (lag 1: {order.lag1:.2f}), effective n = "
            f"{order.effective:,.0f} of {order.n:,}"
        )
        sure = order.effective >= SURE_FROM
        lines.append(f"{line}, {ALLOWED_FOR}" if sure else f"{line}, too few to rely on the intervals")
    if trend.significant and trend.change is not None:
        way = "above" if trend.change > 0 else "below"
        size = format_share(abs(trend.change))
        lines.append(f"{name} drifts: the median of the second half is {size} {way} the median of the first")
    return tuple(lines)


def clock_step(durations: Ints) -> int:
    """Estimate the clock resolution from durations; returns 0 if the durations show none.

    The clocks of many GPUs advance in ticks of 32 ns, and conversion to the host's clock shifts each duration by 1 to 2
    ns. Long durations are left out, because conversion shifts them more. The result is the largest tick that divides
    nearly all distinct durations.
    """
    known = np.unique(durations[(durations > 0) & (durations < _MAX_DURATION)])
    known = known[np.append(True, np.diff(known) > _ROUNDING)[: len(known)]]
    if len(known) < LEAST_SAMPLES:
        return 0
    for step in range(min(int(known[-1]), _MAX_STEP), _MIN_STEP - 1, -1):
        off = np.abs((known + step // 2) % step - step // 2)
        if (off <= _ROUNDING).mean() >= _MIN_SHARE:
            return step
    return 0
