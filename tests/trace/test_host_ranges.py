"""MPI calls and OpenACC constructs as ranges."""

from pathlib import Path

import numpy as np
import pytest

import nsysprof
from nsysprof.attribution.paths import range_paths
from nsysprof.tools.nsys import Nsys, stats
from nsysprof.trace.report import open_report, read_tables
from nsysprof.trace.trace import RANGE_KINDS
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.schema import STYLES
from tests.kit.trace import Construct, Items, MpiCall, Process, Range, launch_kernel, launch_memcpy


def ranges_of(path: Path, *sources: str) -> list[tuple[str, str, int, int, str]]:
    """Text, domain, start, end and kind of each range of these sources, in the order of their starts."""
    with open_report(path) as report:
        trace = read_tables(report)
        found = report.reader.other_ranges(trace, sources)
    names = [found.names[code] for code in found.name.tolist()]
    kinds = [RANGE_KINDS[code] for code in found.kind.tolist()]
    rows = zip(names, found.start.tolist(), found.end.tolist(), kinds, strict=True)
    return sorted(
        ((name.text, name.domain, start, end, kind) for name, start, end, kind in rows), key=lambda row: row[2]
    )


def owners(path: Path, ranges: str) -> list[str]:
    """The path of the owner of each GPU op, "" for none."""
    attribution = attributed(path, ranges=ranges)
    paths = range_paths(attribution)
    texts = [paths.texts()[at] for at in paths.of.tolist()]
    return [texts[at] if at >= 0 else "" for at in attribution.op_owner.tolist()]


@pytest.mark.parametrize("style", STYLES)
def test_each_mpi_table_is_read(trace: MakeTrace, style: str) -> None:
    """Point-to-point, collective, waiting and other calls become ranges with their names."""
    path = trace(
        MpiCall("MPI_Init", 0, 5),
        MpiCall("MPI_Isend", 6, 8, table="P2P"),
        MpiCall("MPI_Waitall", 9, 12, table="START_WAIT"),
        MpiCall("MPI_Allreduce", 13, 20, table="COLLECTIVES"),
        Construct("Wait", 30, 31),
        style=style,
    )
    assert ranges_of(path, "mpi") == [
        ("MPI_Init", "MPI", 0, 5, "mpi"),
        ("MPI_Isend", "MPI", 6, 8, "mpi"),
        ("MPI_Waitall", "MPI", 9, 12, "mpi"),
        ("MPI_Allreduce", "MPI", 13, 20, "mpi"),
    ]


def test_a_call_with_a_row_for_each_request_counts_once(trace: MakeTrace) -> None:
    """nsys writes a row per request that `MPI_Waitall` waits for; other threads and later calls stay."""
    wait = [MpiCall("MPI_Waitall", 10, 20, table="START_WAIT", request=each) for each in range(3)]
    path = trace(*wait, MpiCall("MPI_Waitall", 10, 20, thread=2), MpiCall("MPI_Waitall", 30, 40))
    assert [row[2:4] for row in ranges_of(path, "mpi")] == [(10, 20), (10, 20), (30, 40)]


def test_a_call_that_never_returns_ends_with_the_session(trace: MakeTrace) -> None:
    """It is a range until the end, and a warning counts it."""
    path = trace(MpiCall("MPI_Recv", 10, None), *launch_kernel("k", (20, 22), (30, 40), id=1))
    whole = attributed(path, ranges="mpi").trace
    assert whole.ranges.end.tolist() == [40]
    assert "calls of MPI or OpenACC that did not return while nsys recorded: 1" in whole.warnings


def test_of_many_calls_that_never_return_one_is_open(trace: MakeTrace) -> None:
    """A thread is in one call at a time: its last one lasts, so that paths do not become as deep as a file is long."""
    calls = [MpiCall("MPI_Recv", at, None, thread=1 + at % 2) for at in range(200)]
    path = trace(*calls, *launch_kernel("k", (220, 222), (230, 240), id=1))
    lasting = [row[2:4] for row in ranges_of(path, "mpi") if row[3] > row[2]]
    assert lasting == [(198, 240), (199, 240)]
    assert attributed(path, ranges="mpi").parent.max() == -1


def test_constructs_are_named_as_nsys_names_them(trace: MakeTrace) -> None:
    """Name, file and line; a file without its folder where no other is called so; without a file, the function."""
    path = trace(
        Construct("Compute Construct", 0, 9, 118, "/home/user/src/layers.c", "forward", table="LAUNCH"),
        Construct("Enqueue Launch", 1, 2, 118, "/home/user/src/layers.c", "forward"),
        Construct("Wait", 10, 11, 7, "a/main.c"),
        Construct("Wait", 12, 13, 7, "b/main.c"),
        Construct("Enter Data", 14, 15, 30, None, "setup", table="DATA"),
        Construct("Device Init", 16, 17),
    )
    assert [row[0] for row in ranges_of(path, "openacc")] == [
        *("Compute Construct@layers.c:118", "Enqueue Launch@layers.c:118", "Wait@a/main.c:7"),
        *("Wait@b/main.c:7", "Enter Data@setup:30", "Device Init"),
    ]
    assert {row[1:2] + row[4:] for row in ranges_of(path, "openacc")} == {("OpenACC", "openacc")}


