"""Round numbers for logarithmic axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nsysprof.charts.marks import Axis


def log_axis(
    label: str, low: float, high: float, text: Callable[[float], str], *, binary: bool = False
) -> Axis:
    """An axis that holds ``low`` to ``high`` with a margin, and round numbers (``binary``: powers of two)."""
    if high <= low * 1.05:
        low, high = low / 1.5, high * 1.5
    margin = (high / low) ** 0.06
    low, high = low / margin, high * margin
    ticks = binary_ticks(low, high) if binary else round_ticks(low, high)
    return Axis(label, low, high, [(tick, text(tick)) for tick in ticks])


def round_ticks(low: float, high: float) -> list[float]:
    """Between 3 and some 8 round numbers from low to high: powers of ten, or 1, 2 and 5 of each, or finer."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    found: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(np.arange(1, 10, 0.5).tolist())):
        found = [step * 10.0**decade for decade in decades for step in steps]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= 4:
            break
    return found


def binary_ticks(low: float, high: float) -> list[float]:
    """At most 9 powers of two from low to high, evenly spaced."""
    first, last = int(np.ceil(np.log2(low))), int(np.floor(np.log2(high)))
    step = max(1, -(-(last - first + 1) // 9))
    step = next((round_step for round_step in (1, 2, 5, 10) if round_step >= step), step)
    return [2.0**power for power in range(first, last + 1) if power % step == 0]
