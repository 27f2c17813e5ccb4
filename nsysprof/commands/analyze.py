"""``nsysprof analyze``: where the time of one report went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nsysprof.commands import report_options as options
from nsysprof.commands.question import Question, Read, answer_reports
from nsysprof.commands.report_options import option
from nsysprof.commands.screen import show

if TYPE_CHECKING:
    from nsysprof.analyze.breakdown import Breakdown
    from nsysprof.charts.chart import Chart

_TABLE_FILES = ("analysis.json", "ranges.csv", "instances.csv", "kernels.csv")
PICTURES = ("kernel_counts.png", "kernel_breakdown.png", "timeline.png")
_Sort = Literal["time", "busy", "span", "cpu", "instances", "launches", "name"]
_By = Literal["process", "device", "thread", "stream"]


@options.options_unfolded
def analyze(
    report: options.ReportArgument,
    output: Annotated[Path | None, options.folder_option("REPORT.analysis in the current folder")] = None,
    select: Annotated[
        str | None, options.glob_option("--range", "Show only ranges that match, and all ranges inside them.")
    ] = None,
    since: Annotated[
        str | None,
        option(
            "Show only ranges that begin after this time (in seconds), or after the start of the named range.",
            "S|GLOB",
            "--from",
        ),
    ] = None,
    until: Annotated[
        str | None,
        option(
            "Show only ranges that end before this time (in seconds), or before the end of the named range.",
            "S|GLOB",
            "--to",
        ),
    ] = None,
    sort: Annotated[
        _Sort | None,
        option(
            "Order of sibling ranges [default: by time; with --full, by start if ranges have GPU work].",
            "time|busy|span|cpu|instances|launches|name",
        ),
    ] = None,
    depth: Annotated[int | None, option("Number of levels of nested ranges to print.", "N", min=1)] = None,
    top: Annotated[
        int | None,
        option("Number of rows per printed table [default: as many as fit] and per chart [default: 20].", "N", min=1),
    ] = None,
    skip: options.SkipOption = 0,
    merge: options.MergeOption = None,
    no_merge: options.NoMergeOption = False,
    by: Annotated[_By | None, option("Split all tables by this property.", "process|device|thread|stream")] = None,
    calls: Annotated[
        str, option("Host calls to summarize: any of cuda,mpi,os (comma-separated), or none.", "LIST")
    ] = "cuda,mpi,os",
    replay: options.ReplayOption = True,
    instances: Annotated[bool, option("Write instances.csv even if it is very long.", "--instances")] = False,
    verify: Annotated[
        bool, option("Check the GPU times of ranges against the installed nsys (nvtx_gpu_proj_trace).", "--verify")
    ] = False,
    verbose: Annotated[bool, option("The same as --full.", "--verbose")] = False,
    *,
    reading: options.ReadingOptions,
    writing: options.ResultOptions,
) -> None:
    """Show where the time of REPORT went: print a summary, write charts, CSV and JSON."""
    if merge and no_merge:
        raise typer.BadParameter("give either --merge or --no-merge, not both")
    if verify and writing.as_json:
        raise typer.BadParameter("--verify prints text: leave --json out")
    if verify and reading.graphs == "captured":
        raise typer.BadParameter("--verify compares launches with nsys: leave out --graphs captured")
    if verify and reading.ranges != "auto" and "nvtx" not in reading.ranges:
        raise typer.BadParameter("--verify compares NVTX ranges with nsys: leave out --ranges")
    left_out: list[str] = []

    def question() -> Question[Breakdown]:
        from nsysprof.analyze.analyze import break_down
        from nsysprof.analyze.files import write_tables
        from nsysprof.analyze.text import summary
        from nsysprof.attribution.paths import DEFAULT_MERGE
        from nsysprof.formats.answers import ANALYSIS_SCHEMA
        from nsysprof.summaries.calls import read_kinds
        from nsysprof.summaries.every import FILES

        kinds = read_kinds(calls)

        def ask(read: Read) -> Breakdown:
            return break_down(
                read.attributions[0],
                merge=None if no_merge else merge or DEFAULT_MERGE,
                select=select,
                skip=skip or 0,
                by=by,
                rules=read.rules,
                calls=kinds,
                since=since,
                until=until,
                replay=replay,
            ).made_ahead()

        def tables(breakdown: Breakdown, made: Path) -> list[Path]:
            packs = not writing.spreadsheet_safe and (not writing.as_json or output is not None)  # nothing is kept
            written, notes = write_tables(breakdown, made, instances=instances, packs=packs)
            left_out[:] = notes
            return written

        def text(breakdown: Breakdown) -> str:
            return summary(breakdown, top, full=writing.full or verbose, sort=sort, depth=depth)

        charts: Sequence[Chart[Breakdown]] = ()
        if writing.charts:
            from nsysprof.analyze.charts import analysis_charts

            charts = analysis_charts(top or 20)
        files = _TABLE_FILES + FILES
        files += tuple(f"{name}.gz" for name in files if name.endswith(".csv"))
        return Question(
            "analyze", "adding up", "analysis", ANALYSIS_SCHEMA, files, charts, tables, "analysis_page",
            ask=ask, text=text, ending="analysis", pictures=PICTURES, notes=left_out,
        )  # fmt: skip

    breakdown = answer_reports([report], output, reading, writing, question)
    if verify:
        _verify(breakdown, reading.nsys)


def _verify(breakdown: Breakdown, nsys: Path | None) -> None:
    from nsysprof.analyze.text import verification
    from nsysprof.attribution.verify import verify as compare

    result = compare(breakdown.attribution.trace, nsys)
    show("\n" + verification(result))
    if result.differences:
        raise typer.Exit(3)
