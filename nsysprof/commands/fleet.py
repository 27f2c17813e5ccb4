"""``nsysprof fleet``: many reports, a rank each, analysed on Dask."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsysprof.commands.report_options import (
    ChartsOption,
    HtmlOption,
    MemoryLimitOption,
    MergeOption,
    NsysOption,
    ReplaceOption,
    RulesOption,
    SpreadsheetOption,
    Threads,
    ThreadsOption,
    bytes_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nsysprof.fleet.answer import Fleet
    from nsysprof.fleet.cluster import ClusterChoice
    from nsysprof.fleet.examine import ReportAnswer, ReportFailure, ReportTask
    from nsysprof.results.folder import ResultFolder

# Where answers of single reports lie until all are there.
_KEPT = ".answers"


def fleet(
    reports: Annotated[
        list[str] | None,
        typer.Argument(metavar="REPORT…", help="Reports, folders of them, globs, or URLs that fsspec opens."),
    ] = None,
    listed: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="A file of names of reports, one on a line."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder of the results [default: FOLDER.fleet in the current folder, FOLDER that of the reports].",
        ),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(metavar="GLOB", help="Ranges that are iterations [default: iter*, step* and a number]."),
    ] = None,
    skip: Annotated[
        int, typer.Option(min=0, metavar="N", help="Leave out the first N iterations (warm-up).")
    ] = 0,
    merge: MergeOption = None,
    rank_from: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help=r"Finds the rank in a file name: 'rank_(\d+)' [default: what is recorded]."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Local processes [default: one per CPU].")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="A Dask scheduler to use: tcp://host:8786, or tls://… Whoever reaches it runs code on its workers.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many ranks to print.")] = 16,
    charts: ChartsOption = True,
    html: HtmlOption = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first report that cannot be read.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    threads: ThreadsOption = Threads.FOLLOW,
    rules: RulesOption = None,
    nsys: NsysOption = None,
    memory_limit: MemoryLimitOption = None,
    spreadsheet_safe: SpreadsheetOption = False,
    force: ReplaceOption = False,
) -> None:
    """Say which of many ranks is slow, and who waits for whom: REPORT… are of one run, a rank or more each.

    nsysprof fleet traces/

    nsysprof fleet 'job/*/rank_*.sqlite' --workers 8
    """
    if scheduler is not None and workers is not None:
        raise typer.BadParameter("--workers is of a local cluster: leave it out, or --scheduler")
    names = list(reports or ())
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from nsysprof.attribution.paths import DEFAULT_MERGE
    from nsysprof.fleet.charts import FLEET_CHARTS
    from nsysprof.fleet.cluster import ClusterChoice, check_dask, worker_count, worker_memory
    from nsysprof.fleet.examine import ReportTask
    from nsysprof.fleet.files import FLEET_FILES, check_unfinished, fleet_folder
    from nsysprof.fleet.identity import rank_pattern
    from nsysprof.fleet.inputs import find_reports, names_in
    from nsysprof.fleet.kept_answers import answers_in, forget_answers
    from nsysprof.fleet.range_iterations import Choice
    from nsysprof.fleet.text import fleet_text
    from nsysprof.kernels.classify import load_rules
    from nsysprof.results.folder import PAGE

    check_dask(local=scheduler is None)
    load_rules(rules)  # what is wrong with it is told once, not per report
    pattern = rank_pattern(rank_from) if rank_from is not None else None
    names += names_in(listed) if listed is not None else []
    if not names:
        raise typer.BadParameter("name reports, or a file of their names with --from")
    files, notes = find_reports(names)
    asked, drawn = [file.name for file in files], [chart.file for chart in FLEET_CHARTS]
    folder = output or _default_folder(names, asked)
    results = fleet_folder(
        folder,
        asked,
        possible=(*reversed(FLEET_FILES), *drawn, PAGE),
        wanted=[*FLEET_FILES, *(drawn if charts else ()), *((PAGE,) if html else ())],
        force=force,
        spreadsheet_safe=spreadsheet_safe,
    )
    results.check()
    if not resume and not force:
        check_unfinished(folder, _KEPT)
    choice = Choice(per, tuple(merge or DEFAULT_MERGE), skip)
    options: dict[str, Any] = {
        "per": per,
        "merge": list(choice.merge),
        "skip": skip,
        "threads": threads.value,
        "rank_from": rank_from,
    }
    ruled, exporter = (str(path.absolute()) if path else None for path in (rules, nsys))
    limit = bytes_of(memory_limit) if memory_limit else None
    tasks = [ReportTask(file, choice, threads.value, ruled, exporter, limit) for file in files]
    _say(*notes)
    with _telling_what_is_kept(folder, len(tasks)):
        known = answers_in(folder / _KEPT, tasks) if resume else {}
        count = worker_count(ClusterChoice(workers), len(tasks) - len(known))
        where = ClusterChoice(count, scheduler, worker_memory(count))
        answers = _answers(tasks, known, where, folder, resume=resume, strict=strict)
        answer = _together(answers, pattern, options)
    print(fleet_text(answer, top), end="", flush=True)
    _write(answer, asked, results, charts=charts, html=html)
    if len(known) < len(tasks):
        _tell_cost(answer, where)
    if answer.failures:
        _say(
            f"nsysprof: {len(answer.failures):,} of {len(tasks):,} reports could not be read;"
            " the others' answers are kept for --resume"
        )
        raise typer.Exit(1)
    forget_answers(folder / _KEPT)


@contextlib.contextmanager
def _telling_what_is_kept(folder: Path, total: int) -> Iterator[None]:
    """An interrupt meanwhile ends the command, with a line that says how to go on."""
    from nsysprof.tools.interrupts import Interrupt, interrupted, interrupts_raised

    try:
        with interrupts_raised():
            yield
    except Interrupt as stop:
        if kept := sum(1 for _ in (folder / _KEPT).glob("*.npz")):
            _say(f"{kept:,} of {total:,} reports are done and kept: the same command with --resume goes on")
        raise interrupted(stop) from None


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Interrupts wait until this is over."""
    from nsysprof.tools.interrupts import Interrupt, interrupts_to

    came: list[int] = []
    with interrupts_to(came.append):
        yield
    if came:
        raise Interrupt(came[0])


