"""`nsysprof counters` with an ncu that only plays its part: what it leaves, and every way to fail."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsysprof.tools import driver, nsight
from nsysprof.tools.driver import PERMISSION_FIX
from tests.kit import fake_ncu
from tests.kit.command_line import Done, runner
from tests.kit.fake_ncu import row

HELLO = [sys.executable, "-c", "print('hello from the program')"]
ROOT = Path(__file__).parents[2]
TIMES = {"gpu__time_duration__sum": "1,000", "dram__bytes_read__sum": "2,048", "dram__bytes_write__sum": "1,024"}
MATH, FLASH = ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_ffma", "void pytorch_flash::flash_fwd_kernel<X, (int)64>(P)")
FFMA = {"sm__sass_thread_inst_executed_op_ffma_pred_on__sum": "50"}
RANGES = [
    row(MATH, "RUN::math::S64", "iter0", **TIMES, **FFMA),
    row(MATH, "RUN::math::S64", "iter1", **TIMES, **FFMA),
    row(FLASH, "RUN::flash::S64", "iter0", **TIMES),
    row("k", "xRUN::z", **TIMES),
]
FILES = ["run.counters.csv", "run.counters.json"]
KEPT = ["run.counters.partial.log"]
Count = Callable[..., Done]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A made-up ncu on the PATH that counts four kernels, and no other."""
    made = fake_ncu.install(tmp_path / "bin", RANGES)
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NSYSPROF_NCU", raising=False)
    monkeypatch.setattr(nsight, "NCU", replace(nsight.NCU, linux=()))
    return made


