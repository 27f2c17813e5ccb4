"""``nsysprof compare``: why one range is slower than another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nsysprof.commands.report_options import (
    NoMergeOption,
    PerOption,
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
def compare(
    report: ReportArgument,
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OTHER]", readable=False, help="The report after the change, REPORT being before."
        ),
    ] = None,
    base: Annotated[
        str | None, glob_option("--base", "Ranges to explain: paths as in `analyze`, such as 'RUN::math::*'.")
    ] = None,
    new: Annotated[
        str | None, glob_option("--new", "Ranges to compare them with, paired by what the stars stand for.")
    ] = None,
    select: Annotated[
        str | None,
        glob_option("--range", "Paths of both reports that match [default: outermost], or instances of one."),
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
    slowest: SlowestOption = False,
    no_merge: NoMergeOption = False,
    output: Annotated[Path | None, folder_option("REPORT.compare in the current folder")] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many causes to print of a pair.")] = 8,
    every: Annotated[
        bool, typer.Option("--all", help="Print all of every pair: evidence, traffic, warnings.")
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
    also_base: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="REPORT", help="Another recording of REPORT's program; the verdict is over runs then."
        ),
    ] = None,
    also_new: Annotated[
        list[Path] | None, typer.Option(metavar="REPORT", help="Another recording of OTHER's program.")
    ] = None,
    noise: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="REPORT", help="A recording of unchanged code: what recordings differ by anyway."
        ),
    ] = None,
    *,
    reading: ReadingOptions,
    writing: ResultOptions,
) -> None:
    """Say why one range of REPORT is slower than another, or than the same one in OTHER, cause by cause."""
    for option, given in (("--record", record), ("--counters", counters)):
        if given and len(given) > (1 if other is None else 2):
            raise typer.BadParameter(f"{option} goes with a report: give it once for each at most")
    if instance and (len(instance) > 2 or skip):
        raise typer.BadParameter("give --instance once, or once for each side, and without --skip")
    if instance and slowest:
        raise typer.BadParameter("give --instance or --slowest")
    if (base is None) != (new is None):
        raise typer.BadParameter("--base and --new go together")
    if base is not None and select is not None:
        raise typer.BadParameter("give --range, or --base and --new")
    if base is None and other is None and not (select and (instance or slowest)):
        raise typer.BadParameter(
            "give --base and --new, a second report, or --range with --instance or --slowest"
        )
    from nsysprof.charts.chart import start_painter

    with ExitStack() as stack:
        painter = stack.enter_context(
            start_painter(apart=writing.charts)
        )  # first of all: it imports matplotlib
        from nsysprof.attribution.paths import DEFAULT_MERGE
        from nsysprof.charts.chart import plans_of
        from nsysprof.commands.progress import progress_bar
        from nsysprof.compare.charts import CHARTS, comparison_charts
        from nsysprof.compare.comparison import compare as compare_ranges
        from nsysprof.compare.files import GAP_FILES, write_gaps
        from nsysprof.compare.text import comparison_text
        from nsysprof.formats.answers import GAP_SCHEMA
        from nsysprof.kernels.classify import load_rules
        from nsysprof.results.folder import report_stem
        from nsysprof.trace.report import open_report

        def page(pictures: Sequence[bytes]) -> str:
            from nsysprof.compare.page import comparison_page

            return comparison_page(comparison, pictures)

        rules = load_rules(reading.rules)
        files = [report] if other is None else [report, other]
        place = output or Path(f"{'-'.join(map(report_stem, files))}.compare")
        opened = [stack.enter_context(open_report(file, nsys=reading.nsys)) for file in files]
        results = writing.folder(
            place, "compare", opened[0], GAP_SCHEMA, "comparison", files=GAP_FILES[::-1], charts=CHARTS
        )
        with progress_bar() as progress:
            attributions = [reading.attribute(each, progress, len(files)) for each in opened]
            also = [
                [
                    reading.attribute(stack.enter_context(open_report(file, nsys=reading.nsys)), progress, 1)
                    for file in given or ()
                ]
                for given in (also_base, also_new, noise)
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
                slowest=slowest,
                rules=rules,
                records=record or (),
                shape=shape,
                counters=counters or (),
                also_base=also[0],
                also_new=also[1],
                noise=also[2],
            )
            drawn = comparison_charts(comparison)
            if writing.charts:
                progress("drawing charts", 0)
                painter.paint(plans_of(drawn, comparison))
        writing.show(lambda: comparison_text(comparison, top=top, every=every, markdown=markdown))
        asked = output is not None
        writing.write(results, partial(write_gaps, comparison), drawn, painter, page, asked=asked)
    if not comparison.comparable:
        raise typer.Exit(3)
