"""Write a report to files for other tools in one call, atomically and without overwriting other files."""

import errno
import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, TypeAlias

import numpy as np

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.record_source import RecordSource, record_source
from nsysprof.analyze.records import TABLES, Column, RecordTable, record_tables
from nsysprof.attribution.attribute import attribute
from nsysprof.core.columns import ColumnTable, marked
from nsysprof.core.document import read_if_document
from nsysprof.core.files import csv_field, open_regular, whole_file
from nsysprof.errors import NsysprofError
from nsysprof.export.perfetto import perfetto_protos, write_perfetto
from nsysprof.formats.answers import EXPORT_SCHEMA
from nsysprof.kernels.classify import load_rules
from nsysprof.results.files import write_document
from nsysprof.results.folder import ResultFolder, report_stem, writable_around
from nsysprof.trace.report import describe_report, open_report
from nsysprof.trace.trace import Progress, Report
from nsysprof.why.instance import PathPieces, critical_path
from nsysprof.why.why import Why, why

_ROWS_AT_ONCE = 50_000
_ROW_GROUP = 1 << 18  # rows
_DICTIONARY_BYTES = 1 << 26  # beyond it pyarrow writes texts out row by row


def write_csv_files(tables: Sequence[RecordTable], folder: Path) -> None:
    """Write each table as ``NAME.csv`` into an existing folder.

    Files are UTF-8 with commas, quotes if needed, and a header. Booleans are ``true`` and ``false``; missing values
    are empty.
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
    """Import the module ``pyarrow.parquet``; raises `NsysprofError` if pyarrow is not installed."""
    try:
        from pyarrow import parquet  # noqa: PLC0415 (an extra)
    except ImportError:
        raise NsysprofError(
            "writing Parquet needs the package pyarrow, which is not installed", "pip install 'nsysprof[parquet]'"
        ) from None
    return parquet


def write_parquet(tables: Sequence[RecordTable], about: Mapping[str, str], folder: Path) -> None:
    """Write each table as ``NAME.parquet`` into an existing folder: typed columns, dictionary-encoded texts, zstd.

    Row groups have 262,144 rows. The metadata of the file contains ``about``, and the metadata of each column contains
    the ``description`` of the column.
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
        fields = [pa.field(name, array.type, metadata={"description": about[name]}) for name, array in arrays.items()]
        yield pa.record_batch(list(arrays.values()), schema=pa.schema(fields, metadata=metadata))


def _array(pa: Any, column: Column) -> Any:
    if column.texts is None:
        return pa.array(column.values, mask=column.absent)
    codes = column.values.astype(np.int32, copy=False)
    used = marked(codes, len(column.texts) + 1)
    used = used[:-1]  # only texts of these rows: a row group holds its own dictionary
    place = np.cumsum(used, dtype=np.int32) - np.int32(1)
    texts = [column.texts[code].encode(errors="replace").decode() for code in np.flatnonzero(used).tolist()]
    absent = codes < 0
    coded = pa.array(place[codes] if len(place) else codes, mask=absent if absent.any() else None)
    return pa.DictionaryArray.from_arrays(coded, pa.array(texts, pa.string()))


File: TypeAlias = str | os.PathLike[str]
_ENDINGS = {"perfetto": ".pftrace", "parquet": ".parquet", "csv": ".csv"}
_NEEDS: dict[str, Callable[[], Any]] = {"perfetto": perfetto_protos, "parquet": pyarrow_parquet}
_DOCUMENT = "export.json"
_ELSEWHERE = "name another place with -o"
_HEAD = 1024  # bytes at the beginning of a trace, which hold these
_MARKS = (b"nsysprof.schema", EXPORT_SCHEMA.encode())


