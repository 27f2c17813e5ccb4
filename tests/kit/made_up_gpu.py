"""A GPU that only keeps time: it runs what is launched in order, when it was launched, while the CPU goes on.

It takes the place of `torch.cuda` where something is measured, so that a test can say what a launch and a kernel take.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

EVENT_NS, CYCLE_NS = 500, 0.5


class MadeUpGpu:
    """``cpu`` and ``gpu`` are where the two are in time (ns); ``log`` has what was done, in order.

    ``launch_ns`` is what the CPU needs for a launch. ``free_bytes`` is memory, of which ``held_bytes`` is in use.
    ``broken`` makes every synchronization fail.
    """

    def __init__(self) -> None:
        self.cpu = self.gpu = 0.0
        self.launch_ns = 5_000.0
        self.replay_ns = 8_000.0
        self.log: list[str] = []
        self.free_bytes, self.held_bytes = 1 << 30, 0
        self.broken = ""
        self.capturing: list[tuple[float, Callable[[], object]]] | None = None

    def launch(self, name: str, ns: float, work: Callable[[], object] = lambda: None) -> None:
        """Launch a kernel that takes ``ns``, and does something."""
        if self.capturing is not None:
            self.capturing.append((ns, work))
            return
        self._run(name, ns, self.launch_ns)
        work()

    def _run(self, name: str, ns: float, launch_ns: float) -> None:
        self.log.append(name)
        self.cpu += launch_ns
        self.gpu = max(self.gpu, self.cpu) + ns

    def synchronize(self) -> None:
        """Wait for all that was launched."""
        if self.broken:
            raise RuntimeError(self.broken)
        self.log.append("synchronize")
        self.cpu = max(self.cpu, self.gpu)

    def event(self, **_: object) -> Any:
        """A CUDA event."""
        made = SimpleNamespace(at=0.0)

        def record() -> None:
            self.log.append("event")
            self.cpu += EVENT_NS
            made.at = max(self.cpu, self.gpu)

        def wait() -> None:
            self.cpu = max(self.cpu, made.at)

        made.record, made.synchronize = record, wait
        made.query = lambda: made.at <= self.cpu
        made.elapsed_time = lambda end: (end.at - made.at) / 1e6
        return made

    def graph(self) -> Any:
        """A CUDA graph."""
        made = SimpleNamespace(kernels=[])

        def replay() -> None:
            self._run("replay", sum(ns for ns, _ in made.kernels), self.replay_ns)
            for _, work in made.kernels:
                work()

        made.replay = replay
        return made

    @contextmanager
    def capture(self, graph: Any) -> Iterator[None]:
        """What `torch.cuda.graph` is."""
        self.capturing = graph.kernels
        try:
            yield
        except RuntimeError:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture") from None
        finally:
            self.capturing = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of `torch.cuda`."""
        import torch

        stream = SimpleNamespace(wait_stream=lambda other: None)
        flushed = SimpleNamespace(zero_=lambda: self.launch("flush", 40_000))
        places = {
            "Event": self.event,
            "CUDAGraph": self.graph,
            "graph": self.capture,
            "synchronize": self.synchronize,
            "Stream": lambda: stream,
            "current_stream": lambda: stream,
            "stream": lambda stream: nullcontext(),
            "set_stream": lambda stream: None,
            "empty_cache": lambda: self.log.append("empty_cache"),
            "current_device": lambda: 0,
            "get_device_properties": lambda device: SimpleNamespace(
                L2_cache_size=60 << 20, multi_processor_count=132, total_memory=141 << 30, uuid="17-4"
            ),
            "get_device_name": lambda: "made up",
            "get_device_capability": lambda: (9, 0),
            "is_available": lambda: True,
            "_sleep": lambda cycles: self.launch("sleep", cycles * CYCLE_NS),
            "mem_get_info": lambda: (self.free_bytes, self.free_bytes),
            "max_memory_reserved": lambda: self.held_bytes,
            "memory_stats": dict,
            "reset_peak_memory_stats": lambda: None,
        }
        for name, value in places.items():
            monkeypatch.setattr(torch.cuda, name, value)
        real = torch.empty

        def empty(*size: Any, device: Any = None, **how: Any) -> Any:
            if device != "cuda":
                return real(*size, device=device, **how)
            self.log.append(f"buffer of {size[0]}")
            return flushed

        monkeypatch.setattr(torch, "empty", empty)
