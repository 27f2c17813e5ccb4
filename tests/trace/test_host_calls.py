"""Keys of GPU work, process and correlation id; what a trace keeps of host calls and launches is what its file has."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsysprof.kernels.launches import launches, launches_of
from nsysprof.trace.details import HostActivity
from nsysprof.trace.nsys.host_calls import launch_keys
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit.reports import TRACES
from tests.kit.trace import launch_kernel

REPORTS = [path for path in sorted(TRACES.rglob("*.sqlite")) if path.is_file()]


def test_calls_of_a_process_without_gpu_work_ask_for_nothing_where_ids_lie_far_apart() -> None:
    """Its number is below that of one with such work, whose ids are searched for."""
    keys = launch_keys(np.array([1, 1]), np.array([1, 1 << 50]))
    assert keys.slots(np.array([0, 1]), np.array([1, 1])).tolist() == [-1, 0]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("ids", [(1, 2), (2, 1)])
def test_calls_of_a_thread_at_one_time_are_in_the_order_of_their_work(
    trace: MakeTrace, ids: tuple[int, int], order: int
) -> None:
    """Whatever their ids are, and whichever row of the file comes first."""
    both = [launch_kernel("k", (5, 5), span, id=id) for span, id in zip(((10, 20), (20, 30)), ids, strict=True)]
    with open_report(trace(*both[::order])) as report:
        read = read_tables(report)
    assert [read.ops.start[read.ops.launch == row].tolist() for row in range(2)] == [[10], [20]]


@pytest.mark.parametrize("order", [1, -1])
def test_gpu_operations_at_one_time_are_in_the_order_of_their_names(trace: MakeTrace, order: int) -> None:
    """So is the first of two names with equal totals."""
    both = [launch_kernel(name, (5, 5), (10, 20), id=id, stream=9 - id) for id, name in enumerate("ab", 1)]
    with open_report(trace(*both[::order])) as report:
        read = read_tables(report)
    rows = read.in_order(np.arange(2), read.ops.start)
    assert [read.op_names[read.ops.name[row]] for row in rows.tolist()] == ["a", "b"]
    assert read.op_names[read.largest_name(np.array([10, 10]))] == "a"


def rows(activity: HostActivity) -> list[tuple[int, ...]]:
    """Thread, times, name and kind of each call."""
    calls = activity.calls
    names = [calls.names[code] for code in calls.name.tolist()]
    columns = (calls.threads[calls.thread], calls.start, calls.end, activity.kind)
    return list(zip(*(column.tolist() for column in columns), names, strict=True))


@pytest.mark.parametrize("path", REPORTS, ids=[path.stem for path in REPORTS])
def test_calls_of_a_trace_are_those_of_its_file(path: Path) -> None:
    """Host activity from launches and other calls equals what the table of calls says, launches recorded twice too."""
    with open_report(path) as report:
        trace = read_tables(report)
        known = rows(report.reader.host_activity(trace))
        assert known == rows(report.reader.host_activity(replace(trace, other_calls=None)))
    assert known


@pytest.mark.parametrize("path", REPORTS, ids=[path.stem for path in REPORTS])
def test_short_launches_far_away_are_left_out(path: Path) -> None:
    """All other calls are there, and all that lie in or reach into the intervals."""
    with open_report(path) as report:
        trace = read_tables(report)
        every = report.reader.host_activity(trace)
        low, high = np.quantile(trace.launches.start, [0.4, 0.5]).astype(np.int64).tolist()
        near = report.reader.host_activity(trace, (np.array([low]), np.array([high])))
    some, known = set(rows(near)), rows(every)
    missing = [row for row in known if row not in some]
    assert some <= set(known)
    assert sorted(near.left_out.tolist()) == sorted(end - start for _, start, end, _, _ in missing)
    assert all("Launch" in str(name) and end - start < 50_000 for _, start, end, _, name in missing)
    assert not any(start <= high and low <= end for _, start, end, _, _ in missing)
    if len(known) == len(trace.launches) + len(trace.other_calls or ()):
        assert missing


@pytest.mark.parametrize("path", REPORTS, ids=[path.stem for path in REPORTS])
def test_launch_parameters_are_those_of_the_file(path: Path) -> None:
    """What is coded while kernels are read equals the columns of the table, for each GPU op."""
    with open_report(path) as report:
        trace = read_tables(report)
        known = launches_of(trace)
        read = launches(report.reader.op_details(trace), report.about.cuda_gpus)
    assert trace.geometry is not None
    assert trace.geometry.whole
    assert known is not None
    for name in ("of", "grid", "block", "registers", "shared", "dynamic_shared", "local_memory"):
        assert np.array_equal(getattr(known, name), getattr(read, name)), name
