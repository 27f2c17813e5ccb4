"""The cache of a history: what is kept, what renews it, two writers, and files that are no cache."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

import nsysprof
from nsysprof.history import history as room
from nsysprof.history.history import History
from tests.kit.runs import write_run


def read_again(folder: Path, cache: Path, select: str | None = None) -> tuple[History, list[str]]:
    """The history with a cache, and the names of the reports that were read."""
    read: list[str] = []
    measured = room._measured

    def noting(path: Path, *more: object) -> object:
        read.append(path.name)
        return measured(path, *more)  # type: ignore[arg-type]

    with patch.object(room, "_measured", noting):
        return nsysprof.history(folder, cache=cache, select=select), read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two reports and what is none."""
    made = tmp_path / "runs"
    made.mkdir()
    for number in range(2):
        write_run(made / f"run_{number}.sqlite", 3_000 + 300 * number)
    (made / "run_2.sqlite").write_bytes(b"nothing")
    return made


def test_reports_are_read_once(folder: Path, tmp_path: Path) -> None:
    """The second time nothing is read, and the answer is the same; other ranges are read of their own."""
    cache = tmp_path / "deep" / "history.db"
    first, read = read_again(folder, cache)
    assert sorted(read) == ["run_0.sqlite", "run_1.sqlite", "run_2.sqlite"]
    again, read = read_again(folder, cache)
    assert read == []
    assert (again.runs, again.skipped) == (first.runs, first.skipped)
    assert len(read_again(folder, cache, select="step*")[1]) == 3


def test_a_report_that_is_replaced_is_read_again(folder: Path, tmp_path: Path) -> None:
    """Another content of the same size and time, another time, and another record beside it: each is read again."""
    cache, report = tmp_path / "history.db", folder / "run_0.sqlite"
    read_again(folder, cache)
    stat, data = report.stat(), bytearray(report.read_bytes())
    data[60:64] = b"\0\0\0\7"  # the user version of the database, which says nothing
    report.write_bytes(data)
    os.utime(report, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert read_again(folder, cache)[1] == ["run_0.sqlite"]
    os.utime(report, (1, 1))
    assert read_again(folder, cache)[1] == ["run_0.sqlite"]
    (folder / "run_0.json").write_text('{"schema": "nsysprof-run/1", "started": "2026-01-01T00:00:00Z"}')
    again, read = read_again(folder, cache)
    assert read == ["run_0.sqlite"]
    assert again.runs[-1].started is not None or again.runs[0].started is not None


def test_another_version_reads_again(folder: Path, tmp_path: Path) -> None:
    """What another version of nsysprof kept does not count."""
    cache = tmp_path / "history.db"
    read_again(folder, cache)
    with patch("nsysprof.history.store.__version__", "0.0.0"):
        assert len(read_again(folder, cache)[1]) == 3


def test_two_writers_fill_one_cache(folder: Path, tmp_path: Path) -> None:
    """Processes at the same time all succeed, and leave every report in the cache."""
    cache = tmp_path / "history.db"
    code = f"import nsysprof; print(len(nsysprof.history({str(folder)!r}, cache={str(cache)!r}).runs))"
    writers = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [writer.communicate()[0].strip() for writer in writers] == ["2", "2", "2"]
    assert read_again(folder, cache)[1] == []


def test_a_file_that_is_no_cache_stops_nothing(folder: Path, tmp_path: Path) -> None:
    """What is no database is left as it is, with a note, and reports are read each time."""
    cache = tmp_path / "history.db"
    cache.write_bytes(b"no database at all, " * 100)
    answer, read = read_again(folder, cache)
    assert len(read) == 3
    assert any("cannot be used" in note for note in answer.notes)
    assert cache.read_bytes().startswith(b"no database")
