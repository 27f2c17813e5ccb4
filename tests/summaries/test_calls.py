"""Host calls: counted as nsys counts them, where they stand, and what they wait for."""

import re
import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.summaries.calls import read_kinds
from nsysprof.summaries.summary import Answer
from nsysprof.tools.nsys import Nsys, stats
from tests.conftest import MakeTrace
from tests.kit.events import Strings
from tests.kit.reports import TRACES, broken_down
from tests.kit.trace import Items, Kernel, Launch, MpiCall, OsCall, Range, Row, launch_kernel, launch_memcpy

SHIPPED = sorted(TRACES.glob("*.sqlite"))
MPI = [f"MPI_{name}_EVENTS" for name in ("COLLECTIVES", "OTHER", "P2P", "START_WAIT")]


def answer_of(path: Path, threads: str = "follow", **asked: Any) -> Answer | None:
    """The answer about host calls."""
    return broken_down(path, threads, **asked).summaries.get("calls")


def rows_of(path: Path, threads: str = "follow", **asked: Any) -> list[dict[str, Any]]:
    """The rows of ``calls.csv``."""
    answer = answer_of(path, threads, **asked)
    return [] if answer is None else list(answer.files["calls.csv"].records())


def figures(path: Path) -> dict[tuple[str, str], tuple[int, ...]]:
    """Count, sum, least, most and median of each kind and name, as readers see them."""
    answer = answer_of(path)
    assert answer is not None
    keys = ("count", "sum_ns", "min_ns", "max_ns", "median_ns")
    return {(row["kind"], row["call"]): tuple(row[key] for key in keys) for row in answer.rows.records()}


def by_sql(path: Path) -> dict[tuple[str, str], tuple[int, ...]]:
    """The same from the tables themselves."""
    lengths: dict[tuple[str, str], list[int]] = defaultdict(list)
    tables = [("cuda", "CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"), ("os", "OSRT_API", "nameId")]
    with closing(sqlite3.connect(path)) as connection:
        known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        for kind, table, column in [*tables, *(("mpi", table, "textId") for table in MPI)]:
            if table in known:
                query = f"SELECT value, end - start FROM {table} JOIN StringIds AS s ON s.id = {column}"
                query += " WHERE eventClass = 27" * (kind == "os")
                for name, length in connection.execute(query):
                    lengths[kind, re.sub(r"_v\d{4,}$", "", name)].append(length)
    return {
        key: (len(each), sum(each), min(each), max(each), round(statistics.median(each)))
        for key, each in lengths.items()
    }


def all_kinds(trace: MakeTrace) -> Path:
    """A report with calls of CUDA, MPI and the operating system, some of one name several times."""
    return trace(
        *launch_kernel("k", (10, 15), (20, 30), id=1),
        Launch(40, 47, None, api="cudaMalloc_v3020"),
        Launch(50, 59, None, thread=2, api="cudaMalloc_v3020"),
        *(OsCall("poll", start, start + 2 * start, thread=3) for start in (5, 20, 21)),
        OsCall("read", 60, 61),
        MpiCall("MPI_Send", 70, 75, table="P2P"),
        MpiCall("MPI_Send", 70, 75, table="P2P"),
        MpiCall("MPI_Barrier", 80, 99, table="COLLECTIVES"),
    )


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_figures_of_shipped_reports(path: Path) -> None:
    """Counts, sums, extremes and medians by name equal those of plain SQL; parts of a name add up to it."""
    seen = figures(path)
    assert seen == by_sql(path)
    parts: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in rows_of(path):
        key = row["kind"], row["call"]
        parts[key] = parts[key][0] + row["count"], parts[key][1] + row["sum_ns"]
    assert parts == {key: values[:2] for key, values in seen.items()}


def test_figures_of_all_kinds(trace: MakeTrace) -> None:
    """The same for calls of MPI and of the system; a row counts even where it equals another one."""
    path = all_kinds(trace)
    assert figures(path) == by_sql(path)
    assert figures(path)["mpi", "MPI_Send"][:2] == (2, 10)


