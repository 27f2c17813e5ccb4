"""Numbers of all summaries: of reports by chance with memory, faults, samples and calls, and of traces of PyTorch."""

import random
from pathlib import Path

import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.trace.trace import KERNEL
from tests.conftest import MakeTrace
from tests.kit.gpu_samples import STEP_NS, gpu_samples
from tests.kit.kept import hold
from tests.kit.kineto import collective, write_trace
from tests.kit.mutations import some_trace
from tests.kit.random_reports import random_report
from tests.kit.reports import attributed
from tests.kit.trace import Items, Launch, MpiCall, OsCall, Range, launch_kernel
from tests.summaries.test_order import at_once


def sampled() -> list[Items]:
    """Steps of kernels of several lengths under samples of a GPU whose clock falls, and calls of all kinds."""
    items: list[Items] = []
    for step in range(12):
        at = 1_000_000 * step
        items += [Range(f"step{step}", at, at + 900_000), Launch(at + 5, at + 400, 900 + step, api="cudaMalloc_v3020")]
        items += [OsCall("poll", at + 500, at + 9_000), MpiCall("MPI_Send", at + 20_000, at + 50_000)]
        for number, length in enumerate((20_000, 150_000, 420_000)):
            begin, id = at + 100_000 + 200_000 * number, 10 * step + number + 1
            items.append(
                launch_kernel("abc"[number], (begin, begin + 3_000), (begin + 9_000, begin + 9_000 + length), id=id)
            )
    count = 12_000_000 // STEP_NS
    rng = random.Random(1)
    hz = [1_980_000_000 if at < count // 2 else 1_410_000_000 for at in range(count)]
    shares = {name: [rng.randint(0, 99) for _ in range(count)] for name in ("sm_active", "dram_read", "tensor_active")}
    return [*items, gpu_samples({**shares, "clock_hz": hz})]


def of_pytorch(folder: Path, seed: int) -> Path:
    """Forward and backward, memory, copies and collectives."""
    events = some_trace(random.Random(seed))
    events += [
        each for at in range(6) for each in collective("allreduce", (at, at + 1), (50 * at, 50 * at + 40), 7000 + at)
    ]
    return write_trace(folder / "t.json", events)


@pytest.mark.parametrize(
    "case", ["at once 0", "at once 1", "sampled", "random 3", "random 7", "pytorch 2", "pytorch 5"]
)
def test_numbers_are_as_they_were(trace: MakeTrace, tmp_path: Path, case: str) -> None:
    """Every table of every summary, and what is displayed of it."""
    kind, _, seed = case.rpartition(" ")
    if kind == "pytorch":
        path = of_pytorch(tmp_path, int(seed))
    elif kind == "random":
        path = trace(*random_report(int(seed)))
    else:
        path = trace(*(at_once(int(seed)) if kind else sampled()))
    answer = break_down(attributed(path, ranges="ops" if kind == "pytorch" else "auto"))
    assert (answer.attribution.trace.ops.kind == KERNEL).any()
    hold(__file__, case, {name: [found.files, found.rows] for name, found in answer.summaries.items() if found})
