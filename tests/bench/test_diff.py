"""Two runs of a benchmark against each other: what changed, what is refused, and what counts as a regression."""

import math
from pathlib import Path
from typing import Any

import pytest

from nsysprof.bench.diff import BenchDiff, compare_runs, regressions
from nsysprof.bench.text import diff_table, regression_lines
from nsysprof.errors import NsysprofError
from nsysprof.formats.samples import read_bench_samples
from tests.kit.bench_samples import in_runs, made_up, point_of, write_samples

METRICS = ("latency", "graph latency")


def runs(folder: Path, before: dict[str, Any], after: dict[str, Any], **how: Any) -> BenchDiff:
    """The difference of two made-up runs."""
    old, new = write_samples(folder / "before", before), write_samples(folder / "after", after)
    return compare_runs(read_bench_samples(old), read_bench_samples(new), **how)


def again(data: dict[str, Any], **how: Any) -> dict[str, Any]:
    """Another run of the same plan: other samples."""
    other = made_up(seed=99, **how)
    other["plan"] = data["plan"]
    return other


def row_of(diff: BenchDiff, backend: str, seq: int, metric: str) -> dict[str, Any]:
    """One row."""
    rows = diff.rows
    (row,) = rows[(rows["backend"] == backend) & (rows["seq"] == seq) & (rows["metric"] == metric)].to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_a_run_against_its_repetition_shows_no_change(tmp_path: Path) -> None:
    """Other samples of the same speed: no verdict but "no clear change", and no regression."""
    data = made_up(samples=60)
    diff = runs(tmp_path, data, again(data, samples=60))
    assert set(diff.rows["verdict"]) == {"no clear change"}
    assert diff.rows["metric"].tolist() == ["latency", "graph latency", "peak memory"] * 6
    assert diff.rows["overlap"].all()
    assert regressions(diff, 0).empty
    assert diff.differences == diff.only_before == diff.only_after == ()


def test_a_slower_backend_is_found_with_its_change(tmp_path: Path) -> None:
    """8 % slower: the change with its interval, intervals apart, a large effect; the others are as they were."""
    data = made_up(samples=60)
    diff = runs(tmp_path, data, again(data, samples=60, slower={"flash": 1.08}))
    row = row_of(diff, "flash", 2048, "latency")
    assert row["verdict"] == "slower"
    assert row["change_low"] < 0.08 < row["change_high"]
    assert row["change"] == pytest.approx(row["after"] / row["before"] - 1)
    assert (row["overlap"], row["delta_word"], row["before_n"]) == (False, "large", 60)
    assert set(diff.rows[diff.rows["backend"] == "math"]["verdict"]) == {"no clear change"}


def test_one_run_a_side_is_no_regression(tmp_path: Path) -> None:
    """Two runs of nothing differ, too: "slower" holds within these two, and only several runs make a regression."""
    data, slow = made_up(samples=60), made_up(samples=60, slower={"flash": 1.08}, seed=99)
    slow["plan"] = data["plan"]
    alone = runs(tmp_path, data, slow)
    assert set(alone.rows[alone.rows["backend"] == "flash"]["verdict"]) == {"slower", "no clear change"}
    assert regressions(alone, 0).empty
    assert "two single runs cannot show a regression" in diff_table(alone)
    diff = runs(tmp_path, in_runs(data), in_runs(slow))
    assert set(regressions(diff, 0.05)["metric"]) == {"latency", "graph latency"}
    assert len(regressions(diff, 0.05)) == 6
    assert regressions(diff, 0.10).empty


def test_a_faster_backend_is_no_regression(tmp_path: Path) -> None:
    """Turned round, the same change is an improvement."""
    data = made_up(samples=60, slower={"flash": 1.08})
    diff = runs(tmp_path, data, again(data, samples=60))
    assert row_of(diff, "flash", 2048, "latency")["verdict"] == "faster"
    assert regressions(diff, 0).empty


def test_memory_that_grew_is_a_regression(tmp_path: Path) -> None:
    """Memory is counted: 10 % more counts without a test, 1 % is below the least effect."""
    data, after = made_up(samples=20), made_up(samples=20)
    for seq, factor in ((1024, 1.1), (2048, 1.01), (4096, 0.5)):
        memory = point_of(after, "flash", seq)["memory"]
        memory["peak_bytes"] = round(memory["peak_bytes"] * factor)
    diff = runs(tmp_path, data, after)
    verdicts = [row_of(diff, "flash", seq, "peak memory")["verdict"] for seq in (1024, 2048, 4096)]
    assert verdicts == ["more", "no clear change", "less"]
    assert math.isnan(row_of(diff, "flash", 1024, "peak memory")["adjusted_p"])
    assert regressions(diff, 0.05)[["metric", "seq"]].to_numpy().tolist() == [["peak memory", 1024]]


