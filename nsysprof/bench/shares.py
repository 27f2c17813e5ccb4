"""What share of the GPU a point reached, and the refusal of shares that cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from nsysprof.bench.samples import BenchPoint
from nsysprof.core.units import format_ns
from nsysprof.errors import NsysprofError
from nsysprof.hardware.peaks import GpuLimits, share_of_peak

__all__ = ["refused_calls", "refused_rates", "shares_of_peaks"]

# A call shorter than this is near what events resolve (half a microsecond).
_SHORT_NS = 5_000
_NAN = float("nan")
_MEASURED = ["the measured peak (measure it again: --measure-peaks)"]


def shares_of_peaks(
    point: BenchPoint, limits: GpuLimits, median_ns: float, graph_ns: float
) -> dict[str, object]:
    """The columns about peaks of `nsysprof.bench.rows`.

    ``refused`` names each share above 100 % with the inputs that are suspect, and the share itself is NaN then. Parts
    that are not known are NaN.
    """
    dtype, cost = point.shape.dtype, point.shape.cost
    peak = limits.datasheet_flops(dtype, point.sm_clock_mhz) or _NAN
    measured = limits.measured_peak(dtype) or _NAN
    bandwidth, copied = limits.bytes_per_s or _NAN, limits.measured_bytes_per_s or _NAN
    refused: list[str] = []

    def share(amount: float, lasted_ns: float, limit: float, what: str, suspects: _Suspects) -> float:
        achieved = amount / lasted_ns * 1e9
        try:
            return share_of_peak(
                achieved, limit, what=what, suspects=suspects(lasted_ns) if achieved > limit else ()
            )
        except NsysprofError as error:
            refused.append(error.message)
            return _NAN

    def wrong_flops(lasted_ns: float) -> list[str]:
        return _flops_suspects(point, limits, cost.flops / lasted_ns * 1e9, peak, lasted_ns)

    found: dict[str, object] = {
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
        found["share_of_measured_peak"] = share(
            cost.flops, median_ns, measured, "FLOP/s against the measured peak", lambda _: _MEASURED
        )
    if point.raw.get("cache") == "cold":
        # What has to be read comes from memory then, so that more of it than memory can give is wrong. More traffic
        # than that is not: score matrices may never leave the L2 cache.
        share(cost.read_bytes, median_ns, bandwidth, "bytes read", lambda ns: _byte_suspects(point, ns))
        moved = cost.traffic_bytes(point.backend) / median_ns * 1e9
        for name, limit in (("share_of_bandwidth", bandwidth), ("share_of_measured_bandwidth", copied)):
            found[name] = moved / limit if moved <= limit else _NAN
    return {**found, "refused": "; ".join(refused) or None}


def refused_calls(results: pd.DataFrame) -> pd.Series[bool]:
    """Which rows have FLOP/s of a call that were refused as a share of the peak: they are not shown either."""
    return results["peak_tflops"].notna() & results["share_of_peak"].isna()


def refused_rates(results: pd.DataFrame) -> pd.Series[bool]:
    """Which rows have FLOP/s, without launches where that is known, that were refused as a share of the peak."""
    share = results["graph_share_of_peak"].where(results["graph_tflops"].notna(), results["share_of_peak"])
    return results["peak_tflops"].notna() & share.isna()


_Suspects = Callable[[float], list[str]]


def _flops_suspects(
    point: BenchPoint, limits: GpuLimits, achieved: float, peak: float, lasted_ns: float
) -> list[str]:
    """Which inputs of a share of FLOP/s may be wrong: those that would bring it below 100 % if they were."""
    shape, clock, highest = point.shape, point.sm_clock_mhz, limits.max_sm_clock_mhz
    found = []
    if clock is None:
        found.append("the clock (none was sampled, the highest is taken)")
    elif highest and achieved <= peak * highest / clock:
        found.append(f"the clock ({clock:,.0f} MHz were sampled, {highest:,.0f} MHz are possible)")
    tensor = limits.datasheet_flops("tf32", clock) if shape.dtype == "fp32" else None
    if tensor and achieved <= tensor:
        found.append("the dtype (float32 products may have run on tensor cores, as TF32 or three of these)")
    found += [said for said, flops in shape.cost.suspects.items() if flops / lasted_ns * 1e9 <= peak]
    return (found + _timer(point, lasted_ns)) or ["the shape", "the timer", "the number of SMs"]


def _byte_suspects(point: BenchPoint, lasted_ns: float) -> list[str]:
    return ["the shape", "the cache (said to be cold)", *(_timer(point, lasted_ns) or ["the timer"])]


def _timer(point: BenchPoint, lasted_ns: float) -> list[str]:
    """The timer, where it is no event on the GPU or the call is too short for it."""
    clock = point.raw.get("latency_clock")
    wrong = lasted_ns < _SHORT_NS or (clock == "perf_counter" and point.sm_clock_mhz is not None)
    return [f"the timer ({format_ns(lasted_ns)} by {clock})"] if wrong else []
