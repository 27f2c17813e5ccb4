"""A reader for another profiler is one class and one entry in `READERS`; CONTRIBUTING.md shows this one."""

import csv
import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nsysprof
from nsysprof.core.arena import ColumnArena
from nsysprof.fleet.examine import ReportTask, examine_report
from nsysprof.fleet.inputs import ReportFile, find_reports
from nsysprof.formats.rank_answer import ReportAnswer
from nsysprof.trace.about import About
from nsysprof.trace.details import RangeName  # fmt: skip
from nsysprof.trace.report import READERS
from nsysprof.trace.trace import (
    DEFAULT_DOMAIN,
    KERNEL,
    PUSH_POP,
    Copies,
    Device,
    Launches,
    Ops,
    Progress,
    Ranges,
    Reader,
    Report,
    Stream,
    Trace,
)
from tests.kit.command_line import Run
from tests.kit.reports import attributed

ROOT = Path(__file__).parents[2]
PROCESS = 1 << 24  # a globalPid: the process id times 2^24


class ToyReader(Reader):
    """Reads a CSV of `range,THREAD,NAME,START,END`, `launch,THREAD,ID,START,END` and `kernel,ID,NAME,START,END`."""

    format, recorder = "toy", "the toy profiler"
    endings = (".toy",)

    def __init__(self, path: Path) -> None:
        cells = csv.reader(path.read_text(encoding="utf-8").splitlines())
        rows: list[Any] = [(*row[:3], int(row[3]), int(row[4])) for row in cells]
        rows.sort(key=lambda row: (row[1], row[3], -row[4]))  # by thread and start, the longest first
        self.ranges, self.launches, self.kernels = (
            [row for row in rows if row[0] == kind] for kind in ("range", "launch", "kernel")
        )

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Claim files by their ending; a real reader recognizes a format by its content."""
        return path.suffix in cls.endings

    @classmethod
    def open(cls, path: Path, **options: Path | None) -> Report:
        """Open a trace; `About` describes the machine and the program."""
        return Report(path, path, cls(path), About(command="toy program"))

    def steps(self) -> int:
        """All kernels."""
        return len(self.kernels)

    def trace(self, report: Report, progress: Progress | None, arena: ColumnArena) -> Trace:
        """One process with one GPU and one stream."""
        ranges, launches, kernels = self.ranges, self.launches, self.kernels
        threads = sorted({row[1] for row in (*ranges, *launches)})
        names, ops = (sorted({row[2] for row in rows}) for rows in (ranges, kernels))
        unclosed = moved = np.zeros(len(ranges), np.bool_)
        from_graph = np.zeros(len(kernels), np.bool_)
        return Trace(
            report=report,
            ranges=Ranges(
                codes(ranges, 1, threads), *times(ranges), np.full(len(ranges), PUSH_POP, np.uint8),
                codes(ranges, 2, names), unclosed, moved,
            ),
            launches=Launches(codes(launches, 1, threads), *times(launches), np.full(len(launches), -1)),
            ops=Ops(
                *times(kernels), np.full(len(kernels), KERNEL, np.uint8), codes(kernels, 2, ops),
                np.zeros(len(kernels), np.int32), codes(kernels, 1, [row[2] for row in launches]), from_graph,
            ),
            range_names=[RangeName(name, DEFAULT_DOMAIN) for name in names],
            op_names=ops,
            threads=PROCESS + np.arange(len(threads)),
            thread_process=np.zeros(len(threads), np.int32),
            processes=np.array([PROCESS]),
            devices=[Device(process=0, cuda_id=0, gpu=None)],
            streams=[Stream(device=0, id=7)],
            copies=Copies(np.empty(0, np.int64), *[np.empty(0, np.uint8)] * 3),
            session_end=max(row[4] for row in (*ranges, *launches, *kernels)),
            warnings=(),
        )  # fmt: skip


def times(rows: list[Any]) -> tuple[Any, Any]:
    """The columns of starts and ends."""
    return np.array([row[3] for row in rows]), np.array([row[4] for row in rows])


def codes(rows: list[Any], at: int, known: list[str]) -> Any:
    """A column of names as positions among those that are known."""
    return np.array([known.index(row[at]) for row in rows], np.int32)


TRACE = """\
range,main,train,0,100
range,main,forward,5,40
launch,main,1,10,12
launch,main,2,50,52
launch,helper,3,60,62
kernel,1,ampere_sgemm_128x64_nn,20,60
kernel,2,relu_kernel,70,80
kernel,3,relu_kernel,80,95
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of the toy profiler, while its reader is registered."""
    monkeypatch.setattr("nsysprof.trace.report.READERS", [f"{__name__}:ToyReader", *READERS])
    path = tmp_path / "run.toy"
    path.write_text(TRACE, encoding="utf-8")
    return path


def test_a_toy_trace_is_attributed_and_broken_down(toy: Path) -> None:
    """Work goes to the innermost range of its thread, and that of a helper thread to the range that is open."""
    attribution = attributed(toy)
    breakdown = nsysprof.break_down(attribution)
    busy = dict(zip(breakdown.ranges["path"], breakdown.ranges["busy_ns"], strict=True))
    assert busy == {"train": 65, "train/forward": 40}
    ledger = {row["fate"]: (row["ops"], row["sum_ns"]) for row in breakdown.ledger.to_dict("records")}
    assert {outcome: row for outcome, row in ledger.items() if row[0]} == {"own thread": (2, 50), "followed": (1, 15)}


def test_the_command_line_reads_a_toy_trace(toy: Path, tmp_path: Path, run: Run) -> None:
    """Text, charts, tables and the page come out as for any report; what it does not record is not made up."""
    done = run("analyze", toy, "--full", "--html", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    sentences = " ".join(done.out.split())
    assert "run.toy: report of the toy profiler, version not recorded " in sentences
    assert "nsys" not in done.out.replace("nsysprof", "")
    assert "3 kernels, 0 memory operations: sum 65 ns; the GPU is busy for 87 % of the 75 ns" in sentences
    assert re.search(r"^  forward +1 +1 +1 +35 ns +40 ns +40 ns +62 %", done.out, re.M)
    document = json.loads((tmp_path / "out" / "analysis.json").read_text(encoding="utf-8"))
    assert document["report"]["format"] == "toy"
    assert document["report"]["gpus"] == []
    assert {"timeline.png", "report.html"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_the_other_commands_read_a_toy_trace(toy: Path, tmp_path: Path, run: Run) -> None:
    """A budget, a comparison, an export and the part of a fleet that a worker does need nothing more."""
    assert run("check", "--init", toy).code == 0
    assert run("check", toy, "budget.toml").code == 0
    compared = run("compare", toy, "--base", "train", "--new", "train/forward", "-o", "gap")
    assert (compared.code, compared.err.count("gap.csv")) == (0, 1)
    assert run("export", toy, "--to", "csv", "-o", "tables").code == 0
    table = (tmp_path / "tables" / "ops.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(table.splitlines()))
    assert [(row["path"], row["duration_ns"]) for row in rows] == [
        ("train/forward", "40"),
        ("train", "10"),
        ("train", "15"),
    ]
    assert [each.name for each in find_reports([str(tmp_path)])[0]] == [str(toy)]
    answer = examine_report(ReportTask(ReportFile(str(toy), "")))
    assert isinstance(answer, ReportAnswer), answer


def test_other_files_are_still_read(toy: Path) -> None:
    """A reader takes only what it claims."""
    with nsysprof.open_report(ROOT / "traces" / "two-processes.sqlite") as report:
        assert report.format == "sqlite"


def test_the_guide_shows_this_reader() -> None:
    """The trace and the code of the class in CONTRIBUTING.md are these, the latter in fewer than 60 lines."""
    source = inspect.getsource(ToyReader)
    assert len(source.splitlines()) < 60
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(line in TRACE.splitlines() for line in re.findall(r"^(?:range|launch|kernel),.*", guide, re.M))
    shown = next(block for block in re.findall(r"^```python\n(.*?)^```", guide, re.M | re.S) if "(Reader)" in block)
    at = 0
    for part in re.split(r"^ *\.\.\.\n", shown, flags=re.M):
        found = source.find(part.strip("\n"), at)
        assert found >= 0, part
        at = found + len(part)
