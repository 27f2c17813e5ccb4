"""A made-up data-parallel training job: what each rank calls, launches and annotates, and when.

`Step` lists what one training step does, in issue order. `run_rank` plays it as many times as it takes to
launch a given number of kernels, and gives every event its times. All follows from the generators passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from nsysprof.core.arrays import Array, Floats, Ints

Columns: TypeAlias = dict[str, Array]

# what an action of the step is
PUSH, POP, KERNEL, GRAPH, MEMCPY, MEMSET, API = range(7)
# which thread of the rank does it
MAIN, AUTOGRAD, LOADER = range(3)
# which stream the work goes to
COMPUTE, TO_DEVICE, COLLECTIVE = range(3)

GRAPH_NODES = 12  # kernels that one launch of a CUDA graph starts
KERNELS = 320  # different kernels of the job
NCCL_DOMAIN = 2

HOST_CALLS = [
    "cudaEventRecord_v3020",
    "cudaStreamWaitEvent_v3020",
    "cudaStreamIsCapturing_v10000",
    "cudaEventQuery_v3020",
    "cudaFuncGetAttributes_v3020",
    "cudaStreamSynchronize_v3020",
]
RECORD, CAPTURING, SYNCHRONIZE = 0, 2, 5  # those that the step calls by name

BACKWARD_PARTS = (
    ("mlp.fc2", 3, 1),
    ("mlp.act", 3, 0),
    ("mlp.fc1", 4, 1),
    ("post_norm", 3, 0),
    ("attention.proj", 3, 0),
    ("attention.core", 5, 1),
    ("attention.rope", 5, 0),
    ("attention.qkv", 4, 1),
    ("input_norm", 3, 0),
)


class Name(NamedTuple):
    """The name of a range: its text, whether it is a registered string, and its domain."""

    text: str
    registered: bool
    domain: int


class Action(NamedTuple):
    """One thing a thread does; by `kind`, `what` is a name, a site, a kind of copy or a host call."""

    kind: int
    thread: int
    what: int
    stream: int


class Site(NamedTuple):
    """A place that launches a kernel: which one, and how long it takes on average (ns)."""

    kernel: int
    mean: float


class Step:
    """One training step of one rank.

    The main and the autograd thread take turns, so they share one list and one clock; the data loader runs
    beside them on its own.
    """

    def __init__(self, layers: int, rng: np.random.Generator, graphs: bool = False) -> None:
        self.actions: list[Action] = []
        self.loader: list[Action] = []
        self.names: list[Name] = []
        self.sites: list[Site] = []
        self._name_ids: dict[Name, int] = {}
        self._rng = rng
        self._graphs = graphs
        self._since_call = 0
        self.step_name = self.name("step")  # every instance gets its number
        self._push(MAIN, "step")
        self._forward(layers)
        self._backward(layers)
        self._optimizer(layers)
        self.actions.append(Action(MEMCPY, MAIN, 2, COMPUTE))  # loss.item()
        self._call(SYNCHRONIZE)
        self._pop(MAIN)
        self._kernels(MAIN, 3)  # outside every range
        self._load(max(4, layers // 2))

    def name(self, text: str, registered: bool = False, domain: int = 0) -> int:
        """The number of a range name, a new one where it is new."""
        key = Name(text, registered, domain)
        if key not in self._name_ids:
            self._name_ids[key] = len(self.names)
            self.names.append(key)
        return self._name_ids[key]

    def kernels_per_step(self) -> int:
        """Kernels that one whole step launches."""
        return sum({KERNEL: 1, GRAPH: GRAPH_NODES}.get(action.kind, 0) for action in self.actions)

    def _push(self, thread: int, text: str, registered: bool = False, domain: int = 0) -> None:
        self.actions.append(Action(PUSH, thread, self.name(text, registered, domain), 0))

    def _pop(self, thread: int) -> None:
        self.actions.append(Action(POP, thread, 0, 0))

    def _call(self, which: int) -> None:
        self.actions.append(Action(API, MAIN, which, 0))

    def _short_mean(self) -> float:
        return self._rng.uniform(1.2e3, 4e3)

    def _site(self, heavy: bool) -> int:
        mean = self._rng.uniform(15e3, 60e3) if heavy else self._short_mean()
        self.sites.append(Site(int(self._rng.integers(0, KERNELS)), mean))
        return len(self.sites) - 1

    def _kernels(self, thread: int, count: int, heavy: int = 0, stream: int = COMPUTE) -> None:
        """Launch kernels, the first `heavy` of them long; every seventh is followed by some other call."""
        for i in range(count):
            self.actions.append(Action(KERNEL, thread, self._site(i < heavy), stream))
            self._since_call += 1
            if self._since_call >= 7:
                self._since_call = 0
                self.actions.append(Action(API, thread, int(self._rng.integers(0, 5)), 0))

    def _graph(self) -> None:
        """Launch a CUDA graph: one call whose kernels share its correlation id."""
        self.actions.append(Action(GRAPH, MAIN, len(self.sites), COMPUTE))
        for _ in range(GRAPH_NODES):
            kernel = int(self._rng.integers(0, KERNELS))
            self.sites.append(Site(kernel, self._short_mean()))

    def _leaf(
        self, thread: int, text: str, count: int, heavy: int = 0, inner: str | None = None, registered: bool = False
    ) -> None:
        """A range with kernels in it, and with `inner` one more range around them."""
        self._push(thread, text, registered)
        if inner:
            self._push(thread, inner, registered)
        self._kernels(thread, count, heavy)
        if inner:
            self._pop(thread)
        self._pop(thread)

    def _forward(self, layers: int) -> None:
        linear = "aten::linear"
        self._push(MAIN, "forward")
        self._leaf(MAIN, "embeddings", 3)
        for i in range(layers):
            layer = f"layers.{i}"
            self._push(MAIN, layer)
            self._leaf(MAIN, f"{layer}.input_norm", 3)
            self._push(MAIN, f"{layer}.attention")
            self._leaf(MAIN, f"{layer}.attention.qkv", 2, heavy=1, inner=linear)
            self._leaf(MAIN, f"{layer}.attention.rope", 5)
            core = "aten::scaled_dot_product_attention"
            self._leaf(MAIN, f"{layer}.attention.core", 3, heavy=1, inner=core)
            self._leaf(MAIN, f"{layer}.attention.proj", 2, inner=linear)
            self._pop(MAIN)
            self._kernels(MAIN, 1)
            self._leaf(MAIN, f"{layer}.post_norm", 3)
            self._push(MAIN, f"{layer}.mlp")
            self._leaf(MAIN, f"{layer}.mlp.fc1", 2, heavy=1, inner=linear)
            self._leaf(MAIN, f"{layer}.mlp.act", 2)
            self._leaf(MAIN, f"{layer}.mlp.fc2", 2, inner=linear)
            self._pop(MAIN)
            self._kernels(MAIN, 2)
            self._pop(MAIN)
        self._leaf(MAIN, "loss", 6, heavy=1)
        self._pop(MAIN)

    def _backward(self, layers: int) -> None:
        self._push(MAIN, "backward")
        for i in reversed(range(layers)):
            layer = f"autograd::engine layers.{i}"
            self._push(AUTOGRAD, layer, registered=True)
            for part, count, heavy in BACKWARD_PARTS:
                inner = "aten::mm" if heavy else None
                self._leaf(AUTOGRAD, f"{layer}.{part}Backward0", count, heavy, inner, registered=True)
            self._push(AUTOGRAD, "ncclAllReduce", registered=True, domain=NCCL_DOMAIN)
            self._kernels(AUTOGRAD, 1, heavy=1, stream=COLLECTIVE)
            self._pop(AUTOGRAD)
            self._pop(AUTOGRAD)
        self._pop(MAIN)

    def _optimizer(self, layers: int) -> None:
        self._push(MAIN, "optimizer")
        self._kernels(MAIN, 2)  # directly in the parent, no leaf of their own
        for i in range(0, layers, 4):
            self._push(MAIN, f"optimizer.bucket.{i // 4}")
            self.actions += [Action(MEMSET, MAIN, 0, COMPUTE)] * 2
            self._leaf(MAIN, "aten::_foreach_mul_", 3)
            self._leaf(MAIN, "aten::_foreach_addcdiv_", 4)
            if self._graphs:
                self._push(MAIN, "optimizer.graph")
                self._graph()
                self._pop(MAIN)
            self._pop(MAIN)
        self._push(MAIN, "grad_norm.empty")  # a range without GPU work
        self._call(RECORD)
        self._pop(MAIN)
        self._pop(MAIN)

    def _load(self, batches: int) -> None:
        for i in range(batches):
            outer, inner = self.name("dataloader.next"), self.name(f"dataloader.to_device.{i % 8}")
            self.loader += [Action(PUSH, LOADER, outer, 0), Action(PUSH, LOADER, inner, 0)]
            self.loader += [Action(MEMCPY, LOADER, 1, TO_DEVICE)] * 3
            self.loader += [Action(POP, LOADER, 0, 0)] * 2


@dataclass(frozen=True)
class Rank:
    """All events of one rank, as columns: ranges (a row per range), calls (host) and work (GPU)."""

    ranges: Columns
    calls: Columns
    work: Columns
    steps: int


def run_rank(wanted: int, step: Step, rng: np.random.Generator, begin: int) -> Rank:
    """Play the step until `wanted` kernels are launched, from `begin` (ns) on."""
    steps = max(1, -(-wanted // step.kernels_per_step()))
    ranges, calls, step_starts = _play(step.actions, steps, rng, begin, None)
    loader_ranges, loader_calls, _ = _play(step.loader, steps, rng, begin, step_starts)
    call = {key: np.concatenate([calls[key], loader_calls[key]]) for key in calls}
    order = np.argsort(call["start"], kind="stable")
    call = {key: values[order] for key, values in call.items()}
    kernels = _cut(call, wanted)
    # every call takes a correlation id, and so do some calls that the report does not hold
    call["correlation"] = (100 + np.cumsum(rng.integers(1, 4, len(order)))).astype(np.int64)
    work = _work(call, kernels, np.array([site.mean for site in step.sites]), rng)
    both = {key: np.concatenate([ranges[key], loader_ranges[key]]) for key in ranges}
    return Rank(both, call, work, steps)


def _pairs(actions: list[Action]) -> Ints:
    """(push, pop) of every range of a list of actions, in order of the push."""
    stacks: dict[int, list[int]] = {}
    pairs = []
    for i, action in enumerate(actions):
        if action.kind == PUSH:
            stacks.setdefault(action.thread, []).append(i)
        elif action.kind == POP:
            pairs.append((stacks[action.thread].pop(), i))
    return np.array(sorted(pairs), dtype=np.int64)


def _play(
    actions: list[Action], steps: int, rng: np.random.Generator, first: int, step_starts: Floats | None
) -> tuple[Columns, Columns, Floats]:
    """Times for a list of actions, repeated; with `step_starts` each round starts just after its step."""
    table, pairs = np.array(actions, dtype=np.int64), _pairs(actions)
    length = len(table)
    kind = np.tile(table[:, 0], steps)
    is_call = kind >= KERNEL
    # on the CPU each action takes a while, then there is a pause before the next
    busy = np.where(is_call, rng.gamma(3.0, 1300.0, length * steps) + 900.0, 60.0)
    pause = rng.exponential(350.0, length * steps) + 40.0
    if step_starts is None:
        pause[length - 1 :: length] += 40e3  # between steps
        exact = first + np.cumsum(busy + pause) - busy - pause
    else:
        taken = (busy + pause).reshape(steps, length)
        exact = (step_starts[:, None] + 5e3 + np.cumsum(taken, axis=1) - taken).ravel()
    start = exact.astype(np.int64)
    end = start + np.maximum(1, busy.astype(np.int64))

    offset = (np.arange(steps, dtype=np.int64) * length)[:, None]
    ranges: Columns = {
        "start": start[(offset + pairs[None, :, 0]).ravel()],
        "end": end[(offset + pairs[None, :, 1]).ravel()],
        "thread": np.tile(table[pairs[:, 0], 1], steps).astype(np.int8),
        "name": np.tile(table[pairs[:, 0], 2], steps).astype(np.int32),
        "step": np.repeat(np.arange(steps, dtype=np.int32), len(pairs)),
    }
    at = np.flatnonzero(is_call)
    calls: Columns = {"start": start[at], "end": end[at], "kind": kind[at].astype(np.int8)}
    for column, (key, small) in enumerate((("thread", np.int8), ("what", np.int32), ("stream", np.int8)), 1):
        calls[key] = np.tile(table[:, column], steps)[at].astype(small)
    return ranges, calls, exact[::length]


def _cut(call: Columns, wanted: int) -> Ints:
    """How many kernels each call starts; calls past the wanted number become some other call, in place."""
    kernels = np.where(call["kind"] == KERNEL, 1, np.where(call["kind"] == GRAPH, GRAPH_NODES, 0))
    before = np.cumsum(kernels) - kernels
    surplus = (kernels > 0) & (before >= wanted)
    call["kind"][surplus] = API
    call["what"][surplus] = CAPTURING
    return np.minimum(kernels, np.maximum(wanted - before, 0))


def _work(call: Columns, kernels: Ints, means: Floats, rng: np.random.Generator) -> Columns:
    """What the calls start on the GPU: in order within a stream, after the call and a queueing delay."""
    count = np.where((call["kind"] == MEMCPY) | (call["kind"] == MEMSET), 1, kernels)
    launch = np.repeat(np.arange(len(count)), count)
    node = np.arange(len(launch)) - np.repeat(np.cumsum(count) - count, count)
    kind, stream = call["kind"][launch], call["stream"][launch]
    what = call["what"][launch] + node.astype(np.int32)
    exact = np.empty(len(launch))
    is_kernel = (kind == KERNEL) | (kind == GRAPH)
    exact[is_kernel] = means[what[is_kernel]] * rng.lognormal(0.0, 0.12, int(is_kernel.sum()))
    exact[~is_kernel] = rng.gamma(2.0, 1800.0, int((~is_kernel).sum())) + 700.0
    duration = np.maximum(600, exact).astype(np.int64)
    # the device starts 2-6 us after the call began, sometimes before it returned
    ready = call["start"][launch] + rng.integers(2000, 6000, len(launch))
    gap = rng.integers(200, 1200, len(launch))
    start = np.empty(len(launch), dtype=np.int64)
    for which in (COMPUTE, TO_DEVICE, COLLECTIVE):
        at = np.flatnonzero(stream == which)
        start[at] = _queue(ready[at], duration[at] + gap[at])
    correlation = call["correlation"][launch]
    columns = {"start": start, "end": start + duration, "kind": kind, "what": what}
    return columns | {"stream": stream, "correlation": correlation}


def _queue(ready: Ints, cost: Ints) -> Ints:
    """Starts of work in one stream: not before it is ready, nor before what is ahead of it is done."""
    before = np.cumsum(cost) - cost
    return np.maximum.accumulate(ready - before) + before
