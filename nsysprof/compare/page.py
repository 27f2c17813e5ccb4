"""The page of a comparison: charts, and pairs with their ledgers, timelines and facts."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nsysprof.attribution.split import stream_labels
from nsysprof.charts.palette import COLOURS
from nsysprof.compare.call_chart import MedianCall, median_call
from nsysprof.compare.charts import comparison_charts
from nsysprof.compare.comparison import Comparison, compared_reports
from nsysprof.compare.findings import Difference
from nsysprof.compare.gap_ledger import mean_text
from nsysprof.compare.pairs import SIDES, Pair
from nsysprof.compare.selection import Selection
from nsysprof.compare.text import clock_table, gap_table, pair_table, totals_tables, traffic_tables
from nsysprof.core.arrays import Index, Ints
from nsysprof.core.intervals import clip
from nsysprof.core.text import drop_repeats, one_line, shorten, shorten_both, visible
from nsysprof.core.units import format_bytes, format_count, format_ns
from nsysprof.kernels.classify import FAMILIES, short_name
from nsysprof.page.environment import report_facts
from nsysprof.page.packing import PageRow, longest, pack
from nsysprof.page.template import figures, fill
from nsysprof.waits.causes import WAITING_FOR

MAX_PAGE_PAIRS, MAX_CAUSES, MAX_KERNELS = 24, 60, 12
MAX_CALL_OPS = 50_000  # of a call: of more, all but the longest are columns only
_NAME, _OP_NAME, _LABEL, _SIDE = 90, 160, 44, 60


def comparison_page(comparison: Comparison, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `comparison_charts`, empty if no charts are wanted.

    Numbers are as in ``gap.json``: the attribute ``data-v`` of a ledger cell has the exact value.
    """
    differences = [*comparison.differences.values()]
    largest, left_out = differences[0], max(len(differences) - MAX_PAGE_PAIRS, 0)
    headline, *findings = largest.findings
    names = SIDES if len(comparison.reports) > 1 else ("",)
    environments = [
        (name, report_facts(loaded.report, loaded.attribution.threads, record))
        for name, loaded, record in zip(names, comparison.reports, comparison.records, strict=True)
    ]
    return fill(
        "comparison.html",
        title=visible(" against ".join(largest.pair.names)),
        subtitle=" · ".join(compared_reports(comparison)),
        headline=headline,
        findings=findings,
        warnings=[visible(one_line(text, 400)) for text in drop_repeats(comparison.warnings)],
        charts=figures(comparison_charts(comparison), pictures),
        overview=pair_table(comparison).html() if len(differences) > 1 else None,
        pairs=[_pair(each, opened=each is largest) for each in differences[:MAX_PAGE_PAIRS]],
        left_out=left_out,
        totals=[table.html() for table in totals_tables(comparison, MAX_CAUSES)],
        environments=environments,
    )


def _pair(difference: Difference, *, opened: bool) -> dict[str, Any]:
    pair = difference.pair
    headline, *findings = difference.findings
    packed, caption = call_timeline_data(pair)
    return {
        "name": visible(pair.name),
        "opened": opened,
        "whole": difference.whole,
        "each": difference.each,
        "headline": headline,
        "findings": findings,
        "ledger": gap_table(difference, MAX_CAUSES).html(),
        "clocks": clock_table(difference).html(),
        "traffic": [table.html() for table in traffic_tables(difference)],
        "sides": _sides(difference),
        "kernels": [*_kernels(difference)],
        "titles": [visible(name) for name in shorten_both(*pair.names, 60, one_line)],
        "timeline": {"data": packed, "caption": caption, "notes": []},
    }


def _sides(difference: Difference) -> list[tuple[str, ...]]:
    """The facts about each side with a single number or name, if at least one side has a value."""
    row, gaps, models, both = difference.row, difference.gaps, difference.models, difference.measured

    def of_each(name: str, text: Callable[[Any], str]) -> list[str]:
        return [text(row[f"{side}{name}"]) for side in SIDES]

    def summed(name: str) -> list[str]:
        return [mean_text(float(gaps[f"{side}_{name}"].sum()), 2) for side in SIDES]

    whole, each = difference.whole, "" if difference.whole else " per call"
    facts: list[tuple[str, list[str]]] = [
        ("range", of_each("", lambda path: visible(one_line(path, 120)))),
        ("a call is", [] if whole else of_each("_per", visible)),
        ("calls", [] if whole else of_each("_calls", format_count)),
        (f"span{'' if whole else ' per call, mean'}", of_each("_span_ns", format_ns)),
        (f"{difference.clock} of the median call", [] if whole else of_each("_median_ns", format_ns)),
        (f"busy{'' if whole else ' per call, mean'}", of_each("_busy_ns", format_ns)),
        (f"kernels{each}", summed("kernels")),
        (f"launches{each}", summed("launches")),
        ("shape", [visible(model.text) if model else "" for model in models]),
        ("expected bytes per call", [_bytes(model.total_bytes) if model else "" for model in models]),
        ("measured DRAM bytes per call", [_bytes(each.total["dram_bytes"]) if each else "" for each in both]),
        ("counters", [visible(each.path.name) if each else "" for each in both]),
    ]
    return [(label, *values) for label, values in facts if any(values)]