def test_unlike_environments_are_refused_by_what_differs(tmp_path: Path) -> None:
    """Each difference with both values; --unlike lets them through, and they stay named."""
    before, after = made_up(samples=10), made_up(samples=10)
    after["environment"]["driver"] = "590.10"
    after["environment"]["workload"]["torch"] = "2.12.0"
    after["environment"]["gpus"][0]["name"] = "NVIDIA H100"
    after["environment_hash"] = "0123456789abcdef"
    after["plan"]["warm_cache"] = True
    with pytest.raises(NsysprofError, match="not comparable") as refused:
        runs(tmp_path, before, after)
    for message in (
        "driver 580.95.05 before, 590.10 after",
        "workload.torch 2.11.0+cu130 before, 2.12.0 after",
        "gpus.name NVIDIA H200 before, NVIDIA H100 after",
        "warm_cache False before, True after",
    ):
        assert message in refused.value.message
    assert refused.value.hint == "--unlike compares these runs anyway"
    diff = runs(tmp_path, before, after, unlike=True)
    assert len(diff.differences) == 4
    assert "unlike: gpus.name NVIDIA H200 before, NVIDIA H100 after; driver 580.95.05" in diff_table(diff)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (made_up(workload="transformer_block", samples=5), "workload is sdpa and transformer_block"),
        (made_up(device="cpu", samples=5), "device is cuda and cpu"),
        (made_up(backward=True, samples=5), "backward is False and True"),
        (made_up(seqs=(512,), samples=5), "no measured point in common"),
    ],
)
def test_different_things_are_never_compared(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    """Not even when asked to ignore the environment."""
    with pytest.raises(NsysprofError, match=message):
        runs(tmp_path, made_up(samples=5), other, unlike=True)


def test_other_company_is_another_way_of_measuring(tmp_path: Path) -> None:
    """A backend that took turns with others in one run is refused, which of them is named."""
    before, after = made_up(samples=10), made_up(samples=10)
    for data, company in ((before, ["math", "math_reduced"]), (after, ["math"])):
        point_of(data, "flash", 2048)["sampled_with"] = company
    with pytest.raises(NsysprofError, match="interleaved with math_reduced only before") as refused:
        runs(tmp_path, before, after)
    assert refused.value.hint == "--unlike compares these runs anyway"
    assert runs(tmp_path, before, after, unlike=True).differences == ("interleaved with math_reduced only before",)
    with pytest.raises(NsysprofError, match="interleaved with math_reduced only after"):
        runs(tmp_path, after, before)


def test_a_change_must_exceed_what_a_backend_differs_from_itself_by(tmp_path: Path) -> None:
    """8 % slower, but 10 % apart within one of the runs; graphs have no such control."""
    data = made_up(samples=60)
    after = again(data, samples=60, slower={"flash": 1.08})
    point = point_of(after, "flash", 2048)
    point["aa_latency_ns"] = [value * 1.1 for value in point["latency_ns"]]
    diff = runs(tmp_path, data, after)
    verdicts = {row["metric"]: row["verdict"] for row in [row_of(diff, "flash", 2048, name) for name in METRICS]}
    assert verdicts == {"latency": "no clear change", "graph latency": "slower"}
    assert row_of(diff, "flash", 1024, "latency")["verdict"] == "slower"
    assert row_of(diff, "flash", 2048, "latency")["reason"].startswith("below the smallest meaningful effect of 10")


def test_points_of_one_run_alone_are_named(tmp_path: Path) -> None:
    """With what became of them in the other."""
    before, after = made_up(samples=10), made_up(samples=10, memory_limit=1e9)
    before["points"] = [point for point in before["points"] if point["configuration"]["seq"] != 1024]
    diff = runs(tmp_path, before, after)
    assert diff.only_before == ("math at B1.H8.S4096.D64.fp16.causal (out of memory in the other run)",)
    assert diff.only_after == ("math at B1.H8.S1024.D64.fp16.causal", "flash at B1.H8.S1024.D64.fp16.causal")
    assert "only before: math at B1.H8.S4096" in diff_table(diff)


def test_results_that_became_wrong_are_named(tmp_path: Path) -> None:
    """A point that was measured before and is wrong now; not one that was wrong already."""
    before, after = made_up(samples=12), made_up(samples=12)
    for seq in (1024, 2048):
        point_of(after, "flash", seq)["status"] = "wrong"
    point_of(before, "flash", 1024)["status"] = "wrong"
    assert runs(tmp_path, before, after).now_wrong == ("flash at B1.H8.S2048.D64.fp16.causal",)


def test_too_few_samples_make_no_verdict(tmp_path: Path) -> None:
    """Four samples of each show nothing, so nothing is a regression."""
    data = made_up(samples=4)
    diff = runs(tmp_path, data, again(data, samples=4, slower={"flash": 2.0}))
    times = diff.rows[diff.rows["metric"] != "peak memory"]
    assert set(times["verdict"]) == {"too few samples"}
    assert regressions(diff, 0.05).empty


EXPECTED = """
shape  backend  metric     before     after        change  detectable            effect          verdict
-----  -------  -------  --------  --------  ------------  ----------  ----------------  ---------------
S1024  math     latency    194 µs    194 µs  +0.0 ± 0.3 %       2.0 %  +0.00 negligible  no clear change
                graph      194 µs    194 µs  +0.0 ± 0.1 %       2.0 %  +0.00 negligible  no clear change
                peak      100 MiB   100 MiB        +0.0 %                                no clear change
       flash    latency   9.76 µs   10.5 µs  +8.0 ± 0.4 %       2.0 %       +1.00 large           slower
"""


def test_the_ablation_table_fits_a_terminal(tmp_path: Path) -> None:
    """The same samples, flash 8 % slower: the first rows whole, the width, and a line per regression."""
    diff = runs(tmp_path, made_up(), made_up(slower={"flash": 1.08}))
    text = diff_table(diff)
    assert EXPECTED in text
    assert max(map(len, text.splitlines())) <= 110
    assert "12 comparisons: 6 slower, 6 no clear change; a difference counts if it is at least 2.0 %" in text
    several = runs(tmp_path, in_runs(made_up()), in_runs(made_up(slower={"flash": 1.08})))
    lines = regression_lines(several, 0.05)
    assert len(lines) == 6
    assert lines[0] == "S1024 flash: latency 9.76 µs → 10.5 µs, +8.0 % (above 5.0 %)"
    assert regression_lines(diff, 0.2) == []
