"""Rows that add up: what a side takes by cause, per call in whole nanoseconds, and the difference of two sides."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nsysprof.compare.gap_ledger import OVERLAP, Entry, SideLedger, apportion, evidence_texts, gap_rows, nearest
from nsysprof.compare.loaded import load_report
from nsysprof.compare.selection import SelectedCalls, Selection, select_calls, select_ranges, steps_of_calls
from nsysprof.kernels.classify import load_rules
from nsysprof.trace.details import CODE, LAUNCHING
from nsysprof.waits.causes import LATENCY, WAITING_FOR
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reports import attributed
from tests.kit.trace import Range, launch_graph, launch_kernel, launch_memcpy


def side(path: Path, text: str) -> Selection:
    """A merged range of a report as a side."""
    loaded = load_report(attributed(path), load_rules(), ("iter*", "step*"), {})
    code = loaded.texts.index(text)
    return select_ranges(loaded, [select_calls(loaded, code, None)])[code]


def table(frame: pd.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    """Some columns as rows."""
    return list(frame[list(columns)].itertuples(index=False, name=None))


def test_a_side_is_its_ops_its_overlap_and_its_gaps(trace: MakeTrace) -> None:
    """90 ns of span: 30 + 30 ns of kernels that share 10, a copy of 20, and gaps of 5 and 15."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("ampere_sgemm_a", (1, 2), (10, 40), id=1),
        launch_kernel("frobnicate", (3, 4), (30, 60), id=2, stream=8),
        launch_memcpy((5, 6), (65, 85), id=3),
        launch_kernel("frobnicate", (90, 95), (100, 100), id=4),
    )
    ledger = side(path, "run").ledger
    assert ledger.entries == {
        "gemm": Entry(1, 1, 30),
        "other": Entry(2, 2, 30),
        "memcpy HtoD": Entry(1, 0, 20),
        OVERLAP: Entry(0, 0, -10),
        WAITING_FOR[CODE]: Entry(0, 0, 5),
        WAITING_FOR[LAUNCHING]: Entry(0, 0, 5),
        WAITING_FOR[LATENCY]: Entry(0, 0, 10),
    }
    assert (ledger.total_ns, ledger.calls) == (90, 1)


