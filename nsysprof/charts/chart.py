"""Declare charts once, draw them in a separate process, and write them as files.

Importing matplotlib takes as long as the whole analysis of a small report, and drawing the charts takes as long again.
A second Python process, started before the analysis, imports matplotlib and draws on another core. The process reads
plans from a pipe, returns PNG pictures, and never touches files. If the second process fails, this process draws the
charts.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from nsysprof.errors import NsysprofError

if TYPE_CHECKING:  # what it imports must not keep the other process waiting
    from matplotlib.figure import Figure

    from nsysprof.charts.marks import Plan

_A = TypeVar("_A")  # the answer that a room's charts show
# The modules come from where they come from here, whatever the current folder holds.
_START = "import sys; sys.path[:] = sys.argv[1:]; from nsysprof.charts.chart import serve; serve()"
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Chart(Generic[_A]):
    """The file name of a chart, its caption on a page, and the function that plans it from a result."""

    file: str
    caption: str
    plan: Callable[[_A], Plan]

    def figure(self, answer: _A) -> Figure:
        """Return the chart as a plain figure, for notebooks and talks."""
        from nsysprof.charts.drawing import draw  # noqa: PLC0415 (matplotlib is slow to import)

        return draw(self.plan(answer))


def files_of(charts: Sequence[Chart[_A]]) -> tuple[str, ...]:
    """The file names."""
    return tuple(chart.file for chart in charts)


def plans_of(charts: Sequence[Chart[_A]], answer: _A) -> list[Plan]:
    """Return the plans of the charts for a result, in order, for a `Painter`."""
    return [chart.plan(answer) for chart in charts]


def pictures_of(charts: Sequence[Chart[_A]], answer: _A) -> dict[str, bytes]:
    """Draw charts of a result in this process; return PNG pictures by file name."""
    return {chart.file: _picture()(chart.plan(answer)) for chart in charts}


def save_charts(charts: Sequence[Chart[_A]], answer: _A, folder: Path) -> list[Path]:
    """Draw charts into a folder, which is created if missing; write each file atomically, and return the paths.

    Raises `NsysprofError` if a file cannot be written.
    """
    from nsysprof.core.files import whole_file  # noqa: PLC0415 (the other process must not wait for it)

    paths = [Path(folder, name) for name in files_of(charts)]
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path, picture in zip(paths, pictures_of(charts, answer).values(), strict=True):
            with whole_file(path) as part:
                part.write_bytes(picture)
    except OSError as error:
        raise NsysprofError(
            f"cannot write charts into {folder}: {error.strerror or error}", "choose another folder with -o"
        ) from error
    return paths


class Painter:
    """Draw plans once: in the given process or, if there is none or it fails, in this process.

    Closing the painter ends the other process immediately.
    """

    def __init__(self, process: subprocess.Popen[bytes] | None) -> None:
        self._process = process
        self._plans: Sequence[Plan] = ()
        self._sent = False

    def paint(self, plans: Sequence[Plan]) -> None:
        """Start drawing; returns immediately if another process draws."""
        self._plans = plans
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError), self._process.stdin as requests:  # it may be gone
                pickle.dump(plans, requests, pickle.HIGHEST_PROTOCOL)
                self._sent = True

    def pictures(self) -> list[bytes]:
        """Wait for the PNG files of the plans, in order."""
        pictures = [self._answer() or _picture()(plan) for plan in self._plans]
        self._sent = False
        return pictures

    def _answer(self) -> bytes | None:
        """The next picture, or None if this process must draw the chart."""
        if self._sent and self._process is not None and self._process.stdout is not None:
            with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
                answer = pickle.load(self._process.stdout)
                return answer if isinstance(answer, bytes) else None
        return None

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._sent or not self._plans:  # it is busy, or waits
            _stop(process, signal.SIGTERM)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            _stop(process, getattr(signal, "SIGKILL", signal.SIGTERM))
            process.wait()


@contextlib.contextmanager
def start_painter(*, apart: bool = True) -> Iterator[Painter]:
    """Start a painter.

    The painter uses its own process if ``apart`` is set, if there is a second core, and if the process can be started.
    """
    process = None
    if apart and _cores() > 1 and sys.executable and not getattr(sys, "frozen", False):
        with contextlib.suppress(OSError):
            process = subprocess.Popen(
                [sys.executable, "-c", _START, *(place for place in sys.path if isinstance(place, str))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # One thread of linear algebra is plenty, and no window system is needed.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"},
                start_new_session=True,  # Ctrl-C is for this process, which then ends that one
            )
    painter = Painter(process)
    try:
        yield painter
    finally:
        painter.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _stop(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, number)
            else:
                process.terminate()


def _picture() -> Callable[[Plan], bytes]:
    from nsysprof.charts.drawing import picture  # noqa: PLC0415 (matplotlib is slow to import)

    return picture


def serve() -> None:
    """Read a list of plans from stdin; write a PNG file for each plan, or None if drawing fails."""
    gc.disable()  # importing makes no garbage, and looking for it takes a fifth of the time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # in order: matplotlib may have a temporary folder
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else gets between the answers
    from nsysprof.charts.drawing import pictures  # noqa: PLC0415 (matplotlib is slow to import)

    with contextlib.suppress(EOFError):
        for answer in pictures(pickle.load(requests)):
            pickle.dump(answer, answers)
            answers.flush()
    gc.freeze()  # nor when Python ends
