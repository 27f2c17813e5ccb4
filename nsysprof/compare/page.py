"""The page of a comparison: the gap waterfall, the pairs with their ledgers, both sides beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.attribution.split import stream_labels
from nsysprof.charts.palette import COLOURS
from nsysprof.compare.call_chart import MedianCall, median_call
from nsysprof.compare.charts import comparison_charts
from nsysprof.compare.comparison import Comparison, compared_reports
from nsysprof.compare.pairs import Pair
from nsysprof.compare.selection import Side
from nsysprof.compare.text import clock_table, gap_table, pair_table, traffic_tables
from nsysprof.core.intervals import Ints
from nsysprof.core.text import drop_repeats, one_line, shorten, shorten_both, visible
from nsysprof.core.units import format_bytes, format_count, format_ns
from nsysprof.kernels.classify import FAMILIES, short_name
from nsysprof.page.environment import Facts, report_facts
from nsysprof.page.packing import PageRow, pack
from nsysprof.page.template import figures, fill
from nsysprof.waits.causes import WAITING_FOR

MOST_PAGE_PAIRS, _MOST_CAUSES, _MOST_KERNELS = 24, 60, 12
_NAME = 90


def comparison_page(comparison: Comparison, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `comparison_charts`, none where no charts are wanted.

    Numbers are those of ``gap.json``: the exact one of each cell of a ledger is its attribute ``data-v``.
    """
    by_name = {pair.name: pair for pair in comparison.sides}
    pairs = [by_name[name] for name in comparison.ranked]
    largest = pairs[0]
    headline, *findings = comparison.findings[largest.name]
    return fill(
        "comparison.html",
        title=visible(f"{largest.base_name} against {largest.new_name}"),
        subtitle=" · ".join(compared_reports(comparison)),
        headline=headline,
        findings=findings,
        warnings=[visible(one_line(text, 400)) for text in drop_repeats(comparison.warnings)],
        charts=figures(comparison_charts(comparison), pictures),
        overview=pair_table(comparison).html() if len(comparison.sides) > 1 else None,
        pairs=[_pair(comparison, pair, opened=pair is largest) for pair in pairs[:MOST_PAGE_PAIRS]],
        left_out=max(len(pairs) - MOST_PAGE_PAIRS, 0),
        environments=_environments(comparison),
    )


def _environments(comparison: Comparison) -> list[tuple[str, Facts]]:
    side = comparison.sides[0]
    sides = [("", side.base)] if comparison.one_report else [("base", side.base), ("new", side.new)]
    found = []
    for (name, each), record in zip(sides, comparison.records, strict=True):
        attribution = each.examined.attribution
        found.append((name, report_facts(attribution.trace.report, attribution.threads, record)))
    return found


def _pair(comparison: Comparison, pair: Pair, *, opened: bool) -> dict[str, Any]:
    gaps = comparison.gaps[comparison.gaps["pair"] == pair.name]
    headline, *findings = comparison.findings[pair.name]
    ledger = gap_table(comparison, pair, _MOST_CAUSES).html()
    for row, known in zip(ledger["rows"], gaps.head(_MOST_CAUSES).to_dict("records"), strict=False):
        for cell, key in zip(row[2:5], ("base_ns", "new_ns", "delta_ns"), strict=True):
            cell["value"] = known[key]
    packed, caption = call_timeline_data(pair)
    return {
        "name": visible(pair.name),
        "opened": opened,
        "headline": headline,
        "findings": findings,
        "ledger": ledger,
        "clocks": clock_table(comparison, pair).html(),
        "traffic": [table.html() for table in traffic_tables(comparison, pair)],
        "sides": _sides(comparison, pair, gaps),
        "kernels": [*_kernels(comparison, pair, gaps)],
        "titles": [visible(name) for name in shorten_both(pair.base_name, pair.new_name, 60, one_line)],
        "timeline": {"data": packed, "caption": caption, "notes": []},
    }


