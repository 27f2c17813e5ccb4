"""``compare.png``: the median call of either side on one time axis, kernel by kernel, and the shorter one close up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.split import stream_labels
from nsysprof.charts.marks import CallBlock, CallLane, CallPanel, Calls, Flag, Heading, Numbers
from nsysprof.charts.palette import COLOURS, IDLE, INK, family_legend
from nsysprof.compare.comparison import Comparison, compared_reports
from nsysprof.compare.findings import compared
from nsysprof.compare.selection import Side
from nsysprof.core.intervals import Ints, cover_before, merge
from nsysprof.core.text import plural, printable, shorten, shorten_both
from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.kernels.classify import FAMILIES, short_name
from nsysprof.trace.trace import KERNEL
from nsysprof.waits.causes import WAITING_FOR

MOST_BOXES = 600  # of a lane: more of them, each at least a pixel wide, would hide how idle it is
_MOST_STREAMS = 4
_MOST_FLAGS = 60  # of a lane, that the drawing chooses from
_COLUMNS = 1_440  # of a lane that has more: one per pixel
_STREAM, _HOST = 0.5, 0.16  # inches
_CLOSER = 3.0  # a call this much shorter than the other one is also shown by itself
_NAME, _TITLED, _LABEL = 40, 30, 27


def plan_calls(comparison: Comparison) -> Calls:
    """The pair with the largest difference over all calls: its calls below each other, on one axis from 0."""
    name = comparison.largest
    pair = next(pair for pair in comparison.sides if pair.name == name)
    calls = [median_call(pair.base), median_call(pair.new)]
    reach = [max(call.length_ns, int(call.end.max(initial=0)), 1) for call in calls]
    names = shorten_both(pair.base_name, pair.new_name, _NAME)
    sides = [pair.base, pair.new]
    labels = [stream_labels(side.examined.attribution.trace) for side in sides]
    short = int(reach[1] <= reach[0])
    closer = max(reach) / reach[short] >= _CLOSER
    blocks = [
        _block(one, calls[at], labels[at], max(reach), named=not (closer and at == short))
        for at, one in enumerate(names)
    ]
    panels = [CallPanel(blocks, max(reach), "time since the first op of the call")]
    zoomed = None
    if closer:
        title = f"{names[short]}, {format_ratio(max(reach) / reach[short])} closer"
        block = _block(title, calls[short], labels[short], reach[short], named=True)
        panels.insert(short, CallPanel([block], reach[short], "the same, with an axis of its own"))
        zoomed = (short, short)
    [row] = comparison.pairs[comparison.pairs["pair"] == name].to_dict("records")
    title = _title({str(key): value for key, value in row.items()}, calls)
    heading = Heading(title, _subtitle(comparison, calls), _legend(calls), _notes(comparison, calls))
    return Calls(heading, panels, zoomed)


def _block(name: str, call: MedianCall, labels: Sequence[str], length: int, *, named: bool) -> CallBlock:
    """The lanes of one call; only where ``named`` do its kernels get names, and its host calls a lane."""
    by_time = np.argsort(-np.bincount(call.stream, call.end - call.start, len(call.streams)), kind="stable")
    streams = np.sort(by_time[:_MOST_STREAMS]).tolist()
    lanes = [
        _stream_lane(call, stream, shorten(labels[call.streams[stream]], _LABEL), named) for stream in streams
    ]
    if named and len(lanes) == 1:
        lanes = [_with_gaps(lane, call) for lane in lanes]
    said = f"{name}: {_kernels(call)}"
    if call.idle_ns:
        said += f", idle for {format_share(call.idle_ns / max(call.length_ns, 1))}"
    hidden = len(call.streams) - len(streams)
    if hidden:
        said += f", {plural(hidden, 'more stream')} not drawn"
    late = call.launch_end > 0
    if named and len(late):
        if late.mean() >= 0.5:
            lanes.append(_host_lane(call, length))
        elif not late.any():
            said += f"; launched {format_ns(-int(call.launch_end.max()))} ahead"
    return CallBlock(said, call.length_ns, format_ns(call.length_ns), lanes)


def _stream_lane(call: MedianCall, stream: int, label: str, named: bool) -> CallLane:
    mine = np.flatnonzero(call.stream == stream)
    flags = _flags(call, mine) if named else []
    start, end, family, level = call.start[mine], call.end[mine], call.family[mine], None
    if len(mine) > MOST_BOXES:
        start, end, family, level = _columns(start, end, family)
    palette = list(COLOURS.values())
    colours = [palette[number] for number in family.tolist()]
    return CallLane(label, _STREAM, start, end, colours, flags, level)


def _columns(
    start: Ints, end: Ints, family: NDArray[np.uint8]
) -> tuple[Ints, Ints, NDArray[np.uint8], Numbers]:
    """Of too many boxes a column per pixel: how busy it is, in the colour of the longest op that begins in it."""
    edges = np.unique(np.linspace(0, max(int(end.max()), 1), _COLUMNS + 1).astype(np.int64))
    first, last = merge(start, end)
    busy = np.diff(cover_before(first, last, edges))
    column = np.minimum(np.searchsorted(edges, start, side="right") - 1, len(edges) - 2)
    order = np.lexsort((start - end, column))
    leads = np.append(True, np.diff(column[order]) > 0)
    longest = (
        np.searchsorted(start, edges[:-1], side="right") - 1
    )  # where none begins, the one that still runs
    longest[column[order[leads]]] = order[leads]
    some = np.flatnonzero(busy)
    level: Numbers = busy[some] / np.diff(edges)[some]
    return edges[some], edges[some + 1], family[longest[some]], level


def _flags(call: MedianCall, mine: NDArray[np.intp]) -> list[Flag]:
    """A name for each run of ops that are called the same, the run with the most time first; of names with many runs
    only one stands on a pole, and tells of all.
    """
    if not len(mine):
        return []
    code = _text_codes(call, mine)
    begins = np.flatnonzero(np.append(True, np.diff(code) != 0))
    ends = np.append(begins[1:], len(mine))
    length = (call.end - call.start)[mine]
    total = np.add.reduceat(length, begins)
    name, place = np.unique(code[begins], return_inverse=True)
    runs = np.bincount(place.reshape(-1), minlength=len(name))
    ops, time = (np.zeros(len(name), np.int64) for _ in range(2))
    np.add.at(ops, place.reshape(-1), ends - begins)
    np.add.at(time, place.reshape(-1), total)
    seen = np.zeros(len(name), np.int64)
    flags = []
    for rank, run in enumerate(np.argsort(-total, kind="stable").tolist()):
        which = int(place.reshape(-1)[run])
        seen[which] += 1
        pole = seen[which] == 1 or (seen[which] == 2 and runs[which] == 2)
        if pole or rank < _MOST_FLAGS:
            every = (int(ops[which]), int(time[which])) if runs[which] > 2 else None
            flags.append(_flag(call, mine[begins[run] : ends[run]], every, pole=pole))
    return flags


def _flag(call: MedianCall, ops: NDArray[np.intp], every: tuple[int, int] | None, *, pole: bool) -> Flag:
    """The name of some ops in a row; ``every``: how many there are of that name in all, and their time."""
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


def _text_codes(call: MedianCall, mine: NDArray[np.intp]) -> NDArray[np.int64]:
    """Equal numbers for ops that are called the same: by their cause, or their name where that says nothing."""
    own = np.array([cause == "other" for cause in call.causes], bool)[call.cause[mine]]
    return np.where(own, -1 - call.name[mine].astype(np.int64), call.cause[mine])


def _text(call: MedianCall, op: int) -> str:
    cause = call.causes[int(call.cause[op])]
    if cause == "other":
        return shorten(short_name(call.names[int(call.name[op])], _NAME), _NAME)
    return shorten(cause, _NAME)


def _with_gaps(lane: CallLane, call: MedianCall) -> CallLane:
    """The lane with what its longest gaps waited for, as far as that fits into them."""
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
        for gap in np.argsort(-length, kind="stable")[:_MOST_FLAGS].tolist()
    ]
    return replace(lane, flags=[*lane.flags, *flags])


def _host_lane(call: MedianCall, length: int) -> CallLane:
    """The host calls of the call, as far as they lie on the axis; of very many those close together as one."""
    inside = np.flatnonzero((call.launch_end > 0) & (call.launch_start < length))
    start, end = np.maximum(call.launch_start[inside], 0), np.minimum(call.launch_end[inside], length)
    if len(start) > MOST_BOXES:
        order, pixel = np.argsort(start, kind="stable"), length // _COLUMNS + 1
        start, end = merge(start[order], np.maximum(end, start)[order] + pixel)
        end = end - pixel
    return CallLane("host calls", _HOST, start, end, [INK] * len(start))


# ---- words


def _kernels(call: MedianCall) -> str:
    others = len(call.start) - call.kernels
    said = plural(call.kernels, "kernel")
    more = plural(others, "other op")
    return said if not others else more if not call.kernels else f"{said} and {more}"


def _title(pair: Mapping[str, Any], calls: Sequence[MedianCall]) -> str:
    """The finding: what one call of either side takes, and how that compares over all calls, by the verdict."""
    names = shorten_both(pair["base_name"], pair["new_name"], _TITLED)
    where = f" at {shorten(pair['place'], _TITLED)}" if pair["place"] else ""
    parts = [
        f"{name} {takes}{format_ns(call.length_ns)} for {_kernels(call)}"
        for name, takes, call in zip(names, ("takes ", ""), calls, strict=True)
    ]
    return f"One call{where}: {parts[0]}, {parts[1]}; over all calls {compared(pair, names, '')}"


def _subtitle(comparison: Comparison, calls: Sequence[MedianCall]) -> str:
    base, new = (call.of for call in calls)
    of = f"{base:,}" if base == new else f"{base:,} and {new:,}"
    chosen = f"the median by span of n = {of} calls" if max(base, new) > 1 else "the only call of each"
    return " · ".join(
        [*compared_reports(comparison), chosen, "a call lasts until the first op of the next one"]
    )


def _legend(calls: Sequence[MedianCall]) -> list[tuple[str, str]]:
    present = np.zeros(len(FAMILIES), bool)
    for call in calls:
        present[call.family] = True
    entries = family_legend(present.tolist())
    if any(call.idle_ns for call in calls):
        entries.append(("idle: none of its ops runs", IDLE))
    return entries


def _notes(comparison: Comparison, calls: Sequence[MedianCall]) -> list[str]:
    notes = []
    pairs = len(comparison.pairs)
    if pairs > 1:
        notes.append(
            f"of {pairs:,} pairs the one with the largest difference: {printable(comparison.largest)}"
        )
    if any(int(np.bincount(call.stream).max(initial=0)) > MOST_BOXES for call in calls):
        notes.append(
            f"of more than {MOST_BOXES:,} kernels there are columns, as high as they are busy, in the colour of the"
            " longest kernel that begins there"
        )
    return notes


@dataclass(frozen=True)
class MedianCall:
    """One call of a side; all times are int64 ns after its first op.

    ``length_ns`` is its span, to the first op of the next call; ``of`` the number of calls it was chosen from;
    ``kernels`` how many it runs. Per op, by start: ``start``, ``end``, ``family`` uint8 into `FAMILIES`, ``cause``
    int32 into ``causes``, ``name`` int32 into ``names``, ``stream`` into ``streams``, codes of
    `Trace.streams`. ``gap_start``, ``gap_end``,
    ``gap_kind`` (of `waiting`): where none of its ops runs. ``launch_start``, ``launch_end``: its host calls, which
    may lie long before 0.
    """

    length_ns: int
    of: int
    kernels: int
    start: Ints
    end: Ints
    family: NDArray[np.uint8]
    cause: NDArray[np.int32]
    name: NDArray[np.int32]
    stream: NDArray[np.intp]
    causes: list[str]
    names: list[str]
    streams: list[int]
    gap_start: Ints
    gap_end: Ints
    gap_kind: NDArray[np.uint8]
    launch_start: Ints
    launch_end: Ints

    @property
    def idle_ns(self) -> int:
        """The part of ``length_ns`` in which none of its ops runs."""
        return int((self.gap_end - self.gap_start).sum())


def median_call(side: Side) -> MedianCall:
    """The `MedianCall` of a side with GPU work; of an even number of calls the shorter one in the middle.

    The last of several calls in a window has no next one, so its span is no sample, as in `Side.samples`.
    """
    work, gaps = side.work, side.gaps
    trace = side.examined.attribution.trace
    of_op, number, begin, end, count = _chosen(side)
    mine = np.flatnonzero(of_op == number)
    op = trace.ops.name[work.op[mine]]
    family = np.array([FAMILIES.index(name) for name in side.examined.kinds.family], np.uint8)
    idle = np.flatnonzero(of_op[gaps.behind - 1] == number)
    calls = np.unique(trace.ops.launch[work.op[mine]])
    calls = calls[calls >= 0]
    streams, stream = np.unique(trace.ops.stream[work.op[mine]], return_inverse=True)
    return MedianCall(
        length_ns=end - begin,
        of=count,
        kernels=int(np.count_nonzero(trace.ops.kind[work.op[mine]] == KERNEL)),
        start=work.start[mine] - begin,
        end=work.end[mine] - begin,
        family=family[op],
        cause=side.causes.of[mine],
        name=op,
        stream=stream.reshape(-1),
        causes=side.causes.texts,
        names=trace.op_names,
        streams=streams.tolist(),
        gap_start=gaps.start[idle] - begin,
        gap_end=gaps.end[idle] - begin,
        gap_kind=gaps.kind[idle],
        launch_start=trace.launches.start[calls] - begin,
        launch_end=trace.launches.end[calls] - begin,
    )


def _chosen(side: Side) -> tuple[NDArray[np.int64], int, int, int, int]:
    """The stretch of each op, the number of the median one, where it begins and ends, and of how many it is that.

    A stretch is a call; where no call holds any of the work, the whole range is.
    """
    work, pieces = side.work, side.pieces
    if not len(pieces.start):
        stretch, start, end = np.searchsorted(work.windows, work.window), work.first_ns, work.last_ns
        sampled = np.ones(len(start), bool)
    else:
        stretch, start, end = pieces.of_op, pieces.start, pieces.end
        last = np.append(pieces.window[1:] != pieces.window[:-1], True)
        sampled = ~last | np.append(True, last[:-1])
    rows = np.flatnonzero(sampled)
    by_span = rows[np.argsort((end - start)[rows], kind="stable")]
    number = int(by_span[(len(by_span) - 1) // 2])
    return stretch, number, int(start[number]), int(end[number]), len(rows)
