"""A report into the files of other tools in one call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from nsysprof.analyze.breakdown import break_down
from nsysprof.attribution.attribute import attribute
from nsysprof.export.files import check_export, default_output, write_export
from nsysprof.export.source import export_source
from nsysprof.kernels.classify import load_rules
from nsysprof.trace.report import Progress, Report, open_report

File: TypeAlias = str | os.PathLike[str]


def export(
    report: File | Report,
    to: str,
    output: File | None = None,
    *,
    threads: str = "follow",
    rules: File | None = None,
    spreadsheet_safe: bool = False,
    force: bool = False,
    nsys: File | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a report as a ``perfetto`` trace, or as ``parquet`` or ``csv`` tables; returns where.

    By default that is the report's name with the ending ``.pftrace``, ``.parquet`` or ``.csv`` in the current folder.
    A trace is a file, compressed if its name ends with ``.gz``; tables are a folder with ``ops``, ``launches``,
    ``ranges`` and ``instances`` (`nsysprof.export.columns` says what their columns hold) and ``export.json``.
    ``threads``, ``rules`` and ``memory_limit`` (bytes) are those of an analysis; ``spreadsheet_safe`` puts a ``'``
    before names in CSV that a spreadsheet would take for formulas. An earlier export is replaced with ``force`` only,
    and what no export wrote never.

    Raises `NsysprofError` for an unreadable report, an output that cannot be written or exists, and where the package
    perfetto or pyarrow is needed and missing (``nsysprof[perfetto]``, ``nsysprof[parquet]``).
    """
    if not isinstance(report, Report):
        with open_report(report, nsys=nsys) as opened:
            return export(
                opened,
                to,
                output,
                threads=threads,
                rules=rules,
                spreadsheet_safe=spreadsheet_safe,
                force=force,
                memory_limit=memory_limit,
                progress=progress,
            )
    loaded = load_rules(Path(rules) if rules is not None else None)
    place = Path(output) if output is not None else default_output(report.path, to)
    check_export(report, to, place, force=force)
    attribution = attribute(report, threads, progress, memory_limit)
    source = export_source(break_down(attribution, rules=loaded), progress)
    if progress:
        progress(f"writing {to}", 0)
    return write_export(source, to, place, spreadsheet_safe=spreadsheet_safe, force=force)
