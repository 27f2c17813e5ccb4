"""Define the code put into a captured program, and read the files that the program's processes leave.

Each Python process of the program first runs `nsysprof.capture.inject`, which creates ranges for modules and steps, and
records with torch's own profiler. A file per process reports the outcome.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from nsysprof.core.document import read_if_document
from nsysprof.core.text import plural

FOLDER = Path(__file__).parent / "inject"
# Tiny ops come at up to 600,000 a second, and each takes 1.6 kB when the profiler stops; workloads run few.
PROGRAM_SECONDS, WORKLOAD_SECONDS = 5.0, 60.0
_ORDER = "NSYSPROF_CAPTURE"
_MAX_NOTES = 10
TIMES = "step_ends_ns"  # what is in no record: only the times that follow are
_WARM_UP, _MIN_TIMES = 3, 5  # optimizer steps that are not counted, and whose times make no median


@dataclass(frozen=True)
class Injection:
    """The actions of nsysprof inside a program.

    ``record``: record with torch's profiler, for at most ``seconds``, or only ``steps`` (the first number is included,
    the second excluded); ``modules``: open a range around each call of a module, down to ``depth`` levels of calls
    below the outermost one (None: all). ``mark_steps``: open a range from the end of one optimizer step to the end of
    the next. ``times``: record the end times of optimizer steps (`mark_steps` also does this).
    """

    record: bool = False
    modules: bool = False
    depth: int | None = None
    mark_steps: bool = False
    times: bool = False
    steps: tuple[int, int] | None = None
    seconds: float = PROGRAM_SECONDS

    @property
    def needed(self) -> bool:
        """Return whether the program needs any code of nsysprof."""
        return self.record or self.modules or self.mark_steps or self.times

    def environment(self, folder: Path) -> dict[str, str] | None:
        """Return the environment for a command. Processes of the command report to ``folder`` (None: the environment is
        unchanged).
        """
        if not self.needed:
            return None
        order = {
            **{name: getattr(self, name) for name in ("modules", "depth", "mark_steps", "steps", "seconds")},
            "times": self.times or self.mark_steps,
            "folder": str(folder.absolute()),
            "profiler": "torch" if self.record else "nsys",
        }
        paths = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), _ORDER: json.dumps(order)}


class _About(msgspec.Struct):
    """A process's report about itself."""

    pid: int
    state: str
    notes: list[str] = []
    forks: int = 0
    steps: int = 0
    rank: int | None = None
    world_size: int | None = None
    torch: str | None = None
    activities: list[str] = []
    stopped: str | None = None
    limited: bool = False
    worker: bool = False
    step_ends_ns: list[int] = []


@dataclass(frozen=True)
class Process:
    """A process that imported torch. It has a report about itself, as in the record, and a trace if one was written."""

    about: _About
    written: Mapping[str, Any] = field(repr=False)
    trace: Path | None

    @property
    def shown(self) -> str:
        """Return the name of the process as users see it."""
        return f"process {self.about.pid}" if self.about.rank is None else f"rank {self.about.rank}"


def read_processes(folder: Path) -> list[Process]:
    """Read the files that a program's processes left in ``folder``, by rank, then by start."""
    found = []
    for path in sorted(folder.glob("*.about.json"), key=lambda each: each.name.partition("-")[2]):
        written = read_if_document(path)
        try:
            about = msgspec.convert(written, _About)
        except msgspec.ValidationError:
            continue
        trace = path.with_name(path.name.replace(".about.json", ".json"))
        whole = about.state == "ended" and trace.is_file()
        found.append(Process(about, written, trace if whole else None))
    return sorted(found, key=lambda each: -1 if each.about.rank is None else each.about.rank)


def step_times(folder: Path) -> dict[str, Any] | None:
    """Return the step durations of the first process that recorded them, in the format of a workload, or None.

    Steps are timed with the host clock, from the end of one optimizer step to the end of the next. The first steps are
    left out.
    """
    for each in read_processes(folder):
        ends = each.about.step_ends_ns[_WARM_UP:]
        if len(ends) > _MIN_TIMES:
            return {"runs": [{"range": "step*", "latency_ns": [b - a for a, b in pairwise(ends)]}]}
    return None


def process_sentences(processes: Sequence[Process], injection: Injection) -> Iterator[str]:
    """State in sentences which processes were not recorded, and why."""
    notes = [f"{each.shown}: {note}" for each in processes for note in each.about.notes]
    yield from notes[:_MAX_NOTES]
    if len(notes) > _MAX_NOTES:
        yield f"and {len(notes) - _MAX_NOTES} more notes are in the run record"
    for each in processes:
        about = each.about
        if about.state in ("recording", "writing"):
            yield (
                f"{each.shown} was killed or ran out of disk space while {about.state}; the recording is lost, "
                "because torch.profiler writes its trace only when the program ends"
            )
        if about.limited:
            yield f"{each.shown}: recorded until {about.stopped}; --steps A:B records a range of steps"
        if injection.steps and about.state == "ended" and not about.stopped and about.steps < injection.steps[0]:
            yield f"{each.shown} ended after {plural(about.steps, 'optimizer step')}, before the first step of --steps"
    forks = sum(each.about.forks for each in processes)
    workers = sum(each.about.worker for each in processes)
    if forks and injection.record:
        yield f"not recorded: {plural(forks, 'fork')} of the program, such as DataLoader workers"
    if workers:
        yield f"not recorded: {plural(workers, 'spawned worker')} of a DataLoader"


def why_nothing(program: Sequence[str]) -> tuple[str, str]:
    """Return the reason why no code of nsysprof ran in a program, and a remedy."""
    options = [word for word in program[1:4] if re.fullmatch(r"-[A-Za-z]*[ISE][A-Za-z]*", word)]
    if re.match(r"python|pypy", Path(program[0]).name) and options:
        return (
            f"{Path(program[0]).name} {options[0]} ignores PYTHONPATH or site, so nsysprof cannot record this program",
            f"leave {options[0]} out",
        )
    return (
        "either no Python process of this program imported torch, or Python ignores PYTHONPATH (options -I, -E and -S)",
        "nsysprof capture -- PROGRAM records any program under nsys",
    )
