"""Replay a trace: every moment follows its latest dependency after a delay.

A `Network` contains the moments of the recorded program and their dependencies: host calls in thread order with the
time in between, launches, streams, events, calls that wait for the GPU, and work handed between threads. Each moment
keeps the recorded delay after its latest dependency, so an unchanged replay equals the recording to the ns. Edits
change lengths, gaps and edges of a copy; see `nsysprof.waits.edits`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arrays import AnyInts, Index, Ints, Ints32, Mask

ZERO, NEVER = 0, 1  # the nodes of the moment 0, and of one long ago, for what waits for nothing
LONG_AGO = -(1 << 61)  # to which durations can be added
_CHUNK = 1 << 16  # nodes at a time where their numbers become numbers of Python


@dataclass(frozen=True)
class Edges:
    """The dependencies of each node: the node ``to``, with a delay of ``lag`` ns.

    The delay also includes the time from the last node of the thread to the host ``moment`` (-1: none), and the length
    of the ``op`` (-1: none). ``usual`` is the average lag of edges of the same kind.
    """

    to: Ints32
    moment: Ints32
    op: Ints32
    lag: Ints
    usual: Ints

    def take(self, rows: AnyInts) -> Edges:
        """Some of the edges."""
        return Edges(**{field.name: getattr(self, field.name)[rows] for field in fields(Edges)})

    def drop(self, rows: NDArray[np.generic]) -> None:
        """Remove these dependencies of some nodes."""
        self.to[rows], self.moment[rows], self.op[rows] = NEVER, -1, -1
        self.lag[rows] = self.usual[rows] = 0


@dataclass(frozen=True)
class Network:
    """A trace as nodes with at most two dependencies each, sorted so that every node follows its dependencies.

    Host moments, by thread and time: ``thread`` code of `Trace.threads`; ``time`` as recorded; ``gap`` ns since the
    previous moment; ``anchor``: the last moment of the thread that is a node (thread starts, and moments with other
    dependencies); ``node`` of such a moment, -1 for other moments. GPU ops, by row of `Trace.ops`: ``start``, the node
    of its start; ``done`` and ``length``: the op ends ``length`` ns after the node ``done``; ``behind``: the part of
    this time in which inserted kernels run. Nodes: ``edges``: two for each node; ``extra``: the node's own delay;
    ``recorded``: time; ``of_op``: the op that starts at the node, -1 for none; ``waits``: whether a call that waits for
    the GPU returns at the node. ``launch_moment``: the moments (start, end) of each row of `Trace.launches`;
    ``sync_call`` and ``sync_moment``: a row of `HostActivity`, and its moments, for each call that waits for the GPU;
    ``asked``, the requested moments. ``part``, the process of each node, -1 if unknown.
    """

    thread: Ints32
    time: Ints
    gap: Ints
    anchor: Ints32
    node: Ints32
    start: Ints32
    done: Ints32
    length: Ints
    behind: Ints
    edges: tuple[Edges, Edges]
    extra: Ints
    recorded: Ints
    of_op: Ints32
    waits: Mask
    launch_moment: Ints32
    sync_call: Ints32
    sync_moment: Ints32
    asked: Ints32
    lags: Lags
    part: Ints32

    def copy(self) -> Network:
        """Return a network with lengths, gaps and edges that can be changed independently of this one."""
        edges = tuple(
            Edges(**{field.name: getattr(each, field.name).copy() for field in fields(Edges)}) for each in self.edges
        )
        return replace(
            self,
            gap=self.gap.copy(),
            length=self.length.copy(),
            behind=self.behind.copy(),
            extra=self.extra.copy(),
            done=self.done.copy(),
            waits=self.waits.copy(),
            edges=edges,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Lags:
    """Average delays in ns. ``behind_op``: from the end of the previous op to the start of an op; ``behind_event``: the
    same if an event is in between; ``behind_launch``: from the launch to the start of an op; ``returning``: from a
    dependency to the return of a call; ``launch``: the length of a launch (lower median); ``in_graph``: from op to op
    in a CUDA graph.
    """

    behind_op: int = 0
    behind_event: int = 0
    behind_launch: int = 0
    returning: int = 0
    launch: int = 0
    in_graph: int = 0


@dataclass(frozen=True)
class Times:
    """The times of a replay: of each ``node``, of each host ``moment``, and ``start`` and ``end`` of each op."""

    node: Ints
    moment: Ints
    start: Ints
    end: Ints


def replay(network: Network) -> Times:
    """Compute the time of every node and moment.

    One pass over the nodes computes the times that may differ from the recording; moments that depend only on their own
    thread are derived from these.
    """
    offset, length = offsets(network), np.append(network.length, 0)
    weights = [each.lag + network.extra + offset.take(each.moment) + length.take(each.op) for each in network.edges]
    del length
    node = network.recorded.copy()
    rows = _changed(network, weights)
    place = np.zeros(len(node), np.int32)  # in the list of computed times; before all of them is a 0
    place[rows] = np.arange(1, len(rows) + 1)
    times = [0]
    add = times.append
    for low in range(0, len(rows), _CHUNK):  # numbers of Python take four times the memory
        some = rows[low : low + _CHUNK]
        columns: list[AnyInts] = []
        for each, weight in zip(network.edges, weights, strict=True):
            to = each.to[some]
            columns += [place[to], np.where(place[to] == 0, node[to] + weight[some], weight[some])]
        for one, ahead, other, behind in zip(*(column.tolist() for column in columns), strict=True):
            here, there = times[one] + ahead, times[other] + behind
            add(here if here >= there else there)
        node[some] = times[low + 1 :]
    del times, add, weights, rows, place  # of a large trace they are longer than all results
    moment, end = node[network.node[network.anchor]], node[network.done]
    moment += offset[:-1]
    end += network.length
    return Times(node, moment, node.take(network.start), end)


def offsets(network: Network) -> Ints:
    """Return the ns from the anchor of each host moment to the moment, and a last 0 that stands for "no moment"."""
    out = np.zeros(len(network.gap) + 1, np.int64)
    np.cumsum(network.gap, out=out[:-1])
    out[:-1] -= out.take(network.anchor)
    return out


def _changed(network: Network, weights: list[Ints]) -> Index:
    """The nodes that may differ from the recording: of each process from the first that does, or waits for another
    process that may.
    """
    came = [network.recorded.take(each.to) + weight for each, weight in zip(network.edges, weights, strict=True)]
    differs = np.flatnonzero(np.maximum(*came) != network.recorded)
    differs = differs[differs > NEVER]
    if not len(differs):
        return differs
    part, count = network.part, len(network.recorded)
    first = np.full(int(part.max()) + 2, count)
    np.minimum.at(first, part[differs], differs)
    since, across = first.tolist(), list[list[int]]()
    for each in network.edges:
        rows = np.flatnonzero((part.take(each.to) != part) & (each.to > NEVER))
        across += np.stack([rows, each.to[rows], part[rows], part[each.to[rows]]], axis=1).tolist()
    for node, to, here, there in sorted(across):
        if since[there] <= to and node < since[here]:
            since[here] = node
    low = min(since)
    return low + np.flatnonzero(np.arange(low, count) >= np.array(since)[part[low:]])


def as_usual(network: Network) -> Network:
    """Return the network with the average lag on each edge of GPU ops, and without individual delays."""
    edges = tuple(replace(each, lag=each.usual) for each in network.edges)
    known = (network.of_op >= 0) & (network.edges[0].to != ZERO)
    return replace(network, edges=edges, extra=np.where(known, 0, network.extra))  # type: ignore[arg-type]
