"""The charts of a benchmark: what their artists show, in numbers and in words; never pixels."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from nsysprof.bench.charts import BENCH_CHARTS, SELECTION, bench_charts
from nsysprof.bench.lines import LOOKS, OTHER_LOOK, backend_looks
from nsysprof.bench.results import BenchResults
from nsysprof.charts.marks import Bars, Heat
from nsysprof.charts.palette import readable
from nsysprof.charts.style import size_of
from nsysprof.core.units import format_ratio, format_share
from tests.bench.conftest import ALL
from tests.kit.bench_samples import made_up, merged, point_of, results_of
from tests.kit.figures import SIGHT, contrast, lab, texts, title_of

LATENCY, SPEEDUP, MEMORY, THROUGHPUT, ROOFLINE, VIOLINS = BENCH_CHARTS


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> BenchResults:
    """Over S, over batches and over heads."""
    parts = [made_up(ALL, (128, 512, 2048), batch=32, samples=12)]
    parts += [made_up(ALL, (512,), batch=batch, samples=12) for batch in (8, 64)]
    parts += [made_up(ALL, (512,), batch=32, heads=heads, samples=12) for heads in (4, 16)]
    return results_of(tmp_path_factory.mktemp("grid"), merged(*parts))


def lines_of(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """x and y of the lines that have a name."""
    return {
        str(line.get_label()): (list(np.asarray(line.get_xdata())), list(np.asarray(line.get_ydata())))
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def column(results: BenchResults, backend: str, name: str) -> list[float]:
    """A column of one backend along S."""
    frame = results.results
    return [float(value) for value in frame[frame["backend"] == backend].sort_values("seq")[name]]


def test_latency_lines_are_the_medians_with_their_bands(sweep: BenchResults) -> None:
    """A solid line per backend, a dotted one per graph, and the interval as a band around each."""
    (axes,) = LATENCY.figure(sweep).axes
    lines = lines_of(axes)
    scales = [axis.get_scale() for axis in (axes.xaxis, axes.yaxis)]
    assert scales == ["log", "log"]
    assert list(lines["flash fp16"]) == [column(sweep, "flash", name) for name in ("seq", "median_ns")]
    assert lines["math fp16 graph"][1] == column(sweep, "math", "graph_median_ns")
    assert "auto fp16 graph" not in lines
    lows = column(sweep, "flash", "low_ns")
    bands = [np.asarray(path.vertices) for band in axes.collections for path in band.get_paths()]
    assert any(set(lows) <= set(corners[:, 1].tolist()) for corners in bands)


def test_the_title_states_the_finding(sweep: BenchResults) -> None:
    """Who is fastest from where on, and by how much."""
    assert title_of(LATENCY.figure(sweep)).startswith("cudnn is fastest from S=2048 on (flash at S=256 to 1024): 7")
    assert " as fast as math at S=4096 (" in title_of(LATENCY.figure(sweep))
    assert title_of(MEMORY.figure(sweep)).startswith(
        "math needs 96.3x the memory of flash at S=4096; its temporaries grow as S^2.00"
    )
    assert title_of(THROUGHPUT.figure(sweep)).startswith("cudnn reaches 43")
    assert "of the peak; math 5.7" in title_of(THROUGHPUT.figure(sweep))
    assert title_of(SPEEDUP.figure(sweep)).startswith("cudnn over math: 7.")
    assert "of the FLOP/s at S=4096; math 0.5 %, and 22 % of the bandwidth" in title_of(ROOFLINE.figure(sweep))
    assert "compared with themselves, 0 of 25 differ" in title_of(VIOLINS.figure(sweep))


def test_crossings_are_marked_where_the_lines_cross(sweep: BenchResults) -> None:
    """A ring on the line, at the crossing of the table, with words beside it."""
    (axes,) = LATENCY.figure(sweep).axes
    rings = [line for line in axes.lines if line.get_label() == "crossing"]
    table = sweep.crossovers[(sweep.crossovers["kind"] == "eager") & (sweep.crossovers["winner"] == "cudnn")]
    crossing = float(table.set_index("loser")["crossing_seq"]["flash"])
    assert crossing in [float(np.asarray(ring.get_xdata())[0]) for ring in rings]
    assert f"cudnn passes flash near S={crossing:.0f}" in [text.get_text() for text in axes.texts]


def test_throughput_lies_below_its_ceilings(sweep: BenchResults) -> None:
    """The peak at the sampled clock and the measured one, each with its number."""
    figure = THROUGHPUT.figure(sweep)
    (axes,) = figure.axes
    assert lines_of(axes)["cudnn fp16"][1] == column(sweep, "cudnn", "tflops")
    assert "fp16 peak 1,071" in texts(figure)
    assert "fp16 measured 740" in texts(figure)


def test_speedups_are_those_of_the_table(sweep: BenchResults) -> None:
    """Over math, eager and without launches; math itself has no line."""
    (axes,) = SPEEDUP.figure(sweep).axes
    lines = lines_of(axes)
    pairs = sweep.comparisons[(sweep.comparisons["base"] == "math") & (sweep.comparisons["new"] == "flash")]
    for kind, label in (("eager", "flash fp16"), ("graph", "flash fp16 graph")):
        expected = pairs[pairs["kind"] == kind].sort_values("seq")["speedup"].tolist()
        assert lines[label][1] == pytest.approx(expected)
    assert "math fp16" not in lines


def test_each_sweep_has_a_panel(grid: BenchResults) -> None:
    """Named by what stays the same, with the axis by what varies."""
    figure = LATENCY.figure(grid)
    assert [axes.get_xlabel() for axes in figure.axes] == ["sequence length S", "batch B", "heads H"]
    for name in ("B32 H8 D64 causal", "S512 H8 D64 causal", "S512 B32 D64 causal"):
        assert name in texts(figure)
    assert lines_of(figure.axes[1])["flash fp16"][0] == [8, 32, 64]


def test_memory_shows_where_it_ran_out(mixed: BenchResults) -> None:
    """The GPU's memory as a line, a cross at the length that did not fit, and the last size that did."""
    figure = MEMORY.figure(mixed)
    (axes,) = figure.axes
    crosses = [line for line in axes.lines if line.get_label() == "out of memory"]
    assert {float(np.asarray(cross.get_xdata())[0]) for cross in crosses} == {32768}
    assert {float(np.asarray(cross.get_ydata())[0]) for cross in crosses} == {150e9}
    found = texts(figure)
    assert "GPU 140 GiB" in found
    assert "naive fp16 64.5 GiB" in found
    assert any("crosses: out of memory" in text for text in found)


