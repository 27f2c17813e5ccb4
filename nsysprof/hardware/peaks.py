"""Peaks of GPUs, and measured rates as a share of the peak.

The peak is computed for the clock of the samples: SMs × clock × FLOPs per clock and SM. FLOPs per clock depend on the
architecture. Peaks are for dense products (no structured sparsity) that accumulate float16 and bfloat16 in float32, as
attention kernels do; a multiply-add counts as two FLOPs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError

# FLOPs per clock and SM by compute capability. float32 and float64 on CUDA cores: CUDA C++ Programming Guide, table
# "Throughput of Native Arithmetic Instructions", two per multiply-add. Tensor cores: the architecture whitepapers
# (V100, Turing, A100, GA102, Ada, H100, Blackwell), which state multiply-adds per tensor core or peaks at the boost
# clock; a test compares the table with the peaks of 18 datasheets.
_PER_CLOCK: dict[str, dict[str, int]] = {
    "7.0": {"fp64": 64, "fp32": 128, "fp16": 1024},
    "7.5": {"fp64": 4, "fp32": 128, "fp16": 1024},
    "8.0": {"fp64": 128, "fp32": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048},
    "8.6": {"fp64": 4, "fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024},
    "8.7": {"fp64": 4, "fp32": 256, "tf32": 1024, "fp16": 2048, "bf16": 2048},
    "8.9": {"fp64": 4, "fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024},
    "9.0": {"fp64": 256, "fp32": 256, "tf32": 2048, "fp16": 4096, "bf16": 4096},
    "10.0": {"fp64": 128, "fp32": 256, "tf32": 4096, "fp16": 8192, "bf16": 8192},
    "12.0": {"fp64": 4, "fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024},
}
# Boards with other units than their compute capability has (NVIDIA's datasheets).
_CUT = {re.compile(r"\bH20\b"): {"fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024}}
# GeForce boards of these accumulate in float32 at half the rate of the professional boards with the same chip.
_HALVED = {"7.5", "8.6", "8.9", "12.0"}
_TENSOR = {"tf32", "fp16", "bf16"}
# The small Turing chips (TU116, TU117) have none, although they state the compute capability of those that have.
_WITHOUT_TENSOR_CORES = re.compile(r"\b(GTX 16\d\d|MX450|MX550|T(400|500|550|600|1000|1200|2000))\b")


@dataclass(frozen=True)
class GpuLimits:
    """The limits of a GPU; None if unknown.

    ``measured_flops`` (FLOP/s by dtype) and ``measured_bytes_per_s`` were reached by a large matrix product and a
    large copy on this machine.
    """

    name: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    bytes_per_s: float | None = None
    measured_bytes_per_s: float | None = None
    measured_flops: Mapping[str, float] | None = None
    max_sm_clock_mhz: float | None = None

    def datasheet_flops(self, dtype: str, sm_clock_mhz: float | None) -> float | None:
        """Return the peak FLOP/s at a clock (None: the highest); None if unknown, or if the GPU lacks the dtype."""
        clock = sm_clock_mhz or self.max_sm_clock_mhz
        if not (clock and self.sm_count and self.compute_capability):
            return None
        try:
            return peak_flops(self.compute_capability, self.sm_count, clock * 1e6, dtype, name=self.name)
        except NsysprofError:
            return None

    def measured_peak(self, dtype: str) -> float | None:
        """Return the FLOP/s that a large product with this dtype reached, or None."""
        return (self.measured_flops or {}).get(dtype)


def flops_per_clock(compute_capability: str, dtype: str, *, name: str | None = None) -> int:
    """Return dense FLOPs per clock and SM, on tensor cores for tf32, fp16 and bf16; ``name`` identifies GeForce boards.

    Raises `NsysprofError` for an architecture missing from the table, and for a dtype without a unit.
    """
    cut = (row for board, row in _CUT.items() if board.search(name or ""))
    row = next(cut, _PER_CLOCK.get(compute_capability))
    if row is None:
        raise NsysprofError(
            f"no peak is known for compute capability {compute_capability}", "known are: " + ", ".join(_PER_CLOCK)
        )
    if dtype not in row:
        raise NsysprofError(
            f"{name or f'compute capability {compute_capability}'} has no known rate for {dtype}",
            "known are: " + ", ".join(row),
        )
    if dtype in _TENSOR and compute_capability == "7.5" and _WITHOUT_TENSOR_CORES.search(name or ""):
        raise NsysprofError(f"{name} has no tensor cores", "CUDA cores have: fp32, fp64")
    halved = dtype in _TENSOR and compute_capability in _HALVED and "geforce" in (name or "").lower()
    return row[dtype] // (2 if halved else 1)


def peak_flops(
    compute_capability: str, sm_count: int, clock_hz: float, dtype: str, *, name: str | None = None
) -> float:
    """SMs × clock × `flops_per_clock` in FLOP/s; raises as `flops_per_clock` does."""
    return sm_count * clock_hz * flops_per_clock(compute_capability, dtype, name=name)


def memory_bandwidth(memory_clock_mhz: float, bus_width_bits: int) -> float:
    """Return the bandwidth (bytes/s) of memory that moves two bits per pin and clock, at the clock reported by the
    device.
    """
    return 2 * memory_clock_mhz * 1e6 * bus_width_bits / 8


def share_of_peak(achieved: float, peak: float, *, what: str, suspects: Sequence[str]) -> float:
    """Return ``achieved`` as a share of ``peak``, both in the same unit.

    A share above 100 % is impossible: raises `NsysprofError` with ``what`` and the inputs that may be wrong.
    """
    share = achieved / peak
    if share > 1:
        raise NsysprofError(
            f"{what}: {format_share(share)} of the peak is impossible; the likely error is in {' or '.join(suspects)}",
            "% of peak is not shown: check these values and the peak",
        )
    return share


# Boards whose clock and bandwidth PyTorch's profiler does not record: highest SM clock in MHz, GB/s, by datasheets.
_BOARDS = {
    r"H200": (1980, 4800),
    r"H20$": (1980, 4000),
    r"GH200|H100 NVL": (1980, 4000),
    r"H100 PCIe": (1755, 2000),
    r"H100|H800": (1980, 3350),
    r"A100.*80GB|A800": (1410, 2039),
    r"A100": (1410, 1555),
    r"B200|GB200": (1965, 8000),
    r"V100": (1530, 900),
    r"T4": (1590, 320),
    r"A10G?$": (1710, 600),
    r"A40|RTX A6000": (1800, 768),
    r"L40S?": (2520, 864),
    r"L4$": (2040, 300),
    r"RTX 3090": (1860, 936),
    r"RTX 4090": (2520, 1008),
    r"RTX 5090": (2580, 1792),
}


def limits_of(
    name: str, capability: tuple[int, int] | None, sms: int | None, bytes_per_s: float | None, clock_hz: float | None
) -> GpuLimits:
    """Return the limits of a GPU from a recording; missing values come from the data sheet if the board is known."""
    board = next((each for pattern, each in _BOARDS.items() if re.search(pattern, name)), (None, None))
    mhz, gigabytes = clock_hz / 1e6 if clock_hz else board[0], board[1]
    return GpuLimits(
        name=name,
        compute_capability=".".join(map(str, capability)) if capability else None,
        sm_count=sms,
        bytes_per_s=bytes_per_s or (gigabytes * 1e9 if gigabytes else None),
        max_sm_clock_mhz=mhz,
    )


# The links of a GPU, in each direction. PCIe: GT/s per lane × 128/130, of the generation that an architecture has,
# 16 lanes but for the small boards below. NVLink and NVLink-C2C: half of what the datasheets of V100, A100, H100, H200
# and B200 (SXM, NVL), GH200 and GB200 state for both directions.
_GIGATRANSFERS = {"6": 8, "7": 8, "8": 16, "9": 32, "10": 32, "12": 32}
_EIGHT_LANES = re.compile(r"RTX (?:3050|4060|5060)|RTX 2000 Ada|\bA2\b")
_UNKNOWN_LANES = re.compile(r"laptop|max-q|mobile|orin|thor|xavier|gb10", re.IGNORECASE)
_TO_HOST = {r"GH200|GB200|GB300": 450e9}
_TO_GPUS = {
    r"V100-SXM": 150e9,
    r"A100-SXM|A800-SXM": 300e9,
    r"H100 80GB HBM3|H100 SXM|H200|GH200": 450e9,
    r"B200|B300|GB200|GB300": 900e9,
}


def link_bytes_per_s(name: str, compute_capability: tuple[int, int] | None, *, to_gpus: bool = False) -> float:
    """Return the one-way bandwidth of a GPU's link to the host, or to other GPUs; NaN if unknown.

    The bandwidth is the maximum of the board; a slot with fewer lanes or of an older generation is slower.
    """
    for pattern, speed in (_TO_GPUS if to_gpus else _TO_HOST).items():
        if re.search(pattern, name):
            return speed
    if to_gpus or compute_capability is None or _UNKNOWN_LANES.search(name):
        return math.nan
    lanes = 8 if _EIGHT_LANES.search(name) else 16
    return _GIGATRANSFERS.get(str(compute_capability[0]), math.nan) * lanes / 8 * 128 / 130 * 1e9
