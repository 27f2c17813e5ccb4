"""Choose the windows of an answer (the program's steps, chosen ranges, or the whole recording), and count calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.globs import near_names
from nsysprof.attribution.levels import MIN_REPEATS, WHOLE, Level, choose_level
from nsysprof.attribution.paths import SLOWEST, Instances, instances_text, merged_names, pick_instances
from nsysprof.attribution.range_work import index_work
from nsysprof.core.arrays import Array, Index, Ints, Ints32, Mask
from nsysprof.core.columns import distinct, marked
from nsysprof.core.intervals import covered, merge
from nsysprof.core.text import plural, quote_path
from nsysprof.errors import NsysprofError
from nsysprof.statistics.judge import count_warm_up
from nsysprof.trace.trace import pid_of
from nsysprof.waits.windows import Windows, compute_ops, incomplete, steady, step_windows, whole_windows

_FOREIGN = 0.1  # of the time of ranges: where the GPU computes for others for longer, they are parts of steps


@dataclass(frozen=True)
class Chosen:
    """The windows that an answer describes: the steps of a ``level``, or one window per GPU for the whole recording.

    ``texts`` are the texts of `Windows.path`; several lines of steps can have the same text.
    """

    level: Level
    windows: Windows
    texts: list[str]

    @property
    def attribution(self) -> Attribution:
        """The attribution to which `Windows.range` refers."""
        return self.level.attribution


def choose_windows(
    attribution: Attribution, communication: Mask, select: str | None, merge_names: Sequence[str] | None
) -> Chosen:
    """Choose the steps of a program, or the ranges that a glob matches, timed as in all commands; see `choose_level`.

    ``communication``: whether each op name is a collective. If no range repeats, the whole recording is chosen.
    """
    return windows_of(choose_level(attribution, select, merge_names), communication)


def windows_of(level: Level, communication: Mask) -> Chosen:
    """Return the windows of a level that is already chosen."""
    if not len(level.rows):
        return Chosen(level, whole_windows(level.attribution.trace), [WHOLE])
    windows, path = step_windows(level.attribution, level.rows, level.of, communication)
    return Chosen(level, windows, [level.texts[code] for code in path.tolist()])


@dataclass(frozen=True)
class StepTimes:
    """The time interval of each step across all its GPUs, sorted by path and start; steps do not overlap.

    ``range`` is a row of `Trace.ranges`, and ``path`` is as given. A step lasts from ``start`` to ``end``, and its
    range instance begins at ``begin`` (all int64 ns). ``start`` is the end of the previous step, or ``begin`` if no
    pause belongs to the step. ``steady`` is True for steps that are not warm-up.
    """

    range: Ints
    path: Ints32
    start: Ints
    begin: Ints
    end: Ints
    steady: Mask

    def __len__(self) -> int:
        return len(self.range)

    @property
    def length(self) -> Ints:
        """Return the length of each step in ns."""
        return self.end - self.start

    def take(self, rows: Array) -> StepTimes:
        """The given steps."""
        return StepTimes(**{field.name: getattr(self, field.name)[rows] for field in fields(StepTimes)})


def step_times(attribution: Attribution, rows: Index, path: Ints32, communication: Mask) -> StepTimes:
    """Find the `StepTimes` of range instances, each with its ``path``; see `step_windows`.

    A path is left out if fewer than `MIN_REPEATS` of its instances have GPU work. It is also left out if compute of
    other ranges takes more than a tenth of its time, as in parts of a step.
    """
    attribution = attribution.launched
    windows, of_line = step_windows(attribution, rows, path, communication)
    windows = windows.take(np.lexsort((windows.start, windows.range, windows.path)))
    at = np.flatnonzero(np.diff(windows.range, prepend=-1))
    start, begin = (np.minimum.reduceat(each, at) if len(at) else each for each in (windows.start, windows.begin))
    end = np.maximum.reduceat(windows.end, at) if len(at) else windows.end
    times = StepTimes(windows.range[at], windows.path[at], start, begin, end, np.ones(len(at), bool))
    times = times.take(np.lexsort((times.begin, times.path)))
    others = _for_others(attribution, windows, communication)
    total, foreign = (np.bincount(windows.path, each) for each in (windows.length, others))
    good = np.ones(len(times), bool)
    for mine in _lines(times):
        times.start[mine[1:]] = np.maximum(times.start[mine[1:]], np.maximum.accumulate(times.end[mine])[:-1])
        path_of = int(times.path[mine[0]])
        good[mine] = len(mine) >= MIN_REPEATS and foreign[path_of] <= _FOREIGN * total[path_of]
    times = times.take(good & (times.start < times.end))
    for mine in _lines(times):
        times.steady[mine[: count_warm_up(times.length[mine])]] = False
    return replace(times, path=of_line[times.path], begin=np.maximum(times.begin, times.start))


def _lines(times: StepTimes) -> list[Index]:
    """The rows of each path, which are adjacent; empty without steps."""
    rows = np.arange(len(times))
    return np.split(rows, np.flatnonzero(np.diff(times.path)) + 1) if len(rows) else []


def _for_others(attribution: Attribution, windows: Windows, communication: Mask) -> Ints:
    """How long the GPU computes work in each window that the range instance did not launch."""
    trace, each = attribution.trace, np.unique(windows.range)
    op, place = index_work(attribution, each).ops_of(each)
    computes = compute_ops(trace, communication)
    op, place = op[computes[op]], place[computes[op]]
    out = np.zeros(len(windows), np.int64)
    for gpu in np.unique(windows.gpu).tolist():
        mine = np.flatnonzero(windows.gpu == gpu)
        window = np.full(len(each), -1)
        window[np.searchsorted(each, windows.range[mine])] = mine
        some = (trace.op_gpu[op] == gpu) & (window[place] >= 0)
        row, at = op[some], window[place[some]]
        inside = np.minimum(trace.ops.end[row], windows.end[at]) - np.maximum(trace.ops.start[row], windows.start[at])
        np.add.at(out, at, -np.maximum(inside, 0))
        every = np.flatnonzero(computes & (trace.op_gpu == gpu))
        line = merge(trace.ops.start[every], trace.ops.end[every])
        out[mine] += covered(line, windows.start[mine], windows.end[mine])
    return np.maximum(out, 0)


def pick_windows(
    attribution: Attribution, windows: Windows, instances: Instances | None, skip: int | None
) -> tuple[Index, str]:
    """Pick windows of each path and GPU by number (from 0), or the slowest window; also return a description.

    Without ``skip``, warm-up and windows that lack GPU ops are left out (see `steady`), unless ``instances`` are
    numbers. With ``skip``, the first ``skip`` windows are left out. Raises `NsysprofError` if no window is left.
    """
    default = skip is None and instances in (None, SLOWEST)
    kept = steady(attribution.trace, windows) if default else np.ones(len(windows), bool)
    if instances is None and skip is None:
        lost = incomplete(attribution.trace, windows)
        warm, lacks = int((~kept & ~lost).sum()), int(lost.sum())
        said = [f"{plural(warm, 'step')} left out as warm-up"] * (warm > 0)
        said += [f"{plural(lacks, 'step')} left out, because nsys lost GPU operations"] * (lacks > 0)
        return np.flatnonzero(kept), "; ".join(said)
    _, line = distinct(windows.gpu, windows.path)
    picked = []
    for number in np.unique(line).tolist():
        rows = np.flatnonzero((line == number) & kept)[skip or 0 :]
        if instances is not None:
            rows = rows[pick_instances(windows.length[rows], instances)]
        picked.append(rows)
    out = np.sort(np.concatenate([np.empty(0, np.intp), *picked]))
    words = [f"without the first {skip:,} of each path"] if skip else []
    words = [instances_text(instances), *words] if instances else words
    if not len(out) and len(windows):
        raise NsysprofError(
            f"no step is left: {', '.join(words)}, but a path has at most {int(np.bincount(line).max()):,} steps",
            f"nsysprof steps {quote_path(attribution.trace.report.path)} lists the steps, counted from 0",
        )
    return out, ", ".join(words)


def count_calls(
    attribution: Attribution, windows: Windows, paths: Sequence[str], per: str, merge_names: Sequence[str] | None
) -> Ints:
    """For each step (time window), return the number (int64) of ranges with names that match the glob ``per``.

    The glob can match recorded or merged names (`merged_names`); of nested ranges, only the outermost counts. ``paths``
    are the texts of `Windows.path`. Raises `NsysprofError` with similar names if a path has no such range at all, on
    one of its GPUs, or in one of its processes.
    """
    trace = attribution.trace
    ranges = trace.ranges
    names = [name.text for name in trace.range_names]
    both = zip(names, merged_names(names, merge_names), strict=True)
    fits = np.array([fnmatchcase(one, per) or fnmatchcase(other, per) for one, other in both], bool)
    matches = fits[ranges.name]
    parent = attribution.parent.astype(np.int64)
    windowed = marked(windows.range[windows.range >= 0], len(ranges))
    inside, outermost = np.zeros(len(ranges) + 1, np.int64), 0
    up = parent[np.flatnonzero(matches)]
    while len(up):  # one level up at a time: as many rounds as ranges are deep
        outermost += int((up < 0).sum())
        up = up[up >= 0]
        found = windowed[up]
        np.add.at(inside, up[found], 1)
        up = up[~found & ~matches[up]]
        up = parent[up]
    calls = np.where(windows.range >= 0, inside[windows.range], outermost)
    process = trace.op_process[windows.last]
    _, place = distinct(windows.path, windows.gpu, process)
    empty = np.flatnonzero(np.bincount(place, weights=calls)[place] == 0)
    if len(empty):
        at, known = int(empty[0]), ", ".join(map(repr, near_names(sorted(names), per)))
        pid = pid_of(trace.processes[process[at]])
        alike = np.array([text == paths[windows.path[at]] for text in paths], bool)
        elsewhere = calls[alike[windows.path]].any()
        where = f" on GPU {windows.gpu[at]} in process {pid}" if elsewhere else ""
        raise NsysprofError(
            f"{paths[windows.path[at]]}{where}: no inner range matches --per {per!r}; ranges are {known or 'none'}",
            "without --per, times are per step",
        )
    return calls
