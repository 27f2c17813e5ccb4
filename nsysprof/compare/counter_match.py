"""Which launch of the counters is which op of a report: by range, then by order within a call, then by name.

Counters come from another run of the same program, with fewer calls. What one call of a range launches there is laid
beside what a call launches here; where both are the same sequence, or one is a stretch of the other, their places say
what is what. Otherwise a kernel finds its partner among those of its name and grid, in order, if there are as many on
both sides. Several calls of the counters are one by their median.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.paths import DEFAULT_MERGE, merged_names, split_path
from nsysprof.compare.selection import Side
from nsysprof.formats.counters import CounterFile
from nsysprof.statistics.distributions import Floats
from nsysprof.trace.trace import GRAPH, KERNEL

_CAST = re.compile(r"\((?:(?:un)?signed |const )*\w+\)(?=-?\d)")  # (int)4, (unsigned long)2, (bool)0
_QUALIFIER = re.compile(r"(?:\w+|<unnamed>|\(anonymous namespace\))::")
_SUFFIX = re.compile(r"(?<=\d)[uUlL]+\b")
_LAMBDA = re.compile(r"[\[{]\s*lambda\(([^()]*)\)\s*(?:\(instance (\d+)\)|#(\d+))?\s*[\]}]")


@dataclass(frozen=True)
class CounterMatch:
    """Per op of a side, in the order of its `RangeWork`: ``of``, the place of its figures in ``values``, -1 for none.

    ``values``: a figure per metric, NaN where it was not measured. ``calls``: how many calls of the counters they
    are the medians of. ``kernels`` marks the ops that could have figures.
    """

    counters: CounterFile
    of: NDArray[np.intp]
    values: Mapping[str, Floats]
    calls: int
    kernels: NDArray[np.bool_]


@dataclass(frozen=True)
class _Call:
    """What one call launched, in order: ``rows`` of the counters, or ops of a side; of what ``kind`` of call it is,
    None for what runs in the range but in no call.
    """

    kind: str | None
    rows: NDArray[np.intp]


def match_counters(
    side: Side, counters: CounterFile, merge: Sequence[str] | None = DEFAULT_MERGE
) -> CounterMatch | None:
    """The `CounterMatch` of a side; None where the counters have nothing of its range. ``merge`` as in `compare`."""
    measured = list(_measured_calls(side, counters, merge))
    if not measured:
        return None
    work, trace = side.work, side.examined.attribution.trace
    kernels = np.isin(trace.ops.kind[work.op], (KERNEL, GRAPH))
    ours, theirs = _codes(side, counters)
    of = np.full(len(work.op), -1, np.intp)
    found: list[NDArray[np.intp]] = []
    begin = 0
    alike: dict[tuple[str | None, bytes], list[NDArray[np.intp]]] = {}
    for call in _calls(side):
        alike.setdefault((call.kind, ours[call.rows].tobytes()), []).append(call.rows)
    for (kind, _), members in alike.items():
        wanted = ours[members[0]]
        rows = [_laid_beside(wanted, theirs[call.rows], call.rows) for call in measured if call.kind == kind]
        if not rows:
            continue
        each = np.concatenate(rows)
        place = np.where((each >= 0).any(axis=0), begin + np.arange(len(wanted)), -1)
        of[np.concatenate(members)] = np.tile(place, len(members))
        found.append(each)
        begin += len(wanted)
    values = {
        name: np.concatenate([_medians(column, rows) for rows in found] or [np.empty(0)])
        for name, column in counters.values.items()
    }
    calls = max((int((rows >= 0).any(axis=1).sum()) for rows in found), default=0)
    return CounterMatch(counters, of, values, calls, kernels)


def _calls(side: Side) -> Iterator[_Call]:
    """What each call of a side launched, and each window outside of its calls; in the order of the launches."""
    work, examined = side.work, side.examined
    trace = examined.attribution.trace
    rows = np.flatnonzero(trace.ops.kind[work.op] == KERNEL)
    launched = trace.launches.start[trace.ops.launch[work.op[rows]]]
    rows = rows[np.lexsort((work.start[rows], launched, work.call[rows], work.window[rows]))]
    if not len(rows):
        return
    call, window = work.call[rows], work.window[rows]
    edges = np.flatnonzero((np.diff(call) != 0) | (np.diff(window) != 0)) + 1
    code = examined.code_of[side.calls]
    for part in np.split(rows, edges):
        number = int(work.call[part[0]])
        yield _Call(examined.texts[code[number]] if number >= 0 else None, part)


def _measured_calls(side: Side, counters: CounterFile, merge: Sequence[str] | None) -> Iterator[_Call]:
    """The same of the counters: calls are what stands in a range with the path of one, by process."""
    kinds = {_as_parts(text): text for text in _call_texts(side)}
    own = _as_parts(side.text)
    calls: list[tuple[str | None, str] | None] = []
    for path in counters.ranges:
        parts = split_path(path)
        merged = tuple(merged_names(parts, merge))
        kind = next((kind for kind in kinds if merged[: len(kind)] == kind), None)
        if kind is not None:
            calls.append((kinds[kind], "/".join(parts[: len(kind)])))
        else:
            calls.append((None, "/".join(parts[: len(own)])) if merged[: len(own)] == own else None)
    distinct = {call: number for number, call in enumerate(dict.fromkeys(calls))}
    number = np.array([distinct[call] for call in calls])[counters.range]
    order = np.lexsort((number, counters.pid))  # stable: in the order of the file
    edges = np.flatnonzero((np.diff(number[order]) != 0) | (np.diff(counters.pid[order]) != 0)) + 1
    names = list(distinct)
    for rows in np.split(order, edges):
        name = names[number[rows[0]]]
        if name is not None:
            yield _Call(name[0], rows)


def _as_parts(path: str) -> tuple[str, ...]:
    """The parts of a path, to be compared with others."""
    return tuple(split_path(path))


def _call_texts(side: Side) -> list[str]:
    return [side.examined.texts[code] for code in np.unique(side.examined.code_of[side.calls]).tolist()]


# ---- names


def _codes(side: Side, counters: CounterFile) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number per op of the side and per row of the counters, equal for what has one name and, if told, one grid."""
    work, trace = side.work, side.examined.attribution.trace
    numbers: dict[str, int] = {}
    name = trace.ops.name[work.op]
    used = np.unique(name)
    of_name = np.zeros(len(trace.op_names), np.int64)
    of_name[used] = [
        numbers.setdefault(plain_name(trace.op_names[code]), len(numbers)) for code in used.tolist()
    ]
    theirs = np.array(
        [numbers.setdefault(plain_name(kernel), len(numbers)) for kernel in counters.kernels], np.int64
    )[counters.kernel]
    ours = of_name[name]
    is_kernel = trace.ops.kind[work.op] == KERNEL
    grids = side.examined.grids
    mine = grids[work.op[is_kernel]] if len(grids) == int((trace.ops.kind == KERNEL).sum()) else None
    if mine is None or not mine.all() or not counters.grid.all():
        return ours, theirs
    both, grid = np.unique(np.concatenate([mine, counters.grid]), return_inverse=True)
    grid = grid.reshape(-1)
    ours = ours * len(both)
    ours[is_kernel] += grid[: len(mine)]
    return ours, theirs * len(both) + grid[len(mine) :]


