"""Which instances `--skip` leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsysprof.attribution.attribute import attribute
from nsysprof.attribution.paths import merged_paths, range_paths, warm_up
from nsysprof.trace.report import open_report
from tests.conftest import MakeTrace
from tests.kit.trace import Range


def left_out(path: Path, skip: int) -> list[str]:
    """`name@start` of the ranges left out, in order of thread and start."""
    with open_report(path) as report:
        found = attribute(report)
        paths = range_paths(found)
        merged = merged_paths(paths)
        out = warm_up(found, merged.of[paths.of], skip)
        ranges, names = found.trace.ranges, found.trace.range_names
        return [
            f"{names[name].text}@{start}"
            for name, start, gone in zip(
                ranges.name.tolist(), ranges.start.tolist(), out.tolist(), strict=True
            )
            if gone
        ]


def iterations(count: int, start: int = 0, **where: Any) -> list[Range]:
    return [Range(f"iter{i}", start + 10 * i, start + 10 * i + 5, **where) for i in range(count)]


def test_the_first_of_what_repeats_are_warm_up(trace: MakeTrace) -> None:
    """Of five iterations the first two go."""
    assert left_out(trace(*iterations(5), duration=999), 2) == ["iter0@0", "iter1@10"]


def test_what_lies_inside_goes_too(trace: MakeTrace) -> None:
    """The ranges inside a warm-up iteration go with it, and none of those inside a kept one."""
    inner = [Range("mm", 10 * i + j, 10 * i + j + 1) for i in range(3) for j in (1, 3)]
    assert left_out(trace(*iterations(3), *inner, duration=999), 1) == ["iter0@0", "mm@1", "mm@3"]


def test_what_does_not_repeat_more_often_stays(trace: MakeTrace) -> None:
    """Two instances are no repetition when two are to be skipped: not everything is warm-up."""
    assert left_out(trace(*iterations(2), Range("load", 50, 60), duration=999), 2) == []


def test_each_parent_has_warm_up_of_its_own(trace: MakeTrace) -> None:
    """Where the iterations of two runs start anew, the first of each run goes."""
    path = trace(
        Range("math", 0, 40), *iterations(3), Range("flash", 100, 140), *iterations(3, 100), duration=999
    )
    assert left_out(path, 1) == ["iter0@0", "iter0@100"]


def test_each_thread_has_warm_up_of_its_own(trace: MakeTrace) -> None:
    """Iterations of two threads, or of two processes, are two repetitions."""
    path = trace(*iterations(3, thread=1), *iterations(3, thread=2), *iterations(3, process=2), duration=999)
    assert left_out(path, 1) == ["iter0@0"] * 3


def test_only_the_outermost_repetition_counts(trace: MakeTrace) -> None:
    """Micro-batches inside a kept step are kept, though they repeat."""
    micro = [Range("micro", 100 * i + 10 * j, 100 * i + 10 * j + 5) for i in range(3) for j in range(4)]
    steps = [Range(f"step{i}", 100 * i, 100 * i + 50) for i in range(3)]
    out = left_out(trace(*steps, *micro, duration=999), 1)
    assert out == ["step0@0", "micro@0", "micro@10", "micro@20", "micro@30"]


def test_start_end_ranges_have_warm_up_too(trace: MakeTrace) -> None:
    """Of windows that repeat the first go."""
    windows = [Range("w", 10 * i, 10 * i + 5, kind="start_end") for i in range(3)]
    assert left_out(trace(*windows, duration=999), 1) == ["w@0"]


def test_nothing_is_skipped_unless_asked(trace: MakeTrace) -> None:
    """Skip 0 leaves out nothing, and a report without ranges has nothing to leave out."""
    assert left_out(trace(*iterations(3), duration=999), 0) == []
    assert left_out(trace(duration=999), 3) == []
