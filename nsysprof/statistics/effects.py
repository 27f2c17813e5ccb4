"""How far two samples lie apart, by ranks: the Hodges-Lehmann shift and Cliff's delta, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nsysprof.statistics.dependence import Dependence
from nsysprof.statistics.distributions import Floats, normal_quantile, split_p, t_quantile
from nsysprof.statistics.resampling import RANGE, RANKS, ConfidenceInterval

# Cut-offs of the absolute Cliff's delta: Romano, Kromrey, Coraggio and Skowronek (2006), Appropriate statistics for
# ordinal level data, annual meeting of the Florida Association of Institutional Research.
DELTA_WORDS = ((0.147, "negligible"), (0.33, "small"), (0.474, "medium"), (np.inf, "large"))


def shift_of(
    sides: tuple[Floats, Floats], orders: tuple[Dependence, Dependence], level: float
) -> tuple[float, ConfidenceInterval]:
    """The Hodges-Lehmann shift, with the differences as its interval that the rank test would not reject.

    Its half width in ranks is a quantile times the standard deviation of U (Hollander, Wolfe and Chicken 2014,
    section 4.3), which grows where samples are worth fewer independent ones.
    """
    m, n = (len(sample) for sample in sides)
    middle = (m * n + 1) / 2
    spread = m * n * np.sqrt(_rank_variance(orders))
    reach = _reach(orders, level) * spread
    first = int(np.floor(m * n / 2 - reach + 0.5))
    out, held = RANKS, level
    if first < 1:
        first, out = 1, RANGE
        held = min(level, 1 - split_p(orders[0].effective, orders[1].effective))
    ranks = [int(np.floor(middle)), int(np.ceil(middle)), first, m * n + 1 - first]
    below, above, low, high = ranked_differences(*sides, ranks).tolist()
    return (below + above) / 2, ConfidenceInterval(low, high, held, out)


def ranked_differences(base: Floats, new: Floats, ranks: Sequence[int]) -> Floats:
    """The differences new - base at ``ranks``, 1 the smallest of all len(base) x len(new), without making them all.

    Halves the interval in which each lies until float64 can tell no more, and then takes the nearest difference.
    """
    base, new = np.sort(base), np.sort(new)
    wanted = np.asarray(ranks)
    low = np.full(len(wanted), new[0] - base[-1])
    high = np.full(len(wanted), new[-1] - base[0])
    for _ in range(64):
        middle = (low + high) / 2
        enough = np.array([np.searchsorted(new, base + to, "right").sum() for to in middle]) >= wanted
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    out = np.empty(len(wanted))
    rounding = np.spacing(max(base[-1], new[-1]))  # by which base + to may fall short
    for at, to in enumerate(high + rounding):
        place = np.searchsorted(new, base + to, "right")
        out[at] = (new[place[place > 0] - 1] - base[place > 0]).max()
    return out


def _reach(orders: tuple[Dependence, Dependence], level: float) -> float:
    """How many standard deviations out: of the normal distribution, or of Student's t where a block is a sample."""
    if any(order.correlated for order in orders):
        return t_quantile(level, sum(order.blocks for order in orders) - 2)
    return normal_quantile((1 + level) / 2)


def _rank_variance(orders: tuple[Dependence, Dependence]) -> float:
    """The variance of U / (m n) where both samples come from the same distribution."""
    base, new = orders
    return (1 / base.effective + 1 / new.effective + 1 / (base.n * new.n)) / 12


def delta_of(
    sides: tuple[Floats, Floats], orders: tuple[Dependence, Dependence], level: float
) -> tuple[float, ConfidenceInterval]:
    """Cliff's delta with the asymmetric interval of Feng and Cliff (2004).

    The interval is Wilson's for a share with ``1 / scale`` observations; for samples that do not overlap, where the
    variance shows nothing, with as many as the smaller sample has.
    """
    base, new = sides
    ordered_base, ordered_new = np.sort(base), np.sort(new)
    smaller = np.searchsorted(ordered_new, base, "left") + np.searchsorted(ordered_new, base, "right")
    larger = np.searchsorted(ordered_base, new, "left") + np.searchsorted(ordered_base, new, "right")
    # of new over each of base, and of each of new over base
    dominance = 1 - smaller / len(new), larger / len(base) - 1
    delta = float(dominance[0].mean())
    effective = [order.effective for order in orders]
    fewest, total = min(effective), sum(effective)
    scale = 1 / fewest
    if abs(delta) < 1 and min(len(base), len(new)) > 1:
        variance = sum(each.var(ddof=1) / size for each, size in zip(dominance, effective, strict=True))
        scale = max(float(variance) / (1 - delta**2), 1 / total)
    reach = _reach(orders, level) ** 2 * scale
    half = np.sqrt(reach * (1 - delta**2 + reach))
    low, high = (delta - half) / (1 + reach), (delta + half) / (1 + reach)
    return delta, ConfidenceInterval(max(float(low), -1.0), min(float(high), 1.0), level, RANKS)


def delta_word(delta: float) -> str:
    """The size of Cliff's delta in a word of `DELTA_WORDS`."""
    return next(word for most, word in DELTA_WORDS if abs(delta) < most)
