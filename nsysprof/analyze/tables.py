"""The tables of an analysis: their columns are an interface, to be added to and never renamed."""

from __future__ import annotations

from nsysprof.results.table import table

_PATH = {
    "path": "names from the outermost range to this one",
    "merged_path": "the same with per-call parts and numbers merged",
}
_KIND = {"kind": "push_pop or start_end"}
_INSIDE = {
    "launches": "host calls inside that caused GPU work; this and the following with inner ranges",
    "kernels": "kernels launched inside",
    "memops": "copies and sets launched inside",
}
RANGES = table(
    "ranges.csv",
    "a row per range path",
    {
        **_PATH,
        "depth": "how many ranges are around it",
        **_KIND,
        "domain": "NVTX domain",
        "instances": "ranges that have this path",
        **_INSIDE,
        "graph_launches": "CUDA-graph launches inside",
        "cpu_ns": "host durations of the instances, added up",
        "span_ns": "from first to last op, added over instances",
        "busy_ns": "length of the union of the ops' intervals, added over instances and devices",
        "sum_ns": "added durations of the ops",
        "exclusive_sum_ns": "the same without what inner ranges own",
        "followed_sum_ns": "part of sum_ns that threads without a range launched",
        "busy_median_ns": "median of the instances' busy_ns",
        "busy_iqr_ns": "interquartile range of the instances' busy_ns",
        "span_median_ns": "median of the instances' span_ns",
        "span_iqr_ns": "interquartile range of the instances' span_ns",
        "processes": "processes that have instances",
        "devices": "GPUs that ran ops of instances",
        "cpu_median_ns": "median of the instances' cpu_ns",
        "cpu_iqr_ns": "interquartile range of the instances' cpu_ns",
        "unclosed": "instances that the program never closed: they end with the session",
        "span_min_ns": "least of the instances' span_ns",
        "span_max_ns": "most of the instances' span_ns",
        "busy_min_ns": "least of the instances' busy_ns",
        "busy_max_ns": "most of the instances' busy_ns",
    },
)
INSTANCES = table(
    "instances.csv",
    "a row per range instance",
    {
        **_PATH,
        "instance": "how many of its path started before it",
        "pid": "process",
        "tid": "thread that started it",
        **_KIND,
        "start_ns": "start on the host",
        "end_ns": "end on the host",
        "unclosed": "whether the program never closed it: it ends with the session",
        **_INSIDE,
        "first_op_ns": "start of the first op; empty without ops",
        "last_op_ns": "end of the last op; empty without ops",
        "span_ns": "from the first to the last op",
        "busy_ns": "length of the union of the ops' intervals, added over devices",
        "sum_ns": "added durations of the ops",
    },
)
KERNELS = table(
    "kernels.csv",
    "a row per range path and kernel that it owns",
    {
        "path": "path of the range that owns them; empty for what none owns",
        "kernel": "full name of the kernel, or what was done",
        "family": "kind of work, by the kernel rules",
        "math_unit": "unit that a kernel computes on, by the kernel rules",
        "count": "how many ran",
        "sum_ns": "their added durations",
        "median_ns min_ns max_ns": "of their durations",
        "cause": "finer kind of work, by the kernel rules: the family where they say no more",
    },
)
