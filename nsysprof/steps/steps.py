"""Find the steps of a repeated range, judge their times, and explain the additional time of slow steps."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from nsysprof.attribution.attribute import Attributed, Attribution, attribute
from nsysprof.attribution.levels import Level, choose_level
from nsysprof.attribution.paths import DEFAULT_MERGE, split_path
from nsysprof.charts.notebook import Shown
from nsysprof.core.arrays import Index, Ints, Ints32
from nsysprof.core.columns import Column, ColumnTable, Texts, distinct, frame_of, stack_tables
from nsysprof.core.intervals import covered, union
from nsysprof.core.text import quote_path
from nsysprof.diagnosis.diagnose import MAX_OPS, Diagnosis, case_of, diagnose
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import Kinds, Rules, kinds_of
from nsysprof.statistics.judge import CLASSES, CLOCK, LOST, SLOW_ONES, TYPICAL, Judgement, judge
from nsysprof.steps.features import Fit, fit_features, without_numbers
from nsysprof.steps.ledger import MAX_EXPLAINED, NEAR, Excess, excess_of, same_for_all_kernels
from nsysprof.steps.tables import LEDGER, STEPS
from nsysprof.summaries.gpu_metrics import clocks, step_metrics
from nsysprof.trace.trace import pid_of
from nsysprof.waits.facts import Facts, facts_of
from nsysprof.waits.ranges import windows_of
from nsysprof.waits.windows import Windows, gpu_lines, incomplete, step_windows

NO_GPU = -1  # the GPU of steps of a report without GPU work


@dataclass(frozen=True)
class Chain:
    """The consecutive steps of one path, GPU and process: rows of `Steps.steps`.

    ``span``: the step times in ns; ``judgement`` of these times; ``fit`` of these times to the numbers in step names;
    ``excess`` explains atypical steps; ``changed`` explains the typical steps after each change.
    """

    path: str
    gpu: int
    pid: int
    rows: Index
    span: Ints
    judgement: Judgement
    fit: Fit | None
    excess: Excess
    changed: tuple[Excess, ...] = ()

    def of(self, *classes: int) -> Index:
        """Return the numbers of the steps in these classes."""
        return np.flatnonzero(np.isin(self.judgement.of, classes))

    @property
    def whole(self) -> Ints:
        """The times of the steps with all their GPU ops."""
        return self.span[self.judgement.of != LOST]

    @property
    def judged(self) -> int:
        """The number of steps after warm-up with all their GPU ops."""
        return len(self.whole) - self.judgement.warm_up

    @property
    def slow_share(self) -> float:
        """Return the share of slow steps after warm-up; steps that are slow because of the GPU's clock do not count."""
        return len(self.of(*SLOW_ONES)) / max(self.judged, 1)


