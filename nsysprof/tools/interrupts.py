"""Interrupts during a capture: Ctrl-C, SIGTERM from a batch system, SIGHUP from a closed terminal."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from nsysprof.errors import NsysprofError

_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]


class Interrupt(KeyboardInterrupt):
    """An interrupt; ``number`` is its signal. Not an `Exception`, so that ``except Exception`` lets it pass."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def interrupted(interrupt: Interrupt) -> NsysprofError:
    """Make the error after an interrupt, with a shell's exit code: 130 for Ctrl-C, 143 for SIGTERM."""
    return NsysprofError("interrupted", exit_code=128 + interrupt.number)


@contextmanager
def interrupts_to(handler: Callable[[int], None]) -> Iterator[None]:
    """In this block, pass interrupts to ``handler``. Ignored signals, such as SIGHUP under nohup, stay ignored.

    Only the main thread may handle signals: in other threads, nothing changes.
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
    """In this block, raise `Interrupt` for every interrupt, so that files are cleaned up after each kind."""
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
    """If an interrupt arrives in this block, clean up files, then end with the error of `interrupted`."""
    try:
        with interrupts_raised():
            yield
    except Interrupt as interrupt:
        raise interrupted(interrupt) from None


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """In this block, ignore interrupts: renaming takes no time and must not stop half-way."""
    with interrupts_to(lambda number: None):
        yield
