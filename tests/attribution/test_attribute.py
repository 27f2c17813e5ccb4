"""The attribution rules: one example each, and all of them against the slow reference on reports by chance."""

import random
from pathlib import Path

import pytest

from nsysprof.attribution.attribute import OUTCOMES, Attribution
from nsysprof.errors import NsysprofError
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reference import Reference, refer
from tests.kit.reports import attributed
from tests.kit.trace import (
    Gpu,
    GraphTrace,
    Items,
    Kernel,
    Launch,
    Memcpy,
    Range,
    Row,
    launch_graph,
    launch_kernel,
    launch_memcpy,
    launch_memset,
)

END = 1_000  # of the session, beyond all ranges: else what ends last counts as never closed
TOTALS = (
    *("launches", "kernels", "memops", "graph_launches", "first_op_ns", "last_op_ns"),
    *("busy_ns", "sum_ns", "followed_sum_ns", "span_ns"),
)


def core(path: Path, threads: str = "follow") -> Attribution:
    return attributed(path, threads)


def owners(path: Path, threads: str = "follow") -> dict[str, str | None]:
    """The name of the range that owns each kernel, by the kernel's name."""
    found = core(path, threads)
    trace = found.trace
    names = [trace.range_names[code].text for code in trace.ranges.name.tolist()]
    return {
        trace.op_names[name]: names[owner] if owner >= 0 else None
        for name, owner in zip(trace.ops.name.tolist(), found.op_owner.tolist(), strict=True)
    }


def outcomes(path: Path, threads: str = "follow") -> dict[str, str]:
    """The outcome of each kernel, by the kernel's name."""
    found = core(path, threads)
    names = [found.trace.op_names[code] for code in found.trace.ops.name.tolist()]
    return {name: OUTCOMES[outcome] for name, outcome in zip(names, found.op_outcome.tolist(), strict=True)}


def inside(path: Path, threads: str = "follow") -> dict[str, dict[str, int]]:
    """The totals of each range, by its name; for ranges of different names."""
    found = core(path, threads)
    ranges, names = found.trace.ranges, found.trace.range_names
    return {
        names[name].text: {what: int(getattr(found.inclusive, what)[row]) for what in TOTALS}
        for row, name in enumerate(ranges.name.tolist())
    }


def test_rule_1_all_four_kinds_of_ops_join_their_launch(trace: MakeTrace) -> None:
    """A kernel, a memcpy, a memset and a graph launched inside a range are in it, each counted as what it is."""
    path = trace(
        Range("step", 0, 100),
        launch_kernel("gemm", (1, 2), (200, 210), id=1),
        launch_memcpy((3, 4), (210, 213), id=2),
        launch_memset((5, 6), (213, 214), id=3),
        launch_graph((7, 8), (214, 220), id=4),
        duration=END,
    )
    found = inside(path)["step"]
    assert found == {
        "launches": 4,
        "kernels": 1,
        "memops": 2,
        "graph_launches": 1,
        "first_op_ns": 200,
        "last_op_ns": 220,
        "busy_ns": 20,
        "sum_ns": 20,
        "followed_sum_ns": 0,
        "span_ns": 20,
    }


