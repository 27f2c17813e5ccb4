"""``gap.png``: what its artists show, in numbers and in words; never pixels."""

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from nsysprof.charts.bars import draw_waterfalls
from nsysprof.charts.palette import LESS, MORE, OTHERS, WHOLE
from nsysprof.compare.charts import CHARTS, MAX_PANELS, MAX_STEPS, plan_gap
from nsysprof.compare.comparison import Comparison
from nsysprof.core.arrays import Floats
from tests.compare.conftest import NAMES, answer
from tests.conftest import MakeTrace
from tests.kit.calls import run
from tests.kit.figures import SIGHT, lab, texts, title_of
from tests.kit.trace import Items, Range, launch_kernel

GAP = CHARTS[0]


def edges(axes: Axes, label: str) -> Floats:
    """Of each bar with a label: middle of the column, bottom and top."""
    found = [
        np.asarray(path.vertices)
        for artist in axes.collections
        if isinstance(artist, PolyCollection) and artist.get_label() == label
        for path in artist.get_paths()
    ]
    rows = [
        (corners[:, 0].min() / 2 + corners[:, 0].max() / 2, corners[:, 1].min(), corners[:, 1].max())
        for corners in found
    ]
    return np.array(rows).reshape(-1, 3)


def test_bars_and_steps_are_the_ledger(shipped: dict[str, Comparison]) -> None:
    """The first bar is the base's span, each step a row's difference from where the last one ended, to new."""
    found = shipped["S4096"]
    (axes,) = GAP.figure(found).axes
    row = found.pairs.iloc[0]
    whole = edges(axes, "idle")
    assert whole[:, 2].tolist() == pytest.approx([row["base_mean_ns"] / 1e6, row["new_mean_ns"] / 1e6])
    assert edges(axes, "busy")[:, 2].tolist() == pytest.approx([row["base_busy_ns"] / 1e6, row["new_busy_ns"] / 1e6])
    steps = np.concatenate([edges(axes, "less") * [1, 1, -1], edges(axes, "more") * [1, -1, 1]])
    steps = steps[np.argsort(steps[:, 0])]
    change = np.where(steps[:, 2] < 0, steps[:, 1] + steps[:, 2], steps[:, 2] + steps[:, 1])
    delta = found.gaps["delta_ns"].to_numpy() / 1e6
    assert change[:-1] == pytest.approx(delta[: len(change) - 1], abs=0.004)  # the thinnest are two pixels high
    (lines,) = [
        artist
        for artist in axes.collections
        if isinstance(artist, LineCollection) and artist.get_label() == "connectors"
    ]
    levels = [float(segment[0][1]) for segment in lines.get_segments()]
    assert levels[0] == pytest.approx(row["base_mean_ns"] / 1e6)
    assert levels[-1] == pytest.approx(row["new_mean_ns"] / 1e6)
    assert np.diff(levels)[: len(delta) - 4].tolist() == pytest.approx(delta[: len(levels) - 2].tolist())


def number(text: str) -> float:
    """What a written number says."""
    return float(re.sub(r"[^0-9.+-]", "", text.replace("−", "-")))


@pytest.mark.parametrize("name", NAMES)
def test_the_digits_add_up(shipped: dict[str, Comparison], name: str) -> None:
    """Base and all steps as they are written give new as it is written, to the last digit."""
    for panel in plan_gap(shipped[name]).panels:
        base, new = map(number, panel.total_texts)
        steps = [number(text) for text in panel.texts if text and text != "≈ 0"]
        assert base + sum(steps) == pytest.approx(new, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        (
            "S4096",
            "math is 24.0x slower than flash at S=4096:"
            " safe-softmax guard, Q·Kᵀ GEMM, softmax and mask add make 78 % of it",
        ),
        (
            "step",
            "math is 1.74x slower than flash at S=1024:"
            " idle (host: code), gemm, idle (host: launch calls) and P·V GEMM make 68 % of it",
        ),
        (
            "back",
            "flash is 24.0x faster than math at S=4096:"
            " safe-softmax guard, Q·Kᵀ GEMM, softmax and mask add make 78 % of it",
        ),
        (
            "all",
            "math is 5.43x to 24.0x slower than flash; the largest part is safe-softmax guard at S=2048 and S=4096;"
            " P·V GEMM at S=1024",
        ),
        (
            "fused",
            "efficient against cudnn: slower in 2 of 3 pairs, no clear change in 1; the largest part is fused attention"
            " at S=2048 and S=4096",
        ),
        (
            "kernel",
            "flash against cudnn: slower in 1 of 3 pairs, no clear change in 2; the largest part is fused attention"
            " at S=4096",
        ),
    ],
)
def test_the_title_states_the_finding(shipped: dict[str, Comparison], name: str, title: str) -> None:
    """How much slower, and what makes most of it."""
    assert title_of(GAP.figure(shipped[name])) == title


