"""What GPU metrics say of the recording, of ranges and of kernels, and where they say nothing."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.summaries.gpu_metrics import _BLOCK, _fit, _judged, _shares, clock_change, clocks, drawn_metrics, means_of
from nsysprof.summaries.summary import Answer
from nsysprof.trace.details import GpuSamples
from tests.conftest import MakeTrace
from tests.kit.gpu_samples import STEP_NS, gpu_samples
from tests.kit.reports import attributed, broken_down
from tests.kit.trace import Gpu, Item, Range, launch_kernel


def answer_of(path: Path) -> Answer | None:
    """The summary of a report."""
    return broken_down(path).summaries.get("gpu_metrics")


def rows_of(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The rows of its ``gpu_metrics.csv`` by kind, name and metric."""
    answer = answer_of(path)
    assert answer is not None
    table = answer.files["gpu_metrics.csv"]
    assert len(table["mean"]) == len(table.texts("what"))
    return {(row["what"], row["name"], row["metric"]): row for row in table.records()}


def sampled(busy: list[tuple[int, int, int]], count: int) -> list[int]:
    """The samples of a metric that is so many percent from one time to another: means from each stamp to the next."""
    out = []
    for at in range(count):
        low, high = at * STEP_NS, (at + 1) * STEP_NS
        out.append(round(sum(max(0, min(end, high) - max(start, low)) * level for start, end, level in busy) / STEP_NS))
    return out


def kernels(name: str, times: list[tuple[int, int]], first: int = 1) -> tuple[Item, ...]:
    """Kernels that run at these times."""
    each = (launch_kernel(name, (first + at, first + at + 1), time, id=first + at) for at, time in enumerate(times))
    return tuple(item for pair in each for item in pair)


def test_nothing_sampled_is_no_answer(trace: MakeTrace) -> None:
    """Not an empty table."""
    assert answer_of(trace(kernels("k", [(10, 20)]))) is None


def test_the_dram_share_of_a_vector_addition(trace: MakeTrace) -> None:
    """As on an A100 at 10 kHz: two arrays of 50,000,000 floats in 379 µs are 54.5 % of 1.935 TB/s; samples say 54."""
    start, duration = 633_452_929, 379_165
    times = [(start + at * (duration + 900), start + at * (duration + 900) + duration) for at in range(60)]
    moved = 100 * 2 * 4 * 50_000_000 / (duration * 1e-9) / 1.93536e12
    assert moved == pytest.approx(54.5, abs=0.1)
    count = times[-1][1] // STEP_NS + 10
    values = {
        "sm_active": sampled([(*each, 99) for each in times], count),
        "dram_read": sampled([(*each, 54) for each in times], count),
        "dram_write": sampled([(*each, 27) for each in times], count),
    }
    gpu = Gpu(0, "NVIDIA A100 80GB PCIe", {"memoryBandwidth": 1_935_360_000_000, "clockRate": 1_410_000_000})
    found = rows_of(trace(gpu, kernels("vectorAdd", times), gpu_samples(values)))
    read, write = (found["kernel", "vectorAdd", name] for name in ("dram_read", "dram_write"))
    assert read["basis"] != "unknown"
    assert read["mean"] == pytest.approx(moved, abs=5)
    assert write["mean"] == pytest.approx(moved / 2, abs=5)
    assert read["low"] <= 54 <= read["high"]


def test_a_sample_holds_what_runs_after_its_stamp(trace: MakeTrace) -> None:
    """A kernel that begins between two stamps is in the sample of the first one: counted before, it would be lost."""
    values = {"sm_active": [0, 0, 0, 50, 100, 100, 100, 0, 0, 0]}
    found = rows_of(trace(kernels("k", [(350_000, 700_000)]), gpu_samples(values)))
    row = found["kernel", "k", "sm_active"]
    assert (row["mean"], row["samples"]) == (100, 3)


