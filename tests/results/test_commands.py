"""Every command that writes results: whose files it replaces, and that it leaves all of them or none."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from nsysprof.results.folder import ResultFolder
from tests.conftest import MakeTrace
from tests.kit.bench_samples import made_up, write_samples
from tests.kit.command_line import Done, known_failure, runner
from tests.kit.trace import Range, launch_kernel


@dataclass(frozen=True)
class Writer:
    """A command with what it reads; it writes ``names`` into a folder, or one file.

    ``asks``: its own earlier results, too, are replaced with ``--force`` only. ``stale``: a file that another run of it
    may have written. ``forces``: with ``--force`` it replaces files of anybody.
    """

    arguments: tuple[str, ...]
    names: tuple[str, ...] = ()
    stale: str | None = None
    asks: bool = False
    forces: bool = True


_PAIR = ("--base", "RUN::a", "--new", "RUN::b", "--no-charts")
_TABLES = ("ops.csv", "launches.csv", "ranges.csv", "instances.csv", "export.json")
_BENCH = ("results.csv", "comparisons.csv", "decisions.csv", "exponents.csv", "crossovers.csv", "report.md")
WRITERS = {
    "analyze": Writer(
        ("analyze", "r.sqlite", "--no-charts"),
        (
            *("ranges.csv", "instances.csv", "kernels.csv", "analysis.json"),
            *("calls.csv", "streams.csv", "gaps.csv", "utilisation.csv"),
        ),
        "timeline.png",
    ),
    "compare": Writer(("compare", "r.sqlite", *_PAIR), ("gap.csv", "gap.json"), "gap.png"),
    "fleet": Writer(
        ("fleet", "r.sqlite", "--no-charts", "--workers", "1"),
        ("fleet.csv", "iterations.csv", "ranks.csv", "fleet.json"),
        "fleet_heatmap.png",
    ),
    "bench report": Writer(
        ("bench", "report", "run", "--no-charts"), (*_BENCH, "samples.json"), "latency.png", asks=True
    ),
    "export": Writer(("export", "r.sqlite", "--to", "csv"), _TABLES, asks=True, forces=False),
    "export perfetto": Writer(("export", "r.sqlite", "--to", "perfetto"), asks=True, forces=False),
    "check --init": Writer(("check", "--init", "r.sqlite"), asks=True),
    "scrub": Writer(("scrub", "r.sqlite"), asks=True),
}
FOLDERS = [name for name, writer in WRITERS.items() if writer.names]
SHARED = [name for name in FOLDERS if WRITERS[name].forces]
CHEAP = [name for name in WRITERS if name != "fleet"]  # which starts a cluster each time
WriterRun = Callable[..., Done]


@pytest.fixture
def write(
    trace: MakeTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> WriterRun:
    """Runs a command of `WRITERS` with the output ``out`` and more options, in the folder of what it reads."""
    calls = [
        part
        for id in range(20)  # more than ten of each, which a draft of a budget wants
        for part in (
            Range(f"RUN::{'ab'[id % 2]}", 1000 * id, 1000 * id + 400),
            *launch_kernel("k", (1000 * id + 10, 1000 * id + 20), (1000 * id + 30, 1000 * id + 200 + id), id=id),
        )
    ]
    trace(*calls, name="r.sqlite")
    write_samples(tmp_path / "run", made_up(samples=12))
    call = runner(tmp_path, capsys, monkeypatch)
    return lambda name, *more: call(*WRITERS[name].arguments, "-o", "out", *more)


def content(path: Path) -> dict[str, bytes]:
    """All files below a place, or the file that it is."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("name", WRITERS)
def test_earlier_results_are_replaced_as_a_whole(name: str, write: WriterRun, tmp_path: Path) -> None:
    """By a run about the same, without asking or with --force only; what was written is said, or counted if a line is
    too short for it.
    """
    out, writer = tmp_path / "out", WRITERS[name]
    first = write(name)
    assert first.code == 0, first.err
    assert "Written to out" in first.err
    assert set(content(out)) == set(writer.names or ["out"])
    assert all(file in first.err for file in writer.names) or re.search(r" \d+ (charts|tables)\n", first.err)
    before = content(out)
    if writer.asks:
        assert "not overwritten" in known_failure(write(name))
        assert content(out) == before
    if writer.names and writer.forces:
        (out / "notes.txt").write_text("mine")
    if writer.stale:
        (out / writer.stale).write_text("old")
    again = write(name, *(["--force"] if writer.asks else []))
    assert again.code == 0, again.err
    assert set(content(out)) - {"notes.txt"} == set(before)
    assert (out / "notes.txt").exists() == (bool(writer.names) and writer.forces)
    if writer.stale:
        assert "removed files of an earlier" in again.err
        assert writer.stale in again.err
    assert not list(tmp_path.glob("**/.nsysprof-*"))


