"""Times of steps alone: which are slow, and what else they show."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from nsysprof.core.arrays import Floats, Ints
from nsysprof.statistics.judge import (
    CLASSES,
    PERIODIC,
    SECOND,
    SLOW,
    SLOW_ONES,
    TYPICAL,
    WARM_UP,
    _second_kind,
    count_warm_up,
    judge,
)

ROOT = Path(__file__).parents[2]


def times(noise: Floats, **longer: float) -> Ints:
    """Steps of 10 ms with this noise; ``at7=2.0``: step 7 takes twice as long."""
    factor = np.exp(noise)
    for name, by in longer.items():
        factor[int(name.removeprefix("at"))] *= by
    return np.rint(10_000_000 * factor).astype(np.int64)


@pytest.fixture
def noise() -> Floats:
    """What 300 steps differ by, 1 %."""
    return 0.01 * np.random.default_rng(7).standard_normal(300)


def test_slow_steps_are_found_and_no_others(noise: Floats) -> None:
    """Three of 300, of 12 % and more."""
    judged = judge(times(noise, at50=1.12, at123=1.5, at299=4.0))
    assert np.flatnonzero(judged.of != TYPICAL).tolist() == [50, 123, 299]
    assert (judged.of[[50, 123, 299]] == SLOW).all()
    assert 1.03 <= judged.limit < 1.12
    assert np.abs(judged.expected / 10_000_000 - 1).max() < 0.01


def test_times_that_are_too_spread_are_not_judged() -> None:
    """They differ by orders of magnitude: no step is slow, and no limit of billions is told."""
    judged = judge(times(8 * np.random.default_rng(3).standard_normal(200)))
    assert (judged.doubt, judged.limit) == ("too spread", np.inf)
    assert not np.isin(judged.of, SLOW_ONES).any()
    assert judge(times(np.zeros(5))).doubt == "too few"
    assert judge(times(np.zeros(50))).doubt == ""


@pytest.mark.parametrize(
    ("ms", "first"),
    [
        ([30, 10, 10, 11], 1),  # few: the first one is clearly longer than all others
        ([12, 10, 11, 10], 0),
        ([30, 10], 0),  # of two nobody can say which is usual
        ([30, 30, 10, 10, 10, 10], 0),
        ([90, 50, *[10, 11] * 9], 2),
        ([40, *[10, 10, 10, 25] * 6], 1),  # three times the median is warm-up, however much steps differ
        ([11, *[10, 11] * 9], 0),
    ],
)
def test_warm_up_by_times(ms: list[int], first: int) -> None:
    """The same rule for all commands."""
    assert count_warm_up(np.array(ms) * 1_000_000) == first


def test_warm_up_ends_with_the_first_steps_that_are_not_slow(noise: Floats) -> None:
    """A typical one in between does not end it."""
    judged = judge(times(noise, at0=9.0, at1=3.0, at3=1.6))
    assert judged.warm_up == 4
    assert (judged.of[:4] == WARM_UP).all()
    assert (judged.of[4:] == TYPICAL).all()


@pytest.mark.parametrize("period", [2, 4, 10, 50, 100])
def test_periods_are_found(noise: Floats, period: int) -> None:
    """Every so many steps one takes 40 % longer, beginning anywhere."""
    span = times(noise + 0.34 * ((np.arange(300) + 3) % period == 0))
    judged = judge(span)
    assert judged.period == period
    assert np.flatnonzero(judged.of == PERIODIC).tolist() == np.flatnonzero((np.arange(300) + 3) % period == 0).tolist()


def test_a_second_kind_is_no_crowd_of_outliers(noise: Floats) -> None:
    """A quarter of the steps by chance takes 30 % longer; one that is slow beyond both is slow."""
    more = np.random.default_rng(3).random(300) < 0.25
    judged = judge(times(noise + 0.26 * more, at77=3.0))
    assert ((judged.of == SECOND) == (more & (np.arange(300) != 77))).all()
    assert judged.of[77] == SLOW


def test_changes_and_drift_are_levels(noise: Floats) -> None:
    """From step 200 on 20 % longer: one change. 20 % from beginning to end: drift, and no step is slow."""
    judged = judge(times(noise + 0.18 * (np.arange(300) >= 200)))
    [(at, by)] = judged.changes
    assert at == 200
    assert by == pytest.approx(np.exp(0.18), rel=0.01)
    assert (judged.of == TYPICAL).all()
    levels = judge(times(noise + 0.5 * (np.arange(300) >= 100) + 1.0 * (np.arange(300) >= 200)))
    assert [at for at, _ in levels.changes] == [100, 200]
    assert levels.drift is None
    drifting = judge(times(noise + np.linspace(0, 0.18, 300)))
    assert drifting.changes == ()
    assert drifting.drift == pytest.approx(np.expm1(0.09), rel=0.1)
    assert (drifting.of == TYPICAL).all()


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_few_steps_are_not_judged(count: int) -> None:
    """All are typical, whatever they take."""
    judged = judge(np.arange(1, count + 1) ** 9)
    assert judged.of.tolist() == [TYPICAL] * count
    assert np.isinf(judged.limit)


def test_equal_steps_are_typical_and_a_longer_one_is_slow() -> None:
    """Times without any spread."""
    assert (judge(np.full(50, 1000)).of == TYPICAL).all()
    assert np.flatnonzero(judge(np.append(np.full(50, 1000), 1040)).of == SLOW).tolist() == [50]
    assert (judge(np.zeros(50, np.int64)).of == TYPICAL).all()


def test_a_step_for_each_unit_gives_the_same_classes(noise: Floats) -> None:
    """Nothing depends on the unit of time."""
    span = times(noise, at9=1.3, at200=2.0)
    assert (judge(span).of == judge(span * 1000).of).all()


@pytest.fixture(scope="module")
def study() -> ModuleType:
    """The script of the study."""
    spec = importlib.util.spec_from_file_location("false_alarms", ROOT / "analysis/slow-steps/false_alarms.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_at_most_one_in_a_hundred_steady_steps_is_called_slow(study: ModuleType) -> None:
    """Of simulated sources, but for a second kind that is rarer than a tenth by chance; a limit a fifth lower fails."""
    for row in study.rates(2000, (100, 400)):
        assert row["per_100"] <= 1 or row["source"] == "two kinds, 15 %", row


def test_the_manual_has_the_table_of_the_study() -> None:
    """Each row of false_alarms.csv, rounded."""
    page = (ROOT / "docs" / "step-times.md").read_text(encoding="utf-8")
    lines = (ROOT / "analysis/slow-steps/false_alarms.csv").read_text(encoding="utf-8").splitlines()[1:]
    by_source: dict[str, list[str]] = {}
    for line in lines:
        source, *_, rate = line.rsplit(",", 4)
        by_source.setdefault(source.strip('"'), []).append(f"{float(rate):.2f}")
    for source, cells in by_source.items():
        assert f"| {source} | {' | '.join(cells)} |" in page
    assert len(CLASSES) == 8


@pytest.mark.parametrize("count", [8, 10, 12])
def test_few_steady_steps_are_no_two_kinds(count: int) -> None:
    """Three of eight that lie a little apart are chance; and fewer than eight after warm-up raise no warning."""
    rng = np.random.default_rng(1)
    slow = sum(
        int(np.isin(judge(np.rint(1e6 * (1 + rng.exponential(0.1, count))).astype(np.int64)).of, SLOW_ONES).sum())
        for _ in range(300)
    )
    assert slow <= 0.01 * 300 * count


@pytest.mark.parametrize(
    ("many", "few", "apart", "noise", "kinds"),
    [
        (90, 10, 0.5, 0.01, False),
        (89, 11, 0.5, 0.01, True),
        (89, 11, 0.02, 0.01, False),
        (89, 11, 0.45, 0.1, False),  # a gap of 0.27 beside middle halves of 0.1
        (89, 11, 0.5, 0.1, True),  # of 0.32
        (16, 3, 0.5, 0.01, True),
        (17, 2, 0.5, 0.01, False),
        (12, 3, 0.5, 0.01, False),
    ],
)
def test_a_second_kind_is_more_than_a_tenth_and_clearly_apart(
    many: int, few: int, apart: float, noise: float, kinds: bool
) -> None:
    """Of 16 steps or more, and three at least; the rest differs by nothing."""
    spread = noise * np.linspace(-1, 1, many)
    found = _second_kind(np.concatenate([spread, apart + noise * np.linspace(-1, 1, few)]))
    assert found[:many].tolist() == [0.0] * many
    assert found[many:].tolist() == pytest.approx([apart if kinds else 0.0] * few)
