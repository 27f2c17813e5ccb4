"""Timelines packed into text for a page: a JSON header and compressed columns of numbers.

Times are delta-encoded as varints, mostly one or two bytes each. A row of ops also has levels of detail, so that the
page never draws more columns than pixels. Each level divides the time into columns, each with a busy share and the
family that ran longest. ``parts/timeline_data.js`` decodes this.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsysprof.core.arrays import AnyInts, Bytes, Index, Ints, Mask
from nsysprof.core.columns import marked
from nsysprof.core.intervals import NOTHING, column_edges, cover_before, merge, time_per_group
from nsysprof.core.text import shorten
from nsysprof.kernels.classify import FAMILIES, Kinds, short_name
from nsysprof.trace.trace import Trace

# Columns of the levels, each with `STEP` times as many as the one above.
COARSEST, STEP, FINEST = 1024, 4, 65_536
_OPS_PER_COLUMN = 8  # of the finest level that a row needs
_MIN_OPS = 500  # ops, that are always drawn one by one
_FULL = 255
_NAME = 160  # characters of a GPU op


@dataclass(frozen=True)
class PageRow:
    """A row of a timeline: marks by start, all of one ``kind``: ``ops, ranges, calls, others, gaps, waits``,
    ``memory`` or ``metric`` (percent).

    ``start``, ``end`` int64 ns from the beginning of the timeline; ``columns``, the kind's non-negative integers.
    ``family`` (uint8, for ops only): a colour number; rows with ``family`` have levels.
    """

    group: str
    label: str
    kind: str
    start: Ints
    end: Ints
    columns: Sequence[AnyInts] = ()
    family: Bytes | None = None
    kept: Mask | None = None  # the marks that the page holds; None: all


def pack(rows: Sequence[PageRow], length: int, head: Mapping[str, Any]) -> str:
    """Pack the rows over ``length`` ns as base64 of zlib; ``head`` adds facts to the header.

    The content begins with the length of the header in four bytes (little-endian) and the header. For each row, its
    levels (finest first) and its columns follow. The columns are the delay of each mark after the previous mark, the
    length of each mark, and the other columns.
    """
    body, about = [], []
    for row in rows:
        shown = slice(None) if row.kept is None else row.kept
        start, end = row.start[shown], row.end[shown]
        counts = []
        for busy, family in _levels(row, length) if row.family is not None else ():
            counts.append(len(busy))
            body += [busy.tobytes(), family.tobytes()]
        body += [varints(np.diff(start, prepend=0)), varints(end - start)]
        body += [varints(column[shown]) for column in row.columns]
        about.append(
            {
                "group": row.group,
                "label": row.label,
                "kind": row.kind,
                "marks": len(start),
                "of": len(row.start),
                "columns": len(row.columns),
                "levels": counts,
            }
        )
    header = json.dumps({**head, "length": length, "rows": about}, ensure_ascii=True).encode()
    packed = zlib.compress(b"".join((len(header).to_bytes(4, "little"), header, *body)), 9)
    return base64.b64encode(packed).decode("ascii")


def longest(start: Ints, end: Ints, most: int) -> Mask | None:
    """Select the longest marks (at most ``most``), which a page draws individually; None if there are at most that
    many.
    """
    if len(start) <= most:
        return None
    return marked(np.argpartition(start - end, most)[:most], len(start))


def op_names(names: Sequence[str], kinds: Kinds, group: Bytes) -> list[tuple[Any, ...]]:
    """List each GPU op name with its kind and its colour number."""
    texts = [shorten(short_name(name, _NAME), _NAME) for name in names]
    families = [FAMILIES.index(family) for family in kinds.family]
    return list(zip(texts, families, kinds.math_unit, kinds.cause, group.tolist(), strict=True))


def op_leads(trace: Trace, rows: Index) -> Ints:
    """Return the time from each GPU op's launch to its start in ns, plus 1; 0 if unknown, or if clocks disagree."""
    launch = trace.ops.launch[rows]
    lead = trace.ops.start[rows] - np.append(trace.launches.start, 0)[launch] + 1
    return np.where(launch >= 0, np.maximum(lead, 0), 0)


def varints(values: AnyInts) -> bytes:
    """Encode non-negative integers as varints: seven bits per byte, low bits first."""
    rest = values.astype(np.uint64)
    out = np.empty((len(rest), 10), np.uint8)
    used = np.zeros((len(rest), 10), bool)
    for place in range(10):
        used[:, place] = (rest > 0) if place else True
        more = rest >= 128
        out[:, place] = (rest & np.uint64(127)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        rest >>= np.uint64(7)
        if not more.any():
            break
    return out[used].tobytes()


def _levels(row: PageRow, length: int) -> list[tuple[Bytes, Bytes]]:
    """Find how busy each column is, of 255, and the colour of what ran longest (or `NOTHING`); the finest level first.

    A row with so few marks that all can be drawn needs none.
    """
    assert row.family is not None
    columns = COARSEST * STEP
    while columns < FINEST and columns * _OPS_PER_COLUMN < len(row.start):
        columns *= STEP
    if len(row.start) < _MIN_OPS or length < columns:
        return []
    edges = column_edges(0, length, columns)
    first, last = merge(row.start, row.end)
    busy = np.diff(cover_before(first, last, edges))
    family = time_per_group(row.start, row.end, row.family, edges)
    width = np.diff(edges)
    out = []
    while True:
        part = np.ceil(busy / np.maximum(width, 1) * _FULL).astype(np.uint8)
        out.append((part, np.where(busy > 0, family.argmax(axis=0), NOTHING).astype(np.uint8)))
        if len(busy) <= COARSEST:
            return out
        busy, width = (values.reshape(-1, STEP).sum(axis=1) for values in (busy, width))
        family = family.reshape(len(family), -1, STEP).sum(axis=2)


def busy_shares(start: Ints, end: Ints, length: int) -> list[float]:
    """Return the busy share of each column, in percent with one decimal."""
    edges = column_edges(0, length, COARSEST)
    busy = np.diff(cover_before(*merge(start, end), edges))
    return np.round(100 * busy / np.maximum(np.diff(edges), 1), 1).tolist()
