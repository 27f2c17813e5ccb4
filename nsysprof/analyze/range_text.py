"""The table of ranges as text: a tree by GPU work or, if no range has any, by CPU time."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.highlights import LAUNCH_BOUND_IDLE, idle_shares, launch_bound, top_rows
from nsysprof.core.arrays import AnyInts, Index, Mask
from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import join_words, one_line
from nsysprof.core.units import format_count, format_ns, format_share
from nsysprof.results.one_screen import Rows
from nsysprof.results.table import TextTable, spread_text
from nsysprof.statistics.summary import LEAST_SAMPLES

_NAME_WIDTH, _LEAST_NAME, _MAX_INDENTS = 48, 28, 12
# Columns to leave out where there is no room, the first one first: what a step takes, and how much of it, stays.
_SPARE = ("busy each", "kernels", "CPU", "launches", "captured", "busy", "instances", "span")
# Columns of one screen, with heads that need no note; of what has GPU work, and of what has none.
_FEW = {"instances": "instances", "span each": "median span", "busy": "GPU busy", "share": "of GPU time"}
_FEW_ON_HOST = {
    "instances": "instances",
    "each": "median",
    "CPU": "CPU time",
    "share": "of CPU time",
    "itself": "itself",
}
_NONE = ("0 ns", 0.0)  # the median of many, most of them without GPU work
Cells: TypeAlias = dict[str, tuple[str, float]]  # by head: a text and the number behind it


def range_rows(
    breakdown: Breakdown, top: int, width: int, *, full: bool = False, sort: str | None = None, depth: int | None = None
) -> Rows | None:
    """Make a tree of about ``top`` ranges with the most time, plus their outer ranges; None if there are no ranges.

    Unless ``full``, ranges with a single inner range are skipped, and ranges with the same parent are sorted by time.
    """
    merged = breakdown.columns("merged")
    if not len(merged):
        return None
    on_host = cpu_only(merged)
    by, order = "cpu_ns" if on_host else "time_ns", sort if full else sort or "time"
    numbers = top_rows(breakdown, top, by, sort=order, depth=depth)
    total = len(merged)
    if not full:
        wrapping = _wrapping(merged, numbers)
        numbers, total = numbers[~wrapping][:top], total - int(wrapping.sum())
    shown = merged.take(numbers)
    waiting = np.zeros(len(numbers), bool)
    if on_host:
        whole = outermost_cpu(merged)
        cells, notes = [cpu_cells(row, whole) for row in row_objects(shown)], [*cpu_notes(shown)]
    else:
        if full:
            waiting = launch_bound(breakdown, numbers, idle_shares(breakdown, numbers.tolist()))
        pairs = zip(row_objects(shown), waiting.tolist(), strict=True)
        captured = breakdown.graphs is not None
        cells = [range_cells(row, breakdown.work_ns, waits, captured=captured) for row, waits in pairs]
        notes = [*range_notes(shown, waiting)]
    if not full:
        few = _FEW_ON_HOST if on_host else _FEW
        alone = "CPU" if on_host else "span"  # the median of one
        cells = [
            {
                head: row[name] if row[name][0] else row[alone] if row["instances"][1] == 1 else _NONE
                for name, head in few.items()
            }
            for row in cells
        ]
        notes = []
    levels = _levels(merged["parent"], numbers)
    table = _tree(breakdown, shown, levels, cells, " ".join(notes))
    hidden = [name for name in table.head if name not in table.fit(width)[0]] if full else []
    if hidden:
        table = replace(table, note=f"{table.note} Columns hidden to fit: {join_words(hidden)} (see table ranges).")
    return Rows(table, "range", total)


def _wrapping(merged: ColumnTable, numbers: Index) -> Mask:
    """Mark rows of a tree that contain only the next row."""
    inner = np.append(numbers[1:], numbers[-1:])
    work, cpu = merged["sum_ns"], merged["exclusive_cpu_ns"]
    same: Mask = (work[inner] == work[numbers]) & ((work[numbers] > 0) | (cpu[numbers] == 0))
    kind = merged.texts("kind").codes
    same &= (merged["parent"][inner] == numbers) & (kind[inner] == kind[numbers])
    return same


def _levels(parent: AnyInts, numbers: Index) -> list[tuple[int, int]]:
    """For each row of a tree, the position of the row around it (-1 for none) and the number of rows around it."""
    place: dict[int, int] = {}
    levels: list[tuple[int, int]] = []
    for at, row in enumerate(numbers.tolist()):
        up = int(parent[row])
        while up >= 0 and up not in place:
            up = int(parent[up])
        outer = place.get(up, -1)
        levels.append((outer, levels[outer][1] + 1 if outer >= 0 else 0))
        place[row] = at
    return levels


def _tree(
    breakdown: Breakdown, shown: ColumnTable, levels: list[tuple[int, int]], cells: list[Cells], note: str
) -> TextTable:
    """A row per range, indented below the shown ranges around it, with its path from the innermost of these."""
    by, paths, around = breakdown.by, shown.texts("merged_path").tolist(), shown["depth"].tolist()
    rows: list[list[str]] = []
    for row, (outer, level), line in zip(row_objects(shown), levels, cells, strict=True):
        before = f"{paths[outer]}/" if outer >= 0 else ""
        nested = row.depth > (around[outer] + 1 if outer >= 0 else 0) and row.merged_path.startswith(before)
        inner = row.merged_path.removeprefix(before) if nested else row.name
        part = [one_line(str(getattr(row, by)), 30)] if by else []
        rows.append([*part, _label(row, inner, level), *(text for text, _ in line.values())])
    head = [*([by] if by else []), "range", *cells[0]]
    align = ("ll" if by else "l").ljust(len(head), "r")
    return TextTable(head, rows, align, note, spare=_SPARE, least=_LEAST_NAME)


def cpu_only(merged: ColumnTable) -> bool:
    """Return whether no range of ``merged`` has GPU work."""
    return not (merged["launches"] | merged["captured_nodes"]).any()


def outermost_cpu(merged: ColumnTable) -> int:
    """Return the summed CPU time of the outermost ranges: the base of shares."""
    return int(merged["cpu_ns"][merged["parent"] < 0].sum())


def cpu_cells(row: Any, total: int) -> Cells:
    """Make the cells of a row of ``merged`` by CPU time; ``total`` is the sum of all outermost ranges."""
    many = row.instances > 1
    times = {"median": row.cpu_median_ns, "min": row.cpu_min_ns, "max": row.cpu_max_ns}
    return {
        "instances": (format_count(row.instances), row.instances),
        "CPU": (format_ns(row.cpu_ns), row.cpu_ns),
        "share": (format_share(row.cpu_ns / total) if total else "", row.cpu_ns),
        "itself": (format_ns(row.exclusive_cpu_ns), row.exclusive_cpu_ns),
        "each": (_each(row, "cpu") if many else "", row.cpu_median_ns),
        **{name: (format_ns(ns) if many else "", ns) for name, ns in times.items() if name != "median"},
    }


def cpu_notes(shown: ColumnTable) -> Iterator[str]:
    """Explain the columns of `cpu_cells`, for these rows of ``merged``."""
    yield (
        "No range has GPU work. CPU: host time including inner ranges, summed over instances. Share: "
        "% of the outermost ranges' CPU time. Itself: CPU time without inner ranges. Each: median ± half "
        "the IQR over instances."
    )
    yield from _ends_note(shown, "cpu")


def _ends_note(shown: ColumnTable, *names: str) -> Iterator[str]:
    """Explain `spread_text` if it shows minimum and maximum for times with these names."""
    some = shown["instances"] > 1
    wide = [(shown[f"{name}_iqr_ns"] > 2 * shown[f"{name}_median_ns"]) & some for name in names]
    if np.any(wide):
        yield "(a–b): minimum and maximum, shown if instances are few or if half the IQR exceeds the median."
    elif (some & (shown["instances"] < LEAST_SAMPLES)).any():
        yield f"(a–b): minimum and maximum, shown if there are fewer than {LEAST_SAMPLES} instances."


def range_notes(shown: ColumnTable, waiting: Mask) -> Iterator[str]:
    """Explain the columns of `range_cells`, for these rows of ``merged``."""
    yield (
        "All columns include inner ranges. CPU (host time), span (first to last GPU op) and busy (GPU ops "
        "running) are sums over instances. Share: % of total GPU op time. Each: median ± half the IQR over "
        "instances."
    )
    yield from _ends_note(shown, "span", "busy")
    if shown["captured_nodes"].any():
        yield "captured: kernels that the range captured into a CUDA graph, even if another range launches this graph."
    if waiting.any():
        idle = f"the GPU is idle for more than {format_share(LAUNCH_BOUND_IDLE)} of the span"
        yield f"* launch-bound: {idle}, and no other range uses the GPU meanwhile."
    if (shown["busy_ns"] > shown["span_ns"]).any():
        yield "busy is summed over GPUs, so busy/span can exceed 100 % for a range that uses several GPUs at once."


def range_cells(row: Any, total: int, waits: bool, *, captured: bool = False) -> Cells:
    """Make the cells of a row of ``merged``: for each column head, a text and its number.

    ``total`` is the sum of all ops. ``waits`` adds the launch-bound mark. ``captured`` adds the number of replayed
    kernels that the range captured into CUDA graphs.
    """
    many = row.instances > 1
    span, busy = (row.span_median_ns, row.busy_median_ns) if many else (row.span_ns, row.busy_ns)
    ratio = busy / span if span > 0 else 0.0
    return {
        "instances": (format_count(row.instances), row.instances),
        "launches": (format_count(row.launches), row.launches),
        "kernels": (format_count(row.kernels), row.kernels),
        **({"captured": (format_count(row.captured_kernels), row.captured_kernels)} if captured else {}),
        "CPU": (format_ns(row.cpu_ns), row.cpu_ns),
        "span": (format_ns(row.span_ns), row.span_ns),
        "busy": (format_ns(row.busy_ns), row.busy_ns),
        "share": (format_share(row.sum_ns / total) if total else "", row.sum_ns),
        "span each": (_each(row, "span") if many else "", row.span_median_ns),
        "busy each": (_each(row, "busy") if many else "", row.busy_median_ns),
        "busy/span": (format_share(ratio) + " *" * waits if span > 0 else "", ratio),
    }


def _each(row: Any, name: str) -> str:
    """Format a median with its spread over the instances; empty for ranges without GPU ops."""
    median, iqr, low, high = (getattr(row, f"{name}_{what}_ns") for what in ("median", "iqr", "min", "max"))
    return spread_text(median, iqr, low, high, row.instances) if median > 0 else ""


def _label(row: Any, name: str, level: int) -> str:
    """Format the name, indented by its level, with any reason that the row's numbers differ from its neighbours'."""
    lead = "  " * min(level, _MAX_INDENTS)
    notes = " (start/end)" if row.kind == "start_end" else ""
    if row.unclosed:
        notes += " (never closed)" if row.instances == 1 else f" ({row.unclosed:,} never closed)"
    name = one_line(name, max(_NAME_WIDTH - len(lead) - len(notes), 12)) or "(no name)"
    return f"{lead}{name}{notes}"


def row_objects(table: ColumnTable) -> Iterator[Any]:
    """Turn rows into objects with an attribute per column, for the few rows that are printed."""
    return (SimpleNamespace(**row) for row in table.records())
