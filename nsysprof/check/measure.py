"""Measures of calls: counts, times, and the work inside the ranges that a glob matches."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.paths import WHOLE_TRACE
from nsysprof.attribution.range_work import index_work
from nsysprof.check.budget import OF_KERNELS
from nsysprof.core.arrays import AnyInts, Array, Floats, Index, Ints, Ints32
from nsysprof.core.columns import marked, sums
from nsysprof.core.nesting import outermost
from nsysprof.kernels.backends import observe_backends, work_inside
from nsysprof.kernels.classify import Rules
from nsysprof.steps.steps import Chain, steps_of_ranges
from nsysprof.trace.details import SYNCHRONIZING
from nsysprof.trace.trace import GRAPH, KERNEL, PROCESS_OF_THREAD, START_END
from nsysprof.waits.ranges import step_times
from nsysprof.waits.windows import gpu_windows, whole_windows
from nsysprof.why.why import Why, account_for

COUNTS = ("kernels", "launches", "memops", "graph_launches")
# What is nothing, and not short, where a range has no GPU work.
OF_WINDOWS = ("launch_bound_share", "exposed_communication")
STEP = "step"
OF_GPU_WORK = (STEP, "span", "busy", "idle", *OF_WINDOWS)
SYNCS = "syncs"
SLOW_STEPS = "slow_step_share"


class RangeFinder:
    """Finds rows of ``breakdown.merged`` by globs."""

    def __init__(self, breakdown: Breakdown) -> None:
        merged = breakdown.merged
        self.texts: list[str] = merged["merged_path"].tolist()
        self._parent = merged["parent"].to_numpy().astype(np.int32)
        self._by_text = sorted(zip(self.texts, range(len(self.texts)), strict=True))
        self._by_name: dict[str, list[int]] = {}
        for row, name in enumerate(merged["name"].tolist()):
            self._by_name.setdefault(name, []).append(row)

    @property
    def whole(self) -> int:
        """Return the row for the whole trace, after all other rows."""
        return len(self.texts)

    def find(self, glob: str) -> Index:
        """Return, in order, the rows whose merged path matches; if there are none, return the rows whose name matches.

        If matching ranges are nested, only the outermost counts. A star also matches ``/``. `WHOLE_TRACE` matches the
        whole trace, unless a range has this name.
        """
        if glob == WHOLE_TRACE and glob not in self._by_name:
            return np.array([self.whole])
        matches = re.compile(translate(glob)).match
        prefix = re.split(r"[*?\[]", glob, maxsplit=1)[0]
        first, last = (
            side(self._by_text, prefix, key=lambda pair: pair[0][: len(prefix)]) for side in (bisect_left, bisect_right)
        )
        rows = [row for text, row in self._by_text[first:last] if matches(text)]
        rows = rows or [row for name, named in self._by_name.items() if matches(name) for row in named]
        return np.flatnonzero(outermost(self._parent, marked(rows, len(self.texts))))


@dataclass(frozen=True)
class CallSamples:
    """A sample per range instance (call), sorted by row and start.

    ``row``: an index below ``count``; ``keys`` maps merged path and kind to rows. ``columns``: for each measure, a
    float64 per call, NaN if unknown. Measures are counts; ``span``, ``busy``, ``cpu`` in ns; ``idle`` as a fraction of
    1; and the measures of `waits_of_calls` and `syncs_of_calls`, if requested.
    """

    keys: Mapping[tuple[str, str], int]
    row: AnyInts
    count: int
    columns: Mapping[str, Floats]

    @cached_property
    def calls(self) -> Ints:
        """The number of calls per row."""
        return np.bincount(self.row, minlength=self.count).astype(np.int64)

    def of(self, row: int, measure: str) -> Floats:
        """The known samples of one row."""
        first, last = np.searchsorted(self.row, [row, row + 1]).tolist()
        values = self.columns[measure][first:last]
        return values[~np.isnan(values)]

    def spreads(self) -> dict[str, dict[str, Floats]]:
        """Return the distribution of each measure in each row: ``min, median, p95, max`` of ``n`` known samples, NaN if
        there are none.

        Percentiles interpolate linearly, like `numpy.quantile`.
        """
        by_row = pd.DataFrame(dict(self.columns)).groupby(self.row)
        parts = {"n": by_row.count(), "min": by_row.min(), "max": by_row.max()}
        parts |= {"median": by_row.quantile(0.5), "p95": by_row.quantile(0.95)}
        parts = {name: part.reindex(range(self.count)) for name, part in parts.items()}
        return {each: {name: part[each].to_numpy() for name, part in parts.items()} for each in self.columns}


def call_samples(breakdown: Breakdown, more: Mapping[str, Floats] | None = None) -> CallSamples:
    """Make the samples of the rows of ``breakdown.merged``, which must not be split by process or device.

    ``more`` are further measures of all range instances. ``idle`` is the share of a call's span in which its GPUs run
    none of the call's GPU ops, NaN without a span. ``cpu`` of a call that was never closed is NaN, because the call
    ends only with the recording.
    """
    [(part, rows)] = breakdown.parts
    row = np.where(part.keep, rows[breakdown.merged_of], -1)
    ranges, inside = part.attribution.trace.ranges, part.attribution.inclusive
    masks, which = np.unique(inside.devices, return_inverse=True)
    gpus = np.array([max(int(mask).bit_count(), 1) for mask in masks.tolist()])[which.reshape(-1)]
    room = inside.span_ns * gpus
    idle = np.where(room > 0, 1 - inside.busy_ns / np.maximum(room, 1), np.nan)
    order = np.lexsort((ranges.start, row))
    order = order[np.searchsorted(row[order], 0) :]
    columns = {
        **{name: getattr(inside, name) for name in COUNTS},
        "span": inside.span_ns,
        "busy": inside.busy_ns,
        "idle": idle,
        "cpu": np.where(ranges.unclosed, np.nan, ranges.end - ranges.start),
        **(more or {}),
    }
    merged = breakdown.merged
    keys = zip(merged["merged_path"].tolist(), merged["kind"].tolist(), strict=True)
    return CallSamples(
        keys={key: number for number, key in enumerate(keys)},
        row=row[order],
        count=len(merged),
        columns={name: values[order].astype(np.float64) for name, values in columns.items()},
    )


def with_whole_trace(
    samples: CallSamples, breakdown: Breakdown, *, waits: bool = False, syncs: bool = False
) -> CallSamples:
    """Return the samples, and after them one call for the whole trace, with the measures ``waits`` and ``syncs`` if
    requested.
    """
    attribution, totals = breakdown.attribution, breakdown.totals
    trace = attribution.trace
    graphs = trace.ops.launch[(trace.ops.kind == GRAPH) | trace.ops.from_graph]
    gpus = sum(len(start) > 0 for start, _ in trace.gpu_busy.values())
    room = totals["span_ns"] * gpus
    whole: dict[str, float] = {
        STEP: np.nan,
        **{name: totals[name] for name in ("kernels", "launches", "memops")},
        "graph_launches": len(np.unique(graphs[graphs >= 0])),
        "span": totals["span_ns"],
        "busy": totals["busy_ns"],
        "idle": 1 - totals["busy_ns"] / room if room else np.nan,
        "cpu": trace.report.about.duration_ns or np.nan,
    }
    if waits:
        windows = whole_windows(attribution.launched.trace)
        _, values = _parts_of_windows(account_for(attribution, windows, [WHOLE_TRACE], breakdown.kinds))
        whole |= {name: max(column.tolist(), default=np.nan) for name, column in values.items()}
    if syncs:
        activity = trace.report.reader.host_activity(trace)
        waiting = int(np.count_nonzero(activity.kind == SYNCHRONIZING))
        whole[SYNCS] = waiting if len(activity.calls) else np.nan
    return CallSamples(
        keys={**samples.keys, (WHOLE_TRACE, "whole"): samples.count},
        row=np.append(samples.row, samples.count),
        count=samples.count + 1,
        columns={name: np.append(values, whole[name]) for name, values in samples.columns.items()},
    )


def _parts_of_windows(answer: Why) -> tuple[Ints, dict[str, Floats]]:
    """The range of each window, and the window's values of `OF_WINDOWS`."""
    waits, windows = answer.pieces.take(answer.launch_bound), answer.columns("windows")
    bound = sums(waits["window"], waits["end_ns"] - waits["start_ns"], len(windows))
    values = bound / (windows["end_ns"] - windows["start_ns"]), windows["communication_ns"].astype(np.float64)
    return windows["range"], dict(zip(OF_WINDOWS, values, strict=True))


