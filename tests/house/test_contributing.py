"""CONTRIBUTING keeps its word: the picture is the contract, and the worked question answers what it says."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from nsysprof import cli
from tests.conftest import MakeTrace

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", GUIDE, re.M | re.S)
MODULES = {found[1]: code for _, code in BLOCKS if (found := re.match(r"# ([\w/]+)\.py\n", code))}


def test_the_picture_is_the_contract() -> None:
    """The lines of the picture are the layers that import-linter checks, and these are all there is in the package."""
    (picture,) = [text for language, text in BLOCKS if language == "text" and "THE PROGRAM" in text]
    drawn = [re.split(" {2,}", line)[0] for line in picture.splitlines() if not line.startswith(" ")]
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = configured["tool"]["importlinter"]["contracts"]
    for line in contract["layers"]:
        if line not in drawn:
            pytest.fail(f"CONTRIBUTING.md: the picture of the house lacks `{line}`, a line of the contract")
    assert drawn == contract["layers"]
    there = {
        path.stem for path in (ROOT / "nsysprof").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert set(re.findall(r"\w+", " ".join(drawn))) == there - {"__init__"}


def test_folders_and_files_that_are_named_exist() -> None:
    """The table of folders, and the paths in the text but for those of the example."""
    rows = re.findall(r"^\| `([\w.]+/)` \|", GUIDE, re.M)
    assert len(rows) > 5
    assert [name for name in rows if not (ROOT / name).is_dir()] == []


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Runs the modules of the worked question as if they lay in the package; gives one by its name."""
    made = {}
    monkeypatch.setitem(sys.modules, "nsysprof.tiny", ModuleType("nsysprof.tiny"))
    for path, code in MODULES.items():
        name = path.replace("/", ".")
        made[name] = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made[name])
        exec(compile(code, f"CONTRIBUTING.md: {path}", "exec"), made[name].__dict__)
    return made.__getitem__


def test_the_worked_question_prints_what_it_says(
    worked: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the example, registered as printed, runs on the shipped report and prints the block below it."""
    monkeypatch.setattr(cli, "_COMMANDS", {})
    worked("nsysprof.commands.tiny")
    [registration] = re.findall(r"`(_command\(.*tiny.*\))`", GUIDE)
    exec(registration, vars(cli))
    report, table = ROOT / "traces" / "run.sqlite", tmp_path / "tiny.csv"
    done = CliRunner().invoke(app := cli.make_app("tiny"), ["tiny", str(report), "--top", "3", "--csv", str(table)])
    assert done.exit_code == 0, done.output
    [shown] = [text for language, text in BLOCKS if language == "text" and "sum of tiny" in text]
    assert done.stdout == shown
    assert table.read_text(encoding="utf-8").startswith("merged_path,kernels,tiny,tiny_share,tiny_ns\n")
    rows = json.loads(CliRunner().invoke(app, ["tiny", str(report), "--json"]).stdout)["ranges"]
    assert [row["tiny"] for row in rows[:3]] == [478, 399, 320]


def test_the_test_of_the_worked_question_passes(worked: Callable[[str], Any], trace: MakeTrace) -> None:
    """The test that the guide shows is one that holds."""
    worked("tests.tiny.test_tiny").test_tiny_kernels_count_for_their_owner(trace)
