"""Numbers of all summaries: of reports by chance with memory, faults, samples and calls, and of traces of PyTorch.

Counts, bytes and times of `busy` were compared with SQL when they were first kept.
"""

import random
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.summaries import streams
from nsysprof.summaries.gpu_metrics import clock_change, clocks, usual_clock
from nsysprof.summaries.memory import gpu_memory
from nsysprof.trace.trace import KERNEL
from tests.conftest import MakeTrace
from tests.kit.gpu_samples import STEP_NS, gpu_samples
from tests.kit.kept import hold
from tests.kit.kineto import annotation, collective, launch, operator, write_trace
from tests.kit.mutations import some_trace
from tests.kit.random_reports import random_report
from tests.kit.reports import attributed
from tests.kit.trace import (
    CudaDevice,
    Gpu,
    Items,
    Launch,
    Memcpy,
    MpiCall,
    OsCall,
    PageFault,
    Range,
    ThreadName,
    allocate,
    launch_graph,
    launch_kernel,
    launch_memcpy,
    launch_memset,
)
from tests.summaries.test_order import at_once

MS = 1_000_000


def sampled(seed: int) -> list[Items]:
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
    rng = random.Random(seed + 1)
    hz = [1_980_000_000 if at < count // 2 else 1_410_000_000 for at in range(count)]
    shares = {
        name: [rng.randint(48 * seed, 99 - 48 * seed) for _ in range(count)]
        for name in ("sm_active", "dram_read", "tensor_active")
    }
    return [*items, gpu_samples({**shares, "clock_hz": hz})]


SIZES = (0, 4, (64 << 10) - 1, 64 << 10, 1 << 20, 48 << 20)
APIS = ("cudaMemcpyAsync", "cudaMemcpy", "cudaMemcpyPeerAsync")
FILL = "void at::native::vectorized_elementwise_kernel<%d, at::native::FillFunctor<float>, at::array<char*, 1ul>>(int)"
NAMES = [f"{'long_' * (at % 3 * 8)}name{at}" if at % 2 else FILL % at for at in range(16)]
OTHERS = (
    *("cudaStreamSynchronize", "cudaFree", "cuModuleLoadData", "cudaGetFuncBySymbol", "cudaEventRecord"),
    *("cudaMemGetInfo", "cudaLaunchHostFunc", "cudaMemPrefetchAsync", "hipHostMalloc"),
)


def busy(seed: int) -> list[Items]:
    """Steps of two threads on two GPUs: lazy first launches, copies of all sizes, memory that grows, a long pause."""
    rng, ids = random.Random(seed), count(1)
    number, pick = rng.randrange, rng.choice
    names = NAMES[: (1, 4, 16)[seed % 3]]

    def one(call: int, long: bool) -> Items:
        end = call + 1000 * (number(40, 400) if long or number(20) == 0 else number(2, 9))
        thread, device, id, stream = 1 + number(2), int(number(4) == 0), next(ids), pick((7, 7, 13))
        where: dict[str, Any] = {"device": device, "stream": stream, "id": id, "thread": thread}
        start = end + number(-1, 90) * 1000
        host, gpu = (call, end), (start, start + pick((0, 900, 20_000, 170_000, 420_000)))
        moved: dict[str, Any] = {
            "kind": pick((1, 2, 8, 10)),
            "host": number(2),
            "bytes": pick(SIZES),
            "api": pick(APIS),
        }
        wait = (call, pick((end, gpu[1])))
        makers: dict[Callable[[], Items], int] = {
            lambda: launch_kernel(pick(names), host, gpu, **where): 4,
            lambda: launch_memcpy(wait, gpu, **moved, **where): 2,
            lambda: launch_memset(host, (start, start + 900), bytes=pick(SIZES), **where): 1,
            lambda: launch_graph(host, gpu, **where): 1,
            lambda: Launch(*host, id, thread=thread, api=f"{pick(OTHERS)}_v3020", returned=number(2)): 1,
            lambda: OsCall(pick(("poll", "read")), *host, thread): 1,
            lambda: MpiCall(pick(("MPI_Send", "MPI_Wait")), call + 90_000, end + 90_000): 1,
            lambda: Memcpy(
                start,
                start + pick((0, 900, 99_000, 2 * MS)),
                0,
                pick(SIZES),
                pick((11, 12)),
                cause=number(7),
                device=device,
            ): 1,
            lambda: PageFault(start, gpu[1] - 400, number(1, 9), device, access=number(3)): 1,
        }
        return rng.choices(list(makers), list(makers.values()))[0]()

    def held(at: int) -> Items:
        pool: dict[str, Any] = {"pool": (7, pick(SIZES))} if number(4) == 0 else {}
        where = {"device": pick((0, 0, 0, 1, 5)), "kind": pick((1, 2, 2, 2, 4)), "id": next(ids)}
        address = at if seed % 2 else number(9)
        return allocate(at, address, pick(SIZES), **where, free=number(4) == 0, **pool)

    items: list[Items] = [Gpu(0, "NVIDIA H100 80GB HBM3"), Gpu(1, "NVIDIA A10"), CudaDevice(0, 0), CudaDevice(1, 1)]
    for step in range(number(5, 12)):
        now = 3 * MS * step + 600 * MS * (seed % 3) * (step > 3)
        items += [Range(f"step{step}", now, now + 2_900_000), Range("forward", now + 20_000, now + 1_400_000)]
        items += [Range(f"head{'.' * 45}{number(2)}", now + 1_500_000, now + 2_700_000, thread=1 + number(2))]
        calls = [now + 180_000 * at + number(9_000) for at in range(number(6, 14))]
        items += [one(call, step + at < 2) for at, call in enumerate(calls)]
        items += [held(call + 100_000) for call in calls if number(3) == 0]
        items.append(allocate(now + 1_450_000, 9999 + step, MS, id=next(ids), kind=2 if seed % 4 else 1))
    if seed == 4:
        items = [ThreadName(2, "worker"), *(each for each in items if not isinstance(each, Range))]
    active, read, other = ([number(101) if number(50) else 255 for _ in range(400)] for _ in range(3))
    items.append(
        gpu_samples({"sm_active": active, "dram_read": read, "clock_hz": [10**9 * pick((1, 2))] * 400}, gpu=seed % 2)
    )
    return [*items, gpu_samples({"sm_active": other})] if seed % 2 else items


def of_pytorch(folder: Path, seed: int) -> Path:
    """Forward and backward, memory, copies and collectives of several groups, sizes and types."""
    rng = random.Random(seed)
    events = [] if seed == 3 else some_trace(rng, 9)
    for each in events if seed == 1 else ():
        each.get("args", {}).pop("bytes", None)
    for at in range(9):
        begin, tid = 20_000 + 700 * at + rng.randrange(200), 100
        for name, back in (("aten::mm", 0), ("MmBackward0", 1)):
            numbered = {"Sequence_number": 900 + at, "Fwd_thread_id": back, "tid": tid}
            events += [operator(name, begin, begin + rng.randrange(100, 900), **numbered)]
            id = 8000 + 2 * at + back
            host, gpu = (begin + 10, begin + 20), (begin + 30, begin + rng.choice((30, 300)))
            events += launch("gemm", host, gpu, id, tid=tid)
            begin, tid = begin + 9_000, rng.choice((100, 200))
    events += (
        [] if seed == 3 else [annotation(f"part{at}", 20_000 + 2_000 * at, 21_700 + 2_000 * at) for at in range(4)]
    )
    for at in range(12):
        kind, ranks = (
            rng.choice(["allreduce", "_allgather_base", "send"]),
            rng.choice(["[0, 1, 2]", "[0, 2]", "[4]", ""]),
        )
        more: dict[str, Any] = {
            "group": rng.choice("01"),
            "elements": rng.choice([0, 64, 1000]),
            "dtype": rng.choice(["Half", "odd"]),
        }
        begin = 900 * at + rng.randrange(300)
        events += collective(
            kind, (at, at + 1), (begin, begin + rng.choice([0, 40, 700])), 7000 + at, ranks=ranks, **more
        )
    return write_trace(folder / "t.json", events)


CASES: dict[str, Sequence[int]] = {
    "at once": range(2),
    "sampled": range(2),
    "random": (3, 7, 11, 12),
    "pytorch": range(4),
}
CASES |= {"busy": range(12)}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_as_they_were(trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Every table of every summary, the rows that are displayed of it, and the parts of its sentence."""
    make: dict[str, Callable[[int], list[Any]]] = {
        "at once": at_once,
        "sampled": sampled,
        "random": random_report,
        "busy": busy,
    }
    out: dict[str, list[Any]] = {}
    monkeypatch.setattr(streams, "_PIECE", 5)
    for seed in CASES[case]:
        path = of_pytorch(tmp_path, seed) if case == "pytorch" else trace(*make[case](seed), name=f"{seed}.sqlite")
        answer = break_down(attributed(path, ranges="ops" if case == "pytorch" else "auto"))
        assert (answer.attribution.trace.ops.kind == KERNEL).any()
        for name, found in answer.summaries.items():
            if found:
                words = [re.split("[;,:] ", found.finding), [column.name for column in found.columns], found.note != ""]
                cells = [line.replace(" ", "_") for line in found.show(40).lines()[2 : 2 + min(40, len(found.rows))]]
                rates = [rows[each] for rows in found.files.values() for each in rows.columns if each.endswith("per_s")]
                cells += [f"{rate:.12g}" for each in rates for rate in each.tolist()]
                more = found.json(3) if seed else [], cells
                out.setdefault(name, []).append([found.files, found.rows, words, *more])
        trace_of, begin = answer.attribution.trace, MS * np.arange(0, 60, 7)
        usual = usual_clock(trace_of, begin, begin + MS)
        used = [usual, clock_change(1e9, usual), *(clocks(trace_of, gpu, begin, begin + MS) for gpu in range(3))]
        out.setdefault("used", []).append([*used, gpu_memory(trace_of)])
    hold(__file__, case, out)
