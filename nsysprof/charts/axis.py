"""Axes: at the bottom of a panel, as a few plain artists, and planes of two logarithmic ones.

matplotlib's own ticks are made for panning and zooming, and would take half of the time to draw a small chart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from nsysprof.charts.marks import DPI, Axis
from nsysprof.charts.palette import FAINT, RULE
from nsysprof.charts.style import TEXT, inches, size_of, text_width, write, write_title
from nsysprof.core.units import scale_ns

_TICK, _PAD, _LINE = 3.0, 3.5, 7.5  # points: length of a tick, gap below it, height of its number


def draw_axis(
    axes: Axes, ticks: Sequence[float], text: Callable[[float], str], label: str, *, gap: float
) -> None:
    """Draw the axis below ``axes``, whose limits must be final: ticks outside of them are left out.

    ``text`` turns a tick into its number; ``gap`` are the points between numbers and label.
    """
    for own in (axes.xaxis, axes.yaxis):
        own.set_visible(False)
    axes.spines[["top", "right"]].set_visible(False)
    low, high = axes.get_xlim()
    slack = 1e-9 * (high - low)
    x = np.array([tick for tick in ticks if low - slack <= tick <= high + slack])
    point = DPI / 72 / axes.bbox.height
    where = axes.get_xaxis_transform()
    for top, bottom, colour, width, height in (
        (1.0, 0.0, RULE, 0.5, 0.5),
        (0.0, -_TICK * point, FAINT, 0.8, 2.0),
    ):
        look: dict[str, Any] = {"linewidth": width, "zorder": height, "clip_on": False}
        axes.vlines(x, bottom, top, colour, transform=where, **look)
    below = -(_TICK + _PAD) * point
    for tick in x.tolist():
        write(axes, tick, below, text(tick), va="top", at=where)
    write(axes, 0, below - (_LINE + gap) * point, label, "left", "top", size=TEXT, at=axes.transAxes)


def draw_time_axis(axes: Axes, length: int, label: str) -> None:
    """Draw the axis of ``length`` ns, in the unit that suits it."""
    divisor, unit = scale_ns(length)
    ticks = MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]).tick_values(*axes.get_xlim())
    draw_axis(axes, ticks, lambda tick: f"{tick / divisor:,.6g}", f"{label} ({unit})", gap=2)
    axes.spines["left"].set_visible(False)


def draw_plane(axes: Axes, x: Axis, y: Axis, title: str = "") -> None:
    """Scale both axes logarithmically, with numbers and labels; ``title`` stands above in bold."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(y.low, y.high)
    for axis, ticks in ((axes.xaxis, _apart(axes, x.ticks)), (axes.yaxis, y.ticks)):
        axis.set_ticks([tick for tick, _ in ticks], [text for _, text in ticks])
        axis.set_ticks([], minor=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=3, labelsize=TEXT)
    axes.grid(visible=True, color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(x.label, fontsize=TEXT + 0.5, loc="left")
    # Above the axis, to be read without turning the head.
    write(axes, 0, 1.015, y.label, "left", "baseline", size=TEXT + 0.5, at=axes.transAxes, color=FAINT)
    if title:
        write_title(axes, 1.02 + 0.2 / size_of(axes)[1], title)


def _apart(axes: Axes, ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The ticks whose numbers do not touch: the last one, and each before it that has room."""
    shown: list[tuple[float, str]] = []
    edge = np.inf
    for tick, text in reversed(ticks):
        place, half = inches(axes, tick, axes.get_ylim()[0])[0], text_width(text, TEXT) / 2 + 0.07
        if place + half <= edge:
            shown.append((tick, text))
            edge = place - half
    return shown[::-1]
