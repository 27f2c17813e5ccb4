"""What adds up to the whole report (ledger, totals, unified memory), and what to know before believing the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.kernel_tables import op_slices
from nsysprof.attribution.attribute import AMBIGUOUS, FOLLOWED, NO_LAUNCH, Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.core.columns import Column, ColumnTable, Texts
from nsysprof.core.intervals import Ints, cover_before, merge
from nsysprof.core.nesting import ancestors_or_self
from nsysprof.core.text import plural
from nsysprof.core.units import format_bytes, format_ns, format_share
from nsysprof.kernels.classify import short_name
from nsysprof.trace.trace import GRAPH, KERNEL, MEMCPY, MEMSET, MIGRATION, Trace

# A thread's range starts slowly when the first of so many instances takes so many times the median, and half of all.
_LEAST_INSTANCES, _TIMES_MEDIAN = 4, 5
_MAX_JUDGED = 50  # ranges, those with the most time
InstancesOf = Callable[[int], tuple[Attribution, NDArray[np.intp]]]
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


def ledger_columns(attribution: Attribution) -> ColumnTable:
    """Make ``fate, ops, sum_ns, share`` (of all GPU op time): a row per outcome, adding up to the report."""
    rows = attribution.ledger
    total = sum(row.sum_ns for row in rows)
    return ColumnTable(
        {
            "fate": Texts(np.arange(len(rows)), [row.outcome for row in rows]),
            "ops": np.array([row.ops for row in rows], np.int64),
            "sum_ns": np.array([row.sum_ns for row in rows], np.int64),
            "share": np.array([row.sum_ns / total if total else 0.0 for row in rows]),
        }
    )


def totals(attribution: Attribution) -> dict[str, int]:
    """Count and add up the whole report; busy per GPU, added; span from the first GPU op to the last end.

    Ops and their sum are all that the ledger has. Migrations are apart: they are in neither busy nor span.
    """
    trace = attribution.trace
    ops = trace.ops
    migrates = ops.kind == MIGRATION
    busy = sum(int((end - start).sum()) for start, end in trace.gpu_busy.values())
    return {
        "ops": len(ops),
        "kernels": int(np.count_nonzero(ops.kind == KERNEL)),
        "memops": int(np.count_nonzero((ops.kind == MEMCPY) | (ops.kind == MEMSET))),
        "graph_traces": int(np.count_nonzero(ops.kind == GRAPH)),
        "migrations": int(np.count_nonzero(migrates)),
        "launches": len(trace.launches),
        "ranges": len(trace.ranges),
        "sum_ns": int((ops.end - ops.start).sum()),
        "migrations_ns": int((ops.end - ops.start)[migrates].sum()),
        "busy_ns": busy,
        "span_ns": int(ops.end[~migrates].max() - ops.start[~migrates].min()) if not migrates.all() else 0,
        "recording_ns": trace.report.about.duration_ns or 0,
    }


def chosen_totals(attribution: Attribution, rows: NDArray[np.intp]) -> dict[str, int]:
    """Add up what some range instances take: from the first GPU op of each to its last, their union; and how long GPUs
    are busy meanwhile, whoever owns the ops.
    """
    inside = attribution.inclusive
    rows = rows[inside.last_op_ns[rows] > inside.first_op_ns[rows]]
    start, end = merge(inside.first_op_ns[rows], inside.last_op_ns[rows])
    lines = attribution.trace.gpu_busy.values()
    busy = sum(int((cover_before(*line, end) - cover_before(*line, start)).sum()) for line in lines)
    return {"chosen_busy_ns": busy, "chosen_span_ns": int((end - start).sum())}


def warnings(
    attribution: Attribution,
    paths: Paths,
    left_out: NDArray[np.bool_],
    skip: int,
    select: str | None,
    chosen: int,
) -> Iterator[str]:
    """Describe what to know before believing the numbers: what, how many, and what share of the time.

    ``left_out`` are the warm-up instances, ``chosen`` how many instances ``select`` leaves.
    """
    ledger = ledger_columns(attribution)

    def ops(outcome: int) -> str:
        share = float(ledger["share"][outcome])
        return f"{attribution.ledger[outcome].ops:,} ({format_share(share)} of GPU op time)"

    if paths.too_long:
        deepest = int(paths.depth.max()) + 1
        yield f"range paths are up to {deepest:,} names deep: long ones are cut in the middle, and may look alike"
    unclosed = int(attribution.trace.ranges.unclosed.sum())
    if unclosed:
        yield f"ranges never closed: {unclosed:,} of {len(left_out):,}; they end with the session"
    if attribution.ledger[NO_LAUNCH].ops:
        yield f"GPU ops without a launch row in the report: {ops(NO_LAUNCH)}; no range owns them"
    if attribution.ledger[AMBIGUOUS].ops:
        yield f"GPU ops of helper threads, with ranges open on several threads: {ops(AMBIGUOUS)}; no range owns them"
    if attribution.ledger[FOLLOWED].ops:
        owner = "owned by the one range open on another thread"
        yield f"GPU ops of helper threads, {owner}: {ops(FOLLOWED)}; see --threads"
    if left_out.any():
        yield f"warm-up instances left out: {int(left_out.sum()):,} (--skip {skip})"
    if select is not None:
        part = f"{chosen:,} of {len(left_out):,}"
        yield f"ranges that match {select!r} or lie in one that does: {part}; only the ledger and totals are of all"


def slow_starts(merged: ColumnTable, instances_of: InstancesOf, by: str | None) -> Iterator[str]:
    """Report outermost repeated ranges whose first instance is far slower than the others, judged thread by thread.

    ``merged`` are the columns of that name of a `Breakdown`, ``instances_of`` gives the range instances behind a row of
    it. The first instance pays for module loading, autotuning and allocation: warm-up that ``--skip`` leaves out.
    """
    repeats = merged["instances"] > 1
    parent, work = merged["parent"], merged["sum_ns"]
    outermost = repeats & ~np.append(ancestors_or_self(parent, repeats), False)[parent]
    rows = np.flatnonzero(outermost & (work > 0))
    for row in np.sort(rows[np.argsort(-work[rows], kind="stable")[:_MAX_JUDGED]]).tolist():
        attribution, instances = instances_of(row)
        slow = _slowest(attribution, instances)
        if slow is not None:
            [shown] = merged.take(slice(row, row + 1)).records()
            part = f" of {by} {shown[by]}" if by else ""
            yield (
                f"the first of {slow[2]:,} {shown['name']}{part} spans {format_ns(slow[0])}, the median one"
                f" {format_ns(slow[1])}: --skip 1 leaves it out"
            )


def _slowest(attribution: Attribution, instances: NDArray[np.intp]) -> tuple[int, int, int] | None:
    """Find the thread that starts most slowly, if one does: its first span, median span and instances."""
    ranges = attribution.trace.ranges
    slow = []
    threads = ranges.thread[instances]
    for thread in np.flatnonzero(np.bincount(threads) >= _LEAST_INSTANCES).tolist():
        rows = instances[threads == thread]
        span = attribution.inclusive.last_op_ns[rows] - attribution.inclusive.first_op_ns[rows]
        first, median = int(span[np.argmin(ranges.start[rows])]), int(np.median(span))
        if median > 0 and first > _TIMES_MEDIAN * median and 2 * first > int(span.sum()):
            slow.append((first, median, len(rows)))
    return max(slow, default=None)


# ---- unified memory: pages that the driver moved
#
# A kernel that touches a page which is elsewhere waits until the driver has moved it. nsys records the moves as copies
# without a launch; they are nobody's work, and beside a kernel they show what it waited for.


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
        """Describe what moved and why, and how much of the kernels' time migrations cover."""
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
        """Describe the kernel, of those that take some time, that migrations cover most; empty for none."""
        total, covered = self.kernels["sum_ns"], self.kernels["covered_ns"]
        worth = np.flatnonzero((total >= _MIN_SHARE_TO_NAME * total.sum()) & (covered > 0))
        for row in self.kernels.take(worth[:1]).records():
            text = f"{format_share(row['covered_ns'] / row['sum_ns'])} of the time of {short_name(row['kernel'], 70)}"
            bound = bool(row["fault_covered_ns"] > FAULT_BOUND * row["sum_ns"])
            return text + " (fault-bound: it waits for pages more than it computes)" * bound
        return ""


