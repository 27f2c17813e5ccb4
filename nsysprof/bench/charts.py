"""The charts of a benchmark, including the roofline and the distribution of samples."""

import math
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench import lines, words
from nsysprof.bench.pairs import AUTO
from nsysprof.bench.results import BenchResults
from nsysprof.bench.rows import refused_rates
from nsysprof.bench.titles import roofline_title, selection_title, violin_title
from nsysprof.charts import marks
from nsysprof.charts.chart import Chart
from nsysprof.charts.palette import LESS, MORE
from nsysprof.core.text import one_line
from nsysprof.core.units import format_bandwidth, format_ns, format_ratio, format_share
from nsysprof.formats.samples import BenchPoint
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES

MAX_VIOLIN_PANELS = 3
MIN_REACH, MAX_REACH = 0.01, 0.25  # of the axis of violins, as a share of the median
DARKEST_SPEEDUP = 2  # over `auto`, and its inverse: where the colours end


def plan_roofline(results: BenchResults) -> marks.Roofs | marks.Message:
    """Plan a roofline without the points above a ceiling; launches are excluded if launch time was measured. Returns a
    message if no peak is known.
    """
    frame = results.results[results.results["tflops"].notna()]
    peaks = lines.peaks_of(frame, memory=True)
    ceilings = [marks.Ceiling(top, f"{text} TFLOP/s", slope / 1e3, dashed) for text, dashed, [top, slope] in peaks]
    title, below = roofline_title(results), words.subtitle(results)
    frame = results.own(frame)
    refused = refused_rates(frame)
    frame = frame[~refused]
    if not ceilings or frame.empty:
        sentences = [
            "A roofline needs the device's FLOP/s and bandwidth.",
            "Measure them with:  nsysprof bench --measure-peaks",
        ]
        suspects = ["See the warnings for the peaks that are too low."]
        return marks.Message(marks.Heading(title, below), suspects if ceilings else sentences)
    dtypes = lines.dtypes_of(frame)
    notes = [
        *lines.left_out_note(refused),
        *["FLOP/s without launches, from CUDA graphs"] * bool(frame["graph_tflops"].notna().any()),
        f"bytes: {results.about.traffic_words}",
        *["dashed ceilings: measured on this machine"] * any(roof.dashed for roof in ceilings),
        *lines.dtype_notes(dtypes),
    ]
    legend = lines.backend_legend(results, (str(name) for name in frame["backend"].unique()))
    return marks.Roofs(
        heading=marks.Heading(title, below, legend, notes),
        ceilings=ceilings,
        slopes=_slopes(ceilings),
        labels=("intensity: FLOP per byte moved", "TFLOP/s", "", ""),
        paths=_paths(results, frame, dtypes),
    )


def _slopes(ceilings: list[marks.Ceiling]) -> list[tuple[float, str]]:
    """The bandwidths, with all their names beside the highest slope, where no point can be."""
    slopes = {each.slope: each.dashed for each in ceilings if each.slope}
    highest = max(slopes)
    measured = [slope for slope, dashed in slopes.items() if dashed and slope != highest]
    text = format_bandwidth(highest * 1e12)
    text += f" (measured {format_bandwidth(measured[0] * 1e12)})" if measured else ""
    return [(slope, text if slope == highest else "") for slope in slopes]


def _paths(results: BenchResults, frame: pd.DataFrame, dtypes: list[str]) -> list[marks.Line]:
    """The points of each backend in sweep order; points of the first sweep are joined, and named at both ends."""
    rate, looks = frame["graph_tflops"].fillna(frame["tflops"]), lines.backend_looks(results.backends)
    out = []
    for number, sweep in enumerate(results.sweeps):
        part = frame.loc[[row for row in sweep.rows if row in frame.index]]
        for (backend, dtype), group in part.groupby(["backend", "dtype"], sort=False):
            colour, marker = looks[str(backend)]
            names = [""] * len(group)
            for end in (0, -1) if number == 0 else ():
                names[end] = f"{results.about.shorts[sweep.axis]}{group[sweep.axis].iloc[end]}"
            out.append(
                marks.Line(
                    label=str(backend),
                    colour=colour,
                    marker=marker,
                    look=lines.dtype_dash(dtypes, str(dtype)) if number == 0 else "none",
                    x=group["intensity"].tolist(),
                    y=rate[group.index].tolist(),
                    names=names,
                )
            )
    return out


def plan_violins(results: BenchResults) -> marks.Violins:
    """Plan a violin per backend: how far its samples are from their median (%), with its second set (A/A) below."""
    groups = _shown_points(results)
    notes = [
        "thick: middle half of the samples; white: median",
        "below the line: a second set of samples of the same backend, interleaved with the first (A/A)",
        "numbers at the edges: samples farther out",
    ]
    count = results.results["configuration"].nunique()
    if count > len(groups):
        notes.append(f"{len(groups)} of {count} shapes")
    looks = lines.backend_looks(results.backends)
    panels = [
        marks.ViolinPanel(
            results.labels[name],
            "deviation from the median",
            _reach(points),
            [_violin(point, looks[point.backend][0]) for point in points],
        )
        for name, points in groups
    ]
    return marks.Violins(marks.Heading(violin_title(results), words.subtitle(results), [], notes), panels)


