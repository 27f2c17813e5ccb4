"""Programs that are run: their output on its way, how they end, and interrupts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nsysprof.tools import child as module
from nsysprof.tools.child import Ended, run_child
from nsysprof.tools.interrupts import Interrupt, interrupts_ignored, interrupts_raised, interrupts_to


def python(code: str) -> list[str]:
    """The command that runs a piece of Python."""
    return [sys.executable, "-c", code]


def silent(text: str) -> None:
    """Hears nothing."""


def test_a_log_on_a_full_disk_does_not_stop_the_program() -> None:
    """What the program prints is still handed on."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    heard: list[str] = []
    ended = run_child(python("print('x' * 100000)"), full, heard.append)
    assert ended.code == 0
    assert len("".join(heard)) >= 100_000


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_an_echo_that_fails_does_not_stop_the_program(tmp_path: Path, error: Exception) -> None:
    """A terminal that is gone: the log is complete, and the program does not wait for ever for a reader."""

    def fails(text: str) -> None:
        raise error

    assert run_child(python("print('x' * 300_000)"), tmp_path / "log", fails).code == 0
    assert (tmp_path / "log").stat().st_size > 300_000


def test_characters_are_whole_wherever_the_output_is_cut(tmp_path: Path) -> None:
    """Pieces end in the middle of a character; what is no text is replaced."""
    heard: list[str] = []
    write = "import sys; sys.stdout.buffer.write({}); sys.stdout.flush()"
    run_child(python(write.format("b'x' + 'é'.encode() * 200_000")), tmp_path / "log", heard.append)
    assert "".join(heard) == "x" + "é" * 200_000
    assert run_child(python(write.format("b'a\\xff\\0b'")), tmp_path / "log", silent).output == "a\ufffd\0b"


def test_of_a_long_output_only_the_end_is_held(tmp_path: Path) -> None:
    """A program that runs for days prints more than fits into memory."""
    ended = run_child(python("print('x' * 1_000_000); print('the end')"), tmp_path / "log", silent)
    assert len(ended.output) <= 1 << 16
    assert ended.output.endswith("x\nthe end\n")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell starts what outlives it")
def test_what_outlives_a_program_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the pipe open; the time that was measured is the program's own."""
    monkeypatch.setattr(module, "_SILENCE_S", 0.2)
    ended = run_child(["sh", "-c", "echo now; (sleep 20; echo later) &"], tmp_path / "log", silent)
    assert ended.output == "now\n"
    assert ended.wall_ns < 15e9


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_the_code_of_a_killed_program_is_a_shells(tmp_path: Path) -> None:
    """128 + 15 for a SIGTERM, as a shell tells it."""
    assert run_child(python("import os; os.kill(os.getpid(), 15)"), tmp_path / "log", silent).code == 143


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_interrupts_that_are_ignored_stay_ignored() -> None:
    """As under nohup; the others come to whom they are for, and are as before afterwards."""
    came: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    usual = signal.getsignal(signal.SIGTERM)
    try:
        with interrupts_to(came.append):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert came == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == usual
    with interrupts_raised(), interrupts_ignored():
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Interrupt) as caught, interrupts_raised():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.number == signal.SIGTERM


@pytest.mark.skipif(sys.platform == "win32", reason="a shell keeps the arguments")
@pytest.mark.parametrize("session", ["profile-{}", "profile-sleep-{}"])
def test_the_agent_of_an_nsys_is_found_by_its_session(session: str) -> None:
    """nsys starts it apart from itself, under its own process id; the agents of others are not touched."""
    wait = "import sys; sys.stdin.read()"
    with subprocess.Popen(python(wait), stdin=subprocess.PIPE) as child:
        name = f"--session-name={session.format(child.pid)}"
        started = [
            subprocess.Popen([*python(wait), "--start-agent", one], stdin=subprocess.PIPE)
            for one in (name, f"{name}1", "--session-name=profile-1")
        ]
        try:
            assert [process.pid for process in module._agents(child)] == [started[0].pid]
        finally:
            for one in (child, *started):
                one.communicate()


# Waits for no launcher, as nsys does; interrupted it ends with a report.
NSYS = """\
#!{python}
import os, subprocess, sys, time
subprocess.Popen([os.path.join(os.path.dirname(sys.argv[0]), "nsys-launcher"), sys.argv[1]])
try:
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        if sys.argv[3] == "idles":
            time.sleep(60)
    print("came to its end")
except KeyboardInterrupt:
    print("wrote a report")
"""
LAUNCHER = """\
#!{python}
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(" + sys.argv[1] + ")"])
time.sleep(0.5)
os.kill(os.getpid(), 9)
"""


def run_nsys(folder: Path, *arguments: str) -> Ended:
    """How the made-up nsys ended: its program sleeps, then it works or idles for some seconds."""
    for name, text in {"nsys": NSYS, "nsys-launcher": LAUNCHER}.items():
        (folder / name).write_text(text.format(python=sys.executable))
        (folder / name).chmod(0o755)
    return run_child([str(folder / "nsys"), *arguments], folder / "log", lambda text: None)


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits a minute here."""
    monkeypatch.setattr(module, "_LOOK_S", 0.1)
    monkeypatch.setattr(module, "_IDLE_S", 1.0)
    monkeypatch.setattr(module, "_IDLE_TICKS", 3)


@linux
def test_an_nsys_that_waits_for_ever_is_ended(tmp_path: Path, soon: None) -> None:
    """By an interrupt, so that it writes what it has."""
    ended = run_nsys(tmp_path, "0", "60", "idles")
    assert (ended.lost, ended.code, ended.output) == (True, 0, "wrote a report\n")


@linux
def test_an_nsys_at_work_is_left_alone(tmp_path: Path, soon: None) -> None:
    """A launcher also dies of the signal of its program; then nsys imports, which may take its time."""
    ended = run_nsys(tmp_path, "0", "3", "works")
    assert (ended.lost, ended.code, ended.output) == (False, 0, "came to its end\n")


@linux
def test_the_program_may_run_to_its_end(tmp_path: Path, soon: None) -> None:
    """Though its launcher is gone."""
    assert run_nsys(tmp_path, "2", "60", "idles").wall_ns > 2 * 10**9
