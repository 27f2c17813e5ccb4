"""Plan the chart ``why.png``: the time of one step by cause, and a timeline."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from nsysprof.attribution.split import device_labels, stream_labels
from nsysprof.charts import marks
from nsysprof.charts.chart import Chart
from nsysprof.charts.notebook import Overview
from nsysprof.charts.palette import IDLE, OTHERS, TINTS, WAITS
from nsysprof.core.arrays import Bytes, Ints
from nsysprof.core.intervals import NOTHING, busy_columns, column_edges, merge
from nsysprof.core.text import join_words, one_line, shorten
from nsysprof.core.units import format_ns, format_share
from nsysprof.kernels.classify import short_name
from nsysprof.results.table import TextTable
from nsysprof.trace.trace import MEMCPY, MEMSET
from nsysprof.why.instance import SECTIONS, Instance, WindowPart, median_instance
from nsysprof.why.text import places, ranked_paths, tree
from nsysprof.why.why import Why

_ROW = 0.23  # inches of a bar
_MAX_STREAMS, _MAX_LEVELS = 5, 2
_MAX_MARKS = 2000  # of a lane: more are narrower than a pixel
_PATH, _NAME, _LABEL = 60, 110, 40
# what a GPU op is; the last one: what a stream waits for
RUNS = ("compute", "communication", "copy", "kernel")
WORDS = {"kernel": "kernel that another stream waits for"}


def plan_why(answer: Why) -> marks.Plan:
    """Plan the median window of the path with the most time: its parts, which add up, and a timeline with waits."""
    instance = median_instance(answer)
    if instance is None:
        return marks.Message(
            marks.Heading("Nothing ran on a GPU", str(answer.attribution.trace.report.path)),
            ["The chosen ranges have no GPU work, so there is no wait to explain."],
        )
    length = max(instance.end_ns - instance.start_ns, 1)
    ops = _ops(instance)
    streams, left_out = _streams(instance, *ops)
    bars = [*_bars(_parts(instance, *ops), length)]
    parts = f"How the step spends its {format_ns(length)} (the bars add up to this time)"
    lanes: list[marks.Stream | marks.Marks] = [*_ranges(instance), *streams, _waits(instance)]
    panels = [
        marks.LanePanel(bars, length, parts, "time of the step, sorted by cause"),
        marks.LanePanel(lanes, length, "Over time", "time from its start"),
    ]
    title = title_of(answer, instance.path)
    return marks.Lanes(marks.Heading(title, _subtitle(instance), _legend(instance, streams), left_out), panels)


_MIN_HELD = 0.02  # of the windows, that another stream waits for a kernel
CHARTS: tuple[Chart[Why], ...] = (Chart("why.png", "Where the time of a step goes", plan_why),)


def title_of(answer: Why, path: str) -> str:
    """State the largest finding on a path in a sentence, or that no finding exists."""
    name, found = one_line(path, _PATH), answer.findings[path]
    if not found:
        return f"{name}: no single cause of waits exceeds 2 % of a step"
    return f"{name}: {found[0].text}"


def _subtitle(instance: Instance) -> str:
    report = instance.answer.attribution.trace.report
    gpu = device_labels(instance.answer.attribution.trace)[instance.gpu]
    length = format_ns(instance.end_ns - instance.start_ns)
    if instance.count == 1:
        return f"Shown: the only step on {gpu}, {length} · {report.path.name}"
    mean = f"{instance.count:,} steps of {format_ns(instance.mean_ns)} on average on {gpu}"
    which = "a median one" if instance.median else "the step nearest to the median, of the steps with this wait"
    return f"{mean} · drawn: {which}, {length} · {report.path.name}"


def _legend(instance: Instance, streams: Sequence[marks.Stream]) -> list[tuple[str, str]]:
    used = {instance.pieces.groups[code] for code in np.unique(instance.pieces.group).tolist()}
    for lane in streams:
        used |= {RUNS[code] for code in np.unique(lane.group).tolist() if code != NOTHING}
    return [(WORDS.get(name, name), colour) for name, colour in WAITS.items() if name in used]


def _bars(parts: Sequence[WindowPart], length: int) -> Iterator[marks.Marks]:
    """A row per part, each starting at the previous one's end; above each section, its sum."""
    at = 0

    def row(label: str, ns: int, colour: str, text: str) -> marks.Marks:
        amount = f"{format_ns(ns)} · {format_share(ns / length)}"
        name = f"{shorten(text, _NAME)} · {amount}" if text else amount
        return marks.Marks(label, _ROW, np.array([at]), np.array([at + ns]), [colour], [name], beside=True)

    for section in SECTIONS:
        above = ""
        mine = [part for part in parts if part.section == section]
        if len(mine) > 1:
            yield row(section, sum(part.ns for part in mine), IDLE, "")
        for part in mine:
            label = section if len(mine) == 1 else part.group if part.group != section else ""
            yield row("" if label == above else label, part.ns, WAITS.get(part.group, OTHERS), part.text)
            at, above = at + part.ns, label


