"""What the limits of a budget are held against."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.check.baseline import Baseline
from nsysprof.check.budget import Forbidden, RangeBudget
from nsysprof.check.call_samples import CallSamples, Spread, call_samples, spread_of
from nsysprof.check.growth import Growth, growths
from nsysprof.check.range_ops import OpsInside, backends_seen, ops_inside
from nsysprof.kernels.classify import FAMILIES, MATH_UNITS, Rules


@dataclass(frozen=True)
class MatchedBudget:
    """A ``[[range]]`` table and the rows of ``breakdown.merged`` that it is about."""

    asked: RangeBudget
    rows: NDArray[np.intp]


@dataclass(frozen=True)
class Facts:
    """What the limits are held against, computed once for all of them."""

    breakdown: Breakdown
    rules: Rules
    baseline: Baseline | None
    other_gpu: str  # why the baseline's times do not count, if so
    matched: Sequence[MatchedBudget]
    _meant: dict[Forbidden, NDArray[np.bool_]] = field(default_factory=dict, repr=False)

    @cached_property
    def samples(self) -> CallSamples:
        """What every call did."""
        return call_samples(self.breakdown)

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """How each measure is spread over the calls of each row."""
        return {measure: spread_of(self.samples, measure) for measure in self.samples.columns}

    @cached_property
    def paths(self) -> list[str]:
        """The merged path of each row."""
        return list(self.breakdown.merged["merged_path"])

    @cached_property
    def growths(self) -> dict[tuple[int, str], Growth]:
        """The growth of every time that has a limit on it, by row and measure."""
        tolerances: dict[tuple[int, str], float] = {}
        for each in self.matched:
            for measure, tolerance in each.asked.growth.items():
                for row in each.rows.tolist():
                    tolerances[row, measure] = min(tolerance, tolerances.get((row, measure), tolerance))
        keys = list(zip(self.paths, self.breakdown.merged["kind"].tolist(), strict=True))
        step = self.breakdown.attribution.trace.clock_step
        return growths(self.samples, keys, self.baseline, self.other_gpu, tolerances, step)

    @cached_property
    def works(self) -> NDArray[np.bool_]:
        """Which rows have GPU work in any call."""
        found: NDArray[np.bool_] = self.breakdown.merged["launches"].to_numpy() > 0
        return found

    @cached_property
    def ops(self) -> OpsInside:
        """`ops_inside` the rows of which names are asked."""
        asked = (each.rows for each in self.matched if each.asked.forbidden or each.asked.units)
        return ops_inside(self.breakdown, np.unique(np.concatenate([*asked, np.empty(0, np.intp)])).tolist())

    @cached_property
    def backends(self) -> dict[int, list[tuple[str, int, str]]]:
        """What was observed, in how many instances, and by which evidence, in each row of which a backend is asked."""
        asked = (each.rows for each in self.matched if each.asked.backend)
        rows = np.unique(np.concatenate([*asked, np.empty(0, np.intp)])).tolist()
        found: dict[int, list[tuple[str, int, str]]] = {}
        for row, *seen in backends_seen(self.breakdown, rows, self.rules).itertuples(index=False):
            found.setdefault(row, []).append((seen[0], seen[1], seen[2]))
        return found

    def is_forbidden(self, forbidden: Forbidden) -> NDArray[np.bool_]:
        """For each op name of the report whether it is meant."""
        if forbidden not in self._meant:
            kinds, text = self.breakdown.kinds, forbidden.text
            if forbidden.by == "family":
                found = [family == text for family in kinds.family]
            elif forbidden.by == "cause":
                found = [fnmatchcase(cause, text) for cause in kinds.cause]
            else:
                search = re.compile(text).search
                found = [search(name) is not None for name in self.breakdown.attribution.trace.op_names]
            self._meant[forbidden] = np.array(found, bool)
        return self._meant[forbidden]

    @cached_property
    def names_of(self) -> dict[str, NDArray[np.bool_]]:
        """For each kernel family, and for each math unit, which op names are of it."""
        kinds = self.breakdown.kinds
        return {
            word: np.array([each == word for each in column], bool)
            for words, column in ((FAMILIES, kinds.family), (MATH_UNITS, kinds.math_unit))
            for word in words
        }
