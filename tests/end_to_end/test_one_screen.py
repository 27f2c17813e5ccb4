"""What commands print by default: one screen that begins with the answer, and commands that run as they are printed."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MakeTrace
from tests.kit.command_line import Done, Run, runner
from tests.kit.program import US
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "REPORT", "--to", "csv"),
        ("export", "REPORT", "--to", "perfetto", "-o", "two words"),
        ("scrub", "REPORT", "-o", "it's.sqlite"),
        ("check", "--init", "REPORT", "-o", "bud get.toml"),
        ("check", "REPORT", "keeps.toml"),
        ("check", "REPORT", "breaks.toml", "--no-merge", "--threads", "strict"),
    ],
)
def test_what_writes_or_checks_ends_with_a_command_that_runs(
    arguments: tuple[str, ...],
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last line on stdout, whose words are quoted and whose options are those of the question."""
    run = runner(tmp_path, capsys, monkeypatch)
    for budget, most in (("keeps", "1000 s"), ("breaks", "1 ns")):
        (tmp_path / f"{budget}.toml").write_text(f'[[range]]\npath = "*"\nmax_cpu = "{most}"\n', encoding="utf-8")
    done = run(*(str(ROOT / name) if each == "REPORT" else each for each in arguments))
    if done.code == 1:  # scrub reads no traces, and a draft wants ranges that repeat
        assert arguments[0] == "scrub" or "--init" in arguments
        return
    assert done.code == (3 if "breaks.toml" in arguments else 0), done.err
    last = done.out.splitlines()[-1]
    assert last.startswith("   $ nsysprof ")
    assert last.endswith(" --threads strict --no-merge" * ("--no-merge" in arguments))
    words = shlex.split(last)[2:]
    again = run(*words, *(("--no-charts", "-o", "out") if words[0] == "analyze" else ()))
    assert again.code == 0, (last, again.err)


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


def program(name: str) -> list[Items]:
    """Twenty steps inside a range of this name, each with CPU time, then two kernels; the CPU needs longest in one."""
    out: list[Items] = []
    at = US
    for number in range(20):
        begin, ready = at, at + (900 if number == 13 else 300) * US
        for kernel, launch in enumerate((ready, ready + 10 * US), 2 * number):
            gpu = ready + (20 + 100 * (kernel % 2)) * US
            out += [launch_kernel("k", (launch, launch + 5 * US), (gpu, gpu + 100 * US), id=kernel + 1)]
        at = ready + 220 * US
        out += [Range("step", begin, at), Range("load", begin + US, ready - US)]
    return [Range(name, 0, at + US), *out]


ASKING = [  # each prints the name of the range around the steps in its command
    ("ranges",),
    ("why",),
    ("steps",),
    ("hotspots",),
    ("forecast",),
    ("forecast", "--remove-code", "*/load"),
    ("analyze",),
]


@pytest.mark.parametrize("name", ["it\te\nm\x1b[2J \u202ename", "it's two"])
@pytest.mark.parametrize("asked", ASKING)
def test_commands_with_any_name_and_option_can_be_copied(
    asked: tuple[str, ...], name: str, run: Run, trace: MakeTrace
) -> None:
    """A `?` stands for each control character of a range. The question's options are in the command, which runs."""
    path = trace(*program(name)).name
    written = ("--no-charts", "--force", "-o", "out") if asked[0] != "ranges" else ()
    for options in ((), ("--threads", "strict", "--ranges", "nvtx", "--no-merge")):
        done = run(asked[0], path, *asked[1:], *options, *written)
        assert done.code == 0, done.err
        commands = re.findall(r"^ +\$ nsysprof (.*)$", done.out, re.M)
        assert commands
        for each in commands:
            assert each.isprintable()
            words = shlex.split(each)
            assert words[len(words) - len(options) :] == [*options]
            again = run(*words, *(written if words[0] != "ranges" else ()))
            assert again.code == 0, (each, again.err)


def test_a_file_name_with_control_characters_can_be_copied(run: Run, trace: MakeTrace, tmp_path: Path) -> None:
    """It is quoted as bash reads it."""
    trace(Range("a", 0, 9000), launch_kernel("k", (10, 20), (50, 950), id=1), name="it's a\x1b.sqlite")
    done = run("ranges", "it's a\x1b.sqlite")
    [command] = re.findall(r"^ +\$ nsysprof analyze (.*) --range a$", done.out, re.M)
    assert command == r"$'it\'s a\x1b.sqlite'"
    subprocess.run(["bash", "-c", f"ls {command}"], cwd=tmp_path, check=True)