def test_dtypes_differ_by_the_line(mixed: BenchResults) -> None:
    """Solid for the dtype of most points, dashed for the other, with a note."""
    figure = LATENCY.figure(mixed)
    styles = {str(line.get_label()): line.get_linestyle() for line in figure.axes[0].lines}
    assert styles["naive fp16"] == "-"
    assert styles["naive fp32"] == "--"
    assert any("solid: fp16, dashed: fp32" in text for text in texts(figure))


def test_the_roofline_bends_where_memory_gives_way(sweep: BenchResults) -> None:
    """Both ceilings, each with its ridge at FLOP/s over bandwidth; no point above the datasheet's."""
    (axes,) = ROOFLINE.figure(sweep).axes
    lines = lines_of(axes)
    peak, slope = 132 * 1980e6 * 4096 / 1e12, 2 * 3201e6 * 6144 / 8 / 1e9
    x, y = lines["fp16 peak 1,071 TFLOP/s"]
    assert x[0] == pytest.approx(peak / slope * 1e3)
    assert y == [pytest.approx(peak)] * 2
    x, y = lines["4.92 TB/s (measured 4.10 TB/s)"]
    assert y == pytest.approx([at * slope / 1e3 for at in x])
    assert lines["fp16 measured 740 TFLOP/s"][0][0] == pytest.approx(740 / 4100 * 1e3)
    for backend in ("math", "flash"):
        intensity, reached = lines[backend]
        assert intensity == column(sweep, backend, "intensity")
        assert reached == column(sweep, backend, "graph_tflops")
        assert all(each <= min(peak, at * slope / 1e3) for at, each in zip(intensity, reached, strict=True))


