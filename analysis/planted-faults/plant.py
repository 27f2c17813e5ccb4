"""Trains a small network with one fault planted in it, clean and at three doses: the truth that a verdict is judged by.

    python analysis/planted-faults/plant.py sleep --times sleep.json

Each dose is a range `FAULT::<name>::<dose>` of 24 ranges `step`, each with `data`, `forward`, `backward`, `optimizer`,
after six steps of warm-up. The GPU needs about twice as long for a clean step as the host, so that small doses on
the host do not show. `--times` writes the mean time of a step of each dose, measured without looking at the GPU
between steps. One GPU; `late_peer`, `one_bucket` and `many_buckets` run under torchrun on two.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import nvtx
import torch
from torch import nn

WIDTH, LAYERS, ROWS = 2048, 12, 16384
STEPS, WARM_UP = 24, 6
Hook = Callable[[], object]


@dataclass
class Plant:
    """Where a fault acts in a step: each hook is called there, inside a range of its own name if it has one."""

    before: Hook | None = None  # at the begin of a step
    data: Callable[[], torch.Tensor] | None = None  # instead of making the batch
    layer: Callable[[torch.Tensor], torch.Tensor] | None = None  # behind each layer
    loss: Callable[[torch.Tensor], object] | None = None  # between forward and backward
    backward: Callable[[torch.Tensor], object] | None = None  # a hook on the gradient of the middle layer
    after: Hook | None = None  # at the end of a step
    around: AbstractContextManager[object] = field(default_factory=nullcontext)  # the whole dose


def busy(ms: float) -> int:
    """Run plain Python for so long."""
    count, end = 0, time.perf_counter_ns() + int(ms * 1e6)
    while time.perf_counter_ns() < end:
        count += 1
    return count


def named(name: str, action: Hook) -> Hook:
    """The action in an NVTX range."""

    def run() -> None:
        with nvtx.annotate(name):
            action()

    return run


# ---- the faults: each is a function of the dose


def sleep(ms: float) -> Plant:
    """The host sleeps while it logs."""
    return Plant(before=named("log", lambda: time.sleep(ms / 1e3)))


def python(ms: float) -> Plant:
    """The host computes in Python."""
    return Plant(before=named("augment", lambda: busy(ms)))


def sync_then_python(ms: float) -> Plant:
    """A synchronization makes every piece of Python after it show."""

    def measure() -> None:
        torch.cuda.synchronize()
        busy(ms)

    return Plant(after=named("measure", measure))


def collect(thousands: float) -> Plant:
    """Garbage collection of so many thousand objects in cycles."""
    kept = [[number] for number in range(int(thousands * 1e3))]

    def run() -> None:
        for one in kept:
            one[:] = [one]
        gc.collect()

    return Plant(before=named("collect", run) if thousands else None)


def item(layers: int) -> Plant:
    """`.item()` behind every so many layers' output: 1 is each layer."""
    seen = iter(range(1 << 60))

    def look(x: torch.Tensor) -> torch.Tensor:
        if layers and next(seen) % layers == 0:
            with nvtx.annotate("look"):
                x.flatten()[0].item()
        return x

    return Plant(layer=look)


def synchronize(times: int) -> Plant:
    """The host waits for the GPU so often in each step."""
    seen = iter(range(1 << 60))

    def wait(x: torch.Tensor) -> torch.Tensor:
        if next(seen) % LAYERS < times:
            torch.cuda.synchronize()
        return x

    return Plant(layer=wait)


