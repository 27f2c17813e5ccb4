"""The median window of a path and its critical path: pieces tile the window, parts add up, and the picture is of it."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.charts.marks import Lanes, Marks
from nsysprof.charts.palette import WAITS
from nsysprof.why.charts import plan_why, title_of
from nsysprof.why.instance import critical_path, median_instance
from nsysprof.why.why import Why, why
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reports import BLOCK, RUN, TWO, attributed
from tests.kit.trace import Items, OsCall, Range, StreamKind, launch_kernel

FULL = (264, 1, 1)  # blocks: two for each multiprocessor of the GPU of the builder


def account(path: Path, select: str | None = None) -> Why:
    """Why the GPU waits in a report."""
    return why(attributed(path), select)


def check(answer: Why) -> None:
    """The pieces tile all windows, agree with their waits, and the parts of the median one add up to it."""
    pieces, windows = critical_path(answer), answer.windows
    for name, values in (("start_ns", pieces.start), ("end_ns", pieces.end)):
        edge = np.append(True, pieces.window[1:] != pieces.window[:-1])[: len(values)]
        edge = edge if name == "start_ns" else np.append(edge[1:], True)[: len(values)]
        assert (windows[name].to_numpy()[pieces.window[edge]] == values[edge]).all()
    inside = pieces.window[1:] == pieces.window[:-1]
    assert (pieces.end[:-1] == pieces.start[1:])[inside].all()
    assert (pieces.end > pieces.start).all()
    computed = np.zeros(len(windows), np.int64)
    rows = pieces.wait < 0
    np.add.at(computed, pieces.window[rows], (pieces.end - pieces.start)[rows])
    assert computed.tolist() == windows["compute_ns"].tolist()
    instance = median_instance(answer)
    assert (instance is None) == (len(windows) == 0)
    if instance:
        assert sum(part.ns for part in instance.parts) == instance.end_ns - instance.start_ns


@pytest.mark.parametrize("path", [RUN, BLOCK, TWO], ids=lambda path: path.stem)
def test_the_critical_path_tiles_the_windows(path: Path) -> None:
    """Of shipped reports, whatever ranges are chosen."""
    for select in (None, "*"):
        check(account(path, select))


@pytest.mark.parametrize("seed", range(20))
def test_random_critical_paths_tile_the_windows(trace: MakeTrace, seed: int) -> None:
    """Ops before their launches, without launches, in many streams and processes."""
    check(account(trace(*random_report(seed))))


def steps(sleeps: tuple[int, ...], step: int = 1_000_000) -> list[Items]:
    """Steps that sleep for so long and then run a kernel for half of what a step without sleep takes."""
    out: list[Items] = []
    at = 0
    for number, sleep in enumerate(sleeps):
        launched = at + sleep + 1000
        done = launched + 1000 + step // 2
        out.append(Range("step", at, done))
        out.append(Range("log", at + 100, at + 900 + sleep))
        if sleep:
            out.append(OsCall("sleep", at + 500, at + 500 + sleep))
        out.append(launch_kernel("gemm", (launched, launched + 500), (launched + 1000, done), id=number + 1, grid=FULL))
        at = done + 100
    return out


def test_the_picture_is_of_the_median_window(trace: MakeTrace) -> None:
    """The title has the finding of all windows, the bars are those of the one in the middle and name the culprit."""
    answer = account(trace(*steps((300_000, 500_000, 700_000))))
    instance = median_instance(answer)
    assert instance is not None
    assert (instance.number, instance.count, instance.gpu, instance.path) == (1, 3, 0, "step")
    sleeping = [part for part in instance.parts if part.group == "OS calls"]
    assert [(part.section, part.text, part.ns) for part in sleeping] == [("idle", "sleep in log", 500_000)]
    assert title_of(answer, "step") == "step: the GPU waits for sleep in log: 500 µs of each step (50 %)"
    plan = plan_why(answer)
    assert isinstance(plan, Lanes)
    bars, lanes = plan.panels
    assert bars.length == lanes.length == instance.end_ns - instance.start_ns
    marks = [lane for lane in bars.lanes if isinstance(lane, Marks)]
    colours = {lane.label: lane for lane in marks}
    assert {"compute", "idle", "OS calls"} <= set(colours)
    assert int(marks[-1].end[0]) == bars.length
    assert marks[0].start.tolist() == [0]
    waits = lanes.lanes[-1]
    assert isinstance(waits, Marks)
    assert "sleep in log" in waits.names


def test_a_kernel_that_another_stream_waits_for_stands_apart(trace: MakeTrace) -> None:
    """Compute is split into that kernel, while nothing else runs, and the others; both add up to it."""
    path = trace(
        Range("step", 0, 100),
        launch_kernel("gemm", (0, 20), (50, 250_000), id=1, stream=13, grid=FULL),
        launch_kernel("spin", (30, 40), (200_000, 800_000), id=2, stream=7),
        launch_kernel("gemm", (50, 60), (800_000, 1_000_000), id=3, stream=13, grid=FULL),
        StreamKind(7, 3),
        StreamKind(13, 1),
    )
    plan = plan_why(account(path, "step"))
    assert isinstance(plan, Lanes)
    assert plan.heading.title == (
        "step: spin runs 1 block of 128 threads on 132 multiprocessors: 550 µs of each step (55 %)"
    )
    compute, others, spin, *_ = (lane for lane in plan.panels[0].lanes if isinstance(lane, Marks))
    assert (compute.label, others.label, spin.label) == ("compute", "", "kernel")
    assert spin.names[0].startswith("spin, alone · 550 µs")
    edges = [(int(lane.start[0]), int(lane.end[0])) for lane in (compute, others, spin)]
    assert edges == [(0, 999_950), (0, 449_950), (449_950, 999_950)]
    assert ("kernel that another stream waits for", WAITS["kernel"]) in plan.heading.legend


def test_a_healthy_run_has_nothing_to_gain(trace: MakeTrace) -> None:
    """The title says so, and blames nobody."""
    answer = account(trace(*steps((0, 0, 0), 100_000_000)))
    assert title_of(answer, "step") == "step: no single cause of waits exceeds 2 % of a step"


def test_the_picture_shows_the_wait_of_its_title(trace: MakeTrace) -> None:
    """Where the median window has none of it, that one is drawn which is next and has; the words below say so."""
    answer = account(trace(*steps((0, 0, 0, 9_000_000, 0))))
    instance = median_instance(answer)
    assert instance is not None
    assert (instance.number, instance.median) == (3, False)
    plan = plan_why(answer)
    assert isinstance(plan, Lanes)
    assert "sleep in log" in plan.heading.title
    assert "drawn: the step nearest to the median, of the steps with this wait, " in plan.heading.subtitle
