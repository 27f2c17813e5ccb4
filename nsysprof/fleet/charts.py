"""The charts over all ranks."""

from __future__ import annotations

from nsysprof.charts.chart import Chart
from nsysprof.fleet.answer import Fleet
from nsysprof.fleet.heatmap import plan_heatmap
from nsysprof.fleet.timeline import plan_rank_lanes

FLEET_CHARTS: tuple[Chart[Fleet], ...] = (
    Chart("fleet_heatmap.png", "Ranks against ranges, by own time", plan_heatmap),
    Chart("fleet_timeline.png", "Ranks over time, a lane each", plan_rank_lanes),
)
