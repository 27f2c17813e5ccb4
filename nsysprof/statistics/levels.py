"""Find the levels of a quantity over runs: a lasting change separates two levels, and each run is one sample.

Optimal partitioning (Jackson et al. 2005, pruned as by Killick et al. 2012) of logarithms. Noise is estimated from the
runs: neighbours mostly differ only by noise, and so do runs of one state. A level of one or two runs may be a
disturbance, so it must differ much more than a longer level. It is dropped if the next runs reverse the change. If a
slope explains the runs as well as levels do, the change is a drift. The thresholds come from simulations
(analysis/history).
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import Floats, Index, Mask
from nsysprof.statistics.dependence import dependence
from nsysprof.statistics.runs import USUAL_NOISE

LEAST_RUNS = 6  # from which on neighbours show the noise
_LEAST_NOISE, _LEAST_CHANGE = 0.001, 0.01  # of logarithms: clocks and rounding; what nobody would look into
_SHORT, _STANDS_OUT = 3, 8.0  # runs of a level that needs no more; how many times the noise one of fewer does
_CLEAR = 3.6
_USUAL = 0.02  # the noise of few runs, if nothing shows it
_QUARTILES = ((0.5, 0.6745), (0.75, 1.1503))  # of the absolute differences of neighbours, and of a normal distribution
_FEW = 0.15  # of the runs, that may stand alone
_PAIRS = 3  # of runs of one state, from which on they show noise too
_ROUNDS, _SLOPE = 3, 5.0  # standard errors of a slope
_OPEN = 500  # places where the last level may begin


@dataclass(frozen=True)
class Levels:
    """The levels of the runs; ``starts``: the first run of each level, starting with 0.

    ``value``: the logarithm of each level (for a drift, at the middle of the level); ``noise``: the standard deviation
    of runs about their level, in logarithms; ``odd``: runs with a change that the next runs reverse. ``slope``: the
    growth of the logarithm from run to run, 0 if there is no drift. ``known``: whether the noise is estimated from
    these runs.
    """

    starts: tuple[int, ...]
    value: tuple[float, ...]
    noise: float
    odd: Mask
    slope: float = 0.0
    known: bool = True

    def time(self, level: int) -> float:
        """Return the value of a level as a time, not a logarithm."""
        return math.exp(self.value[level])

    def detectable(self, runs: int) -> float:
        """Return the smallest change (a share) that is found as a level in the newest `_SHORT` of ``runs`` runs."""
        return math.expm1(_CLEAR * self.noise * math.sqrt(1 / _SHORT + 1 / max(runs - _SHORT, 1)))

    def of(self, runs: int) -> Index:
        """Return the level of each run; ``runs`` is the number of runs."""
        return np.searchsorted(self.starts, np.arange(runs), side="right") - 1

    def fitted(self, runs: int) -> Floats:
        """Return the expected logarithm of each run (``runs`` in all), from its level and the slope."""
        of, time = self.of(runs), np.arange(runs, dtype=np.float64)
        middle = np.bincount(of, time) / np.bincount(of)
        return np.array(self.value)[of] + self.slope * (time - middle[of])


def find_levels(
    logs: Floats, states: Sequence[Hashable] = (), *, usual: float = _USUAL, least: float = USUAL_NOISE
) -> Levels:
    """Find the `Levels` of logarithms, one per run in order; runs with equal ``states`` other than None are from one
    program.

    ``usual`` is the noise to assume if there are only a few runs. A level of one or two runs must differ by at least
    ``least`` (a share). Takes near-linear time in the number of runs.
    """
    x = np.asarray(logs, np.float64)
    known = len(x) >= LEAST_RUNS
    floor = _of_states(x, states)
    for trim in (True, False):
        noise = max(_of_neighbours(x, trim=trim) if known else usual, floor)
        found = _levels(x, noise, least)
        alone = int(found.odd.sum()) + int((np.bincount(found.of(len(x))) < _SHORT)[1:].sum())
        if alone <= _FEW * len(x):  # more of them are the noise
            break
    for _ in range(_ROUNDS):  # what is left about the levels shows dependence, and noise of two kinds
        rest = (x - found.fitted(len(x)))[~found.odd]
        worth = dependence(rest).effective if len(rest) > 2 * LEAST_RUNS else len(rest)
        wider = noise * math.sqrt(max(len(rest), 1) / max(worth, 1.0))
        again = _levels(x, wider, least)
        if again.starts == found.starts and again.slope == found.slope:
            break
        found = again
    return Levels(found.starts, found.value, found.noise, found.odd, found.slope, known)


def newest_level(logs: Sequence[float]) -> Sequence[float]:
    """Return the logarithms of the runs of the newest level. Odd runs are left out if enough other runs remain to show
    the noise.
    """
    if len(logs) < LEAST_RUNS:
        return logs
    levels = find_levels(np.array(logs))
    newest = levels.of(len(logs)) == len(levels.starts) - 1
    kept: list[float] = np.array(logs)[newest & ~levels.odd].tolist()
    return kept if len(kept) > 1 else logs


def _of_neighbours(x: Floats, *, trim: bool) -> float:
    """The noise that neighbours show, regardless of levels; ``trim``: without the few that differ far more."""
    apart = np.sort(np.abs(np.diff(x)))
    far = apart > _STANDS_OUT * max(float(np.median(apart)) / _QUARTILES[0][1], _LEAST_NOISE)
    apart = apart[: len(apart) - min(int(far.sum()), len(apart) // 4) * trim]
    shown = [float(np.quantile(apart, part)) / normal for part, normal in _QUARTILES]
    return max(*shown, math.sqrt(2) * _LEAST_NOISE) / math.sqrt(2)


def _of_states(x: Floats, states: Sequence[Hashable]) -> float:
    """The noise that consecutive runs of one state show; 0 if there are too few."""
    last: dict[Hashable, float] = {}
    apart = []
    for state, value in zip(states, x.tolist(), strict=False):
        if state is not None:
            if state in last:
                apart.append(abs(value - last[state]))
            last[state] = value
    return float(np.median(apart)) / _QUARTILES[0][1] / math.sqrt(2) if len(apart) >= _PAIRS else 0.0


def _levels(x: Floats, noise: float, least: float) -> Levels:
    """Levels, or levels on a slope: whichever describes the runs better for its number of parameters."""
    flat = _steps(x, noise, least, 0.0)
    if len(x) < 2 * LEAST_RUNS:
        return flat
    best, cost = flat, _cost(x, flat)
    slope = _slope(x, Levels((0,), (0.0,), noise, flat.odd))
    for _ in range(_ROUNDS):
        if not slope:
            break
        tilted = _steps(x, noise, least, slope)
        if (each := _cost(x, tilted)) < cost:
            best, cost = tilted, each
        if (closer := _slope(x, tilted)) == slope:
            break
        slope = closer
    return best


def _slope(x: Floats, levels: Levels) -> float:
    """The common slope within levels, by least squares; 0 if no slope is clear."""
    kept = np.flatnonzero(~levels.odd)
    of = levels.of(len(x))[kept]
    time, value = kept.astype(np.float64), x[kept].copy()
    count = np.bincount(of)
    for each in (time, value):
        each -= (np.bincount(of, each) / np.maximum(count, 1))[of]
    spread = float(time @ time)
    if not spread:
        return 0.0
    slope = float(time @ value) / spread
    left = value - slope * time
    error = max(levels.noise, float(np.sqrt(left @ left / max(len(kept) - len(count) - 1, 1)))) / math.sqrt(spread)
    return slope if abs(slope) > _SLOPE * error and abs(slope) * len(x) > _LEAST_CHANGE else 0.0


def _cost(x: Floats, levels: Levels) -> float:
    left = (x - levels.fitted(len(x)))[~levels.odd] / levels.noise
    said = 2 * (len(levels.starts) - 1) + 2 * int(levels.odd.sum()) + (levels.slope != 0)
    return float(np.minimum(left**2, _STANDS_OUT**2).sum()) + _CLEAR**2 / 2 * said


def _steps(x: Floats, noise: float, least: float, slope: float) -> Levels:
    """Levels after removing a slope; runs whose change the next runs reverse are left out, step by step."""
    flat = x - slope * np.arange(len(x))
    odd = np.zeros(len(x), bool)
    while True:
        kept = np.flatnonzero(~odd)
        starts = _clear(flat[kept], _partition(flat[kept], _CLEAR**2 * noise**2), noise, least)
        ends = [*starts[1:], len(kept)]
        level = [float(np.mean(flat[kept[low:high]])) for low, high in zip(starts, ends, strict=True)]
        taken_back = [
            at
            for at in range(1, len(starts) - 1)
            if ends[at] - starts[at] < _SHORT
            and (level[at] - level[at - 1]) * (level[at + 1] - level[at]) < 0
            and abs(level[at + 1] - level[at - 1]) < abs(level[at] - level[at - 1]) / 2
        ]
        if not taken_back:
            break
        for at in taken_back:
            odd[kept[starts[at] : ends[at]]] = True
    of = np.searchsorted(kept[list(starts)], np.arange(len(x)), side="right") - 1
    middle = np.bincount(np.maximum(of, 0), np.arange(len(x))) / np.bincount(np.maximum(of, 0))
    begins = (0, *(int(kept[at]) for at in starts[1:]))
    return Levels(begins, tuple(v + slope * m for v, m in zip(level, middle.tolist(), strict=True)), noise, odd, slope)


def _partition(x: Floats, penalty: float) -> list[int]:
    """The starts of the levels that minimize the squares about their means, plus a ``penalty`` per level."""
    sums, squares = (np.concatenate([[0.0], np.cumsum(each)]) for each in (x - x.mean(), (x - x.mean()) ** 2))
    best, last = np.full(len(x) + 1, -penalty), np.zeros(len(x) + 1, np.int64)
    open_ = np.zeros(1, np.int64)  # where the last level may begin
    for end in range(1, len(x) + 1):
        inside = squares[end] - squares[open_] - (sums[end] - sums[open_]) ** 2 / (end - open_)
        cost = best[open_] + inside
        at = int(cost.argmin())
        best[end], last[end] = cost[at] + penalty, open_[at]
        kept = cost <= best[end]
        if len(open_) > 2 * _OPEN:  # with thousands of runs, the most likely and the newest
            kept &= (cost <= np.partition(cost, _OPEN)[_OPEN]) | (np.arange(len(cost)) >= len(cost) - _OPEN)
        open_ = np.append(open_[kept], end)
    starts = [int(last[len(x)])]
    while starts[-1]:
        starts.append(int(last[starts[-1]]))
    return starts[::-1]


def _clear(x: Floats, starts: list[int], noise: float, least: float) -> list[int]:
    """The levels that differ clearly from the level before: the least clear level is removed until all do."""
    while len(starts) > 1:
        edges = np.array([*starts, len(x)])
        count = np.diff(edges)
        mean = np.add.reduceat(x, starts) / count
        jump = np.abs(np.diff(mean))
        error = noise * np.sqrt(1 / count[1:] + 1 / count[:-1])
        needed = np.maximum(_CLEAR * error, _LEAST_CHANGE)
        few = np.minimum(count[1:], count[:-1]) < _SHORT
        needed = np.where(few, np.maximum(needed, max(_STANDS_OUT * noise, math.log1p(least))), needed)
        weak = int((jump / needed).argmin())
        if jump[weak] >= needed[weak]:
            break
        del starts[weak + 1]
    return starts
