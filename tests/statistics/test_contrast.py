"""Two samples against each other: the rules of the verdict one by one, families, A/A, and errors that users see."""

import tracemalloc
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from nsysprof.core.arrays import Floats
from nsysprof.errors import NsysprofError
from nsysprof.statistics.contrast import (
    FASTER,
    NO_CLEAR_CHANGE,
    RANK_TEST,
    RATIO_TEST,
    SLOWER,
    TOO_FEW_SAMPLES,
    Contrast,
    Rules,
    contrast,
    holm,
    judge,
    noise_of,
    word_by_verdict,
)
from tests.statistics.test_dependence import autoregressive

ANY_SIZE = Rules(least_effect=0)
P_VALUES = st.lists(st.floats(0, 1), max_size=12)


def noisy(seed: int, n: int = 40, middle: float = 1000, spread: float = 0.03) -> Floats:
    """Independent skewed samples that raise no alarm."""
    return middle * np.random.default_rng(seed).lognormal(0, spread, n)


def test_faster_and_slower_are_about_new() -> None:
    """New takes 10 % more or less."""
    slower = contrast(noisy(1), noisy(2, middle=1100))
    faster = contrast(noisy(2, middle=1100), noisy(1))
    assert (slower.verdict, faster.verdict) == (SLOWER, FASTER)
    assert slower.ratio == pytest.approx(1.1, abs=0.02)
    assert slower.shift == pytest.approx(100, abs=20)
    assert slower.delta_word == "large"
    assert slower.p < 1e-6
    assert (slower.base_n, slower.new_n, slower.family) == (40, 40, 1)


def test_the_p_value_is_that_of_scipy() -> None:
    """For independent samples, by the rank test."""
    base, new = noisy(3), noisy(4, middle=1010)
    found = contrast(base, new)
    assert found.test == RANK_TEST
    assert found.p == found.adjusted_p == pytest.approx(mannwhitneyu(base, new).pvalue)


def test_dependent_samples_go_by_another_test() -> None:
    """The rank test finds a difference in two stretches of one slow wave, which is none."""
    wave = 1000 + 20 * np.sin(np.arange(80) / 12) + np.arange(80) % 3
    found = contrast(wave[:40], wave[40:], ANY_SIZE)
    assert mannwhitneyu(wave[:40], wave[40:]).pvalue < 0.01
    assert found.test == RATIO_TEST
    assert found.verdict == NO_CLEAR_CHANGE
    assert any("samples are autocorrelated" in line for line in found.warnings)


def test_a_large_effect_outweighs_dependence() -> None:
    """A steady drift of 3 % in each of 12 samples does not hide that new is five times as fast."""
    found = contrast(np.linspace(5000, 5150, 12), np.linspace(1000, 1030, 12))
    assert found.verdict == FASTER
    assert any(" drifts: " in line for line in found.warnings)


def test_samples_worth_one_make_no_verdict() -> None:
    """Where a warning says that ten samples are worth one, a small p-value does not make up for it."""
    rising = np.array([1000.0 + 3 * step for step in range(10)])
    found = contrast(rising, noisy(12, 30, 1060, 0.001), Rules(least_effect=0.01))
    assert any("effective n = 1 of 10, too few to rely on" in line for line in found.warnings)
    assert found.worth[0] < 1.5
    assert found.worth[1] == 30
    clear = replace(found, p=3e-6, drift=0.0, ratio_interval=replace(found.ratio_interval, low=1.03))
    [again] = judge([clear], Rules(least_effect=0.01))
    assert again.verdict == TOO_FEW_SAMPLES
    assert again.reason.startswith("n = 10 and 30 count as 1 and 30 independent samples")
    assert judge([replace(clear, worth=(10, 30))])[0].verdict == SLOWER


@pytest.mark.parametrize(("n", "apart", "said"), [(14, 3, TOO_FEW_SAMPLES), (14, 15, FASTER), (15, 3, FASTER)])
def test_few_samples_show_a_difference_where_the_sides_lie_apart(n: int, apart: int, said: str) -> None:
    """Of fewer than 15 nobody can tell how they depend on each other: a quarter of both ranges has to lie between."""
    rng = np.random.default_rng(8)
    base = 1000 + rng.permutation(np.linspace(0, 20, n))
    one = contrast(base, 980 - apart + rng.permutation(np.linspace(0, 20, n)))
    assert one.verdict == said