def waits_of_calls(breakdown: Breakdown, rows: Sequence[int]) -> dict[str, Floats]:
    """Return the measures `OF_WINDOWS` for each range instance in the given rows of ``breakdown.merged``.

    The measures refer to the GPU window of the instance (see `gpu_windows`), and are NaN if there is no window. With
    several GPUs, the largest value counts.
    """
    [(part, of_path)] = breakdown.parts
    attribution = part.attribution
    row = of_path[breakdown.merged_of].astype(np.int32)
    asked = np.flatnonzero(np.isin(row, rows))
    windows = gpu_windows(attribution, asked, row[asked], breakdown.kinds.communication)
    paths: list[str] = breakdown.merged["merged_path"].tolist()
    answer = account_for(attribution, windows, paths, breakdown.kinds)
    of, values = _parts_of_windows(answer)
    columns = {name: np.full(len(row), np.nan) for name in OF_WINDOWS}
    for name, column in columns.items():
        np.fmax.at(column, of, values[name])
    return columns


def steps_of_calls(breakdown: Breakdown, rows: Sequence[int]) -> dict[str, Floats]:
    """Return the step time of each range instance in the given rows of ``breakdown.merged``; see `step_times`.

    Step time is NaN for instances that are not steps, and for warm-up unless the budget chooses instances.
    """
    [(part, of_path)] = breakdown.parts
    row = of_path[breakdown.merged_of].astype(np.int32)
    asked = np.flatnonzero(np.isin(row, rows))
    times = step_times(part.attribution, asked, row[asked], breakdown.kinds.communication)
    chosen = any(breakdown.options.get(name) for name in ("skip", "instances"))
    times = times if chosen else times.take(times.steady)
    column = np.full(len(row), np.nan)
    column[times.range] = times.length
    return {STEP: column}


