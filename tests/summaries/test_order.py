"""Summaries of copies, memory and unified memory do not depend on the order of rows in a report."""

import random
from pathlib import Path

import pytest

from tests.conftest import MakeTrace
from tests.kit.permutation import permute
from tests.kit.reports import broken_down
from tests.kit.trace import Items, Memcpy, PageFault, Range, allocate, launch_kernel, launch_memcpy, launch_memset


def everything(path: Path) -> str:
    """All that these summaries say of a report, in their order."""
    found = broken_down(path).summaries
    return repr([(found[name].json(1 << 30), found[name].show(99)) for name in ("copies", "memory", "unified")])


def at_once(seed: int) -> list[Items]:
    """Steps with much that happens at the same time, on two GPUs, and addresses that are used again."""
    rng = random.Random(seed)
    items: list[Items] = [Range(f"step{at}", 100 * at, 100 * at + 99) for at in range(8)]
    for number in range(1, 240):
        at, length, device = 20 * rng.randrange(40), rng.choice([10, 20]), rng.randrange(2)
        end, api = at + length, rng.choice(["cudaMemcpy", "cudaMemcpyAsync"])
        call, op = (at, at + 2), (at + 5, end + 5)
        choices: list[Items] = [
            launch_memcpy(call, op, id=number, api=api, host=number % 2, bytes=64, device=device),
            launch_memset(call, op, id=number, bytes=8, device=device),
            launch_kernel(rng.choice("ab"), call, op, id=number, device=device),
            allocate(at, rng.randrange(4), 64, id=number, free=rng.random() < 0.5, device=device, pool=(7, at)),
            Memcpy(at, end, 0, 4096, rng.choice([11, 12]), cause=rng.randrange(4), device=device),
            PageFault(at, end, rng.randrange(5), device, access=rng.randrange(3)),
            PageFault(at, instruction=rng.choice(["main", "load"])),
        ]
        items.append(rng.choice(choices))
    return items


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_rows_gives_the_same(seed: int, trace: MakeTrace, tmp_path: Path) -> None:
    """Of each thing that happens at the same time as others, too."""
    path = trace(*at_once(seed))
    first = everything(path)
    assert all(everything(permute(path, tmp_path / "again.sqlite", seed)) == first for seed in (1, 2, 3))
