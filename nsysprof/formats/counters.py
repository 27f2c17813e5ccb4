"""Reads hardware counters of kernels as `nsysprof counters` writes them: a row per launch, and the record beside it."""

from __future__ import annotations

import csv
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.csv_text import as_recorded
from nsysprof.core.side_file import MOST_TABLE_BYTES, read_json, read_small
from nsysprof.errors import NsysprofError
from nsysprof.statistics.distributions import Floats
from nsysprof.trace.details import grid_number

COUNTER_SCHEMA = "nsysprof-counters/1"
METRICS = (
    *("duration_ns", "dram_read_bytes", "dram_write_bytes", "l2_bytes"),
    *("tensor_instructions", "tensor_flops", "fp32_flops", "fp16_flops", "fp64_flops"),
    *("occupancy_percent", "dram_percent", "sm_percent", "l2_percent"),
)
_NAMED = ("range", "order", "pid", "kernel", "grid", "block")
_AGAIN = "nsysprof counters measures them"
_MOST_SAID = 4


@dataclass(frozen=True)
class CounterFile:
    """One file of counters, a row per profiled launch, in the order of the file.

    ``range`` and ``kernel`` int32: codes of ``ranges`` (range paths as they were recorded) and ``kernels`` (full
    names); ``pid``, ``grid`` int64, the latter for `grid_text`, 0 where it is not told. ``values``: the `METRICS`, NaN
    where they were not measured. ``gpus`` are the names of the GPUs and ``libraries`` the versions of driver and
    libraries by the record beside the file, empty where there is none; ``doubts`` are what it warns of or lacks.
    ``cold`` says that every kernel began with empty caches, None where the record does not tell.
    """

    path: Path
    ranges: list[str]
    range: NDArray[np.int32]
    pid: NDArray[np.int64]
    kernels: list[str]
    kernel: NDArray[np.int32]
    grid: NDArray[np.int64]
    values: Mapping[str, Floats]
    gpus: tuple[str, ...]
    libraries: Mapping[str, str]
    doubts: tuple[str, ...]
    cold: bool | None


def counters_beside(report: Path) -> Path | None:
    """The counters beside a report, ``<stem>.counters.csv``; None where there are none."""
    path = report.with_name(f"{report.stem}.counters.csv")
    return path if os.path.lexists(path) else None


def read_counters(path: Path) -> CounterFile:
    """Read counters and the record beside them, ``.json`` in place of ``.csv``.

    Raises `NsysprofError` for a file that cannot be read, is not what `nsysprof counters` writes, holds a value that
    cannot be (line and column are named), or is not the file that its record was written for.
    """
    try:
        content = read_small(path, MOST_TABLE_BYTES)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise NsysprofError(f"{path}: cannot read the counters: {error.strerror}", _AGAIN) from None
    except UnicodeDecodeError as error:
        raise NsysprofError(
            f"{path}: not UTF-8 (byte {error.start:,}), so no counters", _look(path)
        ) from None
    record = _read_record(path.with_suffix(".json"), hashlib.sha256(content).hexdigest(), path)
    columns, ranges, kernels = _columns(path, text)
    if not ranges:
        raise NsysprofError(f"{path}: holds no kernel", _AGAIN)
    gpus, libraries = _environment(record)
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
        libraries=libraries,
        doubts=tuple(_doubts(path, record, gpus)),
        cold={"all": True, "none": False}.get(str(record.get("cache_control"))),
    )


# ---- the table


def _columns(path: Path, text: str) -> tuple[dict[str, list[Any]], list[str], list[str]]:
    """The checked columns, ``range`` and ``kernel`` as codes, and the texts that these count in."""
    ranges: dict[str, int] = {}
    kernels: dict[str, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in (*_NAMED, *METRICS)}
    last: dict[tuple[int, str], int] = {}
    for line, row in _rows(path, text):
        cell = _Cells(path, line, row)
        order, pid = cell.count("order"), cell.count("pid")
        if order <= last.get((pid, row["range"]), -1):
            raise cell.wrong("order", "does not come after the one before it in its range and process")
        last[pid, row["range"]] = order
        columns["range"].append(ranges.setdefault(row["range"], len(ranges)))
        columns["kernel"].append(kernels.setdefault(cell.text("kernel"), len(kernels)))
        columns["pid"].append(pid)
        columns["grid"].append(cell.grid("grid"))
        for name in METRICS:
            columns[name].append(cell.number(name))
    return columns, list(ranges), list(kernels)


