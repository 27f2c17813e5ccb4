"""Records traces/cpu.pt.trace.json.gz: three training steps of a small network under torch.profiler, on a CPU."""

from __future__ import annotations

import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def main(path: str) -> None:
    """Record steps 2 to 4, after one that warms up."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches, targets = torch.randn(5, 32, 64), torch.randint(8, (5, 32))
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
        with_stack=True,
        with_modules=True,
        on_trace_ready=lambda done: done.export_chrome_trace(path),
    ) as recorded:
        for batch, target in zip(batches, targets, strict=True):
            with record_function("forward"):
                loss = torch.nn.functional.cross_entropy(model(batch), target)
            with record_function("backward"):
                loss.backward()
            with record_function("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            recorded.step()


if __name__ == "__main__":
    main(sys.argv[1])
