"""Compute the part of one rank: the work of its process's GPUs, per range path and iteration, and over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.projection import DEVICE_BITS
from nsysprof.core.arrays import Index, Ints, Ints32, Mask
from nsysprof.core.intervals import cover_before, union
from nsysprof.fleet.range_iterations import Choice, range_iterations
from nsysprof.formats.rank_answer import (
    BLOCKING,
    COLUMNS,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    EXPOSED,
    HOST,
    PARTS,
    QUEUE,
    SYNC,
    WHOLE,
    RankPart,
)
from nsysprof.trace.details import SYNCHRONIZING
from nsysprof.trace.trace import Trace, pid_of
from nsysprof.waits.causes import COMMUNICATION as AWAITED_COMMUNICATION
from nsysprof.waits.causes import COPY, LATENCY, OTHERS, WaitFacts, idle_pieces
from nsysprof.waits.peers import collective_ops
from nsysprof.waits.windows import blocking_communication, gpu_lines

MAX_COLLECTIVES, MAX_BLOCKING = 20_000, 100_000
TIMELINE_BINS, TIMELINE_ITERATIONS = 2_000, 24
FAR_LONGER = 3  # times the median iteration: such a one is none of the usual ones
_IN_QUEUE = (LATENCY, AWAITED_COMMUNICATION, COPY, OTHERS)


def rank_part(
    attribution: Attribution,
    communication: Mask,
    process: int,
    facts: WaitFacts,
    lacks: tuple[str, ...],
    choice: Choice,
) -> RankPart:
    """Make the `RankPart` of a process with GPU work; ``communication``: whether each op name is communication.

    ``facts`` explain why the GPU waits; ``lacks`` names the data that the trace lacks.
    """
    trace = attribution.launched.trace  # what the GPU waited for depends on the real launches
    activity = _gpu_activity(attribution, communication, process, facts, known=not lacks)
    rows = np.flatnonzero(trace.thread_process[trace.ranges.thread] == process)
    rows = rows[np.argsort(trace.ranges.start[rows], kind="stable")]
    iterations = range_iterations(attribution, rows, _measures(attribution, rows, activity), choice)
    first, last, whole = _whole(trace, process, activity)
    used, short = np.unique(iterations.label, return_inverse=True)
    main = iterations.path == iterations.main
    timeline = _timeline(iterations.first_ns[main], iterations.last_ns[main]) or (first, last)
    bins = _bins(activity, *timeline)
    collectives, all_collectives = _collectives(trace, communication, process)
    names, collective = np.unique(trace.ops.name[collectives], return_inverse=True)
    known = trace.report.reader.collectives(trace)
    group = np.append(known.group, -1)[known.of_ops(len(trace.ops))[collectives]]
    groups, communicator = np.unique(group, return_inverse=True)
    warnings = list(iterations.warnings)
    if len(collectives) < all_collectives:
        warnings.append(
            f"waiting times are computed only for the first {len(collectives):,} of {all_collectives:,} collectives"
        )
    blocking_of, pieces = _blocking_collectives(activity, collectives)
    if len(pieces[0]) > MAX_BLOCKING:
        warnings.append(
            f"waits for late peers are computed only for the first {MAX_BLOCKING:,} of "
            f"{len(pieces[0]):,} blocking intervals"
        )
    gpus = _gpus(trace, process)
    paths = (WHOLE, *iterations.paths)
    return RankPart(
        pid=pid_of(int(trace.processes[process])),
        process=trace.report.about.processes.get(int(trace.processes[process]), ""),
        gpus=tuple(name for name, _ in gpus),
        gpu_ids=tuple(number for _, number in gpus),
        iteration_path=iterations.paths[iterations.main] if iterations.main >= 0 else WHOLE,
        paths=paths,
        labels=("", *(iterations.labels[at] for at in used.tolist())),
        path=np.concatenate([np.arange(len(paths)), iterations.path + 1]).astype(np.int32),
        label=np.concatenate([np.zeros(len(paths)), short + 1]).astype(np.int32),
        first_ns=np.concatenate([[first], iterations.path_first_ns, iterations.first_ns]).astype(np.int64),
        last_ns=np.concatenate([[last], iterations.path_last_ns, iterations.last_ns]).astype(np.int64),
        columns={
            name: np.concatenate([[whole[name]], iterations.totals[name], iterations.columns[name]]).astype(np.int64)
            for name in COLUMNS
        },
        collective_names=tuple(trace.op_names[at] for at in names.tolist()),
        collective=collective.astype(np.int32),
        communicators=tuple([*known.groups, ""][at] for at in groups.tolist()),
        communicator=communicator.astype(np.int32),
        collective_start=trace.ops.start[collectives],
        collective_end=trace.ops.end[collectives],
        blocking_of=blocking_of[:MAX_BLOCKING],
        blocking_start=pieces[0][:MAX_BLOCKING],
        blocking_end=pieces[1][:MAX_BLOCKING],
        lacks=lacks,
        timeline_ns=timeline,
        compute_bins=bins[COMPUTE],
        exposed_bins=bins[EXPOSED],
        warnings=tuple(warnings),
    )


def _measures(attribution: Attribution, rows: Index, activity: Mapping[int, GpuActivity]) -> dict[str, Ints]:
    """Measure the `COLUMNS` of each range: its own times, and the activity of its GPUs from first to last op."""
    ranges, inside = attribution.trace.ranges, attribution.inclusive
    first, last = inside.first_op_ns[rows], inside.last_op_ns[rows]
    columns = {
        "instances": np.ones(len(rows), np.int64),
        "cpu": ranges.end[rows] - ranges.start[rows],
        "span": last - first,
        "busy": inside.busy_ns[rows],
        "sum": inside.sum_ns[rows],
        **{name: np.zeros(len(rows), np.int64) for name in (COMMUNICATION, *PARTS, BLOCKING)},
    }
    for gpu, each in activity.items():
        uses = (inside.devices[rows] >> min(gpu, DEVICE_BITS)) & 1
        for name, values in each.parts(first, last).items():
            columns[name] += values * uses
    return columns


def _whole(trace: Trace, process: int, activity: Mapping[int, GpuActivity]) -> tuple[int, int, dict[str, int]]:
    """Find first start, last end and `COLUMNS` of all GPU ops of a process."""
    rows = (trace.op_process == process) & (trace.op_gpu >= 0)
    start, end = trace.ops.start[rows], trace.ops.end[rows]
    first, last = int(start.min()), int(end.max())
    columns = dict.fromkeys(COLUMNS, 0)
    columns |= {"instances": 1, "span": last - first, "sum": int((end - start).sum())}
    for each in activity.values():
        columns["busy"] += each.busy_ns
        for name, values in each.parts(np.array([first]), np.array([last])).items():
            columns[name] += int(values[0])
    return first, last, columns


def _timeline(first: Ints, last: Ints) -> tuple[int, int] | None:
    """Choose the time span of the middle `TIMELINE_ITERATIONS` of the sorted iterations; None if there are none.

    First iterations that take far longer than usual are left out, because warm-up would hide all others.
    """
    some = last > first
    first, last = first[some], last[some]
    if not len(first):
        return None
    usual = last - first <= FAR_LONGER * np.median(last - first)
    first, last = first[int(usual.argmax()) :], last[int(usual.argmax()) :]
    at = max(len(first) - TIMELINE_ITERATIONS, 0) // 2
    chosen = slice(at, at + TIMELINE_ITERATIONS)
    return int(first[chosen].min()), int(last[chosen].max())


def _bins(activity: Mapping[int, GpuActivity], start: int, end: int) -> dict[str, Ints]:
    """Measure how much of each of `TIMELINE_BINS` bins is compute and exposed communication, added over GPUs."""
    edges = start + (end - start) * np.arange(TIMELINE_BINS + 1) // TIMELINE_BINS
    bins = {COMPUTE: np.zeros(TIMELINE_BINS, np.int64), EXPOSED: np.zeros(TIMELINE_BINS, np.int64)}
    for each in activity.values():
        parts = each.parts(edges[:-1], edges[1:])
        for name, values in bins.items():
            values += parts[name]
    return bins


def _collectives(trace: Trace, communication: Mask, process: int) -> tuple[Index, int]:
    """Find the ops that are the first `MAX_COLLECTIVES` collectives of a process, by start; and count all."""
    rows = collective_ops(trace, communication, trace.report.reader.collectives(trace))
    rows = rows[trace.op_process[rows] == process]
    return trace.in_order(rows, trace.ops.start)[:MAX_COLLECTIVES], len(rows)


def _blocking_collectives(activity: Mapping[int, GpuActivity], collectives: Index) -> tuple[Ints32, Line]:
    """Find the pieces of blocking communication, by start, and the collective to which each piece belongs."""
    blocking = [(each.blocking_op, *each.blocking) for each in activity.values()]
    ops, start, end = (np.concatenate(columns) for columns in zip(*blocking, strict=True))
    by_op = np.argsort(collectives)
    of = np.append(by_op, -1)[np.minimum(np.searchsorted(collectives[by_op], ops), len(by_op))]
    known = np.flatnonzero((of >= 0) & (np.append(collectives, -1)[of] == ops))
    known = known[np.argsort(start[known], kind="stable")]
    return of[known].astype(np.int32), (start[known], end[known])


def _gpus(trace: Trace, process: int) -> list[tuple[str, int]]:
    """List the GPUs on which a process ran ops: name, and id in the report."""
    used = np.flatnonzero(np.bincount(trace.stream_device[trace.ops.stream[trace.op_process == process]]))
    devices = [trace.devices[at] for at in used.tolist()]
    about = trace.report.about.gpus
    return [
        ("unknown GPU", each.cuda_id) if each.gpu is None else (about[each.gpu].name, about[each.gpu].id)
        for each in devices
    ]


Line = tuple[Ints, Ints]


@dataclass(frozen=True)
class GpuActivity:
    """Disjoint sorted intervals, ``(start, end)`` in ns, of one GPU.

    ``compute``: a kernel other than communication runs, or a CUDA graph traced as a whole; ``communication``: a
    communication kernel runs; ``kernels``: either; ``busy``: anything. ``gaps``: the idle intervals of each kind.
    ``blocking``: no compute runs, and the next compute depends on the communication ``blocking_op`` (int32).
    """

    compute: Line
    communication: Line
    kernels: Line
    busy: Line
    gaps: dict[str, Line]
    blocking: Line
    blocking_op: Ints32

    @property
    def busy_ns(self) -> int:
        """The time in which anything runs."""
        return int((self.busy[1] - self.busy[0]).sum())

    def parts(self, start: Ints, end: Ints) -> dict[str, Ints]:
        """Measure the parts of each time window, in ns: `PARTS` (which add up to the window), all communication, and
        blocking communication.

        Communication counts as exposed while no compute kernel runs. Copies count while no kernel runs.
        """

        def covered(line: Line) -> Ints:
            return cover_before(*line, end) - cover_before(*line, start)

        compute, kernels, busy = covered(self.compute), covered(self.kernels), covered(self.busy)
        return {
            COMPUTE: compute,
            EXPOSED: kernels - compute,
            COPIES: busy - kernels,
            **{kind: covered(line) for kind, line in self.gaps.items()},
            COMMUNICATION: covered(self.communication),
            BLOCKING: covered(self.blocking),
        }


def _gpu_activity(
    attribution: Attribution, communication: Mask, process: int, facts: WaitFacts, *, known: bool
) -> dict[int, GpuActivity]:
    """Find the `GpuActivity` of each GPU (by its number) on which a process ran ops.

    Ops of other processes on the same GPU are ignored. ``known``: whether the trace shows what blocks compute.
    """
    trace = attribution.launched.trace
    ops = trace.ops
    of_process = (trace.op_process == process) & (trace.op_gpu >= 0)
    activity = {}
    for gpu in np.unique(trace.op_gpu[of_process]).tolist():
        rows = np.flatnonzero(of_process & (trace.op_gpu == gpu))
        rows = trace.in_order(rows, ops.start)
        lines = gpu_lines(trace, communication, gpu, process)
        kernels = union(lines.compute, lines.communication)
        *blocking, blocking_op = (
            blocking_communication(trace, facts.reasons, communication, gpu, process)
            if len(lines.communication[0]) and known
            else (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
        )
        activity[gpu] = GpuActivity(
            compute=lines.compute,
            communication=lines.communication,
            kernels=kernels,
            busy=union(kernels, lines.copies),
            gaps=_gaps(attribution, rows, facts),
            blocking=(blocking[0], blocking[1]),
            blocking_op=blocking_op,
        )
    return activity


def _gaps(attribution: Attribution, rows: Index, facts: WaitFacts) -> dict[str, Line]:
    """Find the gaps between ops (sorted by start), by what the GPU waited for: the host, if this is unknown."""
    ops = attribution.trace.ops
    start, reach = ops.start[rows], np.maximum.accumulate(ops.end[rows])
    behind = np.flatnonzero(start[1:] > reach[:-1]) + 1
    idle = idle_pieces(attribution, facts, reach[behind - 1], start[behind], rows[behind])
    queue, sync = np.isin(idle.kind, _IN_QUEUE), idle.kind == SYNCHRONIZING
    chosen = {HOST: ~queue & ~sync, SYNC: sync, QUEUE: queue}
    return {name: (idle.start[pieces], idle.end[pieces]) for name, pieces in chosen.items()}
