"""Read and write hardware counters of kernels: a table with a row per launch, and its record."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import msgspec
import numpy as np

from nsysprof.core.arrays import Floats, Ints, Ints32
from nsysprof.core.document import parse_as, parse_leniently, read_document
from nsysprof.core.files import MAX_TABLE_BYTES, read_small, undo_spreadsheet_safe
from nsysprof.core.text import join_first
from nsysprof.errors import NsysprofError
from nsysprof.trace.details import packed

COUNTER_SCHEMA = "nsysprof-counters/1"
_AGAIN = "nsysprof counters measures them"
_MAX_WARNINGS = 4
_DIGITS = 4  # of a percentage
_Whole = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
_Figure = Annotated[float, msgspec.Meta(ge=0, le=1e300)]


class Grid(int):
    """A grid such as ``32x32x8``, as a number that `grid_text` decodes; 0 if the text is empty."""

    @classmethod
    def read(cls, value: str) -> Grid:
        """Parse a grid; raises `ValueError` for any other text."""
        sides = value.split("x")
        if len(sides) > 3 or not all(side.isascii() and side.isdigit() and len(side) < 11 for side in sides):
            raise ValueError("is not a grid such as 32x32x8")
        return cls(packed(*map(int, sides)))


class CounterCells(msgspec.Struct, kw_only=True):
    """The columns of the table, in order: six identify a launch, the others are measurements, NaN if missing."""

    range: str = ""
    order: _Whole
    pid: _Whole
    kernel: Annotated[str, msgspec.Meta(pattern=r"\S")]
    grid: Grid = Grid()
    block: str = ""
    duration_ns: _Figure = math.nan
    dram_read_bytes: _Figure = math.nan
    dram_write_bytes: _Figure = math.nan
    l2_bytes: _Figure = math.nan
    tensor_instructions: _Figure = math.nan
    tensor_flops: _Figure = math.nan
    fp32_flops: _Figure = math.nan
    fp16_flops: _Figure = math.nan
    fp64_flops: _Figure = math.nan
    occupancy_percent: _Figure = math.nan
    dram_percent: _Figure = math.nan
    sm_percent: _Figure = math.nan
    l2_percent: _Figure = math.nan


_COLUMNS = CounterCells.__struct_fields__
METRICS = _COLUMNS[6:]


class _Csv(msgspec.Struct):
    sha256: str | None = None


class _Record(msgspec.Struct):
    csv: dict[str, Any] = {}
    csv_sha256: str | None = None
    environment: dict[str, Any] = {}
    warnings: list[str] = []
    cache_control: str | None = None

    @property
    def digest(self) -> str | None:
        """The SHA-256 of the table."""
        return parse_leniently(self.csv, _Csv).sha256 if self.csv else self.csv_sha256


class _Environment(msgspec.Struct):
    workload: dict[str, Any] = {}
    gpus: list[dict[str, Any]] = []


@dataclass(frozen=True)
class CounterRow:
    """A profiled launch. ``order``: the number of the launch within its range path and process; ``values``: by
    `METRICS`, or None.
    """

    path: str
    order: int
    pid: int
    kernel: str
    grid: str
    block: str
    values: Mapping[str, float | None]


def write_counter_csv(rows: Iterable[CounterRow], path: Path) -> None:
    """Write the table; counts are whole numbers, and cells without a measurement are empty."""
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for row in rows:
            numbers = (_text(row.values[name], name) for name in METRICS)
            writer.writerow((row.path, row.order, row.pid, row.kernel, row.grid, row.block, *numbers))


def _text(value: float | None, column: str) -> str:
    percent = column.endswith("_percent")
    return "" if value is None else f"{round(value, _DIGITS):g}" if percent else str(round(value))


@dataclass(frozen=True)
class CounterFile:
    """One counters file, a row per profiled launch, in file order.

    ``range`` and ``kernel`` int32: codes of ``ranges`` (range paths as recorded) and ``kernels`` (full names); ``pid``,
    ``grid`` int64: ``grid`` is for `grid_text`, 0 if unknown. ``values``: the `METRICS`, NaN if not measured. ``gpus``
    are the names of the GPUs, and ``libraries`` are the versions of driver and libraries. Both are from the record
    beside the file, and are empty if there is no record; ``doubts`` are warnings about this record. ``cold``: whether
    every kernel started with empty caches; None if not recorded.
    """

    path: Path
    ranges: list[str]
    range: Ints32
    pid: Ints
    kernels: list[str]
    kernel: Ints32
    grid: Ints
    values: Mapping[str, Floats]
    gpus: tuple[str, ...]
    libraries: Mapping[str, str]
    doubts: tuple[str, ...]
    cold: bool | None


def counters_beside(report: Path) -> Path | None:
    """Return the counters file beside a report (``<stem>.counters.csv``), or None if there is none."""
    path = report.with_name(f"{report.stem}.counters.csv")
    return path if os.path.lexists(path) else None


def read_counters(path: Path) -> CounterFile:
    """Read a counters file and the record beside it (``.json`` instead of ``.csv``).

    Raises `NsysprofError` if the file cannot be read, is not in the format of `nsysprof counters`, contains an
    impossible value (with line and column), or does not match its record.
    """
    try:
        content = read_small(path, MAX_TABLE_BYTES)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise NsysprofError(f"{path}: cannot read the counters: {error.strerror}", _AGAIN) from None
    except UnicodeDecodeError as error:
        raise NsysprofError(
            (f"{path} is not a table of nsysprof counters: byte {error.start:,} is not UTF-8"), _look(path)
        ) from None
    import hashlib  # noqa: PLC0415  loads OpenSSL, and most answers read no counters

    record = _read_record(path.with_suffix(".json"), hashlib.sha256(content).hexdigest(), path)
    columns, ranges, kernels = _columns(path, text)
    if not ranges:
        raise NsysprofError(f"{path}: holds no kernel", _AGAIN)
    environment = record.environment if record else {}
    gpus = _gpus(environment)
    return CounterFile(
        path=path,
        ranges=ranges,
        range=np.array(columns["range"], np.int32),
        pid=np.array(columns["pid"], np.int64),
        kernels=kernels,
        kernel=np.array(columns["kernel"], np.int32),
        grid=np.array(columns["grid"], np.int64),
        values={name: np.array(columns[name], np.float64) for name in METRICS},
        gpus=gpus,
        libraries=library_versions(environment),
        doubts=tuple(_doubts(path, record, gpus)),
        cold={"all": True, "none": False}.get(record.cache_control or "") if record else None,
    )


def _columns(path: Path, text: str) -> tuple[dict[str, list[Any]], list[str], list[str]]:
    """Return the checked columns, ``range`` and ``kernel`` as codes, and the texts of these codes."""
    ranges: dict[str, int] = {}
    kernels: dict[str, int] = {}
    rows: list[tuple[Any, ...]] = []
    last: dict[tuple[int, str], int] = {}
    for line, row in _rows(path, text):
        where = f"{path}, line {line:,}"
        cells = parse_as(row, CounterCells, where, _look(path), cells=True)
        if cells.order <= last.get((cells.pid, cells.range), -1):
            raise NsysprofError(
                f"{where}: order {cells.order} is not greater than the previous order in the same range and process",
                _look(path),
            )
        last[cells.pid, cells.range] = cells.order
        range_code = ranges.setdefault(cells.range, len(ranges))
        kernel_code = kernels.setdefault(cells.kernel, len(kernels))
        rows.append((range_code, cells.order, cells.pid, kernel_code, *msgspec.structs.astuple(cells)[4:]))
    columns = zip(*rows, strict=True) if rows else ([] for _ in _COLUMNS)
    return dict(zip(_COLUMNS, map(list, columns), strict=True)), list(ranges), list(kernels)


def _rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the lines that rows end in, and the cells of each row that are not empty."""
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        head = next(reader, [])
        missing = [name for name in _COLUMNS if name not in head]
        if missing:
            raise NsysprofError(
                f"{path} is not a table of nsysprof counters: line 1 lacks the "
                f"column{'s' * (len(missing) > 1)} {join_first(missing, 3)}",
                _look(path),
            )
        for cells in reader:
            if len(cells) != len(head):
                raise NsysprofError(
                    f"{path}, line {reader.line_num:,}: {len(cells)} cells for {len(head)} columns", _look(path)
                )
            row = zip(head, map(undo_spreadsheet_safe, cells), strict=True)
            yield reader.line_num, {name: cell for name, cell in row if cell}
    except csv.Error as error:
        raise NsysprofError(f"{path}, line {reader.line_num:,}: invalid CSV: {error}", _look(path)) from None


