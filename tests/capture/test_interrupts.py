"""Interrupts at every stage of a `nsysprof capture`: nothing half-written, nothing lost, nobody left running."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.capture.conftest import Capture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

WAITS = "import pathlib, time; pathlib.Path('ready').touch(); time.sleep(60)"
IGNORES = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {WAITS}"


def interrupted(
    environment: dict[str, str], folder: Path, fault: str, program: str, *signals: signal.Signals
) -> tuple[int, str]:
    """Capture a program and send signals once something is ready; returns the exit code and what stderr says."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nsysprof", "capture", "-o", "run", "--", sys.executable, "-c", program],
        env={**environment, "FAKE_NSYS": fault},
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    ready = folder / "ready"
    for _ in range(600):
        if ready.exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.5)
    try:
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert "Traceback" not in err
    return process.returncode, err


def alive(environment: dict[str, str]) -> bool:
    """Whether the program still runs; a dead one that nobody waited for does not."""
    pid = int(Path(environment["FAKE_NSYS_SEEN"] + ".pid").read_text())
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def files(folder: Path) -> list[str]:
    """What lies in `traces`, hidden files too."""
    return sorted(path.name for path in (folder / "traces").iterdir())


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_lets_nsys_finish_and_keeps_what_it_has(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals, expected: int
) -> None:
    """The exit code is a shell's, nothing gets a final name, the report so far a name of its own."""
    code, _ = interrupted(environment, tmp_path, "", WAITS, number)
    assert code == expected
    assert not alive(environment)
    assert files(tmp_path) == ["run.partial.log", "run.partial.nsys-rep", "run.partial.run.json"]


def test_a_second_interrupt_kills_an_nsys_that_hangs_and_its_program(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Neither nsys nor the program, which has a session of its own, is left behind."""
    code, _ = interrupted(environment, tmp_path, "deaf", IGNORES, signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert not alive(environment)
    assert files(tmp_path) == ["run.partial.log"]


def test_a_second_interrupt_kills_a_program_that_nsys_left_running(environment: dict[str, str], tmp_path: Path) -> None:
    """nsys ends although the program does not heed Ctrl-C: it is waited for, and found when it is to be killed."""
    code, _ = interrupted(environment, tmp_path, "leaves", IGNORES, signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert not alive(environment)
    assert files(tmp_path) == ["run.partial.log", "run.partial.nsys-rep", "run.partial.run.json"]


def test_an_interrupt_of_the_export_loses_nothing(
    environment: dict[str, str], tmp_path: Path, capture: Capture
) -> None:
    """The program ran well: report and record are kept, and the command of the hint makes the rest."""
    code, err = interrupted(environment, tmp_path, "slow export", "print('hello')", signal.SIGTERM)
    assert code == 143
    assert files(tmp_path) == ["run.partial.log", "run.partial.nsys-rep", "run.partial.run.json"]
    resume = err.splitlines()[-1].rpartition("nsysprof capture ")[2].split()
    assert resume == ["--resume", "traces/run.partial.nsys-rep"]
    done = capture(*resume)
    assert done.code == 0, done.err
    assert done.record("run")["program"].endswith(" [2 arguments]")


def test_a_capture_under_nohup_outlives_its_terminal(environment: dict[str, str], tmp_path: Path) -> None:
    """SIGHUP is ignored from the start, and stays so."""
    program = WAITS.replace("60", "1")
    process = subprocess.Popen(
        ["nohup", sys.executable, "-m", "nsysprof", "capture", "-o", "run", "--", sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 0
    assert "run.sqlite" in files(tmp_path)


@pytest.mark.parametrize("seed", range(int(os.environ.get("NSYSPROF_SIGNALS", "2"))))
def test_a_signal_at_any_time_of_a_capture_leaves_all_or_partial_files(
    environment: dict[str, str], tmp_path: Path, seed: int
) -> None:
    """Final names are whole, other names say `partial`, and no folder for temporary files stays."""
    rng = random.Random(seed)
    command = [sys.executable, "-m", "nsysprof", "capture", "-o", "run", "--", sys.executable, "-c", "print(1)"]
    environment = {**environment, "FAKE_NSYS": ""}
    process = subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    time.sleep(rng.uniform(0.2, 4))
    number = rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if process.returncode < 0 or "init_import_site" in err:  # Python itself was starting yet
        return
    assert "Traceback" not in err
    left = files(tmp_path) if (tmp_path / "traces").exists() else []
    assert not [name for name in left if not name.startswith("run.")]
    final = [name for name in left if ".partial." not in name]
    assert process.returncode in (0, 128 + number)
    if process.returncode == 0:
        assert {"run.json", "run.sqlite"} <= set(final)
    for name in final:
        if name.endswith(".json"):
            json.loads((tmp_path / "traces" / name).read_text(encoding="utf-8"))
        elif name.endswith(".sqlite"):
            with closing(sqlite3.connect(tmp_path / "traces" / name)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
