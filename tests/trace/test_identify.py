"""What a file is by its content, and the one-line error of everything that is no readable report."""

import gzip
import os
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.tools.nsys import header_version
from nsysprof.trace.nsys.identify import identify
from nsysprof.trace.report import open_report

NEW = "CREATE TABLE StringIds (\n    -- The texts.\n    id INTEGER, value TEXT)"
EVENTS = "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER)"
STREAM = b"U3w[END]NVIDIA Nsight Systems Stream 2022.4.2.1-df9881f!\x0a\xe7\x15"


def database(path: Path, statements: Sequence[str]) -> Path:
    """Run the statements in one transaction, as nsys does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement)
        connection.execute("COMMIT")
    return path


def refused(path: Path) -> NsysprofError:
    """The error of opening the path, checked for what all of them must have."""
    with pytest.raises(NsysprofError) as caught:
        open_report(path)
    error = caught.value
    assert "\n" not in error.message
    assert error.message.startswith(str(path))
    assert error.hint
    return error


def test_a_report_is_an_sqlite_file_whatever_its_name(tmp_path: Path) -> None:
    """The content decides: nsys's files are often renamed."""
    assert identify(database(tmp_path / "report.db.bak", [NEW, "CREATE TABLE ThreadNames (nameId)"])) == "sqlite"


def test_a_parquet_folder_and_a_report_are_told_apart(tmp_path: Path) -> None:
    """A folder with StringIds.parquet is a parquet export, a file with nsys's header is to be exported."""
    (tmp_path / "r_pqtdir").mkdir()
    (tmp_path / "r_pqtdir" / "StringIds.parquet").write_bytes(b"PAR1")
    (tmp_path / "r").write_bytes(b"NVIDIA Tegra Profiler Report 1.\x0a\x0bLocal (CLI)")
    assert identify(tmp_path / "r_pqtdir") == "parquet"
    assert identify(tmp_path / "r") == "nsys-rep"


def test_the_version_of_a_report_stands_in_its_header(tmp_path: Path) -> None:
    """From 2023.3.3 on; before that the header holds only a format number."""
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 2025@3@2@474-253236389321v0.\x0a\x0bLocal (CLI)")
    assert header_version(report) == "2025.3.2.474-253236389321v0"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 1.\x0a\x0bLocal (CLI)")
    assert header_version(report) is None
    report.write_bytes(STREAM)
    assert header_version(report) == "2022.4.2.1-df9881f"


def test_a_missing_file_names_similar_ones(tmp_path: Path) -> None:
    """The same name with another ending, or nearly the same name, is what was meant."""
    for name in ("train.nsys-rep", "trian.sqlite", "other.txt"):
        (tmp_path / name).touch()
    error = refused(tmp_path / "train.sqlite")
    assert error.message.endswith("no such file")
    assert error.hint == "in that folder: train.nsys-rep, trian.sqlite"
    assert "there is no folder" in refused(tmp_path / "no" / "train.sqlite").message


def test_a_folder_that_is_no_parquet_export_names_the_reports_in_it(tmp_path: Path) -> None:
    """The hint is a path that can be given instead."""
    assert "nsys export --type parquetdir" in str(refused(tmp_path).hint)
    (tmp_path / "a.sqlite").touch()
    assert str(tmp_path / "a.sqlite") in str(refused(tmp_path).hint)
    (tmp_path / "NVTX_EVENTS.parquet").touch()
    assert "no StringIds.parquet" in refused(tmp_path).message


def test_an_empty_file_says_how_to_export_again(tmp_path: Path) -> None:
    """A .sqlite of no bytes is what an nsys that could not parse the report leaves."""
    (tmp_path / "a b.sqlite").touch()
    (tmp_path / "a b.nsys-rep").touch()
    error = refused(tmp_path / "a b.sqlite")
    assert "is empty" in error.message
    assert str(error.hint).endswith(f" -o '{tmp_path}/a b.sqlite' '{tmp_path}/a b.nsys-rep'")


def test_a_git_lfs_pointer_says_how_to_fetch_the_file(tmp_path: Path) -> None:
    """A clone without LFS leaves a text of some 130 bytes under the report's name."""
    pointer = tmp_path / "r.sqlite"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
    error = refused(pointer)
    assert "Git LFS pointer of 68 bytes" in error.message
    assert error.hint == "git lfs pull --include r.sqlite"


