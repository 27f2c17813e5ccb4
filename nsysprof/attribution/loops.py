"""Find loops in a sequence of symbols, such as the launches of a thread, with their nesting and bounds.

Consecutive equal symbols become one token. Then all repetitions of the shortest repeating period become one token, and
so on for longer periods. So an inner loop looks the same in each round of the outer loop, even if its number of rounds
varies. Interruptions shorter than half a period, such as an occasional extra kernel, are ignored.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arrays import Ints, Ints32, Mask
from nsysprof.core.columns import mixed
from nsysprof.core.intervals import expand_ranges
from nsysprof.core.nesting import enclosing

_GRAMS = (1, 2, 4, 8, 16)  # lengths of the pieces whose distances propose periods
_CANDIDATES = 64  # periods to try at a time
_DEPTH = 12  # how deep loops are in loops at most
_SEED = 3  # rounds without any variation that make a loop
_FOLLOWED, _VARIED = 8, 0.005  # kinds of loops followed through variations, by what they have without
_PAIRS = 4  # pairs of tokens that tell where in a round they are, from which on one alone proves nothing

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Loop:
    """A loop over the symbols ``[start, end)``.

    ``starts`` int64: the first symbol of each round, in order. ``cut_off``: whether less than half of the last round is
    present. ``seam``: the last symbol of a round and the first symbol of the next round.
    """

    start: int
    end: int
    starts: Ints
    cut_off: bool
    seam: tuple[int, int]


@dataclass(frozen=True)
class _Fold:
    """The ``tokens`` before a fold, the first symbol of each and the end (``at``), and the loops of this ``period``.

    A loop (here called a chain) consists of the tokens ``[first, last)``; two of its rounds, without any variation,
    begin at ``clean``. ``plain`` are the tokens of the symbols themselves.
    """

    plain: Words
    tokens: Words
    at: Ints
    period: int
    first: Ints
    last: Ints
    clean: Ints


def fold_loops(symbols: Ints, exact: Ints) -> list[_Fold]:
    """Fold a sequence (see the module), and return the folds that contain loops, innermost first.

    The first fold joins neighbours that are equal in ``exact``; the other folds compare ``symbols``.
    """
    words = mixed(symbols.astype(np.uint64))
    new = np.flatnonzero(np.append(True, words[1:] != words[:-1])[: len(words)])
    at = np.append(new, len(words))
    run = np.append(np.flatnonzero(np.append(True, exact[1:] != exact[:-1])), len(exact))
    repeated = np.flatnonzero(np.diff(run) >= _SEED)
    first = run[repeated]
    folds = [_Fold(words, words, np.arange(len(words) + 1), 1, first, run[repeated + 1], first)]
    tokens = words[new]
    for _ in range(_DEPTH):
        before = len(folds)
        for period in _periods(tokens):
            if (loops := _loops(words[at[:-1]], tokens, period)) is not None:
                folds.append(_Fold(words, tokens, at, period, *loops))
                tokens, at = _folded(folds[-1])
        if len(folds) == before:
            break
    return folds if len(repeated) else folds[1:]


def _periods(tokens: Words) -> list[int]:
    """Candidate periods from the distances between equal pieces, in ascending order."""
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
    return np.sort(best).tolist()


def _loops(plain: Words, tokens: Words, period: int) -> tuple[Ints, Ints, Ints] | None:
    """Find where tokens repeat: first, last and clean of `_Fold`, or None if nowhere. Tokens that differ from ``plain``
    are folded loops.
    """
    equal = (tokens[period:] == tokens[:-period]).astype(np.int8)
    edge = np.flatnonzero(np.diff(np.concatenate([[0], equal, [0]])))
    long = edge[1::2] - edge[0::2] >= (_SEED - 1) * period
    for part in (each for each in range(1, period // 2 + 1) if period % each == 0 and long.any()):
        differs = np.append(0, np.cumsum(tokens[part:] != tokens[:-part]))
        places = edge[0::2]  # rounds that are rounds of a shorter loop are none
        long &= differs[np.minimum(places + period, len(differs) - 1)] > differs[places]
    if not long.any():
        return None
    first, last = edge[0::2][long], edge[1::2][long] + period
    clean = first.copy()
    first[1:] = np.maximum(first[1:], last[:-1])
    body = _bodies(tokens, clean, period)
    taken = np.zeros(len(tokens) + 1, bool)
    followed = []
    kinds, of = np.unique(body, return_inverse=True)
    held = np.bincount(of.reshape(-1), weights=last - first)
    pair, loops_before = _pairs(tokens), np.append(0, np.cumsum(tokens != plain))
    for kind in np.argsort(-held, kind="stable")[:_FOLLOWED].tolist():
        if period < _PAIRS or held[kind] < _VARIED * len(tokens):
            break
        at = int(clean[np.argmax(body == kinds[kind])])
        for begin, end in _followed(pair, at, period, taken, loops_before):
            followed.append((begin, end, at))
            taken[begin:end] = True
    gone = np.append(0, np.cumsum(taken))
    free = np.flatnonzero((gone[first] == gone[last]) & (last - first >= _SEED * period))
    several = np.array(followed, np.int64).reshape(-1, 3)
    columns = [np.append(one, other[free]) for one, other in zip(several.T, (first, last, clean), strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return (columns[0][order], columns[1][order], columns[2][order]) if len(order) else None


def _bodies(tokens: Words, at: Ints, period: int) -> Words:
    """A word for the round at each place, independent of the token at which the round begins."""
    with np.errstate(over="ignore"):
        total = np.append(np.uint64(0), np.cumsum(mixed(tokens)))
        return mixed(total[at + period] - total[at] + np.uint64(period))


def _pairs(tokens: Words) -> Words:
    """A word for each pair of consecutive tokens."""
    with np.errstate(over="ignore"):
        return mixed(tokens[:-1] * np.uint64(3) + tokens[1:])


def _in_phase(pair: Words, one_round: Words) -> tuple[Ints, Ints, int]:
    """The pairs of tokens with a unique position in a round, and for each the start of its round. If there are enough
    pairs, only pairs that agree with a neighbour count. Also the number of these pairs in a round without variation.
    """
    known, phase, count = np.unique(one_round, return_index=True, return_counts=True)
    known, phase = known[count == 1], phase[count == 1]
    if not len(known):
        return np.empty(0, np.int64), np.empty(0, np.int64), 0
    place = np.minimum(np.searchsorted(known, pair), len(known) - 1)
    at = np.flatnonzero(known[place] == pair)
    begin = at - phase[place[at]]
    if len(known) >= _PAIRS:
        step = np.diff(begin)
        agrees = (step == 0) | (step == len(one_round))
        kept = np.append(agrees, False) | np.append(False, agrees)
        at, begin = at[kept], begin[kept]
    return at, begin, len(known)


def _followed(pair: Words, clean: int, period: int, taken: Mask, loops_before: Ints) -> list[tuple[int, int]]:
    """The places where the loop of a clean round continues, across variations that are shorter than half a round and
    contain no loop; ``taken`` tokens are left out.
    """
    at, begin, usual = _in_phase(pair, pair[clean : clean + period])
    free = ~taken[at] & ~taken[at + 1]
    at, begin = at[free], begin[free]
    if not len(at):
        return []
    new = np.append(True, np.diff(begin) >= period / 2)
    of = np.cumsum(new) - 1
    full = 2 * np.bincount(of) >= usual
    apart = np.append(True, np.diff(at) > period // 2 + period // max(usual, 1))
    apart[1:] |= loops_before[at[1:]] > loops_before[np.minimum(at[:-1] + 2, at[1:])]
    stretch = np.cumsum(apart) - 1
    count, good = np.bincount(stretch[new]), np.bincount(stretch[new], weights=full)
    first = np.flatnonzero(apart)
    last = np.append(first[1:], len(at)) - 1
    kept = np.flatnonzero((good > _SEED) & (2 * good >= count))
    return list(zip(at[first[kept]].tolist(), (at[last[kept]] + 2).tolist(), strict=True))


def _folded(fold: _Fold) -> tuple[Words, Ints]:
    """The tokens after a fold, with one token per chain, and their first symbols."""
    inside = np.zeros(len(fold.tokens) + 1, np.int64)
    np.add.at(inside, fold.first + 1, 1)
    np.add.at(inside, fold.last, -1)
    kept = np.flatnonzero(np.cumsum(inside[:-1]) == 0)
    tokens = fold.tokens.copy()
    tokens[fold.first] = _bodies(fold.tokens, fold.clean, fold.period)
    return tokens[kept], np.append(fold.at[kept], fold.at[-1])


@dataclass(frozen=True)
class Chains:
    """The loops of all folds, outer loops first. Each loop covers the symbols ``[start, end)`` and is number ``chain``
    of its ``fold``. ``count`` is the approximate number of its rounds, and ``parent`` is the innermost loop around it,
    -1 for none.
    """

    folds: list[_Fold]
    start: Ints
    end: Ints
    fold: Ints
    chain: Ints
    count: Ints
    parent: Ints32


def chains_of(folds: list[_Fold]) -> Chains:
    """Collect the loops of all folds of a sequence."""
    start = np.concatenate([each.at[each.first] for each in folds])
    end = np.concatenate([each.at[each.last] for each in folds])
    fold = np.repeat(np.arange(len(folds)), [len(each.first) for each in folds])
    chain = np.concatenate([np.arange(len(each.first)) for each in folds])
    count = np.concatenate([(each.last - each.first) // each.period for each in folds])
    order = np.lexsort((-fold, -end, start))
    start, end = start[order], end[order]
    return Chains(folds, start, end, fold[order], chain[order], count[order], enclosing(end))


def rounds(
    chains: Chains, row: int, symbols: Ints, gap: Ints, seam: tuple[int, int] | None = None, since: int = 0
) -> Loop:
    """Return one loop with its rounds. Rounds are counted from the start or from the end of the loop, whichever leaves
    the longer gap before each round (``gap`` int64: the gap before each symbol). A gap without variation nearby counts
    double. If the ``seam`` of another loop occurs in this loop, rounds begin there. A first round that differs from the
    other rounds may begin earlier, but not before ``since``.
    """
    fold, chain = chains.folds[int(chains.fold[row])], int(chains.chain[row])
    first, last, clean = (int(each[chain]) for each in (fold.first, fold.last, fold.clean))
    pair, period = _pairs(fold.tokens[first:last]), fold.period
    one_round = _pairs(fold.tokens[clean : clean + 2 * period])
    at, begin, usual = _in_phase(pair, one_round[:period])
    cuts = {0: True}
    if len(at):
        few = min(usual, len(at))
        cuts = {int(at[-1] - begin[-1] + 2) % period: bool(at[-1] - at[-few] < period)}
        left = int(at[0] - begin[0])
        cuts[left] = bool(at[few - 1] - at[0] < period) or cuts.get(left, False)
    second = fold.at[clean + period + np.arange(period)]
    seams = list(zip(symbols[second - 1].tolist(), symbols[second].tolist(), strict=True))
    cuts = {cut: True for cut, each in enumerate(seams) if each == seam} or cuts
    places = {cut: first + _places(pair, one_round[cut : cut + period], last - first) for cut in cuts}
    waits = {cut: max(float(np.median(gap[fold.at[places[cut]]])), 1) for cut in cuts}
    cut = max(sorted(cuts), key=lambda cut: waits[cut] * (1 + cuts[cut]))
    place = places[cut]
    low = max(int(place[0]) - period // 2, int(np.searchsorted(fold.at, since)))
    head = fold.tokens[low : int(place[0]) + 1] == fold.tokens[clean + cut]
    if head.any():  # where a variation is near the first head
        place[0] -= len(head) - 1 - int(np.flatnonzero(head)[-1])
    cut_off = 2 * (last - int(place[-1])) < period
    return Loop(int(chains.start[row]), int(chains.end[row]), _begin(fold, place, symbols), cut_off, seams[cut])


def _places(pair: Words, one_round: Words, size: int) -> Ints:
    """The starts of rounds among ``size`` tokens with these pairs, except a round whose larger half is before them."""
    period = len(one_round)
    at, begin, _ = _in_phase(pair, one_round)
    if not len(at):
        return np.arange(0, size, period)
    if at[-1] == size - 2:  # the last token ends a pair and begins none
        at = np.append(at, size - 1)
        begin = np.append(begin, size - 1 - (at[-2] + 1 - begin[-1]) % period)
    new = np.append(True, np.diff(begin) >= period / 2)
    new[0] = 2 * begin[0] > -period
    out: Ints = np.maximum(begin, np.append(0, at[:-1] + 1))[new]
    return out if len(out) else np.zeros(1, np.int64)


def _begin(fold: _Fold, places: Ints, symbols: Ints) -> Ints:
    """The first symbol of each round. If a round ends with the symbol that begins the next, the two rounds share a
    token: the next round then gets as many symbols of this token as the first round begins with.
    """
    begin, end = fold.at[places], fold.at[places + 1]
    size = end - begin
    wanted = min(int(size[0]), int(np.median(size)))
    alike: Mask = symbols[begin] == symbols[end - 1]
    alike &= fold.tokens[places] == fold.plain[begin]  # no folded loop
    return np.where(alike & (size > wanted), end - wanted, begin)


def inner_rounds(chains: Chains, rows: Ints) -> tuple[Ints, Ints, Ints, Mask]:
    """Return the rounds in all loops of a fold, counted from the start of each loop. The columns are the symbols
    ``[start, stop)`` (int64), the number of the round in its loop, and whether the round is the last.
    """
    fold = chains.folds[int(chains.fold[rows[0]])]
    chain = np.sort(chains.chain[rows])
    first, last = fold.first[chain], fold.last[chain]
    count = np.maximum((last - first + fold.period // 2) // fold.period, 1)
    number = expand_ranges(np.zeros_like(count), count)
    start = fold.at[np.repeat(first, count) + fold.period * number]
    final = np.append(number[1:] == 0, True)
    stop = np.append(start[1:], 0)
    stop[final] = fold.at[last]
    return start, stop, number, final
