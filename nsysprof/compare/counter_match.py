"""Match launches with hardware counters to the GPU ops of a report: by range, order within a call, and name.

Counters come from another run of the same program with fewer calls. Launches of a counted call are matched with
launches of a call in the report. They are matched by position if one sequence of launches contains the other.
Otherwise, they are matched by name, grid and order, if both calls have equally many launches of this name and grid.
Several calls with counters are combined by their median.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysprof.attribution.paths import DEFAULT_MERGE, merged_names, split_path
from nsysprof.compare.selection import Selection
from nsysprof.core.arrays import Floats, Index, Ints
from nsysprof.formats.counters import CounterFile
from nsysprof.kernels.names import plain_name
from nsysprof.trace.trace import KERNEL


@dataclass(frozen=True)
class CounterMatch:
    """The counters of each GPU op on one side, in the order of the ops. ``of``: the index of the op's counters in
    ``values``, -1 for none. ``values``: an array per metric, NaN if not measured. ``calls``: the number of counted
    calls behind each median.
    """

    counters: CounterFile
    of: Index
    values: Mapping[str, Floats]
    calls: int


# The launches of one call, in order: the path of the call, None for the work of a range outside of its calls; and
# rows of the counters, or GPU ops of a side.
_Call = tuple[str | None, Index]


def match_counters(
    side: Selection, counters: CounterFile, merge: Sequence[str] | None = DEFAULT_MERGE
) -> CounterMatch | None:
    """Match the counters of a side; returns None if the counters lack the side's range. ``merge`` as in `compare`.

    Whole traces get no counters: the counted run has fewer calls, so order cannot be matched.
    """
    measured = [] if side.is_whole else list(_measured_calls(side, counters, merge))
    if not measured:
        return None
    ours, theirs = _codes(side, counters)
    of = np.full(len(side.work.op), -1, np.intp)
    matched: list[Index] = []
    begin = 0
    alike: dict[tuple[str | None, bytes], list[Index]] = {}
    for path, ops in _calls(side):
        alike.setdefault((path, ours[ops].tobytes()), []).append(ops)
    for (path, _), members in alike.items():
        wanted = ours[members[0]]
        lines = [_in_order(wanted, theirs[rows], rows) for of_call, rows in measured if of_call == path]
        if not lines:
            continue
        each = np.concatenate(lines)
        place = np.where((each >= 0).any(axis=0), begin + np.arange(len(wanted)), -1)
        of[np.concatenate(members)] = np.tile(place, len(members))
        matched.append(each)
        begin += len(wanted)
    values = {
        name: np.concatenate([_medians(column, rows) for rows in matched] or [np.empty(0)])
        for name, column in counters.values.items()
    }
    calls = max((int((rows >= 0).any(axis=1).sum()) for rows in matched), default=0)
    return CounterMatch(counters, of, values, calls)


def _calls(side: Selection) -> Iterator[_Call]:
    """The launches of each call of a side, and of each window outside its calls, in launch order."""
    work, loaded = side.work, side.loaded
    trace = loaded.trace
    rows = np.flatnonzero(trace.ops.kind[work.op] == KERNEL)
    launched = trace.launches.start[trace.ops.launch[work.op[rows]]]
    rows = rows[np.lexsort((work.start[rows], launched, work.call[rows], work.window[rows]))]
    if not len(rows):
        return
    call, window = work.call[rows], work.window[rows]
    edges = np.flatnonzero((np.diff(call) != 0) | (np.diff(window) != 0)) + 1
    code = loaded.code_of[side.calls]
    for part in np.split(rows, edges):
        number = int(work.call[part[0]])
        yield loaded.texts[code[number]] if number >= 0 else None, part


def _measured_calls(side: Selection, counters: CounterFile, merge: Sequence[str] | None) -> Iterator[_Call]:
    """The counted launches of each call: the launches in a range with the path of a call, by process."""
    texts = [side.loaded.texts[code] for code in np.unique(side.loaded.code_of[side.calls]).tolist()]
    paths: dict[tuple[str, ...], str | None] = {tuple(split_path(text)): text for text in texts}
    paths.setdefault(tuple(split_path(side.text)), None)
    calls: list[tuple[str | None, str] | None] = []
    for recorded in counters.ranges:
        parts = split_path(recorded)
        merged = tuple(merged_names(parts, merge))
        path = next((path for path in paths if merged[: len(path)] == path), None)
        calls.append((paths[path], "/".join(parts[: len(path)])) if path else None)
    distinct = {call: number for number, call in enumerate(dict.fromkeys(calls))}
    number = np.array([distinct[call] for call in calls])[counters.range]
    order = np.lexsort((number, counters.pid))  # stable: in the order of the file
    edges = np.flatnonzero((np.diff(number[order]) != 0) | (np.diff(counters.pid[order]) != 0)) + 1
    for rows in np.split(order, edges):
        call = calls[counters.range[rows[0]]]
        if call is not None:
            yield call[0], rows


def _codes(side: Selection, counters: CounterFile) -> tuple[Ints, Ints]:
    """A code per GPU op of the side and per row of the counters, equal for equal names and (if recorded) grids."""
    work, trace = side.work, side.loaded.trace
    numbers: dict[str, int] = {}
    name = trace.ops.name[work.op]
    used = np.unique(name)
    of_name = np.zeros(len(trace.op_names), np.int64)

    def coded(kernels: Iterable[str]) -> list[int]:
        return [numbers.setdefault(plain_name(kernel), len(numbers)) for kernel in kernels]

    of_name[used] = coded(trace.op_names[code] for code in used.tolist())
    ours, theirs = of_name[name], np.array(coded(counters.kernels), np.int64)[counters.kernel]
    is_kernel = trace.ops.kind[work.op] == KERNEL
    if not len(side.loaded.grids):
        return ours, theirs
    grids = side.loaded.grids[work.op[is_kernel]]
    if not grids.all() or not counters.grid.all():
        return ours, theirs
    both, grid = np.unique(np.concatenate([grids, counters.grid]), return_inverse=True)
    ours = ours * len(both)
    ours[is_kernel] += grid[: len(grids)]
    return ours, theirs * len(both) + grid[len(grids) :]


def _in_order(wanted: Ints, measured: Ints, rows: Index) -> Index:
    """Match each position of the sequence ``wanted`` with one of ``rows`` (-1: none), whose codes are ``measured``.

    Returns a line for each time that ``measured`` repeats ``wanted``.
    """
    size, times = len(wanted), len(measured) // len(wanted)
    if times and np.array_equal(np.tile(wanted, times), measured):
        return rows.reshape(times, size)
    out = np.full((1, size), -1, np.intp)
    at = _only_place(wanted, measured)
    if at is not None:
        out[0, at : at + len(measured)] = rows
        return out
    at = _only_place(measured, wanted)
    if at is not None:
        return rows[at : at + size].reshape(1, size)
    counts = Counter(measured.tolist())
    equal = [code for code, count in Counter(wanted.tolist()).items() if counts[code] == count]
    here, there = (np.flatnonzero(np.isin(each, equal)) for each in (wanted, measured))
    here, there = (here[np.argsort(wanted[here], kind="stable")], there[np.argsort(measured[there], kind="stable")])
    out[0, here] = rows[there]
    return out


def _only_place(whole: Ints, part: Ints) -> int | None:
    """The position of ``part`` in ``whole``, or None if there is none or more than one."""
    text, wanted, step = whole.tobytes(), part.tobytes(), whole.itemsize
    places: list[int] = []
    at = text.find(wanted)
    while at >= 0 and len(places) < 2:
        if at % step == 0:
            places.append(at // step)
        at = text.find(wanted, at + 1)
    return places[0] if len(places) == 1 else None


def _medians(values: Floats, rows: Index) -> Floats:
    """The median for each position over the calls with a value there, or NaN."""
    return pd.DataFrame(np.where(rows >= 0, np.append(values, np.nan)[rows], np.nan)).median().to_numpy()
