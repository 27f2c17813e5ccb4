"""What a program that is run several times, or that writes results, is given: its options and its standard input."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import join
from typing import Any

from nsysprof.capture.record import read_json
from nsysprof.errors import NsysprofError

__all__ = ["input_kept", "with_results", "workload_results"]

WORKLOAD_SCHEMA = "nsysprof-workload/1"


def with_results(program: Sequence[str], results: Path | None) -> list[str]:
    """The command of a program; that of a workload writes its own measurements to ``results``."""
    return [*program, "--results", str(results)] if results else list(program)


def workload_results(results: Path | None, program: Sequence[str]) -> dict[str, Any] | None:
    """What a workload wrote; None for a program that writes nothing."""
    if results is None:
        return None
    read = read_json(results)
    if read.get("schema") != WORKLOAD_SCHEMA:
        raise NsysprofError(f"{join(program)}: ended well but wrote no results")
    return read


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
