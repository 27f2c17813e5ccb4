"""The charts: what their artists show, in numbers and in words; never pixels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.chart_rows import ChartRows, chart_rows, grouped
from nsysprof.analyze.charts import analysis_charts
from nsysprof.analyze.subject import group_colours
from nsysprof.analyze.timeline import timeline
from nsysprof.charts.chart import files_of, save_charts
from nsysprof.commands.analyze import PICTURES
from nsysprof.core.arrays import Floats
from nsysprof.kernels.classify import FAMILIES
from tests.conftest import MakeTrace
from tests.kit.figures import texts, title_of
from tests.kit.reports import BLOCK, RUN, broken_down
from tests.kit.trace import Items, Launch, OsCall, Range, launch_graph, launch_kernel, launch_memcpy, launch_memset

GEMM, SOFTMAX = "sm80_xmma_gemm_f32f32_f32f32_f32_tn", "void cunn_SoftMaxForward<int>"
CHARTS = analysis_charts()
COUNTS, BREAKDOWN, TIMELINE = CHARTS
UGLY = [
    "$\\alpha_{x}$ and $unclosed", "line\nbreak\ttab", "カーネル", "🚀 launch", "a" * 1000, str({"k": ["v"] * 200}), "",
    "/slash/in/name", "_under_ %s {x}", "x\x1b[31mred", "عربى", "\ufffe",
]  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Breakdown:
    """The breakdown of the shipped report, warm-up and checks included."""
    return broken_down(RUN)


@pytest.fixture(scope="module")
def measured() -> Breakdown:
    """What is measured in the shipped report."""
    return broken_down(RUN, select="RUN::*")


@pytest.fixture(scope="module", params=["all", "measured", "block"])
def real(request: pytest.FixtureRequest, run: Breakdown, measured: Breakdown) -> Breakdown:
    """Each of them, and the training step."""
    return {"all": run, "measured": measured}.get(request.param) or broken_down(BLOCK)


def rows_of(breakdown: Breakdown, top: int = 20) -> ChartRows:
    """The rows of a report that has some."""
    rows = chart_rows(breakdown, top)
    assert rows is not None
    return rows


def bars(axes: Axes, count: int) -> dict[str, Floats]:
    """The width of each row's part, by the label of the artist."""
    out: dict[str, Floats] = {}
    for artist in axes.collections:
        if isinstance(artist, PolyCollection):
            widths = out.setdefault(str(artist.get_label()), np.zeros(count))
            for path in artist.get_paths():
                corners = np.asarray(path.vertices)
                widths[round(corners[:, 1].mean() if len(corners) == 4 else corners[:4, 1].mean())] += (
                    corners[:, 0].max() - corners[:, 0].min()
                )
    return out


def calls(count: int, at: int, *, first: int = 1, name: str = GEMM, length: int = 5) -> Iterator[Items]:
    """Launches, ten ns apart, of kernels of `length` ns."""
    for n in range(count):
        yield launch_kernel(
            name, (at + 10 * n, at + 10 * n + 1), (at + 10 * n + 2, at + 10 * n + 2 + length), id=first + n
        )


def loop() -> list[Items]:
    """Three steps, each with a forward and a backward range and one kernel of its own."""
    out: list[Items] = []
    for step in range(3):
        at = 1000 * step
        out += [
            Range(f"step {step}", at, at + 900),
            Range("forward", at, at + 300),
            Range("backward", at + 400, at + 800),
        ]
        out += calls(5, at, first=100 * step + 1)
        out += calls(8, at + 400, first=100 * step + 10, name=SOFTMAX)
        out += calls(1, at + 850, first=100 * step + 50)
    return out


def test_the_command_knows_the_files_of_charts_that_it_does_not_draw() -> None:
    """By these it finds out what an earlier run left in the folder."""
    assert files_of(CHARTS) == PICTURES


def test_rows_of_the_shipped_report_are_its_eighteen_runs(measured: Breakdown) -> None:
    """Backends are compared as they are, the longest first; their iterations are the calls."""
    rows = rows_of(measured)
    backends = ("math", "math_reduced", "flash", "efficient", "cudnn", "auto")
    assert sorted(rows.labels) == sorted(f"RUN::{name}::S{size}" for size in (1024, 2048, 4096) for name in backends)
    assert rows.labels[:2] == ["RUN::math::S4096", "RUN::math_reduced::S4096"]
    assert rows.calls.tolist() == [40] * 18
    assert rows.unit == "instance (iter*)"
    top = measured.merged[measured.merged["depth"] == 0]
    assert rows.busy_ns.tolist() == sorted(top["busy_ns"].tolist(), reverse=True)
    assert rows.sum_ns.sum() == measured.merged["exclusive_sum_ns"].sum()