def test_ranges_that_repeat_have_rows(trace: MakeTrace) -> None:
    """From the first GPU op to the last of each instance; a range without a whole sample is unknown."""
    step = [Range(f"step{at}", at * 1_000_000, at * 1_000_000 + 100) for at in range(4)]
    work = [
        launch_kernel(
            "k",
            (at * 1_000_000 + 10, at * 1_000_000 + 20),
            (at * 1_000_000 + 100_000, at * 1_000_000 + 800_000),
            id=at + 1,
        )
        for at in range(4)
    ]
    brief = (
        Range("brief", 5_000_000, 5_000_100),
        launch_kernel("b", (5_000_010, 5_000_020), (5_010_000, 5_020_000), id=9),
    )
    values = {"sm_active": sampled([(at * 1_000_000 + 100_000, at * 1_000_000 + 800_000, 70) for at in range(4)], 60)}
    found = rows_of(trace(*step, *work, *brief, gpu_samples(values)))
    assert found["range", "step*", "sm_active"]["mean"] == pytest.approx(70)
    assert found["range", "step*", "sm_active"]["time_ns"] == 4 * 700_000
    assert found["range", "brief", "sm_active"]["basis"] == "unknown"
    assert found["range", "brief", "sm_active"]["reason"] == "too few samples while the kernel ran"


def test_the_sentence_names_what_was_not_sampled(trace: MakeTrace) -> None:
    """One GPU of two; and values that cannot be."""
    both = (kernels("k", [(0, 900_000)]), launch_kernel("k", (5, 6), (0, 900_000), id=77, device=1))
    answer = answer_of(trace(*both, gpu_samples({"sm_active": [100] * 8 + [101]}, gpu=1)))
    assert answer is not None
    assert answer.finding == (
        "GPU metrics, a sample every 100 µs: GPU 1: SM active 100 %; GPU 1: 1 value of sm_active out of range;"
        " not sampled: GPU 0"
    )
    split = answer_of(trace(Gpu(0, "NVIDIA A100 MIG 1g.5gb"), both[0], gpu_samples({"sm_active": [1] * 9})))
    assert split is not None
    assert split.finding.startswith("GPU metrics: GPU 0: unknown, the GPU is partitioned (MIG)")


def test_clocks_of_stretches_of_time(trace: MakeTrace) -> None:
    """The mean over the samples that they touch; unknown outside of the sampled time, and for another GPU."""
    hz = [1_980_000_000] * 5 + [1_500_000_000] * 5
    times = np.array([0, 500_000, 0, 120_000, 2_000_000]), np.array([500_000, 1_000_000, 1_000_000, 290_000, 2_100_000])
    recording = attributed(trace(kernels("k", [(0, 900_000)]), gpu_samples({"clock_hz": hz}))).trace
    found = clocks(recording, 0, *times)
    assert np.isnan(clocks(recording, 1, *times)).all()
    assert found[:4] == pytest.approx([1.98e9, 1.5e9, 1.74e9, 1.98e9])
    assert math.isnan(found[4])


def test_metrics_of_timelines_are_those_that_were_sampled(trace: MakeTrace) -> None:
    """Reads and writes of memory together; of GPUs on which something runs."""
    values = {"sm_active": [1, 2], "dram_read": [3, 4], "dram_write": [5, 6]}
    recording = attributed(trace(kernels("k", [(0, 900_000)]), gpu_samples(values), gpu_samples(values, gpu=1))).trace
    drawn = [(label, user, each.tolist()) for label, user, _, each in drawn_metrics(recording)]
    assert drawn == [("GPU 0 · SM active", 0, [1, 2]), ("GPU 0 · DRAM", 0, [8, 10])]


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (1.41e9, 1.25e9, "1.41 → 1.25 GHz"),
        (1e9, 1.02e9, "1.00 → 1.02 GHz"),
        (1e9, 0.981e9, ""),
        (math.nan, 1e9, ""),
        (1e9, math.nan, ""),
    ],
)
def test_a_clock_changed_or_not(before: float, after: float, text: str) -> None:
    """By 2 % and more; what is not known did not change."""
    assert clock_change(before, after) == text


