"""The clocks of a pair, with a verdict for each where there are samples enough."""

import math

import numpy as np

from nsysprof.compare.clocks import CLOCKS, clock_rows
from nsysprof.core.arrays import Ints
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES

NONE = np.empty(0, np.int64)


def samples(**by_clock: Ints) -> dict[str, Ints]:
    """Samples by clock; none where none are given."""
    return {**dict.fromkeys(CLOCKS[1:], NONE), **by_clock}


def around(middle: int, count: int = 20, seed: int = 1) -> Ints:
    """Samples that scatter 1 % around the middle, independently."""
    return np.random.default_rng(seed).normal(middle, middle / 100, count).astype(np.int64)


def test_a_row_per_pair_and_clock_in_their_order() -> None:
    """Pairs stay in their order, whatever they are called; that of steps only where there are any."""
    one, steps = samples(span=around(1000)), samples(span=around(1000), step=around(1000))
    frame, _ = clock_rows([("z", ("a", "b"), one, one), ("a", ("a", "b"), steps, steps)])
    assert frame[["pair", "clock"]].to_numpy().tolist() == [
        *(["z", clock] for clock in CLOCKS[1:]),
        *(["a", clock] for clock in CLOCKS),
    ]


def test_the_ratio_is_how_many_times_as_long_the_base_takes() -> None:
    """Twice as long, with an interval around it; the verdict is about the new side."""
    frame, warnings = clock_rows([("p", ("a", "b"), samples(span=around(2000)), samples(span=around(1000, seed=2)))])
    row = frame[frame["clock"] == "span"].iloc[0]
    assert abs(row["ratio"] - 2) < 0.02
    assert 1.9 < row["ratio_low"] < row["ratio"] < row["ratio_high"] < 2.1
    assert (row["verdict"], row["base_n"], row["new_n"], row["delta"]) == (FASTER, 20, 20, -1.0)
    assert row["p"] == row["adjusted_p"]
    assert warnings == []


def test_swapped_sides_are_the_mirror_image() -> None:
    """What was faster is slower, at the reciprocal ratio."""
    slow, fast = samples(busy=around(2000)), samples(busy=around(1000, seed=2))
    there, _ = clock_rows([("p", ("a", "b"), slow, fast)])
    back, _ = clock_rows([("p", ("b", "a"), fast, slow)])
    one, other = (frame[frame["clock"] == "busy"].iloc[0] for frame in (there, back))
    assert (one["verdict"], other["verdict"]) == (FASTER, SLOWER)
    assert math.isclose(one["ratio"], 1 / other["ratio"])
    assert math.isclose(one["ratio_low"], 1 / other["ratio_high"])


def test_a_clock_without_samples_says_nothing() -> None:
    """CUDA events without a record, on one side or both, and busy times of 0."""
    base = samples(**{"CUDA events": around(1000), "busy": np.zeros(20, np.int64)})
    frame, warnings = clock_rows([("p", ("a", "b"), base, samples(busy=around(1000)))])
    assert frame["verdict"].tolist() == [""] * 4
    assert frame["ratio"].isna().all()
    assert frame["base_n"].tolist() == [0, 20, 0, 20]
    assert warnings == []


def test_many_pairs_are_corrected_for() -> None:
    """The p-value of a pair is larger beside others, by Holm; each clock is a family of its own."""
    pair = samples(span=around(1000)), samples(span=around(1100, seed=2))
    alone, _ = clock_rows([("p", ("a", "b"), *pair)])
    among, _ = clock_rows([(str(number), ("a", "b"), *pair) for number in range(5)])
    first, last = (frame[frame["clock"] == "span"] for frame in (alone, among))
    assert math.isclose(last["adjusted_p"].iloc[0], 5 * first["adjusted_p"].iloc[0])


def test_samples_that_cannot_tell() -> None:
    """Few samples are no verdict and no warning more; equal ones are no change; a drift is warned of by name."""
    few, _ = clock_rows([("p", ("a", "b"), samples(span=around(1000, 3)), samples(span=around(2000, 3)))])
    assert few[few["clock"] == "span"]["verdict"].tolist() == [TOO_FEW_SAMPLES]
    same, _ = clock_rows([("p", ("a", "b"), samples(span=around(1000)), samples(span=around(1000, seed=2)))])
    assert same[same["clock"] == "span"]["verdict"].tolist() == [NO_CLEAR_CHANGE]
    rising = np.arange(1000, 2000, 25)
    _, warnings = clock_rows([("p", ("math", "b"), samples(span=rising), samples(span=around(1000, 40)))])
    assert any("math drifts" in warning for warning in warnings)
    _, warnings = clock_rows([("p", ("math", "b"), samples(span=rising[:3]), samples(span=around(1000, 40)))])
    assert warnings == []


def judged(base: Ints, new: Ints, *, busy: float = 1.0, two: bool = True) -> str:
    """The verdict on the span of two sides, busy for a part of it, of two recordings or one."""
    first, second = (samples(span=side, busy=(side * busy).astype(np.int64)) for side in (base, new))
    frame, _ = clock_rows([("p", ("a", "b"), first, second)], recordings=two)
    return str(frame.set_index("clock").loc["span", "verdict"])


def test_few_samples_that_lie_far_apart_are_a_verdict() -> None:
    """Four steps against four at twice the time show a difference, three do not, nor does one that is no larger than
    between unchanged programs.
    """
    assert judged(around(2000, 4), around(1000, 4)) == FASTER
    assert judged(around(1000, 4), around(2000, 4), two=False) == SLOWER
    assert judged(around(2000, 3), around(1000, 3)) == TOO_FEW_SAMPLES
    assert judged(around(1040, 4), around(1000, 4)) == NO_CLEAR_CHANGE
    assert judged(around(1040, 1), around(1000, 1)) == NO_CLEAR_CHANGE
    assert judged(around(1200, 1), around(1000, 1)) == TOO_FEW_SAMPLES


def test_a_host_sets_no_pace_twice() -> None:
    """Where the GPU is mostly idle two recordings differ anyway: 15 % is no verdict, twice the time is, and of one
    recording so is 15 %.
    """
    assert judged(around(1150, 40), around(1000, 40, 2), busy=0.5) == TOO_FEW_SAMPLES
    assert judged(around(1150, 40), around(1000, 40, 2), busy=0.9) == FASTER
    assert judged(around(2000, 40), around(1000, 40, 2), busy=0.5) == FASTER
    assert judged(around(1150, 40), around(1000, 40, 2), busy=0.5, two=False) == FASTER
