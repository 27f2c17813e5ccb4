"""The chart of ranks against ranges: who is slow, and in which part of an iteration."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nsysprof.charts.marks import BarPanel, Bars, Heading, Heat, Part
from nsysprof.charts.palette import COLOURS, IDLE, LESS, MORE, OTHERS
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns, format_ratio
from nsysprof.fleet.answer import Fleet
from nsysprof.fleet.findings import straggler_state, without_text
from nsysprof.fleet.range_iterations import WHOLE
from nsysprof.fleet.text import iteration_paths, rank_mark

# What a rank spends its time on, and its colour in the charts of a fleet.
PART_COLOURS = {
    "compute": ("compute", LESS),
    "exposed": ("communication that no compute hides", MORE),
    "copies": ("copies", OTHERS),
    "idle": ("idle", IDLE),
}
_COLOURS = COLOURS["norm"], COLOURS["softmax"]  # of fast and of slow: no colour of the parts
_MOST_COLUMNS = 10
_HEIGHT, _ROW_MOST, _ROW_LEAST = 6.6, 0.42, 0.03  # inches of all rows, and of one
_LARGEST = 1.5  # times the median rank: where the colours end
_COLUMN, _MOST_WIDE = 0.1, 0.6  # of the width: a column, and all of them


def plan_heatmap(fleet: Fleet) -> Bars:
    """Ranks from top to bottom, ranges of an iteration from left to right, coloured by own time against the median
    rank; beside them what each rank spends its time on.
    """
    columns = _columns(fleet)
    values, times = _cells(fleet, columns)
    marks = [rank_mark(row) for row in fleet.ranks.to_dict("records")]
    with np.errstate(divide="ignore", invalid="ignore"):
        shades = np.clip(np.log(values) / math.log(_LARGEST), -1, 1)
    wide = min(_COLUMN * len(columns), _MOST_WIDE)
    heat = Heat(
        share=wide,
        names=[_wrapped_name(fleet, path) for path in columns],
        values=np.where(np.isfinite(values), shades, np.nan),
        texts=[[_said(*cell) for cell in zip(*row, strict=True)] for row in zip(values, times, strict=True)],
        colours=_COLOURS,
        scale=(f"{1 / _LARGEST:.2f}x or less", "median rank", f"{_LARGEST:.1f}x or more"),
    )
    return Bars(
        heading=Heading(_title(fleet), _subtitle(fleet), legend=list(PART_COLOURS.values())),
        labels=[
            f"rank {rank} {mark}".rstrip() for rank, mark in zip(fleet.ranks["rank"], marks, strict=True)
        ],
        rest=None,
        panels=[heat, _shares(fleet, 1 - wide)],
        strong=[row for row, mark in enumerate(marks) if mark == "!"],
        row=min(_ROW_MOST, max(_ROW_LEAST, _HEIGHT / len(marks))),
    )


def _columns(fleet: Fleet) -> list[str]:
    """The iterations, and the ranges in them with the most own time, in the order of their paths."""
    spread = iteration_paths(fleet)
    if spread.empty:
        return [WHOLE]
    most = spread.sort_values("own_median_ns", ascending=False, kind="stable")["path"].tolist()[
        :_MOST_COLUMNS
    ]
    return [path for path in spread["path"].tolist() if path in set(most)]


def _cells(fleet: Fleet, columns: list[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How each rank compares to the median one, and its own time in ns; a row per rank, a column per path."""
    mine = fleet.paths[fleet.paths["path"].isin(columns)]
    basis = mine["own_median_ns"].where(mine["own_median_ns"].notna(), mine["own_ns"])
    order = fleet.ranks["rank"].tolist()
    found = []
    for name in ("relative", "basis"):
        table = mine.assign(basis=basis).pivot(index="rank", columns="path", values=name)
        found.append(table.reindex(index=order, columns=columns).to_numpy(np.float64))
    return found[0], found[1]


def _said(ratio: float, own: float) -> tuple[str, ...]:
    """What is written into a cell."""
    short = format_ratio(ratio) if math.isfinite(ratio) else ""
    return (f"{format_ns(own)} · {short}", short) if short else ()


def _title(fleet: Fleet) -> str:
    ranks = fleet.ranks
    slow = ranks[ranks["straggler"]].sort_values("ratio", ascending=False, kind="stable")
    if len(slow) == 1:
        row = slow.iloc[0]
        return f"Rank {int(row['rank'])} is a straggler: {format_ratio(row['ratio'])} the own time of the other ranks"
    if len(slow):
        named = ", ".join(str(rank) for rank in slow["rank"].head(4).tolist())
        return f"{len(slow)} stragglers: rank{'s' if len(slow) > 1 else ''} {named}{' …' if len(slow) > 4 else ''}"
    mine = fleet.iterations[
        (fleet.iterations["path"] == fleet.iteration_path) & (fleet.iterations["ranks"] > 1)
    ]
    if mine.empty:
        return "Own time of each rank against the median rank"
    state = straggler_state(ranks)
    if state.rank is not None:
        return state.short
    apart = format_ratio(float(mine["max_over_min"].median()))
    return f"{state.short}; within an iteration the slowest rank takes {apart} the fastest one's own time"


def _subtitle(fleet: Fleet) -> str:
    count = len(fleet.iterations[fleet.iterations["path"] == fleet.iteration_path])
    what = f"{count:,} iterations of {fleet.iteration_path}" if count else "whole reports"
    gpus = ", ".join(fleet.ranks["gpu_name"].drop_duplicates().tolist()[:2])
    return one_line(
        f"{len(fleet.ranks):,} ranks · {what} · {gpus} · own time: all but communication that no compute hides",
        160,
    )


def _wrapped_name(fleet: Fleet, path: str) -> list[str]:
    """A path below that of the iterations, its parts below each other, innermost last."""
    inner = path.removeprefix(f"{fleet.iteration_path}/")
    parts = inner.split("/")[-3:]
    return [one_line(part, 18) for part in parts]


def _shares(fleet: Fleet, share: float) -> BarPanel:
    """What each rank spends the time of its iterations on, as stacked bars that add up to 100 %."""
    ranks = fleet.usual
    whole = np.maximum(sum(ranks[f"{part}_ns"].to_numpy(np.float64) for part in PART_COLOURS), 1)
    whose = f"of the time in iterations{f' without {without_text(fleet.left_out)}' if fleet.left_out else ''}"
    left, parts = np.zeros(len(ranks)), []
    for part, (label, colour) in PART_COLOURS.items():
        right = left + ranks[f"{part}_ns"].to_numpy(np.float64) / whole
        parts.append(Part(label, colour, "none", np.arange(len(ranks)), left, right))
        left = right
    return BarPanel(one_line(whose, 80), share, 1, parts, percent=True)
