"""The charts of a benchmark."""

from __future__ import annotations

from nsysprof.bench.lines import plan_latency, plan_memory, plan_speedup, plan_throughput
from nsysprof.bench.results import BenchResults
from nsysprof.bench.roofline_chart import plan_roofline
from nsysprof.bench.violins import plan_violins
from nsysprof.charts.chart import Chart

# In the order in which a report shows them.
BENCH_CHARTS: tuple[Chart[BenchResults], ...] = (
    Chart("latency.png", "latency", plan_latency),
    Chart("speedup.png", "speedup", plan_speedup),
    Chart("memory.png", "memory", plan_memory),
    Chart("throughput.png", "throughput", plan_throughput),
    Chart("roofline.png", "roofline", plan_roofline),
    Chart("samples.png", "samples", plan_violins),
)