@pytest.mark.nsys
@pytest.mark.parametrize("path", [*SHIPPED, None], ids=lambda path: path.stem if path else "made")
def test_figures_equal_nsys(path: Path | None, real_nsys: Nsys, trace: MakeTrace) -> None:
    """Counts, sums, extremes and medians by name equal those of ``nsys stats``, whose medians end with .5."""
    report = path or all_kinds(trace)
    kinds = {"cuda": "cuda_api_sum", **({} if path else {"os": "osrt_sum"})}
    theirs = {}
    for kind, name in kinds.items():
        for row in stats(real_nsys, report, name):
            names = ("Num Calls", "Total Time (ns)", "Min (ns)", "Max (ns)", "Med (ns)")
            call = re.sub(r"_v\d{4,}$", "", row["Name"])
            theirs[kind, call] = tuple(round(float(row[each])) for each in names)
    ours = {key: values for key, values in figures(report).items() if key[0] in kinds}
    assert ours == theirs


def of(rows: Iterable[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    """Some columns of the rows."""
    return sorted(tuple(row[name] for name in names) for row in rows)


def test_a_row_per_thread_and_range(trace: MakeTrace) -> None:
    """The innermost range around a call on its thread, or where it has none, of the one thread that has one open."""
    calls: list[Items] = [
        Range("step", 0, 100),
        Range("inner", 10, 30),
        Launch(12, 14, None, api="cudaMalloc_v3020"),
        Launch(40, 45, None, api="cudaMalloc_v3020"),
        Launch(50, 56, None, thread=2, api="cudaMalloc_v3020"),
        Launch(90, 120, None, thread=2, api="cudaMalloc_v3020"),
        *launch_kernel("k", (60, 65), (70, 80), id=1, thread=2),
        OsCall("read", 50, 56, thread=2),
    ]
    path = trace(*calls)
    names = ("call", "tid", "merged_path", "count", "sum_ns")
    assert of(rows_of(path), *names) == [
        ("cudaLaunchKernel", 2, "step", 1, 5),
        ("cudaMalloc", 1, "step", 1, 5),
        ("cudaMalloc", 1, "step/inner", 1, 2),
        ("cudaMalloc", 2, "", 1, 30),
        ("cudaMalloc", 2, "step", 1, 6),
        ("read", 2, "", 1, 6),
    ]
    strict = of(rows_of(path, "strict"), *names)
    assert ("cudaMalloc", 2, "", 2, 36) in strict
    assert ("cudaLaunchKernel", 2, "", 1, 5) in strict


def test_calls_in_windows(trace: MakeTrace) -> None:
    """A call outside every push/pop range stands in the start/end range that is open in its process."""
    window = Range("window", 0, 100, kind="start_end")
    malloc = Launch(12, 14, None, thread=2, api="cudaMalloc_v3020")
    path = trace(window, malloc, *launch_kernel("k", (20, 25), (30, 40), id=1, thread=2))
    assert of(rows_of(path), "call", "merged_path") == [("cudaLaunchKernel", "window"), ("cudaMalloc", "window")]
    assert {path for (path,) in of(rows_of(path, "strict"), "merged_path")} == {""}


def test_a_call_that_is_a_range_stands_in_the_one_around_it(trace: MakeTrace) -> None:
    """Where calls of MPI are ranges, no call stands in itself."""
    path = trace(MpiCall("MPI_Waitall", 0, 50), MpiCall("MPI_Send", 10, 20, table="P2P"))
    assert of(rows_of(path), "call", "merged_path") == [("MPI_Send", "MPI_Waitall"), ("MPI_Waitall", "")]


def test_what_waits_and_how_long(trace: MakeTrace) -> None:
    """Synchronizations, blocking copies and cudaFree wait by their name, asynchronous copies where they returned after
    their copy; what counts is the time in which a GPU of the process ran.
    """
    path = trace(
        *launch_kernel("k", (0, 10), (20, 100), id=1),
        Launch(50, 120, None, api="cudaDeviceSynchronize_v3020"),
        *launch_memcpy((130, 160), (135, 150), id=2),
        *launch_memcpy((170, 175), (180, 190), id=3),
        *launch_memcpy((200, 230), (205, 215), id=4, api="cudaMemcpy"),
        Launch(240, 250, None, api="cudaFree_v3020"),
        Launch(60, 90, None, process=2, api="cudaDeviceSynchronize_v3020"),
    )
    assert of(rows_of(path), "call", "pid", "count", "waits", "waited_ns", "what") == [
        ("cudaDeviceSynchronize", 1, 1, 1, 50, "wait"),
        ("cudaDeviceSynchronize", 2, 1, 1, 0, "wait"),
        ("cudaFree", 1, 1, 1, 0, "memory"),
        ("cudaLaunchKernel", 1, 1, 0, 0, "launch"),
        ("cudaMemcpy", 1, 1, 1, 10, "copy"),
        ("cudaMemcpyAsync", 1, 2, 1, 15, "copy"),
    ]


def test_failures(trace: MakeTrace) -> None:
    """What returned an error failed, an event that is not ready did not; failed calls are no name of their own."""
    query, malloc = "cudaEventQuery_v3020", "cudaMalloc_v3020"
    path = trace(
        *(Launch(at, at + 1, None, api=query, returned=600) for at in (1, 3)),
        *(Launch(at, at + 1, None, api=malloc, returned=result) for at, result in ((5, 0), (7, 2))),
        OsCall("read", 9, 10),
    )
    rows = rows_of(path)
    assert of(rows[:2], "call", "count", "failed") == [("cudaEventQuery", 2, 0), ("cudaMalloc", 2, 1)]
    assert rows[2]["failed"] != rows[2]["failed"]  # not a number: the system's calls do not say


def test_a_call_of_two_layers_counts_once(trace: MakeTrace) -> None:
    """The driver's call inside the runtime's has the same correlation id: one call, by the name and time of the outer.

    So is an allocation, which launches nothing; a call of another id inside one is another call.
    """
    path = trace(
        *(Launch(10, 15, 1), Launch(11, 14, 1, event_class=67, api="cuLaunchKernel"), Kernel("k", 20, 30, 1)),
        *(Launch(20, 29, 2, api="cudaMalloc"), Launch(21, 28, 2, event_class=67, api="cuMemAlloc_v2")),
        *(Launch(22, 24, 3, event_class=67, api="cuCtxGetCurrent"), Launch(40, 44, 4, api="cuMemAlloc_v2")),
        *(Launch(22, 27, 2, event_class=67, api="cuMemAlloc_v2"),),
    )
    answer = answer_of(path)
    assert answer is not None
    assert sorted(of(answer.rows.records(), "call", "count", "sum_ns")) == [
        ("cuCtxGetCurrent", 1, 2),
        ("cuMemAlloc_v2", 1, 4),
        ("cudaLaunchKernel", 1, 5),
        ("cudaMalloc", 1, 9),
    ]


@pytest.mark.parametrize("turn", [1, -1])
def test_the_runtimes_name_is_that_of_two_layers_that_take_as_long(turn: int, trace: MakeTrace) -> None:
    """Whichever comes first in the file."""
    rows = Launch(10, 15, 1), Launch(10, 15, 1, event_class=1, api="cuLaunchKernel")
    others = Launch(20, 25, 2, api="cudaMalloc"), Launch(20, 25, 2, event_class=1, api="cuMemAlloc_v2")
    path = trace(*rows[::turn], *others[::turn], Kernel("k", 20, 30, 1))
    assert sorted(of(rows_of(path), "call", "count")) == [("cudaLaunchKernel", 1), ("cudaMalloc", 1)]


def test_calls_with_one_id_that_are_not_in_one_another_are_two(trace: MakeTrace) -> None:
    """Only the shorter of two calls with one correlation id is the launch, the other one counts beside it."""
    path = trace(Launch(10, 15, 1), Launch(16, 19, 1, api="cuLaunchKernel"), Kernel("k", 20, 30, 1))
    assert sorted(of(rows_of(path), "call", "count", "sum_ns")) == [
        ("cuLaunchKernel", 1, 3),
        ("cudaLaunchKernel", 1, 5),
    ]


def test_versions_are_one_name(trace: MakeTrace) -> None:
    """`cudaLaunchKernel_v7000`, `cudaLaunchKernel_ptsz_v7000` and `cudaLaunchKernel` are one call."""
    names = ("cudaLaunchKernel_v7000", "cudaLaunchKernel", "cudaLaunchKernel_ptsz_v7000")
    path = trace(*(Launch(10 * at, 10 * at + 1, None, api=name) for at, name in enumerate(names)))
    assert of(rows_of(path), "call", "count") == [("cudaLaunchKernel", 3)]


@pytest.mark.parametrize(("other_us", "told"), [(8_904, True), (8_905, False)])
def test_what_takes_a_hundredth_of_the_calls_is_worth_saying(trace: MakeTrace, other_us: int, told: bool) -> None:
    """A first launch of 90 µs, of 9 ms in all calls or of a little more."""
    us = 1000
    launches = [(0, 90 * us), *((start * us, (start + 2) * us) for start in (100, 110, 120))]
    answer = answer_of(
        trace(
            *(launch_kernel("k", call, (call[1], call[1] + 1), id=id) for id, call in enumerate(launches, 1)),
            Launch(200 * us, (200 + other_us) * us, None, api="cudaMalloc_v3020"),
        )
    )
    assert answer is not None
    assert ("first launches of 1 kernel 90.0 µs (lazy loading)" in answer.finding) is told


def test_module_loading_and_first_launches_are_named(trace: MakeTrace) -> None:
    """Loading is a class of calls; a first launch of ten times the median and 50 µs is lazy loading."""
    us = 1000
    launches = [(0, 90 * us), *((start * us, (start + 2) * us) for start in (100, 110, 120))]
    path = trace(
        *(launch_kernel("k", call, (call[1], call[1] + 1), id=number) for number, call in enumerate(launches, 1)),
        *launch_kernel("always slow", (200 * us, 260 * us), (260 * us, 270 * us), id=9),
        Launch(300 * us, 400 * us, None, api="cuLibraryLoadData"),
        Launch(400 * us, 401 * us, None, api="cuModuleGetFunction"),
        Launch(402 * us, 403 * us, None, api="cuMemGetInfo_v2"),
    )
    answer = answer_of(path)
    assert answer is not None
    assert "; module loading 101 µs; first launches of 1 kernel 90.0 µs (lazy loading)" in answer.finding
    assert of(answer.rows.records(), "call", "what") == [
        ("cuLibraryLoadData", "module loading"),
        ("cuMemGetInfo_v2", "other"),
        ("cuModuleGetFunction", "module loading"),
        ("cudaLaunchKernel", "launch"),
    ]


def test_rows_of_the_system_that_are_no_calls(trace: MakeTrace) -> None:
    """nsys writes other events into the same table, of another class: it counts them as no calls, and so do we."""
    [(table, row)] = OsCall("poll", 30, 90).rows(Strings())
    path = trace(OsCall("poll", 10, 20), Row(table, {**row, "eventClass": 32}))
    assert of(rows_of(path), "call", "count", "sum_ns") == [("poll", 1, 10)]


def test_a_report_without_names_and_results(trace: MakeTrace) -> None:
    """Old exports lack columns: calls that have no name count as calls of their kind, none as failed."""
    lost = {"CUPTI_ACTIVITY_KIND_RUNTIME": ["nameId", "returnValue"], "OSRT_API": ["nameId", "eventClass"]}
    path = trace(Launch(1, 3, None), Launch(4, 9, None, returned=2), OsCall("read", 10, 11), drop_columns=lost)
    rows = rows_of(path)
    assert of(rows, "call", "count", "sum_ns") == [("CUDA call", 2, 7), ("OS call", 1, 1)]
    assert rows[0]["failed"] == 0


def test_kinds_that_are_asked_for(trace: MakeTrace) -> None:
    """`--calls` chooses the kinds; of none there is no answer, and another word is refused with a hint."""
    path = all_kinds(trace)
    assert {kind for (kind,) in of(rows_of(path), "kind")} == {"cuda", "mpi", "os"}
    assert {kind for (kind,) in of(rows_of(path, calls=read_kinds("os, cuda")), "kind")} == {"cuda", "os"}
    assert answer_of(path, calls=read_kinds("none")) is None
    with pytest.raises(NsysprofError, match="unknown calls: 'gpu'") as caught:
        read_kinds("cuda,gpu")
    assert caught.value.hint == "--calls none, or any of cuda,mpi,os, comma-separated"


def test_no_calls_is_no_answer(trace: MakeTrace) -> None:
    """A report of ranges alone has no host calls."""
    assert answer_of(trace(Range("step", 0, 100))) is None
