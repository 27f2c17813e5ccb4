"""``nsysprof compare``: why one range is slower than another."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nsysprof.commands.report_options import (
    ChartsOption,
    Graphs,
    GraphsOption,
    HtmlOption,
    MemoryLimitOption,
    NoMergeOption,
    NsysOption,
    PerOption,
    RangesOption,
    ReplaceOption,
    ReportArgument,
    RulesOption,
    SkipOption,
    SpreadsheetOption,
    Threads,
    ThreadsOption,
    bytes_of,
    folder_option,
)


def compare(
    report: ReportArgument,
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OTHER]", readable=False, help="The report after the change, REPORT being before."
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="GLOB", help="Ranges to explain: paths as in `analyze`, such as 'RUN::math::*'."
        ),
    ] = None,
    new: Annotated[
        str | None,
        typer.Option(metavar="GLOB", help="Ranges to compare them with, paired by what the stars stand for."),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            "--range", metavar="GLOB", help="Of two reports, equal paths that match [default: outermost]."
        ),
    ] = None,
    per: PerOption = None,
    skip: SkipOption = None,
    instance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|N-M",
            help="Only these instances of each range, from 0; given twice, those of the base and of the new side.",
        ),
    ] = None,
    no_merge: NoMergeOption = False,
    output: Annotated[Path | None, folder_option("REPORT.compare in the current folder")] = None,
    charts: ChartsOption = True,
    html: HtmlOption = False,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many causes to print of a pair.")] = 20,
    every: Annotated[
        bool, typer.Option("--all", help="Print the ledger of every pair, not of one only.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")] = False,
    record: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="JSON",
            help="The run record of REPORT, and again of OTHER [default: the .json beside each].",
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE", help="Attention shape where no record has it: B=1,H=8,D=64,fp16,causal."
        ),
    ] = None,
    counters: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="CSV",
            help="Hardware counters of REPORT, and again of OTHER [default: the .counters.csv beside each].",
        ),
    ] = None,
    threads: ThreadsOption = Threads.FOLLOW,
    graphs: GraphsOption = Graphs.LAUNCHED,
    ranges: RangesOption = "auto",
    rules: RulesOption = None,
    nsys: NsysOption = None,
    memory_limit: MemoryLimitOption = None,
    spreadsheet_safe: SpreadsheetOption = False,
    force: ReplaceOption = False,
) -> None:
    """Say why one range of REPORT is slower than another, or than the same one in OTHER, cause by cause."""
    for option, given in (("--record", record), ("--counters", counters)):
        if given and len(given) > (1 if other is None else 2):
            raise typer.BadParameter(f"{option} goes with a report: give it once for each at most")
    if instance and (len(instance) > 2 or skip):
        raise typer.BadParameter("give --instance once, or once for each side, and without --skip")
    if (base is None) != (new is None):
        raise typer.BadParameter("--base and --new go together")
    if base is not None and select is not None:
        raise typer.BadParameter("give --range, or --base and --new")
    if base is None and other is None:
        raise typer.BadParameter("give --base and --new, or a second report")
    # numpy's linear algebra has work for one thread only here; starting more takes 40 ms.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from nsysprof.charts.chart import start_painter

    with ExitStack() as stack:
        painter = stack.enter_context(start_painter(apart=charts))  # first of all: it imports matplotlib
        from nsysprof.attribution.attribute import attribute
        from nsysprof.attribution.paths import DEFAULT_MERGE
        from nsysprof.charts.chart import files_of, plans_of
        from nsysprof.commands.progress import progress_bar
        from nsysprof.compare.charts import CHARTS, comparison_charts
        from nsysprof.compare.comparison import compare as compare_ranges
        from nsysprof.compare.files import GAP_FILES, write_gaps
        from nsysprof.compare.text import comparison_text
        from nsysprof.formats.answers import GAP_SCHEMA
        from nsysprof.kernels.classify import load_rules
        from nsysprof.results.folder import PAGE, report_folder, report_stem
        from nsysprof.trace.report import open_report

        loaded, limit = load_rules(rules), bytes_of(memory_limit) // (1 if other is None else 2)
        files = [report] if other is None else [report, other]
        folder = output or Path(f"{'-'.join(map(report_stem, files))}.compare")
        opened = [stack.enter_context(open_report(file, nsys=nsys)) for file in files]
        names = GAP_FILES + (files_of(CHARTS) if charts else ()) + ((PAGE,) if html else ())
        results = report_folder(
            folder,
            "compare",
            opened[0],
            GAP_SCHEMA,
            "comparison",
            possible=(*reversed(GAP_FILES), *files_of(CHARTS), PAGE),
            wanted=names,
            force=force,
            spreadsheet_safe=spreadsheet_safe,
        )
        results.check()
        with progress_bar() as progress:
            attributions = [
                attribute(each, threads.value, progress, limit, graphs.value, ranges) for each in opened
            ]
            progress("comparing", 0)
            comparison = compare_ranges(
                *attributions,
                base=base,
                new=new,
                select=select,
                per=per,
                merge=None if no_merge else DEFAULT_MERGE,
                skip=skip or 0,
                instances=instance or (),
                rules=loaded,
                records=record or (),
                shape=shape,
                counters=counters or (),
            )
            drawn = comparison_charts(comparison)
            if charts:
                progress("drawing charts", 0)
                painter.paint(plans_of(drawn, comparison))
        print(comparison_text(comparison, top=top, every=every, markdown=markdown), end="", flush=True)
        page = None
        if html:
            from nsysprof.compare.page import comparison_page

            page = partial(comparison_page, comparison)

        def pictures() -> dict[str, bytes]:
            return dict(zip(files_of(drawn), painter.pictures(), strict=True))

        written = results.write(partial(write_gaps, comparison), pictures if charts else None, page)
        print(written, file=sys.stderr)
