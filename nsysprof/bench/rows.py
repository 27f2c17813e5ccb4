"""The rows of ``results.csv``, a row per configuration and backend, with shares of the GPU's peaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.tables import RESULTS, frame_of
from nsysprof.core.arrays import Floats
from nsysprof.core.units import format_ns
from nsysprof.errors import NsysprofError
from nsysprof.formats.samples import MEMORY_PARTS, BenchPoint, BenchSamples, Kind
from nsysprof.hardware.peaks import GpuLimits, share_of_peak
from nsysprof.statistics.contrast import Contrast, Rules, contrasts_over_runs, judge
from nsysprof.statistics.runs import OverRuns, enough_per_run, over_runs, run_medians, scope_of
from nsysprof.statistics.summary import ALLOWED_FOR, LEAST_SAMPLES, SURE_FROM, Summary, summarize

_NAN = float("nan")
NO_INTERVAL = "none"
_LEFT_OUT = "left out"  # the status of a point of which every sample was
# Columns of whole numbers that may be unknown.
_OF_LIMITS = ("bound", "bound_by", "least_ns")
_WHOLE = {"n", "left_out", "outliers", "calls_per_sample", "graph_n", "flops"}
# A call shorter than this is near what events resolve (half a microsecond).
_SHORT_NS = 5_000
LEAST_FOR_P99 = 100
_REMEASURE = ["the measured peak (measure it again: --measure-peaks)"]


def result_frame(samples: BenchSamples, rules: Rules) -> tuple[pd.DataFrame, list[str]]:
    """Return a row per point in file order, and warnings, a line each."""
    warnings: list[str] = []
    over = {"eager": over_runs_of(samples, "eager"), "graph": over_runs_of(samples, "graph")}
    again = _against_themselves(samples, rules)
    rows = [
        _row(point, samples, warnings)
        | (_measured(point, samples, over, again.get(point.place), warnings) if len(point.latency_ns) else {})
        for point in samples.points
    ]
    # what nothing was measured for has no values
    later = _OF_LIMITS if samples.measured else RESULTS.names
    frame = _with_limits(frame_of(RESULTS, rows, samples.described, also=later))
    warnings = [line for line in warnings if not line.endswith(ALLOWED_FOR)] + _allowed_for(frame, warnings)
    for name in frame.columns:
        if name in _WHOLE or name.endswith("_bytes"):
            frame[name] = frame[name].astype("Int64")
    return frame, warnings


def _allowed_for(frame: pd.DataFrame, warnings: list[str]) -> list[str]:
    """One line about all points with autocorrelated samples whose intervals account for the autocorrelation."""
    count = sum(line.endswith(ALLOWED_FOR) for line in warnings)
    if not count:
        return []
    measured = frame[frame["n"] > 0]
    worth = (measured["n_effective"] / measured["n"].astype(float)).where(measured["n_effective"] >= SURE_FROM)
    worst = measured.iloc[int(np.nanargmin(worth.to_numpy(np.float64)))]
    return [
        f"samples are autocorrelated at {count} of {len(measured)} points, {ALLOWED_FOR} (most: {worst['backend']}"
        f" at {worst['configuration']}, effective n = {worst['n_effective']:,.0f} of {worst['n']})"
    ]


def over_runs_of(samples: BenchSamples, kind: Kind) -> dict[tuple[str, str], OverRuns]:
    """For each point that was measured in several runs, return the latency computed over all runs."""
    logs = {point.place: run_medians(point.by_run(kind)) for point in samples.measured}
    several = [point for point in samples.measured if len(logs[point.place]) > 1]
    values = [list(logs[point.place].values()) for point in several]
    found = over_runs(values, [samples.rounding(point, kind) for point in several]) if several else []
    return {
        point.place: replace(each, sure=enough_per_run(point.by_run(kind)))
        for point, each in zip(several, found, strict=True)
    }


def _against_themselves(samples: BenchSamples, rules: Rules) -> dict[tuple[str, str], Contrast]:
    """The comparison of each point's second set of samples (A/A) with its first, each judged on its own."""
    points = [point for point in samples.measured if len(point.samples("aa"))]
    found = contrasts_over_runs(
        [(point.by_run("eager"), point.by_run("aa")) for point in points],
        names=[(f"{point.name}, first run", f"{point.name}, second run") for point in points],
        roundings=[(samples.rounding(point, "eager"), samples.rounding(point, "aa")) for point in points],
    )
    return {point.place: judge([each], rules)[0] for point, each in zip(points, found, strict=True)}


