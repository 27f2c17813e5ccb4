"""Options of commands that read reports, defined once so that they mean the same everywhere."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from nsysprof.errors import NsysprofError

if TYPE_CHECKING:
    from nsysprof.attribution.attribute import Attribution
    from nsysprof.charts.chart import Chart, Painter
    from nsysprof.results.folder import ResultFolder
    from nsysprof.trace.trace import Progress, Report


_COMPLETED_BYTES = 1 << 26  # a report whose names are read while somebody types


def near_ranges(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a glob of ranges with merged paths of the report on the command line."""
    from contextlib import suppress

    # what stands before an option without its value yet is among the arguments that are left
    report = context.params.get("report") or next(iter(context.args), None)
    found: list[str] = []
    with suppress(Exception):  # a shell shows what goes wrong here in the middle of a line
        if report is not None and Path(report).stat().st_size <= _COMPLETED_BYTES:
            from nsysprof.attribution.attribute import attribute
            from nsysprof.attribution.paths import merged_paths, range_paths
            from nsysprof.trace.report import open_report

            with open_report(report) as opened:
                texts = merged_paths(range_paths(attribute(opened))).texts()
            found = [text for text in texts if text.startswith(incomplete)]
    return found


def glob_option(name: str, about: str) -> Any:
    """Declare an option for a glob of ranges, which shells complete from the report."""
    return typer.Option(name, metavar="GLOB", help=about, autocompletion=near_ranges)


