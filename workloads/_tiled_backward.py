"""The gradients of `tiled_o6`, by `kernels/tiled_o6_backward.cu`: for PyTorch's autograd, and as a launch of their own.

A call allocates the gradients and two numbers for each query row, and can be captured into a CUDA graph once one was
made outside of it.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import _tiled
from _tiled_stages import TiledError, backward_tile, compile_options, macros
from _tiled_tma import TYPES, heads_rows_columns, tensor_map

_SOURCE = "tiled_o6_backward"
_ROWS_THREADS = 256  # of a block of the kernel that looks at rows


class _Problem(ctypes.Structure):
    """What the kernels get by value."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("queries", "keys", "heads", "causal", "diagonal")),
        ("scale_log2e", ctypes.c_float),
    ]


class Attention(torch.autograd.Function):  # type: ignore[misc]
    """Attention by a function that gives the output and the log-sum-exp, with its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        attend: Callable[..., tuple[torch.Tensor, torch.Tensor]],
        causal: bool,
        diagonal: int,
        *inputs: torch.Tensor,
    ) -> torch.Tensor:
        """The output; what the gradients need is kept."""
        inputs = tuple(map(_tiled.plain, inputs))
        out, log_sum_exp = attend(*inputs)
        ctx.save_for_backward(*inputs, out, log_sum_exp)
        ctx.mask = causal, diagonal
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of queries, keys and values. Raises `TiledError` where they are to be differentiated again:
        to autograd they would be constants.
        """
        if torch.is_grad_enabled():
            raise TiledError("tiled_o6 has no second derivatives: leave out create_graph=True")
        tensors = [*ctx.saved_tensors, _tiled.plain(grad_out)]
        gradients = [torch.empty_like(each) for each in tensors[:3]]
        launch(tensors, gradients, *ctx.mask)
        return None, None, None, *gradients


def launch(tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], causal: bool, diagonal: int) -> None:
    """Compute the gradients of queries, keys and values, on torch's current stream.

    ``tensors`` are these three, the output, its log-sum-exp and the gradient of the output; all as `_tiled.plain`.
    """
    q, k, v, out, log_sum_exp, grad_out = tensors
    heads, queries, head_dim = heads_rows_columns(q)
    keys = k.shape[2]
    if not q.numel() or not keys:
        for each in gradients:
            each.zero_()
        return
    index = q.get_device()
    functions = _functions(str(q.dtype), head_dim, index)
    tile, kind = backward_tile(head_dim), TYPES[str(q.dtype)]
    box = tile.columns
    padded = heads * -(-queries // box) * box
    rows = torch.empty(2 * padded + 2, dtype=torch.float32, device=q.device)
    boxes = [tensor_map(each.data_ptr(), *heads_rows_columns(each), box, kind) for each in (q, grad_out, k, v)]
    maps = [(ctypes.c_uint64 * 32)(*boxes[first], *boxes[first + 1]) for first in (0, 2)]
    diagonal = max(-queries, min(diagonal, keys))  # as in the forward pass
    problem = _Problem(queries, keys, heads, causal, diagonal, head_dim**-0.5 / math.log(2))
    made = ctypes.c_void_p(rows.data_ptr()), ctypes.c_void_p(rows.data_ptr() + 8 * padded)
    dq, dk, dv = (ctypes.c_void_p(each.data_ptr()) for each in gradients)
    inputs = [ctypes.c_void_p(each.data_ptr()) for each in (out, grad_out, log_sum_exp)]
    sizes = ctypes.c_int(queries), ctypes.c_int(heads)

    def start(function: Any, blocks: int, threads: int, shared_bytes: int, *arguments: Any) -> None:
        addresses = [*map(ctypes.addressof, arguments)]
        _tiled.start(function, (blocks, 1, 1), threads, shared_bytes, addresses, index)

    start(functions[0], padded * head_dim // 8 // _ROWS_THREADS, _ROWS_THREADS, 0, *inputs, *made, *sizes)
    multiprocessors = _tiled.device_limits(index).multiprocessors
    lengths, outputs = (keys, queries), ((dk, dv), (dq,))
    for function, length, outs in zip(functions[1:], lengths, outputs, strict=True):
        blocks = min(heads * -(-length // tile.rows), multiprocessors)
        start(function, blocks, tile.threads, tile.shared_bytes, *maps, *outs, *made, problem)


@functools.cache
def _functions(dtype: str, head_dim: int, index: int) -> list[Any]:
    """The three kernels, compiled for a type and head dimension on the GPU of a number."""
    tile = backward_tile(head_dim)
    options = compile_options("tiled_o6", macros(_tiled.DTYPES[dtype], head_dim, tile), _tiled.device_limits(index))
    symbols = [f"{_SOURCE}_{part}" for part in ("rows", "keys", "queries")]
    return _tiled.loaded(_SOURCE, symbols, tile.shared_bytes, options)
