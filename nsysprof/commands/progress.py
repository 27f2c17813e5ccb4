"""Messages on stderr while a command runs, and a progress bar after one second."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from nsysprof.core.text import visible

_PATIENCE_S = 1.0


def print_message(text: str) -> None:
    """Print lines on stderr, with control characters escaped."""
    echo("".join(f"{visible(line)}\n" for line in text.split("\n")))


def echo(text: str) -> None:
    """Print on stderr without buffering, such as a program's output; continues if stderr is closed."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


@contextmanager
def progress_bar(total: Callable[[], int] | None = None) -> Iterator[Callable[[str, int], None]]:
    """Yield a callback ``(step, rows done)`` that moves a bar on stderr, shown after one second and on terminals only.

    ``total`` is called when the bar appears, and returns the number of rows. A step without rows makes the bar pulse.
    """
    if not sys.stderr.isatty():
        yield lambda step, rows: None
        return
    lock = threading.Lock()
    bar: Any = None
    task: Any = None
    now, done, expected = "", 0, None

    def show() -> None:
        nonlocal bar, task
        from rich.console import Console
        from rich.progress import Progress

        with lock:
            bar = Progress(transient=True, console=Console(stderr=True), redirect_stdout=False)
            task = bar.add_task(now, total=None)
            bar.start()

    def advance(step: str, rows: int) -> None:
        nonlocal now, done, expected
        now, done = step, done + rows
        with lock:
            if bar is None:
                return
            if expected is None and total is not None:
                expected = total()
            if rows:
                bar.update(task, description=step, completed=done, total=expected)
            else:
                bar.reset(task, description=step, total=None)

    timer = threading.Timer(_PATIENCE_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        timer.join()
        if bar is not None:
            bar.stop()
