"""The programs of the track record: small models whose steps can be changed, each a `Variant` with a name.

A step is an NVTX range `step`, in it `data`, `forward` with `layer0`, `layer1` … and their parts (`norm`, `qkv`,
`attention`, `proj`, `up`, `gelu`, `down`), `head`, `backward`, `optimizer` and `loss`. `Program.run` times steps by
CUDA events, without a GPU by the clock of the host, where all but graphs, spin kernels and side streams run for real.
"""

from __future__ import annotations

import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).parents[2] / "workloads"))

SIZES = {"mlp": (1024, 8, 128), "block": (512, 6, 128), "gpt": (768, 12, 1024)}  # width, layers, length
SMALL = {"mlp": (64, 5, 8), "block": (64, 5, 8), "gpt": (128, 5, 16)}  # without a GPU
BACKENDS = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}  # fmt: skip
HEAD_DIM, WORDS = 64, 50304
AT = 3  # the layer behind which delays come
GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
CORES = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Variant:
    """A program: a model in a mode, and what is special.

    ``backend`` of attention, "" for PyTorch's choice; ``without``: a part that is left out; ``spin_us``: a kernel of
    that length behind layer `AT`, with ``slack`` in a side stream that the end of the layers waits for; ``host_us``:
    the host is busy there. ``item``: each step reads its loss; ``copy``: batches come from the host, ``pinned`` and
    ``prefetch`` as they say; ``load_us``: the host waits that long for each batch, ``threaded`` in another thread.
    """

    model: str
    mode: str
    batch: int
    length: int = 0
    backend: str = ""
    without: str = ""
    spin_us: float = 0
    slack: bool = False
    host_us: float = 0
    load_us: float = 0
    item: bool = False
    copy: bool = False
    pinned: bool = False
    prefetch: bool = False
    threaded: bool = False
    fused: bool = False
    graph: bool = False

    @property
    def name(self) -> str:
        """All that is special, as `gpt-forward-8-item`; the path of its steps is `NAME/step`."""
        words = [self.model, self.mode, str(self.batch)]
        for each in fields(self)[3:]:
            if value := getattr(self, each.name):
                words.append(each.name if value is True else f"{each.name}={value}")
        return "-".join(words)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Width, layers, and length of a sequence."""
        width, layers, length = (SIZES if GPU else SMALL)[self.model]
        return width, layers, (self.length or length) if GPU else length


def named(name: str) -> AbstractContextManager[Any]:
    """An NVTX range, on machines with a GPU."""
    return torch.cuda.nvtx.range(name) if GPU else nullcontext()


def attention_of(backend: str) -> Callable[..., torch.Tensor]:
    """Causal attention: an own kernel of workloads/kernels, or PyTorch's, which `Program.work` tells the backend."""
    if backend.startswith("tiled") and GPU:
        import _tiled

        made: Callable[..., torch.Tensor] = _tiled.prepare(backend, causal=True)
        return made
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] == k.shape[2])


class Block(nn.Module):
    """A transformer block, causal; with a cache it attends to all that is in there."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        width = variant.sizes[0]
        self.heads, self.without = width // HEAD_DIM, variant.without
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.gelu, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.attention = attention_of(variant.backend)
        self.cache: tuple[torch.Tensor, torch.Tensor] | None = None

    def part(self, name: str, work: Callable[[], Any], instead: Callable[[], Any]) -> Any:
        """Run a part in its range, or what stands for it where it is left out."""
        if name == self.without:
            return instead()
        with named(name):
            return work()

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Attention and MLP, each added to what came in; ``place`` is where the cache takes new keys."""
        batch, length, width = x.shape

        def heads(t: torch.Tensor) -> torch.Tensor:
            return t.view(batch, length, self.heads, -1).transpose(1, 2)

        def project() -> list[torch.Tensor]:
            new = [heads(t).contiguous() for t in self.qkv(h).split(width, dim=2)]
            if self.cache is not None:
                for kept, each in zip(self.cache, new[1:], strict=True):
                    kept.index_copy_(2, place, each)
                new[1:] = self.cache
            return new

        h = self.part("norm", lambda: self.norm1(x), lambda: x)
        q, k, v = self.part("qkv", project, lambda: [heads(h)] * 3)
        mixed = self.part("attention", lambda: self.attention(q, k, v), lambda: heads(h))
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        x = x + self.part("proj", lambda: self.proj(mixed), lambda: mixed)
        h = self.part("norm", lambda: self.norm2(x), lambda: x)
        h = self.part("up", lambda: self.up(h), lambda: h)
        h = self.part("gelu", lambda: self.gelu(h), lambda: h)
        added: torch.Tensor = self.part("down", lambda: self.down(h), lambda: h[..., :width])
        return x + added


