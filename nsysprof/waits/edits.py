"""Edit a `Network` as a program change would; each function edits a copy made by `Network.copy`."""

import numpy as np

from nsysprof.core.arrays import AnyInts, Ints, Mask
from nsysprof.core.columns import marked
from nsysprof.core.intervals import covered, expand_ranges, merge
from nsysprof.trace.trace import Trace
from nsysprof.waits.replay import LONG_AGO, Network, editable
from nsysprof.waits.whole import Cause


def lengthen(network: Network, op: AnyInts, length: Ints) -> None:
    """Make GPU ops take ``length`` ns; the length of a collective counts from the arrival of the last rank."""
    editable(network, "length")[op] = np.maximum(length, 0)


def delay_host(network: Network, moment: AnyInts, ns: int) -> None:
    """Make the host take ``ns`` longer before the given moments."""
    node = network.node[moment]
    editable(network, "gaps")[moment[node < 0]] += ns
    editable(network, "extra")[node[node >= 0]] += ns


def delay_gpu(network: Network, op: AnyInts, ns: int, launched: Ints | None = None) -> None:
    """Insert a kernel of ``ns`` in the stream right after each op.

    Calls that returned before the recorded time ``launched`` do not wait for the new kernel.
    """
    more = ns + network.lags.behind_op
    editable(network, "length")[op] += more
    editable(network, "behind")[op] += more
    if launched is not None:
        other, before = network.edges[1], np.full(len(network.length) + 1, LONG_AGO)
        before[op] = launched
        node = np.flatnonzero(network.waits)
        editable(other, "lag")[node[network.recorded[node] <= before[other.op[node]]]] -= more


def hurry(network: Network, moment: AnyInts, ns: int) -> None:
    """Limit the host time before the given moments to ``ns``, and remove all waits at these moments."""
    node = network.node[moment]
    gap = editable(network, "gaps")
    gap[moment] = np.where(node < 0, np.minimum(gap[moment], ns), gap[moment])
    node = node[node >= 0]
    own, other = network.edges
    node = node[own.moment[node] >= 0]  # others are the first of a thread, or handed over by another
    other.drop(node)
    editable(own, "lag")[node], editable(network, "extra")[node] = np.minimum(editable(own, "lag")[node], ns), 0
    editable(network, "waits")[node] = False


def stop_waiting(network: Network, moment: AnyInts) -> None:
    """Remove the wait for the GPU from the calls that return at the given moments."""
    node = network.node[moment]
    node = node[node >= 0]
    node = node[network.waits[node]]
    network.edges[1].drop(node)
    editable(network, "extra")[node] = 0
    editable(network, "waits")[node] = False


def run_together(network: Network) -> None:
    """Let all ranks arrive at each collective at the same time, so that no rank waits for another."""
    late = network.done != network.start
    for each in network.edges:
        rows = np.flatnonzero(each.op >= 0)
        rows = rows[late[each.op[rows]]]
        editable(each, "to")[rows] = network.start[each.op[rows]]
    editable(network, "done")[:] = network.start


def launch_as_graph(network: Network, start: AnyInts, first: AnyInts, stop: AnyInts, ns: int) -> None:
    """Replace all host work between the moments ``first`` and ``stop`` with one launch that takes ``ns`` nanoseconds.

    Both moments of a pair are on one thread, and the host work at these two moments is replaced, too. ``start`` are the
    moments of the new launches, which are the beginnings of the ranges. GPU ops that were launched between the two
    moments then follow each other like the ops of a CUDA graph.
    """
    inside = marked(expand_ranges(first, stop - first + 1), len(network.time))
    editable(network, "gaps")[inside & (network.node < 0)] = 0
    nodes = network.node[inside & (network.node >= 0)]
    own, other = network.edges
    editable(own, "lag")[nodes] = editable(other, "lag")[nodes] = editable(network, "extra")[nodes] = 0
    other.drop(nodes[(other.moment[nodes] < 0)])
    editable(network, "gaps")[start] += ns
    launched = np.flatnonzero(network.starts & (own.moment >= 0))
    launched = launched[inside[own.moment[launched]]]
    editable(network, "extra")[launched] = 0
    editable(own, "lag")[launched] = own.usual[launched]
    behind = launched[other.op[launched] >= 0]
    editable(other, "lag")[behind] = np.minimum(editable(other, "lag")[behind], network.lags.in_graph)


