"""``nsysprof steps``: which steps were slow, and what they spent more time on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nsysprof.commands.report_options import (
    NoMergeOption,
    ReadingOptions,
    ReportArgument,
    ResultOptions,
    folder_option,
    glob_option,
    options_unfolded,
)


@options_unfolded
def steps(
    report: ReportArgument,
    per: Annotated[
        str | None, glob_option("--per", "Ranges that are steps [default: those that repeat].")
    ] = None,
    output: Annotated[Path | None, folder_option("REPORT.steps in the current folder")] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many rows to print of a table.")] = 8,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")] = False,
    no_merge: NoMergeOption = False,
    *,
    reading: ReadingOptions,
    writing: ResultOptions,
) -> None:
    """Say which steps of REPORT were slow, and what they spent more time on than typical ones."""
    from nsysprof.charts.chart import start_painter

    with start_painter(apart=writing.charts) as painter:  # first of all: it imports matplotlib
        from nsysprof.attribution.paths import DEFAULT_MERGE
        from nsysprof.charts.chart import plans_of
        from nsysprof.commands.progress import progress_bar
        from nsysprof.kernels.classify import load_rules
        from nsysprof.results.folder import report_stem
        from nsysprof.steps.charts import CHARTS
        from nsysprof.steps.files import FILES, SCHEMA, write_steps
        from nsysprof.steps.steps import steps as judge
        from nsysprof.steps.text import steps_text
        from nsysprof.trace.report import open_report

        def page(pictures: Sequence[bytes]) -> str:
            from nsysprof.steps.page import steps_page

            return steps_page(answer, pictures)

        rules = load_rules(reading.rules)
        with open_report(report, nsys=reading.nsys) as opened:
            place = output or Path(f"{report_stem(report)}.steps")
            results = writing.folder(place, "steps", opened, SCHEMA, "run", files=FILES[::-1], charts=CHARTS)
            with progress_bar() as progress:
                attribution = reading.attribute(opened, progress)
                progress("steps", 0)
                merge = None if no_merge else DEFAULT_MERGE
                answer = judge(attribution, per, rules=rules, merge_names=merge)
                if writing.charts:
                    progress("drawing charts", 0)
                    painter.paint(plans_of(CHARTS, answer))
            writing.show(lambda: steps_text(answer, top, markdown=markdown))
            asked = output is not None
            writing.write(results, partial(write_steps, answer), CHARTS, painter, page, asked=asked)