@pytest.mark.parametrize("name", WRITERS)
def test_files_of_others_are_not_replaced(name: str, write: WriterRun, tmp_path: Path) -> None:
    """Refused at once; with --force they are, but for a place that an export would take as a whole."""
    out, writer = tmp_path / "out", WRITERS[name]
    taken = out / writer.names[0] if writer.names else out
    taken.parent.mkdir(exist_ok=True)
    taken.write_text("mine")
    error = known_failure(write(name))
    assert "out" in error
    assert "hint: " in error
    assert content(out) == {taken.name: b"mine"}
    forced = write(name, "--force")
    assert (forced.code == 0) == writer.forces
    assert (content(out)[taken.name] == b"mine") != writer.forces


@pytest.mark.parametrize("name", CHEAP)
def test_no_link_is_followed(name: str, write: WriterRun, tmp_path: Path) -> None:
    """A link under the name of a result is somebody else's file; with --force it goes, and not what it names."""
    writer, victim = WRITERS[name], tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / "out" / writer.names[0] if writer.names else tmp_path / "out"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim)
    known_failure(write(name))
    assert link.is_symlink()
    assert (write(name, "--force").code == 0) == writer.forces
    assert (victim.read_text(), link.is_symlink()) == ("precious", not writer.forces)


@pytest.mark.parametrize("name", ["analyze", "compare"])
def test_a_page_of_another_command_is_not_replaced(name: str, write: WriterRun, tmp_path: Path) -> None:
    """All commands call it report.html: its head says whose it is."""
    assert write(name, "--html").code == 0
    page = tmp_path / "out" / "report.html"
    page.write_text(page.read_text().replace(f"nsysprof {name} ", "nsysprof another "))
    assert "holds report.html" in known_failure(write(name, "--html"))
    assert write(name).code == 0
    assert page.exists()
    assert write(name, "--html", "--force").code == 0
    assert write(name).code == 0
    assert not page.exists()


@pytest.mark.parametrize("name", WRITERS)
def test_a_place_that_cannot_be_is_refused_at_once(name: str, write: WriterRun, tmp_path: Path) -> None:
    """A file stands where a folder should: nothing is done, and nothing is left."""
    (tmp_path / "file").touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    for place in ("file/below", *(["file"] if name in SHARED else [])):
        error = known_failure(write(name, "-o", place, "--force"))
        assert "file" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_without_permission(name: str, write: WriterRun, tmp_path: Path) -> None:
    """A folder that may not be written to is a known failure, before any work."""
    (tmp_path / "locked").mkdir(mode=0o500)
    known_failure(write(name, "-o", "locked/out"))


@pytest.mark.parametrize("name", CHEAP)
@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_stops_half_way_leaves_all_as_it_was(
    name: str, stop: BaseException, write: WriterRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is a known failure, Ctrl-C ends with 130; there is nothing new then, whole or half."""
    before: dict[str, bytes] = {}
    for earlier in (False, True):
        if earlier:
            assert write(name).code == 0
            before = content(tmp_path / "out")
        with monkeypatch.context() as patched:
            patched.setattr(ResultFolder, "_publish", _raise(stop))
            patched.setattr(import_module("nsysprof.export.export"), "write_perfetto", _raise(stop))
            patched.setattr(import_module("nsysprof.results.folder"), "give_names", _raise(stop))
            done = write(name, *(["--force"] if WRITERS[name].asks else []))
        assert done.code == (130 if isinstance(stop, KeyboardInterrupt) else 1), done.err
        assert len(done.err.splitlines()) <= 2
        assert content(tmp_path / "out") == before
        assert not list(tmp_path.glob("**/.nsysprof-*"))
        assert (tmp_path / "out").exists() == bool(before)


def _raise(error: BaseException) -> Callable[..., None]:
    def stop(*_: object, **__: object) -> None:
        raise type(error)(*error.args)  # a new one each time: handlers put names into it

    return stop
