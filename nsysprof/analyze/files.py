"""The machine-readable files of an analysis: CSV tables and one JSON document."""

import gzip
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.findings import listed
from nsysprof.core.columns import ColumnTable
from nsysprof.diagnosis.text import diagnosis_members
from nsysprof.formats.answers import ANALYSIS_SCHEMA
from nsysprof.results.files import ROWS_AT_ONCE, document_head, write_csv, write_document, write_tables_apart
from nsysprof.summaries.every import SUMMARIES
from nsysprof.summaries.unified import UnifiedMemory

_OF_SUMMARIES = {table.file: table for summary in SUMMARIES for table in summary.tables}
# Above this many instances `instances.csv` is only written when asked for.
MAX_INSTANCES = 100_000
MAX_ROWS = 5_000  # of ranges and of kernels in `analysis.json`: whoever wants more reads the tables
MAX_SUMMARY_ROWS = 1_000  # of each table of a summary, the most important first
# Results take at most a third of the report: 190 kB for charts, the rest, or 50 kB if that is more, for tables.
MAX_PART, CHARTS, TABLES, MIN_ROWS = 3, 190_000, 50_000, 20
MIN_PACKED, _BEST, _FAST = 10_000, 9, 4  # gzip's level 4 takes 40 % of the time of 9; files are a sixth larger


def write_tables(
    breakdown: Breakdown, folder: Path, *, instances: bool = False, packs: bool = True
) -> tuple[list[Path], list[str]]:
    """Write ``ranges.csv``, ``instances.csv``, ``kernels.csv``, ``analysis.json`` and the tables of summaries into an
    existing folder.

    Files are written atomically. With ``packs``, large tables are compressed. Returns the paths of the files, and
    notes: which rows ``analysis.json`` omits, and whether ``instances.csv`` is omitted. Unless ``instances`` is set,
    ``instances.csv`` is omitted if it would have more than `MAX_INSTANCES` rows, or if the results would be large
    compared with the report.
    """
    document = folder / "analysis.json"
    breakdown.attribution.trace.give_back()
    tables = {folder / "ranges.csv": breakdown.columns("ranges"), folder / "kernels.csv": breakdown.columns("kernels")}
    for answer in breakdown.summaries.values():
        tables |= {folder / name: _OF_SUMMARIES[name].of(rows) for name, rows in answer.files.items()}
    written = list(tables)
    written.insert(2, document)
    # the document first: it tells whose folder this is, if the rest is interrupted
    if breakdown.attribution.trace.apart:
        left_out = write_tables_apart(tables, lambda: write_json(breakdown, document))
    else:
        left_out = write_json(breakdown, document)
        for path, table in tables.items():
            write_csv(table, path)
    count = breakdown.instance_count
    kept = instances or count <= MAX_INSTANCES
    if kept:
        written.insert(1, folder / "instances.csv")
        write_csv(breakdown.instance_columns(ROWS_AT_ONCE), written[1])
    most, packed, large = MAX_ROWS, dict[str, str](), False
    if packs:
        most, packed, large = _reduce(breakdown, document, [path for path in written if path != document])
    if large and not instances and (name := packed.pop("instances.csv", "")):
        kept = False
        (folder / name).unlink()
        del written[1]
    if packed:
        left_out = write_json(breakdown, document, most, packed)
    notes = []
    if left_out and most == MAX_ROWS:  # of fewer rows the document itself says so
        files = " and ".join(each["file"] for each in left_out.values())
        notes.append(f"analysis.json has the top {most:,} rows by GPU time; all rows are in {files}")
    if not kept:
        notes.append(f"instances.csv is left out: it would have {count:,} rows; --instances writes it")
    return [path.with_name(packed.get(path.name, path.name)) for path in written], notes


def _reduce(breakdown: Breakdown, document: Path, tables: list[Path]) -> tuple[int, dict[str, str], bool]:
    """Shorten the document, then compress tables, largest first, until the results are small beside the report.

    Returns the maximum number of rows in the document, the new names of compressed tables, and whether the results are
    still large.
    """
    path = breakdown.attribution.trace.report.path
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    free = max(sum(file.stat().st_size for file in files) // MAX_PART - CHARTS, TABLES)
    sizes = {table: table.stat().st_size for table in tables}
    most, share = MAX_ROWS, max(free // 3, free - sum(sizes.values()))
    while (size := document.stat().st_size) > share and most > MIN_ROWS:
        rows = min(most, max(len(breakdown.columns(name)) for name in ("ranges", "kernels")))
        most = max(MIN_ROWS, rows * share * 9 // (10 * size))
        write_json(breakdown, document, most)
    packed: dict[str, str] = {}
    large = [table for table in tables if sizes[table] >= MIN_PACKED]
    for table in sorted(large, key=lambda table: (table.name == "ranges.csv", -sizes[table])):  # the most read, last
        if sum(sizes.values()) + size <= free:
            break
        to = table.with_name(f"{table.name}.gz")
        level = _BEST if sizes[table] < 400 * MIN_PACKED else _FAST
        with table.open("rb") as plain, gzip.GzipFile(to, "wb", level, mtime=0) as file:
            shutil.copyfileobj(plain, file)
        table.unlink()
        sizes[table], packed[table.name] = to.stat().st_size, to.name
    return most, packed, sum(sizes.values()) + size > free


def write_json(
    breakdown: Breakdown, path: Path, most: int | None = None, packed: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Write ``analysis.json``: report, totals, ledger, warnings, ranges and kernels; times are integer ns.

    The document has the ``most`` ranges and kernels with the largest ``sum_ns``, in table order. ``left_out`` (also
    returned) gives the number of omitted ``rows`` of each shortened table, and the ``file`` with all rows.
    """
    most = most or MAX_ROWS
    head: dict[str, Any] = {
        **document_head(ANALYSIS_SCHEMA, breakdown.attribution.trace.report),
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
        **diagnosis_members(breakdown.diagnosis, breakdown.attribution.trace.report.path, "analyze"),
        "summaries": {name: answer.json(min(most, MAX_SUMMARY_ROWS)) for name, answer in breakdown.summaries.items()},
        "ledger": list(breakdown.columns("ledger").records()),
        "warnings": list(breakdown.warnings),
        "missing": [asdict(table) for table in breakdown.attribution.trace.unread],
        "not_read": breakdown.attribution.trace.report.reader.not_read(),
    }
    tables, left_out = {name: breakdown.columns(name) for name in ("ranges", "kernels")}, {}
    for name, table in tables.items():
        if len(table) > most:
            left_out[name] = {"rows": len(table) - most, "file": (packed or {}).get(f"{name}.csv", f"{name}.csv")}
            tables[name] = table.take(np.sort(np.argsort(-table["sum_ns"], kind="stable")[:most]))
    write_document({**head, "left_out": left_out} if left_out else head, path, tables)
    return left_out


def _unified_memory(unified: UnifiedMemory | None) -> dict[str, Any] | None:
    """Turn a `UnifiedMemory` into JSON, or return None if nothing migrated."""
    if unified is None or not unified.migrations:
        return None
    of_kernels = ("kernel", "count", "sum_ns", "covered_ns", "fault_covered_ns")  # summaries has all of it
    kernels = ColumnTable({name: unified.kernels.columns[name] for name in of_kernels})
    return {"busy_ns": unified.busy_ns, "migrations": unified.migrations, "kernels": [*kernels.records()]}
