"""Writes the answer over all ranks as files for machines: CSV tables and one JSON document."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof import __version__
from nsysprof.core.document import known_document
from nsysprof.core.final_name import whole_file
from nsysprof.core.side_file import MOST_TABLE_BYTES
from nsysprof.errors import NsysprofError
from nsysprof.fleet.answer import USUAL, Fleet
from nsysprof.formats.answers import FLEET_SCHEMA
from nsysprof.results.analysis_files import write_csv
from nsysprof.results.folder import foreign_files, writable_around

FLEET_FILES = ("fleet.csv", "iterations.csv", "ranks.csv", "fleet.json")
_DOCUMENT = "fleet.json"


def write_fleet(fleet: Fleet, reports: Sequence[str], folder: Path) -> list[Path]:
    """Write ``fleet.csv``, ``iterations.csv``, ``ranks.csv`` and ``fleet.json`` into an existing folder.

    Each is there whole or not at all. ``reports`` are the names of all reports that were asked for. Returns the paths.
    """
    written = [folder / name for name in FLEET_FILES]
    text = json.dumps(fleet_document(fleet, reports), indent=1, ensure_ascii=False, allow_nan=False)
    with whole_file(written[3]) as part:
        # names of files may be no UTF-8: what is written of them then is what JSON has for it too
        part.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
    for frame, path in zip((fleet.paths, fleet.iterations, fleet.ranks), written, strict=False):
        write_csv(_for_csv(frame), path)
    return written


def fleet_document(fleet: Fleet, reports: Sequence[str]) -> dict[str, Any]:
    """All but the rows of ``fleet.csv`` and ``iterations.csv`` as JSON can hold it; times are integer ns."""
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
        "failures": [
            {"report": each.report, "reason": each.reason, "hint": each.hint} for each in fleet.failures
        ],
        "collectives": {
            "matched": waiting.matched,
            "unmatched": waiting.unmatched,
            "clock_spread_ns": waiting.spread_ns,
        },
        "ranks": _records(fleet.ranks),
        "usual": {
            "left_out": list(fleet.left_out),
            "ranks": _records(fleet.usual[[name for name in fleet.usual if name in USUAL]]),
        },
        "waiting": _records(waiting.each),
        "spread": _records(fleet.spread),
        "split": _records(fleet.split),
        "outliers": _records(fleet.outliers),
    }


def check_fleet_folder(
    folder: Path, names: Sequence[str], reports: Sequence[str], *, force: bool, kept: str, resume: bool
) -> bool:
    """Whether the folder holds an earlier answer about the same reports; it need not exist, and is not made here.

    ``kept`` is the folder in it where answers of an unfinished run lie. Raises `NsysprofError` where files of the given
    names are somebody else's, or an unfinished run is there, and neither ``force`` nor ``resume`` says what to do.
    """
    writable_around(folder)
    unfinished = sum(1 for _ in (folder / kept).glob("*.npz"))
    if unfinished and not resume and not force:
        raise NsysprofError(
            f"{folder} holds the answers of {unfinished:,} report{'' if unfinished == 1 else 's'} of an unfinished run",
            "--resume to go on with it, --force to begin anew, or -o OTHER-DIR",
        )
    ours = is_about(folder, reports)
    foreign = foreign_files(folder, names, "fleet", ours=ours)
    if foreign and not force:
        raise NsysprofError(
            f"{folder} holds {', '.join(foreign)}, not written about these reports",
            f"nsysprof fleet … -o OTHER-DIR   (or --force to replace them in {quote(str(folder))})",
        )
    return ours


def is_about(folder: Path, reports: Sequence[str]) -> bool:
    """Whether a folder holds an answer about the same reports."""
    earlier = known_document(folder / _DOCUMENT, FLEET_SCHEMA, most=MOST_TABLE_BYTES).get("reports")
    return isinstance(earlier, list) and set(map(str, earlier)) == set(reports)


def _for_csv(frame: pd.DataFrame) -> pd.DataFrame:
    """The same with plain cells: whole numbers as such, six digits of others, nothing for what is not a number."""
    columns = {}
    for name in frame.columns:
        values = frame[name]
        if values.dtype.kind in "fb":
            values = pd.Series(_cells(values.to_numpy(np.float64)), dtype=object)
        columns[name] = values
    return pd.DataFrame(columns)


def _cells(values: NDArray[np.float64]) -> NDArray[Any] | list[Any]:
    known = np.isfinite(values)
    if (values[known] % 1 == 0).all():
        found: NDArray[Any] = np.where(known, values, 0).astype(np.int64).astype(object)
        found[~known] = ""
        return found
    return [_plain(value, "") for value in values.tolist()]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(name): _plain(value, None) for name, value in row.items()} for row in frame.to_dict("records")
    ]


def _plain(value: Any, missing: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return missing
        return int(value) if value.is_integer() else float(f"{value:.6g}")
    return value
