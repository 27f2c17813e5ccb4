"""``nsysprof steps``: find slow steps, and where they spend the additional time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nsysprof.commands import report_options as options
from nsysprof.commands.question import Question, answer_reports
from nsysprof.commands.report_options import option

if TYPE_CHECKING:
    from nsysprof.steps.steps import Steps


@options.options_unfolded
def steps(
    report: options.ReportArgument,
    per: Annotated[
        str | None,
        options.glob_option(
            "--per", "Ranges to treat as steps [default: found automatically, in the same way by all commands]."
        ),
    ] = None,
    output: Annotated[Path | None, options.folder_option("REPORT.steps in the current folder")] = None,
    top: Annotated[int, option("Number of rows to print per table.", "N", min=1)] = 8,
    markdown: options.MarkdownOption = False,
    no_merge: options.NoMergeOption = False,
    replay: options.ReplayOption = True,
    *,
    reading: options.ReadingOptions,
    writing: options.ResultOptions,
) -> None:
    """Find the slow steps of REPORT, and the causes of their additional time."""

    def question() -> Question[Steps]:
        from nsysprof.attribution.paths import DEFAULT_MERGE
        from nsysprof.steps.charts import CHARTS
        from nsysprof.steps.files import FILES, SCHEMA, write_steps
        from nsysprof.steps.steps import steps as judge
        from nsysprof.steps.text import steps_text

        merge = None if no_merge else DEFAULT_MERGE
        return Question(
            "steps", "steps", "run", SCHEMA, FILES[::-1], CHARTS, write_steps, "steps_page",
            ask=lambda read: judge(read.attributions[0], per, rules=read.rules, merge_names=merge, replay=replay),
            text=lambda answer: steps_text(answer, top, full=writing.full, markdown=markdown),
        )  # fmt: skip

    answer_reports([report], output, reading, writing, question)
