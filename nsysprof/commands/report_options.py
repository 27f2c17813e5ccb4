"""Options of commands that read reports, defined once so that they mean the same everywhere."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from nsysprof.commands.progress import progress_bar
from nsysprof.commands.screen import print_json, show
from nsysprof.errors import NsysprofError

if TYPE_CHECKING:
    from nsysprof.attribution.attribute import Attribution
    from nsysprof.charts.chart import Chart, Painter
    from nsysprof.results.folder import ResultFolder
    from nsysprof.trace.trace import Progress, Report


_COMPLETED_BYTES = 1 << 26  # a report whose names are read while somebody types


def near_ranges(context: typer.Context, incomplete: str) -> list[str]:
    """Return completions of a range glob: the merged paths in the report that the command line names."""
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


def option(about: str, *shown: str, **more: Any) -> Any:
    """Declare an option: its help, and its names and placeholder if typer's defaults do not fit."""
    names = [each for each in shown if each.startswith("-")]
    metavar = next((each for each in shown if not each.startswith("-")), None)
    return typer.Option(*names, metavar=metavar, help=about, **more)


def glob_option(name: str, about: str) -> Any:
    """Declare an option that takes a range glob; shell completion suggests the ranges in the report."""
    return option(about, "GLOB", name, autocompletion=near_ranges)


ReportArgument = Annotated[
    Path,
    typer.Argument(
        metavar="REPORT",
        readable=False,
        help="A .sqlite or .nsys-rep report, a Parquet export, or a torch.profiler trace.",
    ),
]
ChartsOption = Annotated[bool, option("Draw the PNG charts.", "--charts/--no-charts")]
MergeOption = Annotated[
    list[str] | None,
    option(
        "Merge all ranges whose names match into one row; repeatable [default: steps, such as iter7 or batch 3].",
        "GLOB",
    ),
]
SkipOption = Annotated[int | None, option("Leave out the first N instances of repeating ranges (warm-up).", "N", min=0)]
SlowestOption = Annotated[bool, option("Use only the slowest instance of each range.", "--slowest")]
NoMergeOption = Annotated[bool, option("Keep every range name as recorded.", "--no-merge")]
StepsOption = Annotated[
    str | None,
    glob_option("--range", "Ranges to treat as steps [default: found automatically, in the same way by all commands]."),
]
ReplayOption = Annotated[
    bool, option("Try fixes in a replay of the recording; otherwise, gains are estimates.", "--replay/--no-replay")
]
ThreadsOption = Annotated[
    Literal["follow", "strict"],
    option(
        "Owner of GPU work from threads without an open range: the range open on another thread (follow), "
        "or no range, like nsys (strict).",
        "follow|strict",
    ),
]
RulesOption = Annotated[Path | None, option("TOML file with kernel rules to apply before the shipped rules.", "FILE")]
NsysOption = Annotated[Path | None, option("Path of the nsys to use for exports and for --verify.", "PATH")]
MemoryLimitOption = Annotated[
    str | None,
    option(
        "Memory limit, such as 3GB; larger tables are kept in scratch files [default: half the memory of the machine "
        "or container].",
        "SIZE",
    ),
]
SpreadsheetOption = Annotated[
    bool, option("In CSV files, put a ' before names that a spreadsheet would read as formulas.", "--spreadsheet-safe")
]
JsonOption = Annotated[bool, option("Print the answer as one JSON document.", "--json")]
MarkdownOption = Annotated[bool, option("Print Markdown, for a pull request.", "--md")]


PROCESSOR = Path("/proc/cpuinfo")
AVX_512 = "X86_V4 AVX512_SKX AVX512_ICL"  # in the words of numpy: the first since 2.4, the second before
_MALLOC = {-3: 1 << 22, -1: 1 << 26, -8: 1}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_ARENA_MAX of malloc.h


def _reuse_memory() -> None:
    """Let glibc keep freed columns below 4 MiB for the next ones: to give each back at once is a twentieth of the CPU
    time, and to keep longer ones is a twentieth of the memory.
    """
    from ctypes import CDLL

    with suppress(AttributeError, OSError, TypeError):  # other C libraries
        for name, size in _MALLOC.items():
            CDLL(None).mallopt(name, size)


