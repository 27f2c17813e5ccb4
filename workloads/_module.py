"""Self-attention as a PyTorch module, by any backend of the workloads.

from nsysprof.workloads import Attention
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

sys.path.append(str(Path(__file__).parent))  # where workloads find each other

from _attention import BACKENDS, Problem

if TYPE_CHECKING:
    from _attention import Attend

_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


class Attention(torch.nn.Module):  # type: ignore[misc]
    """Self-attention of (batch, sequence, width) tensors, with projections, without dropout.

    ``backend``: a name of `BACKENDS`; `auto` is PyTorch's choice for each shape. Raises ValueError for an unknown
    name or a width that is no multiple of ``heads``; a call raises what the backend says where it cannot run.
    """

    def __init__(
        self, width: int, heads: int, *, backend: str = "auto", causal: bool = True, bias: bool = True
    ) -> None:
        super().__init__()
        if backend not in BACKENDS:
            raise ValueError(f"no backend {backend!r}: one of {', '.join(BACKENDS)}")
        if width % heads:
            raise ValueError(f"a width of {width} is not a multiple of {heads} heads")
        self.heads, self.backend, self.causal = heads, backend, causal
        self.qkv, self.proj = (torch.nn.Linear(width, times * width, bias) for times in (3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend; gradients as far as the backend has them."""
        batch, seq, width = x.shape
        q, k, v = self.qkv(x).view(batch, seq, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attend = _attend(self.backend, tuple(q.shape), self.causal, q.device.type, _DTYPES[q.dtype])
        with BACKENDS[self.backend].settings():
            out = attend(q, k, v)
        projected: torch.Tensor = self.proj(out.transpose(1, 2).reshape(batch, seq, width))
        return projected


@lru_cache(maxsize=64)
def _attend(backend: str, shape: tuple[int, ...], causal: bool, device: str, dtype: str) -> Attend:
    batch, heads, seq, head_dim = shape
    return BACKENDS[backend].make(Problem(seq, head_dim, causal, device, batch, heads, dtype=dtype))
