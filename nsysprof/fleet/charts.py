"""The charts over all ranks: ranks by ranges, and ranks over time."""

import math
from collections.abc import Iterator

import numpy as np

from nsysprof.charts.chart import Chart
from nsysprof.charts.marks import PLOT_COLUMNS, BarPanel, Bars, Heading, Heat, LanePanel, Lanes, Part, Ribbons
from nsysprof.charts.notebook import Overview
from nsysprof.charts.palette import COLOURS, IDLE, LESS, MORE, OTHERS
from nsysprof.core.arrays import Bytes, Floats
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.fleet.answer import Fleet, RankLane
from nsysprof.fleet.findings import middle_rank, straggler_state, time_shares, waiting_words, without_text
from nsysprof.fleet.rank_part import TIMELINE_ITERATIONS
from nsysprof.fleet.text import iteration_paths, rank_mark, rank_table, subject
from nsysprof.formats.rank_answer import WHOLE
from nsysprof.results.table import TextTable

# What a rank spends its time on, and its colour in the charts of a fleet.
_PART_COLOURS = {
    "compute": ("compute", LESS),
    "exposed": ("exposed communication", MORE),
    "copies": ("copies", OTHERS),
    "idle": ("idle", IDLE),
}
_FAST_AND_SLOW = COLOURS["norm"], COLOURS["softmax"]  # of fast and of slow: no colour of the parts
_MAX_PATHS = 10
_ROWS_INCHES, _MAX_ROW, _MIN_ROW = 6.6, 0.42, 0.03  # inches of all rows, and of one
DARKEST_RATIO = 1.5  # times the median rank: where the colours end
_PATH_WIDTH, _MAX_WIDTH = 0.1, 0.6  # of the width: a column, and all of them


def plan_heatmap(fleet: Fleet) -> Bars:
    """Draw a heatmap with ranks from top to bottom and ranges of an iteration from left to right.

    Colours show time excluding exposed communication, relative to the median rank (with two ranks, to their mean). The
    parts of each rank's time are beside the heatmap.
    """
    columns = _heatmap_paths(fleet)
    values, times = _cells(fleet, columns)
    marks = [rank_mark(row) for row in fleet.ranks.to_dict("records")]
    with np.errstate(divide="ignore", invalid="ignore"):
        shades = np.clip(np.log(values) / math.log(DARKEST_RATIO), -1, 1)
    inner = [path.removeprefix(f"{fleet.iteration_path}/").split("/") for path in columns]
    wide = min(_PATH_WIDTH * len(columns), _MAX_WIDTH)
    heat = Heat(
        share=wide,
        names=[[one_line(part, 18) for part in parts[-3:]] for parts in inner],
        values=np.where(np.isfinite(values), shades, np.nan),
        texts=[[_cell_texts(*cell) for cell in zip(*row, strict=True)] for row in zip(values, times, strict=True)],
        colours=_FAST_AND_SLOW,
        scale=(f"{1 / DARKEST_RATIO:.2f}x or less", middle_rank(len(fleet.ranks)), f"{DARKEST_RATIO:.1f}x or more"),
    )
    gpus = ", ".join(fleet.ranks["gpu_name"].drop_duplicates().tolist()[:2])
    own = "times exclude exposed communication"
    subtitle = one_line(f"{len(fleet.ranks):,} ranks · {subject(fleet)} · {gpus} · {own}", 160)
    return Bars(
        heading=Heading(_heatmap_title(fleet), subtitle, legend=list(_PART_COLOURS.values())),
        labels=[f"rank {rank} {mark}".rstrip() for rank, mark in zip(fleet.ranks["rank"], marks, strict=True)],
        rest=None,
        panels=[heat, _shares(fleet, 1 - wide)],
        strong=[row for row, mark in enumerate(marks) if mark == "!"],
        row=min(_MAX_ROW, max(_MIN_ROW, _ROWS_INCHES / len(marks))),
    )


def _heatmap_paths(fleet: Fleet) -> list[str]:
    """Choose the path of the iterations and, inside it, the ranges with the most own time, in the order of paths."""
    spread = iteration_paths(fleet)
    if spread.empty:
        return [WHOLE]
    most = spread.sort_values("own_median_ns", ascending=False, kind="stable")["path"].tolist()[:_MAX_PATHS]
    return [path for path in spread["path"].tolist() if path in set(most)]


def _cells(fleet: Fleet, columns: list[str]) -> tuple[Floats, Floats]:
    """Tabulate each rank's ratio to the median rank, and its own time in ns: a row per rank, a column per path."""
    paths = fleet.paths[fleet.paths["path"].isin(columns)]
    own = paths["own_median_ns"].where(paths["own_median_ns"].notna(), paths["own_ns"])
    order = fleet.ranks["rank"].tolist()
    relative, times = (
        paths.assign(own=own)
        .pivot(index="rank", columns="path", values=name)
        .reindex(index=order, columns=columns)
        .to_numpy(np.float64)
        for name in ("relative", "own")
    )
    return relative, times


def _cell_texts(ratio: float, own: float) -> tuple[str, ...]:
    short = format_ratio(ratio) if math.isfinite(ratio) else ""
    return (f"{format_ns(own)} · {short}", short) if short else ()


