"""Hardware counters of an H200 beside its report: every kernel is found, and the figures are those of the hardware."""

from __future__ import annotations

import pytest

from nsysprof.compare.comparison import Comparison, compare
from nsysprof.compare.roofline import roofline
from nsysprof.compare.traffic import Measured, tensor_share
from tests.kit.reports import RUN, TRACES, attributed

COUNTERS = TRACES / "run.counters.csv"
pytestmark = pytest.mark.skipif(not COUNTERS.exists(), reason="traces/run.counters.csv is not there")


@pytest.fixture(scope="module")
def found() -> Comparison:
    """Math against flash, at every size."""
    return compare(attributed(RUN), base="RUN::math::*", new="RUN::flash::*", counters=[COUNTERS])


def sides(found: Comparison, size: int) -> tuple[Measured, Measured]:
    """What was measured of math and of flash at a size."""
    base, new = found.measured[f"RUN::math::S{size} → RUN::flash::S{size}"]
    assert base is not None
    assert new is not None
    return base, new


@pytest.mark.parametrize("size", [1024, 2048, 4096])
def test_every_kernel_has_counters(found: Comparison, size: int) -> None:
    """Two calls of the counters stand for all of the report, kernel by kernel."""
    for side in sides(found, size):
        assert (side.matched, side.matched_share, side.warnings) == (side.launches, 1.0, ())
    assert not any("counters" in text for text in found.warnings)


def test_the_model_is_what_the_hardware_counts(found: Comparison) -> None:
    """Where nothing fits into the cache, within 10 %; where the score matrix does, less; inputs of flash stay there."""
    large, small = sides(found, 4096)[0], sides(found, 1024)[0]
    assert large.total["dram_bytes"] / large.total["expected_bytes"] == pytest.approx(1, abs=0.1)
    assert small.total["dram_bytes"] < 0.8 * small.total["expected_bytes"]
    for cause in ("softmax", "Q·Kᵀ GEMM", "P·V GEMM", "cast down", "safe-softmax guard"):
        row = large.causes.loc[[cause]]
        assert (row["dram_bytes"] / row["expected_bytes"]).tolist() == pytest.approx([1], abs=0.05)
    for size in (1024, 2048, 4096):
        flash = sides(found, size)[1]
        assert flash.total["dram_bytes"] < 0.1 * flash.total["expected_bytes"]


def test_flops_are_those_of_the_shape(found: Comparison) -> None:
    """Two products of S x S x D for each head, on FP32 units in math, nearly all on tensor cores in flash."""
    for size in (1024, 2048, 4096):
        math, flash = sides(found, size)
        products = 2 * 2 * 8 * 64 * size * size
        both = math.causes.loc[["Q·Kᵀ GEMM", "P·V GEMM"], "fp32_flops"].sum()
        assert both == pytest.approx(products, rel=0.03)
        assert tensor_share(math.total) == 0
        assert tensor_share(flash.total) > 0.95
        assert 0.5 * products < flash.total["tensor_flops"] < 0.75 * products  # causal, in whole tiles


def test_no_kernel_is_above_a_roof(found: Comparison) -> None:
    """All of them are points, and none is faster than memory or arithmetic allow."""
    for pair in found.pairs["pair"]:
        answer = roofline(found, pair)
        assert answer is not None
        assert (answer.refused, answer.lost) == ({}, 0)
        assert answer.bytes_per_s is not None
        assert (answer.points["bytes_per_s"] <= answer.bytes_per_s).all()
        assert (answer.points["flops_per_s"] <= answer.ceilings[1].flops_per_s).all()
