"""The reader for reports of Nsight Systems."""

import os
import re
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from nsysprof.core.arena import IN_MEMORY, ColumnArena
from nsysprof.core.arrays import Ints, Line
from nsysprof.errors import NsysprofError
from nsysprof.tools.nsight import version_numbers
from nsysprof.tools.nsys import ENVIRONMENT, Nsys, all_nsys, export, find_nsys, header_version, newer_than
from nsysprof.trace import details
from nsysprof.trace.about import About
from nsysprof.trace.autograd import autograd_of_names, operators_of_names
from nsysprof.trace.nsys.about import read_about, read_job, read_thread_names
from nsysprof.trace.nsys.blocks import Source
from nsysprof.trace.nsys.build import build_trace, bytes_needed, steps
from nsysprof.trace.nsys.cpu_samples import read_cpu_samples
from nsysprof.trace.nsys.dependencies import read_dependencies
from nsysprof.trace.nsys.gpu_work import read_grids, read_op_details
from nsysprof.trace.nsys.graphs import read_captures
from nsysprof.trace.nsys.host_calls import read_call_list, read_host_activity, read_other_calls
from nsysprof.trace.nsys.host_ranges import read_other_ranges
from nsysprof.trace.nsys.identify import REPORT_ENDINGS, changed, check_tables, identify, reading, stamp
from nsysprof.trace.nsys.memory import read_memory, read_page_faults
from nsysprof.trace.nsys.metrics import of_gpu_metrics, read_samples
from nsysprof.trace.nsys.nvtx import read_payloads
from nsysprof.trace.nsys.sqlite import SqliteSource
from nsysprof.trace.trace import Progress, Reader, Report, Trace

_T = TypeVar("_T")
# Tables of events that one reader or another reads.
_READ = re.compile(
    r"CUPTI_ACTIVITY_KIND_(?:KERNEL|MEMCPY|MEMSET|GRAPH_TRACE|RUNTIME|DRIVER|SYNCHRONIZATION|CUDA_EVENT|OPENACC_\w+)"
    r"|(?:MPI|NVTX|CUDA)_\w+|OSRT_API|PROFILER_OVERHEAD|DIAGNOSTIC_EVENT|ANALYSIS_\w+|COMPOSITE_EVENTS|GPU_METRICS|GENERIC_EVENTS"
)


