"""The charts of a benchmark as figures and as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from nsysprof.bench.axes import choose_looks
from nsysprof.bench.lines import latency_chart, memory_chart, speedup_chart, throughput_chart
from nsysprof.bench.results import BenchResults
from nsysprof.bench.roofline_chart import roofline_chart
from nsysprof.bench.violins import violin_chart
from nsysprof.charts.style import figure_png
from nsysprof.core.final_name import whole_file
from nsysprof.errors import NsysprofError

__all__ = ["BENCH_CHARTS", "save_bench_charts"]

# In the order in which a report shows them.
BENCH_CHARTS: dict[str, Callable[[BenchResults], Figure]] = {
    "latency.png": latency_chart,
    "speedup.png": speedup_chart,
    "memory.png": memory_chart,
    "throughput.png": throughput_chart,
    "roofline.png": roofline_chart,
    "samples.png": violin_chart,
}


def save_bench_charts(results: BenchResults, folder: Path) -> list[Path]:
    """Draw all charts into an existing folder and return their paths; each is there whole or not at all.

    Raises `NsysprofError` when one cannot be written.
    """
    paths = []
    choose_looks([str(name) for name in results.results["backend"].unique()])
    for name, chart in BENCH_CHARTS.items():
        path = folder / name
        try:
            with whole_file(path) as part:
                part.write_bytes(figure_png(chart(results)))
        except OSError as error:
            raise NsysprofError(f"cannot write {path}: {error.strerror}", "another folder: -o DIR") from None
        paths.append(path)
    return paths
