"""One backend on one problem: is it right, how long does a call take, and what does it hold in memory."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import nvtx
import torch

from _environment import reduced_math_allowed
from _reference import relative_errors
from _refusal import BackendError, is_out_of_memory, refusals, sentence
from _workload import Backend, tolerance

Results = Mapping[str, torch.Tensor]
FORWARD = {"output", "branch"}  # every other result is a gradient
NO_MEMORY = dict.fromkeys(("before_bytes", "inputs_bytes", "outputs_bytes", "temporary_bytes", "peak_bytes"))


@dataclass(frozen=True)
class Step:
    """A problem on the device, with a backend: what is called, checked and counted.

    ``call`` is what is measured, and may be followed by ``reset``, which is not. ``results`` makes one call and
    returns all that can be checked, by name. Bytes are of tensors: what a call reads, and what it leaves behind.
    ``facts`` are what else is known after all calls, such as their losses: they are added to the results of the run.
    ``repeats`` is whether every call computes the same, as one that learns or drops at random does not.
    """

    call: Callable[[], object]
    results: Callable[[], Results]
    reset: Callable[[], None]
    inputs_bytes: int
    outputs_bytes: int
    facts: Callable[[], Mapping[str, Any]] = dict
    repeats: bool = True


@dataclass(frozen=True)
class Plan:
    """How one run is made: ``where`` ends the names of its ranges, as in `RUN::flash::S1024`."""

    where: str
    dtype: str
    device: str
    warmup: int
    iterations: int
    start_profiler: Callable[[], None]


def outcome(backend: Backend, plan: Plan, status: str, reason: str | None) -> dict[str, Any]:
    """The part of a run's results that comes from running it, as it is where nothing was measured."""
    return {
        "status": status,
        "reason": reason,
        "errors": {},
        "tolerance": tolerance(backend, plan.dtype, gradient=False),
        "tolerances": {},
        "latency_ns": [],
        "latency_clock": "cuda events" if plan.device == "cuda" else "perf_counter",
        "memory": NO_MEMORY,
        "reduced_math": False,
    }


def measure(
    backend: Backend,
    make: Callable[[], Callable[..., Any]],
    build: Callable[[Any], Step],
    reference: Callable[[], Results],
    plan: Plan,
) -> dict[str, Any]:
    """Check and measure one backend; its `outcome`.

    Whatever the backend raises becomes a status with a reason. What is outside its tolerance is not measured.
    """
    found = outcome(backend, plan, "measured", None)
    try:
        with ExitStack() as settings:
            with nvtx.annotate(f"CHECK::{plan.where}"):
                with refusals(backend, probing=True):
                    settings.enter_context(backend.settings())
                    found["reduced_math"] = reduced_math_allowed()
                    step = build(make())
                    got = step.results()
                    _synchronize(plan.device)
                found |= _verdict(backend, got, reference(), plan)
                del got
            step.reset()
            if found["status"] == "measured":
                with refusals(backend):
                    found |= _numbers(step, plan)
                    found |= step.facts()
    except BackendError as refused:
        found |= {"status": refused.status, "reason": refused.reason}
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        found |= {"status": "out of memory", "reason": sentence(f"in the check: {error}")}
    return found


def release(device: str) -> str | None:
    """Give back all memory, so that the next run starts with an empty allocator; why that failed, or None.

    It fails when a kernel has broken CUDA: nothing can run in this process any more.
    """
    try:
        _give_back(device)
    except RuntimeError as error:
        return sentence(str(error))
    return None


def _give_back(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _verdict(backend: Backend, got: Results, want: Results, plan: Plan) -> dict[str, Any]:
    """The errors, None for NaN and infinity, and status and reason when one is too large."""
    found = relative_errors(got, want)
    tolerances = {name: tolerance(backend, plan.dtype, gradient=name not in FORWARD) for name in found}
    wrong = []
    for name, error in found.items():
        allowed = tolerances[name]
        if not math.isfinite(error):
            wrong.append(f"{name} holds NaN or infinity")
        elif error > allowed:
            wrong.append(f"{name} differs from the float64 reference by {error:.1e} (tolerance: {allowed:.1e})")
    errors = {name: error if math.isfinite(error) else None for name, error in found.items()}
    checked = {"errors": errors, "tolerances": tolerances}
    return checked | {"status": "wrong", "reason": "; ".join(wrong)} if wrong else checked


def _numbers(step: Step, plan: Plan) -> dict[str, Any]:
    _give_back(plan.device)  # what the check needed
    with nvtx.annotate(f"WARMUP::{plan.where}"):
        for _ in range(plan.warmup):
            step.call()
            step.reset()
        memory = _memory(step, plan.device)
        _synchronize(plan.device)
    plan.start_profiler()
    timed = _timed_on_gpu if plan.device == "cuda" else _timed_on_cpu
    collecting = gc.isenabled()
    gc.disable()  # a collection in the middle of a call would be counted as the backend's time
    try:
        latency = timed(step, f"RUN::{plan.where}", plan.iterations)
    finally:
        if collecting:
            gc.enable()
    return {"latency_ns": latency, "memory": memory}


def _timed_on_gpu(step: Step, name: str, iterations: int) -> list[int]:
    """Nanoseconds between two events on the stream around each call."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(iterations)]
    for pair in events:
        for event in pair:
            event.record()  # CUDA makes an event when it is first recorded: not inside the ranges
    torch.cuda.synchronize()
    with nvtx.annotate(name):
        for number, (start, end) in enumerate(events):
            with nvtx.annotate(f"iter{number}"):
                start.record()
                step.call()
                end.record()
            step.reset()
        torch.cuda.synchronize()
    return [round(start.elapsed_time(end) * 1e6) for start, end in events]


def _timed_on_cpu(step: Step, name: str, iterations: int) -> list[int]:
    """Nanoseconds on the clock around each call."""
    latency = []
    with nvtx.annotate(name):
        for number in range(iterations):
            with nvtx.annotate(f"iter{number}"):
                start = time.perf_counter_ns()
                step.call()
                latency.append(time.perf_counter_ns() - start)
            step.reset()
    return latency


def _memory(step: Step, device: str) -> dict[str, int | None]:
    """The peak of one call, in parts. After a call like it: workspaces of libraries are there before, and stay.

    The parts are what was there before without the inputs, the inputs, the outputs, and the rest: temporaries.
    """
    parts: dict[str, int | None] = {**NO_MEMORY, "inputs_bytes": step.inputs_bytes, "outputs_bytes": step.outputs_bytes}
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = _bytes_in_use("current")
        with nvtx.annotate("memory"):
            step.call()
        peak = _bytes_in_use("peak")
        parts["before_bytes"] = max(0, held - step.inputs_bytes)
        parts["temporary_bytes"] = max(0, peak - held - step.outputs_bytes)
        parts["peak_bytes"] = peak
        step.reset()
    return parts


def _bytes_in_use(which: str) -> int:
    """Bytes of tensors on the GPU, as asked for: the allocator rounds up, by as much as 1 MiB for each tensor."""
    stats = torch.cuda.memory_stats()
    return int(stats.get(f"requested_bytes.all.{which}") or stats.get(f"allocated_bytes.all.{which}", 0))


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
