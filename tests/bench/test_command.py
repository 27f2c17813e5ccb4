"""`nsysprof bench` on a CPU: a sweep from the command to its files, and everything that can stop it half-way."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from nsysprof.bench.sweep import SweepJob, bench_plan, open_sweep, run_sweep
from nsysprof.commands.bench import ResultOptions, run_job
from nsysprof.errors import NsysprofError
from tests.kit.bench_samples import in_runs, made_up, point_of, write_samples
from tests.kit.command_line import Run

ROOT = Path(__file__).parents[2]
TINY = ["--device", "cpu", "--heads", "2", "--head-dim", "8", "--dtype", "fp32", "--no-charts", "--runs", "1"]

RESULTS = [
    *("samples.json", "results.csv", "report.md"),
    *("comparisons.csv", "crossovers.csv", "decisions.csv", "exponents.csv"),
]
CHARTS = ["latency.png", "memory.png", "roofline.png", "samples.png", "speedup.png", "throughput.png"]

GRID = {"heads": [2], "seq": [8], "head_dim": [8], "dtype": ["fp32"]}


def job_of(path: Path, folder: Path, grid: dict[str, Any]) -> SweepJob:
    """A sweep on the CPU, into `run`."""
    plan, described = bench_plan(path, [grid], device="cpu", samples=10)
    return SweepJob(path, plan, described, folder / "run", ("nsysprof", "bench"))


needs_torch = pytest.mark.skipif(find_spec("torch") is None or find_spec("nvtx") is None, reason="needs torch")


@pytest.fixture
def bench(run: Run) -> Run:
    """Runs `nsysprof bench ARGUMENTS` in the test's folder."""
    return partial(run, "bench")


def samples_of(folder: Path) -> dict[str, Any]:
    """The samples.json of a sweep."""
    read = json.loads((folder / "samples.json").read_text())
    assert isinstance(read, dict)
    return read


@needs_torch
def test_a_sweep_leaves_its_samples_and_what_they_mean(bench: Run, tmp_path: Path) -> None:
    """Every point in the order of the plan, eager samples and those of the twin; then nothing is overwritten."""
    backends = [f"--backend={name}" for name in ("cudnn", "math", "auto", "naive")]
    done = bench(*TINY, *backends, "--seq", "32", "--seq", "16", "--samples", "12", "-o", "first")
    assert done.code == 0, done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first"]
    found = samples_of(tmp_path / "first")
    assert found["schema"] == "nsysprof-bench/1"
    assert found["command"] == "nsysprof bench " + " ".join(
        [*TINY, *backends, "--seq", "32", "--seq", "16", "--samples", "12", "-o", "first"]
    )
    names = [f"B1.H2.S{seq}.D8.fp32.causal" for seq in (16, 32)]
    places = [(point["configuration"]["id"], point["backend"]) for point in found["points"]]
    assert places == [(name, backend) for name in names for backend in ("cudnn", "math", "auto", "naive")]
    assert found["auto"] == dict.fromkeys(names, "flash")
    assert found["peaks"] is None
    assert found["environment"]["workload"]["device"] == "cpu"
    for point in found["points"]:
        if point["backend"] == "cudnn":
            assert point["status"] == "unsupported"
            assert point["reason"]
            continue
        assert point["status"] == "measured"
        assert point["errors"]["output"] < point["tolerance"] == 1e-5
        assert len(point["latency_ns"]) == len(point["aa_latency_ns"]) == 12
        assert all(100 < ns < 1e9 for ns in point["latency_ns"] + point["aa_latency_ns"])
        assert point["latency_ns"] != point["aa_latency_ns"]
        assert (point["graph_latency_ns"], point["graph_reason"]) == (None, "no GPU")
        assert (point["latency_clock"], point["cache"], point["gpu"]) == ("perf_counter", "warm", None)
        assert set(point["sampled_with"]) == {"math", "auto", "naive"} - {point["backend"]}
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == sorted(RESULTS)
    assert all(word in done.out for word in ("S16", "S32", "math", "auto", "naive", "unsupported"))
    assert "Written to first/" in done.err
    check_saved_samples(bench, done.out, tmp_path)


