"""The backends of the shipped report: what its ranges ask for is what ran, and what did not run is found out."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from nsysprof.capture.text import backend_table, difference_lines
from nsysprof.kernels.backends import BackendVerdict, judge_backends
from tests.kit.reports import RUN, attributed, broken_down

# What each request must have run.
RUNS_AS = {
    "math": "math",
    "math_reduced": "math",
    "flash": "flash",
    "efficient": "efficient",
    "cudnn": "cudnn",
}

pytestmark = pytest.mark.skipif(not RUN.exists(), reason="traces/run.sqlite is not there")


def judged(path: Path) -> BackendVerdict:
    return judge_backends(attributed(path))


def renamed(folder: Path, old: str, new: str) -> BackendVerdict:
    """The verdict on a copy of the report in which a part of the names of ranges is another."""
    path = folder / "renamed.sqlite"
    shutil.copy(RUN, path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as connection:
        change = "UPDATE {} SET {} = replace({}, ?, ?) WHERE {} LIKE 'RUN::%'"
        for table, column in (("NVTX_EVENTS", "text"), ("StringIds", "value")):
            connection.execute(change.format(table, *[column] * 3), (old, new))
        connection.commit()
    return judged(path)


def test_every_run_ran_what_its_name_says() -> None:
    """Each `RUN::` range of the H200 run agrees with its kernels; `auto` chose one backend."""
    verdict = judged(RUN)
    assert set(verdict.ranges["requested"]) == {*RUNS_AS, "auto"}
    for row in verdict.records():
        assert row["agrees"] is True, row
        assert row["observed"] == (RUNS_AS | {"auto": "cudnn"})[row["requested"]], row
        assert row["instances"] == 1
    assert (difference_lines(verdict), verdict.warnings) == ([], ())


def test_kernels_are_those_of_the_breakdown() -> None:
    """The verdict counts the kernels that the table of ranges counts."""
    merged = broken_down(RUN).merged
    outer = merged[merged["name"].str.startswith("RUN::")]
    verdict = judged(RUN)
    assert dict(zip(verdict.ranges["range"], verdict.ranges["kernels"], strict=True)) == dict(
        zip(outer["name"], outer["kernels"], strict=True)
    )
    assert len(verdict.ranges) == len(outer) > 0


def test_a_wrong_request_is_found_out(tmp_path: Path) -> None:
    """With cuDNN's ranges renamed, the verdict says what was asked for, what ran, and by which kernel."""
    verdict = renamed(tmp_path, "RUN::cudnn::S4096", "RUN::flash::S4097")
    [line] = difference_lines(verdict)
    assert line.startswith(
        "RUN::flash::S4097: requested flash, ran cudnn (cudnn_generated_fort_native_sdpa_sm90_flash_fprop"
    )
    assert line.endswith(" x 40)")
    [row] = [line for line in backend_table(verdict).splitlines() if "(differs)" in line]
    assert row.split()[:4] == ["RUN::flash::S4097", "flash", "cudnn", "(differs)"]


@pytest.mark.parametrize(
    ("backend", "request_as", "ran"),
    [("math", "flash", "math"), ("flash", "math", "flash"), ("efficient", "cudnn", "efficient")],
)
def test_each_backend_is_told_from_the_others(
    tmp_path: Path, backend: str, request_as: str, ran: str
) -> None:
    """A request renamed for all its sizes differs for all of them."""
    verdict = renamed(tmp_path, f"RUN::{backend}::", f"RUN::{request_as}::B")
    mine = verdict.ranges[verdict.ranges["range"].str.contains("::B")]
    assert set(mine["observed"]) == {ran}
    assert verdict.differences.index.tolist() == mine.index.tolist() != []


def test_the_table_fits_a_hundred_columns() -> None:
    """A line per range, none longer than a narrow terminal."""
    lines = backend_table(judged(RUN)).splitlines()
    assert len(lines) == 2 + len(judged(RUN).ranges)
    assert max(map(len, lines)) <= 100
