"""The summary of one sample, number by number."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsysprof.errors import NsysprofError
from nsysprof.statistics.confidence import BLOCKS, RANGE
from nsysprof.statistics.summary import check_sample, clock_step, summarize
from nsysprof.trace.report import open_report, read_tables
from tests.kit.coverage import SOURCES, one_run
from tests.statistics.test_dependence import autoregressive


def test_summary_of_known_samples() -> None:
    """1 to 21 in some order: every number by hand."""
    values = np.random.default_rng(1).permutation(np.arange(1, 22))
    found = summarize(values)
    assert (found.n, found.median, found.mean, found.minimum, found.maximum) == (21, 11, 11, 1, 21)
    assert (found.p5, found.p25, found.p75, found.p95) == (2, 6, 16, 20)
    assert found.cv == pytest.approx(np.sqrt(38.5) / 11)
    assert found.outliers == 0
    assert found.warnings == ()
    assert found.interval.low < 11 < found.interval.high
    assert found == summarize(values.astype(np.float64))


def test_intervals_of_coarse_samples_hold_in_95_of_100() -> None:
    """Samples on four steps of the clock: limits on whole steps would hold in all of 100, and be a step wide."""
    assert 0.93 <= one_run(SOURCES[7], 100, 250, 1).held <= 0.98
    rng = np.random.default_rng(4)
    found = summarize(32 * np.round(rng.normal(156.3, 0.6, 400)), step=32)
    assert found.median == 32 * 156
    assert found.interval.holds(32 * 156.3)
    assert found.interval.high - found.interval.low < 16


def test_equal_samples_may_stand_for_all_of_a_step() -> None:
    """Nothing tells where in it; without a known step they are what they are."""
    found = summarize([5_024] * 100, step=32).interval
    assert (found.low, found.high) == pytest.approx((5_008, 5_040), abs=4)
    found = summarize([5_024] * 100).interval
    assert (found.low, found.high) == (5_024, 5_024)


def test_regimes_make_no_interval() -> None:
    """A stretch of samples that lie a little above the rest: neighbours hardly show it, blocks do."""
    values = np.random.default_rng(2).normal(1000, 10, 100)
    assert [summarize(values[:n]).sure for n in (44, 45, 100)] == [False, True, True]
    values[40:70] += 15
    found = summarize(values)
    assert (1 - found.order.phi) / (1 + found.order.phi) > 0.5
    assert not found.drift.significant
    assert not found.sure


def test_outliers_are_far_out() -> None:
    """Quartiles 98 and 102: more than 12 beyond them is far out, 12 is not."""
    values = [96, 97, 98, 98, 99, 100, 101, 102, 102, 103, 104]
    assert summarize([*values, 114, 86]).outliers == 0
    assert summarize([*values, 115, 85]).outliers == 2


def test_a_tick_of_the_clock_is_no_outlier() -> None:
    """Most samples are the same, so that the quartiles do not differ: then 1 % of the median is the fence."""
    assert summarize([10_000] * 30 + [10_032, 9_968, 10_100]).outliers == 0
    assert summarize([10_000] * 30 + [10_101]).outliers == 1


@pytest.mark.parametrize(
    ("values", "level", "cv"), [([7], 0, None), ([0], 0, None), ([6, 10], 0.5, pytest.approx(2 / 2**0.5 / 4))]
)
def test_one_and_two_samples(values: list[int], level: float, cv: float | None) -> None:
    """What cannot be told is None, and the interval says that it is sure of nothing or of half."""
    found = summarize(values, "math")
    assert [found.minimum, found.median, found.maximum] == [min(values), sum(values) / len(values), max(values)]
    assert (found.interval.level, found.interval.method, found.cv) == (level, RANGE, cv)
    assert found.order.lag1 is None
    assert found.drift.change is None
    assert found.warnings == (f"math: n = {len(values)} is too few; take 10 samples or more",)


def test_dependent_samples_are_told() -> None:
    """How many they are worth, and whether that is enough."""
    long, short = (1000 + 50 * autoregressive(np.random.default_rng(2), 0.7, (n,)) for n in (200, 20))
    found = summarize(long, "flash")
    assert found.interval.method == BLOCKS
    [line] = found.warnings
    assert line.startswith("flash: samples are autocorrelated (lag 1: 0.")
    assert line.endswith("accounted for")
    [line, *_] = summarize(short).warnings
    assert line.endswith("of 20, too few to rely on the intervals")


def test_drift_is_told() -> None:
    """With its size and direction."""
    rng = np.random.default_rng(3)
    lines = summarize(1000 * np.linspace(1, 1.3, 80) * rng.normal(1, 0.02, 80), "math").warnings
    assert lines[-1].startswith("math drifts: the median of the second half is 1")
    assert lines[-1].endswith("% above the median of the first")


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_every_summary_is_finite_and_ordered(values: list[int]) -> None:
    """Whatever the samples are, down to zeros and one value many times."""
    found = summarize(values, resamples=100)
    ladder = [found.minimum, found.p5, found.p25, found.median, found.p75, found.p95, found.maximum]
    assert ladder == sorted(ladder)
    assert found.minimum <= found.interval.low <= found.median <= found.interval.high <= found.maximum
    assert found.cv is None or np.isfinite(found.cv)
    assert 1 <= found.order.effective <= found.n


def test_checked_sample_keeps_the_order_and_the_input() -> None:
    """Lists, int64 and float32 become float64, in the order they came; nothing is changed in place."""
    values = np.array([3, 1, 2], np.int64)
    assert check_sample(values, "math").tolist() == [3.0, 1.0, 2.0]
    summarize(values)
    assert values.tolist() == [3, 1, 2]
    with pytest.raises(NsysprofError, match="math: there are no samples"):
        check_sample([[1, 2], [3, 4]], "math")


def test_bad_samples_are_refused() -> None:
    """With the name, how many, and where the first one is."""
    with pytest.raises(NsysprofError) as refused:
        summarize([1, 2, float("-inf"), -1], "flash S=1024")
    assert refused.value.message == "flash S=1024: 2 of 4 samples are not valid times, such as -inf at index 2"


def test_the_step_of_a_clock_is_read_off_durations() -> None:
    """Multiples of 32 ns that conversion moved by up to 2 ns; other durations show no step, and nor do few."""
    rng = np.random.default_rng(1)
    ticks = rng.integers(20, 3_000, 200)
    moved = 32 * ticks + rng.integers(-2, 3, 200)
    assert clock_step(moved) == 32
    assert clock_step(np.append(moved, rng.integers(200_000, 10**9, 5_000))) == 32
    assert clock_step(1_000 * rng.integers(1, 90, 500)) == 1_000
    assert clock_step(rng.integers(500, 90_000, 500)) == 0
    assert clock_step(np.full(1_000, 1_024)) == 0
    assert clock_step(np.empty(0, np.int64)) == 0


@pytest.mark.parametrize("name", ["run.sqlite", "block.sqlite", "two-processes.sqlite"])
def test_the_clock_of_an_h200_steps_by_32_ns(name: str) -> None:
    """As the shipped reports show."""
    with open_report(Path(__file__).parents[2] / "traces" / name) as report:
        assert read_tables(report).clock_step == 32
