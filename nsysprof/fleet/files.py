"""Writes the answer over all ranks as files for machines: CSV tables and one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof import __version__
from nsysprof.core.document import read_if_document
from nsysprof.core.files import MAX_TABLE_BYTES
from nsysprof.core.text import plural
from nsysprof.errors import NsysprofError
from nsysprof.fleet.answer import USUAL, Fleet
from nsysprof.formats.answers import FLEET_SCHEMA
from nsysprof.results.files import records, write_csv, write_document
from nsysprof.results.folder import ResultFolder

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


def check_unfinished(folder: Path, kept: str) -> None:
    """Refuse a folder in which answers of an unfinished run lie in the folder ``kept``."""
    unfinished = sum(1 for _ in (folder / kept).glob("*.npz"))
    if unfinished:
        raise NsysprofError(
            f"{folder} holds the answers of {plural(unfinished, 'report')} of an unfinished run",
            "--resume to go on with it, --force to begin anew, or -o OTHER-DIR",
        )


def fleet_folder(folder: Path, reports: Sequence[str], **more: Any) -> ResultFolder:
    """The folder of an answer about these reports; ``more`` are other fields of `ResultFolder`."""
    return ResultFolder(
        folder,
        "fleet",
        is_ours=lambda document: is_about(document.parent, reports),
        refusal="not written about these reports",
        hint=f"nsysprof fleet … -o OTHER-DIR   (or --force to replace them in {quote(str(folder))})",
        **more,
    )


def is_about(folder: Path, reports: Sequence[str]) -> bool:
    """Whether a folder holds an answer about the same reports."""
    earlier = read_if_document(folder / _DOCUMENT, FLEET_SCHEMA, most=MAX_TABLE_BYTES).get("reports")
    return isinstance(earlier, list) and set(map(str, earlier)) == set(reports)
