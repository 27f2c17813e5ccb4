"""The tables over all ranks: their columns are an interface, to be added to and never renamed."""

from __future__ import annotations

from nsysprof.results.table import table

_PARTS = {
    "communication_ns": "time with a collective running",
    "compute_ns": "time with any other kernel running",
    "exposed_ns": "communication that no compute hides",
    "copies_ns": "copies and sets that neither hides",
    "idle_host_ns idle_sync_ns idle_queue_ns": "time in which the GPU waits: for a launch, in a synchronization,"
    " for its queue",
}
_TOTALS = {
    "cpu_ns": "host durations of the instances",
    "span_ns": "from first to last op",
    "busy_ns": "time with ops running, per GPU",
    "sum_ns": "added durations of the ops",
    "own_ns": "time for anything but communication that no compute hides",
    "idle_ns": "time in which the GPU runs nothing",
}
_MEDIANS = {"own_median_ns span_median_ns": "medians over iterations; empty where there are none"}
PATHS = table(
    "fleet.csv",
    "a row per range path and rank",
    {
        "path": "merged path of the range",
        "rank": "number of the rank",
        "iterations": "iterations in which it has this range",
        "instances": "instances of the range",
        **_TOTALS,
        **_PARTS,
        **_MEDIANS,
        "relative": "own time over that of the median rank",
        "times_slowest": "in how many iterations this rank is the slowest by own time",
    },
)
ITERATIONS = table(
    "iterations.csv",
    "a row per range path and iteration",
    {
        "path": "merged path of the range",
        "iteration": "its name or number",
        "ranks": "ranks that have it",
        "own_median_ns own_iqr_ns own_min_ns own_max_ns": "own time over ranks",
        "max_over_min": "the most own time over the least",
        "own_mean_ns": "mean own time over ranks",
        "slowest_rank fastest_rank": "the ranks with the most and the least own time",
        "span_median_ns span_iqr_ns span_min_ns span_max_ns": "span over ranks",
    },
)
RANKS = table(
    "ranks.csv",
    "a row per rank; times are of its iterations where the name does not begin with report",
    {
        "rank": "number of the rank",
        "report host pid process": "where it ran, and what was recorded of it",
        "gpu gpu_name": "its GPUs, as the report numbers and names them",
        "nsys_version": "of the nsys that recorded it",
        "report_duration_ns": "length of the recording",
        "report_span_ns report_busy_ns": "from first to last op, and time with ops running, of the whole report",
        "iterations": "iterations that it has",
        **{name: _TOTALS[name] for name in ("cpu_ns", "span_ns", "own_ns")},
        **_PARTS,
        "idle_ns": _TOTALS["idle_ns"],
        **_MEDIANS,
        "times_slowest": "in how many iterations it is the slowest by own time",
        "collectives collective_ns": "collectives, and time in them",
        "waiting_ns": "what it waits in collectives for ranks that come later",
        "caused_ns": "what others wait for it",
        "times_awaited": "in how many iterations it comes last to the collectives",
        "clock_offset_ns": "how far its clock is from the common one; empty where nothing tells",
        "ratio": "median over iterations of its own time over the median of the other ranks",
        "z": "how far that is from the median rank, in robust standard deviations; empty below five ranks",
        "low high": "interval of the ratio",
        "straggler verdict basis": "whether it is a straggler: slower, not slower or not proven, and what says so",
        "slower compared": "in how many of how many iterations it takes longer than the others",
        "seconds peak_bytes": "what the worker took to read it",
    },
)
