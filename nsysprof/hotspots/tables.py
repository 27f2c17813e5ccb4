"""The table of `nsysprof hotspots`. Columns are an interface: add columns, but never rename one."""

from math import isnan

from nsysprof.core.units import format_share
from nsysprof.kernels.launches import COLUMNS
from nsysprof.results.table import Column, table

HOTSPOTS = table(
    "hotspots.csv",
    "a row per kernel or kernel family in the steady steps, longest first",
    {
        "kernel": Column("kernel", "name of the kernel, or its family with --by family", head="kernel"),
        "family": "kernel family, by the kernel rules",
        "calls": "number of launches in all steady steps",
        "calls_per_step": Column(
            "calls_per_step", "number of launches per step", head="calls", cell=lambda x: f"{x:,.4g}"
        ),
        "steps": Column("steps", "number of steady steps in which the kernel runs", head="in steps"),
        "step_ns": Column("step_ns", "time per step (mean over all steady steps)", head="per step"),
        "share": Column("share", "share of steady step time", head="of step"),
        "limit": Column(
            "limit", "what limits the kernel: compute, memory, occupancy, latency or unknown", head="limited by"
        ),
        "basis": "source of the limit: counters, shapes, GPU metrics, geometry or duration; empty if unknown",
        "limit_share": Column(
            "limit_share",
            "achieved share of the limit (% of peak FLOP/s, % of memory bandwidth, or % of multiprocessors in use)",
            head="of that limit",
            cell=lambda x: "" if isnan(x) else format_share(x),
            align="r",
        ),
        "unit": "peak to which flops_per_s is compared: tensor or CUDA cores, and data type",
        "flops_per_s": "achieved FLOPs per second, from counters or operator shapes; empty if unknown",
        "bytes_per_s": (
            "achieved bytes per second, from counters, operator shapes (a lower bound) or GPU metrics; empty if unknown"
        ),
        "gain_ns": Column(
            "gain_ns",
            "potential speedup: mean time saved per steady step if the kernel reached the best throughput seen "
            "in practice",
            head="can save",
        ),
        "gain_basis": "source of gain_ns: replayed (a replay) or bound (an upper bound); empty if unknown",
        "scale": "kernel time in the replay for gain_ns ÷ recorded kernel time",
        "reason": "reason why the limit is unknown or implausible",
        **COLUMNS,
    },
    made_in="hotspots/hotspots.py",
)
