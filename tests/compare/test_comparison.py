"""Comparisons on tiny reports: pairs, calls, clocks, warnings, and what is refused."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import nsysprof
from nsysprof.compare import pairs
from nsysprof.compare.comparison import Comparison, compare
from nsysprof.compare.text import comparison_text, pair_table
from nsysprof.errors import NsysprofError
from tests.compare.conftest import END, answer
from tests.conftest import MakeTrace
from tests.kit.calls import FLASH, GEMM, SOFTMAX, math_and_flash, run
from tests.kit.reports import attributed
from tests.kit.trace import Gpu, Items, Launch, Range, launch_graph, launch_kernel, launch_memcpy


def ledger(found: Comparison, pair: str | None = None) -> dict[str, tuple[int, int, int]]:
    """Base, new and difference of each cause of a pair."""
    gaps = found.gaps[found.gaps["pair"] == (pair or found.pairs["pair"][0])]
    columns = (gaps[name].tolist() for name in ("cause", "base_ns", "new_ns", "delta_ns"))
    return {cause: (base, new, delta) for cause, base, new, delta in zip(*columns, strict=True)}


def test_rows_add_up_to_the_difference_of_span_per_call(trace: MakeTrace) -> None:
    """Span per call is that of the whole range by its calls: 1,600 / 2 against 1,150 / 2."""
    found = answer(math_and_flash(trace), base="RUN::math::*", new="RUN::flash::*")
    assert ledger(found) == {
        "softmax": (300, 0, -300),
        "idle: host: code": (155, 380, 225),
        "idle: latency": (44, 44, 0),
        "idle: host: launch calls": (1, 1, 0),
        "Q·Kᵀ GEMM": (200, 0, -200),
        "fused attention": (0, 150, 150),
        "P·V GEMM": (100, 0, -100),
    }
    row = found.pairs.iloc[0]
    assert (row["base_span_ns"], row["new_span_ns"], row["delta_ns"]) == (800, 575, -225)
    assert (row["base_busy_ns"], row["new_busy_ns"], row["base_calls"], row["new_calls"]) == (600, 150, 2, 2)
    assert (row["base_name"], row["new_name"], row["place"]) == ("math", "flash", "S=8")
    assert int(found.gaps["delta_ns"].sum()) == row["delta_ns"]
    assert found.warnings == ()


def test_it_is_the_library_s_own_function(trace: MakeTrace) -> None:
    """`nsysprof.compare` is what the command calls."""
    assert nsysprof.compare is compare
    assert nsysprof.Comparison is Comparison
    found = nsysprof.compare(attributed(math_and_flash(trace)), base="RUN::math::S8", new="RUN::flash::S8")
    assert found.largest == "RUN::math::S8 → RUN::flash::S8"


def test_clocks_stand_side_by_side(trace: MakeTrace) -> None:
    """Host time of a call, first op to first op, busy time; no CUDA events without a record.

    The last call has no next one, so two calls are one sample of the span.
    """
    found = answer(math_and_flash(trace), base="RUN::math::S8", new="RUN::flash::S8")
    columns = ["clock", "base_n", "base_median_ns", "new_n", "new_median_ns"]
    assert found.clocks[columns].to_numpy().tolist() == [
        ["CPU", 2, 998, 2, 998],
        ["CUDA events", 0, 0, 0, 0],
        ["span", 1, 1000, 1, 1000],
        ["busy", 2, 600, 2, 150],
    ]


def test_cuda_events_come_from_the_record(trace: MakeTrace) -> None:
    """The record beside the report is found, one that is named counts instead."""
    path = math_and_flash(trace)
    runs: list[dict[str, Any]] = [
        {"range": f"RUN::{name}::S8", "status": "measured", "latency_clock": "cuda events", "latency_ns": [ns, ns]}
        for name, ns in (("math", 900), ("flash", 300))
    ]

    def events(record: Path, **how: Any) -> list[float]:
        record.write_text(json.dumps({"schema": "nsysprof-workload/1", "runs": runs}), encoding="utf-8")
        clocks = answer(path, base="RUN::math::S8", new="RUN::flash::S8", **how).clocks
        row = clocks[clocks["clock"] == "CUDA events"].iloc[0].to_dict()
        return [row["base_n"], row["base_median_ns"], row["new_median_ns"], row["ratio"]]

    assert events(path.with_suffix(".json")) == [2, 900, 300, 3.0]
    runs[0]["latency_ns"] = [600]
    other = path.with_name("other.json")
    assert events(other, records=[other]) == [1, 600, 300, 2.0]


def test_different_numbers_of_calls_compare(trace: MakeTrace) -> None:
    """Two calls here, five there: everything is per call."""
    path = trace(
        *run("a", 0, [(GEMM, 100)], calls=2), *run("b", 9000, [(GEMM, 100)], calls=5, first_id=50), duration=50_000
    )
    found = answer(path, base="a", new="b")
    row = found.pairs.iloc[0]
    assert (row["base_calls"], row["base_span_ns"], row["new_calls"], row["new_span_ns"]) == (2, 550, 5, 820)
    assert ledger(found)["gemm"] == (100, 100, 0)


def test_per_names_what_counts_as_a_call(trace: MakeTrace) -> None:
    """Any inner range can be the call, by a glob; without numbered ones inside, each instance of the range is."""
    path = trace(
        Range("a", 0, 1000), Range("layer x", 5, 300), Range("layer y", 400, 800),
        launch_kernel(GEMM, (10, 11), (100, 200), id=1), launch_kernel(GEMM, (410, 411), (500, 600), id=2),
        Range("b", 2000, 3000), launch_kernel(GEMM, (2010, 2011), (2100, 2200), id=3),
    )  # fmt: skip
    whole = answer(path, base="a", new="b").pairs.iloc[0]
    assert (whole["base_calls"], whole["base_per"], whole["base_span_ns"]) == (1, "a", 500)
    with pytest.raises(NsysprofError, match="b: no inner range matches --per 'layer"):
        answer(path, base="a", new="b", per="layer*")
    both = trace(
        Range("a", 0, 1000), Range("layer x", 5, 300), Range("layer y", 400, 800),
        launch_kernel(GEMM, (10, 11), (100, 200), id=1), launch_kernel(GEMM, (410, 411), (500, 600), id=2),
        Range("b", 2000, 3000), Range("layer x", 2005, 2900),
        launch_kernel(GEMM, (2010, 2011), (2100, 2200), id=3),
    )  # fmt: skip
    layered = answer(both, base="a", new="b", per="layer*").pairs.iloc[0]
    assert (layered["base_calls"], layered["base_span_ns"], layered["new_calls"]) == (2, 250, 1)


def test_a_side_without_calls_beside_one_with_them_is_warned_of(trace: MakeTrace) -> None:
    """Per call here and per whole range there is no fair difference."""
    path = trace(
        *run("a", 0, [(GEMM, 100)]),
        Range("b", 5000, 6000),
        launch_kernel(GEMM, (5010, 5011), (5100, 5200), id=90),
        duration=END,
    )
    assert answer(path, base="a", new="b").warnings == (
        "a → b: times are per iter* on one side and per b on the other: select the calls with --per",
    )


def test_two_reports_pair_equal_paths(trace: MakeTrace) -> None:
    """Before and after: the outermost ranges that both have; what only one has is named."""
    before = trace(*run("train", 0, [(GEMM, 200)]), *run("eval", 5000, [(GEMM, 50)], first_id=50), name="before.sqlite")
    after = trace(*run("train", 0, [(GEMM, 150)]), *run("test", 5000, [(GEMM, 50)], first_id=50), name="after.sqlite")
    found = answer(before, after)
    assert found.pairs[["pair", "base_name", "new_name", "place", "delta_ns"]].to_numpy().tolist() == [
        ["train", "before", "after", "train", -25]
    ]
    assert ledger(found) == {
        "gemm": (200, 150, -50),
        "idle: host: code": (355, 380, 25),
        "idle: latency": (44, 44, 0),
        "idle: host: launch calls": (1, 1, 0),
    }
    assert found.warnings == (f"only in {before}: 'eval'", f"only in {after}: 'test'")
    assert not found.one_report


def test_two_reports_can_be_asked_for_inner_ranges(trace: MakeTrace) -> None:
    """A glob picks what is compared; files of one name get the names of their folders."""
    first = trace(*run("train", 0, [(GEMM, 200)]))
    (first.parent / "new").mkdir()
    second = trace(*run("train", 0, [(GEMM, 150)]), name=f"new/{first.name}")
    found = answer(first, second, select="train/iter*")
    row = found.pairs.iloc[0]
    assert (row["pair"], row["base_calls"], row["base_span_ns"]) == ("train/iter*", 2, 200)
    assert row["new_name"] == f"new/{first.name}"
    crossed = answer(first, second, base="train", new="train/iter*")
    assert crossed.pairs["pair"].tolist() == ["train → train/iter*"]


def test_windows_on_the_work_of_others_are_left_out_of_two_reports(trace: MakeTrace) -> None:
    """A start/end range around ranges that own the work is no pair unless it is asked for."""
    items = [Range("window", 0, 9000, kind="start_end"), *run("train", 10, [(GEMM, 200)])]
    paths = trace(*items, name="a.sqlite"), trace(*items, name="b.sqlite")
    assert answer(*paths).pairs["pair"].tolist() == ["train"]
    assert answer(*paths, select="window").pairs["pair"].tolist() == ["window"]


def both_kinds(trace: MakeTrace, name: str, length: int) -> Path:
    """A push/pop range, and after it a start/end range of its name on another thread, with a kernel of their own."""
    window = Range("train", 5000, 9000, kind="start_end", thread=2, range_id=7)
    kernel = launch_kernel(SOFTMAX, (5010, 5015), (5100, 5100 + length), id=90, thread=3)
    return trace(*run("train", 0, [(GEMM, 2 * length)]), window, kernel, name=name, duration=END)


@pytest.mark.parametrize("how", [{}, {"select": "train"}, {"base": "train", "new": "train"}])
def test_a_path_that_is_both_a_range_and_a_window_is_two_pairs(how: dict[str, str], trace: MakeTrace) -> None:
    """Each kind is compared with its own; the window is marked as one."""
    found = answer(both_kinds(trace, "before.sqlite", 100), both_kinds(trace, "after.sqlite", 300), **how)
    columns = ["pair", "base", "base_name", "new_name", "place", "base_busy_ns", "new_busy_ns"]
    assert found.pairs[columns].to_numpy().tolist() == [
        ["train", "train", "before", "after", "train", 200, 600],
        ["train (start/end)", "train", "before", "after", "train (start/end)", 100, 300],
    ]
    assert found.warnings == ()
    assert set(found.gaps["pair"]) == set(found.findings) == {"train", "train (start/end)"}


def test_a_window_beside_a_range_of_its_name_may_be_in_one_report_only(trace: MakeTrace) -> None:
    """Like is compared with like; what is left is named, and where there is nothing alike the other kind will do."""
    both, alone = (
        both_kinds(trace, "both.sqlite", 100),
        trace(*run("train", 0, [(GEMM, 50)]), name="one.sqlite", duration=END),
    )
    for how in ({}, {"base": "train", "new": "train"}):
        found = answer(both, alone, **how)
        assert found.pairs[["pair", "base_busy_ns"]].to_numpy().tolist() == [["train", 200]]
        assert found.warnings == (f"only in {both}: 'train (start/end)'",)
    window = trace(
        Range("train", 0, 900, kind="start_end"), launch_kernel(GEMM, (5, 6), (10, 90), id=1), name="w.sqlite"
    )
    assert answer(window, alone).pairs["pair"].tolist() == ["train"]


def test_windows_and_ranges_of_two_names_are_reported_apart_in_one_report(trace: MakeTrace) -> None:
    """Two paths of two kinds each: every pair has a name of its own; a name against itself is refused."""
    kernels = [(GEMM, 100)]
    path = trace(
        *run("a", 0, kernels), Range("a", 0, 4000, kind="start_end", range_id=1),
        *run("b", 5000, kernels, first_id=50), Range("b", 5000, 9000, kind="start_end", range_id=2), duration=END,
    )  # fmt: skip
    assert answer(path, base="a", new="b").pairs[["pair", "base_name"]].to_numpy().tolist() == [
        ["a → b", "a"],
        ["a → b (start/end)", "a"],
        ["a (start/end) → b", "a (start/end)"],
        ["a (start/end) → b (start/end)", "a (start/end)"],
    ]
    with pytest.raises(NsysprofError, match="'a' and 'a' match the same range"):
        answer(path, base="a", new="a")


def test_reports_without_a_common_range_are_compared_whole(trace: MakeTrace) -> None:
    """A note says what either has; with a glob they are refused, with how to say what to compare."""
    paths = trace(*run("train", 0, [(GEMM, 9)])), trace(*run("fit", 0, [(GEMM, 9)]))
    found = answer(*paths)
    assert found.pairs["pair"].tolist() == ["whole trace"]
    assert "have no range in common: 'train' is only in the first, 'fit' is only in the second" in found.warnings[0]
    with pytest.raises(NsysprofError):
        answer(*paths, select="train")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "nothing to compare: there is only one report"),
        ({"base": "a"}, "--base names only one side"),
        ({"new": "a"}, "--new names only one side"),
        ({"base": "a", "new": "b", "select": "c"}, "--range compares equal paths"),
        ({"base": "RUN::math::S8", "new": "RUN::math::S*"}, "match the same range"),
        (
            {"base": "RUN::math::S8", "new": "RUN::fish::S8"},
            "no range of .* matches 'RUN::fish::S8'; near it: 'RUN::flash",
        ),
        ({"base": "RUN::math::S8", "new": "RUN::flash::S8", "shape": "B=1,Q=2"}, "not part of a shape: 'Q=2'"),
    ],
)
def test_what_cannot_be_compared_is_reported(how: dict[str, str], message: str, trace: MakeTrace) -> None:
    """A clear sentence for each way to ask for nothing."""
    with pytest.raises(NsysprofError, match=message):
        answer(math_and_flash(trace), **how)


def test_a_side_without_gpu_work_is_refused_or_left_out(trace: MakeTrace) -> None:
    """Alone it is an error; among other pairs a warning, and no number."""
    path = trace(
        *run("RUN::math::S8", 0, [(GEMM, 10)]),
        Range("RUN::flash::S8", 5000, 6000),
        *run("RUN::math::S16", 9000, [(GEMM, 10)], first_id=50),
        *run("RUN::flash::S16", 15_000, [(FLASH, 10)], first_id=90),
        duration=30_000,
    )
    with pytest.raises(NsysprofError, match=r"RUN::flash::S8 of .* launched no GPU work: not compared"):
        answer(path, base="RUN::math::S8", new="RUN::flash::S8")
    found = answer(path, base="RUN::math::*", new="RUN::flash::*")
    assert found.pairs["place"].tolist() == ["S=16"]
    assert found.warnings == (f"RUN::flash::S8 of {path} launched no GPU work: not compared",)


def test_calls_without_gpu_work_are_reported(trace: MakeTrace) -> None:
    """They count as calls, and the average is over them too."""
    path = trace(
        *run("a", 0, [(GEMM, 100)], calls=3),
        Range("iter3", 2999, 3000),
        *run("b", 9000, [(GEMM, 100)], first_id=50),
        duration=END,
    )
    found = answer(path, base="a", new="b")
    assert found.pairs["base_calls"].tolist() == [4]
    assert found.warnings == ("a: 1 of 4 calls (iter*) launched no GPU work, but are included in the averages",)


def test_ranges_that_were_never_closed_are_reported(trace: MakeTrace) -> None:
    """Their end is that of the session, so they hold whatever came after."""
    path = trace(
        *run("a", 0, [(GEMM, 100)]),
        Range("b", 5000, 20_000),
        Range("iter0", 5010, 5900),
        launch_kernel(GEMM, (5020, 5021), (5100, 5200), id=90),
        Range("iter1", 6010, 20_000),
        launch_kernel(GEMM, (6020, 6021), (6100, 6200), id=91),
        duration=20_000,
    )
    assert answer(path, base="a", new="b").warnings == (
        "b: the program never closed 1 of 1 instances: an unclosed instance ends with the recording and "
        "includes all later work",
        "b: the program never closed 1 of 2 calls (iter*), which are assumed to end with the recording",
    )


def test_sides_on_different_gpus_are_reported(trace: MakeTrace) -> None:
    """Another model is hardware, another card of the same model is named; one range on two GPUs at once too."""
    gpus = Gpu(0), Gpu(1, "NVIDIA A100")
    path = trace(*run("a", 0, [(GEMM, 9)]), *run("b", 5000, [(GEMM, 9)], first_id=50, device=1), *gpus, duration=END)
    assert answer(path, base="a", new="b").warnings == (
        "a → b: different GPUs (NVIDIA H200 and NVIDIA A100): the hardware contributes to the difference",
    )
    path = trace(*run("a", 0, [(GEMM, 9)]), *run("b", 5000, [(GEMM, 9)], first_id=50, device=1), duration=END)
    assert answer(path, base="a", new="b").warnings == (
        "a → b: the two sides ran on different GPUs of the same model (NVIDIA H200)",
    )
    path = trace(
        *run("a", 0, [(GEMM, 9)]),
        Range("b", 5000, 6000),
        launch_kernel(GEMM, (5001, 5002), (5010, 5020), id=90),
        launch_kernel(GEMM, (5003, 5004), (5015, 5040), id=91, device=1),
        duration=END,
    )
    assert (
        "b: the range ran on 2 GPUs at once; busy: time in which at least one GPU runs a GPU op of the range"
        in answer(path, base="a/iter*", new="b").warnings
    )


def test_work_that_cannot_be_known_is_warned_of(trace: MakeTrace) -> None:
    """A graph traced whole may hold anything, and a kernel that no rule knows has no cause."""
    path = trace(
        *run("a", 0, [(GEMM, 100), ("frobnicate", 100)]),
        Range("b", 5000, 6000),
        launch_graph((5001, 5002), (5010, 5020), id=90),
        duration=END,
    )
    assert answer(path, base="a/iter*", new="b").warnings == (
        "a/iter*: kernels of unknown family take 50 % of the span (frobnicate): name them in a rule "
        "file (--rules FILE)",
        "b: CUDA graphs recorded as one operation take 100 % of the span: capture with "
        "--cuda-graph-trace=node to see the kernels",
    )


def test_more_pairs_than_anybody_reads_are_cut(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs with the most GPU time are kept, and a warning says how many are not."""
    monkeypatch.setattr(pairs, "MAX_PAIRS", 3)
    items: list[Items] = []
    for number, length in enumerate((50, 10, 60, 20, 70)):
        at = 1000 * number
        items += [Range(f"op{number}", at, at + 900)]
        items += [launch_kernel(GEMM, (at + 1, at + 2), (at + 10, at + 10 + length), id=number + 1)]
    paths = (trace(*items, name=name, duration=END) for name in ("a.sqlite", "b.sqlite"))
    found = answer(*paths, select="*")
    assert found.pairs["pair"].tolist() == ["op0", "op2", "op4"]
    assert found.warnings == ("only the 3 pairs with the most time are compared; left out: 2 (use a narrower glob)",)


