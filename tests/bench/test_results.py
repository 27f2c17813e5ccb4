"""The answers of a benchmark: figures, comparisons, decisions, growth, and what is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nsysprof.bench.results import BenchResults, results_of_samples
from nsysprof.bench.scaling import find_sweeps, fit_exponent
from nsysprof.bench.tables import TABLES, columns_of
from nsysprof.core.arrays import Floats
from nsysprof.formats.samples import read_bench_samples
from nsysprof.hardware.attention_cost import AttentionShape, attention_flops
from nsysprof.statistics.contrast import NO_CLEAR_CHANGE, TOO_FEW_SAMPLES, Rules
from nsysprof.statistics.summary import summarize
from tests.bench.conftest import ALL
from tests.kit.bench_samples import latency_model, made_up, merged, point_of, results_of, write_samples


def row_of(results: BenchResults, backend: str, seq: int, dtype: str = "fp16") -> dict[str, Any]:
    """One row of the results."""
    frame = results.results
    (row,) = frame[(frame["backend"] == backend) & (frame["seq"] == seq) & (frame["dtype"] == dtype)].to_dict("records")
    return {str(name): value for name, value in row.items()}


def pair_of(results: BenchResults, base: str, new: str, seq: int, kind: str = "eager") -> dict[str, Any]:
    """One comparison in one dtype, whichever way round it is."""
    rows = results.comparisons[(results.comparisons["kind"] == kind) & (results.comparisons["seq"] == seq)]
    (name,) = set(rows["configuration"])
    return results.speedups[kind, name, base, new]


def test_the_columns_are_those_that_are_declared(sweep: BenchResults) -> None:
    """In the same order."""
    for declared in TABLES:
        assert (
            declared.names
            == columns_of(declared, sweep.about)
            == list(getattr(sweep, declared.file.removesuffix(".csv")).columns)
        )


def test_a_row_is_the_summary_of_its_samples(sweep: BenchResults) -> None:
    """Median, interval, quantiles and outliers come from the statistics and nowhere else."""
    row = row_of(sweep, "flash", 2048)
    point = next(p for p in sweep.samples.points if p.backend == "flash" and p.shape.sizes["seq"] == 2048)
    summary = summarize(point.latency_ns)
    assert (row["n"], row["median_ns"], row["q25_ns"]) == (50, summary.median, summary.p25)
    assert (row["low_ns"], row["high_ns"]) == (summary.interval.low, summary.interval.high)
    assert (row["outliers"], row["cv"]) == (summary.outliers, summary.cv)
    assert row["graph_median_ns"] == np.median(point.samples("graph"))


def test_derived_figures_follow_from_latency_and_shape(sweep: BenchResults) -> None:
    """FLOP/s, GB/s, tokens and intensity, worked out by hand."""
    row = row_of(sweep, "flash", 2048)
    seconds = row["median_ns"] / 1e9
    flops = attention_flops(AttentionShape(1, 8, 2048, 64, causal=True))
    tensor = 8 * 2048 * 64 * 2
    assert row["flops"] == flops == 4 * 64 * 8 * 2048 * 2049 // 2
    assert row["compulsory_bytes"] == row["traffic_bytes"] == 4 * tensor
    assert row["tflops"] == pytest.approx(flops / seconds / 1e12)
    assert row["gb_per_s"] == pytest.approx(4 * tensor / seconds / 1e9)
    assert row["tokens_per_s"] == pytest.approx(2048 / seconds)
    assert row["intensity"] == flops / (4 * tensor)
    assert row["peak_tflops"] == pytest.approx(132 * 1980e6 * 4096 / 1e12)
    assert row["share_of_peak"] == pytest.approx(row["tflops"] / row["peak_tflops"])
    assert row["share_of_measured_peak"] == pytest.approx(row["tflops"] / 740)
    math_row = row_of(sweep, "math", 2048)
    assert math_row["traffic_bytes"] == 4 * tensor + 6 * 8 * 2048**2 * 4
    assert math_row["share_of_bandwidth"] == pytest.approx(math_row["gb_per_s"] / math_row["peak_gb_per_s"])


def test_memory_is_also_in_score_matrices(sweep: BenchResults) -> None:
    """math holds three float32 matrices beside its tensors, which are six of fp16."""
    row = row_of(sweep, "math", 4096)
    assert row["score_matrix_bytes"] == 8 * 4096**2 * 2
    assert row["temporary_matrices"] == pytest.approx(6, abs=0.01)
    assert row["peak_matrices"] == row["peak_bytes"] / row["score_matrix_bytes"]


def test_a_training_block_counts_its_projections(tmp_path: Path) -> None:
    """The transformer block has its own FLOPs, and tokens per second of batch × seq."""
    data = made_up(("flash",), (512,), batch=8, workload="transformer_block", backward=True, samples=10)
    row = row_of(results_of(tmp_path, data), "flash", 512)
    width = 8 * 64
    attention = attention_flops(AttentionShape(8, 8, 512, 64, causal=True))
    assert row["flops"] == 3 * (2 * 8 * 512 * 4 * width**2 + attention)
    assert row["tokens_per_s"] == pytest.approx(8 * 512 / row["median_ns"] * 1e9)
    assert bool(row["backward"])


def test_errors_are_compared_with_their_own_tolerances(tmp_path: Path) -> None:
    """The one nearest to its limit is shown, not the largest; a NaN error is the worst there is."""
    data = made_up(("flash", "math"), (512,), samples=10)
    point_of(data, "flash", 512).update(
        errors={"output": 1e-4, "dq": 1.5e-3}, tolerances={"output": 1.1e-4, "dq": 4e-3}
    )
    point_of(data, "math", 512).update(errors={"output": None, "dq": 1e-5}, status="wrong", latency_ns=[], throttled=[])
    results = results_of(tmp_path, data)
    row = row_of(results, "flash", 512)
    assert (row["error"], row["tolerance"]) == (1e-4, 1.1e-4)
    assert math.isnan(row_of(results, "math", 512)["error"])
    assert any("math at" in line and "gives a wrong result and was not timed" in line for line in results.warnings)


def test_the_published_share_is_refused_with_the_suspects(tmp_path: Path) -> None:
    """0.523 ms for H8 S4096 D64 on an RTX 4060 Ti is 183 % of the peak at 1,031 MHz: the clock is suspect."""
    data = made_up(("flash",), (4096,), samples=20, noise=1e-4)
    data["environment"]["gpus"] = []
    data["environment"]["workload"] = {
        "device": "NVIDIA GeForce RTX 4060 Ti",
        "compute_capability": "8.9",
        "sm_count": 34,
        "max_sm_clock_mhz": 2565,
    }
    data["peaks"] = None
    point = point_of(data, "flash", 4096)
    scale = 523_000 / np.median(point["latency_ns"])
    point["latency_ns"] = [value * scale for value in point["latency_ns"]]
    point["graph_latency_ns"] = None
    flops = 4 * 64 * 8 * 4096 * 4097 / 2
    for state in point["gpu"]:
        state["sm_clock_mhz"] = flops / 523e-6 / 1.83 / (34 * 512) / 1e6
    results = results_of(tmp_path, data)
    row = row_of(results, "flash", 4096)
    assert math.isnan(row["share_of_peak"])
    assert row["tflops"] == pytest.approx(32.9, abs=0.1)  # what was reached stays
    assert "FLOP/s: 183 % of the peak is impossible" in row["refused"]
    assert "the clock (1,031 MHz sampled, up to 2,565 MHz possible)" in row["refused"]
    assert any(row["refused"] in line for line in results.warnings)


def made_faster(data: dict[str, Any], factor: float) -> dict[str, Any]:
    """All latencies of flash at S=4096 divided."""
    point = point_of(data, "flash", 4096)
    for field in ("latency_ns", "aa_latency_ns", "graph_latency_ns"):
        point[field] = [value / factor for value in point[field]]
    return data


@pytest.mark.parametrize(
    ("change", "factor", "suspect"),
    [
        ({"causal": False}, 3, "causal counting"),
        ({}, 12, "the timer (4.15 µs by cuda events)"),
        ({"causal": False}, 6, "the shape or the timer or the number of SMs"),
        ({"dtypes": {"fp32": ("efficient",)}}, None, "the dtype (float32 matrix products may have run on tensor cores"),
    ],
)
def test_the_suspect_is_what_would_explain_it(
    tmp_path: Path, change: dict[str, Any], factor: float | None, suspect: str
) -> None:
    """A mask that was not counted, a call too short for its clock, TF32, or none of these."""
    data = made_up(("flash",), (4096,), samples=20, **change)
    if factor is not None:
        data = made_faster(data, factor)
    else:
        point = point_of(data, "efficient", 4096)
        point["latency_ns"] = [value / 4 for value in point["latency_ns"]]
    rows = results_of(tmp_path, data).results
    assert suspect in rows["refused"].iloc[0]


def test_no_share_of_bandwidth_from_a_warm_cache(tmp_path: Path) -> None:
    """What comes from the cache says nothing about memory."""
    data = made_up(("math",), (1024,), samples=10)
    point_of(data, "math", 1024)["cache"] = "warm"
    row = row_of(results_of(tmp_path, data), "math", 1024)
    assert math.isnan(row["share_of_bandwidth"])
    assert row["gb_per_s"] > 0
    assert pd.isna(row["refused"])


def test_score_matrices_in_the_cache_are_no_wrong_peak(tmp_path: Path) -> None:
    """More traffic than memory can give is left empty; more compulsory reads than that are refused."""
    data = made_up(("math",), (512,), samples=10)
    point = point_of(data, "math", 512)
    point["graph_latency_ns"] = None
    point["latency_ns"] = [8_000.0 + number for number in range(10)]  # 6.5 TB/s of scores, 0.2 of inputs
    row = row_of(results_of(tmp_path, data), "math", 512)
    assert math.isnan(row["share_of_bandwidth"])
    assert pd.isna(row["refused"])
    point["latency_ns"] = [300.0 + number for number in range(10)]
    row = row_of(results_of(tmp_path, data), "math", 512)
    assert "bytes read" in row["refused"]


def test_without_a_gpu_there_are_no_peaks(tmp_path: Path) -> None:
    """A CPU run has latencies and comparisons, and nothing about peaks, memory or graphs."""
    results = results_of(tmp_path, made_up(seqs=(64, 128), device="cpu", samples=12))
    frame = results.results
    assert frame["median_ns"].notna().all()
    for column in ("share_of_peak", "share_of_bandwidth", "graph_median_ns"):
        assert frame[column].isna().all()
    assert frame["peak_bytes"].isna().all()
    assert frame["refused"].isna().all()
    assert set(results.comparisons["kind"]) == {"eager"}


def test_speedups_are_ratios_of_medians_with_verdicts(sweep: BenchResults) -> None:
    """flash over math, its interval around the ratio that the samples were made with."""
    pair = pair_of(sweep, "math", "flash", 4096)
    flops = attention_flops(AttentionShape(1, 8, 4096, 64, causal=True))
    made = latency_model("math", flops, "fp16") / latency_model("flash", flops, "fp16")
    assert pair["verdict"] == "faster"
    assert pair["speedup_low"] < pair["speedup"] < pair["speedup_high"]
    assert pair["speedup"] == pytest.approx(made, rel=0.01)
    turned = pair_of(sweep, "flash", "math", 4096)
    assert turned["verdict"] == "slower"
    assert turned["speedup"] == pytest.approx(1 / pair["speedup"])
    assert turned["speedup_low"] == pytest.approx(1 / pair["speedup_high"])
    assert turned["delta"] == -pair["delta"] > 0


def test_every_pair_is_judged_in_one_family_with_its_controls(sweep: BenchResults) -> None:
    """10 pairs of 5 backends at 5 lengths; each of the two has been compared with itself."""
    for kind in ("eager", "graph"):
        rows = sweep.comparisons[sweep.comparisons["kind"] == kind]
        assert len(rows) == 50
        assert set(rows["family"]) == {50}
        assert (rows["adjusted_p"] >= rows["p"]).all()
    assert set(sweep.comparisons["base_aa"]) | set(sweep.comparisons["new_aa"]) <= {NO_CLEAR_CHANGE}
    assert (sweep.aa_compared, sweep.aa_different) == (25, 0)


def test_the_same_speed_is_no_clear_change(sweep: BenchResults) -> None:
    """auto runs what cudnn runs."""
    assert pair_of(sweep, "cudnn", "auto", 4096)["verdict"] == NO_CLEAR_CHANGE


def test_few_samples_make_no_verdict(tmp_path: Path) -> None:
    """Not even for a ratio of twenty."""
    results = results_of(tmp_path, made_up(samples=4))
    assert set(results.comparisons["verdict"]) == {TOO_FEW_SAMPLES}
    assert set(results.decisions["unsure"]) == {"math"}
    assert set(results.decisions["runner_up"]) == {None} or results.decisions["runner_up"].isna().all()


def test_a_larger_least_effect_takes_verdicts_away(tmp_path: Path) -> None:
    """flash is 3 % slower in one run: clear at 2 %, not at 5 %."""
    data = made_up(("cudnn", "auto"), (4096,), samples=60, slower={"auto": 1.03})
    path = write_samples(tmp_path, data)
    for least, verdict in ((0.02, "slower"), (0.05, NO_CLEAR_CHANGE)):
        results = results_of_samples(read_bench_samples(path), Rules(least_effect=least))
        assert pair_of(results, "cudnn", "auto", 4096)["verdict"] == verdict


def test_what_differs_from_itself_differs_from_others_by_more(tmp_path: Path) -> None:
    """5 % between two backends, 20 % between two sets of one of them: no verdict on calls, but one on graphs."""
    data = made_up(("flash", "cudnn", "math"), (4096,), samples=60, slower={"cudnn": 1.05 * 0.755})
    cudnn = point_of(data, "cudnn", 4096)
    cudnn["latency_ns"] = [value * 1.05 for value in point_of(data, "flash", 4096)["latency_ns"]]
    cudnn["aa_latency_ns"] = [value * 1.2 for value in cudnn["latency_ns"]]
    results = results_of(tmp_path, data)
    assert pair_of(results, "flash", "cudnn", 4096)["verdict"] == NO_CLEAR_CHANGE
    eager = results.comparisons[results.comparisons["kind"] == "eager"].set_index(["base", "new"])
    assert eager["least_effect"]["flash", "cudnn"] == pytest.approx(0.2)
    assert eager["reason"]["flash", "cudnn"] == "below the smallest meaningful effect of 20 %"
    assert pair_of(results, "math", "flash", 4096)["verdict"] == "faster"
    graph = results.comparisons[results.comparisons["kind"] == "graph"]
    assert set(graph["least_effect"]) == {0.02}


def test_auto_repeats_what_was_measured_by_name(sweep: BenchResults, tmp_path: Path) -> None:
    """Unless one of its picks was not, or was not seen."""
    assert sweep.repeats == {"auto"}
    alone = made_up(("math", "auto"), (1024,), samples=10)
    assert results_of(tmp_path / "alone", alone).repeats == frozenset()
    unseen = made_up(ALL, (1024,), samples=10)
    unseen["auto"] = {}
    assert results_of(tmp_path / "unseen", unseen).repeats == frozenset()


def test_decisions_name_the_fastest_and_who_it_beats(sweep: BenchResults) -> None:
    """flash where launches count, cudnn from S=2048 on; auto is nobody's winner, since cudnn was measured."""
    eager = sweep.decisions[sweep.decisions["kind"] == "eager"]
    assert dict(zip(eager["seq"], eager["decision"], strict=True)) == {
        256: "flash", 512: "flash", 1024: "flash", 2048: "cudnn", 4096: "cudnn"
    }  # fmt: skip
    last = eager[eager["seq"] == 4096].iloc[0]
    assert last["runner_up"] == "flash"
    assert last["margin_low"] < last["margin"] < last["margin_high"]
    assert last["margin"] == pytest.approx(pair_of(sweep, "flash", "cudnn", 4096)["speedup"])


