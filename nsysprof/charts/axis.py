"""The axis at the bottom of a panel: ticks, their numbers, lines upwards from them, and what it measures.

Drawn as a few plain artists. matplotlib's own ticks are made for panning and zooming; half of the time to draw a small
chart would be theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from nsysprof.charts.marks import DPI
from nsysprof.charts.palette import FAINT, RULE
from nsysprof.charts.style import SMALL, TEXT

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
        lines = np.stack([np.stack([x, x], -1), np.broadcast_to([bottom, top], (len(x), 2))], -1)
        axes.add_collection(
            LineCollection(
                list(lines), colors=colour, linewidths=width, zorder=height, transform=where, clip_on=False
            ),
            autolim=False,
        )
    below = -(_TICK + _PAD) * point
    for tick in x.tolist():
        axes.text(tick, below, text(tick), transform=where, ha="center", va="top", fontsize=SMALL)
    axes.text(
        0, below - (_LINE + gap) * point, label, transform=axes.transAxes, ha="left", va="top", fontsize=TEXT
    )
