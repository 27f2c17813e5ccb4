"""The table of ranges as text: a tree by GPU work or, where no range has any, by CPU time."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.highlights import LAUNCH_BOUND_IDLE, idle_shares, launch_bound, top_rows
from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import join_words, one_line, plural
from nsysprof.core.units import format_count, format_ns, format_share
from nsysprof.results.table import TextTable, spread_text, text_table, wrap
from nsysprof.statistics.summary import LEAST_SAMPLES

TABLE_WIDTH = 125  # where no width is given
_NAME_WIDTH, _LEAST_NAME = 48, 28
# Columns to leave out where there is no room, the first one first: what a step takes, and how much of it, stays.
_SPARE = ("busy each", "kernels", "CPU", "launches", "captured", "busy", "instances", "span")
_MAX_INDENTS, _MOST_THEMSELVES = 12, 10
Cells: TypeAlias = dict[str, tuple[str, float]]  # by head: a text and the number behind it


def ranges_text(
    breakdown: Breakdown,
    top: int,
    width: int | None = None,
    sort: str | None = None,
    depth: int | None = None,
) -> Iterator[str]:
    """The ranges with most time and those around them as a tree, ``top`` of them; nothing where there are none.

    Of a ``width`` columns are left out, the less important first; ``sort`` and ``depth`` as in `top_rows`.
    """
    merged = breakdown.columns("merged")
    if not len(merged):
        return
    on_host = cpu_only(merged)
    numbers = top_rows(breakdown, top, "cpu_ns" if on_host else "time_ns", sort=sort, depth=depth)
    shown = merged.take(numbers)
    if on_host:
        total = outermost_cpu(merged)
        cells = [cpu_cells(row, total) for row in row_objects(shown)]
        yield from _tree(breakdown, shown, cells, width)
        yield from (wrap(note, "", "", width) for note in cpu_notes(shown))
    else:
        waiting = launch_bound(breakdown, numbers, idle_shares(breakdown, numbers.tolist()))
        pairs = zip(row_objects(shown), waiting.tolist(), strict=True)
        captured = breakdown.graphs is not None
        cells = [range_cells(row, breakdown.work_ns, waits, captured=captured) for row, waits in pairs]
        yield from _tree(breakdown, shown, cells, width)
        yield from (wrap(note, "", "", width) for note in range_notes(shown, waiting))
    if (shown["depth"] > _MAX_INDENTS).any():
        yield "[n]: n ranges are around this one."
    if len(merged) > len(shown):
        more = f"--top {len(merged)}, or " if len(top_rows(breakdown, len(merged))) > len(shown) else ""
        yield f"{plural(len(merged) - len(shown), 'more range')}: {more}see ranges.csv"
    if on_host:
        yield from _longest_themselves(breakdown, top, width)


def _tree(breakdown: Breakdown, shown: ColumnTable, cells: list[Cells], width: int | None) -> Iterator[str]:
    """A row per range, those inside indented, and which columns there is no room for."""
    by = breakdown.by
    around: list[int] = []  # depths of the ranges around the row, as far as they are shown
    head = [*([by] if by else []), "range", *cells[0]]
    parts = [[one_line(str(getattr(row, by)), 30)] if by else [] for row in row_objects(shown)]
    texts = [[text for text, _ in row.values()] for row in cells]
    rows: list[list[str]] = []
    for row, part, line in zip(row_objects(shown), parts, texts, strict=True):
        while around and around[-1] >= row.depth:
            around.pop()
        left_out = row.depth - around[-1] - 1 if around else 0
        if left_out:
            indent = "  " * min(row.depth - left_out, _MAX_INDENTS)
            gap = f"{indent}… {left_out:,} more, each inside the one above"
            rows.append([*([""] if by else []), gap, *[""] * len(line)])
        around.append(row.depth)
        rows.append([*part, _label(row), *line])
    table = TextTable(head, rows, ("ll" if by else "l").ljust(len(head), "r"), spare=_SPARE)
    if width is None:
        yield text_table(head, rows, table.align)
        return
    fitting = table.fit(width, _LEAST_NAME)
    yield text_table(*fitting)
    left_out = [name for name in head if name not in fitting[0]]
    if left_out:
        yield f"Not shown, for lack of room: {join_words(left_out)}; ranges.csv has them."


# ---- by CPU time, where no range has GPU work


def cpu_only(merged: ColumnTable) -> bool:
    """Whether no range of ``merged`` has GPU work."""
    return not (merged["launches"] | merged["captured_nodes"]).any()


def outermost_cpu(merged: ColumnTable) -> int:
    """The CPU time of the outermost ranges, added up: what shares are of."""
    return int(merged["cpu_ns"][merged["parent"] < 0].sum())


def cpu_cells(row: Any, total: int) -> Cells:
    """Make the cells of a row of ``merged`` by CPU time; ``total`` is that of all outermost ranges."""
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
        "No range has GPU work. CPU: time on the host with inner ranges, added over instances; share: of that of the"
        " outermost ranges; itself: without inner ranges; each: median over instances, with half the IQR."
    )
    yield from _ends_note(shown, "cpu")


def _ends_note(shown: ColumnTable, *names: str) -> Iterator[str]:
    """Explain `spread_text` where it shows ends, of times with these names."""
    some = shown["instances"] > 1
    wide = [(shown[f"{name}_iqr_ns"] > 2 * shown[f"{name}_median_ns"]) & some for name in names]
    if np.any(wide):
        yield "(a–b): the least and the most, of few instances, or where half the IQR exceeds the median."
    elif (some & (shown["instances"] < LEAST_SAMPLES)).any():
        yield f"(a–b): of fewer than {LEAST_SAMPLES} instances the least and the most."


def _longest_themselves(breakdown: Breakdown, most: int, width: int | None) -> Iterator[str]:
    """List the ranges with most CPU time without inner ranges, where there are inner ranges."""
    merged = breakdown.columns("merged")
    total, own = outermost_cpu(merged), merged["exclusive_cpu_ns"]
    order = np.argsort(-own, kind="stable")[: min(most, _MOST_THEMSELVES)]
    if not merged["depth"].any() or not total:
        return
    rows = [
        [
            one_line(row.merged_path, 2 * _NAME_WIDTH),
            format_count(row.instances),
            format_ns(row.exclusive_cpu_ns),
            format_share(row.exclusive_cpu_ns / total),
        ]
        for row in row_objects(merged.take(order[own[order] > 0]))
    ]
    yield ""
    table = TextTable(["CPU time itself, without inner ranges", "instances", "itself", "share"], rows, "lrrr")
    yield from table.lines(width=width or TABLE_WIDTH)


# ---- by GPU work


def range_notes(shown: ColumnTable, waiting: NDArray[np.bool_]) -> Iterator[str]:
    """Explain the columns of `range_cells`, for these rows of ``merged``."""
    yield (
        "All columns include inner ranges. CPU, span and busy add up the instances: time on the host, from the first"
        " GPU op to the last, and with GPU ops running; share: of the sum of all GPU ops. each: median over instances,"
        " with half the IQR."
    )
    yield from _ends_note(shown, "span", "busy")
    if shown["captured_nodes"].any():
        yield "captured: kernels that CUDA graphs replay of what was captured inside, whoever launches the graph."
    if waiting.any():
        idle = f"for more than {format_share(LAUNCH_BOUND_IDLE)} of the span the GPU runs nothing"
        yield f"* launch-bound: {idle}, not even GPU ops of other ranges."
    if (shown["busy_ns"] > shown["span_ns"]).any():
        yield "busy adds up GPUs, so busy/span exceeds 100 % where one range keeps several of them at work."


def range_cells(row: Any, total: int, waits: bool, *, captured: bool = False) -> Cells:
    """Make the cells of a row of ``merged`` by their heads: each its text and the number behind it.

    ``total`` is the sum of all ops, ``waits`` adds the mark of what is launch-bound, ``captured`` the kernels that CUDA
    graphs replay of what was captured inside.
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
    """Write a median with its spread over the instances; nothing for ranges without GPU ops."""
    median, iqr, low, high = (getattr(row, f"{name}_{what}_ns") for what in ("median", "iqr", "min", "max"))
    return spread_text(median, iqr, low, high, row.instances) if median > 0 else ""


def _label(row: Any) -> str:
    """Write the name, indented by its depth, with what makes the row's numbers differ from those of its neighbours."""
    lead = "  " * min(row.depth, _MAX_INDENTS) + (f"[{row.depth}] " if row.depth > _MAX_INDENTS else "")
    notes = " (start/end)" if row.kind == "start_end" else ""
    if row.unclosed:
        notes += " (never closed)" if row.instances == 1 else f" ({row.unclosed:,} never closed)"
    name = one_line(row.name, max(_NAME_WIDTH - len(lead) - len(notes), 12)) or "(no name)"
    return f"{lead}{name}{notes}"


def row_objects(table: ColumnTable) -> Iterator[Any]:
    """Turn rows into objects with an attribute per column; only for the few that are printed."""
    return (SimpleNamespace(**row) for row in table.records())