def _row(point: BenchPoint, samples: BenchSamples, warnings: list[str]) -> dict[str, Any]:
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
        "reason": point.reason or None,
        "n": len(point.latency_ns),
        "left_out": point.left_out,
        "graph_n": len(point.samples("graph")),
        "graph_reason": point.graph_reason or None,
        "calls_per_sample": point.calls_per_sample if measured else None,
        "clock": point.latency_clock,
        "cache": point.cache,
        "sm_clock_mhz": point.sm_clock_mhz,
        **_memory(point),
        **_error(point),
    }
    cost, traffic = shape.cost, shape.cost.traffic_bytes(point.backend)
    row |= {"flops": cost.flops, "compulsory_bytes": cost.least_bytes, "traffic_bytes": traffic}
    row["intensity"] = cost.flops / traffic
    if point.left_out:
        warnings.append(
            f"{point.name}: {point.left_out} of {len(point.eager or ())} samples are left out because the "
            "GPU was throttled"
        )
    if point.alone_reason:
        warnings.append(f"{point.name}: measured alone, not interleaved with other backends ({point.alone_reason})")
    if point.warm_until == "limit":
        warnings.append(f"{point.name}: the time per call was still changing at the end of warm-up")
    for run, reason in point.run_reasons.items():
        warnings.append(f"{point.name}: not measured in run {int(run) + 1}: {reason}")
    return row


def _measured(
    point: BenchPoint,
    samples: BenchSamples,
    over: Mapping[str, Mapping[tuple[str, str], OverRuns]],
    again: Contrast | None,
    warnings: list[str],
) -> dict[str, Any]:
    cost, traffic = point.shape.cost, point.shape.cost.traffic_bytes(point.backend)
    summary = summarize(point.latency_ns, point.name, step=samples.step(point, "eager"))
    runs = over["eager"].get(point.place)
    # over runs it does not matter how samples of a run depend on each other
    warnings += summary.warnings if runs is None else ()
    graph = None
    if len(replays := point.samples("graph")):
        graph = summarize(replays, f"{point.name}, graph", step=samples.step(point, "graph"))
    # what is allowed for is counted once for each point, and so are samples that are few in both
    if graph and runs is None and max(graph.n, summary.n) >= LEAST_SAMPLES:
        warnings += [line for line in graph.warnings if not line.endswith(ALLOWED_FOR)]
    latency = median_of(summary, runs)
    replay = median_of(graph, over["graph"].get(point.place))
    per_ns, graph_ns = 1e9 / latency["median_ns"], replay["median_ns"]
    shares = _shares_of_peaks(point, samples.limits, latency["median_ns"], graph_ns)
    if shares["refused"]:
        warnings.append(f"{point.name}: {shares['refused']}")
    return {
        **_spread(summary, point.latency_ns),
        **latency,
        **{f"graph_{name}": replay[name] for name in ("median_ns", "low_ns", "high_ns")},
        "runs": len(point.by_run("eager")),
        "scope": scope_of(runs.runs if runs else 1),
        "run_cv": runs.error * float(np.sqrt(runs.runs)) if runs else _NAN,
        "aa_ratio": again.ratio if again else _NAN,
        "aa_verdict": again.verdict if again else None,
        "tflops": cost.flops * per_ns / 1e12,
        "gb_per_s": traffic * per_ns / 1e9,
        "tokens_per_s": _NAN if cost.tokens is None else cost.tokens * per_ns,
        "graph_tflops": cost.flops / graph_ns / 1e3,
        **shares,
    }