BACKWARD = (Range("backward", 0, 100, thread=1), launch_kernel("grad", (10, 12), (20, 30), id=1, thread=2))
WINDOW = Range("window", 0, 100, kind="start_end", thread=1)
NESTED = (Range("outer", 0, 100), Range("inner", 10, 20))
EXAMPLES: dict[str, tuple[list[Items], dict[str, str | int]]] = {
    "1: an id that two processes have is two launches": (
        [
            *(Range("one", 0, 100, process=1), launch_kernel("k1", (1, 2), (10, 20), id=7, process=1)),
            *(Range("two", 0, 100, process=2), launch_kernel("k2", (1, 2), (10, 20), id=7, process=2)),
        ],
        {"k1": "one", "k2": "two"},
    ),
    "1: of two calls with one id the shorter one is the launch, and the only one": (
        [Range("step", 10, 20), Launch(5, 25, 1), Launch(11, 19, 1, event_class=1), Kernel("gemm", 30, 40, 1)],
        {"gemm": "step", "step": 10},
    ),
    "1: ops with id 0, without an id, or with one that no call has have no launch": (
        [Launch(1, 2, 0), Kernel("zero", 10, 11, 0), Kernel("none", 10, 11, None), Kernel("lost", 10, 11, 99)],
        dict.fromkeys(("zero", "none", "lost"), "no launch row"),
    ),
    "2: the innermost open range owns, and both have it inside": (
        [*NESTED, launch_kernel("a", (12, 13), (50, 60), id=1), launch_kernel("b", (22, 23), (60, 65), id=2)],
        {"a": "inner", "b": "outer", "outer": 15, "inner": 10},
    ),
    "2: the whole call must lie inside": (
        [
            *(*NESTED, launch_kernel("late", (18, 21), (50, 60), id=1)),
            *(launch_kernel("early", (9, 11), (60, 70), id=2), launch_kernel("exact", (10, 20), (70, 80), id=3)),
        ],
        {"late": "outer", "early": "outer", "exact": "inner"},
    ),
    "2: when the op runs does not matter": (
        [Range("first", 0, 10), Range("second", 20, 90), launch_kernel("gemm", (1, 2), (30, 40), id=1)],
        {"gemm": "first"},
    ),
    "2: a range without length owns a call at that moment": (
        [Range("outer", 0, 9), Range("point", 5, 5), launch_kernel("k", (5, 5), (6, 8), id=1)],
        {"k": "point"},
    ),
    "2: of ranges of two domains that cross the later one owns": (
        [
            *(Range("left", 0, 50, domain=1), Range("right", 30, 80, domain=2)),
            *(launch_kernel("both", (35, 36), (100, 110), id=1), launch_kernel("tail", (60, 61), (110, 115), id=2)),
            launch_kernel("over", (45, 55), (115, 116), id=3),
        ],
        {"both": "right", "tail": "right", "over": "right", "left": 10, "right": 16},
    ),
    "3: with a range open on two other threads nobody owns the op, and neither has it inside": (
        [*BACKWARD, Range("other", 5, 50, thread=3)],
        {"grad": "ambiguous", "backward": 0, "other": 0},
    ),
    "3: nested ranges of one other thread are one candidate": (
        [*BACKWARD, Range("layer", 5, 50, thread=1)],
        {"grad": "layer"},
    ),
    "3: a range that ends during the call neither owns it nor makes it ambiguous": (
        [*BACKWARD, Range("short", 5, 11, thread=3)],
        {"grad": "backward"},
    ),
    "3: a helper's own range goes before that of any other thread": (
        [*BACKWARD, Range("own", 9, 13, thread=2)],
        {"grad": "own", "backward": 0},
    ),
    "3: a helper follows while its own ranges are closed": (
        [*BACKWARD, Range("own", 50, 60, thread=2)],
        {"grad": "backward"},
    ),
    "3: nobody follows into another process": (
        [Range("backward", 0, 100, process=2), BACKWARD[1]],
        {"grad": "outside every range"},
    ),
    "3: a window is nobody to follow, and owns": ([WINDOW, BACKWARD[1]], {"grad": "window"}),
    "4: a window owns what no push/pop range owns, and has both inside": (
        [
            *(WINDOW, Range("step", 10, 20, thread=2)),
            launch_kernel("a", (11, 12), (30, 35), id=1, thread=2),
            launch_kernel("b", (40, 41), (50, 57), id=2, thread=3),
        ],
        {"a": "step", "b": "window", "window": 12, "step": 5},
    ),
    "4: of two windows the later one owns, and both have it inside": (
        [WINDOW, Range("short", 5, 50, kind="start_end"), launch_kernel("gemm", (10, 12), (20, 30), id=1, thread=3)],
        {"gemm": "short", "window": 10, "short": 10},
    ),
    "4: an ambiguous op stays so in a window, which has it inside": (
        [*BACKWARD, Range("other", 5, 50, thread=3), WINDOW],
        {"grad": "ambiguous", "window": 10},
    ),
}


