"""The chart of ranks over time: a lane per rank, when it computes, communicates and idles."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from nsysprof.charts.axis import draw_axis
from nsysprof.charts.marks import PLOT_COLUMNS, Heading
from nsysprof.charts.palette import RULE
from nsysprof.charts.style import MARGIN, TEXT, WIDTH, framed, heading_height, shown, style, text_width
from nsysprof.core.text import one_line
from nsysprof.core.units import format_share, scale_ns
from nsysprof.fleet.answer import Fleet, RankLane
from nsysprof.fleet.findings import awaited_rank
from nsysprof.fleet.heatmap import PART_COLOURS, label_step
from nsysprof.fleet.range_iterations import WHOLE
from nsysprof.fleet.rank_part import TIMELINE_ITERATIONS

_HEIGHT, _LANE_MOST, _LANE_LEAST = 6.8, 0.6, 0.03  # inches of all lanes, and of one
_GAP_FROM = 0.12  # lanes of so many inches have a gap between them


def fleet_timeline(fleet: Fleet) -> Figure:
    """Lanes of ranks on one time axis; every column is coloured by how much of it each kind takes."""
    with style():
        return _draw(fleet)


def _draw(fleet: Fleet) -> Figure:
    lanes = fleet.lanes
    lane = min(_LANE_MOST, max(_LANE_LEAST, _HEIGHT / len(lanes)))
    kinds = [PART_COLOURS[name] for name in ("compute", "exposed")]
    heading = Heading(
        _title(fleet), _subtitle(fleet), legend=[*kinds, ("idle or copies", PART_COLOURS["idle"][1])]
    )
    top, bottom = heading_height(heading) + 0.15, 0.62
    body = lane * len(lanes)
    height = top + body + bottom
    figure = framed(heading, height)
    left = MARGIN + 0.15 + max(text_width(f"rank {each.rank}", TEXT) for each in lanes)
    wide = WIDTH - MARGIN - left
    axes = figure.add_axes((left / WIDTH, bottom / height, wide / WIDTH, body / height))
    end = max(1, *(each.end_ns for each in lanes))
    image = np.stack([_pixels(each, end, PLOT_COLUMNS) for each in lanes])
    around = (0, end, len(lanes) - 0.5, -0.5)
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=around, zorder=1)
    divisor, unit = scale_ns(end)
    axes.set_xlim(0, end)
    ticks = [tick * divisor for tick in MaxNLocator(10).tick_values(0, end / divisor)]
    draw_axis(axes, ticks, lambda tick: f"{tick / divisor:,.10g}", unit, gap=4)
    axes.spines[["left", "bottom"]].set_color(RULE)
    if lane >= _GAP_FROM:
        for at in range(1, len(lanes)):
            axes.axhline(at - 0.5, color="white", linewidth=min(0.18 * lane * 72, 6))
    step = label_step(lane)
    where = axes.get_yaxis_transform()
    for at in range(0, len(lanes), step):
        axes.text(
            -0.07 / wide,
            at,
            f"rank {lanes[at].rank}",
            transform=where,
            ha="right",
            va="center_baseline",
            fontsize=TEXT,
        )
    return figure


def _pixels(lane: RankLane, end: int, columns: int) -> NDArray[np.float64]:
    """The colours of a lane over the whole axis; white where the rank has nothing recorded."""
    edges = np.linspace(0, end, columns + 1)
    own = np.linspace(lane.start_ns, max(lane.end_ns, lane.start_ns + 1), len(lane.compute) + 1)
    width = np.diff(own)
    shares = []
    for values in (lane.compute, lane.exposed, np.ones(len(lane.compute))):
        before = np.append(0.0, np.cumsum(values * width))
        shares.append(np.diff(np.interp(edges, own, before)) / np.diff(edges))
    compute, exposed, inside = shares
    rest = np.clip(inside - compute - exposed, 0, 1)
    colours = [np.array(to_rgb(PART_COLOURS[name][1])) for name in ("compute", "exposed", "idle")]
    mixed = sum(
        share[:, None] * colour for share, colour in zip((compute, exposed, rest), colours, strict=True)
    )
    found: NDArray[np.float64] = np.clip(mixed + (1 - np.clip(inside, 0, 1))[:, None], 0, 1)
    return found


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
    return shown(one_line(f"{len(fleet.ranks):,} ranks · {what} · {fleet.clock}", 160))
