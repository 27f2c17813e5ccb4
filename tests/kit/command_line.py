"""The command line in this process, for tests that compare what it prints."""

import csv
import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsysprof import cli
from nsysprof.core.files import read_table


@dataclass(frozen=True)
class Done:
    """What a run printed and how it ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


def runner(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *first: str) -> Run:
    """Runs `nsysprof FIRST … ARGUMENTS …` in this process, through `main()`, in a folder."""
    monkeypatch.chdir(folder)

    def call(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["nsysprof", *first, *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        code = stop.value.code
        assert code is None or isinstance(code, int)
        printed = capsys.readouterr()
        return Done(code or 0, printed.out, printed.err)

    return call


def quietly(*arguments: str | Path) -> Done:
    """Runs `nsysprof ARGUMENTS …` in this process, where there is no test around it, as in fixtures of a module."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["nsysprof", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    return Done(int(stop.value.code or 0), out.getvalue(), err.getvalue())


def written_rows(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of a table in a folder of results, compressed or not, or none if there is no such table."""
    texts = [read_table(file).read().decode("utf-8") for file in folder.glob(f"{name}*")]
    return [row for text in texts for row in csv.DictReader(io.StringIO(text, newline=""))]


def known_failure(done: Done) -> str:
    """The message of a known failure: nothing on stdout, one line and perhaps a hint on stderr, exit code 1."""
    assert done.code == 1, done
    assert done.out == ""
    lines = done.err.splitlines()
    assert 1 <= len(lines) <= 2, done.err
    assert lines[0].startswith("nsysprof: ")
    if len(lines) == 2:
        assert re.match(r"  hint: \S", lines[1])
    return done.err
