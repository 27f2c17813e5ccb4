"""A budget and what a report makes of it: as text, as Markdown, and as a document for JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nsysprof.check.check import BudgetCheck
from nsysprof.core.text import cut, drop_repeats, one_line, plural, visible
from nsysprof.core.units import format_count, format_ns, format_share
from nsysprof.results.table import Column, TextTable, escape_markdown, show_columns, text_table

_SCHEMA = "nsysprof-check/1"
_WIDTH = 110
_RANGE, _RULE, _VALUE = 40, 32, 16
_LEAST_WHY = 20
_MOST_ROWS, _MOST_UNTESTED = 50, 10
_MOST_WARNINGS, _MOST_UNMATCHED = 10, 5
_LONGEST = 500
_MD_RANGE, _MD_WHY = 120, 200


def check_summary(answer: BudgetCheck) -> str:
    """What broke as a table, then what was not tested, what holds, and the warnings, in at most 110 columns.

    The text ends with a newline.
    """
    broken, untested = answer.broken, answer.untested
    lines = _wrapped(_verdict(answer))
    if len(broken):
        lines += ["", *_table(broken), *_more(broken, _MOST_ROWS), *_unmatched(broken)]
    if len(untested):
        lines += ["", "not tested:"]
        for row in _rows(untested.head(_MOST_UNTESTED)):
            lines += _wrapped(
                f"  {one_line(row.range, _RANGE)}  {one_line(_rule(row), _RULE)}: {row.evidence}"
            )
        lines += _more(untested, _MOST_UNTESTED)
    lines += ["", *_wrapped(_held(answer))]
    for text in _warnings(answer):
        lines += _wrapped(f"  warning  {text}")
    return "".join(f"{line}\n" for line in lines)


def _wrapped(text: str) -> list[str]:
    """A line, or several where it is too long; what has no blank to break at stays whole."""
    return textwrap.wrap(
        visible(text[:_LONGEST]),
        _WIDTH,
        subsequent_indent=" " * 11,
        break_long_words=False,
        break_on_hyphens=False,
    )


def check_markdown(answer: BudgetCheck) -> str:
    """The same for a comment on GitHub: a heading, a table of what broke, and the rest as a list."""
    broken, untested = answer.broken, answer.untested
    lines = [f"### {'✅' if answer.ok else '❌'} {escape_markdown(_verdict(answer))}", ""]
    if len(broken):
        lines += _broken(broken, _MD_RANGE, _MD_WHY).lines(markdown=True, even=False)
        lines += ["", *(f"- {text.strip()}" for text in _more(broken, _MOST_ROWS))]
    lines += [
        f"- not tested: {escape_markdown(row.range)}, {escape_markdown(_rule(row))}:"
        f" {escape_markdown(one_line(row.evidence, _MD_WHY))}"
        for row in _rows(untested.head(_MOST_UNTESTED))
    ]
    lines += [f"- {text.strip()}" for text in _more(untested, _MOST_UNTESTED)]
    lines += [
        f"- {escape_markdown(_held(answer))}",
        *(f"- warning: {escape_markdown(one_line(t, 400))}" for t in _warnings(answer)),
    ]
    return "".join(f"{line}\n" for line in lines)


def check_document(answer: BudgetCheck) -> dict[str, Any]:
    """The whole answer as JSON can hold it, times in ns and shares as parts of 1."""
    return {
        "schema": _SCHEMA,
        "report": answer.report,
        "budget": answer.budget,
        "baseline": answer.baseline,
        "ok": answer.ok,
        "limits": {
            "broken": len(answer.broken),
            "not_tested": len(answer.untested),
            "held": len(answer.held),
        },
        "warnings": list(answer.warnings),
        "rows": answer.records(),
    }


_COLUMNS = (
    Column("range", "merged path, or the glob where nothing matches"),
    Column("limit", "the limit with the statistic that it is on"),
    Column("allowed", "what the budget allows", align="r"),
    Column("found", "what the report has", align="r"),
    Column("instances", "calls of the range", "calls"),
    Column("why", "what makes it so"),
)


def _verdict(answer: BudgetCheck) -> str:
    count, broken, untested = len(answer.rows), len(answer.broken), len(answer.untested)
    report, budget = (one_line(name, 60) for name in (Path(answer.report).name, Path(answer.budget).name))
    limits = plural(count, "limit")
    if broken:
        return f"{report} breaks {format_count(broken)} of {limits} of {budget}"
    if untested:
        return (
            f"{report} breaks none of {limits} of {budget}, but {format_count(untested)} could not be tested"
        )
    return f"{report} keeps to {budget}: {limits}"


def _held(answer: BudgetCheck) -> str:
    held = answer.held
    if held.empty:
        return "No limit holds."
    ranges = held["range"].nunique()
    count = f"{format_count(len(held))} limit{'s hold' if len(held) > 1 else ' holds'}"
    against = f"; baseline: {visible(answer.baseline)}" if answer.baseline else ""
    return (
        f"{count}, on {plural(ranges, 'range')}."
        f" Limits are per call, that is per instance of a range{against}."
    )


def _rows(frame: pd.DataFrame) -> Iterator[Any]:
    return frame.itertuples(index=False)


def _more(frame: pd.DataFrame, shown: int) -> list[str]:
    left = len(frame) - shown
    return [f"  and {format_count(left)} more: --json has all"] if left > 0 else []


def _unmatched(broken: pd.DataFrame) -> Iterator[str]:
    """What there is instead of the first few globs that match nothing: the table has no room for it."""
    lacking = broken[(broken["rule"] == "must exist") & (broken["instances"] == 0)]
    for row in _rows(lacking.head(_MOST_UNMATCHED)):
        yield from _wrapped(f"  {one_line(row.range, _RANGE)}: {row.evidence}")


def _table(broken: pd.DataFrame) -> list[str]:
    """The rows in at most `_WIDTH` columns: the reason gets what the others leave, and long paths are cut for it."""
    shown = _broken(broken, _RANGE, 400)
    # Between columns there are two blanks, and as many are the least after a heading.
    columns = zip([f"{name}  " for name in shown.head], *shown.rows, strict=True)
    path, *others, _ = [max(map(len, column)) + 2 for column in columns]
    path = min(path, _WIDTH - sum(others) - _LEAST_WHY)
    left = _WIDTH - sum(others) - path
    cells = [
        [one_line(row[0], path - 2), *row[1:-1], cut(row[-1].split("; there is ")[0], left)]
        for row in shown.rows
    ]
    return text_table(shown.head, cells, shown.align).splitlines()


def _broken(broken: pd.DataFrame, path: int, why: int) -> TextTable:
    """What broke, the path and the reason with at most so many characters."""
    rows = []
    for row in _rows(broken.head(_MOST_ROWS)):
        allowed, found = (one_line(text, _VALUE) for text in _values(row))
        rows.append(
            {
                "range": one_line(row.range, path),
                "limit": one_line(_rule(row), _RULE),
                "allowed": allowed,
                "found": found,
                "instances": row.instances,
                "why": one_line(row.evidence, why),
            }
        )
    return show_columns(_COLUMNS, rows)


def _rule(row: Any) -> str:
    """The limit with the statistic that it is on."""
    return f"{row.rule}, {row.stat}" if row.stat in ("median", "p95", "max") else str(row.rule)


def _values(row: Any) -> tuple[str, str]:
    """What was allowed and what was found, with as many digits as it takes to tell them apart."""
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


def _warnings(answer: BudgetCheck) -> Sequence[str]:
    warnings = drop_repeats(answer.warnings)
    more = len(warnings) - _MOST_WARNINGS
    return [*warnings[:_MOST_WARNINGS], *([f"and {more:,} more: --json has all"] if more > 0 else [])]