def test_warm_up_and_checks_are_one_row_behind_the_runs(run: Breakdown) -> None:
    """Of 54 outermost ranges the 18 that were measured are shown, the longest first; the others add up."""
    rows = rows_of(run)
    top = run.merged[run.merged["depth"] == 0]
    assert len(top) == 54
    by_time = top.sort_values("busy_ns", ascending=False)
    measured = [name for name in by_time["name"] if name.startswith("RUN::")]
    assert rows.labels == [*measured, "… and 36 more ranges"]
    assert rows.calls.tolist() == [*[40] * 18, 36]
    assert rows.busy_ns.sum() == top["busy_ns"].sum()
    assert rows.sum_ns.sum() == run.merged["exclusive_sum_ns"].sum()


def test_a_loop_is_shown_by_the_parts_of_its_step(trace: MakeTrace) -> None:
    """The range that holds everything gives way to its children, and what is left of it is a row: all adds up."""
    breakdown = broken_down(trace(*loop()))
    rows = rows_of(breakdown)
    assert rows.labels == ["step*/backward", "step*/forward", "step* itself"]
    assert rows.kernels.tolist() == [24, 15, 3]
    assert rows.launches.tolist() == [24, 15, 3]
    assert rows.calls.tolist() == [3, 3, 3]
    assert rows.busy_ns.tolist() == [120, 75, 15]
    assert rows.sum_ns.sum() == breakdown.merged["exclusive_sum_ns"].sum()


def test_what_a_range_launches_itself_counts_overlaps_once(trace: MakeTrace) -> None:
    """The busy time of an "itself" row is a union per instance and GPU, not a sum."""
    items = [Range("all", 0, 900), Range("a", 0, 100), Range("b", 200, 300), *calls(3, 0), *calls(3, 200, first=10)]
    items += [
        launch_kernel(GEMM, (400 + n, 401 + n), (500 + 10 * n, 520 + 10 * n), id=20 + n, stream=n) for n in range(2)
    ]
    rows = rows_of(broken_down(trace(*items)), 20)
    assert rows.labels[0] == "all"  # b and a hold less than half of it, so it stays whole
    items += [*calls(9, 10, first=40, length=9), *calls(9, 210, first=60, length=9)]
    rows = rows_of(broken_down(trace(*items)))
    assert rows.labels == ["all/a", "all/b", "all itself"]
    assert rows.busy_ns[2] == 30
    assert rows.sum_ns[2].sum() == 40


def test_a_range_and_its_only_child_are_one_row(trace: MakeTrace) -> None:
    """A chain of only children is shown once, by its outermost range."""
    rows = rows_of(broken_down(trace(Range("main", 0, 90), Range("train", 1, 80), *calls(2, 2))))
    assert rows.labels == ["main"]


def test_of_200_ranges_the_rest_is_a_row_that_adds_up(trace: MakeTrace) -> None:
    """The top rows and the one that stands for the others have all the time, ops and launches."""
    items: list[Items] = []
    for n in range(200):
        items += [Range(f"r{n}", 1000 * n, 1000 * n + 900), *calls(1 + n % 3, 1000 * n, first=10 * n + 1)]
    breakdown = broken_down(trace(*items))
    rows = rows_of(breakdown)
    assert len(rows) == 21
    assert rows.labels[-1] == "… and 180 more ranges"
    for name in ("busy_ns", "span_ns", "launches", "kernels"):
        assert getattr(rows, name).sum() == breakdown.merged[name].sum()
    assert rows.calls.sum() == 200


def test_a_rest_of_one_is_shown_itself(trace: MakeTrace) -> None:
    """Nobody is told of "1 more" where there is room for it."""
    items = [
        item for n in range(3) for item in (Range(f"r{n}", 100 * n, 100 * n + 90), *calls(1, 100 * n, first=n + 1))
    ]
    assert rows_of(broken_down(trace(*items)), top=2).labels == ["r0", "r1", "r2"]