def test_work_that_is_no_attention_is_compared_by_the_causes_of_the_rules(trace: MakeTrace) -> None:
    """A training step before and after a change: convolutions, norms, copies and a synchronization."""
    conv = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_kernel"
    norm = "void at::native::batch_norm_transform_input_kernel<float>(T1)"

    def step(sync: bool) -> list[Items]:
        wait = Launch(16, 205, 99, api="cudaStreamSynchronize_v3020")
        return [
            Range("train", 0, 1000),
            launch_memcpy((1, 2), (10, 40), id=1),
            launch_kernel(conv, (11, 12), (40, 140), id=2),
            launch_kernel(norm, (13, 14), (140, 200), id=3),
            *([wait] if sync else []),
            launch_kernel(conv, (220, 222) if sync else (14, 15), (230, 330) if sync else (200, 300), id=4),
        ]

    found = answer(trace(*step(True), name="before.sqlite"), trace(*step(False), name="after.sqlite"))
    assert ledger(found) == {
        "idle: host: code": (15, 0, -15),
        "idle: latency": (8, 0, -8),
        "idle: host: synchronizing calls": (5, 0, -5),
        "idle: host: launch calls": (2, 0, -2),
        "convolution": (200, 200, 0),
        "batch norm": (60, 60, 0),
        "memcpy HtoD": (30, 30, 0),
    }


