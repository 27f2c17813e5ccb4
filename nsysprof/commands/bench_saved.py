"""``nsysprof bench diff`` and ``nsysprof bench report``: what was measured before, compared or told once more."""

from __future__ import annotations

import math
import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from nsysprof.commands.report_options import ChartsOption, SpreadsheetOption

_SAMPLES = "samples.json"


def finite(value: float) -> float:
    """The value of an option, refused where it is infinite or not a number: no limit tells these."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


def diff_benches(
    before: Annotated[
        Path, typer.Argument(metavar="BEFORE", readable=False, help="A samples.json, or its folder.")
    ],
    after: Annotated[Path, typer.Argument(metavar="AFTER", readable=False, help="The later one.")],
    max_regress: Annotated[
        float,
        typer.Option(
            metavar="X",
            min=0,
            callback=finite,
            help="How much slower, or larger, it may become: 0.05 for 5 %.",
        ),
    ] = 0.05,
    unlike: Annotated[
        bool, typer.Option("--unlike", help="Compare runs of unlike machines or software all the same.")
    ] = False,
) -> None:
    """Compare two saved runs: a row per point and metric; exit code 3 on a significant regression or wrong results."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from nsysprof.bench.diff import compare_runs
    from nsysprof.bench.diff_text import diff_table, regression_lines
    from nsysprof.bench.samples import read_bench_samples
    from nsysprof.commands.benched import say

    diff = compare_runs(read_bench_samples(before), read_bench_samples(after), unlike=unlike)
    print(diff_table(diff), end="", flush=True)
    worse = [
        *regression_lines(diff, max_regress),
        *(f"{name}: wrong results after" for name in diff.now_wrong),
    ]
    for line in worse:
        say(f"nsysprof: {line}")
    if worse:
        raise typer.Exit(3)


def report_bench(
    samples: Annotated[
        Path, typer.Argument(metavar="DIR", readable=False, help="A samples.json, or its folder.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of the results [default: that of DIR]."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace results that are there.")] = False,
    database: Annotated[
        Path | None, typer.Option("--db", metavar="FILE", help="Append the results to this SQLite file.")
    ] = None,
    charts: ChartsOption = True,
    spreadsheet_safe: SpreadsheetOption = False,
) -> None:
    """Make tables, report and charts of saved samples, without measuring anything."""
    import shutil

    from nsysprof.bench.files import bench_folder
    from nsysprof.bench.samples import read_bench_samples
    from nsysprof.commands.benched import check_database, make_results, tell_results
    from nsysprof.errors import NsysprofError
    from nsysprof.tools.interrupts import Interrupt, interrupted, interrupts_raised

    source = samples / _SAMPLES if samples.is_dir() else samples
    if not source.is_file():
        raise NsysprofError(f"{source}: no such file", "nsysprof bench writes it")
    read_bench_samples(source)  # complaints name the file that was given, before anything is made
    check_database(database)
    hint = f"nsysprof bench report {quote(str(source))} --force, or -o DIR for another folder"
    folder = bench_folder(
        output or source.parent,
        source,
        charts=charts,
        hint=hint,
        force=force,
        spreadsheet_safe=spreadsheet_safe,
    )
    folder.check()
    try:
        with interrupts_raised(), folder.making() as made:
            shutil.copyfile(source, made / _SAMPLES)
            results = make_results(made, charts=charts)
    except Interrupt as interrupt:
        raise interrupted(interrupt) from None
    tell_results(results, folder, database)
