"""Whole traces compared: reports without ranges of NVTX, or with them in one report only."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nsysprof.compare.comparison import Comparison
from nsysprof.compare.files import gap_document
from nsysprof.compare.text import comparison_text
from nsysprof.errors import NsysprofError
from tests.compare.conftest import answer
from tests.conftest import MakeTrace
from tests.kit.calls import GEMM, run
from tests.kit.command_line import Run
from tests.kit.gpu_samples import gpu_samples
from tests.kit.trace import Gpu, Items, Kernel, Launch, Memcpy, MpiCall, launch_kernel, launch_memcpy

SOLVE, FETCH = "solve(float*, int)", "fetch(float*)"


def program(solve: int, at: int = 0) -> list[Items]:
    """Three kernels that no rule knows and a copy; ``solve`` is how long two of them run."""
    return [
        launch_memcpy((at + 10, at + 20), (at + 30, at + 130), id=1),
        launch_kernel(SOLVE, (at + 30, at + 35), (at + 200, at + 200 + solve), id=2, grid=(8, 1, 1)),
        launch_kernel(SOLVE, (at + 40, at + 45), (at + 600, at + 600 + solve), id=3, grid=(8, 1, 1)),
        launch_kernel(FETCH, (at + 50, at + 55), (at + 950, at + 1000), id=4),
    ]


def causes(found: Comparison, pair: str = "whole trace") -> dict[str, int]:
    """The difference of each cause of a pair."""
    gaps = found.gaps[found.gaps["pair"] == pair]
    return {
        cause: change
        for cause, change in zip(gaps["cause"], gaps["delta_ns"].tolist(), strict=True)
        if not cause.startswith("idle")
    }


def said_of(*paths: Path) -> tuple[str, ...]:
    """The findings of the whole traces."""
    [found] = answer(*paths).differences.values()
    return found.findings


def both(trace: MakeTrace) -> tuple[Path, Path]:
    """Two reports without ranges, the second with kernels of a third of the time."""
    return trace(*program(300), name="before.sqlite"), trace(*program(100), name="after.sqlite", duration=2000)


def test_a_lower_clock_is_said(trace: MakeTrace) -> None:
    """Where it was sampled on both sides, and differs by 2 % and more."""
    fast, slow, same = (
        trace(*program(300), gpu_samples({"clock_hz": [hz] * 9}), Gpu(0, "A100"), name=f"{hz}.sqlite")
        for hz in (1_410_000_000, 1_250_000_000, 1_400_000_000)
    )
    said = "the GPU clock is 11 % lower in"
    [text] = [text for text in said_of(fast, slow) if "GPU clock" in text]
    assert text.startswith(said)
    assert text.endswith(" (1.41 → 1.25 GHz), which alone makes compute-bound kernels take up to 13 % more time")
    [text] = [text for text in said_of(slow, fast) if "GPU clock" in text]
    assert text.endswith(" (1.25 → 1.41 GHz), which alone makes compute-bound kernels take up to 11 % less time")
    assert not any("GPU clock" in text for text in said_of(fast, same))
    assert not any("GPU clock" in text for text in said_of(*both(trace)))
    other = trace(*program(300), gpu_samples({"clock_hz": [1_980_000_000] * 9}), Gpu(0, "H100"), name="other.sqlite")
    [text] = [text for text in said_of(fast, other) if "the GPU clock is" in text]
    assert text.endswith(" (1.41 → 1.98 GHz)")


def test_reports_without_ranges_are_compared_whole(trace: MakeTrace) -> None:
    """One pair, kernel by kernel and copy by copy; its rows add up to both spans and their difference."""
    found = answer(*both(trace))
    row = found.pairs.iloc[0]
    assert found.pairs["pair"].tolist() == ["whole trace"]
    assert (row["base_span_ns"], row["new_span_ns"], row["base_busy_ns"], row["new_busy_ns"]) == (970, 970, 750, 350)
    assert causes(found) == {"solve": -400, "memcpy HtoD": 0, "fetch": 0}
    for side in ("base", "new"):
        assert int(found.gaps[f"{side}_ns"].sum()) == row[f"{side}_span_ns"]
    assert int(found.gaps["delta_ns"].sum()) == row["delta_ns"] == 0


def test_the_words_are_those_of_a_whole_trace(trace: MakeTrace) -> None:
    """Nothing is per call; how busy GPUs are is of the recording, whose length the report states."""
    found = answer(*both(trace))
    text = " ".join(comparison_text(found).split())
    assert "no clear change in after over the whole trace (970 against 970 ns, n = 1)" in text
    assert "ns in the whole trace, adding up to the span" in text
    assert "the recordings take 1.00 µs and 2.00 µs; GPUs are busy for 75 % and 18 % of the time" in text
    assert "per call" not in text


def test_work_that_nobody_launched_counts(trace: MakeTrace) -> None:
    """A report cut in time has kernels without their calls: they are in the whole trace, as its ledger says."""
    lost = trace(*program(300), Kernel(SOLVE, 1200, 1300, None), name="lost.sqlite")
    found = answer(lost, trace(*program(300)))
    assert causes(found)["solve"] == -100
    assert found.pairs["base_span_ns"].tolist() == [1270]


def test_migrations_keep_no_gpu_busy(trace: MakeTrace) -> None:
    """What the driver moves of unified memory is no work of the whole trace, as in `analyze`."""
    moved = trace(*program(300), Memcpy(5000, 6000, None, kind=11, cause=2), name="moved.sqlite")
    found = answer(moved, trace(*program(300)))
    assert found.pairs[["base_span_ns", "base_busy_ns"]].to_numpy().tolist() == [[970, 750]]


def test_what_only_one_report_annotates_is_compared_whole_and_said(trace: MakeTrace) -> None:
    """A report with ranges of NVTX and one without: whole traces, and which option finds iterations in both."""
    annotated, bare = trace(*run("train", 0, [(GEMM, 200)]), name="a.sqlite"), trace(*program(300))
    for found in (answer(annotated, bare), answer(bare, annotated)):
        assert found.pairs["pair"].tolist() == ["whole trace"]
        [said] = [text for text in found.warnings if "has NVTX ranges" in text]
        assert said.startswith(f"{annotated} has NVTX ranges and {bare} has none, so whole traces are compared")
        assert said.endswith("--ranges found")


def test_ranges_of_mpi_are_pairs_beside_the_whole_traces(trace: MakeTrace) -> None:
    """What both reports name is compared by name too, and the causes of either pair have names of kernels."""
    paths = [
        trace(MpiCall("MPI_Send", 0, 400), *program(solve), name=name)
        for solve, name in ((300, "a.sqlite"), (100, "b.sqlite"))
    ]
    found = answer(*paths)
    assert sorted(found.pairs["pair"]) == ["MPI_Send", "whole trace"]
    assert causes(found, "MPI_Send") == {"solve": -400, "memcpy HtoD": 0, "fetch": 0}


def loop(names: str, length: int = 100, rounds: int = 12) -> list[Items]:
    """Rounds of kernels with one-letter names, each of ``length`` ns, in which nothing is annotated."""
    return [
        launch_kernel(name, (at, at + 5), (at + 10, at + 10 + length + 10 * (turn % 3)), id=turn * 9 + place + 1)
        for turn in range(rounds)
        for place, name in enumerate(names)
        for at in (turn * (3 * length + 1700) + place * (200 + length),)
    ]


def test_found_iterations_are_a_pair_beside_the_whole_traces(trace: MakeTrace) -> None:
    """As many samples as there are rounds give a verdict, which comes first; that nobody annotated them is said."""
    found = answer(trace(*loop("abc", 5000, rounds=16)), trace(*loop("abc", 6000, rounds=16)))
    assert found.pairs[["pair", "verdict"]].to_numpy().tolist() == [
        ["iteration*", "slower"],
        ["whole trace", "too few samples"],
    ]
    assert found.largest == "iteration*"
    assert causes(found, "iteration*") == {"a": 1000, "b": 1000, "c": 1000}
    assert sum("not annotated:" in text for text in found.warnings) == 2


@pytest.mark.parametrize(
    ("others", "pairs", "comparable"),
    [
        (("abc", 100, 12), ["iteration*", "whole trace"], True),
        (("axy", 100, 12), ["whole trace"], True),
        (("aaabbbccc", 100, 12), ["whole trace"], True),
        (("xyz", 100, 12), ["whole trace"], False),
    ],
)
def test_loops_are_one_only_if_they_launch_the_same(
    others: tuple[str, int, int], pairs: list[str], comparable: bool, trace: MakeTrace
) -> None:
    """Found loops of other kernels, or of more of them, are not compared, and reports without a common one neither."""
    found = answer(trace(*loop("abc")), trace(*loop(*others)))
    assert found.pairs["pair"].tolist() == pairs
    assert found.comparable is comparable
    assert comparison_text(found).startswith("cannot be compared: ") is not comparable
    assert gap_document(found)["comparable"] is comparable


def test_whole_traces_can_be_asked_for(trace: MakeTrace) -> None:
    """`--range 'whole trace'` compares annotated reports whole, also where they share no range."""
    paths = trace(*run("train", 0, [(GEMM, 9)])), trace(*run("fit", 0, [(GEMM, 9)]))
    found = answer(*paths, select="whole trace")
    assert found.pairs["pair"].tolist() == ["whole trace"]
    assert causes(found) == {"gemm": 0}


def test_a_trace_without_gpu_work_is_refused(trace: MakeTrace) -> None:
    """It says which report launched nothing."""
    idle = trace(Launch(0, 10, 1), name="idle.sqlite")
    with pytest.raises(NsysprofError, match=r"idle.sqlite: nothing to compare: the report has 1 launch call"):
        answer(idle, trace(*program(300)))


def test_charts_and_page_of_whole_traces(trace: MakeTrace, tmp_path: Path, run: Run) -> None:
    """All files are written; the document has the pair, and the page does not call it a call."""
    done = partial(run, "compare")(*both(trace), "--html", "-o", "out")
    assert done.code == 0
    document = json.loads((tmp_path / "out" / "gap.json").read_text(encoding="utf-8"))
    assert [pair["pair"] for pair in document["pairs"]] == ["whole trace"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Kernels in the whole trace" in page
    assert "The whole traces" in page
    assert "Host calls and copies" in page
    assert document["totals"]["copies"] == [
        {"name": "HtoD pinned", "base_count": 1, "base_ns": 100, "new_count": 1, "new_ns": 100, "delta_ns": 0}
    ]
    assert {"compare.png", "gap.png"} <= {file.name for file in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("how", [{"per": "iter*"}, {"skip": 1}, {"instances": ["0-3"]}])
def test_calls_cannot_be_chosen_in_whole_traces(how: dict[str, Any], trace: MakeTrace) -> None:
    """There are none; the hint names the options."""
    with pytest.raises(NsysprofError, match="calls cannot be selected"):
        answer(*both(trace), **how)


def test_copies_and_host_calls_stand_side_by_side(trace: MakeTrace) -> None:
    """Counts and added durations of either report, the largest change first; what only one has is there as well."""
    before = trace(*program(300), launch_memcpy((60, 65), (1010, 1040), id=9, kind=2), name="before.sqlite")
    found = answer(before, trace(*program(300)))
    copies = found.totals["copies"]
    assert copies[["base_count", "base_ns", "new_count", "new_ns", "delta_ns"]].to_numpy().tolist() == [
        [1, 30, 0, 0, -30],
        [1, 100, 1, 100, 0],
    ]
    assert found.totals["calls"].to_numpy().tolist() == [
        ["cudaMemcpyAsync", 2, 15, 1, 10, -5],
        ["cudaLaunchKernel", 3, 15, 3, 15, 0],
    ]
    text = comparison_text(found, every=True)
    assert re.search(r"DtoH pinned +1 → 0 +30 ns +0 ns +-30 ns", text)
    assert re.search(r"total +2 → 1 +130 ns +100 ns +-30 ns", text)
    assert answer(*(trace(*run("train", 0, [(GEMM, 9)])) for _ in range(2))).totals == {}


def test_a_numbered_range_is_named_as_an_instance(trace: MakeTrace) -> None:
    """`iter7` is one of `iter*`: the hint says how to take it."""
    path = trace(*run("train", 0, [(GEMM, 9)]), name="a.sqlite")
    with pytest.raises(NsysprofError, match="matches 'iter7'") as caught:
        answer(path, path, select="iter7")
    assert caught.value.hint == "numbered ranges are instances: --range 'iter*' --instance 7, --instance per side"
