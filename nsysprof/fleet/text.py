"""The answer over all ranks as text for a terminal or a log."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from nsysprof.core.text import drop_repeats, one_line, plural, visible
from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.fleet.answer import Fleet
from nsysprof.fleet.findings import without_text
from nsysprof.fleet.range_iterations import WHOLE
from nsysprof.fleet.stragglers import LEAST_SLOWNESS
from nsysprof.results.table import TextTable, spread_text, wrap

_MOST_WARNINGS = 12
_MOST_FAILURES = 20
_NAME_WIDTH = 44
_SPREAD_ROWS = 12


def fleet_text(fleet: Fleet, top: int = 16) -> str:
    """The whole answer: findings, reports without an answer, warnings, ``top`` ranks and the outermost range paths.

    Where there are more ranks, the slowest are shown. What names hold that a terminal would obey is written out; the
    text ends with a newline.
    """
    spread = fleet_spread_table(fleet, _SPREAD_ROWS)
    blocks = [[*_head(fleet)], [*_findings(fleet)], fleet_rank_table(fleet, top).lines(False)]
    blocks.append(spread.lines(False) if spread else [])
    lines = [line for block in blocks if block for line in ("", *block)][1:]
    return "".join(f"{visible(line)}\n" for block in lines for line in block.split("\n"))


def _head(fleet: Fleet) -> Iterator[str]:
    ranks, reports = len(fleet.ranks), fleet.ranks["report"].nunique()
    yield (
        f"{plural(ranks, 'rank')} in {plural(reports, 'report')}; told apart by {fleet.source}; {fleet.clock}"
    )
    for failure in fleet.failures[:_MOST_FAILURES]:
        hint = f" ({one_line(failure.hint, 80)})" if failure.hint else ""
        told = failure.reason.removeprefix(f"{failure.report}: ")
        yield f"  unreadable  {one_line(failure.report, 80)}: {one_line(told, 160)}{hint}"
    if len(fleet.failures) > _MOST_FAILURES:
        yield f"  unreadable  {len(fleet.failures) - _MOST_FAILURES:,} more: see fleet.json"
    warnings = drop_repeats(fleet.warnings)
    for warning in warnings[:_MOST_WARNINGS]:
        yield wrap(f"warning  {one_line(warning, 400)}", "  ", "           ")
    if len(warnings) > _MOST_WARNINGS:
        yield f"  {len(warnings) - _MOST_WARNINGS:,} more warnings: see fleet.json"


def _findings(fleet: Fleet) -> Iterator[str]:
    for finding in fleet.findings:
        yield wrap(visible(finding), "- ", "  ")


def fleet_rank_table(fleet: Fleet, top: int = 1 << 30) -> TextTable:
    """A row per rank; where there are more than ``top``, those that are the slowest against the others."""
    ranks = fleet.usual
    shown = ranks
    if len(ranks) > top:
        shown = ranks.loc[ranks["ratio"].fillna(0).sort_values(ascending=False, kind="stable").index[:top]]
    waits = bool(ranks["collective_ns"].any())
    head = [
        "rank",
        "span each",
        "own each",
        "to others",
        "slowest",
        "compute",
        "comm.",
        "copies",
        "idle",
    ]
    head += ["waiting", "awaited"] if waits else []
    caused = int(ranks["caused_ns"].sum())
    rows = [_rank_cells(row, waits, caused) for row in shown.to_dict("records")]
    what = "report" if fleet.iteration_path == WHOLE else f"iterations ({one_line(fleet.iteration_path, 60)})"
    notes = [
        f"Shares are of the time of the {what}. own: all but communication that no compute hides (comm.); to others:"
        " own time over that of the other ranks, median over iterations; slowest: in how many of them."
    ]
    if ranks["gpu"].str.contains(",").any():
        notes.append("A rank's own time adds up its GPUs.")
    if waits:
        notes.append(
            "waiting: the part of its time in collectives beyond that of the rank that comes last, which is in them for"
            " the shortest time; awaited: the part of all waiting that is for this rank."
        )
    if fleet.left_out:
        notes.append(f"Shares, waiting and awaited are without {without_text(fleet.left_out)}.")
    marks = {rank_mark(row) for row in shown.to_dict("records")}
    notes += [text for mark, text in (("!", "!: a straggler."), ("?", "?: may be one.")) if mark in marks]
    if len(shown) < len(ranks):
        notes.append(
            f"{plural(len(ranks) - len(shown), 'faster rank')}: --top {len(ranks)}, or see ranks.csv."
        )
    return TextTable(head, rows, "l" + "r" * (len(head) - 1), " ".join(notes))


def rank_mark(row: Mapping[Hashable, Any]) -> str:
    """``!`` for a straggler, ``?`` for a rank that may be one, nothing for others."""
    if row["straggler"]:
        return "!"
    return "?" if row["ratio"] >= 1 + LEAST_SLOWNESS else ""


def _rank_cells(row: dict[Hashable, Any], waits: bool, caused: int) -> list[str]:
    whole = max(row["own_ns"] + row["exposed_ns"], 1)
    cells = [
        f"{row['rank']} {rank_mark(row)}".rstrip(),
        _time(row["span_median_ns"]),
        _time(row["own_median_ns"]),
        "" if math.isnan(row["ratio"]) else format_ratio(row["ratio"]),
        f"{row['times_slowest']:,}",
        *(format_share(row[f"{part}_ns"] / whole) for part in ("compute", "exposed", "copies", "idle")),
    ]
    if waits:
        inside = row["collective_ns"]
        cells.append(format_share(row["waiting_ns"] / inside) if inside else "")
        cells.append(format_share(row["caused_ns"] / caused) if caused else "")
    return cells


def fleet_spread_table(fleet: Fleet, top: int = 1 << 30) -> TextTable | None:
    """A row per range of an iteration: how the ranks differ in it; None where there is nothing to compare."""
    spread = iteration_paths(fleet)
    if spread.empty or len(fleet.ranks) < 2:
        return None
    rows = []
    for row in spread.head(top).to_dict("records"):
        rows.append(
            [
                one_line(row["path"], _NAME_WIDTH),
                f"{row['iterations']:,}",
                spread_text(
                    row["own_median_ns"],
                    row["own_iqr_ns"],
                    row["own_min_ns"],
                    row["own_max_ns"],
                    row["ranks"],
                ),
                "" if math.isnan(row["max_over_min"]) else format_ratio(row["max_over_min"]),
                f"rank {row['slowest_rank']} ({row['times_slowest']:,} of {row['compared']:,})"
                if row["compared"]
                else "",
            ]
        )
    note = (
        "own each: the median over ranks of their medians, with half the IQR (of fewer than 10: least–most); max/min:"
        " between ranks."
    )
    if len(spread) > top:
        note += f" {plural(len(spread) - top, 'more range')}: see fleet.csv."
    return TextTable(
        ["range", "iterations", "own each", "max/min", "slowest most often"], rows, "lrrrr", note
    )


def iteration_paths(fleet: Fleet) -> pd.DataFrame:
    """The rows of ``spread`` of the iterations and what lies in them, with own time; without iterations, of all."""
    spread = fleet.spread[fleet.spread["own_median_ns"] > 0]
    if fleet.iteration_path == WHOLE or spread.empty:
        return spread
    inside = spread["path"].str.startswith(f"{fleet.iteration_path}/") | spread["path"].eq(
        fleet.iteration_path
    )
    return spread[inside]


def _time(ns: Any) -> str:
    return "" if math.isnan(ns) else format_ns(ns)
