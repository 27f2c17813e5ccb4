"""Memory for long columns: plain arrays or, beyond the memory limit of a report, arrays mapped from scratch files.

The system can evict the pages of a mapped column at any time and read them again from the file. Computations run in the
same way on arrays in memory and on mapped arrays, and give the same numbers. Scratch files have no name, so they
disappear even if the program is killed.
"""

import mmap
import os
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from numpy.typing import DTypeLike

from nsysprof.core.arrays import AnyInts, Array, Index, Ints, slices
from nsysprof.core.intervals import settled, tied
from nsysprof.core.units import format_bytes
from nsysprof.errors import NsysprofError

DEFAULT_SHARE = 0.5  # of the machine's memory, or of what a control group leaves of it
_WATCH_PERIOD_S = 0.02
# Pages of mapped columns are released when the process holds this share of its limit and they hold this many bytes.
_MAX_FILL, _MIN_RELEASE_BYTES = 0.6, 1 << 26
_MIN_FILE_BYTES = 1 << 16  # shorter columns stay in memory
MANY_ROWS = 250_000  # giving memory back takes a few ms
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class ColumnArena:
    """Allocator of columns: in memory if ``limit`` is None; otherwise in mapped scratch files, about ``limit`` bytes of
    which stay in memory.

    ``roomy``: whether memory suffices for an analysis on several cores.
    """

    def __init__(self, limit: int | None = None, *, roomy: bool = True) -> None:
        self.limit, self.roomy = limit, roomy and limit is None
        self._maps: list[weakref.ref[mmap.mmap]] = []
        self._watched = False

    def empty(self, rows: int, dtype: DTypeLike) -> Array:
        """Allocate a column without setting its values."""
        size = rows * np.dtype(dtype).itemsize
        if self.limit is None or size < _MIN_FILE_BYTES:
            return np.empty(rows, dtype)
        with self.file() as file:
            with enough_space(size):
                if size and hasattr(os, "posix_fallocate"):  # or there might be none left when it is written
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
            return self.mapped(file, rows, dtype)

    def zeros(self, rows: int, dtype: DTypeLike) -> Array:
        """Allocate a column of zeros; it takes no memory until other values are written."""
        small = self.limit is None or rows * np.dtype(dtype).itemsize < _MIN_FILE_BYTES
        return np.zeros(rows, dtype) if small else self.empty(rows, dtype)

    def full(self, rows: int, value: int, dtype: DTypeLike) -> Array:
        """Allocate a column with one value everywhere."""
        out = self.empty(rows, dtype)
        out[:] = value
        return out

    def take(self, values: Array, rows: AnyInts) -> Array:
        """Copy ``values[rows]`` into a new column; -1 means the last value."""
        out = self.empty(len(rows), values.dtype)
        for part in slices(len(rows)):
            np.take(values, rows[part], out=out[part], mode="wrap")  # other modes do not fill it in place
        return out

    def cast(self, values: Array, dtype: DTypeLike) -> Array:
        """Convert values to a column of the given type; without a limit, an array of this type is returned as is."""
        if self.limit is None and values.dtype == dtype:
            return values
        out = self.empty(len(values), dtype)
        out[:] = values
        return out

    def repeat(self, values: Array, counts: AnyInts) -> Array:
        """Repeat each value by its count, in a new column."""
        out = self.empty(int(counts.sum()), values.dtype)
        stop = 0
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            out[stop : stop + count] = value
            stop += count
        return out

    def file(self) -> IO[bytes]:
        """Open a scratch file; raises `NsysprofError` if the folder in TMPDIR cannot hold one."""
        asked = os.environ.get("TMPDIR")
        if asked and os.path.realpath(asked) != os.path.realpath(tempfile.gettempdir()):
            raise NsysprofError(
                f"cannot write a scratch file in {asked}, the folder in TMPDIR",
                "export TMPDIR=FOLDER with space, or raise --memory-limit",
            )
        with enough_space():
            return tempfile.TemporaryFile(prefix="nsysprof-")

    def mapped(self, file: IO[bytes], rows: int, dtype: DTypeLike) -> Array:
        """Map the column in a scratch file; the file may be closed afterwards."""
        if not rows:
            return np.empty(0, dtype)
        pages = mmap.mmap(file.fileno(), rows * np.dtype(dtype).itemsize)
        self._maps = [known for known in self._maps if known() is not None] + [weakref.ref(pages)]
        if not self._watched:
            self._watched = True
            if memory := _resident_memory():
                threading.Thread(target=_watch, args=(weakref.ref(self), memory[1]), daemon=True).start()
        return np.frombuffer(pages, dtype)

    def release(self) -> None:
        """Release all pages of columns in scratch files."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for pages in [known() for known in self._maps]:
                if pages is not None:
                    pages.madvise(mmap.MADV_DONTNEED)


IN_MEMORY = ColumnArena()


def give_back() -> None:
    """Return freed memory to the system; glibc would keep a tenth of all memory."""
    from ctypes import CDLL  # noqa: PLC0415 (a few ms)

    with suppress(AttributeError, OSError, TypeError):  # other C libraries
        CDLL(None).malloc_trim(0)


def keep_freed() -> None:
    """Let glibc keep freed memory for the next arrays: getting large ones from the system takes a seventh of the CPU
    time.
    """
    from ctypes import CDLL  # noqa: PLC0415 (a few ms)

    with suppress(AttributeError, OSError, TypeError):  # other C libraries
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            CDLL(None).mallopt(option, (1 << 31) - 1)


def sort_groups(
    group: AnyInts, start: Ints, end: Ints, arena: ColumnArena, *, longest: bool = False
) -> tuple[Index, Ints]:
    """Return the order that sorts the rows by group, start and end; also return the starts in this order.

    With ``longest``, rows with equal starts are sorted longest first. Takes linear time if rows are already sorted by
    time, or consist of a few sorted tables.
    """
    order = np.lexsort((start, group))
    values = arena.take(start, order)
    same = tied(order, values, group)
    return settled(order, same, -end if longest and same.any() else end), values


def parse_size(text: str) -> int:
    """Parse ``3GB`` (powers of 1,000), ``3GiB`` (of 1,024) or bytes; raises `NsysprofError` for any other text."""
    match = _SIZE.fullmatch(text.strip())
    size = round(float(match[1]) * (1024 if match[3] else 1000) ** _POWER[match[2].upper()]) if match else 0
    if not size:
        raise NsysprofError(f"{text!r} is not a memory size", "give a size with a unit, such as 3GB or 500MB")
    return size


def default_limit() -> int:
    """Return `DEFAULT_SHARE` of the memory that this process may use, in bytes."""
    return int(DEFAULT_SHARE * min([_machine_memory(), *group_limits()]))


def group_limits() -> Iterator[int]:
    """Yield the memory limits of this process's control groups (version 1 or 2) and of their parent groups."""
    for line in _read("/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        kinds, _, group = rest.partition(":")
        if number == "0":
            top, name = Path("/sys/fs/cgroup"), "memory.max"
        elif "memory" in kinds.split(","):
            top, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        else:
            continue
        inner = PurePosixPath(group.lstrip("/"))
        for place in (inner, *inner.parents):
            text = _read(str(top / place / name)).strip()
            if text.isdigit():
                yield int(text)


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 8 << 30


@contextmanager
def enough_space(size: int = 0) -> Iterator[None]:
    """Raise `NsysprofError` with the folder and a hint if a scratch file (of ``size`` bytes) cannot be written."""
    try:
        yield
    except OSError as error:
        more = f" of {format_bytes(size)}" if size else ""
        raise NsysprofError(
            f"cannot write a scratch file{more} in {tempfile.gettempdir()}: {error.strerror or error}",
            "export TMPDIR=FOLDER with more space, or raise --memory-limit",
        ) from None


def _resident_memory() -> tuple[int, int] | None:
    """Return the resident bytes of this process, and how many of them map files; None if the system does not say."""
    fields = _read("/proc/self/statm").split()
    return (int(fields[1]) * mmap.PAGESIZE, int(fields[2]) * mmap.PAGESIZE) if len(fields) > 2 else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeError):
        return ""


def _watch(arena: weakref.ref[ColumnArena], libraries: int) -> None:
    """Release mapped columns whenever the process comes near its limit, as long as the arena lives.

    ``libraries``: how many bytes of other files were mapped before.
    """
    while True:
        time.sleep(_WATCH_PERIOD_S)
        columns, memory = arena(), _resident_memory()
        if columns is None or columns.limit is None or memory is None:
            return
        if memory[0] > _MAX_FILL * columns.limit and memory[1] - libraries > _MIN_RELEASE_BYTES:
            columns.release()
        del columns
