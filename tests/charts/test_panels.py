"""Panels along an axis: densities of samples, labels beside lines, and ticks."""

import numpy as np
import pytest

from nsysprof.charts.marks import binary_ticks, round_ticks
from nsysprof.charts.panels import density
from nsysprof.charts.places import push_apart


def test_a_density_has_its_mass_where_the_samples_are() -> None:
    """One peak, at the samples; also for samples that are all the same."""
    grid = np.linspace(-1, 1, 201)
    values = np.random.default_rng(0).normal(0.3, 0.05, 200)
    assert grid[density(values, grid).argmax()] == pytest.approx(0.3, abs=0.05)
    assert density(np.full(20, 0.5), grid).max() == 1
    assert grid[density(np.full(20, 0.5), grid).argmax()] == pytest.approx(0.5)


def test_labels_are_pushed_apart_but_no_further() -> None:
    """At least the gap between neighbours, the same order, inside of the panel, and unmoved where there is room."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        wanted = rng.random(rng.integers(1, 8))
        put = push_apart(wanted, 0.1, 1)
        order = np.argsort(wanted, kind="stable")
        assert (np.diff(put[order]) >= 0.1 - 1e-9).all()
        assert put.min() >= -1e-9
        assert put.max() <= 1 + 1e-9
    assert push_apart(np.array([0.9, 0.1, 0.5]), 0.1, 1) == pytest.approx([0.9, 0.1, 0.5])
    assert push_apart(np.array([0.5, 0.5]), 0.1, 1) == pytest.approx([0.45, 0.55])


def test_ticks_are_round_and_not_too_many() -> None:
    """For a tenth of a decade up to nine decades."""
    for high in (1.1, 1.5, 3, 10, 200, 1e5, 1e9):
        ticks = round_ticks(1.02, 1.02 * high)
        assert len(ticks) <= 10
        assert all(1.02 <= tick <= 1.02 * high for tick in ticks)
    assert round_ticks(8e3, 2e7) == [1e4, 1e5, 1e6, 1e7]
    assert binary_ticks(2**20, 2**30) == [2.0**power for power in range(20, 31, 2)]
