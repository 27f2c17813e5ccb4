"""Takes samples of several things in turn, so that whatever drifts meanwhile drifts for all of them. Without torch.

In each round every series gives one sample, in an order that is drawn anew; a series and its A/A twin are two of them.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Warm is who has been at work for this long, and whose last calls take as long as those before them.
WARM_CALLS, WARM_CHANGE, WARM_LEAST_S = 5, 0.02, 0.1
WARM_MOST_S, WARM_MOST_CALLS = 3.0, 5000
# A series may stop at a narrow interval after so many rounds, and is asked again after so many more.
LEAST_ROUNDS, ROUNDS_BETWEEN = 20, 10
MOST_CALLS_PER_SAMPLE = 1000
# So many batches, and the 97.5 % quantile of Student's t with a degree of freedom less.
_BATCHES, _STUDENT = 10, 2.262

State = Mapping[str, Any]


@dataclass
class Series:
    """Samples of one thing. ``call`` makes one call and returns its duration in ns, above zero; a sample is the mean
    of ``calls_per_sample`` of them. It raises what ends the series, which then keeps it as ``failure``.

    All lists have an entry for each sample: ns per call, round, place in the round, state of the GPU, throttled or not.
    """

    call: Callable[[], float]
    calls_per_sample: int = 1
    latency_ns: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    gpu: list[State | None] = field(default_factory=list)
    throttled: list[bool] = field(default_factory=list)
    failure: Exception | None = None

    def sample(self) -> float:
        """Nanoseconds per call of one sample."""
        return sum(self.call() for _ in range(self.calls_per_sample)) / self.calls_per_sample

    @property
    def counted(self) -> list[float]:
        """The samples that were not taken while the GPU was throttled."""
        return [ns for ns, left_out in zip(self.latency_ns, self.throttled, strict=True) if not left_out]


@dataclass(frozen=True)
class Rule:
    """When a sample is long enough, and when there are enough.

    That is after ``samples`` rounds, or earlier once the 95 % interval of every median is narrower than ``ci_width``
    times the median.
    """

    samples: int
    ci_width: float | None
    min_sample_ns: float


def warm_up(series: Series, rule: Rule) -> tuple[int, str]:
    """Call it until it is as fast as it gets, and then decide how many calls make a sample.

    The first call does not count: it may compile something. Returns the number of calls, and "stable", or "limit"
    where time or calls ran out before.
    """
    series.call()
    times: list[float] = []
    begin, until = time.perf_counter(), "limit"
    while True:
        times.append(series.call())
        lasted = time.perf_counter() - begin
        if lasted >= WARM_LEAST_S and _stable(times):
            until = "stable"
            break
        if lasted >= WARM_MOST_S or len(times) >= WARM_MOST_CALLS:
            break
    typical = statistics.median(times[-WARM_CALLS:])
    series.calls_per_sample = min(max(1, math.ceil(rule.min_sample_ns / max(typical, 1))), MOST_CALLS_PER_SAMPLE)
    return 1 + len(times), until


def _stable(times: Sequence[float]) -> bool:
    if len(times) < 2 * WARM_CALLS:
        return False
    now = statistics.median(times[-WARM_CALLS:])
    before = statistics.median(times[-2 * WARM_CALLS : -WARM_CALLS])
    return abs(now - before) <= WARM_CHANGE * before


def run_rounds(
    series: Sequence[Series],
    rule: Rule,
    seed: str,
    watch: Callable[[], tuple[State | None, bool]],
    failed: Callable[[Series], Sequence[Series]],
) -> None:
    """Fill the series, round by round. A round before the first is not kept: each was warmed up without the others.

    ``watch`` is asked after each sample how the GPU is, and whether it is throttled. Where a series fails, ``failed``
    tells which of them end with it, itself among them, or raises what ends all of them.
    """
    order = random.Random(seed)
    going = list(series)
    for number in range(-1, rule.samples):
        for place, one in enumerate(order.sample(going, len(going))):
            if not any(one is each for each in going):  # it has ended in this round, with another one
                continue
            try:
                latency = one.sample()
            except Exception as failure:
                one.failure = failure
            if one.failure is not None:  # after the exception, which holds the memory of what failed
                ended = failed(one)
                going = [each for each in going if not any(each is other for other in ended)]
                continue
            if number < 0:
                continue
            state, throttled = watch()
            one.latency_ns.append(round(latency, 1))
            one.rounds.append(number)
            one.places.append(place)
            one.gpu.append(state)
            one.throttled.append(throttled)
        if not going or _enough(going, number + 1, rule.ci_width):
            return


def _enough(series: Sequence[Series], rounds: int, ci_width: float | None) -> bool:
    if ci_width is None or rounds < LEAST_ROUNDS or rounds % ROUNDS_BETWEEN:
        return False
    return all(relative_interval(one.counted) <= ci_width for one in series)


def relative_interval(values: Sequence[float]) -> float:
    """The width of the 95 % interval of the median over the median; infinite for too few values.

    The wider of two: the one for independent values, and the one of the medians of consecutive batches, which vary more
    where values depend on the ones before them (batch means; Conway 1963).
    """
    low, high = median_interval(values)
    if not math.isfinite(high):
        return math.inf
    return max(high - low, _width_by_batches(values)) / statistics.median(values)


def _width_by_batches(values: Sequence[float]) -> float:
    """The width of Student's interval of the medians of batches; 0 where there are too few values for batches."""
    size = len(values) // _BATCHES
    if size < 2:
        return 0.0
    first = len(values) - size * _BATCHES
    medians = [statistics.median(values[start : start + size]) for start in range(first, len(values), size)]
    return 2 * _STUDENT * statistics.stdev(medians) / math.sqrt(_BATCHES)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median between two of the values, so that it holds for every distribution.

    As near to the middle as the binomial distribution allows (David and Nagaraja, Order Statistics, 7.1); 0 and
    infinity for fewer than six values.
    """
    rank = _rank(len(values))
    if rank == 0:
        return 0.0, math.inf
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


@functools.cache
def _rank(count: int) -> int:
    """The highest rank that the median of ``count`` values is below in at most 2.5 % of the cases."""
    ways, below, rank = 1, 0, 0
    while (below + ways) * 40 <= 2**count:
        below += ways
        ways = ways * (count - rank) // (rank + 1)
        rank += 1
    return rank
