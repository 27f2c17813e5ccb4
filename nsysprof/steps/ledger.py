"""Break down the extra time of slow steps (compared with typical steps nearby) by cause, exact to the ns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from nsysprof.core.arrays import Array, Floats, Index, Ints, Mask
from nsysprof.core.columns import ColumnTable, Texts, distinct, sums
from nsysprof.core.intervals import expand_ranges
from nsysprof.waits.account import rows_of_windows
from nsysprof.waits.culprits import account
from nsysprof.waits.facts import COMPUTE, Facts
from nsysprof.waits.walk import HOST, Pieces
from nsysprof.waits.windows import Windows

MAX_EXPLAINED = 1000  # steps of a path, those furthest from typical
NEAR = 31  # typical steps whose mean a step is compared with
_KEYS = ("cause", "activity", "culprit")
_CLOCK_KERNELS, _CLOCK_SHARE, _CLOCK_EXCESS, _CLOCK_SPREAD = 3, 0.8, 0.7, 3.0


@dataclass(frozen=True)
class Excess:
    """Ledgers of steps, sorted by step: a row per cause, activity and culprit (codes of `Facts.words`).

    ``slow_ns`` is the time of the step in the row; ``typical_ns`` is the mean over the typical steps, in whole ns. In
    the rows of a step, the values of ``typical_ns`` add up to the mean step time (rounded down).
    """

    step: Index
    cause: Ints
    activity: Ints
    culprit: Ints
    slow_ns: Ints
    typical_ns: Ints

    @property
    def delta_ns(self) -> Ints:
        """The additional time in each row: time of the step minus typical time."""
        return self.slow_ns - self.typical_ns

    @property
    def longer(self) -> dict[int, int]:
        """Return how many ns longer each step takes than the typical steps nearby."""
        steps, place = np.unique(self.step, return_inverse=True)
        return dict(zip(steps.tolist(), sums(place, self.delta_ns, len(steps)).tolist(), strict=True))

    def without(self, steps: Index) -> Excess:
        """The ledgers of all steps except ``steps``."""
        kept = ~np.isin(self.step, steps)
        return Excess(**{each.name: getattr(self, each.name)[kept] for each in fields(Excess)})

    def table(self, facts: Facts) -> ColumnTable:
        """Decode the columns of `tables.LEDGER` after the pid; the largest excess of each step comes first."""
        words, keys = facts.words, {name: getattr(self, name) for name in _KEYS}
        texts = {name: Texts(codes, words[name]) for name, codes in keys.items()}
        times = {"slow_ns": self.slow_ns, "typical_ns": self.typical_ns, "delta_ns": self.delta_ns}
        order = np.lexsort((*_order_of_texts(facts, keys), -self.delta_ns, self.step))
        return ColumnTable({"step": self.step, **texts, **times}).take(order)

    def largest(self, facts: Facts, count: int) -> dict[str, Array]:
        """Return columns with a row for each of ``count`` steps: ``typical_ns``, ``excess_ns`` and the largest part of
        the excess: cause, activity, culprit, ``culprit_ns``; NaN for steps without a ledger.
        """
        table = self.table(facts)
        step, delta = table["step"], table["delta_ns"]
        times = {"typical_ns": sums(step, table["typical_ns"], count), "excess_ns": sums(step, delta, count)}
        sign = np.where(times["excess_ns"] < 0, -1, 1)
        order = np.lexsort((-delta * sign[step], step))  # of equal parts the first in the table
        steps, first = np.unique(step[order], return_index=True)
        most = table.take(order[first])
        columns: dict[str, Array] = {name: np.full(count, np.nan) for name in (*times, "culprit_ns")}
        columns |= {name: np.full(count, np.nan, object) for name in _KEYS}
        for name, values in times.items():
            columns[name][steps] = values[steps]
        for name in _KEYS:
            columns[name][steps] = most.texts(name).tolist()
        columns["culprit_ns"][steps] = most["delta_ns"]
        return columns


def excess_of(facts: Facts, windows: Windows, odd: Index, typical: Index, level: Floats | None) -> Excess:
    """Make the ledgers of the steps ``odd``, each compared with the `NEAR` nearest steps of ``typical``.

    The distance between two steps is the number of rows between them or, if step names determine a ``level``, the ratio
    of their levels. ``odd`` and ``typical`` are ascending rows of ``windows``.
    """
    if not len(odd) or not len(typical):
        none = np.empty(0, np.int64)
        return Excess(none, none, none, none, none, none)
    near = _nearest(odd, typical, level)
    used, place = np.unique(np.append(odd, near.ravel()), return_inverse=True)
    rows = _rows(facts, windows.take(used))
    first, key = distinct(*(rows[name] for name in _KEYS))
    begin = np.searchsorted(rows["group"], np.arange(len(used) + 1))
    size = np.diff(begin)[place]
    step = np.append(np.arange(len(odd)), np.repeat(np.arange(len(odd)), near.shape[1]))
    at = expand_ranges(begin[place], size)
    own = np.repeat(np.arange(len(place)) < len(odd), size)
    whose = np.repeat(step, size)
    example, cell = distinct(whose, key[at])
    ns = rows["ns"][at]
    slow, total = (sums(cell, np.where(some, ns, 0), len(example)) for some in (own, ~own))
    keys = {name: rows[name][first][key[at[example]]] for name in _KEYS}
    typical_ns = _shared_out(whose[example], total, near.shape[1], _order_of_texts(facts, keys))
    out = Excess(odd[whose[example]], **keys, slow_ns=slow, typical_ns=typical_ns)
    span = (windows.end - windows.start)[odd]
    assert (sums(whose[example], slow, len(odd)) == span).all(), "the rows of a ledger must add up to the step time"
    return out


def _order_of_texts(facts: Facts, keys: Mapping[str, Ints]) -> list[Index]:
    """The ranks of the texts behind the codes of each key, the last key first."""
    words = facts.words
    texts = [np.array(words[name], object)[codes] for name, codes in list(keys.items())[::-1]]
    return [np.unique(each, return_inverse=True)[1] for each in texts]


def _nearest(odd: Index, typical: Index, level: Floats | None) -> Index:
    """A row per step of ``odd`` with the typical steps that are nearest to it."""
    count = min(NEAR, len(typical))
    if level is None:
        where, values = typical.astype(np.float64), odd.astype(np.float64)
        order = np.arange(len(typical))
    else:
        order = np.argsort(level[typical], kind="stable")
        where, values = np.log(level[typical][order]), np.log(level[odd])
    low = np.maximum(np.searchsorted(where, values) - count, 0)
    high = np.minimum(low + 2 * count, len(typical))
    picked = []
    for value, first, last in zip(values.tolist(), low.tolist(), high.tolist(), strict=True):
        near = np.argsort(np.abs(where[first:last] - value), kind="stable")[:count]
        picked.append(typical[order[first + near]])
    return np.array(picked)


def _shared_out(step: Index, total: Ints, count: int, ties: Sequence[Index] = ()) -> Ints:
    """Totals of steps divided by ``count``, in whole numbers that add up to the quotient of the totals of each step.

    The rows with the largest remainders get one more, of equal ones those that come first by ``ties``, the last first.
    """
    out, rest = np.divmod(total, count)
    order = np.lexsort((*ties, -rest, step))
    begin = np.searchsorted(step[order], step[order])
    more = np.arange(len(order)) - begin < (sums(step, rest, int(step.max(initial=0)) + 1) // count)[step[order]]
    out[order] += more
    return out


def _rows(facts: Facts, windows: Windows) -> Mapping[str, Ints]:
    """What each window spends its time on, sorted by window: of windows without a GPU what the host did."""
    if (windows.gpu >= 0).all():
        rows = rows_of_windows(facts, windows)
    else:
        every = np.arange(len(windows))
        host = Pieces(every, windows.start, windows.end, np.full(len(every), HOST, np.uint8), windows.last)
        pieces = account(facts, host, every, windows)
        rows = {**pieces, "group": pieces["window"], "ns": pieces["end_ns"] - pieces["start_ns"]}
    order = np.argsort(rows["group"], kind="stable")
    return {name: values[order].astype(np.int64) for name, values in rows.items()}


def same_for_all_kernels(excess: Excess, steps: Index) -> Mask:
    """Mark steps that are slow because of the GPU's clock, and not because of the program. All kernels in these steps
    take longer.

    The test: most of the excess is compute, and at least three kernels slow down by the same percentage, within a
    factor of `_CLOCK_SPREAD`.
    """
    place = np.searchsorted(steps, excess.step)
    count = len(steps)
    compute = excess.cause == COMPUTE
    typical, delta = (np.where(compute, ns, 0) for ns in (excess.typical_ns, excess.delta_ns))
    all_typical, all_delta = (sums(place, ns, count) for ns in (typical, delta))
    growth = (all_delta / np.maximum(all_typical, 1))[place]
    own = delta / np.maximum(typical, 1)
    alike = compute & (typical > 0) & (own > growth / _CLOCK_SPREAD) & (own < growth * _CLOCK_SPREAD)
    share = sums(place, np.where(alike, typical, 0), count) / np.maximum(all_typical, 1)
    large = alike & (typical * 100 >= all_typical[place])
    enough = (all_delta > 0) & (all_delta >= _CLOCK_EXCESS * sums(place, excess.delta_ns, count))
    return enough & (share >= _CLOCK_SHARE) & (sums(place, large, count) >= _CLOCK_KERNELS)