@dataclass(frozen=True, repr=False)
class Steps(Attributed, Shown):
    """The slow steps of a report, and why they are slow: ``steps`` as in `steps.csv`, ``ledger`` as in `tables.LEDGER`.

    `columns` returns a table as numpy columns; the attribute with the table's name is a pandas DataFrame. ``chains``
    are the steps per path, GPU and process. ``level``: the ranges of the steps; ``left_out``: the number of instances
    without GPU work or with zero duration; ``facts``: the inputs.
    """

    attribution: Attribution
    facts: Facts
    chains: tuple[Chain, ...]
    tables: Mapping[str, ColumnTable]
    level: Level | None
    left_out: int
    merge_names: Sequence[str] | None = field(default=DEFAULT_MERGE, repr=False)
    replay: bool = True

    steps = frame_of("steps")
    ledger = frame_of("ledger")

    def columns(self, table: str) -> ColumnTable:
        """Return the table of this name."""
        return self.tables[table]

    @property
    def chosen(self) -> str:
        """Return a clause that names the steps and the share of time that they cover."""
        return self.level.clause if self.level else ""

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Return the diagnosis of the steps (bottlenecks and their fixes), or None for steps on the host only."""
        return _diagnosed(self.level, self.facts, self.merge_names, self.replay)

    @cached_property
    def ranked(self) -> list[Chain]:
        """The chains, most time first."""
        return sorted(self.chains, key=lambda chain: -int(chain.span.sum()))


def steps(
    attribution: str | os.PathLike[str] | Attribution,
    per: str | None = None,
    *,
    rules: Rules | None = None,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
    replay: bool = True,
) -> Steps:
    """Judge the steps that the glob ``per`` matches, by default the repeated ranges that `why` chooses.

    ``attribution`` is a result of `attribute` or a report file. Steps are timed as in all commands, see `step_windows`.
    Matching names that differ only in numbers form one path. In a report without GPU work, steps are the ranges on the
    host. Without ``replay``, the diagnosis tries no fix. Raises `NsysprofError` if no range matches, or if none
    repeats. Takes near-linear time in GPU ops and calls.
    """
    attribution = attribute(attribution)
    kinds = kinds_of(attribution.trace, rules)
    level = choose_level(attribution, per, merge_names)
    if not len(level.rows):
        file = quote_path(attribution.trace.report.path)
        raise NsysprofError(
            f"{attribution.trace.report.path}: no range repeats, so there are no steps",
            f"name the ranges: --per GLOB (nsysprof ranges {file} lists them), or find iterations: --ranges found",
        )
    path, texts = (level.of, level.texts) if per is None else _without_numbers(level.of, level.texts)
    if level.attribution is not attribution.launched:  # iterations were found beside annotated ranges
        attribution = level.attribution
    more: dict[str, Any] = {"merge_names": merge_names, "level": level, "replay": replay}
    return steps_of_ranges(attribution, level.rows, path, texts, kinds, **more)


def steps_of_ranges(
    attribution: Attribution,
    rows: Index,
    path: Ints32,
    texts: Sequence[str],
    kinds: Kinds,
    *,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
    level: Level | None = None,
    replay: bool = True,
) -> Steps:
    """Judge the range instances ``rows`` as steps; ``path`` is the index in ``texts`` of each step's path.

    Without ``replay``, the diagnosis tries no fix.
    """
    facts = facts_of(attribution, kinds, merge_names)
    if len(facts.attribution.trace.ops):
        windows, lines = step_windows(facts.attribution, rows, path, facts.communication)
        texts = [texts[code] for code in lines.tolist()]
    else:
        windows = host_windows(facts.attribution, rows, path)
    large = len(facts.attribution.trace.ops) > MAX_OPS  # then steps share nothing with the diagnosis, and take memory
    diagnosis = _diagnosed(level, replace(facts), merge_names, replay) if large else None
    answer = _answer(facts, windows, texts, level, len(rows) - len(np.unique(windows.range)))
    answer = replace(answer, merge_names=merge_names, replay=replay)
    if large:
        vars(answer)["diagnosis"] = diagnosis
    return answer


def _diagnosed(level: Level | None, facts: Facts, merge_names: Sequence[str] | None, replay: bool) -> Diagnosis | None:
    if level is None or not len(facts.attribution.trace.ops):
        return None
    chosen = windows_of(level, facts.communication)
    return diagnose(
        case_of(chosen.attribution, None, facts.kinds, merge_names, chosen=chosen, facts=facts, replay=replay)
    )


def _without_numbers(path: Ints32, texts: list[str]) -> tuple[Ints32, list[str]]:
    """Merge paths whose last names differ only in numbers, with stars for the numbers."""
    starred: dict[str, list[int]] = {}
    for code in np.unique(path).tolist():
        last = split_path(texts[code])[-1]
        starred.setdefault(texts[code][: len(texts[code]) - len(last)] + without_numbers(last), []).append(code)
    recode, out = np.arange(len(texts)), list(texts)
    for text, codes in starred.items():
        if len(codes) > 1:
            recode[codes] = codes[0]
            out[codes[0]] = text
    return recode[path].astype(np.int32), out


def host_windows(attribution: Attribution, rows: Index, path: Ints32) -> Windows:
    """Return the steps of a report without GPU work: host ranges, by path and time."""
    ranges = attribution.trace.ranges
    order = np.lexsort((ranges.start[rows], path))
    rows, path = rows[order], path[order]
    start, end = ranges.start[rows], ranges.end[rows]
    some = start < end
    nothing = np.full(int(some.sum()), NO_GPU, np.int32)
    return Windows(rows[some], path[some], nothing, start[some], start[some], end[some], end[some], nothing)


def _answer(facts: Facts, windows: Windows, texts: Sequence[str], level: Level | None, left_out: int) -> Steps:
    trace = facts.attribution.trace
    code = trace.ranges.name[windows.range]
    names = [name.text for name in trace.range_names]
    pid = pid_of(trace.threads[trace.ranges.thread[windows.range]])
    _, line = distinct(windows.gpu, windows.path)
    chains: list[Chain] = []
    for number in range(int(line.max(initial=-1)) + 1):
        rows = np.flatnonzero(line == number)  # windows are sorted by GPU and path
        mine = windows.take(rows)
        span = mine.end - mine.start
        whole = ~incomplete(trace, mine)
        fit = fit_features(names, code[rows[whole]], span[whole])
        judged = judge(span[whole], None if fit is None else fit.fitted)
        before = np.maximum(np.cumsum(whole) - 1, 0)  # of each step, the last whole step
        of = np.where(whole, judged.of[before], np.uint8(LOST))
        judged = replace(judged, of=of, expected=judged.expected[before])
        chains.append(_explained(facts, mine, judged, fit, texts[mine.path[0]], int(pid[rows[0]]), rows))
    paths = list(dict.fromkeys(chain.path for chain in chains))
    each = [_columns(facts, windows.take(chain.rows), chain, paths, Texts(code[chain.rows], names)) for chain in chains]
    ledgers = [_ledger(facts, chain, paths) for chain in chains]
    parts = {"steps": each, "ledger": ledgers}
    tables = {name: stack_tables(some) if some else _empty(name) for name, some in parts.items()}
    return Steps(facts.attribution, facts, tuple(chains), tables, level, left_out)


def _explained(
    facts: Facts, windows: Windows, judged: Judgement, fit: Fit | None, path: str, pid: int, rows: Index
) -> Chain:
    """Account for atypical steps; slow steps whose kernels are all slower are due to the clock."""
    span = windows.end - windows.start
    odd = np.flatnonzero(~np.isin(judged.of, (TYPICAL, LOST)))
    odd = np.sort(odd[np.argsort(-np.abs(span - judged.expected)[odd], kind="stable")[:MAX_EXPLAINED]])
    level = None if fit is None else judged.expected
    excess = excess_of(facts, windows, odd, np.flatnonzero(judged.of == TYPICAL), level)
    longer = excess.longer
    slow = np.isin(judged.of, SLOW_ONES)
    judged.of[[step for step in odd[slow[odd]].tolist() if not longer.get(step, 1) > 0]] = TYPICAL
    excess = excess.without(np.flatnonzero(slow & (judged.of == TYPICAL)))
    odd = odd[judged.of[odd] != TYPICAL]
    clock = odd[same_for_all_kernels(excess, odd) & np.isin(judged.of[odd], SLOW_ONES)]
    judged.of[clock] = CLOCK
    changed = tuple(_changed(facts, windows, judged, at) for at, _ in judged.changes)
    return Chain(path, int(windows.gpu[0]), pid, rows, span, judged, fit, excess, changed)


def _changed(facts: Facts, windows: Windows, judged: Judgement, at: int) -> Excess:
    """The typical steps after each change, compared with the typical steps before it."""
    typical = np.flatnonzero(judged.of == TYPICAL)
    others = [0, *(step for step, _ in judged.changes), len(windows)]
    low, high = max(step for step in others if step < at), min(step for step in others if step > at)
    before = typical[(typical >= low) & (typical < at)]
    behind = typical[(typical >= at) & (typical < high)]
    return excess_of(facts, windows, behind[:NEAR], before[-NEAR:], None)


def _empty(table: str) -> ColumnTable:
    nothing = np.empty(0, np.int64)
    names = STEPS.names if table == "steps" else LEDGER.names
    return ColumnTable({name: Texts(nothing, []) if name in ("path", "name", "class") else nothing for name in names})


def _place(chain: Chain, paths: Sequence[str], count: int) -> dict[str, Column]:
    path = Texts(np.full(count, paths.index(chain.path)), paths)
    return {"path": path, "gpu": np.full(count, chain.gpu), "pid": np.full(count, chain.pid)}


def _ledger(facts: Facts, chain: Chain, paths: Sequence[str]) -> ColumnTable:
    ledger = chain.excess.table(facts)
    return ColumnTable({**_place(chain, paths, len(ledger)), **ledger.columns})


def _columns(facts: Facts, windows: Windows, chain: Chain, paths: Sequence[str], names: Texts) -> ColumnTable:
    busy, trace = np.zeros(len(windows), np.int64), facts.attribution.trace
    if chain.gpu != NO_GPU:
        lines = gpu_lines(trace, facts.communication, chain.gpu)
        busy = covered(union(lines.compute, lines.communication, lines.copies), windows.start, windows.end)
    return ColumnTable(
        {
            **_place(chain, paths, len(windows)),
            "step": np.arange(len(windows)),
            "name": names,
            "start_ns": windows.start,
            "span_ns": chain.span,
            "before_ns": windows.begin - windows.start,
            "busy_ns": busy,
            "expected_ns": np.rint(chain.judgement.expected).astype(np.int64),
            "class": Texts(chain.judgement.of.astype(np.int64), CLASSES),
            **chain.excess.largest(facts, len(windows)),
            "clock_hz": clocks(trace, chain.gpu, windows.start, windows.end),
            **step_metrics(trace, chain.gpu, windows.start, windows.end),
        }
    )