def test_a_drift_outweighs_a_smaller_difference() -> None:
    """Both sides get 10 % slower in the course of the run: a difference of 5 % says nothing."""
    base = noisy(11, 200, spread=0.005) * np.linspace(0.9, 1.1, 200)
    found = contrast(base, base * 1.05)
    assert found.verdict != SLOWER
    again = replace(found, p=0.001, ratio_interval=replace(found.ratio_interval, low=1.04), worth=(200, 200))
    assert (
        judge([again])[0].reason == "the samples of one side drift by 11 %, more than the difference between the sides"
    )
    assert judge([replace(again, drift=0.01)])[0].verdict == SLOWER


def test_one_step_of_the_clock_is_no_difference() -> None:
    """All calls take 32 ns less on a clock of 32 ns; three steps count, and so does one where no clock is known."""
    base = np.array([1024.0, 1025.0] * 20)
    for steps, verdict in ((1, NO_CLEAR_CHANGE), (3, FASTER)):
        assert contrast(base, base - 32 * steps, Rules(clock_step=32)).verdict == verdict
    assert contrast(base, base - 32).verdict == FASTER


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (FASTER, "new is faster"),
        (SLOWER, "new is faster"),
        (NO_CLEAR_CHANGE, "no clear change"),
        (TOO_FEW_SAMPLES, "new is faster, with too few samples for a verdict"),
        ("", "new is faster, with too few samples for a verdict"),
    ],
)
def test_words_go_no_further_than_the_verdict(verdict: str, said: str) -> None:
    """Of a headline, and of the title of a chart."""
    assert word_by_verdict("new is faster", "no clear change", verdict) == said


def test_a_small_effect_is_no_clear_change() -> None:
    """1 % is beyond doubt here, and below the requested smallest effect of 2 %; at 0.5 % it counts."""
    base, new = noisy(5, 400, spread=0.01), noisy(6, 400, 1010, 0.01)
    found = contrast(base, new)
    assert found.p < 1e-9
    assert (found.verdict, found.reason) == (NO_CLEAR_CHANGE, "below the smallest meaningful effect of 2.0 %")
    assert contrast(base, new, Rules(least_effect=0.005)).verdict == SLOWER


def test_the_least_effect_is_as_far_down_as_up() -> None:
    """1 / 1.02 of the time counts as 2 %: 0.981 does not, 0.979 does."""
    base = np.array([1000.0, 1000.1] * 20)
    assert contrast(base, base * 0.981).verdict == NO_CLEAR_CHANGE
    assert contrast(base, base * 0.979).verdict == FASTER


def test_a_p_value_alone_is_no_verdict() -> None:
    """Two levels, visited 57 and 42 times of 100: ranks tell them apart, but either median may be either level."""
    mix = np.random.default_rng(8).permutation(100)
    base, new = (np.where(mix < low, 1000.0, 1050.0) for low in (57, 42))
    found = contrast(base, new)
    assert found.test == RANK_TEST
    assert found.p < 0.05
    assert found.ratio == pytest.approx(1.05)
    assert found.verdict == NO_CLEAR_CHANGE
    assert found.reason == "the interval of the ratio includes 1"


def test_a_test_that_fails_is_no_verdict() -> None:
    """A ratio with an interval beyond 1 is not enough when the corrected p-value is not."""
    found = contrast(noisy(1), noisy(2, middle=1100))
    [again] = judge([replace(found, p=0.2)])
    assert not again.ratio_interval.holds(1)
    assert again.verdict == NO_CLEAR_CHANGE
    assert again.reason == "p = 0.2 (Mann-Whitney U, corrected for 1 comparison)"


@pytest.mark.parametrize(("base_n", "new_n"), [(9, 40), (40, 9), (1, 1), (2, 3)])
def test_too_few_samples(base_n: int, new_n: int) -> None:
    """However far apart they are; the numbers are there all the same."""
    found = contrast(noisy(9, base_n), noisy(10, new_n, 9000))
    assert found.verdict == TOO_FEW_SAMPLES
    assert found.reason == f"n = {min(base_n, new_n)}; at least 10 samples per side are needed"
    assert found.ratio == pytest.approx(9, rel=0.1)
    assert contrast(noisy(9, 10), noisy(10, 10, 9000)).verdict == SLOWER