def steps(name: str, start: int, lengths: list[int], first_id: int = 1) -> list[Items]:
    """A range with a call of one kernel for each length, 1,000 ns from call to call, launched in time."""
    out: list[Items] = [Range(name, start, start + 1000 * len(lengths))]
    for call, length in enumerate(lengths):
        at = start + 1000 * call
        out.append(Range(f"iter{call}", at + 1, at + 999))
        out.append(launch_kernel(GEMM, (at + 10, at + 12), (at + 100, at + 100 + length), id=first_id + call))
    return out


def test_warm_up_is_left_out(trace: MakeTrace) -> None:
    """The first calls do not count, nor does anything before the first one that does: ledger, clocks and counts."""
    items = [*steps("a", 0, [800, 700, 300, 300, 300]), *steps("b", 20_000, [400, 400, 200, 200, 200], 50)]
    items += [launch_kernel("void setup(int *)", (2, 3), (20, 40), id=99)]
    found = answer(trace(*items, duration=END), base="a", new="b", skip=2)
    assert ledger(found) == {
        "gemm": (300, 200, -100),
        "idle: host: code": (610, 710, 100),
        "idle: latency": (88, 88, 0),
        "idle: host: launch calls": (2, 2, 0),
    }
    assert found.pairs[["base_calls", "new_calls", "base_median_ns"]].iloc[0].tolist() == [3, 3, 1000]
    assert found.sides[0].base.samples["CPU"].tolist() == [998] * 3
    assert "left out: the first 2 instances of each repeating range (--skip 2)" in found.warnings
    assert found.options["skip"] == 2


