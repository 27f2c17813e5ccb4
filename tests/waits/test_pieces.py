"""Causes of waits in combination: reports of a few lines whose answer can be worked out by hand."""

from pathlib import Path
from typing import TypeAlias

import pytest

from tests.conftest import MakeTrace
from tests.kit.trace import (
    EventRecord,
    Items,
    Launch,
    OsCall,
    Overhead,
    Range,
    Row,
    StreamKind,
    StreamWait,
    launch_graph,
    launch_kernel,
    launch_memcpy,
    launch_memset,
)
from tests.why.test_why import NCCL, check_sums, why_of

COLLECTIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL in step"
FIRST = launch_kernel("gemm", (0, 2), (5, 40), id=1)  # what the GPU does before the wait in question


Piece: TypeAlias = tuple[int, int, str, str, str, str]


def waits(path: Path, since: int = 40, gpu: int = 0) -> list[Piece]:
    """Start, end, cause, activity, culprit and what exposed it, of each piece from a moment on."""
    answer = why_of(path)
    check_sums(answer)
    mine = answer.waits[answer.windows["gpu"].to_numpy()[answer.waits["window"]] == gpu]
    mine = mine[mine["start_ns"] >= since].sort_values("start_ns")
    columns = ["start_ns", "end_ns", "cause", "activity", "culprit", "exposed_by"]
    return list(mine[columns].astype(object).itertuples(index=False, name=None))


COPY = "memcpy HtoD pinned of 1.00 MiB in step"
LAUNCH = "cudaLaunchKernel in step"
BLOCKING = "cudaMemcpy (HtoD pinned, 1.00 MiB) in step"
THIRD = launch_kernel("gemm", (5, 6), (80, 100), id=9)
PIECES: dict[str, tuple[int, list[Items], list[Piece]]] = {
    "a kernel waits for a collective, which waits for a copy": (
        100,
        [
            *(launch_memcpy((3, 4), (20, 50), id=2, stream=20, bytes=1 << 20), EventRecord(20, 5, id=3, event=1)),
            *(StreamWait(14, 6, id=4, event=1), launch_kernel(NCCL, (7, 8), (50, 80), id=5, stream=14)),
            *(EventRecord(14, 9, id=6, event=2), StreamWait(7, 10, id=7, event=2)),
            launch_kernel("gemm", (11, 12), (82, 100), id=8),
        ],
        [
            (40, 50, "copy", "", COPY, ""),
            (50, 80, "communication", "", COLLECTIVE, ""),
            (80, 82, "latency", "", "", ""),
        ],
    ),
    "the host read a file before it copied": (
        100,
        [
            *(OsCall("read", 30, 60), launch_memcpy((61, 62), (63, 80), id=2, bytes=1 << 20)),
            launch_kernel("gemm", (64, 65), (80, 100), id=3),
        ],
        [
            (40, 60, "host", "OS calls", "read in step", ""),
            (60, 61, "host", "code", "code in step", ""),
            (61, 63, "latency", "", "", ""),
            (63, 80, "copy", "", COPY, ""),
        ],
    ),
    "a blocking copy makes the next launch late": (
        100,
        [
            *(Launch(45, 90, 2, api="cudaMemcpy_v3020"), launch_memcpy((0, 0), (60, 85), id=2, bytes=1 << 20)[1]),
            launch_kernel("gemm", (91, 93), (93, 100), id=3),
        ],
        [
            (40, 45, "host", "code", "code in step", ""),
            (45, 90, "host", "synchronizing calls", BLOCKING, BLOCKING),
            (90, 91, "host", "code", "code in step", BLOCKING),
            (91, 93, "host", "launch calls", LAUNCH, BLOCKING),
        ],
    ),
    "a memset in the stream moves nothing, but computes nothing either": (
        100,
        [launch_memset((3, 4), (40, 80), id=2), THIRD],
        [(40, 80, "copy", "", "memset in step", "")],
    ),
    "an event of another GPU, whose kernel is compute there": (
        100,
        [
            *(launch_kernel("peer", (1, 2), (20, 80), id=2, device=1), EventRecord(7, 3, id=3, device=1)),
            *(StreamWait(7, 4, id=4, device=0), THIRD),
        ],
        [(40, 80, "kernel", "", "peer in step", "")],
    ),
    "of two calls with one id the shorter one records the event": (
        100,
        [
            Launch(3, 12, 3, api="cudaEventRecord_v3020"),
            *(launch_kernel(NCCL, (5, 6), (20, 80), id=2, stream=14), EventRecord(14, 9, id=3)),
            *(StreamWait(7, 13, id=4), launch_kernel("gemm", (15, 16), (80, 100), id=5)),
        ],
        [(40, 80, "communication", "", COLLECTIVE, "")],
    ),
    "until 70 autograd's thread launched, and the main thread waited for it": (
        130,
        [
            launch_kernel("gemm", (20, 70), (39, 40), id=2, thread=2, stream=9),
            launch_kernel("gemm", (100, 105), (105, 130), id=3),
        ],
        [
            (40, 70, "host", "launch calls", f"{LAUNCH} on thread 2", ""),
            (70, 100, "host", "code", "code in step", ""),
            (100, 105, "host", "launch calls", LAUNCH, ""),
        ],
    ),
    "the profiler inside a launch": (
        130,
        [Overhead(60, 90), launch_kernel("gemm", (50, 100), (101, 130), id=2)],
        [
            (40, 50, "host", "code", "code in step", ""),
            (50, 60, "host", "launch calls", LAUNCH, ""),
            (60, 90, "profiler", "profiler", "Buffer request in step", ""),
            (90, 100, "host", "launch calls", LAUNCH, ""),
            (100, 101, "latency", "", "", ""),
        ],
    ),
    "a graph that came late: traced whole it computes, its launch is a launch": (
        130,
        [launch_graph((100, 110), (112, 130), id=2)],
        [
            (40, 100, "host", "code", "code in step", ""),
            (100, 110, "host", "launch calls", "cudaGraphLaunch in step", ""),
            (110, 112, "latency", "", "", ""),
        ],
    ),
    "the legacy default stream holds up blocking streams": (
        100,
        [
            *(launch_memcpy((3, 4), (20, 80), id=2, stream=17, bytes=1 << 20), THIRD),
            *(StreamKind(17, 3), StreamKind(7, 1)),
        ],
        [(40, 80, "copy", "", COPY, "")],
    ),
    "and not one that does not block": (
        100,
        [
            *(launch_memcpy((3, 4), (20, 80), id=2, stream=17, bytes=1 << 20), THIRD),
            *(StreamKind(17, 3), StreamKind(7, 2)),
        ],
        [(40, 80, "latency", "", "", "")],
    ),
}


