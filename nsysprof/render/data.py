"""Writes an answer as files for machines: CSV tables and one JSON document."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from nsysprof.breakdown import Breakdown
from nsysprof.errors import NsysprofError
from nsysprof.report import Report

SCHEMA = "nsysprof-analysis/1"
# Above this many instances `instances.csv` is only written when asked for.
MOST_INSTANCES = 100_000
_ROWS_AT_ONCE = 50_000


def write_tables(
    breakdown: Breakdown, folder: Path, *, instances: bool = False
) -> tuple[list[Path], str | None]:
    """Write ``ranges.csv``, ``instances.csv``, ``kernels.csv`` and ``analysis.json`` into an existing folder.

    Returns the paths, and a note where ``instances.csv`` was left out because it would have more than
    `MOST_INSTANCES` rows and ``instances`` did not ask for it.
    """
    written = [folder / "ranges.csv", folder / "kernels.csv", folder / "analysis.json"]
    write_csv(breakdown.ranges, written[0])
    write_csv(breakdown.kernels, written[1])
    note = None
    count = breakdown.instance_count
    if instances or count <= MOST_INSTANCES:
        written.insert(1, folder / "instances.csv")
        _write_rows(written[1], breakdown.instance_frames(_ROWS_AT_ONCE))
    else:
        note = f"instances.csv is left out: it would have {count:,} rows; --instances writes it"
        (folder / "instances.csv").unlink(missing_ok=True)
    write_json(breakdown, folder / "analysis.json")
    return written, note


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as CSV (UTF-8, comma, quotes where needed, a header, no index)."""
    _write_rows(path, (frame,))


def _write_rows(path: Path, frames: Iterable[pd.DataFrame]) -> None:
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        writer = csv.writer(file, lineterminator="\n")
        for number, frame in enumerate(frames):
            if number == 0:
                writer.writerow(frame.columns)
            for first in range(0, len(frame), _ROWS_AT_ONCE):
                part = frame.iloc[first : first + _ROWS_AT_ONCE]
                writer.writerows(zip(*(part[name].tolist() for name in part.columns), strict=True))


def write_json(breakdown: Breakdown, path: Path) -> None:
    """Write ``analysis.json``: report, totals, ledger, warnings, ranges and kernels; times are integer ns."""
    head = {
        "schema": SCHEMA,
        "report": describe_report(breakdown.attribution.tables.report),
        "threads": breakdown.attribution.threads,
        "by": breakdown.by,
        "totals": breakdown.totals,
        "ledger": breakdown.ledger.to_dict("records"),
        "warnings": list(breakdown.warnings),
    }
    text = json.dumps(head, indent=1, ensure_ascii=False)
    with path.open("w", encoding="utf-8", errors="replace") as file:
        file.write(text[: text.rindex("\n}")])
        for name, frame in (("ranges", breakdown.ranges), ("kernels", breakdown.kernels)):
            file.write(f',\n "{name}": [')
            for number, row in enumerate(_json_rows(frame)):
                file.write(f"{',' if number else ''}\n  {row}")
            file.write("\n ]")
        file.write("\n}\n")


def _json_rows(frame: pd.DataFrame) -> Iterator[str]:
    """Each row as a JSON object on a line of its own; strings are encoded once each."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    keys = [encode(name) for name in frame.columns]
    for first in range(0, len(frame), _ROWS_AT_ONCE):
        part = frame.iloc[first : first + _ROWS_AT_ONCE]
        columns = [
            values.tolist() if values.dtype.kind in "iu" else [encode(value) for value in values.tolist()]
            for values in (part[name].to_numpy() for name in part.columns)
        ]
        pattern = "{" + ", ".join(f"{key.replace('%', '%%')}: %s" for key in keys) + "}"
        for row in zip(*columns, strict=True):
            yield pattern % row


def describe_report(report: Report) -> dict[str, Any]:
    """What the report says of itself, for `analysis.json`."""
    about = report.about
    return {
        "file": str(report.path),
        "size_bytes": report.path.stat().st_size if report.path.is_file() else None,
        "format": report.format,
        "nsys_version": about.nsys_version,
        "export_version": about.export_version,
        "schema_version": about.schema_version,
        "start_utc": about.start_utc,
        "duration_ns": about.duration_ns,
        "driver_version": about.driver_version,
        "cuda_version": about.cuda_version,
        "gpus": [
            {
                "id": gpu.id,
                "name": gpu.name,
                "sm_count": gpu.sm_count,
                "memory_bytes": gpu.memory_bytes,
                "bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s,
                "clock_hz": gpu.clock_hz,
                "compute_capability": gpu.compute_capability,
            }
            for gpu in about.gpus
            if gpu.is_cuda
        ],
        "diagnostics": [
            {"severity": found.severity, "source": found.source, "text": found.text, "count": found.count}
            for found in about.diagnostics
        ],
    }


def check_folder(folder: Path, report: Report, names: Iterable[str], *, force: bool) -> None:
    """Make the output folder; refuse to replace files in it that are not an earlier analysis of the same report.

    Raises `NsysprofError` where a file of the given names is somebody else's, or where the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NsysprofError(
            f"cannot make the folder {folder}: {error.strerror}", "choose another: -o DIR"
        ) from None
    taken = [name for name in names if (folder / name).exists()]
    if force or not taken or _is_ours(folder / "analysis.json", report):
        return
    raise NsysprofError(
        f"{folder} holds {', '.join(taken)}, not written by an analysis of {report.path.name}",
        f"nsysprof analyze {report.path} -o OTHER-DIR   (or --force to replace them)",
    )


def _is_ours(path: Path, report: Report) -> bool:
    """Whether this is an `analysis.json` of a report of the same name: its first lines say so."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(4096)
    except OSError:
        return False
    return f'"schema": "{SCHEMA}"' in head and json.dumps(report.path.name, ensure_ascii=False)[1:-1] in head
