"""The files of an analysis for machines: CSV tables and one JSON document."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof import __version__
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.findings import listed
from nsysprof.core.columns import ColumnTable
from nsysprof.diagnosis.text import records as diagnosis_records
from nsysprof.formats.answers import ANALYSIS_SCHEMA
from nsysprof.results.files import ROWS_AT_ONCE, write_csv, write_document
from nsysprof.summaries.every import SUMMARIES
from nsysprof.summaries.unified import UnifiedMemory
from nsysprof.trace.report import describe_report

_OF_SUMMARIES = {table.file: table for summary in SUMMARIES for table in summary.tables}
# Above this many instances `instances.csv` is only written when asked for.
MAX_INSTANCES = 100_000
MAX_ROWS = 5_000  # of ranges and of kernels in `analysis.json`: whoever wants more reads the tables
MAX_SUMMARY_ROWS = 1_000  # of each table of a summary, the most important first


def write_tables(
    breakdown: Breakdown, folder: Path, *, instances: bool = False
) -> tuple[list[Path], list[str]]:
    """Write ``ranges.csv``, ``instances.csv``, ``kernels.csv`` and ``analysis.json`` into an existing folder.

    Each is there whole or not at all. Returns the paths, and notes on what was left out: ``instances.csv`` where it
    would have more than `MAX_INSTANCES` rows and ``instances`` did not ask for it, and rows of ``analysis.json``.
    """
    written = [folder / "ranges.csv", folder / "kernels.csv", folder / "analysis.json"]
    left_out = write_json(breakdown, written[2])
    write_csv(breakdown.columns("ranges"), written[0])
    write_csv(breakdown.columns("kernels"), written[1])
    for answer in breakdown.summaries.values():
        for name, rows in answer.files.items():
            write_csv(_OF_SUMMARIES[name].of(rows), folder / name)
            written.append(folder / name)
    notes = []
    if left_out:
        files = " and ".join(each["file"] for each in left_out.values())
        notes.append(f"{written[2].name} holds the {MAX_ROWS:,} rows with the most time; all are in {files}")
    count = breakdown.instance_count
    if instances or count <= MAX_INSTANCES:
        written.insert(1, folder / "instances.csv")
        write_csv(breakdown.instance_columns(ROWS_AT_ONCE), written[1])
    else:
        notes.append(f"instances.csv is left out: it would have {count:,} rows; --instances writes it")
    return written, notes


def write_json(breakdown: Breakdown, path: Path) -> dict[str, dict[str, Any]]:
    """Write ``analysis.json``: report, totals, ledger, warnings, ranges and kernels; times are integer ns.

    Of ranges and kernels it holds the `MAX_ROWS` with the largest ``sum_ns``, in the order of their tables. What that
    leaves out stands under ``left_out``, a key for each such table with ``rows`` and ``file``, and is returned.
    """
    head: dict[str, Any] = {
        "schema": ANALYSIS_SCHEMA,
        "report": describe_report(breakdown.attribution.trace.report),
        "nsysprof": __version__,
        "options": {
            "threads": breakdown.attribution.threads,
            "graphs": breakdown.attribution.graphs,
            "ranges": breakdown.attribution.sources,
            "by": breakdown.by,
            **breakdown.options,
        },
        "totals": breakdown.totals,
        "unified_memory": _unified_memory(breakdown.unified),
        "cuda_graphs": asdict(breakdown.graph_counts),
        "chosen_steps": breakdown.diagnosis.chosen.level.record(breakdown.diagnosis.left_out),
        "findings": listed(breakdown),
        "diagnosis": diagnosis_records(
            breakdown.diagnosis, breakdown.attribution.trace.report.path, "analyze"
        ),
        "summaries": {name: answer.json(MAX_SUMMARY_ROWS) for name, answer in breakdown.summaries.items()},
        "ledger": list(breakdown.columns("ledger").records()),
        "warnings": list(breakdown.warnings),
        "missing": [asdict(table) for table in breakdown.attribution.trace.unread],
    }
    tables, left_out = {name: breakdown.columns(name) for name in ("ranges", "kernels")}, {}
    for name, table in tables.items():
        if len(table) > MAX_ROWS:
            left_out[name] = {"rows": len(table) - MAX_ROWS, "file": f"{name}.csv"}
            tables[name] = table.take(np.sort(np.argsort(-table["sum_ns"], kind="stable")[:MAX_ROWS]))
    write_document({**head, "left_out": left_out} if left_out else head, path, tables)
    return left_out


def _unified_memory(unified: UnifiedMemory | None) -> dict[str, Any] | None:
    """Turn a `UnifiedMemory` into JSON; None where nothing migrated."""
    if unified is None or not unified.migrations:
        return None
    of_kernels = ("kernel", "count", "sum_ns", "covered_ns", "fault_covered_ns")  # summaries has all of it
    kernels = ColumnTable({name: unified.kernels.columns[name] for name in of_kernels})
    return {"busy_ns": unified.busy_ns, "migrations": unified.migrations, "kernels": [*kernels.records()]}
