"""What GPU metrics say of the recording, of ranges and of kernels, and where they say nothing."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.summaries.gpu_metrics import clock_change, clocks
from nsysprof.summaries.summary import Answer
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
    return {(row["what"], row["name"], row["metric"]): row for row in answer.files["gpu_metrics.csv"].records()}


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


def test_shorter_kernels_are_told_apart_by_their_share_of_samples(trace: MakeTrace) -> None:
    """Least squares over many samples: each is near what it was made with, inside its interval."""
    draw, now = random.Random(3), 10_000
    busy: dict[str, list[tuple[int, int]]] = {"read": [], "compute": []}
    while now < 60_000_000:
        name = draw.choice(["read", "compute"])
        busy[name].append((now, now + draw.randint(30_000, 60_000)))
        now = busy[name][-1][1] + draw.choice([8_000, 40_000])
    levels = {"read": 80, "compute": 10}
    dram = sampled([(*each, levels[name]) for name, times in busy.items() for each in times], 600)
    items = kernels("read", busy["read"]), kernels("compute", busy["compute"], 5_000)
    found = rows_of(trace(*items, gpu_samples({"dram_read": dram})))
    for name, level in levels.items():
        row = found["kernel", name, "dram_read"]
        assert row["basis"] == "regression"
        assert row["mean"] == pytest.approx(level, abs=2)
        assert row["low"] - 1 <= level <= row["high"] + 1


def test_what_samples_cannot_tell_apart_is_unknown(trace: MakeTrace) -> None:
    """Two kernels that always share a sample, and one that takes a tenth of one."""
    pair = [(at * STEP_NS, at * STEP_NS + 50_000) for at in range(300)]
    other = [(start + 50_000, end + 50_000) for start, end in pair]
    tiny = [(start + 102_000, end + 55_000) for start, end in other]
    values = {"sm_active": [60] * 300}
    found = rows_of(trace(kernels("a", pair), kernels("b", other, 1000), gpu_samples(values)))
    for name in ("a", "b"):
        row = found["kernel", name, "sm_active"]
        assert row["basis"] == "unknown" or 50 <= row["mean"] <= 70
    found = rows_of(trace(kernels("a", pair), kernels("t", tiny, 1000), gpu_samples(values)))
    row = found["kernel", "t", "sm_active"]
    assert math.isnan(row["mean"])
    assert row["reason"]


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
    assert "too short" in found["range", "brief", "sm_active"]["reason"]


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
    assert "GPU 0: unknown, the GPU is partitioned (MIG)" in split.finding


def test_clocks_of_stretches_of_time(trace: MakeTrace) -> None:
    """The mean over the samples that they touch; unknown outside of the sampled time, and for another GPU."""
    hz = [1_980_000_000] * 5 + [1_500_000_000] * 5
    times = np.array([0, 500_000, 0, 120_000, 2_000_000]), np.array([500_000, 1_000_000, 1_000_000, 290_000, 2_100_000])
    recording = attributed(trace(kernels("k", [(0, 900_000)]), gpu_samples({"clock_hz": hz}))).trace
    found = clocks(recording, 0, *times)
    assert np.isnan(clocks(recording, 1, *times)).all()
    assert found[:4] == pytest.approx([1.98e9, 1.5e9, 1.74e9, 1.98e9])
    assert math.isnan(found[4])


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [(1.41e9, 1.25e9, "1.41 → 1.25 GHz"), (1.98e9, 1.97e9, ""), (math.nan, 1e9, ""), (1e9, math.nan, "")],
)
def test_a_clock_changed_or_not(before: float, after: float, text: str) -> None:
    """By 2 % and more; what is not known did not change."""
    assert clock_change(before, after) == text
