"""Write the machine-readable results of a benchmark: the tables of `nsysprof.bench.tables`, and a database of runs."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from nsysprof import __version__
from nsysprof.bench.charts import BENCH_CHARTS, SELECTION, bench_charts
from nsysprof.bench.report import bench_report
from nsysprof.bench.results import BenchResults
from nsysprof.bench.tables import TABLES
from nsysprof.charts.chart import files_of, save_charts
from nsysprof.core.document import read_if_document
from nsysprof.core.files import MAX_TABLE_BYTES, open_regular
from nsysprof.errors import NsysprofError
from nsysprof.formats.samples import BENCH_SCHEMA, BenchPoint, GpuState
from nsysprof.results.files import records, write_csv, writing
from nsysprof.results.folder import ResultFolder
from nsysprof.trace.trace import Progress

BENCH_TABLES = tuple(each.file.removesuffix(".csv") for each in TABLES)
BENCH_FILES = (
    "samples.json",
    *(f"{name}.csv" for name in BENCH_TABLES),
    "report.md",
    *files_of((*BENCH_CHARTS, SELECTION)),
)
RESULTS_SCHEMA = "nsysprof-bench-results/1"
_OTHER_FILE = "--db FILE: a new file or an nsysprof bench database"
_TABLES = ("samples", "results", "runs")
_TYPES: dict[str, type] = {"i": int, "u": int, "b": int, "f": float}
_STATE = tuple(GpuState.__struct_fields__)
_SAMPLE_TYPES = dict.fromkeys(("latency_ns", *_STATE), float)


def bench_folder(folder: Path, source: Path | None = None, *, charts: bool, **more: Any) -> ResultFolder:
    """Create the folder of a benchmark; samples that are already there (``source``) are kept.

    ``more`` are other fields of `ResultFolder`.
    """

    def is_ours(document: Path) -> bool:
        return bool(read_if_document(document, BENCH_SCHEMA, most=MAX_TABLE_BYTES))

    kept = source is not None and (folder / source.name).exists() and (folder / source.name).samefile(source)
    wanted = [name for name in BENCH_FILES[kept:] if charts or not name.endswith(".png")]
    return ResultFolder(
        folder, "bench", BENCH_FILES, wanted, is_ours, "not overwritten", asks=True, kept=BENCH_FILES[:kept], **more
    )


def write_bench_results(results: BenchResults, folder: Path, *, charts: bool, progress: Progress) -> None:
    """Write tables, charts and report into an existing folder."""
    write_bench_tables(results, folder)
    drawn = bench_charts(results) if charts else ()
    if drawn:
        progress("drawing charts", 0)
        save_charts(drawn, results, folder)
    (folder / "report.md").write_text(bench_report(results, drawn), encoding="utf-8")


def write_bench_tables(results: BenchResults, folder: Path) -> list[Path]:
    """Write the tables as ``<name>.csv`` into an existing folder and return their paths.

    Times have one decimal, other figures six significant digits. Raises `NsysprofError` if a file cannot be written.
    """
    paths = [folder / f"{name}.csv" for name in BENCH_TABLES]
    with writing(folder):
        for name, path in zip(BENCH_TABLES, paths, strict=True):
            table, size = getattr(results, name), results.about.size
            write_csv(pd.DataFrame({column: _texts(column, table[column], size) for column in table.columns}), path)
    return paths


def bench_document(results: BenchResults) -> dict[str, Any]:
    """Return the tables for JSON, one key per table."""
    tables = {name: records(getattr(results, name)) for name in BENCH_TABLES}
    return {"schema": RESULTS_SCHEMA, "nsysprof": __version__, "run": results.samples.digest, **tables}


def _texts(name: str, values: pd.Series[Any], size: str) -> pd.Series[Any]:
    """The numbers as text: digits as measurements support, whole numbers unchanged, unknown values empty."""
    known = values.dropna()
    if values.dtype.kind == "f":
        if name.endswith("_ns"):
            known = known.round(1)
        elif name.endswith(f"_{size}") and (known == known.round()).all():
            known = known.astype(int)
        else:
            known = known.map(lambda value: float(f"{value:.6g}"))
    return pd.Series([str(value) for value in known], known.index, dtype=object).reindex(values.index, fill_value="")


def append_database(results: BenchResults, path: Path) -> bool:
    """Add the run to an SQLite database, which is created if missing; returns False if it already has the run.

    The table ``runs`` has a row per run; its key ``run`` is a hash of the run's file. The table ``results`` has a row
    per configuration and backend, with the columns of ``results.csv``. The table ``samples`` has every time in ns, for
    each ``set``: eager, aa, graph. A run counts only if it has a row in ``runs``. This row is written last, so rows of
    an interrupted call are replaced. Raises `NsysprofError` if the file is not a database or not writable.
    """
    import sqlite_utils  # noqa: PLC0415 (takes a tenth of a second)

    check_database_place(path)
    try:
        database = sqlite_utils.Database(sqlite3.connect(path))
        try:
            return _append(results, database, path)
        finally:
            database.conn.close()
    except (sqlite3.Error, OSError) as error:
        raise NsysprofError(f"cannot write {path}: {error}", "--db FILE, elsewhere") from None


def check_database_place(path: Path) -> None:
    """Raise `NsysprofError` if the file is not an SQLite database, or cannot be created there."""
    folder = path.absolute().parent
    try:
        if path.exists():
            with open_regular(path) as file:
                head = file.read(16)
            if head not in (b"", b"SQLite format 3\0"):
                raise NsysprofError(f"{path} is not an SQLite database", _OTHER_FILE)
    except OSError as error:
        raise NsysprofError(f"cannot write {path}: {error.strerror}", _OTHER_FILE) from None
    if not folder.is_dir():
        raise NsysprofError(f"cannot write {path}: there is no folder {folder}", "--db FILE, elsewhere")
    if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise NsysprofError(f"cannot write {path}: no permission", "--db FILE, elsewhere")


def _append(results: BenchResults, database: Any, path: Path) -> bool:
    run = results.samples.digest
    present = set(database.table_names())
    if present and not set(_TABLES) & present:
        some = ", ".join(sorted(present)[:4])
        raise NsysprofError(f"{path} is another program's database (tables: {some})", _OTHER_FILE)
    if "runs" in present and database["runs"].count_where("run = ?", [run]):
        return False
    for name in {"results", "samples"} & present:
        database[name].delete_where("run = ?", [run])
    key = ["run", "configuration", "backend"]
    rows = [{**_plain(row), "run": run} for row in results.results.to_dict("records")]
    # Stated, not guessed from the first rows: a column that is empty in one run has numbers in the next.
    types = {name: _TYPES.get(column.dtype.kind, str) for name, column in results.results.items()}
    database["results"].insert_all(rows, pk=tuple(key), columns=types, alter=True)
    every = (row for point in results.samples.points for row in _sample_rows(run, point))
    database["samples"].insert_all(every, pk=(*key, "set", "number"), columns=_SAMPLE_TYPES, alter=True)
    database["runs"].insert(_run_row(results), pk="run", alter=True)
    database["results"].create_index(["backend", results.about.size], if_not_exists=True)
    made = database.table_names()  # without samples there is no table of them
    for name in [each for each in ("results", "samples") if each in made]:
        if not any(each.column == "run" for each in database[name].foreign_keys):
            database[name].add_foreign_key("run", "runs", "run")
    return True


def _run_row(results: BenchResults) -> dict[str, Any]:
    samples = results.samples
    return {
        "run": samples.digest,
        "name": samples.name,
        "started": min((str(point.started) for point in samples.points if point.started), default=None),
        "workload": samples.workload,
        "device": samples.limits.name or samples.device,
        "points": len(samples.points),
        "command": samples.command,
        "environment_hash": samples.environment_hash,
        "environment": json.dumps(samples.environment, sort_keys=True),
        "plan": json.dumps(samples.plan, sort_keys=True),
        "file": str(samples.path).encode(errors="replace").decode(),
        "nsysprof": __version__,
    }


def _plain(row: dict[Any, Any]) -> dict[str, Any]:
    """The values in types of SQLite: None if missing, and Python's own numbers."""
    return {
        str(name): None if pd.isna(value) else value.item() if hasattr(value, "item") else value
        for name, value in row.items()
    }


def _sample_rows(run: str, point: BenchPoint) -> Iterator[dict[str, Any]]:
    for kind, (values, throttled) in point.sets.items():
        states = (kind == "eager" and point.gpu) or [None] * len(values)
        for number, (value, skip, state) in enumerate(zip(values, throttled, states, strict=True)):
            yield {
                "run": run,
                "configuration": point.shape.id,
                "backend": point.backend,
                "set": kind,
                "number": number,
                "latency_ns": float(value),
                "throttled": int(skip),
                **{name: getattr(state, name, None) for name in _STATE},
            }
