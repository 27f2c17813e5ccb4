"""Ranges of backward on autograd's threads stand in the range whose thread called backward."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution.paths import range_paths
from nsysprof.trace.details import OtherRanges, RangeName
from nsysprof.trace.trace import FOUND
from nsysprof.trace.variants import with_ranges, without_ranges
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.trace import Items, Range, ThreadName, global_tid, launch_kernel

AUTOGRAD = 2


def backward(thread: int = AUTOGRAD, begin: int = 0) -> list[Items]:
    """What `capture --modules` leaves of a backward: a root and a module, with a range of a library inside."""
    return [
        Range("Net backward", begin + 110, begin + 190, thread=thread),
        Range("fc backward", begin + 120, begin + 180, thread=thread),
        Range("ncclAllReduce", begin + 150, begin + 160, thread=thread),
        launch_kernel("gemm", (begin + 130, begin + 135), (begin + 200, begin + 300), id=begin + 1, thread=thread),
        launch_kernel("nccl", (begin + 152, begin + 154), (begin + 300, begin + 310), id=begin + 2, thread=thread),
    ]


STEP: list[Items] = [ThreadName(AUTOGRAD, "pt_autograd_0"), Range("step", 0, 400), Range("backward", 100, 200)]


def owners(path: Path, threads: str = "follow") -> dict[str, int]:
    """How many kernels each path owns, and all ranges that own none."""
    found = attributed(path, threads=threads)
    paths = range_paths(found)
    texts = [paths.texts()[code] for code in paths.of.tolist()]
    owned = Counter(texts[row] for row in found.op_owner.tolist() if row >= 0)
    return {text: owned[text] for text in texts}


def test_backward_of_modules_stands_in_the_range_that_waits_for_it(trace: MakeTrace) -> None:
    """So a step has the kernels of its backward, module by module."""
    assert owners(trace(*STEP, *backward())) == {
        "step": 0,
        "step/backward": 0,
        "step/backward/Net backward": 0,
        "step/backward/Net backward/fc backward": 1,
        "step/backward/Net backward/fc backward/ncclAllReduce": 1,
    }


def test_collectives_of_backward_stand_in_it_too(trace: MakeTrace) -> None:
    """PyTorch opens a range for each reduction of DDP, on the thread of autograd: a step has its communication."""
    reduction = Range("nccl:all_reduce", 120, 160, thread=AUTOGRAD)
    kernel = launch_kernel("nccl", (130, 135), (200, 300), id=1, thread=AUTOGRAD)
    assert owners(trace(*STEP, reduction, kernel))["step/backward/nccl:all_reduce"] == 1


def test_strict_attribution_leaves_them_on_their_thread(trace: MakeTrace) -> None:
    """As nsys projects."""
    assert "Net backward/fc backward" in owners(trace(*STEP, *backward()), "strict")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([Range("elsewhere", 50, 300, thread=3)], id="two threads have a range open"),
        pytest.param([Range("busy", 140, 150)], id="the thread goes on meanwhile"),
        pytest.param([Range("busy", 105, 150)], id="the thread ends a range meanwhile"),
        pytest.param([ThreadName(3, "pt_autograd_1"), *backward(3, 10)], id="two threads of autograd work"),
    ],
)
def test_what_is_not_sure_stays_where_it_was(trace: MakeTrace, more: list[Items]) -> None:
    """Another candidate, a thread that does not wait, or another thread of autograd."""
    found = owners(trace(*STEP, *backward(), *more))
    assert "Net backward/fc backward" in found
    assert not any("step/backward/Net" in path for path in found)


def test_ranges_that_only_sound_alike_stay(trace: MakeTrace) -> None:
    """What the program itself opened on that thread, and ranges of any other thread."""
    other = owners(trace(ThreadName(AUTOGRAD, "loader"), *STEP[1:], *backward()))
    assert "Net backward/fc backward" in other
    path = trace(*STEP, Range("mine", 110, 190, thread=AUTOGRAD), Range("x backward", 120, 180, thread=AUTOGRAD))
    assert owners(path).keys() == {"step", "step/backward", "mine", "mine/x backward"}


def test_functions_of_backward_show_an_autograd_thread_without_a_name(trace: MakeTrace) -> None:
    """It opens no other outermost range; a thread that does so is the program's own."""
    function = "autograd::engine::evaluate_function: AddmmBackward0"
    items: list[Items] = [*STEP[1:], Range(function, 110, 190, thread=AUTOGRAD), GRADIENT]
    assert owners(trace(*items))[f"step/backward/{function}"] == 1
    assert owners(trace(*items, Range("mine", 195, 199, thread=AUTOGRAD)))[function] == 1


LOADER = Range("decode", 0, 400, thread=3)
GRADIENT = launch_kernel("gradient", (150, 155), (200, 300), id=1, thread=AUTOGRAD)


@pytest.mark.parametrize(
    ("more", "owned"),
    [
        ([launch_kernel("forward", (50, 55), (60, 70), id=2)], 1),
        ([], 0),  # which of both calls backward?
        ([launch_kernel("one", (50, 55), (60, 70), id=2), launch_kernel("two", (50, 56), (60, 71), id=3, thread=3)], 0),
    ],
)
def test_a_loader_with_ranges_does_not_make_backward_ambiguous(trace: MakeTrace, more: list[Items], owned: int) -> None:
    """Autograd works for the one thread with an open range that launches kernels."""
    assert owners(trace(*STEP, LOADER, GRADIENT, *more))["step/backward"] == owned


def test_ranges_that_are_added_later_keep_the_threads_that_opened_the_others(trace: MakeTrace) -> None:
    """Iterations that are detected, and those of a thread without any other range, beside a backward that moved."""
    moved = attributed(trace(*STEP, *backward())).trace
    names = [RangeName("iteration 0", ""), RangeName("iteration 1", "")]
    mine, other = moved.threads[moved.ranges.thread[0]], global_tid(1, 9)
    found = OtherRanges(
        np.array([mine, other]), np.array([0, 10]), np.array([5, 20]), np.full(2, FOUND, np.uint8),
        np.arange(2, dtype=np.int32), names,
    )  # fmt: skip
    both = with_ranges(moved, found)
    opened = dict(zip([both.range_names[code].text for code in both.ranges.name], both.range_openers, strict=True))
    autograd = np.searchsorted(both.threads, global_tid(1, AUTOGRAD))
    assert {name for name, code in opened.items() if code == autograd} == {
        "Net backward",
        "fc backward",
        "ncclAllReduce",
    }
    assert both.threads[opened["iteration 1"]] == other
    assert len(without_ranges(both).range_openers) == 0
