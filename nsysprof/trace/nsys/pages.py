"""Read columns of a table from the pages of an SQLite file with numpy, without an object per row.

The file format is described at https://sqlite.org/fileformat2.html. This file finds the cells of a table (a b-tree of
pages); `records` decodes the cells. Raises `RefusedError` for any unusual layout: the caller then reads through
sqlite3. Every page number, count and pointer is checked before it is used.
"""

import io
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nsysprof.trace.nsys.blocks import Block, Wanted
from nsysprof.trace.nsys.records import SPARE, SPARE_FOR_EACH_FIELD, Layout, Patch, RefusedError, as_block, find_rows

_BLOCK_BYTES = 1 << 21  # of pages decoded at once: they stay in the cache, and numpy's calls stay few
_MAX_LEVELS = 20  # of a b-tree, which is SQLite's own limit
_TABLE_LEAF, _TABLE_INTERIOR = 13, 5


class _File(NamedTuple):
    handle: io.FileIO
    size: int  # of a page
    pages: int


def decode(
    path: str, layout: Layout, wanted: Wanted, patch: Patch, part: tuple[int, int] = (0, 1)
) -> Iterator[tuple[Block, int]]:
    """Yield blocks of the columns in rowid order, each block with its last rowid; ``part`` (number, count): of a part
    of the table.

    `patch` fetches rows with unusual records, if there are few. Raises RefusedError, possibly after it yielded some
    blocks. These blocks are correct if the file did not change.
    """
    with open(path, "rb", buffering=0) as handle:  # noqa: PTH123 - Path.open hides that this is unbuffered
        file = _open(handle, os.fstat(handle.fileno()).st_size)
        leaves = _leaves(file, layout.root)
        first, stop = (len(leaves) * at // part[1] for at in (part[0], part[0] + 1))
        step = max(1, _BLOCK_BYTES // file.size)
        buffer = np.zeros(step * file.size + SPARE + SPARE_FOR_EACH_FIELD * len(layout.fields), np.uint8)
        last = None
        # a part begins with the last page of the part before, for its rowids alone
        for at in ([first - 1] if first else []) + [*range(first, stop, step)]:
            pages = leaves[at : min(at + step, stop) if at >= first else first]
            _read(file, pages, buffer)
            cells = _cells(buffer, file.size, len(pages), empty=len(leaves) == 1)
            if len(cells):
                found = find_rows(buffer, cells, file.size, wanted, layout)
                if at < first:
                    last = int(found.rowid[-1])
                    continue
                block, last = as_block(found, last, wanted, patch)
                yield block, last


def _open(handle: io.FileIO, length: int) -> _File:
    header = handle.read(100)
    if len(header) < 100 or header[:16] != b"SQLite format 3\0":
        raise RefusedError("no SQLite header")
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    pages = int.from_bytes(header[28:32], "big")
    for plain, why in (
        (sys.byteorder == "little", "this machine is big-endian"),
        (size >= 512 and size & (size - 1) == 0, f"a page size of {size}"),
        (header[18:20] == b"\1\1", "written with a write-ahead log"),
        (header[20] == 0, "reserved bytes in each page"),
        (header[21:24] == b"\x40\x20\x20", "payload fractions"),
        (header[56:60] == b"\0\0\0\1", "text is not UTF-8"),
        (header[24:28] == header[92:96] and pages * size == length, "the header gives another file size"),
    ):
        if not plain:
            raise RefusedError(why)
    return _File(handle, size, pages)


def _read(file: _File, pages: np.ndarray, buffer: np.ndarray) -> None:
    """Fill `buffer` with `pages` (numbered from 1), consecutive ones in one go."""
    view = memoryview(buffer.data)
    breaks = (np.flatnonzero(np.diff(pages) != 1) + 1).tolist()
    for first, after in zip([0, *breaks], [*breaks, len(pages)], strict=True):
        file.handle.seek((int(pages[first]) - 1) * file.size)
        at, stop = first * file.size, after * file.size
        while at < stop:
            got = file.handle.readinto(view[at:stop])
            if not got:
                raise RefusedError("the file ends before its last page")
            at += got


def _leaves(file: _File, root: int) -> np.ndarray:
    """The leaf pages below `root` in rowid order, found level by level through the interior pages."""
    level = np.array([root], np.int64)
    seen = np.zeros(file.pages + 1, bool)
    lock_page = (1 << 30) // file.size + 1  # never holds data
    buffer = np.zeros(file.size, np.uint8)
    for _ in range(_MAX_LEVELS):
        if level.min() < 2 or level.max() > file.pages or (level == lock_page).any():
            raise RefusedError("a page number is outside the file")
        before = np.count_nonzero(seen)
        seen[level] = True
        if np.count_nonzero(seen) != before + len(level):
            raise RefusedError("a page is in the tree twice")
        _read(file, level[:1], buffer)
        if buffer[0] != _TABLE_INTERIOR:
            return level
        below = []
        for at in range(len(level)):
            _read(file, level[at : at + 1], buffer)
            below.append(_children(buffer, file.size))
        level = np.concatenate(below)
    raise RefusedError("the tree is too deep")


def _children(page: np.ndarray, size: int) -> np.ndarray:
    """The pages below an interior page: one for each cell, then the rightmost one of its header."""
    count = int(page[3]) << 8 | int(page[4])
    if page[0] != _TABLE_INTERIOR or count == 0 or 12 + 2 * count > size:
        raise RefusedError("an interior page is not plain")
    cells = page[12 : 12 + 2 * count].view(">u2").astype(np.int64)
    if cells.min() < 12 + 2 * count or cells.max() > size - 4:
        raise RefusedError("a cell pointer is outside its page")
    at = np.append(cells, 8)[:, None] + np.arange(4)
    return page[at].view(">u4")[:, 0].astype(np.int64)


def _cells(buffer: np.ndarray, size: int, pages: int, empty: bool) -> np.ndarray:
    """Where each cell of the leaf pages in `buffer` starts; `empty`: a page may have none."""
    base = np.arange(pages) * size
    if (buffer[base] != _TABLE_LEAF).any():
        raise RefusedError("a page is not a table leaf")
    counts = buffer[base + 3].astype(np.int64) << 8 | buffer[base + 4]
    if (8 + 2 * counts > size).any() or not (empty or counts.all()):
        raise RefusedError("a page has an invalid cell count")
    pointers = np.arange(int(counts.sum()))  # of all cells, as 2-byte words of the buffer
    pointers += np.repeat((base >> 1) + 4 - (np.cumsum(counts) - counts), counts)
    cells = buffer[: pages * size].view(">u2")[pointers].astype(np.int64)
    if len(cells) and ((cells < np.repeat(8 + 2 * counts, counts)).any() or cells.max() >= size):
        raise RefusedError("a cell pointer is outside its page")
    return cells + np.repeat(base, counts)
