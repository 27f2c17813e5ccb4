"""What the profiler costs: the same program with and without it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from nsysprof.tools.child import Ended

__all__ = ["overhead_of"]


def overhead_of(
    plain: Ended,
    profiled: Ended,
    plain_results: Mapping[str, Any] | None,
    profiled_results: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Ratios of times under nsys to times without: of the whole run, and per range of a workload that measured both.

    ``ranges``: a mapping per range with ``range, samples, plain_median_ns, profiled_median_ns, ratio``;
    ``median_ratio``: the median over them, None where there are none. The whole run includes starting the program,
    and for nsys its own start and writing the report.
    """
    ranges: list[dict[str, Any]] = []
    after = _latencies(profiled_results)
    for name, before in _latencies(plain_results).items():
        if name in after:
            medians = median(before), median(after[name])
            ranges.append(
                {
                    "range": name,
                    "samples": min(len(before), len(after[name])),
                    "plain_median_ns": round(medians[0]),
                    "profiled_median_ns": round(medians[1]),
                    "ratio": round(medians[1] / medians[0], 4) if medians[0] else None,
                }
            )
    ratios: list[float] = [row["ratio"] for row in ranges if row["ratio"] is not None]
    return {
        "plain_wall_ns": plain.wall_ns,
        "profiled_wall_ns": profiled.wall_ns,
        "wall_ratio": round(profiled.wall_ns / plain.wall_ns, 4) if plain.wall_ns else None,
        "median_ratio": round(median(ratios), 4) if ratios else None,
        "ranges": ranges,
    }


def _latencies(results: Mapping[str, Any] | None) -> dict[str, list[int]]:
    runs = (results or {}).get("runs", [])
    return {run["range"]: run["latency_ns"] for run in runs if run.get("latency_ns")}
