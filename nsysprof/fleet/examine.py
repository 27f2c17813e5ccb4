"""Examine one report in a worker: open it, attribute it, and answer in a few kilobytes."""

import asyncio
import contextlib
import gc
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from nsysprof import __version__
from nsysprof.attribution.attribute import attribute
from nsysprof.attribution.levels import choose_level
from nsysprof.core.arena import default_limit
from nsysprof.core.files import PART, read_small, unusable_warning
from nsysprof.core.text import plural
from nsysprof.errors import NsysprofError
from nsysprof.fleet.inputs import ReportFile, local_copy, record_path
from nsysprof.fleet.range_iterations import Choice
from nsysprof.fleet.rank_part import rank_part
from nsysprof.formats.rank_answer import FORMAT, RankPart, ReportAnswer, read_answer, write_answer
from nsysprof.formats.run_record import rank_in_record
from nsysprof.kernels.classify import Kinds, classify, load_rules
from nsysprof.results.files import writing
from nsysprof.trace.report import open_report
from nsysprof.trace.trace import Report
from nsysprof.waits.causes import wait_facts
from nsysprof.waits.walk import lacking


@dataclass(frozen=True)
class ReportTask:
    """A report and the options of its analysis, sent to a worker. ``rules`` and ``nsys`` are paths on the worker's
    machine; ``memory_limit`` in bytes (None: half of the worker's memory) does not affect answers.
    """

    file: ReportFile
    choice: Choice = field(default_factory=Choice)
    threads: str = "follow"
    rules: str | None = None
    nsys: str | None = None
    memory_limit: int | None = None
    graphs: str = "launched"
    ranges: str = "auto"


@dataclass(frozen=True)
class ReportFailure:
    """Why a report has no answer (one line), and a hint, possibly a command."""

    report: str
    reason: str
    hint: str | None = None