@pytest.mark.parametrize("blocks", [3, 4, 20])
def test_a_fit_is_least_squares_over_what_runs(blocks: int) -> None:
    """With idle time as a group of its own; unknown samples and those of overlapping kernels are left out.

    Without a block of samples more than groups nothing is known.
    """
    rng = np.random.default_rng(blocks)
    count = blocks * _BLOCK
    shares = rng.dirichlet([1, 1, 1], count).T[:2]
    values = 80 * shares[0] + 10 * shares[1] + 3 * (1 - shares.sum(axis=0)) + rng.normal(0, 1, count)
    odd = np.array([[1.0, 1.0, 0.0], [1.0, 0.5, 0.0]])  # two at once, and nothing
    more = np.append(values, [99, 40, 99])
    more[-2] = math.nan
    fit = _fit(more, np.hstack([shares, odd]).astype(np.float32))
    assert fit[:, 3].tolist() == [count, count]
    if blocks == 3:
        assert np.isnan(fit[:, :2]).all()
        assert not fit[:, 2].any()
        return
    assert fit[:, 2] == pytest.approx(shares.sum(axis=1), rel=1e-5)
    x = np.column_stack([*shares, 1 - shares.sum(axis=0)])
    expected, *_ = np.linalg.lstsq(x, values, rcond=None)
    assert fit[:, 0] == pytest.approx(expected[:2], rel=1e-4)
    scores = [x[at : at + _BLOCK].T @ (values - x @ expected)[at : at + _BLOCK] for at in range(0, count, _BLOCK)]
    inverse = np.linalg.inv(x.T @ x)
    error = np.sqrt(np.diag(inverse @ sum(np.outer(each, each) for each in scores) @ inverse))[:2]
    assert fit[:, 1] == pytest.approx({4: 12.706, 20: 2.110}[blocks] * error + 0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("fit", "shifted", "expected"),
    [
        ((50, 4, 3.0, 9), (51, 49), (50, 46, 54)),
        ((50, 4, 3.0, 9), (57, 43), (50, 43, 57)),  # stamps that differ
        ((50, 4, 2.9, 9), (51, 49), None),  # less than three samples
        ((50, 10, 3.0, 9), (50, 50), (50, 40, 60)),
        ((50, 10, 3.0, 9), (50, 61), None),  # wider than twenty points
        ((2, 4, 3.0, 9), (2, 2), (2, 0, 6)),
        ((-5, 4, 3.0, 9), (-5, -5), (0, 0, 0)),
        ((-6, 4, 3.0, 9), (-6, -6), None),  # below nothing
        ((105, 4, 3.0, 9), (105, 105), (100, 100, 100)),
        ((106, 4, 3.0, 9), (106, 106), None),
    ],
)
def test_a_fit_that_says_nothing_is_unknown(fit: Any, shifted: Any, expected: tuple[float, ...] | None) -> None:
    """Too few samples, too wide an interval, or what cannot be a share."""
    found = _judged(np.array(fit, float), *(np.array([each, 0, 0, 0], float) for each in shifted))
    assert found.samples == 9
    assert (found.basis, math.isnan(found.mean)) == (("unknown", True) if expected is None else ("regression", False))
    if expected is not None:
        assert (found.mean, found.low, found.high) == expected


@pytest.mark.parametrize(("length", "basis"), [(10, "samples"), (2, "regression")])
def test_long_kernels_have_means_and_short_ones_a_fit(length: int, basis: str) -> None:
    """From ten samples on what lies at their edges does not matter; a fit tells apart what shares samples."""
    step, rng = STEP_NS, np.random.default_rng(0)
    level = {0: 70, 1: 20}
    edges = np.cumsum(np.append(0, rng.integers(length * step, (length + 1) * step, 400)))
    count = int(edges[-1] // step)
    stamps = np.arange(count) * step
    lines = [(edges[which:-1:2], edges[which + 1 :: 2]) for which in (0, 1)]
    lines = [(start[: len(end)], end) for start, end in lines]
    plain = GpuSamples(stamps, stamps + step, {})
    shares = [_shares(plain, line) for line in lines]
    values = (level[0] * shares[0] + level[1] * shares[1]).astype(np.float32)
    found = means_of(GpuSamples(stamps, stamps + step, {"sm_active": values, "clock_hz": values * 0 + 5}), lines)
    for at, each in enumerate(found):
        assert (each["sm_active"].basis, each["clock_hz"].basis) == (basis, "samples")
        assert each["sm_active"].mean == pytest.approx(level[at], abs=1)
        whole = (shares[at] >= 0.95) & (sum(shares) - shares[at] <= 0.05)
        assert each["clock_hz"].samples == whole.sum()
