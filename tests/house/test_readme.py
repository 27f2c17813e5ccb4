"""The README keeps its word: its code runs, its output is what is printed, its tables are complete."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import pytest
import typer

import nsysprof
from nsysprof import cli
from nsysprof.formats.answers import ANALYSIS_SCHEMA
from tests.kit.command_line import runner

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
Analyzed: TypeAlias = tuple[str, list[str], dict[str, Any]]


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def table_after(head: str) -> list[list[str]]:
    """The rows of the table with these heads."""
    lines = README[README.index(f"| {head} |") :].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
    return rows


def options(name: str) -> Iterator[tuple[str, ...]]:
    """The names of each option of a command, its negation included."""
    command = typer.main.get_command(cli.app)
    for parameter in command.commands[name].params:  # type: ignore[attr-defined]
        names = (*parameter.opts, *parameter.secondary_opts)
        if names[0].startswith("-"):
            yield names


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Analyzed:
    """What the README's first command prints of the measured ranges, the files it writes, and its `analysis.json`."""
    folder = tmp_path_factory.mktemp("readme")
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    [line] = [line for line in lines if " && .venv/bin/nsysprof analyze traces/" in line]
    [more] = re.findall(r"With `(--range '[^`]*')`", README)
    arguments = shlex.split(f"{line.rpartition(' && ')[2]} {more}")[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", ["nsysprof", *arguments, "-o", str(folder)])
        printed: list[str] = []

        class Out:
            def write(self, text: str) -> int:
                printed.append(text)
                return len(text)

            def flush(self) -> None:
                pass

        patch.setattr(sys, "stdout", Out())
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
    document = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    return "".join(printed), sorted(path.name for path in folder.iterdir()), document


def test_the_printed_block_is_what_is_printed(analyzed: Analyzed) -> None:
    """Every stretch of the README's example output stands in the real output, in that order and to the letter."""
    example = next(block for block in blocks("text") if "launched from" in block)
    at = 0
    parts = [part.strip("\n") for part in re.split(r"^(?:\.\.\.)?\n", example, flags=re.M)]
    assert sum(len(part.splitlines()) for part in parts) > 20
    for part in parts:
        found = analyzed[0].find(part, at)
        assert found >= 0, f"not printed any more:\n{part}"
        at = found + len(part)


def test_the_printed_comparison_is_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's comparison, line by line, is what its own command prints."""
    line = next(
        line for block in blocks("sh") for line in block.splitlines() if line.startswith("nsysprof compare")
    )
    run = runner(ROOT, capsys, monkeypatch)
    printed = run(*shlex.split(line)[1:], "--no-charts", "-o", tmp_path / "out").out.splitlines()
    example = next(block for block in blocks("text") if "safe-softmax guard" in block).splitlines()
    assert len(example) > 10
    assert [line for line in example if line != "..." and line not in printed] == []


def test_the_table_of_files_is_what_is_written(analyzed: Analyzed) -> None:
    """The README lists the files of an analysis, all and no others."""
    listed = [row[0].strip("`") for row in table_after("file | holds")]
    assert sorted(listed) == analyzed[1]


def test_the_document_is_described(analyzed: Analyzed) -> None:
    """The README lists the keys of `analysis.json` in their order, its schema, its options and its ledger's columns."""
    document, rows = analyzed[2], table_after("key | holds")
    assert [key for row in rows for key in re.findall(r"`(\w+)`", row[0])] == list(document)
    told = {row[0].strip("`"): row[1] for row in rows}
    assert told["schema"].startswith(f'`"{ANALYSIS_SCHEMA}"`')
    assert document["schema"] == ANALYSIS_SCHEMA
    assert re.findall(r"`(\w+)`", told["options"]) == list(document["options"])
    assert re.findall(r"`(\w+)`", told["ledger"]) == list(document["ledger"][0])


def test_the_columns_that_are_printed_are_explained(analyzed: Analyzed) -> None:
    """Each head of the printed table of ranges, and the mark, is in the README's table of words, or says it all."""
    [head] = [line for line in analyzed[0].splitlines() if line.startswith("range  ")]
    told = {word.strip() for row in table_after("word | meaning") for word in re.split("[,]", row[0])}
    plain = {"instances", "launches", "kernels", "CPU"}
    assert set(re.split(" {2,}", head)) - told == plain
    assert any(word.startswith("`*`") for word in told)
    assert " *\n" in analyzed[0]


SECTIONS = {
    "analyze": ("## What an analysis writes", "## Capture"),
    "capture": ("## Capture", "## Why one range"),
    "compare": ("## Why one range", "## What the hardware"),
    "counters": ("## What the hardware", "## Many ranks"),
    "check": ("## A budget", "## Benchmark"),
    "bench": ("## Benchmark", "`bench diff` prints"),
    "fleet": ("## Many ranks", "## One page"),
    "export": ("## Other tools", "## A kernel of our own"),
}


@pytest.mark.parametrize("command", SECTIONS)
def test_every_option_is_explained(command: str) -> None:
    """The README has every option of the command's `--help`, in one of its two forms, and none that is not there."""
    first, last = SECTIONS[command]
    known = {name for names in options(command) for name in names} | {"--help"}
    section = README[README.index(first) : README.index(last)]
    told = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", re.sub(r"```.*?```", "", section, flags=re.S)))
    assert told <= known, f"no such option: {sorted(told - known)}"
    lacking = [names for names in options(command) if not told & set(names) and "--help" not in names]
    assert lacking == []


def test_the_words_of_options_are_accepted() -> None:
    """What the table gives for `--by` and `--threads` are words that the options know."""
    rows = " ".join(row[0] for row in table_after("option | does"))
    choices = {
        parameter.name: set(parameter.type.choices)
        for parameter in typer.main.get_command(cli.app).commands["analyze"].params  # type: ignore[attr-defined]
        if hasattr(parameter.type, "choices")
    }
    for option in ("by", "threads"):
        words = set(re.findall(rf"--{option} (\w+)", rows))
        assert words
        assert words <= {str(getattr(choice, "value", choice)) for choice in choices[option]}


def test_the_library_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The python block runs as it stands in the root of the checkout, and gives the frames it names."""
    (example,) = blocks("python")
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    shown = re.findall(r"^(breakdown\.\w+)", example, re.M)
    assert len(shown) >= 3
    for expression in shown:
        frame = eval(expression, names)
        assert isinstance(frame, pd.DataFrame)
        assert len(frame) > 0


def test_the_numbers_of_the_prose_are_true(analyzed: Analyzed) -> None:
    """How many times as long, `FP32 on CUDA cores` and how long the GPU waits follow from what is printed."""
    busy, lines = (
        {},
        {line.split(" ")[0]: line for line in analyzed[0].splitlines() if line.startswith("RUN::")},
    )
    for name in ("math", "math_reduced", "flash"):
        busy[name] = float(re.findall(r"([\d.]+) ms", lines[f"RUN::{name}::S4096"])[2])
    prose = " ".join(README.split())
    ratio = round(busy["math"] / busy["flash"])
    assert f"at S=4096 `math` keeps the GPU busy {ratio} times as long as `flash`" in prose
    ratio = round(busy["math_reduced"] / busy["flash"])
    assert f"`math_reduced` takes {ratio} times as long as `flash`" in prose
    [share] = re.findall(r"(\d+) % \*$", lines["RUN::flash::S1024"])
    assert f"for {100 - int(share)} % of it the GPU waits for flash to be launched" in prose
    assert "gemm, FP32 FMA" in analyzed[0]


def test_the_share_of_another_thread_is_true() -> None:
    """How much of a training step the autograd thread launches is what its ledger says."""
    with nsysprof.open_report(ROOT / "traces" / "block.sqlite") as report:
        ledger = nsysprof.break_down(nsysprof.attribute(report)).ledger
    [share] = [round(100 * row["share"]) for row in ledger.to_dict("records") if row["fate"] == "followed"]
    assert f"({share} % of the op time of the training step in `traces/block.sqlite`)" in README


def test_files_and_folders_that_are_named_exist() -> None:
    """Links and the layout point at what is there."""
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target
    layout = next(block for block in blocks("text") if "the package: library and command line" in block)
    for folder in re.findall(r"^(\w+)/ ", layout, re.M):
        assert (ROOT / folder).is_dir(), folder