def test_without_ranges_the_rows_are_kernels(trace: MakeTrace) -> None:
    """A report without NVTX is broken down by kernel name, longest first."""
    rows = rows_of(broken_down(trace(*calls(2, 0), *calls(3, 100, first=10, name=SOFTMAX))))
    assert (rows.of, rows.labels) == ("kernels", ["cunn_SoftMaxForward int", GEMM])
    assert rows.sum_ns.sum(axis=1).tolist() == [15, 10]


def test_rows_split_by_process_name_it(trace: MakeTrace) -> None:
    """With `by="process"` each row says whose range it is."""
    items = [
        item
        for pid in (4, 5)
        for item in (Range("r", 0, 90, process=pid), launch_kernel(GEMM, (1, 2), (3, 9), id=1, process=pid, device=pid))
    ]
    assert rows_of(broken_down(trace(*items), by="process")).labels == ["pid 4: r", "pid 5: r"]


def test_bars_of_the_breakdown_are_the_busy_times(real: Breakdown) -> None:
    """The parts of a bar add up to the row's busy time, and each is its family's time."""
    rows = rows_of(real)
    totals, shares = BREAKDOWN.figure(real).axes
    found = bars(totals, len(rows))
    for number, family in enumerate(FAMILIES):
        there = found.get(family, np.zeros(len(rows)))
        np.testing.assert_allclose(there, rows.sum_ns[:, number] / 1e6, atol=1e-9)
    np.testing.assert_allclose(np.sum(list(found.values()), axis=0), rows.busy_ns / 1e6)
    found = bars(shares, len(rows))
    np.testing.assert_allclose(found["idle"], rows.idle_ns / rows.span_ns, atol=1e-9)
    np.testing.assert_allclose(np.sum(list(found.values()), axis=0), np.ones(len(rows)))


def test_bars_of_the_counts_are_ops_per_call(real: Breakdown) -> None:
    """A bar is as long as there are ops per call, and the marks are where the launches are."""
    rows = grouped(rows_of(real))
    (axes,) = COUNTS.figure(real).axes
    found = bars(axes, len(rows))
    length = np.sum(list(found.values()), axis=0)
    np.testing.assert_allclose(length, rows.ops.sum(axis=1) / rows.calls)
    (marks,) = [artist for artist in axes.collections if artist.get_label() == "launches (host calls)"]
    at = [float(np.asarray(path.vertices)[0, 0]) for path in marks.get_paths()]
    assert np.isnan(at[rows.rest or 0]) == any("cut off" in text for text in texts(COUNTS.figure(real)))
    some = np.isfinite(at)
    assert some[rows.named].all()
    assert np.array(at)[some] == pytest.approx((rows.launches / rows.calls)[some])


def test_bars_of_the_counts_are_those_of_the_backends(measured: Breakdown) -> None:
    """Math runs twenty kernels per call, flash two at S=1024, cuDNN one and a memset."""
    (axes,) = COUNTS.figure(measured).axes
    labels = grouped(rows_of(measured)).labels
    found = bars(axes, len(labels))
    every = "::S{4096, 2048, 1024}"
    names = f"math{every}", "math_reduced::S1024", "flash::S1024", f"efficient{every}", f"cudnn{every}"
    small = [labels.index(f"RUN::{name}") for name in names]
    np.testing.assert_allclose(np.sum(list(found.values()), axis=0)[small], [20, 15, 2, 1, 2])
    np.testing.assert_allclose(found["memset"][small], [0, 0, 0, 0, 1])


def test_overlapping_families_are_scaled_to_the_busy_time(trace: MakeTrace) -> None:
    """Two kernels at a time make a bar as long as the time in which either runs, and a note says so."""
    figure = BREAKDOWN.figure(
        broken_down(
            trace(
                Range("r", 0, 90),
                launch_kernel(GEMM, (1, 2), (10, 40), id=1, stream=1),
                launch_kernel(SOFTMAX, (3, 4), (20, 50), id=2, stream=2),
            )
        )
    )
    found = bars(figure.axes[0], 1)
    assert (found["gemm"][0], found["softmax"][0]) == pytest.approx((20, 20))
    assert any("scaled to add up to busy time" in text for text in texts(figure))


