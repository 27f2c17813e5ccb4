"""Files: whole or not there, small ones read with care, and CSV that a spreadsheet may open."""

import csv
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from nsysprof import cli
from nsysprof.analyze import files as analysis_files
from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.files import write_tables
from nsysprof.attribution.attribute import attribute
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.bench.files import check_database_place
from nsysprof.check.baseline import read_analysis
from nsysprof.check.budget import Budget, read_budget
from nsysprof.compare.comparison import compare
from nsysprof.core import files
from nsysprof.core.document import read_if_document
from nsysprof.core.files import give_final_name, make_spreadsheet_safe, undo_spreadsheet_safe
from nsysprof.errors import NsysprofError
from nsysprof.fleet.examine import ReportTask, examine_report
from nsysprof.fleet.inputs import ReportFile, names_in
from nsysprof.formats.counters import METRICS, CounterRow, read_counters, write_counter_csv
from nsysprof.formats.points import read_points
from nsysprof.formats.rank_answer import ReportAnswer, read_answer
from nsysprof.formats.run_record import rank_in_record, read_runs, record_beside
from nsysprof.formats.samples import read_bench_samples
from nsysprof.kernels.rules import load_rules
from nsysprof.results.files import write_csv
from nsysprof.results.folder import ResultFolder
from nsysprof.trace.nsys.sqlite import SqliteSource
from nsysprof.trace.report import open_report, read_tables
from nsysprof.waits.swap import times_by_name
from tests.conftest import MakeTrace
from tests.kit.reports import source_of
from tests.kit.trace import Range, launch_kernel


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_is_there_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Nor is a link to nothing, whether or not the file system has hard links."""

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    part, taken, dead, free = (tmp_path / name for name in ("part", "taken", "dead", "free"))
    part.write_text("new")
    taken.write_text("mine")
    dead.symlink_to("nowhere")
    for final in (taken, dead):
        with pytest.raises(FileExistsError):
            give_final_name(part, final)
    assert taken.read_text() == "mine"
    assert dead.is_symlink()
    give_final_name(part, free)
    assert free.read_text() == "new"


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
    "times": lambda path: times_by_name(cast(Any, None), path),
}


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("name", REFUSING)
def test_what_is_no_small_file_is_refused(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    """Every reader of a file that must be right says at once what it is instead."""
    path = tmp_path / "file.csv"
    make(path)
    with pytest.raises(NsysprofError, match=ODD[make]) as error:
        REFUSING[name](path)
    assert "file.csv" in error.value.message


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
        return "larger than 16 MiB, the limit for files of this kind"
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
def test_a_report_with_an_odd_record_is_read_with_a_warning(trace: MakeTrace, make: Callable[[Path], None]) -> None:
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
def test_a_log_that_is_no_file_is_refused(trace: MakeTrace, ending: str, make: Callable[[Path], None]) -> None:
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
    with pytest.raises(NsysprofError, match=r"-wal, but their size .* exceeds the free space"):
        SqliteSource(report).tables()


def test_the_depth_that_is_meant_is_read() -> None:
    """A hundred levels are read, and one more is not; numbers beside them do not count."""
    fine = "[" * 100 + "1" + "]" * 100
    assert files.parse_json(fine.encode()) == json.loads(fine)
    with pytest.raises(files.TooDeepError):
        files.parse_json(f"[{fine}]".encode())


def test_a_file_of_brackets_alone_is_refused_before_it_is_parsed() -> None:
    """An empty object of two bytes takes 64 in memory: a small file holds a million at most, a larger one more."""
    crowd = b"[" + b"{}," * (1 << 20) + b"{}]"
    with pytest.raises(files.TooDeepError, match="too many brackets"):
        files.parse_json(crowd)
    assert len(files.parse_json(crowd, 2 * files.MAX_BYTES)) == (1 << 20) + 1


FORMULAS = ['=HYPERLINK("http://x","y")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1"]
FINE = ["-17", "+1.5e-07", "-inf", "a=b", "'quoted'", "", 'a,"b"', "a\r=1"]


def rows_of(path: Path) -> list[list[str]]:
    """The cells of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_formulas_are_made_texts_and_all_else_stays(tmp_path: Path) -> None:
    """A quote stands before what begins like a formula, numbers and other texts are as they were, and it reads back."""
    path = tmp_path / "t.csv"
    path.write_text("name,number\n", encoding="utf-8")
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([cell, "-3"] for cell in [*FORMULAS, *FINE])
    make_spreadsheet_safe(path)
    cells = [row[0] for row in rows_of(path)[1:]]
    assert cells == [*(f"'{cell}" for cell in FORMULAS), *FINE]
    assert {row[1] for row in rows_of(path)[1:]} == {"-3"}
    assert [undo_spreadsheet_safe(cell) for cell in cells] == [*FORMULAS, *FINE]