class Model(nn.Module):
    """The layers of a variant, of a GPT with embedding and head."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.variant = variant
        width, layers, _ = variant.sizes
        self.words = WORDS if GPU else 100
        if variant.model == "mlp":
            made: list[nn.Module] = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
        else:
            made = [Block(variant) for _ in range(layers)]
        self.layers = nn.ModuleList(made)
        self.embed = nn.Embedding(self.words, width) if variant.model == "gpt" else None
        self.head = nn.Linear(width, self.words, bias=False) if variant.model == "gpt" else None
        self.side = torch.cuda.Stream() if GPU else None

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """All layers, with the delays that were asked for behind one of them."""
        variant = self.variant
        if self.embed is not None:
            with named("embed"):
                x = self.embed(x)
        for number, layer in enumerate(self.layers):
            with named(f"layer{number}"):
                x = layer(x, place) if isinstance(layer, Block) else layer(x)
            if number == AT and variant.spin_us and self.side and variant.without != "side":
                if variant.slack:
                    self.side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.side) if variant.slack else nullcontext():
                    spin(variant.spin_us)
            if number == AT and variant.host_us:
                busy(variant.host_us)
        if variant.slack and self.side:
            torch.cuda.current_stream().wait_stream(self.side)
        if self.head is not None and variant.without != "head":
            with named("head"):
                x = self.head(x)
        return x


_CYCLES = [1_000.0]  # of `torch.cuda._sleep` in a microsecond; `calibrate` measures it


def spin(us: float) -> None:
    """A kernel of one thread that runs for so long and does nothing."""
    torch.cuda._sleep(int(us * _CYCLES[0]))  # type: ignore[attr-defined]


def calibrate() -> None:
    """Find how many cycles a spin kernel needs for a microsecond."""
    if not GPU:
        return
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        begin.record()
        torch.cuda._sleep(10_000_000)  # type: ignore[attr-defined]
        end.record()
        end.synchronize()
    _CYCLES[0] = 10_000_000 / (begin.elapsed_time(end) * 1e3)


def move_to_quick_cores(count: int = 2) -> float:
    """Move all threads to the cores that are fastest right now, and return how long a short loop takes there, in µs.

    Cores of a virtual machine run at half their speed while others use the same ones, for a part of a second or more.
    """
    quick = sorted((min(probe(core), probe(core)), core) for core in CORES)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), {core for _, core in quick[:count]})
    return quick[0][0]


def probe(core: int | None = None) -> float:
    """How long a short loop takes, on some core or where this thread is, in µs."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    begin = time.perf_counter_ns()
    sum(number * number for number in range(3_000))
    return (time.perf_counter_ns() - begin) / 1e3


def busy(us: float) -> None:
    """Keep the host busy for so long."""
    end = time.perf_counter_ns() + int(us * 1e3)
    while time.perf_counter_ns() < end:
        pass


