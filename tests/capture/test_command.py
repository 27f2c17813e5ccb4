"""`nsysprof capture` with an nsys that only plays its part: every way to fail, and what is left on the disk."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nsysprof.capture import session
from nsysprof.capture.compose import Request, metrics_options
from nsysprof.capture.outputs import Outputs
from nsysprof.capture.session import capture_program
from nsysprof.tools.nsys import Nsys, find_nsys
from tests.capture.conftest import Capture, Captured
from tests.conftest import MakeTrace
from tests.kit import fake_nsys
from tests.kit.command_line import Done, runner
from tests.kit.trace import Diagnostic, Mark, Range, launch_kernel

HELLO = [sys.executable, "-c", "print('hello from the program')"]
RESULTS = [".json", ".nsys-rep", ".sqlite"]


def seen(environment: dict[str, str]) -> list[str]:
    """The options that nsys was given."""
    return Path(environment["FAKE_NSYS_SEEN"]).read_text().splitlines()


def test_a_program_is_captured_with_its_record_and_the_next_command(
    capture: Capture, environment: dict[str, str]
) -> None:
    """Report, export and record get their names; stdout has what ran and, last, the command to go on with."""
    done = capture("-o", "run", "--", *HELLO)
    assert done.code == 0, done.err
    assert done.files == ["run.json", "run.nsys-rep", "run.sqlite"]
    assert done.out.splitlines()[-1] == "   $ nsysprof analyze traces/run.sqlite"
    assert "RUN::flash::S64" in done.out
    assert "hello from the program" in done.err
    assert seen(environment)[:4] == [
        *("--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node")
    ]
    record = done.record("run")
    assert record["schema"] == "nsysprof-run/1"
    assert record["program"] == f"{Path(sys.executable).name} [2 arguments]"
    assert record["backends"][0]["requested"] == record["backends"][0]["observed"] == "flash"
    assert record["environment"]["nsys"] == fake_nsys.VERSION
    assert len(record["environment_hash"]) == 16
    assert record["overhead"] is record["workload"] is None


def test_another_backend_than_asked_for_is_exit_code_3(
    capture: Capture, environment: dict[str, str], trace: MakeTrace
) -> None:
    """The report is kept, one line says what ran instead."""
    kernel = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6"
    environment["FAKE_NSYS_SQLITE"] = str(
        trace(Range("RUN::flash::S64", 0, 100), launch_kernel(kernel, (10, 20), (30, 60), id=1))
    )
    done = capture("-o", "run", "--", *HELLO)
    assert done.code == 3
    assert "requested flash, ran cudnn" in done.err
    assert done.files == ["run.json", "run.nsys-rep", "run.sqlite"]
    assert done.record("run")["backends"][0]["agrees"] is False


@pytest.mark.parametrize("keep", [False, True])
def test_arguments_of_the_program_are_kept_only_with_the_environment(
    capture: Capture,
    environment: dict[str, str],
    trace: MakeTrace,
    keep: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither record nor page, which are passed on, tell a password that stood on the command line."""
    argument = "--password=hunter2"
    report = trace(
        Range("step", 0, 9),
        capture={"PROCESS_0:COMMAND": "/bin/train", "PROCESS_0:ARGUMENT_0": argument},
        name="secret.sqlite",
    )
    environment["FAKE_NSYS_SQLITE"] = str(report)
    kept = ["--keep-environment"] if keep else []
    done = capture("-o", "run", "--nsys-arg=--env-var=TOKEN=hunter2", *kept, "--", *HELLO, argument)
    assert done.code == 0, done.err
    record = done.record("run")
    for name in ("command", "program", "nsys_command"):
        assert ("hunter2" in record[name]) == keep, record[name]
        assert ("[3 arguments]" in record[name]) != keep
    analyze = runner(done.folder, capsys, monkeypatch, "analyze")
    for path in (done.folder / "traces" / "run.sqlite", report):
        folder = done.folder / f"{path.stem}.analysis"
        assert analyze(path, "--html", "--no-charts", "-o", folder).code == 0
        page = (folder / "report.html").read_text()
        assert ("hunter2" in page) == (keep and path != report), path


STARTED = ["NVTX profiling started"]
REFUSED = "NVTX binary payload extension is incompatible. Provided compatibility ID 260 != 259."


