"""``compare.png``: which call is shown, and what its artists show; never pixels."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Polygon

from nsysprof.compare import call_chart
from nsysprof.compare.call_chart import MAX_BOXES, MedianCall, median_call, plan_calls
from nsysprof.compare.charts import CHARTS
from nsysprof.compare.comparison import Comparison
from nsysprof.core.arrays import Floats
from nsysprof.statistics.contrast import NO_CLEAR_CHANGE, TOO_FEW_SAMPLES
from nsysprof.trace.details import CODE, LAUNCHING
from nsysprof.waits.causes import LATENCY
from tests.analyze.test_charts import UGLY
from tests.compare.conftest import END, NAMES, answer
from tests.conftest import MakeTrace
from tests.kit.calls import GEMM
from tests.kit.figures import check_texts, texts, title_of
from tests.kit.trace import Items, Range, launch_kernel, launch_memcpy

CALLS = CHARTS[1]
SOFTMAX = "void softmax_warp_forward<float, float, float, (int)9>(float *)"


def calls(lengths: list[int], name: str = "a", at: int = 0, first: int = 1) -> list[Items]:
    """A range with a call per length, which is that of its first kernel; one of 10 ns follows 5 ns later."""
    out: list[Items] = []
    start = at
    for number, length in enumerate(lengths):
        out.append(Range(f"iter{number}", start + 1, start + length + 90))
        for kernel, begin, ns in ((GEMM, start + 20, length), (SOFTMAX, start + length + 25, 10)):
            id_ = first + 2 * number + (kernel == SOFTMAX)
            out.append(launch_kernel(kernel, (begin - 15, begin - 12), (begin, begin + ns), id=id_))
        start += length + 100
    return [Range(name, at, start), *out]


def of_base(found: Comparison) -> MedianCall:
    """The call that stands for the base of the only pair."""
    return median_call(found.sides[0].base)


def boxes_of(axes: Axes, label: str) -> Floats:
    """Begin and end of each box of the lanes with a label."""
    found = [
        np.asarray(path.vertices)
        for artist in axes.collections
        if isinstance(artist, PolyCollection) and artist.get_label() == label
        for path in artist.get_paths()
    ]
    return np.array([(corners[:, 0].min(), corners[:, 0].max()) for corners in found]).reshape(-1, 2)


def test_the_median_call_is_shown(trace: MakeTrace) -> None:
    """Of five calls the last has no next one; of the other four it is the shorter one in the middle."""
    found = answer(
        trace(*calls([100, 400, 200, 300, 50]), *calls([10], "b", 5000, 90), duration=END), base="a", new="b"
    )
    call = of_base(found)
    assert (call.of, call.length_ns, call.kernels) == (4, 300, 2)
    assert call.start.tolist() == [0, 205]
    assert call.end.tolist() == [200, 215]
    assert [call.causes[code] for code in call.cause.tolist()] == ["gemm", "softmax"]
    assert call.gap_start.tolist() == [200, 215, 285, 288]
    assert call.gap_end.tolist() == [205, 285, 288, 300]
    assert call.idle_ns == 90
    assert call.gap_kind.tolist() == [LATENCY, CODE, LAUNCHING, LATENCY]
    assert call.launch_start.tolist() == [-15, 190]


def test_a_single_call_ends_with_its_last_op(trace: MakeTrace) -> None:
    """There is no next one to wait for."""
    found = answer(trace(*calls([100]), *calls([10], "b", 5000, 90), duration=END), base="a", new="b")
    call = of_base(found)
    assert (call.of, call.length_ns, call.idle_ns) == (1, 115, 5)


def test_work_outside_of_all_calls_is_shown_whole(trace: MakeTrace) -> None:
    """Where no call holds any of the work, the range stands for one."""
    path = trace(
        Range("a", 0, 1000), Range("iter0", 5, 6), launch_kernel(GEMM, (10, 11), (100, 300), id=1),
        Range("b", 2000, 3000), launch_kernel(GEMM, (2010, 2011), (2100, 2200), id=2),
    )  # fmt: skip
    call = of_base(answer(path, base="a", new="b"))
    assert (call.of, call.length_ns, call.start.tolist()) == (1, 200, [0])


def test_both_calls_are_on_one_axis(shipped: dict[str, Comparison]) -> None:
    """Every kernel of either call is a box at its time since the first one; the axis ends with the longer call."""
    found = shipped["S4096"]
    far = CALLS.figure(found).axes[0]
    base, new = (median_call(side) for side in (found.sides[0].base, found.sides[0].new))
    assert far.get_xlim() == (0, base.length_ns)
    drawn = boxes_of(far, "GPU 0 · stream 7")
    assert base.kernels == 20
    assert drawn[:20, 0].tolist() == base.start.tolist()
    assert drawn[20:].tolist() == [[int(new.start[0]), int(new.end[0])]]
    assert boxes_of(far, "call")[:, 1].tolist() == [base.length_ns, new.length_ns]


def test_the_shorter_call_is_shown_closely(shipped: dict[str, Comparison]) -> None:
    """Below, or above where it is the base: with an axis of its own, the factor, and a wedge that joins the two."""
    below, above = CALLS.figure(shipped["S4096"]), CALLS.figure(shipped["back"])
    for figure, near in ((below, 1), (above, 0)):
        assert figure.axes[near].get_xlim()[1] < 120_000
        (title,) = [text for text in texts(figure) if text.startswith("flash, 24.0x closer: 1 kernel")]
        assert title in [text.get_text() for text in figure.axes[near].texts]
        (wedge,) = [artist for artist in figure.artists if isinstance(artist, Polygon)]
        assert len(wedge.get_xy()) == 5
    assert len(CALLS.figure(shipped["fused"]).axes) == 2


def test_calls_of_like_length_need_no_second_axis(trace: MakeTrace) -> None:
    """One panel where both can be read."""
    figure = CALLS.figure(
        answer(trace(*calls([100, 9]), *calls([80, 9], "b", 5000, 90), duration=END), base="a", new="b")
    )
    assert len(figure.axes) == 1
    assert not [artist for artist in figure.artists if isinstance(artist, Polygon)]


@pytest.mark.parametrize("name", sorted({*NAMES} - {"step"}))
def test_every_kernel_is_named(shipped: dict[str, Comparison], name: str) -> None:
    """What each of the few kernels of a call is there for is written in it, or above it."""
    found = shipped[name]
    names = " ".join(texts(CALLS.figure(found)))
    pair = next(pair for pair in found.sides if pair.name == found.largest)
    for side in (pair.base, pair.new):
        call = median_call(side)
        assert all(call.causes[code] in names for code in set(call.cause.tolist()))


def test_titles_of_calls_state_the_finding(shipped: dict[str, Comparison]) -> None:
    """What a call takes on either side; each call says how much of it is idle, and how far ahead it was launched."""
    figure = CALLS.figure(shipped["S4096"])
    assert title_of(figure) == (
        "One call at S=4096: math takes 2.84 ms for 20 kernels, flash 118 µs for 1 kernel;"
        " over all calls math is 24.0x slower than flash"
    )
    found = texts(figure)
    assert "math: 20 kernels, idle for 1.3 %; launched 25.5 ms ahead" in found
    assert {"flash: 1 kernel, idle for 3.8 %", "2.84 ms", "safe-softmax guard × 4  642 µs"} <= set(found)
    assert "time since the end of the previous step (ms)" in found
    assert any(text.startswith("Largest difference among 3 pairs") for text in texts(CALLS.figure(shipped["all"])))


def test_a_call_decides_nothing_where_all_calls_do_not(shipped: dict[str, Comparison]) -> None:
    """One call of a pair may be faster than the other one though over all calls there is no clear change."""
    found = shipped["S4096"]
    unclear = replace(found, pairs=found.pairs.assign(verdict=NO_CLEAR_CHANGE))
    assert title_of(CALLS.figure(unclear)) == (
        "One call at S=4096: math takes 2.84 ms for 20 kernels, flash 118 µs for 1 kernel;"
        " over all calls no clear change from math to flash"
    )
    few = replace(found, pairs=found.pairs.assign(verdict=TOO_FEW_SAMPLES))
    verdict = "math is 24.0x slower than flash, with too few samples for a verdict"
    assert title_of(CALLS.figure(few)).endswith(f"; over all calls {verdict}")


def test_host_calls_are_shown_where_the_gpu_waits_for_them(shipped: dict[str, Comparison]) -> None:
    """A launch-bound call has a lane for them and says what its gaps wait for; one queued long before has none."""
    bound, queued = CALLS.figure(shipped["step"]), CALLS.figure(shipped["S4096"])
    launched = 47, 19  # a step begins before its first launch
    assert len(boxes_of(bound.axes[0], "host calls")) == sum(launched)
    assert "idle: host: code" in texts(bound)
    assert not len(boxes_of(queued.axes[0], "host calls"))


def test_boxes_with_one_name_have_a_bracket(shipped: dict[str, Comparison]) -> None:
    """The four kernels of the guard are one name, and a bracket says which they are."""
    found = shipped["S4096"]
    far = CALLS.figure(found).axes[0]
    call = of_base(found)
    guard = np.flatnonzero(call.cause == call.causes.index("safe-softmax guard"))
    (poles,) = [
        artist for artist in far.collections if isinstance(artist, LineCollection) and artist.get_label() == "poles"
    ]
    ends = np.array([np.asarray(line)[[0, -1], 0] for line in poles.get_segments() if len(line) == 4])
    wanted = [int(call.start[guard[0]]), int(call.end[guard[-1]])]
    assert np.abs(ends - wanted).max(axis=1).min() <= 2


def many(count: int, name: str, at: int, first: int, length: int = 30) -> list[Items]:
    """One call with many kernels, 100 ns from one to the next."""
    names = (GEMM, SOFTMAX, "void at::native::triu_tril_kernel<bool>(int)")
    out: list[Items] = [Range(name, at, at + 100 * count + 50)]
    for n in range(count):
        begin = at + 100 * n + 20
        out.append(launch_kernel(names[n % 3], (begin - 18, begin - 10), (begin, begin + length), id=first + n))
    return out


def test_hundreds_of_kernels_are_drawn_and_a_few_named(trace: MakeTrace) -> None:
    """As of a training step: each name once, with how many there are, and no text on another."""
    path = trace(*many(300, "a", 0, 1), *many(240, "b", 100_000, 1000), duration=200_000)
    figure = CALLS.figure(answer(path, base="a", new="b"))
    (axes,) = figure.axes
    assert len(boxes_of(axes, "GPU 0 · stream 7")) == 540
    assert "softmax  30 ns (100 in all: 3.00 µs)" in texts(figure)
    check_texts(figure)


def test_thousands_of_kernels_become_columns(trace: MakeTrace) -> None:
    """No mark per kernel: columns that are as high as they are busy, and so have the busy time as their area."""
    path = trace(*many(2500, "a", 0, 1), *many(1000, "b", 400_000, 5000), duration=900_000)
    found = answer(path, base="a", new="b")
    plan = plan_calls(found)
    (lane, host), (other, _) = (block.lanes for block in plan.panels[0].blocks)
    assert lane.level is not None
    assert len(lane.start) <= 1440
    assert float(((lane.end - lane.start) * lane.level).sum()) == pytest.approx(2500 * 30)
    assert other.level is not None
    assert float(((other.end - other.start) * other.level).sum()) == pytest.approx(1000 * 30)
    assert len(host.start) <= 1440
    assert host.end.max() > 249_000 - 100
    assert f"more than {MAX_BOXES} kernels" in " ".join(plan.heading.notes)
    check_texts(CALLS.figure(found))


def test_ops_without_length_at_the_end_are_in_the_last_column(trace: MakeTrace) -> None:
    """Such an op begins where the axis ends; and where all are like that there is an axis still."""
    last = launch_kernel("last", (69_990, 69_991), (69_950, 69_950), id=701)
    path = trace(*many(700, "a", 0, 1), last, *many(3, "b", 80_000, 1000), duration=90_000)
    found = answer(path, base="a", new="b")
    lane = plan_calls(found).panels[0].blocks[0].lanes[0]
    assert lane.level is not None
    assert float(((lane.end - lane.start) * lane.level).sum()) == pytest.approx(700 * 30)
    no, family = np.zeros(601, np.int64), np.zeros(601, np.uint8)
    assert [len(column) for column in call_chart._columns(no, no, family)] == [0, 0, 0, 0]


def test_streams_have_a_lane_each(trace: MakeTrace) -> None:
    """What runs at the same time lies below each other, and copies are counted apart from kernels."""
    path = trace(
        Range("a", 0, 1000), launch_kernel(GEMM, (1, 2), (100, 500), id=1, stream=7),
        launch_memcpy((3, 4), (200, 900), id=2, stream=9),
        Range("b", 2000, 3000), launch_kernel(GEMM, (2001, 2002), (2100, 2400), id=3, stream=7),
    )  # fmt: skip
    figure = CALLS.figure(answer(path, base="a", new="b"))
    (axes,) = figure.axes
    assert len(boxes_of(axes, "GPU 0 · stream 7")) == 2
    assert boxes_of(axes, "GPU 0 · stream 9").tolist() == [[100, 800]]
    assert "a: 1 kernel and 1 other GPU op; launched 96 ns ahead" in texts(figure)
    check_texts(figure)


def test_kernels_that_no_rule_knows_have_their_own_names(trace: MakeTrace) -> None:
    """`other` would say nothing; two such kernels in a row are not one."""
    path = trace(
        Range("a", 0, 1000), launch_kernel("void mine::frobnicate<int>()", (1, 2), (100, 500), id=1),
        launch_kernel("void mine::twiddle<int>()", (3, 4), (500, 900), id=2),
        Range("b", 2000, 3000), launch_kernel(GEMM, (2001, 2002), (2100, 2900), id=3),
    )  # fmt: skip
    found = texts(CALLS.figure(answer(path, base="a", new="b")))
    assert {"frobnicate int", "twiddle int", "gemm"} <= set(found)


def test_long_and_ugly_names_stay_apart(trace: MakeTrace) -> None:
    """Kernels and ranges with names of any kind and length, also where they end with the axis."""
    for at, name in enumerate(UGLY):
        items: list[Items] = [Range(f"{name}1", 0, 5000), Range(f"{name}2", 6000, 9000)]
        for n in range(12):
            kernel = f"{name * 3}_{n}"
            items.append(launch_kernel(kernel, (10 * n, 10 * n + 5), (200 * n + 500, 200 * n + 690), id=n + 1))
        items.append(launch_kernel(name or "x", (6001, 6002), (6100, 6200), id=90))
        found = answer(trace(*items, name=f"ugly{at}.sqlite"), base="*1", new="*2")
        for chart in CHARTS[:2]:
            check_texts(chart.figure(found))
