"""``nsysprof why``: what the GPU waited for, and who is to blame."""

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


def why(
    report: ReportArgument,
    select: Annotated[
        str | None,
        typer.Option("--range", metavar="GLOB", help="Ranges to account for [default: those that repeat]."),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(
            metavar="GLOB", help="Inner ranges that count as calls [default: times are per window]."
        ),
    ] = None,
    output: Annotated[Path | None, folder_option("REPORT.why in the current folder")] = None,
    charts: ChartsOption = True,
    html: HtmlOption = False,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many culprits to print of a cause.")] = 8,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")] = False,
    no_merge: NoMergeOption = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Print how well dependencies explain the windows.")
    ] = False,
    threads: ThreadsOption = Threads.FOLLOW,
    graphs: GraphsOption = Graphs.LAUNCHED,
    ranges: RangesOption = "auto",
    rules: RulesOption = None,
    nsys: NsysOption = None,
    memory_limit: MemoryLimitOption = None,
    spreadsheet_safe: SpreadsheetOption = False,
    force: ReplaceOption = False,
) -> None:
    """Say why the GPU waits in ranges of REPORT: for every nanosecond without compute its cause and culprit."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from nsysprof.charts.chart import start_painter

    with ExitStack() as stack:
        painter = stack.enter_context(start_painter(apart=charts))  # first of all: it imports matplotlib
        from nsysprof.attribution.attribute import attribute
        from nsysprof.attribution.paths import DEFAULT_MERGE
        from nsysprof.charts.chart import files_of, plans_of
        from nsysprof.commands.progress import progress_bar
        from nsysprof.core.text import visible
        from nsysprof.kernels.classify import load_rules
        from nsysprof.results.folder import PAGE, report_folder, report_stem
        from nsysprof.trace.report import open_report
        from nsysprof.why.charts import CHARTS
        from nsysprof.why.files import FILES, SCHEMA, write_why
        from nsysprof.why.residuals import verification
        from nsysprof.why.text import why_text
        from nsysprof.why.why import why as account

        loaded = load_rules(rules)
        opened = stack.enter_context(open_report(report, nsys=nsys))
        results = report_folder(
            output or Path(f"{report_stem(report)}.why"),
            "why",
            opened,
            SCHEMA,
            "account",
            possible=(*reversed(FILES), *files_of(CHARTS), PAGE),
            wanted=FILES + (files_of(CHARTS) if charts else ()) + ((PAGE,) if html else ()),
            force=force,
            spreadsheet_safe=spreadsheet_safe,
        )
        results.check()
        with progress_bar() as progress:
            attribution = attribute(
                opened, threads.value, progress, bytes_of(memory_limit), graphs.value, ranges
            )
            progress("waits", 0)
            answer = account(
                attribution,
                select,
                per=per,
                rules=loaded,
                merge_names=None if no_merge else DEFAULT_MERGE,
            )
            if charts:
                progress("drawing charts", 0)
                painter.paint(plans_of(CHARTS, answer))
        print(why_text(answer, top, markdown=markdown), end="", flush=True)
        if verify:
            print(
                "", *map(visible, "\n".join(verification(answer.residuals)).split("\n")), sep="\n", flush=True
            )
        page = None
        if html:
            from nsysprof.why.page import why_page

            page = partial(why_page, answer)

        def pictures() -> dict[str, bytes]:
            return dict(zip(files_of(CHARTS), painter.pictures(), strict=True))

        written = results.write(partial(write_why, answer), pictures if charts else None, page)
        print(written, file=sys.stderr)
