"""Trains a small network for four steps: recorded by nsys and by PyTorch's profiler, its kernels are the same.

nsysprof capture --trace cuda,nvtx -o pair -- python record_pair.py
nsysprof capture --profiler torch -o pair-torch -- python record_pair.py
"""

from __future__ import annotations

import sys

import torch
from torch.cuda.nvtx import range as nvtx_range


def main(width: int) -> None:
    """Warm up for about a second, then take four steps inside of `emit_nvtx`, which numbers forward and backward."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    gpu = torch.device("cuda")
    model = torch.nn.Sequential(
        torch.nn.Linear(width, 2 * width),
        torch.nn.GELU(),
        torch.nn.LayerNorm(2 * width),
        torch.nn.Linear(2 * width, width),
    ).to(gpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch, target = torch.randn(4 * width, width, device=gpu), torch.randn(4 * width, width, device=gpu)

    def step() -> None:
        with nvtx_range("forward"):
            loss = torch.nn.functional.mse_loss(model(batch), target)
        with nvtx_range("backward"):
            loss.backward()
        with nvtx_range("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    with nvtx_range("warm-up"):
        for _ in range(6):
            step()
        torch.cuda.synchronize()
    with torch.autograd.profiler.emit_nvtx():
        for number in range(4):
            with nvtx_range(f"step{number}"):
                step()
                torch.cuda.synchronize()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4096)
