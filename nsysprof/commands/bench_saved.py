"""``nsysprof bench diff`` and ``nsysprof bench report``: what was measured before, compared or told once more."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from nsysprof.commands.report_options import ChartsOption

_SAMPLES = "samples.json"


def diff_benches(
    before: Annotated[
        Path, typer.Argument(metavar="BEFORE", readable=False, help="A samples.json, or its folder.")
    ],
    after: Annotated[Path, typer.Argument(metavar="AFTER", readable=False, help="The later one.")],
    max_regress: Annotated[
        float,
        typer.Option(metavar="X", min=0, help="How much slower, or larger, it may become: 0.05 for 5 %."),
    ] = 0.05,
    unlike: Annotated[
        bool, typer.Option("--unlike", help="Compare runs of unlike machines or software all the same.")
    ] = False,
) -> None:
    """Compare two saved runs: a row per point and metric; exit code 3 on a significant regression."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from nsysprof.bench.diff import compare_runs
    from nsysprof.bench.samples import read_bench_samples
    from nsysprof.commands.benched import say
    from nsysprof.render.bench.diff_text import diff_table, regression_lines

    diff = compare_runs(read_bench_samples(before), read_bench_samples(after), unlike=unlike)
    print(diff_table(diff), end="", flush=True)
    worse = regression_lines(diff, max_regress)
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
) -> None:
    """Make tables, report and charts of saved samples, without measuring anything."""
    import shutil
    import tempfile

    from nsysprof.commands.benched import make_results, tell_results
    from nsysprof.errors import NsysprofError

    source = samples / _SAMPLES if samples.is_dir() else samples
    folder = output or source.parent
    if not source.is_file():
        raise NsysprofError(f"{source}: no such file", "nsysprof bench writes it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".nsysprof-", dir=folder) as made:
            shutil.copyfile(source, Path(made) / _SAMPLES)
            results = make_results(Path(made), charts=charts)
            files = _moved(Path(made), folder, source, force=force)
    except OSError as error:
        raise NsysprofError(
            f"cannot write {error.filename or folder}: {error.strerror}", "-o DIR for another folder"
        ) from None
    tell_results(results, folder, files, database)


def _moved(made: Path, folder: Path, source: Path, *, force: bool) -> list[Path]:
    """Give the results their names, but leave the samples as they are where they came from."""
    from nsysprof.errors import NsysprofError

    names = sorted(path.name for path in made.iterdir())
    finals = {name: folder / name for name in names}
    if finals[_SAMPLES].exists() and finals[_SAMPLES].samefile(source):
        del finals[_SAMPLES]
    taken = [name for name, final in finals.items() if os.path.lexists(final)]
    if taken and not force:
        raise NsysprofError(
            f"{folder}: holds {', '.join(taken)}, not overwritten",
            f"nsysprof bench report {quote(str(source))} --force, or -o DIR for another folder",
        )
    for name, final in finals.items():
        (made / name).replace(final)
    return list(finals.values())
