"""Peaks: the table of architectures against datasheets, and shares that cannot be."""

import math

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.hardware.peaks import (
    GpuLimits,
    flops_per_clock,
    link_bytes_per_s,
    memory_bandwidth,
    peak_flops,
    share_of_peak,
)

# Datasheet or whitepaper: name, compute capability, SMs, boost clock (MHz), dtype, TFLOP/s without sparsity and
# accumulated in float32.
DATASHEETS = [
    ("Tesla V100-SXM2-16GB", "7.0", 80, 1530, "fp16", 125),
    ("Tesla V100-SXM2-16GB", "7.0", 80, 1530, "fp32", 15.7),
    ("Tesla T4", "7.5", 40, 1590, "fp16", 65),
    ("NVIDIA GeForce RTX 2080 Ti", "7.5", 68, 1545, "fp16", 53.8),
    ("NVIDIA A100-SXM4-80GB", "8.0", 108, 1410, "bf16", 312),
    ("NVIDIA A100-SXM4-80GB", "8.0", 108, 1410, "tf32", 156),
    ("NVIDIA A100-SXM4-80GB", "8.0", 108, 1410, "fp32", 19.5),
    ("NVIDIA GeForce RTX 3090", "8.6", 82, 1695, "fp16", 71.2),
    ("NVIDIA A40", "8.6", 84, 1740, "fp16", 149.7),
    ("NVIDIA GeForce RTX 4090", "8.9", 128, 2520, "fp16", 165.2),
    ("NVIDIA GeForce RTX 4090", "8.9", 128, 2520, "fp32", 82.6),
    ("NVIDIA GeForce RTX 4060 Ti", "8.9", 34, 2535, "fp32", 22.06),
    ("NVIDIA L4", "8.9", 58, 2040, "fp16", 121),
    ("NVIDIA L40S", "8.9", 142, 2520, "fp16", 362),
    ("NVIDIA H200", "9.0", 132, 1830, "fp16", 989.4),
    ("NVIDIA H200", "9.0", 132, 1980, "fp32", 67),
    ("NVIDIA H200", "9.0", 132, 1980, "fp64", 67),
    ("NVIDIA H20", "9.0", 78, 1830, "fp16", 148),
    ("NVIDIA H20", "9.0", 78, 1830, "tf32", 74),
    ("NVIDIA B200", "10.0", 148, 1850, "bf16", 2250),
    ("NVIDIA GeForce RTX 5090", "12.0", 170, 2407, "fp16", 209.5),
]
ALL_OF_IT = "the clock"


@pytest.mark.parametrize(("name", "capability", "sms", "mhz", "dtype", "tflops"), DATASHEETS)
def test_the_table_gives_the_peaks_of_the_datasheets(
    name: str, capability: str, sms: int, mhz: int, dtype: str, tflops: float
) -> None:
    """Within 2 %, which is how datasheets round clocks."""
    peak = peak_flops(capability, sms, mhz * 1e6, dtype, name=name)
    assert peak / 1e12 == pytest.approx(tflops, rel=0.02)


def test_a_geforce_board_has_half_the_rate_of_its_chip() -> None:
    """Only on tensor cores, and only where NVIDIA halves it."""
    board, other = "NVIDIA GeForce RTX 4060 Ti", "NVIDIA L4"
    assert 2 * flops_per_clock("8.9", "fp16", name=board) == flops_per_clock("8.9", "fp16", name=other)
    assert flops_per_clock("8.9", "fp32", name=board) == flops_per_clock("8.9", "fp32", name=other)


def test_what_the_table_lacks_is_named() -> None:
    """An unknown architecture and a missing unit, each with what there is."""
    with pytest.raises(NsysprofError, match=r"compute capability 6\.1") as unknown:
        flops_per_clock("6.1", "fp16")
    assert "9.0" in str(unknown.value.hint)
    for name in ("NVIDIA T1000", "NVIDIA GeForce GTX 1650 with Max-Q Design", "NVIDIA GeForce MX450"):
        assert flops_per_clock("7.5", "fp32", name=name) == 128
        with pytest.raises(NsysprofError, match="no tensor cores"):
            flops_per_clock("7.5", "fp16", name=name)
    with pytest.raises(NsysprofError, match=r"compute capability 7\.0 has no known rate for bf16") as missing:
        flops_per_clock("7.0", "bf16")
    assert "fp16" in str(missing.value.hint)


