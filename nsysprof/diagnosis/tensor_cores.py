"""Matrix products in FP32 run on CUDA cores, though the GPU has tensor cores for a type that is nearly as precise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.finding import BOUND, EVERY, Finding
from nsysprof.diagnosis.kinds import dialect_text
from nsysprof.errors import NsysprofError
from nsysprof.hardware.peaks import flops_per_clock
from nsysprof.trace.trace import KERNEL

MIN_SHARE = 0.05  # of the steps
_CAUSE = "matrix products in FP32 on CUDA cores"
_TF32 = {
    "pytorch": 'if TF32 or bfloat16 is precise enough, set torch.set_float32_matmul_precision("high") or use autocast',
    "cuda": "if TF32 is precise enough, set CUBLAS_TF32_TENSOR_OP_MATH",
    "jax": 'if TF32 is precise enough, set jax.default_matmul_precision("tensorfloat32")',
}


def tensor_core_findings(case: Case, place: Place) -> Iterator[Finding]:
    """Matrix products that tensor cores would run several times as fast, by the peaks of the GPU: a bound."""
    speedup = _speedup(case)
    trace, kinds = case.facts.attribution.trace, case.facts.kinds
    slow = np.array(
        [
            unit == "FP32 FMA" and family == "gemm"
            for unit, family in zip(kinds.math_unit, kinds.family, strict=True)
        ],
        bool,
    )
    if speedup <= 1 or not slow.any():
        return
    windows = case.windows.take(place.windows)
    rows = np.flatnonzero((trace.ops.kind == KERNEL) & slow[trace.ops.name] & (trace.op_gpu == place.gpu))
    at = np.searchsorted(windows.start, trace.ops.start[rows], side="right") - 1
    rows = rows[(at >= 0) & (trace.ops.start[rows] < windows.end[at])]
    ns = int((trace.ops.end[rows] - trace.ops.start[rows]).sum())
    gain = round(ns * (1 - 1 / speedup))
    if gain < MIN_SHARE * place.total_ns:
        return
    per = "" if place.path == WHOLE else " of each step"
    yield Finding(
        kind="tensor-cores",
        path=place.path,
        gpu=place.gpu,
        often=EVERY,
        steps=place.steps,
        text=f"{_CAUSE}: {format_ns(ns / place.steps)}{per} ({format_share(ns / place.total_ns)}),"
        f" which tensor cores run up to {speedup:.0f} times as fast",
        cause=_CAUSE,
        claim="counted",
        lost_ns=gain,
        remedy=dialect_text(case, _TF32),
        gain_ns=gain,
        gain_high_ns=gain,
        basis=BOUND,
        total_ns=place.total_ns,
    )


def _speedup(case: Case) -> float:
    """How many times as fast the report's GPU multiplies on tensor cores as in FP32; 0 where it is not known."""
    for gpu in case.facts.attribution.trace.report.about.cuda_gpus:
        if gpu.compute_capability is None:
            continue
        capability = ".".join(map(str, gpu.compute_capability))
        try:
            fast, slow = (flops_per_clock(capability, dtype, name=gpu.name) for dtype in ("tf32", "fp32"))
        except NsysprofError:
            continue
        return fast / slow
    return 0.0
