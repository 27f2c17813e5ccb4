"""Columns in scratch files: the same answers, `==`, as in memory, and nothing left behind."""

import errno
import gc
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.files import write_tables
from nsysprof.analyze.timeline import Timeline, timeline
from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.split import BY
from nsysprof.core import arena as arena_module
from nsysprof.core.arena import IN_MEMORY, ColumnArena, default_limit, parse_size
from nsysprof.core.arrays import Array
from nsysprof.errors import NsysprofError
from nsysprof.trace.report import allocator, open_report, read_tables
from nsysprof.trace.trace import Trace
from tests.conftest import MakeTrace
from tests.kit.command_line import Run, known_failure
from tests.kit.random_reports import random_report

TRACES = Path(__file__).parents[2] / "traces"
NAMES = ("run", "block", "two-processes")
TINY = 1  # byte
FRAMES = ("ranges", "merged", "families", "kernels", "merged_kernels", "ledger", "instances")


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of tiny reports live in scratch files too."""
    monkeypatch.setattr(arena_module, "_MIN_FILE_BYTES", 0)


def answer(path: Path, arena: ColumnArena, threads: str = "follow", by: str | None = None) -> Breakdown:
    """The breakdown of a report; what shows columns of scratch files is let go of between the steps."""
    with open_report(path) as report:
        trace = read_tables(report, arena=arena)
    arena.release()
    attribution = attribute(trace, threads)
    arena.release()
    return break_down(attribution, by=by)


def columns(trace: Trace, attribution: Attribution) -> Iterator[tuple[str, Array]]:
    """All long columns, by name."""
    for group in (trace.ranges, trace.launches, trace.ops, attribution.inclusive):
        for field in fields(group):
            yield f"{type(group).__name__}.{field.name}", getattr(group, field.name)
    for name in ("owner", "outcome", "parent", "exclusive_sum_ns"):
        yield name, getattr(attribution, name)


def assert_same(mine: Breakdown, other: Breakdown) -> None:
    """Every column, frame, total and warning of the two is equal, in values and types."""
    ours = columns(mine.attribution.trace, mine.attribution)
    theirs = dict(columns(other.attribution.trace, other.attribution))
    for name, values in ours:
        assert values.dtype == theirs[name].dtype, name
        assert np.array_equal(values, theirs[name]), name
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(mine, name), getattr(other, name), check_exact=True)
    assert mine.totals == other.totals
    assert mine.warnings == other.warnings
    assert mine.attribution.ledger == other.attribution.ledger


def assert_same_lanes(mine: Timeline, other: Timeline) -> None:
    """Every lane of the two is equal."""
    assert np.array_equal(mine.edges, other.edges)
    assert (mine.wait_ns, mine.notes, len(mine.streams), len(mine.ranges)) == (
        other.wait_ns, other.notes, len(other.streams), len(other.ranges),
    )  # fmt: skip
    for ours, theirs in zip([*mine.streams, *mine.ranges], [*other.streams, *other.ranges], strict=True):
        for name, value in vars(ours).items():
            assert np.array_equal(value, vars(theirs)[name]), name


@pytest.mark.parametrize("by", [None, *BY])
@pytest.mark.parametrize("threads", ["follow", "strict"])
@pytest.mark.parametrize("name", NAMES)
def test_real_reports_have_the_same_answer_in_scratch_files(name: str, threads: str, by: str | None) -> None:
    """Frames, columns, totals, warnings and lanes of each shipped report do not depend on where columns live."""
    path = TRACES / f"{name}.sqlite"
    mine, other = answer(path, ColumnArena(TINY), threads, by), answer(path, IN_MEMORY, threads, by)
    assert_same(mine, other)
    assert_same_lanes(timeline(mine), timeline(other))


@pytest.mark.parametrize("seed", range(20))
def test_random_reports_have_the_same_answer_in_scratch_files(trace: MakeTrace, seed: int) -> None:
    """So it is for reports made by chance, with crossing ranges, windows, helper threads and ties."""
    path = trace(*random_report(seed))
    for threads in ("follow", "strict"):
        assert_same(answer(path, ColumnArena(TINY), threads), answer(path, IN_MEMORY, threads))


def test_pieces_smaller_than_the_report_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither do answers depend on how many rows are worked on at a time."""
    path = TRACES / "block.sqlite"
    other = answer(path, IN_MEMORY)
    monkeypatch.setattr("nsysprof.core.arrays.ROWS", 97)
    mine = answer(path, ColumnArena(TINY))
    assert_same(mine, other)
    assert_same_lanes(timeline(mine), timeline(other))