@pytest.mark.parametrize(
    ("strings", "items", "code", "said"),
    [
        ([*STARTED, REFUSED], [], 3, f'this nsys is too old for the NVTX version of the program: "{REFUSED}"'),
        (STARTED, [Diagnostic(REFUSED)], 3, "pip install 'nvtx<0.2.12'"),
        ([*STARTED, "NVTX injection initialized successfully."], [Mark("m", 1)], 3, "opens no range"),
        (STARTED, [], 3, "nsys recorded no NVTX calls in the program"),
        ([*STARTED, REFUSED], [Range("step", 0, 9)], 0, ""),
        ([], [], 0, ""),
    ],
    ids=["refused", "refused, in a newer report", "marks alone", "no NVTX", "ranges", "NVTX not traced"],
)
def test_a_capture_without_ranges_says_why(
    capture: Capture,
    environment: dict[str, str],
    trace: MakeTrace,
    strings: list[str],
    items: Any,
    code: int,
    said: str,
) -> None:
    """In nsys's words, with what helps, and exit code 3; the files are there all the same."""
    report = trace(*items, strings=strings, name="none.sqlite")
    environment["FAKE_NSYS_SQLITE"] = str(report)
    done = capture("-o", "run", "--", *HELLO)
    assert (done.code, done.files) == (code, ["run.json", "run.nsys-rep", "run.sqlite"]), done.err
    assert said in done.err
    assert ("no ranges: " in done.err) == bool(code)


def test_nothing_is_overwritten_unasked(capture: Capture, tmp_path: Path) -> None:
    """A taken name is refused before anything runs, whichever of the three files has it; --force replaces."""
    for ending in RESULTS:
        taken = tmp_path / "traces" / f"run{ending}"
        taken.parent.mkdir(exist_ok=True)
        taken.write_text("mine")
        done = capture("-o", "run", "--", *HELLO)
        assert done.code == 1
        assert f"traces/run{ending}: exists already" in done.err
        assert "hello" not in done.err
        assert taken.read_text() == "mine"
        if ending != RESULTS[-1]:
            taken.unlink()
    done = capture("-o", "run", "--force", "--", *HELLO)
    assert done.code == 0
    assert done.files == ["run.json", "run.nsys-rep", "run.sqlite"]


def test_a_name_that_is_taken_during_the_capture_is_not_overwritten(capture: Capture, tmp_path: Path) -> None:
    """The program itself writes the file: it stays, and the report is kept under another name."""
    code = "open('traces/run.sqlite', 'w').write('mine')"
    done = capture("-o", "run", "--", sys.executable, "-c", code)
    assert done.code == 1
    assert (tmp_path / "traces" / "run.sqlite").read_text() == "mine"
    assert done.files == ["run.partial.log", "run.partial.nsys-rep", "run.partial.run.json", "run.sqlite"]