def paced(name: str, at: int, length: int, first_id: int) -> list[Items]:
    """A range with 25 calls of one kernel of about so many ns, each as soon as the one before has ended."""
    out: list[Items] = []
    start = at
    for call in range(25):
        end = start + length + 7 * (call + first_id) % 5
        out.append(Range(f"iter{call}", start + 1, end + 10))
        out.append(launch_kernel("gemm", (start + 2, start + 4), (start + 10, end + 8), id=first_id + call))
        start = end + 20
    return [Range(name, at, start), *out]


def test_pairs_that_differ_in_direction_are_counted(trace: MakeTrace) -> None:
    """Where some get faster and others slower, the title says how many, and what no test tells from chance is apart."""
    items: list[Items] = []
    for number, (old, new) in enumerate([(400, 200), (200, 400), (300, 300), (200, 500)]):
        items += paced(f"old::k{number}", 40_000 * number, old, 100 * number + 1)
        items += paced(f"new::k{number}", 40_000 * number + 20_000, new, 100 * number + 51)
    found = answer(trace(*items, duration=200_000), base="old::*", new="new::*")
    assert found.pairs["verdict"].tolist() == ["faster", "slower", "no clear change", "slower"]
    assert title_of(GAP.figure(found)).startswith(
        "old against new: slower in 1 of 4 pairs, faster in 2, no clear change in 1; the largest part is gemm"
    )


def test_the_subtitle_says_how_it_was_measured(shipped: dict[str, Comparison]) -> None:
    """File, GPU, nsys, how many calls, by which clock; below, what the small steps are."""
    found = texts(GAP.figure(shipped["S4096"]))
    assert (
        "run.sqlite · NVIDIA H200 · nsys 2025.3.2.0 · mean of n = 40 and 39 calls (iter*)"
        " · time: step time without warm-up; in the title: the median step"
    ) in found
    assert (
        "Share of the difference in %; all bars add up to the difference; the 4 others: scaling, idle: host: code,"
        " idle: host: launch calls, idle: host: other CUDA calls."
    ) in found
    assert {"2.843 ms", "0.118 ms", "−0.642", "24 %", "4 → 0 kernels", "20 kernels", "1 kernel"} <= set(found)


def test_no_per_cent_where_nothing_is_clear(shipped: dict[str, Comparison]) -> None:
    """A waterfall without a clear change has none, the others have, and the note says so."""
    plan = plan_gap(shipped["kernel"])
    assert [any(panel.shares) for panel in plan.panels] == [False, False, True]
    assert plan.heading.notes == [
        "share of the difference in % (none if there is no clear change or causes cancel); all bars add up to the"
        " difference"
    ]
    assert not any("left out" in note for note in plan_gap(shipped["all"]).heading.notes)


def test_colours_say_which_way(shipped: dict[str, Comparison]) -> None:
    """What gets less has one colour, what gets more another, and the legend has those that are there."""
    forth, back = GAP.figure(shipped["S4096"]), GAP.figure(shipped["back"])
    assert len(edges(forth.axes[0], "less")) == len(edges(back.axes[0], "more")) == 10
    assert len(edges(forth.axes[0], "more")) == len(edges(back.axes[0], "less")) == 1
    assert "less time in math" in texts(back)


@pytest.mark.parametrize("sight", SIGHT)
def test_the_colours_differ_for_every_reader(sight: str) -> None:
    """Less, more, busy and idle are far apart for all kinds of sight."""
    for one, other in combinations((LESS, MORE, WHOLE, OTHERS, "#ffffff"), 2):
        assert np.linalg.norm(lab(one, sight) - lab(other, sight)) >= 20, (one, other)


def test_many_pairs_share_their_columns(shipped: dict[str, Comparison]) -> None:
    """One waterfall below the other, in the order of the pairs, each with its finding."""
    figure = GAP.figure(shipped["all"])
    assert [axes.get_title(loc="left").replace("\u00a0", " ") for axes in figure.axes] == [
        "S=1024: math is 5.43x slower than flash; means 252.3 µs → 48.4 µs",
        "S=2048: math is 18.3x slower than flash; means 760.2 µs → 41.6 µs",
        "S=4096: math is 24.0x slower than flash; means 2.843 ms → 0.118 ms",
    ]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1