def median_of(summary: Summary | None, runs: OverRuns | None) -> dict[str, Any]:
    """Return the median, and its interval if reliable; both are over the runs if there are several."""
    if summary is None:
        return {"median_ns": _NAN, "low_ns": _NAN, "high_ns": _NAN, "interval": None}
    sure, median = (runs.sure, runs.value) if runs else (summary.sure, summary.median)
    found = {"median_ns": median, "low_ns": _NAN, "high_ns": _NAN, "interval": NO_INTERVAL}
    if sure:
        interval = runs.interval() if runs else summary.interval
        found |= {"low_ns": interval.low, "high_ns": interval.high, "interval": interval.method}
    return found


def _spread(summary: Summary, values: Floats) -> dict[str, Any]:
    """The spread of samples; the 99 % quantile needs enough samples, or it depends on the largest sample alone."""
    return {
        "mean_ns": float(values.mean()),
        "sd_ns": float(values.std(ddof=1)) if len(values) > 1 else _NAN,
        "p99_ns": float(np.quantile(values, 0.99)) if len(values) >= LEAST_FOR_P99 else _NAN,
        "n_effective": summary.order.effective,
        "outliers": summary.outliers,
        "cv": _NAN if summary.cv is None else summary.cv,
        "q05_ns": summary.p5,
        "q25_ns": summary.p25,
        "q75_ns": summary.p75,
        "q95_ns": summary.p95,
        "min_ns": summary.minimum,
        "max_ns": summary.maximum,
    }


