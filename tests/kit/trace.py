"""Makes tiny reports for tests: a literal of ranges, launches and ops becomes an nsys-shaped SQLite file.

    report = trace(
        Range("step", 0, 100),
        *launch_kernel("gemm", (10, 15), (20, 30), id=1),
    )

Times are ns; `process` is the pid and `thread` the tid that the file will show. A table exists only when it
has rows, as in a real export. What a test wants to be odd is said in `trace()`'s keywords, see `write`.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kit.events import *  # noqa: F403 (tests take rows and `write` from here)
from tests.kit.events import OPS, VM, CudaDevice, Gpu, Item, Items, Process, Strings, Text
from tests.kit.schema import STYLES, TABLES, Column, Style


def write(
    path: Path,
    items: Iterable[Items],
    *,
    style: str = "2025.3",
    gpus: bool = True,
    processes: bool = True,
    duration: int | None = None,
    metadata: Mapping[str, Text | None] | None = None,
    capture: Mapping[str, Text | None] | None = None,
    strings: Sequence[Text] = (),
    empty_tables: Sequence[str] = (),
    without_tables: Sequence[str] = (),
    drop_columns: Mapping[str, Sequence[str]] | None = None,
    extra_columns: Mapping[str, Mapping[str, str]] | None = None,
    pragmas: Sequence[str] = (),
    sql: Sequence[str] = (),
) -> Path:
    """Write one report and return its path.

    `style` is a key of `tests.schema.STYLES`. GPUs (one per device number of the ops) and processes come
    from the items unless some are given by hand; `gpus=False` and `processes=False` leave them out.
    `duration` is ANALYSIS_DETAILS' (default: the last end). `metadata` and `capture` add to the metadata of
    the export and of the capture, or replace it. `strings` are put into StringIds first. `empty_tables`
    exist without rows (`["*"]`: every table known), `without_tables` do not exist at all. `drop_columns` and
    `extra_columns` change a table's columns. `pragmas` (such as `page_size=512`) are set before the first
    table; `sql` is run at the end. Text may be given as bytes: then it is stored as it is, UTF-8 or not.
    """
    generation = STYLES[style]
    words = Strings()
    for value in strings:
        words(value)
    given = [item for group in items for item in (group if isinstance(group, tuple) else (group,))]
    tables: dict[str, list[dict[str, Any]]] = {}
    for table, row in (pair for item in given for pair in item.rows(words)):
        tables.setdefault(table, []).append(row)
    for table, rows in _derived(given, tables, generation, gpus, processes, duration, metadata, capture).items():
        tables.setdefault(table, rows)
    tables["StringIds"] = [{"id": id, "value": value} for value, id in words.ids.items()]
    names = list(TABLES) if "*" in empty_tables else list(empty_tables)
    for table in names:
        if table not in generation.lacks_tables:
            tables.setdefault(table, [])
    for table in without_tables:
        tables.pop(table, None)
    _write_tables(path, tables, generation, drop_columns or {}, extra_columns or {}, pragmas, sql)
    return path


def _derived(
    items: list[Item],
    tables: Mapping[str, list[dict[str, Any]]],
    style: Style,
    gpus: bool,
    processes: bool,
    duration: int | None,
    metadata: Mapping[str, Text | None] | None,
    capture: Mapping[str, Text | None] | None,
) -> dict[str, list[dict[str, Any]]]:
    """The tables that nsys fills by itself: devices, processes, session, metadata."""
    made: dict[str, list[dict[str, Any]]] = {}
    ops = [item for item in items if isinstance(item, OPS)]
    extra: list[Item] = []
    if gpus:
        extra += [Gpu(device) for device in sorted({op.device for op in ops})]
        pairs = sorted({(op.process, op.device) for op in ops if op.process is not None})
        if "TARGET_INFO_CUDA_DEVICE" not in style.lacks_tables and "TARGET_INFO_GPU" not in tables:
            extra += [CudaDevice(device, device, process) for process, device in pairs]
    if processes and "PROCESSES" not in style.lacks_tables:
        pids = {getattr(item, "process", None) for item in items}
        extra += [Process(pid) for pid in sorted(pid for pid in pids if pid is not None)]
    for table, row in (pair for item in extra for pair in item.rows(Strings())):
        made.setdefault(table, []).append(row)
    last = max((row["end"] for rows in tables.values() for row in rows if row.get("end") is not None), default=0)
    length = last if duration is None else duration
    made["ANALYSIS_DETAILS"] = [{"globalVid": VM << 48, "duration": length, "startTime": 0, "stopTime": length}]
    if style.export_table:
        export: dict[str, Text | None] = {
            "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
            "EXPORT_PRODUCT_VERSION": style.version,
            "EXPORT_SCHEMA_VERSION": style.schema,
            **(metadata or {}),
        }
        made[style.export_table] = [{"name": name, "value": value} for name, value in export.items()]
    if style.capture_table:
        captured: dict[str, Text | None] = {"DEVICE_ID": "Local (CLI)", **(capture or {})}
        made[style.capture_table] = [{"name": name, "value": value} for name, value in captured.items()]
    return made


def _columns(
    table: str, rows: list[dict[str, Any]], style: Style, dropped: Sequence[str], extra: Mapping[str, str]
) -> dict[str, Column]:
    """The columns a table gets; one that no schema here knows has those of its rows."""
    if table not in TABLES:
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: Column(_type([row.get(name) for row in rows]), False) for name in names}
    columns = {name: column for name, column in style.columns(table).items() if name not in dropped}
    return columns | {name: Column(kind, False) for name, kind in extra.items()}


def _type(values: list[Any]) -> str:
    if any(isinstance(value, str | bytes) for value in values):
        return "TEXT"
    return "REAL" if any(isinstance(value, float) for value in values) else "INTEGER"


def _write_tables(
    path: Path,
    tables: Mapping[str, list[dict[str, Any]]],
    style: Style,
    drop_columns: Mapping[str, Sequence[str]],
    extra_columns: Mapping[str, Mapping[str, str]],
    pragmas: Sequence[str],
    sql: Sequence[str],
) -> None:
    connection = sqlite3.connect(path)
    try:
        # no test outlives a crash of the machine: waiting for the disk would take most of the time
        for pragma in ("synchronous = OFF", "journal_mode = MEMORY", *pragmas):
            connection.execute(f"PRAGMA {pragma}")
        for table, rows in tables.items():
            dropped, extra = drop_columns.get(table, ()), extra_columns.get(table, {})
            columns = _columns(table, rows, style, dropped, extra)
            declared = ", ".join(_declare(table, name, column) for name, column in columns.items())
            connection.execute(f'CREATE TABLE "{table}" ({declared})')
            new_names = style.renames.get(table, {})
            for row in rows:
                named = {new_names.get(name, name): value for name, value in row.items()}
                _insert(connection, table, columns, named)
        for statement in sql:
            connection.execute(statement)
        connection.commit()
    finally:
        connection.close()


def _declare(table: str, name: str, column: Column) -> str:
    if (table, name) == ("StringIds", "id"):
        return '"id" INTEGER NOT NULL PRIMARY KEY'
    return f'"{name}" {column.type}{" NOT NULL" if column.required else ""}'


def _insert(connection: sqlite3.Connection, table: str, columns: Mapping[str, Column], row: Mapping[str, Any]) -> None:
    """Insert a row; what the table has no column for is left out, as the exporter of that time had to."""
    unknown = [name for name in row if name not in columns and name not in TABLES.get(table, {})]
    if unknown:
        raise ValueError(f"{table} has no column {', '.join(unknown)}")
    values = {name: row[name] for name in columns if name in row}
    for name, column in columns.items():
        if column.required and values.get(name) is None:
            values[name] = "" if column.type == "TEXT" else 0
    marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, bytes) else "?" for value in values.values())
    names = ", ".join(f'"{name}"' for name in values)
    connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', list(values.values()))
