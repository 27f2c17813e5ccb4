"""Whether ranges are slower than in a baseline: by how much, and whether by more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nsysprof.check.baseline import Baseline
from nsysprof.check.call_samples import OF_GPU_WORK, CallSamples
from nsysprof.core.units import format_ns
from nsysprof.statistics.contrast import DEFAULT_RULES, SLOWER, TOO_FEW_SAMPLES, Contrast, contrast, judge
from nsysprof.statistics.distributions import Floats

NO_BASELINE = "no --baseline given"


@dataclass(frozen=True)
class Growth:
    """How much the median of a time has grown, as a part of that of the baseline; None where that cannot be said.

    ``slower``: whether a test says so, None where there are too few calls for one. It is asked only where a tolerance
    is exceeded. ``why`` is what a reader needs to know: medians, counts and reason; ``warnings`` what else.
    """

    by: float | None
    slower: bool | None
    why: str
    warnings: tuple[str, ...] = ()


def growths(
    samples: CallSamples,
    keys: Sequence[tuple[str, str]],
    baseline: Baseline | None,
    other_gpu: str,
    tolerances: Mapping[tuple[int, str], float],
    clock_step: int = 0,
) -> dict[tuple[int, str], Growth]:
    """The `Growth` of times, by the row of ``samples`` and the measure; ``keys`` find the rows in the baseline.

    ``tolerances``: by how much each may grow before it is tested. All of them are one family for Holm's correction,
    those that need no test included, so that many limits do not make one of them break by chance. ``other_gpu``: why
    the two do not compare, if so; ``clock_step``: of the GPU's clock, by which a time may seem to grow.
    """
    found: dict[tuple[int, str], Growth] = {}
    tests: dict[tuple[int, str], Contrast] = {}
    for (row, measure), tolerance in tolerances.items():
        base, why = _earlier(baseline, keys[row], measure) if not other_gpu else (np.empty(0), other_gpu)
        new = samples.of(row, measure)
        if why or not len(new):
            found[row, measure] = Growth(None, None, why or "never closed")
            continue
        before, now = float(np.median(base)), float(np.median(new))
        by = now / before - 1
        counted = f"{format_ns(before)} to {format_ns(now)}, n = {len(base):,} and {len(new):,}"
        found[row, measure] = Growth(by, False, counted)
        if by > tolerance:
            names = f"{measure} of {keys[row][0]} in the baseline", f"{measure} of {keys[row][0]}"
            tests[row, measure] = contrast(base, new, names=names)
    return found | _tested(found, tests, len(tolerances), clock_step)


def _tested(
    found: Mapping[tuple[int, str], Growth],
    tests: Mapping[tuple[int, str], Contrast],
    family: int,
    clock_step: int,
) -> dict[tuple[int, str], Growth]:
    """What was found with the verdicts of the tests, which belong to a ``family`` of so many."""
    if not tests:
        return {}
    # What was not tested stands in the family as what cannot pass.
    untested = replace(next(iter(tests.values())), p=1.0)
    plain = replace(DEFAULT_RULES, least_effect=0.0)  # the tolerance is the least effect
    rules = [replace(plain, clock_step=clock_step * (measure in OF_GPU_WORK)) for _, measure in tests]
    left = family - len(tests)
    verdicts = judge([*tests.values(), *[untested] * left], [*rules, *[plain] * left])
    out = {}
    for each, verdict in zip(tests, verdicts, strict=False):
        slower = None if verdict.verdict == TOO_FEW_SAMPLES else verdict.verdict == SLOWER
        why = f"{found[each].why}: {verdict.verdict}, {verdict.reason}"
        out[each] = Growth(found[each].by, slower, why, verdict.warnings)
    return out


def _earlier(baseline: Baseline | None, key: tuple[str, str], measure: str) -> tuple[Floats, str]:
    """The calls of the baseline, or why there are none to compare with."""
    none: Floats = np.empty(0)
    if baseline is None:
        return none, NO_BASELINE
    if key in baseline.without_samples:
        return none, "the baseline tells no single calls: keep instances.csv beside it, or give the report"
    if key not in baseline.samples.keys:
        return none, "not in the baseline"
    found = baseline.samples.of(baseline.samples.keys[key], measure)
    if len(found) == 0 or not np.median(found) > 0:
        return (
            none,
            "no GPU work in the baseline" if measure in OF_GPU_WORK else "never closed in the baseline",
        )
    return found, ""
