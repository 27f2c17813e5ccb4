"""How the GPU is, asked of NVIDIA's management library (package nvidia-ml-py) between samples.

A sample counts as throttled when, right after it, the driver names a slowdown that has nothing to do with the work:
too hot, or the power supply asks for it (`THROTTLED`). Clocks held down by the power limit are no such thing: heavy
kernels are always limited by power, and leaving those samples out would leave none.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReasons).
REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
THROTTLED = sum(REASONS)
RULE = (
    "a sample is left out when the driver reports one of "
    + ", ".join(f"{name} (0x{bit:x})" for bit, name in REASONS.items())
    + " right after it; samples at the power cap (0x4) are recorded and kept"
)
_SM, _MEMORY, _GPU_TEMPERATURE = 1, 2, 0


@dataclass(frozen=True)
class GpuWatch:
    """A GPU that can be asked. ``facts`` of it never change; ``read`` gives clocks in MHz, °C, W, and ``throttle``,
    the bits of `REASONS` and others, with the time ``t`` in seconds; None for unknown values.
    """

    facts: Mapping[str, Any]
    read: Callable[[], dict[str, Any]]


def watch_gpu() -> tuple[GpuWatch | None, str | None]:
    """The current GPU of torch, or None and why it cannot be asked."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None, "no package nvidia-ml-py"
    try:
        nvml.nvmlInit()
        handle = _handle(nvml)
    except Exception as error:  # the library is there, but not made for this driver, or not for this GPU
        return None, f"{type(error).__name__}: {error}"
    asked = {
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _MEMORY),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, _GPU_TEMPERATURE),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "throttle": lambda: _reasons(nvml, handle),
    }
    facts = {
        "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, _SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, _MEMORY),
        "memory_bus_width_bits": lambda: nvml.nvmlDeviceGetMemoryBusWidth(handle),
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    }
    known = {name: _answer(ask) for name, ask in asked.items()}
    answering = {name: ask for name, ask in asked.items() if known[name] is not None}
    if not answering:
        return None, "the driver answers no query"

    def read() -> dict[str, Any]:
        return {"t": round(time.time(), 3), **{name: _answer(ask) for name, ask in answering.items()}}

    return GpuWatch({name: _answer(ask) for name, ask in facts.items()}, read), None


def is_throttled(state: Mapping[str, Any] | None) -> bool:
    """Whether a sample in this state is to be left out."""
    return bool(((state or {}).get("throttle") or 0) & THROTTLED)


def _handle(nvml: Any) -> Any:
    """The GPU that torch uses: by its UUID, since the numbers of the two are not the same."""
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is not None:
        try:
            return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{str(uuid).removeprefix('GPU-')}")
        except nvml.NVMLError:
            return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
    if nvml.nvmlDeviceGetCount() != 1:
        raise LookupError("there are several GPUs, and it is unknown which of them torch uses")
    return nvml.nvmlDeviceGetHandleByIndex(0)


def _reasons(nvml: Any, handle: Any) -> int:
    """By its present name, or by the one that drivers before 535 know."""
    for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        ask = getattr(nvml, name, None)
        if ask is None:
            continue
        try:
            return int(ask(handle))
        except nvml.NVMLError:
            continue
    raise LookupError("no clock reasons")


def _answer(ask: Callable[[], Any]) -> Any:
    """A number, or None if the driver does not report it."""
    try:
        value = ask()
    except Exception:  # NVML has an exception for every way not to answer
        return None
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