def test_without_peaks_the_roofline_is_words(tmp_path: Path) -> None:
    """And the words say what to do."""
    figure = ROOFLINE.figure(results_of(tmp_path, made_up(seqs=(64, 128), device="cpu", samples=12)))
    assert title_of(figure) == "No roofline: the peaks of this device are unknown"
    assert "Measure them with:  nsysprof bench --measure-peaks" in texts(figure)
    assert figure.axes == []


def test_violins_show_three_lengths_with_their_counts(sweep: BenchResults) -> None:
    """The smallest, the middle and the largest; samples above, the second set below, n and CV beside."""
    figure = VIOLINS.figure(sweep)
    found = texts(figure)
    assert [name for name in found if name in ("S256", "S512", "S1024", "S2048", "S4096")] == ["S256", "S1024", "S4096"]
    assert sum("n 50, CV" in text for text in found) == 3 * 5
    for axes in figure.axes:
        halves = [band for band in axes.collections if band.get_label() == "violin"]
        assert len(halves) == 2 * 5


def test_ticks_of_violins_are_apart(sweep: BenchResults) -> None:
    """At least one on either side of the median, and none in reach of its neighbour."""
    for axes in VIOLINS.figure(sweep).axes:
        ticks = [text for text in axes.texts if text.get_text() == "0" or text.get_text()[:1] in "+-"]
        places = [text.get_position()[0] for text in ticks]
        assert len(places) >= 3
        assert 0 in places
        low, high = axes.get_xlim()
        assert np.diff(places).min() / (high - low) * size_of(axes)[0] > 0.5


def test_violins_of_several_dtypes_show_one(mixed: BenchResults) -> None:
    """That of most points, at three lengths."""
    assert [name.split()[1] for name in texts(VIOLINS.figure(mixed)) if name.startswith("S")][:3] == ["fp16"] * 3


def test_the_title_of_the_roofline_is_about_its_points(sweep: BenchResults) -> None:
    """Which are those of graphs; and its names stand outside of the paths."""
    best = sweep.results[sweep.results["backend"] == "cudnn"].sort_values("seq").iloc[-1]
    share = format_share(best["graph_tflops"] / best["peak_tflops"])
    assert title_of(ROOFLINE.figure(sweep)).startswith(f"cudnn reaches {share} of the FLOP/s")


def test_auto_is_drawn_where_it_stands_for_a_backend(mixed: BenchResults, sweep: BenchResults) -> None:
    """With its graphs and in the roofline, and named by what it came to."""
    assert "auto fp16 graph" in lines_of(LATENCY.figure(mixed).axes[0])
    assert "auto" in lines_of(ROOFLINE.figure(mixed).axes[0])
    assert "auto" not in lines_of(ROOFLINE.figure(sweep).axes[0])
    assert title_of(SPEEDUP.figure(mixed)).startswith("auto (cudnn) over naive")


def test_samples_that_were_left_out_are_counted(tmp_path: Path) -> None:
    """Beside the violin that they are missing from."""
    data = made_up(("math", "flash"), (1024,), samples=30)
    point_of(data, "flash", 1024)["throttled"] = [number < 4 for number in range(30)]
    assert any("n 26, 4 left out, CV" in text for text in texts(VIOLINS.figure(results_of(tmp_path, data))))


def test_few_samples_are_drawn_one_by_one(tmp_path: Path) -> None:
    """Five samples have no shape."""
    figure = VIOLINS.figure(results_of(tmp_path, made_up(("math", "flash"), (1024,), samples=5)))
    assert not [band for band in figure.axes[0].collections if band.get_label() == "violin"]


def test_the_selection_is_drawn_where_auto_was_measured_at_several_shapes(
    sweep: BenchResults, grid: BenchResults, tmp_path: Path
) -> None:
    """At one shape, and where nothing else was measured, there is no choice to show."""
    assert bench_charts(sweep)[-1] is bench_charts(grid)[-1] is SELECTION
    for number, (backends, seqs) in enumerate(
        [(ALL, (512,)), (("auto",), (512, 1024)), (("math", "flash"), (512, 1024))]
    ):
        data = made_up(backends, seqs, samples=12)
        assert bench_charts(results_of(tmp_path / str(number), data)) == BENCH_CHARTS


