"""A trace file that is open for reading: what it says of itself, and the reader that knows its format."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arena import IN_MEMORY, ColumnArena
from nsysprof.trace.details import (
    NO_ACTIVITY,
    NO_CALLS,
    NO_COLLECTIVES,
    NO_FAULTS,
    NO_HOST_CALLS,
    NO_MEMORY,
    NO_RANGES,
    CallList,
    Captures,
    Collectives,
    Dependencies,
    HostActivity,
    HostCalls,
    Job,
    MemoryEvents,
    OpDetails,
    OtherRanges,
    PageFaults,
    no_captures,
    no_dependencies,
    no_op_details,
)

if TYPE_CHECKING:
    from nsysprof.trace.autograd import AutogradOps
    from nsysprof.trace.trace import Trace

Severity = Literal["warning", "error"]
Generation = Literal["none", "EXPORT_META_DATA", "META_DATA_EXPORT"]
Progress: TypeAlias = Callable[[str, int], None]
"""Is given the name of a step of the work, and how many rows it has just done."""


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine; None where the report does not say.

    ``clock_hz`` is the highest SM clock, ``bandwidth_bytes_per_s`` the memory's. ``is_cuda`` is False for
    what CUDA cannot use, such as the integrated GPU or the "Microsoft Basic Render Driver" that Windows
    lists.
    """

    id: int
    name: str
    sm_count: int | None = None
    memory_bytes: int | None = None
    bandwidth_bytes_per_s: int | None = None
    clock_hz: int | None = None
    compute_capability: tuple[int, int] | None = None
    l2_bytes: int | None = None
    chip: str | None = None
    uuid: str | None = None
    is_cuda: bool = True


@dataclass(frozen=True)
class Diagnostic:
    """A warning or an error that nsys recorded ``count`` times, with the part of nsys that it is from."""

    severity: Severity
    source: str
    text: str
    count: int


@dataclass(frozen=True)
class About:
    """What a report says of itself; None or empty where it does not.

    ``nsys_version`` is the version that recorded the report (``recorder_version``) where that is known, else the one
    that exported it; ``processes`` maps globalPid to a name; ``warnings`` are nsysprof's own about this metadata.
    """

    nsys_version: str | None = None
    recorder_version: str | None = None
    export_version: str | None = None
    schema_version: str | None = None
    generation: Generation = "none"
    duration_ns: int | None = None
    start_utc: str | None = None
    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    os: str | None = None
    cpu: str | None = None
    command: str | None = None
    processes: dict[int, str] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def cuda_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that CUDA can use."""
        return tuple(gpu for gpu in self.gpus if gpu.is_cuda)


class Reader(ABC):
    """Reads one trace in the format of one recorder. What a format does not record is empty, never made up.

    ``format`` is what `analysis.json` calls it, ``recorder`` the program that recorded it. ``endings`` are what the
    names of such files and folders end with; of several with one name before that, the first is to be read;
    ``annotations`` whose ranges those are that programs make; ``recording`` the command that records them and the GPU.
    A subclass decides in `claims` which files are its own.
    """

    format: str
    recorder = "nsys"
    endings: tuple[str, ...] = ()
    annotations = "NVTX"
    recording = "nsys profile --trace=cuda,nvtx PROGRAM"

    @classmethod
    @abstractmethod
    def claims(cls, path: Path) -> bool:
        """Whether a file, or a folder, is in this format, by what it holds."""

    @classmethod
    @abstractmethod
    def open(cls, path: Path, **options: Path | None) -> Report:
        """Open a trace that it claims; ``options`` are those of `open_report`."""

    @abstractmethod
    def trace(self, report: Report, progress: Progress | None, arena: ColumnArena) -> Trace:
        """The ranges, launches and GPU ops, their long columns in ``arena``."""

    @abstractmethod
    def steps(self) -> int:
        """About how many rows `trace`, and the attribution of them, count to a progress bar."""

    def bytes_needed(self, enough: int) -> int:
        """About how much memory an analysis takes; not looked into where it is surely less than ``enough``."""
        return 0

    def other_ranges(self, trace: Trace, sources: Collection[str]) -> OtherRanges:
        """The ranges that are not NVTX's of these ``sources``, of ``mpi``, ``openacc``, ``ops`` and ``modules``."""
        return NO_RANGES

    def op_details(self, trace: Trace) -> OpDetails:
        """Grids, sizes and the like of each GPU op."""
        return no_op_details(len(trace.ops))

    def collectives(self, trace: Trace) -> Collectives:
        """The collectives among the GPU ops, with communicators and sizes; none where only kernels have names."""
        return NO_COLLECTIVES

    def grids(self) -> NDArray[np.int64]:
        """The grid of each kernel in the order of `Trace.ops`, see `details.packed`; empty where not recorded."""
        return np.empty(0, np.int64)

    def blocks(self) -> NDArray[np.int64]:
        """The block, in threads, of each kernel, likewise."""
        return np.empty(0, np.int64)

    def call_list(self, progress: Progress | None = None) -> CallList:
        """All host CUDA calls, those that launched nothing too."""
        return NO_CALLS

    def other_calls(self, kinds: Collection[str], arena: ColumnArena = IN_MEMORY) -> HostCalls:
        """The host calls that are not CUDA's of these kinds, of ``mpi`` and ``os``."""
        return NO_HOST_CALLS

    def dependencies(self, trace: Trace) -> Dependencies:
        """What makes the streams of a trace wait for one another."""
        return no_dependencies(len(trace.streams))

    def captures(self, trace: Trace) -> Captures:
        """Where the nodes of CUDA graphs were captured that the ops of a trace are."""
        return no_captures(len(trace.ops))

    def host_activity(self, arena: ColumnArena = IN_MEMORY) -> HostActivity:
        """What the host's threads did: CUDA calls, calls of the operating system, the profiler's own work."""
        return NO_ACTIVITY

    def autograd(self, trace: Trace) -> AutogradOps:
        """The operators that PyTorch's autograd numbers: here those that `emit_nvtx` made ranges of."""
        from nsysprof.trace.autograd import autograd_of_names  # noqa: PLC0415 (which knows what a trace is)

        return autograd_of_names(trace)

    def page_faults(self) -> PageFaults:
        """Page faults of unified memory."""
        return NO_FAULTS

    def memory(self) -> MemoryEvents:
        """GPU memory that was allocated and given back."""
        return NO_MEMORY

    def thread_names(self) -> dict[int, str]:
        """The names of threads, by their ids in `Trace.threads`."""
        return {}

    def job(self) -> Job:
        """Which part of a job the program was."""
        return Job()