def test_a_kernel_name_may_be_long(tmp_path: Path) -> None:
    """Names longer than what the csv module takes by itself come through."""
    path = tmp_path / "t.csv"
    path.write_text(f"name\n={'x' * 300_000}\n", encoding="utf-8")
    make_spreadsheet_safe(path)
    assert rows_of(path)[1] == [f"'={'x' * 300_000}"]


@pytest.mark.parametrize("rows", [0, 5_000])
def test_an_analysis_that_is_safe_for_spreadsheets_is_a_baseline(
    trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """`check --baseline` knows the calls of a range whose name got a quote, in `ranges.csv` too where it reads that."""
    monkeypatch.setattr(analysis_files, "MAX_ROWS", rows)
    path = trace(*[
        item for at in (0, 1000)
        for item in (Range("=step", at, at + 100), launch_kernel("k", (at + 1, at + 2), (at + 3, at + 9), id=at + 1))
    ])  # fmt: skip
    with open_report(path) as report:
        write_tables(break_down(attribute(read_tables(report)), merge=DEFAULT_MERGE), tmp_path)
    for name in ("instances.csv", "ranges.csv"):
        make_spreadsheet_safe(tmp_path / name)
    assert rows_of(tmp_path / "instances.csv")[1][0] == "'=step"
    found = read_analysis(tmp_path / "analysis.json", Budget(path, (), 0, tuple(DEFAULT_MERGE)))
    assert (found.warnings, found.without_samples) == ((), frozenset())
    assert list(found.samples.keys) == [("=step", "push_pop")]


def test_counters_that_are_safe_for_spreadsheets_are_read(tmp_path: Path) -> None:
    """`compare --counters` finds the range that it was."""
    path = tmp_path / "t.counters.csv"
    row = CounterRow("@step", 0, 7, "k", "4x2x1", "32x1x1", dict.fromkeys(METRICS, 1.0))
    write_counter_csv([row], path)
    make_spreadsheet_safe(path)
    assert rows_of(path)[1][0] == "'@step"
    assert read_counters(path).ranges == ["@step"]


def test_without_the_option_names_are_as_recorded(tmp_path: Path) -> None:
    """What machines read is what was recorded."""
    write_csv(pd.DataFrame({"name": FORMULAS}), tmp_path / "t.csv")
    assert [row[0] for row in rows_of(tmp_path / "t.csv")[1:]] == FORMULAS


@pytest.mark.parametrize("command", [["analyze", "--no-charts"], ["export", "--to", "csv"]])
def test_the_option_is_of_all_tables(
    trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """With it no cell of any table begins like a formula, and all else is as without."""
    path = trace(Range("=a", 0, 100), launch_kernel("@k", (10, 12), (20, 30), id=1))
    for folder, options in (("plain", []), ("safe", ["--spreadsheet-safe"])):
        monkeypatch.setattr(
            "sys.argv", ["nsysprof", command[0], str(path), *command[1:], "-o", str(tmp_path / folder), *options]
        )
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
    tables = sorted(each.name for each in (tmp_path / "plain").glob("*.csv"))
    assert len(tables) >= 3
    cells = 0
    for name in tables:
        plain, safe = (rows_of(tmp_path / folder / name) for folder in ("plain", "safe"))
        assert [[undo_spreadsheet_safe(cell) for cell in row] for row in safe] == plain
        assert not [cell for row in safe for cell in row if cell.startswith(("=", "@"))]
        cells += sum(cell.startswith(("=", "@")) for row in plain for cell in row)
    assert cells > 3
