"""What a report says to each kind of limit of a budget: what was found in each range, and whether the limit holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nsysprof.check.budget import Forbidden, RangeBudget, UnitShare
from nsysprof.check.call_samples import COUNTS, OF_GPU_WORK, Spread
from nsysprof.check.facts import Facts, MatchedBudget
from nsysprof.check.growth import Growth
from nsysprof.check.range_ops import OpsInside
from nsysprof.core.units import format_count, format_ns, format_share
from nsysprof.kernels.classify import MATH_UNITS, short_name

MAX, MIN, IS = "max", "min", "is"
UNIT_COUNT, UNIT_NS, UNIT_SHARE, UNIT_TEXT = "count", "ns", "share", "text"
_UNITS = {**dict.fromkeys(COUNTS, UNIT_COUNT), "idle": UNIT_SHARE}
# From so many calls on, the 95th percentile is more than a guess at their maximum.
_ENOUGH_FOR_P95 = 20
_MOST_NAMES = 3


class Outcome(NamedTuple):
    """What became of one limit in one range; the columns of `BudgetCheck.rows`."""

    range: str
    rule: str
    stat: str
    bound: str
    allowed: float | str
    found: float | str | None
    unit: str
    ok: bool | None
    instances: int
    evidence: str
    glob: str


def outcomes(facts: Facts, matched: MatchedBudget) -> Iterator[Outcome]:
    """All outcomes of one table, range by range, in the order in which `RangeBudget` lists its limits.

    A limit that cannot be told, because nothing ran or nothing ended, is broken, unless the range is optional.
    """
    asked = matched.asked
    calls = facts.samples.calls
    for row in matched.rows.tolist():
        least = 1 if not asked.is_limited else asked.min_instances
        if least is not None:
            count = int(calls[row])
            rule = "must exist" if asked.min_instances is None else "min_instances"
            yield _outcome(facts, asked, row, rule, MIN, least, count, UNIT_COUNT, count >= least)
        for measure, allowed in asked.caps.items():
            yield _cap(facts, asked, row, measure, allowed)
        for forbidden in asked.forbidden:
            yield _forbidden(facts, asked, row, forbidden)
        if asked.backend:
            yield _backend(facts, asked, row, asked.backend)
        for unit in asked.units:
            yield _unit_share(facts, asked, row, unit)
        for measure, allowed in asked.growth.items():
            yield _growth(facts, asked, row, measure, allowed)


def _outcome(
    facts: Facts,
    asked: RangeBudget,
    row: int,
    rule: str,
    bound: str,
    allowed: float | str,
    found: float | str | None,
    unit: str,
    ok: bool | None,
    evidence: str = "",
    *,
    stat: str = "",
    instances: int | None = None,
) -> Outcome:
    count = int(facts.samples.calls[row]) if instances is None else instances
    return Outcome(facts.paths[row], rule, stat, bound, allowed, found, unit, ok, count, evidence, asked.glob)


def _cap(facts: Facts, asked: RangeBudget, row: int, measure: str, allowed: float) -> Outcome:
    """At most so much per call."""
    unit = _UNITS.get(measure, UNIT_NS)
    spread = facts.spreads[measure]
    count, all_calls = int(spread.n[row]), int(facts.samples.calls[row])
    found: float | None = None
    ok: bool | None = None if asked.optional else False
    if measure in OF_GPU_WORK and not facts.works[row]:
        evidence = "no GPU work in it"
    elif count == 0:
        evidence = "never closed, so it has no end" if measure == "cpu" else "no call has a span"
    else:
        found = _plain(getattr(spread, asked.stat)[row], unit)
        ok = found <= allowed
        notes = [] if ok else [_extent(spread, row, unit)]
        if count < all_calls:
            why = "never closed" if measure == "cpu" else "without a span"
            notes.append(f"{all_calls - count:,} more {why}")
        if asked.stat == "p95" and count < _ENOUGH_FOR_P95:
            notes.append(f"too few calls for a 95th percentile: n = {count}")
        evidence = "; ".join(notes)
    return _outcome(
        *(facts, asked, row, f"max_{measure}", MAX, allowed, found, unit, ok, evidence),
        stat=asked.stat,
        instances=count or all_calls,
    )


def _plain(value: float, unit: str) -> float:
    """Whole ns, and whole numbers as such."""
    if unit == UNIT_NS or (unit == UNIT_COUNT and float(value).is_integer()):
        return round(float(value))
    return float(value)


def _extent(spread: Spread, row: int, unit: str) -> str:
    low, high = (_shown(_plain(values[row], unit), unit) for values in (spread.low, spread.max))
    return f"all {low}" if low == high else f"{low} to {high}"


def _shown(value: float, unit: str) -> str:
    if unit == UNIT_NS:
        return format_ns(value)
    return format_share(value) if unit == UNIT_SHARE else format_count(int(value))


def _forbidden(facts: Facts, asked: RangeBudget, row: int, forbidden: Forbidden) -> Outcome:
    """None of these ops in any call."""
    mine = facts.ops.of(row)
    mine = mine.take(facts.is_forbidden(forbidden)[mine.name])
    count = int(mine.ops.sum())
    rule = {"family": "forbid", "cause": "forbid_causes", "kernel": "forbid_kernels"}[forbidden.by]
    evidence = _named(facts, mine.take(np.argsort(-mine.ops, kind="stable")))
    return _outcome(
        *(facts, asked, row, f"{rule} {forbidden.text}", MAX, 0, count, UNIT_COUNT, count == 0, evidence),
        stat="total",
    )


def _named(facts: Facts, ops: OpsInside) -> str:
    """``name x count`` of the first few."""
    names = facts.breakdown.attribution.trace.op_names
    shown = zip(ops.name[:_MOST_NAMES].tolist(), ops.ops[:_MOST_NAMES].tolist(), strict=True)
    texts = [f"{short_name(names[name], 120)} x {count:,}" for name, count in shown]
    more = len(ops.name) - _MOST_NAMES
    return ", ".join([*texts, f"{more:,} more names"] if more > 0 else texts)


def _backend(facts: Facts, asked: RangeBudget, row: int, wanted: str) -> Outcome:
    """This attention backend in every call."""
    seen = facts.backends.get(row, [])
    others = [each for each in seen if _parts(each[0]) != _parts(wanted)]
    found = ", ".join(dict.fromkeys(observed for observed, _, _ in others or seen))
    ok: bool | None = not others
    if asked.optional and not facts.works[row]:
        ok = None
    evidence = "; ".join(
        (f"{observed} in {count:,}: " if len(seen) > 1 else "") + (names or "no kernels")
        for observed, count, names in others
    )
    return _outcome(facts, asked, row, "backend", IS, wanted, found, UNIT_TEXT, ok, evidence)


def _parts(backends: str) -> set[str]:
    return {backend.strip().casefold() for backend in backends.split("+")}


def _unit_share(facts: Facts, asked: RangeBudget, row: int, unit: UnitShare) -> Outcome:
    """At least this share of the time of a family on this unit."""
    mine = facts.ops.of(row)
    mine = mine.take(facts.names_of[unit.family][mine.name])
    there = facts.names_of[unit.unit][mine.name]
    total, reached = int(mine.sum_ns.sum()), int(mine.sum_ns[there].sum())
    rule = f"math_unit {unit.family}: {unit.unit}"
    if total == 0:
        evidence = f"no {unit.family} in it"
        return _outcome(
            facts, asked, row, rule, MIN, unit.least, None, UNIT_SHARE, None, evidence, stat="total"
        )
    rest = mine.take(~there)
    rest = rest.take(np.argsort(-rest.sum_ns, kind="stable"))
    units = [word for word in MATH_UNITS if facts.names_of[word][rest.name].any()]
    evidence = f"{' and '.join(units)}: {_named(facts, rest)}" if units else ""
    share = reached / total
    return _outcome(
        *(facts, asked, row, rule, MIN, unit.least, share, UNIT_SHARE, share >= unit.least, evidence),
        stat="total",
    )


def _growth(facts: Facts, asked: RangeBudget, row: int, measure: str, allowed: float) -> Outcome:
    """Not slower than the baseline by more than so much, and not by chance either."""
    growth = facts.growths[row, measure]
    ok, evidence = _is_within(growth, allowed), growth.why
    if growth.by is not None and measure in OF_GPU_WORK and not facts.works[row]:
        ok, evidence = (None if asked.optional else False), "no GPU work in it any more"
    return _outcome(
        *(facts, asked, row, f"max_growth {measure}", MAX, allowed, growth.by, UNIT_SHARE, ok, evidence),
        stat="median",
    )


def _is_within(growth: Growth, allowed: float) -> bool | None:
    if growth.by is None:
        return None
    return True if growth.by <= allowed else None if growth.slower is None else not growth.slower
