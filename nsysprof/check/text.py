"""Results of `check` as text, Markdown, and a JSON document."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from nsysprof.check.check import BudgetCheck
from nsysprof.core.text import one_line, plural, visible
from nsysprof.core.units import format_count, format_ns, format_share
from nsysprof.results.table import Column, TextTable, escape_markdown, show_columns, warning_lines, wrap

_SCHEMA = "nsysprof-check/1"
_MAX_RANGE, _MAX_RULE, _MAX_VALUE = 40, 34, 16  # characters of a cell
_MAX_ROWS, _MAX_UNTESTED, _MAX_UNMATCHED = 50, 10, 5
_MAX_LINE = 500
_MD_RANGE, _MD_WHY = 120, 200
_COLUMNS = (
    Column("range", "merged path, or the glob if no range matches"),
    Column("limit", "limit and the statistic that it applies to"),
    Column("allowed", "allowed by the budget", align="r"),
    Column("found", "found in the report", align="r"),
    Column("instances", "number of calls of the range", "calls"),
    Column("why", "reason"),
)


def check_summary(answer: BudgetCheck) -> str:
    """Show broken limits as a table, then untested limits, kept limits and warnings; the text ends with a newline."""
    broken, untested = answer.broken, answer.untested
    lines = [_folded(_verdict(answer))]
    if len(broken):
        without_names = broken.assign(evidence=broken["evidence"].str.split("; there is ").str[0])
        table = _table(without_names, _MAX_RANGE, 400).lines()
        lines += ["", *table, *_more(broken, _MAX_ROWS)]
        # the near names of globs that match nothing, for which the table has no room
        lacking = broken[(broken["rule"] == "must exist") & (broken["instances"] == 0)]
        for evidence, alike in lacking.head(_MAX_UNMATCHED).groupby("evidence", sort=False):
            names = ", ".join(one_line(name, _MAX_RANGE) for name in alike["range"])
            lines.append(_folded(f"{names}: {evidence}"))
    if len(untested):
        lines += ["", "not tested:"]
        for row in _rows(untested.head(_MAX_UNTESTED)):
            rule = one_line(_rule(row), _MAX_RULE)
            lines.append(_folded(f"{one_line(row.range, _MAX_RANGE)}, {rule}: {row.evidence}", "  "))
        lines += _more(untested, _MAX_UNTESTED)
    lines += ["", _folded(_held(answer)), *warning_lines(answer.warnings, "--json")]
    return "".join(f"{visible(line)}\n" for part in lines for line in part.split("\n"))


def _folded(text: str, first: str = "") -> str:
    return wrap(one_line(text, _MAX_LINE), first, f"{first}  ")


def check_markdown(answer: BudgetCheck) -> str:
    """Format the result for a GitHub comment: a heading, a table of broken limits, and the rest as a list."""
    broken, untested = answer.broken, answer.untested
    lines = [f"### {'✅' if answer.ok else '❌'} {escape_markdown(_verdict(answer))}", ""]
    if len(broken):
        lines += [*_table(broken, _MD_RANGE, _MD_WHY).lines(markdown=True, even=False), ""]
        lines += [f"- {text.strip()}" for text in _more(broken, _MAX_ROWS)]
    for row in _rows(untested.head(_MAX_UNTESTED)):
        why = escape_markdown(one_line(row.evidence, _MD_WHY))
        lines.append(f"- not tested: {escape_markdown(row.range)}, {escape_markdown(_rule(row))}: {why}")
    lines += [f"- {text.strip()}" for text in _more(untested, _MAX_UNTESTED)]
    lines += [f"- {escape_markdown(_held(answer))}"]
    lines += warning_lines(answer.warnings, "--json", markdown=True)
    return "".join(f"{line}\n" for line in lines)


def check_document(answer: BudgetCheck) -> dict[str, Any]:
    """Return the whole result for JSON, with times in ns and shares as fractions of 1."""
    counts = {"broken": len(answer.broken), "not_tested": len(answer.untested), "held": len(answer.held)}
    return {
        "schema": _SCHEMA,
        "report": answer.report,
        "budget": answer.budget,
        "baseline": answer.baseline,
        "ok": answer.ok,
        "limits": counts,
        "warnings": list(answer.warnings),
        "rows": answer.records(),
    }


def _verdict(answer: BudgetCheck) -> str:
    count, broken, untested = len(answer.rows), len(answer.broken), len(answer.untested)
    report, budget = (one_line(name, 60) for name in (Path(answer.report).name, Path(answer.budget).name))
    limits = plural(count, "limit")
    if broken:
        return f"{report} breaks {format_count(broken)} of {limits} of {budget}"
    if untested:
        return f"{report} breaks no limit of {budget}, but {format_count(untested)} of {limits} could not be tested"
    return f"{report} meets {budget}: {limits}"


def _held(answer: BudgetCheck) -> str:
    held = answer.held
    if held.empty:
        return "No limit holds."
    ranges = held["range"].nunique()
    count = f"{format_count(len(held))} limit{'s hold' if len(held) > 1 else ' holds'}"
    against = f"; baseline: {visible(answer.baseline)}" if answer.baseline else ""
    return f"{count}, on {plural(ranges, 'range')}. Each limit applies to every call (instance of a range){against}."


def _rows(frame: pd.DataFrame) -> Iterator[Any]:
    return frame.itertuples(index=False)


def _more(frame: pd.DataFrame, shown: int) -> list[str]:
    left = len(frame) - shown
    return [f"  and {format_count(left)} more: --json has all"] if left > 0 else []


def _table(broken: pd.DataFrame, path: int, why: int) -> TextTable:
    """The first rows; the path has at most ``path`` characters, the reason ``why``."""
    cells = []
    for row in _rows(broken.head(_MAX_ROWS)):
        texts = [one_line(_rule(row), _MAX_RULE), *(one_line(text, _MAX_VALUE) for text in _values(row))]
        texts = [one_line(row.range, path), *texts, row.instances, one_line(row.evidence, why)]
        cells.append(dict(zip([column.name for column in _COLUMNS], texts, strict=True)))
    return show_columns(_COLUMNS, cells, spare=("calls",), last_cut=True)


def _rule(row: Any) -> str:
    return f"{row.rule}, {row.stat}" if row.stat in ("median", "p95", "max") else str(row.rule)


def _values(row: Any) -> tuple[str, str]:
    """The allowed and the found value, with enough digits to distinguish them."""
    allowed, found = _value(row.allowed, row), _value(row.found, row)
    if allowed == found and row.allowed != row.found:
        allowed, found = _exact(row.allowed, row.unit), _exact(row.found, row.unit)
    return f"≥ {allowed}" if row.bound == "min" else allowed, found


def _value(value: Any, row: Any) -> str:
    if value is None:
        return "-"
    if row.unit == "ns":
        return format_ns(value)
    if row.unit == "share":
        sign = "+" if row.rule.startswith("max_growth") and value > 0 else ""
        return f"{sign}{format_share(value)}"
    if row.unit == "count":
        return format_count(value) if isinstance(value, int) else f"{value:,.2f}".rstrip("0")
    return str(value)


def _exact(value: Any, unit: str) -> str:
    return f"{value:,} ns" if unit == "ns" else f"{100 * value:.10g} %" if unit == "share" else f"{value:,}"
