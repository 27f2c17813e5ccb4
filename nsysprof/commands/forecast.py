"""``nsysprof forecast``: what a change would bring to the steps of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, field, fields, make_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

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
from nsysprof.waits.changes import Changes


def _option(change: Field[Any]) -> tuple[str, Any, Any]:
    """A field of `Changes` as an option of the command line: its name, type and default."""
    value, about = change.metadata["value"], change.metadata["about"]
    if not value:
        flag = typer.Option(f"--{change.name.replace('_', '-')}", help=about)
        return change.name, Annotated[bool, flag], field(default=False)
    several = typer.Option(metavar=value, help=f"{about}; repeatable.", show_default=False)
    return change.name, Annotated[list[str] | None, several], field(default=None)


# what is to be changed, all of it at once
ChangeOptions = make_dataclass("ChangeOptions", [_option(each) for each in fields(Changes)], frozen=True)


@options_unfolded
def forecast(
    report: ReportArgument,
    select: Annotated[str | None, glob_option("--range", "The steps [default: ranges that repeat].")] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run record with the steps without a profiler [default: beside REPORT]."
        ),
    ] = None,
    as_profiled: Annotated[
        bool, typer.Option("--as-profiled", help="Forecast the program under its profiler.")
    ] = False,
    output: Annotated[Path | None, folder_option("REPORT.forecast in the current folder")] = None,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")] = False,
    no_merge: NoMergeOption = False,
    *,
    change: ChangeOptions,  # type: ignore[valid-type]
    reading: ReadingOptions,
    writing: ResultOptions,
) -> None:
    """Forecast what a change would bring to the steps of REPORT; exit code 3 where that is not known."""
    from nsysprof.charts.chart import start_painter

    with start_painter(apart=writing.charts) as painter:  # first of all: it imports matplotlib
        from nsysprof.attribution.paths import DEFAULT_MERGE
        from nsysprof.charts.chart import plans_of
        from nsysprof.commands.progress import progress_bar
        from nsysprof.forecast.charts import CHARTS
        from nsysprof.forecast.files import FILES, SCHEMA, write_forecast
        from nsysprof.forecast.forecast import forecast as foretell
        from nsysprof.forecast.text import forecast_text
        from nsysprof.kernels.classify import load_rules
        from nsysprof.results.folder import report_stem
        from nsysprof.trace.report import open_report

        def page(pictures: Sequence[bytes]) -> str:
            from nsysprof.forecast.page import forecast_page

            return forecast_page(answer, pictures)

        rules = load_rules(reading.rules)
        with open_report(report, nsys=reading.nsys) as opened:
            place = output or Path(f"{report_stem(report)}.forecast")
            results = writing.folder(
                place, "forecast", opened, SCHEMA, "forecast", files=FILES, charts=CHARTS
            )
            with progress_bar() as progress:
                attribution = reading.attribute(opened, progress)
                progress("replaying", 0)
                answer = foretell(
                    attribution,
                    select,
                    rules=rules,
                    merge_names=None if no_merge else DEFAULT_MERGE,
                    record=record,
                    as_profiled=as_profiled,
                    **{name: value for name, value in vars(change).items() if value},
                )
                if writing.charts:
                    progress("drawing charts", 0)
                    painter.paint(plans_of(CHARTS, answer))
            writing.show(lambda: forecast_text(answer, markdown=markdown))
            asked = output is not None
            writing.write(results, partial(write_forecast, answer), CHARTS, painter, page, asked=asked)
