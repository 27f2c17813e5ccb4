"""Unified memory: pages that the driver moved, page faults, and the kernels that wait for them.

A kernel that touches a page which is elsewhere waits until the driver has moved it. nsys records the moves as copies
without a launch; they are nobody's work, and beside a kernel they show what it waited for. Page faults are recorded
with ``--cuda-um-cpu-page-faults=true`` and ``--cuda-um-gpu-page-faults=true``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.columns import Column as Values
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.intervals import Ints, cover_before, merge
from nsysprof.core.text import plural
from nsysprof.core.units import format_bytes, format_ns, format_share
from nsysprof.kernels.classify import short_name
from nsysprof.results.table import Column, table
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.trace import GRAPH, KERNEL, MIGRATION, Trace, op_slices

# by the numbers of nsys's ENUM_CUDA_UNIF_MEM_MIGRATION; the first for any other number
_CAUSES = (
    *("", "asked for by the program", "for page faults", "ahead of page faults", "evicted"),
    "for access counters",
)
_ASKED_FOR = 1
# A kernel that pages come and go for more than this part of the time waits for them more than it computes.
FAULT_BOUND = 0.5
# Such a kernel is named where it takes at least this part of the kernels' time.
_MIN_SHARE_TO_NAME = 0.05

UNIFIED = table(
    "unified.csv",
    "a row per direction and cause of migrations, and per access, function or instruction of page faults",
    {
        "event": "`migration HtoD` or `DtoH`, `GPU page faults` or `CPU page faults`",
        "cause": "why the driver moved them; how the GPU accessed the page; which function of the CPU did",
        "count": "pieces that migrated, or groups of page faults as they are recorded",
        "page_faults": "page faults; empty of migrations",
        "size_bytes": Column("", "bytes that migrated; empty of page faults", head="size"),
        "sum_ns": Column("", "their added durations; 0 of page faults of CPUs", head="sum"),
        "bytes_per_s": Column("", "those bytes in that time", head="rate"),
    },
)
KERNELS = table(
    "unified_kernels.csv",
    "a row per kernel during which something migrated or page faults of its GPU occurred",
    {
        "kernel": Column("", "full name of the kernel", cell=lambda name: short_name(name, 40)),
        "count": "how many ran",
        "sum_ns": Column("", "their added durations", head="sum"),
        "covered_ns": Column("", "time of them in which pages of its GPU migrated", head="beside migrations"),
        "fault_covered_ns": Column(
            "", "the same without migrations that the program had asked for", head="not asked for"
        ),
        "page_faults": "page faults of its GPU that began during them; empty where those were not recorded",
        "faulted_ns": Column(
            "", "time of them in which its GPU had page faults; empty where not recorded", head="faulting"
        ),
    },
)


@dataclass(frozen=True)
class UnifiedMemory:
    """The answer of `unified_memory`.

    ``migrations``: ``direction, cause, pieces, size_bytes, sum_ns``, the longest first. ``kernels``: ``kernel, count,
    sum_ns, covered_ns, fault_covered_ns``, the time of it in which anything migrated, and in which something did that
    the program had not asked for (with ``cudaMemPrefetchAsync``), sorted by the part covered. Kernels of a GPU are
    compared with the migrations to and from it; further columns are ``page_faults, faulted_ns``, those of its GPU, NaN
    where not recorded. ``busy_ns``: how long anything migrated, per GPU and added up. ``faults``: ``event, cause,
    count, page_faults, sum_ns``.
    """

    migrations: ColumnTable
    kernels: ColumnTable
    busy_ns: int
    faults: ColumnTable

    def sentences(self) -> Iterator[str]:
        """Describe what moved and why, and how much of the kernels' time migrations cover."""
        moves, ways = self.migrations, []
        if not len(moves):
            return
        for row in moves.summed(["direction"], ["pieces", "size_bytes"]).records():
            ways.append(
                f"{format_bytes(row['size_bytes'])} {row['direction']} in {plural(row['pieces'], 'piece')}"
            )
        causes = moves.summed(["cause"], ["pieces"]).records()
        why = [f"{plural(row['pieces'], 'piece')} {row['cause']}" for row in causes if row["cause"]]
        reasons = f" ({', '.join(why)})" if why else ""
        yield (
            f"unified memory migrates for {format_ns(int(moves['sum_ns'].sum()))}: {', '.join(ways)}"
            f"{reasons}; migrations have no launch and count as busy nowhere"
        )
        if self.covered_ns:
            several = len(self.kernels) > 1
            whole = f"{format_share(self.covered)} of the time of {'all ' * several}kernels"
            most = self._most_covered()
            yield f"migrations cover {', '.join([most] * (most != '') + [whole] * (several or not most))}"

    @property
    def covered_ns(self) -> int:
        """The time of all kernels in which anything migrated."""
        return int(self.kernels["covered_ns"].sum())

    @property
    def covered(self) -> float:
        """The same as a part of the time of all kernels."""
        return self.covered_ns / max(int(self.kernels["sum_ns"].sum()), 1)

    def _most_covered(self) -> str:
        """Describe the kernel, of those that take some time, that migrations cover most; empty for none."""
        total, covered = self.kernels["sum_ns"], self.kernels["covered_ns"]
        worth = np.flatnonzero((total >= _MIN_SHARE_TO_NAME * total.sum()) & (covered > 0))
        for row in self.kernels.take(worth[:1]).records():
            text = f"{format_share(row['covered_ns'] / row['sum_ns'])} of the time of {short_name(row['kernel'], 70)}"
            bound = bool(row["fault_covered_ns"] > FAULT_BOUND * row["sum_ns"])
            return text + " (fault-bound: it waits for pages more than it computes)" * bound
        return ""


