"""``nsysprof forecast``: how much a change would save in the steps of a program."""

from __future__ import annotations

from dataclasses import Field, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsysprof.commands import report_options as options
from nsysprof.commands.progress import progress_bar
from nsysprof.commands.question import Question, answer_reports
from nsysprof.commands.report_options import option
from nsysprof.waits.changes import Changes

if TYPE_CHECKING:
    from nsysprof.forecast.forecast import Forecast


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


@options.options_unfolded
def forecast(
    report: options.ReportArgument,
    select: options.StepsOption = None,
    record: Annotated[
        Path | None,
        option("Run record with step times measured without the profiler [default: the .json beside REPORT].", "FILE"),
    ] = None,
    as_profiled: Annotated[bool, option("Include profiling overhead in the forecast.", "--as-profiled")] = False,
    output: Annotated[Path | None, options.folder_option("REPORT.forecast in the current folder")] = None,
    markdown: options.MarkdownOption = False,
    no_merge: options.NoMergeOption = False,
    *,
    change: ChangeOptions,  # type: ignore[valid-type]
    reading: options.ReadingOptions,
    writing: options.ResultOptions,
) -> None:
    """Forecast how much a change saves in the steps of REPORT; without a change, list the changes that save most."""
    if not any(vars(change).values()) and not writing.as_json:
        _list_changes(report, select, no_merge, markdown, reading, writing)
        return

    def question() -> Question[Forecast]:
        from nsysprof.attribution.paths import DEFAULT_MERGE
        from nsysprof.forecast.charts import CHARTS
        from nsysprof.forecast.files import FILES, SCHEMA, write_forecast
        from nsysprof.forecast.forecast import forecast as foretell
        from nsysprof.forecast.text import forecast_text

        asked = {name: value for name, value in vars(change).items() if value}
        asked |= {"merge_names": None if no_merge else DEFAULT_MERGE, "record": record}
        return Question(
            "forecast", "replaying", "forecast", SCHEMA, FILES, CHARTS, write_forecast, "forecast_page",
            ask=lambda read: foretell(
                read.attributions[0], select, rules=read.rules, as_profiled=as_profiled, **asked
            ),
            text=lambda answer: forecast_text(answer, full=writing.full, markdown=markdown),
        )  # fmt: skip

    answer_reports([report], output, reading, writing, question)


def _list_changes(
    report: Path,
    select: str | None,
    no_merge: bool,
    markdown: bool,
    reading: options.ReadingOptions,
    writing: options.ResultOptions,
) -> None:
    from nsysprof.attribution.paths import DEFAULT_MERGE
    from nsysprof.forecast.forecast import changes_that_help
    from nsysprof.forecast.text import changes_text
    from nsysprof.kernels.classify import load_rules
    from nsysprof.trace.report import open_report

    merge, rules = None if no_merge else DEFAULT_MERGE, load_rules(reading.rules)
    with open_report(report, nsys=reading.nsys) as opened, progress_bar() as progress:
        attribution = reading.attribute(opened, progress)
        progress("replaying", 0)
        diagnosis = changes_that_help(attribution, select, rules, merge)
    writing.show(lambda: changes_text(diagnosis, report, full=writing.full, markdown=markdown))
