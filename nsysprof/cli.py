"""The command line: registers the subcommands and turns known failures into one line and a hint."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from nsysprof import __version__
from nsysprof.commands.analyze import analyze
from nsysprof.commands.bench import bench_app
from nsysprof.commands.capture import capture
from nsysprof.commands.check import check
from nsysprof.commands.compare import compare
from nsysprof.commands.counters import counters
from nsysprof.commands.doctor import doctor
from nsysprof.commands.export import export
from nsysprof.commands.fleet import fleet
from nsysprof.commands.forecast import forecast
from nsysprof.commands.scrub import scrub
from nsysprof.commands.steps import steps
from nsysprof.commands.why import why
from nsysprof.core.text import visible
from nsysprof.errors import NsysprofError

app = typer.Typer(
    name="nsysprof",
    help="Read NVIDIA Nsight Systems reports and say where the GPU time went.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nsysprof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Read NVIDIA Nsight Systems reports and say where the GPU time went."""


app.command()(analyze)
app.add_typer(bench_app, name="bench")
app.command(context_settings={"allow_interspersed_args": False})(capture)
app.command()(check)
app.command()(compare)
app.command()(why)
app.command(context_settings={"allow_interspersed_args": False})(counters)
app.command()(doctor)
app.command()(export)
app.command()(fleet)
app.command()(forecast)
app.command()(scrub)
app.command()(steps)


def main() -> None:
    """Run the command line and exit: 0, 1 for a known failure, 2 for usage, 3 for a negative answer."""
    # What is imported and read lives until the end: looking for garbage in it takes a tenth of a short run.
    gc.set_threshold(100_000, 20, 20)
    atexit.register(gc.freeze)
    if sys.stderr is None:  # closed, as by 2>&-: print would take stdout for it, and a file its number
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # range names may hold what the terminal cannot show
    try:
        app()
    except NsysprofError as error:
        _fail(error)
    except OSError as error:
        # Reports and results have errors of their own, so this is stdout, or the folder for temporary files, on a
        # full disk. What stdout still holds would fail once more when Python flushes it on exit: into nothing.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(
            NsysprofError(
                f"cannot write {error.filename or 'the output'}: {error.strerror or error}", "df -h"
            )
        )


def _fail(error: NsysprofError) -> NoReturn:
    """Print one line and the hint, and exit."""
    print(f"nsysprof: {visible(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"  hint: {visible(error.hint)}", file=sys.stderr)
    sys.exit(error.exit_code)