def test_several_gpus_show_no_idle_time(trace: MakeTrace) -> None:
    """Busy time that is added over GPUs can exceed the span: no negative idle time, and a note."""
    items = [launch_kernel(GEMM, (n + 1, n + 2), (10, 50), id=n + 1, device=n) for n in range(3)]
    breakdown = broken_down(trace(Range("r", 0, 90), *items))
    assert rows_of(breakdown).idle_ns.tolist() == [0]
    figure = BREAKDOWN.figure(breakdown)
    assert "idle" not in bars(figure.axes[1], 1)
    assert any("summed over GPUs" in text for text in texts(figure))


def test_a_long_rest_does_not_hide_the_ranges(trace: MakeTrace) -> None:
    """The axis ends with the longest single range; the bar of all others is cut and says so."""
    items = [
        item for n in range(40) for item in (Range(f"r{n}", 100 * n, 100 * n + 90), *calls(1, 100 * n, first=n + 1))
    ]
    figure = analysis_charts(2)[1].figure(broken_down(trace(*items)))
    assert figure.axes[0].get_xlim()[1] == pytest.approx(5 * 1.02)
    assert any("cut off" in text for text in texts(figure))


def test_streams_of_the_timeline_are_pictures(run: Breakdown) -> None:
    """However many ops: a stream is one picture, and the marks of range lanes are bounded."""
    figure = TIMELINE.figure(run)
    overview = figure.axes[0]
    assert [image.get_label() for image in overview.images] == ["GPU 0 · stream 7"]  # stream 14 has one memset
    marks = [artist for artist in overview.collections if isinstance(artist, PolyCollection)]
    assert [artist.get_label() for artist in marks] == [
        f"pid 515 · level {level} · {where}" for where in ("host", "on the GPU") for level in (1, 2)
    ]
    assert max(len(artist.get_paths()) for artist in marks) <= 2000


def test_the_zoom_has_a_box_per_op(run: Breakdown) -> None:
    """Each of the twenty kernels of a call is drawn where it ran, beside those of its neighbours."""
    zoom = TIMELINE.figure(run).axes[-1]
    (stream,) = [artist for artist in zoom.collections if artist.get_label() == "GPU 0 · stream 7"]
    shown = timeline(run, columns=100).zoom
    assert shown is not None
    assert int(shown.ops["own"].sum()) == 20
    assert 20 < len(stream.get_paths()) == len(shown.ops["own"])
    assert 2_800_000 < zoom.get_xlim()[1] < 3_100_000


def numbers_below(axes: Axes) -> list[str]:
    """The numbers of an axis, from left to right."""
    _, below = axes.get_xaxis_transform().inverted().transform((0, axes.bbox.y0 - 1))
    ticks = [
        text
        for text in axes.texts
        if text.get_verticalalignment() == "top" and text.get_horizontalalignment() == "center"
    ]
    assert all(text.get_position()[1] < below for text in ticks)
    return [text.get_text() for text in sorted(ticks, key=lambda text: text.get_position()[0])]


def test_axes_are_numbered_from_zero_to_their_ends(measured: Breakdown) -> None:
    """Whole numbers where things are counted, per cent where there are shares, each with a line upwards."""
    (counts,) = COUNTS.figure(measured).axes
    totals, shares = BREAKDOWN.figure(measured).axes
    assert numbers_below(counts) == ["0", "4", "8", "12", "16", "20"]
    assert numbers_below(totals) == ["0", "20", "40", "60", "80", "100"]
    assert numbers_below(shares) == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    assert numbers_below(TIMELINE.figure(measured).axes[0])[:3] == ["0", "0.25", "0.5"]
    lines = [artist for artist in totals.collections if isinstance(artist, LineCollection)]
    assert [[float(line[0, 0]) for line in artist.get_segments()] for artist in lines] == [[0, 20, 40, 60, 80, 100]] * 2


def names_in(axes: Axes) -> list[str]:
    """What is written into the boxes of a panel of lanes."""
    return [
        text.get_text()
        for text in axes.texts
        if text.get_verticalalignment() == "center_baseline" and text.get_horizontalalignment() == "center"
    ]


