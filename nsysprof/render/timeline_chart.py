"""``timeline.png``: streams and ranges over time, and one instance op by op."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nsysprof.breakdown import Breakdown
from nsysprof.kernels import FAMILIES
from nsysprof.render.lanes import (
    AXIS_BELOW,
    LEFT,
    PLOT,
    RANGE,
    STREAM,
    TITLE_ABOVE,
    Marks,
    Panel,
    Tints,
    draw_panel,
)
from nsysprof.render.style import (
    COLOURS,
    DPI,
    IDLE,
    INK,
    SMALL,
    WIDTH,
    boxes,
    family_legend,
    footer,
    header,
    header_height,
    legend,
    legend_height,
    new_figure,
    printable,
    shorten,
    subtitle,
)
from nsysprof.stream_lanes import NOTHING, StreamLane, stream_labels
from nsysprof.timeline import RangeLane, Timeline
from nsysprof.units import format_ns, format_share
from nsysprof.zoom import Zoom

OTHERS = "#c4c4c4"  # ops of other ranges


def draw_timeline(answer: Timeline) -> Figure:
    """Draw the overview and, below it, the zoom: one panel, or two where the host was far ahead of the GPU."""
    zoom, breakdown = answer.zoom, answer.breakdown
    label = "time since the first launch, range or op"
    overview = Panel(_in_order(answer), answer.start_ns, answer.end_ns, "", label)
    panels = [overview, *(_zoom_panels(answer, zoom) if zoom else [])]
    entries = _legend_entries(answer)
    notes = _notes(answer)
    what = title(answer)
    y = header_height(what) + legend_height([label for label, _ in entries]) + 0.2
    bottom = 0.2 if notes else 0.0
    height = (
        y + bottom + sum(panel.height + (TITLE_ABOVE if panel.title else 0) + AXIS_BELOW for panel in panels)
    )
    figure = new_figure(height)
    header(figure, what, subtitle(breakdown))
    legend(figure, entries, header_height(what))
    footer(figure, notes)
    drawn = []
    for panel in panels:
        y += (TITLE_ABOVE if panel.title else 0) + panel.height
        axes = figure.add_axes((LEFT / WIDTH, 1 - y / height, PLOT / WIDTH, panel.height / height))
        draw_panel(axes, panel, answer)
        drawn.append(axes)
        y += AXIS_BELOW
    if zoom:
        _mark_zoom(drawn[0], zoom, answer.start_ns)
        _draw_gaps(drawn[-1], zoom, panels[-1])
    return figure


def _zoom_panels(answer: Timeline, zoom: Zoom) -> list[Panel]:
    host, streams = _zoom_lanes(zoom, answer.breakdown)
    what = shorten(_zoom_title(zoom), 150)
    label = "time from {} of the axis at the top"
    if not zoom.ahead_ns:
        below = label.format(format_ns(zoom.start_ns - answer.start_ns))
        return [Panel([*host, *streams], zoom.start_ns, zoom.end_ns, what, below)]
    times = [format_ns(start - answer.start_ns) for start in (zoom.host_start_ns, zoom.start_ns)]
    which = "later" if zoom.ahead_ns > 0 else "earlier"
    later = f"The same on the GPU, {format_ns(abs(zoom.ahead_ns))} {which}" if host else what
    on_gpu = Panel(streams, zoom.start_ns, zoom.end_ns, later, label.format(times[1]))
    return (
        [Panel(host, zoom.host_start_ns, zoom.host_end_ns, what, label.format(times[0])), on_gpu]
        if host
        else [on_gpu]
    )


def _legend_entries(answer: Timeline) -> list[tuple[str, str]]:
    entries = family_legend(_families(answer))
    if answer.zoom and len(answer.zoom.gap_start):
        entries.append(("gap: none of its ops runs", IDLE))
    if answer.zoom and not answer.zoom.op_mine.all():
        entries.append(("ops of others", OTHERS))
    return entries


def _notes(answer: Timeline) -> list[str]:
    notes = list(answer.notes)
    if answer.streams:
        notes.insert(0, "a column is as high as its stream is busy, in the colour of what runs longest in it")
    if answer.zoom and answer.zoom.left_out:
        notes.append(f"{answer.zoom.left_out:,} more ops of others are not drawn in the zoom")
    return notes


def _in_order(answer: Timeline) -> list[StreamLane | RangeLane]:
    """Process by process: the host's ranges, the same on the GPU, streams."""
    lanes: list[StreamLane | RangeLane] = [*answer.ranges, *answer.streams]
    return sorted(lanes, key=lambda lane: lane.process)