def unified_memory(trace: Trace) -> UnifiedMemory | None:
    """Find the `UnifiedMemory` of a report; None where nothing migrated and there were no page faults."""
    ops = trace.ops
    moves = np.flatnonzero(ops.kind == MIGRATION)
    if not len(moves) and not len(trace.page_faults.start):
        return None
    of_moves = ops.kind[trace.copy_ops] == MIGRATION
    cause = trace.copies.cause[of_moves]
    each = ColumnTable(
        {
            "direction": Texts(ops.name[moves], [name.removeprefix("migration ") for name in trace.op_names]),
            "cause": Texts(np.where((cause > 0) & (cause < len(_CAUSES)), cause, 0), _CAUSES),
            "pieces": np.ones(len(moves), np.int64),
            "size_bytes": np.maximum(trace.copies.size_bytes[of_moves], 0),
            "sum_ns": ops.end[moves] - ops.start[moves],
        }
    )
    migrations = each.summed(["direction", "cause"], ["pieces", "size_bytes", "sum_ns"])
    device_gpu = np.array(trace.gpu_numbers, np.int32)[trace.stream_device]
    gpu = device_gpu[ops.stream[moves]]
    lines: dict[int, tuple[tuple[Ints, Ints], ...]] = {}  # of a GPU: of all, and of what was not asked for
    for number in set(gpu.tolist()):
        on_gpu = gpu == number
        rows = moves[on_gpu], moves[on_gpu & (cause != _ASKED_FOR)]
        lines[number] = tuple(merge(ops.start[some], ops.end[some]) for some in rows)
    kernels = _covered_kernels(trace, device_gpu, lines, _faults_of_gpus(trace))
    part_covered = kernels["covered_ns"] / np.maximum(kernels["sum_ns"], 1)
    names = [(row["direction"], row["cause"]) for row in migrations.records()]
    by_name = np.array(
        sorted(range(len(names)), key=names.__getitem__), np.intp
    )  # of equal ones the names decide
    rank = trace.op_name_rank[kernels.texts("kernel").codes]
    return UnifiedMemory(
        migrations.take(by_name[np.argsort(-migrations["sum_ns"][by_name], kind="stable")]),
        kernels.take(np.lexsort((rank, -part_covered))),
        sum(int((last - first).sum()) for (first, last), _ in lines.values()),
        _faults(trace),
    )


def _faults(trace: Trace) -> ColumnTable:
    """Make the faults of a `UnifiedMemory`, the most first."""
    faults = trace.page_faults
    of_gpu = faults.device >= 0
    each = ColumnTable(
        {
            "event": Texts(of_gpu.astype(np.intp), ("CPU page faults", "GPU page faults")),
            "cause": Texts(faults.cause, faults.causes),
            "count": np.ones(len(of_gpu), np.int64),
            "page_faults": faults.count,
            "sum_ns": np.where(of_gpu, faults.end - faults.start, 0),
        }
    )
    rows = each.summed(["event", "cause"], ["count", "page_faults", "sum_ns"])
    names = [(row["event"], row["cause"]) for row in rows.records()]
    by_name = np.array(sorted(range(len(names)), key=names.__getitem__), np.intp)
    return rows.take(by_name[np.argsort(-rows["page_faults"][by_name], kind="stable")])


def _faults_of_gpus(trace: Trace) -> dict[int, NDArray[np.intp]]:
    """Find the rows of ``trace.page_faults`` of each GPU."""
    faults = trace.page_faults
    number = np.full(len(faults.start), -1)
    for device, gpu in zip(trace.devices, trace.gpu_numbers, strict=True):
        process = int(trace.processes[device.process])
        number[(faults.process == process) & (faults.device == device.cuda_id)] = gpu
    return {gpu: np.flatnonzero(number == gpu) for gpu in np.unique(number[number >= 0]).tolist()}


