"""What lies inside each merged path, by kernel family."""

from pathlib import Path
from typing import Any

import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.tools.nsys import Nsys, stats
from tests.analyze.conftest import broken_once
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reports import TRACES, attributed, broken_down
from tests.kit.trace import (
    GraphNode,
    Item,
    Kernel,
    Launch,
    Range,
    launch_graph,
    launch_kernel,
    launch_memcpy,
    launch_memset,
    write,
)

END = 10_000


def families(found: Breakdown, merged_path: str) -> dict[str, tuple[int, int, int]]:
    """(ops, kernels, ns) of each family inside a merged path."""
    [row] = found.merged.index[found.merged["merged_path"] == merged_path]
    mine = found.families[found.families["row"] == row]
    values = zip(*(mine[column].tolist() for column in ("ops", "kernels", "sum_ns")), strict=True)
    return dict(zip(mine["family"], values, strict=True))


def mismatches(found: Breakdown) -> list[tuple[str, int, int]]:
    """Merged paths whose families do not add up to their sum: (path, sum, families)."""
    total = found.families.groupby("row")["sum_ns"].sum().to_dict()
    return [
        (str(text), int(expected), int(total.get(at, 0)))
        for at, (text, expected) in enumerate(zip(found.merged["merged_path"], found.merged["sum_ns"], strict=True))
        if total.get(at, 0) != expected
    ]


def test_memory_ops_and_graphs_are_families_of_their_own(trace: MakeTrace) -> None:
    """A memcpy, a memset and a graph are not kernels, whatever a rule says of their names."""
    path = trace(
        Range("step", 0, 90),
        launch_kernel("sm90_xmma_gemm_f16f16_f16f32", (1, 2), (100, 110), id=1),
        launch_memcpy((3, 4), (110, 113), id=2),
        launch_memset((5, 6), (113, 114), id=3),
        launch_graph((7, 8), (114, 120), id=4),
        duration=END,
    )
    assert families(broken_down(path), "step") == {
        "gemm": (1, 1, 10),
        "memcpy": (1, 0, 3),
        "memset": (1, 0, 1),
        "graph": (1, 0, 6),
    }


def test_families_of_a_parent_are_those_of_all_inside(trace: MakeTrace) -> None:
    """What an inner range owns counts in every range around it, and in none beside it."""
    path = trace(
        Range("outer", 0, 90),
        Range("inner", 10, 20),
        Range("beside", 30, 40),
        launch_kernel("gemm", (11, 12), (100, 110), id=1),
        launch_kernel("gemm", (31, 32), (110, 115), id=2),
        launch_kernel("gemm", (50, 51), (115, 117), id=3),
        duration=END,
    )
    found = broken_down(path)
    assert families(found, "outer") == {"gemm": (3, 3, 17)}
    assert families(found, "outer/inner") == {"gemm": (1, 1, 10)}
    assert families(found, "outer/beside") == {"gemm": (1, 1, 5)}


def test_a_window_counts_what_it_has_inside_once(trace: MakeTrace) -> None:
    """Two overlapping windows of one name have a kernel once, also when a push/pop range owns it."""
    path = trace(
        Range("window", 0, 90, kind="start_end"),
        Range("window", 5, 50, kind="start_end"),
        Range("step", 10, 20),
        launch_kernel("gemm", (11, 12), (100, 110), id=1),
        duration=END,
    )
    assert families(broken_down(path), "window") == {"gemm": (1, 1, 10)}


def test_windows_of_strict_see_their_thread_alone(trace: MakeTrace) -> None:
    """With `strict` the families of a window are those of its thread's launches."""
    path = trace(
        Range("window", 0, 90, kind="start_end", thread=1),
        launch_kernel("gemm", (11, 12), (100, 110), id=1, thread=1),
        launch_kernel("gemm", (13, 14), (110, 115), id=2, thread=2),
        duration=END,
    )
    assert families(broken_down(path), "window") == {"gemm": (2, 2, 15)}
    assert families(broken_down(path, "strict"), "window") == {"gemm": (1, 1, 10)}


def test_families_of_crossing_ranges_hold_what_lies_inside_each(trace: MakeTrace) -> None:
    """Ranges of two domains that cross both have the kernel inside that was launched while both were open."""
    path = trace(
        Range("left", 0, 50, domain=1),
        Range("right", 30, 80, domain=2),
        launch_kernel("gemm", (35, 36), (100, 110), id=1),
        duration=END,
    )
    found = broken_down(path)
    assert families(found, "left") == families(found, "right") == {"gemm": (1, 1, 10)}