@pytest.mark.parametrize(("items", "wanted"), EXAMPLES.values(), ids=EXAMPLES)
def test_examples_of_rules(trace: MakeTrace, items: list[Items], wanted: dict[str, str | int]) -> None:
    """Who owns each op, or why nobody does, and the sums of ranges; all is in the ledger, and no launch is doubled."""
    path = trace(*items, duration=END)
    fates, found = outcomes(path), inside(path)
    kernels = {name: owner or fates[name] for name, owner in owners(path).items()}
    assert kernels | {name: totals["sum_ns"] for name, totals in found.items() if name in wanted} == wanted
    assert max((totals["launches"] for totals in found.values()), default=0) <= len(kernels)


def test_rule_1_many_ops_of_one_launch_count_one_launch(trace: MakeTrace) -> None:
    """The nodes of a CUDA graph are ops of one launch, which is one graph launch."""
    nodes = [Kernel("node", 20 + i, 21 + i, 1, graph_node=i + 1) for i in range(5)]
    found = inside(trace(Range("step", 0, 9), Launch(1, 2, 1), *nodes, duration=END))["step"]
    assert (found["launches"], found["kernels"], found["graph_launches"]) == (1, 5, 1)


def test_rule_2_of_identical_ranges_the_later_recorded_owns(trace: MakeTrace) -> None:
    """Identical ranges nest in the order of the file."""
    path = trace(Range("a", 5, 9), Range("b", 5, 9), launch_kernel("gemm", (6, 7), (10, 11), id=1), duration=END)
    found = core(path)
    assert owners(path) == {"gemm": "b"}
    assert found.parent.tolist() == [-1, 0]


def test_rule_3_a_helper_follows_the_one_thread_with_an_open_range(trace: MakeTrace) -> None:
    """What PyTorch's autograd thread launches belongs to the main thread's `backward`; strict leaves it out."""
    path = trace(*BACKWARD, duration=END)
    assert outcomes(path) == {"grad": "followed"}
    assert owners(path) == {"grad": "backward"}
    assert inside(path)["backward"]["followed_sum_ns"] == inside(path)["backward"]["sum_ns"] == 10
    assert outcomes(path, "strict") == {"grad": "outside every range"}
    assert inside(path, "strict")["backward"]["sum_ns"] == 0


def test_rule_4_strict_windows_see_their_own_thread_alone(trace: MakeTrace) -> None:
    """With `strict` a window has only what the thread that started it launched."""
    path = trace(
        Range("window", 0, 100, kind="start_end", thread=1),
        launch_kernel("mine", (1, 2), (10, 11), id=1, thread=1),
        launch_kernel("other", (3, 4), (11, 13), id=2, thread=2),
        duration=END,
    )
    assert outcomes(path) == dict.fromkeys(("mine", "other"), "start/end window")
    assert outcomes(path, "strict") == {"mine": "start/end window", "other": "outside every range"}
    assert [inside(path, mode)["window"]["sum_ns"] for mode in ("follow", "strict")] == [3, 1]


def test_rule_4_a_window_does_not_nest(trace: MakeTrace) -> None:
    """A window has no parent and is no parent."""
    path = trace(Range("step", 0, 100), Range("window", 10, 90, kind="start_end"), Range("inner", 20, 30), duration=END)
    found = core(path)
    names = [found.trace.range_names[code].text for code in found.trace.ranges.name.tolist()]
    assert dict(zip(names, found.parent.tolist(), strict=True)) == {"step": -1, "inner": 0, "window": -1}


def test_rule_5_the_ledger_has_a_row_for_each_outcome(trace: MakeTrace) -> None:
    """One op of each outcome, with its own duration, is one row each, in a fixed order."""
    path = trace(
        Range("step", 0, 10, thread=1),
        Range("window", 40, 60, kind="start_end"),
        Range("left", 100, 120, thread=1),
        Range("right", 100, 120, thread=2),
        launch_kernel("own", (1, 2), (500, 501), id=1),
        launch_kernel("followed", (3, 4), (501, 503), id=2, thread=9),
        launch_kernel("window", (50, 51), (503, 507), id=3, thread=9),
        launch_kernel("outside", (90, 91), (507, 515), id=4),
        launch_kernel("ambiguous", (110, 111), (515, 531), id=5, thread=9),
        Kernel("lost", 531, 563, 77),
        Memcpy(563, 627, 0, kind=11),
        duration=END,
    )
    rows = [(row.outcome, row.ops, row.sum_ns) for row in core(path).ledger]
    assert rows == [(outcome, 1, 1 << bit) for bit, outcome in enumerate(OUTCOMES)]


