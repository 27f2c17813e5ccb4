"""Reports by chance of programs whose streams wait for one another; one seed is always the same report."""

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.kit.trace import (
    CudaDevice,
    EventRecord,
    Gpu,
    GraphTrace,
    Item,
    Kernel,
    Launch,
    Memcpy,
    Memset,
    OsCall,
    Overhead,
    Range,
    StreamKind,
    StreamWait,
)

KERNELS = ("gemm", "softmax", "void fill<int>(int)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)")
CALLS = ("cudaDeviceSynchronize_v3020", "cudaStreamSynchronize_v3020", "cudaMalloc_v3020", "cudaFree_v3020")
STREAMS = (7, 13, 14, 20, 21)


@dataclass
class _Process:
    """A program in the making: until when each thread, and each (device, stream), is busy."""

    rng: random.Random
    pid: int
    scale: int
    wild: float
    threads: dict[int, int] = field(default_factory=dict)
    busy: dict[tuple[int, int], int] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    next_id: int = 0
    recorded: list[tuple[int, int]] = field(default_factory=list)

    def some(self, longest: int) -> int:
        """A short time, often none."""
        return self.rng.choice([0, 1, 1, 2, self.rng.randint(0, longest)]) * self.scale

    def id(self) -> int:
        """A new correlation id; seldom one that was used."""
        self.next_id += 1
        return self.rng.randint(1, self.next_id) if self.rng.random() < self.wild / 5 else self.next_id

    def act(self, thread: int) -> None:
        """One thing that a thread does."""
        self.threads[thread] += self.some(6)
        way = self.rng.choices(
            (self.launch, self.graph, self.record, self.wait, self.fork, self.call, self.system, self.inside),
            (8, 1, 1, 1, 4, 2, 1, 1),
        )[0]
        way(thread)

    def span(self, thread: int, longest: int = 6) -> tuple[int, int]:
        """When the next call of a thread begins and ends."""
        start = self.threads[thread]
        self.threads[thread] = start + self.some(longest)
        return start, self.threads[thread]

    def runs(self, device: int, stream: int, since: int) -> tuple[int, int]:
        """When an op runs that could start at a moment; seldom at any other time."""
        start = max(since, self.busy.get((device, stream), 0)) + self.some(3)
        if self.rng.random() < self.wild:
            start = max(0, start + self.rng.randint(-20, 20) * self.scale)
        end = start + self.some(20)
        self.busy[device, stream] = max(end, self.busy.get((device, stream), 0))
        return start, end

    def place(self) -> tuple[int, int]:
        """A device and a stream."""
        return self.rng.choice([0, 0, 0, 1]), self.rng.choice(STREAMS[:4])

    def launch(self, thread: int, where_to: tuple[int, int] | None = None) -> None:
        """A kernel, a copy or a memset, with or without its host call."""
        id, (start, end) = self.id(), self.span(thread)
        device, stream = where_to or self.place()
        where: dict[str, Any] = {"process": self.pid, "device": device, "stream": stream}
        kind = self.rng.choices((Kernel, Memcpy, Memset), (8, 3, 1))[0]
        ran = self.runs(device, stream, start if kind is Memcpy else end)
        api = {Kernel: "cudaLaunchKernel_v7000", Memcpy: "cudaMemcpyAsync_v3020", Memset: "cudaMemsetAsync_v3020"}
        if kind is Memcpy and self.rng.random() < 0.3:
            self.threads[thread] = end = max(end, ran[1]) + self.some(2)
            api[Memcpy] = "cudaMemcpy_v3020"
        if self.rng.random() > self.wild / 3:
            self.items.append(Launch(start, end, id, thread, self.pid, api=api[kind]))
        if kind is Kernel:
            self.items.append(Kernel(self.rng.choice(KERNELS), *ran, id, **where))
        elif kind is Memcpy:
            size, way = self.rng.choice([4, 1 << 20]), self.rng.choice([1, 2, 8])
            self.items.append(Memcpy(*ran, id, bytes=size, kind=way, host=id % 2, **where))
        else:
            self.items.append(Memset(*ran, id, **where))

    def graph(self, thread: int) -> None:
        """A CUDA graph, of nodes in several streams or traced whole."""
        id, (start, end) = self.id(), self.span(thread)
        self.items.append(Launch(start, end, id, thread, self.pid, api="cudaGraphLaunch_v10000"))
        device = self.rng.randint(0, 1)
        if self.rng.random() < 0.3:
            stream = self.rng.choice(STREAMS)
            ran = self.runs(device, stream, end)
            self.items.append(GraphTrace(*ran, id, graph=1, process=self.pid, device=device, stream=stream))
            return
        for node in range(self.rng.randint(1, 5)):
            stream = self.rng.choice(STREAMS[:3])
            ran = self.runs(device, stream, end)
            where: dict[str, Any] = {"process": self.pid, "device": device, "stream": stream}
            self.items.append(Kernel(self.rng.choice(KERNELS), *ran, id, graph_node=node + 1, **where))

    def record(self, thread: int) -> None:
        """An event of a stream, perhaps of one on which nothing ever runs."""
        at, _ = self.span(thread, 2)
        device, stream = self.rng.choice([0, 0, 1]), self.rng.choice(STREAMS)
        self.recorded.append((self.rng.randint(1, 4), len(self.recorded) + 1))
        event, sync = self.recorded[-1]
        where = {"process": self.pid, "device": device, "thread": thread, "event": event, "sync": sync}
        self.items.append(EventRecord(stream, at, self.id(), **where))

    def wait(self, thread: int) -> None:
        """A stream waits for an event: recorded, recorded later, in another process, or never."""
        at, _ = self.span(thread, 2)
        event, sync = self.rng.choice([*self.recorded[-3:], (1, 0), (self.rng.randint(1, 4), self.rng.randint(1, 9))])
        device, stream = self.rng.choice([0, 0, 1]), self.rng.choice(STREAMS)
        where = {"process": self.pid, "device": device, "thread": thread, "event": event, "sync": sync}
        self.items.append(StreamWait(stream, at, self.id(), **where))

    def fork(self, thread: int) -> None:
        """A stream waits for what another was given, at times by way of a third, and is given something itself."""
        one, other = self.place(), self.place()
        self.launch(thread, one)
        through = [(self.rng.randint(0, 1), STREAMS[4])] if self.rng.random() < 0.3 else []
        done = self.busy[one]
        for source, target in pairwise([one, *through, other]):
            event, sync = self.rng.randint(1, 4), len(self.recorded) + 1
            self.recorded.append((event, sync))
            at, _ = self.span(thread, 2)
            named: dict[str, Any] = {"process": self.pid, "thread": thread, "event": event, "sync": sync}
            self.items.append(EventRecord(source[1], at, self.id(), device=source[0], **named))
            at, _ = self.span(thread, 2)
            self.items.append(StreamWait(target[1], at, self.id(), device=target[0], **named))
        self.busy[other] = max(self.busy.get(other, 0), done)
        self.threads[thread] += self.scale
        self.launch(thread, other)

    def call(self, thread: int) -> None:
        """A call that waits for the GPU, or one that has nothing to do with it."""
        start, end = self.span(thread)
        api = self.rng.choice(CALLS)
        if "Synchronize" in api:
            self.threads[thread] = end = max(end, *self.busy.values(), 0) if self.busy else end
        self.items.append(Launch(start, end, self.id(), thread, self.pid, api=api))

    def system(self, thread: int) -> None:
        """A call of the operating system, or work of the profiler."""
        start, end = self.span(thread, 15)
        if self.rng.random() < 0.7:
            self.items.append(OsCall(self.rng.choice(["read", "futex", "nanosleep"]), start, end, thread, self.pid))
        else:
            self.items.append(Overhead(start, end, thread, self.pid))

    def inside(self, thread: int) -> None:
        """A call of the operating system inside one of CUDA, or around it."""
        start, end = self.span(thread, 15)
        low, high = sorted(self.rng.randint(start, end) for _ in range(2))
        outer, inner = ((start, end), (low, high)) if self.rng.random() < 0.6 else ((low, high), (start, end))
        self.items.append(Launch(*outer, self.id(), thread, self.pid, api="cudaMalloc_v3020"))
        self.items.append(OsCall("ioctl", *inner, thread, self.pid))


