"""Reads what host threads did as ranges: MPI calls, and OpenACC constructs with their places in the source.

The tables and columns are those of the SQLite schema in the user guides of nsys 2022.4 and 2023.4; in earlier exports
MPI calls are ranges of NVTX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.columns import Coder
from nsysprof.trace.details import OtherRanges, no_ranges
from nsysprof.trace.nsys.blocks import Block, Growing, Source, column, read_blocks, times, unread_tables
from nsysprof.trace.trace import MPI, OPENACC, RangeName, Trace

MPI_CALLS = ("MPI_COLLECTIVES_EVENTS", "MPI_OTHER_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS")
_OPENACC = tuple(f"CUPTI_ACTIVITY_KIND_OPENACC_{what}" for what in ("DATA", "LAUNCH", "OTHER"))
_TABLES = {"mpi": MPI_CALLS, "openacc": _OPENACC}
_KINDS = {"mpi": MPI, "openacc": OPENACC}
_DOMAINS = {"mpi": "MPI", "openacc": "OpenACC"}
_NEEDS = ("start", "end", "globalTid")  # without them a row is no range
_NAMES = ("textId", "nameId")  # of MPI calls, of OpenACC events
_PLACE = ("srcFile", "funcName", "lineNo")
_MISSING = -1


def read_other_ranges(source: Source, trace: Trace, sources: Collection[str]) -> OtherRanges:
    """The ranges of ``sources``, of ``mpi`` and ``openacc``, in the order of the file.

    A call that never returned ends with the session. A call that waits for several requests, and one that sends and
    receives, has a row for each of them: of equal rows of one thread one counts.
    """
    parts = [_read(source, trace, each) for each in _TABLES if each in sources]
    if not parts:
        return no_ranges()
    first = np.cumsum([0, *(len(part.names) for part in parts)], dtype=np.int32)
    return OtherRanges(
        thread=np.concatenate([part.thread for part in parts]),
        start=np.concatenate([part.start for part in parts]),
        end=np.concatenate([part.end for part in parts]),
        kind=np.concatenate([part.kind for part in parts]),
        name=np.concatenate([part.name + offset for part, offset in zip(parts, first, strict=False)]),
        names=[name for part in parts for name in part.names],
        warnings=tuple(warning for part in parts for warning in part.warnings),
    )


def _read(source: Source, trace: Trace, which: str) -> OtherRanges:
    rows = Growing(trace.arena, thread="i8", start="i8", end="i8", name="i4")
    names = _Names()
    unended = 0
    for table in _TABLES[which]:
        for block in read_blocks(source, table, _NEEDS, (*_NAMES, *_PLACE)):
            start, end = times(block)
            running = block.nulls.get("end")
            if running is not None:
                end = np.where(running, np.maximum(start, trace.session_end), end)
                unended += int(np.count_nonzero(running))
            rows.add(
                block.rows, thread=column(block, "globalTid"), start=start, end=end, name=names.encode(block)
            )
    columns = rows.take_rest()
    keep = _first_of_equal([columns[name] for name in ("thread", "start", "end", "name")])
    columns = {name: trace.arena.take(values, keep) for name, values in columns.items()}
    called = _DOMAINS[which]
    warnings = [
        f"{each.table} lacks {' and '.join(each.lacks)}: its {each.rows:,} rows cannot be read and are no ranges"
        for each in unread_tables(source, dict.fromkeys(_TABLES[which], _NEEDS))
    ]
    if unended:
        warnings.append(f"{called} calls that did not return while nsys recorded: {unended:,}")
    return OtherRanges(
        **columns,
        kind=np.full(len(keep), _KINDS[which], np.uint8),
        names=[RangeName(text, called) for text in names.texts(source, f"{called} call")],
        warnings=tuple(warnings),
    )


def _first_of_equal(columns: Sequence[NDArray[np.integer]]) -> NDArray[np.intp]:
    """The rows, ascending, without those that equal an earlier one."""
    order = np.lexsort(columns)  # stable
    new = np.zeros(len(order), bool)
    new[:1] = True
    for values in columns:
        new[1:] |= values[order[1:]] != values[order[:-1]]
    return np.sort(order[new])


class _Names:
    """Codes of (string id of a name, place in the source)."""

    def __init__(self) -> None:
        self._ids, self._files, self._functions, self._lines = Coder(), Coder(), Coder(), Coder()
        self._units, self._places, self._names = Coder(), Coder(), Coder()

    def encode(self, block: Block) -> NDArray[np.int32]:
        name = np.maximum(*(column(block, each, _MISSING) for each in _NAMES))
        file, function = (
            coder.encode(column(block, each, _MISSING))
            for coder, each in ((self._files, "srcFile"), (self._functions, "funcName"))
        )
        unit = self._units.encode(_pair(file, function))
        place = self._places.encode(_pair(unit, self._lines.encode(column(block, "lineNo"))))
        return self._names.encode(_pair(self._ids.encode(name), place))

    def texts(self, source: Source, unnamed: str) -> list[str]:
        """The name of each code, as nsys writes it: ``Compute Construct@layers.c:118``, of a file without its folder.

        Files in different folders that are called alike keep theirs; where no file is recorded the function stands.
        """
        used = {
            int(each) for coder in (self._ids, self._files, self._functions) for each in coder.values.tolist()
        } - {_MISSING}
        strings = source.strings(sorted(used))
        paths = {each: strings[each] for each in self._files.values.tolist() if each in strings}
        alike = Counter(path.rpartition("/")[2] for path in set(paths.values()))
        ids, files, functions, lines, units, places = (
            coder.values.tolist()
            for coder in (self._ids, self._files, self._functions, self._lines, self._units, self._places)
        )
        out = []
        for key in self._names.values.tolist():
            place = places[key & 0xFFFFFFFF]
            unit = units[place >> 32]
            path = paths.get(files[unit >> 32], "")
            file = path.rpartition("/")[2]
            where = (path if alike[file] > 1 else file) or strings.get(functions[unit & 0xFFFFFFFF], "")
            line = lines[place & 0xFFFFFFFF]
            where += f":{line}" if where and line > 0 else ""
            out.append("@".join(filter(None, (strings.get(ids[key >> 32]) or unnamed, where))))
        return out


def _pair(high: NDArray[np.int32], low: NDArray[np.int32]) -> NDArray[np.int64]:
    return (high.astype(np.int64) << 32) | low
