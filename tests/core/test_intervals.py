"""The interval functions against brute force on small coordinates, where ties and nests are common."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from nsysprof.core import intervals
from nsysprof.core.arrays import Index, Ints
from nsysprof.core.intervals import (
    Overlaps,
    contained_slices,
    contained_sums,
    held,
    layers,
    merge,
    overlaps,
    slice_reduce,
    union_length,
)
from nsysprof.core.nesting import enclosing, nest

SEEDS = range(200)


def spans(rng: np.random.Generator, most: int = 12, last: int = 12) -> tuple[Ints, Ints]:
    """Some intervals in no order: empty, touching, identical, nested or crossing."""
    count = int(rng.integers(0, most))
    start = rng.integers(-3, last, count)
    return start, start + rng.integers(0, last, count) * rng.integers(0, 2, count)


def nested_first(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Sorted by start, the longest first."""
    order = np.lexsort((-end, start))
    return start[order], end[order]


def covered(start: Ints, end: Ints) -> set[int]:
    """The unit cells that the intervals cover."""
    return {cell for a, b in zip(start.tolist(), end.tolist(), strict=True) for cell in range(a, b)}


def test_merge_and_union_length_equal_the_covered_cells() -> None:
    """The union is disjoint, sorted, not touching, and covers exactly what the intervals cover."""
    for seed in SEEDS:
        start, end = spans(np.random.default_rng(seed))
        first, last = merge(start, end)
        assert (first < last).all(), seed
        assert (first[1:] > last[:-1]).all(), seed
        assert covered(first, last) == covered(start, end), seed
        assert union_length(start, end) == len(covered(start, end)), seed


def test_held_intervals_lie_in_one_of_the_line() -> None:
    """Beginning and end are in the same one."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        line, (start, end) = merge(*spans(rng)), spans(rng)
        inside = [
            any(a <= first and last <= b for a, b in zip(*line, strict=True))
            for first, last in zip(start.tolist(), end.tolist(), strict=True)
        ]
        assert held(line, start, end).tolist() == inside, seed


def test_merge_leaves_out_what_ends_before_it_starts() -> None:
    """An interval with a negative length takes nothing away from the union."""
    assert union_length(np.array([0, 5]), np.array([10, 2])) == 10


def test_merge_keeps_every_digit_of_large_times() -> None:
    """Times of 2^60 ns are not rounded on their way."""
    start = np.array([2**60, 2**60 + 1])
    first, last = merge(start, start + 1)
    assert (first.tolist(), last.tolist()) == ([2**60], [2**60 + 2])


def brute_enclosing(start: Ints, end: Ints) -> list[int]:
    return [
        max((j for j in range(i) if start[j] <= start[i] and end[j] >= end[i]), default=-1) for i in range(len(start))
    ]


def test_enclosing_is_the_nearest_earlier_one_that_ends_no_sooner() -> None:
    """The parent of an interval is the last one before it that contains it."""
    for seed in SEEDS:
        start, end = nested_first(*spans(np.random.default_rng(seed), 20))
        assert enclosing(end).tolist() == brute_enclosing(start, end), seed


def test_enclosing_of_a_chain_of_identical_intervals() -> None:
    """Of identical intervals each contains the next."""
    assert enclosing(np.full(5, 9)).tolist() == [-1, 0, 1, 2, 3]


def test_enclosing_after_deep_stacks() -> None:
    """Stacks up to 300 deep, closed in part or whole, with siblings between: each row's parent is what a stack says."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        ends: list[int] = []
        for _ in range(6):
            top = int(rng.integers(0, 10**6))
            ends += sorted(rng.integers(top, top + 400, int(rng.integers(0, 300))).tolist(), reverse=True)
            ends += rng.integers(0, 500, int(rng.integers(0, 100))).tolist()
        expected: list[int] = []
        open_rows: list[int] = []
        for row, end in enumerate(ends):
            while open_rows and ends[open_rows[-1]] < end:
                open_rows.pop()
            expected.append(open_rows[-1] if open_rows else -1)
            open_rows.append(row)
        assert enclosing(np.array(ends, np.int64)).tolist() == expected, seed


