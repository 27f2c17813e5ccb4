"""The page of a fleet: findings, tables (ranks, ranges and iterations), charts, and the identities of ranks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from nsysprof.charts.palette import COLOURS
from nsysprof.core.text import one_line, plural, visible
from nsysprof.core.units import format_count, format_ns, format_ratio
from nsysprof.fleet.answer import Fleet
from nsysprof.fleet.charts import DARKEST_RATIO, FLEET_CHARTS
from nsysprof.fleet.findings import middle_rank
from nsysprof.fleet.text import describe_failure, iteration_paths, rank_table, subject
from nsysprof.formats.rank_answer import WHOLE
from nsysprof.page.environment import Facts
from nsysprof.page.template import figures, fill
from nsysprof.results.table import Column, row_dicts, show_columns

MAX_RANGE_ROWS, MAX_RANK_COLUMNS, MAX_ITERATION_ROWS = 200, 12, 500
_MAX_LISTED = 200  # warnings, and reports without an answer
_MIN_SHADE = 0.05
_NAME, _FILE, _PATH = 60, 80, 400

Row: TypeAlias = Mapping[str, Any]
Cell: TypeAlias = dict[str, Any]


def fleet_page(fleet: Fleet, pictures: Sequence[bytes] = ()) -> str:
    """Make the page as text; ``pictures`` are the PNG files of `FLEET_CHARTS`, empty if no charts are wanted.

    Numbers are as in the CSV files: the attribute ``data-v`` of a cell has the exact value, -1 if there is none.
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
        failures=[describe_failure(each, _PATH, _PATH) for each in fleet.failures[:_MAX_LISTED]],
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
    parts = [subject(fleet)]
    for name in ("gpu_name", "host"):
        values = [text for text in fleet.ranks[name].drop_duplicates().tolist() if text]
        more = f" and {len(values) - 2} more" if len(values) > 2 else ""
        if values:
            parts.append(one_line(", ".join(values[:2]), _NAME) + more)
    return " · ".join(parts)


def _warnings(fleet: Fleet) -> list[str]:
    shown = [one_line(text, _PATH) for text in fleet.warnings[:_MAX_LISTED]]
    more = len(fleet.warnings) - len(shown)
    return [*shown, f"{plural(more, 'more warning')}: see fleet.json"] if more else shown


_COUNT = "{:,}".format
_RANGE_COLUMNS = (
    Column("path", "", "range"),
    Column("iterations", "", None, _COUNT),
    Column("own_median_ns", "", "own each"),
    Column("max_over_min", "", "max/min", format_ratio),
    Column("slowest_rank", "", "slowest rank", str),
    Column("times_slowest", "", "so often"),
)
_ITERATION_COLUMNS = (
    Column("iteration", ""),
    Column("ranks", "", None, _COUNT),
    Column("own_median_ns", "", "median"),
    Column("own_iqr_ns", "", "IQR"),
    Column("own_min_ns", "", "min"),
    Column("own_max_ns", "", "max"),
    Column("max_over_min", "", "max/min", format_ratio),
    Column("lost_ns", "", "max − mean"),
    Column("slowest_rank", "", "slowest rank", str),
    Column("fastest_rank", "", "fastest rank", str),
    Column("span_median_ns", "", "span, median"),
)
_OUTLIER_COLUMNS = (
    Column("rank", "", None, "rank {}".format, "l"),
    Column("iteration", "", None, lambda name: one_line(name, _NAME)),
    Column("own_ns", "", "own"),
    Column("expected_ns", "", "expected"),
    Column("ratio", ""),
    Column("z", "", None, "{:.0f}".format),
)
_IDENTITY_COLUMNS = (
    Column("rank", "", None, str),
    Column("report", "", None, lambda name: one_line(name, _FILE)),
    Column("host", ""),
    Column("process", ""),
    Column("pid", "", None, str),
    Column("gpus", "", "GPU"),
    Column("nsys_version", "", "nsys"),
    Column("report_duration_ns", "", "report's duration"),
    Column("clock_offset_ns", "", "clock ahead by"),
)


