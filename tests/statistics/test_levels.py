"""Levels over runs: planted changes are found at their place, and noise of any kind makes none."""

from collections.abc import Callable

import numpy as np
import pytest

from nsysprof.statistics.levels import find_levels

NOISE = 0.0035  # the usual standard deviation between runs, of analysis/between-runs
RUNS, SERIES = 40, 60
Draw = Callable[[np.random.Generator, int], np.ndarray]
KINDS: dict[str, Draw] = {
    "normal": lambda rng, count: rng.normal(size=count),
    "heavy tails": lambda rng, count: rng.standard_t(4, count) / np.sqrt(2),
    "two kinds of runs": lambda rng, count: np.where(rng.random(count) < 0.3, 1.8, 0.0) + 0.1 * rng.normal(size=count),
}


def scale(rng: np.random.Generator) -> float:
    """The noise of a program: a third of a percent as a rule, up to 3.7 %."""
    return float(min(np.exp(rng.normal(np.log(NOISE), 0.9)), 0.037))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("change", "least"), [(0.10, 0.95), (0.05, 0.80)])
def test_planted_changes_are_found_within_a_run(kind: str, change: float, least: float) -> None:
    """Of a change anywhere in 40 runs, slower or faster, the first run behind it is named, or one next to it."""
    rng, found = np.random.default_rng(1), 0
    for _ in range(SERIES):
        at = int(rng.integers(4, RUNS - 4))
        logs = scale(rng) * KINDS[kind](rng, RUNS)
        logs[at:] += np.log1p(change) * rng.choice([1, -1])
        found += any(abs(start - at) <= 1 for start in find_levels(logs).starts[1:])
    assert found >= least * SERIES


@pytest.mark.parametrize("kind", KINDS)
def test_noise_alone_has_one_level(kind: str) -> None:
    """At most five of a hundred series without a change have one, or a drift."""
    rng = np.random.default_rng(2)
    levels = [find_levels(scale(rng) * KINDS[kind](rng, RUNS)) for _ in range(SERIES)]
    assert sum(len(each.starts) > 1 or each.slope != 0 for each in levels) <= 0.05 * SERIES


def test_a_drift_is_no_step() -> None:
    """What grows by half a percent from run to run has a slope and one level; a step on it is still found."""
    rng = np.random.default_rng(3)
    logs = 0.005 * np.arange(RUNS) + NOISE * rng.normal(size=RUNS)
    levels = find_levels(logs)
    assert levels.starts == (0,)
    assert levels.slope == pytest.approx(0.005, rel=0.1)
    logs[25:] += 0.1
    levels = find_levels(logs)
    assert levels.starts == (0, 25)
    assert levels.slope == pytest.approx(0.005, rel=0.2)


def test_a_run_that_the_next_ones_take_back_is_odd() -> None:
    """A disturbed run makes no level, and moves none."""
    logs = NOISE * np.random.default_rng(4).normal(size=RUNS)
    logs[12] += 0.3
    levels = find_levels(logs)
    assert (levels.starts, np.flatnonzero(levels.odd).tolist()) == ((0,), [12])
    assert abs(levels.value[0]) < NOISE


def test_the_newest_run_alone_makes_a_level_where_it_stands_out() -> None:
    """One run is enough for what is far outside of the noise, so that a gate need not wait; and 3 % are not."""
    logs = NOISE * np.random.default_rng(5).normal(size=RUNS)
    assert find_levels(np.append(logs, 0.12)).starts == (0, RUNS)
    assert find_levels(np.append(logs, 0.03)).starts == (0,)


@pytest.mark.parametrize(
    ("times", "starts"),
    [([1], (0,)), ([1, 1.04], (0,)), ([1, 2], (0, 1)), ([1, 1, 1], (0,)), ([3, 1, 1.01, 1], (0, 1))],
)
def test_few_runs(times: list[float], starts: tuple[int, ...]) -> None:
    """Few runs are judged by what runs usually differ by."""
    levels = find_levels(np.log(times))
    assert levels.starts == starts
    assert not levels.known


def test_runs_of_one_state_raise_the_noise() -> None:
    """What three pairs of the same commit differ by is noise, even if other neighbours differ by less."""
    logs = np.tile([0.0, 0.0, 0.05, 0.05], 6)
    states = [None, f"{1}", f"{1}", None] * 6
    assert find_levels(logs, states).noise > 0.02
    assert find_levels(logs, states).starts == (0,)


def test_ten_thousand_runs_take_no_square_time() -> None:
    """Thousands of runs keep their one change, with as many candidates as hundreds have."""
    logs = NOISE * np.random.default_rng(6).normal(size=6_000)
    logs[4_000:] += 0.05
    assert find_levels(logs).starts == (0, 4_000)
