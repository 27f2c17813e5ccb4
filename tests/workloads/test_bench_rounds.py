"""Samples in turn: the order of a round, when there are enough, warm-up, and what a failure does to the others."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _bench_rounds import Rule, Series


def rule(samples: int = 30, ci_width: float | None = None, min_sample_ns: float = 0) -> Rule:
    """When there are enough samples."""
    from _bench_rounds import Rule

    return Rule(samples, ci_width, min_sample_ns)


def series(call: Callable[[], float]) -> Series:
    """A series of these durations."""
    from _bench_rounds import Series

    return Series(call)


def rounds(some: list[Series], how: Rule, seed: str = "0", watch: Any = lambda: (None, False)) -> None:
    """Fill the series; whatever fails ends alone."""
    from _bench_rounds import run_rounds

    run_rounds(some, how, seed, watch, lambda failed: [failed])


def test_every_round_has_everyone_once_in_an_order_of_its_own() -> None:
    """Also the round before the first, which is not kept; the order is drawn from the seed."""
    calls: list[str] = []

    def named(name: str) -> Series:
        def call() -> float:
            calls.append(name)
            return 5.0

        return series(call)

    some = [named(name) for name in "abcd"]
    rounds(some, rule(40))
    orders = [tuple(calls[at : at + 4]) for at in range(0, len(calls), 4)]
    assert len(orders) == 41
    assert all(sorted(order) == list("abcd") for order in orders)
    assert len(set(orders)) > 10
    firsts = Counter(order[0] for order in orders)
    assert max(firsts.values()) < 25  # nobody always comes first
    for one, name in zip(some, "abcd", strict=True):
        assert one.rounds == list(range(40))
        assert one.places == [order.index(name) for order in orders[1:]]
    again = list(calls)
    calls.clear()
    rounds([named(name) for name in "abcd"], rule(40))
    assert calls == again
    calls.clear()
    rounds([named(name) for name in "abcd"], rule(40), seed="1")
    assert calls != again


def test_drift_hits_all_alike() -> None:
    """A clock that slows down by half during the sweep leaves the ratio of two equal series at one."""
    now = itertools.count()
    drifting = [series(lambda: 1000.0 + next(now)) for _ in range(2)]
    rounds(drifting, rule(500))
    first, second = (statistics.median(each.latency_ns) for each in drifting)
    assert first / second == pytest.approx(1, abs=0.01)


def noise(width: float, seed: int) -> Iterator[float]:
    """Skewed latencies around 1000."""
    generator = random.Random(seed)
    while True:
        yield 1000 * math.exp(generator.gammavariate(2, width / 2))


def test_it_stops_when_every_interval_is_narrow() -> None:
    """Not before 20 rounds, and the noisiest decides; the interval that it stopped at is that narrow."""
    from _bench_rounds import relative_interval

    calm, noisy = noise(0.001, 1), noise(0.1, 2)
    only_calm = [series(lambda: next(calm)) for _ in range(2)]
    rounds(only_calm, rule(5000, ci_width=0.01))
    assert [len(each.latency_ns) for each in only_calm] == [20, 20]
    both = [series(lambda: next(calm)), series(lambda: next(noisy))]
    rounds(both, rule(5000, ci_width=0.01))
    count = len(both[1].latency_ns)
    assert len(both[0].latency_ns) == count
    assert 100 < count < 5000
    assert relative_interval(both[1].latency_ns) <= 0.01 < relative_interval(both[1].latency_ns[:-20])


def test_it_stops_at_the_count_when_the_interval_never_gets_narrow() -> None:
    """The count that was asked for is the most there is."""
    wild = noise(2, 3)
    one = series(lambda: next(wild))
    rounds([one], rule(45, ci_width=0.0001))
    assert len(one.latency_ns) == 45


def test_the_interval_of_the_median_covers_it() -> None:
    """In at least 95 % of skewed samples, and in few more than that; there is none where there are too few."""
    from _bench_rounds import median_interval, relative_interval

    generator = random.Random(7)
    true = math.log(2)
    for size in (20, 51, 100):
        held = 0
        for _ in range(2000):
            low, high = median_interval([generator.expovariate(1) for _ in range(size)])
            held += low <= true <= high
        assert 0.94 <= held / 2000 <= 0.975, size
    assert median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == (1, 6)
    assert relative_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == 5 / 3.5
    assert relative_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == math.inf


def test_the_interval_allows_for_dependence() -> None:
    """Samples that hang together are worth fewer; independent ones are not requested twice as many."""
    from _bench_rounds import median_interval, relative_interval

    def times(depends: float, seed: int) -> list[float]:
        generator, news, found = random.Random(seed), 0.0, []
        for _ in range(100):
            news = depends * news + generator.gauss(0, math.sqrt(1 - depends**2))
            found.append(1000 + 10 * news)
        return found

    def widening(depends: float) -> float:
        ratios = []
        for seed in range(200):
            values = times(depends, seed)
            low, high = median_interval(values)
            ratios.append(relative_interval(values) * statistics.median(values) / (high - low))
        return statistics.median(ratios)

    assert 1 <= widening(0) < 1.3
    assert widening(0.8) > 1.8


def test_warm_up_ends_when_it_is_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the medians of the last calls and of those before agree to 2 %; at the limit where they never do."""
    import _bench_rounds

    monkeypatch.setattr(_bench_rounds, "WARM_LEAST_S", 0)
    falling = itertools.chain((1000 / number for number in range(1, 8)), itertools.repeat(100.0))
    calls, until = _bench_rounds.warm_up(series(lambda: next(falling)), rule())
    assert until == "stable"
    assert 12 <= calls <= 17
    monkeypatch.setattr(_bench_rounds, "WARM_MOST_CALLS", 200)
    growing = (1.1**number for number in itertools.count())
    assert _bench_rounds.warm_up(series(lambda: next(growing)), rule()) == (201, "limit")