def _shown_points(results: BenchResults) -> list[tuple[str, list[BenchPoint]]]:
    """The points of up to three configurations: the smallest, the middle and the largest of the first sweep.

    With several dtypes, only the dtype with most points is shown, so that the panels show the same backends.
    """
    frame = results.results[results.results["n"] > 0]
    if frame.empty:
        return []
    part = frame.loc[[row for row in results.sweeps[0].rows if row in frame.index]]
    part = part if len(part) else frame
    names = list(dict.fromkeys(words.of_main_dtype(part)["configuration"]))
    picked = dict.fromkeys(names[round(place)] for place in np.linspace(0, len(names) - 1, MAX_VIOLIN_PANELS))
    measured = results.samples.measured
    return [(name, [point for point in measured if point.shape.id == name]) for name in picked]


def _reach(points: list[BenchPoint]) -> float:
    """The end of the axis: 2.5 times the largest deviation of the backends' 10 % and 90 % quantiles, within limits."""
    deviations = [
        np.abs(np.quantile(point.latency_ns, [0.1, 0.9]) / np.median(point.latency_ns) - 1) for point in points
    ]
    return float(np.clip(2.5 * np.max(deviations, initial=0.0), MIN_REACH, MAX_REACH))


def _violin(point: BenchPoint, colour: str) -> marks.Violin:
    values = point.latency_ns
    median = float(np.median(values))
    cv = values.std(ddof=1) / values.mean() if len(values) > 1 else 0.0
    left_out = f", {point.left_out} left out" if point.left_out else ""
    texts = [format_ns(median), f"n {len(values)}{left_out}, CV {format_share(float(cv))}"]
    return marks.Violin(point.backend, colour, values / median - 1, point.samples("aa") / median - 1, texts)


def plan_selection(results: BenchResults) -> marks.Bars:
    """Plan the speed of the other backends relative to `auto`: a row per shape at which `auto` was measured.

    Launches are excluded if launch time is known for every shape. Colours depend on the verdicts.
    """
    auto = _selections(results)
    kind = "graph" if auto["graph_best"].notna().all() else "eager"
    prefix = "graph_" if kind == "graph" else ""
    shapes = auto["configuration"].tolist()
    named = [name for name in results.backends if name != AUTO]
    pairs = [[results.speedup(shape, AUTO, name, kind) for name in named] for shape in shapes]
    picks = [words.picked_words(results, shape) for shape in shapes]
    heat = marks.Heat(
        share=1,
        names=[[one_line(name, 18)] for name in named],
        values=np.array([[_shade(pair) for pair in row] for row in pairs]),
        texts=[
            [_selection_texts(pair, picked=name == pick) for name, pair in zip(named, row, strict=True)]
            for row, pick in zip(pairs, picks, strict=True)
        ],
        colours=(MORE, LESS),
        scale=(f"{1 / DARKEST_SPEEDUP:g}x or less", "as auto", f"{DARKEST_SPEEDUP:g}x as fast or more"),
    )
    notes = ["numbers: speed-up over auto", "(1.01x): no clear change; 1.3x ?: too few samples", "white: not measured"]
    if kind == "graph":
        notes.insert(0, "without launches, from CUDA graphs")
    return marks.Bars(
        heading=marks.Heading(selection_title(results, auto, prefix), words.subtitle(results), notes=notes),
        labels=[one_line(results.labels[shape], 44) or shape for shape in shapes],
        rest=None,
        panels=[heat],
        columns=[
            marks.Column("auto picks", [one_line(pick, 18) for pick in picks]),
            marks.Column("and takes", [format_ns(value) for value in auto[f"{prefix}median_ns"]]),
            marks.Column("which costs", [_cost(row, prefix) for row in auto.to_dict("records")]),
        ],
        row=min(0.42, max(0.2, 6.6 / len(shapes))),
    )


def _selections(results: BenchResults) -> pd.DataFrame:
    return results.auto[results.auto["best"].notna()]


def _shade(pair: dict[str, Any] | None) -> float:
    """From -1 (much slower than `auto`) to 1 (much faster); 0 without a clear difference, nan if not compared."""
    if pair is None:
        return math.nan
    if pair["verdict"] not in (FASTER, SLOWER):
        return 0.0
    return float(np.clip(math.log(pair["speedup"]) / math.log(DARKEST_SPEEDUP), -1, 1))


def _selection_texts(pair: dict[str, Any] | None, *, picked: bool) -> tuple[str, ...]:
    short = words.speedup_cell(pair, lambda each: format_ratio(each["speedup"]), ("(", ")"))
    return (f"picked {short}", "picked", short) if picked else (short,)


def _cost(row: dict[Any, Any], prefix: str) -> str:
    """The additional time of `auto` over the fastest other backend, such as `+32 %`, if the verdict supports it."""
    others = {NO_CLEAR_CHANGE: "nothing clear", TOO_FEW_SAMPLES: "not told", SLOWER: "nothing"}
    verdict = row[f"{prefix}verdict"]
    return f"+{format_share(row[f'{prefix}speedup'] - 1)}" if verdict == FASTER else others.get(verdict, "")


# In the order in which a report shows them.
BENCH_CHARTS: tuple[Chart[BenchResults], ...] = (
    Chart("latency.png", "latency", lines.plan_latency),
    Chart("speedup.png", "speedup", lines.plan_speedup),
    Chart("memory.png", "memory", lines.plan_memory),
    Chart("throughput.png", "throughput", lines.plan_throughput),
    Chart("roofline.png", "roofline", plan_roofline),
    Chart("samples.png", "samples", plan_violins),
)
SELECTION = Chart("selection.png", "PyTorch's own choice", plan_selection)


def bench_charts(results: BenchResults) -> tuple[Chart[BenchResults], ...]:
    """Return the charts that have data; PyTorch's choice needs measurements at several shapes."""
    return (*BENCH_CHARTS, SELECTION) if len(_selections(results)) > 1 else BENCH_CHARTS
