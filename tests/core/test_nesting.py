"""Lanes of intervals: what is drawn inside another is inside it, nothing crosses, and walking keeps the order."""

import random

import numpy as np
import pytest

from nsysprof.core.nesting import Lane, stack, walk

Span = tuple[int, int]


def stacked(spans: list[Span], parents: list[int] | None = None) -> list[Lane]:
    """The lanes of some spans."""
    start, end = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    return stack(start, end, np.array(parents if parents is not None else [-1] * len(spans), np.int32))


def members(lanes: list[Lane]) -> list[list[int]]:
    return [lane.members.tolist() for lane in lanes]


def test_one_after_the_other_is_one_lane() -> None:
    """Intervals that follow each other, touching too, need no second lane."""
    assert members(stacked([(0, 5), (5, 9), (9, 9), (12, 20)])) == [[0, 1, 2, 3]]


def test_what_overlaps_gets_a_lane_of_its_own_until_the_first_is_free() -> None:
    """The third interval overlaps the second only: it goes back to the first lane."""
    assert members(stacked([(0, 10), (5, 20), (10, 30)])) == [[0, 2], [1]]


def test_children_stay_in_the_lane_of_their_parent() -> None:
    """Nested ranges are one lane, and each knows what it is drawn in."""
    [lane] = stacked([(0, 100), (0, 40), (10, 20), (40, 100)], [-1, 0, 1, 0])
    assert lane.up.tolist() == [-1, 0, 1, 0]


def test_what_only_happens_to_lie_inside_another_is_not_drawn_in_it() -> None:
    """A sibling that reaches into the time of its neighbour moves to a lane of its own, with its child."""
    lanes = stacked([(0, 100), (0, 60), (20, 50), (30, 40)], [-1, 0, 0, 2])
    assert members(lanes) == [[0, 1], [2, 3]]
    assert [lane.up.tolist() for lane in lanes] == [[-1, 0], [-1, 0]]


def test_what_sticks_out_of_its_parent_stands_beside_it() -> None:
    """As the projection of an op that ends before it starts can."""
    assert members(stacked([(0, 10), (5, 12), (6, 7)], [-1, 0, 1])) == [[0], [1, 2]]


def test_no_intervals_are_no_lanes() -> None:
    """An empty track is none."""
    assert stacked([]) == []


def made_up(seed: int) -> tuple[list[Span], list[int]]:
    """Spans with many ties, some with one of those that contain them as parent."""
    rng = random.Random(seed)
    spans = []
    for _ in range(rng.randrange(14)):
        start = rng.randrange(12)
        spans.append((start, start + rng.randrange(8)))
    spans.sort(key=lambda span: (span[0], -span[1]))
    parents = []
    for row, (_, end) in enumerate(spans):
        around = [other for other in range(row) if spans[other][1] >= end]
        parents.append(rng.choice(around) if around and rng.random() < 0.6 else -1)
    return spans, parents


@pytest.mark.parametrize("block", range(10))
def test_lanes_nest_and_lose_nothing(block: int) -> None:
    """Walked in order, no time runs backwards, what ends is what was opened last, and inside is only one's parent."""
    for seed in range(block * 100, block * 100 + 100):
        spans, parents = made_up(seed)
        lanes = stacked(spans, parents)
        assert sorted(row for lane in members(lanes) for row in lane) == list(range(len(spans)))
        for lane in lanes:
            _check_walk(lane, spans, parents)


def _check_walk(lane: Lane, spans: list[Span], parents: list[int]) -> None:
    now, opened = -1, list[int]()
    for step in walk(lane.up).tolist():
        position = step if step >= 0 else ~step
        row = int(lane.members[position])
        moment = spans[row][0 if step >= 0 else 1]
        assert moment >= now
        now = moment
        if step < 0:
            assert opened.pop() == row
            continue
        assert not opened or opened[-1] == parents[row]
        assert int(lane.up[position]) == (lane.members.tolist().index(opened[-1]) if opened else -1)
        opened.append(row)
    assert not opened


def test_a_deep_stack_is_walked() -> None:
    """A thousand ranges inside each other, as programs leave them that never close any."""
    [lane] = stacked([(row, 5000 - row) for row in range(1000)], list(range(-1, 999)))
    assert walk(lane.up).tolist() == [*range(1000), *(~row for row in reversed(range(1000)))]


def test_many_overlapping_intervals_are_quick() -> None:
    """20,000 windows that are all open at once take as many lanes, and no time that grows with their square."""
    count = 20_000
    start = np.arange(count, dtype=np.int64)
    lanes = stack(start, start + count, np.full(count, -1, np.int32))
    assert len(lanes) == count
