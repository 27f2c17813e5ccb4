"""The made reports of the gallery: programs with one fault each, whose times are made up and not measured.

`python -m tests.kit.gallery` writes docs/gallery/ again; the page says how they are read.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.kit.program import MS, US, Program
from tests.kit.trace import CudaDevice, Gpu, Item, Kernel, Launch, Range, write

FOLDER = Path(__file__).parents[2] / "docs" / "gallery"
STEPS = 24
RANKS, LATE = 4, 3
BLOCKS = (1056, 1, 1)  # of each kernel: enough for any GPU
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def reads_loss() -> list[Item]:
    """A step of twelve layers that reads its loss back, and prints it."""
    program, random = Program(), Random(1)
    for number in range(STEPS):
        with program.range(f"step {number}"):
            with program.range("forward"):
                program.layers(ns=60 * US + random.randrange(4 * US))
            with program.range("log"):
                program.copy(2, 4, 2 * US)
                program.wait()
                for _ in range(4):
                    program.code(50 * US + random.randrange(20 * US))
                    program.os("write", 8 * US)
    program.call("cudaDeviceSynchronize")
    return program.items


def waits_for_data() -> list[Item]:
    """A step whose next batch is not there yet: `futex` is what a thread calls that waits for another."""
    program, random = Program(), Random(2)
    for number in range(STEPS):
        with program.range(f"step {number}"):
            with program.range("data"):
                program.os("futex", 2 * MS + random.randrange(300 * US))
            with program.range("forward"):
                program.layers(ns=60 * US + random.randrange(4 * US))
    program.wait("cudaDeviceSynchronize")
    return program.items


def ranks() -> Iterator[list[Item]]:
    """Four ranks with an all-reduce per step: rank 3 computes for longer, and all wait for it."""
    random = Random(3)
    compute = [
        [3 * MS + random.randrange(60 * US) + (rank == LATE) * 900 * US for rank in range(RANKS)] for _ in range(STEPS)
    ]
    for rank in range(RANKS):
        items: list[Item] = []
        now = 0
        for number, each in enumerate(compute):
            done, id = now + 20 * US + each[rank], 2 * number + 1
            end = now + 20 * US + max(each) + 400 * US
            items += [
                Range(f"step {number}", now, now + 60 * US),
                Range("forward", now + 2 * US, now + 16 * US),
                Launch(now + 5 * US, now + 10 * US, id),
                Kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", now + 20 * US, done, id),
                Launch(now + 20 * US, now + 25 * US, id + 1, api="cuLaunchKernelEx"),
                Kernel(ALL_REDUCE, done + 2 * US, end, id + 1),
            ]
            now = end + 10 * US
        yield items


def main() -> int:
    """Write the reports."""
    (FOLDER / "late-rank").mkdir(parents=True, exist_ok=True)
    made = {"item.sqlite": reads_loss(), "loader.sqlite": waits_for_data()}
    made |= {f"late-rank/rank_{rank}.sqlite": items for rank, items in enumerate(ranks())}
    for name, items in made.items():
        (FOLDER / name).unlink(missing_ok=True)
        items = [replace(item, grid=BLOCKS) if isinstance(item, Kernel) else item for item in items]
        write(FOLDER / name, [*items, Gpu(0, "made-up GPU"), CudaDevice(0, 0)], pragmas=["page_size=512"])
        sys.stdout.write(f"{FOLDER / name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
