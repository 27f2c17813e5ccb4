"""Small training and inference programs whose steps can be changed by options: what is forecast, and then measured.

    python analysis/forecasts/programs.py mlp --batch 8 --mode train --results base.json
    python analysis/forecasts/programs.py mlp --batch 8 --mode train --graph --results changed.json

Each step is an NVTX range `step`, in it `data`, `forward` with `layer0`, `layer1` …, `backward`, `optimizer`, `loss`.
`--results` gets the time of each step by CUDA events (without a GPU by the clock of the host), so that the same program
is its own measurement without a profiler. `--device cpu` runs everything but graphs and spin kernels for real.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

SPIN_CYCLES_PER_US = 1_000  # of `torch.cuda._sleep`, until it is measured


def named(name: str, device: str) -> AbstractContextManager[Any]:
    """An NVTX range, on machines with a GPU."""
    return torch.cuda.nvtx.range(name) if device == "cuda" else nullcontext()


class Block(nn.Module):
    """A transformer block without masks."""

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and MLP, each added to what came in."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        result: torch.Tensor = x + self.mlp(self.norms[1](x))
        return result


def layers_of(options: argparse.Namespace) -> nn.ModuleList:
    """The layers of the program."""
    width = options.width
    make = {"mlp": lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU()), "block": lambda: Block(width)}
    return nn.ModuleList(make[options.program]() for _ in range(options.layers))


def spin(us: float) -> None:
    """A kernel that runs for so long and does nothing."""
    torch.cuda._sleep(int(us * spin.cycles))  # type: ignore[attr-defined]


spin.cycles = SPIN_CYCLES_PER_US  # type: ignore[attr-defined]


def calibrate() -> None:
    """Find how many cycles a spin kernel needs for a microsecond."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        begin.record()
        torch.cuda._sleep(10_000_000)
        end.record()
        end.synchronize()
    spin.cycles = 10_000_000 / (begin.elapsed_time(end) * 1e3)  # type: ignore[attr-defined]


def busy(us: float) -> None:
    """Keep the host busy for so long."""
    end = time.perf_counter_ns() + int(us * 1e3)
    while time.perf_counter_ns() < end:
        pass


class Program:
    """Layers, their optimizer and their data; `step` runs one step."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.device = options, options.device
        torch.manual_seed(0)
        self.layers = layers_of(options).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.layers.parameters(), 1e-4, fused=options.fused and self.device == "cuda", foreach=False
        )
        self.side = torch.cuda.Stream() if self.device == "cuda" else None
        self.loader = self.batches()
        self.static = next(self.loader)

    def batches(self) -> Iterator[torch.Tensor]:
        """Batches on the device: from memory that is there, or copied there each time, pinned or ahead of use."""
        options = self.options
        shape = (options.batch, options.length, options.width) if options.program == "block" else (
            options.batch * options.length, options.width)  # fmt: skip
        if not options.copy:
            batch = torch.randn(shape, device=self.device)
            while True:
                yield batch
        pinned = options.pinned and self.device == "cuda"
        host = torch.randn(shape)
        host = host.pin_memory() if pinned else host
        ahead = host.to(self.device, non_blocking=pinned)
        while True:
            if options.prefetch and self.side is not None:
                torch.cuda.current_stream().wait_stream(self.side)
                ready = ahead
                ready.record_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.side):
                    ahead = host.to(self.device, non_blocking=True)
                yield ready
            else:
                yield host.to(self.device, non_blocking=pinned)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All layers, with the delays that were asked for behind one of them."""
        options = self.options
        for number, layer in enumerate(self.layers):
            with named(f"layer{number}", self.device):
                x = layer(x)
                if number == options.at and options.spin_us and self.device == "cuda":
                    if options.slack:
                        self.side.wait_stream(torch.cuda.current_stream())  # type: ignore[union-attr]
                        with torch.cuda.stream(self.side):
                            spin(options.spin_us)
                    else:
                        spin(options.spin_us)
                if number == options.at and options.host_us:
                    busy(options.host_us)
        return x

    def work(self, x: torch.Tensor) -> torch.Tensor:
        """Forward, and when training backward and the optimizer."""
        training = self.options.mode == "train"
        with named("forward", self.device), torch.set_grad_enabled(training):
            out = self.forward(x)
            loss = out.float().pow(2).mean()
        if training:
            with named("backward", self.device):
                loss.backward()
            with named("optimizer", self.device):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
        return loss

    def captured(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The work as a CUDA graph, after a warm-up on a side stream."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.work(self.static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.work(self.static)

        def replay(x: torch.Tensor) -> torch.Tensor:
            if x is not self.static:
                self.static.copy_(x)
            graph.replay()
            return loss

        return replay

    def run(self, steps: int, warm_up: int) -> list[int]:
        """Run steps and return the ns of each, from the end of one to the end of the next."""
        graphed = self.options.graph and self.device == "cuda"
        work = self.captured() if graphed else self.work
        marks: list[Any] = []
        for number in range(warm_up + steps + 1):
            if number >= warm_up:
                marks.append(self.mark())
            if number == warm_up + steps:
                break
            with named("step", self.device):
                with named("data", self.device):
                    x = next(self.loader)
                loss = work(x)
                if self.options.item:
                    with named("loss", self.device):
                        loss.item()
        if self.device == "cuda":
            torch.cuda.synchronize()
            return [round(a.elapsed_time(b) * 1e6) for a, b in itertools.pairwise(marks)]
        return [b - a for a, b in itertools.pairwise(marks)]

    def mark(self) -> Any:
        """An event in the stream, or without a GPU the time."""
        if self.device == "cpu":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def options_of(words: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", choices=("mlp", "block"))
    for name, default in (
        ("batch", 8),
        ("length", 128),
        ("width", 512),
        ("layers", 8),
        ("steps", 60),
        ("at", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--mode", choices=("forward", "train"), default="train")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--results", type=Path)
    for name in ("spin-us", "host-us"):
        parser.add_argument(f"--{name}", type=float, default=0.0, help="a delay behind layer --at")
    for name in ("slack", "graph", "item", "copy", "pinned", "prefetch", "fused"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> None:
    """Run the program and write what its steps took."""
    options = options_of(words)
    if options.device == "cuda":
        calibrate()
    times = Program(options).run(options.steps, warm_up=min(10, options.steps))
    run = {"range": "step", "status": "measured", "latency_clock": "cuda events", "latency_ns": times}
    if options.results:
        options.results.write_text(json.dumps({"schema": "nsysprof-workload/1", "runs": [run]}))


if __name__ == "__main__":
    main()
