"""End a recording: with the program, at a limit, or (in forked children) before it begins."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import kineto
from .annotate import emitter
from .state import recording, safely

_LOOK_S = 0.25
_LEAST_FREE = 0.15  # of the memory of the machine: to stop takes several times what recording took
_QUIET = 10  # times as long as the limit may pass before the first module, range or optimizer step


def watch_ends() -> None:
    """Write the trace when the program ends, except after signals that cannot be handled; exclude forked children."""
    rec = recording
    os.register_at_fork(after_in_child=_forked, after_in_parent=_fork_counted)
    atexit.register(_ended)
    if rec.order["profiler"] != "torch":
        return
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    own = os._exit

    @functools.wraps(own)
    def leave(status: int) -> None:
        if rec.here and threading.get_ident() == rec.thread:  # another thread leaves where this one hangs
            _ended("os._exit")
        own(status)

    os._exit = leave  # type: ignore[assignment]
    os.execv, os.execve = _ending(os.execv), _ending(os.execve)  # the others call these


def _ending(replace: Callable[..., Any]) -> Callable[..., Any]:
    """Make a call that replaces this process's program end the recording first, if the new program exists."""

    @functools.wraps(replace)
    def ended(path: Any, *given: Any, **named: Any) -> Any:
        if recording.here and recording.profiler and (isinstance(path, int) or os.access(path, os.X_OK)):
            if threading.get_ident() == recording.thread:
                _ended("os.exec")
            else:
                recording.about["state"] = "replaced"
                recording.note("a thread called os.exec, so the recording up to that call is lost")
        return replace(path, *given, **named)

    return ended


def watch_limits() -> None:
    """Stop recording when a limit is reached; ``threading.enumerate()`` does not list the watching thread."""
    import _thread  # noqa: PLC0415

    _thread.start_new_thread(_look_after_limits, ())


@safely
def _ended(why: str = "the end of the program") -> None:
    rec = recording
    if not rec.here:
        return
    if _is_loader_worker() and rec.profiler is not None:
        kineto.discard()
        rec.about["worker"] = True
    if rec.profiler is not None:
        kineto.stop(why)
    else:
        rec.about.update(state="ended", **kineto.place(rec.torch))
        rec.write()


def _is_loader_worker() -> bool:
    """Whether a DataLoader spawned this process, which loads data and ends with its loader."""
    return getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_info", None) is not None


def _terminated(number: int, _frame: object) -> None:
    _ended("SIGTERM")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _look_after_limits() -> None:
    """Stop recording at the requested time limit, or before memory runs out."""
    rec = recording
    limit = rec.order["seconds"]
    while rec.here:
        time.sleep(_LOOK_S)
        if rec.profiler is None:
            continue
        now = time.monotonic()
        began = max(rec.first, rec.began) if rec.first else now
        if now - began > limit or now - rec.began > limit * _QUIET:
            _stop_from_here(f"the limit of {limit:g} s: --seconds")
        elif _free_share() < _LEAST_FREE:
            _stop_from_here("the machine is almost out of memory")


def _stop_from_here(why: str) -> None:
    """Stop in the main thread, between two bytecodes: torch's profiler belongs to the thread that started it."""
    import ctypes  # noqa: PLC0415

    done = threading.Event()

    def call(_: object) -> int:
        safely(kineto.stop)(why, limited=True)
        done.set()
        return 0

    pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
    if ctypes.pythonapi.Py_AddPendingCall(pending, None) == 0:
        done.wait()


def _free_share() -> float:
    """Return the free share of the memory of the machine or, if less, of the container; 1 if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            lines = dict(line.split(":") for line in file)
        free = int(lines["MemAvailable"].split()[0]) / int(lines["MemTotal"].split()[0])
    except (OSError, KeyError, ValueError):
        free = 1.0
    try:
        used, most = (
            Path("/sys/fs/cgroup", name).read_text(encoding="ascii") for name in ("memory.current", "memory.max")
        )
        return min(free, 1 - int(used) / int(most))
    except (OSError, ValueError):
        return free


def _fork_counted() -> None:
    recording.about["forks"] += 1


def _forked() -> None:
    """Keep a forked child away from the profiler, whose locks it inherits, but not its threads."""
    rec = recording
    recorded, rec.disabled, rec.profiler = rec.profiler is not None, True, None
    started = recorded or rec.began
    emitter.on = False
    if signal.getsignal(signal.SIGTERM) is _terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not started:
        return
    torch = rec.torch
    try:
        torch._C._autograd._clear_callbacks()
        torch.autograd._enable_record_function(False)
        torch.autograd.profiler._run_on_profiler_stop()
        import ctypes  # noqa: PLC0415

        # At its end, Kineto would wait for a thread that only its parent has: end before, with all files written.
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)
    except Exception:  # another torch, another libc: nothing that the child could do about it
        return
