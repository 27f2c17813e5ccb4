"""The gap ledger: its rows explain why one side takes longer, and add up exactly to the time difference.

A side's span is the time of its GPU ops, minus overlap, plus the gaps between the ops. The time of steps also includes
the gaps before the first and after the last GPU op of each step. Every GPU op is assigned a cause and every gap a
reason, so the rows of each side add up to its total time. Times per call are rounded to whole nanoseconds such that
they still add up.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.attribution.range_work import RangeWork, WorkIndex
from nsysprof.compare.op_causes import Causes
from nsysprof.core.arrays import Index, Ints, Ints32
from nsysprof.core.columns import ranks, sums
from nsysprof.core.units import format_ns
from nsysprof.kernels.classify import Kinds, short_name
from nsysprof.statistics.contrast import NO_CLEAR_CHANGE
from nsysprof.trace.details import grid_text
from nsysprof.trace.trace import KERNEL
from nsysprof.waits.causes import WAITING_FOR, Gaps, IdlePieces, WaitFacts, idle_pieces
from nsysprof.waits.ranges import StepTimes

OVERLAP = "overlap"
MAX_NAMES = 4
# Where causes gain and lose more than so many times the difference, shares of it mean nothing.
MAX_CHANGE_TO_DIFFERENCE = 2.0


@dataclass(frozen=True)
class Entry:
    """The time of one cause on one side, over all calls; ``ns`` is negative for the overlap."""

    launches: int
    kernels: int
    ns: int


@dataclass(frozen=True)
class SideLedger:
    """All entries of a side by cause; their ``ns`` add up to ``total_ns``. ``calls`` is the number of calls."""

    entries: dict[str, Entry]
    total_ns: int
    calls: int

    def per_call(self, causes: Sequence[str]) -> list[int]:
        """Return the time of each cause per call, in whole ns that add up to `span_per_call`; 0 for other causes.

        ``causes`` must contain all causes of the side.
        """
        totals = [self.entries[cause].ns if cause in self.entries else 0 for cause in causes]
        if sum(totals) != self.total_ns:
            raise AssertionError("the causes do not add up to the time of the side")
        return apportion(totals, self.calls)

    @property
    def per_call_ns(self) -> int:
        """Return the time per call, rounded to ns."""
        return nearest(self.total_ns, self.calls)


@dataclass(frozen=True)
class Edges:
    """The time of steps outside the spans of their GPU ops: ``total_ns`` may be negative.

    ``pieces`` are the gaps before the first and after the last GPU op of a step, with the number of the ``step``.
    ``ahead_ns``: the time for which GPU ops of the step ran outside it, before the previous step ended or after the
    step itself ended.
    """

    pieces: IdlePieces
    step: Index
    ahead_ns: int

    @property
    def total_ns(self) -> int:
        """Return the total time of the steps minus the spans of their GPU ops."""
        return int((self.pieces.end - self.pieces.start).sum()) - self.ahead_ns


def step_edges(index: WorkIndex, work: RangeWork, steps: StepTimes, facts: WaitFacts) -> Edges:
    """The `Edges` of steps; ``work`` has one window per step, in order."""
    trace = index.attribution.trace
    first = np.flatnonzero(np.diff(work.window, prepend=-1))
    head, tail = work.first_ns - steps.start, steps.end - work.last_ns
    before, behind = np.flatnonzero(head > 0), np.flatnonzero(tail > 0)
    pieces = idle_pieces(
        index.attribution,
        facts,
        np.append(steps.start[before], work.last_ns[behind]),
        np.append(work.first_ns[before], steps.end[behind]),
        np.append(work.op[first[before]], np.full(len(behind), -1)),
        trace.ranges.thread[np.append(steps.range[before], steps.range[behind])],
    )
    return Edges(
        pieces, np.append(before, behind)[pieces.gap], -int(np.minimum(head, 0).sum() + np.minimum(tail, 0).sum())
    )


def side_ledger(
    index: WorkIndex, work: RangeWork, causes: Causes, gaps: Gaps, edges: Edges | None = None
) -> SideLedger:
    """The `SideLedger` of a range's work; `SideLedger.per_call` asserts that the ledger adds up."""
    ops = index.attribution.trace.ops
    count = len(causes.texts)
    length = work.end - work.start
    total = sums(causes.of, length, count)
    kernels = np.bincount(causes.of, weights=ops.kind[work.op] == KERNEL, minlength=count)
    launches = _distinct(causes.of, ops.launch[work.op], count)
    present = np.bincount(causes.of, minlength=count).tolist()
    rows = zip(causes.texts, present, launches.tolist(), kernels.tolist(), total.tolist(), strict=True)
    # a cause whose GPU ops all found a finer one by their order has none left
    entries = {text: Entry(calls, int(many), ns) for text, some, calls, many, ns in rows if some}
    idle = int(gaps.length_ns.sum())
    overlap = work.span_ns - idle - int(length.sum()) - (edges.ahead_ns if edges else 0)
    if overlap:
        entries[OVERLAP] = Entry(0, 0, overlap)
    for kind, text in enumerate(WAITING_FOR):
        ns = gaps.total_ns(kind)
        if edges:
            pieces = edges.pieces
            ns += int((pieces.end - pieces.start)[pieces.kind == kind].sum())
        if ns:
            entries[text] = Entry(0, 0, ns)
    return SideLedger(entries, work.span_ns + (edges.total_ns if edges else 0), work.calls)


