"""Windows replayed from dependencies and constants end where they do, if these are all there is to know."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution.attribute import attribute
from nsysprof.trace.report import open_report
from nsysprof.trace.trace import Trace
from nsysprof.waits import identity
from nsysprof.waits.identity import Replay, replays
from nsysprof.waits.walk import Reasons, reasons
from nsysprof.waits.windows import whole_windows
from nsysprof.why.text import why_text
from tests.conftest import MakeTrace
from tests.kit.random_waits import random_waits
from tests.kit.reports import TRACES
from tests.kit.trace import EventRecord, Range, launch_kernel
from tests.why.test_why import why_of

SHIPPED = sorted(path for at in ("traces", "analysis") for path in (TRACES.parent / at).rglob("*.sqlite"))
NEVER = np.iinfo(np.int64).min


def read(path: Path) -> tuple[Trace, Reasons]:
    """A trace, and what its ops waited for."""
    with open_report(path) as report:
        trace = attribute(report).trace
        return trace, reasons(trace, report.reader.dependencies(trace))


def replay(path: Path) -> list[Replay]:
    """The whole trace, replayed on each GPU."""
    trace, why = read(path)
    return replays(trace, why, whole_windows(trace))


def test_what_follows_its_edges_is_explained(trace: MakeTrace) -> None:
    """Each kernel starts 3 ns behind the one before, or 5 ns behind its launch."""
    path = trace(
        launch_kernel("a", (0, 10), (15, 40), id=1),
        launch_kernel("b", (11, 20), (43, 60), id=2),
        launch_kernel("c", (70, 80), (85, 90), id=3),
        launch_kernel("d", (81, 83), (93, 99), id=4),
    )
    [found] = replay(path)
    assert (found.behind_op_ns, found.behind_launch_ns, found.residual.tolist()) == (3, 5, [0.0])


def test_what_does_not_is_off_by_the_difference(trace: MakeTrace) -> None:
    """The last of three kernels starts 20 ns behind the second, and usually it is 2."""
    path = trace(
        launch_kernel("a", (-10, 0), (0, 10), id=1),
        launch_kernel("b", (1, 2), (12, 20), id=2),
        launch_kernel("c", (3, 4), (22, 50), id=3),
        launch_kernel("d", (5, 6), (70, 100), id=4),
    )
    [found] = replay(path)
    assert found.residual.tolist() == [0.18]


@pytest.mark.parametrize("seed", range(30))
def test_starts_equal_a_loop(trace: MakeTrace, seed: int) -> None:
    """Of random reports, op after op in the order of their edges."""
    found, why = read(trace(*random_waits(seed)))
    ops, constants = found.ops, (7, 9, 11)
    rows = np.flatnonzero(found.op_gpu == 0)
    rows = rows[np.argsort(ops.start[rows], kind="stable")][2:]
    place = np.full(len(ops) + 1, -1, np.int32)
    place[rows] = np.arange(len(rows))
    starts: dict[int, int] = {}

    def start(row: int) -> int:
        before = int(why.op[row])
        inside = before >= 0 and place[before] >= 0
        came, latency = [], 9 if why.marked[row] else 7
        if why.launched[row] > NEVER:
            came.append(why.launched[row] + 11)
        if inside:
            came.append(start(before) + ops.end[before] - ops.start[before] + latency)
        elif before >= 0:
            came.append(why.ready[row] + latency)
        return starts.setdefault(row, int(max(came, default=ops.start[row])))

    if len(rows):
        expected = [start(row) for row in rows.tolist()]
        assert identity._starts(found, why, constants, rows, place).tolist() == expected


def test_work_is_bounded(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of windows beyond a number of ops nothing is replayed."""
    path = trace(*(launch_kernel("a", (at, at + 1), (at + 5, at + 9), id=at) for at in range(10, 110, 10)))
    for most, count in ((10, 1), (9, 0)):
        monkeypatch.setattr(identity, "MAX_ALL", most)
        assert len(replay(path)) == count


def test_over_an_event_there_is_another_constant(trace: MakeTrace) -> None:
    """A kernel behind an event that its stream recorded starts 9 ns after the one before it, others 3."""
    path = trace(
        launch_kernel("a", (0, 10), (15, 40), id=1),
        launch_kernel("b", (11, 12), (43, 60), id=2),
        EventRecord(7, 13, id=3),
        launch_kernel("c", (15, 16), (69, 80), id=4),
        launch_kernel("d", (17, 18), (83, 90), id=5),
    )
    [found] = replay(path)
    assert (found.behind_op_ns, found.behind_event_ns, found.residual.tolist()) == (3, 9, [0.0])


def test_a_wait_that_no_edge_explains_is_in_no_constant(trace: MakeTrace) -> None:
    """Behind ten kernels one after the other the last starts 1 µs later than usual: that stays unexplained."""
    starts = [*range(0, 108, 12), 1_100]
    path = trace(
        *(launch_kernel("k", (at - 99, at - 98), (at, at + 10), id=at + 1) for at in starts[:-1]),
        launch_kernel("k", (4, 5), (1_100, 1_110), id=2),
    )
    [found] = replay(path)
    assert found.behind_op_ns == 2
    assert found.residual.tolist() == [(1_100 - 108) / 1_110]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_reports_are_explained(path: Path) -> None:
    """Every path to within 1.1 % of its windows, and no window is further off than 3 %."""
    residuals = why_of(path, None).residuals
    assert len(residuals)
    assert (residuals["residual"] < 0.011).all()
    assert (residuals["max_residual"] < 0.03).all()


def test_no_ceilings_where_dependencies_do_not_explain_a_path(trace: MakeTrace) -> None:
    """A sentence says so; another path keeps its ceilings."""
    kernels = [
        launch_kernel("k", (10 * number, 10 * number + 1), (1_000 + at, 1_000 + at + 50), id=number + 1)
        for number, at in enumerate((0, 52, 104, 1_000, 2_000))
    ]
    path = trace(
        Range("step", 0, 90),
        *kernels,
        Range("fine", 10_000, 11_000),
        launch_kernel("k", (10_010, 10_100), (10_200, 10_300), id=100),
    )
    answer = why_of(path, "*")
    waits = answer.rows[~answer.rows["cause"].isin(["compute", "unknown"])]
    assert waits.loc[waits["path"] == "step", "ceiling_ns"].isna().all()
    assert waits.loc[waits["path"] == "fine", "ceiling_ns"].notna().all()
    assert why_text(answer, full=True).count("why.csv has no ceilings") == 1
