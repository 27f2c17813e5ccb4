"""The page of a fleet: what is said over all ranks, tables of ranks, ranges and iterations, charts, and who is who."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from nsysprof.charts.palette import COLOURS
from nsysprof.core.text import one_line, plural, visible
from nsysprof.core.units import format_count, format_ns, format_ratio
from nsysprof.fleet.answer import Fleet
from nsysprof.fleet.charts import FLEET_CHARTS
from nsysprof.fleet.examine import ReportFailure
from nsysprof.fleet.range_iterations import WHOLE
from nsysprof.fleet.text import fleet_rank_table, iteration_paths
from nsysprof.page.environment import Facts
from nsysprof.page.template import figures, fill

MOST_RANGE_ROWS, MOST_RANK_COLUMNS, MOST_ITERATION_ROWS = 200, 12, 500
_MOST_TOLD = 200  # warnings, and reports without an answer
_LARGEST = 1.5  # times the median rank: where the shades of cells end
_LEAST_SHADE = 0.05
_NAME, _FILE, _PATH = 60, 80, 400

Row = Mapping[str, Any]
Cell = dict[str, Any]


def fleet_page(fleet: Fleet, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `FLEET_CHARTS`, none where no charts are wanted.

    Numbers are those of the CSV files: the exact one of each cell is its attribute ``data-v``, -1 where there is none.
    """
    ranks, reports = len(fleet.ranks), fleet.ranks["report"].nunique()
    headline, *findings = fleet.findings or (f"{plural(ranks, 'rank')} without work on a GPU",)
    return fill(
        "fleet.html",
        with_timeline=False,
        title=f"{plural(ranks, 'rank')} in {plural(reports, 'report')}",
        subtitle=_subtitle(fleet),
        headline=visible(headline),
        findings=[visible(text) for text in findings],
        failures=[_failure(each) for each in fleet.failures[:_MOST_TOLD]],
        failed=len(fleet.failures),
        warnings=_warnings(fleet),
        charts=figures(FLEET_CHARTS, pictures),
        ranks=_ranks(fleet),
        ranges=_ranges(fleet),
        iterations=_iterations(fleet),
        outliers=_outliers(fleet),
        identity=_identity(fleet),
        facts=_facts(fleet),
    )


def _subtitle(fleet: Fleet) -> str:
    count = int((fleet.iterations["path"] == fleet.iteration_path).sum())
    parts = [f"{count:,} iterations of {one_line(fleet.iteration_path, _NAME)}" if count else "whole reports"]
    for name in ("gpu_name", "host"):
        values = [text for text in fleet.ranks[name].drop_duplicates().tolist() if text]
        more = f" and {len(values) - 2} more" if len(values) > 2 else ""
        if values:
            parts.append(one_line(", ".join(values[:2]), _NAME) + more)
    return " · ".join(parts)


def _failure(failure: ReportFailure) -> str:
    told = failure.reason.removeprefix(f"{failure.report}: ")
    hint = f" ({one_line(failure.hint, _PATH)})" if failure.hint else ""
    return f"{one_line(failure.report, _PATH)}: {one_line(told, _PATH)}{hint}"


def _warnings(fleet: Fleet) -> list[str]:
    shown = [one_line(text, _PATH) for text in fleet.warnings[:_MOST_TOLD]]
    more = len(fleet.warnings) - len(shown)
    return [*shown, f"{plural(more, 'more warning')}: see fleet.json"] if more else shown


# ---- tables: heads, and rows of cells with their text and the number behind it


def _ranks(fleet: Fleet) -> dict[str, Any]:
    """The table that is printed, with all ranks; a search also finds a rank by its host, GPU and report."""
    table = fleet_rank_table(fleet)
    rows = []
    for texts, row in zip(table.rows, _records(fleet.usual), strict=True):
        whole = max(row["own_ns"] + row["exposed_ns"], 1)
        inside = row["collective_ns"]
        behind = [
            row["rank"],
            row["span_median_ns"],
            row["own_median_ns"],
            row["ratio"],
            row["times_slowest"],
        ]
        behind += [row[f"{part}_ns"] / whole for part in ("compute", "exposed", "copies", "idle")]
        behind += [row["waiting_ns"] / inside if inside else -1, row["caused_ns"]]
        cells = [_cell(text, value) for text, value in zip(texts, behind, strict=False)]
        who = f"{texts[0]} {row['host']} {row['process']} {row['gpu_name']} {row['report']}"
        rows.append({"cells": cells, "find": one_line(who, _PATH), "strong": row["straggler"]})
    heads = [_head(text) for text in table.head]
    return {"head": heads, "rows": rows, "notes": [table.note]}


