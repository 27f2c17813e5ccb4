"""Samples the backends of one configuration in turn, all of them on the device at once.

All eager calls come before the first CUDA graph is captured. So a capture that fails can cost no sample, and what a
graph keeps for itself is not added to the memory of the eager calls.
"""

from __future__ import annotations

import functools
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from _bench_check import BrokenError, Setting, give_back
from _bench_clock import CallClock, call_clock, captured
from _bench_nvml import is_throttled
from _bench_rounds import Series, State, run_rounds, warm_up
from _measure import Step
from _refusal import BackendError, refusals
from _workload import Backend

_NOT_TRIED = "another backend broke CUDA first"


@dataclass
class _Live:
    """A backend on the device: its step, its samples and those of its A/A twin; or what ended it."""

    backend: str
    step: Step | None = None
    eager: list[Series] = field(default_factory=list)
    warmed: tuple[int, str] | None = None
    graph: Series | None = None
    graph_reason: str | None = _NOT_TRIED
    failure: BackendError | None = None

    def fail(self, failure: BackendError) -> None:
        # A copy: the exception itself holds all that was on the stack where it was raised.
        self.failure, self.step = BackendError(failure.status, failure.reason), None
        for series in self.eager:
            series.call, series.failure = _ended, None
        self.eager = []


def sample(
    setting: Setting, group: Sequence[str], checked: Mapping[str, Mapping[str, Any]], alone: str | None
) -> tuple[list[dict[str, Any]], list[str], BrokenError | None]:
    """Sample some backends in turn. ``checked`` is what `check` found of them, ``alone`` why there is only one.

    Returns the points of those that came to an end, the names of those for which memory did not suffice beside the
    others, and why this process cannot go on, if so. Then a backend that was not to blame, and whose eager calls were
    not complete, has no point.
    """
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    clock = call_clock(setting.device, warm_cache=setting.plan["warm_cache"])
    lives = [_Live(name) for name in group]
    complete, broken = False, None
    with _no_collections():
        try:
            _sample_eager(setting, lives, clock, checked)
            complete = True
            _sample_graphs(setting, lives, clock, checked)
        except BrokenError as error:
            broken = error
    points, crowded = [], []
    for live in lives:
        found = checked[live.backend]
        if live.failure and live.failure.status == "out of memory" and len(group) > 1:
            crowded.append(live.backend)
        elif live.failure:
            found = {**found, "status": live.failure.status, "reason": live.failure.reason}
            points.append(setting.point(live.backend, found))
        elif complete:
            others = [other.backend for other in lives if other is not live and not other.failure]
            samples = {"started": started, "sampled_with": others, "alone_reason": alone}
            points.append(setting.point(live.backend, found, samples | _samples(live, clock)))
    return points, crowded, broken


def _sample_eager(
    setting: Setting, lives: Sequence[_Live], clock: CallClock, checked: Mapping[str, Mapping[str, Any]]
) -> None:
    """Put the backends on the device, warm them up, and sample them and their twins in turn."""
    for live in lives:
        backend = setting.workload.backends[live.backend]
        try:
            with refusals(backend), backend.settings():
                live.step = setting.work.build(setting.make(live.backend)())
            live.eager = [Series(functools.partial(_timed, backend, clock.eager, live.step)) for _ in range(2)]
            live.warmed = warm_up(live.eager[0], setting.rule)
            _as_in_first_run(live.eager[0], checked[live.backend].get("calls_per_sample"))
            live.eager[1].calls_per_sample = live.eager[0].calls_per_sample
        except BackendError as error:
            live.fail(error)
        if live.failure:  # after the exception, which holds the memory of what failed
            give_back(setting.device)

    def failed(series: Series) -> list[Series]:
        live = next(each for each in lives if any(series is one for one in each.eager))
        ended = live.eager
        live.fail(_refusal(series))
        give_back(setting.device)
        return ended

    _rounds(setting, [series for live in lives for series in live.eager], "eager", failed)


