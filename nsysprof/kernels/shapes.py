"""Compute the minimal work of kernels from the shapes of the operators that launched them."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arrays import Floats, Index, Ints
from nsysprof.core.nesting import nest
from nsysprof.hardware.operator_cost import flops_bytes
from nsysprof.kernels.names import dtype
from nsysprof.trace.details import OperatorCalls
from nsysprof.trace.trace import KERNEL, Trace

DTYPES = {"half": "fp16", "bfloat16": "bf16", "float": "fp32", "double": "fp64"}
# What names of kernels say of their operands, where operators say nothing: `emit_nvtx` records sizes alone.
_IN_NAMES = {"BFloat16": r"BFloat16|bf16", "Half": r"[Hh]alf|f16|hgemm|h884|h1688", "double": r"double|f64|dgemm"}
_IN_NAMES["float"] = r"float|f32|sgemm"


@dataclass(frozen=True)
class OpWork:
    """The minimal work of each GPU op, float64: ``flops`` and ``moved`` bytes, NaN if unknown.

    The cost of an operator is divided among its kernels in proportion to their time. ``dtype`` is the operand type,
    named as in peaks, empty if unknown; ``known``: whether any operator has shapes.
    """

    flops: Floats
    moved: Floats
    dtype: NDArray[np.str_]
    known: bool


def op_work(trace: Trace) -> OpWork:
    """Compute the `OpWork` of a trace's GPU ops (unknown for kernels of CUDA graphs); the report must be open."""
    ops, calls = trace.ops, trace.report.reader.operator_calls(trace)
    flops, moved, kind = np.full(len(ops), np.nan), np.full(len(ops), np.nan), np.full(len(ops), "", "U4")
    if not calls.shapes:
        return OpWork(flops, moved, kind, known=False)
    rows = np.flatnonzero((ops.launch >= 0) & (ops.kind == KERNEL) & ~ops.from_graph)
    call = _innermost(trace, calls, rows)
    some = (call >= 0) & (np.append(calls.shape, -1)[call] >= 0)
    rows, call = rows[some], call[some]
    length = (ops.end - ops.start)[rows].astype(np.float64)
    share = length / np.maximum(np.bincount(call, length, len(calls.start))[call], 1)
    codes, first, shape = np.unique(calls.shape[call], return_index=True, return_inverse=True)
    costs = np.full((len(codes), 2), np.nan)
    kinds = []
    for at, (code, row) in enumerate(zip(codes.tolist(), rows[first].tolist(), strict=True)):
        name, dims, types, values = calls.shapes[code]
        types = types or [_type_in(trace.op_names[ops.name[row]])] * len(dims)
        cost = flops_bytes(name, dims, types, values)
        if cost is not None:
            costs[at] = [np.nan if each is None else each for each in cost[:2]]
        known = (DTYPES.get(dtype(each)) for each in types)
        kinds.append(next(filter(None, known), ""))
    flops[rows], moved[rows] = (costs[shape] * share[:, None]).T
    kind[rows] = np.array([*kinds, ""])[shape]
    return OpWork(flops, moved, kind, bool(len(codes)))


def _innermost(trace: Trace, calls: OperatorCalls, rows: Index) -> Ints:
    """The row of the innermost operator call around the launch of each GPU op, -1 for none."""
    launches, out = trace.launches, np.full(len(rows), -1)
    launch = trace.ops.launch[rows]
    thread = trace.threads[launches.thread[launch]]
    for tid in np.unique(thread).tolist():
        mine, here = np.flatnonzero(calls.thread == tid), np.flatnonzero(thread == tid)
        mine = mine[np.lexsort((-calls.end[mine], calls.start[mine]))]
        if len(mine):
            inside = nest(calls.start[mine], calls.end[mine])
            at = inside.innermost(launches.start[launch[here]], launches.end[launch[here]])
            out[here] = np.where(at < 0, -1, mine[at])
    return out


def _type_in(name: str) -> str:
    """The operand type of a kernel, in PyTorch's notation, if the kernel's name shows it."""
    return next((word for word, pattern in _IN_NAMES.items() if re.search(pattern, name)), "")
