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
from nsysprof.diagnosis.text import records as diagnosis_records
from nsysprof.formats.answers import ANALYSIS_SCHEMA
from nsysprof.results.files import ROWS_AT_ONCE, document_head, write_csv, write_document
from nsysprof.summaries.every import SUMMARIES
from nsysprof.summaries.unified import UnifiedMemory

_OF_SUMMARIES = {table.file: table for summary in SUMMARIES for table in summary.tables}
# Above this many instances `instances.csv` is only written when asked for.
MAX_INSTANCES = 100_000
MAX_ROWS = 5_000  # of ranges and of kernels in `analysis.json`: whoever wants more reads the tables
MAX_SUMMARY_ROWS = 1_000  # of each table of a summary, the most important first
# Tables that together take more than this, and more than a part of the report, are compressed, the large ones.
MAX_BYTES, MAX_PART, MIN_PACKED, FEW_ROWS = 8_000_000, 3, 250_000, 500
_LEVEL = 4  # takes 40 % of the time of gzip's best level, for files that are a sixth larger


def write_tables(
    breakdown: Breakdown, folder: Path, *, instances: bool = False, packs: bool = True
) -> tuple[list[Path], list[str]]:
    """Write ``ranges.csv``, ``instances.csv``, ``kernels.csv`` and ``analysis.json`` into an existing folder.

    Each file is written completely or not at all. Returns the paths, and notes on omitted rows of ``analysis.json``, on
    compressed files (``packs``), and on ``instances.csv``. ``instances.csv`` is omitted if it would have more than
    `MAX_INSTANCES` rows, unless ``instances`` is set.
    """
    written = [folder / "ranges.csv", folder / "kernels.csv", folder / "analysis.json"]
    left_out = write_json(breakdown, written[2])  # first: it tells whose folder this is, if the rest is interrupted
    write_csv(breakdown.columns("ranges"), written[0])
    write_csv(breakdown.columns("kernels"), written[1])
    for answer in breakdown.summaries.values():
        for name, rows in answer.files.items():
            write_csv(_OF_SUMMARIES[name].of(rows), folder / name)
            written.append(folder / name)
    notes = []
    count = breakdown.instance_count
    if instances or count <= MAX_INSTANCES:
        written.insert(1, folder / "instances.csv")
        write_csv(breakdown.instance_columns(ROWS_AT_ONCE), written[1])
    else:
        notes.append(f"instances.csv is left out: it would have {count:,} rows; --instances writes it")
    packed = _packed(breakdown, written) if packs else {}
    most = FEW_ROWS if packed else MAX_ROWS
    if packed:
        left_out = write_json(breakdown, folder / "analysis.json", most, packed)
    if left_out:
        files = " and ".join(each["file"] for each in left_out.values())
        notes.insert(0, f"analysis.json has the top {most:,} rows by GPU time; all rows are in {files}")
    if packed:
        notes.append(f"large files are compressed: {', '.join(packed.values())} (zcat, pandas and DuckDB read them)")
    return [path.with_name(packed.get(path.name, path.name)) for path in written], notes


def _packed(breakdown: Breakdown, written: list[Path]) -> dict[str, str]:
    """Compress large tables if all tables together are large compared with the report; return the new names."""
    report = breakdown.attribution.trace.report.path
    size = report.stat().st_size if report.is_file() else 0
    tables = [path for path in written if path.suffix == ".csv"]
    total = sum(path.stat().st_size for path in tables)
    if total < MAX_BYTES or total < size / MAX_PART:
        return {}
    packed = {}
    for path in tables:
        if path.stat().st_size >= MIN_PACKED:
            to = path.with_name(f"{path.name}.gz")
            with path.open("rb") as table, gzip.GzipFile(to, "wb", _LEVEL, mtime=0) as file:
                shutil.copyfileobj(table, file)
            path.unlink()
            packed[path.name] = to.name
    return packed


def write_json(
    breakdown: Breakdown, path: Path, most: int | None = None, packed: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Write ``analysis.json``: report, totals, ledger, warnings, ranges and kernels; times are integer ns.

    The document has the ``most`` ranges and kernels with the largest ``sum_ns``, in table order. ``left_out``, which is
    also returned, has for each shortened table the number of omitted ``rows`` and the ``file`` with all rows.
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
        "diagnosis": diagnosis_records(breakdown.diagnosis, breakdown.attribution.trace.report.path, "analyze"),
        "summaries": {name: answer.json(MAX_SUMMARY_ROWS) for name, answer in breakdown.summaries.items()},
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
