"""The progress bar: only on a terminal, only after a second, and its total is what the work reports."""

import io
import sys
import time
from pathlib import Path

import pytest

from nsysprof.attribution.attribute import attribute
from nsysprof.commands import progress
from nsysprof.commands.progress import progress_bar
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report

SHIPPED = Path(__file__).parents[2] / "traces" / "run.sqlite"


class Terminal(io.StringIO):
    """A stderr that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, patience: float = 0.0) -> Terminal:
    """A terminal for stderr from here on (pytest puts its own in place between fixtures and test)."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(progress, "_PATIENCE_S", patience)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return made


def until(terminal: Terminal, word: str) -> None:
    """Wait until the terminal shows a word, for at most ten seconds."""
    limit = time.monotonic() + 10
    while word not in terminal.getvalue():
        assert time.monotonic() < limit, terminal.getvalue()
        time.sleep(0.02)


def test_nothing_is_shown_where_stderr_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """In a pipe the callback does nothing, and the total is not even asked for."""

    def total() -> int:
        raise AssertionError("asked for the total without a bar")

    with progress_bar(total) as advance:
        advance("reading", 10)
    assert capfd.readouterr() == ("", "")


def test_quick_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends within the second leaves no trace on the terminal."""
    terminal = on_terminal(monkeypatch, patience=60.0)
    began = time.monotonic()
    with progress_bar(lambda: 100) as advance:
        advance("reading", 100)
    assert terminal.getvalue() == ""
    assert time.monotonic() - began < 50


def test_the_design_s_second_is_the_patience() -> None:
    """The bar comes after one second."""
    assert progress._PATIENCE_S == 1.0


def test_a_bar_shows_the_step_and_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the step and the percentage done are drawn, on stderr, and wiped when the work is done."""
    terminal = on_terminal(monkeypatch)
    with progress_bar(lambda: 200) as advance:
        advance("reading kernel rows", 20)
        until(terminal, "reading kernel rows")
        advance("attributing", 30)
        until(terminal, "attributing")
        until(terminal, "25%")
    assert terminal.getvalue().rindex("\x1b[2K") > terminal.getvalue().rindex("25%")


def test_results_stay_on_stdout(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """What is printed to stdout while a bar is shown is not drawn over on stderr."""
    terminal = on_terminal(monkeypatch)
    with progress_bar() as advance:
        advance("drawing charts", 0)
        until(terminal, "drawing charts")
        print("a result")  # noqa: T201
    assert "a result" not in terminal.getvalue()
    assert capfd.readouterr().out == "a result\n"


def test_a_long_silent_step_shows_a_bar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar needs no call to appear: a step that reports nothing for a second is where it is wanted."""
    terminal = on_terminal(monkeypatch)
    with progress_bar() as advance:
        advance("drawing charts", 0)
        until(terminal, "drawing charts")


def test_the_terminal_is_left_clean_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception under the bar goes on, and the cursor comes back."""
    terminal = on_terminal(monkeypatch)
    with pytest.raises(ZeroDivisionError), progress_bar(lambda: 10) as advance:  # noqa: PT012
        advance("reading", 1)
        until(terminal, "reading")
        raise ZeroDivisionError
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_rows_reported_add_up_to_the_total(seed: int | None, trace: MakeTrace) -> None:
    """What reading and attributing report is what the bar was told to expect, and never more: it ends at 100 %."""
    reported: list[int] = []

    def advance(step: str, rows: int) -> None:
        assert step
        reported.append(rows)

    with open_report(SHIPPED if seed is None else trace(*random_report(seed))) as report:
        attribute(read_tables(report, advance), "follow", advance)
        # launches with several ops, or without, are fewer than was expected of them
        assert 0.7 * report.reader.steps() < sum(reported) <= report.reader.steps()
        if seed is None:
            assert sum(reported) == report.reader.steps()
