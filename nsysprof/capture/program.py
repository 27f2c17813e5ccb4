"""Handle the profiled program: check it and its input, make its command, read its results, explain its failure."""

import os
import select
import shutil
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import join, quote
from typing import Any

from nsysprof.core.document import read_if_document
from nsysprof.core.text import cut, quote_path
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import WORKLOAD_SCHEMA
from nsysprof.tools.child import Echo

_USAGE = 2  # what argparse exits with
_MAX_SHOWN = 120


def check_program(program: str, profiler: str) -> None:
    """Raise `NsysprofError` for a program that a profiler could not start."""
    if shutil.which(program) is None:
        raise NsysprofError(
            f"{quote(program)}: program not found or not executable", f"ls -l {quote_path(Path(program))}"
        )
    if program.startswith("-"):
        raise NsysprofError(
            f"{program}: {profiler} would read this name as an option", f"-- {shutil.which(program)} ..."
        )


def with_results(program: Sequence[str], results: Path | None) -> list[str]:
    """Return the command of a program; a workload also gets the option to write its measurements to ``results``."""
    return [*program, "--results", str(results)] if results else list(program)


def workload_results(results: Path | None, program: Sequence[str]) -> dict[str, Any] | None:
    """Return the measurements that a workload wrote, or None for other programs."""
    if results is None:
        return None
    measured = read_if_document(results, WORKLOAD_SCHEMA)
    if not measured:
        raise NsysprofError(f"{join(program)}: exited without an error, but wrote no results")
    return measured


def check_input(once: str, echo: Echo) -> None:
    """Raise `NsysprofError` if a program is to run twice, but its piped input would be empty in the second run.

    ``once`` is the option that runs the program once. If an open pipe is still empty, it may have no writer, as in many
    batch systems; ``echo`` then gets a message.
    """
    waits = _waits()
    if waits:
        raise NsysprofError(
            "the program reads a pipe and runs twice, but the pipe is empty in the second run",
            f"use < FILE, or < /dev/null if the program reads no input, or {once} to run it once",
        )
    if waits is None:
        echo("standard input is a pipe, which will be empty in the second run\n")


def _waits() -> bool | None:
    """Return whether a pipe on standard input has data: None for none so far, False if there is no pipe."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
        return False
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    if sys.platform == "win32" or not select.select([0], [], [], 0)[0]:
        return None
    import fcntl  # noqa: PLC0415  Windows has none
    import termios  # noqa: PLC0415

    return any(fcntl.ioctl(0, termios.FIONREAD, bytes(4)))  # nothing to read now: it was closed


@contextmanager
def input_kept() -> Iterator[None]:
    """Rewind a file on standard input afterwards, so that the next run reads the file too."""
    try:
        read: int | None = os.lseek(0, 0, os.SEEK_CUR)
    except OSError:  # a pipe, a terminal
        read = None
    yield
    if read is not None:
        os.lseek(0, read, os.SEEK_SET)


def failed_program(program: Sequence[str], code: int, message: str, log: Path | None) -> NsysprofError:
    """Make the error for a failed program, with its exit code; ``message`` is the last line that the program printed.

    ``log`` is a workload's log, None for other programs. If the workload was called wrongly, the log contains only this
    message and is removed.
    """
    if log is not None and code == _USAGE:
        log.unlink(missing_ok=True)
        return NsysprofError(message, f"{join(program[:2])} --help", exit_code=_USAGE)
    try:
        killed = f" ({signal.Signals(code - 128).name})"
    except ValueError:
        killed = ""
    return NsysprofError(
        f"{shown_program(program)}: failed with exit code {code}{killed}{f': {message}' if message else ''}",
        exit_code=code,
    )


def shown_program(program: Sequence[str]) -> str:
    """Format a command as a readable line."""
    return cut(" ".join(join(program).split()), _MAX_SHOWN)
