"""README and manual keep their word: their code runs, their output is what is printed, their tables are complete."""

import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pytest
import typer

import nsysprof
from nsysprof import cli
from nsysprof.analyze.records import INSTANCES, OPS
from nsysprof.check import budget as budget_module
from nsysprof.check.budget import read_budget
from nsysprof.counters.text import counters_summary
from nsysprof.formats.counters import METRICS, CounterRow
from nsysprof.kernels.classify import classify, load_rules
from nsysprof.steps.files import steps_document
from nsysprof.summaries.every import FILES
from nsysprof.waits.causes import WAITING_FOR
from nsysprof.why.files import why_document
from tests.kit import manual
from tests.kit.command_line import quietly, runner
from tests.kit.reports import attributed, broken_down

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
REFERENCE = {path.stem: path.read_text(encoding="utf-8") for path in sorted(manual.REFERENCE.glob("*.md"))}
ANALYZE = PAGES["analyze"]
Analyzed: TypeAlias = tuple[str, list[str], dict[str, Any]]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def table_after(head: str, page: str = "files") -> list[list[str]]:
    """The rows of the table of a page with these heads."""
    text = PAGES[page]
    lines = text[text.index(f"| {head} |") :].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
    return rows


def options(name: str) -> Iterator[tuple[str, ...]]:
    """The names of each option of a command, its negation included."""
    command = typer.main.get_command(cli.app)
    for part in name.split():
        command = command.commands[part]  # type: ignore[attr-defined]
    for parameter in command.params:
        names = (*parameter.opts, *parameter.secondary_opts)
        if names[0].startswith("-"):
            yield names