def _families(answer: Timeline) -> NDArray[np.bool_]:
    shown = np.zeros(256, bool)
    for lane in answer.streams:
        shown[lane.family] = True
    if answer.zoom:
        shown[answer.zoom.names.family[answer.zoom.op_name[answer.zoom.op_mine]]] = True
    shown[NOTHING] = False
    return shown[: len(FAMILIES)]


def _zoom_lanes(zoom: Zoom, breakdown: Breakdown) -> tuple[list[Marks], list[Marks]]:
    """What the host did: ranges by level, and launches; and what the streams did. Each a lane of boxes."""
    tint, tables, inside = Tints(breakdown), breakdown.attribution.tables, zoom.ranges
    host, streams = [], []
    for level in np.unique(inside.level).tolist():
        mine = inside.level == level
        path = inside.path[mine]
        label = "the range · host" if level == 0 else f"inside it, level {level} · host"
        host.append(
            Marks(label, RANGE, inside.start[mine], inside.end[mine], tint.colours(path), tint.names(path))
        )
    if count := len(zoom.launch_start):
        host.append(
            Marks("launches · host", RANGE, zoom.launch_start, zoom.launch_end, [INK] * count, [""] * count)
        )
    labels = stream_labels(tables)
    colour = np.array([COLOURS[name] for name in FAMILIES], object)
    cause = np.array([printable(text) for text in zoom.names.cause], object)
    for stream in np.unique(zoom.op_stream).tolist():
        mine = np.flatnonzero(zoom.op_stream == stream)
        own, name = zoom.op_mine[mine], zoom.op_name[mine]
        start, end = (
            np.maximum(zoom.op_start[mine], zoom.start_ns),
            np.minimum(zoom.op_end[mine], zoom.end_ns),
        )
        colours = np.where(own, colour[zoom.names.family[name]], OTHERS).tolist()
        names = np.where(own, cause[name], "").tolist()
        streams.append(Marks(labels[stream], STREAM, start, end, colours, names))
    return host, streams


def _draw_gaps(axes: Axes, zoom: Zoom, panel: Panel) -> None:
    """Shade behind the streams where none of the ops runs."""
    if not len(zoom.gap_start):
        return
    tops = panel.tops
    lanes = [lane for lane in panel.lanes if isinstance(lane, Marks)]
    first = next(top for lane, top in zip(lanes, tops, strict=False) if lane.height == STREAM)
    left, right = zoom.gap_start - zoom.start_ns, zoom.gap_end - zoom.start_ns
    boxes(axes, left, right, np.array(first), np.array(tops[-1]), colours=IDLE, label="gaps").set_zorder(0.5)


def _zoom_title(zoom: Zoom) -> str:
    mine = zoom.op_mine
    gap = int((zoom.gap_end - zoom.gap_start).sum())
    span = int(zoom.op_end[mine].max() - zoom.op_start[mine].min())
    ops = int(mine.sum())
    text = f"Zoom: {zoom.what}: {ops} op{'s' * (ops != 1)} in {format_ns(span)}"
    text += f", idle for {format_share(gap / span)}" if gap else ", without a gap" if ops > 1 else ""
    return text


def _mark_zoom(axes: Axes, zoom: Zoom, origin: int) -> None:
    """Show in the overview where the zoom is: a frame around all lanes."""
    low, high = axes.get_xlim()
    pixel = (high - low) / (PLOT * DPI)
    start, end = max(zoom.start_ns - origin, low), min(zoom.end_ns - origin, high)
    middle, half = (start + end) / 2, max((end - start) / 2, 3 * pixel)
    frame = axes.axvspan(middle - half, middle + half, fill=False, edgecolor=INK, linewidth=1.0, zorder=5)
    frame.set_clip_on(False)
    frame.set_label("zoom")
    axes.annotate(
        "zoom", (middle, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
        ha="center", va="bottom", fontsize=SMALL, annotation_clip=False,
    )  # fmt: skip


def title(answer: Timeline) -> str:
    """The finding: for how much of the time the GPUs had something to do, and the longest wait."""
    totals = answer.breakdown.totals
    span, busy, gpus = totals["span_ns"], totals["busy_ns"], answer.gpus
    if not answer.streams:
        count = sum(int(lane.count.sum()) for lane in answer.ranges if not lane.on_gpu)
        return f"{count:,} range{'s' * (count != 1)} on the host and no GPU work at all"
    if span <= 0:
        return "All GPU work of this report takes no time"
    share = format_share(busy / (span * gpus))
    who, average = ("The GPU is", "") if gpus == 1 else (f"{gpus} GPUs are", ", on average")
    text = f"{who} busy for {share} of the {format_ns(span)} from the first op to the last{average}"
    return f"{text}; the longest wait is {format_ns(answer.wait_ns)}" if answer.wait_ns else text
