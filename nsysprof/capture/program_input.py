"""What a program that is run several times, or that writes results, is given: its options and its standard input."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import join
from typing import Any

from nsysprof.core.document import read_if_document
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import WORKLOAD_SCHEMA
from nsysprof.tools.child import Echo

__all__ = ["check_input", "input_kept", "with_results", "workload_results"]


def with_results(program: Sequence[str], results: Path | None) -> list[str]:
    """The command of a program; that of a workload writes its own measurements to ``results``."""
    return [*program, "--results", str(results)] if results else list(program)


def workload_results(results: Path | None, program: Sequence[str]) -> dict[str, Any] | None:
    """What a workload wrote; None for a program that writes nothing."""
    if results is None:
        return None
    read = read_if_document(results, WORKLOAD_SCHEMA)
    if not read:
        raise NsysprofError(f"{join(program)}: ended well but wrote no results")
    return read


def check_input(once: str, echo: Echo) -> None:
    """Raises `NsysprofError` where a program is to run twice and its second run would miss what a pipe holds.

    ``once`` is the option with which it runs once. An open pipe that holds nothing yet may be one that nobody reads,
    as under many a batch system: of that ``echo`` is told.
    """
    waits = _waits()
    if waits:
        raise NsysprofError(
            "the program reads a pipe, and it runs twice: its second run would find nothing there",
            f"< FILE, < /dev/null where it reads nothing, or {once} to run it once",
        )
    if waits is None:
        echo("standard input is a pipe: what the first run reads from it, the second will not have\n")


def _waits() -> bool | None:
    """Whether a pipe on the standard input holds something; False for all that is none, None for nothing so far."""
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
    """What is read meanwhile from a file on the standard input is there for the next run too."""
    try:
        read: int | None = os.lseek(0, 0, os.SEEK_CUR)
    except OSError:  # a pipe, a terminal
        read = None
    yield
    if read is not None:
        os.lseek(0, read, os.SEEK_SET)