def _ranges(instance: Instance) -> Iterator[marks.Marks]:
    trace, place = instance.answer.attribution.trace, dict[int, int]()
    ranges, label = trace.ranges, "host: ranges inside"
    for inside in islice(instance.ranges(), 1, _MAX_LEVELS + 1):
        shown = np.sort(np.argsort(ranges.start[inside] - ranges.end[inside], kind="stable")[:_MAX_MARKS])
        start, end = instance.inside(ranges.start[inside[shown]], ranges.end[inside[shown]])
        codes = ranges.name[inside[shown]].tolist()
        names = [one_line(trace.range_names[code].text, _NAME) for code in codes]
        colours = [TINTS[place.setdefault(code, len(place)) % len(TINTS)] for code in codes]
        yield marks.Marks(label, marks.RANGE, start, end, colours, names)
        label = ""


def _ops(instance: Instance) -> tuple[Ints, Ints, Bytes]:
    """Start and end of the GPU ops of a window, in ns from its start, and their codes of `RUNS`."""
    ops, row = instance.answer.attribution.trace.ops, instance.ops
    return *instance.inside(ops.start[row], ops.end[row]), kinds_of_names(instance)[ops.name[row]]


def kinds_of_names(instance: Instance) -> Bytes:
    """Return each GPU op name's code of `RUNS`; ``kernel`` is compute for which another stream waited."""
    trace, families = instance.answer.attribution.trace, instance.answer.kinds.family
    held_up = instance.answer.columns("held_up")
    mine = held_up.take(held_up.texts("path").equal(instance.path) & (held_up["share_of_span"] >= _MIN_HELD))
    awaited = {culprit.rsplit(" in ", 1)[0] for culprit in mine.texts("culprit").tolist()}
    held = [bool(awaited) and short_name(name) in awaited for name in trace.op_names]
    out = np.select([[family == "communication" for family in families], held], [1, 3], 0).astype(np.uint8)
    out[trace.ops.name[np.isin(trace.ops.kind, (MEMCPY, MEMSET))]] = 2
    return out


def _parts(instance: Instance, start: Ints, end: Ints, kind: Bytes) -> list[WindowPart]:
    """The parts of the window, with compute that another stream awaits while nothing else runs as a separate part."""
    computes, held = np.isin(kind, (0, 3)), kind == 3
    every, others = (
        int(np.subtract(*merge(start[some], end[some])[::-1]).sum()) for some in (computes, computes & ~held)
    )
    first, *rest = instance.parts
    if every == others or first.group != "compute":
        return instance.parts
    trace = instance.answer.attribution.trace
    kernels = {short_name(trace.op_names[code]) for code in trace.ops.name[instance.ops[held]].tolist()}
    alone = WindowPart("compute", "kernel", f"{join_words(sorted(kernels))}, alone", every - others)
    return [replace(first, text="other kernels", ns=first.ns - alone.ns), alone, *rest]


def _streams(instance: Instance, start: Ints, end: Ints, kind: Bytes) -> tuple[list[marks.Stream], list[str]]:
    """Lanes of the window's busiest streams, and a note on the others."""
    trace = instance.answer.attribution.trace
    length = instance.end_ns - instance.start_ns
    stream = trace.ops.stream[instance.ops]
    edges = column_edges(0, length, marks.PLOT_COLUMNS)
    labels, lanes = stream_labels(trace), []
    codes, of = np.unique(stream, return_inverse=True)
    busiest = np.argsort(-np.bincount(of, weights=end - start), kind="stable")[:_MAX_STREAMS]
    for code in codes[np.sort(busiest)].tolist():
        mine = stream == code
        busy, longest = busy_columns(start[mine], end[mine], kind[mine], edges)
        colours = [WAITS[name] for name in RUNS]
        lanes.append(marks.Stream(shorten(labels[code], _LABEL), 0, marks.fill_levels(busy, edges), longest, colours))
    more = len(codes) - len(lanes)
    return lanes, [f"{more:,} less busy streams are not drawn"] if more else []


def _waits(instance: Instance) -> marks.Marks:
    """The lane of the waits; adjacent waits of one cause are one box, named after the longest."""
    pieces = instance.pieces
    rows = np.flatnonzero(pieces.wait >= 0)
    start, end, group = pieces.start[rows], pieces.end[rows], pieces.group[rows]
    begins = np.append(True, (group[1:] != group[:-1]) | (start[1:] != end[:-1]))[: len(rows)]
    first = np.flatnonzero(begins)
    box = np.cumsum(begins) - 1
    by_time = np.lexsort((start - end, box))
    named = rows[by_time[np.searchsorted(box[by_time], np.arange(len(first)))]]
    stop = end[np.append(first[1:], len(rows))[: len(first)] - 1]
    kept = np.sort(np.argsort(start[first] - stop, kind="stable")[:_MAX_MARKS])
    return marks.Marks(
        "waits, by cause",
        marks.STREAM,
        start[first][kept] - instance.start_ns,
        stop[kept] - instance.start_ns,
        [WAITS[pieces.groups[code]] for code in group[first][kept].tolist()],
        [pieces.texts[code] for code in pieces.text[named[kept]].tolist()],
    )


def overview(answer: Why) -> Overview:
    """Make the notebook view: the findings, and the tree of the path with the most time."""
    paths = ranked_paths(answer)
    if not paths:
        return Overview("these ranges have no GPU work, so there is no wait")

    def details() -> Iterator[str | TextTable]:
        for number, finding in enumerate(answer.findings[paths[0]], 1):
            yield f"{number}. {finding.text}{f' → {finding.remedy}' if finding.remedy else ''}"
        yield tree(answer, paths[0], *places(answer, paths[0])[0], 3)

    return Overview(title_of(answer, paths[0]), CHARTS, details)
