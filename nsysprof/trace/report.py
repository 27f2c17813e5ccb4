"""Open trace files of any format."""

import os
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from nsysprof.core.arena import IN_MEMORY, ColumnArena
from nsysprof.trace.plausibility import doubts
from nsysprof.trace.trace import Progress, Reader, Report, Trace

READERS: list[str] = ["nsysprof.trace.kineto.reader:KinetoReader", "nsysprof.trace.nsys.reader:NsysReader"]
"""Readers as `module:class`. The first reader that recognizes a file reads it; the last reader rejects all others."""


def open_report(
    path: str | os.PathLike[str],
    *,
    export_to: str | os.PathLike[str] | None = None,
    nsys: str | os.PathLike[str] | None = None,
) -> Report:
    """Open an SQLite report or Parquet export read-only, or export a ``.nsys-rep``/``.qdrep`` and open the export.

    The export goes to ``export_to``, or to a temporary folder that is removed when the report is closed or Python ends;
    existing files are never overwritten. ``nsys`` is the nsys for the export. Raises `NsysprofError` if the file is not
    a readable report; opening reads only a few small tables.
    """
    named = Path(path)
    options = {"export_to": Path(export_to) if export_to else None, "nsys": Path(nsys) if nsys else None}
    readers = _readers()
    return next((reader for reader in readers[:-1] if reader.claims(named)), readers[-1]).open(named, **options)


def report_endings() -> dict[str, str]:
    """Return the file name endings of all formats (see `Reader`) with their recorders, the preferred one last."""
    return {ending: reader.recorder for reader in _readers() for ending in reader.endings}


def _readers() -> list[type[Reader]]:
    return [getattr(import_module(module), reader) for module, reader in (name.split(":") for name in READERS)]


def read_tables(report: Report, progress: Progress | None = None, arena: ColumnArena = IN_MEMORY) -> Trace:
    """The `Trace` of a report. Missing rows are not invented; ``warnings`` say how this affects the answer.

    ``arena`` allocates recorded and computed columns, see `allocator`. Raises `NsysprofError` if the file is damaged.
    ``progress`` receives each table and the rows read.
    """
    trace = report.reader.trace(report, progress, arena)
    return replace(trace, warnings=(*trace.warnings, *doubts(trace)))


def allocator(report: Report, limit: int | None) -> ColumnArena:
    """Choose where to allocate columns, if an analysis may take ``limit`` bytes of memory (None: no limit)."""
    needed = report.reader.bytes_needed(limit // _ROOM) if limit is not None else 0
    if limit is None or _ROOM * needed <= limit:
        return IN_MEMORY
    return ColumnArena(roomy=False) if needed <= limit else ColumnArena(limit)


_ROOM = 3  # times as much memory may be taken where tables are made side by side
# What JSON documents hold of a report and of each GPU.
_ABOUT = (
    *("nsys_version", "recorder_version", "export_version", "schema_version", "start_utc", "duration_ns"),
    *("driver_version", "cuda_version"),
)
_ABOUT_GPU = (*("id", "name", "sm_count", "memory_bytes", "bandwidth_bytes_per_s", "clock_hz", "compute_capability"),)


def describe_report(report: Report) -> dict[str, Any]:
    """Return the metadata of a report, for JSON documents."""
    about = report.about
    return {
        "file": str(report.path),
        "size_bytes": report.path.stat().st_size if report.path.is_file() else None,
        "format": report.format,
        "recorder": report.reader.recorder,
        **{name: getattr(about, name) for name in _ABOUT},
        "gpus": [{name: getattr(gpu, name) for name in _ABOUT_GPU} for gpu in about.cuda_gpus],
        "diagnostics": [asdict(diagnostic) for diagnostic in about.diagnostics],
    }
