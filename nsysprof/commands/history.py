"""``nsysprof history``: find which change made a program slower, over many runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nsysprof.commands import report_options as options
from nsysprof.commands.progress import progress_bar
from nsysprof.commands.question import Question, give_answer
from nsysprof.commands.report_options import option

if TYPE_CHECKING:
    from contextlib import ExitStack

    from nsysprof.attribution.attribute import Attribution


@options.options_unfolded
def history(
    reports: Annotated[
        list[str],
        typer.Argument(metavar="REPORT…", help="Reports, folders of reports, or globs; each report counts as one run."),
    ],
    select: options.StepsOption = None,
    order: Annotated[
        Literal["record", "name", "time", "git"],
        option(
            "Sort runs by recorded start, by name, by file time, or by commit in the current repository.",
            "record|name|time|git",
        ),
    ] = "record",
    since: Annotated[
        str | None, option("Leave out runs before this date (such as 2026-11-01) or commit.", "WHEN")
    ] = None,
    last: Annotated[int | None, option("Use only the newest N runs.", "N", min=1)] = None,
    limit: Annotated[
        float,
        option(
            "Exit with code 3 if the newest level is slower than the previous level by more than this, unless the "
            "machine "
            "is the cause.",
            "PERCENT",
            min=0,
        ),
    ] = 5.0,
    cache: Annotated[Path | None, option("Cache of earlier results [default: history.db in DIR].", "FILE")] = None,
    output: Annotated[Path | None, options.folder_option("FOLDER.history in the current folder")] = None,
    top: Annotated[int, option("Number of runs to print.", "N", min=1)] = 12,
    markdown: options.MarkdownOption = False,
    *,
    reading: options.ReadingOptions,
    writing: options.ResultOptions,
) -> None:
    """Find when steps became slower over many runs, and which part of the program or the machine changed."""
    from nsysprof.attribution.attribute import option_words
    from nsysprof.charts.chart import start_painter
    from nsysprof.fleet.files import default_folder
    from nsysprof.history.charts import CHARTS
    from nsysprof.history.files import CACHE, FILES, SCHEMA, history_folder, write_history
    from nsysprof.history.history import history as follow
    from nsysprof.history.text import history_text
    from nsysprof.kernels.classify import load_rules
    from nsysprof.trace.report import open_report

    place = output or default_folder(reports, reports).with_suffix(".history")
    results = history_folder(place, reports, **writing.of_folder)
    unwritten = writing.check(results, asked=output is not None)
    kept = cache or place / CACHE
    quiet = unwritten is not None or (writing.as_json and output is None and not kept.exists())

    with progress_bar() as progress, start_painter(apart=writing.charts) as painter:

        def attributed(path: Path, stack: ExitStack) -> Attribution:
            return reading.attribute(stack.enter_context(open_report(path, nsys=reading.nsys)), lambda step, rows: None)

        read = [f"{name}={value}" for name, value in reading.values.items() if name in ("threads", "graphs", "ranges")]
        if reading.rules:
            read.append(reading.rules.read_text(encoding="utf-8", errors="replace"))
        answer = follow(
            reports,
            select=select,
            order=order,
            since=since,
            last=last,
            cache=None if quiet and cache is None else kept,
            rules=load_rules(reading.rules),
            attribution_of=attributed,
            reading=read,
            progress=progress,
        )
        if again := option_words(vars(reading)):
            answer = replace(answer, options={**answer.options, "reading": again})
        question = Question(
            "history", "runs", "history", SCHEMA, FILES, CHARTS, write_history, "history_page",
            ask=lambda _: answer,
            text=lambda given: history_text(given, top, full=writing.full, markdown=markdown),
        )  # fmt: skip
        give_answer(question, answer, results, writing, painter, unwritten, asked=output is not None)
    if answer.slower(limit / 100):
        raise typer.Exit(3)
