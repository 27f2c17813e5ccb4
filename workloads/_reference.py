"""Attention and its gradients in float64, in blocks that never hold a whole S x S matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Elements of the largest float64 block of scores: 64 MiB, whatever the length of the sequence.
BLOCK = 2**23
# A result this much smaller than the largest one is zero up to rounding.
NOTHING = 1e-9


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, mask: Mask | None = None
) -> torch.Tensor:
    """softmax(Q·Kᵀ/√D + mask)·V of (heads, sequence, head dimension) tensors, in float64.

    ``mask`` gives what is added to the scores, -infinity for a key that is not seen, of the places of queries (as a
    column) and of keys (as a row); causality may be in it or not.
    """
    q, k, v = q.double(), k.double(), v.double()
    out = torch.empty_like(q)
    for heads, rows, keys, weights in _weights(q, k, causal, mask):
        out[heads, rows] = weights @ v[heads, keys]
    return out


def gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad_out: torch.Tensor, *, causal: bool, mask: Mask | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of `attention` with respect to queries, keys and values, in float64.

    With P the weights, O the output and dO its gradient: dV = PᵀdO, dP = dO·Vᵀ, dS = P∘(dP − rowsum(dO∘O)),
    dQ = dS·K/√D and dK = dSᵀ·Q/√D.
    """
    q, k, v, grad_out = q.double(), k.double(), v.double(), grad_out.double()
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    scale = q.shape[-1] ** -0.5
    for heads, rows, keys, weights in _weights(q, k, causal, mask):
        grad = grad_out[heads, rows]
        out = weights @ v[heads, keys]
        dv[heads, keys] += weights.transpose(1, 2) @ grad
        d_scores = grad @ v[heads, keys].transpose(1, 2)
        d_scores -= (grad * out).sum(dim=-1, keepdim=True)
        d_scores *= weights
        d_scores *= scale
        dq[heads, rows] = d_scores @ k[heads, keys]
        dk[heads, keys] += d_scores.transpose(1, 2) @ q[heads, rows]
    return dq, dk, dv


def _weights(
    q: torch.Tensor, k: torch.Tensor, causal: bool, mask: Mask | None = None
) -> Iterator[tuple[slice, slice, slice, torch.Tensor]]:
    """Softmax weights block by block: the heads, the rows and the keys they are of, and the weights.

    Keys that no row of a causal block may see are left out.
    """
    (count, seq, head_dim), length = q.shape, k.shape[1]
    at_once, height = max(1, BLOCK // (seq * length)), max(1, min(seq, BLOCK // length))
    place = torch.arange(max(seq, length), device=q.device)
    for head in range(0, count, at_once):
        heads = slice(head, head + at_once)
        for row in range(0, seq, height):
            rows = slice(row, min(row + height, seq))
            keys = slice(0, min(rows.stop, length) if causal else length)
            scores = q[heads, rows] @ k[heads, keys].transpose(1, 2)
            scores *= head_dim**-0.5
            if mask is not None:
                scores += mask(place[rows, None], place[None, keys])
            if causal:
                scores.masked_fill_(place[keys] > place[rows, None], float("-inf"))
            yield heads, rows, keys, torch.softmax(scores, dim=-1)


class Attention(torch.autograd.Function):  # type: ignore[misc]
    """`attention` and `gradients` as one operation that autograd can pass through, of (batch, heads, S, D)."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        """The output, float64."""
        ctx.save_for_backward(q, k, v)
        ctx.causal = causal
        flat = (tensor.flatten(0, 1) for tensor in (q, k, v))
        return attention(*flat, causal=causal).view(q.shape)

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of q, k and v, float64."""
        q = ctx.saved_tensors[0]
        flat = (tensor.flatten(0, 1) for tensor in (*ctx.saved_tensors, grad_out))
        return *(grad.view(q.shape) for grad in gradients(*flat, causal=ctx.causal)), None


def relative_errors(got: Mapping[str, torch.Tensor], want: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """‖got − want‖ / ‖want‖ (Frobenius) for each name of ``want``, computed in float64 where ``got`` is.

    What is zero up to rounding, as the gradients of queries and keys are when there is one key, is held against the
    largest norm among ``want`` instead. NaN or infinity anywhere makes the error one of these.
    """
    found = {name: got[name].detach() for name in want}
    norms = {name: _norm(tensor, None, found[name].device) for name, tensor in want.items()}
    largest = max(norms.values())
    errors = {}
    for name, tensor in want.items():
        against = norms[name] if norms[name] > NOTHING * largest else largest
        errors[name] = _norm(tensor, found[name], found[name].device) / against
    return errors


def _norm(want: torch.Tensor, got: torch.Tensor | None, device: torch.device) -> float:
    """The norm of ``want``, or of its difference to ``got``, a block at a time."""
    left = want.reshape(-1)
    right = None if got is None else got.reshape(-1)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for start in range(0, left.numel(), BLOCK):
        block = left[start : start + BLOCK].to(device, torch.float64)
        if right is not None:
            block = block - right[start : start + BLOCK]
        total += block.square().sum()
    return float(total.sqrt())
