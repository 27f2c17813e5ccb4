"""Streams, added up."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.summaries import streams
from nsysprof.summaries.summary import Answer
from tests.conftest import MakeTrace
from tests.kit.reports import RUN, TWO, attributed, broken_down
from tests.kit.trace import Kernel, Range, ThreadName, launch_graph, launch_kernel, launch_memset


def answer(path: Path) -> Answer:
    return broken_down(path).summaries["streams"]


def rows(path: Path) -> list[tuple[object, ...]]:
    """GPU, pid, stream, thread, and all numbers of each row."""
    return [tuple(row.values()) for row in answer(path).files["streams.csv"].records()]


def test_each_stream_is_a_row(trace: MakeTrace) -> None:
    """Counts by kind, sum and busy, share of the whole span, and what runs beside others of the same GPU."""
    path = trace(
        ThreadName(2, "loader"),
        launch_kernel("a", (0, 1), (10, 30), id=1, stream=7),
        launch_kernel("b", (1, 2), (20, 41), id=2, stream=7, thread=2),
        launch_memset((2, 3), (35, 50), id=3, stream=9, thread=2),
        launch_graph((3, 4), (60, 64), id=4, stream=9),
        launch_kernel("c", (0, 1), (10, 110), id=1, process=2, device=1),
        Kernel("d", 100, 101, None, stream=11),
    )
    assert rows(path) == [
        ("GPU 1", 2, "7", "thread 1 of pid 2", 1, 1, 0, 100, 100, 1.0, 0),
        ("GPU 0", 1, "7", "loader 2 of pid 1", 2, 2, 0, 41, 31, 0.31, 6),
        ("GPU 0", 1, "9", "loader 2 of pid 1", 2, 0, 1, 19, 19, 0.19, 6),
        ("GPU 0", 1, "11", "", 1, 1, 0, 1, 1, 0.01, 0),
    ]


def test_only_several_streams_with_work_are_shown(trace: MakeTrace) -> None:
    """One stream has its file and no table, nor does a second one with next to no work."""
    work = launch_kernel("k", (1, 2), (10, 1010), id=1)
    assert answer(trace(work)).finding == ""
    assert answer(trace(work, launch_kernel("k", (3, 4), (5, 6), id=2, stream=9))).finding == ""
    both = answer(trace(work, launch_kernel("k", (3, 4), (510, 1510), id=2, stream=9)))
    assert both.finding == ("Streams: 2 with GPU work; two or more run concurrently for 33 % of GPU busy time")
    assert [column.name for column in both.columns][:4] == ["gpu", "stream", "thread", "ops"]


def test_no_work_is_no_answer(trace: MakeTrace) -> None:
    """A report without GPU ops has no streams."""
    assert "streams" not in broken_down(trace(Range("step", 0, 9))).summaries


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("piece", [3, 1 << 19])
def test_overlap_is_that_of_a_count_by_the_nanosecond(
    seed: int, piece: int, trace: MakeTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever runs beside what, and however many pieces time is cut into."""
    monkeypatch.setattr(streams, "_PIECE", piece)
    rng = np.random.default_rng(seed)
    start, length, stream = rng.integers(0, 80, 30), rng.integers(0, 12, 30), rng.integers(1, 6, 30)
    ops = [
        Kernel("k", at, at + lasts, None, stream=number)
        for at, lasts, number in zip(start.tolist(), length.tolist(), stream.tolist(), strict=True)
    ]
    active = np.zeros((6, 100), bool)
    for at, lasts, number in zip(start.tolist(), length.tolist(), stream.tolist(), strict=True):
        active[number, at : at + lasts] = True
    beside = active & (active.sum(axis=0) > 1)
    found = {int(str(row[2])): (row[8], row[10]) for row in rows(trace(*ops))}
    assert found == {number: (int(active[number].sum()), int(beside[number].sum())) for number in set(stream.tolist())}


@pytest.mark.parametrize("path", [RUN, TWO])
def test_streams_add_up_to_the_report(path: Path) -> None:
    """Ops, kernels, copies and sums of all streams are those of the report."""
    whole = break_down(attributed(path))
    found = whole.summaries["streams"].files["streams.csv"]
    assert {name: int(found[name].sum()) for name in ("ops", "kernels", "memops", "sum_ns")} == {
        name: whole.totals[name] for name in ("ops", "kernels", "memops", "sum_ns")
    }
