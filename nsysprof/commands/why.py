"""``nsysprof why``: what the GPU waited for, and which code causes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from nsysprof.commands.report_options import (
    NoMergeOption,
    ReadingOptions,
    ReportArgument,
    ResultOptions,
    SkipOption,
    SlowestOption,
    folder_option,
    glob_option,
    options_unfolded,
)


@options_unfolded
def why(
    report: ReportArgument,
    select: Annotated[
        str | None, glob_option("--range", "Ranges to account for [default: those that repeat].")
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(metavar="GLOB", help="Inner ranges that count as calls [default: times are per step]."),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(metavar="N|N-M", help="Only these steps of each path, as `steps` numbers them, from 0."),
    ] = None,
    slowest: SlowestOption = False,
    skip: SkipOption = None,
    output: Annotated[Path | None, folder_option("REPORT.why in the current folder")] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many causes of a kind to print.")] = 8,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")] = False,
    no_merge: NoMergeOption = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Print how well dependencies explain the steps.")
    ] = False,
    *,
    reading: ReadingOptions,
    writing: ResultOptions,
) -> None:
    """Say why the GPU waits in ranges of REPORT: the cause of every nanosecond without compute."""
    if instance and (slowest or skip):
        raise typer.BadParameter("give --instance without --slowest and --skip")
    from nsysprof.charts.chart import start_painter

    with start_painter(apart=writing.charts) as painter:  # first of all: it imports matplotlib
        from nsysprof.attribution.paths import DEFAULT_MERGE, SLOWEST, read_instances
        from nsysprof.charts.chart import plans_of
        from nsysprof.commands.progress import progress_bar
        from nsysprof.core.text import visible
        from nsysprof.kernels.classify import load_rules
        from nsysprof.results.folder import report_stem
        from nsysprof.trace.report import open_report
        from nsysprof.why.charts import CHARTS
        from nsysprof.why.files import FILES, SCHEMA, write_why
        from nsysprof.why.residuals import verification
        from nsysprof.why.text import why_text
        from nsysprof.why.why import why as account

        def page(pictures: Sequence[bytes]) -> str:
            from nsysprof.why.page import why_page

            return why_page(answer, pictures)

        rules = load_rules(reading.rules)
        picked = SLOWEST if slowest else read_instances(instance) if instance else None
        with open_report(report, nsys=reading.nsys) as opened:
            place = output or Path(f"{report_stem(report)}.why")
            results = writing.folder(
                place, "why", opened, SCHEMA, "account", files=FILES[::-1], charts=CHARTS
            )
            with progress_bar() as progress:
                attribution = reading.attribute(opened, progress)
                progress("waits", 0)
                merge = None if no_merge else DEFAULT_MERGE
                options: dict[str, Any] = {"rules": rules, "merge_names": merge}
                answer = account(attribution, select, per=per, instances=picked, skip=skip, **options)
                if writing.charts:
                    progress("drawing charts", 0)
                    painter.paint(plans_of(CHARTS, answer))
            writing.show(lambda: why_text(answer, top, full=writing.full, markdown=markdown))
            if verify and not writing.as_json:
                print()
                for line in "\n".join(verification(answer.residuals)).split("\n"):
                    print(visible(line), flush=True)
            writing.write(
                results, partial(write_why, answer), CHARTS, painter, page, asked=output is not None
            )
