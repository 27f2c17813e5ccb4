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

_MPI = ("MPI_COLLECTIVES_EVENTS", "MPI_OTHER_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS")
_OPENACC = tuple(f"CUPTI_ACTIVITY_KIND_OPENACC_{what}" for what in ("DATA", "LAUNCH", "OTHER"))
_TABLES = {"mpi": _MPI, "openacc": _OPENACC}
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
    """Codes of names with their places: the distinct rows of (string id of the name, of file, of function, line)."""

    def __init__(self) -> None:
        self._values = [Coder() for _ in range(4)]
        self._rows = [
            Coder() for _ in range(4)
        ]  # (code of the row without its last value, code of that value)

    def encode(self, block: Block) -> NDArray[np.int32]:
        columns = [np.maximum(*(column(block, each, _MISSING) for each in _NAMES))]
        columns += [column(block, each, _MISSING) for each in _PLACE]
        code = np.zeros(block.rows, np.int32)
        for values, row, each in zip(self._values, self._rows, columns, strict=True):
            code = row.encode((code.astype(np.int64) << 32) | values.encode(each))
        return code

    def texts(self, source: Source, unnamed: str) -> list[str]:
        """The name of each code, as nsys writes it: ``Compute Construct@layers.c:118``, of a file without its folder.

        Files in different folders that are called alike keep theirs; where no file is recorded the function stands.
        """
        code, columns = np.arange(len(self._rows[-1])), []
        for values, row in zip(self._values[::-1], self._rows[::-1], strict=True):
            code, last = np.divmod(row.values[code], 1 << 32)
            columns.append(values.values[last].tolist())
        line, function, file, name = columns
        strings = source.strings(sorted({*name, *file, *function} - {_MISSING}))
        alike = Counter(strings[each].rpartition("/")[2] for each in set(file) & set(strings))
        out = []
        for each, path, where, number in zip(name, file, function, line, strict=True):
            short = strings.get(path, "").rpartition("/")[2]
            place = (strings[path] if alike[short] > 1 else short) or strings.get(where, "")
            at = f"@{place}" + f":{number}" * (number > 0) if place else ""
            out.append(f"{strings.get(each) or unnamed}{at}")
        return out
