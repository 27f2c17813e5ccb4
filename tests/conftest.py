"""Fixtures that every test may use."""

import functools
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import typer

from nsysprof import cli
from nsysprof.errors import NsysprofError
from nsysprof.tools.nsys import Nsys, find_nsys
from tests.kit.command_line import Run, runner
from tests.kit.trace import Items, write

# What numpy and torch compute here is small: more threads, here and in what is started, cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Texts are as wide as in a pipe. readline, which pytest imports, sets it where `os.environ` does not see it.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# What is started in the background, by `nohup … &` or from a script, ignores these, and so does all that it starts:
# tests that interrupt a program need one that listens.
for _number in (signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """What thousands of collected tests hold is never garbage: no collection looks at it again."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """One test that runs nsys at a time, whatever workers there are: two that profile at once lose their agents."""
    if item.get_closest_marker("nsys") is None or sys.platform == "win32":
        return (yield)
    import fcntl

    with Path(__file__).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def _charts_are_drawn_here() -> Iterator[None]:
    """Another process would import matplotlib for each command; `tests/charts/test_painter.py` has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nsysprof.charts.chart._cores", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_are_made_once() -> Iterator[None]:
    """The command line is the same for each run, and making it takes longer than reading a small report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        patch.setitem(vars(cli), "app", cli.app)
        yield


class MakeTrace(Protocol):
    """What the `trace` fixture gives: items and keywords of `tests.kit.trace.write` in, a path out."""

    def __call__(self, *items: Items, name: str = ..., **how: Any) -> Path: ...


@pytest.fixture
def trace(tmp_path: Path) -> MakeTrace:
    """Makes a tiny report in the test's own folder: `trace(Range("step", 0, 100), ...)` returns its path."""
    made = 0

    def build(*items: Items, name: str = "report.sqlite", **how: Any) -> Path:
        nonlocal made
        made += 1
        path = tmp_path / name
        if path.exists():
            path = tmp_path / f"{path.stem}-{made}{path.suffix}"
        return write(path, items, **how)

    return build


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `nsysprof ARGUMENTS …` in this process, through `main()`, in the test's own folder."""
    return runner(tmp_path, capsys, monkeypatch)


@pytest.fixture(scope="session")
def real_nsys() -> Nsys:
    """The nsys of this machine, with an importer or doing without; skips without one."""
    try:
        return find_nsys()
    except NsysprofError as error:
        pytest.skip(f"no nsys: {error.message}")
