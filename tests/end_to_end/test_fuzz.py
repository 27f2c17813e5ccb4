"""A few spoiled reports of the fuzzer; `python -m tests.kit.fuzz --count 10000` reads many."""

from pathlib import Path

import pytest

from nsysprof.trace.nsys import build, gpu_work
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit import fuzz as kit
from tests.kit.fuzz import GOOD, fuzz
from tests.kit.trace import launch_kernel


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_spoiled_reports_are_answered_or_refused(first: int) -> None:
    """No traceback, no hang, and totals equal to plain SQL or a line that says what is missing."""
    pytest.importorskip("pyarrow")
    failed = [(seed, end, story) for seed, end, story in fuzz(range(first, first + 20)) if end not in GOOD]
    assert not failed


def test_spoiled_traces_of_pytorch_are_answered_or_refused() -> None:
    """No traceback, no hang, and one line where nothing can be said."""
    ended = list(fuzz(range(40), kineto=True))
    assert [(seed, end, story) for seed, end, story in ended if end not in GOOD] == []
    assert {end for _, end, _ in ended} == GOOD


@pytest.mark.parametrize("kineto", [False, True])
def test_every_command_answers_or_refuses(kineto: bool) -> None:
    """Also those that look for steps and replay them: little time, little memory, and JSON is JSON."""
    pytest.importorskip("pyarrow")
    ended = list(fuzz(range(25), kineto=kineto, every=True))
    assert [(seed, end, story) for seed, end, story in ended if end not in GOOD] == []
    assert {end for _, end, _ in ended} == GOOD


def test_seeds_that_broke_the_reader_are_answered() -> None:
    """Calls of a process without GPU work among ids far apart; a chart whose only row stands for the rest; no time.

    The last one: steps of no length and no communication.
    """
    pytest.importorskip("pyarrow")
    assert {end for _, end, _ in fuzz([20676, 21298, 200147, 80000042])} == {"answered"}


def test_the_fuzzer_sees_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that skips a kind of work in silence, and one that raises, are found."""
    pytest.importorskip("pyarrow")
    # a dict of its own: taken out and put back, the table would come last for the tests after this
    left = {name: kind for name, kind in gpu_work.WORK.items() if not name.endswith("MEMSET")}
    for module in (gpu_work, build):
        monkeypatch.setattr(module, "WORK", left)
    assert any(end.startswith("silent difference: ops") for _, end, _ in fuzz(range(12)))
    monkeypatch.setattr(gpu_work, "_check_times", None)
    assert any(end.startswith("traceback") for _, end, _ in fuzz(range(12)))
    monkeypatch.undo()
    monkeypatch.setattr(kit, "MOST_MIB", -(1 << 20))
    assert any(end.startswith("too much: ") for _, end, _ in fuzz(range(3)))


def test_the_fuzzer_reads_odd_names_as_sql_casts_them(trace: MakeTrace) -> None:
    """An infinite real, and a blob in the encoding of the database, are the names that the reader has for them."""
    items = [launch_kernel(name, (0, 5), (10, 20), id=id) for id, name in enumerate(("one", "two"), 1)]
    values = {"one": "9e999", "two": "X'3132'"}
    sql = [f"UPDATE StringIds SET value = {value} WHERE value = '{name}'" for name, value in values.items()]
    path = trace(*items, pragmas=["encoding='UTF-16le'"], sql=sql)
    names = {"Inf": (1, 10), "\u3231": (1, 10)}
    with open_report(path) as report:
        assert set(read_tables(report).op_names) >= names.keys()
    assert kit.truth(path).kernels == names


def test_cases_run_in_processes_and_failures_become_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All four kinds, each in a process of its own; what failed is described, and its report is kept."""
    monkeypatch.setattr(kit, "_CHUNK", 1)
    assert kit.in_processes(4, 3, 2, tmp_path / "none") == 0
    assert capsys.readouterr().out.startswith("4 cases: {'")
    assert list(tmp_path.iterdir()) == []
    kit.write_failure(tmp_path, 7, "too much: 1 s", "cut", {"kineto": False, "every": True})
    assert (tmp_path / "every-7.txt").read_text(encoding="utf-8") == "too much: 1 s\ncut\n"
    assert [path.name for path in (tmp_path / "every-7").glob("report*")]
