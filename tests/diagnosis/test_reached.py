"""What kernels reach of the peaks of their GPU."""

from pathlib import Path
from typing import Any

import pytest

from nsysprof.diagnosis.busy import busy_kernels
from nsysprof.diagnosis.case import Case
from nsysprof.diagnosis.diagnose import case_of
from nsysprof.diagnosis.reached import COMPUTE, MEMORY, Reached, Sources, roofs_of
from nsysprof.formats.counters import read_counters
from nsysprof.kernels.classify import kinds_of
from tests.conftest import MakeTrace
from tests.kit.counters import Counted, write_counters
from tests.kit.program import MS, Program
from tests.kit.reports import attributed
from tests.kit.trace import CudaDevice, Gpu, Item

PEAK, BANDWIDTH = 132 * 1980e6, 4_814_304_000_000  # of an H200: FLOP/s per FLOP in a clock, bytes per s


def steps(name: str, *items: Item, device: int = 0) -> list[Item]:
    """Steps of a kernel of 2 ms."""
    program = Program()
    for _ in range(8):
        with program.range("step"):
            program.launch(name, 2 * MS, device=device)
            program.wait()
    return [*program.items, *items]


def case(path: Path) -> Case:
    """What is to be diagnosed of a report."""
    attribution = attributed(path)
    return case_of(attribution, "step", kinds_of(attribution.trace), None)


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
    assert refused.suspect == "120 % of the memory peak is impossible; suspect: counters of other work under its name"


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
