"""Find steps that take longer than others, and the waits in which they differ from typical steps."""

from collections.abc import Iterator

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.columns import sums
from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_ns
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.finding import NAME, SLOW, Finding
from nsysprof.statistics.judge import SLOW_ONES, judge
from nsysprof.waits.facts import OVERHEAD

MIN_SHARE = 0.02  # of all steps
_COMPUTE = "longer compute"


def slow_step_findings(case: Case, place: Place) -> Iterator[Finding]:
    """Yield the slow steps of a place, as in `judge`, if their total extra time is at least `MIN_SHARE`."""
    if place.path == WHOLE:
        return
    judged = judge(place.length)
    slow = np.flatnonzero(np.isin(judged.of, SLOW_ONES))
    excess = place.length[slow] - judged.expected[slow]
    total = round(float(excess.sum()))
    if not len(slow) or total < MIN_SHARE * place.total_ns:
        return
    cause = _cause(case, place, slow)
    if cause == _COMPUTE and case.chosen.level.found:
        return  # steps that were found by their pattern, and do other work
    most = int(slow[np.argmax(excess)])
    typical = format_ns(round(float(judged.expected[most])))
    yield Finding(
        kind=SLOW,
        path=place.path,
        gpu=place.gpu,
        often=f"{len(slow):,} of {place.steps:,} steps",
        steps=place.steps,
        text=(
            f"{len(slow):,} of {plural(place.steps, 'step')} are slow, mainly because of {cause}: step "
            f"{most} takes {format_ns(int(place.length[most]))} instead of {typical}"
        ),
        cause=cause,
        claim="order",
        lost_ns=total,
        total_ns=place.total_ns,
    )


def _cause(case: Case, place: Place, slow: np.ndarray) -> str:
    """What slow steps wait for more than the median of the others."""
    at = np.full(len(case.windows), -1, np.int64)
    at[place.windows] = np.arange(place.steps)
    step = at[case.pieces["window"]]
    rows = np.flatnonzero((step >= 0) & (case.pieces["cause"] != OVERHEAD))
    culprit, ns = case.pieces["culprit"][rows], case.pieces["ns"][rows]
    codes, of = np.unique(culprit, return_inverse=True)
    table = sums(of * place.steps + step[rows], ns, len(codes) * place.steps).reshape(len(codes), place.steps)
    others = np.setdiff1d(np.arange(place.steps), slow)
    more = (table[:, slow] - np.median(table[:, others], axis=1)[:, None]).sum(axis=1)
    grown = place.length[slow].sum() - np.median(place.length[others]) * len(slow)
    if not len(more) or more.max() < grown / 2:
        return _COMPUTE
    words = case.facts.texts.words
    return one_line(min(words[code] for code in codes[more == more.max()].tolist()) or "launch latency", NAME)