def test_a_raw_stream_names_its_nsys_and_how_to_import_it(tmp_path: Path) -> None:
    """A .qdstrm must be imported first, with the nsys that recorded it."""
    (tmp_path / "r.qdstrm").write_bytes(STREAM)
    error = refused(tmp_path / "r.qdstrm")
    assert "raw recording of nsys 2022.4.2.1-df9881f" in error.message
    assert str(error.hint).endswith(f"nsysprof capture --resume {tmp_path}/r.qdstrm")


def test_another_database_is_named_by_its_tables(tmp_path: Path) -> None:
    """No StringIds, no report; the first tables say what it is instead."""
    other = database(tmp_path / "o.sqlite", [f"CREATE TABLE t{n} (x)" for n in range(7)])
    assert refused(other).message.endswith("its tables are t0, t1, t2, t3, t4 and 2 more")
    nvprof = ["CREATE TABLE StringTable (value)", "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start)"]
    assert "nvprof" in str(refused(database(tmp_path / "p.sqlite", nvprof)).hint)
    assert "no tables" in refused(database(tmp_path / "n.sqlite", ["PRAGMA user_version = 1"])).message


def test_a_truncated_file_says_how_much_is_there(tmp_path: Path) -> None:
    """The header says how many pages the file must have."""
    whole = database(tmp_path / "whole.sqlite", [NEW, *(f"CREATE TABLE ENUM_{n} (x)" for n in range(9))])
    size = whole.stat().st_size
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole.read_bytes()[: size - 4096])
    assert f"truncated ({size - 4096:,} of {size:,} bytes)" in refused(cut).message


def test_an_export_that_was_killed_is_half_written(tmp_path: Path) -> None:
    """nsys writes the first page last: what a kill leaves begins with a page of zeros."""
    killed = tmp_path / "killed.sqlite"
    killed.write_bytes(bytes(4096) + b"data" * 1024)
    error = refused(killed)
    assert "is an unfinished export" in error.message
    assert "nsys export --type sqlite --force-overwrite true" in str(error.hint)


def test_an_export_that_failed_is_half_written(tmp_path: Path) -> None:
    """A failed nsys commits its first tables: commented, in one transaction, and none of the last ones."""
    failed = database(tmp_path / "failed.sqlite", [NEW, EVENTS])
    assert "is an unfinished export: nsys failed before" in refused(failed).message


@pytest.mark.parametrize("last", ["ThreadNames", "ENUM_NSYS_EVENT_TYPE", "META_DATA_EXPORT", "EXPORT_META_DATA"])
def test_an_export_with_the_last_tables_is_whole(tmp_path: Path, last: str) -> None:
    """Any table that nsys writes after the events shows that it got there."""
    assert identify(database(tmp_path / "r.sqlite", [NEW, EVENTS, f"CREATE TABLE {last} (x)"])) == "sqlite"


def test_a_report_of_2020_without_metadata_is_not_half_written(tmp_path: Path) -> None:
    """Old exports have no metadata at all, and declarations without comments."""
    old = ["CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)", EVENTS]
    assert identify(database(tmp_path / "r.sqlite", old)) == "sqlite"


def test_a_trimmed_report_is_not_half_written(tmp_path: Path) -> None:
    """Somebody who drops the last tables changes the file a second time."""
    trimmed = database(tmp_path / "r.sqlite", [NEW, EVENTS, "CREATE TABLE META_DATA_EXPORT (name, value)"])
    database(trimmed, ["DROP TABLE META_DATA_EXPORT"])
    assert identify(trimmed) == "sqlite"
    with closing(sqlite3.connect(trimmed)) as connection:
        connection.execute("VACUUM")
    assert identify(trimmed) == "sqlite"


def test_a_damaged_schema_is_one_line(tmp_path: Path) -> None:
    """A file whose first page is garbage behind the header cannot be read at all."""
    damaged = database(tmp_path / "d.sqlite", [NEW, EVENTS])
    content = bytearray(damaged.read_bytes())
    content[100:4096] = b"\xff" * 3996
    damaged.write_bytes(content)
    assert "damaged SQLite file" in refused(damaged).message


