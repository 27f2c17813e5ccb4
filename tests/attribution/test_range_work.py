"""The ops of chosen ranges, cut into calls."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution.range_work import WorkIndex, cut, index_work, range_work, reach_so_far
from nsysprof.core.arrays import Index
from nsysprof.core.intervals import union_length
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reports import attributed
from tests.kit.trace import Range, launch_kernel


def rows_named(index: Path, *names: str) -> tuple[WorkIndex, list[Index]]:
    """The index of all ranges of a report, and the rows of each name."""
    attribution = attributed(index)
    trace = attribution.trace
    texts = [trace.range_names[code].text for code in trace.ranges.name.tolist()]
    rows = [np.flatnonzero([text == name or text.startswith(f"{name}/") for text in texts]) for name in names]
    return index_work(attribution, np.arange(len(texts))), rows


def steps(trace: MakeTrace) -> Path:
    """Three calls in a run, one of them without GPU work, with something before, between and behind them."""
    return trace(
        Range("run", 0, 1000),
        launch_kernel("before", (5, 6), (10, 20), id=1),
        Range("step", 20, 100),
        launch_kernel("a", (30, 31), (40, 50), id=2),
        launch_kernel("b", (50, 51), (60, 80), id=3),
        launch_kernel("between", (110, 111), (120, 130), id=4),
        Range("step", 200, 300),
        Range("step", 400, 500),
        launch_kernel("c", (410, 411), (420, 440), id=5),
        launch_kernel("behind", (600, 601), (610, 650), id=6),
    )


def test_ops_stand_by_window_and_time_with_their_call(trace: MakeTrace) -> None:
    """Every op inside the range, whatever call it is in, -1 for none; a call without GPU work is counted."""
    index, [run, step] = rows_named(steps(trace), "run", "step")
    work = range_work(index, run, step)
    assert work.start.tolist() == [10, 40, 60, 120, 420, 610]
    assert work.call.tolist() == [-1, 0, 0, -1, 2, -1]
    assert (work.calls, work.idle_calls, work.span_ns) == (3, 1, 640)
    assert (work.first_ns.tolist(), work.last_ns.tolist()) == ([10], [650])


def test_the_pieces_of_a_range_add_up_to_its_span(trace: MakeTrace) -> None:
    """A piece lasts from the first op of its call to that of the next; what is before the first belongs to it."""
    index, [run, step] = rows_named(steps(trace), "run", "step")
    found = cut(range_work(index, run, step))
    assert list(zip(found.start.tolist(), found.end.tolist(), strict=True)) == [(10, 420), (420, 650)]
    assert found.call.tolist() == [0, 2]
    assert found.of_op.tolist() == [0, 0, 0, 0, 1, 1]


def test_without_calls_each_instance_is_one(trace: MakeTrace) -> None:
    """Three instances, two of them with ops: pieces are the spans of these."""
    index, [step] = rows_named(steps(trace), "step")
    work = range_work(index, step)
    found = cut(work)
    assert (work.calls, work.idle_calls, work.span_ns) == (3, 1, 60)
    assert list(zip(found.start.tolist(), found.end.tolist(), strict=True)) == [(40, 80), (420, 440)]


def test_a_window_without_calls_has_no_piece(trace: MakeTrace) -> None:
    """A second instance of the range that holds no call counts in the span, but is no sample."""
    path = trace(
        Range("run", 0, 100),
        Range("step", 5, 50),
        launch_kernel("a", (10, 11), (20, 30), id=1),
        Range("run", 200, 300),
        launch_kernel("b", (210, 211), (220, 250), id=2),
    )
    index, [run, step] = rows_named(path, "run", "step")
    work = range_work(index, run, step)
    assert work.span_ns == 40
    assert cut(work).of_op.tolist() == [0, -1]


def test_an_op_that_ends_before_it_starts_takes_no_time(trace: MakeTrace) -> None:
    """Clock trouble on the GPU makes no negative time here; the report warns of it elsewhere."""
    path = trace(Range("run", 0, 100), launch_kernel("a", (10, 11), (30, 20), id=1))
    index, [run] = rows_named(path, "run")
    assert range_work(index, run).span_ns == 0


@pytest.mark.parametrize("seed", range(30))
def test_ops_and_reach_agree_with_the_plain_way(seed: int, trace: MakeTrace) -> None:
    """On random reports: a range has the ops that the attribution counts, and the reach is a running maximum."""
    attribution = attributed(trace(*random_report(seed)))
    every = np.arange(len(attribution.trace.ranges))
    index = index_work(attribution, every)
    for row in every.tolist():
        work = range_work(index, np.array([row]))
        ops, inside = attribution.trace.ops, attribution.inclusive
        assert len(np.unique(ops.launch[work.op])) == inside.launches[row]
        assert int((ops.end - ops.start)[work.op].sum()) == inside.sum_ns[row]
        by_gpu = [
            union_length(work.start[mine], work.end[mine])
            for gpu in set(attribution.trace.gpu_numbers)
            for mine in [attribution.trace.op_gpu[work.op] == gpu]
        ]
        assert sum(by_gpu) == inside.busy_ns[row]
        highest = [max(work.end[: at + 1].tolist()) for at in range(len(work.end))]
        assert reach_so_far(work).tolist() == highest
