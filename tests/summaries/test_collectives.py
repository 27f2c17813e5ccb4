"""Collectives that the trace names, added up by communicator."""

import math
from pathlib import Path
from typing import Any

import pytest

from nsysprof.why.why import why
from tests.kit.kineto import annotation, collective, launch, write_trace
from tests.kit.reports import attributed, broken_down

STEP = [
    annotation("step", 0, 1000),
    *launch("gemm", (1, 2), (10, 100), id=1),
    *collective("allreduce", (3, 4), (100, 300), id=2, elements=50),
    *collective("allreduce", (5, 6), (300, 400), id=3, elements=50),
    *collective(
        "_allgather_base", (7, 8), (400, 500), id=4, group="7", ranks="[0, 2, 4, 6]", elements=100, dtype="BFloat16"
    ),
    *launch("gemm", (9, 10), (500, 600), id=9),
]


def rows(path: Path) -> list[dict[str, Any]]:
    found = broken_down(path).summaries.get("collectives")
    return list(found.files["collectives.csv"].records()) if found else []


def test_collectives_are_added_up_by_communicator_and_size(tmp_path: Path) -> None:
    """What moved, and at what rate at best, counted as NCCL's tests do: an all-reduce sends everything twice."""
    reduced, gathered = rows(write_trace(tmp_path / "t.json", STEP))
    assert reduced == {
        **{"merged_path": "step", "collective": "allreduce", "communicator": "ranks 0-1 (all group 0)", "ranks": 2},
        **{"message_bytes": 200, "count": 2, "size_bytes": 400, "sum_ns": 300, "median_ns": 150},
        "bus_bytes_per_s": pytest.approx(200 * 2 * (1 / 2) / 100e-9),
    }
    assert (gathered["communicator"], gathered["message_bytes"]) == ("ranks 0,2,4,6 (group 7)", 200)
    assert gathered["bus_bytes_per_s"] == pytest.approx(200 * (3 / 4) / 100e-9)


def test_what_is_not_recorded_claims_nothing(tmp_path: Path) -> None:
    """Types nobody knows, sizes that are none, ranks that PyTorch cut short, and traces without collectives."""
    odd = [
        *collective("allreduce", (3, 4), (100, 300), id=2, dtype="Quaternion"),
        *collective("allreduce", (5, 6), (300, 400), id=3, elements="many", ranks="[0, 1, ...]"),
    ]
    found = rows(write_trace(tmp_path / "t.json", [*STEP[:3], *odd]))
    assert [(row["message_bytes"], row["size_bytes"]) for row in found] == [(-1, 0)] * 2
    assert [row["communicator"] for row in found] == ["ranks 0-1 (all group 0)", "3 ranks (all group 0)"]
    assert all(row["bus_bytes_per_s"] != row["bus_bytes_per_s"] for row in found)
    assert rows(write_trace(tmp_path / "t.json", STEP[:3])) == []
    alone = collective("broadcast", (3, 4), (100, 300), id=2, ranks="[0]")
    [single] = rows(write_trace(tmp_path / "t.json", [*STEP[:3], *alone]))
    assert (single["ranks"], math.isnan(single["bus_bytes_per_s"])) == (1, True)


def test_waiting_names_the_communicator(tmp_path: Path) -> None:
    """In `why.csv`, beside the size of the message."""
    culprits = set(why(attributed(write_trace(tmp_path / "t.json", STEP))).rows["culprit"])
    assert "ncclDevKernel_Generic of 192 B among ranks 0-1 (all group 0) in step" in culprits
