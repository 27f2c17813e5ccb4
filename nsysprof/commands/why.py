"""``nsysprof why``: what the GPU waits for, and which code causes the waits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsysprof.commands import report_options as options
from nsysprof.commands.question import Question, Read, answer_reports
from nsysprof.commands.report_options import option
from nsysprof.core.text import visible

if TYPE_CHECKING:
    from nsysprof.why.why import Why


@options.options_unfolded
def why(
    report: options.ReportArgument,
    select: Annotated[str | None, options.glob_option("--range", "Ranges to explain [default: the steps].")] = None,
    per: Annotated[str | None, option("Inner ranges to count as calls [default: times are per step].", "GLOB")] = None,
    instance: Annotated[
        str | None, option("Explain only these steps of each path, numbered from 0 as in `steps`.", "N|N-M")
    ] = None,
    slowest: options.SlowestOption = False,
    skip: options.SkipOption = None,
    output: Annotated[Path | None, options.folder_option("REPORT.why in the current folder")] = None,
    top: Annotated[int, option("Number of causes to print for each kind.", "N", min=1)] = 8,
    markdown: options.MarkdownOption = False,
    no_merge: options.NoMergeOption = False,
    replay: options.ReplayOption = True,
    verify: Annotated[bool, option("Print how well the dependencies explain the step times.", "--verify")] = False,
    *,
    reading: options.ReadingOptions,
    writing: options.ResultOptions,
) -> None:
    """Say why the GPU waits in ranges of REPORT: the cause of every nanosecond without compute."""
    if instance and (slowest or skip):
        raise typer.BadParameter("give --instance without --slowest or --skip")

    def question() -> Question[Why]:
        from nsysprof.attribution.paths import DEFAULT_MERGE, SLOWEST, read_instances
        from nsysprof.why.charts import CHARTS
        from nsysprof.why.files import FILES, SCHEMA, write_why
        from nsysprof.why.residuals import verification
        from nsysprof.why.text import why_text
        from nsysprof.why.why import why as account

        merge = None if no_merge else DEFAULT_MERGE
        picked = SLOWEST if slowest else read_instances(instance) if instance else None

        def ask(read: Read) -> Why:
            more: dict[str, Any] = {"rules": read.rules, "merge_names": merge, "replay": replay}
            return account(read.attributions[0], select, per=per, instances=picked, skip=skip, **more)

        def text(answer: Why) -> str:
            more = "\n".join(["", *verification(answer.columns("residuals")), ""]) if verify else ""
            return why_text(answer, top, full=writing.full, markdown=markdown) + "\n".join(
                map(visible, more.split("\n"))
            )

        return Question("why", "waits", "account", SCHEMA, FILES[::-1], CHARTS, write_why, "why_page", ask, text)

    answer_reports([report], output, reading, writing, question)