def test_rule_5_exclusive_sums_and_unowned_add_up(trace: MakeTrace) -> None:
    """What the ranges own and what nobody owns is all there is, to the ns, also with ids of 2^55 and more."""
    path = trace(
        Range("a", 0, 50, process=0xABCDEF),
        Range("b", 10, 20, process=0xABCDEF),
        launch_kernel("x", (11, 12), (10**17, 10**17 + 3), id=2**31, process=0xABCDEF),
        launch_kernel("y", (60, 61), (10**17, 10**17 + 5), id=2**31 + 1, process=0xABCDEF),
        duration=END,
    )
    found = core(path)
    assert found.exclusive_sum_ns.tolist() == [0, 3]
    assert sum(row.sum_ns for row in found.ledger) == 8


def test_rule_6_busy_is_a_union_and_sum_is_not(trace: MakeTrace) -> None:
    """Overlapping kernels count once in busy and twice in sum; a gap counts in span alone."""
    path = trace(
        Range("step", 0, 9),
        launch_kernel("a", (1, 2), (100, 140), id=1, stream=7),
        launch_kernel("b", (3, 4), (120, 160), id=2, stream=13),
        launch_kernel("c", (5, 6), (190, 200), id=3, stream=7),
        duration=END,
    )
    found = inside(path)["step"]
    assert (found["sum_ns"], found["busy_ns"], found["span_ns"]) == (90, 70, 100)


def test_rule_6_busy_adds_up_over_gpus(trace: MakeTrace) -> None:
    """Two GPUs busy at the same time are busy twice as long."""
    path = trace(
        Range("step", 0, 9),
        launch_kernel("a", (1, 2), (100, 140), id=1, device=0),
        launch_kernel("b", (3, 4), (100, 140), id=2, device=1),
        duration=END,
    )
    found = core(path)
    assert found.inclusive.busy_ns.tolist() == [80]
    assert int(found.inclusive.devices[0]).bit_count() == 2


def test_rule_6_devices_that_are_one_gpu_are_one(trace: MakeTrace) -> None:
    """Two device numbers that the report maps to one GPU share its busy time."""
    path = trace(
        Range("step", 0, 9),
        launch_kernel("a", (1, 2), (100, 140), id=1, device=0),
        launch_kernel("b", (3, 4), (120, 160), id=2, device=1),
        Gpu(5),
        Row("TARGET_INFO_CUDA_DEVICE", {"gpuId": 5, "cudaId": 0, "pid": 1}),
        Row("TARGET_INFO_CUDA_DEVICE", {"gpuId": 5, "cudaId": 1, "pid": 1}),
        duration=END,
    )
    assert inside(path)["step"]["busy_ns"] == 60


def test_rule_6_a_range_without_work_has_zeros(trace: MakeTrace) -> None:
    """A range that launched nothing has no first op, and its span is 0 rather than nonsense."""
    found = inside(trace(Range("empty", 5, 9), launch_kernel("a", (1, 2), (3, 4), id=1), duration=END))
    assert found["empty"] == dict.fromkeys(TOTALS, 0)


def test_rule_6_unclosed_ranges_end_with_the_session_and_are_marked(trace: MakeTrace) -> None:
    """A start/end range without end, and a push/pop range that nsys closed at the session's duration."""
    path = trace(
        Range("never stopped", 10, None, kind="start_end"),
        Range("never popped", 20, END),
        Range("closed", 30, 40),
        launch_kernel("gemm", (500, 501), (600, 610), id=1),
        duration=END,
    )
    ranges = core(path).trace.ranges
    assert sorted(zip(ranges.start.tolist(), ranges.end.tolist(), ranges.unclosed.tolist(), strict=True)) == [
        (10, END, True),
        (20, END, True),
        (30, 40, False),
    ]
    assert owners(path) == {"gemm": "never popped"}


