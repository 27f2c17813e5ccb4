"""What a worker does with one report: opens it where it lies, attributes it, and answers in a few kilobytes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.core.arena import default_limit
from nsysprof.core.files import MAX_BYTES, unusable_warning
from nsysprof.errors import NsysprofError
from nsysprof.fleet.gpu_activity import gpu_lines
from nsysprof.fleet.inputs import ReportFile, fetching, file_system, record_path
from nsysprof.fleet.range_iterations import Choice
from nsysprof.fleet.rank_part import RankPart, rank_part
from nsysprof.formats.run_record import rank_in_record
from nsysprof.kernels.classify import Rules, classify, load_rules
from nsysprof.trace.details import Waits
from nsysprof.trace.report import Report, open_report


@dataclass(frozen=True)
class ReportTask:
    """A report and what is asked of it; goes to a worker. ``rules`` and ``nsys`` are paths on the worker's machine;
    ``memory_limit`` in bytes, None for half of what the worker may use, changes no answer.
    """

    file: ReportFile
    choice: Choice = field(default_factory=Choice)
    threads: str = "follow"
    rules: str | None = None
    nsys: str | None = None
    memory_limit: int | None = None


@dataclass(frozen=True)
class ReportAnswer:
    """What comes back of a report: a `RankPart` for each process with GPU work, and what tells which rank it is.

    ``start_utc_ns`` is when its clock read 0, None where it does not say; ``seconds`` and ``peak_bytes`` are what it
    took: wall time, and the most memory that the worker has held so far.
    """

    report: str
    size_bytes: int
    nsys_version: str | None
    start_utc_ns: int | None
    duration_ns: int | None
    host: str | None
    record_rank: int | None
    environment_rank: int | None
    parts: tuple[RankPart, ...]
    warnings: tuple[str, ...]
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class ReportFailure:
    """Why a report has no answer: one line, and a hint that may be a command."""

    report: str
    reason: str
    hint: str | None = None


def examine_report(task: ReportTask) -> ReportAnswer | ReportFailure:
    """The answer of one report; whatever makes it unreadable comes back as a `ReportFailure`, not as an error."""
    began = time.monotonic()
    try:
        with _here(task.file) as path, open_report(path, nsys=task.nsys) as report:
            return _answer(task, report, path, began)
    except NsysprofError as error:
        return ReportFailure(task.file.name, error.message, error.hint)
    except MemoryError:
        return ReportFailure(task.file.name, "out of memory", "fewer workers: --workers N")
    except OSError as error:
        return ReportFailure(task.file.name, f"cannot be read: {error.strerror or error}")


def _answer(task: ReportTask, report: Report, path: Path, began: float) -> ReportAnswer:
    rules = load_rules(Path(task.rules) if task.rules else None)
    attribution = attribute(report, task.threads, memory_limit=task.memory_limit or default_limit())
    trace = attribution.trace
    waits, job = report.reader.waits(), report.reader.job()
    parts = _parts(attribution, communication_names(rules, trace.op_names), waits, task.choice)
    return ReportAnswer(
        report=task.file.name,
        size_bytes=path.stat().st_size if path.is_file() else 0,
        nsys_version=report.about.nsys_version,
        start_utc_ns=job.start_utc_ns,
        duration_ns=report.about.duration_ns,
        host=job.host,
        record_rank=rank_in_record(record_path(path)),
        environment_rank=job.rank,
        parts=parts,
        warnings=(
            *report.about.warnings,
            *trace.warnings,
            *filter(None, [unusable_warning(record_path(path))]),
        ),
        seconds=time.monotonic() - began,
        peak_bytes=_peak_bytes(),
    )


def communication_names(rules: Rules, names: list[str]) -> NDArray[np.bool_]:
    """Which op names are kernels that communicate between GPUs."""
    return np.array([family == "communication" for family in classify(rules, names).family], bool)


def _parts(
    attribution: Attribution, communication: NDArray[np.bool_], waits: Waits, choice: Choice
) -> tuple[RankPart, ...]:
    """A part for each process with GPU work, by GPU and pid; for the first of all where there is no such work."""
    trace = attribution.trace
    processes = np.unique(trace.stream_process[trace.stream_gpu >= 0]).tolist() if trace.streams else []
    if not processes:
        raise NsysprofError(
            f"{trace.report.path}: no GPU work, so nothing to compare: {trace.no_work}",
            "capture with --trace=cuda,nvtx",
        )
    parts = [
        rank_part(
            attribution, communication, process, gpu_lines(trace, communication, process, waits), choice
        )
        for process in processes
    ]
    return tuple(sorted(parts, key=lambda part: (part.gpu_ids, part.pid)))


@contextlib.contextmanager
def _here(file: ReportFile) -> Iterator[Path]:
    """The report as a local path: where it lies, or for the time being a copy, with its record, of what a URL names."""
    if not file.is_url:
        yield Path(file.name)
        return
    system, path = file_system(file.name)
    folder = Path(tempfile.mkdtemp(prefix="nsysprof-"))
    try:
        copy = folder / Path(path).name
        record = str(record_path(Path(path)))
        with fetching(file.name, "cannot be fetched"):
            system.get(path, str(copy), recursive=system.isdir(path))
            if system.exists(record) and (system.size(record) or 0) <= MAX_BYTES:
                system.get(record, str(record_path(copy)))
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _peak_bytes() -> int:
    """The most memory that this process has held; where the system does not say, what it holds now."""
    # not getrusage: what that says began in the process that started this one
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024
    import psutil  # noqa: PLC0415 (only where there is no such file)

    return int(psutil.Process().memory_info().rss)
