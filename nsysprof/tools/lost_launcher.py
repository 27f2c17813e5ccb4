"""Notices that nsys waits for ever: its launcher, by which it learns of the end of the program, was killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["LauncherWatch"]

_LAUNCHER = "nsys-launcher"
# An idle nsys takes about 40 ticks of CPU time (of 10 ms) in this time, one that is importing thousands.
_IDLE_S, _IDLE_TICKS = 60.0, 120


class _Status(NamedTuple):
    """The status of a process under Linux: its name and state, CPU time in ticks, when it began, and how it ended."""

    name: str
    state: str
    ticks: int
    began: str
    code: int


class LauncherWatch:
    """Looks at an nsys now and then; ``agents`` are the ids of the processes with which that nsys records."""

    def __init__(self, nsys: int, agents: Callable[[], Iterable[int]]) -> None:
        self._nsys, self._agents = nsys, agents
        self._programs: dict[int, str] = {}
        self._recording: list[int] | None = None
        self._since, self._ticks = -_IDLE_S, -_IDLE_TICKS

    def waits_for_ever(self) -> bool:
        """Whether nothing will end this nsys: its launcher was killed, what that had started is gone, and nsys idles.

        A launcher also dies of the signal of its program; then nsys works on, and ends. False where this is no nsys,
        or no Linux.
        """
        children = {pid: status for pid in _children(self._nsys) if (status := _status(pid))}
        launcher = next((pid for pid, status in children.items() if status.name == _LAUNCHER), None)
        if launcher is None:
            return False
        if children[launcher].state != "Z":
            self._programs = {pid: one.began for pid in _children(launcher) if (one := _status(pid))}
            return False
        if not children[launcher].code & 0x7F or any(self._runs(pid) for pid in self._programs):
            return False
        if self._recording is None:
            self._recording = list(self._agents())
        at_work = [_status(pid) for pid in (self._nsys, *children, *self._recording)]
        ticks = sum(status.ticks for status in at_work if status)
        now = time.monotonic()
        if now - self._since < _IDLE_S:
            return False
        idle = ticks - self._ticks < _IDLE_TICKS
        self._since, self._ticks = now, ticks
        return idle

    def _runs(self, program: int) -> bool:
        status = _status(program)
        return status is not None and status.began == self._programs[program] and status.state not in "ZX"


def _children(process: int) -> Iterator[int]:
    """What the threads of a process have started; the children of what ended are not among them."""
    with suppress(OSError):
        for listed in Path(f"/proc/{process}/task").glob("*/children"):
            yield from map(int, listed.read_text(encoding="ascii").split())


def _status(process: int) -> _Status | None:
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return _Status(name, fields[0], int(fields[11]) + int(fields[12]), fields[19], int(fields[-1]))
