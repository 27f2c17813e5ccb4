"""What lies inside ranges, against a loop over launches and ops."""

from dataclasses import fields

import numpy as np
import pytest

from nsysprof.attribution import projection
from nsysprof.attribution.projection import DEVICE_BITS, LaunchWork, Totals, project, take_calls
from nsysprof.core import intervals
from nsysprof.core.arrays import Ints
from nsysprof.core.intervals import Overlaps, contained_slices
from nsysprof.trace.trace import GRAPH, KERNEL, MEMCPY, MEMSET
from tests.kit.reference import union


def random_calls(rng: np.random.Generator, *, one_each: bool, apart: bool, devices: int = 3) -> LaunchWork:
    """Launches sorted by start; ``apart`` as one thread makes them, else they nest and cross."""
    count = int(rng.integers(1, 14))
    if apart:
        start = np.cumsum(rng.integers(0, 4, count))
        end = np.minimum(start + rng.integers(0, 3, count), np.append(start[1:], 99))
    else:
        start = np.sort(rng.integers(0, 20, count))
        end = start + rng.integers(0, 9, count)
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    many = 1 if one_each else rng.integers(1, 4, count)
    call = np.repeat(np.arange(count, dtype=np.int32), many)
    op_start = rng.integers(-10, 30, len(call))
    return LaunchWork.build(
        start,
        end,
        call=call,
        op_start=op_start,
        op_end=op_start + rng.integers(-2, 12, len(call)),  # files with a negative duration exist
        device=rng.integers(0, devices, len(call)).astype(np.int32),
        kind=rng.choice([KERNEL, KERNEL, MEMCPY, MEMSET, GRAPH], len(call)).astype(np.uint8),
        from_graph=rng.integers(0, 2, len(call)).astype(bool),
    )


def sorted_ranges(rng: np.random.Generator, count: int = 12) -> tuple[Ints, Ints]:
    start = np.sort(rng.integers(-2, 22, count))
    return start, start + rng.integers(0, 20, count)


def expected(calls: LaunchWork, start: int, end: int) -> dict[str, int]:
    """The totals of one range, launch by launch."""
    inside = [i for i in range(len(calls.start)) if calls.start[i] >= start and calls.end[i] <= end]
    mine = [i for i, call in enumerate(calls.call.tolist()) if call in inside]
    ops = [(int(calls.device[i]), int(calls.op_start[i]), int(calls.op_end[i])) for i in mine]
    return {
        "launches": len(inside),
        "kernels": sum(int(calls.kernels[i]) for i in inside),
        "memops": sum(int(calls.memops[i]) for i in inside),
        "graph_launches": sum(int(calls.graph[i]) for i in inside),
        "first_op_ns": min((a for _, a, _ in ops), default=0),
        "last_op_ns": max((b for _, _, b in ops), default=0),
        "busy_ns": sum(union((a, b) for d, a, b in ops if d == device) for device in {d for d, _, _ in ops}),
        "sum_ns": sum(b - a for _, a, b in ops),
        "followed_sum_ns": sum(
            b - a
            for i, (_, a, b) in zip(mine, ops, strict=True)
            if calls.followed is not None and calls.followed[calls.call[i]]
        ),
        "devices": sum(1 << min(device, DEVICE_BITS) for device in {d for d, _, _ in ops}),
    }


def check(calls: LaunchWork, start: Ints, end: Ints, context: object) -> None:
    found = project(calls, start, end)
    for row, (a, b) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        got = {field.name: int(getattr(found, field.name)[row]) for field in fields(Totals)}
        assert got == expected(calls, a, b), (context, a, b)


@pytest.mark.parametrize("one_each", [True, False], ids=["one op", "many ops"])
@pytest.mark.parametrize("apart", [True, False], ids=["one thread", "crossing"])
def test_project_equals_a_loop(one_each: bool, apart: bool) -> None:
    """Every total of every range is what a loop adds up, however calls nest, cross or stick out."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        calls = random_calls(rng, one_each=one_each, apart=apart)
        check(calls, *sorted_ranges(rng), seed)


def test_project_equals_a_loop_whichever_way_overlaps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep, which crowds are left to, gives the same busy time as the list of pieces."""

    def too_many(start: Ints, end: Ints) -> Overlaps | None:
        return None

    monkeypatch.setattr(intervals, "_overlaps_by_segment", too_many)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        calls = random_calls(rng, one_each=False, apart=seed % 2 == 0, devices=1)
        check(calls, *sorted_ranges(rng), seed)


