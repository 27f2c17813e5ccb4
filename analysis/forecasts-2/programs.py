"""Small programs with one known remedy each.

    python programs.py time|nsys|kineto|list PROGRAM bad|good|cheat [OUT]

``time`` prints the mean step time in ms of three rounds without a profiler; ``nsys`` is run inside `nsys profile
--capture-range=cudaProfilerApi`; ``kineto`` writes a trace of torch.profiler. ``good`` has the remedy applied, which
the program's docstring names; ``cheat`` does less work instead. Steps are the ranges step0, step1, … but programs of
CuPy have none under nsys, as CUDA C++ has none. Without a GPU, DEVICE=cpu runs most programs small.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import io
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

F = torch.nn.functional
DEV = os.environ.get("DEVICE", "cuda")
STEPS, WARM_UP = 20, 8
Step = Callable[[int], Any]
HALF = torch.bfloat16


def sized(full: int) -> int:
    """Return the size on a GPU, and a sixteenth of it without one."""
    return full if DEV == "cuda" else max(full // 16, 8)


def halved(v: str, full: int) -> int:
    """Return the size, and half of it for the cheat."""
    return sized(full) // 2 if v == "cheat" else sized(full)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return random numbers on the device."""
    return torch.randn(*shape, device=DEV, dtype=dtype)


class Block(torch.nn.Module):
    """A transformer block with causal attention."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(d) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(d, 3 * d), torch.nn.Linear(d, d)
        self.up, self.down = torch.nn.Linear(d, 4 * d), torch.nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what comes out, of the shape of x."""
        b, t, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def trainer(layers: int, d: int, b: int, t: int, optimizer: str = "fused") -> Step:
    """Return a step that trains a transformer in bfloat16 and returns its loss."""
    net = torch.nn.Sequential(*[Block(d, d // 64) for _ in range(layers)]).to(DEV)
    if optimizer == "fused":
        opt: Any = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    else:
        how = {"fused": True} if optimizer == "fused sgd" else {"foreach": False}
        opt = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4, **how)
    x = noise(sized(b), t, d)

    def step(_: int) -> torch.Tensor:
        with torch.autocast(DEV, HALF):
            loss = net(x).float().square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def perceptron(layers: int, d: int, dtype: torch.dtype = HALF) -> torch.nn.Sequential:
    """Return linear layers with ReLU between them."""
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(d, d), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts).to(DEV, dtype)


def images(channels: int, layers: int, dtype: torch.dtype = torch.float16) -> torch.nn.Sequential:
    """Return convolutions with batch norm and ReLU, for inference."""
    parts = [
        part
        for _ in range(layers)
        for part in (torch.nn.Conv2d(channels, channels, 3, padding=1), torch.nn.BatchNorm2d(channels), torch.nn.ReLU())
    ]
    return torch.nn.Sequential(*parts).to(DEV, dtype).eval()


def python_work(n: int) -> float:
    """Do n rounds of pure Python, as bookkeeping does; about 50 ns each."""
    total = 0.0
    for i in range(n):
        total += i * 0.5
    return total


def item(v: str) -> Step:
    """Keep the loss on the GPU; do not read it with .item() in every step."""
    base, history = trainer(4, 1024, 16 if v == "cheat" else 32, 512), []

    def step(i: int) -> None:
        loss = base(i)
        history.append(loss if v == "good" else loss.item())
        python_work(50_000)

    return step


def syncstep(v: str) -> Step:
    """Leave torch.cuda.synchronize() out of the step; time with events."""
    net = images(64, 12, torch.float32).train()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, fused=DEV == "cuda")
    x = noise(halved(v, 64), 64, 48, 48)
    sync = (lambda: None) if v == "good" else torch.cuda.synchronize
    times = []

    def step(_: int) -> None:
        start = time.perf_counter()
        y = net(x).square().mean()
        sync()
        y.backward()
        sync()
        opt.step()
        opt.zero_grad()
        sync()
        times.append(time.perf_counter() - start)

    return step


