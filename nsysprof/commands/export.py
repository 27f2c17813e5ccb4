"""``nsysprof export``: convert a report to formats of other tools."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from nsysprof.commands import report_options as options
from nsysprof.commands.progress import progress_bar
from nsysprof.commands.report_options import option
from nsysprof.commands.screen import print_json, show_next, written_document
from nsysprof.core.text import command_line, visible
from nsysprof.core.units import format_bytes

To = Literal["perfetto", "parquet", "csv"]


@options.options_unfolded
def export(
    report: options.ReportArgument,
    to: Annotated[
        To,
        option(
            "Format: a trace for ui.perfetto.dev, or tables of GPU ops, launches, ranges and instances.",
            "perfetto|parquet|csv",
        ),
    ],
    output: Annotated[
        Path | None,
        option(
            "Trace file to write (compressed if the name ends with .gz), or folder for the tables"
            " [default: REPORT.pftrace, .parquet or .csv in the current folder].",
            "OUT",
            "--output",
            "-o",
        ),
    ] = None,
    spreadsheet_safe: options.SpreadsheetOption = False,
    force: Annotated[bool, option("Replace OUT if nsysprof export wrote it.", "--force")] = False,
    as_json: options.JsonOption = False,
    *,
    reading: options.ReadingOptions,
) -> None:
    """Export REPORT, with the owner of every GPU op, to Perfetto, or as Parquet or CSV tables."""
    if spreadsheet_safe and to != "csv":
        raise typer.BadParameter("--spreadsheet-safe needs --to csv")
    from nsysprof.attribution.attribute import option_words
    from nsysprof.export.export import export as write
    from nsysprof.tools.interrupts import ending_on_interrupts

    with ending_on_interrupts(), progress_bar() as progress:
        written = write(
            report, to, output, **reading.values, spreadsheet_safe=spreadsheet_safe, force=force, progress=progress
        )
    if as_json:
        print_json(written_document("export", written, to=to))
    else:
        _report_written(written, to)
        show_next(command_line("analyze", report, *option_words(reading.values)))


def _report_written(written: Path, to: To) -> None:
    files = sorted(written.iterdir()) if written.is_dir() else [written]
    size = format_bytes(sum(file.stat().st_size for file in files))
    if to == "perfetto":
        what = f"{visible(str(written))} ({size}); open it in https://ui.perfetto.dev"
    else:
        what = f"{visible(str(written))}/ ({size}): {', '.join(file.name for file in files)}"
    print(f"Written to {what}", file=sys.stderr)
