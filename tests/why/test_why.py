"""Why the GPU waits: each cause of the table of waits in a report of a few lines, and that all adds up."""

from pathlib import Path
from typing import TypeAlias

import pandas as pd
import pytest

from nsysprof.attribution.attribute import attribute
from nsysprof.attribution.levels import WHOLE
from nsysprof.core import arena
from nsysprof.errors import NsysprofError
from nsysprof.trace.report import open_report, read_tables
from nsysprof.why.why import Why, why
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reports import BLOCK, RUN, TWO, attributed
from tests.kit.trace import (
    EventRecord,
    GraphNode,
    Items,
    Kernel,
    Launch,
    Memcpy,
    OsCall,
    Range,
    StreamKind,
    StreamWait,
    launch_kernel,
    launch_memcpy,
    launch_memset,
)

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def why_of(path: Path, select: str | None = "step", skip: int | None = None) -> Why:
    """The account of the ranges of that name, without warm-up unless it is asked for with 0 to skip."""
    return why(attributed(path), select, skip=skip)


Wait: TypeAlias = tuple[str, str, str, str, int]


def waits(answer: Why) -> list[Wait]:
    """Cause, activity, culprit, what exposed it, and ns of each row that is no compute, the longest first."""
    rows = answer.rows[answer.rows["cause"] != "compute"]
    columns = ["cause", "activity", "culprit", "exposed_by", "waited_ns"]
    return list(rows[columns].itertuples(index=False, name=None))


def check_sums(answer: Why) -> None:
    """Rows add up to the windows, waits to what no compute took, and parts of a window to it."""
    windows, pieces = answer.windows, answer.waits
    span = windows["end_ns"] - windows["start_ns"]
    waited = (pieces["end_ns"] - pieces["start_ns"]).groupby(pieces["window"]).sum()
    assert (waited.reindex(windows.index, fill_value=0) == span - windows["compute_ns"]).all()
    parts = windows[["compute_ns", "communication_ns", "copies_ns", "idle_ns"]]
    assert (parts.sum(axis=1) == span).all()
    assert (parts >= 0).all(axis=None)
    place = ["path", "gpu", "pid"]
    rows = answer.rows.groupby(place)["waited_ns"].sum()
    assert rows.to_dict() == span.groupby([windows[name] for name in place]).sum().to_dict()
    assert (answer.rows["waited_ns"] > 0).all()


@pytest.mark.parametrize("path", [RUN, BLOCK, TWO], ids=lambda path: path.stem)
def test_the_shipped_reports_add_up(path: Path) -> None:
    """To the nanosecond, whatever ranges are chosen."""
    attribution = attributed(path)
    for select in (None, "*"):
        check_sums(why(attribution, select))


