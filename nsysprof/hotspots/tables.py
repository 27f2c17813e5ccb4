"""The table of `nsysprof hotspots`: its columns are an interface, to be added to and never renamed."""

from math import isnan

from nsysprof.core.units import format_share
from nsysprof.kernels.launches import COLUMNS
from nsysprof.results.table import Column, table

HOTSPOTS = table(
    "hotspots.csv",
    "a row per kernel of the steady steps, or per kernel family; the longest first",
    {
        "kernel": Column("kernel", "name of the kernel, or its family with --by family", head="kernel"),
        "family": "kernel family, by the kernel rules",
        "calls": "launches in all steady steps",
        "calls_per_step": Column("calls_per_step", "launches in a step", head="calls", cell=lambda x: f"{x:,.4g}"),
        "step_ns": Column("step_ns", "median over steps of its time in a step", head="per step"),
        "share": Column("share", "its part of the time of all steady steps", head="of step"),
        "limit": Column("limit", "compute, memory, occupancy, latency or unknown", head="limited by"),
        "basis": "what the limit rests on: counters, shapes, GPU metrics, geometry or duration; empty if unknown",
        "limit_share": Column(
            "limit_share",
            "reached part of that limit: of the peak FLOP/s, of the memory bandwidth, or of the multiprocessors",
            head="of that limit",
            cell=lambda x: "" if isnan(x) else format_share(x),
            align="r",
        ),
        "unit": "peak that FLOPs are compared with: tensor cores or CUDA cores, and the type",
        "flops_per_s": "FLOPs per second, by counters or the shapes of operators; empty if unknown",
        "bytes_per_s": "bytes per second, by counters, shapes (at least so many) or GPU metrics; empty if unknown",
        "gain_ns": Column("gain_ns", "time that a step saves if the kernel reached a reachable limit", head="can save"),
        "gain_basis": "replayed, bound (an upper limit), or empty if unknown",
        "scale": "factor of the time of the kernel with which gain_ns is replayed",
        "reason": "why the limit is unknown or was refused",
        **COLUMNS,
    },
    made_in="hotspots/hotspots.py",
)
