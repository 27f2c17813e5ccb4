"""Times `tiled_o6`, and changed builds of it, beside other backends: replays of CUDA graphs in random order, cold L2.

    python analysis/tiled-attention/o5-o6/measure.py [--variant NAME OLD NEW]… [--rounds N] [--output FILE]

A variant is the kernel's source with one text replaced by another, such as `hasty 'PATIENCE = 16;' 'PATIENCE = 4;'`.
Each output is compared with that of the first backend before it is timed; what differs or fails is left out. A row of
medians is printed as soon as it is there.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "workloads"))

import torch

import _tiled
from _attention import BACKENDS, Problem
from _bench_clock import call_clock
from _results import WorkloadError

SHORT = {"float16": "fp16", "bfloat16": "bf16"}
# Batch, heads, sequence, head dimension, causal, type, factor of the queries.
ROWS = [
    (1, 8, 1024, 64, True, "float16", 1),
    *((1, 8, 4096, 64, True, "float16", factor) for factor in (1, 10, 30)),
    (1, 8, 8192, 64, True, "float16", 1),
    (1, 8, 4096, 64, False, "float16", 1),
    (4, 16, 4096, 64, True, "float16", 1),
    (8, 16, 512, 64, True, "float16", 1),
    (8, 16, 2048, 64, True, "float16", 1),
    (4, 16, 4096, 128, True, "float16", 1),
    (16, 16, 1024, 128, False, "float16", 1),
    (2, 16, 8192, 128, True, "bfloat16", 1),
    (4, 16, 4096, 128, True, "float16", 30),
    (1, 8, 4096, 128, True, "float16", 1),
    (4, 16, 4096, 64, True, "float16", 30),
]
Call = Callable[[], torch.Tensor]
LOADED: list[_tiled.Kernel] = []  # a graph does not keep what it launches: without this, builds would be unloaded


def changed(pairs: Sequence[tuple[str, str]], name: str = "tiled_o6") -> Path:
    """A copy of the kernels in which this one has texts replaced by others, wherever they stand."""
    folder = Path(tempfile.mkdtemp()) / "kernels"
    shutil.copytree(_tiled.KERNELS, folder)
    source = (folder / f"{name}.cu").read_text(encoding="utf-8")
    for old, new in pairs:
        assert old in source, old
        source = source.replace(old, new)
    (folder / f"{name}.cu").write_text(source, encoding="utf-8")
    return folder


def own(name: str, folder: Path, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Call:
    """A call of a stage of ours, compiled from this folder; its output is full of NaN before."""
    tile = _tiled.kernel_for(name, q, causal).tile
    kept, _tiled.KERNELS = _tiled.KERNELS, folder
    try:
        kernel = _tiled._kernel.__wrapped__(name, _tiled.DTYPES[str(q.dtype)], q.shape[-1], q.get_device(), tile)
    finally:
        _tiled.KERNELS = kept
    out = torch.full_like(q, math.nan)

    def call() -> torch.Tensor:
        kernel.launch((q, k, v, out), causal, 0)
        return out

    LOADED.append(kernel)
    return call


def theirs(name: str, problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
    """A call of another backend."""
    attend = BACKENDS[name].make(problem)

    def call() -> torch.Tensor:
        with BACKENDS[name].settings():
            return attend(q, k, v)

    return call


def captured(call: Call) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of the call, and its output after one replay."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    graph.replay()
    torch.cuda.synchronize()
    return graph, out


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(variants: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Run the command, with these variants as well: their texts and what stands in place of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", nargs=3, action="append", default=[], metavar=("NAME", "OLD", "NEW"))
    parser.add_argument("--backend", nargs="*", default=["cudnn", "flash_attn_4"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=Path("times.csv"))
    options = parser.parse_args()
    asked = {name: [(old, new)] for name, old, new in options.variant}
    folders = {name: changed(pairs) for name, pairs in {**variants, **asked}.items()}
    replay = call_clock("cuda", warm_cache=False).replay
    assert replay
    with options.output.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("problem", "build", "samples", "median_us"))
        for batch, heads, seq, head_dim, causal, dtype, factor in ROWS:
            kind = getattr(torch, dtype)
            q, k, v = (torch.randn(batch, heads, seq, head_dim, device="cuda").to(kind) for _ in range(3))
            q = q * factor
            problem = Problem(seq, head_dim, causal, "cuda", batch, heads, dtype=SHORT[dtype])
            given = q, k, v
            makers: dict[str, Callable[[], Call]] = {}
            for name in options.backend:
                makers[name] = partial(theirs, name, problem, *given)
            for name in ("tiled_o5", "tiled_o6") if dtype == "float16" else ("tiled_o6",):
                makers[name] = partial(own, name, _tiled.KERNELS, *given, causal)
            for name, folder in folders.items():
                makers[name] = partial(own, "tiled_o6", folder, *given, causal)
            label = f"B{batch} H{heads} S{seq} D{head_dim} {'causal' if causal else 'full'} {SHORT[dtype]}"
            label += f" x{factor}" if factor != 1 else ""
            made: dict[str, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
            for name, make in makers.items():
                try:
                    graph, out = captured(make())
                except (
                    RuntimeError,
                    ImportError,
                    WorkloadError,
                ) as why:  # a package that is missing, a build that fails
                    say(f"{label}: {name} is left out: {why}")
                    continue
                want = next(iter(made.values()), (graph, out))[1].double()
                error = ((out.double() - want).norm() / want.norm()).item()
                if error < (3e-3 if dtype == "float16" else 2e-2):
                    made[name] = graph, out
                else:
                    say(f"{label}: {name} is left out: it differs by {error:.1e}")
            times: dict[str, list[float]] = {name: [] for name in made}
            for _ in range(options.rounds):
                for name in random.sample(list(made), len(made)):
                    times[name].append(replay(made[name][0]) / 1e3)
            medians = {name: statistics.median(each) for name, each in times.items()}
            shown = " ".join(f"{name} {median:.1f}" for name, median in medians.items())
            say(f"{label}: {shown}")
            table.writerows((label, name, options.rounds, f"{median:.1f}") for name, median in medians.items())
            file.flush()


if __name__ == "__main__":
    main({})