def test_backends_without_a_clear_difference_share_the_decision(tmp_path: Path) -> None:
    """Two equal backends are both the answer."""
    data = made_up(("flash", "cudnn", "math"), (2048,), samples=50)
    flash, cudnn = point_of(data, "flash", 2048), point_of(data, "cudnn", 2048)
    for field in ("latency_ns", "aa_latency_ns", "graph_latency_ns"):
        cudnn[field] = [value * 1.001 for value in flash[field]]
    decisions = results_of(tmp_path, data).decisions
    assert set(decisions["decision"]) == {"flash or cudnn"}
    assert set(decisions["runner_up"]) == {"math"}


def test_auto_decides_where_its_pick_has_no_name_of_its_own(tmp_path: Path) -> None:
    """In fp32 the plan had naive and auto alone."""
    data = made_up(dtypes={"fp32": ("naive", "auto")}, seqs=(2048,), samples=30)
    decisions = results_of(tmp_path, data).decisions
    assert set(decisions["best"]) == {"auto"}


def test_auto_is_held_against_the_best(sweep: BenchResults) -> None:
    """At S=512 it takes cudnn although flash is faster there; at 4096 it is as fast as the best."""
    auto = sweep.auto.set_index("seq")
    assert set(auto["picked"]) == {"cudnn"}
    assert (auto["best"][512], auto["verdict"][512]) == ("flash", "faster")
    assert auto["speedup"][512] == pytest.approx(12_600 / 9_800, rel=0.02)
    assert (auto["best"][4096], auto["verdict"][4096]) == ("cudnn", NO_CLEAR_CHANGE)
    assert (auto["graph_best"][4096], auto["graph_verdict"][4096]) == ("cudnn", NO_CLEAR_CHANGE)
    assert auto["graph_speedup_low"][4096] <= 1 <= auto["graph_speedup_high"][4096]
    assert auto["equivalent"].all()


