"""An nsys whose launcher was killed: ended where it would wait for ever, and left alone where it works on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nsysprof.tools import child
from nsysprof.tools.child import Ended, run_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

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


def run(folder: Path, *arguments: str) -> Ended:
    """How the made-up nsys ended: its program sleeps, then it works or idles for some seconds."""
    for name, text in {"nsys": NSYS, "nsys-launcher": LAUNCHER}.items():
        (folder / name).write_text(text.format(python=sys.executable))
        (folder / name).chmod(0o755)
    return run_child([str(folder / "nsys"), *arguments], folder / "log", lambda text: None)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits a minute here."""
    monkeypatch.setattr(child, "_LOOK_S", 0.1)
    monkeypatch.setattr(child, "_IDLE_S", 1.0)
    monkeypatch.setattr(child, "_IDLE_TICKS", 3)


def test_an_nsys_that_waits_for_ever_is_ended(tmp_path: Path) -> None:
    """By an interrupt, so that it writes what it has."""
    ended = run(tmp_path, "0", "60", "idles")
    assert (ended.lost, ended.code, ended.output) == (True, 0, "wrote a report\n")


def test_an_nsys_at_work_is_left_alone(tmp_path: Path) -> None:
    """A launcher also dies of the signal of its program; then nsys imports, which may take its time."""
    ended = run(tmp_path, "0", "3", "works")
    assert (ended.lost, ended.code, ended.output) == (False, 0, "came to its end\n")


def test_the_program_may_run_to_its_end(tmp_path: Path) -> None:
    """Though its launcher is gone."""
    assert run(tmp_path, "2", "60", "idles").wall_ns > 2 * 10**9
