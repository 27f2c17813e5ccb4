"""Draws lines over logarithmic axes: bands around them, levels across, and a name at the end of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nsysprof.charts.axis import draw_plane
from nsysprof.charts.marks import Line, LinePanel, Lines
from nsysprof.charts.palette import FAINT, INK, readable
from nsysprof.charts.places import Box, Places, around, free_place, pushed_apart
from nsysprof.charts.style import SMALL, TEXT, inches, panel_grid, size_of, text_width

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


def draw_lines(plan: Lines) -> Figure:
    """The chart as a figure with an `Axes` per panel."""
    ends = [each.end for panel in plan.panels for each in panel.lines]
    ends += [text for panel in plan.panels for _, text, _ in panel.levels]
    right = max([1.0, *(text_width(text, TEXT) for text in ends)]) + _LEAD + 0.07
    high = _ONE if len(plan.panels) == 1 else _SEVERAL
    figure, every = panel_grid(plan.heading, len(plan.panels), high=high, left=0.85, right=right)
    for axes, panel in zip(every, plan.panels, strict=True):
        draw_plane(axes, panel.x, panel.y, panel.title)
        if not panel.lines:
            axes.text(0.5, 0.5, "no figures", transform=axes.transAxes, ha="center", color=FAINT)
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
    """The line with its markers and its band."""
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
    """Squares along a line, as it is drawn, and on its points."""
    points = np.array([inches(axes, x, y) for x, y in zip(line.x, line.y, strict=True)])
    joined = pairwise(points) if line.look != "none" else ()
    between = [np.linspace(one, other, 16) for one, other in joined]
    return [around((x, y), 0.05) for x, y in np.concatenate([points, *between]).tolist()]


def _write_ends(axes: Axes, panel: LinePanel) -> list[Box]:
    """Names right of the ends of lines and levels, pushed apart where they would overlap; where they are."""
    wide, high = size_of(axes)
    last = max(line.x[-1] for line in panel.lines)
    by_end: dict[float, list[tuple[float, str, str]]] = {}
    for line in panel.lines:
        if line.end:
            across, up = inches(axes, line.x[-1], line.y[-1])
            by_end.setdefault(wide if line.x[-1] == last else across + 0.06, []).append(
                (up, line.end, line.colour)
            )
    for level, text, _ in panel.levels:
        if text:
            by_end.setdefault(wide, []).append((inches(axes, last, level)[1], text, INK))
    taken = []
    for across, labels in by_end.items():
        put = pushed_apart(np.array([up for up, *_ in labels]), _GAP, high).tolist()
        for (up, text, colour), at in zip(labels, put, strict=True):
            axes.plot(
                [across / wide, (across + 0.12) / wide], [up / high, at / high], transform=axes.transAxes,
                color=colour, linewidth=0.7, clip_on=False,
            )  # fmt: skip
            axes.text(
                (across + 0.16) / wide, at / high, text, transform=axes.transAxes, fontsize=TEXT,
                color=readable(colour), va="center", label="end label", zorder=6,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
            )  # fmt: skip
            end = across + 0.2 + text_width(text, TEXT)
            taken.append(Box(across, end, at - _GAP / 2, at + _GAP / 2))
    return taken


def _draw_spots(axes: Axes, panel: LinePanel, places: Places) -> None:
    """Crosses, and rings with words beside them where there is room for these."""
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
    """Write a name where the nearest free place is, with a line to it where it stands apart; nothing without one."""
    found = free_place(places, mark, text_width(text, SMALL), _LINE)
    if found is None:
        return
    box, line = found
    places.put(box, line)
    size = np.array([places.wide, places.high])
    if line:
        ends = np.array(line) / size
        axes.plot(
            *ends.T, transform=axes.transAxes, color=FAINT, linewidth=0.6, zorder=3, clip_on=False,
            label="to its name",
        )  # fmt: skip
    across, up = (np.array([box.left + box.right, box.low + box.high]) / 2 / size).tolist()
    axes.text(
        across, up, text, transform=axes.transAxes, fontsize=SMALL, color=colour, ha="center",
        va="center_baseline", zorder=5,
    )  # fmt: skip


def draw_path(axes: Axes, path: Line) -> None:
    """Points of a roofline, joined by a thin line."""
    axes.plot(
        path.x, path.y, color=path.colour, marker=path.marker, markersize=6.5, linewidth=1.0,
        linestyle=DASHES[path.look], label=path.label, zorder=4,
    )  # fmt: skip


def named_points(axes: Axes, paths: Sequence[Line]) -> list[tuple[Box, str, str]]:
    """The points of paths that have names: where each is, the name, its colour; of equal names close by the first."""
    found: list[tuple[Box, str, str]] = []
    for path in paths:
        for x, y, name in zip(path.x, path.y, path.names, strict=True):
            mark = around(inches(axes, x, y), 0.05)
            near = [
                other
                for other, said, _ in found
                if said == name and np.hypot(other.left - mark.left, other.low - mark.low) < 0.1
            ]
            if name and not near:
                found.append((mark, name, readable(path.colour)))
    return found
