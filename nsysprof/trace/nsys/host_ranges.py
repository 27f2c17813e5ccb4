"""Reads what host threads did as ranges: MPI calls, and OpenACC constructs with their places in the source.

The tables and columns are those of the SQLite schema in the user guides of nsys 2022.4 and 2023.4; in earlier exports
MPI calls are ranges of NVTX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.columns import Coder
from nsysprof.trace.details import OtherRanges
from nsysprof.trace.nsys.blocks import Block, Growing, Source, column, read_blocks, times, unread_tables
from nsysprof.trace.trace import MPI, OPENACC, RangeName, Trace

MPI_CALLS = [f"MPI_{what}_EVENTS" for what in ("COLLECTIVES", "OTHER", "P2P", "START_WAIT")]
_OPENACC = [f"CUPTI_ACTIVITY_KIND_OPENACC_{what}" for what in ("DATA", "LAUNCH", "OTHER")]
_TABLES = {"mpi": (MPI, MPI_CALLS), "openacc": (OPENACC, _OPENACC)}
_DOMAINS = {MPI: "MPI", OPENACC: "OpenACC"}
_NEEDS = ("start", "end", "globalTid")  # without them a row is no range
_NAMES = ("textId", "nameId")  # of MPI calls, of OpenACC events
_PLACE = ("srcFile", "funcName", "lineNo")
_MISSING = -1


def read_other_ranges(source: Source, trace: Trace, sources: Collection[str]) -> OtherRanges:
    """The ranges of ``sources``, of ``mpi`` and ``openacc``.

    The last call of a thread ends with the session where it never returned; others without an end take no time, as
    more than one cannot be open. A call that waits for several requests, and one that sends and
    receives, has a row for each of them: of equal rows of one thread one counts.
    """
    kinds = {table: kind for each in sources for kind, tables in [_TABLES[each]] for table in tables}
    rows = Growing(trace.arena, thread="i8", start="i8", end="i8", name="i4", kind="u1", open="?")
    names = _Names()
    for table, kind in sorted(kinds.items()):
        for block in read_blocks(source, table, _NEEDS, (*_NAMES, *_PLACE)):
            start, end = times(block)
            thread, name = column(block, "globalTid"), names.encode(block, kind)
            unended = block.nulls.get("end", np.zeros(block.rows, bool))
            rows.add(block.rows, thread=thread, start=start, end=end, name=name, kind=kind, open=unended)
    columns = rows.take_rest()
    unended = np.flatnonzero(columns.pop("open"))
    by_thread = unended[np.lexsort([columns[each][unended] for each in ("name", "start", "thread")])]
    last = by_thread[np.append(np.diff(columns["thread"][by_thread]) != 0, True)[: len(by_thread)]]
    columns["end"][last] = np.maximum(columns["start"][last], trace.session_end)
    order = np.lexsort([columns[each] for each in ("name", "end", "start", "thread")])
    new = np.zeros(len(order), bool)
    new[:1] = True
    for each in ("name", "end", "start", "thread"):
        values = trace.arena.take(columns[each], order)
        new[1:] |= values[1:] != values[:-1]
    warnings = [
        f"{each.table} lacks {' and '.join(each.lacks)}: its {each.rows:,} rows cannot be read and are no ranges"
        for each in unread_tables(source, dict.fromkeys(kinds, _NEEDS))
    ]
    if len(unended):
        warnings.append(f"calls of MPI or OpenACC that did not return while nsys recorded: {len(unended):,}")
    kept = {each: trace.arena.take(values, order[new]) for each, values in columns.items()}
    return OtherRanges(**kept, names=names.ranges(source), warnings=tuple(warnings))


class _Names:
    """Codes of names with their places: the distinct rows of kind, string ids of name, file and function, and line."""

    def __init__(self) -> None:
        self._values = [Coder() for _ in range(5)]
        self._rows = [
            Coder() for _ in range(5)
        ]  # (code of the row without its last value, code of that value)

    def encode(self, block: Block, kind: int) -> NDArray[np.int32]:
        name = np.maximum(*(column(block, each, _MISSING) for each in _NAMES))
        columns = [np.full(block.rows, kind), name, *(column(block, each, _MISSING) for each in _PLACE)]
        code = np.zeros(block.rows, np.int32)
        for values, row, each in zip(self._values, self._rows, columns, strict=True):
            code = row.encode((code.astype(np.int64) << 32) | values.encode(each))
        return code

    def ranges(self, source: Source) -> list[RangeName]:
        """The name of each code, as nsys writes it: ``Compute Construct@layers.c:118``, of a file without its folder.

        Files in different folders that are called alike keep theirs; where no file is recorded the function stands.
        """
        code, columns = np.arange(len(self._rows[-1])), []
        for values, row in zip(self._values[::-1], self._rows[::-1], strict=True):
            code, last = np.divmod(row.values[code], 1 << 32)
            columns.append(values.values[last].tolist())
        strings = source.strings(sorted({each for column in columns[1:4] for each in column} - {_MISSING}))
        alike = Counter(strings[each].rpartition("/")[2] for each in set(columns[2]) & set(strings))
        out = []
        for line, function, file, name, kind in zip(*columns, strict=True):
            short = strings.get(file, "").rpartition("/")[2]
            place = (strings[file] if alike[short] > 1 else short) or strings.get(function, "")
            at = f"@{place}" + f":{line}" * (line > 0) if place else ""
            out.append(RangeName(f"{strings.get(name) or f'{_DOMAINS[kind]} call'}{at}", _DOMAINS[kind]))
        return out