def test_the_kernels_of_one_graph_are_one_launch(trace: MakeTrace) -> None:
    """A graph that is traced node by node has many kernels under one host call; traced whole it has none."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("frobnicate", (1, 2), (10, 20), id=1, graph_node=1),
        launch_kernel("frobnicate", (1, 2), (20, 30), id=1, graph_node=2)[1],
        launch_graph((3, 4), (30, 50), id=2),
    )
    assert side(path, "run").ledger.entries == {"other": Entry(1, 2, 20), "CUDA graph 1": Entry(1, 0, 20)}


def test_whole_nanoseconds_per_call_add_up() -> None:
    """10 ns in three calls are 3 each and 1 over; the largest remainders get what is over, and 0 stays 0."""
    assert apportion([5, 0, 5], 3) == [2, 0, 1]
    assert apportion([1, 1, 1], 3) == [1, 0, 0]
    assert apportion([7, -4], 3) == [2, -1]
    assert apportion([], 3) == []
    assert (nearest(5, 2), nearest(-5, 2), nearest(4, 3)) == (3, -2, 1)


def test_any_totals_are_apportioned_without_loss() -> None:
    """For any totals and number of calls: each within 1 of its part, the sum exact, and zeros untouched."""
    rng = random.Random(1)
    for _ in range(2000):
        calls = rng.randint(1, 50)
        totals = [rng.choice([0, rng.randint(-(10**3), 10**18)]) for _ in range(rng.randint(1, 12))]
        found = apportion(totals, calls)
        assert sum(found) == nearest(sum(totals), calls)
        assert all(abs(one * calls - total) < calls for one, total in zip(found, totals, strict=True))
        assert all(one == 0 for one, total in zip(found, totals, strict=True) if total == 0)


def test_rows_are_the_difference_per_call() -> None:
    """Base: 2 calls of 50 ns; new: 3 calls of 30 ns; the rows take 20 ns off, the largest change first."""
    base = SideLedger({"softmax": Entry(2, 2, 70), "gemm": Entry(4, 4, 30)}, 100, 2)
    new = SideLedger({"fused attention": Entry(3, 3, 60), "gemm": Entry(1, 1, 30)}, 90, 3)
    frame = gap_rows(base, new)
    assert table(frame, "cause", "base_kernels", "base_ns", "new_kernels", "new_ns", "delta_ns") == [
        ("softmax", 1.0, 35, 0.0, 0, -35),
        ("fused attention", 0.0, 0, 1.0, 20, 20),
        ("gemm", 2.0, 15, 1 / 3, 10, -5),
    ]
    assert frame["share"].tolist() == [35 / 20, -20 / 20, 5 / 20]
    assert [frame[name].dtype.kind for name in ("base_ns", "new_ns", "delta_ns")] == ["i"] * 3


def test_sides_that_take_as_long_have_no_shares() -> None:
    """A share of nothing is not a number, and nobody divides by zero."""
    one = SideLedger({"softmax": Entry(1, 1, 10)}, 10, 1)
    other = SideLedger({"gemm": Entry(1, 1, 10)}, 10, 1)
    frame = gap_rows(one, other)
    assert frame["delta_ns"].tolist() == [-10, 10]
    assert frame["share"].isna().all()


def test_a_ledger_that_does_not_add_up_is_refused() -> None:
    """Numbers that contradict each other never become an answer."""
    wrong = SideLedger({"softmax": Entry(1, 1, 10)}, 11, 1)
    with pytest.raises(AssertionError, match="do not add up to the time"):
        gap_rows(wrong, wrong)


@pytest.mark.parametrize("seed", range(20))
def test_the_ledger_of_any_range_adds_up(seed: int, trace: MakeTrace) -> None:
    """On random reports with crossing, unclosed and overlapping ranges, on several GPUs: sums are exact."""
    loaded = load_report(attributed(trace(*random_report(seed))), load_rules(), None, {})
    every = [(code, loaded.instances([code])) for code in range(len(loaded.texts))]
    selected = [SelectedCalls(code, windows, windows, "") for code, windows in every]
    found = list(select_ranges(loaded, selected).values())
    steps = steps_of_calls(loaded, [each for each in selected if len(each.calls)])
    timed = [each for each in selected if each.code in steps]
    found += select_ranges(loaded, timed, steps).values()
    for one in found:
        total = sum(entry.ns for entry in one.ledger.entries.values())
        assert total == one.ledger.total_ns == one.work.span_ns + (one.edges.total_ns if one.edges else 0)
        assert sum(entry.kernels for entry in one.ledger.entries.values()) <= len(one.work.op)
        divided = np.isin(one.work.windows, one.pieces.window)  # those in which a call has ops
        spans = (one.work.last_ns - one.work.first_ns)[divided]
        assert int((one.pieces.end - one.pieces.start).sum()) == int(spans.sum())
        if divided.all() and one.steps is None:
            assert round(int(one.samples["busy"].sum()) / max(one.work.calls, 1)) == one.busy_ns
        for other in found[:1]:
            if one.ledger.total_ns and other.ledger.total_ns:
                frame = gap_rows(one.ledger, other.ledger)
                assert int(frame["delta_ns"].sum()) == other.ledger.per_call_ns - one.ledger.per_call_ns


def test_evidence_names_kernels_with_count_unit_and_grid(trace: MakeTrace) -> None:
    """Kernels of one name and grid are counted per call; gaps say how many and where."""
    sgemm, other = "ampere_sgemm_128x64_tn", "frobnicate"
    path = trace(
        Range("run", 0, 500),
        Range("iter0", 0, 200),
        launch_kernel(sgemm, (1, 2), (10, 40), id=1, grid=(32, 2, 1)),
        launch_kernel(sgemm, (3, 4), (40, 60), id=2, grid=(64, 1, 1)),
        Range("iter1", 210, 400),
        launch_kernel(sgemm, (220, 225), (240, 270), id=3, grid=(32, 2, 1)),
        launch_kernel(other, (230, 235), (270, 280), id=4),
    )
    one = side(path, "run")
    assert table(one.evidence, "cause", "math_unit", "grid", "count", "sum_ns") == [
        ("gemm", "FP32 FMA", "32x2", 2, 60),
        ("gemm", "FP32 FMA", "64", 1, 20),
        ("other", "unknown", "1", 1, 10),
    ]
    assert evidence_texts(one.evidence, one.gaps, one.work) == {
        "gemm": f"{sgemm} x 1 (FP32 FMA, grid 32x2), {sgemm} x 0.50 (FP32 FMA, grid 64)",
        "other": "frobnicate x 0.50 (grid 1)",
        WAITING_FOR[LAUNCHING]: "gaps per call: 0.50 between calls, median 5 ns",
        WAITING_FOR[CODE]: "gaps per call: 0.50 between calls, median 160 ns",
        WAITING_FOR[LATENCY]: "gaps per call: 0.50 between calls, median 15 ns",
    }


def test_evidence_of_many_kernels_is_cut(trace: MakeTrace) -> None:
    """The four with the most time are named, and how many more there are."""
    kernels = [launch_kernel(f"frobnicate{n}", (n, n), (100 * n, 100 * n + 50 - n), id=n) for n in range(1, 8)]
    one = side(trace(Range("run", 0, 1000), *kernels), "run")
    text = evidence_texts(one.evidence, one.gaps, one.work)["other"]
    assert text == (
        "frobnicate1 x 1 (grid 1), frobnicate2 x 1 (grid 1), frobnicate3 x 1 (grid 1), frobnicate4 x 1 (grid 1),"
        " and 3 more"
    )


def test_evidence_without_grids(trace: MakeTrace) -> None:
    """An export without grid columns still names kernels."""
    path = trace(
        Range("run", 0, 100),
        launch_kernel("frobnicate", (1, 2), (10, 40), id=1),
        drop_columns={"CUPTI_ACTIVITY_KIND_KERNEL": ["gridX", "gridY", "gridZ"]},
    )
    assert table(side(path, "run").evidence, "grid", "count") == [("", 1)]
    assert np.isnan(gap_rows(side(path, "run").ledger, side(path, "run").ledger)["share"]).all()


def test_the_rest_goes_to_the_same_cause_in_any_order() -> None:
    """Of equal remainders the first name gets the nanosecond, whichever cause was met first."""
    one, other = (SideLedger(dict.fromkeys(names, Entry(1, 1, 2)), 4, 3) for names in ("ab", "ba"))
    assert gap_rows(one, one).equals(gap_rows(other, other))
    assert gap_rows(one, one).query("cause == 'a'")["base_ns"].tolist() == [1]
