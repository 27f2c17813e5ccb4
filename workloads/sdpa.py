"""Scaled dot-product attention, forward or forward and backward, by one backend after the other.

    python workloads/sdpa.py --backend math flash --seq 1024 4096
    python workloads/sdpa.py --backend flex flash_attn cudnn --mask none causal window:256 --kv-heads 2

Every backend is checked against float64 before it is measured. NVTX ranges: CHECK, WARMUP and RUN::<backend>::S<seq>,
the last with an iter<i> for each call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from _attention import CHOICES, DECLARED, Problem, attention_cost
from _masks import FLOAT, NONE, bias, sees
from _workload import Case, Mode, Work, Workload, main

if TYPE_CHECKING:
    import torch

    from _attention import Attend
    from _measure import Results, Step


def prepare(at: Case) -> Work:
    """Attention of random queries, keys and values, the same for every backend and device."""
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[at.dtype]
    problem = Problem.of(at)
    queries = (at.batch, at.heads, at.seq, at.head_dim)
    keys = (at.batch, at.heads // problem.shared, problem.keys, at.head_dim)

    @functools.cache
    def tensors() -> list[torch.Tensor]:
        """Queries, keys, values and the gradient of the output, on the CPU: runs share nothing on the GPU."""
        generator = torch.Generator().manual_seed(at.seed)
        sizes = [queries, keys, keys, *[queries] * at.backward]
        made = [torch.randn(size, generator=generator) for size in sizes]
        made[0] *= at.score_scale
        return [tensor.to(dtype) for tensor in made]

    def build(attend: Attend) -> Step:
        if not problem.dropout:
            return _step(tensors(), attend, at.device)
        checked = _step(tensors(), attend, at.device)
        _check_dropout(problem, tensors(), attend)
        dropping = _step(tensors(), functools.partial(_dropping, attend, problem.dropout), at.device)
        return replace(dropping, results=checked.results, repeats=False)

    def reference() -> Results:
        return _float64(tensors(), problem, at.device)

    return Work(build, reference)


def _dropping(attend: Attend, dropout: float, *tensors: torch.Tensor) -> torch.Tensor:
    return attend(*tensors, dropout)


def _check_dropout(problem: Problem, tensors: Sequence[torch.Tensor], attend: Attend) -> None:
    """Raises RuntimeError where weights are not dropped as they should be, or those that stay are not scaled.

    Values of ones and zeros show the weights of the first keys, one by one: with dropout, and without.
    """
    import torch

    q, k, v = (tensor.to(problem.device) for tensor in tensors[:3])
    shown = min(v.shape[2], v.shape[3])
    v = torch.zeros_like(v)
    v[:, :, range(shown), range(shown)] = 1
    with torch.no_grad():
        some = attend(q, k, v, problem.dropout).double()[..., :shown]
        all_of_them = attend(q, k, v).double()[..., :shown]
    seen = all_of_them > 1e-6  # what is smaller may be zero for its size alone
    kept = seen & (some != 0)
    count, part = int(seen.sum()), 1 - float(kept.sum() / seen.sum())
    spread = 6 * (problem.dropout * (1 - problem.dropout) / count) ** 0.5
    if abs(part - problem.dropout) > spread + 1e-3:
        raise RuntimeError(f"{part:.1%} of the weights are dropped instead of {problem.dropout:.1%}")
    scale = float(some[kept].sum() / all_of_them[kept].sum()) * (1 - problem.dropout)
    if abs(scale - 1) > 0.01:
        raise RuntimeError(f"the remaining weights are {scale:.3f} times their expected values")


def _step(tensors: Sequence[torch.Tensor], attend: Attend, device: str) -> Step:
    """The call on the device, with gradients where a gradient of the output is among the tensors."""
    import nvtx
    import torch

    from _measure import Step

    copies = [tensor.to(device, copy=True) for tensor in tensors]
    q, k, v = copies[:3]
    size = q.numel() * q.element_size()
    inputs = sum(tensor.numel() * tensor.element_size() for tensor in copies)
    if len(copies) == 3:
        return Step(
            call=lambda: attend(q, k, v),
            results=lambda: {"output": attend(q, k, v)},
            reset=lambda: None,
            inputs_bytes=inputs,
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
        inputs_bytes=inputs,
        outputs_bytes=inputs,  # the output, and a gradient of each
    )


def _float64(tensors: Sequence[torch.Tensor], problem: Problem, device: str) -> Results:
    """What the results have to be, one element of the batch after the other."""
    import torch

    from _reference import attention, gradients

    names = ("output", "dq", "dk", "dv")[: 4 if len(tensors) == 4 else 1]
    found: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for number, parts in enumerate(zip(*tensors, strict=True)):
        q, k, v, *grad_out = (part.to(device) for part in parts)
        k, v = (part.repeat_interleave(problem.shared, dim=0) for part in (k, v))
        how: dict[str, Any] = {"causal": problem.causal}
        if problem.mask != NONE:
            how["mask"] = functools.partial(_added, problem, number, tensors[0].dtype)
        all_of_it = [attention(q, k, v, **how)]
        for grad in grad_out:
            dq, *shared = gradients(q, k, v, grad, **how)
            all_of_it += [dq, *(part.unflatten(0, (-1, problem.shared)).sum(dim=1) for part in shared)]
        for name, result in zip(names, all_of_it, strict=True):
            found[name].append(result.cpu())
    return {name: torch.stack(results) for name, results in found.items()}


def _added(problem: Problem, batch: int, dtype: torch.dtype, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """What a mask adds to scores: a bias as it is in the type of the inputs, -infinity for keys that are not seen."""
    added = bias(row, key).to(dtype).double() if problem.mask == FLOAT else (row + key).double() * 0
    return added.masked_fill(~sees(problem, batch, row, key), float("-inf"))


WORKLOAD = Workload(
    name="sdpa",
    says="attention",
    mode=Mode("backward", "compute the gradients as well", "forward", "forward and backward"),
    cost=attention_cost,
    prepare=prepare,
    choices=CHOICES,
    **DECLARED,
)

if __name__ == "__main__":
    sys.exit(main(WORKLOAD))