def _distinct(code: Ints32, launch: Ints32, count: int) -> Ints:
    """The number of distinct launches of each code; -1 (no recorded launch) does not count."""
    known = launch >= 0
    pair = np.unique(code[known].astype(np.int64) << 32 | launch[known].astype(np.int64))
    return np.bincount(pair >> 32, minlength=count)


def apportion(totals: Sequence[int], parts: int) -> list[int]:
    """Divide each total by ``parts``, and round the results so that they add up to the rounded value of sum ÷
    ``parts``.

    The remainder after rounding down goes to the largest fractions; a total of 0 stays 0.
    """
    out = [total // parts for total in totals]
    left = nearest(sum(totals), parts) - sum(out)
    rest = sorted(range(len(totals)), key=lambda at: (-(totals[at] % parts), at))
    for at in rest[:left]:
        out[at] += 1
    return out


def nearest(total: int, parts: int) -> int:
    """Round ``total / parts`` half up to a whole number; exact for any size."""
    return (2 * total + parts) // (2 * parts)


def gap_rows(base: SideLedger, new: SideLedger) -> pd.DataFrame:
    """Return a row per ``cause``, sorted by difference, the largest first; all counts and times are per call.

    The columns for each side are ``base_launches, base_kernels, base_ns`` and ``new_launches, new_kernels, new_ns``.
    ``delta_ns`` is new minus base, and adds up to the difference of the times per call. ``share`` is the share of this
    difference, NaN if the difference is 0. Counts are whole numbers if they are equal in all calls.
    """
    causes = sorted({*base.entries, *new.entries})  # which rest is given first must not depend on rows
    columns: dict[str, Any] = {"cause": pd.Series(causes, dtype=object)}
    for name, side in (("base", base), ("new", new)):
        entries = [side.entries.get(cause, Entry(0, 0, 0)) for cause in causes]
        columns[f"{name}_launches"] = [entry.launches / side.calls for entry in entries]
        columns[f"{name}_kernels"] = [entry.kernels / side.calls for entry in entries]
        columns[f"{name}_ns"] = np.array(side.per_call(causes), np.int64)
    frame = pd.DataFrame(columns)
    frame["delta_ns"] = frame["new_ns"] - frame["base_ns"]
    difference = new.per_call_ns - base.per_call_ns
    if int(frame["delta_ns"].sum()) != difference:
        raise AssertionError("the rows do not add up to the time difference")
    frame["share"] = frame["delta_ns"] / difference if difference else np.nan
    size = np.maximum(frame["base_ns"].abs(), frame["new_ns"].abs())
    order = np.lexsort((ranks(causes), frame["delta_ns"], -size, -frame["delta_ns"].abs()))
    return frame.iloc[order].reset_index(drop=True)


def causes_cancel(gaps: pd.DataFrame) -> bool:
    """Return whether the gains and losses of the causes mostly cancel, so that they are much larger than the pair's
    difference; ``gaps`` as in `gap_rows`.
    """
    changes = gaps["delta_ns"]
    return bool(changes.abs().sum() > MAX_CHANGE_TO_DIFFERENCE * abs(int(changes.sum())))


def no_shares_reason(pair: Mapping[str, Any], gaps: pd.DataFrame) -> str:
    """Return the reason why a row of `Comparison.pairs` shows no shares of the causes; empty if it shows shares.

    Causes add up to the difference of the means. Shares would be misleading if this difference is not significant, or
    if the medians differ in the other direction.
    """
    if pair["verdict"] == NO_CLEAR_CHANGE:
        return "the change is not clear, so causes are shown without shares"
    means = pair["delta_ns"]
    medians = pair["new_median_ns"] - pair["base_median_ns"]
    if np.sign(medians) != np.sign(means):
        return "means and medians change in opposite directions, so causes are shown without shares"
    if causes_cancel(gaps):
        return "gains and losses mostly cancel each other, so causes are shown without shares"
    return ""


def evidence_rows(
    index: WorkIndex, work: RangeWork, causes: Causes, kinds: Kinds, grids: Ints
) -> tuple[pd.DataFrame, Index]:
    """Return the GPU ops of each cause, added up over all calls and sorted by time, longest first.

    The columns are ``cause, kernel, math_unit, grid, count, sum_ns``. ``kernel`` is the full name (or the name of a
    memory operation); ``grid`` is the number of blocks as `32x32x8`, if it was recorded. Also returns the row number of
    each GPU op.
    """
    trace = index.attribution.trace
    name = trace.ops.name[work.op]
    grid = np.zeros(len(name), np.int64)
    if len(grids):
        is_kernel = trace.ops.kind[work.op] == KERNEL
        grid[is_kernel] = grids[work.op[is_kernel]]
    blocks, block = np.unique(grid, return_inverse=True)
    dims = tuple(max(len(each), 1) for each in (causes.texts, trace.op_names, blocks))
    distinct, group = np.unique(np.ravel_multi_index((causes.of, name, block), dims), return_inverse=True)
    total = sums(group, work.end - work.start, len(distinct))
    cause, kernel, block = np.unravel_index(distinct, dims)
    frame = pd.DataFrame(
        {
            "cause": pd.Series([causes.texts[code] for code in cause.tolist()], dtype=object),
            "kernel": pd.Series([trace.op_names[code] for code in kernel.tolist()], dtype=object),
            "math_unit": pd.Series([kinds.math_unit[code] for code in kernel.tolist()], dtype=object),
            "grid": pd.Series([grid_text(int(blocks[code])) for code in block.tolist()], dtype=object),
            "count": np.bincount(group, minlength=len(distinct)),
            "sum_ns": total,
        }
    )
    order = np.lexsort((block, trace.op_name_rank[kernel], ranks(causes.texts)[cause], -total))
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    return frame.iloc[order].reset_index(drop=True), place[group]


def evidence_texts(
    rows: pd.DataFrame, gaps: Gaps, work: RangeWork, edges: Edges | None = None, *, whole: bool = False
) -> dict[str, str]:
    """Make one line for each cause of a side. The line has the kernels (count per call, math unit and grid) or the gaps
    of the cause.

    ``whole``: whether the side is a whole trace, without calls.
    """
    out = {}
    for cause, of_cause in rows.groupby("cause", sort=False):
        named = []
        for row in of_cause.head(MAX_NAMES).to_dict("records"):
            facts = [] if row["math_unit"] == "unknown" else [row["math_unit"]]
            facts += [f"grid {row['grid']}"] if row["grid"] else []
            known = f" ({', '.join(facts)})" if facts else ""
            named.append(f"{_short(row['kernel'])} x {per_call_text(row['count'], work.calls)}{known}")
        more = len(of_cause) - MAX_NAMES
        out[str(cause)] = ", ".join([*named, *([f"and {more:,} more"] if more > 0 else [])])
    return {**out, **dict(_gap_texts(gaps, work.calls, edges, whole=whole))}


_short = lru_cache(maxsize=10_000)(short_name)


def _gap_texts(gaps: Gaps, calls: int, edges: Edges | None, *, whole: bool) -> Iterator[tuple[str, str]]:
    places = [
        ("" if whole else " within a call", gaps.kind[~gaps.between_calls], gaps.length_ns[~gaps.between_calls]),
        (" between calls", gaps.kind[gaps.between_calls], gaps.length_ns[gaps.between_calls]),
    ]
    if edges:
        places.append((" at its ends", edges.pieces.kind, edges.pieces.end - edges.pieces.start))
    for kind, text in enumerate(WAITING_FOR):
        parts = [
            f"{per_call_text(len(some), calls)}{where}, median {format_ns(float(np.median(some)))}"
            for where, kinds, length in places
            if len(some := length[kinds == kind])
        ]
        if parts:
            yield text, f"gaps{'' if whole else ' per call'}: {'; '.join(parts)}"


def per_call_text(count: float, calls: int) -> str:
    """Format a number per call: `20`, `0.95`."""
    each = count / calls
    if 0 < each < 0.01:
        return "<0.01"
    return mean_text(each, 1 if each >= 9.95 else 2)


def mean_text(count: float, decimals: int = 1) -> str:
    """Format a mean of counts, with decimals only if it is not a whole number: `20`, `0.9`."""
    return f"{count:,.{0 if count == int(count) else decimals}f}"
