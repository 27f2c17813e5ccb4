"""Reports that no program leaves, or hardly any: an answer that adds up, and no more work than they are long."""

from importlib import import_module

import pytest

from nsysprof.why.why import Why
from tests.conftest import MakeTrace
from tests.kit.trace import EventRecord, Items, Kernel, Launch, Range, StreamWait, launch_kernel, launch_memcpy
from tests.why.test_why import check_sums, why_of


def pieces(answer: Why) -> list[tuple[int, int, str, str]]:
    """Start, end, cause and culprit of each piece, by time."""
    columns = answer.waits[["start_ns", "end_ns", "cause", "culprit"]].astype(object)
    return sorted(columns.itertuples(index=False, name=None))


def test_streams_that_wait_for_each_other_in_a_circle(trace: MakeTrace) -> None:
    """Each event is recorded behind the wait for it: what was not recorded yet is no dependency."""
    path = trace(
        Range("step", 0, 200),
        launch_kernel("gemm", (0, 2), (5, 40), id=1, stream=7),
        StreamWait(7, 10, id=2, event=2, sync=2),
        EventRecord(7, 11, id=3, event=1, sync=1),
        StreamWait(9, 12, id=4, event=1, sync=1),
        EventRecord(9, 13, id=5, event=2, sync=2),
        launch_kernel("gemm", (14, 15), (60, 80), id=6, stream=9),
        launch_kernel("gemm", (16, 17), (100, 200), id=7, stream=7),
    )
    answer = why_of(path)
    check_sums(answer)
    assert pieces(answer)[-2:] == [(40, 60, "latency", ""), (80, 100, "latency", "")]


def test_a_wait_of_a_stream_that_is_gone(trace: MakeTrace) -> None:
    """Nothing ever ran on stream 99, which waits and whose event is waited for: as if there were none."""
    path = trace(
        Range("step", 0, 100),
        launch_kernel("gemm", (0, 2), (5, 40), id=1, stream=7),
        StreamWait(99, 5, id=2, event=8, sync=8),
        EventRecord(99, 6, id=3),
        StreamWait(7, 7, id=4),
        launch_kernel("gemm", (13, 15), (80, 100), id=5, stream=7),
    )
    assert pieces(why_of(path))[-1] == (40, 80, "latency", "")


def test_without_host_calls_nobody_knows(trace: MakeTrace) -> None:
    """Neither when the kernel was launched nor by whom: it says what is missing."""
    path = trace(Range("step", 0, 90), Kernel("spin", 10, 20, 1), Kernel("gemm", 40, 50, 2, stream=9))
    answer = why_of(path, None)
    check_sums(answer)
    missing = "no launches are recorded (nsys profile --trace=cuda,nvtx PROGRAM)"
    assert pieces(answer) == [(20, 40, "unknown", missing)]


def test_what_an_op_that_nobody_launched_waited_for_is_unknown_behind_its_predecessor(trace: MakeTrace) -> None:
    """Its stream was done at 20; from then on the host may have been late, or the queue."""
    path = trace(Range("step", 0, 9), launch_kernel("spin", (1, 2), (10, 20), id=1), Kernel("gemm", 40, 50, 2))
    assert pieces(why_of(path, None)) == [(20, 40, "unknown", "no launch of gemm is recorded")]


def test_an_op_before_its_launch_came_late_all_the_same(trace: MakeTrace) -> None:
    """The clocks of GPU and host differ: all of the gap is the host's, none of it lies outside."""
    path = trace(
        Range("step", 0, 100),
        launch_kernel("gemm", (0, 2), (5, 40), id=1),
        launch_kernel("gemm", (70, 75), (60, 100), id=2),
    )
    answer = why_of(path)
    check_sums(answer)
    assert pieces(answer)[-1] == (40, 60, "host", "code in step")


def test_an_op_that_depends_on_a_later_one_is_unknown(trace: MakeTrace) -> None:
    """The awaited kernel starts behind the one that waits for it."""
    path = trace(
        Range("step", 0, 200),
        launch_kernel("gemm", (0, 2), (5, 40), id=1, stream=7),
        launch_kernel("spin", (3, 4), (120, 140), id=2, stream=9),
        EventRecord(9, 5, id=3),
        StreamWait(7, 6, id=4),
        launch_kernel("gemm", (7, 8), (60, 200), id=5, stream=7),
    )
    answer = why_of(path)
    check_sums(answer)
    assert pieces(answer)[-1] == (40, 60, "unknown", "gemm begins before its dependency ends")


def test_a_report_that_is_all_one_gap(trace: MakeTrace) -> None:
    """Two kernels of one ns, and between them 300 calls: a piece for each, and one for the code between two."""
    path = trace(
        Range("step", 0, 3300),
        launch_kernel("gemm", (0, 1), (1, 2), id=1),
        *(Launch(10 * n, 10 * n + 5, n + 1, api="cudaMalloc_v3020") for n in range(1, 301)),
        launch_kernel("gemm", (3200, 3201), (3202, 3300), id=400),
    )
    answer = why_of(path)
    check_sums(answer)
    assert (answer.waits["activity"].astype(str) == "other CUDA calls").sum() == 300


def test_the_way_back_through_a_gap_ends_somewhere_and_says_so(
    trace: MakeTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 30 copies before a kernel the last ones have their time; of the others is said that there are more."""
    path = trace(
        Range("step", 0, 340),
        launch_kernel("gemm", (0, 1), (1, 10), id=1),
        *(launch_memcpy((2, 3), (10 * n, 10 * n + 10), id=n + 1) for n in range(1, 31)),
        launch_kernel("gemm", (3, 4), (310, 340), id=40),
    )
    monkeypatch.setattr(import_module("nsysprof.waits.walk"), "MAX_STEPS", 20)
    answer = why_of(path)
    check_sums(answer)
    *_, cut, first = pieces(answer)[:3]
    assert cut == (10, 110, "unknown", "the dependency chain exceeds 20 GPU ops and was not followed further back")
    assert first == (110, 120, "copy", "memcpy HtoD pinned of 1.00 KiB in step")
    assert answer.rows.set_index("cause").loc["unknown", "claim"] == "abstain"


def test_thousands_of_streams(trace: MakeTrace) -> None:
    """Every other one waits for the one before it."""
    count = 3000
    items: list[Items] = [Range("step", 0, 40 * count + 100)]
    for n in range(count):
        at = 40 * n
        items.append(launch_kernel("gemm", (at, at + 2), (at + 5, at + 15), id=4 * n + 1, stream=100 + n))
        items.append(EventRecord(100 + n, at + 3, id=4 * n + 2, sync=n + 1))
        items.append(StreamWait(101 + n, at + 4, id=4 * n + 3, sync=n + 1))
    answer = why_of(trace(*items))
    check_sums(answer)
    assert answer.windows["compute_ns"].tolist() == [10 * count]
