"""Find long idle times (gaps) of each GPU, and the utilization of each GPU over time."""

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.split import device_labels
from nsysprof.core.arrays import Ints
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.intervals import cover_before
from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_ns
from nsysprof.kernels.classify import short_name
from nsysprof.results.table import Column, table
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.trace import Trace

MIN_GAP_NS, PARTS, LOW = 500_000_000, 30, 0.5  # the limits of the rules gpu_gaps and gpu_time_util of nsys
_GPU = Column("", "label of the GPU", "GPU")
GAPS = table(
    "gaps.csv",
    "a row per GPU idle gap of 500 ms or more, longest first",
    {
        "gpu": _GPU,
        "start_ns": Column("", "end of the last GPU op before the gap", "from"),
        "length_ns": Column("", "length of the gap", "length"),
        "next": Column(
            "", "the GPU op that ends the gap", "next GPU op", lambda name: one_line(short_name(name, 70), 70)
        ),
    },
    made_in="summaries/gaps.py",
)
UTILISATION = table(
    "utilisation.csv",
    f"a row per GPU and interval; {PARTS} equal intervals divide the time from the GPU's first op to its last",
    {
        "gpu": _GPU,
        "start_ns length_ns": "start time and length of the interval",
        "busy_ns": "GPU busy time in the interval",
        "share": "busy share of the interval (GPU utilization)",
    },
    made_in="summaries/gaps.py",
)


def gaps(attribution: Attribution, asked: Asked) -> Answer | None:  # noqa: ARG001 (all summaries are made alike)
    """Find long gaps and the utilization over time, with a finding if there are gaps; returns None without GPU work."""
    trace = attribution.trace
    parts, long, names = [], [], device_labels(trace)
    for at, number in enumerate(names):
        start, end = trace.gpu_busy[number]
        if not len(start):
            continue
        size = max(-(-int(end[-1] - start[0]) // PARTS), 1)
        edges = np.unique(np.minimum(start[0] + size * np.arange(PARTS + 1), end[-1]))
        busy, length = np.diff(cover_before(start, end, edges)), np.diff(edges)
        parts.append((np.full(len(busy), at), edges[:-1], length, busy, busy / length))
        behind = np.flatnonzero(start[1:] - end[:-1] >= MIN_GAP_NS) + 1
        since, until = end[behind - 1], start[behind]
        long.append((np.full(len(behind), at), since, until - since, _next(trace, number, until)))
    if not parts:
        return None
    labels = list(names.values())
    gpu, since, length, name = (np.concatenate(column) for column in zip(*long, strict=True))
    next_op = Texts(name, trace.op_names)
    rows = ColumnTable({"gpu": Texts(gpu, labels), "start_ns": since, "length_ns": length, "next": next_op})
    rows = rows.take(np.lexsort((since, gpu, -length)))
    gpu, *columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    used = ColumnTable({"gpu": Texts(gpu, labels), **dict(zip(UTILISATION.names[1:], columns, strict=True))})
    low = int((columns[-1] < LOW).sum())
    finding = (
        f"Gaps: {plural(len(length), 'GPU idle gap')} of 500 ms or more ({format_ns(int(length.sum()))} in "
        f"total); GPUs are busy less than half of the time in {low:,} of {plural(len(gpu), 'part')}"
    )
    note = (
        f"parts: {PARTS} equal parts of each GPU's time ({UTILISATION.file}); nsysprof why shows the causes of waits."
    )
    return Answer({GAPS.file: rows, UTILISATION.file: used}, finding if len(length) else "", GAPS.columns, rows, note)


def _next(trace: Trace, gpu: int, start: Ints) -> Ints:
    """The name code of the GPU op that starts at each time on a GPU; ties go to the alphabetically first."""
    ops = np.flatnonzero((trace.op_gpu == gpu) & np.isin(trace.ops.start, start)) if len(start) else start
    ops = ops[np.lexsort((trace.op_name_rank[trace.ops.name[ops]], trace.ops.start[ops]))]
    return trace.ops.name[ops[np.searchsorted(trace.ops.start[ops], start)]].astype(np.int64)


SUMMARY = Summary("gaps", "Gaps", (GAPS, UTILISATION), gaps)