def merge_ops(network: Network, trace: Trace, op: AnyInts, first: Mask, length: Ints) -> None:
    """Replace the GPU ops ``op`` with fewer ops of ``length`` ns; ``first`` marks the ops to keep."""
    editable(network, "length")[op] = np.where(first, length, 0)
    gone = op[~first]
    node = network.start[gone]
    editable(network.edges[1], "lag")[node] = editable(network, "extra")[node] = 0
    launch = np.unique(trace.ops.launch[gone])
    kept = np.unique(trace.ops.launch[op[first]])
    launch = np.setdiff1d(launch[launch >= 0], kept)
    hurry(network, network.launch_moment[:, launch].reshape(-1), 0)


def leave_out(network: Network, first: AnyInts, stop: AnyInts, op: AnyInts) -> None:
    """Remove all host work between the moments ``first`` and ``stop`` of each row, and set the time of the GPU ops
    ``op`` to 0.
    """
    hurry(network, expand_ranges(first, stop - first + 1), 0)
    editable(network, "length")[op] = 0
    node = network.start[op]
    editable(network, "extra")[node] = 0
    for each in network.edges:
        editable(each, "lag")[node] = 0


def remove(network: Network, cause: Cause) -> None:
    """Remove a whole cause: its calls take no time and wait for nothing, and its ops and code take no time."""
    spare_host(network, cause.thread, cause.start, cause.end)
    synced = network.sync_moment[1][np.isin(network.sync_call, cause.calls)]
    node = network.node[np.concatenate([network.launch_moment[1][cause.launches], synced])]
    node = node[node >= 0]
    own, other = network.edges
    alone = node[own.moment[node] >= 0]
    editable(own, "lag")[alone] = editable(network, "extra")[alone] = 0
    other.drop(node[other.moment[node] < 0])
    editable(network, "waits")[node] = False
    if cause.late:
        run_together(network)
    editable(network, "length")[cause.ops] = 0
    node = network.start[np.concatenate([cause.ops, cause.queued])]
    for passes in (editable(network, "extra"), editable(own, "lag"), editable(other, "lag")):
        passes[node] = np.minimum(passes[node], 0)


def spare_host(network: Network, thread: AnyInts, start: Ints, end: Ints) -> None:
    """Remove intervals of host time from threads (codes), including hand-overs inside these intervals."""
    own, other = network.edges
    for code in np.unique(thread).tolist():
        mine = thread == code
        low, high = np.searchsorted(network.thread, [code, code + 1]).tolist()
        time = network.time[low:high]
        less = covered(merge(start[mine], end[mine]), time[:-1], time[1:])
        node = network.node[low + 1 : high]
        editable(network, "gaps")[low + 1 : high] -= np.where(node < 0, less, 0)
        at, less = node[node >= 0], less[node >= 0]
        extra = np.minimum(less, np.maximum(network.extra[at], 0))
        editable(network, "extra")[at] -= extra
        for edges, some in ((own, own.moment[at] >= 0), (other, network.waits[at])):
            rows, rest = at[some], (less - extra)[some]
            editable(edges, "lag")[rows] -= np.minimum(rest, np.maximum(edges.lag[rows], 0))
    moment = np.flatnonzero(network.node >= 0)
    moment = moment[other.moment[network.node[moment]] >= 0]
    whence = other.moment[network.node[moment]]
    pairs = np.stack([network.thread[whence], network.thread[moment]], axis=1)
    for pair in np.unique(pairs, axis=0).tolist():
        mine, here = np.isin(thread, pair), (pairs == pair).all(axis=1)
        node = network.node[moment[here]]
        less = covered(merge(start[mine], end[mine]), network.time[whence[here]], network.time[moment[here]])
        editable(other, "lag")[node] -= np.minimum(less, np.maximum(other.lag[node], 0))
