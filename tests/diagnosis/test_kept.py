"""Diagnoses of shipped reports and of programs by chance, whose numbers `conftest` keeps."""

import random
from pathlib import Path
from typing import Any

import pytest

from nsysprof.diagnosis import diagnose
from tests.conftest import MakeTrace
from tests.diagnosis import test_kinds as planted
from tests.diagnosis.test_kinds import SCORES, call, copy, diagnosis_of, os, steps
from tests.forecast.test_kept import program as of_all_changes
from tests.kit.gpu_samples import STEP_NS, gpu_samples
from tests.kit.program import MS, US, Program
from tests.kit.reports import BLOCK, TRACES, TWO
from tests.kit.trace import Items, Kernel
from tests.steps.test_kept import SLOW
from tests.steps.test_steps import program
from tests.summaries.test_kept import of_pytorch
from tests.waits.test_kept import MADE

ITEM = TRACES.parent / "docs/gallery/item.sqlite"
CHANCE = {"waits": (22,), "many": (206,), "simulated": (4,), "set-up": (1,), "report": (4,)}
ACTS = (
    *(planted.code, planted.allocations, planted.waited_copy, planted.small_copies, planted.read_back),
    *(planted.fed(), planted.fed(2 * MS, 100 * US), planted.launching(25), planted.recorder(MS), planted.memset(MS)),
    *(planted.late_kernels(30 * US), planted.collective(beside=False), planted.beside(1), planted.optimizer(30)),
    *(os(name, MS) for name in ("nanosleep", "poll", "write", "sem_wait", "futex", "MPI_Send", "mmap")),
    *(call(name, MS) for name in ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cuModuleLoadData", "cudaGraphLaunch")),
    *(copy(1, host=0, blocks=True), copy(2, host=0, blocks=True), copy(1, host=1), copy(8, host=1)),
)
KERNELS = (
    *(planted.PRODUCT, planted.SOFTMAX, planted.NORM, planted.TO_NHWC, planted.CAST, planted.SCALE, planted.ADD),
    *(planted.GELU, planted.FILL, planted.MEAN, "ampere_sgemm_128x64_tn", "sm80_xmma_gemm_f64f64_f64f64_f64_nn"),
    *("cutlass_80_tensorop_f16_s16816gemm_f16_128x128_nn_align1", "stencil", "heavy"),
)


@pytest.mark.parametrize("path", [BLOCK, TWO, ITEM], ids=lambda path: path.stem)
def test_shipped_reports(path: Path) -> None:
    """Of their steps."""
    assert diagnosis_of(path).times


@pytest.mark.parametrize("case", [f"{kind} {seed}" for kind, seeds in CHANCE.items() for seed in seeds])
def test_programs_by_chance(trace: MakeTrace, case: str) -> None:
    """Of all their ranges, and of the whole recording."""
    kind, _, seed = case.rpartition(" ")
    path = trace(*MADE[kind](int(seed)))
    assert [diagnosis_of(path, select).times for select in ("*", None)]


@pytest.mark.parametrize("seed", [2, 5, 6])
def test_traces_of_pytorch(tmp_path: Path, seed: int) -> None:
    """Forward and backward, memory, copies and collectives."""
    assert diagnosis_of(of_pytorch(tmp_path, seed)).times


@pytest.mark.parametrize("most", [diagnose.MAX_OPS, 0])
def test_slow_steps_and_stretches(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Whole programs, and stretches of them as of recordings that are too large."""
    monkeypatch.setattr(diagnose, "MAX_OPS", most)
    for items in (program(SLOW).items, of_all_changes()):
        assert diagnosis_of(trace(*items)).times


@pytest.mark.parametrize("seed", range(5))
def test_programs_with_many_faults(trace: MakeTrace, seed: int) -> None:
    """Some faults in each step, some in a few, and kernels of all shapes."""
    rng = random.Random(seed)
    often, seldom = rng.sample(ACTS, 4), rng.sample(ACTS, 3)
    shapes: dict[str, dict[str, Any]] = {
        name: {
            "block": (rng.choice([32, 64, 128, 256, 512]), rng.choice([1, 1, 2]), 1),
            "blocks": rng.choice([1, 12, 100, 128, 132, 140, 264, 310, 4096]),
            "shared": (0, rng.choice([0, 0, 8, 50, 100, 120]) << 10),
            "registers": rng.choice([32, 32, 64, 128, 168, 255]),
            "local": rng.choice([0, 0, 0, 64, 4096]),
        }
        for name in rng.sample(KERNELS, 7)
    }
    lengths = {name: rng.randint(5 * US, SCORES) for name in shapes}

    def act(program: Program) -> None:
        for each in (*often, *(each for each in seldom if rng.random() < 0.2)):
            each(program)
        for name, shape in shapes.items():
            program.launch(name, lengths[name], **shape)

    items: list[Items] = [*steps(act).items]
    if seed % 2:  # sampled
        length = max(item.end for item in items if isinstance(item, Kernel)) // STEP_NS + 5
        metrics = ("sm_active", "sm_issue", "tensor_active", "dram_read", "dram_write")
        items.append(
            gpu_samples(
                {name: [rng.randint(9 * at, 9 * at + 40) for _ in range(length)] for at, name in enumerate(metrics)}
            )
        )
    assert diagnosis_of(trace(*items)).times


@pytest.mark.parametrize("seed", range(5))
def test_one_pass_with_faults(trace: MakeTrace, seed: int) -> None:
    """Without steps, from the first call on; some kernels run before or behind all faults."""
    rng, made = random.Random(seed), Program()
    made.free[7] = 0
    for each in rng.sample(ACTS, 5):
        each(made)
        made.layers(rng.choice([0, 3, 9]))
    made.launch(*rng.choice([("gemm", 9 * MS), ("add", MS), ("gemm", US)]))
    assert diagnosis_of(trace(*made.items)).times
