"""Tables of GPU ops as text: all of the report, those in the longest ranges, and what families and causes add up to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.highlights import annotated, kernels_inside
from nsysprof.analyze.range_text import TABLE_WIDTH, cpu_only, row_objects
from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_count, format_ns, format_share
from nsysprof.kernels.classify import NO_KERNELS, OTHER, short_name
from nsysprof.results.table import Column, TextTable, show_columns
from nsysprof.trace.trace import START_END

_TOP_RANGES, _TOP_KERNELS = 4, 5
# The kernels that no range owns are shown when they take at least this share of the time.
_UNOWNED_SHARE = 0.1
_FAMILY_WIDTH, _LEAST_NAME, _NO_LIMIT = 24, 36, 10_000


def _known_ns(ns: int) -> str:
    return format_ns(ns) if ns >= 0 else ""


_WHOLE = (
    Column("kernel", "its name", head="GPU op"),
    Column("kind", "family, unit and cause", head="family"),
    Column("count", "how many ran"),
    Column("sum_ns", "added durations", head="sum"),
    Column("share", "of that of all"),
    Column("median_ns", "of the durations", head="median"),
    Column("min_ns", "of the durations", head="min"),
    Column("max_ns", "of the durations", head="max"),
    Column("api_median_ns", "of the calls that launched them", "launch", _known_ns),
    Column("queue_median_ns", "from the return of these to the start", "queue", _known_ns),
)
_LAUNCHES = "launch: median of the host call that launched it; queue: median of the time from its return to the start."


def kernels_text(breakdown: Breakdown, top: int, width: int | None = None) -> Iterator[list[str]]:
    """GPU ops with most time: of the longest annotated ranges, or where none has GPU work of the whole report."""
    merged = breakdown.columns("merged")
    if annotated(merged):
        yield from _of_ranges(breakdown, merged, width or _NO_LIMIT)
    else:
        yield from _of_report(breakdown, top, width or TABLE_WIDTH)


def _of_report(breakdown: Breakdown, top: int, width: int) -> Iterator[list[str]]:
    """All GPU ops with statistics of their durations, and families and causes added up, ``top`` rows each."""
    table = breakdown.columns("whole_kernels")
    table = table.take(~table.texts("family").equal("migration"))
    merged = breakdown.columns("merged")
    title = "GPU ops that no range owns" if len(merged) and cpu_only(merged) else "GPU ops"
    labels = table.columns[breakdown.by].tolist() if breakdown.by else [""] * len(table)
    parts = {label: table.take(np.array([each == label for each in labels], bool)) for label in set(labels)}
    sums = {label: int(rows["sum_ns"].sum()) for label, rows in parts.items()}
    for label in sorted(parts, key=lambda each: (-sums[each], str(each)))[:_TOP_RANGES]:
        rows, total = parts[label], sums[label]
        part = _part(breakdown, label) if breakdown.by else ""
        known_calls = bool((rows["api_median_ns"] >= 0).any())
        cells = [_cells(row, total, 100) for row in rows.take(slice(top)).records()]
        columns, note = (_WHOLE, _LAUNCHES) if known_calls else (_WHOLE[:-2], "")
        text = show_columns(columns, cells, note=note, spare=("min", "max", "queue", "launch"))
        more = [f"{len(rows) - top:,} more: --top {len(rows)}, or see kernels.csv"] if len(rows) > top else []
        head = f"{title}{part}: {format_ns(total)} under {plural(len(rows), 'name')}"
        yield [head, *text.lines(width=width, least=_LEAST_NAME), *more]
        kinds = rows.summed(["family", "math_unit", "cause"], ["count", "sum_ns"])
        kinds = kinds.take(np.argsort(-kinds["sum_ns"], kind="stable"))
        known = [family not in (*NO_KERNELS, OTHER) for family in kinds.texts("family").tolist()]
        if any(known) and len(kinds) < len(rows):
            cells = [_cells(row, total) for row in kinds.take(slice(top)).records()]
            yield show_columns(_WHOLE[1:5], cells).lines(width=width)


def _cells(row: dict[str, Any], total: int, width: int = 0) -> dict[str, Any]:
    """A row of `_WHOLE`, without a ``width`` one of kinds."""
    unit = "" if row["math_unit"] == "unknown" else f", {row['math_unit']}"
    cause = "" if row["cause"] == row["family"] else f": {row['cause']}"
    unit = unit if not cause or not width else ""  # where there is room for one, the cause
    name = {"kernel": one_line(short_name(row["kernel"], width), width)} if width else {}
    share = row["sum_ns"] / total if total else None
    return {**row, **name, "kind": one_line(f"{row['family']}{unit}{cause}", _FAMILY_WIDTH), "share": share}


def _of_ranges(breakdown: Breakdown, merged: ColumnTable, width: int) -> Iterator[list[str]]:
    """List the longest kernels of the longest outermost ranges, and of what no range owns when that is much."""
    # a start/end range is only a view of work that push/pop ranges own: what it owns itself is all there is to list
    owning = (merged.texts("kind").codes != START_END) | (merged["exclusive_sum_ns"] > 0)
    roots = np.flatnonzero((merged["parent"] < 0) & (merged["sum_ns"] > 0) & owning)
    roots = roots[np.argsort(-merged["busy_ns"][roots], kind="stable")][:_TOP_RANGES]
    for number, row in zip(roots.tolist(), row_objects(merged.take(roots)), strict=True):
        label = one_line(row.merged_path, 80) or "(no name)"
        part = _part(breakdown, getattr(row, breakdown.by)) if breakdown.by else ""
        title = f"GPU ops in {label}{part}" if row.kind != "start_end" else f"GPU ops that {label}{part} owns"
        yield _top_kernels(title, kernels_inside(breakdown, number), width)
    parts = [(part.label, kernels_inside(breakdown, -1, part.label)) for part, _ in breakdown.parts]
    parts = [(name, rows.take(~rows.texts("family").equal("migration"))) for name, rows in parts]
    sums = [int(rows["sum_ns"].sum()) for _, rows in parts]
    if sum(sums) >= max(_UNOWNED_SHARE * breakdown.work_ns, 1):
        for at in sorted(np.flatnonzero(sums).tolist(), key=lambda at: -sums[at])[:_TOP_RANGES]:
            name, rows = parts[at]
            part = _part(breakdown, name) if breakdown.by else ""
            yield _top_kernels(f"GPU ops that no range owns{part}", rows, width)


def _part(breakdown: Breakdown, label: object) -> str:
    """Name a part in a title: ``(process 42)``; threads and streams say themselves what they are."""
    what = "" if breakdown.by in ("thread", "stream") else f"{breakdown.by} "
    return f" ({what}{one_line(str(label), 60)})"


def _top_kernels(title: str, kernels: ColumnTable, width: int) -> list[str]:
    total = int(kernels["sum_ns"].sum())
    rows = [
        [
            one_line(short_name(row.kernel, 70), 70),
            row.family if row.math_unit == "unknown" else f"{row.family}, {row.math_unit}",
            "" if row.cause == row.family else one_line(row.cause, 30),
            format_count(row.count),
            format_ns(row.sum_ns),
            format_share(row.sum_ns / total) if total else "",
        ]
        for row in row_objects(kernels.take(slice(_TOP_KERNELS)))
    ]
    head = ["GPU op", "family", "cause", "count", "sum", "share"]
    table = TextTable(head, rows, "lllrrr", spare=("cause", "count"))
    return [
        f"{title}: {format_ns(total)} under {plural(len(kernels), 'name')}",
        *table.lines(width=width, least=_LEAST_NAME),
    ]