def test_a_short_call_is_repeated_within_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a sample lasts as long as asked; the latency stays that of one call."""
    import _bench_rounds

    monkeypatch.setattr(_bench_rounds, "WARM_LEAST_S", 0)
    times = itertools.chain([1e9], itertools.cycle([1900.0, 2000.0, 2100.0]))  # it was compiled in the first
    short = series(lambda: next(times))
    _bench_rounds.warm_up(short, rule(min_sample_ns=20_000))
    assert short.calls_per_sample == 10
    rounds([short], rule(3))
    assert all(1900 < ns < 2100 for ns in short.latency_ns)
    long = series(lambda: 50_000.0)
    _bench_rounds.warm_up(long, rule(min_sample_ns=20_000))
    assert long.calls_per_sample == 1
    endless = series(lambda: 0.0)
    _bench_rounds.warm_up(endless, rule(min_sample_ns=20_000))
    assert endless.calls_per_sample == 1000


def test_throttled_samples_are_kept_but_do_not_count() -> None:
    """Each has its mark and its state; the interval is made without them."""
    states = itertools.cycle([({"throttle": 0x40}, True), ({"throttle": 0}, False)])
    times = itertools.cycle([1000.0, 5000.0])  # the round before the first takes one
    one = series(lambda: next(times))
    rounds([one], rule(10), watch=lambda: next(states))
    assert one.latency_ns == [5000.0, 1000.0] * 5
    assert one.throttled == [True, False] * 5
    assert one.gpu == [{"throttle": 0x40}, {"throttle": 0}] * 5
    assert len(one.counted) == 5


@pytest.mark.parametrize("seed", range(8))
def test_a_failure_ends_a_series_and_its_twin_and_nobody_else(seed: int) -> None:
    """At once, also where the twin has its turn later in that round; the others get all their samples."""
    from _bench_rounds import run_rounds

    seen: list[Series] = []
    calls = itertools.count()

    def failing() -> float:
        if next(calls) == 7:
            raise RuntimeError("out of luck")
        return 10.0

    def going_with_it() -> float:
        assert not seen
        return 10.0

    bad, twin, good = series(failing), series(going_with_it), series(lambda: 20.0)

    def failed(one: Series) -> list[Series]:
        seen.append(one)
        return [bad, twin]

    run_rounds([bad, twin, good], rule(30), str(seed), lambda: (None, False), failed)
    assert seen == [bad]
    assert str(bad.failure) == "out of luck"
    assert len(bad.latency_ns) == 6
    assert len(good.latency_ns) == 30
