"""The attention backends: how each one is switched on, called, and how exact it has to be.

A backend is one entry of `BACKENDS`. Its functions import what they need when they are called, so that the names
are known, for the help and for mistakes in it, without torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from _tiled_stages import STAGES

if TYPE_CHECKING:
    import torch

    # Queries, keys and values of shape (batch, heads, sequence, head dimension) to an output of that shape.
    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# The relative Frobenius norm of the difference to the float64 reference that a result may have: for backends that
# keep the scores in float32 inside, and for those that round the S x S matrices to the type of the inputs.
# Rounding the result alone makes about 3e-4 in fp16 and 2e-3 in bf16.
TOLERANCES = {
    "fp16": (2e-3, 1e-2),
    "bf16": (1.6e-2, 8e-2),
    "fp32": (1e-5, 1e-5),
}
GRADIENT_FACTOR = 2.0  # gradients pass through twice as many roundings


@dataclass(frozen=True)
class Problem:
    """What a backend may know beforehand, to prepare what is not part of a call."""

    seq: int
    head_dim: int
    causal: bool
    device: str


@dataclass(frozen=True)
class Backend:
    """One way to compute attention.

    ``make`` prepares it for a problem and returns the function that is measured. ``settings`` is entered around
    everything that is done with it, and restores what it changed. ``named`` is how PyTorch's warnings call it
    when they say why it cannot run. A backend that is not ``exact`` rounds its S x S matrices.
    """

    says: str
    make: Callable[[Problem], Attend]
    settings: Callable[[], AbstractContextManager[object]] = nullcontext
    named: str = ""
    exact: bool = True


def tolerance(backend: Backend, dtype: str, *, gradient: bool) -> float:
    """The relative error up to which a result of ``backend`` counts as right."""
    exact, rounded = TOLERANCES[dtype]
    return (exact if backend.exact else rounded) * (GRADIENT_FACTOR if gradient else 1)


@contextmanager
def _only(name: str) -> Iterator[None]:
    """Allows PyTorch exactly one backend: where that cannot run, PyTorch says why instead of taking another."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, name)):
        yield


@contextmanager
def _reduced_math() -> Iterator[None]:
    """Allows `math` alone, and allows it to stay in half precision."""
    import torch

    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with _only("MATH"):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


def _sdpa(problem: Problem) -> Attend:
    """PyTorch's own function, with whatever the settings leave it."""
    from torch.nn.functional import scaled_dot_product_attention

    return partial(scaled_dot_product_attention, is_causal=problem.causal)


def _naive(problem: Problem) -> Attend:
    """Attention as the formula has it, every step an operation of its own in the type of the inputs."""
    import torch

    scale = problem.head_dim**-0.5
    future = None
    if problem.causal:
        future = torch.ones(problem.seq, problem.seq, dtype=torch.bool, device=problem.device).triu(1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) * scale
        if future is not None:
            scores = scores.masked_fill(future, float("-inf"))
        return torch.softmax(scores, dim=-1) @ v

    return attend


def _flex(problem: Problem) -> Attend:
    """FlexAttention, compiled for this shape alone."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Compiled code of earlier shapes would count towards a limit, past which calls are silently not compiled.
    torch._dynamo.reset()
    mask = None
    if problem.causal:
        mask = create_block_mask(_past, None, None, problem.seq, problem.seq, device=problem.device)
    return partial(torch.compile(flex_attention, dynamic=False, fullgraph=True), block_mask=mask)


def _past(_batch: object, _head: object, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query >= key


def _flash_attn(problem: Problem) -> Attend:
    """The flash-attn package, which has the sequence before the heads: views, nothing is copied."""
    flash_attn_func = importlib.import_module("flash_attn").flash_attn_func

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        turned = (tensor.transpose(1, 2) for tensor in (q, k, v))
        out: torch.Tensor = flash_attn_func(*turned, causal=problem.causal)
        return out.transpose(1, 2)

    return attend


def _tiled(name: str, problem: Problem) -> Attend:
    """A stage of the project's own kernel."""
    from _tiled import prepare

    return prepare(name, causal=problem.causal, device=problem.device)


BACKENDS: dict[str, Backend] = {
    "math": Backend("PyTorch's unfused one, in float32 inside", _sdpa, partial(_only, "MATH"), "math"),
    "math_reduced": Backend(
        "math that may stay in half precision", _sdpa, _reduced_math, named="math", exact=False
    ),
    "flash": Backend("FlashAttention in PyTorch", _sdpa, partial(_only, "FLASH_ATTENTION"), "flash"),
    "efficient": Backend(
        "memory-efficient attention", _sdpa, partial(_only, "EFFICIENT_ATTENTION"), "memory efficient"
    ),
    "cudnn": Backend("cuDNN's fused attention", _sdpa, partial(_only, "CUDNN_ATTENTION"), "cudnn"),
    "auto": Backend("whatever PyTorch picks", _sdpa),
    "naive": Backend(
        "scores, mask, softmax and weighted sum, each an operation of its own", _naive, exact=False
    ),
    "flex": Backend("FlexAttention, compiled", _flex),
    "flash_attn": Backend("the flash-attn package", _flash_attn),
    **{name: Backend(stage.says, partial(_tiled, name)) for name, stage in STAGES.items()},
}