def test_events_of_warm_up_are_left_out_too(trace: MakeTrace) -> None:
    """The record has one for each call; another number of them cannot be matched."""
    path = trace(*steps("a", 0, [300] * 4), *steps("b", 20_000, [200] * 4, 50), duration=END)
    for latencies, kept in (([9000, 8000, 30, 31], [30, 31]), ([9000, 30, 31], [])):
        run = {"range": "a", "status": "measured", "latency_clock": "cuda events", "latency_ns": latencies}
        record = path.with_name(f"{len(latencies)}.json")
        record.write_text(json.dumps({"schema": "nsysprof-workload/1", "runs": [run]}), encoding="utf-8")
        found = answer(path, base="a", new="b", skip=2, records=[record])
        assert found.sides[0].base.samples["CUDA events"].tolist() == kept


def test_a_range_is_compared_with_itself_by_its_instances(trace: MakeTrace) -> None:
    """The first ten calls with the others: at a steady pace longer kernels make no longer steps."""
    path = trace(*steps("a", 0, [300] * 10 + [500] * 10), duration=END)
    found = answer(path, base="a/iter*", new="a/iter*", instances=["0-9", "10-19"])
    row = found.pairs.iloc[0]
    assert (row["base_name"], row["new_name"]) == ("instances 0-9", "instances 10-19")
    assert row["place"] == "a/iter*"
    assert row[["base_calls", "new_calls", "base_span_ns", "new_span_ns"]].tolist() == [10, 10, 300, 500]
    assert row[["clock", "base_mean_ns", "new_mean_ns"]].tolist() == ["step", 1000, 1000]
    assert row[["base_median_ns", "new_median_ns", "verdict"]].tolist() == [1000, 1000, "no clear change"]
    single = answer(path, base="a/iter*", new="a/iter*", instances=["3", "12"]).pairs.iloc[0]
    assert single[["base_calls", "base_span_ns", "new_span_ns", "base_name"]].tolist() == [1, 300, 500, "instance 3"]
    with pytest.raises(NsysprofError, match="the same range"):
        answer(path, base="a/iter*", new="a/iter*", instances=["0-9"])