def test_crossings_say_from_where_on(sweep: BenchResults) -> None:
    """cudnn passes flash between 1024 and 2048; math is beaten everywhere."""
    row = crossing_of(sweep, "cudnn", "flash")
    assert (row["status"], row["from_seq"]) == ("from there on", 2048)
    assert 1024 < row["crossing_seq"] < 2048
    assert row["first_speedup"] < 1 < row["last_speedup"]
    assert crossing_of(sweep, "flash", "math")["status"] == "everywhere"
    assert math.isnan(crossing_of(sweep, "flash", "math")["crossing_seq"])
    assert crossing_of(sweep, "auto", "cudnn")["status"] == "no clear difference"


def crossing_of(results: BenchResults, winner: str, loser: str) -> dict[str, Any]:
    """One row of the eager crossings."""
    found = results.crossovers
    found = found[(found["kind"] == "eager") & (found["winner"] == winner) & (found["loser"] == loser)]
    (row,) = found.to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_memory_grows_as_the_backends_hold_it(sweep: BenchResults) -> None:
    """Temporary memory of math as S², of flash as S, with the exponent inside its interval."""
    rows = sweep.exponents[sweep.exponents["metric"] == "temporary memory"].set_index("backend")
    assert (rows["growth"]["math"], rows["growth"]["flash"]) == ("as S²", "as S")
    assert rows["exponent"]["math"] == pytest.approx(2, abs=0.01)
    assert rows["low"]["flash"] <= 1 <= rows["high"]["flash"]


