"""Options of commands that read reports: defined once, so that they have one name and one meaning everywhere."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer


class Threads(str, Enum):
    """Whose work ``--threads`` gives to a range."""

    FOLLOW = "follow"
    STRICT = "strict"


class Graphs(str, Enum):
    """Where ``--graphs`` books what CUDA graphs replay."""

    LAUNCHED = "launched"
    CAPTURED = "captured"


_Globs = list[str] | None

ReportArgument = Annotated[
    Path,
    typer.Argument(
        metavar="REPORT", readable=False, help="A .sqlite or .nsys-rep report, or a parquet export."
    ),
]
ChartsOption = Annotated[bool, typer.Option("--charts/--no-charts", help="Draw the PNG charts.")]
HtmlOption = Annotated[bool, typer.Option("--html", help="Also write report.html: everything on one page.")]
PerOption = Annotated[
    str | None,
    typer.Option(
        metavar="GLOB", help="Inner ranges that count as calls [default: steps, as iter7, batch 3]."
    ),
]
MergeOption = Annotated[
    _Globs,
    typer.Option(
        metavar="GLOB", help="Names that make one row; repeatable [default: steps, as iter7, batch 3]."
    ),
]
SkipOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Leave out the first N instances of what repeats (warm-up)."),
]
NoMergeOption = Annotated[bool, typer.Option("--no-merge", help="Keep every name as recorded.")]
ThreadsOption = Annotated[
    Threads,
    typer.Option(
        metavar="follow|strict",
        help="Work of threads without a range: follow the range open elsewhere, or, as nsys does, own thread only.",
    ),
]
GraphsOption = Annotated[
    Graphs,
    typer.Option(
        metavar="launched|captured",
        help="What CUDA graphs replay belongs to the range that launched the graph, or that captured it.",
    ),
]
RangesOption = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="Which ranges count, of nvtx,mpi,openacc,found; auto: nvtx alone, or without any the others.",
    ),
]
RulesOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Kernel rules (TOML) to ask before the shipped ones.")
]
NsysOption = Annotated[Path | None, typer.Option(metavar="PATH", help="The nsys to export with.")]
MemoryLimitOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Keep what would take more memory, such as 3GB, in scratch files [default: half of the memory].",
    ),
]
SpreadsheetOption = Annotated[
    bool,
    typer.Option(
        "--spreadsheet-safe", help="In CSV, put a ' before names that a spreadsheet would take for formulas."
    ),
]
ReplaceOption = Annotated[
    bool, typer.Option("--force", help="Replace files in the output folder, whoever made them.")
]


def folder_option(default: str) -> Any:
    """Declare the option ``-o``: the folder of the results; ``default`` describes where they go without it."""
    return typer.Option("--output", "-o", metavar="DIR", help=f"Folder of the results [default: {default}].")


def bytes_of(memory_limit: str | None) -> int:
    """Read the bytes that `MemoryLimitOption` names, or its default; `NsysprofError` for what is no size."""
    from nsysprof.core.arena import default_limit, parse_size

    return default_limit() if memory_limit is None else parse_size(memory_limit)
