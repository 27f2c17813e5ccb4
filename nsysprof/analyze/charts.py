"""The charts of an analysis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.chart_rows import ChartRows, chart_rows
from nsysprof.analyze.kernel_breakdown import plan_kernel_breakdown
from nsysprof.analyze.kernel_counts import plan_kernel_counts
from nsysprof.analyze.subject import subtitle
from nsysprof.analyze.timeline import timeline
from nsysprof.analyze.timeline_chart import COLUMNS, plan_timeline
from nsysprof.charts.chart import Chart
from nsysprof.charts.marks import Heading, Message, Plan

TOP = 20


def analysis_charts(top: int = TOP) -> tuple[Chart[Breakdown], ...]:
    """The charts, in the order of the page, with ``top`` ranges in those that have a row for each.

    Where there is no GPU work they say why.
    """
    counts, breakdown = (partial(_rows, plan, top) for plan in (plan_kernel_counts, plan_kernel_breakdown))
    return (
        Chart("kernel_counts.png", "Kernels and launches per range", counts),
        Chart("kernel_breakdown.png", "Busy and idle time per range", breakdown),
        Chart("timeline.png", "Streams and ranges over time", _timeline),
    )


def _rows(plan: Callable[[Breakdown, ChartRows], Plan], top: int, breakdown: Breakdown) -> Plan:
    rows = chart_rows(breakdown, top)
    return _nothing(breakdown) if rows is None else plan(breakdown, rows)


def _timeline(breakdown: Breakdown) -> Plan:
    answer = timeline(breakdown, columns=COLUMNS)
    return plan_timeline(answer) if answer.streams or answer.ranges else _nothing(breakdown)


def _nothing(breakdown: Breakdown) -> Message:
    reason, _, rest = breakdown.attribution.trace.no_work.partition(": ")
    sentences = [
        f"{reason[:1].upper()}{reason[1:]}{':' if rest else '.'}",
        *([f"{rest}."] if rest else []),
        "Capture again with:  nsys profile --trace=cuda,nvtx <program>",
    ]
    return Message(Heading("This report holds no GPU work", subtitle(breakdown)), sentences)
