"""`nsysprof capture` and `doctor` with the real nsys, on programs that need no GPU."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysprof.attribution.paths import range_paths
from nsysprof.tools.nsys import Nsys, find_importer
from nsysprof.trace.trace import START_END
from tests.kit.reports import attributed

pytestmark = pytest.mark.nsys

RANGES = """
import sys, time, nvtx
with nvtx.annotate("RUN::mine::S1"):
    for number in range(20):
        with nvtx.annotate(f"iter{number}"):
            time.sleep(0.001)
print("done")
"""

STEPS = """
import nvtx, torch
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
for number in range(3):
    with nvtx.annotate("train"):
        layer(torch.ones(1, 4)).sum().backward()
        with nvtx.annotate("optimizer"):
            optimizer.step()
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(real_nsys: Nsys, tmp_path: Path) -> Run:
    """Runs nsysprof in the test's folder, with that nsys unless the environment given names another."""

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "nsysprof", *arguments],
            env={**os.environ, "NSYSPROF_NSYS": str(real_nsys.path), **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "nsysprof/cli.py" not in done.stderr  # no traceback of ours
        return done

    return call


def files(folder: Path) -> list[str]:
    """What lies in `traces`, hidden files too."""
    return sorted(path.name for path in (folder / "traces").iterdir())


def test_ranges_of_a_program_are_captured_and_analyzed(run: Run, tmp_path: Path) -> None:
    """From one command to a report with its ranges, which the command it prints then reads."""
    done = run("capture", "-o", "ranges", "--", sys.executable, "-c", RANGES)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == ["ranges.json", "ranges.nsys-rep", "ranges.sqlite"]
    assert "captured 0 kernels and 21 ranges" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == "   $ nsysprof analyze traces/ranges.sqlite"
    analyzed = run(*last.split()[2:])
    assert analyzed.returncode == 0, analyzed.stderr
    assert "RUN::mine::S1" in analyzed.stdout
    assert (tmp_path / "ranges.analysis" / "timeline.png").stat().st_size > 0
    document = json.loads((tmp_path / "ranges.analysis" / "analysis.json").read_text())
    iterations = next(row for row in document["ranges"] if row["path"] == "RUN::mine::S1/iter0")
    assert iterations["cpu_ns"] > 1_000_000


def test_steps_that_are_marked_leave_the_ranges_of_the_program_whole(run: Run, tmp_path: Path) -> None:
    """They begin and end inside of `optimizer`: as start/end ranges they do not end it in its place."""
    pytest.importorskip("torch")
    done = run("capture", "--mark-steps", "--modules", "-o", "steps", "--", sys.executable, "-c", STEPS)
    assert done.returncode == 0, done.stderr
    found = attributed(tmp_path / "traces" / "steps.sqlite")
    names = [found.trace.range_names[code].text for code in found.trace.ranges.name.tolist()]
    kinds, paths = found.trace.ranges.kind.tolist(), range_paths(found).texts()
    assert [name for name, kind in zip(names, kinds, strict=True) if kind == START_END] == [
        *("step0", "step1", "step2", "step3")
    ]
    assert {"train/optimizer", "train/Linear", "train/Linear backward"} <= set(paths)
    assert not any(path.startswith(("optimizer", "Linear")) for path in paths)


def test_a_workload_is_captured_with_its_results_and_the_overhead(run: Run, tmp_path: Path) -> None:
    """The attention workload on the CPU: its measurements with and without nsys are in the record."""
    options = ["--backend", "math", "--backend", "naive", "--seq", "64", "--dtype", "fp32", "--device", "cpu"]
    done = run("capture", *options, "--iterations", "5")
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == [f"sdpa-math-naive-S64{ending}" for ending in (".json", ".nsys-rep", ".sqlite")]
    record = json.loads((tmp_path / "traces" / "sdpa-math-naive-S64.json").read_text())
    measured = {one["range"]: one for one in record["workload"]["runs"]}
    assert list(measured) == ["RUN::math::S64", "RUN::naive::S64"]
    assert all(len(one["latency_ns"]) == 5 for one in measured.values())
    assert [row["range"] for row in record["overhead"]["ranges"]] == list(measured)
    assert {row["observed"] for row in record["backends"]} == {"none"}


def test_a_workload_without_its_gpu_says_so_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    """The workload's own exit code and reason come through, nsys is not even started."""
    done = run("capture", "--backend", "math", "--seq", "64", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "--device cpu" in done.stderr
    assert "running under nsys" not in done.stderr
    assert files(tmp_path) == ["sdpa-math-S64.partial.log"]


def test_usage_errors_of_a_workload_come_through(run: Run, tmp_path: Path) -> None:
    """An unknown backend is exit code 2 and names the valid ones; nothing is left behind."""
    done = run("capture", "--backend", "fast", "--seq", "64", "--device", "cpu")
    assert done.returncode == 2
    assert "flash_attn" in done.stderr.splitlines()[-2]
    assert not (tmp_path / "traces").exists()


def test_one_range_alone_can_be_captured(run: Run, real_nsys: Nsys, tmp_path: Path) -> None:
    """`--capture-range nvtx:NAME` begins with the range; one that never comes is said to be missing."""
    program = RANGES.replace("sleep(0.001)", "sleep(0.1)")
    how = ["--capture-range", "nvtx:iter7", "--nsys-arg=--sample=none", "-o", "100%p/one"]
    done = run("capture", *how, "--", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "100%p" / "one.sqlite").exists()
    count = int(done.stdout.split(" range")[0].rsplit(" ", 1)[1])
    assert 0 < count < 20
    assert "done" in done.stderr  # the program ran to its end
    done = run("capture", "--capture-range", "nvtx:never", "-o", "none", "--", sys.executable, "-c", RANGES)
    assert done.returncode == 1
    assert "left no report" in done.stderr
    assert "did the program ever reach nvtx:never" in done.stderr


def test_an_interrupted_program_leaves_what_nsys_recorded(real_nsys: Nsys, tmp_path: Path) -> None:
    """Ctrl-C ends the program, nsys keeps its recording, nothing gets a final name."""
    program = RANGES.replace("range(20)", "range(100000)").replace(
        "time.sleep", "number or print('on', flush=True); time.sleep"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "nsysprof", "capture", "-o", "run", "--", sys.executable, "-c", program],
        env={**os.environ, "NSYSPROF_NSYS": str(real_nsys.path)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any(line.strip() == "on" for line in process.stderr)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "nsysprof: interrupted" in err
    left = files(tmp_path)
    assert left[0] == "run.partial.log"
    assert left[1:] in (
        ["run.partial.nsys-rep", "run.partial.run.json"],
        ["run.partial.qdstrm", "run.partial.run.json"],
    )


@pytest.mark.skipif(sys.platform != "linux", reason="symbolic links and the Linux loader")
def test_an_importer_that_lacks_a_library_is_told_and_the_capture_resumed(
    run: Run, real_nsys: Nsys, tmp_path: Path
) -> None:
    """The real importer without one of its libraries: named with its package; with it, the capture is finished."""
    importer = find_importer(real_nsys)
    if importer is None:
        pytest.skip("this nsys has no importer")
    broken = tmp_path / "broken"
    (broken / "target-linux-x64").mkdir(parents=True)
    wrapper = broken / "target-linux-x64" / "nsys"
    wrapper.write_text(f'#!/bin/sh\nexec "{real_nsys.path}" "$@"\n')
    wrapper.chmod(0o755)
    host = broken / "host-linux-x64"
    host.mkdir()
    for path in importer.parent.iterdir():
        if not path.name.startswith("libAnalysis"):
            (host / path.name).symlink_to(path.resolve())
    (host / importer.name).unlink()
    shutil.copy2(importer, host)
    done = run("capture", "-o", "run", "--", sys.executable, "-c", RANGES, NSYSPROF_NSYS=str(wrapper))
    if done.returncode == 0:
        pytest.skip("nsys imports by itself here")
    assert done.returncode == 1
    assert "is missing" in done.stderr
    assert "libAnalysis" in done.stderr
    assert "run.partial.qdstrm" in files(tmp_path)
    resume = done.stderr.rsplit("nsysprof ", 1)[1].split()
    assert resume[:2] == ["capture", "--resume"]
    done = run(*resume)
    assert done.returncode == 0, done.stderr
    assert "21 ranges" in done.stdout
    assert json.loads((tmp_path / "traces" / "run.json").read_text())["rescued"] is True


def test_the_doctor_proves_by_a_capture_that_a_capture_works(run: Run) -> None:
    """Exit code 0, and an ok with the ranges that were really captured."""
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "nsysprof-doctor/1"
    assert document["capture_works"] is True
    checks = {one["name"]: one for one in document["checks"]}
    assert {"nsys", "capture", "GPU", "ncu", "torch", "attention", "disk"} <= set(checks)
    assert checks["capture"]["state"] == checks["attention"]["state"] == "ok"
    assert "NVTX ranges in" in checks["capture"]["found"]
    assert "math" in checks["attention"]["found"]
