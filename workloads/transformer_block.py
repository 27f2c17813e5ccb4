"""One transformer block, forward or a whole training step, with one attention backend after the other.

    python workloads/transformer_block.py --train --backend math flash --batch 4 --seq 2048

LayerNorm, projection to queries, keys and values, attention, output projection, residual: no MLP, no dropout. The
width is heads x head dimension. Every backend is checked against float64 before it is measured. NVTX ranges: CHECK,
WARMUP and RUN::<backend>::S<seq>, the last with an iter<i> for each call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from _attention import DECLARED, attention_cost
from _workload import Case, Mode, Work, Workload, main

if TYPE_CHECKING:
    import torch

    from _attention import Attend
    from _measure import Results, Step

# So small that the weights stay what they are: the step is timed, nothing is learnt.
LEARNING_RATE = 1e-6
# Not those of LayerNorm: on a CPU torch adds them up in half precision, which is further off the longer the sequence
# is, whatever the attention. What they are made of is in the others.
CHECKED_GRADIENTS = ("x", "qkv", "proj")


def prepare(at: Case) -> Work:
    """A block with random weights and input, the same for every backend and device."""
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[at.dtype]

    @functools.cache
    def tensors() -> dict[str, torch.Tensor]:
        """On the CPU: runs share nothing on the GPU."""
        return {name: tensor.to(dtype) for name, tensor in _tensors(at).items()}

    def build(attend: Attend) -> Step:
        return _step(tensors(), attend, at.heads, at.device, at.backward)

    def reference() -> Results:
        return _float64(tensors(), at.heads, at.causal, at.device, at.backward)

    return Work(build, reference, tokens=at.batch * at.seq)


def _tensors(at: Case) -> dict[str, torch.Tensor]:
    """Weights, input and the gradient of the output; queries, keys and values come out with a variance of 1."""
    import torch

    generator = torch.Generator().manual_seed(at.seed)
    width = at.heads * at.head_dim

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    return {
        "norm_weight": 1 + normal(width) / 10,
        "norm_bias": normal(width) / 10,
        "qkv": normal(3 * width, width) * width**-0.5,
        "proj": normal(width, width) * width**-0.5,
        "x": normal(at.batch, at.seq, width),
        "grad_out": normal(at.batch, at.seq, width),
    }


def _branch(tensors: Mapping[str, torch.Tensor], x: torch.Tensor, attend: Attend, heads: int) -> torch.Tensor:
    """All of the block but the residual: (batch, sequence, width) to the same."""
    import nvtx
    from torch.nn.functional import layer_norm, linear

    batch, seq, width = x.shape
    normed = layer_norm(x, (width,), tensors["norm_weight"], tensors["norm_bias"])
    qkv = linear(normed, tensors["qkv"]).view(batch, seq, 3, heads, width // heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    with nvtx.annotate("attention"):
        out = attend(q, k, v)
    return linear(out.transpose(1, 2).reshape(batch, seq, width), tensors["proj"])


def _step(tensors: Mapping[str, torch.Tensor], attend: Attend, heads: int, device: str, train: bool) -> Step:
    """The call on the device: the output alone, or all of a training step."""
    import nvtx
    import torch

    from _measure import Step

    weights = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
    x, grad_out = weights.pop("x"), weights.pop("grad_out")
    leaves = {"x": x, **weights}
    size = sum(tensor.numel() * tensor.element_size() for tensor in leaves.values())
    out_size = x.numel() * x.element_size()

    def forward() -> dict[str, torch.Tensor]:
        branch = _branch(weights, x, attend, heads)
        return {"output": x + branch, "branch": branch}

    if not train:
        del grad_out
        return Step(
            call=lambda: x + _branch(weights, x, attend, heads),
            results=forward,
            reset=lambda: None,
            inputs_bytes=size,
            outputs_bytes=out_size,
        )

    for leaf in leaves.values():  # also of the input: a block has others before it
        leaf.requires_grad_()
    optimizer = torch.optim.SGD(weights.values(), lr=LEARNING_RATE)

    def call() -> torch.Tensor:
        with nvtx.annotate("forward"):
            out = x + _branch(weights, x, attend, heads)
        with nvtx.annotate("backward"):
            out.backward(grad_out)
        with nvtx.annotate("optimizer"):
            optimizer.step()
        return out

    def results() -> dict[str, torch.Tensor]:
        found = forward()
        found["output"].backward(grad_out)
        optimizer.step()
        return {**found, **{f"grad_{name}": leaves[name].grad for name in CHECKED_GRADIENTS}}

    def reset() -> None:
        for leaf in leaves.values():
            leaf.grad = None

    return Step(call, results, reset, inputs_bytes=size + out_size, outputs_bytes=out_size + size)


def _float64(tensors: Mapping[str, torch.Tensor], heads: int, causal: bool, device: str, train: bool) -> Results:
    """What the results have to be, by autograd through the same block with the blocked float64 attention.

    One element of the batch after the other; the gradients of the weights add up.
    """
    import torch

    from _reference import Attention

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Attention.apply(q, k, v, causal)
        return out

    weights = {
        name: tensor.to(device, torch.float64).requires_grad_(train)
        for name, tensor in tensors.items()
        if name not in ("x", "grad_out")
    }
    rows: dict[str, list[torch.Tensor]] = {}
    for part, grad_out in zip(tensors["x"], tensors["grad_out"], strict=True):
        x = part[None].to(device, torch.float64).requires_grad_(train)
        branch = _branch(weights, x, attend, heads)
        found = {"output": x + branch, "branch": branch}
        if train:
            found["output"].backward(grad_out[None].to(device, torch.float64))
            found["grad_x"] = x.grad
        for name, tensor in found.items():
            rows.setdefault(name, []).append(tensor.detach().cpu())
    grads = {name: weights[name].grad.cpu() for name in CHECKED_GRADIENTS if name != "x"} if train else {}
    return {name: torch.cat(parts) for name, parts in rows.items()} | {
        f"grad_{name}": grad for name, grad in grads.items()
    }


WORKLOAD = Workload(
    name="transformer_block",
    says="transformer block",
    mode=Mode("train", "a training step: forward, backward and SGD", "", "training step"),
    cost=functools.partial(attention_cost, block=True),
    prepare=prepare,
    tokens_shown=True,
    **DECLARED,
)

if __name__ == "__main__":
    sys.exit(main(WORKLOAD))