def layeritem(v: str) -> Step:
    """Gather the flags of all layers on the GPU and read them once."""
    d = sized(2048)
    layers = [torch.nn.Linear(d, d).to(DEV, HALF) for _ in range(24)]
    x = noise(sized(8192), d, dtype=HALF)

    @torch.no_grad()
    def step(_: int) -> None:
        y, flags = x, []
        for layer in layers:
            y = F.relu(layer(y))
            finite = torch.isfinite(y).all()
            if v == "good":
                flags.append(finite)
            elif not finite.item():
                raise ValueError("not finite")
        if flags and not torch.stack(flags).all().item():
            raise ValueError("not finite")

    return step


def boolmask(v: str) -> Step:
    """Use torch.where; do not index with a boolean mask, which waits for the GPU."""
    d = sized(1024)
    layers = [torch.nn.Linear(d, d).to(DEV, HALF) for _ in range(12)]
    x = noise(sized(16384), d, dtype=HALF)
    mask = torch.rand(len(x), device=DEV) < 0.7

    @torch.no_grad()
    def step(_: int) -> None:
        y = x
        for layer in layers:
            if v == "good":
                y = torch.where(mask[:, None], F.relu(layer(y)), y)
            else:
                z = y.clone()
                z[mask] = F.relu(layer(y[mask]))
                y = z

    return step


def preprocess(v: str) -> Step:
    """Prepare the batch in a background thread."""
    net, raw = (perceptron(40, sized(4096)), np.random.default_rng(0).integers(0, 255, (sized(4096), 512), np.uint8))
    w = noise(512, sized(4096), dtype=HALF)

    def prepare() -> torch.Tensor:
        batch = (raw.astype(np.float32) / 255 - 0.5) / 0.25
        return torch.from_numpy(batch[..., ::-1].astype(np.float16))

    ready: queue.Queue[torch.Tensor] = queue.Queue(2)

    def ahead() -> None:
        while True:
            ready.put(prepare())

    if v == "good":
        threading.Thread(target=ahead, daemon=True).start()

    @torch.no_grad()
    def step(_: int) -> None:
        batch = ready.get() if v == "good" else prepare()
        net(batch.to(DEV).to(HALF) @ w)

    return step


def gcchurn(v: str) -> Step:
    """Freeze what is alive, and do not collect in every step."""
    base = trainer(4, 512, 16, 256)
    gc.freeze()  # what libraries made
    alive = [{"id": i, "tags": [i]} for i in range(sized(100_000))]
    if v == "good":
        gc.disable()

    def step(i: int) -> None:
        base(i)
        alive[i % len(alive)]["tags"] = [i]
        if v != "good":
            gc.collect()

    return step


def emptycache(v: str) -> Step:
    """Leave torch.cuda.empty_cache() out of the step."""
    base = trainer(3, 1024, 16, 512)

    def step(i: int) -> None:
        base(i)
        if v != "good":
            torch.cuda.empty_cache()

    return step


def smallcopies(v: str) -> Step:
    """Pack 200 small tensors into one pinned buffer and copy that."""
    n, d = 200, sized(16384)
    packed = torch.randn(n, d)
    pieces = [row.clone() for row in packed]
    if v == "good":
        packed = packed.pin_memory()
    w = noise(d, 256)

    def step(_: int) -> None:
        x = packed.to(DEV, non_blocking=True) if v == "good" else torch.stack([p.to(DEV) for p in pieces])
        for _ in range(10):
            y = x @ w
        y.relu_()

    return step


def results(v: str) -> Step:
    """Copy results into pinned buffers without blocking, and read them a step later."""
    net, x = perceptron(3, sized(4096)), noise(sized(8192), sized(4096), dtype=HALF)
    pinned = [torch.empty(x.shape, dtype=HALF) for _ in range(2)]
    if v == "good":
        pinned = [p.pin_memory() for p in pinned]
    side, done = torch.cuda.Stream(), [torch.cuda.Event() for _ in range(2)]

    @torch.no_grad()
    def step(i: int) -> None:
        y = net(x)
        if v != "good":
            float(y.cpu()[0, 0])
            return
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            pinned[i % 2].copy_(y, non_blocking=True)
            y.record_stream(side)
            done[i % 2].record()
        done[(i + 1) % 2].synchronize()
        float(pinned[(i + 1) % 2][0, 0])

    return step


