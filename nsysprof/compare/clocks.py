"""The time of a call by four clocks: the host's, CUDA events, from first GPU op to last, and busy; with verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.core.intervals import Ints
from nsysprof.errors import NsysprofError
from nsysprof.statistics.confidence import RESAMPLES
from nsysprof.statistics.contrast import DEFAULT_RULES, TOO_FEW_SAMPLES, Contrast, contrast, judge

CPU, EVENTS, SPAN, BUSY = CLOCKS = ("CPU", "CUDA events", "span", "busy")
Samples = Mapping[str, Ints]
# Values to draw in all, so that hundreds of pairs, or hundreds of thousands of calls, take seconds; and the fewest
# resamples that make an interval.
MAX_DRAWS, MIN_RESAMPLES = 200_000_000, 1_000


def clock_rows(
    pairs: Sequence[tuple[str, tuple[str, str], Samples, Samples]], steps: Sequence[float] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """A row per pair and clock, and warnings about the samples of the span.

    A pair is its name, the names of its sides for warnings, and the samples of both; ``steps`` are of the GPU's clock,
    a `clock_step` for each. Columns: ``pair, clock``, of each side ``n, median_ns, iqr_ns, mean_ns, min_ns, max_ns``;
    ``ratio`` of the medians, base/new, from ``ratio_low`` to ``ratio_high`` at a ``level``; Cliff's ``delta``, ``p``
    and ``adjusted_p`` (by Holm over the pairs of a clock), ``verdict`` on the new side and its ``reason``. A clock
    without samples on a side, or with a median of 0, has NaN and empty texts there.
    """
    total = sum(len(samples) for _, _, *both in pairs for side in both for samples in side.values())
    resamples = max(MIN_RESAMPLES, min(RESAMPLES, MAX_DRAWS // max(total, 1)))
    steps = steps or [DEFAULT_RULES.clock_step] * len(pairs)
    verdicts: dict[tuple[str, str], Contrast] = {}
    for clock in CLOCKS:
        contrasts, rules = {}, []
        for (pair, names, base, new), step in zip(pairs, steps, strict=True):
            both = _contrast(names, base[clock], new[clock], resamples)
            if both is not None:
                contrasts[pair, clock] = both
                rules.append(DEFAULT_RULES if clock == CPU else replace(DEFAULT_RULES, clock_step=step))
        verdicts |= zip(contrasts, judge([*contrasts.values()], rules), strict=True)
    rows = [
        {
            "pair": pair,
            "clock": clock,
            **_summary("base", base[clock]),
            **_summary("new", new[clock]),
            **_numbers(verdicts.get((pair, clock))),
        }
        for pair, _, base, new in pairs
        for clock in CLOCKS
    ]
    spans = [
        each for (_, clock), each in verdicts.items() if clock == SPAN and each.verdict != TOO_FEW_SAMPLES
    ]
    return pd.DataFrame(rows), list(dict.fromkeys(text for each in spans for text in each.warnings))


def _contrast(names: tuple[str, str], base: Ints, new: Ints, resamples: int) -> Contrast | None:
    """The contrast of two samples; None where one is empty, or has a median of 0, which has no ratio."""
    if not len(base) or not len(new):
        return None
    try:
        return contrast(base, new, names=names, resamples=resamples)
    except NsysprofError:
        return None


def _summary(side: str, samples: Ints) -> dict[str, int]:
    low, middle, high = np.percentile(samples, [25, 50, 75]) if len(samples) else (0, 0, 0)
    return {
        f"{side}_n": len(samples),
        f"{side}_median_ns": round(float(middle)),
        f"{side}_iqr_ns": round(float(high - low)),
        f"{side}_mean_ns": round(float(samples.mean())) if len(samples) else 0,
        f"{side}_min_ns": int(samples.min()) if len(samples) else 0,
        f"{side}_max_ns": int(samples.max(initial=0)),
    }


def _numbers(verdict: Contrast | None) -> dict[str, Any]:
    """The numbers of a contrast, its ratio inverted: how many times as long the base takes."""
    numbers = ("ratio", "ratio_low", "ratio_high", "level", "delta", "p", "adjusted_p")
    if verdict is None:
        return {**dict.fromkeys(numbers, np.nan), "verdict": "", "reason": ""}
    interval = verdict.ratio_interval
    low, high = (1 / end if end else np.inf for end in (interval.high, interval.low))
    values = (1 / verdict.ratio, low, high, interval.level, verdict.delta, verdict.p, verdict.adjusted_p)
    return {**dict(zip(numbers, values, strict=True)), "verdict": verdict.verdict, "reason": verdict.reason}
