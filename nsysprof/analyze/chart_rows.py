"""Choose the rows of the bar charts: ranges that together account for the time, or kernels if there are no ranges.

The rule of this module: Detected iterations do not count as ranges here, because they are not annotated. Start with the
outermost merged ranges that have GPU work. If one of these ranges has at least `DOMINANT` of the op time and several
inner ranges, replace it by its inner ranges, and repeat. Work that the replaced range launches itself becomes a row
("itself"). So the chart compares whole ranges such as `RUN::math` and `RUN::flash`, and divides a training loop into
the parts of a step. The chart never shows both a range and its only child. If there are many rows, the chart shows the
`top` rows by busy time, longest first, and one row for all others.

If there are measured ranges, warm-up and checks of workloads are counted in the row for all others.

Calls. If a row has only one child, which has all of its work (`RUN::math` with twenty `iter*`), the instances of the
child are the calls of the row. Counts are per instance, so that ranges with different numbers of instances are
comparable.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.highlights import preparing
from nsysprof.core.arrays import Index, Ints
from nsysprof.core.columns import ColumnTable, stack_tables, sums
from nsysprof.core.intervals import union_length
from nsysprof.core.text import shorten, shorten_all
from nsysprof.kernels.classify import NO_KERNELS, OTHER, OpGroups, short_name
from nsysprof.trace.trace import FOUND

DOMINANT = 0.95
MAX_ROWS = 60
LABEL = 46  # characters


@dataclass(frozen=True)
class ChartRows:
    """The bars of a chart, a row per bar from top to bottom.

    ``of`` is "ranges" or "kernels". ``labels`` are printable; ``names`` are longer and appear in titles. ``calls``
    int64: the number of instances by which counts are divided; ``launches`` int64 host calls (-1: unknown); ``kernels``
    int64; ``ops`` and ``sum_ns`` int64, per row and group of ``groups``; ``busy_ns``, ``span_ns`` int64 (span 0:
    unknown); ``call_ns`` int64: the median busy time of a call, or of a launch of the kernel (0: unknown). ``rest`` is
    the row for all others, or None. ``owned_ns`` is the GPU op time of all ranges or all kernels. ``unit`` describes
    the divisor of counts: The word "instance", with the name of the calls if all rows have the same name.
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
    owned_ns: int
    unit: str
    groups: OpGroups

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def idle_ns(self) -> Ints:
        """Return span minus busy time; 0 if several GPUs have more busy time than span, or if the span is unknown."""
        return np.maximum(self.span_ns - self.busy_ns, 0)

    @property
    def named(self) -> Index:
        """Return the rows that show a single range or kernel; if there are none, return the row for all others."""
        rows = [row for row in range(len(self)) if row != self.rest]
        return np.array(rows or range(len(self)), np.intp)