def random_waits(seed: int, many: int = 1, steps: int = 5, acts: int = 6) -> list[Item]:
    """The items of a report: processes and threads that launch into streams of all kinds of two GPUs.

    Steps with ranges inside; work that helpers launch; events that are recorded, waited for and relayed, some in
    vain; graphs; calls of the operating system and work of the profiler; some ops run before they were launched, or
    before what they depend on had ended. ``many``: times as many as up to ``steps``, of up to ``acts`` each.
    """
    rng = random.Random(seed)
    scale, wild = rng.choice([1, 1, 10_000]), rng.choice([0.0, 0.05, 0.3])
    items: list[Item] = []
    for pid in range(1, rng.randint(1, 2) + 1):
        process = _Process(rng, pid, scale, wild, dict.fromkeys(range(1, rng.randint(1, 3) + 1), 0))
        kinds = [StreamKind(stream, rng.choice([1, 1, 2, 3, 0]), pid) for stream in STREAMS]
        items += rng.choice([[], kinds])
        for number in range(rng.randint(1, steps) * many):
            _step(process, number, acts)
        items += process.items
    rng.shuffle(items)
    return items + rng.choice([[], _gpus()])


def _step(process: _Process, number: int, acts: int) -> None:
    """A step of a process: ranges on the first thread, a few things that each thread does, perhaps in turns."""
    rng, begin = process.rng, process.threads[1]
    for part in range(rng.randint(1, 3)):
        start = process.threads[1]
        for thread in rng.sample(sorted(process.threads), rng.randint(1, len(process.threads))):
            process.threads[thread] = max(process.threads[thread], start)
            for _ in range(rng.randint(0, acts)):
                process.act(thread)
        if rng.random() < 0.7:
            process.threads[1] = max(process.threads.values())
        end = process.threads[1] + process.some(3)
        process.items.append(Range(rng.choice(["load", "forward", f"x{part}"]), start, end, 1, process.pid))
        process.threads[1] = end
        if rng.random() < 0.2:
            process.items.append(Range("helper", start, end, max(process.threads), process.pid))
    name = rng.choice([f"step{number}", f"step{number}", "train"])
    process.items.append(Range(name, begin, process.threads[1] + process.some(2), 1, process.pid))
    process.threads[1] += process.some(4)


def _gpus() -> list[Item]:
    """Devices 0 and 1 are GPUs 0 and 1; in process 2 the other way round."""
    return [Gpu(0), Gpu(1), *(CudaDevice(device ^ (pid - 1), device, pid) for pid in (1, 2) for device in (0, 1))]
