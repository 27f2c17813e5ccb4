"""The entry point of ``python -m nsysprof`` and of the command ``nsysprof``."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends the program without a traceback at any time, even while Python starts or ends.

    If the caller ignores Ctrl-C, the program does too: shells ignore it for background jobs (``&``).
    """
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listens:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is there yet that would have to be cleaned up
    from nsysprof.cli import main as run

    try:
        if listens:
            sys.unraisablehook = _unraisable
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        if listens:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done, or being cleaned up


def _unraisable(raised: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt once more that came where nothing can be raised, as in a callback of the import system."""
    import _thread
    import time

    def again() -> None:
        with here:
            time.sleep(0.01)  # until this has returned too
            _thread.interrupt_main()

    if isinstance(raised.exc_value, KeyboardInterrupt):
        here = _thread.allocate_lock()
        with here:  # a thread that is waited for would interrupt the waiting, and the interrupt would be lost
            _thread.start_new_thread(again, ())
    else:
        sys.__unraisablehook__(raised)


if __name__ == "__main__":
    main()
