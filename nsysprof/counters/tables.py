"""The table of hardware counters: its columns are an interface, to be added to and never renamed."""

from __future__ import annotations

from nsysprof.results.table import table

COUNTERS = table(
    "NAME.counters.csv",
    "a row per launch of a kernel, in the order of the launches; empty where the chip cannot count it",
    {
        "range": "path of the range that it belongs to",
        "order": "how many of its range and process were launched before it",
        "pid": "process",
        "kernel": "full name of the kernel",
        "grid block": "blocks, and threads of a block",
        "duration_ns": "time of the kernel, run alone under ncu; `compare` takes times from the report",
        "dram_read_bytes dram_write_bytes l2_bytes": "traffic with DRAM while the kernel ran, and requests to L2;"
        " what it wrote may reach DRAM under a later kernel",
        "tensor_instructions tensor_flops": "what tensor cores executed; a multiply-add is two FLOPs",
        "fp32_flops fp16_flops fp64_flops": "the same on the other units; a packed pair of float16 counts as one,"
        " as the hardware counts it",
        "occupancy_percent dram_percent sm_percent l2_percent": "of the warps an SM can hold, and of what DRAM, SMs"
        " and L2 can do at most",
    },
)
