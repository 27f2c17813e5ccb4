"""Migrations of unified memory: a family of their own, beside all work, and how much of the kernels they cover."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.charts import timeline_title
from nsysprof.analyze.files import write_json
from nsysprof.analyze.text import summary
from nsysprof.analyze.timeline import timeline
from nsysprof.attribution.attribute import attribute
from nsysprof.attribution.split import stream_labels
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit.trace import Items, Kernel, Memcpy, Range, launch_kernel, launch_memcpy

FAULT, AHEAD, ASKED_FOR = 2, 3, 1


def analyzed(path: Path, by: str | None = None) -> Breakdown:
    """The breakdown of a report, whose file is closed again."""
    with open_report(path) as report:
        return break_down(attribute(read_tables(report)), by=by)


@pytest.fixture
def faulting(trace: MakeTrace) -> Breakdown:
    """A kernel of 1000 ns on the real stream 0 that faults for 640 of them, one of 200 that does not, one real copy."""
    pieces = [Memcpy(1000 + 10 * at, 1008 + 10 * at, 0, 4096, 11, cause=FAULT, stream=0) for at in range(80)]
    return analyzed(
        trace(
            Range("step", 0, 60),
            launch_kernel("add(float*)", (10, 20), (1000, 2000), id=1, stream=0),
            launch_kernel("scale(float*)", (30, 40), (2100, 2300), id=2, stream=0),
            launch_memcpy((50, 55), (2400, 2450), id=3, stream=0),
            *pieces,
            Memcpy(5000, 9000, None, 1 << 20, 12, cause=AHEAD, stream=0),
            duration=10_000,
        )
    )


def test_migrations_have_a_row_of_the_ledger_that_adds_up(faulting: Breakdown) -> None:
    """They are neither lost launches nor copies, and ops and ns of the ledger are those of the report, to the ns."""
    ledger, totals = faulting.ledger.set_index("fate"), faulting.totals
    assert ledger["ops"].to_dict() | {"own thread": 3, "unified memory": 81} == ledger["ops"].to_dict()
    assert ledger["sum_ns"].sum() == totals["sum_ns"] == 1000 + 200 + 50 + 640 + 4000
    assert ledger["ops"].sum() == totals["ops"] == 84
    assert (totals["kernels"], totals["memops"], totals["migrations"]) == (2, 1, 81)
    assert totals["migrations_ns"] == ledger["sum_ns"]["unified memory"] == 4640
    moved = faulting.kernels[faulting.kernels["family"] == "migration"]
    assert moved["path"].tolist() == ["", ""]
    assert moved.set_index("kernel")["sum_ns"].to_dict() == {"migration DtoH": 4000, "migration HtoD": 640}


def test_migrations_keep_no_gpu_busy(faulting: Breakdown) -> None:
    """Neither busy time nor span, waits or shares of ranges know of them."""
    assert (faulting.totals["busy_ns"], faulting.totals["span_ns"]) == (1250, 1450)
    assert timeline(faulting).wait_ns == 100
    text = summary(faulting, full=True, width=500)
    assert "81 migrations beside them: sum 1.25 µs; the GPU is busy for 86 % of the 1.45 µs" in text
    [step] = [line for line in text.splitlines() if line.startswith("step ")]
    assert " 100 % " in step
    assert "GPU ops that no range owns" not in text


def test_migrations_have_a_lane_that_is_no_stream(faulting: Breakdown) -> None:
    """Not that of stream 0, though their rows say 0; and the zoom is on what was launched."""
    answer = timeline(faulting, columns=10)
    assert [lane.label for lane in answer.streams] == ["GPU 0 · stream 0", "GPU 0 · unified memory"]
    assert int(answer.streams[0].busy_ns.sum()) == 1250
    assert answer.zoom is not None
    trace = faulting.attribution.trace
    shown = {stream_labels(trace)[stream] for stream in answer.zoom.ops["stream"].tolist()}
    assert shown == {"GPU 0 · stream 0"}
    assert answer.zoom.end_ns < 5000


def test_a_kernel_that_waits_for_pages_is_fault_bound(faulting: Breakdown, tmp_path: Path) -> None:
    """Text, chart and JSON say of which kernel migrations cover how much."""
    text = " ".join(summary(faulting, full=True, width=500).split())
    assert (
        "Unified memory: 4.64 µs of migrations, 1.00 MiB DtoH in 1 piece ahead of page faults,"
        " 320 KiB HtoD in 80 pieces for page faults"
    ) in text
    assert (
        "migrations cover 64 % of the time of add (fault-bound: it waits for pages more than it computes),"
        " 53 % of the time of all kernels"
    ) in text
    assert "without a recorded launch" not in text
    assert timeline_title(timeline(faulting)).endswith("unified memory migrates during 53 % of kernel time")
    write_json(faulting, tmp_path / "analysis.json")
    found = json.loads((tmp_path / "analysis.json").read_text())["unified_memory"]
    assert found["busy_ns"] == 4640
    assert [row["size_bytes"] for row in found["migrations"]] == [1 << 20, 80 * 4096]
    assert found["kernels"][0] == {
        **{"kernel": "add(float*)", "count": 1, "sum_ns": 1000, "covered_ns": 640, "fault_covered_ns": 640}
    }


def test_what_the_program_asked_for_is_no_fault(trace: MakeTrace) -> None:
    """cudaMemPrefetchAsync beside a kernel covers it, and does not make it fault-bound."""
    kernel = launch_kernel("k", (10, 20), (100, 200), id=1)
    found = analyzed(trace(kernel, Memcpy(90, 190, 0, 1 << 20, 11, cause=ASKED_FOR)))
    assert found.summaries["unified"].finding.endswith("; migrations cover 90 % of the time of k")


@pytest.mark.parametrize("seed", range(8))
def test_coverage_equals_a_brute_force(seed: int, trace: MakeTrace) -> None:
    """Ns by ns, with kernels and migrations that overlap, on two GPUs, each with its own migrations."""
    rng = random.Random(seed)
    spans = [sorted(rng.sample(range(300), 2)) for _ in range(24)]
    items: list[Items] = [
        launch_kernel(rng.choice("ab"), (at, at + 1), (low, high), id=at + 1, device=at % 2)
        for at, (low, high) in enumerate(spans[:12])
    ]
    moves = [
        Memcpy(low, high, 0, kind=rng.choice([11, 12, 13]), cause=rng.choice([1, 2, None]), device=at % 2)
        for at, (low, high) in enumerate(spans[12:])
    ]
    found = analyzed(trace(*items, *moves, duration=1000)).unified
    assert found is not None
    expected: dict[str, tuple[int, int]] = {}
    for _, kernel in (item for item in items if isinstance(item, tuple)):
        assert isinstance(kernel, Kernel)
        mine = [move for move in moves if move.device == kernel.device]
        covered, faults = (
            sum(any(move.start <= ns < move.end for move in some) for ns in range(kernel.start, kernel.end))
            for some in (mine, [move for move in mine if move.cause != ASKED_FOR])
        )
        before = expected.get(str(kernel.name), (0, 0))
        expected[str(kernel.name)] = before[0] + covered, before[1] + faults
    rows = found.kernels.records()
    assert {row["kernel"]: (row["covered_ns"], row["fault_covered_ns"]) for row in rows} == expected
    busy = sum(
        any(move.start <= ns < move.end for move in moves if move.device == gpu) for gpu in (0, 1) for ns in range(300)
    )
    assert found.busy_ns == busy


def test_by_device_the_rows_of_migrations_are_those_of_their_gpu(trace: MakeTrace) -> None:
    """Split by GPU nothing is lost: exclusive sums add up to the ledger."""
    path = trace(
        launch_kernel("k", (1, 2), (10, 20), id=1, device=0),
        launch_kernel("k", (3, 4), (10, 40), id=2, device=1),
        Memcpy(10, 15, 0, kind=11, device=0),
        Memcpy(10, 17, 0, kind=12, device=1),
    )
    found = analyzed(path, "device")
    rows = found.kernels.groupby(["device", "family"])["sum_ns"].sum().to_dict()
    assert rows[("GPU 0", "migration")] == 5
    assert rows[("GPU 1", "migration")] == 7
    assert found.kernels["sum_ns"].sum() == found.totals["sum_ns"] == found.ledger["sum_ns"].sum()


def test_a_report_of_nothing_but_migrations_is_an_answer(trace: MakeTrace) -> None:
    """No busy time, no zoom, and a lane of what moved."""
    found = analyzed(trace(Memcpy(10, 15, 0, kind=13), Memcpy(20, 25, 0, kind=11)))
    assert (found.totals["busy_ns"], found.totals["span_ns"], found.totals["ops"]) == (0, 0, 2)
    answer = timeline(found)
    assert answer.zoom is None
    assert [lane.label for lane in answer.streams] == ["GPU 0 · unified memory"]
    assert np.array_equal(found.attribution.trace.op_gpu, [-1, -1])
    assert "2 migrations" in summary(found, full=True, width=500)
