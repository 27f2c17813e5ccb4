"""Ctrl-C at moments that no clock would meet: while Python imports, where nothing can be raised, and at the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Interrupts itself when a module is looked for, once; `HOW` is how.
PROGRAM = """
import atexit, os, signal, sys, weakref

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)

class Thing:
    pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and self in sys.meta_path:
            sys.meta_path.remove(self)
            if {how!r} == "callback":
                thing = Thing()
                self.ref = weakref.ref(thing, interrupt)
                del thing
            elif {how!r} == "exit":
                atexit.register(interrupt)
            else:
                interrupt()

sys.meta_path.insert(0, Finder())
sys.argv = ["nsysprof", "analyze", {report!r}, "--no-charts", "-o", {out!r}]
from nsysprof.__main__ import main
main()
"""


def interrupted(module: str, out: Path, how: str = "at once") -> tuple[int, str]:
    """The exit code and stderr of an analysis that is interrupted when it imports a module."""
    report = str(ROOT / "traces" / "block.sqlite")
    code = PROGRAM.format(module=module, how=how, report=report, out=str(out))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )
    return done.returncode, done.stderr


pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


@pytest.mark.parametrize("module", ["nsysprof.cli", "typer"])
def test_an_interrupt_while_the_command_line_is_imported(module: str, tmp_path: Path) -> None:
    """Before anything is done, an interrupt ends the program as it ends any: by the signal, without a word."""
    assert interrupted(module, tmp_path / "out") == (-signal.SIGINT, "")


@pytest.mark.parametrize("module", ["nsysprof.commands.analyze", "numpy", "numpy.linalg", "nsysprof.analyze.text"])
def test_an_interrupt_while_a_command_imports(module: str, tmp_path: Path) -> None:
    """Within a command it ends with the exit code of a shell, nothing on stderr and nothing written."""
    assert interrupted(module, tmp_path / "out") == (128 + signal.SIGINT, "")
    assert not (tmp_path / "out").exists()


def test_an_interrupt_where_nothing_can_be_raised_comes_again(tmp_path: Path) -> None:
    """In a callback Python can only print an interrupt and go on; here it is not lost and not printed."""
    assert interrupted("nsysprof.trace.report", tmp_path / "out", "callback") == (128 + signal.SIGINT, "")
    assert not (tmp_path / "out").exists()


def test_an_interrupt_when_all_is_done_changes_nothing(tmp_path: Path) -> None:
    """While Python ends, the results are there, and so is the exit code that says so."""
    code, said = interrupted("nsysprof.trace.report", tmp_path / "out", "exit")
    assert (code, said.strip().partition(": ")[0]) == (0, f"Written to {tmp_path}/out/")
    assert (tmp_path / "out" / "analysis.json").exists()


def test_tests_pass_where_interrupts_are_ignored() -> None:
    """What is started with `nohup … &` ignores SIGINT; a test that interrupts a program passes all the same."""
    test = "tests/counters/test_command.py::test_an_interrupt_leaves_the_log_alone"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert done.returncode == 0, done.stdout