def _ranges(fleet: Fleet) -> dict[str, Any] | None:
    """A row per range of an iteration: how ranks differ in it, and what the slowest ranks take beside the median."""
    spread = iteration_paths(fleet)
    if spread.empty or len(fleet.ranks) < 2:
        return None
    most = spread.sort_values("own_median_ns", ascending=False, kind="stable").index[:MOST_RANGE_ROWS]
    shown = spread[spread.index.isin(most)]
    numbers = _slowest_ranks(fleet)
    own = {
        (row["path"], row["rank"]): row for row in _records(fleet.paths[fleet.paths["rank"].isin(numbers)])
    }
    rows = []
    for row in _records(shown):
        cells = [
            _text(row["path"], _NAME),
            _cell(f"{row['iterations']:,}", row["iterations"]),
            _time(row["own_median_ns"]),
            _ratio(row["max_over_min"]),
            _cell(f"{row['slowest_rank']}", row["slowest_rank"]),
            _cell(f"{row['times_slowest']:,} of {row['compared']:,}", row["times_slowest"]),
            *(_against_median(own.get((row["path"], number))) for number in numbers),
        ]
        rows.append({"cells": cells, "find": one_line(row["path"], _PATH), "strong": False})
    heads = ["iterations", "own each", "max/min", "slowest rank", "so often"]
    heads += [f"rank {number}" for number in numbers]
    notes = [
        "own each: the median over ranks of their medians; max/min: between ranks; below a rank its own time over that"
        " of the median rank, shaded where it is slower or faster."
    ]
    if len(numbers) < len(fleet.ranks):
        notes.append(
            f"The {len(numbers)} slowest of {len(fleet.ranks):,} ranks: see fleet.csv for the others."
        )
    if len(shown) < len(spread):
        notes.append(f"{plural(len(spread) - len(shown), 'more range')} with less own time: see fleet.csv.")
    return {
        "head": [_head("range", "text", right=False), *map(_head, heads)],
        "rows": rows,
        "notes": [" ".join(notes)],
    }


def _slowest_ranks(fleet: Fleet) -> list[int]:
    """The ranks that have a column of their own, in order: where there are too many the slowest against the others."""
    ratio = fleet.ranks["ratio"].fillna(0)
    most = ratio.sort_values(ascending=False, kind="stable").index[:MOST_RANK_COLUMNS]
    numbers: list[int] = fleet.ranks["rank"][fleet.ranks.index.isin(most)].tolist()
    return numbers


def _against_median(row: Row | None) -> Cell:
    """How a rank compares to the median one in a range, shaded in two colours of the charts."""
    if row is None or math.isnan(row["relative"]):
        return _cell("", math.nan)
    ratio = row["relative"]
    own = row["own_ns"] if math.isnan(row["own_median_ns"]) else row["own_median_ns"]
    strength = min(abs(math.log(ratio)) / math.log(_LARGEST), 1) if ratio > 0 else 1
    colour = COLOURS["softmax" if ratio > 1 else "norm"]
    # transparent, as it has to do on light and on dark
    shade = f"{colour}{round(0x88 * strength):02x}" if strength >= _LEAST_SHADE else ""
    return _cell(format_ratio(ratio), ratio, title=format_ns(own), shade=shade)


def _iterations(fleet: Fleet) -> dict[str, Any] | None:
    """A row per iteration, the distribution over ranks; where there are too many those that lose most by waiting."""
    mine = fleet.iterations[fleet.iterations["path"] == fleet.iteration_path]
    if mine.empty:
        return None
    lost = mine["own_max_ns"] - mine["own_mean_ns"]
    most = lost.sort_values(ascending=False, kind="stable").index[:MOST_ITERATION_ROWS]
    shown = mine[mine.index.isin(most)]
    rows = []
    for row in _records(shown):
        cells = [
            _text(row["iteration"], _NAME),
            _cell(f"{row['ranks']:,}", row["ranks"]),
            *(_time(row[f"own_{name}_ns"]) for name in ("median", "iqr", "min", "max")),
            _ratio(row["max_over_min"]),
            _time(row["own_max_ns"] - row["own_mean_ns"]),
            _cell(f"{row['slowest_rank']}", row["slowest_rank"]),
            _cell(f"{row['fastest_rank']}", row["fastest_rank"]),
            _time(row["span_median_ns"]),
        ]
        rows.append({"cells": cells, "find": one_line(row["iteration"], _PATH), "strong": False})
    heads = ["ranks", "own, median", "IQR", "least", "most", "max/min", "most − mean"]
    heads += ["slowest rank", "fastest rank", "span, median"]
    notes = [
        f"Own time of {one_line(fleet.iteration_path, _NAME)} over the ranks; most − mean: what the same work would"
        " save, spread evenly over them. Iterations of inner ranges: see iterations.csv."
    ]
    if len(shown) < len(mine):
        notes.append(
            f"The {len(shown):,} of {len(mine):,} with the largest most − mean: see iterations.csv for the others."
        )
    return {
        "head": [_head("iteration", "text", right=False), *map(_head, heads)],
        "rows": rows,
        "notes": [" ".join(notes)],
    }