def test_too_few_samples_for_so_many_comparisons() -> None:
    """Ten against ten cannot have p below 2 / 184,756, which times 10,000 is above 0.05."""
    found = contrast(noisy(9, 10), noisy(10, 10, 9000))
    assert judge([found] * 1000)[0].verdict == SLOWER
    assert judge([found] * 10_000)[0].verdict == TOO_FEW_SAMPLES


def test_samples_worth_four_show_nothing_among_two_comparisons() -> None:
    """Four against four lie apart by chance in 2 of 70 cases, which times two is above 0.05."""
    found = replace(contrast(noisy(9), noisy(10, middle=9000)), worth=(4.0, 4.0))
    assert [one.verdict for one in (*judge([found]), *judge([found] * 2))] == [SLOWER, *[TOO_FEW_SAMPLES] * 2]


def test_a_family_is_corrected_together() -> None:
    """A p-value of 0.03 makes a verdict alone, and none among three."""
    found = replace(contrast(noisy(1), noisy(2, middle=1100)), p=0.03)
    assert judge([found])[0].verdict == SLOWER
    family = judge([found, replace(found, p=0.5), replace(found, p=0.001)])
    assert [one.verdict for one in family] == [NO_CLEAR_CHANGE, NO_CLEAR_CHANGE, SLOWER]
    assert [one.adjusted_p for one in family] == pytest.approx([0.06, 0.5, 0.003])
    assert {one.family for one in family} == {3}
    assert judge([]) == []


def test_holm_by_hand() -> None:
    """0.01 x 4, 0.02 x 3, then 0.03 x 2 and 0.9 x 1, none smaller than the one before."""
    assert holm([0.03, 0.01, 0.9, 0.02]) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([0.5, float("nan")])


@given(P_VALUES)
@settings(deadline=None, derandomize=True)
def test_holm_keeps_the_order_and_only_raises(p_values: list[float]) -> None:
    """Corrected p-values are at least the plain ones, at most Bonferroni's, and never change places."""
    found = holm(p_values)
    for plain, corrected in zip(p_values, found, strict=True):
        assert plain <= corrected <= min(1, plain * len(p_values))
    ranked = [corrected for _, corrected in sorted(zip(p_values, found, strict=True))]
    assert ranked == sorted(ranked)


MIRROR = {FASTER: SLOWER, SLOWER: FASTER, NO_CLEAR_CHANGE: NO_CLEAR_CHANGE, TOO_FEW_SAMPLES: TOO_FEW_SAMPLES}
SAMPLES = st.lists(st.integers(1, 60), min_size=1, max_size=30)


@given(SAMPLES, SAMPLES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_swapped_samples_give_the_mirror_image(base: list[int], new: list[int]) -> None:
    """All of it, and every number is finite."""
    there, back = contrast(base, new, resamples=200), contrast(new, base, resamples=200)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.shift == pytest.approx(-back.shift)
    assert there.delta == pytest.approx(-back.delta)
    assert there.p == pytest.approx(back.p)
    assert there.shift_interval.low == pytest.approx(-back.shift_interval.high)
    assert there.verdict == MIRROR[back.verdict]
    numbers = [value for value in flat(replace(there, detectable=0.0)) if isinstance(value, float)]
    assert np.isfinite(numbers).all()
    assert np.isnan(there.detectable) or there.detectable >= 0


def flat(found: Contrast) -> list[object]:
    """Every value in a contrast, those of its intervals too."""
    out: list[object] = []
    for value in asdict(found).values():
        out += value.values() if isinstance(value, dict) else [value]
    return out


@given(SAMPLES, SAMPLES)
@settings(max_examples=75, deadline=None, derandomize=True)
def test_the_unit_changes_no_verdict(base: list[int], new: list[int]) -> None:
    """In units of 1/1024 all is the same but the shift, which is 1,024 times as large."""
    small = contrast(base, new, resamples=200)
    large = contrast(np.array(base) * 1024, np.array(new) * 1024, resamples=200)
    assert (small.verdict, small.delta, small.ratio) == (large.verdict, large.delta, large.ratio)
    assert small.p == pytest.approx(large.p)
    assert small.ratio_interval.low == pytest.approx(large.ratio_interval.low)
    assert large.shift == pytest.approx(1024 * small.shift)


def test_constant_samples() -> None:
    """The same constant is no change, another one is, and nothing divides by zero."""
    same = contrast([500] * 20, [500] * 20)
    assert (same.verdict, same.p, same.delta, same.shift) == (NO_CLEAR_CHANGE, 1, 0, 0)
    assert contrast([500] * 20, [600] * 20).verdict == SLOWER


def test_large_samples_take_no_square_of_memory() -> None:
    """4,000 against 4,000 are 16 million pairs, of which no list of 128 MB is made."""
    base, new = noisy(11, 4_000), noisy(12, 4_000, 1050)
    tracemalloc.start()
    try:
        found = contrast(base, new, resamples=1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000
    assert found.verdict == SLOWER
    assert found.shift == pytest.approx(50, abs=2)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([1.0, np.nan, np.inf], "flash: 2 of 3 samples are not valid times, such as nan at index 1"),
        ([5, -2], "flash: 1 of 2 samples are not valid times, such as -2 at index 1"),
        ([], "flash: there are no samples"),
        (["a"], "flash: the samples are not all numbers"),
        ([0, 0, 0, 4], "flash: the median of the samples is 0, so there is no ratio"),
    ],
)
def test_bad_samples_are_refused_by_name(bad: list[float], said: str) -> None:
    """On either side, never dropped."""
    with pytest.raises(NsysprofError) as refused:
        contrast(bad, [1, 2], names=("flash", "math"))
    assert refused.value.message == said
    with pytest.raises(NsysprofError) as refused:
        contrast([1, 2], bad, names=("math", "flash"))
    assert refused.value.message == said


