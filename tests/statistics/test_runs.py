"""Between runs: what the table of docs/coverage.md counts, in a few cells, and the parts of it."""

import numpy as np
import pytest
from scipy import special

from nsysprof.core.arrays import Floats
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, TOO_FEW_SAMPLES, contrasts_over_runs
from nsysprof.statistics.runs import WITHIN, _digamma, _trigamma, moderated_variances, over_runs, rounding_of, scope_of
from tests.kit.coverage import POINTS, SOURCES, three_runs, unequal


@pytest.mark.parametrize("source", [3, 7])
def test_intervals_over_runs_hold_in_95_of_100(source: int) -> None:
    """An autoregression, and clock steps: 45 samples in three runs, seeds fixed."""
    cell = three_runs(SOURCES[source], 45, 40)
    assert 0.93 <= cell.held <= 0.99
    assert cell.different <= 0.05


@pytest.mark.parametrize(("how", "number"), [("10x as much", 1), ("two modes, 20 σ apart", POINTS)])
def test_intervals_hold_for_each_point_whatever_the_others_do(how: str, number: int) -> None:
    """One point that varies more than all others, and modes of all; few sweeps have a false verdict."""
    held, others, different, _ = unequal(how, number, 200)
    assert held >= 0.91
    assert not others < 0.95
    assert different <= 0.1


def test_runs_that_differ_make_no_verdict() -> None:
    """Samples of each run are far apart and runs too: by the samples faster for sure, by three runs not."""
    rng = np.random.default_rng(1)
    base = {run: 1000 * level * rng.lognormal(0, 0.001, 40) for run, level in enumerate((1.0, 1.2, 0.9))}
    new = {run: 1000 * level * rng.lognormal(0, 0.001, 40) for run, level in enumerate((0.9, 1.1, 1.0))}
    [over] = contrasts_over_runs([(base, new)], names=[("a", "b")], roundings=[(0.0, 0.0)])
    assert over.runs == 3
    assert over.verdict not in (FASTER, TOO_FEW_SAMPLES)
    [one] = contrasts_over_runs([({0: base[0]}, {0: new[0]})], names=[("a", "b")], roundings=[(0.0, 0.0)])
    assert (one.runs, one.verdict, scope_of(one.runs)) == (1, FASTER, WITHIN)


@pytest.mark.parametrize(("each", "said"), [(13, TOO_FEW_SAMPLES), (14, FASTER)])
def test_few_samples_in_a_run_make_no_verdict(each: int, said: str) -> None:
    """However far apart: of so few the medians of three runs can agree by chance, and show nothing."""
    rng = np.random.default_rng(5)
    base, new = (
        {run: level * rng.lognormal(0, 0.01, each if run else 40) for run in range(3)} for level in (1000, 500)
    )
    [one] = contrasts_over_runs([(base, new)], names=[("a", "b")], roundings=[(0.0, 0.0)])
    assert (one.verdict, one.sure) == (said, said == FASTER)
    assert np.isnan(one.detectable) == (said == TOO_FEW_SAMPLES)


def test_samples_worth_too_few_show_no_lack_of_change_either() -> None:
    """Two stretches of one slow wave: not told apart, nor said to be alike; of independent samples that is said."""
    wave: Floats = 1000.0 + 20 * np.sin(np.arange(80) / 12) + np.arange(80) % 3
    mixed = np.random.default_rng(3).permutation(wave)
    slow, fine = contrasts_over_runs(
        [({0: wave[:40]}, {0: wave[40:]}), ({0: mixed[:40]}, {0: mixed[40:]})],
        names=[("a", "b"), ("c", "d")],
        roundings=[(0.0, 0.0)] * 2,
    )
    assert (slow.verdict, fine.verdict) == (TOO_FEW_SAMPLES, NO_CLEAR_CHANGE)
    assert slow.reason.startswith("n = 40 and 40 count as 1 and 1 independent samples; ")


def test_a_single_quantity_goes_by_its_own_runs() -> None:
    """Student's t with two degrees of freedom: 4.303 standard errors."""
    [found] = over_runs([[0.0, 0.1, 0.2]])
    assert found.mean == pytest.approx(0.1)
    assert found.half() == pytest.approx(4.3027 * 0.1 / np.sqrt(3), rel=1e-4)
    [ticks] = over_runs([[7.0, 7.0, 7.0]], [rounding_of(32, 5000)])
    assert ticks.half() == pytest.approx(np.log1p(0.475 * 32 / 5000))
    [apart] = over_runs([[0.0, 0.1, 0.2]], [rounding_of(32, 5000)])
    assert apart.half() == found.half()  # runs that differ are rounded each in its own way


def test_a_test_passes_only_if_the_interval_of_the_point_does() -> None:
    """A point that varies far more than eleven others: by their variance it would differ from 0, by its own not."""
    quiet = np.random.default_rng(4).normal(size=(11, 3))
    noisy, *_ = over_runs([[2.0, 6.0, 13.0], *quiet.tolist()])
    assert noisy.shared
    assert noisy.mean / noisy.shared[0] > 3
    assert noisy.interval().holds(1)
    assert noisy.p > 0.05


def test_variances_that_are_alike_share_their_degrees_of_freedom() -> None:
    """Drawn from one variance 200 of them agree; drawn from very different ones they keep their own."""
    rng = np.random.default_rng(2)
    chance = rng.chisquare(2, 200) / 2
    alike, freedom = moderated_variances(chance, np.full(200, 2.0))
    assert freedom.min() > 10
    assert alike.std() < chance.std() / 3
    wide = chance * np.exp(4 * rng.normal(size=200))
    own, freedom = moderated_variances(wide, np.full(200, 2.0))
    assert freedom.max() < 3
    assert np.corrcoef(np.log(own), np.log(wide))[0, 1] > 0.85  # half of the usual one is the least


def test_the_derivatives_of_the_gamma_function_are_scipy_s() -> None:
    """From where they are steep to where they are flat."""
    for value in np.logspace(-4, 6, 60).tolist():
        assert _digamma(value) == pytest.approx(special.digamma(value), rel=1e-8, abs=1e-9)
        assert _trigamma(value) == pytest.approx(special.polygamma(1, value), rel=1e-8)
