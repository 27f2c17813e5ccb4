"""``nsysprof compare``: why one range is slower than another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsysprof.commands import report_options as options
from nsysprof.commands.question import Question, Read, answer_reports
from nsysprof.commands.report_options import option

if TYPE_CHECKING:
    from nsysprof.compare.comparison import Comparison


@options.options_unfolded
def compare(
    report: options.ReportArgument,
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OTHER]", readable=False, help="Report from after the change; REPORT is from before the change."
        ),
    ] = None,
    base: Annotated[
        str | None, options.glob_option("--base", "Ranges to explain: paths as in `analyze`, such as 'RUN::math::*'.")
    ] = None,
    new: Annotated[
        str | None,
        options.glob_option("--new", "Ranges to compare with BASE; the stars of both globs must match the same text."),
    ] = None,
    select: Annotated[
        str | None,
        options.glob_option(
            "--range",
            (
                "With two reports: paths to compare [default: the outermost ranges]. With one report: the range "
                "whose instances to compare."
            ),
        ),
    ] = None,
    per: Annotated[
        str | None, option("Inner ranges to count as calls [default: steps, such as iter7 or batch 3].", "GLOB")
    ] = None,
    skip: options.SkipOption = None,
    instance: Annotated[
        list[str] | None,
        option(
            "Compare only these instances of each range, counted from 0; a second value applies to the new side.",
            "N|N-M",
        ),
    ] = None,
    slowest: options.SlowestOption = False,
    no_merge: options.NoMergeOption = False,
    output: Annotated[Path | None, options.folder_option("REPORT.compare in the current folder")] = None,
    top: Annotated[int | None, option("Number of causes to print per pair [default: at most 8].", "N", min=1)] = None,
    every: Annotated[
        bool,
        option("Print everything that --full prints, and the evidence, traffic and warnings of every pair.", "--all"),
    ] = False,
    markdown: options.MarkdownOption = False,
    record: Annotated[
        list[Path] | None,
        option("Run record of REPORT; repeat the option for OTHER [default: the .json beside each report].", "JSON"),
    ] = None,
    shape: Annotated[
        str | None, option("Attention shape if no run record contains it, such as B=1,H=8,D=64,fp16,causal.", "SHAPE")
    ] = None,
    counters: Annotated[
        list[Path] | None,
        option(
            (
                "Hardware counters of REPORT; repeat the option for OTHER [default: the .counters.csv beside each "
                "report]."
            ),
            "CSV",
        ),
    ] = None,
    also_base: Annotated[
        list[Path] | None,
        option("Another recording of REPORT's program, so that the verdict covers several runs.", "REPORT"),
    ] = None,
    also_new: Annotated[
        list[Path] | None,
        option("Another recording of OTHER's program, so that the verdict covers several runs.", "REPORT"),
    ] = None,
    noise: Annotated[
        list[Path] | None,
        option("A recording of unchanged code, from which to measure the variation between recordings.", "REPORT"),
    ] = None,
    *,
    reading: options.ReadingOptions,
    writing: options.ResultOptions,
) -> None:
    """Explain why one range of REPORT is slower than another, or than the same range in OTHER, cause by cause."""
    for name, given in (("--record", record), ("--counters", counters)):
        if given and len(given) > (1 if other is None else 2):
            raise typer.BadParameter(f"{name} applies to one report: give it at most once per report")
    _refuse(base, new, select, skip, instance, slowest=slowest, one_report=other is None)
    asked = {
        **{"base": base, "new": new, "select": select, "per": per, "skip": skip or 0, "slowest": slowest},
        **{"instances": instance or (), "records": record or (), "counters": counters or (), "shape": shape},
        **({"merge": None} if no_merge else {}),
    }
    more = {"also_base": also_base, "also_new": also_new, "noise": noise}
    shown = {"top": top or 8, "every": every or writing.full, "markdown": markdown}
    fits = top is None and not shown["every"] and not markdown
    reports = [report] if other is None else [report, other]
    answer = answer_reports(reports, output, reading, writing, lambda: _question(asked, more, {} if fits else shown))
    if not answer.comparable:
        raise typer.Exit(3)


def _refuse(
    base: str | None,
    new: str | None,
    select: str | None,
    skip: int | None,
    instance: list[str] | None,
    *,
    slowest: bool,
    one_report: bool,
) -> None:
    if instance and (len(instance) > 2 or skip):
        raise typer.BadParameter("use --instance once (for both sides) or twice (once per side), without --skip")
    if instance and slowest:
        raise typer.BadParameter("give either --instance or --slowest, not both")
    if (base is None) != (new is None):
        raise typer.BadParameter("give both --base and --new")
    if base is not None and select is not None:
        raise typer.BadParameter("give either --range, or both --base and --new")
    if base is None and one_report and not (select and (instance or slowest)):
        raise typer.BadParameter(
            "give --base and --new, or a second report, or --range with either --instance or --slowest"
        )


def _question(asked: dict[str, Any], more: dict[str, list[Path] | None], shown: dict[str, Any]) -> Question[Comparison]:
    """The question, with the arguments of `compare`, further reports, and how the text shows it."""
    from nsysprof.compare.charts import CHARTS, comparison_charts
    from nsysprof.compare.comparison import compare as compare_ranges
    from nsysprof.compare.files import GAP_FILES, write_gaps
    from nsysprof.compare.text import comparison_screen, comparison_text
    from nsysprof.formats.answers import GAP_SCHEMA

    def ask(read: Read) -> Comparison:
        also: dict[str, Any] = {name: [read.another(file) for file in given or ()] for name, given in more.items()}
        first, *other = read.attributions
        return compare_ranges(first, other[0] if other else None, **asked, **also, rules=read.rules)

    return Question(
        "compare", "comparing", "comparison", GAP_SCHEMA, GAP_FILES[::-1], CHARTS, write_gaps, "comparison_page",
        ask=ask,
        text=lambda answer: comparison_text(answer, **shown) if shown else comparison_screen(answer),
        drawn=comparison_charts,
    )  # fmt: skip
