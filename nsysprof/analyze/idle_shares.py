"""How much of a range's span its GPUs run nothing at all, neither the range's ops nor those of others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.projection import DEVICE_BITS
from nsysprof.core.intervals import covered_before, merge

# A range with more than this share of idle waits for its launches, or for the host.
LAUNCH_BOUND_IDLE = 0.5


def idle_shares(breakdown: Breakdown, rows: Sequence[int]) -> NDArray[np.float64]:
    """For rows of ``merged`` the median over instances of the share of the span in which no GPU of theirs ran anything.

    The span is that from the instance's first op to its last end, on each GPU that it uses. NaN where no instance has
    a span.
    """
    tables = breakdown.attribution.tables
    op_gpu = tables.op_gpu
    lines = {}
    for gpu in sorted(set(tables.gpu_numbers)):
        mine = op_gpu == gpu
        lines[gpu] = merge(tables.ops.start[mine], tables.ops.end[mine])
    out = np.full(len(rows), np.nan)
    for place, row in enumerate(rows):
        attribution, instances = breakdown.instances_of(row)
        inside = attribution.inclusive
        first, last = inside.first_op_ns[instances], inside.last_op_ns[instances]
        span, busy = np.zeros(len(instances), np.int64), np.zeros(len(instances), np.int64)
        for gpu, (start, end) in lines.items():
            if gpu >= DEVICE_BITS and len(lines) > DEVICE_BITS + 1:
                continue  # these GPUs share a bit, so nobody can tell which of them a range uses
            uses = (inside.devices[instances] >> gpu) & 1
            span += uses * (last - first)
            busy += uses * (covered_before(start, end, last) - covered_before(start, end, first))
        some = span > 0
        if some.any():
            out[place] = float(np.median(1 - busy[some] / span[some]))
    return out
