"""``samples.png``: how the samples of each backend are spread, beside those of a second run of the same backend."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nsysprof.bench.axes import backend_look, finish_axes, new_panels, panel_width
from nsysprof.bench.results import BenchResults
from nsysprof.bench.samples import BenchPoint
from nsysprof.bench.titles import chart_subtitle, violin_title
from nsysprof.bench.words import shape_parts
from nsysprof.charts.marks import Heading
from nsysprof.charts.palette import FAINT, INK, RULE
from nsysprof.charts.style import SMALL, TEXT, style, text_width
from nsysprof.core.units import format_ns, format_share
from nsysprof.statistics.distributions import Floats

_MOST_PANELS = 3
_GRID = 256  # points at which a density is drawn
_LEAST_REACH, _MOST_REACH = 0.01, 0.25
_STEPS = (0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_TICK_WIDTH = 0.62  # inches of a tick's text, with some room
_FEW = 8  # below so many samples they are drawn one by one


def violin_chart(results: BenchResults) -> Figure:
    """Deviations from the median in per cent, a row per backend: its samples above, the second set (A/A) below."""
    groups = shown_points(results)
    rows = max((len(points) for _, points in groups), default=1)
    notes = [
        "thick: middle half of the samples; white: median",
        "below the line: a second, interleaved set of the same backend (A/A)",
        "numbers at the edges: samples farther out",
    ]
    count = results.results["configuration"].nunique()
    if count > len(groups):
        notes.append(f"{len(groups)} of {count} shapes")
    heading = Heading(violin_title(results), chart_subtitle(results), [], notes)
    _, labels = shape_parts(results)
    with style():
        longest = max(
            (text_width(point.backend, TEXT) for _, points in groups for point in points), default=0
        )
        left = max(0.85, longest + 0.3)
        figure, panels = new_panels(
            heading, max(len(groups), 1), height=0.35 + 0.62 * rows, room=1.25, left=left
        )
        for axes, (configuration, points) in zip(panels, groups, strict=False):
            _panel(axes, points)
            finish_axes(axes, "deviation from the median", "", labels[configuration])
            axes.grid(visible=False, axis="y")
    return figure


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


def _panel(axes: Axes, points: list[BenchPoint]) -> None:
    reach = _reach(points)
    axes.set_xlim(-reach, reach)
    axes.set_ylim(len(points) - 0.45, -0.55)
    axes.set_yticks(range(len(points)), [point.backend for point in points])
    # A tick or two on either side, as there is room for their texts. Steps grow by up to 2.5.
    side, most = (2, 3.0) if panel_width(axes) >= 5 * _TICK_WIDTH else (1, 2.5)
    step = next(step for step in _STEPS if reach / step < most or step == _STEPS[-1])
    ticks = [step * number for number in range(-side, side + 1) if abs(step * number) <= reach]
    axes.set_xticks(ticks, [f"{tick * 100:+g} %" if tick else "0" for tick in ticks])
    axes.axvline(0, color=RULE, linewidth=1)
    for row, point in enumerate(points):
        median = float(np.median(point.latency_ns))
        colour, _ = backend_look(point.backend)
        axes.plot([-reach, reach], [row, row], color=RULE, linewidth=0.6)
        _half(axes, point.latency_ns / median - 1, row, -1, colour, 0.85)
        if len(point.aa_latency_ns):
            _half(axes, point.aa_latency_ns / median - 1, row, 1, colour, 0.35)
        _beside(axes, point, row, median)


def _reach(points: list[BenchPoint]) -> float:
    """How far the axis goes: two and a half times as far as 8 of 10 samples of each backend, within limits."""
    far = [
        np.abs(np.quantile(point.latency_ns, [0.1, 0.9]) / np.median(point.latency_ns) - 1)
        for point in points
    ]
    return float(np.clip(2.5 * np.max(far, initial=0.0), _LEAST_REACH, _MOST_REACH))


def _half(axes: Axes, values: Floats, row: int, side: int, colour: str, strength: float) -> None:
    """Half a violin above (-1) or below (1) its row, with the middle half of the samples and their median."""
    reach = axes.get_xlim()[1]
    inside = values[np.abs(values) <= reach]
    if len(values) < _FEW:
        axes.plot(
            inside, np.full(len(inside), row + side * 0.15), "o", color=colour, alpha=strength, markersize=4
        )
        return
    grid = np.linspace(-reach, reach, _GRID)
    shape = density(values, grid)
    axes.fill_between(
        grid, row, row + side * 0.4 * shape, color=colour, alpha=strength, linewidth=0, label="violin"
    )
    first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
    if side < 0:
        axes.plot([first, third], [row - 0.06] * 2, color=INK, linewidth=3.2, solid_capstyle="butt", zorder=4)
        axes.plot([middle], [row - 0.06], "o", color="white", markersize=3.4, mec=INK, mew=0.7, zorder=5)
        for count, edge, align in (
            ((values > reach).sum(), reach, "right"),
            ((values < -reach).sum(), -reach, "left"),
        ):
            if count:
                arrow = f"{count} ›" if edge > 0 else f"‹ {count}"
                axes.text(
                    edge,
                    row - 0.16,
                    arrow,
                    ha=align,
                    va="center",
                    fontsize=SMALL,
                    color=INK,
                    bbox={
                        "boxstyle": "square,pad=0.1",
                        "facecolor": "white",
                        "edgecolor": "none",
                        "alpha": 0.8,
                    },
                )


def density(values: Floats, grid: Floats) -> Floats:
    """A Gaussian kernel density at the places of the grid, 1 at its highest; Silverman's bandwidth, at least a step."""
    spread = min(values.std(), np.subtract(*np.quantile(values, [0.75, 0.25])) / 1.349 or np.inf)
    width = max(0.9 * spread * len(values) ** -0.2, grid[1] - grid[0])
    found: Floats = np.exp(-(((grid[:, None] - values) / width) ** 2) / 2).sum(axis=1)
    return found / found.max() if found.max() > 0 else found


def _beside(axes: Axes, point: BenchPoint, row: int, median: float) -> None:
    """Median, number of samples and their spread, right of the row."""
    values = point.latency_ns
    cv = values.std(ddof=1) / values.mean() if len(values) > 1 else 0.0
    left_out = f", {point.left_out} left out" if point.left_out else ""
    axes.text(
        axes.get_xlim()[1] * 1.06,
        row - 0.02,
        f"{format_ns(median)}\nn {len(values)}{left_out}, CV {format_share(float(cv))}",
        fontsize=TEXT - 0.5,
        va="center",
        linespacing=1.25,
        color=FAINT,
    )
