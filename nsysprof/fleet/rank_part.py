"""What one rank did, small enough to travel: times per range path and iteration, its collectives, and a timeline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.intervals import Ints
from nsysprof.fleet.gpu_activity import COMPUTE, EXPOSED, Lines
from nsysprof.fleet.range_iterations import COLUMNS, WHOLE, Choice, range_iterations
from nsysprof.trace.trace import KERNEL, Trace, pid_of

MOST_COLLECTIVES = 20_000
TIMELINE_BINS, TIMELINE_ITERATIONS = 2_000, 24
FAR_LONGER = 3  # times the median iteration: such a one is none of the usual ones
# All ranks take part in these and leave them together, so that their time beyond the shortest is waiting.
_COLLECTIVE = re.compile(
    r"(?i)all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|(?:one|two)shot_ar"
)


@dataclass(frozen=True)
class RankPart:
    """What one process did on its GPUs.

    ``paths``: merged paths, outermost first, `WHOLE` before all. A row is an iteration of a path: ``path`` int32,
    ``label`` int32 into ``labels`` (``step12``; ``#3`` is the fourth instance of what has no number; empty: all
    instances together), ``first_ns`` and ``last_ns`` of its ops, and ``columns`` of int64, times in ns, added over the
    instances of the row; those of `PARTS` also over GPUs. Every path has a row with the empty label, its totals.

    ``iteration_path`` is the path of the iterations. Collectives in the order of their starts: ``collective`` int32
    into ``collective_names``, ``collective_start``, ``collective_end``. ``timeline_ns`` (start, end) in equal bins,
    each with the time that ``compute_bins`` and ``exposed_bins`` say, the latter communication without compute.
    """

    pid: int
    process: str
    gpus: tuple[str, ...]
    gpu_ids: tuple[int, ...]
    iteration_path: str
    paths: tuple[str, ...]
    labels: tuple[str, ...]
    path: NDArray[np.int32]
    label: NDArray[np.int32]
    first_ns: Ints
    last_ns: Ints
    columns: Mapping[str, Ints]
    collective_names: tuple[str, ...]
    collective: NDArray[np.int32]
    collective_start: Ints
    collective_end: Ints
    timeline_ns: tuple[int, int]
    compute_bins: Ints
    exposed_bins: Ints
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Collectives:
    """The collectives of a process in the order of their starts: ``name`` int32 into ``names``; ``warnings``."""

    names: tuple[str, ...]
    name: NDArray[np.int32]
    start: Ints
    end: Ints
    warnings: tuple[str, ...]


def rank_part(
    attribution: Attribution,
    communication: NDArray[np.bool_],
    process: int,
    lines: Mapping[int, Lines],
    choice: Choice,
) -> RankPart:
    """The `RankPart` of one process, given the `Lines` of its GPUs; ``communication`` says it of each op name."""
    trace = attribution.trace
    found = range_iterations(attribution, process, lines, choice)
    first, last, whole = _whole(trace, process, lines)
    used, short = np.unique(found.label, return_inverse=True)
    main = found.path == found.main
    timeline = _window(found.first_ns[main], found.last_ns[main]) or (first, last)
    bins = _bins(lines, *timeline)
    collectives = _collectives(trace, communication, process)
    names = (WHOLE, *found.paths)
    gpus = _gpus(trace, process)
    return RankPart(
        pid=pid_of(int(trace.processes[process])),
        process=trace.report.about.processes.get(int(trace.processes[process]), ""),
        gpus=tuple(name for name, _ in gpus),
        gpu_ids=tuple(number for _, number in gpus),
        iteration_path=found.paths[found.main] if found.main >= 0 else WHOLE,
        paths=names,
        labels=("", *(found.labels[at] for at in used.tolist())),
        path=np.concatenate([np.arange(len(names)), found.path + 1]).astype(np.int32),
        label=np.concatenate([np.zeros(len(names)), short + 1]).astype(np.int32),
        first_ns=np.concatenate([[first], found.path_first_ns, found.first_ns]).astype(np.int64),
        last_ns=np.concatenate([[last], found.path_last_ns, found.last_ns]).astype(np.int64),
        columns={
            name: np.concatenate([[whole.get(name, 0)], found.totals[name], found.columns[name]]).astype(
                np.int64
            )
            for name in COLUMNS
        },
        collective_names=collectives.names,
        collective=collectives.name,
        collective_start=collectives.start,
        collective_end=collectives.end,
        timeline_ns=timeline,
        compute_bins=bins[COMPUTE],
        exposed_bins=bins[EXPOSED],
        warnings=(*found.warnings, *collectives.warnings),
    )


def _whole(trace: Trace, process: int, lines: Mapping[int, Lines]) -> tuple[int, int, dict[str, int]]:
    """First start, last end and columns of all ops of a process."""
    mine = (trace.op_process == process) & (trace.op_gpu >= 0)
    start, end = trace.ops.start[mine], trace.ops.end[mine]
    first, last = int(start.min()), int(end.max())
    found = {"instances": 1, "span": last - first, "sum": int((end - start).sum()), "busy": 0}
    for line in lines.values():
        for name, values in line.inside(np.array([first]), np.array([last])).items():
            found[name] = found.get(name, 0) + int(values[0])
        found["busy"] += int((line.busy[1] - line.busy[0]).sum())
    return first, last, found


def _window(first: Ints, last: Ints) -> tuple[int, int] | None:
    """Around the middle `TIMELINE_ITERATIONS` of iterations, which are sorted; None without any.

    The first ones are left out while they take far longer than usual: warm-up would hide all others.
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


