"""Draws how samples are spread: a violin each, above its line, and a second one below it."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nsysprof.charts.axis import draw_axis
from nsysprof.charts.marks import Numbers, Violin, ViolinPanel, Violins
from nsysprof.charts.palette import FAINT, INK, RULE
from nsysprof.charts.style import SMALL, TEXT, panel_grid, size_of, text_width

_ROW = 0.62  # inches
_GRID = 256  # points at which a density is drawn
_STEPS = (0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_TICK = 0.62  # inches of a tick's text, with some room
_FEW = 8  # below so many samples they are drawn one by one
_BESIDE = TEXT - 0.5


def draw_violins(plan: Violins) -> Figure:
    """The chart as a figure with an `Axes` per panel; violins are at y = 0, 1, … from top to bottom."""
    every = [violin for panel in plan.panels for violin in panel.violins]
    rows = max((len(panel.violins) for panel in plan.panels), default=1)
    left = max((text_width(violin.label, TEXT) for violin in every), default=0.0) + 0.3
    beside = [line for violin in every for line in violin.texts]
    right = max((text_width(line, _BESIDE) for line in beside), default=0.0) + 0.2
    high = 0.35 + _ROW * rows
    figure, panels = panel_grid(
        plan.heading, max(len(plan.panels), 1), high=high, left=max(left, 0.4), right=right
    )
    for axes, panel in zip(panels, plan.panels, strict=False):
        _draw_panel(axes, panel)
    return figure


def _draw_panel(axes: Axes, panel: ViolinPanel) -> None:
    wide, high = size_of(axes)
    axes.set_xlim(-panel.reach, panel.reach)
    axes.set_ylim(len(panel.violins) - 0.45, -0.55)
    # A tick or two on either side, as there is room for their texts. Steps grow by up to 2.5.
    side, most = (2, 3.0) if wide >= 5 * _TICK else (1, 2.5)
    step = next(step for step in _STEPS if panel.reach / step < most or step == _STEPS[-1])
    ticks = [step * number for number in range(-side, side + 1)]
    draw_axis(axes, ticks, lambda tick: f"{tick * 100:+g} %" if tick else "0", panel.label, gap=4)
    axes.text(0, 1 + 0.06 / high, panel.title, transform=axes.transAxes, fontsize=TEXT + 0.5, weight="bold")
    for row, violin in enumerate(panel.violins):
        axes.plot([-panel.reach, panel.reach], [row, row], color=RULE, linewidth=0.6)
        axes.text(
            -0.07 / wide, row, violin.label, transform=axes.get_yaxis_transform(), ha="right",
            va="center_baseline", fontsize=TEXT,
        )  # fmt: skip
        axes.text(
            1 + 0.1 / wide, row - 0.02, "\n".join(violin.texts), transform=axes.get_yaxis_transform(), fontsize=_BESIDE,
            va="center", linespacing=1.25, color=FAINT,
        )  # fmt: skip
        _half(axes, violin.values, row, -1, violin.colour, 0.85)
        if len(violin.second):
            _half(axes, violin.second, row, 1, violin.colour, 0.35)
        _summary(axes, violin, row)


def _half(axes: Axes, values: Numbers, row: int, side: int, colour: str, strength: float) -> None:
    """Half a violin above (-1) or below (1) its row; of a few samples each."""
    reach = axes.get_xlim()[1]
    if len(values) < _FEW:
        inside = values[np.abs(values) <= reach]
        where = np.full(len(inside), row + side * 0.15)
        axes.plot(inside, where, "o", color=colour, alpha=strength, markersize=4)
        return
    grid = np.linspace(-reach, reach, _GRID)
    shape = row + side * 0.4 * density(values, grid)
    axes.fill_between(grid, row, shape, color=colour, alpha=strength, linewidth=0, label="violin")


def _summary(axes: Axes, violin: Violin, row: int) -> None:
    """The middle half of the samples, their median, and how many lie farther out than the axis goes."""
    values, reach = violin.values, axes.get_xlim()[1]
    if len(values) < _FEW:
        return
    first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
    axes.plot([first, third], [row - 0.06] * 2, color=INK, linewidth=3.2, solid_capstyle="butt", zorder=4)
    axes.plot([middle], [row - 0.06], "o", color="white", markersize=3.4, mec=INK, mew=0.7, zorder=5)
    for count, edge, text, align in (
        ((values > reach).sum(), reach, "{} ›", "right"),
        ((values < -reach).sum(), -reach, "‹ {}", "left"),
    ):
        if count:
            axes.text(
                edge, row - 0.16, text.format(count), ha=align, va="center", fontsize=SMALL, color=INK,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            )  # fmt: skip


def density(values: Numbers, grid: Numbers) -> Numbers:
    """A Gaussian kernel density at the places of the grid, 1 at its highest; Silverman's bandwidth, at least a step."""
    spread = min(values.std(), np.subtract(*np.quantile(values, [0.75, 0.25])) / 1.349 or np.inf)
    width = max(0.9 * spread * len(values) ** -0.2, grid[1] - grid[0])
    found: Numbers = np.exp(-(((grid[:, None] - values) / width) ** 2) / 2).sum(axis=1)
    return found / found.max() if found.max() > 0 else found