def check_saved_samples(bench: Run, out: str, folder: Path) -> None:
    """What is done with the samples later: nothing is overwritten, the same results come out, and nothing changed."""
    before = (folder / "first" / "samples.json").read_bytes()
    refused = bench(*TINY, "-o", "first")
    assert refused.code == 1
    assert "first holds samples.json, results.csv, " in refused.err
    refused = bench("report", "first", "--no-charts")
    assert refused.code == 1
    assert "crossovers.csv, report.md, not overwritten" in refused.err
    again = bench("report", "first", "-o", "again", "--db", "runs.db")
    assert again.code == 0, again.err
    assert again.out == out
    assert sorted(path.name for path in (folder / "again").iterdir()) == sorted(
        [*RESULTS, *CHARTS, "selection.png"]  # auto ran at two shapes
    )
    csv = [(folder / name / "results.csv").read_text() for name in ("first", "again")]
    assert csv[0] == csv[1]
    with closing(sqlite3.connect(folder / "runs.db")) as database:
        assert database.execute("SELECT count(*) FROM results").fetchone() == (8,)
    assert (folder / "first" / "samples.json").read_bytes() == before
    same = bench("diff", "first", "again/samples.json")
    assert same.code == 0, same.err
    assert "6 comparisons" in same.out


@needs_torch
def test_a_block_trained_until_the_interval_is_narrow_with_peaks(bench: Run, tmp_path: Path) -> None:
    """The interval decides about the number of samples, the count at the latest; peaks are measured before."""
    options = ["--workload", "transformer_block", "--train", "--backend", "math", "--seq", "16"]
    done = bench(*TINY, *options, "--ci-width", "0.9", "--samples", "60", "--measure-peaks")
    assert done.code == 0, done.err
    found = samples_of(tmp_path / "transformer_block.bench")
    assert found["plan"]["train"] is True
    (point,) = found["points"]
    assert set(point["errors"]) == {"output", "branch", "grad_x", "grad_qkv", "grad_proj"}
    assert 20 <= len(point["latency_ns"]) <= 60
    assert found["peaks"]["bandwidth_bytes_per_s"] > 1e8
    assert set(found["peaks"]["flops"]) == {"fp16", "bf16", "fp32"}
    assert all(value > 1e6 for value in found["peaks"]["flops"].values())


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until something is so, or the process has ended."""
    for _ in range(2400):
        if what() or process.poll() is not None:
            return
        time.sleep(0.05)
    raise AssertionError("it never came to that")


@needs_torch
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_an_interrupted_sweep_loses_nothing_and_is_resumed(bench: Run, tmp_path: Path) -> None:
    """130, what is measured is kept beside; other plans and damage are refused; then it goes on where it was."""
    sweep = [*TINY, "--backend=math", "--backend=flash", "--seq", "8", "--seq", "2048", "--samples", "400"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nsysprof", "bench", *sweep, "-o", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    points = tmp_path / "run.partial" / "points.jsonl"

    def first_is_measured() -> bool:
        return points.exists() and points.read_text().count('"kind": "point"') == 2

    try:
        wait_for(first_is_measured, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "interrupted; 2 of 4 points are kept in run.partial" in err
    assert "--samples 400 -o run --resume" in err
    assert [path.name for path in tmp_path.iterdir()] == ["run.partial"]

    again = bench(*sweep, "-o", "run")
    assert (again.code, "this folder has an unfinished sweep" in again.err) == (1, True)
    other = bench(*sweep[:-1], "300", "-o", "run", "--resume")
    assert other.code == 1
    assert "started with another plan: samples 400 there, 300 here" in other.err
    kept = points.read_text()
    points.write_text(kept.replace('"kind": "start"', '"kind": "st'))
    damaged = bench(*sweep, "-o", "run", "--resume")
    assert (damaged.code, "points.jsonl:2: not a line of a sweep" in damaged.err) == (1, True)
    # The long configuration is replaced by one that is quickly measured; a line is cut as by a crash.
    short = kept.replace("S2048", "S16").replace('"seq": 2048', '"seq": 16')
    points.write_text(short + '{"kind": "point", "poi')
    done = bench(*("16" if each == "2048" else each for each in sweep), "-o", "run", "--resume")
    assert done.code == 0, done.err
    assert "[1/2]" not in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    measured = [json.loads(line)["point"] for line in kept.splitlines() if '"kind": "point"' in line]
    found = samples_of(tmp_path / "run")["points"]
    assert [{**point, "run": 0} for point in found[:2]] == sorted(
        measured, key=lambda point: point["backend"], reverse=True
    )
    assert [len(point["latency_ns"]) for point in found] == [400] * 4


def test_a_sweep_that_measures_nothing_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, and all results: the reasons are in them."""
    samples = made_up(dtypes={"fp32": ("flash", "cudnn")}, device="cpu")
    monkeypatch.setattr("nsysprof.bench.sweep.run_sweep", lambda *_: samples)
    job = job_of(ROOT / "workloads" / "sdpa.py", tmp_path, GRID)
    with pytest.raises(typer.Exit) as ended:
        run_job(job, ResultOptions(charts=False), resume=False, force=False)
    assert ended.value.exit_code == 1
    printed = capsys.readouterr()
    assert "no point could be measured" in printed.err
    assert "unsupported" in printed.out
    assert sorted(path.name for path in job.results.iterdir()) == sorted(RESULTS)


