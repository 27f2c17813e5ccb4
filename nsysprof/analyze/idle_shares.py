"""How much of a range's span its GPUs run nothing at all, neither the range's ops nor those of others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.projection import DEVICE_BITS
from nsysprof.core.intervals import cover_before

# A range with more than this share of idle waits for its launches, or for the host.
LAUNCH_BOUND_IDLE = 0.5


def idle_shares(breakdown: Breakdown, rows: Sequence[int]) -> NDArray[np.float64]:
    """For rows of ``merged`` the median over instances of the share of the span in which no GPU of theirs ran anything.

    The span is that from the instance's first op to its last end, on each GPU that it uses. NaN where no instance has
    a span.
    """
    lines = breakdown.attribution.trace.gpu_busy
    out = np.full(len(rows), np.nan)
    if not len(rows):
        return out
    found = []
    for row in rows:
        attribution, instances = breakdown.instances_of(row)
        inside = attribution.inclusive
        columns = inside.first_op_ns, inside.last_op_ns, inside.devices
        found.append([column[instances] for column in columns])
    first, last, devices = (np.concatenate(parts) for parts in zip(*found, strict=True))
    span, busy = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    for gpu, (start, end) in lines.items():
        if gpu >= DEVICE_BITS and len(lines) > DEVICE_BITS + 1:
            continue  # these GPUs share a bit, so nobody can tell which of them a range uses
        uses = np.flatnonzero((devices >> gpu) & 1)
        begin, stop = first[uses], last[uses]
        span[uses] += stop - begin
        busy[uses] += cover_before(start, end, stop) - cover_before(start, end, begin)
    bounds = np.cumsum([len(part[0]) for part in found])[:-1]
    for place, (whole, covered) in enumerate(
        zip(np.split(span, bounds), np.split(busy, bounds), strict=True)
    ):
        some = whole > 0
        if some.any():
            out[place] = float(np.median(1 - covered[some] / whole[some]))
    return out
