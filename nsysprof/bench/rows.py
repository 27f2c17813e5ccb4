"""The rows of ``results.csv``: a row per configuration and backend, the columns of `nsysprof.bench.tables`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.samples import MEMORY_PARTS, BenchPoint, BenchSamples
from nsysprof.bench.shares import shares_of_peaks
from nsysprof.bench.tables import RESULTS, columns_of
from nsysprof.statistics.contrast import Control, Rules, control
from nsysprof.statistics.summary import ALLOWED_FOR, LEAST_SAMPLES, SURE_FROM, Summary, summarize

__all__ = ["result_frame"]

_NAN = float("nan")
_LEFT_OUT = "left out"  # the status of a point of which every sample was
# Columns of whole numbers that may be unknown.
_WHOLE = {"n", "left_out", "outliers", "calls_per_sample", "graph_n", "flops"}


def result_frame(samples: BenchSamples, rules: Rules) -> tuple[pd.DataFrame, list[str]]:
    """A row per point in the order of the file; and warnings, a line each."""
    warnings: list[str] = []
    rows = [_row(point, samples, rules, warnings) for point in samples.points]
    frame = pd.DataFrame(rows, columns=columns_of(RESULTS, samples.described))
    warnings = [line for line in warnings if not line.endswith(ALLOWED_FOR)] + _allowed_for(frame, warnings)
    for name in frame.columns:
        if name in _WHOLE or name.endswith("_bytes"):
            frame[name] = frame[name].astype("Int64")
    return frame, warnings


def _allowed_for(frame: pd.DataFrame, warnings: list[str]) -> list[str]:
    """One line about all points whose samples depend on each other, as far as their intervals allow for it."""
    count = sum(line.endswith(ALLOWED_FOR) for line in warnings)
    if not count:
        return []
    measured = frame[frame["n"] > 0]
    worth = (measured["n_effective"] / measured["n"].astype(float)).where(
        measured["n_effective"] >= SURE_FROM
    )
    worst = measured.iloc[int(np.nanargmin(worth.to_numpy(np.float64)))]
    return [
        f"at {count} of {len(measured)} points samples depend on the ones before them, {ALLOWED_FOR}; the most at"
        f" {worst['backend']} at {worst['configuration']}, where {worst['n']} are worth {worst['n_effective']:,.0f}"
        " independent ones"
    ]


def _row(point: BenchPoint, samples: BenchSamples, rules: Rules, warnings: list[str]) -> dict[str, Any]:
    shape, measured = point.shape, len(point.latency_ns) > 0
    row: dict[str, Any] = {
        "run": samples.name,
        "workload": samples.workload,
        "device": samples.device,
        "configuration": shape.id,
        "backend": point.backend,
        **shape.sizes,
        "dtype": shape.dtype,
        **shape.flags,
        "backward": samples.backward,
        "status": point.status if measured or point.status != "measured" else _LEFT_OUT,
        "reason": point.reason,
        "n": len(point.latency_ns),
        "left_out": point.left_out,
        "graph_n": len(point.graph_latency_ns),
        "graph_reason": point.graph_reason,
        "calls_per_sample": point.calls_per_sample if measured else None,
        "clock": point.raw.get("latency_clock"),
        "cache": point.raw.get("cache"),
        "sm_clock_mhz": point.sm_clock_mhz,
        **_memory(point),
        **_error(point),
    }
    cost, traffic = shape.cost, shape.cost.traffic_bytes(point.backend)
    row |= {"flops": cost.flops, "compulsory_bytes": cost.least_bytes, "traffic_bytes": traffic}
    row["intensity"] = cost.flops / traffic
    if point.left_out:
        warnings.append(
            f"{point.name}: {point.left_out} of {len(point.all_latency_ns)} samples were taken while the GPU was"
            " throttled, and are left out"
        )
    if point.raw.get("alone_reason"):
        warnings.append(f"{point.name}: not sampled in turn with the others: {point.raw['alone_reason']}")
    if point.raw.get("warm_until") == "limit":
        warnings.append(f"{point.name}: its latency had not settled when warming up was given up")
    if measured:
        row |= _measured(point, samples, rules, warnings)
    return row


def _measured(point: BenchPoint, samples: BenchSamples, rules: Rules, warnings: list[str]) -> dict[str, Any]:
    """What there is of a point with samples."""
    cost, traffic = point.shape.cost, point.shape.cost.traffic_bytes(point.backend)
    summary = summarize(point.latency_ns, point.name)
    warnings += summary.warnings
    graph = summarize(point.graph_latency_ns, f"{point.name}, graph") if len(point.graph_latency_ns) else None
    # what is allowed for is counted once for each point, and so are samples that are few in both
    if graph and max(graph.n, summary.n) >= LEAST_SAMPLES:
        warnings += [line for line in graph.warnings if not line.endswith(ALLOWED_FOR)]
    again = _aa_control(point, rules)
    per_ns = 1e9 / summary.median
    graph_ns = graph.median if graph else _NAN
    shares = shares_of_peaks(point, samples.limits, summary.median, graph_ns)
    if shares["refused"]:
        warnings.append(f"{point.name}: {shares['refused']}")
    return {
        **_latency(summary),
        "graph_median_ns": graph_ns,
        "graph_low_ns": graph.interval.low if graph else _NAN,
        "graph_high_ns": graph.interval.high if graph else _NAN,
        "aa_ratio": again.contrast.ratio if again else _NAN,
        "aa_verdict": again.contrast.verdict if again else None,
        "tflops": cost.flops * per_ns / 1e12,
        "gb_per_s": traffic * per_ns / 1e9,
        "tokens_per_s": _NAN if cost.tokens is None else cost.tokens * per_ns,
        "graph_tflops": cost.flops / graph_ns / 1e3,
        **shares,
    }


def _aa_control(point: BenchPoint, rules: Rules) -> Control | None:
    """The second set of samples of a backend against its first; None where there is none."""
    if not (len(point.latency_ns) and len(point.aa_latency_ns)):
        return None
    return control(point.latency_ns, point.aa_latency_ns, rules, name=point.name)


def _latency(summary: Summary) -> dict[str, Any]:
    return {
        "n_effective": summary.order.effective,
        "outliers": summary.outliers,
        "median_ns": summary.median,
        "low_ns": summary.interval.low,
        "high_ns": summary.interval.high,
        "interval": summary.interval.method,
        "cv": _NAN if summary.cv is None else summary.cv,
        "q05_ns": summary.p5,
        "q25_ns": summary.p25,
        "q75_ns": summary.p75,
        "q95_ns": summary.p95,
        "min_ns": summary.minimum,
        "max_ns": summary.maximum,
    }


def _memory(point: BenchPoint) -> dict[str, Any]:
    unit = point.shape.cost.unit_bytes
    found: dict[str, Any] = {f"{part}_bytes": point.memory[part] for part in MEMORY_PARTS}
    found["score_matrix_bytes"] = unit
    for part in ("temporary", "peak"):
        size = point.memory[part]
        found[f"{part}_matrices"] = _NAN if size is None or not unit else size / unit
    return found


def _error(point: BenchPoint) -> dict[str, Any]:
    """The error that is nearest to its tolerance, or furthest above it; NaN where it was NaN or infinite itself."""
    found = [
        (_NAN if error is None else error, point.tolerances.get(name) or point.tolerance or _NAN)
        for name, error in point.errors.items()
    ]
    if not found:
        return {"error": _NAN, "tolerance": point.tolerance, "error_of_tolerance": _NAN}
    error, limit = max(found, key=lambda each: np.inf if np.isnan(each[0]) else each[0] / each[1])
    return {"error": error, "tolerance": limit, "error_of_tolerance": error / limit}
