"""Ranges with calls of always the same kernels, for tests of comparisons."""

from pathlib import Path
from typing import Any

from tests.conftest import MakeTrace
from tests.kit.trace import Items, Range, launch_kernel

GEMM, SOFTMAX = "ampere_sgemm_128x64_tn", "void softmax_warp_forward<float, float, float, (int)9>(float *)"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64>>(T1)"


def run(
    name: str, start: int, kernels: list[tuple[str, int]], calls: int = 2, first_id: int = 1, **op: Any
) -> list[Items]:
    """A range with so many calls `iter<i>` of the same kernels, queued in time, 1,000 ns from call to call."""
    out: list[Items] = [Range(name, start, start + 1000 * calls)]
    number = first_id
    for call in range(calls):
        at = start + 1000 * call
        out.append(Range(f"iter{call}", at + 1, at + 999))
        begin = at + 100
        for at_kernel, (kernel, length) in enumerate(kernels):
            launch = (at + 10 + 2 * at_kernel, at + 11 + 2 * at_kernel)
            out.append(launch_kernel(kernel, launch, (begin, begin + length), id=number, **op))
            number, begin = number + 1, begin + length
    return out


def math_and_flash(trace: MakeTrace, **flash: Any) -> Path:
    """`RUN::math::S8` with two calls of 3 kernels, 600 ns busy; `RUN::flash::S8` with two of one kernel of 150 ns."""
    math = run("RUN::math::S8", 0, [(GEMM, 200), (SOFTMAX, 300), (GEMM, 100)])
    return trace(*math, *run("RUN::flash::S8", 5000, [(FLASH, 150)], first_id=50, **flash), duration=20_000)
