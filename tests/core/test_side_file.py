"""Side files: what has the name of a small file and is none is refused in words, by whoever reads it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsysprof.attribution.attribute import attribute
from nsysprof.bench.files import check_database_place
from nsysprof.bench.points import read_points
from nsysprof.bench.samples import read_bench_samples
from nsysprof.check.baseline import read_analysis
from nsysprof.check.budget import Budget, read_budget
from nsysprof.compare.comparison import compare
from nsysprof.core import files
from nsysprof.core.document import read_if_document
from nsysprof.errors import NsysprofError
from nsysprof.fleet.examine import ReportTask, examine_report
from nsysprof.fleet.inputs import ReportFile, names_in
from nsysprof.formats.counters import read_counters
from nsysprof.formats.rank_answer import ReportAnswer, read_answer
from nsysprof.formats.run_record import rank_in_record, read_runs, record_beside
from nsysprof.kernels.rules import load_rules
from nsysprof.results.folder import ResultFolder
from nsysprof.trace.nsys.sqlite import SqliteSource
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit.sources import source_of
from tests.kit.trace import Range, launch_kernel

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")


def endless(path: Path) -> None:
    """A link to what never ends."""
    path.symlink_to("/dev/zero")


def large(path: Path) -> None:
    """More than any such file holds, and nothing on the disk."""
    with path.open("wb") as file:
        file.truncate(files.MAX_TABLE_BYTES + 1)


def nested(path: Path) -> None:
    """Brackets that a parser takes, and that nobody can walk through."""
    path.write_text('{"environment": ' + "[" * 900 + "]" * 900 + "}", encoding="utf-8")


def bottomless(path: Path) -> None:
    """Brackets that no parser takes."""
    path.write_text("[" * 200_000, encoding="utf-8")


ODD: dict[Callable[[Path], None], str] = {
    endless: "not a regular file",
    os.mkfifo: "not a regular file",
    large: "larger than ",
}
DEEP: dict[Callable[[Path], None], str] = dict.fromkeys((nested, bottomless), "nested too deeply")
REFUSING: dict[str, Callable[[Path], object]] = {
    "run record": read_runs,
    "counters": read_counters,
    "samples": read_bench_samples,
    "baseline": lambda path: read_analysis(path, Budget(path, (), 0, ())),
    "budget": read_budget,
    "rules": load_rules,
    "sweep": read_points,
}


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("name", REFUSING)
def test_what_is_no_small_file_is_refused(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    """Every reader of a file that must be right says at once what it is instead."""
    path = tmp_path / "file.json"
    make(path)
    with pytest.raises(NsysprofError, match=ODD[make]) as error:
        REFUSING[name](path)
    assert "file.json" in error.value.message


@pytest.mark.parametrize("make", DEEP)
@pytest.mark.parametrize("name", ["run record", "samples", "baseline"])
def test_json_without_bottom_is_refused(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    """Brackets in brackets are no run record, whether or not the parser gives up on them."""
    path = tmp_path / "file.json"
    make(path)
    with pytest.raises(NsysprofError, match=DEEP[make]):
        REFUSING[name](path)


@pytest.mark.parametrize("make", [*ODD, *DEEP])
def test_what_only_lies_beside_a_report_is_left_out(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """What nobody has named stops nothing; that it is not used is told."""
    path = tmp_path / "rank.json"
    make(path)
    report = tmp_path / "rank.sqlite"
    assert record_beside(report) is None
    assert rank_in_record(path) is None
    assert read_if_document(path) == {}
    assert files.unusable_warning(path) == f"{path} is not used: {side_file_reason(make)}"
    assert read_answer(path) is None


def side_file_reason(make: Callable[[Path], None]) -> str:
    """The words for what was made."""
    if make is large:
        return "larger than 64 MiB, which no such file is"
    return "not a regular file" if make in ODD else "brackets nested too deeply"


def test_json_of_somebody_else_is_no_fault(tmp_path: Path) -> None:
    """nsys exports JSON under the name of the report too, an object on each line: no word about that."""
    path = tmp_path / "report.json"
    assert files.unusable_warning(path) is None
    for text in ('{"a": 1}\n{"b": 2}\n', '{"a": 1}', "7"):
        path.write_text(text, encoding="utf-8")
        assert files.unusable_warning(path) is None


def test_a_file_that_grows_while_it_is_read_is_cut_off(tmp_path: Path) -> None:
    """The size that a file tells is not believed: those of /proc tell none at all."""
    with pytest.raises(OSError, match="larger than 0 MiB"):
        files.read_small(Path("/proc/self/maps"), 100)


def test_a_list_of_names_may_come_through_a_pipe(tmp_path: Path) -> None:
    """What a shell writes `<(find …)` is a pipe, with an end; a list without end is refused."""
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=["/a.sqlite\n/b.sqlite\n"])
    writer.start()
    assert names_in(tmp_path / "pipe") == ["/a.sqlite", "/b.sqlite"]
    writer.join()
    with pytest.raises(NsysprofError, match="cannot read the list of reports: larger than"):
        names_in(Path("/dev/zero"))


def test_a_link_to_a_small_file_is_read(tmp_path: Path) -> None:
    """A link to a regular file is as good as the file."""
    (tmp_path / "there.json").write_text('{"a": [1]}', encoding="utf-8")
    (tmp_path / "here.json").symlink_to("there.json")
    assert files.read_json(tmp_path / "here.json") == {"a": [1]}


def test_a_pipe_among_results_is_somebody_elses(tmp_path: Path) -> None:
    """Looking at what lies where results will go never waits."""
    os.mkfifo(tmp_path / "report.html")
    names = ["analysis.json", "report.html"]
    with pytest.raises(NsysprofError, match=r"holds report\.html, not ours"):
        ResultFolder(tmp_path, "analyze", names, names, lambda path: True, "not ours", "hint").check()
    with pytest.raises(NsysprofError, match="not a regular file"):
        check_database_place(tmp_path / "report.html")


@pytest.mark.parametrize("make", [os.mkfifo, bottomless])
def test_a_report_with_an_odd_record_is_read_with_a_warning(
    trace: MakeTrace, make: Callable[[Path], None]
) -> None:
    """In a comparison and in a fleet the report counts, and the warning names what was left out."""
    report = trace(Range("a", 0, 100), *launch_kernel("k", (10, 20), (30, 40), id=1))
    make(report.with_suffix(".json"))
    warning = f"{report.with_suffix('.json')} is not used: {side_file_reason(make)}"
    attribution = attribute(read_tables(open_report(report)))
    assert warning in compare(attribution, attribution).warnings
    answer = examine_report(ReportTask(ReportFile(str(report), "stamp")))
    assert isinstance(answer, ReportAnswer)
    assert warning in answer.warnings


@pytest.mark.parametrize("make", [endless, os.mkfifo])
@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_a_log_that_is_no_file_is_refused(
    trace: MakeTrace, ending: str, make: Callable[[Path], None]
) -> None:
    """What SQLite would read beside a report must be a file: nothing waits for it, or copies it without end."""
    report = trace(Range("r", 0, 100), *launch_kernel("k", (10, 20), (30, 40), id=1))
    make(Path(f"{report}{ending}"))
    with pytest.raises(NsysprofError, match=f"{ending} beside it: not a regular file"):
        open_report(report)


def test_a_file_that_is_no_log_is_not_copied(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Petabytes of zeros named as a log are nothing to SQLite, and nothing to us."""
    report = trace(Range("r", 0, 100))
    with Path(f"{report}-wal").open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr("shutil.copyfileobj", lambda *_: pytest.fail("copied"))
    assert "NVTX_EVENTS" in source_of(open_report(report)).tables()


def test_a_log_larger_than_the_room_is_refused(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that cannot be copied beside its report is refused before a byte is written."""
    report = trace(Range("r", 0, 100))
    Path(f"{report}-wal").write_bytes(bytes.fromhex("377f0682") + bytes(1 << 16))
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=1 << 16))
    with pytest.raises(NsysprofError, match=r"-wal, and their .* are more than the .* free"):
        SqliteSource(report).tables()


def test_the_depth_that_is_meant_is_read() -> None:
    """A hundred levels are read, and one more is not; numbers beside them do not count."""
    fine = "[" * 100 + "1" + "]" * 100
    assert files.parse_json(fine.encode()) == json.loads(fine)
    with pytest.raises(files.TooDeepError):
        files.parse_json(f"[{fine}]".encode())
