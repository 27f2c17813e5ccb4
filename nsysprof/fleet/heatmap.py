"""The chart of ranks against ranges: who is slow, and in which part of an iteration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nsysprof.charts.axis import draw_axis
from nsysprof.charts.marks import Heading
from nsysprof.charts.palette import COLOURS, FAINT, IDLE, INK, LESS, MORE, OTHERS
from nsysprof.charts.style import (
    MARGIN,
    SMALL,
    TEXT,
    WIDTH,
    boxes,
    framed,
    heading_height,
    shown,
    style,
    text_width,
)
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
_FAST, _SLOW = COLOURS["norm"], COLOURS["softmax"]  # no colour of the parts
_MOST_COLUMNS = 10
_HEIGHT, _ROW_MOST, _ROW_LEAST = 6.6, 0.42, 0.03  # inches of all rows, and of one
_WRITTEN = 0.17  # inches that a row with text in it takes
_LARGEST = 1.5  # times the median rank: where the colours end


def fleet_heatmap(fleet: Fleet) -> Figure:
    """Ranks from top to bottom, ranges of an iteration from left to right, coloured by own time against the median
    rank; beside them what each rank spends its time on.
    """
    with style():
        return _draw(fleet)


def _draw(fleet: Fleet) -> Figure:
    columns = _columns(fleet)
    ranks = fleet.ranks["rank"].tolist()
    values, times = _cells(fleet, columns)
    row = min(_ROW_MOST, max(_ROW_LEAST, _HEIGHT / len(ranks)))
    heading = Heading(_title(fleet), _subtitle(fleet), legend=list(PART_COLOURS.values()))
    names = [_wrapped_name(fleet, path) for path in columns]
    top = heading_height(heading) + 0.28 + 0.15 * max(len(name) for name in names)
    body, bottom = row * len(ranks), 0.62
    height = top + body + bottom
    figure = framed(heading, height)
    left = MARGIN + 0.15 + max(text_width(f"rank {rank} !", TEXT) for rank in ranks)
    # what there is room for: a column of numbers needs no more
    wide = min(1.15 * len(columns), WIDTH - left - 4.6)
    axes = figure.add_axes((left / WIDTH, bottom / height, wide / WIDTH, body / height))
    _heat(axes, values, times, row, wide / max(len(columns), 1), names)
    _rank_labels(axes, fleet, row, wide)
    _scale(figure, left, wide, height)
    side = left + wide + 0.35
    shares = figure.add_axes(
        (side / WIDTH, bottom / height, (WIDTH - MARGIN - side - 0.1) / WIDTH, body / height)
    )
    _shares(shares, fleet)
    return figure


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
    return shown(
        one_line(
            f"{len(fleet.ranks):,} ranks · {what} · {gpus} · own time: all but communication that no compute hides",
            160,
        )
    )


def _wrapped_name(fleet: Fleet, path: str) -> list[str]:
    """A path below that of the iterations, its parts below each other, innermost last."""
    inner = path.removeprefix(f"{fleet.iteration_path}/")
    parts = inner.split("/")[-3:]
    return [shown(one_line(part, 18)) for part in parts]


def _heat(
    axes: Axes,
    values: NDArray[np.float64],
    times: NDArray[np.float64],
    row: float,
    wide: float,
    names: list[list[str]],
) -> None:
    size = values.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        image = np.log(values)
    axes.imshow(
        np.ma.masked_invalid(image),
        aspect="auto",
        cmap=_map(),
        norm=Normalize(-math.log(_LARGEST), math.log(_LARGEST)),
        interpolation="nearest",
        extent=(-0.5, size[1] - 0.5, size[0] - 0.5, -0.5),
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    for at in range(1, size[1]):
        axes.axvline(at - 0.5, color="white", linewidth=2)
    if row >= _WRITTEN:
        for at in range(1, size[0]):
            axes.axhline(at - 0.5, color="white", linewidth=1)
        for place in np.ndindex(*size):
            value = float(values[place])
            if math.isfinite(value):
                text = f"{format_ns(float(times[place]))} · {format_ratio(value)}"
                if text_width(text, SMALL) > wide - 0.06:
                    text = format_ratio(value)
                axes.text(
                    place[1], place[0], text, ha="center", va="center_baseline", fontsize=SMALL, color=INK
                )
    for at, name in enumerate(names):
        axes.text(
            at, -0.5 - 0.06 / row, "\n".join(name), ha="center", va="bottom", fontsize=TEXT, clip_on=False
        )


def _map() -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list(
        "ranks", [_FAST, "#f4f4f4", _SLOW]
    )  # what is absent stays transparent


def label_step(row: float) -> int:
    """Every how many rows, a round number, there is room for a label; ``row`` in inches."""
    return next(step for step in (1, 2, 5, 10, 20, 50, 100) if step * row >= _WRITTEN or step == 100)


def _rank_labels(axes: Axes, fleet: Fleet, row: float, wide: float) -> None:
    """Every rank where there is room, else some; stragglers always, in bold."""
    step = label_step(row)
    where = axes.get_yaxis_transform()
    used: list[int] = []
    marks = [rank_mark(row) for row in fleet.ranks.to_dict("records")]
    slow = [mark == "!" for mark in marks]
    numbers = fleet.ranks["rank"].tolist()
    places = [at for at in range(len(numbers)) if slow[at]] + [*range(0, len(numbers), step)]
    for at in places:
        if any(abs(at - other) < step for other in used):
            continue
        used.append(at)
        look: dict[str, Any] = {"weight": "bold"} if slow[at] else {}
        label = f"rank {numbers[at]} {marks[at]}".rstrip()
        axes.text(
            -0.07 / wide, at, label, transform=where, ha="right", va="center_baseline", fontsize=TEXT, **look
        )


def _scale(figure: Figure, left: float, wide: float, height: float) -> None:
    """What the colours mean."""
    width = min(wide, 2.6)
    axes = figure.add_axes((left / WIDTH, 0.34 / height, width / WIDTH, 0.1 / height))
    line = np.linspace(-1, 1, 101)[None, :]
    axes.imshow(line, aspect="auto", cmap=_map(), extent=(-1, 1, 0, 1))
    axes.set_axis_off()
    for x, text, side in (
        (-1, f"{1 / _LARGEST:.2f}x or less", "left"),
        (1, f"{_LARGEST:.1f}x or more", "right"),
    ):
        axes.text(x, -0.5, text, ha=side, va="top", fontsize=SMALL, clip_on=False)
    axes.text(0, -0.5, "median rank", ha="center", va="top", fontsize=SMALL, color=FAINT, clip_on=False)


def _shares(axes: Axes, fleet: Fleet) -> None:
    """What each rank spends the time of its iterations on, as stacked bars that add up to 100 %."""
    ranks = fleet.usual
    whole = np.maximum(sum(ranks[f"{part}_ns"].to_numpy(np.float64) for part in PART_COLOURS), 1)
    rows = np.arange(len(ranks))
    axes.set_xlim(0, 1)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    whose = f"of the time in iterations{f' without {without_text(fleet.left_out)}' if fleet.left_out else ''}"
    draw_axis(axes, [0, 0.25, 0.5, 0.75, 1], lambda tick: f"{100 * tick:.0f} %", one_line(whose, 80), gap=4)
    thick = 0.42 if len(ranks) <= 40 else 0.5
    left = np.zeros(len(ranks))
    for part, (label, colour) in PART_COLOURS.items():
        right = left + ranks[f"{part}_ns"].to_numpy(np.float64) / whole
        boxes(axes, left, right, rows - thick, rows + thick, colours=colour, label=label)
        left = right
