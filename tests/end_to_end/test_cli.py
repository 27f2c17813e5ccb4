"""The command line as a user meets it: whole output, exit codes, hostile input, and what is left on the disk."""

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import typer

from nsysprof import cli
from nsysprof.analyze import files as analysis_files
from tests.conftest import MakeTrace
from tests.kit.command_line import Done, Run, known_failure
from tests.kit.trace import Gpu, Items, Kernel, Range, ThreadName, launch_kernel, launch_memcpy

ROOT = Path(__file__).parents[2]
SHIPPED, BLOCK = ROOT / "traces" / "run.sqlite", ROOT / "traces" / "block.sqlite"
LATE = 1_000_000
SUMMARIES = [
    "calls.csv",
    "copies.csv",
    "streams.csv",
    "gaps.csv",
    "utilisation.csv",
]  # in the order in which they are written
TABLES = sorted(["analysis.json", "instances.csv", "kernels.csv", "ranges.csv", *SUMMARIES])
CHARTS = ["kernel_breakdown.png", "kernel_counts.png", "timeline.png"]

SMALL = """\
report.sqlite: no step repeats; the GPU computes for 19 % of the 901 ns from first to last GPU operation;
  NVIDIA H200

Top bottlenecks:
1. too little GPU work to optimize: kernels run for 173 ns and all GPU operations for 183 ns of the 1.00 ms
   recorded
   → record several steps with a realistic problem size
   $ nsysprof why report.sqlite

range      instances          median span    GPU busy    of GPU time
-------  -----------  -------------------  ----------  -------------
train              1               298 ns      130 ns           71 %
  step*            2  60 ns (40 ns–80 ns)      120 ns           66 %

GPU op       family      count     sum    of GPU time
-----------  --------  -------  ------  -------------
ampere_gemm  gemm            2  120 ns           66 %
mystery      other           1   49 ns           27 %
memcpy HtoD  memcpy          1   10 ns          5.5 %
orphan       other           1    4 ns          2.2 %

1 note: --full
"""


def shell(line: str, folder: Path, **environment: str) -> Done:
    """Runs a shell line in a folder; `nsysprof` stands for `python -m nsysprof` of this checkout."""
    line = line.replace("nsysprof ", f"{shlex.quote(sys.executable)} -m nsysprof ", 1)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        timeout=120,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8", "replace"))


def small_report() -> list[Items]:
    """Two steps in a range with a copy beside them, a kernel outside, and one without a launch."""
    return [
        Range("train", 0, 400),
        launch_memcpy((2, 4), (12, 22), id=1),
        Range("step 0", 10, 110),
        launch_kernel("ampere_gemm", (20, 25), (100, 140), id=2),
        Range("step 1", 120, 220),
        launch_kernel("ampere_gemm", (130, 135), (230, 310), id=3),
        launch_kernel("mystery", (500, 505), (600, 649), id=4),
        Kernel("orphan", 909, 913, 99),
    ]


@pytest.fixture
def small(trace: MakeTrace) -> Path:
    """The small report, in the folder that `run` works in."""
    capture = {"PROCESS_0:COMMAND": "python3", "PROCESS_0:ARGUMENT_0": "train.py"}
    return trace(*small_report(), duration=LATE, capture=capture)


def digest(path: Path) -> str:
    """A hash of the file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(folder: Path) -> list[str]:
    """Everything below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_whole_output(small: Path, run: Run) -> None:
    """The summary of a small report, to the letter; the results alone are on stdout."""
    done = run("analyze", small.name)
    assert done.out == SMALL
    assert done.err == "\nWritten to report.analysis/: analysis.json, 3 charts, 8 tables\n"
    assert done.code == 0


def test_a_process_of_its_own_prints_the_same(small: Path, tmp_path: Path) -> None:
    """`python -m nsysprof` in a shell gives the same bytes, and files only in the folder it names."""
    before = digest(small)
    done = shell("nsysprof analyze report.sqlite", tmp_path)
    assert (done.code, done.out) == (0, SMALL)
    assert files(tmp_path) == [
        "report.analysis",
        *(f"report.analysis/{name}" for name in sorted([*TABLES, *CHARTS])),
        "report.sqlite",
    ]
    assert digest(small) == before


