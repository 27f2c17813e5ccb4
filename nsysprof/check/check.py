"""Check reports against budgets, for the command line and for tests.

    import nsysprof


    def test_attention_keeps_to_its_budget():
        nsysprof.check("run.sqlite", "budget.toml").assert_ok()

If the assertion fails, its message is the table that ``nsysprof check`` prints.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.attribute import attribute
from nsysprof.attribution.globs import near_names
from nsysprof.attribution.paths import WHOLE_TRACE, instances_text
from nsysprof.charts.notebook import view_of
from nsysprof.check.baseline import ANALYSIS, Baseline, baseline_of, read_analysis, refuse_repeats
from nsysprof.check.budget import Budget, RangeBudget, read_budget
from nsysprof.check.draft import draft_budget
from nsysprof.check.limits import MIN, UNIT_COUNT, Facts, MatchedBudget, Outcome, outcomes
from nsysprof.check.measure import STEP, RangeFinder
from nsysprof.core.text import cut
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import Rules, load_rules
from nsysprof.trace.report import open_report
from nsysprof.trace.trace import Progress, Report

File: TypeAlias = str | os.PathLike[str]

_MATH = "math"  # the backend that has no kernels of its own
_MAX_NAME = 80
_MAX_NEAR = 20  # looking for names that are near takes its time


@dataclass(frozen=True)
class BudgetCheck:
    """The result of `check`.

    ``rows``: a row per limit and range, in budget order: ``range`` (merged path, or the glob if nothing matches);
    ``rule``; ``stat`` (median, p95 or max over calls, or ``total``); ``bound`` (max: found ≤ allowed; min: found ≥
    allowed; is: both are equal); ``allowed, found, unit`` (count, ns, share as a fraction of 1, text); ``ok`` (pandas'
    boolean; missing if untested); ``instances``, ``evidence, glob``.
    """

    report: str
    budget: str
    baseline: str | None
    rows: pd.DataFrame
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Return whether no limit is broken. Untested limits count as not broken."""
        return self.broken.empty

    @property
    def broken(self) -> pd.DataFrame:
        """The rows with broken limits."""
        return self.rows[(~self.rows["ok"]).fillna(False)]

    @property
    def untested(self) -> pd.DataFrame:
        """The rows with untested limits."""
        return self.rows[self.rows["ok"].isna()]

    @property
    def held(self) -> pd.DataFrame:
        """The rows with kept limits."""
        return self.rows[self.rows["ok"].fillna(False)]

    def __str__(self) -> str:
        return str(view_of(self, "text", "check_summary"))

    def assert_ok(self) -> None:
        """Raise AssertionError with the table of broken limits, if any."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def records(self) -> list[dict[str, Any]]:
        """Return the rows for JSON, with None for an unknown ``ok`` or ``found``."""
        rows = self.rows.astype(object).to_dict("records")
        return [{str(name): None if value is pd.NA else value for name, value in row.items()} for row in rows]


def check(
    report: File | Report,
    budget: File | Budget,
    *,
    baseline: File | Sequence[File] | None = None,
    threads: str = "follow",
    graphs: str = "launched",
    ranges: str = "auto",
    rules: File | None = None,
    nsys: File | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> BudgetCheck:
    """Check a report against a budget: files, or results of `open_report` and `read_budget`.

    ``baseline`` is an earlier report, or an ``analysis.json`` or its folder; without a baseline, limits with
    ``max_growth`` are untested. Several baselines must be from different runs; their variation then limits the
    detectable growth. ``rules`` is a file of kernel rules with priority over the shipped rules; ``nsys`` exports a
    ``.nsys-rep``; ``threads``, ``graphs``, ``ranges`` and ``memory_limit`` (bytes) are as in `attribute`; ``progress``
    receives each task and its number of rows. Raises `NsysprofError` for unreadable or meaningless input, such as a
    report without ranges or a backend without a rule; broken limits raise no error.
    """
    asked = budget if isinstance(budget, Budget) else read_budget(Path(budget))
    known = load_rules(Path(rules) if rules is not None else None)

    def measured(opened: Report) -> Breakdown:
        attribution = attribute(opened, threads, progress, memory_limit, graphs, ranges)
        return break_down(attribution, merge=asked.merge, skip=asked.skip, instances=asked.instances, rules=known)

    files = [baseline] if isinstance(baseline, str | os.PathLike) else list(baseline or ())
    reading = {"graphs": graphs, "ranges": ranges}
    before = [_baseline(Path(file), asked, nsys, reading, measured) for file in files]
    with nullcontext(report) if isinstance(report, Report) else open_report(report, nsys=nsys) as opened:
        return _checked(measured(opened), asked, before, known)


def draft(
    report: File,
    *,
    baseline: Sequence[File] = (),
    threads: str = "follow",
    graphs: str = "launched",
    ranges: str = "auto",
    rules: File | None = None,
    nsys: File | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Draft a budget (TOML text) that this report meets; each ``baseline`` also meets its limits on counts and times.

    See `draft_budget`; the arguments are as in `check`.
    """
    known = load_rules(Path(rules) if rules is not None else None)
    with ExitStack() as stack:
        opened = [stack.enter_context(open_report(each, nsys=nsys)) for each in (report, *baseline)]
        first, *others = (
            break_down(attribute(each, threads, progress, memory_limit, graphs, ranges), rules=known) for each in opened
        )
        return draft_budget(first, known, others)


