"""Writes exports under their names: whole or not at all, and nothing over what is there."""

from __future__ import annotations

import errno
import gzip
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof.core.document import read_if_document
from nsysprof.core.files import make_spreadsheet_safe, open_regular
from nsysprof.errors import NsysprofError
from nsysprof.export.columns import COLUMNS
from nsysprof.export.csv_files import write_csv_files
from nsysprof.export.parquet_files import pyarrow_parquet, write_parquet
from nsysprof.export.perfetto import perfetto_protos, write_perfetto
from nsysprof.export.source import ExportSource
from nsysprof.export.tables import ExportTable, export_tables
from nsysprof.formats.answers import EXPORT_SCHEMA
from nsysprof.results.files import write_document
from nsysprof.results.folder import report_stem, writable_around
from nsysprof.trace.report import Report, describe_report

ENDINGS = {"perfetto": ".pftrace", "parquet": ".parquet", "csv": ".csv"}
DOCUMENT = "export.json"
_NAMES = {DOCUMENT, *(f"{name}{ENDINGS[to]}" for name in COLUMNS for to in ("parquet", "csv"))}
_ELSEWHERE = "name another place with -o"
_HEAD = 1024  # bytes at the beginning of a trace, which hold these
_MARKS = (b"nsysprof.schema", EXPORT_SCHEMA.encode())


def default_output(report: Path, to: str) -> Path:
    """The report's name with the ending of a format, in the current folder."""
    return Path(f"{report_stem(report)}{ENDINGS.get(to, '')}")


def check_export(report: Report, to: str, output: Path, *, force: bool) -> None:
    """Refuse at once what could not be written, or not without overwriting something, before hours of work.

    Raises `NsysprofError` for an unknown format, a package that is missing, a place where nothing can be written, and
    an output that exists and is not to be replaced: what no export wrote, and what one wrote unless ``force``.
    """
    if to not in ENDINGS:
        raise NsysprofError(f"unknown format of an export: {to!r}", f"choose {', '.join(ENDINGS)}")
    ready: dict[str, Callable[[], Any]] = {"perfetto": perfetto_protos, "parquet": pyarrow_parquet}
    ready.get(to, dict)()
    if os.path.lexists(output) and output.is_dir() and (what := _what_stays(output, to)):
        inside = quote(str(output / default_output(report.path, to)))
        raise NsysprofError(
            f"{output}: {what}, not to be replaced", f"name another place, such as -o {inside}"
        )
    parent = output.absolute().parent
    if writable_around(parent, _ELSEWHERE) != parent:
        raise NsysprofError(
            f"{output}: there is no folder {output.parent}", f"mkdir -p {quote(str(output.parent))}"
        )
    if not os.path.lexists(output):
        return
    for file in (report.path, report.file):
        if output.exists() and file.exists() and output.samefile(file):
            raise NsysprofError(f"{output}: the report itself, which is never changed", _ELSEWHERE)
    empty = _check_earlier(output, to)
    if not empty and not force:
        raise NsysprofError(
            f"{output}: exists already, not overwritten", "--force, or name another place with -o"
        )


def _what_stays(folder: Path, to: str) -> str | None:
    """What a folder is that no export can take the place of."""
    if folder.samefile(Path()):
        return "the current folder"
    if folder.is_symlink():
        return "a link to a folder"
    if os.path.ismount(folder):
        return "a mount point"
    return "a folder" if to == "perfetto" else None


def _check_earlier(output: Path, to: str) -> bool:
    """Whether what is there is an empty folder; `NsysprofError` where it holds what no export wrote."""
    if output.is_dir():
        if not os.access(output, os.R_OK | os.W_OK | os.X_OK):
            raise NsysprofError(f"{output}: no permission to replace it", _ELSEWHERE)
        there = sorted(entry.name for entry in output.iterdir())
        foreign = [name for name in there if name not in _NAMES]
        if there and not read_if_document(output / DOCUMENT, EXPORT_SCHEMA):
            foreign = foreign or there
        if foreign:
            raise NsysprofError(
                f"{output}: holds files that no export wrote: {foreign[0]}", "name another folder with -o"
            )
        return not there
    if to != "perfetto":
        raise NsysprofError(f"{output}: a file, not to be replaced", _ELSEWHERE)
    if not _is_trace(output):
        raise NsysprofError(f"{output}: no export wrote it, so it is not replaced", _ELSEWHERE)
    return False


def _is_trace(path: Path) -> bool:
    """Whether a file is empty or a trace that an export wrote, which says so in its first packet."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
        if head.startswith(b"\x1f\x8b"):
            with open_regular(path) as file, gzip.open(file) as unpacked:
                head = unpacked.read(_HEAD)
    except (OSError, EOFError, zlib.error):
        return False
    return not head or (head.startswith(b"\n") and all(text in head for text in _MARKS))


def write_export(
    source: ExportSource, to: str, output: Path, *, spreadsheet_safe: bool = False, force: bool = False
) -> Path:
    """Write a report as a Perfetto trace (a file, compressed if it is named ``.gz``) or as tables (a folder).

    It gets its name when it is whole; what was there is replaced with ``force`` only. Raises `NsysprofError` as
    `check_export` does, and where writing fails; then nothing is left behind.
    """
    check_export(source.trace.report, to, output, force=force)
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
                for path in part.glob("*.csv") if spreadsheet_safe else ():
                    make_spreadsheet_safe(path)
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
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise NsysprofError(
            f"{output}: cannot be written: {why}",
            f"df -h {quote(str(output.absolute().parent))}" if full else _ELSEWHERE,
        ) from None


def _publish(part: Path, output: Path, *, force: bool) -> None:
    """Give what is written its name. A folder that is there then goes first, and comes back if that fails."""
    if not force and os.path.lexists(output) and not output.is_dir():  # it came meanwhile
        raise NsysprofError(f"{output}: exists already, not overwritten", "--force")
    if not force or not part.is_dir() or not os.path.lexists(output):
        part.replace(output)  # which replaces no folder that holds anything
        return
    earlier = part.with_name("earlier")
    try:
        output.rename(earlier)
        part.rename(output)
    except BaseException:  # an interrupt too: what is in that folder goes with it
        if earlier.exists() and not os.path.lexists(output):
            earlier.rename(output)
        raise


def _write_document(source: ExportSource, tables: dict[str, ExportTable], path: Path) -> None:
    """Write what the tables are of and what their columns hold."""
    breakdown = source.breakdown
    document = {
        "schema": EXPORT_SCHEMA,
        "nsysprof": source.about["nsysprof.version"],
        "report": describe_report(source.trace.report),
        "options": {"threads": breakdown.attribution.threads, **breakdown.options},
        "totals": breakdown.totals,
        "ledger": breakdown.ledger.to_dict("records"),
        "warnings": list(breakdown.warnings),
        "tables": {name: {"rows": table.rows, "columns": COLUMNS[name]} for name, table in tables.items()},
    }
    write_document(document, path)
