"""Which rows the bar charts show: the level of ranges at which the time divides, or kernels where there are no ranges.

The rule. Start with the outermost merged ranges that have GPU work. While one of them holds at least `DOMINANT` of
their op time and divides into several ranges, put those in its place; what it launches itself, outside of them, stays
as a row of its own ("itself"). So `RUN::math`, `RUN::flash`, … are compared as they are, and a training loop is shown
by the parts of a step; a range and its only child never stand beside each other. Of many rows the `top` ones by busy
time are shown, the longest first, and the others as one row that adds up.

Warm-up and checks of the workloads are among the others wherever what they measure is in the answer as well.

Calls. Where all the work of a row is in instances of its only child (`RUN::math` holding twenty `iter*`), those are
its calls: counts are per instance, so that ranges that ran for a different number of times compare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.highlights import preparing
from nsysprof.core.intervals import Ints, union_length
from nsysprof.core.text import shorten
from nsysprof.kernels.classify import short_name
from nsysprof.kernels.groups import NO_KERNELS, OTHER, OpGroups

DOMINANT = 0.95
MOST_ROWS = 60
LABEL = 46  # characters


@dataclass(frozen=True)
class ChartRows:
    """What to draw, a row per bar from top to bottom.

    ``of`` is "ranges" or "kernels". ``labels`` are printable; ``names`` longer ones for titles. ``calls`` int64, the
    instances that counts are divided by; ``launches`` int64 host calls (-1: not known); ``kernels`` int64; ``ops``
    and ``sum_ns`` int64, per row and group of ``groups``; ``busy_ns``, ``span_ns`` int64 (span 0: not known);
    ``call_ns`` int64, the median busy time of a call. ``rest`` is the row that stands for ``left_out`` more, or None.
    ``owned_ns`` is the op time of all ranges. ``unit`` says what is counted per: "instance", with
    the name of the calls where that is one.
    """

    of: str
    labels: list[str]
    names: list[str]
    calls: Ints
    launches: Ints
    kernels: Ints
    ops: Ints
    sum_ns: Ints
    busy_ns: Ints
    span_ns: Ints
    call_ns: Ints
    rest: int | None
    left_out: int
    owned_ns: int
    unit: str
    groups: OpGroups

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def idle_ns(self) -> Ints:
        """Span less busy time; 0 where several GPUs make the busy time longer, or where the span is not known."""
        idle: Ints = np.maximum(self.span_ns - self.busy_ns, 0)
        return idle

    @property
    def named(self) -> NDArray[np.intp]:
        """The rows that stand for one range or kernel."""
        return np.array([row for row in range(len(self)) if row != self.rest], np.intp)


@dataclass
class _Row:
    """One bar in the making."""

    text: str
    order: int
    calls: int
    launches: int
    kernels: int
    ops: Ints
    sum_ns: Ints
    busy_ns: int
    span_ns: int
    call_ns: int
    call_name: str | None = None
    prepares: bool = False


def chart_rows(breakdown: Breakdown, top: int) -> ChartRows | None:
    """The `ChartRows` of an answer by the rule of this module; None where it holds no GPU work."""
    merged = breakdown.columns("merged")
    owned = int(merged["exclusive_sum_ns"].sum()) if len(merged) else 0
    rows = _range_rows(breakdown) if len(merged) else []
    kind = "ranges"
    if not rows:
        rows, kind = _kernel_rows(breakdown), "kernels"
        owned = sum(int(row.sum_ns.sum()) for row in rows)
    if not rows:
        return None
    top = max(1, min(top, MOST_ROWS))
    by_time = sorted(rows, key=lambda row: (row.prepares, -row.busy_ns, row.order))
    top = min(top, sum(not row.prepares for row in rows))
    shown, others = by_time[:top], by_time[top:]
    if len(others) == 1:  # a row that says "1 more" takes as much place as the one it stands for
        shown, others = by_time, []
    names = {row.call_name for row in shown}
    labels, left_out = [shorten(row.text, LABEL) for row in shown], len(others)
    if others:
        shown = [*shown, _together(others, kind)]
        labels.append(f"… and {left_out:,} more {kind}")
    return ChartRows(
        of=kind,
        labels=labels,
        names=[shorten(row.text, 2 * LABEL) for row in shown],
        **{
            name: np.array([getattr(row, name) for row in shown], np.int64)
            for name in ("calls", "launches", "kernels", "ops", "sum_ns", "busy_ns", "span_ns", "call_ns")
        },
        rest=len(labels) - 1 if others else None,
        left_out=left_out,
        owned_ns=owned,
        unit=_unit(names),
        groups=breakdown.groups,
    )


def _unit(names: set[str | None]) -> str:
    if names == {None}:
        return "instance"
    return f"instance ({shorten(str(next(iter(names))), LABEL)})" if len(names) == 1 else "instance"


def _together(rows: list[_Row], kind: str) -> _Row:
    spans_known = all(row.span_ns for row in rows)
    return _Row(
        text="",
        order=0,
        calls=sum(row.calls for row in rows) if kind == "ranges" else 1,
        launches=-1 if any(row.launches < 0 for row in rows) else sum(row.launches for row in rows),
        kernels=sum(row.kernels for row in rows),
        ops=np.sum([row.ops for row in rows], axis=0),
        sum_ns=np.sum([row.sum_ns for row in rows], axis=0),
        busy_ns=sum(row.busy_ns for row in rows),
        span_ns=sum(row.span_ns for row in rows) if spans_known else 0,
        call_ns=0,
    )


def _range_rows(breakdown: Breakdown) -> list[_Row]:
    merged = breakdown.columns("merged")
    parent, total = merged["parent"], merged["sum_ns"]
    working = (merged["launches"] > 0).tolist()
    children: dict[int, list[int]] = {}
    for row, above in enumerate(parent.tolist()):
        if working[row]:
            children.setdefault(above, []).append(row)
    frontier, opened = _frontier(children, total)
    ops, sums = _by_group(breakdown)
    texts, names = merged.texts("merged_path").tolist(), merged.texts("name").tolist()
    before = preparing(merged)
    if breakdown.by:
        who = "pid " if breakdown.by == "process" else ""
        labels = merged.columns[breakdown.by].tolist()
        texts = [f"{who}{label}: {text}" for label, text in zip(labels, texts, strict=True)]
    out = []
    for row in frontier:
        call = _call_row(row, children, total, merged["instances"])
        out.append(
            _Row(
                text=texts[row],
                order=row,
                calls=int(merged["instances"][call]),
                launches=int(merged["launches"][row]),
                kernels=int(merged["kernels"][row]),
                ops=ops[row],
                sum_ns=sums[row],
                busy_ns=int(merged["busy_ns"][row]),
                span_ns=int(merged["span_ns"][row]),
                call_ns=int(merged["busy_median_ns"][call]),
                call_name=names[call] if call != row else None,
                prepares=bool(before[row]),
            )
        )
    return out + [own for chain in opened if (own := _own_row(breakdown, chain)) is not None]


def _frontier(children: dict[int, list[int]], total: Ints) -> tuple[list[int], list[list[int]]]:
    """The rows to show, and those that were opened: each with the only children that led to what it divides into."""
    frontier, opened = list(children.get(-1, [])), []
    while frontier:
        biggest = max(frontier, key=lambda row: total[row])
        everything = sum(int(total[row]) for row in frontier)
        chain = [biggest]
        while len(children.get(chain[-1], [])) == 1:
            chain += children[chain[-1]]
        inner = children.get(chain[-1], [])
        divided = sum(int(total[row]) for row in inner)
        if total[biggest] < DOMINANT * everything or 2 * divided < total[biggest] or len(inner) < 2:
            break
        frontier.remove(biggest)
        frontier += inner
        opened.append(chain)
    return frontier, opened


def _call_row(row: int, children: dict[int, list[int]], total: Ints, instances: Ints) -> int:
    """The only descendant that repeats and has (nearly) all the work, or the row itself."""
    here = row
    while len(inner := children.get(here, [])) == 1 and total[inner[0]] >= DOMINANT * total[row]:
        here = inner[0]
        if instances[here] > instances[row]:
            return here
    return row


def _by_group(breakdown: Breakdown) -> tuple[Ints, Ints]:
    """Ops and op time inside each merged row, by group; time that has no group would be other."""
    families, merged = breakdown.columns("families"), breakdown.columns("merged")
    shape = (len(merged), len(breakdown.groups.labels))
    where = families["row"], families["group"]
    ops, sums = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    np.add.at(ops, where, families["ops"])
    np.add.at(sums, where, families["sum_ns"])
    sums[:, breakdown.groups.place(OTHER)] += merged["sum_ns"] - sums.sum(axis=1)
    return ops, sums


def _own_row(breakdown: Breakdown, chain: list[int]) -> _Row | None:
    """What some ranges launch themselves, as a row; None where that is nothing."""
    merged, rows = breakdown.columns("merged"), breakdown.columns("merged_kernels")
    mine = rows.take(np.isin(rows["row"], chain))
    if not len(mine):
        return None
    groups = breakdown.groups
    ops, sums = (np.zeros(len(groups.labels), np.int64) for _ in range(2))
    np.add.at(ops, mine["group"], mine["count"])
    np.add.at(sums, mine["group"], mine["sum_ns"])
    no_kernels = [groups.place(family) for family in NO_KERNELS]
    paths = merged.take(np.array(chain)).texts("merged_path").tolist()
    busy, launches = _own_busy(breakdown, set(paths))
    if breakdown.by:  # the ops of one process or GPU only: their overlap is not worked out
        busy, launches = int(sums.sum()), -1
    return _Row(
        text=f"{paths[0]} itself",
        order=chain[0],
        calls=int(merged["instances"][chain[0]]),
        launches=launches,
        kernels=int(ops.sum() - ops[no_kernels].sum()),
        ops=ops,
        sum_ns=sums,
        busy_ns=busy,
        span_ns=0,
        call_ns=0,
    )


def _own_busy(breakdown: Breakdown, texts: set[str]) -> tuple[int, int]:
    """Busy time, per instance and GPU, and launches of the ops that ranges with these merged paths own."""
    attribution = breakdown.attribution
    trace = attribution.trace
    path = np.array([text in texts for text in breakdown.merged_texts], bool)
    ranges = path[breakdown.paths.of]
    if breakdown.kept is not None:
        ranges &= breakdown.kept
    owner = attribution.op_owner
    ops = np.flatnonzero(np.append(ranges, False)[owner])
    start, end = trace.ops.start[ops], trace.ops.end[ops]
    gpu = np.array(trace.gpu_numbers, np.int64)[trace.stream_device][trace.ops.stream[ops]]
    group = owner[ops].astype(np.int64) * (gpu.max(initial=0) + 1) + gpu
    group = np.unique(group, return_inverse=True)[1].reshape(-1)
    # Laid out one after another, the groups do not touch and one union serves them all.
    low = np.zeros(int(group.max(initial=-1)) + 1, np.int64) + np.iinfo(np.int64).max
    high = np.zeros(len(low), np.int64) + np.iinfo(np.int64).min
    np.minimum.at(low, group, start)
    np.maximum.at(high, group, end)
    length = high - low
    shift = np.cumsum(length) - length - low
    return union_length(start + shift[group], end + shift[group]), len(np.unique(trace.ops.launch[ops]))


def _kernel_rows(breakdown: Breakdown) -> list[_Row]:
    """A row per kernel name, over the whole answer."""
    rows = breakdown.columns("merged_kernels")
    rows = rows.take(~rows.texts("family").equal("migration"))
    kinds, out = rows.summed(["kernel", "family", "group"], ["count", "sum_ns"]), []
    for number, row in enumerate(kinds.records()):
        name, family, group, count, total = row.values()
        one = np.zeros(len(breakdown.groups.labels), np.int64)
        one[group] = 1
        is_kernel = family not in NO_KERNELS
        out.append(
            _Row(
                text=short_name(name, LABEL),
                order=number,
                calls=1,
                launches=-1,
                kernels=count * is_kernel,
                ops=one * count,
                sum_ns=one * total,
                busy_ns=total,
                span_ns=0,
                call_ns=0,
            )
        )
    return out