def test_more_pairs_than_fit_are_counted(trace: MakeTrace) -> None:
    """The largest differences are drawn, in their own order, and a note says how many are not."""
    items: list[Items] = []
    for n in range(MAX_PANELS + 3):
        for at, length in ((0, 500), (50_000, 500 - 40 * n)):
            start = 1000 * n + at
            items.append(Range(f"{'new' if at else 'old'}::k{n}", start, start + 900))
            items.append(launch_kernel("gemm", (start + 1, start + 2), (start + 9, start + 9 + length), id=start + 1))
    plan = plan_gap(answer(trace(*items), base="old::*", new="new::*"))
    assert [panel.title[:2] for panel in plan.panels] == [f"k{n}" for n in range(3, MAX_PANELS + 3)]
    assert plan.heading.notes[0] == "3 more pairs with smaller differences are not drawn"


def test_many_causes_become_one_step(trace: MakeTrace) -> None:
    """However many causes there are, the columns can be read, and what was put together adds up."""
    names = [f"void at::native::elementwise_kernel<128, 4, CUDAFunctor_{n}>(int)" for n in range(2)]
    names += ["ampere_sgemm_128x64_tn", "softmax_warp_forward", "void at::native::triu_tril_kernel<bool>(int)"]
    names += ["ncclDevKernel_AllReduce", "layer_norm_kernel", "bn_fw_tr", "distribution_elementwise", "cub::radix_sort"]
    names += ["max_pool_forward_nchw", "embedding_kernel", "multi_tensor_apply_kernel", "void reduce_kernel<512>(int)"]
    names += ["cat_array_batched", "indexSelectLargeIndex", "conv2d_fprop", "flash_fwd_kernel", "fill_kernel"]
    base = [(name, 40 + n) for n, name in enumerate(names)]
    found = answer(trace(*run("a", 0, base), *run("b", 9000, base[:1], first_id=90)), base="a", new="b")
    plan = plan_gap(found)
    assert len(plan.columns) <= MAX_STEPS + 3
    (panel,) = plan.panels
    if len(found.gaps) > MAX_STEPS:
        assert plan.columns[-2][0].endswith(" others")
    assert panel.after[-1] == pytest.approx(sum(panel.totals[1]))


def test_sides_that_are_alike_have_no_steps(trace: MakeTrace) -> None:
    """No difference: two bars, no per cent of nothing."""
    same = [("ampere_sgemm_128x64_tn", 100)]
    figure = GAP.figure(answer(trace(*run("a", 0, same), *run("b", 5000, same, first_id=50)), base="a", new="b"))
    assert title_of(figure) == "a is as fast as b, with too few samples for a verdict"
    assert not len(edges(figure.axes[0], "less"))
    assert not any("%" in text for text in texts(figure))


def test_a_side_that_is_a_thousand_times_faster_is_seen(trace: MakeTrace) -> None:
    """Its bar is two pixels high at least, and its number has two digits."""
    path = trace(
        Range("slow", 0, 90_000_000), launch_kernel("gemm", (1, 2), (1000, 60_001_000), id=1),
        Range("fast", 100_000_000, 100_090_000),
        launch_kernel("gemm", (100_000_001, 100_000_002), (100_000_003, 100_030_003), id=2),
    )  # fmt: skip
    figure = GAP.figure(answer(path, base="slow", new="fast"))
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    pixels = np.diff(edges(axes, "idle")[:, 1:]).ravel() / (high - low) * axes.bbox.height
    assert pixels.min() >= 1.9
    assert "0.030 ms" in texts(figure)


def test_no_clear_change_names_no_causes(shipped: dict[str, Comparison]) -> None:
    """What the test does not tell from chance is not explained in the title of its panel."""
    seen = []
    for name in ("fused", "same"):
        verdicts = shipped[name].pairs["verdict"].tolist()
        titles = [panel.title for panel in plan_gap(shipped[name]).panels]
        assert [("no clear change" in title) for title in titles] == [
            verdict == "no clear change" for verdict in verdicts
        ]
        seen += verdicts
    assert set(seen) == {"faster", "no clear change"}


def test_remarks_have_room_only_where_there_are_some(shipped: dict[str, Comparison]) -> None:
    """Columns of several pairs have none."""
    plan = plan_gap(shipped["S4096"])
    bare = replace(plan, columns=[(name, "") for name, _ in plan.columns])
    with_remarks, without = (draw_waterfalls(each).get_size_inches()[1] for each in (plan, bare))
    assert with_remarks > without
