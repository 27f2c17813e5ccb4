"""How long one call takes: from an idle device, and on a GPU also without launching it.

Two figures, which answer different questions:

eager   The start event is recorded on a GPU that has nothing to do, and the end event after the call. What the CPU
        needs to launch the first kernel, and every gap in which the GPU waits for the next one, is part of the time, as
        it is in a program that launches its work like that. For short calls this is mostly launching.
graph   One call is captured as a CUDA graph and replayed. The GPU is kept busy until start event, graph and end event
        are all in its queue, which is verified for each replay: what is left is the time of the kernels, and the gaps
        between the nodes of a graph.

Cold: before every single call a buffer of at least twice the L2 cache is overwritten, outside the timed part. A sample
of several calls times each by a pair of events of its own and adds them up, so that every one of them is cold, and
their rounding to the resolution of the events averages out. Warm (`--warm-cache`) is the same without that buffer. The
CPU is timed by its clock around each call, and its caches are left as they are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from _reference import relative_errors

if TYPE_CHECKING:
    from _measure import Step

# For devices that do not tell their size of L2; the largest so far is 126 MiB.
_L2_BYTES = 128 << 20
# How long the GPU is kept busy while a replay is put in its queue, in cycles: 0.1 to 0.2 ms, then longer.
_LEADS = (200_000, 1_000_000, 5_000_000, 25_000_000)
_SIDE_CALLS = 3
# A replay has to come this close to the call: not closer, since a training step moves its weights from call to call.
_SAME = 0.1


class GraphError(RuntimeError):
    """Why there is no graph of a call."""


@dataclass(frozen=True)
class CallClock:
    """Times one call in nanoseconds: of a step, or of a graph (None where there are none).

    ``name`` is what it is measured with, ``cache`` whether the cache is "cold" or "warm" before a call.
    """

    name: str
    cache: str
    eager: Callable[[Step], float]
    replay: Callable[[torch.cuda.CUDAGraph], float] | None


def call_clock(device: str, *, warm_cache: bool) -> CallClock:
    """The clock of this device; on a GPU it holds the buffer that flushes the cache, until it is let go."""
    return _gpu_clock(warm_cache) if device == "cuda" else CallClock("perf_counter", "warm", _cpu_call, None)


def _cpu_call(step: Step) -> float:
    start = time.perf_counter_ns()
    out = step.call()
    lasted = time.perf_counter_ns() - start
    del out  # giving memory back is not the call's time
    step.reset()
    return float(max(lasted, 1))


def _gpu_clock(warm_cache: bool) -> CallClock:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()  # CUDA makes an event when it is first recorded
    end.record()
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    size = 2 * (getattr(device, "L2_cache_size", 0) or _L2_BYTES)
    buffer = None if warm_cache else torch.empty(size, dtype=torch.int8, device="cuda")

    def flush() -> None:
        if buffer is not None:
            buffer.zero_()

    def eager(step: Step) -> float:
        flush()
        torch.cuda.synchronize()
        start.record()
        out = step.call()
        end.record()
        end.synchronize()
        del out
        step.reset()
        return float(start.elapsed_time(end) * 1e6)

    def replay(graph: torch.cuda.CUDAGraph) -> float:
        for lead in _LEADS:
            torch.cuda.synchronize()
            torch.cuda._sleep(lead)
            flush()
            start.record()
            graph.replay()
            end.record()
            ahead = not start.query()  # the GPU has not come to the start yet: all of it is in the queue
            end.synchronize()
            if ahead:
                return float(start.elapsed_time(end) * 1e6)
        raise GraphError("the CPU is too slow to queue a replay while the GPU is kept busy")

    return CallClock("cuda events", "warm" if warm_cache else "cold", eager, replay)


def captured(step: Step) -> torch.cuda.CUDAGraph:
    """One call of a step as a CUDA graph, whose replay was seen to compute what the call does.

    Of a step that never `repeats` no more is asked than finite results. Raises `GraphError` with the reason where a
    replay computes something else, and whatever the capture raises.
    """
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):  # libraries get ready for a stream that may be captured
        for _ in range(_SIDE_CALLS):
            step.call()
            step.reset()
    current.wait_stream(side)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    want = [tensor.clone() for tensor in _tensors(step.call())]
    step.reset()
    graph = torch.cuda.CUDAGraph()
    first: Exception | None = None
    try:
        with torch.cuda.graph(graph):
            try:
                got = _tensors(step.call())
            except Exception as error:
                first = error
                raise
    except Exception as error:
        raise first or error from None  # the end of a capture fails because of what failed in it
    finally:
        torch.cuda.set_stream(current)  # which a capture that fails does not do
    for tensor in got:
        tensor.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    names = list(map(str, range(len(want))))
    errors = relative_errors(dict(zip(names, got, strict=True)), dict(zip(names, want, strict=True)))
    # The memory of the graph is the graph's: without these it may use it for itself from one replay to the next.
    del got, want
    step.reset()
    most = _SAME if step.repeats else sys.float_info.max
    if not all(error <= most for error in errors.values()):
        raise GraphError(f"the replay and the call give different results: relative errors {list(errors.values())}")
    return graph


def _tensors(returned: object) -> list[torch.Tensor]:
    """What a call returned: a tensor, or several."""
    several = returned if isinstance(returned, (tuple, list)) else (returned,)
    return [each.detach() for each in several]
