"""Which steps an answer is about: their times over all GPUs, what is picked of them, and calls inside them."""

from collections import defaultdict
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysprof.attribution.paths import SLOWEST, merged_names
from nsysprof.errors import NsysprofError
from nsysprof.waits.ranges import StepTimes, count_calls, pick_windows, step_times
from nsysprof.waits.windows import Windows
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reports import attributed
from tests.kit.trace import CudaDevice, Gpu, Items, Kernel, Range, launch_kernel, launch_memcpy

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def windows_of(**columns: list[int]) -> Windows:
    """Windows of which only some columns matter."""
    count = len(next(iter(columns.values())))
    rest = {name: np.zeros(count, np.int64) for name in Windows.__dataclass_fields__}
    return Windows(**rest | {name: np.array(values) for name, values in columns.items()})


def times_of(trace: MakeTrace, *items: Items) -> StepTimes:
    """The times of all ranges named step."""
    attribution = attributed(trace(*items))
    read = attribution.trace
    rows = np.flatnonzero(np.array([name.text == "step" for name in read.range_names])[read.ranges.name])
    talks = np.array(["nccl" in name for name in read.op_names])
    return step_times(attribution, rows, np.full(len(rows), 5, np.int32), talks)


def a_step(at: int, *kernels: tuple[int, int], first: int = 1, **where: Any) -> list[Items]:
    """A step from ``at`` on that takes 100 ns of the host, and kernels in it on a GPU."""
    made = [launch_kernel("k", (at + 1, at + 2), (at + a, at + b), id=at + first + n, **where)
            for n, (a, b) in enumerate(kernels)]  # fmt: skip
    return [Range("step", at, at + 100), *made]


def test_a_step_lasts_until_its_last_gpu_is_done(trace: MakeTrace) -> None:
    """From the end of the one before, also where that ran into this one; a path of two steps has none."""
    gpus: list[Items] = [Gpu(0), Gpu(1), CudaDevice(0, 0, 1), CudaDevice(1, 1, 1)]
    steps = [
        *a_step(1_000, (10, 90)),
        launch_kernel("k", (1_003, 1_004), (1_020, 1_150), id=7, device=1),
        *a_step(1_120, (40, 130)),
        launch_kernel("k", (1_123, 1_124), (1_155, 1_200), id=8, device=1),
        *a_step(1_400, (10, 20)),
    ]
    found = times_of(trace, *gpus, *steps)
    assert found.start.tolist() == [1_000, 1_150, 1_250]
    assert found.begin.tolist() == [1_000, 1_150, 1_400]
    assert (found.end.tolist(), found.length.tolist()) == ([1_150, 1_250, 1_500], [150, 100, 250])
    assert (found.path.tolist(), found.steady.tolist()) == ([5] * 3, [True] * 3)
    assert len(times_of(trace, *a_step(1_000, (10, 90)), *a_step(1_120, (10, 90)))) == 0
    slow = times_of(trace, *a_step(1_000, (10, 290)), *a_step(1_400, (10, 90)), *a_step(1_600, (10, 90)))
    assert (slow.length.tolist(), slow.steady.tolist()) == ([290, 210, 200], [False, True, True])


@pytest.mark.parametrize(
    ("name", "length", "device", "steps"),
    [("k", 10, 0, 3), ("k", 11, 0, 0), ("k", 90, 1, 3), (NCCL, 90, 0, 3), ("copy", 90, 0, 3), ("own", 90, 0, 3)],
)
def test_parts_of_steps_are_no_steps(trace: MakeTrace, name: str, length: int, device: int, steps: int) -> None:
    """The GPU computes for others for more than a tenth of their time; another GPU, copies and collectives do not."""
    items: list[Items] = [Gpu(0), Gpu(1), CudaDevice(0, 0, 1), CudaDevice(1, 1, 1)]
    for at in (1_000, 1_100, 1_200):
        items += a_step(at, (1, 2))
        span = (at + 5, at + 5 + length)
        made = launch_kernel(name, (at + 3, at + 4), span, id=at + 50, stream=9, device=device)
        copied = launch_memcpy((at + 3, at + 4), span, id=at + 50, stream=9)
        items.append(made if name == "own" else copied[1:] if name == "copy" else made[1:])
    # what runs for others outside the steps does not count
    assert len(times_of(trace, *items, Kernel("k", 900, 1_000, 9_999), Kernel("k", 1_300, 1_700, 9_998))) == steps


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("per", ["iter*", "a", "iter0", "*"])
def test_calls_are_the_outermost_ranges_below_the_nearest_window(trace: MakeTrace, seed: int, per: str) -> None:
    """Range by range from each match up: of names as recorded or as merged, in windows of some ranges or of all."""
    attribution = attributed(trace(*random_report(seed)))
    ranges, parent = attribution.trace.ranges, attribution.parent.tolist()
    names = [name.text for name in attribution.trace.range_names]
    merged = merged_names(names, None)
    fits = [fnmatchcase(names[code], per) or fnmatchcase(merged[code], per) for code in ranges.name.tolist()]
    for windowed in ([*range(0, len(ranges), 3)], [-1]):
        counts: dict[int, int] = defaultdict(int)
        for row in np.flatnonzero(fits).tolist():
            up = parent[row]
            while up >= 0 and up not in windowed and not fits[up]:
                up = parent[up]
            counts[up] += up in windowed
        if any(counts.values()):
            windows = windows_of(range=windowed)
            found = count_calls(attribution, windows, ["step"], per, None)
            assert found.tolist() == [counts[row] for row in windowed]