def test_the_shipped_report(run: Run, tmp_path: Path) -> None:
    """What nsys says of the shipped report (test_real_report.py) stands in the output; the report stays as it is."""
    before, beside = digest(SHIPPED), files(SHIPPED.parent)
    done = run("analyze", SHIPPED, "--no-charts", "--range", "RUN::*", "--full")
    assert done.code == 0
    for line in (
        "7,655 kernels, 701 memory operations: sum 475 ms; the GPU is busy for 22 % of the 2.13 s from the first GPU"
        " op to the last, 9.3 % of the 5.13 s of recording and 94 % of the 286 ms in the chosen ranges",
        f"RUN::math::S4096                    1         800   114 ms   112 ms     24 %{'99 %':>31}",
        "  iter*                            40         800   114 ms   112 ms     24 %  2.84 ms ± <0.1 %         99 %",
        f"RUN::flash::S4096                   1          40  4.72 ms  4.56 ms    1.0 %{'96 %':>31}",
        f"RUN::flash::S1024                   1          80  1.89 ms   660 µs    0.1 %{'35 % *':>31}",
        "own thread           8,356  475 ms    100 %",
        "note: nsys warning: NVTX function nvtxDomainDestroy was called with wrong domain ID argument.",
        "note: shown: ranges that match 'RUN::*', and all ranges inside them (738 of 795); ledger "
        "and totals still cover all ranges",
    ):
        assert f"\n{line}\n" in done.out or line in " ".join(done.out.split())
    assert (digest(SHIPPED), files(SHIPPED.parent)) == (before, beside)
    assert files(tmp_path / "run.analysis") == [name.replace("kernels.csv", "kernels.csv.gz") for name in TABLES]


def test_a_shipped_report_with_unowned_work(run: Run) -> None:
    """Of a training step's rows SQL gives 1,965 ops of 45 names to the autograd thread, which has no range."""
    done = run("analyze", BLOCK, "--no-charts", "--threads", "strict", "--full")
    assert done.code == 0
    for line in (
        "own thread               1,979  30.9 ms     61 %",
        "outside every range      1,965  19.3 ms     39 %",
        "total                    3,944  50.2 ms    100 %",
    ):
        assert f"\n{line}\n" in done.out
    assert "note: GPU ops" not in done.out


def test_every_option_is_in_the_help(run: Run) -> None:
    """`analyze --help-all` lists every option and argument that the command has, with its own words."""
    done = run("analyze", "--help-all")
    command = typer.main.get_command(cli.app)
    parameters = command.commands["analyze"].params  # type: ignore[attr-defined]
    names = [name for one in parameters for name in [*one.opts, *one.secondary_opts] if name.startswith("-")]
    assert {"--output", "-o", "--no-charts", "--range", "--skip", "--merge", "--by", "--verify"} <= set(names)
    for name in names:
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", done.out), name
    for word in ("REPORT", "DIR", "GLOB", " N ", "process|device", "follow|strict", "FILE", "PATH"):
        assert word in done.out
    assert "<path>" not in done.out.split("Options:")[1]
    assert (done.code, done.err) == (0, "")


def test_the_front_door(run: Run) -> None:
    """`--help` names the subcommands, `--version` one line, and no arguments at all show the help."""
    assert "analyze" in run("--help").out
    assert re.fullmatch(r"nsysprof \d+\.\d+\.\d+\S*\n", run("--version").out)
    nothing = run()
    assert nothing.code in (0, 2)  # 0 with an older typer
    assert "Usage:" in nothing.out + nothing.err


@pytest.mark.parametrize("command", [[], *([name] for name in typer.main.get_command(cli.app).commands)])  # type: ignore[attr-defined]
def test_a_help_fits_a_screen(command: list[str], run: Run) -> None:
    """At most 40 lines; what is left out is counted, with the option that lists it."""
    done = run(*command, "--help")
    lines = done.out.splitlines()
    assert (done.code, len(lines) <= 40, max(map(len, lines)) <= 100) == (0, True, True)
    every = run(*command, "--help-all").out if command else done.out
    assert ("--help-all" in done.out) == (len(every.splitlines()) > len(lines))


def test_options_of_the_attention_workloads_come_last(run: Run) -> None:
    """Whoever records a program of his own reads of these first."""
    text = run("capture", "--help-all").out
    assert text.index("--profiler") < text.index("Attention workloads:") < text.index("--head-dim")


