"""The files for machines: CSV and JSON hold what the frames hold, under the names that are an interface."""

import csv
import errno
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nsysprof import __version__
from nsysprof.analyze import files as analysis_files
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.files import write_json, write_tables
from nsysprof.errors import NsysprofError
from nsysprof.formats.answers import ANALYSIS_SCHEMA
from nsysprof.results import files as result_files
from nsysprof.results.files import write_csv, writing
from nsysprof.results.folder import report_folder
from nsysprof.trace.report import open_report
from nsysprof.trace.trace import Report
from tests.conftest import MakeTrace
from tests.kit.command_line import Run, quietly
from tests.kit.reports import RUN, TRACES, broken_down
from tests.kit.trace import Items, Range, launch_graph, launch_kernel, launch_memcpy

FILES = [
    *("ranges.csv", "instances.csv", "kernels.csv", "analysis.json", "calls.csv", "copies.csv"),
    *("streams.csv", "gaps.csv", "utilisation.csv"),
]

# Section 5 of the design: these names in this order, additions only behind them.
RANGES = [
    *("path", "merged_path", "depth", "kind", "domain", "instances", "launches", "kernels", "memops"),
    *("graph_launches", "cpu_ns", "span_ns", "busy_ns", "sum_ns", "exclusive_sum_ns", "followed_sum_ns"),
    *("busy_median_ns", "busy_iqr_ns", "span_median_ns", "span_iqr_ns", "processes", "devices"),
]
INSTANCES = [
    *("path", "merged_path", "instance", "pid", "tid", "kind", "start_ns", "end_ns", "unclosed"),
    *("launches", "kernels", "memops", "first_op_ns", "last_op_ns", "span_ns", "busy_ns", "sum_ns"),
]
KERNELS = [*("path", "kernel", "family", "math_unit", "count", "sum_ns", "median_ns", "min_ns", "max_ns", "cause")]
DOCUMENT = [
    *("schema", "report", "nsysprof", "options", "totals", "unified_memory", "cuda_graphs", "chosen_steps"),
    *("findings", "diagnosis", "not_replayed", "summaries", "ledger", "warnings", "missing", "not_read"),
    *("ranges", "kernels"),
]
TEXTS = {
    *("path", "merged_path", "kind", "domain", "kernel", "family", "math_unit", "cause"),
    *("captured_path", "forward_path"),
    *("grid", "block", "occupancy_limit", "geometry_unknown"),
}
PARTS = {"waves", "tail_idle", "occupancy"}  # the only numbers that are not whole

ODD_NAMES = [
    *('quote " and ""two""', "comma, comma", "new\nline", "lone\rreturn", "both\r\n", "tab\t", "a/b\\c"),
    *("日本語 🚀", "\x1b[31mred\x1b[0m", "NA", "null", "", "  blanks  ", "%s %(x)d {y}", "=1+1"),
    *("'single'", "\u2028line\u0085"),
    "{'shape': [1, 2]} " * 60,
]


def odd_report() -> list[Items]:
    """A range and a kernel for every odd name, and a copy and a graph outside every range."""
    items: list[Items] = []
    for number, name in enumerate(ODD_NAMES):
        at = number * 100
        items.append(Range(name, at, at + 90))
        items.append(launch_kernel(f"k {name}", (at + 1, at + 2), (at + 10, at + 20 + number), id=number + 1))
    items.append(launch_memcpy((5001, 5002), (5003, 5010), id=901))
    items.append(launch_graph((5011, 5012), (5013, 5020), id=902))
    return items