@pytest.mark.parametrize("name", NAMES)
def test_files_are_the_same_bytes(tmp_path: Path, name: str) -> None:
    """CSV and JSON of a report do not depend on where columns live."""
    path = TRACES / f"{name}.sqlite"
    for folder, arena in (("scratch", ColumnArena(TINY)), ("memory", IN_MEMORY)):
        (tmp_path / folder).mkdir()
        write_tables(answer(path, arena), tmp_path / folder, instances=True)
    for file in (tmp_path / "memory").iterdir():
        assert file.read_bytes() == (tmp_path / "scratch" / file.name).read_bytes()


def test_long_columns_are_in_scratch_files_and_only_there() -> None:
    """Beyond the limit every long column is a mapped file, below it none is."""

    def mapped(values: Any) -> bool:
        while isinstance(values, np.ndarray):
            values = values.base
        return isinstance(values, mmap.mmap | memoryview)

    for arena, where in ((ColumnArena(TINY), True), (IN_MEMORY, False)):
        found = answer(TRACES / "block.sqlite", arena).attribution
        assert {name for name, values in columns(found.trace, found) if mapped(values) != where} == set()


def test_the_limit_decides() -> None:
    """What fits stays in memory; what does not goes into scratch files; no limit is no limit."""
    with open_report(TRACES / "run.sqlite") as report:
        assert allocator(report, None) is IN_MEMORY
        assert allocator(report, 2 * 10**9) is IN_MEMORY
        fits = allocator(report, 10**9)
        assert (fits.limit, fits.roomy, IN_MEMORY.roomy) == (None, False, True)  # not what is made side by side
        assert allocator(report, 10**6).limit == 10**6


def test_release_gives_memory_back_and_keeps_what_was_written() -> None:
    """64 MB of a column leave memory, and are there again when they are read."""
    arena = ColumnArena(TINY)
    before = arena_module._resident_memory()
    if before is None or not hasattr(mmap, "MADV_DONTNEED"):
        pytest.skip("this system does not tell how much memory a process holds")
    values = ColumnArena.empty(arena, 1 << 23, np.int64)
    values[:] = np.arange(len(values))
    arena.release()
    after = arena_module._resident_memory()
    assert after is not None
    assert after[1] - before[1] < 1 << 24
    assert np.array_equal(values, np.arange(len(values)))


def test_memory_is_released_near_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to ask: a process that holds too much for its limit is relieved of mapped columns soon."""
    monkeypatch.setattr(arena_module, "_resident_memory", lambda: (10**8, 10**8))
    freed: list[int] = []
    monkeypatch.setattr(ColumnArena, "release", lambda arena: freed.append(arena.limit or 0))
    arena = ColumnArena(10**9)
    kept = arena.empty(10, np.int64)
    monkeypatch.setattr(arena_module, "_resident_memory", lambda: (10**9, 10**9))
    end = time.monotonic() + 10
    while not freed and time.monotonic() < end:
        time.sleep(0.01)
    assert freed
    assert len(kept) == 10


def test_short_columns_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for a handful of rows would cost time and save nothing."""
    monkeypatch.setattr(arena_module, "_MIN_FILE_BYTES", 1 << 16)
    arena = ColumnArena(TINY)
    for make in (arena.empty, arena.zeros):
        assert make((1 << 13) - 1, np.int64).base is None
        assert make(1 << 13, np.int64).base is not None


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch files have no name, and are gone with the columns that they hold."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = Path("/proc/self/fd")

    def scratch() -> int:
        links = (str(entry.readlink()) for entry in opened.iterdir() if entry.is_symlink())
        return sum(link.startswith(str(tmp_path)) for link in links)

    found = answer(TRACES / "run.sqlite", ColumnArena(TINY))
    assert list(tmp_path.iterdir()) == []
    if opened.is_dir():
        assert scratch() > 0
        del found
        gc.collect()
        assert scratch() == 0