def test_calls_are_those_of_the_chosen_instances(trace: MakeTrace) -> None:
    """The second of two runs, with its three calls; a range that has no second one is left out with a warning."""
    items = [*steps("a", 0, [300, 300]), *steps("a", 5_000, [400] * 3, 20), *steps("b", 20_000, [200] * 2, 50)]
    items += [*steps("b", 30_000, [100] * 2, 60), *steps("c", 40_000, [100], 70)]
    found = answer(trace(*items, duration=END), base="a", new="b", instances=["1"])
    assert found.pairs[["base_calls", "new_calls"]].iloc[0].tolist() == [3, 2]
    assert ledger(found)["gemm"] == (400, 100, -300)
    assert "only these instances of each range: instance 1 (--instance)" in found.warnings
    paths = (trace(*items, name=name, duration=END) for name in ("x.sqlite", "y.sqlite"))
    two = answer(*paths, instances=["1"])
    assert two.pairs["pair"].tolist() == ["a", "b"]
    assert sum("c of" in text and "has no instance 1, counted from 0" in text for text in two.warnings) == 2
    with pytest.raises(NsysprofError, match="'3-1' is not an instance number or a span of instance numbers"):
        answer(trace(*items, duration=END), base="a", new="b", instances=["3-1"])


def test_without_merging_numbered_calls_are_still_calls(trace: MakeTrace) -> None:
    """Names stay apart as ranges to compare, and a range is divided by its iterations all the same."""
    path = trace(*steps("a", 0, [300] * 3), *steps("b", 20_000, [200] * 3, 50), duration=END)
    found = answer(path, base="a", new="b", merge=None)
    assert found.pairs[["base_calls", "new_calls"]].iloc[0].tolist() == [3, 3]
    found = answer(path, base="a/iter2", new="b/iter2", merge=None)
    assert found.pairs[["base", "new", "base_span_ns"]].iloc[0].tolist() == ["a/iter2", "b/iter2", 300]


