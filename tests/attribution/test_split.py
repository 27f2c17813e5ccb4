"""The parts of a report: processes, GPUs, threads, streams."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution import split
from nsysprof.attribution.split import BY, parts, thread_labels
from nsysprof.trace.trace import Trace
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.trace import Kernel, Range, ThreadName, launch_kernel


def several(trace: MakeTrace) -> Path:
    """Two processes with two threads and two streams each; one op without a launch, one that follows."""
    return trace(
        ThreadName(1, "main"),
        *[Range("step", 0, 50, process=pid) for pid in (1, 2)],
        Range("load", 0, 50, process=2, thread=8),
        launch_kernel("k", (1, 2), (10, 20), id=1, stream=7),
        launch_kernel("k", (1, 2), (20, 40), id=2, thread=5, stream=9),
        launch_kernel("k", (60, 61), (70, 75), id=3, thread=5, stream=9),
        launch_kernel("k", (1, 2), (10, 14), id=1, process=2, device=1),
        launch_kernel("k", (3, 4), (20, 22), id=2, process=2, thread=8, device=1, stream=8),
        Kernel("k", 90, 91, None),
    )


def sums(path: Path, by: str) -> dict[object, tuple[int, int]]:
    """GPU ops and their time, by part."""
    attribution = attributed(path)
    out = {}
    for part in parts(attribution, np.ones(len(attribution.trace.ranges), bool), by):
        ops = part.attribution.trace.ops
        chosen = np.ones(len(ops), bool) if part.ops is None else part.ops
        out[part.label] = int(chosen.sum()), int((ops.end - ops.start)[chosen].sum())
    return out


def test_every_op_is_in_one_part(trace: MakeTrace) -> None:
    """What follows belongs to the thread whose range owns it; what nobody launched has a part of its own."""
    path = several(trace)
    assert sums(path, "thread") == {
        "main 1": (2, 30),
        "thread 5 of pid 1": (1, 5),
        "thread 1 of pid 2": (1, 4),
        "thread 8 of pid 2": (1, 2),
        "no launch row": (1, 1),
    }
    assert sums(path, "stream") == {
        "GPU 0 · stream 7": (2, 11),
        "GPU 0 · stream 9": (2, 25),
        "GPU 1 · stream 7": (1, 4),
        "GPU 1 · stream 8": (1, 2),
    }
    for by in BY:
        assert np.sum(list(sums(path, by).values()), axis=0).tolist() == [6, 42]


@pytest.mark.parametrize("by", ["thread", "stream"])
def test_many_parts_are_few_and_one_more(by: str, trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts with the most work stand alone, the others add up to one."""
    monkeypatch.setattr(split, "MAX_PARTS", 2)
    launched = [launch_kernel("k", (1, 2), (10, 10 + each), id=each, thread=each, stream=each) for each in range(1, 6)]
    found = sums(trace(*launched), by)
    named = ["thread 4", "thread 5"] if by == "thread" else ["GPU 0 · stream 4", "GPU 0 · stream 5"]
    assert found == {named[0]: (1, 4), named[1]: (1, 5), f"3 more {by}s": (3, 6)}


def test_threads_are_told_apart_where_processes_have_the_same_numbers(trace: MakeTrace) -> None:
    """A thread that is not the first of its process names that, where there are several."""
    whole: Trace = attributed(several(trace)).trace
    assert thread_labels(whole)[:2] == ["main 1", "thread 5 of pid 1"]