@pytest.fixture(scope="module")
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Analyzed:
    """What the README's first command prints, then with `--full`, the files it writes, and its `analysis.json`."""
    folder = tmp_path_factory.mktemp("readme")
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    [line] = [line for line in lines if " && .venv/bin/nsysprof analyze traces/" in line]
    arguments = shlex.split(line.rpartition(" && ")[2])[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        done = [quietly(*arguments, "-o", folder, *more) for more in ((), ("--full",))]
    assert [each.code for each in done] == [0, 0]
    document = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    return (
        "\n".join(each.out for each in done),
        sorted(path.name.removesuffix(".gz") for path in folder.iterdir()),
        document,
    )


def test_the_printed_block_is_what_is_printed(analyzed: Analyzed) -> None:
    """Every stretch of the README's example stands in the real output, in that order and to the letter."""
    example = next(block for block in blocks(README, "text") if "Top bottlenecks" in block)
    at = 0
    parts = [part.strip("\n") for part in re.split(r"^(?:\.\.\.)?\n", example, flags=re.M)]
    assert sum(len(part.splitlines()) for part in parts) >= 20
    for part in parts:
        found = analyzed[0].find(part, at)
        assert found >= 0, f"not printed any more:\n{part}"
        at = found + len(part)


def test_the_readme_is_short() -> None:
    """At most 8 kB: everything else is in the manual."""
    assert len((ROOT / "README.md").read_bytes()) <= 8000


def test_the_printed_comparison_is_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of the pages on `compare` and on measured traffic is what the first command of `compare` prints."""
    line = next(
        line
        for block in blocks(PAGES["compare"], "sh")
        for line in block.splitlines()
        if line.startswith("nsysprof compare")
    )
    run = runner(ROOT, capsys, monkeypatch)
    asked = (*shlex.split(line)[1:], "--no-charts", "-o", tmp_path / "out")
    printed = [line for more in ((), ("--all", "--force")) for line in run(*asked, *more).out.splitlines()]
    for page, words in (("compare", "safe-softmax guard      4"), ("traffic", "memory traffic per call")):
        example = next(block for block in blocks(PAGES[page], "text") if words in block).splitlines()
        assert len(example) > 10
        assert [line for line in example if line != "..." and line not in printed] == []


EXAMPLES = [
    pytest.param(command, shown, id=f"{name}: {command}"[:70])
    for name, text in PAGES.items()
    for lines, shown in re.findall(r"^```sh\n([^`]*)^```\n\n```text\n(.*?)^```", text, re.M | re.S)
    if (command := lines.splitlines()[-1]).startswith("nsysprof ") and name not in ("compare", "counters", "bench")
]


@pytest.mark.parametrize(("command", "shown"), EXAMPLES)
def test_the_block_below_a_command_is_what_it_prints(
    command: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of a block of text is printed by the command in the block above it, in that order."""
    arguments = shlex.split(command)[1:]
    if arguments[0] in ("analyze", "compare", "fleet", "forecast", "steps", "why"):
        arguments += ["--no-charts", "-o", str(tmp_path / "out")]
    if arguments[0] == "fleet":
        pytest.importorskip("distributed")
        arguments += ["--workers", "1"]
    printed = f"\n{runner(ROOT, capsys, monkeypatch)(*arguments).out}"
    at = 0
    for line in shown.splitlines():
        if line not in ("...", ""):
            found = printed.find(f"\n{line}\n", at)
            assert found >= 0, f"not printed any more, or not there:\n{line}"
            at = found + 1


def test_the_keys_of_steps_are_explained() -> None:
    """The page on `steps` has each key of `steps.json`, of its paths and findings."""
    document = steps_document(nsysprof.steps(attributed(ROOT / "traces" / "run.sqlite")))
    table = PAGES["steps"].split("### The keys of steps.json")[1].split("[All options]")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert {*document, *document["paths"][0], *document["findings"][0]} <= named


def test_the_keys_of_waits_are_explained() -> None:
    """The page on `why` has each key of `why.json`, of its paths and findings."""
    document = why_document(nsysprof.why(attributed(ROOT / "traces" / "block.sqlite")))
    table = PAGES["why"].split("### The keys of why.json")[1].split("\n[All options]")[0]
    rows = [line.split(" | ", 1) for line in table.splitlines() if line.startswith("| `")]
    assert [key for row in rows for key in re.findall(r"`(\w+)`", row[0])] == list(document)
    held = {row[0].strip("| `"): set(re.findall(r"`(\w+)`", row[1])) for row in rows}
    assert held["findings"] == set(document["findings"][0])
    assert held["paths"] == set(document["paths"][0]) - {"path", "gpu", "pid"}
    assert f'"{document["schema"]}"' in rows[0][1]


def test_the_causes_of_idle_time_are_explained() -> None:
    """The page on `compare` lists the causes of idle time, all and no others."""
    rows = re.findall(r"^\| (`idle: [^|]*)\|", PAGES["compare"], re.M)
    assert {cause for row in rows for cause in re.findall(r"`([^`]*)`", row)} == set(WAITING_FOR)


def test_the_printed_count_is_what_is_printed() -> None:
    """The block of the page on `counters` is the summary of the table that it names."""
    table = ROOT / "traces" / "run.counters.csv"
    with table.open(newline="", encoding="utf-8") as file:
        rows = [
            CounterRow(
                row["range"],
                int(row["order"]),
                int(row["pid"]),
                row["kernel"],
                row["grid"],
                row["block"],
                {name: float(row[name]) if row[name] else None for name in METRICS},
            )
            for row in csv.DictReader(file)
        ]
    record = json.loads(table.with_suffix(".json").read_text(encoding="utf-8"))
    names = list(dict.fromkeys(row.kernel for row in rows))
    families = dict(zip(names, classify(load_rules(), names).family, strict=True))
    printed = counters_summary(rows, record, families).splitlines()
    (example,) = blocks(PAGES["counters"], "text")
    assert [line for line in example.splitlines() if line != "..." and line not in printed] == []


def test_the_table_of_files_is_what_is_written(analyzed: Analyzed) -> None:
    """The page lists the files of an analysis, all and no others; some are there only where something was recorded."""
    rows = [(row[0].strip("`"), row[1].startswith("if ")) for row in table_after("file | holds")]
    assert sorted(name for name, perhaps in rows if not perhaps) == analyzed[1]
    assert {name for name, perhaps in rows if perhaps} == {*FILES} - {*analyzed[1]}


def test_the_document_is_described(analyzed: Analyzed) -> None:
    """The README lists the keys of `analysis.json` in their order, its schema, its options and its ledger's columns."""
    document, rows = analyzed[2], table_after("key | holds")
    assert [key for row in rows for key in re.findall(r"`(\w+)`", row[0])] == list(document)
    told = {row[0].strip("`"): row[1] for row in rows}
    assert told["schema"].startswith(f'`"{document["schema"]}"`')
    assert re.findall(r"`(\w+)`", told["options"]) == list(document["options"])
    assert re.findall(r"`(\w+)`", told["ledger"]) == list(document["ledger"][0])


def test_the_columns_that_are_printed_are_explained(analyzed: Analyzed) -> None:
    """Each head of the printed table of ranges, and the mark, is in the README's table of words, or says it all."""
    heads = [line for line in analyzed[0].splitlines() if line.startswith("range  ")]
    told = {word.strip() for row in table_after("word | meaning", "analyze") for word in re.split("[,]", row[0])}
    plain = {"instances", "launches", "kernels", "CPU"}
    assert {word for head in heads for word in re.split(" {2,}", head)} - told <= plain
    assert any(word.startswith("`*`") for word in told)
    assert " *\n" in analyzed[0]


SECTIONS = {
    "analyze": ("analyze", "", ""),
    "capture": ("capture", "", "## doctor"),
    "doctor": ("capture", "## doctor", "## scrub"),
    "scrub": ("capture", "## scrub", ""),
    "compare": ("compare", "", ""),
    "history": ("history", "", ""),
    "why": ("why", "", ""),
    "steps": ("steps", "", ""),
    "hotspots": ("hotspots", "", ""),
    "forecast": ("forecast", "", ""),
    "ranges": ("ranges", "", ""),
    "counters": ("counters", "", ""),
    "check": ("check", "", ""),
    "bench": ("bench", "", "## bench diff"),
    "bench diff": ("bench", "## bench diff", "## bench report"),
    "bench report": ("bench", "## bench report", "## What it cannot"),
    "fleet": ("fleet", "", ""),
    "export": ("export", "", ""),
}


def test_every_command_has_its_section() -> None:
    """The manual explains each command of `nsysprof --help`, and the README's table has its question."""
    commands = set(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]
    rows = re.findall(r"^\| \[`(\w+)`\]", README, re.M)
    for name in sorted(commands - set(rows)):
        pytest.fail(f"README.md: add the row `| [`{name}`](docs/{name}.md) | its question |` to the table of commands")
    for name in sorted(commands - {command.split()[0] for command in SECTIONS}):
        pytest.fail(f'tests/house/test_docs.py: add `"{name}": ("{name}", "", ""),` to SECTIONS')
    assert {command.split()[0] for command in SECTIONS} == commands == set(rows)


@pytest.mark.parametrize("command", SECTIONS)
def test_no_option_is_made_up(command: str) -> None:
    """The page of a command names options that the command has, and none that is not there."""
    page, first, last = SECTIONS[command]
    known = {name for names in options(command) for name in names} | {"--help"}
    section = PAGES[page]
    section = section[section.index(first) : section.index(last) if last else None]
    told = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", re.sub(r"```.*?```", "", section, flags=re.S)))
    assert told <= known, f"no such option: {sorted(told - known)}"


@pytest.mark.parametrize("name", manual.PAGES)
def test_the_reference_is_generated(name: str) -> None:
    """Commands, columns and Python are what the program, its tables and its docstrings say today."""
    written = (manual.REFERENCE / name).read_text(encoding="utf-8")
    assert written == manual.PAGES[name](), "run: python -m tests.kit.manual"


def test_the_program_of_the_first_page_is_shipped_and_runs() -> None:
    """The page shows the file as it is, and that trains for 20 steps wherever it runs."""
    program = ROOT / "docs" / "train.py"
    assert program.read_text(encoding="utf-8") in blocks(PAGES["start"], "py")
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 20, done.stderr


def test_every_page_is_in_the_navigation() -> None:
    """The site shows each page of the manual, and each study, at one place."""
    config = (ROOT / "docs" / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    pages = re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", config, re.M)
    studies = {path.relative_to(ROOT).as_posix() for path in (ROOT / "analysis").glob("*/README.md")}
    for name in sorted({*studies, *(name for name in TEXTS if name.startswith("docs/"))} - {*pages}):
        pytest.fail(f"docs/site/mkdocs.yml: add the line `- {name}` to nav")
    assert len(pages) == len({*pages})


@pytest.mark.parametrize("page", ["python", "agents"])
def test_the_library_example_of_another_page_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of Python that imports the package runs as it stands."""
    monkeypatch.chdir(ROOT)
    examples = [
        code for code in re.findall(r"^```py(?:thon)?\n(.*?)^```", PAGES[page], re.M | re.S) if "import" in code
    ]
    assert examples
    for code in examples:
        exec(compile(code, f"docs/{page}.md", "exec"), {})


def test_the_library_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The python block runs as it stands in the root of the checkout, and gives the frames it names."""
    (example,) = blocks(PAGES["python"], "python")
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(compile(example, "docs/python.md", "exec"), names)
    [column] = re.findall(r"`(breakdown\.columns[^`]*)`", PAGES["python"])
    assert isinstance(eval(column, names), np.ndarray)
    shown = re.findall(r"^(breakdown\.\w+)  # pandas", example, re.M)
    assert len(shown) >= 3
    for expression in shown:
        frame = eval(expression, names)
        assert isinstance(frame, pd.DataFrame)
        assert len(frame) > 0


def test_the_numbers_of_the_prose_are_true(analyzed: Analyzed) -> None:
    """How many times as long, `FP32 on CUDA cores` and how long the GPU waits follow from what is printed."""
    busy, lines = ({}, {line.split(" ")[0]: line for line in analyzed[0].splitlines() if line.startswith("RUN::")})
    for name in ("math", "math_reduced", "flash"):
        busy[name] = float(re.findall(r"([\d.]+) ms", lines[f"RUN::{name}::S4096"])[1])
    [share] = re.findall(r"(\d+) % \*$", lines["RUN::flash::S1024"])
    told = [f"at S=4096 `math` keeps the GPU busy {round(busy['math'] / busy['flash'])} times as long as `flash`"]
    told += [f"the GPU spends {100 - int(share)} % of the span waiting for launches"]
    prose = " ".join(ANALYZE.split()).replace("At S=4096,", "at S=4096")
    assert [words for words in told if words not in prose] == []
    ratio = round(busy["math_reduced"] / busy["flash"])
    assert f"`math_reduced` takes {ratio} times as long as `flash`" in " ".join(ANALYZE.split())
    assert "gemm, FP32 FMA" in analyzed[0]


def test_the_share_of_another_thread_is_true() -> None:
    """How much of a training step the autograd thread launches is what its ledger says."""
    ledger = broken_down(ROOT / "traces" / "block.sqlite").ledger
    [share] = [round(100 * row["share"]) for row in ledger.to_dict("records") if row["fate"] == "followed"]
    prose = " ".join(PAGES["attribution"].split())
    assert f"({share} % of GPU op time in the training step of `traces/block.sqlite`)" in prose


def test_the_examples_of_a_budget_are_read(tmp_path: Path) -> None:
    """The budget of the page on `check` is one, and its table has each key that a budget can have."""
    (example,) = blocks(PAGES["check"], "toml")
    budget = tmp_path / "budget.toml"
    budget.write_text(example, encoding="utf-8")
    (limits,) = read_budget(budget).ranges
    assert (limits.glob, limits.stat, limits.backend) == ("RUN::flash::*/iter*", "p95", "flash")
    rows = PAGES["check"][PAGES["check"].index("| key | limits |") :]
    listed = {key for cell in re.findall(r"^\| (`.*?`) \|", rows, re.M) for key in re.findall(r"`(\w+)`", cell)}
    keys = {*budget_module._Top.__struct_fields__, *budget_module._Range.__struct_fields__} - {"range"}
    assert {key.removesuffix("_ns") for key in keys} <= listed


def test_the_columns_of_the_query_exist() -> None:
    """The SQL of the page on `export` names columns of the exported tables."""
    (query,) = blocks(PAGES["export"], "sql")
    tables = {"o": OPS.names, "i": INSTANCES.names}
    named = re.findall(r"\b([oi])\.(\w+)", query)
    assert len(named) >= 4
    assert [(table, column) for table, column in named if column not in tables[table]] == []


TEXTS = {"README.md": README, "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")}
TEXTS |= {f"docs/{name}.md": text for name, text in PAGES.items()}
TEXTS |= {f"docs/reference/{name}.md": text for name, text in REFERENCE.items()}
TEXTS |= {
    f"docs/fixes/{path.name}": path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "fixes").glob("*.md")
}


def anchors(text: str) -> set[str]:
    """What `#…` may lead to in a page, as GitHub makes it of its headings."""
    heads = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    """Files, pages, pictures and headings that are linked to exist; every page of the manual is in its index."""
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)]*))?\)", TEXTS[name]):
        if "://" in target:
            continue
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"
    if name == "docs/README.md":
        linked = set(re.findall(r"\]\(([^)#]*)", TEXTS[name]))
        for page in sorted({f"{page}.md" for page in PAGES} - {"README.md"} - linked):
            pytest.fail(f"docs/README.md: add a line that links to {page}")
