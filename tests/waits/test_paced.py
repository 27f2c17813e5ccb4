"""What paces steps, and what only delays them."""

from itertools import combinations
from statistics import median

import numpy as np
import pytest

from nsysprof.core.arrays import Floats, Ints
from nsysprof.waits.paced import MIN_STEPS, _slope, clocked, follows_display, paces

MS = 1_000_000
Ns = Ints


def ns(values: Floats) -> Ns:
    """Times in ms as whole ns."""
    return np.rint(values * MS).astype(np.int64)


def varied(seed: int, mean: float, spread: float, count: int = 20) -> Floats:
    """Times in ms of so many steps."""
    return np.maximum(np.random.default_rng(seed).normal(mean, spread, count), 0.01)


def timer(seed: int, count: int = 20) -> bool:
    """Steps that sleep until 40 ms are over, and oversleep by some 10 µs."""
    work, late = varied(seed, 6, 0.5, count), varied(seed + 1, 0.06, 0.03, count)
    return paces(ns(40 + late), ns(40 - work + late))


@pytest.mark.parametrize("seed", range(20))
def test_a_timer_paces(seed: int) -> None:
    """The step takes 40 ms whatever its work takes."""
    assert timer(seed)


@pytest.mark.parametrize("seed", range(20))
def test_a_constant_sleep_paces_nothing(seed: int) -> None:
    """Steps take as much longer as their work does; so do those with a wait that varies by itself, or a busy loop."""
    work = varied(seed, 6, 0.5)
    for sleep in (varied(seed + 1, 10, 0.03), varied(seed + 1, 10, 2), np.full(20, 10.0), varied(seed + 1, 10, 0.5)):
        assert not paces(ns(work + sleep), ns(sleep))
    assert not paces(ns(np.full(20, 16.0)), ns(np.full(20, 10.0)))


@pytest.mark.parametrize("seed", range(10))
def test_a_camera_paces(seed: int) -> None:
    """Frames come every 40 ms, each up to some ms late; the work varies by less than that."""
    beats = 40.0 * np.arange(31) + varied(seed, 2, 1, 31)
    step, work = np.diff(beats), varied(seed + 1, 3, 0.1, 30)
    assert paces(ns(step), ns(step - work))


def test_steps_that_are_too_long_for_the_pace_are_left_out() -> None:
    """A camera of 25 frames per second; a few steps took longer, and did not wait."""
    work = np.append(varied(5, 20, 3, 30), varied(6, 55, 2, 8))
    step = np.maximum(work, 40)
    assert paces(ns(step), ns(step - work))


def test_few_steps_show_nothing() -> None:
    """Fewer than eight, or fewer than half that wait."""
    assert timer(1, MIN_STEPS)
    assert not timer(1, MIN_STEPS - 1)
    work = varied(7, 6, 0.5, 40)
    waited = np.where(np.arange(40) < 19, 40 - work, 0)
    assert not paces(ns(work + waited), ns(waited))
    assert not paces(np.empty(0, np.int64), np.empty(0, np.int64))
    assert not paces(np.full(8, 10), np.ones(8, np.int64))


def test_many_steps_are_sampled() -> None:
    """Ten thousand take no longer than five hundred, which are spread evenly."""
    assert timer(1, 10_000)
    assert not paces(10 * np.arange(1, 1_001), 5 * np.arange(1, 1_001))


@pytest.mark.parametrize(
    ("slope", "noise", "longer", "paced"),
    [
        *((slope, 0, 0, True) for slope in (0.71, 1, 1.29)),  # how much of the work the wait makes up for
        *((slope, 0, 0, False) for slope in (0.69, 1.31)),
        *((1, 1.6, 0, True), (1, 1.7, 0, False)),  # a third of the spread of the work
        *((1, 0, 9_960, True), (1, 0, 10_000, False)),  # work that varies by a thousandth of the step
        (-1, 0, 0, False),
    ],
)
def test_a_wait_paces_where_it_makes_up_for_work(slope: float, noise: float, longer: int, paced: bool) -> None:
    """By as much as the work grows; whatever else changes must be less than the work changes."""
    work = np.arange(21)
    waited = 40 + longer - slope * work + np.resize([noise, -noise], 21)
    step, waited = (np.rint(1_000 * each).astype(np.int64) for each in (work + waited, waited))
    assert paces(step, waited) == paced


