"""``nsysprof fleet``: analyse many reports, one per rank, on Dask."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsysprof.commands import report_options as options
from nsysprof.commands.progress import print_message, progress_bar
from nsysprof.commands.question import Question, give_answer
from nsysprof.commands.report_options import option
from nsysprof.core.text import plural
from nsysprof.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsysprof.fleet.answer import Fleet
    from nsysprof.fleet.cluster import ClusterChoice
    from nsysprof.fleet.examine import ReportFailure, ReportTask
    from nsysprof.fleet.inputs import ReportFile
    from nsysprof.fleet.range_iterations import Choice
    from nsysprof.formats.rank_answer import ReportAnswer


@options.options_unfolded
def fleet(
    reports: Annotated[
        list[str] | None,
        typer.Argument(metavar="REPORT…", help="Reports, folders of reports, globs, or URLs that fsspec can open."),
    ] = None,
    listed: Annotated[Path | None, option("File that lists the reports, one per line.", "FILE", "--from")] = None,
    output: Annotated[
        Path | None, options.folder_option("NAME.fleet in the current folder, for reports in folder NAME")
    ] = None,
    per: Annotated[
        str | None, option("Ranges to count as iterations [default: steps, such as iter7 or batch 3].", "GLOB")
    ] = None,
    skip: Annotated[int, option("Leave out the first N iterations (warm-up).", "N", min=0)] = 0,
    merge: options.MergeOption = None,
    rank_from: Annotated[
        str | None,
        option(r"Regular expression for the rank in a file name: 'rank_(\d+)' [default: the recorded rank].", "REGEX"),
    ] = None,
    workers: Annotated[int | None, option("Number of local processes [default: one per CPU].", "N", min=1)] = None,
    scheduler: Annotated[
        str | None,
        option(
            "Address of a Dask scheduler: tcp://host:8786, or tls://… Anyone who can reach the scheduler can run "
            "code on its workers.",
            "ADDRESS",
        ),
    ] = None,
    top: Annotated[int, option("Number of ranks to print.", "N", min=1)] = 16,
    strict: Annotated[bool, option("Stop at the first unreadable report.", "--strict")] = False,
    resume: Annotated[bool, option("Continue an unfinished run.", "--resume")] = False,
    *,
    reading: options.ReadingOptions,
    writing: options.ResultOptions,
) -> None:
    """Find the slow rank of a run, and the ranks that wait for it. Each REPORT has one or more ranks."""
    if scheduler is not None and workers is not None:
        raise typer.BadParameter("--workers starts a local cluster: give either --workers or --scheduler")
    from nsysprof.attribution.paths import DEFAULT_MERGE
    from nsysprof.charts.chart import start_painter
    from nsysprof.fleet.answer import fleet_answer
    from nsysprof.fleet.charts import FLEET_CHARTS
    from nsysprof.fleet.cluster import ClusterChoice, check_dask
    from nsysprof.fleet.examine import check_unfinished, kept_in, remove_kept
    from nsysprof.fleet.files import FLEET_FILES, default_folder, fleet_folder, write_fleet
    from nsysprof.fleet.identity import rank_pattern
    from nsysprof.fleet.inputs import find_reports, names_in
    from nsysprof.fleet.range_iterations import Choice
    from nsysprof.fleet.text import fleet_text
    from nsysprof.formats.answers import FLEET_SCHEMA
    from nsysprof.results.folder import why_not_writable

    check_dask(local=scheduler is None)
    pattern = rank_pattern(rank_from) if rank_from is not None else None
    names = [*(reports or ()), *(names_in(listed) if listed is not None else ())]
    if not names:
        raise typer.BadParameter("name the reports, or give --from FILE, where FILE lists them")
    files, notes = find_reports(names)
    asked = [file.name for file in files]
    folder = output or default_folder(names, asked)
    results = fleet_folder(folder, asked, **writing.of_folder)
    unwritten = why_not_writable(folder) if output is None and not resume else None
    kept = kept_in(_scratch() if unwritten else folder)
    _ = unwritten or writing.check(results)
    if not resume and not writing.force:
        check_unfinished(folder)
    choice = Choice(per, tuple(merge or DEFAULT_MERGE), skip)
    asked_for = choice.options(rank_from, threads=reading.threads, graphs=reading.graphs, ranges=reading.ranges)
    tasks = _tasks(files, choice, reading)
    for note in notes:
        print_message(note)
    with _interruptible(None if unwritten else kept, len(tasks)):
        answers, where = _answers(tasks, kept, ClusterChoice(workers, scheduler), resume=resume, strict=strict)
        with progress_bar() as progress:
            progress("comparing ranks", 0)
            answer = fleet_answer(answers, rank_from=pattern, options=asked_for)
    question = Question(
        "fleet", "comparing ranks", "run", FLEET_SCHEMA, FLEET_FILES, FLEET_CHARTS,
        lambda given, made: write_fleet(given, asked, made), "fleet_page",
        ask=lambda _: answer,
        text=lambda given: fleet_text(given, top, full=writing.full),
    )  # fmt: skip
    with start_painter(apart=False) as painter:
        give_answer(question, answer, results, writing, painter, unwritten, asked=output is not None)
    if where:
        print_message(_cost(answer, where))
    if answer.failures:
        print_message(
            f"nsysprof: {len(answer.failures):,} of {len(tasks):,} reports could not be read"
            + "; results of the other reports are kept for --resume" * (unwritten is None)
        )
        raise typer.Exit(1)
    remove_kept(kept)


def _scratch() -> Path:
    """Make a folder that disappears when the program ends."""
    folder = Path(tempfile.mkdtemp(prefix="nsysprof-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _tasks(files: Sequence[ReportFile], choice: Choice, reading: options.ReadingOptions) -> list[ReportTask]:
    from nsysprof.fleet.examine import ReportTask
    from nsysprof.kernels.classify import load_rules

    load_rules(reading.rules)  # what is wrong with it is reported once, not per report
    read = reading.values
    read |= {name: str(path.absolute()) for name in ("rules", "nsys") if (path := read[name])}
    if not reading.memory_limit:
        read["memory_limit"] = None  # a worker knows what it may use
    return [ReportTask(file, choice, **read) for file in files]


@contextlib.contextmanager
def _interruptible(kept: Path | None, total: int) -> Iterator[None]:
    """Let an interrupt end the command with a line about how to resume, if results stay (in ``kept``)."""
    from nsysprof.fleet.examine import count_kept
    from nsysprof.tools.interrupts import Interrupt, interrupted, interrupts_raised

    try:
        with interrupts_raised():
            yield
    except Interrupt as stop:
        if kept and (done := count_kept(kept)):
            print_message(f"results from {done:,} of {total:,} reports are saved: run the command again with --resume")
        raise interrupted(stop) from None


def _answers(
    tasks: Sequence[ReportTask], kept: Path, choice: ClusterChoice, *, resume: bool, strict: bool
) -> tuple[list[ReportAnswer | ReportFailure], ClusterChoice | None]:
    """Get the answers of all reports, each saved immediately, and the cluster (None if all were already saved)."""
    from nsysprof.fleet.cluster import complete_choice, examine_all
    from nsysprof.fleet.examine import keeping, kept_answers

    known = kept_answers(kept, tasks) if resume else {}
    where = complete_choice(choice, len(tasks) - len(known))
    with keeping(kept, anew=not resume), progress_bar(lambda: len(tasks)) as progress:
        answers = examine_all(tasks, where, known=known, keep=kept, strict=strict, progress=progress)
    return answers, where if len(known) < len(tasks) else None


def _cost(answer: Fleet, where: ClusterChoice) -> str:
    """Describe the peak memory of any worker, and its limit."""
    most = format_bytes(int(answer.ranks["peak_bytes"].max()))
    if where.scheduler is not None:
        return f"workers of {where.scheduler}, each using up to {most} of memory"
    limit = format_bytes(where.memory_bytes or 0)
    return f"{plural(where.workers or 0, 'worker')}, each using up to {most} of memory (limit: {limit})"
