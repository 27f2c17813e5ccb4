"""Where long columns live: in memory, or, for reports that need more of it than they may have, in a scratch file.

A column in a scratch file is an array like any other, mapped into memory. The memory that shows it can be taken back at
any moment, because the file still holds it, and comes back by itself where the column is read again. So one and the
same computation runs on either kind, and gives the same numbers. Scratch files have no name: nothing is left of them
when the program ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nsysprof.core.units import format_bytes
from nsysprof.errors import NsysprofError

DEFAULT_SHARE = 0.5  # of the machine's memory, or of what a control group leaves of it
_PERIOD_S = 0.02
# Mapped columns are let go of when the process holds this part of its limit, and they at least so much of it.
_FULL, _WORTH = 0.6, 1 << 26
_SMALL = 1 << 16  # bytes: what is shorter stays in memory
_CHUNK = 1 << 20  # rows at a time where temporaries would be large
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class ColumnArena:
    """Gives out arrays: in memory where ``limit`` is None, else in scratch files, shown in about ``limit`` bytes."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._maps: list[weakref.ref[mmap.mmap]] = []
        self._watched = False

    def empty(self, rows: int, dtype: DTypeLike) -> NDArray[Any]:
        """A new column to be filled."""
        size = rows * np.dtype(dtype).itemsize
        if self.limit is None or size < _SMALL:
            return np.empty(rows, dtype)
        with self.file() as file:
            with enough_space(size):
                if size and hasattr(os, "posix_fallocate"):  # or there might be none left when it is written
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
            return self.mapped(file, rows, dtype)

    def zeros(self, rows: int, dtype: DTypeLike) -> NDArray[Any]:
        """A new column of zeros, which takes no memory as long as nothing else is written to it."""
        small = self.limit is None or rows * np.dtype(dtype).itemsize < _SMALL
        return np.zeros(rows, dtype) if small else self.empty(rows, dtype)

    def full(self, rows: int, value: int, dtype: DTypeLike) -> NDArray[Any]:
        """A new column that holds one value everywhere."""
        out = self.empty(rows, dtype)
        out[:] = value
        return out

    def take(self, values: NDArray[Any], rows: NDArray[np.integer]) -> NDArray[Any]:
        """``values[rows]`` as a new column; -1 stands for the last value."""
        out = self.empty(len(rows), values.dtype)
        for first in range(0, len(rows), _CHUNK):
            part = slice(first, first + _CHUNK)
            np.take(values, rows[part], out=out[part], mode="wrap")  # other modes do not fill it in place
        return out

    def cast(self, values: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
        """The values as a new column of another type."""
        out = self.empty(len(values), dtype)
        out[:] = values
        return out

    def repeat(self, values: NDArray[Any], counts: NDArray[np.integer]) -> NDArray[Any]:
        """Each value as often as its count says, as a new column."""
        out = self.empty(int(counts.sum()), values.dtype)
        stop = 0
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            out[stop : stop + count] = value
            stop += count
        return out

    def file(self) -> IO[bytes]:
        """A new scratch file; `NsysprofError` where it cannot be in the folder that was asked for."""
        asked = os.environ.get("TMPDIR")
        if asked and os.path.realpath(asked) != os.path.realpath(tempfile.gettempdir()):
            raise NsysprofError(
                f"cannot write a scratch file in {asked}, which TMPDIR names",
                "TMPDIR=FOLDER names a folder with space, a larger --memory-limit needs no scratch files",
            )
        with enough_space():
            return tempfile.TemporaryFile(prefix="nsysprof-")

    def mapped(self, file: IO[bytes], rows: int, dtype: DTypeLike) -> NDArray[Any]:
        """The column that a scratch file holds; the file may be closed then."""
        if not rows:
            return np.empty(0, dtype)
        shown = mmap.mmap(file.fileno(), rows * np.dtype(dtype).itemsize)
        self._maps = [one for one in self._maps if one() is not None] + [weakref.ref(shown)]
        if not self._watched:
            self._watched = True
            if held := _held():
                threading.Thread(target=_watch, args=(weakref.ref(self), held[1]), daemon=True).start()
        return np.frombuffer(shown, dtype)

    def release(self) -> None:
        """Give back all memory that shows columns of scratch files."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for shown in [one() for one in self._maps]:
                if shown is not None:
                    shown.madvise(mmap.MADV_DONTNEED)


IN_MEMORY = ColumnArena()


def parse_size(text: str) -> int:
    """Bytes of ``3GB`` (powers of 1,000), ``3GiB`` (of 1,024) or a plain number; `NsysprofError` for anything else."""
    found = _SIZE.fullmatch(text.strip())
    size = round(float(found[1]) * (1024 if found[3] else 1000) ** _POWER[found[2].upper()]) if found else 0
    if not size:
        raise NsysprofError(f"{text!r} is no size of memory", "give one such as 3GB or 500MB")
    return size


def default_limit() -> int:
    """`DEFAULT_SHARE` of the memory that this process may use, in bytes."""
    return int(DEFAULT_SHARE * min([_machine_memory(), *group_limits()]))


def group_limits() -> Iterator[int]:
    """What the control groups of this process, of version 1 or 2, and those around them allow."""
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
    """Says where scratch files lie and what to do when there is no room for them; ``size`` is that of the next one."""
    try:
        yield
    except OSError as error:
        more = f" of {format_bytes(size)}" if size else ""
        raise NsysprofError(
            f"cannot write a scratch file{more} in {tempfile.gettempdir()}: {error.strerror or error}",
            "TMPDIR=FOLDER names a folder with more space, a larger --memory-limit needs no scratch files",
        ) from None


def _held() -> tuple[int, int] | None:
    """The memory that this process holds, and the part of it that shows files, in bytes; None where nothing tells."""
    fields = _read("/proc/self/statm").split()
    return (int(fields[1]) * mmap.PAGESIZE, int(fields[2]) * mmap.PAGESIZE) if len(fields) > 2 else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeError):
        return ""


def _watch(arena: weakref.ref[ColumnArena], libraries: int) -> None:
    """Let go of mapped columns whenever the process comes near its limit, as long as there is a room.

    ``libraries`` is how much memory showed other files before.
    """
    while True:
        time.sleep(_PERIOD_S)
        mine, held = arena(), _held()
        if mine is None or mine.limit is None or held is None:
            return
        if held[0] > _FULL * mine.limit and held[1] - libraries > _WORTH:
            mine.release()
        del mine