def read_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows as the csv module reads them."""
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file, strict=True)
    return head, rows


def as_text(frame: pd.DataFrame) -> list[list[str]]:
    """The rows of a frame as CSV text."""
    columns = [
        [str(value).removesuffix(".0" if name in PARTS else "") for value in frame[name].tolist()] for name in frame
    ]
    return [list(row) for row in zip(*columns, strict=True)]


@pytest.fixture
def odd(trace: MakeTrace) -> Breakdown:
    """The answer for the odd report."""
    return broken_down(trace(*odd_report(), duration=10_000))


@pytest.mark.parametrize("source", ["shipped", "odd"])
def test_columns_are_the_interface(source: str, tmp_path: Path, trace: MakeTrace) -> None:
    """The columns of the design come first and in its order, and whatever is no text is an integer."""
    path = RUN if source == "shipped" else trace(*odd_report())
    write_tables(broken_down(path), tmp_path, packs=False)
    for name, columns in (("ranges.csv", RANGES), ("instances.csv", INSTANCES), ("kernels.csv", KERNELS)):
        head, rows = read_rows(tmp_path / name)
        assert head[: len(columns)] == columns
        assert len(set(head)) == len(head)
        assert rows
        for place, column in enumerate(head):
            if column not in TEXTS | PARTS:
                assert all(str(int(row[place])) == row[place] for row in rows), (name, column)


def test_kernels_say_their_cause(trace: MakeTrace, tmp_path: Path) -> None:
    """`kernels.csv` and `analysis.json` show convolutions, FFTs, sorts and scans as such, and else the family."""
    causes = {
        "implicit_convolve_sgemm": ("gemm", "convolution"),
        "vector_fft": ("other", "FFT"),
        "DeviceRadixSortOnesweepKernel": ("other", "sort"),
        "DeviceScanKernel": ("reduction", "scan"),
        "volta_dgemm_64x64_nn": ("gemm", "gemm"),
    }
    items = [
        launch_kernel(name, (10 * id, 10 * id + 5), (10 * id, 10 * id + 5), id=id) for id, name in enumerate(causes, 1)
    ]
    write_tables(broken_down(trace(*items)), tmp_path)
    head, rows = read_rows(tmp_path / "kernels.csv")
    found = {row[head.index("kernel")]: (row[head.index("family")], row[head.index("cause")]) for row in rows}
    assert found == causes
    kernels = json.loads((tmp_path / "analysis.json").read_text())["kernels"]
    assert {row["kernel"]: (row["family"], row["cause"]) for row in kernels} == causes


def test_the_csv_module_reads_back_what_the_frames_hold(odd: Breakdown, tmp_path: Path) -> None:
    """Quotes, commas, line ends of all kinds and whole dictionaries in names survive, and no row is added."""
    write_tables(odd, tmp_path)
    for name, frame in (("ranges.csv", odd.ranges), ("kernels.csv", odd.kernels), ("instances.csv", odd.instances)):
        head, rows = read_rows(tmp_path / name)
        assert head == list(frame.columns)
        assert rows == as_text(frame)
    slashed = {name.replace("/", "\\/") for name in ODD_NAMES}
    assert set(odd.ranges["path"]) == slashed


def test_pandas_reads_back_what_the_frames_hold(odd: Breakdown, tmp_path: Path) -> None:
    """`pandas.read_csv` gives the frame back, integers as int64."""
    write_tables(odd, tmp_path)
    for name, frame in (("ranges.csv", odd.ranges), ("kernels.csv", odd.kernels), ("instances.csv", odd.instances)):
        read = pd.read_csv(tmp_path / name, keep_default_na=False, engine="python")
        assert list(read.columns) == list(frame.columns)
        for column in frame.columns.difference([*PARTS, "grid", "block"]):  # a flat grid reads as a number
            assert read[column].tolist() == frame[column].tolist(), (name, column)
            assert (column in TEXTS) or read[column].dtype == np.int64


def test_a_path_that_is_no_text_is_replaced(trace: MakeTrace, tmp_path: Path) -> None:
    """A file name that is not UTF-8 becomes question marks in the document instead of an error."""
    named = trace(*odd_report()).rename(tmp_path / "a\udc80.sqlite")
    write_json(broken_down(named), tmp_path / "analysis.json")
    document = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    assert document["report"]["file"] == str(tmp_path / "a?.sqlite")


def test_rows_are_written_in_parts(odd: Breakdown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows are written at once, the files hold the same rows."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    write_tables(odd, tmp_path / "whole")
    monkeypatch.setattr(result_files, "ROWS_AT_ONCE", 3)
    write_tables(odd, tmp_path / "parts")
    for name in ("ranges.csv", "kernels.csv", "instances.csv", "analysis.json"):
        whole, parts = tmp_path / "whole" / name, tmp_path / "parts" / name
        if name.endswith(".csv"):  # quotes differ: a part with a lone return has more than it must
            assert read_rows(whole) == read_rows(parts)
        else:
            assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.parametrize("source", ["shipped", "odd"])
@pytest.mark.parametrize("by", [None, "process", "device", "thread", "stream"])
def test_json_equals_the_frames_and_the_csv(source: str, by: str | None, tmp_path: Path, trace: MakeTrace) -> None:
    """`analysis.json` parses, names its schema, and its rows are those of the frames and of the CSV files."""
    answer = broken_down(RUN if source == "shipped" else trace(*odd_report()), by=by)
    write_tables(answer, tmp_path, packs=False)
    document = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    assert list(document) == DOCUMENT
    assert document["schema"] == ANALYSIS_SCHEMA == "nsysprof-analysis/1"
    assert document["nsysprof"] == __version__
    assert document["options"] == {
        "threads": "follow",
        "graphs": "launched",
        "ranges": "auto",
        "by": by,
        "select": None,
        "skip": 0,
        "merge": ["iter*", "step*"],
        "calls": ["cuda", "mpi", "os"],
    }
    assert document["totals"] == answer.totals
    assert document["warnings"] == list(answer.warnings)
    for name in ("ranges", "kernels"):
        frame: pd.DataFrame = getattr(answer, name)
        head, rows = read_rows(tmp_path / f"{name}.csv")
        assert [list(row) for row in document[name]] == [head] * len(frame)
        assert document[name] == frame.to_dict("records")
        assert [
            [str(value).removesuffix(".0" if name in PARTS else "") for name, value in row.items()]
            for row in document[name]
        ] == rows


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ({"select": "%s*", "skip": 2}, {"select": "%s*", "skip": 2, "merge": ["iter*", "step*"]}),
        ({"merge": ("k*", "日本*")}, {"select": None, "skip": 0, "merge": ["k*", "日本*"]}),
        ({"merge": None}, {"select": None, "skip": 0, "merge": None}),
        ({"calls": ("os",)}, {"select": None, "skip": 0, "merge": ["iter*", "step*"], "calls": ["os"]}),
        ({"merge": ()}, {"select": None, "skip": 0, "merge": []}),
    ],
)
@pytest.mark.parametrize("threads", ["follow", "strict"])
def test_json_says_what_was_asked(
    threads: str, how: dict[str, Any], options: dict[str, Any], tmp_path: Path, trace: MakeTrace
) -> None:
    """All options that change the numbers stand in the document, so that it can be made again from it."""
    answer = broken_down(trace(*odd_report()), threads, by="process", **how)
    write_json(answer, tmp_path / "analysis.json")
    document = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    assert document["options"] == {
        "threads": threads,
        "graphs": "launched",
        "ranges": "auto",
        "by": "process",
        "calls": ["cuda", "mpi", "os"],
        **options,
    }
    assert "threads" not in document
    assert "by" not in document


def test_the_ledger_adds_up(odd: Breakdown, tmp_path: Path) -> None:
    """The rows of the ledger add up to the totals, and so do all rows of kernels, in ops and in ns."""
    write_tables(odd, tmp_path)
    document = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    ledger, totals = document["ledger"], document["totals"]
    assert list(ledger[0]) == ["fate", "ops", "sum_ns", "share"]
    assert sum(row["ops"] for row in ledger) == totals["ops"] == len(ODD_NAMES) + 2
    assert sum(row["sum_ns"] for row in ledger) == totals["sum_ns"] > 0
    assert sum(row["share"] for row in ledger) == pytest.approx(1)
    assert sum(row["sum_ns"] for row in document["kernels"]) == totals["sum_ns"]
    assert sum(row["count"] for row in document["kernels"]) == totals["ops"]
    unowned = [row for row in document["kernels"] if row["path"] == "" and row["family"] in ("memcpy", "graph")]
    assert sum(row["sum_ns"] for row in unowned) == 7 + 7


def test_the_shipped_report_describes_itself(tmp_path: Path) -> None:
    """What the report says of itself is in the document, under the names of the design."""
    write_json(broken_down(RUN), tmp_path / "analysis.json")
    document = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    report = document["report"]
    assert report["file"] == str(RUN)
    assert report["size_bytes"] == RUN.stat().st_size
    assert report["nsys_version"].startswith("2025.3.2")
    assert report["schema_version"] == "3.20.3"
    assert report["duration_ns"] == 5_127_196_650
    assert [gpu["name"] for gpu in report["gpus"]] == ["NVIDIA H200"]
    assert report["gpus"][0]["bandwidth_bytes_per_s"] == 4_814_304_000_000
    [said] = report["diagnostics"]
    assert (said["severity"], said["count"]) == ("warning", 1)
    assert "nvtxDomainDestroy" in said["text"]
    assert document["totals"]["kernels"] == 7655


def test_an_empty_report_still_gives_all_files(trace: MakeTrace, tmp_path: Path) -> None:
    """Without ranges and ops the files have their headers, the document its empty lists; there are no summaries."""
    out = tmp_path / "out"
    out.mkdir()
    written, notes = write_tables(broken_down(trace()), out)
    assert sorted(path.name for path in written) == sorted(set(FILES) - {*FILES[4:]})
    assert notes == []
    for name, columns in (("ranges.csv", RANGES), ("instances.csv", INSTANCES), ("kernels.csv", KERNELS)):
        head, rows = read_rows(out / name)
        assert head[: len(columns)] == columns
        assert rows == []
    document = json.loads((out / "analysis.json").read_text())
    assert (document["ranges"], document["kernels"]) == ([], [])
    assert document["totals"]["ops"] == 0


def test_too_many_instances_are_left_out(odd: Breakdown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit `instances.csv` is left out with a note, and the option brings it back."""
    monkeypatch.setattr(analysis_files, "MAX_INSTANCES", len(ODD_NAMES))
    written, notes = write_tables(odd, tmp_path)
    assert [path.name for path in written] == FILES
    assert notes == []
    monkeypatch.setattr(analysis_files, "MAX_INSTANCES", len(ODD_NAMES) - 1)
    written, notes = write_tables(odd, tmp_path)
    assert [path.name for path in written] == [name for name in FILES if name != "instances.csv"]
    assert notes == [f"instances.csv is left out: it would have {len(ODD_NAMES)} rows; --instances writes it"]
    written, notes = write_tables(odd, tmp_path, instances=True)
    assert [path.name for path in written] == FILES
    assert notes == []
    assert len(read_rows(tmp_path / "instances.csv")[1]) == len(ODD_NAMES)


