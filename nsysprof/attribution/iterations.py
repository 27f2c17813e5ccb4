"""Find unannotated iterations: launch sequences that a thread repeats. docs/iterations.md has the rules."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nsysprof.attribution.loops import Chains, Loop, chains_of, fold_loops, inner_rounds, rounds
from nsysprof.core.arrays import Index, Ints, Mask
from nsysprof.core.columns import sums
from nsysprof.core.text import plural
from nsysprof.trace.details import NO_RANGES, OtherRanges, RangeName
from nsysprof.trace.trace import FOUND, GRAPH, KERNEL, MEMSET, Trace, pid_of, tid_of

MIN_ROUNDS = (16, 4, 3)  # of a kind of loop, whose rounds have one launch,
_ROUND_SIZES = (1, 7)  # up to seven, or more
MIN_SHARE = 0.1  # of the launches of a thread that loops of one kind hold together; or
MIN_WORK_SHARE = 0.001  # of the time of what its launches run
_INNER_SHARE = 0.2  # of the launches of a loop that an inner one holds
_MAX_CHAINS, _MAX_KINDS = 200, 26  # loops of a thread that are looked at, the longest; and kinds of them
_FEW, _MOSTLY = 10, 0.8  # a loop of fewer rounds gives way to inner loops that hold so much of it
_ALIKE = 0.7  # of their symbols that two loops of one kind have in common
_IN_STEP = 0.8  # of the iterations of the leading thread, in which another one launches about as much each
_SIMILAR = 0.1  # how much about as much differs
_THREAD_SHARE = 0.001  # of the launches of a process that a thread has to have
_MAX_PAIRS = 2_000  # of threads that may be in step
_TURNS = 4  # that two threads in step take in an iteration, where one of them has more iterations of its own

# Which kernels a library takes for a matrix multiplication or convolution depends on shapes, and how wide PyTorch's
# element-wise kernels are on alignment.
_MATRIX = re.compile(
    r"(?!.*(?:flash|fmha|sdpa)).*(?:gemm|gemv|nvjet|xmma|splitk|cutlass|convolve|fprop|dgrad|wgrad|winograd)",
    re.IGNORECASE,
)
_WIDTH = re.compile(r"(?:vectorized_|unrolled_)?elementwise_kernel(?:_\w+)?<(?:\(int\)\d+, )+")


@dataclass(frozen=True)
class _Rounds:
    """Rounds of loops of one thread. A round has the launches ``[start, stop)`` (rows of `Trace.launches`) and a
    ``number`` in its loop. ``kind`` is the kind of the loop, 0 for the loop with most launches. ``inner`` tells whether
    the round is inside a round of another loop, and ``last`` whether it is the last round of its loop.
    """

    start: Ints
    stop: Ints
    number: Ints
    kind: Ints
    inner: Mask
    last: Mask


def find_iterations(trace: Trace) -> OtherRanges:
    """Find the iterations of a trace as ranges of kind FOUND, with a warning that describes them.

    Names are ``iteration 7`` and ``inner iteration 7``; if a thread has a second kind of loop, its iterations are named
    ``iteration B 7``.
    """
    launches = trace.launches
    symbols, exact, work = _symbols(trace)
    edges = np.searchsorted(launches.thread, np.arange(len(trace.threads) + 1))
    out: list[tuple[int, _Rounds, Ints]] = []
    for process in range(len(trace.processes)):
        members = np.flatnonzero(trace.thread_process == process).tolist()
        calls = slice(int(edges[members[0]]), int(edges[members[-1] + 1])) if members else slice(0, 0)
        gap = _gaps(launches.start[calls], launches.end[calls])
        paused = gap > launches.end[calls] - launches.start[calls]
        found: dict[int, _Rounds] = {}
        for thread in members:
            own = slice(*edges[thread : thread + 2].tolist())
            mine = slice(own.start - calls.start, own.stop - calls.start)
            if own.stop - own.start >= max(min(MIN_ROUNDS), _THREAD_SHARE * (calls.stop - calls.start)):
                loops = _thread_rounds(symbols[own], exact[own], work[own], gap[mine], paused[mine], own.start)
                found |= {thread: loops} if loops else {}
        out += _leaders(trace, found, edges)
    return _as_ranges(trace, out) if out else NO_RANGES


def _symbols(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """For each launch, a code for the launched work (equal if the work counts as equal), a code for its exact name, and
    the time that its kernels and graphs run.
    """
    ops = trace.ops
    rows = np.flatnonzero(ops.launch >= 0)
    if len(rows) != len(trace.launches):  # graphs: the first op stands for all
        rows = rows[np.lexsort((trace.op_name_rank[ops.name[rows]], ops.start[rows], ops.launch[rows]))]
        rows = rows[np.append(True, np.diff(ops.launch[rows]) > 0)] if len(rows) else rows
    recode, codes = np.zeros(len(trace.op_names), np.int64), {"": 0}  # 0: a matrix multiplication
    for name, code in sorted((name, code) for code, name in enumerate(trace.op_names)):
        if not _MATRIX.match(name.split("<", 1)[0]):
            recode[code] = codes.setdefault(_WIDTH.sub("elementwise_kernel<", name), len(codes))
    out, exact = (np.full(len(trace.launches), -1, np.int64) for _ in range(2))
    kind = np.full(len(trace.launches), MEMSET, np.uint8)
    for column, code_of in ((out, recode), (exact, trace.op_name_rank.astype(np.int64))):
        column[ops.launch[rows]] = code_of[ops.name[rows]] * 2 + ops.from_graph[rows]
    kind[ops.launch[rows]] = ops.kind[rows]
    before = np.flatnonzero((kind[:-1] == MEMSET) & (out[1:] == 0))  # a set of the workspace belongs to it
    out[before] = 0
    computes = (ops.kind == KERNEL) | (ops.kind == GRAPH)
    return out, exact, sums(ops.launch, np.where(computes, ops.end - ops.start, 0), len(out) + 1)[:-1]


def _gaps(start: Ints, end: Ints) -> Ints:
    """The time in ns without launches in the process before each launch; 0 before the first."""
    order = np.argsort(start, kind="stable")
    out = np.zeros(len(start), np.int64)
    out[order[1:]] = start[order[1:]] - np.maximum.accumulate(end[order])[:-1]
    return out


@dataclass(frozen=True)
class _Stretch:
    """Loops of one kind that follow one another: rows of `Chains`, the first launch of each round, and the end."""

    kind: int
    rows: Ints
    starts: Ints
    end: int


def _thread_rounds(symbols: Ints, exact: Ints, work: Ints, gap: Ints, paused: Mask, first: int) -> _Rounds | None:
    """The rounds of a thread's loops, or None; ``first`` is the thread's first launch; ``work`` is the GPU time (ns) of
    each launch.

    Rounds of one launch count only if most begin after a pause (``paused``): an endless run of one kernel has no
    iterations.
    """
    folds = fold_loops(symbols, exact)
    if not folds:
        return None
    chains = chains_of(folds)
    stretches = list(_stretches(chains, symbols, gap))
    held, busy, count, begun = (np.zeros(1 + max(each.kind for each in stretches), np.int64) for _ in range(4))
    for each in stretches:
        held[each.kind] += each.end - each.starts[0]
        busy[each.kind] += work[each.starts[0] : each.end].sum()
        count[each.kind] += len(each.starts)
        begun[each.kind] += np.count_nonzero(paused[each.starts])
    much = (held >= MIN_SHARE * len(symbols)) | (busy >= MIN_WORK_SHARE * work.sum())
    needed = np.array([MIN_ROUNDS[at] for at in np.searchsorted(_ROUND_SIZES, held / np.maximum(count, 1))])
    good = np.flatnonzero(much & (busy > 0) & (count >= needed) & ((held >= 2 * count) | (2 * begun > count)))
    good = good[np.argsort(-held[good], kind="stable")[:_MAX_KINDS]]
    parts: list[_Rounds] = []
    for number, kind in enumerate([*good[:1].tolist(), *np.sort(good[1:]).tolist()]):
        mine = [each for each in stretches if each.kind == kind]
        parts.append(outer := _outer(mine, number, first))
        parts += _inner(chains, np.concatenate([each.rows for each in mine]), first, outer)
    names = list(vars(parts[0])) if parts else []
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return _Rounds(**columns) if parts else None


def _stretches(chains: Chains, symbols: Ints, gap: Ints) -> Iterator[_Stretch]:
    """The outermost loops in order, with consecutive loops of one kind joined."""
    kinds: list[frozenset[int]] = []
    seams: list[tuple[int, int]] = []
    group: list[tuple[int, Loop]] = []
    before = -1
    since = 0
    for row in _outermost(chains).tolist():
        kind = _kind(kinds, frozenset(np.unique(symbols[chains.start[row] : chains.end[row]]).tolist()))
        loop = rounds(chains, row, symbols, gap, seams[kind] if kind < len(seams) else None, since)
        since = loop.end
        seams += [loop.seam] * (kind == len(seams))
        if group and (kind != before or 2 * (loop.start - group[-1][1].end) > _typical(group[-1][1])):
            yield _joined(before, group)
            group = []
        group.append((row, loop))
        before = kind
    if group:
        yield _joined(before, group)


def _outermost(chains: Chains) -> Ints:
    """The longest loops that are inside no other loop, in order. A loop of few rounds that mostly consists of loops
    with more rounds, such as a loop over the sizes of a benchmark, is replaced by these inner loops.
    """
    size, around = chains.end - chains.start, chains.parent
    more = (around >= 0) & (chains.count > chains.count[around])
    inside = sums(around[more], size[more], len(size) + 1)
    gone = (chains.count < _FEW) & (inside[:-1] >= _MOSTLY * size)
    top = around < 0
    for row in np.flatnonzero(gone).tolist():  # outer ones stand before inner ones
        if top[row]:
            top[row] = False
            top |= around == row
    rows = np.flatnonzero(top)
    return np.sort(rows[np.argsort(-size[rows], kind="stable")[:_MAX_CHAINS]])


def _joined(kind: int, group: list[tuple[int, Loop]]) -> _Stretch:
    """The rounds of consecutive loops, without rounds that are cut off between two loops or at the end."""
    starts = [group[0][1].starts]
    for (_, before), (_, loop) in pairwise(group):
        if 2 * (loop.starts[0] - starts[-1][-1]) < min(_typical(before), _typical(loop)):
            starts[-1] = starts[-1][:-1]
        starts.append(loop.starts)
    rows, last = np.array([row for row, _ in group], np.int64), group[-1][1]
    start = np.concatenate(starts)
    if last.cut_off and len(start) > 1:
        return _Stretch(kind, rows, start[:-1], int(start[-1]))
    return _Stretch(kind, rows, start, last.end)


def _kind(kinds: list[frozenset[int]], symbols: frozenset[int]) -> int:
    """The kind of a loop with these symbols, possibly a new kind."""
    for kind, known in enumerate(kinds):
        if len(symbols & known) >= _ALIKE * len(symbols | known):
            return kind
    kinds.append(symbols)
    return len(kinds) - 1


def _typical(loop: Loop) -> float:
    """The median number of launches in a round."""
    return float(np.median(np.diff(np.append(loop.starts, loop.end))))


def _outer(loops: list[_Stretch], kind: int, first: int) -> _Rounds:
    """The rounds of all loops of one kind, numbered consecutively."""
    start = np.concatenate([each.starts for each in loops])
    stop = np.concatenate([np.append(each.starts[1:], each.end) for each in loops])
    last, none = np.zeros(len(start), bool), np.zeros(len(start), bool)
    last[np.cumsum([len(each.starts) for each in loops]) - 1] = True
    return _Rounds(start + first, stop + first, np.arange(len(start)), np.full(len(start), kind), none, last)


def _inner(chains: Chains, rows: Ints, first: int, outer: _Rounds) -> Iterator[_Rounds]:
    """For each fold whose loops take a large share of the loops around them: the rounds of the loops that are directly
    inside some chains and their ``outer`` rounds.
    """
    inside = np.flatnonzero(np.isin(chains.parent, rows))
    inside = inside[np.array([fold.period for fold in chains.folds])[chains.fold[inside]] > 1]
    size = chains.end - chains.start
    for fold in np.unique(chains.fold[inside]).tolist():
        mine = inside[chains.fold[inside] == fold]
        around = np.unique(chains.parent[mine])
        if size[mine].sum() >= _INNER_SHARE * size[around].sum():
            start, stop, number, last = inner_rounds(chains, mine)
            start, stop = start + first, stop + first
            around = np.maximum(np.searchsorted(outer.start, start, side="right") - 1, 0)
            within = (start >= outer.start[around]) & (stop <= outer.stop[around])
            columns = (start, stop, number, np.zeros_like(start), np.ones(len(start), bool), last)
            yield _Rounds(*(values[within] for values in columns))


def _leaders(trace: Trace, found: dict[int, _Rounds], edges: Index) -> Iterator[tuple[int, _Rounds, Ints]]:
    """The threads whose loops count, with their rounds and the end of each round in ns. A thread that launches the same
    amount in each iteration of another thread follows that thread. The main thread leads or, if it has no loops, the
    thread that begins first.
    """

    def rank(thread: int) -> tuple[bool, int, int]:
        tid = int(trace.threads[thread])
        return pid_of(tid) != tid_of(tid), int(trace.launches.start[found[thread].start[0]]), thread

    led: set[int] = set()
    left = _MAX_PAIRS
    for thread in sorted(found, key=rank):
        if thread in led:
            continue
        mine = found[thread]
        stop = trace.launches.end[mine.stop - 1]
        same = ~mine.last
        stop[same] = trace.launches.start[mine.stop[same]]
        for other in np.flatnonzero(trace.thread_process == trace.thread_process[thread]).tolist():
            calls = slice(*edges[other : other + 2].tolist())
            if other == thread or calls.start == calls.stop or other in led or not left:
                continue
            left -= 1
            per_round = _in_step(trace, mine, stop, calls, found.get(other))
            if per_round is not None:
                led.add(other)
                _extend(trace, mine, stop, calls, per_round)
        yield thread, mine, stop


def _in_step(trace: Trace, mine: _Rounds, stop: Ints, calls: slice, theirs: _Rounds | None) -> Ints | None:
    """The number of another thread's launches (``calls``) per round, by kind of loop; None if it does not follow."""
    outer = np.flatnonzero(~mine.inner)
    if theirs is not None and np.count_nonzero(~theirs.inner) >= 2 * len(outer):
        own = slice(int(mine.start.min()), int(mine.stop.max()))
        both = np.concatenate([trace.launches.start[own], trace.launches.start[calls]])
        whose = np.argsort(both, kind="stable") < own.stop - own.start
        if np.count_nonzero(whose[1:] != whose[:-1]) > _TURNS * len(outer):
            return None
    begins, kind = trace.launches.start[calls], mine.kind[outer]
    count = np.searchsorted(begins, stop[outer]) - np.searchsorted(begins, trace.launches.start[mine.start[outer]])
    usual = np.array([np.median(count[kind == each]) for each in range(int(kind.max()) + 1)], np.int64)
    works = usual[kind] > 0
    near = np.abs(count - usual[kind])[works] <= 1 + _SIMILAR * usual[kind][works]
    return usual if works.any() and float(near.mean()) >= _IN_STEP else None


