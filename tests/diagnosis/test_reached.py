"""What kernels reach of the peaks of their GPU."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.diagnosis.busy import busy_kernels
from nsysprof.diagnosis.case import Case
from nsysprof.diagnosis.diagnose import case_of
from nsysprof.diagnosis.reached import (
    COMPUTE,
    COUNTERS,
    MEMORY,
    METRICS,
    SHAPES,
    Reached,
    Roofs,
    Sources,
    roofs_of,
    shares_of,
)
from nsysprof.diagnosis.reached import _checked as checked
from nsysprof.diagnosis.reached import _rate as rate
from nsysprof.diagnosis.reached import _unit as unit_of
from nsysprof.formats.counters import read_counters
from nsysprof.hardware.peaks import GpuLimits
from nsysprof.kernels.classify import kinds_of
from nsysprof.trace import about
from tests.conftest import MakeTrace
from tests.diagnosis.test_kept import many_faults
from tests.kit.counters import Counted, write_counters
from tests.kit.kept import hold
from tests.kit.program import MS, Program
from tests.kit.reports import attributed
from tests.kit.trace import CudaDevice, Gpu, Item
from tests.summaries.test_kept import of_pytorch

PEAK, BANDWIDTH = 132 * 1980e6, 4_814_304_000_000  # of an H200: FLOP/s per FLOP in a clock, bytes per s


def steps(name: str, *items: Item, device: int = 0) -> list[Item]:
    """Steps of a kernel of 2 ms."""
    program = Program()
    for _ in range(8):
        with program.range("step"):
            program.launch(name, 2 * MS, device=device)
            program.wait()
    return [*program.items, *items]


def case(path: Path, select: str | None = "step") -> Case:
    """What is to be diagnosed of a report."""
    attribution = attributed(path)
    return case_of(attribution, select, kinds_of(attribution.trace), None)


@pytest.mark.parametrize(
    ("counted", "unit", "compute"),
    [
        ({"tensor_flops": 0.5 * PEAK * 4096}, "FP16 on tensor cores", 0.5),
        ({"tensor_flops": 0, "fp32_flops": 0.75 * PEAK * 256}, "FP32 on CUDA cores", 0.75),
        ({"tensor_flops": 0, "fp64_flops": 0.5 * PEAK * 256}, "FP64", 0.5),
        ({"tensor_flops": 0.1 * PEAK * 4096, "fp32_flops": 0.5 * PEAK * 256}, "FP32 on CUDA cores", 0.5),
        ({"tensor_flops": 0}, "", None),
    ],
)
def test_counters_name_the_unit_that_computes_most(
    trace: MakeTrace, tmp_path: Path, counted: dict[str, float], unit: str, compute: float | None
) -> None:
    """As a part of its own peak; FLOPs of tensor cores of unknown type as a part of that of half precision."""
    some = case(trace(*steps("mystery")))
    place = some.places[0]
    busy = busy_kernels(some, place)
    moved = round(0.25 * BANDWIDTH * 2e-3 / 2)
    more: dict[str, Any] = {name: round(rate * 2e-3) for name, rate in counted.items()}
    file = write_counters(tmp_path / "c.csv", [Counted("", "mystery", moved, moved, "264x1x1", more=more)])
    first, *_ = Sources(busy, roofs_of(some, place), [busy.op], read_counters(file)).of(0)
    assert (first.basis, first.unit, first.suspect) == ("counters", unit, "")
    assert first.shares.get(COMPUTE) == (None if compute is None else pytest.approx(compute, rel=1e-3))
    assert first.shares[MEMORY] == pytest.approx(0.25, rel=1e-3)


def test_more_than_a_peak_is_refused(trace: MakeTrace, tmp_path: Path) -> None:
    """With what is suspect."""
    some = case(trace(*steps("k")))
    busy = busy_kernels(some, some.places[0])
    file = write_counters(tmp_path / "c.csv", [Counted("", "k", round(BANDWIDTH * 2e-3), 0, "264x1x1")])
    sources = Sources(busy, roofs_of(some, some.places[0]), [busy.op], read_counters(file))
    assert next(sources.of(0)).shares[MEMORY] == pytest.approx(1, abs=1e-6)
    file = write_counters(tmp_path / "c.csv", [Counted("", "k", round(1.2 * BANDWIDTH * 2e-3), 0, "264x1x1")])
    refused: Reached = next(Sources(busy, roofs_of(some, some.places[0]), [busy.op], read_counters(file)).of(0))
    assert refused.shares == {}
    assert (
        refused.suspect == "120 % of the memory peak is impossible; suspect: counters of other work with the same name"
    )


@pytest.mark.parametrize(
    ("gpus", "device", "at_place", "without"),
    [
        ([Gpu(0)], 0, "NVIDIA H200", "NVIDIA H200"),
        ([Gpu(0, "NVIDIA A100"), Gpu(1)], 1, "NVIDIA H200", None),
        ([Gpu(0), Gpu(1)], 1, "NVIDIA H200", "NVIDIA H200"),
    ],
)
def test_roofs_are_those_of_the_gpu_or_of_the_only_kind(
    trace: MakeTrace, gpus: list[Item], device: int, at_place: str, without: str | None
) -> None:
    """A place has its GPU; without one there is an answer only if all GPUs are alike."""
    devices: list[Item] = [CudaDevice(at, at) for at in range(len(gpus))]
    some = case(trace(*steps("k", *gpus, *devices, device=device)))
    here, anywhere = roofs_of(some, some.places[0]).gpu, roofs_of(some, None).gpu
    assert here is not None
    assert here.name == at_place
    assert (anywhere.name if anywhere else None) == without


def test_units_rates_and_limits_are_as_they_were() -> None:
    """The unit of each kind of kernel, what is known of some kernels, and shares at and above a peak."""
    types, kinds = ("", "fp32", "fp64", "fp16"), ("FP32 FMA", "tensor core", "")
    units = [unit_of(*each) for each in product(types, kinds, ("gemm", "attention", "conv", ""))]
    some = [np.array(each) for each in ([1.0, np.nan, 3.0], [np.nan, np.nan, 5.0], [np.nan] * 3, [0.0, 7.0, np.nan])]
    rates = [rate(each, np.array(length)) for each in some for length in ([1, 1, 1], [1, 2, 3], [0, 0, 0], [9, 1, 1])]
    measured = GpuLimits(measured_bytes_per_s=5.0, measured_flops={"fp16": 7.0}, bytes_per_s=9.0)
    roofs = [
        Roofs(*each) for each in product((None, about.Gpu(0, "a", l2_bytes=50)), (measured, GpuLimits()), (True, False))
    ]
    shares = [dict(zip((COMPUTE, MEMORY), each, strict=True)) for each in product((np.nan, 0.4, 1.0, 1.25), repeat=2)]
    found = [Reached(basis, share) for basis in (COUNTERS, SHAPES, METRICS) for share in shares]
    every = [checked(each, moved, roof) for each in found for moved in (49.0, 50.0, 51.0) for roof in roofs]
    reachable = [[roof.reachable(kind) for kind in (COMPUTE, MEMORY)] for roof in roofs]
    peaks = [[roof.bytes_per_s, *(roof.flops(each) for each in types)] for roof in roofs]
    words = [[each.shares, each.suspect.replace(" ", "_")] for each in every]
    named = [text.replace(" ", "_") for each in units for text in each]
    hold(__file__, "peaks", {"units": named, "rates": rates, "checked": words, "roofs": [reachable, peaks]})


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_peaks_are_as_they_were(trace: MakeTrace, tmp_path: Path, seed: int) -> None:
    """By counters, shapes and GPU metrics: of kernels of many names, sampled or not."""
    path = trace(Gpu(0), CudaDevice(0, 0), *many_faults(seed)) if seed else of_pytorch(tmp_path, 2)
    some, out = case(path, "step*" if seed else None), list[Any]()
    for place in some.places:
        busy, roofs = busy_kernels(some, place), roofs_of(some, place)
        names = np.unique(busy.name).tolist()
        counted = [
            Counted("", some.facts.attribution.trace.op_names[code], 90 * code, 10**7, "264x1x1" if seed % 2 else "")
            for code in names
        ]
        file = read_counters(write_counters(tmp_path / "c.csv", counted[1:] or counted))
        rows = [np.flatnonzero(busy.name == code) for code in names]
        sources = [Sources(busy, roofs, rows, counters) for counters in (None, file)]
        out.append([[[*source.of(at)] for at in range(len(rows))] for source in sources])
        out.append([shares_of(busy, each) for each in rows])
    hold(__file__, f"reached {seed}", out)
