"""Loops in a sequence of symbols, such as the launches of a thread: what repeats, within what, and where it begins.

Equal neighbours make one token. Then the shortest period that repeats anywhere is folded into one token wherever it
does, and so on with what is left, so that an inner loop of any number of rounds looks the same in each round of the
loop around it. A fold spans what interrupts a loop for less than half a period: an extra kernel now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.columns import mixed
from nsysprof.core.intervals import Ints, expand_ranges
from nsysprof.core.nesting import enclosing

_GRAMS = (1, 2, 4, 8, 16)  # lengths of the pieces whose distances propose periods
_CANDIDATES = 64  # periods to try at a time
_FOLDS = 64  # how often to fold at most
_SEED = 3  # rounds without any variation that make a loop

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Loop:
    """What repeats from symbol ``start`` to before ``end``.

    ``starts`` int64, the first symbol of each round, in order; of the last one less than half is there where it is
    ``cut_off``. ``seam`` are the symbols between which a round begins: the last of one and the first of the next.
    """

    start: int
    end: int
    starts: Ints
    cut_off: bool
    seam: tuple[int, int]


@dataclass(frozen=True)
class _Level:
    """A fold: the tokens before it, the first symbol of each (and the end), and where they repeat every ``period``.
    ``plain`` are the tokens of the symbols themselves.

    Stretch ``[first, last)`` of tokens belongs to ``chain``; stretches of one chain are interrupted by variations.
    """

    plain: Words
    tokens: Words
    at: Ints
    period: int
    first: Ints
    last: Ints
    chain: Ints

    def chains(self) -> tuple[Ints, Ints]:
        """The first symbol of each chain, and the one after its last."""
        count = int(self.chain[-1]) + 1
        begin = np.searchsorted(self.chain, np.arange(count))
        end = np.searchsorted(self.chain, np.arange(count), side="right") - 1
        return self.at[self.first[begin]], self.at[self.last[end]]


def fold_loops(symbols: Ints) -> list[_Level]:
    """Fold a sequence, see above: the folds, from the innermost; the first is that of equal neighbours."""
    words = mixed(symbols.astype(np.uint64))
    new = np.flatnonzero(np.append(True, words[1:] != words[:-1])[: len(words)])
    at = np.append(new, len(words))
    repeated = np.flatnonzero(np.diff(at) >= _SEED)
    levels = [
        _Level(
            words,
            words,
            np.arange(len(words) + 1),
            1,
            at[repeated],
            at[repeated + 1],
            np.arange(len(repeated)),
        )
    ]
    tokens = words[new]
    for _ in range(_FOLDS):
        folded = next(
            (each for p in _periods(tokens) if (each := _fold(words, tokens, at, p)) is not None), None
        )
        if folded is None:
            break
        levels.append(folded)
        tokens, at = _folded(folded)
    return [level for level in levels if len(level.chain)]


def _periods(tokens: Words) -> list[int]:
    """Periods that the distance of equal pieces proposes, in ascending order."""
    count = len(tokens)
    support, piece = np.zeros(count + 1, np.int64), tokens
    for size in _GRAMS:
        if size > 1:
            half = size // 2
            if len(piece) <= half:
                break
            with np.errstate(over="ignore"):
                piece = mixed(piece[:-half] * np.uint64(3) + piece[half:])
        order = np.argsort(piece, kind="stable")
        equal = piece[order][1:] == piece[order][:-1]
        distance = np.diff(order)[equal]
        np.maximum(support, np.bincount(distance, minlength=count + 1), out=support)
    periods = np.flatnonzero(support >= _SEED - 1)
    periods = periods[(periods >= 2) & (_SEED * periods <= count)]
    best = periods[np.argsort(-support[periods], kind="stable")[:_CANDIDATES]]
    return np.sort(best).tolist()  # type: ignore[no-any-return]


def _fold(plain: Words, tokens: Words, at: Ints, period: int) -> _Level | None:
    """Find where tokens repeat with a period, `_SEED` rounds or more; None for nowhere."""
    equal = (tokens[period:] == tokens[:-period]).astype(np.int8)
    edge = np.flatnonzero(np.diff(np.concatenate([[0], equal, [0]])))
    first, last = edge[0::2], edge[1::2]
    long = last - first >= period
    first, last = first[long], last[long] + period
    seed = last - first >= _SEED * period
    if not seed.any():
        return None
    first[1:] = np.maximum(first[1:], last[:-1])
    with np.errstate(over="ignore"):  # the sum of a round is the same wherever the round begins
        total = np.append(np.uint64(0), np.cumsum(mixed(tokens)))
        body = total[np.minimum(first + period, last)] - total[first]
    near = first[1:] - last[:-1] <= (period // 2 if period > _SEED else 0)
    chain = np.cumsum(np.append(0, ~(near & (body[1:] == body[:-1]))))
    good = np.zeros(int(chain[-1]) + 1, bool)
    good[chain[seed]] = True
    kept = good[chain] & (last > first)
    return _Level(plain, tokens, at, period, first[kept], last[kept], (np.cumsum(good) - 1)[chain[kept]])


def _folded(level: _Level) -> tuple[Words, Ints]:
    """The tokens after a fold, one for each chain, and their first symbols."""
    begin = np.flatnonzero(np.append(True, np.diff(level.chain) > 0))
    end = np.append(begin[1:], len(level.chain)) - 1
    first, last = level.first[begin], level.last[end]
    with np.errstate(over="ignore"):
        total = np.append(np.uint64(0), np.cumsum(mixed(level.tokens)))
        body = mixed(total[first + level.period] - total[first] + np.uint64(level.period))
    inside = np.zeros(len(level.tokens) + 1, np.int64)
    np.add.at(inside, first + 1, 1)
    np.add.at(inside, last, -1)
    kept = np.flatnonzero(np.cumsum(inside[:-1]) == 0)
    tokens = level.tokens.copy()
    tokens[first] = body
    return tokens[kept], np.append(level.at[kept], level.at[-1])


# ---- loops of a fold, with their rounds


@dataclass(frozen=True)
class Chains:
    """All chains of all folds, each before those inside it: their symbols ``[start, end)``, the fold, the number in it,
    and ``parent``, the innermost other chain around each, -1 for none.
    """

    levels: list[_Level]
    start: Ints
    end: Ints
    level: Ints
    chain: Ints
    parent: NDArray[np.int32]


def chains_of(levels: list[_Level]) -> Chains:
    """Collect the chains of all folds of a sequence."""
    ends = [level.chains() for level in levels]
    start, end = (np.concatenate([each[at] for each in ends]) for at in (0, 1))
    level = np.repeat(np.arange(len(ends)), [len(each[0]) for each in ends])
    chain = np.concatenate([np.arange(len(each[0])) for each in ends])
    order = np.lexsort((-level, -end, start))
    start, end = start[order], end[order]
    return Chains(levels, start, end, level[order], chain[order], enclosing(end))


def rounds(chains: Chains, row: int, symbols: Ints, gap: Ints, seam: tuple[int, int] | None = None) -> Loop:
    """One chain with its rounds. They begin where the chain does, or so that it ends with a whole round: of the two
    where the longer ``gap`` (int64, before each symbol) is. Or at the ``seam`` of another loop, where there is one.
    """
    level = chains.levels[int(chains.level[row])]
    span = slice(*np.searchsorted(level.chain, [chains.chain[row], chains.chain[row] + 1]).tolist())
    first, last = level.first[span].tolist(), level.last[span].tolist()
    one_round = level.tokens[first[0] : first[0] + level.period]
    shift = [_shift(level, one_round, at) for at in first]
    over = (last[-1] - first[-1] - shift[-1]) % level.period
    second = level.at[first[0] + level.period + np.arange(level.period)]
    seams = list(zip(symbols[second - 1].tolist(), symbols[second].tolist(), strict=True))
    cuts = [cut for cut, each in enumerate(seams) if each == seam] or [0, over]

    def waits(cut: int) -> float:
        return float(np.median(gap[level.at[np.array(_places(level.period, first, last, shift, cut))]]))

    cut = max(cuts, key=waits)
    places = _places(level.period, first, last, shift, cut)
    starts = _begin(level, np.array(places, np.int64), symbols)
    cut_off = 2 * (last[-1] - places[-1]) < level.period
    return Loop(int(chains.start[row]), int(chains.end[row]), starts, cut_off, seams[cut])


def _shift(level: _Level, one_round: Words, at: int) -> int:
    """How many tokens after ``at`` the loop is where ``one_round`` begins."""
    period = len(one_round)
    for shift in np.flatnonzero(level.tokens[at : at + period] == one_round[0]).tolist():
        if np.array_equal(level.tokens[at + shift : at + shift + period], one_round):
            return int(shift)
    return 0


def _places(period: int, first: list[int], last: list[int], shift: list[int], cut: int) -> list[int]:
    """The tokens with which rounds begin; one that a variation replaced counts where it would be."""
    out: list[int] = []
    before = 0
    for begin, end, by in zip(first, last, shift, strict=True):
        mine = list(range(begin + (cut + by) % period, end, period))
        if out and mine and mine[0] - out[-1] > 3 * period // 2:
            out.append(min(out[-1] + period, begin) if out[-1] + period >= before else before)
        out += mine
        before = end
    return out


def _begin(level: _Level, places: Ints, symbols: Ints) -> Ints:
    """The first symbol of each round. Where a round ends with what the next one begins with, the two share a token:
    then as many symbols of it count to the next as the first round begins with.
    """
    begin, end = level.at[places], level.at[places + 1]
    size = end - begin
    wanted = min(int(size[0]), int(np.median(size)))
    alike: NDArray[np.bool_] = symbols[begin] == symbols[end - 1]
    alike &= level.tokens[places] == level.plain[begin]  # no folded loop
    return np.where(alike & (size > wanted), end - wanted, begin)


def inner_rounds(chains: Chains, rows: Ints) -> tuple[Ints, Ints, Ints, NDArray[np.bool_]]:
    """The rounds of chains of one fold, which begin where each stretch of them does: int64 symbols ``[start, stop)``
    and the number of each round in its chain; bool, the last of it.
    """
    level = chains.levels[int(chains.level[rows[0]])]
    some = np.flatnonzero(np.isin(level.chain, chains.chain[rows]))
    first, last, chain = level.first[some], level.last[some], level.chain[some]
    count = (last - first + level.period // 2) // level.period
    within = expand_ranges(np.zeros_like(count), count)
    start = level.at[np.repeat(first, count) + level.period * within]
    of = np.repeat(chain, count)
    new = np.append(True, of[1:] != of[:-1])
    begin = np.flatnonzero(new)
    number = np.arange(len(of)) - np.repeat(begin, np.diff(np.append(begin, len(of))))
    final = np.append(new[1:], True)
    stop = np.append(start[1:], 0)
    end = np.zeros(int(level.chain[-1]) + 1, np.int64)
    np.maximum.at(end, chain, level.at[last])
    stop[final] = end[of[final]]
    return start, stop, number, final
