"""What commands print by default: one screen that begins with the answer, and commands that run as they are printed."""

import re
import shlex
from pathlib import Path

import pytest

from tests.kit.command_line import Done, runner

ROOT = Path(__file__).parents[2]
WIDTH, LINES = 100, 40
RECORDINGS = [
    *(ROOT / "traces").glob("*.sqlite"),
    *(ROOT / "docs" / "gallery").glob("*.sqlite"),
    ROOT / "traces" / "cpu.pt.trace.json.gz",
]
NAMES = sorted(str(path.relative_to(ROOT)) for path in RECORDINGS)


def lines_of(done: Done) -> int:
    """How many lines of a terminal an answer takes, with those that name its files."""
    text = done.out.splitlines() + [line[:WIDTH] for line in done.err.splitlines()]
    return sum(max(-(-len(line) // WIDTH), 1) for line in text)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["analyze", "why", "steps", "forecast", "hotspots", "ranges"])
def test_a_screen_has_commands_that_run(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 40 lines at 100 columns, whose first names the report; what follows a `$` runs, copied as it stands."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    run = runner(ROOT, capsys, monkeypatch)

    def quickly(*arguments: str) -> Done:
        writes = arguments[0] in ("analyze", "why", "steps", "hotspots") or "--as-profiled" in arguments
        return run(*arguments, *(["--no-charts", "--force", "-o", tmp_path / "out"] if writes else []))

    done = quickly(command, name)
    if name.endswith(".json.gz") and command in ("why", "forecast"):
        assert "GPU" in done.out + done.err  # it recorded the CPU alone
        return
    assert done.code == 0, done.err
    assert lines_of(done) <= LINES, done.out
    assert done.out.startswith(f"{name}: ")
    commands = re.findall(r"^ +\$ nsysprof (.*)$", done.out, re.M)
    assert commands
    for each in dict.fromkeys(commands):
        again = quickly(*shlex.split(each))
        assert again.code == 0, (each, again.err)
        assert again.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("traces/run.sqlite", "--base", "RUN::math::*", "--new", "RUN::flash::*"),
        ("traces/run.sqlite", "traces/block.sqlite"),
        ("traces/block.sqlite", "--base", "RUN::math::*/iter*/forward", "--new", "RUN::flash::*/iter*/forward"),
        ("docs/gallery/item.sqlite", "--range", "step*", "--slowest"),
        ("docs/gallery/item.sqlite", "docs/gallery/loader.sqlite"),
    ],
)
def test_a_comparison_fits_a_screen_and_names_the_range_to_look_at(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 40 lines; its command asks why the slower side waits, by a path that the report has."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    run = runner(ROOT, capsys, monkeypatch)
    written = ("--no-charts", "--force", "-o", tmp_path / "out")
    done = run("compare", *arguments, *written)
    assert done.code in (0, 3), done.err
    assert lines_of(done) <= LINES, done.out
    [command] = re.findall(r"^ +\$ nsysprof (.*)$", done.out, re.M)
    again = run(*shlex.split(command), *written)
    assert again.code == 0, (command, again.err)