def nested_report(seed: int) -> list[Item]:
    """A report by chance whose push/pop ranges are all of one domain, and nest or repeat but do not cross."""
    items = random_report(seed)
    crossing = {
        (item.process, item.thread) for item in items if isinstance(item, Range) and item.domain not in (0, None)
    }
    return [
        item
        for item in items
        if not (isinstance(item, Range) and item.kind == "push_pop" and (item.process, item.thread) in crossing)
        and not (isinstance(item, Range) and item.kind == "start_end")
    ]


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Fifteen of them, with an iteration before all else and a kernel that nobody launched."""
    folder = tmp_path_factory.mktemp("nested")
    more: list[Item] = [Range("iter7", -5_000, -4_000), Kernel("gemm", 1, 2, 12345)]
    return [write(folder / f"{seed}.sqlite", [*nested_report(seed), *more], duration=2 * 10**15) for seed in range(15)]


@pytest.mark.parametrize("threads", ["follow", "strict"])
@pytest.mark.parametrize("how", [{}, {"skip": 1}, {"by": "device"}, {"by": "process"}, {"select": "iter*"}], ids=str)
def test_families_add_up_to_the_sum_of_each_merged_path(nested: list[Path], threads: str, how: dict[str, Any]) -> None:
    """For each row the families' times are its inclusive sum, to the ns, on reports by chance."""
    for path in nested:
        found = broken_once(path, threads, **how)
        assert mismatches(found) == [], path
        assert (found.families["row"] >= 0).all(), path


def test_launch_and_queue_stand_in_front_of_the_execution(trace: MakeTrace) -> None:
    """Medians of the call that launched an op and of its wait from the return of that call, of each path and of all;
    0 where it began before the return, -1 where no call is recorded.
    """
    path = trace(
        Range("a", 0, 100),
        launch_kernel("k", (10, 14), (20, 30), id=1),
        launch_kernel("k", (40, 50), (45, 55), id=2),
        launch_kernel("k", (110, 111), (200, 210), id=3),
        Kernel("orphan", 300, 310, 99),
        launch_kernel("orphan", (120, 126), (310, 320), id=4),
        Kernel("nobody's", 400, 410, 98),
    )
    found = broken_down(path)

    def launches(rows: Any) -> dict[str, tuple[int, int, int]]:
        names = ("count", "api_median_ns", "queue_median_ns")
        return {f"{row.get('path', '')}/{row['kernel']}": tuple(row[name] for name in names) for row in rows}

    unowned = {"/orphan": (2, 6, 184), "/nobody's": (1, -1, -1)}
    of_paths = launches(found.columns("kernels").records())
    assert of_paths == {"a/k": (2, 7, 3), "/k": (1, 1, 89), **unowned}
    assert launches(found.columns("whole_kernels").records()) == {"/k": (3, 4, 6), **unowned}
    alone = broken_down(trace(launch_kernel("k", (10, 14), (20, 30), id=1)))
    assert launches(alone.columns("whole_kernels").records()) == {"/k": (1, 4, 6)}


def test_launches_of_graphs_that_were_captured_elsewhere(trace: MakeTrace) -> None:
    """Whatever range owns what a graph replays, its launch is the real one."""
    path = trace(
        Range("capture", 0, 10),
        GraphNode(3, at=5),
        Range("replay", 20, 40),
        Launch(21, 25, 1, api="cudaGraphLaunch_v10000"),
        Kernel("k", 30, 35, 1, graph_node=3),
    )
    for graphs, owner in (("launched", "replay"), ("captured", "capture")):
        [row] = break_down(attributed(path, graphs=graphs)).columns("kernels").records()
        assert (row["path"], row["api_median_ns"], row["queue_median_ns"]) == (owner, 4, 5)


@pytest.mark.nsys
@pytest.mark.parametrize("name", ["run", "block", "two-processes"])
def test_launches_equal_nsys(name: str, real_nsys: Nsys) -> None:
    """Medians of launch, queue and execution equal ``cuda_kern_exec_sum``, which knows no queue of what began before
    its call returned, where it has one row for a kernel.
    """
    path = TRACES / f"{name}.sqlite"
    theirs: dict[str, list[dict[str, str]]] = {}
    for row in stats(real_nsys, path, "cuda_kern_exec_sum"):
        theirs.setdefault(row["Kernel Name"], []).append(row)
    ours = {row["kernel"]: row for row in broken_down(path).columns("whole_kernels").records()}
    compared = queued = 0
    for kernel, [row, *more] in theirs.items():
        if more:
            continue
        columns = {"Count": "count", "AMed (ns)": "api_median_ns", "KMed (ns)": "median_ns"}
        columns |= {"QMed (ns)": "queue_median_ns"} if row["QCount"] == row["Count"] else {}
        seen = {name: round(float(row[name])) for name in columns}
        assert seen == {name: ours[kernel][ours_name] for name, ours_name in columns.items()}, kernel
        compared, queued = compared + 1, queued + (len(columns) > 3)
    assert compared > 5
    assert queued > 3