def test_a_path_without_calls_is_refused_where_it_has_none(trace: MakeTrace) -> None:
    """In all of it, or on a GPU where others have some; and near names are listed."""
    path = trace(Range("step", 0, 50), Range("load", 1, 9), Range("step", 60, 90), Kernel("k", 0, 1, None))
    attribution = attributed(path)
    names = [attribution.trace.range_names[code].text for code in attribution.trace.ranges.name.tolist()]
    with_load, other = (at for at, name in enumerate(names) if name == "step")
    nothing = r"no inner range matches --per 'l\*'"
    for columns, words in (
        ({"range": [other, with_load], "path": [0, 1]}, f"^one: {nothing}; ranges are 'load'"),
        ({"range": [with_load, other], "gpu": [0, 3]}, f"^one on GPU 3 in process 1: {nothing}"),
    ):
        with pytest.raises(NsysprofError, match=words) as refused:
            count_calls(attribution, windows_of(**columns), ["one", "two"], "l*", None)
        assert "--per" in str(refused.value.hint)
    assert count_calls(attribution, windows_of(range=[with_load, other]), ["one"], "l*", None).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("instances", "skip", "rows", "words"),
    [
        (None, None, [1, 2, 3, 4, 5, 6, 7], "1 step left out as warm-up"),
        (None, 0, [0, 1, 2, 3, 4, 5, 6, 7], ""),
        (None, 1, [1, 2, 3, 5, 7], "without the first 1 of each path"),
        (SLOWEST, None, [2, 5, 6], "the slowest"),
        (SLOWEST, 0, [0, 5, 6], "the slowest"),
        ((0, 0), None, [0, 4, 6], "instance 0"),
        ((1, 2), None, [1, 2, 5, 7], "instances 1-2"),
        ((0, 1), 2, [2, 3], "instances 0-1, without the first 2 of each path"),
    ],
)
def test_windows_are_picked_for_each_path_and_gpu(instances: Any, skip: Any, rows: list[int], words: str) -> None:
    """By number, or the slowest; without warm-up only where no number is asked for."""
    lengths = [90, 10, 12, 11, 7, 8, 5, 5]
    windows = windows_of(gpu=[0, 0, 0, 0, 0, 0, 1, 1], path=[0, 0, 0, 0, 1, 1, 0, 0], end=lengths)
    about = SimpleNamespace(diagnostics=())
    attribution: Any = SimpleNamespace(trace=SimpleNamespace(report=SimpleNamespace(about=about)))
    picked, said = pick_windows(attribution, windows, instances, skip)
    assert (picked.tolist(), said) == (rows, words)


def test_more_skipped_than_there_are_is_refused() -> None:
    """With how many there are; of no windows there is nothing to pick."""
    report: Any = SimpleNamespace(trace=SimpleNamespace(report=SimpleNamespace(path="r.sqlite")))
    with pytest.raises(
        NsysprofError, match="no step is left: instances 5-6, but a path has at most 3 steps"
    ) as refused:
        pick_windows(report, windows_of(path=[0, 1, 1, 1]), (5, 6), None)
    assert "nsysprof steps" in str(refused.value.hint)
    assert len(pick_windows(report, windows_of(path=[]), (5, 6), 1)[0]) == 0
