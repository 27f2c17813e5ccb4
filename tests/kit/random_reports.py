"""Small reports by chance, with much that real ones seldom have; one seed is always the same report."""

import random
from typing import Any

from tests.kit.trace import CudaDevice, Gpu, GraphTrace, Item, Kernel, Launch, Memcpy, Memset, Range

NAMES = ("a", "b", "iter0", "iter1", "iter12", "step 3", "x/y", "aten::mm, op_id = 17, sizes = [[2]]")
LAST = 60


def random_report(seed: int) -> list[Item]:
    """The items of a report: a few processes and threads, small coordinates, so that times often tie.

    Correlation ids collide between processes. There are ranges that nest, cross, repeat and never close, windows that
    end on other threads, calls that straddle range ends, calls recorded twice, launches of many ops, of none, and ops
    without a launch. Times may be negative.
    """
    rng = random.Random(seed)
    shift = rng.choice([0, 0, -30, -1000, 10**15])
    items: list[Item] = []
    for process in range(1, rng.randint(1, 3) + 1):
        threads = range(1, rng.randint(1, 4) + 1)
        for thread in threads:
            items += _ranges(rng, process, thread)
            items += _windows(rng, process, thread, len(threads))
        ids = list(range(1, rng.randint(1, 15) + 1))
        items += _calls(rng, process, threads, ids)
        items += _ops(rng, process, ids)
    rng.shuffle(items)
    return [_moved(item, shift) for item in items] + _gpus(rng)


def _moved(item: Item, shift: int) -> Item:
    values = dict(item.__dict__)
    values.update(start=values["start"] + shift)
    if values["end"] is not None:
        values.update(end=values["end"] + shift)
    return type(item)(**values)


def _span(rng: random.Random, longest: int = LAST) -> tuple[int, int]:
    start = rng.randint(0, LAST)
    return start, min(LAST, start + rng.choice([0, 1, 2, 5, rng.randint(0, longest)]))


def _ranges(rng: random.Random, process: int, thread: int) -> list[Item]:
    """Push/pop ranges of one thread: none, a few that nest, a deep stack, or a mess across domains."""
    way = rng.choice(["none", "nested", "nested", "deep", "mess"])
    out: list[Item] = []
    if way == "deep":
        depth = rng.randint(5, 30)
        rest = [(i * LAST // 80, LAST - i * LAST // 80) for i in range(depth)]
    elif way == "mess":
        rest = [_span(rng) for _ in range(rng.randint(1, 10))]
    elif way == "nested":
        rest = _nested(rng, 0, LAST, rng.randint(1, 4))
    else:
        rest = []
    rest += rng.sample(rest, min(len(rest), rng.choice([0, 0, 1, 3])))  # identical ones
    for start, end in rest:
        open_end = way == "nested" and end == LAST and rng.random() < 0.2
        domain = rng.randint(0, 2) if way == "mess" else 0
        out.append(
            Range(
                rng.choice(NAMES),
                start,
                None if open_end else end,
                thread,
                process,
                domain=domain,
                text_id=rng.random() < 0.5,
            )
        )
    return out


def _nested(rng: random.Random, low: int, high: int, depth: int) -> list[tuple[int, int]]:
    """Siblings with children, as push and pop make them; they may touch and be empty."""
    if depth == 0 or high < low:
        return []
    cuts = sorted(rng.randint(low, high) for _ in range(2 * rng.randint(1, 3)))
    out = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=True):
        out += [(start, end), *_nested(rng, start, end, depth - 1)]
    return out


def _windows(rng: random.Random, process: int, thread: int, threads: int) -> list[Item]:
    out: list[Item] = []
    for _ in range(rng.choice([0, 0, 1, 3])):
        start, end = _span(rng)
        other = rng.choice([None, rng.randint(1, threads)])
        last = None if rng.random() < 0.2 else end
        out.append(Range(f"w{rng.randint(0, 2)}", start, last, thread, process, kind="start_end", end_thread=other))
    return out


def _calls(rng: random.Random, process: int, threads: range, ids: list[int]) -> list[Item]:
    """A host call for most ids, recorded twice for some, even on two threads."""
    out: list[Item] = []
    for number in ids:
        for _ in range(rng.choice([0, 1, 1, 1, 1, 1, 1, 2])):
            start, end = _span(rng, 8)
            out.append(Launch(start, end, number, rng.choice(threads), process, rng.choice([0, 1, 67])))
    return out


def _ops(rng: random.Random, process: int, ids: list[int]) -> list[Item]:
    """Ops of most ids, several of some, and a few without a launch."""
    out: list[Item] = []
    for number in [*ids, None, 0, 999]:
        many = rng.choice([0, 1, 1, 1, 1, 5]) if number in ids else rng.randint(0, 1)
        for _ in range(many):
            start, end = _span(rng, 30)
            device, stream = rng.randint(0, 1), rng.choice([7, 13, 20, 4294967295])
            node = rng.randint(1, 99) if many > 1 and rng.random() < 0.8 else rng.choice([None, 0])
            name = rng.choice(["gemm", "void fill<int>(int)", "softmax"])
            where: dict[str, Any] = {"process": process, "device": device, "stream": stream}
            way = rng.choice([1, 2, 8, 11])
            kinds: list[Item] = [
                Kernel(name, start, end, number, graph_node=node, **where),
                Kernel(name, start, end, number, graph_node=node, **where),
                Memcpy(start, end, 0 if way == 11 else number, kind=way, graph_node=node, **where),
                Memset(start, end, number, graph_node=node, **where),
                GraphTrace(start, end, number, graph=rng.randint(0, 2), **where),
            ]
            out.append(rng.choice(kinds))
    return out


def _gpus(rng: random.Random) -> list[Item]:
    """Devices 0 and 1 are GPUs 0 and 1, or swapped in process 2, or not listed at all."""
    if rng.random() < 0.5:
        return []
    swapped = [CudaDevice(1 - device, device, 2) for device in (0, 1)]
    same = [CudaDevice(device, device, process) for process in (1, 3) for device in (0, 1)]
    return [Gpu(0), Gpu(1), *same, *swapped]
