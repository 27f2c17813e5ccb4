"""The files of an analysis for machines: CSV tables and one JSON document."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from nsysprof import __version__
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.unified_memory import UnifiedMemory
from nsysprof.formats.answers import ANALYSIS_SCHEMA
from nsysprof.results.files import ROWS_AT_ONCE, write_csv, write_document
from nsysprof.trace.report import describe_report

# Above this many instances `instances.csv` is only written when asked for.
MOST_INSTANCES = 100_000


def write_tables(
    breakdown: Breakdown, folder: Path, *, instances: bool = False
) -> tuple[list[Path], str | None]:
    """Write ``ranges.csv``, ``instances.csv``, ``kernels.csv`` and ``analysis.json`` into an existing folder.

    Each is there whole or not at all. Returns the paths, and a note where ``instances.csv`` was left out because it
    would have more than `MOST_INSTANCES` rows and ``instances`` did not ask for it.
    """
    written = [folder / "ranges.csv", folder / "kernels.csv", folder / "analysis.json"]
    write_json(breakdown, written[2])
    write_csv(breakdown.ranges, written[0])
    write_csv(breakdown.kernels, written[1])
    note = None
    count = breakdown.instance_count
    if instances or count <= MOST_INSTANCES:
        written.insert(1, folder / "instances.csv")
        write_csv(breakdown.instance_frames(ROWS_AT_ONCE), written[1])
    else:
        note = f"instances.csv is left out: it would have {count:,} rows; --instances writes it"
    return written, note


def write_json(breakdown: Breakdown, path: Path) -> None:
    """Write ``analysis.json``: report, totals, ledger, warnings, ranges and kernels; times are integer ns."""
    head = {
        "schema": ANALYSIS_SCHEMA,
        "report": describe_report(breakdown.attribution.tables.report),
        "nsysprof": __version__,
        "options": {"threads": breakdown.attribution.threads, "by": breakdown.by, **breakdown.options},
        "totals": breakdown.totals,
        "unified_memory": _unified_memory(breakdown.unified),
        "ledger": breakdown.ledger.to_dict("records"),
        "warnings": list(breakdown.warnings),
        "missing": [asdict(table) for table in breakdown.attribution.tables.unread],
    }
    write_document(head, path, {"ranges": breakdown.ranges, "kernels": breakdown.kernels})


def _unified_memory(unified: UnifiedMemory | None) -> dict[str, Any] | None:
    """What `UnifiedMemory` holds; None where nothing migrated."""
    if unified is None:
        return None
    frames = {"migrations": unified.migrations, "kernels": unified.kernels}
    return {"busy_ns": unified.busy_ns, **{name: frame.to_dict("records") for name, frame in frames.items()}}