def _grid(rows: Sequence[Row], columns: Sequence[Column], find: str | None, *notes: str) -> dict[str, Any]:
    """Make a sortable table with a search in column ``find``; texts are left-aligned, numbers right-aligned."""
    cells = [[_cell(column, row[column.name]) for column in columns] for row in rows]
    each = zip(columns, cells[0], strict=True)
    head = [{"text": column.head or column.name, "right": cell["right"]} for column, cell in each]
    finds = [one_line(row[find], _PATH) if find else None for row in rows]
    shown = [{"cells": row, "find": text, "strong": False} for row, text in zip(cells, finds, strict=True)]
    return {"head": head, "rows": shown, "notes": [" ".join(notes)] if notes else []}


def _cell(column: Column, value: Any) -> Cell:
    """Show a number, or a name (in full under the pointer)."""
    if not isinstance(value, str):
        return _number(column.text(value), value)
    short, full = column.text(value) if column.cell else one_line(value, _NAME), one_line(value, _PATH)
    return {"text": short, "value": None, "right": False, "title": full if full != short else "", "shade": ""}


def _number(text: str, value: float | None) -> Cell:
    """Show a number; missing numbers sort below all others."""
    exact = float(value) if value is not None and math.isfinite(value) else -1.0
    behind = int(exact) if exact.is_integer() else f"{exact:.6g}"
    return {"text": text, "value": behind, "right": True, "title": "", "shade": ""}


def _ranks(fleet: Fleet) -> dict[str, Any]:
    """Show the printed table, but with all ranks; a search also finds a rank by its host, GPU and report."""
    table = rank_table(fleet)
    rows = [
        {
            "cells": [_number(text, value) for text, value in zip(texts, [row["rank"], *values[1:]], strict=True)],
            "find": one_line(f"{texts[0]} {row['host']} {row['process']} {row['gpu_name']} {row['report']}", _PATH),
            "strong": row["straggler"],
        }
        for row, texts, values in zip(row_dicts(fleet.usual), table.rows, table.values or (), strict=True)
    ]
    return {"head": [{"text": text, "right": True} for text in table.head], "rows": rows, "notes": [table.note]}


def _ranges(fleet: Fleet) -> dict[str, Any] | None:
    """Show a row per range of an iteration: how ranks differ, and the slowest ranks relative to the median rank."""
    spread = iteration_paths(fleet)
    if spread.empty or len(fleet.ranks) < 2:
        return None
    most = spread.sort_values("own_median_ns", ascending=False, kind="stable").index[:MAX_RANGE_ROWS]
    shown = spread[spread.index.isin(most)]
    slowest = fleet.ranks["ratio"].fillna(0).sort_values(ascending=False, kind="stable")
    # too many for a column each: the slowest, in order
    numbers = fleet.ranks["rank"][fleet.ranks.index.isin(slowest.index[:MAX_RANK_COLUMNS])].tolist()
    notes = [
        "Own each: median of the ranks' medians. Max/min: slowest ÷ fastest rank. Rank columns: ratio to "
        f"the {middle_rank(len(fleet.ranks))}, shaded if slower or faster. All times exclude exposed "
        "communication."
    ]
    if len(numbers) < len(fleet.ranks):
        notes.append(f"The {len(numbers)} slowest of {len(fleet.ranks):,} ranks are shown (fleet.csv has all ranks).")
    if len(shown) < len(spread):
        notes.append(f"{plural(len(spread) - len(shown), 'more range')} with less time: see fleet.csv.")
    rows = row_dicts(shown)
    grid = _grid(rows, _RANGE_COLUMNS, "path", *notes)
    grid["head"] += [{"text": f"rank {number}", "right": True} for number in numbers]
    own = {(row["path"], row["rank"]): row for row in row_dicts(fleet.paths[fleet.paths["rank"].isin(numbers)])}
    for row, each in zip(rows, grid["rows"], strict=True):
        each["cells"][-1]["text"] = f"{row['times_slowest']:,} of {row['compared']:,}"
        each["cells"] += [_against_median(own.get((row["path"], number))) for number in numbers]
    return grid


