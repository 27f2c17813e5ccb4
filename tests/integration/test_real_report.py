"""The shipped report: its known answers, and every instance against the slow reference."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from nsysprof.attribution import FATES, Attribution, attribute
from nsysprof.breakdown import Breakdown, break_down
from nsysprof.report import open_report
from tests.reference import refer

REAL = Path(__file__).parents[2] / "traces" / "run.sqlite"
BACKENDS, SIZES = ("math", "flash", "efficient", "cudnn"), (512, 1024, 2048, 4096, 8192)
TOTALS = (
    *("launches", "kernels", "memops", "graph_launches", "first_op_ns", "last_op_ns"),
    *("busy_ns", "sum_ns", "followed_sum_ns", "span_ns"),
)

pytestmark = pytest.mark.skipif(not REAL.exists(), reason="traces/run.sqlite is not there")


@lru_cache
def attributed(threads: str = "follow") -> Attribution:
    with open_report(REAL) as report:
        return attribute(report, threads)


@lru_cache
def broken_down() -> Breakdown:
    return break_down(attributed())


def row(found: Breakdown, path: str) -> dict[str, Any]:
    mine = found.merged[found.merged["merged_path"] == path]
    assert len(mine) == 1
    return {str(name): value for name, value in mine.iloc[0].items()}


def ask(sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"{REAL.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def test_totals_are_those_of_the_file() -> None:
    """Kernels, memsets and their time equal what the rows of the file add up to."""
    [(kernels, kernel_ns)] = ask("SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    [(memsets, memset_ns)] = ask("SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_MEMSET")
    totals = broken_down().totals
    assert (
        (totals["kernels"], totals["memops"], totals["graph_traces"])
        == (kernels, memsets, 0)
        == (5_280, 227, 0)
    )
    assert totals["sum_ns"] == kernel_ns + memset_ns
    assert (totals["ops"], totals["ranges"]) == (5_507, 420)


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (
            "RUN::math::S4096",
            {"cpu_ns": 56_506_445, "span_ns": 56_434_017, "busy_ns": 55_801_567, "kernels": 400},
        ),
        (
            "RUN::flash::S4096",
            {"cpu_ns": 2_415_508, "span_ns": 2_362_440, "busy_ns": 2_343_016, "kernels": 20},
        ),
        ("RUN::flash::S512", {"span_ns": 1_368_389, "busy_ns": 200_800, "kernels": 40}),
    ],
)
def test_known_answers(path: str, known: dict[str, int]) -> None:
    """What the README beside the report says of three of its ranges."""
    assert {name: row(broken_down(), path)[name] for name in known} == known


def test_each_run_has_twenty_iterations_in_one_row() -> None:
    """`iter0` to `iter19` of each of the twenty runs are one merged row of twenty instances."""
    found = broken_down()
    runs = [f"RUN::{backend}::S{size}" for size in SIZES for backend in BACKENDS]
    assert len(found.merged) == 2 * len(runs)
    assert len(found.ranges) == 21 * len(runs)
    for run in runs:
        outer, inner = row(found, run), row(found, f"{run}/iter*")
        assert (outer["instances"], inner["instances"]) == (1, 20), run
        assert inner["sum_ns"] == outer["sum_ns"] == inner["exclusive_sum_ns"], run
        assert inner["kernels"] == outer["kernels"], run
        assert outer["exclusive_sum_ns"] == 0, run
        assert inner["busy_median_ns"] > 0, run


@pytest.mark.parametrize("threads", ["follow", "strict"])
def test_every_instance_equals_the_reference(threads: str) -> None:
    """All 420 ranges and 5,507 ops, column by column; nothing in this report follows, so both ways agree."""
    found, reference = attributed(threads), refer(REAL, threads)
    for what in TOTALS:
        expected = [getattr(totals, what) for totals in reference.totals]
        assert getattr(found.inclusive, what).tolist() == expected, what
    assert found.op_owner.tolist() == reference.owner
    assert [FATES[fate] for fate in found.op_fate.tolist()] == reference.fate
    assert found.parent.tolist() == reference.parent
    assert [(row.fate, row.ops, row.sum_ns) for row in found.ledger] == reference.ledger()


def test_kernels_add_up_to_those_of_the_file() -> None:
    """Count, sum, least and most of every kernel over all paths are what SQL says of the file."""
    frame = broken_down().kernels
    frame = frame[~frame["family"].isin(["memcpy", "memset", "graph"])]
    by_name = frame.groupby("kernel")
    found = {
        name: (part["count"].sum(), part["sum_ns"].sum(), part["min_ns"].min(), part["max_ns"].max())
        for name, part in by_name
    }
    expected = ask(
        "SELECT value, count(*), sum(end - start), min(end - start), max(end - start)"
        " FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName GROUP BY demangledName"
    )
    assert found == {name: tuple(values) for name, *values in expected}


def test_kernels_of_a_path_are_those_launched_in_it() -> None:
    """The kernels of `RUN::math::S512/iter7` are what SQL finds launched inside that range."""
    expected = ask(
        """SELECT value, count(*), sum(k.end - k.start) FROM NVTX_EVENTS AS run JOIN NVTX_EVENTS AS iter
           ON iter.globalTid = run.globalTid AND iter.start >= run.start AND iter.end <= run.end
           JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
           ON r.globalTid = iter.globalTid AND r.start >= iter.start AND r.end <= iter.end
           JOIN CUPTI_ACTIVITY_KIND_KERNEL AS k USING (correlationId) JOIN StringIds ON id = demangledName
           WHERE run.text = 'RUN::math::S512' AND iter.text = 'iter7' GROUP BY demangledName"""
    )
    frame = broken_down().kernels
    mine = frame[frame["path"] == "RUN::math::S512/iter7"]
    found = {
        name: (count, total) for name, count, total in mine[["kernel", "count", "sum_ns"]].to_numpy().tolist()
    }
    assert found == {name: (count, total) for name, count, total in expected}
    assert sum(count for count, _ in found.values()) == 20


def test_ledger_adds_up() -> None:
    """What ranges own and what nobody owns is the report's time, to the ns."""
    found = broken_down()
    ledger = dict(zip(found.ledger["fate"], found.ledger["sum_ns"].tolist(), strict=True))
    assert sum(ledger.values()) == found.totals["sum_ns"]
    assert int(found.ranges["exclusive_sum_ns"].sum()) == ledger["own thread"]
    assert ledger["no launch row"] == ledger["ambiguous"] == ledger["followed"] == 0


