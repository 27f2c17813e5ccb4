"""Which ranges and kernels are shown first: checked against what a reader would pick by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsysprof.attribution import attribute
from nsysprof.breakdown import Breakdown, break_down
from nsysprof.highlights import kernels_inside, top_rows
from nsysprof.report import open_report
from tests.conftest import Trace
from tests.trace import Items, Range, launch_kernel, launch_memcpy

SHIPPED = Path(__file__).parents[2] / "traces" / "run.sqlite"
DEEP = 1009


def broken_down(path: Path, **how: Any) -> Breakdown:
    """The answer for a report."""
    with open_report(path) as report:
        return break_down(attribute(report), **how)


def paths(breakdown: Breakdown, count: int) -> list[str]:
    """The merged paths of the rows shown."""
    shown: list[str] = breakdown.merged["merged_path"].iloc[top_rows(breakdown, count)].tolist()
    return shown


def work(name: str, at: int, length: int, id: int) -> Items:
    """A kernel of some length, launched at a time."""
    return launch_kernel(name, (at, at + 1), (at + 2, at + 2 + length), id=id)


def three_phases() -> list[Items]:
    """Load (5 ns), train (60 ns in two steps and 10 ns beside them) and save (20 ns, all of it in `write`)."""
    return [
        Range("load", 0, 99),
        work("k1", 10, 5, 1),
        Range("train", 100, 499),
        Range("step 0", 110, 199),
        work("k2", 120, 40, 2),
        Range("step 1", 210, 299),
        work("k2", 220, 20, 3),
        work("k3", 400, 10, 4),
        Range("save", 500, 599),
        Range("write", 510, 589),
        work("k4", 520, 20, 5),
        work("k5", 700, 3, 6),
    ]


def test_the_busiest_ranges_come_in_the_order_of_the_program(trace: Trace) -> None:
    """By busy time they are chosen, by first appearance they stand, and parents stand before children."""
    answer = broken_down(trace(*three_phases(), duration=10_000))
    assert paths(answer, 1) == ["train"]
    assert paths(answer, 2) == ["train", "train/step*"]
    assert paths(answer, 3) == ["train", "train/step*", "save", "save/write"]
    assert paths(answer, 9) == ["load", "train", "train/step*", "save", "save/write"]


def test_a_range_around_a_shown_one_is_shown(trace: Trace) -> None:
    """Whatever is shown has its ancestors shown, on the shipped report and on a tree, for every count."""
    for answer in (broken_down(SHIPPED), broken_down(trace(*three_phases()), merge=None)):
        parent = answer.merged["parent"].tolist()
        for count in (1, 2, 5, 500):
            shown = top_rows(answer, count).tolist()
            assert len(shown) == len(set(shown))
            for place, row in enumerate(shown):
                assert parent[row] == -1 or parent[row] in shown[:place]


def test_all_work_of_the_parent_is_not_counted() -> None:
    """`iter*`, which holds all that its `RUN::` range holds, comes along and takes no place of the count."""
    answer = broken_down(SHIPPED)
    assert len(answer.merged) == 40
    assert paths(answer, 1) == ["RUN::math::S8192", "RUN::math::S8192/iter*"]
    assert len(paths(answer, 7)) == 14
    assert len(paths(answer, 20)) == len(paths(answer, 500)) == 40


def test_the_ends_of_a_long_chain_stand_for_it(trace: Trace) -> None:
    """Of 1,009 ranges that hold one another and the same work, the two outermost and the two innermost are shown."""
    nested = [Range(f"r{depth}", depth, 9000 - depth) for depth in range(DEEP)]
    answer = broken_down(trace(*nested, work("k", 2000, 5, 1), duration=10_000))
    names = [path.rsplit("/", 1)[-1] for path in paths(answer, 20)]
    assert names == ["r0", "r1", f"r{DEEP - 2}", f"r{DEEP - 1}"]


def test_a_short_chain_is_shown_whole(trace: Trace) -> None:
    """Four ranges in each other are no more to read than the ends of a chain."""
    nested = [Range(f"r{depth}", depth, 900 - depth) for depth in range(4)]
    answer = broken_down(trace(*nested, work("k", 200, 5, 1), duration=10_000))
    assert [path.rsplit("/", 1)[-1] for path in paths(answer, 20)] == ["r0", "r1", "r2", "r3"]


def test_what_follows_a_chain_stands_below_it(trace: Trace) -> None:
    """Children of a row within a chain that is left out hang on the next range shown above them."""
    nested = [Range(f"r{depth}", depth, 900 - depth) for depth in range(8)]
    inner = [Range("x", 100, 110), work("k", 101, 5, 1), Range("y", 120, 130), work("k", 121, 7, 2)]
    answer = broken_down(trace(*nested, *inner, duration=10_000))
    names = [path.rsplit("/", 1)[-1] for path in paths(answer, 20)]
    assert names == ["r0", "r1", "r6", "r7", "x", "y"]


def test_without_ranges_nothing_is_shown(trace: Trace) -> None:
    """A report without NVTX has no rows, and that is no error."""
    assert paths(broken_down(trace(work("k", 1, 2, 1))), 5) == []


def test_kernels_inside_are_those_of_all_inner_ranges(trace: Trace) -> None:
    """Equal kernels of inner ranges are one row, the longest first, and the sum is the inclusive one."""
    answer = broken_down(trace(*three_phases(), launch_memcpy((410, 411), (412, 413), id=9), duration=10_000))
    train = answer.merged["merged_path"].tolist().index("train")
    found = kernels_inside(answer, train)
    assert list(zip(found["kernel"], found["count"], found["sum_ns"], strict=True)) == [
        ("k2", 2, 60),
        ("k3", 1, 10),
        ("memcpy HtoD", 1, 1),
    ]
    assert found["sum_ns"].sum() == answer.merged["sum_ns"][train]


def test_kernels_inside_add_up_on_the_shipped_report() -> None:
    """For every row, and for what no range owns, the kernels add up to what the frames say."""
    answer = broken_down(SHIPPED)
    for row, total in enumerate(answer.merged["sum_ns"].tolist()):
        assert kernels_inside(answer, row)["sum_ns"].sum() == total
    outside = answer.ledger.set_index("fate")["sum_ns"]["outside every range"]
    assert kernels_inside(answer, -1)["sum_ns"].sum() == outside > 0


def test_unowned_kernels_of_a_split_answer_are_one_table(trace: Trace) -> None:
    """With `by` the rows that no range owns are still found, those of all parts together."""
    items = [
        launch_kernel("k", (1, 2), (3, 10), id=1, process=1),
        launch_kernel("k", (1, 2), (3, 8), id=1, process=2),
    ]
    found = kernels_inside(broken_down(trace(*items), by="process"), -1)
    assert found[["kernel", "count", "sum_ns"]].values.tolist() == [["k", 2, 12]]
