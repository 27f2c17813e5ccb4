"""``nsysprof check``: check a report against a budget."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from nsysprof.commands import report_options as options
from nsysprof.commands.progress import progress_bar
from nsysprof.commands.report_options import option
from nsysprof.commands.screen import print_json, show, show_next
from nsysprof.core.text import command_line, path_option, plural, quote_path, visible

_DRAFT = Path("budget.toml")


@options.options_unfolded
def check(
    report: options.ReportArgument,
    budget: Annotated[
        Path | None, typer.Argument(metavar="BUDGET", readable=False, help="TOML file with the limits.")
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        option(
            "Baseline for growth limits: an earlier report or its analysis folder; repeat for each run. "
            "With --init: another report that the budget must accept.",
            "BASE",
        ),
    ] = None,
    init: Annotated[bool, option("Write a budget that this report meets.", "--init")] = False,
    output: Annotated[
        Path | None, option("File that --init writes [default: budget.toml].", "FILE", "--output", "-o")
    ] = None,
    force: Annotated[bool, option("Let --init replace an existing file.", "--force")] = False,
    skip: options.SkipOption = None,
    instance: Annotated[
        str | None, option("Check only these instances of each range, counted from 0.", "N|N-M")
    ] = None,
    no_merge: options.NoMergeOption = False,
    as_json: options.JsonOption = False,
    as_md: Annotated[bool, option("Print the result as Markdown, for a pull request.", "--md")] = False,
    *,
    reading: options.ReadingOptions,
) -> None:
    """Compare REPORT with BUDGET and print the broken limits. Exit code 3: at least one limit is broken."""
    if init:
        if budget or as_json or as_md or skip is not None or instance or no_merge:
            raise typer.BadParameter("--init takes only a report, --baseline, -o, --force and report-reading options")
        _draft(report, baseline or [], output or _DRAFT, reading.values, force=force)
        return
    if budget is None:
        raise typer.BadParameter("a budget is missing: nsysprof check REPORT BUDGET")
    if output or force:
        raise typer.BadParameter("-o and --force need --init")
    if as_json and as_md:
        raise typer.BadParameter("give either --json or --md, not both")
    if instance and skip:
        raise typer.BadParameter("give either --skip or --instance, not both")

    from nsysprof.attribution.attribute import option_words
    from nsysprof.attribution.paths import read_instances
    from nsysprof.check.budget import read_budget
    from nsysprof.check.check import check as check_report
    from nsysprof.check.text import check_document, check_markdown, check_summary

    changed: dict[str, Any] = {} if skip is None else {"skip": skip}
    changed |= {"merge": None} if no_merge else {}
    changed |= {"skip": 0, "instances": read_instances(instance)} if instance else {}
    asked = replace(read_budget(budget), **changed)
    with progress_bar() as progress:
        answer = check_report(report, asked, baseline=baseline, **reading.values, progress=progress)
    if as_json:
        print_json(check_document(answer))
    elif as_md:
        print(check_markdown(answer), end="", flush=True)
    else:
        show(check_summary(answer))
        found = [str(each) for each in answer.broken[answer.broken["instances"] > 0]["range"]]
        asked_for = (path_option(found[0]) if found else "", *option_words(reading.values))
        show_next(command_line("analyze", report, *asked_for, "--no-merge" if no_merge else ""))
    if not answer.ok:
        raise typer.Exit(3)


def _draft(report: Path, baseline: list[Path], out: Path, reading: dict[str, Any], *, force: bool) -> None:
    from nsysprof.attribution.attribute import option_words
    from nsysprof.check.check import draft
    from nsysprof.results.folder import new_files

    with new_files(out, force=force, inputs=(report, *baseline)) as folder:
        with progress_bar() as progress:
            text = draft(report, baseline=baseline, **reading, progress=progress)
        (folder / out.name).write_text(text, encoding="utf-8")
    tables = text.count("\n[[range]]")
    print(f"Written to {visible(str(out))}: limits on {plural(tables, 'range')}", file=sys.stderr)
    nsys = f"--nsys {quote_path(reading['nsys'])}" if reading["nsys"] else ""
    show_next(command_line("check", report, out, *option_words(reading), nsys))
