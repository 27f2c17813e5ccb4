"""Idle GPUs: the share of a range's span in which nothing ran, against a count of every ns, and what it tells apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from nsysprof.analyze.highlights import LAUNCH_BOUND_IDLE, idle_shares
from nsysprof.analyze.text import summary
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reference import Op, Reference, refer
from tests.kit.reports import broken_down
from tests.kit.trace import Items, Kernel, Range, launch_kernel

END = 1_000_000


def work(at: int, length: int, id: int, **where: Any) -> Items:
    """A kernel of some length, launched 2 ns before."""
    return launch_kernel("k", (at - 2, at - 1), (at, at + length), id=id, **where)


def shares(path: Path, **how: Any) -> dict[str, float]:
    """The idle share of each merged path."""
    answer = broken_down(path, **how)
    found = idle_shares(answer, range(len(answer.merged)))
    return dict(zip(answer.merged["merged_path"], found.tolist(), strict=True))


def marked(path: Path, name: str) -> bool:
    """Whether the summary marks a range as launch-bound."""
    [line] = [line for line in summary(broken_down(path)).splitlines() if line.startswith(f"{name} ")]
    return line.endswith(" *")


# ---- against a count of every ns


def moments(ops: Iterable[Op]) -> dict[object, set[int]]:
    """For each GPU every ns in which it runs something."""
    out: dict[object, set[int]] = {}
    for op in ops:
        if not op.migrates:  # pages that the driver moves are no work
            out.setdefault(op.gpu, set()).update(range(op.start, op.end))
    return out


def idle_share(mine: Sequence[Op], runs: dict[object, set[int]]) -> Fraction | None:
    """The share of the span of some ops, on each GPU of theirs, in which that GPU runs nothing; None without a span."""
    if not mine:
        return None
    span = range(min(op.start for op in mine), max(op.end for op in mine))
    gpus = {op.gpu for op in mine}
    idle = sum(moment not in runs[gpu] for gpu in gpus for moment in span)
    return Fraction(idle, len(gpus) * len(span)) if span else None


def median(found: Iterable[Fraction | None]) -> float:
    """The median of those that have a share, NaN where none has."""
    known = [share for share in found if share is not None]
    return float(statistics.median(known)) if known else math.nan


def launched_in(reference: Reference, instance: int) -> list[Op]:
    """The ops inside a range instance."""
    calls = reference.totals[instance].calls
    return [op for op in reference.ops if (op.process, op.correlation) in calls]


@pytest.mark.parametrize("first_seed", [0, 20, 40])
def test_idle_shares_equal_a_count_of_every_ns(first_seed: int, trace: MakeTrace) -> None:
    """Path by path on reports by chance, with several GPUs, processes and threads that run beside one another."""
    partly, on_two, filled = 0, 0, 0
    for seed in range(first_seed, first_seed + 20):
        path = trace(*random_report(seed), pragmas=["synchronous=OFF"])
        answer, reference = broken_down(path, merge=None), refer(path)
        instances: dict[object, list[int]] = {}
        for at, chain in enumerate(reference.paths):
            domainless = tuple((name, kind) for name, _, kind in chain)
            instances.setdefault(domainless, []).append(at)
        found = idle_shares(answer, range(len(answer.merged))).tolist()
        assert len(found) == len(instances), seed
        runs = moments(reference.ops)
        for rows, share in zip(instances.values(), found, strict=True):
            mine = [launched_in(reference, row) for row in rows]
            expected = median(idle_share(ops, runs) for ops in mine)
            assert share == pytest.approx(expected, abs=1e-12, nan_ok=True), (seed, rows)
            partly += 0 < expected < 1
            on_two += any(len({op.gpu for op in ops}) > 1 for ops in mine)
            filled += expected < median(idle_share(ops, moments(ops)) for ops in mine)
    assert min(partly, on_two, filled) > 20


@pytest.mark.parametrize("by", ["process", "device"])
@pytest.mark.parametrize("how", [{}, {"skip": 1}, {"select": "*[aw]*"}])
def test_idle_shares_of_parts(by: str, how: dict[str, Any], trace: MakeTrace) -> None:
    """A row by process has its instances, one by device only their ops there; what others run there counts still."""
    compared = 0
    for seed in range(60, 80):
        path = trace(*random_report(seed), Range("a", 0, 0), pragmas=["synchronous=OFF"])
        answer, reference = broken_down(path, by=by, **how), refer(path)
        runs = moments(reference.ops)
        found = idle_shares(answer, range(len(answer.merged))).tolist()
        for row, share in enumerate(found):
            rows = answer.instances_of(row)[1].tolist()
            mine = [launched_in(reference, instance) for instance in rows]
            if by == "device":
                label = answer.merged["device"][row]
                mine = [[op for op in ops if device_label(op) == label] for ops in mine]
            expected = median(idle_share(ops, runs) for ops in mine)
            assert share == pytest.approx(expected, abs=1e-12, nan_ok=True), (seed, row)
            compared += 0 < expected < 1
    assert compared > 20


def device_label(op: Op) -> str:
    """What the rows of a GPU are called."""
    if isinstance(op.gpu, tuple):
        _, process, device = op.gpu
        return f"device {device} of pid {process >> 24 & 0xFFFFFF}"
    return f"GPU {op.gpu}"


# ---- what it tells apart


def test_gaps_that_another_range_fills_are_not_idle(trace: MakeTrace) -> None:
    """A range whose own ops take a tenth of its span is not launch-bound while the GPU works for another one."""
    path = trace(
        Range("waits its turn", 0, 200),
        work(10, 5, 1),
        work(105, 5, 2),
        Range("works", 0, 200, thread=2),
        work(15, 90, 3, thread=2, stream=8),
        duration=END,
    )
    assert shares(path) == {"waits its turn": 0.0, "works": 0.0}
    assert not marked(path, "waits its turn")


def test_gaps_that_nobody_fills_are_idle(trace: MakeTrace) -> None:
    """The same range without the other one is launch-bound: 90 of 100 ns nothing runs."""
    path = trace(Range("waits", 0, 200), work(10, 5, 1), work(105, 5, 2), duration=END)
    assert shares(path) == {"waits": pytest.approx(0.9)}
    assert marked(path, "waits")


def test_what_nobody_owns_fills_gaps_too(trace: MakeTrace) -> None:
    """Ops of other processes on the same GPU, and ops without a launch, keep it at work."""
    own = [Range("a", 0, 200), work(10, 10, 1), work(100, 10, 2)]
    assert shares(trace(*own, work(20, 60, 1, process=2), duration=END))["a"] == pytest.approx(0.2)
    assert shares(trace(*own, Kernel("lost", 20, 70, 99), duration=END))["a"] == pytest.approx(0.3)


def test_what_another_gpu_runs_fills_no_gap(trace: MakeTrace) -> None:
    """An op on GPU 1 leaves GPU 0 as idle as it is."""
    path = trace(Range("a", 0, 200), work(10, 10, 1), work(100, 10, 2), work(20, 80, 3, thread=2, device=1))
    answer = broken_down(path, by="device")
    assert answer.merged["device"].tolist() == ["GPU 0", "GPU 1"]  # thread 2 follows `a`
    assert idle_shares(answer, [0, 1]).tolist() == [pytest.approx(0.8), 0.0]
    strict = trace(
        Range("a", 0, 200),
        work(10, 10, 1),
        work(100, 10, 2),
        Range("b", 0, 200, thread=2),
        work(20, 80, 3, thread=2, device=1),
        duration=END,
    )
    assert shares(strict) == {"a": pytest.approx(0.8), "b": 0.0}


def test_all_gpus_of_a_range_count(trace: MakeTrace) -> None:
    """Two GPUs have the span of the range each: one at work throughout and one for a fifth of it idle for 40 %."""
    path = trace(
        Range("a", 0, 200),
        work(10, 100, 1, device=0),
        work(10, 20, 2, device=1),
        work(40, 1, 3),
        duration=END,
    )
    assert shares(path) == {"a": pytest.approx(0.4)}


def test_the_median_instance_decides(trace: MakeTrace) -> None:
    """One slow start among three does not make a range launch-bound, and an instance without ops does not count."""
    items: list[Items] = []
    for number, gap in enumerate((900, 20, 0)):
        at = 1000 + number * 2000
        items += [Range(f"step{number}", at - 10, at + 1500)]
        items += [work(at, 40, 2 * number + 1), work(at + 40 + gap, 40, 2 * number + 2)]
    path = trace(*items, duration=END)
    assert shares(path) == {"step*": pytest.approx(20 / 100)}
    assert not marked(path, "step*")
    without_ops = Range("step3", 9000, 9010)
    assert shares(trace(*items, without_ops, duration=END)) == {"step*": pytest.approx(20 / 100)}


def test_without_a_span_there_is_no_share(trace: MakeTrace) -> None:
    """Ranges without ops, with an op of no length, or with one that ends before it starts have none, and no mark."""
    path = trace(
        Range("empty", 0, 9),
        Range("moment", 10, 19),
        work(13, 0, 1),
        Range("backwards", 20, 29),
        work(25, -10, 2),
        duration=END,
    )
    assert all(math.isnan(share) for share in shares(path).values())
    assert not any(marked(path, name) for name in ("empty", "moment", "backwards"))
    assert len(idle_shares(broken_down(path), [])) == 0


def test_rows_are_those_that_were_asked_for(trace: MakeTrace) -> None:
    """The answer has the order of the rows asked for, not that of the frame."""
    path = trace(
        Range("a", 0, 90),
        work(10, 10, 1),
        work(30, 10, 2),
        Range("b", 100, 190),
        work(110, 10, 3),
        work(160, 10, 4),
        duration=END,
    )
    answer = broken_down(path)
    assert answer.merged["name"].tolist() == ["a", "b"]
    assert idle_shares(answer, [1, 0, 1]).tolist() == [
        pytest.approx(40 / 60),
        pytest.approx(10 / 30),
        pytest.approx(40 / 60),
    ]


def test_the_limit_is_half() -> None:
    """What is called launch-bound idles for more than half of the span."""
    assert LAUNCH_BOUND_IDLE == 0.5
