"""Which ranges are taken for the steps: one level that covers half of the GPU's busy time, without warm-up."""

import tracemalloc
from collections.abc import Iterable

import pytest

from nsysprof.attribution.levels import Level, choose_level
from nsysprof.attribution.paths import DEFAULT_MERGE
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.trace import Items, Range, launch_kernel, launch_memcpy

Spec = tuple[str, int] | tuple[str, int, int]  # a path, the ns that each of its kernels takes, and its device


def nested(specs: Iterable[Spec], gap: int = 1_000) -> list[Items]:
    """For each a kernel in ranges of its own; parts of a path in brackets stay open for the following ones."""
    items: list[Items] = []
    open_: dict[str, int] = {}
    at = 0
    for number, (path, ns, *device) in enumerate(specs, 1):
        parts = path.split(">")
        for depth, part in enumerate(parts):
            prefix = ">".join(parts[: depth + 1])
            if part.startswith("(") and prefix not in open_:
                open_[prefix] = len(items)
                items.append(Range(part[1:-1], at + depth, at + gap - 10 - depth))
            elif part.startswith("("):
                before = items[open_[prefix]]
                assert isinstance(before, Range)
                items[open_[prefix]] = Range(before.name, before.start, at + gap - 10 - depth)
            else:
                items.append(Range(part, at + depth, at + gap - 10 - depth))
        call, start = (at + 50, at + 60), at + 100
        where = {"device": device[0]} if device else {}
        items.append(launch_kernel(f"k{number}", call, (start, start + ns), id=number, **where))
        at += gap
    return items


def level_of(trace: MakeTrace, items: Iterable[Items], ranges: str = "auto") -> Level:
    """The level that is chosen."""
    return choose_level(attributed(trace(*items), ranges=ranges), None, DEFAULT_MERGE)


def each(path: str, ns: int, count: int = 4) -> list[Spec]:
    """As often, numbered."""
    return [(path.replace("#", str(number)), ns) for number in range(count)]


@pytest.mark.parametrize(
    ("specs", "name", "share"),
    [
        (each("step #>layer", 100), "step*", 1.0),  # the outermost of both
        (each("(train)>step #>aten::mm", 100), "train/step*", 1.0),
        ([*each("(PHASE::clean)>step #", 100), *each("(PHASE::busy::10)>step #", 300)], "PHASE::*/step*", 1.0),
        ([*each("step #", 10), *each("decode", 100, 8)], "decode", 80 / 84),  # steps that cover a sliver
        ([*each("step #", 100), *each("aten::to", 90, 60)], "", None),
        (each("aten::to", 100, 60), "", None),
        (each("nccl:all_reduce", 100, 60), "", None),
        (each("Optimizer.zero_grad#SGD.zero_grad", 100, 60), "", None),
        ([*each("X>Warm-up>Warm-up Step #", 500), *each("X>Run>Step #", 100)], "X/Run/Step*", 1.0),
        ([*each("[a|warmup|forward]", 500), *each("[a|timed|forward]", 100)], "[a|timed|forward]", 1.0),
        ([*each("WARMUP::S1", 500), *each("(RUN::S1)>iter #", 100)], "RUN::S1/iter*", 1.0),
        (each("WARMUP::S1", 500), "", None),
        ([*each("(epoch 0)>step #", 100), *each("(epoch 1)>step #", 100)], "epoch */step*", 1.0),
        (each("epoch #", 100), "epoch*", 1.0),  # nothing else repeats
        ([*each("step #", 100, 3), ("other", 300)], "step*", 0.5),  # exactly at the limit
        ([*each("step #", 100, 3), ("other", 301)], "", None),
        (each("step #", 100, 2), "", None),  # two are no repetition
    ],
)
def test_the_level_of_steps(trace: MakeTrace, specs: list[Spec], name: str, share: float | None) -> None:
    """By the share of the busy time behind warm-up; named as steps first, then the outermost."""
    level = level_of(trace, nested(specs), "nvtx")
    assert (level.name, level.share) == (name, None if share is None else pytest.approx(share))
    assert ("no step repeats" in level.clause) == (not name)


@pytest.mark.parametrize("overlapping", [1, 4])
def test_the_share_is_of_busy_time_however_many_streams(trace: MakeTrace, overlapping: int) -> None:
    """Kernels side by side in streams of two GPUs count once per GPU; what is no step takes as long as one of them."""
    items: list[Items] = []
    for number in range(3):
        at = 1_000 * number
        items += [Range("step", at, at + 500)]
        for stream in range(overlapping):
            for gpu in (0, 1):
                id = 100 * number + 10 * stream + gpu + 1
                items.append(
                    launch_kernel("k", (at + 10, at + 20), (at + 30, at + 130), id=id, stream=stream, device=gpu)
                )
    items.append(launch_kernel("other", (9_000, 9_010), (9_010, 9_810), id=999, stream=7))
    level = level_of(trace, items, "nvtx")
    assert level.share is None
    assert level.name == ""  # 600 of 1,400 ns, though with four streams 2,400 of 3,200 added up


@pytest.mark.parametrize(
    ("upload", "at", "name"),
    [(10_000, 0, "step*"), (10_000, 45_000, ""), (30_000, 0, "")],  # before the steps, behind; steps are a sliver
)
def test_steps_behind_a_long_copy_of_weights(trace: MakeTrace, upload: int, at: int, name: str) -> None:
    """1,200 ns in four steps, and one copy that takes far longer."""
    items: list[Items] = [launch_memcpy((at, at + 5), (at + 10, at + 10 + upload), id=99)]
    for number in range(4):
        begin = 40_000 + 1_000 * number
        items.append(Range(f"step {number}", begin, begin + 900))
        items.append(launch_kernel("k", (begin + 10, begin + 20), (begin + 30, begin + 330), id=number + 1))
    assert level_of(trace, items, "nvtx").name == name


