"""What paces steps, and what only delays them."""

import numpy as np
import pytest

from nsysprof.core.arrays import Floats, Ints
from nsysprof.waits.paced import MIN_STEPS, Pacing, pacing

MS = 1_000_000
Ns = Ints


def ns(values: Floats) -> Ns:
    """Times in ms as whole ns."""
    return np.rint(values * MS).astype(np.int64)


def varied(seed: int, mean: float, spread: float, count: int = 20) -> Floats:
    """Times in ms of so many steps."""
    return np.maximum(np.random.default_rng(seed).normal(mean, spread, count), 0.01)


def timer(seed: int, count: int = 20) -> Pacing:
    """Steps that sleep until 40 ms are over, and oversleep by some 10 µs."""
    work, late = varied(seed, 6, 0.5, count), varied(seed + 1, 0.06, 0.03, count)
    return pacing(ns(40 + late), ns(40 - work + late))


@pytest.mark.parametrize("seed", range(20))
def test_a_timer_paces(seed: int) -> None:
    """The step takes 40 ms whatever its work takes."""
    found = timer(seed)
    assert found.paced
    assert found.slope == pytest.approx(-1, abs=0.3)
    assert found.steps == 20
    assert found.period_ns == pytest.approx(40.06 * MS, abs=0.05 * MS)
    assert found.work_spread_ns > 3 * found.step_spread_ns


@pytest.mark.parametrize("seed", range(20))
def test_a_constant_sleep_paces_nothing(seed: int) -> None:
    """Steps take as much longer as their work does; so do those with a wait that varies by itself, or a busy loop."""
    work = varied(seed, 6, 0.5)
    for sleep in (varied(seed + 1, 10, 0.03), varied(seed + 1, 10, 2), np.full(20, 10.0), varied(seed + 1, 10, 0.5)):
        assert not pacing(ns(work + sleep), ns(sleep)).paced
    assert not pacing(ns(np.full(20, 16.0)), ns(np.full(20, 10.0))).paced


@pytest.mark.parametrize("seed", range(10))
def test_a_camera_paces(seed: int) -> None:
    """Frames come every 40 ms, each up to some ms late; the work varies by less than that."""
    beats = 40.0 * np.arange(31) + varied(seed, 2, 1, 31)
    step, work = np.diff(beats), varied(seed + 1, 3, 0.1, 30)
    assert pacing(ns(step), ns(step - work)).paced


@pytest.mark.parametrize("period", [37.0, 43.0])
def test_steps_at_no_round_rate_follow_no_clock(period: float) -> None:
    """The same at a rate that no clock has."""
    beats = period * np.arange(31) + varied(0, 2, 1, 31)
    step, work = np.diff(beats), varied(1, 3, 0.1, 30)
    assert not pacing(ns(step), ns(step - work)).paced


def test_a_wait_that_hides_a_part_of_the_work_paces_nothing() -> None:
    """A loader that works meanwhile: the wait gets shorter by a half of what the work takes longer."""
    work = varied(3, 6, 0.5)
    assert not pacing(ns(10 + work / 2), ns(10 - work / 2)).paced


def test_steps_that_are_too_long_for_the_pace_are_left_out() -> None:
    """A camera of 25 frames per second; a few steps took longer, and did not wait."""
    work = np.append(varied(5, 20, 3, 30), varied(6, 55, 2, 8))
    step = np.maximum(work, 40)
    found = pacing(ns(step), ns(step - work))
    assert (found.paced, found.steps, found.period_ns) == (True, 30, 40 * MS)


def test_few_steps_show_nothing() -> None:
    """Fewer than eight, or fewer than half that wait."""
    assert timer(1, MIN_STEPS).paced
    assert not timer(1, MIN_STEPS - 1).paced
    work = varied(7, 6, 0.5, 40)
    waited = np.where(np.arange(40) < 19, 40 - work, 0)
    assert not pacing(ns(work + waited), ns(waited)).paced
    assert pacing(np.empty(0, np.int64), np.empty(0, np.int64)) == Pacing(paced=False, steps=0)


def test_many_steps_are_sampled() -> None:
    """Ten thousand take no longer than five hundred."""
    assert timer(1, 10_000).paced
