"""The file that a sweep grows in, one JSON object a line: what is in it survives whatever ends the process.

The first line, which `nsysprof bench` writes, is ``{"kind": "sweep", "schema", "plan", "measure_peaks"}``. Then come

    start    the environment of a process that measures, its run and order, and the rules it keeps to
    trying   the backends of one configuration that are at work from here on
    point    what came out for one backend in one run, see `_bench.py`
    auto     the backend that PyTorch picked by itself for a configuration, null where that could not be seen
    peaks    what the device reached in a large copy and in large products
    died     a process was killed while it tried what it said last; `nsysprof bench` writes this
    failed   why a process stopped: message and hint
    done     all of the plan is measured
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _results import WorkloadError

SCHEMA = "nsysprof-bench-points/1"
PLAN_SCHEMA = "nsysprof-bench-plan/1"
_AGAIN = "nsysprof bench --force starts over"


@dataclass
class Progress:
    """How far a sweep is; places are (id of the configuration, backend).

    ``done`` have their point, by run; ``first`` are the points of the first run. ``alone`` were at work together when
    the process was killed, so that it is not known which of them it was. ``killed`` was it for certain, with the
    reason.
    """

    plan: Mapping[str, Any]
    measure_peaks: bool
    environment: Mapping[str, Any] | None = None
    peaks: bool = False
    run: int = 0
    done: set[tuple[int, str, str]] = field(default_factory=set)
    first: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    alone: set[tuple[str, str]] = field(default_factory=set)
    killed: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many processes measure everything, one after the other."""
        return int(self.plan.get("runs") or 1)

    def left(self, run: int) -> list[dict[str, Any]]:
        """The configurations of which backends are left to measure in a run, in its order, with these backends.

        The order of every run is drawn anew where there are several. What the first run could not measure, no later one
        tries.
        """
        configurations = list(self.plan["configurations"])
        if self.runs > 1:
            random.Random(f"{self.plan['seed']} run {run}").shuffle(configurations)
        out = []
        for each in configurations:
            backends = [name for name in each["backends"] if (run, each["id"], name) not in self.done]
            if run:
                backends = [name for name in backends if self._was_measured(each["id"], name)]
            if backends:
                out.append({**each, "backends": backends})
        return out

    def _was_measured(self, configuration: str, backend: str) -> bool:
        return self.first.get((configuration, backend), {}).get("status") == "measured"


def read(path: Path) -> Progress:
    """How far the sweep of this file is. Raises `WorkloadError` for a file that is none."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        head, *rest = lines
        if head["schema"] != SCHEMA or head["plan"]["schema"] != PLAN_SCHEMA:
            raise ValueError(f"its schema is {head['schema']!r}")
        progress = Progress(head["plan"], bool(head["measure_peaks"]))
        trying: list[tuple[str, str]] = []
        for line in rest:
            trying = _account(line, progress, trying)
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror}", f"ls -l {path}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WorkloadError(f"{path} is not a sweep file: {error}", _AGAIN) from None
    return progress


def _account(line: Mapping[str, Any], progress: Progress, trying: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Take one line into account; returns what is being tried after it."""
    match line["kind"]:
        case "start":
            progress.run = int(line.get("run", 0))
            progress.environment = progress.environment or line["environment"]
        case "trying":
            return [(line["configuration"], backend) for backend in line["backends"]]
        case "point":
            point = line["point"]
            place, run = (point["configuration"]["id"], point["backend"]), int(point.get("run", 0))
            progress.done.add((run, *place))
            if run == 0:
                progress.first[place] = point
        case "peaks":
            progress.peaks = True
        case "died":
            left = [place for place in trying if (progress.run, *place) not in progress.done]
            if len(left) == 1:
                progress.killed[left[0]] = line["reason"]
            progress.alone.update(left)
            return []
    return trying


def append(path: Path, kind: str, **content: Any) -> None:
    """Add a line, so that it is on the disk when this returns. Raises `WorkloadError` where it cannot be."""
    line = json.dumps({"kind": kind, **content}, allow_nan=False) + "\n"
    try:
        with path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise WorkloadError(f"cannot write {path}: {error.strerror}", "df -h") from None
