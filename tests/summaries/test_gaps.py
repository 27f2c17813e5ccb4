"""Long gaps of GPUs, and how busy they are in each part of their time."""

from pathlib import Path

import pytest

from nsysprof.summaries.gaps import PARTS
from nsysprof.summaries.summary import Answer
from tests.conftest import MakeTrace
from tests.kit.reports import broken_down
from tests.kit.trace import Items, Launch, Memcpy, launch_kernel, launch_memset

MS = 1_000_000


def answer(path: Path) -> Answer:
    return broken_down(path).summaries["gaps"]


def work() -> list[Items]:
    """Two GPUs: one with gaps of 499, 500 and 700 ms, one with none; two processes on the first take turns."""
    return [
        launch_kernel("a", (0, 1), (100 * MS, 200 * MS), id=1),
        launch_kernel("b", (1, 2), (699 * MS, 800 * MS), id=2),
        launch_memset((2, 3), (1300 * MS, 1400 * MS), id=3),
        launch_kernel("c", (2, 3), (1300 * MS, 1350 * MS), id=4, stream=9),
        launch_kernel("d", (3, 4), (2100 * MS, 3100 * MS), id=5),
        launch_kernel("e", (3, 4), (100 * MS, 200 * MS), id=6, device=1),
    ]


def test_long_gaps_are_rows(trace: MakeTrace) -> None:
    """The longest first, each with what ends it, of several GPU ops the first in the alphabet; 499 ms are not long."""
    found = answer(trace(*work()))
    assert [tuple(row.values()) for row in found.files["gaps.csv"].records()] == [
        ("GPU 0", 1400 * MS, 700 * MS, "d"),
        ("GPU 0", 800 * MS, 500 * MS, "c"),
    ]
    assert found.finding == (
        "Gaps: 2 GPU idle gaps of 500 ms or more (1.20 s in total); GPUs are busy less "
        "than half of the time in 17 of 60 parts"
    )
    assert "1 more row: --top 2, or see table gaps or utilisation." in " ".join(
        "\n".join(found.show(1).lines()).split()
    )


def test_parts_add_up_to_the_time_and_to_busy(trace: MakeTrace) -> None:
    """Thirty parts of each GPU's time, equal but for the last; a GPU op counts in each as far as it is there."""
    records = list(answer(trace(*work())).files["utilisation.csv"].records())
    first = [row for row in records if row["gpu"] == "GPU 0"]
    assert len(records) == 2 * PARTS
    assert sum(row["length_ns"] for row in first) == 3000 * MS
    assert sum(row["busy_ns"] for row in first) == 1301 * MS
    assert [row["share"] for row in first[:3]] == [1.0, 0.0, 0.0]
    assert {row["length_ns"] for row in first} == {100 * MS}


def test_without_long_gaps_there_is_nothing_to_see(trace: MakeTrace) -> None:
    """The files are there, with the parts alone; times that do not divide end where the last GPU op does."""
    found = answer(trace(launch_kernel("a", (0, 1), (10, 20), id=1), launch_kernel("a", (1, 2), (40, 51), id=2)))
    assert found.finding == ""
    assert not len(found.files["gaps.csv"])
    assert sum(row["length_ns"] for row in found.files["utilisation.csv"].records()) == 41


def test_reports_without_busy_gpus_have_no_gaps(trace: MakeTrace) -> None:
    """Neither host calls nor what unified memory moves make a GPU busy."""
    with pytest.raises(KeyError):
        answer(trace(Launch(0, 10, 1), Memcpy(5, 9, None, kind=11, cause=2)))