def _sides(comparison: Comparison, pair: Pair, gaps: pd.DataFrame) -> list[tuple[str, str, str]]:
    """What can be said of either side in one number, beside each other; of what is known of at least one."""
    [row] = comparison.pairs[comparison.pairs["pair"] == pair.name].to_dict("records")
    both = comparison.measured.get(pair.name, (None, None))
    models = comparison.models[pair.name]
    facts: list[tuple[str, list[str]]] = [
        ("range", [visible(one_line(str(row[f"{side}"]), 120)) for side in ("base", "new")]),
        ("a call is", [visible(str(row[f"{side}_per"])) for side in ("base", "new")]),
        ("calls", [format_count(int(row[f"{side}_calls"])) for side in ("base", "new")]),
        ("span per call, mean", [format_ns(row[f"{side}_span_ns"]) for side in ("base", "new")]),
        ("span of the median call", [format_ns(row[f"{side}_median_ns"]) for side in ("base", "new")]),
        ("busy per call, mean", [format_ns(row[f"{side}_busy_ns"]) for side in ("base", "new")]),
        ("kernels per call", [_number(float(gaps[f"{side}_kernels"].sum())) for side in ("base", "new")]),
        ("launches per call", [_number(float(gaps[f"{side}_launches"].sum())) for side in ("base", "new")]),
        ("shape", [visible(model.text) if model else "" for model in models]),
        ("expected bytes per call", [_bytes(sum(m.bytes_of.values())) if m else "" for m in models]),
        ("measured DRAM bytes per call", [_bytes(m.total["dram_bytes"]) if m else "" for m in both]),
        ("counters", [visible(m.path.name) if m else "" for m in both]),
    ]
    return [(label, *values) for label, values in facts if any(values)]  # type: ignore[misc]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _bytes(size: float) -> str:
    return "" if math.isnan(size) or not size else format_bytes(size)


def _kernels(comparison: Comparison, pair: Pair, gaps: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """For each cause the kernels of either side, per call."""
    frame = comparison.evidence[comparison.evidence["pair"] == pair.name]
    calls = {"base": pair.base.ledger.calls, "new": pair.new.ledger.calls}
    for cause in gaps["cause"].head(_MOST_CAUSES).tolist():
        cells = []
        for side in ("base", "new"):
            mine = frame[(frame["cause"] == cause) & (frame["side"] == side)]
            mine = mine.sort_values("sum_ns", ascending=False, kind="stable")
            cells.append(
                {
                    "kernels": [
                        {
                            "name": one_line(short_name(str(row["kernel"]), _NAME), _NAME),
                            "full": one_line(str(row["kernel"]), 600),
                            "count": _number(row["count"] / calls[side]),
                            "time": format_ns(row["sum_ns"] / calls[side]),
                            "unit": "" if row["math_unit"] == "unknown" else row["math_unit"],
                        }
                        for row in mine.head(_MOST_KERNELS).to_dict("records")
                    ],
                    "more": max(len(mine) - _MOST_KERNELS, 0),
                }
            )
        if any(cell["kernels"] for cell in cells):
            yield {"cause": cause, "sides": cells}


MOST_CALL_OPS = 50_000  # of a call: more of them are columns only, but for the longest
_OP_NAME, _LABEL, _SIDE = 160, 44, 60


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
    labels = stream_labels(side.examined.attribution.trace)
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
            text = shorten(short_name(name, _OP_NAME), _OP_NAME)
            family = FAMILIES.index(kinds.family[op])
            table.append((text, family, kinds.math_unit[op], cause, family))
        codes.append(names[name, cause])
    out[:] = np.array(codes, np.int64)[place.reshape(-1)] if codes else 0
    return out


def _inside(start: Ints, end: Ints, length: int) -> tuple[Ints, Ints]:
    first = np.clip(start, 0, length)
    return first, np.clip(end, first, length)
