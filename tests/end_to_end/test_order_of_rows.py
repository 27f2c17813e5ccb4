"""Rows of a report in any order, under any ids: the same bytes in all outputs."""

import os
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from nsysprof.analyze import files as analyze_files
from nsysprof.fleet import cluster
from tests.conftest import MakeTrace
from tests.kit.command_line import quietly
from tests.kit.fuzz import examine_here
from tests.kit.permutation import permute
from tests.kit.random_reports import random_report
from tests.kit.random_waits import random_waits
from tests.kit.reports import BLOCK, RUN, TRACES

# Of the ranks of a program, one: it has all that the others have.
SHIPPED = sorted([*TRACES.glob("*.sqlite"), *(TRACES.parent / "analysis").glob("*/*[!1].sqlite")])
_COMMANDS = ("why", "analyze", "steps", "forecast", "hotspots")
_FILE_SIZE = re.compile(rb'"size_bytes": \d+,')  # rows in another order fill the pages of a file otherwise


def outputs(
    path: Path, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, options: Sequence[str]
) -> dict[str, object]:
    """What `_COMMANDS` print and write about a report with its rows in some order."""
    folder.mkdir()
    monkeypatch.setattr(analyze_files, "TABLES", 10**9)  # the size of a report counts in how much files may take
    report = permute(path, folder / "report.sqlite", seed)
    monkeypatch.chdir(folder)
    out: dict[str, object] = {}
    for name in _COMMANDS:
        drawn = name == "why" and path == BLOCK  # charts of one report: they are of what the tables hold
        out[name] = quietly(name, report.name, "-o", name, *("--no-charts",) * (not drawn), *options)
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


_PLAIN = ("--no-charts", "--force")
_READS: list[tuple[str, ...]] = [  # all commands that read reports
    *((name, "r.sqlite", "-o", name, "--full", *_PLAIN) for name in _COMMANDS if name != "forecast"),
    ("why", "r.sqlite", "-o", "per", "--per", "*", *_PLAIN),
    ("analyze", "r.sqlite", "-o", "stream", "--by", "stream", *_PLAIN),
    ("forecast", "r.sqlite", "-o", "drop", "--drop-sync=*", "--scale=gemm=0.5", "--as-profiled", *_PLAIN),
    ("compare", "r.sqlite", "o.sqlite", "-o", "compare", "--range", "whole trace", *_PLAIN),
    ("fleet", "r.sqlite", "o.sqlite", "-o", "fleet", *_PLAIN),
    ("history", "r.sqlite", "o.sqlite", "-o", "history", "--cache", "cached", *_PLAIN),
    ("ranges", "r.sqlite", "--json"),
    ("check", "--init", "r.sqlite", "-o", "budget.toml", "--force"),
    ("scrub", "r.sqlite", "-o", "scrubbed.sqlite", "--force"),
    ("export", "r.sqlite", "--to", "perfetto", "-o", "exported", "--force"),
]


# What may differ: digests and sizes of files, what a process takes, and ranges that last to the end of the recording.
_MAY_DIFFER = re.compile(
    r'"(?:size_bytes|seconds|peak_bytes)": [\d.]+|[0-9a-f]{64}|[\d.]+ [KMG]iB|,[\d.]+,\d{8,}$'
    r"|(?<!\d)(?:1\d|[3-9])\d{9}(?!\d)|(?<![\d.])\d+\.\d\d s\b",
    re.MULTILINE,
)


def _undone(text: str) -> str:
    """The text without what `permute` changed: a name, numbers above 4,000 or 5,000, times behind 1 or 2 s."""
    text = _MAY_DIFFER.sub("", re.sub("(lo|…o?)b", r"\1a", text))  # also where it is cut short
    text = re.sub(r"(?<![\d.])[45](,?0\d\d)(?!\.?\d)", r"4\1", text)
    text = re.sub(r"(?<=thread )[45]0*…", "…", text)
    text = re.sub(r"(?<!\d)(10{5})[12](\d{9})(?!\d)", r"\1\2", text)  # some reports begin after eleven days
    return re.sub(r"(?<![\d.])(?:[12](?=0)|1?(?=999))(\d{9})(?!\d)", r"\1", text)


def answers(
    sources: Sequence[Path], folder: Path, order: int, monkeypatch: pytest.MonkeyPatch, seed: int = 1
) -> dict[str, str]:
    """What all commands print and write of two reports, as they are or changed in all that must not matter."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    name = ("load", "lobd") if order else ("", "")
    for file, source in zip(("r.sqlite", "o.sqlite"), sources, strict=True):
        later = 10**9 * (1 + order * _all_ranges_end(source))  # those that do not last to the same end of the recording
        permute(source, folder / file, seed * order, later, name, 4_000 + 1_000 * order)
        os.utime(folder / file, (1_000_000_000, 1_000_000_000))
    done = [(arguments, quietly(*arguments)) for arguments in _READS]
    told = {" ".join(arguments): f"{each.code} {each.out} {each.err}" for arguments, each in done}
    files = {
        str(file.relative_to(folder)): file.read_text(encoding="utf-8")
        for file in sorted(folder.rglob("*"))
        if file.suffix in (".csv", ".json", ".toml")
    }
    return {name: _undone(text) for name, text in {**told, **files}.items()}


def _all_ranges_end(report: Path) -> bool:
    with closing(sqlite3.connect(report)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'NVTX_EVENTS'").fetchall():
            return True
        return not connection.execute('SELECT 1 FROM NVTX_EVENTS WHERE "end" IS NULL AND eventType <> 34').fetchall()


_SHUFFLES = range(1000, 1000 + int(os.environ.get("NSYSPROF_SHUFFLES", "0")))  # by hand: NSYSPROF_SHUFFLES=2000 -n 16


@pytest.mark.parametrize("seed", [4, 7, 15, 16, 39, *_SHUFFLES])
def test_times_and_numbers_decide_nothing(
    seed: int, trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second later, under other names and numbers and in another order, all commands print and write the same."""
    monkeypatch.setattr(cluster, "examine_all", examine_here)
    monkeypatch.setattr(analyze_files, "TABLES", 10**9)  # digits of times count in how much files may take
    make = random_report if seed % 2 else random_waits
    sources = [trace(*make(number), duration=10**10) for number in (seed, seed + 1_000_003)]
    first, other = (answers(sources, tmp_path / f"{order}", order, monkeypatch) for order in range(2))
    assert first.keys() == other.keys()
    for name, text in first.items():
        assert text == other[name], name
