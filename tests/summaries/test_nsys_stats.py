"""Figures that `nsys stats` and `nsys analyze` count too are equal, on shipped reports and a made one.

Those of host calls are compared in `test_calls.py`.
"""

import csv
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution.paths import split_path
from nsysprof.tools.nsys import Nsys, stats
from tests.kit.command_line import quietly, written_rows
from tests.kit.reports import BLOCK, RUN, TWO
from tests.kit.trace import (
    DomainCreate,
    Items,
    Launch,
    OsCall,
    Range,
    launch_kernel,
    launch_memcpy,
    launch_memset,
    write,
)

pytestmark = pytest.mark.nsys

MS = 1_000_000
STUDIES = Path(__file__).parents[2] / "analysis"
SHIPPED = {
    "run": RUN,
    "block": BLOCK,
    "two-processes": TWO,
    "tiled": STUDIES / "tiled-attention" / "tiled.sqlite",
    "rank_0": STUDIES / "two-ranks" / "rank_0.sqlite",
}
# What nsys writes into each export, and asks for: names of directions and of kinds of memory.
_NAMES = [
    "CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER, name TEXT, label TEXT)",
    "INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (1, 'HTOD', 'Host-to-Device'), (2, 'DTOH', 'Device-to-Host')",
    "CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER, name TEXT, label TEXT)",
    "INSERT INTO ENUM_CUDA_MEM_KIND VALUES (0, '', 'Pageable'), (1, '', 'Pinned'), (2, '', 'Device')",
]
_SHORT = {"Host-to-Device": "HtoD", "Device-to-Host": "DtoH", "Device-to-Device": "DtoD"}  # since 2023

Rows = list[dict[str, str]]
Read = Callable[[str], Rows]


def made() -> list[Items]:
    """Two processes with kernels and copies, ranges in two domains, system calls, and a gap of 700 ms."""
    return [
        DomainCreate(1, "lib"),
        Range("step", 0, 90),
        Range("copy", 20, 60, domain=1),
        Range("step", 100, 150, thread=2),
        Range("all", 0, 2 * MS, kind="start_end", range_id=3),
        launch_kernel("solve(float*)", (10, 15), (30, 70), id=1),
        launch_memcpy((25, 30), (80, 200), id=2, bytes=123_456),
        launch_memcpy((40, 45), (210, 250), id=3, bytes=7_000, kind=2),
        launch_memset((110, 112), (260, 270), id=4, thread=2, bytes=4096),
        launch_kernel("solve(float*)", (120, 125), (700 * MS + 270, 700 * MS + 300), id=5, thread=2),
        launch_kernel("other", (10, 15), (31, 40), id=1, process=2, device=1),
        Launch(130, 148, 6, api="cudaDeviceSynchronize_v3020", thread=2),
        OsCall("poll", 5, 9),
        OsCall("poll", 60, 85),
        OsCall("fopen", 200, 260, thread=2),
    ]