def dask_setup(worker: object) -> None:  # noqa: ARG001  Dask calls it with that
    """Prepare a local Dask worker, which loads this module as its ``preload``.

    Ignore Ctrl-C: a terminal sends it to all processes, but the process that started this worker handles Ctrl-C and
    ends the worker. Also run the garbage collector less often, because Dask's imports are permanent and arrays create
    little garbage.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def examine_report(task: ReportTask) -> ReportAnswer | ReportFailure:
    """Answer for one report; returns a `ReportFailure` if the report cannot be read."""
    began = time.monotonic()
    try:
        with local_copy(task.file) as path, open_report(path, nsys=task.nsys) as report:
            return _answer(task, report, path, began)
    except NsysprofError as error:
        return ReportFailure(task.file.name, error.message, error.hint)
    except MemoryError:
        return ReportFailure(task.file.name, "out of memory", "use fewer workers: --workers N")
    except OSError as error:
        return ReportFailure(task.file.name, f"cannot be read: {error.strerror or error}")


def _answer(task: ReportTask, report: Report, path: Path, began: float) -> ReportAnswer:
    job, record = report.reader.job(), record_path(path)
    parts, warnings = _parts(task, report)
    return ReportAnswer(
        report=task.file.name,
        size_bytes=path.stat().st_size if path.is_file() else 0,
        nsys_version=report.about.nsys_version,
        start_utc_ns=job.start_utc_ns,
        duration_ns=report.about.duration_ns,
        host=job.host,
        record_rank=rank_in_record(record),
        environment_rank=job.rank,
        parts=parts,
        warnings=(*report.about.warnings, *warnings, *filter(None, [unusable_warning(record)])),
        seconds=time.monotonic() - began,
        peak_bytes=_peak_bytes(),
    )


def _parts(task: ReportTask, report: Report) -> tuple[tuple[RankPart, ...], tuple[str, ...]]:
    """Make a part for each process with GPU work, by GPU and pid; and collect the warnings of the trace."""
    rules = load_rules(Path(task.rules) if task.rules else None)
    limit = task.memory_limit or default_limit()
    attribution = attribute(report, task.threads, None, limit, task.graphs, task.ranges)
    if task.choice.per is None:  # iterations that are found beside annotated ranges are among those of its level
        chosen = choose_level(attribution, None, task.choice.merge).attribution
        attribution = attribution if chosen is attribution.launched else chosen
    trace, reader = attribution.launched.trace, report.reader
    processes = np.unique(trace.stream_process[trace.stream_gpu >= 0]).tolist() if trace.streams else []
    if not processes:
        raise NsysprofError(
            f"{report.path}: nothing to compare: {trace.no_work}", f"record GPU work: {reader.recording}"
        )
    communication = _in_main_thread(lambda: classify(rules, trace.op_names)).communication
    facts = wait_facts(trace, communication)
    lacks = lacking(reader.dependencies(trace), facts.activity)
    parts = [rank_part(attribution, communication, each, facts, lacks, task.choice) for each in processes]
    return tuple(sorted(parts, key=lambda part: (part.gpu_ids, part.pid))), trace.warnings


def _in_main_thread(work: Callable[[], Kinds]) -> Kinds:
    """Classify in the main thread of a Dask worker: only there can endless rules of a user be stopped."""
    try:
        loop = sys.modules["distributed"].get_worker().loop.asyncio_loop
    except (KeyError, ValueError):  # no worker
        return work()

    async def called() -> Kinds:
        return work()

    return asyncio.run_coroutine_threadsafe(called(), loop).result()


def _peak_bytes() -> int:
    """Measure the peak memory of this process, or its current memory if the system does not report the peak."""
    # not getrusage: what that says began in the process that started this one
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024
    import psutil  # noqa: PLC0415 (only where there is no such file)

    return int(psutil.Process().memory_info().rss)


def kept_in(folder: Path) -> Path:
    """Return the folder that keeps the answers of single reports until all are complete."""
    return folder / ".answers"


def answer_file(kept: Path, task: ReportTask) -> Path:
    """Return the file for the answer to a task. Its name depends on the report's file, size and time, the options, and
    the version.
    """
    name = task.file.name if task.file.is_url else os.path.realpath(task.file.name)
    key = {
        **asdict(task),
        "file": name,
        "memory_limit": None,
        "stamp": task.file.stamp,
        "version": __version__,
        "format": FORMAT,
    }
    if task.rules:
        key["rules"] = hashlib.sha256(read_small(Path(task.rules))).hexdigest()
    return kept / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}.npz"


def keep_answer(answer: ReportAnswer, path: Path) -> None:
    """Write an answer atomically. Raises `NsysprofError` if writing fails."""
    try:
        write_answer(answer, path)
    except OSError as error:
        raise NsysprofError(
            f"cannot save results of reports in {path.parent}: {error.strerror or error}",
            "choose another folder: -o DIR",
        ) from None


def kept_answers(kept: Path, tasks: Sequence[ReportTask]) -> dict[int, ReportAnswer]:
    """Read the kept answers to tasks, by task number."""
    answers = ((number, read_answer(answer_file(kept, task))) for number, task in enumerate(tasks))
    return {number: answer for number, answer in answers if answer is not None}


def count_kept(kept: Path) -> int:
    """Count the kept answers."""
    return sum(1 for _ in kept.glob("*.npz"))


def check_unfinished(folder: Path) -> None:
    """Raise `NsysprofError` if a result folder has kept answers from an unfinished run."""
    if unfinished := count_kept(kept_in(folder)):
        raise NsysprofError(
            f"{folder} has results of {plural(unfinished, 'report')} from an unfinished run",
            "--resume to continue it, --force to start again, or -o OTHER-DIR",
        )


@contextlib.contextmanager
def keeping(kept: Path, *, anew: bool) -> Iterator[None]:
    """Provide the folder for kept answers: emptied first if ``anew`` is set, and removed at the end if empty."""
    with writing(kept.parent):
        if anew:
            remove_kept(kept)
        kept.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for empty in (kept, kept.parent):
            with contextlib.suppress(OSError):
                empty.rmdir()


def remove_kept(kept: Path) -> None:
    """Remove all kept answers and their folder, and the result folder if it is empty."""
    with contextlib.suppress(OSError):
        for path in kept.glob("*.npz"):
            path.unlink()
        for unfinished in kept.glob(f"{PART}*"):
            shutil.rmtree(unfinished)
        kept.rmdir()
        kept.parent.rmdir()
