"""Write sentences about the steps of a path: slow steps and their causes, warm-up, changes, cost of numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nsysprof.core.arrays import Floats
from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import join_first, join_words, one_line, plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.statistics.judge import (
    CLASSES,
    CLOCK,
    LEAST_STEPS,
    LOST,
    PERIODIC,
    SECOND,
    SLOW,
    SLOW_ONES,
    TYPICAL,
    WARM_UP,
)
from nsysprof.steps.ledger import same_for_all_kernels
from nsysprof.steps.steps import Chain, Steps
from nsysprof.summaries.gpu_metrics import clock_change

_ALL_OF_IT = 0.05  # of the excess of a step: with no more or less than that one culprit stands for all of it
_MOST = 0.5  # of the steps: for so many a reason holds for all
_BY_CLOCK = 0.75  # of the extra time: the clock is the cause if it explains so much at least
_MAX_NUMBERS, _NAME, _FEW_PATHS = 8, 80, 3
LATENCY = "launch and queue latency"


@dataclass(frozen=True)
class Finding:
    """One sentence about the steps of a path on a GPU. ``kind``: the class of these steps, or change, drift or numbers.

    ``steps``: the step numbers; ``excess_ns``: the total additional time of these steps; ``cause`` and ``culprit``: the
    source of most of this time.
    """

    path: str
    gpu: int
    pid: int
    kind: str
    text: str
    excess_ns: int = 0
    cause: str = ""
    culprit: str = ""
    hint: str = ""
    steps: list[int] = field(default_factory=list)


def findings(answer: Steps) -> list[Finding]:
    """Return all findings sorted by additional time, with slow steps first."""
    slow = [each for chain in answer.chains for each in _slow(answer, chain)]
    others = [each for chain in answer.ranked for each in _patterns(answer, chain)]
    return [*sorted(slow, key=lambda each: -each.excess_ns), *others]


def findings_one_by_one(answer: Steps) -> list[Finding]:
    """Return the findings to print one by one. If there are many paths, findings about warm-up are left out, because a
    table shows warm-up.
    """
    found = findings(answer)
    few = len(answer.chains) <= _FEW_PATHS
    return [each for each in found if few or each.kind != CLASSES[WARM_UP]]


def classes_of(answer: Steps, chain: Chain) -> list[tuple[int, ColumnTable]]:
    """Return the explained slow steps (rows of `Steps.steps`) by class, cause and responsible code."""
    rows = answer.columns("steps").take(chain.rows)
    out = []
    for code in SLOW_ONES:
        mine = rows.take((chain.judgement.of == code) & ~np.isnan(rows["excess_ns"]))
        groups: dict[tuple[str, str], list[int]] = {}
        for row, key in enumerate(zip(mine["cause"].tolist(), mine["culprit"].tolist(), strict=True)):
            groups.setdefault(key, []).append(row)
        out += [(code, mine.take(np.array(each))) for each in groups.values()]
    return out


def _slow(answer: Steps, chain: Chain) -> Iterator[Finding]:
    typical = answer.columns("steps").take(chain.rows[chain.of(TYPICAL)])
    for code, rows in classes_of(answer, chain):
        cause, culprit, steps = str(rows["cause"][0]), str(rows["culprit"][0]), rows["step"].tolist()
        excess, of_it = (float(np.median(rows[name])) for name in ("excess_ns", "culprit_ns"))
        what = join_words_of(cause, one_line(culprit, _NAME))
        amount = f"+{format_ns(excess)}"
        if abs(of_it - excess) > _ALL_OF_IT * excess:
            part = "of which" if of_it < excess else "with"
            amount += f"{' each' * (len(rows) > 1)}, {part} +{format_ns(of_it)}"
        ratio = float(np.median(rows["span_ns"] / rows["typical_ns"]))
        count, total = len(rows), len(chain.of(code))
        text = f"{_who(code, count, total, chain)}: {amount} {what}; {ratio:.2f} times as long as a typical step"
        text += _clocks(typical, rows)
        if count > 1 or code != SLOW:
            text += f" (steps {_numbers(steps)})"
        summed = int(rows["excess_ns"].sum())
        yield Finding(chain.path, chain.gpu, chain.pid, CLASSES[code], text, summed, cause, culprit, steps=steps)


def _who(code: int, count: int, total: int, chain: Chain) -> str:
    """`7 of 9 slow steps`, `step 13`, `every 100th step`, `38 of 100 steps, a second kind`."""
    if code == PERIODIC:
        if count == total:
            return f"one step in {chain.judgement.period:,} is slow"
        return f"{count:,} of {total:,} slow steps recur every {chain.judgement.period:,} steps"
    if code == SECOND:
        return f"{count:,} of {chain.judged:,} steps form a second group with its own typical time"
    if total == 1:
        return f"step {int(chain.of(SLOW)[0])} is slow"
    return f"{total:,} slow steps" if count == total else f"{count:,} of {total:,} slow steps"


def join_words_of(cause: str, culprit: str) -> str:
    """Name a cause and its responsible code in words, such as `host, sleep in data`."""
    if cause == "latency":
        return LATENCY
    return f"{cause}, {culprit}" if culprit else cause


def _numbers(steps: Sequence[int]) -> str:
    return join_first([str(step) for step in steps], _MAX_NUMBERS)


def _patterns(answer: Steps, chain: Chain) -> Iterator[Finding]:
    """What is no slow step: changes, drift, numbers in names, warm-up, the clock."""
    place, judged = (chain.path, chain.gpu, chain.pid), chain.judgement
    rows = answer.columns("steps").take(chain.rows)
    borders = [0, *(at for at, _ in judged.changes), len(rows)]
    for number, ((at, by), excess) in enumerate(zip(judged.changes, chain.changed, strict=True)):
        text = f"since step {at:,}, steps take {by:.2f} times as long as before"
        cause, culprit, ns = _most_of(excess.table(answer.facts), by > 1)
        before, after = (rows.take(slice(*borders[row : row + 2])) for row in (number, number + 1))
        fell = _slower_clock(before, after, by)
        if fell and np.mean(same_for_all_kernels(excess, np.unique(excess.step)) if len(excess.step) else 0) > _MOST:
            text += f", because all kernels slowed down together (GPU clock {fell})"
        else:
            what = join_words_of(cause, one_line(culprit, _NAME))
            text += f", most of all {'+' if ns > 0 else '-'}{format_ns(abs(ns))} {what}" * bool(cause)
            text += _clocks(before, after)
        yield Finding(*place, "change", text, round(ns), cause, culprit, steps=[at])
    if judged.drift is not None:
        text = f"step times drift: steps in the second half {_growth(judged.drift, 'are')}"
        yield Finding(*place, "drift", text)
    if chain.fit is not None:
        costs = [
            f"{format_ns(each.ns)} ({format_ns(each.low_ns)} to {format_ns(each.high_ns)}) per {each.name}"
            for each in chain.fit.features
        ]
        text = (
            f"numbers in step names explain {format_share(chain.fit.explained)} of the differences between steps:"
            f" {join_words(costs)}"
        )
        yield Finding(*place, "numbers", text)
    if judged.warm_up:
        early = chain.of(WARM_UP)
        some, ledger = rows.take(early), chain.excess.table(answer.facts)
        known = ~np.isnan(some["excess_ns"])
        total = int(np.where(known, some["excess_ns"], some["span_ns"] - some["expected_ns"]).sum())
        text = f"warm-up: {plural(judged.warm_up, 'step')}{f', +{format_ns(total)} in all' * (total > 0)}"
        cause, culprit, _ = _most_of(ledger.take(np.isin(ledger["step"], early)))
        if cause:
            text += f", most of all {join_words_of(cause, one_line(culprit, _NAME))}"
        yield Finding(*place, CLASSES[WARM_UP], text, total, cause, culprit)
    clock = chain.of(CLOCK)
    if len(clock):
        typical, some = rows.take(chain.of(TYPICAL)), rows.take(clock)
        grew = _median(some["excess_ns"] / some["typical_ns"])
        stretches = int((np.diff(clock) > 1).sum()) + 1
        text = (
            f"{plural(len(clock), 'step')} in {plural(stretches, 'place')} are not counted as slow, "
            f"because all kernels slowed down {_together(typical, some, 1 + grew)}; these steps {_growth(grew, 'take')}"
        )
        yield Finding(*place, CLASSES[CLOCK], text, steps=clock.tolist())


def _median(values: Floats) -> float:
    """The median of the known values, NaN if none is known."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else np.nan


