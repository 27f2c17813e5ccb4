"""What limits shapes, how calls are spread, and targets: from samples whose peaks and latencies are known."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.bench.findings import limit_findings, priorities
from nsysprof.bench.report import bench_report
from nsysprof.bench.results import BenchResults
from nsysprof.bench.targets import missed_targets, read_targets
from nsysprof.core.units import format_ratio
from nsysprof.errors import NsysprofError
from tests.kit.bench_samples import made_up, results_of


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> BenchResults:
    """math and flash, whose ratio is known."""
    return results_of(tmp_path_factory.mktemp("two"), made_up())


def test_the_least_time_is_the_longer_of_both_at_their_peaks(two: BenchResults) -> None:
    """FLOPs over FLOP/s, compulsory bytes over bandwidth, and how many times as long as the other."""
    for row in two.results.to_dict("records"):
        compute = row["flops"] / (row["peak_tflops"] * 1e12)
        memory = row["compulsory_bytes"] / (row["peak_gb_per_s"] * 1e9)
        assert row["bound"] == ("compute" if compute >= memory else "memory")
        assert row["least_ns"] == pytest.approx(max(compute, memory) * 1e9)
        assert row["bound_by"] == pytest.approx(max(compute, memory) / min(compute, memory))
        assert row["least_ns"] < row["graph_median_ns"]


def test_what_is_first_has_most_to_gain(two: BenchResults) -> None:
    """Launches or the kernel, of the fastest backend: the larger gap, and shapes in its order."""
    rows = priorities(two)
    assert set(rows["backend"]) == {"flash"}
    assert rows["gain_ns"].is_monotonic_decreasing
    for row in rows.to_dict("records"):
        gaps = {"launches": row["median_ns"] - row["graph_median_ns"], row["bound"]: row["now_ns"] - row["least_ns"]}
        assert row["first"] == max(gaps, key=lambda name: gaps[name])
        assert row["gain_ns"] == pytest.approx(max(gaps.values()))
    (line,) = limit_findings(two)
    assert line.startswith("limits: ")
    assert "flash at S4096 (" in line
    assert "| S4096 | flash | arithmetic of flash at S4096" in bench_report(two)


def test_without_peaks_nothing_is_said(tmp_path: Path) -> None:
    """On a CPU whose peaks were not measured."""
    results = results_of(tmp_path, made_up(device="cpu", samples=20))
    assert results.results["bound"].isna().all()
    assert list(limit_findings(results)) == []
    assert "What limits each shape" not in bench_report(results)


def test_the_spread_is_that_of_the_samples(two: BenchResults, tmp_path: Path) -> None:
    """Mean, standard deviation, and a 99 % quantile where there are 100 samples; words where there are fewer."""
    for row, point in zip(two.results.to_dict("records"), two.samples.points, strict=True):
        values = point.latency_ns
        assert (row["mean_ns"], row["sd_ns"]) == (values.mean(), values.std(ddof=1))
        assert row["p99_ns"] == np.quantile(values, 0.99)
    few = results_of(tmp_path, made_up(samples=99))
    assert few.results["p99_ns"].isna().all()
    lines = [line for line in bench_report(few).splitlines() if "needs 100 samples" in line]
    assert len(lines) == len(few.results)


def test_larger_shapes_are_compared_with_the_first(two: BenchResults) -> None:
    """Latency over latency, with what both intervals allow, and work per time."""
    rows = two.results[two.results["backend"] == "flash"].sort_values("seq").to_dict("records")
    ratio = rows[-1]["median_ns"] / rows[0]["median_ns"]
    (line,) = [line for line in bench_report(two).splitlines() if line.startswith("| S1024 to S4096 | flash")]
    assert f"| {ratio:.2f}x (" in line
    assert line.endswith(f"| {rows[-1]['tflops'] / rows[0]['tflops']:.2f}x |")


@pytest.mark.parametrize(
    ("target", "missed"),
    [
        ("flash/math>=1.10", []),
        ("flash/math >= 15, delta >= 0.3", []),
        ("graph:flash/math>=20", []),
        ("flash/math>=30", ["S1024"]),
        ("flash/math>=1000", ["S1024", "S2048", "S4096"]),
        ("math/flash>=1", ["S1024", "S2048", "S4096"]),
        ("flash/flash>=1", ["S1024", "S2048", "S4096"]),
    ],
)
def test_a_target_is_met_where_it_surely_is(two: BenchResults, target: str, missed: list[str]) -> None:
    """By the lower end of the interval, shape by shape; what was not compared is missed."""
    lines = list(missed_targets(two, read_targets([target], two.backends)))
    assert [line.split(" at ")[1].split(":")[0] for line in lines] == missed


def test_a_target_may_want_an_effect(tmp_path: Path) -> None:
    """A ratio above 1 with samples that overlap is no large effect."""
    results = results_of(tmp_path, made_up(noise=0.3, slower={"math": 0.06}, samples=400))
    ratios = [results.speedup(name, "math", "flash") for name in results.labels]
    assert any(0 < abs(pair["speedup"] - 1) < 0.5 for pair in ratios if pair)
    lines = list(missed_targets(results, read_targets(["flash/math>=0.1,delta>=1"], results.backends)))
    assert any("but delta 0." in line for line in lines)


@pytest.mark.parametrize("text", ["flash>=2", "flash/math", "flash/math>2", "flash/math>=x", "gpu:flash/math>=1"])
def test_a_mistake_in_a_target_is_told_at_once(text: str) -> None:
    """With the forms that there are; so are backends that are no part of it."""
    with pytest.raises(NsysprofError, match="not a target") as refused:
        read_targets([text], ["flash", "math"])
    assert "flash/math>=1.10" in str(refused.value.hint)
    with pytest.raises(NsysprofError, match="backend 'cudnn' was not measured"):
        read_targets(["cudnn/math>=1"], ["flash", "math"])


def test_from_shape_to_shape_is_a_ratio_with_what_both_intervals_allow(two: BenchResults) -> None:
    """The least that it can be is from the upper end at the first shape to the lower end at the other."""
    first, *_, last = two.results[two.results["backend"] == "flash"].to_dict("records")
    ends = (("median_ns", "median_ns"), ("low_ns", "high_ns"), ("high_ns", "low_ns"))
    ratio, low, high = (format_ratio(last[of] / first[by]) for of, by in ends)
    assert f"| S1024 to S4096 | flash | fp16 | {ratio} ({low[:-1]}–{high[:-1]}) |" in bench_report(two)