def test_a_report_alone_is_analysed(small: Path, run: Run) -> None:
    """The command may be left out."""
    assert run(small.name, "--no-charts").out == run("analyze", small.name, "--no-charts").out == SMALL


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("analyze a.sqlite b.sqlite", "nsysprof compare a.sqlite b.sqlite"),
        ("why a.sqlite b.sqlite c.sqlite", "nsysprof fleet a.sqlite b.sqlite c.sqlite"),
        ("compare a.sqlite b.sqlite c.sqlite", "nsysprof compare a.sqlite b.sqlite --also-new c.sqlite, or nsysprof"),
        ("analyze ?.sqlite", "nsysprof fleet '?.sqlite'"),
        ("analyze a*.sqlite", "nsysprof analyze a.sqlite"),
        ("?.sqlite", "nsysprof fleet '?.sqlite'"),
        ("steps ranks", "nsysprof fleet ranks"),
        ("steps one", "nsysprof steps one/r.sqlite"),
    ],
)
def test_several_reports_name_the_command_that_takes_them(
    arguments: str, hint: str, trace: MakeTrace, run: Run, tmp_path: Path
) -> None:
    """In one line and a hint, as usage: exit code 2."""
    for folder in ("ranks", "one"):
        (tmp_path / folder).mkdir()
    for name in ("a", "b", "c", "ranks/r0", "ranks/r1", "one/r"):
        trace(name=f"{name}.sqlite")
    done = run(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[1].startswith(f"  hint: {hint}")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--by", "core"], "core"),
        (["--threads", "loose"], "loose"),
        (["--top", "0"], "--top"),
        (["--top", "many"], "--top"),
        (["--skip", "-1"], "--skip"),
        (["--skip", "1.5"], "--skip"),
        (["--chart"], "--chart"),
        (["--range"], "--range"),
        (["--merge", "a*", "--no-merge"], "--no-merge"),
        (["another.sqlite"], "another.sqlite"),
    ],
)
def test_wrong_usage(arguments: list[str], word: str, small: Path, run: Run, tmp_path: Path) -> None:
    """A wrong option or word is a usage error that names it: exit code 2, nothing on stdout, nothing written."""
    done = run("analyze", small.name, *arguments)
    assert done.code == 2
    assert done.out == ""
    assert word in done.err
    assert "Error: " in done.err
    assert "Traceback" not in done.err
    assert files(tmp_path) == ["report.sqlite"]


def test_a_report_is_needed(run: Run) -> None:
    """Without a report the usage error says which argument lacks."""
    done = run("analyze")
    assert done.code == 2
    assert "REPORT" in done.err


def make_hostile(kind: str, path: Path) -> None:
    """Something that is no report, under the path of one."""
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "lfs":
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12ab\nsize 2498560\n")
    elif kind == "folder":
        path.mkdir()
    elif kind == "database":
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE users (id, name)")
        connection.close()
    elif kind == "truncated":
        path.write_bytes(SHIPPED.read_bytes()[:1_000_000])
    elif kind == "header only":
        path.write_bytes(SHIPPED.read_bytes()[:4096])
    elif kind == "scrambled":
        content = bytearray(SHIPPED.read_bytes())
        content[4096:300_000] = bytes(byte ^ 0x5A for byte in content[4096:300_000])
        path.write_bytes(content)
    elif kind == "qdstrm":
        path.write_bytes(b"NVIDIA Nsight Systems Stream 2022.4.2.1-df9881f\0" + bytes(500))
    elif kind == "garbage":
        path.write_bytes(bytes(range(256)) * 40)
    elif kind == "text":
        path.write_text("hello\x1b[31m\nworld\n")
    elif kind == "zeros":
        path.write_bytes(bytes(9000))
    elif kind == "sqlite magic":
        path.write_bytes(b"SQLite format 3\0")
    else:
        assert kind == "missing"


