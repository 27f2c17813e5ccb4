"""The state of this process's recording, and the file that reports it.

This file, ``PID-….about.json``, is in the capture's folder beside the trace ``PID-….json``. If a process is killed,
only this file remains; it states that the process was still recording.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Recording:
    """The recording of this process; at most one, and none in forked children."""

    def __init__(self) -> None:
        self.order: dict[str, Any] = json.loads(os.environ.get("NSYSPROF_CAPTURE", "{}"))
        self.pid = os.getpid()
        self.place = Path(self.order.get("folder", ""), f"{self.pid}-{time.time_ns()}")
        self.about: dict[str, Any] = {"pid": self.pid, "state": "waiting", "notes": [], "forks": 0, "steps": 0}
        self.torch: Any = None
        self.profiler: Any = None
        self.disabled = False
        self.thread = 0
        self.began = self.first = 0.0
        self.lock = threading.Lock()
        self.counted: Any = None
        self.step_range: Any = None

    @property
    def here(self) -> bool:
        """Return whether this is the process to record, not a child of it."""
        return not self.disabled and os.getpid() == self.pid

    def note(self, text: str) -> None:
        """Add a sentence to the record of the capture."""
        if self.here and text not in self.about["notes"]:
            self.about["notes"].append(text)
            self.write()

    def write(self) -> None:
        """Write the state of this process to a file, atomically."""
        part = self.place.with_name(f"{self.place.name}.part")
        hooks = sys.modules.get(f"{__package__}.modules")
        if hooks is not None:
            self.about["modules"] = hooks.cost()
        try:
            part.write_text(json.dumps(self.about), encoding="utf-8")
            part.replace(self.place.with_name(f"{self.place.name}.about.json"))
        except OSError:  # a full disk, a folder that is gone: nothing that concerns the program
            return


recording = Recording()


def safely(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn failures of nsysprof into notes, so that they never become failures of the program."""

    @functools.wraps(function)
    def safe(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except Exception as error:
            recording.note(f"{function.__name__.strip('_')}: {type(error).__name__}: {error}")
            return None

    return safe
