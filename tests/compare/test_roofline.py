"""The roofline of a comparison: where kernels stand, what is refused, and what ``roofline.png`` shows; never pixels."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from nsysprof.charts.drawing import picture
from nsysprof.charts.marks import Message, Roofs
from nsysprof.charts.palette import BASE, NEW
from nsysprof.compare import roofline as roofline_module
from nsysprof.compare.charts import CHARTS, comparison_charts
from nsysprof.compare.comparison import Comparison
from nsysprof.compare.roofline import Roofline, plan_roofline, roofline
from nsysprof.core.arrays import Floats
from tests.compare.conftest import answer
from tests.compare.test_counter_match import PAIR, both_calls, compared
from tests.conftest import MakeTrace
from tests.kit.calls import FLASH, GEMM, SOFTMAX, math_and_flash, run
from tests.kit.command_line import Run
from tests.kit.counters import Counted
from tests.kit.figures import check_texts, title_of
from tests.kit.trace import Gpu

FP32, TENSOR, MEMORY = 132 * 1.98e9 * 256, 132 * 1.98e9 * 4096, 4_814_304_000_000


def counted(*flops: tuple[int, int]) -> list[Counted]:
    """`both_calls` with the FLOPs of each kernel: on FP32 units, on tensor cores."""
    rows = both_calls()
    for row, (plain, tensor) in zip(rows, flops, strict=True):
        row.more.update(fp32_flops=plain, tensor_flops=tensor)
    return rows


def found_in(trace: MakeTrace, *flops: tuple[int, int], **how: Any) -> Comparison:
    """Math with three kernels of 101, 202 and 303 bytes, flash with one of 44, and these FLOPs."""
    return compared(math_and_flash(trace), counted(*flops), {**PAIR, **how})


USUAL = (3000, 0), (500, 0), (0, 0), (1000, 20_000)


def points(found: Comparison) -> Roofline:
    """Its roofline, which must be there."""
    answer = roofline(found)
    assert answer is not None
    return answer


def test_points_are_flops_per_byte_and_per_second(trace: MakeTrace) -> None:
    """By hand: bytes and FLOPs of the counters, the time of the report."""
    found = points(found_in(trace, *USUAL))
    rows = {(row["side"], row["cause"]): row for row in found.points.to_dict("records")}
    qk = rows["base", "Q·Kᵀ GEMM"]
    assert (qk["ns"], qk["sum_ns"], qk["count"], qk["dram_bytes"], qk["flops"]) == (200, 200, 1, 101, 3000)
    assert qk["intensity"] == pytest.approx(3000 / 101)
    assert qk["flops_per_s"] == pytest.approx(3000 / 200e-9)
    assert qk["bytes_per_s"] == pytest.approx(101 / 200e-9)
    assert rows["base", "P·V GEMM"]["intensity"] == 0
    flash = rows["new", "fused attention"]
    assert (flash["tensor_share"], flash["flops"]) == (20_000 / 21_000, 21_000)
    assert (found.lost, found.refused) == (0, {})


def test_ceilings_come_from_what_the_report_says_of_the_gpu(trace: MakeTrace) -> None:
    """SMs × clock × FLOPs per clock; where the ridges are follows from the bandwidth."""
    found = points(found_in(trace, *USUAL))
    assert [each.name for each in found.ceilings] == ["FP32 units", "tensor cores, fp16"]
    assert [each.flops_per_s for each in found.ceilings] == pytest.approx([FP32, TENSOR])
    assert found.bytes_per_s == MEMORY
    assert [found.ridges[each.tensor] for each in found.ceilings] == pytest.approx([FP32 / MEMORY, TENSOR / MEMORY])
    float32 = points(found_in(trace, *USUAL, shape="B=1,H=2,D=4,fp32"))
    assert float32.ceilings[1].name == "tensor cores, tf32"


def test_what_cannot_be_is_no_point(trace: MakeTrace) -> None:
    """More FLOPs or more bytes than the GPU can do are refused with the suspects, and how much time that is."""
    rows = counted((10**12, 0), (500, 0), (0, 0), (1000, 20_000))
    rows[2] = Counted(rows[2].range, GEMM, 10**9, 0, more=rows[2].more)
    found = points(compared(math_and_flash(trace), rows))
    assert found.points["cause"].tolist() == ["softmax", "fused attention"]
    assert tuple(found.refused.values()) == (
        "FLOPs of Q·Kᵀ GEMM (base): 467,058 % of the peak is impossible; the likely error is in the "
        "counters or the clock",
        "bytes of P·V GEMM (base): 207,714 % of the peak is impossible; the likely error is in the "
        "counters (they also count write-backs of earlier kernels, and reads that hit L2 in a run without counters) "
        "or the memory bandwidth that the report records",
    )
    assert found.lost == pytest.approx(300 / 750)


def test_what_the_caches_hold_stands_at_the_edge(trace: MakeTrace) -> None:
    """A kernel with FLOPs and hardly any traffic has no place on the axis: an arrow, and how little it moves."""
    rows = counted(*USUAL)
    rows[3] = Counted(rows[3].range, FLASH, 0, 0, more=rows[3].more)
    rows[0] = Counted(rows[0].range, GEMM, 0, 1, more={"fp32_flops": 10**6, "tensor_flops": 0})
    plan = plan_roofline(compared(math_and_flash(trace), rows))
    assert isinstance(plan, Roofs)
    assert [(bubble.text, bubble.beyond) for bubble in plan.bubbles] == [
        ("softmax  300 ns", False),
        ("Q·Kᵀ GEMM  200 ns, 1 B of DRAM traffic", True),
        ("fused attention  150 ns, 0 B of DRAM traffic", True),
    ]
    assert plan.bubbles[1].x == plan.bubbles[2].x == 15 * TENSOR / MEMORY
    assert "arrow: the kernel is beyond the end of the axis, because its data is in caches" in plan.heading.notes
    assert "none of flash's" in plan.heading.title


def test_a_gpu_that_the_report_does_not_describe_has_no_ceilings(trace: MakeTrace) -> None:
    """Points there are all the same."""
    path = trace(
        *run("RUN::math::S8", 0, [(GEMM, 200), (SOFTMAX, 300), (GEMM, 100)]),
        *run("RUN::flash::S8", 5000, [(FLASH, 150)], first_id=50),
        Gpu(0, more={"smCount": None, "memoryBandwidth": None}),
        duration=20_000,
    )
    found = points(compared(path, counted(*USUAL)))
    assert (found.ceilings, found.bytes_per_s, len(found.points)) == ((), None, 4)
    figure = CHARTS[-1].figure(compared(path, counted(*USUAL)))
    assert "flash does 477 FLOP per byte of memory traffic at S=8" in title_of(figure)
    check_texts(figure)


def test_without_counters_there_is_no_roofline(trace: MakeTrace) -> None:
    """None, and none among the charts."""
    found = answer(math_and_flash(trace), **PAIR)
    assert roofline(found) is None
    assert len(comparison_charts(found)) == 2


def bubbles(figure: Figure, axes: int) -> EllipseCollection:
    """The kernels of an axes."""
    (found,) = [one for one in figure.axes[axes].collections if one.get_label() == "kernels"]
    assert isinstance(found, EllipseCollection)
    return found


def places(found: EllipseCollection) -> Floats:
    """Where the bubbles are."""
    return np.array(found.get_offsets(), float)


def test_every_kernel_is_a_bubble(trace: MakeTrace) -> None:
    """At its FLOPs per byte and TFLOP/s, as large as its time, in the colour of its side; without FLOPs below."""
    found = found_in(trace, *USUAL)
    figure = CHARTS[-1].figure(found)
    above, below = bubbles(figure, 0), bubbles(figure, 1)
    assert places(above) == pytest.approx(
        np.array([(500 / 202, 500 / 300e-9 / 1e12), (3000 / 101, 0.015), (21_000 / 44, 0.14)])
    )
    areas = np.asarray(above.get_widths(), float) ** 2
    assert areas / areas[0] == pytest.approx([1, 200 / 300, 150 / 300])
    assert places(below)[0, 0] == pytest.approx(303 / 100e-9 / 1e9)
    plan = plan_roofline(found)
    assert isinstance(plan, Roofs)
    assert [bubble.colour for bubble in plan.bubbles] == [BASE, BASE, NEW]
    assert [bubble.text for bubble in (*plan.bubbles, *plan.flat)] == [
        "softmax  300 ns", "Q·Kᵀ GEMM  200 ns", "fused attention  150 ns", "P·V GEMM  100 ns",
    ]  # fmt: skip
    texts = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {bubble.text for bubble in (*plan.bubbles, *plan.flat)} <= texts
    check_texts(figure)


def test_roofs_are_where_they_belong(trace: MakeTrace) -> None:
    """The slope is the bandwidth, the ceilings begin where they meet it."""
    axes = CHARTS[-1].figure(found_in(trace, *USUAL)).axes[0]
    lines = {str(line.get_label()): np.array(line.get_data()) for line in axes.lines}
    x, y = lines["DRAM 4.81 TB/s"]
    assert y / x == pytest.approx(MEMORY / 1e12)
    assert y[1] == pytest.approx(TENSOR / 1e12)
    x, y = lines["FP32 units: 66.91 TFLOP/s"]
    assert (x[0], y[0], y[1]) == pytest.approx((FP32 / MEMORY, FP32 / 1e12, FP32 / 1e12))


def test_the_title_states_the_finding(trace: MakeTrace) -> None:
    """How much of the time of either side memory limits, and who uses tensor cores."""
    few = (500, 0), (500, 0), (0, 0), (1000, 20_000)
    assert title_of(CHARTS[-1].figure(found_in(trace, *few))) == (
        "All of math's kernel time and none of flash's at S=8 is spent in memory-bound kernels; only"
        " flash uses tensor cores"
    )
    assert title_of(CHARTS[-1].figure(found_in(trace, *USUAL))).startswith("67 % of math's kernel time and none of")
    little = (500, 0), (500, 0), (0, 0), (0, 44)
    assert "All of math's kernel time and all of flash's" in title_of(CHARTS[-1].figure(found_in(trace, *little)))


def test_counters_without_flops_say_so(trace: MakeTrace) -> None:
    """Words and what to do, in place of a picture that would be wrong; one kernel without is no matter."""
    found = compared(math_and_flash(trace), both_calls())
    plan = plan_roofline(found)
    assert isinstance(plan, Message)
    assert plan.sentences == ["The counters hold no FLOPs.", "Measure them with:  nsysprof counters, without --quick"]
    assert picture(plan).startswith(b"\x89PNG")
    rows = counted(*USUAL)
    rows[1].more.clear()
    some = plan_roofline(compared(math_and_flash(trace), rows))
    assert isinstance(some, Roofs)
    assert some.labels[3] == "Kernels without known FLOPs"
    assert some.heading.title.startswith("33 % of math's kernel time")


def test_a_side_whose_flops_nobody_counted_is_not_in_the_title(trace: MakeTrace) -> None:
    """As of `counters --quick`: its kernels are no kernels without FLOPs, with a ceiling as without one."""
    rows = counted(*USUAL)
    rows[-1].more.clear()
    plan = plan_roofline(compared(math_and_flash(trace), rows))
    assert isinstance(plan, Roofs)
    assert plan.heading.title == ("67 % of math's kernel time at S=8 is spent in memory-bound kernels")
    assert "FLOPs of flash are unknown" in plan.heading.notes
    bare = trace(
        *run("RUN::math::S8", 0, [(GEMM, 200), (SOFTMAX, 300), (GEMM, 100)]),
        *run("RUN::flash::S8", 5000, [(FLASH, 150)], first_id=50),
        Gpu(0, more={"smCount": None, "memoryBandwidth": None}), duration=20_000,
    )  # fmt: skip
    plan = plan_roofline(compared(bare, rows))
    assert isinstance(plan, Roofs)
    assert plan.heading.title == "math does 6 FLOP per byte of memory traffic at S=8"


def test_a_pair_without_counters_among_others_says_so(trace: MakeTrace) -> None:
    """The largest pair is drawn or nothing."""
    path = trace(
        *run("RUN::math::S8", 0, [(GEMM, 200)]), *run("RUN::flash::S8", 5000, [(FLASH, 150)], first_id=50),
        *run("RUN::math::S16", 9000, [(GEMM, 900)], first_id=90),
        *run("RUN::flash::S16", 15_000, [(FLASH, 15)], first_id=150),
        duration=90_000,
    )  # fmt: skip
    rows = [Counted("RUN::math::S16/iter0", GEMM, 5, 5), Counted("RUN::flash::S16/iter0", FLASH, 5, 5)]
    found = compared(path, rows, {"base": "RUN::math::*", "new": "RUN::flash::*"})
    assert found.largest == "RUN::math::S8 → RUN::flash::S8"
    plan = plan_roofline(found)
    assert isinstance(plan, Message)
    assert "the counters have no memory traffic" in plan.sentences[0]


@pytest.mark.parametrize("kernels", [1, 12, 40])
def test_names_stay_inside_and_apart(kernels: int, trace: MakeTrace) -> None:
    """However many kernels there are, and however close they are together, no name lies on another."""
    chosen = np.random.default_rng(kernels)
    names = [(f"void kernel_with_a_rather_long_name_{n}<float>(T1)", 10 + n) for n in range(kernels)]
    path = trace(*run("a", 0, names, calls=1), *run("b", 50_000, [(FLASH, 150)], first_id=900), duration=90_000)
    rows = [
        Counted("a/iter0", name, 1000, 0, more={"fp32_flops": 30 + int(flops), "tensor_flops": 0})
        for (name, _), flops in zip(names, chosen.lognormal(6, 2, kernels), strict=True)
    ]
    rows.append(Counted("b/iter0", FLASH, 40, 4, more={"tensor_flops": 20_000, "fp32_flops": 0}))
    figure = CHARTS[-1].figure(compared(path, rows, {"base": "a", "new": "b"}))
    check_texts(figure)
    assert len(places(bubbles(figure, 0))) == kernels + 1


def test_thousands_of_kernels_are_not_all_drawn(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with the most time are; a note counts the others."""
    monkeypatch.setattr(roofline_module, "MAX_BUBBLES", 20)
    names = [(f"kernel_{n}", 3 + n % 7) for n in range(90)]
    path = trace(*run("a", 0, names, calls=1), *run("b", 9000, [(FLASH, 9)], first_id=900), duration=90_000)
    rows = [Counted("a/iter0", name, 100, 0, more={"fp32_flops": 50 + at}) for at, (name, _) in enumerate(names)]
    plan = plan_roofline(compared(path, rows, {"base": "a", "new": "b"}))
    assert isinstance(plan, Roofs)
    assert len(plan.bubbles) == 20
    assert "70 kernels with less time are not drawn" in plan.heading.notes
    assert plan.bubbles[0].text == "kernel_13  9 ns"  # the first in the alphabet of those of 9 ns