def test_a_regression_is_exit_code_3(bench: Run, tmp_path: Path) -> None:
    """Above the limit that was asked for; runs of unlike machines are refused, but with --unlike."""
    write_samples(tmp_path / "before", in_runs(made_up(samples=60)))
    write_samples(tmp_path / "after", in_runs(made_up(samples=60, slower={"flash": 1.2})))
    done = bench("diff", "before", "after")
    assert done.code == 3, done.err
    assert "slower" in done.out
    assert "flash: latency" in done.err
    assert bench("diff", "before", "after", "--max-regress", "0.3").code == 0
    assert bench("diff", "after", "before").code == 0
    moved = made_up(samples=30)
    moved["environment"]["driver"] = "590.1"
    moved["environment_hash"] = "another"
    write_samples(tmp_path / "moved", moved)
    refused = bench("diff", "before", "moved")
    assert refused.code == 1
    assert "driver 580.95.05 before, 590.1 after" in refused.err
    assert bench("diff", "before", "moved", "--unlike").code == 0
    wrong = made_up(samples=30)
    point_of(wrong, "flash", 1024)["status"] = "wrong"
    write_samples(tmp_path / "wrong", wrong)
    gate = bench("diff", "before", "wrong")
    assert gate.code == 3
    assert "flash at B1.H8.S1024.D64.fp16.causal: wrong results after" in gate.err
    (tmp_path / "moved" / "samples.json").write_text('{"schema": "nsysprof-run/1"}')
    foreign = bench("diff", "before", "moved")
    assert (foreign.code, "moved/samples.json" in foreign.err) == (1, True)


KILLER = """
def _killer(problem: Problem) -> Attend:
    import os, signal

    calls = []

    def attend(q, k, v):
        calls.append(1)
        if len(calls) > {calls}:
            os.kill(os.getpid(), signal.SIGKILL)
        return BACKENDS["naive"].make(problem)(q, k, v)

    return attend


BACKENDS["killer"] = Backend("ends the process", _killer)
BACKENDS["liar"] = Backend("is wrong", lambda problem: lambda q, k, v: v * 2)
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[int], Path]:
    """The program that measures, with a backend more, which kills it after some calls."""

    def make(calls: int) -> Path:
        folder = tmp_path / "workloads"
        shutil.copytree(ROOT / "workloads", folder, ignore=shutil.ignore_patterns("__pycache__"))
        with (folder / "_attention.py").open("a") as file:
            file.write(KILLER.format(calls=calls))
        return folder / "sdpa.py"

    return make


@needs_torch
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_a_backend_that_kills_the_process_later_is_found_by_trying_each_alone(
    program: Callable[[int], Path], tmp_path: Path
) -> None:
    """All that were at work are measured one by one, and then it is known who it was."""
    job = job_of(program(4), tmp_path, {**GRID, "backend": ["killer", "math"]})
    output: list[str] = []
    with open_sweep(job, resume=False, force=False) as sweep:
        killed, other = run_sweep(job, sweep, output.append)["points"]
    assert (killed["backend"], killed["status"]) == ("killer", "out of memory")
    assert killed["reason"] == "the process was killed by signal 9"
    assert (other["status"], len(other["latency_ns"])) == ("measured", 10)
    at = "at B1.H2.S8.D8.fp32.causal: the process was killed by signal 9;"
    for message in (f"killer math {at} points are now measured one by one", f"killer {at} this point is skipped"):
        assert message in "".join(output)


@needs_torch
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_backends_that_are_wrong_or_kill_the_process_at_once_are_not_timed(
    program: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In its check it is known who killed it; a wrong one is exit code 3; the other is measured, the results there."""
    job = job_of(program(0), tmp_path, {**GRID, "backend": ["killer", "liar", "math"]})
    with pytest.raises(typer.Exit) as ended:
        run_job(job, ResultOptions(charts=False), resume=False, force=False)
    assert ended.value.exit_code == 3
    err = capsys.readouterr().err
    assert "wrong results, not measured: liar at B1.H2.S8.D8.fp32.causal" in err
    assert "killer at B1.H2.S8.D8.fp32.causal: the process was killed by signal 9; this point is skipped" in err
    assert "points are now measured one by one" not in err
    killer, liar, math = json.loads((job.results / "samples.json").read_text())["points"]
    assert (killer["status"], killer["reason"]) == ("out of memory", "the process was killed by signal 9")
    assert (liar["status"], liar["latency_ns"]) == ("wrong", [])
    assert "differs from the float64 reference" in liar["reason"]
    assert len(math["latency_ns"]) == 10


