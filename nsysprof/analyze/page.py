"""The page of an analysis: summary, timeline, charts, ledger, range tree, ops and environment."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.charts import analysis_charts
from nsysprof.analyze.findings import MOST, steps_table
from nsysprof.analyze.highlights import idle_shares, launch_bound, top_rows, tree_order
from nsysprof.analyze.page_rows import report_timeline
from nsysprof.analyze.range_text import cpu_cells, cpu_notes, cpu_only, outermost_cpu, range_cells, range_notes
from nsysprof.analyze.subject import subtitle
from nsysprof.analyze.text import ledger_table, messages, work_line
from nsysprof.core.arrays import Index, Mask
from nsysprof.core.text import one_line, visible
from nsysprof.core.units import format_count, format_ns, format_share
from nsysprof.diagnosis.text import gain_text, next_command, not_tried, sentence
from nsysprof.kernels.classify import short_name
from nsysprof.page.environment import report_facts
from nsysprof.page.template import figures, fill
from nsysprof.summaries.every import SUMMARIES
from nsysprof.trace.trace import recorded_as

MAX_TREE_ROWS, MAX_KERNEL_ROWS, MAX_WAITS, MAX_SUMMARY_ROWS = 1_500, 1_000, 200, 200
_NAME, _PATH = 90, 400


def analysis_page(breakdown: Breakdown, pictures: Sequence[bytes] = ()) -> str:
    """Make the page; ``pictures`` are the PNG files of `analysis_charts`, empty if no charts are wanted.

    Numbers are as in ``analysis.json``: the attribute ``data-v`` of a cell has the exact value.
    """
    report = breakdown.attribution.trace.report
    packed, finding, notes = report_timeline(breakdown)
    return fill(
        "analysis.html",
        title=visible(report.path.name),
        subtitle=subtitle(breakdown),
        work=work_line(breakdown),
        graphs=[*breakdown.graph_counts.sentences(breakdown.attribution.graphs)],
        findings=_findings(breakdown),
        steps=steps.html() if (steps := steps_table(breakdown.diagnosis)) else None,
        totals=_totals(breakdown),
        warnings=[visible(line) for line in (*not_tried(breakdown.diagnosis), *messages(breakdown))],
        charts=figures(analysis_charts(breakdown=breakdown), pictures),
        timeline={"data": packed, "caption": finding, "notes": notes} if packed else None,
        ledger=ledger_table(breakdown, empty=True).html() if breakdown.totals["ops"] else None,
        families=_families(breakdown),
        tree=_tree(breakdown),
        kernels=_kernels(breakdown),
        summaries=[
            {
                "name": summary.name,
                "title": summary.title,
                "finding": answer.finding,
                "table": answer.show(MAX_SUMMARY_ROWS).html(),
            }
            for summary in SUMMARIES
            if (answer := breakdown.summaries.get(summary.name)) and answer.finding
        ],
        environment=report_facts(breakdown.attribution.trace.report, breakdown.attribution.threads),
    )


def _findings(breakdown: Breakdown) -> list[dict[str, str]]:
    """The top bottlenecks: a sentence each, the fix, its gain, and the command that tries it."""
    file, level = breakdown.attribution.trace.report.path, breakdown.diagnosis.chosen.level
    return [
        {
            "gain": gain_text(each),
            "text": visible(sentence(each, breakdown.diagnosis)),
            "hint": each.remedy,
            "command": next_command(each, file, "analyze", level),
        }
        for each in breakdown.findings[:MOST]
    ]


def _totals(breakdown: Breakdown) -> list[dict[str, Any]]:
    """Make the tiles at the top of the page: for each, the key in ``totals``, the words and the number."""
    totals = breakdown.totals
    count = {name: format_count(totals[name]) for name in ("kernels", "launches", "memops", "ranges")}
    merged = format_count(len(breakdown.columns("merged")))
    busy = f"GPU ops run for {format_ns(totals['busy_ns'])}"
    moved = totals["migrations_ns"]
    added_up = f"{format_ns(moved)} of it migrations" if moved else "durations added up"
    shown = [
        ("busy_ns", "busy", format_share(breakdown.busy_share), busy),
        ("span_ns", "span", format_ns(totals["span_ns"]), "first GPU op to last"),
        ("sum_ns", "sum of GPU ops", format_ns(totals["sum_ns"]), added_up),
        ("kernels", "kernels", count["kernels"], f"{count['launches']} launches"),
        ("memops", "memory ops", count["memops"], "copies and memsets"),
        (
            "ranges",
            f"{recorded_as(breakdown.attribution.trace, breakdown.attribution.trace.ranges.kind)} ranges",
            count["ranges"],
            f"{merged} merged",
        ),
    ]
    return [
        {"key": key, "label": label, "text": text, "value": totals[key], "more": more}
        for key, label, text, more in shown
        if totals["ops"] or totals[key]
    ]


def _families(breakdown: Breakdown) -> list[dict[str, Any]]:
    """Add up GPU ops and time by family, longest first, over the ranges in the result."""
    families = breakdown.columns("merged_kernels").summed(["family"], ["count", "sum_ns"])
    total, longest = int(families["sum_ns"].sum()), max(families["sum_ns"].tolist(), default=0)
    return [
        {
            "family": row["family"],
            "ops": row["count"],
            "ops_text": format_count(row["count"]),
            "sum_ns": row["sum_ns"],
            "sum_text": format_ns(row["sum_ns"]),
            "of_longest": row["sum_ns"] / longest if longest else 0.0,
            "share_text": format_share(row["sum_ns"] / total) if total else "-",
        }
        for row in families.take(np.argsort(-families["sum_ns"], kind="stable")).records()
    ]


def _tree(breakdown: Breakdown) -> dict[str, Any]:
    """Make the rows of ranges, children behind their parents, with the text of each cell and the number behind it."""
    merged = breakdown.columns("merged")
    if not len(merged):
        return {"head": [], "rows": [], "notes": [], "by": breakdown.by}
    parent, on_host, total = merged["parent"], cpu_only(merged), outermost_cpu(merged)
    if len(merged) > MAX_TREE_ROWS or on_host:
        numbers = top_rows(breakdown, MAX_TREE_ROWS, "cpu_ns" if on_host else "busy_ns")
    else:
        numbers = tree_order(parent, np.arange(len(merged)))
    shown = merged.take(numbers)
    waiting = np.zeros(len(numbers), bool) if on_host else _launch_bound(breakdown, numbers)
    ranges = breakdown.attribution.trace.ranges
    instances = [breakdown.instances_of(row)[1] for row in numbers.tolist()]
    extents = [(int(ranges.start[each].min()), int(ranges.end[each].max())) for each in instances]
    level: dict[int, int] = {}
    rows = []
    for number, row, waits, extent in zip(numbers.tolist(), shown.records(), waiting.tolist(), extents, strict=True):
        up = int(parent[number])
        while up >= 0 and up not in level:
            up = int(parent[up])
        level[number] = level[up] + 1 if up >= 0 else 0
        each = SimpleNamespace(**row)
        cells = cpu_cells(each, total) if on_host else range_cells(each, breakdown.work_ns, waits)
        rows.append(
            {
                "id": number,
                "parent": up,
                "level": level[number],
                "start": extent[0],
                "end": extent[1],
                "name": one_line(row["name"], _NAME) or "(no name)",
                "path": one_line(row["merged_path"], _PATH),
                "notes": _row_notes(row),
                "part": str(row[breakdown.by]) if breakdown.by else "",
                "cells": [{"text": text, "value": value} for text, value in cells.values()],
            }
        )
    notes = [*(cpu_notes(shown) if on_host else range_notes(shown, waiting))]
    if len(shown) > MAX_WAITS and not on_host:
        notes.append(f"The launch-bound check covers only the {MAX_WAITS} ranges with the most busy time.")
    if len(merged) > len(shown):
        notes.append(f"{len(merged) - len(shown):,} more ranges: see table ranges")
    around = {row["parent"] for row in rows}
    for row in rows:
        row["inner"] = row["id"] in around
    return {"head": [*cells], "rows": rows, "notes": [" ".join(notes)], "by": breakdown.by}


def _launch_bound(breakdown: Breakdown, rows: Index) -> Mask:
    """Mark launch-bound rows among the `MAX_WAITS` rows with the most busy time, because each takes a pass."""
    busy = breakdown.columns("merged")["busy_ns"][rows]
    judged = np.sort(np.argsort(-busy, kind="stable")[:MAX_WAITS])
    waits = np.zeros(len(rows), bool)
    idle = idle_shares(breakdown, rows[judged].tolist())
    waits[judged] = launch_bound(breakdown, rows[judged], idle)
    return waits


def _row_notes(row: dict[str, Any]) -> str:
    notes = ["start/end"] if row["kind"] == "start_end" else []
    if row["unclosed"]:
        notes.append(f"{row['unclosed']:,} never closed")
    return ", ".join(notes)


def _kernels(breakdown: Breakdown) -> dict[str, Any]:
    """Make the rows of GPU ops by owning range, longest first."""
    kernels = breakdown.columns("merged_kernels")
    total = int(kernels["sum_ns"].sum())
    shown = kernels.take(np.argsort(-kernels["sum_ns"], kind="stable")[:MAX_KERNEL_ROWS])
    paths = breakdown.columns("merged").texts("merged_path").tolist()
    names: dict[str, int] = {}
    rows = [
        {
            "name": names.setdefault(row["kernel"], len(names)),
            "short": one_line(short_name(row["kernel"], _NAME), _NAME) or "(no name)",
            "family": row["family"],
            "unit": "" if row["math_unit"] == "unknown" else row["math_unit"],
            "cause": "" if row["cause"] == row["family"] else one_line(row["cause"], _NAME),
            "row": row["row"],
            "path": one_line(paths[row["row"]], _PATH) if row["row"] >= 0 else "",
            "count": row["count"],
            "times": [
                {"value": row[key], "text": format_ns(row[key])} for key in ("sum_ns", "median_ns", "min_ns", "max_ns")
            ],
            "share": format_share(row["sum_ns"] / total) if total else "-",
        }
        for row in shown.records()
    ]
    return {
        "rows": rows,
        "names": [visible(name) for name in names],
        "left_out": len(kernels) - len(shown),
        "all": len(kernels),
    }