def test_pairs_rank_by_verdict_and_then_by_time(trace: MakeTrace) -> None:
    """A large difference of two calls stands behind a small one that is clear; what shows none comes last.

    Of a pair with more calls on one side those count that both have.
    """
    lengths = {"few": ([900, 900], [100, 100]), "less": ([300] * 12, [250] * 19)}
    lengths |= {"more": ([310] * 12, [250] * 12), "same": ([500] * 12, [500] * 12)}
    items: list[Items] = []
    for number, (name, both) in enumerate(lengths.items()):
        for side, (kind, each) in enumerate(zip(("old", "new"), both, strict=True)):
            at = 200_000 * side + 20_000 * number
            for call, length in enumerate(each):
                begin = at + sum(each[:call]) + 20 * call
                items += [Range(f"{kind}::{name}", begin, begin + 8)]
                items += [launch_kernel(GEMM, (begin + 1, begin + 2), (begin + 9, begin + 9 + length), id=begin + 1)]
    found = answer(trace(*items, duration=1_000_000), base="old::*", new="new::*")
    assert found.ranked == [f"old::{name} → new::{name}" for name in ("more", "less", "few", "same")]
    assert found.largest == "old::more → new::more"
    places = [row[0] for row in pair_table(found).rows]
    assert places == ["more", "less", "few", "same"]
    assert found.pairs["place"].tolist() == [*lengths]


