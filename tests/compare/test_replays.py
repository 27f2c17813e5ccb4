"""Layers of CUDA graphs against those of the eager run: each replay is a call."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nsysprof.attribution.range_work import index_work, range_work
from nsysprof.compare.comparison import Comparison, compare
from tests.conftest import MakeTrace
from tests.kit.command_line import Run
from tests.kit.reports import attributed
from tests.kit.trace import GraphNode, Items, Kernel, Launch, Range

END = 90_000
KERNELS = ("gemm", "softmax")


def program(replays: int = 3, gap: int = 1) -> list[Items]:
    """Two layers of two kernels: eager, twice and each launched late, and captured once and replayed."""
    items: list[Items] = [Range("EAGER", 0, 5_000), Range("GRAPH", 9_000, 80_000)]
    id = 1
    for step in range(2):
        at = 10 + 2_000 * step
        items.append(Range(f"iter{step}", at, at + 1_500))
        for layer in range(2):
            items.append(Range(f"layer{layer}", at + 10 + 500 * layer, at + 450 + 500 * layer))
            for place, name in enumerate(KERNELS):
                call = at + 20 + 500 * layer + 200 * place
                items += [Launch(call, call + 50, id), Kernel(name, call + 60, call + 160, id)]
                id += 1
    items.append(Range("CAPTURE", 6_000, 8_000))
    for layer in range(2):
        items.append(Range(f"layer{layer}", 6_100 + 500 * layer, 6_500 + 500 * layer))
        items += [GraphNode(10 * layer + place + 1, 6_150 + 500 * layer + 100 * place) for place in range(2)]
    for replay in range(replays):
        at = 10_000 + 5_000 * replay
        items.append(Launch(at, at + 10, 100 + replay, api="cudaGraphLaunch_v10000"))
        for layer in range(2):
            for place, name in enumerate(KERNELS):
                start = at + 100 + (2 * layer + place) * (100 + gap)
                items.append(Kernel(name, start, start + 100, 100 + replay, graph_node=10 * layer + place + 1))
    return items


def answer(path: Path, **how: Any) -> Comparison:
    return compare(attributed(path, graphs="captured"), **how)


def test_replays_are_the_calls_of_what_was_captured(trace: MakeTrace) -> None:
    """Layer by layer a replay has the kernels of an eager call, and none of the waiting for launches."""
    found = answer(trace(*program(), duration=END), base="EAGER/iter*/layer*", new="CAPTURE/layer*")
    rows = found.pairs.set_index("new").sort_index()
    assert list(rows.index) == ["CAPTURE/layer0", "CAPTURE/layer1"]
    assert rows["base_calls"].tolist() == [2, 2]
    assert rows["new_calls"].tolist() == [3, 3]
    assert rows["base_span_ns"].tolist() == [300, 300]
    assert rows["new_span_ns"].tolist() == rows["new_median_ns"].tolist() == [201, 201]
    for _, gaps in found.gaps.groupby("pair"):
        by_cause = gaps.set_index("cause")
        ran = by_cause[by_cause["base_kernels"] > 0]
        assert (ran["base_kernels"] == ran["new_kernels"]).all()
        assert (ran["delta_ns"] == 0).all()
        host = by_cause[by_cause.index.str.startswith("idle: host")]
        assert host["base_ns"].sum() > 50
        assert host["new_ns"].sum() == 0
        assert by_cause.loc["idle: latency", "new_ns"] == 1
        assert by_cause["delta_ns"].sum() == -99
    clocks = found.clocks[found.clocks["clock"] == "CPU"]
    assert (clocks["new_n"] == 0).all()  # the capture's time on the host is none of a replay's


def test_a_single_replay_is_one_call(trace: MakeTrace) -> None:
    """Captured once and replayed once: a call, without a time on the host."""
    found = answer(trace(*program(replays=1), duration=END), base="EAGER/iter*/layer0", new="CAPTURE/layer0")
    assert found.pairs["new_calls"].tolist() == [1]
    assert (found.clocks[found.clocks["clock"] == "CPU"]["new_n"] == 0).all()


def test_what_the_capture_launched_itself_is_left_out(trace: MakeTrace) -> None:
    """Eager work inside the capture, as of a warm-up, is in none of the replays, and a warning counts it."""
    extra: list[Items] = [Launch(6_900, 6_910, 90), Kernel("warm", 6_950, 6_990, 90)]
    found = answer(trace(*program(), *extra, duration=END), base="EAGER/iter*", new="CAPTURE")
    assert found.pairs["new_calls"].tolist() == [3]
    assert (found.gaps["new_kernels"] == found.gaps["base_kernels"]).all()
    assert any("left out: 1 GPU op during CUDA graph capture" in each for each in found.warnings)


def test_eager_ranges_compare_as_without_graphs(trace: MakeTrace) -> None:
    """Ranges in which nothing was captured have the same rows in both readings."""
    path = trace(*program(), duration=END)
    asked: dict[str, Any] = {"base": "EAGER/iter*/layer0", "new": "EAGER/iter*/layer1"}
    launched = compare(attributed(path), **asked)
    captured = answer(path, **asked)
    for name in ("pairs", "gaps", "clocks"):
        pd.testing.assert_frame_equal(getattr(launched, name), getattr(captured, name))


@pytest.mark.parametrize("seed", range(40))
def test_windows_of_replays_by_brute_force(trace: MakeTrace, seed: int) -> None:
    """Random nodes and replays: ops, windows and calls are those that a loop over all of them finds."""
    rng = random.Random(seed)
    items: list[Items] = [Range("outer", 0, 1_000)]
    items += [Range(f"step{i}", 100 * i + 1, 100 * i + rng.randint(20, 99)) for i in range(6)]
    nodes = [GraphNode(node, rng.randint(0, 999)) for node in range(rng.randint(1, 12))]
    for replay in range(rng.randint(1, 4)):
        items.append(Launch(2_000 + replay, 2_000 + replay, 500 + replay))
        for node in nodes:
            start = rng.randint(3_000, 9_000)
            kernel = Kernel("k", start, start + rng.randint(1, 50), 500 + replay, graph_node=node.node)
            items += [kernel] * (rng.random() < 0.8)
    for number in range(rng.randint(0, 5)):
        at = rng.randint(0, 990)
        items += [Launch(at, at + 3, 900 + number), Kernel("eager", at + 5, at + 9, 900 + number)]
    found = attributed(trace(*items, *nodes, duration=END), graphs="captured")
    ranges, read = found.trace.ranges, found.trace
    names = [read.range_names[code].text for code in ranges.name.tolist()]
    windows = np.array([names.index("outer")])
    calls = np.array([row for row, name in enumerate(names) if name != "outer"])
    work = range_work(index_work(found, np.arange(len(ranges))), windows, calls)
    assert found.replay is not None
    expected: set[tuple[int, int, tuple[int, int] | None]] = set()
    called: set[tuple[int, int]] = set()
    for op, launch in enumerate(read.ops.launch.tolist()):
        start, end = (int(getattr(read.launches, name)[launch]) for name in ("start", "end"))
        if ranges.start[windows[0]] <= start and end <= ranges.end[windows[0]]:
            replay = int(found.replay[op])
            inside = [row for row in calls.tolist() if ranges.start[row] <= start and end <= ranges.end[row]]
            expected.add((op, replay, (inside[0], replay) if inside else None))
            called |= {(inside[0], replay)} if inside else set()
    idle = len(calls) - len({row for row, _ in called})
    if any(replay >= 0 for _, replay, _ in expected):  # then what ran beside the replays is left out
        beside = {each for each in expected if each[1] < 0}
        expected, called = expected - beside, {each for each in called if each[1] >= 0}
        assert work.beside_replays == len(beside)
    assert (work.calls, work.idle_calls) == (len(called) + idle, idle)
    assert sorted(work.op.tolist()) == sorted(op for op, _, _ in expected)
    windows_of: dict[int, set[int]] = {}
    calls_of: dict[int, set[object]] = {}
    of_op = {op: (replay, call) for op, replay, call in expected}
    for op, window, call in zip(work.op.tolist(), work.window.tolist(), work.call.tolist(), strict=True):
        windows_of.setdefault(window, set()).add(of_op[op][0])
        calls_of.setdefault(call, set()).add(of_op[op][1])
    assert {len(each) for each in windows_of.values()} | {len(each) for each in calls_of.values()} <= {1}
    assert len(windows_of) == len({replay for _, replay, _ in expected})
    assert len(calls_of) == len({call for _, _, call in expected})
    assert calls_of.get(-1, {None}) == {None}


def test_the_command_takes_the_option(trace: MakeTrace, run: Run) -> None:
    """`compare --graphs captured` lays eager layers beside captured ones; without it nothing ran in the latter."""
    run = partial(run, "compare")
    asked = [trace(*program(), duration=END), "--base", "EAGER/iter*/layer*", "--new", "CAPTURE/layer*", "--no-charts"]
    done = run(*asked, "--graphs", "captured")
    assert done.code == 0
    assert "EAGER/iter*/layer0" in done.out
    assert "idle: latency" in done.out
    assert run(*asked, "-o", "other").code == 1
