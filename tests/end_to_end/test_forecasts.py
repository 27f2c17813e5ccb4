"""The track record of forecasts: its programs run without a GPU, its tables follow, and forecasts come first."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "analysis" / "forecasts"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module with the cases."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("cases", "judge", "programs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module("cases")


def test_there_are_enough_forecasts(study: ModuleType) -> None:
    """At least 40 that have an outcome, each case named once, and some that must be refused."""
    every = list(study.cases())
    assert len({case.name for case in every}) == len(every)
    assert sum(not case.refused for case in every) >= 40
    assert any(case.refused for case in every)


@pytest.mark.parametrize(
    "words", ["mlp --mode forward", "block --item --host-us 50 --copy --prefetch --fused"]
)
def test_programs_run_without_a_gpu(study: ModuleType, tmp_path: Path, words: str) -> None:
    """And write what each of their steps took."""
    pytest.importorskip("torch")
    programs = import_module("programs")
    small = [
        "--device",
        "cpu",
        "--steps",
        "3",
        "--layers",
        "4",
        "--width",
        "32",
        "--length",
        "8",
        "--batch",
        "2",
    ]
    programs.main([*words.split(), *small, "--results", str(tmp_path / "r.json")])
    name, times = study.steps_of(tmp_path / "r.json")
    assert (name, len(times)) == ("step", 3)
    assert min(times) > 0


def test_forecasts_come_before_outcomes(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outcome without a forecast is refused, and so is a second forecast; a question that must be refused is."""
    monkeypatch.setattr(study, "run", lambda case, words, results, dry: ("step", [1_000, 1_100, 1_200]))
    monkeypatch.setattr(study, "gpu", lambda: "")
    cases = {case.name: case for case in study.cases()}
    options = argparse.Namespace(work=tmp_path, dry=True, rounds=2)
    with pytest.raises(SystemExit, match="has no forecast"):
        study.measure(cases["item-8"], options)
    for name in ("item-8", "batch"):
        study.forecast(cases[name], options)
    with pytest.raises(SystemExit, match="nothing is written twice"):
        study.forecast(cases["item-8"], options)
    study.measure(cases["item-8"], options)
    rows = {row["case"]: row for row in study.rows(tmp_path / "forecasts.csv")}
    assert rows["item-8"]["exit_code"] == "0"
    assert len(rows["item-8"]["question_sha256"]) == 64
    assert rows["batch"]["exit_code"] == "3"
    assert "batch size is not modelled" in rows["batch"]["reason"]
    assert study.rows(tmp_path / "outcomes.csv")[0]["outcome_ns"] == "1100.0"


def test_errors_and_intervals_are_judged(study: ModuleType, tmp_path: Path) -> None:
    """Of four forecasts one held, one missed by 10 %, one is open, and one was refused as it must be."""
    judge = import_module("judge")

    def write(name: str, columns: tuple[str, ...], *rows: dict[str, object]) -> None:
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)

    told = {"kind": "graph", "exit_code": 0, "forecast_ns": 110, "low_ns": 100, "high_ns": 120}
    write(
        "forecasts.csv",
        study.FORECASTS,
        {"case": "graph-mlp-train-1", **told},
        {"case": "graph-mlp-train-8", **told, "low_ns": 105},
        {"case": "graph-mlp-train-32", **told},
        {"case": "batch", "kind": "none", "exit_code": 3},
    )
    write(
        "outcomes.csv",
        study.OUTCOMES,
        {"case": "graph-mlp-train-1", "outcome_ns": 110},
        {"case": "graph-mlp-train-8", "outcome_ns": 100},
    )
    found = judge.judged(tmp_path)
    assert [row["verdict"] for row in found] == ["held", "missed", "open", "refused as it must be"]
    assert found[1]["error"] == pytest.approx(0.1)
    assert "| graph | 2 | 5.0% | 10.0% | 1 | 0 |" in judge.table(found)


def test_nothing_is_claimed_that_was_not_measured() -> None:
    """The package publishes no error as long as the study has no outcomes."""
    from nsysprof.forecast.questions import PUBLISHED

    if not (FOLDER / "outcomes.csv").exists():
        assert json.dumps(PUBLISHED) == "{}"
        assert "**Nothing is measured yet.**" in (FOLDER / "README.md").read_text(encoding="utf-8")