def test_the_error_of_the_measuring_program_is_reported_and_not_its_hint(tmp_path: Path) -> None:
    """As where the disk is full, and it can write no line about it."""
    (tmp_path / "_harness.py").touch()
    path = tmp_path / "_bench.py"
    path.write_text("import sys; sys.exit('bench: the disk is full\\n  hint: df -h')")
    plan, described = bench_plan(ROOT / "workloads" / "sdpa.py", [{}], device="cpu")
    job = SweepJob(path, plan, described, tmp_path / "run", ("nsysprof", "bench"))
    with (
        open_sweep(job, resume=False, force=False) as sweep,
        pytest.raises(NsysprofError, match="failed with exit code 1: bench: the disk is full; 0 of 2 points"),
    ):
        run_sweep(job, sweep, lambda text: None)


def test_a_folder_is_one_sweeps_at_a_time(program: Callable[[int], Path], tmp_path: Path) -> None:
    """A second one is refused while the first runs, also with --force."""
    job = job_of(program(0), tmp_path, {})
    with (
        open_sweep(job, resume=False, force=False),
        pytest.raises(NsysprofError, match="another sweep is running in this folder"),
        open_sweep(job, resume=False, force=True),
    ):
        pass


def test_without_a_gpu_it_says_so_and_leaves_nothing(bench: Run, tmp_path: Path) -> None:
    """One line and a hint; the same where torch is missing."""
    done = bench("--seq", "8")
    if done.code == 0:
        pytest.skip("there is a GPU")
    assert done.code == 1
    assert "no CUDA device" in done.err or "no module named" in done.err
    assert "hint: " in done.err
    assert list(tmp_path.iterdir()) == []


def test_the_dry_run_shows_the_matrix_and_measures_nothing(bench: Run, tmp_path: Path) -> None:
    """Each point with its memory, and how it would be measured."""
    done = bench("--preset", "math-vs-flash", "--dry-run", "--samples", "7")
    assert done.code == 0
    assert done.out.splitlines()[:10] == [
        "configuration                    math     flash",
        "---------------------------  --------  --------",
        "B1.H8.S1024.D64.fp16.causal   100 MiB  4.00 MiB",
        "B1.H8.S2048.D64.fp16.causal   392 MiB  8.00 MiB",
        "B1.H8.S4096.D64.fp16.causal  1.52 GiB  16.0 MiB",
        "",
        "6 points of sdpa (forward) on cuda: 9 samples each, at least 20.0 µs per sample, cold cache.",
        "3 runs, each in its own process, with 3 samples per run in a new random order. The first run also checks the",
        "outputs and measures memory.",
        "Memory: estimated peak memory of one call, computed from the shapes.",
    ]
    mixed = bench("--preset", "scaling", "--dry-run", "--device", "cpu").out
    row = next(line for line in mixed.splitlines() if line.startswith("B8.H8.S512.D64.fp32.causal"))
    assert len(row.split()) == 5  # flash has none in fp32
    assert list(tmp_path.iterdir()) == []