def export(
    report: File | Report,
    to: str,
    output: File | None = None,
    *,
    threads: str = "follow",
    graphs: str = "launched",
    ranges: str = "auto",
    rules: File | None = None,
    spreadsheet_safe: bool = False,
    force: bool = False,
    nsys: File | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a report as a ``perfetto`` trace, or as ``parquet`` or ``csv`` tables; return the path.

    The default is the report's name with the ending ``.pftrace``, ``.parquet`` or ``.csv`` in the current folder. A
    trace is a file, compressed if its name ends with ``.gz``; tables are a folder with ``ops``, ``launches``,
    ``ranges`` and ``instances`` (columns in `nsysprof.analyze.records`) and ``export.json``. ``threads``, ``graphs``,
    ``ranges``, ``rules`` and ``memory_limit`` (bytes) are as in `analyze`; ``spreadsheet_safe`` puts a ``'`` before
    names in CSV that a spreadsheet would treat as formulas. An earlier export is replaced only with ``force``; other
    files are never replaced.

    Raises `NsysprofError` if the report is unreadable, if the output exists or is not writable, or if the required
    package perfetto or pyarrow is missing (``nsysprof[perfetto]``, ``nsysprof[parquet]``).
    """
    opening = nullcontext(report) if isinstance(report, Report) else open_report(report, nsys=nsys)
    with opening as opened:
        loaded = load_rules(Path(rules) if rules is not None else None)
        default = Path(f"{report_stem(opened.path)}{_ENDINGS.get(to, '')}")
        place = Path(output) if output is not None else default
        _check(opened, to, place, default, force=force)
        attribution = attribute(opened, threads, progress, memory_limit, graphs, ranges)
        source = record_source(break_down(attribution, rules=loaded), progress)
        if to == "perfetto":
            source = replace(source, waits=_waits(why(attribution, rules=loaded)))
        if progress:
            progress(f"writing {to}", 0)
        return write_export(source, to, place, spreadsheet_safe=spreadsheet_safe, force=force)


def _waits(answer: Why) -> PathPieces | None:
    """The waits on the critical path of steps of which a finding is about a wait; None where there are none."""
    found = {path for path, each in answer.findings.items() if any(one.culprits for one in each)}
    paths = answer.columns("windows").texts("path")
    windows = np.flatnonzero(np.array([path in found for path in paths.words], bool)[paths.codes])
    if not len(windows):
        return None
    path = critical_path(answer, windows, compute=False)
    used = {name: path.waits.columns[name] for name in ("op", "claim")}  # there can be millions
    return replace(path, waits=ColumnTable(used))


def _check(report: Report, to: str, output: Path, default: Path, *, force: bool) -> None:
    """Refuse at once what could not be written, or not without overwriting something, before hours of work.

    Raises `NsysprofError` for an unknown format, a package that is missing, a place where nothing can be written, and
    an output that exists and is not to be replaced: what no export wrote, and what one wrote unless ``force``.
    """
    if to not in _ENDINGS:
        raise NsysprofError(f"unknown export format: {to!r}", f"choose {', '.join(_ENDINGS)}")
    if to in _NEEDS:
        _NEEDS[to]()
    inside = f"name another place, such as -o {quote(str(output / default))}"
    if to == "perfetto" and output.is_dir():
        raise NsysprofError(f"{output} is a folder, which export does not replace", inside)
    parent = output.absolute().parent
    if writable_around(parent, _ELSEWHERE) != parent:
        raise NsysprofError(f"{output}: there is no folder {output.parent}", f"mkdir -p {quote(str(output.parent))}")
    if not os.path.lexists(output):
        return
    for file in (report.path, report.file):
        if output.exists() and file.exists() and output.samefile(file):
            raise NsysprofError(f"{output} is the report itself, which is never overwritten", _ELSEWHERE)
    if to != "perfetto" and not output.is_dir():
        raise NsysprofError(f"{output} is a file, which export does not replace", _ELSEWHERE)
    if to == "perfetto" and not _is_trace(output):
        raise NsysprofError(f"{output} is not replaced, because nsysprof export did not write it", _ELSEWHERE)
    empty = to != "perfetto" and _is_empty(output, inside)
    if not empty and not force:
        raise NsysprofError(f"{output}: exists already, not overwritten", "--force, or name another place with -o")


def _is_empty(folder: Path, hint: str) -> bool:
    """Tell whether a folder is empty; `NsysprofError` where it holds what no export wrote."""
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise NsysprofError(f"{folder}: no permission to write there", _ELSEWHERE)
    there = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in there if name not in {_DOCUMENT, *_files("csv"), *_files("parquet")}]
    if not foreign and not read_if_document(folder / _DOCUMENT, EXPORT_SCHEMA):
        foreign = there
    if foreign:
        raise NsysprofError(f"{folder} has files that nsysprof export did not write: {foreign[0]}", hint)
    return not there


def _is_trace(path: Path) -> bool:
    """Tell whether a file is empty or a trace that an export wrote, which is marked in its first packet."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
        if head.startswith(b"\x1f\x8b"):
            with open_regular(path) as file, gzip.open(file) as unpacked:
                head = unpacked.read(_HEAD)
    except (OSError, EOFError, zlib.error):
        return False
    return not head or (head.startswith(b"\n") and all(text in head for text in _MARKS))


def _files(to: str) -> list[str]:
    return [f"{table.file}{_ENDINGS[to]}" for table in TABLES]


def write_export(
    source: RecordSource, to: str, output: Path, *, spreadsheet_safe: bool = False, force: bool = False
) -> Path:
    """Write a report as a Perfetto trace (a file, compressed if named ``.gz``) or as tables (a folder).

    An existing output is replaced only with ``force``, and only when the new output is complete. Raises `NsysprofError`
    if writing fails; no partial output is left.
    """
    if to == "perfetto":
        with _writing(output), whole_file(output, replace=force) as part, part.open("wb") as file:
            if output.name.endswith(".gz"):
                with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                    write_perfetto(source, packed)
            else:
                write_perfetto(source, file)
        return output
    results = ResultFolder(
        output,
        "export",
        possible=[_DOCUMENT, *_files("csv"), *_files("parquet")],
        wanted=[_DOCUMENT, *_files(to)],
        is_ours=lambda document: bool(read_if_document(document, EXPORT_SCHEMA)),
        refusal="not overwritten",
        hint="--force, or name another place with -o",
        asks=True,
        force=force,
        spreadsheet_safe=spreadsheet_safe,
        otherwise=_ELSEWHERE,
    )
    with results.making() as made, _writing(output):
        tables = record_tables(source)
        if to == "parquet":
            write_parquet(tables, source.about, made)
        else:
            write_csv_files(tables, made)
        _write_document(source, tables, made / _DOCUMENT)
    return output


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    """Turn a failure to write into a `NsysprofError` with a hint that fits."""
    try:
        yield
    except FileExistsError:  # it came meanwhile
        raise NsysprofError(f"{output}: exists already, not overwritten", "--force") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise NsysprofError(
            f"{output}: cannot be written: {why}",
            f"df -h {quote(str(output.absolute().parent))}" if full else _ELSEWHERE,
        ) from None


def _write_document(source: RecordSource, tables: list[RecordTable], path: Path) -> None:
    breakdown = source.breakdown
    document = {
        "schema": EXPORT_SCHEMA,
        "nsysprof": source.about["nsysprof.version"],
        "report": describe_report(source.trace.report),
        "options": {
            "threads": breakdown.attribution.threads,
            "graphs": breakdown.attribution.graphs,
            "ranges": breakdown.attribution.sources,
            **breakdown.options,
        },
        "totals": breakdown.totals,
        "ledger": breakdown.ledger.to_dict("records"),
        "warnings": list(breakdown.warnings),
        "tables": {table.declared.file: {"rows": table.rows, "columns": table.declared.about} for table in tables},
    }
    write_document(document, path)