@pytest.fixture
def count(
    environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Count:
    """Runs `nsysprof counters -o run ARGUMENTS` in the test's folder, with a fault for the made-up ncu to play."""
    run = runner(tmp_path, capsys, monkeypatch, "counters", "-o", "run")

    def call(*arguments: str, fault: str = "") -> Done:
        monkeypatch.setenv("FAKE_NCU", fault)
        return run(*arguments)

    return call


def files(folder: Path) -> list[str]:
    """Names in `traces`, hidden ones too."""
    there = folder / "traces"
    return sorted(path.name for path in there.iterdir()) if there.exists() else []


def record(folder: Path) -> dict[str, Any]:
    """The record of the count."""
    read = json.loads((folder / "traces" / FILES[1]).read_text())
    assert isinstance(read, dict)
    return read


def seen(environment: dict[str, str]) -> list[list[str]]:
    """The arguments of each time that a program was run under ncu."""
    return [json.loads(line) for line in Path(environment["FAKE_NCU_SEEN"]).read_text().splitlines()]


def last(done: Done) -> str:
    """The message of a known failure, with its hint."""
    assert done.out == ""
    assert "Traceback" not in done.err
    return done.err[done.err.rindex("nsysprof: ") :]


def test_a_program_is_counted_with_its_record_and_the_next_command(
    count: Count, environment: dict[str, str], tmp_path: Path
) -> None:
    """Two runs, one table, a record that says how; stdout has a summary and, last, the command to go on with."""
    done = count("--", *HELLO)
    assert done.code == 0, done.err
    assert files(tmp_path) == FILES
    lines = (tmp_path / "traces" / FILES[0]).read_text().splitlines()
    assert lines[0].startswith("range,order,pid,kernel,grid,block,duration_ns,dram_read_bytes,dram_write_bytes,")
    assert lines[1] == f"RUN::math::S64/iter0,0,100,{MATH},8x1x1,128x1x1,1000,2048,1024,,,,,,,,,,"
    assert len(lines) == 5
    assert done.out.splitlines()[0] == "counted 4 kernels"
    assert done.out.splitlines()[-1] == (
        "   $ nsysprof compare traces/run.sqlite --base 'RUN::math::*' --new 'RUN::flash::*'"
        " --counters traces/run.counters.csv"
    )
    assert done.err.count("hello from the program") == 2
    made = record(tmp_path)
    assert (made["schema"], made["name"], made["kernels"]) == ("nsysprof-counters/1", "run", 4)
    assert made["csv"]["sha256"] == hashlib.sha256((tmp_path / "traces" / FILES[0]).read_bytes()).hexdigest()
    assert [(run["name"], run["passes"]) for run in made["runs"]] == [("traffic", [1]), ("work", [15])]
    assert len(made["environment_hash"]) == 16
    assert made["workload"] is None
    first, second = seen(environment)
    assert not any(one.startswith("--nvtx-include") for one in first)
    assert "--cache-control=none" in first
    assert "sass_thread" not in str(first)
    assert "sass_thread" in str(second)


def test_nothing_of_the_machine_is_in_the_files(count: Count, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the host that ncu tells, nor the folder, nor an argument of the program."""
    monkeypatch.setenv("MY_TOKEN", "tok-1234567890abcdef")
    done = count("--", *HELLO[:2], "import sys", str(tmp_path / "data.bin"), "--key=tok-1234567890abcdef")
    assert done.code == 0, done.err
    written = "".join((tmp_path / "traces" / name).read_text() for name in FILES)
    assert not [text for text in ("secret-host", str(tmp_path), "tok-1234567890abcdef") if text in written]
    assert "data.bin" not in written
    assert record(tmp_path)["program"].endswith(" [4 arguments]")


def test_a_workload_is_counted_in_its_own_ranges(
    count: Count, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few calls unless asked otherwise; its results are in the record without times, its options as they were typed."""
    workload = tmp_path / "sdpa.py"
    (tmp_path / "_harness.py").touch()  # so that it is run by its path, as those that are shipped
    workload.write_text(
        "import json, sys\n"
        "made = {'range': 'RUN::math::S64', 'status': 'measured', 'latency_ns': [5], 'latency_clock': 'x'}\n"
        "gone = {'range': 'RUN::cudnn::S64', 'status': 'unsupported', 'reason': 'too old'}\n"
        "json.dump({'schema': 'nsysprof-workload/1', 'environment': {'torch': '2'}, 'runs': [made, gone]},"
        " open(sys.argv[sys.argv.index('--results') + 1], 'w'))\n"
        "print(sys.argv[1:])\n"
    )
    monkeypatch.setattr("nsysprof.catalog.find_workload", lambda name: workload)
    done = count("--backend", "math", "--seq", "64", "--iterations", "3")
    assert done.code == 0, done.err
    made = record(tmp_path)
    assert made["kernels"] == 3
    assert made["range"] == "RUN::*"
    assert made["program"].endswith("--backend math --seq 64 --warmup 1 --iterations 3")
    assert made["workload"]["runs"][0] == {"range": "RUN::math::S64", "status": "measured"}
    assert "launch latencies are unknown" in made["workload"]["note"]
    assert made["environment"]["workload"] == {"torch": "2"}
    assert "RUN::cudnn::S64: unsupported: too old" in done.out
    assert "--nvtx-include=regex:.*@RUN::/" in seen(environment)[0]
    workload.write_text("")
    assert "exited without an error, but wrote no results" in last(count("--force"))


def test_the_quick_count_is_one_run(count: Count, environment: dict[str, str], tmp_path: Path) -> None:
    """It has bytes and no FLOPs."""
    done = count("--quick", "--", *HELLO)
    assert done.code == 0, done.err
    assert len(seen(environment)) == 1
    assert "FLOPs come from" not in done.out
    assert list(record(tmp_path)["columns"]) == [
        *("duration_ns", "dram_read_bytes", "dram_write_bytes", "l2_bytes", "tensor_instructions"),
        *("occupancy_percent", "dram_percent", "l2_percent"),
    ]


def test_the_same_name_as_of_a_capture_is_given_to_both(count: Count, tmp_path: Path) -> None:
    """Whichever of its files is named."""
    for named in ("other/run.sqlite", "other/run.counters.csv", "other/run.counters.json", "other/run"):
        done = count("--force", "-o", named, "--", *HELLO)
        assert done.code == 0, done.err
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == FILES
    (tmp_path / "other" / "run.sqlite").touch()
    assert "there is no" not in count("--force", "-o", "other/run", "--", *HELLO).err


def test_nothing_is_overwritten_unasked(count: Count, tmp_path: Path) -> None:
    """A taken name is refused before anything runs; a capture of that name stays; --force replaces."""
    (tmp_path / "traces").mkdir()
    capture = tmp_path / "traces" / "run.json"
    capture.write_text("mine")
    taken = tmp_path / "traces" / FILES[1]
    taken.write_text("mine")
    done = count("--", *HELLO)
    assert done.code == 1
    assert f"traces/{FILES[1]}: exists already" in last(done)
    assert "hello" not in done.err
    assert count("--force", "--", *HELLO).code == 0
    assert record(tmp_path)["kernels"] == 4
    assert capture.read_text() == "mine"


def test_reports_of_ncu_are_kept_when_asked(count: Count, tmp_path: Path) -> None:
    """One of each run; they are refused like the other names."""
    done = count("--keep-report", "--", *HELLO)
    assert done.code == 0, done.err
    reports = ["run.counters.traffic.ncu-rep", "run.counters.work.ncu-rep"]
    assert files(tmp_path) == sorted([*FILES, *reports])
    for name in (*FILES, reports[0]):
        (tmp_path / "traces" / name).unlink()
    assert f"{reports[1]}: exists already" in last(count("--keep-report", "--", *HELLO))


def test_reports_are_kept_of_a_user_who_is_called_like_a_run(
    count: Count, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files are found by the names of the runs, not by what is left of those in the record."""
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, "work")
    done = count("--keep-report", "--", *HELLO)
    assert done.code == 0, done.err
    assert "run.counters.work.ncu-rep" in files(tmp_path)


def test_a_dry_run_prints_the_commands(count: Count, tmp_path: Path) -> None:
    """With the metrics of the chip, or of an H100 where there is none; nothing is made."""
    for fault in ("", "no device"):
        done = count("--dry-run", "--range", "step 3", "--", "p", "a b", fault=fault)
        assert done.code == 0, done.err
        first, second = done.out.splitlines()
        assert first.endswith("--export=traces/run.counters.traffic p 'a b'")
        assert "'--nvtx-include=regex:.*@step 3/'" in first
        assert "ffma" in second
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("program", "code"), [("raise SystemExit(42)", 42), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code_of_the_program_is_passed_on(count: Count, tmp_path: Path, program: str, code: int) -> None:
    """Nothing gets a final name; the log is kept."""
    done = count("--", sys.executable, "-c", f"import sys; print('so far', flush=True); {program}")
    assert done.code == code
    assert f"failed with exit code {code}" in last(done)
    assert ": so far" in last(done)
    assert files(tmp_path) == KEPT


def test_a_workload_that_is_called_wrongly_says_so(count: Count, tmp_path: Path) -> None:
    """In its own words, with exit code 2, and nothing is left."""
    done = count("--backend", "nosuch")
    assert done.code == 2
    assert "nosuch" in last(done)
    assert files(tmp_path) == []


FAULTS = {
    "permission": ("ERR_NVGPUCTRPERM", PERMISSION_FIX),
    "busy": ("driver resource was unavailable", "dcgmi profile --pause"),
    "refuses": ("unrecognised option '--bogus'", "ncu --help"),
    "full": ("No space left on device", "df -h"),
    "unreadable": ("cannot read its own report: Failed to load report file.", "kept: "),
    "truncated": ("cut off or damaged", "kept: "),
    "lost": ("its report has only 3", "df -h"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_ncu_does_nothing_half_written_gets_a_final_name(count: Count, tmp_path: Path, fault: str) -> None:
    """One line says what went wrong, the hint how to mend it; the log is kept."""
    said, hint = FAULTS[fault]
    done = count("--", *HELLO, fault=fault)
    assert done.code == 1
    message, _, fix = last(done).partition("\n")
    assert said in message
    assert hint in fix
    assert files(tmp_path) == KEPT


def test_without_a_gpu_nothing_runs(count: Count, tmp_path: Path) -> None:
    """ncu knows no metric then; no folder stays behind."""
    done = count("--", *HELLO, fault="no device")
    assert done.code == 1
    assert "lists no GPU metrics here" in last(done)
    assert "hello" not in done.err
    assert not (tmp_path / "traces").exists()


def test_without_permission_nothing_runs(count: Count, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver says so beforehand."""
    params = tmp_path / "params"
    params.write_text("RmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(driver, "_PARAMS", params)
    monkeypatch.setattr(driver, "_STATUS", tmp_path / "nowhere")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = count("--", *HELLO)
    assert done.code == 1
    assert "NVreg_RestrictProfilingToAdminUsers=0" in last(done)
    assert "hello" not in done.err


def test_without_ncu_the_hint_says_how_to_get_it(count: Count, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before anything else is done."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "CUDA toolkit" in last(count("--", *HELLO))


def test_an_old_ncu_is_named(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it lacks."""
    monkeypatch.setenv("FAKE_NCU_LACKS", "--nvtx-include")
    assert "is too old: it has no --nvtx-include" in last(count("--", *HELLO))


def test_a_program_that_is_none_is_told_first(count: Count) -> None:
    """ncu is not even asked."""
    assert "nowhere: program not found" in last(count("--", "nowhere"))


def test_no_kernel_in_a_range_is_told(count: Count, environment: dict[str, str]) -> None:
    """Whether ncu found none, or its filter let others through, or the program has none at all."""
    assert "no kernel ran in a range that matches 'nosuch'" in last(count("--range", "nosuch", "--", *HELLO))
    assert len(seen(environment)) == 1  # the second run, with its replays, would find no more
    Path(environment["FAKE_NCU_ROWS"]).write_text(json.dumps({"traffic": []}))
    assert "no kernel ran in a range that matches 'RUN::*'" in last(count("--range", "RUN::*", "--", *HELLO))
    assert "profiled no kernel" in last(count("--", *HELLO))


def test_what_the_table_cannot_tell_is_warned_of(
    count: Count, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays, metrics that the chip has not, threads, another kernel in the second run: in the record too."""
    unclear = {**row("u", **TIMES), "pushed": fake_ncu.pushed("a", thread=1) + fake_ncu.pushed("b", thread=2)}
    rows = {"traffic": [*RANGES, unclear], "work": [*RANGES[1:], row("other", "RUN::math::S64", "iter0"), unclear]}
    Path(environment["FAKE_NCU_ROWS"]).write_text(json.dumps(rows))
    few = [name for name in fake_ncu.DEFAULT_METRICS if "warps_active" not in name]
    monkeypatch.setenv("FAKE_NCU_METRICS", " ".join(few))
    monkeypatch.setenv("FAKE_NCU_LACKS", "--nvtx-push-pop-scope")
    done = count("--", *HELLO, fault="passes")
    assert done.code == 0, done.err
    made = record(tmp_path)
    assert (made["unclear"], made["unmatched"], made["missing"]) == (1, 1, ["occupancy_percent"])
    said = ("traffic took 15 passes", "no metric for it: occupancy_percent", (
        "1 kernels have no range in the table, because several "
        "threads"
    ),
            "only the ranges of the launching thread", "1 kernels of the first run")  # fmt: skip
    for text, warning in zip(said, made["warnings"], strict=True):
        assert text in warning
        assert f"warning: {warning}" in done.err


def test_options_of_a_workload_do_not_go_with_a_program(count: Count) -> None:
    """That is a mistake of usage."""
    assert count("--backend", "math", "--", *HELLO).code == 2


def test_an_interrupt_leaves_the_log_alone(environment: dict[str, str], tmp_path: Path) -> None:
    """Ctrl-C goes on to ncu, which ends the program; the exit code is a shell's."""
    waits = "import pathlib, time; pathlib.Path('ready').touch(); time.sleep(60)"
    command = [sys.executable, "-m", "nsysprof", "counters", "-o", "run", "--", sys.executable, "-c", waits]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    ) as child:
        until = time.monotonic() + 30
        while not (tmp_path / "ready").exists() and time.monotonic() < until:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "nsysprof: interrupted" in said
    assert "Traceback" not in said
    assert files(tmp_path) == KEPT