def _heatmap_title(fleet: Fleet) -> str:
    ranks = fleet.ranks
    slow = ranks[ranks["straggler"]].sort_values("ratio", ascending=False, kind="stable")
    if len(slow) == 1:
        row = slow.iloc[0]
        return f"Straggler: rank {int(row['rank'])} takes {format_ratio(row['ratio'])} as long as other ranks"
    if len(slow):
        named = ", ".join(str(rank) for rank in slow["rank"].head(4).tolist())
        return f"{len(slow)} stragglers: ranks {named}{' …' if len(slow) > 4 else ''}"
    iterations = fleet.iterations[fleet.iterations["path"] == fleet.iteration_path]
    shared = iterations[iterations["ranks"] > 1]
    if shared.empty:
        return f"Time of each rank relative to the {middle_rank(len(ranks))}, excluding exposed communication"
    state = straggler_state(ranks)
    if state.rank is not None:
        return state.short
    apart = format_ratio(float(shared["max_over_min"].median()))
    return f"{state.short}; the slowest rank of an iteration takes {apart} as long as the fastest"


def _shares(fleet: Fleet, share: float) -> BarPanel:
    """Stack the parts of each rank's iteration time, as bars that add up to 100 %."""
    ranks = fleet.usual
    whole = np.maximum(sum(ranks[f"{part}_ns"].to_numpy(np.float64) for part in _PART_COLOURS), 1)
    whose = f"of the time in iterations{f' without {without_text(fleet.left_out)}' if fleet.left_out else ''}"
    left, parts = np.zeros(len(ranks)), []
    for part, (label, colour) in _PART_COLOURS.items():
        right = left + ranks[f"{part}_ns"].to_numpy(np.float64) / whole
        parts.append(Part(label, colour, "none", np.arange(len(ranks)), left, right))
        left = right
    return BarPanel(one_line(whose, 80), share, 1, parts, percent=True)


_LANES_INCHES, _MAX_LANE, _MIN_LANE = 6.8, 0.6, 0.03  # inches of all lanes, and of one
_HOST_WIDTH = 24


def plan_rank_lanes(fleet: Fleet) -> Lanes:
    """Draw lanes of ranks on one time axis; the colours of a column show the share of each kind of time."""
    end = max(1, *(each.end_ns for each in fleet.lanes))
    hosts = dict(zip(fleet.ranks["rank"], fleet.ranks["host"], strict=True))
    several = len(set(hosts.values())) > 1
    kinds = [_PART_COLOURS[name] for name in ("compute", "exposed")]
    kinds.append(("idle or copies", _PART_COLOURS["idle"][1]))
    lanes = Ribbons(
        labels=[
            f"rank {each.rank}{f' · {one_line(hosts[each.rank], _HOST_WIDTH)}' if several else ''}"
            for each in fleet.lanes
        ],
        shares=np.stack([_column_shares(each, end) for each in fleet.lanes]),
        colours=[colour for _, colour in kinds],
        height=min(_MAX_LANE, max(_MIN_LANE, _LANES_INCHES / len(fleet.lanes))),
    )
    return Lanes(
        Heading(_lanes_title(fleet), _lanes_subtitle(fleet), kinds),
        [LanePanel([lanes], end, "", "time since the first rank began")],
    )


def _column_shares(lane: RankLane, end: int) -> Bytes:
    """The shares of each column of the axis, where the rank has a lane: compute, exposed communication, and neither."""
    edges = np.linspace(0, end, PLOT_COLUMNS + 1)
    own = np.linspace(lane.start_ns, max(lane.end_ns, lane.start_ns + 1), len(lane.compute) + 1)
    width = np.diff(own)
    compute, exposed, inside = (
        np.diff(np.interp(edges, own, np.append(0.0, np.cumsum(values * width)))) / np.diff(edges)
        for values in (lane.compute, lane.exposed, np.ones(len(lane.compute)))
    )
    parts: Floats = np.clip([compute, exposed, inside - compute - exposed], 0, 1)
    return (255 * parts).astype(np.uint8)


def _lanes_title(fleet: Fleet) -> str:
    ranks = fleet.usual
    inside, waits = (int(ranks[f"{name}_ns"].sum()) for name in ("collective", "waiting"))
    who, shares = waiting_words(ranks), time_shares(ranks)
    if who:
        return f"Ranks wait for {format_share(waits / inside)} of their time in collectives: {who}"
    if ranks["communication_ns"].any():
        return f"Exposed communication takes {shares['exposed communication']} of the time"
    return f"The ranks idle for {shares['idle']} of the time"


def _lanes_subtitle(fleet: Fleet) -> str:
    count = int(fleet.usual["iterations"].max())
    what = "whole reports"
    if fleet.iteration_path != WHOLE and count:
        some = f"the middle {TIMELINE_ITERATIONS} of " if count > TIMELINE_ITERATIONS else ""
        what = f"{some}{count:,} iterations of {fleet.iteration_path}"
    return one_line(f"{len(fleet.ranks):,} ranks · {what} · {fleet.clock}", 160)


FLEET_CHARTS: tuple[Chart[Fleet], ...] = (
    Chart("fleet_heatmap.png", "Time by rank and range, excluding exposed communication", plan_heatmap),
    Chart("fleet_timeline.png", "Ranks over time, one lane per rank", plan_rank_lanes),
)


def overview(fleet: Fleet) -> Overview:
    """The notebook view: the findings, and the ranks."""
    first, *others = fleet.findings or (f"{len(fleet.ranks):,} ranks",)

    def details() -> Iterator[str | TextTable]:
        yield from others
        yield rank_table(fleet, 16)

    return Overview(first, FLEET_CHARTS, details)
