"""Plan ``compare.png``: the median call of each side on one time axis; the shorter call is also enlarged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nsysprof.attribution.paths import WHOLE_TRACE
from nsysprof.attribution.split import stream_labels
from nsysprof.charts.marks import CallBlock, CallLane, CallPanel, Calls, Flag, Heading
from nsysprof.charts.palette import COLOURS, IDLE, INK
from nsysprof.compare.comparison import Comparison, compared_reports
from nsysprof.compare.findings import at, compared
from nsysprof.compare.selection import SPAN, STEP, Selection
from nsysprof.core.arrays import Array, Bytes, Index, Ints, Ints32
from nsysprof.core.intervals import cover_before, merge
from nsysprof.core.text import plural, printable, shorten, shorten_both
from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.kernels.classify import FAMILIES, short_name
from nsysprof.trace.trace import KERNEL
from nsysprof.waits.causes import WAITING_FOR

MAX_BOXES = 600  # of a lane: more of them, each at least a pixel wide, would hide how idle it is
MAX_STREAMS = 4
MAX_FLAGS = 60  # of a lane, that the drawing chooses from
_COLUMNS = 1_440  # of a lane that has more: one per pixel
_STREAM, _HOST = 0.5, 0.16  # inches
_CLOSER = 3.0  # a call this much shorter than the other one is also shown by itself
_NAME, _TITLED, _LABEL = 40, 30, 27


@dataclass(frozen=True)
class MedianCall:
    """One call of a side; all times are int64 ns after the start of the first GPU op.

    ``length_ns``: the span, up to the first GPU op of the next call; ``of``: the number of calls to choose from;
    ``kernels``: the number of kernels in the call. For each GPU op, by start: ``start``, ``end``, ``family`` uint8 into
    `FAMILIES`, ``cause`` int32 into ``causes``, ``name`` int32 into ``names``, ``stream`` into ``streams`` (codes of
    `Trace.streams`). ``gap_start``, ``gap_end``, ``gap_kind`` (of `Gaps`): intervals without GPU ops of the call.
    ``launch_start``, ``launch_end``: the launching host calls, possibly long before 0.
    """

    length_ns: int
    of: int
    kernels: int
    start: Ints
    end: Ints
    family: Bytes
    cause: Ints32
    name: Ints32
    stream: Index
    causes: list[str]
    names: list[str]
    streams: list[int]
    gap_start: Ints
    gap_end: Ints
    gap_kind: Bytes
    launch_start: Ints
    launch_end: Ints

    @property
    def idle_ns(self) -> int:
        """Return the part of ``length_ns`` in which no GPU op of the call runs."""
        return int((self.gap_end - self.gap_start).sum())


def median_call(side: Selection) -> MedianCall:
    """Find the `MedianCall` of a side with GPU work: the lower median of the steps, or of the calls with a valid span.

    If no call contains GPU work, each instance of the range counts as a call.
    """
    work, gaps, pieces, trace = side.work, side.gaps, side.pieces, side.loaded.trace
    of_op, start, end, sampled = pieces.of_op, pieces.start, pieces.end, np.flatnonzero(side.complete)
    if not len(start):
        of_op, start, end = np.searchsorted(work.windows, work.window), work.first_ns, work.last_ns
        sampled = np.arange(len(start))
    gap_start, gap_end, gap_kind = gaps.start, gaps.end, gaps.kind
    of_gap = of_op[gaps.behind - 1]
    if side.steps is not None and side.edges is not None:  # a window is a step, and a piece
        start, end, edges = side.steps.start, side.steps.end, side.edges
        gap_start, gap_end = (np.append(gap_start, edges.pieces.start), np.append(gap_end, edges.pieces.end))
        gap_kind, of_gap = np.append(gap_kind, edges.pieces.kind), np.append(of_gap, edges.step)
    by_span = sampled[np.argsort((end - start)[sampled], kind="stable")]
    number = int(by_span[(len(by_span) - 1) // 2])
    begin = int(start[number])
    rows = np.flatnonzero(of_op == number)
    ops = work.op[rows]
    family = np.array([FAMILIES.index(name) for name in side.loaded.kinds.family], np.uint8)
    idle = np.flatnonzero(of_gap == number)
    launches = np.unique(trace.ops.launch[ops])
    launches = launches[launches >= 0]
    streams, stream = np.unique(trace.ops.stream[ops], return_inverse=True)
    return MedianCall(
        length_ns=int(end[number]) - begin,
        of=len(sampled),
        kernels=int(np.count_nonzero(trace.ops.kind[ops] == KERNEL)),
        start=work.start[rows] - begin,
        end=work.end[rows] - begin,
        family=family[trace.ops.name[ops]],
        cause=side.causes.of[rows],
        name=trace.ops.name[ops],
        stream=stream,
        causes=side.causes.texts,
        names=trace.op_names,
        streams=streams.tolist(),
        gap_start=gap_start[idle] - begin,
        gap_end=gap_end[idle] - begin,
        gap_kind=gap_kind[idle],
        launch_start=trace.launches.start[launches] - begin,
        launch_end=trace.launches.end[launches] - begin,
    )


def plan_calls(comparison: Comparison) -> Calls:
    """Plan the median calls of the pair with the largest difference, one below the other, on one axis from 0."""
    difference = comparison.differences[comparison.largest]
    sides = difference.pair.sides
    calls = [median_call(side) for side in sides]
    reach = [max(call.length_ns, int(call.end.max(initial=0)), 1) for call in calls]
    names = shorten_both(*difference.pair.names, _NAME)
    labels = [stream_labels(side.loaded.trace) for side in sides]
    short = int(reach[1] <= reach[0])
    closer = max(reach) / reach[short] >= _CLOSER
    blocks = [
        _block(one, calls[at], labels[at], max(reach), named=not (closer and at == short))
        for at, one in enumerate(names)
    ]
    label = f"time since the first GPU op{'' if difference.whole else ' of the call'}"
    label = "time since the end of the previous step" if difference.clock == STEP else label
    panels = [CallPanel(blocks, max(reach), label)]
    zoomed = None
    if closer:
        title = f"{names[short]}, {format_ratio(max(reach) / reach[short])} closer"
        block = _block(title, calls[short], labels[short], reach[short], named=True)
        panels.insert(short, CallPanel([block], reach[short], "the same, with a separate axis"))
        zoomed = (short, short)
    heading = Heading(
        _title(difference.row, calls), _subtitle(comparison, calls), _legend(calls), _notes(comparison, calls)
    )
    return Calls(heading, panels, zoomed)


def _block(name: str, call: MedianCall, labels: Sequence[str], length: int, *, named: bool) -> CallBlock:
    """The lanes of one call; with ``named``, its kernels have names, and its host calls have a lane."""
    by_time = np.argsort(-np.bincount(call.stream, call.end - call.start, len(call.streams)), kind="stable")
    streams = np.sort(by_time[:MAX_STREAMS]).tolist()
    lanes = [_stream_lane(call, stream, shorten(labels[call.streams[stream]], _LABEL), named) for stream in streams]
    if named and len(lanes) == 1:
        lanes = [_with_gaps(lane, call) for lane in lanes]
    title = f"{name}: {_kernels(call)}"
    if call.idle_ns:
        title += f", idle for {format_share(call.idle_ns / max(call.length_ns, 1))}"
    hidden = len(call.streams) - len(streams)
    if hidden:
        title += f", {plural(hidden, 'more stream')} not drawn"
    late = call.launch_end > 0
    if named and len(late):
        if late.mean() >= 0.5:
            lanes.append(_host_lane(call, length))
        elif not late.any():
            title += f"; launched {format_ns(-int(call.launch_end.max()))} ahead"
    return CallBlock(title, call.length_ns, format_ns(call.length_ns), lanes)


def _stream_lane(call: MedianCall, stream: int, label: str, named: bool) -> CallLane:
    ops = np.flatnonzero(call.stream == stream)
    flags = _flags(call, ops) if named else []
    start, end, family, level = call.start[ops], call.end[ops], call.family[ops], None
    if len(ops) > MAX_BOXES:
        start, end, family, level = _columns(start, end, family)
    palette = list(COLOURS.values())
    colours = [palette[number] for number in family.tolist()]
    return CallLane(label, _STREAM, start, end, colours, flags, level)


def _columns(start: Ints, end: Ints, family: Bytes) -> tuple[Ints, Ints, Bytes, Array]:
    """Pixel-wide columns that replace too many boxes: the busy share and the family of the longest GPU op in each."""
    edges = np.unique(np.linspace(0, max(int(end.max()), 1), _COLUMNS + 1).astype(np.int64))
    first, last = merge(start, end)
    busy = np.diff(cover_before(first, last, edges))
    column = np.minimum(np.searchsorted(edges, start, side="right") - 1, len(edges) - 2)
    order = np.lexsort((start - end, column))
    leads = np.append(True, np.diff(column[order]) > 0)
    longest = np.searchsorted(start, edges[:-1], side="right") - 1  # still runs where none begins
    longest[column[order[leads]]] = order[leads]
    some = np.flatnonzero(busy)
    level: Array = busy[some] / np.diff(edges)[some]
    return edges[some], edges[some + 1], family[longest[some]], level


def _flags(call: MedianCall, ops: Index) -> list[Flag]:
    """A label for each run of equally named GPU ops, longest run first; a name with many runs has only one label on a
    pole, with the count and time of all its ops.
    """
    # one code for each name on the chart: the cause, or the kernel's where the cause is `other`
    own = np.array([cause == "other" for cause in call.causes], bool)[call.cause[ops]]
    code = np.where(own, -1 - call.name[ops].astype(np.int64), call.cause[ops])
    begins = np.flatnonzero(np.append(True, np.diff(code) != 0))
    ends = np.append(begins[1:], len(ops))
    length = (call.end - call.start)[ops]
    total = np.add.reduceat(length, begins)
    _, name = np.unique(code, return_inverse=True)
    count, time, runs = np.bincount(name), np.bincount(name, length), np.bincount(name[begins])
    seen = np.zeros(len(runs), np.int64)
    flags = []
    for rank, run in enumerate(np.argsort(-total, kind="stable").tolist()):
        which = int(name[begins[run]])
        seen[which] += 1
        pole = seen[which] == 1 or (seen[which] == 2 and runs[which] == 2)
        if pole or rank < MAX_FLAGS:
            every = (int(count[which]), int(time[which])) if runs[which] > 2 else None
            flags.append(_flag(call, ops[begins[run] : ends[run]], every, pole=pole))
    return flags


def _flag(call: MedianCall, ops: Index, every: tuple[int, int] | None, *, pole: bool) -> Flag:
    """The label of a run of GPU ops; ``every``: the count and time of all ops of this name."""
    length = (call.end - call.start)[ops]
    longest = int(ops[np.argmax(length)])
    text, amount = _text(call, longest), format_ns(int(length.sum()))
    text = f"{text} × {len(ops):,}" if len(ops) > 1 else text
    aloft = f"{text}  {amount}"
    if every:
        aloft += f" ({every[0]:,} in all: {format_ns(every[1])})"
    return Flag(
        text=text,
        amount=amount,
        start=int(call.start[ops[0]]),
        end=int(call.end[ops].max()),
        inner=int(call.start[longest]),
        outer=int(call.end[longest]),
        colour=list(COLOURS.values())[int(call.family[longest])],
        count=len(ops),
        aloft=aloft if pole else "",
    )


def _text(call: MedianCall, op: int) -> str:
    cause = call.causes[int(call.cause[op])]
    if cause == "other":
        return shorten(short_name(call.names[int(call.name[op])], _NAME), _NAME)
    return shorten(cause, _NAME)


def _with_gaps(lane: CallLane, call: MedianCall) -> CallLane:
    """The lane with the causes of its longest gaps as labels, which are drawn if they fit."""
    length = call.gap_end - call.gap_start
    flags = [
        Flag(
            text=WAITING_FOR[int(call.gap_kind[gap])],
            amount=format_ns(int(length[gap])),
            start=int(call.gap_start[gap]),
            end=int(call.gap_end[gap]),
            inner=int(call.gap_start[gap]),
            outer=int(call.gap_end[gap]),
            colour=IDLE,
        )
        for gap in np.argsort(-length, kind="stable")[:MAX_FLAGS].tolist()
    ]
    return replace(lane, flags=[*lane.flags, *flags])


def _host_lane(call: MedianCall, length: int) -> CallLane:
    """The call's host calls within the axis; if there are too many, neighbours are joined."""
    inside = np.flatnonzero((call.launch_end > 0) & (call.launch_start < length))
    start, end = np.maximum(call.launch_start[inside], 0), np.minimum(call.launch_end[inside], length)
    if len(start) > MAX_BOXES:
        order, pixel = np.argsort(start, kind="stable"), length // _COLUMNS + 1
        start, end = merge(start[order], np.maximum(end, start)[order] + pixel)
        end = end - pixel
    return CallLane("host calls", _HOST, start, end, [INK] * len(start))