def _against_median(row: Row | None) -> Cell:
    """Compare a rank with the median rank in a range; the shade has one of two colours of the charts."""
    if row is None or math.isnan(row["relative"]):
        return _number("", math.nan)
    ratio = row["relative"]
    own = row["own_ns"] if math.isnan(row["own_median_ns"]) else row["own_median_ns"]
    strength = min(abs(math.log(ratio)) / math.log(DARKEST_RATIO), 1) if ratio > 0 else 1
    colour = COLOURS["softmax" if ratio > 1 else "norm"]
    # transparent, as it has to do on light and on dark
    shade = f"{colour}{round(0x88 * strength):02x}" if strength >= _MIN_SHADE else ""
    return {**_number(format_ratio(ratio), ratio), "title": format_ns(own), "shade": shade}


def _iterations(fleet: Fleet) -> dict[str, Any] | None:
    """Show a row per iteration: the distribution over ranks. If there are too many rows, the most imbalanced stay."""
    iterations = fleet.iterations[fleet.iterations["path"] == fleet.iteration_path]
    if iterations.empty:
        return None
    iterations = iterations.assign(lost_ns=iterations["own_max_ns"] - iterations["own_mean_ns"])
    most = iterations["lost_ns"].sort_values(ascending=False, kind="stable").index[:MAX_ITERATION_ROWS]
    shown = iterations[iterations.index.isin(most)]
    notes = [
        f"Time of {one_line(fleet.iteration_path, _NAME)} over the ranks, excluding exposed communication; "
        "max − mean: time saved if the work were spread evenly over the ranks. iterations.csv also has inner ranges."
    ]
    if len(shown) < len(iterations):
        notes.append(
            f"The {len(shown):,} of {len(iterations):,} iterations with the largest max − mean "
            "are shown (iterations.csv has all iterations)."
        )
    return _grid(row_dicts(shown), _ITERATION_COLUMNS, "iteration", *notes)


def _outliers(fleet: Fleet) -> dict[str, Any] | None:
    if fleet.outliers.empty:
        return None
    note = (
        "Expected: computed from the other ranks in this iteration and from this rank's usual time. Z: robust z-score."
    )
    return show_columns(_OUTLIER_COLUMNS, fleet.outliers, note=note).html()


def _identity(fleet: Fleet) -> dict[str, Any]:
    """Show the identity of ranks: a row per rank, with the columns that are known for at least one rank."""
    ranks = fleet.ranks
    ranks = ranks.assign(gpus=ranks["gpu"] + ": " + ranks["gpu_name"])
    known = [column for column in _IDENTITY_COLUMNS if ranks[column.name].replace("", None).notna().any()]
    return _grid(row_dicts(ranks), known, None)


def _facts(fleet: Fleet) -> Facts:
    waiting, options = fleet.waiting, fleet.options
    how = [
        ("source of the rank numbers", visible(fleet.source)),
        ("clocks", visible(fleet.clock)),
        ("iterations", "the whole report" if fleet.iteration_path == WHOLE else visible(fleet.iteration_path)),
    ]
    if waiting.matched or waiting.unmatched:
        how.append(("collectives matched between ranks", format_count(waiting.matched)))
        how.append(("collectives without a counterpart on other ranks", format_count(waiting.unmatched)))
        if waiting.offset_ns:
            how.append(("accuracy of the clocks", f"± {format_ns(waiting.spread_ns)}"))
    given = [
        (
            visible(name.replace("_", " ")),
            one_line(", ".join(map(str, value)) if isinstance(value, list) else str(value), _PATH),
        )
        for name, value in options.items()
        if value is not None and value != ""
    ]
    return [("How ranks were compared", how), *([("Options", given)] if given else [])]