def test_the_command(trace: MakeTrace, tmp_path: Path, run: Run) -> None:
    """Counters beside the report or named make a roofline; without them none stays from before."""
    path = math_and_flash(trace)
    compared(path, counted(*USUAL))
    file = path.with_suffix(".counters.csv")
    run_it = partial(run, "compare")
    asked = (path.name, "--base", PAIR["base"], "--new", PAIR["new"], "--all", "-o", "out")
    done = run_it(*asked)
    assert done.code == 0
    assert "measured, math" in done.out
    assert done.err.endswith("Written to out/: gap.png, compare.png, roofline.png, gap.csv, gap.json\n")
    assert (tmp_path / "out" / "roofline.png").read_bytes().startswith(b"\x89PNG")
    elsewhere = tmp_path / "elsewhere.csv"
    file.rename(elsewhere)
    file.with_suffix(".json").rename(elsewhere.with_suffix(".json"))
    done = run_it(*asked)
    assert "measured, math" not in done.out
    assert done.err.endswith("gap.csv, gap.json\nremoved files of an earlier comparison: roofline.png\n")
    done = run_it(*asked, "--counters", elsewhere.name, "--no-charts")
    assert "measured, math" in done.out
    twice = run_it(*asked, "--counters", elsewhere.name, "--counters", elsewhere.name)
    assert twice.code == 2
    assert "--counters applies to one report: give it at most once per report" in twice.err
    elsewhere.write_text("a,b\n", encoding="utf-8")
    done = run_it(*asked, "--counters", elsewhere.name)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("nsysprof: elsewhere.json does not belong to elsewhere.csv")
