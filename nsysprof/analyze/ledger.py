"""The ledger and totals of the whole report, and warnings about the numbers."""

from collections.abc import Callable, Iterator

import numpy as np

from nsysprof.attribution.attribute import AMBIGUOUS, FOLLOWED, NO_LAUNCH, Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.core.arrays import Index, Mask
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.intervals import covered, merge
from nsysprof.core.nesting import ancestors_or_self
from nsysprof.core.units import format_ns, format_share
from nsysprof.trace.trace import GRAPH, KERNEL, MEMCPY, MEMSET, MIGRATION

# A thread's range starts slowly when the first of so many instances takes so many times the median, and half of all.
_LEAST_INSTANCES, _TIMES_MEDIAN = 4, 5
_MAX_JUDGED = 50  # ranges, those with the most time
InstancesOf = Callable[[int], tuple[Attribution, Index]]


def ledger_columns(attribution: Attribution) -> ColumnTable:
    """Make the ledger, which adds up to the report: ``fate, ops, sum_ns, share`` (of all GPU op time) per outcome."""
    rows = attribution.ledger
    ops, sum_ns = (np.array([getattr(row, name) for row in rows], np.int64) for name in ("ops", "sum_ns"))
    fates = Texts(np.arange(len(rows)), [row.outcome for row in rows])
    return ColumnTable({"fate": fates, "ops": ops, "sum_ns": sum_ns, "share": sum_ns / (sum_ns.sum() or 1)})


def totals(attribution: Attribution) -> dict[str, int]:
    """Add up the whole report. Busy time is summed over GPUs; the span is from the first start of a GPU op to the last
    end.

    Op count and summed op time are equal to the ledger's totals. Migrations count toward neither busy time nor span.
    """
    trace = attribution.trace
    ops = trace.ops
    migrates = ops.kind == MIGRATION
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
        "busy_ns": trace.busy_ns,
        "span_ns": int(ops.end[~migrates].max() - ops.start[~migrates].min()) if not migrates.all() else 0,
        "recording_ns": trace.report.about.duration_ns or 0,
    }


def chosen_totals(attribution: Attribution, rows: Index) -> dict[str, int]:
    """Add up range instances: the union of their spans (from first to last GPU op), and the time in this union for
    which GPUs are busy.
    """
    inside = attribution.inclusive
    rows = rows[inside.last_op_ns[rows] > inside.first_op_ns[rows]]
    start, end = merge(inside.first_op_ns[rows], inside.last_op_ns[rows])
    busy = sum(int(covered(line, start, end).sum()) for line in attribution.trace.gpu_busy.values())
    return {"chosen_busy_ns": busy, "chosen_span_ns": int((end - start).sum())}


def warnings(
    attribution: Attribution, paths: Paths, left_out: Mask, skip: int, select: str | None, chosen: int
) -> Iterator[str]:
    """Describe caveats about the numbers, each with its count and share of the time.

    ``left_out`` are the warm-up instances; ``chosen`` is the number of instances that ``select`` keeps.
    """
    of_fates = {}
    for outcome, row in enumerate(ledger_columns(attribution).records()):
        of_fates[outcome] = f"{row['ops']:,} ({format_share(row['share'])} of GPU op time)" if row["ops"] else ""
    if paths.too_long:
        deepest = int(paths.depth.max()) + 1
        yield f"range paths have up to {deepest:,} levels: long paths are shortened in the middle and may look alike"
    if unclosed := int(attribution.trace.ranges.unclosed.sum()):
        yield (
            f"the program never closed {unclosed:,} of {len(left_out):,} ranges, which are assumed to end "
            "with the recording"
        )
    if ops := of_fates[NO_LAUNCH]:
        yield f"GPU ops with no recorded launch (attributed to no range): {ops}"
    if ops := of_fates[AMBIGUOUS]:
        yield f"GPU ops of worker threads, attributed to no range because several threads had ranges open: {ops}"
    if ops := of_fates[FOLLOWED]:
        yield f"GPU ops of worker threads, attributed to the only range open on another thread: {ops}; see --threads"
    if left_out.any():
        yield f"warm-up instances left out: {int(left_out.sum()):,} (--skip {skip})"
    if select is not None:
        part = f"{chosen:,} of {len(left_out):,}"
        yield (
            f"shown: ranges that match {select!r}, and all ranges inside them ({part}); ledger and "
            "totals still cover all ranges"
        )


def slow_starts(merged: ColumnTable, instances_of: InstancesOf, by: str | None) -> Iterator[str]:
    """Report outermost repeated ranges whose first instance on a thread is much slower than later instances.

    ``merged`` are the columns of a `Breakdown`, ``instances_of`` returns the range instances of a row. The first
    instance includes warm-up (module loading, autotuning, allocation), which ``--skip`` leaves out.
    """
    repeats = merged["instances"] > 1
    parent, work = merged["parent"], merged["sum_ns"]
    outermost = repeats & ~np.append(ancestors_or_self(parent, repeats), False)[parent]
    rows = np.flatnonzero(outermost & (work > 0))
    for row in np.sort(rows[np.argsort(-work[rows], kind="stable")[:_MAX_JUDGED]]).tolist():
        attribution, instances = instances_of(row)
        if (slow := _slowest(attribution, instances)) is not None:
            [shown] = merged.take(slice(row, row + 1)).records()
            part = f" of {by} {shown[by]}" if by else ""
            yield (
                f"the first of {slow[2]:,} instances of {shown['name']}{part} spans {format_ns(slow[0])} (median "
                f"{format_ns(slow[1])}; --skip 1 excludes the first)"
            )


def _slowest(attribution: Attribution, instances: Index) -> tuple[int, int, int] | None:
    """Find the thread with the slowest first instance, if any is slow: its first span, median span and instances."""
    ranges = attribution.trace.ranges
    slow, threads = [], ranges.thread[instances]
    for thread in np.flatnonzero(np.bincount(threads) >= _LEAST_INSTANCES).tolist():
        rows = instances[threads == thread]
        span = attribution.inclusive.last_op_ns[rows] - attribution.inclusive.first_op_ns[rows]
        first, median = int(span[np.argmin(ranges.start[rows])]), int(np.median(span))
        if median > 0 and first > _TIMES_MEDIAN * median and 2 * first > int(span.sum()):
            slow.append((first, median, len(rows)))
    return max(slow, default=None)
