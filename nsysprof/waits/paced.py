"""Detect whether a wait paces the steps of a program: such a wait shrinks as the work of a step grows."""

from collections.abc import Sequence

import numpy as np

from nsysprof.core.arrays import Ints

MIN_STEPS = 8  # that wait, and half of all
_STEADIER = 1 / 3  # of the spread of the work: a step whose time spreads no further is held by something
_LEAST_SPREAD = 1e-3  # of the step: work that varies less shows nothing
_SLOPES = (-1.3, -0.7)  # by how much the wait changes for each ns of work
# Rates of clocks and cameras per second, how near the steps are to one, how far most steps are from the median, and by
# how much of their variance neighbours make up for each other: half of it where each step ends at a beat.
_RATES = (1, 2, 5, 10, 12, 15, 20, 24, 25, 30, 40, 48, 50, 60, 72, 75, 90, 100, 120, 144, 200, 240, 250, 500, 1000)
_DISPLAYS, _FRAMES = (24, 25, 30, 48, 50, 60, 72, 75, 90, 100, 120, 144, 165, 240), 24  # rates, and least steps
_EXACT, _MOST = (5e-4, 0.8)  # how near to a rate, and to the median, so many of a few steps are; CPU work never is
_ROUND, _REGULAR, _EVENS_OUT = 0.003, 0.06, 0.2
_USUAL = (0.02, 0.98)  # quantiles


def paces(step_ns: Ints, waited_ns: Ints) -> bool:
    """Return whether a wait (a sleep, poll or input) of ``waited_ns`` per step paces steps that take ``step_ns``.

    If a wait paces steps, it compensates for variation of the work, so the step time stays constant. A constant delay
    does not compensate for work, so the step time varies with the work. Use this test only for waits: in a paced step,
    every part (not only the wait) is shorter if the rest of the step is longer. The run time is quadratic in the number
    of steps (at most 500).
    """
    waits = np.flatnonzero(waited_ns > 0)
    if len(waits) < max(MIN_STEPS, len(step_ns) / 2):
        return False
    chosen = waits[np.unique(np.linspace(0, len(waits) - 1, min(len(waits), 500)).astype(np.intp))]
    step, waited = step_ns[chosen], waited_ns[chosen]
    work = step - waited
    work_spread = _spread(work)
    paced = work_spread >= _LEAST_SPREAD * int(np.median(step)) and _spread(step) <= _STEADIER * work_spread
    paced = paced and _SLOPES[0] <= _slope(work, waited) <= _SLOPES[1]
    return paced or clocked(step_ns[waits], waited_ns[waits])


def clocked(step: Ints, waited: Ints, rates: Sequence[int] = _RATES, least: int = MIN_STEPS) -> bool:
    """Return whether steps that mostly wait follow a clock: at one of ``rates`` (per second), with short steps after
    long ones. At least ``least`` steps must wait.
    """
    step = step[waited > step / 2]
    if len(step) < least:
        return False
    period, held = float(np.median(step)), np.clip(step, *np.quantile(step, _USUAL))  # some steps miss a beat
    away = held - held.mean()
    near_rate = 1e9 / np.array([[period], [held.mean()]]) / np.array(rates)
    near = np.abs(step - period) <= _REGULAR * period
    evens_out = float((away[1:] * away[:-1]).sum()) < -_EVENS_OUT * float((away**2).sum())
    return bool((np.abs(near_rate - 1) <= _ROUND).any() and 2 * int(near.sum()) > len(step) and evens_out)


def follows_display(step: Ints, waited: Ints) -> bool:
    """Return whether steps that mostly wait follow a display or camera: 24 steps that follow a clock, or eight steps
    that differ from such a rate, and most of them from each other, by at most 0.05 %.
    """
    if clocked(step, waited, _DISPLAYS, _FRAMES):
        return True
    step = step[waited > step / 2]
    if len(step) < MIN_STEPS:
        return False
    period = float(np.median(step))
    spread = float(np.quantile(np.abs(step / period - 1), _MOST))
    return bool(0 < spread <= _EXACT and (np.abs(1e9 / period / np.array(_DISPLAYS) - 1) <= _EXACT).any())


def _spread(values: Ints) -> int:
    low, high = np.quantile(values, (0.25, 0.75))
    return int(high - low)


def _slope(x: Ints, y: Ints) -> float:
    """The median slope between any two points."""
    one, other = np.triu_indices(len(x), 1)
    run = x[other] - x[one]
    some = run != 0
    return float(np.median((y[other] - y[one])[some] / run[some])) if some.any() else 0.0