def test_one_step_of_the_gpu_s_clock_is_no_difference(trace: MakeTrace) -> None:
    """All kernels of a report last multiples of 32 ns: 32 ns less per call is what the clock rounds by, 96 are not."""
    ruler = steps("ruler", 60_000, [32 * n for n in range(3, 23)], 500)
    for less, verdict in ((32, "no clear change"), (96, "faster")):
        both = [*steps("a", 0, [320] * 20), *steps("b", 30_000, [320 - less] * 20, 100)]
        found = answer(trace(*both, *ruler, duration=END), base="a/iter*", new="b/iter*")
        span = found.clocks[found.clocks["clock"] == "span"].iloc[0]
        assert span["verdict"] == verdict
        assert ("about the clock resolution" in span["reason"]) == (less == 32)


@pytest.mark.parametrize(
    ("base", "new", "shapes"),
    [
        ("RUN::math::S8", "RUN::math::S16", "S=8 and S=16"),
        ("RUN::math::B1::S8", "RUN::flash::B4::S16", "B=1 and B=4, S=8 and S=16"),
        ("train fp16", "train bf16", "fp16 and bf16"),
        ("train half", "train float16", ""),
        ("bs32", "batch_size=64", "B=32 and B=64"),
        ("seq_len=512", "seq_len=1024", "S=512 and S=1024"),
        ("batch 3", "batch 7", ""),
        ("math", "flash", ""),
    ],
)
def test_unlike_shapes_in_names_are_warned_of(trace: MakeTrace, base: str, new: str, shapes: str) -> None:
    """What both names tell and do not tell alike is part of the difference."""
    path = trace(*run(base, 0, [(GEMM, 200)]), *run(new, 5000, [(GEMM, 200)], first_id=50), duration=END)
    found = answer(path, base=base, new=new)
    text = f"{base} → {new}: different shapes ({shapes}): the shape contributes to the difference"
    assert (text in found.warnings) == bool(shapes)
    assert any("different shapes" in each for each in found.warnings) == bool(shapes)


def test_unlike_shapes_in_records_are_warned_of(trace: MakeTrace) -> None:
    """The same ranges of two reports, of which the records say that they were not run alike; once for all pairs."""
    paths = []
    for name, batch, dtype in (("old", 1, "fp16"), ("new", 4, "fp32")):
        items = [*run("RUN::math::S8", 0, [(GEMM, 200)]), *run("RUN::flash::S8", 9000, [(FLASH, 9)], first_id=50)]
        path = trace(*items, name=f"{name}.sqlite", duration=END)
        shape = {"batch": batch, "heads": 2, "seq": 8, "head_dim": 4, "dtype": dtype, "causal": True}
        runs = [{"range": f"RUN::{each}::S8", "status": "measured", **shape} for each in ("math", "flash")]
        record = {"schema": "nsysprof-workload/1", "runs": runs}
        path.with_suffix(".json").write_text(json.dumps(record), encoding="utf-8")
        paths.append(path)
    assert (
        "2 pairs, 'RUN::math::S8', 'RUN::flash::S8': different shapes (B=1 and B=4, fp16 and fp32):"
        " the shape contributes to the difference"
    ) in answer(*paths).warnings


def test_file_names_that_are_no_text_are_spelt_out(trace: MakeTrace) -> None:
    """Linux allows any bytes; columns of pandas with pyarrow do not."""
    old = math_and_flash(trace)
    new = old.with_name(os.fsdecode(b"caf\xe9.sqlite"))
    new.write_bytes(old.read_bytes())
    found = answer(old, new)
    assert set(found.pairs["new_name"]) == {"caf\\udce9"}
    comparison_text(found).encode()


def test_markdown_shows_names_as_they_are(trace: MakeTrace) -> None:
    """No link, markup, mention or table comes of what a program called its ranges and kernels."""
    evil = "# <img src=x> `a` *b* @team | [x](y)"
    kernels = [("void ```\n# evil(int *)", 100)]
    path = trace(*run(evil, 0, kernels), *run("- 1. b", 5000, kernels, first_id=50), duration=END)
    text = comparison_text(answer(path, base=glob_of(evil), new="- 1. b"), markdown=True, every=True)
    prose, _, code = text.partition("<details>")
    bare = re.sub(r"\\.", "", prose)  # without what is escaped
    for raw in ("<img", "`a`", "*b*", "@team", "[x]", "\n# ", "- # ", "- - "):
        assert raw not in bare, raw
    assert "\\# \\<img src=x\\> \\`a\\` \\*b\\* @\u200bteam" in prose
    assert code.count("\n````") == 2  # the fence is longer than what stands in it


