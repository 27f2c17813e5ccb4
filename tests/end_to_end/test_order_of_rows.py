"""Rows of a report in any order, under any ids: the same bytes in all outputs."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import MakeTrace
from tests.kit.command_line import quietly
from tests.kit.permutation import permute
from tests.kit.random_reports import random_report
from tests.kit.random_waits import random_waits
from tests.kit.reports import BLOCK, RUN, TRACES
from tests.kit.trace import Item

SHIPPED = sorted([*TRACES.glob("*.sqlite"), *(TRACES.parent / "analysis").glob("*/*.sqlite")])
_COMMANDS = ("why", "analyze", "steps", "forecast", "hotspots")
_FILE_SIZE = re.compile(rb'"size_bytes": \d+,')  # rows in another order fill the pages of a file otherwise


def outputs(
    path: Path, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, options: Sequence[str]
) -> dict[str, object]:
    """What `_COMMANDS` print and write about a report with its rows in some order."""
    folder.mkdir()
    report = permute(path, folder / "report.sqlite", seed)
    monkeypatch.chdir(folder)
    out: dict[str, object] = {}
    for name in _COMMANDS:
        more = ("--no-charts",) * ("--no-charts" not in options and name != "why")
        out[name] = quietly(name, report.name, "-o", name, *more, *options)
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file != report:
            out[str(file.relative_to(folder))] = _FILE_SIZE.sub(b"", file.read_bytes())
    return out


def check(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """Compare the outputs of a report with those of a shuffled one."""
    folder.mkdir(exist_ok=True)
    first = outputs(path, folder / "as-it-is", 0, monkeypatch, options)
    other = outputs(path, folder / "shuffled", 1, monkeypatch, options)
    assert {"why/why.csv", "why/why.json", "analyze/ranges.csv"} <= first.keys()
    assert first.keys() == other.keys()
    for name, content in first.items():
        assert content == other[name], name


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_reports(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Printed text, CSV and JSON."""
    check(path, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", [RUN, BLOCK], ids=lambda path: path.stem)
def test_iterations_that_are_found(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same iterations, in all outputs."""
    check(path, tmp_path, monkeypatch, "--ranges", "found")


@pytest.mark.parametrize("make", [random_waits, random_report])
def test_random_reports(
    make: Callable[[int], list[Item]], trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With times that often tie; pictures are of the shipped ones."""
    for seed in range(8):
        check(trace(*make(seed)), tmp_path / f"{seed}", monkeypatch, "--no-charts")


def test_comparisons(trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The printed ledgers, the causes and the evidence of two whole traces."""
    for seed in range(4):
        paths = [trace(*random_waits(2 * seed + at)) for at in range(2)]
        done = []
        for order in range(2):
            folder = tmp_path / f"{seed}-{order}"
            folder.mkdir()
            monkeypatch.chdir(folder)
            names = [permute(path, folder / f"{at}.sqlite", order).name for at, path in enumerate(paths)]
            printed = quietly("compare", *names, "--range", "whole trace", "--no-charts", "-o", "out")
            assert printed.code == 0
            files = [_FILE_SIZE.sub(b"", (folder / "out" / name).read_bytes()) for name in ("gap.csv", "gap.json")]
            done.append((printed, *files))
        assert done[0] == done[1]