def _clocks(before: ColumnTable, after: ColumnTable) -> str:
    """By how much the sampled clock of the GPU changed from some steps to others; nothing if it was not sampled."""
    change = clock_change(*(_median(rows["clock_hz"]) for rows in (before, after)))
    return f"; GPU clock {change}" * bool(change)


def _slower_clock(before: ColumnTable, after: ColumnTable, times: float) -> str:
    """How far the sampled clock fell, if that explains why steps take ``times`` as long; nothing otherwise."""
    one, other = (_median(rows["clock_hz"]) for rows in (before, after))
    explained = one / max(other, 1) - 1
    return clock_change(one, other) if 0 < _BY_CLOCK * (times - 1) <= explained else ""


def _together(before: ColumnTable, after: ColumnTable, times: float) -> str:
    """How all kernels slow down: by the clock if samples explain it, possibly by the clock if there are no samples."""
    if change := _slower_clock(before, after, times):
        return f"together (GPU clock {change})"
    if any(np.isnan(_median(rows["clock_hz"])) for rows in (before, after)):
        return "together (possibly the GPU clock)"
    return "together" + " at the same GPU clock" * (not _clocks(before, after))


def _growth(part: float, verb: str) -> str:
    """`take 12 % longer`; what more than doubles is so many times as long."""
    if part >= 1:
        return f"{verb} {1 + part:.2f} times as long"
    return f"{verb} {format_share(abs(part))} {'longer' if part > 0 else 'shorter'}"