MISUSE = {
    "an unknown backend": (["--backend", "flash2"], 1, "one of: math, math_reduced, flash, "),
    "an unknown preset": (["--preset", "base"], 1, "one of: math-vs-flash, baseline, scaling, long, single-head"),
    "an unknown workload": (["--workload", "resnet"], 1, "--workload is one of: gpt, sdpa, transformer_block"),
    "an unknown type": (["--dtype", "fp8"], 2, "fp8"),
    "a preset with sizes": (["--preset", "long", "--seq", "8", "--no-causal"], 2, "leave out --seq, --causal"),
    "a preset of another workload": (["--preset", "long", "--workload", "transformer_block"], 2, "runs sdpa"),
    "training of attention": (["--train"], 1, "sdpa has no --train"),
    "backward of a block": (["--workload", "transformer_block", "--backward"], 1, "its option is --train"),
    "a width that is none": (["--ci-width", "5"], 2, "between 0 and 1"),
    "no samples": (["--samples", "0"], 2, "--samples"),
    "nothing to resume": (["--resume"], 1, "no unfinished sweep to resume"),
    "no name": (["-o", "/"], 2, "not a valid folder name"),
    "samples that last for ever": (["--min-sample-us", "inf"], 2, "--min-sample-us"),
    "samples of no length": (["--min-sample-us", "nan"], 2, "nan is not a finite number"),
    "a seed of 80 bits": (["--seed", "9" * 24], 2, "--seed"),
    "a gate that cannot fail": (["diff", "a", "b", "--max-regress", "nan"], 2, "nan is not a finite number"),
    "a database nowhere": (["--db", "no/x.db"], 1, "cannot write no/x.db: there is no folder"),
    "a call that nobody can count": (["--seq", "2000000000"], 1, "exceeds 64 bits"),
    "a folder that cannot be": (["-o", "/proc/x/run"], 1, "cannot write"),
    "options before a subcommand": (
        ["--seq", "8", "diff", "a", "b"],
        2,
        "--seq is not an option of nsysprof bench diff",
    ),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_reported_in_a_line(bench: Run, tmp_path: Path, case: str) -> None:
    """Exit code 2 for usage, 1 for what does not exist; never a traceback, nothing left behind."""
    arguments, code, message = MISUSE[case]
    done = bench(*arguments)
    assert done.code == code, done.err
    assert message in " ".join(done.err.split())
    assert list(tmp_path.iterdir()) == []


def test_charts_of_other_samples_do_not_stay(bench: Run, tmp_path: Path) -> None:
    """Not drawn again, they are no part of the new results; what is not ours is left alone."""
    write_samples(tmp_path / "run", made_up(samples=12))
    for name in ("roofline.png", "mine.png"):
        (tmp_path / "run" / name).write_bytes(b"old")
    done = bench("report", "run", "--force", "--no-charts")
    assert done.code == 0, done.err
    assert [path.name for path in (tmp_path / "run").glob("*.png")] == ["mine.png"]
    write_samples(tmp_path / "new", made_up(samples=12))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "roofline.png").write_bytes(b"another's")
    assert bench("report", "new", "-o", "foreign", "--no-charts").code == 0
    assert (tmp_path / "foreign" / "roofline.png").exists()


def test_damaged_samples_are_refused_by_their_own_name_and_leave_nothing(bench: Run, tmp_path: Path) -> None:
    """Not by that of a copy that is gone; no empty folder stays behind."""
    path = write_samples(tmp_path / "run", made_up(samples=12))
    path.write_text(path.read_text()[:-9])
    done = bench("report", "run", "-o", "out", "--no-charts")
    assert done.code == 1
    assert "run/samples.json is corrupt" in done.err
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


@pytest.mark.skipif(sys.platform == "win32", reason="limits and signals")
def test_a_report_that_is_stopped_or_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM while it is at work, and a limit on the size of files: the folder that was asked for is named."""
    write_samples(tmp_path / "run", made_up(samples=12))
    command = [sys.executable, "-m", "nsysprof", "bench", "report", "run", "-o", "out"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: bool(list(tmp_path.glob("out/.nsysprof-*/results.csv"))), process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, "interrupted" in err) == (143, True), err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    limited = ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", *command, "--no-charts"]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot write out/samples.json: File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@needs_torch
@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="names of files are bytes")
def test_a_folder_whose_name_is_not_utf8_gets_its_results(bench: Run, tmp_path: Path) -> None:
    """They are measured, written and reported, with a question mark for what cannot be."""
    name = os.fsdecode(b"caf\xe9.bench")
    done = bench(*TINY, "--backend", "math", "--seq", "8", "--samples", "10", "--db", "runs.db", "-o", name)
    assert done.code == 0, done.err
    assert json.loads((tmp_path / name / "samples.json").read_text())["name"] == "caf?"
    assert (tmp_path / name / "report.md").read_text().startswith("# caf?\n")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        assert database.execute("SELECT name, file FROM runs").fetchone() == ("caf?", "caf?.bench/samples.json")
    assert bench("diff", name, name).code == 0
