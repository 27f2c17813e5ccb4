"""What the attention workloads share: backends, how each one is switched on and called, sizes, and what a call costs.

A backend is one entry of `BACKENDS`. Its functions import what they need when they are called, so that the names
are known, for the help and for mistakes in it, without torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from _tiled_stages import STAGES
from _workload import TOLERANCES, Axis, Backend, Case, Cost, Flag, tolerance

__all__ = ["BACKENDS", "TOLERANCES", "Backend", "Problem", "attention_cost", "tolerance"]

if TYPE_CHECKING:
    import torch

    # Queries, keys and values of shape (batch, heads, sequence, head dimension) to an output of that shape.
    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Problem:
    """What a backend may know beforehand, to prepare what is not part of a call.

    Queries are of (batch, heads, seq, head_dim), keys and values of (batch, kv_heads, kv_seq, head_dim); 0 for either
    of these: as queries have it.
    """

    seq: int
    head_dim: int
    causal: bool
    device: str
    batch: int = 1
    heads: int = 1
    kv_heads: int = 0
    kv_seq: int = 0
    dtype: str = "fp16"

    @staticmethod
    def of(at: Case | Problem) -> Problem:
        """The problem of a case."""
        names = [field.name for field in fields(Problem) if hasattr(at, field.name)]
        return Problem(**{name: getattr(at, name) for name in names})

    @property
    def keys(self) -> int:
        """The length of keys and values."""
        return self.kv_seq or self.seq

    @property
    def shared(self) -> int:
        """How many heads of queries share one of keys."""
        return self.heads // (self.kv_heads or self.heads)


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

    problem = Problem.of(problem)
    shared = {"enable_gqa": True} if problem.shared > 1 else {}
    return partial(scaled_dot_product_attention, is_causal=problem.causal, **shared)


def _naive(problem: Problem) -> Attend:
    """Attention as the formula has it, every step an operation of its own in the type of the inputs."""
    import torch

    problem = Problem.of(problem)
    scale = problem.head_dim**-0.5
    future = None
    if problem.causal:
        ones = torch.ones(problem.seq, problem.keys, dtype=torch.bool, device=problem.device)
        future = ones.triu(1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if problem.shared > 1:
            k, v = (each.repeat_interleave(problem.shared, dim=1) for each in (k, v))
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
    problem = Problem.of(problem)
    mask = None
    if problem.causal:
        mask = create_block_mask(_past, None, None, problem.seq, problem.keys, device=problem.device)
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return partial(compiled, block_mask=mask, enable_gqa=problem.shared > 1)


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
    "flash_attn": Backend("the flash-attn package", _flash_attn, install="pip install flash-attn"),
    **{name: Backend(stage.says, partial(_tiled, name)) for name, stage in STAGES.items()},
}

AXES = {
    "batch": Axis("B", "batch", 1),
    "heads": Axis("H", "heads", 8),
    "seq": Axis("S", "sequence length", 1024),
    "head_dim": Axis("D", "head dimension", 64),
}
FLAGS = {"causal": Flag("mask the future", "causal", "full")}
# What `Workload` has of texts and choices.
DECLARED: dict[str, Any] = {
    "axes": AXES,
    "sweep": "seq",
    "flags": FLAGS,
    "backends": BACKENDS,
    "default_backends": ("math", "flash"),
    "base": ("math", "naive"),
    "trial": {"seq": 128},
    "reference": "attention",
    "flops": "of the matrix products, masked scores not counted",
    "traffic": "the score matrices of unfused backends as often as they must be moved",
    "unit": "score matrices",
}
_ITEM_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
_UNFUSED = ("math", "math_reduced", "naive")  # those that keep whole score matrices in memory
# Bytes of S x S matrices that are alive at once, as a factor of (bytes of float32, bytes of the inputs): math computes
# in float32, and holds scores, weights and the result of checking them for rows that are masked as a whole.
_SCORES = {"math": (3, 0), "math_reduced": (0, 3), "naive": (0, 2)}
_SCORES_BACKWARD = 2  # more of them
_MASKED = "causal counting (all scores are counted, a mask would halve them)"


def attention_cost(at: Case, *, block: bool = False) -> Cost:
    """What a call costs, as nsysprof's `hardware.attention_cost` counts it for what is not a workload.

    FLOPs are of the matrix products: 2 forward, 4 more backward, masked scores not counted; a block adds four
    projections. Bytes: each input and output once. An unfused backend also passes over its score matrices, forward 4
    times and twice for each operation between (scale in `naive`, mask where causal), backward 7 times and 2 likewise.
    """
    item, width = _ITEM_BYTES[at.dtype], at.heads * at.head_dim
    tokens, scores = at.batch * at.seq, at.batch * at.heads * at.seq**2
    seen = at.batch * at.heads * at.seq * (at.seq + 1) // 2
    per_score = (12 if at.backward else 4) * at.head_dim
    projections = 8 * tokens * width**2 * (3 if at.backward else 1) if block else 0
    flops = projections + per_score * (seen if at.causal else scores)
    if block:
        rows, weights = tokens * width, 4 * width**2 + 2 * width
        read = (2 if at.backward else 1) * rows + weights
        written = 2 * rows + 2 * weights if at.backward else rows
    else:
        read, written = (4, 4) if at.backward else (3, 1)
        read, written = read * tokens * width, written * tokens * width
    return Cost(
        flops=flops,
        read_bytes=read * item,
        written_bytes=written * item,
        tokens=tokens,
        unit_bytes=scores * item,
        extra_bytes={
            name: _score_passes(at, name) * scores * (4 if name == "math" else item) for name in _UNFUSED
        },
        held_bytes={name: _held(at, name, block=block) for name in BACKENDS},
        suspects={} if at.causal else {_MASKED: flops * seen // scores},
    )


def _score_passes(at: Case, backend: str) -> int:
    naive, masked = backend == "naive", bool(at.causal)
    forward = 4 + 2 * naive + 2 * masked
    return forward + (7 + 2 * naive * (1 + masked) if at.backward else 0)


def _held(at: Case, backend: str, *, block: bool) -> int:
    """About how much memory a call needs at its peak: inputs, outputs, and the S x S matrices of unfused backends.

    Derived from what the backends are known to keep, and to be trusted to within a factor of two.
    """
    item, width = _ITEM_BYTES[at.dtype], at.heads * at.head_dim
    rows = 4 * (2 if at.backward else 1)  # queries, keys, values and the output
    weights = 0
    if block:  # the input, its norm and the sum; all of it is kept for the backward pass
        rows += 3 * (3 if at.backward else 1)
        weights = 4 * width * width * (2 if at.backward else 1)
    in_float32, in_dtype = _SCORES.get(backend, (0, 0))
    if in_float32 + in_dtype and at.backward:
        in_float32, in_dtype = (count + _SCORES_BACKWARD if count else 0 for count in (in_float32, in_dtype))
    scores = at.batch * at.heads * at.seq**2
    held = (rows * at.batch * at.seq * width + weights) * item + scores * (4 * in_float32 + item * in_dtype)
    return int(held)
