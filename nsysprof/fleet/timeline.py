"""The chart of ranks over time: a lane per rank, when it computes, communicates and idles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.charts.marks import PLOT_COLUMNS, Heading, LanePanel, Lanes, Ribbons
from nsysprof.core.text import one_line
from nsysprof.core.units import format_share
from nsysprof.fleet.answer import Fleet, RankLane
from nsysprof.fleet.findings import awaited_rank
from nsysprof.fleet.heatmap import PART_COLOURS
from nsysprof.fleet.range_iterations import WHOLE
from nsysprof.fleet.rank_part import TIMELINE_ITERATIONS

_HEIGHT, _LANE_MOST, _LANE_LEAST = 6.8, 0.6, 0.03  # inches of all lanes, and of one
_HOST = 24


def plan_rank_lanes(fleet: Fleet) -> Lanes:
    """Lanes of ranks on one time axis; every column is coloured by how much of it each kind takes."""
    end = max(1, *(each.end_ns for each in fleet.lanes))
    hosts = dict(zip(fleet.ranks["rank"], fleet.ranks["host"], strict=True))
    several = len(set(hosts.values())) > 1
    kinds = [PART_COLOURS[name] for name in ("compute", "exposed")]
    kinds.append(("idle or copies", PART_COLOURS["idle"][1]))
    lanes = Ribbons(
        labels=[
            f"rank {each.rank}{f' · {one_line(hosts[each.rank], _HOST)}' if several else ''}"
            for each in fleet.lanes
        ],
        shares=np.stack([_columns(each, end) for each in fleet.lanes]),
        colours=[colour for _, colour in kinds],
        height=min(_LANE_MOST, max(_LANE_LEAST, _HEIGHT / len(fleet.lanes))),
    )
    return Lanes(
        Heading(_title(fleet), _subtitle(fleet), kinds),
        [LanePanel([lanes], end, "", "time since the first rank began")],
    )


def _columns(lane: RankLane, end: int) -> NDArray[np.uint8]:
    """How much of each column of the axis is compute, exposed communication, or neither, where the rank has any."""
    edges = np.linspace(0, end, PLOT_COLUMNS + 1)
    own = np.linspace(lane.start_ns, max(lane.end_ns, lane.start_ns + 1), len(lane.compute) + 1)
    width = np.diff(own)
    shares = []
    for values in (lane.compute, lane.exposed, np.ones(len(lane.compute))):
        before = np.append(0.0, np.cumsum(values * width))
        shares.append(np.diff(np.interp(edges, own, before)) / np.diff(edges))
    compute, exposed, inside = shares
    parts: NDArray[np.float64] = np.clip([compute, exposed, inside - compute - exposed], 0, 1)
    return (255 * parts).astype(np.uint8)


def _title(fleet: Fleet) -> str:
    ranks = fleet.usual
    inside, waits, caused = (int(ranks[f"{name}_ns"].sum()) for name in ("collective", "waiting", "caused"))
    exposed = float(ranks["exposed_ns"].sum() / max((ranks["own_ns"] + ranks["exposed_ns"]).sum(), 1))
    if inside and caused:
        most = awaited_rank(ranks)
        who = "the ranks take turns at being last" if most is None else f"mostly for rank {most}"
        return f"{format_share(waits / inside)} of the time in collectives is waiting: {who}"
    if ranks["communication_ns"].any():
        return f"Communication that no compute hides takes {format_share(exposed)} of the time"
    idle = float(ranks["idle_ns"].sum() / max((ranks["own_ns"] + ranks["exposed_ns"]).sum(), 1))
    return f"The ranks idle for {format_share(idle)} of the time"


def _subtitle(fleet: Fleet) -> str:
    count = int(fleet.usual["iterations"].max())
    what = "whole reports"
    if fleet.iteration_path != WHOLE and count:
        some = f"the middle {TIMELINE_ITERATIONS} of " if count > TIMELINE_ITERATIONS else ""
        what = f"{some}{count:,} iterations of {fleet.iteration_path}"
    return one_line(f"{len(fleet.ranks):,} ranks · {what} · {fleet.clock}", 160)
