"""Summarize collectives: the bytes and bandwidth of each communicator."""

import re

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.arrays import Floats, Ints, Ints32
from nsysprof.core.columns import ColumnTable, Texts, distinct, sums
from nsysprof.core.text import plural
from nsysprof.core.units import format_bytes, format_ns
from nsysprof.results.table import Column, table
from nsysprof.statistics.distributions import grouped_quartiles
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.details import Collectives

COLLECTIVES = table(
    "collectives.csv",
    "a row per range, collective, communicator and message size; needs a trace of PyTorch 2.2 or newer",
    {
        "merged_path": Column("", "merged path of the innermost range that owns the collectives", "in range"),
        "collective": "PyTorch's name of the collective",
        "communicator": "ranks and name of the process group",
        "ranks": "number of ranks of the communicator; 0 if not recorded",
        "message_bytes": Column(
            "", "bytes that a rank sends or receives, whichever is larger; -1 if not recorded", "message"
        ),
        "count": "number of GPU ops",
        "size_bytes": Column("", "total bytes of the collectives", "size"),
        "sum_ns": Column(
            "", "total duration of these collectives, including the time this rank waits for other ranks", "sum"
        ),
        "median_ns": Column("", "median duration of the collectives", "median"),
        "bus_bytes_per_s": Column(
            "", "bus bandwidth (busbw) of the fastest collective, as defined by nccl-tests", "busbw, best"
        ),
    },
    made_in="summaries/collectives.py",
)
_OF_ALL = ("collective", "communicator", "message_bytes", "count", "sum_ns", "median_ns", "bus_bytes_per_s")
_SHOWN = tuple(column for column in COLLECTIVES.columns if column.name in _OF_ALL)
# What a link carries, for each byte of the message and of n ranks (nccl-tests, doc/PERFORMANCE.md).
_TWICE, _ONCE = (re.compile(r"all_?reduce", re.I), re.compile(r"all_?gather|reduce_?scatter|all_?to_?all", re.I))
_NOTE = (
    "busbw, best: bus bandwidth of the fastest collective, as defined by nccl-tests (slower ones may "
    "include waiting for late ranks)."
)


def collectives(attribution: Attribution, asked: Asked) -> Answer | None:
    """Sum collectives, the longest first; returns None if the trace names none."""
    trace = attribution.trace
    known = trace.report.reader.collectives(trace)
    if not len(known.op):
        return None
    owner = np.append(attribution.owner, -1)[trace.ops.launch[known.op]]
    path = Texts(np.append(asked.merged_of, -1)[owner], [*asked.merged, ""])
    length = trace.ops.end[known.op] - trace.ops.start[known.op]
    rows, shown = _rows(known, length, path), _rows(known, length, Texts(path.codes * 0, [""]))
    finding = (
        f"Collectives: {plural(len(known.op), 'collective')} of {plural(len(known.groups), 'communicator')},"
        f" {format_bytes(int(rows['size_bytes'].sum()))} in {format_ns(int(length.sum()))}"
    )
    return Answer({COLLECTIVES.file: rows}, finding, _SHOWN, shown, _NOTE)


def _rows(known: Collectives, length: Ints, path: Texts) -> ColumnTable:
    """A row per path, collective, communicator and size of a message, the longest first."""
    first, row = distinct(path.codes, known.kind, known.group, known.size_bytes)
    ranks = np.array(known.group_size, np.int64)[known.group]
    speed = np.zeros(len(first))
    each = np.maximum(known.size_bytes, 0) * _factors(known.kinds, known.kind, ranks) / np.maximum(length, 1)
    np.maximum.at(speed, row, np.where(length > 0, each * 1e9, 0))
    count = np.bincount(row)
    rows = ColumnTable(
        {
            "merged_path": path[first],
            "collective": Texts(known.kind[first], known.kinds),
            "communicator": Texts(known.group[first], known.groups),
            "ranks": ranks[first],
            "message_bytes": known.size_bytes[first],
            "count": count,
            "size_bytes": np.maximum(known.size_bytes[first], 0) * count,
            "sum_ns": sums(row, length, len(first)),
            "median_ns": grouped_quartiles(row, length, len(first)).median,
            "bus_bytes_per_s": np.where(speed > 0, speed, np.nan),
        }
    )
    return rows.take(np.argsort(-rows["sum_ns"], kind="stable"))


def _factors(kinds: list[str], kind: Ints32, ranks: Ints) -> Floats:
    """How much of a message goes over a link; 0 for one rank, or for an unknown number of ranks."""
    share = np.where(ranks > 1, (ranks - 1) / np.maximum(ranks, 1), 0.0)
    twice, once = (np.array([bool(way.search(text)) for text in kinds])[kind] for way in (_TWICE, _ONCE))
    return np.where(twice, 2 * share, np.where(once, share, ranks > 1))


SUMMARY = Summary("collectives", "Collectives", (COLLECTIVES,), collectives)
