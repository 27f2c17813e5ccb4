"""``nsysprof ranges``: list the names of a report's ranges, for use in options."""

from typing import Annotated

import typer

from nsysprof.commands import report_options as options
from nsysprof.commands.progress import progress_bar
from nsysprof.commands.screen import print_json, show
from nsysprof.core.text import command_line, next_line, path_option, plural, visible

SCHEMA = "nsysprof-ranges/1"


@options.options_unfolded
def ranges(
    report: options.ReportArgument,
    select: Annotated[
        str | None,
        typer.Argument(
            metavar="[GLOB]", help="Print only ranges whose path or name matches.", autocompletion=options.near_ranges
        ),
    ] = None,
    no_merge: options.NoMergeOption = False,
    full: Annotated[
        bool, options.option("Print all ranges instead of as many as fit on one screen.", "--full")
    ] = False,
    as_json: options.JsonOption = False,
    *,
    reading: options.ReadingOptions,
) -> None:
    """List the range paths of REPORT (to copy into --range of other commands), with instances and times."""
    from nsysprof.analyze.analyze import break_down
    from nsysprof.attribution.paths import DEFAULT_MERGE
    from nsysprof.kernels.classify import load_rules
    from nsysprof.results.one_screen import Rows, answer_lines
    from nsysprof.results.table import Column, show_columns
    from nsysprof.trace.report import describe_report, open_report

    columns = (
        Column("merged_path", "", "range"),
        Column("instances", ""),
        Column("launches", ""),
        Column("cpu_ns", "", "CPU"),
        Column("busy_ns", "", "GPU busy"),
    )
    with open_report(report, nsys=reading.nsys) as opened:
        with progress_bar(opened.reader.steps) as progress:
            attribution = reading.attribute(opened, progress)
        answer = break_down(
            attribution,
            merge=None if no_merge else DEFAULT_MERGE,
            select=select,
            rules=load_rules(reading.rules),
            calls=(),
        )
        names = [column.name for column in columns]
        rows = [{name: row[name] for name in names} for row in answer.columns("merged").records()]
        if as_json:
            print_json({"schema": SCHEMA, "report": describe_report(opened), "ranges": rows})
            return
        if not rows:
            command = command_line("analyze", report, *attribution.options)
            show(f"{visible(str(report))}: no ranges\n{next_line(command)}\n")
            return
        count = f"{plural(len(rows), 'path')} of {plural(answer.instance_count, 'range')}"
        repeated_first = max(rows, key=lambda row: (row["instances"] > 1, row["busy_ns"], row["cpu_ns"]))
        options = (*attribution.options, "--no-merge" if no_merge else "")
        command = command_line("analyze", report, path_option(repeated_first["merged_path"]), *options)
        head = f"{report}: {count}\n{next_line(command)}"
        show(answer_lines([head, Rows(show_columns(columns, rows), "path", len(rows))], full=full))
