"""What the device reaches at best: a large copy for the bandwidth of its memory, large products for its FLOP/s."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from _refusal import is_out_of_memory, sentence

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
# Bytes of a copy, and widths of square products: far beyond the caches of the device, and still short enough.
_COPY_BYTES = {"cuda": (1 << 30, 4 << 30), "cpu": (256 << 20,)}
_WIDTHS = {"cuda": (8192, 16384), "cpu": (256, 512)}
_WARM_UP, _TIMES = 3, 11


def peaks(device: str) -> dict[str, Any]:
    """``bandwidth_bytes_per_s``, read and written bytes of a copy, and ``flops``, FLOP/s by dtype, both of medians.

    The fastest of several sizes each; fp32 without TF32. What there is no memory for is missing, as ``reasons`` says.
    """
    reasons: dict[str, str] = {}

    def best(name: str, *tried: Callable[[], float]) -> float | None:
        found = []
        for attempt in tried:
            try:
                found.append(attempt())
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) and "not implemented" not in str(error):
                    raise
                reasons[name] = sentence(str(error))
        if found:
            reasons.pop(name, None)
        return max(found, default=None)

    bandwidth = best("copy", *(partial(_bandwidth, device, size) for size in _COPY_BYTES[device]))
    flops = {
        name: best(name, *(partial(_flops, device, width, dtype) for width in _WIDTHS[device]))
        for name, dtype in _DTYPES.items()
    }
    return {
        "bandwidth_bytes_per_s": bandwidth,
        "flops": {name: value for name, value in flops.items() if value is not None},
        "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "copy_bytes": list(_COPY_BYTES[device]),
        "widths": list(_WIDTHS[device]),
        "reasons": reasons,
    }


def describe_peaks(found: Mapping[str, Any]) -> str:
    """One line for people."""
    bandwidth = found["bandwidth_bytes_per_s"]
    parts = [f"copy {bandwidth / 1e9:,.0f} GB/s"] if bandwidth else []
    parts += [f"{name} {value / 1e12:,.3g} TFLOP/s" for name, value in found["flops"].items()]
    return "peaks: " + ", ".join([*parts, *(f"no {name}: {why}" for name, why in found["reasons"].items())])


def _bandwidth(device: str, size: int) -> float:
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device)


def _flops(device: str, width: int, dtype: torch.dtype) -> float:
    # Random numbers: zeros need less power, and reach clocks that no real product does.
    left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * width**3 / _seconds(lambda: torch.matmul(left, right, out=out), device)


def _seconds(call: Callable[[], object], device: str) -> float:
    """The median of some calls, back to back, each timed by itself."""
    for _ in range(_WARM_UP):
        call()
    if device == "cpu":
        return statistics.median(_one_on_cpu(call) for _ in range(_TIMES))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(_TIMES)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(start.elapsed_time(end)) / 1e3 for start, end in events)


def _one_on_cpu(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