def test_columns_of_nothing() -> None:
    """A column without rows is one like any other."""
    for arena in (IN_MEMORY, ColumnArena(TINY)):
        assert arena.empty(0, np.int64).dtype == np.int64
        assert len(arena.zeros(0, np.uint8)) == len(arena.full(0, -1, np.int32)) == 0
        assert len(arena.take(np.empty(0, np.int64), np.empty(0, np.intp))) == 0
        assert len(arena.repeat(np.empty(0, np.int32), np.empty(0, np.int64))) == 0


def test_columns_are_what_was_asked_for() -> None:
    """Arenas fill, take and repeat as numpy does; -1 takes the last value."""
    values = np.array([7, 8, 9])
    for arena in (IN_MEMORY, ColumnArena(TINY)):
        assert arena.zeros(3, np.int32).tolist() == [0, 0, 0]
        assert arena.full(2, -1, np.int32).tolist() == [-1, -1]
        assert arena.take(values, np.array([2, -1, 0])).tolist() == [9, 9, 7]
        assert arena.repeat(values, np.array([2, 0, 1])).tolist() == [7, 7, 9]


SIZES = {
    "3GB": 3_000_000_000,
    "3 GB": 3_000_000_000,
    "1.5GiB": 1_610_612_736,
    "500m": 500_000_000,
    "2k": 2_000,
    "77": 77,
    "9B": 9,
}


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_sizes(text: str, size: int) -> None:
    """Sizes are read in powers of 1,000, or of 1,024 where the unit says so."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0GB", "-3GB", "3XB", "GB", "half"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """Anything else is named in the error."""
    with pytest.raises(NsysprofError, match="is not a memory size"):
        parse_size(text)


def test_the_default_limit_is_half_of_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's memory counts, or what a control group leaves of it, of either version; `max` is no limit."""
    files: dict[str, str] = {}
    monkeypatch.setattr(arena_module, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(arena_module, "_machine_memory", lambda: 16_000)
    assert default_limit() == 8_000
    files["/proc/self/cgroup"] = "12:cpu:/job\n5:memory:/job/step\n0::/slice\n"
    assert default_limit() == 8_000
    files["/sys/fs/cgroup/slice/memory.max"] = "max\n"
    files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = f"{1 << 62}\n"
    assert default_limit() == 8_000
    files["/sys/fs/cgroup/slice/memory.max"] = "4000\n"
    assert default_limit() == 2_000
    files["/sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = "3000\n"
    assert default_limit() == 1_500


def test_a_full_disk_is_a_known_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says where there is no space, and what to do."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(NsysprofError, match=r"cannot write a scratch file of 8.00 KiB in .*: No space") as found:
        ColumnArena(TINY).empty(1024, np.int64)
    assert "export TMPDIR=FOLDER" in (found.value.hint or "")


def test_a_folder_for_scratch_files_that_is_none_is_not_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where TMPDIR cannot be used Python takes another folder, which may be in memory: that is refused."""
    there = tmp_path / "there"
    there.mkdir()
    for asked in (there, Path(f"{there}/."), tmp_path / "none"):
        monkeypatch.setenv("TMPDIR", str(asked))
        monkeypatch.setattr(tempfile, "tempdir", None)
        if asked.exists():
            assert len(ColumnArena(TINY).zeros(100_000, np.int64)) == 100_000
        else:
            with pytest.raises(NsysprofError, match=r"scratch file in .*none, the folder in TMPDIR") as found:
                ColumnArena(TINY).empty(100_000, np.int64)
            assert "export TMPDIR=FOLDER" in (found.value.hint or "")


def test_the_command_takes_a_limit(tmp_path: Path, run: Run) -> None:
    """``--memory-limit`` changes nothing of what is printed and written; what is no size is a known failure."""
    run = partial(run, "analyze")
    path = TRACES / "two-processes.sqlite"
    texts = []
    for folder, more in (("memory", ()), ("scratch", ("--memory-limit", "1MB"))):
        done = run(path, "--no-charts", "-o", folder, *more)
        assert done.code == 0, done.err
        texts.append(done.out)
    assert texts[0] == texts[1]
    for file in (tmp_path / "memory").iterdir():
        assert file.read_bytes() == (tmp_path / "scratch" / file.name).read_bytes()
    assert "'much' is not a memory size" in known_failure(run(path, "--memory-limit", "much"))