def _kernels(call: MedianCall) -> str:
    others = len(call.start) - call.kernels
    kernels, more = plural(call.kernels, "kernel"), plural(others, "other GPU op")
    return kernels if not others else more if not call.kernels else f"{kernels} and {more}"


def _title(pair: Mapping[str, Any], calls: Sequence[MedianCall]) -> str:
    """The finding: the time of one call of each side, and the comparison over all calls, by the verdict."""
    names = shorten_both(pair["base_name"], pair["new_name"], _TITLED)
    times = [call.length_ns for call in calls]
    if pair["clock"] == STEP:  # the one drawn is the nearest to the median
        times = [pair["base_median_ns"], pair["new_median_ns"]]
    parts = [
        f"{name} {takes}{format_ns(ns)} for {_kernels(call)}"
        for name, takes, call, ns in zip(names, ("takes ", ""), calls, times, strict=True)
    ]
    if pair["place"] == WHOLE_TRACE:
        return f"The whole traces: {parts[0]}, {parts[1]}"
    where = at(shorten(pair["place"], _TITLED))
    return f"One call{where}: {parts[0]}, {parts[1]}; over all calls {compared(pair, names, '')}"


def _subtitle(comparison: Comparison, calls: Sequence[MedianCall]) -> str:
    base, new = (call.of for call in calls)
    of = f"{base:,}" if base == new else f"{base:,} and {new:,}"
    difference = comparison.differences[comparison.largest]
    chosen = f"the call with the median {difference.clock} of n = {of} calls"
    until = "the first GPU op of the next one"
    if difference.clock != SPAN:
        until = "its end, from the end of the previous step"
    what = [chosen if max(base, new) > 1 else "the only call of each", f"a {difference.noun} lasts until {until}"]
    if difference.whole:
        what = ["n = 1, from the start of the first GPU op to the end of the last"]
    return " · ".join([*compared_reports(comparison), *what])


def _legend(calls: Sequence[MedianCall]) -> list[tuple[str, str]]:
    present = {FAMILIES[code] for call in calls for code in np.unique(call.family).tolist()}
    entries = [(family, colour) for family, colour in COLOURS.items() if family in present]
    if any(call.idle_ns for call in calls):
        entries.append(("idle: no GPU op of the call runs", IDLE))
    return entries


def _notes(comparison: Comparison, calls: Sequence[MedianCall]) -> list[str]:
    notes, pairs = [], len(comparison.pairs)
    if pairs > 1:
        notes += [f"largest difference among {pairs:,} pairs: {printable(comparison.largest)}"]
    if any(int(np.bincount(call.stream).max(initial=0)) > MAX_BOXES for call in calls):
        notes.append(
            f"more than {MAX_BOXES:,} kernels, so columns are drawn: height is the busy share, "
            "colour is the longest kernel that begins there"
        )
    return notes
