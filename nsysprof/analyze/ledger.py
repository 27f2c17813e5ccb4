"""What adds up to the whole report: ledger, totals, and the warnings that go with them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import AMBIGUOUS, FOLLOWED, NO_LAUNCH, Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.units import format_share
from nsysprof.trace.trace import GRAPH, KERNEL, MEMCPY, MEMSET, MIGRATION


def ledger_columns(attribution: Attribution) -> ColumnTable:
    """``fate, ops, sum_ns, share`` (of all op time): a row per outcome, adding up to the report."""
    total = sum(row.sum_ns for row in attribution.ledger)
    return ColumnTable(
        {
            "fate": Texts(np.arange(len(attribution.ledger)), [row.outcome for row in attribution.ledger]),
            "ops": np.array([row.ops for row in attribution.ledger], np.int64),
            "sum_ns": np.array([row.sum_ns for row in attribution.ledger], np.int64),
            "share": np.array([row.sum_ns / total if total else 0.0 for row in attribution.ledger]),
        }
    )


def totals(attribution: Attribution) -> dict[str, int]:
    """Counts and times of the whole report; busy per GPU, added; span from the first op to the last end.

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
    }


def warnings(
    attribution: Attribution,
    paths: Paths,
    left_out: NDArray[np.bool_],
    skip: int,
    select: str | None,
    chosen: int,
) -> Iterator[str]:
    """What a reader must know before believing the numbers: what, how many, and what share of the time.

    ``left_out`` are the warm-up instances, ``chosen`` how many instances ``select`` leaves.
    """
    ledger = ledger_columns(attribution)

    def ops(outcome: int) -> str:
        return f"{attribution.ledger[outcome].ops:,} ({format_share(float(ledger['share'][outcome]))} of op time)"

    if paths.too_long:
        deepest = int(paths.depth.max()) + 1
        yield f"range paths are up to {deepest:,} names deep: long ones are cut in the middle, and may look alike"
    unclosed = int(attribution.trace.ranges.unclosed.sum())
    if unclosed:
        yield f"ranges never closed: {unclosed:,} of {len(left_out):,}; they end with the session"
    if attribution.ledger[NO_LAUNCH].ops:
        yield f"ops without a launch row in the report: {ops(NO_LAUNCH)}; no range owns them"
    if attribution.ledger[AMBIGUOUS].ops:
        yield f"ops of helper threads, with ranges open on several threads: {ops(AMBIGUOUS)}; no range owns them"
    if attribution.ledger[FOLLOWED].ops:
        yield f"ops of helper threads that follow the one range open elsewhere: {ops(FOLLOWED)}; see --threads"
    if left_out.any():
        yield f"warm-up instances left out: {int(left_out.sum()):,} (--skip {skip})"
    if select is not None:
        part = f"{chosen:,} of {len(left_out):,}"
        yield f"ranges that match {select!r} or lie in one that does: {part}; only the ledger and totals are of all"