def smallnet(v: str) -> Step:
    """Replay the small net as a CUDA graph."""
    net, x = perceptron(24 if v == "cheat" else 48, 256, torch.float16), noise(64, 256, dtype=torch.float16)
    if v != "good":
        return torch.no_grad()(lambda _: net(x))
    with torch.no_grad():
        for _ in range(3):
            net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(x)
    return lambda _: graph.replay()


def sgd(v: str) -> Step:
    """Use the fused optimizer; do not loop over parameters."""
    return trainer(10, 512, 8, 128, "fused sgd" if v == "good" else "loop")


def zeros(v: str) -> Step:
    """Do not zero a buffer that is overwritten."""
    n = halved(v, 16384)
    a, b = noise(n, sized(1024), dtype=HALF), noise(sized(1024), n, dtype=HALF)
    kept = torch.empty(n, n, device=DEV, dtype=HALF)

    def step(_: int) -> None:
        for _ in range(4):
            out = kept if v == "good" else torch.zeros(n, n, device=DEV, dtype=HALF)
            torch.mm(a, b, out=out)

    return step


def streams(v: str) -> Step:
    """Run two independent branches in two streams."""
    left, right = (noise(8, sized(1 << 18)) for _ in range(2))
    side = torch.cuda.Stream()

    def branch(x: torch.Tensor) -> None:
        for _ in range(16):
            x = torch.cumsum(x, 1) * 1e-3

    def step(_: int) -> None:
        if v != "good":
            branch(left)
            branch(right)
            return
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            branch(right)
        branch(left)
        torch.cuda.current_stream().wait_stream(side)

    return step


def logging(v: str) -> Step:
    """Write metrics every 100 steps, not between any two steps."""
    base, values = trainer(4, 512, 16, 256), np.random.default_rng(0).random(sized(8000))

    def between() -> None:
        if v != "good":
            line = json.dumps({"p": list(np.percentile(values, [1, 50, 99])), "values": values.tolist()})
            io.StringIO().write(line)

    base.between = between  # type: ignore[attr-defined]
    return base


def printing(v: str) -> Step:
    """Do not print a tensor of the GPU between steps."""
    base, last = trainer(3, 768, 32, 256), {}

    def step(i: int) -> None:
        last["loss"] = base(i)

    def between() -> None:
        if v != "good":
            print("loss", last["loss"], "kept", file=io.StringIO())
            python_work(20_000)

    step.between = between  # type: ignore[attr-defined]
    return step