def test_the_selection_shows_speedups_over_auto_as_far_as_their_verdicts_go(sweep: BenchResults) -> None:
    """Without launches where that is known; grey is no clear change, and what was picked says so."""
    plan = SELECTION.plan(sweep)
    assert isinstance(plan, Bars)
    [heat] = plan.panels
    assert isinstance(heat, Heat)
    assert [name for [name] in heat.names] == ["math", "flash", "efficient", "cudnn"]
    kind = "graph" if sweep.auto["graph_best"].notna().all() else "eager"
    shapes = sweep.auto["configuration"].tolist()
    for (row, column), value in np.ndenumerate(heat.values):
        pair = sweep.speedup(shapes[row], "auto", heat.names[column][0], kind)
        assert pair is not None
        expected = {"faster": 1, "slower": -1}.get(pair["verdict"], 0)
        assert np.sign(value) == expected
        assert any(format_ratio(pair["speedup"]) in text for text in heat.texts[row][column])
        picked = sweep.samples.auto[shapes[row]] == heat.names[column][0]
        assert picked == heat.texts[row][column][0].startswith("picked")


def test_the_selection_says_nothing_of_few_samples(tmp_path: Path) -> None:
    """No colour, no cost, and a title that counts where nothing can be told."""
    results = results_of(tmp_path, made_up(("math", "flash", "auto"), (512, 1024), samples=4))
    plan = SELECTION.plan(results)
    assert isinstance(plan, Bars)
    [heat] = plan.panels
    assert isinstance(heat, Heat)
    assert not heat.values.any()
    assert plan.columns[-1].texts == ["not told", "not told"]
    assert plan.heading.title == "PyTorch's choice: too few samples at each of the 2 shapes"


def test_the_selection_names_the_shape_that_costs_most(tmp_path: Path) -> None:
    """By how much another backend is faster there, in title and column alike."""
    data = made_up(("math", "flash", "auto"), (512, 1024, 2048), samples=50)
    point = point_of(data, "auto", 1024)
    for name in ("latency_ns", "aa_latency_ns", "graph_latency_ns"):
        point[name] = [30 * value for value in point[name]]
    plan = SELECTION.plan(results_of(tmp_path, data))
    assert isinstance(plan, Bars)
    found = re.fullmatch(
        r"PyTorch's choice is not the fastest at \d of 3 shapes: flash is (\d\d)\.\dx as fast at S1024",
        plan.heading.title,
    )
    assert found
    assert plan.columns[-1].texts[1].startswith("+")
    assert abs(float(plan.columns[-1].texts[1].strip("+ %").replace(",", "")) / 100 + 1 - float(found[1])) < 1


@pytest.mark.parametrize("sight", SIGHT)
def test_backend_colours_differ_for_every_reader(sight: str) -> None:
    """Any two are at least 20 units apart in CIE L*a*b*, and so is that of other backends."""
    seen = {name: lab(colour, sight) for name, (colour, _) in {**LOOKS, "other": OTHER_LOOK}.items()}
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 20, (one, other)
    assert len({marker for _, marker in [*LOOKS.values(), OTHER_LOOK]}) == len(LOOKS) + 1


def test_backends_of_any_name_look_different() -> None:
    """Those with a look of their own keep it; the first other one is grey, and no two are alike."""
    names = ["math", "mine", "flash", *(f"other_{number}" for number in range(40))]
    looks = backend_looks(names)
    assert list(looks) == names
    assert (looks["math"], looks["flash"], looks["mine"]) == (LOOKS["math"], LOOKS["flash"], OTHER_LOOK)
    assert len(set(looks.values())) == len(names)
    assert len({colour for colour, _ in list(looks.values())[:16]}) == 16


def test_texts_in_colours_can_be_read() -> None:
    """At least 4.5 to 1 on white."""
    assert all(contrast(readable(colour), white=True) >= 4.45 for colour, _ in [*LOOKS.values(), OTHER_LOOK])
