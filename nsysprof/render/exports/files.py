"""Writes exports under their names: whole or not at all, and nothing over what is there."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof.errors import NsysprofError
from nsysprof.exports.export_columns import COLUMNS, SCHEMA
from nsysprof.exports.export_tables import ExportTable, export_tables
from nsysprof.exports.source import ExportSource
from nsysprof.render.data import describe_report
from nsysprof.render.exports.csv_files import write_csv_files
from nsysprof.render.exports.parquet_files import pyarrow_parquet, write_parquet
from nsysprof.render.exports.perfetto import perfetto_protos, write_perfetto
from nsysprof.report import Report

ENDINGS = {"perfetto": ".pftrace", "parquet": ".parquet", "csv": ".csv"}
DOCUMENT = "export.json"


def check_export(report: Report, to: str, output: Path, *, force: bool) -> None:
    """Refuse at once what could not be written, or not without overwriting something, before hours of work.

    Raises `NsysprofError` for an unknown format, a package that is missing, and an output that exists and is not to be
    replaced: a file unless ``force``; a folder also then, if it holds what no export of tables wrote.
    """
    if to not in ENDINGS:
        raise NsysprofError(f"unknown format of an export: {to!r}", f"choose {', '.join(ENDINGS)}")
    ready: dict[str, Callable[[], Any]] = {"perfetto": perfetto_protos, "parquet": pyarrow_parquet}
    ready.get(to, dict)()
    if not output.absolute().parent.is_dir():
        raise NsysprofError(
            f"{output}: there is no folder {output.parent}", f"mkdir -p {quote(str(output.parent))}"
        )
    if not os.path.lexists(output):
        return
    for file in (report.path, report.file):
        if output.exists() and file.exists() and output.samefile(file):
            raise NsysprofError(
                f"{output}: the report itself, which is never changed", "name another place with -o"
            )
    if output.is_dir() != (to != "perfetto"):
        what = "a folder" if output.is_dir() else "a file"
        raise NsysprofError(f"{output}: {what}, not to be replaced", "name another place with -o")
    there = {entry.name for entry in output.iterdir()} if output.is_dir() else {output.name}
    if there and not force:
        raise NsysprofError(
            f"{output}: exists already, not overwritten", "--force, or name another place with -o"
        )
    others = sorted(there - _names(to)) if output.is_dir() else []
    if others:
        raise NsysprofError(
            f"{output}: holds files that no export wrote: {others[0]}", "name another folder with -o"
        )


def _names(to: str) -> set[str]:
    return {DOCUMENT, *(f"{name}{ENDINGS[to]}" for name in COLUMNS)}


def write_export(source: ExportSource, to: str, output: Path, *, force: bool = False) -> Path:
    """Write a report as a Perfetto trace (a file, compressed if it is named ``.gz``) or as tables (a folder).

    It gets its name when it is whole; what was there is replaced with ``force`` only. Raises `NsysprofError` as
    `check_export` does, and where writing fails; then nothing is left behind.
    """
    check_export(source.tables.report, to, output, force=force)
    with _making(output) as part:
        if to == "perfetto":
            with part.open("wb") as file:
                if output.name.endswith(".gz"):
                    with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                        write_perfetto(source, packed)
                else:
                    write_perfetto(source, file)
        else:
            part.mkdir()
            tables = export_tables(source)
            if to == "parquet":
                write_parquet(tables, source.about, part)
            else:
                write_csv_files(tables, part)
            _write_document(source, tables, part / DOCUMENT)
        _publish(part, output, force=force)
    return output


@contextmanager
def _making(output: Path) -> Iterator[Path]:
    """A name beside the output for what becomes it; what is left of it in the end is removed."""
    try:
        with tempfile.TemporaryDirectory(prefix=".nsysprof-", dir=output.absolute().parent) as folder:
            yield Path(folder, "part")
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise NsysprofError(
            f"{output}: cannot be written: {why}", f"df -h {quote(str(output.absolute().parent))}"
        ) from None


def _publish(part: Path, output: Path, *, force: bool) -> None:
    """Give what is written its name. What is there then goes first, and comes back if that fails."""
    earlier = part.with_name("earlier")
    if force and os.path.lexists(output):
        output.rename(earlier)
    elif os.path.lexists(output) and not output.is_dir():  # it came meanwhile
        raise NsysprofError(f"{output}: exists already, not overwritten", "--force")
    try:
        part.rename(output)  # which replaces no folder that holds anything
    except OSError:
        if os.path.lexists(earlier):
            earlier.rename(output)
        raise


def _write_document(source: ExportSource, tables: dict[str, ExportTable], path: Path) -> None:
    """Write what the tables are of and what their columns hold."""
    breakdown = source.breakdown
    document = {
        "schema": SCHEMA,
        "nsysprof": source.about["nsysprof.version"],
        "report": describe_report(source.tables.report),
        "options": {"threads": breakdown.attribution.threads, **breakdown.options},
        "totals": breakdown.totals,
        "ledger": breakdown.ledger.to_dict("records"),
        "warnings": list(breakdown.warnings),
        "tables": {name: {"rows": table.rows, "columns": COLUMNS[name]} for name, table in tables.items()},
    }
    with path.open("w", encoding="utf-8", errors="replace") as file:
        json.dump(document, file, indent=1, ensure_ascii=False)
        file.write("\n")
