"""Regular expressions from users: errors give the reason, and searches that take too long are stopped."""

import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from nsysprof.errors import NsysprofError

_PATIENCE_S = 5  # of the processor


def compiled(text: str) -> re.Pattern[str]:
    """Compile an expression; raises `ValueError` with the reason if Python rejects the expression or warns about it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(text)
    except (ValueError, re.error, OverflowError, RecursionError, Warning) as error:
        raise ValueError(str(error)) from None


@contextmanager
def bounded(what: str, where: str) -> Iterator[None]:
    """Stop searches whose expressions backtrack endlessly (only in the main thread).

    Raises `NsysprofError` if ``what`` takes too many seconds; ``where`` names the place of the expression.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> NoReturn:
        hint = f"avoid nested repetition, such as (a+)+, in the regexes of {where}"
        raise NsysprofError(f"{what} take more than {_PATIENCE_S} s of CPU time", hint)

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