def test_latency_below_the_launches_is_no_power_of_s(sweep: BenchResults) -> None:
    """Flat at first and quadratic in the end: a note instead of an exponent in between."""
    rows = sweep.exponents[sweep.exponents["metric"] == "latency"].set_index("backend")
    assert rows["growth"]["flash"].startswith("no single power, S^1.")
    assert rows["last_exponent"]["math"] == pytest.approx(2, abs=0.03)


@pytest.mark.parametrize(
    ("power", "noise", "growth"),
    [
        (0, 0, "constant"),
        (1, 0, "as S"),
        (2, 0.02, "as S²"),
        (1.5, 0.01, "between S and S²"),
        (3, 0, "faster than S²"),
        (0.5, 0.01, "slower than S"),
    ],
)
def test_a_power_law_is_found(power: float, noise: float, growth: str) -> None:
    """Exponent, interval and word for powers with a little noise."""
    x = np.array([2.0**power_of_two for power_of_two in range(7, 14)])
    y: Floats = 3 * x**power * np.exp(noise * np.random.default_rng(1).standard_normal(len(x)))
    law = fit_exponent(x, y)
    assert law.exponent == pytest.approx(power, abs=0.03)
    assert law.low - 1e-9 <= power <= law.high + 1e-9
    assert law.growth == growth