class Program:
    """A variant that runs: layers, optimizer and batches; `step` is one step.

    ``name`` is that of the range around its steps; ``reduce`` what comes between backward and optimizer.
    """

    def __init__(self, variant: Variant, name: str = "", reduce: Callable[[], None] | None = None) -> None:
        self.variant, self.name, self.reduce = variant, name or variant.name, reduce
        torch.manual_seed(0)
        own = variant.backend.startswith("tiled")
        self.dtype = torch.float32 if not GPU else torch.float16 if variant.backend or own else torch.bfloat16
        with torch.device(DEVICE):
            self.model = Model(variant).to(self.dtype)
            self.place = torch.tensor([variant.sizes[2] - 1])
            if variant.mode == "decode":
                width, _, length = variant.sizes
                shape = (variant.batch, width // HEAD_DIM, length, HEAD_DIM)
                for layer in self.model.layers:
                    if isinstance(layer, Block):
                        layer.cache = (torch.randn(shape, dtype=self.dtype), torch.randn(shape, dtype=self.dtype))
        self.optimizer = None
        if variant.mode == "train":
            self.optimizer = torch.optim.AdamW(
                self.model.parameters(), 1e-5, capturable=GPU, fused=(variant.fused and GPU) or None
            )
        self.stopped = threading.Event()
        self.loader = self.loaded()
        self.static = next(self.loader)
        self.work = self.captured() if variant.graph and GPU else self.eager

    def batch(self) -> torch.Tensor:
        """A batch of inputs on the host."""
        variant = self.variant
        width, _, length = variant.sizes
        length = 1 if variant.mode == "decode" else length
        if variant.model == "gpt":
            return torch.randint(0, self.model.words, (variant.batch, length))
        if variant.model == "mlp":
            return torch.randn((variant.batch * length, width), dtype=self.dtype)
        return torch.randn((variant.batch, length, width), dtype=self.dtype)

    def loaded(self) -> Iterator[torch.Tensor]:
        """Batches on the device: from memory that is there, or copied or waited for each time, or ahead of use."""
        variant = self.variant
        host = self.batch()
        pinned = variant.pinned and GPU
        host = host.pin_memory() if pinned else host
        ahead = host.to(DEVICE)
        if variant.threaded:
            shelf: queue.Queue[None] = queue.Queue(4)
            threading.Thread(target=self.keep_full, args=(shelf,), daemon=True).start()
        while True:
            if variant.load_us:
                if variant.threaded:
                    shelf.get()
                else:
                    time.sleep(variant.load_us / 1e6)
            if not variant.copy:
                yield ahead
            elif variant.prefetch and self.model.side:
                torch.cuda.current_stream().wait_stream(self.model.side)
                ready = ahead
                ready.record_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.model.side):
                    ahead = host.to(DEVICE, non_blocking=True)
                yield ready
            else:
                yield host.to(DEVICE, non_blocking=pinned)

    def keep_full(self, shelf: queue.Queue[None]) -> None:
        """Load batches ahead of use, until `stopped`."""
        while not self.stopped.is_set():
            time.sleep(self.variant.load_us / 1e6)
            while not self.stopped.is_set():
                try:
                    shelf.put(None, timeout=0.05)
                    break
                except queue.Full:
                    continue

    def eager(self, x: torch.Tensor) -> torch.Tensor:
        """Forward, and when training backward and the optimizer."""
        training = self.optimizer is not None
        chosen = BACKENDS.get(self.variant.backend) if GPU else None
        with named("forward"), torch.set_grad_enabled(training), sdpa_kernel(chosen) if chosen else nullcontext():
            out = self.model(x, self.place)
            if self.variant.model != "gpt":
                loss = out.float().pow(2).mean()
            elif training:
                loss = cross_entropy(out.flatten(0, 1), x.flatten())
            else:
                loss = out[:, -1].argmax(dim=-1)
        if self.optimizer is not None:
            with named("backward"):
                loss.backward()
            if self.reduce is not None:
                with named("reduce"):
                    self.reduce()
            with named("optimizer"):
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
        if self.variant.mode == "decode":
            x.copy_(loss[:, None])
        return loss

    def captured(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The work as a CUDA graph, after a warm-up on a side stream."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.eager(self.static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.eager(self.static)

        def replay(_: torch.Tensor) -> torch.Tensor:
            graph.replay()
            return loss

        return replay

    def step(self) -> None:
        """One step."""
        with named("step"):
            with named("data"):
                x = next(self.loader)
            loss = self.work(x)
            if self.variant.item:
                with named("loss"):
                    loss.flatten()[0].item()

    def run(self, steps: int, untimed: int) -> list[int]:
        """Run steps and return the ns of each that is timed, from its begin to that of the next."""
        with named("warm-up"):
            for _ in range(untimed):
                self.step()
        with named(self.name):
            marks = [self.mark()]
            for _ in range(steps):
                self.step()
                marks.append(self.mark())
            if not GPU:
                return [b - a for a, b in itertools.pairwise(marks)]
            torch.cuda.synchronize()
        return [round(a.elapsed_time(b) * 1e6) for a, b in itertools.pairwise(marks)]

    def mark(self) -> Any:
        """An event in the stream, or without a GPU the time."""
        if not GPU:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
