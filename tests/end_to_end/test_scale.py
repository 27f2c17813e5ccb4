"""Attribution stays near-linear in events whatever their shape: made-up reports that punish anything quadratic.

Times are those of the processor in `attribute` alone, the best of three; limits are ten times what a slow one needs.
"""

import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.trace.report import open_report, read_tables
from nsysprof.trace.trace import Trace
from tests.conftest import MakeTrace
from tests.kit.trace import Gpu, global_pid, global_tid

CALL, KERNEL, RANGE, WINDOW = "calls", "kernels", "ranges", "windows"
Event = tuple[str, int, int, int, int]  # what, start, end, thread; the stream of a kernel, whose id is the next call's
END = 10**9  # of the session
SQL = {
    CALL: "CUPTI_ACTIVITY_KIND_RUNTIME(start, end, globalTid, correlationId, eventClass, nameId, returnValue)"
    " VALUES (?, ?, ?, ?, 0, 0, 0)",
    KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL(start, end, streamId, correlationId, globalPid, deviceId, contextId,"
    " demangledName, shortName, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory,"
    " dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId)"
    f" VALUES (?, ?, ?, ?, {global_pid(1)}, 0, 1, 0, 0, 32, 1, 1, 1, 128, 1, 1, 0, 0, 0, 0, 0)",
    RANGE: "NVTX_EVENTS(start, end, globalTid, eventType, text, domainId) VALUES (?, ?, ?, 59, ?, 0)",
    WINDOW: "NVTX_EVENTS(start, end, globalTid, eventType, text, domainId) VALUES (?, ?, ?, 60, ?, 0)",
}
Make = Callable[[int], "Rows"]


class Rows:
    """The rows of a report to be made: calls with one kernel each, ranges, windows."""

    def __init__(self) -> None:
        self.of: dict[str, list[tuple[object, ...]]] = {name: [] for name in SQL}

    def launch(self, start: int, end: int, op: tuple[int, int], *, thread: int = 1, stream: int = 7) -> None:
        id = len(self.of[CALL]) + 1
        self.of[CALL].append((start, end, global_tid(1, thread), id))
        self.of[KERNEL].append((*op, stream, id))

    def range(self, start: int, end: int, *, thread: int = 1, kind: str = RANGE, name: str = "step") -> None:
        self.of[kind].append((start, end, global_tid(1, thread), name))


@pytest.fixture
def big(trace: MakeTrace) -> Callable[[Rows], Trace]:
    """Writes rows into a report, many at a time, and reads its tables."""
    return lambda rows: read(trace, rows)


def read(trace: MakeTrace, rows: Rows) -> Trace:
    tables = [statement.split("(")[0] for statement in SQL.values()]
    path = trace(Gpu(0), strings=["gemm"], empty_tables=tables, duration=END)
    fill(path, rows.of.items())
    with open_report(path) as report:
        return read_tables(report)


def fill(path: Path, rows: Iterable[tuple[str, list[tuple[object, ...]]]]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        for what, values in rows:
            connection.executemany(f"INSERT INTO {SQL[what]}", values)
        connection.commit()


def timed(trace: Trace, threads: str = "follow") -> tuple[float, Attribution]:
    """The best of three times of the processor, in seconds, and the result."""
    best = 1e9
    for _ in range(3):
        start = time.process_time()  # which stands still while others are at work
        found = attribute(trace, threads)
        best = min(best, time.process_time() - start)
    return best, found


def forgotten_pops(count: int) -> Rows:
    """1,000 ranges of as many names that are never popped, one after another, and a closed range around each launch."""
    rows = Rows()
    for i in range(1_000):
        rows.range(i * 10 * count // 1_000, END, name=f"step {i}")
    for i in range(count):
        rows.range(10 * i + 1, 10 * i + 8)
        rows.launch(10 * i + 2, 10 * i + 5, (10 * i + 20, 10 * i + 27))
    return rows


def closed_stack(count: int) -> Rows:
    """1,009 ranges inside each other, all popped, and then launches in ranges of their own."""
    rows = Rows()
    deep = 1_009
    rows.range(-1, 10**8)
    for i in range(deep):
        rows.range(i, 3 * deep - i)
    for i in range(count):
        at = 4 * deep + 10 * i
        rows.range(at, at + 6)
        rows.launch(at + 1, at + 5, (at + 20, at + 27))
    return rows


def closed_tower(count: int) -> Rows:
    """A stack that is a quarter as deep as there are kernels, closed before the first of them."""
    rows = Rows()
    for i in range(count // 4):
        rows.range(i, count - i)
    for i in range(count):
        at = count + 10 * i
        rows.range(at + 1, at + 6)
        rows.launch(at + 2, at + 5, (at + 20, at + 27))
    return rows


def persistent_kernel(count: int) -> Rows:
    """One kernel that runs all the time under many short ones of another stream."""
    rows = Rows()
    rows.range(0, 10 * count + 100)
    rows.launch(1, 2, (5, 10 * count + 50), stream=13)
    for i in range(count):
        rows.range(10 * i + 10, 10 * i + 19)
        rows.launch(10 * i + 11, 10 * i + 12, (10 * i + 20, 10 * i + 27))
    return rows


def hundred_streams(count: int) -> Rows:
    """100 streams that are all busy all the time."""
    rows = Rows()
    for i in range(count):
        if i % 50 == 0:
            rows.range(10 * i, 10 * i + 499)
        rows.launch(10 * i + 1, 10 * i + 2, (10 * i + 100, 10 * i + 1_099), stream=7 + i % 100)
    return rows


def many_threads(count: int) -> Rows:
    """A thread for every 30 launches, each with ranges of its own, as thread pools have them."""
    rows = Rows()
    for i in range(count):
        thread = 1 + i // 30
        rows.range(10 * i + 1, 10 * i + 8, thread=thread)
        rows.launch(10 * i + 2, 10 * i + 5, (10 * i + 20, 10 * i + 27), thread=thread)
    return rows


def windows_over_threads(count: int) -> Rows:
    """Eight threads that launch at the same time, and many short windows that their calls straddle."""
    rows = Rows()
    for i in range(count):
        rows.launch(10 * i, 10 * i + 35 - 30 * (i % 2), (10 * i + 20, 10 * i + 27), thread=1 + i % 8)
    for i in range(count // 4):
        rows.range(40 * i - 5, 40 * i + 48, kind=WINDOW, name="window")
    return rows


def helpers_beside_workers(count: int) -> Rows:
    """Workers with ranges of their own at all times, and a helper thread whose launches all are ambiguous."""
    rows = Rows()
    for thread in range(1, 101):
        for i in range(count // 200):
            rows.range(2_000 * i + thread, 2_000 * i + 1_900, thread=thread)
    for i in range(count):
        rows.launch(10 * i + 1, 10 * i + 2, (10 * i + 20, 10 * i + 27), thread=999)
    return rows


def helpers_beside_many_threads(count: int) -> Rows:
    """One helper that follows now this thread and now that of a hundred, each with ranges at times of its own."""
    rows = Rows()
    for i in range(count):
        if i % 10 == 0:
            rows.range(10 * i, 10 * i + 99, thread=1 + i // 10 % 100)
        rows.launch(10 * i + 1, 10 * i + 2, (10 * i + 20, 10 * i + 27), thread=999)
    return rows


SHAPES = {
    forgotten_pops: 30_000,
    closed_stack: 30_000,
    closed_tower: 10_000,
    helpers_beside_many_threads: 20_000,
    persistent_kernel: 20_000,
    hundred_streams: 10_000,
    many_threads: 30_000,
    windows_over_threads: 20_000,
    helpers_beside_workers: 20_000,
}


@pytest.mark.parametrize(("make", "count"), SHAPES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_attribution_takes_well_under_a_second_and_is_linear(
    big: Callable[[Rows], Trace], make: Make, count: int
) -> None:
    """Under a second for tens of thousands of kernels, and not much more than twice that for twice as many."""
    first, found = timed(big(make(count)))
    assert sum(row.ops for row in found.ledger) == len(found.trace.ops) >= count
    assert first < 1, f"{first:.2f} s"
    second, _ = timed(big(make(2 * count)))
    assert second < 3 * max(first, 0.02), f"{first:.3f} s, and {second:.3f} s for twice as many"


def test_forgotten_pops_reach_a_depth_of_1009(big: Callable[[Rows], Trace]) -> None:
    """1,009 open ranges inside each other: the innermost owns, and each has inside what was launched after it."""
    rows = Rows()
    for i in range(1_009):
        rows.range(10 * i, END, name=f"step {i}")
        rows.launch(10 * i + 1, 10 * i + 2, (10**5 + i, 10**5 + i + 1))
    found = attribute(big(rows))
    assert found.owner.tolist() == list(range(1_009))
    assert found.parent.tolist() == list(range(-1, 1_008))
    assert found.inclusive.launches.tolist() == list(range(1_009, 0, -1))
    assert found.inclusive.busy_ns.tolist() == list(range(1_009, 0, -1))
    assert found.trace.ranges.unclosed.all()


def test_a_closed_stack_owns_nothing_of_what_comes_after(big: Callable[[Rows], Trace]) -> None:
    """After the deep stack each launch is its own range's, whose parent is the one range that is still open."""
    found = attribute(big(closed_stack(500)))
    assert found.parent[1_010:].tolist() == [0] * 500
    assert found.inclusive.launches.tolist() == [500, *[0] * 1_009, *[1] * 500]


def test_busy_under_a_persistent_kernel_is_its_length(big: Callable[[Rows], Trace]) -> None:
    """All that runs under the long kernel adds nothing to the union, and each inner range has its own 7 ns."""
    found = attribute(big(persistent_kernel(500)))
    assert found.inclusive.busy_ns.tolist() == [5_045, *[7] * 500]
    assert int(found.inclusive.sum_ns[0]) == 5_045 + 500 * 7


def test_busy_of_a_hundred_streams_is_a_union(big: Callable[[Rows], Trace]) -> None:
    """Each range's 50 kernels, staggered by 10 ns and 999 ns long, are busy for 1,489 ns together."""
    found = attribute(big(hundred_streams(1_000)))
    assert found.inclusive.busy_ns.tolist() == [1_489] * 20
    assert found.inclusive.sum_ns.tolist() == [49_950] * 20
