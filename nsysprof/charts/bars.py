"""Draw rows of stacked bars with columns of numbers; also draw waterfalls from one total to another."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nsysprof.charts.marks import DPI, BarPanel, Bars, Column, Heat, Waterfall, Waterfalls
from nsysprof.charts.palette import FAINT, INK, LESS, MORE, OTHERS, RULE, WHOLE, text_on
from nsysprof.charts.style import (
    BOLD,
    MARGIN,
    SMALL,
    TEXT,
    WIDTH,
    WRITTEN,
    boxes,
    draw_axis,
    framed,
    heading_height,
    panel_column,
    shown_rows,
    size_of,
    text_width,
    wrap,
    write,
)
from nsysprof.core.arrays import Array
from nsysprof.core.text import shorten

_BAR = 0.74  # of a row
_THIN = 0.1  # inches of rows without gaps between their bars
_LINE = 0.15  # inches of a line of names
_GAP = 0.22  # inches between label, panels and columns
_AXIS = 0.55  # below the panels


def draw_bars(plan: Bars) -> Figure:
    """Draw the chart with one `Axes` per panel. Rows are at y = 0, 1, … from top to bottom."""
    rows = len(plan.labels)
    names = [len(name) for panel in plan.panels if isinstance(panel, Heat) for name in panel.names]
    top = heading_height(plan.heading) + 0.3 + _LINE * max(names, default=0)
    bottom = _AXIS + (0.2 if plan.heading.notes else 0)
    height = top + plan.row * max(rows, 2) + bottom
    figure = framed(plan.heading, height)
    lengths = [text_width(label, TEXT) * (BOLD if row in plan.strong else 1) for row, label in enumerate(plan.labels)]
    labels = max(lengths) + MARGIN + 0.1
    widths = [max(text_width(text, TEXT) for text in (each.heading, *each.texts)) + _GAP for each in plan.columns]
    free = WIDTH - (labels + sum(widths) + _GAP * len(plan.panels) + MARGIN)
    free /= sum(panel.share for panel in plan.panels)
    x = labels
    for number, panel in enumerate(plan.panels):
        width = free * panel.share
        axes = figure.add_axes((x / WIDTH, bottom / height, width / WIDTH, 1 - (top + bottom) / height))
        axes.set_ylim(max(rows, 2) - 0.5, -0.5)
        if isinstance(panel, Heat):
            _heat(axes, panel, plan.row)
        else:
            _prepare(axes, panel)
            _fill(axes, panel, _BAR if plan.row >= _THIN else 1.0)
        x += width
        if number == 0:
            for column, wide in zip(plan.columns, widths, strict=True):
                x += wide
                _write_column(axes, column, (x - labels) / width)
            _write_labels(axes, plan, width)
        x += _GAP
    return figure


def _prepare(axes: Axes, panel: BarPanel) -> None:
    axes.set_xlim(0, panel.end)
    if panel.percent:
        draw_axis(axes, [0, 0.25, 0.5, 0.75, 1], lambda tick: f"{100 * tick:.0f} %", panel.label, gap=4)
    else:
        ticks = MaxNLocator(6, integer=panel.whole).tick_values(0, panel.end)
        draw_axis(axes, ticks, lambda tick: f"{tick:,.10g}", panel.label, gap=4)


def _write_labels(axes: Axes, plan: Bars, width: float) -> None:
    """Write row labels as plain texts: tick labels take three times as long to draw."""
    x, where = -0.07 / width, axes.get_yaxis_transform()
    for row in shown_rows(len(plan.labels), plan.row, plan.strong):
        look = {"color": FAINT if row == plan.rest else INK, "weight": "bold" if row in plan.strong else "normal"}
        write(axes, x, row, plan.labels[row], "right", size=TEXT, at=where, **look)


def _write_column(axes: Axes, column: Column, x: float) -> None:
    """Write a column of numbers below its heading; ``x`` is its right edge, in widths of the panel."""
    where = axes.get_yaxis_transform()
    write(axes, x, -0.62, column.heading, "right", "bottom", size=TEXT, at=where, color=FAINT)
    for row, text in enumerate(column.texts):
        if text:
            write(axes, x, row, text, "right", size=TEXT, at=where)


def _fill(axes: Axes, panel: BarPanel, thick: float) -> None:
    """Draw the bars, with a labelled artist per part, and the texts and marks on them."""
    for part in panel.parts:
        place = part.left, part.right, part.rows - thick / 2, part.rows + thick / 2
        boxes(axes, *place, part.colour, label=part.label, edgecolors=part.edge, linewidths=0.4)
    if panel.marks:
        label, x = panel.marks
        y = np.arange(len(x))
        axes.vlines(x, y - 0.45, y + 0.45, colors="white", linewidth=3.2, zorder=3)
        axes.vlines(x, y - 0.45, y + 0.45, colors=INK, linewidth=1.6, zorder=4, label=label)
    for middle, row, text, colour in panel.inside:
        write(axes, middle, row, text, color=colour)
    if panel.cut is not None:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        write(axes, 1, panel.cut, " cut off »", "right", at=axes.get_yaxis_transform(), bbox=box)


def _heat(axes: Axes, panel: Heat, row: float) -> None:
    """Draw the cells with their texts, the names of the columns above, and the scale of the colours below."""
    rows, columns = panel.values.shape
    low, high = panel.colours
    colours = LinearSegmentedColormap.from_list("heat", [low, "#f4f4f4", high])
    wide, tall = size_of(axes)
    axes.set_axis_off()
    axes.set_xlim(-0.5, columns - 0.5)
    limits, around = axes.get_ylim(), (-0.5, columns - 0.5, rows - 0.5, -0.5)
    cells = np.ma.masked_invalid(panel.values)  # what is absent stays white
    axes.imshow(cells, aspect="auto", cmap=colours, vmin=-1, vmax=1, interpolation="nearest", extent=around)
    axes.set_ylim(limits)
    for at in range(1, columns):
        axes.axvline(at - 0.5, color="white", linewidth=2)
    if row >= WRITTEN:
        for at in range(1, rows):
            axes.axhline(at - 0.5, color="white", linewidth=1)
        for (at, column), value in np.ndenumerate(panel.values):
            texts = panel.texts[at][column] if np.isfinite(value) else ()
            text = next((each for each in texts if text_width(each, SMALL) <= wide / columns - 0.06), "")
            if text:
                write(axes, column, at, text, color=text_on(to_hex(colours((value + 1) / 2))))
    for at, name in enumerate(panel.names):
        write(axes, at, -0.5 - 0.06 / row, "\n".join(name), va="bottom", size=TEXT)
    scale = axes.inset_axes((0, -0.28 / tall, min(2.6 / wide, 1), 0.1 / tall))
    scale.imshow(np.linspace(-1, 1, 101)[None, :], aspect="auto", cmap=colours, extent=(-1, 1, 0, 1))
    scale.set_axis_off()
    for x, text, side in zip((-1, 0, 1), panel.scale, ("left", "center", "right"), strict=True):
        write(scale, x, -0.5, text, side, "top", color=INK if x else FAINT)


_TALL, _FLAT = 3.7, 1.25  # inches of the only panel, and of one among several
_LEFT, _RIGHT = 0.85, 0.3
_COLUMN_BAR = 0.64  # of a column
_WRITTEN = 0.36  # inches for two lines above a bar
_TITLE, _TEXT_LINE = 0.3, 0.155  # inches of a title, and of a line of text
_MIN_STEP = 2.0  # pixels of a step that hardly changes anything
_GRID = 4
_MAX_LINES = 3


def draw_waterfalls(plan: Waterfalls) -> Figure:
    """Draw the chart with one `Axes` per panel; columns are at x = 0, 1, …, and y is in the unit of the panel."""
    width = WIDTH - _LEFT - _RIGHT
    each = width / len(plan.columns)
    labels = [(_label_lines(name, each), _label_lines(remark, each) if remark else []) for name, remark in plan.columns]
    feet = 0.1 + _TEXT_LINE * max(len(lines) + len(remark) for lines, remark in labels)
    high = _TALL if len(plan.panels) == 1 else _FLAT
    titles = [_TITLE if panel.title else 0.0 for panel in plan.panels]
    foot = feet + 0.08 + (0.22 if plan.heading.notes else 0.0)
    sizes = [(title, high) for title in titles]
    figure, every = panel_column(plan.heading, sizes, left=_LEFT, wide=width, first=0.3, between=0.16, foot=foot)
    for axes, panel in zip(every, plan.panels, strict=True):
        _draw_panel(axes, panel, high)
    _write_columns(every[-1], labels)
    return figure


def _label_lines(name: str, width: float) -> list[str]:
    """The name of a column in at most three lines, broken at spaces and, if necessary, after hyphens."""
    room = width - 0.05
    words: list[str] = []
    for word in name.split(" "):
        parts = [word] if text_width(word, TEXT) <= room else word.replace("-", "- ").replace("_", "_ ").split(" ")
        for part in parts:
            wide = text_width(part, TEXT)
            words.append(part if wide <= room else shorten(part, max(int(len(part) * room / wide) - 1, 3)))
    lines = wrap(" ".join(words), TEXT, room, _MAX_LINES)
    while len(lines[-1]) > 2 and text_width(lines[-1], TEXT) > width:
        lines[-1] = lines[-1].removesuffix(" …")[:-1].rstrip() + " …"
    return lines


def _draw_panel(axes: Axes, panel: Waterfall, high: float) -> None:
    columns = len(panel.texts) + 2
    ends = np.array([sum(total) for total in panel.totals])
    low = float(min(0.0, panel.before.min(initial=0.0), panel.after.min(initial=0.0)))
    top = float(max(*ends, panel.before.max(initial=0.0), panel.after.max(initial=0.0)))
    ticks = np.asarray(MaxNLocator(_GRID, steps=[1, 2, 2.5, 5, 10]).tick_values(low, top or 1.0))
    ticks = ticks[(ticks >= low) & (ticks <= (top or 1.0))]
    top = low + (top - low) * high / (high - _WRITTEN) or 1.0
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(low, top)
    pixel = (top - low) / (high * DPI)
    _draw_axis(axes, panel, ticks.tolist())
    _draw_totals(axes, panel, columns, pixel)
    _draw_steps(axes, panel, pixel)
    _connect(axes, np.concatenate([[ends[0]], panel.after]), np.array([not text for text in panel.texts], bool))
    for x, y, lines in _written(panel, ends):
        _write(axes, x, y, lines, pixel)
    if panel.title:
        axes.set_title(panel.title, loc="left", fontsize=TEXT + 1, weight="bold", color=INK, pad=7)


def _draw_axis(axes: Axes, panel: Waterfall, ticks: Sequence[float]) -> None:
    """Draw horizontal lines with their numbers on the left, and the label of the axis above the numbers."""
    for own in (axes.xaxis, axes.yaxis):
        own.set_visible(False)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    where = axes.get_yaxis_transform()
    colours = [INK if tick == 0 else RULE for tick in ticks]
    axes.hlines(ticks, 0, 1, colors=colours, linewidth=0.6, zorder=0.5, transform=where)
    for tick in ticks:
        write(axes, -0.006, tick, f"{tick:,.6g}", "right", at=where, color=FAINT)
    left = -(_LEFT - MARGIN) / (WIDTH - _LEFT - _RIGHT)
    write(axes, left, 1.0, panel.label, "left", "top", at=axes.transAxes, color=FAINT)


def _draw_totals(axes: Axes, panel: Waterfall, columns: int, pixel: float) -> None:
    """Draw the first and the last bar: busy at the bottom, idle on top of it."""
    x = np.array([0.0, columns - 1.0])
    busy = np.array([part for part, _ in panel.totals])
    whole = np.array([sum(total) for total in panel.totals])
    thin = np.maximum(whole, _MIN_STEP * pixel)
    top = np.where(busy > 0, thin - whole + busy, 0)
    boxes(axes, x - _COLUMN_BAR / 2, x + _COLUMN_BAR / 2, 0.0, thin, OTHERS, label="idle")
    boxes(axes, x - _COLUMN_BAR / 2, x + _COLUMN_BAR / 2, 0.0, top, WHOLE, label="busy")


def _draw_steps(axes: Axes, panel: Waterfall, pixel: float) -> None:
    """Draw a bar per step, with one colour for decreases and one for increases."""
    x = np.arange(1.0, len(panel.texts) + 1)
    low, high = np.minimum(panel.before, panel.after), np.maximum(panel.before, panel.after)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, _MIN_STEP / 2 * pixel)
    shown = np.array([bool(text) for text in panel.texts], bool)
    for label, colour, steps in (
        ("less", LESS, shown & (panel.after <= panel.before)),
        ("more", MORE, shown & (panel.after > panel.before)),
    ):
        if steps.any():
            left = x[steps] - _COLUMN_BAR / 2
            edges = (middle - half)[steps], (middle + half)[steps]
            boxes(axes, left, left + _COLUMN_BAR, *edges, colour, label=label)


def _connect(axes: Axes, levels: Array, empty: Array) -> None:
    """Draw lines from bar to bar at the level reached, through columns in which nothing changes."""
    x = np.arange(len(levels))
    begin = np.where(np.append(False, empty), x - _COLUMN_BAR / 2, x + _COLUMN_BAR / 2)
    axes.hlines(levels, begin, x + 1 - _COLUMN_BAR / 2, FAINT, linewidth=0.8, zorder=1.5, label="connectors")


def _written(panel: Waterfall, ends: Array) -> Iterator[tuple[float, float, list[tuple[str, str]]]]:
    """The texts above the bars: x, y and the lines (text, colour), top line first."""
    for x, text, end in zip((0, len(panel.texts) + 1), panel.total_texts, ends.tolist(), strict=True):
        yield x, end, [(text, INK)]
    tops = np.maximum(panel.before, panel.after)
    for step, (text, share) in enumerate(zip(panel.texts, panel.shares, strict=True)):
        lines = [(text, INK), (share, FAINT)] if share else [(text, INK)]
        if text:
            yield step + 1, float(tops[step]), lines


def _write(axes: Axes, x: float, y: float, lines: Sequence[tuple[str, str]], pixel: float) -> None:
    total = x in (0, round(axes.get_xlim()[1] - 0.5))
    for number, (text, colour) in enumerate(reversed(lines)):
        y_of = y + (8 + _TEXT_LINE * DPI * number) * pixel
        size, weight = TEXT if number or len(lines) == 1 else SMALL, "bold" if total else "normal"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        write(axes, x, y_of, text, va="baseline", size=size, color=colour, weight=weight, zorder=3, bbox=box)


def _write_columns(axes: Axes, labels: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
    """Write the names of the columns below the last panel, each with its remark below it."""
    inch = DPI / axes.bbox.height
    where = axes.get_xaxis_transform()
    for x, (lines, remarks) in enumerate(labels):
        weight = "bold" if x in (0, len(labels) - 1) else "normal"
        for number, line in enumerate([*lines, *remarks]):
            own = {"size": TEXT, "color": INK, "weight": weight} if number < len(lines) else {"color": FAINT}
            write(axes, x, -(0.07 + _TEXT_LINE * number) * inch, line, va="top", at=where, **own)
