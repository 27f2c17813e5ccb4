"""Where the time of a report went, in one call; and what is to be seen of the answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsysprof.analyze.breakdown import Breakdown, break_down
from nsysprof.analyze.charts import analysis_charts
from nsysprof.analyze.text import ledger_table, work_line
from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.charts.notebook import Overview
from nsysprof.kernels.classify import Rules, load_rules
from nsysprof.results.table import TextTable
from nsysprof.trace.report import Report
from nsysprof.trace.trace import Trace


def analyze(
    report: str | os.PathLike[str] | Report | Trace | Attribution,
    select: str | None = None,
    *,
    threads: str = "follow",
    graphs: str = "launched",
    ranges: str = "auto",
    rules: str | os.PathLike[str] | Rules | None = None,
    **options: Any,
) -> Breakdown:
    """Break a report down by range path and by kernel: open it, attribute its GPU ops, and add them up.

    ``report`` is a file of any recorder that nsysprof reads, or what `open_report`, `read_tables` or `attribute` gave;
    ``select`` a glob of ranges to keep; ``threads``, ``graphs`` and ``ranges`` are those of `attribute`, ``rules`` a
    file of kernel rules to ask first, ``options`` all others of `break_down`. Raises `NsysprofError` for what cannot be
    read, and where no range matches.
    """
    known = rules if isinstance(rules, Rules) else load_rules(Path(rules) if rules is not None else None)
    attribution = attribute(report, threads, graphs=graphs, ranges=ranges)
    return break_down(attribution, select=select, rules=known, **options)


def overview(breakdown: Breakdown) -> Overview:
    """What is to be seen of an answer: how much work there is, where the time of a step goes, and what to mend."""
    name = breakdown.attribution.trace.report.path.name

    def details() -> Iterator[str | TextTable]:
        waits = breakdown.waits
        if waits and waits.repeat:
            yield waits.table()
        for number, finding in enumerate(breakdown.findings, 1):
            yield f"{number}. {finding.text}{f' → {finding.hint}' if finding.hint else ''}"
        yield ledger_table(breakdown, empty=False)

    return Overview(f"{name}: {work_line(breakdown)}", analysis_charts(breakdown=breakdown), details)
