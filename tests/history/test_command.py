"""`nsysprof history` on the command line: its screen, files, exit codes and options."""

import csv
import json
from pathlib import Path

import pytest

from nsysprof.history.tables import CHANGES, LEDGER, RUNS
from tests.kit.command_line import quietly
from tests.kit.runs import write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen runs, the last six of which take 200 ns of CPU time longer in each step of 6,000 ns."""
    folder = tmp_path_factory.mktemp("history") / "nightly"
    folder.mkdir()
    for number in range(14):
        jitter = 3 * (number * 7 % 5)
        write_run(folder / f"run_{number}.sqlite", 6_000 + jitter, 200 + 900 * (number >= 8))
    return folder


def test_one_screen_says_since_when_and_what(runs: Path, tmp_path: Path) -> None:
    """The first line is the answer; the change has its run, its part, and the command that explains it."""
    done = quietly("history", runs, "-o", tmp_path / "out")
    assert done.code == 3, done
    lines = done.out.splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines if "$" not in line) <= 110
    assert lines[0].startswith("1.14x slower since run 9 (run_8.sqlite): 6.")
    assert "CPU time" in done.out
    assert f"$ nsysprof compare {runs}/run_7.sqlite {runs}/run_8.sqlite" in done.out
    written = ("history.png", "history.json", "history.csv", "changes.csv", "history_ledger.csv", "history.db")
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(written)


@pytest.mark.parametrize(("limit", "code"), [("20", 0), ("10", 3)])
def test_the_limit_decides_the_exit_code(runs: Path, tmp_path: Path, limit: str, code: int) -> None:
    """A newest level that is 15 % slower passes a limit of 20 % and breaks one of 10 %."""
    done = quietly("history", runs, "--limit", limit, "-o", tmp_path / "out", "--no-charts")
    assert done.code == code, done
    assert quietly("history", runs, "--last", "5", "-o", tmp_path / "last", "--no-charts").code == 0


def test_files_hold_what_is_printed(runs: Path, tmp_path: Path) -> None:
    """Tables have their declared columns, the ledger of a change adds up, and the page is one file with the picture."""
    place = tmp_path / "out"
    quietly("history", runs, "-o", place, "--html")
    rows = {}
    for table in (RUNS, CHANGES, LEDGER):
        with (place / table.file).open(newline="") as file:
            reader = csv.DictReader(file)
            rows[table.file] = [*reader]
            assert reader.fieldnames == table.names
    assert [row["level"] for row in rows["history.csv"]] == ["1"] * 8 + ["2"] * 6
    [change] = rows["changes.csv"]
    added = sum(int(row["delta_ns"]) for row in rows["history_ledger.csv"])
    assert added == pytest.approx(int(change["after_ns"]) - int(change["before_ns"]), abs=30)
    assert all(
        int(row["after_ns"]) - int(row["before_ns"]) == int(row["delta_ns"]) for row in rows["history_ledger.csv"]
    )
    page = (place / "report.html").read_text()
    assert "1.14x slower since run 9" in page
    assert page.count("data:image/png") == 1


def test_json_is_the_answer_and_writes_nothing(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One document on stdout, with the ledger of each change; without -o no file, not even the cache."""
    monkeypatch.chdir(tmp_path)
    done = quietly("history", runs, "--json")
    document = json.loads(done.out)
    assert (done.code, [*tmp_path.iterdir()]) == (3, [])
    [series] = document["series"]
    [change] = series["changes"]
    assert (series["path"], len(series["runs"]), change["run"], change["cause"]) == ("step*", 14, 9, "program")
    assert sum(row["delta_ns"] for row in change["ledger"]) == pytest.approx(
        change["after_ns"] - change["before_ns"], abs=30
    )


def test_markdown_and_the_whole_answer(runs: Path, tmp_path: Path) -> None:
    """`--md` prints tables of Markdown, `--full` every run and note; a history that is replaced keeps its folder."""
    place = tmp_path / "out"
    assert "| run" in quietly("history", runs, "-o", place, "--md", "--no-charts").out
    done = quietly("history", runs, "-o", place, "--full", "--no-charts")
    assert all(f"run_{number}.sqlite" in done.out for number in range(14))
    refused = quietly("history", runs / "run_0.sqlite", "-o", place)
    assert refused.code == 1
    assert "not written about these reports" in refused.err