def test_rule_6_work_after_the_session_still_lies_in_an_unclosed_range(trace: MakeTrace) -> None:
    """Where calls are recorded after the stated duration, an open range reaches to the last of them."""
    path = trace(
        Range("open", 10, None, kind="start_end"), launch_kernel("k", (150, 160), (200, 210), id=1), duration=99
    )
    assert owners(path) == {"k": "open"}


def test_rule_7_kernels_keep_their_full_name(trace: MakeTrace) -> None:
    """Two instances of one template have one short name and are still two kernels."""
    names = ["void at::fill<int>(int *)", "void at::fill<float>(float *)"]
    path = trace(*(launch_kernel(name, (i, i + 1), (i, i + 1), id=i + 1) for i, name in enumerate(names)))
    assert core(path).trace.op_names == names


def assert_equal(found: Attribution, reference: Reference, context: object) -> None:
    """Every column of the core is the reference's."""
    trace = found.trace
    assert [trace.range_names[code].text for code in trace.ranges.name.tolist()] == [
        row.name for row in reference.ranges
    ], context
    for what in ("start", "end", "unclosed"):
        expected = [getattr(row, what) for row in reference.ranges]
        assert getattr(trace.ranges, what).tolist() == expected, (context, what)
    assert found.op_owner.tolist() == reference.owner, context
    assert [OUTCOMES[outcome] for outcome in found.op_outcome.tolist()] == reference.outcome, context
    assert found.parent.tolist() == reference.parent, context
    assert [(row.outcome, row.ops, row.sum_ns) for row in found.ledger] == reference.ledger(), context
    for what in TOTALS:
        expected = [getattr(totals, what) for totals in reference.totals]
        assert getattr(found.inclusive, what).tolist() == expected, (context, what)
    devices = [int(mask).bit_count() for mask in found.inclusive.devices.tolist()]
    assert devices == [totals.devices for totals in reference.totals], context


@pytest.mark.parametrize("threads", ["follow", "strict"])
@pytest.mark.parametrize("first_seed", range(0, 100, 20))
def test_core_equals_the_reference(trace: MakeTrace, first_seed: int, threads: str) -> None:
    """Owner, outcome, parent, ledger and all totals of every range, on reports by chance."""
    for seed in range(first_seed, first_seed + 20):
        path = trace(*random_report(seed), duration=60 if seed % 4 == 0 else None, gpus=seed % 3 > 0)
        assert_equal(core(path, threads), refer(path, threads), (seed, path))


def test_the_order_of_rows_does_not_matter(trace: MakeTrace) -> None:
    """A report with all rows in another order gives the same totals and the same ledger."""
    items = [
        Range("outer", 0, 100),
        Range("inner", 10, 20),
        Range("window", 5, 60, kind="start_end"),
        *(part for i in range(12) for part in launch_kernel(f"k{i}", (5 * i, 5 * i + 3), (7 * i, 7 * i + 9), id=i + 1)),
    ]
    straight = trace(*items, duration=END)
    rng = random.Random(3)
    for _ in range(5):
        shuffled = trace(*rng.sample(items, len(items)), duration=END)
        assert (inside(shuffled), owners(shuffled)) == (inside(straight), owners(straight))
        assert core(shuffled).ledger == core(straight).ledger


def test_an_unknown_way_to_treat_threads_is_refused(trace: MakeTrace) -> None:
    """A misspelt `threads` names what there is to choose from."""
    with pytest.raises(NsysprofError, match="'lax'") as refused:
        core(trace(Range("a", 0, 1)), "lax")
    assert refused.value.hint == "choose follow or strict"


def test_a_report_of_ops_alone_has_a_ledger(trace: MakeTrace) -> None:
    """Without ranges and without calls every op is accounted for."""
    found = core(trace(Kernel("a", 0, 5, 1), GraphTrace(5, 9, 2)))
    assert [(row.ops, row.sum_ns) for row in found.ledger] == [(0, 0)] * 5 + [(2, 9), (0, 0)]