def slow_steps(breakdown: Breakdown, rows: Sequence[int]) -> dict[int, list[Chain]]:
    """Return the calls of each row (in ``rows`` of ``breakdown.merged``) as steps, per process and GPU."""
    instances, row = _instances(breakdown, rows)
    numbers = [str(number) for number in range(len(breakdown.merged))]  # paths of two kinds may have one text
    answer = steps_of_ranges(breakdown.attribution, instances, row[instances], numbers, breakdown.kinds)
    out: dict[int, list[Chain]] = {each: [] for each in rows}
    for chain in answer.chains:
        out[int(chain.path)].append(chain)
    return out


def syncs_of_calls(breakdown: Breakdown) -> Floats:
    """Return the number of synchronizing host calls in each range instance, NaN if no host calls are recorded.

    For a push/pop range, calls on its own thread count. For a start/end range, calls on all threads of the process
    count.
    """
    [(part, _)] = breakdown.parts
    trace = part.attribution.trace
    ranges, activity = trace.ranges, trace.report.reader.host_activity(trace)
    waiting = np.flatnonzero(activity.kind == SYNCHRONIZING)
    start, tid = activity.calls.start[waiting], activity.calls.threads[activity.calls.thread[waiting]]
    out = np.full(len(ranges), np.nan if len(activity.calls) == 0 else 0.0)
    pushed = ranges.kind != START_END
    for rows, mask in ((np.flatnonzero(pushed), -1), (np.flatnonzero(~pushed), PROCESS_OF_THREAD)):
        of, lane = (trace.threads & mask)[ranges.thread], tid & mask
        for each in np.unique(lane).tolist():
            mine, times = rows[of[rows] == each], np.sort(start[lane == each])
            out[mine] = np.searchsorted(times, ranges.end[mine]) - np.searchsorted(times, ranges.start[mine])
    return out


