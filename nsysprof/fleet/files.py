"""Writes the answer over all ranks as files for machines: CSV tables and one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof import __version__
from nsysprof.core.side_file import MOST_TABLE_BYTES, read_json
from nsysprof.core.text import plural
from nsysprof.errors import NsysprofError
from nsysprof.fleet.answer import USUAL, Fleet
from nsysprof.results.files import records, write_csv, write_document
from nsysprof.results.folder import foreign_files, writable_around

FLEET_SCHEMA = "nsysprof-fleet/1"
FLEET_FILES = ("fleet.csv", "iterations.csv", "ranks.csv", "fleet.json")
_DOCUMENT = "fleet.json"
_DIGITS = 6


def write_fleet(fleet: Fleet, reports: Sequence[str], folder: Path) -> list[Path]:
    """Write ``fleet.csv``, ``iterations.csv``, ``ranks.csv`` and ``fleet.json`` into an existing folder.

    Each is there whole or not at all. ``reports`` are the names of all reports that were asked for. Returns the paths.
    """
    written = [folder / name for name in FLEET_FILES]
    # names of files may be no UTF-8: what is written of them then is what JSON has for it too
    write_document(fleet_document(fleet, reports), written[3], errors="backslashreplace")
    for frame, path in zip((fleet.paths, fleet.iterations, fleet.ranks), written, strict=False):
        write_csv(frame, path, digits=_DIGITS)
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
            f"{folder} holds the answers of {plural(unfinished, 'report')} of an unfinished run",
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
    try:
        document = read_json(folder / _DOCUMENT, MOST_TABLE_BYTES)
        return bool(document["schema"] == FLEET_SCHEMA and set(document["reports"]) == set(reports))
    except (OSError, ValueError, KeyError, TypeError):
        return False