def test_kernels_of_no_family_are_called_by_their_names(trace: MakeTrace) -> None:
    """In the zoom "other" would tell nobody anything; known causes stay what they are."""
    figure = TIMELINE.figure(
        broken_down(
            trace(
                Range("r", 0, 90),
                launch_kernel("void mine::frobnicate_kernel<float>(int)", (1, 2), (10, 50), id=1),
                launch_kernel(GEMM, (3, 4), (50, 90), id=2),
            )
        )
    )
    assert names_in(figure.axes[-1]) == ["r", "frobnicate float", "gemm"]


def named_kernels() -> list[Items]:
    """A range with twelve kernels of which no rule knows anything, copies and a GEMM, that are most of the time."""
    out: list[Items] = [Range("solve", 0, 5000)]
    for n in range(12):
        at = 200 + 100 * n
        out.append(launch_kernel(f"zork_{n}(float*)", (at, at + 1), (at + 2, at + 90 - 7 * n), id=n + 1))
    out.append(launch_kernel(GEMM, (2000, 2001), (2002, 2030), id=50))
    out.append(launch_memcpy((4200, 4201), (4202, 4900), id=60))
    return out


def test_kernels_that_no_rule_knows_are_coloured_by_name(trace: MakeTrace) -> None:
    """All charts tell the longest by name, with one colour in all; bars have all the time, and titles the names."""
    breakdown = broken_down(trace(*named_kernels()))
    groups, rows = breakdown.groups, rows_of(breakdown)
    names = [f"zork_{n}" for n in range(8)]
    assert groups.labels == (*names, "other kernels", "memcpy", "memset", "migration", "graph")
    assert len(set(group_colours(groups))) == len(groups.labels)
    assert rows.sum_ns.sum() == breakdown.merged["exclusive_sum_ns"].sum()
    charts = [chart.figure(breakdown) for chart in CHARTS]
    for chart in charts:
        assert {*names, "other kernels", "memcpy"} <= set(texts(chart))
        assert "elementwise" not in texts(chart)
        assert "each kernel name has its own colour" in " ".join(texts(chart)).lower()
    assert "53 % of it memcpy, 6.7 % zork_0, 6.1 % zork_1" in title_of(charts[1])
    drawn = bars(charts[0].axes[0], len(rows))
    assert {name: widths[0] for name, widths in drawn.items()} == {
        **dict.fromkeys(names, 1),
        "other kernels": 5,
        "memcpy": 1,
    }


def test_copies_do_not_decide_what_kernels_are_told_apart_by(trace: MakeTrace) -> None:
    """Half of the kernels' time in known families is enough for families, however much is copied."""
    items: list[Items] = [
        launch_kernel("zork", (0, 1), (10, 20), id=1),
        launch_kernel(GEMM, (2, 3), (30, 40), id=2),
        launch_memcpy((4, 5), (50, 5000), id=3),
    ]
    assert not broken_down(trace(*items)).groups.by_name
    items.append(launch_kernel("zork", (6, 7), (6000, 6001), id=4))
    assert broken_down(trace(*items)).groups.by_name


def test_every_lane_gets_its_share_of_the_names(trace: MakeTrace) -> None:
    """A name stands in every box that has room for it, in the lanes of all processes."""
    items: list[Items] = []
    for process in range(1, 9):
        for n in range(12):
            at = 100 * n
            items.append(Range(f"s{n}", at, at + 90, process=process))
            items.append(launch_kernel(GEMM, (at, at + 1), (at, at + 80), id=n + 1, process=process, device=process))
    overview = TIMELINE.figure(broken_down(trace(*items))).axes[0]
    lanes = {text.get_position()[1] for text in overview.texts if text.get_text().startswith("s")}
    assert len(lanes) == 16
    assert len(names_in(overview)) == 16 * 12


def test_titles_of_the_shipped_report_state_the_findings(run: Breakdown, measured: Breakdown) -> None:
    """Each title is a sentence with the numbers that matter."""
    assert [title_of(chart.figure(measured)) for chart in CHARTS[:2]] == [
        "20 kernels per instance in RUN::math::S{4096, 2048, 1024},"
        " 1 in RUN::efficient::S{4096, 2048, 1024} and 3 more",
        "RUN::math::S4096 takes 42 % of GPU op time in ranges: 32 % of it gemm, 22 % elementwise, 18 % mask",
    ]
    assert title_of(BREAKDOWN.figure(run)) == (
        "RUN::math::S4096 takes 24 % of GPU op time in ranges: 32 % of it gemm, 22 % elementwise, 18 % mask"
    )
    assert title_of(TIMELINE.figure(run)) == (
        "The GPU is busy for 22 % of the 2.13 s from the first GPU op to the last; the longest wait is 77.4 ms"
    )