def _bytes(size: float) -> str:
    return "" if math.isnan(size) or not size else format_bytes(size)


def _kernels(difference: Difference) -> Iterator[dict[str, Any]]:
    """The kernels of each cause on each side, per call."""
    parts = dict(iter(difference.evidence.groupby(["cause", "side"], sort=False)))
    for cause in difference.gaps["cause"].head(MAX_CAUSES).tolist():
        cells = []
        for side, selection in zip(SIDES, difference.pair.sides, strict=True):
            rows, calls = parts.get((cause, side), difference.evidence[:0]), selection.ledger.calls
            kernels = [
                {
                    "name": one_line(short_name(row["kernel"], _NAME), _NAME),
                    "full": one_line(row["kernel"], 600),
                    "count": mean_text(row["count"] / calls, 2),
                    "time": format_ns(row["sum_ns"] / calls),
                    "unit": "" if row["math_unit"] == "unknown" else row["math_unit"],
                }
                for row in rows.head(MAX_KERNELS).to_dict("records")
            ]
            cells.append({"kernels": kernels, "more": max(len(rows) - MAX_KERNELS, 0)})
        if any(cell["kernels"] for cell in cells):
            yield {"cause": cause, "sides": cells}


_Names = dict[tuple[str, str], tuple[str, int, str, str, int]]


def call_timeline_data(pair: Pair) -> tuple[str, str]:
    """Return the median calls of a pair, packed for the page, with a caption."""
    calls = [median_call(side) for side in pair.sides]
    length = max(1, *(max(call.length_ns, int(call.end.max(initial=0))) for call in calls))
    names: _Names = {}
    titles = shorten_both(*pair.names, _SIDE)
    rows = [
        row
        for title, side, call in zip(titles, pair.sides, calls, strict=True)
        for row in _rows(side, call, f"{title} · {format_ns(call.length_ns)}", length, names)
    ]
    views = [
        (f"{name} alone", 0, call.length_ns)
        for name, call in zip(shorten_both(*pair.names, 30), calls, strict=True)
        if 0 < 2 * call.length_ns < length
    ]
    head = {
        "origin": 0,
        "views": views,
        "gpus": [],
        "families": FAMILIES,
        "groups": [*COLOURS.items()],
        "tints": [],
        "names": [*names.values()],
        "gaps": WAITING_FOR,
        "pathNames": [],
        "paths": [[], [], []],
    }
    each = " and ".join(
        f"{title} {format_ns(call.length_ns)}" + (f" (the median of {call.of:,})" if call.of > 1 else "")
        for title, call in zip(titles, calls, strict=True)
    )
    what = "The whole trace" if pair.base.is_whole else "One call"
    return pack(rows, length, head), f"{what} of each side, from its first GPU op on: {each}"


def _rows(side: Selection, call: MedianCall, group: str, length: int, names: _Names) -> Iterator[PageRow]:
    labels = stream_labels(side.loaded.trace)
    for stream, code in enumerate(call.streams):
        ops = np.flatnonzero(call.stream == stream)
        empty = np.zeros(len(ops), np.int64)
        yield PageRow(
            group,
            shorten(labels[code], _LABEL),
            "ops",
            *clip(call.start[ops], call.end[ops], 0, length),
            columns=(_codes(side, call, ops, names), empty, empty),
            family=call.family[ops],
            kept=longest(call.start[ops], call.end[ops], MAX_CALL_OPS),
        )
    if len(call.gap_start):
        gaps = clip(call.gap_start, call.gap_end, 0, length)
        yield PageRow(group, "idle", "gaps", *gaps, columns=(call.gap_kind,))
    late = np.flatnonzero((call.launch_end > 0) & (call.launch_start < length))
    if len(late):
        start, end = clip(call.launch_start[late], call.launch_end[late], 0, length)
        order = np.argsort(start, kind="stable")
        nothing = np.zeros(len(late), np.int64)
        yield PageRow(group, "launches", "calls", start[order], end[order], columns=(nothing,))


def _codes(side: Selection, call: MedianCall, ops: Index, names: _Names) -> Ints:
    """The index of each GPU op's name and cause in ``names``, which both sides share and extend."""
    kinds = side.loaded.kinds
    pairs = call.name[ops].astype(np.int64) * len(call.causes) + call.cause[ops]
    distinct, place = np.unique(pairs, return_inverse=True)
    codes = [divmod(both, len(call.causes)) for both in distinct.tolist()]
    keys = [(call.names[op], call.causes[at]) for op, at in codes]
    for key, (op, _) in sorted(zip(keys, codes, strict=True)):
        name, cause = key
        family = FAMILIES.index(kinds.family[op])
        text = shorten(short_name(name, _OP_NAME), _OP_NAME)
        names.setdefault(key, (text, family, kinds.math_unit[op], cause, family))
    number = {key: at for at, key in enumerate(names)}
    return np.array([number[key] for key in keys], np.int64)[place]
