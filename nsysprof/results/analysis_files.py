"""Writes an answer as files for machines: CSV tables and one JSON document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysprof import __version__
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.core.column_table import Column, ColumnTable, Texts
from nsysprof.errors import NsysprofError
from nsysprof.results.folder import whole_file
from nsysprof.trace.nsys import Report

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "nsysprof-analysis/1"
ANALYSIS_DOCUMENT = ("analysis.json", SCHEMA)
# Above this many instances `instances.csv` is only written when asked for.
MOST_INSTANCES = 100_000
MOST_ROWS = 5_000  # of ranges and of kernels in `analysis.json`: whoever wants more reads the tables
_ROWS_AT_ONCE = 10_000
_SPECIAL = re.compile(r'[,"\r\n]').search


def write_tables(
    breakdown: Breakdown, folder: Path, *, instances: bool = False
) -> tuple[list[Path], list[str]]:
    """Write ``ranges.csv``, ``instances.csv``, ``kernels.csv`` and ``analysis.json`` into an existing folder.

    Each is there whole or not at all. Returns the paths, and notes on what was left out: ``instances.csv`` where it
    would have more than `MOST_INSTANCES` rows and ``instances`` did not ask for it, and rows of ``analysis.json``.
    """
    written = [folder / "ranges.csv", folder / "kernels.csv", folder / ANALYSIS_DOCUMENT[0]]
    # first: it is what tells whose folder this is, should we be stopped half-way
    left_out = write_json(breakdown, written[2])
    write_csv(breakdown.columns("ranges"), written[0])
    write_csv(breakdown.columns("kernels"), written[1])
    notes = []
    if left_out:
        files = " and ".join(each["file"] for each in left_out.values())
        notes.append(f"{written[2].name} holds the {MOST_ROWS:,} rows with the most time; all are in {files}")
    count = breakdown.instance_count
    if instances or count <= MOST_INSTANCES:
        written.insert(1, folder / "instances.csv")
        _write_rows(written[1], breakdown.instance_columns(_ROWS_AT_ONCE))
    else:
        notes.append(f"instances.csv is left out: it would have {count:,} rows; --instances writes it")
        (folder / "instances.csv").unlink(missing_ok=True)
    return written, notes


def write_csv(table: ColumnTable | pd.DataFrame, path: Path) -> None:
    """Write a table as CSV (UTF-8, comma, quotes where needed, a header, no index)."""
    if not isinstance(table, ColumnTable):
        table = ColumnTable({str(name): table[name].to_numpy() for name in table.columns})
    _write_rows(path, (table,))


def _write_rows(path: Path, tables: Iterable[ColumnTable]) -> None:
    with (
        whole_file(path) as part,
        part.open("w", newline="", encoding="utf-8", errors="replace") as file,
    ):
        for number, table in enumerate(tables):
            if number == 0:
                file.write(",".join(map(csv_field, table.columns)) + "\n")
            pattern = ",".join(["%s"] * len(table.columns)) + "\n"
            for columns in _encoded(table, csv_field):
                file.write("".join([pattern % row for row in zip(*columns, strict=True)]))


def csv_field(text: object) -> str:
    """A CSV field, in quotes where RFC 4180 asks for them.

    The csv module takes ten times as long for long kernel names, and before Python 3.13 does not quote a lone CR.
    """
    field = str(text)
    return '"' + field.replace('"', '""') + '"' if _SPECIAL(field) else field


def _encoded(table: ColumnTable, encode: Callable[[Any], str]) -> Iterator[list[list[Any]]]:
    """The columns as lists, some rows at a time; whole numbers as they are, and of equal texts one encoded for all."""
    for first in range(0, len(table), _ROWS_AT_ONCE):
        part = table.take(slice(first, first + _ROWS_AT_ONCE))
        yield [_cells(column, encode) for column in part.columns.values()]


def _cells(column: Column, encode: Callable[[Any], str]) -> list[Any]:
    if isinstance(column, Texts):
        codes, words = column.codes.tolist(), column.words
        encoded = {code: encode(words[code]) for code in set(codes)}
        return [encoded[code] for code in codes]
    cells: list[Any] = column.tolist()
    if column.dtype.kind in "iu":
        return cells
    encoded = {cell: encode(cell) for cell in set(cells)}
    return [encoded[cell] for cell in cells]


def write_json(breakdown: Breakdown, path: Path) -> dict[str, dict[str, Any]]:
    """Write ``analysis.json``: report, totals, ledger, warnings, ranges and kernels; times are integer ns.

    Of ranges and kernels it holds the `MOST_ROWS` with the largest ``sum_ns``, in the order of their tables. What that
    leaves out stands under ``left_out``, a key for each such table with ``rows`` and ``file``, and is returned.
    """
    head = {
        "schema": SCHEMA,
        "report": describe_report(breakdown.attribution.tables.report),
        "nsysprof": __version__,
        "options": {"threads": breakdown.attribution.threads, "by": breakdown.by, **breakdown.options},
        "totals": breakdown.totals,
        "ledger": list(breakdown.columns("ledger").records()),
        "warnings": list(breakdown.warnings),
    }
    tables = {name: breakdown.columns(name) for name in ("ranges", "kernels")}
    left_out = {
        name: {"rows": len(table) - MOST_ROWS, "file": f"{name}.csv"}
        for name, table in tables.items()
        if len(table) > MOST_ROWS
    }
    text = json.dumps({**head, "left_out": left_out} if left_out else head, indent=1, ensure_ascii=False)
    with whole_file(path) as part, part.open("w", encoding="utf-8", errors="replace") as file:
        file.write(text[: text.rindex("\n}")])
        for name, table in tables.items():
            if name in left_out:
                table = table.take(np.sort(np.argsort(-table["sum_ns"], kind="stable")[:MOST_ROWS]))
            file.write(f',\n "{name}": [')
            for number, rows in enumerate(_json_rows(table)):
                file.write(("," if number else "") + "\n  " + ",\n  ".join(rows))
            file.write("\n ]")
        file.write("\n}\n")
    return left_out


def _json_rows(table: ColumnTable) -> Iterator[list[str]]:
    """The rows as JSON objects, some at a time."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    keys = [encode(name).replace("%", "%%") for name in table.columns]
    pattern = "{" + ", ".join(f"{key}: %s" for key in keys) + "}"
    for columns in _encoded(table, encode):
        yield [pattern % row for row in zip(*columns, strict=True)]


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
