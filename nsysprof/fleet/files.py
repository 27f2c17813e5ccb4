"""The files of a fleet: CSV tables, one JSON document, and their folder."""

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof import __version__
from nsysprof.charts.chart import files_of
from nsysprof.core.document import read_if_document
from nsysprof.core.files import MAX_TABLE_BYTES
from nsysprof.fleet.answer import Fleet
from nsysprof.fleet.charts import FLEET_CHARTS
from nsysprof.fleet.inputs import without_ending
from nsysprof.fleet.tables import ITERATIONS, PATHS, RANKS, USUAL
from nsysprof.formats.answers import FLEET_SCHEMA
from nsysprof.results.files import records, write_answer
from nsysprof.results.folder import PAGE, ResultFolder

_DOCUMENT = "fleet.json"
FLEET_FILES = (PATHS.file, ITERATIONS.file, RANKS.file, _DOCUMENT)
_DIGITS = 6


def write_fleet(fleet: Fleet, reports: Sequence[str], folder: Path) -> list[Path]:
    """Write ``fleet.csv``, ``iterations.csv``, ``ranks.csv`` and ``fleet.json`` into an existing folder.

    Each file is written atomically. ``reports`` are the names of all requested reports. Returns the paths.
    """
    frames = {PATHS: fleet.paths, ITERATIONS: fleet.iterations, RANKS: fleet.ranks}
    tables = {table.file: table.of(frame) for table, frame in frames.items()}
    # names of files may be no UTF-8: they are written then as JSON escapes them
    how: dict[str, Any] = {"digits": _DIGITS, "errors": "backslashreplace"}
    return write_answer(folder, tables, _DOCUMENT, _document(fleet, reports), **how)


def _document(fleet: Fleet, reports: Sequence[str]) -> dict[str, Any]:
    """Collect all but the rows of ``fleet.csv`` and ``iterations.csv`` as JSON can hold it; times are integer ns."""
    waiting = fleet.waiting
    return {
        "schema": FLEET_SCHEMA,
        "nsysprof": __version__,
        "reports": list(reports),
        "options": fleet.options,
        "ranks_told_by": fleet.source,
        "clock": fleet.clock,
        "iteration_path": fleet.iteration_path,
        "findings": list(fleet.findings),
        "warnings": list(fleet.warnings),
        "failures": [{"report": each.report, "reason": each.reason, "hint": each.hint} for each in fleet.failures],
        "collectives": {
            "matched": waiting.matched,
            "unmatched": waiting.unmatched,
            "clock_spread_ns": waiting.spread_ns,
        },
        "ranks": records(fleet.ranks, _DIGITS),
        "usual": {
            "left_out": list(fleet.left_out),
            "ranks": records(fleet.usual[[name for name in fleet.usual if name in USUAL]], _DIGITS),
        },
        "waiting": records(waiting.each, _DIGITS),
        "spread": records(fleet.spread, _DIGITS),
        "split": records(fleet.split, _DIGITS),
        "outliers": records(fleet.outliers, _DIGITS),
    }


def fleet_folder(
    folder: Path, reports: Sequence[str], *, charts: bool = False, html: bool = False, **more: Any
) -> ResultFolder:
    """Describe the result folder for these reports; ``more`` are other fields of `ResultFolder`."""
    drawn = files_of(FLEET_CHARTS)
    return ResultFolder(
        folder,
        "fleet",
        possible=(*reversed(FLEET_FILES), *drawn, PAGE),
        wanted=[*FLEET_FILES, *(drawn if charts else ()), *((PAGE,) if html else ())],
        is_ours=lambda document: _is_about(document.parent, reports),
        refusal="not written about these reports",
        hint=f"nsysprof fleet … -o OTHER-DIR   (or --force to replace them in {quote(str(folder))})",
        **more,
    )


def default_folder(names: Sequence[str], reports: Sequence[str]) -> Path:
    """Name the folder after the given folder or report. For several reports, use their common folder and the common
    start of their names.

    An earlier ``reports.fleet`` for these reports is reused.
    """
    earlier = Path("reports.fleet")
    if len(names) == 1 and Path(names[0]).is_dir():
        return Path(f"{Path(os.path.normpath(Path(names[0]).absolute())).name or 'reports'}.fleet")
    if _is_about(earlier, reports):
        return earlier
    paths = [without_ending(name if "://" in name else os.path.normpath(Path(name).absolute())) for name in reports]
    if len(paths) == 1:
        return Path(f"{paths[0].rpartition('/')[2] or 'reports'}.fleet")
    folder, _, start = os.path.commonprefix(paths).rpartition("/")  # noqa: RUF071  names begin alike, not only folders
    parts = (folder.rpartition("/")[2], start.rstrip("0123456789_-. "))
    return Path(f"{'-'.join(filter(None, parts)) or 'reports'}.fleet")


def _is_about(folder: Path, reports: Sequence[str]) -> bool:
    earlier = read_if_document(folder / _DOCUMENT, FLEET_SCHEMA, most=MAX_TABLE_BYTES).get("reports")
    return isinstance(earlier, list) and set(map(str, earlier)) == set(reports)