def test_what_differs_from_itself_widens_the_least_effect() -> None:
    """A second run of the same is the same; one that is not tells how large an effect must be to count."""
    same, other = contrast(noisy(13), noisy(14)), contrast(noisy(13), noisy(14, middle=1080))
    noise = [noise_of(one.ratio) for one in (same, other)]
    assert (same.verdict, other.verdict) == (NO_CLEAR_CHANGE, SLOWER)
    assert noise_of(0.0) == float("inf")
    assert Rules().widened(noise[0]) == Rules() == Rules().widened(float("nan"))
    assert noise[1] == pytest.approx(0.08, abs=0.02)
    widened = Rules(alpha=0.01).widened(*noise)
    assert widened == Rules(noise[1], alpha=0.01)
    assert contrast(noisy(15), noisy(16, middle=1050), widened).verdict == NO_CLEAR_CHANGE


def test_each_contrast_of_a_family_can_have_rules_of_its_own() -> None:
    """The same 5 % count for the one that is steady and not for the one that differs from itself by more."""
    found = contrast(noisy(15), noisy(16, middle=1050))
    verdicts = [one.verdict for one in judge([found, found], [Rules(), Rules().widened(0.08)])]
    assert verdicts == [SLOWER, NO_CLEAR_CHANGE]


SIMULATED = (
    150  # of which 13 may differ: at a true share of 5 % more do in 4 of 100 draws, at 20 % in all but 1 of 10,000
)


@pytest.mark.parametrize(("phi", "n"), [(0.0, 10), (0.0, 100), (0.3, 20), (0.5, 30), (0.7, 100)])
def test_the_same_against_itself_differs_in_at_most_5_of_100(phi: float, n: int) -> None:
    """A/A with any effect counting, skewed and dependent samples (400 resamples do as well here)."""
    rng = np.random.default_rng([n, int(10 * phi)])
    declared = 0
    for seed, (base, new) in enumerate(np.exp(0.5 * autoregressive(rng, phi, (SIMULATED, 2, n)))):
        declared += contrast(base, new, ANY_SIZE, resamples=400, seed=seed).verdict in (FASTER, SLOWER)
    assert declared / SIMULATED <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / SIMULATED)


def test_the_rank_test_alone_would_declare_differences() -> None:
    """The simulation above can fail: by the plain p-value a fifth of the same differs from itself."""
    series = autoregressive(np.random.default_rng(20), 0.5, (300, 2, 30))
    assert np.mean([mannwhitneyu(base, new).pvalue < 0.05 for base, new in series]) > 0.15


def test_differences_are_found() -> None:
    """A verdict that never comes would pass the simulation too: 5 % at a spread of 5 % shows in most runs of 50."""
    found = [
        contrast(noisy(2 * k, 50, spread=0.05), noisy(2 * k + 1, 50, 1050, 0.05), resamples=1000).verdict
        for k in range(100)
    ]
    assert found.count(SLOWER) >= 80
    assert FASTER not in found