def test_skip_leaves_out_the_first_iterations_of_each_run() -> None:
    """With five to skip every run has fifteen iterations, its own row stays, and the totals stay."""
    whole, found = broken_down(), break_down(attributed(), skip=5)
    for size in SIZES:
        for backend in BACKENDS:
            path = f"RUN::{backend}::S{size}"
            assert (row(found, path)["instances"], row(found, f"{path}/iter*")["instances"]) == (1, 15), path
    kept = whole.instances[whole.instances["path"].str.fullmatch(r"RUN::math::S512/iter([5-9]|1\d)")]
    assert row(found, "RUN::math::S512/iter*")["sum_ns"] == int(kept["sum_ns"].sum())
    assert row(found, "RUN::math::S512/iter*")["busy_median_ns"] == round(kept["busy_ns"].median())
    assert found.totals == whole.totals
    assert [warning for warning in found.warnings if warning not in whole.warnings] == [
        "warm-up instances left out: 100 (--skip 5)"
    ]


def test_skip_of_all_iterations_skips_none() -> None:
    """Twenty do not repeat more often than twenty, so nothing is left out rather than everything."""
    assert break_down(attributed(), skip=20).merged.equals(broken_down().merged)


def test_select_keeps_one_run() -> None:
    """A glob on the run keeps it and its iterations with the numbers that they have in the whole."""
    found = break_down(attributed(), select="RUN::flash::S4096")
    assert found.merged["merged_path"].tolist() == ["RUN::flash::S4096", "RUN::flash::S4096/iter*"]
    numbers = ["sum_ns", "busy_ns", "span_ns", "cpu_ns", "kernels", "busy_median_ns"]
    for path in found.merged["merged_path"]:
        assert [row(found, path)[name] for name in numbers] == [
            row(broken_down(), path)[name] for name in numbers
        ]
    assert set(found.kernels["path"].str.startswith("RUN::flash::S4096")) == {True}
    assert [warning for warning in found.warnings if warning not in broken_down().warnings] == [
        "ranges that match 'RUN::flash::S4096' or lie in one that does: 21 of 420;"
        " only the ledger and totals are of all"
    ]


@pytest.mark.parametrize(("by", "label"), [("process", 444), ("device", "GPU 0")])
def test_one_process_on_one_gpu_is_the_whole(by: str, label: object) -> None:
    """The report's one process, and its one GPU, are the whole report under another head."""
    found, whole = break_down(attributed(), by=by), broken_down()
    for name in ("ranges", "merged", "kernels", "families"):
        frame = getattr(found, name)
        assert set(frame[by]) == {label}, name
        assert frame.drop(columns=by).equals(getattr(whole, name)), name


def test_families_add_up_to_each_row() -> None:
    """The families inside each merged path have its time and its kernels."""
    found = broken_down()
    for column in ("sum_ns", "kernels"):
        by_row = found.families.groupby("row")[column].sum()
        assert by_row.tolist() == found.merged[column].tolist(), column


def test_the_file_is_not_changed() -> None:
    """Reading leaves the bytes as they are, and nothing beside the file."""
    before, beside = REAL.read_bytes(), sorted(REAL.parent.iterdir())
    with open_report(REAL) as report:
        break_down(attribute(report))
    assert REAL.read_bytes() == before
    assert sorted(REAL.parent.iterdir()) == beside
