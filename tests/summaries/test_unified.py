"""Migrations and page faults of unified memory, with the kernels during which they happen."""

import math
from pathlib import Path
from typing import Any

import pytest

from nsysprof.summaries.summary import Answer
from nsysprof.tools.nsys import Nsys, stats
from tests.conftest import MakeTrace
from tests.kit.reports import broken_down
from tests.kit.trace import Items, Memcpy, PageFault, Row, global_pid, launch_kernel

WRITE = 2


def answer_of(path: Path) -> Answer | None:
    """The summary of the unified memory of a report."""
    return broken_down(path).summaries.get("unified")


def rows_of(path: Path, name: str) -> list[dict[str, Any]]:
    """The rows of one of its tables."""
    found = answer_of(path)
    assert found is not None
    return list(found.files[name].records())


FAULTY: tuple[Items, ...] = (
    launch_kernel("add", (1, 2), (100, 200), id=1),
    launch_kernel("add", (3, 4), (300, 400), id=2),
    launch_kernel("scale", (5, 6), (500, 600), id=3),
    launch_kernel("other", (7, 8), (100, 700), id=4, device=1),
    PageFault(90, 120, 7),
    PageFault(150, 170, 3, access=WRITE),
    PageFault(160, 180, 5),
    PageFault(390, 450, 2),
    Memcpy(110, 130, 0, 4096, 11, cause=2),
    PageFault(650, instruction="0x55d0"),
    PageFault(660, instruction="0x55e8"),
    PageFault(670, instruction="0x55d0"),
)


def test_nothing_is_no_answer(trace: MakeTrace) -> None:
    """Without migrations and page faults there is no summary, and null in the document."""
    path = trace(launch_kernel("k", (1, 2), (3, 4), id=1))
    found = broken_down(path)
    assert (found.summaries.get("unified"), found.unified) == (None, None)


def test_events_by_cause(trace: MakeTrace) -> None:
    """Migrations, faults of GPUs by access and of CPUs by instruction, the most first."""
    rows = rows_of(trace(*FAULTY), "unified.csv")
    known = [
        {key: value for key, value in row.items() if not (isinstance(value, float) and math.isnan(value))}
        for row in rows
    ]
    assert known == [
        {
            **{"event": "migration HtoD", "cause": "for page faults", "count": 1, "size_bytes": 4096, "sum_ns": 20},
            "bytes_per_s": 4096 / 20 * 1e9,
        },
        {"event": "GPU page faults", "cause": "read", "count": 3, "page_faults": 14, "sum_ns": 30 + 20 + 60},
        {"event": "GPU page faults", "cause": "write", "count": 1, "page_faults": 3, "sum_ns": 20},
        {"event": "CPU page faults", "cause": "0x55d0", "count": 2, "page_faults": 2, "sum_ns": 0},
        {"event": "CPU page faults", "cause": "0x55e8", "count": 1, "page_faults": 1, "sum_ns": 0},
    ]


def test_kernels_have_the_faults_of_their_gpu(trace: MakeTrace) -> None:
    """Those that began during them, and the time in which their GPU had some; other GPUs' are not theirs."""
    path = trace(*FAULTY)
    [row] = rows_of(path, "unified_kernels.csv")
    assert row == {
        **{"kernel": "add", "count": 2, "sum_ns": 200, "covered_ns": 20, "fault_covered_ns": 20},
        **{"page_faults": 3 + 5 + 2, "faulted_ns": 20 + 30 + 10},
    }
    found = answer_of(path)
    assert found is not None
    assert found.finding == (
        "Unified memory: 20 ns of migrations, 4.00 KiB HtoD in 1 piece for page faults; 3 page faults of CPUs;"
        " 17 page faults of GPUs; migrations cover 10 % of the time of add, 2.2 % of the time of all kernels"
    )


def test_faults_alone_are_an_answer(trace: MakeTrace) -> None:
    """Without migrations, without kernels beside them, and without the columns that only newer reports have."""
    row = {"start": 5, "globalPid": global_pid(1), "address": 64}
    path = trace(launch_kernel("k", (1, 2), (30, 40), id=1), Row("CUDA_UM_CPU_PAGE_FAULT_EVENTS", row))
    found = answer_of(path)
    assert found is not None
    assert found.finding == "Unified memory: 1 page fault of CPUs"
    [event] = found.rows.records()
    assert (event["event"], event["cause"], event["page_faults"]) == ("CPU page faults", "", 1)


def test_faults_that_were_not_recorded_are_not_zero(trace: MakeTrace) -> None:
    """Of migrations alone nobody knows how many page faults there were."""
    path = trace(launch_kernel("k", (1, 2), (0, 40), id=1), Memcpy(10, 20, 0, 64, 11, cause=2))
    [row] = rows_of(path, "unified_kernels.csv")
    assert math.isnan(row["page_faults"])
    assert math.isnan(row["faulted_ns"])
    found = answer_of(path)
    assert found is not None
    assert found.finding.endswith("25 % of the time of k")  # there is no other kernel


@pytest.mark.nsys
def test_faults_equal_nsys_stats(real_nsys: Nsys, trace: MakeTrace) -> None:
    """By instruction, and those of GPUs in all, with the bytes that migrated."""
    path = trace(*FAULTY)
    by_instruction = stats(real_nsys, path, "um_cpu_page_faults_sum")
    ours = {row["cause"]: str(int(row["page_faults"])) for row in rows_of(path, "unified.csv") if "CPU" in row["event"]}
    assert {row["CPU Instruction Address"]: row["CPU Page Faults"] for row in by_instruction} == ours
    [total] = stats(real_nsys, path, "um_total_sum")
    assert (total["Total CPU Page Faults"], total["Total GPU PageFaults"]) == ("3", "17")