@lru_cache(maxsize=20_000)
def plain_name(kernel: str) -> str:
    """A kernel's name without what Nsight Systems and Nsight Compute write differently.

    Those are casts of template arguments, namespaces (which Nsight Compute leaves out in part), the notation of lambdas
    and blanks. Different kernels may share it, so it is only asked where range and order agree.
    """
    text = kernel.replace("true", "1").replace("false", "0")
    text = _LAMBDA.sub(lambda found: f"λ({found[1]}){found[2] or found[3] or 1}", text)
    text = _SUFFIX.sub("", _CAST.sub("", text))
    return "".join(_QUALIFIER.sub("", text).removeprefix("void ").split())


# ---- order


def _laid_beside(
    wanted: NDArray[np.int64], found: NDArray[np.int64], rows: NDArray[np.intp]
) -> NDArray[np.intp]:
    """For each place of the sequence ``wanted`` the one of ``rows`` that is it, -1 for none; a line for each time that
    ``found``, the sequence of ``rows``, goes through it.
    """
    size, times = len(wanted), len(found) // len(wanted)
    if times and np.array_equal(np.tile(wanted, times), found):
        return rows.reshape(times, size)
    out = np.full((1, size), -1, np.intp)
    at = _only_place(wanted, found)
    if at is not None:
        out[0, at : at + len(found)] = rows
        return out
    at = _only_place(found, wanted)
    if at is not None:
        return rows[at : at + size].reshape(1, size)
    places: dict[int, list[int]] = {}
    for place, code in enumerate(found.tolist()):
        places.setdefault(code, []).append(place)
    mine: dict[int, list[int]] = {}
    for place, code in enumerate(wanted.tolist()):
        mine.setdefault(code, []).append(place)
    for code, own in mine.items():
        if len(places.get(code, ())) == len(own):
            out[0, own] = rows[places[code]]
    return out


def _only_place(whole: NDArray[np.int64], part: NDArray[np.int64]) -> int | None:
    """Where ``part`` stands in ``whole``; None where it does not, or in several places."""
    text, wanted, step = whole.tobytes(), part.tobytes(), whole.itemsize
    places: list[int] = []
    at = text.find(wanted)
    while at >= 0 and len(places) < 2:
        if at % step == 0:
            places.append(at // step)
        at = text.find(wanted, at + 1)
    return places[0] if len(places) == 1 else None


def _medians(values: Floats, rows: NDArray[np.intp]) -> Floats:
    """The median over calls for each place, of those that have a value there; NaN where none has."""
    each = np.where(rows >= 0, np.append(values, np.nan)[rows], np.nan)
    known = ~np.isnan(each).all(axis=0)
    out = np.full(rows.shape[1], np.nan)
    if known.any():
        out[known] = np.nanmedian(each[:, known], axis=0)
    return out
