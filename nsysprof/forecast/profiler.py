"""Model the program without its profiler: remove the overhead per call from a replay until the steps match."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from nsysprof.core.arrays import Index, Ints
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import plain_steps, record_beside
from nsysprof.waits.changes import AbstainError
from nsysprof.waits.program import Program
from nsysprof.waits.replay import Network, editable
from nsysprof.waits.spans import MAX_RESIDUAL, Spans

_MAX_COST_NS = 20_000  # of recording a call
_USUAL_COST_NS = 2_500  # where the steps do not tell, as those that wait for the GPU
_CLOSE = 0.0002  # of a step: no cost needs to be nearer
_EQUAL = 0.005  # of a step: costs that miss it by so little more are as good
# What nsys 2025.3 adds between two ops of a stream on an H200, and what then is between those of a CUDA graph
# (analysis/forecasts, the pilot).
_GPU_COST_NS, _GRAPH_LAG_NS = 700, 300
_LEAST = 0.2  # of the recorded time of the host is left
_TRIES = 16
_OTHER_PROGRAM = 1.5  # times as long under the profiler as in the record: windows and timers differ by less


@dataclass(frozen=True)
class Unprofiled:
    """How profiling overhead was removed: ``step_ns``: the step without a profiler; ``cost_ns``: the assumed profiling
    overhead per call and per range; ``residual``: the relative error of the result; ``source``: the record with the
    measurement.
    """

    step_ns: float
    cost_ns: int
    residual: float
    source: str

    @property
    def words(self) -> str:
        """The source and the residual, as a clause."""
        return (
            f"scaled to the unprofiled steps of {self.source} ({format_ns(self.step_ns)}), residual "
            f"{format_share(abs(self.residual))}"
        )


def unprofiled_network(
    program: Program, spans: Spans, mine: Index, path: str, record: Path | None
) -> tuple[Network, Unprofiled | None]:
    """Return the network without profiling overhead, and a description of how the overhead was removed (None if no
    record has the time without a profiler).

    The record has the ratio of step times without and with the profiler; the steps of the path become shorter by this
    ratio. Raises `AbstainError` if no overhead per call gives this step time.
    """
    network = program.network
    beside = record or record_beside(program.attribution.trace.report.path)
    found = plain_steps(beside, path) if beside is not None else None
    if found is None and record is not None:
        raise NsysprofError(
            f"{record} has no unprofiled times of {one_line(path, 60)}",
            "nsysprof capture --overhead writes a record; --as-profiled needs no record",
        )
    if found is None:
        return network, None
    plain_ns, profiled_ns, name = found
    recorded = float(np.median((spans.windows.end - spans.windows.start)[mine]))
    if max(recorded, profiled_ns) > _OTHER_PROGRAM * min(recorded, profiled_ns):
        raise AbstainError(
            f"profiled steps of {name} take {format_ns(profiled_ns)} according to {beside}, but {format_ns(recorded)} "
            "in this report: the program or the range differs",
            "--record FILE names another record; --as-profiled needs no record",
        )
    target = recorded * plain_ns / profiled_ns
    calls = _calls_before(program, network)
    network = _quicker(network)

    @cache
    def missed(cost: int) -> float:
        return float(np.median(spans.lengths(_cheaper(network, calls, cost))[mine])) / target - 1

    cost = _best_cost(missed)
    scaled = _cheaper(network, calls, cost)
    residual = missed(cost)
    if abs(residual) > MAX_RESIDUAL:
        raise AbstainError(
            f"a step of {one_line(path, 60)} takes {format_ns(target)} without a profiler, and the "
            f"replay misses this time by {format_share(abs(residual))} (limit: {format_share(MAX_RESIDUAL)})",
            "--as-profiled forecasts the program under its profiler",
        )
    return scaled, Unprofiled(target, cost, residual, f"{beside.name} for {name}" if beside else name)


def _best_cost(missed: Callable[[int], float]) -> int:
    """The cost of recording a call with which steps miss their target least, or the one nearest to the usual of those
    that are as good; few tries, as each is a replay.
    """
    low, high, best = 0, _MAX_COST_NS, 0
    for _ in range(_TRIES):  # the step never gets longer when calls get shorter
        best = min(best, low, high, key=lambda cost: abs(missed(cost)))
        if missed(low) <= 0 or missed(high) >= 0 or abs(missed(best)) < _CLOSE or high - low <= 1:
            break
        share = missed(low) / (missed(low) - missed(high))  # steps are nearly a straight line over the cost
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        low, high = (middle, high) if missed(middle) > 0 else (low, middle)
    limit = abs(missed(best)) + _EQUAL
    if abs(missed(_USUAL_COST_NS)) <= limit:
        return _USUAL_COST_NS
    for _ in range(_TRIES):
        nearer = best + round((_USUAL_COST_NS - best) / 2)
        if nearer == best or abs(missed(nearer)) > limit:
            break
        best = nearer
    return best


def _quicker(network: Network) -> Network:
    """The network without what recording ops costs the GPU between them."""
    out = network.copy()
    for each in out.edges:
        rows = np.flatnonzero((each.op >= 0) & network.starts)
        for lag in (editable(each, "lag"), editable(each, "usual")):
            lag[rows] = np.minimum(lag[rows], np.maximum(lag[rows] - _GPU_COST_NS, _GRAPH_LAG_NS))
    behind = max(network.lags.behind_op - _GPU_COST_NS, _GRAPH_LAG_NS)
    return replace(out, lags=replace(network.lags, behind_op=behind, in_graph=_GRAPH_LAG_NS))


def _calls_before(program: Program, network: Network) -> Ints:
    """How many calls and ranges were recorded between each moment of the host and the one before."""
    trace, calls = program.attribution.trace, program.facts.activity.calls
    out = np.zeros(len(network.time), np.int64)
    bounds = np.searchsorted(network.thread, np.arange(len(trace.threads) + 1))
    ranges = trace.ranges
    for code, tid in enumerate(trace.threads.tolist()):
        low, high = bounds[code : code + 2].tolist()
        mine = ranges.thread == code
        moments = np.concatenate([calls.end[calls.of_thread(tid)], ranges.start[mine], ranges.end[mine]])
        at = np.searchsorted(network.time[low:high], moments)
        out[low:high] = np.bincount(at, minlength=high - low + 1)[: high - low]
    return out


def _cheaper(network: Network, calls: Ints, cost: int) -> Network:
    """The network with ``cost`` ns less for each recorded call, never less than a part of what was recorded."""
    gap = network.gap
    least = (_LEAST * gap).astype(np.int64)
    gap = np.minimum(gap, np.maximum(gap - cost * calls, least))
    moment = np.flatnonzero(network.node >= 0)
    node = network.node[moment]
    own, other = network.edges
    kept = own.moment[node] >= 0
    node, moment = node[kept], moment[kept]
    own = replace(own, lag=own.lag.astype(np.int64))
    least = (_LEAST * own.lag[node]).astype(np.int64)
    own.lag[node] = np.minimum(own.lag[node], np.maximum(own.lag[node] - cost * calls[moment], least))
    return replace(network, gaps=gap, edges=(own, other))
