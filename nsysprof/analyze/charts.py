"""Make the charts of an analysis, such as ``timeline.png``: streams and ranges over time, and one instance op by op."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from nsysprof.analyze.bar_charts import plan_cpu_medians, plan_cpu_totals, plan_kernel_breakdown, plan_kernel_counts
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.chart_rows import ChartRows, by_range, chart_rows
from nsysprof.analyze.findings import MOST, steps_table
from nsysprof.analyze.host import KINDS, MAX_BOXES, HostLane
from nsysprof.analyze.subject import group_colours, group_legend, group_notes, subtitle
from nsysprof.analyze.text import ledger_table, work_line
from nsysprof.analyze.timeline import LevelLane, RangeLane, StreamLane, Timeline, processes_by_gpu, timeline
from nsysprof.analyze.zoom import Zoom
from nsysprof.attribution.split import stream_labels
from nsysprof.charts.chart import Chart
from nsysprof.charts.marks import (
    PLOT_COLUMNS,
    RANGE,
    STREAM,
    STREAM_LEVELS,
    Heading,
    LanePanel,
    Lanes,
    Marks,
    Message,
    Plan,
    Stream,
    fill_levels,
)
from nsysprof.charts.notebook import Overview
from nsysprof.charts.palette import IDLE, INK, MEMORY, OTHERS, TINTS
from nsysprof.core.arrays import Array, Ints, Ints32, Mask
from nsysprof.core.intervals import clip
from nsysprof.core.text import plural, printable, shorten, shorten_all
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.text import sentence
from nsysprof.kernels.classify import NO_KERNELS, OTHER, short_name
from nsysprof.results.table import TextTable
from nsysprof.summaries.unified import FAULT_BOUND
from nsysprof.trace.trace import STDERR

TOP = 20
_LABEL = 34  # characters of the name of a lane
_NAME = 80  # of a range
_ZOOMED = 80  # of what is close up, so that the line also has room for the numbers
_KERNEL = 40
_MAX_ZOOMED = 8  # streams


_CAPTIONS = {
    "ranges": ("Kernels and launches per range", "Busy and idle time per range", "Streams and ranges over time"),
    "kernels": ("Runs of each kernel", "Time of each kernel", "Host calls and streams over time"),
    "cpu": ("CPU time per instance of ranges", "CPU time of ranges", "Ranges over time"),
}


def analysis_charts(top: int = TOP, breakdown: Breakdown | None = None) -> tuple[Chart[Breakdown], ...]:
    """List the charts in page order; charts with a row per range show ``top`` ranges.

    Captions describe ``breakdown``, if given. If there is no GPU work, charts show CPU time, or a text that explains
    why there is no chart.
    """
    counts, times, timelines = _CAPTIONS["ranges" if breakdown is None else _subject(breakdown)]
    return (
        Chart("kernel_counts.png", counts, partial(_rows, plan_kernel_counts, plan_cpu_medians, top)),
        Chart("kernel_breakdown.png", times, partial(_rows, plan_kernel_breakdown, plan_cpu_totals, top)),
        Chart("timeline.png", timelines, _timeline),
    )


def _subject(breakdown: Breakdown) -> str:
    merged = breakdown.columns("merged")
    if by_range(merged):
        return "ranges"
    return "kernels" if breakdown.totals["ops"] or not len(merged) else "cpu"


def _rows(
    plan: Callable[[Breakdown, ChartRows], Plan],
    on_host: Callable[[Breakdown, int], Plan],
    top: int,
    breakdown: Breakdown,
) -> Plan:
    rows = chart_rows(breakdown, top)
    if rows is not None:
        return plan(breakdown, rows)
    return on_host(breakdown, top) if len(breakdown.columns("merged")) else _nothing(breakdown)


def _timeline(breakdown: Breakdown) -> Plan:
    answer = timeline(breakdown, columns=PLOT_COLUMNS)
    return plan_timeline(answer) if answer.streams or answer.ranges or answer.hosts else _nothing(breakdown)


def _nothing(breakdown: Breakdown) -> Message:
    reason, _, rest = breakdown.attribution.trace.no_work.partition(f"; {STDERR}")[0].partition(": ")
    sentences = [
        f"{reason[:1].upper()}{reason[1:]}{':' if rest else '.'}",
        *([f"{rest}."] if rest else []),
        "Capture again with:  nsys profile --trace=cuda,nvtx <program>",
    ]
    return Message(Heading("This report has no GPU work", subtitle(breakdown)), sentences)


def plan_timeline(answer: Timeline) -> Lanes:
    """Plan the overview and, below it, the zoom. The zoom has two panels if the host was far ahead of the GPU."""
    zoom = answer.zoom
    overview = LanePanel(
        lanes=_overview_lanes(answer),
        length=answer.end_ns - answer.start_ns,
        title="",
        label=f"time since the first {'call' if answer.hosts else 'launch'}, range or op",
        framed=(zoom.start_ns - answer.start_ns, zoom.end_ns - answer.start_ns) if zoom else None,
    )
    return Lanes(
        Heading(timeline_title(answer), subtitle(answer.breakdown), _legend(answer), _notes(answer)),
        [overview, *(_zoom_panels(answer, zoom) if zoom else [])],
    )


def _overview_lanes(answer: Timeline) -> list[Stream | Marks]:
    """Make the lanes process by process: ranges on the host, the same ranges on the GPU, and streams."""
    breakdown, origin, tints = answer.breakdown, answer.start_ns, dict[str, str]()
    order, colours = processes_by_gpu(breakdown.attribution.trace), group_colours(breakdown.groups)
    lanes: list[HostLane | StreamLane | RangeLane | LevelLane]
    lanes = [*answer.hosts, *answer.ranges, *answer.streams, *answer.levels]
    order = [*order, -1]  # -1: of no process with GPU work
    out: list[Stream | Marks] = []
    lanes.sort(key=lambda lane: order.index(lane.process))
    for lane, label in zip(lanes, shorten_all([lane.label for lane in lanes], _LABEL), strict=True):
        if isinstance(lane, LevelLane):
            level = np.ceil(lane.level / max(lane.full, 1) * STREAM_LEVELS).astype(np.uint8)
            out.append(Stream(label, lane.process, level, np.zeros(len(level), np.uint8), [MEMORY]))
            continue
        if isinstance(lane, StreamLane):
            level = fill_levels(lane.busy_ns, answer.edges)
            out.append(Stream(label, lane.process, level, lane.group, colours))
        elif isinstance(lane, HostLane) and len(lane.start) <= MAX_BOXES:  # few enough to name them
            out.append(lane.marks(origin, answer.end_ns, lane.process))
        elif isinstance(lane, HostLane):
            level, kinds = fill_levels(lane.busy_ns, answer.edges), [colour for _, colour in KINDS]
            out.append(Stream(label, lane.process, level, lane.longest, kinds, RANGE))
        else:
            start, end = lane.start - origin, lane.end - origin
            marks = _range_marks(breakdown, tints, label, start, end, lane.path)
            counted = zip(marks.names, lane.count.tolist(), strict=True)
            names = [name if count == 1 else f"{count:,} ranges" for name, count in counted]
            out.append(replace(marks, names=names, process=lane.process))
    return out


def _range_marks(
    breakdown: Breakdown, tints: dict[str, str], label: str, start: Ints, end: Ints, path: Ints32
) -> Marks:
    """Make a lane of ranges (``path`` indexes ``breakdown.paths``), with a pale colour per merged path."""
    paths, texts = breakdown.paths, breakdown.merged_texts
    colour, name = {}, {}
    codes = path.tolist()
    for code in dict.fromkeys(codes):
        colour[code] = tints.setdefault(texts[code], TINTS[len(tints) % len(TINTS)])
        name[code] = shorten(paths.names[int(paths.name[code])], _NAME)
    return Marks(label, RANGE, start, end, [colour[code] for code in codes], [name[code] for code in codes])


def _zoom_panels(answer: Timeline, zoom: Zoom) -> list[LanePanel]:
    host, streams = _host_lanes(zoom, answer), _op_lanes(zoom, answer.breakdown)
    what = shorten(_zoom_title(zoom), 150)
    gaps = (zoom.gaps[0] - zoom.start_ns, zoom.gaps[1] - zoom.start_ns) if len(zoom.gaps[0]) else None
    length, begin = zoom.end_ns - zoom.start_ns, format_ns(zoom.start_ns - answer.start_ns)
    label = "time from {} of the axis at the top"
    if not zoom.ahead_ns or not host:
        return [LanePanel([*host, *streams], length, what, label.format(begin), gaps)]
    which = "later" if zoom.ahead_ns > 0 else "earlier"
    later = f"The same on the GPU, {format_ns(abs(zoom.ahead_ns))} {which}"
    called = label.format(format_ns(zoom.host_start_ns - answer.start_ns))
    return [
        LanePanel(host, zoom.host_end_ns - zoom.host_start_ns, what, called),
        LanePanel(streams, length, later, label.format(begin), gaps),
    ]


def _legend(answer: Timeline) -> list[tuple[str, str]]:
    entries = group_legend(answer.breakdown.groups, _groups(answer).tolist())
    shown = {kind for lane in answer.hosts for kind in np.unique(lane.longest).tolist()}
    entries += [(name, colour) for kind, (name, colour) in enumerate(KINDS) if kind in shown]
    if answer.zoom and len(answer.zoom.gaps[0]):
        entries.append(("gap: no GPU op of the range runs", IDLE))
    if answer.zoom and not answer.zoom.ops["own"].all():
        entries.append(("other GPU ops", OTHERS))
    return entries


def _notes(answer: Timeline) -> list[str]:
    notes = [*answer.notes, *group_notes(answer.breakdown.groups)]
    if answer.streams:
        lane = "lane" if any(lane.streams > 1 for lane in answer.streams) else "stream"
        notes = [f"column height: busy share of the {lane}; colour: kernel family with the most time", *notes]
    if answer.hosts:
        notes = ["calls: CPU calls of each thread; white: code between them", *notes]
    if answer.zoom and answer.zoom.left_out:
        notes.append(f"the zoom omits {answer.zoom.left_out:,} GPU ops of other ranges")
    streams = len(np.unique(answer.zoom.ops["stream"])) if answer.zoom else 0
    if streams > _MAX_ZOOMED:
        notes.append(f"{streams - _MAX_ZOOMED} more streams are not drawn in the zoom")
    return notes


def _groups(answer: Timeline) -> Mask:
    shown = np.zeros(256, bool)
    for lane in answer.streams:
        shown[lane.group] = True
    if answer.zoom:
        shown[answer.breakdown.groups.of[answer.zoom.ops["name"][answer.zoom.ops["own"]]]] = True
    return shown[: len(answer.breakdown.groups.labels)]


def _host_lanes(zoom: Zoom, answer: Timeline) -> list[Marks]:
    """Make the host's lanes: ranges by level, and launches or, without annotations, all calls by thread."""
    breakdown = answer.breakdown
    origin, tints = zoom.host_start_ns, dict[str, str]()
    out = []
    for level in np.unique(zoom.ranges["level"]).tolist():
        ranges = zoom.ranges.take(zoom.ranges["level"] == level)
        start, end = ranges["start"] - origin, ranges["end"] - origin
        label = "the range · host" if level == 0 else f"inside it, level {level} · host"
        out.append(_range_marks(breakdown, tints, label, start, end, ranges["path"]))
    for lane in answer.hosts:
        marks = lane.marks(zoom.host_start_ns, zoom.host_end_ns)
        out += [marks] if len(marks.start) else []
    if not answer.hosts and (count := len(zoom.launches[0])):
        start, end = zoom.launches[0] - origin, zoom.launches[1] - origin
        out.append(Marks("launches · host", RANGE, start, end, [INK] * count, [""] * count))
    return out