def _bins(lines: Mapping[int, Lines], start: int, end: int) -> dict[str, Ints]:
    """How much of each of `TIMELINE_BINS` bins is compute, and communication without any, added over GPUs."""
    edges = start + (end - start) * np.arange(TIMELINE_BINS + 1) // TIMELINE_BINS
    bins = {COMPUTE: np.zeros(TIMELINE_BINS, np.int64), EXPOSED: np.zeros(TIMELINE_BINS, np.int64)}
    for line in lines.values():
        found = line.inside(edges[:-1], edges[1:])
        for name, values in bins.items():
            values += found[name]
    return bins


def _collectives(trace: Trace, communication: NDArray[np.bool_], process: int) -> Collectives:
    """The first `MOST_COLLECTIVES` collectives of a process."""
    ops = trace.ops
    wanted = np.array(
        [
            bool(talks) and _COLLECTIVE.search(name) is not None
            for talks, name in zip(communication.tolist(), trace.op_names, strict=True)
        ],
        bool,
    )
    rows = np.flatnonzero((ops.kind == KERNEL) & wanted[ops.name] & (trace.op_process == process))
    rows = rows[np.argsort(ops.start[rows], kind="stable")]
    warnings: tuple[str, ...] = ()
    if len(rows) > MOST_COLLECTIVES:
        warnings = (f"waiting is told of the first {MOST_COLLECTIVES:,} of {len(rows):,} collectives",)
        rows = rows[:MOST_COLLECTIVES]
    used, code = np.unique(ops.name[rows], return_inverse=True)
    names = tuple(trace.op_names[at] for at in used.tolist())
    return Collectives(names, code.astype(np.int32), ops.start[rows], ops.end[rows], warnings)


def _gpus(trace: Trace, process: int) -> list[tuple[str, int]]:
    """The GPUs that a process ran ops on: name, and id in the report."""
    used = np.flatnonzero(np.bincount(trace.stream_device[trace.ops.stream[trace.op_process == process]]))
    known = [trace.devices[at] for at in used.tolist()]
    about = trace.report.about.gpus
    return [
        ("unknown GPU", each.cuda_id) if each.gpu is None else (about[each.gpu].name, about[each.gpu].id)
        for each in known
    ]
