"""Writes why the GPU waits as files: all rows as CSV, and windows, rows and findings as one JSON document."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from nsysprof import __version__
from nsysprof.results.files import records, write_csv, write_document
from nsysprof.trace.report import describe_report
from nsysprof.why.tables import WHY
from nsysprof.why.why import Why

SCHEMA = "nsysprof-why/1"
FILES = ("why.csv", "why.json")


def write_why(answer: Why, folder: Path) -> list[Path]:
    """Write ``why.csv`` and ``why.json`` into an existing folder and return their paths."""
    written = [folder / name for name in FILES]
    write_csv(answer.rows[WHY.names], written[0])
    write_document(why_document(answer), written[1])
    return written


def why_document(answer: Why) -> dict[str, Any]:
    """The whole answer as JSON can hold it: report, paths with their windows added up, rows, and findings."""
    total = answer.windows.assign(
        window_ns=answer.windows["end_ns"] - answer.windows["start_ns"], windows=1
    ).groupby(["path", "gpu", "pid"], as_index=False, sort=False)
    names = ["windows", "window_ns", "compute_ns", "communication_ns", "blocking_ns", "copies_ns", "idle_ns"]
    return {
        "schema": SCHEMA,
        "report": describe_report(answer.attribution.trace.report),
        "nsysprof": __version__,
        "chosen": answer.chosen or None,
        "picked": answer.picked or None,
        "per": answer.per,
        "lacks": list(answer.lacks),
        "warnings": list(answer.warnings),
        "paths": records(total[names].sum()),
        "residuals": records(answer.residuals),
        "findings": [asdict(each) for found in answer.findings.values() for each in found],
        "rows": records(answer.rows[WHY.names]),
    }
