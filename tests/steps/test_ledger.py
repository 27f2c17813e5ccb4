"""The ledger of a step: with which steps it is compared, how their time is shared out, and what a clock explains."""

import numpy as np
import pytest

from nsysprof.core.columns import known
from nsysprof.steps import ledger
from nsysprof.steps.ledger import NEAR, Excess, _nearest, _shared_out, same_for_all_kernels

HOST, COMPUTE = 4, 0


def excess(*rows: tuple[int, int, int, int]) -> Excess:
    """Rows of step, cause, slow and typical ns, each with a culprit of its own."""
    step, cause, slow, typical = np.array(rows, np.int64).reshape(-1, 4).T
    return Excess(step, cause, np.zeros_like(step), np.arange(len(step)), slow, typical)


@pytest.mark.parametrize(
    ("kernels", "host", "clock"),
    [
        ([(115, 100)] * 3, 0, True),
        ([(115, 100)] * 2, 0, False),  # two kernels
        ([(85, 100)] * 3, 0, False),  # faster
        ([(100, 100)] * 3, 0, False),
        ([(135, 100)] * 3, 45, True),  # 0.7 of the excess is compute
        ([(135, 100)] * 3, 46, False),
        ([(440, 400), (220, 200), (220, 200), (200, 200)], 0, True),  # 0.8 of the time is alike
        ([(440, 400), (220, 200), (219, 199), (201, 201)], 0, False),
        ([(488, 448), (488, 448), (176, 128)], 0, False),  # three times the growth of all
        ([(489, 448), (488, 448), (175, 128)], 0, True),
        ([(632, 448), (632, 448), (144, 128)], 0, False),  # a third of the growth of all
        ([(632, 448), (631, 448), (145, 128)], 0, True),
        ([(545, 495), (544, 495), (11, 10)], 0, True),  # a hundredth of the time
        ([(5_473, 4_975), (5_473, 4_975), (110, 100)], 0, False),
        ([(115, 100), (115, 100), (115, 0)], 0, False),  # what typical steps do not run
        ([(2, 1), (3, 1), (4, 1)], 0, True),  # of a ns each
    ],
)
def test_a_clock_slows_all_kernels_alike(kernels: list[tuple[int, int]], host: int, clock: bool) -> None:
    """Whatever other steps do; ``host`` is what the step waits longer for the host."""
    rows = [(7, COMPUTE, *each) for each in kernels] + [(7, HOST, 1_000 + host, 1_000)]
    others = [(at, COMPUTE, slow, 100) for at, slow in ((3, 130), (3, 130), (3, 130), (9, 300), (9, 100), (9, 90))]
    found = same_for_all_kernels(excess(*others[:3], *rows, *others[3:]), np.array([3, 7, 9]))
    assert found.tolist() == [True, clock, False]


@pytest.mark.parametrize("seed", range(20))
def test_the_nearest_typical_steps_are_those_of_least_distance(seed: int) -> None:
    """In rows, or in the logarithm of what the names of steps let expect."""
    rng = np.random.default_rng(seed)
    every = np.arange(rng.integers(3, 200))
    odd = np.sort(rng.choice(every, rng.integers(1, len(every) - 1), replace=False))
    typical = np.setdiff1d(every, odd)
    for level in (None, rng.uniform(1, 9, len(every))):
        where = every if level is None else np.log(level)
        near = _nearest(odd, typical, level)
        assert near.shape == (len(odd), min(NEAR, len(typical)))
        for step, chosen in zip(odd.tolist(), near.tolist(), strict=True):
            assert len(set(chosen)) == len(chosen)
            assert set(chosen) <= set(typical.tolist())
            least = sorted(abs(where[each] - where[step]) for each in typical.tolist())[: len(chosen)]
            assert sorted(abs(where[each] - where[step]) for each in chosen) == pytest.approx(least)


@pytest.mark.parametrize("seed", range(10))
def test_typical_time_is_shared_out_in_whole_ns(seed: int) -> None:
    """It adds up for each step; the largest remainders get a ns more, and of equal ones the first by the last tie."""
    rng = np.random.default_rng(seed)
    step, total, count = np.sort(rng.integers(0, 4, 30)), rng.integers(0, 50, 30), int(rng.integers(1, 9))
    ties = (rng.integers(0, 3, 30), np.arange(30) % 2)
    out = _shared_out(step, total, count, ties)
    for each in np.unique(step).tolist():
        mine = np.flatnonzero(step == each)
        left = int(total[mine].sum()) // count - int((total[mine] // count).sum())
        order = sorted(mine.tolist(), key=lambda row: (-(total[row] % count), ties[1][row], ties[0][row], row))
        assert sorted(np.flatnonzero((out > total // count) & (step == each)).tolist()) == sorted(order[:left])
    assert (out - total // count <= 1).all()
    assert len(_shared_out(step[:0], total[:0], count)) == 0


def test_a_ledger_knows_what_is_longer_and_what_is_most() -> None:
    """Also of a step that is shorter, whose largest part is what it saves."""
    each = excess(
        (2, HOST, 50, 10),
        (2, COMPUTE, 100, 80),
        (5, HOST, 10, 40),
        (5, COMPUTE, 90, 85),
        (6, HOST, 8, 3),
        (6, COMPUTE, 3, 8),
    )
    assert each.longer == {2: 60, 5: -25, 6: 0}
    assert each.without(np.array([5])).longer == {2: 60, 6: 0}
    words = {"cause": ["compute", "", "", "", "host"], "activity": ["x"], "culprit": [*"abcdef"]}
    facts = type("Facts", (), {"words": words})()
    largest = each.largest(facts, 8)
    names = ("typical_ns", "excess_ns", "cause", "culprit", "culprit_ns")
    rows = [*zip(*(largest[name].tolist() for name in names), strict=True)]
    assert [rows[step] for step in (2, 5, 6)] == [
        (90, 60, "host", "a", 40),
        (125, -25, "host", "c", -30),
        (11, 0, "host", "e", 5),
    ]
    assert all(known(value) is None for step in (0, 1, 3, 4, 7) for value in rows[step])
    assert each.table(facts)["delta_ns"].tolist() == [40, 20, 5, -30, 5, -5]
    assert len(ledger.excess_of(facts, facts, np.array([1]), np.array([], np.int64), None).step) == 0
