"""The result over all ranks as text for a terminal or a log."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from nsysprof.attribution.attribute import option_words
from nsysprof.core.text import command_line, next_line, one_line, plural, quote_glob, visible
from nsysprof.core.units import format_ratio, format_share
from nsysprof.fleet.answer import Fleet
from nsysprof.fleet.examine import ReportFailure
from nsysprof.fleet.findings import awaited_rank, without_text
from nsysprof.fleet.stragglers import MIN_SLOWNESS
from nsysprof.formats.rank_answer import WHOLE
from nsysprof.results.one_screen import Rows, answer_lines, grave
from nsysprof.results.table import Column, TextTable, show_columns, spread_text, wrap

_MAX_FAILURES, _FINDINGS = 20, 3
_NAME_WIDTH = 44
_SPREAD_ROWS = 12

_RANK_COLUMNS = (
    Column("label", "number of the rank, with a mark if the rank is slow", "rank"),
    Column("span_median_ns", "median over iterations: span", "span each"),
    Column("own_median_ns", "median over iterations: time excluding exposed communication", "own each"),
    Column("ratio", "own each ÷ median of the other ranks", "vs. others"),
    Column("times_slowest", "number of iterations in which the rank is the slowest", "slowest", "{:,}".format),
    Column("compute_share", "share of iteration time", "compute"),
    Column("exposed_share", "share of iteration time", "comm."),
    Column("copies_share", "share of iteration time", "copies"),
    Column("idle_share", "share of iteration time", "idle"),
)
_SPARE = ("copies", "idle", "compute", "span each")  # who waits for whom is more than these
_SPREAD_COLUMNS = (
    Column("path", "path of the range", "range", lambda path: one_line(path, _NAME_WIDTH)),
    Column("iterations", "number of iterations", None, "{:,}".format),
    Column("own", "time excluding exposed communication per iteration, over ranks", "own each", align="r"),
    Column("max_over_min", "slowest ÷ fastest rank", "max/min", format_ratio),
    Column("slowest", "the rank that is the slowest most often", "slowest most often", align="r"),
)


def fleet_text(fleet: Fleet, top: int = 16, *, full: bool = False) -> str:
    """Format one screen, or the ``full`` result: findings, reports without a result, ``top`` ranks, the outermost
    ranges.

    With more than ``top`` ranks, only the slowest are shown. Control characters in names are escaped; the text ends
    with a newline.
    """
    ranks, reports = len(fleet.ranks), fleet.ranks["report"].nunique()
    counts = f"{plural(ranks, 'rank')} in {plural(reports, 'report')}"
    head, *found = fleet.findings or (counts,)
    said = [f"unreadable: {describe_failure(failure, 80, 160)}" for failure in fleet.failures[:_MAX_FAILURES]]
    if len(fleet.failures) > _MAX_FAILURES:
        said.append(f"unreadable: {len(fleet.failures) - _MAX_FAILURES:,} more (see fleet.json)")
    said += [f"warning: {each}" for each in grave(fleet.warnings)]
    most = len(found) if full else _FINDINGS
    lines = [wrap(f"{number}. {visible(each)}", "", "   ") for number, each in enumerate(found[:most], 1)]
    per = fleet.options.get("per")
    same_steps = f"--range {quote_glob(per)}" if per else ""
    lines.append(next_line(command_line("why", _slowest_report(fleet), same_steps, *option_words(fleet.options))))
    table, spread = rank_table(fleet, top, brief=not full), _spread_table(fleet)
    if spread and not full:
        spread = replace(spread, note="")
    parts: list[str | Rows] = [
        "\n".join(wrap(visible(each), "", "  ") for each in (head, *said)),
        "\n".join(lines),
        Rows(table, "rank", ranks),
        *([Rows(spread, "range", len(iteration_paths(fleet)))] if spread else []),
    ]
    left = [plural(more, "more finding")] if (more := len(found) - most) > 0 else []
    notes = [f"{counts}; numbered by {fleet.source}; {fleet.clock}", *fleet.warnings]
    return answer_lines(parts, notes, more=left, full=full)


def _slowest_report(fleet: Fleet) -> Path:
    """The report of the rank for which the others wait, or else of the slowest rank."""
    ranks = fleet.usual
    awaited, ratio = awaited_rank(ranks), ranks["ratio"].fillna(0)
    rank = ratio == ratio.max() if awaited is None else ranks["rank"] == awaited
    return Path(str(ranks.loc[rank, "report"].iloc[0]))


def describe_failure(failure: ReportFailure, name_width: int, reason_width: int) -> str:
    """Describe a report without a result in one line: name, reason and hint."""
    hint = f" ({one_line(failure.hint, name_width)})" if failure.hint else ""
    reason = failure.reason.removeprefix(f"{failure.report}: ")
    return f"{one_line(failure.report, name_width)}: {one_line(reason, reason_width)}{hint}"


def rank_table(fleet: Fleet, top: int = 1 << 30, *, brief: bool = False) -> TextTable:
    """Make a row per rank. With more than ``top`` ranks, show only the ranks that are slowest compared with the others.

    ``brief``: only notes about marks.
    """
    ranks = shown = fleet.usual
    if len(ranks) > top:
        shown = ranks.loc[ranks["ratio"].fillna(0).sort_values(ascending=False, kind="stable").index[:top]]
    waits = bool(ranks["collective_ns"].any())
    whole = (shown["own_ns"] + shown["exposed_ns"]).clip(lower=1)
    marks = [rank_mark(row) for row in shown.to_dict("records")]
    labels = [f"{rank} {mark}".rstrip() for rank, mark in zip(shown["rank"], marks, strict=True)]
    rows = shown.assign(
        label=labels,
        **{f"{part}_share": shown[f"{part}_ns"] / whole for part in ("compute", "exposed", "copies", "idle")},
        waiting_share=shown["waiting_ns"] / shown["collective_ns"].where(shown["collective_ns"] > 0),
    )
    what = "report" if fleet.iteration_path == WHOLE else f"iterations ({one_line(fleet.iteration_path, 60)})"
    notes = [
        f"Shares: % of the time of the {what}. Comm.: exposed communication (no compute runs meanwhile). "
        "Own: time excluding comm. Vs. others: own ÷ median own of the other ranks"
        + (
            "."
            if fleet.iteration_path == WHOLE
            else " (median over iterations). Slowest: number of iterations in which the rank is the slowest."
        )
    ]
    if ranks["gpu"].str.contains(",").any():
        notes.append("own: summed over the GPUs of the rank.")
    if waits:
        notes.append(
            "Waiting: % of the rank's collective time spent waiting for the last rank to arrive. "
            "Awaited: % of all waiting that this rank causes."
        )
    if fleet.left_out:
        notes.append(f"Shares, waiting and awaited exclude {without_text(fleet.left_out)}.")
    notes = [] if brief else notes
    notes += [text for mark, text in (("!", "!: a straggler."), ("?", "?: a possible straggler.")) if mark in marks]
    columns = [*_RANK_COLUMNS]
    if fleet.iteration_path == WHOLE:
        rows = rows.assign(span_median_ns=rows["span_ns"], own_median_ns=rows["own_ns"])
        columns = [column for column in columns if column.name != "times_slowest"]
    if waits:
        caused = int(ranks["caused_ns"].sum())
        columns += [
            Column("waiting_share", "share of the time in collectives", "waiting"),
            Column("caused_ns", "", "awaited", lambda ns: format_share(ns / caused) if caused else ""),
        ]
    return show_columns(columns, rows, note=" ".join(notes), spare=_SPARE)


def rank_mark(row: Mapping[Hashable, Any]) -> str:
    """Mark a straggler with ``!`` and a possible straggler with ``?``."""
    return "!" if row["straggler"] else "?" if row["ratio"] >= 1 + MIN_SLOWNESS else ""


def _spread_table(fleet: Fleet) -> TextTable | None:
    """Make a row per range of an iteration: how the ranks differ in it; None if there is nothing to compare."""
    spread = iteration_paths(fleet)
    if spread.empty or len(fleet.ranks) < 2:
        return None
    rows: list[dict[str, Any]] = []
    shown: list[Any] = spread.head(_SPREAD_ROWS).to_dict("records")
    for row in shown:
        median, iqr, low, high = (row[f"own_{name}_ns"] for name in ("median", "iqr", "min", "max"))
        often = f"rank {row['slowest_rank']} ({row['times_slowest']:,} of {row['compared']:,})"
        own, slowest = spread_text(median, iqr, low, high, row["ranks"]), often if row["compared"] else ""
        rows.append({**row, "own": own, "slowest": slowest})
    note = (
        "Own each: time per instance excluding exposed communication, as median of the ranks' medians ± half "
        "the IQR (with fewer than 10 ranks: minimum–maximum). Max/min: slowest ÷ fastest rank."
    )
    return show_columns(_SPREAD_COLUMNS, rows, note=note)


def subject(fleet: Fleet) -> str:
    """State what was compared: `24 iterations of step*`, or `whole reports`."""
    count = int((fleet.iterations["path"] == fleet.iteration_path).sum())
    return f"{count:,} iterations of {one_line(fleet.iteration_path, 60)}" if count else "whole reports"


def iteration_paths(fleet: Fleet) -> pd.DataFrame:
    """Return the rows of ``spread`` for the iterations and their inner ranges, or all rows without iterations."""
    spread = fleet.spread[fleet.spread["own_median_ns"] > 0]
    if fleet.iteration_path == WHOLE or spread.empty:
        return spread
    inside = spread["path"].str.startswith(f"{fleet.iteration_path}/") | spread["path"].eq(fleet.iteration_path)
    return spread[inside]