def _sample_graphs(
    setting: Setting, lives: Sequence[_Live], clock: CallClock, checked: Mapping[str, Mapping[str, Any]]
) -> None:
    """Capture a call of each backend, and sample the replays in turn.

    Raises `BrokenError` at the end where a capture has failed: torch does not clean up after it, and the memory of what
    follows in this process would not be what it is otherwise.
    """
    going = [live for live in lives if not live.failure]
    if clock.replay is None or not setting.plan["graph"]:
        for live in going:
            live.graph_reason = "not requested" if not setting.plan["graph"] else "no GPU"
        return
    give_back(setting.device)  # what the eager calls needed
    unclean = []
    for live in going:
        backend = setting.workload.backends[live.backend]
        reason = None
        try:
            assert live.step is not None
            with refusals(backend), backend.settings():
                graph = captured(live.step)
            live.graph = Series(functools.partial(_timed, backend, clock.replay, graph))
            warm_up(live.graph, setting.rule)
            _as_in_first_run(live.graph, checked[live.backend].get("graph_calls_per_sample"))
        except BackendError as error:
            reason = _why(error)
        if reason:
            live.graph, live.graph_reason = None, reason
            unclean.append(live.backend)
            give_back(setting.device)

    def failed(series: Series) -> list[Series]:
        live = next(each for each in going if each.graph is series)
        live.graph, live.graph_reason = None, _why(_refusal(series))
        series.call, series.failure = _ended, None
        give_back(setting.device)
        return [series]

    _rounds(setting, [live.graph for live in going if live.graph], "graph", failed)
    for live in going:
        if live.graph:
            live.graph_reason = None
    if unclean:
        raise BrokenError(f"no CUDA graph of {' '.join(unclean)}")


def _rounds(
    setting: Setting, series: Sequence[Series], kind: str, failed: Callable[[Series], Sequence[Series]]
) -> None:
    def watch() -> tuple[State | None, bool]:
        state = setting.watch.read() if setting.watch else None
        return state, is_throttled(state)

    seed = f"{setting.plan['seed']} {setting.id} {kind}" + (f" run {setting.run}" if setting.run else "")
    if series:
        run_rounds(series, setting.rule, seed, watch, failed)


def _as_in_first_run(series: Series, calls: int | None) -> None:
    """A sample of a later run is the mean of as many calls as one of the first."""
    series.calls_per_sample = calls or series.calls_per_sample


def _timed(backend: Backend, clock: Callable[[Any], float], what: Any) -> float:
    """Nanoseconds of one call with the settings of its backend. Raises `BackendError`."""
    with refusals(backend), backend.settings():
        ns = clock(what)
        if not 0 < ns < math.inf:
            raise RuntimeError(f"the clock gave an impossible time for a call: {ns} ns")
        return ns


def _refusal(series: Series) -> BackendError:
    """What ended a series; anything but a refusal is a mistake of ours, and raised."""
    failure = series.failure
    if isinstance(failure, BackendError):
        return failure
    assert failure is not None
    raise failure


def _ended() -> float:
    raise AssertionError("this series has ended")


def _why(error: BackendError) -> str:
    return error.reason if error.status == "unsupported" else f"{error.status}: {error.reason}"


def _samples(live: _Live, clock: CallClock) -> dict[str, Any]:
    """The part of a point that holds its samples."""
    eager, again = live.eager
    assert live.warmed is not None
    graph = live.graph if live.graph and live.graph_reason is None else None
    asked = any(state is not None for state in eager.gpu)
    return {
        "latency_clock": clock.name,
        "cache": clock.cache,
        "warmup_calls": live.warmed[0],
        "warm_until": live.warmed[1],
        "calls_per_sample": eager.calls_per_sample,
        "latency_ns": eager.latency_ns,
        "aa_latency_ns": again.latency_ns,
        "graph_calls_per_sample": graph.calls_per_sample if graph else None,
        "graph_latency_ns": graph.latency_ns if graph else None,
        "graph_reason": live.graph_reason,
        "order": eager.rounds,
        "place_in_round": eager.places,
        "gpu": eager.gpu if asked else None,
        "throttled": eager.throttled,
        "aa_throttled": again.throttled,
        "graph_throttled": graph.throttled if graph else None,
    }


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keeps Python from collecting garbage in the middle of a call, where it would count as the backend's time."""
    gc.collect()
    gc.freeze()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
