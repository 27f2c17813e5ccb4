"""The walk from the op that ends a gap to the gap's start, and the call that let the GPU run dry, piece by piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nsysprof.attribution.attribute import attribute
from nsysprof.trace.report import open_report
from nsysprof.waits.host import exposed_by
from nsysprof.waits.walk import HOST, LATENCY, RUNS, UNKNOWN, reasons, walk
from tests.conftest import MakeTrace
from tests.kit.trace import Kernel, Launch, launch_kernel, launch_memcpy

NAMES = {RUNS: "runs", HOST: "host", LATENCY: "latency", UNKNOWN: "unknown"}


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
    path = trace(
        launch_kernel("a", (10, 15), (20, 40), id=1),
        launch_kernel("b", (45, 50), (53, 90), id=2),
    )
    assert walked(path, 40, 53) == [(40, 50, "host"), (50, 53, "latency")]


def test_an_op_without_anything_before_it_is_unknown(trace: MakeTrace) -> None:
    """Nobody launched it, and nothing ran in its stream."""
    path = trace(Kernel("a", 0, 10, 0, stream=7), Kernel("b", 30, 40, 0, stream=8))
    assert walked(path, 10, 30) == [(10, 30, "unknown")]


def test_a_synchronization_after_the_launch_exposes_nothing(trace: MakeTrace) -> None:
    """Of the calls that wait for the GPU the last one before the launch counts, whatever comes after that."""
    before = Launch(16, 41, 8, api="cudaStreamSynchronize_v3020")
    after = Launch(56, 58, 9, api="cudaDeviceSynchronize_v3020")
    kernels = (
        launch_kernel("a", (10, 15), (20, 40), id=1),
        launch_kernel("b", (50, 55), (59, 90), id=2),
    )
    for calls, expected in (((before, after), "cudaStreamSynchronize"), ((after,), "")):
        with open_report(trace(*kernels, *calls)) as report:
            attribution = attribute(report)
            activity = report.reader.host_activity()
            why = reasons(attribution.trace, report.reader.dependencies(attribution.trace))
        launch, wait, until, thread, since = (np.array([value]) for value in (1, 40, 59, 0, 0))
        call = exposed_by(attribution.trace, why, activity, launch, wait, until, thread, since)
        names = [activity.calls.names[activity.calls.name[row]] if row >= 0 else "" for row in call.tolist()]
        assert names == [expected]
