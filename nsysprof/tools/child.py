"""Run a child process: pass on and log its output while it runs, and forward the first interrupt."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from nsysprof.errors import NsysprofError
from nsysprof.tools.interrupts import Interrupt, interrupts_to

if TYPE_CHECKING:
    from psutil import Process


Echo = Callable[[str], None]
"""Called with each piece of output as it arrives."""

_PIECE, _TAIL = 1 << 16, 1 << 16
_SILENCE_S = 2  # after a program has ended, for what others that it started still print
_LOOK_S = 1  # how often to look whether nsys still gets on
_PATIENCE_S = 10  # after an interrupt, for programs that nsys leaves running
_LAUNCHER = "nsys-launcher"
# An idle nsys takes about 40 ticks of CPU time (of 10 ms) in this time, one that is importing thousands.
_IDLE_S, _IDLE_TICKS = 60.0, 120


@dataclass(frozen=True)
class Ended:
    """How a program ended: exit code as in a shell (128 + n for signal n), wall time, and its last output.

    ``lost``: whether nsysprof ended the program, because an nsys whose launcher was killed would wait forever.
    """

    code: int
    wall_ns: int
    output: str = ""
    lost: bool = False


def run_child(command: Sequence[str], log: Path, echo: Echo, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a command to its end; the output goes to ``echo`` and is appended to the file ``log``.

    ``environment`` defaults to nsysprof's own.

    The first interrupt is forwarded to the command, which may need time to end, because nsys writes its data. The
    second interrupt kills the command and all its children. Raises `Interrupt` after an interrupt, and `NsysprofError`
    if the command cannot be started.
    """
    stopping = _Stopping(echo)
    # Without a buffer: what does not go onto a full disk must not wait for the file to be closed.
    with log.open("ab", buffering=0) as kept, interrupts_to(stopping.interrupt):
        begin = time.perf_counter_ns()
        child = _started(command, environment)
        stopping.begin(child)
        output = _Output(child, kept, echo)
        with _ended_if_lost(child) as lost:
            code = _waited(child)
            wall = time.perf_counter_ns() - begin
        output.finish(stopping.came)
        if stopping.came:
            stopping.wait()
            raise Interrupt(stopping.came[0])
    return Ended(128 - code if code < 0 else code, wall, output.tail(), bool(lost))


