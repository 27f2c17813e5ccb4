"""Apply the limits of a budget to the ranges of a report: find the value for each limit, and compare."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.paths import WHOLE_TRACE
from nsysprof.check.baseline import Baseline, Growth, growths, other_gpu
from nsysprof.check.budget import OF_KERNELS, Forbidden, RangeBudget, UnitShare
from nsysprof.check.measure import (
    COUNTS,
    OF_GPU_WORK,
    OF_WINDOWS,
    SLOW_STEPS,
    STEP,
    SYNCS,
    CallSamples,
    OpsInside,
    backends_seen,
    call_samples,
    needs_of_kernels,
    ops_inside,
    slow_steps,
    steps_of_calls,
    syncs_of_calls,
    waits_of_calls,
    with_whole_trace,
)
from nsysprof.core.arrays import Floats, Index, Mask
from nsysprof.core.expressions import bounded, compiled
from nsysprof.core.text import join_first
from nsysprof.core.units import format_count, format_ns, format_share
from nsysprof.kernels.backends import UNKNOWN
from nsysprof.kernels.classify import MATH_UNITS, Rules, short_name
from nsysprof.statistics.judge import LEAST_STEPS, SLOW_ONES
from nsysprof.steps.steps import Chain

MAX, MIN, IS = "max", "min", "is"
UNIT_COUNT, UNIT_NS, UNIT_SHARE, UNIT_TEXT = "count", "ns", "share", "text"
_UNITS = {**dict.fromkeys((*COUNTS, SYNCS), UNIT_COUNT), **dict.fromkeys(("idle", "launch_bound_share"), UNIT_SHARE)}
_MIN_CALLS_FOR_P95 = 20  # with fewer the 95th percentile is hardly more than a guess at their maximum
_MAX_NAMES = 3
_NO_STEPS = "step times need at least three calls of the range, with no other GPU work between them"


class Outcome(NamedTuple):
    """The outcome of one limit on one range; the columns of `BudgetCheck.rows`."""

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


class MatchedBudget(NamedTuple):
    """A ``[[range]]`` table and its rows of ``breakdown.merged``."""

    asked: RangeBudget
    rows: Index


@dataclass(frozen=True)
class Facts:
    """The values with which limits are compared; each value is computed once."""

    breakdown: Breakdown
    rules: Rules
    baselines: Sequence[Baseline]
    matched: Sequence[MatchedBudget]
    _named: dict[tuple[str, str], Mask] = field(default_factory=dict, repr=False)

    @cached_property
    def samples(self) -> CallSamples:
        """The samples of every call."""
        more: dict[str, Floats] = {}
        waits = self._rows_where(lambda asked: not asked.caps.keys().isdisjoint(OF_WINDOWS))
        if waits:
            more |= waits_of_calls(self.breakdown, waits)
        if steps := self._rows_where(lambda asked: STEP in {*asked.caps, *asked.growth}):
            more |= steps_of_calls(self.breakdown, steps)
        syncs = self._rows_where(lambda asked: SYNCS in asked.caps)
        if syncs:
            more[SYNCS] = syncs_of_calls(self.breakdown)
        samples = call_samples(self.breakdown, more)
        if not self._rows_where(lambda asked: asked.glob == WHOLE_TRACE):
            return samples
        return with_whole_trace(samples, self.breakdown, waits=bool(waits), syncs=bool(syncs))

    @cached_property
    def slow_steps(self) -> dict[int, list[Chain]]:
        """Return the steps of the rows with a limit on slow steps."""
        whole = len(self.breakdown.merged)
        rows = [row for row in self._rows_where(lambda asked: SLOW_STEPS in asked.caps) if row < whole]
        return slow_steps(self.breakdown, rows)

    @cached_property
    def needs_of_kernels(self) -> dict[int, dict[str, dict[str, int]]]:
        """Return the resources of kernels in the rows with a limit on these resources."""
        return needs_of_kernels(self.breakdown, self._rows_where(lambda asked: asked.of_kernels))

    def needed_before(self, row: int, measure: str) -> dict[str, int] | None:
        """Return the maximum of these resources in the baselines, or None if no baseline has them."""
        key = next((key for key, at in self.samples.keys.items() if at == row), ("", ""))
        known = [each.needs[key][measure] for each in self.baselines if measure in each.needs.get(key, {})]
        if not known or len(known) < len(self.baselines):
            return None
        return {name: max(each.get(name, 0) for each in known) for name in set().union(*known)}

    @cached_property
    def spreads(self) -> dict[str, dict[str, Floats]]:
        """Return the distribution of each measure over the calls of each row."""
        return self.samples.spreads()

    @cached_property
    def paths(self) -> list[str]:
        """The merged path of each row."""
        return [*self.breakdown.merged["merged_path"], WHOLE_TRACE]

    @cached_property
    def growths(self) -> dict[tuple[int, str], Growth]:
        """Return the growth of every limited time, by row and measure."""
        tolerances: dict[tuple[int, str], float] = {}
        for each in self.matched:
            for measure, tolerance in each.asked.growth.items():
                for row in each.rows.tolist() if measure not in OF_KERNELS else ():
                    tolerances[row, measure] = min(tolerance, tolerances.get((row, measure), tolerance))
        other, step = other_gpu(self.breakdown, self.baselines), self.breakdown.attribution.trace.clock_step
        return growths(self.samples, self.baselines, other, tolerances, step)

    @cached_property
    def works(self) -> Mask:
        """Mark the rows that have GPU work in at least one call."""
        works: Mask = self.breakdown.merged["launches"].to_numpy() > 0
        return np.append(works, self.breakdown.totals["span_ns"] > 0)

    @cached_property
    def ops(self) -> dict[int, OpsInside]:
        """Return the GPU ops in the rows with limits on op names."""
        rows = self._rows_where(lambda asked: bool(asked.forbidden or asked.units))
        return ops_inside(self.breakdown, rows)

    @cached_property
    def backends(self) -> dict[int, list[tuple[str, int, str]]]:
        """For each row with a required backend, return the observed backends, the number of instances, and the
        evidence.
        """
        rows = self._rows_where(lambda asked: bool(asked.backend) and asked.glob != WHOLE_TRACE)
        out: dict[int, list[tuple[str, int, str]]] = {row: [] for row in rows}
        for row, *seen in backends_seen(self.breakdown, rows, self.rules).itertuples(index=False):
            out[row].append((seen[0], seen[1], seen[2]))
        return out

    def _rows_where(self, wanted: Callable[[RangeBudget], bool]) -> list[int]:
        return sorted({row for each in self.matched if wanted(each.asked) for row in each.rows.tolist()})

    def named(self, by: str, text: str) -> Mask:
        """Mark GPU op names by ``family``, ``cause`` (glob), ``kernel`` name or ``unit``."""
        if (by, text) not in self._named:
            kinds = self.breakdown.kinds
            if by == "kernel":
                search = compiled(text).search
                with bounded("the expressions for kernels", "the budget"):
                    meant = [search(name) is not None for name in self.breakdown.attribution.trace.op_names]
            else:
                words = {"family": kinds.family, "cause": kinds.cause, "unit": kinds.math_unit}[by]
                meant = [fnmatchcase(word, text) for word in words]
            self._named[by, text] = np.array(meant, bool)
        return self._named[by, text]


def outcomes(facts: Facts, matched: MatchedBudget) -> Iterator[Outcome]:
    """Yield the outcomes of one table, range by range, in the order of limits in `RangeBudget`.

    A limit that cannot be judged (nothing ran, or nothing ended) counts as broken, unless the range is optional.
    """
    asked = matched.asked
    for row in matched.rows.tolist():
        limited = _LimitedRange(facts, asked, row)
        least = asked.min_instances if asked.is_limited else 1
        if least is not None:
            rule = "must exist" if asked.min_instances is None else "min_instances"
            yield limited.outcome(rule, MIN, least, limited.calls, UNIT_COUNT, limited.calls >= least)
        for measure, allowed in asked.caps.items():
            if measure == SLOW_STEPS:
                yield limited.slow_steps(allowed)
            else:
                yield (limited.of_kernels if measure in OF_KERNELS else limited.cap)(measure, allowed)
        for forbidden in asked.forbidden:
            yield limited.forbidden(forbidden)
        if asked.backend:
            yield limited.backend(asked.backend)
        for unit in asked.units:
            yield limited.unit_share(unit)
        for measure, allowed in asked.growth.items():
            yield (limited.growth_of_kernels if measure in OF_KERNELS else limited.growth)(measure, allowed)


@dataclass(frozen=True)
class _LimitedRange:
    """A row of ``merged`` with its limits; each method checks one kind of limit."""

    facts: Facts
    asked: RangeBudget
    row: int

    @property
    def calls(self) -> int:
        return int(self.facts.samples.calls[self.row])

    @property
    def unjudged(self) -> bool | None:
        """Return the outcome if there is nothing to judge."""
        return None if self.asked.optional else False

    def outcome(
        self,
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
        path, calls = self.facts.paths[self.row], self.calls if instances is None else instances
        return Outcome(path, rule, stat, bound, allowed, found, unit, ok, calls, evidence, self.asked.glob)

    def cap(self, measure: str, allowed: float) -> Outcome:
        """Check a maximum per call."""
        unit, stat = _UNITS.get(measure, UNIT_NS), self.asked.stat
        spread = {name: float(values[self.row]) for name, values in self.facts.spreads[measure].items()}
        count = int(np.nan_to_num(spread["n"]))
        found, ok = None, self.unjudged
        if measure in OF_GPU_WORK and not self.facts.works[self.row]:
            evidence = "the range has no GPU work"
        elif count == 0:
            missing = {
                "cpu": "the range was never closed, so it has no end",
                SYNCS: "no host call is recorded",
                STEP: _NO_STEPS,
                **dict.fromkeys(OF_WINDOWS, "no call has a GPU window"),
            }
            evidence = missing.get(measure, "no call has a span")
            ok = None if measure in (STEP, SYNCS) else ok
        else:
            found = _in_whole_units(spread[stat], unit)
            ok = found <= allowed
            least, most = (_shown(spread[each], unit) for each in ("min", "max"))
            notes = [] if ok else [f"all {least}" if least == most else f"{least} to {most}"]
            if count < self.calls:
                why = "without a GPU window" if measure in OF_WINDOWS else "without a span"
                why = {"cpu": "never closed", STEP: "are warm-up"}.get(measure, why)
                notes.append(f"{self.calls - count:,} more {why}")
            if stat == "p95" and count < _MIN_CALLS_FOR_P95:
                notes.append(f"too few calls for a 95th percentile: n = {count}")
            evidence = "; ".join(notes)
        calls = count or self.calls
        rule = f"max_{measure}"
        return self.outcome(rule, MAX, allowed, found, unit, ok, evidence, stat=stat, instances=calls)

    def of_kernels(self, measure: str, allowed: float) -> Outcome:
        """Check the maximum of a resource per thread over all kernels; untested if not recorded."""
        known = self.facts.needs_of_kernels[self.row].get(measure)
        if known is None:
            return self.outcome(f"max_{measure}", MAX, allowed, None, UNIT_COUNT, None, "not recorded")
        name = max(known, key=lambda each: known[each])
        before = self.facts.needed_before(self.row, measure)
        evidence = short_name(name, 120) + ("" if before is None else f", {before.get(name, 0):,} in the baseline")
        ok = known[name] <= allowed
        return self.outcome(f"max_{measure}", MAX, allowed, known[name], UNIT_COUNT, ok, evidence, stat="max")

    def growth_of_kernels(self, measure: str, tolerance: float) -> Outcome:
        """Check that no kernel needs more than in the baseline (0 for kernels that the baseline lacks)."""
        known, before = self.facts.needs_of_kernels[self.row].get(measure), self.facts.needed_before(self.row, measure)
        rule = f"max_growth {measure}"
        if known is None or before is None:
            why = "the baseline has no value for this limit: give the report, not the analysis, with --baseline"
            why = "not recorded" if known is None else why
            return self.outcome(rule, MAX, tolerance, None, UNIT_COUNT, None, why)
        name = max(known, key=lambda each: (known[each] - before.get(each, 0) * (1 + tolerance), known[each]))
        most = before.get(name, 0) * (1 + tolerance)
        evidence = f"{short_name(name, 120)}, {before.get(name, 0):,} in the baseline"
        return self.outcome(rule, MAX, most, known[name], UNIT_COUNT, known[name] <= most, evidence, stat="max")

    def slow_steps(self, allowed: float) -> Outcome:
        """Check the share of slow steps: the largest over all GPUs and processes."""
        chains = [chain for chain in self.facts.slow_steps.get(self.row, []) if chain.judged >= LEAST_STEPS]
        if not chains:
            evidence = f"fewer than {LEAST_STEPS} steps with GPU work after warm-up: too few to judge"
            return self.outcome(f"max_{SLOW_STEPS}", MAX, allowed, None, UNIT_SHARE, self.unjudged, evidence)
        worst = max(chains, key=lambda chain: chain.slow_share)
        slow = worst.of(*SLOW_ONES)
        numbers = join_first([str(step) for step in slow.tolist()], _MAX_NAMES)
        evidence = f"slow steps: {numbers} (nsysprof steps shows the causes)" if len(slow) else ""
        return self.outcome(
            f"max_{SLOW_STEPS}", MAX, allowed, worst.slow_share, UNIT_SHARE, worst.slow_share <= allowed, evidence,
            stat="total", instances=worst.judged,
        )  # fmt: skip

    def forbidden(self, forbidden: Forbidden) -> Outcome:
        """Check that no call has any of these GPU ops."""
        inside = self.facts.ops[self.row]
        there = inside.take(self.facts.named(forbidden.by, forbidden.text)[inside.name])
        count = int(there.ops.sum())
        rule = {"family": "forbid", "cause": "forbid_causes", "kernel": "forbid_kernels"}[forbidden.by]
        evidence = self._named(there.take(np.argsort(-there.ops, kind="stable")))
        rule = f"{rule} {forbidden.text}"
        return self.outcome(rule, MAX, 0, count, UNIT_COUNT, count == 0, evidence, stat="total")

    def _named(self, ops: OpsInside) -> str:
        """``name x count`` of the first few."""
        names = self.facts.breakdown.attribution.trace.op_names
        shown = zip(ops.name[:_MAX_NAMES].tolist(), ops.ops[:_MAX_NAMES].tolist(), strict=True)
        texts = [f"{short_name(names[name], 120)} x {count:,}" for name, count in shown]
        more = len(ops.name) - _MAX_NAMES
        return ", ".join([*texts, f"{more:,} more names"] if more > 0 else texts)

    def backend(self, wanted: str) -> Outcome:
        """Check that every call runs this attention backend."""
        if self.row == len(self.facts.breakdown.merged):
            evidence = "backends are detected per range, not per trace"
            return self.outcome("backend", IS, wanted, None, UNIT_TEXT, None, evidence)
        seen = self.facts.backends[self.row]
        others = [each for each in seen if _parts(each[0]) != _parts(wanted)]
        found = ", ".join(dict.fromkeys(observed for observed, _, _ in others or seen))
        ok = None if self.asked.optional and not self.facts.works[self.row] else not others
        if others and all(observed == UNKNOWN for observed, _, _ in others):
            ok = None  # kernels that the report does not name, as of a CUDA graph traced whole
        evidence = "; ".join(
            (f"{observed} in {count:,}: " if len(seen) > 1 else "") + (names or "no kernels")
            for observed, count, names in others
        )
        return self.outcome("backend", IS, wanted, found, UNIT_TEXT, ok, evidence)

    def unit_share(self, unit: UnitShare) -> Outcome:
        """Check that the required share of a family's time runs on this unit."""
        inside = self.facts.ops[self.row]
        inside = inside.take(self.facts.named("family", unit.family)[inside.name])
        there = self.facts.named("unit", unit.unit)[inside.name]
        total = int(inside.sum_ns.sum())
        share = int(inside.sum_ns[there].sum()) / total if total else None
        rest = inside.take(~there)
        rest = rest.take(np.argsort(-rest.sum_ns, kind="stable"))
        units = [word for word in MATH_UNITS if self.facts.named("unit", word)[rest.name].any()]
        evidence = f"{' and '.join(units)}: {self._named(rest)}" if units else ""
        return self.outcome(
            f"math_unit {unit.family}: {unit.unit}", MIN, unit.least, share, UNIT_SHARE,
            None if share is None else share >= unit.least,
            f"the range has no {unit.family}" if share is None else evidence, stat="total",
        )  # fmt: skip

    def growth(self, measure: str, allowed: float) -> Outcome:
        """Check that the growth over the baseline is at most the allowed growth, or not significant."""
        growth = self.facts.growths[self.row, measure]
        ok, evidence = None, growth.why
        if growth.by is not None:
            ok = growth.by <= allowed or (None if growth.slower is None else not growth.slower)
        if growth.by is not None and measure in OF_GPU_WORK and not self.facts.works[self.row]:
            ok, evidence = self.unjudged, "the range has no GPU work any more"
        rule = f"max_growth {measure}"
        return self.outcome(rule, MAX, allowed, growth.by, UNIT_SHARE, ok, evidence, stat="median")


def _in_whole_units(value: float, unit: str) -> float:
    """Times rounded to whole ns, and counts as integers."""
    if unit == UNIT_NS or (unit == UNIT_COUNT and value.is_integer()):
        return round(value)
    return value


def _shown(value: float, unit: str) -> str:
    if unit == UNIT_NS:
        return format_ns(_in_whole_units(value, unit))
    return format_share(value) if unit == UNIT_SHARE else format_count(int(value))


def _parts(backends: str) -> set[str]:
    return {backend.strip().casefold() for backend in backends.split("+")}