def _outliers(fleet: Fleet) -> dict[str, Any] | None:
    """Single iterations of single ranks, as the macro ``text_table`` shows them."""
    if fleet.outliers.empty:
        return None
    rows = [
        [
            _cell(f"rank {row['rank']}", row["rank"]),
            _text(row["iteration"], _NAME),
            _time(row["own_ns"]),
            _time(row["expected_ns"]),
            _ratio(row["ratio"]),
            _cell(f"{row['z']:.0f}", row["z"]),
        ]
        for row in _records(fleet.outliers)
    ]
    heads = [
        ("rank", False),
        ("iteration", False),
        *((text, True) for text in ("own", "expected", "ratio", "z")),
    ]
    return {
        "head": [{"text": text, "right": right} for text, right in heads],
        "rows": rows,
        "note": "expected: by what the other ranks take in this iteration, and what is usual of this rank; z: robust.",
        "total": False,
    }


def _identity(fleet: Fleet) -> dict[str, Any]:
    """Who each rank is: a row per rank, of columns that are known of any rank."""
    columns: list[tuple[str, str, Callable[[Row], Cell]]] = [
        ("rank", "number", lambda row: _cell(f"{row['rank']}", row["rank"])),
        ("report", "text", lambda row: _text(row["report"], _FILE)),
        ("host", "text", lambda row: _text(row["host"], _NAME)),
        ("process", "text", lambda row: _text(row["process"], _NAME)),
        ("pid", "number", lambda row: _cell(f"{row['pid']}", row["pid"])),
        ("GPU", "text", lambda row: _text(f"{row['gpu']}: {row['gpu_name']}", _NAME)),
        ("nsys", "text", lambda row: _text(row["nsys_version"], _NAME)),
        ("report's duration", "number", lambda row: _time(row["report_duration_ns"])),
        ("clock ahead by", "number", lambda row: _offset(row["clock_offset_ns"])),
    ]
    records = [*_records(fleet.ranks)]
    kept = [column for column in columns if any(column[2](row)["text"] for row in records)]
    rows = [{"cells": [cell(row) for *_, cell in kept], "find": None, "strong": False} for row in records]
    heads = [_head(text, sort, right=sort == "number") for text, sort, _ in kept]
    return {"head": heads, "rows": rows, "notes": []}


def _offset(ns: float) -> Cell:
    """By how much a clock is ahead of that of the first rank, which may be negative."""
    return _cell("", math.nan) if math.isnan(ns) else _cell(format_ns(ns), ns)


def _facts(fleet: Fleet) -> Facts:
    waiting, options = fleet.waiting, fleet.options
    how = [
        ("ranks told apart by", visible(fleet.source)),
        ("clocks", visible(fleet.clock)),
        (
            "iterations",
            "the whole report" if fleet.iteration_path == WHOLE else visible(fleet.iteration_path),
        ),
    ]
    if waiting.matched or waiting.unmatched:
        how.append(("collectives laid beside each other", format_count(waiting.matched)))
        how.append(("collectives without a counterpart", format_count(waiting.unmatched)))
        if waiting.offset_ns:
            how.append(("clocks known to", f"± {format_ns(waiting.spread_ns)}"))
    given = [(visible(name.replace("_", " ")), one_line(text, _PATH)) for name, text in _options(options)]
    return [("How ranks were compared", how), *([("Options", given)] if given else [])]


def _options(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in options.items():
        if value is not None and value != "":
            yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


# ---- heads and cells


def _head(text: str, sort: str = "number", *, right: bool = True) -> dict[str, Any]:
    return {"text": text, "sort": sort, "right": right}


def _cell(text: str, value: float, *, title: str = "", shade: str = "") -> Cell:
    """A number; one that is not there sorts below all others."""
    exact = float(value) if math.isfinite(value) else -1.0
    behind = int(exact) if exact.is_integer() else f"{exact:.6g}"
    return {"text": text, "value": behind, "right": True, "title": title, "shade": shade}


def _text(text: str, most: int) -> Cell:
    """A name, in full where the pointer rests on it."""
    short, full = one_line(text, most), one_line(text, _PATH)
    title = full if full != short else ""
    return {"text": short, "value": None, "right": False, "title": title, "shade": ""}


def _time(ns: float) -> Cell:
    return _cell("" if math.isnan(ns) else format_ns(ns), ns)


def _ratio(ratio: float) -> Cell:
    return _cell("" if math.isnan(ratio) else format_ratio(ratio), ratio)


def _records(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for row in frame.to_dict("records"):
        yield {str(name): value for name, value in row.items()}