def pageable(megabytes: float) -> Plant:
    """The batch comes from pageable memory, with more bytes than it needs."""
    host = torch.randn(max(int(megabytes * 2**20) // 4, 1))

    def copy() -> None:
        host.to("cuda")

    return Plant(before=named("load", copy) if megabytes else None)


def pinned_out(megabytes: float) -> Plant:
    """A checkpoint is copied out in the stream of the computation, from the GPU to pinned memory."""
    count = max(int(megabytes * 2**20) // 4, 1)
    device, host = torch.zeros(count, device="cuda"), torch.empty(count, pin_memory=True)
    return Plant(after=named("checkpoint", lambda: host.copy_(device, non_blocking=True)) if megabytes else None)


def allocate(blocks: int) -> Plant:
    """The cache of the allocator is emptied in each step, and so many blocks of 64 MB are asked for again."""

    def run() -> None:
        torch.cuda.empty_cache()
        parts = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(blocks)]
        parts.clear()

    return Plant(before=named("allocate", run) if blocks else None)


def side_stream(ms: float) -> Plant:
    """A slow kernel of another stream that the forward pass of the next layers has to wait for."""
    stream, cycles = torch.cuda.Stream(), int(ms * 1e-3 * 1.98e9)

    def run() -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(cycles)
        torch.cuda.current_stream().wait_stream(stream)

    return Plant(before=named("side", run) if ms else None)


def hidden_side_stream(ms: float) -> Plant:
    """The same kernel, and nobody waits for it before the step ends: to be blamed for what reaches beyond it only."""
    stream, cycles = torch.cuda.Stream(), int(ms * 1e-3 * 1.98e9)

    def run() -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(cycles)

    return Plant(before=named("side", run) if ms else None)


def legacy_barrier(ms: float) -> Plant:
    """A kernel in the legacy default stream, while the training runs in a blocking stream: each waits for the other."""
    cycles = int(ms * 1e-3 * 1.98e9)
    handle = ctypes.c_void_p()
    runtime = ctypes.CDLL(_runtime())
    assert runtime.cudaStreamCreate(ctypes.byref(handle)) == 0
    stream = torch.cuda.ExternalStream(handle.value or 0)

    def run() -> None:
        with torch.cuda.stream(torch.cuda.default_stream()):
            torch.cuda._sleep(cycles)

    return Plant(before=named("barrier", run) if ms else None, around=torch.cuda.stream(stream))


def tiny_kernels(count: int) -> Plant:
    """So many element-wise kernels on a few numbers behind each layer."""
    small = torch.zeros(32, device="cuda")

    def run(x: torch.Tensor) -> torch.Tensor:
        with nvtx.annotate("tiny"):
            for _ in range(count):
                small.add_(1.0)
        return x

    return Plant(layer=run if count else None)


@contextmanager
def _thread(target: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=target, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def loader(ms: float) -> Plant:
    """A thread needs so long for each batch, and the step takes it from a queue: hidden while the step is slower."""
    batches: queue.Queue[torch.Tensor] = queue.Queue(2)
    host = torch.randn(64, WIDTH).pin_memory()

    def work(stop: threading.Event) -> None:
        while not stop.is_set():
            with nvtx.annotate("decode"):
                time.sleep(ms / 1e3)
            while not stop.is_set():
                try:
                    batches.put(host, timeout=0.05)
                    break
                except queue.Full:
                    continue

    def take() -> torch.Tensor:
        rows = batches.get().to("cuda", non_blocking=True)
        return rows.repeat(ROWS // 64, 1)

    return Plant(data=take, around=_thread(work, "loader"))


def lock(ms: float) -> Plant:
    """Another thread holds the lock that each step needs, for so long at a time."""
    guard, asked = threading.Lock(), threading.Event()

    def hold(stop: threading.Event) -> None:
        while not stop.is_set():
            if asked.wait(0.05):
                asked.clear()
                with guard:
                    held.set()
                    time.sleep(ms / 1e3)

    held = threading.Event()

    def ask() -> None:
        held.clear()
        asked.set()
        held.wait(1)
        with guard:
            pass

    return Plant(before=named("locked", ask) if ms else None, around=_thread(hold, "holder"))


def backward_hook(ms: float) -> Plant:
    """A hook on a gradient takes so long, on autograd's thread."""

    def hook(_: torch.Tensor) -> None:
        with nvtx.annotate("hook"):
            busy(ms)

    return Plant(backward=hook if ms else None)


def late_peer(ms: float) -> Plant:
    """Rank 1 sleeps before each forward pass; every rank waits for it in the all-reduce."""
    late = os.environ.get("RANK") == "1"
    return Plant(before=named("late", lambda: time.sleep(ms / 1e3)) if late and ms else None)


# name -> (the plant, its doses from clean to worst, their unit)
FAULTS: dict[str, tuple[Callable[..., Plant], tuple[float, ...], str]] = {
    "sleep": (sleep, (0, 2, 8, 16), "ms"),
    "python": (python, (0, 2, 8, 16), "ms"),
    "sync_then_python": (sync_then_python, (0, 1, 3, 6), "ms after a synchronization"),
    "collect": (collect, (0, 10, 100, 300), "thousand objects"),
    "item": (item, (0, 12, 3, 1), "layers from one to the next"),
    "synchronize": (synchronize, (0, 1, 4, 12), "times"),
    "pageable": (pageable, (0, 8, 32, 128), "MB"),
    "pinned_out": (pinned_out, (0, 8, 64, 256), "MB"),
    "allocate": (allocate, (0, 1, 8, 32), "blocks"),
    "side_stream": (side_stream, (0, 0.3, 1, 4), "ms"),
    "hidden_side_stream": (hidden_side_stream, (0, 0.3, 1, 2), "ms"),
    "legacy_barrier": (legacy_barrier, (0, 0.3, 1, 4), "ms"),
    "tiny_kernels": (tiny_kernels, (0, 20, 100, 300), "kernels"),
    "loader": (loader, (0, 2, 12, 24), "ms"),
    "lock": (lock, (0, 1, 8, 16), "ms"),
    "backward_hook": (backward_hook, (0, 1, 8, 16), "ms"),
    "late_peer": (late_peer, (0, 2, 8, 16), "ms"),
    "one_bucket": (lambda _: Plant(), (0,), ""),
    "many_buckets": (lambda _: Plant(), (0,), ""),
}
BUCKET_MB = {"one_bucket": 10_000.0, "many_buckets": 20.0}
PEERS = ("late_peer", *BUCKET_MB)


class Net(nn.Module):
    """Layers of one width, and after each whatever the plant does there."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16) for _ in range(LAYERS))
        self.plant = Plant()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows in, rows out."""
        for number, layer in enumerate(self.layers):
            x = nn.functional.gelu(layer(x))
            if self.plant.layer:
                x = self.plant.layer(x)
            if self.plant.backward and number == LAYERS // 2:
                x.register_hook(self.plant.backward)
        return x


def train(net: nn.Module, plant: Plant, optimizer: torch.optim.Optimizer, steps: int, fixed: torch.Tensor) -> None:
    """So many steps, each in its range."""
    for _ in range(steps):
        with nvtx.annotate("step"):
            if plant.before:
                plant.before()
            with nvtx.annotate("data"):
                batch = plant.data().to(torch.bfloat16) if plant.data else fixed
            with nvtx.annotate("forward"):
                loss = net(batch).float().square().mean()
            with nvtx.annotate("backward"):
                loss.backward()
            with nvtx.annotate("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if plant.after:
                plant.after()


def _runtime() -> str:
    """The CUDA runtime that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcudart" in line:
            return line.split()[-1]
    raise SystemExit("no libcudart is loaded")


def main() -> None:
    """Every dose of one fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--times", type=Path, help="where to write the time of a step, as JSON")
    options = parser.parse_args()
    make, doses, unit = FAULTS[options.fault]
    torch.manual_seed(0)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    net: nn.Module = Net().to("cuda")
    inner = net
    if options.fault in PEERS:
        torch.distributed.init_process_group("nccl")
        net = nn.parallel.DistributedDataParallel(
            net, device_ids=[local], bucket_cap_mb=BUCKET_MB.get(options.fault, 25.0)
        )
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    fixed = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    times = {}
    for dose in doses:
        with ExitStack() as stack:
            plant = make(dose)
            stack.enter_context(plant.around)
            inner.plant = plant
            with nvtx.annotate("warm-up"):
                train(net, plant, optimizer, WARM_UP, fixed)
                torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            with nvtx.annotate(f"FAULT::{options.fault}::{dose:g}"):
                train(net, plant, optimizer, STEPS, fixed)
                torch.cuda.synchronize()
            times[f"{dose:g}"] = (time.perf_counter_ns() - begin) / STEPS / 1e6
            inner.plant = Plant()
    rank = os.environ.get("RANK", "0")
    sys.stdout.write(f"{options.fault}: { ({name: round(ms, 3) for name, ms in times.items()}) } ms a step\n")
    if options.times and rank == "0":
        facts = {"fault": options.fault, "unit": unit, "steps": STEPS, "step_ms": times,
                 "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}  # fmt: skip
        options.times.write_text(json.dumps(facts, indent=1) + "\n")
    if options.fault in PEERS:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
