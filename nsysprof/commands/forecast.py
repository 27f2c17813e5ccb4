"""``nsysprof forecast``: what a change would bring to the steps of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

_Texts = list[str] | None


def _each(metavar: str, about: str) -> Any:
    """Declare an option that may be given several times."""
    return typer.Option(metavar=metavar, help=f"{about}; repeatable.", show_default=False)


@dataclass(frozen=True)
class ChangeOptions:
    """What is to be changed, all of it at once."""

    graph: Annotated[_Texts, _each("GLOB", "Launch what ranges launch as one CUDA graph")] = None
    scale: Annotated[
        _Texts, _each("KERNEL=FACTOR", "Let kernels take so much of their time: '*gemm*=0.5'")
    ] = None
    set: Annotated[_Texts, _each("KERNEL=TIME", "Let kernels take that long: 'softmax=40us'")] = None
    swap: Annotated[
        _Texts,
        _each(
            "TABLE",
            "Take times of kernels from a kernels.csv or report; RANGE=TABLE:ROW: one kernel for a range",
        ),
    ] = None
    drop_sync: Annotated[
        _Texts, _each("GLOB", "Do not wait for the GPU in ranges, or in calls of that name")
    ] = None
    async_copies: Annotated[
        bool,
        typer.Option("--async-copies", help="Let copies to the GPU, from pinned memory, not block the host."),
    ] = False
    remove: Annotated[_Texts, _each("CULPRIT", "Do without a culprit that why.csv names")] = None
    no_late_peer: Annotated[
        bool, typer.Option("--no-late-peer", help="Let all ranks come to each collective at once.")
    ] = False
    delay: Annotated[_Texts, _each("RANGE=TIME", "Let the host take longer behind ranges: 'loss=500us'")] = (
        None
    )
    gpu_delay: Annotated[_Texts, _each("RANGE=TIME", "Let a kernel of that time run behind ranges")] = None

    @property
    def changes(self) -> dict[str, Any]:
        """The changes as `nsysprof.forecast` takes them."""
        return {name: value for name, value in vars(self).items() if value}


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
    change: ChangeOptions,
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
                    **change.changes,
                )
                if writing.charts:
                    progress("drawing charts", 0)
                    painter.paint(plans_of(CHARTS, answer))
            writing.show(lambda: forecast_text(answer, markdown=markdown))
            asked = output is not None
            writing.write(results, partial(write_forecast, answer), CHARTS, painter, page, asked=asked)
