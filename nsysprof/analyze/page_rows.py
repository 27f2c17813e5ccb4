"""Make the rows of the page's timeline per process: host threads, ranges on the GPU, and streams."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.charts import timeline_title
from nsysprof.analyze.subject import group_legend, group_notes
from nsysprof.analyze.timeline import MAX_THREADS, choose_lanes, processes_by_gpu, ranked_threads, timeline
from nsysprof.analyze.zoom import Zoom
from nsysprof.attribution.split import device_labels, stream_labels
from nsysprof.charts.palette import TINTS
from nsysprof.core.arrays import AnyInts, Index, Ints, Mask
from nsysprof.core.intervals import clip, column_edges
from nsysprof.core.nesting import depths, stack
from nsysprof.core.text import shorten
from nsysprof.core.units import format_count
from nsysprof.kernels.classify import FAMILIES
from nsysprof.page.packing import PageRow, busy_shares, longest, op_leads, op_names, pack
from nsysprof.summaries.gpu_metrics import drawn_metrics, means
from nsysprof.summaries.memory import gpu_memory, most_live
from nsysprof.trace.details import NO_HOST_CALLS
from nsysprof.trace.trace import START_END, pid_of, recorded_as

# What a page holds one by one, the longest of each; ops that are more are in columns all the same.
MAX_OPS, MAX_RANGES, MAX_CALLS, MAX_STEPS = 200_000, 60_000, 60_000, 20_000
_LANES = 2  # for ranges that cross
# Threads drawn, and how many levels their ranges get: on the host, and on the GPU.
_LEVELS = ((2, 6, 4), (4, 4, 2), (MAX_THREADS, 3, 1))
_NAME, _LABEL = 160, 44
# The first view is so many times as long as the representative stretch, unless that is nearly the whole time.
_FIRST_SHOWN, _NEARLY_ALL = 5, 0.5


def report_timeline(breakdown: Breakdown) -> tuple[str, str, list[str]]:
    """Pack the timeline of a page, with its finding in one sentence and notes on omissions.

    The packed timeline is empty if there is nothing to show.
    """
    answer = timeline(breakdown, columns=1)
    if not answer.streams and not answer.ranges:
        return "", "", []
    origin, length = answer.start_ns, max(answer.end_ns - answer.start_ns, 1)
    rows = _Rows(breakdown, origin, length)
    shown = [*rows.of_processes()]
    zoom = answer.zoom
    views = [(shorten(zoom.what, 100), zoom.start_ns - origin, zoom.end_ns - origin)] if zoom else []
    head = {
        "origin": origin,
        "views": views,
        "first": _first_view(zoom, origin, length),
        "gpus": rows.gpus(),
        "families": FAMILIES,
        "groups": group_legend(breakdown.groups, [True] * len(breakdown.groups.labels)),
        "tints": TINTS,
        **rows.texts(),
    }
    return pack(shown, length, head), timeline_title(answer), [*rows.notes, *group_notes(breakdown.groups)]


def _first_view(zoom: Zoom | None, origin: int, length: int) -> tuple[int, int] | None:
    """Choose the first view, in ns of the timeline: some instances around the representative one, or None for all."""
    if zoom is None:
        return None
    size = (zoom.end_ns - zoom.start_ns) * _FIRST_SHOWN
    if size > length * _NEARLY_ALL:
        return None
    begin = min(max((zoom.start_ns + zoom.end_ns - size) // 2 - origin, 0), length - size)
    return begin, begin + size


class _Rows:
    """The rows of one report, with the texts that they use and notes on omissions."""

    def __init__(self, breakdown: Breakdown, origin: int, length: int) -> None:
        self.breakdown, self.origin, self.length = breakdown, origin, length
        self.trace = breakdown.attribution.trace
        self.calls = (breakdown.attribution.launched.trace.other_calls or NO_HOST_CALLS).beside()
        self.notes: list[str] = []
        self.hidden = 0

    def texts(self) -> dict[str, Any]:
        """List the names of GPU ops with their kinds, and the paths of ranges and owners as a tree."""
        kinds, paths = self.breakdown.kinds, self.breakdown.paths
        tint = (self.breakdown.merged_paths.of % len(TINTS)).tolist()
        return {
            "names": op_names(self.trace.op_names, kinds, self.breakdown.groups.of),
            "pathNames": [shorten(name, _NAME) for name in paths.names],
            "paths": [paths.parent.tolist(), paths.name.tolist(), tint],
            "calls": [*zip(self.calls.names.texts, self.calls.names.waits.tolist(), strict=True)],
        }

    def gpus(self) -> list[dict[str, Any]]:
        """Return the busy share of each column, for each GPU."""
        ops, out = self.trace.ops, []
        for number, label in device_labels(self.trace).items():
            rows = self.trace.op_gpu == number
            start = ops.start[rows] - self.origin
            end = np.maximum(ops.end[rows] - self.origin, start)
            out.append({"label": label, "busy": busy_shares(start, end, self.length)})
        return out

    def of_processes(self) -> Iterator[PageRow]:
        """Make all rows, process by process."""
        lanes, notes = choose_lanes(self.trace, len(self.trace.streams))
        streams, labels = [stream for lane in lanes for stream in lane], stream_labels(self.trace)
        ranked, _ = ranked_threads(self.breakdown)
        threads = sorted(ranked[:MAX_THREADS])
        self.notes += notes
        if len(ranked) > MAX_THREADS:
            self.notes.append(f"{len(ranked) - MAX_THREADS} more threads are not drawn")
        self.levels = next(levels for most, *levels in _LEVELS if len(threads) <= most)
        ops, launches, ranges = self.trace.ops, self.trace.launches, self.trace.ranges
        kept = self._longest(ops.start, ops.end, MAX_OPS, "ops")
        self.kept_calls = self._longest(launches.start, launches.end, MAX_CALLS, "launches")
        self.kept_ranges = self._longest(ranges.start, ranges.end, MAX_RANGES, "ranges", self.breakdown.kept)
        for process in processes_by_gpu(self.trace):
            group = f"process {pid_of(int(self.trace.processes[process]))}"
            for thread in threads:
                if self.trace.thread_process[thread] == process:
                    yield from self._thread_rows(thread, group)
            for stream in streams:
                if self.trace.stream_process[stream] == process:
                    yield self._stream_row(stream, group, shorten(labels[stream], _LABEL), kept)
            yield from self._memory_rows(process, group)
            yield from self._metric_rows(process, group)
        if self.hidden:
            self.notes.append(
                f"{format_count(self.hidden)} ranges are not drawn, because they are nested "
                "too deeply or partly overlap another range"
            )

    def _longest(self, start: Ints, end: Ints, most: int, what: str, among: Mask | None = None) -> Mask:
        """Choose the intervals that the page shows individually: the longest, with a note if some are left out."""
        kept = np.ones(len(start), bool) if among is None else among.copy()
        rows = np.flatnonzero(kept)
        some = longest(start[rows], end[rows], most)
        if some is not None:
            kept[rows] = some
            also = ", all of them as columns" if what == "ops" else ""
            self.notes.append(
                f"only the longest {format_count(most)} of {format_count(len(rows))} {what} are drawn "
                f"individually{also}"
            )
        return kept

    def _stream_row(self, stream: int, group: str, label: str, kept: Mask) -> PageRow:
        ops, paths = self.trace.ops, self.breakdown.paths
        rows = np.flatnonzero(ops.stream == stream)
        rows = rows[np.argsort(ops.start[rows], kind="stable")]
        start = ops.start[rows]
        path = np.append(paths.of, np.int32(-1))[self.breakdown.attribution.op_owner[rows]]
        lead = op_leads(self.trace, rows)
        columns: list[AnyInts] = [ops.name[rows], path + 1, lead]
        graphs = self.breakdown.graphs
        if graphs:
            columns.append(np.append(paths.of, np.int32(-1))[graphs.owner[rows]] + 1)
            if self.breakdown.attribution.replay is not None:
                lead[graphs.captured[rows]] = 0
        return PageRow(
            group,
            label,
            "ops",
            *self._clipped(start, np.maximum(ops.end[rows], start)),
            columns=columns,
            family=self.breakdown.groups.of[ops.name[rows]],
            kept=None if kept.all() else kept[rows],
        )

    def _memory_rows(self, process: int, group: str) -> Iterator[PageRow]:
        """Make a step line for each GPU whose memory was recorded, reduced to columns if it has too many points."""
        for label, (owner, time, size) in gpu_memory(self.trace).items():
            if owner != process:
                continue
            stop = self.origin + self.length
            if len(time) > MAX_STEPS:
                edges = column_edges(self.origin, stop, MAX_STEPS)
                time, size = edges[:-1], most_live(time, size, edges[:-1], edges[1:])
            start, end = self._clipped(time, np.append(time[1:], stop))
            some = (end > start) & (size >= 0)
            label = f"{label} · memory"
            yield PageRow(group, label, "memory", start[some], end[some], columns=(size[some],))

    def _metric_rows(self, process: int, group: str) -> Iterator[PageRow]:
        """Make a row for each shown GPU metric that was sampled, reduced to columns if it has too many samples."""
        stop = self.origin + self.length
        for label, user, samples, level in drawn_metrics(self.trace):
            start, end = samples.start, samples.end
            if user != process:
                continue
            if len(start) > MAX_STEPS:
                edges = column_edges(self.origin, stop, MAX_STEPS // 4)
                start, end = edges[:-1], edges[1:]
                level = means(samples, level, start, end)
            some = np.flatnonzero((level >= 0) & (end > self.origin) & (start < stop))
            marks = self._clipped(start[some], end[some])
            yield PageRow(group, label, "metric", *marks, columns=(np.rint(level[some]).astype(np.int64),))

    def _clipped(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Clip times to the timeline, counted from its beginning."""
        return clip(start, end, self.origin, self.origin + self.length)

    def _thread_rows(self, thread: int, group: str) -> Iterator[PageRow]:
        trace, inside = self.trace, self.breakdown.attribution.inclusive
        first, last = np.searchsorted(trace.ranges.thread, [thread, thread + 1]).tolist()
        rows = first + np.flatnonzero(self.kept_ranges[first:last])
        who = trace.thread_label(thread)
        kinds = trace.ranges.kind[rows]
        nested = kinds[kinds != START_END]
        for window, word in ((False, recorded_as(trace, nested)), (True, "NVTX start/end")):
            of_kind = rows[(kinds == START_END) == window]
            start, end = trace.ranges.start[of_kind], trace.ranges.end[of_kind]
            yield from self._range_rows(of_kind, start, end, group, f"{who} · {word}", self.levels[0])
            if not window:
                yield from self._call_row(thread, group, f"{who} · launches")
                yield from self._other_calls_row(thread, group, f"{who} · waits, other calls")
            working = of_kind[inside.launches[of_kind] > 0]
            start, end = inside.first_op_ns[working], inside.last_op_ns[working]
            yield from self._range_rows(working, start, end, group, f"{who} · {word} on the GPU", self.levels[1])

    def _range_rows(
        self, rows: Index, start: Ints, end: Ints, group: str, label: str, levels: int
    ) -> Iterator[PageRow]:
        """Make a row per level; ranges that overlap without nesting get separate rows."""
        seen = (end >= self.origin) & (start <= self.origin + self.length)
        rows, start, end = rows[seen], start[seen], np.maximum(end, start)[seen]
        order = np.lexsort((rows, -end, start))
        rows, start, end = rows[order], start[order], end[order]
        attribution, inside = self.breakdown.attribution, self.breakdown.attribution.inclusive
        place = np.full(len(self.trace.ranges) + 1, -1, np.int32)
        place[rows] = np.arange(len(rows), dtype=np.int32)
        up = place[attribution.parent[rows]]
        lanes = stack(start, end, np.where(up < np.arange(len(up)), up, -1).astype(np.int32))
        lanes.sort(key=lambda lane: -len(lane.members))
        self.hidden += sum(len(lane.members) for lane in lanes[_LANES:])
        for lane in lanes[:_LANES]:
            depth = depths(lane.up)
            self.hidden += int((depth >= levels).sum())
            for level in range(min(int(depth.max(initial=-1)) + 1, levels)):
                at = lane.members[depth == level]
                values = self.breakdown.paths.of, inside.launches, inside.kernels, inside.busy_ns
                columns = [value[rows[at]] for value in values]
                yield PageRow(group, label, "ranges", *self._clipped(start[at], end[at]), columns=columns)

    def _call_row(self, thread: int, group: str, label: str) -> Iterator[PageRow]:
        launches = self.trace.launches
        ops = np.bincount(self.trace.ops.launch + 1, minlength=len(launches) + 1)[1:]
        first, last = np.searchsorted(launches.thread, [thread, thread + 1]).tolist()
        rows = np.arange(first, last)
        if not len(rows):
            return
        rows = rows[self.kept_calls[rows]]
        start, end = launches.start[rows], np.maximum(launches.end[rows], launches.start[rows])
        yield PageRow(group, label, "calls", *self._clipped(start, end), columns=(ops[rows],))

    def _other_calls_row(self, thread: int, group: str, label: str) -> Iterator[PageRow]:
        """Make the row of the host CUDA calls of a thread that launched nothing: synchronizations, allocations."""
        calls = self.calls
        code = np.searchsorted(calls.threads, self.trace.threads[thread])
        if code == len(calls.threads) or calls.threads[code] != self.trace.threads[thread]:
            return
        rows = np.flatnonzero(calls.thread == code)
        rows = rows[self._longest(calls.start[rows], calls.end[rows], MAX_CALLS, "other calls")]
        rows = rows[np.argsort(calls.start[rows], kind="stable")]
        start, end = self._clipped(calls.start[rows], np.maximum(calls.end[rows], calls.start[rows]))
        yield PageRow(group, label, "others", start, end, columns=(calls.name[rows],))
