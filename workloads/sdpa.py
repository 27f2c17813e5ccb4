"""Scaled dot-product attention, forward or forward and backward, by one backend after the other.

    python workloads/sdpa.py --backend math flash --seq 1024 4096

Every backend is checked against float64 before it is measured. NVTX ranges: CHECK, WARMUP and RUN::<backend>::S<seq>,
the last with an iter<i> for each call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from _attention import DECLARED, attention_cost
from _workload import Case, Mode, Work, Workload, main

if TYPE_CHECKING:
    import torch

    from _attention import Attend
    from _measure import Results, Step


def prepare(at: Case) -> Work:
    """Attention of random queries, keys and values, the same for every backend and device."""
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[at.dtype]

    @functools.cache
    def tensors() -> list[torch.Tensor]:
        """Queries, keys, values and the gradient of the output, on the CPU: runs share nothing on the GPU."""
        generator = torch.Generator().manual_seed(at.seed)
        size = (at.batch, at.heads, at.seq, at.head_dim)
        count = 4 if at.backward else 3
        return [torch.randn(size, generator=generator).to(dtype) for _ in range(count)]

    def build(attend: Attend) -> Step:
        return _step(tensors(), attend, at.device)

    def reference() -> Results:
        return _float64(tensors(), at.causal, at.device)

    return Work(build, reference)


def _step(tensors: Sequence[torch.Tensor], attend: Attend, device: str) -> Step:
    """The call on the device, with gradients where a gradient of the output is among the tensors."""
    import nvtx
    import torch

    from _measure import Step

    copies = [tensor.to(device, copy=True) for tensor in tensors]
    q, k, v = copies[:3]
    size = q.numel() * q.element_size()
    if len(copies) == 3:
        return Step(
            call=lambda: attend(q, k, v),
            results=lambda: {"output": attend(q, k, v)},
            reset=lambda: None,
            inputs_bytes=3 * size,
            outputs_bytes=size,
        )
    grad_out = copies[3]
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]

    def call() -> tuple[torch.Tensor, ...]:
        with nvtx.annotate("forward"):
            out = attend(q, k, v)
        with nvtx.annotate("backward"):
            # Unlike out.backward() this never copies gradients into the memory layout of the inputs.
            return out, *torch.autograd.grad(out, leaves, grad_out)

    return Step(
        call=call,
        results=lambda: dict(zip(("output", "dq", "dk", "dv"), call(), strict=True)),
        reset=lambda: None,
        inputs_bytes=4 * size,
        outputs_bytes=4 * size,
    )


def _float64(tensors: Sequence[torch.Tensor], causal: bool, device: str) -> Results:
    """What the results have to be, one element of the batch after the other."""
    import torch

    from _reference import attention, gradients

    names = ("output", "dq", "dk", "dv")[: 4 if len(tensors) == 4 else 1]
    found: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for parts in zip(*tensors, strict=True):
        q, k, v, *grad_out = (part.to(device) for part in parts)
        all_of_it = [attention(q, k, v, causal=causal)]
        for grad in grad_out:
            all_of_it += gradients(q, k, v, grad, causal=causal)
        for name, result in zip(names, all_of_it, strict=True):
            found[name].append(result.cpu())
    return {name: torch.stack(results) for name, results in found.items()}


WORKLOAD = Workload(
    name="sdpa",
    says="attention",
    mode=Mode("backward", "compute the gradients as well", "forward", "forward and backward"),
    cost=attention_cost,
    prepare=prepare,
    **DECLARED,
)

if __name__ == "__main__":
    sys.exit(main(WORKLOAD))