def _rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows with the lines that they end in."""
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        head = next(reader, [])
        missing = [name for name in (*_NAMED, *METRICS) if name not in head]
        if missing:
            raise NsysprofError(
                f"{path}: no counters of nsysprof: line 1 lacks the column{'s' * (len(missing) > 1)}"
                f" {_some(missing)}",
                _look(path),
            )
        for cells in reader:
            if len(cells) != len(head):
                raise NsysprofError(
                    f"{path}, line {reader.line_num:,}: {len(cells)} cells for {len(head)} columns",
                    _look(path),
                )
            yield reader.line_num, dict(zip(head, map(as_recorded, cells), strict=True))
    except csv.Error as error:
        raise NsysprofError(
            f"{path}, line {reader.line_num:,}: no CSV any more: {error}", _look(path)
        ) from None


@dataclass(frozen=True)
class _Cells:
    """A row, and where it stands."""

    path: Path
    line: int
    row: Mapping[str, str]

    def wrong(self, column: str, why: str) -> NsysprofError:
        return NsysprofError(
            f"{self.path}, line {self.line:,}: {column} {self.row[column]!r:.40} {why}", _look(self.path)
        )

    def text(self, column: str) -> str:
        if not self.row[column].strip():
            raise self.wrong(column, "is empty")
        return self.row[column]

    def count(self, column: str) -> int:
        text = self.row[column]
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise self.wrong(column, "is no whole number")
        return int(text)

    def grid(self, column: str) -> int:
        """As one number, 0 for none."""
        sides = self.row[column].split("x") if self.row[column] else []
        if len(sides) > 3 or not all(side.isascii() and side.isdigit() and len(side) < 11 for side in sides):
            raise self.wrong(column, "is no grid such as 32x32x8")
        return grid_number(*map(int, sides)) if sides else 0

    def number(self, column: str) -> float:
        """A number from zero up, NaN for an empty cell."""
        text = self.row[column]
        if not text:
            return math.nan
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, "is no number") from None
        if not 0 <= value < math.inf:
            raise self.wrong(column, "cannot be")
        return value


def _look(path: Path) -> str:
    return f"head -n 3 {quote(str(path))}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


# ---- the record


def _read_record(path: Path, digest: str, table: Path) -> dict[str, Any]:
    """The record, empty where there is none; refused where it is of something else than these counters."""
    try:
        read = read_json(path, parse_constant=lambda name: None)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise NsysprofError(f"{path}: cannot read the record: {error.strerror}", _AGAIN) from None
    except ValueError as error:
        raise NsysprofError(f"{path}: not JSON, so no record of counters: {error}", _look(path)) from None
    found = read.get("schema") if isinstance(read, dict) else None
    if found != COUNTER_SCHEMA:
        raise NsysprofError(
            f"{path}: its schema is {found!r}, not {COUNTER_SCHEMA!r}", "nsysprof counters writes both files"
        )
    recorded = _recorded_digest(read)
    if recorded is not None and recorded != digest:
        raise NsysprofError(
            f"{table} is not the file that {path.name} was written for: its SHA-256 begins with {digest[:12]},"
            f" the record says {recorded[:12]}",
            f"put both files of one run side by side, or use the table alone: mv {quote(str(path))} elsewhere",
        )
    return dict(read)


def _recorded_digest(record: Mapping[str, Any]) -> str | None:
    facts = record.get("csv")
    found = facts.get("sha256") if isinstance(facts, dict) else record.get("csv_sha256")
    return found if isinstance(found, str) else None


def _environment(record: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The GPUs by name and the versions that the record tells."""
    environment = record.get("environment")
    environment = environment if isinstance(environment, dict) else {}
    workload = environment.get("workload")
    workload = workload if isinstance(workload, dict) else {}
    gpus = environment.get("gpus")
    names = [workload.get("device")]
    if not isinstance(names[0], str) or names[0] == "cpu":
        listed = gpus if isinstance(gpus, list) else []
        names = [gpu.get("name") for gpu in listed if isinstance(gpu, dict)]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str))), library_versions(
        environment
    )


def library_versions(environment: Mapping[str, Any]) -> dict[str, str]:
    """The versions in an environment, of a run record or of counters, that decide which kernels run."""
    workload = environment.get("workload")
    said = {**environment, **(workload if isinstance(workload, dict) else {})}
    names = ("torch", "cuda", "cudnn", "triton", "flash_attn", "driver")
    return {name: str(said[name]) for name in names if said.get(name) not in (None, "")}


def _said(record: Mapping[str, Any]) -> list[str]:
    """What whoever measured warns of."""
    warnings = record.get("warnings")
    return [text for text in warnings if isinstance(text, str)] if isinstance(warnings, list) else []


def _doubts(path: Path, record: Mapping[str, Any], gpus: Sequence[str]) -> Iterator[str]:
    yield from (f"{path}: {text}" for text in _said(record)[:_MOST_SAID])
    if not record:
        yield (
            f"{path}: no record {path.with_suffix('.json').name} beside it, so that nobody knows on which GPU, with"
            " which libraries, and whether the table is whole"
        )
    elif not gpus:
        yield f"{path}: its record does not say which GPU it was measured on"
    elif _recorded_digest(record) is None:
        yield f"{path}: its record has no SHA-256 of the table, so that nobody knows whether it is whole"