def _sort_fast() -> None:
    """Import numpy without AVX-512 on AMD Zen 4, which sorts ten times as fast with AVX2."""
    name, processor = "NPY_DISABLE_CPU_FEATURES", b""
    with suppress(OSError), PROCESSOR.open("rb", buffering=0) as file:
        processor = file.read(1 << 12)
    if name not in os.environ and b"AuthenticAMD\ncpu family\t: 25\n" in processor and b" avx512f " in processor:
        os.environ[name] = AVX_512
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImportWarning)
            try:
                import numpy  # noqa: F401
            except RuntimeError:  # a numpy built for AVX-512 only, which a process cannot import again
                os.environ[name] = ""
                os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        del os.environ[name]


@dataclass(frozen=True)
class ReadingOptions:
    """The options for reading reports and attributing GPU ops."""

    threads: ThreadsOption = "follow"
    graphs: Annotated[
        Literal["launched", "captured"],
        option(
            "Attribute the kernels of a CUDA graph to the range that launched the graph, "
            "or to the range that captured it.",
            "launched|captured",
        ),
    ] = "launched"
    ranges: Annotated[
        str,
        option(
            "Kinds of ranges to use: any of nvtx,mpi,openacc,ops,modules,found. auto uses nvtx or annotations "
            "if present, otherwise the other kinds.",
            "LIST",
        ),
    ] = "auto"
    rules: RulesOption = None
    nsys: NsysOption = None
    memory_limit: MemoryLimitOption = None

    def __post_init__(self) -> None:
        # One thread is all that numpy's linear algebra gets to do here; starting more takes 40 ms.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        _reuse_memory()
        _sort_fast()

    @property
    def values(self) -> dict[str, Any]:
        """Return the options as arguments of package functions."""
        return {**vars(self), "memory_limit": bytes_of(self.memory_limit)}

    def attribute(self, report: Report, progress: Progress, reports: int = 1) -> Attribution:
        """Attribute the GPU ops of a report; ``reports`` is the number of reports that share the memory."""
        from nsysprof.attribution.attribute import attribute, option_words

        limit = bytes_of(self.memory_limit) // reports
        attribution = attribute(report, self.threads, progress, limit, self.graphs, self.ranges)
        return replace(attribution, options=option_words(vars(self)))


@dataclass(frozen=True)
class ResultOptions:
    """The files that a command writes in addition to its text."""

    charts: ChartsOption = True
    html: Annotated[bool, option("Also write report.html, a page with all results.", "--html")] = False
    spreadsheet_safe: SpreadsheetOption = False
    force: Annotated[bool, option("Replace any files in the output folder.", "--force")] = False
    full: Annotated[bool, option("Print the whole answer instead of as much as fits on one screen.", "--full")] = False
    as_json: Annotated[
        bool, option("Print the answer as one JSON document, and write files only if -o is given.", "--json")
    ] = False

    def __post_init__(self) -> None:
        if self.as_json:  # whoever reads JSON draws for himself
            object.__setattr__(self, "charts", False)

    def show(self, text: Callable[[], str]) -> None:
        """Print the text, unless JSON is printed instead."""
        if not self.as_json:
            show(text())

    @property
    def of_folder(self) -> dict[str, bool]:
        """The options of a result folder."""
        return {name: value for name, value in vars(self).items() if name not in ("as_json", "full")}

    def check(self, results: ResultFolder, *, asked: bool = True) -> NsysprofError | None:
        """If files are to be written into a folder that nsysprof did not create, raise an error.

        If a folder that was not ``asked`` for cannot be created, return the reason instead of raising an error.
        """
        from nsysprof.results.folder import why_not_writable

        if self.as_json:
            return None
        if not asked and (error := why_not_writable(results.place)):
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
        """Write tables, and the page and charts if requested (``painter`` has the plans of the charts); name the files
        on stderr.

        With ``--json``, print the document (the first file) instead, and write files only if a folder is ``asked`` for.
        """
        from nsysprof.charts.chart import files_of

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
    return option(f"Folder of the results [default: {default}].", "DIR", "--output", "-o")


def bytes_of(memory_limit: str | None) -> int:
    """Return the memory limit in bytes from `MemoryLimitOption`, or the default; raises `NsysprofError` for an invalid
    size.
    """
    from nsysprof.core.arena import default_limit, parse_size

    return default_limit() if memory_limit is None else parse_size(memory_limit)


def options_unfolded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the fields of a command's dataclass parameters into options.

    So each option is declared once, and the `--help` of all commands describes it in the same words.
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
