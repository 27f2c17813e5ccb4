"""Interrupts while a capture runs: Ctrl-C, SIGTERM of a batch system, SIGHUP of a closed terminal."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from nsysprof.errors import NsysprofError

_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class Interrupt(KeyboardInterrupt):
    """An interrupt that came; ``number`` is the signal's. No `Exception`: nothing may swallow it on the way."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def interrupted(interrupt: Interrupt) -> NsysprofError:
    """Return the error to end with, whose exit code is a shell's: 130 for Ctrl-C, 143 for SIGTERM."""
    return NsysprofError("interrupted", exit_code=128 + interrupt.number)


@contextmanager
def interrupts_to(handler: Callable[[int], None]) -> Iterator[None]:
    """Pass interrupts to ``handler`` meanwhile; those that are ignored, as SIGHUP is under nohup, stay ignored.

    Only the main thread may handle signals: in another one nothing is changed.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, lambda number, frame: handler(number))
    try:
        yield
    finally:
        for number, own in before.items():
            # None: a handler that was not set from Python, and that Python cannot set again
            signal.signal(number, signal.SIG_DFL if own is None else own)


@contextmanager
def interrupts_raised() -> Iterator[None]:
    """Raise `Interrupt` for interrupts meanwhile, so that all of them, not only Ctrl-C, let files be cleaned up."""
    came: list[Interrupt] = []

    def stop(number: int) -> NoReturn:
        came.append(Interrupt(number))
        raise came[-1]

    with interrupts_to(stop):
        try:
            yield
        except Exception:
            if came:  # in a function that SQLite called: its error is only that the function failed
                raise came[0] from None
            raise


@contextmanager
def ending_on_interrupts() -> Iterator[None]:
    """End with the error of `interrupted` on an interrupt meanwhile, once files are cleaned up."""
    try:
        with interrupts_raised():
            yield
    except Interrupt as interrupt:
        raise interrupted(interrupt) from None


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore interrupts meanwhile: what is being put in its place takes no time and must not stop half-way."""
    with interrupts_to(lambda number: None):
        yield
