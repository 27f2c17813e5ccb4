"""Ranges as CUDA graphs: one launch in place of all that the host does in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.range_work import index_work
from nsysprof.core.columns import distinct
from nsysprof.diagnosis.case import Case, Place
from nsysprof.waits import edits
from nsysprof.waits.replay import Network
from nsysprof.waits.spans import asked_moments

Rows = NDArray[np.intp]


def host_stretches(
    attribution: Attribution, network: Network, rows: Rows, inside: Rows, stop: Rows
) -> tuple[Rows, Rows, Rows]:
    """What one launch of a graph takes the place of: first and last moments of the host in ranges that launch.

    ``rows`` are the ranges, ``inside`` and ``stop`` their moments. Also the moments at which graphs would be launched.
    Helper threads count from their first launch for the range to their last.
    """
    trace = attribution.trace
    launch, place = index_work(attribution, rows).launches_of(rows)
    used = np.unique(place)
    first, last = [inside[used]], [stop[used]]
    thread = trace.launches.thread[launch]
    helped = np.flatnonzero(thread != trace.ranges.thread[rows[place]])
    if len(helped):
        at, group = distinct(place[helped], thread[helped])
        low, high = np.full(len(at), np.iinfo(np.int64).max), np.full(len(at), -1, np.int64)
        np.minimum.at(low, group, network.launch_moment[0][launch[helped]])
        np.maximum.at(high, group, network.launch_moment[1][launch[helped]])
        first.append(low)
        last.append(high)
    return np.concatenate(first), np.concatenate(last), inside[used]


def blocked(network: Network, first: Rows, last: Rows) -> Rows:
    """Which stretches of the host wait for the GPU, so that no graph can hold them."""
    waits = np.append(0, np.cumsum((network.node >= 0) & network.waits[network.node]))
    return np.flatnonzero(waits[last + 1] > waits[first])


def launch_cost(attribution: Attribution, network: Network) -> tuple[int, bool]:
    """How long the launch of a graph takes, ns, and whether this recording says it: else it is that of a kernel."""
    trace = attribution.trace
    graphs = [code for code, name in enumerate(trace.call_names) if "GraphLaunch" in name]
    calls = np.flatnonzero(np.isin(trace.launches.name, graphs))
    if not len(calls):
        return network.lags.launch, False
    return int(np.median(trace.launches.end[calls] - trace.launches.start[calls])), True


def capture_steps(case: Case, place: Place) -> Callable[[Network], None] | None:
    """Let each step of a place be one CUDA graph; None where a step waits for the GPU, or launches nothing."""
    attribution, network = case.facts.attribution, case.network
    of_path = [case.chosen.texts[code] == place.path for code in case.chosen.windows.path.tolist()]
    rows = np.unique(case.chosen.windows.range[np.array(of_path, bool)]).astype(np.intp)
    _, inside, stop = (moments[np.searchsorted(case.ranges, rows)] for moments in asked_moments(network))
    first, last, start = host_stretches(attribution, network, rows, inside, stop)
    if not len(first) or len(blocked(network, first, last)):
        return None
    cost, _ = launch_cost(attribution, network)
    return partial(edits.launch_as_graph, start=start, first=first, stop=last, ns=cost)