def _baseline(
    path: Path, budget: Budget, nsys: File | None, reading: Mapping[str, str], measured: Callable[[Report], Breakdown]
) -> Baseline:
    """The baseline in an analysis, by its name or its folder, or in a report."""
    if not any(each.growth or each.of_kernels for each in budget.ranges):
        raise NsysprofError(
            f"{budget.path} has no limit that uses a baseline, so {path} is not needed",
            'give a [[range]] a limit, such as max_growth = { span = "5 %" }',
        )
    if (path / ANALYSIS).is_file():
        path /= ANALYSIS
    if path.suffix == ".json":
        return read_analysis(path, budget, reading)
    with open_report(path, nsys=nsys) as opened:
        breakdown = measured(opened)
        finder = RangeFinder(breakdown)
        rows = [(each, row) for each in budget.ranges for row in finder.find(each.glob).tolist()]
        steps = [row for each, row in rows if STEP in each.growth and row != finder.whole]
        return baseline_of(breakdown, steps, [row for each, row in rows if each.of_kernels])


def _checked(breakdown: Breakdown, budget: Budget, baselines: Sequence[Baseline], rules: Rules) -> BudgetCheck:
    report = str(breakdown.attribution.trace.report.path)
    _refuse_empty(breakdown, budget, report)
    _check_words(budget, rules)
    finder = RangeFinder(breakdown)
    matched = [MatchedBudget(each, finder.find(each.glob)) for each in budget.ranges]
    if len(baselines) > 1:
        refuse_repeats(baselines, baseline_of(breakdown))
    facts = Facts(breakdown, rules, baselines, matched)
    rows: list[Outcome] = []
    for number, each in enumerate(matched):
        missing = () if len(each.rows) else [_missing(each.asked, finder, budget, near=number < _MAX_NEAR)]
        rows += missing or outcomes(facts, each)
    of_growth = [text for growth in facts.growths.values() for text in growth.warnings]
    frame = pd.DataFrame(rows, columns=list(Outcome._fields), dtype=object)
    return BudgetCheck(
        report,
        str(budget.path),
        ", ".join(each.label for each in baselines) or None,
        frame.astype({"ok": "boolean", "instances": "int64"}),
        (*breakdown.warnings, *(text for each in baselines for text in each.warnings), *of_growth),
    )


def _missing(asked: RangeBudget, finder: RangeFinder, budget: Budget, *, near: bool) -> Outcome:
    names = [cut(name, _MAX_NAME) for name in near_names(finder.texts, asked.glob)[:3]] if near else []
    which = f" that has {instances_text(budget.instances)}" if budget.instances else ""
    evidence = f"no range{which} matches" + (f"; there is {', '.join(names)}" if names else "")
    ok = None if asked.optional else False
    return Outcome(asked.glob, "must exist", "", MIN, 1, 0, UNIT_COUNT, ok, 0, evidence, asked.glob)


def _refuse_empty(breakdown: Breakdown, budget: Budget, report: str) -> None:
    """Refuse a report without ranges or GPU work, or with an unreadable part, because it would keep any budget."""
    for lost in breakdown.attribution.trace.unread:
        what = f"{report} cannot be checked: {lost.table} has {lost.rows:,} rows but lacks {' and '.join(lost.lacks)}"
        raise NsysprofError(what, "export it again: nsys export --type sqlite REPORT.nsys-rep")
    hint = f"record both: {breakdown.attribution.trace.report.reader.recording}"
    whole = any(each.glob == WHOLE_TRACE for each in budget.ranges)
    if breakdown.merged.empty and budget.instances:
        have = instances_text(budget.instances)
        raise NsysprofError(f"{report}: no range has {have} (instances are counted from 0)", "leave --instance out")
    if breakdown.merged.empty and not whole:
        raise NsysprofError(
            f"{report} has no ranges, but {budget.path} limits ranges",
            f'nsysprof check --init {report} writes limits for path = "{WHOLE_TRACE}"; or {hint}',
        )
    cpu_only = all(
        {*each.caps, *each.growth} <= {"cpu"} and not (each.forbidden or each.backend or each.units)
        for each in budget.ranges
    )
    if not breakdown.totals["ops"] and not cpu_only:
        why = breakdown.attribution.trace.no_work
        raise NsysprofError(f"{report} has no GPU work, but {budget.path} limits GPU work: {why}", hint)


def _check_words(budget: Budget, rules: Rules) -> None:
    """Refuse backends and causes that no rule defines, because a misspelt name would silently never match."""
    backends = {rule.attention_backend for rule in rules.rules if rule.attention_backend} | {_MATH}
    folded = {backend.casefold() for backend in backends}
    templates = sorted({cause for rule in rules.rules for cause in rule.causes})
    known = [re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(template))) for template in templates]
    for each in budget.ranges:
        where = f"{budget.path}: {each.label}"
        parts = [part.strip() for part in (each.backend or _MATH).split("+")]
        if not all(part.casefold() in folded for part in parts):
            raise NsysprofError(
                f"{where}: no kernel rule defines backend {each.backend!r}",
                f"known backends: {', '.join(sorted(backends))} (join several with +); --rules FILE adds others",
            )
        for cause in (forbidden.text for forbidden in each.forbidden if forbidden.by == "cause"):
            if not re.search(r"[*?\[]", cause) and not any(pattern.fullmatch(cause) for pattern in known):
                near = get_close_matches(cause, templates, 4, 0.4) or templates[:4]
                raise NsysprofError(f"{where}: no kernel rule defines cause {cause!r}", f"near it: {', '.join(near)}")