def _extend(trace: Trace, mine: _Rounds, stop: Ints, calls: slice, per_round: Ints) -> None:
    """Extend the last round of each loop to the end of the launches that a following thread makes for this round."""
    launches = trace.launches
    begins = np.sort(launches.start[mine.start[~mine.inner]])
    for row in np.flatnonzero(mine.last & ~mine.inner).tolist():
        begin = launches.start[mine.start[row]]
        after = np.searchsorted(begins, begin, side="right")
        until = begins[after] if after < len(begins) else np.iinfo(np.int64).max
        first = calls.start + int(np.searchsorted(launches.start[calls], begin))
        theirs = slice(first, min(first + int(per_round[mine.kind[row]]), calls.stop))
        ends = launches.end[theirs][launches.end[theirs] <= until]
        stop[row] = max(stop[row], *ends.tolist()) if len(ends) else stop[row]


def _as_ranges(trace: Trace, found: list[tuple[int, _Rounds, Ints]]) -> OtherRanges:
    """The rounds as ranges, with a sentence about their number."""
    inner, kind, number, begin, stop = (
        np.concatenate([getattr(each, name) for _, each, _ in found])
        for name in ("inner", "kind", "number", "start", "stop")
    )
    names: dict[str, int] = {}
    letters = ["", *(f" {chr(ord('A') + more)}" for more in range(1, _MAX_KINDS))]
    name = [
        names.setdefault(f"{'inner ' * within}iteration{letters[which]} {count}", len(names))
        for within, which, count in zip(inner.tolist(), kind.tolist(), number.tolist(), strict=True)
    ]
    size = (stop - begin)[(kind == 0) & ~inner]
    start = trace.launches.start[begin]
    many = f" on {len(found)} threads" if len(found) > 1 else ""
    typical = int(np.median(size))
    return OtherRanges(
        thread=np.concatenate([np.full(len(each.start), trace.threads[thread]) for thread, each, _ in found]),
        start=start,
        end=np.maximum(start, np.concatenate([end for *_, end in found])),
        kind=np.full(len(name), FOUND, np.uint8),
        name=np.array(name, np.int32),
        names=[RangeName(text, "found") for text in names],
        warnings=(
            "iterations were detected from the launches, not annotated: "
            f"{plural(len(size), 'iteration')}{many} of {typical:,} launch{'es' * (typical != 1)} "
            "(median); --ranges nvtx turns detection off",
        ),
    )
