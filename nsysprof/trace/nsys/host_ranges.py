"""Read non-NVTX host ranges: MPI calls, and OpenACC constructs with their source locations.

Tables and columns follow the SQLite schema in the user guides of nsys 2022.4 and 2023.4; in earlier exports, MPI calls
are NVTX ranges.
"""

from collections import Counter
from collections.abc import Collection

import numpy as np

from nsysprof.core.columns import RowCoder
from nsysprof.trace.details import OtherRanges, RangeName
from nsysprof.trace.nsys.blocks import Growing, Source, column, read_blocks, times, unread_tables
from nsysprof.trace.trace import MPI, OPENACC, Trace

MPI_CALLS = [f"MPI_{what}_EVENTS" for what in ("COLLECTIVES", "OTHER", "P2P", "START_WAIT")]
_OPENACC = [f"CUPTI_ACTIVITY_KIND_OPENACC_{what}" for what in ("DATA", "LAUNCH", "OTHER")]
_TABLES = {"mpi": (MPI, MPI_CALLS), "openacc": (OPENACC, _OPENACC)}
_DOMAINS = {MPI: "MPI", OPENACC: "OpenACC"}
_NEEDS = ("start", "end", "globalTid")  # without them a row is no range
_NAMES = ("textId", "nameId")  # of MPI calls, of OpenACC events
_PLACE = ("srcFile", "funcName", "lineNo")
_MISSING = -1


def read_other_ranges(source: Source, trace: Trace, sources: Collection[str]) -> OtherRanges:
    """The ranges of ``sources``: ``mpi`` and ``openacc``.

    A thread's last call without an end lasts until the session ends; earlier calls without an end take no time, because
    at most one call can be open. A call that waits for several requests, or that sends and receives, has several rows.
    Equal rows of a thread count once.
    """
    kinds = {table: kind for each in sources if each in _TABLES for kind, tables in [_TABLES[each]] for table in tables}
    rows = Growing(trace.arena, thread="i8", start="i8", end="i8", name="i4", kind="u1", open="?")
    names = RowCoder(5)  # of kind, string ids of name, file and function, and line
    for table, kind in sorted(kinds.items()):
        for block in read_blocks(source, table, _NEEDS, (*_NAMES, *_PLACE)):
            start, end = times(block)
            text = np.maximum(*(column(block, each, _MISSING) for each in _NAMES))
            place = (column(block, each, _MISSING) for each in _PLACE)
            thread, name = column(block, "globalTid"), names.encode(np.full(block.rows, kind), text, *place)
            unended = block.nulls.get("end", np.zeros(block.rows, bool))
            rows.add(block.rows, thread=thread, start=start, end=end, name=name, kind=kind, open=unended)
    columns = rows.take_rest()
    unended = np.flatnonzero(columns.pop("open"))
    by_thread = unended[np.lexsort([columns[each][unended] for each in ("name", "start", "thread")])]
    last = by_thread[np.append(np.diff(columns["thread"][by_thread]) != 0, True)[: len(by_thread)]]
    columns["end"][last] = np.maximum(columns["start"][last], trace.session_end)
    rows_by = [columns[each] for each in ("name", "end", "start", "thread")]
    order = np.lexsort(rows_by)
    new = np.arange(len(order)) == 0
    for each in rows_by:
        values = trace.arena.take(each, order)
        new[1:] |= values[1:] != values[:-1]
    warnings = [
        f"{each.table} lacks {' and '.join(each.lacks)}, so its {each.rows:,} rows cannot be read and are left out"
        for each in unread_tables(source, dict.fromkeys(kinds, _NEEDS))
    ]
    if len(unended):
        warnings.append(f"calls of MPI or OpenACC that did not return while nsys recorded: {len(unended):,}")
    kept = {each: trace.arena.take(values, order[new]) for each, values in columns.items()}
    return OtherRanges(**kept, names=_range_names(source, names.rows()), warnings=tuple(warnings))


def _range_names(source: Source, rows: list[tuple[int, ...]]) -> list[RangeName]:
    """Names composed of kind, name, file, function and line, as nsys writes them: ``Compute Construct@layers.c:118``,
    without the folder of the file.

    The folder stays if files in different folders have the same name. If no file is recorded, the function is named.
    """
    strings = source.strings(sorted({each for row in rows for each in row[1:4]} - {_MISSING}))
    alike = Counter(_file_name(strings[file]) for file in {row[2] for row in rows} & set(strings))
    out = []
    for kind, name, file, function, line in rows:
        short = _file_name(strings.get(file, ""))
        place = (strings.get(file, "") if alike[short] > 1 else short) or strings.get(function, "")
        at = f"@{place}" + f":{line}" * (line > 0) if place else ""
        out.append(RangeName(f"{strings.get(name) or f'{_DOMAINS[kind]} call'}{at}", _DOMAINS[kind]))
    return out


def _file_name(path: str) -> str:
    """The last part of a path of Linux or, with backslashes, of Windows."""
    return path.replace("\\", "/").rpartition("/")[2]