class NsysReader(Reader):
    """Reader of ``.sqlite`` and Parquet exports; a ``.nsys-rep`` is exported first."""

    endings = REPORT_ENDINGS

    def __init__(self, path: Path, file: Path) -> None:
        self.path, self.file = path, file
        self.source, self.format = _source(file)

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Accept any file, because `open` gives the reason if it refuses a file."""
        return True

    @classmethod
    def open(cls, path: Path, **options: Path | None) -> Report:
        """Open a report, see `open_report`."""
        file, folder, made_by = path, None, None
        if identify(path) == "nsys-rep":
            made_by = header_version(path)
            file, folder = export_report(path, **options)
        try:
            with reading(path):
                reader = cls(path, file)
                check_tables(path, reader.source.tables())
                return Report(path, file, reader, read_about(reader.source, report_version=made_by), folder)
        except BaseException:
            if folder is not None:
                folder.cleanup()
            raise

    def _read(self, read: Callable[..., _T], *more: Any) -> _T:
        """The result of ``read`` on the source; the error of a failed read names the report."""
        with reading(self.path):
            return read(self.source, *more)

    def trace(self, report: Report, progress: Progress | None, arena: ColumnArena) -> Trace:
        """Return the ranges, launches and GPU ops; long columns are allocated in ``arena``."""
        return build_trace(report, self.source, progress, arena)

    def steps(self) -> int:
        """Estimate the number of rows for the progress bar."""
        return steps(self.source)

    def bytes_needed(self, enough: int) -> int:
        """Estimate the memory (bytes) that an analysis takes."""
        size = self.file.stat().st_size if self.format == "sqlite" else 0
        return bytes_needed(self.source, size, enough)

    def other_ranges(self, trace: Trace, sources: Collection[str]) -> details.OtherRanges:
        """MPI calls and OpenACC constructs."""
        return self._read(read_other_ranges, trace, sources)

    def op_details(self, trace: Trace) -> details.OpDetails:
        """Launch parameters of each GPU op."""
        return self._read(read_op_details)

    def grids(self) -> Ints:
        """The grid of each kernel."""
        return self._read(read_grids)

    def call_list(self, progress: Progress | None = None) -> details.CallList:
        """All host CUDA calls."""
        return self._read(read_call_list, progress)

    def other_calls(self, kinds: Collection[str], arena: ColumnArena = IN_MEMORY) -> details.HostCalls:
        """Return the calls of MPI and the operating system."""
        return self._read(read_other_calls, kinds, arena)

    def dependencies(self, trace: Trace) -> details.Dependencies:
        """Dependencies between streams."""
        return self._read(read_dependencies, trace)

    def captures(self, trace: Trace) -> details.Captures:
        """The creation of CUDA graph nodes: time and thread."""
        return self._read(read_captures, trace)

    def not_read(self) -> dict[str, int]:
        """Return the event tables that nsysprof does not use, with their numbers of rows."""
        with reading(self.path):
            others = "" if of_gpu_metrics(self.source) else "GENERIC_EVENTS"
            tables = self.source.tables(views=False)
            some = [each for each in tables if each.isupper() and (each == others or not _READ.fullmatch(each))]
            timed = [each for each in some if {"start", "timestamp", "rawTimestamp"} & {*self.source.columns(each)}]
            return {table: rows for table in timed if (rows := self.source.rows(table))}

    def autograd(self, trace: Trace) -> details.AutogradOps:
        """The operators that `emit_nvtx` recorded."""
        return autograd_of_names(trace)

    def operator_calls(self, trace: Trace) -> details.OperatorCalls:
        """Return the operator calls with shapes: in range names of `emit_nvtx` and pyprof, or of JSON payloads."""
        named: details.OperatorCalls = operators_of_names(trace)
        return named if any(dims for _, dims, *_ in named.shapes) else self._read(read_payloads)

    def host_activity(self, trace: Trace, near: Line | None = None) -> details.HostActivity:
        """Return the activity of host threads, possibly without short kernel launches outside ``near``."""
        return self._read(read_host_activity, trace, near)

    def page_faults(self) -> details.PageFaults:
        """Page faults of unified memory."""
        return self._read(read_page_faults)

    def memory(self) -> details.MemoryEvents:
        """Allocations and releases of GPU memory."""
        return self._read(read_memory)

    def samples(self, about: About) -> dict[int, details.GpuSamples]:
        """Samples of GPU metrics."""
        return self._read(read_samples, about)

    def cpu_samples(self, thread: Ints, start: Ints, end: Ints) -> details.CpuSamples | None:
        """Return the call-stack samples of the given threads within the given time spans."""
        return self._read(read_cpu_samples, thread, start, end)

    def thread_names(self) -> dict[int, str]:
        """The name of each named globalTid."""
        return self._read(read_thread_names)

    def job(self) -> details.Job:
        """Read rank, host and start time from the environment and system information in the report."""
        return self._read(read_job)


def _source(file: Path) -> tuple[Source, str]:
    if file.is_dir():
        from nsysprof.trace.nsys.parquet import ParquetSource  # noqa: PLC0415 (rarely needed)

        return ParquetSource(file), "parquet"
    return SqliteSource(file), "sqlite"


def export_report(
    path: Path, *, export_to: Path | None = None, nsys: Path | None = None
) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """Export a ``.nsys-rep`` or ``.qdrep`` with the installed nsys; return the file and its temporary folder.

    With ``export_to`` (a file, or an existing folder), the export is kept there and the returned folder is None. Raises
    `NsysprofError` if nsys is missing, is too old or fails, or if the file exists.
    """
    if export_to is not None:
        out = export_to / f"{path.stem}.sqlite" if export_to.is_dir() else export_to
        _export(path, out, nsys)
        return out, None
    folder = tempfile.TemporaryDirectory(prefix="nsysprof-", ignore_cleanup_errors=True)
    try:
        out = Path(folder.name, f"{path.stem}.sqlite")
        _export(path, out, nsys)
    except BaseException:
        folder.cleanup()
        raise
    return out, folder


def _export(path: Path, out: Path, nsys: Path | None) -> None:
    chosen = _choose(path, nsys)
    seen = stamp(path)
    export(chosen, path, out)
    if stamp(path) != seen:
        out.unlink()
        raise changed(path)


def _choose(path: Path, named: Path | None) -> Nsys:
    """The nsys to export with: the usual one or, if that is too old for the report, another installed one."""
    try:
        usual = find_nsys(named)
    except NsysprofError as error:
        exported = path.with_suffix(".sqlite")
        hint = (
            f"use its exported file instead, which does not need nsys: {exported}" if exported.is_file() else error.hint
        )
        raise NsysprofError(f"{path} must first be exported by nsys: {error.message}", hint) from None
    made_by = header_version(path)
    if made_by is None or not _too_old(usual, made_by):
        return usual
    others = [] if named or os.environ.get(ENVIRONMENT) else all_nsys()
    for other in others:
        if not _too_old(other, made_by):
            return other
    raise newer_than(path, made_by, usual)


def _too_old(nsys: Nsys, made_by: str) -> bool:
    # within one release (2025.3) nsys decides itself
    return nsys.version[:2] < version_numbers(made_by)[:2]
