"""A report against a budget in one call, for the command line and for tests.

    import nsysprof


    def test_attention_keeps_to_its_budget():
        nsysprof.check("run.sqlite", "budget.toml").assert_ok()

The failure shows the table that ``nsysprof check`` prints.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from nsysprof.analyze.breakdown import Breakdown, break_down
from nsysprof.attribution.attribute import attribute
from nsysprof.check.baseline import ANALYSIS, Baseline, baseline_of, read_analysis
from nsysprof.check.budget import Budget, read_budget
from nsysprof.check.check import BudgetCheck, check_budget
from nsysprof.check.draft import draft_budget
from nsysprof.check.text import check_summary
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import Rules, load_rules
from nsysprof.trace.report import Progress, Report, open_report

File: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class Checked(BudgetCheck):
    """The answer of `check`: a `BudgetCheck` that a test can assert."""

    def assert_ok(self) -> None:
        """Raise AssertionError with the table of what broke, if something did."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        return check_summary(self)


def check(
    report: File | Report,
    budget: File | Budget,
    *,
    baseline: File | None = None,
    threads: str = "follow",
    rules: File | None = None,
    nsys: File | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> Checked:
    """Hold a report against a budget: both as files, or as `open_report` and `read_budget` give them.

    ``baseline`` is an earlier report, an ``analysis.json``, or the folder of one, for limits with ``max_growth``.
    ``rules`` is a file of kernel rules to ask before the shipped ones, ``nsys`` what exports a ``.nsys-rep``;
    ``threads`` and ``memory_limit`` (bytes) are those of `attribute`; ``progress`` is given what was done, and how many
    rows. Raises `NsysprofError` for what cannot be read or means
    nothing; a broken limit raises nothing.
    """
    asked = budget if isinstance(budget, Budget) else read_budget(Path(budget))
    known = load_rules(Path(rules) if rules is not None else None)
    read = partial(_broken_down, asked, known, threads, memory_limit, progress)
    before = _baseline(Path(baseline), asked, nsys, read) if baseline is not None else None
    if isinstance(report, Report):
        found = check_budget(read(report), asked, baseline=before, rules=known)
    else:
        with open_report(report, nsys=nsys) as opened:
            found = check_budget(read(opened), asked, baseline=before, rules=known)
    return Checked(**found.__dict__)


def _broken_down(
    budget: Budget,
    rules: Rules,
    threads: str,
    memory_limit: int | None,
    progress: Progress | None,
    report: Report,
) -> Breakdown:
    attribution = attribute(report, threads, progress, memory_limit)
    return break_down(
        attribution, merge=budget.merge, skip=budget.skip, instances=budget.instances, rules=rules
    )


def _baseline(path: Path, budget: Budget, nsys: File | None, read: Callable[[Report], Breakdown]) -> Baseline:
    """The baseline in an analysis, by its name or its folder, or in a report."""
    if not any(each.growth for each in budget.ranges):
        raise NsysprofError(
            f"{budget.path}: no limit is against a baseline, so {path} would not be looked at",
            'give a [[range]] one: max_growth = { span = "5 %" }',
        )
    if (path / ANALYSIS).is_file():
        path /= ANALYSIS
    if path.suffix == ".json":
        return read_analysis(path, budget)
    with open_report(path, nsys=nsys) as opened:
        return baseline_of(read(opened))


def draft(
    report: File,
    *,
    threads: str = "follow",
    rules: File | None = None,
    nsys: File | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> str:
    """The TOML text of a budget that a report keeps to, see `draft_budget`; the arguments are those of `check`."""
    known = load_rules(Path(rules) if rules is not None else None)
    with open_report(report, nsys=nsys) as opened:
        attribution = attribute(opened, threads, progress, memory_limit)
        return draft_budget(break_down(attribution, rules=known), known)
