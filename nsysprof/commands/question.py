"""Answer a question about reports for a command: read the reports, ask, draw, print, and write files and a page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nsysprof.commands.progress import progress_bar
from nsysprof.commands.report_options import ReadingOptions, ResultOptions
from nsysprof.core.text import visible

if TYPE_CHECKING:
    from nsysprof.attribution.attribute import Attribution
    from nsysprof.charts.chart import Chart, Painter
    from nsysprof.errors import NsysprofError
    from nsysprof.kernels.classify import Rules
    from nsysprof.results.folder import ResultFolder

A = TypeVar("A")


@dataclass(frozen=True)
class Read:
    """The input of a question: the reports as named by the user, the kernel rules, and a reader of other reports."""

    attributions: Sequence[Attribution]
    rules: Rules
    another: Callable[[Path], Attribution]


@dataclass(frozen=True)
class Question(Generic[A]):
    """A question that the package ``room`` answers: ``ask`` returns the result, and ``text`` formats it.

    ``doing`` is the text of the progress bar, ``earlier`` the name of an earlier result in messages. ``write`` makes
    the ``files`` in a folder, and the first file is the document with ``schema``; ``page`` is a function in the
    package's `page.py`. ``drawn`` selects from the ``charts``. ``ending`` is the ending of the folder name (by default,
    ``room``). ``pictures``: the names of all picture files, needed if ``charts`` may be incomplete. ``notes``:
    what ``write`` left out.
    """

    room: str
    doing: str
    earlier: str
    schema: str
    files: Sequence[str]
    charts: Sequence[Chart[A]]
    write: Callable[[A, Path], Sequence[Path]]
    page: str
    ask: Callable[[Read], A]
    text: Callable[[A], str]
    drawn: Callable[[A], Sequence[Chart[A]]] | None = None
    ending: str = ""
    pictures: Sequence[str] = ()
    notes: Sequence[str] = ()


def answer_reports(
    reports: Sequence[Path],
    output: Path | None,
    reading: ReadingOptions,
    writing: ResultOptions,
    question_of: Callable[[], Question[A]],
) -> A:
    """Answer a question about reports: print the text, write the files, and return the result.

    ``question_of`` imports modules, and rejects invalid options before a report is read.
    """
    from nsysprof.charts.chart import files_of, start_painter

    with ExitStack() as stack:
        painter = stack.enter_context(start_painter(apart=writing.charts))  # first of all: it imports matplotlib
        from nsysprof.kernels.classify import load_rules
        from nsysprof.results.folder import PAGE, report_folder, report_stem
        from nsysprof.trace.report import open_report

        def opened(file: Path) -> Any:
            return stack.enter_context(open_report(file, nsys=reading.nsys))

        question, rules = question_of(), load_rules(reading.rules)
        files = [opened(file) for file in reports]
        place = output or Path(f"{'-'.join(map(report_stem, reports))}.{question.ending or question.room}")
        drawn = tuple(question.pictures or files_of(question.charts))
        results = report_folder(
            place,
            question.room,
            files[0],
            question.schema,
            question.earlier,
            possible=(*question.files, *drawn, PAGE),
            wanted=(*question.files, *(drawn * writing.charts), *([PAGE] * writing.html)),
            force=writing.force,
            spreadsheet_safe=writing.spreadsheet_safe,
        )
        unwritten = writing.check(results, asked=output is not None)
        with progress_bar(files[0].reader.steps if len(files) == 1 else None) as progress:
            attributions = [reading.attribute(file, progress, len(files)) for file in files]
            progress(question.doing, 0)
            answer = question.ask(Read(attributions, rules, lambda file: reading.attribute(opened(file), progress)))
        give_answer(question, answer, results, writing, painter, unwritten, asked=output is not None)
    return answer


def give_answer(
    question: Question[A],
    answer: A,
    results: ResultFolder,
    writing: ResultOptions,
    painter: Painter,
    unwritten: NsysprofError | None,
    *,
    asked: bool,
) -> None:
    """Draw and print a result, and write its files unless ``unwritten`` gives a reason not to; ``asked``: a folder was
    named.
    """
    from nsysprof.charts.chart import plans_of

    charts = question.drawn(answer) if question.drawn else question.charts
    if writing.charts:
        painter.paint(plans_of(charts, answer))
    writing.show(lambda: question.text(answer))
    if unwritten:
        print(f"Not written: {unwritten.message} ({unwritten.hint})", file=sys.stderr)
        return

    def page(pictures: Sequence[bytes]) -> str:
        from importlib import import_module

        return getattr(import_module(f"nsysprof.{question.room}.page"), question.page)(answer, pictures)

    earlier = _options(results.place / results.possible[0])

    def tables(made: Path) -> Sequence[Path]:
        written = question.write(answer, made)
        results.notes = [*question.notes]
        if earlier and earlier != (now := _options(made / results.possible[0])):
            before = {name: value for name, value in earlier.items() if value != now.get(name)}
            words = ", ".join(f"{name} {value}" for name, value in before.items() if value) or "without options"
            results.notes.append(f"replaced the answer to another question ({visible(words)}): -o DIR keeps both")
        return written

    writing.write(results, tables, charts, painter, page, asked=asked)


def _options(document: Path) -> dict[str, Any]:
    """The options of the earlier result in a folder; empty if there is none, or if they are unknown."""
    from nsysprof.core.document import members_at_head

    options = members_at_head(document).get("options")
    return options if isinstance(options, dict) else {}
