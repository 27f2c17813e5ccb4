"""Loops in sequences of symbols."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsysprof.attribution.loops import Chains, Loop, chains_of, fold_loops, inner_rounds, rounds
from nsysprof.core.arrays import Ints

STEP = [*range(20), 3, 5, 20, 21, 3, 22]


def folded(symbols: list[int] | Ints) -> tuple[Chains, Ints]:
    """The loops of a sequence in which at least one is, and the sequence."""
    sequence = np.array(symbols, np.int64)
    return chains_of(fold_loops(sequence, sequence)), sequence


def only_loop(symbols: list[int] | Ints, seam: tuple[int, int] | None = None) -> Loop:
    """The one loop that is in no other, with its rounds."""
    chains, sequence = folded(symbols)
    [row] = np.flatnonzero(chains.parent < 0).tolist()
    return rounds(chains, row, sequence, np.ones(len(sequence), np.int64), seam)


def test_rounds_begin_where_the_loop_does() -> None:
    """What stands before and after a loop is not of it."""
    loop = only_loop([90, 91, *STEP * 5, 92])
    assert loop.starts.tolist() == [2 + len(STEP) * number for number in range(5)]
    assert (loop.start, loop.end, loop.cut_off) == (2, 2 + 5 * len(STEP), False)


def test_rounds_begin_after_the_longer_gap() -> None:
    """Where the loop ends in the middle of a round, the gap decides which of its ends is whole."""
    sequence = np.array([*STEP[-3:], *STEP * 5], np.int64)
    chains, gap = chains_of(fold_loops(sequence, sequence)), np.ones(len(sequence), np.int64)
    gap[3 :: len(STEP)] = 50
    loop = rounds(chains, 0, sequence, gap)
    assert loop.starts.tolist() == [3 + len(STEP) * number for number in range(5)]
    gap[:] = 1
    gap[0 :: len(STEP)] = 50
    assert rounds(chains, 0, sequence, gap).starts[:2].tolist() == [0, len(STEP)]


def test_rounds_begin_at_the_seam_of_another_loop() -> None:
    """Which is a pair of symbols, the last of a round and the first of the next."""
    assert only_loop(STEP * 5, seam=(9, 10)).starts.tolist() == [10 + len(STEP) * number for number in range(5)]
    assert only_loop(STEP * 5, seam=(1, 9)).starts[0] == 0


@pytest.mark.parametrize("change", ["replace", "insert", "leave out"])
def test_a_loop_goes_on_through_variations(change: str) -> None:
    """One symbol in a hundred is replaced, gets one before it, or is left out: rounds begin within one symbol."""
    random = np.random.default_rng(7)
    out: list[int] = []
    begins = []
    for number in range(100 * len(STEP)):
        place = number % len(STEP)
        if place == 0:
            begins.append(len(out))
        varied = random.random() < 0.01
        out += [99] * (varied and change != "leave out")
        out += [STEP[place]] * (not varied or change == "insert")
    loop = only_loop(out)
    assert len(loop.starts) == 100
    assert np.abs(loop.starts - begins).max() <= 1


def test_the_shortest_round_counts() -> None:
    """A loop is not one of rounds twice as long, though these repeat as well."""
    assert len(only_loop(STEP * 40).starts) == 40


def test_inner_loops_of_any_number_of_rounds() -> None:
    """The loop around them is the same; their rounds are numbered in each of its rounds, and tile it."""
    symbols = [x for count in (3, 7, 4, 5, 3) for x in [1, *[2, 3] * count, 4]]
    chains, sequence = folded(symbols)
    [outer] = np.flatnonzero(chains.parent < 0).tolist()
    loop = rounds(chains, outer, sequence, np.ones(len(symbols), np.int64))
    assert loop.starts.tolist() == [0, 8, 24, 34, 46]
    start, stop, number, last = inner_rounds(chains, np.flatnonzero(chains.parent == outer))
    assert number.tolist() == [at for count in (3, 7, 4, 5, 3) for at in range(count)]
    assert (start[1:][~last[:-1]] == stop[:-1][~last[:-1]]).all()
    assert set((stop - start).tolist()) == {2}


@given(st.lists(st.integers(0, 3), max_size=80))
def test_loops_of_any_sequence_nest(symbols: list[int]) -> None:
    """Each loop lies in its parent, those without one do not overlap, and rounds begin inside, in order."""
    sequence = np.array(symbols, np.int64)
    folds = fold_loops(sequence, sequence)
    if not folds:
        return
    chains = chains_of(folds)
    above = chains.parent >= 0
    assert (chains.start[above] >= chains.start[chains.parent[above]]).all()
    assert (chains.end[above] <= chains.end[chains.parent[above]]).all()
    top = np.flatnonzero(~above)
    assert (chains.start[top][1:] >= chains.end[top][:-1]).all()
    for row in range(len(chains.start)):
        loop = rounds(chains, row, sequence, np.ones(len(symbols), np.int64))
        assert (np.diff(loop.starts) > 0).all()
        assert loop.starts[0] >= 0
        assert loop.starts[-1] < loop.end <= len(symbols)
