"""Numbers in the names of steps: which have a price, and which only count."""

import numpy as np
import pytest

from nsysprof.statistics.judge import SLOW, judge
from nsysprof.steps.features import _is_feature, fit_features


def test_numbers_in_names_are_what_steps_cost() -> None:
    """Tokens of prefill and of decode, each with its slope; the count of the steps is none of them."""
    random = np.random.default_rng(0)
    tokens = np.where(random.random(300) < 0.15, random.integers(1, 8, 300) * 1024, 0)
    decoded = random.integers(1, 64, 300)
    span = (5e6 + 9000 * tokens + 20_000 * decoded) * np.exp(0.03 * random.standard_normal(300))
    span[[50, 222]] *= 1.6
    names = [f"execute_{a}_context_{at}_generation_{b}" for at, (a, b) in enumerate(zip(tokens, decoded, strict=True))]
    fit = fit_features(names, np.arange(300), span.astype(np.int64))
    assert fit is not None
    assert [each.name for each in fit.features] == ["execute", "generation"]
    for each, true in zip(fit.features, (9000, 20_000), strict=True):
        assert each.low_ns <= true <= each.high_ns
        assert each.high_ns - each.low_ns < 0.2 * true
    assert fit.explained > 0.9
    judged = judge(span.astype(np.int64), fit.fitted)
    assert np.flatnonzero(judged.of == SLOW).tolist() == [50, 222]


def test_a_number_that_others_add_up_to_has_no_price_of_its_own() -> None:
    """`total_90_new_30_old_60`: the line is that of the first two, and each has the whole of its cost."""
    rng = np.random.default_rng(3)
    new, old = rng.integers(1, 500, 100), rng.integers(1, 500, 100)
    names = [f"new_{a}_old_{b}_total_{a + b}" for a, b in zip(new, old, strict=True)]
    span = np.rint((1e6 + 1e3 * new + 2e3 * old) * np.exp(rng.normal(0, 0.01, 100))).astype(np.int64)
    fit = fit_features(names, np.arange(100), span)
    assert fit is not None
    assert [each.name for each in fit.features] == ["new", "old"]
    assert [each.ns for each in fit.features] == pytest.approx([1e3, 2e3], rel=0.05)


def test_a_number_without_a_sure_price_is_left_out() -> None:
    """Of three numbers one costs nothing: the others keep their prices, whatever it is."""
    rng = np.random.default_rng(11)
    new, seed, old = (rng.integers(1, 500, 200) for _ in range(3))
    names = [f"new_{a}_seed_{b}_old_{c}" for a, b, c in zip(new, seed, old, strict=True)]
    span = np.rint((1e6 + 1e3 * new + 2e3 * old) * np.exp(rng.normal(0, 0.02, 200))).astype(np.int64)
    fit = fit_features(names, np.arange(200), span)
    assert fit is not None
    assert [each.name for each in fit.features] == ["new", "old"]
    assert [each.ns for each in fit.features] == pytest.approx([1e3, 2e3], rel=0.05)
    assert all(each.low_ns < each.ns < each.high_ns for each in fit.features)


def test_numbers_that_explain_nothing_are_silent() -> None:
    """Of a hundred programs whose batch size costs nothing; of two values; of a count of the steps; of ids."""
    random = np.random.default_rng(1)
    found = 0
    for _ in range(100):
        span = (1e6 * np.exp(0.05 * random.standard_normal(60))).astype(np.int64)
        found += fit_features([f"bs_{size}" for size in random.integers(1, 9, 60)], np.arange(60), span) is not None
    assert found == 0
    rising = np.arange(1, 61) * 1_000_000
    assert fit_features([f"step {at}" for at in range(60)], np.arange(60), rising) is None
    assert fit_features(["bs_1", "bs_2"], np.arange(60) % 2, rising) is None
    assert fit_features([f"id{10**30 + at * 7 % 11}" for at in range(60)], np.arange(60), rising) is None
    sizes = np.arange(60) * 7 % 11 + 1
    assert fit_features([f"bs_{size}" for size in sizes], np.arange(60), np.full(60, 1_234_567)) is None
    named = [f"{'ab'[at % 2]}{size}" for at, size in enumerate(sizes.tolist())]  # of two kinds
    assert fit_features(named, np.arange(60), sizes * 1_000_000) is None


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        (range(60), False),  # counts the steps
        ([*range(60), 0], True),  # falls once: no count
        (np.arange(60) * 19 // 20, False),  # rises in 19 of 20 steps: still a count
        (np.arange(60) * 4 // 5, True),  # stays as it is in one of five
        ([5] * 30 + [7] * 30, False),  # two values fit any line
        ([5] * 20 + [6] * 20 + [7] * 20, True),
        ([3, 2, 1] * 20, True),
    ],
    ids=["count", "falls", "nearly", "seldom", "two values", "three", "down"],
)
def test_a_number_that_counts_the_steps_is_no_feature(values: list[int], feature: bool) -> None:
    """Where it never falls and nearly always rises; and of a feature there are three values or more."""
    assert _is_feature(np.array(values, np.float64)) is feature


@pytest.mark.parametrize(("digits", "known"), [(5, True), (15, True), (16, False), (30, False)])
def test_numbers_of_more_digits_than_a_float_holds_are_ids(digits: int, known: bool) -> None:
    """However well they would explain the times."""
    sizes = np.random.default_rng(5).integers(1, 9, 60)
    for more in ("", "_of_8"):  # whatever other numbers there are
        names = [f"batch_{size * 10 ** (digits - 1)}{more}" for size in sizes.tolist()]
        fit = fit_features(names, np.arange(60), (1_000_000 * sizes).astype(np.int64))
        assert (fit is not None) is known


@pytest.mark.parametrize(("count", "known"), [(11, False), (12, True)])
def test_a_price_needs_twelve_steps(count: int, known: bool) -> None:
    """However well their numbers explain them."""
    sizes = np.arange(count) * 5 % 7 + 1
    fit = fit_features([f"batch {size} of" for size in sizes], np.arange(count), 1_000_000 * sizes + 500_000)
    assert (fit is not None) is known
    if fit is not None:
        assert [each.name for each in fit.features] == ["batch"]
        assert fit.fixed_ns == pytest.approx(500_000, rel=1e-3)
        assert [fit.explained, fit.features[0].ns] == pytest.approx([1, 1_000_000])
        assert fit.fitted == pytest.approx(1_000_000 * sizes + 500_000)


@pytest.mark.parametrize(("wide", "known"), [(0.1, True), (0.9, False)])
def test_a_fit_that_leaves_most_unexplained_says_nothing(wide: float, known: bool) -> None:
    """Of the distances from the median it must explain a quarter."""
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 9, 600)
    span = ((1e6 + 5e4 * sizes) * np.exp(wide * rng.standard_normal(600))).astype(np.int64)
    fit = fit_features([f"b{size}" for size in sizes], np.arange(600), span)
    assert (fit is not None) is known
    if fit is not None:
        assert fit.explained == pytest.approx(
            1 - np.abs(span - fit.fitted).sum() / np.abs(span - np.median(span)).sum()
        )
