"""Writes exported tables as CSV files, and with pyarrow as Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.analyze.records import Column, RecordTable
from nsysprof.core.files import csv_field
from nsysprof.errors import NsysprofError

_ROWS_AT_ONCE = 50_000
_ROW_GROUP = 1 << 18  # rows
_DICTIONARY_BYTES = 1 << 26  # beyond it pyarrow writes texts out row by row


def write_csv_files(tables: Sequence[RecordTable], folder: Path) -> None:
    """Write each table as ``NAME.csv`` into an existing folder.

    UTF-8, commas, quotes where needed, a header; ``true`` and ``false``; what is absent is empty.
    """
    for table in tables:
        path = folder / f"{table.declared.file}.csv"
        with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
            file.write(",".join(table.declared.names) + "\n")
            for first in range(0, table.rows, _ROWS_AT_ONCE):
                columns = table.columns(slice(first, first + _ROWS_AT_ONCE))
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


def pyarrow_parquet() -> Any:
    """Import the module ``pyarrow.parquet``; `NsysprofError` where pyarrow is not installed."""
    try:
        from pyarrow import parquet  # noqa: PLC0415 (an extra)
    except ImportError:
        raise NsysprofError(
            "Parquet files are written with the package pyarrow, which is not installed",
            "pip install 'nsysprof[parquet]'",
        ) from None
    return parquet


def write_parquet(tables: Sequence[RecordTable], about: Mapping[str, str], folder: Path) -> None:
    """Write each table as ``NAME.parquet`` into an existing folder: typed columns, texts as dictionaries, zstd.

    Row groups of 262,144 rows; ``about`` goes into the metadata of each file, and what a column holds into that of the
    column under ``description``.
    """
    parquet = pyarrow_parquet()
    metadata = {key: value.encode(errors="replace") for key, value in about.items()}
    for table in tables:
        batches = _batches(table, metadata)
        first = next(batches)
        with parquet.ParquetWriter(
            folder / f"{table.declared.file}.parquet",
            first.schema,
            compression="zstd",
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
        ) as writer:
            writer.write_batch(first, row_group_size=_ROW_GROUP)
            for batch in batches:
                writer.write_batch(batch, row_group_size=_ROW_GROUP)


def _batches(table: RecordTable, metadata: Mapping[str, bytes]) -> Iterator[Any]:
    """Yield the rows of a table, one record batch for each row group; one without rows for an empty table."""
    import pyarrow as pa  # noqa: PLC0415 (an extra)

    about = table.declared.about
    for first in range(0, max(table.rows, 1), _ROW_GROUP):
        columns = table.columns(slice(first, first + _ROW_GROUP))
        arrays = {name: _array(pa, column) for name, column in columns.items()}
        fields = [
            pa.field(name, array.type, metadata={"description": about[name]})
            for name, array in arrays.items()
        ]
        yield pa.record_batch(list(arrays.values()), schema=pa.schema(fields, metadata=metadata))


def _array(pa: Any, column: Column) -> Any:
    if column.texts is None:
        return pa.array(column.values, mask=column.absent)
    codes = column.values.astype(np.int32, copy=False)
    used = np.zeros(len(column.texts) + 1, bool)
    used[codes] = True
    used = used[:-1]  # only texts of these rows: a row group holds its own dictionary
    place = np.cumsum(used, dtype=np.int32) - np.int32(1)
    texts = [column.texts[code].encode(errors="replace").decode() for code in np.flatnonzero(used).tolist()]
    absent = codes < 0
    coded = pa.array(place[codes] if len(place) else codes, mask=absent if absent.any() else None)
    return pa.DictionaryArray.from_arrays(coded, pa.array(texts, pa.string()))