def _answers(
    tasks: Sequence[ReportTask],
    known: Mapping[int, ReportAnswer],
    where: ClusterChoice,
    folder: Path,
    *,
    resume: bool,
    strict: bool,
) -> list[ReportAnswer | ReportFailure]:
    """The answers of all reports, each kept in the folder as soon as it is there."""
    from nsysprof.commands.progress import progress_bar
    from nsysprof.fleet.cluster import examine_all
    from nsysprof.fleet.kept_answers import forget_answers
    from nsysprof.results.files import writing

    kept = folder / _KEPT
    with writing(folder):
        if not resume:
            forget_answers(kept)
        kept.mkdir(parents=True, exist_ok=True)
    try:
        with progress_bar(lambda: len(tasks)) as progress:
            return examine_all(
                tasks,
                where,
                known=known,
                keep=kept,
                strict=strict,
                uninterrupted=_interrupts_held,
                progress=progress,
            )
    finally:
        for empty in (kept, folder):  # nothing is left of a run that kept nothing
            with contextlib.suppress(OSError):
                empty.rmdir()


def _together(
    answers: Sequence[ReportAnswer | ReportFailure], pattern: Any, options: dict[str, Any]
) -> Fleet:
    from nsysprof.commands.progress import progress_bar
    from nsysprof.fleet.answer import fleet_answer

    with progress_bar() as progress:
        progress("comparing ranks", 0)
        return fleet_answer(answers, rank_from=pattern, options=options)


def _write(answer: Fleet, asked: Sequence[str], results: ResultFolder, *, charts: bool, html: bool) -> None:
    """Write the files and say so on stderr."""
    from nsysprof.charts.chart import pictures_of
    from nsysprof.commands.progress import progress_bar
    from nsysprof.fleet.charts import FLEET_CHARTS
    from nsysprof.fleet.files import write_fleet

    def page(pictures: Sequence[bytes]) -> str:
        from nsysprof.fleet.page import fleet_page

        return fleet_page(answer, pictures)

    with progress_bar() as progress:
        written = results.write(
            partial(write_fleet, answer, asked),
            partial(pictures_of, FLEET_CHARTS, answer) if charts else None,
            page if html else None,
            progress,
        )
    _say(written)


def _tell_cost(answer: Fleet, where: ClusterChoice) -> None:
    """What the workers took: the most memory of any, and what it may have been."""
    from nsysprof.core.text import plural
    from nsysprof.core.units import format_bytes

    most = format_bytes(int(answer.ranks["peak_bytes"].max()))
    if where.scheduler is None:
        many = plural(where.workers or 0, "worker")
        limit = format_bytes(where.memory_bytes or 0)
        _say(f"{many}, {most} of memory at most in one; the limit is {limit} each")
    else:
        _say(f"workers of {where.scheduler}, {most} of memory at most in one")


def _default_folder(names: Sequence[str], reports: Sequence[str]) -> Path:
    """After the one folder or report that was named, else after the folder of all reports and how their names begin.

    What every fleet of files was named after before stays where it is about these reports.
    """
    from nsysprof.fleet.files import is_about
    from nsysprof.fleet.inputs import without_ending

    earlier = Path("reports.fleet")
    if len(names) == 1 and Path(names[0]).is_dir():
        return Path(f"{Path(os.path.realpath(names[0])).name or 'reports'}.fleet")
    if is_about(earlier, reports):
        return earlier
    paths = [without_ending(name if "://" in name else os.path.realpath(name)) for name in reports]
    if len(paths) == 1:
        return Path(f"{paths[0].rpartition('/')[2] or 'reports'}.fleet")
    folder, _, start = os.path.commonprefix(paths).rpartition("/")  # noqa: RUF071  names begin alike, not only folders
    parts = (folder.rpartition("/")[2], start.rstrip("0123456789_-. "))
    return Path(f"{'-'.join(filter(None, parts)) or 'reports'}.fleet")


def _say(*texts: str) -> None:
    """Lines for people, on stderr."""
    from nsysprof.core.text import visible

    print(
        "".join(f"{visible(line)}\n" for text in texts for line in text.split("\n")), end="", file=sys.stderr
    )