def glob_of(name: str) -> str:
    """A glob for one name."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def loop(name: str, at: int, *, load: int = 0, python: int = 0, kernel: int = 300, copy: int = 0) -> list[Items]:
    """Twelve steps under one range: ``load`` ns between them, ``python`` before the launch, ``copy`` behind it."""
    items: list[Items] = []
    begin = at
    for step in range(12):
        start = begin + load
        launched = start + 20 + python
        done = launched + 20 + kernel
        items += [
            Range(f"step{step}", start, done + copy + 30),
            launch_kernel(GEMM, (launched, launched + 10), (launched + 20, done), id=at + 2 * step + 1),
        ]
        begin = done + copy + 40
    return [Range(name, at, begin + 10), *items]


@pytest.mark.parametrize(
    ("slow", "ratio", "place"),
    [
        ({"load": 3000}, (380 + 3000) / 380, "between steps (+2.75 µs)"),
        ({"python": 3000}, (380 + 3000) / 380, "before the first GPU operation of a step (+3.00 µs)"),
        ({"copy": 3000}, (380 + 3000) / 380, "after the last GPU operation of a step (+3.00 µs)"),
        ({"kernel": 3300}, (380 + 3000) / 380, ""),
        ({}, 1.0, ""),
    ],
)
def test_steps_are_timed_from_end_to_end(slow: dict[str, int], ratio: float, place: str, trace: MakeTrace) -> None:
    """Wherever the time of a step goes, it counts; a sentence says where it lies beside the work of the GPU."""
    path = trace(*loop("a", 0), *loop("b", 50_000, **slow), duration=200_000)
    found = answer(path, base="a/step*", new="b/step*")
    row = found.pairs.iloc[0]
    assert (row["clock"], row["base_n"], row["new_n"]) == ("step", 12, 12)
    assert row["new_median_ns"] / row["base_median_ns"] == pytest.approx(ratio, rel=0.06)
    assert int(found.gaps["delta_ns"].sum()) == row["delta_ns"] == row["new_mean_ns"] - row["base_mean_ns"]
    assert found.clocks["clock"].tolist()[0] == "step"
    said = [
        text
        for text in found.findings[row["pair"]]
        if "the GPU work of a step, from first to last operation, takes" in text
    ]
    assert [place in text for text in said] == [True] * bool(place)
    spans = list(found.clocks.set_index("clock").loc["span", ["base_median_ns", "new_median_ns"]])
    assert spans == [300, slow.get("kernel", 300)]


def test_parts_of_steps_are_no_steps(trace: MakeTrace) -> None:
    """While the GPU computes for others in their time, as in forward and backward, ranges keep their span."""
    items: list[Items] = []
    for step in range(6):
        at = 1000 * step
        for part, (name, start) in enumerate((("forward", at + 100), ("backward", at + 500))):
            begin = at + 10 * part
            items += [
                Range(name, begin, begin + 9),
                launch_kernel(GEMM, (begin + 1, begin + 2), (start, start + 350), id=2 * step + part + 1),
            ]
    found = answer(trace(*items, duration=END), base="forward", new="backward")
    assert found.pairs["clock"].tolist() == ["span"]


def test_warm_up_is_in_no_step(trace: MakeTrace) -> None:
    """A first step that takes far longer is in neither the time of steps nor the ledger, but in the other clocks."""
    path = trace(*loop("a", 0), *paced_steps("b", 60_000, [9000, *[300] * 11]), duration=END)
    found = answer(path, base="a/step*", new="b/step*")
    row = found.pairs.iloc[0]
    assert (row["new_n"], row["new_calls"]) == (11, 11)
    assert found.clocks.set_index("clock")["new_n"].to_dict() == {
        "step": 11,
        "CPU": 12,
        "CUDA events": 0,
        "span": 12,
        "busy": 12,
    }


def paced_steps(name: str, at: int, lengths: list[int]) -> list[Items]:
    """Steps of one kernel each under one range, one as soon as the other is over."""
    items: list[Items] = []
    begin = at
    for step, length in enumerate(lengths):
        items += [
            Range(f"step{step}", begin, begin + 40),
            launch_kernel(GEMM, (begin + 10, begin + 20), (begin + 30, begin + 30 + length), id=at + step),
        ]
        begin += 50 + length
    return [Range(name, at, begin), *items]
