"""The walk from the op that ends a gap to the gap's start, and the call that let the GPU run dry, piece by piece."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution.attribute import attribute
from nsysprof.trace.report import open_report
from nsysprof.waits.host import exposed_by
from nsysprof.waits.walk import HOLE, HOST, LATENCY, RUNS, UNKNOWN, reasons, walk
from tests.conftest import MakeTrace
from tests.kit.events import Items
from tests.kit.trace import EventRecord, Kernel, Launch, StreamWait, launch_kernel, launch_memcpy

NAMES = {RUNS: "runs", HOST: "host", LATENCY: "latency", UNKNOWN: "unknown", HOLE: "hole"}


def walked(path: Path, start: int, end: int) -> list[tuple[int, int, str]]:
    """Start, end and kind of each piece of the gap that the op at its ``end`` ends."""
    with open_report(path) as report:
        trace = attribute(report).trace
        why = reasons(trace, report.reader.dependencies(trace))
    op = np.flatnonzero(trace.ops.start == end)
    pieces = walk(trace, why, np.array([start]), np.array([end]), op)
    kinds = [NAMES[kind] for kind in pieces.kind.tolist()]
    return list(zip(pieces.start.tolist(), pieces.end.tolist(), kinds, strict=True))


def test_a_blocking_copy_was_launched_when_its_call_began(trace: MakeTrace) -> None:
    """The host sits in the call until the copy is done: before it the GPU waited for nothing but its own queue."""
    path = trace(
        launch_kernel("a", (10, 15), (20, 40), id=1),
        (Launch(16, 60, 2, api="cudaMemcpy_v3020"), launch_memcpy((0, 0), (42, 55), id=2)[1]),
        launch_kernel("b", (18, 20), (57, 90), id=3, thread=2),
    )
    assert walked(path, 40, 57) == [(40, 42, "latency"), (42, 55, "runs"), (55, 57, "latency")]


def test_a_kernel_was_launched_when_its_call_returned(trace: MakeTrace) -> None:
    """From the end of the one before to the return of the call the GPU waits for the host, then for its queue."""
    path = trace(launch_kernel("a", (10, 15), (20, 40), id=1), launch_kernel("b", (45, 50), (53, 90), id=2))
    assert walked(path, 40, 53) == [(40, 50, "host"), (50, 53, "latency")]


def test_an_op_without_anything_before_it_is_unknown(trace: MakeTrace) -> None:
    """Nobody launched it, and nothing ran in its stream."""
    path = trace(Kernel("a", 0, 10, 0, stream=7), Kernel("b", 30, 40, 0, stream=8))
    assert walked(path, 10, 30) == [(10, 30, "unknown")]


def test_an_op_without_a_launch_is_unknown_once_its_stream_is_free(trace: MakeTrace) -> None:
    """Its predecessor is a dependency; from then on nobody knows whether the host was late, or the queue."""
    path = trace(
        launch_kernel("a", (0, 2), (5, 10), id=1),
        launch_kernel("b", (3, 4), (20, 40), id=2, stream=8),
        Kernel("c", 50, 60, 0, stream=8),
    )
    assert walked(path, 10, 50) == [(10, 20, "latency"), (20, 40, "runs"), (40, 50, "unknown")]


@pytest.mark.parametrize("first", [0, 1])
def test_an_op_waits_for_what_its_event_stands_for(trace: MakeTrace, first: int) -> None:
    """The last op of the stream that recorded it, also the first op of the first stream."""
    before = [launch_kernel("x", (0, 1), (2, 3), id=9)] * first
    path = trace(
        *before,
        launch_kernel("long", (1, 2), (10, 90), id=1, stream=3),
        EventRecord(3, 4, id=2),
        launch_kernel("a", (5, 6), (20, 40), id=3),
        StreamWait(7, 8, id=4),
        launch_kernel("b", (10, 11), (93, 99), id=5),
    )
    assert walked(path, 40, 93) == [(40, 90, "runs"), (90, 93, "latency")]


def chain(gaps: list[int]) -> list[Items]:
    """Kernels that were all launched before, in one stream, with a gap before each but the first."""
    out: list[Items] = []
    now = 1000
    for number, gap in enumerate([0, *gaps]):
        out.append(launch_kernel("k", (2 * number, 2 * number + 1), (now + gap, now + gap + 100), id=number + 1))
        now += gap + 100
    return out


def test_latency_is_at_most_what_launches_of_this_recording_usually_take(trace: MakeTrace) -> None:
    """Of a gap of 463 ms the first 20 µs; a recording whose launches take 30 µs has 120 µs; and none has over 1 ms."""
    hole = 463_000_000
    for usual, least in ((1_500, 20_000), (30_000, 120_000), (800_000, 1_000_000)):
        path = trace(*chain([*[usual] * 40, hole]))
        start = 1000 + 40 * (usual + 100) + 100
        expected = [(start, start + least, "latency"), (start + least, start + hole, "hole")]
        assert walked(path, start, start + hole) == expected


def test_a_kind_of_launch_that_is_rare_takes_what_all_others_do(trace: MakeTrace) -> None:
    """A recording of three launches, the median of which took 100 µs."""
    path = trace(*chain([100_000, 2_000_000, 100_000]))
    assert walked(path, 101_200, 2_101_200) == [(101_200, 501_200, "latency"), (501_200, 2_101_200, "hole")]


def test_a_host_that_still_fills_the_buffer_of_a_copy_is_late(trace: MakeTrace) -> None:
    """A copy of pageable memory is queued when its call begins, and the call reads all of it before the copy starts."""
    copy = launch_memcpy((0, 0), (400_000, 410_000), id=99)[1]
    path = trace(*chain([1_500] * 40), (Launch(66_000, 600_000, 99, api="cudaMemcpyAsync_v3020"), copy))
    assert walked(path, 65_100, 400_000) == [
        (65_100, 66_000, "host"),
        (66_000, 86_000, "latency"),
        (86_000, 400_000, "host"),
    ]


def exposing(path: Path, launch: int, wait: int, until: int, since: int = 0) -> str:
    """The call that exposes the wait for a launch (its row)."""
    with open_report(path) as report:
        attribution = attribute(report)
        activity = report.reader.host_activity(attribution.trace)
        why = reasons(attribution.trace, report.reader.dependencies(attribution.trace))
    columns = (np.array([value]) for value in (launch, wait, until, 0, since))
    [row] = exposed_by(attribution.trace, why, activity, *columns).tolist()
    return activity.calls.names[activity.calls.name[row]] if row >= 0 else ""


def test_a_synchronization_after_the_launch_exposes_nothing(trace: MakeTrace) -> None:
    """Of the calls that wait for the GPU the last one before the launch counts, whatever comes after that."""
    before = Launch(16, 41, 8, api="cudaStreamSynchronize_v3020")
    after = Launch(56, 58, 9, api="cudaDeviceSynchronize_v3020")
    kernels = (launch_kernel("a", (10, 15), (20, 40), id=1), launch_kernel("b", (50, 55), (59, 90), id=2))
    for calls, since, expected in (
        *(((before, after), 0, "cudaStreamSynchronize"), ((before, after), 41, "cudaStreamSynchronize")),
        *(((before, after), 42, ""), ((after,), 0, "")),
    ):
        assert exposing(trace(*kernels, *calls), 1, 40, 59, since) == expected


@pytest.mark.parametrize(("lead", "exposed"), [(20_100, True), (20_101, False)])
def test_a_host_that_got_ahead_is_exposed_by_nothing(trace: MakeTrace, lead: int, exposed: bool) -> None:
    """By 20 µs and a tenth of the wait, which is one of 1 µs, at any launch between the call and the wait."""
    path = trace(
        Launch(0, 100, 8, api="cudaStreamSynchronize_v3020"),
        launch_kernel("long", (101, 110), (120, 1_000 + lead), id=1),
        launch_kernel("behind", (900, 1_000), (1_000 + lead, 1_001 + lead), id=2),
        launch_kernel("late", (2_000 + lead, 2_001 + lead), (2_002 + lead, 2_003 + lead), id=3),
    )
    assert (exposing(path, 2, 1_001 + lead, 2_001 + lead) != "") == exposed
