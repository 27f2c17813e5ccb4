"""One configuration of a sweep: its problem, and what each backend comes to with nothing else on the device."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from _bench_auto import watched
from _bench_rounds import Rule
from _measure import Plan, measure, outcome, release
from _workload import Case, Workload

if TYPE_CHECKING:
    from _bench_nvml import GpuWatch
    from _workload import Work

# Of the memory that is free: blocks are rounded up, and the cache is flushed with some.
_USABLE = 0.9
_NO_SAMPLES: dict[str, Any] = {
    "calls_per_sample": None,
    "latency_ns": [],
    "aa_latency_ns": [],
    "graph_latency_ns": None,
    "graph_reason": None,
    "order": [],
    "gpu": None,
    "throttled": [],
}


class BrokenError(Exception):
    """CUDA is broken in this process, by a kernel or a capture that failed: the rest needs a new one."""


@dataclass(frozen=True)
class Setting:
    """A configuration: its problem, and how it is measured."""

    workload: Workload
    plan: Mapping[str, Any]
    configuration: Mapping[str, Any]
    work: Work
    watch: GpuWatch | None
    run: int = 0

    @property
    def id(self) -> str:
        """What the configuration is called."""
        return str(self.configuration["id"])

    @property
    def device(self) -> str:
        """Where it runs: "cuda" or "cpu"."""
        return str(self.plan["device"])

    @property
    def rule(self) -> Rule:
        """When a sample is long enough, and when there are enough: all runs together take the samples of the plan."""
        runs, width = self.plan.get("runs") or 1, self.plan["ci_width"]
        width = None if width is None else width * math.sqrt(runs)
        return Rule(math.ceil(self.plan["samples"] / runs), width, self.plan["min_sample_ns"])

    def make(self, backend: str) -> Callable[[], Callable[..., Any]]:
        """What prepares a backend for this problem."""
        case = case_of(self.plan, self.configuration)
        return functools.partial(self.workload.backends[backend].make, case)

    def point(self, backend: str, found: Mapping[str, Any], samples: Mapping[str, Any] = _NO_SAMPLES) -> dict[str, Any]:
        """What is written of a backend, from its check and its samples."""
        configuration = {name: value for name, value in self.configuration.items() if name != "backends"}
        named = {"configuration": configuration, "backend": backend}
        return {**named, **found, **samples, "run": self.run}

    def refused(self, backend: str, status: str, reason: str) -> dict[str, Any]:
        """What is written of a backend that was not even tried."""
        return self.point(
            backend, _without_latency(outcome(self.workload.backends[backend], self._plan(), status, reason))
        )

    def _plan(self) -> Plan:
        return Plan(self.id, self.configuration["dtype"], self.device, 1, 1, _nothing)


def case_of(plan: Mapping[str, Any], configuration: Mapping[str, Any]) -> Case:
    """What a configuration of a plan asks of its workload."""
    at = {name: value for name, value in configuration.items() if name not in ("id", "backends")}
    backward = bool(plan.get("backward") or plan.get("train"))
    return Case(**at, backward=backward, device=plan["device"], seed=plan["seed"])


def setting_of(
    workload: Workload, plan: Mapping[str, Any], configuration: Mapping[str, Any], watch: GpuWatch | None, run: int = 0
) -> Setting:
    """The problem of a configuration; its tensors are made when they are needed."""
    work = workload.prepare(case_of(plan, configuration))
    return Setting(workload, plan, configuration, work, watch, run)


def check(setting: Setting, backend: str, reference: Callable[[], Any]) -> tuple[dict[str, Any], int, str | None]:
    """What a run of the workload finds of one backend, but for its latency: status, reason, errors, memory.

    Also the bytes of the GPU that torch holds for it, and for `auto` the backend that was picked.
    """
    _forget_workspaces()
    seen: list[str] = []
    make = setting.make(backend)
    make = watched(make, seen) if backend == "auto" else make

    def wanted() -> Any:
        try:
            return reference()
        finally:  # its products are not the backend's; what a backend needs is back after the next call
            _forget_workspaces()

    found = measure(setting.workload.backends[backend], make, setting.work.build, wanted, setting._plan())
    held = torch.cuda.max_memory_reserved() if setting.device == "cuda" else 0
    return _without_latency(found), held, seen[0] if seen else None


def give_back(device: str) -> None:
    """Give back all memory that nothing holds. Raises `BrokenError` where that fails."""
    if broken := release(device):
        raise BrokenError(broken)


def fitting(held: Mapping[str, int], alone: set[str], device: str) -> list[list[str]]:
    """Who is sampled together: as many as fit into the free memory of the GPU, the small ones first; others alone."""
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
    together: list[str] = []
    apart: list[list[str]] = []
    planned = 0
    for backend in sorted(held, key=lambda name: held[name]):
        fits = device == "cpu" or planned + held[backend] <= _USABLE * free
        if backend not in alone and (fits or not together):
            together.append(backend)
            planned += held[backend]
        else:
            apart.append([backend])
    return [together, *apart] if together else apart


def _without_latency(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "latency_ns"}


def _forget_workspaces() -> None:
    """Let go of the memory that cuBLAS keeps from earlier backends: it would be counted as the next one's."""
    forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if forget is not None and torch.cuda.is_initialized():
        forget()


def _nothing() -> None:
    pass
