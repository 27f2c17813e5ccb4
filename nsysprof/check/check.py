"""Whether a report keeps within a budget: every limit on every range that it is about, with what was found."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pandas as pd

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.globs import near_names
from nsysprof.attribution.warm_up import instances_text
from nsysprof.check.baseline import Baseline, gpu_names
from nsysprof.check.budget import Budget, RangeBudget
from nsysprof.check.facts import Facts, MatchedBudget
from nsysprof.check.limits import MIN, UNIT_COUNT, Outcome, outcomes
from nsysprof.check.range_match import RangeFinder
from nsysprof.core.text import cut
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import Rules, load_rules

_MATH = "math"  # the backend that has no kernels of its own
_LONGEST_NAME = 80
_MOST_NEAR = 20  # looking for names that are near takes its time


@dataclass(frozen=True)
class BudgetCheck:
    """The answer of `check_budget`.

    ``rows``: a row per limit and range, in the order of the budget: ``range`` (merged path, or the glob where nothing
    matches), ``rule, stat`` (of calls: median, p95, max; ``total`` over all of them), ``bound`` (found must be at most
    (max), at least (min) or equal to (is) allowed), ``allowed, found, unit`` (count, ns, share as a part of 1, text),
    ``ok`` (pandas' boolean; missing where it was not tested), ``instances``, ``evidence, glob``.
    """

    report: str
    budget: str
    baseline: str | None
    rows: pd.DataFrame
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no limit is broken. What was not tested breaks nothing."""
        return self.broken.empty

    @property
    def broken(self) -> pd.DataFrame:
        """The rows whose limit does not hold."""
        return self.rows[(~self.rows["ok"]).fillna(False)]

    @property
    def untested(self) -> pd.DataFrame:
        """The rows whose limit could not be tested."""
        return self.rows[self.rows["ok"].isna()]

    @property
    def held(self) -> pd.DataFrame:
        """The rows whose limit holds."""
        return self.rows[self.rows["ok"].fillna(False)]

    def records(self) -> list[dict[str, Any]]:
        """The rows as JSON can hold them: ``ok`` and ``found`` are None where nothing can be said."""
        ok = [None if value is pd.NA else bool(value) for value in self.rows["ok"]]
        rows = self.rows.assign(ok=pd.Series(ok, dtype=object)).to_dict("records")
        return [{str(name): value for name, value in row.items()} for row in rows]


def check_budget(
    breakdown: Breakdown, budget: Budget, *, baseline: Baseline | None = None, rules: Rules | None = None
) -> BudgetCheck:
    """Hold a report, broken down as the budget says (``skip``, ``merge``), against the budget.

    ``baseline`` is what ``max_growth`` is about; without one those limits are not tested. Raises `NsysprofError` where
    the report has no ranges or no GPU work at all, and where the budget names a backend or cause that no rule knows.
    """
    rules = rules or load_rules()
    report = str(breakdown.attribution.trace.report.path)
    _refuse_nothing(breakdown, budget, report)
    _check_words(budget, rules)
    finder = RangeFinder(breakdown)
    matched = [MatchedBudget(each, finder.find(each.glob)) for each in budget.ranges]
    facts = Facts(breakdown, rules, baseline, _other_gpu(breakdown, baseline), matched)
    found: list[Outcome] = []
    for number, each in enumerate(matched):
        missing = () if len(each.rows) else [_missing(each.asked, finder, budget, near=number < _MOST_NEAR)]
        found += missing or outcomes(facts, each)
    own = [text for growth in facts.growths.values() for text in growth.warnings]
    return BudgetCheck(
        report,
        str(budget.path),
        baseline.label if baseline else None,
        _frame(found),
        (*breakdown.warnings, *(baseline.warnings if baseline else ()), *own),
    )


def _frame(found: list[Outcome]) -> pd.DataFrame:
    columns: dict[str, list[Any]] = dict(
        zip(Outcome._fields, map(list, zip(*found, strict=True)), strict=True)
    )
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    return frame.assign(
        ok=pd.array(columns["ok"], dtype="boolean"), instances=pd.array(columns["instances"], dtype="int64")
    )


def _missing(asked: RangeBudget, finder: RangeFinder, budget: Budget, *, near: bool) -> Outcome:
    """What a glob that matches nothing comes to."""
    names = [cut(name, _LONGEST_NAME) for name in near_names(finder.texts, asked.glob)[:3]] if near else []
    which = f" that has {instances_text(budget.instances)}" if budget.instances else ""
    evidence = f"no range{which} matches" + (f"; there is {', '.join(names)}" if names else "")
    ok = None if asked.optional else False
    return Outcome(asked.glob, "must exist", "", MIN, 1, 0, UNIT_COUNT, ok, 0, evidence, asked.glob)


def _refuse_nothing(breakdown: Breakdown, budget: Budget, report: str) -> None:
    """A report without ranges or GPU work, or with a part that cannot be read, must not keep a budget for want."""
    for lost in breakdown.attribution.trace.unread:
        what = f"{report}: cannot be checked: {lost.table} lacks {' and '.join(lost.lacks)}, and has {lost.rows:,} rows"
        raise NsysprofError(what, "export it again: nsys export --type sqlite REPORT.nsys-rep")
    hint = "record both: nsys profile --trace=cuda,nvtx PROGRAM"
    if breakdown.merged.empty and budget.instances:
        have = instances_text(budget.instances)
        raise NsysprofError(f"{report}: no range has {have}, counted from 0", "leave --instance out")
    if breakdown.merged.empty:
        raise NsysprofError(f"{report}: no NVTX range in it, and {budget.path} is about ranges", hint)
    cpu_only = all(
        set(each.caps) <= {"cpu"} and set(each.growth) <= {"cpu"} and not _asks_of_ops(each)
        for each in budget.ranges
    )
    if not breakdown.totals["ops"] and not cpu_only:
        why = breakdown.attribution.trace.no_work
        raise NsysprofError(f"{report}: no GPU work in it, and {budget.path} is about GPU work: {why}", hint)


def _asks_of_ops(asked: RangeBudget) -> bool:
    return bool(asked.forbidden or asked.backend or asked.units)


def _check_words(budget: Budget, rules: Rules) -> None:
    """Backends and causes must be some that a rule can give: a misspelt one would never be found, nor missed."""
    backends = {rule.attention_backend for rule in rules.rules if rule.attention_backend} | {_MATH}
    folded = {backend.casefold() for backend in backends}
    templates = sorted({cause for rule in rules.rules for cause in rule.causes})
    known = [re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(template))) for template in templates]
    for each in budget.ranges:
        where = f"{budget.path}: {each.label}"
        parts = [part.strip() for part in (each.backend or _MATH).split("+")]
        if not all(part.casefold() in folded for part in parts):
            raise NsysprofError(
                f"{where}: no rule for kernels knows a backend {each.backend!r}",
                f"known are {', '.join(sorted(backends))}, and several joined by +; more: --rules FILE",
            )
        for cause in (forbidden.text for forbidden in each.forbidden if forbidden.by == "cause"):
            if not re.search(r"[*?\[]", cause) and not any(pattern.fullmatch(cause) for pattern in known):
                near = get_close_matches(cause, templates, 4, 0.4) or templates[:4]
                raise NsysprofError(
                    f"{where}: no rule for kernels gives a cause {cause!r}", f"near it: {', '.join(near)}"
                )


def _other_gpu(breakdown: Breakdown, baseline: Baseline | None) -> str:
    """That the baseline is of another GPU, if both say so and it is."""
    mine = gpu_names(breakdown)
    if baseline is None or not mine or not baseline.gpus or mine == baseline.gpus:
        return ""
    return f"the baseline is of {' and '.join(sorted(baseline.gpus))}, this report of {' and '.join(sorted(mine))}"
