"""Write tables as CSV files and documents as JSON files, each file atomically."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nsysprof import __version__
from nsysprof.core.arrays import Bytes
from nsysprof.core.columns import Column, ColumnTable, Texts, known
from nsysprof.core.files import csv_field, csv_fields, whole_file
from nsysprof.core.parallel import side_by_side
from nsysprof.errors import NsysprofError
from nsysprof.trace.report import describe_report

if TYPE_CHECKING:
    import pandas as pd

    from nsysprof.trace.trace import Report

    Tables = ColumnTable | pd.DataFrame | Iterable[ColumnTable] | Iterable[pd.DataFrame]


ROWS_AT_ONCE = 2_500
_ROWS_APART = 20_000  # encoded by one process
OTHER_FOLDER = "choose another folder: -o DIR"


def write_csv(tables: Tables, path: Path, *, digits: int | None = None) -> None:
    """Write a table, in one or several parts, as CSV: UTF-8, commas, quotes if needed, a header.

    Floats with integer values are written as integers, other floats with at most ``digits`` digits. Booleans are 0 and
    1, and numbers that are not finite are empty.
    """
    with whole_file(path) as part, part.open("wb") as file:
        for number, table in enumerate(_parts(tables)):
            file.writelines(_csv_rows(table, number == 0, digits))


def write_tables_apart(tables: Mapping[Path, ColumnTable], task: Callable[[], Any]) -> Any:
    """Write tables like `write_csv`, encoded in parallel while ``task`` runs; return the result of ``task``. Nothing is
    written before it ends.
    """
    pieces = [(path, at) for path, table in tables.items() for at in range(0, max(len(table), 1), _ROWS_APART)]

    def encode(path: Path, at: int) -> Bytes:
        return np.frombuffer(b"".join(_csv_rows(tables[path].take(slice(at, at + _ROWS_APART)), at == 0)), np.uint8)

    done, *texts = side_by_side(task, *(partial(encode, *piece) for piece in pieces), apart=True)
    for path in tables:
        with whole_file(path) as part, part.open("wb") as file:
            file.writelines(text.data for (of, _), text in zip(pieces, texts, strict=True) if of == path)
    return done


def _csv_rows(table: ColumnTable, head: bool, digits: int | None = None) -> Iterator[bytes]:
    """Yield the rows of a table as CSV, some at a time; with ``head``, the names of columns first."""

    def encode(cells: list[Any]) -> list[str]:
        return csv_fields(
            [
                cell if isinstance(cell, str) else str(plain(int(cell) if isinstance(cell, bool) else cell, "", digits))
                for cell in cells
            ]
        )

    if head:
        yield (",".join(map(csv_field, table.columns)) + "\n").encode("utf-8", "replace")
    for heads, columns in _encoded(table, encode, dict.fromkeys(table.columns, ""), ","):
        yield "".join(_filled(columns, heads, ",", "%s\n")).encode("utf-8", "replace")


def document_head(schema: str, report: Report) -> dict[str, Any]:
    """Return the keys, with values, with which every document about a report begins."""
    return {"schema": schema, "report": describe_report(report), "nsysprof": __version__}


def write_document(
    document: Mapping[str, Any],
    path: Path,
    tables: Mapping[str, ColumnTable | pd.DataFrame] | None = None,
    errors: str = "replace",
) -> None:
    """Write a document as indented JSON, with tables as its last keys, one row object per line.

    Non-finite numbers are null. ``errors``: how to encode file names that are not UTF-8.
    """
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):  # mappings of other types, or numbers that are not finite
        text = json.dumps(_with_nulls(document), ensure_ascii=False)
    # Python's own indentation takes ten times as long.
    text = msgspec.json.format(text.encode("utf-8", "surrogatepass"), indent=1).decode("utf-8", "surrogatepass")
    text = text[: text.rindex("\n}")]
    with whole_file(path) as part, part.open("w", encoding="utf-8", errors=errors) as file:
        file.write(text)
        del text
        for name, table in (tables or {}).items():
            file.write(f',\n "{name}": [')
            for number, rows in enumerate(row for each in _parts(table) for row in _json_rows(each)):
                file.write(("," if number else "") + "\n  " + ",\n  ".join(rows))
            file.write("\n ]")
        file.write("\n}\n")


def write_answer(
    folder: Path,
    tables: Mapping[str, Tables],
    name: str,
    document: Mapping[str, Any],
    inside: Mapping[str, ColumnTable | pd.DataFrame] | None = None,
    *,
    digits: int | None = None,
    errors: str = "replace",
) -> list[Path]:
    """Write the files of a result into an existing folder and return their paths: first ``tables`` as CSV, by name.

    The document has the file name ``name`` and contains the tables ``inside``; other arguments are as in
    `write_document`.
    """
    for file, table in tables.items():
        write_csv(table, folder / file, digits=digits)
    write_document(document, folder / name, inside, errors)
    return [folder / file for file in (*tables, name)]


def _with_nulls(part: Any) -> Any:
    if type(part) in (str, int):  # most are
        return part
    if isinstance(part, Mapping):
        return {name: _with_nulls(value) for name, value in part.items()}
    return [_with_nulls(each) for each in part] if isinstance(part, list | tuple) else known(part)


def records(table: ColumnTable | pd.DataFrame, digits: int | None = None) -> list[dict[str, Any]]:
    """Return the rows for JSON: each cell by `plain`, None for non-finite numbers."""
    rows = table.records() if isinstance(table, ColumnTable) else table.to_dict("records")
    return [{str(name): plain(value, None, digits) for name, value in row.items()} for row in rows]


def plain(value: Any, missing: Any, digits: int | None = None) -> Any:
    """Simplify a cell: integral floats become integers, other floats get ``digits`` digits, and values that are not
    `known` become ``missing``.
    """
    value = known(value)
    if not isinstance(value, float):
        return missing if value is None else value
    if value.is_integer():
        return int(value)
    return value if digits is None else float(f"{value:.{digits}g}")


@contextmanager
def writing(folder: Path, hint: str = OTHER_FOLDER) -> Iterator[None]:
    """Raise `NsysprofError` with this hint if writing into the folder fails."""
    try:
        yield
    except OSError as error:
        raise NsysprofError(f"cannot write {error.filename or f'into {folder}'}: {error.strerror}", hint) from None


def _parts(tables: Tables) -> Iterator[ColumnTable]:
    several: Iterable[Any] = (tables,) if hasattr(tables, "columns") else tables
    for table in several:
        if isinstance(table, ColumnTable):
            yield table
        else:
            yield ColumnTable({str(name): table[name].to_numpy() for name in table.columns})


def _json_rows(table: ColumnTable) -> Iterator[list[str]]:
    """Yield the rows as JSON objects, some at a time."""
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    keys = {name: f"{encode(name)}: " for name in table.columns}
    for heads, columns in _encoded(table, lambda cells: [encode(known(cell)) for cell in cells], keys, ", "):
        yield _filled(columns, heads, ", ", "{%s}")


def _filled(columns: list[list[Any]], heads: list[str], between: str, row: str) -> list[str]:
    """Put encoded cells behind the heads of their columns, row by row; what all rows share is put in but once."""
    varied, cells = [], []
    for number, (head, column) in enumerate(zip(heads, columns, strict=True)):
        one = column[0]
        if number and one == column[-1] and column.count(one) == len(column):
            cells.append(f"{head}{one}".replace("%", "%%"))
        else:
            cells.append(head.replace("%", "%%") + "%s")
            varied.append(column)
    pattern = row % between.join(cells)
    return [pattern % values for values in zip(*varied, strict=True)]


def _encoded(
    table: ColumnTable, encode: Callable[[list[Any]], list[str]], heads: dict[str, str], between: str
) -> Iterator[tuple[list[str], list[list[Any]]]]:
    """Yield columns as lists of encoded cells, with their heads, some rows at a time; equal texts are encoded once.

    Columns that depend on one code are joined, with a cell for each code.
    """
    for first in range(0, len(table), ROWS_AT_ONCE):
        part, begun, columns = table.take(slice(first, first + ROWS_AT_ONCE)), [], []
        joined = {name: names for names in part.keyed for name in names}
        for name, column in part.columns.items():
            names = joined.get(name, (name,))
            if name != names[0]:
                continue
            if len(names) == 1:
                begun.append(heads[name])
                columns.append(_cells(column, encode))
                continue
            _, row, place = np.unique(part.keyed[names], return_index=True, return_inverse=True)
            each = [[f"{heads[one]}{cell}" for cell in _cells(part.columns[one][row], encode)] for one in names]
            texts = [between.join(cells) for cells in zip(*each, strict=True)]
            begun.append("")
            columns.append([texts[code] for code in place.tolist()])
        yield begun, columns


def _cells(column: Column, encode: Callable[[list[Any]], list[str]]) -> list[Any]:
    if isinstance(column, Texts):
        codes, words = column.codes.tolist(), column.words
        distinct = set(codes)
        if len(distinct) == len(codes):
            return encode([words[code] for code in codes])
        encoded = dict(zip(distinct, encode([words[code] for code in distinct]), strict=True))
        return [encoded[code] for code in codes]
    cells: list[Any] = column.tolist()
    if column.dtype.kind in "iu":
        return cells
    different = list(set(cells))
    encoded = dict(zip(different, encode(different), strict=True))
    return [encoded[cell] for cell in cells]