ReportArgument = Annotated[
    Path,
    typer.Argument(
        metavar="REPORT",
        readable=False,
        help="A .sqlite or .nsys-rep report, a parquet export, or a trace of torch.profiler.",
    ),
]
ChartsOption = Annotated[bool, typer.Option("--charts/--no-charts", help="Draw the PNG charts.")]
HtmlOption = Annotated[bool, typer.Option("--html", help="Also write report.html: everything on one page.")]
PerOption = Annotated[
    str | None,
    typer.Option(metavar="GLOB", help="Inner ranges that count as calls [default: steps, as iter7, batch 3]."),
]
MergeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB",
        help=("Merge all ranges whose names match into one row; repeatable [default: steps, as iter7, batch 3]."),
    ),
]
SkipOption = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Leave out the first N instances of repeating ranges (warm-up).")
]
SlowestOption = Annotated[bool, typer.Option("--slowest", help="Only the slowest instance of each range.")]
NoMergeOption = Annotated[bool, typer.Option("--no-merge", help="Keep every name as recorded.")]
StepsOption = Annotated[
    str | None, glob_option("--range", "Ranges that are steps [default: as all commands choose them].")
]
ThreadsOption = Annotated[
    Literal["follow", "strict"],
    typer.Option(
        metavar="follow|strict",
        help=(
            "GPU work launched by a thread without an open range: follow attributes it to the range open "
            "on another thread; strict attributes it to no range, like nsys."
        ),
    ),
]
GraphsOption = Annotated[
    Literal["launched", "captured"],
    typer.Option(
        metavar="launched|captured",
        help=(
            "Attribute the kernels of a CUDA graph to the range that launched the graph, or to the range "
            "that captured it."
        ),
    ),
]
RangesOption = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help=(
            "Kinds of ranges to use: any of nvtx,mpi,openacc,ops,modules,found. auto uses nvtx or "
            "annotations if the report has them, otherwise the other kinds."
        ),
    ),
]
RulesOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Kernel rules (TOML) to apply before the shipped ones.")
]
NsysOption = Annotated[Path | None, typer.Option(metavar="PATH", help="nsys to use for exports and for --verify.")]
MemoryLimitOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory limit, such as 3GB; larger tables go to scratch files [default: half of the memory].",
    ),
]
SpreadsheetOption = Annotated[
    bool,
    typer.Option(
        "--spreadsheet-safe", help=("In CSV files, put a ' before names that a spreadsheet would read as formulas.")
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON document.")]
FullOption = Annotated[bool, typer.Option("--full", help="Print the whole answer instead of one screen of it.")]
MarkdownOption = Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")]
ReplaceOption = Annotated[bool, typer.Option("--force", help="Replace any files in the output folder.")]


_MALLOC = {-3: 1 << 24, -1: 1 << 26}  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h


def _reuse_memory() -> None:
    """Let glibc keep freed columns for the next ones: to give each back at once is a twentieth of the CPU time."""
    from contextlib import suppress
    from ctypes import CDLL

    with suppress(AttributeError, OSError, TypeError):  # other C libraries
        for name, size in _MALLOC.items():
            CDLL(None).mallopt(name, size)


@dataclass(frozen=True)
class ReadingOptions:
    """How reports are read, and how GPU ops are attributed."""

    threads: ThreadsOption = "follow"
    graphs: GraphsOption = "launched"
    ranges: RangesOption = "auto"
    rules: RulesOption = None
    nsys: NsysOption = None
    memory_limit: MemoryLimitOption = None

    def __post_init__(self) -> None:
        # One thread is all that numpy's linear algebra gets to do here; starting more takes 40 ms.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        _reuse_memory()

    @property
    def values(self) -> dict[str, Any]:
        """The options as arguments of package functions."""
        return {**vars(self), "memory_limit": bytes_of(self.memory_limit)}

    def attribute(self, report: Report, progress: Progress, reports: int = 1) -> Attribution:
        """Attribute the GPU ops of a report; ``reports`` is the number of reports that share the memory."""
        from nsysprof.attribution.attribute import attribute

        limit = bytes_of(self.memory_limit) // reports
        return attribute(report, self.threads, progress, limit, self.graphs, self.ranges)


@dataclass(frozen=True)
class ResultOptions:
    """What a command writes in addition to its text."""

    charts: ChartsOption = True
    html: HtmlOption = False
    spreadsheet_safe: SpreadsheetOption = False
    force: ReplaceOption = False
    full: FullOption = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer as one JSON document; write files only with -o.")
    ] = False

    def __post_init__(self) -> None:
        if self.as_json:  # whoever reads JSON draws for himself
            object.__setattr__(self, "charts", False)

    def show(self, text: Callable[[], str]) -> None:
        """Print the text, unless JSON is printed instead."""
        from nsysprof.commands.screen import show

        if not self.as_json:
            show(text())

    @property
    def of_folder(self) -> dict[str, bool]:
        """The options of a result folder."""
        return {name: value for name, value in vars(self).items() if name not in ("as_json", "full")}

    def check(self, results: ResultFolder, *, asked: bool = True) -> NsysprofError | None:
        """If files will be written, refuse a folder that nsysprof did not create.

        If the folder was not ``asked`` for and cannot be created, this is not a failure: return the reason that
        nothing is written.
        """
        from nsysprof.results.folder import writable_around

        if self.as_json:
            return None
        try:
            writable_around(results.place)
        except NsysprofError as error:
            if not asked:
                return error
        results.check()
        return None

    def write(
        self,
        results: ResultFolder,
        tables: Callable[[Path], Sequence[Path]],
        charts: Sequence[Chart[Any]],
        painter: Painter,
        page: Callable[[Sequence[bytes]], str],
        *,
        asked: bool = True,
    ) -> None:
        """Write tables, and the requested page and charts, whose plans ``painter`` has; name them on stderr.

        With ``--json``, print the document (the first file) instead, and write only if a folder is ``asked``.
        """
        from nsysprof.charts.chart import files_of
        from nsysprof.commands.progress import progress_bar
        from nsysprof.commands.screen import print_json

        if self.as_json:
            with tempfile.TemporaryDirectory(prefix="nsysprof-") as folder:
                tables(Path(folder))
                print_json(Path(folder, results.possible[0]))
            if not asked:
                return

        def pictures() -> dict[str, bytes]:
            return dict(zip(files_of(charts), painter.pictures(), strict=True))

        with progress_bar() as progress:
            written = results.write(tables, pictures if self.charts else None, page if self.html else None, progress)
        print(written, file=sys.stderr)


def folder_option(default: str) -> Any:
    """Declare the option ``-o``, the result folder; ``default`` describes its default."""
    return typer.Option("--output", "-o", metavar="DIR", help=f"Folder of the results [default: {default}].")


def bytes_of(memory_limit: str | None) -> int:
    """The bytes in `MemoryLimitOption`, or its default; raises `NsysprofError` for an invalid size."""
    from nsysprof.core.arena import default_limit, parse_size

    return default_limit() if memory_limit is None else parse_size(memory_limit)


def options_unfolded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the fields of a command's dataclass parameters into options.

    So options shared by several commands are declared once, and `--help` describes them alike.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: each.annotation for name, each in signature.parameters.items() if is_dataclass(each.annotation)
    }
    unfolded: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name not in groups:
            unfolded.append(parameter)
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        unfolded += [
            parameter.replace(name=field.name, annotation=hints[field.name], default=field.default)
            for field in fields(groups[name])
        ]

    @functools.wraps(command)
    def folding(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    folding.__signature__ = signature.replace(parameters=unfolded)  # type: ignore[attr-defined]
    return folding
