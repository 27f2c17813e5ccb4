"""Summarize unified memory: migrated pages, page faults, and the kernels that wait for pages.

A kernel that touches a page located elsewhere waits until the driver has migrated the page. nsys records migrations as
copies without a launch; they have no owner, and kernels that run meanwhile count as waiting. Page faults are recorded
with ``--cuda-um-cpu-page-faults=true`` and ``--cuda-um-gpu-page-faults=true``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.arrays import Bytes, Index, Ints, slices
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.intervals import covered_by, merge
from nsysprof.core.text import plural
from nsysprof.core.units import format_bytes, format_ns, format_share
from nsysprof.kernels.classify import short_name
from nsysprof.results.table import Column, table
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.trace import GRAPH, KERNEL, MIGRATION, Trace

# by the numbers of nsys's ENUM_CUDA_UNIF_MEM_MIGRATION; the first for any other number
_CAUSES = (
    *("", "requested by the program", "for page faults", "ahead of page faults", "evicted"),
    "for access counters",
)
_ASKED_FOR = 1
_FAULTS = ("CPU page faults", "GPU page faults")
# A kernel that pages come and go for more than this part of the time waits for them more than it computes.
FAULT_BOUND = 0.5
# Such a kernel is named where it takes at least this part of the kernels' time.
_MIN_SHARE_TO_NAME = 0.05
_Lines: TypeAlias = dict[str, dict[int, tuple[Ints, Ints]]]  # when something goes on, by column and GPU

UNIFIED = table(
    "unified.csv",
    "a row per direction and cause of migrations; for page faults, a row per kind of access, function or instruction",
    {
        "event": "kind of event: `migration HtoD`, `migration DtoH`, `GPU page faults` or `CPU page faults`",
        "cause": "reason of the migration; kind of GPU access; or CPU function that touched the page",
        "count": "number of recorded migrations or page-fault groups",
        "page_faults": "number of page faults; empty for migrations",
        "size_bytes": Column("", "number of migrated bytes; empty for page faults", "size"),
        "sum_ns": Column("", "total duration of the events; 0 for CPU page faults", "sum"),
        "bytes_per_s": Column("", "size_bytes ÷ sum_ns, in bytes per second", "rate"),
    },
    made_in="summaries/unified.py",
)
KERNELS = table(
    "unified_kernels.csv",
    "a row per kernel with migrations or GPU page faults during its run",
    {
        "kernel": Column("", "full name of the kernel", cell=lambda name: short_name(name, 40)),
        "count": "number of runs of the kernel",
        "sum_ns": Column("", "total duration of the kernel's runs", "sum"),
        "covered_ns": Column("", "part of the kernel's time in which pages of its GPU migrated", "beside migrations"),
        "fault_covered_ns": Column("", "covered_ns without the migrations that the program requested", "not requested"),
        "page_faults": "number of GPU page faults that began while the kernel ran; empty if not recorded",
        "faulted_ns": Column(
            "", "part of the kernel's time in which GPU page faults occurred; empty if not recorded", "faulting"
        ),
    },
    made_in="summaries/unified.py",
)


@dataclass(frozen=True)
class UnifiedMemory:
    """The result of `unified_memory`. ``events`` are the rows of ``unified.csv``. ``kernels`` are the rows of
    ``unified_kernels.csv`` for all kernels, sorted by covered share. ``busy_ns`` is the migration time, summed over
    GPUs.
    """

    events: ColumnTable
    kernels: ColumnTable
    busy_ns: int

    @property
    def covered(self) -> float:
        """Return the share of kernel time during which pages migrated."""
        return int(self.kernels["covered_ns"].sum()) / max(int(self.kernels["sum_ns"].sum()), 1)

    @property
    def migrations(self) -> list[dict[str, Any]]:
        """Return the rows of migrations, with ``direction``, ``cause``, ``pieces``, ``size_bytes`` and ``sum_ns``."""
        return [
            {
                "direction": row["event"].removeprefix("migration "),
                "cause": row["cause"],
                "pieces": row["count"],
                "size_bytes": int(row["size_bytes"]),
                "sum_ns": row["sum_ns"],
            }
            for row in self.events.records()
            if row["event"] not in _FAULTS
        ]


def unified_memory(trace: Trace) -> UnifiedMemory | None:
    """Find the `UnifiedMemory` of a report; returns None without migrations and page faults."""
    ops = trace.ops
    moves = np.flatnonzero(ops.kind == MIGRATION)
    if not len(moves) and not len(trace.page_faults.start):
        return None
    cause = trace.copies.cause[ops.kind[trace.copy_ops] == MIGRATION]
    gpu = np.array(trace.gpu_numbers, np.int32)[trace.stream_device][ops.stream[moves]]
    chosen = {"covered_ns": cause >= 0, "fault_covered_ns": cause != _ASKED_FOR}
    lines: _Lines = {name: {} for name in chosen}
    for name, these in chosen.items():
        for number in np.unique(gpu).tolist():
            rows = moves[these & (gpu == number)]
            lines[name][number] = merge(ops.start[rows], ops.end[rows])
    busy = sum(int((end - start).sum()) for start, end in lines["covered_ns"].values())
    return UnifiedMemory(_events(trace, moves, cause), _kernels(trace, lines), busy)


def _events(trace: Trace, moves: Index, cause: Bytes) -> ColumnTable:
    """Make the rows of ``unified.csv``: migrations, the longest first, then page faults, the most first."""
    ops, faults = trace.ops, trace.page_faults
    of_gpu = faults.device >= 0
    size = trace.copies.size_bytes[ops.kind[trace.copy_ops] == MIGRATION]
    known = np.where(cause < len(_CAUSES), cause, 0).astype(np.int64)
    none = np.zeros_like(faults.count)
    each = ColumnTable(
        {
            "event": Texts(np.append(ops.name[moves], len(trace.op_names) + of_gpu), [*trace.op_names, *_FAULTS]),
            "cause": Texts(np.append(known, len(_CAUSES) + faults.cause), [*_CAUSES, *faults.causes]),
            "count": np.ones(len(moves) + len(none), np.int64),
            "page_faults": np.append(np.zeros(len(moves), np.int64), faults.count),
            "size_bytes": np.append(np.maximum(size, 0), none),
            "sum_ns": np.append(ops.end[moves] - ops.start[moves], np.where(of_gpu, faults.end - faults.start, 0)),
        }
    )
    rows = each.summed(["event", "cause"], list(each.columns)[2:])
    listed = list(rows.records())
    faulty = np.array([row["event"] in _FAULTS for row in listed], bool)
    most = np.where(faulty, rows["page_faults"], rows["sum_ns"]).tolist()
    order = sorted(range(len(rows)), key=lambda at: (faulty[at], -most[at], listed[at]["event"], listed[at]["cause"]))
    numbers = {
        "page_faults": np.where(faulty, rows["page_faults"], np.nan),
        "size_bytes": (size := np.where(faulty, np.nan, rows["size_bytes"])),
        "sum_ns": (sum_ns := rows["sum_ns"]),
        "bytes_per_s": np.where(sum_ns > 0, size * 1e9 / np.maximum(sum_ns, 1), np.nan),
    }
    return ColumnTable({**rows.columns, **numbers}).take(np.array(order, np.intp))


def _kernels(trace: Trace, lines: _Lines) -> ColumnTable:
    """Make the kernels of a `UnifiedMemory`; ``lines`` has intervals of migrations, and page faults are added to it."""
    ops, faults = trace.ops, trace.page_faults
    number = np.full(len(faults.start), -1)
    for (process, device), gpu in trace.gpu_of.items():
        number[(faults.process == process) & (faults.device == device)] = gpu
    begun: dict[int, tuple[Ints, Ints]] = {}  # when faults of a GPU begin, and how many there are before each
    for gpu in np.unique(number[number >= 0]).tolist():
        rows = np.flatnonzero(number == gpu)
        begun[gpu] = faults.start[rows], np.append(0, np.cumsum(faults.count[rows]))
        lines.setdefault("faulted_ns", {})[gpu] = merge(faults.start[rows], faults.end[rows])
    columns = {name: np.zeros(len(trace.op_names), np.int64) for name in KERNELS.names[1:]}
    for part in slices(len(trace.ops)):
        runs = np.flatnonzero((ops.kind[part] == KERNEL) | (ops.kind[part] == GRAPH)) + part.start
        start, end, name, gpu = ops.start[runs], ops.end[runs], ops.name[runs], trace.op_gpu[runs]
        more = {each: covered_by(line, gpu, start, end) for each, line in lines.items()}
        more |= {"count": np.ones_like(start), "sum_ns": np.maximum(end - start, 0)}
        for each, values in more.items():
            np.add.at(columns[each], name, values)
        for each_gpu, (begin, before) in begun.items():
            rows = np.flatnonzero(gpu == each_gpu)
            first, last = (before[np.searchsorted(begin, edge[rows])] for edge in (start, end))
            np.add.at(columns["page_faults"], name[rows], np.maximum(last - first, 0))
    if not faults.recorded[1]:
        columns |= dict.fromkeys(("page_faults", "faulted_ns"), np.full(len(trace.op_names), np.nan))
    part_covered = columns["covered_ns"] / np.maximum(columns["sum_ns"], 1)
    order = np.lexsort((trace.op_name_rank, -part_covered))
    kernels = ColumnTable({"kernel": Texts(np.arange(len(order)), trace.op_names), **columns})
    return kernels.take(order[columns["count"][order] > 0])


def unified(attribution: Attribution, asked: Asked) -> Answer | None:  # noqa: ARG001 (all summaries are made alike)
    """Summarize migrations, page faults, and concurrent kernels; returns None without migrations and page faults."""
    found = unified_memory(attribution.trace)
    if found is None:
        return None
    kernels = found.kernels.take((found.kernels["covered_ns"] > 0) | (found.kernels["page_faults"] > 0))
    rows, columns = (kernels, KERNELS.columns) if len(kernels) else (found.events, UNIFIED.columns)
    if len(kernels) and not attribution.trace.page_faults.recorded[1]:
        columns = columns[:-2]
    note = "Migrations have no launch and never count as busy time." if found.migrations else ""
    files = {UNIFIED.file: found.events, KERNELS.file: kernels}
    return Answer(files, f"Unified memory: {'; '.join(_finding(found))}", columns, rows, note)


def _finding(found: UnifiedMemory) -> Iterator[str]:
    """State what migrated and why, the number of page faults, and the share of kernel time that migrations cover."""
    if moves := found.migrations:
        ways = [
            f"{format_bytes(row['size_bytes'])} {row['direction']} in {plural(row['pieces'], 'piece')} {row['cause']}"
            for row in moves
        ]
        yield f"{format_ns(sum(row['sum_ns'] for row in moves))} of migrations, {', '.join(map(str.strip, ways))}"
    event = found.events.texts("event")
    for faults in _FAULTS:
        if (these := event.equal(faults)).any():
            yield f"{plural(int(found.events['page_faults'][these].sum()), faults[4:-1])} of {faults[:3]}s"
    if found.covered:
        several = len(found.kernels) > 1
        whole = f"{format_share(found.covered)} of the time of {'all ' * several}kernels"
        most = _most_covered(found.kernels)
        yield f"migrations cover {', '.join([most] * (most != '') + [whole] * (several or not most))}"


def _most_covered(kernels: ColumnTable) -> str:
    """Describe the kernel (of those that take some time) that migrations cover most; empty for none."""
    total, inside = kernels["sum_ns"], kernels["covered_ns"]
    worth = np.flatnonzero((total >= _MIN_SHARE_TO_NAME * total.sum()) & (inside > 0))
    for row in kernels.take(worth[:1]).records():
        text = f"{format_share(row['covered_ns'] / row['sum_ns'])} of the time of {short_name(row['kernel'], 70)}"
        bound = bool(row["fault_covered_ns"] > FAULT_BOUND * row["sum_ns"])
        return text + " (fault-bound: it waits for pages more than it computes)" * bound
    return ""


SUMMARY = Summary("unified", "Unified memory", (UNIFIED, KERNELS), unified)
