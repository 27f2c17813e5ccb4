"""What commands print by default: one screen that begins with the answer, and commands that run as they are printed."""

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import MakeTrace
from tests.kit.command_line import Done, Run, runner
from tests.kit.trace import Items, Range, launch_kernel

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


def steps(name: str) -> list[Items]:
    """Three numbered steps inside a range of this name, the second the longest, each with one kernel."""
    out: list[Items] = [Range(name, 0, 9000)]
    for number, length in enumerate((400, 900, 600), 1):
        at = 2000 * number
        out += [Range(f"step{number}", at, at + 1000)]
        out += [launch_kernel("k", (at + 10, at + 20), (at + 50, at + 50 + length), id=number)]
    return out


def test_commands_name_steps_as_recorded_if_nothing_was_merged(run: Run, trace: MakeTrace) -> None:
    """With --no-merge, the command that is printed has it as well, and finds the one step; without, it has it not."""
    path = trace(*steps("a/b [x]")).name
    written = ("--no-charts", "--force", "-o", "out")
    for arguments, expected in (
        (("compare", path, "--no-merge", "--base", "*/step1", "--new", "*/step2", *written), "why"),
        (("ranges", path, "--no-merge"), "analyze"),
    ):
        done = run(*arguments)
        [command] = re.findall(r"^ +\$ nsysprof (.*)$", done.out, re.M)
        assert command.startswith(f"{expected} {path} --range ")
        assert command.endswith(" --no-merge")
        again = run(*shlex.split(command), *written)
        assert again.code == 0, (command, again.err)
    assert " --no-merge" not in run("ranges", path).out


@pytest.mark.parametrize("name", ["it\te\nm", "a\x1b[2J", "\u202ename"])
def test_a_command_that_cannot_be_copied_has_no_range(name: str, run: Run, trace: MakeTrace) -> None:
    """A path with control characters is left out of the command, which stays on one line and runs."""
    path = trace(Range(name, 0, 9000), launch_kernel("k", (10, 20), (50, 950), id=1)).name
    done = run("ranges", path)
    assert done.out.splitlines()[1:3] == [f"   $ nsysprof analyze {path}", ""]
    assert run("analyze", path, "--no-charts").code == 0
