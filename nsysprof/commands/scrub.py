"""``nsysprof scrub``: make a copy of a report that can be shared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsysprof.commands.progress import print_message
from nsysprof.commands.report_options import JsonOption, NsysOption, option
from nsysprof.commands.screen import print_json, show_next, written_document
from nsysprof.core.text import command_line, join_first, visible
from nsysprof.core.units import format_bytes, format_count
from nsysprof.errors import NsysprofError

if TYPE_CHECKING:
    from nsysprof.scrub.scrub import Scrubbed

_MAX_NAMES = 20


def scrub(
    report: Annotated[Path, typer.Argument(metavar="REPORT", readable=False, help="A .sqlite or .nsys-rep report.")],
    output: Annotated[
        Path | None,
        option("The copy to write [default: REPORT.scrubbed.sqlite in the current folder].", "OUT", "--output", "-o"),
    ] = None,
    force: Annotated[bool, option("Replace OUT if it exists.", "--force")] = False,
    names: Annotated[bool, option("Also remove paths and addresses from range and kernel names.", "--names")] = False,
    keep: Annotated[
        list[str] | None,
        option(
            "Keep this table, TABLE.COLUMN or property although nsysprof does not know it; * matches any text; "
            "repeatable.",
            "NAME",
        ),
    ] = None,
    nsys: NsysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy REPORT without private data about the machine, its user and its other processes.

    Removed: environment variables, arguments, host, user and working folder, network addresses, ids of GPUs and
    adapters, other processes, the program's output, the folder part of paths, and unknown tables, columns and
    properties. All texts also lose mail addresses, host names with a domain, and credentials: tokens of well-known
    services, private keys, password=…, --password …, cookies, and the user, password and query in URLs.

    Kept by design: names of ranges, kernels, functions and CUDA calls (--names cuts paths and addresses out of them).
    These names may contain a customer's name, or an unmarked or base64-encoded password or key. Also kept: range
    payloads; the names of the program, modules, threads and domains; the GPU and CPU models; and the versions of the
    driver, the system and nsys. PCI addresses, process and thread numbers, and all times (including times of day) also
    stay.
    """
    from nsysprof.results.folder import OTHER_NAME, new_files, report_stem
    from nsysprof.scrub.scrub import scrub_report
    from nsysprof.tools.interrupts import ending_on_interrupts
    from nsysprof.trace.kineto.reader import KinetoReader
    from nsysprof.trace.nsys.identify import identify
    from nsysprof.trace.report import open_report

    if KinetoReader.claims(report):
        raise NsysprofError(
            f"{report} is JSON, but scrub handles only nsys reports",
            "the file may contain names of functions, files and the host: check it before you share it",
        )
    if identify(report) == "parquet":
        raise NsysprofError(
            f"{report} is a Parquet export, but scrub handles only SQLite reports",
            "nsysprof scrub REPORT.nsys-rep, or export the report again: nsys export --type sqlite REPORT.nsys-rep",
        )
    out = output or Path(f"{report_stem(report)}.scrubbed.sqlite")
    for log in (Path(f"{out}-wal"), Path(f"{out}-journal")):
        if os.path.lexists(log):  # SQLite would take it for the copy's
            raise NsysprofError(f"{log} is the log of another file with the same name", OTHER_NAME)
    with (
        ending_on_interrupts(),
        new_files(out, force=force, inputs=(report,)) as folder,
        open_report(report, export_to=folder / "export.sqlite", nsys=nsys) as opened,
    ):
        scrubbed = scrub_report(opened.file, folder / out.name, keep=keep or (), names=names)
    if as_json:
        removed = {"removed": dict(scrubbed.removed), "unknown": {k: list(v) for k, v in scrubbed.unknown.items()}}
        print_json(written_document("scrub", out, **removed))
    else:
        _report(report, out, scrubbed)


def _report(report: Path, out: Path, scrubbed: Scrubbed) -> None:
    if scrubbed.removed:
        print(f"removed from {visible(report.name)}:")
        for what, count in scrubbed.removed.items():
            called = scrubbed.unknown.get(what, ())
            listed = f" ({join_first(called, _MAX_NAMES, visible)})" if called else ""
            print(f"  {what}: {format_count(count)}{listed}")
    else:
        print(f"{visible(report.name)}: nothing private found")
    if scrubbed.unknown:
        print_message("to keep something unknown to nsysprof: --keep NAME")
    print_message(f"Written to {out} ({format_bytes(out.stat().st_size)})")
    show_next(command_line("analyze", out))