def _started(command: Sequence[str], environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    how: dict[str, Any] = {"env": environment}
    if sys.platform == "win32":
        how["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
    else:
        # In a session of its own the command gets a Ctrl-C from here only, and not a second time from the terminal:
        # a second one makes nsys drop the report.
        how["start_new_session"] = True
    try:
        return subprocess.Popen(list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, **how)
    except OSError as error:
        raise NsysprofError(f"{command[0]}: cannot be run: {error.strerror}", f"ls -l {quote(command[0])}") from None


def _waited(child: subprocess.Popen[bytes]) -> int:
    # Windows hands no Ctrl-C to a thread that waits without end.
    patience = 0.2 if sys.platform == "win32" else None
    while True:
        try:
            return child.wait(patience)
        except subprocess.TimeoutExpired:
            continue


@contextlib.contextmanager
def _ended_if_lost(child: subprocess.Popen[bytes]) -> Iterator[list[bool]]:
    """Meanwhile, end an nsys that would wait forever, and its agents, and note that in the list."""
    lost: list[bool] = []
    over = threading.Event()

    def look() -> None:
        watch = LauncherWatch(child.pid, lambda: (agent.pid for agent in _agents(child)))
        while not over.wait(_LOOK_S):
            if watch.waits_for_ever():
                lost.append(True)
                child.send_signal(signal.SIGINT)  # it writes down what it has
                if not over.wait(_PATIENCE_S):
                    child.kill()
                break

    thread = threading.Thread(target=look, daemon=True)
    if sys.platform == "linux":
        thread.start()
    try:
        yield lost
    finally:
        over.set()
    for agent in _agents(child) if lost else ():
        with contextlib.suppress(OSError):
            os.kill(agent.pid, signal.SIGTERM)


class _Output:
    """The output of a child, which a thread copies to a log and an echo; its end is kept."""

    def __init__(self, child: subprocess.Popen[bytes], log: Any, echo: Echo) -> None:
        self._child, self._log, self._echo = child, log, echo
        self._last = bytearray()
        self._busy = self._over = False
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def finish(self, interrupts: Sequence[int]) -> None:
        """Wait for the end of the output; do not wait for processes that outlive the child and keep the pipe open."""
        self._thread.join(_SILENCE_S)
        while self._busy and not interrupts:  # the terminal is what holds it up
            self._thread.join(0.1)
        self._over = True

    def tail(self) -> str:
        """The last 64 KiB."""
        return bytes(self._last[-_TAIL:]).decode("utf-8", "replace")

    def _copy(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        targets: list[Callable[[bytes], object]] = [self._log.write, lambda piece: self._echo(decoder.decode(piece))]
        assert self._child.stdout is not None
        with self._child.stdout as source:
            while (piece := source.read(_PIECE)) and not self._over:
                self._busy = True
                self._last += piece
                del self._last[: -2 * _TAIL]
                for target in tuple(targets):
                    try:
                        target(piece)
                    except (OSError, ValueError):
                        # A full disk, a closed terminal: the child must not block, and the other still gets it.
                        targets.remove(target)
                self._busy = False


class _Stopping:
    """The effect of interrupts on a child: the first asks it to end, the second kills it and its descendants."""

    def __init__(self, echo: Echo) -> None:
        self.came: list[int] = []
        self._echo = echo
        self._child: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._below: list[Process] = []

    def begin(self, child: subprocess.Popen[bytes]) -> None:
        """Register a child process. Interrupts that arrive while the process starts are forwarded to it."""
        self._child = child
        if self.came:
            self._ask(child)

    def interrupt(self, number: int) -> None:
        """Handle an interrupt."""
        self.came.append(number)
        if self._child is None:
            return
        if self._asked:
            self._kill()
        else:
            self._ask(self._child)

    def wait(self) -> None:
        """Wait a while for programs that outlive nsys, because some programs save their state before they end."""
        until = time.monotonic() + _PATIENCE_S
        while (alive := self._alive()) and time.monotonic() < until and len(self.came) == 1:
            time.sleep(0.05)
        if len(self.came) > 1:
            self._kill()
        elif alive:
            pids = " ".join(str(process.pid) for process in alive)
            self._say(f"the program ignores the interrupt and is still running: kill -9 {pids}")

    def _alive(self) -> list[Process]:
        import psutil  # noqa: PLC0415  only after an interrupt

        alive = []
        for process in self._below:
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
            except psutil.Error:
                continue
        return alive

    def _ask(self, child: subprocess.Popen[bytes]) -> None:
        self._asked = True
        # Now: nsys starts programs in sessions of their own, and once it has ended nothing leads to them.
        self._below = _below(child)
        try:
            if sys.platform == "win32":
                child.send_signal(signal.CTRL_BREAK_EVENT)
            else:
                os.killpg(child.pid, signal.SIGINT)
        except OSError:  # it has just ended
            pass
        self._say("stopping; press again to kill")

    def _kill(self) -> None:
        import psutil  # noqa: PLC0415  only where somebody has lost patience

        if self._child is None:
            return
        below = [*self._below, *_below(self._child), *_agents(self._child)]
        self._child.kill()
        for process in below:
            try:
                process.kill()
            except psutil.Error:
                continue

    def _say(self, text: str) -> None:
        # A closed terminal, or one that is being written to at this moment.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._echo(f"\n{text}\n")


def _below(child: subprocess.Popen[bytes]) -> list[Process]:
    """List the descendants of a child process."""
    import psutil  # noqa: PLC0415  only after an interrupt

    try:
        return psutil.Process(child.pid).children(recursive=True)
    except psutil.Error:
        return []


def _agents(child: subprocess.Popen[bytes]) -> Iterator[Process]:
    """Find the process with which nsys records: named after nsys but not its descendant, it would outlive nsys."""
    import psutil  # noqa: PLC0415  only after an interrupt

    session = re.compile(rf"--session-name=profile-(.*-)?{child.pid}")
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []  # None: it is somebody else's
        if "--start-agent" in line and any(session.fullmatch(one) for one in line):
            yield process


class _Status(NamedTuple):
    """The status of a process under Linux: its name and state, CPU time in ticks, when it began, and how it ended."""

    name: str
    state: str
    ticks: int
    began: str
    code: int


class LauncherWatch:
    """A watch on an nsys; ``agents`` returns the ids of its recording processes."""

    def __init__(self, nsys: int, agents: Callable[[], Iterable[int]]) -> None:
        self._nsys, self._agents = nsys, agents
        self._programs: dict[int, str] = {}
        self._recording: list[int] | None = None
        self._since, self._ticks = -_IDLE_S, -_IDLE_TICKS

    def waits_for_ever(self) -> bool:
        """Return whether this nsys would run forever: its launcher and the launcher's children have ended, and nsys
        idles.

        A launcher may also die of its program's signal; then nsys continues and ends. Returns False for other programs,
        and on systems other than Linux.
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
    """Yield the ids of processes that a process's threads started, without children of ended processes."""
    with contextlib.suppress(OSError):
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
