"""The tables of `nsysprof why`: their columns are an interface, to be added to and never renamed."""

from __future__ import annotations

from nsysprof.results.table import Column, table

WHY = table(
    "why.csv",
    "a row per range path, GPU, cause and culprit; the rows of a path on a GPU add up to its windows",
    {
        "path": "merged path of the ranges whose GPU windows are accounted for",
        "gpu": Column("gpu", "number of the GPU in the report", cell=str, align="r"),
        "pid": Column("pid", "process", cell=str, align="r"),
        "cause": "compute, or what the GPU waited for: communication, copy, kernel, host, latency, profiler, unknown",
        "activity": "what the host did: launch calls, synchronizing calls, other CUDA calls, OS calls, code; of compute"
        " the family of the kernel; of a collective whose other ranks are recorded: late peer, transfer",
        "culprit": "who is to blame: a call or code of a range, a copy, a collective, a kernel",
        "range": "innermost range in which that was called or launched",
        "exposed_by": "the call that had let the GPU run dry",
        "meanwhile": "what ran on the GPU: nothing, copies, communication, compute",
        "claim": "dependency: an edge in the trace says so; order: inferred from times; abstain: nobody knows",
        "waits": "stretches of time; of compute how many kernels",
        "waited_ns": "their time in all windows",
        "per_instance_ns": "the same per window, or with --per per call",
        "share_of_span": Column("share_of_span", "part of the windows' time", head="share"),
        "ceiling_ns": "what a window can get shorter by at most if the culprit goes; empty where nobody knows",
        "hint": "what usually helps",
    },
)
