"""Runs operators of PyTorch, each once in a range of its own.

    python analysis/operator-cost/operators.py trace.json

With a file: the third pass as a trace of PyTorch's profiler with shapes. Without: one pass, for `nsysprof counters`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import nvtx
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def draw(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Random numbers on the GPU."""
    return torch.randn(*sizes, device="cuda", dtype=dtype)


def attend(backend: SDPBackend, causal: bool, each: list[torch.Tensor]) -> torch.Tensor:
    """Attention by one backend."""
    with sdpa_kernel(backend):
        return functional.scaled_dot_product_attention(*each, is_causal=causal)


def operators() -> dict[str, Callable[[], torch.Tensor]]:
    """The operators by name; most tensors are larger than the L2 cache."""
    torch.manual_seed(0)
    wide, single = torch.channels_last, torch.float32
    a, b, bias = draw(8192, 4096), draw(4096, 6144), draw(6144)
    a32, b32 = draw(4096, 4096, dtype=single), draw(4096, 4096, dtype=single)
    big, other, gain = draw(64, 1024, 4096), draw(64, 1024, 4096), draw(4096)
    left, right = draw(96, 1024, 512), draw(96, 512, 1024)
    each = [draw(4, 16, 4096, 64) for _ in range(3)]
    image, core = draw(64, 256, 56, 56).to(memory_format=wide), draw(256, 256, 3, 3).to(memory_format=wide)
    image32, core32 = draw(64, 64, 112, 112, dtype=single), draw(64, 64, 3, 3, dtype=single)
    table, index = draw(50304, 1024), torch.randint(50304, (64, 2048), device="cuda")
    found: dict[str, Callable[[], torch.Tensor]] = {
        "mm": partial(torch.mm, a, b),
        "addmm": partial(torch.addmm, bias, a, b),
        "mm_f32": partial(torch.mm, a32, b32),
        "bmm": partial(torch.bmm, left, right),
        "add": partial(torch.add, big, other),
        "mul_scalar": partial(torch.mul, big, 2.0),
        "gelu": partial(functional.gelu, big),
        "copy": big.clone,
        "cast": big.float,
        "softmax": partial(torch.softmax, big, -1),
        "layer_norm": partial(functional.layer_norm, big, (4096,), gain, gain),
        "sum": partial(big.sum, -1),
        "sum_all": big.sum,
        "mean0": partial(big.mean, 0),
        "embedding": partial(functional.embedding, index, table),
        "transpose_copy": lambda: big.transpose(1, 2).contiguous(),
        "conv_cl": partial(functional.conv2d, image, core, padding=1),
        "conv_f32": partial(functional.conv2d, image32, core32, padding=1),
        "batch_norm": partial(functional.batch_norm, image, None, None, gain[:256], gain[:256], training=True),
        "max_pool": partial(functional.max_pool2d, image, 2),
        "dropout": partial(functional.dropout, big, 0.1),
        "where": lambda: torch.where(big > 0, big, other),
        "cat": lambda: torch.cat([big, other]),
    }
    backends = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
    for name, backend in backends.items():
        for suffix, causal in (("", False), ("_causal", True)):
            found[f"sdpa_{name}{suffix}"] = partial(attend, SDPBackend.__members__[backend], causal, each)
    return found


def run(found: dict[str, Callable[[], torch.Tensor]]) -> None:
    """Call each operator once."""
    for name, call in found.items():
        with nvtx.annotate(f"OP::{name}"), torch.profiler.record_function(f"OP::{name}"):
            call()
    torch.cuda.synchronize()


if __name__ == "__main__":
    every = operators()
    if len(sys.argv) > 1:
        for _ in range(2):
            run(every)
        with torch.profiler.profile(record_shapes=True) as profiled:
            run(every)
        profiled.export_chrome_trace(sys.argv[1])
    else:
        run(every)