@dataclass(frozen=True, repr=False)
class Report:
    """An open report: close it, or use it in a ``with`` statement, to remove what was exported for it.

    ``path`` is what the user named, ``file`` what is read: the same, or the export of a ``.nsys-rep``.
    """

    path: Path
    file: Path
    reader: Reader
    about: About
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        gpus = ", ".join(dict.fromkeys(gpu.name for gpu in self.about.cuda_gpus)) or "GPU not recorded"
        version = self.about.nsys_version or "of unknown version"
        return f"<Report {self.path.name}: {self.format}, {self.reader.recorder} {version}, {gpus}>"

    @property
    def format(self) -> str:
        """What the file is: ``sqlite``, ``parquet``, or what another reader calls its own."""
        return self.reader.format

    def close(self) -> None:
        """Remove the temporary export; a second call does nothing. No file is kept open between reads."""
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


READERS: list[str] = ["nsysprof.trace.kineto.reader:KinetoReader", "nsysprof.trace.nsys.reader:NsysReader"]
"""The readers, as module and class; the first that claims a file reads it, and the last refuses what nobody claims."""


def open_report(
    path: str | os.PathLike[str],
    *,
    export_to: str | os.PathLike[str] | None = None,
    nsys: str | os.PathLike[str] | None = None,
) -> Report:
    """Open an SQLite report or parquet export read-only, or a ``.nsys-rep``/``.qdrep`` by exporting it.

    The export goes into a temporary folder, removed when the report is closed or Python ends, or to
    ``export_to``, which is never overwritten. ``nsys`` names the nsys to export with. Raises `NsysprofError`
    for whatever is no readable report; opening reads a few small tables only.
    """
    named = Path(path)
    options = {
        "export_to": Path(export_to) if export_to else None,
        "nsys": Path(nsys) if nsys else None,
    }
    readers = _readers()
    chosen = next((reader for reader in readers[:-1] if reader.claims(named)), readers[-1])
    return chosen.open(named, **options)


def report_endings() -> dict[str, str]:
    """What the names of reports of any format end with, see `Reader`, each with its recorder, the best one last."""
    return {ending: reader.recorder for reader in _readers() for ending in reader.endings}


def _readers() -> list[type[Reader]]:
    places = [name.split(":") for name in READERS]
    return [getattr(import_module(module), reader) for module, reader in places]


def read_tables(report: Report, progress: Progress | None = None, arena: ColumnArena = IN_MEMORY) -> Trace:
    """The `Trace` of a report. Rows that are absent are absent; what that means for the answer is in ``warnings``.

    ``arena`` is where their columns live, and those that are computed from them; see `allocator`.
    Raises `NsysprofError` where the file turns out to be damaged. ``progress`` is given each table and the rows read.
    """
    from nsysprof.trace.plausibility import doubts  # noqa: PLC0415 (which knows what a trace is)

    trace = report.reader.trace(report, progress, arena)
    return replace(trace, warnings=(*trace.warnings, *doubts(trace)))


def allocator(report: Report, limit: int | None) -> ColumnArena:
    """Where the columns of a report should live if its analysis may take so many bytes of memory (None: any number)."""
    if limit is None or report.reader.bytes_needed(limit) <= limit:
        return IN_MEMORY
    return ColumnArena(limit)


# What JSON documents hold of a report and of each GPU.
_ABOUT = (
    *("nsys_version", "recorder_version", "export_version", "schema_version", "start_utc", "duration_ns"),
    *("driver_version", "cuda_version"),
)
_ABOUT_GPU = (
    *("id", "name", "sm_count", "memory_bytes", "bandwidth_bytes_per_s", "clock_hz", "compute_capability"),
)


def describe_report(report: Report) -> dict[str, Any]:
    """What a report says of itself, as the JSON documents of results hold it."""
    about = report.about
    return {
        "file": str(report.path),
        "size_bytes": report.path.stat().st_size if report.path.is_file() else None,
        "format": report.format,
        "recorder": report.reader.recorder,
        **{name: getattr(about, name) for name in _ABOUT},
        "gpus": [{name: getattr(gpu, name) for name in _ABOUT_GPU} for gpu in about.cuda_gpus],
        "diagnostics": [asdict(diagnostic) for diagnostic in about.diagnostics],
    }
