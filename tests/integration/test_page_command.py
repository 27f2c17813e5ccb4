"""`--html` on the command line: a page beside the other files, named at the end, and never a stale one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.calls import math_and_flash
from tests.command_line import Run, runner
from tests.conftest import Trace
from tests.html_page import parse

COMMANDS = {
    "analyze": ["analyze", "{report}"],
    "compare": ["compare", "{report}", "--base", "RUN::math::S8", "--new", "RUN::flash::S8"],
}


@pytest.fixture
def nsysprof(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `nsysprof ARGUMENTS …` in an empty folder."""
    return runner(tmp_path, capsys, monkeypatch)


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest, trace: Trace) -> list[str]:
    """Either command on a tiny report, without charts."""
    report = str(math_and_flash(trace))
    return [each.format(report=report) for each in COMMANDS[request.param]] + ["--no-charts"]


def test_the_page_is_one_of_the_files(command: list[str], nsysprof: Run, tmp_path: Path) -> None:
    """With --html there is a page, with --no-charts without pictures, and the last line names it."""
    done = nsysprof(*command, "--html", "-o", str(tmp_path / "out"))
    assert done.code == 0
    assert "report.html" in done.err.splitlines()[-1]
    page = parse((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert not list(page.all("img"))
    assert len(list(page.all("figure", class_="timeline"))) == 1


def test_an_earlier_page_does_not_stay(command: list[str], nsysprof: Run, tmp_path: Path) -> None:
    """Without --html there is no page, and that of an earlier run of the same report goes, which is said."""
    out = tmp_path / "out"
    nsysprof(*command, "--html", "-o", str(out))
    done = nsysprof(*command, "-o", str(out))
    assert done.code == 0
    assert "removed from an earlier" in done.err
    assert "report.html" in done.err.splitlines()[-1]
    assert not (out / "report.html").exists()


def test_a_page_of_somebody_else_is_not_replaced(command: list[str], nsysprof: Run, tmp_path: Path) -> None:
    """A report.html that no analysis wrote stays, unless --force says otherwise."""
    (tmp_path / "report.html").write_text("mine")
    done = nsysprof(*command, "--html", "-o", str(tmp_path))
    assert done.code == 1
    assert "report.html" in done.err
    assert (tmp_path / "report.html").read_text() == "mine"
    assert nsysprof(*command, "--html", "--force", "-o", str(tmp_path)).code == 0
    assert (tmp_path / "report.html").read_text() != "mine"
