"""A progress bar on a terminal for work that takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_PATIENCE_S = 1.0


@contextmanager
def progress_bar(total: Callable[[], int]) -> Iterator[Callable[[str, int], None] | None]:
    """A callback ``(what, rows done)`` that shows a bar on stderr after a second, None where nobody would see it.

    ``total`` is asked for the number of rows when the bar first shows.
    """
    if not sys.stderr.isatty():
        yield None
        return
    began, done, bar = time.monotonic(), 0, None
    task: Any = None

    def advance(what: str, rows: int) -> None:
        nonlocal done, bar, task
        done += rows
        if bar is None:
            if time.monotonic() - began < _PATIENCE_S:
                return
            from rich.progress import Progress

            bar = Progress(transient=True, console=_stderr_console())
            bar.start()
            task = bar.add_task(what, total=total())
        bar.update(task, completed=done, description=what)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.stop()


def _stderr_console() -> Any:
    from rich.console import Console

    return Console(stderr=True)