def test_a_bend_is_no_power_and_a_wide_interval_no_word() -> None:
    """Flat, then steep, with a good fit all the same; and three points that would be called by chance."""
    x = np.array([1024.0, 2048, 4096, 8192, 16384, 32768])
    assert fit_exponent(x, x**2 + 3e7).growth == "no single power, S^1.9 at the end"
    wide = fit_exponent(x[:3], np.array([10.0, 26, 41]))
    assert abs(wide.exponent - 1) < 0.1 < wide.high - wide.low
    assert wide.growth != "as S"


@pytest.mark.parametrize("last", [20.05, 20.0, 20.2])
def test_what_hardly_changes_is_constant(last: float) -> None:
    """Where nothing grows, R² says nothing: there is nothing to explain."""
    law = fit_exponent(np.array([128.0, 256, 512, 1024]), np.array([20.0, 20.1, 19.9, last]))
    assert law.growth == "constant"


def test_two_points_are_too_few_for_a_law() -> None:
    """A slope, but no interval and no word."""
    law = fit_exponent(np.array([1024.0, 2048]), np.array([1.0, 4]))
    assert [law.exponent, law.last] == pytest.approx([2, 2])
    assert math.isnan(law.low)
    assert law.growth == "too few points"


def test_the_interval_of_an_exponent_holds_it() -> None:
    """In 95 of 100 noisy sweeps of five lengths, give or take."""
    rng = np.random.default_rng(0)
    x = np.array([256.0, 512, 1024, 2048, 4096])
    noisy: list[Floats] = [x**1.7 * np.exp(0.05 * rng.standard_normal(5)) for _ in range(1000)]
    laws = [fit_exponent(x, y) for y in noisy]
    held = np.mean([law.low <= 1.7 <= law.high for law in laws])
    assert 0.93 <= held <= 0.97