@pytest.mark.parametrize("seed", range(10))
def test_slope_is_that_of_its_definition(seed: int) -> None:
    """The median slope of all pairs that differ; 0 of what does not vary."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 9, 12), rng.permutation(12) - rng.integers(0, 3)
    pairs = [(y[b] - y[a]) / (x[b] - x[a]) for a, b in combinations(range(12), 2) if x[a] != x[b]]
    assert _slope(x, y) == pytest.approx(median(pairs))
    assert _slope(x * 0, y) == 0


def beat(rate: float, part: float = 0.01, count: int = 12, away: tuple[float, ...] = (1, -1)) -> Ns:
    """Steps of a clock, each longer or shorter by a part."""
    return np.rint(1e9 / rate * (1 + part * np.resize(away, count))).astype(np.int64)


@pytest.mark.parametrize(
    ("step", "waited", "follows"),
    [
        *((beat(rate), 0.9, True) for rate in (1, 2, 5, 10, 12, 15, 20, 24, 25, 30, 40, 48, 50, 60)),
        *((beat(rate), 0.9, True) for rate in (72, 75, 90, 100, 120, 144, 200, 240, 250, 500, 1_000)),
        (beat(60 * 1.0028), 0.9, True),  # nearly a rate
        (beat(60 / 1.0028), 0.9, True),
        (beat(60 * 1.0035), 0.9, False),
        (beat(60 / 1.0035), 0.9, False),
        (beat(61.5), 0.9, False),
        (beat(60), 0.5, False),  # no more than half of it
        (beat(60), 0.51, True),
        (beat(60, count=7), 0.9, False),
        (beat(60, count=8), 0.9, True),
        (beat(60, 0.055), 0.9, True),  # near to the median
        (beat(60, 0.065), 0.9, False),
        (beat(60, away=(1, -1, 1, -1, 8, -8)), 0.9, True),  # most of them
        (beat(60, away=(1, -1, 8, -8)), 0.9, False),
        (beat(60, away=(1, 1, -1, -1)), 0.9, False),  # neighbours do not make up for each other
        (beat(60, away=(1, -1, 0, 0)), 0.9, True),  # by half of the variance
        (beat(60, away=(-1, -1, 1, 0, 0, 1)), 0.9, False),  # by an eighth
        (beat(60, 0), 0.9, False),  # what does not vary
        (np.append(beat(60, count=1_000), np.repeat(beat(60, 0, count=2) * 9, 5)), 0.9, True),  # beats that are missed
    ],
)
def test_steps_that_follow_a_clock(step: Ns, waited: float, follows: bool) -> None:
    """At a round rate, mostly regular, and short after long; of steps that mostly wait."""
    assert clocked(step, np.rint(step * waited).astype(np.int64)) is follows


@pytest.mark.parametrize(
    ("step", "waited", "follows"),
    [
        *(
            (beat(rate, 0.03, count=24), 0.7, True)
            for rate in (24, 25, 30, 48, 50, 60, 72, 75, 90, 100, 120, 144, 165, 240)
        ),
        (beat(25, 0.03, count=23), 0.7, False),  # too few
        (beat(25, 4e-4, 11, (1, 0, -1)), 0.7, True),  # unless they are exact
        (beat(25, 4e-4, 7, (1, 0, -1)), 0.7, False),
        (beat(25, 6e-4, 11, (1, 0, -1)), 0.7, False),
        (beat(25, 1e-4, 11, (1, 0, 0, -1, 300)), 0.7, True),  # most of them
        (beat(25, 1e-4, 12, (1, 0, -1, 300)), 0.7, False),
        (beat(25 * 1.0004, 1e-4, 11, (1, 0, -1)), 0.7, True),
        (beat(25 * 1.0006, 1e-4, 11, (1, 0, -1)), 0.7, False),
        (beat(25, 4e-4, 11, (1, 0, -1)), 0.5, False),  # no more than half of it
        (beat(20, 4e-4, 11, (1, 0, -1)), 0.7, False),  # no rate of a display
        (beat(25, 0, 11, (1, 0, -1)), 0.7, False),  # what does not vary
    ],
)
def test_steps_that_follow_a_display(step: Ns, waited: float, follows: bool) -> None:
    """Many steps that are regular, or a few that are exact."""
    assert follows_display(step, np.rint(step * waited).astype(np.int64)) is follows


def test_a_clock_is_seen_in_steps_that_follow_each_other() -> None:
    """In more steps than are compared with each other as well."""
    step = beat(144, 0.03, 1_000)
    assert paces(step, np.rint(step * 0.8).astype(np.int64))
