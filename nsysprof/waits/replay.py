"""Replays a trace: every moment of it is the latest of what it waits for, each a while later.

A `Network` holds the recorded program as such sums and maxima: host calls in the order of their thread with the time
between them, launches, streams, events, calls that wait for the GPU, work that threads hand to each other. What a
moment takes beyond the latest of what it waits for is kept as its own constant, so that without a change the replay is
the recording, to the ns. Edits change lengths, gaps and edges of a copy; see `nsysprof.waits.edits`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import Ints

Rows = NDArray[np.intp]
ZERO, NEVER = 0, 1  # the nodes of the moment 0, and of one long ago, for what waits for nothing
LONG_AGO = -(1 << 61)  # to which durations can be added
_CHUNK = 1 << 16  # nodes at a time where their numbers become numbers of Python


@dataclass(frozen=True)
class Edges:
    """What each node waits for: the node ``to``, and the ns ``lag`` later.

    In between passes the time from the last node of its thread to the ``moment`` of the host (-1: none), and the
    length of the ``op`` (-1: none). ``usual`` is the lag that such an edge has on average.
    """

    to: NDArray[np.int32]
    moment: NDArray[np.int32]
    op: NDArray[np.int32]
    lag: Ints
    usual: Ints

    def take(self, rows: NDArray[np.integer]) -> Edges:
        """Some of the edges."""
        return Edges(**{field.name: getattr(self, field.name)[rows] for field in fields(Edges)})

    def drop(self, rows: NDArray[np.generic]) -> None:
        """Let some nodes wait for nothing by these edges."""
        self.to[rows], self.moment[rows], self.op[rows] = NEVER, -1, -1
        self.lag[rows] = self.usual[rows] = 0


@dataclass(frozen=True)
class Network:
    """A trace as nodes that wait for two others at most, in an order in which they can be computed.

    Host moments, by thread and time: ``thread`` code of `Trace.threads`, ``time`` as recorded, ``gap`` ns since the
    moment before, ``anchor`` the last moment of the thread that is a node (roots and whatever waits for something
    else), ``node`` of such a moment, -1 for others. GPU ops, by row of `Trace.ops`: ``start``, the node of its start,
    ``done`` and ``length``: it ends that long after that node, and the part of that in which kernels run ``behind`` it
    that were added. Nodes: ``edges`` two each, ``extra`` what passes besides, ``recorded`` when it was, ``of_op`` the
    op that starts there, -1 for none, ``waits``: a call that waits for the GPU returns there.
    ``launch_moment`` are the moments (start, end) of each of `Trace.launches`,
    ``sync_call`` and ``sync_moment`` a row of `HostActivity` and its moments for each call that waits for the GPU;
    ``asked`` the moments asked for.
    """

    thread: NDArray[np.int32]
    time: Ints
    gap: Ints
    anchor: NDArray[np.int32]
    node: NDArray[np.int32]
    start: NDArray[np.int32]
    done: NDArray[np.int32]
    length: Ints
    behind: Ints
    edges: tuple[Edges, Edges]
    extra: Ints
    recorded: Ints
    of_op: NDArray[np.int32]
    waits: NDArray[np.bool_]
    launch_moment: NDArray[np.int32]
    sync_call: NDArray[np.int32]
    sync_moment: NDArray[np.int32]
    asked: NDArray[np.int32]
    lags: Lags

    def copy(self) -> Network:
        """A network whose lengths, gaps and edges may be changed without changing this one."""
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
    """What passes on average, in ns: before an op starts behind the one before it, the same over an event, behind its
    launch; before a call returns behind what it waited for; how long a launch takes, half of them less; and before an
    op of a CUDA graph starts behind the one before it.
    """

    behind_op: int = 0
    behind_event: int = 0
    behind_launch: int = 0
    returning: int = 0
    launch: int = 0
    in_graph: int = 0


@dataclass(frozen=True)
class Times:
    """When everything happens in a replay: of each node ``node``, host moment ``moment``, op ``start`` and ``end``."""

    node: Ints
    moment: Ints
    start: Ints
    end: Ints


def replay(network: Network) -> Times:
    """When everything would happen.

    One pass over the nodes in order, from the first that does not happen as recorded; what waits for its own thread
    alone takes none.
    """
    total = np.cumsum(network.gap)
    offset = np.append(total - total[network.anchor], 0)
    length = np.append(network.length, 0)
    recorded, as_recorded = network.recorded, True
    times = recorded[: NEVER + 1].tolist()
    add = times.append
    for low in range(NEVER + 1, len(network.extra), _CHUNK):  # numbers of Python take four times the memory
        rows = slice(low, low + _CHUNK)
        columns = []
        for each in network.edges:
            weight = each.lag[rows] + network.extra[rows] + offset[each.moment[rows]] + length[each.op[rows]]
            columns += [each.to[rows], weight]
        if as_recorded:
            came = np.maximum(recorded[columns[0]] + columns[1], recorded[columns[2]] + columns[3])
            same = int(np.argmin(np.append(came == recorded[rows], False)))
            as_recorded = same == len(came)
            times += recorded[rows][:same].tolist()
            columns = [column[same:] for column in columns]
        for one, ahead, other, behind in zip(*(column.tolist() for column in columns), strict=True):
            here, there = times[one] + ahead, times[other] + behind
            add(here if here >= there else there)
    node = np.array(times, np.int64)
    start = node[network.start]
    return Times(node, node[network.node[network.anchor]] + offset[:-1], start, node[network.done] + network.length)


def as_usual(network: Network) -> Network:
    """The network with the average lag on each edge of GPU ops, and nothing of their own."""
    edges = tuple(replace(each, lag=each.usual) for each in network.edges)
    known = (network.of_op >= 0) & (network.edges[0].to != ZERO)
    return replace(network, edges=edges, extra=np.where(known, 0, network.extra))  # type: ignore[arg-type]