@pytest.fixture(scope="module", params=[*SHIPPED, "made"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One report after the other."""
    if request.param in SHIPPED:
        return SHIPPED[request.param]
    return write(tmp_path_factory.mktemp("made") / "made.sqlite", made(), sql=_NAMES)


@pytest.fixture(scope="module")
def read(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Reads a CSV file of the analysis of the report, whose helper threads follow nobody, as with nsys."""
    out = tmp_path_factory.mktemp("analysis") / "out"
    done = quietly("analyze", report, "--no-charts", "--threads", "strict", "-o", out)
    assert done.code == 0, done.err

    return partial(written_rows, out)


def added(rows: Rows, name: str, *columns: str) -> dict[str, list[int]]:
    """The sums of columns by the text of another."""
    out: dict[str, list[int]] = defaultdict(lambda: [0] * len(columns))
    for row in rows:
        out[row[name]] = [total + int(row[column]) for total, column in zip(out[row[name]], columns, strict=True)]
    return dict(out)


def operation(name: str) -> str:
    """`[CUDA memcpy Host-to-Device]` as `memcpy HtoD`."""
    kind, _, direction = name.strip("[]").removeprefix("CUDA ").partition(" ")
    return f"{kind} {_SHORT.get(direction, direction)}".strip()


def figures(rows: Rows, columns: tuple[str, ...]) -> dict[str, list[int]]:
    """Count, sum and extremes by name, whose rows may be several; ``columns`` hold the name and these."""
    out: dict[str, list[int]] = defaultdict(lambda: [0, 0, 1 << 62, 0])
    for row in rows:
        name, count, total, least, most = (row[column] for column in columns)
        each = out[name]
        each[:] = [each[0] + int(count), each[1] + int(total), min(each[2], int(least)), max(each[3], int(most))]
    return dict(out)


_OURS = ("count", "sum_ns", "min_ns", "max_ns")
_THEIRS = ("Total Time (ns)", "Min (ns)", "Max (ns)")


def test_kernels(report: Path, read: Read, real_nsys: Nsys) -> None:
    """cuda_gpu_kern_sum: count, sum and extremes of each kernel; the older gpukernsum has a row for each grid."""
    theirs = stats(real_nsys, report, "gpukernsum" if real_nsys.version < (2023,) else "cuda_gpu_kern_sum")
    ours = [row for row in read("kernels.csv") if row["family"] not in ("memcpy", "memset")]
    assert ours
    assert figures(ours, ("kernel", *_OURS)) == figures(theirs, ("Name", "Instances", *_THEIRS))


def test_copies(report: Path, read: Read, real_nsys: Nsys) -> None:
    """cuda_gpu_mem_time_sum and cuda_gpu_mem_size_sum: count, time and megabytes of each direction and of memsets."""
    ours = added(read("copies.csv"), "operation", "count", "sum_ns", "size_bytes")
    times, sizes = (stats(real_nsys, report, f"cuda_gpu_mem_{what}_sum") for what in ("time", "size"))
    assert ours
    assert {name: row[:2] for name, row in ours.items()} == {
        operation(row["Operation"]): [int(row["Count"]), int(row["Total Time (ns)"])] for row in times
    }
    assert {name: (str(row[0]), f"{row[2] / 1e6:.3f}") for name, row in ours.items()} == {
        operation(row["Operation"]): (row["Count"], row["Total (MB)"]) for row in sizes
    }


def by_name(
    rows: Iterable[dict[str, str]], domains: dict[str, str], length: Callable[[dict[str, str]], int]
) -> dict[tuple[str, str], list[int]]:
    """The lengths of range instances by style and name, which nsys puts behind that of another domain."""
    out: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        name = split_path(row["path"])[-1].replace("\\/", "/")
        domain = domains[row["path"]]
        style = "StartEnd" if row["kind"] == "start_end" else "PushPop"
        out[style, name if domain == "default" else f"{domain}:{name}"].append(length(row))
    return out


def test_ranges(report: Path, read: Read, real_nsys: Nsys) -> None:
    """nvtx_sum and nvtx_pushpop_sum: instances, total, median and extremes of each name on the host."""
    domains = {row["path"]: row["domain"] for row in read("ranges.csv")}
    ours = {
        key: (str(len(each)), str(sum(each)), f"{np.median(each):.1f}", str(min(each)), str(max(each)))
        for key, each in by_name(
            read("instances.csv"), domains, lambda row: int(row["end_ns"]) - int(row["start_ns"])
        ).items()
    }
    columns = ("Instances", "Total Time (ns)", "Med (ns)", "Min (ns)", "Max (ns)")
    assert ours
    assert ours == {
        (row["Style"], row["Range"].removeprefix(":")): tuple(row[name] for name in columns)
        for row in stats(real_nsys, report, "nvtx_sum")
    }
    assert {name: row for (style, name), row in ours.items() if style == "PushPop"} == {
        row["Range"].removeprefix(":"): tuple(row[name] for name in columns)
        for row in stats(real_nsys, report, "nvtx_pushpop_sum")
    }


def test_projected_ranges(report: Path, read: Read, real_nsys: Nsys) -> None:
    """nvtx_gpu_proj_sum: instances with GPU work, and their spans on the GPU, of each name."""
    if real_nsys.version < (2023,):
        pytest.skip("this nsys has no summary of projected ranges")
    domains = {row["path"]: row["domain"] for row in read("ranges.csv")}
    worked = [row for row in read("instances.csv") if int(row["launches"])]
    spans = by_name(worked, domains, lambda row: int(row["span_ns"]))
    launches = by_name(worked, domains, lambda row: int(row["launches"]))
    columns = ("Range Instances", "Total Proj Time (ns)", "Proj Med (ns)", "Proj Max (ns)", "Total GPU Ops")
    assert {
        key: (str(len(each)), str(sum(each)), f"{np.median(each):.1f}", str(max(each)), str(sum(launches[key])))
        for key, each in spans.items()
    } == {
        (row["Style"], row["Range"].removeprefix(":")): tuple(row[name] for name in columns)
        for row in stats(real_nsys, report, "nvtx_gpu_proj_sum")
    }


def test_gaps(report: Path, read: Read, real_nsys: Nsys, tmp_path: Path) -> None:
    """The rule gpu_gaps: start and length of each gap of more than 500 ms, where one process uses a GPU."""
    theirs = rule(real_nsys, report, tmp_path, "gpu_gaps" if real_nsys.version >= (2023,) else "gpu-starv")
    assert [(row["start_ns"], row["length_ns"]) for row in read("gaps.csv")] == [
        (row["Start (ns)"], row["Duration (ns)"]) for row in theirs
    ]


def test_pageable_copies(report: Path, read: Read, real_nsys: Nsys, tmp_path: Path) -> None:
    """The rule cuda_memcpy_async: how many copies of pageable memory are in Async calls, and how long they take."""
    name = "cuda_memcpy_async" if real_nsys.version >= (2023,) else "cuda-async-memcpy"
    joined = rule(real_nsys, report, tmp_path, f"{name}:rows=-1")
    # correlation ids of different processes may be equal, and nsys joins with the calls of each
    theirs = [dict(row) for row in {tuple(row.items()) for row in joined}]
    ours = [row for row in read("copies.csv") if row["blocking"] == "pageable"]
    assert sum(int(row["count"]) for row in ours) == len(theirs)
    assert sum(int(row["sum_ns"]) for row in ours) == sum(int(row["Duration (ns)"]) for row in theirs)


def rule(nsys: Nsys, report: Path, folder: Path, name: str) -> Rows:
    """The rows of a rule of `nsys analyze` on a copy of the report."""
    copy = Path(shutil.copyfile(report, folder / "copy.sqlite"))
    done = subprocess.run(
        [nsys.path, "analyze", "--rule", name, "--format", "csv", copy], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    table = next((at for at, line in enumerate(lines) if "Duration (ns)" in line), len(lines))
    return list(csv.DictReader(line for line in lines[table:] if line))


@pytest.mark.parametrize(("asked", "table"), [("stats", "## Reports"), ("analyze", "## Rules")])
def test_the_manual_has_every_report_and_rule(asked: str, table: str, real_nsys: Nsys) -> None:
    """Each name that this nsys lists is in the table of docs/nsys-stats.md."""
    option = "--help-reports" if asked == "stats" else "--help-rules"
    done = subprocess.run([real_nsys.path, asked, option], capture_output=True, text=True, check=False)
    names = set(re.findall(r"^\s+([a-z][\w-]*)(?:\[:.*)? -- ", done.stdout + done.stderr, re.MULTILINE))
    page = (Path(__file__).parents[2] / "docs" / "nsys-stats.md").read_text(encoding="utf-8")
    section = page[page.index(table) :].split("\n## ", 1)[0]
    assert len(names) >= 7
    assert names - set(re.findall(r"`([\w-]+)`", section)) == set()
