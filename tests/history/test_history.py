"""Histories of synthetic runs: series, changes with their ledgers, what is attributed to the machine, and bad input."""

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import nsysprof
from nsysprof.errors import NsysprofError
from nsysprof.history.history import CLOCK, MACHINE, PROGRAM, History, judge_runs
from nsysprof.history.text import change_text, headline, history_text
from tests.kit.runs import made_run, made_runs, write_run

MS = 1_000_000


def steps(*levels: tuple[int, float]) -> list[float]:
    """Times of runs, so many at each level in ms, with a little noise."""
    rng = np.random.default_rng(1)
    return [float(ms * MS * np.exp(0.003 * rng.normal())) for count, ms in levels for _ in range(count)]


def found(answer: History) -> list[tuple[int, float, str]]:
    """The changes, the oldest first: the number of the run from 1, the ratio, the cause."""
    return [(change.run + 1, round(change.ratio, 1), change.cause) for _, change in reversed(answer.changes)]


def test_changes_have_their_run_and_a_ledger_that_adds_up() -> None:
    """Two changes of one series: where, how much, of what, and `slower` names the newest one."""
    times = steps((8, 10), (6, 13), (6, 20))
    runs = [made_run(number, time, ledger={"copies": round(time / 3)}) for number, time in enumerate(times)]
    answer = judge_runs(runs)
    assert found(answer) == [(9, 1.3, PROGRAM), (15, 1.5, PROGRAM)]
    for series, change in answer.changes:
        sides = series.runs.index(change.before), series.runs.index(change.run)
        assert sides[1] == sides[0] + 1
        assert sum(after - before for _, before, after in change.ledger) == pytest.approx(
            change.after_ns - change.before_ns, rel=0.02
        )
    assert [change.run for _, change in answer.slower(0.05)] == [14]
    assert not answer.slower(0.6)
    assert headline(answer).startswith("1.54x slower since run 15")


def test_what_changed_most_is_named_first() -> None:
    """The part of a step that grew is in the sentence, with the part of the time that is its."""
    rows = [made_run(n, 10 * MS if n < 9 else 14 * MS, ledger={"copies": (3 if n < 9 else 7) * MS}) for n in range(18)]
    answer = judge_runs(rows)
    (series, change) = answer.changes[0]
    assert "copies +4.00 ms" in change_text(answer, series, change)


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ({"driver": "550.54"}, {"driver": "580.1"}, MACHINE),
        ({"torch": "2.4"}, {"torch": "2.5"}, MACHINE),
        ({}, {}, PROGRAM),
        ({"driver": "580"}, {"driver": "580.1"}, PROGRAM),
    ],
)
def test_a_change_of_the_machine_is_not_attributed_to_the_program(
    before: dict[str, str], after: dict[str, str], cause: str
) -> None:
    """What changed of the machine stands beside the change, and no gate fails for it; more digits are no change."""
    times = steps((10, 10), (10, 12))
    runs = [
        made_run(n, time, before if n < 10 else after, ledger={"copies": round(time / 3)})
        for n, time in enumerate(times)
    ]
    answer = judge_runs(runs)
    assert found(answer) == [(11, 1.2, cause)]
    assert bool(answer.slower(0.05)) == (cause == PROGRAM)
    assert ("so the machine may be the cause" in change_text(answer, *answer.changes[0])) == (cause == MACHINE)


def test_one_commit_on_both_sides_is_not_the_program() -> None:
    """Where the commit is the same before and after, something else changed."""
    times = steps((10, 10), (10, 12))
    runs = [made_run(n, time, commit="775afb0", ledger={"copies": round(time / 3)}) for n, time in enumerate(times)]
    assert found(judge_runs(runs)) == [(11, 1.2, MACHINE)]


def test_kernels_that_are_all_slower_at_once_are_the_clock() -> None:
    """Three families of kernels take 1.4 times as long, the CPU as long as before."""
    rows = [(n, 10 * MS if n < 10 else round(10 * MS * (1 + 0.4 * 2 / 3))) for n in range(20)]
    runs = []
    for number, time in rows:
        third = round(10 * MS / 9 * (1.4 if number >= 10 else 1))
        families = {f"{name} kernels": 2 * third for name in ("gemm", "softmax", "elementwise")}
        runs.append(made_run(number, time, ledger={**families, "CPU time in data": round(10 * MS / 3)}))
    answer = judge_runs(runs)
    assert found(answer) == [(11, 1.3, CLOCK)]
    assert "check the GPU clock first" in change_text(answer, *answer.changes[0])


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"machine": {"GPU": "NVIDIA A100"}}, "GPU NVIDIA A100, not NVIDIA H200"),
        ({"kernels": {"attention": (60, 9_000, 60)}}, "common kernels take 0 % of their time"),
        ({"kernels": {"gemm": (60, 9_000, 240)}}, "other shapes"),
    ],
)
def test_runs_that_are_not_comparable_are_series_of_their_own(other: dict[str, Any], why: str) -> None:
    """Runs in turn on two GPUs, of two programs, or of two shapes make two series without a change, and a sentence."""
    runs = [made_run(n, 10 * MS + 7 * MS * (n % 2), **(other if n % 2 else {})) for n in range(21)]
    answer = judge_runs(runs)
    assert [len(each.runs) for each in answer.series] == [11, 10]
    assert not answer.changes
    assert any(why in note for note in answer.notes), answer.notes


