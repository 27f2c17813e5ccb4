"""Pages of unified memory that the driver moved: how many, how much, and how much of the kernels' time they cover.

A kernel that touches a page which is elsewhere waits until the driver has moved it. nsys records the moves as copies
without a launch; they are no work of anybody, and beside a kernel they say what it waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.intervals import Ints, cover_before, merge
from nsysprof.core.text import plural
from nsysprof.core.units import format_bytes, format_ns, format_share
from nsysprof.kernels.classify import short_name
from nsysprof.trace.trace import GRAPH, KERNEL, MIGRATION, Trace

# nsys's ENUM_CUDA_UNIF_MEM_MIGRATION; the first stands for what is none of it
_CAUSES = (
    *("", "asked for by the program", "for page faults", "ahead of page faults", "evicted"),
    "for access counters",
)
_ASKED_FOR = 1
_CHUNK = 1 << 20  # ops at a time where temporaries would be large
# A kernel that pages come and go for more than this part of the time waits for them more than it computes.
FAULT_BOUND = 0.5
# Such a kernel is named where it takes at least this part of the kernels' time.
_WORTH_NAMING = 0.05


@dataclass(frozen=True)
class UnifiedMemory:
    """The answer of `unified_memory`.

    ``migrations``: ``direction, cause, pieces, size_bytes, sum_ns``, the longest first. ``kernels``: ``kernel, count,
    sum_ns, covered_ns, fault_covered_ns``, the time of it in which anything migrated, and in which something did that
    the program had not asked for (with ``cudaMemPrefetchAsync``), sorted by the part covered. Kernels of a GPU are
    compared with the migrations to and from it. ``busy_ns``: how long anything migrated, per GPU and added up.
    """

    migrations: ColumnTable
    kernels: ColumnTable
    busy_ns: int

    def sentences(self) -> Iterator[str]:
        """What a reader must know of it."""
        moves = self.migrations
        ways = []
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
        """The kernel, of those that take some time, of which migrations cover the largest part; nothing for none."""
        total, covered = self.kernels["sum_ns"], self.kernels["covered_ns"]
        worth = np.flatnonzero((total >= _WORTH_NAMING * total.sum()) & (covered > 0))
        for row in self.kernels.take(worth[:1]).records():
            text = f"{format_share(row['covered_ns'] / row['sum_ns'])} of the time of {short_name(row['kernel'], 70)}"
            bound = bool(row["fault_covered_ns"] > FAULT_BOUND * row["sum_ns"])
            return text + " (fault-bound: it waits for pages more than it computes)" * bound
        return ""


def unified_memory(trace: Trace) -> UnifiedMemory | None:
    """The `UnifiedMemory` of a report; None where nothing migrated."""
    ops = trace.ops
    moves = np.flatnonzero(ops.kind == MIGRATION)
    if not len(moves):
        return None
    names = [name.removeprefix("migration ") for name in trace.op_names]
    cause = trace.migrations.cause
    migrations = ColumnTable(
        {
            "direction": Texts(ops.name[moves], names),
            "cause": Texts(np.where((cause > 0) & (cause < len(_CAUSES)), cause, 0), _CAUSES),
            "pieces": np.ones(len(moves), np.int64),
            "size_bytes": trace.migrations.size_bytes,
            "sum_ns": ops.end[moves] - ops.start[moves],
        }
    )
    asked_for = cause == _ASKED_FOR
    device_gpu = np.array(trace.gpu_numbers, np.int32)[trace.stream_device]
    gpu = device_gpu[ops.stream[moves]]
    count, total, covered, by_faults = (np.zeros(len(trace.op_names), np.int64) for _ in range(4))
    busy = 0
    lines: dict[int, tuple[tuple[Ints, Ints], ...]] = {}  # of a GPU: of all, and of what was not asked for
    for number in set(gpu.tolist()):
        mine = gpu == number
        rows = moves[mine], moves[mine & ~asked_for]
        lines[number] = tuple(merge(ops.start[some], ops.end[some]) for some in rows)
        first_ns, last_ns = lines[number][0]
        busy += int((last_ns - first_ns).sum())
    for first in range(0, len(ops), _CHUNK):
        part = slice(first, first + _CHUNK)
        runs = (ops.kind[part] == KERNEL) | (ops.kind[part] == GRAPH)
        where = device_gpu[ops.stream[part]]
        for number in set(where[runs].tolist()):
            mine = runs & (where == number)
            start, name = ops.start[part][mine], ops.name[part][mine]
            end = np.maximum(ops.end[part][mine], start)
            np.add.at(count, name, 1)
            np.add.at(total, name, end - start)
            if number in lines:
                np.add.at(covered, name, _inside(lines[number][0], start, end))
                np.add.at(by_faults, name, _inside(lines[number][1], start, end))
    some = np.flatnonzero(count)
    kernels = ColumnTable(
        {
            "kernel": Texts(some, trace.op_names),
            "count": count[some],
            "sum_ns": total[some],
            "covered_ns": covered[some],
            "fault_covered_ns": by_faults[some],
        }
    )
    per_way = migrations.summed(["direction", "cause"], ["pieces", "size_bytes", "sum_ns"])
    return UnifiedMemory(
        per_way.take(np.argsort(-per_way["sum_ns"], kind="stable")),
        kernels.take(np.argsort(-covered[some] / np.maximum(total[some], 1), kind="stable")),
        busy,
    )


def _inside(line: tuple[Ints, Ints], start: Ints, end: Ints) -> Ints:
    covered: Ints = cover_before(*line, end) - cover_before(*line, start)
    return covered
