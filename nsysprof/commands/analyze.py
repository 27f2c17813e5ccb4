"""``nsysprof analyze``: where the time of one report went."""

from __future__ import annotations

import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsysprof.commands.report_options import (
    ChartsOption,
    Graphs,
    GraphsOption,
    HtmlOption,
    MemoryLimitOption,
    MergeOption,
    NoMergeOption,
    RangesOption,
    ReplaceOption,
    ReportArgument,
    RulesOption,
    SpreadsheetOption,
    Threads,
    ThreadsOption,
    bytes_of,
    folder_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsysprof.analyze.breakdown import Breakdown
    from nsysprof.charts.chart import Painter
    from nsysprof.results.folder import ResultFolder

_TABLE_FILES = ("analysis.json", "ranges.csv", "instances.csv", "kernels.csv")


class By(str, Enum):
    """What ``--by`` splits the rows by."""

    PROCESS = "process"
    DEVICE = "device"
    THREAD = "thread"
    STREAM = "stream"


def analyze(
    report: ReportArgument,
    output: Annotated[Path | None, folder_option("REPORT.analysis in the current folder")] = None,
    charts: ChartsOption = True,
    html: HtmlOption = False,
    select: Annotated[
        str | None,
        typer.Option("--range", metavar="GLOB", help="Only ranges that match, and what lies in them."),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many rows to print of each table, and to draw.")
    ] = 20,
    skip: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Leave out the first N instances of what repeats (warm-up)."),
    ] = 0,
    merge: MergeOption = None,
    no_merge: NoMergeOption = False,
    by: Annotated[
        By | None,
        typer.Option(metavar="process|device|thread|stream", help="Split what is printed and written."),
    ] = None,
    threads: ThreadsOption = Threads.FOLLOW,
    graphs: GraphsOption = Graphs.LAUNCHED,
    ranges: RangesOption = "auto",
    calls: Annotated[
        str, typer.Option(metavar="LIST", help="Which host calls to add up, of cuda,mpi,os; or none.")
    ] = "cuda,mpi,os",
    rules: RulesOption = None,
    instances: Annotated[bool, typer.Option("--instances", help="Write instances.csv however long.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with the projection of the installed nsys.")
    ] = False,
    nsys: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The nsys to export and to verify with.")
    ] = None,
    memory_limit: MemoryLimitOption = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Print all that nsys recorded of the recording, and every warning."),
    ] = False,
    spreadsheet_safe: SpreadsheetOption = False,
    force: ReplaceOption = False,
) -> None:
    """Say where the time of REPORT went: print a summary, write charts, CSV and JSON."""
    from nsysprof.charts.chart import start_painter

    if merge and no_merge:
        raise typer.BadParameter("give --merge or --no-merge, not both")
    if verify and graphs is Graphs.CAPTURED:
        raise typer.BadParameter("--verify compares launches with nsys: leave --graphs captured out")
    if verify and ranges != "auto" and "nvtx" not in ranges:
        raise typer.BadParameter("--verify compares NVTX ranges with nsys: leave --ranges out")
    # One thread is all that numpy's linear algebra gets to do here; starting more takes 40 ms.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with start_painter(apart=charts) as painter:  # first of all: it imports matplotlib meanwhile
        from nsysprof.analyze.breakdown import break_down
        from nsysprof.analyze.charts import analysis_charts
        from nsysprof.analyze.text import WIDTH, summary
        from nsysprof.attribution.attribute import attribute
        from nsysprof.attribution.paths import DEFAULT_MERGE
        from nsysprof.charts.chart import files_of, plans_of
        from nsysprof.commands.progress import progress_bar
        from nsysprof.formats.answers import ANALYSIS_SCHEMA
        from nsysprof.kernels.classify import load_rules
        from nsysprof.results.folder import PAGE, report_folder, report_stem
        from nsysprof.summaries.calls import read_kinds
        from nsysprof.summaries.every import FILES
        from nsysprof.trace.report import open_report

        limit = bytes_of(memory_limit)
        loaded, kinds = load_rules(rules), read_kinds(calls)
        with open_report(report, nsys=nsys) as opened:
            folder = output or Path(f"{report_stem(report)}.analysis")
            drawn = analysis_charts(top)
            tables = _TABLE_FILES + FILES
            names = tables + (files_of(drawn) if charts else ()) + ((PAGE,) if html else ())
            results = report_folder(
                folder,
                "analyze",
                opened,
                ANALYSIS_SCHEMA,
                "analysis",
                possible=(*tables, *files_of(drawn), PAGE),
                wanted=names,
                force=force,
                spreadsheet_safe=spreadsheet_safe,
            )
            results.check()
            with progress_bar(opened.reader.steps) as progress:
                attribution = attribute(opened, threads.value, progress, limit, graphs.value, ranges)
                progress("adding up", 0)
                breakdown = break_down(
                    attribution,
                    merge=None if no_merge else merge or DEFAULT_MERGE,
                    select=select,
                    skip=skip,
                    by=by.value if by else None,
                    rules=loaded,
                    calls=kinds,
                )
                if charts:
                    progress("drawing charts", 0)
                    painter.paint(plans_of(drawn, breakdown))
            print(summary(breakdown, top, verbose=verbose, width=WIDTH), end="", flush=True)
            _write(breakdown, results, painter if charts else None, html=html, instances=instances)
            if verify:
                _verify(breakdown, nsys)


def _write(
    breakdown: Breakdown, results: ResultFolder, painter: Painter | None, *, html: bool, instances: bool
) -> None:
    """Write the files, the charts that are being painted among them, and name them on stderr."""
    from nsysprof.analyze.charts import analysis_charts
    from nsysprof.analyze.files import write_tables
    from nsysprof.charts.chart import files_of
    from nsysprof.commands.progress import progress_bar

    notes: list[str] = []

    def tables(made: Path) -> list[Path]:
        written, left_out = write_tables(breakdown, made, instances=instances)
        notes.extend(left_out)
        return written

    def page(pictures: Sequence[bytes]) -> str:
        from nsysprof.analyze.page import analysis_page

        return analysis_page(breakdown, pictures)

    def pictures() -> dict[str, bytes]:
        assert painter is not None
        return dict(zip(files_of(analysis_charts()), painter.pictures(), strict=True))

    with progress_bar() as progress:
        written = results.write(tables, pictures if painter else None, page if html else None, progress)
    print("\n".join([written, *notes]), file=sys.stderr)


def _verify(breakdown: Breakdown, nsys: Path | None) -> None:
    from nsysprof.analyze.text import verification
    from nsysprof.attribution.verify import verify as compare

    result = compare(breakdown.attribution.trace, nsys)
    print("\n" + verification(result), end="", flush=True)
    if result.differences:
        raise typer.Exit(3)
