"""`--json`: stdout is one document, its keys are those that the manual lists, and nothing is left behind."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from nsysprof import cli
from tests.kit import fake_ncu, fake_nsys
from tests.kit.command_line import Run
from tests.kit.trace import Items, Range, launch_kernel, write

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
SAMPLES = ROOT / "analysis" / "math-vs-flash"
COMMANDS = {
    "analyze": "analyze two.sqlite",
    "why": "why two.sqlite",
    "compare": "compare two.sqlite --base RUN::math::* --new RUN::flash::*",
    "history": "history two.sqlite",
    "fleet": "fleet ranks --workers 1",
    "check": "check two.sqlite budget.toml",
    "steps": "steps two.sqlite",
    "forecast": "forecast block.sqlite --range RUN::math::S1024/iter* --scale *gemm*=0.5",
    "ranges": "ranges two.sqlite",
    "doctor": "doctor --nsys /nowhere",
    "export": "export two.sqlite --to csv",
    "scrub": "scrub two.sqlite",
    "capture": "capture -o run --json -- echo done",
    "counters": "counters -o run --json -- echo done",
    "bench": "bench --device cpu --seq 16 --heads 2 --head-dim 8 --dtype fp32 --samples 8 --runs 1 --no-charts -o out",
    "bench diff": f"bench diff {shlex.quote(str(SAMPLES))} {shlex.quote(str(SAMPLES))}",
    "bench report": f"bench report {shlex.quote(str(SAMPLES))} -o out --no-charts",
}
WRITES = ("export", "scrub", "capture", "counters", "bench", "bench report")
BUDGET = '[[range]]\npath = "RUN::math::*/iter*"\nmax_kernels = 30\n'


ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]


def listed(command: str) -> tuple[str, list[str]]:
    """The schema and the keys that the manual gives for a command."""
    [(_, schema, keys)] = [row for row in ROWS if f"`{command}`" in row[0].split(", ")]
    keys = keys.split("): ")[-1].split(";")[0].split("`: ")[0]
    return schema.strip("`"), re.findall(r"(\w+)`?(?=,|$)", keys.replace("`", ""))


def _install_recorders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nsys and an ncu that only play their part."""
    folder.mkdir()
    for name in ("NSYSPROF_NSYS", "NSYSPROF_NCU"):
        monkeypatch.delenv(name, raising=False)
    exported = write(folder / "export.sqlite", [Range("step", 0, 100), launch_kernel("gemm", (1, 2), (3, 4), id=1)])
    made = fake_nsys.install(folder / "nsys", exported)
    made |= fake_ncu.install(folder / "ncu", [fake_ncu.row("gemm", "step", gpu__time_duration__sum="1,000")])
    made["PATH"] = f"{folder / 'nsys' / 'target-linux-x64'}{os.pathsep}{made['PATH']}"
    for name, value in made.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("command", COMMANDS)
def test_stdout_is_the_document_of_the_manual(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Schema and keys are as listed, in that order; without `-o` no folder of results is left."""
    for module in {"fleet": ("distributed",), "bench": ("torch", "nvtx")}.get(command, ()):
        pytest.importorskip(module)
    (tmp_path / "two.sqlite").symlink_to(ROOT / "traces" / "two-processes.sqlite")
    (tmp_path / "block.sqlite").symlink_to(ROOT / "traces" / "block.sqlite")
    (tmp_path / "ranks").symlink_to(ROOT / "docs" / "gallery" / "late-rank")
    (tmp_path / "budget.toml").write_text(BUDGET, encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    if command == "doctor":
        monkeypatch.setattr("nsysprof.catalog.list_workloads", dict)
    if command in ("capture", "counters"):
        _install_recorders(tmp_path / "tools", monkeypatch)
    typed = shlex.split(COMMANDS[command])
    done = run(*typed, *(["--json"] * ("--json" not in typed)))
    document: dict[str, Any] = json.loads(done.out)
    assert done.code == (3 if command == "doctor" else 0), done.err
    schema, keys = listed(command)
    assert document.pop("schema") == schema
    assert list(document) == keys
    if command not in WRITES:
        assert sorted(tmp_path.iterdir()) == before


def test_a_failure_prints_no_document(run: Run) -> None:
    """Where there is no answer stdout is empty, and the message is on stderr."""
    done = run("analyze", "nothing.sqlite", "--json")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("nsysprof: ")


def test_files_are_written_where_a_folder_is_named(tmp_path: Path, run: Run) -> None:
    """With `-o` the document on stdout is that of the folder, byte by byte, and no charts are drawn."""
    report = ROOT / "traces" / "two-processes.sqlite"
    done = run("why", report, "--json", "-o", "out")
    assert done.out == (tmp_path / "out" / "why.json").read_text(encoding="utf-8")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["why.csv", "why.json"]


def test_every_command_has_it() -> None:
    """Each command and subcommand takes `--json`, and the manual has a row for it."""
    group = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    each = {**group, **{f"bench {name}": inner for name, inner in group["bench"].commands.items()}}
    for name, command in each.items():
        if not any("--json" in one.opts for one in command.params):
            pytest.fail(f"nsysprof/commands/{name.split()[0]}.py: add `as_json: JsonOption = False` to {name}")
    for name in sorted(set(each) - {word.strip("`") for row in ROWS for word in row[0].split(", ")}):
        pytest.fail(f"docs/json.md: add a row of `{name}` to the table of documents")


def test_all_commands_answer_for_the_same_steps(tmp_path: Path, run: Run) -> None:
    """Four steps and a first one that takes longer: the same level, share and warm-up in each document."""
    items: list[Items] = []
    for number in range(5):
        at = 10_000 * number + (number > 0) * 20_000
        work = at + (29_000 if number == 0 else 9_000)
        items += [
            Range(f"step {number}", at, work),
            launch_kernel("k", (at + 10, at + 20), (at + 30, work), id=number + 1),
        ]
    write(tmp_path / "report.sqlite", items)
    for command in ("analyze", "why", "steps", "forecast"):
        more = ["--scale", "k=0.5", "--as-profiled"] if command == "forecast" else []
        done = run(command, "report.sqlite", "--json", *more)
        assert json.loads(done.out)["chosen_steps"] == {
            "level": "step*",
            "paths": ["step*"],
            "instances": 5,
            "share": 1.0,
            "found": False,
            "warm_up": 1,
        }, command
