"""The rows of a pair's timeline: the median call of either side on one axis, from its first op on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.split import stream_labels
from nsysprof.charts.palette import COLOURS
from nsysprof.compare.median_call import MedianCall, median_call
from nsysprof.compare.side_pairs import Pair
from nsysprof.compare.sides import Side
from nsysprof.core.intervals import Ints
from nsysprof.core.text import shorten, shorten_both
from nsysprof.core.units import format_ns
from nsysprof.kernels.classify import FAMILIES, short_name
from nsysprof.page.packing import PageRow, pack
from nsysprof.waits.causes import WAITING_FOR

MOST_CALL_OPS = 50_000  # of a call: more of them are columns only, but for the longest
_NAME, _LABEL, _SIDE = 160, 44, 60


def call_timeline_data(pair: Pair) -> tuple[str, str]:
    """The median calls of a pair, packed, and what they are in one sentence."""
    calls = [median_call(pair.base), median_call(pair.new)]
    length = max(1, *(max(call.length_ns, int(call.end.max(initial=0))) for call in calls))
    names: dict[tuple[str, str], int] = {}
    rows: list[PageRow] = []
    table: list[tuple[str, int, str, str, int]] = []
    known = shorten_both(pair.base_name, pair.new_name, _SIDE)
    for name, side, call in zip(known, (pair.base, pair.new), calls, strict=True):
        group = f"{name} · {format_ns(call.length_ns)}"
        rows += _rows(side, call, group, length, names, table)
    views = [
        (f"{name} alone", 0, call.length_ns)
        for name, call in zip(shorten_both(pair.base_name, pair.new_name, 30), calls, strict=True)
        if 0 < 2 * call.length_ns < length
    ]
    head = {
        "origin": 0,
        "views": views,
        "gpus": [],
        "families": FAMILIES,
        "groups": [*COLOURS.items()],
        "tints": [],
        "names": table,
        "gaps": WAITING_FOR,
        "pathNames": [],
        "paths": [[], [], []],
    }
    each = " and ".join(
        f"{name} {format_ns(call.length_ns)} (the median of {call.of:,})"
        for name, call in zip(known, calls, strict=True)
    )
    return pack(rows, length, head), f"One call of either side, from its first op on: {each}"


def _rows(
    side: Side,
    call: MedianCall,
    group: str,
    length: int,
    names: dict[tuple[str, str], int],
    table: list[tuple[str, int, str, str, int]],
) -> Iterator[PageRow]:
    labels = stream_labels(side.examined.attribution.tables)
    for stream, code in enumerate(call.streams):
        mine = np.flatnonzero(call.stream == stream)
        kept = None
        if len(mine) > MOST_CALL_OPS:
            kept = np.zeros(len(mine), bool)
            longest = np.argpartition((call.start - call.end)[mine], MOST_CALL_OPS)[:MOST_CALL_OPS]
            kept[longest] = True
        empty = np.zeros(len(mine), np.int64)
        yield PageRow(
            group,
            shorten(labels[code], _LABEL),
            "ops",
            *_inside(call.start[mine], call.end[mine], length),
            columns=(_codes(side, call, mine, names, table), empty, empty),
            family=call.family[mine],
            kept=kept,
        )
    if len(call.gap_start):
        yield PageRow(
            group,
            "idle",
            "gaps",
            *_inside(call.gap_start, call.gap_end, length),
            columns=(call.gap_kind,),
        )
    late = np.flatnonzero((call.launch_end > 0) & (call.launch_start < length))
    if len(late):
        start, end = _inside(call.launch_start[late], call.launch_end[late], length)
        order = np.argsort(start, kind="stable")
        yield PageRow(
            group, "launches", "calls", start[order], end[order], columns=(np.zeros(len(late), np.int64),)
        )


def _codes(
    side: Side,
    call: MedianCall,
    mine: NDArray[np.intp],
    names: dict[tuple[str, str], int],
    table: list[tuple[str, int, str, str, int]],
) -> NDArray[np.int64]:
    """The number of each op's name and cause in the ``table`` of both sides, which grows."""
    kinds = side.examined.kinds
    out = np.empty(len(mine), np.int64)
    pairs = call.name[mine].astype(np.int64) * len(call.causes) + call.cause[mine]
    distinct, place = np.unique(pairs, return_inverse=True)
    codes = []
    for both in distinct.tolist():
        op, at = divmod(both, len(call.causes))
        name, cause = call.names[op], call.causes[at]
        if (name, cause) not in names:
            names[name, cause] = len(table)
            text = shorten(short_name(name, _NAME), _NAME)
            family = FAMILIES.index(kinds.family[op])
            table.append((text, family, kinds.math_unit[op], cause, family))
        codes.append(names[name, cause])
    out[:] = np.array(codes, np.int64)[place.reshape(-1)] if codes else 0
    return out


def _inside(start: Ints, end: Ints, length: int) -> tuple[Ints, Ints]:
    first = np.clip(start, 0, length)
    return first, np.clip(end, first, length)