def test_a_report_of_windows_has_backslashes(trace: MakeTrace) -> None:
    """Sources are named without their folder there too; in names of ranges, processes and commands they stay."""
    path = trace(
        Process(1, r"C:\Users\someone\python.exe"),
        Construct("Compute Construct", 0, 60, 118, r"C:\src\layers.c"),
        Construct("Wait", 61, 62, 7, r"D:\src/other/main.c"),
        Range(r"load C:\data\x.bin", 70, 100),
        *launch_kernel("copy", (75, 80), (85, 95), id=1),
        capture={"PROCESS_0:COMMAND": r"C:\Users\someone\python.exe", "PROCESS_0:ARGUMENT_0": "train.py"},
        metadata={"EXPORT_PATH": r"C:\reports\run.sqlite"},
    )
    named = [row[0] for row in ranges_of(path, "openacc")]
    assert named == ["Compute Construct@layers.c:118", "Wait@main.c:7"]
    assert owners(path, "nvtx") == [r"load C:\data\x.bin"]
    with nsysprof.open_report(path) as report:
        assert report.about.command == r"'C:\Users\someone\python.exe' train.py"


def test_constructs_and_calls_own_what_is_launched_inside(trace: MakeTrace) -> None:
    """They nest by time with each other and with NVTX, thread by thread; by default only where there is no NVTX."""
    work = (
        Construct("Compute Construct", 10, 30, 5, "a.c"),
        Construct("Enqueue Launch", 12, 20, 5, "a.c", table="LAUNCH"),
        MpiCall("MPI_Sendrecv", 40, 50, table="P2P"),
        *launch_kernel("a_5_gpu", (13, 15), (20, 24), id=1),
        *launch_memcpy((42, 43), (45, 48), id=2),
    )
    construct = "Compute Construct@a.c:5/Enqueue Launch@a.c:5"
    assert owners(trace(*work), "auto") == [construct, "MPI_Sendrecv"]
    assert owners(trace(*work), "mpi") == ["", "MPI_Sendrecv"]
    with_nvtx = trace(*work, Range("step", 0, 100))
    assert owners(with_nvtx, "auto") == ["step", "step"]
    assert owners(with_nvtx, "nvtx,mpi,openacc") == [f"step/{construct}", "step/MPI_Sendrecv"]


def test_tables_without_what_makes_a_range_are_warned_of(trace: MakeTrace) -> None:
    """Rows without threads are no ranges, and a name that is missing does not lose the call."""
    path = trace(
        MpiCall("MPI_Init", 0, 5),
        MpiCall("MPI_Bcast", 6, 8, table="COLLECTIVES"),
        drop_columns={"MPI_OTHER_EVENTS": ["globalTid"], "MPI_COLLECTIVES_EVENTS": ["textId"]},
    )
    with open_report(path) as report:
        found = report.reader.other_ranges(read_tables(report), ["mpi", "openacc"])
    assert [name.text for name in found.names] == ["MPI call"]
    assert found.warnings == ("MPI_OTHER_EVENTS lacks globalTid, so its 1 rows cannot be read and are left out",)
    only = trace(MpiCall("MPI_Init", 0, 5), drop_columns={"MPI_OTHER_EVENTS": ["globalTid"]})
    with open_report(only) as report:
        assert any("MPI_OTHER_EVENTS lacks" in each for each in nsysprof.attribute(report).trace.warnings)


def test_ranges_do_not_depend_on_the_order_of_rows(trace: MakeTrace) -> None:
    """The attribution of calls and constructs is the same whichever row comes first."""
    rows: list[Items] = [
        MpiCall("MPI_Wait", 10, 20, table="START_WAIT"),
        MpiCall("MPI_Barrier", 10, 20, table="COLLECTIVES"),
        MpiCall("MPI_Barrier", 12, 18, table="COLLECTIVES"),
        Construct("Wait", 10, 20, 3, "x/a.c"),
        Construct("Update", 5, 9, 3, "y/a.c"),
        *launch_kernel("k", (13, 14), (15, 16), id=1),
    ]
    columns = []
    for order in (rows, rows[::-1]):
        found = attributed(trace(*order)).trace
        texts = [found.range_names[code].text for code in found.ranges.name.tolist()]
        columns.append((texts, found.ranges.start.tolist(), found.ranges.kind.tolist()))
    assert columns[0] == columns[1]
    assert np.bincount(columns[0][2]).tolist()[2:] == [3, 2]


@pytest.mark.nsys
def test_constructs_are_those_of_nsys_stats(trace: MakeTrace, real_nsys: Nsys) -> None:
    """openacc_sum: how often each construct ran, for how long, and its extremes."""
    rows = [
        Construct(name, at, at + 10 + at % 7, line, file, table=table)
        for at in range(0, 900, 30)
        for name, line, file, table in (
            ("Compute Construct", 118, "layers.c", "LAUNCH"),
            ("Wait", 118, "layers.c", "OTHER"),
            ("Enter Data", 30 + at % 2, "main.c", "DATA"),
            ("Device Init", 0, None, "OTHER"),
        )
    ]
    path = trace(*rows)
    ours: dict[str, list[int]] = {}
    for text, _, start, end, _ in ranges_of(path, "openacc"):
        ours.setdefault(text, []).append(end - start)
    name = "openacc_sum" if real_nsys.version >= (2023,) else "openaccsum"
    assert {text: (str(len(each)), str(sum(each)), str(min(each)), str(max(each))) for text, each in ours.items()} == {
        row["Name"]: tuple(row[column] for column in ("Num Calls", "Total Time (ns)", "Min (ns)", "Max (ns)"))
        for row in stats(real_nsys, path, name)
    }