def test_a_damaged_name_in_the_schema_is_one_line(tmp_path: Path) -> None:
    """sqlite3 quotes the name in its message, in bytes that Python cannot decode."""
    damaged = database(tmp_path / "d.sqlite", [NEW, EVENTS])
    with closing(sqlite3.connect(damaged, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = on")
        connection.execute("UPDATE sqlite_master SET name = x'FF' WHERE name = 'NVTX_EVENTS'")
    assert "damaged SQLite file" in refused(damaged).message


def test_a_file_that_breaks_part_way_is_one_line(tmp_path: Path) -> None:
    """A page that reads as garbage is found when its table is read, and is the same kind of error."""
    rows = [f"INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_{n}', '{'x' * 900}')" for n in range(99)]
    report = database(tmp_path / "d.sqlite", [NEW, "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)", *rows])
    content = bytearray(report.read_bytes())
    content[8192:] = b"\xee" * (len(content) - 8192)
    report.write_bytes(content)
    assert str(refused(report))


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    """No permission is not the same as no file."""
    report = database(tmp_path / "r.sqlite", [NEW, EVENTS])
    report.chmod(0)
    assert "no permission" in refused(report).message


def test_no_permission_is_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where the tests run as root."""
    report = tmp_path / "r.sqlite"
    report.touch()

    def denied(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    error = refused(report)
    assert error.message.endswith("no permission to read it")
    assert error.hint == f"chmod +r {report}"


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (gzip.compress(b"SQLite format 3\0", mtime=0), "gzip-compressed", "gunzip -k"),
        (b"\xfd7zXZ\0rest", "xz-compressed", "xz -dk"),
        (b"\x28\xb5\x2f\xfdrest", "zstd-compressed", "zstd -d"),
        (b"PK\x03\x04rest", "zip archive", "unzip"),
        (b"\x7fELF\x02\x01", "ELF program", "nsys profile"),
        (b"NVR\0rest", "Nsight Compute report", "Nsight Systems"),
        (bytes(257).replace(b"\0", b"a") + b"ustar\0", "tar archive", "tar xf"),
        (b'"traceEvents"', "text, beginning '\"traceEvents\"'", "reads Nsight Systems .sqlite"),
        (b"<!DOCTYPE html>", "XML or HTML text", "reads Nsight Systems .sqlite"),
        ("Grüße\n".encode() * 800, "text, beginning 'Grüße'", "reads Nsight Systems .sqlite"),
        (
            b"\xff\xfe\x00\x01\x02\x03\x04\x05\x06",
            "binary, first bytes ff fe 00 01 02 03 04 05",
            "reads Nsight Systems .sqlite",
        ),
    ],
)
def test_any_other_file_is_named_by_its_first_bytes(tmp_path: Path, content: bytes, what: str, hint: str) -> None:
    """What people hand over by mistake, with the command that makes it readable."""
    path = tmp_path / "r.sqlite"
    path.write_bytes(content)
    error = refused(path)
    assert what in error.message
    assert hint in str(error.hint)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    """Opening it would block until somebody writes."""
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(tmp_path / "pipe").message


def test_a_report_with_a_log_beside_it_is_left_to_the_source(tmp_path: Path) -> None:
    """With a write-ahead log the file alone is not the report; it still opens, and nothing is changed."""
    path = tmp_path / "r.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(NEW)
        connection.execute("CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER, duration INTEGER)")
        connection.execute("INSERT INTO ANALYSIS_DETAILS VALUES (1, 77)")
        connection.commit()
        before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir() if entry.suffix != ".sqlite-shm"}
        with open_report(path) as report:
            assert report.about.duration_ns == 77
        assert before == {
            entry.name: entry.read_bytes() for entry in tmp_path.iterdir() if entry.suffix != ".sqlite-shm"
        }


def test_quirk_02_an_sqlite_ending_proves_nothing(tmp_path: Path) -> None:
    """A database, a pointer text and a truncated file may be called .sqlite; each is told apart."""
    (tmp_path / "a.sqlite").write_text("version https://git-lfs.github.com/spec/v1\n")
    database(tmp_path / "b.sqlite", ["CREATE TABLE people (name)"])
    whole = database(tmp_path / "c.sqlite", [NEW, EVENTS, "CREATE TABLE ThreadNames (nameId)"])
    whole.write_bytes(whole.read_bytes()[:5000])
    said = [refused(tmp_path / f"{name}.sqlite").message.split(".sqlite ", 1)[1][:16] for name in "abc"]
    assert said == ["is only a Git LF", "is an SQLite dat", "is truncated (5,"]