def test_a_peak_needs_all_its_parts() -> None:
    """Without clock, SMs or a table entry there is no peak, and no guess."""
    known = GpuLimits("NVIDIA H200", "9.0", 132, max_sm_clock_mhz=1980)
    assert known.datasheet_flops("fp16", 1830) == 132 * 1830e6 * 4096
    assert known.datasheet_flops("fp16", None) == 132 * 1980e6 * 4096
    assert GpuLimits("NVIDIA H200", "9.0", 132).datasheet_flops("fp16", None) is None
    assert GpuLimits("NVIDIA H200", "9.0").datasheet_flops("fp16", 1830) is None
    assert GpuLimits("P40", "6.1", 30).datasheet_flops("fp16", 1500) is None
    assert GpuLimits(measured_flops={"fp16": 7e14}).measured_peak("fp16") == 7e14
    assert GpuLimits().measured_peak("fp16") is None


@pytest.mark.parametrize(
    ("mhz", "bits", "bytes_per_s"), [(3201, 6144, 4.9e12), (1593, 5120, 2.039e12), (9001, 128, 288e9)]
)
def test_bandwidth_from_clock_and_bus(mhz: float, bits: int, bytes_per_s: float) -> None:
    """H200, A100 80 GB and RTX 4060 Ti come out as their datasheets say."""
    assert memory_bandwidth(mhz, bits) == pytest.approx(bytes_per_s, rel=0.025)


def test_a_share_above_all_is_refused_with_its_suspects() -> None:
    """The published 183 % is no result: a peak of 19 TFLOP/s for what reached 34.7 is wrong."""
    assert share_of_peak(34.7e12, 44e12, what="flash", suspects=[ALL_OF_IT]) == pytest.approx(0.789, abs=1e-3)
    with pytest.raises(NsysprofError) as refused:
        share_of_peak(34.7e12, 19e12, what="flash at S=4096", suspects=["the clock", "the dtype"])
    assert refused.value.message == (
        "flash at S=4096: 183 % of the peak is impossible; the likely error is in the clock or the dtype"
    )


@pytest.mark.parametrize(
    ("name", "capability", "gigabytes"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), 15.75),
        ("Tesla T4", (7, 5), 15.75),
        ("NVIDIA A100-SXM4-40GB", (8, 0), 31.5),
        ("NVIDIA GeForce RTX 4090", (8, 9), 31.5),
        ("NVIDIA GeForce RTX 4060 Ti", (8, 9), 15.75),
        ("NVIDIA H100 80GB HBM3", (9, 0), 63.0),
        ("NVIDIA GH200 480GB", (9, 0), 450),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", (8, 6), None),
        ("NVIDIA GeForce GTX 660", (3, 0), None),
        ("some GPU", None, None),
    ],
)
def test_links_to_the_host(name: str, capability: tuple[int, int] | None, gigabytes: float | None) -> None:
    """As datasheets have them, in one direction; nothing where board or architecture do not say."""
    speed = link_bytes_per_s(name, capability)
    assert (None if math.isnan(speed) else speed / 1e9) == (gigabytes and pytest.approx(gigabytes, rel=2e-3))


def test_links_to_other_gpus() -> None:
    """NVLink where the name says so; PCIe cards may have a bridge or none."""
    assert link_bytes_per_s("NVIDIA A100-SXM4-80GB", (8, 0), to_gpus=True) == 300e9
    assert link_bytes_per_s("NVIDIA H200", (9, 0), to_gpus=True) == 450e9
    assert math.isnan(link_bytes_per_s("NVIDIA A100-PCIE-40GB", (8, 0), to_gpus=True))
