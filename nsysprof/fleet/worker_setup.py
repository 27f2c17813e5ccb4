"""What a local worker does when it begins, as Dask's ``preload`` asks for it."""

from __future__ import annotations

import gc
import signal


def dask_setup(worker: object) -> None:
    """Leave Ctrl-C, which a terminal sends to all processes, to the one that started this worker and ends it.

    And look for garbage less often: what Dask has imported is none, and arrays make little.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