@pytest.mark.parametrize(("end", "items", "wanted"), PIECES.values(), ids=PIECES)
def test_pieces(trace: MakeTrace, end: int, items: list[Items], wanted: list[Piece]) -> None:
    """Each part of the gap behind the first kernel has its cause."""
    path = trace(Range("step", 0, end), FIRST, *items)
    assert waits(path) == wanted
    if BLOCKING in str(wanted):
        assert why_of(path).windows["copies_ns"].tolist() == [25]
    if "peer" in str(items):
        assert waits(path, 20, gpu=1) == [(80, 100, "host", "code", "code in step", "")]


def test_work_of_an_earlier_step_that_runs_on_into_this_one(trace: MakeTrace) -> None:
    """Only the part of the copy that lies in the window counts, and to no other cause."""
    path = trace(
        launch_memcpy((0, 1), (10, 80), id=1, bytes=1 << 20),
        Range("step", 50, 100),
        launch_kernel("gemm", (51, 52), (80, 100), id=2),
    )
    assert waits(path) == [(50, 80, "copy", "", "memcpy HtoD pinned of 1.00 MiB outside every range", "")]


def _twice(again: int) -> list[Items]:
    return [
        Range("step", 0, 100),
        FIRST,
        launch_kernel(NCCL, (3, 4), (20, 80), id=2, stream=14),
        EventRecord(14, 5, id=3),
        launch_memcpy((6, 7), (20, 60), id=4, stream=20, bytes=1 << 20),
        EventRecord(20, again, id=5),
        StreamWait(7, 10, id=6),
        launch_kernel("gemm", (13, 14), (80, 100), id=7),
    ]