def test_the_subtitle_says_what_was_measured(run: Breakdown) -> None:
    """File, GPU, nsys, how much, and what is not covered stand below every title."""
    strict = broken_down(BLOCK, "strict")
    expected = (
        (run, "run.sqlite · NVIDIA H200 · nsys 2025.3.2.0 · 7,655 kernels · 795 ranges"),
        (
            strict,
            "block.sqlite · NVIDIA H200 · nsys 2025.3.2.0 · 3,737 kernels · 569 ranges"
            " · 39 % of GPU op time is outside all ranges",
        ),
    )
    for answer, subtitle in expected:
        for chart in CHARTS:
            assert subtitle in [text.replace("\u00a0", " ") for text in texts(chart.figure(answer))]


@pytest.mark.parametrize(
    ("items", "counts", "breakdown"),
    [
        (
            [Range("only", 0, 90), *calls(2, 0, length=8)],
            "only runs 2 kernels",
            "only takes all of GPU op time in ranges: all of it gemm",
        ),
        (
            [Range("a", 0, 90), *calls(2, 0), Range("b", 100, 190), *calls(2, 100, first=9)],
            "All 2 ranges run 2 kernels",
            "Each of the top 2 ranges keeps the GPU busy for 10 ns, first a: all of it gemm",
        ),
        (
            [Range("zero", 0, 90), launch_kernel(GEMM, (1, 2), (5, 5), id=1)],
            "zero runs 1 kernel",
            "The GPU work takes no time",
        ),
        (
            [Range("idle", 0, 900), *calls(1, 0), *calls(1, 90, first=2)],
            "idle runs 2 kernels",
            "idle takes all of GPU op time in ranges: all of it gemm",
        ),
        (
            [Range("graph", 0, 900), launch_graph((0, 1), (5, 9), id=1)],
            "graph runs 1 GPU operation",
            "graph takes all of GPU op time in ranges: all of it graph",
        ),
        (
            [*calls(1, 0), *calls(1, 50, first=2, name=SOFTMAX)],
            "2 kernels run 1 time each, more often than any other",
            "Each of the top 2 kernels takes 50 % of op time",
        ),
        (
            [*calls(3, 0), *calls(1, 50, first=9, name="rare")],
            f"{GEMM} runs 3 times, more often than any other",
            f"{GEMM} takes 75 % of 20 ns op time",
        ),
        ([*loop()], "8 kernels per instance in step*/backward, 1 in step* itself", None),
    ],
)
def test_titles_are_true_for_any_data(trace: MakeTrace, items: list[Items], counts: str, breakdown: str | None) -> None:
    """One range, ties, no time, idle ranges, graphs and reports without NVTX have titles that hold."""
    answer = broken_down(trace(*items))
    assert title_of(COUNTS.figure(answer)) == counts
    if breakdown is not None:
        assert title_of(BREAKDOWN.figure(answer)) == breakdown


def test_launches_and_memory_ops_have_columns(trace: MakeTrace) -> None:
    """The numbers beside the bars tell kernels, copies and sets, and launches apart."""
    figure = COUNTS.figure(broken_down(trace(Range("r", 0, 90), *calls(3, 0), launch_memset((50, 51), (60, 61), id=9))))
    found = texts(figure)
    assert found[found.index("kernels") + 1] == "3"
    assert found[found.index("copies, sets") + 1] == "1"
    assert found[found.index("launches") + 1] == "4"


def test_a_report_without_work_says_what_to_do(trace: MakeTrace) -> None:
    """Neither GPU work nor ranges nor calls is a picture with words."""
    breakdown = broken_down(trace())
    for chart in CHARTS:
        figure = chart.figure(breakdown)
        assert title_of(figure) == "This report has no GPU work"
        assert any("nsys profile --trace=cuda,nvtx" in text for text in texts(figure))