def test_long_tables_are_cut_in_the_document_and_whole_beside_it(
    odd: Breakdown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit the document holds the rows with the most time, in their order, and says how many are missing."""
    monkeypatch.setattr(analysis_files, "MAX_ROWS", len(ODD_NAMES))
    _, notes = write_tables(odd, tmp_path)
    whole = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    assert len(whole["ranges"]) == len(ODD_NAMES)
    assert whole["left_out"] == {"kernels": {"rows": 2, "file": "kernels.csv"}}
    assert notes == [f"analysis.json has the top {len(ODD_NAMES)} rows by GPU time; all rows are in kernels.csv"]
    monkeypatch.setattr(analysis_files, "MAX_ROWS", 3)
    _, notes = write_tables(odd, tmp_path)
    cut = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    assert list(cut) == [*DOCUMENT[:-2], "left_out", *DOCUMENT[-2:]]
    assert cut["left_out"]["ranges"] == {"rows": len(ODD_NAMES) - 3, "file": "ranges.csv"}
    assert notes == ["analysis.json has the top 3 rows by GPU time; all rows are in ranges.csv and kernels.csv"]
    for name, frame in (("ranges", odd.ranges), ("kernels", odd.kernels)):
        longest = frame.sort_values("sum_ns", ascending=False, kind="stable").index[:3]
        assert cut[name] == frame.loc[sorted(longest)].to_dict("records")
        assert len(read_rows(tmp_path / f"{name}.csv")[1]) == len(frame)


def test_the_limits_of_rows_are_those_of_the_readme() -> None:
    """100,000 instances are written unasked, and 5,000 rows of a table into the document."""
    assert analysis_files.MAX_INSTANCES == 100_000
    assert analysis_files.MAX_ROWS == 5_000


def checked(folder: Path, report: Report, *, force: bool = False) -> bool:
    names = ("analysis.json", *FILES)
    return report_folder(
        folder, "analyze", report, ANALYSIS_SCHEMA, "analysis", possible=names, wanted=FILES, force=force
    ).check()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_file_that_cannot_be_finished_is_not_there(
    odd: Breakdown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """A full disk or an interrupt in the midst of a file leaves nothing of it; what was there before stays."""
    encoded = result_files._encoded

    def stopping(*arguments: Any) -> Iterator[tuple[list[str], list[list[Any]]]]:
        yield from encoded(*arguments)
        raise error

    monkeypatch.setattr(result_files, "_encoded", stopping)
    folder = tmp_path / "out"
    folder.mkdir()
    files: dict[str, Callable[[Path], object]] = {
        "analysis.json": partial(write_json, odd),
        "ranges.csv": partial(write_csv, odd.ranges),
    }
    for before in ("", "before"):
        for name, write in files.items():
            if before:
                (folder / name).write_text(before)
            with pytest.raises(type(error)):
                write(folder / name)
            assert {path.read_text() for path in folder.iterdir()} == ({before} if before else set())


def test_a_stopped_run_is_recognized_as_ours(odd: Breakdown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever interrupts the writing of a large table can run the same command again without --force."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(analysis_files, "write_csv", stop)
    with pytest.raises(KeyboardInterrupt):
        write_tables(odd, tmp_path)
    assert checked(tmp_path, odd.attribution.trace.report)


def test_whose_folder_it_is(trace: MakeTrace, tmp_path: Path) -> None:
    """A folder is ours when its document is of the same file or of a copy, not when names merely resemble."""
    first, other = trace(*odd_report(), name="data.sqlite"), trace(name="a.sqlite")
    (tmp_path / "elsewhere").mkdir()
    namesake = trace(Range("x", 0, 1), name="elsewhere/data.sqlite")
    copy = tmp_path / "copy" / "data.sqlite"
    copy.parent.mkdir()
    copy.write_bytes(first.read_bytes())
    out = tmp_path / "out"
    out.mkdir()
    write_tables(broken_down(first), out)
    for path, ours in ((first, True), (copy, True), (other, False), (namesake, False)):
        with open_report(path) as report:
            if ours:
                assert checked(out, report)
                continue
            with pytest.raises(NsysprofError, match="not written by an analysis of") as caught:
                checked(out, report)
            assert "--force" in str(caught.value.hint)
            assert not checked(out, report, force=True)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "nsysprof-analysis/1"}', "\0\0", '"file": {'])
def test_a_foreign_document_is_not_ours(trace: MakeTrace, tmp_path: Path, content: str) -> None:
    """Whatever lies there as `analysis.json`, it is refused and not a crash."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "analysis.json").write_text(content)
    with open_report(trace()) as report, pytest.raises(NsysprofError, match=r"holds analysis\.json"):
        checked(folder, report)


def test_checking_makes_nothing(trace: MakeTrace, tmp_path: Path) -> None:
    """A folder that is not there yet is fine and is not made: the answer may still fail."""
    with open_report(trace()) as report:
        assert not checked(tmp_path / "a" / "b", report)
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_way_is_named(trace: MakeTrace, tmp_path: Path) -> None:
    """A file where the folder, or a folder around it, should be is an error with an advice."""
    with open_report(trace()) as report:
        for folder in (report.path, report.path / "below"):
            with pytest.raises(
                NsysprofError, match=f"cannot write into .*{report.path.name} is not a folder"
            ) as caught:
                checked(folder, report, force=True)
            assert caught.value.hint == "choose another folder: -o DIR"


def test_a_failure_to_write_is_known(tmp_path: Path) -> None:
    """A full disk and a file that cannot be opened become errors that name the place."""
    with pytest.raises(NsysprofError, match=f"cannot write into {tmp_path}: No space left"), writing(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(NsysprofError, match=r"cannot write .*/none/x: No such file"), writing(tmp_path):
        (tmp_path / "none" / "x").write_text("")


def test_large_tables_are_compressed(tmp_path: Path) -> None:
    """The largest, until the results fit the report; with the same rows, and fewer of them in the document."""
    answer = broken_down(RUN)
    written, notes = write_tables(answer, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert sorted(path.name for path in written) == names
    assert [name for name in names if name.endswith(".gz")] == ["instances.csv.gz", "kernels.csv.gz"]
    assert "kernels.csv" not in names
    assert notes == []  # the names of files tell it, and the document
    assert pd.read_csv(tmp_path / "kernels.csv.gz")["sum_ns"].sum() == answer.kernels["sum_ns"].sum()
    document = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    rows, left_out = len(document["kernels"]), document["left_out"]["kernels"]
    assert 20 <= rows < len(answer.kernels)
    assert left_out == {"rows": len(answer.kernels) - rows, "file": "kernels.csv.gz"}
    assert document["ranges"] == answer.ranges.loc[answer.ranges["sum_ns"].nlargest(rows).sort_index().index].to_dict(
        "records"
    )
    write_tables(answer, tmp_path, packs=False)
    assert len(read_rows(tmp_path / "kernels.csv")[1]) == len(answer.kernels)


@pytest.mark.parametrize(("name", "least"), [("run", 0), ("block", 0), ("two-processes", 200_000)])
def test_results_are_a_third_of_the_report(name: str, least: int, tmp_path: Path, run: Run) -> None:
    """All files of a plain `analyze`, with its charts, unless these alone take more of a small report."""
    report = TRACES / f"{name}.sqlite"
    assert run("analyze", report, "-o", "out").code == 0
    written = sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    assert written <= max(report.stat().st_size / 3, least)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kernels.csv.gz").write_text("by hand")
    assert "mine holds kernels.csv.gz, not written by an analysis" in run("analyze", report, "-o", "mine").err
    assert (tmp_path / "mine" / "kernels.csv.gz").read_text() == "by hand"


def test_no_table_of_another_report_stays_beside_a_new_one(tmp_path: Path, run: Run) -> None:
    """Compressed tables of one report go where ``--force`` puts plain ones of another in their place."""
    assert run("analyze", RUN, "--no-charts", "-o", "out").code == 0
    assert (tmp_path / "out" / "kernels.csv.gz").exists()
    done = run("analyze", TRACES / "block.sqlite", "--no-charts", "--spreadsheet-safe", "-o", "out", "--force")
    assert "removed files of an earlier analysis: " in done.err
    assert not [*(tmp_path / "out").glob("*.gz")]


def test_instances_are_left_out_last(trace: MakeTrace, tmp_path: Path, run: Run) -> None:
    """Of ranges that all have names of their own: their tables stay large though compressed; the option keeps both."""
    names = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(6_000)]
    report = trace(*(Range(name, 10 * number, 10 * number + 9) for number, name in enumerate(names)))
    done = run("analyze", report, "--no-charts", "-o", "out")
    assert "instances.csv is left out: it would have 6,000 rows; --instances writes it\n" in done.err
    assert not [*(tmp_path / "out").glob("instances.csv*")]
    assert len(pd.read_csv(tmp_path / "out" / "ranges.csv.gz")) == 6_000
    assert "left out: it" not in run("analyze", report, "--no-charts", "--instances", "-o", "out").err
    assert len(pd.read_csv(tmp_path / "out" / "instances.csv.gz")) == 6_000


@pytest.mark.parametrize("report", ["block.sqlite", "two-processes.sqlite"])
def test_what_is_made_side_by_side_is_the_same(report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text and files of a report to the byte, whether one, two or four processes read, attribute and answer."""
    made: list[tuple[str, dict[str, bytes]]] = []
    for cores in (1, 2, 4):
        for least in ("trace.trace.MIN_ROWS", "trace.nsys.build._MIN_BYTES_APART"):
            monkeypatch.setattr(f"nsysprof.{least}", 0)
        monkeypatch.setattr("nsysprof.attribution.attribute._MIN_LAUNCHES_FOR_THREADS", 0)
        monkeypatch.setattr("nsysprof.core.parallel.MIN_ROWS", 2)
        monkeypatch.setattr("nsysprof.results.files._ROWS_APART", 3)
        for room in ("core.parallel", "trace.trace", "trace.nsys.build"):
            monkeypatch.setattr(f"nsysprof.{room}.cores", lambda cores=cores: cores)
        monkeypatch.setattr("nsysprof.core.parallel._may_fork", lambda: hasattr(os, "memfd_create"))
        done = quietly("analyze", TRACES / report, "--no-charts", "-o", tmp_path / "out", "--force")
        made.append((done.out, {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}))
    assert made[0] == made[1] == made[2]
    assert "analysis.json" in made[0][1]


def test_a_killed_process_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system runs out of memory: a message, and no answer."""
    if not hasattr(os, "memfd_create"):
        pytest.skip("work is shared by threads here")
    begun, begin = os.pipe()

    def dies(*_: object) -> None:
        os.write(begin, b"!")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("nsysprof.trace.trace.MIN_ROWS", 0)
    monkeypatch.setattr("nsysprof.core.parallel.cores", lambda: 16)
    monkeypatch.setattr("nsysprof.core.parallel._may_fork", lambda: True)
    monkeypatch.setattr(Breakdown, "_made", dies)
    monkeypatch.setattr(sys.modules[Breakdown.__module__], "diagnose", lambda case: os.read(begun, 1))
    done = run("analyze", TRACES / "block.sqlite", "--no-charts", "-o", "out")
    assert done.code == 1
    assert "a worker process was killed" in done.err
    os.close(begin)
    os.close(begun)
