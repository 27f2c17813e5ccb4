"""The track record of forecasts: its programs run without a GPU, its tables follow, and the package publishes them."""

import csv
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from nsysprof.forecast.forecast import PUBLISHED
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.trace import Range, launch_kernel

FOLDER = Path(__file__).parents[2] / "analysis" / "forecasts"
pytest.importorskip("torch")


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module with the cases."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("cases", "judge", "programs", "run", "foretell", "two"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module("cases")


def test_there_are_enough_forecasts(study: ModuleType) -> None:
    """At least 40 that have an outcome, each case named once, and some that must be refused."""
    every = list(study.cases())
    assert len({case.name for case in every}) == len(every)
    assert sum(not case.refused for case in every) >= 40
    assert any(case.refused for case in every)
    assert not {case.name for case in study.cases(pilot=True)} & {case.name for case in every}


@pytest.mark.parametrize(
    "change",
    [{"mode": "forward"}, {"item": True, "host_us": 50.0, "copy": True, "prefetch": True, "fused": True},
     {"model": "gpt", "mode": "decode"}, {"model": "gpt", "without": "attention", "slack": True, "spin_us": 9.0},
     {"load_us": 100.0, "threaded": True}],
)  # fmt: skip
def test_programs_run_without_a_gpu(study: ModuleType, change: dict[str, object]) -> None:
    """And say what each of their steps took."""
    programs = import_module("programs")
    if programs.GPU:
        pytest.skip("there is a GPU")
    program = programs.Program(programs.Variant(**{"model": "block", "mode": "train", "batch": 2, **change}))
    times = program.run(3, 1)
    program.stopped.set()
    assert len(times) == 3
    assert min(times) > 0


def test_each_program_is_asked_as_a_report_of_its_own(study: ModuleType, trace: MakeTrace, tmp_path: Path) -> None:
    """The part of a report with the steps of one program, and the untimed ones before them."""
    foretell = import_module("foretell")
    whole = trace(
        *(Range(name, at, at + 90) for name, at in (("warm-up", 0), ("one", 100), ("warm-up", 200), ("two", 300))),
        *(launch_kernel("k", (at, at + 1), (at + 2, at + 9), id=at) for at in (10, 110, 210, 310)),
    )

    part = attributed(foretell.cut(whole, "two")).trace
    assert part.ops.start.tolist() == [212, 312]


def test_errors_and_intervals_are_judged(study: ModuleType, tmp_path: Path) -> None:
    """Of four forecasts one held, one missed by 10 %, one is open, and one was refused as it must be."""
    judge = import_module("judge")
    names = [case.name for case in study.cases() if case.kind == "graph"]
    [refused, *_] = [case.name for case in study.cases() if case.refused]
    told = {"kind": "graph", "exit_code": 0, "base_ns": 200, "forecast_ns": 110, "low_ns": 100, "high_ns": 120}
    forecasts = [{"case": names[0], **told}, {"case": names[1], **told, "low_ns": 105}, {"case": names[2], **told},
                 {"case": refused, "kind": "none", "exit_code": 3}]  # fmt: skip
    outcomes = [
        {"case": names[0], "base_ns": 200, "outcome_ns": 110},
        {"case": names[1], "base_ns": 190, "outcome_ns": 100},
    ]
    study.write_rows(tmp_path / "forecasts.csv", ("case", *told), forecasts)
    study.write_rows(tmp_path / "outcomes.csv", ("case", "base_ns", "outcome_ns"), outcomes)
    found = judge.judged([tmp_path / "forecasts.csv"], [tmp_path / "outcomes.csv"])
    assert [row["verdict"] for row in found] == ["held", "missed", "open", "refused as it must be"]
    assert found[1]["error"] == pytest.approx(0.1)
    assert found[1]["ratio_error"] == pytest.approx(110 / 200 * 190 / 100 - 1)
    assert "| graph | 2 | 5.0% | 10.0% | 2.2% | 1 | 0 |" in judge.table(found)
    assert judge.published(found) == {"graph": (0.05, 0.1, 0.1535, 2)}
    assert judge.rank_correlation([1, 2, 3], [10, 30, 20]) == pytest.approx(0.5)


def test_the_package_publishes_what_was_measured(study: ModuleType) -> None:
    """Every answer of `forecast` quotes errors that results.csv has."""
    judge = import_module("judge")
    with (FOLDER / "results.csv").open(encoding="utf-8", newline="") as file:
        assert judge.published(list(csv.DictReader(file))) == PUBLISHED


def test_the_second_record_follows_from_its_forecasts_and_outcomes(tmp_path: Path) -> None:
    """Its results, and at least 40 judged gains."""
    folder = FOLDER.parent / "forecasts-2"
    command = [sys.executable, str(folder / "judge.py"), "-o", str(tmp_path)]
    subprocess.run(command, capture_output=True, check=True)
    results = (tmp_path / "results.csv").read_text(encoding="utf-8")
    assert results == (folder / "results.csv").read_text(encoding="utf-8")
    verdicts = [row["verdict"] for row in csv.DictReader(results.splitlines())]
    assert verdicts.count("held") + verdicts.count("missed") >= 40