HOSTILE = {
    "missing": "no such file",
    "empty": "is empty",
    "lfs": "Git LFS pointer",
    "folder": "a folder",
    "database": "not an export of Nsight Systems|not a report",
    "truncated": "truncated",
    "header only": "truncated",
    "scrambled": "damaged",
    "qdstrm": "2022.4.2",
    "garbage": "not a report",
    "text": "not a report",
    "zeros": "unfinished",
    "sqlite magic": "truncated|damaged|unfinished",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_input(kind: str, run: Run, tmp_path: Path) -> None:
    """Each gets one line that says what it is, a hint, exit code 1; its bytes stay, and nothing is left beside it."""
    path = tmp_path / "input.sqlite"
    make_hostile(kind, path)
    before = digest(path) if path.is_file() else None
    there = files(tmp_path)
    error = known_failure(run("analyze", path.name))
    assert re.search(HOSTILE[kind], error), error
    assert "input.sqlite" in error.splitlines()[0]
    assert "\n  hint: " in error
    assert "\x1b" not in error
    assert files(tmp_path) == there
    assert before is None or digest(path) == before


def test_an_error_is_one_line_whatever_the_path_holds(run: Run) -> None:
    """Escape sequences and line ends in a path are written out, so that the message stays one line."""
    error = known_failure(run("analyze", "no\x1b[31m\nsuch.sqlite"))
    assert r"no\x1b[31m\nsuch.sqlite: no such file" in error


def test_a_file_name_that_is_not_utf8(small: Path, tmp_path: Path) -> None:
    """A report whose name is no UTF-8 is read like any other."""
    try:
        small.rename(tmp_path / "b\udcff.sqlite")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    done = shell(r"nsysprof analyze $'b\xff.sqlite' --no-charts", tmp_path)
    assert done.code == 0, done.err
    assert done.out.startswith(r"b\udcff.sqlite: no step repeats; the GPU computes")
    assert (tmp_path / "b\udcff.analysis" / "analysis.json").is_file()


def test_results_go_where_they_are_sent(small: Path, run: Run, tmp_path: Path) -> None:
    """`-o` takes a folder that is made with those around it; none is made in the current folder then."""
    done = run("analyze", small.name, "--no-charts", "-o", "a/b c")
    assert done.err == "\nWritten to a/b c/: analysis.json, 8 tables\n"
    assert files(tmp_path) == ["a", "a/b c", *(f"a/b c/{name}" for name in TABLES), "report.sqlite"]


@pytest.mark.parametrize(("folder", "report"), [("elsewhere", "../report.sqlite"), ("x", "../x/../report.sqlite")])
def test_the_default_folder_is_in_the_current_one(
    folder: str, report: str, small: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the report lies, nothing is written beside it unless that is where one stands."""
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    assert run("analyze", report, "--no-charts").code == 0
    assert files(tmp_path / folder) == ["report.analysis", *(f"report.analysis/{name}" for name in TABLES)]
    assert not (tmp_path / "report.analysis").exists()


def test_foreign_charts_count_where_charts_are_drawn(small: Path, run: Run, tmp_path: Path) -> None:
    """A picture of somebody else's is in the way of charts, and is left alone without them."""
    folder = tmp_path / "report.analysis"
    folder.mkdir()
    (folder / "timeline.png").write_bytes(b"mine")
    assert "holds timeline.png" in known_failure(run("analyze", small.name))
    assert run("analyze", small.name, "--no-charts").code == 0
    assert (folder / "timeline.png").read_bytes() == b"mine"


def test_a_folder_that_cannot_be_made_still_has_its_answer_printed(small: Path, run: Run, tmp_path: Path) -> None:
    """On stdout, with one line on what was not written; a folder that was asked for is a failure."""
    (tmp_path / "report.analysis").write_text("in the way")
    done = run("analyze", small.name, "--no-charts")
    assert (done.code, done.out) == (0, SMALL)
    assert re.fullmatch(
        r"Not written: cannot write into report.analysis: .*\(choose another folder: -o DIR\)\n", done.err
    )
    assert known_failure(run("analyze", small.name, "-o", "report.analysis"))


def test_the_answer_to_another_question_is_not_replaced_in_silence(small: Path, run: Run) -> None:
    """A second run with other options says what the tables were of; the same question again says nothing.

    All notes take one line, and the blank line is left out: the screen has as many lines as without notes.
    """
    run("analyze", small.name, "--no-charts", "--range", "step*", "--html")
    done = run("analyze", small.name, "--no-charts")
    written, notes = done.err.splitlines()
    assert written.startswith("Written to ")
    replaced = "replaced the answer to another question (select step*): -o DIR keeps both"
    assert notes == f"removed files of an earlier analysis: report.html; {replaced}"
    assert "replaced" not in run("analyze", small.name, "--no-charts").err


def test_another_report_of_that_name_is_no_earlier_result(
    small: Path, trace: MakeTrace, run: Run, tmp_path: Path
) -> None:
    """Reports are often all called report1: one from another folder does not replace the analysis of the first."""
    assert run("analyze", small.name, "--no-charts").code == 0
    (tmp_path / "b").mkdir()
    trace(Range("other", 0, 9), name="b/report.sqlite")
    before = digest(tmp_path / "report.analysis" / "ranges.csv")
    error = known_failure(run("analyze", "b/report.sqlite", "--no-charts"))
    assert "nsysprof analyze b/report.sqlite -o OTHER-DIR" in error
    assert digest(tmp_path / "report.analysis" / "ranges.csv") == before


@pytest.mark.parametrize("charts", ["--charts", "--no-charts"])
def test_a_folder_that_cannot_be_written_to_after_all(charts: str, small: Path, run: Run, tmp_path: Path) -> None:
    """What fails only in the writing, such as a folder of a file's name, is one line too, after the summary."""
    folder = tmp_path / "out"
    name = "timeline.png" if charts == "--charts" else "kernels.csv"
    (folder / name).mkdir(parents=True)
    done = run("analyze", small.name, charts, "--force", "-o", "out")
    assert (done.code, done.out) == (1, SMALL)
    assert done.err.startswith("nsysprof: ")
    assert " out" in done.err
    assert "Traceback" not in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(small: Path, tmp_path: Path) -> None:
    """No space for a file, or behind stdout, is one line on stderr; nothing half-written is in the next one's way."""
    command = "nsysprof analyze report.sqlite --no-charts -o out"
    done = shell(f"ulimit -f 1; {command}", tmp_path)
    assert (done.code, done.out) == (1, SMALL)
    assert done.err.splitlines()[0] == "nsysprof: cannot write out/analysis.json: File too large"
    assert files(tmp_path / "out") == []
    assert shell(command, tmp_path).code == 0
    done = shell("nsysprof analyze report.sqlite --no-charts > /dev/full", tmp_path)
    assert known_failure(done).startswith("nsysprof: cannot write the output: No space left on device\n")


def test_a_failed_answer_leaves_no_folder(small: Path, run: Run, tmp_path: Path) -> None:
    """A glob that matches nothing is a known failure that names ranges there are, and makes no folder."""
    error = known_failure(run("analyze", small.name, "--range", "nope*"))
    assert "no range of report.sqlite matches 'nope*'" in error
    assert "'train'" in error
    assert files(tmp_path) == ["report.sqlite"]


def test_range_keeps_what_lies_in_it(small: Path, run: Run, tmp_path: Path) -> None:
    """`--range` shows the matching rows and their ops, and says so; the ledger stays that of the whole report."""
    out = run("analyze", small.name, "--no-charts", "--range", "step*", "--full").out
    assert "total                        5  183 ns    100 %" in out
    assert (
        "note: shown: ranges that match 'step*', and all ranges inside them (2 of 3); ledger and "
        "totals still cover all ranges"
    ) in " ".join(out.split())
    assert "\n  step*  " not in out
    assert "\ntrain/step*  " in out
    assert "\ntrain  " not in out
    assert [line.split()[0] for line in out.split("\nGPU op  ")[1].splitlines()[2:3]] == ["ampere_gemm"]
    assert "memcpy HtoD" not in out.split("\nGPU op  ")[1].split("\n\n")[0]
    rows = json.loads((tmp_path / "report.analysis" / "analysis.json").read_text())["ranges"]
    assert [row["path"] for row in rows] == ["train/step 0", "train/step 1"]


def test_merge_and_no_merge(small: Path, run: Run) -> None:
    """By default numbered steps are one row; `--no-merge` keeps each, `--merge` says what is merged instead."""
    assert "\n  step*  " in run("analyze", small.name, "--no-charts").out
    apart = run("analyze", small.name, "--no-charts", "--no-merge").out
    assert "\n  step 0  " in apart
    assert "\n  step 1  " in apart
    other = run("analyze", small.name, "--no-charts", "--merge", "tr*", "--merge", "nothing").out
    assert "\ntr*  " in other
    assert "\n  step 0  " in other


def test_skip_leaves_out_and_says_so(small: Path, run: Run) -> None:
    """`--skip 1` drops the first step from the rows, and a warning says how many instances are left out."""
    out = run("analyze", small.name, "--no-charts", "--skip", "1", "--full").out
    assert "note: warm-up instances left out: 1 (--skip 1)\n" in out
    row = next(line for line in out.splitlines() if line.startswith("  step*"))
    assert row.split()[1:4] == ["1", "1", "1"]


def test_top(run: Run, tmp_path: Path) -> None:
    """`--top 1` prints one range with what holds all its work, and the files have all of them."""
    done = run("analyze", SHIPPED, "--no-charts", "--top", "1", "--full")
    table = done.out[done.out.index("\nrange  ") :]
    printed = [line for line in table.splitlines() if line.startswith(("RUN::", "  iter"))]
    assert [line.split()[0] for line in printed] == ["RUN::math::S4096", "iter*"]
    assert "91 more ranges and 59 more GPU ops: --top N, or the files" in " ".join(done.out.split())
    done = run("analyze", SHIPPED, "--no-charts", "--top", "1")
    assert [line.split()[0] for line in done.out.splitlines() if line.startswith("RUN::")][
        -1
    ] == "RUN::math::S4096/iter*"
    assert len((tmp_path / "run.analysis" / "ranges.csv").read_text().splitlines()) == 796


def test_by_splits_the_rows(trace: MakeTrace, run: Run) -> None:
    """`--by process` and `--by device` put the process or the GPU into each row, of one screen and of all."""
    path = trace(
        *[Range("work", 0, 100, process=pid) for pid in (7, 8)],
        launch_kernel("k", (1, 2), (10, 20), id=1, process=7, device=0),
        launch_kernel("k", (1, 2), (10, 40), id=1, process=8, device=1),
        duration=LATE,
    )
    for more in ((), ("--full",)):
        out = run("analyze", path.name, "--no-charts", "--by", "process", *more).out
        rows = [line.split()[:2] for line in out.splitlines() if re.match(r"[78] |k ", line)]
        first = [row[0] for row in rows]
        assert first == ["8", "7", *("7", "8"), "k", "k"]
        assert rows[-2:] == [["k", "8"], ["k", "7"]]
        out = run("analyze", path.name, "--no-charts", "--by", "device", *more).out
        lines = out.split("Streams: ")[0].splitlines()
        parts = [re.split(" {2,}", line)[:2] for line in lines if re.match(r"GPU \d ", line)]
        assert parts[:2] == [["GPU 1", "1"], ["GPU 0", "1"]]
        assert sorted(parts[2:]) == [["GPU 0", "work"], ["GPU 1", "work"]]


def test_by_splits_what_no_range_owns(trace: MakeTrace, run: Run) -> None:
    """Without ranges, the parts and the kernels of each part are the answer; threads show their names."""
    path = trace(
        ThreadName(2, "loader"),
        launch_kernel("k", (1, 2), (10, 20), id=1, stream=7),
        launch_kernel("k", (3, 4), (20, 30), id=2, stream=9),
        launch_kernel("m", (1, 2), (30, 90), id=3, thread=2, stream=9),
        duration=LATE,
    )
    for by, parts in (
        ("thread", ["loader 2 1 1 60 ns 75 %", "thread 1 2 2 20 ns 25 %"]),
        ("stream", ["GPU 0 · stream 9 2 2 70 ns 88 %", "GPU 0 · stream 7 1 1 10 ns 12 %"]),
    ):
        out = run("analyze", path.name, "--no-charts", "--by", by, "--ranges", "nvtx", "-o", by).out
        lines = [" ".join(line.split()) for line in out.splitlines()]
        at = lines.index(f"by {by} GPU ops kernels sum share")
        assert lines[at + 2 : at + 4] == parts
        at = lines.index(f"GPU op {by} family count sum of GPU time")
        assert lines[at + 2].startswith(f"m {parts[0].split(' 1 1 ')[0].split(' 2 2 ')[0]} ")


def test_strict_threads(trace: MakeTrace, run: Run) -> None:
    """`--threads strict` leaves a helper thread's work to nobody, `follow` gives it to the range open elsewhere."""
    path = trace(Range("backward", 0, 100), launch_kernel("k", (10, 11), (20, 30), id=1, thread=2), duration=LATE)
    assert "\nfollowed  " in run("analyze", path.name, "--no-charts", "--full").out
    strict = run("analyze", path.name, "--no-charts", "--full", "--threads", "strict").out
    assert "\nfollowed  " not in strict
    assert "\noutside every range  " in strict


def test_own_rules_come_first(small: Path, run: Run, tmp_path: Path) -> None:
    """`--rules` names a file that is asked before the shipped rules."""
    (tmp_path / "mine.toml").write_text('[[rule]]\nname = "mine"\nmatch = "mystery"\nfamily = "norm"\n')
    out = run("analyze", small.name, "--no-charts", "--rules", "mine.toml").out
    assert re.search(r"\nmystery +norm ", out)


@pytest.mark.parametrize(
    "content",
    [None, "", "not toml [", "[[rule]]\nname = 1\n", "\udcff", '[[rule]]\nname="a"\nmatch="("\nfamily="norm"'],
)
def test_bad_rules(content: str | None, small: Path, run: Run, tmp_path: Path) -> None:
    """A rule file that is missing, empty or wrong is a known failure that names the file, before any work."""
    if content is not None:
        (tmp_path / "bad.toml").write_bytes(content.encode("utf-8", "surrogateescape"))
    there = files(tmp_path)
    done = run("analyze", small.name, "--no-charts", "--rules", "bad.toml")
    if content == "":  # no rules at all are few, but no mistake
        assert done.code in (0, 1)
        return
    assert "bad.toml" in known_failure(done)
    assert files(tmp_path) == there


def test_instances_on_demand(small: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many instances are left out with a note on stderr, `--instances` writes them."""
    monkeypatch.setattr(analysis_files, "MAX_INSTANCES", 2)
    done = run("analyze", small.name, "--no-charts")
    assert done.err == (
        "Written to report.analysis/: analysis.json, 7 tables\n"
        "instances.csv is left out: it would have 3 rows; --instances writes it\n"
    )
    assert "left out" not in run("analyze", small.name, "--no-charts", "--instances").err
    assert len((tmp_path / "report.analysis" / "instances.csv").read_text().splitlines()) == 4


def test_nsys_that_does_not_exist(small: Path, run: Run) -> None:
    """`--verify` with an nsys that is not there fails with one line after the results."""
    done = run("analyze", small.name, "--no-charts", "--verify", "--nsys", "/nowhere/nsys")
    assert (done.code, done.out) == (1, SMALL)
    assert "nsysprof: /nowhere/nsys: not a working nsys" in done.err


def test_reports_with_nothing_in_them(trace: MakeTrace, run: Run, tmp_path: Path) -> None:
    """Without NVTX, without kernels, or with neither: exit code 0, a warning that says what lacks, all files."""
    none: dict[str, list[Items]] = {
        "no.sqlite": [],
        "work.sqlite": [launch_kernel("k", (1, 2), (3, 4), id=1)],
        "nvtx.sqlite": [Range("a", 0, 9)],
    }
    lacks = {"no.sqlite": "no GPU work", "work.sqlite": "no NVTX ranges", "nvtx.sqlite": "no GPU work"}
    for name, items in none.items():
        trace(*items, name=name, duration=LATE)
        done = run("analyze", name)
        assert done.code == 0, done.err
        assert (
            f"note: the report has {lacks[name]}"
            in run("analyze", name, "--full", "--no-charts", "-o", f"{name}.full").out
        )
        lacking = {"copies.csv"} if name == "work.sqlite" else set(SUMMARIES)
        assert files(tmp_path / f"{Path(name).stem}.analysis") == sorted([*(set(TABLES) - lacking), *CHARTS])
    assert "it has no ranges at all" in known_failure(run("analyze", "work.sqlite", "--range", "x", "--no-charts"))


def test_nothing_in_a_report_reaches_the_terminal_raw(trace: MakeTrace, run: Run) -> None:
    """Names with escape sequences and line ends are written out on stdout, and kept as recorded in the files."""
    bad = "a\x1b[2J\x07\nb\tc"
    path = trace(Range(bad, 0, 99), launch_kernel(f"k{bad}", (1, 2), (3, 9), id=1), Gpu(0, bad), duration=LATE)
    done = run("analyze", path.name, "--no-charts")
    assert [line for line in (done.out + done.err).split("\n") if not line.isprintable()] == []
    assert r"a\x1b[2J\x07 b c" in done.out
    rows = json.loads(Path("report.analysis/analysis.json").read_text(encoding="utf-8"))["ranges"]
    assert rows[0]["path"] == bad


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_real_terminal_too(trace: MakeTrace, tmp_path: Path) -> None:
    """A terminal gets the same text: no escape byte of the report's, whatever is stripped for pipes."""
    import pty

    trace(Range("a\x1b[2Jb", 0, 99), launch_kernel("k", (1, 2), (3, 9), id=1), duration=LATE)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "nsysprof", "analyze", "report.sqlite", "--no-charts"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(60) == 0
    assert rb"a\x1b[2Jb" in shown
    assert b"\x1b[2J" not in shown


def test_a_terminal_that_knows_ascii_only(trace: MakeTrace, tmp_path: Path) -> None:
    """What the terminal's encoding lacks becomes question marks, not an error."""
    trace(Range("日本語 🚀", 0, 99), launch_kernel("k", (1, 2), (3, 2009), id=1), Gpu(0, "GPU ±"), duration=LATE)
    done = shell("nsysprof analyze report.sqlite --no-charts", tmp_path, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.code == 0, done.err
    assert "\n??? ?  " in done.out
    assert "2.01 ?s" in done.out
    rows = json.loads((tmp_path / "report.analysis" / "analysis.json").read_text(encoding="utf-8"))["ranges"]
    assert rows[0]["path"] == "日本語 🚀"


def test_a_reader_that_goes_away(small: Path, tmp_path: Path) -> None:
    """`| head -1` is quiet: no traceback, no message, and the files are there."""
    done = shell("nsysprof analyze report.sqlite --no-charts | head -1", tmp_path)
    assert done.out == SMALL.splitlines(keepends=True)[0]
    assert re.fullmatch(r"(\nWritten to report.analysis/: .*\n)?", done.err)


def test_a_reader_that_was_never_there(small: Path, tmp_path: Path) -> None:
    """A pipe that is closed before the summary comes is no error to talk about."""
    done = shell("nsysprof analyze report.sqlite --no-charts | true; echo ${PIPESTATUS[0]}", tmp_path)
    assert done.out in ("1\n", "0\n")
    assert "Traceback" not in done.err
    assert "rror" not in done.err


def test_stdout_can_be_closed(small: Path, tmp_path: Path) -> None:
    """Without any stdout the files are still written."""
    done = shell("nsysprof analyze report.sqlite --no-charts >&-", tmp_path)
    assert (done.code, done.out) == (0, "")
    assert files(tmp_path / "report.analysis") == TABLES


def test_a_full_disk_is_told_without_stdout_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr, although there is nothing to be turned away from the disk."""

    def fail() -> None:
        raise OSError(28, "No space left on device", "/tmp/x")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert capsys.readouterr().err.startswith("nsysprof: cannot write /tmp/x: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_control_c(tmp_path: Path) -> None:
    """An interrupt while nsys exports ends with 130, without a traceback, and without leaving the export behind."""
    started, temporary = tmp_path / "started", tmp_path / "tmp"
    temporary.mkdir()
    nsys = tmp_path / "nsys"
    nsys.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo NVIDIA Nsight Systems version 2099.1.1.1-0v0; exit; fi\n'
        f"echo > {shlex.quote(str(started))}\nexec sleep 60\n"
    )
    nsys.chmod(0o755)
    (tmp_path / "a.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 2025@3@2@474-x\0" + bytes(999))
    process = subprocess.Popen(
        [sys.executable, "-m", "nsysprof", "analyze", "a.nsys-rep", "--nsys", str(nsys)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 30
    while not started.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert files(temporary) == []
    assert not (tmp_path / "a.analysis").exists()


def test_a_parquet_export_and_the_current_folder(
    small: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parquet export is named by its folder, also when it is called `.`, and gives the same summary."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    export = tmp_path / "report_pqtdir"
    export.mkdir()
    with closing(sqlite3.connect(small)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            cursor = connection.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
            columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
            parquet.write_table(pyarrow.table(columns), export / f"{table}.parquet")
    connection.close()
    done = run("analyze", export.name, "--no-charts")
    assert done.out.splitlines()[1:] == SMALL.replace("report.sqlite", export.name).splitlines()[1:]
    assert (tmp_path / "report_pqtdir.analysis").is_dir()
    shutil.rmtree(tmp_path / "report_pqtdir.analysis")
    monkeypatch.chdir(export)
    assert run("analyze", ".", "--no-charts").code == 0
    assert (export / "report_pqtdir.analysis").is_dir()