def test_innermost_is_the_last_started_that_holds_the_span() -> None:
    """For any asked span, empty ones included, the answer is the last of all intervals that contain it."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        start, end = nested_first(*spans(rng, 20))
        asked, until = spans(rng, 30, 16)
        found = nest(start, end).innermost(asked, until)
        assert found.tolist() == [
            max((j for j in range(len(start)) if start[j] <= a and end[j] >= b), default=-1)
            for a, b in zip(asked.tolist(), until.tolist(), strict=True)
        ], seed


def test_innermost_jumps_out_of_a_deep_closed_stack() -> None:
    """After 5,000 closed levels the one range that is still open is found, and before it each level."""
    depth = 5_000
    start = np.append(-1, np.arange(depth))
    end = np.append(10**6, 2 * depth - np.arange(depth))
    found = nest(start, end).innermost(np.array([depth + 7, 3 * depth]), np.array([depth + 8, 3 * depth]))
    # cell depth+7 is left by the 7 innermost levels, and by the 8th before depth+8
    assert found.tolist() == [depth - 7, 0]


def test_layers_are_monotone_and_as_few_as_the_nesting_is_deep() -> None:
    """Each layer's ends do not decrease, each interval is in one layer, and no split has fewer layers."""
    for seed in SEEDS:
        start, end = spans(np.random.default_rng(seed), 20)
        order = np.lexsort((end, start))
        start, end = start[order], end[order]
        found = [np.arange(len(end)) if layer is None else layer for layer in layers(end)]
        assert sorted(np.concatenate(found).tolist()) == list(range(len(end))), seed
        assert all((np.diff(end[layer]) >= 0).all() and (np.diff(layer) > 0).all() for layer in found), seed
        longest = np.ones(len(end), int)  # longest run of intervals each of which ends before the one it follows
        for i in range(len(end)):
            longest[i] = 1 + max((longest[j] for j in range(i) if end[j] > end[i]), default=0)
        assert len(found) == max(longest.max(initial=1), 1), seed


def test_contained_slices_are_the_contained_items() -> None:
    """Items wholly inside an outer interval are one slice, an empty one where there are none."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        start = np.sort(rng.integers(0, 12, 15))
        end = np.maximum.accumulate(start + rng.integers(0, 4, 15))
        outer, until = spans(rng)
        low, high = contained_slices(start, end, outer, until)
        for a, b, i, j in zip(outer.tolist(), until.tolist(), low.tolist(), high.tolist(), strict=True):
            inside = [k for k in range(15) if start[k] >= a and end[k] <= b]
            assert list(range(i, j)) == inside, seed


@pytest.mark.parametrize("most", [0, 1, 8])
def test_sums_of_contained_items_equal_a_loop(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer by layer, by halves, or first the one and then the other."""
    monkeypatch.setattr(intervals, "_MAX_LAYERS", most)
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        start, end = nested_first(*spans(rng, 30))
        values = rng.integers(-5, 50, len(start))
        outer, until = spans(rng)
        found = contained_sums(start, end, values, outer, until)
        for a, b, total in zip(outer.tolist(), until.tolist(), found.tolist(), strict=True):
            assert total == values[(start >= a) & (end <= b)].sum(), seed


