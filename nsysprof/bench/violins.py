"""``samples.png``: how the samples of each backend are spread, beside those of a second run of the same backend."""

from __future__ import annotations

import numpy as np

from nsysprof.bench.looks import backend_looks
from nsysprof.bench.results import BenchResults
from nsysprof.bench.samples import BenchPoint
from nsysprof.bench.titles import chart_subtitle, violin_title
from nsysprof.bench.words import shape_parts
from nsysprof.charts.marks import Heading, Violin, ViolinPanel, Violins
from nsysprof.core.units import format_ns, format_share

_MOST_PANELS = 3
_LEAST_REACH, _MOST_REACH = 0.01, 0.25


def plan_violins(results: BenchResults) -> Violins:
    """Deviations from the median in per cent, a row per backend: its samples above, the second set (A/A) below."""
    groups = shown_points(results)
    notes = [
        "thick: middle half of the samples; white: median",
        "below the line: a second, interleaved set of the same backend (A/A)",
        "numbers at the edges: samples farther out",
    ]
    count = results.results["configuration"].nunique()
    if count > len(groups):
        notes.append(f"{len(groups)} of {count} shapes")
    looks, (_, labels) = backend_looks(results), shape_parts(results)
    panels = [
        ViolinPanel(
            labels[name],
            "deviation from the median",
            _reach(points),
            [_violin(point, looks[point.backend][0]) for point in points],
        )
        for name, points in groups
    ]
    return Violins(Heading(violin_title(results), chart_subtitle(results), [], notes), panels)


def shown_points(results: BenchResults) -> list[tuple[str, list[BenchPoint]]]:
    """The points of up to three configurations: the smallest, the middle and the largest of the first sweep.

    Of several dtypes the one of most points is shown, so that the panels show the same backends.
    """
    frame = results.results[results.results["n"] > 0]
    if frame.empty:
        return []
    part = frame.loc[[row for row in results.sweeps[0].rows if row in frame.index]]
    part = part if len(part) else frame
    part = part[part["dtype"] == part["dtype"].value_counts().index[0]]
    names = list(dict.fromkeys(part["configuration"]))
    picked = dict.fromkeys(names[round(place)] for place in np.linspace(0, len(names) - 1, _MOST_PANELS))
    measured = results.samples.measured
    return [(name, [point for point in measured if point.shape.id == name]) for name in picked]


def _reach(points: list[BenchPoint]) -> float:
    """How far the axis goes: two and a half times as far as 8 of 10 samples of each backend, within limits."""
    far = [
        np.abs(np.quantile(point.latency_ns, [0.1, 0.9]) / np.median(point.latency_ns) - 1)
        for point in points
    ]
    return float(np.clip(2.5 * np.max(far, initial=0.0), _LEAST_REACH, _MOST_REACH))


def _violin(point: BenchPoint, colour: str) -> Violin:
    """The samples of a point, with their median, their number and their spread in words."""
    values = point.latency_ns
    median = float(np.median(values))
    cv = values.std(ddof=1) / values.mean() if len(values) > 1 else 0.0
    left_out = f", {point.left_out} left out" if point.left_out else ""
    texts = [format_ns(median), f"n {len(values)}{left_out}, CV {format_share(float(cv))}"]
    return Violin(point.backend, colour, values / median - 1, point.aa_latency_ns / median - 1, texts)