def samples_of_frame(frame: pd.DataFrame, measures: Sequence[str]) -> CallSamples:
    """Make samples from a table of calls in time order, with ``merged_path``, ``kind`` and a column per measure."""
    named = ["merged_path", "kind"]
    row = frame.groupby(named, sort=False).ngroup().to_numpy()
    distinct = frame[named].drop_duplicates().to_numpy().tolist()
    keys = {(str(path), str(kind)): number for number, (path, kind) in enumerate(distinct)}
    order = np.argsort(row, kind="stable")
    columns = {name: frame[name].to_numpy(np.float64)[order] for name in measures}
    return CallSamples(keys, row[order], len(keys), columns)


class OpsInside(NamedTuple):
    """The work in a row of ``breakdown.merged``: codes of `Trace.op_names`, number of GPU ops, time."""

    name: Ints
    ops: Ints
    sum_ns: Ints

    def take(self, which: slice | Array) -> OpsInside:
        """Keep the given entries, in this order."""
        return OpsInside(*(column[which] for column in self))


def ops_inside(breakdown: Breakdown, rows: Sequence[int]) -> dict[int, OpsInside]:
    """The `OpsInside` of each row. A GPU op counts once per row, even if several instances contain it.

    The last row is the whole trace, with all ops that keep a GPU busy.
    """
    whole = len(breakdown.merged)
    if whole in rows:
        trace = breakdown.attribution.trace
        ops = np.flatnonzero(trace.op_gpu >= 0)
        counts = np.bincount(trace.ops.name[ops], minlength=len(trace.op_names))
        total = sums(trace.ops.name[ops], (trace.ops.end - trace.ops.start)[ops], len(counts))
        name = np.flatnonzero(counts)
        others = ops_inside(breakdown, [row for row in rows if row != whole])
        return {**others, whole: OpsInside(name, counts[name], total[name])}
    instances, row = _instances(breakdown, rows)
    work = work_inside(breakdown.attribution, instances, row, len(breakdown.merged))
    added = work.groupby(["number", "name"], as_index=False)[["count", "sum_ns"]].sum()
    columns = OpsInside(*(added[name].to_numpy(np.int64) for name in ("name", "count", "sum_ns")))
    number = added["number"].to_numpy()
    return {row: columns.take(slice(*np.searchsorted(number, [row, row + 1]).tolist())) for row in rows}


def needs_of_kernels(breakdown: Breakdown, rows: Sequence[int]) -> dict[int, dict[str, dict[str, int]]]:
    """Return the maximum of each measure in `OF_KERNELS` per kernel name in the given rows; empty if not recorded."""
    trace = breakdown.attribution.trace
    details = trace.report.reader.op_details(trace)
    out: dict[int, dict[str, dict[str, int]]] = {}
    for row in rows:
        ops = np.arange(len(trace.ops))
        if row < len(breakdown.merged):
            instances, _ = _instances(breakdown, [row])
            ops = np.unique(index_work(breakdown.attribution, instances).ops_of(instances)[0])
        ops = ops[trace.ops.kind[ops] == KERNEL]
        names, of = np.unique(trace.ops.name[ops], return_inverse=True)
        out[row] = {}
        for measure in OF_KERNELS:
            values = getattr(details, measure)[ops]
            if len(values) and (values >= 0).all():
                most = np.zeros(len(names), np.int64)
                np.maximum.at(most, of, values)
                pairs = zip(names.tolist(), most.tolist(), strict=True)
                out[row][measure] = {trace.op_names[name]: value for name, value in pairs}
    return out


def backends_seen(breakdown: Breakdown, rows: Sequence[int], rules: Rules) -> pd.DataFrame:
    """Return ``row, observed, instances, evidence``: the attention backends in the given rows of ``breakdown.merged``.

    If the instances of a row ran different backends, the row appears several times. The values are as in
    `BackendVerdict`.
    """
    instances, row = _instances(breakdown, rows)
    groups = observe_backends(breakdown.attribution, instances, row[instances], rules).groups
    return groups.rename(columns={"group": "row"})[["row", "observed", "instances", "evidence"]]


def _instances(breakdown: Breakdown, rows: Iterable[int]) -> tuple[Index, Ints32]:
    """The range instances of some rows of ``merged``, and the row of every instance of the report."""
    [(part, of_path)] = breakdown.parts
    row = of_path[breakdown.merged_of].astype(np.int32)
    return np.flatnonzero(part.keep & marked(list(rows), len(breakdown.merged) + 1)[row]), row