@pytest.mark.parametrize(
    ("program", "code"), [("raise SystemExit(42)", 42), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code_of_the_program_is_passed_on(capture: Capture, program: str, code: int) -> None:
    """A program that fails or is killed leaves nothing under the final names; log, report and record are kept apart."""
    done = capture(
        "-o", "run", "--", sys.executable, "-c", f"print('so far'); import sys; sys.stdout.flush(); {program}"
    )
    assert done.code == code
    assert done.files == ["run.partial.log", "run.partial.nsys-rep", "run.partial.run.json"]
    assert f"failed with exit code {code}" in done.err
    assert "so far" in (done.folder / "traces" / "run.partial.log").read_text()
    capture("-o", "run", "--", sys.executable, "-c", program)
    assert "run.partial-2.log" in done.files
    resumed = capture("--resume", "traces/run.partial.nsys-rep")
    assert resumed.code == 0, resumed.err
    assert f"the program ended with exit code {code}: the recording may be incomplete" in resumed.out
    record = resumed.record("run")
    assert record["exit_code"] == code
    assert record["program"].endswith(" [2 arguments]")
    assert record["environment"]["nsys"] == fake_nsys.VERSION
    assert record["wall_ns"] > 0


FAULTS = {
    "refuses": ("left no report (exit code 1): Illegal --trace argument 'bogus'", ["run.partial.log"]),
    "nothing": ("left no report", ["run.partial.log"]),
    "full": ("No space left on device", ["run.partial.log"]),
    "truncated": ("truncated", ["run.partial.log", "run.partial.nsys-rep", "run.partial.run.json"]),
    "export": ("disk is full", ["run.partial.log", "run.partial.nsys-rep", "run.partial.run.json"]),
    "too big": ("a text of more than 1 GB", ["run.partial.log", "run.partial.nsys-rep", "run.partial.run.json"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_nsys_does_nothing_half_written_gets_a_final_name(capture: Capture, fault: str) -> None:
    """One line says what went wrong; the log is kept, and the report where there is one."""
    said, left = FAULTS[fault]
    done = capture("-o", "run", "--", *HELLO, fault=fault)
    assert done.code == 1
    assert said in done.err.splitlines()[-2]
    assert done.files == left
    assert done.out == ""


def test_what_cannot_be_exported_is_not_to_be_resumed(capture: Capture) -> None:
    """What the program printed is too long a text for SQLite, now and for ever: the hint names ways that work."""
    done = capture("-o", "run", "--", *HELLO, fault="too big")
    hint = done.err.splitlines()[-1]
    assert "--resume" not in hint
    assert (
        "export --type parquetdir traces/run.partial.nsys-rep; next time, send the program's output to a file" in hint
    )
    assert "kept: traces/run.partial.nsys-rep" in hint
    again = capture("--resume", "traces/run.partial.nsys-rep", fault="too big")
    assert again.code == 1
    assert "--resume" not in again.err


def test_a_program_that_prints_too_much_is_warned_of_while_it_runs(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, before its report is more than can be exported."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(session, "_MAX_PRINTED", 1000)
    heard: list[str] = []
    program = (sys.executable, "-c", "for _ in range(100): print('x' * 99, flush=True)")
    capture_program(Request(program, find_nsys()), tmp_path, Outputs(tmp_path, "run"), [], heard.append)
    said = "".join(heard)
    assert said.count("warning: the program has printed ") == 1
    assert said.count("x" * 99) == 100


def test_a_stream_without_a_report_is_imported(capture: Capture) -> None:
    """Where nsys left a .qdstrm only, its importer is found and run, and the record says so."""
    done = capture("-o", "run", "--", *HELLO, fault="stream")
    assert done.code == 0, done.err
    assert done.files == ["run.json", "run.nsys-rep", "run.sqlite"]
    assert done.record("run")["rescued"] is True


def test_a_stream_whose_importer_cannot_start_is_kept_and_resumed(capture: Capture) -> None:
    """The missing library is named with its package; the command of the hint finishes the capture, record included."""
    done = capture("-o", "run", "--", *HELLO, fault="no importer")
    assert done.code == 1
    assert "libdw.so.1 is missing" in done.err
    assert "apt-get install libdw1" in done.err
    assert done.files == ["run.partial.log", "run.partial.qdstrm", "run.partial.run.json"]
    assert done.err.splitlines()[-1].endswith("nsysprof capture --resume traces/run.partial.qdstrm")
    done = capture("--resume", "traces/run.partial.qdstrm")
    assert done.code == 0, done.err
    assert done.files == [
        *("run.json", "run.nsys-rep", "run.partial.log", "run.partial.qdstrm"),
        *("run.partial.run.json", "run.sqlite"),
    ]
    assert done.record("run")["program"].endswith(" [2 arguments]")
    assert capture("--resume", "traces/run.partial.qdstrm").code == 1


def test_a_stream_alone_is_resumed_too(capture: Capture, tmp_path: Path) -> None:
    """Any .qdstrm of an installed nsys can be finished, without a record or with a damaged one; what is none is not."""
    stream = tmp_path / "anybody's.qdstrm"
    stream.write_text(f"NVIDIA Nsight Systems Stream {fake_nsys.VERSION}!")
    stream.with_suffix(".run.json").write_text('{"schema": "nsysprof-run/1", "overhead": 5, "program"')
    done = capture("--resume", str(stream), "-o", "mine")
    assert done.code == 0, done.err
    assert "left no run record" in done.err
    assert done.record("mine")["workload"] is done.record("mine")["program"] is None
    stream.write_text("NVIDIA Nsight Systems Stream 2021.1.1.66-abc!")
    assert "recorded by nsys 2021.1.1.66-abc, which is not installed here" in capture("--resume", str(stream)).err
    stream.write_text("text")
    assert "not an nsys stream" in capture("--resume", str(stream)).err
    assert "No such file" in capture("--resume", "missing.qdstrm").err


def test_one_of_several_reports_is_resumed_under_a_name_of_its_own(capture: Capture, tmp_path: Path) -> None:
    """Neither the recording nor what was made of another one is in its way; nobody is told to remove a recording."""
    for name in ("r.partial.1", "r.partial-2.2", "any"):
        (tmp_path / f"{name}.nsys-rep").write_text(name)
    assert capture("--resume", "r.partial.1.nsys-rep").code == 0
    assert capture("--resume", "r.partial-2.2.nsys-rep").code == 0
    assert [(tmp_path / f"r.{number}.sqlite").exists() for number in (1, 2)] == [True, True]
    for more in ([], ["--force"], ["-o", "./any"]):
        done = capture("--resume", "any.nsys-rep", *more)
        assert done.code == 1
        assert done.err == (
            "nsysprof: any.nsys-rep: the results would replace this file\n  hint: -o NAME for another name\n"
        )
    assert capture("--resume", "any.nsys-rep", "-o", "./other").code == 0


def test_memory_is_recorded_where_it_is_asked_for(capture: Capture) -> None:
    """nsys is asked for it, beside what else it is."""
    printed = capture("--dry-run", "--memory", "--nsys-arg=--sample=cpu", "--", "true").out
    assert "--cuda-memory-usage=true --sample=cpu --output=" in printed


def test_gpu_metrics_are_sampled_where_they_are_asked_for(capture: Capture) -> None:
    """All GPUs, at the frequency; without permission the error says what is missing, and how to get it."""
    printed = capture("--dry-run", "--gpu-metrics", "20000", "--", "true").out
    assert "--gpu-metrics-devices=all --gpu-metrics-frequency=20000 --output=" in printed
    old = metrics_options(Nsys(Path("nsys"), (2023, 4, 4), "2023.4.4"), 10_000)
    assert old == ("--gpu-metrics-device=all", "--gpu-metrics-frequency=10000")
    refused = capture("--gpu-metrics", "10000", "-o", "run", "--", *HELLO, fault="no permission")
    assert refused.code == 1
    assert "no permission for GPU metrics (ERR_NVGPUCTRPERM)" in refused.err
    assert "NVreg_RestrictProfilingToAdminUsers=0" in refused.err
    other = capture("--gpu-metrics", "10000", "-o", "run", "--", *HELLO, fault="refuses")
    assert "nsys profile --gpu-metrics-devices=help" in other.err


def test_the_dry_run_prints_the_nsys_command_and_runs_nothing(capture: Capture, tmp_path: Path) -> None:
    """One line, ready to paste, with the options of nsys and of the workload."""
    done = capture(
        "--dry-run", "--backend", "math", "--backend", "flash", "--seq", "1024", "--no-causal", "--dtype", "bf16"
    )
    nsys, rest = done.out.split(" ", 1)
    assert nsys.endswith("nsys/target-linux-x64/nsys")
    options, _, program = rest.partition("--output=")
    assert options == "profile --trace=cuda,nvtx,osrt --sample=none --cpuctxsw=none --cuda-graph-trace=node "
    assert program.startswith("traces/sdpa-math-flash-S1024 ")
    assert program.rstrip().endswith(
        "workloads/sdpa.py --backend math --backend flash --seq 1024 --dtype bf16 --no-causal"
    )
    assert not (tmp_path / "traces").exists()


def test_options_for_nsys_are_passed_on(capture: Capture, environment: dict[str, str]) -> None:
    """--trace, --nsys-arg and both kinds of --capture-range reach nsys as its own options."""
    capture("--trace", "nvtx", "--nsys-arg=--cudabacktrace=all", "--capture-range", "cudaProfilerApi", "--", *HELLO)
    assert seen(environment) == [
        *("--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--capture-range=cudaProfilerApi"),
        *("--capture-range-end=stop", "--cudabacktrace=all"),
        f"--output={seen(environment)[-1].partition('=')[2]}",
    ]
    capture("--force", "--capture-range", "nvtx:step 3", "--", *HELLO)
    assert "--nvtx-capture=step 3" in seen(environment)
    done = capture("--overhead", "-o", "x", "--capture-range", "sometimes", "--", *HELLO)
    assert "not a capture range" in done.err
    assert "hello" not in done.err  # told before anything runs


def test_the_run_without_nsys_gives_the_overhead(environment: dict[str, str], tmp_path: Path) -> None:
    """A program is timed as a whole; it ran twice, and read the same from a file on stdin both times."""
    (tmp_path / "input").write_text("hello")
    reads = [sys.executable, "-c", "import sys; print(sys.stdin.read(), 'from the program')"]
    with (tmp_path / "input").open() as stdin:
        run = subprocess.run(
            [sys.executable, "-m", "nsysprof", "capture", "--overhead", "-o", "run", "--", *reads],
            env=environment, cwd=tmp_path, stdin=stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip
    done = Captured(Done(run.returncode, run.stdout, run.stderr), tmp_path)
    assert done.err.count("hello from the program") == 2
    overhead = done.record("run")["overhead"]
    assert overhead["wall_ratio"] == pytest.approx(overhead["profiled_wall_ns"] / overhead["plain_wall_ns"], abs=1e-4)
    assert "without nsys" in done.out


@pytest.mark.skipif(sys.platform == "win32", reason="what a pipe holds is not told there")
@pytest.mark.parametrize(
    ("text", "closed", "code", "said"),
    [
        (b"hello", True, 1, "the program reads a pipe and runs twice"),
        (b"", False, 0, "standard input is a pipe, which will be empty in the second run"),
        (b"", True, 0, None),
    ],
)
def test_input_that_two_runs_cannot_both_read_is_told(
    environment: dict[str, str], tmp_path: Path, text: bytes, closed: bool, code: int, said: str | None
) -> None:
    """What it holds is refused before anything runs; one that has ended, as in many a batch job, loses nothing."""
    reading, writing = os.pipe()
    os.write(writing, text)
    if closed:
        os.close(writing)
    done = subprocess.run(
        [sys.executable, "-m", "nsysprof", "capture", "--overhead", "-o", "run", "--", *HELLO],
        env=environment, cwd=tmp_path, stdin=reading, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    for end in (reading, *([] if closed else [writing])):
        os.close(end)
    assert done.returncode == code, done.stderr
    assert ("pipe" in done.stderr) is bool(said)
    assert (said or "") in done.stderr
    assert done.stderr.count("hello from the program") == (0 if code else 2)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_workload_that_nsys_ends_after_its_duration_is_captured(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had no time to write its results; and the time of half a run says nothing of what nsys costs."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    results = "open(sys.argv[2], 'w').write('{\"schema\": \"nsysprof-workload/1\"}')"
    ends = f"import os, sys; {results} if 'plain' in sys.argv[2] else os.kill(os.getpid(), 15)"
    program = (sys.executable, "-c", ends)
    request = Request(program, find_nsys(), extra=("--duration=2",), results=True, overhead=True)
    said: list[str] = []
    staged = capture_program(request, tmp_path, Outputs(tmp_path, "run"), (), said.append)
    assert staged.record["workload"] is staged.record["overhead"] is None
    assert "nsys stopped the program" in "".join(said)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes the stream")
@pytest.mark.parametrize("closed", ["2>&-", "2>&1 >out | head -c 10 >/dev/null; sleep 1", ">&-", "2>/dev/full"])
def test_a_capture_needs_nobody_who_reads_what_it_says(
    environment: dict[str, str], tmp_path: Path, closed: str
) -> None:
    """Streams that are closed, from the start or half-way, or full cost neither results nor a deadlock."""
    talks = [sys.executable, "-c", "print('spam ' * 100_000)"]
    command = [sys.executable, "-m", "nsysprof", "capture", "-o", "run", "--", *talks]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == sorted(f"run{one}" for one in RESULTS)
    assert "spam" not in done.stdout


def test_a_failed_capture_leaves_earlier_results_alone(capture: Capture, tmp_path: Path) -> None:
    """--force replaces them by new ones only."""
    earlier = tmp_path / "traces" / "run.json"
    earlier.parent.mkdir()
    earlier.write_text("mine")
    done = capture("--force", "-o", "run", "--", *HELLO, fault="truncated")
    assert done.code == 1
    assert earlier.read_text() == "mine"


def test_the_exit_code_of_a_program_without_a_report_is_passed_on(capture: Capture) -> None:
    """One that fails before its capture range comes, say."""
    exits = [sys.executable, "-c", "raise SystemExit(7)"]
    done = capture("--capture-range", "nvtx:later", "-o", "run", "--", *exits, fault="nothing")
    assert done.code == 7
    assert done.files == ["run.partial.log"]


def test_a_stream_that_nsys_left_among_the_temporary_files_is_found(
    capture: Capture, environment: dict[str, str]
) -> None:
    """nsys does so where its own place is full; the record is put beside it, and the hint finishes the capture."""
    done = capture("-o", "run", "--", *HELLO, fault="elsewhere")
    assert done.code == 1
    assert "could not write the report: Failed to create" in done.err
    found = re.search(r"capture --resume (\S+)", done.err)
    assert found is not None
    assert found[1] == environment["FAKE_NSYS_SEEN"] + "-elsewhere.qdstrm"
    done = capture("--resume", found[1], "-o", "run")
    assert done.code == 0, done.err
    assert done.record("run")["program"].endswith(" [2 arguments]")


def test_a_capture_whose_folder_is_deleted_by_the_program_says_so(capture: Capture, tmp_path: Path) -> None:
    """No traceback, and nothing but the program's own doing."""
    code = "import shutil; shutil.rmtree('traces')"
    done = capture("-o", "run", "--", sys.executable, "-c", code, fault="nothing")
    assert done.code == 1
    assert "left no report" in done.err
    assert not (tmp_path / "traces").exists()


MISUSE = {
    "a program and a workload's options": (
        ["--backend", "math", "--", "true"],
        2,
        "give either a program or workload options, not both",
    ),
    "a workload that is none": (["--workload", "resnet"], 1, "--workload is one of: gpt, sdpa, transformer_block"),
    "a program that is none": (["--", "./no-such-program"], 1, "./no-such-program: program not found"),
    "resume with a program": (["--resume", "x.qdstrm", "--", "true"], 2, "--resume takes no program"),
    "resume and what to trace": (["--resume", "x.qdstrm", "--trace", "cuda"], 2, "--trace"),
    "resume and a range": (["--resume", "x.qdstrm", "--capture-range", "nvtx:a"], 2, "--capture-range"),
    "resume and an argument": (["--resume", "x.qdstrm", "--nsys-arg=-y1"], 2, "--nsys-arg"),
    "resume and memory": (["--resume", "x.qdstrm", "--memory"], 2, "--memory"),
    "resume and metrics": (["--resume", "x.qdstrm", "--gpu-metrics", "10000"], 2, "--gpu-metrics"),
    "too fast": (["--gpu-metrics", "500000", "--", "true"], 2, "--gpu-metrics"),
    "resume and a timed run": (["--resume", "x.qdstrm", "--overhead"], 2, "--overhead"),
    "resume and nothing": (["--resume", "x.qdstrm", "--dry-run"], 2, "--dry-run"),
    "a program that is no text": (["--", "./caf\udce9"], 1, "program not found"),
    "a program like an option": (["--", "-x"], 1, "-x: program not found"),
    "an unknown option": (["--sequence", "1"], 2, "No such option"),
    "no name": (["-o", "..", "--", "true"], 1, "not a valid file name"),
    "a folder that cannot be": (["-o", "/proc/x/run", "--", "true"], 1, "cannot be written"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_told_in_a_line(capture: Capture, case: str) -> None:
    """Exit code 2 for usage, 1 for what does not exist; never a traceback."""
    arguments, code, said = MISUSE[case]
    done = capture(*arguments)
    assert done.code == code
    assert said in done.err


def test_without_nsys_the_error_says_where_to_get_it(tmp_path: Path) -> None:
    """A machine without nsys: exit code 1 and the download."""
    environment = {**os.environ, "PATH": "/nowhere", "NSYSPROF_NSYS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "nsysprof", "capture", "--", sys.executable, "-c", ""],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if "no nsys found" not in done.stderr:
        pytest.skip("an nsys is installed in one of the usual places")
    assert done.returncode == 1
    assert "https://developer.nvidia.com/nsight-systems" in done.stderr
