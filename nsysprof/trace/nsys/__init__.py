"""Opens a report file read-only and says what it is; the tables themselves are read by the modules beside."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nsysprof.tools.nsys import header_version
from nsysprof.trace.nsys.about import About, Diagnostic, Gpu, read_about
from nsysprof.trace.nsys.identify import check_tables, reading
from nsysprof.trace.nsys.identify import identify as kind_of
from nsysprof.trace.nsys.rep import export_report

if TYPE_CHECKING:
    from nsysprof.trace.nsys.columns import Source

__all__ = ["About", "Diagnostic", "Gpu", "Report", "open_report", "reading"]


@dataclass(frozen=True)
class Report:
    """An open report: close it, or use it in a ``with`` statement, to remove what was exported for it.

    ``path`` is what the user named, ``file`` what is read: the same, or the export of a ``.nsys-rep``.
    """

    path: Path
    file: Path
    source: Source
    format: Literal["sqlite", "parquet"]
    about: About
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)

    def close(self) -> None:
        """Remove the temporary export; a second call does nothing. No file is kept open between reads."""
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_report(
    path: str | os.PathLike[str],
    *,
    export_to: str | os.PathLike[str] | None = None,
    nsys: str | os.PathLike[str] | None = None,
) -> Report:
    """Open an SQLite report or parquet export read-only, or a ``.nsys-rep``/``.qdrep`` by exporting it.

    The export goes into a temporary folder, removed when the report is closed or Python ends, or to
    ``export_to``, which is never overwritten. ``nsys`` names the nsys to export with. Raises `NsysprofError`
    for whatever is no readable report; opening reads a few small tables only.
    """
    path = Path(path)
    kind = kind_of(path)
    file, folder, made_by = path, None, None
    if kind == "nsys-rep":
        made_by = header_version(path)
        file, folder = export_report(
            path, export_to=Path(export_to) if export_to else None, nsys=Path(nsys) if nsys else None
        )
    try:
        with reading(path):
            source, form = _source(file)
            check_tables(path, source.tables())
            return Report(path, file, source, form, read_about(source, report_version=made_by), folder)
    except BaseException:
        if folder is not None:
            folder.cleanup()
        raise


def _source(file: Path) -> tuple[Source, Literal["sqlite", "parquet"]]:
    if file.is_dir():
        from nsysprof.trace.nsys.parquet import ParquetSource  # noqa: PLC0415 (needs pyarrow, an extra)

        return ParquetSource(file), "parquet"
    from nsysprof.trace.nsys.sqlite import SqliteSource  # noqa: PLC0415 (numpy is slow to import)

    return SqliteSource(file), "sqlite"