def test_take_calls_keeps_what_a_launch_caused() -> None:
    """Some launches, sorted anew with their ops, project like a loop over them; followed ones are told apart."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        whole = random_calls(rng, one_each=False, apart=False)
        shuffled = rng.permutation(len(whole.start))  # threads one after another are not sorted by start
        place = np.argsort(shuffled)
        of_op = np.argsort(place[whole.call], kind="stable")
        mixed = LaunchWork.build(
            whole.start[shuffled],
            whole.end[shuffled],
            call=np.sort(place[whole.call]).astype(np.int32),
            op_start=whole.op_start[of_op],
            op_end=whole.op_end[of_op],
            device=whole.device[of_op],
            kind=np.full(len(of_op), KERNEL, np.uint8),
            from_graph=np.zeros(len(of_op), bool),
        )
        mine = rng.integers(0, 2, len(shuffled)).astype(bool)
        followed = mine & (rng.integers(0, 2, len(shuffled)) == 1)
        part = take_calls(mixed, np.flatnonzero(mine), followed[mine])
        assert part.followed is not None
        assert (np.diff(part.start) >= 0).all()
        assert sorted(part.start.tolist()) == sorted(mixed.start[mine].tolist())
        assert int(part.sum_ns[part.followed].sum()) == int(mixed.sum_ns[followed].sum())
        check(part, *sorted_ranges(rng), seed)


def test_a_call_in_the_middle_that_sticks_out_is_left_out_of_busy() -> None:
    """A long call of another thread, started between two that lie inside, does not spoil their busy time."""
    start, end = np.array([1, 2, 4]), np.array([2, 90, 5])
    calls = LaunchWork.build(
        start,
        end,
        call=np.arange(3, dtype=np.int32),
        op_start=np.array([10, 12, 14]),
        op_end=np.array([20, 22, 24]),
        device=np.zeros(3, np.int32),
        kind=np.full(3, KERNEL, np.uint8),
        from_graph=np.zeros(3, bool),
    )
    found = project(calls, np.array([0]), np.array([50]))
    assert (found.launches.tolist(), found.busy_ns.tolist(), found.sum_ns.tolist()) == ([2], [14], [20])


def test_devices_beyond_the_mask_share_its_last_bit() -> None:
    """A range on 70 GPUs adds up the busy time of all of them, and its mask stays within 63 bits."""
    count = 70
    calls = LaunchWork.build(
        np.arange(count),
        np.arange(count) + 1,
        call=np.arange(count, dtype=np.int32),
        op_start=np.zeros(count, np.int64),
        op_end=np.full(count, 10),
        device=np.arange(count, dtype=np.int32),
        kind=np.full(count, KERNEL, np.uint8),
        from_graph=np.zeros(count, bool),
    )
    found = project(calls, np.array([0]), np.array([count]))
    assert (int(found.busy_ns[0]), int(found.devices[0])) == (10 * count, (1 << DEVICE_BITS + 1) - 1)


def test_pairs_around_deep_nests_take_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 ranges in one another, with a launch at both ends of each and kernels that overlap: no step per range."""
    steps = []

    def count(*given: Ints) -> tuple[Ints, Ints]:
        steps.append(1)
        return contained_slices(*given)

    monkeypatch.setattr(intervals, "contained_slices", count)
    monkeypatch.setattr(projection, "contained_slices", count)
    depth = np.arange(3_000)
    start, end = 10 * depth, 100_000 - 10 * depth
    called = np.concatenate([start + 1, end[::-1] - 2])
    op = np.concatenate([20 * depth, 20 * depth[::-1] + 3])
    calls = LaunchWork.build(
        called,
        called + 1,
        call=np.arange(6_000, dtype=np.int32),
        op_start=op,
        op_end=op + 5,
        device=np.zeros(6_000, np.int32),
        kind=np.full(6_000, KERNEL, np.uint8),
        from_graph=np.zeros(6_000, bool),
    )
    assert project(calls, start, end).busy_ns.tolist() == (8 * depth[::-1] + 8).tolist()
    assert len(steps) <= 20


def test_nothing_in_gives_zeros_out() -> None:
    """Ranges without launches have zeros, also as times, and no ranges give no rows."""
    calls = random_calls(np.random.default_rng(1), one_each=True, apart=True)
    far = project(calls, np.array([10**6]), np.array([10**6 + 5]))
    assert [int(getattr(far, field.name)[0]) for field in fields(Totals)] == [0] * len(fields(Totals))
    assert len(project(calls, np.empty(0, np.int64), np.empty(0, np.int64)).launches) == 0
