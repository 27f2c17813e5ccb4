"""The page of a comparison: the gap waterfall, the pairs with their ledgers, both sides beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from nsysprof.compare.charts import comparison_charts
from nsysprof.compare.comparison import Comparison
from nsysprof.compare.gap_chart import compared_reports
from nsysprof.compare.page_rows import call_timeline_data
from nsysprof.compare.side_pairs import Pair
from nsysprof.compare.text import clock_table, gap_table, pair_table
from nsysprof.compare.traffic_text import traffic_tables
from nsysprof.core.text import drop_repeats, one_line, shorten_both, visible
from nsysprof.core.units import format_bytes, format_count, format_ns
from nsysprof.kernels.classify import short_name
from nsysprof.page.environment import Facts, report_facts
from nsysprof.page.template import figures, fill
from nsysprof.results.table import TextTable

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
        overview=_as_rows(pair_table(comparison)) if len(comparison.sides) > 1 else None,
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
        found.append((name, report_facts(attribution.tables.report, attribution.threads, record)))
    return found


def _pair(comparison: Comparison, pair: Pair, *, opened: bool) -> dict[str, Any]:
    gaps = comparison.gaps[comparison.gaps["pair"] == pair.name]
    headline, *findings = comparison.findings[pair.name]
    ledger = _as_rows(gap_table(comparison, pair, _MOST_CAUSES))
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
        "clocks": _as_rows(clock_table(comparison, pair)),
        "traffic": [_as_rows(table) for table in traffic_tables(comparison, pair)],
        "sides": _sides(comparison, pair, gaps),
        "kernels": [*_kernels(comparison, pair, gaps)],
        "titles": [visible(name) for name in shorten_both(pair.base_name, pair.new_name, 60, one_line)],
        "timeline": {"data": packed, "caption": caption, "notes": []},
    }


def _as_rows(table: TextTable) -> dict[str, Any]:
    """A table for the template: heads, and cells with their text and side."""
    return {
        "head": [
            {"text": text, "right": side == "r"} for text, side in zip(table.head, table.align, strict=True)
        ],
        "rows": [
            [
                {"text": text, "right": side == "r", "value": None}
                for text, side in zip(row, table.align, strict=True)
            ]
            for row in table.rows
        ],
        "note": table.note,
        "total": table.last_apart,
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
