"""``nsysprof hotspots``: find the kernel to optimize first, its limit, and the gain per step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from nsysprof.commands import report_options as options
from nsysprof.commands.question import Question, answer_reports
from nsysprof.commands.report_options import option

if TYPE_CHECKING:
    from nsysprof.hotspots.hotspots import Hotspots


@options.options_unfolded
def hotspots(
    report: options.ReportArgument,
    select: options.StepsOption = None,
    by: Annotated[Literal["kernel", "family"], option("Make a row per kernel, or a row per kernel family.")] = "kernel",
    counters: Annotated[
        Path | None,
        option("File with hardware counters of the same program [default: the .counters.csv beside REPORT].", "CSV"),
    ] = None,
    peaks: Annotated[
        Path | None,
        option("Results of bench --measure-peaks on this GPU; the measured peaks replace data-sheet peaks.", "FILE"),
    ] = None,
    output: Annotated[Path | None, options.folder_option("REPORT.hotspots in the current folder")] = None,
    top: Annotated[int, option("Number of rows to print per table.", "N", min=1)] = 10,
    markdown: options.MarkdownOption = False,
    no_merge: options.NoMergeOption = False,
    replay: options.ReplayOption = True,
    *,
    reading: options.ReadingOptions,
    writing: options.ResultOptions,
) -> None:
    """Find the kernels of REPORT that take most of a step, what limits each kernel, and the time that it could save per
    step.
    """

    def question() -> Question[Hotspots]:
        from nsysprof.attribution.paths import DEFAULT_MERGE
        from nsysprof.hotspots.charts import CHARTS
        from nsysprof.hotspots.files import FILES, SCHEMA, write_hotspots
        from nsysprof.hotspots.hotspots import hotspots as find
        from nsysprof.hotspots.text import hotspots_text

        merge = None if no_merge else DEFAULT_MERGE
        return Question(
            "hotspots", "hot spots", "hot spots", SCHEMA, FILES[::-1], CHARTS, write_hotspots, "hotspots_page",
            ask=lambda read: find(
                read.attributions[0], select, by=by, rules=read.rules, merge_names=merge, counters=counters,
                peaks=peaks, replay=replay,
            ),
            text=lambda answer: hotspots_text(answer, top, full=writing.full, markdown=markdown),
        )  # fmt: skip

    answer_reports([report], output, reading, writing, question)
