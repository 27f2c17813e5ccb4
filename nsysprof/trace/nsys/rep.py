"""Turns a ``.nsys-rep`` or ``.qdrep`` into an SQLite file with the installed nsys."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from nsysprof.errors import NsysprofError
from nsysprof.tools.nsight import version_numbers
from nsysprof.tools.nsys import ENVIRONMENT, Nsys, all_nsys, export, find_nsys, header_version, newer_than
from nsysprof.trace.nsys.identify import changed, stamp

__all__ = ["export_report"]


def export_report(
    path: Path, *, export_to: Path | None = None, nsys: Path | None = None
) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """The SQLite file that a report was exported to, and the temporary folder that holds it.

    Where ``export_to`` is given (a file, or a folder that exists: then the report's name is kept) the export
    stays there and the folder is None. Raises `NsysprofError` without nsys, where that is too old, where the
    file exists already, and where nsys fails.
    """
    if export_to is not None:
        out = export_to / f"{path.stem}.sqlite" if export_to.is_dir() else export_to
        _export(path, out, nsys)
        return out, None
    folder = tempfile.TemporaryDirectory(prefix="nsysprof-", ignore_cleanup_errors=True)
    try:
        out = Path(folder.name, f"{path.stem}.sqlite")
        _export(path, out, nsys)
    except BaseException:
        folder.cleanup()
        raise
    return out, folder


def _export(path: Path, out: Path, nsys: Path | None) -> None:
    chosen = _choose(path, nsys)
    seen = stamp(path)
    export(chosen, path, out)
    if stamp(path) != seen:
        out.unlink()
        raise changed(path)


def _choose(path: Path, named: Path | None) -> Nsys:
    """The nsys to export with: the usual one, or another installed one where it is too old for the report."""
    try:
        usual = find_nsys(named)
    except NsysprofError as error:
        raise _none(path, error) from None
    made_by = header_version(path)
    if made_by is None or not _too_old(usual, made_by):
        return usual
    others = (
        []
        if named or os.environ.get(ENVIRONMENT)
        else [nsys for nsys in all_nsys() if not _too_old(nsys, made_by)]
    )
    if not others:
        raise newer_than(path, made_by, usual)
    return others[0]


def _too_old(nsys: Nsys, made_by: str) -> bool:
    # within one release (2025.3) nsys decides itself
    return nsys.version[:2] < version_numbers(made_by)[:2]


def _none(path: Path, error: NsysprofError) -> NsysprofError:
    exported = path.with_suffix(".sqlite")
    hint = f"read its export, which needs no nsys: {exported}" if exported.is_file() else error.hint
    return NsysprofError(f"{path}: must be exported by nsys first: {error.message}", hint)