def test_sweeps_cover_a_grid_once(tmp_path: Path) -> None:
    """S first, then what it leaves out by batch and by heads, as in the preset `baseline`."""
    parts = [made_up(("flash",), (128, 512, 2048), batch=32, samples=8)]
    parts += [made_up(("flash",), (512,), batch=batch, samples=8) for batch in (8, 64)]
    parts += [made_up(("flash",), (512,), batch=32, heads=heads, samples=8) for heads in (4, 16)]
    results = results_of(tmp_path, merged(*parts))
    assert [(each.axis, each.fixed) for each in results.sweeps] == [
        ("seq", "B32 H8 D64 causal"),
        ("batch", "S512 H8 D64 causal"),
        ("heads", "S512 B32 D64 causal"),
    ]
    assert {row for each in results.sweeps for row in each.rows} == set(results.results.index)
    (single,) = find_sweeps(results.results.iloc[:1], results.about)
    assert (single.axis, single.fixed, single.rows) == ("seq", "B32 H8 D64 causal", (0,))


def test_mixed_dtypes_are_compared_and_marked(tmp_path: Path) -> None:
    """naive in fp32 against flash in fp16 is a pair of its own kind, and in no crossing."""
    data = made_up(dtypes={"fp32": ("naive",), "fp16": ("naive", "flash")}, seqs=(1024, 2048), samples=30)
    results = results_of(tmp_path, data)
    eager = results.comparisons[results.comparisons["kind"] == "eager"]
    assert len(eager) == 2 * 3
    mixed = eager[eager["mixed"]]
    assert set(zip(mixed["base"], mixed["base_dtype"], mixed["new"], mixed["new_dtype"], strict=True)) == {
        ("naive", "fp32", "naive", "fp16"),
        ("naive", "fp32", "flash", "fp16"),
    }
    assert set(results.crossovers["dtype"]) == {"fp16"}


def test_what_is_wrong_with_a_run_is_reported(tmp_path: Path) -> None:
    """Missing points, throttled samples, no watch on the clocks, backends that were sampled alone."""
    data = made_up(samples=20)
    data["points"].pop()
    data["gpu_watch"] = {"answers": False, "reason": "no package nvidia-ml-py"}
    point_of(data, "math", 2048)["throttled"] = [number < 5 for number in range(20)]
    point_of(data, "math", 1024)["alone_reason"] = "memory does not suffice beside the other backends"
    point_of(data, "flash", 1024)["warm_until"] = "limit"
    warnings = "\n".join(results_of(tmp_path, data).warnings)
    for message in (
        "1 of 6 points are not measured yet",
        "throttling were not monitored (no package nvidia-ml-py)",
        "math at B1.H8.S2048.D64.fp16.causal: 5 of 20 samples are left out because the GPU was throttled",
        "math at B1.H8.S1024.D64.fp16.causal: measured alone, not interleaved with other "
        "backends (memory does not suffice",
        "flash at B1.H8.S1024.D64.fp16.causal: the time per call was still changing",
    ):
        assert message in warnings


def test_a_point_whose_samples_were_all_throttled_has_no_figures(tmp_path: Path) -> None:
    """It is left out, says so, and breaks nothing."""
    data = made_up(samples=20)
    point_of(data, "flash", 4096)["throttled"] = [True] * 20
    results = results_of(tmp_path, data)
    row = row_of(results, "flash", 4096)
    assert (row["status"], row["n"], row["left_out"]) == ("left out", 0, 20)
    assert math.isnan(row["median_ns"])
    assert set(results.decisions[results.decisions["seq"] == 4096]["decision"]) == {"math"}


def test_nothing_measured_is_an_answer(tmp_path: Path) -> None:
    """All tables are there and empty, and the warning says why."""
    results = results_of(tmp_path, made_up(dtypes={"fp32": ("flash", "cudnn")}, samples=5))
    assert results.results["n"].sum() == 0
    for name in ("comparisons", "decisions", "auto", "exponents", "crossovers"):
        assert getattr(results, name).empty
    assert any("nothing was measured" in line for line in results.warnings)
