"""Run records: what a capture and a workload leave, and what is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import RecordedRun, read_runs, record_beside

RUN = {
    "range": "RUN::math::S8",
    "status": "measured",
    "batch": 1,
    "heads": 8,
    "seq": 4096,
    "head_dim": 64,
    "dtype": "fp16",
    "causal": True,
    "backward": False,
    "latency_ns": [10, 12],
    "latency_clock": "cuda events",
}
READ = RecordedRun((10, 12), 1, 8, 4096, 64, "fp16", True, False)


def workload(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "nsysprof-workload/1", "workload": "sdpa", "runs": list(runs)}


def write(folder: Path, what: object, name: str = "run.json") -> Path:
    path = folder / name
    path.write_text(what if isinstance(what, str) else json.dumps(what), encoding="utf-8")
    return path


def test_results_of_a_workload_and_records_of_a_capture_are_read(tmp_path: Path) -> None:
    """The one holds the other; both say the same."""
    assert read_runs(write(tmp_path, workload(RUN))) == {"RUN::math::S8": READ}
    record = {"schema": "nsysprof-run/1", "name": "run", "workload": workload(RUN)}
    assert read_runs(write(tmp_path, record)) == {"RUN::math::S8": READ}


def test_a_capture_of_any_program_has_no_runs(tmp_path: Path) -> None:
    """Only workloads measure themselves."""
    assert read_runs(write(tmp_path, {"schema": "nsysprof-run/1", "workload": None})) == {}


def test_only_what_was_measured_by_events_is_a_clock(tmp_path: Path) -> None:
    """A run that failed has no times, and those of the host's clock are not CUDA events."""
    failed = {**RUN, "range": "RUN::fish::S8", "status": "unsupported"}
    host = {**RUN, "latency_clock": "perf_counter"}
    odd = {
        **RUN,
        "range": "RUN::odd::S8",
        "latency_ns": [5, "x", -1, True, 10**30],
        "seq": "many",
        "heads": 2**53 + 1,
        "causal": 1,
        "dtype": 3,
    }
    assert read_runs(write(tmp_path, workload(failed, host, odd))) == {
        "RUN::math::S8": RecordedRun((), 1, 8, 4096, 64, "fp16", True, False),
        "RUN::odd::S8": RecordedRun((5,), 1, None, None, 64, None, None, False),
    }


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("{", "not JSON, so no run record"),
        ("[" * 200_000, "not JSON, so no run record"),
        ([1], "no run record: its "),
        ({"schema": "other"}, "no run record: its "),
        ({"schema": "nsysprof-run/1", "workload": {"schema": "x"}}, "no run record: its "),
    ],
)
def test_what_is_no_record_is_refused(what: object, message: str, tmp_path: Path) -> None:
    """One that was named must be one; a file of the same name beside a report is simply not it."""
    path = write(tmp_path, what)
    with pytest.raises(NsysprofError, match=message):
        read_runs(path)
    assert record_beside(tmp_path / "run.sqlite") is None


def test_a_record_that_is_not_there(tmp_path: Path) -> None:
    """Named, it is an error with its path; beside a report it need not exist."""
    with pytest.raises(NsysprofError, match=r"none\.json: cannot read the run record: No such file"):
        read_runs(tmp_path / "none.json")
    assert record_beside(tmp_path / "none.sqlite") is None


def test_the_record_beside_a_report_has_its_name(tmp_path: Path) -> None:
    """`run.json` goes with `run.sqlite`."""
    path = write(tmp_path, workload(RUN))
    assert record_beside(tmp_path / "run.sqlite") == path


def test_runs_that_are_none_are_none(tmp_path: Path) -> None:
    """A list of something else, or no list at all."""
    assert read_runs(write(tmp_path, {"schema": "nsysprof-workload/1", "runs": "x"})) == {}
    assert read_runs(write(tmp_path, {"schema": "nsysprof-workload/1", "runs": [1, {}]})) == {}
