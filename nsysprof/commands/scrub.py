"""``nsysprof scrub``: a copy of a report that can be passed on."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsysprof.commands.report_options import NsysOption

if TYPE_CHECKING:
    from nsysprof.scrub.scrub import Scrubbed


def scrub(
    report: Annotated[
        Path,
        typer.Argument(metavar="REPORT", readable=False, help="A .sqlite or .nsys-rep report."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="The copy to write [default: REPORT.scrubbed.sqlite in the current folder].",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    nsys: NsysOption = None,
) -> None:
    """Copy REPORT without environment variables, host, user, folders and processes of the machine."""
    from nsysprof.errors import NsysprofError
    from nsysprof.scrub.scrub import scrub_report
    from nsysprof.tools.interrupts import Interrupt, interrupted, interrupts_raised
    from nsysprof.trace.nsys.identify import identify
    from nsysprof.trace.report import open_report

    out = output or Path(f"{report.resolve().stem}.scrubbed.sqlite")
    if identify(report) == "parquet":
        raise NsysprofError(
            f"{report}: a parquet export, and only an SQLite report can be scrubbed",
            "nsysprof scrub REPORT.nsys-rep, or export that again: nsys export --type sqlite REPORT.nsys-rep",
        )
    _check(report, out, force=force)
    try:
        with interrupts_raised(), _folder_beside(out) as folder:
            part = Path(folder, "scrubbed.sqlite")
            with open_report(report, export_to=Path(folder, "export.sqlite"), nsys=nsys) as opened:
                scrubbed = scrub_report(opened.file, part if force else out)
            if force:
                part.replace(out)
    except Interrupt as interrupt:
        raise interrupted(interrupt) from None
    _tell(report, out, scrubbed)


def _folder_beside(out: Path) -> tempfile.TemporaryDirectory[str]:
    from shlex import quote

    from nsysprof.errors import NsysprofError

    try:
        return tempfile.TemporaryDirectory(prefix=".nsysprof-", dir=out.parent)
    except OSError as error:
        raise NsysprofError(
            f"{out}: cannot be written: {error.strerror}", f"ls -ld {quote(str(out.parent))}"
        ) from None


def _check(report: Path, out: Path, *, force: bool) -> None:
    """Refuse what would overwrite something: the report itself always."""
    from shlex import quote

    from nsysprof.errors import NsysprofError

    if os.path.lexists(out):
        if out.is_dir():
            raise NsysprofError(
                f"{out}: a folder", f"name a file in it: -o {quote(str(out / report.stem))}.sqlite"
            )
        if out.exists() and out.samefile(report):
            raise NsysprofError(
                f"{out}: the report itself, which is never changed", "name another file with -o"
            )
        if not force:
            raise NsysprofError(
                f"{out}: exists already, not overwritten", "--force, or name another file with -o"
            )
    elif not out.parent.is_dir():
        raise NsysprofError(f"{out}: there is no folder {out.parent}", f"mkdir -p {quote(str(out.parent))}")
    for log in (Path(f"{out}-wal"), Path(f"{out}-journal")):
        if os.path.lexists(log):  # SQLite would take it for the copy's
            raise NsysprofError(f"{log}: the log of another file of that name", "name another file with -o")


def _tell(report: Path, out: Path, scrubbed: Scrubbed) -> None:
    from shlex import quote

    from nsysprof.core.terminal import visible
    from nsysprof.core.units import format_bytes, format_count

    if scrubbed.removed:
        print(f"removed from {visible(report.name)}:")
        for what, count in scrubbed.removed.items():
            print(f"  {what}: {format_count(count)}")
    else:
        print(f"{visible(report.name)}: nothing private found")
    size = format_bytes(out.stat().st_size)
    print(f"Written to {visible(str(out))} ({size}); next:", file=sys.stderr)
    print(f"  nsysprof analyze {visible(quote(str(out)))}", file=sys.stderr)
