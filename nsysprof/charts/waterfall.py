"""Draws waterfalls: a total, the steps that change it, and what it becomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nsysprof.charts.marks import DPI, Numbers, Waterfall, Waterfalls
from nsysprof.charts.palette import FAINT, INK, LESS, MORE, OTHERS, RULE, WHOLE
from nsysprof.charts.style import MARGIN, SMALL, TEXT, WIDTH, boxes, panel_column, text_width, wrap, write
from nsysprof.core.text import shorten

_TALL, _FLAT = 3.7, 1.25  # inches of the only panel, and of one among several
_LEFT, _RIGHT = 0.85, 0.3
_BAR = 0.64  # of a column
_WRITTEN = 0.36  # inches for two lines above a bar
_TITLE, _LINE = 0.3, 0.155  # inches of a title, and of a line of text
_MIN_STEP = 2.0  # pixels of a step that hardly changes anything
_GRID = 4
_MAX_LINES = 3


def draw_waterfalls(plan: Waterfalls) -> Figure:
    """Draw the chart with an `Axes` per panel; columns are at x = 0, 1, …, y in the unit of the panel."""
    width = WIDTH - _LEFT - _RIGHT
    labels = [_label_lines(name, width / len(plan.columns)) for name, _ in plan.columns]
    remarks = any(remark for _, remark in plan.columns)
    feet = 0.1 + _LINE * (max(map(len, labels)) + remarks)
    high = _TALL if len(plan.panels) == 1 else _FLAT
    titles = [_TITLE if panel.title else 0.0 for panel in plan.panels]
    foot = feet + 0.08 + (0.22 if plan.heading.notes else 0.0)
    sizes = [(title, high) for title in titles]
    figure, every = panel_column(
        plan.heading, sizes, left=_LEFT, wide=width, first=0.3, between=0.16, foot=foot
    )
    for axes, panel in zip(every, plan.panels, strict=True):
        _draw_panel(axes, panel, high)
    _write_columns(every[-1], labels, [remark for _, remark in plan.columns])
    return figure


def _label_lines(name: str, width: float) -> list[str]:
    """The name of a column in at most three lines, broken at spaces and, where need be, behind hyphens."""
    room = width - 0.05
    words: list[str] = []
    for word in name.split(" "):
        parts = (
            [word]
            if text_width(word, TEXT) <= room
            else word.replace("-", "- ").replace("_", "_ ").split(" ")
        )
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
    levels = np.concatenate([[ends[0]], panel.after])
    _connect(axes, levels, np.array([not text for text in panel.texts], bool))
    for x, y, lines in _written(panel, ends):
        _write(axes, x, y, lines, pixel)
    if panel.title:
        axes.set_title(panel.title, loc="left", fontsize=TEXT + 1, weight="bold", color=INK, pad=7)


def _draw_axis(axes: Axes, panel: Waterfall, ticks: Sequence[float]) -> None:
    """Draw lines across with their numbers on the left, and the label of the axis above these."""
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
    boxes(axes, x - _BAR / 2, x + _BAR / 2, 0.0, thin, OTHERS, label="idle")
    boxes(axes, x - _BAR / 2, x + _BAR / 2, 0.0, top, WHOLE, label="busy")


def _draw_steps(axes: Axes, panel: Waterfall, pixel: float) -> None:
    """Draw a bar per step: one colour for what gets less, one for what gets more."""
    x = np.arange(1.0, len(panel.texts) + 1)
    low, high = np.minimum(panel.before, panel.after), np.maximum(panel.before, panel.after)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, _MIN_STEP / 2 * pixel)
    shown = np.array([bool(text) for text in panel.texts], bool)
    for label, colour, steps in (
        ("less", LESS, shown & (panel.after <= panel.before)),
        ("more", MORE, shown & (panel.after > panel.before)),
    ):
        if steps.any():
            left = x[steps] - _BAR / 2
            edges = (middle - half)[steps], (middle + half)[steps]
            boxes(axes, left, left + _BAR, *edges, colour, label=label)


def _connect(axes: Axes, levels: Numbers, empty: Numbers) -> None:
    """Draw lines from bar to bar at the level reached, through columns in which nothing changes."""
    x = np.arange(len(levels))
    begin = np.where(np.append(False, empty), x - _BAR / 2, x + _BAR / 2)
    axes.hlines(levels, begin, x + 1 - _BAR / 2, FAINT, linewidth=0.8, zorder=1.5, label="connectors")


def _written(panel: Waterfall, ends: Numbers) -> Iterator[tuple[float, float, list[tuple[str, str]]]]:
    """The texts above the bars: x, y and the lines (text, colour), the uppermost first."""
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
        y_of = y + (8 + _LINE * DPI * number) * pixel
        size, weight = TEXT if number or len(lines) == 1 else SMALL, "bold" if total else "normal"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        write(axes, x, y_of, text, va="baseline", size=size, color=colour, weight=weight, zorder=3, bbox=box)


def _write_columns(axes: Axes, labels: Sequence[Sequence[str]], remarks: Sequence[str]) -> None:
    """Write the names of the columns below the last panel, and below each its remark."""
    inch = DPI / axes.bbox.height
    where = axes.get_xaxis_transform()
    for x, (lines, remark) in enumerate(zip(labels, remarks, strict=True)):
        weight = "bold" if x in (0, len(labels) - 1) else "normal"
        for number, line in enumerate(lines):
            y = -(0.07 + _LINE * number) * inch
            write(axes, x, y, line, va="top", size=TEXT, at=where, color=INK, weight=weight)
        write(axes, x, -(0.07 + _LINE * len(lines)) * inch, remark, va="top", at=where, color=FAINT)
