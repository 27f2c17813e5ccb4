"""A program on one GPU in the making: what its thread does one thing after the other, as the items of a report."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kit.trace import EventRecord, Item, Kernel, Launch, Memcpy, Memset, OsCall, Overhead, Range, StreamWait

US, MS = 1_000, 1_000_000
CALL = 4 * US  # what a call of CUDA takes
STARTS = 2 * US  # from the return of a launch to the start of what it launched, and from op to op


class Program:
    """Streams run what they are given in order, as soon as they can; ``now`` is the time of the ``thread``."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.now, self.thread, self.ids = 0, 1, 0
        self.free: dict[int, int] = {}  # until when each stream is busy
        self.events: dict[int, int] = {}  # when what an event stands for is done

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A range of the thread."""
        begin, thread = self.now, self.thread
        yield
        self.items.append(Range(name, begin, self.now, thread=thread))

    @contextmanager
    def on(self, thread: int) -> Iterator[None]:
        """What another thread does at the same time."""
        here, now, self.thread = self.thread, self.now, thread
        yield
        self.thread, self.now = here, now

    def code(self, ns: int) -> None:
        """Run code that calls nothing."""
        self.now += ns

    def os(self, name: str, ns: int) -> None:
        """Call the operating system."""
        self.items.append(OsCall(name, self.now, self.now + ns, self.thread))
        self.now += ns

    def call(self, api: str, ns: int = CALL) -> int:
        """Call CUDA; the id of the call."""
        self.ids += 1
        self.items.append(Launch(self.now, self.now + ns, self.ids, self.thread, api=f"{api}_v3020"))
        self.now += ns
        return self.ids

    def launch(self, name: str, ns: int, stream: int = 7, blocks: int = 264, *, late: int = 0, **shape: Any) -> None:
        """Launch a kernel, by default with two blocks for each multiprocessor, that starts ``late`` ns later.

        ``shape`` is what else `Kernel` says.
        """
        id = self.call("cudaLaunchKernel")
        start = self._run(stream, ns, late)
        grid = (blocks, 1, 1)
        self.items.append(Kernel(name, start, start + ns, id, stream=stream, grid=grid, **shape))

    def memset(self, size: int, ns: int, stream: int = 7, *, late: int = 0) -> None:
        """Set memory of the GPU, ``late`` ns later than usual."""
        id = self.call("cudaMemsetAsync")
        start = self._run(stream, ns, late)
        self.items.append(Memset(start, start + ns, id, bytes=size, stream=stream))

    def recorder(self, ns: int) -> None:
        """Let nsys itself work on the thread."""
        self.items.append(Overhead(self.now, self.now + ns, self.thread))
        self.now += ns

    def copy(self, kind: int, size: int, ns: int, stream: int = 7, *, blocks: bool = False, host: int = 1) -> None:
        """Copy between host and GPU; where it ``blocks`` the call ends with the copy, as of pageable memory."""
        begun, id = self.now, self.call("cudaMemcpyAsync")
        start = self._run(stream, ns)
        self.items.append(Memcpy(start, start + ns, id, bytes=size, kind=kind, stream=stream, host=host))
        if blocks:
            self.items[-2] = Launch(begun, start + ns + STARTS, id, self.thread, api="cudaMemcpyAsync_v3020")
            self.now = start + ns + STARTS

    def _run(self, stream: int, ns: int, late: int = 0) -> int:
        start = max(self.now, self.free.get(stream, 0)) + STARTS + late
        self.free[stream] = start + ns
        return start

    def wait(self, api: str = "cudaStreamSynchronize", until: int | None = None) -> None:
        """Wait for all that was launched, or until a moment."""
        until = max(self.free.values()) if until is None else until
        self.call(api, max(until - self.now, 0) + CALL)

    def record(self, stream: int) -> int:
        """Record a new event, whose number comes back."""
        self.ids += 1
        event = self.ids
        self.items.append(EventRecord(stream, self.now, event, thread=self.thread, event=event, sync=event))
        self.events[event] = self.free.get(stream, 0)
        self.now += CALL
        return event

    def stream_waits(self, event: int, stream: int = 7) -> None:
        """Let a stream wait for an event."""
        self.ids += 1
        self.items.append(StreamWait(stream, self.now, self.ids, thread=self.thread, event=event, sync=event))
        self.free[stream] = max(self.free.get(stream, 0), self.events[event])
        self.now += CALL

    def layers(self, count: int = 12, ns: int = 60 * US, code: int = 10 * US) -> None:
        """Launch so many kernels, faster than the GPU runs them."""
        for _ in range(count):
            self.code(code)
            self.launch("gemm", ns)