def _op_lanes(zoom: Zoom, breakdown: Breakdown) -> list[Marks]:
    """Make a lane of boxes per stream; if there are many, only for the streams with the most GPU ops of the range."""
    labels = stream_labels(breakdown.attribution.trace)
    group, colour = breakdown.groups.of, np.array(group_colours(breakdown.groups), object)
    texts = _box_texts(zoom, breakdown)
    out = []
    streams, stream_of = np.unique(zoom.ops["stream"], return_inverse=True)
    busiest = np.argsort(-np.bincount(stream_of, zoom.ops["own"]), kind="stable")[:_MAX_ZOOMED]
    for stream in np.sort(streams[busiest]).tolist():
        at = np.flatnonzero(zoom.ops["stream"] == stream)
        own, name = zoom.ops["own"][at], zoom.ops["name"][at]
        start, end = clip(zoom.ops["start"][at], zoom.ops["end"][at], zoom.start_ns, zoom.end_ns)
        colours = np.where(own, colour[group[name]], OTHERS).tolist()
        names = np.where(own, texts[name], "").tolist()
        out.append(Marks(shorten(labels[stream], _LABEL), STREAM, start, end, colours, names))
    return out


def _box_texts(zoom: Zoom, breakdown: Breakdown) -> Array:
    """Choose the box text of each op name: its cause or, if its family is unknown, its name."""
    names, kinds, by_name = breakdown.attribution.trace.op_names, breakdown.kinds, breakdown.groups.by_name
    texts = np.full(len(names), "", object)
    for code in np.unique(zoom.ops["name"][zoom.ops["own"]]).tolist():
        unknown = kinds.family[code] == OTHER or (by_name and kinds.family[code] not in NO_KERNELS)
        texts[code] = shorten(short_name(names[code], _KERNEL), _KERNEL) if unknown else printable(kinds.cause[code])
    return texts


