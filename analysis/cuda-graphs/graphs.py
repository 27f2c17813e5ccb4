"""Runs one small transformer eagerly, as CUDA graphs of several kinds, and compiled: the same layers in each.

    nsys profile --trace=cuda,nvtx --cuda-graph-trace=node python analysis/cuda-graphs/graphs.py

Every way has a range of its own (`EAGER`, `GRAPH`, `CALLABLES`, `TWO`, `THREAD`, `CHILD`, `COMPILED`) with ranges
`iter` inside; the layers are ranges `layer0` ... in eager runs, and where a graph is captured (`CAPTURE`).
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import threading
from pathlib import Path

import nvtx
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

LAYERS, WIDTH, HEADS, BATCH, SEQ = 4, 768, 12, 2, 512
ITERATIONS = 5


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens in, tokens out."""
        batch, seq, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, seq, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, seq, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))


class Model(nn.Module):
    """Blocks, each in a range of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens in, tokens out."""
        for number, block in enumerate(self.blocks):
            with nvtx.annotate(f"layer{number}"):
                x = block(x)
        return x


def capture(model: nn.Module, x: torch.Tensor, name: str) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """One graph of the model."""
    graph = torch.cuda.CUDAGraph()
    with nvtx.annotate(name), torch.cuda.graph(graph):
        out = model(x)
    return graph, out


def replay(name: str, action: object) -> None:
    """Every iteration in its range, and the whole in one."""
    torch.cuda.synchronize()
    with nvtx.annotate(name):
        for _ in range(ITERATIONS):
            with nvtx.annotate("iter"):
                action()  # type: ignore[operator]
        torch.cuda.synchronize()


def child_graph() -> object:
    """A graph that holds another one as a child, by the driver's API; what launches it."""
    loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcudart" in line]
    runtime = ctypes.CDLL(loaded[0])
    stream = torch.cuda.Stream()
    x = torch.zeros(1 << 20, device="cuda")
    graph = ctypes.c_void_p()
    with torch.cuda.stream(stream):
        x.add_(1)
        torch.cuda.synchronize()
        handle = ctypes.c_void_p(stream.cuda_stream)
        with nvtx.annotate("CAPTURE::child"):
            assert runtime.cudaStreamBeginCapture(handle, 2) == 0
            with nvtx.annotate("inner"):
                x.add_(1)
                x.mul_(2)
            assert runtime.cudaStreamEndCapture(handle, ctypes.byref(graph)) == 0
    parent, node, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    with nvtx.annotate("BUILD::parent"):
        assert runtime.cudaGraphCreate(ctypes.byref(parent), 0) == 0
        assert runtime.cudaGraphAddChildGraphNode(ctypes.byref(node), parent, None, ctypes.c_size_t(0), graph) == 0
        assert runtime.cudaGraphInstantiate(ctypes.byref(executable), parent, ctypes.c_ulonglong(0)) == 0
    return lambda: runtime.cudaGraphLaunch(executable, handle)


def main() -> None:
    """All ways, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which takes its time")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Model().to("cuda", torch.bfloat16).eval()
    x = torch.randn(BATCH, SEQ, WIDTH, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        side = torch.cuda.Stream()
        with nvtx.annotate("warm-up"), torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        replay("EAGER", lambda: model(x))
        graph, _ = capture(model, x, "CAPTURE")
        replay("GRAPH", graph.replay)
        one, _ = capture(model, x, "CAPTURE::one")
        two, _ = capture(model, x, "CAPTURE::two")
        replay("TWO", lambda: (one.replay(), two.replay()))

        def elsewhere() -> None:
            thread = threading.Thread(target=graph.replay)
            thread.start()
            thread.join()

        replay("THREAD", elsewhere)
        try:
            replay("CHILD", child_graph())
        except (AssertionError, OSError) as error:
            sys.stdout.write(f"no child graph: {error!r}\n")
    trained = Block().to("cuda")
    sample = torch.randn(BATCH, SEQ, WIDTH, device="cuda", requires_grad=True)
    with nvtx.annotate("CAPTURE::callables"):
        graphed = torch.cuda.make_graphed_callables(trained, (sample,))
    replay("CALLABLES", lambda: graphed(sample).sum().backward())
    if options.compile:
        compiled = torch.compile(model, mode="reduce-overhead")
        with torch.no_grad():
            with nvtx.annotate("CAPTURE::compiled"):
                for _ in range(4):
                    torch.compiler.cudagraph_mark_step_begin()
                    compiled(x)
            replay("COMPILED", lambda: (torch.compiler.cudagraph_mark_step_begin(), compiled(x)))


if __name__ == "__main__":
    main()