def unified_memory(trace: Trace) -> UnifiedMemory | None:
    """Find the `UnifiedMemory` of a report; None where nothing migrated."""
    ops = trace.ops
    moves = np.flatnonzero(ops.kind == MIGRATION)
    if not len(moves):
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
    kernels = _covered_kernels(trace, device_gpu, lines)
    part_covered = kernels["covered_ns"] / np.maximum(kernels["sum_ns"], 1)
    names = [(row["direction"], row["cause"]) for row in migrations.records()]
    by_name = np.array(sorted(range(len(names)), key=names.__getitem__))  # of equal ones the names decide
    rank = trace.op_name_rank[kernels.texts("kernel").codes]
    return UnifiedMemory(
        migrations.take(by_name[np.argsort(-migrations["sum_ns"][by_name], kind="stable")]),
        kernels.take(np.lexsort((rank, -part_covered))),
        sum(int((last - first).sum()) for (first, last), _ in lines.values()),
    )


def _covered_kernels(
    trace: Trace, device_gpu: NDArray[np.int32], lines: dict[int, tuple[tuple[Ints, Ints], ...]]
) -> ColumnTable:
    """Make the kernels of a `UnifiedMemory`, in the order of their names; ``lines`` are the migrations of each GPU."""
    ops = trace.ops
    count, total, covered, by_faults = (np.zeros(len(trace.op_names), np.int64) for _ in range(4))
    for part in op_slices(trace):
        runs = (ops.kind[part] == KERNEL) | (ops.kind[part] == GRAPH)
        where = device_gpu[ops.stream[part]]
        for number in set(where[runs].tolist()):
            chosen = runs & (where == number)
            start, name = ops.start[part][chosen], ops.name[part][chosen]
            end = np.maximum(ops.end[part][chosen], start)
            np.add.at(count, name, 1)
            np.add.at(total, name, end - start)
            for sums, line in zip((covered, by_faults), lines.get(number, ()), strict=False):
                np.add.at(sums, name, cover_before(*line, end) - cover_before(*line, start))
    columns: dict[str, Column] = {
        "kernel": Texts(np.arange(len(count)), trace.op_names),
        "count": count,
        "sum_ns": total,
        "covered_ns": covered,
        "fault_covered_ns": by_faults,
    }
    return ColumnTable(columns).take(count > 0)