def test_sums_of_a_deep_nest_take_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 items in one another: a few layers are taken one by one, and not 10,000."""
    steps = []

    def count(*given: Ints) -> tuple[Index, Index]:
        steps.append(1)
        return contained_slices(*given)

    monkeypatch.setattr(intervals, "contained_slices", count)
    start = np.arange(10_000)
    end = 30_000 - start
    found = contained_sums(start, end, np.ones(10_000, np.int64), start, end)
    assert found.tolist() == list(range(10_000, 0, -1))
    assert len(steps) <= 10


@pytest.mark.parametrize(("ufunc", "empty"), [(np.minimum, 2**62), (np.maximum, -(2**62)), (np.bitwise_or, 0)])
def test_slice_reduce_equals_a_loop(ufunc: np.ufunc, empty: int) -> None:
    """Short, long, empty and overlapping slices give what the ufunc gives on each slice alone."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = rng.integers(0, 10**6, int(rng.choice([0, 1, 255, 256, 257, 5_000])))
        low = np.sort(rng.integers(0, len(values) + 1, 60))
        high = np.minimum(low + rng.choice([0, 1, 3, 255, 256, 1_024, 1_025, 4_000], 60), len(values))
        expected = [int(ufunc.reduce(values[i:j])) if j > i else empty for i, j in zip(low, high, strict=True)]
        assert slice_reduce(ufunc, values, low, high, empty).tolist() == expected, seed


def test_slice_reduce_of_one_slice_over_everything() -> None:
    """A slice over all values, block borders or not, sees the first and the last value."""
    for count in (1_024, 1_025, 1_279, 1_280, 1_281):
        values = np.zeros(count, np.int64)
        values[[0, -1]] = -5, -7
        low, high = np.array([0, 0, 1]), np.array([count, count - 1, count])
        assert slice_reduce(np.minimum, values, low, high, 0).tolist() == [-7, -5, -7], count


Finder = Callable[[Ints, Ints], Overlaps | None]


def meetings(start: Ints, end: Ints) -> dict[tuple[int, int], int]:
    """For each pair of neighbours in the line of running intervals, how long they are neighbours: cell by cell."""
    out: dict[tuple[int, int], int] = {}
    for cell in covered(start, end):
        line = [i for i in range(len(start)) if start[i] <= cell < end[i]]
        for pair in pairwise(line):
            out[pair] = out.get(pair, 0) + 1
    return out


@pytest.mark.parametrize(
    "find", [overlaps, intervals._overlaps_by_segment, intervals._overlaps_by_sweep], ids=lambda f: f.__name__
)
def test_overlaps_charge_neighbours_for_each_moment(find: Finder) -> None:
    """All ways to find overlaps give the same time to the same pairs."""
    for seed in SEEDS:
        start, end = spans(np.random.default_rng(seed), 10)
        if find is not overlaps:  # these two are given intervals with a length only
            start, end = start[end > start], end[end > start]
            if len(start) == 0:
                continue
        found = find(start, end)
        assert found is not None
        total: dict[tuple[int, int], int] = {}
        for a, b, ns in zip(found.first.tolist(), found.second.tolist(), found.ns.tolist(), strict=True):
            total[a, b] = total.get((a, b), 0) + ns
        assert total == meetings(start, end), seed


def test_overlaps_give_the_union_of_every_run_of_intervals() -> None:
    """The sum of lengths less the pairs within a run of intervals is the length of its union, for all runs."""
    for seed in range(60):
        start, end = spans(np.random.default_rng(seed), 10)
        found = overlaps(start, end)
        for i in range(len(start)):
            for j in range(i, len(start) + 1):
                inside = (found.first >= i) & (found.second < j)
                sums = int((end - start)[i:j].sum())
                assert sums - int(found.ns[inside].sum()) == union_length(start[i:j], end[i:j]), (seed, i, j)


def test_overlaps_ignore_intervals_of_negative_length() -> None:
    """What ends before it starts runs at no moment, so it meets nobody."""
    found = overlaps(np.array([0, 5, 3]), np.array([10, 2, 4]))
    assert list(zip(found.first, found.second, found.ns, strict=True)) == [(0, 2, 1)]


def test_a_crowd_goes_to_the_sweep() -> None:
    """400 intervals that all run at once are too many pieces for the list of pieces, and the sweep is right."""
    start = np.arange(400)
    end = start + 10_000
    assert intervals._overlaps_by_segment(start, end) is None
    assert int((end - start).sum() - overlaps(start, end).ns.sum()) == union_length(start, end)
