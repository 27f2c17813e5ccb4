"""GPU memory, added up by range: what is live at most, who allocated that, and what grows."""

import random
from pathlib import Path
from typing import Any

import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.summaries.memory import gpu_memory
from nsysprof.summaries.summary import Answer
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit.reports import attributed, broken_down
from tests.kit.trace import Items, MemoryEvent, Range, allocate, launch_kernel

KERNEL = launch_kernel("k", (1, 2), (3, 4), id=9999)


def answer_of(path: Path, **how: Any) -> Answer:
    """The summary of the memory of a report."""
    found = break_down(attributed(path, **how)).summaries["memory"]
    assert isinstance(found, Answer)
    return found


def rows_of(path: Path, **how: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of its ``memory.csv`` by path and kind."""
    rows = answer_of(path, **how).files["memory.csv"].records()
    return {(row.pop("merged_path"), row.pop("kind")): row for row in rows}


def test_not_recorded_is_no_answer(trace: MakeTrace) -> None:
    """Nothing, not zero."""
    found = broken_down(trace(KERNEL))
    assert found.summaries.get("memory") is None
    assert gpu_memory(found.attribution.trace) == {}


def test_ranges_allocate_and_give_back(trace: MakeTrace) -> None:
    """With inner ranges; the row of no path is the whole recording; what is live at the peak has its allocator."""
    path = trace(
        KERNEL,
        allocate(5, 0xF0, 7, id=1),
        Range("step", 10, 100),
        allocate(20, 0xA0, 100, id=2),
        Range("forward", 30, 60),
        allocate(40, 0xB0, 1000, id=3),
        allocate(50, 0xC0, 10, id=4),
        allocate(55, 0xC0, 0, id=5, free=True),
        Range("backward", 70, 90),
        allocate(80, 0xB0, 0, id=6, free=True),
    )
    rows = rows_of(path)
    names = ("allocations", "allocated_bytes", "releases", "freed_bytes", "live_at_end_bytes", "peak_bytes")
    assert {key: tuple(row[name] for name in names) for (key, _), row in rows.items()} == {
        "": (4, 1117, 2, 1010, 107, 1117),
        "step": (3, 1110, 2, 1010, 107, 1117),
        "step/forward": (2, 1010, 1, 10, 1107, 1117),
        "step/backward": (0, 0, 1, 1000, 107, 1107),
    }
    owned = {path: row["owned_at_peak_bytes"] for (path, _), row in rows.items()}
    assert owned == {"": 7, "step": 100, "step/forward": 1010, "step/backward": 0}
    assert sum(owned.values()) == rows["", "device"]["peak_bytes"]
    assert answer_of(path).finding == (
        "Memory: peak 1.09 KiB of device memory on GPU 0, 1,010 B of them allocated in step/forward"
    )


def test_kinds_gpus_and_processes_are_apart(trace: MakeTrace) -> None:
    """Pinned memory is no memory of a GPU, and a device that runs nothing has its memory all the same."""
    path = trace(
        KERNEL,
        Range("load", 0, 50),
        allocate(10, 0xA0, 100, id=1),
        allocate(20, 0xB0, 5000, id=2, kind=1),
        allocate(30, 0xA0, 30, id=3, device=5),
    )
    found = answer_of(path)
    rows = [(row["merged_path"], row["gpu"], row["kind"], row["peak_bytes"]) for row in found.rows.records()]
    where = [("GPU 0", "device", 100), ("GPU 0", "pinned", 5000), ("device 5 of pid 1", "device", 30)]
    assert sorted(rows) == [(path, *each) for path in ("", "load") for each in where]
    assert found.finding.startswith("Memory: peak 100 B of device memory on GPU 0")
    with open_report(path) as report:
        lines = gpu_memory(read_tables(report))
    assert {label: (time.tolist(), size.tolist()) for label, (_, time, size) in lines.items()} == {
        "GPU 0": ([11], [100]),
        "device 5 of pid 1": ([31], [30]),
    }


def test_pinned_memory_alone_is_told(trace: MakeTrace) -> None:
    """Where nothing is allocated on a GPU."""
    found = answer_of(trace(KERNEL, Range("load", 0, 50), allocate(20, 0xB0, 5000, id=2, kind=1)))
    assert found.finding == "Memory: peak 4.88 KiB of pinned memory on GPU 0, 4.88 KiB of them allocated in load"


def test_pools_hold_what_they_hold(trace: MakeTrace) -> None:
    """The kind `pool` is what a pool reserves, whatever is allocated from it."""
    path = trace(
        KERNEL,
        Range("step", 0, 50),
        allocate(10, 0xA0, 100, id=1, pool=(0x1, 4096)),
        allocate(20, 0xB0, 100, id=2, pool=(0x1, 4096)),
        allocate(25, 0xC0, 100, id=3, pool=(0x2, 512)),
        allocate(30, 0xA0, 0, id=4, free=True, pool=(0x1, 1024)),
        allocate(60, 0xB0, 0, id=5, free=True, pool=(0x1, 0)),
    )
    rows = rows_of(path)
    pool = rows["step", "pool"]
    assert (pool["allocated_bytes"], pool["freed_bytes"], pool["peak_bytes"]) == (4608, 3072, 4608)
    assert (pool["live_at_end_bytes"], rows["", "pool"]["live_at_end_bytes"]) == (1536, 512)
    assert (pool["owned_at_peak_bytes"], rows["step", "device"]["owned_at_peak_bytes"]) == (0, 300)


def test_the_range_that_keeps_is_named(trace: MakeTrace) -> None:
    """Neither the one that fills a cache in the first step, nor the one whose memory the next step gives back."""
    items: list[Items] = [KERNEL]
    for step in range(8):
        at = 100 * step
        items += [Range(f"step {step}", at, at + 90), Range("work", at + 1, at + 30), Range("log", at + 50, at + 80)]
        items += allocate(at + 60, 5000 + step, 8, id=10 * step + 1)
        if step:
            items += allocate(at + 5, 1000 + step - 1, 0, id=10 * step + 2, free=True)
        items += allocate(at + 10, 1000 + step, 4096, id=10 * step + 3)
        if step == 0:
            items += allocate(at + 20, 9999, 1 << 20, id=10 * step + 4)
    path = trace(*items)
    rows = rows_of(path)
    kept = {key: (row["kept_bytes"], row["kept_in"]) for (key, _), row in rows.items() if key}
    assert kept == {"step*": (0, 0), "step*/work": (4096 + (1 << 20), 2), "step*/log": (64, 8)}
    assert answer_of(path).finding.endswith("; 8 B more with each step*, which step*/log keeps")


def test_calls_of_helper_threads_follow(trace: MakeTrace) -> None:
    """As launches do: to the one range that is open elsewhere; strictly they belong to none."""
    path = trace(KERNEL, Range("backward", 0, 100), allocate(10, 0xA0, 64, id=1, thread=7), MemoryEvent(20, 0xB0, 8))
    assert rows_of(path)["backward", "device"]["allocated_bytes"] == 64
    assert ("backward", "device") not in rows_of(path, threads="strict")
    assert rows_of(path)["", "device"]["allocated_bytes"] == 72


@pytest.mark.parametrize("seed", range(6))
def test_rows_equal_a_brute_force(seed: int, trace: MakeTrace) -> None:
    """Ns by ns, in any order of rows: what is live, the peak, who owns it, and the sums."""
    rng = random.Random(seed)
    items: list[Items] = [KERNEL, Range("outer", 0, 500), Range("inner", 100, 300)]
    held: dict[int, tuple[int, str]] = {}
    live: list[dict[int, tuple[int, str]]] = []
    changes = {at: rng.randrange(6) for at in rng.sample(range(0, 480, 4), 60)}
    for at in range(500):
        address = changes.get(at - 1)
        if address is not None:
            where = "outer/inner" if at - 1 >= 100 and at + 1 <= 300 else "outer"
            size = rng.randrange(1, 100)
            free = address in held
            items.append(allocate(at - 1, address + 1, size, id=at, free=free))
            held = {key: value for key, value in held.items() if key != address}
            if not free:
                held[address] = size, where
        live.append(held)
    totals = [sum(size for size, _ in each.values()) for each in live]
    rng.shuffle(items)
    rows = {path: row for (path, _), row in rows_of(trace(*items)).items()}
    assert rows[""]["peak_bytes"] == rows["outer"]["peak_bytes"] == max(totals)
    assert rows["outer/inner"]["peak_bytes"] == max(totals[100:301])
    assert rows["outer/inner"]["live_at_end_bytes"] == totals[300]
    at_peak = live[totals.index(max(totals))].values()
    for path in ("outer", "outer/inner"):
        assert rows[path]["owned_at_peak_bytes"] == sum(size for size, where in at_peak if where == path)
    assert rows[""]["allocated_bytes"] - rows[""]["freed_bytes"] == totals[-1]
    assert rows[""]["allocations"] + rows[""]["releases"] == len(changes)
