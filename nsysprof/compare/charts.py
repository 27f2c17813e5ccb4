"""The charts of a comparison."""

from __future__ import annotations

from nsysprof.charts.chart import Chart
from nsysprof.compare.call_chart import plan_calls
from nsysprof.compare.comparison import Comparison
from nsysprof.compare.gap_chart import plan_gap
from nsysprof.compare.roofline_chart import plan_roofline

GAP_CHARTS: tuple[Chart[Comparison], ...] = (
    Chart("gap.png", "How the time of one side becomes that of the other, cause by cause", plan_gap),
    Chart("compare.png", "The median call of either side, kernel by kernel", plan_calls),
)
ROOFLINE = Chart("roofline.png", "The kernels below what the GPU can do, by hardware counters", plan_roofline)
CHARTS = (*GAP_CHARTS, ROOFLINE)


def comparison_charts(comparison: Comparison) -> tuple[Chart[Comparison], ...]:
    """The charts that have something to show: `ROOFLINE` only where there are counters."""
    return CHARTS if comparison.measured else GAP_CHARTS
