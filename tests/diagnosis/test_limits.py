"""At which numbers a cause is in every step, and a kernel uses too little of the GPU: each just there and beside it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysprof.attribution.levels import WHOLE
from nsysprof.diagnosis import geometry
from nsysprof.diagnosis.case import Place
from nsysprof.diagnosis.cpu_code import most_samples
from nsysprof.diagnosis.finding import EVERY, ONCE
from nsysprof.diagnosis.kinds import Group, each_step, idling, often, usual_ns
from nsysprof.diagnosis.reached import MEMORY
from nsysprof.hardware.occupancy import Occupancy
from nsysprof.kernels.launches import Launches
from nsysprof.trace.details import CpuSamples


def place(count: int, length: int = 1_000, path: str = "step", last: int = 0) -> Place:
    """Steps of one length, of which the last is ``last`` ns longer."""
    lengths = np.full(count, length, np.int64)
    lengths[-1] += last
    return Place(path, 0, np.arange(count), lengths)


@pytest.mark.parametrize(
    ("waited", "length", "said"),
    [
        ([100, *[0] * 19], 1_000, ONCE),
        ([100, 10, *[5] * 18], 1_000, "2 of 20 steps"),  # a tenth of the longest wait
        ([100, 10, *[9] * 18], 1_000, EVERY),  # these two wait for less than half of all time
        ([100] * 10 + [0] * 10, 10_000, "10 of 20 steps"),
        ([100] * 11 + [0] * 9, 10_000, EVERY),
        ([1_000] * 2 + [20] * 19, 1_000, EVERY),  # the median step waits for 2 %
        ([1_000] * 2 + [19] * 19, 1_000, "2 of 21 steps"),
    ],
)
def test_a_cause_is_in_every_step_or_in_some(waited: list[int], length: int, said: str) -> None:
    """In more than half of them, or in the median one."""
    assert often(place(len(waited), length), np.array(waited)) == said
    assert often(place(len(waited), length, WHOLE), np.array(waited)) == EVERY


@pytest.mark.parametrize(
    ("waited", "usual", "kept"),
    [
        ([100] * 16 + [1_000] * 4, 100, 16),  # a fifth of the steps wait longer
        ([100] * 15 + [1_000] * 5, 0, 20),
        ([100] * 19 + [1_100], 0, 20),  # half as long again on average
        ([100] * 19 + [1_101], 100, 19),
        ([100] * 15 + [150] + [1_000] * 4, 100, 16),
        ([100] * 16 + [400, 401, 900, 1_000], 100, 17),  # four times what is usual
        ([0] * 16 + [1_000] * 4, 0, 20),
        ([5] * 17 + [1_000] * 3, 0, 20),  # in some steps alone
    ],
)
def test_a_few_steps_that_wait_longer_are_not_usual(waited: list[int], usual: int, kept: int) -> None:
    """Then what the median step waits is told, and such steps alone are looked at."""
    some = place(len(waited))
    assert usual_ns(some, np.array(waited)) == usual
    assert len(Group(some, "x", np.arange(0), np.array(waited)).usual_steps()) == kept
    assert usual_ns(place(len(waited), path=WHOLE), np.array(waited)) == 0


def test_amounts_are_those_of_a_step() -> None:
    """Of the mean step where that is half as long again as the median one."""
    assert each_step(place(10), 500) == "50 ns of each step (5.0 %)"
    assert each_step(place(10, last=5_000), 1_500) == "100 ns of each step (10 %)"
    assert each_step(place(10, last=5_010), 1_501) == "150 ns per step on average (10 %)"
    assert each_step(place(1, path=WHOLE), 500) == "500 ns (50 %)"


def test_half_of_a_wait_beside_copies_is_no_idling() -> None:
    """Nor beside communication."""
    pieces = {"communication_ns": [0, 2, 3, 2], "copies_ns": [0, 2, 2, 3], "ns": [10, 9, 10, 9]}
    case: Any = SimpleNamespace(pieces={name: np.array(each) for name, each in pieces.items()})
    assert idling(case).tolist() == [True, True, False, False]


def launches(**columns: Any) -> Launches:
    """Launches on 100 multiprocessors, of which each has a GPU op: blocks of 128 threads, if nothing else is told."""
    each = {name: np.asarray(values) for name, values in columns.items()}
    count = len(next(iter(each.values())))

    def column(name: str, default: float) -> Any:
        return each.get(name, np.full(count, default))

    held = Occupancy(column("held", 1), column("occupancy", 1.0), column("limiter", 0))
    names = ("grid", "block", "blocks", "threads", "registers", "shared", "dynamic_shared", "local_memory")
    parts = {name: column(name, 128) for name in names}
    more: Any = {"waves": column("waves", 2.0), "tail": column("tail", 0.0), "reason": column("reason", 0)}
    return Launches(np.arange(count), **parts, sms=100, held=held, **more)


def test_what_a_launch_uses_of_the_gpu() -> None:
    """The product of its parts of the multiprocessors, of the warps that keep one busy, and of the lanes of a warp."""
    found = launches(blocks=[50, 200, 200, 100, 50], threads=[1_024, 128, 128, 20, 33], held=[2, 1, 4, 0, 1])
    assert geometry.held_warps(found).tolist() == [64, 4, 16, np.inf, 2]
    used = [0.5, 0.25, 0.5, 20 / 32 / 16, 0.5 * 2 / 16 * 33 / 64]
    assert geometry.part_used(found).tolist() == pytest.approx(used)


def test_the_last_wave_is_a_part_of_few() -> None:
    """Of three at most, of a fifth or more of the time, with no more than two blocks on a multiprocessor."""
    rows = [(1.0, 0.5, 1, 0), (1.5, 0.5, 1, 0.25), (1.6, 0.4, 2, 0.2), (1.61, 0.39, 2, 0), (3.0, 0.75, 1, 0.25),
            (3.01, 0.9, 1, 0), (1.5, 0.5, 3, 0), (np.nan, 0.5, 1, 0)]  # fmt: skip
    waves, tail, held, part = zip(*rows, strict=True)
    assert geometry._tail(launches(waves=waves, tail=tail, held=held)).tolist() == pytest.approx(part)


@pytest.mark.parametrize("sampled", [False, True])
def test_few_warps_wait_for_memory(sampled: bool) -> None:
    """Twelve of a multiprocessor, or half of all where samples show whether they wait; not if all run at once."""
    rows = [(3, 1.5, 0.1, 0.75), (4, 1.5, 0.5, 0.5 * sampled), (4, 1.5, 0.51, 0), (3, 1.0, 0.1, 0), (0, 1.5, 0.1, 0),
            (3, np.nan, 0.1, 0)]  # fmt: skip
    held, waves, occupancy, part = zip(*rows, strict=True)
    trace = SimpleNamespace(samples={0: None} if sampled else {})
    case = SimpleNamespace(facts=SimpleNamespace(attribution=SimpleNamespace(trace=trace)))
    busy: Any = SimpleNamespace(place=place(1), case=case)
    found = launches(held=held, waves=waves, occupancy=occupancy)
    assert geometry._waiting(busy, found, np.full(len(rows), 0.25)).tolist() == pytest.approx(part)


def busy_with(*names: str, dialect: str = "cuda", family: str = "other", length: int = 100) -> Any:
    """Kernels of these names, one op each."""
    code = {name: at for at, name in enumerate(dict.fromkeys(names))}
    trace = SimpleNamespace(op_names=[*code])
    facts = SimpleNamespace(
        attribution=SimpleNamespace(trace=trace), kinds=SimpleNamespace(family=[family] * len(code))
    )
    name = np.array([code[each] for each in names])
    case = SimpleNamespace(dialect=dialect, facts=facts)
    rows, lengths = np.arange(len(names)), np.full(len(names), length)
    return SimpleNamespace(
        case=case, op=rows, name=name, length=lengths, matches=lambda test: np.array([*map(test, name.tolist())], bool)
    )


@pytest.mark.parametrize(
    ("kind", "blocks", "threads", "name", "said"),
    [
        ("tiny-blocks", 400, 32, "k", "use blocks of 128 to 256 threads: smaller blocks leave"),
        ("tiny-blocks", 399, 32, "k", "launch at least 400 blocks of 128 threads (4 per multiprocessor)"),
        ("small-grid", 50, 768, "k", "use smaller blocks (128 threads), so that the threads spread over all 100 "),
        ("small-grid", 50, 767, "k", "launch at least 100 blocks of 767 threads (1 per multiprocessor)"),
        ("small-grid", 50, 256, "k", "launch at least 200 blocks of 256 threads (2 per multiprocessor)"),
        ("small-grid", 50, 255, "k", "launch at least 300 blocks of 255 threads (3 per multiprocessor)"),
        ("small-grid", 50, 768, "void cutlass::k", "give the kernel more parallel work: "),
        ("small-grid", 1, 256, "main_58_gpu__red", "compute this reduction only in the steps that use its result"),
        ("tail-wave", 500, 128, "k", "launch a multiple of 300 blocks, or only 300 blocks that loop"),
    ],
)
def test_a_grid_that_fills_the_gpu(kind: str, blocks: int, threads: int, name: str, said: str) -> None:
    """So many blocks of so many threads, and no smaller ones; a library gets more work instead."""
    found = launches(blocks=[blocks], threads=[threads], held=[3])
    assert geometry._remedy(busy_with(name), found, kind, 0, 0).startswith(said)


@pytest.mark.parametrize(
    ("few", "many", "there", "family", "same"),
    [
        (3, 3, 125, "other", True),  # a quarter longer
        (3, 3, 126, "other", False),
        (2, 3, 100, "other", False),  # too few to tell
        (3, 2, 100, "other", False),
        (3, 3, 100, "gemm", False),
    ],
)
def test_more_blocks_that_take_as_long_would_not_help(few: int, many: int, there: int, family: str, same: bool) -> None:
    """Of one kernel with many blocks and with few."""
    busy = busy_with(*["k"] * (few + many), "other", family=family)
    busy.length[few:-1] = there
    is_few = np.arange(few + many + 1) < few
    found = launches(blocks=np.where(is_few, 100, 101))
    assert geometry.same_time(busy, found, is_few).tolist() == [same] * (few + many) + [False]
    busy.case.dialect = "pytorch"
    assert not geometry.same_time(busy, found, is_few).any()


@pytest.mark.parametrize(("family", "threads", "drawn"), [("gemm", 64, {MEMORY: 0.7}), ("gemm", 63, {}), ("x", 64, {})])
def test_a_few_blocks_of_a_product_may_read_much(family: str, threads: int, drawn: dict[str, float]) -> None:
    """More than their part of the bandwidth, if they have enough threads."""
    found = launches(blocks=[40, 20], threads=[threads, 1])
    assert geometry._drawn(busy_with("k", "k", family=family), found, np.arange(2)) == pytest.approx(drawn)


@pytest.mark.parametrize(
    ("stacks", "chosen", "said"),
    [
        (["fm"] * 3 + ["gm"] * 2, None, "60 % of its CPU samples in f (libx)"),
        (["fm"] * 3 + ["gm"] * 3, None, ""),  # half of them
        (["fm"] * 4, None, ""),  # too few
        (["m"] * 5, None, ""),  # where programs start
        (["ffm"] * 2 + ["gm"] * 3, None, "60 % of its CPU samples in c::d"),  # recursion counts once
        (["gfm"] * 5, None, "100 % of its CPU samples in c::d"),  # the innermost
        (["gfm"] * 2 + ["fgm"] * 3, None, "100 % of its CPU samples in f (libx)"),
        (["fm"] * 5 + ["gm"] * 6, range(5), "100 % of its CPU samples in f (libx)"),
        (["fm"] * 5 + ["gm"] * 6, range(4), ""),
    ],
)
def test_most_samples_are_in_a_function(stacks: list[str], chosen: Any, said: str) -> None:
    """In more than half of five samples or more."""
    functions = [("main", "a.out"), ("f", "/lib/libx-2.so.1"), ("a<b>::c::d(int)", "a.out")]
    frames = np.array(
        [(at, depth, "mfg".index(each)) for at, stack in enumerate(stacks) for depth, each in enumerate(stack)]
    )
    sample, depth, function = frames.T
    at = np.arange(len(stacks))
    samples = CpuSamples(1, (0, 9), at * 0, at, sample, depth, function, functions)
    assert most_samples(samples, None if chosen is None else np.array(chosen)) == said