def test_ranges_without_gpu_work_are_drawn_by_cpu_time(trace: MakeTrace) -> None:
    """Bars are what ranges take, alone and with those inside, and the median instance with a mark at the longest."""
    items = [Range("step", at, at + length) for at, length in ((0, 100), (200, 300), (600, 200))]
    breakdown = broken_down(trace(*items, Range("inner", 210, 460), duration=1_000_000))
    assert title_of(BREAKDOWN.figure(breakdown)) == "58 % of the CPU time in ranges is spent in step itself"
    assert title_of(COUNTS.figure(breakdown)) == "The longest instance of step takes 300 ns, the median one 200 ns"
    assert {"600 ns", "250 ns", "350 ns", "100 %", "42 %"} <= set(texts(BREAKDOWN.figure(breakdown)))
    assert title_of(TIMELINE.figure(breakdown)) == "4 ranges on the host and no GPU work at all"
    assert [chart.caption for chart in analysis_charts(breakdown=breakdown)][:2] == [
        "CPU time per instance of ranges",
        "CPU time of ranges",
    ]


def test_where_nobody_annotated_calls_of_the_host_are_drawn(trace: MakeTrace) -> None:
    """A lane of each thread with CUDA calls, coloured by what it did, from the first call on, with names."""
    path = trace(
        Launch(0, 700_000, 90, api="cudaMalloc_v3020"),
        *calls(3, 800_000),
        OsCall("read", 710_000, 790_000),
        OsCall("poll", 0, 900_000, thread=77),
    )
    breakdown = broken_down(path)
    answer = timeline(breakdown)
    assert [lane.label for lane in answer.hosts] == ["thread 1 · calls"]
    [lane] = answer.hosts
    assert answer.start_ns == 0
    assert [lane.names[code] for code in lane.name.tolist()].count("read") == 1
    figure = TIMELINE.figure(breakdown)
    assert {"other CUDA calls", "launch calls", "OS calls", "cudaMalloc"} <= set(texts(figure))
    assert "of set-up, 700 µs of it in cudaMalloc" in title_of(figure)
    annotated = broken_down(trace(Range("r", 800_000, 900_000), *calls(3, 800_000)))
    assert not timeline(annotated).hosts


def test_ugly_names_are_drawn_as_they_are(trace: MakeTrace, tmp_path: Path) -> None:
    """Dollars start no formula, and what the font lacks makes no warning; labels stay short."""
    items: list[Items] = []
    for n, name in enumerate(UGLY):
        items += [Range(name, 1000 * n, 1000 * n + 900), *calls(2, 1000 * n, first=10 * n + 1, name=f"{name}<int>")]
    breakdown = broken_down(trace(*items))
    rows = rows_of(breakdown)
    drawn = texts(BREAKDOWN.figure(breakdown))
    assert all(text in drawn for text in ("$\\alpha_{x}$ and $unclosed", "line break tab", "□□□□", "□ launch"))
    assert rows.labels[6] == "(no name)"
    assert max(map(len, rows.labels)) <= 46
    for path in save_charts(CHARTS, breakdown, tmp_path / "charts"):
        assert path.stat().st_size > 10_000


def test_users_settings_neither_matter_nor_change(trace: MakeTrace, tmp_path: Path) -> None:
    """A user's own matplotlib style changes no chart, and is what it was afterwards."""
    breakdown = broken_down(trace(*loop()))
    plain = [path.read_bytes() for path in save_charts(CHARTS, breakdown, tmp_path / "plain")]
    odd: dict[Any, Any] = {
        "text.usetex": True,
        "axes.facecolor": "black",
        "font.size": 30,
        "figure.autolayout": True,
        "axes.grid": True,
    }
    with matplotlib.rc_context(odd):
        before = dict(matplotlib.rcParams)
        assert [path.read_bytes() for path in save_charts(CHARTS, breakdown, tmp_path / "odd")] == plain
        assert dict(matplotlib.rcParams) == before


def test_rows_that_run_the_same_share_one(run: Breakdown) -> None:
    """Lengths of one backend with equal kernels are one row with all in braces; other kernels stay apart."""
    rows = chart_rows(run, 20)
    assert rows is not None
    one = grouped(rows)
    assert one.labels[0] == "RUN::math::S{4096, 2048, 1024}"
    assert "RUN::math_reduced::S1024" in one.labels  # no memset, unlike the longer ones
    assert one.rest == len(one) - 1
    for name in ("ops", "sum_ns", "kernels", "busy_ns"):
        assert getattr(one, name).sum() == getattr(rows, name).sum()
