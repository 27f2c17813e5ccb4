"""Trains a small transformer data-parallel, with batches of uneven length: what one rank does, under torchrun.

    torchrun --standalone --nproc-per-node 2 analysis/two-ranks/train.py

Every rank draws the length of its next batch on its own, as loaders that sort text into buckets do, so that the ranks
take turns at being the slow one, and the others wait for it in the all-reduce. Every length is met in the warm-up, as
the first batch of a length takes long: libraries choose their kernels then. NVTX: step<i> holds data, forward, backward
and optimizer. Without GPUs it runs on gloo, for tests.
"""

from __future__ import annotations

import argparse
import os
import random

import nvtx
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """Attention and a feed-forward network, each with its norm and residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens in, tokens out: (batch, sequence, width)."""
        batch, seq, width = x.shape
        parts = self.qkv(self.attention_norm(x)).view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, seq, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.forward_norm(x))))


def main() -> None:
    """One rank: joins the others, warms up, trains."""
    options = _options()
    gpu = torch.cuda.is_available()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(options.width, options.heads) for _ in range(options.layers))).to(device)
    trained = DistributedDataParallel(model, device_ids=[local] if gpu else None)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4, fused=gpu)
    lengths = random.Random(rank)
    with nvtx.annotate("warm-up"):
        for seq in options.lengths * options.warmup:
            _step(trained, optimizer, seq, options, device)
        _wait(gpu)
    for index in range(options.steps):
        with nvtx.annotate(f"step{index}"):
            _step(trained, optimizer, lengths.choice(options.lengths), options, device)
    _wait(gpu)
    dist.destroy_process_group()


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, seq: int, options: argparse.Namespace, device: torch.device
) -> None:
    with nvtx.annotate("data"):
        batch = torch.randn(options.batch, seq, options.width, device=device)
    with nvtx.annotate("forward"), torch.autocast(device.type, torch.bfloat16):
        loss = model(batch).float().square().mean()
    with nvtx.annotate("backward"):
        loss.backward()
    with nvtx.annotate("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def _wait(gpu: bool) -> None:
    if gpu:
        torch.cuda.synchronize()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, meaning in (
        ("steps", 24, "steps to train"),
        ("warmup", 2, "steps of every length before those"),
        ("layers", 4, "blocks"),
        ("width", 1024, "size of a token's vector"),
        ("heads", 16, "attention heads"),
        ("batch", 4, "sequences in a batch of each rank"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} ({default})")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[512, 1024, 1536, 2048], metavar="N", help="sequence lengths"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