def _look(path: Path) -> str:
    return f"head -n 3 {quote(str(path))}"


def _read_record(path: Path, digest: str, table: Path) -> _Record | None:
    """Read the record, None where there is none; refused where it belongs to other counters."""
    if not os.path.lexists(path):
        return None
    record = parse_leniently(read_document(path, "record of counters", _AGAIN, COUNTER_SCHEMA), _Record)
    if record.digest is not None and record.digest != digest:
        raise NsysprofError(
            f"{path.name} does not belong to {table}: the SHA-256 of the table begins with "
            f"{digest[:12]}, not {record.digest[:12]}",
            f"put both files of one run into one folder, or use the table alone: mv {quote(str(path))} elsewhere",
        )
    return record


def _gpus(environment: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the GPUs: by the workload, or else by the machine."""
    known = parse_leniently(environment, _Environment)
    names = [known.workload.get("device")]
    if not isinstance(names[0], str) or names[0] == "cpu":
        names = [gpu.get("name") for gpu in known.gpus]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def library_versions(environment: dict[str, Any]) -> dict[str, str]:
    """Return the versions in an environment (of a run record or of counters) that determine which kernels run."""
    known = {**environment, **parse_leniently(environment, _Environment).workload}
    names = ("torch", "cuda", "cudnn", "triton", "flash_attn", "driver")
    return {name: str(known[name]) for name in names if known.get(name) not in (None, "")}


def _doubts(path: Path, record: _Record | None, gpus: Sequence[str]) -> Iterator[str]:
    if record is None:
        yield (
            f"{path} has no run record ({path.with_suffix('.json').name}), so the GPU and libraries are "
            "unknown and the table may be incomplete"
        )
        return
    yield from (f"{path}: {text}" for text in record.warnings[:_MAX_WARNINGS])
    if not gpus:
        yield f"{path}: the record does not name the GPU"
    elif record.digest is None:
        yield f"{path}: no SHA-256 in the record, so the table may be incomplete"
