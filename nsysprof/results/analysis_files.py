"""Writes an answer as files for machines: CSV tables and one JSON document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from nsysprof import __version__
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.unified_memory import UnifiedMemory
from nsysprof.core.csv_text import csv_field
from nsysprof.core.final_name import whole_file
from nsysprof.errors import NsysprofError
from nsysprof.formats.answers import ANALYSIS_SCHEMA
from nsysprof.trace.report import Report

ANALYSIS_DOCUMENT = ("analysis.json", ANALYSIS_SCHEMA)
# Above this many instances `instances.csv` is only written when asked for.
MOST_INSTANCES = 100_000
_ROWS_AT_ONCE = 50_000


def write_tables(
    breakdown: Breakdown, folder: Path, *, instances: bool = False
) -> tuple[list[Path], str | None]:
    """Write ``ranges.csv``, ``instances.csv``, ``kernels.csv`` and ``analysis.json`` into an existing folder.

    Each is there whole or not at all. Returns the paths, and a note where ``instances.csv`` was left out because it
    would have more than `MOST_INSTANCES` rows and ``instances`` did not ask for it.
    """
    written = [folder / "ranges.csv", folder / "kernels.csv", folder / ANALYSIS_DOCUMENT[0]]
    write_json(breakdown, written[2])
    write_csv(breakdown.ranges, written[0])
    write_csv(breakdown.kernels, written[1])
    note = None
    count = breakdown.instance_count
    if instances or count <= MOST_INSTANCES:
        written.insert(1, folder / "instances.csv")
        _write_rows(written[1], breakdown.instance_frames(_ROWS_AT_ONCE))
    else:
        note = f"instances.csv is left out: it would have {count:,} rows; --instances writes it"
    return written, note


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as CSV (UTF-8, comma, quotes where needed, a header, no index)."""
    _write_rows(path, (frame,))


def _write_rows(path: Path, frames: Iterable[pd.DataFrame]) -> None:
    with (
        whole_file(path) as part,
        part.open("w", newline="", encoding="utf-8", errors="replace") as file,
    ):
        for number, frame in enumerate(frames):
            if number == 0:
                file.write(",".join(map(csv_field, frame.columns)) + "\n")
            pattern = ",".join(["%s"] * frame.shape[1]) + "\n"
            for columns in _encoded(frame, csv_field):
                file.write("".join([pattern % row for row in zip(*columns, strict=True)]))


def _encoded(frame: pd.DataFrame, encode: Callable[[Any], str]) -> Iterator[list[list[Any]]]:
    """The columns as lists, some rows at a time; whole numbers as they are, and of equal texts one encoded for all."""
    for first in range(0, len(frame), _ROWS_AT_ONCE):
        part = frame.iloc[first : first + _ROWS_AT_ONCE]
        columns = []
        for values in (part[name].to_numpy() for name in part.columns):
            cells = values.tolist()
            if values.dtype.kind not in "iu":
                encoded = {cell: encode(cell) for cell in set(cells)}
                cells = [encoded[cell] for cell in cells]
            columns.append(cells)
        yield columns


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
    text = json.dumps(head, indent=1, ensure_ascii=False)
    with whole_file(path) as part, part.open("w", encoding="utf-8", errors="replace") as file:
        file.write(text[: text.rindex("\n}")])
        for name, frame in (("ranges", breakdown.ranges), ("kernels", breakdown.kernels)):
            file.write(f',\n "{name}": [')
            for number, rows in enumerate(_json_rows(frame)):
                file.write(("," if number else "") + "\n  " + ",\n  ".join(rows))
            file.write("\n ]")
        file.write("\n}\n")


def _json_rows(frame: pd.DataFrame) -> Iterator[list[str]]:
    """The rows as JSON objects, some at a time."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    keys = [encode(name).replace("%", "%%") for name in frame.columns]
    pattern = "{" + ", ".join(f"{key}: %s" for key in keys) + "}"
    for columns in _encoded(frame, encode):
        yield [pattern % row for row in zip(*columns, strict=True)]


def _unified_memory(unified: UnifiedMemory | None) -> dict[str, Any] | None:
    """What `UnifiedMemory` holds; None where nothing migrated."""
    if unified is None:
        return None
    frames = {"migrations": unified.migrations, "kernels": unified.kernels}
    return {"busy_ns": unified.busy_ns, **{name: frame.to_dict("records") for name, frame in frames.items()}}


def describe_report(report: Report) -> dict[str, Any]:
    """What the report says of itself, for `analysis.json`."""
    about = report.about
    return {
        "file": str(report.path),
        "size_bytes": report.path.stat().st_size if report.path.is_file() else None,
        "format": report.format,
        "nsys_version": about.nsys_version,
        "recorder_version": about.recorder_version,
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


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns a failure to write into the folder into a `NsysprofError`."""
    try:
        yield
    except OSError as error:
        raise NsysprofError(
            f"cannot write {error.filename or f'into {folder}'}: {error.strerror}",
            "choose another folder: -o DIR",
        ) from None
