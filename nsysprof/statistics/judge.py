"""Search step times, in order, for warm-up, drift, changes, a period, a second kind of step, and outliers.

All methods use logarithms of times, so the unit does not matter, and slow steps are defined by a ratio.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import Bytes, Floats, Index, Ints
from nsysprof.statistics.dependence import dependence, drift, mid_ranks

CLASSES = ("typical", "warm-up", "slow", "periodic", "second kind", "fast", "clock", "lost")
TYPICAL, WARM_UP, SLOW, PERIODIC, SECOND, FAST, CLOCK, LOST = range(len(CLASSES))
SLOW_ONES = (SLOW, PERIODIC, SECOND)  # what takes longer than a typical step, as the program has it
LEAST_STEPS = 8  # fewer show no spread to judge by
MIN_EXCESS = 0.03  # of a typical step: less is nothing that somebody would mend
ALPHA = 0.05  # of recordings of steps with exponential tails, as many as have a false outlier
MAX_OUTLIERS = 0.1  # of the steps: more of them are a second kind
_WINDOW = 51  # steps of the running median
_CHUNK = 1 << 14  # steps at a time
_MAX_PERIOD, _LEAST_CYCLES, _LAST = 64, 6, 4096
_LEAST_HITS, _HIT_SHARE = 3, 0.75
_MAX_CHANGES, _LEAST_SEGMENT = 8, 8
_CHANGE = 1.95  # of the largest sum of ranks: 0.1 % of steady recordings reach it (Kolmogorov's distribution)
_LEAST = math.log1p(MIN_EXCESS)
_MAX_LIMIT = math.log(10)  # times as long: if no shorter step is slow, times are too spread to judge
_NORMAL_RATIO = 0.706  # of the distance from quartile to octile to that from median to quartile
_SMALL = 6.0  # of the limit of few steps, whose quartiles are uncertain
_PARTS = 8  # whose medians show the slope of a drift
_ROUNDS = 2
_CLEARLY = 1.2  # times as long: the first of few steps that is so much longer than all others is warm-up
_FAR_LONGER = 3.0  # times as long as the median: warm-up, however much steps differ
_MOST_WARM_UP = 100  # steps: what is slower for longer is the program's own course
_SETTLED = 3  # typical steps one after the other, with which warm-up is over


@dataclass(frozen=True)
class Judgement:
    """The findings about step times.

    ``of`` uint8: the class of each step, a code of `CLASSES`; ``expected`` ns float64: the time of each step if it were
    typical. ``changes``: the index of the step at each change, and the ratio of the time after the change to the time
    before it; ``drift``: the relative growth from the first half to the second, None if unclear; ``period``: the number
    of steps after which slow steps repeat, 0 for none; ``limit``: a step is slow above this ratio of its time to the
    expected time; infinite if no step is judged, see `doubt`.
    """

    of: Bytes
    expected: Floats
    changes: tuple[tuple[int, float], ...] = ()
    drift: float | None = None
    period: int = 0
    limit: float = math.inf

    @property
    def doubt(self) -> str:
        """Return the reason why no step is judged (``too few`` steps, or times ``too spread``); empty if steps are
        judged.
        """
        return "" if math.isfinite(self.limit) else "too spread" if len(self.of) >= LEAST_STEPS else "too few"

    @property
    def warm_up(self) -> int:
        """The number of warm-up steps."""
        return int((self.of == WARM_UP).sum())


def judge(span: Ints, fitted: Floats | None = None) -> Judgement:
    """Judge steps by their times in ns (in order, never 0); ``fitted`` is the known expected time of each step.

    A step is slow if its distance above the level exceeds a limit. In a recording without slow steps, the longest step
    exceeds the limit with probability `ALPHA`. This assumes that times have an exponential tail through the upper
    quartile and octile of the recording. If the limit exceeds ten times the level, times vary too much to judge. The
    level is a running median after period and changes are removed. Heavy tails raise the limit, and slow changes of
    step time move the level.
    """
    count = len(span)
    known = np.ones(count) if fitted is None else fitted
    x = np.log(np.maximum(span, 1) / known)
    of = np.full(count, TYPICAL, np.uint8)
    first = count_warm_up(span, fitted)
    of[:first] = WARM_UP
    if count < LEAST_STEPS:
        return Judgement(of, np.full(count, np.exp(np.median(x[first:])) if count else 1.0) * known)
    rest, mine = x[first:], of[first:]
    season, period = _season(rest)
    rest = rest - season
    growth, changes = _changes(rest)
    flat = _in_segments(rest, changes, lambda part: np.full(len(part), np.median(part)))
    second = _second_kind(rest - flat)
    rest = rest - second
    level = _in_segments(rest, changes, _running_median)
    left = rest - level
    limit = _limit(left)
    if limit > _MAX_LIMIT:
        return Judgement(of, np.full(count, np.exp(np.median(x[first:]))) * known)
    mine[season > max(limit / 2, _LEAST)] = PERIODIC
    mine[second != 0] = np.where(second > 0, SECOND, FAST)[second != 0]
    mine[left < -_limit(-left)] = FAST
    slow = np.flatnonzero(left > limit)
    mine[slow] = SLOW
    if not period and (period := regular_period(slow, len(rest))):
        mine[slow[slow % period == np.bincount(slow % period).argmax()]] = PERIODIC
    expected = np.exp(np.append(np.full(first, level[0]), level)) * known
    by = [float(np.exp(flat[at] - flat[at - 1])) for at in changes]
    return Judgement(
        of, expected, tuple(zip((first + at for at in changes), by, strict=True)), growth, period, math.exp(limit)
    )


def _limit(left: Floats) -> float:
    """The limit above which a step is slow; ``left`` are the logarithms of times minus level and pattern.

    Beyond the upper quartile, an exponential tail halves over each further distance of quartile to octile. The distance
    in a normal distribution is the minimum, because the distance in few samples may be too short.
    """
    limit, kept = math.inf, left
    for _ in range(_ROUNDS):  # slow steps make the limit too high: once more without them
        kept = kept[kept <= limit]
        quartile, octile = np.quantile(kept, [0.75, 0.875])
        half = max(octile - quartile, _NORMAL_RATIO * quartile) * (1 + _SMALL / len(kept))
        limit = max(float(quartile + half * math.log2(max(len(kept), 20) / (4 * ALPHA))), _LEAST)
    return limit


def count_warm_up(span: Ints, fitted: Floats | None = None) -> int:
    """Count the steps at the beginning that are slow by the limit of `judge`, until steps are no longer slow.

    With fewer than `LEAST_STEPS` steps, only the first can be warm-up, if it takes `_CLEARLY` times as long as each of
    at least two other steps.
    """
    if len(span) < LEAST_STEPS:
        return int(len(span) > 2 and span[0] > _CLEARLY * span[1:].max())
    x = np.log(np.maximum(span, 1) / (1.0 if fitted is None else fitted))
    rest = x[len(x) // 4 :]
    middle = float(np.median(rest))
    settled = x - middle <= min(_limit(rest - middle), math.log(_FAR_LONGER))
    for first in range(min(len(x) // 4, _MOST_WARM_UP) + 1):
        if settled[first : first + _SETTLED].all():
            return first
    return 0


def _running_median(part: Floats) -> Floats:
    if len(part) <= 2 * _WINDOW:
        return np.full(len(part), np.median(part))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(part, _WINDOW // 2, mode="symmetric"), _WINDOW)
    some = range(0, len(part), _CHUNK)  # a median copies its windows
    return np.concatenate([np.median(windows[low : low + _CHUNK], axis=1) for low in some])


def _in_segments(values: Floats, changes: Sequence[int], level: Callable[[Floats], Floats]) -> Floats:
    return np.concatenate([level(part) for part in np.split(values, list(changes))])


def _season(x: Floats) -> tuple[Floats, int]:
    """The additional time of each step due to its position in a period (in logarithms), and the period; 0 if there is
    none.

    There is a period if one half of the last cycles predicts the other half so well that the absolute deviations fall
    by half.
    """
    late = (x - _running_median(x))[-_LAST:]
    for period in range(2, min(_MAX_PERIOD, len(late) // _LEAST_CYCLES) + 1):
        cycles = late[: len(late) // period * period].reshape(-1, period)
        half = len(cycles) // 2
        early, others = np.median(cycles[:half], axis=0), cycles[half:]
        if np.abs(others - early).mean() < np.abs(others).mean() / 2:
            phases = np.median(cycles, axis=0)
            phases = phases - np.median(phases)
            return phases[(np.arange(len(x)) - (len(x) - len(late))) % period], period
    return np.zeros(len(x)), 0


def regular_period(hits: Index, count: int) -> int:
    """Return the period with which most of the ``hits`` repeat among ``count`` steps, 0 if there is none."""
    gaps = np.diff(hits)
    gaps = gaps[gaps >= 2]
    if not len(gaps):
        return 0
    values, times = np.unique(gaps, return_counts=True)
    period = int(values[times.argmax()])
    phases = np.bincount(hits % period)
    most, slots = int(phases.max()), len(range(int(phases.argmax()), count, period))
    enough = most >= max(_LEAST_HITS, _HIT_SHARE * slots) and 2 * most > len(hits)
    return period if enough else 0


def _second_kind(left: Floats) -> Floats:
    """By how much steps of the second, rarer kind differ; 0 for steps of the first kind, or if there is one kind.

    Times are split where the variance between the two parts is largest. The parts are two kinds if the gap between them
    is three times as wide as their middle halves, and the smaller part has more than `MAX_OUTLIERS` of the steps. Fewer
    than 16 steps are one kind, because some may be far from the others by chance.
    """
    out, count = np.zeros(len(left)), len(left)
    if count < 2 * _LEAST_SEGMENT:
        return out
    order = np.argsort(left, kind="stable")
    x = left[order]
    low = np.arange(1, count)
    sums = np.cumsum(x)[:-1]
    between = (sums / low - (x.sum() - sums) / (count - low)) ** 2 * low * (count - low)
    at = int(between.argmax()) + 1
    few, many = (order[:at], order[at:]) if 2 * at < count else (order[at:], order[:at])
    gap = np.quantile(x[at:], 0.05) - np.quantile(x[:at], 0.95)
    widths = [np.subtract(*np.quantile(part, [0.75, 0.25])) for part in (x[:at], x[at:])]
    if len(few) > max(MAX_OUTLIERS * count, _LEAST_HITS - 1) and gap > max(3 * max(widths), _LEAST):
        out[few] = np.median(left[few]) - np.median(left[many])
    return out


def _changes(x: Floats) -> tuple[float | None, list[int]]:
    """Either the drift (else None) or the places where the level changes for good: whichever describes more."""
    changes = _split(x, _MAX_CHANGES)
    trend = drift(np.exp(x))
    if not trend.significant:
        return None, sorted(changes)
    time = np.arange(len(x)) - (len(x) - 1) / 2
    flat = _in_segments(x, sorted(changes), lambda part: np.full(len(part), np.median(part)))
    parts = min(_PARTS, len(x))
    slope = np.median(np.diff([np.median(part) for part in np.array_split(x, parts)])) * parts / len(x)
    line = np.median(x - slope * time) + slope * time
    if np.abs(x - line).sum() < np.abs(x - flat).sum():
        return trend.change, []
    return None, sorted(changes)


def _split(x: Floats, most: int) -> list[int]:
    """Where the level changes in ``x``, then in both parts: at most ``most`` places.

    If no change is clear in all of ``x``, both halves and the middle are searched: several changes look like
    dependence.
    """
    if most <= 0:
        return []
    half = len(x) // 2
    parts = ((0, x), *((low, x[low : low + half]) for low in (0, half // 2, len(x) - half)))
    cut = next((low + at for low, part in parts if (at := _largest_change(part))), 0)
    if not cut:
        return []
    before, after = _split(x[:cut], most // 2), _split(x[cut:], most // 2)
    return [cut, *before, *(cut + each for each in after)]


def _largest_change(x: Floats) -> int:
    """The place where ranks change most; 0 if no change is clear."""
    count = len(x)
    if count < 2 * _LEAST_SEGMENT:
        return 0
    ranks = mid_ranks(x)
    ranks = ranks - ranks.mean()
    if not ranks.any():
        return 0
    sums = np.cumsum(ranks)[_LEAST_SEGMENT - 1 : count - _LEAST_SEGMENT]
    at = int(np.abs(sums).argmax())
    cut = at + _LEAST_SEGMENT
    away = np.abs(x - np.median(x[:cut])) - np.abs(x - np.median(x[cut:]))  # ranks turn a little early or late
    low = _LEAST_SEGMENT - 1
    cut = low + 1 + int(np.cumsum(away)[low : count - _LEAST_SEGMENT].argmin())
    first, second = x[:cut], x[cut:]
    rest = np.append(first - np.median(first), second - np.median(second))
    worth = dependence(rest)
    largest = abs(sums[at]) / (ranks.std() * math.sqrt(count)) * math.sqrt(worth.effective / count)
    clear = largest >= _CHANGE and abs(np.median(second) - np.median(first)) >= _LEAST
    return cut if clear else 0