def _zoom_title(zoom: Zoom) -> str:
    own = zoom.ops["own"]
    gap = int((zoom.gaps[1] - zoom.gaps[0]).sum())
    span = int(zoom.ops["end"][own].max() - zoom.ops["start"][own].min())
    ops = int(own.sum())
    some = f"{ops:,} of {zoom.of:,} ops" if ops < zoom.of else plural(ops, "op")
    text = f"Zoom: {shorten(zoom.what, _ZOOMED)}: {some} in {format_ns(span)}"
    text += f", idle for {format_share(gap / span)}" if gap else ", without a gap" if ops > 1 else ""
    return text


def timeline_title(answer: Timeline) -> str:
    """State the share of time in which the GPUs were busy, and the longest wait."""
    totals = answer.breakdown.totals
    span, gpus = totals["span_ns"], answer.breakdown.gpu_count
    if not answer.streams:
        count = totals["ranges"]
        return f"{plural(count, 'range') if count else 'CUDA calls'} on the host and no GPU work at all"
    if span <= 0:
        return "All GPU work in this report has zero duration"
    share = format_share(answer.breakdown.busy_share)
    who, average = ("The GPU is", "") if gpus == 1 else (f"{gpus} GPUs are", ", on average")
    text = f"{who} busy for {share} of the {format_ns(span)} from the first GPU op to the last{average}"
    unified = answer.breakdown.unified
    if unified and unified.covered >= FAULT_BOUND:
        return f"{text}; unified memory migrates during {format_share(unified.covered)} of kernel time"
    begun = int(answer.breakdown.attribution.trace.ops.start.min())
    if answer.hosts and 2 * (begun - answer.start_ns) > span:  # set-up is what takes long
        name, ns = max((lane.most(begun) for lane in answer.hosts), key=lambda most: most[1])
        before = format_ns(begun - answer.start_ns)
        return f"{text}, after {before} of set-up{f', {format_ns(ns)} of it in {name}' if ns else ''}"
    return f"{text}; the longest wait is {format_ns(answer.wait_ns)}" if answer.wait_ns else text


def overview(breakdown: Breakdown) -> Overview:
    """Make the notebook view: the amount of work, the parts of a step, and the top bottlenecks."""
    name = breakdown.attribution.trace.report.path.name

    def details() -> Iterator[str | TextTable]:
        if steps := steps_table(breakdown.diagnosis):
            yield steps
        for number, finding in enumerate(breakdown.findings[:MOST], 1):
            fix = f" → {finding.remedy}" * bool(finding.remedy)
            yield f"{number}. {sentence(finding, breakdown.diagnosis)}{fix}"
        yield ledger_table(breakdown, empty=False)

    return Overview(f"{name}: {work_line(breakdown)}", analysis_charts(breakdown=breakdown), details)
