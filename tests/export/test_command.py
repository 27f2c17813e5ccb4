"""`nsysprof export`: names, what is never overwritten, what an accident leaves, and what trace_processor reads."""

import errno
import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from shutil import copyfile

import pandas as pd
import pytest

import nsysprof
from nsysprof.analyze.records import TABLES
from nsysprof.errors import NsysprofError
from tests.conftest import MakeTrace
from tests.kit.command_line import Run, known_failure, runner
from tests.kit.perfetto_trace import Slice, read_trace
from tests.kit.random_reports import random_report
from tests.kit.trace import Kernel, Range, launch_kernel
from tests.kit.trace_processor import TraceProcessor

pytest.importorskip("perfetto.protos")
pytest.importorskip("pyarrow")
TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `nsysprof export …` in the test's own folder, where `run.sqlite` lies."""
    copyfile(TRACES / "two-processes.sqlite", tmp_path / "run.sqlite")
    return runner(tmp_path, capsys, monkeypatch, "export")


def there(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files(to: str) -> list[str]:
    """What the folder of an export as tables holds."""
    return sorted(["export.json", *(f"{table.file}.{to}" for table in TABLES)])


def test_a_trace_gets_the_name_of_the_report(run: Run, tmp_path: Path) -> None:
    """In the current folder; stdout has the next command, and stderr says where to open it."""
    done = run("run.sqlite", "--to", "perfetto")
    assert (done.code, done.out) == (0, "   $ nsysprof analyze run.sqlite\n")
    assert done.err.startswith("Written to run.pftrace (")
    assert done.err.endswith("; open it in https://ui.perfetto.dev\n")
    assert there(tmp_path) == ["run.pftrace", "run.sqlite"]
    assert len(read_trace(tmp_path / "run.pftrace").slices("kernel")) == 417


@pytest.mark.parametrize("to", ["parquet", "csv"])
def test_tables_get_a_folder(run: Run, tmp_path: Path, to: str) -> None:
    """With a file for each table and what they are of."""
    done = run("run.sqlite", "--to", to)
    assert (done.code, done.out) == (0, "   $ nsysprof analyze run.sqlite\n")
    assert done.err.splitlines()[0].endswith(f"): {', '.join(files(to))}")
    assert there(tmp_path) == [f"run.{to}", "run.sqlite"]
    assert there(tmp_path / f"run.{to}") == files(to)


@pytest.mark.parametrize(("to", "name"), [("perfetto", "a b.pftrace.gz"), ("csv", "tables"), ("parquet", "t.x")])
def test_another_place(run: Run, tmp_path: Path, to: str, name: str) -> None:
    """`-o` names it, in a folder that exists."""
    (tmp_path / "results").mkdir()
    assert run("run.sqlite", "--to", to, "-o", f"results/{name}").code == 0
    assert there(tmp_path / "results") == [name]
    message = known_failure(run("run.sqlite", "--to", to, "-o", f"nowhere/{name}"))
    assert "hint: mkdir -p nowhere" in message


def test_what_is_never_replaced(run: Run, tmp_path: Path) -> None:
    """The report, folders by files and files by folders, and folders that hold other things, --force or not."""
    report = (tmp_path / "run.sqlite").read_bytes()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    (tmp_path / "note").write_text("words")
    for to, name, why in (
        ("perfetto", "run.sqlite", "the report itself"),
        ("csv", "run.sqlite", "the report itself"),
        ("perfetto", "mine", "is a folder, which export does not replace"),
        ("parquet", "note", "is a file, which export does not replace"),
        ("csv", "mine", "has files that nsysprof export did not write: thesis.txt"),
        (
            "parquet",
            ".",
            "has files that nsysprof export did not write: mine\n  hint: name another place, such as -o run.parquet",
        ),
    ):
        assert why in known_failure(run("run.sqlite", "--to", to, "-o", name, "--force"))
    assert there(tmp_path) == ["mine", "note", "run.sqlite"]
    assert (tmp_path / "run.sqlite").read_bytes() == report
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"


def test_force_replaces_only_what_an_export_wrote(run: Run, tmp_path: Path) -> None:
    """A text, packed or not, a pipe, and tables that somebody made by hand stay, whatever they are called."""
    (tmp_path / "thesis.pftrace").write_text("\nyears of nsysprof.schema")
    (tmp_path / "thesis.gz").write_bytes(gzip.compress(b"years"))
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b years")
    os.mkfifo(tmp_path / "pipe")
    for name, document in (("tables", None), ("other", '{"schema": "nsysprof-analysis/1"}'), ("odd", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ranges.csv").write_text("by hand")
        if document:
            (tmp_path / name / "export.json").write_text(document)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    for name in ("thesis.pftrace", "thesis.gz", "broken.gz", "pipe"):
        for force in ((), ("--force",)):
            message = known_failure(run("run.sqlite", "--to", "perfetto", "-o", name, *force))
            assert f"{name} is not replaced, because nsysprof export did not write it" in message
    for name in ("tables", "other", "odd"):
        message = known_failure(run("run.sqlite", "--to", "csv", "-o", name, "--force"))
        assert f"{name} has files that nsysprof export did not write: " in message
        assert (tmp_path / name / "ranges.csv").read_text() == "by hand"
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "thesis.pftrace").read_text() == "\nyears of nsysprof.schema"


def test_force_replaces_an_export_in_another_format(run: Run, tmp_path: Path) -> None:
    """Tables as CSV by Parquet, a packed trace by a plain one, and a file without anything in it."""
    assert run("run.sqlite", "--to", "csv", "-o", "out").code == 0
    assert run("run.sqlite", "--to", "parquet", "-o", "out", "--force").code == 0
    assert there(tmp_path / "out") == files("parquet")
    assert run("run.sqlite", "--to", "perfetto", "-o", "out.gz").code == 0
    (tmp_path / "out.gz").rename(tmp_path / "out.pftrace")
    (tmp_path / "new.pftrace").touch()
    for name in ("out.pftrace", "new.pftrace"):
        assert run("run.sqlite", "--to", "perfetto", "-o", name, "--force").code == 0
        assert read_trace(tmp_path / name).tracks


def test_a_place_that_cannot_be_taken_is_refused_at_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the report is read, with a place that could."""
    monkeypatch.setattr(import_module("nsysprof.export.export"), "attribute", None)
    locked, real = tmp_path / "locked", os.access
    locked.mkdir()

    def access(path: Path, mode: int) -> bool:
        return real(path, mode) and not (mode & os.W_OK and Path(path).absolute() == locked)

    monkeypatch.setattr(os, "access", access)
    for name, why, hint in (
        (".", ". has files that nsysprof export did not write: locked", "name another place, such as -o run.csv"),
        (str(tmp_path), "nsysprof export did not write: locked", f"name another place, such as -o {tmp_path}/run.csv"),
        ("locked", "locked: no permission to write there", "name another place with -o"),
        ("locked/x", f"cannot write into {locked}: no permission", "name another place with -o"),
        ("locked/in/x", f"cannot write into {locked}/in: no permission", "name another place with -o"),
        ("run.sqlite/x", "run.sqlite is not a folder", "name another place with -o"),
    ):
        for force in ((), ("--force",)):
            message = known_failure(run("run.sqlite", "--to", "csv", "-o", name, *force))
            assert why in message
            assert message.endswith(f"hint: {hint}\n")


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.ENOSPC, "df -h "), (errno.EDQUOT, "df -h "), (errno.EACCES, "name another")]
)
def test_a_hint_that_fits(run: Run, monkeypatch: pytest.MonkeyPatch, number: int, hint: str) -> None:
    """Where there is space it is not the space that is to be looked at."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(import_module("nsysprof.export.export"), "write_perfetto", fail)
    assert f"hint: {hint}" in known_failure(run("run.sqlite", "--to", "perfetto"))


@pytest.mark.parametrize("to", ["perfetto", "parquet", "csv"])
def test_a_report_with_a_name_that_is_no_text(run: Run, tmp_path: Path, to: str) -> None:
    """File names are bytes: what is no UTF-8 in one stops no export."""
    odd = tmp_path / os.fsdecode(b"run\xff.sqlite")
    (tmp_path / "run.sqlite").rename(odd)
    assert run(odd, "--to", to, "-o", "out").code == 0
    assert there(tmp_path) == ["out", odd.name]


def test_an_empty_folder_is_taken(run: Run, tmp_path: Path) -> None:
    """There is nothing in it to lose; a link to one is followed and stays."""
    (tmp_path / "new").mkdir()
    (tmp_path / "link").symlink_to("new")
    assert run("run.sqlite", "--to", "csv", "-o", "link").code == 0
    assert there(tmp_path / "new") == files("csv")
    assert (tmp_path / "link").is_symlink()


def test_a_trace_that_comes_meanwhile_stays(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process wrote it while this one was at work."""

    def other(*_: object) -> None:
        (tmp_path / "run.pftrace").write_text("other")

    monkeypatch.setattr(import_module("nsysprof.export.export"), "write_perfetto", other)
    assert "exists already, not overwritten" in known_failure(run("run.sqlite", "--to", "perfetto"))
    assert (tmp_path / "run.pftrace").read_text() == "other"


def test_usage(run: Run, tmp_path: Path) -> None:
    """The format must be given, and be one of three."""
    assert run("run.sqlite").code == 2
    assert run("run.sqlite", "--to", "excel").code == 2
    assert "--to perfetto|parquet|csv" in " ".join(run("--help").out.split())
    assert there(tmp_path) == ["run.sqlite"]


def test_what_is_no_report(run: Run, tmp_path: Path) -> None:
    """One line, and nothing is written."""
    (tmp_path / "text.sqlite").write_text("no database")
    known_failure(run("text.sqlite", "--to", "csv"))
    known_failure(run("absent.sqlite", "--to", "perfetto"))
    assert there(tmp_path) == ["run.sqlite", "text.sqlite"]


@pytest.mark.parametrize("to", ["perfetto", "parquet", "csv"])
def test_a_full_disk_leaves_nothing(run: Run, tmp_path: Path, to: str) -> None:
    """No file may grow beyond a limit: one line, exit code 1; what was there before stays."""
    assert run("run.sqlite", "--to", to).code == 0
    [place] = [path for path in tmp_path.iterdir() if path.name != "run.sqlite"]
    before = place.stat().st_ino
    command = f"ulimit -f 20; {sys.executable} -m nsysprof export run.sqlite --to {to} --force"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"nsysprof: {place.name}: cannot be written: File too large\n  hint: name another place with -o\n"
    )
    assert len(there(tmp_path)) == 2
    assert place.stat().st_ino == before


@pytest.mark.parametrize(("to", "number"), [("perfetto", signal.SIGINT), ("csv", signal.SIGTERM)])
def test_an_interrupt_leaves_nothing(trace: MakeTrace, tmp_path: Path, to: str, number: signal.Signals) -> None:
    """While it writes: one line, the exit code of a shell, no file and no folder."""
    report = trace(Range("step", 0, 1_000_000), *(Kernel("k", n, n + 1, None) for n in range(30_000)))
    process = subprocess.Popen(
        [sys.executable, "-m", "nsysprof", "export", str(report), "--to", to],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not list(tmp_path.glob("**/.nsysprof-*/*")) and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, "nsysprof: interrupted\n")
    assert there(tmp_path) == ["report.sqlite"]


def test_rules_and_threads_are_those_of_an_analysis(run: Run, tmp_path: Path, trace: MakeTrace) -> None:
    """Own rules name the family; strict leaves work of helper threads to nobody."""
    report = trace(Range("step", 0, 50), *launch_kernel("mine", (1, 2), (3, 9), id=1, thread=2))
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "mine"\nfamily = "gemm"\nmatch = "mine"\n')
    assert run(report, "--to", "csv", "-o", "a", "--rules", rules).code == 0
    assert run(report, "--to", "csv", "-o", "b", "--threads", "strict").code == 0
    [own], [strict] = (
        pd.read_csv(tmp_path / name / "ops.csv").to_dict("records") for name in ("a", "b")
    )  # fmt: skip
    assert (own["family"], own["fate"], own["path"]) == ("gemm", "followed", "step")
    assert (strict["fate"], strict["path"]) == ("outside every range", pytest.approx(float("nan"), nan_ok=True))


def test_the_library_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`nsysprof.export` takes files and open reports, and gives back where it wrote."""
    monkeypatch.chdir(tmp_path)
    report = TRACES / "two-processes.sqlite"
    assert nsysprof.export(report, "perfetto") == Path("two-processes.pftrace")
    with nsysprof.open_report(report) as opened:
        assert nsysprof.export(opened, "csv", "out") == Path("out")
    assert there(tmp_path) == ["out", "two-processes.pftrace"]
    with pytest.raises(NsysprofError, match="unknown export format"):
        nsysprof.export(report, "xlsx")


@pytest.fixture(scope="module")
def processor() -> Iterator[TraceProcessor]:
    """One for all traces, which it loads one after the other: it takes seconds to start."""
    opened = TraceProcessor()
    yield opened
    opened.close()


def _load(processor: TraceProcessor, report: Path, folder: Path, name: str = "out.pftrace") -> None:
    processor.load(nsysprof.export(report, "perfetto", folder / name))


ERRORS = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value != 0"


def _rows(slices: list[Slice]) -> list[tuple[int, int, str, str, int]]:
    return sorted((each.start, each.end - each.start, each.name, each.category, each.depth) for each in slices)


@pytest.mark.parametrize("name", ["run", "block", "two-processes"])
def test_trace_processor_loads_a_real_report_without_an_error(
    name: str, tmp_path: Path, processor: TraceProcessor
) -> None:
    """Every slice with its time, length, name and depth, every arrow, every value of a counter."""
    _load(processor, TRACES / f"{name}.sqlite", tmp_path)
    assert processor.query(ERRORS) == []
    expected = read_trace(tmp_path / "out.pftrace")
    slices = [each for track in expected.tracks for each in track.slices]
    found = processor.query("SELECT ts, dur, name, category, depth FROM slice")
    assert sorted(found) == _rows(slices)
    assert processor.query("SELECT COUNT(*) FROM flow") == [(sum(len(each.flows) for each in slices),)]
    arrows = processor.query(
        "SELECT a.name, b.category, a.ts <= b.ts FROM flow"
        " JOIN slice a ON a.id = slice_out JOIN slice b ON b.id = slice_in"
    )
    assert {category for _, category, _ in arrows} <= {"kernel", "memcpy", "memset", "graph", "wait"}
    assert all(forwards for _, _, forwards in arrows)
    values = sorted(point for track in expected.tracks for point in track.values)
    assert sorted(processor.query("SELECT ts, CAST(value AS INT) FROM counter")) == values
    # equal notes of several slices are one set of args
    notes = processor.query("SELECT COUNT(*) FROM slice JOIN args USING (arg_set_id) WHERE flat_key LIKE 'debug.%'")
    assert notes == [(sum(len(each.args) for each in slices),)]


@pytest.mark.parametrize("seed", range(0, 24, 3))
def test_trace_processor_loads_made_up_reports_without_an_error(
    seed: int, trace: MakeTrace, tmp_path: Path, processor: TraceProcessor
) -> None:
    """Ties, crossing ranges, negative times, ops before their launches: drawn as they were meant."""
    _load(processor, trace(*random_report(seed)), tmp_path)
    assert processor.query(ERRORS) == []
    slices = [each for track in read_trace(tmp_path / "out.pftrace").tracks for each in track.slices]
    assert sorted(processor.query("SELECT ts, dur, name, category, depth FROM slice")) == _rows(slices)


def test_trace_processor_opens_a_compressed_trace(tmp_path: Path, processor: TraceProcessor) -> None:
    """And tells processes, threads and tracks by name."""
    _load(processor, TRACES / "two-processes.sqlite", tmp_path, "out.pftrace.gz")
    assert processor.query(ERRORS) == []
    assert processor.query("SELECT COUNT(*) FROM slice WHERE category = 'kernel'") == [(417,)]
    names = {name for (name,) in processor.query("SELECT name FROM track")}
    assert {"GPU 0 · NVIDIA H200", "kernels in flight", "NVTX", "CUDA calls"} <= names
    assert len(processor.query("SELECT DISTINCT pid FROM process WHERE name = 'python3'")) == 2


def test_files_are_for_everybody_to_read(run: Run, tmp_path: Path) -> None:
    """As the umask of the user says, though they are made in a folder that is private."""
    before = os.umask(0o022)
    try:
        for to in ("perfetto", "parquet"):
            assert run("run.sqlite", "--to", to).code == 0
    finally:
        os.umask(before)
    assert (tmp_path / "run.pftrace").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "run.parquet").stat().st_mode & 0o777 == 0o755
