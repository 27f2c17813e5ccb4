"""How long a call takes by four clocks, side by side: the host's, CUDA events, from first op to last, and busy."""

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
# resamples that an interval is read from.
_DRAWS, _FEWEST = 200_000_000, 1_000


def clock_rows(
    pairs: Sequence[tuple[str, tuple[str, str], Samples, Samples]], steps: Sequence[int] = ()
) -> tuple[pd.DataFrame, list[str]]:
    """A row per pair and clock, and what must be known of the samples of the span before its verdicts are believed.

    A pair is its name, what to call its sides in warnings, and the samples of both; ``steps`` are of the GPU's clock, a
    `clock_step` for each. Columns: ``pair, clock``, of each side ``n, median_ns, iqr_ns, mean_ns, min_ns, max_ns``;
    ``ratio`` of the medians, base/new, from ``ratio_low`` to ``ratio_high`` at a ``level``; Cliff's ``delta``, ``p``
    and ``adjusted_p`` (by Holm over the pairs of a clock), ``verdict`` on the new side and its ``reason``. A clock
    without samples on a side, or with a median of 0, has NaN and empty texts there.
    """
    total = sum(len(samples) for _, _, *both in pairs for side in both for samples in side.values())
    resamples = max(_FEWEST, min(RESAMPLES, _DRAWS // max(total, 1)))
    rows: list[dict[str, Any]] = []
    warnings: list[str] = []
    rules = [replace(DEFAULT_RULES, clock_step=step) for step in steps] or [DEFAULT_RULES] * len(pairs)
    for clock in CLOCKS:
        found = [_contrast(names, base[clock], new[clock], resamples) for _, names, base, new in pairs]
        known = [
            (one, rule if clock != CPU else DEFAULT_RULES)
            for one, rule in zip(found, rules, strict=True)
            if one is not None
        ]
        verdicts = iter(judge([one for one, _ in known], [rule for _, rule in known]))
        for (pair, _, base, new), one in zip(pairs, found, strict=True):
            verdict = None if one is None else next(verdicts)
            sides = {**_described("base", base[clock]), **_described("new", new[clock])}
            rows.append({"pair": pair, "clock": clock, **sides, **_judged(verdict)})
            if clock == SPAN and verdict is not None and verdict.verdict != TOO_FEW_SAMPLES:
                warnings += verdict.warnings
    frame = pd.DataFrame(rows)
    order = {pair: at for at, (pair, *_) in enumerate(pairs)}
    frame = frame.sort_values("pair", key=lambda names: names.map(order), kind="stable", ignore_index=True)
    return frame, list(dict.fromkeys(warnings))


def _contrast(names: tuple[str, str], base: Ints, new: Ints, resamples: int) -> Contrast | None:
    """The two samples against each other; None where there are none, or a median of 0, which has no ratio."""
    if not len(base) or not len(new):
        return None
    try:
        return contrast(base, new, names=names, resamples=resamples)
    except NsysprofError:
        return None


def _described(side: str, samples: Ints) -> dict[str, int]:
    low, middle, high = np.percentile(samples, [25, 50, 75]) if len(samples) else (0, 0, 0)
    return {
        f"{side}_n": len(samples),
        f"{side}_median_ns": round(float(middle)),
        f"{side}_iqr_ns": round(float(high - low)),
        f"{side}_mean_ns": round(float(samples.mean())) if len(samples) else 0,
        f"{side}_min_ns": int(samples.min()) if len(samples) else 0,
        f"{side}_max_ns": int(samples.max(initial=0)),
    }


def _judged(found: Contrast | None) -> dict[str, Any]:
    """A contrast's numbers with the ratio the other way up: how many times as long the base takes."""
    numbers = ("ratio", "ratio_low", "ratio_high", "level", "delta", "p", "adjusted_p")
    if found is None:
        return {**dict.fromkeys(numbers, np.nan), "verdict": "", "reason": ""}
    interval = found.ratio_interval
    low, high = (1 / end if end else np.inf for end in (interval.high, interval.low))
    values = (1 / found.ratio, low, high, interval.level, found.delta, found.p, found.adjusted_p)
    return {**dict(zip(numbers, values, strict=True)), "verdict": found.verdict, "reason": found.reason}
