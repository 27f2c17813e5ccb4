"""What makes a trace doubtful is said in one sentence each; what real reports hold is not doubted."""

from pathlib import Path

import pytest

from nsysprof.core import arrays
from nsysprof.trace.plausibility import doubts
from nsysprof.trace.report import open_report, read_tables
from nsysprof.trace.trace import Trace
from tests.conftest import MakeTrace
from tests.kit.reports import BLOCK, RUN, TWO
from tests.kit.trace import Diagnostic, Kernel, Launch, Range, launch_kernel, launch_memcpy


def read(path: Path) -> Trace:
    """The trace of a report."""
    with open_report(path) as report:
        return read_tables(report)


@pytest.mark.parametrize("path", [RUN, BLOCK, TWO], ids=lambda path: path.stem)
def test_shipped_reports_are_believed(path: Path) -> None:
    """Not a sentence about any of them."""
    assert doubts(read(path)) == ()


@pytest.mark.parametrize("chunk", [1, 2, 1 << 16])
@pytest.mark.parametrize("turned", [False, True])
def test_ops_that_end_after_the_next_one_starts(
    trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, turned: bool, chunk: int
) -> None:
    """In one stream, by more than the step of the clock; whatever the order of the rows."""
    monkeypatch.setattr(arrays, "ROWS", chunk)
    calls = [
        launch_kernel("a", (0, 1), (1_000, 2_000), id=1),
        launch_kernel("b", (2, 3), (1_500, 2_750), id=2),
        launch_kernel("c", (4, 5), (2_750, 3_000), id=3),
        launch_kernel("other", (6, 7), (1_000, 8_500), id=4, stream=9),
    ]
    found = read(trace(*(reversed(calls) if turned else calls)))
    assert doubts(found) == (
        "1 of 4 GPU ops (25 %) overlap the next op of their stream by up to 500 ns; the cause is programmatic dependent"
        " launch, or wrong timestamps",
        "1 of 2 streams run several GPU ops at once, so sums count overlapping time more than once: the op time of a"
        " stream is up to 125 % of elapsed time (these streams have 25 % of GPU op time)",
    )
    assert found.warnings[-2:] == doubts(found)


def test_ops_that_may_overlap_are_believed(trace: MakeTrace) -> None:
    """Nodes of CUDA graphs, and kernels and copies that take turns."""
    path = trace(
        launch_kernel("node", (0, 1), (10, 30), id=1, graph_node=5),
        launch_kernel("node", (0, 1), (20, 40), id=2, graph_node=6),
        launch_memcpy((5, 6), (40, 50), id=3),
        launch_kernel("a", (7, 8), (50, 60), id=4),
        launch_memcpy((9, 10), (60, 70), id=5),
    )
    assert doubts(read(path)) == ()


def test_ops_before_their_launch(trace: MakeTrace) -> None:
    """By more than clocks may differ."""
    path = trace(
        launch_kernel("early", (5_000, 5_100), (3_000, 3_500), id=1),
        launch_kernel("nearly", (9_000, 9_100), (8_000, 8_500), id=2),
        launch_kernel("a", (9_200, 9_300), (9_400, 9_500), id=3),
        Kernel("not launched", 9_600, 9_700, 9),
    )
    assert doubts(read(path)) == (
        "1 of 3 GPU ops (33 %) start before their launching call, by up to 2.00 µs: the clocks of host and GPU differ",
    )


def test_events_that_nsys_dropped(trace: MakeTrace) -> None:
    """nsys says so, and not how many."""
    path = trace(
        Range("step", 0, 10),
        launch_kernel("a", (0, 1), (1, 2), id=1),
        Diagnostic("Not all CUDA events might have been collected."),
        Diagnostic("Not all OpenGL events might have been collected."),
        Diagnostic("Dropped 12 event records."),
    )
    assert doubts(read(path)) == (
        "nsys may have dropped events (number unknown); 1 GPU op and 1 range remain. Message of nsys: Dropped 12"
        " event records. Not all CUDA events might have been collected.",
    )


def test_a_trace_of_nothing_is_believed(trace: MakeTrace) -> None:
    """No ops that ran."""
    assert doubts(read(trace(Range("step", 0, 10), Launch(1, 2, 1)))) == ()


@pytest.mark.parametrize("ends", [(120, 110), (110, 120)])
def test_ops_that_start_together_overlap_the_same_in_any_order(trace: MakeTrace, ends: tuple[int, int]) -> None:
    """The shorter comes first, wherever it is in the file."""
    rows = [Kernel("k", 100, end, None) for end in ends]
    (doubt, *_) = doubts(read(trace(*rows, Kernel("k", 115, 130, None))))
    assert doubt.startswith("2 of 3 GPU ops (67 %) overlap the next op of their stream by up to 10 ns")
