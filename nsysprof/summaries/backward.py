"""Sum the backward time that belongs to each range of the forward pass."""

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.backward import Backward, find_backward, forward_of_launches
from nsysprof.core.arrays import AnyInts, Array, Floats, Ints
from nsysprof.core.columns import ColumnTable, Texts, sums
from nsysprof.core.nesting import enclosing
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns
from nsysprof.results.table import Column, table
from nsysprof.summaries.summary import Answer, Asked, Summary

BACKWARD = table(
    "backward.csv",
    "a row per merged path whose operators have a backward pass; each row includes inner ranges",
    {
        "merged_path": Column("", "merged path of the forward range", "range", lambda text: one_line(text, 56)),
        "instances": Column("", "number of instances of the range"),
        "forward_ops": "number of GPU ops that the forward range launched, without backward work",
        "forward_sum_ns": Column("", "total duration of the GPU ops in forward_ops", "forward"),
        "backward_ops": "number of GPU ops launched by backward operators whose forward operators are inside the range",
        "backward_sum_ns": Column("", "total duration of the GPU ops in backward_ops", "backward"),
        "backward_ratio": Column("", "backward_sum_ns ÷ forward_sum_ns; empty without forward time", "ratio"),
        "forward_cpu_ns": Column("", "CPU time of the range's instances", "CPU"),
        "backward_cpu_ns": Column(
            "", "CPU time of the backward operators whose forward operators are inside the range", "CPU back"
        ),
        "backward_cpu_ratio": Column("", "backward_cpu_ns ÷ forward_cpu_ns; empty without forward time", "CPU ratio"),
    },
    made_in="summaries/backward.py",
)


def backward(attribution: Attribution, asked: Asked) -> Answer | None:
    """Sum forward and backward time per merged path; returns None without autograd sequence numbers."""
    found = attribution.once(find_backward)
    inside = found.forward >= 0
    if not inside.any():
        return None
    trace, count = attribution.trace, len(asked.merged)
    ops, ranges = trace.ops, trace.ranges
    answers = np.append(forward_of_launches(attribution, found), np.int32(-1))[ops.launch]
    path = np.append(asked.merged_of, np.int32(-1))
    ahead = np.where(answers >= 0, -1, path[attribution.op_owner])
    length = ops.end - ops.start
    host = ranges.end - ranges.start
    columns: dict[str, Array] = {
        "instances": np.bincount(asked.merged_of, minlength=count),
        "forward_ops": _inclusive(ahead, np.ones(len(ops), np.int64), asked),
        "forward_sum_ns": _inclusive(ahead, length, asked),
        "backward_ops": _inclusive(path[answers], np.ones(len(ops), np.int64), asked),
        "backward_sum_ns": _inclusive(path[answers], length, asked),
        "forward_cpu_ns": sums(asked.merged_of, host, count),
        "backward_cpu_ns": _inclusive(path[found.forward], _own_time(found), asked),
    }
    columns["backward_ratio"] = _ratio(columns["backward_sum_ns"], columns["forward_sum_ns"])
    columns["backward_cpu_ratio"] = _ratio(columns["backward_cpu_ns"], columns["forward_cpu_ns"])
    whole = ColumnTable(
        {"merged_path": Texts(np.arange(count), asked.merged)} | {name: columns[name] for name in BACKWARD.names[1:]}
    )
    chosen = np.flatnonzero(columns["backward_cpu_ns"])
    by_cost = chosen[np.lexsort((chosen, -columns["backward_cpu_ns"][chosen], -columns["backward_sum_ns"][chosen]))]
    return _answer(whole.take(by_cost), bool(len(ops)), int(length[answers >= 0].sum()), found)


def _inclusive(path: AnyInts, values: Ints, asked: Asked) -> Ints:
    """Sum values by path (-1: none), inner paths included."""
    known = path >= 0
    out = sums(path[known], values[known], len(asked.merged))
    for row in range(len(out) - 1, -1, -1):
        if asked.parent[row] >= 0:
            out[asked.parent[row]] += out[row]
    return out


def _own_time(found: Backward) -> Ints:
    """The time of each backward operator without the operators inside it."""
    out = found.end - found.start
    for tid in np.unique(found.thread).tolist():
        low, high = np.searchsorted(found.thread, [tid, tid + 1]).tolist()
        around = enclosing(found.end[low:high])
        inner = np.flatnonzero(around >= 0)
        np.subtract.at(out, low + around[inner], (found.end - found.start)[low:high][inner])
    return out


def _ratio(one: Ints, other: Ints) -> Floats:
    return np.divide(one, other, out=np.full(len(one), np.nan), where=other > 0)


def _answer(rows: ColumnTable, on_gpu: bool, sum_ns: int, found: Backward) -> Answer:
    """The finding, and the columns of the GPU, or of the CPU if no GPU work ran."""
    left = f"; the forward operator of {found.unknown:,} backward operators is unknown" if found.unknown else ""
    if on_gpu:
        what = f"{format_ns(sum_ns)} of GPU ops"
        names = ("merged_path", "instances", "forward_sum_ns", "backward_sum_ns", "backward_ratio")
    else:
        what = f"{format_ns(int(_own_time(found)[found.forward >= 0].sum()))} on the CPU"
        names = ("merged_path", "instances", "forward_cpu_ns", "backward_cpu_ns", "backward_cpu_ratio")
    shown = tuple(column for name in names for column in BACKWARD.columns if column.name == name)
    finding = f"Backward: {what}, launched by {len(found):,} backward operators with a known forward operator{left}"
    return Answer({BACKWARD.file: rows}, finding, shown, rows, _NOTE)


_NOTE = "backward: backward-pass GPU time of all operators inside the range; ratio: backward ÷ forward."
SUMMARY = Summary("backward", "Forward and backward", (BACKWARD,), backward)
