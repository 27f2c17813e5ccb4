"""Draw panels: lines over logarithmic axes, violins of samples, and step times with their distribution."""

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nsysprof.charts.marks import Line, LinePanel, Lines, Series, SeriesPanel, Violin, ViolinPanel, Violins, round_ticks
from nsysprof.charts.palette import FAINT, INK, RULE, readable
from nsysprof.charts.places import Box, Places, around, free_place, push_apart
from nsysprof.charts.style import (
    MARGIN,
    SMALL,
    TEXT,
    WIDTH,
    boxes,
    draw_axis,
    draw_plane,
    inches,
    panel_column,
    panel_grid,
    size_of,
    text_width,
    write,
    write_title,
)
from nsysprof.core.arrays import Array
from nsysprof.core.units import scale_ns

DASHES: dict[str, Any] = {
    "solid": "-",
    "dashed": (0, (5, 2)),
    "dash-dotted": (0, (8, 2, 1.5, 2)),
    "dotted": (0, (1, 1.6)),
    "level": (0, (4, 3)),
    "none": "none",
}
_ONE, _SEVERAL = 4.6, 3.6  # inches of a panel
_GAP, _LINE = 0.17, 0.15  # inches between names at the right, and of a line of words
_LEAD = 0.18  # from the end of a line to its name
_RING = 0.077
_BOX = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}  # behind a text
_ROW = 0.62  # inches
_GRID = 256  # points at which a density is drawn
_STEPS = (0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_TICK = 0.62  # inches of a tick's text, with some room
_MIN_FOR_VIOLIN = 8  # fewer samples are drawn one by one
_BESIDE = TEXT - 0.5


def draw_lines(plan: Lines) -> Figure:
    """Draw the chart with an `Axes` per panel."""
    ends = [each.end for panel in plan.panels for each in panel.lines]
    ends += [text for panel in plan.panels for _, text, _ in panel.levels]
    right = max([1.0, *(text_width(text, TEXT) for text in ends)]) + _LEAD + 0.07
    high = _ONE if len(plan.panels) == 1 else _SEVERAL
    figure, every = panel_grid(plan.heading, len(plan.panels), high=high, left=0.85, right=right)
    for axes, panel in zip(every, plan.panels, strict=True):
        draw_plane(axes, panel.x, panel.y, panel.title)
        if not panel.lines:
            write(axes, 0.5, 0.5, "no figures", va="baseline", size=TEXT, at=axes.transAxes, color=FAINT)
            continue
        for line in panel.lines:
            draw_line(axes, line)
        if panel.even:
            axes.axhspan(*panel.even, color=FAINT, alpha=0.2, linewidth=0)
            axes.axhline(1, color=INK, linewidth=1.0)
        for level, _, dashed in panel.levels:
            axes.axhline(level, color=INK, linewidth=1.0, linestyle=DASHES["level" if dashed else "solid"])
        places = Places(*size_of(axes))
        for line in panel.lines:
            places.take(*along(axes, line))
        places.take(*_write_ends(axes, panel))
        _draw_spots(axes, panel, places)
    return figure


def draw_line(axes: Axes, line: Line) -> None:
    """Draw the line with its markers and band."""
    dotted = line.look == "dotted"
    how: dict[str, Any] = {"linewidth": 1.3 if dotted else 2.0, "markersize": 3.2 if dotted else 5.5}
    if dotted:
        how["mfc"] = "white"
    if line.thin:
        how |= {"linewidth": 0.8, "markersize": 5}
    axes.plot(
        line.x, line.y, color=line.colour, marker=line.marker, label=line.label, clip_on=False,
        linestyle=DASHES[line.look], zorder=4 if line.thin else 2.5 if dotted else 3, **how,
    )  # fmt: skip
    if line.band:
        axes.fill_between(line.x, *line.band, color=line.colour, alpha=0.25, linewidth=0, zorder=2)


def along(axes: Axes, line: Line) -> list[Box]:
    """Return small squares along the drawn line and on its points."""
    points = np.array([inches(axes, x, y) for x, y in zip(line.x, line.y, strict=True)])
    joined = pairwise(points) if line.look != "none" else ()
    between = [np.linspace(one, other, 16) for one, other in joined]
    return [around((x, y), 0.05) for x, y in np.concatenate([points, *between]).tolist()]


def _write_ends(axes: Axes, panel: LinePanel) -> list[Box]:
    """Write names to the right of the ends of lines and levels without overlap; return their places."""
    wide, high = size_of(axes)
    last = max(line.x[-1] for line in panel.lines)
    by_end: dict[float, list[tuple[float, str, str]]] = {}
    for line in panel.lines:
        if line.end:
            across, up = inches(axes, line.x[-1], line.y[-1])
            place = wide if line.x[-1] == last else across + 0.06
            by_end.setdefault(place, []).append((up, line.end, line.colour))
    for level, text, _ in panel.levels:
        if text:
            by_end.setdefault(wide, []).append((inches(axes, last, level)[1], text, INK))
    taken = []
    for across, labels in by_end.items():
        put = push_apart(np.array([up for up, *_ in labels]), _GAP, high).tolist()
        for (up, text, colour), at in zip(labels, put, strict=True):
            axes.plot(
                [across / wide, (across + 0.12) / wide], [up / high, at / high], transform=axes.transAxes,
                color=colour, linewidth=0.7, clip_on=False,
            )  # fmt: skip
            write(
                axes, (across + 0.16) / wide, at / high, text, "left", "center", size=TEXT, at=axes.transAxes,
                color=readable(colour), label="end label", zorder=6, bbox={**_BOX, "alpha": 0.85},
            )  # fmt: skip
            end = across + 0.2 + text_width(text, TEXT)
            taken.append(Box(across, end, at - _GAP / 2, at + _GAP / 2))
    return taken


def _draw_spots(axes: Axes, panel: LinePanel, places: Places) -> None:
    """Draw crosses, and rings with a text beside them if there is room."""
    marks = [around(inches(axes, spot.x, spot.y), _RING) for spot in panel.spots]
    places.mark(*marks)
    for spot, mark in zip(panel.spots, marks, strict=True):
        look: dict[str, Any] = {"markersize": 11, "mew": 1.2} if spot.ring else {"markersize": 9, "mew": 2.2}
        axes.plot(
            [spot.x], [spot.y], "o" if spot.ring else "x", mfc="none", mec=spot.colour, zorder=5,
            label="crossing" if spot.ring else "out of memory", clip_on=False, **look,
        )  # fmt: skip
        if spot.text:
            write_beside(axes, places, mark, spot.text, spot.colour)


def write_beside(axes: Axes, places: Places, mark: Box, text: str, colour: str) -> None:
    """Write a name in the nearest free place, if any; a line connects it with its mark unless they are adjacent."""
    place = free_place(places, mark, text_width(text, SMALL), _LINE)
    if place is None:
        return
    box, line = place
    places.put(box, line)
    size = np.array([places.wide, places.high])
    if line:
        axes.plot(
            *(np.array(line) / size).T, transform=axes.transAxes, color=FAINT, linewidth=0.6, zorder=3, clip_on=False,
            label="to its name",
        )  # fmt: skip
    across, up = (np.array([box.left + box.right, box.low + box.high]) / 2 / size).tolist()
    write(axes, across, up, text, at=axes.transAxes, color=colour, zorder=5)


def draw_violins(plan: Violins) -> Figure:
    """Draw the chart with an `Axes` per panel; violins are at y = 0, 1, … from top to bottom."""
    every = [violin for panel in plan.panels for violin in panel.violins]
    rows = max((len(panel.violins) for panel in plan.panels), default=1)
    left = max((text_width(violin.label, TEXT) for violin in every), default=0.0) + 0.3
    beside = [line for violin in every for line in violin.texts]
    right = max((text_width(line, _BESIDE) for line in beside), default=0.0) + 0.2
    high = 0.35 + _ROW * rows
    figure, panels = panel_grid(plan.heading, max(len(plan.panels), 1), high=high, left=max(left, 0.4), right=right)
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
    write_title(axes, 1 + 0.06 / high, panel.title)
    where = axes.get_yaxis_transform()
    for row, violin in enumerate(panel.violins):
        axes.plot([-panel.reach, panel.reach], [row, row], color=RULE, linewidth=0.6)
        write(axes, -0.07 / wide, row, violin.label, "right", size=TEXT, at=where)
        look: dict[str, Any] = {"linespacing": 1.25, "color": FAINT}
        texts = "\n".join(violin.texts)
        write(axes, 1 + 0.1 / wide, row - 0.02, texts, "left", "center", size=_BESIDE, at=where, **look)
        _half(axes, violin.values, row, -1, violin.colour, 0.85)
        if len(violin.second):
            _half(axes, violin.second, row, 1, violin.colour, 0.35)
        _summary(axes, violin, row)


def _half(axes: Axes, values: Array, row: int, side: int, colour: str, strength: float) -> None:
    """Draw half a violin above (-1) or below (1) its row, or individual samples if there are few."""
    reach = axes.get_xlim()[1]
    if len(values) < _MIN_FOR_VIOLIN:
        inside = values[np.abs(values) <= reach]
        axes.plot(inside, np.full(len(inside), row + side * 0.15), "o", color=colour, alpha=strength, markersize=4)
        return
    grid = np.linspace(-reach, reach, _GRID)
    shape = row + side * 0.4 * density(values, grid)
    axes.fill_between(grid, row, shape, color=colour, alpha=strength, linewidth=0, label="violin")


def _summary(axes: Axes, violin: Violin, row: int) -> None:
    """Draw the middle half of the samples and their median, and count those beyond the axis."""
    values, reach = violin.values, axes.get_xlim()[1]
    if len(values) < _MIN_FOR_VIOLIN:
        return
    first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
    axes.plot([first, third], [row - 0.06] * 2, color=INK, linewidth=3.2, solid_capstyle="butt", zorder=4)
    axes.plot([middle], [row - 0.06], "o", color="white", markersize=3.4, mec=INK, mew=0.7, zorder=5)
    for count, edge, text, align in (
        ((values > reach).sum(), reach, "{} ›", "right"),
        ((values < -reach).sum(), -reach, "‹ {}", "left"),
    ):
        if count:
            write(axes, edge, row - 0.16, text.format(count), align, "center", color=INK, bbox={**_BOX, "alpha": 0.8})


def density(values: Array, grid: Array) -> Array:
    """Return a Gaussian kernel density on the grid, with maximum 1; bandwidth: Silverman's, at least a grid step."""
    spread = min(values.std(), np.subtract(*np.quantile(values, [0.75, 0.25])) / 1.349 or np.inf)
    width = max(0.9 * spread * len(values) ** -0.2, grid[1] - grid[0])
    dense: Array = np.exp(-(((grid[:, None] - values) / width) ** 2) / 2).sum(axis=1)
    return dense / dense.max() if dense.max() > 0 else dense


_LEFT, _WIDE, _APART, _SIDE = 0.75, 9.6, 0.12, WIDTH - MARGIN - 0.75 - 9.6 - 0.12  # inches
_ONE_SERIES, _SEVERAL_SERIES, _AXIS, _TITLE = 4.2, 2.5, 0.62, 0.34
# times the median: times that go further up have a logarithmic axis, those of steps and of anything else
_LOGARITHMIC, _STEP = (6.0, 2.5), "step"
_LEAST_BINS, _BINS = 12, 60  # of few steps few, so that bars are more than lines
_MOST_AVOIDED = 600  # typical steps that names keep off
_LEAST_BAR = 0.02  # of the width, so that a single step shows


def draw_series(plan: Series) -> Figure:
    """Draw the chart: two `Axes` per panel, for the steps and their distribution, with a common time axis."""
    high = _ONE_SERIES if len(plan.panels) == 1 else _SEVERAL_SERIES
    sizes = [(_TITLE, high)] * len(plan.panels)
    foot = 0.2 if plan.heading.notes else 0.0
    beside = any(panel.noun == _STEP for panel in plan.panels)
    whole = _WIDE if beside else _WIDE + _APART + _SIDE
    figure, every = panel_column(plan.heading, sizes, left=_LEFT, wide=whole, first=0.1, between=_AXIS, foot=foot)
    for axes, panel in zip(every, plan.panels, strict=True):
        if not beside:
            _draw_times(axes, panel)
            continue
        place = axes.get_position()
        left, wide = (_LEFT + _WIDE + _APART) / WIDTH, _SIDE / WIDTH
        side = figure.add_axes((left, place.y0, wide, place.height))
        _draw_times(axes, panel)
        _draw_distribution(side, axes, panel)
    return figure


def _draw_times(axes: Axes, panel: SeriesPanel) -> None:
    low, high = float(panel.y.min()), float(panel.y.max())
    first = 0.0 if panel.noun == _STEP else float(panel.x.min()) - 0.5
    reach = max(float(panel.x.max()), 1.0) + (first != 0) * 0.5
    axes.set_xlim(first - 0.01 * (reach - first), reach + 0.01 * (reach - first))
    logarithmic = high > _LOGARITHMIC[panel.noun != _STEP] * float(np.median(panel.y))
    if logarithmic:
        axes.set_yscale("log")
        margin = (high / low) ** (0.06 if panel.noun == _STEP else 0.12)
        axes.set_ylim(low / margin, high * margin)
        ticks = round_ticks(low / margin, high * margin)
    else:
        margin = (0.08 if panel.noun == _STEP else 0.2) * (high - low) or 0.05 * high
        axes.set_ylim(max(low - margin, 0.0), high + margin)
        ticks = [*map(float, MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(*axes.get_ylim()))]
    numbers = [tick for tick in MaxNLocator(10, integer=True).tick_values(first, reach) if tick >= first]
    draw_axis(axes, numbers, lambda tick: f"{tick:,.0f}", panel.noun, gap=2)
    divisor, unit = scale_ns(high)
    bottom, top = axes.get_ylim()
    for tick in ticks:
        if bottom <= tick <= top:
            axes.axhline(tick, color=RULE, linewidth=0.5, zorder=0.5)
            write(axes, -0.06 / _WIDE, tick, f"{tick / divisor:,.4g}", "right", at=axes.get_yaxis_transform())
    write_title(axes, 1 + 0.08 / size_of(axes)[1], f"{panel.title} ({unit})")
    _draw_points(axes, panel)


def _draw_points(axes: Axes, panel: SeriesPanel) -> None:
    """Draw the level, the steps above it, and the names of slow steps."""
    for x in panel.marks:
        axes.axvline(x, color=RULE, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    of_runs = panel.noun != _STEP
    axes.plot(
        *panel.level, color=INK if of_runs else FAINT, linewidth=1.6 if of_runs else 0.9, zorder=2, label="expected"
    )
    size = 4.5 + 2 * of_runs if len(panel.x) <= 200 else 3.0 if len(panel.x) <= 1000 else 1.8
    for code, colour in enumerate(panel.colours):
        mine = panel.colour == code
        if mine.any():
            width = size if code == 0 else max(size, 4.5 + 4 * of_runs)
            look: dict[str, Any] = {"color": colour, "markersize": width, "mew": 0, "clip_on": False}
            axes.plot(panel.x[mine], panel.y[mine], "o", zorder=3 + (code > 0), **look)
    places = Places(*size_of(axes))
    marks = [around(inches(axes, x, y), 0.05) for x, y, *_ in panel.names]
    places.mark(*marks)
    odd = np.flatnonzero((panel.colour > 0) | (len(panel.x) <= _MOST_AVOIDED))
    known = np.isfinite(panel.level[1])
    level = np.interp(np.linspace(0, float(panel.x.max()), 200), panel.level[0][known], panel.level[1][known])
    lines = zip(np.linspace(0, float(panel.x.max()), 200), level, strict=True)
    points = [*zip(panel.x[odd], panel.y[odd], strict=True), *lines]
    places.take(*(around(inches(axes, float(x), float(y)), 0.04) for x, y in points))
    for mark, (_, _, text, colour) in zip(marks, panel.names, strict=True):
        write_beside(axes, places, mark, text, readable(colour))


def _draw_distribution(side: Axes, axes: Axes, panel: SeriesPanel) -> None:
    """Draw the distribution of step times, with the bars of each colour beside the previous colour's."""
    for own in (side.xaxis, side.yaxis):
        own.set_visible(False)
    side.spines[["top", "right", "bottom"]].set_visible(False)
    side.spines["left"].set_color(RULE)
    side.set_yscale(axes.get_yscale())
    bottom, top = axes.get_ylim()
    side.set_ylim(bottom, top)
    spaced = np.geomspace if axes.get_yscale() == "log" else np.linspace
    bins = int(np.clip(3 * np.sqrt(len(panel.all_y)), _LEAST_BINS, _BINS))
    edges = spaced(bottom, top, bins + 1)
    counts = [np.histogram(panel.all_y[panel.all_colour == code], edges)[0] for code in range(len(panel.colours))]
    most = max(int(np.sum(counts, axis=0).max()), 1)
    side.set_xlim(0, 1.02)
    left = np.zeros(bins)
    for count, colour in zip(counts, panel.colours, strict=True):
        some = np.flatnonzero(count)
        right = left + np.where(count > 0, np.maximum(count / most, _LEAST_BAR), 0)
        if len(some):
            boxes(side, left[some], right[some], edges[some], edges[some + 1], colour, label="distribution")
        left = right
    text = f"{len(panel.all_y):,} {panel.noun}s"
    write(side, 0, -0.075 / size_of(side)[1], text, "left", "top", size=SMALL, at=side.transAxes, color=INK)
    write_title(side, 1 + 0.08 / size_of(side)[1], "distribution")