def chart_rows(breakdown: Breakdown, top: int) -> ChartRows | None:
    """Choose the `ChartRows` of a result by the rule of this module; returns None if there is no GPU work."""
    merged = breakdown.columns("merged")
    owned = int(merged["exclusive_sum_ns"].sum())
    rows, kind = _range_rows(breakdown), "ranges"
    if not len(rows) or not by_range(merged):
        rows, kind = _kernel_rows(breakdown), "kernels"
        owned = int(rows["sum_ns"].sum())
    if not len(rows):
        return None
    by_time = rows.take(np.lexsort((rows["order"], -rows["busy_ns"], rows["prepares"])))
    top = min(max(1, min(top, MAX_ROWS)), int((~rows["prepares"]).sum()))
    if len(rows) == top + 1:  # a row that says "1 more" takes as much place as the one it stands for
        top += 1
    shown, others = by_time.take(slice(top)), by_time.take(slice(top, None))
    labels = shorten_all(shown["text"].tolist(), LABEL)
    calls = list(dict.fromkeys(shown["call_name"].tolist()))
    unit = f"instance ({shorten(calls[0], LABEL)})" if len(calls) == 1 and calls[0] else "instance"
    if len(others):
        shown = stack_tables([shown, _together(others, kind)])
        labels.append(f"… and {len(others):,} more {kind}")
    return ChartRows(
        of=kind,
        labels=labels,
        names=[shorten(text, 3 * LABEL // 2) for text in shown["text"].tolist()],
        **{
            name: shown[name]
            for name in ("calls", "launches", "kernels", "ops", "sum_ns", "busy_ns", "span_ns", "call_ns")
        },
        rest=len(labels) - 1 if len(others) else None,
        owned_ns=owned,
        unit=unit,
        groups=breakdown.groups,
    )


def grouped(rows: ChartRows) -> ChartRows:
    """Join rows that run the same ops per call if only the last parts of their names differ.

    The label of a joined row has all last parts in braces: `RUN::math::S{4096, 2048}`.
    """
    members: dict[object, list[int]] = {}
    for row in range(len(rows)):
        head = rows.names[row][: len(rows.names[row]) - len(re.split("::|/", rows.names[row])[-1])]
        counts = [*rows.ops[row].tolist(), int(rows.launches[row]), int(rows.kernels[row])]
        same = tuple(Fraction(count, int(rows.calls[row])) for count in counts)
        members.setdefault((head, same) if head and row != rows.rest else row, []).append(row)
    groups = list(members.values())
    labels = [_one_name([rows.names[row] for row in group]) for group in groups]
    if rows.rest is not None:
        labels[-1] = rows.labels[-1]
    added = ("calls", "launches", "kernels", "ops", "sum_ns", "busy_ns", "span_ns")
    sums: dict[str, Any] = {
        name: np.array([getattr(rows, name)[each].sum(axis=0) for each in groups]) for name in added
    }
    return replace(
        rows,
        labels=shorten_all(labels, LABEL),
        names=[shorten(label, 3 * LABEL // 2) for label in labels],
        call_ns=rows.call_ns[[group[0] for group in groups]],
        rest=None if rows.rest is None else len(groups) - 1,
        **sums,
    )


def _one_name(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    letters = enumerate(zip(*names, strict=False))
    shared = next((at for at, each in letters if len(set(each)) > 1), min(map(len, names)))
    start = len(names[0][:shared].rstrip("0123456789"))
    return f"{names[0][:start]}{{{', '.join(name[start:] for name in names)}}}"


def by_range(merged: ColumnTable) -> bool:
    """Return whether rows are ranges. This requires at least one annotated range with GPU work, because the names of
    detected iterations mean nothing.
    """
    return bool(((merged["launches"] > 0) & (merged.texts("kind").codes != FOUND)).any())


def _one_row(**values: Any) -> ColumnTable:
    """Make a row without calls of its own, with the columns of `ChartRows` and the columns used to choose rows."""
    row = {"order": 0, "span_ns": 0, "call_ns": 0, "call_name": "", "prepares": False, **values}
    return ColumnTable(
        {name: np.array([value], object if isinstance(value, str) else None) for name, value in row.items()}
    )


def _together(rows: ColumnTable, kind: str) -> ColumnTable:
    known = {name: not (rows[name] == unknown).any() for name, unknown in (("launches", -1), ("span_ns", 0))}
    return _one_row(
        text="",
        calls=rows["calls"].sum() if kind == "ranges" else 1,
        launches=rows["launches"].sum() if known["launches"] else -1,
        span_ns=rows["span_ns"].sum() if known["span_ns"] else 0,
        **{name: rows[name].sum(axis=0) for name in ("kernels", "ops", "sum_ns", "busy_ns")},
    )


def _range_rows(breakdown: Breakdown) -> ColumnTable:
    merged = breakdown.columns("merged")
    children: dict[int, list[int]] = {}
    for row in np.flatnonzero(merged["launches"] > 0).tolist():
        children.setdefault(int(merged["parent"][row]), []).append(row)
    frontier, opened = _frontier(children, merged["sum_ns"])
    shown = np.array(frontier, np.intp)
    call = [_call_row(row, children, merged["sum_ns"], merged["instances"]) for row in frontier]
    calls = merged.take(np.array(call, np.intp))
    texts, names = merged.take(shown).texts("merged_path").tolist(), calls.texts("name").tolist()
    if breakdown.by:
        who = "pid " if breakdown.by == "process" else ""
        labels = merged.take(shown).columns[breakdown.by].tolist()
        texts = [f"{who}{label}: {text}" for label, text in zip(labels, texts, strict=True)]
    ops, sums = _by_group(breakdown)
    rows = {
        "text": np.array(texts, object),
        "order": shown,
        "calls": calls["instances"],
        "launches": merged["launches"][shown],
        "kernels": merged["kernels"][shown],
        "ops": ops[shown],
        "sum_ns": sums[shown],
        "busy_ns": merged["busy_ns"][shown],
        "span_ns": merged["span_ns"][shown],
        "call_ns": calls["busy_median_ns"],
        "call_name": np.where(call == shown, "", np.array(names, object)),
        "prepares": preparing(merged)[shown],
    }
    own = (_own_row(breakdown, chain) for chain in opened)
    return stack_tables([ColumnTable(rows), *(row for row in own if row is not None)])


def _frontier(children: dict[int, list[int]], total: Ints) -> tuple[list[int], list[list[int]]]:
    """Find the rows to show, and the replaced rows, each with the chain of only children down to its parts."""
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
    """Find the only descendant that repeats and has (nearly) all the work, or the row itself."""
    here = row
    while len(inner := children.get(here, [])) == 1 and total[inner[0]] >= DOMINANT * total[row]:
        here = inner[0]
        if instances[here] > instances[row]:
            return here
    return row


def _by_group(breakdown: Breakdown) -> tuple[Ints, Ints]:
    """Count GPU ops and add up their time inside each merged row, by group; time without a group goes to "other"."""
    families, merged = breakdown.columns("families"), breakdown.columns("merged")
    shape = (len(merged), len(breakdown.groups.labels))
    where = families["row"], families["group"]
    ops, total = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    np.add.at(ops, where, families["ops"])
    np.add.at(total, where, families["sum_ns"])
    total[:, breakdown.groups.place(OTHER)] += merged["sum_ns"] - total.sum(axis=1)
    return ops, total


def _own_row(breakdown: Breakdown, chain: list[int]) -> ColumnTable | None:
    """Make a row for the work that the ranges of a chain launch themselves, or return None if there is none."""
    merged, rows = breakdown.columns("merged"), breakdown.columns("merged_kernels")
    kernels = rows.take(np.isin(rows["row"], chain))
    if not len(kernels):
        return None
    groups = breakdown.groups
    ops, total = (sums(kernels["group"], kernels[name], len(groups.labels)) for name in ("count", "sum_ns"))
    paths = merged.take(np.array(chain)).texts("merged_path").tolist()
    busy, launches = _own_busy(breakdown, set(paths))
    if breakdown.by:  # the ops of one process or GPU only: their overlap is not worked out
        busy, launches = int(total.sum()), -1
    return _one_row(
        text=f"{paths[0]} itself",
        order=chain[0],
        calls=merged["instances"][chain[0]],
        launches=launches,
        kernels=ops.sum() - ops[[groups.place(family) for family in NO_KERNELS]].sum(),
        ops=ops,
        sum_ns=total,
        busy_ns=busy,
    )


def _own_busy(breakdown: Breakdown, texts: set[str]) -> tuple[int, int]:
    """Add up busy time, per instance and GPU, and launches of the GPU ops that ranges with these merged paths own."""
    attribution = breakdown.attribution
    trace = attribution.trace
    path = np.array([text in texts for text in breakdown.merged_texts], bool)
    ranges = path[breakdown.paths.of] & breakdown.kept
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


def _kernel_rows(breakdown: Breakdown) -> ColumnTable:
    rows = breakdown.columns("whole_kernels")
    rows = rows.take(~rows.texts("family").equal("migration"))
    kinds = rows.summed(["kernel", "family", "group"], ["count", "sum_ns"])
    median = rows["median_ns"] if len(kinds) == len(rows) else np.zeros(len(kinds), np.int64)
    number, zeros = np.arange(len(kinds)), np.zeros(len(kinds), np.int64)
    ops, sums = (np.zeros((len(kinds), len(breakdown.groups.labels)), np.int64) for _ in range(2))
    ops[number, kinds["group"]], sums[number, kinds["group"]] = kinds["count"], kinds["sum_ns"]
    is_kernel = [family not in NO_KERNELS for family in kinds.texts("family").tolist()]
    names = [short_name(name, LABEL) for name in kinds.texts("kernel").tolist()]
    return ColumnTable(
        {
            "text": np.array(names, object),
            "order": number,
            "calls": zeros + 1,
            "launches": zeros - 1,
            "kernels": kinds["count"] * np.array(is_kernel, bool),
            "ops": ops,
            "sum_ns": sums,
            "busy_ns": kinds["sum_ns"],
            "span_ns": zeros,
            "call_ns": median,
            "call_name": np.full(len(kinds), "", object),
            "prepares": zeros > 0,
        }
    )
