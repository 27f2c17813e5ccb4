"""Stacked bars as parts of a plan: a part per group of ops, in its colour."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nsysprof.analyze.subject import group_colours
from nsysprof.charts.marks import Numbers, Part
from nsysprof.charts.palette import text_on
from nsysprof.kernels.groups import OpGroups


def stack(values: Numbers, groups: OpGroups, scale: float = 1.0) -> tuple[list[Part], Numbers]:
    """The parts of a bar per row, and where each bar ends.

    ``values`` has a row per bar and a column per group; ``scale`` turns it into the unit of the axis.
    """
    right = np.cumsum(values, axis=1) / scale
    left = right - values / scale
    parts = []
    for number, (label, colour) in enumerate(zip(groups.labels, group_colours(groups), strict=True)):
        some = np.flatnonzero(values[:, number] > 0)
        if len(some):
            parts.append(Part(label, colour, "white", some, left[some, number], right[some, number]))
    ends: Numbers = right[:, -1] if len(values) else np.empty(0)
    return parts, ends


def add_part(left: Numbers, right: Numbers, colour: str, label: str) -> list[Part]:
    """One more part behind the bars of all rows where it has a length."""
    some = np.flatnonzero(right > left)
    return [Part(label, colour, "#b0b0b0", some, left[some], right[some])] if len(some) else []


def texts_inside(
    values: Numbers, groups: OpGroups, text: Callable[[float], str], least: float
) -> list[tuple[float, int, str, str]]:
    """A text for each part that holds at least ``least`` of an axis that ends at 1: (x, row, text, colour)."""
    left = np.cumsum(values, axis=1) - values
    colours = group_colours(groups)
    return [
        (
            float(left[row, number] + values[row, number] / 2),
            int(row),
            text(values[row, number]),
            text_on(colours[number]),
        )
        for row, number in zip(*np.nonzero(values >= least), strict=True)
    ]