@pytest.mark.parametrize(
    ("again", "cause", "end"), [(8, "copy", 60), (11, "communication", 80)], ids=["before", "after"]
)
def test_without_sync_ids_the_last_recording_before_the_wait_counts(
    trace: MakeTrace, again: int, cause: str, end: int
) -> None:
    """As in reports of nsys 2022, where the event that is recorded anew has but its number."""
    first, *_ = waits(trace(*_twice(again), style="2022.4"))
    assert first[:3] == (40, end, cause)


def test_a_host_that_got_ahead_again_is_exposed_by_nothing(trace: MakeTrace) -> None:
    """After the synchronization it launched 60 µs of work ahead; that it slept later is another matter."""
    us = 1000
    path = trace(
        Range("step", 0, 200 * us),
        Launch(0, 5 * us, 1, api="cudaDeviceSynchronize_v3020"),
        launch_kernel("gemm", (6 * us, 7 * us), (7 * us, 50 * us), id=2),
        launch_kernel("gemm", (8 * us, 9 * us), (50 * us, 70 * us), id=3),
        OsCall("clock_nanosleep", 10 * us, 150 * us),
        launch_kernel("gemm", (150 * us, 151 * us), (151 * us, 200 * us), id=4),
    )
    assert waits(path, 70 * us)[0] == (70 * us, 150 * us, "host", "OS calls", "clock_nanosleep in step", "")


def test_what_another_thread_does_is_not_to_blame(trace: MakeTrace) -> None:
    """A loader sleeps beside the thread that launches."""
    path = trace(
        Range("step", 0, 130),
        FIRST,
        OsCall("clock_nanosleep", 20, 100, thread=2),
        launch_kernel("gemm", (100, 105), (105, 130), id=2),
    )
    assert {row[4] for row in waits(path)} == {"code in step", "cudaLaunchKernel in step"}


def helped(at: int, main: int) -> list[Items]:
    """A step whose thread waits for the launch of thread 1, which has a range of its own meanwhile."""
    return [
        Range("step", at, at + 130, thread=main),
        launch_kernel("gemm", (at, at + 2), (at + 5, at + 40), id=at + 1, thread=main),
        Range("inner", at + 45, at + 60, thread=1),
        launch_kernel("gemm", (at + 20, at + 70), (at + 39, at + 40), id=at + 2, thread=1, stream=9),
        launch_kernel("gemm", (at + 100, at + 105), (at + 105, at + 130), id=at + 3, thread=main),
    ]


@pytest.mark.parametrize("before", [[], helped(0, main=3)], ids=["first", "second"])
def test_a_helper_is_named_where_it_has_no_range_of_its_own(trace: MakeTrace, before: list[Items]) -> None:
    """Whichever threads it helped before, and although it comes first in the report."""
    found = waits(trace(*before, *helped(1_000, main=2)), 1_040)
    assert [(start - 1_000, end - 1_000, culprit) for start, end, _, _, culprit, _ in found] == [
        (40, 45, f"{LAUNCH} on thread 1"),
        (45, 60, "cudaLaunchKernel in inner"),
        (60, 70, f"{LAUNCH} on thread 1"),
        (70, 100, "code in step"),
        (100, 105, LAUNCH),
    ]


def test_streams_of_one_number_on_two_gpus(trace: MakeTrace) -> None:
    """Contexts say on which: stream 13 blocks on GPU 1, and not on GPU 0, where this happens."""
    info = "TARGET_INFO_CUDA_CONTEXT_INFO"
    kind: dict[str, int] = {"hwId": 0, "vmId": 1, "processId": 1, "priority": 0}
    path = trace(
        Range("step", 0, 100),
        launch_kernel("gemm", (0, 2), (5, 40), id=1, stream=13),
        launch_memcpy((3, 4), (20, 80), id=2, stream=7, bytes=1 << 20),
        launch_kernel("gemm", (5, 6), (80, 100), id=3, stream=13),
        *(Row(info, {"processId": 1, "contextId": 1 + gpu, "deviceId": gpu, "nullStreamId": 7}) for gpu in (0, 1)),
        Row("TARGET_INFO_CUDA_STREAM", {**kind, "streamId": 7, "contextId": 1, "flag": 3}),
        Row("TARGET_INFO_CUDA_STREAM", {**kind, "streamId": 13, "contextId": 1, "flag": 2}),
        Row("TARGET_INFO_CUDA_STREAM", {**kind, "streamId": 13, "contextId": 2, "flag": 1}),
    )
    assert waits(path) == [(40, 80, "latency", "", "", "")]
