"""The GitHub Action keeps its word: its steps run here as a runner would run them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.runs import write_run

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
RUN = ROOT / "traces" / "run.sqlite"
BUDGET = '[[range]]\npath = "RUN::flash::S4096/iter*"\nmax_kernels = {kernels}\n'

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="runs the steps with bash")


@pytest.fixture(scope="module")
def action() -> dict[str, Any]:
    """The action, as YAML has it."""
    return yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def step(action: dict[str, Any], name: str) -> dict[str, Any]:
    """The step of that name."""
    (found,) = [each for each in action["runs"]["steps"] if each["name"] == name]
    return dict(found)


def run_step(step: dict[str, Any], folder: Path, **inputs: object) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub does, with `nsysprof` of this Python on the PATH and files for summary and outputs."""
    own = folder / "bin"
    own.mkdir(exist_ok=True)
    command = own / "nsysprof"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nsysprof "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    files = {"GITHUB_STEP_SUMMARY": "summary.md", "GITHUB_OUTPUT": "outputs", "GITHUB_PATH": "path"}
    environment = {
        **os.environ,
        "PATH": f"{own}{os.pathsep}{os.environ['PATH']}",
        "RUNNER_TEMP": str(folder),
        **{name: str(folder / file) for name, file in files.items()},
        **dict.fromkeys(step.get("env", {}), ""),
        **{name: str(value) for name, value in inputs.items()},
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_every_input_is_declared_and_passed_on(action: dict[str, Any]) -> None:
    """Inputs reach the scripts as environment variables only, so that none of them is run as code."""
    text = str(action["runs"]["steps"])
    assert set(re.findall(r"inputs\.(\w+)", text)) == set(action["inputs"])
    for each in action["runs"]["steps"]:
        assert "${{" not in each["run"]
        assert {"name", "shell", "run"} <= set(each)


@pytest.mark.parametrize(("kernels", "code", "ok"), [(1, 0, "true"), (0, 3, "false")])
def test_the_check_is_shown_and_fails_where_a_limit_breaks(
    action: dict[str, Any], tmp_path: Path, kernels: int, code: int, ok: str
) -> None:
    """The table is the summary of the job, the outputs name it, and the exit code is that of `nsysprof check`."""
    budget = tmp_path / "a budget.toml"
    budget.write_text(BUDGET.format(kernels=kernels), encoding="utf-8")
    check = step(action, "Check the report")
    done = run_step(check, tmp_path, REPORT=RUN, BUDGET=budget, ARGUMENTS="--skip 1  --threads strict")
    assert done.returncode == code, done.stderr
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "run.sqlite" in summary.splitlines()[0]
    assert ("| RUN::flash::S4096/iter" in summary) == (code == 3)
    outputs = dict(line.split("=", 1) for line in (tmp_path / "outputs").read_text().splitlines())
    assert outputs["ok"] == ok
    assert Path(outputs["markdown"]).read_text(encoding="utf-8") == summary


@pytest.mark.parametrize(("limit", "code"), [("5", 3), ("30", 0)])
def test_the_history_fails_where_the_newest_level_is_slower(
    action: dict[str, Any], tmp_path: Path, limit: str, code: int
) -> None:
    """Earlier reports and a limit decide, the summary says since when, and runs of the machine keep their names."""
    runs = tmp_path / "nightly"
    runs.mkdir()
    for number in range(10):
        write_run(runs / f"run_{number}.sqlite", 6_000 + 9 * (number % 3), 200 + 900 * (number >= 6))
    done = run_step(step(action, "Follow the history"), tmp_path, HISTORY="nightly", LIMIT=limit)
    assert done.returncode == code, done.stderr
    assert "slower since run 7" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_a_report_that_is_none_is_named_in_the_summary(action: dict[str, Any], tmp_path: Path) -> None:
    """Where there is no table the error message stands in its place."""
    budget = tmp_path / "budget.toml"
    budget.write_text(BUDGET.format(kernels=1), encoding="utf-8")
    done = run_step(step(action, "Check the report"), tmp_path, REPORT="none.sqlite", BUDGET=budget)
    assert done.returncode == 1
    assert "none.sqlite" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_the_comment_replaces_the_one_before(action: dict[str, Any], tmp_path: Path) -> None:
    """The file of the table goes to the pull request; a later run edits that comment."""
    script = tmp_path / "bin" / "gh"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/called"\n', encoding="utf-8")
    script.chmod(0o755)
    comment = step(action, "Comment on the pull request")
    done = run_step(comment, tmp_path, PULL_REQUEST="https://example.org/pull/7", TABLE="table.md")
    assert done.returncode == 0, done.stderr
    called = (tmp_path / "called").read_text().split()
    assert called[:5] == ["pr", "comment", "https://example.org/pull/7", "--body-file", "table.md"]
    assert "--edit-last" in called
