"""Find levels of step times over runs: group comparable runs into series, find changes of level, and split each change
into parts.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.levels import WHOLE
from nsysprof.charts.notebook import Shown
from nsysprof.compare.comparable import MAX_COUNTS, MIN_ALIKE, Kernels, same_version, shares_of
from nsysprof.compare.gap_ledger import apportion
from nsysprof.core.text import join_words, one_line, plural
from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError
from nsysprof.fleet.inputs import find_reports, natural_key
from nsysprof.history.run import APART, Run, Timed, run_of, seconds_of
from nsysprof.history.store import Store
from nsysprof.kernels.classify import Rules, load_rules
from nsysprof.statistics.levels import LEAST_RUNS, Levels, find_levels
from nsysprof.statistics.runs import HOST_NOISE, HOST_PACED, USUAL_NOISE, OverRuns
from nsysprof.tools.nsight import run_tool
from nsysprof.trace.report import open_report
from nsysprof.trace.trace import Progress

File = str | os.PathLike[str]
ORDERS = ("record", "name", "time", "git")
PROGRAM, MACHINE, CLOCK = "program", "machine", "clock"
_OPEN, _NEAR = 8, 30  # series that a run may still belong to; runs of a level next to a change, for its ledger
_SAME_GRIDS, _OTHER_GRIDS = 0.02, 0.5
_ALIKE, _FAMILIES, _OF_KERNELS = 0.3, 3, 0.8  # kernels that are slower at once: spread, how many, of their time


@dataclass(frozen=True)
class Change:
    """A change of level in a series; ``run`` is the first run after the change (a row of `History.runs`), and
    ``before`` is the last run before the change.

    ``low`` and ``high`` are the 95 % interval of ``ratio`` (after ÷ before). ``machine``: how the machine differs
    between the two levels. ``cause``: `MACHINE` if the machine differs or the commit is the same; `CLOCK` if all
    kernels changed by the same factor, which no recorded condition explains; otherwise `PROGRAM`. ``ledger``: the parts
    (ns) of the mean step at each level, largest difference first.
    """

    run: int
    before: int
    before_ns: float
    after_ns: float
    low: float
    high: float
    machine: dict[str, tuple[str, str]]
    cause: str
    ledger: tuple[tuple[str, int, int], ...]

    @property
    def ratio(self) -> float:
        """Return the ratio of step times, after ÷ before."""
        return self.after_ns / self.before_ns


@dataclass(frozen=True)
class Series:
    """Comparable runs: ``runs`` are rows of `History.runs` in order, timed by the steps of ``path``."""

    path: str
    runs: tuple[int, ...]
    times: tuple[Timed, ...]
    levels: Levels
    changes: tuple[Change, ...]
    group: int

    @property
    def drift(self) -> float:
        """Return the relative growth of times within levels, from the first to the last run; 0 if there is none."""
        return float(np.expm1(self.levels.slope * (len(self.runs) - 1)))


@dataclass(frozen=True, repr=False)
class History(Shown):
    """The result of `history`: ``runs`` in order, and their ``series`` (the series with the newest run comes first).

    ``skipped``: reports that could not be read, with reasons; ``notes`` are sentences.
    """

    runs: tuple[Run, ...]
    series: tuple[Series, ...]
    skipped: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    options: dict[str, Any]

    @cached_property
    def changes(self) -> list[tuple[Series, Change]]:
        """Return all changes, newest first; several changes at one run are sorted by size."""
        every = [(each, change) for each in self.series for change in each.changes]
        return sorted(every, key=lambda each: (-each[1].run, -abs(np.log(each[1].ratio))))

    def slower(self, limit: float) -> list[tuple[Series, Change]]:
        """Return the series of the newest run that slowed down by more than ``limit``, but not due to the machine."""
        newest = [(each, each.changes[-1]) for each in self.series if each.changes and each.runs[-1] == self.newest]
        return [pair for pair in newest if pair[1].ratio > 1 + limit and pair[1].cause != MACHINE]

    @property
    def newest(self) -> int:
        """The row of the newest run."""
        return len(self.runs) - 1


def history(
    reports: File | Sequence[File],
    *,
    select: str | None = None,
    order: str = "record",
    since: str | None = None,
    last: int | None = None,
    cache: File | None = None,
    rules: Rules | None = None,
    attribution_of: Callable[[Path, ExitStack], Attribution] | None = None,
    reading: Sequence[str] = (),
    progress: Progress | None = None,
) -> History:
    """Follow step times over many reports. Reports are local files, folders or globs, and each report counts as a run.

    ``select`` is a glob for the ranges that are steps; by default, the same ranges as in all commands. ``order`` is one
    of `ORDERS`: recorded start, name, file time, or the commit's place in the repository of the current folder.
    ``since`` (a date or a commit) and ``last`` leave out earlier runs. ``cache`` is the SQLite file with cached
    results, recomputed if a report or nsysprof's version changes. ``attribution_of`` replaces the function that opens a
    report; ``reading`` identifies this function. Raises `NsysprofError` if no report can be read.
    """
    names = [os.fspath(each) for each in ([reports] if isinstance(reports, str | os.PathLike) else reports)]
    files, notes = find_reports(names)
    known_rules = rules or load_rules(None)
    with Store(cache, (select or "", *reading)) as store:
        found: list[Run] = []
        skipped: list[tuple[str, str]] = []
        for file, kept in zip(files, store.known(files), strict=True):
            if progress:
                progress("reading reports", 1)
            run = kept if kept is not None else _measured(Path(file.name), known_rules, select, attribution_of)
            if kept is None:
                store.keep(file, run)
            if isinstance(run, Run):
                found.append(run)
            else:
                skipped.append((file.name, run))
        notes += store.notes
    if not found:
        (name, why), more = skipped[0], f" and {len(skipped) - 1:,} more" * (len(skipped) > 1)
        raise NsysprofError(f"no report can be read: {name}{more}: {why}", f"nsysprof analyze {name}")
    runs = _ordered(found, order, notes)
    kept_runs = _since(runs, since, last)
    options = {"names": names, "range": select, "order": order, "since": since, "last": last}
    return judge_runs(kept_runs, skipped, notes, options)


def judge_runs(
    runs: Sequence[Run], skipped: Sequence[tuple[str, str]] = (), notes: Sequence[str] = (), options: Any = None
) -> History:
    """Find the `History` of runs, given in order."""
    groups, more = _groups(runs), list(notes)
    every = [each for number, group in enumerate(groups) for each in _series(runs, group, number, more)]
    known = [each.levels.noise for each in every if each.levels.known]
    if known:  # what runs of one program differ by, where few of another have to be judged
        every = [
            each if each.levels.known else _judged(runs, each.path, each.runs, each.group, float(np.median(known)))
            for each in every
        ]
    every.sort(key=lambda each: (-each.runs[-1], -len(each.runs), -float(sum(t.median_ns * t.n for t in each.times))))
    return History(tuple(runs), tuple(every), tuple(skipped), (*more, *_apart(runs, groups)), options or {})


def _measured(
    path: Path, rules: Rules, select: str | None, opened: Callable[[Path, ExitStack], Attribution] | None
) -> Run | str:
    """A report as a run, or why it is none."""
    try:
        with ExitStack() as stack:
            attribution = opened(path, stack) if opened else attribute(stack.enter_context(open_report(path)))
            if not len(attribution.trace.ops):
                return f"no GPU work: {attribution.trace.no_work}"
            return run_of(attribution, rules, select)
    except NsysprofError as error:
        return error.message.removeprefix(f"{path}: ")


def _ordered(runs: list[Run], order: str, notes: list[str]) -> list[Run]:
    by_name = sorted(runs, key=lambda run: natural_key(run.file))
    if order == "name":
        return by_name
    if order == "git":
        place = _places_in_git()
        known = [run for run in by_name if _place(place, run.commit) is not None]
        if left := len(runs) - len(known):
            notes.append(f"{plural(left, 'run')} left out: commit missing or not in HEAD's history")
        if not known:
            raise NsysprofError("no run has a commit in HEAD's history", "cd into the checkout, or use --order time")
        return sorted(known, key=lambda run: _place(place, run.commit) or 0)
    if order == "record":
        lacking = [run for run in by_name if run.started is None]
        if lacking:
            notes.append(f"{plural(len(lacking), 'run')} without recorded start: sorted by file mtime")
    times = [run.started if order == "record" and run.started is not None else _modified(run) for run in by_name]
    at = np.argsort(times, kind="stable")
    plain = {re.sub(r"\d+", "#", run.name) for run in runs}
    if len(plain) == 1 and (at != np.arange(len(at))).any():
        notes.append("the recorded start times disagree with the numbers in the names: --order name sorts by name")
    if len(set(times)) < len(times):
        notes.append("runs that began at the same time are sorted by name")
    return [by_name[each] for each in at.tolist()]


def _modified(run: Run) -> float:
    try:
        return Path(run.file).stat().st_mtime
    except OSError:
        return 0.0


def _places_in_git() -> dict[str, int]:
    """The place of each commit, by the first seven digits, oldest first."""
    git = shutil.which("git")
    done = run_tool(Path(git), ["rev-list", "--topo-order", "--reverse", "HEAD"], timeout=60) if git else None
    if done is None or done.returncode:
        raise NsysprofError("--order git: the current folder is not in a git repository", "cd into it, or --order time")
    return {commit[:7]: place for place, commit in enumerate(done.stdout.split())}


def _place(place: dict[str, int], commit: str) -> int | None:
    return place.get(commit[:7]) if commit else None


def _since(runs: list[Run], since: str | None, last: int | None) -> list[Run]:
    if since is not None:
        moment = seconds_of(since)
        if moment is not None:
            runs = [run for run in runs if (run.started or _modified(run)) >= moment]
        else:
            at = next((at for at, run in enumerate(runs) if run.commit and run.commit.startswith(since)), None)
            if at is None:
                raise NsysprofError(f"--since {since} is neither a date nor the commit of a run", "--since 2026-11-01")
            runs = runs[at:]
    runs = runs[-last:] if last else runs
    if not runs:
        raise NsysprofError(f"no run since {since}", "an earlier --since")
    return runs


def _groups(runs: Sequence[Run]) -> list[list[int]]:
    """The rows of comparable runs: on like machines the same kernels, most of the time, with the same grids.

    Each run is compared with the newest of the last few groups alone, so that it is linear in the runs.
    """
    out: list[list[int]] = []
    open_: dict[tuple[str, ...], list[list[int]]] = {}
    for row, run in enumerate(runs):
        groups = open_.setdefault(tuple(run.machine.get(name, "") for name in APART), [])
        alike = [_likeness(runs[group[-1]].kernels, run.kernels) for group in groups]
        best = int(np.argmax(alike)) if alike else -1
        if best < 0 or alike[best] < MIN_ALIKE:
            out.append([row])
            groups.append(out[-1])
            del groups[:-_OPEN]
        else:
            groups.append(groups.pop(best))
            groups[-1].append(row)
    return out


def _likeness(one: Kernels, other: Kernels) -> float:
    """The part of their time in kernels that both run; 0 where most of these have other grids: other shapes."""
    share = min(shares_of(one, other))
    both = [name for name in one.keys() & other.keys() if one[name][2] and other[name][2]]
    off = [abs(one[name][2] / one[name][0] * other[name][0] / other[name][2] - 1) > _SAME_GRIDS for name in both]
    times = [one[name][1] for name in both]
    changed = sum(ns for ns, apart in zip(times, off, strict=True) if apart)
    same = [one[name][0] == other[name][0] for name in both]
    counted = sum(ns for ns, equal in zip(times, same, strict=True) if equal)
    return 0.0 if changed > _OTHER_GRIDS * sum(times) and counted > _OTHER_GRIDS * sum(times) else share


def _apart(runs: Sequence[Run], groups: Sequence[Sequence[int]]) -> Iterator[str]:
    """Say what makes a group of its own."""
    largest = max(groups, key=len)
    main = runs[largest[-1]]
    for group in groups:
        if group is largest:
            continue
        first = runs[group[0]]
        differs = [
            f"{name} {first.machine.get(name, 'unknown')}, not {main.machine.get(name, 'unknown')}"
            for name in APART
            if first.machine.get(name) != main.machine.get(name)
        ]
        share = min(shares_of(first.kernels, main.kernels))
        work = f"common kernels take {format_share(share)} of their time" if share < MIN_ALIKE else "other shapes"
        yield f"separate series: {_named(runs, group)}: {join_words(differs) if differs else work}"


def _named(runs: Sequence[Run], rows: Sequence[int]) -> str:
    some = ", ".join(str(row + 1) for row in rows[:4]) + (", …" if len(rows) > 4 else "")
    return f"run{'s' * (len(rows) > 1)} {some} ({one_line(runs[rows[0]].name, 40)})"


def _series(runs: Sequence[Run], group: Sequence[int], number: int, notes: list[str]) -> Iterator[Series]:
    """The series of a group: a path of steps that most of its runs have, or else whole recordings."""
    having = Counter(timed.path for row in group for timed in runs[row].timed if timed.path != WHOLE)
    shared = [path for path, count in having.items() if 2 * count > len(group)]
    rows_of = {path: [row for row in group if any(each.path == path for each in runs[row].timed)] for path in shared}
    for path, rows in [*rows_of.items()]:
        times = [runs[row].of(path) for row in rows]
        usual = float(np.median([each.launches for each in times]))
        if any(each.found for each in times) and any(
            max(each.launches, usual) > MAX_COUNTS * min(each.launches, usual) for each in times
        ):
            del rows_of[path]  # found loops that are other loops
    if not rows_of:
        rows_of = {WHOLE: [row for row in group if any(each.path == WHOLE for each in runs[row].timed)]}
    for path, rows in rows_of.items():
        if left := len(group) - len(rows):
            notes.append(
                f"{plural(left, 'run')} left out of the series of {one_line(path, 40)!r}, because their steps were "
                "not found"
            )
        if rows:
            yield _judged(runs, path, tuple(rows), number)


def _judged(runs: Sequence[Run], path: str, rows: tuple[int, ...], group: int, usual: float | None = None) -> Series:
    times = tuple(runs[row].of(path) for row in rows)
    logs = np.log([max(each.median_ns, 1) for each in times])
    paced = min(each.busy_ns / max(each.mean_ns, 1) for each in times) < HOST_PACED
    least = HOST_NOISE if paced and len(rows) < 2 * LEAST_RUNS else USUAL_NOISE
    states = [(run.commit, *sorted(run.machine.items())) if run.commit else None for run in (runs[row] for row in rows)]
    levels = find_levels(logs, states, least=least, **({} if usual is None else {"usual": usual}))
    bare = Series(path, rows, times, levels, (), group)
    return replace(bare, changes=tuple(_change(runs, bare, logs, at) for at in range(1, len(levels.starts))))


def _change(runs: Sequence[Run], series: Series, logs: Any, at: int) -> Change:
    levels = series.levels
    edges = [*levels.starts, len(series.runs)]
    sides = [
        [place for place in range(edges[level], edges[level + 1]) if not levels.odd[place]] for level in (at - 1, at)
    ]
    freedom = max(len(series.runs) - len(levels.starts), 1)
    level_of = [
        OverRuns(float(np.mean(logs[side])), levels.noise / np.sqrt(len(side)), freedom, len(side)) for side in sides
    ]
    interval = level_of[1].less(level_of[0]).interval()
    rows = [[series.runs[place] for place in side] for side in sides]
    machine = _machine_change([runs[row] for row in rows[0]], [runs[row] for row in rows[1]])
    near = (sides[0][-_NEAR:], sides[1][:_NEAR])
    ledger = _ledger_between(*([series.times[place].ledger for place in side] for side in near))
    commits = runs[rows[0][-1]].commit, runs[rows[1][0]].commit
    cause = CLOCK if _all_kernels_alike(ledger) else PROGRAM
    cause = MACHINE if machine or (commits[0] and commits[0] == commits[1]) else cause
    before, after = (level.value for level in level_of)
    return Change(rows[1][0], rows[0][-1], before, after, interval.low, interval.high, machine, cause, ledger)


def _machine_change(before: Sequence[Run], after: Sequence[Run]) -> dict[str, tuple[str, str]]:
    """What most runs before and most runs after a change say of the machine, where that differs."""
    usual = []
    for side in (before, after):
        values: dict[str, Counter[str]] = {}
        for name, value in (each for run in side for each in run.machine.items()):
            values.setdefault(name, Counter())[value] += 1
        usual.append({name: counts.most_common(1)[0][0] for name, counts in values.items()})
    both = {name: (usual[0][name], usual[1][name]) for name in sorted(usual[0].keys() & usual[1].keys())}
    return {name: pair for name, pair in both.items() if not same_version(*pair)}


def _ledger_between(
    before: Sequence[dict[str, int]], after: Sequence[dict[str, int]]
) -> tuple[tuple[str, int, int], ...]:
    """The mean step of either side, part by part; each side adds up to its mean to the nanosecond."""
    names = list(dict.fromkeys(name for side in (before, after) for ledger in side for name in ledger))
    sides = [
        apportion([sum(each.get(name, 0) for each in side) for name in names], len(side)) for side in (before, after)
    ]
    rows = zip(names, *sides, strict=True)
    return tuple(sorted(rows, key=lambda row: (-abs(row[2] - row[1]), row[0])))


def _all_kernels_alike(ledger: Sequence[tuple[str, int, int]]) -> bool:
    """Whether all families of kernels take longer, or less long, by about the same ratio, and nothing else changes."""
    kernels = [row for row in ledger if row[0].endswith(" kernels") and min(row[1:]) > 0]
    total = sum(row[1] for row in kernels)
    large = [np.log(row[2] / row[1]) for row in kernels if row[1] >= 0.02 * total]
    every = abs(sum(row[2] - row[1] for row in ledger)) or 1
    if len(large) < _FAMILIES or sum(row[2] - row[1] for row in kernels) / every * np.sign(np.mean(large)) < 0:
        return False
    middle = float(np.median(large))
    of_kernels = abs(sum(row[2] - row[1] for row in kernels)) / every
    return (
        abs(middle) > 0.01
        and float(np.abs(np.array(large) - middle).max()) < _ALIKE * abs(middle)
        and of_kernels >= _OF_KERNELS
    )
