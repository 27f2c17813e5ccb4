"""Writes exported tables as CSV files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nsysprof.core.files import csv_field
from nsysprof.export.tables import Column, ExportTable

_ROWS_AT_ONCE = 50_000


def write_csv_files(tables: Mapping[str, ExportTable], folder: Path) -> None:
    """Write each table as ``NAME.csv`` into an existing folder.

    UTF-8, commas, quotes where needed, a header; ``true`` and ``false``; what is absent is empty.
    """
    for name, table in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8", errors="replace") as file:
            for first in range(0, max(table.rows, 1), _ROWS_AT_ONCE):
                columns = table.columns(slice(first, first + _ROWS_AT_ONCE))
                if first == 0:
                    file.write(",".join(columns) + "\n")
                cells = [_cells(column) for column in columns.values()]
                file.write("".join([",".join(row) + "\n" for row in zip(*cells, strict=True)]))


def _cells(column: Column) -> list[str]:
    if column.texts is not None:
        codes = column.values.tolist()
        texts = {code: csv_field(column.texts[code]) if code >= 0 else "" for code in set(codes)}
        return [texts[code] for code in codes]
    if column.values.dtype == bool:
        return ["true" if value else "false" for value in column.values.tolist()]
    cells = list(map(str, column.values.tolist()))
    if column.absent is not None:
        for row in column.absent.nonzero()[0].tolist():
            cells[row] = ""
    return cells