def _most_of(ledger: ColumnTable, longer: bool = True) -> tuple[str, str, float]:
    """The cause and culprit that change most in ledgers of several steps, and by how many ns per step; none of none."""
    if not len(ledger):
        return "", "", 0.0
    each = ledger.summed(["cause", "culprit"], ["delta_ns"])
    sign = -1 if longer else 1
    texts = (each.texts(name).tolist() for name in ("cause", "culprit"))
    ns, cause, culprit = min(zip((sign * each["delta_ns"]).tolist(), *texts, strict=True))
    return cause, culprit, sign * ns / len(np.unique(ledger["step"]))


def headline(answer: Steps) -> str:
    """Return the first sentence: how many steps are slow."""
    if not answer.chains:
        return "no step ran on a GPU"
    sure = [chain for chain in answer.chains if not chain.judgement.doubt]
    spread = sum(len(chain.whole) for chain in answer.chains if chain.judgement.doubt == "too spread")
    if not sure and spread:
        return f"the times of {plural(spread, 'step')} vary too much to tell which steps are slow"
    if not sure:
        every = sum(len(chain.whole) for chain in answer.chains)
        return f"{plural(every, 'step')}, too few to tell which steps are slow: each path needs at least {LEAST_STEPS}"
    slow, judged = sum(len(chain.of(*SLOW_ONES)) for chain in sure), sum(chain.judged for chain in sure)
    more = f"; the times of {spread:,} more steps vary too much to tell" * (spread > 0)
    lost = sum(len(chain.of(LOST)) for chain in answer.chains)
    more += f"; {plural(lost, 'later step')} left out, because nsys lost GPU operations" * (lost > 0)
    if not slow:
        return f"no step of {judged:,} is slow{more}"
    return f"{slow:,} of {plural(judged, 'step')} {'is' if slow == 1 else 'are'} slow{more}"
