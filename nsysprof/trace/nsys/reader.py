"""The reader of reports of Nsight Systems: opens one, and hands out what its tables hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nsysprof.tools.fingerprint import PLACE_VARIABLES
from nsysprof.tools.nsys import header_version
from nsysprof.trace.nsys.about import read_about, read_thread_names
from nsysprof.trace.nsys.identify import check_tables, identify, reading
from nsysprof.trace.nsys.properties import known, named_rows, named_values, whole
from nsysprof.trace.nsys.rep import export_report
from nsysprof.trace.report import Progress, Reader, Report

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from nsysprof.core.arena import ColumnArena
    from nsysprof.trace.details import CallList, Job, MemoryUse, OpDetails, Waits
    from nsysprof.trace.nsys.columns import Source
    from nsysprof.trace.trace import Trace

_VARIABLE = re.compile(r"PROCESS_\d+:ENVIRONMENT_VARIABLE")
_ASSIGNED = re.compile(r"(?:^|;)(\w+)=\"?(\d{1,9})(?=\"|;|$)")


class NsysReader(Reader):
    """Reads a ``.sqlite`` or a Parquet export; a ``.nsys-rep`` is exported first."""

    def __init__(self, path: Path, file: Path) -> None:
        self.path, self.file = path, file
        self.source, self.format = _source(file)

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Any file: what is none of its own it refuses in words that help."""
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

    def trace(self, report: Report, progress: Progress | None, arena: ColumnArena) -> Trace:
        """The ranges, launches and GPU ops, their long columns in ``arena``."""
        from nsysprof.trace.nsys.build import build_trace  # noqa: PLC0415 (numpy is slow to import)

        return build_trace(report, self.source, progress, arena)

    def steps(self) -> int:
        """About how many rows are counted to a progress bar."""
        from nsysprof.trace.nsys.build import steps  # noqa: PLC0415

        return steps(self.source)

    def bytes_needed(self, enough: int) -> int:
        """About how much memory an analysis takes."""
        from nsysprof.trace.nsys.build import bytes_needed  # noqa: PLC0415

        size = self.file.stat().st_size if self.format == "sqlite" else 0
        return bytes_needed(self.source, size, enough)

    def op_details(self, trace: Trace) -> OpDetails:
        """Grids, sizes and the like of each GPU op."""
        from nsysprof.trace.nsys.op_details import read_op_details  # noqa: PLC0415

        with self._reading():
            return read_op_details(self.source)

    def grids(self) -> NDArray[np.int64]:
        """The grid of each kernel."""
        from nsysprof.trace.nsys.op_details import read_grids  # noqa: PLC0415

        with self._reading():
            return read_grids(self.source)

    def call_list(self, progress: Progress | None = None) -> CallList:
        """All host CUDA calls."""
        from nsysprof.trace.nsys.call_list import read_call_list  # noqa: PLC0415

        with self._reading():
            return read_call_list(self.source, progress)

    def waits(self) -> Waits:
        """The host calls that wait for the GPU."""
        from nsysprof.trace.nsys.call_list import read_waits  # noqa: PLC0415

        with self._reading():
            return read_waits(self.source)

    def memory_use(self) -> tuple[MemoryUse, ...]:
        """GPU memory that was allocated, over time."""
        from nsysprof.trace.nsys.memory_use import read_memory_use  # noqa: PLC0415

        with self._reading():
            return read_memory_use(self.source)

    def thread_names(self) -> dict[int, str]:
        """The name of each globalTid that has one."""
        with self._reading():
            return read_thread_names(self.source)

    def job(self) -> Job:
        """Rank, host and start, from the environment and the system that nsys recorded."""
        from nsysprof.trace.details import Job  # noqa: PLC0415

        with self._reading():
            starts = named_rows(self.source, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
            hosts = named_values(self.source, "TARGET_INFO_SYSTEM_ENV", "Hostname".__eq__)
            return Job(
                rank=self._rank(),
                host=next((known(value) for _, value in hosts), None),
                start_utc_ns=next((start for row in starts if (start := whole(row[0]))), None),
            )

    def _rank(self) -> int | None:
        """The rank in the environment that nsys recorded of the program."""
        tables = (
            ("META_DATA_CAPTURE", _VARIABLE.fullmatch),
            ("TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment".__eq__),
        )
        values = [value for table, wanted in tables for _, value in named_values(self.source, table, wanted)]
        found = {
            name: int(number)
            for value in reversed(values)
            for name, number in _ASSIGNED.findall(value)
            if name in PLACE_VARIABLES["rank"]
        }
        return next((found[name] for name in PLACE_VARIABLES["rank"] if name in found), None)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with reading(self.path):
            yield


def _source(file: Path) -> tuple[Source, str]:
    if file.is_dir():
        from nsysprof.trace.nsys.parquet import ParquetSource  # noqa: PLC0415 (needs pyarrow, an extra)

        return ParquetSource(file), "parquet"
    from nsysprof.trace.nsys.sqlite import SqliteSource  # noqa: PLC0415 (numpy is slow to import)

    return SqliteSource(file), "sqlite"
