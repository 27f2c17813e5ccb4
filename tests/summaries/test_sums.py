"""What summaries add up, against loops over rows and nanoseconds."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysprof.attribution.backward import Backward
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.summaries import backward, calls, collectives, memory, unified
from nsysprof.trace.details import Collectives
from tests.conftest import MakeTrace
from tests.kit.reports import attributed, broken_down
from tests.kit.trace import Items, Launch, OsCall, launch_kernel

US = 1_000
SEEDS = pytest.mark.parametrize("seed", range(8))


@SEEDS
def test_a_path_has_the_sum_of_all_inside_it(seed: int) -> None:
    """Parents come first; what has no path is in none."""
    rng = np.random.default_rng(seed)
    parent = np.array([-1, *(rng.integers(-1, at) for at in range(1, 9))], np.int32)
    path, values = rng.integers(-1, 9, 30), rng.integers(1, 50, 30)
    above = {at: {at} | (set() if parent[at] < 0 else {int(parent[at])}) for at in range(9)}
    for at in range(9):
        above[at] |= {up for each in [*above[at]] for up in above.get(each, set())}
    asked: Any = SimpleNamespace(parent=parent, merged=[""] * 9)
    expected = [
        sum(v for p, v in zip(path.tolist(), values.tolist(), strict=True) if p >= 0 and at in above[p])
        for at in range(9)
    ]
    assert backward._inclusive(path, values, asked).tolist() == expected
    some = np.unique(path)
    assert memory._with_ancestors(some, parent).tolist() == sorted(
        set().union(*(above.get(p, set()) for p in some.tolist()))
    )


def test_an_operator_has_its_time_without_those_inside_it() -> None:
    """On its own thread."""
    thread, start, end = np.array([[1, 0, 100], [1, 10, 40], [1, 20, 30], [1, 50, 60], [2, 0, 70], [2, 5, 6]]).T
    found = Backward(thread, start, end, start, np.zeros(6, np.int32), 0)
    assert backward._own_time(found).tolist() == [60, 20, 10, 10, 69, 1]
    ratio = backward._ratio(np.array([3, 3, 0]), np.array([2, 0, 1]))
    assert (ratio[[0, 2]].tolist(), math.isnan(ratio[1])) == ([1.5, 0.0], True)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """Of names in any spelling; of 0 or 1 ranks none. The fastest of a size counts, and none without time."""
    kinds = ["AllReduce", "all_gather", "_reduce_scatter_base", "all_to_allv", "broadcast"]
    kind, ranks = np.repeat(np.arange(5, dtype=np.int32), 4), np.tile([0, 1, 2, 8], 5)
    factor = [2, 1, 1, 1]
    expected = [each for way in factor for each in (0, 0, way / 2, way * 7 / 8)] + [0, 0, 1, 1]
    assert collectives._factors(kinds, kind, ranks).tolist() == expected
    op = np.arange(5)
    known = Collectives(
        op, np.zeros(5, np.int32), ["allreduce"], np.zeros(5, np.int32), ["a"], [2], np.array([8, 8, 64, 3, -1])
    )
    rows = collectives._rows(known, np.array([2, 1, 0, 6, 9]), Texts(op * 0, [""]))
    assert rows["message_bytes"].tolist() == [-1, 3, 8, 64]
    assert rows["bus_bytes_per_s"].tolist() == pytest.approx([math.nan, 0.5e9, 8e9, math.nan], nan_ok=True)
    assert [rows[name].tolist() for name in ("count", "size_bytes", "sum_ns")] == [
        [1, 1, 2, 1],
        [0, 3, 16, 64],
        [9, 6, 3, 0],
    ]


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        ([("a", 50, 30, 0), ("b", 950, 100, 0)], (60, False)),  # 5 % of the time is worth naming
        ([("a", 49, 40, 0), ("b", 951, 317, 0)], (33, False)),
        ([("a", 100, 0, 0), ("b", 900, 90, 0)], (10, False)),
        ([("a", 100, 80, 51)], (80, True)),
        ([("a", 100, 80, 50)], (80, False)),
        ([("a", 100, 0, 0)], None),
    ],
)
def test_the_most_covered_kernel_is_one_that_takes_time(rows: list[Any], numbers: tuple[int, bool] | None) -> None:
    """It waits for pages where more than half of its time is beside migrations that nobody asked for."""
    names = ("sum_ns", "covered_ns", "fault_covered_ns")
    columns = {name: np.array([row[at] for row in rows]) for at, name in enumerate(names, 1)}
    said = unified._most_covered(
        ColumnTable({"kernel": Texts(np.arange(len(rows)), [row[0] for row in rows]), **columns})
    )
    assert bool(said) == (numbers is not None)
    if numbers is not None:
        assert (int(said.split()[0]), "fault-bound" in said) == numbers


@pytest.mark.parametrize(
    ("live", "growth"),
    [
        ([0, 0, 1, 2, 3, 4], 1),  # the first is warm-up
        ([5, 0, 1, 2, 3, 4], 1),
        ([0, 1, 2, 3, 4], math.nan),  # three steps
        ([0, 0, 1, 2, 1, 4], math.nan),  # it shrinks
        ([0, 0, 1, 1, 2, 2], 0),  # 0.5 a step, rounded to even
        ([0, 0, 4, 4, 8, 8], 2),  # in half of the steps
        ([0, 0, 8, 8, 8, 8], math.nan),
        ([9, 9, 0, 3, 6, 9, 12, 15], 3),  # a quarter is warm-up
    ],
)
def test_growth_is_steady(live: list[int], growth: float) -> None:
    """From one to the next, behind the first or a quarter."""
    assert memory._growth(np.array(live)) == pytest.approx(growth, nan_ok=True)


def test_threads_are_named_where_no_ranges_are(trace: MakeTrace) -> None:
    """By number without a name; time in calls of several threads is that of each, nested calls counting once."""
    found = broken_down(
        trace(
            Launch(0, 100, None, api="cudaMalloc"),
            Launch(20, 50, None, api="cuMemAlloc_v2"),
            Launch(90, 110, None, thread=5, api="cudaMalloc"),
            OsCall("read", 0, 7, thread=5),
        )
    ).summaries["calls"]
    assert found.columns[-1].name == "mostly_on"
    assert [(row["call"], row["mostly_on"]) for row in found.rows.records()] == [
        ("cudaMalloc", "thread 1"),
        ("cuMemAlloc_v2", "thread 1"),
        ("read", "thread 5"),
    ]
    assert "120 ns" in found.finding.split(":")[1]
    assert "2 threads" in found.finding
    alone = broken_down(trace(Launch(0, 100, None, api="cudaMalloc"))).summaries["calls"]
    assert alone.columns[-1].name == "extremes"


@pytest.mark.parametrize(("first", "count"), [(50 * US, 1), (50 * US - 1, 0), (59 * US, 0)])
def test_a_first_launch_that_loads_takes_ten_times_the_median(trace: MakeTrace, first: int, count: int) -> None:
    """And 50 µs; in each process, whatever other kernels take."""
    usual = 6 * US if first == 59 * US else 5 * US
    items: list[Items] = []
    for process in (1, 2):
        for at, length in enumerate((first, usual, usual, usual)):
            begin = 1_000 * US * at
            items.append(
                launch_kernel(
                    "k", (begin, begin + length), (begin + length, begin + length + 9), id=at + 1, process=process
                )
            )
        items.append(launch_kernel("slow", (9_000 * US, 9_055 * US), (9_056 * US, 9_057 * US), id=9, process=process))
    found = calls._first_launches(attributed(trace(*items)).trace)
    assert found == (2 * count, 2 * count * first)
