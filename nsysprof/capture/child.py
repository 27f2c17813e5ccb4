"""Runs a program, hands its output on while it runs, keeps it in a log, and passes interrupts to it once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysprof.errors import NsysprofError

__all__ = ["Echo", "Ended", "run_child"]

Echo = Callable[[str], None]
"""Called with each piece of output as it comes."""

INTERRUPTED = 130
_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


@dataclass(frozen=True)
class Ended:
    """How a program ended: exit code as a shell gives it (128 + n for signal n), wall time, interrupted or not."""

    code: int
    wall_ns: int
    interrupted: bool = False


def run_child(
    command: Sequence[str], log: Path, echo: Echo, environment: Mapping[str, str] | None = None
) -> Ended:
    """Run a command to its end; what it prints goes to ``echo`` and is appended to the file ``log``.

    The first interrupt (Ctrl-C, SIGTERM, SIGHUP) is sent on to the command, which may take its time to end, as nsys
    does to write what it has; the second kills it and all that it started. ``environment`` is added to this process's
    own. Raises `NsysprofError` where the command cannot be started.
    """
    kwargs: dict[str, Any] = {}
    if sys.platform == "win32":
        kwargs["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
    else:
        # In a session of its own the command hears of a Ctrl-C from here only, and not a second time from the terminal:
        # a second one makes nsys drop the report.
        kwargs["start_new_session"] = True
    begin = time.perf_counter_ns()
    with log.open("ab") as kept:
        try:
            child = subprocess.Popen(
                list(command),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                **kwargs,
            )
        except OSError as error:
            raise NsysprofError(
                f"{command[0]}: cannot be run: {error.strerror}", f"ls -l {command[0]}"
            ) from None
        with _passing_interrupts(child, echo) as interrupted:
            reader = threading.Thread(target=_copy, args=(child, kept, echo), daemon=True)
            reader.start()
            code = child.wait()
            # A process that outlives the command may hold the pipe open for ever.
            reader.join(timeout=2)
            if not reader.is_alive():
                assert child.stdout is not None
                child.stdout.close()
    wall = time.perf_counter_ns() - begin
    if interrupted:
        return Ended(INTERRUPTED, wall, interrupted=True)
    return Ended(128 - code if code < 0 else code, wall)


def _copy(child: subprocess.Popen[bytes], log: Any, echo: Echo) -> None:
    """Hand on what the child prints, as it comes."""
    assert child.stdout is not None
    full = False
    while piece := child.stdout.read1(65536):  # type: ignore[attr-defined]
        if not full:
            try:
                log.write(piece)
                log.flush()
            except (OSError, ValueError):
                full = True  # the disk: what comes is still shown, and the child must not block
        echo(piece.decode("utf-8", "replace"))


@contextmanager
def _passing_interrupts(child: subprocess.Popen[bytes], echo: Echo) -> Iterator[list[int]]:
    """Send interrupts to the child; the list holds those that came."""
    came: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        came.append(number)
        if len(came) == 1:
            echo("\nstopping: once more to kill\n")
            _send(child, signal.SIGINT)
        else:
            _kill(child)

    if threading.current_thread() is not threading.main_thread():
        yield came  # only the main thread may handle signals; its own handling is left as it is
        return
    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    try:
        if sys.platform == "win32":
            child.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            os.killpg(child.pid, number)
    except ProcessLookupError:
        pass


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and all below it: nsys starts the program in a session of its own."""
    import psutil  # noqa: PLC0415  only where somebody has lost patience

    try:
        below = psutil.Process(child.pid).children(recursive=True)
    except psutil.Error:
        below = []
    child.kill()
    for process in below:
        try:
            process.kill()
        except psutil.Error:
            continue