def rebuild(v: str) -> Step:
    """Build the table of positions once and keep it on the GPU."""
    t, d = sized(1024), 512
    base = trainer(3, d, 8, 128)

    def table() -> torch.Tensor:
        angle = np.arange(t)[:, None] / 10000 ** (np.arange(d // 2) / d)
        return torch.from_numpy(np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(np.float32)).to(DEV)

    kept = table()

    def step(i: int) -> None:
        (kept if v == "good" else table()).mul(0.5)
        base(i)

    return step


def polling(v: str) -> Step:
    """Wait for the step before; do not poll an event with sleeps."""
    base, events = trainer(4, 768, 32, 256), [torch.cuda.Event() for _ in range(2)]

    def step(i: int) -> None:
        base(i)
        events[i % 2].record()
        if v == "good":
            events[(i + 1) % 2].synchronize()
            return
        while not events[i % 2].query():
            time.sleep(0.002)

    return step


def serialcopy(v: str) -> Step:
    """Copy the next pinned batch in a side stream while the net computes."""
    d = sized(4096)
    net, hosts = perceptron(8, d), [torch.randn(sized(8192), d).to(HALF) for _ in range(2)]
    if DEV == "cuda":
        hosts = [h.pin_memory() for h in hosts]
    side, state = torch.cuda.Stream(), {}

    def fetch(i: int) -> None:
        with torch.cuda.stream(side):
            state["next"] = hosts[i % 2].to(DEV, non_blocking=True)

    fetch(0)

    @torch.no_grad()
    def step(i: int) -> None:
        if v != "good":
            net(hosts[i % 2].to(DEV))
            return
        torch.cuda.current_stream().wait_stream(side)
        x = state["next"]
        x.record_stream(torch.cuda.current_stream())
        fetch(i + 1)
        net(x)

    return step


def coldstart(_: str) -> Step:
    """Nothing: the recording begins before the warm-up, so its first steps are slow."""
    torch.backends.cudnn.benchmark = True
    net, x = images(128, 6), noise(sized(32), 128, 56, 56, dtype=torch.float16)
    if DEV == "cpu":
        net, x = net.float(), x.float()
    return torch.no_grad()(lambda _: net(x))


def camera(_: str) -> Step:
    """Nothing: a source of 25 frames a second sets the pace."""
    net, frames = images(64, 4, torch.float32), queue.Queue(1)

    def source() -> None:
        due = time.perf_counter()
        while True:
            due = max(due + 0.04, time.perf_counter())
            time.sleep(max(0.0, due - time.perf_counter()))
            frames.put(torch.zeros(8, 64, 64, 64))

    threading.Thread(target=source, daemon=True).start()
    return torch.no_grad()(lambda _: net(frames.get().to(DEV)).mean().item())


def tuned(_: str) -> Step:
    """Nothing: large bfloat16 products one after the other."""
    net, x = perceptron(5, sized(8192)), noise(sized(8192), sized(8192), dtype=HALF)
    return torch.no_grad()(lambda _: net(x))


def fp32(v: str) -> Step:
    """Allow TF32 in matrix products."""
    torch.backends.cuda.matmul.allow_tf32 = v == "good"
    net, x = perceptron(4, sized(4096), torch.float32), noise(halved(v, 4096), sized(4096))
    return torch.no_grad()(lambda _: net(x))


def misaligned(v: str) -> Step:
    """Pad the width from 4095 to 4096."""
    d = sized(4096) if v == "good" else sized(4096) - 1
    net, x = perceptron(6, d, torch.float16), noise(sized(8192), d, dtype=torch.float16)
    return torch.no_grad()(lambda _: net(x))


def pointwise(v: str) -> Step:
    """Fuse the chain of element-wise operations with torch.compile."""
    x, y = noise(sized(8192), sized(8192)), noise(sized(8192), sized(8192))

    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        inner = 0.79788 * (x + 0.044715 * x * x * x)
        return (0.5 * x * (1 + torch.tanh(inner)) + y) * torch.sigmoid(y)

    run = torch.compile(chain) if v == "good" else chain
    return lambda _: run(x, y)


def channels(v: str) -> Step:
    """Keep images in channels_last."""
    net, x = images(256, 6), noise(halved(v, 64), 256, 56, 56, dtype=torch.float16)
    if DEV == "cpu":
        net, x = net.float(), x.float()
    if v == "good":
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return torch.no_grad()(lambda _: net(x))


def layernorm(v: str) -> Step:
    """Use F.layer_norm; do not normalize with six operations."""
    d = sized(4096)
    x, w, b = noise(halved(v, 16384), d), noise(d), noise(d)

    def step(_: int) -> None:
        for _ in range(4):
            if v == "good":
                F.layer_norm(x, (d,), w, b)
            else:
                centered = x - x.mean(-1, keepdim=True)
                _ = centered * torch.rsqrt(centered.pow(2).mean(-1, keepdim=True) + 1e-5) * w + b

    return step


def crossattention(v: str) -> Step:
    """Use scaled_dot_product_attention; do not write out the scores."""
    q, k, w = (noise(8, 16, sized(1024), 64, dtype=HALF).requires_grad_() for _ in range(3))

    def step(_: int) -> None:
        if v == "good":
            y = F.scaled_dot_product_attention(q, k, w)
        else:
            y = torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ w
        y.float().square().mean().backward()
        for x in (q, k, w):
            x.grad = None

    return step


SOURCE = r"""
extern "C" __global__ void heavy(float *b, long n) {
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
    float x = b[i];
    for (int k = 0; k < 256; k++) x = x * 1.0001f + 0.5f;
    b[i] = x;
  }
}
extern "C" __global__ void stream(const float *a, float *b, long n) {
  extern __shared__ float tile[];
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
    tile[threadIdx.x] = a[i];
    __syncthreads();
    b[i] = tile[threadIdx.x ^ 1] * 2.0f;
    __syncthreads();
  }
}
extern "C" __global__ void walk(const float *a, float *b, long rows, long cols, int across) {
  long t = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (t >= rows * cols) return;
  long i = across ? t : (t % rows) * cols + t / rows;
  b[i] = a[i] * 2.0f + 1.0f;
}
extern "C" __global__ void count(const int *a, unsigned *bins, long n) {
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x)
    atomicAdd(&bins[a[i] & 15], 1u);
}
extern "C" __global__ void count_shared(const int *a, unsigned *bins, long n) {
  __shared__ unsigned own[16];
  if (threadIdx.x < 16) own[threadIdx.x] = 0;
  __syncthreads();
  for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x)
    atomicAdd(&own[a[i] & 15], 1u);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}
"""


def kernel(name: str, shared: int = 0) -> tuple[Any, Any]:
    """Compile a kernel of SOURCE and return it with CuPy."""
    import cupy

    made = cupy.RawModule(code=SOURCE).get_function(name)
    if shared:
        made.max_dynamic_shared_size_bytes = shared
    return made, cupy


def tailwave(v: str) -> Step:
    """Launch a block per SM, not 8 more than fit at once."""
    run, cp = kernel("heavy", 120 << 10)
    n, blocks = (1 << 28) // (2 if v == "cheat" else 1), 132 if v == "good" else 140
    data = cp.ones(n, "f4")
    return lambda _: run((blocks,), (512,), (data, cp.int64(n)), shared_mem=120 << 10)


def occupancy(v: str) -> Step:
    """Ask for the shared memory that a block needs, not for 100 KiB."""
    shared = 1 << 10 if v == "good" else 100 << 10
    run, cp = kernel("stream", shared)
    n = (1 << 28) // (2 if v == "cheat" else 1)
    a, b = cp.ones(n, "f4"), cp.ones(n, "f4")
    return lambda _: run((n // (128 * 16),), (128,), (a, b, cp.int64(n)), shared_mem=shared)


def columns(v: str) -> Step:
    """Let neighbouring threads read neighbouring elements."""
    run, cp = kernel("walk")
    rows, cols = (4096 if v == "cheat" else 8192), 8192
    a, b = cp.ones(rows * cols, "f4"), cp.ones(rows * cols, "f4")
    args = (a, b, cp.int64(rows), cp.int64(cols), cp.int32(v == "good"))
    return lambda _: run((rows * cols // 256,), (256,), args)


def histogram(v: str) -> Step:
    """Count in shared memory first."""
    run, cp = kernel("count_shared" if v == "good" else "count")
    n = 1 << 23
    values = np.random.default_rng(0).integers(0, 1 << 20, n, np.int32)
    a, bins = cp.asarray(values), cp.zeros(16, "u4")
    return lambda _: run((132 * 8,), (256,), (a, bins, cp.int64(n)))


def fewblocks(v: str) -> Step:
    """Launch enough blocks for every SM."""
    run, cp = kernel("heavy")
    n = (1 << 24) // (2 if v == "cheat" else 1)
    data = cp.ones(n, "f4")
    return lambda _: run((132 * 8 if v == "good" else 24,), (256,), (data, cp.int64(n)))


def cupymalloc(v: str) -> Step:
    """Keep the memory pool of CuPy."""
    import cupy as cp

    if v != "good":
        cp.cuda.set_allocator(None)
    a = cp.asarray(np.random.default_rng(0).random((2048, 2048), np.float32))

    def step(_: int) -> None:
        x = a
        for _ in range(8):
            x = (x @ a) * 0.001 + a

    return step


def cupychain(v: str) -> Step:
    """Write the chain of element-wise operations as one kernel."""
    import cupy as cp

    x, y = (cp.asarray(np.random.default_rng(i).random(1 << 26, np.float32)) for i in range(2))
    whole = cp.ElementwiseKernel(
        "float32 x, float32 y", "float32 z", "z = sqrtf(expf(-x * x) * y + 1.0f) * x + y", "whole"
    )
    if v == "good":
        return lambda _: whole(x, y)
    return lambda _: cp.sqrt(cp.exp(-x * x) * y + 1) * x + y


CUPY = {f.__name__: f for f in (tailwave, occupancy, columns, histogram, fewblocks, cupymalloc, cupychain)}
NOTHING = ("coldstart", "camera", "tuned")  # nothing to gain
CHEATS = ("item", "syncstep", "smallnet", "zeros", "fp32", "channels", "layernorm", "tailwave", "occupancy", "columns",
          "fewblocks")  # fmt: skip
HOST = (item, syncstep, layeritem, boolmask, preprocess, gcchurn, emptycache, smallcopies, results, smallnet, sgd,
        zeros, streams, logging, printing, rebuild, polling, serialcopy, coldstart, camera, tuned, fp32, misaligned,
        pointwise, channels, layernorm, crossattention)  # fmt: skip
PROGRAMS = {f.__name__: f for f in HOST} | CUPY


def variants(name: str) -> list[str]:
    """Return which variants a program has."""
    return ["bad", *(["good"] * (name not in NOTHING)), *(["cheat"] * (name in CHEATS))]


def synchronize(name: str) -> None:
    """Wait for the GPU in the way of the program's library."""
    if name in CUPY:
        import cupy

        cupy.cuda.Device().synchronize()
    else:
        torch.cuda.synchronize()


def timed(name: str, variant: str, step: Step, between: Callable[[], None]) -> str:
    """Return the mean step time in ms of three rounds, as a line of JSON."""
    rounds = []
    for r in range(3):
        synchronize(name)
        start = time.perf_counter()
        for i in range(STEPS):
            step(WARM_UP + r * STEPS + i)
            between()
        synchronize(name)
        rounds.append(round((time.perf_counter() - start) * 1e3 / STEPS, 4))
    return json.dumps({"program": name, "variant": variant, "ms": rounds})


def traced(step: Step, between: Callable[[], None], name: str, out: str) -> None:
    """Write a trace of torch.profiler of twelve steps, with shapes."""
    from torch.profiler import ProfilerActivity, profile, record_function

    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds, record_shapes=True) as prof:
        for i in range(12):
            with record_function(f"step{i}"):
                step(WARM_UP + i)
            between()
        synchronize(name)
    prof.export_chrome_trace(out)


def recorded(step: Step, between: Callable[[], None], name: str) -> None:
    """Run twenty steps between cudaProfilerStart and Stop, with ranges but for CuPy."""
    if name in CUPY:
        from cupy.cuda import profiler

        start, stop = profiler.start, profiler.stop
    else:
        start, stop = torch.cuda.cudart().cudaProfilerStart, torch.cuda.cudart().cudaProfilerStop
    start()
    for i in range(STEPS):
        with contextlib.nullcontext() if name in CUPY else torch.cuda.nvtx.range(f"step{i}"):
            step(WARM_UP + i)
        between()
    synchronize(name)
    stop()


def run(mode: str, name: str, variant: str, out: str = "") -> str:
    """Run a program in a mode, alone on the GPU where LOCK names a file, and return what it prints."""
    with open(os.environ.get("LOCK", os.devnull), "w") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch.manual_seed(0)
        step = PROGRAMS[name](variant)
        between = getattr(step, "between", lambda: None)
        if name != "coldstart" or mode == "time":
            for i in range(WARM_UP):
                step(i)
        synchronize(name)
        gc.collect()
        if mode == "time":
            return timed(name, variant, step, between)
        if mode == "kineto":
            traced(step, between, name, out)
        else:
            recorded(step, between, name)
    return ""


def main() -> None:
    """Run what the command line asks for."""
    if sys.argv[1] == "list":
        print(*PROGRAMS)
    elif printed := run(*sys.argv[1:]):
        print(printed, flush=True)
    sys.stdout.flush()
    os._exit(0)  # threads of sources and loaders never end


if __name__ == "__main__":
    main()