def _with_limits(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the limit of each shape: the time of its FLOPs or of its compulsory bytes at peak, if longer.

    Peaks are from the datasheet if known, otherwise measured; there is no limit if either peak is unknown.
    """
    flops = frame["peak_tflops"].fillna(frame["measured_peak_tflops"]).astype(float)
    rate = frame["peak_gb_per_s"].fillna(frame["measured_gb_per_s"]).astype(float)
    least = pd.DataFrame({"compute": frame["flops"] / flops / 1e3, "memory": frame["compulsory_bytes"] / rate})
    least = least.astype(float)
    known, longer = least.notna().all(axis=1), least.max(axis=1)
    bound = pd.Series(np.where(least["compute"] == longer, "compute", "memory"), frame.index, dtype=object)
    return frame.assign(
        bound=bound.where(known, None), bound_by=(longer / least.min(axis=1)).where(known), least_ns=longer.where(known)
    )


def _memory(point: BenchPoint) -> dict[str, Any]:
    unit = point.shape.cost.unit_bytes
    sizes: dict[str, Any] = {f"{part}_bytes": point.memory_bytes(part) for part in MEMORY_PARTS}
    matrices = {
        f"{part}_matrices": _NAN if (size := sizes[f"{part}_bytes"]) is None or not unit else size / unit
        for part in ("temporary", "peak")
    }
    return {**sizes, "score_matrix_bytes": unit, **matrices}


def _error(point: BenchPoint) -> dict[str, Any]:
    """The error that is nearest to its tolerance, or furthest above it; NaN if an error is NaN or infinite."""
    limits = point.tolerances or {}
    errors = [
        (_NAN if error is None else error, limits.get(name) or point.tolerance or _NAN)
        for name, error in (point.errors or {}).items()
    ]
    if not errors:
        return {"error": _NAN, "tolerance": point.tolerance, "error_of_tolerance": _NAN}
    error, limit = max(errors, key=lambda each: np.inf if np.isnan(each[0]) else each[0] / each[1])
    return {"error": error, "tolerance": limit, "error_of_tolerance": error / limit}


def _shares_of_peaks(point: BenchPoint, limits: GpuLimits, median_ns: float, graph_ns: float) -> dict[str, object]:
    """The columns about peaks.

    ``refused`` names each share above 100 % with its suspect inputs; the share itself is then NaN. Unknown parts are
    NaN.
    """
    dtype, cost = point.shape.dtype, point.shape.cost
    peak = limits.datasheet_flops(dtype, point.sm_clock_mhz) or _NAN
    measured = limits.measured_peak(dtype) or _NAN
    bandwidth, copied = limits.bytes_per_s or _NAN, limits.measured_bytes_per_s or _NAN
    refused: list[str] = []

    def share(
        amount: float, lasted_ns: float, limit: float, what: str, suspects: Callable[[float], list[str]]
    ) -> float:
        achieved = amount / lasted_ns * 1e9
        try:
            return share_of_peak(achieved, limit, what=what, suspects=suspects(lasted_ns) if achieved > limit else ())
        except NsysprofError as error:
            refused.append(error.message)
            return _NAN

    def wrong_flops(lasted_ns: float) -> list[str]:
        return _flops_suspects(point, limits, cost.flops / lasted_ns * 1e9, peak, lasted_ns)

    shares: dict[str, object] = {
        "peak_tflops": peak / 1e12,
        "share_of_peak": share(cost.flops, median_ns, peak, "FLOP/s", wrong_flops),
        "graph_share_of_peak": share(cost.flops, graph_ns, peak, "FLOP/s of the graph", wrong_flops),
        "measured_peak_tflops": measured / 1e12,
        "share_of_measured_peak": _NAN,
        "peak_gb_per_s": bandwidth / 1e9,
        "measured_gb_per_s": copied / 1e9,
        "share_of_bandwidth": _NAN,
        "share_of_measured_bandwidth": _NAN,
    }
    if not refused:  # otherwise it is not the measured peak that is wrong
        shares["share_of_measured_peak"] = share(
            cost.flops, median_ns, measured, "FLOP/s against the measured peak", lambda _: _REMEASURE
        )
    if point.cache == "cold":
        # What has to be read comes from memory then, so that more of it than memory can give is wrong. More traffic
        # than that is not: score matrices may never leave the L2 cache.
        suspects = ["the shape", "the cache (recorded as cold)", *(_timer(point, median_ns) or ["the timer"])]
        share(cost.read_bytes, median_ns, bandwidth, "bytes read", lambda _: suspects)
        moved = cost.traffic_bytes(point.backend) / median_ns * 1e9
        for name, limit in (("share_of_bandwidth", bandwidth), ("share_of_measured_bandwidth", copied)):
            shares[name] = moved / limit if moved <= limit else _NAN
    return {**shares, "refused": "; ".join(refused) or None}


def refused_calls(results: pd.DataFrame) -> pd.Series[bool]:
    """Mark rows whose FLOP/s per call exceed the peak and are therefore not shown."""
    return results["peak_tflops"].notna() & results["share_of_peak"].isna()


def refused_rates(results: pd.DataFrame) -> pd.Series[bool]:
    """Mark rows whose FLOP/s (without launches if known) exceed the peak and are therefore not shown."""
    share = results["graph_share_of_peak"].where(results["graph_tflops"].notna(), results["share_of_peak"])
    return results["peak_tflops"].notna() & share.isna()


def _flops_suspects(point: BenchPoint, limits: GpuLimits, achieved: float, peak: float, lasted_ns: float) -> list[str]:
    """The inputs of a FLOP/s share that may be wrong: an error in one of them could explain a share above 100 %."""
    shape, clock, highest = point.shape, point.sm_clock_mhz, limits.max_sm_clock_mhz
    suspects = []
    if clock is None:
        suspects.append("the clock (not sampled; the highest is assumed)")
    elif highest and achieved <= peak * highest / clock:
        suspects.append(f"the clock ({clock:,.0f} MHz sampled, up to {highest:,.0f} MHz possible)")
    tensor = limits.datasheet_flops("tf32", clock) if shape.dtype == "fp32" else None
    if tensor and achieved <= tensor:
        suspects.append(
            "the dtype (float32 matrix products may have run on tensor cores, as one or three TF32 products)"
        )
    suspects += [suspect for suspect, flops in shape.cost.suspects.items() if flops / lasted_ns * 1e9 <= peak]
    return (suspects + _timer(point, lasted_ns)) or ["the shape", "the timer", "the number of SMs"]


def _timer(point: BenchPoint, lasted_ns: float) -> list[str]:
    """The timer as a suspect, if it does not use GPU events, or if the call is too short for it."""
    clock = point.latency_clock
    wrong = lasted_ns < _SHORT_NS or (clock == "perf_counter" and point.sm_clock_mhz is not None)
    return [f"the timer ({format_ns(lasted_ns)} by {clock})"] if wrong else []