def test_a_memory_limit_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long columns in scratch files: the same rows and pieces."""
    monkeypatch.setattr(arena, "_MIN_FILE_BYTES", 0)
    with open_report(TWO) as report:
        mine, other = (why(attribute(report, memory_limit=limit)) for limit in (1, None))
    for name in ("windows", "rows", "waits", "held_up"):
        pd.testing.assert_frame_equal(getattr(mine, name), getattr(other, name), check_exact=True)


def test_copies_and_memsets_have_sizes(trace: MakeTrace) -> None:
    """In the order of the ops, -1 for what is neither."""
    path = trace(
        launch_kernel("a", (0, 1), (5, 10), id=1),
        launch_memcpy((2, 3), (20, 30), id=2, bytes=64),
        launch_memset((4, 5), (40, 50), id=3),
        launch_memcpy((6, 7), (60, 70), id=4, bytes=4),
    )
    with open_report(path) as report:
        sizes = read_tables(report).copy_sizes()
    assert sizes.tolist() == [-1, 64, 4, 1024]


@pytest.mark.parametrize("seed", range(40))
def test_random_reports_add_up(trace: MakeTrace, seed: int) -> None:
    """Ops before their launches, without launches, in many streams and processes."""
    path = trace(*random_report(seed))
    attribution = attributed(path)
    check_sums(why(attribution))
    if len(attribution.trace.ranges):
        check_sums(why(attribution, "*"))


FIRST = launch_kernel("gemm", (0, 5), (5, 40), id=1)
LAST = launch_kernel("gemm", (100, 105), (105, 130), id=2)
LATE = launch_kernel("gemm", (150, 155), (155, 200), id=4)
IN_SYNC = "cudaDeviceSynchronize in step"
CAUSES: dict[str, tuple[int, list[Items], list[Wait]]] = {
    "code between launches is that of its range": (
        200,
        [
            *(launch_kernel("gemm", (10, 15), (20, 40), id=1), Range("load", 50, 90)),
            launch_kernel("gemm", (100, 105), (110, 130), id=2),
        ],
        [
            ("host", "code", "code in step", "", 100),
            ("host", "code", "code in load", "", 40),
            ("host", "launch calls", "cudaLaunchKernel in step", "", 10),
            ("latency", "", "", "", 10),
        ],
    ),
    "one inside a CUDA call counts as that": (
        130,
        [FIRST, Launch(40, 100, 7, api="cudaMalloc_v3020"), OsCall("ioctl", 45, 95), LAST],
        [("host", "other CUDA calls", "cudaMalloc in step", "", 60)],
    ),
    "a synchronization exposes what the host does until it launches": (
        200,
        [FIRST, Launch(10, 45, 2, api="cudaDeviceSynchronize_v3020"), LATE],
        [
            ("host", "code", "code in step", IN_SYNC, 105),
            ("host", "launch calls", "cudaLaunchKernel in step", "", 5),
            ("host", "launch calls", "cudaLaunchKernel in step", IN_SYNC, 5),
            ("host", "synchronizing calls", IN_SYNC, IN_SYNC, 5),
        ],
    ),
    "a synchronization behind a copy of four bytes to the host is `.item()`, or its like": (
        200,
        [
            *(FIRST, launch_memcpy((6, 8), (40, 42), id=2, bytes=4, kind=2)),
            *(Launch(10, 45, 3, api="cudaStreamSynchronize_v3020"), LATE),
        ],
        [("host", "code", "code in step", ".item() in step", 105)],
    ),
    "time behind the last op of a range is the host's": (
        100,
        [FIRST, Launch(10, 40, 2, api="cudaDeviceSynchronize_v3020")],
        [("host", "code", "code in step", IN_SYNC, 60)],
    ),
    "before `backward` began its thread could not launch: what the main thread did was in the way": (
        300,
        [
            *(launch_kernel("gemm", (0, 5), (5, 20), id=1), Range("log", 30, 130), Range("backward", 140, 280)),
            launch_kernel("gemm", (200, 205), (205, 300), id=2, thread=2),
        ],
        [("host", "code", "code in log", "", 100), ("host", "code", "code in backward on thread 2", "", 60)],
    ),
}


@pytest.mark.parametrize(("end", "items", "wanted"), CAUSES.values(), ids=CAUSES)
def test_causes(trace: MakeTrace, end: int, items: list[Items], wanted: list[Wait]) -> None:
    """A step of so many ns waits for this, and all adds up; what its copies take without compute is a column."""
    answer = why_of(trace(Range("step", 0, end), *items))
    check_sums(answer)
    assert set(wanted) <= set(waits(answer))
    assert waits(answer)[0] in wanted
    copies = sum(ns for cause, *_, ns in wanted if cause == "copy") + 2 * (".item() in step" in str(wanted))
    assert answer.windows["copies_ns"].tolist() == [copies]


def test_a_wait_is_on_the_device_of_its_context(trace: MakeTrace) -> None:
    """Where nsys (2025.3) files waits on GPU 1 under device 0, the context leads to it."""
    path = trace(
        Range("step", 0, 100),
        launch_kernel("gemm", (0, 5), (5, 40), id=1, device=1),
        launch_kernel(NCCL, (6, 8), (20, 80), id=2, stream=14, device=1),
        *(EventRecord(14, 9, id=3, device=1), StreamWait(7, 11, id=4, device=0)),
        launch_kernel("gemm", (13, 15), (80, 100), id=5, device=1),
        empty_tables=["TARGET_INFO_CUDA_CONTEXT_INFO"],
        sql=["INSERT INTO TARGET_INFO_CUDA_CONTEXT_INFO VALUES (7, 0, 1, 1, 1, 1, 0, 0)"],
    )
    assert why_of(path).windows["blocking_ns"].tolist() == [40]


GEMM = launch_kernel("gemm", (13, 15), (80, 100), id=9)  # what the collective may hold up
EVENTS: dict[str, tuple[list[Items], str]] = {
    "an event that its stream waits for": ([EventRecord(14, 9, id=3), StreamWait(7, 11, id=4), GEMM], "communication"),
    "nobody waits for it, and the host came late": ([launch_kernel("gemm", (70, 75), (75, 100), id=5)], "host"),
    "a stream without work passes on what it waits for": (
        [
            *(EventRecord(14, 9, id=3, event=1), StreamWait(20, 10, id=4, event=1)),
            *(EventRecord(20, 11, id=5, event=2), StreamWait(7, 12, id=6, event=2), GEMM),
        ],
        "communication",
    ),
    "an event that was never recorded (eventSyncId 0)": (
        [EventRecord(14, 9, id=3), StreamWait(7, 11, id=4, sync=0), GEMM],
        "latency",
    ),
    "an event of another process with the same number": (
        [EventRecord(14, 9, id=3, process=2), StreamWait(7, 11, id=4, process=1), GEMM],
        "latency",
    ),
}


@pytest.mark.parametrize(("items", "cause"), EVENTS.values(), ids=EVENTS)
def test_communication_blocks_what_waits_for_its_event(trace: MakeTrace, items: list[Items], cause: str) -> None:
    """A collective runs while nothing computes: that is exposed, and blocking if the next kernel has to wait for it."""
    collective = launch_kernel(NCCL, (6, 8), (20, 80), id=2, stream=14)
    answer = why_of(trace(Range("step", 0, 100), FIRST, collective, *items))
    check_sums(answer)
    exposed = 35 if cause == "host" else 40
    blocking = exposed * (cause == "communication")
    assert answer.windows[["communication_ns", "blocking_ns"]].to_numpy().tolist() == [[exposed, blocking]]
    assert set(answer.rows["cause"][answer.rows["meanwhile"] == "communication"]) == {cause}
    named = ("communication", "", "ncclDevKernel_AllReduce_Sum_f32_RING_LL in step", "", 40)
    assert (named in waits(answer)) == (blocking > 0)


def test_the_legacy_default_stream_holds_up_blocking_streams(trace: MakeTrace) -> None:
    """What stream 13 was given waits for the kernel of the default stream; a non-blocking stream does not."""
    report = (
        Range("step", 0, 100),
        launch_kernel("gemm", (0, 2), (5, 20), id=1, stream=13),
        launch_kernel("spin", (3, 4), (20, 80), id=2, stream=7),
        launch_kernel("gemm", (5, 6), (80, 100), id=3, stream=13),
    )
    held = why_of(trace(*report, StreamKind(7, 3), StreamKind(13, 1))).held_up
    assert held[["culprit", "waits", "waited_ns"]].to_numpy().tolist() == [["spin in step", 1, 60]]
    assert len(why_of(trace(*report, StreamKind(7, 3), StreamKind(13, 2))).held_up) == 0
    assert len(why_of(trace(*report, StreamKind(7, "=1+1"), StreamKind(13, 1))).held_up) == 0


def test_an_op_without_a_launch_or_a_dependency_is_unknown(trace: MakeTrace) -> None:
    """Nobody knows what it waited for, and the row says so."""
    path = trace(
        Range("step", 0, 60),
        launch_kernel("gemm", (0, 5), (5, 20), id=1, stream=7),
        Kernel("other", 40, 50, None, stream=9),
        launch_kernel("gemm", (6, 7), (50, 60), id=2, stream=7),
    )
    rows = why_of(path).rows
    [unknown] = rows[rows["cause"] == "unknown"].to_dict("records")
    assert (unknown["waited_ns"], unknown["claim"]) == (20, "abstain")
    assert pd.isna(unknown["ceiling_ns"])


def test_without_a_range_that_repeats_the_whole_trace_is_the_window(trace: MakeTrace) -> None:
    """And the answer says so."""
    path = trace(launch_kernel("gemm", (0, 5), (5, 20), id=1), launch_kernel("gemm", (30, 35), (35, 50), id=2))
    answer = why_of(path, None)
    assert answer.windows[["path", "start_ns", "end_ns"]].to_numpy().tolist() == [[WHOLE, 5, 50]]
    assert answer.chosen == "no step repeats: the whole recording"
    check_sums(answer)


def test_ranges_named_as_steps_are_chosen(trace: MakeTrace) -> None:
    """Of several that repeat the one whose name begins with step or iter."""
    items = [
        item
        for n in range(3)
        for item in (
            Range(f"step{n}", 100 * n, 100 * n + 90),
            Range("data", 100 * n, 100 * n + 5),
            *launch_kernel("gemm", (100 * n + 6, 100 * n + 9), (100 * n + 10, 100 * n + 80), id=n + 1),
        )
    ]
    answer = why_of(trace(*items), None)
    assert set(answer.windows["path"]) == {"step*"}
    assert answer.chosen == "steps: step* (3, 100 % of GPU busy time)"


def test_a_glob_that_matches_nothing_is_refused(trace: MakeTrace) -> None:
    """With near names, as in other commands."""
    path = trace(Range("step", 0, 60), launch_kernel("gemm", (0, 5), (5, 20), id=1))
    with pytest.raises(NsysprofError, match="near it: 'step'"):
        why_of(path, "stop")


def test_gpu_work_that_takes_no_time_has_no_windows(trace: MakeTrace) -> None:
    """All GPU ops begin and end in one nanosecond: there is no time to account for."""
    answer = why_of(trace(launch_kernel("gemm", (0, 5), (9, 9), id=1)), None)
    assert len(answer.windows) == len(answer.rows) == 0
    assert answer.findings == {}


def test_a_report_without_gpu_work_has_no_windows(trace: MakeTrace) -> None:
    """And no rows: nothing waits."""
    answer = why_of(trace(Range("step", 0, 60)), None)
    assert len(answer.windows) == len(answer.rows) == 0


def test_replays_are_named_after_the_range_that_captured_them(trace: MakeTrace) -> None:
    """With graphs read as captured names change, and nothing else: the walk needs the real launches."""
    path = trace(
        Range("layer", 0, 100),
        GraphNode(1, 50),
        GraphNode(2, 60),
        *(Range("step", at, at + 900) for at in (1_000, 2_000, 3_000)),
        *(
            item
            for number, at in enumerate((1_000, 2_000, 3_000))
            for item in (
                Launch(at + 10, at + 20, 10 + number, api="cudaGraphLaunch_v10000"),
                Memcpy(at + 100, at + 400, 10 + number, graph_node=1),
                Kernel("gemm", at + 400, at + 800, 10 + number, graph_node=2),
            )
        ),
        duration=9_000,
    )
    with open_report(path) as report:
        launched, captured = (why(attribute(report, graphs=each), "step") for each in ("launched", "captured"))
    check_sums(captured)
    for answer, name in ((launched, "step"), (captured, "layer")):
        [copy] = [row for row in waits(answer) if row[0] == "copy"]
        assert copy[2].startswith("memcpy HtoD")
        assert copy[2].endswith(f"in {name}")
    pd.testing.assert_frame_equal(launched.windows, captured.windows)
    times = ["cause", "activity", "waited_ns"]
    pd.testing.assert_frame_equal(launched.rows[times], captured.rows[times])