def test_runs_are_ordered_by_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the order of commits in the repository of the current folder; what has none of these is left out."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    commits: list[str] = []
    for _ in range(3):
        subprocess.run(["git", *who, "commit", "-q", "--allow-empty", "-m", f"{len(commits)}"], check=True)
        done = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
        commits.append(done.stdout.strip())
    for at in (2, 0, 1):
        record = {"environment": {"commit": commits[at]}}
        write_run(tmp_path / f"run_{at}.sqlite", 3_000, started="2026-01-01T00:00:00Z", record=record)
    write_run(tmp_path / "run_3.sqlite", 3_000)
    answer = nsysprof.history(tmp_path, order="git")
    assert [run.name[4] for run in answer.runs] == list("012")
    assert any("1 run left out: commit missing" in note for note in answer.notes)
    assert [run.name[4] for run in nsysprof.history(tmp_path, order="git", since=commits[1][:8]).runs] == ["1", "2"]


def test_one_run_and_two_runs_are_answered() -> None:
    """Of one run there is no level, of two only what no noise explains is a change."""
    for times, changes in (([10], 0), ([10, 10.3], 0), ([10, 20], 1)):
        answer = judge_runs(made_runs([ms * MS for ms in times]))
        assert len(answer.changes) == changes
        assert str(len(times)) in history_text(answer)


def test_a_run_whose_gpu_work_was_not_recorded_leaves_the_others() -> None:
    """A run without any times is in no series, and a note says so; it may also be the only one of its machine."""
    runs = made_runs([ms * MS for ms in steps((6, 10))])
    for machine in (runs[0].machine, {"gpu": "another"}):
        answer = judge_runs([*runs, msgspec.structs.replace(runs[0], timed=(), machine=machine)])
        assert [len(series.runs) for series in answer.series] == [6]
        assert any("1 run left out of the series of" in note for note in answer.notes)


def test_runs_are_ordered_as_asked(tmp_path: Path) -> None:
    """By the recorded start, even where clocks go backwards; by name; by the time of the file; equal ones by name."""
    starts = ["2026-01-03", "2026-01-01", "2026-01-01", "2026-01-02"]
    for number, start in enumerate(starts):
        path = write_run(tmp_path / f"run_{number}.sqlite", 3_000, started=f"{start}T00:00:00Z")
        os.utime(path, (1_000 - number, 1_000 - number))
    orders = {order: nsysprof.history(tmp_path, order=order) for order in ("record", "name", "time")}
    names = {order: [run.name[4] for run in answer.runs] for order, answer in orders.items()}
    assert names == {"record": list("1230"), "name": list("0123"), "time": list("3210")}
    assert any("disagree with the numbers in the names" in note for note in orders["record"].notes)
    assert any("at the same time" in note for note in orders["record"].notes)
    assert [run.name[4] for run in nsysprof.history(tmp_path, since="2026-01-02").runs] == ["3", "0"]
    assert [run.name[4] for run in nsysprof.history(tmp_path, last=1).runs] == ["0"]
    with pytest.raises(NsysprofError, match="neither a date nor the commit of a run"):
        nsysprof.history(tmp_path, since="775afb0")


def test_broken_reports_are_skipped_with_a_sentence(tmp_path: Path) -> None:
    """Files that are none, or have no GPU work, leave the others; only broken ones are an error."""
    write_run(tmp_path / "run_0.sqlite", 3_000)
    (tmp_path / "run_1.sqlite").write_bytes(b"nothing")
    (tmp_path / "run_2.sqlite").write_bytes((tmp_path / "run_0.sqlite").read_bytes()[:5_000])
    answer = nsysprof.history(tmp_path)
    assert ([run.name for run in answer.runs], len(answer.skipped)) == (["run_0.sqlite"], 2)
    assert "skipped: " in history_text(answer)
    (tmp_path / "run_0.sqlite").unlink()
    with pytest.raises(NsysprofError, match=r"no report can be read: .*run_1\.sqlite and 1 more"):
        nsysprof.history(tmp_path)