def _covered_kernels(
    trace: Trace,
    device_gpu: NDArray[np.int32],
    lines: dict[int, tuple[tuple[Ints, Ints], ...]],
    faults: dict[int, NDArray[np.intp]],
) -> ColumnTable:
    """Make the kernels of a `UnifiedMemory`, in the order of their names; ``lines`` are the migrations of each GPU,
    ``faults`` its rows of ``trace.page_faults``.
    """
    ops, missed = trace.ops, trace.page_faults
    count, total, covered, by_faults, during, faulted = (
        np.zeros(len(trace.op_names), np.int64) for _ in range(6)
    )
    before = {number: np.append(0, np.cumsum(missed.count[rows])) for number, rows in faults.items()}
    for part in op_slices(trace):
        runs = (ops.kind[part] == KERNEL) | (ops.kind[part] == GRAPH)
        where = device_gpu[ops.stream[part]]
        for number in set(where[runs].tolist()):
            chosen = runs & (where == number)
            start, name = ops.start[part][chosen], ops.name[part][chosen]
            end = np.maximum(ops.end[part][chosen], start)
            np.add.at(count, name, 1)
            np.add.at(total, name, end - start)
            for into, line in zip((covered, by_faults), lines.get(number, ()), strict=False):
                np.add.at(into, name, cover_before(*line, end) - cover_before(*line, start))
            if number in faults:
                rows = faults[number]
                first, last = (np.searchsorted(missed.start[rows], edge) for edge in (start, end))
                np.add.at(during, name, before[number][last] - before[number][first])
                line = merge(missed.start[rows], missed.end[rows])
                np.add.at(faulted, name, cover_before(*line, end) - cover_before(*line, start))
    columns: dict[str, Values] = {
        "kernel": Texts(np.arange(len(count)), trace.op_names),
        "count": count,
        "sum_ns": total,
        "covered_ns": covered,
        "fault_covered_ns": by_faults,
        "page_faults": during if missed.recorded[1] else np.full(len(during), np.nan),
        "faulted_ns": faulted if missed.recorded[1] else np.full(len(during), np.nan),
    }
    return ColumnTable(columns).take(count > 0)


def unified(attribution: Attribution, asked: Asked) -> Answer | None:  # noqa: ARG001 (all summaries are made alike)
    """Say what migrated, which page faults there were, and which kernels ran meanwhile; None where nothing did."""
    found = unified_memory(attribution.trace)
    if found is None:
        return None
    events = _events(found)
    touched = (found.kernels["covered_ns"] > 0) | (found.kernels["page_faults"] > 0)
    kernels = found.kernels.take(touched)
    rows, columns = (kernels, KERNELS.columns) if len(kernels) else (events, UNIFIED.columns)
    if len(kernels) and not attribution.trace.page_faults.recorded[1]:
        columns = columns[:-2]
    return Answer(
        {UNIFIED.file: events, KERNELS.file: kernels}, _finding(attribution.trace, found), columns, rows
    )


def _events(found: UnifiedMemory) -> ColumnTable:
    """Make the rows of ``unified.csv``."""
    moves, faults = found.migrations, found.faults
    events = [f"migration {way}" for way in moves.texts("direction").tolist()]
    events += faults.texts("event").tolist()
    causes = [*moves.texts("cause").tolist(), *faults.texts("cause").tolist()]
    size, sum_ns = (
        np.append(moves[name], np.full(len(faults), missing))
        for name, missing in (("size_bytes", np.nan), ("sum_ns", 0))
    )
    sum_ns[len(moves) :] = faults["sum_ns"]
    columns: dict[str, Values] = {
        "event": Texts(np.arange(len(events)), events),
        "cause": Texts(np.arange(len(causes)), causes),
        "count": np.append(moves["pieces"], faults["count"]),
        "page_faults": np.append(np.full(len(moves), np.nan), faults["page_faults"]),
        "size_bytes": size,
        "sum_ns": sum_ns.astype(np.int64),
        "bytes_per_s": np.where(sum_ns > 0, size * 1e9 / np.maximum(sum_ns, 1), np.nan),
    }
    return ColumnTable(columns)


def _finding(trace: Trace, found: UnifiedMemory) -> str:
    """Say how much migrated, how many page faults there were, and how much of the kernels' time migrations cover."""
    moves, parts = found.migrations, []
    if len(moves):
        pieces, size, sum_ns = (int(moves[name].sum()) for name in ("pieces", "size_bytes", "sum_ns"))
        parts.append(f"{plural(pieces, 'migration')} of {format_bytes(size)} in {format_ns(sum_ns)}")
    for number, who in enumerate(("CPUs", "GPUs")):
        if trace.page_faults.recorded[number]:
            count = trace.page_faults.count[(trace.page_faults.device >= 0) == bool(number)].sum()
            parts.append(f"{plural(int(count), 'page fault')} of {who}")
    text = f"Unified memory: {', '.join(parts)}"
    return (
        f"{text}; migrations cover {format_share(found.covered)} of the time of kernels"
        if found.covered_ns
        else text
    )


SUMMARY = Summary("unified", "Unified memory", (UNIFIED, KERNELS), unified)