@pytest.mark.parametrize(("work", "name"), [(0, "upload"), (2_000, "")])
def test_an_upload_in_ranges_is_no_row_of_steps(trace: MakeTrace, work: int, name: str) -> None:
    """Each weight is copied in a range of its own: steps of a copy benchmark, not of a program that computes."""
    items: list[Items] = [launch_kernel("k", (30_000, 30_005), (30_010, 30_010 + work), id=99)] if work else []
    for number in range(6):
        begin = 1_000 * number
        items.append(Range("upload", begin, begin + 990))
        items.append(launch_memcpy((begin + 5, begin + 10), (begin + 20, begin + 980), id=number + 1))
    assert level_of(trace, items, "nvtx").name == name


def test_steps_of_the_host_alone(trace: MakeTrace) -> None:
    """Without GPU work there is no share."""
    level = level_of(trace, [Range(f"step {at}", at, at + 50) for at in range(0, 400, 100)])
    assert (level.name, level.share, level.clause) == ("step*", None, "steps: step* (4)")


def loop(*around: Items) -> list[Items]:
    """Twelve rounds of eight kernels, and ranges around some."""
    kernels = [
        launch_kernel(name, (100 * at, 100 * at + 5), (100 * at + 10, 100 * at + 90), id=at + 1)
        for at, name in enumerate("abcdefgh" * 12)
    ]
    return [*kernels, *around]


@pytest.mark.parametrize(
    ("around", "name", "found"),
    [
        ((), "iteration*", True),
        ([Range("setup", 8 * at, 8 * at + 7) for at in range(4)], "iteration*", True),  # cover nothing
        ([Range("log", 800 * at + 690, 800 * at + 790) for at in range(12)], "iteration*", True),  # cover a sliver
        ([Range("odd", 1_300 * at + 250, 1_300 * at + 750) for at in range(7)], "iteration*", True),  # cross them
        ([Range("ProfilerStep#3", 0, 10_000)], "", False),  # an inner loop is no step of a step
        ([Range("ProfilerStep#3", 0, 10_000), Range("PROFILE", 0, 20_000)], "", False),
        ([Range("all", 0, 10_000)], "all/iteration*", True),
        ([Range(f"step {at}", 2_400 * at, 2_400 * at + 2_399) for at in range(4)], "step*", False),
    ],
)
def test_found_iterations_stand_in_where_no_annotated_level_is_the_steps(
    trace: MakeTrace, around: list[Items], name: str, found: bool
) -> None:
    """Also beside ranges that cover next to nothing, and across them; never for a step that is annotated."""
    level = level_of(trace, loop(*around))
    assert (level.name, level.found) == (name, found)
    assert ("found, not annotated" in level.clause) == found
    assert level_of(trace, loop(*around), "nvtx").found is False  # who asks for NVTX gets no others


@pytest.mark.parametrize(("others", "name"), [(0, "iteration*"), (1, "")])
def test_a_broadcast_of_parameters_is_no_loop_of_steps(trace: MakeTrace, others: int, name: str) -> None:
    """Many collectives alone may be the program (nccl-tests); in a program that computes they are set-up."""
    items: list[Items] = []
    for number, kernel in enumerate([*["ncclDevKernel_Broadcast_RING_LL", "ncclDevKernel_AllGather"] * 30, "gemm"]):
        at = 1_000 * number
        if kernel != "gemm" or others:
            items.append(launch_kernel(kernel, (at, at + 5), (at + 10, at + 900), id=number + 1))
    assert level_of(trace, items).name == name


@pytest.mark.parametrize(("growth", "name"), [(1, "iteration*"), (4, "")])
def test_a_sweep_is_no_loop_of_steps(trace: MakeTrace, growth: int, name: str) -> None:
    """Five rounds of eight kernels are steps if they take equally long, and none if each takes four times more."""
    at, items = 0, list[Items]()
    for turn in range(5):
        for kernel in "abcdefgh":
            ns = 1_000 * growth**turn
            items.append(launch_kernel(kernel, (at, at + 5), (at + 10, at + 10 + ns), id=len(items) + 1))
            at += ns + 100
    assert level_of(trace, items).name == name


def test_a_level_as_json(trace: MakeTrace) -> None:
    """Paths of one level as one, with their number in the clause."""
    specs = [*each("(PHASE::clean)>step #", 100), *each("(PHASE::busy::10)>step #", 100), ("x", 200)]
    level = level_of(trace, nested(specs), "nvtx")
    assert level.clause == "steps: PHASE::*/step* (8 in 2 paths, 80 % of GPU busy time)"
    assert level.record(2) == {
        "level": "PHASE::*/step*",
        "paths": ["PHASE::clean/step*", "PHASE::busy::10/step*"],
        "instances": 8,
        "share": 0.8,
        "found": False,
        "warm_up": 2,
    }


def test_steps_in_steps_take_memory_by_their_number(trace: MakeTrace) -> None:
    """Each of 4,000 nested ranges holds 4,000 launches: of all, each launch counts once."""
    count = 4_000
    items: list[Items] = [Range("step", at, 3 * count - at) for at in range(count)]
    items += [launch_kernel("k", (at, at + 1), (at + 9, at + 900), id=at) for at in range(count, 2 * count)]
    attribution = attributed(trace(*items))
    tracemalloc.start()
    try:
        choose_level(attribution, None, DEFAULT_MERGE)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
