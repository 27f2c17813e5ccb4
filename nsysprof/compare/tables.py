"""The table of a comparison: its columns are an interface, to be added to and never renamed."""

from __future__ import annotations

from nsysprof.compare.measured import COLUMNS
from nsysprof.results.table import table

GAPS = table(
    "gap.csv",
    "a row per pair and cause; all but the shares add up to the difference of the pair",
    {
        "pair": "what the two ranges are called",
        "cause": "kind of work, by the kernel rules, or how the GPU waits",
        "base_launches base_kernels": "host calls that caused it, and kernels, per call of the base side",
        "base_ns": "time per call of the base side",
        "new_launches new_kernels": "the same of the new side",
        "new_ns": "time per call of the new side",
        "delta_ns": "new_ns - base_ns",
        "share": "part of the pair's difference; empty where causes cancel",
        "evidence": "the names of kernels that took most of the time",
    },
)
_MEASURED = {
    "dram_bytes dram_read_bytes dram_write_bytes l2_bytes": "traffic of a call, by hardware counters",
    "tensor_instructions tensor_flops fp32_flops fp16_flops fp64_flops": "what a call computes, by hardware counters",
    "dram_bytes_per_s dram_share": "dram_bytes over the time of the kernels, and its share of the GPU's bandwidth",
    "expected_bytes": "what the model of the operation moves at least",
}
MEASURED = table(
    "gap.csv",
    "further columns where there are hardware counters",
    {
        f"{side}_{name}": f"{about}: {side} side"
        for side in ("base", "new")
        for names, about in _MEASURED.items()
        for name in names.split()
    },
)
assert MEASURED.names == [f"{side}_{name}" for side in ("base", "new") for name in COLUMNS]
